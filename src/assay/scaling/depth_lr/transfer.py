"""The law of transfer, eta(L) = kappa L^-3/2 (arXiv 2602.07494), and its fit to rates tuned at several depths.

A rate eta0 that was tuned at effective depth L0 becomes eta0 (L / L0)^-3/2 at depth L. `DepthLRTransfer` fits kappa,
and the exponent as well where it is not given, to rates that were tuned at several depths: then the measured exponent,
and not the paper's, carries the rate to another depth.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from assay.errors import InputError, as_vector
from assay.scaling.links import log_slope

__all__ = ["EXPONENT", "DepthLRTransfer", "scale_lr"]

EXPONENT = -1.5

Array = NDArray[np.float64]


def scale_lr(lr: float, depth: float, base_depth: float, exponent: float = EXPONENT) -> float:
    """Carry a learning rate from one effective depth to another: `lr * (depth / base_depth) ** exponent`.

    The exponent -3/2 is that of arXiv 2602.07494 for plain SGD. Count both depths in the same way.

    Parameters
    ----------
    lr : float
        The rate that was tuned at `base_depth`.
    depth, base_depth : float
        Effective depths, 1 or more.
    exponent : float, default -1.5

    Returns
    -------
    float

    Raises
    ------
    InputError
        A rate that is not positive and finite, a depth below 1, an exponent that is not finite.

    Examples
    --------
    >>> round(scale_lr(0.1, 16, 4), 6)
    0.0125
    >>> scale_lr(0.1, 4, 4)
    0.1
    """
    rate, exponent = _number(lr, "lr"), _number(exponent, "exponent")
    if rate <= 0:
        raise InputError(f"lr must be positive, got {rate:g}")
    deep, base = (check_depth(value, name) for value, name in ((depth, "depth"), (base_depth, "base_depth")))
    try:
        carried = rate * (deep / base) ** exponent
    except OverflowError:
        carried = math.inf
    if not 0 < carried < math.inf:
        raise InputError(f"lr {rate:g} carried from depth {base:g} to {deep:g} is no floating point number")
    return carried


def check_depth(value: float, name: str) -> float:
    """A depth of 1 or more, as a float."""
    number = _number(value, name)
    if number < 1:
        raise InputError(f"{name} must be 1 or more, got {number:g}")
    return number


def _number(value: float, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise InputError(f"{name} must be a finite number, got {value!r}")
    return float(value)


class DepthLRTransfer(RegressorMixin, BaseEstimator):
    """The power law `lr = kappa * depth ** exponent`, fitted to tuned rates in logarithms (arXiv 2602.07494).

    Parameters
    ----------
    exponent : float, optional
        Kept fixed where given (-1.5 is the paper's): then `kappa_` alone is fitted, and one depth is enough.
    random_state : int, default 0
        Seed of the bootstrap of `ci_`.

    Attributes
    ----------
    exponent_, kappa_ : float
    ci_ : tuple of float
        95 % interval of the exponent over the rows (two equal numbers where the exponent was given). Of rates that were
        tuned with several seeds give each as a row of its own: four single rates make a wide interval.
    n_depths_ : int
        Different depths among the rows.

    Examples
    --------
    >>> law = DepthLRTransfer().fit([4, 8, 16, 32], [0.37, 0.11, 0.048, 0.021])
    >>> print(f"{law.exponent_:.2f}, and at depth 64: {law.predict([64])[0]:.4f}")
    -1.36, and at depth 64: 0.0076
    >>> law = DepthLRTransfer(exponent=-1.5).fit([4], [0.4])
    >>> law.predict([16]).round(3).tolist()
    [0.05]
    """

    def __init__(self, exponent: float | None = None, random_state: int = 0) -> None:
        self.exponent = exponent
        self.random_state = random_state

    def fit(self, depths: ArrayLike, lrs: ArrayLike) -> Self:
        """Fit to effective depths (n,) or (n, 1) and the best learning rate at each (n,).

        Raises
        ------
        InputError
            Values that are not positive and finite, depths below 1, or a single depth without a given exponent.
        """
        depth, rate = _depths(depths), np.asarray(as_vector(lrs, "lrs", positive=True), dtype=np.float64)
        if len(depth) != len(rate) or not len(depth):
            raise InputError(f"lrs has {len(rate)} rates for {len(depth)} depths")
        log_depth, log_rate = np.log(depth), np.log(rate)
        self.n_depths_ = len(np.unique(depth))
        if self.exponent is not None:
            self.exponent_ = _number(self.exponent, "exponent")
            self.ci_ = (self.exponent_, self.exponent_)
        else:
            if self.n_depths_ < 2:
                raise InputError("an exponent needs rates at two different depths at least; give `exponent` otherwise")
            found = log_slope(depth, rate, seed=self.random_state)
            self.exponent_, self.ci_ = found.estimate, (found.low, found.high)
        self.kappa_ = float(np.exp(log_rate.mean() - self.exponent_ * log_depth.mean()))
        if not 0 < self.kappa_ < math.inf:
            raise InputError("lrs span too many orders of magnitude for a power law of depth")
        self.n_features_in_ = 1
        return self

    def predict(self, depths: ArrayLike) -> Array:
        """Rates at effective depths (n,) or (n, 1)."""
        check_is_fitted(self)
        return self.kappa_ * _depths(depths) ** self.exponent_


def _depths(depths: ArrayLike) -> Array:
    array = np.asarray(depths)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    vector = np.asarray(as_vector(array, "depths"), dtype=np.float64)
    if len(vector) and vector.min() < 1:
        row = int(np.argmin(vector))
        raise InputError(f"depths must be 1 or more, got {vector[row]:g} in row {row}")
    return vector
