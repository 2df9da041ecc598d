"""The arms of the study: FUSE, its variants, and what a practitioner would use instead.

An arm gives every item a score. Some use labels, as references or ceilings: `best-single` knows which verifier is
best, `best-single-5` chooses it on 5 % of the queries; `supervised` is a logistic regression cross-fitted over five
parts of the queries, `supervised-5` one with the labels of 5 % of them, `one-domain` one with those of one domain,
and `one-domain-positive` least squares on those with no weight below zero, which carries over to other domains better.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import require
from assay.inference.fuse.cuts import cast_votes, median_cuts
from assay.inference.fuse.estimator import FUSE, JaffeSpectral
from assay.inference.fuse.matrices import ScoreMatrix
from assay.inference.fuse.ranks import RankMap

__all__ = ["ARMS", "FUSE_ARMS", "fuse_of", "shuffled"]

Array = NDArray[np.float64]
Used = NDArray[np.bool_]

FUSE_ARMS: dict[str, dict[str, Any]] = {
    "fuse": {},
    "fuse-pseudo": {"combiner": "pseudo"},
    "fuse-spectral": {"combiner": "spectral"},
    "fuse-median": {"transformation": "median"},
    "fuse-unmerged": {"merge_blocks": False},
    "fuse-untransformed": {"transformation": "median", "merge_blocks": False},
    "fuse-conditional": {"query_conditional": True},
    "shuffled": {},
    "shuffled-conditional": {"query_conditional": True},
}
PENALTIES = (1.0, 0.1, 0.01, 0.001, 10.0)
"""In the order of preference: a few labelled queries are often ranked without a fault under every penalty."""

N_PARTS = 5
FEW = 0.05


def fuse_of(arm: str, data: ScoreMatrix, seed: int) -> tuple[FUSE, Array, Array]:
    """The fitted estimator of a FUSE arm, its scores, and the verifiers' scores that it was given."""
    given = shuffled(data.scores, seed) if arm.startswith("shuffled") else data.scores
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        est = FUSE(random_state=seed, **FUSE_ARMS[arm]).fit(given, groups=data.groups)
    return est, est.score_samples(given, data.groups), given


def shuffled(scores: Array, seed: int) -> Array:
    """Each verifier's scores in a random order of their own: nothing is left of what they knew."""
    return np.random.default_rng([seed, 1]).permuted(scores, axis=0)


def _all_used(scorer: Callable[[ScoreMatrix], Array]) -> Callable[..., tuple[Array, Used]]:
    def scored(data: ScoreMatrix, seed: int, options: dict[str, Any]) -> tuple[Array, Used]:
        return scorer(data), np.ones(len(data.labels), dtype=bool)

    return scored


def _mean_z(data: ScoreMatrix) -> Array:
    scores = _bounded(data.scores)
    spread = np.nanstd(scores, axis=0)
    return _row_mean((scores - np.nanmean(scores, axis=0)) / np.where(spread > 0, spread, 1.0), 0.0)


def _mean_rank(data: ScoreMatrix) -> Array:
    return _row_mean(np.column_stack([RankMap(column)(column) for column in data.scores.T]), 0.5)


def _row_mean(columns: Array, empty: float) -> Array:
    """Mean of each row over what is there; `empty` where nothing is."""
    known = np.isfinite(columns)
    total, count = np.where(known, columns, 0.0).sum(axis=1), known.sum(axis=1)
    return np.divide(total, count, out=np.full(len(columns), empty), where=count > 0)


def _bounded(scores: Array) -> Array:
    """Scores with the infinite ones at the ends of what is finite in their column."""
    finite = np.isfinite(scores)
    low, high = np.where(finite, scores, np.inf).min(axis=0), np.where(finite, scores, -np.inf).max(axis=0)
    some = finite.any(axis=0)
    return np.clip(scores, np.where(some, low, -1.0), np.where(some, high, 1.0))


def _filled(scores: Array) -> Array:
    """Bounded scores with the missing ones at the mean of their column: what models with labels are given."""
    bounded = _bounded(scores)
    return np.where(np.isnan(bounded), np.nanmean(bounded, axis=0), bounded)


def _vote(data: ScoreMatrix) -> Array:
    """Share of systems that gave the answer; else of verifiers whose best item of the query this is."""
    if data.votes.shape[1]:
        return np.nan_to_num(data.votes).mean(axis=1)
    if not data.has_choices:
        return (cast_votes(data.scores, median_cuts(data.scores)) > 0).mean(axis=1)
    tops = []
    for column in data.scores.T:
        known = np.where(np.isnan(column), -np.inf, column)
        best = np.full(data.n_queries, -np.inf)
        np.maximum.at(best, data.groups, known)
        top = (known >= best[data.groups]).astype(float)
        tops.append(top / np.bincount(data.groups, top)[data.groups])
    return np.mean(tops, axis=0)


def _best_single(data: ScoreMatrix) -> Array:
    """The verifier with the highest AUC on all labels: nobody can know it without them."""
    from sklearn.metrics import roc_auc_score

    ranks = np.nan_to_num(np.column_stack([RankMap(column)(column) for column in data.scores.T]), nan=0.5)
    return ranks[:, int(np.argmax([roc_auc_score(data.labels, column) for column in ranks.T]))]


def _jaffe(data: ScoreMatrix) -> Array:
    given = np.nan_to_num(data.votes) if data.votes.shape[1] else data.scores
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return JaffeSpectral().fit(given).score_samples(given)


