"""Capability boundaries: quantile properties, limits, reference objectives, traps, bad input, design, the command."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

from assay.datasets import DataUnavailable, load_dataset
from assay.errors import InputError
from assay.scaling.prescriptive import (
    CapabilityBoundary,
    command,
    equal_mass_bins,
    select_evaluations,
    smooth_pinball,
    temporal_validation,
)
from assay.scaling.prescriptive.arms import choose, curve_of
from assay.scaling.prescriptive.baselines import BASELINES, ISplineQuantile, baseline
from assay.scaling.prescriptive.bins import bin_of
from assay.scaling.prescriptive.boundary import _Problem
from assay.scaling.prescriptive.design import RIDGE, information_rows
from assay.scaling.prescriptive.pinball import quantile_programme
from assay.scaling.prescriptive.tables import NEXT_TOKEN, clip_finals, read_table, splits, with_larger
from assay.scaling.prescriptive.validation import binomial_p, cluster_p, period_of, refit_p
from assay.study import Results, Skip

# What assay.conformance makes of the method, asserted by tests/test_every_method.py.
CHECKS = {"passed": 87, "excused": 1, "oracles": 14, "oracles_without_data": 12}

# Objectives and q(1e24) that the authors' optimiser reaches on their leaderboard (tau 0.98, kappa 50, lambda_b 0.01).
REFERENCE = {
    "ifeval": (0.00765957, 0.744, 0.984), "bbh": (0.00457384, 0.666, 0.986), "math_lvl5": (0.00798023, 0.519, 0.989),
    "gpqa": (0.00253074, 0.418, 0.9985), "musr": (0.00272238, 0.528, 0.999), "mmlu_pro": (0.0052373, 0.552, 0.991),
}
# Coverage of the models of 2025 by the boundary of the earlier ones, and its mean pinball loss times 1000.
REFERENCE_LATER = {
    "ifeval": (0.975, 6.96), "bbh": (0.975, 3.68), "math_lvl5": (0.807, 21.1), "gpqa": (0.995, 1.78),
    "musr": (0.998, 2.26), "mmlu_pro": (0.953, 4.33),
}


def leaderboard() -> pd.DataFrame:
    try:
        return load_dataset("prescriptive-leaderboard")
    except DataUnavailable as error:
        pytest.skip(f"data absent: {error}")


@pytest.fixture(scope="module")
def models() -> pd.DataFrame:
    return load_dataset("prescriptive-smoke")


@pytest.fixture(scope="module")
def digits() -> pd.DataFrame:
    return load_dataset("digits-mlp-runs")


@pytest.fixture(scope="module")
def exact(digits) -> CapabilityBoundary:
    return CapabilityBoundary(exact=True, lambda_b=0.0).fit(digits["flops"], digits["accuracy"])


# Oracles


@pytest.mark.parametrize("tau", [0.1, 0.5, 0.98])
def test_oracle_sharp_pinball_is_the_pinball_loss(tau):
    u = np.linspace(-1, 1, 41)
    np.testing.assert_allclose(smooth_pinball(u, tau, 1e7), np.maximum(tau * u, (tau - 1) * u), atol=1e-7)
    np.testing.assert_array_equal(smooth_pinball(u, tau, np.inf), np.maximum(tau * u, (tau - 1) * u))


@pytest.mark.parametrize("kappa", [1.0, 50.0, 1e4])
def test_oracle_smooth_pinball_at_zero(kappa):
    assert smooth_pinball(0.0, 0.98, kappa) == pytest.approx(np.log(2) / kappa, rel=1e-14)


@pytest.mark.parametrize("kappa", [10.0, 50.0])
def test_oracle_gradient_equals_central_differences(models, kappa):
    z, y = np.log10(models["flops"].to_numpy(float)), models["accuracy"].to_numpy()
    problem = _Problem.of(z, y, np.full(len(z), 1 / len(z)), 1e-2)
    for point in ([0.1, 0.8, 7.0, 0.5], [0.4, 0.2, 8.5, -1.0]):
        x = np.array(point)
        gradient = problem._objective(x, 0.98, kappa)[1]
        numeric = np.zeros(4)
        for i in range(4):
            step = np.zeros(4)
            step[i] = 1e-5
            ends = [problem._objective(x + sign * step, 0.98, kappa)[0] for sign in (1, -1)]
            numeric[i] = (ends[0] - ends[1]) / 2e-5
        np.testing.assert_allclose(gradient, numeric, atol=1e-7 * max(1, np.abs(gradient).max()))


def test_oracle_share_above_the_unsmoothed_boundary(digits, exact):
    """With a floor inside its bounds: strictly above <= (1 - tau) n <= on or above."""
    assert exact.y0_ > 0 and exact.y0_ + exact.L_ < 1
    residual = digits["accuracy"].to_numpy() - exact._curve(np.log10(digits["flops"].to_numpy(float)))
    wanted = 0.02 * len(digits)
    assert np.sum(residual > 1e-9) <= wanted <= np.sum(residual >= -1e-9)


@pytest.mark.parametrize("tau", [0.3, 0.9])
def test_oracle_programme_without_slope_gives_the_empirical_quantile(tau):
    y = np.random.default_rng(0).random(101)
    found = quantile_programme(np.ones((101, 1)), y, tau, np.full(101, 1 / 101))
    assert found[0] == pytest.approx(np.quantile(y, tau, method="inverted_cdf"), abs=1e-9)


def test_oracle_programme_equals_statsmodels_where_no_bound_is_met():
    """A straight quantile line that rises inside [0, 1], by interior point and by our programme."""
    sm = pytest.importorskip("statsmodels.api")
    rng = np.random.default_rng(1)
    s = rng.random(400)
    y = 0.2 + 0.4 * s + 0.2 * rng.random(400)
    theirs = sm.QuantReg(y, sm.add_constant(s)).fit(q=0.9, p_tol=1e-10, max_iter=5000).params
    ours = quantile_programme(np.column_stack([np.ones(400), s]), y, 0.9, np.full(400, 1 / 400))
    losses = [smooth_pinball(y - c[0] - c[1] * s, 0.9, np.inf).mean() for c in (ours, theirs)]
    assert losses[0] <= losses[1] + 1e-9
    np.testing.assert_allclose(ours, theirs, atol=2e-3)


def test_oracle_shift_of_log_compute(models):
    """Compute in other units moves the mid-point by as much, and nothing else."""
    y = models["accuracy"].to_numpy()
    here = CapabilityBoundary().fit(models["flops"], y)
    there = CapabilityBoundary().fit(1e15 * models["flops"], y)
    assert there.z_star_ - here.z_star_ == pytest.approx(15, abs=2e-3)
    assert there.objective_ == pytest.approx(here.objective_, abs=1e-9)


@pytest.mark.parametrize("settings", [{}, {"lambda_b": 0.0}, {"exact": True}, {"lambda_b": 0.0, "exact": True}])
def test_oracle_monotone_and_bounded(models, settings):
    boundary = CapabilityBoundary(**settings).fit(models["flops"], models["accuracy"])
    q = boundary._curve(np.linspace(-5, 40, 500))
    assert (np.diff(q) >= 0).all()
    assert q.min() >= 0 and q.max() <= 1 + 1e-12
    assert boundary.y0_ >= 0 and boundary.L_ >= 0 and boundary.y0_ + boundary.L_ <= 1 + 1e-12
    assert models["flops"].min() <= 10**boundary.z_star_ * (1 + 1e-9)
    assert 10**boundary.z_star_ <= models["flops"].max() * (1 + 1e-9)


def test_oracle_noiseless_sigmoid_is_recovered():
    z = np.linspace(18, 26, 400)
    y = 0.1 + 0.75 * expit(1.7 * (z - 22.3))
    found = CapabilityBoundary(0.5, kappa=5e3, lambda_b=0.0).fit(10**z, y)
    np.testing.assert_allclose([found.y0_, found.L_, found.z_star_, found.b_], [0.1, 0.75, 22.3, 1.7], atol=1e-3)


def test_oracle_rank_one_updates_of_the_design():
    """Gains by Sherman and Morrison equal the determinants of rebuilt matrices, step by step."""
    rng = np.random.default_rng(0)
    z, theta = np.sort(rng.uniform(20, 25, 40)), (0.2, 0.6, 22.5, 1.5)
    rows = information_rows(z, theta)
    chosen = select_evaluations(z, np.ones(40), 20, theta, "d_optimal")
    matrix = RIDGE * np.eye(4) + rows[chosen[:4]].T @ rows[chosen[:4]]
    for place in chosen[4:]:
        inverse = np.linalg.inv(matrix)
        gains = np.log1p(np.einsum("ij,jk,ik->i", rows, inverse, rows))
        grown = matrix + np.outer(rows[place], rows[place])
        assert np.linalg.slogdet(grown)[1] - np.linalg.slogdet(matrix)[1] == pytest.approx(gains[place], abs=1e-8)
        left = np.setdiff1d(np.arange(40), chosen[: list(chosen).index(place)])
        assert gains[place] == pytest.approx(gains[left].max(), abs=1e-8)
        matrix = grown


def test_oracle_first_choices_are_the_ends_and_the_logistic_points():
    z, theta = np.linspace(20, 25, 501), (0.2, 0.6, 22.5, 1.5)
    chosen = select_evaluations(z, np.ones(501), 4, theta, "d_optimal")
    np.testing.assert_allclose(z[chosen], [20, 25, 22.5 - 1.543 / 1.5, 22.5 + 1.543 / 1.5], atol=0.006)


@pytest.mark.parametrize("task", REFERENCE)
def test_oracle_reference_objectives(task):
    table = leaderboard()
    objective, q, covered = REFERENCE[task]
    found = CapabilityBoundary().fit(table["flops"], table[task])
    assert found.objective_ <= objective + 1e-6
    assert found.objective_ == pytest.approx(objective, abs=2e-6)
    assert found.predict([1e24])[0] == pytest.approx(q, abs=2e-3)
    assert found.coverage_ == pytest.approx(covered, abs=2e-3)


def test_oracle_reference_coverage_of_later_models():
    table = leaderboard()
    found = temporal_validation(
        table, "last_modified", "flops", list(REFERENCE_LATER), ["2024-12-31", "2025-12-31"], group="mapped_base_model"
    ).set_index("task")
    assert (found["n_train"] == 819).all() and (found["n_test"] == 1215).all()
    for task, (covered, loss) in REFERENCE_LATER.items():
        assert found.loc[task, "coverage_test"] == pytest.approx(covered, abs=2e-3)
        assert 1e3 * found.loc[task, "pinball"] == pytest.approx(loss, rel=0.01)


def test_oracle_binomial_and_cluster_p():
    assert binomial_p(0, 10, 0.02) == 1
    assert binomial_p(10, 10, 0.5) == pytest.approx(0.5**10)
    rng = np.random.default_rng(0)
    # Groups of one: the test of a mean. Hundred copies of three models say no more than three models do.
    above = rng.random(300) < 0.1
    from scipy.stats import ttest_1samp

    expected = ttest_1samp(above, 0.02, alternative="greater").pvalue
    assert cluster_p(above, np.arange(300), 0.02) == pytest.approx(expected)
    copies = np.repeat([1.0, 1.0, 0.0], 100)
    assert cluster_p(copies, np.repeat([0, 1, 2], 100), 0.02) > 0.05 > binomial_p(200, 300, 0.02)
    assert np.isnan(cluster_p([1, 0], ["a", "b"], 0.02))


# Traps


def test_smoothing_lifts_the_curve_above_tightly_spread_scores():
    rng = np.random.default_rng(0)
    flops, y = 10 ** rng.uniform(20, 24, 1000), 0.4 + 0.02 * rng.random(1000)
    smooth, sharp = CapabilityBoundary().fit(flops, y), CapabilityBoundary(exact=True).fit(flops, y)
    assert smooth.coverage_ == 1
    assert sharp.coverage_ == pytest.approx(0.98, abs=2e-3)


def test_unsmoothed_objective_is_no_worse_than_the_smooth_fit_gives(models):
    z, y = np.log10(models["flops"].to_numpy(float)), models["accuracy"].to_numpy()
    smooth = CapabilityBoundary().fit(models["flops"], y)
    sharp = CapabilityBoundary(exact=True).fit(models["flops"], y)
    of_smooth = smooth_pinball(y - smooth._curve(z), 0.98, np.inf).mean() + 1e-2 * smooth.b_**2
    assert sharp.objective_ <= of_smooth


def test_penalty_bends_the_curve_and_depends_on_the_unit_of_z():
    rng = np.random.default_rng(0)
    flops = 10 ** rng.uniform(20, 25, 800)
    best = 0.25 + 0.6 * expit(2 * (np.log10(flops) - 22.5))
    y = best * rng.beta(12, 1, 800)
    paper, free = (CapabilityBoundary(lambda_b=value, exact=True).fit(flops, y) for value in (1e-2, 0.0))
    assert free.b_ > 1.5 and paper.b_ < 0.5
    assert abs(free.predict([1e21])[0] - 0.28) < 0.04 < abs(paper.predict([1e21])[0] - 0.28)
    # In natural logarithms the same curve has b / ln 10: the penalty of 0.01 weighs less by the square of that.
    milder = CapabilityBoundary(lambda_b=1e-2 / np.log(10) ** 2, exact=True).fit(flops, y)
    assert milder.b_ > paper.b_


def test_equal_compute_is_never_split():
    z = np.repeat([1.0, 2.0, 3.0, 4.0], [10, 500, 5, 85])
    edges = equal_mass_bins(z, 10, 30)
    assert len(edges) - 1 == 2
    assert len(np.unique(bin_of(z, edges))) == 2
    for value in np.unique(z):
        assert len(np.unique(bin_of(z[z == value], edges))) == 1
    assert min(np.bincount(bin_of(z, edges))) >= 30


def test_one_distinct_value_is_one_bin():
    edges = equal_mass_bins(np.ones(50))
    assert edges.tolist() == [1, 1]
    assert bin_of(np.array([0.0, 1.0, 2.0]), edges).tolist() == [0, 0, 0]


def test_bins_are_those_of_the_fitted_compute(digits):
    early = digits[digits["period"] <= 2]
    fitted = CapabilityBoundary().fit(early["flops"], early["accuracy"])
    later = fitted.coverage(1e3 * digits["flops"][:50], digits["accuracy"][:50])
    own = fitted.coverage(early["flops"], early["accuracy"])
    assert len(later.bins) < len(own.bins) == 10
    assert own.share == fitted.coverage_
    assert own.micro == pytest.approx(np.average(own.bins["error"], weights=own.bins["n"]))
    assert own.bins["n"].sum() == len(early)


def test_resampling_by_family_is_wider_than_by_row(models):
    """Many fine-tunes share one base model: rows are no units."""
    rng = np.random.default_rng(0)
    effect = dict(zip(models["family"].unique(), 0.15 * rng.random(48), strict=True))
    y = np.clip(0.5 + models["family"].map(effect) + 0.01 * rng.random(len(models)), 0, 1)
    fitted = CapabilityBoundary().fit(models["flops"], y)
    rows, families = (fitted.bootstrap(models["flops"], y, 30, groups=g) for g in (None, models["family"]))
    at = [np.median(models["flops"])]
    widths = [np.ptp([*fitted.predict_interval(at, refits)]) for refits in (rows, families)]
    assert widths[1] > 1.5 * widths[0]


def test_drift_counts_the_error_of_the_old_boundary():
    """Base models have skills of their own: a boundary fitted to a dozen of them errs, and p must know it."""
    rng = np.random.default_rng(1)
    groups = np.repeat([f"g{i}" for i in range(24)], 15)
    z = np.repeat(rng.uniform(20, 25, 24), 15)
    later = np.arange(len(z)) >= len(z) // 2
    skill = np.repeat(rng.normal(0, 0.05, 24), 15)
    y = np.clip(0.2 + 0.08 * (z - 20) + skill + 0.03 * rng.standard_normal(len(z)), 0, 1)
    fitted = CapabilityBoundary(kappa=200, lambda_b=0.0, n_starts=2).fit(10 ** z[~later], y[~later])
    for shift in (0.05, 0.1):
        moved = np.clip(y + shift * later, 0, 1)
        p, shares = refit_p(fitted, z, moved, later, groups, 20)
        assert len(shares) == 20
        assert p > cluster_p(moved[later] > fitted._curve(z[later]), groups[later], 0.02)
    assert refit_p(fitted, z, np.where(later, 1.0, y), later, groups, 20)[0] == pytest.approx(1 / 21)
    assert refit_p(fitted, z, np.where(later, 0.0, y), later, groups, 20)[0] == 1
    assert np.isnan(refit_p(fitted, z, y, later, np.where(later, "new", groups), 5)[0])


def test_prediction_beyond_the_fitted_compute_is_flagged(models):
    fitted = CapabilityBoundary().fit(models["flops"], models["accuracy"])
    with pytest.warns(UserWarning, match="1 of 2 lie beyond the largest fitted compute"):
        fitted.predict([1e7, 1e12])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted.predict([models["flops"].max()])


def test_inverse_undoes_predict(exact):
    flops = np.array([2e6, 1e7, 1e8])
    np.testing.assert_allclose(exact.inverse(exact.predict(flops)), flops, rtol=1e-6)
    assert exact.inverse(min(1.0, exact.y0_ + exact.L_ + 1e-6)) == np.inf
    assert exact.inverse(exact.y0_ / 2) == 0


def test_a_flat_boundary_has_no_compute_to_invert():
    flat = CapabilityBoundary().fit(10 ** np.linspace(18, 22, 200), np.full(200, 0.5))
    assert flat.inverse(0.9) == np.inf or flat.predict([1e22])[0] >= 0.9
    assert flat.inverse(0.1) == 0


def test_seeds_come_before_gains_and_stay_finite():
    """With M near 1e-9 times the identity gains are huge: four points span the parameters first."""
    z = np.repeat(np.linspace(20, 25, 6), 10)
    for objective in ("i_optimal", "i_balanced", "d_optimal"):
        chosen = select_evaluations(z, np.ones(60), 12, (0.1, 0.7, 22.4, 1.2), objective)
        assert len(set(chosen)) == 12
        assert {20.0, 25.0} <= set(z[chosen[:4]])


def test_balance_fills_empty_bins():
    """An empty bin's bonus is 13.8: with it every bin gets a model, without it none need to."""
    z = np.linspace(20, 25, 300)
    theta = (0.1, 0.7, 22.5, 8.0)
    filled = {}
    for balance in (0.0, 0.1):
        chosen = select_evaluations(z, np.ones(300), 30, theta, balance=balance)
        filled[balance] = len(np.unique(bin_of(z[chosen], equal_mass_bins(z))))
    assert filled[0.1] == 10 > filled[0.0]


