"""The evidence for the noisy quadratic system: extrapolation, batch size, choices, cost of a fit, identification.

Every arm is fitted to the smaller budgets of a table of finished runs and judged on the larger ones. The claims are
decided on `tiny-lm-runs`; the same figures on the authors' own runs stand beside them as a part of each verdict.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from assay.datasets import load_dataset
from assay.errors import InputError
from assay.scaling.nqs.arms import BASELINES, BATCH_AWARE, BLACK_BOXES, CHINCHILLAS
from assay.scaling.nqs.charts import study_charts
from assay.scaling.nqs.judging import judged
from assay.scaling.nqs.runs import FILE, HOME, PUBLIC, SLICE, TITLES, read_runs, user_runs
from assay.scaling.nqs.tasks import TASKS
from assay.scaling.tables import read_table
from assay.study import Cell, Claim, Measurement, Outcome, Results, Step, Study, Tier, Verdict

GADRE_SETS = ("c4_original", "rpj", "rw_original")


class Effort(NamedTuple):
    """How much a tier spends."""

    starts: int
    refits: int
    cost_seeds: int
    shuffles: int


EFFORT = {Tier.smoke: Effort(1, 2, 1, 1), Tier.quick: Effort(64, 30, 10, 5), Tier.full: Effort(64, 200, 10, 5)}


class NQSStudy(Study):
    """Cells are (table of runs, arm, task); the options name the task, the objective and the tier's effort."""

    accepts_file = True

    def cells(self, tier: Tier) -> Iterable[Cell]:
        effort = EFFORT[tier]._asdict()
        if self.data_file is not None:
            _user_runs(self.data_file)  # a file that can't be measured is refused before any cell
            yield from _main_cells(FILE, effort, ())
            return
        if tier is Tier.smoke:
            yield from _main_cells(SLICE, effort, (SLICE,), (*CHINCHILLAS, BATCH_AWARE), ("mse",))
            return
        for dataset in (HOME, PUBLIC):
            yield from _main_cells(dataset, effort, (dataset,))
            yield _cell(dataset, "nqs", "seconds", effort, (dataset,), timing=True)
        if tier is Tier.full:
            yield from _full_cells(effort)

    def measure(self, cell: Cell, have: Mapping[Step, Path]) -> Measurement:
        runs = self._runs(cell)
        with warnings.catch_warnings():
            # A constant batch size is a fact of some tables; its warning is for users' own fits.
            warnings.simplefilter("ignore", UserWarning)
            return TASKS[cell.options["task"]](cell, runs)

    def verdicts(self, results: Results) -> list[Verdict]:
        return [_verdict(claim, results) for claim in self.claims.values()]

    def charts(self, results: Results) -> list[dict[str, Any]]:
        return study_charts(results, TITLES)

    def _runs(self, cell: Cell) -> pd.DataFrame:
        if cell.dataset == FILE:
            if self.data_file is None:
                raise InputError("this cell needs a user's file")
            return _user_runs(self.data_file)
        return read_runs(load_dataset(cell.dataset), cell.dataset, cell.options.get("subset", ""))


def _user_runs(path: Path) -> pd.DataFrame:
    return user_runs(read_table(path), path.name)


def _main_cells(
    dataset: str, effort: dict[str, int], data: tuple[str, ...], baselines: tuple[str, ...] = BASELINES,
    objectives: tuple[str, ...] = ("huber", "mse"),
) -> Iterable[Cell]:
    """What decides the claims, with their controls."""
    for arm in ("nqs", "nqs-standard", "shuffled"):
        yield _cell(dataset, arm, "predict", effort, data, objective="mse")
    for arm in baselines:
        for objective in objectives:
            yield _cell(dataset, arm, "predict", effort, data, objective=objective)
    for arm in ("nqs", "starts-only"):
        yield _cell(dataset, arm, "cost", effort, data)
    for arm in ("nqs", "shuffled"):
        yield _cell(dataset, arm, "identify", effort, data)


def _full_cells(effort: dict[str, int]) -> Iterable[Cell]:
    for dataset in (HOME, PUBLIC):
        for arm in BLACK_BOXES:
            yield _cell(dataset, arm, "predict", effort, (dataset,), objective="mse")
        for arm in ("nqs", "chinchilla-isoflop", BATCH_AWARE):
            yield _cell(dataset, arm, "ladder", effort, (dataset,), objective="mse")
        yield _cell(dataset, "nqs", "band", effort, (dataset,), limit_s=300.0)
    others = [("gadre-overtraining", subset) for subset in GADRE_SETS] + [("gemstones", ""), ("scan-bench-llm", "")]
    for dataset, subset in others:
        for arm in ("nqs", "nqs-standard", "chinchilla", BATCH_AWARE, "kaplan", "power", *BLACK_BOXES):
            objective = "huber" if arm in BASELINES else "mse"
            yield _cell(
                dataset, arm, "predict", effort, (dataset,), objective=objective, subset=subset, limit_s=600.0
            )


def _cell(
    dataset: str, arm: str, task: str, effort: dict[str, int], data: tuple[str, ...], *, timing: bool = False,
    limit_s: float = 120.0, **options: str,
) -> Cell:
    wanted = {"predict": ("starts", "shuffles"), "identify": ("starts", "refits"), "band": ("starts", "refits")}
    kept = wanted.get(task, ("starts", "cost_seeds") if task in ("cost", "seconds") else ("starts",))
    spent = {name: effort[name] for name in kept}
    named = {name: value for name, value in options.items() if value}
    return Cell(
        dataset, arm, options={"task": task, **named, **spent}, data=data, timing=timing, limit_s=limit_s, memory=2048
    )


def _verdict(claim: Claim, results: Results) -> Verdict:
    """The home set's verdict; the authors' runs are a part shown beside it."""
    cells = {row.cell.dataset for row in results}
    decisive = next((d for d in (FILE, HOME, SLICE) if d in cells), HOME)
    verdict = judged(claim, results, decisive)
    if PUBLIC not in cells or decisive != HOME:
        return verdict
    beside = judged(claim, results, PUBLIC)
    if beside.outcome is Outcome.untested:
        return verdict
    text = f"{verdict.reason} (beside it, on {TITLES[PUBLIC]}: {beside.outcome}, {beside.reason})"
    return replace(verdict, reason=text, parts=(verdict, beside))


STUDY = NQSStudy
