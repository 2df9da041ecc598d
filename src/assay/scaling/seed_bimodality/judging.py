"""From measured populations to verdicts: one judge a claim, a part for each population that decides it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from assay.scaling.seed_bimodality.distribution import BIC
from assay.scaling.seed_bimodality.measuring import ALPHA, USABLE_SCALES
from assay.stats import Interval
from assay.study import Claim, Outcome, Results, Row, Verdict, all_of

__all__ = ["COUNT", "DIGITS", "PARITY", "SLICE", "SLOWER", "TABLE", "TITLES", "TRAINED", "judged"]

TRAINED, SLOWER, TABLE = "parity-trained", "parity-slower", "seed-populations"
SLICE = "seed-populations-smoke"
PARITY, COUNT, DIGITS = ("parity",), ("count-64", "count-32"), ("digits",)
TITLES = {
    (TRAINED, "parity"): "parity, trained here", (TABLE, "parity"): "parity, the table",
    (SLOWER, "parity"): "parity, trained here at the rate 0.1",
    (SLICE, "parity"): "parity, slice",
    (TABLE, "count-64"): "counting", (TABLE, "digits"): "digits with 40 labels",
}
END = 4800


def judged(claim: Claim, results: Results) -> Verdict:
    """The verdict of a claim, or untested where a population that decides it is missing."""
    small = bool(results.where(dataset=SLICE))
    populations: list[tuple[str, tuple[str, ...]]] = [(TRAINED, PARITY), (TABLE, PARITY)]
    if claim.id in ("b1", "b5"):
        populations.append((TABLE, COUNT))
    parts = []
    for dataset, tasks in [(SLICE, PARITY)] if small else populations:
        which: dict[str, Any] = {"dataset": dataset, "arm": claim.arm, "task": "population", "tasks": list(tasks)}
        if missing := results.missing(**which):
            return claim.untested(missing)
        parts.append(JUDGES[claim.id](claim, list(results.where(**which))))
    verdict = all_of(claim, parts)
    return verdict if len(parts) > 1 else parts[0]


def _judge_two_modes(claim: Claim, rows: list[Row]) -> Verdict:
    """At the end of training: a scale at which both tests speak for two modes. That none does proves nothing."""
    what = "loss" if claim.id == "b5" else "score"
    row = _end(rows)
    m, seeds = row.metrics, row.metrics["seeds"]
    early = [f"{_found(r, what)} at {r.cell.options['steps']} steps" for r in rows if r is not row]
    reason = f"{_name(row)}: {_found(row, what)}, {seeds:.0f} seeds"
    reason += f" (along the way {', '.join(early)})" if early else ""
    outcome = Outcome.holds if m[f"{what}_bimodal"] else Outcome.unclear
    if outcome is Outcome.unclear:
        reason += f"; smallest p before Holm's adjustment {m[f'{what}_smallest_p']:.2g}: not found is not refuted"
    elif seeds < claim.limits["seeds"]:
        outcome, reason = Outcome.unclear, f"{reason}; at least {claim.limits['seeds']:.0f} seeds are needed"
    else:
        reason += f"; e.g. at {m[f'{what}_scale']:g}, p {m[f'{what}_p']:.2g} after Holm, BIC {m[f'{what}_bic']:+.0f}"
    return Verdict(claim.id, outcome, reason, effect=m[f"{what}_p"], threshold=claim.threshold, n=int(seeds))


def _found(row: Row, what: str) -> str:
    groups = "scales" if row.cell.options["tasks"] == list(PARITY) else "groups (width and answer length)"
    return f"{row.metrics[f'{what}_bimodal']:.0f} of {row.metrics['groups']:.0f} {groups} bimodal in the {what}"


def _judge_paths(claim: Claim, rows: list[Row]) -> Verdict:
    """On the longest training at which enough scales lie off the bounds."""
    usable = [row for row in rows if row.metrics.get("usable_scales", 0) >= USABLE_SCALES]
    if not usable:
        most = max(row.metrics.get("usable_scales", 0) for row in rows)
        reason = f"{_name(rows[0])}: {most:.0f} scales with most seeds off the bounds, {USABLE_SCALES} are needed"
        return Verdict(claim.id, Outcome.unclear, reason, threshold=claim.threshold)
    row = max(usable, key=lambda r: r.cell.options["steps"])
    m = row.metrics
    where = f"{_name(row)} at {row.cell.options['steps']} steps, {m['usable_scales']:.0f} scales"
    return all_of(claim, [
        claim.judge(_interval(m, "sharp"), f"{where}: {m['sharp']:.0%} of paths sharper than the null's .9 quantile"),
        claim.judge(_interval(m, "smooth"), f"{m['smooth']:.0%} smoother than its median"),
    ])


def _judge_curve(claim: Claim, rows: list[Row]) -> Verdict:
    """Two modes at the jump; the logistic curve preferred to the step; it rises, by more than one step of scale
    between few and most, and makes most of the mean's rise."""
    row = _end(rows)
    m = row.metrics
    if "gain" not in m:
        return claim.untested(f"{_name(row)}: no curve over fewer than three scales")
    if not _split_at_the_jump(row):
        reason = f"{_name(row)}: no two modes where the median jumps, and so no share of one of them that could change"
        return Verdict(claim.id, Outcome.unclear, reason, threshold=claim.threshold)
    reason = (
        f"{_name(row)}: AIC of the step less that of the curve {m['gain']:.0f}; deviance from free shares p = "
        f"{m['misfit_p']:.2g}"
    )
    jump = (
        f"where the median jumps most, from {m['jump_from']:g} to {m['jump_to']:g}, the share makes {m['due']:.0%} "
        "of the mean's rise"
    )
    return all_of(claim, [
        claim.judge(_interval(m, "gain"), reason),
        claim.judge(
            _interval(m, "slope"), f"slope {m['slope']:.1f} a unit of log scale", threshold=claim.limits["slope"]
        ),
        claim.judge(_interval(m, "due"), jump, threshold=claim.limits["due"]),
        claim.judge(
            _interval(m, "span"), f"from 10 % to 90 % of successes it takes {m['span']:.2g} such steps",
            threshold=claim.limits["span"],
        ),
    ])


