"""The evidence for the scaling laws of precision: simulated power-law problems, as in the paper, and real features.

Power-law problems decide the claims. The covariance of scikit-learn's digits, behind random ReLU features, stands
beside them; there the features are not Gaussian. The recursions are held against simulation on digits and diabetes
too. The table of runs of a problem is a step that its arms share: schemes are paired by sketch, samples and signs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from assay.scaling.low_precision.charts import study_charts
from assay.scaling.low_precision.judging import judged
from assay.scaling.low_precision.tasks import GAUSSIAN, LAWS, TASKS, make_runs
from assay.study import Cell, Measurement, Results, Step, Study, Tier, Verdict

RELU, DIGITS, DIABETES = "precision-digits-relu", "precision-digits", "precision-diabetes"
WITHOUT_RUNS = ("recursion", "formats")
QUICK: dict[str, Any] = {
    "a": 1.5, "p": 2048, "sizes": [8, 16, 32, 64, 128, 256, 512],
    "samples": [125, 250, 500, 1000, 2000, 4000, 8000], "seeds": 8, "quantities": ["data"],
}
SMOKE: dict[str, Any] = {
    "a": 1.5, "p": 64, "sizes": [2, 4, 8, 16], "samples": [50, 100, 200], "seeds": 3, "quantities": ["data"],
}
REAL: dict[str, Any] = {
    "sizes": [8, 16, 32, 64, 128, 256], "samples": [4000], "seeds": 8, "quantities": ["data"],
}


class LowPrecisionStudy(Study):
    """Cells are (problem, arm, task); the options hold the problem's exponents and grid."""

    def cells(self, tier: Tier) -> Iterable[Cell]:
        if tier is Tier.smoke:
            yield from _problem_cells({**SMOKE, "b": 2.0}, {"M": 8, "middle": 100}, starts=1, fits=1, least_N=50)
            yield _recursion_cell(GAUSSIAN, {"a": 1.5, "b": 2.0, "p": 16, "M": 3, "N": 40, "repeats": 50})
            return
        for b in (1.5, 2.0):
            yield from _problem_cells(
                {**QUICK, "b": b}, {"M": 128, "middle": 2000}, starts=8, fits=QUICK["seeds"], least_N=500
            )
        yield from _width_cells(RELU, REAL)
        yield from _recursion_cells(2000)
        if tier is Tier.full:
            yield from _full_cells()

    def needs(self, what: Cell | Step) -> tuple[Step, ...]:
        if isinstance(what, Step) or what.options["task"] in WITHOUT_RUNS:
            return ()
        grid = {name: what.options[name] for name in ("sizes", "samples", "seeds", "quantities")}
        if what.dataset == GAUSSIAN:
            grid |= {name: what.options[name] for name in ("a", "b", "p", "batch") if name in what.options}
        return (Step("runs", {"dataset": what.dataset, **grid}, what.data or (), limit_s=600.0),)

    def prepare(self, step: Step, have: Mapping[Step, Path], out: Path) -> None:
        make_runs(step.options).to_csv(out / "runs.csv", index=False)

    def measure(self, cell: Cell, have: Mapping[Step, Path]) -> Measurement:
        runs = pd.DataFrame()
        for folder in have.values():
            runs = pd.read_csv(folder / "runs.csv")
        return TASKS[cell.options["task"]](cell, runs)

    def verdicts(self, results: Results) -> list[Verdict]:
        return [judged(claim, results) for claim in self.claims.values()]

    def charts(self, results: Results) -> list[dict[str, Any]]:
        return study_charts(results)


def _problem_cells(
    grid: Mapping[str, Any], data: Mapping[str, int], starts: int, fits: int, least_N: int
) -> Iterable[Cell]:
    """What decides the claims on one power-law problem, with the controls."""
    yield from _width_cells(GAUSSIAN, grid)
    for arm in ("quantised", "rounded-after", "another-sketch"):
        yield _cell(GAUSSIAN, arm, {"task": "data", **data, **grid})
    for arm in ("quantised", "shuffled"):
        yield _cell(GAUSSIAN, arm, {"task": "floor", **grid})
    for arm in (*LAWS, "shuffled"):
        yield _cell(GAUSSIAN, arm, {"task": "law", "starts": starts, "fits": fits, "least_N": least_N, **grid})


def _width_cells(dataset: str, grid: Mapping[str, Any]) -> Iterable[Cell]:
    for arm in ("multiplicative", "additive"):
        yield _cell(dataset, arm, {"task": "width", **grid})


def _recursion_cells(repeats: int) -> Iterable[Cell]:
    for M, N in ((8, 300), (64, 300)):
        options = {"a": 1.5, "b": 2.0, "p": 256, "M": M, "N": N, "repeats": repeats if M == 8 else repeats // 10}
        yield _recursion_cell(GAUSSIAN, options)
    yield _recursion_cell(DIGITS, {"M": 16, "N": 300, "repeats": repeats // 4})
    yield _recursion_cell(DIABETES, {"M": 8, "N": 300, "repeats": repeats // 2})


def _recursion_cell(dataset: str, options: dict[str, Any]) -> Cell:
    return _cell(dataset, "recursion", {"task": "recursion", **options})


def _full_cells() -> Iterable[Cell]:
    """Other spectra, targets, batches and quantised quantities; real formats; what the laws' choices give away."""
    grid = {**QUICK, "p": 1024, "sizes": QUICK["sizes"][:-1], "samples": [500, 2000, 8000]}
    for a, b in ((1.2, 1.5), (1.2, 2.0), (1.5, 2.5), (2.0, 2.0), (2.0, 2.5)):
        yield from _width_cells(GAUSSIAN, {**grid, "a": a, "b": b})
    for quantities in (["label"], ["param"], ["activation"], ["gradient"], ["data", "param"]):
        yield from _width_cells(GAUSSIAN, {**grid, "b": 2.0, "quantities": quantities})
    yield from _width_cells(GAUSSIAN, {**grid, "b": 2.0, "batch": 16})
    yield _cell(
        GAUSSIAN, "formats", {"task": "formats", "a": 1.5, "b": 2.0, "p": 1024, "M": 128, "N": 4000, "seeds": 8}
    )
    for b in (1.5, 2.0):
        for arm in LAWS:
            options = {"task": "plan", "starts": 8, "fits": QUICK["seeds"], "least_N": 500, **QUICK, "b": b}
            yield _cell(GAUSSIAN, arm, options)


def _cell(dataset: str, arm: str, options: dict[str, Any]) -> Cell:
    data = () if dataset == GAUSSIAN else (dataset,)
    return Cell(dataset, arm, options=options, data=data, limit_s=300.0, memory=3072)


STUDY = LowPrecisionStudy
