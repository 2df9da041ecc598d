"""Small instances and inputs for the conformance checks."""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.scaling.irsl.adaptive import AdaptiveTest
from assay.scaling.irsl.estimator import BetaIRT
from assay.scaling.irsl.laws import ItemResponseScalingLaw, decision_accuracy, pass_at_k, pass_at_k_unbiased
from assay.scaling.irsl.likelihood import beta_nll, two_pl_nll
from assay.scaling.irsl.tables import SLICE, load_table


def _responses() -> np.ndarray:
    """One source of the slice: 90 checkpoints, 36 questions."""
    table = load_table(SLICE)
    return table.p[:, table.of("numpy")]


def _spoilt(value: float) -> np.ndarray:
    Y = _responses()
    Y[3, 5] = value
    return Y


def _fitted() -> BetaIRT:
    return BetaIRT().fit(_responses()[:-1])


def _asked() -> float:
    return AdaptiveTest(_fitted(), budget=10).run(_responses()[-1])


def _tell(item: Any, y: Any) -> AdaptiveTest:
    test = AdaptiveTest(_fitted(), budget=10)
    test.tell(0, 0.2)
    test.tell(item, y)
    return test


def _line() -> tuple[np.ndarray, np.ndarray]:
    return np.geomspace(1e12, 1e15, 7), np.array([-1.1, -0.6, -0.2, 0.1, 0.3, 0.7, 1.0])


def _bad_line(flops: Any, theta: Any, degree: int = 1) -> Any:
    return lambda: ItemResponseScalingLaw(degree).fit(flops, theta)


CHECKS = {
    "BetaIRT": {
        "make": BetaIRT,
        "fit": lambda: (_responses(),),
        "use": lambda irt, Y: (irt.ability_, irt.ease_, irt.phi_, irt.score_ability(Y)[0], irt.predict_proba()),
        "bad": [
            lambda: BetaIRT().fit(_spoilt(1.5)), lambda: BetaIRT().fit(_spoilt(-0.1)),
            lambda: BetaIRT().fit(100 * _responses()), lambda: BetaIRT().fit(_spoilt(np.inf)),
            lambda: BetaIRT().fit(_responses()[:1]), lambda: BetaIRT().fit(_responses()[0]),
            lambda: BetaIRT().fit(_responses(), groups=["a", "b"]), lambda: BetaIRT(model="3pl").fit(_responses()),
            lambda: BetaIRT(phi=-1.0).fit(_responses()), lambda: BetaIRT(method="guess").fit(_responses()),
            lambda: BetaIRT(method="random-abilities").fit(_responses()), lambda: BetaIRT(prior_sd=0).fit(_responses()),
            lambda: BetaIRT(model="2pl", method="marginal").fit(_responses()),
            lambda: _fitted().score_ability(_responses()[:, :-1]), lambda: _fitted().predict_proba([np.nan]),
        ],
        "excuse": {
            "scikit-learn": "its battery feeds random features of any number and sign; responses lie in [0, 1]",
        },
    },
    "AdaptiveTest": {
        "run": _asked,
        "bad": [
            lambda: AdaptiveTest(BetaIRT()), lambda: AdaptiveTest(_fitted(), budget=0),
            lambda: AdaptiveTest(BetaIRT().fit(_responses(), groups=["a"] * 36)), lambda: _tell(0, 0.2),
            lambda: _tell(99, 0.2), lambda: _tell(1, 2.0), lambda: AdaptiveTest(_fitted(), init_fraction=2),
        ],
    },
    "ItemResponseScalingLaw": {
        "make": ItemResponseScalingLaw,
        "fit": _line,
        "use": lambda law, flops, theta: (law.predict_theta(10 * flops), law.predict_score(flops, [0.5, -1.0])),
        "bad": [
            _bad_line([1e12, -1.0], [0.0, 1.0]), _bad_line([1e12, 1e12], [0.0, 1.0]), _bad_line([1e12, 1e13], [0.0]),
            _bad_line([1e12, 1e13], [0.0, 1.0], 2), _bad_line([1e12, 1e13], [0.0, 1.0], 3),
            lambda: ItemResponseScalingLaw().fit(*_line()).predict_theta([0.0]),
        ],
        "excuse": {"scikit-learn": "its battery feeds a matrix of features; the law takes one positive number a row"},
    },
    "decision_accuracy": {
        "inputs": lambda: {"true": np.array([0.1, 0.4, 0.2]), "pred": np.array([0.2, 0.3, 0.25])},
        "bad": [
            lambda: decision_accuracy([0.1], [0.2]), lambda: decision_accuracy([0.1, 0.2], [0.1]),
            lambda: decision_accuracy([0.1, 0.1], [0.1, 0.2]), lambda: decision_accuracy([0.1, np.nan], [0.1, 0.2]),
        ],
    },
    "pass_at_k": {
        "inputs": lambda: {"p": np.array([0.0, 0.25, 0.5]), "k": 4},
        "bad": [lambda: pass_at_k([1.2], 2), lambda: pass_at_k([0.2], 0), lambda: pass_at_k("half", 2)],
    },
    "pass_at_k_unbiased": {
        "inputs": lambda: {"n": np.array([10.0, 10.0]), "c": np.array([2.0, 9.0]), "k": 3},
        "bad": [
            lambda: pass_at_k_unbiased(10, 3, 11), lambda: pass_at_k_unbiased(10, 11, 2),
            lambda: pass_at_k_unbiased(10, 2.5, 2), lambda: pass_at_k_unbiased(10, 3, 0),
        ],
    },
    "beta_nll": {
        "inputs": lambda: {"y": np.array([0.1, 0.6]), "mu": np.array([0.2, 0.5]), "phi": 10.0},
        "bad": [
            lambda: beta_nll([1.2], 0.5, 10), lambda: beta_nll([0.2], 1.0, 10), lambda: beta_nll([0.2], 0.5, 0),
            lambda: beta_nll([0.2, 0.3], [0.5, 0.5, 0.5], 10), lambda: beta_nll("much", 0.5, 10),
        ],
    },
    "two_pl_nll": {
        "inputs": lambda: {"y": np.array([0.0, 1.0]), "p": np.array([0.2, 0.5])},
        "bad": [lambda: two_pl_nll([2], 0.5), lambda: two_pl_nll([1], 0.0), lambda: two_pl_nll([1, 0], [0.5] * 3)],
    },
}
