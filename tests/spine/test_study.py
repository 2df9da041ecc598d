"""The contract of a study: identities, look-ups, and the truth tables of verdicts."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.stats import Interval
from assay.study import (
    Cell,
    Claim,
    Measurement,
    Outcome,
    Results,
    Row,
    Step,
    Study,
    Tier,
    Verdict,
    all_of,
    at_least,
)

JSON_OPTIONS = st.dictionaries(
    st.text(max_size=4), st.one_of(st.integers(-9, 9), st.booleans(), st.text(max_size=4), st.lists(st.integers(0, 3))),
    max_size=4,
)


def claim(**fields) -> Claim:
    known = {"id": "C1", "statement": "s", "paper": "p", "measured": "m", "unit": "u", "home": "h"}
    return Claim(**{**known, "control": "noop", "arm": "method", **fields})


def verdict(outcome: str) -> Verdict:
    return Verdict("part", Outcome(outcome), reason=f"it {outcome}")


def row(dataset="d", arm="method", status="measured", metrics=None, **cell) -> Row:
    return Row(Cell(dataset, arm, **cell), status, metrics or {}, reason="" if status == "measured" else "no luck")


@given(options=JSON_OPTIONS)
def test_cells_with_equal_options_are_one_key_whatever_their_order(options):
    forth, back = (Cell("d", "a", options=dict(items)) for items in (options.items(), reversed(options.items())))
    assert forth == back and hash(forth) == hash(back) and len({forth, back}) == 1
    assert Cell.from_dict(json.loads(json.dumps(forth.to_dict()))) == forth


@pytest.mark.parametrize(
    "other",
    [
        Cell("e", "a"), Cell("d", "b"), Cell("d", "a", seed=1), Cell("d", "a", options={"k": 1}),
        Cell("d", "a", data=()), Cell("d", "a", timing=True), Cell("d", "a", device="cuda"),
    ],
)
def test_cells_that_differ_in_one_field_are_two_keys(other):
    assert other != Cell("d", "a") and len({other, Cell("d", "a")}) == 2


def test_steps_and_cells_are_never_equal():
    step = Step("fit", {"width": 8}, data=("d",))
    assert step == Step.from_dict(step.to_dict()) and {step: 1}[Step("fit", {"width": 8}, data=("d",))] == 1
    assert step != Step("fit", {"width": 9}, data=("d",)) and step != Cell("fit", "a")


def test_a_cell_reads_its_own_data_set_unless_told_otherwise():
    assert Cell("letter", "a").data == ("letter",) and Cell("made", "a", data=()).data == ()


def test_options_that_are_no_json_are_refused_when_they_become_an_identity():
    with pytest.raises(TypeError):
        hash(Cell("d", "a", options={"array": object()}))


def test_a_label_names_the_cell_in_words():
    assert Cell("letter", "ts", 2, {"bins": 15}).label() == "letter · ts · seed 2 bins=15"


def test_tiers_have_an_order():
    assert Tier.smoke.rank < Tier.quick.rank < Tier("full").rank


@pytest.fixture
def results() -> Results:
    return Results(
        [
            row("x", "method", seed=0, metrics={"loss": 1.0}, options={"bits": 4}),
            row("x", "method", seed=1, metrics={"loss": 2.0}, options={"bits": 8}),
            row("x", "noop", seed=0, metrics={"loss": 9.0}, options={"bits": 4}),
            row("y", "method", "failed", seed=0, options={"bits": 4}),
            row("z", "rival", seed=0, metrics={"time": 3.0}),
        ]
    )


def test_where_takes_fields_options_and_a_test(results):
    assert results.metric("loss", arm="method") == [1.0, 2.0]
    assert results.metric("loss", dataset="x", bits=4) == [1.0, 9.0]
    assert results.metric("loss", test=lambda cell: cell.seed > 0) == [2.0]
    assert results.metric("loss", arm="method", seed=0, bits=8) == []
    assert [r.cell.dataset for r in results.where(status="failed")] == ["y"]
    assert results.metric("loss", arm="rival") == [] and len(results.measured) == 4
    assert results.datasets == ["x", "z"] and results[0].cell.seed == 0


def test_missing_names_each_cell_and_the_absence_of_all(results):
    assert results.missing(arm="method") == "y · method · seed 0 bits=4: failed, no luck"
    assert results.missing(dataset="x") == ""
    assert results.missing(dataset="w", arm="method") == "no cell with dataset w, arm method"


def test_a_control_stands_in_the_methods_place(results):
    swapped = results.with_control("method", "noop")
    assert swapped.metric("loss", arm="method") == [9.0]
    assert swapped.where(arm="noop").rows == [] and swapped.metric("time", arm="rival") == [3.0]
    assert swapped.where(arm="method").rows[0].cell == Cell("x", "method", 0, {"bits": 4})
    assert results.metric("loss", arm="noop") == [9.0], "the results themselves are left alone"


@pytest.mark.parametrize(
    ("side", "low", "high", "outcome"),
    [
        ("below", -3, -1, "holds"), ("below", -3, 1, "unclear"), ("below", 1, 3, "fails"),
        ("below", -3, 0, "unclear"), ("below", 0, 3, "unclear"),
        ("above", 1, 3, "holds"), ("above", -1, 3, "unclear"), ("above", -3, -1, "fails"),
        ("above", 0, 3, "unclear"), ("above", -3, 0, "unclear"),
    ],
)
def test_the_whole_interval_must_clear_the_threshold(side, low, high, outcome):
    shifted = Interval(5.0, 5.0 + low, 5.0 + high, 12)
    verdict = claim(side=side, threshold=5.0).judge(shifted, "why")
    assert (verdict.outcome, verdict.reason, verdict.n) == (outcome, "why", 12)
    assert (verdict.effect, verdict.low, verdict.high, verdict.threshold) == (5.0, 5.0 + low, 5.0 + high, 5.0)
    assert claim(side=side).judge(shifted, threshold=5.0).outcome == outcome


@given(st.floats(), st.floats(), st.floats(-10, 10), st.sampled_from(["below", "above"]), st.integers(0, 5))
def test_no_verdict_holds_and_fails_on_mirrored_sides(low, high, threshold, side, n):
    one = claim(side=side, threshold=threshold).judge(Interval(0.0, low, high, n)).outcome
    mirror = {"below": "above", "above": "below"}[side]
    other = claim(side=mirror, threshold=-threshold).judge(Interval(0.0, -high, -low, n)).outcome
    assert one == other
    if n < 3 or not low <= high or (math.isinf(low) and math.isinf(high)):
        assert one is Outcome.unclear
    opposite = claim(side=mirror, threshold=threshold).judge(Interval(0.0, low, high, n)).outcome
    assert {one, opposite} in ({Outcome.holds, Outcome.fails}, {Outcome.unclear})


def test_too_few_units_and_no_interval_say_why():
    assert "2 independent units" in claim().judge(Interval(-5.0, -6.0, -4.0, 2)).reason
    assert "no finite interval" in claim().judge(Interval(-5.0, -math.inf, math.inf, 9), "all alike").reason
    assert claim().judge(Interval(math.nan, math.nan, -4.0, 9)).outcome is Outcome.unclear
    assert claim().judge(Interval(-5.0, -math.inf, -4.0, 9)).outcome is Outcome.holds


@pytest.mark.parametrize(
    ("against", "cases", "outcome"),
    [(0, 20, "holds"), (0, 200, "holds"), (0, 19, "unclear"), (0, 0, "untested"), (1, 20, "fails"), (1, 3, "fails")],
)
def test_an_exact_claim_counts_its_cases(against, cases, outcome):
    verdict = claim(exact=True, min_cases=20).count(against, cases)
    assert verdict.outcome == outcome and verdict.n == cases
    assert ("20 are needed" in verdict.reason) == (outcome in ("unclear", "untested"))


def test_an_exact_claim_without_a_minimum_still_needs_a_case():
    assert claim(exact=True).count(0, 0).outcome is Outcome.untested
    assert claim(exact=True).count(0, 1).outcome is Outcome.holds


PARTS = ["holds", "fails", "unclear", "untested"]


@pytest.mark.parametrize("parts", list(itertools.product(PARTS, repeat=2)), ids="-".join)
def test_all_of(parts):
    outcome = all_of(claim(), [verdict(p) for p in parts]).outcome
    for first in ("fails", "untested", "unclear"):
        if first in parts:
            assert outcome == first
            return
    assert outcome == "holds"


@pytest.mark.parametrize("parts", list(itertools.product(PARTS, repeat=3)), ids="-".join)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_at_least_says_only_what_no_open_part_could_change(parts, k):
    """Holds or fails exactly if it does so however the unclear and untested parts would turn out."""
    open_parts = [p for p in parts if p in ("unclear", "untested")]
    held = parts.count("holds")
    could = {held + more >= k for more in range(len(open_parts) + 1)}
    outcome = at_least(claim(), [verdict(p) for p in parts], k).outcome
    if could == {True}:
        assert outcome == "holds"
    elif could == {False}:
        assert outcome == "fails"
    else:
        # Untested where the unclear parts alone could no longer reach k: what decides was not measured.
        assert outcome == ("untested" if held + parts.count("unclear") < k else "unclear")


def test_parts_that_are_not_there_neither_hold_nor_fail():
    assert all_of(claim(), []).outcome is Outcome.untested
    assert at_least(claim(), [verdict("holds")], 2).outcome is Outcome.untested
    assert at_least(claim(), [verdict("fails")], 2).outcome is Outcome.untested
    assert at_least(claim(), [verdict("holds"), verdict("holds")], 2).outcome is Outcome.holds
    with pytest.raises(ValueError, match="at least one part"):
        at_least(claim(), [verdict("fails")], 0)


def test_a_combined_verdict_keeps_its_parts_and_their_reasons():
    combined = all_of(claim(threshold=0.5), [verdict("holds"), verdict("fails")])
    assert combined.reason == "it holds; it fails" and combined.n == 2 and combined.threshold == 0.5
    assert all_of(claim(), [verdict("holds")], "in short").reason == "in short"
    assert Verdict.from_dict(json.loads(json.dumps(combined.to_dict()))) == combined


def test_untested_says_why():
    assert claim(threshold=2.0).untested("no data") == Verdict("C1", Outcome.untested, "no data", threshold=2.0)


class OneCell(Study):
    def cells(self, tier):
        return [Cell("d", "method", data=())]

    def measure(self, cell, have):
        return Measurement({"loss": 1.0})

    def verdicts(self, results):
        return [c.untested("never") for c in self.claims.values()]


def test_a_study_needs_only_cells_measure_and_verdicts(tmp_path):
    study = OneCell({"C1": claim()})
    assert study.needs(Cell("d", "method")) == () and study.charts(Results([])) == []
    assert study.verdicts(Results([]))[0].claim == "C1" and not study.accepts_file
    with pytest.raises(LookupError, match="OneCell has no step fit"):
        study.prepare(Step("fit"), {}, tmp_path)
    with pytest.raises(TypeError):
        Study({})


def test_the_contract_imports_nothing_of_assay_and_nothing_heavy():
    code = (
        "import sys; before = set(sys.modules); import assay.study; new = set(sys.modules) - before;"
        "assert not {m for m in new if m.startswith('assay.')} - {'assay.study'}, new;"
        "assert not new & {'numpy', 'pandas', 'scipy'}, new"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
