"""Small inputs for the conformance checks."""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.scaling.meta_adaptation.law import adaptation_budget, adaptation_decision, fit_adaptation_law
from assay.scaling.meta_adaptation.lqr import LQRFamily

STEPS = np.array([0.0, 1.0, 2.0, 4.0, 8.0])
RATES = np.array([[0.2], [0.3], [0.4], [0.35]])
GAINS = -np.expm1(-RATES * STEPS) + [0.0, 0.02, -0.01, 0.01, -0.02]
LOSSES = 2.0 + np.expm1(-RATES * np.arange(5.0))


def _bad_fit(steps: Any, gains: Any, **given: Any) -> Any:
    return lambda: fit_adaptation_law(steps, gains, **given)


def _bad_budget(losses: Any, **given: Any) -> Any:
    return lambda: adaptation_budget(losses, **given)


def _qubits(*args: Any, **given: Any) -> Any:
    def make() -> Any:
        from assay.scaling.meta_adaptation.qubits import QubitFamily

        return QubitFamily(*args, **given)

    return make


def _distance(theta: Any, task: Any) -> Any:
    return (theta - task).square().sum()


def _curve(**given: Any) -> Any:
    def make() -> Any:
        from assay.scaling.meta_adaptation.curves import AdaptationCurve

        settings = {"loss_fn": _distance, "theta0": np.zeros(2), "tasks": np.ones((3, 2)), "lr": 0.1, "steps": 2}
        return AdaptationCurve(**{**settings, **given})

    return make


CHECKS = {
    "fit_adaptation_law": {
        "inputs": lambda: {"steps": STEPS.copy(), "gains": GAINS.copy(), "n_boot": 20, "random_state": 0},
        "bad": [
            _bad_fit([0, 1, 2], [0.0, 0.1, 0.2]), _bad_fit(STEPS, GAINS[:, :3]), _bad_fit(STEPS, GAINS * np.nan),
            _bad_fit(-STEPS, GAINS), _bad_fit(STEPS, GAINS, sem=-np.ones(5)), _bad_fit(STEPS, GAINS, n_boot=-1),
        ],
    },
    "adaptation_budget": {
        "inputs": lambda: {"losses": LOSSES.copy(), "price": 0.01, "random_state": 0},
        "bad": [
            _bad_budget([1.0, 0.5]), _bad_budget([np.nan, 1.0, 0.5]), _bad_budget([1.0, -0.5, -1.0]),
            _bad_budget(LOSSES, fraction=1.0), _bad_budget(LOSSES, price=0.0),
            _bad_budget(LOSSES, fraction=0.5, price=1),
        ],
    },
    "adaptation_decision": {
        "inputs": lambda: {"task_var": 0.04, "c": 0.5, "beta": 0.2, "price": 0.001},
        "bad": [
            lambda: adaptation_decision(-1.0, 0.5, 0.2, 0.001), lambda: adaptation_decision(0.04, 0.5, 0.0, 0.001),
            lambda: adaptation_decision(0.04, 0.5, 0.2, 0.0), lambda: adaptation_decision(np.nan, 0.5, 0.2, 0.001),
        ],
    },
    "LQRFamily": {
        "inputs": lambda: {"masses": np.array([0.8, 1.0, 1.25])},
        "bad": [
            lambda: LQRFamily([0.0, 1.0]), lambda: LQRFamily([]), lambda: LQRFamily([1.0], r=-1.0),
            lambda: LQRFamily([1.0]).costs([1.0, 2.0, 3.0]), lambda: LQRFamily([1.0]).curve(0),
        ],
    },
    "QubitFamily": {
        "inputs": lambda: {"gate": "x", "gammas": np.array([[0.02, 0.05], [0.04, 0.1]])},
        "bad": [
            _qubits("swap", [[0.1, 0.1]]), _qubits("x", [[-0.1, 0.1]]), _qubits("x"),
            _qubits("x", t1_us=[10.0, 20.0], t2_us=[15.0, 50.0], gate_ns=30.0),
            _qubits("x", t1_us=[10.0], t2_us=[0.0], gate_ns=30.0), _qubits("cz", [[0.1, 0.1]]),
        ],
    },
    "AdaptationCurve": {
        "inputs": lambda: {
            "loss_fn": _distance, "theta0": np.zeros(2), "tasks": np.array([[1.0, 2.0], [0.5, 0.25]]), "lr": 0.1,
            "steps": 2,
        },
        "bad": [_curve(lr=0.0), _curve(steps=0), _curve(optimizer="sgd"), _curve(tasks=np.array([[np.nan, 1.0]])),
                _curve(loss_fn=None)],
    },
}
