"""A user's responses: a long table or an npz file, checked cell by cell, as one matrix a file."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from assay.errors import InputError, nearest
from assay.scaling.irsl.estimator import read_responses
from assay.scaling.tables import read_table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["UserResponses", "parse_names", "read_flops", "read_user_responses"]

COLUMNS = ("model", "item", "response", "bench", "group", "flops")


@dataclass(frozen=True, eq=False)
class UserResponses:
    """Responses (models, items), NaN where not asked, with labels; `group` is what checkpoints of one run share."""

    responses: np.ndarray
    model: np.ndarray
    group: np.ndarray
    item: np.ndarray
    bench: np.ndarray

    @property
    def binary(self) -> bool:
        """Whether every response is 0 or 1."""
        known = self.responses[~np.isnan(self.responses)]
        return bool(np.isin(known, (0.0, 1.0)).all())


def parse_names(text: str) -> dict[str, str]:
    """`"model=checkpoint,response=prob"` as a mapping from the names here to those of the files.

    >>> parse_names("model=checkpoint, response=prob")
    {'model': 'checkpoint', 'response': 'prob'}
    """
    found: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, equals, column = (part.strip() for part in pair.partition("="))
        if not equals or not column:
            raise InputError(f"--columns: columns are named as model=COLUMN,item=COLUMN, got {pair!r}")
        if name not in COLUMNS:
            known = ", ".join(COLUMNS)
            raise InputError(f"--columns: there is no {name!r}{nearest(name, list(COLUMNS))}; known: {known}")
        if name in found:
            raise InputError(f"--columns: {name} is named twice")
        found[name] = column
    return found


def read_user_responses(path: Path, names: Mapping[str, str] | None = None) -> UserResponses:
    """Read `model, item, response[, bench, group]` from a CSV, `responses[, model, item, bench, group]` from an npz.

    A response that is empty, or NaN, was not asked. `names` maps columns here to columns of the CSV.

    Raises
    ------
    InputError
        The file can't be read, lacks a column or array, holds a response that is no number in [0, 1], two responses
        of one model to one item, a row without its label, or fewer than three models.
    """
    found = _from_npz(path) if path.suffix == ".npz" else _from_table(path, names or {})
    if len(found.model) < 3:
        raise InputError(f"{path.name} holds {len(found.model)} models, at least 3 are needed")
    return found


def _from_table(path: Path, names: Mapping[str, str]) -> UserResponses:
    table = _named(read_table(path), ("model", "item", "response"), names, path.name)
    if not len(table):
        raise InputError(f"{path.name} holds no responses")
    for name in ("model", "item", "bench", "group"):
        if name in table and (bad := table[name].isna().to_numpy()).any():
            raise InputError(f"{path.name}: {name} is missing in row {int(np.argmax(bad))}")
    table["response"] = _numbers(table["response"], "response", path.name)
    for name, otherwise in (("model", ""), ("item", ""), ("bench", "all"), ("group", None)):
        table[name] = table[name].astype(str) if name in table else table["model"] if otherwise is None else otherwise
    if (twice := table.duplicated(["model", "bench", "item"])).any():
        row = int(np.argmax(twice))
        who, what = table["model"][row], table["item"][row]
        raise InputError(f"{path.name}: a second response of {who} to {what} in row {row}")
    if (table.groupby("model")["group"].nunique() > 1).any():
        raise InputError(f"{path.name}: a model stands in two groups")
    wide = table.pivot(index="model", columns=["bench", "item"], values="response").sort_index(axis=1)
    group = table.drop_duplicates("model").set_index("model")["group"].loc[wide.index]
    bench, item = (wide.columns.get_level_values(level).to_numpy(dtype=str) for level in (0, 1))
    values = read_responses(wide.to_numpy(dtype=float))
    return UserResponses(values, wide.index.to_numpy(dtype=str), group.to_numpy(dtype=str), item, bench)


def _named(table: pd.DataFrame, needed: tuple[str, ...], names: Mapping[str, str], where: str) -> pd.DataFrame:
    """The columns that are known here, under their names here."""
    kept = {name: names.get(name, name) for name in COLUMNS}
    for name in needed:
        if kept[name] not in table.columns:
            offered = ", ".join(map(str, table.columns[:8]))
            raise InputError(
                f"{where} lacks the column {kept[name]}; it needs {', '.join(needed)}, and has {offered} "
                f"(--columns {name}=COLUMN names another)"
            )
    return table[[kept[name] for name in COLUMNS if kept[name] in table]].set_axis(
        [name for name in COLUMNS if kept[name] in table], axis=1
    )


def _numbers(column: pd.Series, name: str, where: str) -> pd.Series:
    """The column as numbers, an empty cell as NaN."""
    import pandas as pd

    numbers = pd.to_numeric(column, errors="coerce")
    if (bad := (numbers.isna() & column.notna()).to_numpy()).any():
        row = int(np.argmax(bad))
        raise InputError(f"{where}: {name} is no number in row {row}, got {column.iloc[row]!r}")
    return numbers.astype(float)


def _from_npz(path: Path) -> UserResponses:
    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = dict(stored)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: not an npz file of plain arrays ({' '.join(str(error).split())})") from None
    if "responses" not in arrays:
        raise InputError(f"{path.name} lacks the array responses; it holds {', '.join(arrays) or 'nothing'}")
    values = read_responses(arrays["responses"])
    n_models, n_items = values.shape
    model = _labels(arrays, "model", n_models, path)
    return UserResponses(
        values, model, _labels(arrays, "group", n_models, path) if "group" in arrays else model,
        _labels(arrays, "item", n_items, path),
        _labels(arrays, "bench", n_items, path) if "bench" in arrays else np.full(n_items, "all"),
    )


def _labels(arrays: dict[str, np.ndarray], name: str, n: int, path: Path) -> np.ndarray:
    labels = arrays.get(name, np.arange(n))
    if labels.shape != (n,):
        raise InputError(f"{path.name}: {name} must have {n} labels, got shape {labels.shape}")
    return labels.astype(str)


def read_flops(path: Path, models: np.ndarray, names: Mapping[str, str] | None = None) -> np.ndarray:
    """Training compute of each model from a CSV with the columns model and flops, shape (models,)."""
    table = _named(read_table(path), ("model", "flops"), names or {}, path.name)
    flops = _numbers(table["flops"], "flops", path.name)
    bad = ~(np.isfinite(flops) & (flops > 0)).to_numpy()
    if bad.any():
        row = int(np.argmax(bad))
        raise InputError(f"{path.name}: flops must be positive, got {table['flops'].iloc[row]} in row {row}")
    name = table["model"].astype(str)
    if (twice := name.duplicated()).any():
        row = int(np.argmax(twice))
        raise InputError(f"{path.name}: a second line for {name.iloc[row]} in row {row}")
    by_model = dict(zip(name, flops, strict=True))
    absent = [name for name in models if name not in by_model]
    if absent:
        raise InputError(f"{path.name} has no flops for {len(absent)} models, {absent[0]} among them")
    found = np.array([by_model[name] for name in models], dtype=float)
    if len(np.unique(found)) < 3:
        raise InputError(f"{path.name} holds {len(np.unique(found))} different flops, a line and a parabola need 3")
    return found
