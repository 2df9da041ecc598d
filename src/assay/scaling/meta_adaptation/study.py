"""The evidence for the adaptation law: its shape, its slope in the variance, its budgets, and what adaptation is worth.

Regulators and one-qubit gates are the paper's own simulated tasks. The gates on real devices take their noise from
calibration snapshots; there, controllers that were all made from one start in as many steps are compared on devices
that none of them was tuned on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from assay.datasets import load_dataset
from assay.scaling.meta_adaptation.charts import study_charts
from assay.scaling.meta_adaptation.judging import PROBES, judged
from assay.scaling.meta_adaptation.measuring import LEVELS, TASKS
from assay.study import Cell, Measurement, Results, Step, Study, Tier, Verdict

__all__ = ["STUDY", "MetaAdaptationStudy"]

SEEDS = range(5)
PROBE_ARMS = ("adaptation", "reversed", "aitken", "exponential", "power", "always-10")
SMOKE_ARMS = ("adaptation", "reversed", "aitken")
GATE_ARMS = ("adapted", "detuned", "fixed", "retuned", "swapped", "grape-closed", "optimum")
PAIR_ARMS = ("adapted", "frozen", "swapped", "fixed", "retuned")
FULL_PAIR_ARMS = ("pooled-grape", "optimum")
NOISES = (1.0, 10.0)
PAIR_NOISE = 10.0
STARTS = ("trained", "early")
CURVE = {"tasks": 12, "steps": 150, "iterations": 60}
SWEEP = {"tasks": 100}
GATE = {"steps": 30, "per_device": 3, "n_devices": 40}
PAIR = {"steps": 8, "n_devices": 24}
FULL_PAIR = {"steps": 30, "n_devices": 40}
START = {"iterations": 60}


class MetaAdaptationStudy(Study):
    """Cells are (family of tasks, arm, seed); the option `task` says what is measured."""

    def cells(self, tier: Tier) -> Iterable[Cell]:
        if tier is Tier.smoke:
            yield from _curve_cells("lqr", SMOKE_ARMS)
            return
        yield from _curve_cells("lqr")
        yield from _curve_cells("x-paper")
        for noise in NOISES:
            yield from (_contest("ibm-qubits", arm, {**GATE, "noise": noise}) for arm in GATE_ARMS)
        for start in STARTS:
            options = {**PAIR, "noise": PAIR_NOISE, "start": start, "optimum": False}
            yield from (_contest("ibm-pairs", arm, options) for arm in PAIR_ARMS)
        if tier is Tier.full:
            yield from _full_cells()

    def needs(self, what: Cell | Step) -> tuple[Step, ...]:
        options = dict(what.options)
        if isinstance(what, Step):
            if what.name == "contest" and "start" in options:
                return (_start_step(options["n_devices"]),)
            return ()
        task = options.pop("task")
        if task == "contest":
            return (Step("contest", {"set": what.dataset, **options}, (what.dataset,), limit_s=900.0),)
        if what.dataset == "x-paper":
            name, shared = ("sweep", SWEEP) if task == "sweep" else ("curves", CURVE)
            return (Step(name, {**shared, "seed": what.seed}, limit_s=300.0),)
        return ()

    def prepare(self, step: Step, have: Mapping[Step, Path], out: Path) -> None:
        from assay.scaling.meta_adaptation import families

        options = step.options
        if step.name == "curves":
            arrays = families.paper_curves(options["seed"], options["tasks"], options["steps"], options["iterations"])
            _save(out / "curves.npz", arrays)
        elif step.name == "sweep":
            table = families.paper_sweep(options["seed"], LEVELS / LEVELS.max(), options["tasks"])
            table.to_csv(out / "sweep.csv", index=False)
        elif step.name == "start":
            table = load_dataset("ibm-pairs")
            arrays = families.pair_start(table, PAIR_NOISE, options["iterations"], n_devices=options["n_devices"])
            _save(out / "start.npz", arrays)
        elif step.name == "contest":
            _prepare_contest(options, have, out)
        else:
            super().prepare(step, have, out)

    def measure(self, cell: Cell, have: Mapping[Step, Path]) -> Measurement:
        return TASKS[cell.options["task"]](cell, {step.name: folder for step, folder in have.items()})

    def verdicts(self, results: Results) -> list[Verdict]:
        return [judged(claim, results) for claim in self.claims.values()]

    def charts(self, results: Results) -> list[dict[str, Any]]:
        return study_charts(results)


def _curve_cells(dataset: str, arms: tuple[str, ...] = PROBE_ARMS) -> Iterable[Cell]:
    """Law, sweep of variances and budgets from probes on one of the paper's families."""
    for seed in SEEDS:
        for arm in ("law", "shuffled"):
            for task in ("law", "sweep"):
                yield Cell(dataset, arm, seed, {"task": task}, data=(), limit_s=120.0)
        for arm in arms if dataset == "x-paper" or seed == 0 else ():
            for n in PROBES:
                yield Cell(dataset, arm, seed, {"task": "probe", "n": n}, data=(), limit_s=120.0)


def _full_cells() -> Iterable[Cell]:
    """Thirty steps on more pairs, and the best that each pair can have."""
    for start in STARTS:
        options = {**FULL_PAIR, "noise": PAIR_NOISE, "start": start, "optimum": start == "trained"}
        arms = (*PAIR_ARMS, *FULL_PAIR_ARMS) if options["optimum"] else PAIR_ARMS
        yield from (_contest("ibm-pairs", arm, options) for arm in arms)


def _contest(dataset: str, arm: str, options: Mapping[str, Any]) -> Cell:
    return Cell(dataset, arm, options={"task": "contest", **options}, limit_s=120.0)


def _start_step(n_devices: int) -> Step:
    return Step("start", {**START, "n_devices": n_devices}, ("ibm-pairs",), limit_s=600.0)


def _save(path: Path, arrays: Mapping[str, Any]) -> None:
    np.savez(path, **dict(arrays))


def _prepare_contest(options: Mapping[str, Any], have: Mapping[Step, Path], out: Path) -> None:
    from assay.scaling.meta_adaptation import families

    table = load_dataset(options["set"])
    if options["set"] == "ibm-qubits":
        found, rates = families.gate_contest(
            table, options["noise"], options["steps"], per_device=options["per_device"], n_devices=options["n_devices"]
        )
        rates.to_csv(out / "rates.csv", index=False)
    else:
        (folder,) = have.values()
        with np.load(folder / "start.npz", allow_pickle=False) as arrays:
            start = arrays[options["start"]]
        found = families.pair_contest(
            table, options["noise"], options["steps"], start, n_devices=options["n_devices"], optimum=options["optimum"]
        )
    found.to_csv(out / "contest.csv", index=False)


STUDY = MetaAdaptationStudy
