"""Budgets from a few probe steps: ours and what one would use instead, judged by the true number of steps.

The truth comes from running on and from the lowest loss that each task can have (the Riccati solution, or GRAPE on its
own pulse), never from a fitted asymptote. A predictor sees the losses of the probe steps alone and gives the gain that
it expects after any number of steps.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from assay.scaling.meta_adaptation.law import adaptation_budget, saturating

__all__ = ["PREDICTORS", "judge_probes", "true_steps"]

Array = NDArray[np.float64]
Gain = Callable[[Array], Array]

FRACTION = 0.95
PRICE = 0.01
"""Of one step, as a share of the task's true asymptotic gain."""
ALWAYS = 10
LOG_LONGEST = float(np.log(1e6))


def judge_probes(arm: str, losses: Array, lowest: Array, n_probes: int) -> pd.DataFrame:
    """One row a task: relative errors of K_0.95 and A, the share of the net gain lost, whether the answer was trusted.

    Where no answer is given the error is infinite and one stays at the probe steps.
    """
    longest = losses.shape[1] - 1
    steps = np.arange(longest + 1, dtype=float)
    rows = []
    for curve, low in zip(losses, lowest, strict=True):
        a_true = curve[0] - low
        truth, reached = true_steps(curve[0] - curve, a_true)
        k, a, reliable, expected = PREDICTORS[arm](curve[: n_probes + 1])
        net = (curve[0] - curve) - PRICE * a_true * steps
        chosen = _chosen(expected, a_true, steps, n_probes) if arm != "always-10" else min(ALWAYS, longest)
        rows.append({
            "k_error": abs(k - truth) / truth if np.isfinite(k) else np.inf,
            "a_error": abs(a - a_true) / a_true if np.isfinite(a) else np.inf,
            "lost": 1 - net[chosen] / net.max(), "reliable": float(reliable), "k_true": truth,
            "reached": float(reached),
        })
    return pd.DataFrame(rows)


def true_steps(gains: Array, a_inf: float) -> tuple[float, bool]:
    """Steps until 95 % of the asymptotic gain, between two steps linearly; if it was never reached, all the steps run.

    Then the true number is larger, and a prediction below it has an error larger than the one computed.
    """
    target = FRACTION * a_inf
    above = np.flatnonzero(gains >= target)
    if not len(above):
        return float(len(gains) - 1), False
    k = int(above[0])
    if k == 0:
        return 0.0, True
    return float(k - 1 + (target - gains[k - 1]) / (gains[k] - gains[k - 1])), True


def _chosen(expected: Gain | None, a_true: float, steps: Array, n_probes: int) -> int:
    if expected is None:
        return n_probes
    return int(np.argmax(expected(steps) - PRICE * a_true * steps))


Answer = tuple[float, float, bool, "Gain | None"]
NOTHING: Answer = (np.nan, np.nan, False, None)


def _ours(losses: Array) -> Answer:
    budget = adaptation_budget(losses, fraction=FRACTION)
    if not np.isfinite(budget.k_star):
        return NOTHING
    return budget.k_star, budget.a_inf, budget.reliable, lambda K: saturating(K, budget.a_inf, budget.beta)


def _reversed(losses: Array) -> Answer:
    """The control: the same increments in the opposite order."""
    increments = np.diff(losses)[::-1]
    return _ours(np.concatenate([losses[:1], losses[0] + np.cumsum(increments)]))


def _aitken(losses: Array) -> Answer:
    first, second = losses[0] - losses[1], losses[1] - losses[2]
    if not 0 < second < first:
        return NOTHING
    a, beta = first**2 / (first - second), -np.log(second / first)
    return float(-np.log(1 - FRACTION) / beta), float(a), True, lambda K: saturating(K, a, beta)


def _exponential(losses: Array) -> Answer:
    """Three parameters: a + b exp(-c K)."""
    found = _fit(lambda K, a, b, c: a + b * np.exp(-np.exp(c) * K), losses, -2.0)
    if found is None:
        return NOTHING
    _, b, c = found
    rate = np.exp(c)
    return float(-np.log(1 - FRACTION) / rate), float(b), True, lambda K: saturating(K, b, rate)


def _power(losses: Array) -> Answer:
    """Three parameters: a + b (K + 1)^-c."""
    found = _fit(lambda K, a, b, c: a + b * (K + 1) ** -np.exp(c), losses, 0.0)
    if found is None:
        return NOTHING
    _, b, c = found
    exponent = np.exp(c)
    # A slow power law needs more steps than a number can hold.
    k = float(np.expm1(min(-np.log(1 - FRACTION) / exponent, LOG_LONGEST)))
    return k, float(b), True, lambda K: b * (1 - (K + 1) ** -exponent)


def _always(losses: Array) -> Answer:
    return float(ALWAYS), np.nan, True, None


def _fit(curve: Callable[..., Array], losses: Array, rate: float) -> Array | None:
    """Least squares as one calls it, on losses scaled to their fall; None where it finds nothing."""
    from scipy.optimize import OptimizeWarning, curve_fit

    fall = losses[0] - losses[-1]
    if not fall > 0:
        return None
    K, y = np.arange(len(losses), dtype=float), (losses - losses[0]) / fall
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OptimizeWarning)
        try:
            found, _ = curve_fit(curve, K, y, p0=(-2.0, 2.0, rate), maxfev=5000)
        except RuntimeError:
            return None
    return found * np.array([fall, fall, 1.0]) if found[1] > 0 else None


PREDICTORS: dict[str, Callable[[Array], Answer]] = {
    "adaptation": _ours, "reversed": _reversed, "aitken": _aitken, "exponential": _exponential, "power": _power,
    "always-10": _always,
}
