"""Step 1: where to cut each verifier's scores, so that any three votes look independent given the truth.

A verifier's scores become votes, +1 above a cut and -1 below. Cuts are judged by the violation of triplet
conditional independence (TCI),

    V = sum_{i<j} (R_ij - v_i v_j)^2 / sum_{i<j} R_ij^2
        + kappa sum_{i<j<k} (T_ijk - alpha v_i v_j v_k)^2 / sum_{i<j<k} T_ijk^2,

with R, T, v and alpha as in `spectral`. Dividing by the signal keeps V from shrinking through cuts that
make the votes nearly constant. That is not enough: with nothing else, the smallest V is found at cuts that
leave little to agree on. So a set of cuts is only allowed if

- each verifier's share of +1 votes lies within [0.3, 3] times the median share before the search (and its
  share of -1 votes likewise);
- more than half of the v_j are positive;
- the mean of v_j^2 has not fallen by more than half.

The search is coordinate descent over 19 quantiles a verifier, from the medians and from five random starts.
All that it needs are counts of items above pairs and triples of cuts: they are tabulated once, after which
a step costs the same for a hundred items as for a million. (The transformation, the objective and the guards
are reconstructed: the paper, arXiv 2604.18547, gives them no formula in what could be read.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.inference.fuse.moments import all_triples
from assay.inference.fuse.spectral import rank_one_completion

__all__ = ["CutSearch", "candidate_cuts", "cast_votes", "choose_triples", "cut_at_share", "median_cuts",
           "tci_violation"]

Array = NDArray[np.float64]
Index = NDArray[np.intp]

N_QUANTILES = 19
KAPPA = 0.5
N_STARTS = 5
MAX_ROUNDS = 20
MAX_TRIPLES = 4096
"""Beyond this many triples (more than 30 verifiers) a random choice of so many stands for all."""

TABLES_AT_ONCE = 32

RATE_RANGE = (0.3, 3.0)
LEAST_SIGNAL = 0.5


@dataclass(frozen=True)
class CutChoice:
    """A set of cuts (one candidate index a verifier) with its violation V."""

    chosen: Index
    violation: float


def candidate_cuts(column: Array) -> Array:
    """Cuts of one column: its median cut, and the distinct places nearest to the other quantiles.

    A cut is the highest value that still votes no, so that ties stay together.

    >>> candidate_cuts(np.array([0.1, 0.4, 0.7, 0.7])).tolist()
    [0.1, 0.4]
    """
    values, counts = np.unique(column[~np.isnan(column)], return_counts=True)
    if len(values) < 2:
        return values
    below = np.cumsum(counts)[:-1] / counts.sum()
    levels = np.arange(1, N_QUANTILES + 1) / (N_QUANTILES + 1)
    nearest = np.abs(below[None, :] - levels[:, None]).argmin(axis=1)
    nearest[N_QUANTILES // 2] = np.searchsorted(values, median_cut(column))
    return values[np.unique(nearest)]


def median_cut(column: Array) -> float:
    """The cut that makes scores at or above the median a yes (above it, where no score lies below it).

    >>> median_cut(np.array([0.0, 0.5, 0.5, 1.0])), median_cut(np.array([0.0, 0.0, 0.0, 1.0]))
    (0.0, 0.0)
    """
    known = np.sort(column[~np.isnan(column)])
    middle = known[(len(known) - 1) // 2 : len(known) // 2 + 1].max()
    lower = np.searchsorted(known, middle) - 1
    return float(known[max(lower, 0)])


def cut_at_share(column: Array, share: float) -> float:
    """The candidate cut whose share of +1 votes is nearest to `share`."""
    candidates, known = candidate_cuts(column), np.sort(column[~np.isnan(column)])
    shares = 1 - np.searchsorted(known, candidates, side="right") / len(known)
    return float(candidates[np.abs(shares - share).argmin()])


def median_cuts(columns: Array) -> Array:
    """`median_cut` of every column."""
    return np.array([median_cut(column) for column in columns.T])


def cast_votes(columns: Array, cuts: Array) -> Array:
    """+1 above a column's cut, -1 otherwise, NaN where there is no score."""
    return np.where(np.isnan(columns), np.nan, np.where(columns > cuts, 1.0, -1.0))


