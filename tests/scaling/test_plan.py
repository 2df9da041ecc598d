"""Oracles of plan: known laws are found and divided as their closed forms say; tables that can't answer are refused."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from assay import catalogue
from assay.cli import app
from assay.datasets import DataUnavailable, load_dataset
from assay.errors import InputError, MissingExtra
from assay.scaling import allowed_laws, plan_run, rank_laws
from assay.scaling.fit import ChinchillaLaw, KaplanLaw, PowerLaw
from assay.scaling.plan.climbing import climb, pick
from assay.scaling.plan.laws import candidates, fit_law, optimum
from assay.scaling.plan.ranking import _ranked as ranked_table
from assay.scaling.plan.ranking import held_out_masks
from assay.scaling.plan.runs import prepare_runs, thinned
from assay.scaling.plan.study import _by_block
from assay.stats import mean_interval

CHECKS = {"passed": 59, "excused": 6, "oracles": 3, "oracles_without_data": 3}

HOFFMANN = {"E": 1.69, "A": 406.4, "alpha": 0.34, "B": 410.7, "beta": 0.28}
FEW = {"laws": ["chinchilla", "kaplan", "power"], "holdout": 0.6, "n_starts": 2}


def grid(loss=None, noise: float = 0.0) -> pd.DataFrame:
    """Runs of five sizes at five token counts each; the loss by Hoffmann et al.'s law unless another is given."""
    N, D = (axis.ravel() for axis in np.meshgrid(np.geomspace(1e7, 1e9, 5), np.geomspace(1e9, 1e11, 5)))
    p = HOFFMANN
    losses = p["E"] + p["A"] / N ** p["alpha"] + p["B"] / D ** p["beta"] if loss is None else loss(N, D)
    scatter = np.exp(noise * np.random.default_rng(0).standard_normal(len(N)))
    return pd.DataFrame({"N": N, "D": D, "loss": losses * scatter})


def of(name: str) -> pd.DataFrame:
    try:
        return load_dataset(name)
    except DataUnavailable:
        pytest.skip(f"data absent: {name}")


# Oracles


def test_oracle_runs_of_hoffmanns_law_are_divided_by_its_closed_form():
    plan = plan_run(grid(), 1e22, n_refits=3, **FEW)
    p, compute = HOFFMANN, 1e22
    G = (p["alpha"] * p["A"] / (p["beta"] * p["B"])) ** (1 / (p["alpha"] + p["beta"]))
    N = G * (compute / 6) ** (p["beta"] / (p["alpha"] + p["beta"]))  # their eq. 4
    D = compute / (6 * N)
    assert plan.law == "chinchilla"
    assert plan.allocation.loc["N", "estimate"] == pytest.approx(N, rel=0.01)
    assert plan.allocation.loc["D", "estimate"] == pytest.approx(D, rel=0.01)
    loss = p["E"] + p["A"] / N ** p["alpha"] + p["B"] / D ** p["beta"]
    assert plan.allocation.loc["loss", "estimate"] == pytest.approx(loss, rel=1e-3)
    assert plan.laws.loc["chinchilla", "error"] < 1e-3
    assert plan.laws.loc["kaplan", "clearly_worse"]


def test_oracle_runs_of_kaplans_law_are_given_to_kaplan():
    def kaplan(N, D):
        return ((8.8e13 / N) ** (0.076 / 0.095) + 5.4e13 / D) ** 0.095

    ranked = rank_laws(grid(kaplan), **FEW)
    assert ranked.index[0] == "kaplan"
    assert ranked.loc["kaplan", "error"] < 1e-3
    assert ranked.loc[["chinchilla", "power"], "clearly_worse"].all()


def test_oracle_the_held_out_error_is_that_of_a_fit_made_by_hand():
    runs = grid(noise=0.02)
    ranked = rank_laws(runs, laws=["power"], holdout=0.6, n_starts=2)
    C = 6 * runs["N"] * runs["D"]
    doublings = np.log2(C).round()
    cut = np.sort(doublings)[int(np.ceil(0.6 * (len(doublings) - 1)))]
    below = doublings < cut
    law = PowerLaw(n_starts=2).fit(C[below].to_numpy()[:, None], runs["loss"][below])
    above = ~below & (C[below].max() < C)
    error = np.abs(np.log(law.predict(C[above].to_numpy()[:, None]) / runs["loss"][above])).mean()
    assert ranked.loc["power", "error"] == pytest.approx(error, rel=1e-6)


