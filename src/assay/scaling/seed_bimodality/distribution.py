"""The scores of several seeds at one scale: a test of bimodality, a mixture, and how many seeds tell."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator

from assay.errors import InputError
from assay.scaling.seed_bimodality.dip import SIZES, dip_pvalue, dip_statistic
from assay.scaling.seed_bimodality.mixtures import TwoModes, accuracy_modes, loss_modes

__all__ = ["SeedDistribution", "holm", "seeds_needed"]

FEWEST, FEW = SIZES[0], 50
ENOUGH_ITEMS = 500  # from here on ties of a share of right answers no longer disturb the dip
UNKNOWN_ITEMS = 1000  # a score without a number of items is read to a thousandth
BIC = 10.0
KINDS = ("auto", "accuracy", "loss")
Array = NDArray[np.float64]


class SeedDistribution(BaseEstimator):
    """Bimodality of the scores that several seeds reach at one scale (arXiv 2502.17356, section 3; reconstructed).

    Two tests must agree before two modes are counted: Hartigan's dip, which asks whether any unimodal distribution
    fits, and a mixture's information criterion, which asks whether two components fit better than one. The first
    alone rejects ties, the second alone rejects skew.

    Parameters
    ----------
    kind
        `"accuracy"` for shares of right answers in [0, 1] (higher is better), `"loss"` (lower is better), or
        `"auto"`: an accuracy where all scores lie in [0, 1].
    items
        Right-or-wrong items behind each accuracy. Below 500 the ties are undone within the resolution of one item
        before the dip is taken. Without it no ties are undone and scores are read to a thousandth.
    alpha
        Level of the dip test.
    random_state
        Seed of what undoes the ties.

    Attributes
    ----------
    n_, n_missing_ : int
        Seeds with a score, and NaN that were dropped.
    kind_ : str
    dip_, dip_p_ : float
        The dip and its p-value, NaN below 10 seeds.
    dip_inside_p_ : float
        The p-value without the seeds at exactly 0 or 1 (at a loss of exactly 0): a pile at a bound next to a slope
        is one mode. NaN where fewer than 10 are left.
    atoms_ : (2,) array
        Shares of seeds at the lower and at the upper bound.
    bic_delta_ : float
        Information criterion of one component minus that of two.
    n_modes_ : int
        2 where the dip's p-value is below `alpha` and `bic_delta_` above 10, 1 where not, 0 where there are too few
        seeds to say. More than two are not told apart.
    weight_ : float
        Weight of the mixture's better component: the probability that a seed succeeds.
    means_ : (2,) array
        Means of its worse and its better component.
    note_ : str
        What to know before reading this: too few seeds, ties undone, piles at the bounds.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> scores = np.concatenate([rng.beta(2, 20, 70), rng.beta(30, 3, 30)])
    >>> found = SeedDistribution().fit(scores)
    >>> found.n_modes_, round(float(found.weight_), 2), found.means_.round(1).tolist()
    (2, 0.3, [0.1, 0.9])
    """

    def __init__(
        self, kind: str = "auto", items: int | None = None, alpha: float = 0.05, random_state: int = 0
    ) -> None:
        self.kind = kind
        self.items = items
        self.alpha = alpha
        self.random_state = random_state

    n_: int
    n_missing_: int
    kind_: str

    def fit(self, scores: ArrayLike, y: Any = None) -> SeedDistribution:
        """Describe the scores of the seeds at one scale; NaN are counted and dropped.

        Parameters
        ----------
        scores : (seeds,) array
            One score a seed.
        y : ignored

        Raises
        ------
        InputError
            No score, an infinite one, or an accuracy outside [0, 1].
        """
        values = self._read(scores)
        self.atoms_ = np.array([(values == 0).mean(), (values == 1).mean() if self.kind_ == "accuracy" else 0.0])
        tested = self._without_ties(values)
        self.dip_ = dip_statistic(tested)
        self.dip_p_ = dip_pvalue(self.dip_, self.n_) if self.n_ >= FEWEST else math.nan
        bounds = (0.0, 1.0) if self.kind_ == "accuracy" else (0.0,)
        inside = tested[~np.isin(values, bounds)]
        self.dip_inside_p_ = dip_pvalue(dip_statistic(inside), len(inside)) if len(inside) >= FEWEST else math.nan
        modes = self._modes(values)
        self.bic_delta_ = modes.bic_delta
        accuracy = self.kind_ == "accuracy"
        self.weight_ = modes.weight_high if accuracy else 1 - modes.weight_high
        self.means_ = np.array(modes.means if accuracy else modes.means[::-1])
        two = self.dip_p_ < self.alpha and self.bic_delta_ > BIC
        self.n_modes_ = 0 if self.n_ < FEWEST else 2 if two else 1
        self.note_ = self._note()
        return self

    def _read(self, scores: ArrayLike) -> Array:
        if self.kind not in KINDS:
            raise InputError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        whole = isinstance(self.items, Integral) and not isinstance(self.items, bool)
        if self.items is not None and not (whole and self.items >= 1):
            raise InputError(f"items must be a whole number of 1 or more, or None, got {self.items!r}")
        if not isinstance(self.alpha, Real) or not 0 < self.alpha < 1:
            raise InputError(f"alpha must lie between 0 and 1, got {self.alpha!r}")
        try:
            values = np.asarray(scores, dtype=float)
        except (TypeError, ValueError):
            raise InputError("scores must be numbers, one a seed") from None
        if values.ndim != 1:
            raise InputError(f"scores must be one-dimensional, one a seed, got shape {values.shape}")
        missing = np.isnan(values)
        self.n_missing_ = int(missing.sum())
        values = values[~missing]
        self.n_ = len(values)
        if not self.n_:
            raise InputError("scores holds no number, at least one seed is needed")
        if np.isinf(values).any():
            raise InputError("scores holds an infinite value")
        inside = bool(((values >= 0) & (values <= 1)).all())
        self.kind_ = ("accuracy" if inside else "loss") if self.kind == "auto" else self.kind
        if self.kind_ == "accuracy" and not inside:
            worst = values[(values < 0) | (values > 1)][0]
            raise InputError(f'an accuracy lies between 0 and 1, got {worst:g} (percent? a loss? then kind="loss")')
        return values

    def _without_ties(self, values: Array) -> Array:
        if self.kind_ == "loss" or self.items is None or self.items >= ENOUGH_ITEMS:
            return values
        rng = np.random.default_rng(self.random_state)
        return values + rng.uniform(-0.5, 0.5, len(values)) / self.items

    def _modes(self, values: Array) -> TwoModes:
        items = (self.items or UNKNOWN_ITEMS) if self.kind_ == "accuracy" else 0
        if np.ptp(np.round(values * items) if items else values) == 0:
            # Two components fit identical scores as one does, and are charged for three parameters more.
            return TwoModes(0.5, (float(values[0]),) * 2, -3 * math.log(self.n_), float(values[0]))
        return accuracy_modes(values, items) if items else loss_modes(values)

    def _note(self) -> str:
        notes = []
        if self.n_missing_:
            notes.append(f"{self.n_missing_} NaN dropped")
        if self.n_ < FEWEST:
            notes.append(f"{self.n_} seeds: too few for the dip test, {FEWEST} are the least")
        elif self.n_ < FEW:
            notes.append(f"{self.n_} seeds: the dip test sees little below {FEW}")
        if self.kind_ == "accuracy" and self.items is not None and self.items < ENOUGH_ITEMS:
            notes.append(f"ties of {self.items} items undone at random within the resolution of an item")
        if (self.atoms_ > 0.1).all():
            notes.append("seeds pile up at both bounds, which clipping alone can do: look at the loss")
        return "; ".join(notes)


def holm(p_values: ArrayLike) -> Array:
    """Holm's adjustment of several p-values; NaN are left out of the count and stay.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, dtype=float)
    adjusted = np.full(p.shape, np.nan)
    order = [k for k in np.argsort(p, kind="stable") if not np.isnan(p[k])]
    reached = 0.0
    for rank, k in enumerate(order):
        reached = max(reached, min(1.0, float(p[k]) * (len(order) - rank)))
        adjusted[k] = reached
    return adjusted


