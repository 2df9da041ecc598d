"""Split training: closed forms, known laws recovered, traps, bad input, the study, the command, the training runs."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize, minimize_scalar

from assay.datasets import DataUnavailable, load_dataset
from assay.errors import InputError
from assay.scaling import ChinchillaLaw
from assay.scaling.fit import multistart
from assay.scaling.split_training import SplitLaw, SplitPlan, command, iso_loss_exchange, optimal_split
from assay.scaling.split_training.arms import PeerLaw
from assay.scaling.split_training.forms import FORMS, PEERS, Form, Rows, form_named
from assay.scaling.split_training.planning import split_curve
from assay.scaling.split_training.search import search
from assay.scaling.split_training.tables import GADRE_LOSSES, own_runs, read_split_runs, targets_of, without_branch

# What assay.conformance makes of the method, asserted by tests/test_every_method.py.
CHECKS = {"passed": 79, "excused": 3, "oracles": 20, "oracles_without_data": 20}

KNOWN = {
    "transfer": {"E": 1.2, "A": 10.0, "alpha": 0.3, "B": 250.0, "beta": 0.45, "k": 0.9, "gamma": 0.85, "delta": 0.1},
    "separable": {
        "E": 0.8, "A": 6.7, "alpha": 0.23, "B": 30.0, "beta": 0.4, "C": 5.0, "eta": 0.3, "F": 3000.0, "beta2": 0.4,
        "eta2": 0.25,
    },
    "multiplicative": {"E": 1.16, "A": 5.9, "alpha": 0.21, "B": 265.0, "beta": 0.45, "s": 57e3, "eta": 0.28},
}
OTHERS = {
    "pooled": {"E": 1.2, "A": 10.0, "alpha": 0.3, "B": 250.0, "beta": 0.4},
    "warm": {"E": 1.2, "A": 10.0, "alpha": 0.3, "B": 250.0, "beta": 0.45, "W": 4e5},
    "share": {
        "E": 1.1, "A": 6.7, "alpha": 0.22, "B": 900.0, "beta": 0.5, "eta": 0.1, "C": 0.05, "gamma": 0.6, "eps": 0.06,
    },
}


def written_out(name: str, p: dict, N, D, Dp):
    """The formulas of the card, a second time."""
    size = p["E"] + p["A"] / N ** p["alpha"]
    if name == "transfer":
        return size + p["B"] / (Dp + p["k"] * D ** p["gamma"] * N ** p["delta"]) ** p["beta"]
    if name == "separable":
        both = p["F"] / (D ** p["beta2"] * Dp ** p["eta2"])
        return size + p["B"] / D ** p["beta"] + p["C"] / Dp ** p["eta"] + both
    if name == "multiplicative":
        return size + p["B"] * (D + p.get("D0", 0.0)) ** -p["beta"] * (1 + Dp / p["s"]) ** -p["eta"]
    if name == "warm":
        return size + p["B"] / (Dp + p["W"] * (D > 0)) ** p["beta"]
    T = D + Dp
    if name == "pooled":
        return size + p["B"] / T ** p["beta"]
    r = Dp / T
    return size + p["B"] * r ** p["eta"] / T ** p["beta"] + p["C"] / (r + p["eps"]) ** p["gamma"]


def grid(scratch: bool = False) -> np.ndarray:
    D = [0.0] * scratch + [5e5, 1e6, 2e6, 4e6]
    return np.column_stack([v.ravel() for v in np.meshgrid([1e4, 5e4, 2e5, 6e5], D, [6e4, 2.5e5, 1e6])])


def known_law(name: str, **params: float) -> SplitLaw:
    """A law with given parameters, as if fitted to the grid."""
    law = SplitLaw(name)
    law.form_, law.fits_size_, law.groups_, law.cv_error_ = name, True, None, {}
    law.params_ = {**KNOWN[name], **params}
    law.from_new_weights_ = "D0" in law.params_
    law.rows_ = grid()
    return law


def form_of(name: str, **more: float) -> tuple[Form, dict]:
    params = {**KNOWN, **OTHERS}[name] | more
    return (form_named(name, "D0" in params) if name in FORMS else PEERS[name]()), params


def at(form: Form, params: dict) -> np.ndarray:
    return np.array([np.log(params[p]) if p in form.logged else params[p] for p in form.parameters])


@pytest.fixture(scope="module")
def runs() -> pd.DataFrame:
    return own_runs(load_dataset("split-training-smoke"))


@pytest.fixture(scope="module")
def prose(runs) -> pd.DataFrame:
    return runs[(runs["family"] == "grid") & (runs["domain"] == "prose") & (runs["D"] > 0)]


@pytest.fixture(scope="module")
def noisy() -> pd.DataFrame:
    """The grid with losses that no form fits exactly."""
    table = pd.DataFrame(grid(), columns=["N", "D", "Dp"])
    rng = np.random.default_rng(0)
    exact = sum(written_out(name, KNOWN[name], table["N"], table["D"], table["Dp"]) for name in KNOWN) / len(KNOWN)
    return table.assign(loss=exact * np.exp(rng.normal(0, 0.01, len(table))))


# Oracles


@pytest.mark.parametrize("name", [*KNOWN, *OTHERS])
def test_oracle_formulas_written_out(name):
    X = grid()
    form, params = form_of(name)
    log_loss, _ = form.evaluate(at(form, params), Rows.of(X))
    np.testing.assert_allclose(np.exp(log_loss), written_out(name, params, *X.T), rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "more"), [*((name, {}) for name in [*KNOWN, *OTHERS]), ("multiplicative", {"D0": 9e4})]
)
def test_oracle_jacobian_equals_central_differences(name, more):
    X = grid(scratch=bool(more) or name == "transfer")
    form, params = form_of(name, **more)
    x, rows, h = at(form, params), Rows.of(X), 1e-6
    _, jacobian = form.evaluate(x, rows)
    for k, unit in enumerate(np.eye(len(x))):
        ahead, behind = (form.evaluate(x + side * h * unit, rows)[0] for side in (1, -1))
        np.testing.assert_allclose(
            jacobian[:, k], (ahead - behind) / (2 * h), rtol=2e-5, atol=1e-8, err_msg=form.parameters[k]
        )


@pytest.mark.parametrize(("name", "more"), [("transfer", {}), ("separable", {}), ("multiplicative", {"D0": 9e4})])
def test_oracle_token_slopes_and_their_inverse(name, more):
    X = grid()
    form, params = form_of(name, **more)
    shared, own = form.token_slopes(at(form, params), Rows.of(X))
    N, D, Dp = X.T
    h = 1e-4

    def loss(D, Dp):
        return written_out(name, params, N, D, Dp)

    np.testing.assert_allclose(shared, (loss(D * (1 + h), Dp) - loss(D * (1 - h), Dp)) / (2 * h * D), rtol=1e-5)
    np.testing.assert_allclose(own, (loss(D, Dp * (1 + h)) - loss(D, Dp * (1 - h))) / (2 * h * Dp), rtol=1e-5)
    np.testing.assert_allclose(form.branch_at(at(form, params), Rows.of(X), -own), Dp, rtol=1e-9)


def test_oracle_transfer_without_a_trunk_is_chinchilla_in_domain_tokens():
    N, Dp = grid()[:, 0], grid()[:, 2]
    law, p = known_law("transfer"), KNOWN["transfer"]
    found = law.predict(np.column_stack([N, np.zeros_like(N), Dp]))
    np.testing.assert_allclose(found, p["E"] + p["A"] / N ** p["alpha"] + p["B"] / Dp ** p["beta"], rtol=1e-12)


def test_oracle_a_worthless_trunk_changes_nothing():
    law = known_law("transfer", k=1e-300)
    losses = [law.predict([[1e5, D, 2.5e5]])[0] for D in (0.0, 1.0, 1e6, 1e12)]
    assert losses[0] == losses[1] == losses[2] == losses[3]


def test_oracle_exchange_rate_of_the_transfer_form():
    N, D = np.array([1e4, 6e5]), np.array([5e5, 4e6])
    p = KNOWN["transfer"]
    expected = p["k"] * p["gamma"] * D ** (p["gamma"] - 1) * N ** p["delta"]
    np.testing.assert_allclose(iso_loss_exchange(known_law("transfer"), N, D, 2.5e5), expected, rtol=1e-12)


@pytest.mark.parametrize("name", KNOWN)
def test_oracle_exchange_rate_keeps_the_loss(name):
    law, step = known_law(name), 10.0
    rate = float(iso_loss_exchange(law, 5e4, 1e6, 2.5e5))
    moved = law.predict([[5e4, 1e6 + step, 2.5e5 - rate * step]])[0]
    assert moved == pytest.approx(law.predict([[5e4, 1e6, 2.5e5]])[0], abs=1e-10)


def test_oracle_closed_form_split_of_two_power_laws():
    """B = 8, C = 1, both exponents 2: D/Dp = 8^(1/3) = 2, so that 3 tokens are split into 2 and 1."""
    law = known_law("separable", B=8.0, C=1.0, beta=2.0, eta=2.0, F=1e-200)
    plan = optimal_split(law, tokens=3.0, n_params=1e5, n_refits=0)
    assert pytest.approx(2.0, abs=1e-5) == plan.D and plan.Dp["1"] == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("m", [2, 5])
def test_oracle_closed_form_split_with_a_shared_trunk(m):
    """B beta D^(-beta-1) = (C eta / m) Dp^(-eta-1) on D + m Dp = T."""
    B, C, beta, T = 8.0, 1.0, 0.5, 1e6
    law = known_law("separable", B=B, C=C, beta=beta, eta=beta, F=1e-200)
    plan = optimal_split(law, tokens=T, n_params=1e5, n_domains=m, n_refits=0)
    ratio = (m * B / C) ** (1 / (beta + 1))
    assert plan.D / plan.Dp["1"] == pytest.approx(ratio, rel=1e-4)
    assert plan.D + sum(plan.Dp.values()) == pytest.approx(T, rel=1e-12)


@pytest.mark.parametrize("name", KNOWN)
def test_oracle_known_law_is_recovered_and_its_form_chosen(name):
    X = grid()
    y = written_out(name, KNOWN[name], *X.T)
    law = SplitLaw().fit(X, y)
    assert law.form_ == name
    np.testing.assert_allclose(law.predict(X), y, rtol=1e-6)
    further = X * [2.0, 2.0, 2.0]
    np.testing.assert_allclose(law.predict(further), written_out(name, KNOWN[name], *further.T), rtol=1e-3)


def test_oracle_known_law_with_runs_from_new_weights_is_recovered():
    X = grid(scratch=True)
    truth = {**KNOWN["multiplicative"], "D0": 9e4}
    law = SplitLaw().fit(X, written_out("multiplicative", truth, *X.T))
    assert law.form_ == "multiplicative"
    assert law.params_["D0"] == pytest.approx(9e4, rel=1e-3)


def test_oracle_pooled_is_the_areas_chinchilla(prose):
    """The baseline's own search and the area's `ChinchillaLaw` on D + Dp reach the same cost."""
    total = np.column_stack([prose["N"], prose["D"] + prose["Dp"]])
    theirs = ChinchillaLaw(n_starts=8).fit(total, prose["loss"])
    ours = PeerLaw("pooled", "huber", 32, 0).fit(prose, prose["loss"])
    assert ours.cost <= theirs.cost_ * 1.002


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("loss", ["huber", "mse"])
def test_oracle_batched_search_does_no_worse_than_one_search_a_start(prose, name, loss):
    table, losses = prose[["N", "D", "Dp"]].to_numpy(dtype=float), prose["loss"].to_numpy()
    form, rows = form_named(name), Rows.of(table)
    starts = form.starts(rows, losses, 24, 0)

    def residuals(x):
        log_loss, jacobian = form.evaluate(x, rows)
        return log_loss - np.log(losses), jacobian

    single = multistart(residuals, starts[:3], form.bounds(), loss=loss)
    found = search(lambda x: form.evaluate(x, rows), np.log(losses), starts, form.bounds(), loss, 1e-3)
    assert found.cost <= single.cost * 1.005


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("trunk", ["shared", "independent"])
def test_oracle_plan_agrees_with_a_dense_search(name, trunk):
    law, T, m = known_law(name), 2e6, 3
    plan = optimal_split(law, tokens=T, n_params=1e5, n_domains=m, trunk=trunk, n_refits=0)
    copies = m if trunk == "independent" else 1

    def loss(share):
        return written_out(name, KNOWN[name], 1e5, share * T / copies, (1 - share) * T / m)

    best = minimize_scalar(loss, bounds=(1e-4, 1 - 1e-4), method="bounded", options={"xatol": 1e-10})
    assert plan.loss <= best.fun * (1 + 1e-10)
    assert plan.share == pytest.approx(best.x, abs=1e-3)


@pytest.mark.parametrize("name", KNOWN)
def test_oracle_unequal_domains_agree_with_a_general_optimiser(name):
    law, T = two_domains(name), 3e6
    plan = optimal_split(law, tokens=T, n_params=1e5, weights={"a": 3.0, "b": 1.0}, n_refits=0)

    def loss(v):
        D, a, b = T * np.exp(np.append(v, 0.0)) / np.exp(np.append(v, 0.0)).sum()
        return sum(
            w * written_out(name, law.laws_[k].params_, 1e5, D, Dp) for k, w, Dp in (("a", 0.75, a), ("b", 0.25, b))
        )

    ways = [minimize(loss, start, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14, "maxiter": 4000})
            for start in ([0.0, 0.0], [2.0, 1.0])]
    assert plan.loss == pytest.approx(min(way.fun for way in ways), rel=1e-8)
    assert plan.D + plan.Dp["a"] + plan.Dp["b"] == pytest.approx(T, rel=1e-9)


@pytest.mark.parametrize("name", ["transfer", "multiplicative"])
def test_oracle_the_search_ends_where_further_steps_gain_nothing(name, monkeypatch):
    from assay.scaling.split_training import search as module

    every = own_runs(load_dataset("tiny-lm-split"))
    rows = every[(every["family"] == "grid") & (every["domain"] == "c") & (every["D"] > 0)]
    rows = rows.iloc[np.unique(np.linspace(0, len(rows) - 1, 60).astype(int))]
    cost = SplitLaw(name).fit(rows, rows["loss"]).cost_
    monkeypatch.setattr(module, "FINALISTS", 64)
    monkeypatch.setattr(module, "FINAL_STEPS", 2000)
    monkeypatch.setattr(module, "CONVERGED", 1e-9)
    assert cost <= SplitLaw(name).fit(rows, rows["loss"]).cost_ * 1.002


def two_domains(name: str) -> SplitLaw:
    law = known_law(name)
    law.laws_ = {"a": known_law(name), "b": known_law(name, B=3 * KNOWN[name]["B"])}
    return law


@pytest.mark.parametrize("name", KNOWN)
def test_oracle_marginal_gains_are_equal(name):
    law = two_domains(name)
    plan = optimal_split(law, tokens=3e6, n_params=1e5, n_refits=0)
    gains, shared = [], 0.0
    for domain, Dp in plan.Dp.items():
        one = law.laws_[domain]
        by_D, by_Dp = one._form.token_slopes(one._to_search(one.params_), Rows.of(np.array([[1e5, plan.D, Dp]])))
        gains.append(by_Dp[0])
        shared += by_D[0]
    assert gains[0] == pytest.approx(gains[1], rel=1e-6)
    assert shared == pytest.approx(gains[0], rel=1e-3)


def test_oracle_one_domain_shares_its_trunk_with_nobody():
    law = known_law("multiplicative")
    shared, independent = (
        optimal_split(law, tokens=2e6, n_params=1e5, trunk=trunk, n_refits=0) for trunk in ("shared", "independent")
    )
    assert (shared.D, shared.Dp, shared.loss) == (independent.D, independent.Dp, independent.loss)


@pytest.mark.parametrize("name", KNOWN)
def test_oracle_loss_falls_in_every_argument(noisy, name):
    law = SplitLaw(name, n_starts=24).fit(noisy, noisy["loss"])
    values = np.geomspace(1e4, 1e10, 50)
    for column in range(3):
        table = np.full((50, 3), 1e6)
        table[:, column] = values
        steps = np.diff(law.predict(table))
        assert (steps <= 1e-12).all() and steps.sum() < 0


@pytest.mark.parametrize("name", ["transfer", "multiplicative"])
def test_oracle_limits_reach_the_size_term(name):
    p = KNOWN[name]
    floor = p["E"] + p["A"] / 1e5 ** p["alpha"]
    law = known_law(name)
    assert law.predict([[1e5, 1e40, 1e5]])[0] == pytest.approx(floor, rel=1e-6)
    assert law.predict([[1e5, 1e6, 1e40]])[0] == pytest.approx(floor, rel=1e-6)


# Traps


def test_trap_branches_leave_one_trunk_at_its_own_rate():
    """The trunk's rate is constant; a branch starts there, falls to zero, and does not warm up again."""
    torch = pytest.importorskip("torch")
    trainer, rates = tiny_trainer(), []
    original = type(trainer)._advance

    def spy(self, state, domains, steps, rate, rng):
        rates.append([rate(step) for step in range(state.steps, state.steps + steps)])
        return original(self, state, domains, steps, rate, rng)

    type(trainer)._advance = spy
    try:
        [(_, trunk)] = trainer.trunk([44])
        trainer.branch(trunk, ["a"], 4)
        trainer.branch(None, ["a"], 8)
    finally:
        type(trainer)._advance = original
    assert rates[0][:2] == pytest.approx([0.004 / 40, 0.008 / 40]) and set(rates[0][40:]) == {0.004}
    assert rates[1] == pytest.approx([0.004, 0.003, 0.002, 0.001])
    assert rates[2][0] == pytest.approx(0.008 / 2) and max(rates[2]) == pytest.approx(0.008)
    assert rates[2][-1] == pytest.approx(0.008 / 6)
    assert torch is not None


