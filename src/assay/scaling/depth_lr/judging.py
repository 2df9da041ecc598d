"""From measured cells to verdicts: one judge a claim.

d1, d2 and d3 ask several architectures; each has a part of its own, and a part that was not measured in this tier is
untested. Cells with the option `beside` are reported and decide nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from assay.stats import Interval, bootstrap, mean_interval
from assay.study import Claim, Outcome, Results, Row, Verdict, all_of, at_least

__all__ = ["NAMES", "judged", "slope_of_energies"]

NAMES = {"mlp": "MLP", "cnn": "CNN", "resnet": "ResNet", "resmlp": "residual MLP", "transformer": "Transformer"}
ENERGY_NETS = ("mlp", "cnn", "resnet", "transformer")
SWEEP_NETS = ("mlp", "resmlp", "cnn", "transformer")
TRANSFER_NETS = ("mlp", "resmlp")
FIXED_RULES = ("constant", "inverse-root", "inverse", "depth-mup")
Array = NDArray[np.float64]


def judged(claim: Claim, results: Results) -> Verdict:
    """The verdict of a claim, or untested where the cells that decide it are missing."""
    own = results.where(lambda cell: not cell.options.get("beside"))
    verdict = _JUDGES[claim.id](claim, own)
    return (
        verdict if verdict.reason or verdict.outcome is not Outcome.untested else claim.untested("nothing was measured")
    )


def slope_of_energies(units: pd.DataFrame, column: str = "hidden") -> Interval:
    """Slope of the log of the maximal-update rate on log depth, by the mean log energy of each depth."""
    x, y = np.log(units["depth"].to_numpy(dtype=float)), -0.5 * units[column].to_numpy(dtype=float)
    return bootstrap(lambda rows: _slope(x[rows], y[rows]), len(units), strata=units["depth"].to_numpy())


def _judge_energies(claim: Claim, results: Results) -> Verdict:
    """An architecture holds where the interval of its slope includes -3/2 and is narrow enough."""
    parts = [_each(claim, results, "energy", arch, _energy_part) for arch in ENERGY_NETS]
    other = results.where(task="energy", arch="resmlp", arm=claim.arm).measured
    extra = ""
    if len(other):
        found = slope_of_energies(_units(other[0]))
        extra = f"beside them, the residual MLP: {found.estimate:.2f} [{found.low:.2f}, {found.high:.2f}]"
    verdict = _enough(claim, parts)
    return replace(verdict, reason="; ".join(filter(None, (verdict.reason, extra))))


def _energy_part(claim: Claim, row: Row, where: str) -> Verdict:
    units = _units(row)
    found, whole = slope_of_energies(units), slope_of_energies(units, "all")
    width, target = found.high - found.low, claim.limits["target"]
    if found.n < 3 or not math.isfinite(width):
        outcome = Outcome.unclear
    elif not found.low <= target <= found.high:
        outcome = Outcome.fails
    else:
        outcome = Outcome.holds if width <= claim.threshold else Outcome.unclear
    reason = (
        f"{where}: slope {found.estimate:.2f} [{found.low:.2f}, {found.high:.2f}], arithmetic mean "
        f"{row.metrics['slope_hidden_arithmetic']:.2f}, with the read-out {whole.estimate:.2f}"
    )
    return Verdict(claim.id, outcome, reason, found.estimate, found.low, found.high, claim.threshold, found.n)


def _judge_rates(claim: Claim, results: Results) -> Verdict:
    parts = [_each(claim, results, "rates", arch, _rate_part) for arch in SWEEP_NETS]
    return _enough(claim, parts)


def _rate_part(claim: Claim, row: Row, where: str) -> Verdict:
    """Slope of the best rate of each seed; the seeds are what is resampled."""
    units = _units(row)
    usable = units[np.isfinite(units["rate"])]
    depths = units["depth"].nunique()
    slopes, largest = [], []
    for _, seed in usable.groupby("seed"):
        if len(seed) == depths:
            slopes.append(_slope(np.log(seed["depth"].to_numpy(dtype=float)), np.log(seed["rate"].to_numpy())))
            largest.append(_slope(np.log(seed["depth"].to_numpy(dtype=float)), np.log(seed["stable"].to_numpy())))
    found = mean_interval(slopes)
    reason = f"{where}: slope {found.estimate:.2f} [{found.low:.2f}, {found.high:.2f}]"
    if largest:
        reason += f", of the largest stable rate {np.mean(largest):.2f}"
    reason += ", losses " + ", ".join(f"{v:.3g} at {d}" for d, v in units.groupby("depth")["loss"].mean().items())
    away = _away(found, claim.limits["target"])
    verdict = claim.judge(away, reason)
    edges = int((~usable["inside"].astype(bool)).sum())
    if edges and verdict.outcome is Outcome.holds:
        verdict = replace(verdict, outcome=Outcome.unclear)
    return replace(verdict, reason=f"{reason}; {edges} optima lie at the edge of the grid" if edges else reason)


def _judge_transfer(claim: Claim, results: Results) -> Verdict:
    """Near the deepest net's own optimum, and a regret of at most half the best other rule's."""
    parts = []
    for arch in TRANSFER_NETS:
        if not len(results.where(task="transfer", arch=arch)):
            if arch == TRANSFER_NETS[0]:
                return claim.untested(results.missing(task="transfer", arch=arch))
            parts.append(claim.untested(f"{NAMES[arch]}: no cell in this tier"))
            continue
        wanted = (claim.arm, "own-optimum")
        missing = [results.missing(task="transfer", arch=arch, arm=arm) for arm in wanted]
        losses = {
            row.cell.arm: _units(row)["loss"].to_numpy(dtype=float)
            for row in results.where(task="transfer", arch=arch).measured
        }
        others = [arm for arm in FIXED_RULES if arm in losses]
        if any(missing) or not others:
            parts.append(
                claim.untested("; ".join(filter(None, missing)) or f"{NAMES[arch]}: no other rule was measured")
            )
        else:
            parts.append(_transfer_part(claim, arch, losses, others))
    return all_of(claim, parts)


def _transfer_part(claim: Claim, arch: str, losses: dict[str, Array], others: list[str]) -> Verdict:
    own, method = losses["own-optimum"], losses[claim.arm]
    best = min(others, key=lambda arm: losses[arm].mean())
    told = ", ".join(f"{arm} {losses[arm].mean():.3g}" for arm in (claim.arm, *others))
    reason = f"{NAMES[arch]}, loss at the deepest net: own optimum {own.mean():.3g}, {told}"
    near = mean_interval(np.log(method / own))
    middle, low, high = (float(np.expm1(np.clip(v, -50, 50))) for v in (near.estimate, near.low, near.high))
    above = Interval(middle, low, high, near.n)
    half = mean_interval((method - own) - claim.limits["share"] * (losses[best] - own))
    return all_of(
        claim,
        [
            claim.judge(above, reason),
            claim.judge(half, f"regret minus half of that of {best}", threshold=claim.limits["no_more"]),
        ],
    )


def _judge_collapse(claim: Claim, results: Results) -> Verdict:
    """Scatter about one line for all block types: effective depth against layer count."""
    which: dict[str, Any] = {"task": "collapse", "arm": claim.arm}
    if missing := results.missing(**which):
        return claim.untested(missing)
    row = results.where(**which)[0]
    units = _units(row)
    y = -0.5 * units["hidden"].to_numpy(dtype=float)
    strata = (units["branch"] * 10_000 + units["layers"]).to_numpy()
    columns = {count: np.log(units[count].to_numpy(dtype=float)) for count in ("depth", "layers")}

    def ratio(rows: NDArray[np.intp]) -> float:
        return math.log(
            _scatter(columns["depth"][rows], y[rows], strata[rows])
            / _scatter(columns["layers"][rows], y[rows], strata[rows])
        )

    found = bootstrap(ratio, len(units), strata=strata, n_resamples=500)
    scatter = {count: _scatter(x, y, strata) for count, x in columns.items()}
    reason = (
        f"scatter of log rate about one line {scatter['depth']:.3f} by effective depth, {scatter['layers']:.3f} by "
        f"layers; slopes {row.metrics['slope_depth']:.2f} and {row.metrics['slope_layers']:.2f}"
    )
    low, high = (math.exp(min(50.0, end)) for end in (found.low, found.high))
    return claim.judge(Interval(math.exp(found.estimate), low, high, found.n), reason)


def _scatter(x: Array, y: Array, labels: NDArray) -> float:
    """Root mean square distance of the nets' mean log rates from the common line."""
    _, codes = np.unique(labels, return_inverse=True)
    count = np.bincount(codes)
    mx, my = np.bincount(codes, x) / count, np.bincount(codes, y) / count
    slope, start = np.polyfit(mx, my, 1)
    return float(np.sqrt(np.mean((my - start - slope * mx) ** 2)))