def test_the_cheapest_of_equal_models_come_first():
    z, cost = np.repeat([20.0, 22.0, 24.0, 26.0], 5), np.tile([5.0, 4.0, 3.0, 2.0, 1.0], 4)
    chosen = select_evaluations(z, cost, 8, (0.1, 0.7, 23.0, 1.0))
    assert cost[chosen[:4]].max() <= 2
    assert cost[chosen].sum() <= 8


def test_binomial_weights_change_the_choice():
    z = np.linspace(20, 25, 200)
    theta = (0.02, 0.9, 22.5, 2.0)
    plain = select_evaluations(z, np.ones(200), 20, theta, "i_optimal")
    weighted = select_evaluations(z, np.ones(200), 20, theta, "i_optimal", questions=100)
    assert set(plain[:4]) == set(weighted[:4]) and set(plain) != set(weighted)


@pytest.mark.parametrize("arm", ["i_balanced", "random", "random-again"])
def test_choices_keep_to_the_budget_and_share_the_pilot(models, arm):
    z, y = np.log10(models["flops"].to_numpy(float)), models["accuracy"].to_numpy()
    cost = models["params"].to_numpy(float)
    chosen = choose(arm, z, y, cost, 0.2, seed=3)
    assert cost[chosen].sum() <= 0.2 * cost.sum()
    assert len(set(chosen)) == len(chosen)
    other = choose("random", z, y, cost, 0.2, seed=3)
    first = min(len(chosen), 10)
    assert chosen[:first].tolist() == other[:first].tolist()


