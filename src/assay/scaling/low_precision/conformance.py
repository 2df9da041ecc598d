"""Small instances and inputs for the conformance checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from assay.scaling.low_precision.law import PrecisionLaw
from assay.scaling.low_precision.planning import plan_precision
from assay.scaling.low_precision.quantisers import QuantScheme, bits_to_eps, eps_to_bits, stochastic_round
from assay.scaling.low_precision.recursion import risk_grid, risk_recursion
from assay.scaling.low_precision.simulation import sketched_sgd
from assay.scaling.low_precision.spectra import spectrum_from_data, spectrum_powerlaw, target_powerlaw

NAN = float("nan")
WORD: Any = "much"


def _law(**settings: Any) -> PrecisionLaw:
    return PrecisionLaw(**{"mode": "additive", "n_starts": 4, **settings})


def _runs() -> tuple[np.ndarray, np.ndarray]:
    """Losses that the additive form describes."""
    steps = [0.0, bits_to_eps(6), bits_to_eps(3)]
    M, N, eps = (grid.ravel() for grid in np.meshgrid([8.0, 32, 128, 512], [1e3, 1e4, 1e5], steps))
    sizes = (M**-1.5 + eps / 2) ** (-1 / 1.5)
    loss = 0.05 + 4 / sizes**0.8 + 20 / (N / (1 + 3 * eps * M)) ** 0.6 + 0.5 * eps
    return np.column_stack([M, N, eps]), loss


def _spoilt(column: int, value: float) -> tuple[np.ndarray, np.ndarray]:
    X, y = _runs()
    X[5, column] = value
    return X, y


def _frame(**columns: Any) -> tuple[pd.DataFrame, np.ndarray]:
    X, y = _runs()
    return pd.DataFrame(X, columns=["M", "N", "eps"]).assign(**columns), y


def _falling(law: PrecisionLaw) -> list[np.ndarray]:
    """Loss in the samples; in the bits; and in the size, in full precision."""
    ladder = np.geomspace(10, 1e5, 9)
    at = np.full(9, 64.0)
    return [
        law.predict(np.column_stack([at, ladder, np.full(9, 0.01)])),
        law.predict(np.column_stack([at, np.full(9, 1e4), bits_to_eps(np.arange(1.0, 10.0))])),
        law.predict(np.column_stack([ladder, np.full(9, 1e4), np.zeros(9)])),
    ]


def _optimal(law: PrecisionLaw, budget: float) -> tuple[float, float]:
    best = law.optimal(budget, bits=[3, 6, 12])
    return best["M"] * best["N"] * best["bits"], best["loss"]


def _problem(**changes: Any) -> dict[str, Any]:
    lam = spectrum_powerlaw(24, 1.5)
    return {
        "spectrum": lam, "target": target_powerlaw(lam, 2.0), "M": 4, "N": 60,
        "scheme": QuantScheme("multiplicative", data=0.1), "seeds": 3, **changes,
    }


def _grid(**changes: Any) -> dict[str, Any]:
    given = _problem()
    schemes = [QuantScheme(), QuantScheme("additive", data=0.01, param=0.01)]
    return {
        "spectrum": given["spectrum"], "target": given["target"], "sizes": [2, 4], "samples": [40, 80],
        "schemes": schemes, "seeds": 2, **changes,
    }


def _bad_problems(function: Any) -> list[Any]:
    H = np.diag([1.0, 0.5, -0.2])
    return [
        lambda: function(**_problem(M=25)),
        lambda: function(**_problem(M=0)),
        lambda: function(**_problem(N=1)),
        lambda: function(**_problem(spectrum=H, target=np.ones(3), M=2)),
        lambda: function(**_problem(spectrum=np.array([1.0, NAN]), target=np.ones(2), M=1)),
        lambda: function(**_problem(target=np.ones(7))),
        lambda: function(**_problem(scheme="int8")),
        lambda: function(**_problem(lr=-0.1)),
        lambda: function(**_problem(lr="large")),
        lambda: function(**_problem(noise=-1.0)),
        lambda: function(**_problem(seeds=0)),
        lambda: function(**_problem(batch=0)),
    ]


CHECKS = {
    "PrecisionLaw": {
        "make": _law,
        "fit": _runs,
        "monotone": _falling,
        "budgets": [1e5, 1e6, 1e7, 1e8],
        "optimal": _optimal,
        "bad": [
            lambda: _law().fit(*_spoilt(0, -1.0)),
            lambda: _law().fit(*_spoilt(1, 0.0)),
            lambda: _law().fit(*_spoilt(2, -0.1)),
            lambda: _law().fit(*_spoilt(2, NAN)),
            lambda: _law().fit(_runs()[0], -_runs()[1]),
            lambda: _law().fit(_runs()[0][:5], _runs()[1][:5]),
            lambda: _law().fit(_runs()[0][:, :2], _runs()[1]),
            lambda: _law().fit(_runs()[0], _runs()[1][:-1]),
            lambda: _law().fit(_runs()[0], np.full(len(_runs()[1]), np.inf)),
            lambda: _law().fit(*_frame(bits=4.0)),
            lambda: _law().fit(_frame()[0].drop(columns="eps"), _runs()[1]),
            lambda: _law().fit(_frame()[0].drop(columns="eps").assign(bits=0.5), _runs()[1]),
            lambda: _law(mode="int8").fit(*_runs()),
            lambda: _law(mode="multiplicative", effective="model").fit(*_runs()),
            lambda: _law(n_starts=0).fit(*_runs()),
            lambda: _law().fit(*_runs()).optimal(-1.0),
            lambda: _law().fit(*_runs()).compare_forms(_runs()[0]),
        ],
        "excuse": {
            "scikit-learn": "its battery feeds random features of any number and sign; the law takes two positive "
            "columns, a third of 0 or more, and positive losses only",
        },
    },
    "QuantScheme": {
        "inputs": lambda: {"mode": "int", "data": 8, "param": 4, "full_scale": 2.0},
        "bad": [
            lambda: QuantScheme("fp8"),
            lambda: QuantScheme("additive", data=-0.1),
            lambda: QuantScheme("int", data=0.5),
            lambda: QuantScheme("multiplicative", label=NAN),
            lambda: QuantScheme("none", data=0.1),
            lambda: QuantScheme("int", data=8, full_scale=0.0),
            lambda: QuantScheme("additive", data=WORD),
            lambda: QuantScheme("additive", data=0.1).eps("weights"),
        ],
    },
    "bits_to_eps": {
        "inputs": lambda: {"bits": np.array([1.0, 4.0, 8.0])},
        "bad": [lambda: bits_to_eps(0.5), lambda: bits_to_eps([4, NAN]), lambda: bits_to_eps("int8")],
    },
    "eps_to_bits": {
        "inputs": lambda: {"eps": np.array([0.1, 0.01])},
        "bad": [lambda: eps_to_bits(-0.1), lambda: eps_to_bits(NAN), lambda: eps_to_bits(0.1, full_scale=-1)],
    },
    "plan_precision": {
        "inputs": lambda: {"law": _law().fit(*_runs()), "bit_budget": 1e7, "bits": np.array([3.0, 6.0])},
        "bad": [
            lambda: plan_precision(_law(), 1e7),
            lambda: plan_precision(WORD, 1e7),
            lambda: plan_precision(_law().fit(*_runs()), -1e7),
            lambda: plan_precision(_law().fit(*_runs()), WORD),
            lambda: plan_precision(_law().fit(*_runs()), 1e7, bits=[0.5]),
            lambda: plan_precision(_law().fit(*_runs()), 1e7, bits=[4], memory_bits=1.0),
            lambda: plan_precision(_law().fit(*_runs()), 1e7, bits=[4], memory_bits=WORD),
        ],
    },
    "risk_grid": {
        "inputs": _grid,
        "bad": [
            lambda: risk_grid(**_grid(sizes=[])),
            lambda: risk_grid(**_grid(schemes=[])),
            lambda: risk_grid(**_grid(sizes=[25])),
            lambda: risk_grid(**_grid(schemes=["mult"])),
            lambda: risk_grid(**_grid(samples=[1])),
        ],
    },
    "risk_recursion": {
        "inputs": _problem,
        "bad": [
            *_bad_problems(risk_recursion),
            lambda: risk_recursion(**_problem(method="guess")),
            lambda: risk_recursion(**_problem(sketch=np.ones((3, 3)))),
        ],
    },
    "sketched_sgd": {"inputs": _problem, "bad": _bad_problems(sketched_sgd)},
    "spectrum_from_data": {
        "inputs": lambda: {"X": np.random.default_rng(0).standard_normal((40, 8)), "y": np.arange(40.0)},
        "bad": [
            lambda: spectrum_from_data(np.full((10, 4), NAN)),
            lambda: spectrum_from_data(np.ones((10, 4))),
            lambda: spectrum_from_data(np.eye(10)[:, :2]),
            lambda: spectrum_from_data(np.eye(10), np.ones(3)),
            lambda: spectrum_from_data(np.eye(10), np.ones(10)),
        ],
    },
    "spectrum_powerlaw": {
        "inputs": lambda: {"p": 5, "a": 1.5},
        "bad": [
            lambda: spectrum_powerlaw(5, 1.0), lambda: spectrum_powerlaw(0, 2.0), lambda: spectrum_powerlaw(5, NAN),
        ],
    },
    "stochastic_round": {
        "inputs": lambda: {"u": np.array([0.25, -1.5, 0.0]), "step": 0.5, "generator": 3},
        "bad": [
            lambda: stochastic_round([0.1]),
            lambda: stochastic_round([0.1], step=0.1, rel_eps=0.1),
            lambda: stochastic_round([NAN], step=0.1),
            lambda: stochastic_round([0.1], step=-0.1),
            lambda: stochastic_round([0.1], step=0.1, generator=WORD),
        ],
    },
    "target_powerlaw": {
        "inputs": lambda: {"spectrum": np.array([1.0, 0.5, 0.2]), "b": 2.0},
        "bad": [
            lambda: target_powerlaw([1.0, 0.5], 1.0),
            lambda: target_powerlaw([1.0, -0.5], 2.0),
            lambda: target_powerlaw([1.0, NAN], 2.0),
        ],
    },
}