def test_trap_a_branch_takes_the_optimisers_moments_and_leaves_the_trunk_alone():
    torch = pytest.importorskip("torch")
    trainer = tiny_trainer()
    [(_, trunk)] = trainer.trunk([3])
    before = {name: value.clone() for name, value in trunk.model.state_dict().items()}
    copied = trunk.copy()
    states = [next(iter(state.optimiser.state.values())) for state in (trunk, copied)]
    assert torch.equal(states[0]["exp_avg_sq"], states[1]["exp_avg_sq"]) and float(states[1]["step"]) == 3
    first, second = (trainer.losses(trainer.branch(trunk, ["a"], 2)) for _ in range(2))
    assert first == second
    assert all(torch.equal(before[name], value) for name, value in trunk.model.state_dict().items())


def test_trap_checkpoints_of_a_trunk_are_those_of_one_run():
    pytest.importorskip("torch")
    pair = [trainer.losses(state.model) for trainer in (tiny_trainer(),) for _, state in trainer.trunk([2, 5])]
    [(_, alone)] = tiny_trainer().trunk([5])
    assert pair[1] == tiny_trainer().losses(alone.model)


def tiny_trainer():
    from assay.scaling.split_training.runs import Corpus, Trainer

    rng = np.random.default_rng(0)
    texts = {name: rng.integers(low, low + 40, (2, 5000), dtype=np.uint8) for name, low in (("a", 30), ("b", 90))}
    return Trainer({name: Corpus(name, *parts) for name, parts in texts.items()}, 24, 0, 0.004, 0.008)


