"""Item response scaling laws: likelihoods, calibration, adaptive tests, laws, traps, bad input, study, command."""

import json
import math
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import integrate, stats
from scipy.optimize import approx_fprime, brentq
from scipy.special import digamma, expit

from assay import catalogue
from assay.datasets import DataUnavailable, load_dataset
from assay.errors import InputError
from assay.scaling.irsl import (
    AdaptiveTest,
    BetaIRT,
    ItemResponseScalingLaw,
    beta_nll,
    command,
    decision_accuracy,
    judging,
    pass_at_k,
    pass_at_k_unbiased,
    tables,
    two_pl_nll,
)
from assay.scaling.irsl.ability import THETA_LIMIT, Items, estimate, response_of
from assay.scaling.irsl.adaptive import ask_all, opening
from assay.scaling.irsl.estimator import _joint, _Problem
from assay.scaling.irsl.estimators import PLAIN, Calibration, by_ability, link, shuffled
from assay.scaling.irsl.likelihood import bernoulli_information, beta_information, beta_score
from assay.scaling.irsl.study import IRSLStudy
from assay.scaling.irsl.tables import SLICE, load_table
from assay.scaling.irsl.tasks import TASKS, calibrate, explained, variant_of
from assay.study import Cell, Outcome, Results, Row, Tier

# What assay.conformance makes of the method, asserted by tests/test_every_method.py.
CHECKS = {"passed": 111, "excused": 3, "oracles": 18, "oracles_without_data": 18}


def simulated(n=60, items=40, phi=10.0, seed=0, slope=1.0):
    """(responses, abilities, eases) drawn from the model."""
    rng = np.random.default_rng(seed)
    theta, ease = rng.normal(size=n), rng.normal(size=items)
    mu = expit(slope * (theta[:, None] + ease))
    return np.clip(rng.beta(mu * phi, (1 - mu) * phi), 1e-6, 1 - 1e-6), theta, ease


def binary(n=400, items=15, seed=0):
    rng = np.random.default_rng(seed)
    theta, ease = rng.normal(size=n), np.linspace(-1.5, 1.5, items)
    return (rng.random((n, items)) < expit(theta[:, None] + ease)).astype(float), theta, ease


@pytest.fixture(scope="module")
def table():
    return load_table(SLICE)


@pytest.fixture(scope="module")
def numpy_responses(table):
    return table.p[:, table.of("numpy")]


@pytest.fixture(scope="module")
def fitted(numpy_responses):
    return BetaIRT().fit(numpy_responses[:60])


# Likelihoods


def test_oracle_beta_density_of_scipy():
    y, mu = np.array([0.01, 0.3, 0.9]), np.array([0.2, 0.5, 0.7])
    for phi in (0.7, 10.0, 400.0):
        expected = -stats.beta(mu * phi, (1 - mu) * phi).logpdf(y)
        np.testing.assert_allclose(beta_nll(y, mu, phi), expected, rtol=1e-9)


def test_oracle_bernoulli_of_scipy():
    y, p = [0, 1, 1], [0.2, 0.3, 0.9]
    np.testing.assert_allclose(two_pl_nll(y, p), -stats.bernoulli(p).logpmf(y))


def test_oracle_beta_information_reference_values():
    eta = np.log(0.1 / 0.9)
    assert beta_information(np.array(0.0), 10.0) == pytest.approx(2.766536946713942, rel=1e-12)
    assert beta_information(np.array(eta), 10.0) == pytest.approx(1.4275813260, rel=1e-9)
    grid = np.linspace(-6, 6, 241)
    assert grid[np.argmax(beta_information(grid, 10.0))] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("phi", [3.0, 10.0, 80.0])
def test_oracle_information_is_the_variance_of_the_score(phi):
    mu = 0.3
    eta = np.log(mu / (1 - mu))
    density = stats.beta(mu * phi, (1 - mu) * phi)

    def squared(y):
        return float(beta_score(np.array(eta), np.log(y / (1 - y)), phi)) ** 2 * density.pdf(y)

    assert beta_information(np.array(eta), phi) == pytest.approx(integrate.quad(squared, 0, 1)[0], rel=1e-6)


def test_oracle_score_is_the_derivative_of_the_density():
    y, phi = 0.23, 10.0
    for eta in (-2.0, 0.3, 1.7):
        slope = approx_fprime([eta], lambda e: -float(beta_nll(y, expit(e[0]), phi)), 1e-6)[0]
        assert beta_score(np.array(eta), np.log(y / (1 - y)), phi) == pytest.approx(slope, abs=1e-5)


# Calibration


@pytest.mark.parametrize("model", ["1pl", "2pl"])
@pytest.mark.parametrize("likelihood", ["beta", "binary"])
def test_oracle_gradient_against_differences(monkeypatch, model, likelihood):
    Y = simulated(6, 5)[0]
    Y[2, 3] = np.nan
    caught = {}

    def keep(objective, start, **settings):
        caught["objective"], caught["start"] = objective, start
        raise StopIteration

    monkeypatch.setattr("assay.scaling.irsl.estimator.minimize", keep)
    with pytest.raises(StopIteration):
        _joint(_Problem(Y, BetaIRT(model=model, likelihood=likelihood)))
    x = caught["start"] + np.random.default_rng(1).normal(0, 0.2, len(caught["start"]))
    objective, step = caught["objective"], 1e-5
    gradient = objective(x)[1]
    numeric = [(objective(x + step * e)[0] - objective(x - step * e)[0]) / (2 * step) for e in np.eye(len(x))]
    np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-6)