def _judge_width(claim: Claim, results: Results) -> Verdict:
    """Steps of the rate grid between the best rates at 2n and n, of each seed."""
    parts = [_each(claim, results, "width", arch, _width_part) for arch in TRANSFER_NETS]
    if all(part.outcome is Outcome.untested for part in parts):
        return claim.untested("; ".join(part.reason for part in parts))
    return all_of(claim, [part for part in parts if not part.reason.endswith("no cell in this tier")])


def _width_part(claim: Claim, row: Row, where: str) -> Verdict:
    units = _units(row)
    narrow, wide = sorted(units["width"].unique())
    table = units.pivot(index="seed", columns="width", values="rate").dropna()
    found = mean_interval(np.log2(table[wide] / table[narrow]))
    step = float(row.cell.options["step"])
    reason = (
        f"{where}, {narrow} to {wide} units: {found.estimate:+.2f} octaves [{found.low:+.2f}, {found.high:+.2f}], "
        f"the grid's step is {step:g}"
    )
    steps = Interval(found.estimate / step, found.low / step, found.high / step, found.n)
    verdict = claim.judge(_away(steps, 0.0), reason)
    edges = int((~units["inside"].astype(bool)).sum())
    if edges:
        outcome = Outcome.unclear if verdict.outcome is Outcome.holds else verdict.outcome
        verdict = replace(verdict, outcome=outcome, reason=f"{reason}; {edges} optima lie at the edge of the grid")
    return verdict


