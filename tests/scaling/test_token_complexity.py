"""Token sample complexity of attention: exact laws, invariances, traps, bad input, heads of models, the command."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy.special import comb, softmax
from scipy.stats import norm

from assay.errors import InputError
from assay.scaling import token_complexity as tc
from assay.scaling.token_complexity import command, conformance
from assay.scaling.token_complexity.convergence import extrapolated, fit_exponent, nested_attention, nested_from_weights
from assay.scaling.token_complexity.hardmax import log_rate_fit, shortfall
from assay.scaling.token_complexity.heads import default_ns, split_tokens
from assay.scaling.token_complexity.judging import log_damage_ratios
from assay.scaling.token_complexity.theory import expected_maximum

# What assay.conformance makes of the method, asserted by tests/test_every_method.py.
CHECKS = {"passed": 129, "excused": 1, "oracles": 13, "oracles_without_data": 13}


def direct(q, k, v, scale=1.0):
    """The definition, one softmax."""
    return softmax(scale * np.asarray(q) @ np.asarray(k).T, axis=1) @ np.asarray(v)


# Oracles: closed forms


def test_oracle_gaussian_closed_form_agrees_with_a_million_tokens():
    rng = np.random.default_rng(0)
    root = np.array([[1.0, 0.0], [0.5, 0.8]])
    mean, cov, V = np.array([0.3, -0.2]), root @ root.T, np.array([[1.0, 2.0], [0.0, -1.0], [1.0, 0.0]])
    x = np.array([1.0, 0.4])
    M = np.eye(2) / np.linalg.norm(x)  # |b| = 1
    n = 1_000_000
    y = mean + rng.standard_normal((n, 2)) @ root.T
    measured = direct((M @ x)[None], y, y @ V.T)[0]
    exact = tc.gaussian_attention(x, mean, cov, M, V)
    error = np.sqrt(np.diag(tc.asymptotic_cov(x, mean, cov, M, V)) / n)
    assert (np.abs(measured - exact) < 4 * error).all()


@pytest.mark.parametrize(("b", "variance"), [(0.5, 1.60503), (1.0, 5.43656), (1.5, 30.8351)])
def test_oracle_limiting_variance_in_one_dimension(b, variance):
    found = tc.asymptotic_cov([b], [0.0], [[1.0]], [[1.0]])[0, 0]
    assert found == pytest.approx(variance, rel=1e-5)
    z = np.linspace(-12, 16, 400_001)  # E[w^2 (y - b)^2] / E[w]^2 by quadrature, without our formula
    density = norm.pdf(z) * (z[1] - z[0])
    quadrature = (density * np.exp(2 * b * z) * (z - b) ** 2).sum() / (density * np.exp(b * z)).sum() ** 2
    assert quadrature == pytest.approx(variance, rel=1e-5)


def test_oracle_without_scores_attention_is_the_mean():
    """M = 0: A_n is V mean(y), with covariance V S V' / n exactly, and the exponent is one half."""
    rng = np.random.default_rng(1)
    V, cov = np.array([[1.0, 2.0]]), np.array([[1.0, 0.3], [0.3, 2.0]])
    np.testing.assert_allclose(tc.asymptotic_cov([5.0, 1.0], [0, 0], cov, np.zeros((2, 2)), V), V @ cov @ V.T)
    y = rng.standard_normal((20_000, 2)) @ np.linalg.cholesky(cov).T
    found = tc.attention_convergence(np.zeros((2, 2)), y, y @ V.T, [10, 30, 100, 300, 1000], n_rep=200)
    assert found.lam == 0 and found.beta_pred == 0.5
    assert found.beta_ci[0] < 0.5 < found.beta_ci[1] and abs(found.beta - 0.5) < 0.05
    exact = np.sqrt(2 / np.pi * (V @ cov @ V.T)[0, 0] / found.table.n) * np.sqrt(1 - found.table.n / 20_000)
    np.testing.assert_allclose(found.table.err, exact, rtol=0.25)
    np.testing.assert_allclose(found.table.n_eff, found.table.n)


@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_oracle_two_point_measure_by_its_binomial_law(n):
    """Tokens of -1 and 1: A = tanh(b), and the number of ones decides A_n."""
    b = 0.7
    ones = np.arange(n + 1)
    outputs = (ones * np.exp(b) - (n - ones) * np.exp(-b)) / (ones * np.exp(b) + (n - ones) * np.exp(-b))
    exact = (comb(n, ones) / 2.0**n) @ np.abs(outputs - np.tanh(b))
    rng = np.random.default_rng(n)
    tokens = rng.choice([-1.0, 1.0], size=(20_000, n))
    measured = np.array([nested_attention(b * row[:, None], row[:, None], [n])[0][0, 0, 0] for row in tokens])
    errors = np.abs(measured - np.tanh(b))
    assert abs(errors.mean() - exact) < 4 * errors.std() / np.sqrt(len(errors)) + 1e-12


