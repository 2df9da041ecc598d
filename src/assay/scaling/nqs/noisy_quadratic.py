"""The noisy quadratic system: test loss as a function of model size N, batch size B and number of updates K.

Training is replaced by stochastic gradient descent on a quadratic with infinitely many directions n = 1, 2, ...:
curvature `lambda_n = Q / n**q`, initial excess loss of direction n `P / n**p / 2`, gradient noise of variance
`lambda_n * R / n**r / B`. A model of size N trains the first N directions for K steps of size `lr`. With
`a_n = 1 - lr * lambda_n` the expected loss is the sum of four terms

    irreducible     e_irr
    approximation   1/2 P zeta(p, N + 1)                                        directions that are not trained
    bias            sum_{n<=N} 1/2 P n**-p a_n**(2K)                            what K steps leave of the start
    variance        sum_{n<=N} 1/2 lambda_n R n**-r lr**2/B (1 - a_n**(2K))/(1 - a_n**2)

Because `1 - a_n**2 = lr lambda_n (2 - lr lambda_n)`, a variance term equals
`1/2 R n**-r lr/B (1 - a_n**(2K)) / (2 - lr lambda_n)`, which has no vanishing denominator for small curvature.

The sums over up to 10**12 directions cost about 120 evaluations: the first M <= 100 directions exactly, the rest by
first-order Euler-Maclaurin summation, its integral taken over log n with one 20-point Gauss-Legendre rule.

The regularised risk follows the same system while the step size is lowered, segment by segment, as the norm of the
weights grows; it is the variant with which the authors predict (`nqs_risk_regularized`).

Source: C. Li, C. J. Maddison, "Predicting Large Model Test Losses with a Noisy Quadratic System", arXiv 2605.09154.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import zeta

from assay.errors import InputError

PARAMETERS = ("p", "q", "P", "Q", "e_irr", "R", "r")
COMPONENTS = ("irreducible", "approximation", "bias", "variance")
LEARNING_RATE = 1.999
INITIAL_WEIGHT_VARIANCE = 0.02**2

EXACT_DIRECTIONS = 100
EXACT_FRACTION = 0.05
NODES, NODE_WEIGHTS = np.polynomial.legendre.leggauss(20)

# A step size above 2 / lambda_1 makes the loss grow like exp(2 K log|a|). The exponent is capped where the loss is
# already beyond any data, so that such a system has a huge but finite risk.
MAX_EXPONENT = 300.0
LEAST_GAP = 1e-9

Array = NDArray[np.float64]
WeightNorm = Callable[[Array], ArrayLike]


def nqs_risk(
    theta: Mapping[str, float], N: ArrayLike, B: ArrayLike, K: ArrayLike, lr: float = LEARNING_RATE
) -> Array | float:
    """Expected loss of the noisy quadratic system (standard risk).

    Parameters
    ----------
    theta : mapping
        The seven parameters `p, q, P, Q, e_irr, R, r`; `p > 1`, the upper-case ones and `e_irr` not negative.
    N, B, K : array-like
        Model size (parameters), batch size (sequences) and number of updates; broadcast against each other.
    lr : float, default 1.999
        Step size of the quadratic system, not of the run that is modelled.

    Returns
    -------
    ndarray or float
        Loss in the unit of the data to which `theta` was fitted (nats per token), in the broadcast shape.

    Raises
    ------
    InputError
        A missing or non-finite parameter, `p <= 1`, an `lr` or a size that is not positive (`K` may be 0).

    Notes
    -----
    arXiv 2605.09154. If `lr * Q > 2` the system diverges; the returned risk is then capped, never NaN.

    Examples
    --------
    >>> theta = dict(p=1.113, q=0.584, P=3.393, Q=0.885, e_irr=0.354, R=8.41, r=2.583)
    >>> print(round(nqs_risk(theta, N=64e6, B=2048, K=10_000), 4))
    2.4377
    """
    values, rows, shape = _read_arguments(theta, N, B, K, lr)
    return _shaped(np.sum(_standard_components(values, rows, lr), axis=0), shape)


def nqs_risk_regularized(
    theta: Mapping[str, float],
    N: ArrayLike,
    B: ArrayLike,
    K: ArrayLike,
    lr: float = LEARNING_RATE,
    w0_sq: WeightNorm | None = None,
) -> Array | float:
    """Expected loss when the step size shrinks as the weights grow (regularised risk).

    Before each of about 10 to 100 segments of the run the step size becomes
    `min(previous, lr * w0_sq / (w0_sq + |w|**2))`.

    Parameters
    ----------
    theta, N, B, K, lr
        As in `nqs_risk`; `K` at least 1.
    w0_sq : callable, optional
        Squared norm of the initial weights as a function of N, default `N * 0.02**2`. Infinity switches the
        regularisation off.

    Returns
    -------
    ndarray or float
        Loss, in the broadcast shape.

    Raises
    ------
    InputError
        As `nqs_risk`, and if `w0_sq` is no function or returns anything but positive numbers.

    Notes
    -----
    arXiv 2605.09154; the segment rule and the summation follow the authors' implementation, which leaves out the
    end-point term of the Euler-Maclaurin sum in this variant.

    Examples
    --------
    >>> theta = dict(p=1.113, q=0.584, P=3.393, Q=0.885, e_irr=0.354, R=8.41, r=2.583)
    >>> print(round(nqs_risk_regularized(theta, N=64e6, B=2048, K=10_000), 4))
    2.4799
    """
    values, rows, shape = _read_arguments(theta, N, B, K, lr, least_steps=1)
    return _shaped(np.sum(_regularized_components(values, rows, lr, w0_sq), axis=0), shape)


def risk_components(
    theta: Mapping[str, float],
    N: ArrayLike,
    B: ArrayLike,
    K: ArrayLike,
    lr: float = LEARNING_RATE,
    w0_sq: WeightNorm | None = None,
    regularized: bool = False,
) -> dict[str, Array]:
    """The four terms of the risk: irreducible, approximation, bias and variance.

    Parameters
    ----------
    theta, N, B, K, lr, w0_sq
        As in `nqs_risk_regularized`.
    regularized : bool, default False
        Which of the two risks to take apart.

    Returns
    -------
    dict of ndarray
        One array a term, each in the broadcast shape; they add up to the risk.

    Raises
    ------
    InputError
        As the risk functions.

    Examples
    --------
    >>> theta = dict(p=1.113, q=0.584, P=3.393, Q=0.885, e_irr=0.354, R=8.41, r=2.583)
    >>> terms = risk_components(theta, N=64e6, B=2048, K=10_000)
    >>> print({name: round(float(term), 4) for name, term in terms.items()})
    {'irreducible': 0.354, 'approximation': 1.9696, 'bias': 0.095, 'variance': 0.0191}
    """
    values, rows, shape = _read_arguments(theta, N, B, K, lr, least_steps=1 if regularized else 0)
    terms = _regularized_components(values, rows, lr, w0_sq) if regularized else _standard_components(values, rows, lr)
    return {name: np.reshape(term, shape) for name, term in zip(COMPONENTS, terms, strict=True)}


@dataclass(frozen=True)
class Rows:
    """Runs on which a risk is evaluated, with the summation grid of each of the distinct model `sizes`.

    `log_n` and `weights` have one row a distinct size: the directions at which the summand is evaluated and the
    weight of each. `size` tells which of those rows a run uses. The first `EXACT_DIRECTIONS + 20` columns are the
    directions summed one by one and the quadrature nodes; the last two are the end points N and M.
    """

    N: Array
    B: Array
    K: Array
    sizes: Array
    size: NDArray[np.intp]
    log_n: Array
    weights: Array

    @classmethod
    def of(cls, N: Array, B: Array, K: Array) -> Rows:
        sizes, size = np.unique(N, return_inverse=True)
        log_n, weights = _summation_grid(sizes)
        return cls(N, B, K, sizes, size, log_n, weights)


def log_risk_and_jacobian(x: Array, rows: Rows, lr: float = LEARNING_RATE) -> tuple[Array, Array]:
    """Log of the standard risk and its derivatives in `x = (p, q, log P, log Q, log e_irr, log R, r)`.

    Returns the logs, shape (rows,), and the Jacobian, shape (rows, 7).
    """
    p, q, r = x[0], x[1], x[6]
    P, Q, e_irr, R = np.exp(x[2:6])
    log_n, weights = rows.log_n, rows.weights
    start = 0.5 * P * weights * np.exp(-p * log_n)
    noise = 0.5 * R * lr * weights * np.exp(-r * log_n)
    step = _steps(lr, Q * np.exp(-q * log_n))
    log_a, signed, gap = _log_contraction(step), step * np.sign(1 - step), 2 - step

    i, twice_K = rows.size, 2 * rows.K[:, None]
    log_a, gap = log_a[i], gap[i]
    exponent = np.minimum(twice_K * log_a, MAX_EXPONENT)
    left = np.exp(exponent)  # a**(2K)
    # d left / d log Q = -2K lr lambda a**(2K-1)
    with np.errstate(over="ignore"):
        slope = -twice_K * signed[i] * np.exp(exponent - log_a)
    slope[exponent == MAX_EXPONENT] = 0.0
    start, noise, log_n = start[i], noise[i] / rows.B[:, None], log_n[i]
    bias = start * left
    variance = noise * -np.expm1(exponent) / gap
    by_log_Q = start * slope + (-noise * slope + variance * step[i]) / gap

    first = rows.sizes + 1
    approximation = 0.5 * P * zeta(p, first)[i]
    risk = e_irr + approximation + (bias + variance).sum(axis=1)
    gradient = np.stack([
        0.5 * P * _zeta_slope(p, first)[i] - (log_n * bias).sum(axis=1),
        -(log_n * by_log_Q).sum(axis=1),
        approximation + bias.sum(axis=1),
        by_log_Q.sum(axis=1),
        np.full_like(risk, e_irr),
        variance.sum(axis=1),
        -(log_n * variance).sum(axis=1),
    ], axis=1)
    return np.log(risk), gradient / risk[:, None]


def _standard_components(theta: Mapping[str, float], rows: Rows, lr: float) -> tuple[Array, ...]:
    start, noise, curvature = _spectra(theta, rows)
    step = _steps(lr, curvature)
    exponent = np.minimum(2 * rows.K[:, None] * _log_contraction(step)[rows.size], MAX_EXPONENT)
    weights = rows.weights[rows.size]
    bias = 0.5 * weights * start[rows.size] * np.exp(exponent)
    variance = 0.5 * weights * (noise * lr / (2 - step))[rows.size] * -np.expm1(exponent)
    return *_constant_components(theta, rows), bias.sum(axis=1), variance.sum(axis=1) / rows.B


def _regularized_components(
    theta: Mapping[str, float], rows: Rows, lr: float, w0_sq: WeightNorm | None
) -> tuple[Array, ...]:
    """The four terms at the end of the last segment of each run.

    A direction's state is the product of `a**2` so far, kept as its logarithm, and its variance in units of the noise.
    The squared norm of the weights is a sum of squares, `P n**-p / lambda_n (1 - sqrt(b_n))**2 + R n**-r v_n`: the
    reference's expression rearranged.
    """
    weight_norm = _initial_weight_norm(rows.N, w0_sq)
    order, lengths, active = _segments(rows.K)
    inner = slice(0, -2)  # without the end-point term
    start, noise, curvature, weights = (t[rows.size[order], inner] for t in (*_spectra(theta, rows), rows.weights))
    weight_norm, batch = weight_norm[order], rows.B[order, None]

    distance, spread = weights * start / curvature, weights * noise
    log_b, v, rate = np.zeros_like(start), np.zeros_like(start), np.full(len(order), float(lr))
    # Rates only fall: where the first steps shrink every direction, no exponent is ever positive, none needs a cap.
    tame = lr * curvature.max(initial=0.0) < 2 - LEAST_GAP
    for length, n_active in zip(lengths, active, strict=True):
        on = slice(0, n_active)
        norm_sq = (distance[on] * (1 - np.exp(log_b[on] / 2)) ** 2 + spread[on] * v[on]).sum(axis=1)
        rate[on] = np.minimum(rate[on], lr / (1 + norm_sq / weight_norm[on]))
        step = rate[on, None] * curvature[on] if tame else _steps(rate[on, None], curvature[on])
        exponent = 2 * length[on, None] * _log_contraction(step)
        log_b[on] += exponent
        if not tame:
            np.minimum(log_b[on], MAX_EXPONENT, out=log_b[on])
            exponent = np.minimum(exponent, MAX_EXPONENT)
        lost = np.expm1(exponent)
        gained = rate[on, None] / batch[on] * -lost / (curvature[on] * (2 - step))
        v[on] += lost * v[on] + gained
        if not tame:
            np.minimum(v[on], np.exp(MAX_EXPONENT), out=v[on])

    bias, variance = np.empty(len(order)), np.empty(len(order))
    bias[order] = 0.5 * (weights * start * np.exp(log_b)).sum(axis=1)
    variance[order] = 0.5 * (spread * curvature * v).sum(axis=1)
    return *_constant_components(theta, rows), bias, variance


def _segments(K: Array) -> tuple[NDArray[np.intp], Array, NDArray[np.intp]]:
    """The runs with most segments first; lengths (segment, run) in that order; how many runs have each segment."""
    ends = [_segment_ends(int(k)) for k in K]
    counts = np.array([len(e) for e in ends])
    order = np.argsort(-counts, kind="stable")
    lengths = np.zeros((counts.max(), len(K)))
    for column, row in enumerate(order):
        lengths[: counts[row], column] = np.diff(ends[row], prepend=0)
    active = np.array([np.sum(counts > segment) for segment in range(counts.max())])
    return order, lengths, active


def _segment_ends(steps: int) -> list[int]:
    """Update counts at which a segment ends.

    `int(change_point * steps)` truncates a floating-point product and so lies one below the intended count now
    and then; the authors' predictions contain this, hence so do ours.
    """
    interval = max(steps // 100, min(1000, steps // 10)) if steps > 10 else 1
    change_points = [(i + 1) * interval / steps for i in range(steps // interval)]
    return [int(point * steps) for point in change_points] + [steps]


def _constant_components(theta: Mapping[str, float], rows: Rows) -> tuple[Array, Array]:
    return np.full(len(rows.N), theta["e_irr"]), 0.5 * theta["P"] * zeta(theta["p"], rows.sizes + 1)[rows.size]


def _spectra(theta: Mapping[str, float], rows: Rows) -> tuple[Array, Array, Array]:
    """P n**-p, R n**-r and lambda_n on the summation grid of each distinct size."""
    return (
        theta["P"] * np.exp(-theta["p"] * rows.log_n),
        theta["R"] * np.exp(-theta["r"] * rows.log_n),
        theta["Q"] * np.exp(-theta["q"] * rows.log_n),
    )


def _summation_grid(sizes: Array) -> tuple[Array, Array]:
    """Directions (as log n) and weights with which a sum over n = 1..N is evaluated, one row a size."""
    last_exact = np.clip(np.floor(EXACT_FRACTION * sizes), 1, EXACT_DIRECTIONS)[:, None]
    exact = np.broadcast_to(np.arange(1.0, EXACT_DIRECTIONS + 1), (len(sizes), EXACT_DIRECTIONS))
    low, high = np.log(last_exact), np.log(sizes)[:, None]
    half = (high - low) / 2
    nodes = low + half * (NODES + 1)
    log_n = np.hstack([np.log(exact), nodes, high, low])
    ends = np.full_like(low, 0.5)
    # dn = n d(log n) turns the integral over n into one over log n.
    weights = np.hstack([exact <= last_exact, half * NODE_WEIGHTS * np.exp(nodes), ends, -ends])
    return log_n, weights


def _log_contraction(step: Array) -> Array:
    """log|1 - step|, exact to rounding near step = 0 and step = 2; finite at step = 1."""
    with np.errstate(divide="ignore"):
        return np.maximum(np.log1p(np.where(step < 1, -step, step - 2)), -MAX_EXPONENT)


def _steps(rate: float | Array, curvature: Array) -> Array:
    """rate * lambda_n, kept off 2, where (1 - a**(2K)) / (2 - rate * lambda_n) is 0/0 with the limit 2K."""
    step = rate * curvature
    return np.where(np.abs(step - 2) < LEAST_GAP, 2 - LEAST_GAP, step)


def _zeta_slope(p: float, first: Array) -> Array:
    """Derivative of the Hurwitz zeta function zeta(p, first) in p: ten terms, then Euler-Maclaurin."""
    terms = first[:, None] + np.arange(10.0)
    a = first + 10
    log_a = np.log(a)
    tail = -a ** (1 - p) / (p - 1) * (log_a + 1 / (p - 1)) - log_a * a**-p / 2 + (1 - p * log_a) * a ** (-p - 1) / 12
    return tail - (np.log(terms) * terms**-p).sum(axis=1)


def _initial_weight_norm(N: Array, w0_sq: WeightNorm | None) -> Array:
    if w0_sq is None:
        return N * INITIAL_WEIGHT_VARIANCE
    if not callable(w0_sq):
        raise InputError(f"w0_sq must be a function of N, got {w0_sq!r}")
    returned = w0_sq(N)
    try:
        norm = np.broadcast_to(np.asarray(returned, dtype=float), N.shape)
    except (TypeError, ValueError):
        norm = np.zeros(N.shape)
    if not (norm > 0).all():
        raise InputError("w0_sq must return positive numbers, one a model size")
    return norm


def _read_arguments(
    theta: Mapping[str, float], N: ArrayLike, B: ArrayLike, K: ArrayLike, lr: float, least_steps: int = 0
) -> tuple[dict[str, float], Rows, tuple[int, ...]]:
    missing = [name for name in PARAMETERS if name not in theta]
    if missing:
        raise InputError(f"theta lacks {', '.join(missing)}; it needs {', '.join(PARAMETERS)}")
    try:
        values = {name: float(theta[name]) for name in PARAMETERS}
        step_size = float(lr)
    except (TypeError, ValueError) as error:
        raise InputError(f"theta and lr must hold numbers: {error}") from None
    if not (np.isfinite(step_size) and step_size > 0):
        raise InputError(f"lr must be positive and finite, got {lr}")
    bad = [name for name, value in values.items() if not np.isfinite(value)]
    if bad:
        raise InputError(f"theta holds a value that is not finite: {', '.join(bad)}")
    if values["p"] <= 1:
        raise InputError(f"p must be above 1 for the loss to be finite, got {values['p']}")
    negative = [name for name in ("P", "Q", "e_irr", "R") if values[name] < 0]
    if negative or values["Q"] == 0:
        raise InputError(f"these parameters must not be negative (Q positive): {', '.join(negative or ['Q'])}")
    try:
        arrays = np.broadcast_arrays(*(np.asarray(v, dtype=float) for v in (N, B, K)))
    except (TypeError, ValueError) as error:
        raise InputError(f"N, B and K must be numbers of shapes that broadcast: {error}") from None
    for name, array, least in zip("NBK", arrays, (1, 0, least_steps), strict=True):
        if not (np.isfinite(array) & (array >= least)).all() or (name == "B" and (array == 0).any()):
            raise InputError(f"{name} must be finite and {f'at least {least}' if name != 'B' else 'positive'}")
    flat = [np.array(a).ravel() for a in arrays]
    return values, Rows.of(*flat), arrays[0].shape


def _shaped(values: Array, shape: tuple[int, ...]) -> Array | float:
    return np.reshape(values, shape) if shape else float(values[0])
