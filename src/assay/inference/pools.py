"""Pools of weak classifiers on scikit-learn's sets: real scorers with known truth, each seeing a part of the input.

Every scorer is a logistic regression on its own features, disjoint from those of the others, cross-fitted:
it scores only rows that it was not trained on. What the scorers share is what their features share given the
class, no more.

`digits_pool` makes every image a query whose ten candidates are the digits, scored by eight classifiers of
eight pixels each. `breast_cancer_pool` makes every patient an item, scored by eight classifiers of three or
four measurements each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["ScorePool", "breast_cancer_pool", "cross_fitted", "digits_pool"]

Array = NDArray[np.float64]

N_SCORERS = 8
N_FOLDS = 2


@dataclass(frozen=True)
class ScorePool:
    """Scores of several verifiers with the truth.

    Attributes
    ----------
    scores : (n, M) array
        Probability that each scorer gives an item.
    labels : (n,) int array
        1 for a right item.
    groups : (n,) int array
        Query of each item.
    names : tuple of str
        What each scorer sees.
    """

    scores: Array
    labels: NDArray[np.intp]
    groups: NDArray[np.intp]
    names: tuple[str, ...]


def digits_pool() -> ScorePool:
    """Ten candidates for each of 1,797 images, and eight scorers, each of two rows by four columns of pixels.

    >>> digits_pool().scores.shape
    (17970, 8)
    """
    from sklearn.datasets import load_digits

    images, digit = load_digits(return_X_y=True)
    pixel = np.arange(64).reshape(8, 8)
    blocks = [pixel[r : r + 2, c : c + 4].ravel() for r in range(0, 8, 2) for c in (0, 4)]
    probabilities = cross_fitted(images, digit, blocks)
    n_images = len(digit)
    return ScorePool(
        scores=probabilities.transpose(1, 2, 0).reshape(n_images * 10, N_SCORERS),
        labels=(digit[:, None] == np.arange(10)).astype(np.intp).ravel(),
        groups=np.repeat(np.arange(n_images), 10),
        names=tuple(f"rows {r}-{r + 1}, columns {c}-{c + 3}" for r in range(0, 8, 2) for c in (0, 4)),
    )


def breast_cancer_pool() -> ScorePool:
    """569 patients, right meaning malignant, and eight scorers of three or four measurements each.

    The thirty measurements (mean, error and worst of ten properties) are dealt out in turn, so that no scorer
    sees two values of one property.

    >>> pool = breast_cancer_pool()
    >>> pool.scores.shape, int(pool.labels.sum())
    ((569, 8), 212)
    """
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    malignant = (bunch.target == 0).astype(np.intp)
    blocks = [np.arange(k, 30, N_SCORERS) for k in range(N_SCORERS)]
    probabilities = cross_fitted(bunch.data, malignant, blocks)
    return ScorePool(
        scores=probabilities[:, :, 1].T.copy(),
        labels=malignant,
        groups=np.arange(len(malignant)),
        names=tuple(", ".join(str(bunch.feature_names[j]) for j in block) for block in blocks),
    )


def cross_fitted(features: Array, classes: NDArray[np.intp], blocks: Sequence[NDArray[np.intp]]) -> Array:
    """Class probabilities (scorers, rows, classes) of a logistic regression on each block of features.

    Rows are split into two stratified halves; each half is scored by the model of the other.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    halves = StratifiedKFold(N_FOLDS, shuffle=True, random_state=0)
    return np.stack(
        [cross_val_predict(model, features[:, block], classes, cv=halves, method="predict_proba") for block in blocks]
    )
