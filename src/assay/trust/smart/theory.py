"""Why the margin tells the temperature: the temperatures that give a top class a wanted confidence.

With K classes and a margin g between the two largest logits, the top class at temperature T has probability
``1 / (1 + exp(-g/T) + rest)``, where the other K - 2 classes add between 0 (all at minus infinity) and
``(K - 2) exp(-g/T)`` (all tied with the runner-up). Solving both ends for T gives an interval whose ends are
proportional to g (arXiv 2506.23492).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from assay.errors import InputError


def temperature_bounds(margin: ArrayLike, confidence: ArrayLike, n_classes: int) -> tuple[Any, Any]:
    """Temperatures at which a row with this margin can have this top-class confidence.

    ``g / ln(p (K - 1) / (1 - p)) <= T <= g / ln(p / (1 - p))``. At the lower end all other classes tie with the
    runner-up, at the upper end all but the runner-up have probability zero.

    Parameters
    ----------
    margin : array_like
        Margin g >= 0 between the two largest logits; broadcast with `confidence`.
    confidence : array_like
        Wanted probability p of the top class, 1/2 < p < 1.
    n_classes : int
        Number K >= 2 of classes.

    Returns
    -------
    lo, hi : float or array
        Least and largest temperature, in the units of the logits.

    Raises
    ------
    InputError
        Where a margin is negative, a confidence is not inside (1/2, 1), or K < 2.

    References
    ----------
    arXiv 2506.23492, feasible temperatures of a margin.

    Examples
    --------
    >>> lo, hi = temperature_bounds(2.0, 0.8, n_classes=10)
    >>> round(lo, 6), round(hi, 6)
    (0.558111, 1.442695)
    """
    try:
        g, p = np.broadcast_arrays(np.asarray(margin, dtype=float), np.asarray(confidence, dtype=float))
    except (TypeError, ValueError):
        raise InputError("margin and confidence must be numbers of shapes that broadcast") from None
    if not (np.isfinite(g).all() and (g >= 0).all()):
        raise InputError(f"margin must be finite and not negative, got {_first(g, ~(np.isfinite(g) & (g >= 0)))}")
    inside = (p > 0.5) & (p < 1.0)
    if not inside.all():
        raise InputError(f"confidence must lie inside (0.5, 1), got {_first(p, ~inside)}")
    if not isinstance(n_classes, (int, np.integer)) or n_classes < 2:
        raise InputError(f"n_classes must be a whole number of at least 2, got {n_classes!r}")
    odds = p / (1.0 - p)
    lo, hi = g / np.log(odds * (n_classes - 1)), g / np.log(odds)
    return (float(lo), float(hi)) if g.ndim == 0 else (lo, hi)


def _first(values: np.ndarray, bad: np.ndarray) -> float:
    return float(values[bad].flat[0])
