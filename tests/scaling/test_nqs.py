"""The noisy quadratic system: reference numbers, exact sums, limits, traps, bad input, the study, the command."""

import json
import shutil
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.special import zeta

from assay.datasets import DataUnavailable, load_dataset
from assay.errors import InputError
from assay.scaling.fit import ChinchillaLaw, read_columns
from assay.scaling.nqs import NQS, command, noisy_quadratic, nqs_risk, nqs_risk_regularized, risk_components, runs
from assay.scaling.nqs.noisy_quadratic import Rows, log_risk_and_jacobian

# What assay.conformance makes of the method, asserted by tests/test_every_method.py.
CHECKS = {"passed": 80, "excused": 2, "oracles": 12, "oracles_without_data": 11}

# The authors' fitted parameters.
AUTHORS = {
    "p": 1.1131253732848405, "q": 0.584242820729791, "P": 3.3926855412266743, "Q": 0.8853327469240055,
    "e_irr": 0.35449737765209993, "R": 8.410028810517371, "r": 2.5829307382669966,
}
LR = 1.999


def authors_table() -> pd.DataFrame:
    try:
        return runs.authors_runs(load_dataset("nqs-runs"))
    except DataUnavailable as error:
        pytest.skip(f"data absent: {error}")


@pytest.fixture(scope="module")
def small_runs() -> pd.DataFrame:
    return runs.tiny_runs(load_dataset("nqs-smoke-runs"))


@pytest.fixture(scope="module")
def fitted(small_runs) -> NQS:
    return NQS("standard", n_starts=8).fit(small_runs, small_runs["loss"])


def direct_sum(theta: dict, N: int, B: float, K: float, lr: float = LR) -> dict[str, float]:
    """The definition: every direction summed one by one, nothing cancelled."""
    n = np.arange(1.0, N + 1)
    a = 1 - lr * theta["Q"] / n ** theta["q"]
    decayed = np.exp(2 * K * np.log(np.abs(a)))
    noise = theta["Q"] / n ** theta["q"] * theta["R"] / n ** theta["r"] * lr**2 / B
    return {
        "irreducible": theta["e_irr"],
        "approximation": 0.5 * theta["P"] * (zeta(theta["p"], 1) - (n ** -theta["p"]).sum()),
        "bias": 0.5 * (theta["P"] * n ** -theta["p"] * decayed).sum(),
        "variance": 0.5 * (noise * -np.expm1(2 * K * np.log(np.abs(a))) / (1 - a**2)).sum(),
    }


@pytest.mark.parametrize(
    ("N", "K", "B", "standard", "regularized"),
    [(64e6, 1e4, 2048, 2.4318798608491, 2.4740177194679), (10e6, 313, 6144, 3.9444601903854, 4.0459453325481)],
)
def test_oracle_reference_risks(N, K, B, standard, regularized):
    assert nqs_risk(AUTHORS, N, B, K) == pytest.approx(standard, abs=1e-12)
    assert nqs_risk_regularized(AUTHORS, N, B, K) == pytest.approx(regularized, abs=1e-12)


@pytest.mark.parametrize("N", [1_000, 2_000, 20_000, 100_000])
@pytest.mark.parametrize(("B", "K"), [(16, 50), (2048, 10_000), (4, 100_000)])
def test_oracle_sum_over_every_direction(N, B, K):
    exact = direct_sum(AUTHORS, N, B, K)
    terms = risk_components(AUTHORS, N, B, K)
    assert nqs_risk(AUTHORS, N, B, K) == pytest.approx(sum(exact.values()), rel=1e-8 if N >= 2_000 else 1e-6)
    for name, value in exact.items():
        assert terms[name] == pytest.approx(value, rel=1e-5, abs=1e-9), name


def test_oracle_no_updates_leave_the_start():
    N = np.array([2e3, 1e4, 1e9])
    terms = risk_components(AUTHORS, N, 64, 0)
    assert (terms["variance"] == 0).all()
    at_start = AUTHORS["e_irr"] + 0.5 * AUTHORS["P"] * zeta(AUTHORS["p"], 1)
    # Untrained directions do not decay, so that the next Euler-Maclaurin term, g'(M) / 12 at M = 100, is all there.
    left_out = 0.5 * AUTHORS["P"] * AUTHORS["p"] * 100 ** (-AUTHORS["p"] - 1) / 12
    np.testing.assert_allclose(nqs_risk(AUTHORS, N, 64, 0), at_start - left_out, rtol=1e-7)


