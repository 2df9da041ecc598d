"""From compute to ability to score, and what such a law is judged by (arXiv 2606.07616).

`ItemResponseScalingLaw` is a straight line of ability on the logarithm of compute; a score is the mean of the items'
expected responses at the predicted ability, which is not the response at the mean ease. Today's ladder, loss as a
power of compute and score as a sigmoid of loss, is `assay.scaling.links.TwoStepLaw`.
"""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from assay.errors import InputError, as_vector
from assay.scaling.irsl.estimator import BetaIRT
from assay.scaling.irsl.likelihood import Array

__all__ = ["ItemResponseScalingLaw", "decision_accuracy", "pass_at_k", "pass_at_k_unbiased"]


class ItemResponseScalingLaw(BaseEstimator):
    """Ability as a straight line in log FLOPs, and the scores that follow from it.

    Parameters
    ----------
    degree : {1, 2}, default 1
        2 adds a square: how much it gains says whether the line was one.

    Attributes
    ----------
    coef_ : ndarray, shape (degree + 1,)
        Polynomial in the centred natural logarithm of FLOPs, the highest power first.
    center_ : float
        Mean of log FLOPs.
    r2_ : float
        Share of the abilities' variance that the law explains.

    Raises
    ------
    InputError
        See `fit`.

    Notes
    -----
    arXiv 2606.07616, theta = a log C + c.

    Examples
    --------
    >>> import numpy as np
    >>> flops = np.array([1e18, 1e19, 1e20])
    >>> law = ItemResponseScalingLaw().fit(flops, [-1.0, 0.0, 1.0])
    >>> law.predict_theta([1e21]).round(6).tolist()
    [2.0]
    >>> law.predict_score([1e19], np.array([0.0, 0.0])).round(6).tolist()   # two items of ease 0
    [0.5]
    """

    def __init__(self, degree: int = 1) -> None:
        self.degree = degree

    def fit(self, flops: ArrayLike, theta: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the line by least squares.

        Parameters
        ----------
        flops : array-like, shape (n,)
            Training compute, positive.
        theta : array-like, shape (n,)
        sample_weight : array-like, shape (n,), optional
            Not negative; 1 / se^2 where the abilities have standard errors.

        Returns
        -------
        self

        Raises
        ------
        InputError
            Compute that is not positive, fewer different values of it than coefficients, unequal lengths.
        """
        if self.degree not in (1, 2):
            raise InputError(f"degree must be 1 or 2, got {self.degree!r}")
        x = np.log(as_vector(flops, "flops", positive=True).astype(float))
        y = as_vector(theta, "theta", length=len(x)).astype(float)
        weight = np.ones(len(x))
        if sample_weight is not None:
            weight = as_vector(sample_weight, "sample_weight", length=len(x)).astype(float)
            if (weight < 0).any():
                raise InputError("sample_weight must not be negative")
        if len(np.unique(x[weight > 0])) <= self.degree:
            raise InputError(f"the law needs more than {self.degree} different values of flops")
        self.center_ = float(np.average(x, weights=weight))
        self.coef_ = np.polyfit(x - self.center_, y, self.degree, w=np.sqrt(weight))
        residual = y - np.polyval(self.coef_, x - self.center_)
        total = float(weight @ (y - np.average(y, weights=weight)) ** 2)
        self.r2_ = 1 - float(weight @ residual**2) / total if total > 0 else float("nan")
        return self

    def predict_theta(self, flops: ArrayLike) -> Array:
        """Ability at each compute, shape (n,)."""
        check_is_fitted(self, "coef_")
        x = np.log(as_vector(flops, "flops", positive=True).astype(float))
        return np.polyval(self.coef_, x - self.center_)

    def predict_score(self, flops: ArrayLike, items: BetaIRT | ArrayLike) -> Array:
        """Mean expected response over the items at each compute, shape (n,).

        Parameters
        ----------
        flops : array-like, shape (n,)
        items : BetaIRT or array-like, shape (items,)
            Fitted without groups, or the eases of 1PL items.
        """
        return _expected(items, self.predict_theta(flops)).mean(axis=1)

    def predict_pass(self, flops: ArrayLike, items: BetaIRT | ArrayLike, k: int) -> Array:
        """Expected pass@k over the items at each compute, shape (n,)."""
        return pass_at_k(_expected(items, self.predict_theta(flops)), k).mean(axis=1)


def _expected(items: BetaIRT | ArrayLike, theta: Array) -> Array:
    if isinstance(items, BetaIRT):
        check_is_fitted(items, "ease_")
        if items.groups_ is not None:
            raise InputError("items must be fitted without groups: the law predicts one ability")
        known = np.isfinite(items.ease_)
        return items.predict_proba(theta)[:, known]
    ease = as_vector(items, "items").astype(float)
    if not len(ease):
        raise InputError("items must hold at least one ease")
    return expit(theta[:, None] + ease)


def decision_accuracy(true: ArrayLike, pred: ArrayLike) -> float:
    """Share of pairs (of data recipes, say) that predictions order as the truth does.

    Parameters
    ----------
    true, pred : array-like, shape (n,)
        Scores at the target size, measured and predicted.

    Returns
    -------
    float
        A predicted tie counts one half; pairs that are equal in truth do not count.

    Raises
    ------
    InputError
        Unequal lengths, fewer than two, or all true scores equal.

    Notes
    -----
    Decision accuracy of arXiv 2606.07616, after DataDecide.

    Examples
    --------
    >>> decision_accuracy([0.1, 0.2, 0.3], [1.0, 3.0, 2.0]) == 2 / 3
    True
    """
    truth = as_vector(true, "true").astype(float)
    guess = as_vector(pred, "pred", length=len(truth)).astype(float)
    first, second = np.triu_indices(len(truth), 1)
    apart = truth[first] != truth[second]
    if not apart.any():
        raise InputError("true must hold at least two different scores")
    agree = np.sign(truth[first] - truth[second]) * np.sign(guess[first] - guess[second])
    return float(((1 + agree[apart]) / 2).mean())


def pass_at_k(p: ArrayLike, k: int) -> Array:
    """Chance that at least one of k independent samples passes: 1 - (1 - p)^k, element by element.

    Parameters
    ----------
    p : array-like
        Chance that one sample passes, in [0, 1].
    k : int
        Samples, 1 or more.

    Returns
    -------
    ndarray

    Raises
    ------
    InputError
        A chance outside [0, 1], k below 1.

    Notes
    -----
    arXiv 2606.07616, test-time scaling.

    Examples
    --------
    >>> pass_at_k([0.0, 0.5, 1.0], 2).tolist()
    [0.0, 0.75, 1.0]
    """
    chance = _numbers(p, "p")
    if not ((chance >= 0) & (chance <= 1)).all():
        raise InputError("p must lie in [0, 1]")
    _check_k(k)
    with np.errstate(divide="ignore"):
        return 0.0 - np.expm1(k * np.log1p(-chance))


def pass_at_k_unbiased(n: ArrayLike, c: ArrayLike, k: int) -> Array:
    """Unbiased estimate of pass@k from n samples of which c passed: 1 - C(n - c, k) / C(n, k).

    Parameters
    ----------
    n, c : array-like
        Samples and passes, whole numbers with 0 <= c <= n.
    k : int
        At most n: more samples than were drawn say nothing.

    Returns
    -------
    ndarray
        1 where fewer than k samples failed.

    Raises
    ------
    InputError
        k below 1 or above an n, counts that are no whole numbers or out of range.

    Notes
    -----
    The estimator of arXiv 2107.03374, which arXiv 2606.07616 takes for the truth.

    Examples
    --------
    >>> pass_at_k_unbiased(10, [0, 3, 10], 1).round(6).tolist()
    [0.0, 0.3, 1.0]
    """
    _check_k(k)
    try:
        samples, passes = np.broadcast_arrays(_numbers(n, "n"), _numbers(c, "c"))
    except InputError:
        raise
    except ValueError:
        raise InputError("n and c must have one shape, or shapes that repeat to it") from None
    if (samples != np.floor(samples)).any() or (passes != np.floor(passes)).any():
        raise InputError("n and c must be whole numbers")
    if not ((passes >= 0) & (passes <= samples)).all():
        raise InputError("c must lie between 0 and n")
    if (k > samples).any():
        raise InputError(f"k must not exceed the number of samples: k = {k}, n = {samples.min():g}")
    # C(n - c, k) / C(n, k) is the product of 1 - c / (n - i) over i < k: gamma functions would cancel for large n.
    log_share = np.zeros(samples.shape)
    with np.errstate(divide="ignore"):
        for i in range(k):
            log_share += np.log1p(-np.minimum(passes / (samples - i), 1.0))
    return 0.0 - np.expm1(log_share)


def _numbers(values: ArrayLike, name: str) -> Array:
    try:
        array = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be numbers") from None
    if not np.isfinite(array).all():
        raise InputError(f"{name} must be finite")
    return array


def _check_k(k: int) -> None:
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise InputError(f"k must be a whole number of at least 1, got {k!r}")
