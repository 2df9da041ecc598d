"""How sudden, and how straight, a curve over scales is: the trend scores of BIG-bench.

With I = sign(argmax y - argmin y) (max y - min y), the signed rise of a curve y_1 .. y_n,

    linearity        Lin = I / sqrt(mean   (y_{i+1} - y_i)^2)
    breakthroughness Br  = I / sqrt(median (y_{i+1} - y_i)^2)

Both are the curve's rise in units of a step: of a typical one in the root mean square, and of a middle one. A
straight rise of n - 1 steps has n - 1 in both; a curve that does all in one step has a breakthroughness without
bound. Neither changes under y -> c y + d with c > 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import InputError

__all__ = ["breakthroughness", "linearity"]


def breakthroughness(y: ArrayLike) -> float | NDArray[np.float64]:
    """Rise of a curve over the root of its median squared step (arXiv 2502.17356, after BIG-bench).

    Parameters
    ----------
    y : (n,) or (paths, n) array
        Scores in the order of scale, 3 or more.

    Returns
    -------
    float or (paths,) array
        Infinite, with the sign of the rise, where more than half of the steps are zero and the curve is not
        constant; 0 for a constant curve.

    Raises
    ------
    InputError
        Fewer than three scales, curves of unequal length, NaN or infinite values.

    Examples
    --------
    >>> breakthroughness([0, 0.25, 0.5, 0.75, 1]), breakthroughness([0, 0, 0, 0, 1])
    (4.0, inf)
    """
    return _rise_over(y, np.median)


def linearity(y: ArrayLike) -> float | NDArray[np.float64]:
    """Rise of a curve over the root of its mean squared step (arXiv 2502.17356, after BIG-bench).

    Parameters
    ----------
    y : (n,) or (paths, n) array
        Scores in the order of scale, 3 or more.

    Returns
    -------
    float or (paths,) array
        At most n - 1; 0 for a constant curve, negative for a falling one.

    Raises
    ------
    InputError
        Fewer than three scales, curves of unequal length, NaN or infinite values.

    Examples
    --------
    >>> linearity([0, 0, 0, 0, 1]), linearity([1, 0.75, 0.5, 0.25, 0])
    (2.0, -4.0)
    """
    return _rise_over(y, np.mean)


def _rise_over(y: ArrayLike, middle: Callable) -> float | NDArray[np.float64]:
    try:
        curves = np.asarray(y, dtype=float)
    except (TypeError, ValueError):
        raise InputError("y must be numbers: a curve (n,) or curves (paths, n) of equal length") from None
    if curves.ndim not in (1, 2) or curves.shape[-1] < 3:
        raise InputError(f"y must be a curve (n,) or curves (paths, n) over 3 or more scales, got shape {curves.shape}")
    if not np.isfinite(curves).all():
        raise InputError("y holds a value that is NaN or infinite")
    sign = np.sign(curves.argmax(axis=-1) - curves.argmin(axis=-1))
    rise = sign * np.ptp(curves, axis=-1)
    step = np.sqrt(middle(np.diff(curves, axis=-1) ** 2, axis=-1))
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(rise == 0, 0.0, rise / step)
    return float(found) if curves.ndim == 1 else found
