"""From ranks to accuracies: the columns that are fitted (`Panel`), and one fit of them (`Stage`)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from assay.inference.fuse.blocks import Dependence, components, dependence
from assay.inference.fuse.cuts import CutSearch, cast_votes, choose_triples, cut_at_share, median_cuts, tci_violation
from assay.inference.fuse.moments import batch_sums, deal_batches, resample_weights, vote_moments
from assay.inference.fuse.ranks import RankMap
from assay.inference.fuse.spectral import Verifiers, invert_moments, rank_one_completion, skewness_ratio

__all__ = ["Panel", "Stage"]

Array = NDArray[np.float64]
Index = NDArray[np.intp]

NO_TRIPLES = np.empty((0, 3), dtype=np.intp)

RESAMPLE_SWEEPS = 50

Z_AGREE = 3.0
"""Two verifiers agree beyond chance when their covariance is this many standard errors from zero."""

FEW_UNITS = 10

LEAST_GAP = 0.05
"""Base rates at two sets of cuts that differ by less are not called different."""


class Panel:
    """Blocks of verifiers as columns: the mean of the members' ranks, ranked again.

    Blocks stand in order of their |v| at the median. That depends neither on how the verifiers nor on how
    the items were arranged, so the search and the bootstrap, which follow this order, don't either.

    Parameters
    ----------
    ranks : (n, M) array
        Ranks of the verifiers' scores.
    blocks : list of list of int
        Verifiers of each block.
    sign : (M,) array
        -1 where a verifier's ranks are turned round before they enter the mean.
    """

    def __init__(self, ranks: Array, blocks: list[list[int]], sign: Array) -> None:
        means = [_block_mean(ranks, block, sign) for block in blocks]
        maps = [RankMap(mean) for mean in means]
        columns = np.column_stack([rank(mean) for rank, mean in zip(maps, means, strict=True)])
        votes = cast_votes(columns, median_cuts(columns))
        loading = rank_one_completion(vote_moments(votes, NO_TRIPLES).covariance)
        order = np.argsort(-np.abs(loading).round(9), kind="stable")
        self.blocks = [blocks[k] for k in order]
        self.maps = [maps[k] for k in order]
        self.fitted = columns[:, order]
        self.sign = sign

    def columns(self, ranks: Array) -> Array:
        """Ranks of the blocks for the ranks of any items."""
        means = [_block_mean(ranks, block, self.sign) for block in self.blocks]
        return np.column_stack([rank(mean) for rank, mean in zip(self.maps, means, strict=True)])

    @property
    def block_of(self) -> Index:
        """Block of each verifier."""
        place = np.empty(sum(len(block) for block in self.blocks), dtype=np.intp)
        for k, block in enumerate(self.blocks):
            place[block] = k
        return place


class Stage:
    """Cuts, votes, moments, accuracies and shared errors of one panel.

    Parameters
    ----------
    panel : Panel
    groups : (n,) int array or None
        Query of each item.
    search : bool
        Whether to search for the cuts, or to leave them at the medians.
    n_bootstrap : int
    seed : int
    """

    def __init__(self, panel: Panel, groups: Index | None, search: bool, n_bootstrap: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        columns = panel.fitted
        triples = choose_triples(columns.shape[1], rng)
        self.panel, self.seed = panel, seed
        self.batches = deal_batches(groups, np.lexsort(columns.T[::-1]), rng)
        self.cuts = median_cuts(columns)
        self._fit_votes(triples, n_bootstrap)
        self.median_violation, self.shared_at_median = self.violation, self.shared
        self.median_rates = self._base_rates()
        if search:
            cut_search = CutSearch(columns, triples)
            self.cuts = cut_search.values(cut_search.search(rng).chosen)
            self._fit_votes(triples, n_bootstrap)
        self.verifiers = invert_moments(self.moments.mean, self.loading, self.alpha)

    def _fit_votes(self, triples: Index, n_bootstrap: int) -> None:
        """Moments of the votes at the present cuts and of their resamples, and what these say of shared errors."""
        self.votes = cast_votes(self.panel.fitted, self.cuts)
        sums = batch_sums(self.votes, self.batches, triples)
        self.moments = sums.moments()
        self.loading = rank_one_completion(self.moments.covariance)
        self.violation = float(tci_violation(self.moments.covariance, self.moments.third, triples, self.loading))
        self.weights = resample_weights(len(sums.first), n_bootstrap, np.random.default_rng(self.seed))
        self.resampled = sums.moments(self.weights)
        self.loadings = rank_one_completion(
            self.resampled.covariance, start=self.loading, n_sweeps=RESAMPLE_SWEEPS, tol=1e-6
        )
        self.alphas = skewness_ratio(self.resampled.third, triples, self.loadings)
        self.shared: Dependence | None = dependence(self.moments, self.resampled) if n_bootstrap else None

    def _base_rates(self) -> Array:
        """The base rate at the present cuts, unshrunk, and in the resamples."""
        plain = skewness_ratio(self.moments.third, self.moments.triples, self.loading)
        alphas = np.append(plain, self.alphas)
        return (1 - alphas / np.sqrt(4 + alphas**2)) / 2

    @property
    def alpha(self) -> float:
        """The skewness ratio, shrunk towards 0 (a base rate of one half) by its noise in the bootstrap."""
        alpha = float(skewness_ratio(self.moments.third, self.moments.triples, self.loading))
        if not len(self.alphas) or alpha == 0:
            return alpha
        return alpha * max(0.0, 1 - float(self.alphas.var()) / alpha**2)

    @property
    def independent(self) -> list[list[int]]:
        """Blocks of this panel's columns that share no errors with each other, at the median or the chosen cuts."""
        if self.shared is None or self.shared_at_median is None:
            return [[k] for k in range(len(self.panel.blocks))]
        return components(self.shared.suspects | self.shared_at_median.suspects)

    def merged_panel(self, ranks: Array) -> Panel:
        """The panel in which columns that share errors are one, turned the same way round."""
        sign, members = self.panel.sign.copy(), []
        for block in self.independent:
            lead = min(block, key=lambda k: self.panel.blocks[k][0])
            for k in block:
                sign[self.panel.blocks[k]] *= -1.0 if self.loading[k] * self.loading[lead] < 0 else 1.0
            members.append(sorted(j for k in block for j in self.panel.blocks[k]))
        return Panel(ranks, sorted(members), sign)

    def members(self, ranks: Array) -> tuple[Verifiers, list[Verifiers]]:
        """Accuracies of the verifiers one by one, and the same for each resample.

        A verifier is cut where its share of +1 votes is that of its block, and its v_j is the least-squares
        fit to its covariances with the other blocks; for a block of one both are what was fitted already.
        """
        votes, blocks = cast_votes(ranks, self.member_cuts(ranks)), len(self.panel.blocks)
        sums = batch_sums(np.column_stack([self.votes, votes]), self.batches, NO_TRIPLES)
        moments, again = sums.moments(), sums.moments(self.weights)
        others = np.arange(blocks) != self.panel.block_of[:, None]

        def of(mean: Array, covariance: Array, loading: Array, alpha: float) -> Verifiers:
            power = np.maximum(others @ loading**2, 1e-300)
            own = (others * covariance[blocks:, :blocks]) @ loading / power
            return invert_moments(mean[blocks:], own, alpha)

        draws = zip(again.mean, again.covariance, self.loadings, self.alphas, strict=True)
        return (
            of(moments.mean, moments.covariance, self.loading, self.alpha),
            [of(mean, covariance, loading, float(alpha)) for mean, covariance, loading, alpha in draws],
        )

    def error_correlation(self) -> Array:
        """Correlation of errors of each pair of verifiers at the median cuts; NaN without bootstrap."""
        place, sign = self.panel.block_of, self.panel.sign
        if self.shared_at_median is None:
            return np.full((len(place), len(place)), np.nan)
        mirrored = np.where(place[:, None] == place, np.outer(sign, sign), 1.0)
        return self.shared_at_median.correlation[np.ix_(place, place)] * mirrored

    def doubts(self, names: NDArray) -> list[str]:
        """What in the data contradicts the model, in words; `names` are the verifiers' names or numbers.

        Shared errors are looked for at the medians too: the search may have chosen cuts that hide them.
        """
        found = []
        if self.verifiers.on_boundary.any():
            outside = self._columns(np.flatnonzero(self.verifiers.on_boundary), names)
            found.append(f"the sensitivity or specificity of columns {outside} came out beyond 0 or 1")
        if self.verifiers.base_rate_on_boundary:
            found.append("the base rate came out at 0 or 1")
        if (self.loading > 0).sum() <= len(self.loading) / 2:
            found.append("half of the verifiers or more look worse than chance")
        n_units = self.weights.shape[1]
        if len(self.weights) and n_units < FEW_UNITS:
            found.append(f"{n_units} independent queries are too few for the bootstrap, and so for its intervals")
        if self.shared is not None and self._agreeing() < 3:
            found.append("fewer than three verifiers agree with two others beyond chance")
        gaps = self._base_rates() - self.median_rates
        if len(gaps) > 1 and abs(gaps[0]) > max(LEAST_GAP, Z_AGREE * float(gaps[1:].std())):
            found.append(
                f"the base rate is {self.median_rates[0]:.2f} at the median cuts and {self._base_rates()[0]:.2f} at "
                "the chosen ones: it would be the same if the model held at both"
            )
        for place, shared in (("", self.shared), (" at the median cuts", self.shared_at_median)):
            joined = [] if shared is None else [block for block in shared.blocks if len(block) > 1]
            found += [f"columns {self._columns(block, names)} share errors{place}" for block in joined]
        return found

    def _columns(self, blocks: Iterable[int], names: NDArray) -> str:
        return ", ".join(str(names[j]) for j in sorted(j for k in blocks for j in self.panel.blocks[k]))

    def member_cuts(self, ranks: Array) -> Array:
        """Cut of each verifier's own ranks, where its share of +1 votes is that of its block."""
        cuts = np.empty(ranks.shape[1])
        for k, block in enumerate(self.panel.blocks):
            share = (1 + self.moments.mean[k]) / 2
            for j in block:
                cuts[j] = cut_at_share(ranks[:, j], share if self.panel.sign[j] > 0 else 1 - share)
        return cuts

    def _agreeing(self) -> int:
        """Columns with at least two others whose covariance with them is beyond chance."""
        spread = self.resampled.covariance.std(axis=0)
        beyond = np.abs(self.moments.covariance) > Z_AGREE * spread
        np.fill_diagonal(beyond, False)
        return int((beyond.sum(axis=1) >= 2).sum())


def _block_mean(ranks: Array, block: list[int], sign: Array) -> Array:
    """Mean rank of a block's members, over those that have a score."""
    part = np.where(sign[block] < 0, 1 - ranks[:, block], ranks[:, block])
    seen = ~np.isnan(part)
    count = seen.sum(axis=1)
    total = np.where(seen, part, 0.0).sum(axis=1)
    return np.divide(total, count, out=np.full(len(ranks), np.nan), where=count > 0).round(12)