def test_periods_end_on_their_last_date():
    dates = pd.Series(["2024-06-30", "2024-07-01", "2024-09-30", "2025-05-01"])
    assert period_of(dates, ["2024-06-30", "2024-09-30"]).tolist() == [0, 1, 1, 2]
    assert period_of(pd.Series([1, 2, 3]), [1, 2]).tolist() == [0, 1, 2]


@pytest.mark.parametrize(("mode", "sizes"), [("single_k", [500, 500, 500]), ("cumulative", [500, 1000, 1500])])
def test_modes_of_validation(digits, mode, sizes):
    found = temporal_validation(digits, "period", "flops", "accuracy", [1, 2, 3, 4], mode)
    assert found["n_train"].tolist() == sizes
    assert found["p_clustered"].isna().all()


def test_four_recipes_are_on_file(digits):
    assert len(digits) == 2000 and digits["run"].is_unique
    assert digits.groupby("period").size().tolist() == [500] * 4
    assert digits["family"].nunique() == 100
    assert np.log10(digits["flops"].max() / digits["flops"].min()) > 3
    assert (digits["flops"] == 6 * digits["params"] * digits["examples"]).all()
    assert digits["accuracy"].between(0, 1).all() and digits["optimiser"].nunique() == 4


# Fits


def test_weights_count_as_copies(models):
    head = models.head(200)
    copies = np.random.default_rng(0).integers(1, 4, 200)
    weighted = CapabilityBoundary().fit(head["flops"], head["accuracy"], sample_weight=copies)
    repeated = CapabilityBoundary().fit(np.repeat(head["flops"], copies), np.repeat(head["accuracy"], copies))
    assert weighted.objective_ == pytest.approx(repeated.objective_, abs=1e-7)


