"""The arms of the study: the boundary and its variants, its controls, and what a practitioner would use instead."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from assay.scaling.prescriptive.baselines import BASELINES, baseline, tuned
from assay.scaling.prescriptive.boundary import CapabilityBoundary
from assay.scaling.prescriptive.design import select_evaluations

__all__ = ["BOUNDARIES", "DESIGNS", "LEVEL", "RIVALS", "choose", "curve_of"]

Array = NDArray[np.float64]

LEVEL = 0.98
RIVALS = ("constant", "bin-wise", "i-spline")
BOUNDARIES: dict[str, dict[str, Any]] = {
    "boundary": {}, "exact": {"exact": True}, "unpenalised": {"lambda_b": 0.0},
    "unpenalised-exact": {"lambda_b": 0.0, "exact": True}, "oversmoothed": {"kappa": 5.0}, "kappa-20": {"kappa": 20.0},
    "kappa-200": {"kappa": 200.0}, "shuffled": {}, "dates-shuffled": {},
}
TUNED_PENALTIES = (0.0, 1e-3, 1e-2)  # of which "tuned" takes the best over three folds of the fitted rows
TUNED_KAPPA, TUNED_STARTS = 400.0, 3  # next to no smoothing, at the price of a smooth fit
DESIGNS = ("i_balanced", "i_optimal", "d_optimal")
RANDOM = ("random", "random-again")  # the second one is the control: chance against chance
PILOT_SHARE = 0.25  # of the budget, spent on models drawn at random, from which the pilot's boundary comes


def curve_of(arm: str, z: Array, y: Array, unit: NDArray[Any], seed: int) -> Any:
    """The fitted arm as a function of log10 compute."""
    if arm in BASELINES:
        return baseline(arm, LEVEL, z, y, unit).predict
    if arm == "tuned":
        return tuned(_QuietCurve, [{"lambda_b": value} for value in TUNED_PENALTIES], LEVEL, z, y, unit).predict
    if arm == "shuffled":
        y = np.random.default_rng(seed).permutation(y)
    return fit_quietly(z, y, **BOUNDARIES[arm])._curve


class _QuietCurve:
    """A boundary with next to no smoothing, on log10 compute, in the form of a baseline."""

    def __init__(self, quantile: float, lambda_b: float) -> None:
        self.settings = {
            "quantile": quantile, "lambda_b": lambda_b, "kappa": TUNED_KAPPA, "n_starts": TUNED_STARTS,
        }

    def fit(self, z: Array, y: Array) -> Self:
        self.predict = fit_quietly(z, y, **self.settings)._curve
        return self


def fit_quietly(z: Array, y: Array, **settings: Any) -> CapabilityBoundary:
    """A boundary fitted without the warning on few models: that a pilot is small is the point."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return CapabilityBoundary(**settings).fit(10**z, y)


def choose(arm: str, z: Array, y: Array, cost: Array, share: float, seed: int) -> NDArray[np.intp]:
    """The models that an arm evaluates for a share of the total cost, the pilot's among them.

    All arms of a seed start from the same pilot; what it costs is part of the budget.
    """
    rng = np.random.default_rng([seed, len(z)])
    order, budget = rng.permutation(len(z)), share * cost.sum()
    count = max(1, int(np.searchsorted(np.cumsum(cost[order]), PILOT_SHARE * budget, side="right")))
    while np.ptp(z[order[:count]]) == 0:
        count += 1
    pilot, rest = order[:count], order[count:]
    left = budget - cost[pilot].sum()
    if arm in RANDOM:
        drawn = np.random.default_rng([seed, len(z), 1 + RANDOM.index(arm)]).permutation(rest)
        return np.concatenate([pilot, drawn[_affordable(cost[drawn], left)]])
    found = fit_quietly(z[pilot], y[pilot])
    theta = (found.y0_, found.L_, found.z_star_, found.b_)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        chosen = select_evaluations(z[rest], cost[rest], max(0.0, float(left)), theta, arm)
    return np.concatenate([pilot, rest[chosen]])


def _affordable(cost: Array, budget: float) -> NDArray[np.bool_]:
    """In the given order, every model that still fits in what is left."""
    taken = np.zeros(len(cost), dtype=bool)
    for i, price in enumerate(cost):
        if price <= budget:
            taken[i] = True
            budget -= price
    return taken