def test_trap_repeated_data_is_flagged_in_the_table():
    table = load_dataset("tiny-lm-split")
    assert (table["epochs"] > 0).all()
    specialists = table[(table["domain"] == "prose") & (table["family"] == "grid")]
    longest = (specialists["D"] + specialists["Dp"]).idxmax()
    assert specialists.loc[longest, "epochs"] > 2  # the prose is short: its longest runs read it more than twice


def test_trap_a_cap_on_the_branch_is_kept_and_the_budget_still_spent():
    law = known_law("multiplicative")
    free = optimal_split(law, tokens=4e6, n_params=1e5, n_domains=2, n_refits=0)
    capped = optimal_split(law, tokens=4e6, n_params=1e5, n_domains=2, bounds={"Dp": (0, free.Dp["1"] / 2)}, n_refits=0)
    assert max(capped.Dp.values()) <= free.Dp["1"] / 2 * (1 + 1e-9)
    assert capped.D + sum(capped.Dp.values()) == pytest.approx(4e6)
    assert capped.loss > free.loss


def test_trap_domains_are_fitted_apart(runs):
    rows = runs[(runs["family"] == "grid") & (runs["D"] > 0) & runs["loss"].notna()]
    both = SplitLaw("multiplicative", n_starts=16).fit(rows, rows["loss"], domain=rows["domain"])
    for target in targets_of(runs):
        alone = rows[rows["domain"] == target]
        law = SplitLaw("multiplicative", n_starts=16).fit(alone, alone["loss"])
        np.testing.assert_allclose(both.predict(alone, target), law.predict(alone), rtol=1e-12)
        assert both.params_[target] == law.params_


