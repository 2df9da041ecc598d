"""FUSE: one score from several verifiers that nobody has graded (arXiv 2604.18547).

You have n candidate answers, each scored by M judges or reward models, and no labels. FUSE

1. replaces scores by ranks and cuts each verifier's ranks into votes where any three verifiers look
   independent given the truth (`cuts`), after merging verifiers that share errors (`blocks`);
2. reads every verifier's sensitivity and specificity, and the base rate, off the votes' moments (`spectral`);
3. turns these into one score without assuming that all verifiers are jointly independent (`combine`);
4. can do so with ranks inside each query, where the queries' scales differ (`query_conditional=True`).

`JaffeSpectral` is step 2 alone, at a given cut: the method that FUSE improves on.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from assay.errors import InputError
from assay.inference.fuse.blocks import copies
from assay.inference.fuse.combine import fit_moment, fit_pseudo, truth_moments
from assay.inference.fuse.cuts import cast_votes, choose_triples, median_cuts
from assay.inference.fuse.moments import vote_moments
from assay.inference.fuse.ranks import RankMap, normal_scores, ranks_within
from assay.inference.fuse.selection import group_codes, select_per_query
from assay.inference.fuse.spectral import Verifiers, invert_moments, log_odds, rank_one_completion, skewness_ratio
from assay.inference.fuse.stages import Panel, Stage

__all__ = ["FUSE", "JaffeSpectral"]

Array = NDArray[np.float64]

FEW_ITEMS = 50
MIN_COMMON = 5
"""Items that two verifiers must have scored both, for their votes to have a covariance."""

MOST_VERIFIERS = 200
"""Tables of all pairs of cuts grow with the square of the verifiers."""

PRIOR_ITEMS = 10.0
"""Weight of the pooled base rate against a query's own items in the query-conditional mode."""

QUERY_ROUNDS = 100
LEAST_RESAMPLES = 20


class _LabelFreeScorer(BaseEstimator, ABC):
    """What FUSE and JaffeSpectral have in common once they are fitted."""

    @abstractmethod
    def score_samples(self, S: ArrayLike, groups: ArrayLike | None = None) -> Array:
        """Fused score of each item: the log-odds that it is right.

        Parameters
        ----------
        S : (n, M) array
            Scores of the same verifiers as in `fit`; NaN where one gave none.
        groups : (n,) array, optional
            Query of each item; needed when `query_conditional=True`.
        """

    def predict_proba(self, S: ArrayLike, groups: ArrayLike | None = None) -> Array:
        """Probabilities (n, 2) that an item is wrong and that it is right."""
        right = expit(self.score_samples(S, groups))
        return np.column_stack([1 - right, right])

    def predict(self, S: ArrayLike, groups: ArrayLike | None = None) -> NDArray[np.intp]:
        """1 for items more likely right than wrong, else 0."""
        return (self.score_samples(S, groups) > 0).astype(np.intp)

    def select(self, S: ArrayLike, groups: ArrayLike) -> NDArray[np.intp]:
        """Row of the best item of each query, queries in the order in which they first appear."""
        return select_per_query(self.score_samples(S, groups), groups)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _scores(self, S: ArrayLike, *, reset: bool) -> Array:
        """The score matrix as float64, its shape and names checked; ranks make infinities ordinary values."""
        try:
            checked = validate_data(
                self, S, reset=reset, dtype=np.float64, ensure_all_finite=False, ensure_min_samples=3 if reset else 1
            )
        except ValueError as error:
            raise InputError(str(error)) from None
        if not reset:
            return checked
        n_items, n_verifiers = checked.shape
        if n_verifiers < 3:
            raise InputError(f"three verifiers needed, got n_features={n_verifiers}")
        empty = np.isnan(checked).all(axis=0)
        if empty.any():
            raise InputError(f"verifier column {int(np.argmax(empty))} holds no score at all, only NaN")
        if n_items < FEW_ITEMS:
            warnings.warn(f"{n_items} items are few: the estimates have wide intervals", UserWarning, stacklevel=3)
        return checked


