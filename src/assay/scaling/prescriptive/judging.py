"""From measured cells to verdicts, one judge a claim: the home tables decide, the leaderboard stands beside them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from assay.scaling.prescriptive.arms import LEVEL
from assay.scaling.prescriptive.tables import CLIP, DIGITS, LEADERBOARD, SLICE, TITLES
from assay.scaling.prescriptive.tasks import covered
from assay.stats import Interval, bootstrap, mean_interval
from assay.study import Claim, Outcome, Results, Row, Verdict, all_of, at_least

__all__ = ["judged"]

Judge = Callable[[Claim, Results, tuple[str, ...]], Verdict]
Statistic = Callable[[np.ndarray, np.ndarray], np.ndarray]
Both = tuple[np.ndarray, np.ndarray]
Pairs = list[tuple[Row, Row]]  # of each table: the smoothed and the unsmoothed fit
HOMES = (CLIP, DIGITS)
MATH = "math_lvl5"
RESAMPLES = 1000
BESIDE = {
    "constant": "times the constant quantile's", "unpenalised-exact": "times its own without penalty and smoothing",
}
SHARE = 0.2


def judged(claim: Claim, results: Results) -> Verdict:
    """The verdict of a claim: of the home tables, with the leaderboard's as a part beside it where it was measured."""
    judge = JUDGES[claim.id]
    beside = _beside(claim, results, judge)
    if claim.id in LEADERBOARD_ONLY:
        verdict = claim.untested(f"untested at home: {LEADERBOARD_ONLY[claim.id]}")
    elif results.where(dataset=SLICE):
        verdict = judge(claim, results, (SLICE,))
    else:
        verdict = judge(claim, results, HOMES)
    if beside is None:
        return verdict
    text = f"{verdict.reason} (beside it, on {TITLES[LEADERBOARD]}: {beside.outcome}, {beside.reason})"
    return replace(verdict, reason=text, parts=(*verdict.parts, beside))


def _beside(claim: Claim, results: Results, judge: Judge) -> Verdict | None:
    if not results.where(dataset=LEADERBOARD).measured:
        return None
    verdict = judge(claim, results, (LEADERBOARD,))
    return None if verdict.outcome is Outcome.untested else verdict


def _each(judge: Callable[[Claim, Results, str], Verdict]) -> Judge:
    """A judge of several tables, of which every one must hold."""

    def judge_all(claim: Claim, results: Results, datasets: tuple[str, ...]) -> Verdict:
        if len(datasets) == 1:
            return judge(claim, results, datasets[0])
        parts = [judge(claim, results, dataset) for dataset in datasets]
        return all_of(claim, [part for whole in parts for part in (whole.parts or (whole,))])

    return judge_all


def _judge_s1(claim: Claim, results: Results, dataset: str) -> Verdict:
    """Macro error of coverage of the later models, task by task; most tasks must stay below the threshold."""
    row, missing = _row(results, dataset, claim.arm)
    if row is None:
        return claim.untested(missing)
    parts = []
    for task, units in _tests(row):
        interval = _by_unit(units, lambda n, below: np.nanmean(np.abs(below / n - LEVEL), axis=1))
        share = covered(units)[1]
        reason = f"{task}: macro error {interval.estimate:.3f}, {share:.1%} of the later models covered"
        parts.append(claim.judge(interval, reason))
    return at_least(claim, parts, round(claim.limits["tasks"]))