def test_oracle_likelihood_is_that_of_the_density(numpy_responses):
    irt = BetaIRT().fit(numpy_responses[:20])
    expected = beta_nll(numpy_responses[:20], irt.predict_proba(), irt.phi_).sum()
    assert irt.nll_ == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("phi", ["estimate", 10.0])
def test_oracle_recovers_what_drew_the_responses(phi):
    Y, theta, ease = simulated(150, 120, seed=3)
    irt = BetaIRT(phi=phi).fit(Y)
    assert irt.converged_
    assert np.abs((irt.ability_ - irt.ability_.mean()) - (theta - theta.mean())).max() < 0.35
    assert np.corrcoef(irt.ease_, ease)[0, 1] > 0.99
    if phi == "estimate":
        # Joint estimation fits each row and column a little too well: the precision comes out a little high.
        assert irt.phi_ == pytest.approx(10.0, rel=0.05)


def test_oracle_marginal_rasch_agrees_with_girth():
    girth = pytest.importorskip("girth")
    Y = binary()[0]
    irt = BetaIRT(likelihood="binary", method="marginal").fit(Y)
    theirs = girth.rasch_mml(Y.T.astype(int), discrimination=1.0)["Difficulty"]
    np.testing.assert_allclose(-irt.ease_, theirs, atol=0.02)


def test_oracle_random_abilities_is_the_average_over_draws(numpy_responses):
    """The paper's calibration written out: the loss of each item averaged over abilities drawn for each model."""
    Y, phi = numpy_responses[:30, :4], 10.0
    draws = np.random.default_rng(0).normal(size=(4000, 30))
    irt = BetaIRT(phi=phi, method="random-abilities").fit(Y)
    for j in range(4):
        logit = np.log(Y[:, j] / (1 - Y[:, j]))

        def slope(z, logit=logit):
            mu = expit(draws + z)
            return (phi * mu * (1 - mu) * (digamma(phi * mu) - digamma(phi * (1 - mu)) - logit)).mean()

        assert irt.ease_[j] == pytest.approx(brentq(slope, -10, 10), abs=0.02)


def test_oracle_rasch_raw_score_is_sufficient():
    Y = binary(items=12)[0]
    irt = BetaIRT(likelihood="binary").fit(Y)
    rng = np.random.default_rng(0)
    rows = np.array([rng.permutation([1.0] * 5 + [0.0] * 7) for _ in range(10)])
    assert np.ptp(irt.score_ability(rows)[0]) < 1e-8


def test_oracle_shift_of_location_changes_no_likelihood(fitted, numpy_responses):
    Y, theta, ease = numpy_responses[:60], fitted.ability_[:, None], fitted.ease_
    base = beta_nll(Y, expit(theta + ease), fitted.phi_).sum()
    moved = beta_nll(Y, expit((theta + 2) + (ease - 2)), fitted.phi_).sum()
    assert moved == pytest.approx(base, rel=1e-12)


def test_prior_fixes_the_origin(fitted):
    # Along the shift only the prior moves: at its mode the abilities sum to nothing.
    assert abs(fitted.ability_.mean()) < 1e-3


def test_oracle_great_precision_gives_the_ability_back():
    ease, theta = np.linspace(-2, 2, 30), 0.7
    items = Items(ease, np.ones(30), 1e6)
    found, _ = estimate(response_of(expit(theta + ease)[None], items), items)
    assert found[0] == pytest.approx(theta, abs=1e-5)


def test_oracle_standard_errors_cover():
    rng = np.random.default_rng(0)
    ease, theta, phi = rng.normal(size=40), rng.normal(size=3000), 10.0
    mu = expit(theta[:, None] + ease)
    items = Items(ease, np.ones(40), phi)
    found, se = estimate(response_of(rng.beta(mu * phi, (1 - mu) * phi), items), items)
    assert np.mean(np.abs(found - theta) < 1.96 * se) == pytest.approx(0.95, abs=0.02)
    np.testing.assert_allclose(se, 1 / np.sqrt(items.information(found).sum(axis=1)), rtol=1e-6)


def test_nan_is_the_same_as_dropping_the_item(numpy_responses):
    masked = numpy_responses[:20].copy()
    masked[:, 7] = np.nan
    with pytest.warns(UserWarning, match="1 items have no answer"):
        irt = BetaIRT().fit(masked)
    dropped = BetaIRT().fit(np.delete(numpy_responses[:20], 7, axis=1))
    np.testing.assert_allclose(irt.ability_, dropped.ability_, atol=1e-8)
    assert np.isnan(irt.ease_[7])
    theta, _ = irt.score_ability(numpy_responses[20:25])
    np.testing.assert_allclose(theta, dropped.score_ability(np.delete(numpy_responses[20:25], 7, axis=1))[0], atol=1e-6)


