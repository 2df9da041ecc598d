"""Score tables of users: a CSV with one row an item, checked cell by cell."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from assay.errors import InputError, nearest

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ScoreTable", "read_scores"]


@dataclass(frozen=True)
class ScoreTable:
    """What a user's file holds: `groups`, `labels` and `covariate` are None where no such column was named."""

    scores: NDArray[np.float64]
    names: list[str]
    groups: NDArray[np.str_] | None
    labels: NDArray[np.intp] | None
    covariate: NDArray[np.float64] | None


def read_scores(
    path: Path, *, query: str | None = None, label: str | None = None, covariate: str | None = None,
    verifiers: list[str] | None = None,
) -> ScoreTable:
    """Read a CSV of scores; every column that is not named as something else is a verifier.

    Parameters
    ----------
    path : Path
    query, label, covariate : str, optional
        Columns with the query of each item, 1 or 0 for right and wrong, and a number that scores may follow.
    verifiers : list of str, optional
        Columns with scores, if not all the others. An empty cell is a missing score.

    Raises
    ------
    InputError
        The file can't be read as a table, lacks a column, or holds something else than is expected.
    """
    table = _read(path)
    named = [name for name in (query, label, covariate) if name is not None]
    chosen = [name for name in table.columns if name not in named] if verifiers is None else verifiers
    for name in [*named, *chosen]:
        if name not in table.columns:
            columns = [str(column) for column in table.columns]
            raise InputError(f"{path.name} has no column {name}{nearest(name, columns)}; it has {', '.join(columns)}")
    if twice := [name for name in [*named, *chosen] if [*named, *chosen].count(name) > 1]:
        raise InputError(f"column {twice[0]} is named twice: verifiers, query, label and covariate must differ")
    if not chosen:
        raise InputError(f"{path.name} has no column left for verifiers")
    return ScoreTable(
        scores=np.column_stack([_numbers(table[name], path, name) for name in chosen]),
        names=[str(name) for name in chosen],
        groups=None if query is None else _queries(table[query], path, query),
        labels=None if label is None else _labels(table[label], path, label),
        covariate=None if covariate is None else _numbers(table[covariate], path, covariate),
    )


def _read(path: Path) -> pd.DataFrame:
    import pandas as pd

    if not path.is_file():
        raise InputError(f"{path} is not a file")
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8", skipinitialspace=True)
    except UnicodeDecodeError:
        raise InputError(f"{path.name} is not UTF-8 text: a CSV file with a header row was expected") from None
    except pd.errors.EmptyDataError:
        raise InputError(f"{path.name} is empty: a CSV file with a header row was expected") from None
    except (pd.errors.ParserError, ValueError) as error:
        raise InputError(f"{path.name} can't be read as CSV: {str(error).strip()}") from None
    if table.empty:
        raise InputError(f"{path.name} has a header but no rows")
    return table


def _numbers(column: pd.Series, path: Path, name: str) -> NDArray[np.float64]:
    """A column as floats; empty cells, `nan` and `na` are missing."""
    values = np.full(len(column), np.nan)
    for row, text in enumerate(column):
        text = text.strip()
        if text.lower() in ("", "nan", "na", "null", "none"):
            continue
        try:
            values[row] = float(text)
        except ValueError:
            raise InputError(f"{path.name}: row {row + 1}, column {name}: expected a number, got {text!r}") from None
    return values


def _queries(column: pd.Series, path: Path, name: str) -> NDArray[np.str_]:
    names = np.array([text.strip() for text in column], dtype=str)
    if (names == "").any():
        raise InputError(f"{path.name}: row {int(np.argmax(names == '')) + 1}, column {name}: the query is empty")
    return names


def _labels(column: pd.Series, path: Path, name: str) -> NDArray[np.intp]:
    words = {"1": 1, "1.0": 1, "true": 1, "0": 0, "0.0": 0, "false": 0}
    labels = np.empty(len(column), dtype=np.intp)
    for row, text in enumerate(column):
        if (word := text.strip().lower()) not in words:
            raise InputError(f"{path.name}: row {row + 1}, column {name}: expected 1 or 0, got {text!r}")
        labels[row] = words[word]
    return labels