def test_trap_flop_of_shared_and_independent_trunks():
    law = known_law("multiplicative")
    for trunk, copies in (("shared", 1), ("independent", 4)):
        plan = optimal_split(law, flops=1.2e12, n_params=1e5, n_domains=4, trunk=trunk, n_refits=0)
        assert plan.flops == pytest.approx(1.2e12, rel=1e-9)
        assert plan.flops == pytest.approx(6 * 1e5 * (copies * plan.D + sum(plan.Dp.values())), rel=1e-9)
    shared, apart = (
        optimal_split(law, tokens=4e6, n_params=1e5, n_domains=4, trunk=trunk, n_refits=0)
        for trunk in ("shared", "independent")
    )
    assert shared.loss < apart.loss


def test_trap_no_logarithm_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isfinite(known_law("transfer").predict([[1e5, 0.0, 1e5], [1e5, 1e5, 0.0]])).all()
        assert np.isfinite(known_law("multiplicative", D0=1e4).predict([[1e5, 0.0, 1e5]])).all()
    for name in ("separable", "multiplicative"):
        with pytest.raises(InputError, match="no value at D = 0"):
            known_law(name).predict([[1e5, 0.0, 1e5]])
    with pytest.raises(InputError, match="no value at Dp = 0"):
        known_law("separable").predict([[1e5, 1e5, 0.0]])


def test_trap_the_form_is_chosen_without_the_held_out_rows(prose):
    """What is not handed to `fit` can't change the form or the parameters."""
    largest = prose["D"] == prose["D"].max()
    law = SplitLaw(n_starts=8).fit(prose[~largest], prose.loc[~largest, "loss"])
    again = SplitLaw(n_starts=8).fit(prose[~largest].copy(), prose.loc[~largest, "loss"])
    assert set(law.cv_error_) <= set(KNOWN) and law.form_ == min(law.cv_error_, key=law.cv_error_.get)
    assert law.params_ == again.params_


def test_trap_the_plan_is_bootstrapped_over_whole_trunks(prose):
    law = SplitLaw("multiplicative", n_starts=8).fit(prose, prose["loss"], groups=prose["group"])
    plan = optimal_split(law, tokens=3e6, n_params=2e5, n_refits=8)
    assert list(plan.interval.index) == ["D", "Dp 1", "share", "loss"]
    assert (plan.interval["low"] <= plan.interval["high"]).all()
    drawn = law.refits(3)[0]
    counts = pd.Series(drawn.groups_).value_counts()
    assert all(count % (prose["group"] == group).sum() == 0 for group, count in counts.items())


# The law and the plan


def test_separable_wants_thirty_rows(noisy):
    few = noisy.iloc[::2].head(20)
    law = SplitLaw(n_starts=4).fit(few, few["loss"])
    assert "separable" not in law.cv_error_
    with pytest.raises(InputError, match="at least 30 rows, got 20"):
        SplitLaw("separable", n_starts=4).fit(few, few["loss"])


def test_one_size_drops_its_term(prose):
    rows = prose[prose["N"] == prose["N"].min()]
    with pytest.warns(UserWarning, match="one N"):
        law = SplitLaw("multiplicative", n_starts=8).fit(rows, rows["loss"])
    assert law.params_["A"] < 1e-20 and not law.identifiability().loc["A", "fixed"]
    assert np.abs(law.predict(rows) / rows["loss"] - 1).mean() < 0.03
    with pytest.raises(InputError, match="nothing can be said of N = 1e"):
        law.predict([[1e6, 1e6, 1e6]])
    with pytest.raises(InputError, match="nothing can be said of N"):
        optimal_split(law, tokens=1e6, n_params=1e6, n_refits=0)


def test_one_branch_length_can_not_plan(noisy):
    rows = noisy[noisy["Dp"] == noisy["Dp"].max()]
    with pytest.warns(UserWarning, match="cannot plan a split"):
        law = SplitLaw("multiplicative", n_starts=4).fit(rows, rows["loss"])
    with pytest.raises(InputError, match="cannot plan a split"):
        optimal_split(law, tokens=1e6, n_params=2e4, n_refits=0)


def test_a_budget_below_the_fitted_runs_is_said():
    law = known_law("multiplicative")
    with pytest.warns(UserWarning, match="extrapolated downward"):
        plan = optimal_split(law, tokens=1e5, n_params=5e4, n_refits=0)
    assert any("below the smallest fitted" in note for note in plan.notes)
    with pytest.warns(UserWarning, match="above the largest fitted"):
        optimal_split(law, tokens=1e9, n_params=5e4, n_refits=0)


