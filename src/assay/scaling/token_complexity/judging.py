"""From measured cells to verdicts: one judge a claim."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import rankdata

from assay.scaling.token_complexity.convergence import fit_exponent
from assay.scaling.token_complexity.gaussian import column, numbers
from assay.scaling.token_complexity.hardmax import log_rate_fit
from assay.stats import Interval, bootstrap, mean_interval
from assay.study import Cell, Claim, Results, Row, Verdict, all_of

__all__ = ["GAUSSIAN", "MODELS", "judged", "log_damage_ratios"]

GAUSSIAN = "gaussian"
HOME, BESIDE = "minilm-weights", "smollm2-gguf"
MODELS = {HOME: "MiniLM", BESIDE: "SmolLM2"}
Array = NDArray[np.float64]


def judged(claim: Claim, results: Results) -> Verdict:
    """The verdict of a claim, or untested where a cell that decides it is missing."""
    task = {"C1": "fixed", "C2": "fixed", "C3": "average", "C4": "hardmax"}.get(claim.id)
    if task is None:
        return _judge_heads(claim, results)
    which: dict[str, Any] = {"dataset": GAUSSIAN, "arm": claim.arm, "task": task}
    if missing := results.missing(**which):
        return claim.untested(missing)
    own = results.where(lambda cell: claim.id != "C1" or cell.options["radius"] <= claim.limits["radius"], **which)
    return JUDGES[claim.id](claim, list(own))


def _judge_slope(claim: Claim, rows: list[Row]) -> Verdict:
    """At each dimension and radius: distance of the exponent from one half."""
    parts = []
    for row in rows:
        found = _exponent(row)
        parts.append(claim.judge(_away(found, 0.5), f"{_name(row.cell)}: exponent {found.estimate:.3f}"))
    return all_of(claim, parts)


def _judge_constant(claim: Claim, rows: list[Row]) -> Verdict:
    """At each dimension and radius: log of n times the mean squared error over its limit."""
    parts = []
    for row in rows:
        units, n = _units(row), numbers(_units(row))[-1]
        squared = n * units[column(n)].to_numpy() ** 2 / row.metrics["variance"]
        found = bootstrap(lambda i, s=squared: np.log(s[i].mean(axis=-1)), len(squared))  # type: ignore[misc]
        reason = f"{_name(row.cell)}: {math.exp(found.estimate):.2f} of exp(b'Sb)(...) at n = {n}"
        parts.append(claim.judge(_away(found, 0.0), reason))
    return all_of(claim, parts)


def _judge_average(claim: Claim, rows: list[Row]) -> Verdict:
    """Each exponent near the predicted one, and falling strictly along the grid: rank correlation -1 with lam."""
    parts = []
    for d in sorted({row.cell.options["d"] for row in rows}):
        ordered = sorted((row for row in rows if row.cell.options["d"] == d), key=lambda row: row.cell.options["lam"])
        for row in ordered:
            found, predicted = _exponent(row), row.metrics["beta_pred"]
            reason = (
                f"{_name(row.cell)}: exponent {found.estimate:.3f}, predicted {predicted:.3f}, "
                f"at the largest n {row.metrics['local_last']:.3f}; tokens for the error at the largest n, told from "
                f"the smaller, are {row.metrics['tokens_fitted']:.2f} of the real by a fit, "
                f"{row.metrics['tokens_root']:.2f} by 1/sqrt(n)"
            )
            parts.append(claim.judge(_away(found, predicted), reason))
        for first, second in pairwise(ordered):
            fall = _fall(first, second)
            reason = f"d = {d}: from lam {first.cell.options['lam']:g} to {second.cell.options['lam']:g} it falls by"
            verdict = claim.judge(
                Interval(-fall.estimate, -fall.high, -fall.low, fall.n), f"{reason} {fall.estimate:.3f}",
                threshold=claim.limits["no_fall"],
            )
            parts.append(verdict)
    return all_of(claim, parts)


def _judge_hardmax(claim: Claim, rows: list[Row]) -> Verdict:
    """Linear in 1 / ln n, and better so than by any power."""
    parts = []
    for row in rows:
        units = _units(row)
        ns = numbers(units)
        curves = units.to_numpy(dtype=float)
        r2 = bootstrap(lambda i: log_rate_fit(ns, curves[i].mean(axis=-2))[0], len(curves), n_resamples=1000)  # noqa: B023
        gap = bootstrap(lambda i: log_rate_fit(ns, curves[i].mean(axis=-2))[1], len(curves), n_resamples=1000)  # noqa: B023
        unexplained = Interval(1 - r2.estimate, 1 - r2.high, 1 - r2.low, r2.n)
        span = f"n = {ns[0]} to {ns[-1]:.3g}"
        parts += [
            claim.judge(unexplained, f"{span}: R^2 {r2.estimate:.4f} on a line in 1 / ln n"),
            claim.judge(gap, f"AIC {gap.estimate:+.1f} against the best power", threshold=claim.limits["aic_gap"]),
        ]
    return all_of(claim, parts)


JUDGES: dict[str, Callable[[Claim, list[Row]], Verdict]] = {
    "C1": _judge_slope, "C2": _judge_constant, "C3": _judge_average, "C4": _judge_hardmax,
}


def _judge_heads(claim: Claim, results: Results) -> Verdict:
    """The home model's verdict; another model that was measured stands beside it."""
    if missing := results.missing(dataset=HOME, arm=claim.arm):
        return claim.untested(missing)
    judge = _judge_ranks if claim.id == "C5" else _judge_damage
    verdict = judge(claim, results.where(dataset=HOME, arm=claim.arm)[0])
    other = results.where(dataset=BESIDE, arm=claim.arm).measured
    if not len(other):
        return verdict
    beside = judge(claim, other[0])
    text = f"{verdict.reason} (beside it, {beside.outcome}: {beside.reason})"
    return replace(verdict, reason=text, parts=(verdict, beside))


