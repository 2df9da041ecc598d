"""Is the front door's answer worth more than always fitting Chinchilla's law?

A table of runs is climbed budget by budget: plan with what lies below, then look at what the budget gave. Neighbouring
budgets are planned from nearly the same runs, so an interval counts two neighbours as one unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from assay import stats
from assay.scaling.plan.charts import study_charts
from assay.scaling.plan.climbing import ARMS, climb, pick
from assay.scaling.plan.rungs import HOME, SCAN, SLICE, TINY, TITLES
from assay.study import Cell, Claim, Measurement, Results, Skip, Step, Study, Tier, Verdict

GADRE_SETS = ("c4_original", "rpj", "rw_original")
FILE = "plans.csv"
BESIDE = ("plan", "chinchilla", "least-fitted", "worst-ranked")  # arms on tables that decide nothing
BLOCK = 2  # neighbouring budgets that count as one unit


class Effort(NamedTuple):
    """How much a tier spends on each plan."""

    starts: int
    refits: int
    holdout: list[float]
    laws: list[str] | None = None


SMOKE = Effort(1, 2, [0.7], ["chinchilla", "power"])
QUICK = Effort(8, 16, [0.7])
FULL = Effort(8, 20, [0.5, 0.7, 0.85])


class PlanStudy(Study):
    """Cells are (table, arm); a step makes the plans of all rungs of a table once, and every arm reads them."""

    def cells(self, tier: Tier) -> Iterable[Cell]:
        if tier is Tier.smoke:
            yield from _cells(SLICE, SMOKE, 1, 1.0)
            return
        effort = QUICK if tier is Tier.quick else FULL
        yield from _cells(TINY, effort, 6, 1.0)
        yield from _cells(SCAN, effort, 8 if tier is Tier.quick else 12, 1.0 if tier is Tier.quick else 0.5)
        if tier is Tier.full:
            for subset in GADRE_SETS:
                yield from _cells("gadre-overtraining", effort, 2, 1.0, subset, arms=BESIDE)
            for name in ("gemstones", "chinchilla-epoch", "nqs-runs"):
                yield from _cells(name, effort, 2, 1.0, arms=BESIDE)

    def needs(self, what: Cell | Step) -> tuple[Step, ...]:
        if isinstance(what, Step):
            return ()
        options = {**what.options, "dataset": what.dataset, "shuffled": what.arm == "shuffled"}
        return (Step("plans", options, data=what.data or (), limit_s=1800.0),)

    def prepare(self, step: Step, have: Mapping[Step, Path], out: Path) -> None:
        table = climb(step.options["dataset"], step.options, step.options["shuffled"])
        if not len(table):
            raise Skip(f"{step.options['dataset']} has no budget with enough smaller runs")
        table.to_csv(out / FILE, index=False)

    def measure(self, cell: Cell, have: Mapping[Step, Path]) -> Measurement:
        (folder,) = have.values()
        words = {name: object for name in ("law", "refused", "chosen")}
        table = pd.read_csv(folder / FILE, dtype=words).fillna({"law": "", "refused": ""})
        if not (table["law"] != "").any():
            raise Skip(f"no rung can be planned: {table['refused'].iloc[0] if len(table) else 'no rung'}")
        picked = pick(cell.arm, table)
        covered = (picked["lowest"] <= picked["best"]) & (picked["best"] <= picked["highest"])
        width = np.log(picked["highest"] / picked["lowest"])
        units = picked[["unit", "rung", "law", "error", "regret", "spread"]].assign(
            covered=covered.astype(float), width=width
        )
        means = {name: float(units[name].mean()) for name in ("error", "regret", "spread", "covered", "width")}
        metrics = {name: value for name, value in means.items() if np.isfinite(value)}
        refused = table.loc[table["law"] == "", "unit"].nunique()
        return Measurement({**metrics, "rungs": float(len(units)), "refused": float(refused)}, units)

    def verdicts(self, results: Results) -> list[Verdict]:
        return [JUDGES[claim.id](claim, results) for claim in self.claims.values()]

    def charts(self, results: Results) -> list[dict[str, Any]]:
        return study_charts(results, TITLES)


def _cells(
    dataset: str, effort: Effort, rungs: int, width: float, subset: str = "", arms: Iterable[str] = tuple(ARMS)
) -> Iterable[Cell]:
    options = {**effort._asdict(), "rungs": rungs, "width": width, "subset": subset}
    for arm in arms:
        yield Cell(dataset, arm, options=options, limit_s=120.0)


def _home(results: Results, arm: str) -> tuple[pd.DataFrame, str]:
    """The arm's rungs on the home tables, with the `block` of neighbours that each is in; and which table has none."""
    here = HOME if any(row.cell.dataset in HOME for row in results) else (SLICE,)
    frames, absent = [], []
    for dataset in here:
        rows = results.where(arm=arm, dataset=dataset).measured
        frames += [row.units.assign(table=dataset) for row in rows if row.units is not None]
        if not rows:
            absent.append(results.missing(arm=arm, dataset=dataset))
    if not frames:
        return pd.DataFrame(), "; ".join(absent)
    units = pd.concat(frames, ignore_index=True)
    return units.assign(block=units["table"] + " " + (units["rung"] // BLOCK).astype(str)), "; ".join(absent)


def _by_block(units: pd.DataFrame, values: pd.Series) -> stats.Interval:
    """Interval of the mean, over blocks of neighbouring budgets."""
    return stats.mean_interval(values.groupby(units["block"]).mean().to_numpy())


def _better_than_chinchilla(claim: Claim, results: Results) -> Verdict:
    (ours, absent), (theirs, missing) = _home(results, claim.arm), _home(results, "chinchilla")
    if absent or missing:
        return claim.untested("; ".join(filter(None, (absent, missing))))
    pairs = ours.merge(theirs, on=["unit", "block"], suffixes=("", "_other"))
    interval = _by_block(pairs, pairs["error"] - pairs["error_other"])
    same = int((pairs["law"] == pairs["law_other"]).sum())
    text = (
        f"mean absolute log error {pairs['error'].mean():.4f} against {pairs['error_other'].mean():.4f} of "
        f"Chinchilla's law, the same law in {same} of {len(pairs)} budgets"
    )
    fitted, _ = _home(results, "least-fitted")
    if len(fitted):
        text += f"; the least fitted error {fitted['error'].mean():.4f}"
    text += _caveat(results, claim.arm) + _beside(results, claim.arm, "error", "chinchilla")
    return claim.judge(interval, text)


def _coverage(claim: Claim, results: Results) -> Verdict:
    units, absent = _home(results, claim.arm)
    if absent:
        return claim.untested(absent)
    hits = int(units["covered"].sum())
    wide = np.expm1(units["width"].median())
    text = f"{hits} of {len(units)} best runs lie within the range, which spans {100 * wide:.2g} % of the loss"
    text += _caveat(results, claim.arm) + _beside(results, claim.arm, "covered")
    found = _by_block(units, units["covered"])
    return claim.judge(replace(found, low=max(0.0, found.low), high=min(1.0, found.high)), text)


def _regret(claim: Claim, results: Results) -> Verdict:
    units, absent = _home(results, claim.arm)
    if absent:
        return claim.untested(absent)
    decided = units[units["regret"].notna()]
    if not len(decided):
        return claim.untested("no budget has runs of two sizes")
    text = f"{len(decided)} of {len(units)} budgets have runs of several sizes"
    others, _ = _home(results, "chinchilla")
    if len(others):
        same = others[others["unit"].isin(decided["unit"])]["regret"]
        text += f"; following Chinchilla's law costs {same.mean():.4f} in {same.notna().sum()} of them"
    text += _caveat(results, claim.arm) + _beside(results, claim.arm, "regret", "chinchilla")
    return claim.judge(_by_block(decided, decided["regret"]), text)


def _caveat(results: Results, arm: str) -> str:
    """That budgets are not independent, and how many were refused a plan and so are in no figure."""
    rows = results.where(lambda cell: cell.dataset in HOME, arm=arm).measured
    count = sum(int(row.metrics.get("refused", 0)) for row in rows)
    nested = "; budgets share their smaller runs: two neighbours are one unit, not fully independent"
    return nested + (f"; {count} more were refused a plan" if count else "")


def _beside(results: Results, arm: str, metric: str, baseline: str = "") -> str:
    """The same figure, and the baseline's, on tables that decide nothing."""
    parts = []
    for row in results.where(arm=arm).measured:
        cell = row.cell
        if cell.dataset in (*HOME, SLICE) or metric not in row.metrics:
            continue
        words = f"{TITLES[cell.dataset]} {cell.options['subset']}".strip() + f" {row.metrics[metric]:.3g}"
        (other,) = results.metric(metric, arm=baseline, dataset=cell.dataset, subset=cell.options["subset"]) or (None,)
        parts.append(words if other is None else f"{words} ({other:.3g})")
    if not parts:
        return ""
    return f"; beside{f' ({baseline})' if baseline else ''}: {', '.join(parts)}"


JUDGES: dict[str, Callable[[Claim, Results], Verdict]] = {
    "p1": _better_than_chinchilla, "p2": _coverage, "p3": _regret,
}
STUDY = PlanStudy
