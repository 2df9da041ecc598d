"""Bins of equal mass in log compute, and how often scores stay below a boundary in each of them."""

from __future__ import annotations

from numbers import Integral
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from assay.errors import InputError, as_vector

__all__ = ["Coverage", "bin_of", "coverage_by_bin", "equal_mass_bins"]

Array = NDArray[np.float64]


class Coverage(NamedTuple):
    """Share of scores on or below a boundary.

    Attributes
    ----------
    bins : DataFrame
        One row a bin that holds points: `low`, `high` (log10 FLOP), `n`, `coverage`, `error` (its distance from the
        wanted level).
    macro : float
        Mean error over the bins.
    micro : float
        Mean error over the points, each with its bin's error.
    share : float
        Share of all points on or below the boundary.
    """

    bins: pd.DataFrame
    macro: float
    micro: float
    share: float


def equal_mass_bins(z: ArrayLike, k: int = 10, min_size: int = 30) -> Array:
    """Edges of up to `k` bins of about equal mass; points with equal `z` are never split (arXiv 2602.15327).

    Walking up the distinct values, a bin is closed once it holds `len(z) / k` points and at least `min_size`; a rest
    of fewer than `min_size` joins the last bin. A table with few distinct values, or few rows, gives fewer bins than
    asked for.

    Parameters
    ----------
    z : (n,) array-like
        Log10 compute (any number that orders the points will do).
    k : int
        Bins wanted.
    min_size : int
        Points that a bin must hold.

    Returns
    -------
    (m + 1,) ndarray
        Rising edges of m <= k bins: the least and the greatest value, between them mid-points of neighbouring values.

    Raises
    ------
    InputError
        For values that are not finite, no values, or counts below 1.

    Examples
    --------
    >>> equal_mass_bins([1, 1, 1, 2, 3, 4, 5, 6], k=3, min_size=2)
    array([1. , 1.5, 4.5, 6. ])
    """
    values = as_vector(z, "z").astype(float)
    for name, number in (("k", k), ("min_size", min_size)):
        if not isinstance(number, Integral) or number < 1:
            raise InputError(f"{name} must be a whole number of at least 1, got {number!r}")
    if not len(values):
        raise InputError("z has no entries")
    distinct, counts = np.unique(values, return_counts=True)
    wanted = max(len(values) / k, min_size)
    inner: list[float] = []
    filled, left = 0, len(values)
    for i, count in enumerate(counts[:-1]):
        filled += count
        left -= count
        if filled >= wanted and left >= min_size and len(inner) < k - 1:
            inner.append((distinct[i] + distinct[i + 1]) / 2)
            filled = 0
    return np.array([distinct[0], *inner, distinct[-1]], dtype=float)


def bin_of(z: Array, edges: Array) -> NDArray[np.intp]:
    """The bin of each point; points beyond the edges belong to the outer bins."""
    return np.searchsorted(edges[1:-1], z, side="right")


def coverage_by_bin(z: Array, y: Array, boundary: Array, edges: Array, quantile: float) -> Coverage:
    """Coverage of points (z, y) by the boundary's values at them, in the given bins."""
    below, bins = y <= boundary, bin_of(z, edges)
    counts = np.bincount(bins, minlength=len(edges) - 1)
    with np.errstate(invalid="ignore"):
        shares = np.bincount(bins, weights=below, minlength=len(counts)) / counts
    table = pd.DataFrame({
        "low": edges[:-1], "high": edges[1:], "n": counts, "coverage": shares, "error": np.abs(shares - quantile),
    })[counts > 0].reset_index(drop=True)
    micro = float(np.average(table["error"], weights=table["n"]))
    return Coverage(table, float(table["error"].mean()), micro, float(below.mean()))
