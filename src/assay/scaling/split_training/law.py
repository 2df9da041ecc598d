"""A law of the loss in model size, shared tokens and domain tokens, fitted to finished two-phase runs.

A run has N parameters; it was trained on a mixture for D tokens (the trunk) and then on one domain for Dp tokens (the
branch). `SplitLaw` predicts the loss on that domain. The paper (arXiv 2603.19149) names the arguments; the three
formulas it may have are reconstructed in `assay.scaling.split_training.forms`, and held-out error chooses among them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from assay.errors import InputError, nearest
from assay.scaling.fit import LossLaw, bootstrap_refits, read_losses
from assay.scaling.split_training.forms import Array, PlanForm, Rows, form_named
from assay.scaling.split_training.search import search

__all__ = ["SplitLaw", "read_rows"]

COLUMNS = ("N", "D", "Dp")
CANDIDATES = ("transfer", "separable", "multiplicative")
SPARE_ROWS = 3  # more than parameters
MOST_LEVELS = 6  # of one column, each held out in turn; more are joined
NOTHING = -60.0  # log of the factor of a term that is dropped
FOLD_STARTS, REFIT_STARTS = 3, 4
NO_N = "all rows have one N: the term of the model size is dropped, and other sizes can't be predicted"
NO_DP = "Dp is the same in all rows: what it does is not identified, and such a law cannot plan a split"


class SplitLaw(LossLaw):
    """Loss after D tokens on a mixture and Dp tokens on one domain, for a model of N parameters.

    Three formulas (arXiv 2603.19149 names their arguments; the formulas are reconstructed)::

        transfer         L = E + A/N^alpha + B / (Dp + k D^gamma N^delta)^beta
        separable        L = E + A/N^alpha + B/D^beta + C/Dp^eta + F / (D^beta2 Dp^eta2)
        multiplicative   L = E + A/N^alpha + B (D + D0)^-beta (1 + Dp/s)^-eta

    Not for tables that mix learning-rate schedules: the trunks must be at a constant rate where the branches leave
    them, and all branches must end their rate alike.

    Parameters
    ----------
    form : {"auto", "transfer", "separable", "multiplicative"}, default "auto"
        "auto" predicts each level of D and of N from the others and takes the form with the smallest error.
    loss : {"huber", "mse"}, default "huber"
        Objective on log residuals.
    huber_delta : float, default 1e-3
        Where the Huber loss turns linear.
    n_starts : int, default 200
        Starts of each fit.
    random_state : int, default 0
        Seed of the starts.

    Attributes
    ----------
    form_ : str
        The form that was fitted, one for all domains.
    params_ : dict
        Parameters by name; with domains, such a dictionary for each.
    cv_error_ : dict of str to float
        Mean relative error of each candidate on levels left out in turn; empty where the form was given. It chose
        the form, and is no estimate of the error on new runs.
    laws_ : dict of str to SplitLaw
        With domains: the law of each.
    cost_, msle_, rmsle_, n_converged_, starts_
        See `assay.scaling.fit.LossLaw`; without domains.

    Notes
    -----
    X has the columns N (parameters), D (shared tokens) and Dp (domain tokens). Runs without a shared phase (D = 0)
    follow another schedule; given, they are fitted as well, and "separable", which can't hold them, is no candidate.
    "separable" has ten parameters and wants thirty rows.

    Examples
    --------
    >>> from assay.datasets import load_dataset
    >>> runs = load_dataset("split-training-smoke")
    >>> runs = runs[(runs.family == "grid") & (runs.domain == "prose") & (runs.D > 0)]
    >>> law = SplitLaw("multiplicative", n_starts=32).fit(runs, runs.loss_prose)
    >>> bool((abs(law.predict(runs) / runs.loss_prose - 1) < 0.1).all())
    True
    """

    columns = COLUMNS

    def __init__(
        self, form: str = "auto", loss: str = "huber", huber_delta: float = 1e-3, n_starts: int = 200,
        random_state: int = 0,
    ) -> None:
        self.form = form
        self.loss = loss
        self.huber_delta = huber_delta
        self.n_starts = n_starts
        self.random_state = random_state

    def fit(
        self, X: ArrayLike, y: ArrayLike, domain: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> Self:
        """Fit the law, one a domain.

        Parameters
        ----------
        X : DataFrame or array-like, shape (n, 3)
            N, D, Dp; in a frame by these names.
        y : array-like, shape (n,)
            Losses on the branch's domain, positive.
        domain : array-like, optional
            The domain of each row, each with enough rows of its own. A single domain needs none.
        groups : array-like, optional
            What rows share, such as the trunk's size and seed: drawn together where intervals are made.

        Returns
        -------
        self

        Raises
        ------
        InputError
            A missing column; a number that is negative, NaN or infinite, with its row; fewer rows than parameters
            plus three; runs without a shared phase for the form "separable".

        Warns
        -----
        UserWarning
            All rows have one N, or one Dp.
        """
        table, losses = self._checked(X, y)
        for name in [name for name in vars(self) if name.endswith("_")]:  # of an earlier fit
            delattr(self, name)
        self.groups_ = None if groups is None else _labels(groups, "groups", len(table))
        if domain is None:
            self._warn_unidentified(table)
            return self._fit_one(table, losses)
        return self._fit_each(table, losses, _labels(domain, "domain", len(table)))

    def refit(self, rows: ArrayLike, n_starts: int = REFIT_STARTS) -> Self:
        """A new law of the same form, fitted to some of this one's rows (numbers, repeats allowed)."""
        check_is_fitted(self, "form_")
        chosen = np.asarray(rows)
        new = clone(self)
        new.form_, new.cv_error_, new.fits_size_ = self.form_, self.cv_error_, self.fits_size_
        new.groups_ = None if self.groups_ is None else self.groups_[chosen]
        if not hasattr(self, "laws_"):
            return self._refit_into(new, self.rows_[chosen], self.losses_[chosen], n_starts)
        new.laws_ = {}
        for name, law in self.laws_.items():
            mine = chosen[self.domains_[chosen] == name]
            if len(mine):  # a draw of trunks may leave a domain out: then its law stays
                own = np.searchsorted(np.flatnonzero(self.domains_ == name), mine)
                new.laws_[name] = law.refit(own, n_starts)
            else:
                new.laws_[name] = law
        return new._gather(self.rows_[chosen], self.losses_[chosen], self.domains_[chosen])

    def predict(self, X: ArrayLike, domain: ArrayLike | str | None = None) -> Array:
        """Predicted loss of each row.

        Parameters
        ----------
        X : DataFrame or array-like, shape (n, 3)
            N, D, Dp.
        domain : str or array-like, optional
            One domain, or one a row; needed where the law was fitted to domains.

        Returns
        -------
        ndarray, shape (n,)
        """
        check_is_fitted(self, "form_")
        table = self._read(X)
        if not hasattr(self, "laws_"):
            if domain is not None:
                raise InputError("the law was fitted without domains, and can't be asked for one")
            return np.exp(self.log_losses(table))
        labels = self._asked(domain, len(table))
        losses = np.empty(len(table))
        for name in np.unique(labels):
            mine = labels == name
            losses[mine] = np.exp(self.laws_[str(name)].log_losses(table[mine]))
        return losses

    def predict_interval(
        self, X: ArrayLike, level: float = 0.95, n_refits: int = 100, groups: ArrayLike | None = None,
        domain: ArrayLike | str | None = None,
    ) -> tuple[Array, Array]:
        """Bootstrap band of the prediction; see `LossLaw.predict_interval`. `groups` default to those of the fit."""
        if not 0 < level < 1:
            raise InputError(f"level must lie between 0 and 1, got {level}")
        predictions = [law.predict(X, domain) for law in self.refits(n_refits, groups)]
        low, high = np.quantile(predictions, [(1 - level) / 2, (1 + level) / 2], axis=0)
        return low, high

    def refits(self, n: int, groups: ArrayLike | None = None) -> list[SplitLaw]:
        """Laws refitted to resampled rows, or to resampled groups (those of the fit, where it was given some)."""
        check_is_fitted(self, "form_")
        labels = self.groups_ if groups is None else groups
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of what this law has warned of itself
            return bootstrap_refits(self, n, groups=labels, random_state=self.random_state)  # type: ignore[return-value]

    def identifiability(self) -> pd.DataFrame:
        """Which parameters the fitted rows fix; see `LossLaw.identifiability`. Asked of one domain's law."""
        check_is_fitted(self, "form_")
        if hasattr(self, "laws_"):
            raise InputError(f"ask the law of one domain: laws_[{next(iter(self.laws_))!r}].identifiability()")
        return super().identifiability()

    def log_losses(self, table: Array) -> Array:
        """Log losses of rows N, D, Dp by the law of one domain; refuses rows that its form has no number for."""
        form = self._form
        if not self.fits_size_ and (odd := ~np.isclose(table[:, 0], self.rows_[0, 0])).any():
            raise InputError(
                f"all fitted rows have N = {self.rows_[0, 0]:g}: nothing can be said of N = {table[odd][0, 0]:g}"
            )
        for column, words, takes in ((1, "D = 0", form.takes_no_trunk), (2, "Dp = 0", form.takes_no_branch)):
            if not takes and (table[:, column] == 0).any():
                raise InputError(
                    f"the {form.name} form has no value at {words}"
                    + (": no run without a shared phase was fitted" if form.name == "multiplicative" else "")
                )
        return self._log_loss(self._to_search(self.params_), Rows.of(table))[0]

    @property
    def parameters(self) -> tuple[str, ...]:  # type: ignore[override]
        return self._form.parameters

    @property
    def logged(self) -> frozenset[str]:  # type: ignore[override]
        return self._form.logged

    @property
    def _form(self) -> PlanForm:
        """The formula: as fitted, or as asked for (of "auto", the one with the fewest parameters)."""
        name = getattr(self, "form_", "multiplicative" if self.form == "auto" else self.form)
        return form_named(name, getattr(self, "from_new_weights_", False))

    def _checked(self, X: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
        self._check_settings()
        table = self._read(X)
        return table, read_losses(y, len(table))

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.form not in ("auto", *CANDIDATES):
            known = ["auto", *CANDIDATES]
            close = nearest(str(self.form), known)
            raise InputError(f"form must be one of {', '.join(known)}, got {self.form!r}{close}")

    def _fit_one(self, table: Array, losses: Array) -> Self:
        self._begin(table)
        fits = self._candidates(table, losses)
        if self.form == "auto":
            self.cv_error_ = {name: law._held_out_error() for name, law in fits.items()}
            self.form_ = min(self.cv_error_, key=self.cv_error_.__getitem__)
        else:
            self.form_, self.cv_error_ = self.form, {}
        return self._take(fits[self.form_])

    def _fit_each(self, table: Array, losses: Array, labels: NDArray[Any]) -> Self:
        """One form for all domains, the one whose held-out error is the smallest on average."""
        self.fits_size_ = len(np.unique(table[:, 0])) > 1
        names = [str(name) for name in np.unique(labels)]
        fits: dict[str, dict[str, SplitLaw]] = {}
        for name in names:
            mine = labels == name
            one = clone(self)
            one._warn_unidentified(table[mine])
            one._begin(table[mine])
            try:
                fits[name] = one._candidates(table[mine], losses[mine])
            except InputError as error:
                raise InputError(f"domain {name!r}: {error}") from None
        common = [form for form in CANDIDATES if all(form in found for found in fits.values())]
        self.cv_error_ = {}
        if self.form == "auto":
            errors = {name: {form: fits[name][form]._held_out_error() for form in common} for name in names}
            self.cv_error_ = {form: float(np.mean([errors[name][form] for name in names])) for form in common}
            for name in names:
                for form in common:
                    fits[name][form].cv_error_ = errors[name]
        self.form_ = min(self.cv_error_, key=self.cv_error_.__getitem__) if self.cv_error_ else self.form
        self.laws_ = {name: fits[name][self.form_] for name in names}
        if self.groups_ is not None:
            for name, law in self.laws_.items():
                law.groups_ = self.groups_[labels == name]
        return self._gather(table, losses, labels)

    def _gather(self, table: Array, losses: Array, labels: NDArray[Any]) -> Self:
        """What a law of several domains holds in common."""
        self.rows_, self.losses_, self.domains_ = table, losses, labels
        self.params_: dict[str, Any] = {name: law.params_ for name, law in self.laws_.items()}
        self.n_features_in_ = len(COLUMNS)
        return self

    def _begin(self, table: Array) -> None:
        self.fits_size_ = len(np.unique(table[:, 0])) > 1
        self.from_new_weights_ = bool((table[:, 1] == 0).any())

    def _candidates(self, table: Array, losses: Array) -> dict[str, SplitLaw]:
        """Fitted laws of the forms that the rows allow."""
        asked = CANDIDATES if self.form == "auto" else (self.form,)
        fits, why = {}, ""
        for name in asked:
            form = form_named(name, self.from_new_weights_)
            if reason := _refusal(form, table, self.fits_size_):
                why = why or reason
                continue
            law = clone(self).set_params(form=name)
            law._begin(table)
            law.form_, law.cv_error_, law.groups_ = name, {}, None
            starts = form.starts(Rows.of(table), losses, self.n_starts, self.random_state)
            fits[name] = law._search(table, losses, starts)
        if not fits:
            raise InputError(why)
        return fits

    def _take(self, fitted: SplitLaw) -> Self:
        """The state of a law fitted in one form; what was asked for stays."""
        kept = {"form_": self.form_, "cv_error_": self.cv_error_, "groups_": self.groups_}
        self.__dict__.update({k: v for k, v in vars(fitted).items() if k.endswith("_")} | kept)
        return self

    def _held_out_error(self) -> float:
        """Mean over folds of the mean relative error on levels of D and N that the fit has not seen."""
        errors = []
        for fold in _folds(self.rows_, self._least_rows()):
            law = clone(self)
            law._begin(self.rows_)
            law.form_ = self.form_
            law = self._refit_into(law, self.rows_[~fold], self.losses_[~fold], FOLD_STARTS)
            errors.append(np.mean(np.abs(np.exp(law.log_losses(self.rows_[fold])) / self.losses_[fold] - 1)))
        return float(np.mean(errors))

    def _refit_into(self, new: Self, table: Array, losses: Array, n_starts: int) -> Self:
        # A draw of rows with one N keeps the size's term near this law's.
        new.from_new_weights_, new.fits_size_ = self.from_new_weights_, self.fits_size_
        best = np.argsort(self.start_costs_, kind="stable")[: max(0, n_starts - 1)]
        return new._search(table, losses, np.vstack([self._to_search(self.params_), self.starts_[best]]))

    def _search(self, table: Array, losses: Array, starts: Array) -> Self:
        prepared, log_y, form = Rows.of(table), np.log(losses), self._form
        found = search(
            lambda x: form.evaluate(x, prepared), log_y, starts, self._bounds(), self.loss, self.huber_delta
        )
        self.rows_, self.losses_ = table, losses
        self.starts_, self.start_costs_, self.solutions_ = starts, found.costs, found.solutions
        self.params_ = self.parameters_at(found.x)
        self.cost_, self.n_converged_, self.n_evaluations_ = found.cost, found.n_converged, found.n_evaluations
        squares = (form.evaluate(found.x, prepared)[0] - log_y) ** 2
        self.msle_, self.rmsle_ = float(squares.mean()), 100 * float(np.sqrt(squares.sum()))
        self.n_features_in_ = len(COLUMNS)
        return self

    def _read(self, X: ArrayLike) -> Array:
        return read_rows(X)

    def _least_rows(self) -> int:
        return len(self._form.parameters) + SPARE_ROWS - (0 if getattr(self, "fits_size_", True) else 2)

    def _prepare(self, table: Array) -> Rows:
        return Rows.of(table)

    def _log_loss(self, x: Array, rows: Any) -> tuple[Array, Array]:
        return self._form.evaluate(x, rows)

    def _bounds(self) -> tuple[Array, Array]:
        """Those of the form; with one N, the term of the model size is held at nothing."""
        low, high = self._form.bounds()
        if not getattr(self, "fits_size_", True):
            low[1], high[1], low[2], high[2] = NOTHING, NOTHING, 1.0, 1.0
            if "delta" in self._form.parameters:
                at = self._form.parameters.index("delta")
                low[at] = high[at] = 0.0
        return low, high

    def _start_ranges(self, table: Array, losses: Array) -> tuple[Array, Array]:
        starts = self._form.starts(Rows.of(table), losses, self.n_starts, self.random_state)
        return starts.min(axis=0), starts.max(axis=0)

    def _warn_unidentified(self, table: Array) -> None:
        if len(np.unique(table[:, 0])) == 1:
            warnings.warn(NO_N, stacklevel=3)
        if len(np.unique(table[:, 2])) == 1:
            warnings.warn(NO_DP, stacklevel=3)

    def _asked(self, domain: ArrayLike | str | None, n: int) -> NDArray[Any]:
        if domain is None:
            raise InputError(f"the law was fitted to the domains {', '.join(self.laws_)}: say which one is asked for")
        labels = _labels(np.repeat(domain, n) if isinstance(domain, str) else domain, "domain", n)
        for name in np.unique(labels):
            if str(name) not in self.laws_:
                raise InputError(
                    f"no fitted row has the domain {str(name)!r}{nearest(str(name), list(self.laws_))}; "
                    f"known: {', '.join(self.laws_)}"
                )
        return labels


def read_rows(X: ArrayLike, where: str = "X") -> Array:
    """Columns N, D, Dp as float64, shape (n, 3): N positive, D and Dp not negative, one of them positive.

    Raises `InputError` that names the column and the row.
    """
    table = _as_numbers(X, where)
    labels = X.index if isinstance(X, pd.DataFrame) else range(len(table))
    least = np.array([np.nextafter(0.0, 1.0), 0.0, 0.0])
    for row, column in np.argwhere(~np.isfinite(table) | (table < least))[:1]:
        words = "a positive" if column == 0 else "a finite, not negative"
        raise InputError(
            f"{where}: {COLUMNS[column]} must be {words} number, got {table[row, column]:g} in row {labels[row]}"
        )
    empty = np.flatnonzero((table[:, 1] == 0) & (table[:, 2] == 0))
    if len(empty):
        raise InputError(f"{where}: D and Dp are both 0 in row {labels[empty[0]]}: such a model was not trained")
    return table


def _as_numbers(X: ArrayLike, where: str) -> Array:
    if isinstance(X, pd.DataFrame):
        missing = [name for name in COLUMNS if name not in X.columns]
        if missing:
            raise InputError(f"{where} lacks the column {missing[0]}; it needs {', '.join(COLUMNS)}")
        repeated = [name for name in COLUMNS if (X.columns == name).sum() > 1]
        if repeated:
            raise InputError(f"{where} has more than one column {repeated[0]}")
        return X[list(COLUMNS)].apply(pd.to_numeric, errors="coerce").to_numpy(dtype=float, copy=True)
    try:
        if np.iscomplexobj(X):
            raise TypeError("complex numbers have no order")
        table = np.array(X, dtype=float)
    except (TypeError, ValueError):
        raise InputError(f"{where} must hold numbers in the columns {', '.join(COLUMNS)}") from None
    if table.ndim != 2 or table.shape[1] != len(COLUMNS) or not len(table):
        raise InputError(f"{where} must have rows of the 3 columns {', '.join(COLUMNS)}, got shape {table.shape}")
    return table


def _labels(values: ArrayLike, name: str, n: int) -> NDArray[Any]:
    labels = np.asarray(values)
    if labels.shape != (n,):
        raise InputError(f"{name} must have one label for each of the {n} rows, got shape {labels.shape}")
    if pd.isna(labels).any():
        raise InputError(f"{name} has no label in row {int(np.argmax(pd.isna(labels)))}")
    return labels.astype(str)


def _refusal(form: PlanForm, table: Array, fits_size: bool) -> str:
    """Why a form can't be fitted to the rows, in words; empty where it can."""
    for column, words, takes in ((1, "shared", form.takes_no_trunk), (2, "domain", form.takes_no_branch)):
        if not takes and (table[:, column] == 0).any():
            return f"the {form.name} form can't hold runs without a {words} phase: leave them out"
    needed = max(form.least_rows, len(form.parameters) + SPARE_ROWS - (0 if fits_size else 2))
    return "" if len(table) >= needed else f"the {form.name} form needs at least {needed} rows, got {len(table)}"


def _folds(table: Array, least: int) -> Iterator[NDArray[np.bool_]]:
    """Masks of rows to hold out: each level of D, then each of N, where enough rows and two levels remain."""
    count = 0
    for column in (1, 0):
        levels = _levels(table[:, column])
        for level in np.unique(levels[table[:, column] > 0]):  # nothing else tells what new weights are worth
            fold = levels == level
            if (~fold).sum() >= least and len(np.unique(levels[~fold])) >= 2:
                count += 1
                yield fold
    if not count:  # one D and one N, or hardly any rows: every third row in turn
        for rest in range(3):
            yield np.arange(len(table)) % 3 == rest


def _levels(values: Array) -> NDArray[np.intp]:
    """The number of each value's level; many values are joined into a few levels of about equal size."""
    unique, codes = np.unique(values, return_inverse=True)
    if len(unique) <= MOST_LEVELS:
        return codes
    return np.searchsorted(np.quantile(values, np.arange(1, MOST_LEVELS) / MOST_LEVELS), values, side="right")


def parameter_table(law: SplitLaw) -> pd.DataFrame:
    """Parameters of a fitted law, one row a domain (`all` without domains)."""
    found: Mapping[str, Any] = law.params_ if hasattr(law, "laws_") else {"all": law.params_}
    return pd.DataFrame.from_dict(found, orient="index")