def test_the_plan_is_never_worse_than_fixed_rules_and_improves_with_the_budget():
    for name in KNOWN:
        losses = []
        for tokens in (1e6, 3e6, 1e7):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                plan = optimal_split(known_law(name), tokens=tokens, n_params=1e5, n_domains=3, n_refits=0)
            assert all(plan.loss <= loss + 1e-12 for loss in plan.baselines.values() if loss == loss)
            losses.append(plan.loss)
        assert losses[0] > losses[1] > losses[2]
    assert np.isnan(plan.baselines["specialists only"]) and plan.baselines["full"] > plan.loss


def test_of_several_sizes_the_best_one_is_planned():
    law = known_law("multiplicative")
    sizes = [1e4, 1e5, 1e6, 1e7]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        each = {N: optimal_split(law, flops=1e12, n_params=N, n_refits=0).loss for N in sizes}
        plan = optimal_split(law, flops=1e12, n_params=sizes, n_refits=0)
    assert min(each, key=each.get) == plan.N and plan.loss == min(each.values())


def test_the_transfer_form_plans_one_trunk_for_all_budgets():
    law, p, m = known_law("transfer"), KNOWN["transfer"], 3
    D = (1 / (m * p["k"] * p["gamma"] * 1e5 ** p["delta"])) ** (1 / (p["gamma"] - 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for tokens in (4 * D, 40 * D):
            plan = optimal_split(law, tokens=tokens, n_params=1e5, n_domains=m, n_refits=0)
            assert pytest.approx(D, rel=1e-3) == plan.D


def test_split_curve_has_its_lowest_point_at_the_plan():
    law = known_law("multiplicative")
    curve = split_curve(law, 3e6, 1e5, n_domains=2)
    plan = optimal_split(law, tokens=3e6, n_params=1e5, n_domains=2, n_refits=0)
    assert curve["loss"].min() >= plan.loss
    assert abs(curve.loc[curve["loss"].idxmin(), "share"] - plan.share) < 0.03


def test_plan_as_numbers():
    plan = optimal_split(known_law("transfer"), tokens=3e6, n_params=1e5, n_refits=0)
    assert json.loads(json.dumps(plan.to_dict()))["share"] == pytest.approx(plan.D / 3e6)


def test_a_law_of_domains_keeps_one_whose_rows_are_not_drawn(runs):
    rows = runs[(runs["family"] == "grid") & (runs["D"] > 0) & runs["loss"].notna()].reset_index(drop=True)
    law = SplitLaw("multiplicative", n_starts=4).fit(rows, rows["loss"], domain=rows["domain"])
    again = law.refit(np.flatnonzero(rows["domain"] == "prose"))
    assert again.params_["c"] == law.params_["c"]
    with pytest.raises(InputError, match="say which one"):
        law.predict(rows)
    with pytest.raises(InputError, match=r"no fitted row has the domain 'pros'.*did you mean prose"):
        law.predict(rows, "pros")
    with pytest.raises(InputError, match="ask the law of one domain"):
        law.identifiability()
    assert law.laws_["c"].identifiability().index.tolist() == list(KNOWN["multiplicative"])
    low, high = law.predict_interval(rows.head(3), n_refits=4, domain=rows["domain"].head(3))
    assert (low <= high).all()


def test_a_second_fit_forgets_the_first(runs, prose):
    rows = runs[(runs["family"] == "grid") & (runs["D"] > 0) & runs["loss"].notna()]
    law = SplitLaw("multiplicative", n_starts=4).fit(rows, rows["loss"], domain=rows["domain"])
    law.fit(prose, prose["loss"])
    assert not hasattr(law, "laws_") and np.isfinite(law.predict(prose)).all()


# Bad input


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: t.drop(columns="Dp"), "lacks the column Dp"),
        (lambda t: t.assign(N=t["N"].where(np.arange(len(t)) != 3, 0)), "N must be a positive number, got 0 in row"),
        (lambda t: t.assign(D=t["D"].where(np.arange(len(t)) != 1, -4)), "D must be a finite, not negative .* got -4"),
        (lambda t: t.assign(Dp=t["Dp"].where(np.arange(len(t)) != 2, np.nan)), "Dp must be a finite.* got nan"),
        (lambda t: t.assign(D=0, Dp=0), "both 0"),
        (lambda t: pd.concat([t, t[["D"]]], axis=1), "more than one column D"),
        (lambda t: t.iloc[::5].head(9), "at least 10 rows, got 9"),
    ],
)
def test_bad_runs_are_refused(noisy, spoil, message):
    bad = spoil(noisy)
    with pytest.raises(InputError, match=message):
        SplitLaw("multiplicative", n_starts=2).fit(bad, bad["loss"])


def test_bad_losses_domains_and_settings_are_refused(prose):
    losses = prose["loss"].to_numpy(copy=True)
    losses[6] = -1
    X = prose[["N", "D", "Dp"]].to_numpy()
    for arguments, message in [
        ((X, losses), r"loss must be .* in row 6"),
        ((X, np.ones(3)), "3 losses for"),
        ((X + 0j, prose["loss"]), "must hold numbers"),
        ((X[:, :2], prose["loss"]), "3 columns"),
        ((X, prose["loss"], ["c"]), "domain must have one label"),
        ((X, prose["loss"], [None] * len(X)), "domain has no label in row 0"),
        ((X, prose["loss"], None, ["a"]), "groups must have one label"),
    ]:
        with pytest.raises(InputError, match=message):
            SplitLaw("multiplicative", n_starts=2).fit(*arguments)
    for settings, message in [
        ({"form": "multiplicativ"}, "did you mean multiplicative"), ({"loss": "mae"}, "loss must be"),
        ({"huber_delta": 0}, "huber_delta"), ({"n_starts": 0}, "n_starts"), ({"random_state": "x"}, "random_state"),
    ]:
        with pytest.raises(InputError, match=message):
            SplitLaw(**{"n_starts": 2, **settings}).fit(X, prose["loss"])
    with pytest.raises(InputError, match="can't hold runs without a shared phase"):
        SplitLaw("separable", n_starts=2).fit(X * [1, 0, 1], prose["loss"])
    with pytest.raises(InputError, match=r"domain 'b': .* rows, got 2"):
        SplitLaw("transfer", n_starts=2).fit(X, prose["loss"], domain=["b"] * 2 + ["a"] * (len(X) - 2))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({}, "one of the two"), ({"tokens": 1e6, "flops": 1e12}, "one of the two"), ({"tokens": 0}, "tokens must be"),
        ({"flops": np.inf}, "flops must be"), ({"tokens": "much"}, "tokens must be"),
        ({"tokens": 1e6, "n_params": -1}, "n_params must be"), ({"tokens": 1e6, "n_params": "big"}, "n_params must be"),
        ({"tokens": 1e6, "n_domains": 1.5}, "n_domains must be"),
        ({"tokens": 1e6, "n_domains": 10**6}, "from 1 to 1000"), ({"tokens": 1e6, "n_refits": True}, "n_refits"),
        ({"tokens": 1e6, "trunk": "share"}, "mean shared"),
        ({"tokens": 1e6, "weights": [1, 1]}, "weights must be 1 numbers"),
        ({"tokens": 1e6, "weights": {"x": 1}}, "weights must name"), ({"tokens": 1e6, "weights": [0]}, "each weight"),
        ({"tokens": 1e6, "bounds": 5}, "bounds must be a mapping"),
        ({"tokens": 1e6, "bounds": {"N": (1, 2)}}, "bounds are on D and Dp"),
        ({"tokens": 1e6, "bounds": {"D": 5}}, "two numbers"), ({"tokens": 1e6, "bounds": {"D": (3, 2)}}, "rising"),
        ({"tokens": 1e6, "bounds": {"D": (2e6, 3e6)}}, "keeps the bounds"),
        ({"tokens": 1e6, "n_refits": 2.5}, "n_refits"),
        ({"tokens": 1e6, "level": 1.0}, "level must"),
    ],
)
def test_bad_plans_are_refused(how, message):
    with pytest.raises(InputError, match=message):
        optimal_split(known_law("multiplicative"), **{"n_params": 1e5, "n_refits": 0, **how})


