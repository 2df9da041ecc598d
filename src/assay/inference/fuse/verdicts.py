"""From cells to verdicts: differences of AUC and of best-of-N, with queries drawn again for their intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from assay import stats
from assay.inference.fuse.selection import best_of_n_hits
from assay.stats import Interval
from assay.study import Claim, Results, Row, Verdict, all_of, at_least

__all__ = ["Judge", "auc_difference", "auc_interval", "hits_difference", "hits_interval"]

Array = NDArray[np.float64]

AUC_RESAMPLES = 300
AT_ONCE = 2_000_000
"""Numbers held at once when the AUC of many resamples is computed."""

SETS = ("champ", "digits-pool", "breast-cancer-pool", "judgebench", "bbh")
DECIDE_ACCURACY = ("digits-pool", "breast-cancer-pool", "judgebench", "bbh")
DECIDE_DOMAINS = "bbh"
ONE_DOMAIN = {"one-domain": "one domain's labels", "one-domain-positive": "with weights above zero"}
SHOWN_ONLY = ("planted", "champ-wide")
HOME = ("champ", "digits-pool", "breast-cancer-pool")
LEAST_BLOCKS = 4
"""With fewer verifiers or blocks V is 0 whatever the votes, and can't be called lower."""


Difference = Callable[..., Interval]


class Judge:
    """The verdicts on C1 to C5.

    Verdicts are asked for several times, with a control's rows in the place of an arm's: intervals between the
    same cells are kept.
    """

    def __init__(self, claims: Mapping[str, Claim]) -> None:
        self.claims = claims
        self._known: dict[tuple[int, ...], tuple[tuple[Row, ...], Interval]] = {}

    def __call__(self, results: Results) -> list[Verdict]:
        judges: dict[str, Callable[[Claim, Results, Difference], Verdict]] = {
            "C1": _spectral_below_mean, "C2": _transformation, "C3": _not_below_mean, "C4": _against_few_labels,
            "C5": _mixed_domains,
        }
        return [judges[name](claim, results, self.auc_difference) for name, claim in self.claims.items()]

    def auc_difference(self, *rows: Row) -> Interval:
        """`auc_difference` of the first cell and the others."""
        key = tuple(id(row.units) for row in rows)
        if key not in self._known:
            self._known[key] = (rows, auc_difference(*rows))
        return self._known[key][1]


def _spectral_below_mean(claim: Claim, results: Results, auc: Difference) -> Verdict:
    """Jaffe's estimator has a smaller AUC than the mean of z-scores in at least a share of the sets."""
    parts = []
    for name in _sets(results):
        pair = _pair(results, name, claim.arm, "mean-z")
        parts.append(
            _missing(claim, results, name, claim.arm, "mean-z") if pair is None
            else _judged(claim, name, auc(*pair))
        )
    return _share_of_sets(claim, parts, results)


def _transformation(claim: Claim, results: Results, auc: Difference) -> Verdict:
    """V falls, in the sample and on other queries, and the AUC rises, on every set that decides.

    It must rise above Jaffe's estimator, and above FUSE at the medians and without blocks: FUSE gains on Jaffe's
    by combining graded scores instead of votes as well, and that is not the transformation's doing.
    """
    parts = []
    for name in (n for n in _sets(results) if n in DECIDE_ACCURACY or n not in SETS):
        pair, same = (_pair(results, name, claim.arm, other) for other in ("jaffe", "fuse-untransformed"))
        if pair is None or same is None:
            parts.append(_missing(claim, results, name, claim.arm, "jaffe", "fuse-untransformed"))
            continue
        m = results.where(dataset=name, arm=claim.arm).measured[0].metrics
        kinds = (("violation", "violation_median"), ("violation_held_out", "violation_median_held_out"))
        rises = sum(m[after] >= m[before] for after, before in kinds)
        text = (
            f"{name}: V {m['violation_median']:.3f} to {m['violation']:.3f}, on the other queries "
            f"{m['violation_median_held_out']:.3f} to {m['violation_held_out']:.3f}"
        )
        if min(m["blocks"], m["blocks_held_out"]) < LEAST_BLOCKS:
            lower = claim.untested(f"{text}, but three blocks have a V of 0 whatever the votes")
        else:
            lower = claim.count(rises, 2, text)
        accuracy = _judged(claim, f"{name} against Jaffe's", auc(*pair))
        own = _judged(claim, "against FUSE without the transformation", auc(*same))
        parts.append(all_of(claim, [lower, accuracy, own], f"{lower.reason}; {accuracy.reason}; {own.reason}"))
    return _all_sets(claim, parts, results)