def test_groups_are_calibrated_by_themselves(table):
    Y = table.p[:20]
    irt = BetaIRT().fit(Y, table.source)
    assert irt.ability_.shape == (20, 5) and irt.phi_.shape == (5,)
    alone = BetaIRT().fit(Y[:, table.of("numpy")])
    column = irt.groups_.tolist().index("numpy")
    np.testing.assert_allclose(irt.ability_[:, column], alone.ability_, atol=1e-6)
    theta, se = irt.score_ability(Y[:3])
    assert theta.shape == se.shape == (3, 5) and irt.predict_proba(theta).shape == (3, Y.shape[1])
    np.testing.assert_allclose(
        irt.information(theta)[:, table.of("numpy")], alone.information(theta[:, column]), rtol=1e-5
    )


# Traps


def test_two_parameter_convention_and_information():
    """mu = sigmoid(slope (theta + ease)) everywhere, and the information about theta has the slope squared."""
    Y, theta, _ = simulated(200, 30, phi=60.0, seed=5, slope=1.6)
    irt = BetaIRT(model="2pl").fit(Y)
    np.testing.assert_allclose(irt.predict_proba(), expit(irt.slope_ * (irt.ability_[:, None] + irt.ease_)))
    about_eta = beta_information(irt.slope_ * (0.3 + irt.ease_), irt.phi_)
    np.testing.assert_allclose(irt.information([0.3])[0], irt.slope_**2 * about_eta)
    found, _ = irt.score_ability(Y)
    assert np.corrcoef(found, theta)[0, 1] > 0.99
    easier = BetaIRT(phi=10.0).fit(np.array([[0.2, 0.8], [0.3, 0.9], [0.25, 0.85]])).ease_
    assert easier[1] > easier[0]


def test_bernoulli_information_at_even_odds():
    assert bernoulli_information(np.array(0.0)) == 0.25


def test_random_abilities_sees_item_means_alone(numpy_responses):
    Y = numpy_responses[:40]
    irt = BetaIRT(phi=10.0, method="random-abilities").fit(Y)
    # Other takers with the same mean logit: the same ease.
    again = BetaIRT(phi=10.0, method="random-abilities").fit(Y[::-1])
    np.testing.assert_allclose(irt.ease_, again.ease_, atol=1e-8)
    by_mean = np.argsort(np.log(Y / (1 - Y)).mean(axis=0))
    assert (np.diff(irt.ease_[by_mean]) >= 0).all()


def test_a_fixed_precision_misses_the_mean_and_an_estimated_one_does_not(numpy_responses):
    Y, truth = numpy_responses, numpy_responses.mean()
    fixed, free = (abs(BetaIRT(phi=phi).fit(Y).predict_proba().mean() - truth) for phi in (10.0, "estimate"))
    assert free < 0.1 * fixed and free < 0.02 * truth


def test_raw_token_probabilities_at_the_authors_precision():
    try:
        losses = load_dataset("gemstones-items")
    except DataUnavailable as error:
        pytest.skip(f"data absent: {error}")
    p = np.exp(-losses["loss"].astype(float))[::4, losses["bench"] == "arcc"]
    assert p.mean() == pytest.approx(0.030, abs=0.004)
    assert BetaIRT(phi=10.0).fit(p).predict_proba().mean() > 1.5 * p.mean()


def test_long_tests_are_too_sharp_for_41_nodes(numpy_responses):
    with pytest.warns(UserWarning, match="method='map'"):
        irt = BetaIRT(method="marginal", max_iter=30).fit(numpy_responses[:40])
    assert irt.phi_ > 1


def test_no_model_calibrates_and_is_tested():
    table = load_table(SLICE)
    for split, fold in enumerate(table.folds):
        calibrating = table.calibrating(split)
        assert not set(table.model[calibrating]) & set(table.model[~calibrating])
        assert set(table.curve[calibrating]) == set(fold) and len(fold) == 2
    assert len(set(table.folds)) == 15
    assert sorted(name for fold in table.folds[:3] for name in fold) == sorted(set(table.curve.tolist()))


def test_mean_response_is_not_the_response_at_the_mean():
    law = ItemResponseScalingLaw().fit([1e18, 1e20], [0.0, 1.0])
    spread = np.array([-4.0, 4.0, 0.0, 3.0])
    assert law.predict_score([1e18], spread)[0] == pytest.approx(expit(spread).mean())
    assert abs(law.predict_score([1e18], spread)[0] - expit(spread.mean())) > 0.03


def test_extreme_scores_have_no_standard_error():
    irt = BetaIRT(likelihood="binary").fit(binary(items=10)[0])
    theta, se = irt.score_ability(np.array([np.ones(10), np.zeros(10)]))
    assert theta.tolist() == [THETA_LIMIT, -THETA_LIMIT] and np.isinf(se).all()


# Adaptive testing


