"""Tables of runs, climbed rung by rung: what a planner knew before each budget, and what that budget then gave.

A unit is a budget of a table. Its `known` runs all lie below, its `then` runs in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from assay.datasets import load_dataset

__all__ = ["HOME", "PUBLIC", "SLICE", "TITLES", "Rung", "rungs"]

TINY, SCAN, SLICE = "tiny-lm-runs", "scan-bench-llm", "plan-smoke-runs"
HOME = (TINY, SCAN)
PUBLIC = ("gadre-overtraining", "gemstones", "chinchilla-epoch", "nqs-runs")
TITLES = {
    TINY: "our tiny-LM runs", SCAN: "scan-bench", SLICE: "a slice of our runs", "gadre-overtraining": "Gadre",
    "gemstones": "Gemstones", "chinchilla-epoch": "Chinchilla", "nqs-runs": "NQS",
}
LEAST_KNOWN = 12  # runs below a budget, before a planner is asked
LONG, SHORT = 2048.0, 128.0  # tokens a sequence


@dataclass(frozen=True)
class Rung:
    """A budget with the runs known before it and those made at it."""

    label: str
    known: pd.DataFrame
    then: pd.DataFrame


def rungs(dataset: str, subset: str, most: int, width: float) -> Iterator[Rung]:
    """The largest `most` budgets of a table, smallest first; `width` is a budget's, in doublings of compute."""
    table = READERS[dataset](load_dataset(dataset), subset)
    if "budget" not in table:
        largest = table.groupby("group")["C"].transform("max") if "group" in table else table["C"]
        table["budget"] = np.round(np.log2(largest) / width).astype(int)
    found = []
    for budget in sorted(table["budget"].unique()):
        known = table[table["budget"] < budget]
        then = table[(table["budget"] == budget) & (table["C"] > known["C"].max())]
        if len(known) >= LEAST_KNOWN and len(then):
            columns = [name for name in table.columns if name not in ("budget", "C")]
            found.append(Rung(f"{dataset} {subset} {budget}".replace("  ", " "), known[columns], then[[*columns, "C"]]))
    yield from found[-most:]


def _tiny(table: pd.DataFrame, subset: str) -> pd.DataFrame:
    """Our grid: seeds joined, budgets as they were designed."""
    keys = ["N", "B", "K", "tokens", "level"]
    mean = table.groupby(keys, as_index=False)["loss"].mean().rename(columns={"tokens": "D", "level": "budget"})
    return _with_compute(mean)


def _scan(table: pd.DataFrame, subset: str) -> pd.DataFrame:
    """The last checkpoints; their settings were drawn, so of those within a factor 2 in size and tokens the best."""
    last = table.sort_values("step_index").groupby("config_id").tail(1)
    last = last[last["tokens_so_far"].notna()]
    batch = 4.0 * last["micro_batch_size"] * last["grad_accumulation_steps"]
    tokens = last["tokens_so_far"]
    columns = {"N": last["n_params"], "D": tokens, "B": batch, "K": tokens / (batch * LONG), "loss": last["valid_loss"]}
    runs = pd.DataFrame(columns).reset_index(drop=True)
    cells = [np.floor(np.log2(runs["N"])), np.floor(np.log2(runs["D"]))]
    return _with_compute(runs.loc[runs.groupby(cells)["loss"].idxmin()])


def _gadre(table: pd.DataFrame, subset: str) -> pd.DataFrame:
    """One training set; a 6.9B run listed with a batch of one sequence is left out."""
    kept = table[(table["train_set"] == subset) & (table["global_bs"] > 1)]
    columns = {"N": kept["params"], "D": kept["tokens"], "B": kept["global_bs"], "loss": kept["loss_c4"]}
    runs = pd.DataFrame(columns).astype(float)
    return _with_compute(runs.assign(K=runs["D"] / (runs["B"] * LONG)))


def _gemstones(table: pd.DataFrame, subset: str) -> pd.DataFrame:
    columns = {"N": table["params"], "D": table["tokens"], "loss": table["loss_fineweb_edu"], "group": table["model"]}
    return _with_compute(pd.DataFrame(columns))


def _chinchilla(table: pd.DataFrame, subset: str) -> pd.DataFrame:
    return _with_compute(table.rename(columns={"params": "N", "tokens": "D"})[["N", "D", "loss"]].astype(float))


def _nqs(table: pd.DataFrame, subset: str) -> pd.DataFrame:
    """The runs that the authors kept."""
    kept = table[table["filtered"] != True]  # noqa: E712 (empty for the test runs)
    runs = kept[["N", "B", "K", "loss"]].astype(float).reset_index(drop=True)
    return _with_compute(runs.assign(D=runs["B"] * runs["K"] * SHORT))


def _with_compute(runs: pd.DataFrame) -> pd.DataFrame:
    return runs.assign(C=6.0 * runs["N"] * runs["D"]).reset_index(drop=True)


READERS: dict[str, Callable[[pd.DataFrame, str], pd.DataFrame]] = {
    TINY: _tiny, SLICE: _tiny, SCAN: _scan, "gadre-overtraining": _gadre, "gemstones": _gemstones,
    "chinchilla-epoch": _chinchilla, "nqs-runs": _nqs,
}
