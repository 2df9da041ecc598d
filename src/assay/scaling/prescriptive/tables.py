"""The tables of models that the study reads, in one form, and how each is split into what is fitted and tested."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = [
    "BASES", "CLIP", "DIGITS", "LANGUAGE", "LARGE", "LEADERBOARD", "PERIODS", "SLICE", "TITLES", "Table", "clip_finals",
    "read_table", "splits", "with_larger",
]

CLIP, DIGITS, SLICE = "scan-bench-clip", "digits-mlp-runs", "prescriptive-smoke"
LEADERBOARD = "prescriptive-leaderboard"
LANGUAGE, BASES = "scan-bench-llm", "prescriptive-bases"
LARGE = {CLIP: "scan-bench-clip-large", LANGUAGE: "scan-bench-llm-large"}  # runs beyond the largest compute of a table
PERIODS: dict[str, tuple[str, list[Any]]] = {
    DIGITS: ("period", [1, 2, 3, 4]),
    LEADERBOARD: ("last_modified", ["2024-06-30", "2024-12-31", "2025-06-30", "2025-12-31"]),
}
TITLES = {
    CLIP: "the final CLIP models", DIGITS: "our digit networks", LEADERBOARD: "the authors' leaderboard",
    SLICE: "a slice of our digit networks", LANGUAGE: "the final language models", BASES: "public base models",
}
LEADERBOARD_TASKS = ("ifeval", "bbh", "math_lvl5", "gpqa", "musr", "mmlu_pro")
BASES_TASKS = ("MMLU", "ARC-C", "HellaSwag", "Winograd", "TruthfulQA", "GSM8K", "XWinograd", "HumanEval")
NEW_YEAR = "2025-01-01"  # leaderboard models from here on are tested
LAST_FITTED_PERIOD = 2  # of the digit networks' four
EIGHTHS = 8
# A CLIP task counts where its 0.98 quantile rises by so much from the lowest to the highest eighth of compute.
RISE = 0.2
NEXT_TOKEN = "next token"  # exp(-loss), the geometric mean of the held-out tokens' probabilities: a score in [0, 1]


@dataclass(frozen=True)
class Table:
    """Models with their compute and scores.

    `unit` labels what is independent, `cost` is the number of parameters, `later` marks the models of the later periods
    (None where the table has no order in time).
    """

    flops: NDArray[np.float64]
    scores: pd.DataFrame
    unit: NDArray[Any]
    cost: NDArray[np.float64]
    later: NDArray[np.bool_] | None

    @property
    def z(self) -> NDArray[np.float64]:
        """Log10 FLOP."""
        return np.log10(self.flops)


def read_table(data: Any, name: str) -> Table:
    """A data set in the study's form."""
    if name in (DIGITS, SLICE):
        return Table(
            data["flops"].to_numpy(float), data[["accuracy"]], data["family"].to_numpy(str),
            data["params"].to_numpy(float), (data["period"] > LAST_FITTED_PERIOD).to_numpy(),
        )
    if name == LEADERBOARD:
        return Table(
            data["flops"].to_numpy(float), data[list(LEADERBOARD_TASKS)], data["mapped_base_model"].to_numpy(str),
            data["num_params_B"].to_numpy(float), (data["last_modified"] >= NEW_YEAR).to_numpy(),
        )
    if name == BASES:
        kept = data.dropna(subset=["FLOPs (1E21)"])
        return Table(
            1e21 * kept["FLOPs (1E21)"].to_numpy(float), kept[list(BASES_TASKS)].reset_index(drop=True),
            kept["Model Family"].to_numpy(str), kept["Model Size (B)"].to_numpy(float), None,
        )
    if name == LANGUAGE:
        return _language_finals(data)
    return _rising(_clip_table(data))


def with_larger(data: Any, larger: Any, name: str) -> Table:
    """A table's models, and as the later ones larger runs that it does not hold, on the table's tasks."""
    known = read_table(data, name)
    if name == LANGUAGE:
        new = _language_finals(larger)
        known = replace(known, scores=known.scores[[NEXT_TOKEN]])
    else:
        new = _clip_table(larger)
    scores = pd.concat([known.scores, new.scores[list(known.scores)]], ignore_index=True)
    later = np.arange(len(scores)) >= len(known.flops)
    unit = np.concatenate([known.unit.astype(str), np.char.add("large ", new.unit.astype(str))])
    return Table(
        np.concatenate([known.flops, new.flops]), scores, unit, np.concatenate([known.cost, new.cost]), later
    )



def clip_finals(path: Path) -> pd.DataFrame:
    """The last checkpoint of each CLIP run that was evaluated: run, flops, params and the scores by benchmark."""
    table = pd.read_csv(path, low_memory=False)
    last = table.sort_values(["config_id", "epoch"]).groupby("config_id").tail(1)
    names = list(table.columns[list(table.columns).index("train_duration(s)") + 1:])
    last = last.dropna(subset=names).reset_index(drop=True)
    return pd.concat([
        pd.DataFrame({"run": last["config_id"], "flops": 1e9 * last["compute_seen"], "params": 1e6 * last["mparams"]}),
        last[names].clip(0.0, 1.0).rename(columns=_short),
    ], axis=1)


def _clip_table(data: pd.DataFrame) -> Table:
    return Table(
        data["flops"].to_numpy(float), data.drop(columns=["run", "flops", "params"]), data["run"].to_numpy(str),
        data["params"].to_numpy(float), None,
    )


def _short(name: str) -> str:
    """A benchmark's name without its metric."""
    endings = (
        "_mean_per_class_recall", "_image_text_retrieval_mean_recall@1", "_acc_top5_wg", "_acc_race_avg", "_acc_wg",
        "_acc1", "_jaccard_score_10-12",
    )
    for ending in endings:
        name = name.removesuffix(ending)
    return name.removeprefix("vtab_").removeprefix("retrieval_").removeprefix("fairness_")


def _language_finals(data: pd.DataFrame) -> Table:
    last = data.sort_values(["config_id", "step_index"]).groupby("config_id").tail(1)
    names = [c for c in data if c.startswith("downstream_") and c not in ("downstream_tasks", "downstream_Core_v2")]
    scores = last[names].dropna(axis=1).reset_index(drop=True).rename(columns=lambda c: c.removeprefix("downstream_"))
    return Table(
        last["flops_so_far"].to_numpy(float), scores.assign(**{NEXT_TOKEN: np.exp(-last["test_loss"].to_numpy(float))}),
        last["config_id"].to_numpy(str), last["n_params"].to_numpy(float), None,
    )


def _rising(table: Table) -> Table:
    """The tasks whose 0.98 quantile rises by RISE from the lowest to the highest eighth of compute, steepest first."""
    eighth = pd.qcut(table.z, EIGHTHS, labels=False)
    quantiles = table.scores.groupby(eighth).quantile(0.98)
    rise = quantiles.iloc[-1] - quantiles.iloc[0]
    kept = rise[rise >= RISE].sort_values(ascending=False, kind="stable").index
    return replace(table, scores=table.scores[kept])


def splits(table: Table, seed: int = 0) -> list[tuple[NDArray[np.bool_], NDArray[np.bool_]]]:
    """Masks of what is fitted and tested: the earlier and the later models; without time two halves, in turn."""
    if table.later is not None:
        return [(~table.later, table.later)]
    labels = np.unique(table.unit)
    first = np.isin(table.unit, np.random.default_rng(seed).permutation(labels)[: len(labels) // 2])
    return [(first, ~first), (~first, first)]