def choose_triples(n_verifiers: int, rng: np.random.Generator) -> Index:
    """All triples, or a random choice of them where there are too many.

    >>> choose_triples(60, np.random.default_rng(0)).shape
    (4096, 3)
    """
    total = math.comb(n_verifiers, 3)
    if total <= MAX_TRIPLES:
        return all_triples(n_verifiers)
    return _triples_at(np.sort(rng.choice(total, MAX_TRIPLES, replace=False)), n_verifiers)


def _triples_at(places: Index, n_verifiers: int) -> Index:
    """The triples at these places of the list that `all_triples` would give."""
    later = np.arange(n_verifiers - 1, -1, -1)
    begin = np.r_[0, np.cumsum(later * (later - 1) // 2)]
    first = np.searchsorted(begin, places, side="right") - 1
    second, third = np.empty_like(first), np.empty_like(first)
    for i in np.unique(first):
        rows = first == i
        left = np.arange(n_verifiers - 2 - i, -1, -1)
        start = np.r_[0, np.cumsum(left)]
        inside = places[rows] - begin[i]
        step = np.searchsorted(start, inside, side="right") - 1
        second[rows] = i + 1 + step
        third[rows] = second[rows] + 1 + inside - start[step]
    return np.stack([first, second, third], axis=1)


def tci_violation(covariance: Array, third: Array, triples: Index, loading: Array) -> Array:
    """V of moments and their v (module docstring); 0 is exact triplet independence."""
    i, j = np.triu_indices(covariance.shape[-1], 1)
    pairs = covariance[..., i, j]
    misfit = pairs - loading[..., i] * loading[..., j]
    second = _share((misfit * misfit).sum(axis=-1), (pairs * pairs).sum(axis=-1))
    product = loading[..., triples[:, 0]] * loading[..., triples[:, 1]] * loading[..., triples[:, 2]]
    power = (third * third).sum(axis=-1)
    explained = _share((third * product).sum(axis=-1) ** 2, (product * product).sum(axis=-1))
    return second + KAPPA * _share(np.maximum(power - explained, 0.0), power)


class CutSearch:
    """Coordinate descent over the cuts of all verifiers.

    Parameters
    ----------
    columns : (n, M) array
        Ranks in (0, 1); NaN where there is no score. No column is constant. Columns are visited as they
        are given: the order is the caller's to choose.
    triples : (K, 3) int array
        Triples that V sums over.

    Notes
    -----
    Tables hold the mean vote of each verifier, and the mean product of votes of each pair and triple, at all
    their cuts; place a of a table stands for "bin a or higher votes +1", place 0 for a verifier that always
    votes +1. While one verifier's cut is chosen the other v_i stand still and v_j takes its best value; all of
    v is refitted after each round.
    """

    def __init__(self, columns: Array, triples: Index) -> None:
        self.cuts = [candidate_cuts(column) for column in columns.T]
        self.triples, self.size = triples, columns.shape[1]
        codes = _bins(columns, self.cuts)
        self.n_bins = max(len(cuts) for cuts in self.cuts) + 1
        self.pairs = _pair_table(codes, self.n_bins)
        self.cubes = _triple_table(codes, self.n_bins, triples)
        self.means = np.stack([_above_means(np.bincount(c[c >= 0], minlength=self.n_bins), 1) for c in codes])
        middle = zip(self.cuts, median_cuts(columns), strict=True)
        self.median = np.array([np.searchsorted(cuts, cut) for cuts, cut in middle], dtype=np.intp)
        self.holding = [np.flatnonzero((triples == j).any(axis=1)) for j in range(self.size)]

    def values(self, chosen: Index) -> Array:
        """The cuts that candidate indices stand for."""
        return np.array([cuts[index] for cuts, index in zip(self.cuts, chosen, strict=True)])

    def at_median(self) -> CutChoice:
        """The median cuts, which spectral estimators use where nothing is transformed."""
        covariance, third = self.moments(self.median)
        loading = rank_one_completion(covariance)
        return CutChoice(self.median.copy(), float(tci_violation(covariance, third, self.triples, loading)))

    def search(self, rng: np.random.Generator) -> CutChoice:
        """The allowed cuts with the smallest V that any start leads to."""
        allowed = self._allowed()
        reference = rank_one_completion(self.moments(self.median)[0])
        least = LEAST_SIGNAL * float(np.mean(reference**2))
        starts = [self.median.copy()]
        starts += [np.array([rng.choice(options) for options in allowed]) for _ in range(N_STARTS)]
        best = self.at_median()
        for start in starts:
            found = self._descend(start, allowed, least)
            if found is not None and found.violation < best.violation - 1e-12:
                best = found
        return best

    def moments(self, chosen: Index) -> tuple[Array, Array]:
        """Covariances and third moments at a set of cuts."""
        places = chosen + 1
        i, j = np.indices((self.size, self.size))
        mean = self.means[np.arange(self.size), places]
        covariance = self.pairs[i, j, places[i], places[j]] - np.outer(mean, mean)
        return covariance, self._third(np.arange(len(self.triples)), places[self.triples])

    def _descend(self, start: Index, allowed: list[Index], least: float) -> CutChoice | None:
        """Rounds over the verifiers until V no longer falls; None where the start breaks a guard."""
        chosen, best = start.copy(), None
        loading = None
        for _ in range(MAX_ROUNDS):
            covariance, third = self.moments(chosen)
            loading = rank_one_completion(covariance, start=loading, n_sweeps=30, tol=1e-8)
            violation = float(tci_violation(covariance, third, self.triples, loading))
            if not _fit_for_use(loading, least):
                break
            if best is not None and violation >= best.violation * (1 - 1e-6):
                break
            best = CutChoice(chosen.copy(), violation)
            for j in range(self.size):
                self._improve(j, allowed[j], chosen, covariance, third, loading, least)
        return best

    def _improve(
        self, j: int, options: Index, chosen: Index, covariance: Array, third: Array, loading: Array, least: float
    ) -> None:
        """Set the cut of verifier j, and what depends on it, to the option with the smallest V."""
        if len(options) < 2:
            return
        held = self.holding[j]
        rows = self._row(j, options, chosen)
        cubes = self._third(np.broadcast_to(held, (len(options), len(held))), self._places(j, options, chosen))
        others = np.where(np.arange(self.size) == j, 0.0, loading)
        own = rows @ others / max(float(others @ others), 1e-300)
        scores = self._scores(j, rows, cubes, own, covariance, third, loading)
        better = (others > 0).sum() + (own > 0) > self.size / 2
        kept = (others @ others + own**2) / self.size >= least
        scores = np.where(better & kept, scores, np.inf)
        now = int(np.flatnonzero(options == chosen[j])[0]) if chosen[j] in options else -1
        pick = int(scores.argmin())
        if now >= 0 and not scores[pick] < scores[now] - 1e-12:
            return
        chosen[j], loading[j] = options[pick], own[pick]
        covariance[j], covariance[:, j] = rows[pick], rows[pick]
        third[held] = cubes[pick]

    def _scores(
        self, j: int, rows: Array, cubes: Array, own: Array, covariance: Array, third: Array, loading: Array
    ) -> Array:
        """V for each option of verifier j: sums over what does not hold j, plus those over what does."""
        held = self.holding[j]
        i, k = np.triu_indices(self.size, 1)
        free = (i != j) & (k != j)
        rest = covariance[i, k][free]
        misfit = rest - (loading[i] * loading[k])[free]
        others = np.arange(self.size) != j
        row = rows[:, others]
        second = _share(
            misfit @ misfit + ((row - own[:, None] * loading[others]) ** 2).sum(axis=1),
            rest @ rest + (row * row).sum(axis=1),
        )
        product = np.prod(loading[self.triples], axis=1)
        apart = np.ones(len(third), dtype=bool)
        apart[held] = False
        partners = self.triples[held]
        pair = np.prod(np.where(partners == j, 1.0, loading[partners]), axis=1)
        power = third[apart] @ third[apart] + (cubes * cubes).sum(axis=1)
        fit = third[apart] @ product[apart] + own * (cubes @ pair)
        size = product[apart] @ product[apart] + own**2 * (pair @ pair)
        return second + KAPPA * _share(np.maximum(power - _share(fit**2, size), 0.0), power)

    def _row(self, j: int, options: Index, chosen: Index) -> Array:
        """Covariances of verifier j with all others at each of its options; 0 with itself."""
        places, everyone = chosen + 1, np.arange(self.size)
        product = self.pairs[j, everyone[None], options[:, None] + 1, places[None]]
        mean = self.means[everyone, places]
        rows = product - self.means[j, options + 1][:, None] * mean
        rows[:, j] = 0.0
        return rows

    def _places(self, j: int, options: Index, chosen: Index) -> Index:
        """Table places of the triples that hold verifier j, at each of its options."""
        held = self.triples[self.holding[j]]
        places = np.repeat(chosen[held][None] + 1, len(options), axis=0)
        places[:, held == j] = options[:, None] + 1
        return places

    def _third(self, rows: Index, places: Index) -> Array:
        """Third central moments of triples (row numbers) at table places (..., 3)."""
        i, j, k = (self.triples[rows, axis] for axis in range(3))
        a, b, c = (places[..., axis] for axis in range(3))
        p, q, r = self.means[i, a], self.means[j, b], self.means[k, c]
        return (
            self.cubes[rows, a, b, c] + 2 * p * q * r
            - p * self.pairs[j, k, b, c] - q * self.pairs[i, k, a, c] - r * self.pairs[i, j, a, b]
        )

    def _allowed(self) -> list[Index]:
        """Candidates of each verifier whose share of +1 votes is neither too small nor too large."""
        rates = [(1 + self.means[j, 1 : len(cuts) + 1]) / 2 for j, cuts in enumerate(self.cuts)]
        typical = float(np.median([rate[index] for rate, index in zip(rates, self.median, strict=True)]))
        low, high = RATE_RANGE
        bottom = max(low * typical, 1 - high * (1 - typical))
        top = min(high * typical, 1 - low * (1 - typical))
        choices = []
        for rate, index in zip(rates, self.median, strict=True):
            inside = np.flatnonzero((rate >= bottom) & (rate <= top))
            choices.append(inside if len(inside) else np.array([index]))
        return choices


def _fit_for_use(loading: Array, least: float) -> bool:
    """The guards on v: most verifiers better than chance, and no more than half of the signal lost."""
    return bool((loading > 0).sum() > len(loading) / 2 and np.mean(loading**2) >= least)


def _bins(columns: Array, cuts: list[Array]) -> NDArray[np.int64]:
    """Bin of every score between its column's cuts, (M, n); -1 where there is no score."""
    bins = [np.searchsorted(cut, column, side="left") for cut, column in zip(cuts, columns.T, strict=True)]
    return np.where(np.isnan(columns.T), -1, np.stack(bins)).astype(np.int64)


def _pair_table(codes: NDArray[np.int64], levels: int) -> Array:
    """table[i, j, a, b]: mean product of the votes of i at place a and of j at place b."""
    size, width = len(codes), levels + 1
    table = np.zeros((size, size, levels, levels))
    for i in range(size):
        stem = (codes[i] + 1) * width + 1
        counts = np.stack([np.bincount(stem + code, minlength=width**2) for code in codes[i:]])
        table[i, i:] = _above_means(counts.reshape(-1, width, width)[:, 1:, 1:], 2)
        table[i:, i] = table[i, i:].transpose(0, 2, 1)
    return table


def _triple_table(codes: NDArray[np.int64], levels: int, triples: Index) -> NDArray[np.float32]:
    """table[t, a, b, c]: mean product of the votes of the three verifiers of triple t at places a, b and c."""
    width = levels + 1
    table = np.empty((len(triples), levels, levels, levels), dtype=np.float32)
    for begin in range(0, len(triples), TABLES_AT_ONCE):
        counts = [
            np.bincount(((codes[i] + 1) * width + codes[j] + 1) * width + codes[k] + 1, minlength=width**3)
            for i, j, k in triples[begin : begin + TABLES_AT_ONCE]
        ]
        cubes = np.stack(counts).astype(np.int32).reshape(-1, width, width, width)[:, 1:, 1:, 1:]
        table[begin : begin + TABLES_AT_ONCE] = _above_means(cubes, 3)
    return table


def _above_means(counts: NDArray[np.integer], n_axes: int) -> Array:
    """Mean product of votes "bin a or higher is +1, else -1" from counts of items per bin, along the last axes."""
    table = counts
    for axis in range(-n_axes, 0):
        above = np.flip(np.flip(table, axis).cumsum(axis, dtype=table.dtype), axis)
        table = 2 * above - above.take([0], axis)
    flat = table.reshape(*table.shape[: table.ndim - n_axes], -1)
    return (flat / np.maximum(flat[..., :1], 1)).reshape(table.shape)


def _share(part: Array, whole: Array) -> Array:
    return np.divide(part, whole, out=np.zeros(np.broadcast(part, whole).shape), where=np.asarray(whole) > 0)
