"""FUSE: closed forms, invariances, the traps of the method, bad input, and the facts of its data."""

from __future__ import annotations

import json
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from assay.catalogue import get
from assay.cli import main
from assay.datasets import entry, load_dataset, local_file
from assay.errors import DataUnavailable, InputError
from assay.inference import FUSE, JaffeSpectral, select_per_query
from assay.inference.fuse import best_of_n_hits
from assay.inference.fuse.arms import ARMS, fuse_of
from assay.inference.fuse.blocks import dependence
from assay.inference.fuse.champ import champ_groups, read_answer
from assay.inference.fuse.combine import RIDGE, fit_moment, truth_moments
from assay.inference.fuse.cuts import (
    KAPPA,
    CutSearch,
    _triples_at,
    cast_votes,
    choose_triples,
    median_cuts,
    tci_violation,
)
from assay.inference.fuse.matrices import from_scores, matrix
from assay.inference.fuse.measuring import measure_arm
from assay.inference.fuse.moments import (
    MAX_BATCHES,
    all_triples,
    batch_sums,
    deal_batches,
    resample_weights,
    vote_moments,
)
from assay.inference.fuse.planted import planted_blocks
from assay.inference.fuse.ranks import RankMap, ranks_within
from assay.inference.fuse.spectral import FLOOR, invert_moments, log_odds, rank_one_completion, skewness_ratio
from assay.inference.fuse.verdicts import Judge, auc_difference, hits_difference
from assay.inference.pools import breast_cancer_pool, digits_pool
from assay.study import Cell, Results, Row

# What assay.conformance makes of the method, asserted by tests/test_every_method.py.
CHECKS = {"passed": 84, "excused": 0, "oracles": 18, "oracles_without_data": 14}

BALANCE = -0.4
PSI = np.array([0.8, 0.7, 0.65, 0.9, 0.6])
ETA = np.array([0.7, 0.75, 0.6, 0.55, 0.8])
SENTENCES = Path(__file__).parent / "data" / "champ_sentences.json"

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


def population(balance, psi=PSI, eta=ETA):
    """Means, covariances and third moments that votes with these accuracies have."""
    share = (1 + balance) / 2
    mean = share * (2 * psi - 1) + (1 - share) * (1 - 2 * eta)
    quality = psi + eta - 1
    covariance = (1 - balance**2) * np.outer(quality, quality)
    np.fill_diagonal(covariance, 1 - mean**2)
    triples = all_triples(len(psi))
    third = -2 * balance * (1 - balance**2) * quality[triples].prod(axis=1)
    return mean, covariance, third, triples


def draw_votes(n, seed=0, balance=BALANCE, psi=PSI, eta=ETA):
    rng = np.random.default_rng(seed)
    right = rng.random(n) < (1 + balance) / 2
    return np.where(rng.random((n, len(psi))) < np.where(right[:, None], psi, 1 - eta), 1.0, -1.0), right


def draw_scores(n=1500, seed=0, shift=(2.0, 1.6, 1.4, 1.2, 1.0), base_rate=0.35):
    """Scores of verifiers that are independent given the truth."""
    rng = np.random.default_rng(seed)
    right = rng.random(n) < base_rate
    return rng.normal(size=(n, len(shift))) + right[:, None] * np.array(shift), right.astype(int)


def fitted(scores, groups=None, **parameters):
    return FUSE(random_state=0, **parameters).fit(scores, groups=groups)


@cache
def _matrix(name):
    return matrix(name)


def data(name):
    """A data set of the study, or a skip where it is neither here nor cached."""
    try:
        if entry(name).kind != "dependency" and local_file(name) is None:
            pytest.skip(f"data absent: {name}")
        return _matrix(name)
    except DataUnavailable as error:
        pytest.skip(f"data absent: {error}")


# Step 2: moments to accuracies


def test_oracle_exact_inversion():
    mean, covariance, third, triples = population(BALANCE)
    loading = rank_one_completion(covariance)
    found = invert_moments(mean, loading, float(skewness_ratio(third, triples, loading)))
    assert abs(found.balance - BALANCE) < 1e-10
    np.testing.assert_allclose(found.sensitivity, PSI, atol=1e-10)
    np.testing.assert_allclose(found.specificity, ETA, atol=1e-10)
    assert not found.on_boundary.any()


def test_oracle_sample_of_200000():
    votes, _ = draw_votes(200_000)
    est = JaffeSpectral(threshold=0.0).fit(votes)
    assert abs(2 * est.base_rate_ - 1 - BALANCE) < 0.015
    np.testing.assert_allclose(est.sensitivity_, PSI, atol=0.01)
    np.testing.assert_allclose(est.specificity_, ETA, atol=0.01)


def test_oracle_three_verifiers_in_closed_form():
    _, covariance, _, _ = population(BALANCE, PSI[:3], ETA[:3])
    r12, r13, r23 = covariance[0, 1], covariance[0, 2], covariance[1, 2]
    expected = np.sqrt([r12 * r13 / r23, r12 * r23 / r13, r13 * r23 / r12])
    np.testing.assert_allclose(rank_one_completion(covariance), expected, rtol=1e-9)


def test_oracle_balanced_classes():
    mean, covariance, third, triples = population(0.0)
    assert np.abs(third).max() == 0
    loading = rank_one_completion(covariance)
    found = invert_moments(mean, loading, float(skewness_ratio(third, triples, loading)))
    np.testing.assert_allclose(found.sensitivity + found.specificity - 1, found.loading, atol=1e-12)
    assert found.balance == 0


def test_oracle_log_odds_are_bayes_rule():
    found = invert_moments(*_exact(BALANCE))
    votes, _ = draw_votes(50)
    right = np.where(votes > 0, PSI, 1 - PSI).prod(axis=1) * (1 + BALANCE) / 2
    wrong = np.where(votes > 0, 1 - ETA, ETA).prod(axis=1) * (1 - BALANCE) / 2
    np.testing.assert_allclose(log_odds(votes, found), np.log(right / wrong), atol=1e-8)


