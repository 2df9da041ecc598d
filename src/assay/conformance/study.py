"""The study runs, repeats itself to the last bit, and gives each claim a verdict that its control does not get.

The smoke tier is measured twice in this process, with the network refused; what a study says about it, about
failed cells and about none at all is checked here. Verdicts that matter are those of the record: its own checks
look at them.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from assay.conformance.alike import same
from assay.conformance.check import Check
from assay.conformance.offline import offline
from assay.conformance.subject import Subject
from assay.errors import DataUnavailable, MissingExtra
from assay.study import Cell, Outcome, Results, Row, Skip, Step, Study, Tier, Verdict, canonical

__all__ = ["SMOKE_SECONDS", "Measured", "checks", "measure_tier"]

SMOKE_SECONDS = 3.0
YARDSTICK_SECONDS = 0.1
CELLS_SECONDS = 2.0
CHART_BYTES = 60_000


class _Runs:
    """The smoke tier, measured when a check first asks for it."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    @cached_property
    def study(self) -> Study:
        return self.subject.method.study()

    @cached_property
    def first(self) -> Measured:
        return measure_tier(self.study, Tier.smoke)

    @cached_property
    def second(self) -> Measured:
        return measure_tier(self.subject.method.study(), Tier.smoke)


def checks(subject: Subject) -> Iterator[Check]:
    """The study's cells, its smoke tier and what it makes of the rows."""
    runs = _Runs(subject)
    for name, check in {
        "cells": _cells, "data sets": _data_sets, "arms": _arms, "smoke measures": _measures, "smoke time": _time,
        "smoke repeats": _repeats, "verdicts": _verdicts, "controls": _controls, "failed cells": _failed_cells,
        "no cells": _no_cells, "charts": _charts,
    }.items():
        yield Check(f"study: {name}", partial(check, runs))


class Measured:
    """Rows of a tier and the CPU seconds that they took."""

    def __init__(self, rows: list[Row], seconds: float) -> None:
        self.rows = rows
        self.seconds = seconds

    @property
    def results(self) -> Results:
        return Results(self.rows)


def measure_tier(study: Study, tier: Tier) -> Measured:
    """Measure a tier's cells in this process, without network, steps made once in a temporary folder."""
    with TemporaryDirectory() as folder, offline(), _one_thread():
        start = time.process_time()
        steps = _Steps(study, Path(folder))
        rows = [_measure(study, cell, steps) for cell in study.cells(tier)]
        return Measured(rows, time.process_time() - start)


class _Steps:
    """Steps by content, each made when it is first needed."""

    def __init__(self, study: Study, folder: Path) -> None:
        self.study = study
        self.folder = folder
        self.made: dict[Step, Path] = {}

    def of(self, what: Cell | Step) -> dict[Step, Path]:
        return {step: self.make(step) for step in self.study.needs(what)}

    def make(self, step: Step) -> Path:
        if step not in self.made:
            have = self.of(step)
            out = self.folder / f"step-{len(self.made)}"
            out.mkdir()
            self.study.prepare(step, have, out)
            self.made[step] = out
        return self.made[step]


def _measure(study: Study, cell: Cell, steps: _Steps) -> Row:
    try:
        measured = study.measure(cell, steps.of(cell))
    except (Skip, DataUnavailable, MissingExtra) as reason:
        return Row(cell, "skipped", reason=str(reason))
    except Exception as error:
        return Row(cell, "failed", reason=f"{type(error).__name__}: {error}")
    return Row(cell, "measured", measured.metrics, measured.units, measured.files)


@contextmanager
def _one_thread() -> Iterator[None]:
    # As in the runner: one thread a cell, or CPU time would count the waiting of the others.
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        yield


def _tiers(runs: _Runs) -> dict[Tier, list[Cell]]:
    return {tier: list(runs.study.cells(tier)) for tier in Tier}


def _cells(runs: _Runs) -> None:
    start = time.process_time()
    for tier, cells in _tiers(runs).items():
        assert cells, f"the {tier} tier has no cell"
        assert len(set(cells)) == len(cells), f"the {tier} tier lists a cell twice"
        for cell in cells:
            canonical(cell.to_dict())
            assert Cell.from_dict(json.loads(canonical(cell.to_dict()))) == cell, f"{cell.label()}: not kept by JSON"
    seconds = time.process_time() - start
    assert seconds < CELLS_SECONDS, f"`cells` must be cheap, listing all tiers took {seconds:.1f} s"


def _data_sets(runs: _Runs) -> None:
    """Every set that a cell reads is registered; the smoke tier reads what is on every machine."""
    from assay.datasets import entry

    for tier, cells in _tiers(runs).items():
        for name in {name for cell in cells for name in cell.data or ()}:
            kind = entry(name).kind
            here = ("slice", "dependency", "ours")
            assert tier is not Tier.smoke or kind in here, f"the smoke tier reads {name}, of kind {kind}"


def _arms(runs: _Runs) -> None:
    """A claim's arm and control are measured on the same data sets, seeds and options where verdicts count."""
    for tier in (Tier.quick, Tier.full):
        cells = list(runs.study.cells(tier))
        for claim in runs.subject.method.claims.values():
            if claim.home.startswith("untested at home") and not any(cell.arm == claim.arm for cell in cells):
                continue
            wanted = [claim.arm] if claim.control.startswith("none:") else [claim.arm, claim.control]
            missing = [arm for arm in wanted if not any(cell.arm == arm for cell in cells)]
            assert not missing, f"{claim.id}: no cell of the {tier} tier has the arm {', '.join(missing)}"


