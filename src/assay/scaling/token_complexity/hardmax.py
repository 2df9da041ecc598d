"""The limit of a sharp softmax: attention that returns the value of the one token with the highest score.

With Gaussian scores the highest of n is sqrt(2 ln n) up to (ln ln n + ln 4 pi) / (2 sqrt(2 ln n)), so that the
output, divided by sqrt(2 ln n), comes near its limit at a logarithmic rate (arXiv 2512.10656 states such a rate;
the constants are extreme-value theory). With scores of bounded support and a density that vanishes as dist^alpha at
the edge it would be a power, n^(-1 / (1 + alpha)) at a fixed query.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import InputError
from assay.scaling.token_complexity.convergence import draw_orders, token_counts
from assay.scaling.token_complexity.theory import expected_maximum, heads_input, whole_number

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["HardmaxResult", "hardmax_convergence"]

Array = NDArray[np.float64]
_POWERS = np.geomspace(1e-3, 3.0, 400)


@dataclass(frozen=True, eq=False)
class HardmaxResult:
    """What `hardmax_convergence` found; reconstructed, as there.

    Attributes
    ----------
    table : DataFrame
        One row an n: `n`, `top` (mean highest score, in standard deviations above the pool's mean), `gaussian` (what
        that would be for Gaussian scores), `shortfall` (1 - top / sqrt(2 ln n)), `err` (mean distance of the value of
        the chosen token from that of the whole pool's), `sem` of the shortfall over replicates.
    r2 : float
        Share of the shortfall's variation over n that is linear in 1 / ln n.
    aic_gap : float
        AIC of that line minus AIC of the best power law c n^-beta: negative where the logarithm describes it better.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> q, k = rng.normal(size=(8, 2)), rng.normal(size=(5000, 2))
    >>> found = hardmax_convergence(q, k, k, [10, 30, 100, 300])
    >>> bool((abs(found.table.top - found.table.gaussian) < 0.5).all())
    True
    """

    table: pd.DataFrame
    r2: float
    aic_gap: float


def hardmax_convergence(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, ns: Sequence[int], *, n_rep: int = 32, random_state: int = 0
) -> HardmaxResult:
    """How fast hardmax attention over n random tokens of a pool comes near its limit.

    Parameters
    ----------
    q : array-like of shape (m, d_k)
    k : array-like of shape (N, d_k)
    v : array-like of shape (N, d_v)
    ns : sequence of int
        At least three distinct numbers of tokens from 3 to below N.
    n_rep : int
        Replicates: random orders of the pool.
    random_state : int

    Returns
    -------
    HardmaxResult

    Raises
    ------
    InputError
        As `attention_convergence`; also an n below 3, and a query that scores all keys the same.

    Notes
    -----
    Reconstructed. The pool's own highest score bounds what any n can reach: keep n well below N.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> k = rng.normal(size=(20000, 1))
    >>> found = hardmax_convergence([[1.0]], k, k, [10, 20, 50, 100, 200, 500], n_rep=64)
    >>> found.table.shortfall.is_monotonic_decreasing
    True
    """
    q, k, v, _ = heads_input(q, k, v, None)
    counts = token_counts(ns, len(k))
    if counts[0] < 3:
        raise InputError(f"ns must be 3 or more for a hardmax, got {counts[0]}")
    n_rep = whole_number(n_rep, "n_rep", 2)
    scores = k @ q.T
    spread = scores.std(axis=0)
    if (spread <= 1e-12 * np.abs(scores).max()).any():
        query = int(np.argmax(spread <= 1e-12 * np.abs(scores).max()))
        raise InputError(f"attention is constant: query {query} scores all keys the same")
    scores = (scores - scores.mean(axis=0)) / spread
    best = v[scores.argmax(axis=0)]
    tops, distances = [], []
    for order in draw_orders(len(k), n_rep, int(counts[-1]), random_state):
        chosen = _leaders(scores[order], counts)
        tops.append([scores[order[rows], np.arange(len(q))].mean() for rows in chosen])
        distances.append([np.linalg.norm(v[order[rows]] - best, axis=1).mean() for rows in chosen])
    return _result(counts, np.array(tops), np.array(distances))


def shortfall(ns: ArrayLike, tops: Array) -> Array:
    """1 - top / sqrt(2 ln n), the distance of the normalised output from its limit."""
    return 1 - tops / np.sqrt(2 * np.log(np.asarray(ns, dtype=np.float64)))


def log_rate_fit(ns: ArrayLike, curves: Array) -> tuple[Array, Array]:
    """R^2 of curves (..., len(ns)) on a line in 1 / ln n, and its AIC minus that of the best power law c n^-beta.

    Both have two parameters, and least squares on the curve itself.
    """
    n = np.asarray(ns, dtype=np.float64)
    x = 1 / np.log(n)
    centred = x - x.mean()
    deviation = curves - curves.mean(axis=-1, keepdims=True)
    total = (deviation**2).sum(axis=-1)
    line = np.maximum(total - (deviation @ centred) ** 2 / (centred @ centred), 1e-300)
    shapes = n ** -_POWERS[:, None]
    power = (curves**2).sum(axis=-1)[..., None] - (curves @ shapes.T) ** 2 / (shapes**2).sum(axis=1)
    best = np.maximum(power.min(axis=-1), 1e-300)
    return 1 - line / np.maximum(total, 1e-300), len(n) * np.log(line / best)


def _leaders(scores: Array, counts: NDArray[np.int64]) -> list[NDArray[np.intp]]:
    """For each n the row of the highest of the first n scores, a query: one pass over nested segments."""
    queries = np.arange(scores.shape[1])
    best = scores[: counts[0]].argmax(axis=0)
    found = [best]
    for low, high in pairwise(counts):
        rival = low + scores[low:high].argmax(axis=0)
        best = np.where(scores[rival, queries] > scores[best, queries], rival, best)
        found.append(best)
    return found


def _result(counts: NDArray[np.int64], tops: Array, distances: Array) -> HardmaxResult:
    import pandas as pd

    short = shortfall(counts, tops)
    r2, gap = log_rate_fit(counts, short.mean(axis=0))
    table = pd.DataFrame({
        "n": counts, "top": tops.mean(axis=0), "gaussian": expected_maximum(counts), "shortfall": short.mean(axis=0),
        "err": distances.mean(axis=0), "sem": short.std(axis=0, ddof=1) / math.sqrt(len(short)),
    })
    return HardmaxResult(table, float(r2), float(gap))
