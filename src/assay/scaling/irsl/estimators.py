"""Full-benchmark scores from few questions: adaptive tests, and what one would do without item response theory.

Every estimator sees the responses of the calibration rows to all questions and of a test row to those that it asks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from assay.scaling.irsl.ability import Items, estimate, response_of
from assay.scaling.irsl.adaptive import ask_all

__all__ = ["PLAIN", "Calibration", "Estimates", "anchors", "by_ability", "draw_questions", "link", "shuffled"]

DRAWS = 8
RIDGES = (0.01, 0.1, 1.0, 10.0, 100.0)


@dataclass(frozen=True, eq=False)
class Calibration:
    """Items of one benchmark with the abilities of the rows that calibrated them."""

    items: Items
    theta: np.ndarray


@dataclass(frozen=True, eq=False)
class Estimates:
    """Predicted full means, shape (draws, rows); abilities where there are any, shape (rows,)."""

    score: np.ndarray
    theta: np.ndarray | None = None


def by_ability(
    arm: str, calibrated: np.ndarray, asked_of: np.ndarray, made: Calibration, budget: int, seed: int
) -> Estimates:
    """Arms that go by way of an ability; `arm` says which questions are asked and what is made of them."""
    items, n = made.items, len(asked_of)
    if arm.startswith("random"):
        scores = []
        response = response_of(asked_of, items)
        for draw in range(DRAWS):
            picked = draw_questions(n, asked_of.shape[1], budget, seed, draw)
            theta, _ = estimate(np.take_along_axis(response, picked, axis=1), items.take(picked))
            scores.append(_mean(items, theta))
        return Estimates(np.array(scores))
    theta, asked = ask_all(asked_of, items, budget)
    score = _mean(items, theta)
    if arm == "cat-filled":
        # The answers that are known stand for themselves; the model speaks for the others only.
        known = np.take_along_axis(asked_of, asked, axis=1).sum(axis=1)
        modelled = expit(items.eta(theta))
        expected = np.take_along_axis(modelled, asked, axis=1).sum(axis=1)
        score = score + (known - expected) / asked_of.shape[1]
    elif arm == "cat-corrected":
        score = score + float((calibrated.mean(axis=1) - _mean(items, made.theta)).mean())
    return Estimates(score[None], theta)


def shuffled(items: Items, seed: int) -> Items:
    """The eases dealt out to other items: a calibration that knows nothing."""
    order = np.random.default_rng([77, seed]).permutation(len(items.ease))
    return Items(items.ease[order], items.slope[order], items.phi)


def link(theta: np.ndarray, score: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """A cubic from ability to score through the calibration rows, held constant beyond their range."""
    low, high, middle = float(theta.min()), float(theta.max()), float(theta.mean())
    width = max(float(theta.std()), 1e-9)
    z = (theta - middle) / width
    # Abilities on a few nodes (marginal likelihood, long tests) leave a cubic free to do anything between them.
    distinct = len(np.unique(z.round(2)))
    curve = np.polyfit(z, score, min(3, distinct - 1))
    return lambda t: np.polyval(curve, (np.clip(t, low, high) - middle) / width)


def _mean(items: Items, theta: np.ndarray) -> np.ndarray:
    return expit(items.eta(theta)).mean(axis=1)


def draw_questions(n: int, n_items: int, budget: int, seed: int, draw: int) -> np.ndarray:
    """Questions of each row, drawn without replacement, shape (n, budget); every arm draws the same."""
    rng = np.random.default_rng([5, seed, draw])
    return np.argsort(rng.random((n, n_items)), axis=1)[:, : min(budget, n_items)]


def _random_mean(calibrated: np.ndarray, asked_of: np.ndarray, budget: int, seed: int) -> np.ndarray:
    n, n_items = asked_of.shape
    picks = [draw_questions(n, n_items, budget, seed, draw) for draw in range(DRAWS)]
    return np.array([np.take_along_axis(asked_of, picked, axis=1).mean(axis=1) for picked in picks])


def _difference(calibrated: np.ndarray, asked_of: np.ndarray, budget: int, seed: int) -> np.ndarray:
    """Calibration mean plus the mean difference to the calibration rows on the questions asked: two lines."""
    item_mean = calibrated.mean(axis=0)
    return _random_mean(calibrated, asked_of - item_mean, budget, seed) + item_mean.mean()


def _first(calibrated: np.ndarray, asked_of: np.ndarray, budget: int, seed: int) -> np.ndarray:
    return asked_of[None, :, :budget].mean(axis=2)


def _stratified(calibrated: np.ndarray, asked_of: np.ndarray, budget: int, seed: int) -> np.ndarray:
    """One question at random of each stratum of equal size, by the calibration mean."""
    order = np.argsort(calibrated.mean(axis=0), kind="stable")
    strata = np.array_split(order, min(budget, len(order)))
    share = np.array([len(stratum) for stratum in strata]) / len(order)
    scores = []
    for draw in range(DRAWS):
        rng = np.random.default_rng([6, seed, draw])
        picked = np.stack([rng.choice(stratum, len(asked_of)) for stratum in strata], axis=1)
        scores.append(np.take_along_axis(asked_of, picked, axis=1) @ share)
    return np.array(scores)


def anchors(calibrated: np.ndarray, budget: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Questions nearest to the centres of clusters of item curves, and the clusters' shares (tinyBenchmarks)."""
    from sklearn.cluster import KMeans

    curves = calibrated.T
    found = KMeans(min(budget, len(curves)), n_init=1, max_iter=50, random_state=seed).fit(curves)
    chosen = found.transform(curves).argmin(axis=0)
    share = np.bincount(found.labels_, minlength=found.n_clusters) / len(curves)
    return chosen, share


def _anchor_points(calibrated: np.ndarray, asked_of: np.ndarray, budget: int, seed: int) -> np.ndarray:
    chosen, share = anchors(calibrated, budget, seed)
    return (asked_of[:, chosen] @ share)[None]


def _anchor_regression(calibrated: np.ndarray, asked_of: np.ndarray, budget: int, seed: int) -> np.ndarray:
    """Ridge regression of the full mean on the anchors' answers, its penalty chosen on the calibration rows."""
    from sklearn.linear_model import RidgeCV

    chosen, _ = anchors(calibrated, budget, seed)
    model = RidgeCV(RIDGES).fit(calibrated[:, chosen], calibrated.mean(axis=1))
    return model.predict(asked_of[:, chosen])[None]


PLAIN: dict[str, Callable[[np.ndarray, np.ndarray, int, int], np.ndarray]] = {
    "random-mean": _random_mean, "difference": _difference, "first": _first, "stratified": _stratified,
    "anchor-points": _anchor_points, "anchor-regression": _anchor_regression,
}
"""Arms without a model of the responses: (calibration rows, test rows, budget, seed) to scores, (draws, rows)."""
