"""The curve of an attention head's error against its number of tokens, and what can be read off it.

All n of a replicate are nested in one random order of the tokens, so that one pass serves every n (arXiv
2512.10656 for the question; the estimator is reconstructed). The exponential of each score is taken once and
serves all replicates, in single precision; scores, and sums over segments between two n, are in double. The error
named `err` is the mean over queries, then over replicates, of the Euclidean norm |A_n(x) - A(x)|: averaging squares,
or averaging before the norm, has another exponent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import InputError
from assay.scaling.token_complexity.theory import heads_input, predicted_exponent, spectral_lambda, whole_number
from assay.stats import Interval, bootstrap

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ConvergenceResult", "attention_convergence"]

Array = NDArray[np.float64]
REFERENCES = ("full", "gaussian")
MIN_NS = 3
_BLOCK = 1 << 22  # scores held at a time
_QUERIES = 128
_FAINT = 1e-12  # sums of weights below it, and their squares, are no longer accurate in single precision


@dataclass(frozen=True, eq=False)
class ConvergenceResult:
    """What `attention_convergence` found; reconstructed, as there.

    Attributes
    ----------
    table : DataFrame
        One row an n: `n`, `err` (mean norm of the error), `sem` (its standard error over replicates), `n_eff`
        (mean effective tokens a query), `local_slope` (exponent between this n and the one before).
    beta : float
        Fitted exponent: err falls as n^-beta.
    beta_ci : tuple of float
        95 % interval over replicates, given this pool and these queries.
    lam : float
        `spectral_lambda` of the keys and queries.
    beta_pred : float
        `predicted_exponent` of it, for Gaussian tokens.
    regime : {"softmax", "mixed", "hardmax"}
        By the median query's score deviation g over sqrt(2 ln n), n the largest: below 1/2 many tokens carry the
        weight, from 1 on a single one does.
    output_norm : float
        Mean norm of the reference outputs: what relative errors are relative to.
    n_tokens, n_queries : int
    log_constant : float
        Of the fitted curve: log err = log_constant - beta log n.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> q, k = rng.normal(size=(16, 4)), rng.normal(size=(2000, 4))
    >>> found = attention_convergence(q, k, k + 1, [20, 50, 100, 200], random_state=0)
    >>> found.tokens_for(0.01) > found.tokens_for(0.1) > 1
    True
    """

    table: pd.DataFrame
    beta: float
    beta_ci: tuple[float, float]
    lam: float
    beta_pred: float
    regime: str
    output_norm: float
    n_tokens: int
    n_queries: int
    log_constant: float

    def tokens_for(self, eps: float) -> float:
        """Tokens at which the fitted curve's error is `eps` times the mean norm of the output.

        Infinite where the error does not fall. Beyond the largest measured n it is an extrapolation.
        """
        number = isinstance(eps, (int, float, np.integer, np.floating)) and not isinstance(eps, bool)
        if not number or not 0 < eps < math.inf:
            raise InputError(f"eps must be a positive number, got {eps!r}")
        if self.beta <= 0:
            return math.inf
        scale = math.log(eps) + math.log(self.output_norm) if self.output_norm else -math.inf
        log_n = (self.log_constant - scale) / self.beta
        return math.exp(log_n) if log_n < 700 else math.inf

    def summary(self) -> dict[str, Any]:
        """The numbers without the curve, as JSON can hold them."""
        return {
            "beta": self.beta, "beta_ci": [v if math.isfinite(v) else None for v in self.beta_ci],
            "lambda": self.lam, "beta_predicted": self.beta_pred, "regime": self.regime,
            "output_norm": self.output_norm, "tokens": self.n_tokens, "queries": self.n_queries,
            "tokens_for": {
                f"{share:.0%}": tokens if math.isfinite(tokens := self.tokens_for(share)) else None
                for share in (0.01, 0.05, 0.1)
            },
        }


def attention_convergence(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, ns: Sequence[int], *, scale: float | None = None, n_rep: int = 32,
    reference: str = "full", random_state: int = 0,
) -> ConvergenceResult:
    """How fast attention over n random tokens of a pool comes near attention over the whole.

    Parameters
    ----------
    q : array-like of shape (m, d_k)
        Queries. Queries that are tokens of the pool see themselves, which makes the error at small n another.
    k : array-like of shape (N, d_k)
        Keys of the pool, without rotary positions, or they are not exchangeable.
    v : array-like of shape (N, d_v)
        Values.
    ns : sequence of int
        At least three distinct numbers of tokens below N; N itself may be among them and has no error.
    scale : float, optional
        Scores are scale * q k'; 1 / sqrt(d_k) by default.
    n_rep : int
        Replicates: random orders of the pool.
    reference : {"full", "gaussian"}
        What A is: attention over the whole pool, or over the Gaussian with the pool's means and covariances.
    random_state : int

    Returns
    -------
    ConvergenceResult

    Raises
    ------
    InputError
        NaN or infinite values, d_k or N that differ, fewer than three distinct n below N, an n above N, all keys
        or all values equal, another `reference`.

    Notes
    -----
    Subsets are drawn without replacement, which makes the error vanish at n = N for that reason alone. With the
    full reference each error is divided by sqrt(1 - n/N) (finite population correction, exact to first order) before
    the exponent is fitted; `table.err` is left as measured. Reconstructed.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> q, k = rng.normal(size=(32, 2)), rng.normal(size=(4000, 2))
    >>> found = attention_convergence(q, k, k, [25, 50, 100, 200, 400], random_state=0)
    >>> abs(found.beta - 0.5) < 0.1, found.regime
    (True, 'softmax')
    """
    q, k, v, scale = heads_input(q, k, v, scale)
    counts = token_counts(ns, len(k))
    n_rep = whole_number(n_rep, "n_rep", 2)
    if reference not in REFERENCES:
        raise InputError(f"reference must be one of {', '.join(REFERENCES)}, got {reference!r}")
    for name, array in (("keys", k), ("values", v)):
        if (array == array[0]).all():
            raise InputError(f"attention is constant: all {len(array)} {name} are equal")
    orders = draw_orders(len(k), n_rep, counts[-1], random_state)
    errors, effective, norm, spread = _errors(q, k, v, scale, counts, orders, reference)
    fitted = counts < len(k)
    shrink = np.sqrt(1 - counts[fitted] / len(k)) if reference == "full" else 1.0
    interval, log_constant, local = fit_exponent(counts[fitted], errors[:, fitted] / shrink)
    lam = pool_lambda(q, k, scale)
    g = float(np.median(spread)) / math.sqrt(2 * math.log(max(2, counts[-1])))
    return ConvergenceResult(
        _table(counts, errors, effective, local), interval.estimate, (interval.low, interval.high), lam,
        float(predicted_exponent(lam)), "softmax" if g < 0.5 else "mixed" if g < 1 else "hardmax", norm, len(k), len(q),
        log_constant,
    )


def nested_attention(scores: Array, values: Array, ns: Sequence[int]) -> tuple[Array, Array]:
    """Attention over the first n tokens, for all n in one pass of cumulative log-sum-exp.

    `scores` (N, m) are tokens by queries, `values` (N, d_v), `ns` rising; gives outputs (len(ns), m, d_v) and
    effective tokens (len(ns), m).
    """
    m = scores.shape[1]
    top, total, squares = np.full(m, -np.inf), np.zeros(m), np.zeros(m)
    mixed = np.zeros((m, values.shape[1]))
    outputs, effective = np.empty((len(ns), *mixed.shape)), np.empty((len(ns), m))
    for i, (low, high) in enumerate(_segments(ns)):
        block = scores[low:high]
        raised = np.maximum(top, block.max(axis=0))
        weights, kept = np.exp(block - raised), np.exp(top - raised)
        total = total * kept + weights.sum(axis=0)
        squares = squares * kept**2 + np.einsum("ij,ij->j", weights, weights)
        mixed = mixed * kept[:, None] + weights.T @ values[low:high]
        top = raised
        outputs[i], effective[i] = mixed / total[:, None], total**2 / squares
    return outputs, effective


def nested_from_weights(weights: NDArray[Any], values: NDArray[Any], ns: Sequence[int]) -> tuple[Array, Array, Array]:
    """As `nested_attention`, from exponentials already taken, and the least sum of weights of each query (m,).

    The last column of `values` (N, d_v + 1) is of ones: the weights' sum then comes with the same product. Products
    are taken in the inputs' own precision, a segment between two n at a time, and added up in double precision.
    """
    mixed = np.empty((len(ns), weights.shape[1], values.shape[1]))
    squares = np.empty(mixed.shape[:2])
    for i, (low, high) in enumerate(_segments(ns)):
        block = weights[low:high]
        mixed[i] = block.T @ values[low:high]
        squares[i] = np.einsum("ij,ij->j", block, block)
    np.cumsum(mixed, axis=0, out=mixed)
    total = mixed[..., -1]
    with np.errstate(all="ignore"):
        return mixed[..., :-1] / total[..., None], total**2 / np.cumsum(squares, axis=0), total[0]


def fit_exponent(ns: NDArray[np.integer], errors: Array) -> tuple[Interval, float, Array]:
    """Exponent of errors (replicates, len(ns)) with its interval over replicates, log of the constant, local slopes.

    Weighted least squares of log mean error on log n; the weights are those of the errors' spread over
    replicates, and stay as they are in the bootstrap.
    """
    x = np.log(np.asarray(ns, dtype=np.float64))
    size = errors.max()  # squares of tiny errors are no numbers
    errors = errors / size
    mean = errors.mean(axis=0)
    relative = errors.std(axis=0, ddof=1) / math.sqrt(len(errors)) / mean
    weights = 1 / np.maximum(relative, max(1e-6, 1e-3 * float(relative.max()))) ** 2
    weights = weights / weights.sum()
    centre = weights @ x
    slope = weights * (x - centre) / (weights @ (x - centre) ** 2)

    def beta(rows: NDArray[np.intp]) -> Array:
        return -np.log(errors[rows].mean(axis=-2)) @ slope

    interval = bootstrap(beta, len(errors))  # type: ignore[arg-type]
    log_mean = np.log(mean)
    constant = math.log(size) + float(weights @ log_mean) + interval.estimate * float(centre)
    return interval, constant, -np.diff(log_mean) / np.diff(x)


def extrapolated(ns: ArrayLike, errors: ArrayLike, beta: float | None = None) -> float:
    """Tokens that a power law of the smaller n expects for the error measured at the largest, over that n.

    The law is fitted to the n up to the geometric middle, its exponent too unless `beta` is given; 1/2 is the
    extrapolation by 1/sqrt(n). 1 is right, below 1 too hopeful.
    """
    x, y = np.log(np.asarray(ns, dtype=np.float64)), np.log(np.asarray(errors, dtype=np.float64))
    small = x <= (x[0] + x[-1]) / 2 + 1e-9
    if beta is None:
        beta = -float(np.polyfit(x[small], y[small], 1)[0])
    if beta <= 0:
        return math.inf
    return float(np.exp(min(700.0, (y[small].mean() - y[-1]) / beta + x[small].mean() - x[-1])))


def pool_lambda(q: Array, k: Array, scale: float) -> float:
    """`spectral_lambda` from the sample covariances of queries and keys."""
    query_cov = np.atleast_2d(np.cov(q.T)) if len(q) > 1 else np.zeros((q.shape[1],) * 2)
    return spectral_lambda(scale * np.eye(k.shape[1]), np.atleast_2d(np.cov(k.T)), query_cov)


def gaussian_reference(q: Array, k: Array, v: Array, scale: float) -> Array:
    """Attention over the joint Gaussian of keys and values: mean(v) + Cov(v, k) scale q."""
    cross = (v - v.mean(axis=0)).T @ (k - k.mean(axis=0)) / len(k)
    return v.mean(axis=0) + scale * (q @ cross.T)


def token_counts(ns: Sequence[int], tokens: int) -> NDArray[np.int64]:
    """Distinct numbers of tokens in rising order, checked."""
    try:
        given = np.asarray(ns, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("ns must be whole numbers") from None
    if given.ndim != 1 or not np.isfinite(given).all() or (given != np.floor(given)).any():
        raise InputError("ns must be a sequence of whole numbers")
    given = np.unique(given)
    if len(given) and (given[0] < 1 or given[-1] > tokens):
        wrong = given[0] if given[0] < 1 else given[-1]
        raise InputError(f"ns must lie between 1 and the {tokens} tokens, got {wrong:.15g}")
    counts = given.astype(np.int64)
    if (counts < tokens).sum() < MIN_NS:
        raise InputError(
            f"ns needs at least {MIN_NS} distinct numbers below the {tokens} tokens, got {int((counts < tokens).sum())}"
        )
    return counts


def draw_orders(tokens: int, n_rep: int, length: int, random_state: int) -> list[NDArray[np.int64]]:
    """The first `length` tokens of `n_rep` random orders of all."""
    rng = np.random.default_rng(whole_number(random_state, "random_state", 0))
    return [rng.permutation(tokens)[:length] for _ in range(n_rep)]


def _errors(
    q: Array, k: Array, v: Array, scale: float, counts: NDArray[np.int64], orders: list[NDArray[np.int64]],
    reference: str,
) -> tuple[Array, Array, float, Array]:
    """Mean error norms (replicates, ns), mean effective tokens (ns,), mean output norm, score deviations (m,)."""
    errors = np.zeros((len(orders), len(counts)))
    effective, norm, spreads = np.zeros(len(counts)), 0.0, []
    # Errors do not move with the values' origin, and go with their size: single precision is then enough below.
    centre = v.mean(axis=0)
    size = float(np.abs(v - centre).max())
    v, centre = (v - centre) / size, centre / size
    with_ones = np.column_stack([v, np.ones(len(v))]).astype(np.float32)
    for start in range(0, len(q), step := max(1, min(_QUERIES, _BLOCK // len(k)))):
        part = q[start:start + step]
        scores = scale * (k @ part.T)
        spreads.append(scores.std(axis=0))
        scores -= scores.max(axis=0)
        weights = np.exp(scores)
        target = (weights.T @ v) / weights.sum(axis=0)[:, None]
        if reference == "gaussian":
            target = gaussian_reference(part, k, v, scale)
        norm += float(np.linalg.norm(centre + target, axis=1).sum())
        for row, (outputs, counted) in enumerate(_sampled(scores, weights, v, with_ones, counts, orders)):
            outputs -= target
            errors[row] += np.sqrt(np.einsum("ijk,ijk->ij", outputs, outputs)).sum(axis=1)
            effective += counted.sum(axis=1)
    errors[:, counts == len(k)] *= reference == "gaussian"  # the whole pool, but for the order of the sum
    errors *= size / len(q)
    return errors, effective / len(q) / len(orders), size * norm / len(q), np.concatenate(spreads)


def _sampled(
    scores: Array, weights: Array, v: Array, with_ones: NDArray[np.float32], counts: NDArray[np.int64],
    orders: list[NDArray[np.int64]],
) -> Iterator[tuple[Array, Array]]:
    """Outputs and effective tokens of each order of the pool, at all n.

    From single precision weights where a query's sum over the fewest tokens can be told from zero, else from its
    scores.
    """
    single, longest, ns = weights.astype(np.float32), len(orders[0]), counts.tolist()
    # Into the same memory each time: fresh pages would cost as much as the products.
    drawn_values = np.empty((longest, with_ones.shape[1]), np.float32)
    drawn_weights = np.empty((longest, weights.shape[1]), np.float32)
    for order in orders:
        np.take(with_ones, order, axis=0, out=drawn_values, mode="clip")
        np.take(single, order, axis=0, out=drawn_weights, mode="clip")
        outputs, effective, least = nested_from_weights(drawn_weights, drawn_values, ns)
        if (faint := np.flatnonzero(least < _FAINT)).size:
            outputs[:, faint], effective[:, faint] = nested_attention(scores[np.ix_(order, faint)], v[order], ns)
        yield outputs, effective


def _segments(ns: Sequence[int]) -> Iterator[tuple[int, int]]:
    yield from zip([0, *ns[:-1]], ns, strict=True)


def _table(counts: NDArray[np.int64], errors: Array, effective: Array, local: Array) -> pd.DataFrame:
    import pandas as pd

    slopes = np.full(len(counts), np.nan)
    slopes[1:1 + len(local)] = local
    size = errors.max()
    sem = size * (errors / size).std(axis=0, ddof=1) / math.sqrt(len(errors))
    return pd.DataFrame({
        "n": counts, "err": errors.mean(axis=0), "sem": sem, "n_eff": effective, "local_slope": slopes,
    })
