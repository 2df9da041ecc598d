"""The evidence for capability boundaries: fits out of sample, the smoothing, and what part of the evaluations suffices.

Every arm is fitted to a part of a table of models and tested on the rest. Two tables are at hand on any machine: the
final checkpoints of 1,366 CLIP trainings (halves of the runs, in turn) and our 2,000 digit networks (the first two
recipes fitted, the last two tested). What the paper says of language models over time takes the authors' leaderboard,
which stands beside where it can be reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from assay.datasets import load_dataset
from assay.scaling.prescriptive.arms import DESIGNS, RIVALS
from assay.scaling.prescriptive.charts import study_charts
from assay.scaling.prescriptive.judging import judged
from assay.scaling.prescriptive.tables import (
    BASES,
    CLIP,
    DIGITS,
    LANGUAGE,
    LARGE,
    LEADERBOARD,
    PERIODS,
    SLICE,
    read_table,
    with_larger,
)
from assay.scaling.prescriptive.tasks import TASKS, periods
from assay.scaling.prescriptive.validation import MODES
from assay.study import Cell, Measurement, Results, Step, Study, Tier, Verdict

SHARE = 0.2  # of the cost of all evaluations, as the claim says
SHARES = (0.05, 0.1, 0.5, 1.0)
# "unpenalised-exact" is what the page advises; "tuned" chooses its penalty on the fitted rows alone.
MAIN_ARMS = ("boundary", "exact", "unpenalised-exact", "tuned", "shuffled", "oversmoothed", *RIVALS, "line")
PEERS = ("unpenalised", "kappa-20", "kappa-200", "lightgbm", "boosting-monotone", "boosting", "forest")
SIDE_ARMS = ("boundary", "exact", "unpenalised-exact", "tuned", *RIVALS, "line")


class Effort(NamedTuple):
    """How much a tier spends: draws of pilot (and, on CLIP, halves) by table, and refits of a band."""

    seeds: dict[str, int]
    refits: int


EFFORT = {
    Tier.smoke: Effort({SLICE: 3}, 0),
    Tier.quick: Effort({CLIP: 5, DIGITS: 6, LEADERBOARD: 3}, 25),
    Tier.full: Effort({CLIP: 10, DIGITS: 20, LEADERBOARD: 10}, 200),
}


class PrescriptiveStudy(Study):
    """Cells are (table of models, arm, task); the options name the task and the tier's effort."""

    def cells(self, tier: Tier) -> Iterable[Cell]:
        effort = EFFORT[tier]
        if tier is Tier.smoke:
            for arm in ("boundary", "exact", "shuffled", "oversmoothed", *RIVALS):
                yield _cell(SLICE, arm, "predict")
            for arm in ("i_balanced", "random", "random-again"):
                yield _design(SLICE, arm, SHARE, effort)
            return
        for dataset in (DIGITS, LEADERBOARD, CLIP):
            for arm in MAIN_ARMS:
                yield _cell(dataset, arm, "predict")
            for arm in ("i_balanced", "random", "random-again"):
                yield _design(dataset, arm, SHARE, effort)
        yield _cell(LEADERBOARD, "dates-shuffled", "predict")
        for arm in ("boundary", "dates-shuffled"):
            yield _cell(LEADERBOARD, arm, "bands", refits=effort.refits)
        if tier is Tier.full:
            yield from _further(effort)

    def measure(self, cell: Cell, have: Mapping[Step, Path]) -> Measurement:
        data, task = load_dataset(cell.dataset), cell.options["task"]
        if task == "periods":
            return periods(data, cell)
        larger = task == "extrapolate"
        table = (
            with_larger(data, load_dataset(LARGE[cell.dataset]), cell.dataset) if larger
            else read_table(data, cell.dataset)
        )
        return TASKS[task](table, cell)

    def verdicts(self, results: Results) -> list[Verdict]:
        return [judged(claim, results) for claim in self.claims.values()]

    def charts(self, results: Results) -> list[dict[str, Any]]:
        return study_charts(results)


def _further(effort: Effort) -> Iterable[Cell]:
    """The full tier's: larger runs, drift by period, bands, other shares and designs, other tables, more peers."""
    for dataset in LARGE:
        for arm in SIDE_ARMS:
            yield _cell(dataset, arm, "extrapolate", data=(dataset, LARGE[dataset]))
    for dataset in PERIODS:
        for arm in ("boundary", "exact"):
            for mode in MODES:
                yield _cell(dataset, arm, "periods", mode=mode)
    yield _cell(DIGITS, "boundary", "bands", refits=effort.refits)
    yield _cell(LEADERBOARD, "unpenalised-exact", "bands", refits=effort.refits // 4)
    for dataset in (DIGITS, LEADERBOARD, CLIP):
        for arm in DESIGNS[1:]:
            yield _design(dataset, arm, SHARE, effort)
        for share in SHARES:
            for arm in (*DESIGNS, "random"):
                yield _design(dataset, arm, share, effort)
    for dataset in (BASES, LANGUAGE):
        for arm in SIDE_ARMS:
            yield _cell(dataset, arm, "predict")
    for dataset in (DIGITS, LEADERBOARD, CLIP):
        for arm in PEERS:
            yield _cell(dataset, arm, "predict")


def _cell(dataset: str, arm: str, task: str, data: tuple[str, ...] | None = None, **options: Any) -> Cell:
    return Cell(dataset, arm, options={"task": task, **options}, data=data, limit_s=600.0, memory=2048)


def _design(dataset: str, arm: str, share: float, effort: Effort) -> Cell:
    return _cell(dataset, arm, "design", share=share, seeds=effort.seeds[dataset])


STUDY = PrescriptiveStudy
