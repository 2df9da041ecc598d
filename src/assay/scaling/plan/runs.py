"""A user's table as the laws are fitted to it: repeats joined, the sensible runs marked, what is independent named.

A table that can't fix an allocation is refused here, with the runs that would.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path

import numpy as np
import pandas as pd

from assay.errors import InputError
from assay.scaling.tables import COLUMNS, read_run_table, read_table

__all__ = ["Runs", "prepare_runs", "thinned"]

LEAST_RUNS = 8  # two more than Chinchilla's law needs to be fitted: some are held out
LEAST_SIZES = 3
LEAST_COMPUTE_SPAN = 10.0
LEAST_RATIO_SPAN = 2.0  # of tokens a parameter: less, and size can't be told from tokens
LEAST_TOKENS = 0.01  # a parameter, in half of the runs: fewer are millions, billions or sequences
LEAST_UNITS = 6  # groups that a bootstrap can draw
ONE_CURRENCY = 1.5  # spread of C / (6 N D) up to which a table's own FLOP are 6 N D times one number


@dataclass(frozen=True)
class Runs:
    """Runs under the names of `assay.scaling.tables`.

    Attributes
    ----------
    frame : DataFrame
        One row a run or checkpoint: N, D, C (= 6 N D), loss, and B, K and others where the table has them.
        `unit` is what a bootstrap draws; `run` what is held out whole; `budget` the nearest power of two to the
        largest C of the row's run, as its exponent; `sized` whether no other batch did better at this N and D.
    notes : list of str
    seq_len : float or None
        Tokens a sequence, where the table or the user says it.
    flop_ratio : float
        The table's own FLOP over 6 N D; 1 where it names none.
    where : str
        What errors call the table.
    units_are : str
        What a unit is, in one word: run, group or row.
    """

    frame: pd.DataFrame
    notes: list[str] = field(default_factory=list)
    seq_len: float | None = None
    flop_ratio: float = 1.0
    where: str = "the runs"
    units_are: str = "row"


def prepare_runs(
    source: Path | pd.DataFrame, *, columns: Mapping[str, str] | None = None, seq_len: float | None = None,
    vocab: int | None = None, best_within: float | None = None, extra: tuple[str, ...] = (),
) -> Runs:
    """Read and check a table; `extra` names numeric columns that some law reads besides the usual ones.

    Raises `InputError` where columns are missing, numbers are wrong, or the runs can't fix an allocation.
    """
    if not isinstance(source, (Path, pd.DataFrame)):
        raise InputError(f"runs must be a DataFrame or the path of a CSV file, got {type(source).__name__}")
    _check_settings(columns, seq_len=seq_len, vocab=vocab, best_within=best_within)
    table = read_table(source) if isinstance(source, Path) else source
    where = source.name if isinstance(source, Path) else "the runs"
    read = read_run_table(
        table.reset_index(drop=True), ("N", "D", "loss"), columns=columns, seq_len=seq_len, vocab=vocab, where=where
    )
    runs, notes = read.runs.copy(), list(read.notes)
    for name in sorted((set(extra) - set(COLUMNS)) & set(table.columns)):
        runs[name] = pd.to_numeric(table[name].reset_index(drop=True), errors="coerce").loc[runs.index]
    ratio = _flop_ratio(runs, "C" in read.named and "D" in read.named, notes)
    runs["C"] = 6 * runs["N"] * runs["D"]
    runs = _without_repeats(runs, notes)
    if best_within is not None:
        runs = _best_of_cells(runs, best_within, notes)
    runs = runs.sort_values("C", kind="stable", ignore_index=True)
    _check_allocatable(runs, where)
    runs["sized"] = _sized(runs, notes)
    units_are = _set_units(runs, notes)
    largest = runs.groupby("run")["C"].transform("max")
    runs["budget"] = np.log2(largest).round().astype(int)
    length = float(runs["seq_len"].median()) if "seq_len" in runs else None
    return Runs(runs, notes, length, ratio, where, units_are)


def _check_settings(columns: Mapping[str, str] | None, **numbers: float | None) -> None:
    if columns is not None and not (isinstance(columns, Mapping) and all(isinstance(c, str) for c in columns.values())):
        raise InputError(f"columns must map a name here to a column of the table, as N to params, got {columns!r}")
    if columns and (unknown := [name for name in columns if name not in COLUMNS]):
        raise InputError(f"columns: there is no column {unknown[0]!r} here; known: {', '.join(COLUMNS)}")
    for name, value in numbers.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
            raise InputError(f"{name} must be a number, got {value!r}")
    if (factor := numbers["best_within"]) is not None and not (np.isfinite(factor) and factor > 1):
        raise InputError(f"best_within must be a factor above 1, got {factor}")


def thinned(frame: pd.DataFrame, most: int) -> pd.DataFrame:
    """At most so many rows, evenly through the order of compute.

    >>> thinned(pd.DataFrame({"C": [4.0, 1.0, 3.0, 2.0, 5.0]}), 3)["C"].tolist()
    [1.0, 3.0, 5.0]
    """
    if len(frame) <= most:
        return frame
    ordered = frame.sort_values("C", kind="stable")
    return ordered.iloc[np.linspace(0, len(ordered) - 1, most).round().astype(int)]


def _flop_ratio(runs: pd.DataFrame, states_both: bool, notes: list[str]) -> float:
    """How many of the table's FLOP make one of 6 N D, where they are one currency."""
    if not states_both:
        return 1.0
    ratios = runs["C"] / (6 * runs["N"] * runs["D"])
    low, middle, high = np.quantile(ratios, [0.05, 0.5, 0.95])
    if high / low > ONE_CURRENCY:
        notes.append(
            f"The table's FLOP are {low:.3g} to {high:.3g} times 6 N D, no fixed factor: the budget is read as 6 N D."
        )
        return 1.0
    if abs(np.log(middle)) < np.log(1.05):
        return 1.0
    notes.append(
        f"The table's FLOP are {middle:.3g} times 6 N D in the median: the budget is read as the table counts, "
        f"and divided by that."
    )
    return float(middle)