# The answer


def test_the_interval_holds_the_estimate_and_the_range_holds_the_interval():
    plan = plan_run(grid(noise=0.01), 1e21, n_refits=10, **FEW)
    table = plan.allocation
    assert (table["lowest"] <= table["low"]).all() and (table["low"] <= table["estimate"]).all()
    assert (table["estimate"] <= table["high"]).all() and (table["high"] <= table["highest"]).all()
    assert table.loc["N", "low"] < table.loc["N", "high"]
    N, D = table.loc["N", "estimate"], table.loc["D", "estimate"]
    assert pytest.approx(1e21, rel=1e-6) == 6 * N * D


def test_noisier_runs_give_a_wider_interval():
    widths = []
    for noise in (0.002, 0.05):
        plan = plan_run(grid(noise=noise), 1e21, laws=["chinchilla"], holdout=0.6, n_starts=2, n_refits=15)
        widths.append(np.log(plan.allocation.loc["N", "high"] / plan.allocation.loc["N", "low"]))
    assert widths[1] > 3 * widths[0]


def test_a_budget_far_beyond_the_runs_is_answered_with_a_warning_and_a_range():
    near, far = (plan_run(grid(noise=0.01), flops, n_refits=10, **FEW) for flops in (1e21, 1e27))
    assert any("far beyond what was measured" in note for note in far.notes)
    assert not any("far beyond what was measured" in note for note in near.notes)
    spread = [np.log(plan.allocation.loc["N", "highest"] / plan.allocation.loc["N", "lowest"]) for plan in (near, far)]
    assert spread[1] > spread[0] > 0
    below = plan_run(grid(noise=0.01), 1e10, n_refits=3, **FEW)
    assert any("below the smallest run" in note for note in below.notes)


def test_two_plans_are_equal_and_the_table_is_left_as_it_was():
    runs = grid(noise=0.01)
    before = runs.copy()
    first, second = (plan_run(runs, 1e21, n_refits=3, **FEW) for _ in range(2))
    pd.testing.assert_frame_equal(first.laws, second.laws)
    pd.testing.assert_frame_equal(first.allocation, second.allocation)
    pd.testing.assert_frame_equal(runs, before)


def test_a_law_that_chooses_no_size_may_rank_first_and_does_not_answer():
    plan = plan_run(grid(lambda N, D: 1.5 + 300 / (6 * N * D) ** 0.12), 1e21, n_refits=3, **FEW)
    assert plan.laws.index[0] == "power" and plan.law != "power"
    assert any("chooses no size" in note for note in plan.notes)
    assert np.isnan(plan.laws.loc["power", "N"])


def test_losses_that_follow_no_law_are_said_to():
    runs = grid()
    shuffled = runs.assign(loss=np.random.default_rng(0).permutation(runs["loss"]))
    assert any(note.startswith("No law helps") for note in plan_run(shuffled, 1e21, n_refits=2, **FEW).notes)
    assert not any(note.startswith("No law helps") for note in plan_run(runs, 1e21, n_refits=2, **FEW).notes)


def test_a_law_without_a_finite_optimum_chooses_nothing():
    law = ChinchillaLaw()
    law.params_ = {"E": 1.0, "A": 1e-300, "alpha": 3.0, "B": 1e30, "beta": 0.001}
    with pytest.raises(InputError, match="no finite optimum"):
        optimum(law, 1e21, {})


def test_a_law_that_fails_wildly_on_one_run_does_not_hide_behind_its_scatter():
    good = np.full(10, 0.01) * np.linspace(0.9, 1.1, 10)
    errors = pd.DataFrame({"good": good, "wild": np.linspace(0.02, 0.05, 10), "same": good[::-1]})
    errors.loc[9, "wild"] = 4.0
    table = ranked_table(errors)
    assert table.index[0] in ("good", "same") and table.index[-1] == "wild"
    assert table["clearly_worse"].tolist() == [False, False, True]
    assert table.loc["wild", "ratio_low"] > 1


