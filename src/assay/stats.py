"""Intervals for verdicts: 95 %, two-sided, over independent units.

| what | from 20 units up | below |
|---|---|---|
| mean of (paired) values | percentile bootstrap | Student's t |
| any statistic, with clusters or strata | percentile bootstrap | Student's t on the bootstrap's standard error |
| share of successes | Clopper-Pearson | Clopper-Pearson |
| difference of paired shares | Tango's score interval | Tango's score interval |

The percentile interval is widened to the coverage of Student's t (Hesterberg 2015): the plain one
covers 93 % at 20 normal units. Strata of fewer than five units take Student's t at any number, and the
bootstrap's variance is corrected for the smallest stratum: of two units it misses half.

What can't be known is not made up:

- fewer than three units give an unbounded interval;
- so does a sample that shows no spread (identical values, a statistic that no resample changes):
  three runs with the same score say nothing about the fourth;
- successes and failures, and their paired differences, have rules of their own, since a sample of
  successes alone would otherwise have no width; `mean_interval` never falls below them;
- clusters are counted whole, whatever their size: where one cluster holds most of the rows the interval
  covers about 90 %;
- a long tail that the sample has not met stays unseen. With skewness g the chance of a false `holds`
  on the tail's side is about 0.025 + 0.057 g / sqrt(n) (first Edgeworth term of the percentile interval):
  0.050 where 20 units are exponential, and 0.063 in simulation. Where few units carry most of the effect,
  judge a median, or a difference of logarithms.

A study never corrects over its claims; `expected_false_holds` says how many a reader should expect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "BOOTSTRAP_FROM", "Interval", "bootstrap", "expected_false_holds", "mean_interval", "paired", "paired_shares",
    "proportion",
]

BOOTSTRAP_FROM = 20
"""Units from which the percentile bootstrap is used."""

STRATUM_FROM = 5
"""Units that it needs in each stratum."""

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95 % interval over `n` independent units."""

    estimate: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.estimate:.4g} [{self.low:.4g}, {self.high:.4g}], n = {self.n}"


def mean_interval(values: ArrayLike, *, seed: int = 0, n_resamples: int = 2000) -> Interval:
    """Interval for the mean of independent values, one a unit.

    Values of two levels, or of -s, 0 and s, may be successes or their paired differences: the interval
    then reaches at least as far as that of `paired_shares`. Where a share is what is meant, `proportion`
    and `paired_shares` are sharper. Identical values say nothing, save 0, 1 and -1, whose unit is known:
    the interval allows for as many units off by one as can have stayed unseen.

    >>> mean_interval([1.0, 2.0, 3.0])
    Interval(estimate=2.0, low=-0.484..., high=4.484..., n=3)
    >>> mean_interval([0.5, 0.5, 0.5])
    Interval(estimate=0.5, low=-inf, high=inf, n=3)
    """
    array = _finite(values)
    n, estimate = len(array), float(array.mean()) if len(array) else math.nan
    if n < 3:
        return _unbounded(estimate, n)
    if np.ptp(array) <= 1e-12 * abs(estimate):
        reach = _tango_high(0, 0, n) if array[0] in (-1, 0, 1) else math.inf
        return Interval(estimate, estimate - reach, estimate + reach, n)
    if n < BOOTSTRAP_FROM:
        interval = _student(estimate, float(array.std(ddof=1)) / math.sqrt(n), n, n - 1)
    else:
        interval = bootstrap(lambda rows: array[rows].mean(axis=-1), n, seed=seed, n_resamples=n_resamples)
    if (shares := _as_shares(array)) is None:
        return interval
    origin, size, signs = shares
    share = paired_shares(signs > 0, signs < 0)
    low, high = origin + size * share.low, origin + size * share.high
    return Interval(estimate, min(interval.low, low), max(interval.high, high), n)


def paired(method: ArrayLike, baseline: ArrayLike, *, seed: int = 0) -> Interval:
    """Interval for the mean difference `method - baseline` of values paired by unit."""
    first, second = np.asarray(method, dtype=float), np.asarray(baseline, dtype=float)
    if first.shape != second.shape:
        raise ValueError(f"paired values differ in shape: {first.shape} and {second.shape}")
    return mean_interval(first - second, seed=seed)