def _not_below_mean(claim: Claim, results: Results, auc: Difference) -> Verdict:
    """AUC no more than a margin below the mean's on every set, and above it on at least a share of them."""
    floors, gains = [], []
    for name in _sets(results):
        pair = _pair(results, name, claim.arm, "mean-z")
        if pair is None:
            floors.append(_missing(claim, results, name, claim.arm, "mean-z"))
            gains.append(floors[-1])
            continue
        gap = auc(*pair)
        floors.append(_judged(claim, name, gap, -claim.limits["margin"]))
        gains.append(_judged(claim, name, gap))
    if not floors:
        return claim.untested("no data set was measured")
    every = all_of(claim, floors)
    some = at_least(claim, gains, math.ceil(claim.limits["share_of_sets"] * len(gains)))
    return all_of(claim, [every, some], f"{_list(gains)}{_absent(results)}")


def _against_few_labels(claim: Claim, results: Results, auc: Difference) -> Verdict:
    """AUC no more than a margin below logistic regression with the labels of 5 % of the queries, on every set."""
    parts = []
    for name in _sets(results):
        ours = _scored(results, name, claim.arm)
        theirs = [row for row in results.where(dataset=name, arm="supervised-5").measured if not row.cell.options]
        if ours is None or not theirs:
            parts.append(_missing(claim, results, name, claim.arm, "supervised-5"))
        else:
            parts.append(_judged(claim, name, auc(ours, *theirs)))
    return _all_sets(claim, parts, results)


def _mixed_domains(claim: Claim, results: Results, auc: Difference) -> Verdict:
    """Best-of-N of query-conditional FUSE above that of regressions with the labels of one domain, on the others.

    Both must be passed: logistic regression, and least squares with no weight below zero.
    """
    shown = [text for name in _sets(results) if (text := _domains_text(claim, results, name))]
    ours = _scored(results, DECIDE_DOMAINS, claim.arm)
    theirs = [list(results.where(dataset=DECIDE_DOMAINS, arm=arm).measured) for arm in ONE_DOMAIN]
    if ours is None or not all(theirs):
        return claim.untested("; ".join([f"{DECIDE_DOMAINS}, which decides it, was not measured", *shown]))
    parts = [claim.judge(hits_difference(ours, *rows)) for rows in theirs]
    return all_of(claim, parts, "; ".join(shown))


def _domains_text(claim: Claim, results: Results, name: str) -> str:
    ours, pooled = _scored(results, name, claim.arm), _scored(results, name, "fuse")
    if ours is None:
        return ""
    beside = "" if pooled is None else f", pooled {pooled.metrics['best_of_n']:.3f}"
    gaps = []
    for arm, title in ONE_DOMAIN.items():
        if theirs := list(results.where(dataset=name, arm=arm).measured):
            gap, others = hits_difference(ours, *theirs), np.mean([row.metrics["best_of_n"] for row in theirs])
            gaps.append(f"{title} {others:.3f}, difference {gap.estimate:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]")
    return f"{name}: best-of-N {ours.metrics['best_of_n']:.3f}{beside}, {', '.join(gaps)}" if gaps else ""


def auc_difference(ours: Row, *theirs: Row) -> Interval:
    """AUC of one cell less the mean AUC of others on the items that each of them may be judged on, by query."""
    tables = [_AucPair(_Items(ours.units), _Items(row.units)) for row in theirs]

    def statistic(draws: NDArray[np.intp]) -> float | Array:
        values = np.mean([table(np.atleast_2d(draws)) for table in tables], axis=0)
        return values if np.ndim(draws) > 1 else float(values[0])

    return stats.bootstrap(statistic, tables[0].n_queries, n_resamples=AUC_RESAMPLES)


def hits_difference(ours: Row, *theirs: Row) -> Interval:
    """Best-of-N of one cell less the mean of others, on the queries that each may be judged on, by query."""
    gaps = []
    for row in theirs:
        mine, other = _Items(ours.units), _Items(row.units)
        gap = mine.hits() - other.hits()
        gaps.append(np.where(other.query_used(), gap, np.nan))
    table = np.array(gaps)

    def statistic(draws: NDArray[np.intp]) -> float | Array:
        with np.errstate(invalid="ignore"):
            values = np.nanmean(np.nanmean(table[:, draws], axis=-1), axis=0)
        return values if np.ndim(draws) > 1 else float(values)

    return stats.bootstrap(statistic, table.shape[1])


def auc_interval(row: Row) -> Interval:
    """AUC of one cell, by query."""
    items = _Items(row.units)
    side, n_queries = _Sorted(items, items.used), int(items.query.max()) + 1

    def statistic(draws: NDArray[np.intp]) -> float | Array:
        values = _by_part(lambda times: side.auc(times), np.atleast_2d(draws), n_queries, side.size)
        return values if np.ndim(draws) > 1 else float(values[0])

    return stats.bootstrap(statistic, n_queries, n_resamples=AUC_RESAMPLES)


def hits_interval(row: Row) -> Interval:
    """Best-of-N of one cell, by query."""
    return stats.mean_interval(_Items(row.units).hits())


