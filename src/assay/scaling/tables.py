"""A user's table of training runs in one form, whatever its columns are called, with what is wrong with it said.

One row is one finished run or one checkpoint. The columns that the laws of this area read:

    N           parameters                      lr          learning rate
    D           tokens                          precision   bits, or the name of a number format
    B           sequences a batch               date        when the run was finished or released
    K           updates                         group       what runs share: a family, a recipe, a seed
    C           FLOP                            seq_len     tokens a sequence
    loss        nats a token                    score       a benchmark's score, between 0 and 1

A column goes by its name here, by one of the usual other names (`params`, `tokens`, `steps` ...), or by what the user
says (`columns`). What can be computed is: D from B, K and the sequence length, C from N and D. Nothing is guessed:
where a number can't be what its column says, the error says what it may be instead.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path

import numpy as np
import pandas as pd

from assay.errors import InputError, nearest

__all__ = ["COLUMNS", "RunTable", "parse_columns", "read_dates", "read_run_table", "read_table"]

COLUMNS = {
    "N": "parameters", "D": "tokens", "B": "sequences a batch", "K": "updates", "C": "FLOP", "loss": "nats a token",
    "score": "a score between 0 and 1", "lr": "learning rate", "precision": "bits or a number format",
    "date": "when the run was finished", "group": "what runs share", "seq_len": "tokens a sequence",
}
ALSO_CALLED = {
    "N": ("params", "n_params", "num_params", "parameters", "n_parameters", "num_parameters", "model_size"),
    "D": ("tokens", "n_tokens", "num_tokens", "tokens_so_far", "training_tokens", "train_tokens"),
    "B": ("batch", "batch_size", "global_batch_size", "global_bs"),
    "K": ("steps", "step", "updates", "n_steps", "num_steps", "iterations", "training_steps"),
    "C": ("flops", "flop", "compute", "training_flops", "train_flops", "total_flops"),
    "loss": ("final_loss", "val_loss", "valid_loss", "validation_loss", "test_loss", "eval_loss", "heldout_loss"),
    "score": ("accuracy", "acc"),
    "lr": ("rate", "learning_rate", "max_lr", "peak_lr"),
    "precision": ("bits", "dtype", "number_format"),
    "date": ("last_modified", "release_date", "released", "finished"),
    "group": ("family", "base_model", "recipe", "run", "model", "config_id"),
    "seq_len": ("sequence_length", "context", "context_length"),
}
POSITIVE = ("N", "D", "B", "K", "C", "lr", "seq_len")
TEXT = ("date", "group", "precision")

FEWEST_PARAMETERS = 1e3  # less is a size in millions or billions
MOST_TOKENS = 1e16  # more is FLOP
MOST_TOKENS_A_PARAMETER = 1e6
MIXED = 1e3  # rows that disagree by so much with the others are in another unit
LARGEST_LOSS = np.log(1e6)  # nats: guessing among a million tokens, more than any vocabulary has
TOLERANCE = 0.02  # relative, for D = B * K * seq_len


@dataclass(frozen=True)
class RunTable:
    """A table of runs under the names of this module.

    Attributes
    ----------
    runs : DataFrame
        The usable rows; the index is the row of the file, from 0.
    notes : list of str
        What was left out, computed or looks odd, for the user to read.
    named : dict of str to str
        Column here -> column of the file.
    where : str
        The file's name.
    """

    runs: pd.DataFrame
    notes: list[str] = field(default_factory=list)
    named: dict[str, str] = field(default_factory=dict)
    where: str = "the table"

    def has(self, *columns: str) -> bool:
        """Whether the runs have all of these columns."""
        return all(name in self.runs.columns for name in columns)

    def lacks(self, columns: Iterable[str]) -> str:
        """Which of the columns are missing, in words, with the file's columns that no name here was found for."""
        missing = [name for name in columns if name not in self.runs.columns]
        if not missing:
            return ""
        words = [f"{name} ({COLUMNS[name]})" for name in missing]
        listed = " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
        return f"{self.where} lacks {listed}"


def read_table(path: Path) -> pd.DataFrame:
    """A user's CSV file as a frame; `InputError` names the file when it can't be read as one."""
    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    try:
        with warnings.catch_warnings():
            # Rows longer than the header would otherwise shift by a column, or lose their end.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return pd.read_csv(path, index_col=False)
    except OSError as error:
        raise InputError(f"{path}: can't be read ({error.strerror})") from None
    except (
        pd.errors.ParserError, pd.errors.ParserWarning, pd.errors.EmptyDataError, UnicodeDecodeError, OverflowError
    ) as error:
        raise InputError(f"{path}: not a CSV table with a header ({' '.join(str(error).split())})") from None


