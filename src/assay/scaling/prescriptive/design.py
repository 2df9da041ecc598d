"""Which models to evaluate, so that the boundary is found with part of the cost (arXiv 2602.15327).

With q = y0 + L sigma(a + b z) at a pilot's parameters, a model at z tells j = dq/d(y0, L, a, b) about the boundary,
with the weight w: information adds up as M = sum of w j j'. Four models are taken first, at the ends of the range and
at z* -+ 1.543 / b (where a logistic curve is best observed); then always the one with the largest gain per cost:

    D    log(1 + w j'M^-1 j), the rise of log det M
    I    the drop of tr(A M^-1), with A = mean of j j' over the mid-points of the bins
    balanced I    the same, plus a bonus log(n + 1 + 1e-6) - log(n + 1e-6) for a bin that holds n of the chosen models

M^-1 follows by the formula of Sherman and Morrison. Models with equal z have equal gains, so that among them the
cheapest one left is next: only one model a distinct z is looked at.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from assay.errors import InputError, as_vector
from assay.scaling.prescriptive.bins import bin_of, equal_mass_bins
from assay.scaling.prescriptive.pinball import is_number

__all__ = ["OBJECTIVES", "information_rows", "select_evaluations"]

Array = NDArray[np.float64]

OBJECTIVES = ("d_optimal", "i_optimal", "i_balanced")
SEED_REACH = 1.543  # logits either side of the mid-point
RIDGE = 1e-9
COUNT_OFFSET = 1e-6
BINS, BIN_SIZE = 10, 30


def select_evaluations(
    z: ArrayLike, cost: ArrayLike, budget: float, theta0: Sequence[float], objective: str = "i_balanced",
    balance: float = 0.1, questions: int | None = None,
) -> NDArray[np.intp]:
    """The models to evaluate within a budget, in the order in which they were chosen.

    Parameters
    ----------
    z : (n,) array-like
        Log10 of each model's pre-training FLOP.
    cost : (n,) array-like
        Cost of evaluating each model, positive; its number of parameters will do.
    budget : float
        What may be spent in all, in units of `cost`.
    theta0 : (4,) sequence
        Pilot's `(y0, L, z_star, b)`: an earlier boundary, or one fitted to a few models.
    objective : {"i_balanced", "i_optimal", "d_optimal"}
    balance : float
        Weight of the bonus for bins with few models (`i_balanced` alone). An empty bin's bonus is about 13.8.
    questions : int, optional
        Questions of the benchmark: weights by binomial noise, `questions / (q (1 - q))`. Without, all weigh alike.

    Returns
    -------
    (k,) ndarray of int
        Indices into `z`; empty, with a warning, where the cheapest model costs more than the budget.

    Raises
    ------
    InputError
        For costs that are not positive, lengths that differ, a pilot that is no boundary, an unknown objective.

    Examples
    --------
    >>> z = np.repeat(np.linspace(20, 25, 11), 3)
    >>> cost = np.tile([1.0, 2.0, 3.0], 11)
    >>> chosen = select_evaluations(z, cost, budget=6, theta0=(0.2, 0.6, 22.5, 1.5))
    >>> z[chosen].tolist(), float(cost[chosen].sum())
    ([20.0, 25.0, 21.5, 23.5, 22.5, 23.0], 6.0)
    """
    values, costs, theta = _checked(z, cost, budget, theta0, objective, balance, questions)
    pool = _Pool(values, costs)
    if costs.min(initial=np.inf) > budget:
        cheapest = f"the cheapest of {len(costs)} models costs {costs.min():g}" if len(costs) else "there are no models"
        warnings.warn(f"nothing is selected: {cheapest}, the budget is {budget:g}", UserWarning, stacklevel=2)
        return np.array([], dtype=np.intp)
    rows = information_rows(pool.z, theta)
    weights = np.ones(len(pool.z))
    if questions is not None:
        q = np.clip(theta[0] + theta[1] * rows[:, 1], 0.01, 0.99)
        weights = questions / (q * (1 - q))
    edges = equal_mass_bins(values, BINS, min(BIN_SIZE, len(values)))
    target = information_rows((edges[:-1] + edges[1:]) / 2, theta)
    search = _Greedy(pool, rows, weights, target.T @ target / len(target), bin_of(pool.z, edges), len(edges) - 1)
    for place in (values.min(), values.max(), theta[2] - SEED_REACH / theta[3], theta[2] + SEED_REACH / theta[3]):
        search.take_nearest(float(place), budget)
    while (best := search.best(budget, objective, balance)) is not None:
        search.take(best)
    return np.array(search.chosen, dtype=np.intp)


def information_rows(z: Array, theta: Sequence[float]) -> Array:
    """dq/d(y0, L, a, b) at each z, shape (n, 4), for q = y0 + L sigma(a + b (z - z*)) at a = 0.

    Counting z from the mid-point is a linear change of (a, b): it alters no gain, and keeps M well conditioned.
    """
    _, rise, z_star, b = theta
    s = expit(b * (z - z_star))
    slope = rise * s * (1 - s)
    return np.column_stack([np.ones_like(s), s, slope, slope * (z - z_star)])


class _Pool:
    """The models by distinct z, each with its members from the cheapest to the dearest."""

    def __init__(self, z: Array, cost: Array) -> None:
        order = np.lexsort((np.arange(len(z)), cost, z))
        self.z, starts = np.unique(z[order], return_index=True)
        self.members = [list(part) for part in np.split(order, starts[1:])] if len(z) else []
        self.model_cost = cost
        self.next_cost = np.array([cost[part[0]] for part in self.members])

    def pop(self, place: int) -> int:
        """The cheapest member left at a place."""
        member = int(self.members[place].pop(0))
        left = self.members[place]
        self.next_cost[place] = self.model_cost[left[0]] if left else np.inf
        return member


class _Greedy:
    """The chosen models with the inverse of their information."""

    def __init__(
        self, pool: _Pool, rows: Array, weights: Array, target: Array, bins: NDArray[np.intp], n_bins: int
    ) -> None:
        self.pool, self.rows, self.weights, self.target, self.bins = pool, rows, weights, target, bins
        self.inverse = np.eye(rows.shape[1]) / RIDGE
        self.counts = np.zeros(n_bins)
        self.spent = 0.0
        self.chosen: list[int] = []

    def take_nearest(self, z: float, budget: float) -> None:
        """The affordable model nearest to a place."""
        away = np.where(self.pool.next_cost <= budget - self.spent, np.abs(self.pool.z - z), np.inf)
        if np.isfinite(away).any():
            self.take(int(np.argmin(away)))

    def best(self, budget: float, objective: str, balance: float) -> int | None:
        """The place with the largest gain per cost; none where nothing affordable is left."""
        affordable = self.pool.next_cost <= budget - self.spent
        if not affordable.any():
            return None
        return int(np.argmax(np.where(affordable, self.gains(objective, balance) / self.pool.next_cost, -np.inf)))

    def gains(self, objective: str, balance: float) -> Array:
        """What one more model at each place adds."""
        reach = self.rows @ self.inverse
        leverage = self.weights * np.einsum("ij,ij->i", reach, self.rows)
        if objective == "d_optimal":
            return np.log1p(leverage)
        drop = self.weights * np.einsum("ij,ij->i", reach @ self.target, reach) / (1 + leverage)
        if objective == "i_optimal":
            return drop
        bonus = np.log(self.counts + 1 + COUNT_OFFSET) - np.log(self.counts + COUNT_OFFSET)
        return drop + balance * bonus[self.bins]

    def take(self, place: int) -> None:
        """Choose the cheapest model of a place."""
        self.spent += self.pool.next_cost[place]
        self.chosen.append(self.pool.pop(place))
        self.counts[self.bins[place]] += 1
        row, weight = self.rows[place], self.weights[place]
        moved = self.inverse @ row
        self.inverse -= weight * np.outer(moved, moved) / (1 + weight * row @ moved)


def _checked(
    z: ArrayLike, cost: ArrayLike, budget: float, theta0: Sequence[float], objective: str, balance: float,
    questions: int | None,
) -> tuple[Array, Array, tuple[float, ...]]:
    values = as_vector(z, "z").astype(float)
    costs = as_vector(cost, "cost", length=len(values), positive=True).astype(float)
    theta = tuple(float(v) for v in as_vector(np.asarray(theta0, dtype=object), "theta0", length=4))
    if objective not in OBJECTIVES:
        raise InputError(f"objective must be one of {', '.join(OBJECTIVES)}, got {objective!r}")
    for name, value in (("budget", budget), ("balance", balance)):
        if not is_number(value) or not 0 <= value < np.inf:
            raise InputError(f"{name} must be 0 or more, got {value!r}")
    if questions is not None and (not is_number(questions) or not 1 <= questions < np.inf):
        raise InputError(f"questions must be at least 1, got {questions!r}")
    y0, rise, _, b = theta
    if y0 < 0 or rise < 0 or y0 + rise > 1 + 1e-9 or b <= 0:
        raise InputError(f"theta0 must be (y0, L, z_star, b) with y0, L >= 0, y0 + L <= 1 and b > 0, got {theta}")
    return values, costs, theta