def test_one_at_a_time_and_all_at_once_agree(fitted, numpy_responses):
    theta, asked = ask_all(numpy_responses[60:66], fitted.items(), 15)
    for row in range(6):
        test = AdaptiveTest(fitted, budget=15)
        assert test.run(numpy_responses[60 + row]) == pytest.approx(theta[row], abs=1e-6)
        assert test.asked_ == asked[row].tolist() and np.isfinite(test.se_)


def test_opening_spans_the_middle_of_the_eases(fitted):
    items = fitted.items()
    chosen = opening(items, 30)
    assert len(chosen) == len(set(chosen)) == 6
    low, high = np.quantile(items.ease, [0.1, 0.9])
    nearest = np.abs(items.ease - low).min()
    assert abs(items.ease[chosen[0]] - low) == nearest and abs(items.ease[chosen[-1]] - high) < 0.5
    assert len(opening(items, 30, 0.0)) == 0


def test_next_question_is_nearest_to_minus_the_ability(fitted, numpy_responses):
    test = AdaptiveTest(fitted, budget=12)
    for _ in range(3):
        item = test.next_item()
        test.tell(item, numpy_responses[61, item])
    item = test.next_item()
    free = np.setdiff1d(np.arange(36), test.asked_)
    assert item == free[np.argmin(np.abs(test.theta_ + fitted.ease_[free]))]
    assert item == free[np.argmax(fitted.information([test.theta_])[0][free])]


def test_two_parameter_tests_ask_what_tells_most():
    Y, _, _ = simulated(80, 25, phi=40.0)
    irt = BetaIRT(model="2pl", max_iter=60).fit(Y[:-1])
    test = AdaptiveTest(irt, budget=8)
    test.run(Y[-1])
    assert len(test.asked_) == 8
    test = AdaptiveTest(irt, budget=8, init_fraction=0.0)
    assert test.next_item() == np.argmax(irt.information([0.0])[0])


def test_missing_answers_cost_nothing_and_large_budgets_ask_all(fitted, numpy_responses):
    row = numpy_responses[70].copy()
    row[::3] = np.nan
    test = AdaptiveTest(fitted, budget=10)
    test.run(row)
    assert len(test.asked_) == 10 and np.isfinite(row[test.asked_]).all()
    everything = AdaptiveTest(fitted, budget=500)
    everything.run(numpy_responses[70])
    assert sorted(everything.asked_) == list(range(36)) and everything.done
    assert everything.theta_ == pytest.approx(fitted.score_ability(numpy_responses[70])[0][0], abs=1e-6)
    with pytest.raises(InputError, match="the test is over"):
        everything.next_item()
    assert np.isnan(AdaptiveTest(fitted).predict_score())


def test_a_second_run_starts_anew(fitted, numpy_responses):
    test = AdaptiveTest(fitted, budget=10)
    test.run(numpy_responses[60])
    assert test.run(numpy_responses[70]) == AdaptiveTest(fitted, budget=10).run(numpy_responses[70])
    assert len(test.asked_) == 10


# Laws


def test_oracle_pass_at_k_of_many_samples():
    # Exact fractions; gamma functions lose all digits here.
    assert pass_at_k_unbiased(10**15, 1, 10) == pytest.approx(1e-14, rel=1e-9)
    assert pass_at_k_unbiased(10**6, 3, 7) == pytest.approx(1 - math.comb(10**6 - 3, 7) / math.comb(10**6, 7), rel=1e-9)
    assert pass_at_k(1e-18, 5) == pytest.approx(5e-18, rel=1e-12)


def test_oracle_pass_at_k():
    n, c = np.full(11, 10), np.arange(11)
    np.testing.assert_allclose(pass_at_k_unbiased(n, c, 1), c / 10, atol=1e-12)
    for k in range(1, 11):
        product = [1 - np.prod(1 - k / np.arange(10 - wins + 1, 11)) if 10 - wins >= k else 1.0 for wins in c]
        np.testing.assert_allclose(pass_at_k_unbiased(n, c, k), product, atol=1e-12)
    assert pass_at_k_unbiased(10, 0, 10) == 0.0 and pass_at_k_unbiased(10, 1, 10) == 1.0
    np.testing.assert_allclose(pass_at_k([0.0, 0.2, 1.0], 3), [0.0, 1 - 0.8**3, 1.0])


def test_oracle_pass_at_k_is_unbiased():
    counts = np.arange(21)
    chance = stats.binom(20, 0.15).pmf(counts)
    assert chance @ pass_at_k_unbiased(20, counts, 5) == pytest.approx(pass_at_k(0.15, 5), rel=1e-9)


def test_oracle_law_is_least_squares():
    flops = np.geomspace(1e10, 1e14, 9)
    theta = 0.3 * np.log(flops) - 4 + np.random.default_rng(0).normal(0, 0.1, 9)
    law = ItemResponseScalingLaw().fit(flops, theta)
    expected = stats.linregress(np.log(flops), theta)
    assert law.coef_[0] == pytest.approx(expected.slope) and law.r2_ == pytest.approx(expected.rvalue**2)
    np.testing.assert_allclose(law.predict_theta([1e16]), expected.slope * np.log(1e16) + expected.intercept)
    assert ItemResponseScalingLaw(2).fit(flops, theta).r2_ >= law.r2_
    weighted = ItemResponseScalingLaw().fit(flops, theta, [1, 1] + [0] * 7)
    np.testing.assert_allclose(weighted.predict_theta(flops[:2]), theta[:2])