def test_column_and_vector_of_compute_agree(models):
    flops, y = models["flops"].to_numpy(float), models["accuracy"].to_numpy()
    flat, column = CapabilityBoundary(n_starts=2).fit(flops, y), CapabilityBoundary(n_starts=2).fit(flops[:, None], y)
    np.testing.assert_array_equal(flat.predict(flops), column.predict(flops[:, None]))


def test_bootstrap_of_an_exact_fit_is_exact(models):
    fitted = CapabilityBoundary(exact=True, lambda_b=1e-4).fit(models["flops"], models["accuracy"])
    refits = fitted.bootstrap(models["flops"], models["accuracy"], 4, groups=models["family"])
    assert refits.columns.tolist() == ["y0", "L", "z_star", "b"] and len(refits) == 4
    low, high = fitted.predict_interval(models["flops"], refits)
    assert (low <= high).all()


# Baselines


def test_integrated_splines_rise_from_zero_to_one():
    z = np.linspace(18, 25, 300)
    model = ISplineQuantile(0.9, knots=4).fit(z, np.clip((z - 18) / 8, 0, 1))
    basis = model.basis(z)
    assert (basis[:, 0] == pytest.approx(1)) and (np.diff(basis[:, 1:], axis=0) >= -1e-12).all()
    np.testing.assert_allclose(basis[0, 1:], 0, atol=1e-12)
    np.testing.assert_allclose(basis[-1], 1, atol=1e-12)
    assert (np.diff(model.predict(np.linspace(15, 30, 400))) >= -1e-12).all()


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_reach_their_level_on_what_they_were_fitted_to(models, name):
    z, y = np.log10(models["flops"].to_numpy(float)), models["accuracy"].to_numpy()
    try:
        fitted = baseline(name, 0.9, z, y, models["family"].to_numpy())
    except Skip as reason:
        assert "is not installed" in str(reason)
        return
    q = fitted.predict(z)
    assert np.mean(y <= q) == pytest.approx(0.9, abs=0.05)
    assert q.min() >= 0 and q.max() <= 1