def read_run_table(
    source: Path | pd.DataFrame, needs: Sequence[str] = (), *, columns: Mapping[str, str] | None = None,
    seq_len: float | None = None, vocab: int | None = None, where: str = "the table",
) -> RunTable:
    """Read, name and check a table of runs.

    Parameters
    ----------
    source : Path or DataFrame
        A CSV file with a header, or a frame (left as it is).
    needs : sequence of str
        Columns that must be there in the end.
    columns : mapping of str to str, optional
        Column here -> column of the file, the latter with an optional factor: `{"N": "size_in_millions*1e6"}`.
    seq_len : float, optional
        Tokens a sequence, for D = B * K * seq_len.
    vocab : int, optional
        Tokens of the vocabulary: a run with a loss above its logarithm has learnt nothing.
    where : str
        What errors call a frame; a file goes by its name.

    Returns
    -------
    RunTable

    Raises
    ------
    InputError
        A needed column is missing, a value is no number or not positive (with its row), or numbers contradict the
        column that they stand in.
    """
    where = source.name if isinstance(source, Path) else where
    table = read_table(source) if isinstance(source, Path) else source
    if not len(table):
        raise InputError(f"{where} holds no runs")
    _check_settings(columns, seq_len, vocab)
    named, factors = _names(table, columns or {}, where)
    notes = [
        f"{name} is empty in {table[named.pop(name)].isna().sum()} rows: the column is left out."
        for name in POSITIVE if name in named and name not in needs and name not in (columns or {})
        and table[named[name]].isna().any()
    ]
    runs = pd.DataFrame(
        {name: _values(table[column], name, factors.get(name, 1.0), where) for name, column in named.items()}
    ).set_axis(table.index, axis=0)
    if "loss" in runs:
        runs = _finished(runs, vocab, where, notes)
    _check_units(runs, where)
    runs = _complete(runs, seq_len, where, notes)
    runs = _without_duplicates(runs, notes)
    read = RunTable(runs, notes, named, where)
    if missing := read.lacks(needs):
        raise InputError(f"{missing}; {_offer(table, named, [n for n in needs if n not in runs])}")
    alone = [name for name in ("N", "B") if name in needs and runs[name].nunique() == 1]
    notes += [f"{name} is {runs[name].iloc[0]:g} in all runs: what depends on it can't be fitted." for name in alone]
    return read


def parse_columns(text: str) -> dict[str, str]:
    """`"N=params,D=tokens_b*1e9"` as a mapping; an unknown name is an `InputError`.

    >>> parse_columns("N=params, D=tokens_b*1e9")
    {'N': 'params', 'D': 'tokens_b*1e9'}
    """
    found: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, equals, column = (part.strip() for part in pair.partition("="))
        if not equals or not column:
            raise InputError(f"columns are named as N=COLUMN,D=COLUMN, got {pair!r}")
        if name not in COLUMNS:
            raise InputError(f"there is no column {name!r}{nearest(name, list(COLUMNS))}; known: {', '.join(COLUMNS)}")
        if name in found:
            raise InputError(f"the column {name} is named twice")
        found[name] = column
    return found


def read_dates(values: pd.Series, where: str) -> pd.Series:
    """Dates as `datetime64[ns]`; `InputError` lists the first offenders."""
    parsed = pd.to_datetime(values.astype(str), errors="coerce", format="mixed", utc=True)
    bad = values[parsed.isna()]
    if len(bad):
        first = ", ".join(f"{value!r} in row {row}" for row, value in bad.head(3).items())
        raise InputError(f"{where}: {len(bad)} of {len(values)} dates can't be read: {first}")
    return parsed.dt.tz_localize(None)