def _without_repeats(runs: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Runs that differ in nothing but the seed are one, with their geometric mean; of several rates the best counts."""
    keys = [name for name in runs.columns if name not in ("loss", "date", "score", "C", "lr")]
    settings = keys + (["lr"] if "lr" in runs else [])
    mean = runs.assign(loss=np.log(runs["loss"])).groupby(settings, as_index=False, dropna=False, sort=False)
    joined = mean.agg({"loss": "mean", "C": "first"}).assign(loss=lambda t: np.exp(t["loss"]))
    if len(joined) < len(runs):
        notes.append(f"{len(runs)} rows are {len(joined)} settings; repeats of one setting count by their mean loss.")
    if "lr" not in joined:
        return joined
    best = joined.loc[joined.groupby(keys, dropna=False, sort=False)["loss"].idxmin()]
    if len(best) < len(joined):
        worse = len(joined) - len(best)
        notes.append(f"{worse} settings differ from a better one in the learning rate alone: left out.")
    return best.reset_index(drop=True)


def _best_of_cells(runs: pd.DataFrame, factor: float, notes: list[str]) -> pd.DataFrame:
    """The lowest loss in each cell of a grid over size and tokens."""
    cells = [np.floor(np.log(runs[name]) / np.log(factor)) for name in ("N", "D")]
    best = runs.loc[runs.groupby(cells)["loss"].idxmin()]
    notes.append(
        f"{len(best)} of {len(runs)} runs are the best within a factor {factor:g} in size and in tokens; the others "
        f"are left out."
    )
    return best


def _check_allocatable(runs: pd.DataFrame, where: str) -> None:
    """Refuse what can't say how a budget is best divided, with what would."""
    sizes, tokens = runs["N"].nunique(), runs["D"].nunique()
    if (middle := (runs["D"] / runs["N"]).median()) < LEAST_TOKENS:
        raise InputError(
            f"{where}: D is {_span(runs['D'])}, {middle:.2g} tokens a parameter in the middle run: are these "
            f"millions, billions or sequences? Tokens are counted one by one; a factor helps, as in "
            f"D=COLUMN*1e9"
        )
    if sizes < LEAST_SIZES:
        have = "one model size" if sizes == 1 else f"{sizes} model sizes"
        raise InputError(
            f"{where}: {have} ({_span(runs['N'])} parameters): an allocation needs runs of at least {LEAST_SIZES} sizes"
        )
    if tokens == 1:
        raise InputError(
            f"{where}: all runs saw {runs['D'].iloc[0]:.3g} tokens: an allocation needs each of some sizes trained to "
            f"two or more token counts"
        )
    off_ray = _off_ray(runs)
    if off_ray < LEAST_RATIO_SPAN:
        raise InputError(
            f"{where}: tokens follow from the size (D is about N to the power {_ray(runs)[0]:.2g}, within a factor "
            f"{off_ray:.3g}), so what more tokens and what more parameters give can't be told apart: an allocation "
            f"needs runs of one size at token counts a factor {LEAST_RATIO_SPAN:g} or more apart"
        )
    span = runs["C"].max() / runs["C"].min()
    if span < LEAST_COMPUTE_SPAN:
        raise InputError(
            f"{where}: compute spans a factor {span:.3g} ({_span(runs['C'])} FLOP): an allocation needs at least "
            f"{LEAST_COMPUTE_SPAN:g}, so add smaller or larger runs"
        )
    if len(runs) < LEAST_RUNS:
        raise InputError(
            f"{where}: {len(runs)} different runs: at least {LEAST_RUNS} are needed to fit and to hold out"
        )


def _ray(runs: pd.DataFrame) -> tuple[float, float]:
    """Slope and intercept of log tokens on log size."""
    slope, intercept = np.polyfit(np.log(runs["N"]), np.log(runs["D"]), 1)
    return float(slope), float(intercept)


def _off_ray(runs: pd.DataFrame) -> float:
    """Factor between the most and the fewest tokens, beside what the size foretells."""
    slope, intercept = _ray(runs)
    return float(np.exp(np.ptp(np.log(runs["D"]) - slope * np.log(runs["N"]) - intercept)))


def _sized(runs: pd.DataFrame, notes: list[str]) -> pd.Series:
    """Whether the row has the lowest loss of the batch sizes tried at its size and tokens."""
    everyone = pd.Series(True, index=runs.index)
    if "B" not in runs or runs["B"].nunique() == 1:
        return everyone
    cell = [runs["N"], np.log2(runs["D"]).round(1)] + ([runs["group"]] if "group" in runs else [])
    sized = runs["loss"] == runs.groupby(cell, dropna=False)["loss"].transform("min")
    if sized.all():
        return everyone
    notes.append(
        f"{(~sized).sum()} runs have a worse batch size than another run of equal size and tokens: laws that read no "
        f"batch size are not fitted to them, and no law is judged on them."
    )
    return sized


def _set_units(runs: pd.DataFrame, notes: list[str]) -> str:
    """Set the columns `run` (held out whole) and `unit` (drawn whole)."""
    runs["run"] = runs["unit"] = np.arange(len(runs))
    if "group" not in runs or runs["group"].nunique(dropna=False) == 1:
        return "row"
    labels = runs["group"].astype(str)
    groups = runs.groupby(labels)
    codes = pd.factorize(labels)[0]
    if groups["N"].nunique().max() == 1 and groups["D"].nunique().max() > 1:
        runs["run"] = codes  # one size each, several token counts: the checkpoints of a run
        if groups.ngroups >= LEAST_UNITS:
            runs["unit"] = codes
            notes.append(f"{groups.ngroups} runs with {len(runs)} checkpoints: a run is held out and drawn whole.")
            return "run"
    elif groups.ngroups >= LEAST_UNITS:
        runs["unit"] = codes
        return "group"
    notes.append(
        f"{groups.ngroups} groups are too few to be drawn, so intervals take rows for independent. Where groups are "
        f"training sets or recipes, plan for each alone."
    )
    return "row"


def _span(values: pd.Series) -> str:
    low, high = values.min(), values.max()
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