def test_a_best_fit_that_one_start_alone_found_is_said_to_be(monkeypatch):
    def lonely(candidate, frame, n_starts, random_state):
        law, rows = fit_law(candidate, frame, n_starts, random_state)
        law.n_converged_ = 1
        return law, rows

    monkeypatch.setattr("assay.scaling.plan.planning.fit_law", lonely)
    notes = plan_run(grid(), 1e21, laws=["kaplan"], holdout=0.6, n_starts=2, n_refits=2).notes
    assert "Only one of 2 starts found the best fit of kaplan: more may find a better one." in notes


def test_a_difference_of_no_consequence_is_not_clearly_worse():
    rng = np.random.default_rng(0)
    first = np.exp(rng.normal(-3, 0.3, 500))
    near, far = (first * rng.normal(times, 0.01, 500) for times in (1.02, 1.3))
    table = ranked_table(pd.DataFrame({"first": first, "near": near, "far": far}))
    assert table.loc["near", "ratio_low"] > 1 and not table.loc["near", "clearly_worse"]
    assert table.loc["far", "clearly_worse"]


def test_the_fitted_error_is_judged_on_the_same_runs_for_all_laws():
    runs = load_dataset("plan-smoke-runs")
    plan = plan_run(runs, 1e13, laws=["chinchilla", "chinchilla-batch"], holdout=0.7, n_starts=1, n_refits=2)
    judged = plan.runs[plan.runs["sized"]]
    for name, law in plan.fitted.items():
        error = np.abs(np.log(law.predict(judged[list(law.columns)]) / judged["loss"])).mean()
        assert plan.laws.loc[name, "fitted_error"] == pytest.approx(error)
    assert len(judged) < len(plan.runs)


def test_a_law_that_reads_a_batch_and_chooses_none_is_ranked_and_does_not_answer():
    runs = load_dataset("plan-smoke-runs")
    asked = {"holdout": 0.7, "n_starts": 1, "n_refits": 2}
    plan = plan_run(runs, 1e13, laws=["chinchilla", "chinchilla-batch"], **asked)
    assert plan.law == "chinchilla" and plan.disagreement["laws"].eq(1).all()
    assert np.isnan(plan.laws.loc["chinchilla-batch", "N"]) and plan.laws.loc["chinchilla-batch", "error"] > 0
    assert any("chinchilla-batch reads a batch size and chooses none" in note for note in plan.notes)
    with pytest.raises(InputError, match="none of the laws chinchilla-batch chooses a size"):
        plan_run(runs, 1e13, laws=["chinchilla-batch"], **asked)


def test_laws_that_choose_different_sizes_and_can_not_be_told_apart_are_said_to():
    runs = grid(noise=0.05)
    asked = {**FEW, "laws": ["chinchilla", "kaplan"]}
    far = plan_run(runs, 1e26, n_refits=2, **asked)
    assert not far.laws["clearly_worse"].any() and far.disagreement.loc["N", "ratio"] > 2
    assert any(note.startswith("The held-out runs don't decide between laws") for note in far.notes)
    alone = plan_run(runs, 1e26, n_refits=2, **{**FEW, "laws": ["chinchilla"]})
    assert not any(note.startswith("The held-out runs don't decide") for note in alone.notes)


def test_only_laws_without_a_choice_are_refused():
    with pytest.raises(InputError, match="none of the laws power chooses a size"):
        plan_run(grid(), 1e21, laws=["power"], n_starts=1)


# Which laws


def test_columns_decide_which_laws_are_fitted():
    allowed = allowed_laws(grid())
    assert allowed.loc["chinchilla", "allowed"] and allowed.loc["kaplan", "allowed"]
    assert "lacks B (sequences a batch)" in allowed.loc["chinchilla-batch", "why"]
    with_batches = allowed_laws(load_dataset("plan-smoke-runs"))
    known = ["chinchilla", "chinchilla-batch", "kaplan", "nqs", "power"]
    assert with_batches.loc[known, "allowed"].all()
    others = with_batches.drop(index=known)
    assert not others["allowed"].any()
    assert others["why"].str.startswith("lacks ").all()


