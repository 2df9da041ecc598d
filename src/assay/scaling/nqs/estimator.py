"""The noisy quadratic system as a fitted law: predict losses, take them apart, choose N, B and K.

The seven parameters are fitted on the standard risk, in log space, as the authors do; predictions follow the
regularised risk unless `variant="standard"`. The parameters themselves are hardly identified (only the exponents p
and q are): judge a fit by held-out error.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from sklearn.utils.validation import check_is_fitted

from assay.errors import InputError
from assay.scaling.fit import LossLaw, allocate, read_columns
from assay.scaling.nqs.noisy_quadratic import (
    LEARNING_RATE,
    PARAMETERS,
    Array,
    Rows,
    WeightNorm,
    log_risk_and_jacobian,
    nqs_risk,
    nqs_risk_regularized,
    risk_components,
)

COLUMNS = ("N", "B", "K")
VARIANTS = ("regularized", "standard")
BYTES_PER_PARAMETER = 16  # weight, gradient and Adam's two moments, four bytes each
MISFIT = 4.0  # regularised against standard error on the fitted rows: their own runs have 2.1

# Where fits start. The authors' ranges (P 10 to 100, R 0.01 to 100, e_irr 1 to 1.5, p to 2.5, q from 0.6, Q to 20)
# suit their runs; on other tables most searches from there end in a poor minimum, hence the wider ones.
START_LOW = {"p": 1.05, "q": 0.3, "P": 1.0, "Q": 0.05, "e_irr": 0.1, "R": 1e-3, "r": 0.6}
START_HIGH = {"p": 2.0, "q": 2.5, "P": 1e5, "Q": 20.0, "e_irr": 3.0, "R": 1e6, "r": 2.5}
# Where they may go: p > 1 for a finite loss, lr * Q <= 2 for a stable system.
LOWEST = {"p": 1.001, "q": 0.02, "P": 1e-6, "Q": 1e-6, "e_irr": 1e-6, "R": 1e-9, "r": 0.02}
HIGHEST = {"p": 6.0, "q": 6.0, "P": 1e6, "Q": np.inf, "e_irr": 1e3, "R": 1e9, "r": 10.0}


class NQS(LossLaw):
    """Noisy quadratic system: a loss law in model size N, batch size B and number of updates K.

    Fits seven parameters to the losses of finished runs, then predicts larger ones, chooses N, B, K under limits on
    compute, time and memory, and says where a larger batch stops paying. Chinchilla's law, which it replaces, sees
    only N and the tokens B * K. Not for tables in which the learning rate or the schedule was not tuned: the law
    has no place for them. See `assay.scaling.ChinchillaLaw` where the batch size never changes.

    Parameters
    ----------
    variant : {"regularized", "standard"}, default "regularized"
        Which risk `predict` and what builds on it use. Fitting always uses the standard one.
    loss : {"mse", "huber"}, default "mse"
        Objective on log residuals.
    huber_delta : float, default 1e-3
        Where the Huber loss turns linear.
    n_starts : int, default 64
        Latin-hypercube starts.
    lr : float, default 1.999
        Step size of the quadratic system; not a learning rate of the data.
    init_weight_norm_sq : callable, optional
        Squared norm of the initial weights as a function of N, default `N * 0.02**2`.
    random_state : int, default 0
        Seed of the starts.

    Attributes
    ----------
    params_ : dict of str to float
        `p, q, P, Q, e_irr, R, r`.
    cost_, rmsle_, msle_, n_converged_, starts_
        See `assay.scaling.fit.LossLaw`.

    Notes
    -----
    X has the columns N (parameters), B (sequences, not tokens) and K (updates). Source: arXiv 2605.09154. The authors
    run 2000 starts of 5000 Adam steps on a GPU; here each start is a bounded Gauss-Newton search with the analytic
    Jacobian, which reaches a lower cost in seconds. Where the authors only start below the stability limit
    `lr * Q = 2`, here it is a bound; and the starts are drawn from wider ranges than theirs.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.datasets import load_dataset
    >>> runs = load_dataset("nqs-smoke-runs")
    >>> small, large = runs[runs.level < 6], runs[runs.level == 6]
    >>> law = NQS("standard", n_starts=16).fit(small, small.loss)
    >>> print(f"{law.msle_:.1e}")
    8.5e-04
    >>> print(f"{(np.log(law.predict(large) / large.loss) ** 2).mean():.1e}")
    1.0e-03
    """

    columns = COLUMNS
    parameters = PARAMETERS
    logged = frozenset({"P", "Q", "e_irr", "R"})
    # For a tool that fits any table: the regularised risk needs the models' initial norm, which no table holds.
    plan_settings = {"variant": "standard"}

    def __init__(
        self,
        variant: str = "regularized",
        loss: str = "mse",
        huber_delta: float = 1e-3,
        n_starts: int = 64,
        lr: float = LEARNING_RATE,
        init_weight_norm_sq: WeightNorm | None = None,
        random_state: int = 0,
    ) -> None:
        self.variant = variant
        self.loss = loss
        self.huber_delta = huber_delta
        self.n_starts = n_starts
        self.lr = lr
        self.init_weight_norm_sq = init_weight_norm_sq
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit the law; see `LossLaw.fit`.

        Warns when all rows have one batch size, and when the regularised risk, on which predictions build by
        default, misses the fitted rows although the standard one describes them: then `init_weight_norm_sq` is not
        that of the models behind the rows, or `variant="standard"` is the better choice.
        """
        super().fit(X, y)
        if self._variant(None) == "regularized":
            error = np.log(self.predict(self.rows_)) - np.log(self.losses_)
            if np.mean(error**2) > MISFIT * max(self.msle_, 1e-8):
                warnings.warn(
                    f"the regularised risk misses the fitted rows: mean squared log error {np.mean(error**2):.2e} "
                    f"against {self.msle_:.2e} of the standard risk; give init_weight_norm_sq of these models or "
                    f'predict with variant="standard"',
                    stacklevel=2,
                )
        return self

    def predict(self, X: ArrayLike, variant: str | None = None) -> Array:
        """Predicted loss.

        Parameters
        ----------
        X : DataFrame or array-like, shape (n, 3)
            N, B, K.
        variant : {"regularized", "standard"}, optional
            Default: the estimator's.

        Returns
        -------
        ndarray, shape (n,)
        """
        check_is_fitted(self, "params_")
        N, B, K = self._read(X).T
        if self._variant(variant) == "standard":
            return np.asarray(nqs_risk(self.params_, N, B, K, self.lr))
        return np.asarray(nqs_risk_regularized(self.params_, N, B, K, self.lr, self.init_weight_norm_sq))

    def decompose(self, X: ArrayLike) -> pd.DataFrame:
        """The prediction of each row as a sum.

        Returns
        -------
        DataFrame
            Columns irreducible, approximation (model too small), bias (too few updates), variance (batch too small);
            the index is that of X.
        """
        check_is_fitted(self, "params_")
        N, B, K = self._read(X).T
        regularized = self._variant(None) == "regularized"
        terms = risk_components(self.params_, N, B, K, self.lr, self.init_weight_norm_sq, regularized)
        return pd.DataFrame(terms, index=X.index if isinstance(X, pd.DataFrame) else None)

    def optimal(
        self,
        compute: float | None = None,
        time: float | None = None,
        memory: float | None = None,
        *,
        seq_len: int,
        throughput: float | Callable[[float, float], float] | None = None,
        batch_grid: Sequence[float] | None = None,
    ) -> pd.DataFrame:
        """The best run within limits, for each batch size.

        Parameters
        ----------
        compute : float, optional
            FLOP, at `6 * N * B * K * seq_len` a run.
        time : float, optional
            Seconds; needs `throughput`.
        memory : float, optional
            Bytes for weights, gradients and Adam's moments, 16 a parameter. A batch never counts: gradients can be
            accumulated.
        seq_len : int
            Tokens a sequence.
        throughput : float or callable, optional
            FLOP per second, or a function of (N, B) that returns it.
        batch_grid : sequence of float, optional
            Batch sizes to consider (sequences); default the powers of two between the smallest and the largest
            fitted one.

        Returns
        -------
        DataFrame
            Columns N, B, K, loss, one row a batch size, the lowest loss first.

        Raises
        ------
        InputError
            Neither `compute` nor `time` is given, `time` comes without `throughput`, a limit is not positive, or not
            even one update fits.
        """
        check_is_fitted(self, "params_")
        most_updates = _updates_within(compute, time, seq_len, throughput)
        smallest, largest = np.log2(self.rows_[:, 1].min()), np.log2(self.rows_[:, 1].max())
        powers = 2.0 ** np.arange(np.floor(smallest), np.ceil(largest) + 1)
        batches = read_columns(np.reshape(powers if batch_grid is None else batch_grid, (-1, 1)), ["B"], "batch_grid")
        sizes = np.geomspace(1.0, 1e16, 1601)
        if memory is not None:
            sizes = sizes[sizes * BYTES_PER_PARAMETER <= _limit(memory, "memory")]
        rows = []
        for B in batches[:, 0]:
            fitting = sizes[[most_updates(N, B) >= 1 for N in sizes]]
            if len(fitting):
                rows.append(self._best_size(B, fitting[-1], most_updates))
        if not rows:
            raise InputError("not even one update of the smallest batch fits within these limits")
        return pd.DataFrame(rows, columns=["N", "B", "K", "loss"]).sort_values("loss", ignore_index=True)

    def optimum(self, compute: float, **how: Any) -> dict[str, float]:
        """The best row of `optimal` by name, with its tokens D; see `LossLaw.optimum`."""
        best = self.optimal(compute, **how).iloc[0]
        return {**best[["N", "B", "K"]], "D": best["B"] * best["K"] * how["seq_len"], "loss": best["loss"]}

    def critical_batch_size(self, N: float, tokens: float, tol: float = 0.01, *, seq_len: int) -> float:
        """The largest batch (sequences) that costs at most a share `tol` of loss at a fixed number of tokens.

        Parameters
        ----------
        N : float
            Parameters.
        tokens : float
            Tokens of the run, `B * K * seq_len`.
        tol : float, default 0.01
            Accepted rise of the loss, relative to the best batch size.
        seq_len : int
            Tokens a sequence.

        Returns
        -------
        float

        Raises
        ------
        InputError
            A number that is not positive, or fewer tokens than one sequence.
        """
        check_is_fitted(self, "params_")
        size, sequences, tol = _limit(N, "N"), _limit(tokens, "tokens") / _limit(seq_len, "seq_len"), _limit(tol, "tol")
        if sequences < 1:
            raise InputError(f"{tokens} tokens are less than one sequence of {seq_len}")

        def excess(batches: Array) -> Array:
            rows = np.column_stack([np.full_like(batches, size), batches, np.maximum(sequences / batches, 1.0)])
            return self.predict(rows)

        grid = np.geomspace(1.0, sequences, 400)
        losses = excess(grid)
        allowed = (1 + tol) * losses.min()
        last = int(np.flatnonzero(losses <= allowed)[-1])
        if last == len(grid) - 1:
            return float(sequences)
        return float(np.exp(brentq(
            lambda v: float(excess(np.exp([v]))[0]) - allowed, np.log(grid[last]), np.log(grid[last + 1]), xtol=1e-6
        )))

    def _best_size(
        self, B: float, largest: float, most_updates: Callable[[float, float], float]
    ) -> tuple[float, float, float, float]:
        """Search over N with all updates that fit; whole numbers of parameters and updates in the answer."""

        def losses(sizes: Array) -> Array:
            return self.predict([[N, B, max(1.0, most_updates(N, B))] for N in sizes])

        N, _ = allocate(losses, max(1.0, largest * 1e-9), largest)
        N = max(1.0, np.floor(N))
        K = max(1.0, np.floor(most_updates(N, B)))
        return N, float(B), K, float(self.predict([[N, B, K]])[0])

    def _check_settings(self) -> None:
        super()._check_settings()
        self._variant(None)
        _limit(self.lr, "lr")

    def _read(self, X: ArrayLike) -> Array:
        table = read_columns(X, COLUMNS)
        for name, values in (("N", table[:, 0]), ("K", table[:, 2])):
            if (values < 1).any():
                row = int(np.argmax(values < 1))
                label = X.index[row] if isinstance(X, pd.DataFrame) else row
                raise InputError(f"X: {name} must be at least 1, got {values[row]:g} in row {label}")
        return table

    def _prepare(self, table: Array) -> Rows:
        return Rows.of(*table.T)

    def _log_loss(self, x: Array, rows: Any) -> tuple[Array, Array]:
        return log_risk_and_jacobian(x, rows, self.lr)

    def _start_ranges(self, table: Array, losses: Array) -> tuple[Array, Array]:
        return self._to_search(START_LOW), self._to_search({**START_HIGH, "Q": min(START_HIGH["Q"], 2 / self.lr)})

    def _bounds(self) -> tuple[Array, Array]:
        return self._to_search(LOWEST), self._to_search({**HIGHEST, "Q": 2 / self.lr})

    def _warn_unidentified(self, table: Array) -> None:
        if len(np.unique(table[:, 1])) == 1:
            warnings.warn("B is the same in all rows: R and r are not identified", stacklevel=3)

    def _variant(self, variant: str | None) -> str:
        chosen = self.variant if variant is None else variant
        if chosen not in VARIANTS:
            raise InputError(f"variant must be one of {', '.join(VARIANTS)}, got {chosen!r}")
        return chosen


def _updates_within(
    compute: float | None,
    time: float | None,
    seq_len: int,
    throughput: float | Callable[[float, float], float] | None,
) -> Callable[[float, float], float]:
    """The number of updates that the limits leave, as a function of N and B."""
    if compute is None and time is None:
        raise InputError("give a limit on compute (FLOP) or on time (seconds); memory alone does not bound a run")
    if time is not None and throughput is None:
        raise InputError("a limit on time needs throughput, in FLOP per second")
    length = _limit(seq_len, "seq_len")
    total = np.inf if compute is None else _limit(compute, "compute")
    seconds = None if time is None else _limit(time, "time")
    speed = throughput if callable(throughput) or throughput is None else _limit(throughput, "throughput")

    def most_updates(N: float, B: float) -> float:
        flop = total
        if seconds is not None:
            flop = min(flop, seconds * (speed(N, B) if callable(speed) else speed))  # type: ignore[operator]
        return flop / (6 * N * B * length)

    return most_updates


def _limit(value: float, name: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a number, got {value!r}") from None
    if not (np.isfinite(number) and number > 0):
        raise InputError(f"{name} must be positive and finite, got {value}")
    return number