def test_bad_exchange_and_plan_values_are_refused():
    for arguments in [(0, 1e6, 1e6), (1e5, 0, 1e6), (1e5, 1e6, -1), (1e5, 1e6, np.nan), ("x", 1, 1)]:
        with pytest.raises(InputError, match="must be"):
            iso_loss_exchange(known_law("transfer"), *arguments)
    with pytest.raises(InputError, match="can't be told from 0"):
        iso_loss_exchange(known_law("transfer"), 1e300, 1e300, 1e300)
    for plan in (optimal_split, split_curve):
        with pytest.raises(InputError, match="must be a fitted SplitLaw, got ChinchillaLaw"):
            plan(ChinchillaLaw(), tokens=1e6, n_params=1e5)
    with pytest.raises(InputError, match="must be a fitted SplitLaw, got NoneType"):
        iso_loss_exchange(None, 1e5, 1e6, 1e6)
    with pytest.raises(InputError, match="asked for 3"):
        optimal_split(two_domains("transfer"), tokens=1e6, n_params=1e5, n_domains=3, n_refits=0)
    with pytest.raises(InputError, match="can't be negative"):
        SplitPlan(1.0, -1.0, {}, 1.0, {}, {}, 1.0, 1.0, "shared", pd.DataFrame(), ())


def test_inputs_are_not_changed_and_float32_gives_the_same_prediction(prose):
    before = prose.copy()
    law = SplitLaw("multiplicative", n_starts=4).fit(prose, prose["loss"])
    pd.testing.assert_frame_equal(prose, before)
    X = prose[["N", "D", "Dp"]].to_numpy(dtype=float)
    np.testing.assert_allclose(law.predict(X.astype(np.float32)), law.predict(X), rtol=1e-6)


# Tables, study, command


def test_a_users_table_under_other_names(prose):
    named = prose.rename(columns={"N": "n_params"})[["n_params", "D", "Dp", "loss", "seed"]].assign(
        shared=prose["D"] / 1e6, own=prose["Dp"] / 1e3
    )
    read = read_split_runs(named.drop(columns=["D", "Dp"]), "mine.csv", "D=shared*1e6,Dp=own*1e3")
    np.testing.assert_allclose(read.runs[["N", "D", "Dp", "loss"]], prose[["N", "D", "Dp", "loss"]])
    assert read.runs["group"].nunique() == prose["group"].nunique()
    lost = named.copy()
    lost.loc[lost.index[2], "loss"] = np.nan
    read = read_split_runs(lost, "mine.csv")
    assert len(read.runs) == len(prose) - 1 and any("without a finite loss" in note for note in read.notes)


def test_the_scripts_own_table_is_read(runs):
    table = load_dataset("split-training-smoke")
    read = read_split_runs(table, "tiny.csv")
    assert set(read.runs["domain"]) == set(targets_of(table))
    assert len(read.runs) == (runs["family"] == "grid").sum()
    assert any("left out" in note for note in read.notes)


@pytest.mark.parametrize(
    ("table", "columns", "message"),
    [
        ({"N": [1e5], "D": [1e6], "loss": [2.0]}, "", "lacks the column Dp"),
        ({"N": [1e5], "Dp": [1e6], "loss": [2.0]}, "", "lacks the column D "),
        ({"N": [1e5], "D": [1e6], "Dp": [-1], "loss": [2.0]}, "", "Dp must be .* got -1 in row 0"),
        ({"N": [1e5], "D": ["much"], "Dp": [1], "loss": [2.0]}, "", "D must be .* got much in row 0"),
        ({"N": [1e5], "D": [0], "Dp": [0], "loss": [2.0]}, "", "both 0 in row 0"),
        ({"N": [1e5], "D": [1e6], "Dp": [1e5]}, "", "lacks loss"),
        ({"N": [100], "D": [1e6], "Dp": [1e5], "loss": [2.0]}, "", "millions or billions"),
        ({"N": [1e5], "D": [1e6], "Dp": [1e5], "loss": [2.0]}, "D=x", "lacks the column 'x'"),
        ({"N": [1e5], "D": [1e6], "Dp": [1e5], "loss": [2.0]}, "D=D*x", "is no number to multiply"),
        ({"N": [1e5], "D": [1e6], "Dp": [1e5], "loss": [2.0]}, "D=D,D=D", "named twice"),
        ({"N": [1e5], "D": [1e6], "Dp": [1e5], "loss": [2.0]}, "Q=x", "no column 'Q'"),
        ({"N": [1e5], "D": [1e6], "Dp": [1e5], "loss": [2.0], "domain": [None]}, "", "domain is empty in row 0"),
        ({"N": [], "D": [], "Dp": [], "loss": []}, "", "holds no runs"),
    ],
)
def test_bad_tables_are_refused(table, columns, message):
    with pytest.raises(InputError, match=message):
        read_split_runs(pd.DataFrame(table), "mine.csv", columns)


