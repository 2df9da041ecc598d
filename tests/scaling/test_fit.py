"""What the scaling laws share: formulas, derivatives, multi-start, refits, hold-out, allocation, bad input."""

import numpy as np
import pandas as pd
import pytest

from assay.errors import InputError
from assay.scaling import fit
from assay.scaling.fit import ChinchillaLaw, KaplanLaw, PowerLaw

CHINCHILLA = {"E": 1.69, "A": 406.4, "alpha": 0.34, "B": 410.7, "beta": 0.28}
LAWS = {
    "chinchilla": (ChinchillaLaw(loss="mse"), CHINCHILLA),
    "batch-aware": (ChinchillaLaw(batch_aware=True, loss="mse"), {**CHINCHILLA, "B_crit": 300.0}),
    "kaplan": (KaplanLaw(loss="mse"), {"N_c": 8.8e13, "alpha_N": 0.076, "D_c": 5.4e13, "alpha_D": 0.095}),
    "power": (PowerLaw(loss="mse"), {"E": 1.7, "A": 300.0, "alpha": 0.15}),
}


@pytest.fixture
def table() -> pd.DataFrame:
    grid = [(n, d, b) for n in (1e7, 1e8, 1e9) for d in (1e9, 1e10, 1e11) for b in (32.0, 256.0, 2048.0)]
    frame = pd.DataFrame(grid, columns=["N", "D", "B"])
    return frame.assign(C=6 * frame.N * frame.D)


def _losses_in_print(name: str, p: dict, t: pd.DataFrame) -> np.ndarray:
    """The laws as their papers print them."""
    if name == "kaplan":
        return ((p["N_c"] / t.N) ** (p["alpha_N"] / p["alpha_D"]) + p["D_c"] / t.D) ** p["alpha_D"]
    if name == "power":
        return p["E"] + p["A"] / t.C ** p["alpha"]
    tokens = t.D / (1 + t.B / p["B_crit"]) if name == "batch-aware" else t.D
    return p["E"] + p["A"] / t.N ** p["alpha"] + p["B"] / tokens ** p["beta"]


@pytest.mark.parametrize("name", LAWS)
def test_oracle_laws_equal_the_printed_formulas_and_recover_their_parameters(name, table):
    law, params = LAWS[name]
    losses = _losses_in_print(name, params, table)
    fitted = law.fit(table, losses)
    np.testing.assert_allclose(fitted.predict(table), losses, rtol=1e-6)
    for parameter, value in params.items():
        assert fitted.params_[parameter] == pytest.approx(value, rel=2e-3), parameter


@pytest.mark.parametrize("name", LAWS)
def test_oracle_analytic_jacobian_equals_central_differences(name, table):
    law, params = LAWS[name]
    law.params_ = params
    x = law._to_search(params) * 1.02
    rows = law._prepare(fit.read_columns(table, law.columns))
    _, jacobian = law._log_loss(x, rows)
    h = 1e-6
    for k, unit in enumerate(np.eye(len(x))):
        numeric = (law._log_loss(x + h * unit, rows)[0] - law._log_loss(x - h * unit, rows)[0]) / (2 * h)
        np.testing.assert_allclose(jacobian[:, k], numeric, atol=1e-6)


def test_oracle_chinchilla_optimum_agrees_with_the_one_dimensional_search():
    law = ChinchillaLaw()
    law.params_ = CHINCHILLA
    best = law.optimal(1e21)
    size, loss = fit.allocate(
        lambda N: np.array([law.predict([[n, 1e21 / (6 * n)]])[0] for n in N]), 1e6, 1e12
    )
    assert size == pytest.approx(best["N"], rel=1e-3)
    assert loss == pytest.approx(best["loss"], rel=1e-9)
    assert 6 * best["N"] * best["D"] == pytest.approx(1e21)


def test_oracle_huber_fit_equals_a_direct_minimisation(table):
    from scipy.optimize import minimize

    rng = np.random.default_rng(0)
    losses = (1.7 + 300 / table.C**0.15) * np.exp(rng.standard_t(2, len(table)) * 0.01)
    law = PowerLaw(n_starts=16).fit(table, losses)

    def objective(x):
        r = np.abs(np.log(np.exp(x[0]) + np.exp(x[1] - x[2] * np.log(table.C))) - np.log(losses))
        return np.where(r <= 1e-3, r**2 / 2, 1e-3 * (r - 5e-4)).sum()

    direct = minimize(objective, law._to_search(law.params_), method="Nelder-Mead", options={"maxiter": 4000})
    assert law.cost_ == pytest.approx(objective(law._to_search(law.params_)))
    assert law.cost_ <= direct.fun * (1 + 1e-4)


