"""Hartigan's dip: how far a sample is from every unimodal distribution, and how often a unimodal one is as far.

The dip is the smallest possible largest distance between the sample's distribution function F and a unimodal one,
which is convex up to its mode and concave after it. Hartigan and Hartigan (1985) find it by narrowing a modal
interval: of the greatest convex minorant of F and its least concave majorant between the ends, the point of their
largest distance gives the next interval, and what F deviates from them outside of it is a lower bound of the dip;
when the distance is no longer above the bound the bound is the dip.

The p-value is the share of uniform samples of the same size with a dip as large (the uniform is the least
favourable unimodal distribution among the usual ones), from quantiles that `simulate_null` made once and that lie
beside this module; it is conservative for most others. The dip depends on the scale of measurement: bimodal in the
loss need not be bimodal in its logarithm.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import InputError, as_vector

__all__ = ["dip_pvalue", "dip_statistic", "simulate_null"]

TAILS = (
    0.99, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03, 0.02, 0.01, 0.005, 0.002, 0.001,
    0.0005, 0.0002, 0.0001,
)
SIZES = (10, 12, 15, 20, 25, 30, 40, 50, 64, 80, 100, 128, 160, 200, 256, 350, 500, 700, 1000)
SMALLEST_P = TAILS[-1]
Array = NDArray[np.float64]


def dip_statistic(x: ArrayLike) -> float:
    """The dip of a sample (Hartigan and Hartigan 1985), the test of arXiv 2502.17356, section 3.

    Parameters
    ----------
    x : (n,) array
        Values in any order; ties are what they are, a jump of F.

    Returns
    -------
    float
        Between 1/(2n) and 1/4.

    Raises
    ------
    InputError
        No value, or one that is NaN or infinite.

    Examples
    --------
    >>> dip_statistic([1, 2, 3, 4])
    0.125
    >>> dip_statistic([0] * 500 + [1] * 500)
    0.25
    """
    values, counts = np.unique(np.asarray(as_vector(x, "x"), dtype=float), return_counts=True)
    n = int(counts.sum())
    if n == 0:
        raise InputError("x is empty, a dip needs at least one value")
    upto = np.cumsum(counts).astype(float)  # n F(x), and n F(x-) just before it
    before = (upto - counts).astype(float)
    low, high, bound = 0, len(values) - 1, 1.0
    minorants = _previous_vertices(values, before)
    majorants = len(values) - 1 - _previous_vertices(-values[::-1], -upto[::-1])[::-1]
    while True:
        convex = _chain(minorants, high, low)[::-1]
        concave = _chain(majorants, low, high)
        above = np.interp(values[convex], values[concave], upto[concave]) - before[convex]
        below = upto[concave] - np.interp(values[concave], values[convex], before[convex])
        distance = max(above.max(), below.max())
        if distance <= bound:
            return float(bound) / (2 * n)
        if above.max() >= below.max():
            left = convex[int(above.argmax())]
            right = concave[int(np.searchsorted(concave, left))]
        else:
            right = concave[int(below.argmax())]
            left = convex[int(np.searchsorted(convex, right, side="right")) - 1]
        # The ends of the modal interval are left out: a unimodal distribution may jump at its mode.
        outside_left, outside_right = slice(low, left), slice(right + 1, high + 1)
        bound = max(
            bound,
            (upto[outside_left] - np.interp(values[outside_left], values[convex], before[convex])).max(initial=0),
            (np.interp(values[outside_right], values[concave], upto[concave]) - before[outside_right]).max(initial=0),
        )
        if (left, right) == (low, high):
            return float(bound) / (2 * n)
        low, high = int(left), int(right)


def _previous_vertices(x: Array, height: Array) -> NDArray[np.intp]:
    """For each point, the vertex before it on the greatest convex minorant of the points up to it."""
    points = list(zip(x.tolist(), height.tolist(), strict=True))
    found = [0] * len(points)
    for j in range(1, len(points)):
        xj, hj = points[j]
        k = j - 1
        while k:
            xk, hk = points[k]
            xm, hm = points[found[k]]
            if (xj - xk) * (hk - hm) < (xk - xm) * (hj - hk):
                break
            k = found[k]
        found[j] = k
    return np.array(found)


def _chain(following: NDArray[np.intp], start: int, stop: int) -> NDArray[np.intp]:
    """The vertices from `start` to `stop` along the pointers."""
    chain = [start]
    while chain[-1] != stop:
        chain.append(int(following[chain[-1]]))
    return np.array(chain)


def dip_pvalue(dip: float, n: int) -> float:
    """Share of uniform samples of n values whose dip is as large (quantiles by simulation, reconstructed).

    Parameters
    ----------
    dip
        The statistic.
    n
        Values it was taken over, 10 or more. Above 1,000 the quantiles of n^1/2 dip no longer move.

    Returns
    -------
    float
        0.0001 stands for that or less.

    Raises
    ------
    InputError
        Fewer than 10 values, or a dip outside 0 to 1/4.

    Examples
    --------
    >>> dip_pvalue(0.05, 100) > 0.05 > dip_pvalue(0.055, 100)
    True
    """
    if not 0 <= dip <= 0.25:
        raise InputError(f"a dip lies between 0 and 1/4, got {dip!r}")
    if n < SIZES[0]:
        raise InputError(f"a dip test needs at least {SIZES[0]} values, got {n}")
    sizes, quantiles = _null()
    at = np.sqrt(n) * dip
    here = np.array([np.interp(np.log(n), np.log(sizes), column) for column in quantiles.T])
    return float(np.exp(np.interp(at, here, np.log(TAILS), left=0.0)))


@cache
def _null() -> tuple[Array, Array]:
    """Sizes (s,) and quantiles (s, tails) of n^1/2 dip."""
    held = json.loads((Path(__file__).parent / "dip_null.json").read_text(encoding="utf-8"))
    return np.array(held["sizes"], dtype=float), np.array(held["quantiles"])


def simulate_null(n: int, reps: int, seed: int = 0) -> Array:
    """Quantiles of n^1/2 dip of uniform samples, at the upper tails `TAILS`: what the p-values rest on.

    >>> simulate_null(10, 20).shape
    (23,)
    """
    rng = np.random.default_rng([seed, n])
    dips = [dip_statistic(rng.random(n)) for _ in range(reps)]
    return np.quantile(np.sqrt(n) * np.array(dips), 1 - np.array(TAILS))
