"""First, second and third moments of votes, with missing votes left out pair by pair and triple by triple.

A vote is +1, -1 or NaN (the verifier gave no score). What identifies the verifiers without labels is

    mu_j = E f_j,    R_ij = Cov(f_i, f_j),    T_ijk = E (f_i - mu_i)(f_j - mu_j)(f_k - mu_k).

Each mean, mean product of two and mean product of three votes is taken over the items that all the verifiers
concerned have voted on; R and T are put together from these.

Votes are packed into the bits of 64-bit words, so that a product of three votes on 64 items is two exclusive
ors and a bit count. Items of one query are dependent, so sums are kept per batch of whole queries: the moments
of the sample and those of every bootstrap resample are weighted sums of the same few whole numbers, and a
resample costs no second pass over the items.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["BatchSums", "Moments", "all_triples", "batch_sums", "deal_batches", "resample_weights", "vote_moments"]

Array = NDArray[np.float64]

MAX_BATCHES = 512
"""Batches for the bootstrap: one a query up to this many, beyond it whole queries dealt at random."""

WORDS_AT_ONCE = 1 << 20
"""Packed words of products held in memory at once."""


@dataclass(frozen=True)
class Moments:
    """Moments of votes; a leading axis, where there is one, runs over bootstrap resamples.

    Attributes
    ----------
    mean : (..., M) array
    covariance : (..., M, M) array
        The diagonal holds the variances.
    third : (..., K) array
        Third central moment of each row of `triples`.
    triples : (K, 3) int array
        Verifiers i < j < k.
    common : (M, M) array
        Items that both verifiers of a pair have voted on.
    """

    mean: Array
    covariance: Array
    third: Array
    triples: NDArray[np.intp]
    common: Array


@dataclass(frozen=True)
class BatchSums:
    """Sums of votes and of their products over the items of each batch, and counts of the items summed."""

    triples: NDArray[np.intp]
    first: Array
    second: Array
    third: Array
    n_first: Array
    n_second: Array
    n_third: Array

    def moments(self, weights: Array | None = None) -> Moments:
        """Moments with each batch counted `weights` times; weights of shape (resamples, batches) give as many."""
        w = np.ones(len(self.first)) if weights is None else np.asarray(weights, dtype=float)
        mean = _ratio(w @ self.first, w @ self.n_first)
        second = _ratio(_weighted(w, self.second), _weighted(w, self.n_second))
        third = _ratio(w @ self.third, w @ self.n_third)
        i, j, k = self.triples.T
        third = third + 2 * mean[..., i] * mean[..., j] * mean[..., k]
        for one, two, three in ((i, j, k), (j, i, k), (k, i, j)):
            third -= mean[..., one] * second[..., two, three]
        covariance = second - mean[..., :, None] * mean[..., None, :]
        return Moments(mean, covariance, third, self.triples, self.n_second.sum(axis=0))


def vote_moments(votes: Array, triples: NDArray[np.intp] | None = None) -> Moments:
    """Moments of an (items, verifiers) matrix of votes +1, -1 and NaN.

    >>> votes = np.array([[1.0, 1, 1], [1, 1, -1], [-1, -1, -1], [-1, -1, np.nan]])
    >>> vote_moments(votes).common[0].tolist()
    [4.0, 4.0, 3.0]
    >>> vote_moments(votes).covariance[0, :2].tolist()
    [1.0, 1.0]
    """
    one_batch = np.zeros(len(votes), dtype=np.intp)
    return batch_sums(votes, one_batch, all_triples(votes.shape[1]) if triples is None else triples).moments()


def batch_sums(votes: Array, batches: NDArray[np.intp], triples: NDArray[np.intp]) -> BatchSums:
    """Sums of votes and of their products, per batch; `batches` numbers them 0, 1, 2 ... without a gap."""
    seen = ~np.isnan(votes)
    yes, starts = _packed(votes > 0, batches)
    known, _ = _packed(seen, batches)
    size = np.bincount(batches).astype(float) if seen.all() else None
    pairs = np.indices((votes.shape[1],) * 2).reshape(2, -1).T
    first, n_first = _sums(yes, known, np.arange(votes.shape[1])[:, None], starts, size)
    second, n_second = _sums(yes, known, pairs, starts, size)
    third, n_third = _sums(yes, known, triples, starts, size)
    square = (len(starts), votes.shape[1], votes.shape[1])
    return BatchSums(triples, first, second.reshape(square), third, n_first, n_second.reshape(square), n_third)


def deal_batches(
    groups: NDArray[np.intp] | None, order: NDArray[np.intp], rng: np.random.Generator
) -> NDArray[np.intp]:
    """Batch of each item: whole queries stay together, and queries beyond `MAX_BATCHES` are dealt at random.

    `order` lists the items in an order that does not depend on how the rows of the matrix were arranged,
    so that neither does the deal.
    """
    n_items = len(order)
    if groups is None:
        units = np.empty(n_items, dtype=np.intp)
        units[order] = np.arange(n_items)
    else:
        units = groups
    n_units = int(units.max()) + 1
    if n_units <= MAX_BATCHES:
        return units
    dealt = rng.permutation(n_units) % MAX_BATCHES
    return dealt[units]


def resample_weights(n_batches: int, n_resamples: int, rng: np.random.Generator) -> Array:
    """How often each batch is drawn in each bootstrap resample, (n_resamples, n_batches)."""
    return rng.multinomial(n_batches, np.full(n_batches, 1 / n_batches), size=n_resamples).astype(float)


def all_triples(n_verifiers: int) -> NDArray[np.intp]:
    """Every i < j < k, as rows."""
    from itertools import combinations

    return np.array(list(combinations(range(n_verifiers), 3)), dtype=np.intp).reshape(-1, 3)


def _packed(bits: NDArray[np.bool_], batches: NDArray[np.intp]) -> tuple[NDArray[np.uint64], NDArray[np.intp]]:
    """Columns of bits as rows of words, every batch beginning a new word; and the words where batches begin."""
    sizes = np.bincount(batches)
    words = -(-sizes // 64)
    starts = np.cumsum(words) - words
    order = np.argsort(batches, kind="stable")
    within = np.arange(len(batches)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    padded = np.zeros((bits.shape[1], 64 * int(words.sum())), dtype=bool)
    padded[:, np.repeat(64 * starts, sizes) + within] = bits[order].T
    return np.packbits(padded, axis=1).view(np.uint64), starts


def _sums(
    yes: NDArray[np.uint64], known: NDArray[np.uint64], sets: NDArray[np.intp], starts: NDArray[np.intp],
    size: Array | None,
) -> tuple[Array, Array]:
    """Sums (batches, sets) of the product of the votes of each set of verifiers, and counts of items.

    `size` holds the items of each batch where no vote is missing. With an odd number of votes the product is
    +1 where the exclusive or of the yes bits is 1, with an even number where it is 0.
    """
    sums, counts = np.empty((len(starts), len(sets))), np.empty((len(starts), len(sets)))
    step = max(1, WORDS_AT_ONCE // yes.shape[1])
    sign = 1 if sets.shape[1] % 2 else -1
    for begin in range(0, len(sets), step):
        part = sets[begin : begin + step]
        parity = np.bitwise_xor.reduce([yes[column] for column in part.T], axis=0)
        if size is None:
            common = np.bitwise_and.reduce([known[column] for column in part.T], axis=0)
            parity &= common
            counts[:, begin : begin + step] = _bits(common, starts)
        else:
            counts[:, begin : begin + step] = size[:, None]
        sums[:, begin : begin + step] = sign * (2 * _bits(parity, starts) - counts[:, begin : begin + step])
    return sums, counts


def _bits(words: NDArray[np.uint64], starts: NDArray[np.intp]) -> Array:
    """Bits set in each batch of words, (batches, rows)."""
    return np.add.reduceat(np.bitwise_count(words), starts, axis=1, dtype=np.int64).T.astype(float)


def _weighted(weights: Array, sums: Array) -> Array:
    return np.tensordot(weights, sums, axes=(-1, 0))


def _ratio(total: Array, count: Array) -> Array:
    """Mean over the items counted; zero where there were none."""
    return np.divide(total, count, out=np.zeros_like(total), where=count > 0)
