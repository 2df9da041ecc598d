"""Laws: estimators whose predictions have the right shape, and whose optimum keeps to its budget."""

from __future__ import annotations

import numpy as np

from assay.conformance.kinds import estimator
from assay.conformance.kinds.estimator import exercise
from assay.conformance.subject import Subject

__all__ = ["CHECKS", "exercise"]

ROUNDING = 1e-9


def _monotone(subject: Subject, name: str) -> None:
    """None of the declared vectors of predictions rises, and each of them falls somewhere."""
    entry = subject.entry(name)
    law, _ = estimator.fitted(entry)
    vectors = [np.asarray(vector, dtype=float) for vector in entry["monotone"](law)]
    assert vectors, f"{name}: `monotone` gives no vector"
    for number, vector in enumerate(vectors, 1):
        assert vector.ndim == 1 and len(vector) >= 3, f"{name}: vector {number} of `monotone` has fewer than 3 entries"
        assert np.isfinite(vector).all(), f"{name}: vector {number} of `monotone` is not finite"
        steps = np.diff(vector)
        rounding = ROUNDING * np.abs(vector).max()
        rises = np.flatnonzero(steps > rounding)
        assert not rises.size, f"{name}: vector {number} rises after entry {rises[0]}"
        assert vector[-1] < vector[0], f"{name}: vector {number} is constant"


def _optimal(subject: Subject, name: str) -> None:
    """What `optimal` recommends costs no more than the budget, and a larger budget gives no larger loss."""
    entry = subject.entry(name)
    law, _ = estimator.fitted(entry)
    budgets = list(entry["budgets"])
    assert len(budgets) >= 3 and budgets == sorted(set(budgets)), f"{name}: `budgets` must be 3 or more rising numbers"
    losses = []
    for budget in budgets:
        cost, loss = entry["optimal"](law, budget)
        assert 0 < cost <= budget * (1 + ROUNDING), f"{name}: with the budget {budget:g} the optimum costs {cost:g}"
        losses.append(float(loss))
    assert np.isfinite(losses).all(), f"{name}: a predicted loss is not finite: {losses}"
    rises = np.diff(losses) > ROUNDING * np.abs(losses).max()
    assert not rises.any(), f"{name}: the predicted loss rises with the budget: {losses}"


CHECKS = {**estimator.CHECKS, "monotone": _monotone, "optimal": _optimal}
