"""The evidence for item response scaling laws: scores from 50 questions, decisions, transfer, and the line in compute.

Models calibrate or are held out, never single checkpoints. A step calibrates the items of one split; the cells are
(table of responses, arm, split). Verdicts are decided on `tiny-lm-items`; the Gemstone models and CHAMP stand beside.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from assay.scaling.irsl.ability import Items
from assay.scaling.irsl.charts import study_charts
from assay.scaling.irsl.estimators import PLAIN, Calibration
from assay.scaling.irsl.judging import verdict
from assay.scaling.irsl.tables import CHAMP, GEMSTONES, HOME, READ, SLICE, ResponseTable, load_table
from assay.scaling.irsl.tasks import TASKS, calibrate, variant_of
from assay.study import Cell, Measurement, Results, Step, Study, Tier, Verdict

__all__ = ["STUDY", "IRSLStudy"]

BUDGET = 50
BUDGETS = (10, 20, 100, 200)
SMOKE_BUDGET = 12
SPLITS = {
    HOME: {Tier.quick: 3, Tier.full: 6}, GEMSTONES: {Tier.quick: 3, Tier.full: 6},
    CHAMP: {Tier.quick: 4, Tier.full: 4},
}
BY_ABILITY = (
    "cat", "cat-authors", "cat-phi10", "cat-filled", "cat-corrected", "random-irt", "cat-binary", "cat-choice",
    "shuffled",
)
DECIDE = ("irsl-50", "irsl-all", "irsl-shuffled")
LADDERS = ("ladder-all", "ladder-50")
LADDER_STARTS, SMOKE_STARTS = 4, 2
TRANSFER = ("within", "between", "within-shuffled")
LINE = ("line", "line-shuffled")
BESIDE_HOME = ("cat", "cat-binary", "random-irt", "random-mean", "difference", "anchor-regression")
CHAMP_ARMS = ("cat", "random-mean", "difference")
"""What the quick tier asks of the tables that stand beside; the full tier asks them everything."""
ALL_ROWS = -1  # a calibration on all rows, for what predicts nothing


class IRSLStudy(Study):
    """Cells are (table, arm, split); the options name the task and the budget of questions."""

    def cells(self, tier: Tier) -> Iterable[Cell]:
        if tier is Tier.smoke:
            return _smoke_cells()
        cells = [
            *_cells(HOME, "score", (*BY_ABILITY, *PLAIN), tier), *_decide_cells(HOME, tier, LADDERS),
            *_cells(HOME, "decide", ("irsl-last",), tier),
            *_cells(HOME, "transfer", TRANSFER, tier), *_line_cells(HOME),
            *_cells(GEMSTONES, "score", BESIDE_HOME, tier), *_decide_cells(GEMSTONES, tier, ("ladder-all",)),
            *_cells(GEMSTONES, "transfer", TRANSFER, tier), *_line_cells(GEMSTONES),
            *_cells(CHAMP, "score", CHAMP_ARMS, tier),
        ]
        return cells if tier is Tier.quick else [*cells, *_full_cells()]

    def needs(self, what: Cell | Step) -> tuple[Step, ...]:
        if isinstance(what, Step):
            return ()
        variant = variant_of(what)
        if not variant:
            return ()
        split = ALL_ROWS if what.options["task"] == "line" else what.seed
        options: dict[str, Any] = {"set": what.dataset, "split": split, "variant": variant}
        if "characters" in what.options:
            options["characters"] = what.options["characters"]
        return (Step("calibration", options, what.data or (), memory=2048),)

    def prepare(self, step: Step, have: Mapping[Step, Path], out: Path) -> None:
        with warnings.catch_warnings():
            # That 41 nodes are few for long tests is a finding of the marginal arm, not news in each cell.
            warnings.simplefilter("ignore", UserWarning)
            made = calibrate(_table(step.options["set"], step.options), step.options["split"], step.options["variant"])
        arrays: dict[str, Any] = {}
        for source, one in made.items():
            arrays |= {
                f"{source}|ease": one.items.ease, f"{source}|slope": one.items.slope, f"{source}|theta": one.theta,
                f"{source}|phi": np.array(one.items.phi),
            }
        np.savez(out / "items.npz", **arrays)

    def measure(self, cell: Cell, have: Mapping[Step, Path]) -> Measurement:
        made = {}
        for folder in have.values():
            with np.load(folder / "items.npz", allow_pickle=False) as arrays:
                for source in dict.fromkeys(key.partition("|")[0] for key in arrays.files):
                    ease, slope, theta, phi = (arrays[f"{source}|{part}"] for part in ("ease", "slope", "theta", "phi"))
                    made[source] = Calibration(Items(ease, slope, float(phi)), theta)
        return TASKS[cell.options["task"]](cell, _table(cell.dataset, cell.options), made)

    def verdicts(self, results: Results) -> list[Verdict]:
        return [verdict(claim, results) for claim in self.claims.values()]

    def charts(self, results: Results) -> list[dict[str, Any]]:
        return study_charts(results)


def _table(name: str, options: Mapping[str, Any]) -> ResponseTable:
    table = load_table(name)
    return table.rescaled(options["characters"]) if "characters" in options else table


def _cells(
    dataset: str, task: str, arms: Iterable[str], tier: Tier, budget: int = BUDGET, splits: int | None = None,
    **options: Any,
) -> list[Cell]:
    splits = splits or SPLITS[dataset][tier]
    named = {"task": task, "budget": budget, **options}
    data = READ.get(dataset, (dataset,))
    return [Cell(dataset, arm, split, named, data, 120.0, 2048) for arm in arms for split in range(splits)]


def _decide_cells(dataset: str, tier: Tier, ladders: Iterable[str]) -> list[Cell]:
    """The laws of ability for each split, the ladders once."""
    once = _cells(dataset, "decide", ladders, tier, splits=1, starts=LADDER_STARTS)
    return [*_cells(dataset, "decide", DECIDE, tier), *once]


def _line_cells(dataset: str) -> list[Cell]:
    data = READ.get(dataset, (dataset,))
    return [Cell(dataset, arm, 0, {"task": "line"}, data, 120.0, 2048) for arm in LINE]


def _smoke_cells() -> list[Cell]:
    """One split of the slice, a dozen questions."""
    options: dict[str, Any] = {"tier": Tier.quick, "budget": SMOKE_BUDGET, "splits": 1}
    return [
        *_cells(SLICE, "score", ("cat", "random-mean", "difference", "cat-binary", "shuffled"), **options),
        *_cells(SLICE, "decide", ("irsl-50", "irsl-shuffled"), **options),
        *_cells(SLICE, "decide", ("ladder-all",), starts=SMOKE_STARTS, **options),
        *_cells(SLICE, "transfer", TRANSFER, **options), *_line_cells(SLICE),
    ]


def _full_cells() -> list[Cell]:
    """All arms on the tables beside, other budgets and models of the responses, accuracy, other scales, pass@k."""
    everything = (*(arm for arm in BY_ABILITY if arm != "cat-choice"), *PLAIN)
    cells = _cells(GEMSTONES, "score", (arm for arm in everything if arm not in BESIDE_HOME), Tier.full)
    cells += _cells(GEMSTONES, "decide", ("ladder-50",), Tier.full, splits=1, starts=LADDER_STARTS)
    arms: Iterable[str] = ("random-irt", "shuffled", *PLAIN)
    cells += _cells(CHAMP, "score", (arm for arm in arms if arm not in CHAMP_ARMS), Tier.full)
    for dataset in (HOME, GEMSTONES):
        for budget in BUDGETS:
            arms = ("cat", "cat-filled", "random-irt", "random-mean", "difference", "anchor-points")
            cells += _cells(dataset, "score", arms, Tier.full, budget, splits=2)
        cells += _cells(dataset, "score", ("cat-2pl", "random-2pl"), Tier.full, splits=3)
        cells += _cells(dataset, "score", ("cat-marginal",), Tier.full, splits=2)
        cells += _cells(dataset, "decide", ("irsl-binary-50",), Tier.full, splits=2)
        of_accuracy: dict[str, Any] = {"of": "accuracy", "starts": LADDER_STARTS}
        laws = ("irsl-50", "irsl-all", "irsl-last") if dataset == HOME else ("irsl-50", "irsl-all")
        cells += _cells(dataset, "decide", laws, Tier.full, **of_accuracy)
        cells += _cells(dataset, "decide", ("ladder-all",), Tier.full, splits=1, **of_accuracy)
    arms = ("cat", "cat-authors", "cat-phi10", "random-irt", "random-mean", "difference")
    cells += _cells(GEMSTONES, "score", arms, Tier.full, splits=2, characters=1.0)
    return cells + _cells(CHAMP, "pass", ("irt", "plug-in"), Tier.full)


STUDY = IRSLStudy
