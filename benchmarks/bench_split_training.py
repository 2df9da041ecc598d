"""Split training's costly step: a fit of the law from 200 starts to 60 runs.

The peer is what one writes with SciPy: `minimize` (L-BFGS-B) of the same Huber objective from each start, with numeric
gradients. Beside it stands the same peer with our analytic derivatives, which shows what the batched search adds. The
peer searches from a twentieth of the starts and its seconds are multiplied by twenty: each start is a search of its
own, so that its time is proportional to their number. Both end at the same cost, to one per cent, or the case fails.

CPU seconds of one process on one thread, warmed up, alternating, the median of several repeats.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from assay.datasets import load_dataset
from assay.scaling import SplitLaw
from assay.scaling.split_training.forms import Array, PlanForm, Rows, form_named
from assay.scaling.split_training.tables import own_runs
from assay.timing import alternate

ROWS, STARTS, PEER_STARTS = 60, 200, 10
DELTA = 1e-3
TARGET_SECONDS, TARGET_RATIO = 5.0, 3.0
SAME_COST = 1.01


def main(repeats: int = 3) -> dict[str, Any]:
    """Measure, print a table, and return the cases."""
    table, losses = runs()
    with threadpool_limits(1):
        cases = [
            one_case(name, analytic, table, losses, repeats)
            for name in ("multiplicative", "transfer") for analytic in (False, True)
        ]
    for case in cases:
        print(f"{case['name']}: {case['ours_s']:.3f} s (at most {TARGET_SECONDS:g}); {case['peer']}: "
              f"{case['peer_s']:.2f} s; ratio {case['ratio']:.1f} (target {case['target']:g}) {case['note']}")
    return {"cases": cases}


def runs() -> tuple[Array, Array]:
    """Sixty runs of one domain with a shared phase, evenly through the table."""
    every = own_runs(load_dataset("tiny-lm-split"))
    every = every[(every["family"] == "grid") & (every["domain"] == "c") & (every["D"] > 0)]
    chosen = every.iloc[np.unique(np.linspace(0, len(every) - 1, ROWS).astype(int))]
    return chosen[["N", "D", "Dp"]].to_numpy(dtype=float), chosen["loss"].to_numpy()


def one_case(name: str, analytic: bool, table: Array, losses: Array, repeats: int) -> dict[str, Any]:
    form, rows = form_named(name), Rows.of(table)
    starts = form.starts(rows, losses, STARTS, 0)[:PEER_STARTS]

    def ours() -> float:
        return float(SplitLaw(name, n_starts=STARTS).fit(table, losses).cost_)

    def peer() -> float:
        return min(search(form, rows, losses, start, analytic) for start in starts)

    ended, other = ours(), peer()
    if ended > SAME_COST * other:
        raise RuntimeError(f"{name}: the batched search ends at {ended:.3e}, the peer at {other:.3e}")
    ours_s, peer_s = alternate(ours, peer, repeats)
    peer_s *= STARTS / PEER_STARTS
    how = "analytic" if analytic else "numeric"
    return {
        "name": f"fit of the {name} form, {len(table)} runs, {STARTS} starts", "ours_s": ours_s, "peer_s": peer_s,
        "ratio": peer_s / ours_s, "target": TARGET_RATIO, "peer": f"scipy's minimize, {how} gradients",
        "note": f"costs {ended:.3e} and {other:.3e}",
    }


def search(form: PlanForm, rows: Rows, losses: Array, start: Array, analytic: bool) -> float:
    """One search of the peer; its end cost."""
    log_losses, scale = np.log(losses), np.maximum(np.abs(start), 0.1)

    def value(r: Array) -> float:
        size = np.abs(r)
        return float(np.where(size <= DELTA, r**2 / 2, DELTA * (size - DELTA / 2)).sum()) / DELTA

    def objective(z: Array) -> Any:
        predicted, jacobian = form.evaluate(z * scale, rows)
        r = predicted - log_losses
        if not analytic:
            return value(r)
        return value(r), jacobian.T @ np.clip(r, -DELTA, DELTA) * scale / DELTA

    low, high = form.bounds()
    bounds = np.stack([low / scale, high / scale], axis=1)
    options = {"maxiter": 2000, "maxfun": 100_000, "ftol": 1e-13, "gtol": 1e-9}
    found = minimize(objective, start / scale, jac=analytic, bounds=bounds, method="L-BFGS-B", options=options)
    return float(found.fun) * DELTA


if __name__ == "__main__":
    main()