@pytest.mark.parametrize("name", ["gadre-overtraining", "gemstones"])
def test_public_tables_are_slices_without_a_second_phase(name):
    try:
        table = load_dataset(name)
    except DataUnavailable as error:
        pytest.skip(f"data absent: {error}")
    for part in without_branch(table, name):
        assert (part["Dp"] == 0).all() and part["fitted"].sum() >= 12 and (~part["fitted"]).sum() >= 2
        assert part.loc[part["fitted"], "N"].max() < part.loc[~part["fitted"], "N"].min()


def run_command(*arguments: str) -> None:
    import typer

    app = typer.Typer()
    app.command()(command.run)
    app(list(arguments), standalone_mode=False)


def test_command_writes_law_curve_plan_and_pictures(tmp_path):
    run_command(*command.example(tmp_path))
    out = tmp_path / "split-training-out"
    written = {path.name for path in out.iterdir()}
    assert {"law.json", "plan.json", "curve.csv", "predictions.csv", "report.md", "curve.svg", "curve.png"} <= written
    law, plan = (json.loads((out / name).read_text()) for name in ("law.json", "plan.json"))
    assert law["form"] in KNOWN and set(law["parameters"]) == {"c", "prose"}
    assert plan["D"] + sum(plan["Dp"].values()) == pytest.approx(3e6)
    assert set(plan["interval"]) == {"D", "Dp c", "Dp prose", "share", "loss"}
    predictions = pd.read_csv(out / "predictions.csv")
    assert law["mean_relative_error"] == pytest.approx(predictions["error"].abs().mean(), rel=1e-3)
    assert "## Plan" in (out / "report.md").read_text()


def test_command_plans_flop_with_weights_caps_and_no_scratch_runs(tmp_path):
    load_dataset("split-training-smoke").to_csv(tmp_path / "runs.csv", index=False)
    out = tmp_path / "out"
    command.run(
        tmp_path / "runs.csv", 5e11, flops=True, n_params=5e4, weights="c=2,prose=1", trunk="independent",
        most_branch=3e5, form="multiplicative", scratch=False, refits=4, starts=8, out=out,
    )
    plan = json.loads((out / "plan.json").read_text())
    assert plan["flops"] == pytest.approx(5e11) and max(plan["Dp"].values()) <= 3e5 * (1 + 1e-9)
    assert plan["trunk"] == "independent" and plan["baselines"]["specialists only"] is None
    notes = json.loads((out / "law.json").read_text())["notes"]
    assert any("without a shared phase are left out" in note for note in notes)