# Bad input


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x, y: (np.where(np.arange(len(x)) < 2, -1.0, x), y), "got 2 of 672 that are not"),
        (lambda x, y: (np.where(np.arange(len(x)) == 7, np.nan, x), y), "nan in row 7"),
        (lambda x, y: (x, 100 * y), "divide by 100"),
        (lambda x, y: (x, y - 0.5), "y must lie in"),
        (lambda x, y: (np.full(len(x), 1e20), y), "degenerate z"),
        (lambda x, y: (x[:5], y), "X has 5 rows"),
        (lambda x, y: (np.array(["much"] * len(x)), y), "must be numbers"),
        (lambda x, y: (x, np.where(np.arange(len(x)) == 3, np.nan, y)), "y must be finite"),
    ],
)
def test_bad_models_are_refused(models, change, said):
    with pytest.raises(InputError, match=said):
        CapabilityBoundary().fit(*change(models["flops"].to_numpy(float), models["accuracy"].to_numpy()))


@pytest.mark.parametrize(
    "settings",
    [
        {"quantile": 0.0}, {"quantile": 1.2}, {"kappa": -1}, {"kappa": np.inf}, {"lambda_b": np.nan}, {"n_starts": 0},
        {"random_state": -1}, {"kappa": "sharp"}, {"lambda_b": None}, {"exact": "yes"}, {"quantile": "high"},
    ],
)
def test_bad_settings_are_refused(models, settings):
    with pytest.raises(InputError):
        CapabilityBoundary(**settings).fit(models["flops"], models["accuracy"])