def _split_at_the_jump(row: Row) -> bool:
    """Whether the scores are bimodal at one of the two scales between which the median jumps most."""
    assert row.units is not None
    at = row.units[row.units["scale"].isin([row.metrics["jump_from"], row.metrics["jump_to"]])]
    return bool(((at["score_holm"] < ALPHA) & (at["score_bic"] > BIC)).any())


def _judge_two_scales(claim: Claim, rows: list[Row]) -> Verdict:
    """Bimodality with some successes comes at a smaller scale than success of most."""
    row = _end(rows)
    m = row.metrics
    if "ratio" not in m:
        return claim.untested(f"{_name(row)}: no two scales to compare")
    if math.isnan(m["ratio"]):
        reason = f"{_name(row)}: no scale that is bimodal and has successes, or none at which most succeed"
        return Verdict(claim.id, Outcome.unclear, reason, threshold=claim.threshold)
    reason = f"{_name(row)}: bimodal with successes from {m['threshold']:g} on, half succeed at {m['half_way']:.2f}"
    return claim.judge(_interval(m, "ratio"), reason)


JUDGES: dict[str, Callable[[Claim, list[Row]], Verdict]] = {
    "b1": _judge_two_modes, "b2": _judge_paths, "b3": _judge_curve, "b4": _judge_two_scales, "b5": _judge_two_modes,
}


def _end(rows: list[Row]) -> Row:
    """The population at the end of training."""
    return next((row for row in rows if row.cell.options.get("steps", END) == END), rows[0])


def _name(row: Row) -> str:
    return TITLES[row.cell.dataset, row.cell.options["tasks"][0]]


def _interval(metrics: dict[str, float], name: str) -> Interval:
    low, high = (metrics[f"{name}_{end}"] for end in ("low", "high"))
    return Interval(
        metrics[name], -math.inf if low <= -1e9 else low, math.inf if high >= 1e9 else high, int(metrics[f"{name}_n"])
    )