def _exact(balance):
    mean, covariance, third, triples = population(balance)
    loading = rank_one_completion(covariance)
    return mean, loading, float(skewness_ratio(third, triples, loading))


def test_trap_eigenvector_with_its_diagonal_is_biased():
    _, covariance, _, _ = population(BALANCE)
    truth = np.sqrt(1 - BALANCE**2) * (PSI + ETA - 1)
    values, vectors = np.linalg.eigh(covariance)
    plain = np.abs(vectors[:, -1]) * np.sqrt(values[-1])
    assert np.abs(plain - truth).max() > 0.1
    np.testing.assert_allclose(rank_one_completion(covariance), truth, atol=1e-9)


def test_moments_are_those_of_numpy_pair_by_pair():
    votes, _ = draw_votes(400)
    rng = np.random.default_rng(1)
    votes[rng.random(votes.shape) < 0.2] = np.nan
    found = vote_moments(votes)
    mean = np.nanmean(votes, axis=0)
    for i, j in ((0, 1), (2, 4)):
        both = ~np.isnan(votes[:, i] + votes[:, j])
        product = (votes[both, i] * votes[both, j]).mean()
        assert found.covariance[i, j] == pytest.approx(product - mean[i] * mean[j], abs=1e-12)
        assert found.common[i, j] == both.sum()
    complete, _ = draw_votes(400)
    centred = complete - complete.mean(axis=0)
    triples = all_triples(5)
    expected = [(centred[:, i] * centred[:, j] * centred[:, k]).mean() for i, j, k in triples]
    np.testing.assert_allclose(vote_moments(complete).third, expected, atol=1e-12)


def test_bootstrap_moments_are_those_of_the_repeated_rows():
    votes, _ = draw_votes(90)
    batches = np.repeat(np.arange(30), 3)
    sums = batch_sums(votes, batches, all_triples(5))
    weights = resample_weights(30, 4, np.random.default_rng(0))
    again = sums.moments(weights)
    for draw in range(4):
        drawn = np.repeat(np.arange(30), weights[draw].astype(int))
        rows = np.concatenate([np.flatnonzero(batches == batch) for batch in drawn])
        plain = vote_moments(votes[rows])
        np.testing.assert_allclose(again.covariance[draw], plain.covariance, atol=1e-12)
        np.testing.assert_allclose(again.third[draw], plain.third, atol=1e-12)


def test_trap_queries_are_resampled_whole():
    groups = np.random.default_rng(0).integers(0, 2000, 9000)
    _, groups = np.unique(groups, return_inverse=True)
    batches = deal_batches(groups, np.arange(9000), np.random.default_rng(1))
    assert batches.max() + 1 == MAX_BATCHES
    assert all(len(np.unique(batches[groups == query])) == 1 for query in range(0, groups.max(), 97))


@pytest.mark.parametrize("alpha", [0.0, 30.0, -30.0])
def test_trap_weight_keeps_the_sign_of_v_at_the_boundary(alpha):
    loading = np.array([1.4, 0.9, 0.3, -0.8])
    found = invert_moments(np.array([-0.95, -0.9, 0.2, 0.5]), loading, alpha)
    weights = np.log(found.sensitivity / (1 - found.specificity)) - np.log((1 - found.sensitivity) / found.specificity)
    assert (np.sign(weights) == np.sign(loading)).all()
    inside = np.r_[found.sensitivity, found.specificity]
    assert inside.min() >= FLOOR - 1e-12 and inside.max() <= 1 - FLOOR + 1e-12


def test_trap_noisy_third_moments_are_shrunk():
    scores, _ = draw_scores(200, seed=3, base_rate=0.5)
    plain = fitted(scores, transformation="median", merge_blocks=False, n_bootstrap=0)
    shrunk = fitted(scores, transformation="median", merge_blocks=False)
    assert abs(shrunk.base_rate_ - 0.5) < abs(plain.base_rate_ - 0.5)
    large, _ = draw_scores(50_000, base_rate=0.25)
    given = {"transformation": "median", "merge_blocks": False}
    balance = [2 * fitted(large, **given, n_bootstrap=n).base_rate_ - 1 for n in (0, 50)]
    assert balance[1] == pytest.approx(balance[0], rel=0.05)


# Step 1: cuts


def test_oracle_violation_is_zero_for_independent_votes_and_its_definition_otherwise():
    _, covariance, third, triples = population(BALANCE)
    v = rank_one_completion(covariance)
    assert tci_violation(covariance, third, triples, v) < 1e-15
    covariance[0, 1] = covariance[1, 0] = covariance[0, 1] + 0.1
    third = third + 0.01
    v = rank_one_completion(covariance)
    pairs = [(i, j) for i in range(5) for j in range(i + 1, 5)]
    rest = sum((covariance[i, j] - v[i] * v[j]) ** 2 for i, j in pairs) / sum(covariance[i, j] ** 2 for i, j in pairs)
    alpha = float(skewness_ratio(third, triples, v))
    gaps = [(t - alpha * v[i] * v[j] * v[k]) ** 2 for t, (i, j, k) in zip(third, triples, strict=True)]
    expected = rest + KAPPA * sum(gaps) / (third @ third)
    assert tci_violation(covariance, third, triples, v) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("missing", [0.0, 0.15])
def test_tables_give_the_moments_of_the_votes(missing):
    scores, _ = draw_scores(700)
    scores[np.random.default_rng(2).random(scores.shape) < missing] = np.nan
    columns = np.column_stack([RankMap(column)(column) for column in scores.T])
    search = CutSearch(columns, all_triples(5))
    chosen = np.array([3, 12, 9, 5, 16])
    covariance, third = search.moments(chosen)
    plain = vote_moments(cast_votes(columns, search.values(chosen)))
    np.testing.assert_allclose(covariance, plain.covariance, atol=1e-12)
    np.testing.assert_allclose(third, plain.third, atol=1e-6)