@dataclass
class _Items:
    """The items of a cell as arrays."""

    units: pd.DataFrame

    def __post_init__(self) -> None:
        self.query = self.units["query"].to_numpy(dtype=np.intp)
        self.label = self.units["label"].to_numpy(dtype=float)
        self.score = self.units["score"].to_numpy(dtype=float)
        self.used = self.units["used"].to_numpy(dtype=bool)

    def hits(self) -> Array:
        return best_of_n_hits(self.score, self.label.astype(np.intp), self.query)

    def query_used(self) -> NDArray[np.bool_]:
        return np.bincount(self.query, self.used) > 0


class _AucPair:
    """Difference of two AUCs for many resamples of the queries at once."""

    def __init__(self, ours: _Items, theirs: _Items) -> None:
        self.n_queries = int(ours.query.max()) + 1
        used = ours.used & theirs.used
        self.sides = [_Sorted(items, used) for items in (ours, theirs)]

    def __call__(self, draws: NDArray[np.intp]) -> Array:
        ours, theirs = self.sides
        return _by_part(lambda times: ours.auc(times) - theirs.auc(times), draws, self.n_queries, ours.size)


def _by_part(
    value: Callable[[NDArray[np.intp]], Array], draws: NDArray[np.intp], n_queries: int, n_items: int
) -> Array:
    """The value for how often each query was drawn, for so many resamples at a time as memory allows."""
    step = max(1, AT_ONCE // n_items)
    parts = (draws[begin : begin + step] for begin in range(0, len(draws), step))
    counted = (np.stack([np.bincount(draw, minlength=n_queries) for draw in part]) for part in parts)
    return np.concatenate([value(times) for times in counted])


class _Sorted:
    """The wrong items in order of their score, and for each right one how many of them lie below it."""

    def __init__(self, items: _Items, used: NDArray[np.bool_]) -> None:
        right, wrong = used & (items.label == 1), used & (items.label == 0)
        order = np.argsort(items.score[wrong], kind="stable")
        scores = items.score[wrong][order]
        self.size = int(used.sum())
        self.wrong, self.right = items.query[wrong][order], items.query[right]
        self.below = np.searchsorted(scores, items.score[right], side="left")
        self.up_to = np.searchsorted(scores, items.score[right], side="right")

    def auc(self, times: NDArray[np.intp]) -> Array:
        """AUC with the items of each query counted as often as the query was drawn; NaN with one class only."""
        passed = np.zeros((len(times), len(self.wrong) + 1))
        np.cumsum(times[:, self.wrong], axis=1, out=passed[:, 1:])
        right = times[:, self.right]
        won = (right * (passed[:, self.below] + passed[:, self.up_to])).sum(axis=1) / 2
        with np.errstate(invalid="ignore", divide="ignore"):
            return won / (right.sum(axis=1) * passed[:, -1])


def _judged(claim: Claim, name: str, gap: Interval, threshold: float | None = None) -> Verdict:
    return claim.judge(gap, f"{name}: AUC {gap.estimate:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}]", threshold=threshold)


def _sets(results: Results) -> list[str]:
    """Data sets that claims count: those of the home set, and what else was measured; a user's file."""
    here = set(results.datasets)
    names = dict.fromkeys(row.cell.dataset for row in results)
    return [name for name in names if (name in here or name in HOME) and name not in SHOWN_ONLY]


def _scored(results: Results, name: str, arm: str) -> Row | None:
    """The cell of an arm on a whole data set."""
    rows = [row for row in results.where(dataset=name, arm=arm).measured if not row.cell.options]
    return rows[0] if rows else None


def _pair(results: Results, name: str, ours: str, theirs: str) -> tuple[Row, Row] | None:
    first, second = _scored(results, name, ours), _scored(results, name, theirs)
    return None if first is None or second is None else (first, second)


def _missing(claim: Claim, results: Results, name: str, *arms: str) -> Verdict:
    """Untested, naming the cells that are not there."""
    reasons = [
        results.where(lambda cell: not cell.options).missing(dataset=name, arm=arm) or f"{name}: no cell of {arm}"
        for arm in arms if _scored(results, name, arm) is None
    ]
    return claim.untested("; ".join(reasons))


def _share_of_sets(claim: Claim, parts: list[Verdict], results: Results) -> Verdict:
    if not parts:
        return claim.untested("no data set was measured")
    needed = math.ceil(claim.limits["share_of_sets"] * len(parts))
    return at_least(claim, parts, needed, f"{_list(parts)}; {needed} of {len(parts)} needed{_absent(results)}")


def _all_sets(claim: Claim, parts: list[Verdict], results: Results) -> Verdict:
    if not parts:
        return claim.untested(f"no data set that decides this was measured{_absent(results)}")
    return all_of(claim, parts, f"{_list(parts)}{_absent(results)}")


def _list(parts: list[Verdict]) -> str:
    return "; ".join(part.reason for part in parts)


def _absent(results: Results) -> str:
    here = set(results.datasets)
    absent = [name for name in dict.fromkeys(row.cell.dataset for row in results) if name not in here]
    return f"; not measured: {', '.join(absent)}" if absent else ""
