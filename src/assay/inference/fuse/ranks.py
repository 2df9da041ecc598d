"""Ranks in (0, 1): all that is kept of a score, so that no increasing change of scale matters.

The rank of a score among n scores is (number below + half the number equal) / n: ties share the middle of
their places. Infinite scores are ordinary ends of the scale; NaN stays NaN.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["RankMap", "normal_scores", "ranks_within"]

Array = NDArray[np.float64]


class RankMap:
    """Ranks of any scores among those of one fitted column.

    Parameters
    ----------
    column : (n,) array
        Scores; NaN is left out.

    Examples
    --------
    >>> RankMap(np.array([3.0, 1.0, 1.0, 9.0]))(np.array([1.0, 2.0, 9.0, np.nan])).tolist()
    [0.25, 0.5, 0.875, nan]
    """

    def __init__(self, column: Array) -> None:
        self.values = np.sort(column[~np.isnan(column)])

    def __call__(self, scores: Array) -> Array:
        n = len(self.values)
        order = np.argsort(scores)
        ordered = scores[order]
        below = np.searchsorted(self.values, ordered, side="left")
        up_to = np.searchsorted(self.values, ordered, side="right")
        ranks = np.empty(len(scores))
        ranks[order] = np.clip((below + up_to) / (2 * n), 0.5 / n, 1 - 0.5 / n)
        return np.where(np.isnan(scores), np.nan, ranks)


def ranks_within(scores: Array, groups: NDArray[np.intp]) -> Array:
    """Ranks of each column inside each query; queries with a single score of a verifier say nothing (NaN).

    >>> ranks_within(np.array([[5.0], [7.0], [2.0]]), np.array([0, 0, 1])).ravel().tolist()
    [0.25, 0.75, nan]
    """
    ranks = np.full(scores.shape, np.nan)
    for j, column in enumerate(scores.T):
        known = np.flatnonzero(~np.isnan(column))
        order = known[np.lexsort((column[known], groups[known]))]
        if not len(order):
            continue
        group, value = groups[order], column[order]
        new_group = np.r_[True, group[1:] != group[:-1]]
        new_value = new_group | np.r_[True, value[1:] != value[:-1]]
        place = np.arange(len(order)) - np.flatnonzero(new_group)[np.cumsum(new_group) - 1]
        run = np.cumsum(new_value) - 1
        ties = np.bincount(run)
        first = place[np.flatnonzero(new_value)][run]
        size = np.bincount(np.cumsum(new_group) - 1)[np.cumsum(new_group) - 1]
        ranks[order, j] = np.where(size > 1, (first + ties[run] / 2) / size, np.nan)
    return ranks


def normal_scores(ranks: Array) -> Array:
    """Quantiles of the standard normal distribution at the ranks."""
    from scipy.special import ndtri

    return ndtri(ranks)
