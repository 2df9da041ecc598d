"""Quantised SGD and its laws: rounding, recursions against simulation, ridge limits, law, study, command."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge

from assay.catalogue import get
from assay.errors import InputError
from assay.scaling.low_precision import (
    PrecisionLaw,
    QuantScheme,
    bits_to_eps,
    command,
    eps_to_bits,
    plan_precision,
    risk_grid,
    risk_recursion,
    sketched_sgd,
    spectrum_from_data,
    spectrum_powerlaw,
    stochastic_round,
    target_powerlaw,
    tasks,
)
from assay.scaling.low_precision.baselines import KumarLaw
from assay.scaling.low_precision.conformance import _runs as law_runs
from assay.scaling.low_precision.quantisers import QUANTITIES
from assay.scaling.low_precision.recursion import _Full, limit_risks, sketch_risks
from assay.scaling.low_precision.simulation import simulate
from assay.scaling.low_precision.spectra import Sketches, gaussian_problem, sketches
from assay.study import Outcome, Results, Row, Tier

# What assay.conformance makes of the method, asserted by tests/test_every_method.py.
CHECKS = {"passed": 142, "excused": 4, "oracles": 9, "oracles_without_data": 9}

MODES = ("multiplicative", "additive")


def small_problem() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Spectrum, target and a sketch of 4 rows."""
    lam = spectrum_powerlaw(8, 1.5)
    return lam, target_powerlaw(lam, 2.0), np.random.default_rng(5).standard_normal((4, 8)) / 2


# --- rounding -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0.3, -1.62, 7.0])
def test_oracle_stochastic_rounding_is_unbiased_with_the_known_variance(value):
    step, n = 0.25, 1_000_000
    error = stochastic_round(np.full(n, value), step=step, generator=1) - value
    fraction = value / step - np.floor(value / step)
    variance = fraction * (1 - fraction) * step**2
    assert abs(error.mean()) <= 4 * np.sqrt(variance / n)
    spread = np.sqrt(max(0.0, np.mean(error**4) - variance**2) / n)
    assert abs(np.mean(error**2) - variance) <= 4 * spread + 1e-15


def test_oracle_float_rounding_is_unbiased_and_as_coarse_as_its_bits_say():
    u = np.random.default_rng(0).standard_normal(1_000_000)
    eps = bits_to_eps(4)
    error = stochastic_round(u, rel_eps=eps, generator=2) - u
    assert abs(error.mean()) <= 4 * error.std() / 1e3
    # Over a binade the mean of 2**2k / u**2 is 1 / (2 ln 2) * 3/4: uniform in log u.
    assert np.mean((error / u) ** 2) == pytest.approx(eps * 0.75 / (2 * np.log(2)), rel=0.05)


def test_bits_and_eps_are_one_mapping():
    bits = np.array([1.0, 3.5, 8.0])
    np.testing.assert_allclose(eps_to_bits(bits_to_eps(bits, 2.0), 2.0), bits)
    assert eps_to_bits(0.0) == np.inf
    assert QuantScheme("int", data=8, full_scale=3.0).eps("data") == pytest.approx(9 * bits_to_eps(8))
    assert QuantScheme("float", data=4).split("data") == (bits_to_eps(4), 0.0)
    u = np.random.default_rng(0).uniform(-1, 1, 400_000)
    error = stochastic_round(u, step=2 / 2**5, generator=3) - u
    assert np.mean(error**2) == pytest.approx(bits_to_eps(5), rel=0.01)


# --- simulation ---------------------------------------------------------------------------------------------------


