"""One plan a rung, and how each law of it fared: the table that every arm of the study is read from."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from assay.errors import InputError
from assay.scaling.plan.planning import Plan, plan_run
from assay.scaling.plan.rungs import Rung, rungs

__all__ = ["ARMS", "climb", "pick"]

SHUFFLED_STARTS, SHUFFLED_REFITS = 1, 2  # losses without order have no sharp minimum that more starts would find
ONE_BUDGET = 2.5  # runs within such a factor of compute are compared as one budget


def climb(dataset: str, options: Mapping[str, Any], shuffled: bool) -> pd.DataFrame:
    """One row a rung and law: rank, errors, allocation, interval, regret."""
    rows: list[dict[str, Any]] = []
    starts, refits = options["starts"], options["refits"]
    if shuffled:
        starts, refits = min(starts, SHUFFLED_STARTS), min(refits, SHUFFLED_REFITS)
    for number, rung in enumerate(rungs(dataset, options["subset"], options["rungs"], options["width"])):
        known = rung.known
        if shuffled:
            rng = np.random.default_rng(zlib.crc32(rung.label.encode()))
            known = known.assign(loss=rng.permutation(known["loss"]))
        best = rung.then.loc[rung.then["loss"].idxmin()]
        try:
            plan = plan_run(
                known, float(best["C"]), holdout=options["holdout"], laws=options["laws"],
                n_starts=starts, n_refits=refits,
            )
        except InputError as error:
            rows.append({"unit": rung.label, "rung": number, "law": "", "refused": str(error)})
            continue
        rows += [{"unit": rung.label, "rung": number, **row} for row in _rows(rung, plan, best)]
    return pd.DataFrame(rows)


def _rows(rung: Rung, plan: Plan, best: pd.Series) -> list[dict[str, Any]]:
    judged = rung.then[_sensible(rung.then)]
    expected = plan.allocation.loc["loss"]
    shared = {
        "refused": "", "best": best["loss"], "chosen": plan.law, "low": expected["low"],
        "high": expected["high"], "lowest": expected["lowest"], "highest": expected["highest"],
        "spread": float(np.log(plan.disagreement.loc["loss", "ratio"])),
    }
    found = []
    for rank, (name, row) in enumerate(plan.laws.iterrows()):
        law = plan.fitted[str(name)]
        if not set(law.columns) <= {*judged.columns}:
            continue
        error = np.abs(np.log(law.predict(judged[list(law.columns)]) / judged["loss"].to_numpy()))
        found.append({
            **shared, "law": name, "rank": rank, "inner": row["error"], "fitted": row["fitted_error"],
            "error": float(error.mean()), "N": row["N"], "expected": row["loss"], "regret": _regret(judged, row["N"]),
        })
    return found


def _sensible(runs: pd.DataFrame) -> pd.Series:
    """The best batch at each size and number of tokens."""
    return runs["loss"] == runs.groupby([runs["N"], np.log2(runs["D"]).round(1)])["loss"].transform("min")


def _regret(judged: pd.DataFrame, size: float) -> float:
    """Log of the loss of the measured run nearest the chosen size, over the best; NaN where sizes can't be compared."""
    one_budget = judged["C"].max() / judged["C"].min() < ONE_BUDGET
    if np.isnan(size) or judged["N"].nunique() < 2 or not one_budget:
        return float("nan")
    distance = np.abs(np.log(judged["N"] / size))
    nearest = judged.loc[distance == distance.min(), "loss"].min()
    return float(np.log(nearest / judged["loss"].min()))


def pick(arm: str, table: pd.DataFrame) -> pd.DataFrame:
    """The arm's row of each rung, in their order."""
    picked = ARMS[arm](table[table["law"] != ""]).drop_duplicates("rung").sort_values("rung", ignore_index=True)
    if arm == "zero-width":
        return picked.assign(lowest=picked["expected"], highest=picked["expected"])
    return picked


def _first(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["law"] == table["chosen"]]


def _by(column: str, ascending: bool = True) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Of the laws that choose a size, as plan's is, the first by a column."""

    def choose(table: pd.DataFrame) -> pd.DataFrame:
        allocating = table[table["N"].notna()]
        return allocating.sort_values(["rung", column], ascending=[True, ascending], kind="stable")

    return choose


ARMS = {
    "plan": _first,
    "chinchilla": lambda table: table[table["law"] == "chinchilla"],
    "least-fitted": _by("fitted"),
    "worst-ranked": _by("rank", ascending=False),
    "shuffled": _first, "zero-width": _first,
}