def _judge_s2(claim: Claim, results: Results, dataset: str) -> Verdict:
    """Later models above the old boundary: more than expected in mathematics, not so in most other tasks.

    p goes by base models drawn whole, with the boundary refitted to each draw: it errs as well.
    """
    row, missing = _row(results, dataset, claim.arm)
    if row is None:
        return claim.untested(missing)
    bands, missing = _row(results, dataset, claim.arm, "bands")
    if bands is None:
        return claim.untested(missing)
    p = {task: bands.metrics.get(f"{task}: p_refit", math.nan) for task, _ in _tests(row)}
    if MATH not in p:
        return claim.untested(f"{TITLES[dataset]} holds no task called {MATH}")
    binomial = {task: row.metrics[f"{task}: p_binomial"] for task in p}
    still = [task for task, value in p.items() if task != MATH and not value < claim.limits["p"]]
    listed = ", ".join(
        f"{task} {row.metrics[f'{task}: above']:.1%} (p {p[task]:.2g} by base model, {binomial[task]:.2g} by row)"
        for task in p
    )
    reason = f"{TITLES[dataset]}: above the old boundary: {listed}"
    units = next(rows for task, rows in _tests(row) if task == MATH)
    interval = _by_unit(units, lambda n, below: 1 - below.sum(axis=1) / n.sum(axis=1))
    verdict = claim.judge(interval, reason)
    if verdict.outcome is Outcome.holds and (not p[MATH] < claim.limits["p"] or len(still) < claim.limits["others"]):
        return replace(verdict, outcome=Outcome.fails if p[MATH] < claim.limits["p"] else Outcome.unclear)
    return verdict


def _judge_s3(claim: Claim, results: Results, dataset: str) -> Verdict:
    """Mean over the tasks of the ratio of pinball losses on tested models, to each rival."""
    own, missing = _row(results, dataset, claim.arm)
    rivals = {"bin-wise": claim.threshold, "i-spline": claim.limits["i_spline"]}
    found = {rival: _row(results, dataset, rival) for rival in rivals}
    absent = "; ".join(filter(None, (missing, *(text for _, text in found.values()))))
    if own is None or absent:
        return claim.untested(absent)
    beside = ""
    for arm, words in BESIDE.items():
        row, _ = _row(results, dataset, arm)
        if row is not None:
            beside += f"; {_mean_ratio(own, row).estimate:.3f} {words}"
    parts = []
    for rival, limit in rivals.items():
        row = found[rival][0]
        assert row is not None
        interval = _mean_ratio(own, row)
        reason = f"{TITLES[dataset]}: {interval.estimate:.3f} times the pinball loss of {rival}{beside}"
        parts.append(claim.judge(interval, reason, threshold=limit))
        beside = ""
    return all_of(claim, parts)


def _judge_s4(claim: Claim, results: Results, dataset: str) -> Verdict:
    """Coverage with a fifth of the cost beside that of all models, and the curve's distance beside chance's."""
    which: dict[str, dict[str, Any]] = {
        arm: {"dataset": dataset, "arm": arm, "task": "design", "share": SHARE} for arm in (claim.arm, "random")
    }
    missing = "; ".join(filter(None, (results.missing(**cells) for cells in which.values())))
    if missing:
        return claim.untested(missing)
    ours, chance = (results.where(**cells).measured[0].units for cells in which.values())
    ours, chance = (units.sort_values(["task", "seed"], ignore_index=True) for units in (ours, chance))
    change = (ours["error"] - ours["error_full"]).abs()
    better = (ours["gap"] < chance["gap"]).astype(float)
    title = TITLES[dataset]
    close = (
        f"{title}: the macro error changes by {change.mean():.4f} on average, with {ours['models'].mean():.0f} models "
        f"(chance: {(chance['error'] - chance['error_full']).abs().mean():.4f}, with {chance['models'].mean():.0f})"
    )
    nearer = (
        f"{title}: nearer to the full boundary than chance in {better.mean():.0%} of the draws "
        f"(distances {ours['gap'].mean():.3f} and {chance['gap'].mean():.3f})"
    )
    return all_of(claim, [
        claim.judge(_wider(change, ours), close),
        replace(claim, side="above").judge(_wider(better, ours), nearer, threshold=claim.limits["better"]),
    ])


