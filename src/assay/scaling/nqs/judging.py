"""From measured cells to verdicts: one judge a claim."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd

from assay.scaling.nqs.arms import BATCH_AWARE, CHINCHILLAS
from assay.scaling.nqs.noisy_quadratic import PARAMETERS
from assay.scaling.nqs.runs import TITLES
from assay.scaling.nqs.tasks import spread
from assay.stats import Interval, bootstrap
from assay.study import Claim, Outcome, Results, Verdict

Judge = Callable[[Claim, Results, str], Verdict]


def judged(claim: Claim, results: Results, dataset: str) -> Verdict:
    """The verdict of a claim on one data set, or untested where the method's own cell is missing."""
    task = {"n4": "cost", "n5": "identify"}.get(claim.id, "predict")
    own = results.where(dataset=dataset, arm=claim.arm, task=task)
    if not own.measured:
        return claim.untested(own.missing() or f"no cell on {TITLES[dataset]} was measured")
    return JUDGES[claim.id](claim, results.where(dataset=dataset), dataset)


def _judge_n1(claim: Claim, results: Results, dataset: str) -> Verdict:
    return _judge_ratio(claim, results, dataset, CHINCHILLAS, "isoflop", "the better Chinchilla")


def _judge_n2(claim: Claim, results: Results, dataset: str) -> Verdict:
    return _judge_ratio(claim, results, dataset, (BATCH_AWARE,), "isotoken", "the batch-aware Chinchilla")


def _judge_ratio(
    claim: Claim, results: Results, dataset: str, rivals: tuple[str, ...], kind: str, name: str
) -> Verdict:
    """Ratio of mean squared log errors to the rival (and objective) with the lowest error on these very runs."""
    ours = _units(results.where(arm=claim.arm, task="predict"), kind)
    cells = [results.where(arm=arm, task="predict") for arm in rivals]
    missing = "; ".join(filter(None, (rows.missing() for rows in cells)))
    theirs = [_units([row], kind) for rows in cells for row in rows.measured]
    theirs = [units for units in theirs if len(units)]
    if not len(ours) or not theirs or missing:
        return claim.untested(missing or f"{TITLES[dataset]}: no held-out {kind} runs")
    best = min(theirs, key=lambda units: units["squared"].mean())
    standard = _units(results.where(arm="nqs-standard", task="predict"), kind)
    interval = _log_ratio(ours["squared"].to_numpy(), best["squared"].to_numpy(), ours["group"].to_numpy())
    reason = (
        f"{TITLES[dataset]}: mean squared log error {ours['squared'].mean():.2e} against {best['squared'].mean():.2e} "
        f"of {name} on {len(ours)} held-out {kind} runs"
        + (f"; {standard['squared'].mean():.2e} by the standard risk" if len(standard) else "")
        + (f"; a ratio of {claim.limits['effect']:g} was looked for" if "effect" in claim.limits else "")
    )
    return claim.judge(interval, reason)


def _log_ratio(ours: np.ndarray, theirs: np.ndarray, groups: np.ndarray) -> Interval:
    """Interval of the ratio of two means over the same runs, drawn within their group; by way of its logarithm."""
    _, strata = np.unique(groups, return_inverse=True)
    sizes = np.bincount(strata)
    if np.sum(sizes == 1) == 1 and len(sizes) > 1:
        # One run shows no spread of its own: it is drawn with the smallest other group (several are drawn together).
        alone, smallest = np.argsort(sizes, kind="stable")[:2]
        strata[strata == alone] = smallest
    found = bootstrap(lambda i: np.log(ours[i].mean(axis=-1) / theirs[i].mean(axis=-1)), len(ours), strata=strata)
    return Interval(float(np.exp(found.estimate)), float(np.exp(found.low)), float(np.exp(found.high)), found.n)


def _judge_n3(claim: Claim, results: Results, dataset: str) -> Verdict:
    regret = _units(results.where(arm=claim.arm, task="predict"), "choice")
    if not len(regret):
        return claim.untested(f"{TITLES[dataset]}: no held-out budget with two or more sizes")
    values = regret["squared"].to_numpy()
    interval = bootstrap(lambda i: np.median(values[i], axis=-1), len(values))
    reason = f"{TITLES[dataset]}: loss given away at each held-out budget: {', '.join(f'{v:.3f}' for v in values)} nats"
    if len(values) >= 3 and not np.isfinite([interval.low, interval.high]).all():
        reason += "; so few budgets with equal values give no interval"
    return claim.judge(interval, reason)


def _judge_n4(claim: Claim, results: Results, dataset: str) -> Verdict:
    units = results.where(arm=claim.arm, task="cost").measured[0].units
    counts = units["evaluations"].to_numpy(dtype=float) if units is not None else np.array([])
    reached = np.isfinite(counts)
    reason = f"{TITLES[dataset]}: {reached.sum()} of {len(counts)} seeds of starts reach the target cost"
    if not reached.all():
        return Verdict(claim.id, Outcome.fails, reason, threshold=claim.threshold, n=len(counts))
    interval = bootstrap(lambda i: counts[i].mean(axis=-1), len(counts))
    seconds = results.metric("cpu_s_median", task="seconds")
    timed = f" ({seconds[0]:.2f} s of a core)" if len(seconds) else ""
    reason = f"{reason}, after {counts.mean():.0f} evaluations on average{timed}"
    if len(seconds) and seconds[0] > claim.limits["cpu_s"]:
        return Verdict(claim.id, Outcome.fails, reason, threshold=claim.threshold, n=len(counts))
    return claim.judge(interval, reason)


def _judge_n5(claim: Claim, results: Results, dataset: str) -> Verdict:
    row = results.where(arm=claim.arm, task="identify").measured[0]
    units = row.units if row.units is not None else pd.DataFrame()
    spreads = {name: row.metrics[f"spread_{name}"] for name in PARAMETERS}
    listed = ", ".join(f"{name} {value:.1%}" for name, value in spreads.items())
    reason = f"{TITLES[dataset]}: spread over refits: {listed}"
    limits = claim.limits
    if row.metrics["explained"] < limits["explained"] or row.metrics["at_bound"] > limits["at_bound"]:
        why = (
            f"the fit explains {row.metrics['explained']:.0%} of the log losses' variance, "
            f"and p or q sits at a bound in {row.metrics['at_bound']:.0%} of the fits"
        )
        return Verdict(claim.id, Outcome.fails, f"{reason}; {why}", threshold=claim.threshold, n=len(units))
    p, q = units["p"].to_numpy(), units["q"].to_numpy()
    interval = bootstrap(lambda i: max(spread(p[i]), spread(q[i])), len(units), clusters=units["refit"].to_numpy())
    return claim.judge(interval, reason)


def _units(rows: Iterable[Any], kind: str) -> pd.DataFrame:
    frames = [row.units[row.units["kind"] == kind] for row in rows if row.units is not None]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


JUDGES: dict[str, Judge] = {"n1": _judge_n1, "n2": _judge_n2, "n3": _judge_n3, "n4": _judge_n4, "n5": _judge_n5}
