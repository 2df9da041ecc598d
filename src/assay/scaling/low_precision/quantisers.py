"""Unbiased quantisers: which of the five quantities are rounded, how coarsely, and what a number of bits means.

All of the theory needs one thing of a quantiser Q: E[Q(u)] = u, with a stated second moment,

    multiplicative (as floating point)    E[(Q(u) - u)^2] = eps * u^2    relative step
    additive (as fixed point)             E[(Q(u) - u)^2] = eps          constant step

Rounding to nearest, which is what fake quantisation does, has no such property. Stochastic rounding has: on a grid of
step d its variance is f (1 - f) d^2 for a value at the fraction f between two grid points, d^2 / 6 on average.

Bits and eps are tied by one mapping everywhere: eps = (2/3) * 4**-bits * full_scale**2, the average variance of
stochastic rounding on 2**bits steps between -full_scale and full_scale (full_scale is 1, and has no meaning, for
floating point). In floating point `bits` are those of the significand with its sign: FP8 (e4m3) has 4, FP4 (e2m1) 2,
BF16 8; exponent bits don't make the step finer. The mapping is exact at the lower end of a binade and up to a factor of
four too large at its upper end. Source: arXiv 2602.19241 for the two modes; the mapping is reconstructed.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import InputError, nearest

__all__ = ["MODES", "QUANTITIES", "QuantScheme", "bits_to_eps", "eps_to_bits", "stochastic_round"]

Array = NDArray[np.float64]

MODES = ("none", "multiplicative", "additive", "float", "int")
QUANTITIES = ("data", "label", "param", "activation", "gradient")


@dataclass(frozen=True)
class QuantScheme:
    """Which quantities of a training step are quantised, in which mode, and how coarsely.

    Parameters
    ----------
    mode : {"none", "multiplicative", "additive", "float", "int"}
        The first two after "none" are the theory's quantisers, `u + sqrt(eps) |u| s` and `u + sqrt(eps) s` with a fair
        sign s: exactly the stated second moment, nothing clips. The last two are real stochastic rounding, to a
        significand of so many bits and to an integer grid.
    data, label, param, activation, gradient : float
        eps for the theory's quantisers, bits for real rounding; 0 leaves the quantity as it is. `data` is the sketched
        feature Sx, `param` the weights as the forward pass reads them, `activation` the prediction, `gradient` the
        derivative of the loss with respect to it.
    full_scale : float
        For "int": the grid reaches from -full_scale to full_scale, and what lies beyond is clipped.

    Raises
    ------
    InputError
        An unknown mode, a negative eps, fewer bits than 1, a number that is not finite, a quantity with mode "none".

    Notes
    -----
    Source: arXiv 2602.19241.

    Examples
    --------
    >>> QuantScheme("additive", data=0.01, param=0.01).eps("param")
    0.01
    >>> round(QuantScheme("int", data=4, full_scale=2.0).eps("data"), 4)
    0.0104
    """

    mode: str = "none"
    data: float = 0.0
    label: float = 0.0
    param: float = 0.0
    activation: float = 0.0
    gradient: float = 0.0
    full_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InputError(
                f"mode must be one of {', '.join(MODES)}, got {self.mode!r}{nearest(str(self.mode), list(MODES))}"
            )
        for name in QUANTITIES:
            self._check(name, _number(getattr(self, name), name))
        if not _number(self.full_scale, "full_scale") > 0:
            raise InputError(f"full_scale must be positive, got {self.full_scale}")

    @property
    def is_relative(self) -> bool:
        """Whether the step follows the value."""
        return self.mode in ("multiplicative", "float")

    @property
    def is_rounding(self) -> bool:
        """Whether this is real rounding, given in bits."""
        return self.mode in ("float", "int")

    def eps(self, quantity: str) -> float:
        """Second moment of the error of one quantity, relative or absolute as the mode is."""
        if quantity not in QUANTITIES:
            raise InputError(
                f"quantity must be one of {', '.join(QUANTITIES)}, got {quantity!r}"
                f"{nearest(str(quantity), list(QUANTITIES))}"
            )
        value = float(getattr(self, quantity))
        if value == 0 or not self.is_rounding:
            return value
        return bits_to_eps(value, self.full_scale if self.mode == "int" else 1.0)

    def split(self, quantity: str) -> tuple[float, float]:
        """(relative, absolute) second moment of one quantity; at least one is 0."""
        eps = self.eps(quantity)
        return (eps, 0.0) if self.is_relative else (0.0, eps)

    def _check(self, name: str, value: float) -> None:
        if self.mode == "none" and value:
            raise InputError(f"mode none quantises nothing, got {name} = {value:g}")
        if value < 0:
            raise InputError(f"{name} must not be negative, got {value:g}")
        if self.is_rounding and 0 < value < 1:
            raise InputError(f"{name} needs at least 1 bit (0 leaves it as it is), got {value:g}")


def bits_to_eps(bits: Any, full_scale: float = 1.0) -> Any:
    """Second moment of stochastic rounding with so many bits: `(2/3) * 4**-bits * full_scale**2`.

    Parameters
    ----------
    bits : float or array-like
        At least 1. Of a floating-point format the significand's, sign included.
    full_scale : float, default 1.0
        Half of the range of a fixed-point format.

    Returns
    -------
    float or ndarray

    Raises
    ------
    InputError
        Fewer bits than 1, a number that is not finite.

    Notes
    -----
    Reconstructed: the average of f (1 - f) d^2 with d = 2 full_scale / 2**bits.

    Examples
    --------
    >>> bits_to_eps(4)
    0.0026041666666666665
    >>> round(eps_to_bits(bits_to_eps(6.5)), 9)
    6.5
    """
    array = _array(bits, "bits")
    if (array < 1).any():
        raise InputError(f"bits must be at least 1, got {array.min():g}")
    return _like(bits, 2 / 3 * 4.0**-array * _positive(full_scale, "full_scale") ** 2)


def eps_to_bits(eps: Any, full_scale: float = 1.0) -> Any:
    """The inverse of `bits_to_eps`; steps so coarse that they need no whole bit give less than 1.

    Parameters
    ----------
    eps : float or array-like
        Not negative; 0 gives infinity.
    full_scale : float, default 1.0
        Half of the range of a fixed-point format.

    Returns
    -------
    float or ndarray

    Raises
    ------
    InputError
        A negative eps, a number that is not finite.

    Notes
    -----
    Reconstructed, see `bits_to_eps`.

    Examples
    --------
    >>> round(eps_to_bits(0.01), 3)
    3.029
    """
    array = _array(eps, "eps")
    if (array < 0).any():
        raise InputError(f"eps must not be negative, got {array.min():g}")
    with np.errstate(divide="ignore"):
        return _like(eps, -np.log(1.5 * array / _positive(full_scale, "full_scale") ** 2) / np.log(4.0))


def stochastic_round(
    u: ArrayLike, step: float | None = None, rel_eps: float | None = None,
    generator: np.random.Generator | int | None = None,
) -> Array:
    """Round to a grid up or down at random, so that the mean is the value itself.

    Parameters
    ----------
    u : array-like
        Finite numbers.
    step : float, optional
        Constant step of the grid: the variance is `f (1 - f) step**2` at the fraction f.
    rel_eps : float, optional
        Instead: a step that follows the value's power of two, `2**floor(log2|u|) * 2**(1 - bits)`, with the bits that
        `eps_to_bits` gives for rel_eps (as floating point has it, without limits on the exponent).
    generator : numpy.random.Generator or int, optional
        Source of the randomness, or its seed.

    Returns
    -------
    ndarray, of u's shape

    Raises
    ------
    InputError
        Neither or both of `step` and `rel_eps`, or one that is not positive; values that are not finite.

    Notes
    -----
    Source: arXiv 2602.19241 asks for an unbiased quantiser; this one is the usual one.

    Examples
    --------
    >>> rounded = stochastic_round(np.full(10_000, 0.3), step=1.0, generator=0)
    >>> np.unique(rounded).tolist(), bool(abs(rounded.mean() - 0.3) < 0.02)
    ([0.0, 1.0], True)
    """
    values = _array(u, "u")
    if (step is None) == (rel_eps is None):
        raise InputError("give either step or rel_eps")
    rng = np.random.default_rng(_seed(generator))
    if step is not None:
        return round_at(values, np.asarray(_positive(step, "step")), rng.random(values.shape))
    bits = eps_to_bits(_positive(rel_eps, "rel_eps"))
    return round_at(values, float_step(values, bits), rng.random(values.shape))


def float_step(u: Array, bits: Any) -> Array:
    """The step between neighbours of u among numbers with a significand of so many bits, sign included."""
    with np.errstate(divide="ignore"):
        return np.exp2(np.where(u == 0, 0.0, np.floor(np.log2(np.abs(u)))) + 1.0 - bits)


def round_at(u: Array, step: Array, uniform: Array) -> Array:
    """Round u on a grid through 0: up where the fraction exceeds one minus a uniform number."""
    return np.floor(u / step + uniform) * step


def _seed(generator: Any) -> Any:
    if generator is None or isinstance(generator, np.random.Generator):
        return generator
    if isinstance(generator, bool) or not isinstance(generator, int | np.integer) or generator < 0:
        raise InputError(f"generator must be a numpy Generator or a seed of 0 or more, got {generator!r}")
    return int(generator)


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not np.isfinite(float(value)):
        raise InputError(f"{name} must be a finite number, got {value!r}")
    return float(value)


def _positive(value: Any, name: str) -> float:
    number = _number(value, name)
    if number <= 0:
        raise InputError(f"{name} must be positive, got {number:g}")
    return number


def _array(values: Any, name: str) -> Array:
    try:
        array = np.array(values, dtype=float)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be numbers, got {str(values)[:40]!r}") from None
    if not array.size or not np.isfinite(array).all():
        raise InputError(f"{name} must be finite numbers, at least one")
    return array


def _like(given: Any, array: Array) -> Any:
    return float(array) if np.ndim(given) == 0 else array