def _judge_s5(claim: Claim, results: Results, datasets: tuple[str, ...]) -> Verdict:
    """In-sample coverage with and without smoothing, table by table; and whether both call the same tasks stable.

    The second is judged over the tasks of all tables together: of a table with one task a share says nothing.
    """
    pairs: Pairs = []
    missing = []
    for dataset in datasets:
        smooth, exact = (_row(results, dataset, arm) for arm in (claim.arm, "exact"))
        missing += [text for row, text in (smooth, exact) if row is None]
        if smooth[0] is not None and exact[0] is not None:
            pairs.append((smooth[0], exact[0]))
    if missing:
        return claim.untested("; ".join(missing))
    parts = [_covered_alike(claim, dataset, pair) for dataset, pair in zip(datasets, pairs, strict=True)]
    return all_of(claim, [*parts, _called_alike(claim, datasets, pairs)])


def _covered_alike(claim: Claim, dataset: str, pair: tuple[Row, Row]) -> Verdict:
    difference = _pooled([pair], "fit", lambda a, b: np.abs(a[1] - b[1]).mean(axis=1))
    smooth, exact = (
        np.mean([value for name, value in row.metrics.items() if name.endswith(": coverage_fit")]) for row in pair
    )
    return claim.judge(
        difference,
        f"{TITLES[dataset]}: covered in sample {smooth:.1%} with kappa 50 and {exact:.1%} without smoothing, where "
        f"{LEVEL:.0%} is meant",
    )


def _called_alike(claim: Claim, datasets: tuple[str, ...], pairs: Pairs) -> Verdict:
    stable, limit = claim.limits["stable"], claim.limits["same"]
    agreement = _pooled(pairs, "test", lambda a, b: ((a[0] < stable) == (b[0] < stable)).mean(axis=1))
    tasks = sum(len(_tests(smooth)) for smooth, _ in pairs)
    reason = f"both call the same tasks stable in {agreement.estimate:.0%} of {tasks} on {_listed(datasets)}"
    if math.isinf(agreement.low) and agreement.n >= 3 and tasks > 1:
        # A count that no draw of the units changes is as sure as they can make it.
        agreement = replace(agreement, low=agreement.estimate, high=agreement.estimate)
    verdict = replace(claim, side="above").judge(agreement, reason, threshold=limit)
    if verdict.outcome is Outcome.unclear and agreement.low >= limit:  # "at least" counts equality
        return replace(verdict, outcome=Outcome.holds)
    return verdict


def _listed(datasets: tuple[str, ...]) -> str:
    return " and ".join(TITLES[dataset] for dataset in datasets)


def _row(results: Results, dataset: str, arm: str, task: str = "predict") -> tuple[Row | None, str]:
    which: dict[str, Any] = {"dataset": dataset, "arm": arm, "task": task}
    rows = results.where(**which).measured
    return (rows[0] if rows else None), results.missing(**which)


def _tests(row: Row) -> list[tuple[str, pd.DataFrame]]:
    return [(str(task), units) for task, units in _of_kind(row, "test").groupby("task", sort=False)]


def _by_unit(units: pd.DataFrame, statistic: Statistic) -> Interval:
    """Interval of a statistic of one task's counts by bin (all, and on or below the curve), whole units drawn."""
    counts, below = (_matrix(units, column, ["bin"]).to_numpy(float) for column in ("n", "below"))
    return _resampled(len(counts), lambda drawn: statistic(drawn @ counts, drawn @ below))


def _mean_ratio(ours: Row, theirs: Row) -> Interval:
    """Mean over the tasks of the ratio of summed losses on the same tested models, whole units drawn."""
    tables = [_matrix(_of_kind(row, "test"), "loss", ["task"]) for row in (ours, theirs)]
    first, second = (table.reindex_like(tables[0]).fillna(0).to_numpy(float) for table in tables)
    return _resampled(len(first), lambda drawn: ((drawn @ first) / (drawn @ second)).mean(axis=1))


