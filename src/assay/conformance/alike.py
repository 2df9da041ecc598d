"""Whether two results are the same to the last bit, or agree to a tolerance; copies and casts of inputs."""

from __future__ import annotations

import copy
import struct
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["cast", "frozen", "has_floats", "near", "same"]


def same(first: Any, second: Any) -> bool:
    """Equal to the last bit: values, types, shapes; NaN equals NaN."""
    if type(first) is not type(second):
        return False
    if isinstance(first, float):
        return struct.pack("d", first) == struct.pack("d", second)
    if isinstance(first, np.ndarray) and first.dtype != object:
        return first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()
    if isinstance(first, np.generic):
        return first.tobytes() == second.tobytes()
    parts = _parts(first)
    if parts is not None:
        others = _parts(second) or {}
        return list(parts) == list(others) and all(same(part, others[key]) for key, part in parts.items())
    return bool(first == second)


def near(first: Any, second: Any, tolerance: float) -> bool:
    """Numbers agree to a relative tolerance of the largest among them; everything else is equal."""
    if _is_numbers(first) and _is_numbers(second):
        one, two = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
        finite = np.abs(two[np.isfinite(two)])
        scale = float(finite.max()) if finite.size else 1.0
        return one.shape == two.shape and bool(
            np.allclose(one, two, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
        )
    parts, others = _parts(first), _parts(second)
    if parts is not None and others is not None:
        return list(parts) == list(others) and all(near(part, others[key], tolerance) for key, part in parts.items())
    return bool(first == second)


def cast(value: Any, dtype: str) -> Any:
    """The same inputs with every array of floating point numbers in the given type; a deep copy."""
    if isinstance(value, np.ndarray):
        return value.astype(dtype) if value.dtype.kind == "f" else value.copy()
    if isinstance(value, Mapping):
        return {key: cast(part, dtype) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(cast(part, dtype) for part in value)
    if _is_frame(value):
        return value.astype({column: dtype for column in value.columns if value[column].dtype.kind == "f"})
    if _is_tensor(value):
        return value.to(getattr(_torch(), dtype)) if value.is_floating_point() else value.clone()
    return copy.deepcopy(value)


def has_floats(value: Any) -> bool:
    """Whether an array of floating point numbers is among the inputs."""
    if isinstance(value, np.ndarray):
        return value.dtype.kind == "f"
    if isinstance(value, Mapping):
        return any(has_floats(part) for part in value.values())
    if type(value) in (list, tuple):
        return any(has_floats(part) for part in value)
    if _is_frame(value):
        return any(kind.kind == "f" for kind in value.dtypes)
    return _is_tensor(value) and value.is_floating_point()


def frozen(value: Any) -> Any:
    """A deep copy of the inputs whose arrays refuse to be written to."""
    if isinstance(value, np.ndarray):
        array = value.copy()
        array.flags.writeable = False
        return array
    if isinstance(value, Mapping):
        return {key: frozen(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(frozen(part) for part in value)
    return copy.deepcopy(value)


def _parts(value: Any) -> dict[Any, Any] | None:
    """What a container, frame, tensor, sparse matrix or plain object is made of; None for anything else."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    if isinstance(value, np.ndarray):
        return dict(enumerate(value.ravel().tolist()))
    if _is_frame(value):
        index = {"index": value.index.to_numpy()}
        return index | {column: value[column].to_numpy() for column in value.columns}
    if _is_tensor(value):
        return {"values": value.detach().cpu().contiguous().view(-1).numpy(), "shape": tuple(value.shape)}
    if hasattr(value, "__dict__") and type(value).__eq__ is object.__eq__ and not isinstance(value, type):
        return dict(vars(value))
    return None


def _is_numbers(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "iuf"
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


def _is_frame(value: Any) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame)


def _is_tensor(value: Any) -> bool:
    torch = _torch()
    return torch is not None and isinstance(value, torch.Tensor)


def _torch() -> Any:
    return sys.modules.get("torch")