def test_law_predicts_scores_and_passes(fitted):
    law = ItemResponseScalingLaw().fit([1e18, 1e20], [0.0, 1.0])
    expected = expit(1.0 + fitted.ease_)
    assert law.predict_score([1e20], fitted)[0] == pytest.approx(expected.mean())
    assert law.predict_pass([1e20], fitted, 4)[0] == pytest.approx((1 - (1 - expected) ** 4).mean())


def test_decision_accuracy_counts_pairs():
    assert decision_accuracy([1, 2, 3, 4], [1, 2, 3, 4]) == 1.0
    assert decision_accuracy([1, 2, 3, 4], [4, 3, 2, 1]) == 0.0
    assert decision_accuracy([1, 2, 3], [5, 5, 5]) == 0.5
    assert decision_accuracy([1, 1, 2], [2, 1, 3]) == 1.0


# Bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda Y: 100 * Y, "percentages"), (lambda Y: -np.log(Y), "exp.-loss / characters"),
        (lambda Y: -40 * np.log(Y), "exp.-loss / characters"), (lambda Y: Y - 0.5, "values do not"),
        (lambda Y: Y[:1], "at least 2"),
        (lambda Y: np.where(Y > 0, np.inf, Y), "finite"),
    ],
)
def test_bad_responses_are_refused(numpy_responses, change, message):
    before = numpy_responses.copy()
    with pytest.raises(InputError, match=message):
        BetaIRT().fit(change(numpy_responses))
    np.testing.assert_array_equal(numpy_responses, before)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda irt, Y: BetaIRT().fit(Y, [None] * 36), "label of item 0 is missing"),
        (lambda irt, Y: BetaIRT().fit(Y, ["a"] * 35 + [float("nan")]), "label of item 35 is missing"),
        (lambda irt, Y: BetaIRT(max_iter=0.5).fit(Y), "whole number"),
        (lambda irt, Y: BetaIRT(prior_sd=1e-9).fit(Y), "between 0.01 and 100"),
        (lambda irt, Y: irt.score_ability([[0.1], [0.2, 0.3]]), "differ in length"),
        (lambda irt, Y: irt.items(5), "only 0 to 1"), (lambda irt, Y: irt.items(-1), "only 0 to 1"),
        (lambda irt, Y: irt.predict_proba([["a", 0.0]]), "must be numbers"),
        (lambda irt, Y: irt.predict_proba([[np.nan, 0.0]]), "must be finite"),
        (lambda irt, Y: irt.information([0.0]), "two-dimensional"),
        (lambda irt, Y: AdaptiveTest(BetaIRT().fit(Y), init_fraction=True), "init_fraction"),
        (lambda irt, Y: AdaptiveTest(BetaIRT().fit(Y)).run(Y[:2]), "one model"),
        (lambda irt, Y: ItemResponseScalingLaw().fit([1, 2], [0, 1]).predict_score([3.0], []), "at least one ease"),
        (lambda irt, Y: pass_at_k_unbiased([10, 20], [1, 2, 3], 1), "one shape"),
    ],
)
def test_bad_arguments_are_refused(numpy_responses, ask, message):
    irt = BetaIRT().fit(numpy_responses[:20], ["a"] * 18 + ["b"] * 18)
    with pytest.raises(InputError, match=message):
        ask(irt, numpy_responses[:20])


def test_number_of_values_outside_is_said(numpy_responses):
    Y = numpy_responses.copy()
    Y[0, :3] = 1.5
    with pytest.raises(InputError, match="3 values do not"):
        BetaIRT().fit(Y)


def test_a_model_without_answers_is_nan_with_a_warning(numpy_responses):
    Y = numpy_responses[:10].copy()
    Y[4] = np.nan
    with pytest.warns(UserWarning, match="1 models answered nothing"):
        irt = BetaIRT().fit(Y)
    assert np.isnan(irt.ability_[4]) and np.isfinite(np.delete(irt.ability_, 4)).all()
    theta, se = irt.score_ability(Y[3:5])
    assert np.isnan(theta[1]) and np.isinf(se[1]) and np.isfinite(theta[0])


def test_constant_items_are_kept_and_their_slope_clipped():
    Y = binary(80, 8)[0]
    Y[:, 2] = 1.0
    assert np.isfinite(BetaIRT(likelihood="binary").fit(Y).ease_).all()
    with pytest.warns(UserWarning, match="1 items get the same response"):
        irt = BetaIRT(model="2pl", likelihood="binary", max_iter=50).fit(Y)
    assert (irt.slope_ >= 0.05).all() and (irt.slope_ <= 20).all()


def test_constant_rows_give_a_prior_free_zero(fitted):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        theta, se = fitted.score_ability(np.full((1, 36), 0.5))
    assert np.isfinite(theta).all() and np.isfinite(se).all()


