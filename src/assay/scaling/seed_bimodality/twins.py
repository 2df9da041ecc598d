"""Populations without two modes, to compare a real one with: what a bounded metric makes of a single bell.

The unimodal twin of a sample is a normal distribution cut off at the metric's bounds, with the sample's mean and
variance. Seeds beyond a bound pile up there, as they do where a metric saturates; the far bound is kept 2.33 standard
deviations away, since piles at both bounds would be two modes again.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.stats import norm

__all__ = ["Bell", "bell_of"]

FAR = 2.33  # one in a hundred lies beyond
Array = NDArray[np.float64]


class Bell:
    """A normal distribution with centre and spread, cut off at `low` and `high`."""

    def __init__(self, centre: float, spread: float, low: float, high: float) -> None:
        self.centre, self.spread, self.low, self.high = centre, spread, low, high

    def draw(self, rng: np.random.Generator, n: int) -> Array:
        """Independent values (n,)."""
        return np.clip(self.centre + self.spread * rng.standard_normal(n), self.low, self.high)


def bell_of(values: Array, low: float, high: float) -> Bell:
    """The cut-off normal with the mean and the variance of a sample, as near as one bell can come."""
    mean, sd = float(values.mean()), float(values.std())
    if sd == 0:
        return Bell(mean, 0.0, low, high)

    def miss(x: Array) -> list[float]:
        found_mean, found_sd = _moments(x[0], math.exp(x[1]), low, high)
        return [(found_mean - mean) / sd, (found_sd - sd) / sd]

    found = least_squares(miss, [mean, math.log(sd)], bounds=([mean - 9 * sd, math.log(sd / 3)],
                                                              [mean + 9 * sd, math.log(sd * 9)]))
    centre, spread = float(found.x[0]), math.exp(found.x[1])
    far = max(centre - low, high - centre)
    return Bell(centre, min(spread, far / FAR), low, high)


def _moments(centre: float, spread: float, low: float, high: float) -> tuple[float, float]:
    """Mean and standard deviation of a normal cut off at two bounds, either of which may be infinite."""
    a, b = (low - centre) / spread, (high - centre) / spread
    below, above = norm.cdf(a), norm.sf(b)
    inner = 1 - below - above
    first = norm.pdf(a) - norm.pdf(b)
    second = inner + (a * norm.pdf(a) if math.isfinite(a) else 0.0) - (b * norm.pdf(b) if math.isfinite(b) else 0.0)
    low_part, high_part = (0.0 if math.isinf(x) else x for x in (a, b))
    mean = first + below * low_part + above * high_part
    square = second + below * low_part**2 + above * high_part**2
    return centre + spread * mean, spread * math.sqrt(max(square - mean**2, 1e-12))
