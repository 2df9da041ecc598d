"""Tables of finished training runs in one form, with what is fitted and what is held out.

Each reader returns a frame with one row a configuration:

    N, B, K     parameters, batch size (sequences), updates
    D, C        tokens and FLOP (6 * N * D)
    loss        nats
    budget      label of the compute budget
    sweep       label of the runs with equal N and D that differ in batch size; empty outside such a sweep
    isoflop     whether the run belongs to a comparison of sizes at equal compute, with a sensible batch size
    fitted      whether laws are fitted to the run; the rest is held out
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from assay.errors import InputError
from assay.scaling.fit import read_columns, split_above

HOME, PUBLIC, SLICE, FILE = "tiny-lm-runs", "nqs-runs", "nqs-smoke-runs", "file"
TITLES = {HOME: "our tiny-LM runs", PUBLIC: "the authors' runs", SLICE: "a slice of our runs", FILE: "your file"}
HELD_OUT_ABOVE = 0.7  # quantile of compute
LEAST_FITTED = 8  # configurations, one more than the law has parameters
SEQ_LEN = {HOME: 128, SLICE: 128, PUBLIC: 128}
OWN_INITIAL_NORM = (HOME, SLICE)  # sets whose models' initial weights are `tiny_weight_norm_sq`
LONG_SEQ_LEN = 2048
MOST_DOUBLINGS = 300  # of N * B * K in a user's table: 10**90, far beyond any run and far from overflow


def read_runs(table: pd.DataFrame, dataset: str, subset: str = "") -> pd.DataFrame:
    """The named data set in the common form; `subset` names one training set of `gadre-overtraining`."""
    readers: dict[str, Callable[[], pd.DataFrame]] = {
        HOME: lambda: tiny_runs(table),
        SLICE: lambda: tiny_runs(table),
        PUBLIC: lambda: authors_runs(table),
        "gadre-overtraining": lambda: gadre_runs(table, subset),
        "gemstones": lambda: gemstone_runs(table),
        "scan-bench-llm": lambda: scan_bench_runs(table),
    }
    return readers[dataset]() if dataset in readers else user_runs(table)


def tiny_runs(table: pd.DataFrame) -> pd.DataFrame:
    """Our own grid. Seeds repeat a configuration: their mean loss is one row."""
    mean = table.groupby(["N", "B", "K", "level"], as_index=False)["loss"].mean()
    return _held_out_by_budget(designed(mean, SEQ_LEN[HOME], mean["level"]))


def tiny_weight_norm_sq(N: ArrayLike) -> np.ndarray:
    """Squared norm of the initial weights of the decoders behind `tiny-lm-runs`, as a function of N.

    Two blocks: matrices with entries of variance 1/fan-in, the two that project back into the residual stream
    divided by 4, and two gains of ones. The authors' default, `N * 0.02**2`, is that of other initial weights.
    """
    widths = np.arange(8, 2049)
    hidden = 8 * widths // 3 // 4 * 4
    sizes = 2 * (4 * widths**2 + 3 * widths * hidden + 2 * widths)
    norms = 2 * (3 * widths + widths / 4 + 2 * hidden + widths / 4 + 2 * widths)
    return np.interp(np.asarray(N, dtype=float), sizes, norms)


def authors_runs(table: pd.DataFrame) -> pd.DataFrame:
    """The authors' runs, split and filtered as they are marked; filtered runs are left out."""
    kept = table[table["filtered"] != True].reset_index(drop=True)  # noqa: E712 (empty for the test runs)
    runs = _with_compute(kept, SEQ_LEN[PUBLIC])
    runs["budget"] = np.round(np.log2(runs["C"])).astype(int)
    runs["isoflop"] = (kept["type"] == "isoflop").to_numpy()
    label = runs["N"].map("{:.0f}".format) + " @ budget " + runs["budget"].astype(str)
    runs["sweep"] = np.where(runs["isoflop"], "", label)
    runs["fitted"] = (kept["split"] == "train").to_numpy()
    return runs


def gadre_runs(table: pd.DataFrame, training_set: str) -> pd.DataFrame:
    """One of three training sets, loss on C4. A 6.9B run listed with a batch of one sequence is left out."""
    kept = table[(table["train_set"] == training_set) & (table["global_bs"] > 1)].reset_index(drop=True)
    columns = {"N": kept["params"], "B": kept["global_bs"], "loss": kept["loss_c4"]}
    updates = kept["tokens"] / (kept["global_bs"] * LONG_SEQ_LEN)
    return _ungridded(pd.DataFrame({**columns, "K": updates}), LONG_SEQ_LEN)


