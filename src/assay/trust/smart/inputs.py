"""What a user hands in: logits, probabilities or scores of a classifier, and labels; checked once, here.

Everything inside the package works on float64 logits of shape [n, K]. This module makes them: from NumPy arrays and
torch tensors, from log-probabilities, and from the one-dimensional score of a binary classifier.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay import errors
from assay.errors import InputError

Array = NDArray[np.float64]

SMALLEST_PROBABILITY = 1e-30
# Rows of probabilities read from a file with two or three decimals add up to one only roughly.
ROW_SUM_TOLERANCE = 0.01
# Larger logits than this overflow in the squares and sums that are taken of them.
LARGEST_LOGIT = 1e100
LEAST_BANDWIDTH = 1e-9


def as_logits(values: Any, name: str = "logits", n_classes: int | None = None) -> Array:
    """Float64 logits [n, K], K >= 2, from logits or probabilities; the input is not changed.

    Probabilities (all in [0, 1], every row adding up to one) are recognised: a warning is given and their logarithm
    is taken, which equals the logits up to a constant a row. Raises `InputError` naming the shape, or the first row
    and column that is not finite.
    """
    array = _dense(values, name)
    if array.ndim == 1:
        raise InputError(
            f"{name} must be two-dimensional (rows, classes), got shape {array.shape}. Reshape your data: "
            "a binary classifier's one-dimensional score s becomes the two columns [-s/2, s/2]"
        )
    if n_classes is not None and array.ndim == 2 and array.shape[1] != n_classes:
        raise InputError(
            f"X has {array.shape[1]} features, but SMARTCalibrator is expecting {n_classes} features as input: "
            f"{name} must have the {n_classes} classes that fit saw"
        )
    if array.ndim == 2 and array.shape[1] < 2:
        raise InputError(
            f"{name} must have one column a class: {array.shape[1]} feature(s) (shape={array.shape}) "
            "while a minimum of 2 is required."
        )
    # In one memory layout, so that sums round alike however the rows came.
    logits = np.ascontiguousarray(errors.as_matrix(array, name), dtype=np.float64)
    if np.abs(logits).max() > LARGEST_LOGIT:
        row, column = (int(i) for i in np.argwhere(np.abs(logits) > LARGEST_LOGIT)[0])
        raise InputError(
            f"{name} must lie within {LARGEST_LOGIT:g} of zero, got {logits[row, column]:g} "
            f"in row {row}, column {column}"
        )
    if not are_probabilities(logits):
        return logits
    warnings.warn(f"{name} look like probabilities: their logarithm is taken", UserWarning, stacklevel=3)
    return log_probabilities(logits)


def as_labels(y: Any, scores: Array, name: str = "y") -> NDArray[np.intp]:
    """Labels [n] in 0..K-1 for scores [n, K]; `InputError` names the first row that is not."""
    return errors.as_labels(to_numpy(y), name, length=scores.shape[0], n_classes=scores.shape[1])


def as_probabilities(values: Any, name: str = "probs") -> Array:
    """Float64 probabilities [n, K], checked: in [0, 1], rows adding up to one."""
    probs = errors.as_matrix(to_numpy(values), name).astype(np.float64)
    if probs.shape[1] < 2:
        raise InputError(f"{name} must have at least 2 classes (columns), got shape {probs.shape}")
    bad = (probs < 0).any(axis=1) | (probs > 1).any(axis=1) | (np.abs(probs.sum(axis=1) - 1.0) > ROW_SUM_TOLERANCE)
    if bad.any():
        row = int(np.argmax(bad))
        raise InputError(
            f"{name} must be in [0, 1] with rows adding up to 1, got a sum of {probs[row].sum():.6g} in row {row}"
        )
    return probs


def are_probabilities(values: Array) -> bool:
    """Whether all entries lie in [0, 1] and every row adds up to one."""
    return bool(
        values.min() >= 0.0 and values.max() <= 1.0 and np.abs(values.sum(axis=1) - 1.0).max() <= ROW_SUM_TOLERANCE
    )


def log_probabilities(probs: Array) -> Array:
    """Logarithm of probabilities; zeros are raised to 1e-30 first, with a warning."""
    zeros = int((probs < SMALLEST_PROBABILITY).sum())
    if zeros:
        warnings.warn(
            f"{zeros} probabilities of zero are raised to {SMALLEST_PROBABILITY:g} before the logarithm",
            UserWarning,
            stacklevel=3,
        )
    return np.log(np.maximum(probs, SMALLEST_PROBABILITY))


def two_columns(score: Any) -> Array:
    """Logits [n, 2] of a binary classifier's score [n]: the columns [-s/2, s/2], whose difference is s.

    >>> two_columns([3.0]).tolist()
    [[-1.5, 1.5]]
    """
    half = errors.as_vector(to_numpy(score), "score").astype(np.float64) / 2.0
    return np.stack([-half, half], axis=1)


def check_positive(*, zero_allowed: bool = False, **values: float) -> None:
    """`InputError` for a parameter that is not a positive finite number."""
    for name, value in values.items():
        good = isinstance(value, (int, float, np.integer, np.floating)) and np.isfinite(value)
        if not good or value < 0 or (value == 0 and not zero_allowed):
            least = "zero or a positive number" if zero_allowed else "a positive number"
            raise InputError(f"{name} must be {least}, got {value!r}")


def check_bandwidth(sigma: float) -> None:
    """`InputError` for a bandwidth of the soft bins that is no positive number, or whose square would be lost."""
    check_positive(sigma=sigma)
    if sigma < LEAST_BANDWIDTH:
        raise InputError(f"sigma must be at least {LEAST_BANDWIDTH:g}, got {sigma!r}")


def is_torch(values: Any) -> bool:
    """Whether this is a torch tensor; torch is not imported to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


def to_numpy(values: Any) -> Any:
    """A torch tensor as a NumPy array on the CPU; anything else as it is."""
    if not is_torch(values):
        return values
    tensor = values.detach().cpu()
    # NumPy has no bfloat16.
    return (tensor.double() if tensor.is_floating_point() else tensor).numpy()


def _dense(values: Any, name: str) -> Any:
    array = to_numpy(values)
    if hasattr(array, "toarray"):
        raise InputError(f"{name}: sparse input is not supported, a dense array is expected")
    try:
        array = np.asarray(array)
    except ValueError:
        raise InputError(f"{name}: rows of equal length are expected") from None
    if array.dtype.kind == "c":
        raise InputError(f"{name}: Complex data not supported, real numbers are expected")
    if array.dtype.kind == "f" and np.isnan(array).any():
        first = np.argwhere(np.isnan(array))[0]
        where = ", ".join(f"{axis} {i}" for axis, i in zip(("row", "column"), first, strict=False))
        raise InputError(f"{name} must be finite, got NaN in {where}")
    return array


def like_input(result: Array, given: Any) -> Any:
    """The result as the kind the input was: a tensor of its device and floating type, or a float64 array."""
    if not is_torch(given):
        return result
    import torch

    dtype = given.dtype if given.is_floating_point() else torch.float64
    return torch.as_tensor(result, dtype=dtype, device=given.device)
