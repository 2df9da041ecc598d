"""One cell: the scores that an arm gives, and how good they are."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import spearmanr

from assay.inference.fuse.arms import ARMS, FUSE_ARMS, fuse_of
from assay.inference.fuse.cuts import cast_votes, median_cuts, tci_violation
from assay.inference.fuse.estimator import FUSE, JaffeSpectral
from assay.inference.fuse.matrices import ScoreMatrix
from assay.inference.fuse.moments import vote_moments
from assay.inference.fuse.selection import best_of_n_hits
from assay.inference.fuse.spectral import rank_one_completion
from assay.study import Cell, Measurement

__all__ = ["measure_arm"]

Array = NDArray[np.float64]


def measure_arm(cell: Cell, data: ScoreMatrix) -> Measurement:
    """AUC and best-of-N of an arm, what it says of the verifiers, and every item's score for the intervals."""
    from sklearn.metrics import roc_auc_score

    if cell.arm in FUSE_ARMS:
        est, scores, given = fuse_of(cell.arm, data, cell.seed)
        used, told = np.ones(len(scores), dtype=bool), _estimates(est, cell, data, given)
    else:
        scores, used = ARMS[cell.arm](data, cell.seed, dict(cell.options))
        told = _jaffe_estimates(data) if cell.arm == "jaffe" else {}
    labels = data.labels[used]
    metrics = {
        "auc": float(roc_auc_score(labels, scores[used])),
        "items": float(len(labels)), "prevalence": float(data.labels.mean()),
    }
    if data.has_choices:
        metrics["best_of_n"] = float(best_of_n_hits(scores[used], labels, data.groups[used]).mean())
        metrics["any_of_n"] = float(best_of_n_hits(data.labels.astype(float), data.labels, data.groups).mean())
    if len(data.length):
        metrics["length_correlation"] = float(spearmanr(scores, data.length).statistic)
    units = pd.DataFrame({
        "query": data.groups.astype(np.int32), "label": data.labels.astype(np.int8),
        "score": scores.astype(np.float32), "used": used,
    })
    return Measurement(metrics | told, units)


def _estimates(est: FUSE, cell: Cell, data: ScoreMatrix, given: Array) -> dict[str, float]:
    """The violation before and after, in the sample and held out, and the estimates against the truth."""
    before, after, blocks = _held_out_violation(cell.arm, data, given, cell.seed)
    metrics = {
        "violation_median": est.tci_violation_median_, "violation": est.tci_violation_,
        "violation_median_held_out": before, "violation_held_out": after, "blocks_held_out": float(blocks),
        "base_rate": est.base_rate_, "blocks": float(len(est.blocks_)), "identifiable": float(est.identifiable_),
    }
    if not est.query_conditional:
        ranks = np.column_stack([rank(column) for rank, column in zip(est._maps_, given.T, strict=True)])
        metrics |= _errors(est.sensitivity_, est.specificity_, cast_votes(ranks, est.cuts_), data.labels)
    return metrics


def _jaffe_estimates(data: ScoreMatrix) -> dict[str, float]:
    given = np.nan_to_num(data.votes) if data.votes.shape[1] else data.scores
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        est = JaffeSpectral().fit(given)
    votes = cast_votes(given, median_cuts(given))
    return {"base_rate": est.base_rate_, **_errors(est.sensitivity_, est.specificity_, votes, data.labels)}


def _errors(sensitivity: Array, specificity: Array, votes: Array, labels: NDArray[np.intp]) -> dict[str, float]:
    """Mean absolute errors of the estimated sensitivities and specificities, at the same cuts."""
    right, wrong = votes[labels == 1], votes[labels == 0]
    return {
        "sensitivity_error": float(np.nanmean(np.abs(sensitivity - np.nanmean(right > 0, axis=0)))),
        "specificity_error": float(np.nanmean(np.abs(specificity - np.nanmean(wrong < 0, axis=0)))),
    }


def _held_out_violation(arm: str, data: ScoreMatrix, given: Array, seed: int) -> tuple[float, float, int]:
    """V on one half of the queries, at the median cuts and at the cuts and blocks that the other half chose.

    The third is the number of blocks.
    """
    rng = np.random.default_rng([seed, 3])
    first = np.isin(data.groups, rng.permutation(data.n_queries)[: data.n_queries // 2])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        est = FUSE(random_state=seed, **FUSE_ARMS[arm]).fit(given[first], groups=data.groups[first])
    other = given[~first]
    columns = est._columns(other, data.groups[~first])
    before = _violation(cast_votes(other, median_cuts(other)))
    return before, _violation(cast_votes(columns, est._cut_)), columns.shape[1]


def _violation(votes: Array) -> float:
    moments = vote_moments(votes)
    loading = rank_one_completion(moments.covariance)
    return float(tci_violation(moments.covariance, moments.third, moments.triples, loading))