class JaffeSpectral(_LabelFreeScorer):
    """Spectral estimate of each verifier's accuracy, and the log-odds that follow from it, at a fixed cut.

    Votes (score above the cut) are taken to be independent given the truth; the module `spectral` has the
    equations. Use it where the verifiers are really independent, or to see what FUSE gains. It has no remedy
    for verifiers that share errors: those look more accurate than they are.

    Parameters
    ----------
    threshold : "median" or float, default="median"
        Cut of each column: the place nearest to its median, or a number on the scale of the scores.

    Attributes
    ----------
    sensitivity_, specificity_ : (M,) arrays
        P(vote | right) and P(no vote | wrong); NaN for a constant column, which is dropped.
    base_rate_ : float
        Estimated share of right items.
    weights_ : (M,) array
        Change of the log-odds between a no and a yes of the verifier.
    identifiable_ : bool
        False when an estimate lay on its boundary.
    n_features_in_ : int

    See Also
    --------
    FUSE : chooses the cuts, merges verifiers that copy each other, and combines without joint independence.

    References
    ----------
    Jaffe, Nadler and Kluger (2015), Estimating the accuracies of multiple classifiers without labeled data,
    AISTATS.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> right = rng.random(5000) < 0.3
    >>> votes = (rng.random((5000, 4)) < np.where(right[:, None], [0.9, 0.8, 0.7, 0.6], 0.2)).astype(float)
    >>> est = JaffeSpectral().fit(votes)
    >>> est.sensitivity_.round(1).tolist(), round(est.base_rate_, 1)
    ([0.9, 0.8, 0.7, 0.6], 0.3)
    """

    def __init__(self, threshold: str | float = "median") -> None:
        self.threshold = threshold

    def fit(self, S: ArrayLike, y: object = None, groups: object = None) -> JaffeSpectral:
        """Estimate the verifiers from their scores alone.

        Parameters
        ----------
        S : (n, M) array
            One row an item, one column a verifier; higher is better; NaN where there is no score.
        y, groups : ignored
            Labels give a warning.

        Raises
        ------
        InputError
            Fewer than three verifiers whose votes vary at the threshold, a column of NaN alone, or two
            verifiers with fewer than five items in common.
        """
        scores = self._scores(S, reset=True)
        _warn_of_labels(y)
        self._cut_ = self._cuts(scores)
        votes = cast_votes(scores, self._cut_)
        kept = np.flatnonzero(_varies(votes))
        if len(kept) < 3:
            raise InputError(f"three verifiers needed, but the votes of only {len(kept)} vary at this threshold")
        _refuse_rare_pairs(votes[:, kept], kept)
        moments = vote_moments(votes[:, kept], choose_triples(len(kept), np.random.default_rng(0)))
        loading = rank_one_completion(moments.covariance)
        alpha = float(skewness_ratio(moments.third, moments.triples, loading))
        self._verifiers_ = invert_moments(moments.mean, loading, alpha)
        self._kept_ = kept
        self._publish()
        return self

    def score_samples(self, S: ArrayLike, groups: ArrayLike | None = None) -> Array:
        check_is_fitted(self)
        votes = cast_votes(self._scores(S, reset=False), self._cut_)
        return log_odds(votes[:, self._kept_], self._verifiers_)

    def _cuts(self, scores: Array) -> Array:
        if isinstance(self.threshold, str) and self.threshold == "median":
            return median_cuts(scores)
        if not isinstance(self.threshold, Real) or not np.isfinite(self.threshold):
            raise InputError(f"threshold must be 'median' or a finite number, got {self.threshold!r}")
        return np.full(scores.shape[1], float(self.threshold))

    def _publish(self) -> None:
        found, size = self._verifiers_, self.n_features_in_
        self.sensitivity_ = _spread(found.sensitivity, self._kept_, size)
        self.specificity_ = _spread(found.specificity, self._kept_, size)
        self.weights_ = _spread(_vote_weights(found), self._kept_, size, fill=0.0)
        self.base_rate_ = found.base_rate
        self.identifiable_ = not (found.on_boundary.any() or found.base_rate_on_boundary)


