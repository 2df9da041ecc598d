"""What scaling laws share: fitting in log space from many starts, refits, hold-outs, identification, allocation.

A law predicts a positive loss from a few positive numbers (sizes, tokens, batch, updates). It is fitted by making the
log residuals `log prediction - log loss` small, half their squares or the Huber loss, from a Latin hypercube of
starts. `LossLaw` holds what all laws do; a law adds its formula with derivatives, its start ranges and its bounds.

`ChinchillaLaw`, `KaplanLaw` and `PowerLaw` are the laws that a practitioner uses today, and the baselines of this
area's studies. `assay.scaling.links` leads from a loss to a score, `assay.scaling.tables` reads a user's runs.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq, least_squares, minimize, minimize_scalar
from scipy.stats import qmc
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.utils.validation import check_is_fitted

from assay.errors import InputError

__all__ = [
    "ChinchillaLaw", "KaplanLaw", "LossLaw", "MultiStart", "PowerLaw", "allocate", "bootstrap_refits", "crossings",
    "latin_hypercube", "multistart", "read_columns", "split_above", "split_by_group",
]

Array = NDArray[np.float64]
Residuals = Callable[[Array], tuple[Array, Array]]

LOSSES = ("mse", "huber")
NEAR_BEST = 1.01  # a start has converged when its cost is within 1 % of the best one
MAX_EVALUATIONS = 300
FAR = 1000.0  # a budget so many times beyond the fitted runs is answered with a warning
LOOSE = 0.5  # a parameter is not fixed by the rows where its standard error is above half of it


class LossLaw(RegressorMixin, BaseEstimator):
    """A parametric law of the loss; a subclass gives its parameters, columns, formula, start ranges and bounds.

    Attributes
    ----------
    params_ : dict of str to float
        The fitted parameters.
    cost_ : float
        Half the sum of squared log residuals, or the sum of their Huber losses.
    rmsle_ : float
        `100 * sqrt(2 * cost_)` for squared residuals: a root of a *sum*, in per cent, as some papers report it.
    msle_ : float
        Mean squared log residual.
    n_converged_ : int
        Starts that ended within 1 % of the best cost.
    n_evaluations_ : int
        Evaluations of the law and its derivatives that the fit took.
    starts_, solutions_ : ndarray, shape (n_starts, n_parameters)
        Where each search started and ended, in the coordinates of the search.
    start_costs_ : ndarray, shape (n_starts,)
        The cost at the end of each search.
    """

    columns: ClassVar[tuple[str, ...]]  # that X must have
    parameters: ClassVar[tuple[str, ...]]
    logged: ClassVar[frozenset[str]]  # parameters that are searched, and bounded, in their logarithm
    plan_settings: ClassVar[Mapping[str, Any]] = {}  # what it must be told to serve any table, for `assay.scaling.plan`

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit the law.

        Parameters
        ----------
        X : DataFrame or array-like, shape (n, columns)
            A frame with the law's columns (others are ignored), or an array with them in that order.
        y : array-like, shape (n,)
            Losses, positive.

        Returns
        -------
        self

        Raises
        ------
        InputError
            A missing column; a value that is not finite and positive, with its row; too few rows.
        """
        table = self._read(X)
        losses = read_losses(y, len(table))
        self._check_settings()
        if len(table) < self._least_rows():
            raise InputError(f"{type(self).__name__} needs at least {self._least_rows()} rows, got {len(table)}")
        self._warn_unidentified(table)
        low, high = self._start_ranges(table, losses)
        starts = np.clip(latin_hypercube(low, high, self.n_starts, self.random_state), *self._bounds())
        return self._search(table, losses, starts)

    def refit(self, rows: ArrayLike, n_starts: int = 4) -> Self:
        """A new law of the same settings, fitted to some of this one's rows (numbers, repeats allowed).

        Its starts are this law's solution and best starts, which serve a resampled table as well.
        """
        check_is_fitted(self, "params_")
        best = np.argsort(self.start_costs_, kind="stable")[: max(0, n_starts - 1)]
        starts = np.vstack([self._to_search(self.params_), self.starts_[best]])
        chosen = np.asarray(rows)
        return clone(self)._search(self.rows_[chosen], self.losses_[chosen], starts)

    def predict_interval(
        self, X: ArrayLike, level: float = 0.95, n_refits: int = 100, groups: ArrayLike | None = None
    ) -> tuple[Array, Array]:
        """Bootstrap band of the prediction: what other draws of the fitted runs would have given.

        Parameters
        ----------
        X : DataFrame or array-like, shape (n, columns)
        level : float, default 0.95
        n_refits : int, default 100
            Refits to resampled rows.
        groups : array-like, optional
            One label a fitted row; rows with one label are drawn together.

        Returns
        -------
        low, high : ndarray, shape (n,)
            Uncertainty of the law only; a single run scatters around it besides.
        """
        if not 0 < level < 1:
            raise InputError(f"level must lie between 0 and 1, got {level}")
        refits = bootstrap_refits(self, n_refits, groups=groups, random_state=self.random_state)
        predictions = [law.predict(X) for law in refits]
        low, high = np.quantile(predictions, [(1 - level) / 2, (1 + level) / 2], axis=0)
        return low, high

    def optimum(self, compute: float, **how: Any) -> dict[str, float]:
        """What `optimal` chooses, as numbers by name (N, D, perhaps B and K, loss), whatever form the law gives it.

        Raises `InputError` for a law that chooses nothing.
        """
        if not hasattr(self, "optimal"):
            raise InputError(f"{type(self).__name__} reads {', '.join(self.columns)} alone and chooses nothing")
        return dict(self.optimal(compute, **how))

    def optimal_interval(
        self, compute: float, *, level: float = 0.95, n_refits: int = 100, groups: ArrayLike | None = None, **how: Any
    ) -> pd.DataFrame:
        """The optimum under a budget, with what refits to resampled rows make of it.

        Parameters
        ----------
        compute : float
            FLOP.
        level : float, default 0.95
        n_refits : int, default 100
        groups : array-like, optional
            One label a fitted row; rows with one label are drawn together.
        **how
            Further arguments of `optimal`.

        Returns
        -------
        DataFrame
            One row for N, D, (B, K,) and loss; columns estimate, low and high.
        """
        if not 0 < level < 1:
            raise InputError(f"level must lie between 0 and 1, got {level}")
        estimate = self.optimum(compute, **how)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of the budget: the law itself has just given it
            refits = bootstrap_refits(self, n_refits, groups=groups, random_state=self.random_state)
            found = pd.DataFrame([law.optimum(compute, **how) for law in refits])
        low, high = found.quantile((1 - level) / 2), found.quantile((1 + level) / 2)
        return pd.DataFrame({"estimate": pd.Series(estimate), "low": low, "high": high})

    def identifiability(self) -> pd.DataFrame:
        """Which parameters the fitted rows fix, from the curvature of the fit at its solution.

        Returns
        -------
        DataFrame
            One row a parameter: its value; `error`, the standard error relative to the value; `tied_to`, the
            parameter that it is most correlated with, and that `correlation`; `at_bound`, whether the search ended
            on a bound; `fixed`, whether its error is below one half and it is on no bound. A parameter may be fixed
            and tied all the same, as an exponent is to its factor.
        """
        check_is_fitted(self, "params_")
        x = self._to_search(self.params_)
        log_loss, jacobian = self._log_loss(x, self._prepare(self.rows_))
        freedom = max(1, len(log_loss) - len(x))
        scale = np.linalg.norm(jacobian, axis=0)
        scale[scale == 0] = 1.0
        curvature = np.linalg.pinv((jacobian / scale).T @ (jacobian / scale), rcond=1e-12, hermitian=True)
        flat = np.linalg.matrix_rank(jacobian / scale, tol=1e-6) < len(x)
        deviation = np.sqrt(np.sum((log_loss - np.log(self.losses_)) ** 2) / freedom * np.diag(curvature)) / scale
        root = np.sqrt(np.maximum(np.diag(curvature), 1e-300))
        correlation = curvature / np.outer(root, root) - np.eye(len(x))
        partner = np.abs(correlation).argmax(axis=0)
        strength = correlation[partner, np.arange(len(x))]
        # The error of a logarithm is the relative error of the parameter.
        relative = [
            e if p in self.logged else e / max(abs(v), 1e-300)
            for p, e, v in zip(self.parameters, deviation, x, strict=True)
        ]
        low, high = self._bounds()
        at_bound = np.isclose(x, low, rtol=1e-4, atol=1e-6) | np.isclose(x, high, rtol=1e-4, atol=1e-6)
        table = pd.DataFrame(
            {
                "value": list(self.params_.values()), "error": np.inf if flat else relative,
                "tied_to": [self.parameters[i] for i in partner], "correlation": strength, "at_bound": at_bound,
            },
            index=list(self.parameters),
        )
        table["fixed"] = (table["error"] < LOOSE) & ~table["at_bound"]
        return table

    def predict(self, X: ArrayLike) -> Array:
        """Predicted loss of each row, shape (n,)."""
        check_is_fitted(self, "params_")
        log_loss, _ = self._log_loss(self._to_search(self.params_), self._prepare(self._read(X)))
        return np.exp(log_loss)

    def parameters_at(self, x: Array) -> dict[str, float]:
        """The parameters by name at a point of the search, such as a row of `solutions_`."""
        pairs = zip(self.parameters, x, strict=True)
        return {p: float(np.exp(v)) if p in self.logged else float(v) for p, v in pairs}

    def _search(self, table: Array, losses: Array, starts: Array) -> Self:
        prepared, log_y = self._prepare(table), np.log(losses)

        def residuals(x: Array) -> tuple[Array, Array]:
            log_loss, jacobian = self._log_loss(x, prepared)
            return log_loss - log_y, jacobian

        found = multistart(residuals, starts, self._bounds(), loss=self.loss, huber_delta=self.huber_delta)
        self.rows_, self.losses_ = table, losses
        self.starts_, self.start_costs_, self.solutions_ = starts, found.costs, found.solutions
        self.params_ = self.parameters_at(found.x)
        self.cost_, self.n_converged_, self.n_evaluations_ = found.cost, found.n_converged, found.n_evaluations
        squares = residuals(found.x)[0] ** 2
        self.msle_ = float(squares.mean())
        self.rmsle_ = 100 * float(np.sqrt(squares.sum()))
        self.n_features_in_ = len(self.columns)
        return self

    def _check_budget(self, compute: float) -> None:
        """Refuse what is no budget, warn of one far outside the fitted runs."""
        check_is_fitted(self, "params_")
        if not (isinstance(compute, Real) and np.isfinite(float(compute)) and compute > 0):
            raise InputError(f"compute must be a positive, finite number of FLOP, got {compute}")
        if not hasattr(self, "rows_"):
            return
        fitted = 6 * self.rows_[:, 0] * self.rows_[:, 1]
        beyond = max(float(compute) / fitted.max(), fitted.min() / float(compute))
        if beyond > FAR:
            end = "above the largest" if compute > fitted.max() else "below the smallest"
            warnings.warn(
                f"{compute:.3g} FLOP lie a factor of {beyond:.3g} {end} fitted run: take the interval of "
                f"optimal_interval, and not the number alone",
                stacklevel=3,
            )

    def _to_search(self, params: Mapping[str, float]) -> Array:
        return np.array([np.log(params[p]) if p in self.logged else params[p] for p in self.parameters])

    def _read(self, X: ArrayLike) -> Array:
        return read_columns(X, self.columns)

    def _check_settings(self) -> None:
        if self.loss not in LOSSES:
            raise InputError(f"loss must be one of {', '.join(LOSSES)}, got {self.loss!r}")
        if not (isinstance(self.huber_delta, Real) and float(self.huber_delta) > 0):
            raise InputError(f"huber_delta must be positive, got {self.huber_delta!r}")

    def _least_rows(self) -> int:
        return len(self.parameters) + 1

    def _prepare(self, table: Array) -> Any:
        """What `_log_loss` needs of the rows, computed once a fit."""
        return np.log(table)

    def _warn_unidentified(self, table: Array) -> None:
        """Warn where the rows cannot tell parameters apart."""

    @abstractmethod
    def _log_loss(self, x: Array, rows: Any) -> tuple[Array, Array]:
        """Log of the predicted loss, shape (n,), and its derivatives in the search coordinates, shape (n, len(x))."""

    @abstractmethod
    def _start_ranges(self, table: Array, losses: Array) -> tuple[Array, Array]:
        """Lowest and highest start of each search coordinate."""

    @abstractmethod
    def _bounds(self) -> tuple[Array, Array]:
        """Bounds of each search coordinate."""