def test_huber_forgives_an_outlier_that_squares_do_not(table):
    losses = _losses_in_print("power", LAWS["power"][1], table)
    losses.iloc[3] *= 2
    errors = {
        loss: abs(np.log(PowerLaw(loss=loss, n_starts=16).fit(table, losses).predict(table) / losses)).median()
        for loss in fit.LOSSES
    }
    assert errors["huber"] < 1e-3 < 1e-2 < errors["mse"]  # inside the quadratic zone, and far outside it


def test_more_starts_never_give_a_higher_cost_and_converged_starts_are_counted(table):
    losses = _losses_in_print("kaplan", LAWS["kaplan"][1], table) * np.exp(0.01 * np.sin(np.arange(len(table))))
    few, many = (KaplanLaw(loss="mse", n_starts=n).fit(table, losses) for n in (2, 32))
    assert many.cost_ <= few.cost_ * (1 + 1e-9)
    assert 1 <= many.n_converged_ <= 32
    assert many.n_converged_ == (many.start_costs_ <= 1.01 * many.cost_).sum()
    assert many.rmsle_ == pytest.approx(100 * np.sqrt(2 * many.cost_))
    assert many.msle_ == pytest.approx(2 * many.cost_ / len(table))


def test_latin_hypercube_puts_one_point_in_each_stratum():
    points = fit.latin_hypercube(np.array([0.0, 10.0]), np.array([1.0, 20.0]), 16, random_state=3)
    for column, (low, high) in enumerate([(0, 1), (10, 20)]):
        assert sorted((16 * (points[:, column] - low) / (high - low)).astype(int)) == list(range(16))


def test_split_above_never_splits_a_budget():
    compute = np.repeat([1.0, 2.0, 4.0, 8.0], [5, 3, 4, 2])
    for quantile in (0.5, 0.7, 0.9):
        fitted, held_out = fit.split_above(compute, quantile)
        assert (fitted ^ held_out).all()
        assert compute[fitted].max() < compute[held_out].min()
    with pytest.raises(InputError, match="no row lies below"):
        fit.split_above([1.0, 1.0], 0.5)
    with pytest.raises(InputError, match="between 0 and 1"):
        fit.split_above([1.0, 2.0], 1.5)


def test_bootstrap_refits_draw_groups_whole(table):
    losses = _losses_in_print("power", LAWS["power"][1], table) * (1 + 0.01 * np.cos(np.arange(len(table))))
    law = PowerLaw(loss="mse", n_starts=4).fit(table, losses)
    groups = table.N.to_numpy()
    refits = fit.bootstrap_refits(law, 6, groups=groups, random_state=1)
    assert len(refits) == 6
    assert len({refit.params_["alpha"] for refit in refits}) > 1
    for refit in refits:
        drawn = np.array([(refit.losses_ == loss).sum() for loss in losses])
        assert drawn.sum() == len(table)
        assert (pd.Series(drawn).groupby(groups).nunique() == 1).all()
    assert law.params_ == PowerLaw(loss="mse", n_starts=4).fit(table, losses).params_  # the law itself is unchanged
    with pytest.raises(InputError, match="one label for each"):
        fit.bootstrap_refits(law, 2, groups=[1, 2])


def test_interval_covers_the_prediction_and_widens_with_noise(table):
    clean = _losses_in_print("power", LAWS["power"][1], table)
    noise = np.random.default_rng(0).standard_normal(len(table))
    widths = []
    for size in (0.002, 0.02):
        law = PowerLaw(loss="mse", n_starts=8).fit(table, clean * np.exp(size * noise))
        low, high = law.predict_interval(table, n_refits=30)
        assert (low <= law.predict(table)).mean() > 0.8 and (law.predict(table) <= high).mean() > 0.8
        widths.append((high - low).mean())
    assert widths[1] > 5 * widths[0]
    with pytest.raises(InputError, match="level"):
        law.predict_interval(table, level=1.0)