def test_search_finds_what_trying_every_cut_finds():
    scores = (1.5 * planted_blocks(600, 2, 0).scores[:, [0, 1, 5, 6]]).round(0)
    columns = np.column_stack([RankMap(column)(column) for column in scores.T])
    search = CutSearch(columns, all_triples(4))
    found = search.search(np.random.default_rng(0))
    least = 0.5 * np.mean(rank_one_completion(search.moments(search.median)[0]) ** 2)
    violations = []
    for chosen in np.array(np.meshgrid(*search._allowed())).reshape(4, -1).T:
        covariance, third = search.moments(chosen)
        v = rank_one_completion(covariance)
        if (v > 0).sum() > 2 and np.mean(v**2) >= least:
            violations.append(float(tci_violation(covariance, third, search.triples, v)))
    assert len(violations) > 20
    assert found.violation <= np.quantile(violations, 0.05)


def test_trap_guards_hold_the_search_off_trivial_cuts():
    judged = planted_blocks(900, 5, 1)
    columns = np.column_stack([RankMap(column)(column) for column in judged.scores.T])
    search = CutSearch(columns, all_triples(11))
    found = search.search(np.random.default_rng(0))
    votes = cast_votes(columns, search.values(found.chosen))
    rates = (votes > 0).mean(axis=0)
    assert rates.min() >= 0.15 - 1e-9 and rates.max() <= 0.85 + 1e-9
    v, reference = (rank_one_completion(search.moments(c)[0]) for c in (found.chosen, search.median))
    assert (v > 0).sum() > 5.5
    assert np.mean(v**2) >= 0.5 * np.mean(reference**2) - 1e-9
    assert found.violation < search.at_median().violation


def test_trap_guard_follows_the_columns_own_rate():
    """Shares that are mostly 0 may be cut above one half only if that leaves three tenths of the usual rate."""
    rng = np.random.default_rng(0)
    columns = np.where(rng.random((2000, 4)) < 0.08, rng.random((2000, 4)), 0.0)
    ranks = np.column_stack([RankMap(column)(column) for column in columns.T])
    search = CutSearch(ranks, all_triples(4))
    for options, cuts, column in zip(search._allowed(), search.cuts, ranks.T, strict=True):
        assert (np.array([(column > cuts[k]).mean() for k in options]) >= 0.3 * 0.07).all()


def test_chosen_triples_are_some_of_all():
    every = {tuple(triple) for triple in all_triples(34)}
    chosen = choose_triples(34, np.random.default_rng(0))
    assert len(chosen) == 4096 == len({tuple(triple) for triple in chosen} & every)
    np.testing.assert_array_equal(_triples_at(np.arange(len(every)), 34), all_triples(34))


def test_median_cut_of_votes_is_any_vote():
    assert median_cuts(np.array([[0.0], [0.0], [0.0], [0.25], [1.0]])).tolist() == [0.0]
    assert median_cuts(np.array([[0.0], [1.0], [1.0], [1.0]])).tolist() == [0.0]


# Blocks


@pytest.mark.parametrize("seed", [0, 1])
def test_planted_block_is_found_and_the_ranking_recovered(seed):
    judged = planted_blocks(20_000, 5, seed)
    est = fitted(judged.scores)
    assert est.blocks_ == [[0, 1, 2, 3, 4], *[[j] for j in range(5, 11)]]
    ours = roc_auc_score(judged.labels, est.score_samples(judged.scores))
    ceiling = LogisticRegression().fit(judged.scores, judged.labels).decision_function(judged.scores)
    assert ours > roc_auc_score(judged.labels, ceiling) - 0.005
    assert ours > roc_auc_score(judged.labels, JaffeSpectral().fit(judged.scores).score_samples(judged.scores)) + 0.1
    assert abs(est.base_rate_ - 0.3) < 0.05


def test_independent_verifiers_are_not_merged():
    scores, labels = draw_scores(20_000)
    est = fitted(scores)
    assert [len(block) for block in est.blocks_] == [1] * 5
    assert est.identifiable_ and est.doubts_ == []
    off = est.error_correlation_[~np.eye(5, dtype=bool)]
    assert np.abs(off).max() < 0.05
    assert abs(est.base_rate_ - labels.mean()) < 0.03


def test_trap_error_correlation_shows_who_copies_whom():
    judged = planted_blocks(5000, 2, 0)
    correlation = fitted(judged.scores, merge_blocks=False).error_correlation_
    np.fill_diagonal(correlation, -1)
    assert np.unravel_index(correlation.argmax(), correlation.shape) in ((0, 1), (1, 0))
    assert correlation[0, 1] > 0.3


def test_trap_a_taste_that_most_share_is_taken_for_the_truth_and_doubted():
    """Nine of eleven verifiers follow a style: the estimate follows it too, but not at every set of cuts alike."""
    judged = planted_blocks(8000, 9, 0)
    est = fitted(judged.scores)
    blind = roc_auc_score(judged.labels, judged.scores[:, 9:].mean(axis=1))
    assert roc_auc_score(judged.labels, est.score_samples(judged.scores)) < blind
    assert not est.identifiable_ and "base rate" in est.doubts_[0]


def test_dependence_is_measured_against_the_fit_that_pairs_contradict_least():
    judged = planted_blocks(20_000, 5, 2)
    votes = cast_votes(judged.scores, median_cuts(judged.scores))
    sums = batch_sums(votes, deal_batches(None, np.arange(20_000), np.random.default_rng(0)), all_triples(11))
    found = dependence(sums.moments(), sums.moments(resample_weights(MAX_BATCHES, 100, np.random.default_rng(0))))
    assert found.blocks[0] == [0, 1, 2, 3, 4]
    assert np.median(found.correlation[:5, :5][np.triu_indices(5, 1)]) > 0.3


# Step 3: combination


def test_oracle_moment_combiner_is_logistic_regression_when_the_label_moments_are_true():
    scores, labels = draw_scores(800)
    z = (scores - scores.mean(axis=0)) / scores.std(axis=0)
    y = 2.0 * labels - 1
    intercept, beta = fit_moment(z, (y[:, None] * z).mean(axis=0), float(y.mean()))
    model = LogisticRegression(C=1 / (len(z) * RIDGE), tol=1e-10, max_iter=10_000).fit(z, labels)
    np.testing.assert_allclose(beta, model.coef_[0], atol=1e-4)
    assert intercept == pytest.approx(model.intercept_[0], abs=1e-4)


