"""Attention over a distribution of tokens, and how fast attention over n tokens of it comes near (arXiv 2512.10656).

Tokens y_1 ... y_n are drawn from mu; a query x sees them through b = M x, where M = K^T Q with the temperature
1 / sqrt(d_k) included. With weights w(y) = exp(<b, y>)

    A(x) = V E[w y] / E[w],        A_n(x) = the same for the empirical measure of the n tokens.

The theorems bound the error of A_n from above: C(R) / sqrt(n) at queries |x| <= R with C exponential in R, a slower
power of n on average over queries, a logarithmic rate where softmax turns into hardmax. Their constants are not
used here. What this module computes is reconstructed: exact statements for Gaussian tokens N(m, S).

- *Exponential tilting.* A(x) = V (m + S b).
- *At a fixed query* sqrt(n) (A_n - A) tends to a normal law with covariance V C V^T, C = exp(g^2) (S + S b b^T S)
  and g^2 = b^T S b: the variance of self-normalised importance sampling. `exp(g^2)` is the exponential constant.
- *Freezing.* The weights are exp(g z) with z normal, the random-energy model. At g = t sqrt(2 ln n) the tokens at
  z = a sqrt(2 ln n) number n^(1 - a^2), for a <= 1; each weighs n^(2at); together they make up n^(1 - a^2 + 2at) of
  the sum n^(1 + t^2), with a fluctuation of the square root of their number. The largest fluctuation is at a = 2t
  where t < 1/2, and at the edge a = 1 beyond: the relative error is n^-h(t),

      h(t) = 1/2 - t^2  (t <= 1/2),   (1 - t)^2  (1/2 <= t <= 1),   0  (t >= 1: one token carries all weight).

- *Averaged over queries.* Queries N(m, S) give P(g > t sqrt(2 ln n)) = n^(-t^2/lam), with lam the largest
  eigenvalue of S^(1/2) M^T S M S^(1/2). Hence E_x |A_n - A|^p falls as n^-beta, beta = min_t [t^2 / lam + p h(t)]:
  p/2 where p lam <= 1, else p / (1 + p lam), up to powers of log n.
- *Averaged over token sets as well.* A rare token set with one token at a > 1, of probability n^(1 - a^2), adds
  n^(1 - a^2) min(1, n^(2at - 1 - t^2))^p. That never matters for p = 1. For p = 2 it does where lam > 1/2:
  beta = sqrt(1/lam + 1/4) - 1/2, below the 2 / (1 + 2 lam) of a typical token set.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import InputError, as_matrix

__all__ = [
    "asymptotic_cov", "asymptotic_cov_empirical", "effective_tokens", "freezing_exponent", "gaussian_attention",
    "predicted_exponent", "spectral_lambda",
]

Array = NDArray[np.float64]
LARGEST = 1e50  # of queries, keys, values and scale: products of all of them, squared, are still numbers


def gaussian_attention(
    x: ArrayLike, mean: ArrayLike, cov: ArrayLike, M: ArrayLike, V: ArrayLike | None = None
) -> Array:
    """Attention output over Gaussian tokens N(mean, cov), exactly: V (mean + cov M x).

    Parameters
    ----------
    x : array-like of shape (..., d)
        Queries.
    mean : array-like of shape (d,)
    cov : array-like of shape (d, d)
        Positive semidefinite.
    M : array-like of shape (d, d)
        Scores are <M x, y>: K^T Q with the temperature included.
    V : array-like of shape (d_v, d), optional
        The identity by default.

    Returns
    -------
    ndarray of shape (..., d_v), float64

    Raises
    ------
    InputError
        NaN or infinite values, shapes that do not fit, a covariance that is not symmetric or has a negative eigenvalue.

    Notes
    -----
    Reconstructed (exponential tilting of a Gaussian).

    Examples
    --------
    >>> gaussian_attention([[1.0], [2.0]], [0.5], [[1.0]], [[2.0]])
    array([[2.5],
           [4.5]])
    """
    x, mean, cov, M, V = _gaussian(x, mean, cov, M, V)
    with np.errstate(all="ignore"):
        return _representable((mean + (x @ M.T) @ cov) @ V.T, "the output")


def asymptotic_cov(x: ArrayLike, mean: ArrayLike, cov: ArrayLike, M: ArrayLike, V: ArrayLike | None = None) -> Array:
    """Covariance of sqrt(n) (A_n(x) - A(x)) as n grows, for Gaussian tokens: exp(b'Sb) V (S + S b b' S) V'.

    Parameters
    ----------
    x : array-like of shape (..., d)
    mean, cov, M, V : array-like
        As in `gaussian_attention`.

    Returns
    -------
    ndarray of shape (..., d_v, d_v), float64

    Raises
    ------
    InputError
        As `gaussian_attention`; also where exp(b'Sb) is beyond floating point numbers.

    Notes
    -----
    Reconstructed (central limit theorem of a ratio of means).

    Examples
    --------
    In one dimension with unit variance it is exp(b^2) (1 + b^2), 2e at b = 1:

    >>> round(float(asymptotic_cov([1.0], [0.0], [[1.0]], [[1.0]])[0, 0]), 5)
    5.43656
    """
    x, mean, cov, M, V = _gaussian(x, mean, cov, M, V)
    with np.errstate(all="ignore"):
        b = x @ M.T
        tilted = b @ cov
        g_squared = np.einsum("...i,...i->...", b, tilted)
    if g_squared.size and not g_squared.max() <= 700:
        raise InputError(f"b' cov b is {g_squared.max():.4g} at a query: its exponential is no floating point number")
    inner = cov + tilted[..., :, None] * tilted[..., None, :]
    with np.errstate(all="ignore"):
        return _representable(np.exp(g_squared)[..., None, None] * (V @ inner @ V.T), "the covariance")


def asymptotic_cov_empirical(q: ArrayLike, K: ArrayLike, V: ArrayLike, *, scale: float | None = None) -> Array:
    """Covariance of sqrt(n) (A_n - A) for each query, estimated from tokens of any distribution.

    E[w^2 (v - A)(v - A)'] / E[w]^2 with the tokens' own averages.

    Parameters
    ----------
    q : array-like of shape (m, d_k)
    K : array-like of shape (N, d_k)
    V : array-like of shape (N, d_v)
    scale : float, optional
        Scores are scale * q K'; 1 / sqrt(d_k) by default.

    Returns
    -------
    ndarray of shape (m, d_v, d_v), float64

    Raises
    ------
    InputError
        NaN or infinite values, shapes that do not fit, a scale that is not positive.

    Notes
    -----
    Reconstructed. An underestimate where few tokens carry the weight: look at `effective_tokens` first.

    Examples
    --------
    With equal scores it is the covariance of the values:

    >>> asymptotic_cov_empirical([[0.0]], [[1.0], [2.0]], [[-1.0], [1.0]])
    array([[[1.]]])
    """
    q, K, V, scale = heads_input(q, K, V, scale)
    scores = scale * (q @ K.T)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    off = V[None] - (weights @ V)[:, None]
    return len(K) * np.einsum("mn,mni,mnj->mij", weights**2, off, off, optimize=True)


def effective_tokens(scores: ArrayLike, axis: int = -1) -> Array:
    """Effective number of tokens, (sum w)^2 / sum w^2 with w = exp(score).

    Parameters
    ----------
    scores : array-like
        Attention scores before the softmax, the temperature included; -inf is a masked token.
    axis : int
        The axis of the tokens.

    Returns
    -------
    ndarray, float64
        Without that axis. n where all scores are equal, 1 where one dominates.

    Raises
    ------
    InputError
        NaN or +inf, no token, or a query whose tokens are all masked.

    Notes
    -----
    Reconstructed; the effective sample size of importance sampling. For Gaussian tokens about n exp(-b'Sb).

    Examples
    --------
    >>> effective_tokens([[0.0, 0.0, 0.0, 0.0], [900.0, 0.0, 0.0, 0.0]])
    array([4., 1.])
    """
    try:
        values = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("scores must be an array of numbers") from None
    if values.ndim == 0 or values.size == 0:
        raise InputError(f"scores must hold at least one token, got shape {values.shape}")
    if not isinstance(axis, (int, np.integer)) or not -values.ndim <= axis < values.ndim:
        raise InputError(f"axis {axis!r} is none of the {values.ndim} axes of scores")
    if np.isnan(values).any() or np.isposinf(values).any():
        raise InputError("scores must be finite, or -inf for a masked token; got NaN or +inf")
    top = values.max(axis=axis, keepdims=True)
    if np.isneginf(top).any():
        raise InputError("a query has no token that is not masked: all its scores are -inf")
    with np.errstate(over="ignore"):  # beyond the largest number below the top: its weight is zero all the same
        weights = np.exp(values - top)
    return np.asarray(weights.sum(axis=axis) ** 2 / (weights**2).sum(axis=axis))


def spectral_lambda(M: ArrayLike, cov: ArrayLike, query_cov: ArrayLike | None = None) -> float:
    """The number that sets the averaged rate: the largest eigenvalue of S^(1/2) M' S M S^(1/2).

    Parameters
    ----------
    M : array-like of shape (d, d_q)
        Scores are <M x, y>, the temperature included.
    cov : array-like of shape (d, d)
        Covariance of the tokens (keys).
    query_cov : array-like of shape (d_q, d_q), optional
        Covariance of the queries, where it is another than that of the tokens.

    Returns
    -------
    float
        Variance of the scores, over tokens and then over queries, along the direction in which it is largest.

    Raises
    ------
    InputError
        NaN or infinite values, shapes that do not fit, a covariance that is not symmetric or has a negative eigenvalue.

    Notes
    -----
    Reconstructed.

    Examples
    --------
    >>> spectral_lambda([[2.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]])
    4.0
    """
    M = as_matrix(M, "M").astype(np.float64)
    cov = _covariance(cov, "cov", M.shape[0])
    queries = cov if query_cov is None else _covariance(query_cov, "query_cov", M.shape[1])
    if queries.shape[0] != M.shape[1]:
        raise InputError(f"M must be square where queries and tokens share a covariance, got shape {M.shape}")
    root = _root(queries)
    with np.errstate(all="ignore"):
        product = _representable(root @ M.T @ cov @ M @ root, "M' cov M")
    return float(np.linalg.eigvalsh(product)[-1].clip(0.0))


def freezing_exponent(t: ArrayLike) -> Array:
    """h(t): at b'Sb = 2 t^2 ln n the relative error of a typical token set is n^-h(t).

    Parameters
    ----------
    t : array-like
        Not negative. From t = 1 on a single token carries the weight.

    Returns
    -------
    ndarray, float64
        Of the shape of `t`, between 0 and 1/2.

    Raises
    ------
    InputError
        NaN or a negative t.

    Notes
    -----
    Reconstructed (random-energy model); the module's docstring has the derivation.

    Examples
    --------
    >>> freezing_exponent([0.0, 0.5, 0.75, 1.0, 3.0])
    array([0.5   , 0.25  , 0.0625, 0.    , 0.    ])
    """
    try:
        t = np.asarray(t, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("t must be numbers") from None
    if not (t >= 0).all():
        raise InputError("t must be zero or positive, and no NaN")
    return np.where(t <= 0.5, 0.5 - t**2, np.where(t < 1, (1 - t) ** 2, 0.0))


def predicted_exponent(lam: ArrayLike, p: int = 1, *, token_sets: str = "typical") -> Array:
    """The exponent with which the p-th moment of the error, averaged over queries, falls with the tokens.

    Parameters
    ----------
    lam : array-like
        `spectral_lambda`; zero or positive.
    p : {1, 2}
        1 for the mean error, 2 for the mean square.
    token_sets : {"typical", "mean"}
        For p = 2 the mean over token sets is ruled by rare ones where lam > 1/2; the typical set does better.
        For p = 1 both are the same.

    Returns
    -------
    ndarray, float64
        Of the shape of `lam`. p = 1: 1/2 where lam <= 1, else 1 / (1 + lam). p = 2: 1 where lam <= 1/2, else
        2 / (1 + 2 lam) (typical) or sqrt(1/lam + 1/4) - 1/2 (mean). Powers of log n are left out, and
        show at any n that can be run.

    Raises
    ------
    InputError
        A negative, NaN or infinite lam; another p or `token_sets`.

    Notes
    -----
    Reconstructed; the module's docstring has the derivation.

    Examples
    --------
    >>> predicted_exponent([0.5, 1.0, 2.0, 4.0])
    array([0.5       , 0.5       , 0.33333333, 0.2       ])
    """
    try:
        lam = np.asarray(lam, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("lam must be numbers") from None
    if not (np.isfinite(lam).all() and (lam >= 0).all()):
        raise InputError("lam must be finite, zero or positive")
    if isinstance(p, bool) or not isinstance(p, (int, float, np.number)) or p not in (1, 2):
        raise InputError(f"p must be 1 or 2, got {p!r}")
    if token_sets not in ("typical", "mean"):
        raise InputError(f"token_sets must be typical or mean, got {token_sets!r}")
    if p == 2 and token_sets == "mean":
        return np.where(lam <= 0.5, 1.0, np.sqrt(1 / np.maximum(lam, 0.5) + 0.25) - 0.5)
    return np.where(p * lam <= 1, p / 2, p / (1 + p * lam))


def expected_maximum(n: ArrayLike) -> Array:
    """Highest of n standard normals, to first order: sqrt(2 ln n) - (ln ln n + ln 4 pi) / (2 sqrt(2 ln n))."""
    root = np.sqrt(2 * np.log(np.asarray(n, dtype=np.float64)))
    return root - (np.log(root**2 / 2) + math.log(4 * math.pi)) / (2 * root)


def heads_input(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, scale: float | None
) -> tuple[Array, Array, Array, float]:
    """Queries, keys, values in float64 and the scale, checked."""
    queries = as_matrix(q, "q").astype(np.float64)
    keys, values = as_matrix(k, "k").astype(np.float64), as_matrix(v, "v").astype(np.float64)
    if queries.shape[1] != keys.shape[1]:
        raise InputError(f"q and k must share d_k, got shapes {queries.shape} and {keys.shape}")
    if len(keys) != len(values):
        raise InputError(f"k and v must have one row a token each, got shapes {keys.shape} and {values.shape}")
    for name, array in (("q", queries), ("k", keys), ("v", values)):
        if (size := float(np.abs(array).max())) > LARGEST:
            raise InputError(f"{name} must be at most {LARGEST:g} in size, got {size:.4g}")
    if scale is None:
        return queries, keys, values, keys.shape[1] ** -0.5
    if isinstance(scale, bool) or not isinstance(scale, (int, float, np.number)) or not 0 < float(scale) <= LARGEST:
        raise InputError(f"scale must be a positive number, at most {LARGEST:g}, got {scale!r}")
    return queries, keys, values, float(scale)


def whole_number(value: object, name: str, least: int) -> int:
    """A whole number that is at least `least`, as an int."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(f"{name} must be a whole number, {least} or more, got {value!r}")
    return int(value)


def _representable(result: Array, what: str) -> Array:
    if not np.isfinite(result).all():
        raise InputError(f"{what} is beyond floating point numbers: the inputs are too large")
    return result


def _gaussian(
    x: ArrayLike, mean: ArrayLike, cov: ArrayLike, M: ArrayLike, V: ArrayLike | None
) -> tuple[Array, Array, Array, Array, Array]:
    from assay.errors import as_vector

    mean = as_vector(mean, "mean").astype(np.float64)
    d = len(mean)
    cov = _covariance(cov, "cov", d)
    M = as_matrix(M, "M", columns=d).astype(np.float64)
    if len(M) != d:
        raise InputError(f"M must have shape ({d}, {d}), got {M.shape}")
    V = np.eye(d) if V is None else as_matrix(V, "V", columns=d).astype(np.float64)
    try:
        queries = np.asarray(x, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("x must be an array of numbers") from None
    if queries.ndim == 0 or queries.shape[-1] != d:
        raise InputError(f"x must have {d} entries along its last axis, got shape {queries.shape}")
    if not np.isfinite(queries).all():
        raise InputError("x must be finite")
    return queries, mean, cov, M, V


def _covariance(cov: ArrayLike, name: str, d: int) -> Array:
    found = as_matrix(cov, name).astype(np.float64)
    if found.shape != (d, d):
        raise InputError(f"{name} must have shape ({d}, {d}), got {found.shape}")
    size = float(np.abs(found).max())
    if np.abs(found - found.T).max() > 1e-6 * size:
        raise InputError(f"{name} must be symmetric")
    found = (found + found.T) / 2
    lowest = float(np.linalg.eigvalsh(found)[0])
    # Rounding of float32 inputs leaves eigenvalues of -1e-7 of the largest.
    if lowest < -1e-6 * size:
        raise InputError(f"{name} must be positive semidefinite, its smallest eigenvalue is {lowest:.3g}")
    return found


def _root(cov: Array) -> Array:
    values, vectors = np.linalg.eigh(cov)
    return (vectors * np.sqrt(values.clip(0.0))) @ vectors.T
