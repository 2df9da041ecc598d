"""From loss to score: a sigmoid link, the two-step ladder that ends in one, and the slope of a power law.

A benchmark score does not follow a power law: it sits at chance, climbs, and levels off. The usual way round is a
ladder of two steps, a power law of the loss in compute and a sigmoid from loss to score.
"""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from scipy.stats import spearmanr
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from assay.errors import InputError, as_vector
from assay.scaling.fit import PowerLaw, latin_hypercube, multistart, read_columns
from assay.stats import Interval, bootstrap

__all__ = ["SigmoidLink", "TwoStepLaw", "log_slope"]

Array = NDArray[np.float64]

LEAST_POINTS = 5  # one more than the sigmoid has parameters


class SigmoidLink(RegressorMixin, BaseEstimator):
    """A score as a sigmoid of one number: `bottom + (top - bottom) * sigmoid(slope * (x - middle))`.

    Fitted by least squares from many starts with an analytic Jacobian, bottom and top between 0 and 1. Whether it
    rises or falls follows the rank correlation of the points.

    Parameters
    ----------
    n_starts : int, default 32
        Latin-hypercube starts.
    random_state : int, default 0
        Seed of the starts.

    Attributes
    ----------
    bottom_, top_, slope_, middle_ : float
        `slope_` is negative where the score falls with x, as it does with a loss.
    cost_ : float
        Half the sum of squared residuals.

    Examples
    --------
    >>> import numpy as np
    >>> loss = np.linspace(1.0, 5.0, 9)
    >>> link = SigmoidLink().fit(loss, 0.25 + 0.6 / (1 + np.exp(2 * (loss - 3))))
    >>> print(f"{link.bottom_:.2f} {link.top_:.2f} {link.slope_:.2f} {link.middle_:.2f}")
    0.25 0.85 -2.00 3.00
    """

    def __init__(self, n_starts: int = 32, random_state: int = 0) -> None:
        self.n_starts = n_starts
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to points x, shape (n,) or (n, 1), and scores between 0 and 1, shape (n,)."""
        x, score = _one_column(X), as_vector(y, "y")
        if len(x) != len(score):
            raise InputError(f"y has {len(score)} scores for {len(x)} points")
        if len(np.unique(x)) < LEAST_POINTS:
            raise InputError(f"a sigmoid needs at least {LEAST_POINTS} different points, got {len(np.unique(x))}")
        if score.min() < 0 or score.max() > 1:
            worst = int(np.argmax(np.abs(score - 0.5)))
            hint = "; divide per cent by 100" if 1.5 < score.max() <= 100 else ""
            raise InputError(f"y must lie between 0 and 1, got {score[worst]:g} in row {worst}{hint}")
        centre, width = float(x.mean()), float(x.std())
        z = (x - centre) / width
        rising = np.ptp(score) == 0 or spearmanr(z, score).statistic >= 0

        def residuals(p: Array) -> tuple[Array, Array]:
            bottom, top, slope, middle = p
            s = expit(slope * (z - middle))
            bend = (top - bottom) * s * (1 - s)
            jacobian = np.stack([1 - s, s, bend * (z - middle), -bend * slope], axis=1)
            return bottom + (top - bottom) * s - score, jacobian

        sign = (0.05, 50.0) if rising else (-50.0, -0.05)
        steep = (0.3, 6.0) if rising else (-6.0, -0.3)
        low = np.array([0.0, score.max() * 0.9, steep[0], z.min()])
        high = np.array([max(score.min(), 1e-3), 1.0, steep[1], z.max()])
        reach = 3 * np.ptp(z)
        bounds = np.array([0, 0, sign[0], z.min() - reach]), np.array([1, 1, sign[1], z.max() + reach])
        found = multistart(residuals, latin_hypercube(low, high, self.n_starts, self.random_state), bounds)
        self.bottom_, self.top_ = float(found.x[0]), float(found.x[1])
        self.slope_, self.middle_ = float(found.x[2]) / width, centre + width * float(found.x[3])
        self.cost_ = found.cost
        self.n_features_in_ = 1
        return self

    def predict(self, X: ArrayLike) -> Array:
        """Predicted score of each point, shape (n,)."""
        check_is_fitted(self, "slope_")
        return self.bottom_ + (self.top_ - self.bottom_) * expit(self.slope_ * (_one_column(X) - self.middle_))


class TwoStepLaw(RegressorMixin, BaseEstimator):
    """The ladder from compute to score: loss as a power of compute, score as a sigmoid of the loss.

    Parameters
    ----------
    n_starts : int, default 32
        Latin-hypercube starts of each step.
    random_state : int, default 0
        Seed of the starts.

    Attributes
    ----------
    law_ : PowerLaw
        `loss = E + A / C**alpha`.
    link_ : SigmoidLink
        From loss to score.

    Notes
    -----
    Bhagia et al. 2024, arXiv 2412.04403, who predict the loss of the right answer a byte and from it the accuracy.

    Examples
    --------
    >>> import numpy as np
    >>> C = np.logspace(17, 21, 12)
    >>> loss = 0.5 + 30 / C**0.1
    >>> ladder = TwoStepLaw(n_starts=8).fit(C, loss, 0.25 + 0.7 / (1 + np.exp(8 * (loss - 0.9))))
    >>> bool(0.2 < ladder.predict([1e17])[0] < ladder.predict([1e23])[0] < 1)
    True
    """

    def __init__(self, n_starts: int = 32, random_state: int = 0) -> None:
        self.n_starts = n_starts
        self.random_state = random_state

    def fit(self, X: ArrayLike, loss: ArrayLike, score: ArrayLike) -> Self:
        """Fit to compute (FLOP), shape (n,) or (n, 1), losses and scores, shape (n,)."""
        compute = read_columns(_one_column(X)[:, None], ["C"])
        losses = as_vector(loss, "loss")
        self.law_ = PowerLaw(loss="mse", n_starts=self.n_starts, random_state=self.random_state).fit(compute, losses)
        self.link_ = SigmoidLink(self.n_starts, self.random_state).fit(losses, score)
        self.n_features_in_ = 1
        return self

    def predict(self, X: ArrayLike) -> Array:
        """Predicted score at each compute, shape (n,)."""
        check_is_fitted(self, "link_")
        return self.link_.predict(self.law_.predict(_one_column(X)[:, None]))


def log_slope(x: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None, seed: int = 0) -> Interval:
    """Slope of log y on log x by least squares: the exponent of a power law without a floor.

    Parameters
    ----------
    x, y : array-like, shape (n,)
        Positive.
    groups : array-like, optional
        Rows with one label are dependent; whole groups are resampled.
    seed : int, default 0

    Returns
    -------
    Interval

    Examples
    --------
    >>> import numpy as np
    >>> round(log_slope([1, 10, 100, 1000], [8.0, 4.1, 2.0, 0.99]).estimate, 3)
    -0.303
    """
    table = read_columns(np.column_stack([as_vector(x, "x"), as_vector(y, "y")]), ["x", "y"], "the points")
    u, v = np.log(table).T
    if np.ptp(u) == 0:
        raise InputError("a slope needs at least two different values of x")

    def slope(rows: NDArray[np.intp]) -> float | Array:
        a, b = u[rows], v[rows]
        centred = a - a.mean(axis=-1, keepdims=True)
        spread = (centred**2).sum(axis=-1)
        none = np.full(np.shape(spread), np.nan)  # a resample of one x alone has no slope
        return np.divide((centred * b).sum(axis=-1), spread, out=none, where=spread > 1e-12)

    return bootstrap(slope, len(u), clusters=groups, seed=seed)


def _one_column(X: ArrayLike) -> Array:
    array = np.asarray(X)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    return np.asarray(as_vector(array, "X"), dtype=np.float64)
