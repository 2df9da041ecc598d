"""The evidence for SMART: calibration against what practitioners use, on classifiers trained on the spot.

A step trains a small classifier and keeps its logits on rows that it has not seen. A cell splits those rows into a
validation part, on which a calibrator is fitted, and a test part, which is the same for every validation size. All
arms of a split see the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from assay.study import Cell, Claim, Measurement, Results, Step, Study, Tier, Verdict

from . import charts, verdicts
from .data import SOURCES, given_logits, pool_logits
from .files import read_logits
from .measuring import OTHER_HARDNESS, measure_calibration, time_prediction

__all__ = ["STUDY", "SMARTStudy"]

SPLITS = {Tier.smoke: 1, Tier.quick: 5, Tier.full: 20}
# Fits from other starts end in other minima, some of which rank the confidences much worse: five fits may miss them.
SPLITS_AT_LARGEST = 15
REPETITIONS = {Tier.smoke: 3, Tier.quick: 30}
# The smoke tier shows that all is in order, for which short descents do.
SMOKE_MAX_ITER = 200
HOME = ("letter", "satimage", "penbased")
SIZES = (500, 1000, 3000)
FEW = (50, 100, 200)
JUDGED = ("ts", "smart", "constant")
BESIDE = ("none", "ts-softece", "vector", "isotonic", "histogram", "probmetrics-svs")
SIGMAS = (0.02, 0.03, 0.04, 0.06, 0.08, 0.1)


class SMARTStudy(Study):
    """Cells, measurements and verdicts of the card's claims S1 to S6."""

    accepts_file = True

    def __init__(self, claims: Mapping[str, Claim], data_file: Path | None = None) -> None:
        super().__init__(claims, data_file)
        self._judge = verdicts.Judge(self.claims)

    def cells(self, tier: Tier) -> Iterable[Cell]:
        if self.data_file is not None:
            return _file_cells(len(read_logits(self.data_file)[1]))
        if tier is Tier.smoke:
            return _smoke_cells()
        quick = _quick_cells(SPLITS[tier])
        return quick if tier is Tier.quick else [*quick, *_full_cells(SPLITS[tier])]

    def needs(self, what: Cell | Step) -> tuple[Step, ...]:
        if isinstance(what, Step) or what.dataset not in SOURCES or SOURCES[what.dataset].variant == "outputs":
            return ()
        source = SOURCES[what.dataset]
        return (Step("train", {"entry": source.entry, "variant": source.variant}, _entries(what.dataset)),)

    def prepare(self, step: Step, have: Mapping[Step, Path], out: Path) -> None:
        arrays: dict[str, Any] = dict(pool_logits(step.options["entry"], step.options["variant"]))
        np.savez(out / "pool.npz", **arrays)

    def measure(self, cell: Cell, have: Mapping[Step, Path]) -> Measurement:
        pool = self._pool(cell, have)
        if cell.timing:
            return time_prediction(cell.arm, pool["logits"], pool["y"], cell.options["repetitions"])
        change = SOURCES[cell.dataset].change if cell.dataset in SOURCES else ""
        changed = pool[f"logits_{change}" if change else "logits"]
        return measure_calibration(cell, pool["logits"], pool["y"], changed, self._largest(cell, len(pool["y"])))

    def verdicts(self, results: Results) -> list[Verdict]:
        return self._judge(results)

    def charts(self, results: Results) -> list[dict[str, Any]]:
        return charts.charts(results, self._judge)

    def _pool(self, cell: Cell, have: Mapping[Step, Path]) -> Mapping[str, np.ndarray]:
        if self.data_file is not None:
            logits, labels = read_logits(self.data_file)
            return {"logits": logits, "y": labels}
        if not have:
            return given_logits(SOURCES[cell.dataset].entry)
        (folder,) = have.values()
        with np.load(folder / "pool.npz") as arrays:
            return dict(arrays)

    def _largest(self, cell: Cell, n_rows: int) -> int:
        return SOURCES[cell.dataset].largest if cell.dataset in SOURCES else _largest_of_file(n_rows)


