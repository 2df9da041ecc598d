"""From measured cells to verdicts: one judge a claim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from assay.stats import Interval, bootstrap, mean_interval
from assay.study import Claim, Outcome, Results, Row, Verdict, all_of, at_least

__all__ = ["PROBES", "TITLES", "judged"]

TITLES = {
    "lqr": "LQR", "x-paper": "X gate, the paper's noise", "ibm-qubits": "X gate, IBM", "ibm-pairs": "CZ gate, IBM",
}
FAMILIES = ("lqr", "x-paper")
PROBES = (3, 4, 5)


def judged(claim: Claim, results: Results) -> Verdict:
    """The verdict on a claim; untested where its own cells are missing, naming them."""
    return JUDGES[claim.id](claim, results)


def _c1(claim: Claim, results: Results) -> Verdict:
    """R2 on at least four of five seeds, family by family, of a curve that no straight line describes as well."""
    parts = [_law_family(claim, results, dataset) for dataset in FAMILIES]
    return all_of(claim, parts)


def _law_family(claim: Claim, results: Results, dataset: str) -> Verdict:
    rows = results.where(dataset=dataset, arm=claim.arm, task="law")
    if not rows.measured or rows.missing():
        return claim.untested(_missing(results, dataset, claim.arm, task="law"))
    seeds = []
    for row in rows.measured:
        m = row.metrics
        text = f"seed {row.cell.seed}: R2 {m['r2']:.4f}"
        if m["line_ratio"] > claim.limits["line"]:
            seeds.append(Verdict(claim.id, Outcome.fails, f"{text}, hardly better than a straight line"))
            continue
        seeds.append(claim.judge(Interval(m["r2"], m["r2_low"], m["r2_high"], int(m["tasks"])), text))
    ms = [row.metrics for row in rows.measured]
    p = [m["runs_p"] for m in ms if "runs_p" in m]
    bias = [m["a_bias"] for m in ms if "a_bias" in m]
    text = (
        f"{TITLES[dataset]}: R2 {min(m['r2'] for m in ms):.4f} to {max(m['r2'] for m in ms):.4f} over {len(ms)} seeds"
        + (f", residual runs p {min(p):.2g} to {max(p):.2g}" if p else "")
        + (f", fitted A {np.mean(bias):+.1%} off the true one" if bias else "")
    )
    return at_least(claim, seeds, int(claim.limits["seeds"]), text)


def _c2(claim: Claim, results: Results) -> Verdict:
    return all_of(claim, [_line_family(claim, results, dataset) for dataset in FAMILIES])


def _line_family(claim: Claim, results: Results, dataset: str) -> Verdict:
    rows = results.where(dataset=dataset, arm=claim.arm, task="sweep")
    if not rows.measured or rows.missing():
        return claim.untested(_missing(results, dataset, claim.arm, task="sweep"))
    r2, intercept = (mean_interval([row.metrics[name] for row in rows.measured]) for name in ("r2", "intercept"))
    top = float(np.mean([row.metrics["a_top"] for row in rows.measured]))
    text = f"{TITLES[dataset]}: R2 {r2.estimate:.3f} over 8 levels, {r2.n} draws, largest gain {top:.2g}"
    straight = claim.judge(r2, text)
    reach = claim.limits["intercept"]
    text = f"intercept {intercept.estimate:+.1%} [{intercept.low:+.1%}, {intercept.high:+.1%}] of the largest gain"
    if not np.isfinite([intercept.low, intercept.high]).all() or intercept.n < 3:
        outcome = Outcome.unclear
    elif intercept.low > 0 or intercept.high < 0:
        outcome = Outcome.fails
    else:
        # An interval wide enough holds any number: it must be narrow as well.
        outcome = Outcome.holds if -reach < intercept.low and intercept.high < reach else Outcome.unclear
    return all_of(claim, [straight, Verdict(claim.id, outcome, text)])


def _c3(claim: Claim, results: Results) -> Verdict:
    row = _contest_row(results, claim.arm, "ibm-qubits", noise=claim.limits["noise"])
    if row is None:
        return _no_contest(claim, results, "ibm-qubits", noise=claim.limits["noise"])
    gain = _by_device(row, "gain")
    m = row.metrics
    reason = (
        f"{m['tasks']:.0f} qubits of {m['devices']:.0f} devices at fidelity {m['fidelity']:.6f}: "
        f"gain {m['gain']:.2e}, of which {m['left']:.2e} over the re-tuned controller"
    )
    return claim.judge(gain, reason)


def _c4(claim: Claim, results: Results) -> Verdict:
    """The gain over the fixed controller, from either start; what a shared one gains as well is said beside."""
    return _from_both_starts(claim, results, "gain")


def _c7(claim: Claim, results: Results) -> Verdict:
    """What is left over the re-tuned controller, from either start."""
    return _from_both_starts(claim, results, "left")


def _from_both_starts(claim: Claim, results: Results, column: str) -> Verdict:
    parts = []
    for start in ("trained", "early"):
        row = _contest_row(results, claim.arm, "ibm-pairs", start=start)
        if row is None:
            parts.append(_no_contest(claim, results, "ibm-pairs", start=start))
            continue
        m = row.metrics
        common = m["gain"] - m["left"]
        reason = (
            f"{start} start, {m['tasks']:.0f} devices: fidelity {m['fidelity'] - m['gain']:.4f} to "
            f"{m['fidelity']:.4f}, a gain of {m['gain']:+.4f}, of which one re-tuned controller has {common:+.4f} and "
            f"adaptation adds {m['left']:+.4f}"
        )
        parts.append(claim.judge(_by_device(row, column), reason))
    return all_of(claim, parts)


def _c5(claim: Claim, results: Results) -> Verdict:
    rows = results.where(dataset="lqr", arm=claim.arm, task="law")
    if not rows.measured or rows.missing():
        return claim.untested(_missing(results, "lqr", claim.arm, task="law"))
    values = results.metric("r2", dataset="lqr", arm=claim.arm, task="law")
    bias = results.metric("a_bias", dataset="lqr", arm=claim.arm, task="law")
    off = f"; fitted A {np.mean(bias):+.1%} off the true one" if bias else ""
    text = f"R2 {min(values):.6f} to {max(values):.6f}{off}"
    return claim.judge(mean_interval(values), text)


def _c6(claim: Claim, results: Results) -> Verdict:
    return all_of(claim, [_probe_family(claim, results, dataset, n) for dataset in FAMILIES for n in PROBES])


def _probe_family(claim: Claim, results: Results, dataset: str, n: int) -> Verdict:
    rows = results.where(dataset=dataset, arm=claim.arm, task="probe", n=n)
    frames = [row.units.assign(seed=row.cell.seed) for row in rows.measured if row.units is not None]
    if not frames or rows.missing():
        return claim.untested(_missing(results, dataset, claim.arm, task="probe", n=n))
    table = pd.concat(frames, ignore_index=True)
    # No answer is an error without bound; capped, so that a median over few answers stays a number.
    errors = np.minimum(table["k_error"].to_numpy(), 10.0)
    clusters = table["seed"].to_numpy() if table["seed"].nunique() > 1 else None
    interval = bootstrap(lambda i: np.median(errors[i], axis=-1), len(errors), clusters=clusters)
    answered = np.isfinite(table["k_error"]).mean()
    text = (
        f"{TITLES[dataset]}, {n} probes: median error {np.median(errors):.0%} (of A {_median(table['a_error'])}), "
        f"{answered:.0%} answered, "
        f"true K {table['k_true'].median():.0f}"
        + ("" if table["reached"].all() else f" or more ({1 - table['reached'].mean():.0%} not reached)")
    )
    return claim.judge(interval, text)


def _median(errors: pd.Series) -> str:
    known = errors[np.isfinite(errors)]
    return f"{known.median():.0%}" if len(known) else "unknown"


def _contest_row(results: Results, arm: str, dataset: str, **options: Any) -> Row | None:
    """The contest with the most devices among those measured: the highest tier's."""
    rows = results.where(dataset=dataset, arm=arm, task="contest", **options).measured
    return max(rows, key=lambda row: (row.cell.options["n_devices"], row.cell.options["steps"]), default=None)


def _no_contest(claim: Claim, results: Results, dataset: str, **options: Any) -> Verdict:
    return claim.untested(_missing(results, dataset, claim.arm, task="contest", **options))


def _missing(results: Results, dataset: str, arm: str, **options: Any) -> str:
    """Which cells are not there, or were not measured, and why."""
    return f"{TITLES[dataset]}: {results.missing(dataset=dataset, arm=arm, **options)}"


def _by_device(row: Row, column: str) -> Interval:
    """Mean over tasks with devices drawn again: qubits of one device share a calibration."""
    assert row.units is not None
    values, devices = row.units[column].to_numpy(), row.units["device"].to_numpy()
    if len(np.unique(devices)) == len(devices):
        return mean_interval(values)
    return bootstrap(lambda i: values[i].mean(), len(values), clusters=devices)


JUDGES: dict[str, Callable[[Claim, Results], Verdict]] = {
    "C1": _c1, "C2": _c2, "C3": _c3, "C4": _c4, "C5": _c5, "C6": _c6, "C7": _c7,
}