def test_command_refuses_bad_input_and_leaves_nothing(tmp_path, prose):
    good = tmp_path / "runs.csv"
    prose[["N", "D", "Dp", "loss"]].to_csv(good, index=False)
    for extra, message in [
        (["--budget", "-1"], "tokens must be"), (["--budget", "1e6", "--form", "x"], "form must be"),
        (["--budget", "1e6", "--weights", "c"], "--weights are named"),
        (["--budget", "1e6", "--trunk", "x"], "trunk must"),
        (["--budget", "1e6", "--most-branch", "-5"], "bounds on Dp"),
        (["--budget", "1e6", "--refits", "-1"], "n_refits"),
        (["--budget", "1e6", "--columns", "D"], "columns are named as"),
    ]:
        with pytest.raises(InputError, match=message):
            run_command("--runs", str(good), "--out", str(tmp_path / "out"), "--starts", "2", *extra)
    with pytest.raises(InputError, match="is a file"):
        run_command("--runs", str(good), "--budget", "1e6", "--out", str(good))
    (tmp_path / "few.csv").write_text("N,D,Dp,loss\n" + "1e4,1e6,1e5,3\n" * 3)
    with pytest.raises(InputError, match="at least"):
        run_command("--runs", str(tmp_path / "few.csv"), "--budget", "1e6", "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_chosen_shares_are_those_of_runs_and_no_law_sees_its_own_seed(runs):
    import assay.catalogue as catalogue
    from assay.scaling.split_training import tasks
    from assay.study import Cell

    seen = []
    original = tasks._law

    def spy(cell, rows):
        seen.append((set(rows["family"]), frozenset(rows["seed"])))
        return original(cell, rows)

    cell = Cell("split-training-smoke", "split-law", options={"task": "choose", "starts": 2, "form": "multiplicative"})
    one = runs[(runs["width"] == 24) & (runs["seed"] == 0)]
    two = pd.concat([one, one.assign(seed=1, group="24/1")], ignore_index=True)
    tasks._law = spy
    try:
        found = tasks.measure(cell, two)
    finally:
        tasks._law = original
    assert all(families == {"grid"} for families, _ in seen)
    judged = set(found.units["seed"])
    assert all(judged - seeds for _, seeds in seen)
    assert set(found.units["chosen_share"]) <= {0.0, 0.1, 0.3, 0.5, 0.7, 0.9}
    columns = [name for name in found.units if name.startswith("loss ")]
    assert len(columns) == 7
    assert catalogue.get("split-training").claims["p3"].limits["budgets"] == 2


def test_training_a_part_again_gives_the_tables_losses(monkeypatch):
    pytest.importorskip("torch")
    from assay.scaling.split_training import runs as training
    from assay.scaling.split_training import tasks
    from assay.study import Cell

    rng = np.random.default_rng(0)
    texts = {name: rng.integers(low, low + 40, (2, 5000), dtype=np.uint8) for name, low in (("c", 30), ("prose", 90))}
    corpora = {name: training.Corpus(name, *parts) for name, parts in texts.items()}
    trainer = training.Trainer(corpora, 24, 0, 0.004, 0.008)
    [(_, trunk)] = trainer.trunk([3])
    rows = [
        {"domain": domain, "D": 2048 * (3 if start else 0), "Dp": 4096, "rate": 0.004 if start else 0.008,
         "loss": trainer.losses(trainer.branch(start, [domain], 2))[domain]}
        for start in (None, trunk) for domain in ("c", "prose")
    ]
    table = pd.DataFrame(rows).assign(family="grid", width=24, seed=0)
    monkeypatch.setattr(training, "home_corpora", lambda: corpora)
    cell = Cell("split-training-smoke", "split-law", options={"task": "reproduce"})
    assert tasks.measure(cell, table).metrics["difference_worst"] < 1e-6
    other = table.assign(loss=table["loss"] * [1.0, 1.0, 1.0, 1.1])
    assert tasks.measure(cell, other).metrics["difference_worst"] == pytest.approx(0.1 / 1.1, rel=1e-3)


def test_planned_shares_and_public_slices_are_measured(runs):
    from assay.scaling.split_training import tasks
    from assay.study import Cell

    options = {"task": "plan", "starts": 2, "refits": 2}
    found = tasks.measure(Cell("split-training-smoke", "split-law", options=options), runs)
    assert found.units["share"].between(0, 1).all() and (found.units["low"] <= found.units["high"]).all()
    # A law of the large-scale kind, so that the slice's limit is known: both arms are Chinchilla's law at Dp = 0.
    N, D = (v.ravel() for v in np.meshgrid([1e8, 2e8, 3e8, 1.4e9, 7e9], [1e9, 3e9, 1e10, 1e11]))
    table = pd.DataFrame({"train_set": "x", "params": N, "tokens": D}).assign(
        **{name: 1.7 + 406 / N**0.34 + 410 / D**0.28 for name in GADRE_LOSSES}
    )
    for arm in ("split-law-multiplicative", "pooled"):
        cell = Cell("gadre-overtraining", arm, options={"task": "slice", "starts": 16})
        assert tasks.measure(cell, table).metrics["error_worst"] < 1e-3


def test_the_stronger_single_model_decides_what_splitting_is_compared_with():
    import assay.catalogue as catalogue
    from assay.scaling.split_training.judging import judged
    from assay.study import Cell, Outcome, Results, Row

    claim = catalogue.get("split-training").claims["p4"]
    noise = np.array([0.0, 0.004, -0.003, 0.002, 0.001])

    def verdict(specialists: float, both: float, mixture: float):
        units = pd.DataFrame({
            "group": list("abcde"), "seed": [0, 1, 2, 0, 1], "budget": 1000, "specialists": specialists + noise,
            "both": both, "mixture": mixture,
        })
        cell = Cell("tiny-lm-split", "specialists", options={"task": "served"})
        return judged(claim, Results([Row(cell, "measured", {}, units)]), "tiny-lm-split").outcome

    assert verdict(1.9, 2.0, 2.1) is Outcome.holds
    assert verdict(2.0, 1.9, 2.1) is Outcome.fails
    assert verdict(2.0, 2.1, 1.9) is Outcome.fails
    assert verdict(2.0, 2.0, 2.1) is Outcome.unclear


NOISE = np.array([0.0, 0.0004, -0.0003, 0.0002, 0.0001])


def verdict_of(claim: str, rows: list[tuple[str, dict, pd.DataFrame]]):
    """The verdict of a claim on cells (arm, options, units) of made-up trunks."""
    import assay.catalogue as catalogue
    from assay.scaling.split_training.judging import judged
    from assay.study import Cell, Results, Row

    found = [Row(Cell("tiny-lm-split", arm, options=options), "measured", {}, units) for arm, options, units in rows]
    return judged(catalogue.get("split-training").claims[claim], Results(found), "tiny-lm-split")


@pytest.mark.parametrize(
    ("own", "huber", "mse", "outcome"),
    [
        (0.01, 0.05, 0.06, "holds"), (0.03, 0.09, 0.09, "fails"), (0.02, 0.05, 0.03, "fails"),
        (0.02, 0.03, 0.05, "fails"),
    ],
)
def test_extrapolation_needs_a_small_error_and_half_of_the_better_rivals(own, huber, mse, outcome):
    def cells(arm: str, error: float, **more):
        units = pd.DataFrame({"group": list("abcde"), "seed": 0, "D": 1, "error": error + NOISE})
        return [
            (arm, {"task": "extrapolate", "hold_out": hold_out, **more}, units) for hold_out in ("width", "tokens")
        ]

    rivals = cells("pooled", huber, objective="huber") + cells("pooled", mse, objective="mse")
    assert verdict_of("p2", cells("split-law", own) + rivals).outcome.value == outcome
    missing = verdict_of("p2", cells("split-law", own)[:1] + rivals)
    assert missing.outcome.value == ("untested" if outcome == "holds" else "fails")


@pytest.mark.parametrize(
    ("chosen", "rule", "best", "budgets", "outcome"),
    [
        (1.98, 2.0, 1.98, 3, "holds"), (1.98, 2.0, 1.98, 2, "holds"), (1.98, 2.0, 1.98, 1, "fails"),
        (2.02, 2.0, 2.0, 3, "fails"), (1.98, 2.0, 1.9, 3, "fails"),
    ],
)
def test_a_chosen_split_beats_the_rules_and_comes_near_the_best_in_two_of_three_budgets(
    chosen, rule, best, budgets, outcome
):
    parts = []
    for number in range(3):
        losses = {"chosen_loss": chosen if number < budgets else 2.1, "loss 0.3": best, "loss 0": rule}
        others = {f"loss {name}": rule + 0.1 for name in ("full", "0.5", "0.9")}
        parts.append(pd.DataFrame({
            "group": list("abcde"), "seed": 0, "budget": number + 1, "chosen_share": 0.3, **others,
            **{name: loss + NOISE * (i + 1) for i, (name, loss) in enumerate(losses.items())},
        }))
    assert verdict_of("p3", [("split-law", {"task": "choose"}, pd.concat(parts))]).outcome.value == outcome


def test_texts_become_domains(tmp_path):
    from assay.scaling.split_training.runs import Corpus, corpora_from_folders, home_corpora

    for name in ("left", "right"):
        (tmp_path / name).mkdir()
        for number in range(40):
            (tmp_path / name / f"{number}.txt").write_bytes(f"{name} {number} ".encode() * 30)
    found = corpora_from_folders([tmp_path / "left", tmp_path / "right"])
    assert set(found) == {"left", "right"}
    assert all(0 < len(corpus.held_out) < len(corpus.training) for corpus in found.values())
    with pytest.raises(InputError, match="no such folder"):
        corpora_from_folders([tmp_path / "nowhere", tmp_path / "left"])
    with pytest.raises(InputError, match="two domains or more"):
        corpora_from_folders([tmp_path / "left"])
    with pytest.raises(InputError, match=r"training bytes|held-out bytes"):
        Corpus.from_documents("short", {"a": b"text"})
    twice = Corpus.from_documents("same", {**{f"{i}": b"x%d" % i * 200 for i in range(40)}, "copy": b"x1" * 200})
    assert (twice.training.tobytes() + twice.held_out.tobytes()).count(b"x1x1") <= 200
    home = home_corpora()
    assert set(home) == {"python", "c", "prose", "licence"}