def test_oracle_label_moments_follow_from_other_verifiers():
    scores, labels = draw_scores(100_000)
    z = (scores - scores.mean(axis=0)) / scores.std(axis=0)
    y = 2.0 * labels - 1
    votes = cast_votes(scores, median_cuts(scores))
    v = rank_one_completion(vote_moments(votes).covariance)
    np.testing.assert_allclose(
        truth_moments(z, votes, v, float(y.mean())), (y[:, None] * z).mean(axis=0), atol=0.01
    )


@pytest.mark.parametrize("combiner", ["moment", "pseudo", "spectral"])
def test_combiners_rank_better_than_the_best_verifier(combiner):
    scores, labels = draw_scores(4000)
    est = fitted(scores, combiner=combiner)
    best = max(roc_auc_score(labels, column) for column in scores.T)
    assert roc_auc_score(labels, est.score_samples(scores)) > best
    probability = est.predict_proba(scores)
    np.testing.assert_allclose(probability.sum(axis=1), 1)
    assert ((probability[:, 1] > 0.5) == est.predict(scores)).all()


# Invariances


def _selection(scores, groups, **parameters):
    return fitted(scores, groups, **parameters).select(scores, groups)


@pytest.mark.parametrize("combiner", ["moment", "pseudo", "spectral"])
def test_oracle_increasing_transforms_change_nothing(combiner):
    scores, _ = draw_scores(900)
    groups = np.repeat(np.arange(180), 5)
    warped = np.column_stack(
        [np.exp(scores[:, 0]), 5 * scores[:, 1] - 3, scores[:, 2] ** 3, np.arctan(scores[:, 3]), scores[:, 4]]
    )
    first, second = fitted(scores, groups, combiner=combiner), fitted(warped, groups, combiner=combiner)
    np.testing.assert_array_equal(first.score_samples(scores), second.score_samples(warped))
    np.testing.assert_array_equal(first.select(scores, groups), second.select(warped, groups))


def test_oracle_order_of_rows_and_verifiers_changes_nothing():
    scores, _ = draw_scores(900, shift=(2.0, 1.6, 1.4, 1.2, 1.0, 0.8))
    groups = np.repeat(np.arange(180), 5)
    order, columns = np.random.default_rng(5).permutation(900), np.array([3, 0, 5, 1, 4, 2])
    plain = _selection(scores, groups)
    rows = fitted(scores[order], groups[order]).score_samples(scores)
    np.testing.assert_allclose(rows, fitted(scores, groups).score_samples(scores), atol=1e-8)
    np.testing.assert_array_equal(select_per_query(rows, groups), plain)
    np.testing.assert_array_equal(_selection(scores[:, columns], groups), plain)
    without = fitted(scores).score_samples(scores)
    np.testing.assert_allclose(fitted(scores[order]).score_samples(scores), without, atol=1e-9)


def test_oracle_negated_verifier_is_used_the_right_way_round():
    scores, labels = draw_scores(4000)
    turned = scores.copy()
    turned[:, 1] *= -1
    est = fitted(turned)
    assert est.weights_[1] < 0 and (np.delete(est.weights_, 1) > 0).all()
    assert est.sensitivity_[1] + est.specificity_[1] < 1
    plain = fitted(scores)
    aucs = [roc_auc_score(labels, e.score_samples(s)) for e, s in ((est, turned), (plain, scores))]
    assert abs(aucs[0] - aucs[1]) < 0.01


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_oracle_exact_copy_is_merged_and_changes_no_ranking(sign):
    scores, _ = draw_scores(1200)
    copied = np.column_stack([scores, np.exp(scores[:, 2]) if sign > 0 else -scores[:, 2]])
    plain, merged = fitted(scores), fitted(copied)
    assert [2, 5] in merged.blocks_
    np.testing.assert_allclose(merged.score_samples(copied), plain.score_samples(scores), atol=1e-9)


def test_oracle_constant_column_is_dropped():
    scores, _ = draw_scores(600)
    with pytest.warns(UserWarning, match="constant: 1"):
        est = fitted(np.insert(scores, 1, 7.0, axis=1))
    assert est.weights_[1] == 0 and np.isnan(est.sensitivity_[1])
    np.testing.assert_array_equal(np.delete(est.weights_, 1), fitted(scores).weights_)


def test_oracle_perfect_verifier_among_near_random_ones_gets_all_weight():
    psi, eta = np.array([1.0, 0.52, 0.51]), np.array([1.0, 0.5, 0.52])
    mean, covariance, third, triples = population(-0.3, psi, eta)
    loading = rank_one_completion(covariance, n_sweeps=20_000)
    found = invert_moments(mean, loading, float(skewness_ratio(third, triples, loading)))
    weights = np.log(found.sensitivity / (1 - found.specificity)) + np.log(found.specificity / (1 - found.sensitivity))
    assert weights[0] / weights.sum() > 0.98


def test_random_verifiers_beside_a_perfect_one_are_not_identifiable():
    rng = np.random.default_rng(0)
    right = rng.random(3000) < 0.4
    est = fitted(np.column_stack([right.astype(float), rng.random(3000), rng.random(3000)]))
    assert not est.identifiable_
    assert any("agree with two others" in doubt for doubt in est.doubts_)


# Queries


def test_ties_count_one_in_n_and_the_first_is_taken():
    assert best_of_n_hits([0.5, 0.5, 0.5, 0.5], [0, 1, 0, 0], [0, 0, 0, 0]).tolist() == [0.25]
    assert select_per_query([0.5, 0.5], ["q", "q"]).tolist() == [0]


def test_query_conditional_ignores_the_level_of_a_query():
    scores, labels = draw_scores(3000)
    groups = np.repeat(np.arange(600), 5)
    shifted = scores + np.random.default_rng(0).normal(scale=20, size=(600, 5))[groups]
    est = fitted(shifted, groups, query_conditional=True)
    again = fitted(scores, groups, query_conditional=True)
    np.testing.assert_array_equal(est.select(shifted, groups), again.select(scores, groups))
    pooled = fitted(shifted, groups)
    hits = [best_of_n_hits(e.score_samples(shifted, groups), labels, groups).mean() for e in (est, pooled)]
    assert hits[0] > hits[1]


