"""The map from a margin to a temperature: one hidden layer of 16 rectified units, 49 parameters.

``T(g) = softplus(w2 . relu(w1 g + b1) + b2) + t_min`` (arXiv 2506.23492; sizes as in the authors' code). It is
continuous and piecewise smooth, positive everywhere, and not forced to be monotone. All parameters lie in one vector
``[w1, b1, w2, b2]`` so that a quasi-Newton method can move them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class TemperatureNet:
    """Shape of the net; the parameters are handed in as one vector of 3 `hidden` + 1 numbers."""

    hidden: int = 16
    t_min: float = 0.1

    @property
    def size(self) -> int:
        return 3 * self.hidden + 1

    def initial(self, random: np.random.Generator) -> Array:
        """Uniform start on ``+-1/sqrt(inputs)`` of each layer, as torch starts a linear layer."""
        first = random.uniform(-1.0, 1.0, 2 * self.hidden)
        second = random.uniform(-1.0, 1.0, self.hidden + 1) / np.sqrt(self.hidden)
        return np.concatenate([first, second])

    def constant(self, temperature: float) -> Array:
        """Parameters that give every margin the same temperature (above `t_min`)."""
        weights = np.zeros(self.size)
        excess = temperature - self.t_min
        # Inverse of softplus: log(e^x - 1), written so that a large x does not overflow.
        weights[-1] = excess + np.log(-np.expm1(-excess))
        return weights

    def __call__(self, weights: Array, margin: Array) -> Array:
        """Temperatures [n] of (standardised) margins [n].

        Before the softplus the net is linear between its kinks ``-b1 / w1``: it is evaluated at those, and
        interpolated.
        """
        if not len(margin):
            return np.empty(0)
        h = self.hidden
        low, high = margin.min(), margin.max()
        idle = weights[:h] == 0.0
        kinks = -weights[h : 2 * h][~idle] / weights[:h][~idle]
        knots = np.concatenate([[low], np.sort(kinks[(kinks > low) & (kinks < high)]), [high]])
        layer = np.maximum(np.multiply.outer(knots, weights[:h]) + weights[h : 2 * h], 0.0)
        pre = layer @ weights[2 * h : 3 * h] + weights[3 * h]
        return _softplus(np.interp(margin, knots, pre)) + self.t_min

    def with_pullback(self, weights: Array, margin: Array, ramp: float = 0.0) -> tuple[Array, Pullback]:
        """Temperatures [n], and the function that turns dL/dT [n] into dL/dweights.

        The derivative of a rectified unit jumps from 0 to 1 at its kink. With a `ramp` the function takes it to rise
        evenly over that width, in units of the unit's input; the temperatures are the net's all the same.
        """
        h = self.hidden
        w1, b1, w2, b2 = weights[:h], weights[h : 2 * h], weights[2 * h : 3 * h], weights[3 * h]
        layer = np.multiply.outer(w1, margin)
        layer += b1[:, None]
        active = np.clip(layer / ramp + 0.5, 0.0, 1.0) if ramp else (layer > 0).astype(np.float64)
        np.maximum(layer, 0.0, out=layer)
        pre = w2 @ layer + b2
        return _softplus(pre) + self.t_min, Pullback(margin, w2, layer, pre, active)


@dataclass(frozen=True)
class Pullback:
    """Derivatives of the temperatures [n] by the parameters, at the parameters where they were evaluated."""

    margin: Array
    w2: Array
    layer: Array
    pre: Array
    active: Array

    def __call__(self, by_temperature: Array) -> Array:
        """dL/dweights [..., 3 hidden + 1] from dL/dT [..., n], one loss a row."""
        by_pre = by_temperature * self.by_pre
        by_w1, by_b1 = self.w2 * (np.stack([by_pre * self.margin, by_pre]) @ self.active.T)
        return np.concatenate([by_w1, by_b1, by_pre @ self.layer.T, by_pre.sum(axis=-1, keepdims=True)], axis=-1)

    def curvature(self, by_temperature_twice: Array) -> Array:
        """Gauss-Newton matrix of a loss that is a sum over rows, from its second derivatives by each T [n]."""
        each = self.w2[:, None] * self.active
        by_weights = np.concatenate([each * self.margin, each, self.layer, np.ones((1, len(self.margin)))])
        return (by_weights * (by_temperature_twice * self.by_pre**2)) @ by_weights.T

    @property
    def by_pre(self) -> Array:
        """dT/dpre [n]: the derivative of softplus is the logistic function, written so that it can't overflow."""
        return 0.5 + 0.5 * np.tanh(0.5 * self.pre)


def _softplus(x: Array) -> Array:
    """log(1 + e^x) without overflow."""
    return np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0.0)