class ChinchillaLaw(LossLaw):
    """Hoffmann et al.'s law `L = E + A / N**alpha + B / D**beta`, optionally aware of the batch size.

    With `batch_aware=True` the tokens D count as `D / (1 + batch / B_crit)`, McCandlish et al.'s rule for the data
    that large batches waste, with one fitted critical batch size.

    Parameters
    ----------
    batch_aware : bool, default False
        Read a third column B (batch size, sequences) and fit `B_crit` in its unit.
    loss : {"huber", "mse"}, default "huber"
        Objective on log residuals.
    huber_delta : float, default 1e-3
        Where the Huber loss turns linear.
    n_starts : int, default 64
        Latin-hypercube starts.
    random_state : int, default 0
        Seed of the starts.

    Notes
    -----
    X has the columns N (parameters) and D (tokens), and B if `batch_aware`. Hoffmann et al. 2022, arXiv 2203.15556,
    eq. 10 and appendix D.2; McCandlish et al. 2018, arXiv 1812.06162, eq. 2.11 and 2.12, reconstructed: they state
    the rule for runs to a fixed loss.

    Examples
    --------
    >>> import numpy as np
    >>> N, D = np.meshgrid([1e7, 1e8, 1e9], [1e9, 1e10, 1e11])
    >>> X = np.column_stack([N.ravel(), D.ravel()])
    >>> y = 1.69 + 406.4 / X[:, 0] ** 0.34 + 410.7 / X[:, 1] ** 0.28
    >>> law = ChinchillaLaw(loss="mse", n_starts=8).fit(X, y)
    >>> print(round(law.params_["alpha"], 3), round(law.params_["beta"], 3))
    0.34 0.28
    """

    logged = frozenset({"E", "A", "B", "B_crit"})

    def __init__(
        self, batch_aware: bool = False, loss: str = "huber", huber_delta: float = 1e-3, n_starts: int = 64,
        random_state: int = 0,
    ) -> None:
        self.batch_aware = batch_aware
        self.loss = loss
        self.huber_delta = huber_delta
        self.n_starts = n_starts
        self.random_state = random_state

    @property
    def parameters(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("E", "A", "alpha", "B", "beta") + (("B_crit",) if self.batch_aware else ())

    def optimal(self, compute: float) -> dict[str, float]:
        """Compute-optimal N and D with `6 * N * D = compute` FLOP, and their loss (batch size not chosen).

        Warns where the budget lies far outside the fitted runs; `optimal_interval` gives the interval.

        Examples
        --------
        >>> law = ChinchillaLaw()
        >>> law.params_ = dict(E=1.69, A=406.4, alpha=0.34, B=410.7, beta=0.28)
        >>> print({name: float(f"{value:.3g}") for name, value in law.optimal(1e21).items()})
        {'N': 1820000000.0, 'D': 91400000000.0, 'loss': 2.33}
        """
        self._check_budget(compute)
        E, A, alpha, B, beta = (self.params_[name] for name in ("E", "A", "alpha", "B", "beta"))
        N, D = _divided(compute, (np.log(alpha * A / (beta * B)) + beta * np.log(compute / 6)) / (alpha + beta))
        return {"N": N, "D": D, "loss": E + A / N**alpha + B / D**beta}

    @property
    def columns(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("N", "D", "B") if self.batch_aware else ("N", "D")

    def _log_loss(self, x: Array, rows: Array) -> tuple[Array, Array]:
        log_E, log_A, alpha, log_B, beta = x[:5]
        log_N, log_D = rows[:, 0], rows[:, 1]
        waste = np.exp(rows[:, 2] - x[5]) if self.batch_aware else 0.0
        log_D = log_D - np.log1p(waste)
        E = np.exp(log_E)
        size, data = np.exp(log_A - alpha * log_N), np.exp(log_B - beta * log_D)
        total = E + size + data
        slopes = [np.full_like(size, E), size, -size * log_N, data, -data * log_D]
        if self.batch_aware:
            slopes.append(-data * beta * waste / (1 + waste))
        return np.log(total), np.stack(slopes, axis=1) / total[:, None]

    def _start_ranges(self, table: Array, losses: Array) -> tuple[Array, Array]:
        """Exponents between 0.1 and 1; each term between 1 % and all of the loss at the middle of the rows."""
        log_N, log_D = np.median(np.log(table[:, :2]), axis=0)
        log_y = np.log(np.median(losses))
        few = np.log(0.01)
        low = [log_y + few, log_y + few + 0.1 * log_N, 0.1, log_y + few + 0.1 * log_D, 0.1]
        high = [np.log(losses.min()), log_y + log_N, 1.0, log_y + log_D, 1.0]
        if self.batch_aware:
            low.append(np.log(table[:, 2].min()))
            high.append(np.log(table[:, 2].max()) + 1.0)
        return np.array(low), np.array(high)

    def _bounds(self) -> tuple[Array, Array]:
        low = [-20.0, -20.0, 1e-3, -20.0, 1e-3, -10.0]
        high = [10.0, 60.0, 3.0, 80.0, 3.0, 40.0]
        n = len(self.parameters)
        return np.array(low[:n]), np.array(high[:n])


class KaplanLaw(LossLaw):
    """Kaplan et al.'s law `L = ((N_c / N)**(alpha_N / alpha_D) + D_c / D)**alpha_D`, without an irreducible part.

    Parameters
    ----------
    loss, huber_delta, n_starts, random_state
        As in `ChinchillaLaw`.

    Notes
    -----
    X has the columns N (parameters) and D (tokens). Kaplan et al. 2020, arXiv 2001.08361, eq. 1.5.

    Examples
    --------
    >>> import numpy as np
    >>> N, D = np.meshgrid([1e7, 1e8, 1e9], [1e9, 1e10, 1e11])
    >>> X = np.column_stack([N.ravel(), D.ravel()])
    >>> y = ((8.8e13 / X[:, 0]) ** (0.076 / 0.095) + 5.4e13 / X[:, 1]) ** 0.095
    >>> law = KaplanLaw(loss="mse", n_starts=16).fit(X, y)
    >>> print(round(law.params_["alpha_N"], 3), round(law.params_["alpha_D"], 3))
    0.076 0.095
    """

    columns = ("N", "D")
    parameters = ("N_c", "alpha_N", "D_c", "alpha_D")
    logged = frozenset({"N_c", "D_c"})

    def __init__(
        self, loss: str = "huber", huber_delta: float = 1e-3, n_starts: int = 64, random_state: int = 0
    ) -> None:
        self.loss = loss
        self.huber_delta = huber_delta
        self.n_starts = n_starts
        self.random_state = random_state

    def optimal(self, compute: float) -> dict[str, float]:
        """Compute-optimal N and D with `6 * N * D = compute` FLOP, and their loss; see `ChinchillaLaw.optimal`.

        Examples
        --------
        >>> law = KaplanLaw()
        >>> law.params_ = dict(N_c=8.8e13, alpha_N=0.076, D_c=5.4e13, alpha_D=0.095)
        >>> print({name: float(f"{value:.3g}") for name, value in law.optimal(1e21).items()})
        {'N': 5610000000.0, 'D': 29700000000.0, 'loss': 2.2}
        """
        self._check_budget(compute)
        ratio = self.params_["alpha_N"] / self.params_["alpha_D"]
        tokens = np.log(compute / (6 * self.params_["D_c"]))
        N, D = _divided(compute, (np.log(ratio) + ratio * np.log(self.params_["N_c"]) + tokens) / (1 + ratio))
        return {"N": N, "D": D, "loss": float(self.predict([[N, D]])[0])}

    def _log_loss(self, x: Array, rows: Array) -> tuple[Array, Array]:
        log_Nc, alpha_N, log_Dc, alpha_D = x
        ratio = alpha_N / alpha_D
        of_size, of_data = log_Nc - rows[:, 0], log_Dc - rows[:, 1]
        log_sum = np.logaddexp(ratio * of_size, of_data)
        share = np.exp(ratio * of_size - log_sum)
        slopes = [
            alpha_N * share, share * of_size, alpha_D * (1 - share), log_sum - ratio * share * of_size,
        ]
        return alpha_D * log_sum, np.stack(slopes, axis=1)

    def _start_ranges(self, table: Array, losses: Array) -> tuple[Array, Array]:
        log_N, log_D = np.median(np.log(table), axis=0)
        return np.array([log_N, 0.02, log_D, 0.02]), np.array([log_N + 25, 0.4, log_D + 25, 0.4])

    def _bounds(self) -> tuple[Array, Array]:
        return np.array([-20.0, 1e-3, -20.0, 1e-3]), np.array([400.0, 3.0, 400.0, 3.0])


class PowerLaw(LossLaw):
    """A power of one quantity above a floor: `L = E + A / C**alpha`, C for instance compute.

    Parameters
    ----------
    loss, huber_delta, n_starts, random_state
        As in `ChinchillaLaw`.

    Notes
    -----
    X has the one column C.

    Examples
    --------
    >>> import numpy as np
    >>> C = np.logspace(15, 19, 9)[:, None]
    >>> law = PowerLaw(loss="mse", n_starts=8).fit(C, 1.7 + 300 / C[:, 0] ** 0.15)
    >>> print({name: round(value, 3) for name, value in law.params_.items()})
    {'E': 1.7, 'A': 300.0, 'alpha': 0.15}
    """

    columns = ("C",)
    parameters = ("E", "A", "alpha")
    logged = frozenset({"E", "A"})

    def __init__(
        self, loss: str = "huber", huber_delta: float = 1e-3, n_starts: int = 64, random_state: int = 0
    ) -> None:
        self.loss = loss
        self.huber_delta = huber_delta
        self.n_starts = n_starts
        self.random_state = random_state

    def _log_loss(self, x: Array, rows: Array) -> tuple[Array, Array]:
        log_E, log_A, alpha = x
        E, power = np.exp(log_E), np.exp(log_A - alpha * rows[:, 0])
        total = E + power
        slopes = [np.full_like(power, E), power, -power * rows[:, 0]]
        return np.log(total), np.stack(slopes, axis=1) / total[:, None]

    def _start_ranges(self, table: Array, losses: Array) -> tuple[Array, Array]:
        log_C, log_y = np.median(np.log(table)), np.log(np.median(losses))
        few = np.log(0.01)
        return np.array([log_y + few, log_y + few + 0.02 * log_C, 0.02]), np.array(
            [np.log(losses.min()), log_y + log_C, 1.0]
        )

    def _bounds(self) -> tuple[Array, Array]:
        return np.array([-20.0, -20.0, 1e-3]), np.array([10.0, 150.0, 3.0])


@dataclass(frozen=True)
class MultiStart:
    """The best end point of several searches, with the cost and end point of each."""

    x: Array
    cost: float
    costs: Array
    solutions: Array
    n_converged: int
    n_evaluations: int


def multistart(
    residuals: Residuals, starts: Array, bounds: tuple[Array, Array], *, loss: str = "mse", huber_delta: float = 1e-3
) -> MultiStart:
    """Minimise half the squares, or the Huber loss, of residuals from each start.

    Squares are minimised by a bounded trust-region Gauss-Newton method. The Huber loss, nearly an absolute value at
    the usual `huber_delta`, is minimised by L-BFGS twice, from the start and from its least-squares solution: the
    first finds minima that squares hide, the second is the surer way where the problem is badly scaled.

    Parameters
    ----------
    residuals : callable
        `x -> (residuals (n,), Jacobian (n, k))`.
    starts : ndarray, shape (n_starts, k)
    bounds : pair of ndarray, shape (k,)
    loss : {"mse", "huber"}
    huber_delta : float

    Returns
    -------
    MultiStart
        `n_evaluations` counts calls of `residuals`.
    """
    memo = _Memo(residuals)
    scale = np.maximum(np.abs(starts).max(axis=0), 1e-3)
    ends, costs = [], []
    for start in starts:
        found = least_squares(
            memo.residuals, _inside(start, bounds), memo.jacobian, bounds, x_scale="jac", max_nfev=MAX_EVALUATIONS
        )
        end, cost = found.x, float(found.cost)
        if loss == "huber":
            ways = [_minimise_huber(memo, x, bounds, scale, huber_delta) for x in (start, end)]
            end, cost = min(ways, key=lambda way: way[1])
        ends.append(end)
        costs.append(cost)
    best = int(np.argmin(costs))
    near = int(np.sum(np.array(costs) <= NEAR_BEST * costs[best]))
    return MultiStart(ends[best], costs[best], np.array(costs), np.array(ends), near, memo.calls)


def latin_hypercube(low: Array, high: Array, n: int, random_state: int) -> Array:
    """`n` points that cover each coordinate's range evenly, shape (n, k).

    >>> points = latin_hypercube(np.zeros(2), np.ones(2), n=4, random_state=0)
    >>> np.sort((4 * points).astype(int), axis=0).T.tolist()
    [[0, 1, 2, 3], [0, 1, 2, 3]]
    """
    if not isinstance(n, Integral) or n < 1:
        raise InputError(f"n_starts must be a whole number of at least 1, got {n!r}")
    try:
        rng = np.random.default_rng(random_state)
    except (TypeError, ValueError):
        raise InputError(f"random_state must be a whole number, not negative, got {random_state!r}") from None
    sampler = qmc.LatinHypercube(len(low), rng=rng)
    return low + (high - low) * sampler.random(n)


def split_above(values: ArrayLike, quantile: float) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Masks of the rows below a quantile (to fit) and of the rest (to test an extrapolation).

    `values` are numbers, such as compute or size, or dates. Rows that share the value that the quantile falls on are
    tested together: a budget is never split.

    >>> fit, test = split_above([1, 1, 2, 2, 4, 4, 8, 8], 0.5)
    >>> fit.tolist()
    [True, True, True, True, False, False, False, False]
    >>> fit, _ = split_above(np.array(["2024-01", "2024-05", "2025-02"], dtype="datetime64[M]"), 0.9)
    >>> fit.tolist()
    [True, True, False]
    """
    array = np.asarray(values)
    array = array.astype("datetime64[ns]").astype(np.int64) if array.dtype.kind == "M" else array.astype(float)
    if not 0 < quantile < 1:
        raise InputError(f"the quantile must lie between 0 and 1, got {quantile}")
    fit = array < np.quantile(array, quantile, method="higher")
    if not fit.any():
        raise InputError(f"no row lies below the {quantile} quantile")
    return fit, ~fit


def split_by_group(groups: ArrayLike, held_out: Sequence[Any]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Masks of the rows outside and inside the named groups (families, seeds, recipes).

    >>> fit, test = split_by_group(["a", "a", "b", "c"], ["b"])
    >>> test.tolist()
    [False, False, True, False]
    """
    labels = np.asarray(groups)
    unknown = [name for name in held_out if name not in labels]
    if unknown:
        raise InputError(f"no row belongs to the group {unknown[0]!r}")
    test = np.isin(labels, list(held_out))
    if test.all() or not test.any():
        raise InputError(f"holding out {list(held_out)} leaves {(~test).sum()} rows to fit and {test.sum()} to test")
    return ~test, test


def bootstrap_refits(
    law: LossLaw, n: int, *, groups: ArrayLike | None = None, random_state: int = 0, n_starts: int = 4
) -> list[LossLaw]:
    """Refits of a fitted law to resampled rows, or to resampled groups of rows (the runs of one budget, say).

    Parameters
    ----------
    law : LossLaw
        Fitted.
    n : int
        Number of refits.
    groups : array-like, optional
        One label a fitted row; whole groups are drawn.
    random_state : int
    n_starts : int
        Starts of each refit, see `LossLaw.refit`.

    Returns
    -------
    list of LossLaw
    """
    check_is_fitted(law, "params_")
    if not isinstance(n, Integral) or n < 1:
        raise InputError(f"the number of refits must be a whole number of at least 1, got {n!r}")
    labels = np.arange(len(law.rows_)) if groups is None else np.asarray(groups)
    if labels.shape != (len(law.rows_),):
        raise InputError(f"groups must have one label for each of the {len(law.rows_)} fitted rows")
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    rng = np.random.default_rng(random_state)
    draws = (rng.integers(len(members), size=len(members)) for _ in range(n))
    return [law.refit(np.concatenate([members[i] for i in draw]), n_starts) for draw in draws]


def allocate(loss_of: Callable[[Array], Array], low: float, high: float, n_grid: int = 64) -> tuple[float, float]:
    """The positive number between two ends with the smallest loss, and that loss.

    Evaluates a grid even in the logarithm, then refines around its best point: for model size along a budget.

    >>> size, loss = allocate(lambda n: (np.log(n) - 3) ** 2 + 1, 1.0, 1e6)
    >>> print(round(np.log(size), 4), round(loss, 4))
    3.0 1.0
    """
    grid = np.geomspace(low, high, n_grid)
    losses = np.asarray(loss_of(grid))
    best = int(np.argmin(losses))
    inner = np.log(grid[max(best - 1, 0)]), np.log(grid[min(best + 1, n_grid - 1)])
    if inner[0] == inner[1]:
        return float(grid[best]), float(losses[best])
    found = minimize_scalar(lambda v: float(loss_of(np.exp([v]))[0]), bounds=inner, method="bounded")
    if found.fun < losses[best]:
        return float(np.exp(found.x)), float(found.fun)
    return float(grid[best]), float(losses[best])


def crossings(
    first: Callable[[Array], Array], second: Callable[[Array], Array], low: float, high: float, n_grid: int = 512
) -> list[float]:
    """Where two functions of a positive number cross between two ends, in rising order.

    For the budget from which one architecture, precision or law promises the lower loss. Looks on a grid even in the
    logarithm and refines: two crossings within one grid step go unseen.

    >>> [round(at, 4) for at in crossings(lambda c: 2 / c**0.5, lambda c: 1 / c**0.25, 1.0, 1e4)]
    [16.0]
    """
    grid = np.geomspace(low, high, n_grid)

    def gap(log_value: float) -> float:
        at = np.exp([log_value])
        return float(np.asarray(first(at))[0] - np.asarray(second(at))[0])

    difference = np.asarray(first(grid)) - np.asarray(second(grid))
    signs = np.sign(difference)
    found = list(grid[signs == 0])
    changes = np.flatnonzero(signs[:-1] * signs[1:] < 0)
    found += [np.exp(brentq(gap, np.log(grid[i]), np.log(grid[i + 1]), xtol=1e-12)) for i in changes]
    return sorted(map(float, found))


def read_columns(X: ArrayLike, columns: Sequence[str], where: str = "X") -> Array:
    """The named columns as a float64 array, shape (n, len(columns)), all finite and positive.

    Raises `InputError` that names a missing column, or the column and row of a bad value: the row's label in a frame,
    its number from 0 in an array.
    """
    if isinstance(X, pd.DataFrame):
        missing = [name for name in columns if name not in X.columns]
        if missing:
            raise InputError(f"{where} lacks the column {missing[0]}; it needs {', '.join(columns)}")
        repeated = [name for name in columns if (X.columns == name).sum() > 1]
        if repeated:
            raise InputError(f"{where} has more than one column {repeated[0]}")
        values = X[list(columns)]
        table = values.apply(pd.to_numeric, errors="coerce").to_numpy(dtype=float, copy=True)
    else:
        try:
            if np.iscomplexobj(X):
                raise TypeError("complex numbers have no order")
            table = np.array(X, dtype=float)
        except (TypeError, ValueError):
            raise InputError(f"{where} must hold numbers in the columns {', '.join(columns)}") from None
        if table.ndim != 2 or table.shape[1] != len(columns):
            raise InputError(
                f"{where} must have the {len(columns)} columns {', '.join(columns)}, got shape {table.shape}"
            )
    bad = np.argwhere(~np.isfinite(table) | (table <= 0))
    if len(bad):
        row, column = map(int, bad[0])
        raw, label = table[row, column], row
        if isinstance(X, pd.DataFrame):
            raw, label = X.iloc[row][columns[column]], X.index[row]
        raise InputError(f"{where}: {columns[column]} must be a positive, finite number, got {raw!s} in row {label}")
    return table


def _divided(compute: float, log_N: float) -> tuple[float, float]:
    """N and D = compute / (6 N); refused where the size is no number, as with exponents near zero."""
    with np.errstate(over="ignore", divide="ignore"):
        N = np.exp(np.float64(log_N))
        D = compute / (6 * N)
    if not (0 < N < np.inf and 0 < D < np.inf):
        raise InputError(f"the law has no finite optimum at {compute:.3g} FLOP: its loss hardly depends on the size")
    return float(N), float(D)


def read_losses(y: ArrayLike, n: int) -> Array:
    """Losses as a float64 array, shape (n,), all finite and positive."""
    losses = read_columns(np.asarray(y).reshape(-1, 1), ["loss"], "y")[:, 0]
    if len(losses) != n:
        raise InputError(f"y has {len(losses)} losses for {n} rows")
    return losses


class _Memo:
    """Residuals and Jacobian by separate calls, computed together once a point."""

    def __init__(self, both: Residuals) -> None:
        self.both, self.calls, self.at = both, 0, np.array([])
        self.value: tuple[Array, Array] = (np.array([]), np.array([]))

    def __call__(self, x: Array) -> tuple[Array, Array]:
        if not np.array_equal(x, self.at):
            self.at, self.value = x.copy(), self.both(x)
            self.calls += 1
        return self.value

    def residuals(self, x: Array) -> Array:
        return self(x)[0]

    def jacobian(self, x: Array) -> Array:
        return self(x)[1]


def _minimise_huber(
    memo: _Memo, start: Array, bounds: tuple[Array, Array], scale: Array, delta: float
) -> tuple[Array, float]:
    def objective(z: Array) -> tuple[float, Array]:
        r, jacobian = memo(z * scale)
        size = np.abs(r)
        value = np.where(size <= delta, r**2 / 2, delta * (size - delta / 2)).sum()
        return float(value) / delta, jacobian.T @ np.clip(r, -delta, delta) * scale / delta

    limits = np.stack([bounds[0] / scale, bounds[1] / scale], axis=1)
    options = {"maxiter": 2000, "ftol": 1e-13, "gtol": 1e-9, "maxcor": 30}
    found = minimize(objective, start / scale, jac=True, bounds=limits, method="L-BFGS-B", options=options)
    return found.x * scale, float(found.fun) * delta


def _inside(start: Array, bounds: tuple[Array, Array]) -> Array:
    """The start, moved off the bounds as the trust-region method needs."""
    low, high = bounds
    margin = 1e-6 * (high - low)
    return np.clip(start, low + margin, high - margin)
