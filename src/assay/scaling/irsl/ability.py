"""Abilities of many models at once when the items are known: Fisher scoring on arrays.

One row is one model. The equation to solve has a single unknown a row, so that a step is a division; the authors
run L-BFGS in its place (arXiv 2606.07616).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import logit

from assay.scaling.irsl.likelihood import (
    Array,
    bernoulli_information,
    bernoulli_score,
    beta_information,
    beta_score,
    clipped,
)

__all__ = ["ROUGH", "THETA_LIMIT", "Items", "estimate", "response_of"]

THETA_LIMIT = 15.0
"""Abilities are looked for between minus and plus this; one that ends there has no finite standard error."""

ROUGH = 1e-4
"""A tolerance that is enough between two questions; standard errors are then those of the step before."""

LONGEST_STEP, SHORT_STEP = 1.5, 0.02


@dataclass(frozen=True, eq=False)
class Items:
    """Parameters of the items of one benchmark; `phi` is NaN for right-or-wrong answers."""

    ease: Array
    slope: Array
    phi: float

    @property
    def binary(self) -> bool:
        return bool(np.isnan(self.phi))

    def eta(self, theta: Array) -> Array:
        """slope * (theta + ease), shape (n, items)."""
        return self.slope * (np.asarray(theta, dtype=float)[:, None] + self.ease)

    def information(self, theta: Array) -> Array:
        """Fisher information of each item about theta, shape (n, items)."""
        eta = self.eta(theta)
        about_eta = bernoulli_information(eta) if self.binary else beta_information(eta, self.phi)
        return self.slope**2 * about_eta

    def take(self, which: np.ndarray) -> Items:
        """The items of these numbers or this mask; an array of several rows gives arrays of several rows."""
        return Items(self.ease[which], self.slope[which], self.phi)


def response_of(y: Array, items: Items) -> Array:
    """What the score is a function of: the logit of a response, or 1 and 0 for right and wrong (above one half)."""
    if items.binary:
        return np.where(np.isnan(y), np.nan, (y > 0.5).astype(float))
    return logit(clipped(y))


def estimate(
    response: Array, items: Items, start: Array | None = None, tol: float = 1e-9, max_iter: int = 100
) -> tuple[Array, Array]:
    """Maximum likelihood abilities and their standard errors.

    Parameters
    ----------
    response : ndarray, shape (n, items)
        As `response_of` gives it; NaN is an item that was not asked.
    items : Items
        Parameters of shape (items,), or (n, items) where each row was asked others.
    start : ndarray, shape (n,), optional

    Returns
    -------
    theta, se : ndarray, shape (n,)
        NaN and infinity without an answer; the limit and infinity where the likelihood rises without end.
    """
    asked = ~np.isnan(response)
    full = bool(asked.all())
    filled = response if full else np.where(asked, response, 0.0)
    theta = np.zeros(len(response)) if start is None else np.array(start, dtype=float)
    answered = asked.any(axis=1)

    def summed(values: Array) -> Array:
        return (values if full else np.where(asked, values, 0.0)).sum(axis=1)

    def information(eta: Array) -> Array:
        about_eta = bernoulli_information(eta) if items.binary else beta_information(eta, items.phi)
        return np.maximum(summed(items.slope**2 * about_eta), 1e-12)

    total, change = np.ones(len(theta)), np.full(len(theta), np.inf)
    for _ in range(max_iter):
        eta = items.slope * (theta[:, None] + items.ease)
        # The information is what costs, and over a short step it does not change.
        if (change > SHORT_STEP).any():
            total = information(eta)
        about_eta = bernoulli_score(eta, filled) if items.binary else beta_score(eta, filled, items.phi)
        step = np.clip(summed(items.slope * about_eta) / total, -LONGEST_STEP, LONGEST_STEP)
        moved = np.clip(theta + step, -THETA_LIMIT, THETA_LIMIT)
        change, theta = np.where(answered, np.abs(moved - theta), 0.0), moved
        if not (change > tol).any():
            break
    if tol < ROUGH:
        total = information(items.slope * (theta[:, None] + items.ease))
    with np.errstate(divide="ignore"):
        se = np.where(answered & (np.abs(theta) < THETA_LIMIT), 1 / np.sqrt(total), np.inf)
    return np.where(answered, theta, np.nan), se