def test_allocate_finds_an_end_when_the_minimum_is_there():
    assert fit.allocate(lambda n: n, 2.0, 50.0)[0] == pytest.approx(2.0, rel=1e-3)
    assert fit.allocate(lambda n: -n, 2.0, 50.0)[0] == pytest.approx(50.0, rel=1e-3)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: t.drop(columns="D"), "lacks the column D"),
        (lambda t: t.assign(N=t.N.where(t.index != 4, -1.0)), "N must be a positive, finite number, got -1.0 in row 4"),
        (lambda t: t.assign(D=t.D.where(t.index != 2, np.nan)), "D must be .* got nan in row 2"),
        (lambda t: t.assign(N=t.N.where(t.index != 0, np.inf)), "N must be .* got inf in row 0"),
        (lambda t: t.assign(N=t.N.astype(object).where(t.index != 1, "many")), "N must be .* got many in row 1"),
        (lambda t: t.iloc[:4], "at least 6 rows, got 4"),
        (lambda t: t[["N"]].to_numpy(), "2 columns N, D, got shape"),
        (lambda t: [["a", "b"]], "must hold numbers"),
    ],
)
def test_bad_rows_are_refused_with_their_place(table, spoil, message):
    bad = spoil(table)
    with pytest.raises(InputError, match=message):
        ChinchillaLaw(n_starts=2).fit(bad, np.full(len(bad), 2.0))


def test_bad_losses_and_settings_are_refused(table):
    losses = np.full(len(table), 2.0)
    losses[5] = 0.0
    with pytest.raises(InputError, match=r"loss must be a positive, finite number, got 0\.0 in row 5"):
        PowerLaw().fit(table, losses)
    with pytest.raises(InputError, match="y has 3 losses"):
        PowerLaw().fit(table, losses[:3] + 1)
    with pytest.raises(InputError, match="loss must be one of"):
        PowerLaw(loss="mae").fit(table, losses + 1)
    with pytest.raises(InputError, match="huber_delta"):
        PowerLaw(huber_delta=0).fit(table, losses + 1)
    with pytest.raises(InputError, match="compute must be a positive"):
        ChinchillaLaw(n_starts=2).fit(table, losses + 1).optimal(-1.0)
    with pytest.raises(InputError, match="n_starts"):
        PowerLaw(n_starts=0).fit(table, losses + 1)


def test_inputs_are_not_changed_and_float32_gives_the_same_fit(table):
    losses = _losses_in_print("chinchilla", CHINCHILLA, table)
    before, y_before = table.copy(), losses.copy()
    wide = ChinchillaLaw(loss="mse", n_starts=4).fit(table, losses).predict(table)
    pd.testing.assert_frame_equal(table, before)
    pd.testing.assert_series_equal(losses, y_before)
    single = ChinchillaLaw(loss="mse", n_starts=4)
    narrow = single.fit(table.astype(np.float32), losses.to_numpy(np.float32)).predict(table.astype(np.float32))
    np.testing.assert_allclose(narrow, wide, rtol=1e-4)


def test_oracle_kaplan_optimum_agrees_with_the_one_dimensional_search():
    law = KaplanLaw()
    law.params_ = LAWS["kaplan"][1]
    best = law.optimal(1e21)
    size, loss = fit.allocate(lambda N: np.array([law.predict([[n, 1e21 / (6 * n)]])[0] for n in N]), 1e6, 1e13)
    assert size == pytest.approx(best["N"], rel=1e-3) and loss == pytest.approx(best["loss"], rel=1e-9)
    assert 6 * best["N"] * best["D"] == pytest.approx(1e21)


@pytest.fixture
def noisy(table) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(0)
    return table, _losses_in_print("chinchilla", CHINCHILLA, table).to_numpy() * np.exp(rng.normal(0, 0.01, len(table)))


def test_the_interval_of_the_optimum_holds_the_truth_and_widens_with_the_budget(noisy):
    table, losses = noisy
    law = ChinchillaLaw(loss="mse", n_starts=8).fit(table, losses)
    near, far = law.optimal_interval(1e21, n_refits=40), law.optimal_interval(1e23, n_refits=40)
    assert near.index.tolist() == ["N", "D", "loss"]
    truth = ChinchillaLaw()
    truth.params_ = CHINCHILLA
    for name, value in truth.optimal(1e21).items():
        assert near.loc[name, "low"] < value < near.loc[name, "high"]
        assert near.loc[name, "low"] <= near.loc[name, "estimate"] <= near.loc[name, "high"]
    width = np.log(far["high"] / far["low"]) - np.log(near["high"] / near["low"])
    assert (width[["N", "D"]] > 0).all()
    pd.testing.assert_frame_equal(near, law.optimal_interval(1e21, n_refits=40))