def _check_settings(columns: object, seq_len: object, vocab: object) -> None:
    if columns is not None and not isinstance(columns, Mapping):
        raise InputError(f"columns must be a mapping such as {{'N': 'params'}}, got {columns!r}")
    for name, value in (("seq_len", seq_len), ("vocab", vocab)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
            raise InputError(f"{name} must be a number, got {value!r}")


def _names(table: pd.DataFrame, given: Mapping[str, str], where: str) -> tuple[dict[str, str], dict[str, float]]:
    """Column here -> column of the file, and the factors of those that have one."""
    labels = [str(label) for label in table.columns]
    repeated = {label for label in labels if labels.count(label) > 1}
    named: dict[str, str] = {}
    factors: dict[str, float] = {}
    for name, wanted in given.items():
        column, star, factor = wanted.rpartition("*")
        column, factor = (column.strip(), factor.strip()) if star and wanted not in labels else (wanted, "1")
        if column not in labels:
            raise InputError(f"{where} has no column {column!r}{nearest(column, labels)}; its columns: {_some(labels)}")
        named[name] = column
        try:
            factors[name] = float(factor)
        except ValueError:
            raise InputError(f"{name}={wanted}: {factor!r} is no number to multiply {column} by") from None
    simple = {re.sub(r"[\s-]+", "_", label.strip().lower()): label for label in labels}
    for name in COLUMNS:
        if name in named:
            continue
        spelled = [name] if name in labels else [simple[w] for w in (name.lower(), *ALSO_CALLED[name]) if w in simple]
        free = [label for label in dict.fromkeys(spelled) if label not in named.values()]
        if name == "group" and len(free) > 1:  # what all runs share tells them not apart
            free = [label for label in free if label in repeated or table[label].nunique() > 1] or free
        if free:
            named[name] = free[0]
    for name, label in named.items():
        if label in repeated:
            raise InputError(f"{where} has more than one column {label}, which {name} is read from")
    return named, factors


def _values(column: pd.Series, name: str, factor: float, where: str) -> pd.Series:
    if name in TEXT:
        return column.reset_index(drop=True)
    numbers = pd.to_numeric(column, errors="coerce").astype(float)
    bad = numbers.isna() & column.notna() & ~column.astype(str).str.strip().str.lower().isin(("nan", "inf", "-inf"))
    if bad.any():
        row = bad.idxmax()
        raise InputError(f"{where}: {name} must be a number, got {column[row]!r} in row {row}")
    if name in POSITIVE:
        bad = ~np.isfinite(numbers) | (numbers <= 0)
        if bad.any():
            row = bad.idxmax()
            raise InputError(f"{where}: {name} must be positive and finite, got {column[row]!s} in row {row}")
    return (numbers * factor).reset_index(drop=True)


def _finished(runs: pd.DataFrame, vocab: int | None, where: str, notes: list[str]) -> pd.DataFrame:
    """The runs that ended in a usable loss; the others are named."""
    if vocab is not None and vocab < 2:
        raise InputError(f"a vocabulary has at least 2 tokens, got {vocab}")
    ceiling = float(np.log(vocab)) if vocab is not None else LARGEST_LOSS
    for words, is_lost in (
        ("without a finite loss:", lambda loss: ~np.isfinite(loss)),
        (f"with a loss above {ceiling:.3g} nats, no better than guessing:", lambda loss: loss > ceiling),
    ):
        lost = is_lost(runs["loss"])
        if lost.any():
            notes.append(f"{_runs(lost.sum())} {words} left out (rows {_some(runs.index[lost])}).")
            runs = runs[~lost]
    if not len(runs):
        raise InputError(f"{where}: no run has a usable loss; {notes[-1]}")
    if (runs["loss"] <= 0).any():
        row = (runs["loss"] <= 0).idxmax()
        raise InputError(f"{where}: loss must be positive, got {runs['loss'][row]:g} in row {row}")
    return runs


def _check_units(runs: pd.DataFrame, where: str) -> None:
    """Refuse numbers that can't be what their column says, with a question."""
    if "N" in runs:
        small = runs["N"] < FEWEST_PARAMETERS
        if small.any():
            row = small.idxmax()
            whose = "all rows" if small.all() else f"{small.sum()} of {len(runs)} rows, the others are larger"
            raise InputError(
                f"{where}: N is {runs['N'][row]:g} in row {row} ({whose}): are these millions or billions? "
                f"Parameters are counted one by one; a factor helps, as in N=COLUMN*1e6"
            )
    if "D" in runs:
        ceiling = np.minimum(MOST_TOKENS, runs.get("N", np.inf) * MOST_TOKENS_A_PARAMETER)
        large = runs["D"] > ceiling
        if large.any():
            row = large.idxmax()
            raise InputError(
                f"{where}: D is {runs['D'][row]:.3g} in row {row}, more tokens than any run has: is it FLOP? "
                f"Then say C=COLUMN, and tokens follow from N"
            )
    if {"N", "D", "C"} <= set(runs.columns):
        ratio = runs["C"] / (6 * runs["N"] * runs["D"])
        middle = ratio.median()
        odd = (ratio > middle * MIXED / 2) | (ratio < middle / MIXED * 2)
        if odd.any():
            row = odd.idxmax()
            raise InputError(
                f"{where}: C / (6 N D) is {ratio[row]:.3g} in row {row} and {middle:.3g} in most: are units mixed "
                f"between rows ({odd.sum()} of {len(runs)})?"
            )
    for name in ("N", "D"):
        if name in runs:
            _check_gap(runs[name], name, where)


def _check_gap(values: pd.Series, name: str, where: str) -> None:
    """A few rows that lie a thousandfold apart from all others are in another unit."""
    ordered = np.log10(np.sort(values.unique()))
    if len(ordered) < 3:
        return
    gap = int(np.diff(ordered).argmax())
    if ordered[gap + 1] - ordered[gap] <= np.log10(MIXED):
        return
    below = values <= 10 ** ordered[gap] * (1 + 1e-9)
    few = below if below.sum() <= len(values) / 2 else ~below
    row = few.idxmax()
    raise InputError(
        f"{where}: {name} is {values[row]:.3g} in row {row} and more than a thousand times "
        f"{'smaller' if few is below else 'larger'} than in {len(values) - few.sum()} of {len(values)} rows: are units "
        f"mixed between rows?"
    )


def _complete(runs: pd.DataFrame, seq_len: float | None, where: str, notes: list[str]) -> pd.DataFrame:
    """Add the columns that follow from others, and compare those that must agree."""
    runs = runs.copy()
    if seq_len is not None:
        if not (np.isfinite(seq_len) and seq_len >= 1):
            raise InputError(f"a sequence has at least one token, got {seq_len}")
        runs["seq_len"] = float(seq_len)
    has = set(runs.columns)
    if {"D", "B", "K"} <= has:
        _check_tokens(runs, where, notes)
    elif {"B", "K", "seq_len"} <= has:
        runs["D"] = runs["B"] * runs["K"] * runs["seq_len"]
    elif {"D", "B", "seq_len"} <= has:
        runs["K"] = runs["D"] / (runs["B"] * runs["seq_len"])
        notes.append("K is computed: tokens over tokens a batch.")
    if "D" not in runs and {"N", "C"} <= has:
        runs["D"] = runs["C"] / (6 * runs["N"])
        notes.append("D is computed from FLOP: C / (6 N).")
    elif "N" not in runs and {"D", "C"} <= has:
        runs["N"] = runs["C"] / (6 * runs["D"])
        notes.append("N is computed from FLOP: C / (6 D).")
    if "C" not in runs and {"N", "D"} <= set(runs.columns):
        runs["C"] = 6 * runs["N"] * runs["D"]
    return runs


def _check_tokens(runs: pd.DataFrame, where: str, notes: list[str]) -> None:
    """D, B and K must agree on one number of tokens a sequence."""
    length = runs["D"] / (runs["B"] * runs["K"])
    if (abs(length - 1) < TOLERANCE).all():
        raise InputError(
            f"{where}: D equals B * K: either D counts sequences and not tokens (then D=COLUMN*LENGTH), or B counts "
            f"the tokens of a batch (then B=COLUMN*FACTOR, one over the length)"
        )
    stated = runs["seq_len"] if "seq_len" in runs else length.median()
    odd = abs(length / stated - 1) > TOLERANCE
    if odd.mean() > 0.5 and "seq_len" in runs:
        row = odd.idxmax()
        raise InputError(
            f"{where}: D is not B * K * seq_len: {length[row]:.6g} tokens a sequence in row {row}, where seq_len says "
            f"{runs['seq_len'][row]:g}; are tokens and sequences confused?"
        )
    if odd.any():
        notes.append(
            f"D / (B K), the tokens a sequence, is {np.median(length):.4g} in most runs and differs in {odd.sum()} "
            f"(rows {_some(runs.index[odd])})."
        )
    elif "seq_len" not in runs:
        runs["seq_len"] = float(round(length.median()))
        notes.append(f"A sequence has {runs['seq_len'].iloc[0]:g} tokens, by D / (B K).")


def _without_duplicates(runs: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    repeated = runs.duplicated()
    if repeated.any() and "loss" in runs:
        notes.append(f"{_runs(repeated.sum())} named twice, counted once (rows {_some(runs.index[repeated])}).")
        runs = runs[~repeated]
    return runs


def _offer(table: pd.DataFrame, named: Mapping[str, str], missing: Sequence[str]) -> str:
    """What the user can say about the columns that no name was found for, with their range."""
    taken = set(named.values())
    left = [label for label in map(str, table.columns) if label not in taken and not label.startswith("Unnamed:")]
    ranges = []
    for label in left:
        numbers = pd.to_numeric(table[label], errors="coerce").dropna()
        ranges.append(f"{label} ({numbers.min():.3g} to {numbers.max():.3g})" if len(numbers) else label)
    say = ",".join(f"{name}=COLUMN" for name in missing)
    return f"say which column it is ({say}): {_some(ranges, 40)}" if ranges else "no column of the file is left for it"


def _runs(count: int) -> str:
    return f"{count} run{'s' if count != 1 else ''}"


def _some(values: Iterable[object], most: int = 8) -> str:
    words = [str(value) for value in values]
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")
