"""Reading a user's logits or probabilities and labels, with errors that name the file, the row and the column."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.errors import InputError

from .inputs import as_labels, as_logits

Array = NDArray[np.float64]
Labels = NDArray[np.intp]

SCORE_NAMES = ("logits", "probs")
LABEL_NAMES = ("labels", "y")


def read_logits(path: Path) -> tuple[Array, Labels]:
    """Logits [n, K] and labels [n] of an npz file with `logits` or `probs`, and `labels`."""
    arrays = _npz(path)
    scores = _one_of(arrays, SCORE_NAMES, path)
    labels = _one_of(arrays, LABEL_NAMES, path)
    logits = as_logits(scores[1], f"{path.name}: {scores[0]}")
    return logits, as_labels(labels[1], logits, name=f"{path.name}: {labels[0]}")


def read_array(path: Path) -> NDArray:
    """The one array of a `.npy` file, or the numbers of a `.csv` file (one row a line, a header line allowed)."""
    if not path.exists():
        raise InputError(f"{path} does not exist: a .npy or .csv file is expected")
    if path.suffix == ".csv":
        return _csv(path)
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise InputError(f"{path} can't be read as a .npy file of numbers: {_one_line(error)}") from None


def _npz(path: Path) -> dict[str, NDArray]:
    if not path.exists():
        raise InputError(f"{path} does not exist: an npz file with logits or probs, and labels, is expected")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except (ValueError, EOFError, OSError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} can't be read as an npz file of numbers: {_one_line(error)}") from None


def _one_of(arrays: dict[str, NDArray], names: tuple[str, ...], path: Path) -> tuple[str, NDArray]:
    for name in names:
        if name in arrays:
            return name, arrays[name]
    held = ", ".join(sorted(arrays)) or "nothing"
    raise InputError(f"{path} holds {held}: an array {' or '.join(names)} is expected")


def _csv(path: Path) -> NDArray:
    import pandas as pd

    try:
        table = pd.read_csv(path, header=None, dtype=str, skipinitialspace=True)
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"{path} can't be read as comma-separated numbers: {_one_line(error)}") from None
    numbers = table.apply(pd.to_numeric, errors="coerce")
    header = int(numbers.iloc[0].isna().all() and len(table) > 1)
    numbers = numbers.iloc[header:]
    if numbers.isna().to_numpy().any():
        row, column = (int(i) for i in np.argwhere(numbers.isna().to_numpy())[0])
        found = table.iloc[row + header, column]
        raise InputError(f"{path}: line {row + header + 1}, column {column + 1}: a number is expected, got {found!r}")
    values = numbers.to_numpy(dtype=np.float64)
    return values[:, 0] if values.shape[1] == 1 else values


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
