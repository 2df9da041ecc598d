"""Which verifiers share errors: blocks, found in what a rank-one fit leaves unexplained.

If verifiers i and j are independent given the truth, R_ij = v_i v_j. A positive rest, in units of what the
truth leaves free,

    rho_ij = (R_ij - v_i v_j) / sqrt((R_ii - v_i^2)(R_jj - v_j^2)),

is the correlation of their errors: they copy each other, or share a style that they take for quality. A pair
is suspect when the rest lies more than three bootstrap standard errors above zero and rho is above 0.1.
Connected suspects form a block.

The fit that the rest is measured against must not be drawn towards the suspects: least squares over all pairs
would take the strongest block for the truth. So the fit is chosen by consensus. Every triple of verifiers
gives a v in closed form (v_i^2 = R_ij R_ik / R_jk, carried on to the other verifiers), and the one that the
pairs contradict least is taken, and refined on the pairs that agree. If that is the truth depends on there
being more pairs across blocks than inside them: a factor that most verifiers share is taken for the truth
itself, and nothing in the scores can tell.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.inference.fuse.moments import Moments
from assay.inference.fuse.spectral import rank_one_completion

__all__ = ["Dependence", "components", "copies", "dependence"]

Array = NDArray[np.float64]

Z_LIMIT = 3.0
RHO_LIMIT = 0.1
MAX_ROUNDS = 10
LEAST_FREE = 0.05
SEED_ENTRIES = 4_000_000
"""Numbers held at once when all seeds are compared: of more triples than that allows every so many are taken."""


@dataclass(frozen=True)
class Dependence:
    """What pairs of verifiers share beyond the truth.

    Attributes
    ----------
    correlation : (M, M) array
        rho, the correlation of errors; the diagonal is 1.
    z : (M, M) array
        The rest in bootstrap standard errors.
    suspects : (M, M) bool array
        Pairs that share errors.
    blocks : list of list of int
        Connected suspects, and every other verifier alone, by first member.
    """

    correlation: Array
    z: Array
    suspects: NDArray[np.bool_]
    blocks: list[list[int]]


def dependence(moments: Moments, resampled: Moments) -> Dependence:
    """Blocks of verifiers from the moments of the sample and of its bootstrap resamples."""
    apart = ~np.eye(moments.covariance.shape[-1], dtype=bool)
    use = _consensus(moments, resampled.covariance.std(axis=0))
    for _ in range(MAX_ROUNDS):
        correlation, z = _rest(moments, resampled, use)
        suspects = (z > Z_LIMIT) & (correlation > RHO_LIMIT) & apart
        agreed = ~suspects & apart
        if (agreed == use).all() or (agreed.sum(axis=1) < 2).any():
            break
        use = agreed
    return Dependence(correlation, z, suspects, components(suspects))


def copies(columns: Array) -> tuple[list[list[int]], Array]:
    """Blocks of verifiers whose ranks are the same, or mirror images of each other, everywhere.

    Returns
    -------
    blocks : list of list of int
    sign : (M,) array
        -1 for a mirror image of the block's first member, else +1.
    """
    seen = np.isfinite(columns)
    centred = np.where(seen, columns - np.nanmean(columns, axis=0), 0.0)
    length = np.sqrt((centred**2).sum(axis=0))
    cosine = centred.T @ centred / np.outer(length, length)
    gaps = seen.astype(float)
    alike_gaps = gaps.T @ (1 - gaps) + (1 - gaps).T @ gaps == 0
    same = (np.abs(cosine) > 1 - 1e-9) & alike_gaps & ~np.eye(columns.shape[1], dtype=bool)
    blocks = components(same)
    sign = np.ones(columns.shape[1])
    for block in blocks:
        sign[block[1:]] = np.sign(cosine[block[0], block[1:]])
    return blocks, sign


def _consensus(moments: Moments, spread: Array) -> NDArray[np.bool_]:
    """The pairs that agree with the v of a triple, for the triple whose v the pairs contradict least.

    Contradiction is the sum over pairs of squared standard errors, none counting more than Z_LIMIT squared.
    """
    covariance = moments.covariance
    apart = ~np.eye(len(covariance), dtype=bool)
    v = _seeds(covariance, moments.triples)
    errors = (covariance - v[:, :, None] * v[:, None, :]) / np.where(spread > 0, spread, 1.0)
    cost = np.minimum(errors**2, Z_LIMIT**2)
    best = int(np.where(apart, cost, 0.0).sum(axis=(1, 2)).argmin())
    use = (np.abs(errors[best]) < Z_LIMIT) & apart
    return use if (use.sum(axis=1) >= 2).all() else apart


def _seeds(covariance: Array, triples: NDArray[np.intp]) -> Array:
    """v from the triples with a real solution, and from least squares over all pairs, (seeds, M)."""
    size = len(covariance)
    chosen = triples[:: 1 + len(triples) * size**2 // SEED_ENTRIES]
    i, j, k = chosen.T
    with np.errstate(divide="ignore", invalid="ignore"):
        square = covariance[i, j] * covariance[i, k] / covariance[j, k]
    real = np.isfinite(square) & (square > 0)
    chosen, first = chosen[real], np.sqrt(square[real])
    second, third = covariance[chosen[:, 0], chosen[:, 1]] / first, covariance[chosen[:, 0], chosen[:, 2]] / first
    inside = np.stack([first, second, third], axis=1)
    carried = np.median(covariance[chosen] / inside[:, :, None], axis=1)
    np.put_along_axis(carried, chosen, inside, axis=1)
    return np.vstack([rank_one_completion(covariance), carried])


def _rest(moments: Moments, resampled: Moments, use: NDArray[np.bool_]) -> tuple[Array, Array]:
    """rho and z of every pair, against a fit to the pairs in `use`."""
    v = rank_one_completion(moments.covariance, use=use)
    v_again = rank_one_completion(resampled.covariance, use=use, start=v, n_sweeps=50, tol=1e-6)
    rest = moments.covariance - np.outer(v, v)
    spread = (resampled.covariance - v_again[:, :, None] * v_again[:, None, :]).std(axis=0)
    sign = np.where(v < 0, -1.0, 1.0)
    rest = rest * np.outer(sign, sign)
    free = _free(np.diag(moments.covariance), v)
    correlation = rest / np.outer(free, free)
    np.fill_diagonal(correlation, 1.0)
    return correlation, np.divide(rest, spread, out=np.zeros_like(rest), where=spread > 0)


def _free(variance: Array, v: Array) -> Array:
    """Standard deviation that the truth leaves to each verifier, no less than a part of the whole."""
    return np.sqrt(np.maximum(variance - v * v, LEAST_FREE * variance))


def components(linked: NDArray[np.bool_]) -> list[list[int]]:
    """Connected verifiers, each block by its members, blocks by first member."""
    from scipy.sparse.csgraph import connected_components

    _, label = connected_components(linked, directed=False)
    blocks: dict[int, list[int]] = {}
    for verifier, component in enumerate(label):
        blocks.setdefault(int(component), []).append(verifier)
    return sorted(blocks.values())