class FUSE(_LabelFreeScorer):
    """Fused score of several verifiers, and the accuracy of each, from their scores alone.

    Use it with three or more judges, reward models or checks whose errors are not all the same. It can't
    see a factor that most verifiers share (a taste for length, say): it takes agreement on that for
    agreement on the truth. `identifiable_` and `doubts_` say what the data themselves give away, and
    estimates of accuracy should not be quoted without them.

    Parameters
    ----------
    transformation : {"tci", "median", "none"}, default="tci"
        Where to cut a verifier's scores into votes: searched for the smallest violation of triplet
        conditional independence, at the median, or not at all (every column holds two values).
    combiner : {"moment", "pseudo", "spectral"}, default="moment"
        Logistic regression on normal scores of the ranks, its label moments taken from the other
        verifiers' votes, or its labels from the spectral estimate; or the spectral log-odds themselves.
    merge_blocks : bool, default=True
        Merge verifiers that share errors into one (mean of ranks) where that lowers the violation.
        Exact copies are merged always.
    query_conditional : bool, default=False
        Rank inside each query (needs `groups`), with a base rate for each query that is shrunk to the pooled one.
    n_bootstrap : int, default=100
        Resamples of queries (of items, without groups) behind the intervals, the search for shared errors
        and the shrinkage of the base rate. 0 does without; then `merge_blocks` must be False.
    random_state : int, RandomState or None, default=None

    Attributes
    ----------
    sensitivity_, specificity_ : (M,) arrays
        P(vote | right) and P(no vote | wrong) at the cut; NaN for a constant column, which is dropped.
    sensitivity_interval_, specificity_interval_ : (M, 2) arrays
        95 % bootstrap intervals, given the cuts and the model; NaN without bootstrap.
    base_rate_ : float
        Estimated share of right items; `base_rate_interval_` is its interval.
    cuts_ : (M,) array
        Rank in (0, 1) above which a verifier's score counts as a vote for the item.
    weights_ : (M,) array
        Weight of each verifier in the score: on its normal scores, or on its vote (combiner "spectral").
    blocks_ : list of list of int
        Verifiers merged into one stand together.
    error_correlation_ : (M, M) array
        Correlation of the verifiers' errors given the truth, at the median cuts and before merging: which
        verifiers copy each other, as far as a rank-one fit can see it.
    tci_violation_, tci_violation_median_ : float
        V at the chosen cuts and blocks, and of the same verifiers, copies merged, at the median.
    identifiable_ : bool
        False when something in the data contradicts the model; `doubts_` lists what.
    n_missing_ : (M,) int array
        Items that each verifier has not scored: moments are over the items that all concerned have scored.

    Notes
    -----
    The cost is O(n M^2) for the covariances and O(n M^3) for the triples, of which at most 4,096 are used.
    Transformation, guards, block repair, the moment combiner and the shrinkage are reconstructed.

    See Also
    --------
    JaffeSpectral : the spectral estimate alone.
    select_per_query : the best item of each query under any score.

    References
    ----------
    Lee, Ma, Zhao, Nair, Spector, Cohen and Candes (2026), FUSE: Ensembling Verifiers with Zero Labeled Data,
    ICML, arXiv 2604.18547.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> right = rng.random(4000) < 0.4
    >>> S = rng.normal(size=(4000, 5)) + right[:, None] * [2.0, 1.5, 1.5, 1.0, 0.5]
    >>> est = FUSE(random_state=0).fit(S)
    >>> round(est.base_rate_, 1), est.blocks_, est.identifiable_
    (0.4, [[0], [1], [2], [3], [4]], True)
    >>> int(est.weights_.argmax()), int(est.weights_.argmin())
    (0, 4)
    """

    def __init__(
        self, transformation: str = "tci", combiner: str = "moment", merge_blocks: bool = True,
        query_conditional: bool = False, n_bootstrap: int = 100, random_state: Any = None,
    ) -> None:
        self.transformation = transformation
        self.combiner = combiner
        self.merge_blocks = merge_blocks
        self.query_conditional = query_conditional
        self.n_bootstrap = n_bootstrap
        self.random_state = random_state

    def fit(self, S: ArrayLike, y: object = None, groups: ArrayLike | None = None) -> FUSE:
        """Estimate the verifiers and their combination.

        Parameters
        ----------
        S : (n, M) array
            One row an item, one column a verifier; higher is better; NaN where there is no score.
        y : ignored
            Labels are not used; handing them in gives a warning.
        groups : (n,) array, optional
            Query of each item: what the bootstrap resamples, and what `query_conditional` ranks in.

        Raises
        ------
        InputError
            Fewer than three verifiers that vary and differ or more than 200, a column of NaN alone, all scores
            equal, two verifiers with fewer than five items in common, or a bad parameter.
        """
        self._check_parameters()
        scores = self._scores(S, reset=True)
        if scores.shape[1] > MOST_VERIFIERS:
            raise InputError(f"FUSE takes at most {MOST_VERIFIERS} verifiers, got {scores.shape[1]}")
        _warn_of_labels(y)
        codes = None if groups is None else group_codes(groups, len(scores), by_name=True)
        self.n_missing_ = np.isnan(scores).sum(axis=0)
        self._kept_ = self._varying(scores)
        ranks = self._fit_ranks(scores[:, self._kept_], codes)
        _refuse_rare_pairs(ranks, self._kept_)
        seed = self._seed()
        stage, plain = self._fit_stages(ranks, codes, seed)
        self._fit_verifiers(stage, plain, ranks)
        self._fit_combination(stage)
        return self

    def score_samples(self, S: ArrayLike, groups: ArrayLike | None = None) -> Array:
        fused = self._combine(self._columns(S, groups))
        if self.query_conditional:
            fused += _query_shift(fused, group_codes(groups, len(fused)), self.base_rate_)
        return fused

    def _columns(self, S: ArrayLike, groups: ArrayLike | None) -> Array:
        """Ranks of the blocks, which votes and combinations are made from."""
        check_is_fitted(self)
        scores = self._scores(S, reset=False)[:, self._kept_]
        codes = None if groups is None else group_codes(groups, len(scores))
        if self.query_conditional and codes is None:
            raise InputError("query_conditional=True needs groups: the query of each item")
        return self._panel_.columns(self._rank(scores, codes))

    def _seed(self) -> int:
        try:
            return int(check_random_state(self.random_state).randint(2**31 - 1))
        except ValueError as error:
            raise InputError(f"random_state: {error}") from None

    def _check_parameters(self) -> None:
        allowed = {"transformation": ("tci", "median", "none"), "combiner": ("moment", "pseudo", "spectral")}
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise InputError(f"{name} must be one of {', '.join(values)}, got {getattr(self, name)!r}")
        if not isinstance(self.n_bootstrap, (int, np.integer)) or self.n_bootstrap < 0:
            raise InputError(f"n_bootstrap must be a whole number from 0, got {self.n_bootstrap!r}")
        if self.merge_blocks and self.n_bootstrap < LEAST_RESAMPLES:
            raise InputError(
                f"merge_blocks=True needs n_bootstrap of at least {LEAST_RESAMPLES}, got {self.n_bootstrap}"
            )

    def _varying(self, scores: Array) -> NDArray[np.intp]:
        varies = _varies(scores)
        if not varies.any():
            raise InputError("all scores of every verifier are equal: there is nothing to fuse")
        if not varies.all():
            names = ", ".join(str(j) for j in np.flatnonzero(~varies))
            warnings.warn(f"verifier columns dropped because they are constant: {names}", UserWarning, stacklevel=3)
        kept = np.flatnonzero(varies)
        if len(kept) < 3:
            raise InputError(f"three verifiers needed, but only {len(kept)} of n_features={len(varies)} vary")
        if self.transformation == "none":
            for j in kept:
                if (values := len(np.unique(scores[~np.isnan(scores[:, j]), j]))) != 2:
                    raise InputError(f"transformation='none' needs votes of two values, column {j} has {values}")
        return kept

    def _fit_ranks(self, scores: Array, codes: NDArray[np.intp] | None) -> Array:
        self._maps_ = [RankMap(column) for column in scores.T]
        if self.query_conditional and codes is None:
            raise InputError("query_conditional=True needs groups: the query of each item")
        ranks = self._rank(scores, codes)
        flat = ~_varies(ranks)
        if flat.any():
            where = int(self._kept_[np.argmax(flat)])
            raise InputError(f"verifier column {where} never differs inside a query of two or more items")
        return ranks

    def _rank(self, scores: Array, codes: NDArray[np.intp] | None) -> Array:
        if self.query_conditional and codes is not None:
            return ranks_within(scores, codes)
        return np.column_stack([rank(column) for rank, column in zip(self._maps_, scores.T, strict=True)])

    def _fit_stages(self, ranks: Array, codes: NDArray[np.intp] | None, seed: int) -> tuple[Stage, Stage]:
        """The stage that is kept, and the one before any merging but that of exact copies."""
        blocks, sign = copies(ranks)
        if len(blocks) < 3:
            copied = [self._kept_[block].tolist() for block in blocks if len(block) > 1]
            raise InputError(f"three verifiers needed, but only {len(blocks)} differ: columns {copied} are copies")
        plain = Stage(Panel(ranks, blocks, sign), codes, self.transformation == "tci", self.n_bootstrap, seed)
        if not self.merge_blocks or len(plain.independent) == len(blocks) or len(plain.independent) < 3:
            return plain, plain
        merged = Stage(plain.merged_panel(ranks), codes, self.transformation == "tci", self.n_bootstrap, seed)
        return (merged, plain) if merged.violation < plain.violation else (plain, plain)

    def _fit_verifiers(self, stage: Stage, plain: Stage, ranks: Array) -> None:
        """Accuracies of the blocks and of their members, intervals, and what casts doubt on them."""
        size = self.n_features_in_
        self._panel_, self._cut_, self._found_ = stage.panel, stage.cuts, stage.verifiers
        own, again = stage.members(ranks)
        self.cuts_ = _spread(stage.member_cuts(ranks), self._kept_, size)
        for name in ("sensitivity", "specificity"):
            setattr(self, f"{name}_", _spread(getattr(own, name), self._kept_, size))
            draws = np.array([getattr(draw, name) for draw in again]).reshape(len(again), len(self._kept_))
            setattr(self, f"{name}_interval_", _spread(_percentiles(draws), self._kept_, size))
        self.base_rate_ = stage.verifiers.base_rate
        self.base_rate_interval_ = _percentiles(np.array([[draw.base_rate] for draw in again]).reshape(-1, 1))[0]
        self.blocks_ = sorted(self._kept_[block].tolist() for block in stage.panel.blocks)
        self.tci_violation_ = stage.violation
        self.tci_violation_median_ = plain.median_violation
        self.error_correlation_ = np.full((size, size), np.nan)
        self.error_correlation_[np.ix_(self._kept_, self._kept_)] = plain.error_correlation()
        names = getattr(self, "feature_names_in_", np.arange(size))
        self.doubts_ = stage.doubts(np.asarray(names)[self._kept_])
        if self.merge_blocks and len(plain.independent) < 3:
            self.doubts_.append("shared errors leave fewer than three independent blocks: not identifiable")
        self.identifiable_ = not self.doubts_

    def _fit_combination(self, stage: Stage) -> None:
        columns = stage.panel.fitted
        raw = normal_scores(columns)
        self._centre_, self._scale_ = np.nanmean(raw, axis=0), np.nanstd(raw, axis=0)
        z = (raw - self._centre_) / self._scale_
        found = self._found_
        if self.combiner == "moment":
            moments = truth_moments(z, stage.votes, found.loading, found.balance)
            self._intercept_, self._beta_ = fit_moment(z, moments, found.balance)
        elif self.combiner == "pseudo":
            self._intercept_, self._beta_ = fit_pseudo(z, log_odds(stage.votes, found))
        weights = _vote_weights(found) if self.combiner == "spectral" else self._beta_
        self.weights_ = np.zeros(self.n_features_in_)
        for block, weight in zip(stage.panel.blocks, weights, strict=True):
            self.weights_[self._kept_[block]] = weight * stage.panel.sign[block] / len(block)

    def _combine(self, columns: Array) -> Array:
        if self.combiner == "spectral":
            return log_odds(cast_votes(columns, self._cut_), self._found_)
        z = (normal_scores(columns) - self._centre_) / self._scale_
        return (np.where(np.isfinite(z), z, 0.0) * self._beta_).sum(axis=1) + self._intercept_


