"""The pinball loss, its smooth form, and the linear programme that minimises it for non-negative coefficients.

The loss of a residual u = y - q at the level tau is max(tau u, (tau - 1) u): its mean is smallest where q is the
tau-quantile of y. arXiv 2602.15327 fits with the smooth form

    log(1 + exp(kappa u)) / kappa + (tau - 1) u,

whose slope is sigma(kappa u) + tau - 1. It is the loss of y blurred by a logistic of scale 1 / kappa: where scores
spread by less than that, its minimum lies above the quantile.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import InputError

__all__ = ["check_level", "is_number", "pinball", "quantile_programme", "smooth_pinball"]

Array = NDArray[np.float64]


def smooth_pinball(u: ArrayLike, tau: float, kappa: float) -> Any:
    """Smooth pinball loss of residuals, arXiv 2602.15327: `log(1 + exp(kappa u)) / kappa + (tau - 1) u`.

    Parameters
    ----------
    u : array-like
        Residuals, score minus boundary.
    tau : float
        Level in (0, 1).
    kappa : float
        Sharpness, positive; `inf` gives the pinball loss itself. The loss exceeds it by `log(2) / kappa` at most.

    Returns
    -------
    float or ndarray
        Of the shape of `u`.

    Raises
    ------
    InputError
        For residuals that are not finite, a level outside (0, 1) or a sharpness that is not positive.

    Examples
    --------
    >>> smooth_pinball([-0.1, 0.0, 0.1], tau=0.98, kappa=50).round(4)
    array([0.0021, 0.0139, 0.0981])
    >>> smooth_pinball([-0.1, 0.1], tau=0.98, kappa=float("inf"))
    array([0.002, 0.098])
    """
    check_level(tau, "tau")
    if not is_number(kappa) or not kappa > 0:
        raise InputError(f"kappa must be positive, got {kappa!r}")
    try:
        residuals = np.asarray(u, dtype=float)
    except (TypeError, ValueError):
        raise InputError("u must be numbers") from None
    if not np.isfinite(residuals).all():
        raise InputError("u must be finite")
    loss = pinball(residuals, tau) if math.isinf(kappa) else _smooth(residuals, tau, kappa)
    return loss if loss.ndim else float(loss)


def check_level(value: float, name: str) -> None:
    """Refuse a level that is not a number strictly between 0 and 1."""
    if not is_number(value) or not 0 < value < 1:
        raise InputError(f"{name} must lie between 0 and 1, got {value!r}")


def is_number(value: object) -> bool:
    """Whether a setting is a real number (True and False are none)."""
    return isinstance(value, (int, float, np.number)) and not isinstance(value, (bool, np.bool_, np.complexfloating))


def pinball(u: Array, tau: float) -> Array:
    """The pinball loss itself."""
    return np.maximum(tau * u, (tau - 1) * u)


def _smooth(u: Array, tau: float, kappa: float) -> Array:
    return np.logaddexp(0.0, kappa * u) / kappa + (tau - 1) * u


def quantile_programme(basis: Array, y: Array, tau: float, weights: Array) -> Array:
    """Coefficients c >= 0 with sum(c) <= 1 that minimise the weighted pinball loss of `y - basis @ c`.

    With a basis that rises from 0 to 1, and a first column of ones, the curve is monotone and stays in [0, 1]. Solved
    by HiGHS in the dual, whose few rows (one a coefficient) make it fast: maximise y'd - mu over d in w [tau - 1, tau]
    and mu >= 0 with basis'd <= mu.
    """
    from scipy.optimize import linprog

    n, k = basis.shape
    bounds = [*zip(weights * (tau - 1), weights * tau, strict=True), (0.0, None)]
    found = linprog(
        np.concatenate([-y, [1.0]]), A_ub=np.column_stack([basis.T, -np.ones(k)]), b_ub=np.zeros(k), bounds=bounds,
        method="highs",
    )
    if found.x is None:
        raise ArithmeticError(f"the quantile programme on {n} rows found no optimum: {found.message}")
    coefficients = np.maximum(-np.asarray(found.ineqlin.marginals), 0.0)
    return coefficients / max(1.0, coefficients.sum())