def _dawid_skene(data: ScoreMatrix) -> Array:
    """crowd-kit's EM on the votes, abstentions left out: the log-odds that follow from what it fitted.

    Its probabilities reach 0 and 1 in floating point, and would tie most of the items.
    """
    import pandas as pd

    aggregation = require("crowdkit.aggregation", extra="peers", wanted_by="fuse")
    votes = data.votes if data.votes.shape[1] else (cast_votes(data.scores, median_cuts(data.scores)) + 1) / 2
    item, worker = np.nonzero(~np.isnan(votes))
    table = pd.DataFrame({"task": item, "worker": worker, "label": votes[item, worker].astype(int)})
    fitted = aggregation.DawidSkene(n_iter=100).fit(table)
    chance = np.log(fitted.errors_.unstack("label").reindex(np.arange(votes.shape[1])).fillna(1.0).clip(lower=1e-9))
    gain = {vote: (chance[1][vote] - chance[0][vote]).to_numpy() for vote in (0, 1)}
    prior = np.log(fitted.priors_[1] / fitted.priors_[0])
    return np.where(np.isnan(votes), 0.0, np.where(votes > 0, gain[1], gain[0])).sum(axis=1) + prior


def _supervised(data: ScoreMatrix) -> Array:
    """Logistic regression cross-fitted over five parts of the queries, on the votes where there are any.

    The penalty is tuned once for all parts, so that their scores are on one scale.
    """
    from sklearn.base import clone
    from sklearn.model_selection import GroupKFold, cross_val_predict

    given = np.nan_to_num(data.votes) if data.votes.shape[1] else _filled(data.features)
    everything = replace(data, features=given)
    model = clone(_regression(everything, np.arange(len(given))).best_estimator_)
    parts = GroupKFold(N_PARTS)
    return cross_val_predict(model, given, data.labels, groups=data.groups, cv=parts, method="decision_function")


def _few_labels(data: ScoreMatrix, seed: int, options: dict[str, Any]) -> tuple[Array, Used]:
    """Logistic regression with the labels of a share of the queries."""
    seen = _labelled(data, seed, options.get("share", FEW))
    return _regression(data, np.flatnonzero(seen)).decision_function(_filled(data.features)), ~seen


def _best_single_few(data: ScoreMatrix, seed: int, options: dict[str, Any]) -> tuple[Array, Used]:
    """The verifier with the highest AUC on the labels of a share of the queries."""
    from sklearn.metrics import roc_auc_score

    seen = _labelled(data, seed, options.get("share", FEW))
    scores = _filled(data.scores)
    return scores[:, int(np.argmax([roc_auc_score(data.labels[seen], column[seen]) for column in scores.T]))], ~seen


def _labelled(data: ScoreMatrix, seed: int, share: float) -> Used:
    """Items of a random share of the queries, drawn again until there are both right and wrong ones."""
    rng = np.random.default_rng([seed, 2])
    wanted = max(2, round(share * data.n_queries))
    while True:
        seen = np.isin(data.groups, rng.choice(data.n_queries, wanted, replace=False))
        if 0 < data.labels[seen].sum() < seen.sum():
            return seen


def _one_domain(data: ScoreMatrix, seed: int, options: dict[str, Any]) -> tuple[Array, Used]:
    """Logistic regression with the labels of one domain, judged on the others."""
    seen = data.domains == options["domain"]
    return _regression(data, np.flatnonzero(seen)).decision_function(_filled(data.features)), ~seen


def _one_domain_positive(data: ScoreMatrix, seed: int, options: dict[str, Any]) -> tuple[Array, Used]:
    """Least squares with weights of zero or more, with the labels of one domain, judged on the others.

    It knows what FUSE assumes, that verifiers are better than chance: one domain's labels can't turn them round.
    """
    from sklearn.linear_model import LinearRegression

    seen, features = data.domains == options["domain"], _filled(data.features)
    model = LinearRegression(positive=True).fit(features[seen], data.labels[seen])
    return model.predict(features), ~seen


def _regression(data: ScoreMatrix, rows: NDArray[np.intp]) -> Any:
    """Logistic regression; penalty and standardisation are tuned for AUC over parts of the rows' queries.

    Of settings with equal AUC the first is taken, which is scikit-learn's default penalty on the features as they are.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, GroupKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    grid = {"logisticregression__C": list(PENALTIES), "standardscaler": ["passthrough", StandardScaler()]}
    parts = GroupKFold(min(N_PARTS, len(np.unique(data.groups[rows]))))
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    search = GridSearchCV(model, grid, cv=parts, scoring=_ranking, error_score=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return search.fit(_filled(data.features)[rows], data.labels[rows], groups=data.groups[rows])


def _ranking(model: Any, features: Array, labels: NDArray[np.intp]) -> float:
    """AUC, or one half where a part holds one class only."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(labels, model.decision_function(features))) if 0 < labels.mean() < 1 else 0.5


ARMS: dict[str, Callable[..., tuple[Array, Used]]] = {
    "mean-z": _all_used(_mean_z), "mean-rank": _all_used(_mean_rank), "vote": _all_used(_vote),
    "best-single": _all_used(_best_single), "jaffe": _all_used(_jaffe), "dawid-skene": _all_used(_dawid_skene),
    "supervised": _all_used(_supervised), "supervised-5": _few_labels, "best-single-5": _best_single_few,
    "one-domain": _one_domain, "one-domain-positive": _one_domain_positive,
}