_JUDGES: dict[str, Callable[[Claim, Results], Verdict]] = {
    "d1": _judge_energies,
    "d2": _judge_rates,
    "d3": _judge_transfer,
    "d4": _judge_collapse,
    "d5": _judge_width,
}


def _each(claim: Claim, results: Results, task: str, arch: str, judge: Callable[[Claim, Row, str], Verdict]) -> Verdict:
    """An architecture's part, or untested with the reason."""
    which: dict[str, Any] = {"task": task, "arch": arch, "arm": claim.arm}
    if not len(results.where(**which)):
        return claim.untested(f"{NAMES[arch]}: no cell in this tier")
    if missing := results.missing(**which):
        return claim.untested(missing)
    return judge(claim, results.where(**which)[0], NAMES[arch])


def _enough(claim: Claim, parts: list[Verdict]) -> Verdict:
    return at_least(claim, parts, int(claim.limits["architectures"]))


def _away(found: Interval, target: float) -> Interval:
    """The distance of an estimate from a target: its interval reaches as far as the estimate's does on either side."""
    low, high = found.low - target, found.high - target
    nearest = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
    return Interval(abs(found.estimate - target), nearest, max(abs(low), abs(high)), found.n)


def _slope(x: Array, y: Array) -> Any:
    centred = x - x.mean(axis=-1, keepdims=True)
    return (centred * y).sum(axis=-1) / (centred**2).sum(axis=-1)


def _units(row: Row) -> pd.DataFrame:
    if row.units is None:
        raise LookupError(f"{row.cell.label()}: measured without units")
    return row.units
