"""The evidence for the token sample complexity of attention: Gaussian tokens, and the heads of trained models.

Gaussian cells decide the rates (fixed query, averaged, hardmax); the 72 heads of MiniLM decide whether the spectral
number orders real heads, and whether it shows downstream. SmolLM2's 270 heads stand beside them in the full tier.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from assay.datasets import load_dataset
from assay.scaling.token_complexity.charts import study_charts
from assay.scaling.token_complexity.gaussian import TASKS
from assay.scaling.token_complexity.judging import GAUSSIAN, judged
from assay.scaling.token_complexity.model_heads import head_table
from assay.study import Cell, Measurement, Results, Step, Study, Tier, Verdict

TEXTS = "python-help-topics"
FILES = {
    "minilm-weights": ("minilm-config", "minilm-weights", "minilm-tokenizer", TEXTS),
    "smollm2-gguf": ("smollm2-gguf", TEXTS),
}
POOLS: dict[str, dict[str, Any]] = {
    "minilm-weights": {
        "pool": 8192, "window": 256, "queries": 128, "reps": 16, "ns": [32, 64, 128, 256, 512, 1024, 2048],
        "damage_ns": [32, 128, 512], "draws": 2, "passages": 8, "passage": 24, "stride": 1,
    },
    "smollm2-gguf": {
        "pool": 16384, "window": 256, "queries": 128, "reps": 16, "ns": [32, 64, 128, 256, 512, 1024, 2048, 4096],
        "damage_ns": [32, 128, 512], "draws": 1, "passages": 2, "passage": 64, "stride": 3,
    },
}
LAMBDAS = (0.25, 1.0, 2.0, 4.0)
RADII = (0.5, 1.0, 1.5)


def grid(low: float, high: float, count: int) -> list[int]:
    """Numbers of tokens at equal ratios."""
    return [round(n) for n in np.geomspace(low, high, count)]


class TokenComplexityStudy(Study):
    """Cells are (Gaussian, arm, task) and (model, arm); the table of a model's heads is a step that its arms share."""

    def cells(self, tier: Tier) -> Iterable[Cell]:
        if tier is Tier.smoke:
            yield from _gaussian_cells(dims=(1,), reps=40, fixed_reps=40, low=10, top=1000, hard_reps=200)
            return
        yield from _gaussian_cells(dims=(1, 16), reps=400, fixed_reps=1000, low=100, top=30_000, hard_reps=4000)
        models = ["minilm-weights"] if tier is Tier.quick else list(POOLS)
        for model in models:
            for arm in ("attention", "scrambled"):
                yield Cell(
                    model, arm, options={"task": "heads", **POOLS[model]}, data=FILES[model], limit_s=120.0, memory=2048
                )

    def needs(self, what: Cell | Step) -> tuple[Step, ...]:
        if isinstance(what, Step) or what.options["task"] != "heads":
            return ()
        model = what.dataset
        limit = 1200.0 if model == "minilm-weights" else 3600.0
        return (
            Step("heads", {"model": model, **POOLS[model]}, FILES[model], limit_s=limit, memory=8192),
        )

    def prepare(self, step: Step, have: Mapping[Step, Path], out: Path) -> None:
        which = "minilm" if step.options["model"] == "minilm-weights" else "smollm2"
        table = head_table(which, load_dataset(TEXTS), step.options)
        table.to_csv(out / "heads.csv", index=False)

    def measure(self, cell: Cell, have: Mapping[Step, Path]) -> Measurement:
        if cell.options["task"] != "heads":
            return TASKS[cell.options["task"]](cell)
        (folder,) = have.values()
        table = pd.read_csv(folder / "heads.csv", float_precision="round_trip")
        return _heads(cell, table)

    def verdicts(self, results: Results) -> list[Verdict]:
        return [judged(claim, results) for claim in self.claims.values()]

    def charts(self, results: Results) -> list[dict[str, Any]]:
        return study_charts(results)


def _gaussian_cells(
    dims: tuple[int, ...], reps: int, fixed_reps: int, low: int, top: int, hard_reps: int
) -> Iterable[Cell]:
    for d in dims:
        # In 16 dimensions a replicate costs many times as much: fewer of them, and of fewer tokens.
        share, last = (1, top) if d == 1 else (4, top // 3)
        fixed = {"task": "fixed", "d": d, "reps": fixed_reps * 2 // (1 + share), "ns": grid(low, last, 8)}
        for radius in RADII:
            for arm in ("attention", "hardmax", "uniform"):
                yield _cell(arm, {**fixed, "radius": radius})
        average = {
            "task": "average", "d": d, "reps": reps // share, "ns": grid(low, top, 9), "queries": 40 if d == 1 else 64
        }
        for lam in LAMBDAS:
            for arm in ("attention", "uniform"):
                yield _cell(arm, {**average, "lam": lam})
    yield _cell("attention", {"task": "hardmax", "reps": hard_reps, "ns": grid(100, 1e8, 13)})
    yield _cell("softmax", {"task": "hardmax", "reps": hard_reps // 10, "ns": grid(100, max(top, 10_000), 8)})


def _cell(arm: str, options: dict[str, Any]) -> Cell:
    return Cell(GAUSSIAN, arm, options=options, data=(), limit_s=300.0, memory=2048)


def _heads(cell: Cell, table: pd.DataFrame) -> Measurement:
    """The table of heads; in the control the heads' spectral numbers are dealt out anew."""
    if cell.arm == "scrambled":
        order = np.random.default_rng([cell.seed, len(table)]).permutation(len(table))
        dealt = ["lam", "lam_all", "beta_pred"]
        table = table.assign(**{name: table[name].to_numpy()[order] for name in dealt})
    metrics = {
        "heads": float(len(table)), "lam_median": float(table["lam"].median()),
        "lam_above_1": float((table["lam"] > 1).mean()), "beta_median": float(table["beta"].median()),
        "kurtosis_median": float(table["kurtosis"].median()), "n_eff_median": float(table["n_eff"].median()),
        "hardmax_heads": float((table["regime"] == "hardmax").mean()),
        "tokens_fitted_off": _off(table["tokens_fitted"]), "tokens_root_off": _off(table["tokens_root"]),
        "lam_all_median": float(table["lam_all"].median()),
    }
    return Measurement(metrics, table)


def _off(ratios: pd.Series) -> float:
    """Median factor by which expected and real tokens are apart, either way."""
    return float(np.exp(np.log(ratios).abs().median()))


STUDY = TokenComplexityStudy