def _query_shift(fused: Array, codes: NDArray[np.intp], base_rate: float) -> Array:
    """Change of each item's log-odds by its query's own base rate, a beta prior holding it to the pooled one.

    The rate is the fixed point of: posterior mean given the items' probabilities at that rate.
    """
    size = np.bincount(codes)
    rate = np.full(len(size), base_rate)
    shift = np.zeros(len(size))
    for _ in range(QUERY_ROUNDS):
        expected = np.bincount(codes, expit(fused + shift[codes]))
        rate = (PRIOR_ITEMS * base_rate + expected) / (PRIOR_ITEMS + size)
        shift = logit(rate) - logit(base_rate)
    return shift[codes]


def _varies(columns: Array) -> NDArray[np.bool_]:
    return np.array([len(np.unique(column[~np.isnan(column)])) > 1 for column in columns.T])


def _refuse_rare_pairs(columns: Array, names: NDArray[np.intp]) -> None:
    seen = (~np.isnan(columns)).astype(float)
    common = seen.T @ seen
    if (rare := np.diag(common) < MIN_COMMON).any():
        j = int(np.argmax(rare))
        raise InputError(f"verifier column {names[j]} has {int(common[j, j])} scores, at least {MIN_COMMON} needed")
    if common.min() < MIN_COMMON:
        i, j = np.unravel_index(common.argmin(), common.shape)
        raise InputError(
            f"verifier columns {names[i]} and {names[j]} have {int(common[i, j])} items in common, "
            f"at least {MIN_COMMON} needed"
        )


def _warn_of_labels(y: object) -> None:
    if y is not None:
        warnings.warn("labels are ignored: the estimate uses the scores alone", UserWarning, stacklevel=3)


def _vote_weights(found: Verifiers) -> Array:
    """Log-odds of a yes less log-odds of a no."""
    return logit(found.sensitivity) + logit(found.specificity)


def _percentiles(draws: Array) -> Array:
    """95 % percentile intervals (columns, 2) of bootstrap draws (resamples, columns)."""
    if not len(draws):
        return np.full((draws.shape[1], 2), np.nan)
    return np.percentile(draws, [2.5, 97.5], axis=0).T


def _spread(values: Array, kept: NDArray[np.intp], size: int, fill: float = np.nan) -> Array:
    """Values of the kept verifiers at their places among all."""
    full = np.full((size, *values.shape[1:]), fill)
    full[kept] = values
    return full
