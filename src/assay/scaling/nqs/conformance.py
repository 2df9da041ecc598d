"""Small instances and inputs for the conformance checks."""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.datasets import load_dataset
from assay.scaling.nqs.estimator import NQS
from assay.scaling.nqs.noisy_quadratic import nqs_risk, nqs_risk_regularized, risk_components

THETA = {
    "p": 1.1131253732848405, "q": 0.584242820729791, "P": 3.3926855412266743, "Q": 0.8853327469240055,
    "e_irr": 0.35449737765209993, "R": 8.410028810517371, "r": 2.5829307382669966,
}
SEQ_LEN = 128


def _law(**settings: Any) -> NQS:
    return NQS(**{"variant": "standard", "n_starts": 2, **settings})


def _runs() -> tuple[np.ndarray, np.ndarray]:
    runs = load_dataset("nqs-smoke-runs")
    return runs[["N", "B", "K"]].to_numpy(dtype=float), runs["loss"].to_numpy()


def _spoilt(column: int, value: float) -> tuple[np.ndarray, np.ndarray]:
    X, y = _runs()
    X[3, column] = value
    return X, y


def _falling(law: NQS) -> list[np.ndarray]:
    """Loss in the batch size at fixed updates, and in the model size where noise plays no part."""
    batches, sizes = np.geomspace(1, 4096, 13), np.geomspace(1e3, 1e8, 13)
    return [
        law.predict(np.column_stack([np.full(13, 1e5), batches, np.full(13, 1e3)])),
        np.asarray(nqs_risk({**law.params_, "R": 0.0}, sizes, 64, 1000)),
    ]


def _optimal(law: NQS, budget: float) -> tuple[float, float]:
    best = law.optimal(budget, seq_len=SEQ_LEN, batch_grid=[4, 16]).iloc[0]
    return 6 * best["N"] * best["B"] * best["K"] * SEQ_LEN, best["loss"]


def _sizes() -> dict[str, Any]:
    return {"theta": THETA, "N": np.array([1e6, 64e6]), "B": np.array([256.0, 2048.0]), "K": np.array([500.0, 1e4])}


def _bad_risks(risk: Any) -> list[Any]:
    return [
        lambda: risk({}, 1e6, 64, 100),
        lambda: risk({**THETA, "p": 0.9}, 1e6, 64, 100),
        lambda: risk({**THETA, "Q": np.nan}, 1e6, 64, 100),
        lambda: risk(THETA, 0, 64, 100),
        lambda: risk(THETA, 1e6, np.inf, 100),
        lambda: risk(THETA, 1e6, 64, -5),
        lambda: risk(THETA, "many", 64, 100),
        lambda: risk(THETA, [1e6, 1e6], [64, 64, 64], 100),
    ]


CHECKS = {
    "NQS": {
        "make": _law,
        "fit": _runs,
        "monotone": _falling,
        "budgets": [1e11, 1e12, 1e13, 1e14],
        "optimal": _optimal,
        "bad": [
            lambda: _law().fit(*_spoilt(0, -1.0)),
            lambda: _law().fit(*_spoilt(1, 0.0)),
            lambda: _law().fit(*_spoilt(2, np.nan)),
            lambda: _law().fit(_runs()[0], -_runs()[1]),
            lambda: _law().fit(_runs()[0][:7], _runs()[1][:7]),
            lambda: _law().fit(_runs()[0][:, :2], _runs()[1]),
            lambda: _law().fit(load_dataset("nqs-smoke-runs").drop(columns="B"), _runs()[1]),
            lambda: _law(loss="mae").fit(*_runs()),
            lambda: _law(variant="fancy").fit(*_runs()),
            lambda: _law(n_starts=0).fit(*_runs()),
            lambda: _law().fit(*_runs()).optimal(seq_len=SEQ_LEN),
            lambda: _law().fit(*_runs()).critical_batch_size(-1, 1e6, seq_len=SEQ_LEN),
        ],
        "excuse": {
            "scikit-learn": "its battery feeds random features of any number and sign; the law takes three positive "
            "columns and positive losses only",
        },
    },
    "nqs_risk": {"inputs": _sizes, "bad": _bad_risks(nqs_risk)},
    "nqs_risk_regularized": {
        "inputs": _sizes,
        "bad": [*_bad_risks(nqs_risk_regularized), lambda: nqs_risk_regularized(THETA, 1e6, 64, 0)],
    },
    "risk_components": {"inputs": _sizes, "bad": _bad_risks(risk_components)},
}
