"""Errors that a user meets, and the checks of what a user hands in.

    AssayError
    ├── InputError (ValueError)         what was handed in is wrong: what, where, what was expected
    ├── DataUnavailable (LookupError)   a data set can't be reached: where it was looked for, what would help
    ├── MissingExtra (ImportError)      a package is not installed: the method, the package, the pip line
    ├── StoreError                      the store of cells can't be used
    └── CardError                       a method's folder is wrong: file and field

NumPy is imported by the checks alone: listing the methods needs none of it.
"""

from __future__ import annotations

import dataclasses
import importlib
import reprlib
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

__all__ = [
    "AssayError", "CardError", "DataUnavailable", "InputError", "MissingExtra", "StoreError", "as_labels",
    "as_matrix", "as_vector", "from_toml", "missing_extra", "nearest", "require",
]

T = TypeVar("T")


class AssayError(Exception):
    """Any error that assay raises on purpose: its message is one line for a user."""


class InputError(AssayError, ValueError):
    """Something a user handed in is wrong: the message says what, where, and what was expected."""


class DataUnavailable(AssayError, LookupError):
    """A data set can't be reached from here."""


class MissingExtra(AssayError, ImportError):
    """An optional package is missing."""


class StoreError(AssayError):
    """The store can't be read or written."""


class CardError(AssayError):
    """A method's folder breaks the contract."""


