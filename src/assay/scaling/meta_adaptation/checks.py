"""What users hand in, checked where it enters: one line that says what is wrong, where, and what is expected."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import InputError

__all__ = ["checked_count", "checked_number", "checked_size", "floats", "generator"]

SMALLEST, LARGEST = 1e-100, 1e100
"""Sizes whose squares are still numbers."""


def floats(values: ArrayLike, name: str) -> NDArray[np.float64]:
    """Real numbers as an array of any shape, not necessarily finite; never the user's own memory changed."""
    try:
        array = np.asarray(values)
        if array.dtype.kind == "c":
            raise TypeError
        return array.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be an array of numbers, rows of one length") from None


def checked_size(values: NDArray[np.float64], name: str) -> None:
    """Refuse values whose squares are lost to rounding or overflow."""
    largest = float(np.abs(values).max(initial=0.0))
    if largest > LARGEST or 0 < largest < SMALLEST:
        raise InputError(
            f"{name} are {largest:.3g} at most: give them in a unit in which they lie between {SMALLEST:g} and "
            f"{LARGEST:g}"
        )


def checked_number(value: float, name: str, *, zero: bool = False) -> float:
    """A finite number above zero, or from zero on."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} must be a number, got {value!r}") from None
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
        raise InputError(f"{name} must be {'0 or more' if zero else 'positive'} and finite, got {number:g}")
    return number


def checked_count(value: int, name: str, least: int = 0) -> int:
    """A whole number, `least` or more."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(f"{name} must be a whole number, {least} or more, got {value!r}")
    return int(value)


def generator(seed: int | None, name: str = "random_state") -> np.random.Generator:
    """The generator of a seed, a whole number from 0 on, or a fresh one for None."""
    return np.random.default_rng(None if seed is None else checked_count(seed, name))