def test_query_conditional_keeps_queries_of_one_item():
    scores, _ = draw_scores(603)
    groups = np.r_[np.repeat(np.arange(200), 3), 900, 901, 902]
    est = fitted(scores, groups, query_conditional=True)
    chosen = est.select(scores, groups)
    assert chosen[-3:].tolist() == [600, 601, 602]
    fused = est.score_samples(scores, groups)
    assert np.isfinite(fused).all() and len(set(fused[-3:].round(9))) == 1


def test_query_base_rates_are_shrunk_to_the_pooled_one():
    from assay.inference.fuse.estimator import PRIOR_ITEMS, _query_shift

    fused = np.array([3.0] * 40 + [-3.0] * 40 + [3.0])
    codes = np.array([0] * 40 + [1] * 40 + [2])
    shift = _query_shift(fused, codes, 0.5)
    assert shift[0] > shift[80] > 0 > shift[40]
    rate = 1 / (1 + np.exp(-shift[0]))
    expected = (PRIOR_ITEMS * 0.5 + 40 / (1 + np.exp(-(3.0 + shift[0])))) / (PRIOR_ITEMS + 40)
    assert rate == pytest.approx(expected, abs=1e-6)


def test_ranks_within_a_query_are_scipys():
    from scipy.stats import rankdata

    rng = np.random.default_rng(0)
    scores = rng.integers(0, 4, (80, 2)).astype(float)
    groups = rng.integers(0, 9, 80)
    found = ranks_within(scores, groups)
    for query in range(9):
        rows = groups == query
        np.testing.assert_allclose(found[rows], (rankdata(scores[rows], axis=0) - 0.5) / rows.sum())


# Missing, infinite and bad input


def test_trap_missing_and_infinite_scores():
    scores, labels = draw_scores(4000)
    holes = scores.copy()
    holes[np.random.default_rng(0).random(scores.shape) < 0.1] = np.nan
    holes[0, 0], holes[1, 1] = np.inf, -np.inf
    est = fitted(holes)
    np.testing.assert_array_equal(est.n_missing_, np.isnan(holes).sum(axis=0))
    fused = est.score_samples(holes)
    assert np.isfinite(fused).all()
    assert roc_auc_score(labels, fused) > roc_auc_score(labels, fitted(scores).score_samples(scores)) - 0.03
    assert abs(est.base_rate_ - labels.mean()) < 0.06


def test_trap_labels_are_ignored_with_a_warning():
    scores, labels = draw_scores(400)
    with pytest.warns(UserWarning, match="labels are ignored"):
        est = FUSE(random_state=0).fit(scores, labels)
    np.testing.assert_array_equal(est.score_samples(scores), fitted(scores).score_samples(scores))


def test_few_items_warn_and_have_wide_intervals():
    scores, _ = draw_scores(40)
    with pytest.warns(UserWarning, match="40 items are few"):
        few = FUSE(random_state=0).fit(scores)
    many = fitted(draw_scores(4000)[0])
    assert np.ptp(few.base_rate_interval_) > 3 * np.ptp(many.base_rate_interval_)


def test_intervals_contain_the_truth_about_as_often_as_they_say():
    inside = []
    for seed in range(12):
        votes, right = draw_votes(1500, seed, balance=-0.5)
        est = fitted(votes, transformation="none", merge_blocks=False, combiner="spectral")
        truth = (votes[right] > 0).mean(axis=0)
        inside += list((est.sensitivity_interval_[:, 0] <= truth) & (truth <= est.sensitivity_interval_[:, 1]))
    assert np.mean(inside) > 0.8


BAD = {
    "three verifiers needed": lambda s: s[:, :2],
    "holds no score at all": lambda s: np.column_stack([s[:, :3], np.full(len(s), np.nan)]),
    "all scores of every verifier are equal": lambda s: np.ones_like(s),
    "only 2 of n_features=4 vary": lambda s: np.column_stack([s[:, :2], np.ones((len(s), 2))]),
    "are copies": lambda s: s[:, [0, 0, 1]],
    "items in common": lambda s: np.column_stack(
        [np.r_[s[:300, 0], np.full(len(s) - 300, np.nan)], np.r_[np.full(298, np.nan), s[298:, 1]], s[:, 2]]
    ),
    "could not convert": lambda s: s.astype(str).astype(object).tolist()[:-1] + [["a", "b", "c", "d", "e"]],
}


@pytest.mark.parametrize("message", BAD)
def test_bad_scores_are_refused(message):
    scores, _ = draw_scores(600)
    before = scores.copy()
    with pytest.raises(InputError, match=message):
        fitted(BAD[message](scores))
    np.testing.assert_array_equal(scores, before)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"transformation": "mean"}, "transformation must be one of"),
        ({"combiner": "vote"}, "combiner must be one of"),
        ({"n_bootstrap": -3}, "n_bootstrap must be a whole number"),
        ({"n_bootstrap": 3}, "needs n_bootstrap of at least"),
        ({"query_conditional": True}, "needs groups"),
        ({"transformation": "none"}, "needs votes of two values"),
        ({"random_state": -1}, "random_state: Seed must be"),
    ],
)
def test_bad_parameters_are_refused(parameters, message):
    with pytest.raises(InputError, match=message):
        FUSE(**parameters).fit(draw_scores(300)[0])


def test_bad_groups_are_refused():
    scores, _ = draw_scores(300)
    with pytest.raises(InputError, match="one query for each of the 300 items"):
        fitted(scores, np.arange(299))
    with pytest.raises(InputError, match="NaN in row 7"):
        fitted(scores, np.where(np.arange(300) == 7, np.nan, 1.0))
    with pytest.raises(InputError, match="NaT in row 2"):
        select_per_query([1.0, 2.0, 3.0], np.array(["2026-01-01", "2026-01-02", "NaT"], dtype="datetime64[D]"))
    with pytest.raises(InputError, match="never differs inside a query"):
        fitted(scores, np.arange(300), query_conditional=True)
    with pytest.raises(InputError, match="3 features"):
        fitted(scores).score_samples(scores[:, :3])