def _judge_ranks(claim: Claim, row: Row) -> Verdict:
    units = _units(row)
    beta, predicted, lam = (units[name].to_numpy() for name in ("beta", "beta_pred", "lam"))
    found = bootstrap(lambda i: _spearman(beta[i], predicted[i]), len(units), clusters=units["layer"].to_numpy())
    reason = (
        f"{MODELS[row.cell.dataset]}, {len(units)} heads in {found.n} layers: rank correlation {found.estimate:.2f}; "
        f"with lam itself {_spearman(beta, lam):.2f}; lam {lam.min():.2g} to {lam.max():.2g}, "
        f"{np.mean(lam > 1):.0%} above 1; exponent {beta.min():.2f} to {beta.max():.2f}, "
        f"median distance from the prediction {np.median(np.abs(beta - predicted)):.2f}"
    )
    if found.low <= 0 <= found.high:
        reason += "; the interval includes 0"
    return claim.judge(found, reason)


def _judge_damage(claim: Claim, row: Row) -> Verdict:
    """Heads of the upper quarter of lam over the lower, within each layer: damage itself, and over that of removal."""
    units = _units(row)
    names = [name for name in units.columns if name.startswith("damage_") and name != "damage_removed"]
    units = units[(units[[*names, "damage_removed"]] > 0).all(axis=1)]
    where = f"{MODELS[row.cell.dataset]}, {len(units)} heads"
    relative = units[names].div(units["damage_removed"], axis=0)
    return all_of(claim, [
        _damage_part(claim, units, names, units[names], f"{where}: damage itself"),
        _damage_part(claim, units, names, relative, f"over that of removal{_losses(units)}"),
    ])


def _damage_part(
    claim: Claim, units: pd.DataFrame, names: list[str], damage: pd.DataFrame, words: str
) -> Verdict:
    each_layer = log_damage_ratios(
        units["layer"].to_numpy(), units["lam"].to_numpy(), np.log(damage.to_numpy(dtype=float))
    )
    found = mean_interval(each_layer.mean(axis=1))
    each = ", ".join(
        f"{math.exp(value):.2f} at n = {name.rpartition('_')[2]}"
        for value, name in zip(each_layer.mean(axis=0), names, strict=True)
    )
    estimate, low, high = (float(np.exp(min(700.0, end))) for end in (found.estimate, found.low, found.high))
    return claim.judge(Interval(estimate, low, high, found.n), f"{words}, ratio of the quarters {each}")


def _losses(units: pd.DataFrame) -> str:
    """Increase of the next-token loss in the two quarters, where the model has one."""
    losses = [name for name in units.columns if name.startswith("loss_") and name != "loss_removed"]
    if not losses:
        return ""
    low, high = np.quantile(units["lam"], [0.25, 0.75])
    top, bottom = (units.loc[chosen, losses].mean() for chosen in (units["lam"] >= high, units["lam"] <= low))
    return " (next-token loss " + ", ".join(
        f"{top[name]:+.2e} against {bottom[name]:+.2e} nats at n = {name.rpartition('_')[2]}" for name in losses
    ) + ")"


def log_damage_ratios(layer: NDArray[np.integer], lam: Array, logs: Array) -> Array:
    """For each layer (rows) and n (columns): mean log damage of its upper quarter of lam minus that of the lower."""
    rows = []
    for own in (layer == index for index in np.unique(layer)):
        low, high = np.quantile(lam[own], [0.25, 0.75])
        if low < high:
            rows.append(logs[own][lam[own] >= high].mean(axis=0) - logs[own][lam[own] <= low].mean(axis=0))
    return np.array(rows).reshape(-1, logs.shape[1])


def _exponent(row: Row) -> Interval:
    units = _units(row)
    return fit_exponent(np.array(numbers(units)), units.to_numpy(dtype=float))[0]


def _fall(first: Row, second: Row) -> Interval:
    """Exponent at the smaller lam minus that at the larger; replicates share their tokens."""
    x = np.log(numbers(_units(first)))
    slope = (x - x.mean()) / ((x - x.mean()) @ (x - x.mean()))
    one, two = (_units(row).to_numpy(dtype=float) for row in (first, second))

    def fall(rows: NDArray[np.intp]) -> Array:
        return (np.log(two[rows].mean(axis=-2)) - np.log(one[rows].mean(axis=-2))) @ slope

    return bootstrap(fall, len(one))  # type: ignore[arg-type]


def _away(found: Interval, target: float) -> Interval:
    """The distance of an estimate from a target: its interval reaches as far as the estimate's does on either side."""
    low, high = found.low - target, found.high - target
    nearest = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
    return Interval(abs(found.estimate - target), nearest, max(abs(low), abs(high)), found.n)


def _spearman(first: Array, second: Array) -> float:
    """Rank correlation; undefined (NaN) where either is constant."""
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return math.nan
    one, two = (rankdata(each) - (len(each) + 1) / 2 for each in (first, second))
    return float(one @ two / math.sqrt((one @ one) * (two @ two)))


def _units(row: Row) -> pd.DataFrame:
    if row.units is None:
        raise LookupError(f"{row.cell.label()}: measured without units")
    return row.units


def _name(cell: Cell) -> str:
    options: dict[str, Any] = dict(cell.options)
    at = f"|b| = {options['radius']:g}" if "radius" in options else f"lam = {options['lam']:g}"
    return f"d = {options['d']}, {at}"