def bootstrap(
    statistic: Callable[[NDArray[np.intp]], float | NDArray[np.floating]],
    n: int,
    *,
    clusters: ArrayLike | None = None,
    strata: ArrayLike | None = None,
    n_resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Interval for any statistic of `n` rows.

    Parameters
    ----------
    statistic : callable
        Maps row indices (m,) to a number. One that maps a (resamples, m) array to (resamples,)
        numbers is called once for all resamples when no clusters are given.
    n : int
        Rows.
    clusters : (n,) array, optional
        Rows with one label are dependent: whole clusters are drawn, and are what is counted.
    strata : (n,) array, optional
        Units are drawn within each label (a test row within its data set, a run within its budget).
        Constant within a cluster. Strata of a single unit are drawn as one stratum.
    """
    members = [np.array([row]) for row in range(n)] if clusters is None else _groups(clusters, n)
    units = len(members)
    estimate = float(statistic(np.arange(n))) if n else math.nan
    if units < 3:
        return _unbounded(estimate, units)
    layers = [np.arange(units)] if strata is None else _layers(strata, members, n)
    rng = np.random.default_rng([seed, units])
    drawn = [layer[rng.integers(len(layer), size=(n_resamples, len(layer)))] for layer in layers]
    values = _evaluate(statistic, np.concatenate(drawn, axis=1), members if clusters is not None else None)
    finite = np.isfinite(values)
    smallest = min(len(layer) for layer in layers)
    spread = np.ptp(values[finite]) if finite.any() else 0.0
    if smallest < 2 or finite.mean() < 0.9 or not math.isfinite(estimate) or spread <= 1e-12 * abs(estimate):
        return _unbounded(estimate, units)
    widening, freedom = math.sqrt(smallest / (smallest - 1)), units - len(layers)
    if units < BOOTSTRAP_FROM or smallest < STRATUM_FROM:
        return _student(estimate, widening * float(values[finite].std()), units, freedom)
    tail = _normal_tail(widening * _t_quantile(freedom))
    # A resample without a value could lie on either side.
    low = np.quantile(np.where(finite, values, -np.inf), tail, method="lower")
    high = np.quantile(np.where(finite, values, np.inf), 1 - tail, method="higher")
    return Interval(estimate, float(low), float(high), units)


def proportion(successes: int, n: int) -> Interval:
    """Clopper-Pearson interval for a share.

    >>> proportion(10, 10)
    Interval(estimate=1.0, low=0.691..., high=1.0, n=10)
    """
    from scipy.stats import beta

    if n == 0:
        return Interval(math.nan, 0.0, 1.0, 0)
    tail = (1 - LEVEL) / 2
    low = 0.0 if successes == 0 else float(beta.ppf(tail, successes, n - successes + 1))
    high = 1.0 if successes == n else float(beta.ppf(1 - tail, successes + 1, n - successes))
    return Interval(successes / n, low, high, n)


def paired_shares(method: ArrayLike, baseline: ArrayLike) -> Interval:
    """Interval for the difference of two shares of successes on the same units.

    The score interval of Tango (1998), with Student's t in the place of the normal quantile: all the
    differences that the test of `_tango_score` does not refuse. A Wald-type interval is far too narrow
    where no unit differs: at 20 units it would exclude a difference of 0.1 in one such sample of eight.

    >>> paired_shares([1, 1, 1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0, 0])
    Interval(estimate=1.0, low=0.177..., high=1.0, n=8)
    """
    first, second = np.asarray(method, dtype=bool), np.asarray(baseline, dtype=bool)
    if first.shape != second.shape:
        raise ValueError(f"paired values differ in shape: {first.shape} and {second.shape}")
    n = len(first)
    if n < 3:
        return Interval(float(first.mean() - second.mean()) if n else math.nan, -1.0, 1.0, n)
    better, worse = int(np.sum(first & ~second)), int(np.sum(second & ~first))
    return Interval((better - worse) / n, -_tango_high(worse, better, n), _tango_high(better, worse, n), n)


def expected_false_holds(n_claims: int) -> float:
    """How many of `n_claims` would read `holds` by chance if each effect lay exactly at its threshold."""
    return n_claims * (1 - LEVEL) / 2


def _unbounded(estimate: float, n: int) -> Interval:
    return Interval(estimate, -math.inf, math.inf, n)


def _student(estimate: float, error: float, n: int, freedom: int) -> Interval:
    """Student's t around an estimate; a standard error of nothing but rounding tells nothing."""
    if error <= 1e-12 * abs(estimate):
        return _unbounded(estimate, n)
    reach = _t_quantile(freedom) * error
    return Interval(estimate, estimate - reach, estimate + reach, n)


def _as_shares(array: NDArray[np.floating]) -> tuple[float, float, NDArray[np.floating]] | None:
    """`(origin, size, signs)` with array = origin + size * signs, signs in {-1, 0, 1}; None for other values.

    Zeros and ones alone may be shares, or differences that never went the other way: the rule for
    differences serves both.
    """
    size = float(np.abs(array).max())
    levels = np.unique((array / size).round(9))
    if np.isin(levels, (-1, 0, 1)).all():
        return 0.0, size, (array / size).round()
    if len(levels) == 2:
        origin, step = float(array.min()), float(np.ptp(array))
        return origin, step, ((array - origin) / step).round()
    return None


def _tango_high(better: int, worse: int, n: int) -> float:
    """The largest difference of shares that the score test does not refuse."""
    from scipy.optimize import brentq

    if better == n:
        return 1.0
    quantile = _t_quantile(n - 1)
    start = (better - worse) / n
    return float(brentq(lambda d: _tango_score(better, worse, n, d) + quantile, start, 1.0, xtol=1e-12))


def _tango_score(better: int, worse: int, n: int, difference: float) -> float:
    """Score of a difference, with the share of worse units at its likeliest value under it (Tango 1998)."""
    b = (2 * n - better + worse) * difference - better - worse
    c = -worse * difference * (1 - difference)
    share_worse = (math.sqrt(max(0.0, b * b - 8 * n * c)) - b) / (4 * n)
    variance = n * (2 * share_worse + difference * (1 - difference))
    excess = better - worse - n * difference
    return excess / math.sqrt(variance) if variance > 1e-12 else (0.0 if excess == 0 else math.copysign(1e9, excess))


def _finite(values: ArrayLike) -> NDArray[np.floating]:
    array = np.asarray(values, dtype=float)
    if array.ndim != 1 or not np.isfinite(array).all():
        raise ValueError("the values of the units must be a vector of finite numbers")
    return array


def _groups(labels: ArrayLike, n: int) -> list[NDArray[np.intp]]:
    """The rows of each label, in the labels' order."""
    array = np.asarray(labels)
    if array.shape != (n,):
        raise ValueError(f"one label a row is needed: {n} rows, labels of shape {array.shape}")
    _, codes = np.unique(array, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.cumsum(np.bincount(codes))[:-1])


def _layers(strata: ArrayLike, members: Sequence[NDArray[np.intp]], n: int) -> list[NDArray[np.intp]]:
    """The units of each stratum; single ones are joined, for one unit alone shows no spread."""
    if np.shape(strata) != (n,):
        raise ValueError(f"one stratum a row is needed: {n} rows, strata of shape {np.shape(strata)}")
    labels = np.asarray(strata)
    if any((labels[rows] != labels[rows[0]]).any() for rows in members):
        raise ValueError("a cluster lies in two strata")
    layers = _groups(labels[[rows[0] for rows in members]], len(members))
    single = [layer for layer in layers if len(layer) == 1]
    return [layer for layer in layers if len(layer) > 1] + ([np.concatenate(single)] if single else [])


def _evaluate(
    statistic: Callable, draws: NDArray[np.intp], members: Sequence[NDArray[np.intp]] | None
) -> NDArray[np.floating]:
    if members is not None:
        return np.array([float(statistic(np.concatenate([members[unit] for unit in rows]))) for rows in draws])
    try:
        values = np.asarray(statistic(draws), dtype=float)
        # The shape alone could be right by accident: a statistic of columns, on as many rows as resamples.
        if values.shape == (len(draws),) and np.isclose(values[-1], statistic(draws[-1]), atol=0, equal_nan=True):
            return values
    except (TypeError, ValueError, IndexError):
        pass
    return np.array([float(statistic(rows)) for rows in draws])


def _t_quantile(freedom: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + LEVEL) / 2, freedom))


def _normal_tail(quantile: float) -> float:
    from scipy.stats import norm

    return float(norm.cdf(-quantile))
