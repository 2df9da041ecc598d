"""Paired intervals over test rows for calibration metrics, which are no means over rows.

Several splits of one data set share test rows, so they are not independent: a resample draws rows of the data set,
the metric is computed on the drawn rows among a split's test rows, and the differences between two arms are averaged
over splits, then over data sets. Only weights change between resamples, hence many of them are evaluated at once as
sums of weights over bins. Three splits are enough to see how the difference spreads over rows; more would change
little, as they are mostly the same rows.

A split has validation rows and starts of the fit of its own, and from other starts another minimum is found, with
other errors. So a resample draws splits as well, from all of them, and adds how far their mean difference lies from
that of all. It is stretched such that the interval for the mean over n splits is Student's with n - 1 degrees of
freedom; of a single split no such spread is known.

Drawing rows again adds noise to the bin means, and the more noise, the larger the absolute values that a calibration
error adds up: resampled errors are too large, most so for the better calibrated arm. Their mean is therefore shifted
to the observed difference; what the interval takes from them is their spread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.stats import norm, t

from assay import stats

from .metrics import uniform_bins

Array = NDArray[np.float64]
# Frames of two arms on the same test rows: columns row, confidence, correct, brier.
SplitPair = tuple[Any, Any]

N_BINS = 15
N_RESAMPLES = 1000
CHUNK = 25
# Splits on which the drawn rows are evaluated.
ROW_SPLITS = 3


def paired_differences(data_sets: Sequence[Sequence[SplitPair]]) -> dict[str, stats.Interval]:
    """Intervals of each metric of the first arm minus that of the second, averaged over splits, then over data sets.

    Parameters
    ----------
    data_sets : sequence of sequences of pairs of frames
        For each data set, for each split, the units of the two arms. Rows and splits are drawn within their data set.

    Returns
    -------
    dict of str to Interval
        For `ece`, `brier` and `auroc`.
    """
    drawn = _Draws([_DataSet(splits) for splits in data_sets])
    return {metric: _interval(drawn, metric) for metric in METRICS}


def centred_bootstrap(statistic: Callable[[NDArray[np.intp]], float], n_rows: int) -> stats.Interval:
    """Bootstrap interval of a statistic of row indices, the mean of the resamples shifted to the observed value."""
    values: list[float] = []

    def noted(rows: NDArray[np.intp]) -> float:
        if rows.ndim != 1:
            raise TypeError("one resample at a time")
        values.append(statistic(rows))
        return values[-1]

    raw = stats.bootstrap(noted, n_rows, n_resamples=N_RESAMPLES)
    bias = float(np.mean(values)) - raw.estimate
    return replace(raw, low=raw.low - bias, high=raw.high - bias)


def _interval(drawn: _Draws, metric: str) -> stats.Interval:
    def statistic(draws: NDArray[np.intp]) -> float | Array:
        values = drawn.differences(np.atleast_2d(draws))[metric]
        return values if draws.ndim == 2 else float(values[0])

    raw = stats.bootstrap(statistic, drawn.n_rows, strata=drawn.strata, n_resamples=N_RESAMPLES)
    bias = drawn.mean(metric) - raw.estimate
    return replace(raw, low=raw.low - bias, high=raw.high - bias)


class _Draws:
    """Differences on drawn rows: of all metrics at once, since the weights of the rows are the costly part."""

    def __init__(self, data_sets: Sequence[_DataSet]) -> None:
        sizes = [one.n_rows for one in data_sets]
        self._data_sets = data_sets
        self._ends = np.cumsum(sizes)
        self.n_rows = int(self._ends[-1])
        self.strata = np.repeat(np.arange(len(sizes)), sizes)
        self._seen: tuple[NDArray[np.intp], dict[str, Array]] | None = None

    def differences(self, draws: NDArray[np.intp]) -> dict[str, Array]:
        """For each metric, the mean difference on each row of `draws` [resamples, rows]."""
        if len(draws) == 1:
            return self._evaluate(draws)
        # Every metric is asked for the same draws.
        if self._seen is None or not np.array_equal(self._seen[0], draws[:, 0]):
            parts = [self._evaluate(draws[i : i + CHUNK]) for i in range(0, len(draws), CHUNK)]
            self._seen = draws[:, 0].copy(), {m: np.concatenate([part[m] for part in parts]) for m in METRICS}
        return self._seen[1]

    def mean(self, metric: str) -> float:
        """Mean of the resampled differences."""
        return float(np.mean(self._seen[1][metric])) if self._seen is not None else float("nan")

    def _evaluate(self, draws: NDArray[np.intp]) -> dict[str, Array]:
        resamples = len(draws)
        # How often each row was drawn in each resample, as an array [rows, resamples].
        place = draws * resamples + np.arange(resamples)[:, None]
        counts = np.bincount(place.ravel(), minlength=self.n_rows * resamples).reshape(self.n_rows, resamples)
        weights = np.split(counts.astype(np.float64), self._ends[:-1])
        # All rows once, in order, are the observation and no resample.
        observed = np.array_equal(draws[0], np.arange(self.n_rows))
        values: dict[str, list[Array]] = {metric: [] for metric in METRICS}
        drawn = np.split(draws, self._ends[:-1], axis=1)
        for one, part, rows, end in zip(self._data_sets, weights, drawn, self._ends, strict=True):
            moves = np.zeros((resamples, one.n_splits)) if observed else one.moves(rows + one.n_rows - end)
            for metric in METRICS:
                values[metric].append(one(metric, part, moves))
        return {metric: np.mean(parts, axis=0) for metric, parts in values.items()}


class _DataSet:
    """Mean difference over the splits of one data set, by metric.

    A function of the metric, of weights [rows, resamples], and of moves [resamples, splits] from equal shares.
    """

    def __init__(self, splits: Sequence[SplitPair]) -> None:
        rows = np.unique(np.concatenate([first["row"].to_numpy() for first, _ in splits]))
        self.n_rows, self.n_splits = len(rows), len(splits)
        self._pairs: dict[str, list[tuple[WeightedMetric, WeightedMetric]]] = {metric: [] for metric in METRICS}
        for first, second in splits:
            if not np.array_equal(first["row"].to_numpy(), second["row"].to_numpy()):
                raise ValueError("the two arms of a split were measured on different rows")
            place = np.searchsorted(rows, first["row"].to_numpy())
            for metric, make in METRICS.items():
                self._pairs[metric].append((make(first, place, len(rows)), make(second, place, len(rows))))
        once = np.ones((self.n_rows, 1))
        self._observed = {
            metric: np.array([float((first(once) - second(once))[0]) for first, second in pairs])
            for metric, pairs in self._pairs.items()
        }

    def __call__(self, metric: str, weights: Array, moves: Array) -> Array:
        observed, pairs = self._observed[metric], self._pairs[metric][:ROW_SPLITS]
        on_drawn_rows = np.mean([first(weights) - second(weights) for first, second in pairs], axis=0)
        return on_drawn_rows + (observed.mean() - observed[:ROW_SPLITS].mean()) + moves @ observed

    def moves(self, rows: NDArray[np.intp]) -> Array:
        """How far the shares of drawn splits lie from equal ones, stretched to Student's spread [resamples, splits].

        The first of the drawn rows [resamples, n_rows], numbers below n_rows, say which splits are drawn: the same
        for the same rows, and as good as independent of the weights.
        """
        n = self.n_splits
        if n == 1:
            return np.zeros((len(rows), 1))
        drawn = rows[:, np.arange(n) % self.n_rows] * n // self.n_rows
        shares = (drawn[:, :, None] == np.arange(n)).mean(axis=1)
        # Splits drawn with replacement spread by (n - 1) / n of the variance of their mean.
        stretch = np.sqrt(n / (n - 1)) * t.ppf(0.975, n - 1) / norm.ppf(0.975)
        return stretch * (shares - 1.0 / n)


WeightedMetric = Callable[[Array], Array]


def _ece(units: Any, place: NDArray[np.intp], n_rows: int) -> WeightedMetric:
    confidence = units["confidence"].to_numpy(dtype=np.float64)
    excess = confidence - units["correct"].to_numpy(dtype=np.float64)
    by_bin = csr_array((excess, (uniform_bins(confidence, N_BINS), place)), shape=(N_BINS, n_rows))
    drawn = _sum_over(place, n_rows)
    return lambda weights: np.abs(by_bin @ weights).sum(axis=0) / drawn(weights)


def _brier(units: Any, place: NDArray[np.intp], n_rows: int) -> WeightedMetric:
    values = np.zeros(n_rows)
    values[place] = units["brier"].to_numpy(dtype=np.float64)
    drawn = _sum_over(place, n_rows)
    return lambda weights: values @ weights / drawn(weights)


def _auroc(units: Any, place: NDArray[np.intp], n_rows: int) -> WeightedMetric:
    """Weighted chance that a right row is more confident than a wrong one.

    Only the levels of confidence at which wrong rows stand matter: right rows are summed between and at them.
    """
    confidence = units["confidence"].to_numpy(dtype=np.float64)
    right = units["correct"].to_numpy(dtype=np.float64) > 0.5
    levels, wrong_level = np.unique(confidence[~right], return_inverse=True)
    n = len(levels)
    slot = 2 * np.searchsorted(levels, confidence[right])
    at_level = np.isin(confidence[right], levels)
    rights = csr_array((np.ones(right.sum()), (slot + at_level, place[right])), shape=(2 * n + 1, n_rows))
    wrongs = csr_array((np.ones((~right).sum()), (wrong_level, place[~right])), shape=(n, n_rows))

    def area(weights: Array) -> Array:
        by_slot, by_level = rights @ weights, wrongs @ weights
        # Slot 2l holds the right rows below level l and above level l - 1, slot 2l + 1 those at level l.
        above = by_slot[::-1].cumsum(axis=0)[::-1]
        won = (by_level * (above[2::2] + 0.5 * by_slot[1::2])).sum(axis=0)
        return won / (by_slot.sum(axis=0) * by_level.sum(axis=0))

    return area


def _sum_over(place: NDArray[np.intp], n_rows: int) -> WeightedMetric:
    present = np.zeros(n_rows)
    present[place] = 1.0
    return lambda weights: present @ weights


METRICS: dict[str, Callable[[Any, NDArray[np.intp], int], WeightedMetric]] = {
    "ece": _ece, "brier": _brier, "auroc": _auroc,
}
