"""The evidence for the depth rule: energies at initialisation, best trained rates, transfer, counting, width.

Energies decide whether the maximal-update rate falls as L^-3/2, sweeps whether the best trained rate does, and the
transfer from the shallowest to the deepest net whether the rule is worth using. Home sets: scikit-learn's digits, and
the source of Python's own library for the Transformer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from assay.scaling.depth_lr.charts import study_charts
from assay.scaling.depth_lr.judging import judged
from assay.study import Cell, Measurement, Results, Step, Study, Tier, Verdict

DIGITS, SOURCE = "depth-lr-digits", "depth-lr-source"
STEP_OF = {
    "energy": "energies",
    "collapse": "energies",
    "rates": "sweep",
    "transfer": "transfers",
    "width": "widths",
}

NETS: dict[str, dict[str, Any]] = {
    "mlp": {"width": 128, "depths": [4, 8, 16, 32]},
    "cnn": {"width": 32, "depths": [4, 8, 16, 32]},
    "resnet": {"width": 16, "depths": [4, 8, 16, 32]},
    "transformer": {"width": 64, "depths": [6, 10, 18, 34], "examples": 4},
    "resmlp": {"width": 128, "depths": [4, 8, 16, 32]},
}
SWEEPS: dict[str, dict[str, Any]] = {
    "mlp": {"width": 64, "depths": [4, 8, 16, 32], "top": 1.0, "fall": 1.25, "octaves": 6, "step": 1.0},
    "resmlp": {"width": 64, "depths": [4, 8, 16, 32], "top": -1.5, "fall": 1.0, "octaves": 3, "step": 0.5},
}
TRAINING = {"steps": 150, "batch": 64, "seeds": 4, "from_depth": 4}
WIDTH_SEEDS = 8
TRANSFERS = ("depth-rule", "constant", "inverse-root", "inverse", "depth-mup", "own-optimum")
BESIDE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("mlp", {"width": 256}),
    ("mlp", {"width": 256, "loss": "cross-entropy"}),
    ("cnn", {"width": 64, "depths": [3, 6, 9, 12]}),
    ("resmlp", {"depths": [8, 16, 32, 64]}),
    ("resmlp", {"branch_gain": "full"}),
    ("resnet", {"depths": [8, 16, 32, 64], "inits": 16, "examples": 8}),
    ("transformer", {"depths": [10, 18, 34, 66], "inits": 16, "examples": 2}),
)
"""Energies that stand beside those that decide: other widths, deeper nets, another loss, branches without 1/K."""

FULL_SWEEPS: dict[str, dict[str, Any]] = {
    "transformer": {
        "width": 32,
        "depths": [6, 10, 18],
        "top": 1.0,
        "fall": 0.5,
        "octaves": 6,
        "step": 1.0,
        "from_depth": 6,
        "steps": 300,
        "batch": 8,
        "seeds": 3,
    },
    "cnn": {
        "width": 32,
        "depths": [3, 6, 12],
        "top": 0.0,
        "fall": 1.25,
        "octaves": 6,
        "step": 1.0,
        "from_depth": 3,
        "steps": 300,
        "batch": 32,
        "seeds": 3,
    },
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "momentum": {"top": -2.0, "fall": 1.25, "octaves": 7, "step": 1.0},
    "adam": {"top": -4.0, "fall": 0.75, "octaves": 7, "step": 1.0},
}


class DepthLRStudy(Study):
    """Cells are (data, arm, task, architecture); the tables of energies and of sweeps are steps that arms share."""

    def cells(self, tier: Tier) -> Iterable[Cell]:
        if tier is Tier.smoke:
            yield from _smoke_cells()
            return
        for arch, net in NETS.items():
            yield from _pair("energy", arch, {**net, "inits": 32})
        collapse = {"width": 64, "depths": [4, 8, 16, 32], "branches": [2, 4, 8], "inits": 32}
        yield from _pair("collapse", "resmlp", collapse)
        for arch, sweep in SWEEPS.items():
            yield from _pair("rates", arch, {**TRAINING, **sweep})
            for arm in TRANSFERS:
                yield _cell("transfer", arch, arm, {**TRAINING, **sweep})
            yield from _width_cells(arch, {**TRAINING, **sweep, "seeds": WIDTH_SEEDS}, 32, 4)
        if tier is Tier.full:
            yield from _full_cells()

    def needs(self, what: Cell | Step) -> tuple[Step, ...]:
        if isinstance(what, Step):
            return (_step("sweep", what.options),) if what.name == "transfers" else ()
        options = {key: value for key, value in what.options.items() if key != "task"}
        return (_step(STEP_OF[what.options["task"]], {"dataset": what.dataset, **options}),)

    def prepare(self, step: Step, have: Mapping[Step, Path], out: Path) -> None:
        from assay.scaling.depth_lr.tasks import energy_table, sweep_table, transfer_table, width_table

        dataset = step.options["dataset"]
        if step.name == "transfers":
            table = transfer_table(step.options, dataset, _tables(have)["sweep"])
        else:
            make = {"energies": energy_table, "sweep": sweep_table, "widths": width_table}[step.name]
            table = make(dataset, step.options)
        table.to_csv(out / "table.csv", index=False)

    def measure(self, cell: Cell, have: Mapping[Step, Path]) -> Measurement:
        from assay.scaling.depth_lr.tasks import measure

        return measure(cell, _tables(have))

    def verdicts(self, results: Results) -> list[Verdict]:
        return [judged(claim, results) for claim in self.claims.values()]

    def charts(self, results: Results) -> list[dict[str, Any]]:
        return study_charts(results)


def _step(name: str, options: Mapping[str, Any]) -> Step:
    return Step(name, dict(options), (options["dataset"],), limit_s=1200.0, memory=4096)


def _tables(have: Mapping[Step, Path]) -> dict[str, pd.DataFrame]:
    return {step.name: pd.read_csv(folder / "table.csv", float_precision="round_trip") for step, folder in have.items()}


def _smoke_cells() -> Iterable[Cell]:
    """The smallest nets: a little of everything but training of any length."""
    small = {"width": 16, "depths": [4, 6, 8], "inits": 6, "examples": 4}
    for arch in ("mlp", "resmlp"):
        yield from _pair("energy", arch, small)
    yield from _pair("collapse", "resmlp", {**small, "branches": [2, 4]})
    sweep = {
        "width": 16,
        "depths": [4, 6, 8],
        "top": 1.0,
        "fall": 1.0,
        "octaves": 3,
        "step": 1.0,
        "from_depth": 4,
        "steps": 8,
        "batch": 16,
        "seeds": 3,
    }
    yield from _pair("rates", "mlp", sweep)
    for arm in TRANSFERS:
        yield _cell("transfer", "mlp", arm, sweep)
    yield from _width_cells("mlp", sweep, 8, 4)


def _full_cells() -> Iterable[Cell]:
    for arch, changes in BESIDE:
        yield from _pair("energy", arch, {**NETS[arch], "inits": 32, "beside": True, **changes})
    for arch, sweep in FULL_SWEEPS.items():
        yield from _pair("rates", arch, sweep)
    shallow = {**TRAINING, "width": 64, "depths": [4, 8, 16], "beside": True, "steps": 300}
    for optimizer, grid in OPTIMIZERS.items():
        yield from _pair("rates", "mlp", {**shallow, **grid, "optimizer": optimizer})
    for arch, sweep in SWEEPS.items():
        yield from _width_cells(arch, {**TRAINING, **sweep, "seeds": WIDTH_SEEDS}, 64, 8, beside=True)
        yield from _width_cells(arch, {**TRAINING, **sweep, "seeds": WIDTH_SEEDS}, 32, 4, beside=True, table=False)


def _pair(task: str, arch: str, options: Mapping[str, Any]) -> Iterable[Cell]:
    for arm in ("depth-rule", "shuffled"):
        yield _cell(task, arch, arm, options)


def _width_cells(arch: str, options: Mapping[str, Any], width: int, depth: int, **more: Any) -> Iterable[Cell]:
    kept = {key: value for key, value in options.items() if key not in ("depths", "width")}
    # Half an octave higher than a sweep's grid, for the narrower net's optimum.
    grid = {"top": kept["top"] + 0.5, "octaves": max(kept["octaves"], 4)}
    for arm in ("depth-rule", "per-weight"):
        yield _cell("width", arch, arm, {**kept, **grid, "width": width, "depth": depth, **more})


def _cell(task: str, arch: str, arm: str, options: Mapping[str, Any]) -> Cell:
    dataset = SOURCE if arch == "transformer" else DIGITS
    return Cell(dataset, arm, options={"task": task, "arch": arch, **options}, limit_s=600.0, memory=4096)


STUDY = DepthLRStudy