def test_a_constant_batch_excludes_the_laws_that_read_it():
    allowed = allowed_laws(grid().assign(B=64))
    assert allowed.loc["chinchilla-batch", "why"] == "B is 64 in all runs, so what depends on it can't be fitted"


def test_a_law_with_more_parameters_than_runs_is_excluded_by_name(monkeypatch):
    module = ModuleType("toy_laws")
    module.WideLaw = WideLaw
    monkeypatch.setitem(sys.modules, "toy_laws", module)
    toy = SimpleNamespace(
        area="scaling", slug="toy", package="toy_laws", public=("WideLaw",), kinds={"WideLaw": "law"}
    )
    monkeypatch.setattr(catalogue, "methods", lambda: {"toy": toy})
    allowed = allowed_laws(grid().iloc[[0, 2, 6, 8, 12, 14, 18, 24]])
    assert allowed.loc["toy", "why"] == "has 8 parameters for 8 different runs"
    assert allowed.loc["chinchilla", "allowed"]


class WideLaw(ChinchillaLaw):
    """More parameters than a small table has runs."""

    columns = ("N", "D")
    parameters = tuple("abcdefgh")


class ToyLaw(ChinchillaLaw):
    """Chinchilla's law with a setting that a catalogue's tool must give it, and a column of its own."""

    plan_settings = {"batch_aware": False, "huber_delta": 0.5}
    columns = ("N", "D", "quality")
    parameters = ("E", "A", "alpha", "B", "beta")


def test_laws_of_the_catalogue_are_found_by_their_kind(monkeypatch):
    module = ModuleType("toy_laws")
    module.ToyLaw, module.NoLaw = ToyLaw, dict
    monkeypatch.setitem(sys.modules, "toy_laws", module)
    kinds = {"ToyLaw": "law", "NoLaw": "law"}
    toy = SimpleNamespace(area="scaling", slug="toy", package="toy_laws", public=tuple(kinds), kinds=kinds)
    other = SimpleNamespace(area="trust", slug="other", package="missing", public=("X",), kinds={"X": "law"})
    monkeypatch.setattr(catalogue, "methods", lambda: {"toy": toy, "other": other})
    found, broken = candidates()
    assert [candidate.name for candidate in found][-1] == "toy" and not broken
    assert found[-1].law.huber_delta == 0.5
    runs = grid()
    assert allowed_laws(runs).loc["toy", "why"] == "lacks quality"
    assert allowed_laws(runs.assign(quality=np.linspace(1, 2, len(runs)))).loc["toy", "allowed"]


def test_a_method_whose_package_is_missing_is_named(monkeypatch):
    def refuse(name):
        raise MissingExtra("toy needs the package torch")

    toy = SimpleNamespace(area="scaling", slug="toy", package="toy_laws", public=("X",), kinds={"X": "law"})
    monkeypatch.setattr(catalogue, "methods", lambda: {"toy": toy})
    monkeypatch.setattr("assay.scaling.plan.laws.importlib.import_module", refuse)
    assert candidates()[1] == {"toy": "toy needs the package torch"}
    assert allowed_laws(grid()).loc["toy", "why"] == "toy needs the package torch"
    assert candidates(["toy"])[1] and not candidates(["kaplan"])[1]


def test_a_law_that_reads_no_batch_is_fitted_to_the_best_batches_alone():
    runs = prepare_runs(load_dataset("plan-smoke-runs"))
    by_name = {candidate.name: candidate for candidate in candidates()[0]}
    _, plain = fit_law(by_name["chinchilla"], runs.frame, 1, 0)
    _, aware = fit_law(by_name["chinchilla-batch"], runs.frame, 1, 0)
    assert len(plain) == runs.frame["sized"].sum() < len(aware) == len(runs.frame)
    best = runs.frame.groupby(["N", "D"])["loss"].min()
    assert sorted(plain["loss"]) == sorted(best)