def test_a_budget_far_outside_the_runs_warns_and_one_within_does_not(noisy, recwarn):
    table, losses = noisy
    for law in (ChinchillaLaw(loss="mse", n_starts=4), KaplanLaw(loss="mse", n_starts=4)):
        law.fit(table, losses).optimal(1e21)
        assert not [w for w in recwarn if w.category is UserWarning]
        with pytest.warns(UserWarning, match="above the largest fitted run"):
            law.optimal(1e27)
        with pytest.warns(UserWarning, match="below the smallest fitted run"):
            law.optimal(1e12)


@pytest.mark.parametrize("budget", [0, -1.0, np.nan, np.inf, "much", None])
def test_what_is_no_budget_is_refused(noisy, budget):
    law = ChinchillaLaw(loss="mse", n_starts=2).fit(*noisy)
    with pytest.raises(InputError, match="compute must be"):
        law.optimal(budget)


def test_a_law_that_chooses_nothing_says_so(table):
    law = PowerLaw(loss="mse", n_starts=2).fit(table, 1.7 + 300 / table.C**0.15)
    with pytest.raises(InputError, match="PowerLaw reads C alone and chooses nothing"):
        law.optimal_interval(1e20)


def test_identifiability_tells_fixed_parameters_from_free_ones(noisy):
    table, losses = noisy
    report = ChinchillaLaw(loss="mse", n_starts=8).fit(table, losses).identifiability()
    assert report.index.tolist() == ["E", "A", "alpha", "B", "beta"]
    assert report.loc[["alpha", "E"], "fixed"].all()
    # A prefactor and its exponent trade off over three decades.
    assert report.loc["A", "tied_to"] == "alpha" and report.loc["A", "correlation"] > 0.9
    one_size = table[table.N == 1e8]
    free = ChinchillaLaw(loss="mse", n_starts=8).fit(one_size, losses[table.N == 1e8]).identifiability()
    assert not free.loc[["E", "A", "alpha"], "fixed"].any()


def test_oracle_standard_errors_equal_those_of_scipys_curve_fit(noisy):
    from scipy.optimize import curve_fit

    table, losses = noisy
    law = ChinchillaLaw(loss="mse", n_starts=8).fit(table, losses)

    def log_loss(_, log_E, log_A, alpha, log_B, beta):
        sizes, tokens = np.exp(log_A) / table.N**alpha, np.exp(log_B) / table.D**beta
        return np.log(np.exp(log_E) + sizes + tokens)

    x = law._to_search(law.params_)
    _, covariance = curve_fit(log_loss, np.arange(len(table)), np.log(losses), p0=x)
    errors = np.sqrt(np.diag(covariance)) / np.array([1, 1, law.params_["alpha"], 1, law.params_["beta"]])
    np.testing.assert_allclose(law.identifiability()["error"], errors, rtol=0.02)


def test_groups_are_held_out_whole_and_unknown_ones_are_refused():
    fitted, test = fit.split_by_group(["a", "b", "a", "c"], ["a", "c"])
    assert fitted.tolist() == [False, True, False, False] and (fitted ^ test).all()
    with pytest.raises(InputError, match="no row belongs to the group 'd'"):
        fit.split_by_group(["a", "b"], ["d"])
    with pytest.raises(InputError, match="leaves 0 rows to fit"):
        fit.split_by_group(["a", "b"], ["a", "b"])


def test_oracle_crossings_of_two_powers_are_where_algebra_puts_them():
    found = fit.crossings(lambda c: 1.0 + 50 / c**0.5, lambda c: 1.5 + 10 / c**0.5, 1.0, 1e6)
    assert found == pytest.approx([6400.0])
    assert fit.crossings(lambda c: c, lambda c: 2 * c, 1.0, 1e3) == []
    assert len(fit.crossings(lambda c: np.sin(np.log(c)), lambda c: 0 * c, 0.5, 1e6)) == 5


def test_a_law_whose_optimum_is_no_number_says_so():
    law = ChinchillaLaw()
    law.params_ = {"E": 1.7, "A": 1e-6, "alpha": 1e-3, "B": 1e20, "beta": 1e-3}
    with pytest.raises(InputError, match="no finite optimum"):
        law.optimal(1e21)
