"""Small questions for the conformance checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from assay.datasets import load_dataset
from assay.scaling.plan.laws import allowed_laws
from assay.scaling.plan.planning import plan_run
from assay.scaling.plan.ranking import rank_laws

QUICK: dict[str, Any] = {"laws": ["chinchilla", "power"], "holdout": 0.7, "n_starts": 1}


def _runs(**changes: Any) -> pd.DataFrame:
    return load_dataset("plan-smoke-runs")[["N", "B", "K", "tokens", "loss"]].assign(**changes)


def _plan() -> list[Any]:
    plan = plan_run(_runs(), 1e13, n_refits=3, **QUICK)
    return [plan.law, plan.laws, plan.allocation, plan.disagreement, plan.excluded, plan.notes]


def _bad(tool: Any) -> list[Any]:
    """Tables that every one of the tools refuses."""
    return [
        lambda: tool(_runs().drop(columns=["tokens", "K"])),
        lambda: tool(_runs().iloc[:0]),
        lambda: tool(_runs(N=1e6)),
        lambda: tool(_runs(loss=np.nan)),
        lambda: tool(_runs(tokens=-1.0)),
        lambda: tool([1, 2, 3]),
    ]


CHECKS = {
    "plan_run": {
        "run": _plan,
        "bad": [
            *_bad(lambda runs: plan_run(runs, 1e13, **QUICK)),
            lambda: plan_run(_runs(), 0.0),
            lambda: plan_run(_runs(), float("nan")),
            lambda: plan_run(_runs(), 1e13, holdout=1.5),
            lambda: plan_run(_runs(), 1e13, holdout=[]),
            lambda: plan_run(_runs(), 1e13, laws=["chinchila"]),
            lambda: plan_run(_runs(), 1e13, n_refits=0),
            lambda: plan_run(_runs(), 1e13, best_within=1.0),
            lambda: plan_run(_runs(), 1e13, columns={"N": "nope"}),
        ],
    },
    "rank_laws": {"run": lambda: rank_laws(_runs(), **QUICK), "bad": _bad(lambda runs: rank_laws(runs, **QUICK))},
    "allowed_laws": {"run": lambda: allowed_laws(_runs()), "bad": _bad(allowed_laws)},
}
