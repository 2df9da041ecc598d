"""The evidence for split training: held-out errors, extrapolation, chosen splits, specialists against one model.

All is measured on `tiny-lm-split`, runs that were made once; the full tier trains a part of them again. Public tables,
which have no second phase, stand beside as a check of the forms' limit Dp = 0.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from assay.datasets import load_dataset
from assay.scaling.split_training.arms import (
    LAW,
    OBJECTIVES,
    ONE_FORM,
    OTHERS,
    SHUFFLED,
    WITH_SCRATCH,
    WITHOUT_SCRATCH,
)
from assay.scaling.split_training.charts import study_charts
from assay.scaling.split_training.judging import judged
from assay.scaling.split_training.tables import GADRE, GEMSTONES, HOME, SLICE, own_runs
from assay.scaling.split_training.tasks import TOKENS, WIDTH, measure
from assay.study import Cell, Measurement, Results, Step, Study, Tier, Verdict

ONE = "multiplicative"  # for shuffled losses, of which no form is the right one, and for the smoke tier


class Effort(NamedTuple):
    """How much a tier spends."""

    starts: int
    shuffled_starts: int
    shuffles: int
    refits: int


EFFORT = {Tier.smoke: Effort(3, 2, 1, 2), Tier.quick: Effort(64, 16, 5, 40), Tier.full: Effort(200, 16, 10, 400)}


class SplitStudy(Study):
    """Cells are (table, arm, task); the options name the task, the hold-out and the tier's effort."""

    def cells(self, tier: Tier) -> Iterable[Cell]:
        effort = EFFORT[tier]
        if tier is Tier.smoke:
            yield from _smoke_cells(effort)
            return
        yield from _law_cells(HOME, effort)
        for arm in ("specialists", "misrouted"):
            yield _cell(HOME, arm, "served")
        yield _cell(HOME, LAW, "plan", starts=effort.starts, refits=effort.refits)
        yield _cell(HOME, LAW, "seconds", timing=True)
        for dataset in (GADRE, GEMSTONES):
            for arm in ("split-law-transfer", "split-law-multiplicative", "pooled"):
                yield _cell(dataset, arm, "slice", starts=effort.starts)
        if tier is Tier.full:
            yield _cell(HOME, LAW, "reproduce", limit_s=1200.0)

    def measure(self, cell: Cell, have: Mapping[Step, Path]) -> Measurement:
        table = load_dataset(cell.dataset)
        with warnings.catch_warnings():
            # Tables without a second phase, or with one size left by a hold-out: warnings for users' own fits.
            warnings.simplefilter("ignore", UserWarning)
            return measure(cell, own_runs(table) if cell.dataset in (HOME, SLICE) else table)

    def verdicts(self, results: Results) -> list[Verdict]:
        dataset = SLICE if any(row.cell.dataset == SLICE for row in results) else HOME
        return [judged(claim, results, dataset) for claim in self.claims.values()]

    def charts(self, results: Results) -> list[dict[str, Any]]:
        return study_charts(results)


Options = dict[str, Any]
TASKS: tuple[tuple[str, Options], ...] = (
    ("held-out", {}), ("extrapolate", {"hold_out": WIDTH}), ("extrapolate", {"hold_out": TOKENS}),
)


def _law_cells(dataset: str, effort: Effort) -> Iterable[Cell]:
    """What fits laws: the method, its forms, the laws of others by either objective, and the control."""
    control = _control(effort)
    for task, which in TASKS:
        for arm in (LAW, *ONE_FORM, WITH_SCRATCH):
            yield _cell(dataset, arm, task, **which, starts=effort.starts)
        for arm in OTHERS:
            for objective in OBJECTIVES:
                yield _cell(dataset, arm, task, **which, objective=objective, starts=effort.starts)
        yield _cell(dataset, SHUFFLED, task, **which, **control)
    for arm in (LAW, WITHOUT_SCRATCH, "share"):
        yield _cell(dataset, arm, "choose", starts=effort.starts)
    yield _cell(dataset, SHUFFLED, "choose", **control)


def _smoke_cells(effort: Effort) -> Iterable[Cell]:
    """Everything that a claim reads but the largest width; one form, so that no cross-validation is paid for."""
    own: Options = {"starts": effort.starts, "form": ONE}
    control = _control(effort)
    smoke: tuple[tuple[str, Options], ...] = (("held-out", {}), ("extrapolate", {"hold_out": TOKENS}), ("choose", {}))
    for task, which in smoke:
        yield _cell(SLICE, LAW, task, **which, **own)
        yield _cell(SLICE, SHUFFLED, task, **which, **control)
    for objective in OBJECTIVES:
        yield _cell(SLICE, "pooled", "extrapolate", hold_out=TOKENS, objective=objective, starts=effort.starts)
    for arm in ("specialists", "misrouted"):
        yield _cell(SLICE, arm, "served")


def _control(effort: Effort) -> Options:
    return {"shuffled_starts": effort.shuffled_starts, "shuffles": effort.shuffles, "form": ONE}


def _cell(
    dataset: str, arm: str, task: str, *, timing: bool = False, limit_s: float = 300.0, **options: Any
) -> Cell:
    return Cell(
        dataset, arm, options={"task": task, **options}, data=(dataset,), timing=timing, limit_s=limit_s, memory=2048
    )


STUDY = SplitStudy
