"""From measured cells to verdicts: one judge a claim, the power-law problems of the quick tier decide."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from assay.scaling.low_precision.tasks import GAUSSIAN
from assay.stats import Interval, mean_interval
from assay.study import Cell, Claim, Outcome, Results, Row, Verdict, all_of

__all__ = ["judged"]

TASK_OF = {"q1": "width", "q2": "width", "q3": "data", "q4": "floor", "q5": "law", "q6": "width", "q7": "data"}
SPOKEN = 8  # parts that a reason spells out
RIVALS = ("kumar", "chinchilla")
WHERE: dict[Any, str] = {"samples": "at the largest number of samples", "unlimited": "with unlimited samples"}
RATIOS = {
    "equal": "full precision has the same risk with",
    "remainder": "full precision is as far from its own limit with",
}


def judged(claim: Claim, results: Results) -> Verdict:
    """The verdict of a claim, or untested where a cell that decides it is missing."""
    task = TASK_OF[claim.id]
    rows = results.where(_decides, arm=claim.arm, task=task)
    if not len(rows):
        return claim.untested(f"no cell of a power-law problem with the arm {claim.arm} and the task {task}")
    if missing := rows.missing():
        return claim.untested(missing)
    if claim.id == "q5":
        return _judge_law(claim, list(rows), results)
    verdict = JUDGES[claim.id](claim, list(rows))
    beside = results.where(lambda cell: cell.dataset != GAUSSIAN, arm=claim.arm, task=task).measured
    if not len(beside):
        return verdict
    other = JUDGES[claim.id](claim, list(beside))
    text = f"{verdict.reason} (beside it, on digits behind ReLU features, {other.outcome}: {other.reason})"
    return Verdict(
        verdict.claim, verdict.outcome, text, threshold=verdict.threshold, n=verdict.n, parts=(*verdict.parts, other)
    )


def _decides(cell: Cell) -> bool:
    """Power-law problems that every task is measured on; other spectra and quantities of the full tier stand beside."""
    options: dict[str, Any] = dict(cell.options)
    return (
        cell.dataset == GAUSSIAN and options.get("a") == 1.5 and options.get("b") in (1.5, 2.0)
        and options.get("quantities") == ["data"] and "batch" not in options
    )


def _judge_multiplicative(claim: Claim, rows: list[Row], where: str) -> Verdict:
    """The slope along the size is that of full precision, at every step, and the largest model is the best."""
    parts = []
    for row in rows:
        own = _units(row)
        for eps, units in own[own["where"] == where].groupby("eps"):
            found = mean_interval(units["slope"] / units["slope_full"] - 1)
            text = (
                f"{_name(row.cell)}, eps {eps:g} {WHERE[where]}: slope {units['slope'].mean():.3f} "
                f"against {units['slope_full'].mean():.3f}, risk at the largest size "
                f"{units['ratio_last'].mean():.2f} times full precision"
            )
            parts.append(claim.judge(_away(found, 0.0), text))
            rise = mean_interval(units["rise"])
            text = f"{_name(row.cell)}, eps {eps:g} {WHERE[where]}: the last doubling changes the risk by"
            text += f" {math.expm1(rise.estimate):+.1%}"
            parts.append(claim.judge(rise, text, threshold=claim.limits["no_rise"]))
    return _all(claim, parts)


def _judge_additive(claim: Claim, rows: list[Row]) -> Verdict:
    """The equivalent size falls as eps**(-1/a), and at the coarsest step the last doubling raises the risk."""
    parts = []
    for row in rows:
        units = _units(row)
        a = float(dict(row.cell.options).get("a", math.nan))
        for where in WHERE:
            own = units[units["where"] == where]
            table = own.pivot(index="seed", columns="eps", values="log_equivalent")
            slopes = np.polyfit(np.log(table.columns.to_numpy(dtype=float)), table.to_numpy().T, 1)[0]
            sizes = ", ".join(f"{math.exp(value):.0f} at {eps:g}" for eps, value in table.mean().items())
            text = f"{_name(row.cell)} {WHERE[where]}: equivalent sizes {sizes}, exponent {slopes.mean():.3f}"
            if math.isnan(a):
                parts.append(Verdict(claim.id, Outcome.untested, f"{text}; its spectrum is no power law"))
                continue
            parts.append(claim.judge(_away(mean_interval(a * slopes), -1.0), f"{text} of {-1 / a:.3f}"))
        coarsest = units[(units["where"] == "samples") & (units["eps"] == units["eps"].max())]
        rise = mean_interval(coarsest["rise"])
        fall = Interval(-rise.estimate, -rise.high, -rise.low, rise.n)
        text = f"{_name(row.cell)}, eps {units['eps'].max():g}: the last doubling of the size changes the risk by"
        text += f" {math.expm1(rise.estimate):+.1%}"
        parts.append(claim.judge(fall, text, threshold=claim.limits["no_rise"]))
    return _all(claim, parts)


def _judge_data(claim: Claim, rows: list[Row], name: str) -> Verdict:
    """One ratio of samples below 1, in both modes."""
    parts = []
    for row in rows:
        for mode, units in _units(row).groupby("mode"):
            ratio = _exp(mean_interval(np.log(units[name])))
            text = f"{_name(row.cell)}, {mode}: {RATIOS[name]} {ratio.estimate:.3f} of the samples"
            parts.append(claim.judge(ratio, text))
    return _all(claim, parts)


def _judge_floor(claim: Claim, rows: list[Row]) -> Verdict:
    """The excess over full precision grows as the step, in both modes."""
    parts = []
    for row in rows:
        for mode, units in _units(row).groupby("mode"):
            found = mean_interval(units["slope"])
            text = (
                f"{_name(row.cell)}, {mode}: slope {found.estimate:.2f} ({units['slope_read'].mean():.2f} in the "
                f"paper's risk on quantised features, {units['slope_unlimited'].mean():.2f} with unlimited samples)"
            )
            parts.append(claim.judge(_away(found, 1.0), text))
    return _all(claim, parts)


def _judge_law(claim: Claim, rows: list[Row], results: Results) -> Verdict:
    """Held-out error over that of the better rival, on the same sketches."""
    parts = []
    for row in rows:
        same = results.where(_decides, task="law", b=row.cell.options["b"])
        rivals = [same.where(arm=arm) for arm in RIVALS]
        missing = [rival.missing() if len(rival) else "no rival" for rival in rivals]
        if any(missing):
            return claim.untested("; ".join(filter(None, missing)))
        floor = same.where(arm="floor-only").measured
        for mode, units in _units(row).groupby("mode"):
            theirs = {arm: _errors(rival[0], str(mode)) for arm, rival in zip(RIVALS, rivals, strict=True)}
            best = min(theirs, key=lambda arm: theirs[arm].mean())
            own = units.set_index("seed")["error"]
            ratio = _exp(mean_interval(np.log(own / theirs[best])))
            text = (
                f"{_name(row.cell)}, {mode}: held-out error {own.mean():.1%} against {theirs[best].mean():.1%} of "
                f"{best}"
                + (f", {_errors(floor[0], str(mode)).mean():.1%} with a floor alone" if len(floor) else "")
            )
            parts.append(claim.judge(ratio, text))
    return _all(claim, parts)


JUDGES: dict[str, Callable[[Claim, list[Row]], Verdict]] = {
    "q1": partial(_judge_multiplicative, where="samples"), "q2": _judge_additive,
    "q3": partial(_judge_data, name="equal"), "q4": _judge_floor,
    "q6": partial(_judge_multiplicative, where="unlimited"), "q7": partial(_judge_data, name="remainder"),
}


def _all(claim: Claim, parts: list[Verdict]) -> Verdict:
    """All parts; the reason names those that don't hold, and how many do, or all where they are few."""
    order = {Outcome.fails: 0, Outcome.unclear: 1, Outcome.untested: 2, Outcome.holds: 3}
    spoken = sorted(parts, key=lambda part: order[part.outcome])
    if len(spoken) > SPOKEN:
        spoken = [part for part in spoken if part.outcome is not Outcome.holds][:SPOKEN] or spoken[:SPOKEN]
    held = sum(part.outcome is Outcome.holds for part in parts)
    text = f"{held} of {len(parts)} parts hold: " + "; ".join(f"{part.reason} [{part.outcome}]" for part in spoken)
    return all_of(claim, parts, text)


def _errors(row: Row, mode: str) -> pd.Series:
    units = _units(row)
    return units[units["mode"] == mode].set_index("seed")["error"]


def _away(found: Interval, target: float) -> Interval:
    """The distance of an estimate from a target: its interval reaches as far as the estimate's does on either side."""
    low, high = found.low - target, found.high - target
    nearest = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
    return Interval(abs(found.estimate - target), nearest, max(abs(low), abs(high)), found.n)


def _exp(found: Interval) -> Interval:
    """An interval of a logarithm as one of the number."""
    low, estimate, high = (math.exp(min(700.0, value)) for value in (found.low, found.estimate, found.high))
    return Interval(estimate, low, high, found.n)


def _units(row: Row) -> pd.DataFrame:
    if row.units is None:
        raise LookupError(f"{row.cell.label()}: measured without units")
    return row.units


def _name(cell: Cell) -> str:
    options: dict[str, Any] = dict(cell.options)
    return f"b = {options['b']:g}" if "b" in options else "digits"