def test_estimates_on_the_boundary_are_not_identifiable():
    """The first verifier repeats one of the two others, which hardly agree: no accuracy below 1 explains that."""
    rng = np.random.default_rng(0)
    right = rng.random(3000) < 0.5
    weak = [np.where(rng.random(3000) < 0.6, right, ~right) for _ in range(2)]
    votes = np.column_stack([np.where(rng.random(3000) < 0.5, *weak), *weak]).astype(float)
    est = fitted(votes, transformation="none", merge_blocks=False)
    assert not est.identifiable_
    assert any("columns 0 came" in doubt and "beyond 0 or 1" in doubt for doubt in est.doubts_)
    plain = JaffeSpectral().fit(votes)
    assert not plain.identifiable_
    assert max(plain.sensitivity_.max(), plain.specificity_.max()) <= 1 - FLOOR + 1e-12


def test_many_verifiers():
    rng = np.random.default_rng(0)
    right = rng.random(600) < 0.4
    scores = rng.normal(size=(600, 36)) + right[:, None] * rng.uniform(0.4, 1.2, 36)
    assert roc_auc_score(right, fitted(scores, transformation="median").score_samples(scores)) > 0.97
    wide = np.repeat(scores, 6, axis=1)
    assert roc_auc_score(right, JaffeSpectral().fit(wide).score_samples(wide)) > 0.95
    with pytest.raises(InputError, match="at most 200 verifiers"):
        fitted(wide)


def test_few_queries_and_huge_values():
    scores, _ = draw_scores(400)
    est = fitted(scores, np.repeat([0, 1, 2], [100, 100, 200]))
    assert not est.identifiable_ and any("3 independent queries" in doubt for doubt in est.doubts_)
    huge = scores.copy()
    huge[:5] = 1e308
    huge[5:9] = -1e308
    assert np.isfinite(fitted(huge).score_samples(huge)).all()


def test_nothing_handed_in_is_changed_and_float32_is_accepted():
    scores, _ = draw_scores(500)
    narrow = scores.astype(np.float32)
    before = narrow.copy()
    fused = fitted(narrow).score_samples(narrow)
    np.testing.assert_array_equal(narrow, before)
    np.testing.assert_array_equal(fused, fitted(narrow.astype(float)).score_samples(narrow.astype(float)))


# Command


@pytest.fixture
def table(tmp_path):
    scores, labels = draw_scores(300)
    frame = pd.DataFrame(scores, columns=["judge_a", "judge_b", "judge_c", "judge_d", "judge_e"])
    frame.insert(0, "query_id", np.repeat(np.arange(60), 5))
    frame["correct"], frame["n_chars"] = labels, np.random.default_rng(0).integers(100, 900, 300)
    path = tmp_path / "scores.csv"
    frame.to_csv(path, index=False)
    return path