@pytest.mark.parametrize(
    ("p", "lam", "exponent"),
    [(1, 0.5, 1 / 2), (1, 1, 1 / 2), (1, 2, 1 / 3), (1, 4, 1 / 5), (2, 0.5, 1), (2, 0.75, 0.8), (2, 1, 2 / 3),
     (2, 2, 0.4), (2, 4, 2 / 9)],
)
def test_oracle_predicted_exponent_is_the_least_cost_of_a_query(p, lam, exponent):
    assert float(tc.predicted_exponent(lam, p)) == pytest.approx(exponent, rel=1e-12)
    t = np.linspace(0, 1.2, 1_200_001)
    h = np.where(t < 0.5, 0.5 - t**2, np.where(t < 1, (1 - t) ** 2, 0))
    assert (t**2 / lam + p * h).min() == pytest.approx(exponent, abs=1e-9)


@pytest.mark.parametrize("lam", [0.25, 0.5, 0.75, 1.0, 2.0, 4.0])
def test_oracle_rare_token_sets_lower_the_mean_square_alone(lam):
    """Cost of a query at t and of a largest token at a sqrt(2 ln n), a > 1: both minimised numerically."""
    t, a = np.linspace(1e-4, 1.2, 1201)[:, None], np.linspace(1, 6, 5001)[None]
    for p in (1, 2):
        rare = (a**2 - 1 + p * np.maximum(0, 1 + t**2 - 2 * a * t)).min(axis=1)
        cost = (t[:, 0] ** 2 / lam + np.minimum(p * tc.freezing_exponent(t[:, 0]), rare)).min()
        assert float(tc.predicted_exponent(lam, p, token_sets="mean")) == pytest.approx(cost, abs=2e-3)
    typical, mean = (float(tc.predicted_exponent(lam, 2, token_sets=s)) for s in ("typical", "mean"))
    assert mean < typical if lam > 0.5 else mean == typical


def test_oracle_freezing_by_counting_levels():
    """The largest fluctuation (1 - a^2) / 2 + 2 a t over levels a <= 1, against the sum of all, 1 + t^2."""
    a = np.linspace(0, 1, 100_001)
    for t in (0.0, 0.2, 0.5, 0.7, 0.95):
        best = ((1 - a**2) / 2 + 2 * a * t).max()
        assert float(tc.freezing_exponent(t)) == pytest.approx(1 + t**2 - best, abs=1e-9)


def test_oracle_effective_tokens():
    assert tc.effective_tokens(np.zeros(17)) == pytest.approx(17)
    assert tc.effective_tokens([0.0, 900.0, -900.0]) == pytest.approx(1)
    masked = tc.effective_tokens([[0.0, -np.inf], [1.0, 1.0]], axis=0)
    np.testing.assert_allclose(masked, [1 / (softmax([0, 1]) ** 2).sum(), 1])
    z = np.random.default_rng(0).standard_normal(1_000_000)
    assert tc.effective_tokens(0.8 * z) == pytest.approx(len(z) * np.exp(-0.64), rel=0.02)


def test_oracle_whole_pool_has_no_error_and_one_token_returns_its_value():
    q, k, v = conformance._arrays()
    found = tc.attention_convergence(q, k, v, [10, 50, 100, 400], n_rep=4)
    assert found.table.err.iloc[-1] == 0 and (found.table.err.iloc[:-1] > 0).all()
    outputs, effective = nested_attention(k @ q.T, v, [1])
    np.testing.assert_allclose(outputs[0], np.broadcast_to(v[0], outputs[0].shape), rtol=1e-14)
    np.testing.assert_allclose(effective, 1)