def test_oracle_infinite_batch_has_no_variance():
    terms = risk_components(AUTHORS, 1e6, np.array([1e3, 1e6, 1e300]), 1000)
    np.testing.assert_allclose(terms["variance"][:2] * [1e3, 1e6], terms["variance"][0] * 1e3)
    assert terms["variance"][2] < 1e-290


def test_oracle_infinite_training_has_the_geometric_variance():
    N, B = 5_000, 32.0
    n = np.arange(1.0, N + 1)
    curvature = AUTHORS["Q"] / n ** AUTHORS["q"]
    limit = (0.5 * AUTHORS["R"] * n ** -AUTHORS["r"] * LR / (B * (2 - LR * curvature))).sum()
    terms = risk_components(AUTHORS, N, B, 1e9)
    assert terms["bias"] == pytest.approx(0.0, abs=1e-12)
    assert terms["variance"] == pytest.approx(limit, rel=1e-8)


def test_oracle_risk_falls_with_size_and_batch():
    no_noise = {**AUTHORS, "R": 0.0}
    sizes = np.geomspace(1e2, 1e11, 60)
    assert (np.diff(nqs_risk(no_noise, sizes, 256, 5_000)) < 0).all()
    assert (np.diff(nqs_risk(AUTHORS, 1e7, np.geomspace(1, 1e6, 60), 5_000)) < 0).all()


@pytest.mark.parametrize("N", [500, 1_500, 3e6])
def test_oracle_without_shrinking_the_variants_differ_by_the_end_point_term(N):
    B, K = 64.0, 2_000
    unshrunk = nqs_risk_regularized(AUTHORS, N, B, K, w0_sq=lambda size: np.full_like(size, 1e300))
    M = min(max(1, int(0.05 * N)), 100)

    def g(n: float) -> float:
        a_2k = np.exp(2 * K * np.log(abs(1 - LR * AUTHORS["Q"] / n ** AUTHORS["q"])))
        bias = 0.5 * AUTHORS["P"] * n ** -AUTHORS["p"] * a_2k
        gap = 2 - LR * AUTHORS["Q"] / n ** AUTHORS["q"]
        return bias + 0.5 * AUTHORS["R"] * n ** -AUTHORS["r"] * LR / B * (1 - a_2k) / gap

    assert unshrunk - nqs_risk(AUTHORS, N, B, K) == pytest.approx(-(g(N) - g(M)) / 2, rel=1e-6)