# Estimators and study


def test_difference_estimator_is_exact_for_parallel_models():
    rng = np.random.default_rng(0)
    known = rng.uniform(0.2, 0.7, (5, 40))
    found = PLAIN["difference"](known, known.mean(axis=0)[None] + 0.1, 7, 0)
    np.testing.assert_allclose(found, known.mean() + 0.1)


def test_plain_estimators_are_exact_on_all_questions(numpy_responses):
    known, test = numpy_responses[:60], numpy_responses[60:]
    for name in ("random-mean", "difference", "first", "stratified", "anchor-points"):
        np.testing.assert_allclose(PLAIN[name](known, test, 36, 0).mean(axis=0), test.mean(axis=1), err_msg=name)


def test_filled_in_answers_speak_for_themselves(fitted, numpy_responses):
    made = Calibration(fitted.items(), fitted.ability_)
    test = numpy_responses[60:]
    found = by_ability("cat-filled", numpy_responses[:60], test, made, 36, 0).score[0]
    np.testing.assert_allclose(found, test.mean(axis=1), atol=1e-9)
    moved = shuffled(fitted.items(), 0)
    np.testing.assert_allclose(np.sort(moved.ease), np.sort(fitted.ease_))
    assert (moved.ease != fitted.ease_).any()


def test_a_link_through_few_abilities_stays_between_them():
    # What marginal likelihood gives on a long test: abilities on three nodes, almost.
    theta = np.repeat([-0.5, 0.0, 0.5], 20) + 1e-6 * np.arange(60)
    score = np.repeat([0.3, 0.35, 0.45], 20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = link(theta, score)(np.linspace(-1, 1, 50))
    assert found.min() > 0.28 and found.max() < 0.47
    assert link(np.zeros(4), np.full(4, 0.3))(np.array([1.0])) == pytest.approx([0.3])


def test_responses_no_better_than_the_option_chosen_do_not_beat_it(table):
    """The claim on continuous responses must not hold where they are the binary answers in disguise."""
    noise = np.random.default_rng(0).normal(0, 0.01, table.p.shape)
    disguised = replace(table, p=0.1 + 0.8 * table.right + noise)
    units = {}
    for arm in ("cat", "cat-choice"):
        cell = Cell(SLICE, arm, 0, {"task": "score", "budget": 12})
        units[arm] = TASKS["score"](cell, disguised, calibrate(disguised, 0, variant_of(cell))).units
    held = 0
    for source in table.sources:
        ours, theirs = (judging._per_model(units[arm], "linked", source) for arm in ("cat", "cat-choice"))
        held += judging.ratio(ours, theirs, "linked").high < 1
    assert held < judging.BENCHMARKS_THAT_COUNT["i3"]


def test_a_failed_rival_leaves_the_claim_untested(table):
    """The better of two binary arms can't be told where one of them failed."""
    options = {"task": "score", "budget": 12}
    rows = []
    for arm in ("cat", "cat-binary"):
        cell = Cell(SLICE, arm, 0, options)
        found = TASKS["score"](cell, table, calibrate(table, 0, variant_of(cell)))
        rows.append(Row(cell, "measured", found.metrics, found.units))
    claim = catalogue.get("irsl").claims["i3"]
    assert judging.judged(claim, Results(rows), SLICE).outcome is not Outcome.untested
    rows.append(Row(Cell(SLICE, "cat-choice", 0, options), "failed", reason="out of memory"))
    found = judging.judged(claim, Results(rows), SLICE)
    assert found.outcome is Outcome.untested and "out of memory" in found.reason


def test_accuracy_of_the_table_is_the_share_of_right_answers(table):
    column = table.sources.index("numpy")
    np.testing.assert_allclose(table.accuracy[:, column], table.right[:, table.of("numpy")].mean(axis=1))


@pytest.mark.parametrize("arm", ["irsl-50", "irsl-last", "irsl-all", "ladder-all"])
def test_decisions_about_accuracy(table, arm):
    cell = Cell(SLICE, arm, 0, {"task": "decide", "budget": 12, "of": "accuracy", "starts": 2})
    found = TASKS["decide"](cell, table, calibrate(table, 0, "beta"))
    assert 0 <= found.metrics["decision accuracy"] <= 1 and found.metrics["mae"] < 0.5
    assert set(found.units["source"]) == set(table.sources)


def test_a_law_of_last_checkpoints_sees_no_others(table):
    cell = Cell(SLICE, "irsl-last", 0, {"task": "decide", "budget": 12})
    made = calibrate(table, 0, "beta")
    others = (table.step < table.step.max())[:, None]
    spoilt = replace(table, p=np.where(others, 0.5, table.p))
    assert TASKS["decide"](cell, table, made).metrics == TASKS["decide"](cell, spoilt, made).metrics


def test_the_full_tier_asks_all_that_the_quick_one_asks():
    quick, full = ([repr(cell) for cell in IRSLStudy({}).cells(tier)] for tier in (Tier.quick, Tier.full))
    assert set(quick) < set(full) and len(set(full)) == len(full)


def test_cells_of_accuracy_and_other_scales_decide_nothing():
    plain = {"task": "decide", "budget": 50}
    assert judging._plain(Cell("a", "irsl-50", 0, plain))
    assert not judging._plain(Cell("a", "irsl-50", 0, plain | {"of": "accuracy"}))
    assert not judging._plain(Cell("a", "irsl-50", 0, plain | {"characters": 1.0}))


def test_champ_is_graded_by_the_last_whole_number(tmp_path):
    def talk(text):
        return {"messages": [{"text": "x"}, {"text": text}]}

    problem = {
        "_answer": "1,200", "conversations": {
            "A|0-Shot": talk("There are 3 ways, in all 1,200."), "A|No C w/o H": talk("1200"),
            "B|0-Shot": talk("The answer is 12.5"), "B|5-Shot": talk("It can't be said."),
        },
    }
    other = {"_answer": "x = 3", "conversations": problem["conversations"]}
    path = tmp_path / "v0.json"
    path.write_text(json.dumps({"problems": {"P": problem, "Q": other}}))
    found = tables.read_champ_answers(path)
    assert found["right"].tolist() == [[1.0], [0.0], [0.0]]
    assert found["model"].tolist() == ["A", "B", "B"] and found["prompt"].tolist() == ["0-Shot", "0-Shot", "5-Shot"]


def test_champ_has_four_models_of_the_stated_accuracies():
    try:
        champ = load_table("champ-answers")
    except DataUnavailable as error:
        pytest.skip(f"data absent: {error}")
    assert champ.p.shape == (68, 79)
    accuracy = champ.p.mean(axis=1)
    assert accuracy.min() == pytest.approx(0.09, abs=0.02) and accuracy.max() == pytest.approx(0.57, abs=0.02)


def test_gemstones_split_by_model():
    try:
        gemstones = load_table("gemstones-items")
    except DataUnavailable as error:
        pytest.skip(f"data absent: {error}")
    assert gemstones.p.shape == (240, 4472) and len(set(gemstones.model)) == 20
    calibrating = gemstones.calibrating(0)
    assert len(set(gemstones.model[calibrating])) == 14 and len(set(gemstones.model[~calibrating])) == 6
    np.testing.assert_allclose(gemstones.rescaled(1.0).p, gemstones.p**4)


def test_lines_explain_what_polynomials_do():
    rng = np.random.default_rng(0)
    x, curve = rng.uniform(0, 5, 40), np.repeat(["a", "b"], 20)
    theta = np.where(curve == "a", 1.0, 2.0) * x + rng.normal(0, 0.3, 40)
    model = np.repeat([f"m{i}" for i in range(8)], 5)
    sums, strata = judging._sums_of_models(x, theta, curve, model)
    by_curve = np.stack([sums[strata == g].sum(axis=0) for g in (0, 1)])
    assert judging._explained_by_lines(by_curve) == pytest.approx(explained(x, theta, curve, 1))
    assert explained(x, theta, curve, 2) >= explained(x, theta, curve, 1)


def test_ratio_resamples_models():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"curve": np.repeat(list("ab"), 15), "model": np.arange(30), "error": rng.uniform(1, 2, 30)})
    found = judging.ratio(frame.assign(error=0.5 * frame["error"]), frame, "error")
    assert found.estimate == pytest.approx(0.5) and found.n == 30
    assert judging.ratio(frame, frame.assign(error=0.0), "error").high == np.inf
    nothing = judging.relative_difference(frame.assign(error=0.0), frame, "error")
    assert nothing.estimate == pytest.approx(0.0) and nothing.high < 0.5
    assert judging.relative_difference(frame, frame.assign(error=0.0), "error").high == np.inf


