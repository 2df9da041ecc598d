"""Small instances and inputs for the conformance checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from assay.datasets import load_dataset
from assay.scaling.split_training.law import SplitLaw
from assay.scaling.split_training.planning import SplitPlan, iso_loss_exchange, optimal_split
from assay.scaling.split_training.tables import own_runs

N = 55_488.0


def _law(**settings: Any) -> SplitLaw:
    return SplitLaw(**{"form": "multiplicative", "n_starts": 4, **settings})


def _runs() -> tuple[np.ndarray, np.ndarray]:
    runs = own_runs(load_dataset("split-training-smoke"))
    runs = runs[(runs["family"] == "grid") & (runs["domain"] == "prose") & (runs["D"] > 0)]
    return runs[["N", "D", "Dp"]].to_numpy(dtype=float), runs["loss"].to_numpy()


def _spoilt(column: int, value: float) -> tuple[np.ndarray, np.ndarray]:
    X, y = _runs()
    spoilt = X.copy()
    spoilt[3, column] = value
    return spoilt, y


def _fitted() -> SplitLaw:
    return _law().fit(*_runs())


def _falling(law: SplitLaw) -> list[np.ndarray]:
    tokens, sizes = np.geomspace(1e5, 1e8, 13), np.geomspace(1e4, 1e7, 13)
    full = np.full(13, 1e6)
    return [
        law.predict(np.column_stack([sizes, full, full])), law.predict(np.column_stack([full, tokens, full])),
        law.predict(np.column_stack([full, full, tokens])),
    ]


def _optimal(law: SplitLaw, budget: float) -> tuple[float, float]:
    plan = _plan(law, flops=budget)
    return plan.flops, plan.loss


def _plan(law: SplitLaw, **how: Any) -> SplitPlan:
    asked = {"n_params": N, "n_domains": 2, "n_refits": 0, **how}
    return optimal_split(law, **({"tokens": 3e6} | asked if "flops" not in how else asked))


def _planned() -> dict[str, Any]:
    return {"law": _fitted(), "tokens": 3e6, "n_params": N, "n_domains": 3, "weights": [1.0, 2.0, 3.0], "n_refits": 2}


def _point() -> dict[str, Any]:
    return {"law": _fitted(), "N": N, "D": np.array([1e6, 2e6]), "Dp": np.array([2.5e5, 1e6])}


def _fields() -> dict[str, Any]:
    return {
        "N": 1e6, "D": 3e6, "Dp": {"c": 1e6}, "loss": 2.0, "losses": {"c": 2.0}, "baselines": {"50/50": 2.1},
        "tokens": 4e6, "flops": 2.4e13, "trunk": "shared", "interval": pd.DataFrame(), "notes": (),
    }


CHECKS = {
    "SplitLaw": {
        "make": _law,
        "fit": _runs,
        "monotone": _falling,
        "budgets": [1e11, 1e12, 1e13, 1e14],
        "optimal": _optimal,
        "bad": [
            lambda: _law().fit(*_spoilt(0, -1.0)),
            lambda: _law().fit(*_spoilt(0, 0.0)),
            lambda: _law().fit(*_spoilt(1, -5.0)),
            lambda: _law().fit(*_spoilt(2, np.nan)),
            lambda: _law().fit(*_spoilt(1, np.inf)),
            lambda: _law().fit(_runs()[0], -_runs()[1]),
            lambda: _law().fit(_runs()[0][:7], _runs()[1][:7]),
            lambda: _law().fit(_runs()[0][:, :2], _runs()[1]),
            lambda: _law().fit(_runs()[0], _runs()[1][:-1]),
            lambda: _law().fit(*_runs(), domain=["c"]),
            lambda: _law(form="separable").fit(*_spoilt(1, 0.0)),
            lambda: _law(form="fancy").fit(*_runs()),
            lambda: _law(loss="mae").fit(*_runs()),
            lambda: _law(n_starts=0).fit(*_runs()),
            lambda: _fitted().predict([[N, 0.0, 1e6]]),
            lambda: _fitted().predict([[N, 0.0, 0.0]]),
            lambda: _fitted().predict(_runs()[0], domain="c"),
        ],
        "excuse": {
            "scikit-learn": "its battery feeds random features of any number and sign; the law takes a positive size "
            "and two numbers of tokens, and positive losses only",
        },
    },
    "optimal_split": {
        "inputs": _planned,
        "bad": [
            lambda: optimal_split(_fitted(), n_params=N),
            lambda: _plan(_fitted(), tokens=-1.0),
            lambda: _plan(_fitted(), tokens=1e6, flops=1e12),
            lambda: _plan(_fitted(), n_params=0),
            lambda: _plan(_fitted(), n_params=[]),
            lambda: _plan(_fitted(), n_domains=0),
            lambda: _plan(_fitted(), weights=[1.0]),
            lambda: _plan(_fitted(), weights={"c": 1.0, "prose": 1.0}),
            lambda: _plan(_fitted(), weights=[1.0, -1.0]),
            lambda: _plan(_fitted(), trunk="both"),
            lambda: _plan(_fitted(), bounds={"Dp": (5e6, 6e6)}),
            lambda: _plan(_fitted(), bounds={"E": (0, 1)}),
            lambda: _plan(_fitted(), bounds={"D": (2, 1)}),
            lambda: _plan(_fitted(), n_refits=-1),
            lambda: _plan(_fitted(), level=95),
        ],
    },
    "iso_loss_exchange": {
        "inputs": _point,
        "bad": [
            lambda: iso_loss_exchange(_fitted(), N, 0.0, 1e6),
            lambda: iso_loss_exchange(_fitted(), N, 1e6, -1.0),
            lambda: iso_loss_exchange(_fitted(), "large", 1e6, 1e6),
            lambda: iso_loss_exchange(_fitted(), N, [1e6, 1e6], [1e6, 1e6, 1e6]),
            lambda: iso_loss_exchange(_fitted(), N, 1e6, 1e6, domain="c"),
        ],
    },
    "SplitPlan": {
        "inputs": _fields,
        "bad": [
            lambda: SplitPlan(**{**_fields(), "trunk": "both"}),
            lambda: SplitPlan(**{**_fields(), "D": -1.0}),
            lambda: SplitPlan(**{**_fields(), "tokens": 0.0}),
        ],
    },
}