# What is independent, what is held out


def checkpoints(n: int = 8) -> pd.DataFrame:
    """Eight runs of one size each, five checkpoints a run."""
    N = np.repeat(np.geomspace(1e7, 1e9, n), 5)
    D = np.tile(np.geomspace(1e9, 3e10, 5), n)
    loss = 1.7 + 400 / N**0.34 + 400 / D**0.28
    return pd.DataFrame({"N": N, "D": D, "loss": loss, "group": np.repeat(list("abcdefghij")[:n], 5)})


def test_a_run_with_its_checkpoints_is_held_out_whole_and_drawn_whole():
    runs = prepare_runs(checkpoints())
    assert runs.units_are == "run" and runs.frame["unit"].nunique() == 8
    for _, fit, test in held_out_masks(runs, (0.5, 0.7), []):
        assert not set(runs.frame["group"][fit]) & set(runs.frame["group"][test])
        assert runs.frame["C"][test].min() > runs.frame["C"][fit].max()


def test_few_checkpointed_runs_are_held_out_whole_and_said_to_be_few():
    runs = prepare_runs(checkpoints(5))
    assert runs.units_are == "row" and runs.frame["run"].nunique() == 5
    assert any("too few to be drawn" in note for note in runs.notes)


def test_groups_of_several_sizes_are_drawn_but_not_held_out_whole():
    runs = prepare_runs(grid().assign(group=np.tile(np.arange(25) % 8, 1)))
    assert runs.units_are == "group" and runs.frame["run"].nunique() == 25


def test_one_group_for_all_says_nothing():
    assert prepare_runs(grid().assign(group="transformer")).units_are == "row"


def test_equal_cuts_count_once_and_useless_ones_are_named():
    notes: list[str] = []
    runs = prepare_runs(grid())
    cuts = held_out_masks(runs, (0.05, 0.6, 0.6001), notes)
    assert len(cuts) == 1 and "0.05 quantile" in notes[0]
    with pytest.raises(InputError, match="no cut of compute leaves"):
        held_out_masks(runs, 0.05, [])
    with pytest.raises(InputError, match="between 0 and 1"):
        held_out_masks(runs, 1.5, [])


def test_seeds_are_joined_and_of_several_rates_the_best_counts():
    one = grid()
    runs = prepare_runs(pd.concat([one, one.assign(loss=one["loss"] * 1.02)]))
    assert len(runs.frame) == 25
    assert sorted(runs.frame["loss"]) == pytest.approx(sorted(one["loss"] * np.sqrt(1.02)))
    rates = prepare_runs(pd.concat([one.assign(lr=1e-3), one.assign(lr=1e-2, loss=one["loss"] * 1.1)]))
    assert len(rates.frame) == 25 and sorted(rates.frame["loss"]) == pytest.approx(sorted(one["loss"]))
    assert any("learning rate alone" in note for note in rates.notes)


def test_untuned_runs_are_said_to_scatter_and_their_best_can_be_kept():
    rng = np.random.default_rng(1)
    many = pd.concat([grid() for _ in range(4)], ignore_index=True)
    many["N"] *= rng.uniform(0.95, 1.05, len(many))
    many["loss"] *= np.exp(np.abs(rng.normal(0, 0.2, len(many))))
    plan = plan_run(many, 1e21, laws=["chinchilla"], holdout=0.6, n_starts=1, n_refits=3)
    assert any("scatter" in note for note in plan.notes)
    kept = prepare_runs(many, best_within=2)
    assert len(kept.frame) < 50 and any("are the best within a factor 2" in note for note in kept.notes)