def _run(capsys, *words):
    code = main(["run", "fuse", *(str(word) for word in words)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_command_writes_its_tables(table, tmp_path, capsys):
    out = tmp_path / "out"
    code, printed, error = _run(
        capsys, "--data", table, "--query", "query_id", "--label", "correct", "--covariate", "n_chars", "--out", out
    )
    assert code == 0, error
    assert "judge_a" in printed
    fused, verifiers = pd.read_csv(out / "fused.csv"), pd.read_csv(out / "verifiers.csv")
    assert len(fused) == 300 and list(fused.columns) == ["row", "query", "score", "probability"]
    assert verifiers["verifier"].tolist() == ["judge_a", "judge_b", "judge_c", "judge_d", "judge_e", "(fused)"]
    assert verifiers["covariate_correlation"].abs().max() < 0.3
    selection = pd.read_csv(out / "selection.csv")
    best = fused.loc[fused.groupby("query")["score"].idxmax(), "row"]
    assert selection["row"].tolist() == best.tolist()
    comparison = pd.read_csv(out / "comparison.csv").set_index("arm")
    assert comparison.loc["fuse", "auc"] > comparison.loc["judge_e", "auc"]


@pytest.mark.parametrize("cells", [("",), ("inf",), ("-inf",), ("",) * 5, ("inf", "-inf", "")])
def test_command_compares_scores_with_gaps_and_infinities(table, tmp_path, capsys, cells):
    frame = pd.read_csv(table, dtype=str)
    frame.loc[3, [f"judge_{name}" for name in "abcde"[: len(cells)]]] = list(cells)
    frame.rename(columns={"judge_b": "[/judge]"}).assign(n_chars=5).to_csv(table, index=False)
    given = ("--data", table, "--query", "query_id", "--label", "correct", "--covariate", "n_chars")
    code, printed, error = _run(capsys, *given, "--out", tmp_path / "out")
    assert code == 0 and not error, error
    assert "[/judge]" in printed
    comparison = pd.read_csv(tmp_path / "out" / "comparison.csv").set_index("arm")
    assert comparison.loc[["fuse", "mean-z", "mean-rank", "vote", "jaffe"], "auc"].between(0.7, 1).all()


def test_command_never_fits_on_labels(table, tmp_path, capsys):
    given = ("--data", table, "--query", "query_id", "--verifiers", "judge_a,judge_b,judge_c,judge_d,judge_e")
    for name, label in (("with", ("--label", "correct")), ("without", ())):
        assert _run(capsys, *given, *label, "--out", tmp_path / name)[0] == 0
    assert (tmp_path / "with" / "fused.csv").read_bytes() == (tmp_path / "without" / "fused.csv").read_bytes()


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        (None, ("--query", "querry_id"), "has no column querry_id (did you mean query_id?)"),
        (("judge_b", 4, "bad"), ("--query", "query_id"), "row 5, column judge_b: expected a number, got 'bad'"),
        (("correct", 2, "maybe"), ("--label", "correct"), "row 3, column correct: expected 1 or 0"),
        (("query_id", 8, ""), ("--query", "query_id"), "row 9, column query_id: the query is empty"),
        (None, ("--verifiers", "judge_a,judge_b"), "three verifiers needed"),
        (None, ("--query-conditional",), "--query-conditional needs --query"),
        (None, ("--transformation", "mean"), "transformation must be one of"),
        (None, ("--query", "query_id", "--seed", "-1"), "random_state: Seed must be"),
        (None, ("--label", "correct", "--verifiers", "judge_a,judge_b,correct"), "column correct is named twice"),
    ],
)
def test_command_refuses_with_one_line(table, tmp_path, capsys, change, words, message):
    if change is not None:
        frame = pd.read_csv(table, dtype=str)
        frame.loc[change[1], change[0]] = change[2]
        frame.to_csv(table, index=False)
    code, _, error = _run(capsys, "--data", table, *words, "--out", tmp_path / "out")
    assert code == 2
    assert message in error and len(error.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_command_refuses_files_that_are_no_tables(tmp_path, capsys):
    for name, content, message in (
        ("empty.csv", b"", "is empty"), ("header.csv", b"a,b,c\n", "no rows"),
        ("latin.csv", b"a,b\n\xff\xfe,1\n", "not UTF-8"), ("missing.csv", None, "is not a file"),
    ):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        code, _, error = _run(capsys, "--data", path, "--out", tmp_path / "out")
        assert code == 2 and message in error


# The study


def test_check_refuses_a_file_that_it_cannot_use(table, capsys):
    frame = pd.read_csv(table, dtype=str)
    for column, value, message in (("judge_a", "high", "row 1, column judge_a"), ("correct", "1", "one value only")):
        frame.assign(**{column: value}).to_csv(table, index=False)
        assert main(["check", "fuse", "--data", str(table)]) == 2
        error = capsys.readouterr().err
        assert message in error and len(error.strip().splitlines()) == 1

def test_auc_difference_is_scikit_learns():
    scores, labels = draw_scores(600)
    groups = np.repeat(np.arange(120), 5)
    coarse = from_scores(scores.round(0), labels, groups)
    rows = [_row(coarse, coarse.scores[:, j]) for j in (0, 4)]
    gap = auc_difference(*rows)
    expected = roc_auc_score(labels, coarse.scores[:, 0]) - roc_auc_score(labels, coarse.scores[:, 4])
    assert gap.estimate == pytest.approx(expected, abs=1e-12)
    assert gap.low < expected < gap.high and gap.n == 120
    hits = hits_difference(*rows)
    plain = [best_of_n_hits(coarse.scores[:, j], labels, groups).mean() for j in (0, 4)]
    assert hits.estimate == pytest.approx(plain[0] - plain[1], abs=1e-12)


def _row(judged, scores):
    units = pd.DataFrame({"query": judged.groups, "label": judged.labels, "score": scores, "used": True})
    return Row(Cell("file", "x", data=()), "measured", {}, units)


def _transformation_verdict(blocks, plain):
    """C2 where FUSE ranks well and Jaffe's estimator badly; `plain` is the noise of FUSE without transformation."""
    claims = get("fuse").claims
    rng, groups = np.random.default_rng(0), np.repeat(np.arange(200), 5)
    labels = (rng.random(1000) < 0.4).astype(int)
    judged = from_scores(np.zeros((1000, 3)), labels, groups)
    told = {"violation": 0.1, "violation_median": 0.3, "violation_held_out": 0.1, "violation_median_held_out": 0.3,
            "blocks": float(blocks), "blocks_held_out": 5.0}
    rows = []
    for name in ("digits-pool", "breast-cancer-pool"):
        for arm, noise in (("fuse", 0.5), ("jaffe", 2.0), ("fuse-untransformed", plain)):
            units = _row(judged, labels + noise * rng.normal(size=1000)).units
            rows.append(Row(Cell(name, arm, data=()), "measured", told if arm == "fuse" else {}, units))
    return Judge({"C2": claims["C2"]})(Results(rows))[0].outcome.value


def test_transformation_must_gain_by_itself():
    assert _transformation_verdict(blocks=5, plain=1.0) == "holds"
    assert _transformation_verdict(blocks=5, plain=0.3) == "fails"
    assert _transformation_verdict(blocks=3, plain=1.0) == "untested"


def test_a_home_set_that_is_not_there_is_missed():
    claims = get("fuse").claims
    rng, labels = np.random.default_rng(0), np.tile([0, 1, 0], 100)
    judged = from_scores(np.zeros((300, 3)), labels, np.arange(300) // 3)
    rows = [
        Row(Cell(name, arm, data=()), "measured", {}, _row(judged, labels + noise * rng.normal(size=300)).units)
        for name in ("digits-pool", "breast-cancer-pool") for arm, noise in (("fuse", 0.5), ("mean-z", 2.0))
    ]
    assert Judge({"C3": claims["C3"]})(Results(rows))[0].outcome.value == "holds"
    rows += [Row(Cell("champ", arm, data=()), "skipped", {}, reason="no network") for arm in ("fuse", "mean-z")]
    assert Judge({"C3": claims["C3"]})(Results(rows))[0].outcome.value == "untested"


def test_label_free_arms_do_not_look_at_labels():
    scores, labels = draw_scores(400)
    groups = np.repeat(np.arange(80), 5)
    for arm in ("mean-z", "mean-rank", "vote", "jaffe"):
        given = [from_scores(scores, lab, groups) for lab in (labels, 1 - labels)]
        first, second = (ARMS[arm](judged, 0, {})[0] for judged in given)
        np.testing.assert_array_equal(first, second)
    first, second = (fuse_of("fuse", judged, 0)[1] for judged in given)
    np.testing.assert_array_equal(first, second)


def test_shuffled_scores_know_nothing():
    pool = breast_cancer_pool()
    judged = from_scores(pool.scores, pool.labels, pool.groups)
    assert abs(measure_arm(Cell("file", "shuffled", data=()), judged).metrics["auc"] - 0.5) < 0.08
    assert measure_arm(Cell("file", "fuse", data=()), judged).metrics["auc"] > 0.98


def test_pools_are_cross_fitted_and_disjoint():
    pool = digits_pool()
    assert pool.scores.shape == (17970, 8) and pool.labels.sum() == 1797
    assert np.allclose(pool.scores.reshape(1797, 10, 8).sum(axis=1), 1)
    assert len(set(pool.names)) == 8
    alone = [roc_auc_score(pool.labels, column) for column in pool.scores.T]
    assert min(alone) > 0.75 and max(alone) < 0.95


# champ-dataset and JudgeBench


def test_answers_are_read_as_the_sixty_frozen_sentences_say():
    """Sixty sentences of champ-dataset (MIT, licence beside the file), each with what it states, read by eye."""
    cases = json.loads(SENTENCES.read_text(encoding="utf-8"))
    assert len(cases) == 60
    wrong = [case for case in cases if read_answer(case["sentence"], case["problem"]) != case["reading"]]
    assert not wrong


@pytest.mark.parametrize(
    ("sentence", "reading"),
    [
        ("The answer is $\\boxed{-12}$, or is it 7.", "-12"), ("It is $\\boxed{x+1}$ which is 5.", None),
        ("$3^{5} \\equiv 2 \\pmod{11}$.", "2"), ("The remainder is 4 mod 7.", "4"),
        ("There are 2,001,000 terms.", "2001000"), ("The minimum is \\(-\\frac{3}{6}\\), achieved when a = 1.", "-1/2"),
        ("There are no such integers.", "0"), ("It has exactly three roots.", "3"),
        ("The number is $\\frac{6!}{(3!)^2} = 120$.", "120"), ("The value is $2\\sqrt{3}$.", None),
        ("It cannot be determined.", None), ("The sum is 3.5.", None),
    ],
)
def test_answer_rules(sentence, reading):
    assert read_answer(sentence, "What is it?") == reading


def test_oracle_champ_facts():
    champ = data("champ")
    assert champ.n_queries == 79 and champ.labels.sum() == 76
    assert abs(len(champ.labels) - 1177) <= 12
    assert champ.votes.shape[1] == 68 and champ.scores.shape[1] == 12
    assert np.isnan(champ.votes).mean() < 0.15
    models = [champ.features[:, j] for j in range(4)]
    accuracy = [np.bincount(champ.groups, m * champ.labels).mean() for m in models]
    np.testing.assert_allclose(accuracy, [0.27, 0.47, 0.57, 0.16], atol=0.02)


def test_oracle_champ_reference_rows():
    champ = data("champ")
    votes = np.nan_to_num(champ.votes)
    est = JaffeSpectral().fit(votes)
    arms = {  # best-of-N is counted in steps of 1/79; the trained row depends on its folds
        "vote": (votes.mean(axis=1), 0.690, 0.953), "turbo": (champ.features[:, 2], 0.732, 0.948),
        "jaffe": (est.score_samples(votes), 0.722, 0.969), "mean-z": (ARMS["mean-z"](champ, 0, {})[0], 0.684, 0.954),
        "supervised": (ARMS["supervised"](champ, 0, {})[0], 0.759, 0.976),
    }
    for name, (scores, hits, auc) in arms.items():
        within = 0.03 if name == "supervised" else 0.015
        assert best_of_n_hits(scores, champ.labels, champ.groups).mean() == pytest.approx(hits, abs=within), name
        assert roc_auc_score(champ.labels, scores) == pytest.approx(auc, abs=0.008), name
    assert 2 * est.base_rate_ - 1 == pytest.approx(-0.901, abs=0.01)
    truth = votes[champ.labels == 1].mean(axis=0)
    assert np.abs(est.sensitivity_ - truth).mean() == pytest.approx(0.17, abs=0.02)


def test_trap_shared_errors_on_champ_are_not_identifiable():
    champ = data("champ")
    est = fitted(np.nan_to_num(champ.votes), champ.groups, transformation="none", merge_blocks=False)
    assert not est.identifiable_ and any("share errors" in doubt for doubt in est.doubts_)


def test_oracle_jaffe_on_judgebench():
    judges = data("judgebench")
    rows = {
        "jaffe": (ARMS["jaffe"](judges, 0, {})[0], 0.666, 0.716, 0.003),
        "mean-z": (ARMS["mean-z"](judges, 0, {})[0], 0.714, 0.754, 0.003),
        "mean-rank": (ARMS["mean-rank"](judges, 0, {})[0], 0.709, 0.764, 0.003),
        "o1-mini": (judges.scores[:, 5], 0.835, 0.768, 0.003),
        "supervised": (ARMS["supervised"](judges, 0, {})[0], 0.837, 0.775, 0.01),
    }
    for name, (scores, auc, hits, within) in rows.items():
        assert roc_auc_score(judges.labels, scores) == pytest.approx(auc, abs=within), name
        assert best_of_n_hits(scores, judges.labels, judges.groups).mean() == pytest.approx(hits, abs=within), name


def test_oracle_dawid_skene_on_judgebench():
    pytest.importorskip("crowdkit")
    judges = data("judgebench")
    scores = ARMS["dawid-skene"](judges, 0, {})[0]
    assert roc_auc_score(judges.labels, scores) == pytest.approx(0.664, abs=0.005)
    assert best_of_n_hits(scores, judges.labels, judges.groups).mean() == pytest.approx(0.716, abs=0.005)


def test_judgebench_is_doubted():
    judges = data("judgebench")
    est = fitted(judges.scores, judges.groups)
    assert any("base rate" in doubt or "share errors" in doubt for doubt in est.doubts_)


def test_bbh_has_its_seventeen_tasks():
    bbh = data("bbh")
    assert bbh.domains.max() + 1 == 17 and bbh.scores.shape[1] == 5
    assert (np.bincount(bbh.groups, bbh.labels) == 1).all()
    size = np.bincount(bbh.groups)
    assert size.min() == 2 and size.max() <= 19


def test_smoke_slice_is_part_of_champ():
    smoke = load_dataset("champ-smoke")
    shares, names = champ_groups(smoke["votes"], smoke["systems"])
    assert len(set(smoke["problem"])) == 30 and shares.shape[1] == len(names) == 12
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert roc_auc_score(smoke["labels"], fitted(shares).score_samples(shares)) > 0.9