def plain_sgd(problem, drawn, M: int, N: int, seed: int) -> np.ndarray:
    """Textbook SGD on the very samples that the simulation draws."""
    S = drawn.S[seed]
    draw, rng = problem.sketched(S), np.random.default_rng([0, seed, 1])
    scale = np.sqrt(len(S) / M)
    lr = 0.5 / np.trace(drawn.of(M)[0][seed])
    v, length = np.zeros(M), int(N / np.log2(N))
    z, y = draw(rng, N)
    for t in range(N):
        features = scale * z[t, :M]
        v = v + lr * 0.5 ** (t // length) * (y[t] - features @ v) * features
    return v


def test_oracle_without_rounding_it_is_plain_sgd():
    lam = spectrum_powerlaw(40, 1.5)
    problem = gaussian_problem(lam, target_powerlaw(lam, 2.0), 0.1)
    drawn = sketches(problem, 8, 3)
    schemes = [QuantScheme(), QuantScheme("multiplicative"), QuantScheme("additive"), QuantScheme("int")]
    found = simulate(problem, drawn, [4, 8], 200, schemes, "max")
    for other in range(1, 4):
        np.testing.assert_array_equal(found.risks[other], found.risks[0])
        np.testing.assert_array_equal(found.weights[1][other], found.weights[1][0])
    for seed in range(3):
        np.testing.assert_allclose(found.weights[0][0, seed], plain_sgd(problem, drawn, 4, 200, seed), rtol=1e-10)


def test_a_scheme_does_not_depend_on_its_company():
    lam = spectrum_powerlaw(40, 1.5)
    problem = gaussian_problem(lam, target_powerlaw(lam, 2.0), 0.1)
    drawn = sketches(problem, 8, 3)
    signs, grid = QuantScheme("additive", data=0.1), QuantScheme("int", data=6, full_scale=8.0)
    mixed = [grid, signs, QuantScheme("float", data=3)]
    together = simulate(problem, drawn, [8], 150, mixed, "max").risks
    for number, scheme in enumerate(mixed):
        alone = simulate(problem, drawn, [8], 150, [scheme], "max").risks[0]
        np.testing.assert_allclose(together[number], alone, rtol=1e-10)


def test_real_rounding_agrees_with_its_second_moment():
    lam = spectrum_powerlaw(64, 1.5)
    w = target_powerlaw(lam, 2.0)
    scheme = QuantScheme("int", data=5, full_scale=8.0)
    real = sketched_sgd(lam, w, 8, 100, scheme, seeds=12)
    predicted = risk_recursion(lam, w, 8, 100, scheme, seeds=12, method="full")
    none = risk_recursion(lam, w, 8, 100, seeds=12, method="full")
    plain = sketched_sgd(lam, w, 8, 100, seeds=12)
    gain, expected = (real - plain), predicted - none
    assert abs(gain.mean() - expected) <= 4 * gain.std(ddof=1) / np.sqrt(12)


def test_clipping_and_divergence_are_said():
    lam = spectrum_powerlaw(64, 1.5)
    w = target_powerlaw(lam, 2.0)
    with pytest.warns(UserWarning, match="clipped"):
        sketched_sgd(lam, w, 8, 100, QuantScheme("int", data=8, full_scale=0.3), seeds=2)
    with pytest.warns(UserWarning, match="diverged"):
        risks = sketched_sgd(lam, w, 8, 400, lr=5.0, seeds=2)
    assert np.isinf(risks).all()
    assert risk_recursion(lam, w, 8, 2000, lr=5.0, seeds=2) == np.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sketched_sgd(lam, w, 8, 100, QuantScheme("int", data=8, full_scale=16.0), seeds=2)


def test_a_fixed_step_diverges_under_coarse_constant_rounding_and_the_reduced_one_does_not():
    lam = spectrum_powerlaw(1024, 1.5)
    w = target_powerlaw(lam, 2.0)
    scheme = QuantScheme("additive", data=0.1)
    drawn = sketches(gaussian_problem(lam, w, 0.1), 256, 2)
    fixed = 0.5 / np.trace(drawn.A[0])
    assert risk_recursion(lam, w, 256, 4000, scheme, lr=fixed, seeds=2) > 2.0
    assert risk_recursion(lam, w, 256, 4000, scheme, seeds=2) < 0.35


# --- the recursions -----------------------------------------------------------------------------------------------


def half_step(scheme: QuantScheme) -> float:
    """Half of the largest step: at the largest a run's risk is so heavy-tailed that a standard error tells little."""
    lam, _, S = small_problem()
    relative, absolute = scheme.split("data")
    others = np.prod([1 + scheme.split(name)[0] for name in ("param", "activation", "gradient")])
    return 0.25 / ((np.sum(S**2 * lam) * (1 + relative) + absolute * len(S)) * others)


def literal_runs(scheme: QuantScheme, N: int, batch: int, runs: int) -> np.ndarray:
    """Quantised SGD in x, as the equations stand, for one sketch and many runs at once; risks."""
    lam, w, S = small_problem()
    rng = np.random.default_rng([N, batch, len(scheme.mode)])
    A, b = (S * lam) @ S.T, S @ (lam * w)

    def rounded(name: str, u: np.ndarray) -> np.ndarray:
        relative, absolute = scheme.split(name)
        sign = rng.choice([-1.0, 1.0], u.shape)
        return u + np.sqrt(relative) * np.abs(u) * sign + np.sqrt(absolute) * sign

    lr = half_step(scheme)
    updates = N // batch
    length, v = max(1, int(updates / np.log2(updates))), np.zeros((runs, 4))
    for t in range(updates):
        weights, move = rounded("param", v), np.zeros_like(v)
        for _ in range(batch):
            x = rng.standard_normal((runs, 8)) * np.sqrt(lam)
            y = x @ w + 0.1 * rng.standard_normal(runs)
            z = rounded("data", x @ S.T)
            read = rounded("activation", np.sum(z * weights, axis=1))
            error = rounded("gradient", rounded("label", y) - read)
            move += error[:, None] * z / batch
        v = v + lr * 0.5 ** (t // length) * move
    return lam @ w**2 + 0.01 - 2 * v @ b + np.sum((v @ A) * v, axis=1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("quantity", [*QUANTITIES, "all"])
def test_oracle_full_recursion_is_within_3_standard_errors_of_independent_runs(mode, quantity):
    lam, w, S = small_problem()
    chosen = QUANTITIES if quantity == "all" else (quantity,)
    scheme = QuantScheme(mode, **dict.fromkeys(chosen, 0.2))
    for N in (2, 6, 20, 60, 200):
        risks = literal_runs(scheme, N, 1, 2000)
        exact = risk_recursion(lam, w, 4, N, scheme, half_step(scheme), sketch=S, method="full")
        assert abs(risks.mean() - exact) <= 3 * risks.std(ddof=1) / np.sqrt(len(risks)), N


@pytest.mark.parametrize("mode", MODES)
def test_oracle_full_recursion_in_batches(mode):
    lam, w, S = small_problem()
    scheme = QuantScheme(mode, **dict.fromkeys(QUANTITIES, 0.2))
    for N in (8, 40, 160):
        risks = literal_runs(scheme, N, 4, 2000)
        exact = risk_recursion(lam, w, 4, N, scheme, half_step(scheme), sketch=S, method="full", batch=4)
        assert abs(risks.mean() - exact) <= 3 * risks.std(ddof=1) / np.sqrt(len(risks)), N


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("quantity", QUANTITIES)
def test_fast_recursion_is_near_the_full_one(mode, quantity):
    # What it leaves out is of relative size eps and falls with M; where data and weights are left alone it is exact.
    lam = spectrum_powerlaw(64, 1.5)
    w = target_powerlaw(lam, 2.0)
    scheme = QuantScheme(mode, **{quantity: 0.1})
    for batch in (1, 4):
        fast, full = (
            risk_recursion(lam, w, 16, 400, scheme, seeds=3, batch=batch, method=method)
            for method in ("eigenbasis", "full")
        )
        exact = quantity in ("label", "activation", "gradient") or (mode == "additive" and quantity == "param")
        assert fast == pytest.approx(full, rel=1e-9 if exact else 0.02)


def test_oracle_isotropic_features_without_noise_contract_as_known():
    p, N, lam = 6, 40, 0.7
    w = np.arange(1.0, p + 1)
    length, lr = int(N / np.log2(N)), 0.05
    steps = lr * 0.5 ** (np.arange(N) // length)
    closed = lam * w @ w * np.prod(1 - 2 * steps * lam + (steps * lam) ** 2 * (p + 2))
    for method in ("full", "eigenbasis"):
        risk = risk_recursion(
            np.full(p, lam), w, p, N, lr=lr, noise=0.0, sketch=np.eye(p), method=method
        )
        assert risk == pytest.approx(closed, rel=1e-9)
    state = _Full(lam * np.eye(p), lam * w, float(lam * w @ w), QuantScheme(), 1)
    mean, V = np.zeros(p), np.zeros((p, p))
    for t in range(5):
        np.testing.assert_allclose(mean - w, -((1 - lr * lam) ** t) * w, rtol=1e-12)
        mean, V = state.step(mean, V, lr)


@pytest.mark.parametrize("mode", MODES)
def test_oracle_unlimited_samples_give_ridge_regression(mode):
    lam, w, S = small_problem()
    problem = gaussian_problem(lam, w, 0.1)
    A, b = problem.moments(S)
    eps = 0.3
    penalty = eps * (np.diag(A) if mode == "multiplicative" else np.ones(4))
    # scikit-learn's ridge regression on rows with second moment A, each feature in the unit in which its penalty is 1.
    rows = np.linalg.cholesky(A).T
    label = np.linalg.solve(rows.T, b)
    ridge = Ridge(alpha=1.0, fit_intercept=False, solver="cholesky").fit(rows / np.sqrt(penalty), label)
    v = ridge.coef_ / np.sqrt(penalty)
    scheme = QuantScheme(mode, data=eps)
    state = _Full(A, b, problem.second_moment, scheme, 1)
    mean, V = np.zeros(4), np.zeros((4, 4))
    for _ in range(4000):
        mean, V = state.step(mean, V, 0.1)
    np.testing.assert_allclose(mean, v, rtol=1e-8)
    plain, read = limit_risks(problem.second_moment, A, b, scheme)
    assert plain == pytest.approx(problem.second_moment - 2 * b @ v + v @ A @ v)
    assert read == pytest.approx(plain + penalty @ v**2)
    assert risk_recursion(lam, w, 4, 40_000, scheme, sketch=S) == pytest.approx(plain, rel=5e-3)


def test_oracle_approximation_error_falls_as_m_to_the_one_minus_b():
    lam = spectrum_powerlaw(2048, 1.5)
    problem = gaussian_problem(lam, target_powerlaw(lam, 2.0), 0.0)
    drawn, sizes = sketches(problem, 64, 6), [8, 16, 32, 64]
    errors = []
    for M in sizes:
        A, b = drawn.of(M)
        exact = [problem.second_moment - b[k] @ np.linalg.solve(A[k], b[k]) for k in range(6)]
        found = [limit_risks(problem.second_moment, A[k], b[k], QuantScheme())[0] for k in range(6)]
        np.testing.assert_allclose(found, exact, rtol=1e-8)
        errors.append(np.mean(exact))
    assert np.polyfit(np.log(sizes), np.log(errors), 1)[0] == pytest.approx(-1.0, abs=0.25)


def test_oracle_pilot_table():
    # Excess risks of the card's pilot, from other sketches and samples (p 1,024, a 1.5, b 2, N 4,000).
    lam = spectrum_powerlaw(1024, 1.5)
    schemes = [QuantScheme(), QuantScheme("multiplicative", data=0.3), QuantScheme("additive", data=0.03)]
    grid = risk_grid(lam, target_powerlaw(lam, 2.0), [64, 128, 256], [4000], schemes, seeds=6)
    pilot = {0: [0.0823, 0.0500, 0.0347], 1: [0.1058, 0.0659, 0.0437], 2: [0.1348, 0.1155, 0.1120]}
    for number, values in pilot.items():
        np.testing.assert_allclose(grid[grid["scheme"] == number].sort_values("M")["excess"], values, rtol=0.15)


def test_grid_is_the_recursion_row_by_row():
    lam = spectrum_powerlaw(64, 1.5)
    w = target_powerlaw(lam, 2.0)
    schemes = [QuantScheme(), QuantScheme("multiplicative", data=0.1, param=0.1), QuantScheme("additive", data=0.05)]
    grid = risk_grid(lam, w, [16, 8], [100, 300], schemes, seeds=3)
    for row in grid[grid["M"] == 16].itertuples():
        assert row.risk == pytest.approx(risk_recursion(lam, w, 16, row.N, schemes[row.scheme], seeds=3), rel=1e-10)
    assert (grid["excess"] == grid["risk"] - 0.1**2).all()


def test_a_covariance_is_as_good_as_its_eigenvalues():
    lam = spectrum_powerlaw(12, 1.5)
    w = target_powerlaw(lam, 2.0)
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((12, 12)))[0]
    H = (basis * lam) @ basis.T
    found = gaussian_problem(H, basis @ w, 0.1)
    np.testing.assert_allclose(found.spectrum, lam, rtol=1e-9)
    np.testing.assert_allclose(np.abs(found.target), w, rtol=1e-7)
    assert 0.02 < risk_recursion(H, basis @ w, 4, 100) < found.second_moment


def test_spectrum_of_real_features():
    held = tasks.load_dataset("precision-digits")
    lam, w, a = spectrum_from_data(held["X"], held["y"])
    assert lam.sum() == pytest.approx(1.0) and (np.diff(lam) <= 0).all() and 1.0 < a < 3.0
    X = held["X"] - held["X"].mean(axis=0)
    y = (held["y"] - held["y"].mean()) / held["y"].std()
    residual = y - X @ np.linalg.lstsq(X, y, rcond=None)[0]
    assert lam @ w**2 == pytest.approx(1 - np.mean(residual**2), rel=1e-6)


# --- the law ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "law", [PrecisionLaw("additive"), PrecisionLaw("multiplicative"), PrecisionLaw("additive", "model"),
            PrecisionLaw("additive", "data"), PrecisionLaw("additive", "floor"), KumarLaw()],
)
def test_derivatives_of_the_laws(law):
    X, y = law_runs()
    low, high = law._start_ranges(X, y)
    x, rows = 0.6 * low + 0.4 * high, law._prepare(X)
    _, jacobian = law._log_loss(x, rows)
    for column, unit in enumerate(1e-6 * np.eye(len(x))):
        slope = (law._log_loss(x + unit, rows)[0] - law._log_loss(x - unit, rows)[0]) / 2e-6
        np.testing.assert_allclose(jacobian[:, column], slope, atol=1e-7)


def test_the_law_finds_its_own_parameters_and_sizes():
    X, y = law_runs()
    law = PrecisionLaw("additive", n_starts=12).fit(X, y)
    assert law.params_["s"] == pytest.approx(2.0, rel=0.05) and law.params_["a"] == pytest.approx(1.5, rel=0.05)
    assert law.params_["c"] == pytest.approx(3.0, rel=0.05) and law.params_["C"] == pytest.approx(0.5, rel=0.05)
    sizes = law.effective_sizes(pd.DataFrame([[1e9, 1e4, 0.01], [64, 1e4, 0.0]], columns=["M", "N", "eps"]))
    assert sizes["M_eff"][0] == pytest.approx((0.01 / 2) ** (-1 / 1.5), rel=0.05)  # saturated
    assert sizes["M_eff"][1] == pytest.approx(64) and sizes["N_eff"][1] == pytest.approx(1e4)
    forms = law.compare_forms(X, y).set_index("effective")
    assert forms["fitted"].idxmin() == "both" and (forms["held_out"] > 0).all()
    low, high = law.predict_interval(X, n_refits=5)
    assert (low <= high).all()
    assert set(law.identifiability().index) == set(law.parameters)


def test_bits_frames_and_diverged_runs():
    X, y = law_runs()
    frame = pd.DataFrame({"M": X[:, 0], "N": X[:, 1], "bits": eps_to_bits(X[:, 2])})
    by_bits, by_eps = PrecisionLaw("additive", n_starts=4).fit(frame, y), PrecisionLaw("additive", n_starts=4).fit(X, y)
    np.testing.assert_allclose(by_bits.predict(frame), by_eps.predict(X), rtol=1e-6)
    spoilt = y.copy()
    spoilt[[1, 7]] = np.inf
    law = PrecisionLaw("additive", n_starts=4).fit(X, spoilt)
    assert law.n_left_out_ == 2 and len(law.rows_) == len(y) - 2
    with pytest.warns(UserWarning, match="eps is the same"):
        same = X[:, 2] == 0
        PrecisionLaw("additive", "floor", n_starts=2).fit(X[same], y[same])


def test_kumars_law_finds_its_own_parameters():
    M, N, bits = (g.ravel() for g in np.meshgrid([1e2, 1e3, 1e4], [1e4, 1e5, 1e6], [2.0, 3.0, 4.0, 8.0]))
    y = 0.2 + 3 / (M * (1 - np.exp(-bits / 2.5))) ** 0.5 + 30 / N**0.4
    law = KumarLaw(n_starts=16).fit(pd.DataFrame({"M": M, "N": N, "bits": bits}), y)
    assert law.params_["gamma"] == pytest.approx(2.5, rel=0.02) and law.params_["alpha"] == pytest.approx(0.5, rel=0.02)


def test_plans_keep_to_their_budgets_and_warn_where_more_parameters_are_worse():
    law = PrecisionLaw("additive", n_starts=16).fit(*law_runs())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = plan_precision(law, 1e7, bits=[3, 6, 12], memory_bits=300.0)
        turn = plan_precision(law, 1e7, bits=[3])["turning_point"][0]
    np.testing.assert_array_less(plan["M"] * plan["N"] * plan["bits"], 1e7 * (1 + 1e-9))
    np.testing.assert_array_less(plan["M"] * plan["bits"], 300.0 * (1 + 1e-9))
    assert plan["loss"].is_monotonic_increasing
    # At fixed samples and a coarse step the loss turns up with the size.
    sizes = np.array([turn, 4 * turn])
    losses = law.predict(np.column_stack([sizes, np.full(2, 1e4), np.full(2, bits_to_eps(3))]))
    assert np.isfinite(turn) and losses[1] > losses[0]
    with pytest.warns(UserWarning, match="predicted to be worse"):
        plan_precision(law, 1e7, bits=[3])
    with pytest.warns(UserWarning) as caught:
        plan_precision(law, 1e14, bits=[3])
    assert any("outside the fitted rows" in str(w.message) for w in caught)


# --- the study ----------------------------------------------------------------------------------------------------


def textbook_runs() -> pd.DataFrame:
    """A table in which the dichotomy holds to the letter: relative steps keep the size, constant ones bury it."""
    rows = []
    for seed in range(4):
        for N in (500, 1000, 2000, 4000, 8000, tasks.LIMIT):
            samples = 1e12 if N == tasks.LIMIT else N
            for M in (8, 16, 32, 64, 128, 256, 512):
                for mode in ("none", *MODES, "after-multiplicative", "after-additive"):
                    steps = [0.0] if mode == "none" else tasks.EPS[mode.removeprefix("after-")]
                    for eps in steps:
                        # A different constant a sketch, so that slopes show a spread.
                        scale, lost = 1 + 0.02 * seed, 1.0
                        size, floor = float(M), 0.0
                        if mode in MODES:
                            lost, floor = 1 + 4 * eps * (1 + 0.2 * seed), 1e-4 * (1 + 0.2 * seed) * eps
                        if mode == "additive":
                            size = (M ** (-1.5 * scale) + eps / 30) ** (-1 / (1.5 * scale))
                            lost = 1 + 0.2 * eps * M * (1 + 0.2 * seed)
                        risk = scale / size + floor + 1.0 * (samples / lost) ** -0.9
                        extra = 0.002 * eps * (1 + 0.2 * seed) if mode.startswith("after") else 0.0
                        rows.append((mode, eps, M, N, seed, risk, risk + extra))
    return pd.DataFrame(rows, columns=["mode", "eps", "M", "N", "seed", "excess", "read"])


def measured(runs: pd.DataFrame) -> Results:
    """The cells of widths, data and floors at b = 2 on a table."""
    rows = []
    for cell in get("low-precision").study().cells(Tier.quick):
        if cell.options.get("task") in ("width", "data", "floor") and cell.options.get("b") == 2.0:
            found = tasks.TASKS[cell.options["task"]](cell, runs)
            rows.append(Row(cell, "measured", found.metrics, found.units, found.files))
    return Results(rows)


def judge(results: Results) -> dict:
    return {verdict.claim: verdict for verdict in get("low-precision").study().verdicts(results)}


@pytest.fixture(scope="module")
def verdicts():
    """Verdicts on the textbook table, by claim, and those of the controls."""
    results = measured(textbook_runs())
    controls = {
        claim.id: judge(results.with_control(claim.arm, claim.control))[claim.id]
        for claim in get("low-precision").claims.values()
    }
    return judge(results), controls


def test_where_the_dichotomy_holds_the_claims_do(verdicts):
    held, _ = verdicts
    for name in ("q1", "q3", "q6", "q7"):
        assert held[name].outcome is Outcome.holds, held[name].reason
    exponents = [part for part in held["q2"].parts if "exponent" in part.reason]
    assert exponents and all(part.outcome is Outcome.holds for part in exponents), held["q2"].reason
    assert held["q5"].outcome is Outcome.untested and "precision-law" in held["q5"].reason


def test_no_control_holds_where_the_claims_do(verdicts):
    _, controls = verdicts
    for name, verdict in controls.items():
        assert verdict.outcome is not Outcome.holds, f"{name}: {verdict.reason}"


def test_a_floor_without_loss_of_data_is_fewer_samples_for_the_same_risk_but_no_loss_of_data(verdicts):
    found = judge(measured(textbook_runs()).with_control("quantised", "rounded-after"))
    assert found["q3"].outcome is Outcome.holds and all(part.effect < 1 for part in found["q3"].parts)
    assert all(part.effect == pytest.approx(1.0) for part in found["q7"].parts)
    assert {part.outcome for part in found["q7"].parts} == {Outcome.unclear}


def test_what_fails_with_unlimited_samples_leaves_the_claim_on_finite_ones_alone():
    runs = textbook_runs()
    flatter = (runs["mode"] == "multiplicative") & (runs["N"] == tasks.LIMIT)
    runs.loc[flatter, ["excess", "read"]] = runs.loc[flatter, ["excess", "read"]].mul(runs["M"] ** 0.2, axis=0)
    found = judge(measured(runs))
    assert found["q1"].outcome is Outcome.holds and found["q6"].outcome is Outcome.fails, found["q6"].reason


def test_a_scheme_that_reaches_its_own_limit_sooner_loses_no_data_beyond_its_floor():
    runs = textbook_runs()
    own = runs["mode"] == "multiplicative"
    limit = runs[own & (runs["N"] == tasks.LIMIT)].set_index(["eps", "M", "seed"])["read"]
    keys = pd.MultiIndex.from_frame(runs.loc[own, ["eps", "M", "seed"]])
    far = runs.loc[own, "read"] - limit.loc[keys].to_numpy()
    runs.loc[own, "read"] -= 0.8 * far
    found = judge(measured(runs))
    assert found["q3"].outcome is Outcome.holds and found["q7"].outcome is Outcome.fails, found["q7"].reason


def test_floors_are_read_with_their_exponent():
    runs = textbook_runs()
    flat = runs["mode"].isin(MODES)
    base = runs[runs["mode"] == "none"].set_index(["M", "N", "seed"])["excess"]
    keys = pd.MultiIndex.from_frame(runs.loc[flat, ["M", "N", "seed"]])
    runs.loc[flat, "excess"] = base.loc[keys].to_numpy() + 0.1 * runs.loc[flat, "eps"] ** 1.1
    cell = next(c for c in get("low-precision").study().cells(Tier.quick) if c.options["task"] == "floor")
    found = tasks.TASKS["floor"](cell, runs)
    assert found.units["slope"].to_numpy() == pytest.approx(np.full(8, 1.1))


def test_simulated_tables_pair_schemes_and_hold_their_limits():
    options = {
        "dataset": tasks.GAUSSIAN, "a": 1.5, "b": 2.0, "p": 32, "sizes": [4, 8], "samples": [50], "seeds": 2,
        "quantities": ["data"],
    }
    runs = tasks.make_runs(options)
    assert len(runs) == 2 * 2 * (10 + 19) and np.isfinite(runs[["excess", "read"]]).all().all()
    full = runs[runs["mode"] == "none"]
    np.testing.assert_array_equal(full["excess"], full["read"])
    limits = runs[(runs["N"] == tasks.LIMIT) & runs["mode"].isin(MODES)]
    assert (limits["read"] >= limits["excess"]).all()
    after = runs[runs["mode"].str.startswith("after")]
    keyed = full[full["N"] == tasks.LIMIT].set_index(["M", "seed"])["excess"]
    keys = pd.MultiIndex.from_frame(after[["M", "seed"]])
    np.testing.assert_array_equal(after["excess"], keyed.loc[keys])
    assert (after["N"] == tasks.LIMIT).all() and (after["read"] > after["excess"]).all()


def test_recursions_on_real_rows():
    cell = next(
        c for c in get("low-precision").study().cells(Tier.quick) if c.dataset == "precision-diabetes"
    )
    short = replace(cell, options={**cell.options, "repeats": 100, "N": 100})
    found = tasks.TASKS["recursion"](short, pd.DataFrame())
    assert len(found.units) == 10 and found.metrics["off_full_worst"] < 0.25


def test_real_formats_and_choices_of_the_full_tier():
    cells = list(get("low-precision").study().cells(Tier.full))
    cell = next(c for c in cells if c.options["task"] == "formats")
    found = tasks.TASKS["formats"](
        replace(cell, options={**cell.options, "p": 128, "M": 16, "N": 400, "seeds": 4}), pd.DataFrame()
    ).metrics
    assert found["clipped_int8"] == 0 and found["over_full_int8"] == pytest.approx(1.0, abs=0.05)
    assert found["over_full_int4"] > found["over_full_int8"]
    assert found["over_recursion_int8"] == pytest.approx(1.0, abs=0.3)
    plan = next(c for c in cells if c.options["task"] == "plan" and c.arm == "precision-law")
    regret = tasks.TASKS["plan"](
        replace(plan, options={**plan.options, "starts": 2, "fits": 1}), textbook_runs()
    )
    # On a table that the law describes it gives next to nothing away.
    assert (regret.units["regret"] >= 0).all() and regret.metrics["regret_multiplicative"] < 0.05


# --- the command and bad input ------------------------------------------------------------------------------------


def run_table(path, **columns):
    X, y = law_runs()
    frame = pd.DataFrame({"N_params": X[:, 0], "D": X[:, 1], "eps": X[:, 2], "loss": y}).assign(**columns)
    frame.to_csv(path, index=False)
    return path


def options(**given):
    defaults = {
        "runs": None, "mode": "", "bit_budget": None, "bits": "", "memory_bits": None, "spectrum": "",
        "schemes": "mult,add", "eps": "0.01,0.1", "sizes": "", "samples": 200, "target": 2.0, "seeds": 2, "starts": 4,
    }
    return {**defaults, **given}


def test_command_fits_and_plans(tmp_path, capsys):
    path = run_table(tmp_path / "runs.csv")
    command.run(**options(runs=path, mode="additive", bit_budget=1e7, bits="3,6"), out=tmp_path / "out")
    fit = json.loads((tmp_path / "out" / "fit.json").read_text())
    assert {row["law"] for row in fit["held_out"]} == {"precision-law", "kumar", "chinchilla", "floor-only"}
    plan = pd.read_csv(tmp_path / "out" / "plan.csv")
    assert sorted(plan["bits"]) == [3, 6] and (plan["M"] * plan["N"] * plan["bits"] <= 1e7 * 1.001).all()
    assert (tmp_path / "out" / "report.md").read_text().startswith("# Scaling law of precision on runs.csv")
    assert "best plan" in capsys.readouterr().out


def test_command_reads_modes_and_diverged_runs(tmp_path):
    X, _ = law_runs()
    modes = np.where(X[:, 2] == 0, "none", np.where(np.arange(len(X)) % 2, "int", "fp"))
    path = run_table(tmp_path / "runs.csv", mode=modes)
    table, notes = command.read_precision_runs(path)
    assert set(table["mode"]) == {"none", "additive", "multiplicative"} and not notes
    frame = pd.read_csv(path)
    frame.loc[3, "loss"] = np.inf
    frame.to_csv(path, index=False)
    assert "1 runs that diverged" in command.read_precision_runs(path)[1][0]


@pytest.mark.parametrize("spectrum", ["powerlaw:1.5", "digits", "diabetes"])
def test_command_simulates(tmp_path, spectrum):
    sizes = "2,4" if spectrum == "diabetes" else "4,8"
    command.run(**options(spectrum=spectrum, sizes=sizes, samples=100), out=tmp_path / "out")
    table = pd.read_csv(tmp_path / "out" / "risks.csv")
    assert len(table) == 2 * 5 and (table["diverged"] == 0).all()
    assert np.abs(table["predicted"] / table["risk"] - 1).max() < 1.0


def test_command_reads_spectra_from_files(tmp_path):
    pd.DataFrame({"eigenvalue": spectrum_powerlaw(40, 1.5)}).to_csv(tmp_path / "lam.csv", index=False)
    command.run(**options(spectrum=str(tmp_path / "lam.csv"), samples=100), out=tmp_path / "out")
    rows = np.random.default_rng(0).standard_normal((60, 6)) * np.arange(1, 7) ** -1.0
    pd.DataFrame(rows, columns=list("abcdef")).assign(y=rows[:, 0]).to_csv(tmp_path / "X.csv", index=False)
    command.run(**options(spectrum=str(tmp_path / "X.csv"), sizes="2,4", samples=100), out=tmp_path / "out2")
    assert len(pd.read_csv(tmp_path / "out2" / "risks.csv")) == 2 * 5


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "either --runs or --spectrum"),
        ({"spectrum": "powerlaw:x"}, "needs an exponent"),
        ({"spectrum": "powerlaw:0.9"}, "exponent above 1"),
        ({"spectrum": "powerlaw:1.5", "target": 1.0}, "exponent above 1"),
        ({"spectrum": "powerlaw:1.5", "schemes": "mult,odd"}, "mult, add or both"),
        ({"spectrum": "powerlaw:1.5", "eps": "a"}, "numbers with commas"),
        ({"spectrum": "powerlaw:1.5", "eps": ""}, "at least one step"),
        ({"spectrum": "powerlaw:1.5", "eps": "-0.1"}, "must not be negative"),
        ({"spectrum": "powerlaw:1.5", "sizes": "4096"}, "at most p"),
        ({"spectrum": "nowhere.csv"}, "no such file"),
    ],
)
def test_command_refuses(tmp_path, given, words):
    with pytest.raises(InputError, match=words):
        command.run(**options(**given), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.drop(columns="loss"), "no column for the loss"),
        (lambda t: t.drop(columns="eps"), "no column for the precision"),
        (lambda t: t.assign(loss=-1.0), "loss must be positive"),
        (lambda t: t.assign(eps=-1.0), "eps must be"),
        (lambda t: t.assign(mode="odd"), "mode must be one of"),
        (lambda t: t.assign(eps=0.0), "full precision"),
        (lambda t: t.drop(columns="eps").assign(bits=0.5), "bits must be at least 1"),
        (lambda t: t.head(0), "no runs"),
    ],
)
def test_command_refuses_tables(tmp_path, change, words):
    path = run_table(tmp_path / "runs.csv")
    change(pd.read_csv(path)).to_csv(path, index=False)
    with pytest.raises(InputError, match=words) as caught:
        command.run(**options(runs=path, mode="additive"), out=tmp_path / "out")
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