def gemstone_runs(table: pd.DataFrame) -> pd.DataFrame:
    """Checkpoints of 22 models, all with 2,048 sequences a step; loss on FineWeb-Edu."""
    columns = {"N": table["params"], "B": 2048.0, "K": table["step"], "loss": table["loss_fineweb_edu"]}
    return _ungridded(pd.DataFrame(columns), LONG_SEQ_LEN)


def scan_bench_runs(table: pd.DataFrame) -> pd.DataFrame:
    """The last checkpoint of each configuration, with the seven that lack their tokens left out.

    A batch holds 4 * micro_batch_size * grad_accumulation_steps sequences; each run has a learning rate, weight decay
    and betas of its own.
    """
    last = table.sort_values("step_index").groupby("config_id").tail(1)
    last = last[last["tokens_so_far"].notna()]
    batch = 4 * last["micro_batch_size"] * last["grad_accumulation_steps"]
    updates = last["tokens_so_far"] / (batch * LONG_SEQ_LEN)
    columns = {"N": last["n_params"], "B": batch, "K": updates, "loss": last["valid_loss"]}
    return _ungridded(pd.DataFrame(columns).reset_index(drop=True), LONG_SEQ_LEN)


def user_runs(table: pd.DataFrame, where: str = "the file") -> pd.DataFrame:
    """A user's table with N, B, K and loss: budgets to the nearest doubling, the largest ones held out."""
    table = unfiltered(table)
    columns = ["N", "B", "K", "loss"]
    values = pd.DataFrame(read_columns(table, columns, where), columns=columns, index=table.index)
    values["level"] = doublings(values, where)
    mean = values.groupby(["N", "B", "K", "level"], as_index=False)["loss"].mean()
    if len(mean) < 12:
        raise InputError(f"{where}: {len(mean)} configurations, at least 12 are needed to fit and to hold out")
    runs = _held_out_by_budget(designed(mean, 1, mean["level"] - mean["level"].min()))
    if runs["fitted"].sum() < LEAST_FITTED:
        raise InputError(
            f"{where}: {runs['fitted'].sum()} configurations lie below the {HELD_OUT_ABOVE} quantile of compute, "
            f"at least {LEAST_FITTED} are needed there to fit"
        )
    return runs


def unfiltered(table: pd.DataFrame) -> pd.DataFrame:
    """A user's rows without those that a column `filtered` marks as true."""
    return table[table["filtered"].astype(str).str.lower() != "true"] if "filtered" in table.columns else table


def doublings(runs: pd.DataFrame, where: str) -> pd.Series:
    """The nearest power of two to N * B * K, as its exponent; `InputError` where the product overflows."""
    exponents = np.log2(runs["N"]) + np.log2(runs["B"]) + np.log2(runs["K"])
    if (exponents > MOST_DOUBLINGS).any():
        row = exponents.idxmax()
        raise InputError(f"{where}: N * B * K is beyond any training run (2^{exponents[row]:.0f}) in row {row}")
    return exponents.round().astype(int)


def designed(table: pd.DataFrame, seq_len: int, budget: pd.Series) -> pd.DataFrame:
    """Runs on a grid: at each N and D the batch with the lowest loss is the one that compares sizes."""
    runs = _with_compute(table, seq_len)
    runs["budget"] = budget.to_numpy()
    label = runs["N"].map("{:.0f}".format) + " @ 2^" + np.log2(runs["D"]).round(1).map("{:g}".format)
    sweeps = runs.groupby(label)["loss"]
    runs["sweep"] = np.where(sweeps.transform("size") > 1, label, "")
    runs["isoflop"] = runs["loss"] == sweeps.transform("min")
    return runs


def _ungridded(table: pd.DataFrame, seq_len: int) -> pd.DataFrame:
    """Runs without a design: every run may compare sizes, no batch sweeps, the largest compute held out."""
    runs = _with_compute(table, seq_len)
    runs["budget"] = np.round(np.log2(runs["C"])).astype(int)
    runs["sweep"], runs["isoflop"] = "", True
    runs["fitted"], _ = split_above(runs["C"], HELD_OUT_ABOVE)
    return runs


def _held_out_by_budget(runs: pd.DataFrame) -> pd.DataFrame:
    """Fit the budgets below the quantile; a budget is never split, whatever its runs' exact FLOP."""
    runs["fitted"], _ = split_above(2.0 ** runs["budget"], HELD_OUT_ABOVE)
    return runs


def _with_compute(table: pd.DataFrame, seq_len: int) -> pd.DataFrame:
    runs = table[["N", "B", "K", "loss"]].astype(float).reset_index(drop=True)
    runs["D"] = runs["B"] * runs["K"] * seq_len
    runs["C"] = 6 * runs["N"] * runs["D"]
    return runs
