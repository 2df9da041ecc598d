"""One mode or two: mixtures for scores of fixed numbers of items, and for losses.

A score that is a share of `items` right answers is a count, and is modelled as one: a beta-binomial component
has the mean mu and the precision nu (alpha = mu nu, beta = (1 - mu) nu). Seeds piled up at 0 or 1 are then
ordinary outcomes with a bounded likelihood, and a single component may itself pile up at both ends. Of two
components none may (nu >= 2): each is a mode.

Losses are Gaussian, with a standard deviation of at least 2 % of the sample's range: seeds at exactly the same
loss (a hinge loss of 0) would otherwise have a likelihood without bound.

`bic_delta` is the Bayesian information criterion of one component minus that of two: above 0 two fit better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import betaln, expit, gammaln, logit, psi

__all__ = ["TwoModes", "accuracy_modes", "loss_modes"]

FLOOR = 0.02  # least standard deviation of a Gaussian component, in units of the range
NU_ONE, NU_TWO = (0.1, 1e5), (2.0, 1e5)
Array = NDArray[np.float64]


@dataclass(frozen=True)
class TwoModes:
    """Two components beside one: weight of the higher one, means (lower, higher), and `bic_delta`."""

    weight_high: float
    means: tuple[float, float]
    bic_delta: float
    cut: float
    """Where both components are equally likely, between their means."""


def accuracy_modes(scores: Array, items: int) -> TwoModes:
    """Beta-binomial mixture of counts out of `items`, by maximum likelihood from several starts."""
    counts, times = np.unique(np.round(scores * items), return_counts=True)
    choose = gammaln(items + 1) - gammaln(counts + 1) - gammaln(items - counts + 1)
    edge = math.log(4 * items)

    def component(mean: float, spread: float) -> tuple[Array, Array]:
        """Log-likelihood of each count, and its derivatives in logit mean and log precision."""
        mu, nu = expit(mean), math.exp(spread)
        a, b = mu * nu, (1 - mu) * nu
        value = choose + betaln(counts + a, items - counts + b) - betaln(a, b)
        whole = psi(a + b) - psi(items + a + b)
        by_a, by_b = psi(counts + a) - psi(a) + whole, psi(items - counts + b) - psi(b) + whole
        return value, np.stack([(by_a - by_b) * mu * (1 - mu) * nu, by_a * a + by_b * b])

    def one(x: Array) -> tuple[float, Array]:
        value, slope = component(*x)
        return -float(times @ value), -(slope @ times)

    def two(x: Array) -> tuple[float, Array]:
        share = expit(x[0])
        (low, low_slope), (high, high_slope) = component(*x[1:3]), component(*x[3:5])
        joint = np.stack([low + math.log1p(-share), high + math.log(share)])
        total = np.logaddexp(*joint)
        of_low, of_high = np.exp(joint - total)
        slopes = [times @ (of_high - share), *(low_slope @ (times * of_low)), *(high_slope @ (times * of_high))]
        return -float(times @ total), -np.array(slopes)

    n = int(times.sum())
    mean = float(np.clip(times @ counts / (n * items), 1 / (2 * items), 1 - 1 / (2 * items)))
    means, one_spread = (-edge, edge), tuple(np.log(NU_ONE))
    single = min(
        minimize(one, [logit(mean), s], jac=True, method="L-BFGS-B", bounds=[means, one_spread]).fun for s in (0, 3)
    )
    limits = [(-12.0, 12.0), means, tuple(np.log(NU_TWO)), means, tuple(np.log(NU_TWO))]
    best = min(
        (minimize(two, start, jac=True, method="L-BFGS-B", bounds=limits) for start in _starts(counts, times, items)),
        key=lambda found: found.fun,
    )
    share, m1, s1, m2, s2 = best.x
    if m1 > m2:
        share, m1, s1, m2, s2 = -share, m2, s2, m1, s1
    return TwoModes(
        float(expit(share)), (float(expit(m1)), float(expit(m2))), float(2 * (single - best.fun) - 3 * math.log(n)),
        _cut(expit(m1), expit(m2), items, share, (m1, s1), (m2, s2)),
    )


def _starts(counts: Array, times: NDArray[np.intp], items: int) -> list[list[float]]:
    """Split the sorted counts at their widest gap and at three quantiles; each part gives a component."""
    below = np.cumsum(times)[:-1] / times.sum()
    cuts = {int(np.diff(counts).argmax()), *(int(np.abs(below - q).argmin()) for q in (0.2, 0.5, 0.8))}
    starts = []
    for cut in sorted(cuts):
        parts = [(counts[: cut + 1], times[: cut + 1]), (counts[cut + 1:], times[cut + 1:])]
        low, high = (logit((t @ k + 0.5) / (t.sum() * items + 1)) for k, t in parts)
        starts.append([float(logit(1 - below[cut])), float(low), 4.0, float(high), 4.0])
    return starts


def _cut(
    low: float, high: float, items: int, share: float, first: tuple[float, float], second: tuple[float, float]
) -> float:
    """The first score between the means at which the higher component is the likelier."""
    counts = np.arange(math.ceil(low * items), math.floor(high * items) + 1)
    if len(counts) == 0:
        return (low + high) / 2

    def value(mean: float, spread: float) -> Array:
        a, b = expit(mean) * math.exp(spread), expit(-mean) * math.exp(spread)
        return betaln(counts + a, items - counts + b) - betaln(a, b)

    likelier = value(*second) + share > value(*first)  # share is the logit of the weights
    return float(counts[int(likelier.argmax())] / items) if likelier.any() else high


def loss_modes(losses: Array) -> TwoModes:
    """Gaussian mixture (scikit-learn) with a floor on the standard deviations."""
    from sklearn.mixture import GaussianMixture

    size = float(np.ptp(losses))
    x = ((losses - losses.min()) / size).reshape(-1, 1)
    single = GaussianMixture(1, reg_covar=FLOOR**2).fit(x)
    both = GaussianMixture(2, reg_covar=FLOOR**2, n_init=4, random_state=0).fit(x)
    low, high = np.argsort(both.means_[:, 0])
    grid = np.linspace(both.means_[low, 0], both.means_[high, 0], 201).reshape(-1, 1)
    likelier = both.predict_proba(grid)[:, high] > 0.5
    cut = float(grid[int(likelier.argmax()), 0]) if likelier.any() else float(grid[-1, 0])
    first, second = (float(losses.min() + size * both.means_[k, 0]) for k in (low, high))
    gain = float(single.bic(x) - both.bic(x))
    return TwoModes(float(both.weights_[high]), (first, second), gain, float(losses.min() + size * cut))