def require(module: str, *, extra: str, wanted_by: str) -> ModuleType:
    """Import an optional module, or say which method wants it and how to install it.

    >>> require("json", extra="torch", wanted_by="smart").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing_extra(module.partition(".")[0], (extra,), wanted_by) from error


def missing_extra(package: str, extras: Sequence[str], wanted_by: str) -> MissingExtra:
    """The error that names the method, the package, and the pip line for it.

    >>> print(missing_extra("torch", ["science", "torch"], "smart"))
    smart needs the package torch, which is not installed: pip install "assay[torch]"
    """
    extra = package if package in extras else [*extras, "all"][0]
    return MissingExtra(
        f'{wanted_by} needs the package {package}, which is not installed: pip install "assay[{extra}]"'
    )


def nearest(word: str, known: list[str]) -> str:
    """` (did you mean X?)` for the closest known word, or nothing.

    >>> nearest("smrat", ["smart", "nqs"])
    ' (did you mean smart?)'
    """
    from difflib import get_close_matches

    close = get_close_matches(word, known, n=1, cutoff=0.5)
    return f" (did you mean {close[0]}?)" if close else ""


def from_toml(cls: type[T], fields: Any, where: str, **given: Any) -> T:
    """An instance of a dataclass from a TOML table; lists become tuples, `given` are fields from elsewhere.

    Raises `CardError` that says `where`, and which field is missing, unknown or of the wrong type.
    """
    if not isinstance(fields, Mapping):
        raise CardError(f"{where}: a table is expected, got {fields!r}")
    known = {f.name: f for f in dataclasses.fields(cls) if f.name not in given}  # type: ignore[arg-type]
    for name, value in fields.items():
        if name not in known:
            raise CardError(f"{where}: there is no field {name}{nearest(name, list(known))}")
        if not _fits(value, str(known[name].type)):
            raise CardError(f"{where}: the field {name} must be {_WORDS[_kind(str(known[name].type))]}, got {value!r}")
    for name, one in known.items():
        if name not in fields and one.default is one.default_factory is dataclasses.MISSING:
            raise CardError(f"{where}: the field {name} is missing")
    return cls(**{name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}, **given)


_WORDS = {
    "str": "a text", "int": "a whole number", "float": "a number", "bool": "true or false",
    "tuple": "a list of texts", "Mapping": "a table",
}


def _kind(annotation: str) -> str:
    return annotation.partition("[")[0].partition(" ")[0]


def _fits(value: Any, annotation: str) -> bool:
    """Whether a TOML value suits the annotation of a field: a text, a number, a list or a table of those."""
    kind, inner = _kind(annotation), annotation.partition("[")[2].rstrip("]")
    if kind == "tuple":
        return isinstance(value, list) and all(isinstance(one, str) for one in value)
    if kind == "Mapping":
        return isinstance(value, Mapping) and all(_fits(one, inner.rpartition(", ")[2]) for one in value.values())
    if isinstance(value, bool):
        return kind == "bool"
    types: dict[str, Any] = {"str": str, "int": int, "float": (int, float)}
    return kind in types and isinstance(value, types[kind])


def as_matrix(
    values: ArrayLike, name: str, *, columns: int | None = None, min_rows: int = 1, allow_nan: bool = False
) -> NDArray[np.floating]:
    """A two-dimensional float array (float32 and float64 kept), checked; the input is never changed.

    Raises `InputError` naming the shape, or the first row and column that is NaN or infinite.
    """
    array = _as_float(values, name)
    if array.ndim != 2:
        raise InputError(f"{name} must be two-dimensional (rows, columns), got shape {array.shape}")
    if array.shape[1] == 0:
        raise InputError(f"{name} has no columns, got shape {array.shape}")
    if columns is not None and array.shape[1] != columns:
        raise InputError(f"{name} must have {columns} columns, got shape {array.shape}")
    if len(array) < min_rows:
        raise InputError(f"{name} has {len(array)} rows, at least {min_rows} needed")
    _refuse_non_finite(array, name, allow_nan)
    return array


def as_vector(
    values: ArrayLike, name: str, *, length: int | None = None, positive: bool = False
) -> NDArray[np.floating]:
    """A one-dimensional float array, checked: length, finite, positive."""
    import numpy as np

    array = _as_float(values, name)
    if array.ndim != 1:
        raise InputError(f"{name} must be one-dimensional, got shape {array.shape}")
    if length is not None and len(array) != length:
        raise InputError(f"{name} has {len(array)} entries, expected {length}")
    _refuse_non_finite(array, name, allow_nan=False)
    if positive and (array <= 0).any():
        row = int(np.argmax(array <= 0))
        raise InputError(f"{name} must be positive, got {array[row]:g} in row {row}")
    return array


def as_labels(
    values: ArrayLike, name: str, *, length: int | None = None, n_classes: int | None = None
) -> NDArray[np.intp]:
    """Integer class labels 0..n_classes-1, checked; whole floats are accepted."""
    import numpy as np

    array = np.asarray(values)
    if array.ndim != 1:
        raise InputError(f"{name} must be one-dimensional, got shape {array.shape}")
    if length is not None and len(array) != length:
        raise InputError(f"{name} has {len(array)} entries, expected {length}")
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name} must be integers, got {array.dtype}")
    if array.dtype.kind == "f":
        bad = ~np.isfinite(array) | (array != np.floor(array))
        if bad.any():
            row = int(np.argmax(bad))
            raise InputError(f"{name} must be integers, got {array[row]} in row {row}")
    bad = (array < 0) | (array >= (2**53 if n_classes is None else n_classes))
    if bad.any():
        row = int(np.argmax(bad))
        expected = "0 or more, and below 2^53" if n_classes is None else f"0 to {n_classes - 1}"
        raise InputError(f"{name} must be {expected}, got {array[row]} in row {row}")
    return array.astype(np.intp)


def _as_float(values: ArrayLike, name: str) -> NDArray[np.floating]:
    import numpy as np

    try:
        array = np.asarray(values)
    except ValueError:
        raise InputError(f"{name} must be an array of numbers, its rows differ in length") from None
    if array.dtype.kind in "OSU":
        cells = array.astype(object)
        return np.array([_as_number(cells, where, name) for where in np.ndindex(cells.shape)]).reshape(cells.shape)
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name} must be numbers, got {array.dtype}")
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)


def _as_number(array: NDArray[Any], where: tuple[int, ...], name: str) -> float:
    try:
        return float(array[where])
    except (TypeError, ValueError):
        raise InputError(f"{name} must be numbers, got {reprlib.repr(array[where])}{_place(where)}") from None


def _place(where: tuple[int, ...]) -> str:
    """` in row 3, column 1` for an index into an array."""
    axes = zip(("row", "column", "layer"), where, strict=False)
    return (" in " if where else "") + ", ".join(f"{axis} {index}" for axis, index in axes)


def _refuse_non_finite(array: NDArray[np.floating], name: str, allow_nan: bool) -> None:
    import numpy as np

    bad = np.isinf(array) if allow_nan else ~np.isfinite(array)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise InputError(f"{name} must be finite, got {array[where]}{_place(where)}")