def _cells(dataset: str, arms: Iterable[str], sizes: Iterable[int], splits: int, **options: Any) -> list[Cell]:
    """Split by split, so that a set is first seen whole at one split."""
    return [
        Cell(dataset, arm, split, {"n_val": n, **options}, _entries(dataset))
        for split in range(splits) for n in sizes for arm in arms
    ]


def _entries(dataset: str) -> tuple[str, ...]:
    """What is read for a studied set, by its names in a data.toml."""
    return tuple(filter(None, [SOURCES[dataset].entry])) if dataset in SOURCES else ()


def _smoke_cells() -> list[Cell]:
    splits, short = SPLITS[Tier.smoke], {"max_iter": SMOKE_MAX_ITER}
    return [
        *_cells("smart-smoke", [*JUDGED, "none", "smart-nll", *OTHER_HARDNESS], (500,), splits, **short),
        *_cells("smart-smoke", JUDGED, FEW, splits, **short),
        *_timing_cells("smart-smoke", Tier.smoke),
    ]


def _quick_cells(splits: int) -> list[Cell]:
    cells: list[Cell] = []
    for name in HOME:
        cells += _cells(name, JUDGED, (*FEW, *SIZES[:-1]), splits)
        cells += _cells(name, JUDGED, SIZES[-1:], max(splits, SPLITS_AT_LARGEST))
        cells += _cells(name, ["smart-nll", *BESIDE], (3000,), splits)
        cells += _cells(name, OTHER_HARDNESS, (1000,), splits)
    cells += _cells("digits", [*JUDGED, "none", "smart-nll", "isotonic"], (200, 500), splits)
    for name in ("penbased-rotated", "digits-rotated", "letter-long-tail"):
        cells += _cells(name, [*JUDGED, "none"], (SOURCES[name].largest,), splits)
    cells += _cells("letter", ("smart-adam",), (500,), 1)
    return cells + _timing_cells("letter", Tier.quick)


def _full_cells(splits: int) -> list[Cell]:
    cells = _cells("cifar10-vgg16", [*JUDGED, "smart-nll", *BESIDE], SIZES, splits)
    cells += _cells("cifar10-vgg16", OTHER_HARDNESS, (1000,), splits)
    cells += _cells("cifar10-vgg16", ("smart-adam",), SIZES, 5)
    for name in HOME:
        cells += _cells(name, ["smart-nll", *BESIDE], (500, 1000), splits)
        cells += _cells(name, ("probmetrics-ts", "venn-abers"), (3000,), splits)
        cells += _cells(name, ("smart-early",), (*FEW, 500), splits)
    for name in ("mnist", "mnist-rotated", "mnist-noisy", "debian-sections"):
        cells += _cells(name, [*JUDGED, "none", "smart-nll"], (3000,), splits)
    for sigma in SIGMAS:
        for name in (*HOME, "cifar10-vgg16"):
            cells += _cells(name, ("smart",), (3000,), splits, sigma=sigma)
    return cells


def _file_cells(n_rows: int) -> list[Cell]:
    largest, splits = _largest_of_file(n_rows), SPLITS[Tier.quick]
    few = [n for n in (*FEW, 500) if n < largest]
    beside = ["smart-nll", *BESIDE, *OTHER_HARDNESS]
    cells = [*_cells("file", JUDGED, (largest,), SPLITS_AT_LARGEST), *_cells("file", beside, (largest,), splits)]
    cells += _cells("file", JUDGED, few, splits)
    return [*cells, *_timing_cells("file", Tier.quick)]


def _largest_of_file(n_rows: int) -> int:
    """Half of the rows are for validation, up to the size that the claims are judged at."""
    return min(3000, n_rows // 2)


def _timing_cells(dataset: str, tier: Tier) -> list[Cell]:
    options = {"what": "prediction time", "repetitions": REPETITIONS[tier]}
    return [Cell(dataset, arm, 0, options, _entries(dataset), timing=True) for arm in ("smart", "smart-rowwise")]


STUDY = SMARTStudy