def test_one_compute_cannot_be_resampled(exact):
    """Drawing until two computes are met would never end."""
    with pytest.raises(InputError, match="degenerate z"):
        exact.bootstrap(np.full(5, 1e7), np.full(5, 0.5), 2)


@pytest.mark.parametrize(
    "call",
    [
        lambda law: law.bootstrap([1e6, 1e7, 1e8, 1e9], [0.1, 0.2, 0.3, 0.4], 2, groups=["a", "b", "c", None]),
        lambda law: law.predict_interval([1e7], pd.DataFrame({"y0": [0.1]})),
        lambda law: law.predict_interval([1e7], pd.DataFrame(columns=["y0", "L", "z_star", "b"])),
        lambda law: law.predict(np.array([1e7 + 1j])),
        lambda law: select_evaluations([20, 21], [1, 1], "all", (0.1, 0.5, 20, 1)),
        lambda law: select_evaluations([20, 21], [1, 1], 1, (0.1, 0.5, 20, 1), balance="much"),
        lambda law: select_evaluations([20, 21], [1, 1], 1, (0.1, 0.5, 20, 1), questions="many"),
        lambda law: smooth_pinball([0.1], 0.98, "sharp"),
    ],
)
def test_wrong_types_are_refused(exact, call):
    with pytest.raises(InputError):
        call(exact)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"df": [1, 2]}, "df must be a DataFrame"), ({"y": 5}, "y names no task"), ({"group": ["family"]}, "lacks"),
        ({"boundary": "paper"}, "boundary must be"), ({"refits": -1}, "refits"), ({"periods": "2,4"}, "2 periods"),
        ({"refits": 3, "group": None}, "refits need"), ({"group": "gap"}, "have no label"),
    ],
)
def test_bad_validations_are_refused(models, change, said):
    frame = models.assign(gap=models["family"].where(models.index > 3))
    good = {"df": frame, "time": "period", "x": "flops", "y": "accuracy", "periods": [2, 4], "group": "family"}
    with pytest.raises(InputError, match=said):
        temporal_validation(**{**good, **change})


def test_few_models_are_warned_about(models):
    few = models.head(29)
    with pytest.warns(UserWarning, match="29 models are few for the quantile 0.98: 50 are needed"):
        CapabilityBoundary().fit(few["flops"], few["accuracy"])


def test_a_budget_below_the_cheapest_selects_nothing():
    with pytest.warns(UserWarning, match="nothing is selected: the cheapest of 3 models costs 2, the budget is 1"):
        assert select_evaluations([20, 21, 22], [2, 3, 4], 1, (0.1, 0.5, 21, 1)).tolist() == []


def test_dates_that_cannot_be_read_are_listed(models):
    spoilt = models.assign(date=["soon", "2024-01-01", "later"] + ["2024-05-05"] * (len(models) - 3))
    with pytest.raises(InputError, match="date: 2 dates can't be read: 'soon' in row 0, 'later' in row 2"):
        temporal_validation(spoilt, "date", "flops", "accuracy", ["2024-02-01", "2024-12-31"])


def test_frames_are_left_alone(models):
    before = models.copy(deep=True)
    temporal_validation(models, "period", "flops", "accuracy", [2, 4])
    pd.testing.assert_frame_equal(models, before)


# Data and study


def test_final_checkpoints_of_the_wheel_table(tmp_path):
    rows = pd.DataFrame({
        "config_id": [1, 1, 2], "epoch": [1, 2, 1], "compute_seen": [1.0, 2.0, 3.0], "mparams": [5.0, 5.0, 6.0],
        "train_duration(s)": 1.0, "cifar10_mean_per_class_recall": [0.1, 0.2, np.nan], "vtab_dtd_acc1": [0.3, 0.4, 0.5],
    })
    rows.to_csv(tmp_path / "data.csv", index=False)
    found = clip_finals(tmp_path / "data.csv")
    assert found.to_dict("list") == {"run": [1], "flops": [2e9], "params": [5e6], "cifar10": [0.2], "dtd": [0.4]}


