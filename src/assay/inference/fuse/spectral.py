"""Accuracies and base rate from moments alone: the estimator of Jaffe, Nadler and Kluger (AISTATS 2015).

Let Y = +1 or -1 be the unknown truth, b = P(Y=1) - P(Y=-1), and let verifier j have sensitivity psi_j,
specificity eta_j and balanced accuracy pi_j = (psi_j + eta_j) / 2. If any three verifiers are independent
given Y, the moments of their votes are

    R_ij  = (1 - b^2) (2 pi_i - 1) (2 pi_j - 1)                          = v_i v_j          (i != j)
    T_ijk = -2 b (1 - b^2) (2 pi_i - 1) (2 pi_j - 1) (2 pi_k - 1)        = alpha v_i v_j v_k,

so that v comes from completing R to rank one (its diagonal is not rank one and must be left out), alpha from
the triples, and then

    b     = -alpha / sqrt(4 + alpha^2)
    psi_j = (1 + mu_j + v_j sqrt((1 - b) / (1 + b))) / 2
    eta_j = (1 - mu_j + v_j sqrt((1 + b) / (1 - b))) / 2.

The sign of v is not identified by R: it is chosen so that the verifiers are better than chance on the whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Verifiers", "invert_moments", "log_odds", "rank_one_completion", "skewness_ratio"]

Array = NDArray[np.float64]

FLOOR = 1e-3
"""Sensitivities, specificities and the base rate are kept this far from 0 and 1."""


@dataclass(frozen=True)
class Verifiers:
    """What the moments say about the verifiers.

    Attributes
    ----------
    sensitivity, specificity : (M,) arrays
        Kept inside [FLOOR, 1 - FLOOR].
    balance : float
        b = P(Y=1) - P(Y=-1); the base rate is (1 + b) / 2.
    loading : (M,) array
        v_j = sqrt(1 - b^2) (2 pi_j - 1): negative for a verifier that is worse than chance.
    on_boundary : (M,) bool array
        Verifiers whose estimate had to be pulled back inside.
    """

    sensitivity: Array
    specificity: Array
    balance: float
    loading: Array
    on_boundary: NDArray[np.bool_]

    @property
    def base_rate(self) -> float:
        return (1 + self.balance) / 2

    @property
    def base_rate_on_boundary(self) -> bool:
        return not 1.001 * FLOOR < self.base_rate < 1 - 1.001 * FLOOR


def rank_one_completion(
    covariance: ArrayLike, *, use: NDArray[np.bool_] | None = None, start: Array | None = None,
    n_sweeps: int = 200, tol: float = 1e-13,
) -> Array:
    """The v whose products v_i v_j fit the off-diagonal of a covariance matrix best, in least squares.

    Alternating least squares: each v_i in turn is set to its minimiser given the others. Leading axes of
    `covariance` are separate problems, solved side by side.

    Parameters
    ----------
    covariance : (..., M, M) array
        Symmetric; the diagonal is not used.
    use : (M, M) bool array, optional
        Pairs to fit; all by default.
    start : (..., M) array, optional
        Where to begin; by default the leading eigenvector with communalities on the diagonal.

    Returns
    -------
    (..., M) array, with the sign that makes its sum positive.

    Examples
    --------
    >>> v = np.array([0.6, 0.5, 0.4, -0.3])
    >>> rank_one_completion(np.outer(v, v) + np.diag([0.6, 0.7, 0.8, 0.9])).round(6).tolist()
    [0.6, 0.5, 0.4, -0.3]
    """
    matrix = np.asarray(covariance, dtype=float)
    size = matrix.shape[-1]
    fitted = ~np.eye(size, dtype=bool) if use is None else use & ~np.eye(size, dtype=bool)
    matrix = np.where(fitted, matrix, 0.0)
    weights = fitted.astype(float)
    v = np.array(_leading(matrix) if start is None else np.broadcast_to(start, matrix.shape[:-1]), dtype=float)
    for _ in range(n_sweeps):
        before = v.copy()
        for i in range(size):
            power = np.vecdot(v * v, weights[i])
            v[..., i] = np.vecdot(matrix[..., i, :], v) / np.maximum(power, 1e-300)
        if np.abs(v - before).max(initial=0.0) <= tol:
            break
    return v * np.where(v.sum(axis=-1, keepdims=True) < 0, -1.0, 1.0)


def skewness_ratio(third: Array, triples: NDArray[np.intp], loading: Array) -> Array:
    """alpha in T_ijk = alpha v_i v_j v_k, by least squares over the triples."""
    product = _triple_product(loading, triples)
    power = (product * product).sum(axis=-1)
    return np.divide((third * product).sum(axis=-1), power, out=np.zeros_like(power), where=power > 1e-300)


def invert_moments(mean: ArrayLike, loading: ArrayLike, alpha: float) -> Verifiers:
    """Sensitivities, specificities and base rate from mu, v and alpha (module docstring).

    An estimate outside (0, 1) is pulled back along the line on which the verifier's share of +1 votes
    stays what was observed: this shrinks v_j towards zero, and never turns its sign.
    """
    mu, v = np.asarray(mean, dtype=float), np.asarray(loading, dtype=float)
    b = float(np.clip(-alpha / np.sqrt(4 + alpha * alpha), -1 + 2 * FLOOR, 1 - 2 * FLOOR))
    up, down = v * np.sqrt((1 - b) / (1 + b)), v * np.sqrt((1 + b) / (1 - b))
    middle = np.clip(mu, -1 + 4 * FLOOR, 1 - 4 * FLOOR)
    shrink = np.minimum(_reach(middle, up), _reach(-middle, down))
    return Verifiers(
        sensitivity=(1 + middle + shrink * up) / 2, specificity=(1 - middle + shrink * down) / 2,
        balance=b, loading=v, on_boundary=shrink < 1,
    )


def log_odds(votes: Array, verifiers: Verifiers) -> Array:
    """log P(Y=1 | votes) - log P(Y=-1 | votes) when the verifiers are independent given Y; NaN votes say nothing."""
    psi, eta = verifiers.sensitivity, verifiers.specificity
    if_yes, if_no = np.log(psi / (1 - eta)), np.log((1 - psi) / eta)
    parts = np.where(votes > 0, if_yes, if_no)
    prior = np.log((1 + verifiers.balance) / (1 - verifiers.balance))
    return np.where(np.isfinite(votes), parts, 0.0).sum(axis=1) + prior


def _leading(matrix: Array) -> Array:
    communality = np.abs(matrix).max(axis=-1)
    filled = matrix + communality[..., None] * np.eye(matrix.shape[-1])
    values, vectors = np.linalg.eigh(filled)
    return vectors[..., -1] * np.sqrt(np.maximum(values[..., -1:], 1e-12))


def _reach(centre: Array, step: Array) -> Array:
    """The largest t in [0, 1] with (1 + centre + t step) / 2 inside [FLOOR, 1 - FLOOR]."""
    room = np.where(step > 0, 1 - 2 * FLOOR - centre, 1 - 2 * FLOOR + centre)
    return np.minimum(1.0, np.divide(room, np.abs(step), out=np.ones_like(step), where=np.abs(step) > room))


def _triple_product(loading: Array, triples: NDArray[np.intp]) -> Array:
    return loading[..., triples[:, 0]] * loading[..., triples[:, 1]] * loading[..., triples[:, 2]]