def test_a_tables_own_flop_are_the_budgets_currency():
    runs = grid().assign(C=lambda t: 9 * t["N"] * t["D"])
    plan = plan_run(runs, 1.5e21, laws=["chinchilla"], holdout=0.6, n_starts=1, n_refits=2)
    assert plan.budget == pytest.approx(1e21)
    assert any("1.5 times 6 N D" in note for note in plan.notes)
    odd = grid().assign(C=lambda t: 6 * t["N"] * t["D"] * np.linspace(1, 3, len(t)))
    plan = plan_run(odd, 1e21, laws=["chinchilla"], holdout=0.6, n_starts=1, n_refits=2)
    assert plan.budget == 1e21 and any("no fixed factor" in note for note in plan.notes)


def test_thinning_keeps_the_ends_and_leaves_small_tables_alone():
    frame = pd.DataFrame({"C": np.arange(1000.0)})
    assert thinned(frame, 1000) is frame
    kept = thinned(frame.sample(frac=1, random_state=0), 11)["C"].tolist()
    assert kept[0] == 0 and kept[-1] == 999 and len(kept) == 11


# Bad input


def refused(runs, match: str, **how) -> None:
    with pytest.raises(InputError, match=match) as caught:
        plan_run(runs, 1e21, **{**FEW, **how})
    assert len(str(caught.value).splitlines()) == 1


def test_one_size_only():
    refused(grid().assign(N=1e8), "one model size .* needs runs of at least 3 sizes")


def test_one_token_count_only():
    refused(grid().assign(D=1e10), "all runs saw 1e\\+10 tokens")


def test_tokens_that_follow_from_the_size():
    refused(grid().assign(D=lambda t: 20 * t["N"] * np.linspace(1, 1.3, len(t))), "tokens follow from the size")


def test_a_narrow_span_of_compute():
    runs = grid()
    middle = runs[(runs["N"] * runs["D"]).between(2e17, 1.5e18)]
    refused(middle, "compute spans a factor .* add smaller or larger runs")


def test_too_few_runs():
    refused(grid().iloc[[0, 3, 7, 12, 20, 24]], "6 different runs: at least 8")


def test_diverged_runs_are_left_out_and_said_to_be():
    runs = grid()
    spoilt = runs.assign(loss=[np.nan, np.inf, 12.0, *runs["loss"][3:]])
    plan = plan_run(spoilt, 1e21, vocab=50_000, n_refits=2, **FEW)
    assert len(plan.runs) == 22
    assert any("without a finite loss" in note for note in plan.notes)
    assert any("no better than guessing" in note for note in plan.notes)


def test_tokens_and_sequences_confused():
    refused(grid().assign(B=64.0, K=lambda t: t["D"] / 64), "D counts sequences and not tokens")


def test_flop_given_where_tokens_were_expected():
    refused(grid().assign(D=lambda t: 6 * t["N"] * t["D"]), "is it FLOP")


def test_duplicates_count_once():
    runs = grid()
    plan = plan_run(pd.concat([runs, runs.iloc[:3]]), 1e21, n_refits=2, **FEW)
    assert len(plan.runs) == 25 and any("named twice" in note for note in plan.notes)


def test_units_mixed_between_rows():
    runs = grid()
    refused(runs.assign(D=[runs["D"][0] / 1e9 * 2e3, *runs["D"][1:]]), "units\\s+mixed between rows")


@pytest.mark.parametrize("unit", [1e6, 1e9, 2048 * 100])
def test_tokens_in_another_unit(unit):
    refused(grid().assign(D=lambda t: t["D"] / unit), "tokens a parameter in the middle run: are these millions")


@pytest.mark.parametrize(("how", "match"), [
    ({"holdout": "0.5"}, "holdout must be at least one quantile"), ({"holdout": None}, "holdout must be"),
    ({"holdout": ["a"]}, "holdout must be"), ({"holdout": True}, "holdout must be"),
    ({"best_within": "2"}, "best_within must be a number"), ({"seq_len": "x"}, "seq_len must be a number"),
    ({"vocab": "x"}, "vocab must be a number"), ({"columns": ["N"]}, "columns must map"),
    ({"columns": {"N": 3}}, "columns must map"), ({"columns": {"Q": "N"}}, "there is no column 'Q' here"),
    ({"laws": "chinchilla"}, "laws must be a list of names"), ({"laws": []}, "laws must be a list of names"),
    ({"n_starts": 0}, "^n_starts must be"), ({"n_starts": 1.5}, "^n_starts must be"),
    ({"random_state": -1}, "^random_state must be"),
])
def test_settings_of_the_wrong_kind(how, match):
    refused(grid(), match, **how)


