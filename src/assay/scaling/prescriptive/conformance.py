"""Small instances and inputs for the conformance checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from assay.datasets import load_dataset
from assay.scaling.prescriptive.bins import equal_mass_bins
from assay.scaling.prescriptive.boundary import CapabilityBoundary
from assay.scaling.prescriptive.design import select_evaluations
from assay.scaling.prescriptive.pinball import smooth_pinball
from assay.scaling.prescriptive.validation import temporal_validation

THETA = np.array([0.2, 0.6, 7.5, 1.5])


def _boundary(**settings: Any) -> CapabilityBoundary:
    return CapabilityBoundary(**{"lambda_b": 1e-4, "n_starts": 3, **settings})


def _models() -> tuple[np.ndarray, np.ndarray]:
    table = load_dataset("prescriptive-smoke")
    return table["flops"].to_numpy(dtype=float), table["accuracy"].to_numpy()


def _spoilt(which: int, value: float) -> tuple[np.ndarray, np.ndarray]:
    flops, accuracy = (values.copy() for values in _models())
    (flops, accuracy)[which][3] = value
    return flops, accuracy


def _read(estimator: CapabilityBoundary, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    return estimator.predict(X)


def _pool() -> dict[str, Any]:
    flops, _ = _models()
    cost = load_dataset("prescriptive-smoke")["params"].to_numpy(dtype=float)
    # Numbers that both float types hold, or ties among equal models could be broken otherwise.
    z = np.round(np.log10(flops) * 16) / 16
    return {"z": z, "cost": cost, "budget": 0.1 * cost.sum(), "theta0": THETA.tolist()}


def _periods() -> dict[str, Any]:
    table = load_dataset("prescriptive-smoke")
    return {
        "df": table.assign(flops=table["flops"].astype(float)), "time": "period", "x": "flops", "y": "accuracy",
        "periods": [2, 4], "group": "family",
    }


def _validation(**changes: Any) -> pd.DataFrame:
    return temporal_validation(**{**_periods(), **changes})


CHECKS = {
    "CapabilityBoundary": {
        "make": _boundary,
        "fit": _models,
        "use": _read,
        "bad": [
            lambda: _boundary().fit(*_spoilt(0, -1.0)),
            lambda: _boundary().fit(*_spoilt(0, np.nan)),
            lambda: _boundary().fit(*_spoilt(1, np.nan)),
            lambda: _boundary().fit(_models()[0], 100 * _models()[1]),
            lambda: _boundary().fit(_models()[0], _models()[1] - 0.5),
            lambda: _boundary().fit(np.full(50, 1e20), np.linspace(0, 1, 50)),
            lambda: _boundary().fit(_models()[0][:40], _models()[1][:41]),
            lambda: _boundary().fit(np.ones((30, 2)), _models()[1][:30]),
            lambda: _boundary().fit([], []),
            lambda: _boundary(quantile=1.0).fit(*_models()),
            lambda: _boundary(kappa=0.0).fit(*_models()),
            lambda: _boundary(lambda_b=-1.0).fit(*_models()),
            lambda: _boundary(n_starts=0).fit(*_models()),
            lambda: _boundary().fit(*_models(), sample_weight=-np.ones(len(_models()[0]))),
            lambda: _boundary().fit(*_models()).bootstrap(*_models(), n=0),
            lambda: _boundary().fit(*_models()).bootstrap(*_models(), n=2, groups=["a"] * len(_models()[0])),
            lambda: _boundary().fit(*_models()).predict([0.0]),
            lambda: _boundary().fit(*_models()).inverse(40.0),
        ],
        "excuse": {
            "scikit-learn": "its battery feeds random features of any number and sign and labels of any size; a "
            "boundary takes one column of positive compute and scores in [0, 1]",
        },
    },
    "select_evaluations": {
        "inputs": _pool,
        "bad": [
            lambda: select_evaluations(**{**_pool(), "cost": -_pool()["cost"]}),
            lambda: select_evaluations(**{**_pool(), "cost": _pool()["cost"][:5]}),
            lambda: select_evaluations(**{**_pool(), "z": np.full(len(_pool()["z"]), np.inf)}),
            lambda: select_evaluations(**{**_pool(), "budget": -1.0}),
            lambda: select_evaluations(**{**_pool(), "theta0": (0.2, 0.9, 7.5, 1.5)}),
            lambda: select_evaluations(**{**_pool(), "theta0": (0.2, 0.6, 7.5)}),
            lambda: select_evaluations(**{**_pool(), "objective": "a_optimal"}),
            lambda: select_evaluations(**{**_pool(), "balance": -1.0}),
            lambda: select_evaluations(**{**_pool(), "questions": 0}),
        ],
    },
    "temporal_validation": {
        "inputs": _periods,
        # A fit's best start may be another one in single precision; the curves differ by less than this.
        "tolerance": 5e-3,
        "bad": [
            lambda: _validation(time="week"),
            lambda: _validation(y=[]),
            lambda: _validation(mode="rolling"),
            lambda: _validation(periods=[4]),
            lambda: _validation(periods=[4, 2]),
            lambda: _validation(periods=[1, 9, 12]),
            lambda: _validation(df=_periods()["df"].assign(period="soon"), periods=["2024-01-01", "2025-01-01"]),
        ],
    },
    "smooth_pinball": {
        "inputs": lambda: {"u": np.linspace(-0.5, 0.5, 11), "tau": 0.98, "kappa": 50.0},
        "bad": [
            lambda: smooth_pinball([0.1], 1.5, 50.0),
            lambda: smooth_pinball([0.1], 0.98, 0.0),
            lambda: smooth_pinball([np.nan], 0.98, 50.0),
            lambda: smooth_pinball(["much"], 0.98, 50.0),
        ],
    },
    "equal_mass_bins": {
        "inputs": lambda: {"z": _pool()["z"], "k": 5, "min_size": 30},
        "bad": [
            lambda: equal_mass_bins([]),
            lambda: equal_mass_bins([1.0, np.nan]),
            lambda: equal_mass_bins([1.0, 2.0], k=0),
            lambda: equal_mass_bins([1.0, 2.0], min_size=-2),
        ],
    },
}