# Command


@pytest.fixture
def example(tmp_path):
    return dict(zip(*[iter(command.example(tmp_path))] * 2, strict=True)), tmp_path


def test_command_writes_its_results(example, capsys):
    words, folder = example
    options = {"data": folder / "responses.csv", "flops": folder / "flops.csv", "budget": 12, "out": folder / "out"}
    command.run(**options, folds=3)
    assert "adaptive test" in capsys.readouterr().out
    items = pd.read_csv(folder / "out" / "items.csv")
    assert len(items) == 72 and items["opening"].notna().sum() == 6
    errors = pd.read_csv(folder / "out" / "errors.csv")
    assert set(errors["arm"]) == set(command.ARMS) and errors["error"].notna().all()
    laws = json.loads((folder / "out" / "law.json").read_text())
    assert set(laws) == {"code", "numpy"} and laws["code"]["r2"] <= 1
    assert words["--budget"] == "12"


def test_command_takes_right_and_wrong_answers_from_npz(tmp_path, capsys):
    Y = binary(40, 20)[0]
    Y[0, 0] = np.nan
    np.savez(tmp_path / "r.npz", responses=Y)
    command.run(data=tmp_path / "r.npz", flops=None, budget=8, folds=2, out=tmp_path / "out")
    assert "right or wrong" in capsys.readouterr().out
    assert not (tmp_path / "out" / "law.json").exists()
    command.run(data=tmp_path / "r.npz", flops=None, budget=99, folds=2, out=tmp_path / "all")
    assert "nothing to estimate" in (tmp_path / "all" / "report.md").read_text()
    np.savez(tmp_path / "few.npz", responses=Y, group=np.repeat(["a", "b"], 20))
    command.run(data=tmp_path / "few.npz", flops=None, budget=8, folds=2, out=tmp_path / "few")
    assert "3 are needed for a comparison" in (tmp_path / "few" / "report.md").read_text()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("model,item\na,1\n", "lacks the column response"), ("model,item,response\n", "holds no responses"),
        ("model,item,response\na,1,x\n", "no number in row 0"),
        ("model,item,response\na,1,0.5\n,1,0.5\n", "model is missing in row 1"),
        ("model,item,response,bench\na,1,0.5,\n", "bench is missing in row 0"),
        ("model,item,response,group\na,1,0.5,\n", "group is missing in row 0"),
        ("model,item,response\na,1,0.5\na,1,0.5\n", "a second response"),
        ("model,item,response\na,1,0.5\nb,1,0.5\n", "at least 3"),
        ("model,item,response\na,1,55\nb,1,0.5\n", "percentages"),
        ("model,item,response,group\na,1,0.5,g\na,2,0.5,h\n", "two groups"),
    ],
)
def test_command_refuses_bad_tables(tmp_path, rows, message):
    (tmp_path / "r.csv").write_text(rows)
    with pytest.raises(InputError, match=message):
        command.run(data=tmp_path / "r.csv", flops=None, budget=5, folds=2, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("model,compute\na,1\n", "lacks the column flops"), ("model,flops\na,-1\n", "must be positive"),
        ("model,flops\na,1\n", "no flops for"), ("model,flops\na,1\na,2\n", "a second line for a in row 1"),
        ("model,flops\na,x\n", "flops is no number in row 0"),
    ],
)
def test_command_refuses_bad_compute(example, rows, message):
    _, folder = example
    (folder / "flops.csv").write_text(rows)
    with pytest.raises(InputError, match=message):
        command.run(data=folder / "responses.csv", flops=folder / "flops.csv", budget=5, folds=2, out=folder / "out")


