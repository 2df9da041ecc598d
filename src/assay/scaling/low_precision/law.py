"""A fitted law of the loss in size, samples and precision, with effective sizes.

    L(M, N, eps) = E + A / M_eff**alpha + B / N_eff**beta + C * eps

    multiplicative    M_eff = M                                    N_eff = N / (1 + c eps)
    additive          M_eff = (M**-a + eps / s)**(-1 / a)          N_eff = N / (1 + c eps M)

A constant step buries the directions whose eigenvalue, M**-a at the edge of a model of size M, lies below it: M_eff
saturates at (eps / s)**(-1/a). Its noise has a trace that grows with M. A relative step does neither. Source: arXiv
2602.19241 for which sizes shrink in which mode; the forms are reconstructed from that dichotomy, and an upper bound
that has such a form in theory is no promise that a loss follows it: judge by held-out error.

The two rivals are in `assay.scaling.low_precision.baselines` and `assay.scaling.fit`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from assay.errors import InputError
from assay.scaling.fit import LossLaw, allocate, read_columns
from assay.scaling.low_precision.quantisers import bits_to_eps, eps_to_bits

__all__ = ["FORMS", "LAW_MODES", "PrecisionLaw", "read_precision", "usable"]

Array = NDArray[np.float64]

LAW_MODES = ("multiplicative", "additive")
FORMS = {"both": "M_eff and N_eff", "model": "M_eff", "data": "N_eff", "floor": "neither, the floor alone"}
LEAST, MOST = 1.0, 1e15  # sizes that a plan looks at


class PrecisionLaw(LossLaw):
    """Loss of quantised training as a function of model size, samples and precision.

    Fit it to a table of finished runs at several precisions, predict others, and choose size, samples and bits under
    a budget (`optimal`, `assay.scaling.plan_precision`). One law serves one mode: fit two where a table has both.

    Parameters
    ----------
    mode : {"multiplicative", "additive"}, default "multiplicative"
        Relative steps (floating point, or integers whose scale follows the values) or constant ones.
    effective : {"both", "model", "data", "floor"}, default "both"
        Which effective sizes the law has; without either, only the floor C * eps knows of precision.
    loss : {"mse", "huber"}, default "mse"
        Objective on log residuals.
    huber_delta : float, default 1e-3
        Where the Huber loss turns linear.
    n_starts : int, default 32
        Latin-hypercube starts.
    random_state : int, default 0
        Seed of the starts.

    Attributes
    ----------
    params_ : dict of str to float
        `E, A, alpha, B, beta, C`, and as the form has them `c`, `s`, `a`.
    n_left_out_ : int
        Runs with an infinite loss (diverged), which are not fitted.
    cost_, msle_, n_converged_, starts_
        See `assay.scaling.fit.LossLaw`.

    Raises
    ------
    InputError
        In `fit`: a missing column, a size that is not positive, a negative eps, bits below 1, both eps and bits, too
        few rows; an unknown mode or form.

    Notes
    -----
    X has the columns M (parameters), N (samples or tokens), and eps or bits (`bits_to_eps`); eps = 0, or infinite
    bits, is full precision. Source: arXiv 2602.19241, forms reconstructed.

    Examples
    --------
    >>> import numpy as np
    >>> M, N, eps = (g.ravel() for g in np.meshgrid([1e2, 1e3, 1e4], [1e4, 1e5, 1e6], [0.0, 0.01, 0.1]))
    >>> loss = 0.1 + 5 / M**0.5 + 30 / (N / (1 + 4 * eps)) ** 0.4 + 0.7 * eps
    >>> law = PrecisionLaw("multiplicative", n_starts=8).fit(np.column_stack([M, N, eps]), loss)
    >>> print(round(law.params_["alpha"], 2), round(law.params_["c"], 1))
    0.5 4.0
    """

    columns = ("M", "N", "eps")
    logged = frozenset({"E", "A", "B", "C", "c", "s"})

    def __init__(
        self, mode: str = "multiplicative", effective: str = "both", loss: str = "mse", huber_delta: float = 1e-3,
        n_starts: int = 32, random_state: int = 0,
    ) -> None:
        self.mode = mode
        self.effective = effective
        self.loss = loss
        self.huber_delta = huber_delta
        self.n_starts = n_starts
        self.random_state = random_state

    @property
    def parameters(self) -> tuple[str, ...]:  # type: ignore[override]
        shrinks_data = ("c",) if self.effective in ("both", "data") else ()
        return ("E", "A", "alpha", "B", "beta", "C", *shrinks_data, *(("s", "a") if self._shrinks_model else ()))

    def fit(self, X: ArrayLike, y: ArrayLike) -> PrecisionLaw:  # type: ignore[override]
        """Fit the law; runs with an infinite loss are left out and counted.

        Parameters
        ----------
        X : DataFrame or array-like, shape (n, 3)
            M, N, and eps (or bits, in a frame).
        y : array-like, shape (n,)
            Losses, positive.

        Returns
        -------
        self

        Raises
        ------
        InputError
            See the class.
        """
        rows, losses = usable(X, y)
        super().fit(rows, losses)
        self.n_left_out_ = int(np.size(y) - len(losses))
        return self

    def effective_sizes(self, X: ArrayLike) -> pd.DataFrame:
        """What each row's model and data are worth at full precision.

        Parameters
        ----------
        X : DataFrame or array-like, shape (n, 3)

        Returns
        -------
        DataFrame
            Columns M_eff and N_eff; the index is that of X.
        """
        check_is_fitted(self, "params_")
        table = self._read(X)
        found = self._effective(self._to_search(self.params_), table)
        return pd.DataFrame(
            {"M_eff": np.exp(found["log_M"]), "N_eff": np.exp(found["log_N"])},
            index=X.index if isinstance(X, pd.DataFrame) else None,
        )

    def compare_forms(self, held_out: ArrayLike | None = None, losses: ArrayLike | None = None) -> pd.DataFrame:
        """The same rows fitted with each choice of effective sizes.

        Parameters
        ----------
        held_out, losses : array-like, optional
            Runs that were not fitted, and their losses.

        Returns
        -------
        DataFrame
            One row a form that the mode has: `effective`, the number of parameters, the mean squared log error on the
            fitted rows, and on the held-out ones where given.
        """
        check_is_fitted(self, "params_")
        if (held_out is None) != (losses is None):
            raise InputError("held_out and losses belong together")
        rows = []
        for form in FORMS:
            if form == "model" and self.mode == "multiplicative":
                continue
            law = clone(self).set_params(effective=form).fit(self.rows_, self.losses_)
            row: dict[str, Any] = {"effective": form, "parameters": len(law.parameters), "fitted": law.msle_}
            if held_out is not None and losses is not None:
                X, y = usable(held_out, losses)
                row["held_out"] = float(np.mean((np.log(law.predict(X)) - np.log(y)) ** 2))
            rows.append(row)
        return pd.DataFrame(rows)

    def optimal(self, bit_budget: float, bits: ArrayLike | None = None) -> dict[str, float]:
        """The best size, samples and bits under a budget of parameter-sample-bits.

        Parameters
        ----------
        bit_budget : float
            `M * N * bits` at most: every sample touches every parameter once, at so many bits.
        bits : array-like, optional
            Bits to choose from; by default those of the fitted rows between 1 and 32, and 32.

        Returns
        -------
        dict
            M, N, bits, loss.
        """
        rows = [self.best_at(bit_budget, number) for number in self.bits_grid(bits)]
        return min(rows, key=lambda row: row["loss"])

    def optimum(self, compute: float, **how: Any) -> dict[str, float]:
        """`optimal` with compute in the place of the budget of bits; see `LossLaw.optimum`."""
        return self.optimal(compute, **how)

    def bits_grid(self, bits: ArrayLike | None = None) -> Array:
        """Bits to choose from, checked."""
        check_is_fitted(self, "params_")
        if bits is None:
            known = eps_to_bits(self.rows_[:, 2])
            return np.unique([*np.round(known[(known >= 1) & (known < 32)], 2), 32.0])
        bits_to_eps(bits)
        return np.atleast_1d(np.asarray(bits, dtype=float))

    def best_at(self, bit_budget: float, bits: float) -> dict[str, float]:
        """The best size under the budget at so many bits."""
        check_is_fitted(self, "params_")
        if isinstance(bit_budget, bool) or not isinstance(bit_budget, int | float | np.number):
            raise InputError(f"bit_budget must be a number, got {bit_budget!r}")
        product = float(bit_budget) / bits
        if not LEAST < product < MOST**2:
            raise InputError(
                f"bit_budget must leave room for one sample and parameter of {bits:g} bits, got {bit_budget}"
            )
        eps = bits_to_eps(bits)

        def losses(sizes: Array) -> Array:
            return self.predict(np.column_stack([sizes, product / sizes, np.full_like(sizes, eps)]))

        M, loss = allocate(losses, LEAST, product, n_grid=256)
        return {"M": M, "N": product / M, "bits": float(bits), "loss": loss}

    @property
    def _shrinks_model(self) -> bool:
        return self.mode == "additive" and self.effective in ("both", "model")

    def _effective(self, x: Array, table: Array) -> dict[str, Array]:
        """Logarithms of the effective sizes and their derivatives, by name of the parameter."""
        at = dict(zip(self.parameters, x, strict=True))
        M, N, eps = table.T
        log_M, log_N = np.log(M), np.log(N)
        found = {"log_M": log_M, "log_N": log_N}
        if "c" in at:
            waste = np.exp(at["c"]) * eps * (M if self.mode == "additive" else 1.0)
            found |= {"log_N": log_N - np.log1p(waste), "c": -waste / (1 + waste)}
        if "s" in at:
            a, buried, edge = at["a"], eps * np.exp(-at["s"]), np.exp(-at["a"] * log_M)
            total = edge + buried
            found |= {
                "log_M": -np.log(total) / a, "s": buried / (a * total),
                "a": np.log(total) / a**2 + edge * log_M / (a * total),
            }
        return found

    def _log_loss(self, x: Array, rows: Any) -> tuple[Array, Array]:
        at = dict(zip(self.parameters, x, strict=True))
        sizes = self._effective(x, rows)
        E, floor = np.exp(at["E"]), np.exp(at["C"]) * rows[:, 2]
        model = np.exp(at["A"] - at["alpha"] * sizes["log_M"])
        data = np.exp(at["B"] - at["beta"] * sizes["log_N"])
        total = E + model + data + floor
        slopes = {
            "E": np.full_like(model, E), "A": model, "alpha": -model * sizes["log_M"], "B": data,
            "beta": -data * sizes["log_N"], "C": floor,
        }
        slopes |= {name: -at["beta"] * data * sizes[name] for name in ("c",) if name in sizes}
        slopes |= {name: -at["alpha"] * model * sizes[name] for name in ("s", "a") if name in sizes}
        return np.log(total), np.stack([slopes[name] for name in self.parameters], axis=1) / total[:, None]

    def _prepare(self, table: Array) -> Any:
        return table

    def _read(self, X: ArrayLike) -> Array:
        return read_precision(X)

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.mode not in LAW_MODES:
            raise InputError(f"mode must be one of {', '.join(LAW_MODES)}, got {self.mode!r}")
        if self.effective not in FORMS or (self.effective == "model" and self.mode == "multiplicative"):
            raise InputError(
                f"effective must be one of {', '.join(FORMS)} (model in the additive mode only), "
                f"got {self.effective!r}"
            )

    def _start_ranges(self, table: Array, losses: Array) -> tuple[Array, Array]:
        """Each term between 1 % and all of the loss at the middle of the rows; saturation within the rows' sizes."""
        log_M, log_N = np.median(np.log(table[:, :2]), axis=0)
        log_y, few = np.log(np.median(losses)), np.log(0.01)
        positive = table[table[:, 2] > 0, 2]
        eps = np.median(positive) if len(positive) else 1.0
        low = {
            "E": log_y + few, "A": log_y + few + 0.1 * log_M, "alpha": 0.1, "B": log_y + few + 0.1 * log_N, "beta": 0.1,
            "C": log_y + few - np.log(eps), "c": few - np.log(eps) - (log_M if self.mode == "additive" else 0.0),
            "s": np.log(eps) + 0.5 * np.log(table[:, 0].min()), "a": 0.5,
        }
        high = {
            "E": np.log(losses.min()), "A": log_y + log_M, "alpha": 1.0, "B": log_y + log_N, "beta": 1.0,
            "C": log_y - np.log(eps), "c": low["c"] - 2 * few,
            "s": np.log(eps) + 2.0 * np.log(table[:, 0].max()), "a": 2.0,
        }
        return np.array([low[p] for p in self.parameters]), np.array([high[p] for p in self.parameters])

    def _bounds(self) -> tuple[Array, Array]:
        low = {"alpha": 1e-3, "beta": 1e-3, "a": 0.05}
        high = {"alpha": 3.0, "beta": 3.0, "a": 6.0}
        ends = [[low.get(p, -25.0), high.get(p, 80.0 if p in "ABs" else 25.0)] for p in self.parameters]
        return np.array(ends)[:, 0], np.array(ends)[:, 1]

    def _warn_unidentified(self, table: Array) -> None:
        import warnings

        if len(np.unique(table[:, 2])) == 1:
            warnings.warn(
                "eps is the same in all rows: what depends on precision is not identified", stacklevel=4
            )


