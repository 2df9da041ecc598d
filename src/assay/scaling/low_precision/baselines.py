"""What a practitioner would fit instead: Kumar et al.'s law, in which precision shrinks the model and nothing else.

`ChinchillaLaw` (in `assay.scaling.fit`), which knows of no precision, is the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.scaling.fit import LossLaw
from assay.scaling.low_precision.law import read_precision, usable
from assay.scaling.low_precision.quantisers import eps_to_bits

__all__ = ["KumarLaw"]

Array = NDArray[np.float64]

FULL_BITS = 32.0  # full precision, where its factor is 1 for any gamma that low bits tell of


class KumarLaw(LossLaw):
    """`L = E + A / (M (1 - exp(-bits / gamma)))**alpha + B / N**beta`: low precision in training.

    Parameters
    ----------
    loss, huber_delta, n_starts, random_state
        As in `PrecisionLaw`.

    Notes
    -----
    Kumar et al. 2024, arXiv 2411.04330, with one precision for weights, activations and cache alike. X has the
    columns M, N, eps as `PrecisionLaw`; bits follow from eps by `eps_to_bits`, and where a step is so coarse that less
    than a tenth of a bit is left, a tenth is taken.
    """

    columns = ("M", "N", "eps")
    parameters = ("E", "A", "alpha", "B", "beta", "gamma")
    logged = frozenset({"E", "A", "B", "gamma"})

    def __init__(
        self, loss: str = "mse", huber_delta: float = 1e-3, n_starts: int = 32, random_state: int = 0
    ) -> None:
        self.loss = loss
        self.huber_delta = huber_delta
        self.n_starts = n_starts
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> KumarLaw:  # type: ignore[override]
        """Fit the law; see `PrecisionLaw.fit`."""
        super().fit(*usable(X, y))
        return self

    def _log_loss(self, x: Array, rows: Any) -> tuple[Array, Array]:
        log_E, log_A, alpha, log_B, beta, log_gamma = x
        log_M, log_N, bits = rows
        ratio = bits * np.exp(-log_gamma)
        log_M = log_M + np.log(-np.expm1(-ratio))
        # d log(1 - exp(-r)) / d log gamma = -r / (exp(r) - 1)
        by_gamma = -ratio / np.expm1(np.minimum(ratio, 700.0))
        E, model, data = np.exp(log_E), np.exp(log_A - alpha * log_M), np.exp(log_B - beta * log_N)
        total = E + model + data
        slopes = [np.full_like(model, E), model, -model * log_M, data, -data * log_N, -alpha * model * by_gamma]
        return np.log(total), np.stack(slopes, axis=1) / total[:, None]

    def _prepare(self, table: Array) -> Any:
        bits = np.clip(eps_to_bits(table[:, 2]), 0.1, FULL_BITS)
        return np.log(table[:, 0]), np.log(table[:, 1]), bits

    def _read(self, X: ArrayLike) -> Array:
        return read_precision(X)

    def _start_ranges(self, table: Array, losses: Array) -> tuple[Array, Array]:
        log_M, log_N = np.median(np.log(table[:, :2]), axis=0)
        log_y, few = np.log(np.median(losses)), np.log(0.01)
        low = [log_y + few, log_y + few + 0.1 * log_M, 0.1, log_y + few + 0.1 * log_N, 0.1, np.log(0.1)]
        return np.array(low), np.array([np.log(losses.min()), log_y + log_M, 1.0, log_y + log_N, 1.0, np.log(8.0)])

    def _bounds(self) -> tuple[Array, Array]:
        low = [-25.0, -25.0, 1e-3, -25.0, 1e-3, np.log(1e-3)]
        return np.array(low), np.array([25.0, 80.0, 3.0, 80.0, 3.0, np.log(1e3)])