def test_oracle_nested_pass_equals_a_softmax_for_each_n():
    q, k, v = conformance._arrays()
    ns = [1, 3, 10, 57, 400]
    scores = 0.5 * k @ q.T
    outputs, effective = nested_attention(scores, v, ns)
    weights = np.exp(scores - scores.max(axis=0))
    shared, counted, least = nested_from_weights(weights, np.column_stack([v, np.ones(400)]), ns)
    for i, n in enumerate(ns):
        np.testing.assert_allclose(outputs[i], direct(q, k[:n], v[:n], 0.5), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(effective[i], 1 / (softmax(scores[:n], axis=0) ** 2).sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(shared, outputs, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(counted, effective, rtol=1e-11)
    np.testing.assert_allclose(least, weights[0])


def test_oracle_expected_maximum_of_normals():
    for n in (1000, 10**6):
        z = np.linspace(-2, 12, 200_001)
        mean = (z * n * norm.pdf(z) * norm.cdf(z) ** (n - 1)).sum() * (z[1] - z[0])
        assert float(expected_maximum(n)) == pytest.approx(mean, abs=1 / np.sqrt(2 * np.log(n)))


def test_oracle_spectral_lambda():
    rng = np.random.default_rng(3)
    M, root = rng.standard_normal((4, 4)), rng.standard_normal((4, 4))
    cov = root @ root.T
    # The spectrum of S^(1/2) M'SM S^(1/2) is that of M'SM S, without a root.
    assert tc.spectral_lambda(M, cov) == pytest.approx(np.linalg.eigvals(M.T @ cov @ M @ cov).real.max())
    assert tc.spectral_lambda(3 * np.eye(2), np.eye(2)) == pytest.approx(9)
    queries = rng.standard_normal((200_000, 4)) @ root.T
    g = np.einsum("ij,jk,ik->i", queries @ M.T, cov, queries @ M.T)
    assert g.mean() == pytest.approx(np.trace(M.T @ cov @ M @ cov), rel=0.02)


def exact_mean_square(b, log_n, y):
    """E (A_n(b) - b)^2 for standard normal tokens on the grid y, from 1 / Z^2 = int s exp(-s Z) ds: no asymptotics."""
    p = np.exp(-y * y / 2) / np.sqrt(2 * np.pi) * (y[1] - y[0])
    s = np.linspace(-b * y[-1] - 5, 12 * b + 5, 901)  # log s
    sw = np.exp(np.minimum(s[:, None] + b * y, 7.0))
    left = np.exp(-sw)
    log_phi = np.log1p(-np.minimum(-np.expm1(-sw) @ p, 1 - 1e-15))
    own, cross = (sw**2 * left * (y - b) ** 2) @ p, (sw * left * (y - b)) @ p
    n = np.exp(log_n)
    rest = np.exp(np.maximum((n - 2) * log_phi, -745))
    return (n * own * rest * np.exp(log_phi) + n * (n - 1) * cross**2 * rest).sum() * (s[1] - s[0])


@pytest.mark.parametrize(("highest", "token_sets"), [(3.0, "mean"), (1.0, "typical")])
def test_oracle_mean_square_at_astronomical_n(highest, token_sets):
    """Exact over all token sets, or over those without a token above sqrt(2 ln n), which are nearly all of them."""
    logs = []
    for digits in (32, 64):
        log_n = digits * np.log(10)
        reach = np.sqrt(2 * log_n)
        b = np.linspace(0.02, 1.25 * reach + 4, 36)
        y = [np.linspace(-12, reach if highest == 1.0 else max(reach, 2 * each) + 25, 801) for each in b]
        errors = np.array([exact_mean_square(each, log_n, grid) for each, grid in zip(b, y, strict=True)])
        logs.append(np.log(np.trapezoid(errors * np.exp(-b * b / 2 / 4.0), b)))
    slope = (logs[0] - logs[1]) / (32 * np.log(10))
    away = {s: abs(slope - float(tc.predicted_exponent(4.0, 2, token_sets=s))) for s in ("typical", "mean")}
    assert away[token_sets] < 0.004 < max(away.values())


# Invariances


def test_constants_permutations_duplicates_and_scales_change_nothing():
    q, k, v = conformance._arrays()
    scores = k @ q.T
    whole = nested_attention(scores, v, [400])[0][0]
    order = np.random.default_rng(0).permutation(400)
    np.testing.assert_allclose(nested_attention(scores + 1e3, v, [400])[0][0], whole, rtol=1e-9)
    np.testing.assert_allclose(nested_attention(scores[order], v[order], [400])[0][0], whole, rtol=1e-11)
    twice = nested_attention(np.repeat(scores, 2, axis=0), np.repeat(v, 2, axis=0), [800])[0][0]
    np.testing.assert_allclose(twice, whole, rtol=1e-11)
    one = tc.attention_convergence(q, k, v, conformance.NS, n_rep=8)
    other = tc.attention_convergence(4 * q, k / 4, v, conformance.NS, n_rep=8)
    assert other.beta == pytest.approx(one.beta) and other.lam == pytest.approx(one.lam)
    rescaled = tc.attention_convergence(q, k, v, conformance.NS, n_rep=8, scale=1.0)
    doubled = tc.attention_convergence(2 * q, k, v, conformance.NS, n_rep=8)
    np.testing.assert_allclose(rescaled.table.err, doubled.table.err)


def test_empirical_covariance_tends_to_the_gaussian_one():
    rng = np.random.default_rng(4)
    y = rng.standard_normal((400_000, 2))
    found = tc.asymptotic_cov_empirical([[0.5, 0.2]], y, y, scale=1.0)[0]
    np.testing.assert_allclose(found, tc.asymptotic_cov([0.5, 0.2], [0, 0], np.eye(2), np.eye(2)), rtol=0.05, atol=0.05)


def test_gaussian_reference_and_full_reference_agree_on_gaussian_tokens():
    rng = np.random.default_rng(5)
    k = rng.standard_normal((30_000, 3))
    q = 0.5 * rng.standard_normal((20, 3))
    full, closed = (
        tc.attention_convergence(q, k, k + 1, [30, 100, 300, 1000], reference=r, n_rep=24) for r in ("full", "gaussian")
    )
    np.testing.assert_allclose(full.table.err, closed.table.err, rtol=0.1)
    assert closed.output_norm == pytest.approx(full.output_norm, rel=0.02)


# Traps


def test_trap_exhausted_pool_is_corrected():
    """Without the correction the error vanishes as n nears N, and the exponent comes out too large."""
    rng = np.random.default_rng(6)
    k = rng.standard_normal((500, 2))
    found = tc.attention_convergence(0.3 * rng.standard_normal((30, 2)), k, k, [60, 120, 240, 480], n_rep=200)
    naive = -np.polyfit(np.log(found.table.n), np.log(found.table.err), 1)[0]
    assert abs(found.beta - 0.5) < 0.05 and naive > 0.8


def test_trap_scores_of_hundreds_neither_overflow_nor_vanish():
    rng = np.random.default_rng(7)
    k = rng.standard_normal((2000, 2))
    q = np.array([[3000.0, 0.0], [0.0, -3000.0]])
    found = tc.attention_convergence(q, k, k, [10, 50, 250, 1000], n_rep=8)
    assert np.isfinite(found.table.to_numpy()[1:]).all() and found.regime == "hardmax"
    scores = k @ q.T
    order = scores[:, 0].argsort()  # the lowest scores first: their weights vanish beside the pool's highest
    weights = np.exp(scores - scores.max(axis=0))
    assert nested_from_weights(weights[order], np.column_stack([k, np.ones(2000)])[order], [10, 50])[2].min() < 1e-100
    least = k[order[:10]]
    np.testing.assert_allclose(nested_attention(scores[order], k[order], [10])[0][0], direct(q, least, least))
    assert (found.table.n_eff < 2).all()


def test_trap_mean_error_and_mean_square_have_other_exponents():
    assert float(tc.predicted_exponent(4.0, 2)) < 2 * float(tc.predicted_exponent(4.0, 1))


def test_trap_queries_of_the_pool_see_themselves():
    """With the queries' own keys in the pool the small-n error is larger than with other tokens as queries."""
    rng = np.random.default_rng(8)
    k = 2 * rng.standard_normal((2000, 8))
    own = tc.attention_convergence(k[:64], k, k, [20, 40, 80], n_rep=8)
    other = tc.attention_convergence(2 * rng.standard_normal((64, 8)), k, k, [20, 40, 80], n_rep=8)
    assert (own.table.err > other.table.err).all()


def test_trap_log_corrections_show_in_local_slopes():
    rng = np.random.default_rng(9)
    k = rng.standard_normal((40_000, 1))
    found = tc.attention_convergence(2 * rng.standard_normal((200, 1)), k, k, [40, 200, 1000, 4000], n_rep=24)
    assert found.lam == pytest.approx(4, rel=0.3) and found.table.local_slope.iloc[1:].notna().all()
    assert 0.1 < found.beta < 0.4


def test_tokens_for_inverts_the_fitted_curve():
    q, k, v = conformance._arrays()
    found = tc.attention_convergence(q, k, v, conformance.NS, n_rep=16)
    n = found.tokens_for(0.05)
    assert np.exp(found.log_constant - found.beta * np.log(n)) == pytest.approx(0.05 * found.output_norm)
    for eps in (0, -1, float("nan"), "much"):
        with pytest.raises(InputError, match="eps"):
            found.tokens_for(eps)
    flat = tc.ConvergenceResult(found.table, -0.1, (-0.2, 0.0), 0.0, 0.5, "softmax", 1.0, 10, 1, 0.0)
    assert flat.tokens_for(0.1) == np.inf and flat.summary()["tokens_for"]["10%"] is None


def test_fitted_exponent_of_an_exact_power():
    ns = np.array([10, 30, 100, 300])
    rng = np.random.default_rng(10)
    errors = ns**-0.3 * np.exp(0.01 * rng.standard_normal((40, 4)))
    interval, constant, local = fit_exponent(ns, errors)
    assert interval.estimate == pytest.approx(0.3, abs=0.005) and interval.low < 0.3 < interval.high
    assert constant == pytest.approx(0, abs=0.02) and np.allclose(local, 0.3, atol=0.01)


def test_extrapolation_from_the_smaller_n():
    ns = np.geomspace(10, 1e5, 9)
    assert extrapolated(ns, 3 * ns**-0.25) == pytest.approx(1)
    # 1/sqrt(n) from a middle of the smaller n, 100, to 10^5 covers a fall that takes n^-1/4 all the way.
    assert extrapolated(ns, 3 * ns**-0.25, 0.5) == pytest.approx((1e5 / 100) ** -0.5)
    assert extrapolated(ns, ns**0.1) == np.inf


def test_log_rate_is_told_from_a_power():
    ns = np.geomspace(100, 1e8, 12)
    r2, gap = log_rate_fit(ns, 0.1 + 2 / np.log(ns))
    assert r2 == pytest.approx(1) and gap < -50
    r2, gap = log_rate_fit(ns, ns**-0.5)
    assert gap > 50 and r2 < 0.95
    exact = shortfall(ns, expected_maximum(ns))
    assert log_rate_fit(ns, exact)[1] < 0


def test_hardmax_cells_draw_what_tokens_give():
    """The study draws the highest of n from its own law; attention over tokens has the same shortfall."""
    from assay.scaling.token_complexity.gaussian import TASKS, column
    from assay.study import Cell

    ns = [10, 100, 1000]
    cell = Cell("gaussian", "attention", options={"task": "hardmax", "reps": 4000, "ns": ns}, data=())
    drawn = TASKS["hardmax"](cell).units
    tokens = np.random.default_rng(0).standard_normal((4000, 1000))
    tops = np.stack([tokens[:, :n].max(axis=1) for n in ns], axis=1)
    given = shortfall(ns, tops)
    for i, n in enumerate(ns):
        error = np.hypot(given[:, i].std(), drawn[column(n)].std()) / np.sqrt(4000)
        assert abs(given[:, i].mean() - drawn[column(n)].mean()) < 4 * error


def test_hardmax_of_a_bounded_pool_reaches_the_best_token():
    rng = np.random.default_rng(11)
    k = rng.uniform(size=(300, 1))
    found = tc.hardmax_convergence([[1.0]], k, k, [10, 50, 299], n_rep=300)
    # A uniform law has alpha = 0 at its edge: the error of the highest of n is about 1 / n.
    assert found.table.err.iloc[0] == pytest.approx(1 / 11, rel=0.2)
    assert found.table.err.is_monotonic_decreasing
    with pytest.raises(InputError, match="3 or more"):
        tc.hardmax_convergence([[1.0]], k, k, [2, 50, 100])
    with pytest.raises(InputError, match="query 1 scores all keys the same"):
        tc.hardmax_convergence([[1.0], [0.0]], k, k, [10, 50, 100])


# Bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": [[np.nan] * 4]}, "q must be finite, got nan in row 0"),
        ({"k": np.full((400, 4), np.inf)}, "k must be finite"),
        ({"ns": [10, 20]}, "at least 3 distinct"),
        ({"ns": [10, 20, 400]}, "at least 3 distinct numbers below the 400"),
        ({"ns": [10, 20, 40, 500]}, "between 1 and the 400 tokens, got 500"),
        ({"ns": [0, 20, 40]}, "got 0"),
        ({"ns": ["many"]}, "whole numbers"),
        ({"q": np.ones((2, 3))}, r"share d_k, got shapes \(2, 3\) and \(400, 4\)"),
        ({"v": np.ones((3, 3))}, r"one row a token each, got shapes \(400, 4\) and \(3, 3\)"),
        ({"k": np.ones((400, 4))}, "attention is constant: all 400 keys are equal"),
        ({"v": np.ones((400, 3))}, "attention is constant: all 400 values are equal"),
        ({"scale": 0}, "scale must be a positive number"),
        ({"scale": 1e308}, "scale must be a positive number, at most"),
        ({"k": np.full((400, 4), 1e200)}, r"k must be at most 1e\+50 in size, got 1e\+200"),
        ({"v": np.full((400, 4), -1e200)}, "v must be at most"),
        ({"ns": [10, 20, 1e30]}, r"between 1 and the 400 tokens, got 1e\+30"),
        ({"random_state": -1}, "random_state must be a whole number, 0 or more, got -1"),
        ({"random_state": "a"}, "random_state"),
        ({"random_state": None}, "random_state"),
        ({"random_state": 1.5}, "random_state"),
        ({"n_rep": 1}, "n_rep"),
        ({"reference": "half"}, "reference must be one of full, gaussian"),
    ],
)
def test_bad_heads_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        tc.attention_convergence(**conformance._head(**change))


@pytest.mark.parametrize(
    ("cov", "message"),
    [([[1.0, 0.0], [0.0, -1.0]], "positive semidefinite, its smallest eigenvalue is -1"),
     ([[1.0, 2.0], [0.0, 1.0]], "symmetric"),
     ([[1.0]], r"shape \(2, 2\), got \(1, 1\)")],
)
def test_bad_covariances_are_refused(cov, message):
    for call in (tc.gaussian_attention, tc.asymptotic_cov):
        with pytest.raises(InputError, match=message):
            call([1.0, 0.0], [0.0, 0.0], cov, np.eye(2))
    with pytest.raises(InputError, match=message):
        tc.spectral_lambda(np.eye(2), cov)


def test_results_beyond_floating_point_numbers_are_refused():
    for call in (
        lambda: tc.gaussian_attention([1e200], [0.0], [[1e200]], [[1e200]]),
        lambda: tc.asymptotic_cov([1e200], [0.0], [[1e200]], [[1e200]]),
        lambda: tc.asymptotic_cov([1.0], [0.0], [[1.0]], [[1.0]], [[1e200]]),
        lambda: tc.asymptotic_cov_empirical([[1e200]], [[1e200]], [[1.0]]),
        lambda: tc.spectral_lambda([[1e200]], [[1e200]]),
        lambda: tc.predicted_exponent(1.0, np.array([1, 2])),
        lambda: tc.predicted_exponent(1.0, True),
        lambda: tc.effective_tokens([1.0, 2.0], axis="a"),
    ):
        with pytest.raises(InputError):
            call()
    assert tc.effective_tokens([1e308, -1e308]) == 1


def test_values_of_any_size_and_origin_have_the_same_curve():
    q, k, v = conformance._arrays()
    found = tc.attention_convergence(q, k, v, conformance.NS, n_rep=8)
    for size in (1e-300, 1e-160, 1e40):
        other = tc.attention_convergence(q, k, size * v, conformance.NS, n_rep=8)
        assert other.beta == pytest.approx(found.beta)
        assert other.tokens_for(0.05) == pytest.approx(found.tokens_for(0.05))
    far = tc.attention_convergence(q, k, v + 1e6, conformance.NS, n_rep=8)
    np.testing.assert_allclose(far.table.err, found.table.err, rtol=1e-6)


def test_single_precision_products_give_the_curve_of_one_softmax_for_each_n():
    """Also where scores spread so far that some queries' sums vanish in single precision."""
    from assay.scaling.token_complexity.convergence import draw_orders

    q, k, v = conformance._arrays()
    for sharp in (1.0, 10.0, 200.0):
        found = tc.attention_convergence(sharp * q, k, v, conformance.NS, n_rep=4, scale=1.0).table
        whole = direct(sharp * q, k, v)
        for i, n in enumerate(conformance.NS):
            errors = [
                np.linalg.norm(direct(sharp * q, k[order[:n]], v[order[:n]]) - whole, axis=1).mean()
                for order in draw_orders(400, 4, 80, 0)
            ]
            assert found.err[i] == pytest.approx(np.mean(errors), abs=1e-6)


# Heads of models


def test_head_report_measures_each_head_and_leaves_the_model():
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    given = conformance._report()
    before = {name: value.clone() for name, value in given["model"].state_dict().items()}
    table = tc.head_report(**given)
    assert list(zip(table["layer"], table["head"], strict=True)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert table.drop(columns="regime").notna().all().all()
    assert all(torch.equal(value, before[name]) for name, value in given["model"].state_dict().items())
    one = tc.head_report(**conformance._report(layers=[1], heads=[1]))
    pd.testing.assert_frame_equal(one, table.iloc[[3]].reset_index(drop=True))


def test_grouped_heads_read_their_own_keys():
    """Two query heads on one key-value head each pair; the report equals the recorded arrays, measured by hand."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from assay.language.hooks import attention_layers, record_attention
    from assay.scaling.token_complexity.heads import token_batches

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = transformers.LlamaModel(config).eval()
    given = conformance._report(model=model)
    table = tc.head_report(**given)
    assert table["kv_head"].tolist() == [0, 0, 1, 1]
    seen = record_attention(model, token_batches(given["tokenizer"], given["texts"], 32))[0]
    queries, pool = split_tokens(seen.position.numpy() == 0, 8, 0)
    for head in range(4):
        q, k, v = (a.double().numpy() for a in (seen.q[:, head], seen.k[:, head // 2], seen.v[:, head // 2]))
        found = tc.attention_convergence(q[queries], k[pool], v[pool], given["ns"], n_rep=3)
        assert table["beta"][head] == pytest.approx(found.beta)
    assert attention_layers(model)[0].scale == pytest.approx(8**-0.5)


def test_first_tokens_are_left_out_and_told_of():
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    model = conformance.tiny_bert()
    with torch.no_grad():
        model.embeddings.position_embeddings.weight[0] *= 500  # a sink: the first token's key is far from all others
    table = tc.head_report(**conformance._report(model=model))
    assert (table["lam_all"] > 1.5 * table["lam"]).any()


def test_models_without_projections_are_refused_by_type():
    torch = pytest.importorskip("torch")
    for model in (torch.nn.Linear(2, 2), object()):
        with pytest.raises(TypeError, match="supported are BERT"):
            tc.head_report(model, str.split, ["text"])


def test_default_numbers_of_tokens_stay_within_a_quarter_of_the_pool():
    assert default_ns(8192) == [32, 64, 128, 256, 512, 1024, 2048]
    for pool in (64, 100, 1000):
        assert len(default_ns(pool)) >= 3 and default_ns(pool)[-1] <= pool / 4


def test_ratio_of_damage_by_quarters_of_each_layer():
    lam = np.arange(8.0)
    damage = np.log(np.where(lam >= 6, 8.0, 2.0))[:, None]
    assert np.exp(log_damage_ratios(np.zeros(8), lam, damage)) == pytest.approx(4)
    # A layer that does more damage and has larger spectral numbers throughout is no evidence by itself.
    layer = np.repeat([0, 1], 8)
    found = log_damage_ratios(layer, np.r_[lam, lam + 10], np.r_[damage, damage + 5])
    np.testing.assert_allclose(np.exp(found), 4)
    assert log_damage_ratios(layer, np.ones(16), np.ones((16, 2))).shape == (0, 2)


def test_downstream_readers_follow_the_models():
    """What runs on from a kept state is what the model itself gives; the whole pool against itself does no damage."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from assay.language.hooks import attention_layers
    from assay.scaling.token_complexity.model_heads import _damage, _Decoder, _Encoder

    ids = torch.arange(24).reshape(2, 12)
    encoder = conformance.tiny_bert()
    reader = _Encoder(encoder, ids)
    with torch.no_grad():
        last = encoder.encoder.layer[1](reader.entering[1])
        assert torch.allclose(last, encoder(input_ids=ids).last_hidden_state, atol=1e-6)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )
    decoder = transformers.LlamaForCausalLM(config).eval()
    reading = _Decoder(decoder, ids)
    with torch.no_grad():
        states = reading._run(reading.layers[1], reading.entering[1])
        logits = decoder.lm_head(decoder.model.norm(states))
        assert torch.allclose(logits, decoder(input_ids=ids).logits, atol=1e-5)
    for body, each in ((encoder, reader), (decoder.model, reading)):
        layer = attention_layers(body)[0]
        k, v = torch.randn(50, layer.head_dim), torch.randn(50, layer.head_dim)
        found = _damage(body, layer, 1, k, v, each, {"damage_ns": [5, 50], "draws": 3})
        assert abs(found["damage_50"]) < 1e-6 * found["damage_5"]
        assert set(found) >= {"damage_5", "damage_50"}
        # Removal is an output of zeros; values of zero are that too, whatever is sampled.
        nothing = _damage(body, layer, 1, k, torch.zeros_like(v), each, {"damage_ns": [5], "draws": 1})
        assert found["damage_removed"] > 1e-9 > abs(nothing["damage_removed"]) and abs(nothing["damage_5"]) < 1e-9


# The study


def test_passages_and_pool_come_from_other_topics():
    from assay.scaling.token_complexity.model_heads import _texts, help_texts

    topics = help_texts()
    assert len(topics) > 50 and list(topics) == sorted(topics)
    given = {"a": "x" * 40, "b": "y" * 40, "c": "x" * 40, "d": "y" * 40}
    pool, passages = _texts(given, conformance._Characters(), {"pool": 50, "passage": 8, "passages": 1})
    assert pool == ["x" * 40, "x" * 40] and passages.shape == (1, 8) and set(passages[0].tolist()) == {ord("y") % 60}


def heads_table(beta_of, seed=0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    lam = np.exp(rng.normal(0.5, 0.8, 72))
    predicted = tc.predicted_exponent(lam)
    return pd.DataFrame({
        "layer": np.repeat(range(6), 12), "head": np.tile(range(12), 6), "lam": lam, "beta_pred": predicted,
        "beta": beta_of(predicted, rng), "damage_removed": (heeded := np.exp(0.3 * rng.standard_normal(72))),
        "damage_32": heeded * lam * np.exp(0.1 * rng.standard_normal(72)),
    })


def verdict_of(claim: str, units: pd.DataFrame, dataset: str = "minilm-weights"):
    import assay.catalogue as catalogue
    from assay.study import Cell, Results, Row

    study = catalogue.get("token-complexity").study()
    row = Row(Cell(dataset, "attention", options={"task": "heads"}, data=()), "measured", {}, units)
    return next(v for v in study.verdicts(Results([row])) if v.claim == claim)


def test_verdicts_on_heads_need_order_and_resample_layers():
    ordered = heads_table(lambda predicted, rng: predicted + 0.02 * rng.standard_normal(72))
    assert verdict_of("C5", ordered).outcome == "holds" and verdict_of("C5", ordered).n == 6
    random = heads_table(lambda predicted, rng: rng.standard_normal(72))
    assert verdict_of("C5", random).outcome != "holds"
    constant = heads_table(lambda predicted, rng: predicted).assign(beta_pred=0.5)
    assert verdict_of("C5", constant).outcome == "unclear"
    assert verdict_of("C6", ordered).outcome == "holds" and verdict_of("C6", ordered).parts[0].effect > 2
    assert verdict_of("C6", ordered.assign(damage_32=ordered["damage_removed"] / ordered["lam"])).outcome == "fails"
    assert verdict_of("C6", ordered, "smollm2-gguf").outcome == "untested"
    assert verdict_of("C6", ordered.assign(damage_32=ordered["damage_removed"])).outcome == "unclear"
    # Heads that the model heeds less the larger lam is: more is lost of what they do, and no more is lost.
    unheeded = ordered.assign(damage_removed=1 / ordered["lam"], damage_32=np.exp(0.1 * ordered["beta"]))
    assert verdict_of("C6", unheeded).outcome != "holds"


def test_full_tier_contains_the_quick_one():
    import assay.catalogue as catalogue
    from assay.study import Tier

    study = catalogue.get("token-complexity").study()
    assert set(study.cells(Tier.quick)) <= set(study.cells(Tier.full))


def test_minilm_heads_are_measured_on_python_topics():
    pytest.importorskip("transformers")
    from assay.datasets import local_file
    from assay.scaling.token_complexity.model_heads import head_table, help_texts

    if any(local_file(name) is None for name in ("minilm-weights", "minilm-config", "minilm-tokenizer")):
        pytest.skip("data absent: minilm-weights")
    options = {
        "pool": 600, "window": 64, "queries": 16, "reps": 3, "ns": [8, 16, 32], "damage_ns": [8, 64], "draws": 1,
        "passages": 2, "passage": 8, "stride": 6,
    }
    table = head_table("minilm", help_texts(), options)
    assert len(table) == 72 and table["damage_8"].notna().sum() == 12
    kept = table.dropna()
    # More tokens of the pool do less damage.
    assert (np.log(kept["damage_8"]).mean() > np.log(kept["damage_64"]).mean()) and (kept["damage_8"] > 0).all()


# The command


def run_command(*arguments: str) -> None:
    import typer

    app = typer.Typer()
    app.command()(command.run)
    app(list(arguments), standalone_mode=False)


def test_command_writes_curve_summary_and_picture(tmp_path):
    run_command(*command.example(tmp_path))
    out = tmp_path / "token-complexity-out"
    assert {"convergence.csv", "summary.json", "convergence.vl.json"} <= {path.name for path in out.iterdir()}
    summary = json.loads((out / "summary.json").read_text())
    with np.load(tmp_path / "head.npz") as held:
        found = tc.attention_convergence(held["q"], held["k"], held["v"], [25, 50, 100, 200, 400])
    assert summary["beta"] == pytest.approx(found.beta) and set(summary["tokens_for"]) == {"1%", "5%", "10%"}
    assert summary["lambda"] == pytest.approx(2, rel=0.5)
    assert pd.read_csv(out / "convergence.csv")["n"].tolist() == [25, 50, 100, 200, 400]


def test_command_reports_on_a_model(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    from assay.scaling.token_complexity import model_heads

    monkeypatch.setattr(model_heads, "load_model", lambda which: (conformance.tiny_bert(), conformance._Characters()))
    measure = tc.head_report
    text = tmp_path / "text.txt"
    text.write_text("a line of text that the model reads, " * 12, encoding="utf-8")
    monkeypatch.setattr(
        "assay.scaling.token_complexity.heads.head_report",
        lambda *given, **named: measure(*given, **named, window=32, n_queries=16),
    )
    words = ["--model", "minilm", "--text", str(text), "--reps", "3", "--ns", "10,20,40"]
    run_command(*words, "--out", str(tmp_path / "out"))
    assert len(pd.read_csv(tmp_path / "out" / "heads.csv")) == 4
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["heads"] == 4


def test_command_refuses_bad_input_and_leaves_nothing(tmp_path):
    arguments = command.example(tmp_path)
    good, out = arguments[1], str(tmp_path / "out")
    np.savez(tmp_path / "short.npz", q=np.ones((2, 2)), k=np.ones((3, 2)))
    np.save(tmp_path / "plain.npy", np.ones(3))
    (tmp_path / "garbage.npz").write_bytes(bytes(range(256)))
    (tmp_path / "empty.txt").write_text(" ")
    (tmp_path / "latin.txt").write_bytes(b"\xff\xfe\xfa")
    for words, message in [
        ([], "either --data or --model"),
        (["--data", good, "--model", "minilm", "--text", "t"], "either --data or --model"),
        (["--model", "minilm"], "belong together"),
        (["--model", "huge", "--text", str(tmp_path / "empty.txt")], "--model must be one of"),
        (["--model", "minilm", "--text", str(tmp_path / "empty.txt")], "is empty"),
        (["--model", "minilm", "--text", str(tmp_path / "latin.txt")], "not UTF-8"),
        (["--model", "minilm", "--text", str(tmp_path / "none.txt")], "can't be read"),
        (["--data", str(tmp_path / "none.npz")], "does not exist"),
        (["--data", str(tmp_path / "short.npz")], "lacks the array v; it has q, k"),
        (["--data", str(tmp_path / "plain.npy")], "npz file"),
        (["--data", str(tmp_path / "garbage.npz")], "can't be read as an npz"),
        (["--data", good, "--ns", "a,b"], "--ns must be whole numbers"),
        (["--data", good, "--ns", "10,20"], "at least 3 distinct"),
        (["--data", good, "--reference", "none"], "reference must be"),
    ]:
        with pytest.raises(InputError, match=message):
            run_command(*words, "--out", out)
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="is a file"):
        run_command("--data", good, "--out", good)


def test_command_chooses_numbers_of_tokens(tmp_path):
    arguments = command.example(tmp_path)
    run_command("--data", arguments[1], "--reps", "4", "--out", str(tmp_path / "out"))
    assert pd.read_csv(tmp_path / "out" / "convergence.csv")["n"].tolist() == default_ns(4000)


def test_inputs_are_not_changed_and_float32_gives_the_same_exponent():
    q, k, v = conformance._arrays()
    copies = [each.copy() for each in (q, k, v)]
    double = tc.attention_convergence(q, k, v, conformance.NS, n_rep=8)
    single = tc.attention_convergence(*(each.astype(np.float32) for each in (q, k, v)), conformance.NS, n_rep=8)
    assert all(np.array_equal(a, b) for a, b in zip(copies, (q, k, v), strict=True))
    assert single.beta == pytest.approx(double.beta, abs=1e-5)