@pytest.mark.parametrize("flops", [0, -1e20, np.nan, np.inf, "many", None, True])
def test_no_budget(flops):
    with pytest.raises(InputError, match="compute must be a positive, finite number of FLOP"):
        plan_run(grid(), flops)


def test_a_missing_column_is_named_with_what_is_there():
    runs = grid().rename(columns={"N": "kiwi", "D": "plum"})
    refused(runs, r"lacks N \(parameters\) and D \(tokens\).*kiwi \(1e\+07 to 1e\+09\), plum \(1e\+09 to 1e\+11\)")


def test_unknown_laws_and_no_law_are_refused():
    refused(grid(), "no law is called 'chinchila' \\(did you mean chinchilla\\?\\)", laws=["chinchila"])
    refused(grid(), "at least one quantile", holdout=[])
    refused(grid(), "best_within must be a factor above 1", best_within=0.5)
    refused([1, 2], "must be a DataFrame or the path of a CSV file")


# The command, as a new user meets it


WORDS = ("kiwi", "plum", "fig", "pear", "lime", "date_", "nut")


def new_user(tmp_path, runs: pd.DataFrame, loss: str, *more: str):
    """Columns under random words: first without a word about them, then with `--columns`."""
    names = dict(zip(runs.columns, np.random.default_rng(3).permutation(WORDS)[: len(runs.columns)], strict=True))
    path = tmp_path / "runs.csv"
    runs.rename(columns=names).to_csv(path, index=False)
    base = ["run", "plan", "--data", str(path), "--flops", "1e22", "--out", str(tmp_path / "out")]
    named = ",".join(f"{ours}={names[theirs]}" for ours, theirs in {"N": "params", "D": "tokens", "loss": loss}.items())
    quick = ["--holdout", "0.7", "--laws", "chinchilla,kaplan", "--starts", "2", "--refits", "10", *more]
    with pytest.raises(InputError) as caught:
        CliRunner().invoke(app, base, catch_exceptions=False, standalone_mode=False)
    done = CliRunner().invoke(app, [*base, "--columns", named, *quick], catch_exceptions=False, standalone_mode=False)
    return names, str(caught.value), done, tmp_path / "out"


def check_new_user(names, message, done, out, runs) -> None:
    assert "lacks N (parameters)" in message and "N=COLUMN,D=COLUMN,loss=COLUMN" in message
    assert f"{names['params']} ({runs['params'].min():.3g} to {runs['params'].max():.3g})" in message
    assert done.exit_code == 0, done.output
    plan = json.loads((out / "plan.json").read_text())
    assert plan["allocation"]["N"]["low"] <= plan["allocation"]["N"]["estimate"] <= plan["allocation"]["N"]["high"]
    written = {path.name for path in out.iterdir()}
    assert written >= {"plan.json", "laws.csv", "allocation.csv", "report.md", "laws.vl.json"}


def test_a_new_user_with_our_runs(tmp_path):
    runs = load_dataset("tiny-lm-runs").rename(columns={"N": "params"})[["params", "tokens", "loss"]]
    check_new_user(*new_user(tmp_path, runs, "loss"), runs)


def test_a_new_user_with_gadres_runs(tmp_path):
    runs = of("gadre-overtraining").query("train_set == 'c4_original'")[["params", "tokens", "loss_c4"]]
    check_new_user(*new_user(tmp_path, runs, "loss_c4"), runs)


def test_the_printed_table_keeps_its_words_on_a_narrow_screen(tmp_path):
    path = tmp_path / "runs.csv"
    load_dataset("plan-smoke-runs")[["N", "B", "K", "tokens", "loss"]].to_csv(path, index=False)
    quick = ["--holdout", "0.7", "--laws", "chinchilla,chinchilla-batch", "--starts", "1", "--refits", "2"]
    asked = ["run", "plan", "--data", str(path), "--flops", "1e13", "--out", str(tmp_path / "out"), *quick]
    done = CliRunner().invoke(app, asked, env={"COLUMNS": "80"}, catch_exceptions=False)
    rows = [line for line in done.output.splitlines() if line.strip().startswith("chinchilla-batch ")]
    assert len(rows) == 1 and "…" not in done.output