def test_larger_runs_are_the_later_ones():
    rng = np.random.default_rng(0)
    small = pd.DataFrame({
        "config_id": np.arange(40), "step_index": 1, "flops_so_far": 10 ** rng.uniform(16, 20, 40), "n_params": 1e6,
        "downstream_piqa": 0.5, "test_loss": 3.0,
    })
    table = with_larger(small, small.head(2).assign(flops_so_far=1e21, test_loss=2.0), "scan-bench-llm")
    assert list(table.scores) == [NEXT_TOKEN] and table.later.sum() == 2
    assert table.scores[NEXT_TOKEN].tolist() == pytest.approx([np.exp(-3)] * 40 + [np.exp(-2)] * 2)
    assert len(set(table.unit)) == 42 and table.z[table.later].min() == 21


def test_the_tuned_arm_takes_its_penalty_from_the_fitted_rows():
    """A steep boundary: the fitted rows say that the paper's penalty is too large."""
    rng = np.random.default_rng(0)
    z = rng.uniform(20, 25, 600)
    y = (0.25 + 0.6 * expit(4 * (z - 22.5))) * rng.beta(12, 1, 600)
    unit = np.arange(600).astype(str)
    grid = np.array([21.0, 24.0])
    tuned, paper = (curve_of(arm, z, y, unit, 0)(grid) for arm in ("tuned", "boundary"))
    truth = 0.25 + 0.6 * expit(4 * (grid - 22.5))
    assert np.abs(tuned - truth).max() < 0.05 < np.abs(paper - truth).max()


def test_halves_keep_units_together(models):
    table = read_table(models, "prescriptive-smoke")
    assert len(splits(table)) == 1
    from dataclasses import replace

    halves = splits(replace(table, later=None), seed=2)
    assert len(halves) == 2
    for fit, test in halves:
        assert not set(table.unit[fit]) & set(table.unit[test])
        assert (fit ^ test).all()


@pytest.fixture(scope="module")
def smoke():
    from assay.catalogue import get
    from assay.study import Row, Tier

    study = get("prescriptive").study()
    rows = []
    for cell in study.cells(Tier.smoke):
        found = study.measure(cell, {})
        rows.append(Row(cell, "measured", found.metrics, found.units, found.files))
    return study, Results(rows)


def test_a_perfect_arm_would_hold(smoke):
    """The judges can say `holds`: the rivals' losses grow, and the boundary's shrink."""
    from dataclasses import replace

    study, results = smoke
    better = []
    for row in results:
        units = row.units
        if row.cell.arm in ("bin-wise", "i-spline"):
            units = units.assign(loss=2 * units["loss"])
        if row.cell.arm in ("boundary", "exact") and row.cell.options["task"] == "predict":
            units = results.where(arm="exact", task="predict")[0].units
            units = units if row.cell.arm == "exact" else units.assign(loss=0.1 * units["loss"])
        better.append(replace(row, units=units))
    verdicts = {v.claim: v for v in study.verdicts(Results(better))}
    assert verdicts["s3"].outcome == "holds"


def test_claims_on_language_models_are_untested_at_home(smoke):
    study, results = smoke
    verdicts = {v.claim: v for v in study.verdicts(results)}
    assert list(verdicts) == ["s1", "s2", "s3", "s4", "s5"]
    for claim in ("s1", "s2"):
        assert verdicts[claim].outcome == "untested" and "leaderboard" in verdicts[claim].reason


def test_stability_is_judged_over_the_tasks_of_all_tables(smoke):
    """A table with one task can't say whether 5 of 6 tasks are called alike: its task counts among the others'."""
    from dataclasses import replace

    study, results = smoke
    rows = []
    for dataset, copies in (("scan-bench-clip", 9), ("digits-mlp-runs", 1)):
        for arm in ("boundary", "exact"):
            row = results.where(arm="exact" if copies > 1 else arm, task="predict")[0]
            units = pd.concat(row.units.assign(task=f"t{i}") for i in range(copies))
            rows.append(replace(row, cell=replace(row.cell, dataset=dataset, arm=arm), units=units))
    verdict = next(v for v in study.verdicts(Results(rows)) if v.claim == "s5")
    assert len(verdict.parts) == 3 and "of 10 on" in verdict.parts[-1].reason
    assert verdict.parts[-1].outcome == "holds"  # 9 or 10 of 10 alike, whatever the digits say
    assert study.verdicts(Results(rows[:2]))[-1].outcome == "untested"


def test_a_missing_home_cell_is_named(smoke):
    study, results = smoke
    without = Results(row for row in results if row.cell.arm != "i-spline")
    verdict = next(v for v in study.verdicts(without) if v.claim == "s3")
    assert verdict.outcome == "untested" and "i-spline" in verdict.reason


