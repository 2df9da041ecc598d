"""The front door on scan-bench's 4,524 rows, beside the plain way.

The plain way fits the same laws of today at the same cuts from the same starts, by L-BFGS on the same Huber loss of
log residuals, without a Jacobian. The second case is the whole answer, every law of the catalogue and the interval
included, against the minute that it may take.

CPU seconds of one process on one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from assay.datasets import load_dataset
from assay.scaling.fit import latin_hypercube
from assay.scaling.plan.laws import Candidate, candidates, fit_law
from assay.scaling.plan.planning import plan_run
from assay.scaling.plan.ranking import HOLDOUTS, held_out_masks
from assay.scaling.plan.runs import Runs, prepare_runs

LAWS = ("chinchilla", "kaplan", "power")
STARTS = 4
LIMIT_S = 60.0
DELTA = 1e-3


def main() -> dict[str, Any]:
    """Measure, print a table, and return the cases."""
    with threadpool_limits(1):
        cases = [fit_case(), whole_case()]
    for case in cases:
        print(f"{case['name']}: {case['ours_s']:.2f} s; {case['peer']}: {case['peer_s']:.2f} s; "
              f"ratio {case['ratio']:.2f} (target {case['target']:g}) {case['note']}")
    return {"cases": cases}


def fit_case() -> dict[str, Any]:
    """The fits of three laws at three cuts and to all rows."""
    runs = prepare_runs(scan_bench())
    known = [candidate for candidate in candidates()[0] if candidate.name in LAWS]
    parts = [runs.frame, *(runs.frame[fit] for _, fit, _ in held_out_masks(runs, HOLDOUTS, []))]

    def every(fit: Callable[[Candidate, pd.DataFrame], float]) -> tuple[float, float]:
        start = time.process_time()
        total = sum(fit(candidate, part) for candidate in known for part in parts)
        return time.process_time() - start, total

    ours_s, ours_cost = every(lambda candidate, part: fit_law(candidate, part, STARTS, 0)[0].cost_)
    peer_s, peer_cost = every(plain_fit)
    note = f"summed cost {ours_cost:.4g} against {peer_cost:.4g}"
    return _case(f"{len(parts) * len(known)} fits to up to {rows(runs)} rows", ours_s, peer_s, 1.0,
                 "L-BFGS without a Jacobian", note)


def whole_case() -> dict[str, Any]:
    """Everything that a user gets."""
    table = scan_bench()
    start = time.process_time()
    plan = plan_run(table, 1e21)
    ours_s = time.process_time() - start
    note = f"{len(plan.laws)} laws, {plan.law} answers; the limit is stated, not measured"
    return _case("a plan from 4,524 rows", ours_s, LIMIT_S, 1.0, "the minute that it may take", note)


def plain_fit(candidate: Candidate, part: pd.DataFrame) -> float:
    """The law's own formula, its gradient left to finite differences."""
    law = candidate.law
    table, log_loss = part[list(candidate.columns)].to_numpy(float), np.log(part["loss"].to_numpy())
    prepared, (low, high) = law._prepare(table), law._bounds()

    def objective(x: np.ndarray) -> float:
        size = np.abs(law._log_loss(x, prepared)[0] - log_loss)
        return float(np.where(size <= DELTA, size**2 / 2, DELTA * (size - DELTA / 2)).sum()) / DELTA

    starts = latin_hypercube(*law._start_ranges(table, part["loss"].to_numpy()), STARTS, 0)
    limits = list(zip(low, high, strict=True))
    # As tight as ours: at the usual tolerances it stops at a fifth more than the best cost.
    how = {"maxiter": 2000, "maxfun": 100_000, "ftol": 1e-13, "gtol": 1e-9, "maxcor": 30}
    ends = [
        minimize(objective, np.clip(x, low, high), method="L-BFGS-B", bounds=limits, options=how) for x in starts
    ]
    return float(min(end.fun for end in ends)) * DELTA


def scan_bench() -> pd.DataFrame:
    """All checkpoints that name their tokens, with the columns that a user would hand in."""
    table = load_dataset("scan-bench-llm")
    table = table[table["tokens_so_far"].notna()]
    batch = 4 * table["micro_batch_size"] * table["grad_accumulation_steps"]
    columns = {"N": table["n_params"], "D": table["tokens_so_far"], "B": batch, "loss": table["valid_loss"]}
    return pd.DataFrame({**columns, "seq_len": 2048, "group": table["config_id"]}).reset_index(drop=True)


def rows(runs: Runs) -> str:
    return f"{len(runs.frame):,}"


def _case(name: str, ours_s: float, peer_s: float, target: float, peer: str, note: str) -> dict[str, Any]:
    return {
        "name": name, "ours_s": ours_s, "peer_s": peer_s, "ratio": peer_s / ours_s, "target": target, "peer": peer,
        "note": note,
    }


if __name__ == "__main__":
    main()
