"""The evidence on seeds: populations of small networks, trained on the spot and read from a committed table.

Sparse parity is trained here, 128 seeds at eight widths, and lies in the table with 256 other seeds; counting, with
128 seeds, and digits with few labels lie in the table alone. The claims are about parity and counting, each on its own.
The full tier trains parity once more at a third of the best rate, to see what of it depends on that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from assay.datasets import load_dataset
from assay.scaling.seed_bimodality.charts import study_charts
from assay.scaling.seed_bimodality.judging import COUNT, DIGITS, PARITY, SLICE, SLOWER, TABLE, TRAINED, judged
from assay.scaling.seed_bimodality.measuring import TASKS, groups_of
from assay.scaling.seed_bimodality.populations import train_population
from assay.scaling.seed_bimodality.tasks import SubsetParity
from assay.study import Cell, Measurement, Results, Step, Study, Tier, Verdict

WIDTHS = (2, 3, 4, 5, 6, 8, 12, 16)
TRAINING = {"first_seed": 1000, "seeds": 128, "steps": 4800, "checkpoints": [600, 1200, 2400], "widths": list(WIDTHS)}
STEPS = {
    TRAINED: Step("parity", TRAINING, limit_s=600.0),
    SLOWER: Step("parity", {**TRAINING, "rate": 0.1}, limit_s=600.0),
}
EFFORT = {Tier.smoke: (20, 200), Tier.quick: (400, 2000), Tier.full: (2000, 2000)}  # resamples, paths
SIZES = (8, 16, 32, 64, 128)
END, EARLY = 4800, 600


class SeedBimodalityStudy(Study):
    """Cells are (population, arm); the population that is trained here is a step which its arms share."""

    def cells(self, tier: Tier) -> Iterable[Cell]:
        if tier is Tier.smoke:
            yield from _parity_cells(SLICE, tier, (END, EARLY))
            return
        steps = (END, 2400, 1200, EARLY) if tier is Tier.full else (END, EARLY)
        for source in (TRAINED, TABLE):
            yield from _parity_cells(source, tier, steps)
        for tasks in (COUNT, DIGITS):
            for arm in ("seeds", "unimodal"):
                yield _cell(TABLE, arm, tier, tasks, measure=[])
        parity = {"tasks": list(PARITY), "steps": END}
        populations, draws = (1000, 1000) if tier is Tier.full else (200, 300)
        yield Cell(TABLE, "false alarms", options={**parity, "task": "false-alarms", "populations": populations})
        yield Cell(
            TABLE, "power", options={**parity, "task": "power", "sizes": list(SIZES), "draws": draws}, limit_s=300.0
        )
        if tier is Tier.full:
            yield _cell(SLOWER, "seeds", tier, PARITY, measure=["curve", "paths"], steps=END)
            for step in steps:
                yield Cell(TABLE, "left out", options={**parity, "steps": step, "task": "left-out"})

    def needs(self, what: Cell | Step) -> tuple[Step, ...]:
        return () if isinstance(what, Step) or what.dataset not in STEPS else (STEPS[what.dataset],)

    def prepare(self, step: Step, have: Mapping[Step, Path], out: Path) -> None:
        how = step.options
        seeds = range(how["first_seed"], how["first_seed"] + how["seeds"])
        rate = {"rate": how["rate"]} if "rate" in how else {}
        table = train_population(
            SubsetParity(**rate), how["widths"], seeds=seeds, steps=how["steps"], checkpoints=how["checkpoints"]
        )
        table.to_csv(out / "parity.csv", index=False)

    def measure(self, cell: Cell, have: Mapping[Step, Path]) -> Measurement:
        table = _read(have) if cell.dataset in STEPS else load_dataset(cell.dataset)
        return TASKS[cell.options["task"]](cell, groups_of(table[table["scale"] <= max(WIDTHS)], dict(cell.options)))

    def verdicts(self, results: Results) -> list[Verdict]:
        return [judged(claim, results) for claim in self.claims.values()]

    def charts(self, results: Results) -> list[dict[str, Any]]:
        return study_charts(results)


def _read(have: Mapping[Step, Path]) -> pd.DataFrame:
    (folder,) = have.values()
    return pd.read_csv(folder / "parity.csv", float_precision="round_trip")


def _parity_cells(source: str, tier: Tier, steps: Iterable[int]) -> Iterable[Cell]:
    """At the end of training everything is measured, along the way the tests and the random paths."""
    for step in steps:
        arms = ("seeds", "unimodal", "stepped", "lucky") if step == END else ("seeds", "unimodal")
        for arm in arms:
            measure = [*(["curve"] if step == END else []), *(["paths"] if arm in ("seeds", "unimodal") else [])]
            yield _cell(source, arm, tier, PARITY, measure=measure, steps=step)


def _cell(source: str, arm: str, tier: Tier, tasks: tuple[str, ...], **options: Any) -> Cell:
    resamples, paths = EFFORT[tier]
    effort = {"task": "population", "tasks": list(tasks), "resamples": resamples, "paths": paths}
    return Cell(
        source, arm, options={**effort, **options}, data=() if source in STEPS else (source,), limit_s=300.0
    )


STUDY = SeedBimodalityStudy
