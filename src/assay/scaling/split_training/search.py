"""Fit a formula from many starts at once: Levenberg-Marquardt on a batch of points, squares first, then Huber.

All starts take a step together, so that two hundred of them cost a few array operations an iteration in place of two
hundred searches. Each point has a damping of its own; one that no longer gains leaves the batch. All starts descend in
squares, the best end points then in the objective: the Huber loss by the same steps with rows weighted by
`min(1, delta / |residual|)` (Huber & Ronchetti 2009, section 7.8). A step that raises the objective is not taken.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from assay.scaling.fit import MultiStart
from assay.scaling.split_training.forms import Array

__all__ = ["search"]

Evaluate = Callable[[Array], tuple[Array, Array]]

FIRST_STEPS, FINAL_STEPS = 40, 400
FINALISTS = 8  # end points of the first stage that the second goes on from
CONVERGED = 1e-7  # relative gain of the cost below which a point rests
PATIENCE = 3  # such steps in a row
NEAR_BEST = 1.01
DAMPING = (1e-10, 1e10)


def search(
    evaluate: Evaluate, log_losses: Array, starts: Array, bounds: tuple[Array, Array], loss: str, huber_delta: float
) -> MultiStart:
    """The best fit from all starts.

    Parameters
    ----------
    evaluate : callable
        Points (m, k) to log losses (m, n) and their derivatives (m, n, k).
    log_losses : ndarray, shape (n,)
    starts : ndarray, shape (m, k)
    bounds : pair of ndarray, shape (k,)
    loss : {"mse", "huber"}
    huber_delta : float

    Returns
    -------
    MultiStart
        Costs are half sums of squares, or sums of Huber losses; `n_evaluations` counts points.
    """
    delta = float(huber_delta) if loss == "huber" else np.inf
    ends, _, count = _descend(evaluate, log_losses, np.clip(starts, *bounds), bounds, np.inf, FIRST_STEPS)
    costs = _cost(evaluate(ends)[0] - log_losses, delta)
    best = np.argsort(costs, kind="stable")[:FINALISTS]
    ends[best], costs[best], more = _descend(evaluate, log_losses, ends[best], bounds, delta, FINAL_STEPS)
    count += len(ends) + more
    winner = int(np.argmin(costs))
    near = int(np.sum(costs <= NEAR_BEST * costs[winner]))
    return MultiStart(ends[winner], float(costs[winner]), costs, ends, near, count)


def _descend(
    evaluate: Evaluate, log_losses: Array, starts: Array, bounds: tuple[Array, Array], delta: float, steps: int
) -> tuple[Array, Array, int]:
    """End points (m, k), their costs (m,) and the number of points evaluated."""
    x = starts.copy()
    predicted, jacobian = evaluate(x)
    residuals = predicted - log_losses
    cost, damping = _cost(residuals, delta), np.full(len(x), 1e-2)
    idle, count = np.zeros(len(x), dtype=int), len(x)
    for _ in range(steps):
        active = np.flatnonzero((idle < PATIENCE) & (damping < DAMPING[1]))
        if not len(active):
            break
        trial = np.clip(
            x[active] + _step(residuals[active], jacobian[active], x[active], damping[active], bounds, delta), *bounds
        )
        with np.errstate(all="ignore"):
            predicted, slopes = evaluate(trial)
            moved = predicted - log_losses
            reached = _cost(moved, delta)
        count += len(active)
        better = reached < cost[active]
        gain = np.where(better, 1 - reached / np.maximum(cost[active], 1e-300), 0.0)
        small = np.abs(trial - x[active]).max(axis=1) < 1e-12
        idle[active] = np.where(better & (gain > CONVERGED), 0, idle[active] + (better | small))
        won = active[better]
        x[won], residuals[won], jacobian[won], cost[won] = trial[better], moved[better], slopes[better], reached[better]
        damping[active] = np.clip(damping[active] * np.where(better, 0.2, 5.0), *DAMPING)
    return x, cost, count


def _step(
    residuals: Array, jacobian: Array, x: Array, damping: Array, bounds: tuple[Array, Array], delta: float
) -> Array:
    """One damped step a point; a coordinate that a bound holds back stays where it is."""
    weights = np.minimum(1.0, delta / np.maximum(np.abs(residuals), 1e-300))
    weighted = jacobian * weights[..., None]
    gradient = np.einsum("mnk,mn->mk", weighted, residuals)
    held = ((x <= bounds[0]) & (gradient > 0)) | ((x >= bounds[1]) & (gradient < 0))
    curvature = np.swapaxes(weighted, 1, 2) @ jacobian
    diagonal = np.einsum("mkk->mk", curvature).copy()
    scale = diagonal + 1e-12 * diagonal.max(axis=1, keepdims=True) + 1e-300
    curvature = curvature + np.einsum("mk,kl->mkl", damping[:, None] * scale, np.eye(x.shape[1]))
    free = ~held
    curvature = np.where(free[:, :, None] & free[:, None, :], curvature, 0.0)
    curvature += np.einsum("mk,kl->mkl", np.where(held, 1.0, 0.0), np.eye(x.shape[1]))
    root = np.sqrt(np.einsum("mkk->mk", curvature))
    scaled = curvature / (root[:, :, None] * root[:, None, :])
    right = np.where(free, gradient, 0.0) / root
    return -np.linalg.solve(scaled + 1e-14 * np.eye(x.shape[1]), right[..., None])[..., 0] / root


def _cost(residuals: Array, delta: float) -> Array:
    """Half the squares or the Huber loss, summed over rows; infinite where a residual is no number."""
    size = np.abs(residuals)
    with np.errstate(all="ignore"):
        each = residuals**2 / 2 if np.isinf(delta) else np.where(size <= delta, size**2 / 2, delta * (size - delta / 2))
        total = each.sum(axis=-1)
    return np.where(np.isfinite(total), total, np.inf)