def test_oracle_regularized_recursion_written_out():
    """The recursion of the card, scalar by scalar, over the same nodes and weights."""
    N, B, K = 3e5, 128.0, 4_321
    rows = Rows.of(np.array([N]), np.array([B]), np.array([float(K)]))
    used = rows.weights[0, :-2] != 0
    n, weight = np.exp(rows.log_n[0, :-2][used]), rows.weights[0, :-2][used]
    curvature = AUTHORS["Q"] / n ** AUTHORS["q"]
    start, noise = AUTHORS["P"] / n ** AUTHORS["p"], curvature * AUTHORS["R"] / n ** AUTHORS["r"]
    s = max(K // 100, min(1000, K // 10))
    ends = [int((i + 1) * s / K * K) for i in range(K // s)] + [K]
    b, v, rate, w0_sq = np.ones_like(n), np.zeros_like(n), LR, N * 0.02**2
    for begin, end in zip([0, *ends], ends, strict=False):
        bias, variance = 0.5 * start * b, 0.5 * noise * v
        norm = (weight * ((1 - 2 * np.sqrt(b)) * start / curvature + 2 / curvature * (bias + variance))).sum()
        rate = min(rate, LR * (1.0 if norm < 0 else 1 - norm / (w0_sq + norm)))
        a_sq = (1 - rate * curvature) ** 2
        decayed = a_sq ** (end - begin)
        b, v = b * decayed, v * decayed + rate**2 / B * (1 - decayed) / (1 - a_sq)
    untrained = AUTHORS["e_irr"] + 0.5 * AUTHORS["P"] * zeta(AUTHORS["p"], N + 1)
    expected = untrained + (weight * 0.5 * (start * b + noise * v)).sum()
    assert nqs_risk_regularized(AUTHORS, N, B, K) == pytest.approx(expected, rel=1e-12)


def test_oracle_jacobian_equals_central_differences():
    N, B, K = np.array([(30, 4, 3), (1e4, 64, 250), (1e6, 512, 4e3), (64e6, 2048, 1e4), (1e9, 1e4, 1e5)]).T
    rows = Rows.of(N, B, K)
    x = NQS()._to_search(AUTHORS)
    log_risk, jacobian = log_risk_and_jacobian(x, rows)
    np.testing.assert_allclose(np.exp(log_risk), nqs_risk(AUTHORS, N, B, K), rtol=1e-13)
    h = 1e-6
    for k, unit in enumerate(np.eye(7)):
        ahead, behind = (log_risk_and_jacobian(x + side * h * unit, rows)[0] for side in (1, -1))
        numeric = (ahead - behind) / (2 * h)
        np.testing.assert_allclose(jacobian[:, k], numeric, rtol=1e-6, atol=1e-6, err_msg=noisy_quadratic.PARAMETERS[k])


def test_oracle_authors_runs_reference_table():
    table = authors_table()
    train = table[table["fitted"]]
    isoflop = table[~table["fitted"] & table["isoflop"]]
    isotoken = table[~table["fitted"] & (table["sweep"] != "")]
    assert (len(train), len(isoflop), len(isotoken)) == (64, 30, 34)

    def errors(predict) -> list[float]:
        return [float(np.mean((np.log(predict(rows)) - np.log(rows["loss"])) ** 2)) for rows in (isoflop, isotoken)]

    def standard(rows):
        return nqs_risk(AUTHORS, *(rows[c] for c in "NBK"))

    def regularized(rows):
        return nqs_risk_regularized(AUTHORS, *(rows[c] for c in "NBK"))

    assert 0.5 * np.sum((np.log(standard(train)) - np.log(train["loss"])) ** 2) == pytest.approx(0.022080, abs=5e-7)
    np.testing.assert_allclose(errors(standard), [1.427e-3, 4.439e-3], rtol=5e-4)
    np.testing.assert_allclose(errors(regularized), [1.472e-3, 3.045e-3], rtol=5e-4)
    law = NQS().fit(train, train["loss"])
    assert law.cost_ == pytest.approx(0.021985, abs=5e-7)
    assert law.cost_ <= 0.02208
    # Other parameters reach the same cost, so that held-out errors agree in their leading digits only.
    np.testing.assert_allclose(errors(lambda rows: law.predict(rows, "standard")), [1.505e-3, 4.156e-3], rtol=0.02)
    np.testing.assert_allclose(errors(law.predict), [1.560e-3, 2.897e-3], rtol=0.02)
    everything, sized = ChinchillaLaw(loss="mse"), ChinchillaLaw(loss="mse")
    assert everything.fit(train, train["loss"]).cost_ == pytest.approx(0.875, rel=1e-3)
    np.testing.assert_allclose(errors(everything.predict), [2.22e-2, 3.80e-2], rtol=5e-3)
    rows = train[train["isoflop"]]
    assert sized.fit(rows, rows["loss"]).cost_ == pytest.approx(1.24e-3, rel=5e-3)
    assert errors(sized.predict)[0] == pytest.approx(6.54e-3, rel=5e-3)


def test_oracle_fit_recovers_losses_of_a_known_system():
    N, B, K = (v.ravel() for v in np.meshgrid([1e5, 1e6, 1e7], [16.0, 256.0], [100.0, 1_000.0, 10_000.0]))
    X = np.column_stack([N, B, K])
    losses = nqs_risk(AUTHORS, N, B, K)
    law = NQS("standard", n_starts=16).fit(X, losses)
    assert law.cost_ < 1e-8
    np.testing.assert_allclose(law.predict(X), losses, rtol=1e-4)


def test_oracle_optimal_agrees_with_a_dense_search(fitted):
    best = fitted.optimal(1e13, seq_len=128, batch_grid=[16]).iloc[0]
    sizes = np.geomspace(1e3, 1e8, 4_001)
    losses = fitted.predict(np.column_stack([sizes, np.full_like(sizes, 16), 1e13 / (6 * sizes * 16 * 128)]))
    assert best.loss == pytest.approx(losses.min(), rel=1e-5)
    assert 6 * best.N * best.B * best.K * 128 <= 1e13


def test_trap_powers_of_long_runs_do_not_underflow_to_nonsense():
    tiny_curvature = {**AUTHORS, "Q": 1e-9}
    K = 1e5
    n = np.arange(1.0, 5_001)
    # With lr * lambda -> 0 the variance term tends to K lambda R n^-r lr^2 / B: the naive ratio is 0/0.
    series = (0.5 * 1e-9 / n ** AUTHORS["q"] * AUTHORS["R"] / n ** AUTHORS["r"] * LR**2 / 8 * K).sum()
    terms = risk_components(tiny_curvature, 5_000, 8, K)
    assert terms["variance"] == pytest.approx(series, rel=1e-3)
    assert np.isfinite(nqs_risk(AUTHORS, 1e9, 1, 1e12))


def test_trap_an_unstable_step_is_bounded_not_nan():
    unstable = {**AUTHORS, "Q": 5.0}
    for risk in (nqs_risk, nqs_risk_regularized):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            values = risk(unstable, [1e4, 1e6], 64, [10, 10**6])
        assert np.isfinite(values).all()
    assert nqs_risk(unstable, 1e4, 64, 100) > 1e10
    law = NQS()
    assert law._bounds()[1][3] == pytest.approx(np.log(2 / LR))


def test_trap_the_step_that_hits_a_direction_exactly():
    exact = {**AUTHORS, "Q": 1 / LR}  # a_1 = 0
    edge = {**AUTHORS, "Q": 2 / LR}  # a_1 = -1: neither decays nor diverges
    for theta in (exact, edge):
        near = {**theta, "Q": theta["Q"] * (1 - 1e-8)}
        assert nqs_risk(theta, 1e4, 64, 500) == pytest.approx(nqs_risk(near, 1e4, 64, 500), rel=1e-5)


def test_trap_small_models_sum_fewer_directions_exactly():
    for N, M in [(10, 1), (30, 1), (500, 25), (1_999, 99), (2_000, 100), (1e9, 100)]:
        log_n, weights = noisy_quadratic._summation_grid(np.array([float(N)]))
        assert (weights[0, :100] == 1).sum() == M
        assert np.exp(log_n[0, -1]) == pytest.approx(M)
        assert weights[0, -2:].tolist() == [0.5, -0.5]


@pytest.mark.parametrize("steps", [1, 7, 10, 11, 15, 199, 313, 9_999, 10_000, 123_456, 1_000_003])
def test_trap_segments_are_truncated_as_the_reference_does(steps):
    ends = noisy_quadratic._segment_ends(steps)
    s = max(steps // 100, min(1000, steps // 10)) if steps > 10 else 1
    assert ends == [int((i + 1) * s / steps * steps) for i in range(steps // s)] + [steps]
    assert ends[-1] == steps
    assert (np.diff([0, *ends]) >= 0).all()


def test_trap_truncation_falls_below_the_intended_step_somewhere():
    off = [k for k in range(11, 400) if any(e % max(k // 100, k // 10) for e in noisy_quadratic._segment_ends(k)[:-1])]
    assert off


def test_trap_rmsle_is_a_root_of_a_sum(fitted, small_runs):
    assert fitted.rmsle_ == pytest.approx(100 * np.sqrt(2 * fitted.cost_))
    assert fitted.msle_ == pytest.approx(2 * fitted.cost_ / len(small_runs))


def test_trap_batch_is_counted_in_sequences(fitted):
    best = fitted.optimal(1e12, seq_len=128, batch_grid=[8]).iloc[0]
    shorter = fitted.optimal(1e12, seq_len=64, batch_grid=[8]).iloc[0]
    assert pytest.approx(1e12, rel=0.01) == best.N * best.B * best.K * 128 * 6
    assert pytest.approx(1e12, rel=0.01) == shorter.N * shorter.B * shorter.K * 64 * 6
    assert fitted.critical_batch_size(5e4, 1e6, seq_len=128) == pytest.approx(
        fitted.critical_batch_size(5e4, 5e5, seq_len=64), rel=1e-3
    )


def test_trap_filtered_runs_are_not_fitted():
    table = load_or_skip("nqs-runs")
    kept = runs.authors_runs(table)
    assert (table["filtered"] == True).sum() == 9  # noqa: E712
    assert len(kept) == len(table) - 9


def test_trap_the_fair_chinchilla_sees_the_well_chosen_batches_only(small_runs):
    sized = small_runs[small_runs["isoflop"]]
    assert sized.groupby(["N", "D"]).size().max() == 1
    for _, sweep in small_runs[small_runs["sweep"] != ""].groupby("sweep"):
        assert sweep.loc[sweep["isoflop"], "loss"].item() == sweep["loss"].min()


def load_or_skip(name: str) -> pd.DataFrame:
    try:
        return load_dataset(name)
    except DataUnavailable as error:
        pytest.skip(f"data absent: {error}")


def test_decomposition_adds_up_to_the_prediction(small_runs):
    for variant in ("standard", "regularized"):
        law = NQS(variant, n_starts=4, init_weight_norm_sq=runs.tiny_weight_norm_sq)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            law.fit(small_runs, small_runs["loss"])
        terms = law.decompose(small_runs)
        np.testing.assert_allclose(terms.sum(axis=1), law.predict(small_runs), rtol=1e-12)
        assert (terms >= 0).all().all()


def test_regularisation_fades_with_the_initial_norm():
    losses = [
        nqs_risk_regularized(AUTHORS, 64e6, 2048, 10_000, w0_sq=lambda N, norm=norm: N * norm)
        for norm in (0.02**2, 1e-2, 1.0, 1e2, 1e12)
    ]
    away = np.abs(np.array(losses[:-1]) - losses[-1])
    assert (np.diff(away) < 0).all() and away[0] > 1e-2 and away[-1] < 1e-6


def test_a_misfitting_regularisation_is_said_out_loud(small_runs):
    with pytest.warns(UserWarning, match="regularised risk misses the fitted rows"):
        NQS(n_starts=4).fit(small_runs, small_runs["loss"])


def test_one_batch_size_fits_with_a_warning(small_runs):
    rows = small_runs[small_runs["B"] == 16]
    assert len(rows) >= 8
    with pytest.warns(UserWarning, match="R and r are not identified"):
        NQS("standard", n_starts=2).fit(rows, rows["loss"])


def test_critical_batch_size_is_where_the_loss_has_risen_by_the_tolerance(fitted):
    N, tokens, seq_len = 5e4, 2e6, 128

    def loss(B: float) -> float:
        return float(fitted.predict([[N, B, tokens / seq_len / B]])[0])

    best = min(loss(B) for B in np.geomspace(1, tokens / seq_len, 2_000))
    critical = fitted.critical_batch_size(N, tokens, 0.05, seq_len=seq_len)
    assert loss(critical) == pytest.approx(1.05 * best, rel=1e-3)
    assert fitted.critical_batch_size(N, tokens, 0.01, seq_len=seq_len) < critical
    assert fitted.critical_batch_size(N, tokens, 1e9, seq_len=seq_len) == tokens / seq_len


def test_limits_bind(fitted):
    free = fitted.optimal(1e13, seq_len=128)
    assert list(free.columns) == ["N", "B", "K", "loss"]
    assert free["loss"].is_monotonic_increasing
    assert set(free["B"]) == {4, 8, 16, 32, 64, 128, 256}
    small = fitted.optimal(1e13, memory=16 * 2e4, seq_len=128)
    assert small["N"].max() <= 2e4 and small["loss"].min() >= free["loss"].min()
    timed = fitted.optimal(time=10.0, throughput=1e12, seq_len=128)
    np.testing.assert_allclose(timed["loss"], free["loss"])
    parallel = fitted.optimal(time=10.0, throughput=lambda N, B: 1e11 * B, seq_len=128)
    assert parallel.loc[parallel["B"] == 256, "loss"].item() < timed.loc[timed["B"] == 256, "loss"].item()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give a limit on compute"),
        ({"memory": 1e9}, "give a limit on compute"),
        ({"time": 5.0}, "needs throughput"),
        ({"compute": -1.0}, "compute must be positive"),
        ({"compute": float("nan")}, "compute must be positive"),
        ({"compute": "much"}, "compute must be a number"),
        ({"compute": 1e12, "memory": 0.0}, "memory must be positive"),
        ({"compute": 10.0}, "not even one update"),
        ({"compute": 1e12, "batch_grid": [0]}, "B must be a positive"),
    ],
)
def test_bad_limits_are_refused(fitted, arguments, message):
    with pytest.raises(InputError, match=message):
        fitted.optimal(**arguments, seq_len=128)


@pytest.mark.parametrize(
    ("N", "tokens", "tol", "message"),
    [(0, 1e6, 0.1, "N must be"), (1e5, -1, 0.1, "tokens must be"), (1e5, 1e6, 0, "tol must"), (1e5, 64, 0.1, "less")],
)
def test_bad_batch_questions_are_refused(fitted, N, tokens, tol, message):
    with pytest.raises(InputError, match=message):
        fitted.critical_batch_size(N, tokens, tol, seq_len=128)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: t.drop(columns="K"), "lacks the column K"),
        (lambda t: t.assign(N=t["N"].where(t.index != 3, 0.0)), "N must be .* got 0.0 in row 3"),
        (lambda t: t.assign(B=t["B"].where(t.index != 1, -4.0)), "B must be .* got -4.0 in row 1"),
        (lambda t: t.assign(K=t["K"].where(t.index != 2, np.inf)), "K must be .* got inf in row 2"),
        (lambda t: t.assign(K=t["K"].where(t.index != 2, np.nan)), "K must be .* got nan in row 2"),
        (lambda t: t.assign(N=t["N"].where(t.index != 5, 0.5)), "N must be at least 1, got 0.5 in row 5"),
        (lambda t: t.assign(K=t["K"].where(t.index != 5, 0.5)), "K must be at least 1, got 0.5 in row 5"),
        (lambda t: pd.concat([t, t[["N"]]], axis=1), "more than one column N"),
        (lambda t: t.iloc[:7], "at least 8 rows, got 7"),
    ],
)
def test_bad_runs_are_refused(small_runs, spoil, message):
    bad = spoil(small_runs)
    with pytest.raises(InputError, match=message):
        NQS(n_starts=2).fit(bad, bad["loss"])


def test_bad_losses_settings_and_parameters_are_refused(small_runs):
    losses = small_runs["loss"].to_numpy(copy=True)
    losses[6] = -1
    with pytest.raises(InputError, match=r"loss must be .* in row 6"):
        NQS(n_starts=2).fit(small_runs, losses)
    with pytest.raises(InputError, match="variant must be one of"):
        NQS("fancy", n_starts=2).fit(small_runs, small_runs["loss"])
    for settings in ({"huber_delta": "x"}, {"random_state": "x"}, {"n_starts": 2.5}, {"init_weight_norm_sq": 3.0}):
        with pytest.raises(InputError):
            NQS(**{"n_starts": 2, **settings}).fit(small_runs, small_runs["loss"])
    with pytest.raises(InputError, match="must hold numbers"):
        NQS(n_starts=2).fit(small_runs, small_runs["loss"].to_numpy() + 0j)
    with pytest.raises(InputError, match="lr must be positive"):
        NQS(lr=0.0, n_starts=2).fit(small_runs, small_runs["loss"])
    for theta, message in [
        ({k: v for k, v in AUTHORS.items() if k != "r"}, "lacks r"),
        ({**AUTHORS, "p": 1.0}, "p must be above 1"),
        ({**AUTHORS, "R": -1.0}, "must not be negative"),
        ({**AUTHORS, "q": np.nan}, "not finite: q"),
        ({**AUTHORS, "q": "steep"}, "must hold numbers"),
    ]:
        with pytest.raises(InputError, match=message):
            nqs_risk(theta, 1e6, 64, 100)
    for arguments, name in [((0, 64, 100), "N"), ((1e6, 0, 100), "B"), ((1e6, 64, -1), "K"), ((np.nan, 1, 1), "N")]:
        with pytest.raises(InputError, match=name):
            nqs_risk(AUTHORS, *arguments)
    with pytest.raises(InputError, match="K must be"):
        nqs_risk_regularized(AUTHORS, 1e6, 64, 0)
    with pytest.raises(InputError, match="w0_sq"):
        nqs_risk_regularized(AUTHORS, 1e6, 64, 10, w0_sq=lambda N: -N)
    with pytest.raises(InputError, match="w0_sq must be a function of N"):
        nqs_risk_regularized(AUTHORS, 1e6, 64, 10, w0_sq=400.0)
    with pytest.raises(InputError, match="w0_sq must return"):
        nqs_risk_regularized(AUTHORS, [1e6, 1e7], 64, 10, w0_sq=lambda N: [1.0, 2.0, 3.0])
    for lr in (0.0, -1.0, np.nan, "fast"):
        with pytest.raises(InputError, match="lr must"):
            nqs_risk(AUTHORS, 1e6, 64, 10, lr=lr)
    with pytest.raises(InputError, match="broadcast"):
        nqs_risk(AUTHORS, [1e6, 1e6], [64, 64, 64], 10)


def test_initial_norm_is_that_of_the_models_behind_the_runs():
    torch = pytest.importorskip("torch")
    from assay.language.tiny import TinyCausal, TinyConfig

    for width in (24, 96):
        config = TinyConfig(width=width)
        weights = [p for name, p in TinyCausal(config).named_parameters() if name.startswith("blocks")]
        measured = float(sum((p.detach() ** 2).sum() for p in weights))
        assert sum(p.numel() for p in weights) == config.n_params
        assert runs.tiny_weight_norm_sq(config.n_params) == pytest.approx(measured, rel=0.05)
    assert torch is not None


def test_home_runs_keep_budgets_whole_and_average_seeds():
    table = pd.DataFrame({
        "N": [1e4] * 4 + [2e4] * 4 + [4e4] * 4, "B": [4.0, 4, 16, 64] * 3, "K": [100.0, 100, 100, 100] * 3,
        "level": [0, 0, 2, 4, 1, 1, 3, 5, 2, 2, 4, 6], "seed": [0, 1, 0, 0] * 3, "loss": np.linspace(4, 2, 12),
    })
    frame = runs.tiny_runs(table)
    assert len(frame) == 9
    first = frame[(frame["N"] == 1e4) & (frame["B"] == 4)]
    assert first["loss"].item() == pytest.approx(table["loss"][:2].mean())
    assert frame.loc[frame["fitted"], "budget"].max() < frame.loc[~frame["fitted"], "budget"].min()


def test_scan_bench_batches_are_four_times_micro_batch_and_accumulation():
    table = load_or_skip("scan-bench-llm")
    frame = runs.scan_bench_runs(table)
    assert set(frame["B"]) == {32.0, 64.0, 128.0}
    assert len(frame) == 1194 - 7


def test_public_tables_have_the_common_form():
    gadre = load_or_skip("gadre-overtraining")
    for subset in ("c4_original", "rpj", "rw_original"):
        frame = runs.gadre_runs(gadre, subset)
        assert (frame[["N", "B", "K", "loss"]] > 0).all().all() and 10 < len(frame) < 50
        assert frame.loc[frame["fitted"], "C"].max() < frame.loc[~frame["fitted"], "C"].min()
    gemstones = runs.gemstone_runs(load_or_skip("gemstones"))
    recovered = gemstones["B"] * gemstones["K"] * 2048
    np.testing.assert_allclose(recovered, load_or_skip("gemstones")["tokens"], rtol=1e-3)


def run_command(*arguments: str) -> None:
    import typer

    app = typer.Typer()
    app.command()(command.run)
    app(list(arguments), standalone_mode=False)


def test_command_writes_fit_predictions_report_and_plots(tmp_path):
    run_command(*command.example(tmp_path))
    written = {path.name for path in (tmp_path / "nqs-out").iterdir()}
    assert {"fit.json", "predictions.csv", "report.md", "isoflop.svg", "isoflop.png", "isotoken.svg"} <= written
    fit = json.loads((tmp_path / "nqs-out" / "fit.json").read_text())
    predictions = pd.read_csv(tmp_path / "nqs-out" / "predictions.csv")
    assert set(fit["parameters"]) == set(AUTHORS)
    held_out = predictions[~predictions["fitted"]]
    error = np.mean(np.log(held_out["predicted"] / held_out["loss"]) ** 2)
    assert fit["errors"]["nqs"]["held_out"] == pytest.approx(error, rel=1e-3)
    assert "Mean squared log error" in (tmp_path / "nqs-out" / "report.md").read_text()


def test_command_splits_by_column_chooses_runs_and_notes_what_is_no_extrapolation(tmp_path, small_runs):
    table = small_runs[["N", "B", "K", "loss"]].assign(split=["train", "test"] * (len(small_runs) // 2), filtered=False)
    table.loc[0, "filtered"] = True
    table.to_csv(tmp_path / "runs.csv", index=False)
    run_command(
        "--data", str(tmp_path / "runs.csv"), "--holdout", "split", "--starts", "2", "--compute", "1e13",
        "--seq-len", "128", "--out", str(tmp_path / "out"),
    )
    report = (tmp_path / "out" / "report.md").read_text()
    assert "no extrapolation" in report and "1 runs marked as filtered" in report
    assert list(pd.read_csv(tmp_path / "out" / "choices.csv").columns) == ["N", "B", "K", "loss"]


def test_command_reads_columns_by_other_names_and_leaves_diverged_runs_out(tmp_path, small_runs):
    renamed = small_runs[["N", "B", "K", "loss"]].assign(N=small_runs["N"] / 1e3).rename(
        columns={"N": "size_k", "B": "batch_size", "K": "u", "loss": "val_loss"}
    )
    renamed.loc[2, "val_loss"] = np.nan
    renamed.to_csv(tmp_path / "runs.csv", index=False)
    out = tmp_path / "out"
    command.run(
        tmp_path / "runs.csv", holdout="compute:4", variant="standard", starts=4, columns="N=size_k*1e3,K=u", out=out
    )
    fit = json.loads((out / "fit.json").read_text())
    assert any("1 run without a finite loss: left out (rows 2)" in note for note in fit["notes"])
    predictions = pd.read_csv(out / "predictions.csv")
    assert len(predictions) == len(small_runs) - 1
    assert predictions["N"].iloc[0] == pytest.approx(small_runs["N"].iloc[0])


def test_command_refuses_bad_input_and_leaves_nothing(tmp_path, small_runs):
    good = tmp_path / "runs.csv"
    small_runs[["N", "B", "K", "loss"]].to_csv(good, index=False)
    bad = {
        "missing.csv": None, "empty.csv": b"", "binary.csv": bytes(range(256)),
        "short.csv": b"N,B,K,loss\n1e5,4,10,3\n",
        "zero.csv": good.read_bytes() + b"1e5,0,100,2.0\n", "text.csv": good.read_bytes() + b"big,4,100,2.0\n",
    }
    for name, content in bad.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError):
            run_command("--data", str(tmp_path / name), "--out", str(tmp_path / "out"), "--starts", "2")
    for extra, message in [
        (["--holdout", "split"], "lacks the column split"),
        (["--holdout", "compute:1"], "ratio above 1"),
        (["--holdout", "half"], "ratio above 1"),
        (["--holdout", "compute:1e12"], "leaves 0 runs"),
        (["--variant", "fancy"], "--variant"),
        (["--compute", "1e13"], "belong together"),
        (["--starts", "0"], "n_starts"),
    ]:
        with pytest.raises(InputError, match=message):
            run_command("--data", str(good), "--out", str(tmp_path / "out"), "--holdout", "compute:4", *extra)
    with pytest.raises(InputError, match="is a file"):
        run_command("--data", str(good), "--out", str(good))
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match=r"B must be .* got 0\.0 in row 28"):
        run_command("--data", str(tmp_path / "zero.csv"), "--out", str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("N,B,K,loss\n" + "1e4,4,100,3,77\n" * 20, "not a CSV table"),
        ("N,B,K,loss\n" + "1e300,1e300,100,3\n" * 20, "beyond any training run"),
        ("N,B,K,loss\n", "holds no runs"),
        ("N,B,K,loss,filtered\n" + "1e4,4,100,3,True\n" * 20, "no runs but filtered ones"),
    ],
)
def test_tables_that_would_be_misread_or_overflow_are_refused(tmp_path, text, message):
    import assay.catalogue as catalogue
    from assay.study import Tier

    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        run_command("--data", str(path), "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    study = catalogue.get("nqs").study(path)
    with pytest.raises(InputError):
        list(study.cells(Tier.smoke))


def test_a_single_run_in_its_budget_is_drawn_with_others():
    from assay.scaling.nqs.judging import _log_ratio

    rng = np.random.default_rng(0)
    ours, theirs = rng.uniform(0.5, 1.5, (2, 9))
    for groups in ("aaaabbbbc", "aaaabbbcd", "abcdddddd"):
        interval = _log_ratio(ours, theirs, np.array(list(groups)))
        assert np.isfinite([interval.low, interval.high]).all() and interval.low < interval.estimate < interval.high


def test_a_fit_that_takes_too_long_is_not_cheap():
    import assay.catalogue as catalogue
    from assay.scaling.nqs.judging import judged
    from assay.study import Cell, Outcome, Results, Row

    claim = catalogue.get("nqs").study().claims["n4"]
    units = pd.DataFrame({"seed": range(10), "evaluations": np.linspace(100.0, 200.0, 10)})
    rows = [Row(Cell("tiny-lm-runs", "nqs", options={"task": "cost"}), "measured", {"target": 1.0}, units)]
    timing = Cell("tiny-lm-runs", "nqs", options={"task": "seconds"}, timing=True)
    for seconds, outcome in ((1.0, Outcome.holds), (21.0, Outcome.fails)):
        timed = Row(timing, "measured", {"cpu_s_median": seconds, "cpu_s_max": seconds})
        assert judged(claim, Results([*rows, timed]), "tiny-lm-runs").outcome is outcome


def test_study_measures_a_users_file(tmp_path):
    import assay.catalogue as catalogue
    from assay.study import Results, Row, Tier

    path = tmp_path / "mine.csv"
    shutil.copy(load_path("nqs-smoke-runs"), path)
    study = catalogue.get("nqs").study(path)
    cells = [cell for cell in study.cells(Tier.smoke) if cell.options["task"] == "predict"]
    rows = []
    for cell in cells:
        found = study.measure(cell, {})
        rows.append(Row(cell, "measured", found.metrics, found.units))
    verdicts = {verdict.claim: verdict for verdict in study.verdicts(Results(rows))}
    assert verdicts["n1"].effect is not None and "your file" in verdicts["n1"].reason
    assert verdicts["n4"].outcome == "untested"


def load_path(name: str):
    from assay.datasets import fetch

    return fetch(name)


def test_inputs_are_not_changed_and_float32_gives_the_same_prediction(small_runs, fitted):
    before = small_runs.copy()
    NQS("standard", n_starts=2).fit(small_runs, small_runs["loss"])
    pd.testing.assert_frame_equal(small_runs, before)
    X = read_columns(small_runs, ["N", "B", "K"])
    np.testing.assert_allclose(fitted.predict(X.astype(np.float32)), fitted.predict(X), rtol=1e-6)