def seeds_needed(weight: float, half_width: float = 0.1, level: float = 0.95) -> int:
    """Seeds after which the probability of success is known to within `half_width` (reconstructed).

    The smallest number at which Wilson's interval, for a share of `weight` successes, reaches no more than
    `half_width` to either side of its middle.

    Parameters
    ----------
    weight
        Expected share of successful seeds, 0 to 1; 0.5 is the worst case.
    half_width
        Half of the interval's length.
    level
        Coverage of the interval.

    Returns
    -------
    int

    Raises
    ------
    InputError
        A weight outside 0 to 1, a half-width or level that is not between 0 and 1.

    Examples
    --------
    >>> seeds_needed(0.5), seeds_needed(0.05), seeds_needed(0.5, half_width=0.05)
    (93, 25, 381)
    """
    from scipy.stats import norm

    for name, value, closed in (("weight", weight, True), ("half_width", half_width, False), ("level", level, False)):
        inside = isinstance(value, Real) and (0 <= value <= 1 if closed else 0 < value < 1)
        if not inside:
            raise InputError(f"{name} must lie {'from 0 to 1' if closed else 'between 0 and 1'}, got {value!r}")
    z = float(norm.ppf((1 + level) / 2))

    def reach(n: int) -> float:
        return z / (1 + z * z / n) * math.sqrt(weight * (1 - weight) / n + (z / (2 * n)) ** 2)

    high = 1
    while reach(high) > half_width:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reach(middle) <= half_width else (middle, high)
    return high