def _pooled(pairs: Pairs, kind: str, statistic: Callable[[Both, Both], np.ndarray]) -> Interval:
    """Interval of a statistic of both arms' macro errors and shares covered by task, the same units drawn for both.

    Tasks and units of several tables are put side by side: a unit counts in its own table's tasks alone.
    """
    ours, theirs = (
        pd.concat(_named(_of_kind(pair[arm], kind), str(i)) for i, pair in enumerate(pairs)) for arm in (0, 1)
    )
    table = _matrix(ours, "n", ["task", "bin"])
    counts = table.to_numpy(float)
    below = [
        _matrix(units, "below", ["task", "bin"]).reindex_like(table).fillna(0).to_numpy(float)
        for units in (ours, theirs)
    ]
    names = table.columns.get_level_values("task")
    tasks = [np.flatnonzero(names == task) for task in names.unique()]

    def of_arm(drawn: np.ndarray, covered_counts: np.ndarray) -> Both:
        total, under = drawn @ counts, drawn @ covered_counts
        with np.errstate(divide="ignore", invalid="ignore"):
            errors = np.abs(under / total - LEVEL)
        macro = np.stack([np.nanmean(errors[:, t], axis=1) for t in tasks], axis=1)
        return macro, np.stack([under[:, t].sum(axis=1) / total[:, t].sum(axis=1) for t in tasks], axis=1)

    return _resampled(len(counts), lambda drawn: statistic(of_arm(drawn, below[0]), of_arm(drawn, below[1])))


def _resampled(n: int, statistic: Callable[[np.ndarray], np.ndarray]) -> Interval:
    """Interval of a statistic of how often each of `n` units is drawn, shape (resamples, n) to (resamples,)."""

    def of_rows(rows: Any) -> Any:
        index = np.atleast_2d(rows)
        flat = (index + n * np.arange(len(index))[:, None]).ravel()
        drawn = np.bincount(flat, minlength=n * len(index)).reshape(-1, n).astype(float)
        with np.errstate(divide="ignore", invalid="ignore"):
            values = statistic(drawn)
        return values if np.ndim(rows) == 2 else float(values[0])

    return bootstrap(of_rows, n, n_resamples=RESAMPLES)


def _named(units: pd.DataFrame, table: str) -> pd.DataFrame:
    return units.assign(task=table + " " + units["task"], unit=table + " " + units["unit"].astype(str))


def _of_kind(row: Row, kind: str) -> pd.DataFrame:
    assert row.units is not None
    return row.units[row.units["kind"] == kind]


def _matrix(units: pd.DataFrame, column: str, columns: list[str]) -> pd.DataFrame:
    """A matrix of sums, one row a unit and one column a task (or a task's bin), both in rising order."""
    return units.pivot_table(index="unit", columns=columns, values=column, aggfunc="sum", sort=True).fillna(0)


def _wider(values: pd.Series, rows: pd.DataFrame) -> Interval:
    """The interval of a mean over tasks or over seeds, whichever is wider; over seeds where there is one task."""
    over_seeds = mean_interval(values.groupby(rows["seed"]).mean().to_numpy())
    if rows["task"].nunique() < 2:
        return over_seeds
    over_tasks = mean_interval(values.groupby(rows["task"]).mean().to_numpy())
    return max(over_seeds, over_tasks, key=lambda interval: interval.high - interval.low)


LEADERBOARD_ONLY = {
    "s1": "it speaks of language-model benchmarks over time, which takes the authors' leaderboard; our digit networks "
    "change recipe from period to period on purpose",
    "s2": "it speaks of a mathematics benchmark over time, which takes the authors' leaderboard",
}
JUDGES: dict[str, Judge] = {
    "s1": _each(_judge_s1), "s2": _each(_judge_s2), "s3": _each(_judge_s3), "s4": _each(_judge_s4), "s5": _judge_s5,
}
