"""What a response costs, and what it tells: Beta and Bernoulli likelihoods of item responses (arXiv 2606.07616).

A model of ability theta answers an item of ease z (larger is easier) with the expected response

    mu = sigmoid(eta),   eta = slope * (theta + z).

A continuous response y is drawn from Beta(mu * phi, (1 - mu) * phi), a right or wrong answer from Bernoulli(mu).
Everything that fitting needs are two functions of eta: the derivative of the log likelihood and its variance, the
Fisher information. The information of the Beta model is reconstructed from its density.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import digamma, expit, gammaln, xlog1py, xlogy, zeta

from assay.errors import InputError

__all__ = [
    "CLIP", "Array", "bernoulli_information", "bernoulli_score", "beta_information", "beta_nll", "beta_score",
    "clipped", "trigamma", "two_pl_nll",
]

Array = NDArray[np.float64]

CLIP = 1e-6
"""Responses are kept this far from 0 and 1, as the authors do."""


def beta_nll(y: ArrayLike, mu: ArrayLike, phi: ArrayLike) -> Array:
    """Negative log likelihood of responses under Beta(mu * phi, (1 - mu) * phi), element by element.

    Parameters
    ----------
    y : array-like
        Responses in [0, 1]; clipped to [1e-6, 1 - 1e-6].
    mu : array-like
        Expected responses, above 0 and below 1.
    phi : array-like
        Precision, positive.

    Returns
    -------
    ndarray
        In nats, of the arguments' common shape.

    Raises
    ------
    InputError
        A value outside its range, or not finite; shapes that do not go together.

    Notes
    -----
    arXiv 2606.07616, the Beta-IRT loss.

    Examples
    --------
    >>> float(beta_nll(0.3, 0.5, 2.0))          # Beta(1, 1) is uniform
    0.0
    """
    response, expected, precision = _together(y=y, mu=mu, phi=phi)
    _inside("y", response, closed=True)
    _inside("mu", expected, closed=False)
    if not (np.isfinite(precision) & (precision > 0)).all():
        raise InputError("phi must be positive and finite")
    return _beta_nll(clipped(response), expected, precision)


def two_pl_nll(y: ArrayLike, p: ArrayLike) -> Array:
    """Negative log likelihood of right or wrong answers with probabilities `p`, element by element.

    Parameters
    ----------
    y : array-like
        1 for right, 0 for wrong; shares in between are weighed.
    p : array-like
        Probabilities of a right answer, above 0 and below 1.

    Returns
    -------
    ndarray
        In nats, of the arguments' common shape.

    Raises
    ------
    InputError
        A value outside its range, or not finite; shapes that do not go together.

    Notes
    -----
    arXiv 2606.07616, the binary loss.

    Examples
    --------
    >>> two_pl_nll([1, 0], 0.5).round(4).tolist()
    [0.6931, 0.6931]
    """
    response, chance = _together(y=y, p=p)
    _inside("y", response, closed=True)
    _inside("p", chance, closed=False)
    return -(xlogy(response, chance) + xlog1py(1 - response, -chance))


def clipped(y: Array) -> Array:
    """Responses kept off 0 and 1; NaN stays NaN."""
    return np.clip(y, CLIP, 1 - CLIP)


def beta_score(eta: Array, logit_y: Array, phi: float) -> Array:
    """Derivative of the log likelihood in eta."""
    mu, rest = expit(eta), expit(-eta)
    return phi * mu * rest * (logit_y - digamma(mu * phi) + digamma(rest * phi))


def beta_information(eta: Array, phi: float) -> Array:
    """Fisher information about eta: phi^2 [mu (1 - mu)]^2 (psi'(mu phi) + psi'((1 - mu) phi))."""
    mu, rest = expit(eta), expit(-eta)
    return (phi * mu * rest) ** 2 * (trigamma(mu * phi) + trigamma(rest * phi))


def trigamma(x: Array) -> Array:
    """psi'(x), as the Hurwitz zeta function: `scipy.special.polygamma` computes the digamma function beside it."""
    return zeta(2.0, x)


def bernoulli_score(eta: Array, y: Array) -> Array:
    """Derivative of the log likelihood in eta."""
    return y - expit(eta)


def bernoulli_information(eta: Array) -> Array:
    """Fisher information about eta: mu (1 - mu)."""
    return expit(eta) * expit(-eta)


def _beta_nll(y: Array, mu: Array, phi: Array | float) -> Array:
    a, b = mu * phi, (1 - mu) * phi
    return gammaln(a) + gammaln(b) - gammaln(phi) - (a - 1) * np.log(y) - (b - 1) * np.log1p(-y)


def _together(**values: ArrayLike) -> list[Array]:
    """The arguments as float arrays of one shape."""
    try:
        arrays = [np.asarray(value, dtype=float) for value in values.values()]
        return list(np.broadcast_arrays(*arrays))
    except (TypeError, ValueError):
        raise InputError(f"{' and '.join(values)} must be numbers of one shape, or numbers that repeat to it") from None


def _inside(name: str, values: Array, *, closed: bool) -> None:
    good = (values >= 0) & (values <= 1) if closed else (values > 0) & (values < 1)
    if not good.all():
        where = "in [0, 1]" if closed else "above 0 and below 1"
        raise InputError(f"{name} must lie {where}: {int((~good).sum())} of {good.size} values do not")