def test_a_new_user_with_gemstones(tmp_path):
    runs = of("gemstones")[["params", "tokens", "loss_fineweb_edu", "model"]].iloc[::5]
    names = dict(zip(runs.columns, np.random.default_rng(3).permutation(WORDS)[:4], strict=True))
    check_new_user(*new_user(tmp_path, runs, "loss_fineweb_edu", "--group", names["model"]), runs)


# The study


def test_the_arms_pick_what_their_name_says():
    rows = [
        {"unit": unit, "rung": number, "law": law, "chosen": "a", "rank": rank, "fitted": fitted, "N": 1.0,
         "expected": 2.0 + rank, "lowest": 1.0, "highest": 3.0, "spread": float(number)}
        for number, unit in enumerate("xyz")
        for law, rank, fitted in (("a", 0, 0.3), ("chinchilla", 1, 0.1), ("c", 2, 0.2))
    ]
    table = pd.DataFrame([*rows, {"unit": "w", "rung": 3, "law": "", "refused": "why"}])
    wanted = {"plan": {"a"}, "chinchilla": {"chinchilla"}, "least-fitted": {"chinchilla"}, "worst-ranked": {"c"}}
    assert {arm: set(pick(arm, table)["law"]) for arm in wanted} == wanted
    narrow = pick("zero-width", table)
    assert (narrow["lowest"] == narrow["highest"]).all()


def test_two_neighbouring_budgets_are_one_unit():
    rng = np.random.default_rng(0)
    units = pd.DataFrame({"block": np.repeat(np.arange(8), 2)})
    twins = pd.Series(np.repeat(rng.normal(size=8), 2))
    interval = _by_block(units, twins)
    assert interval.n == 8 and interval == mean_interval(twins[::2])


def test_a_baseline_that_chooses_no_size_is_compared_by_its_prediction():
    rows = [
        {"unit": "x", "rung": 0, "law": law, "chosen": "a", "rank": rank, "fitted": 0.1, "N": size, "error": 0.1}
        for rank, (law, size) in enumerate((("a", 1.0), ("chinchilla", np.nan), ("power", np.nan)))
    ]
    picked = {arm: pick(arm, pd.DataFrame(rows))["law"].tolist() for arm in ("chinchilla", "worst-ranked")}
    assert picked == {"chinchilla": ["chinchilla"], "worst-ranked": ["a"]}


def test_a_rung_is_planned_from_smaller_budgets_alone():
    options = {
        "subset": "", "rungs": 1, "width": 1.0, "holdout": [0.7], "laws": ["chinchilla"], "starts": 1, "refits": 2,
    }
    table = climb("plan-smoke-runs", options, shuffled=False)
    runs = load_dataset("plan-smoke-runs")
    known, then = runs[runs["level"] < 7], runs[runs["level"] == 7]
    best = known.loc[known.groupby(["N", "tokens"])["loss"].idxmin()]
    law = ChinchillaLaw(n_starts=1).fit(best[["N", "tokens"]].set_axis(["N", "D"], axis=1), best["loss"])
    judged = then.loc[then.groupby(["N", "tokens"])["loss"].idxmin()]
    error = np.abs(np.log(law.predict(judged[["N", "tokens"]].to_numpy()) / judged["loss"])).mean()
    assert table["error"].iloc[0] == pytest.approx(error, rel=1e-4)
    assert table["best"].iloc[0] == then["loss"].min()


def test_kaplans_law_is_still_what_its_paper_says():
    law = KaplanLaw()
    law.params_ = {"N_c": 8.8e13, "alpha_N": 0.076, "D_c": 5.4e13, "alpha_D": 0.095}
    assert law.optimal(1e21)["N"] == pytest.approx(5.61e9, rel=0.01)