def read_precision(X: ArrayLike) -> Array:
    """M, N and eps of each row, shape (n, 3): M and N positive, eps 0 or more; a frame may have bits in its place."""
    if isinstance(X, pd.DataFrame):
        named = [name for name in ("eps", "bits") if name in X.columns]
        if len(named) != 1:
            lacks = "X lacks the column eps (or bits); it needs M, N, eps"
            raise InputError("X has both eps and bits, one is needed" if named else lacks)
        sizes = read_columns(X, ("M", "N"))
        steps = pd.to_numeric(X[named[0]], errors="coerce").to_numpy(dtype=float, copy=True)
        labels: Any = X.index
        if named[0] == "bits":
            steps = _eps_of(steps, labels)
    else:
        try:
            table = np.array(X, dtype=float)
        except (TypeError, ValueError):
            raise InputError("X must hold numbers in the columns M, N, eps") from None
        if table.ndim != 2 or table.shape[1] != 3:
            raise InputError(f"X must have the 3 columns M, N, eps, got shape {table.shape}")
        sizes, steps, labels = read_columns(table[:, :2], ("M", "N")), table[:, 2], range(len(table))
    bad = np.flatnonzero(~np.isfinite(steps) | (steps < 0))
    if len(bad):
        raise InputError(f"X: eps must be a finite number of 0 or more, got {steps[bad[0]]} in row {labels[bad[0]]}")
    return np.column_stack([sizes, steps])


def usable(X: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    """Checked rows and losses, without the runs whose loss is infinite."""
    rows = read_precision(X)
    try:
        losses = np.array(y, dtype=float).ravel()
    except (TypeError, ValueError):
        raise InputError("y must hold numbers") from None
    if len(losses) != len(rows):
        raise InputError(f"y has {len(losses)} losses for {len(rows)} rows")
    kept = losses != np.inf
    if not kept.any():
        raise InputError("y: every run diverged")
    return rows[kept], losses[kept]


def _eps_of(bits: Array, labels: Any) -> Array:
    bad = np.flatnonzero(np.isnan(bits) | (bits < 1))
    if len(bad):
        raise InputError(f"X: bits must be at least 1, got {bits[bad[0]]} in row {labels[bad[0]]}")
    full = np.isinf(bits)
    return np.where(full, 0.0, bits_to_eps(np.where(full, 1.0, bits)))