def test_a_table_without_modes_asks_for_one(tmp_path):
    with pytest.raises(InputError, match="say --mode"):
        command.run(**options(runs=run_table(tmp_path / "runs.csv")), out=tmp_path / "out")


@pytest.mark.parametrize("mode", MODES)
def test_simulation_and_fast_recursion_agree_at_larger_sizes(mode):
    lam = spectrum_powerlaw(256, 1.5)
    w = target_powerlaw(lam, 2.0)
    problem = gaussian_problem(lam, w, 0.1)
    one = sketches(problem, 64, 1)
    many = Sketches(*(np.repeat(array, 120, axis=0) for array in (one.S, one.A, one.b)))
    schemes = [QuantScheme(mode, data=0.1), QuantScheme(mode, data=0.03, param=0.03)]
    risks = simulate(problem, many, [64], 400, schemes, "max").risks[:, 0]
    fast = sketch_risks(problem, one, 64, [400], schemes, "max", 1)[0, :, 0]
    error = risks.std(axis=1, ddof=1) / np.sqrt(120)
    assert (np.abs(fast - risks.mean(axis=1)) <= 3 * error + 0.01 * risks.mean(axis=1)).all()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: target_powerlaw([], 2.0), "at least one eigenvalue"),
        (lambda: risk_recursion([], [], 1, 10), "at least one eigenvalue"),
        (lambda: risk_grid([1.0, 0.5], [1.0, 1.0], 2, [10], [QuantScheme()]), "sizes must be a list"),
        (lambda: risk_grid([1.0, 0.5], [1.0, 1.0], [2], [], [QuantScheme()]), "samples must be a list"),
        (lambda: risk_grid([1.0, 0.5], [1.0, 1.0], [2], [10], QuantScheme()), "schemes must be a list"),
        (lambda: plan_precision(PrecisionLaw("additive", n_starts=1).fit(*law_runs()), 1e7, bits="ab"), "numbers"),
    ],
)
def test_what_is_no_list_of_numbers_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_other_column_names_are_told(tmp_path):
    table = pd.DataFrame({
        "N": [1e6, 4e6, 1e6, 4e6], "tokens": [1e8, 1e8, 4e8, 4e8], "width": [4, 8, 4, 8], "val": [3.0, 2.8, 2.7, 2.5],
        "loss": "train", "kind": "fp",
    })
    path = tmp_path / "runs.csv"
    table.to_csv(path, index=False)
    found, _ = command.read_precision_runs(path, "", "M=N,N=tokens,bits=width,loss=val,mode=kind")
    assert found["M"].tolist() == table["N"].tolist()
    assert found["N"].tolist() == table["tokens"].tolist()
    assert found["loss"].tolist() == table["val"].tolist()
    assert set(found["mode"]) == {"multiplicative"}


@pytest.mark.parametrize(
    ("columns", "message"),
    [("M", "expected ROLE=COLUMN"), ("X=N", "expected ROLE=COLUMN"), ("M=NN", "has no column 'NN'"),
     ("M=N,N=N", "named twice"), ("M=N,M=D", "named twice")],
)
def test_bad_column_names_get_one_line(tmp_path, columns, message):
    path = tmp_path / "runs.csv"
    pd.DataFrame({"N": [1.0], "D": [1.0], "bits": [4], "loss": [1.0]}).to_csv(path, index=False)
    with pytest.raises(InputError, match=message) as error:
        command.read_precision_runs(path, "additive", columns)
    assert "\n" not in str(error.value)