def _measures(runs: _Runs) -> None:
    failed = [f"{row.cell.label()}: {row.reason}" for row in runs.first.rows if row.status == "failed"]
    assert not failed, "; ".join(failed)
    unexplained = [row.cell.label() for row in runs.first.rows if row.status == "skipped" and not row.reason]
    assert not unexplained, f"skipped without a reason: {', '.join(unexplained)}"
    arm = runs.subject.method.arm
    assert runs.first.results.where(arm=arm).measured, f"no smoke cell of the arm {arm} was measured"


def _time(runs: _Runs) -> None:
    seconds, limit = min(runs.first.seconds, runs.second.seconds), SMOKE_SECONDS * slowness()
    assert seconds <= limit, f"the smoke tier took {seconds:.1f} s of CPU, {limit:.2g} s are allowed"


def slowness() -> float:
    """How much longer a core needs now than the one on which the limit was set, by a fixed piece of work; 1 or more.

    Other work beside it counts too: shared caches and hardware threads make CPU seconds longer.
    """
    with _one_thread():
        return max(1.0, statistics.median(_yardstick() for _ in range(5)) / YARDSTICK_SECONDS)


def _yardstick() -> float:
    """CPU seconds of interpreter loops, linear algebra and vector arithmetic in about equal parts."""
    start = time.process_time()
    total = 0
    for number in range(200_000):
        total += number * number % 7
    matrix: np.ndarray = np.random.default_rng(0).normal(size=(120, 120))
    for _ in range(40):
        matrix = np.linalg.solve(matrix @ matrix.T + 1e3 * np.eye(120), matrix)
    vector = np.arange(50_000.0)
    for _ in range(40):
        np.sort(np.sin(vector) * vector)
    return time.process_time() - start


def _repeats(runs: _Runs) -> None:
    assert len(runs.first.rows) == len(runs.second.rows), "the second run has other cells"
    for first, second in zip(runs.first.rows, runs.second.rows, strict=True):
        label = first.cell.label()
        assert (first.cell, first.status) == (second.cell, second.status), f"{label}: another cell or status"
        if not first.cell.timing:
            assert same(first.metrics, second.metrics), f"{label}: metrics differ between two runs"
            assert same(first.units, second.units), f"{label}: units differ between two runs"
            assert same(first.files, second.files), f"{label}: files differ between two runs"


def _judge(runs: _Runs, results: Results) -> list[Verdict]:
    verdicts = runs.study.verdicts(results)
    claims, judged = list(runs.subject.method.claims), [verdict.claim for verdict in verdicts]
    assert judged == claims, f"verdicts on {judged}, the card claims {claims}"
    for verdict in verdicts:
        assert isinstance(verdict.outcome, Outcome), f"{verdict.claim}: the outcome {verdict.outcome!r} is no Outcome"
        text = json.dumps(verdict.to_dict())
        assert json.dumps(Verdict.from_dict(json.loads(text)).to_dict()) == text, f"{verdict.claim}: not kept by JSON"
    return verdicts


def _verdicts(runs: _Runs) -> None:
    for verdict in _judge(runs, runs.first.results):
        decided = verdict.outcome in (Outcome.holds, Outcome.fails)
        assert decided or verdict.reason, f"{verdict.claim}: {verdict.outcome} without a reason"


def _controls(runs: _Runs) -> None:
    for claim in runs.subject.method.claims.values():
        if claim.control.startswith("none:"):
            continue
        swapped = runs.first.results.with_control(claim.arm, claim.control)
        verdict = next(v for v in _judge(runs, swapped) if v.claim == claim.id)
        assert verdict.outcome is not Outcome.holds, f"{claim.id}: its control {claim.control} holds"


def _failed_cells(runs: _Runs) -> None:
    """Where every cell failed nothing is decided, and a claim says which cells are missing."""
    reason = "out of memory"
    rows = [
        replace(row, status="failed", metrics={}, units=None, files={}, reason=reason) for row in runs.first.rows
    ]
    _undecided(runs, Results(rows))


def _no_cells(runs: _Runs) -> None:
    _undecided(runs, Results([]))


def _undecided(runs: _Runs, results: Results) -> None:
    for verdict in _judge(runs, results):
        assert verdict.outcome is Outcome.untested, f"{verdict.claim}: {verdict.outcome} with nothing measured"
        assert verdict.reason, f"{verdict.claim}: untested without a reason"


def _charts(runs: _Runs) -> None:
    import vl_convert

    for results in (runs.first.results, Results([])):
        for chart in runs.study.charts(results):
            title = chart.get("title")
            assert title and chart.get("description"), f"a chart lacks its title or description: {str(chart)[:80]}"
            text = json.dumps(chart, allow_nan=False)
            assert len(text) <= CHART_BYTES, f"{title}: {len(text)} bytes, at most {CHART_BYTES} are allowed"
            assert '"url"' not in text, f"{title}: the data must be inline"
            vl_convert.vegalite_to_vega(chart)
    assert runs.study.charts(runs.first.results), "the study gives no chart"