def test_leaderboard_verdicts_stand_beside():
    """The judges of s1 and s2 on the authors' table, and their controls."""
    from dataclasses import replace

    from assay.catalogue import get
    from assay.study import Row

    leaderboard()
    study = get("prescriptive").study()
    from assay.study import Tier

    rows = []
    for cell in study.cells(Tier.quick):
        wanted = cell.dataset == "prescriptive-leaderboard" and cell.options["task"] in ("predict", "bands")
        if wanted and cell.arm in ("boundary", "shuffled", "dates-shuffled"):
            if "refits" in cell.options:
                cell = replace(cell, options={**cell.options, "refits": 6})
            found = study.measure(cell, {})
            rows.append(Row(cell, "measured", found.metrics, found.units, found.files))
    results = Results(rows)
    for claim in ("s1", "s2"):
        verdict = next(v for v in study.verdicts(results) if v.claim == claim)
        assert verdict.outcome == "untested" and verdict.parts[-1].outcome != "untested"
        control = study.claims[claim].control
        stand_in = next(v for v in study.verdicts(results.with_control("boundary", control)) if v.claim == claim)
        assert stand_in.parts[-1].outcome != "holds", claim


# The command


def test_command_on_language_model_columns(tmp_path, models):
    path, out = tmp_path / "scores.csv", tmp_path / "out"
    dates = pd.to_datetime("2024-01-01") + pd.to_timedelta(models["order"], unit="D")
    scores = {"bbh": models["accuracy"], "gpqa": 0.5 * models["accuracy"]}
    models.assign(**scores, last_modified=dates.dt.date).to_csv(path, index=False)
    settings = {"quantile": 0.95, "exact": True, "penalty": 0.0}
    command.run(path, y="bbh,gpqa", time="last_modified", group="family", out=out, **settings)
    fits = json.loads((out / "fit.json").read_text())["tasks"]
    assert set(fits) == {"bbh", "gpqa"}
    assert fits["bbh"]["coverage"] == pytest.approx(0.95, abs=0.01)
    assert {"drift.csv", "curves.csv", "coverage.csv", "report.md"} <= {p.name for p in out.iterdir()}
    drift = pd.read_csv(out / "drift.csv")
    assert drift["task"].tolist() == ["bbh", "gpqa"] and drift["p_clustered"].notna().all()


def test_command_computes_flop_from_parameters_and_tokens(tmp_path, models):
    path, out = tmp_path / "runs.csv", tmp_path / "out"
    sizes = {"N": models["params"] * 1000, "D": models["flops"] / models["params"]}
    table = pd.DataFrame({**sizes, "score": models["accuracy"]})
    table.to_csv(path, index=False)
    command.run(path, out=out)
    fit = json.loads((out / "fit.json").read_text())["tasks"]["score"]
    assert fit["largest_compute"] == pytest.approx(6000 * models["flops"].max(), rel=1e-6)


def test_command_says_when_coverage_and_penalty_are_off(tmp_path, models):
    path, out = tmp_path / "scores.csv", tmp_path / "out"
    models.to_csv(path, index=False)
    command.run(path, y="accuracy", out=out)
    report = (out / "report.md").read_text()
    assert "--exact" in report and "--penalty 0" in report


def test_command_prints_whole_words_and_reads_the_last_day(tmp_path, models, capsys):
    path, out = tmp_path / "scores.csv", tmp_path / "out"
    hours = pd.to_datetime("2024-01-01 12:00") + pd.to_timedelta(models["order"] // 4, unit="D")
    models.assign(when=hours).to_csv(path, index=False)
    command.run(path, y="accuracy", time="when", group="family", refits=3, out=out, penalty=0.0)
    shown = capsys.readouterr().out
    assert "…" not in shown and "covered" in shown and "refits" in shown
    drift = pd.read_csv(out / "drift.csv")
    assert drift["n_train"][0] + drift["n_test"][0] == len(models) and drift["p_refit"].notna().all()


def test_command_names_the_column_in_per_cent_and_models_without_a_group(tmp_path, models):
    path = tmp_path / "scores.csv"
    models.assign(bbh=100 * models["accuracy"], base=models["family"].where(models.index > 1)).to_csv(path, index=False)
    with pytest.raises(InputError, match=r"scores.csv: bbh: .*divide by 100"):
        command.run(path, y="bbh", out=tmp_path / "out")
    with pytest.raises(InputError, match=r"scores.csv: base: 2 of 672 models have no label"):
        command.run(path, y="accuracy", group="base", out=tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"y": "accurcy"}, "did you mean accuracy"),
        ({"y": ""}, "no column of scores"),
        ({"y": "accuracy", "x": "family"}, "compute must be positive"),
        ({"y": "accuracy", "periods": "2,4"}, "--periods needs --time"),
        ({"y": "accuracy", "time": "period", "periods": "2,x"}, "--periods must be numbers"),
        ({"y": "accuracy", "time": "family"}, "dates can't be read"),
        ({"y": "accuracy", "share": 0.0}, "--share"),
        ({"y": "accuracy", "refits": -1}, "--refits"),
        ({"y": "family"}, "must be numbers"),
        ({"y": "order"}, "divide by 100"),
        ({"y": "accuracy", "quantile": 2.0}, "quantile"),
    ],
)
def test_command_refuses_bad_options(tmp_path, models, options, said):
    path = tmp_path / "scores.csv"
    models.to_csv(path, index=False)
    with pytest.raises(InputError, match=said):
        command.run(path, out=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