def test_command_needs_three_amounts_of_compute(example):
    _, folder = example
    flops = pd.read_csv(folder / "flops.csv")
    flops.assign(flops=1e12).to_csv(folder / "flops.csv", index=False)
    with pytest.raises(InputError, match=r"flops.csv holds 1 different flops"):
        command.run(data=folder / "responses.csv", flops=folder / "flops.csv", budget=5, folds=2, out=folder / "out")


def test_command_takes_other_names_an_index_column_and_gaps(example, capsys):
    """A table as a stranger has it; benchmarks whose names hold any sign stay apart."""
    _, folder = example
    rows = pd.read_csv(folder / "responses.csv").rename(
        columns={"model": "checkpoint", "item": "question", "response": "prob", "bench": "task", "group": "run"}
    )
    rows["task"] = "arc|" + rows["task"]
    rows.loc[::97, "prob"] = np.nan
    rows.to_csv(folder / "mine.csv")
    names = "model=checkpoint,item=question,response=prob,bench=task,group=run"
    command.run(data=folder / "mine.csv", flops=None, budget=12, folds=2, columns=names, out=folder / "mine")
    items = pd.read_csv(folder / "mine" / "items.csv")
    assert set(items["bench"]) == {"arc|code", "arc|numpy"} and len(items) == 72
    abilities = pd.read_csv(folder / "mine" / "abilities.csv")
    assert abilities["answered"].sum() == rows["prob"].notna().sum()
    assert "models that answered everything" in capsys.readouterr().out.replace("\n", " ")
    with pytest.raises(InputError, match=r"it needs model, item, response, and has .*checkpoint"):
        command.run(data=folder / "mine.csv", flops=None, budget=12, folds=2, out=folder / "other")


@pytest.mark.parametrize(
    ("names", "message"),
    [("modle=a", "did you mean model"), ("model", "are named as"), ("model=a,model=b", "named twice")],
)
def test_command_refuses_bad_names(example, names, message):
    _, folder = example
    with pytest.raises(InputError, match=message):
        command.run(
            data=folder / "responses.csv", flops=None, budget=12, folds=2, columns=names, out=folder / "out"
        )


def test_command_refuses_bad_settings_and_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", other=np.zeros(3))
    np.savez(tmp_path / "b.npz", responses=np.full((4, 3), 0.5), model=np.arange(3))
    (tmp_path / "c.npz").write_bytes(b"PK broken")
    for name, message in (("a.npz", "lacks the array"), ("b.npz", "model must have 4 labels"), ("c.npz", "not an npz"),
                          ("d.npz", "no such file")):
        with pytest.raises(InputError, match=message):
            command.run(data=tmp_path / name, flops=None, budget=5, folds=2, out=tmp_path / "out")
    for budget, folds in ((0, 2), (5, 1)):
        with pytest.raises(InputError, match="--budget"):
            command.run(data=tmp_path / "a.npz", flops=None, budget=budget, folds=folds, out=tmp_path / "out")
