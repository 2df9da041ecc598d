"""The rows of a validation set as functions of their temperatures: confidence and negative log-likelihood.

Dividing a row by a positive temperature never changes its order, so the classes are sorted once and only the
differences ``D_ik = z_ik - z_i1 <= 0`` to the largest logit are kept. With ``S_i(T) = sum_k exp(D_ik / T)``:

- confidence ``c_i = 1 / S_i`` and ``dc_i/dT = c_i sum_k p_ik D_ik / T^2 <= 0``: a larger temperature lowers it;
- negative log-likelihood ``log S_i - D_iy / T`` and its derivative ``(D_iy - sum_k p_ik D_ik) / T^2``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

Array = NDArray[np.float64]

# Beyond this many classes the small ones are summed only in the rows where they can matter.
MANY_CLASSES = 100
KEPT_CLASSES = 64
NEGLIGIBLE = 1e-9
FEW_CLASSES = 40
# Rows handled at a time in prediction.
BLOCK = 4096


@dataclass(frozen=True)
class ValidationRows:
    """Rows prepared for many evaluations at different temperatures.

    Attributes
    ----------
    score : array [n]
        Standardised input of the temperature net.
    below : array [n, K - 1]
        Differences of the other logits to the largest, from the runner-up down; none is positive.
    label : array [n]
        Difference of the label's logit to the largest.
    correct : array [n]
        1 where the top class is the label.
    """

    score: Array
    below: Array
    label: Array
    correct: Array

    @classmethod
    def of(cls, logits: Array, labels: NDArray[np.intp], score: Array) -> ValidationRows:
        ordered = -np.sort(-logits, axis=1)
        top = ordered[:, 0]
        label = logits[np.arange(len(logits)), labels] - top
        correct = (logits.argmax(axis=1) == labels).astype(np.float64)
        return cls(score, ordered[:, 1:] - top[:, None], label, correct)

    def __len__(self) -> int:
        return len(self.score)

    def take(self, index: NDArray[np.intp]) -> ValidationRows:
        return ValidationRows(self.score[index], self.below[index], self.label[index], self.correct[index])

    def confidence(self, temperature: Array) -> tuple[Array, Array]:
        """Top-class probability [n] at temperatures [n], and its derivative by the temperature."""
        total, moment = self._sums(temperature)
        confidence = 1.0 / total
        return confidence, confidence**2 * moment / temperature**2

    def nll(self, temperature: Array) -> tuple[Array, Array]:
        """Negative log-likelihood [n] of the labels at temperatures [n], and its derivative."""
        total, moment = self._sums(temperature)
        return np.log(total) - self.label / temperature, (self.label - moment / total) / temperature**2

    def nll_curvature(self, temperature: Array) -> Array:
        """Gauss-Newton second derivative [n] of the negative log-likelihood by the temperature.

        It is convex in 1/T with the variance of ``D_ik`` under the probabilities as second derivative; what the bend
        of 1/T adds is left out, so that no entry is negative.
        """
        p = np.exp(self.below / temperature[:, None])
        p /= 1.0 + p.sum(axis=1, keepdims=True)
        mean = np.einsum("ik,ik->i", p, self.below)
        return (np.einsum("ik,ik,ik->i", p, self.below, self.below) - mean**2) / temperature**4

    def _sums(self, temperature: Array) -> tuple[Array, Array]:
        """``S_i`` and ``sum_k exp(D_ik / T) D_ik``; the largest class adds one to the first, zero to the second.

        With many classes the ones beyond the 64 largest add at most ``(K - 64) exp(D_i64 / T)``; rows where that
        bound is not negligible are summed in full.
        """
        kept = self.below if self.below.shape[1] < MANY_CLASSES else self.below[:, : KEPT_CLASSES - 1]
        terms = np.exp(kept / temperature[:, None])
        total = 1.0 + terms.sum(axis=1)
        moment = np.einsum("ik,ik->i", terms, kept)
        left_out = self.below.shape[1] - kept.shape[1]
        if left_out:
            loose = left_out * terms[:, -1] > NEGLIGIBLE * total
            rest = self.below[loose, kept.shape[1] :]
            terms = np.exp(rest / temperature[loose, None])
            total[loose] += terms.sum(axis=1)
            moment[loose] += np.einsum("ik,ik->i", terms, rest)
        return total, moment


def softmax_in_place(logits: Array, top: Array, temperature: Array) -> None:
    """Turn logits [n, K] with largest entries `top` [n] into probabilities at temperatures [n] (or one, [1]).

    The largest logit is subtracted first: a large margin over a small temperature must not overflow.
    """
    logits -= top[:, None]
    logits /= temperature[:, None]
    np.exp(logits, out=logits)
    # A product with ones sums short rows several times faster than a reduction along them.
    logits /= (logits @ np.ones(logits.shape[1]))[:, None]


def hardness(logits: Array, kind: str) -> Array:
    """The scalar [n] that the temperature is a function of; the paper's is the margin.

    ``margin``: largest minus second largest logit; ``max_logit``; ``entropy`` of the softmax in nats; ``energy``:
    minus the log-sum-exp of the logits. Only margin and entropy are unchanged by a constant added to a row.
    """
    return HARDNESS[kind](logits)


def top_two(logits: Array) -> tuple[Array, Array]:
    """Largest and second largest logit [n] of each row; equal ones count twice."""
    if logits.shape[1] > FEW_CLASSES:
        rest, rows = logits.copy(), np.arange(len(logits))
        place = rest.argmax(axis=1)
        first = rest[rows, place]
        rest[rows, place] = -np.inf
        return first, rest.max(axis=1)
    # Short rows are searched several times faster as columns.
    columns = np.array(logits.T, order="C", copy=True)
    first = columns.max(axis=0)
    at_top = columns == first
    np.copyto(columns, -np.inf, where=at_top)
    return first, np.where(at_top.sum(axis=0) > 1, first, columns.max(axis=0))


def _margin(logits: Array) -> Array:
    first, second = top_two(logits)
    return first - second


def _entropy(logits: Array) -> Array:
    log_p = logits - logsumexp(logits, axis=1, keepdims=True)
    return -(np.exp(log_p) * log_p).sum(axis=1)


HARDNESS = {
    "margin": _margin,
    "max_logit": lambda logits: logits.max(axis=1),
    "entropy": _entropy,
    "energy": lambda logits: -logsumexp(logits, axis=1),
}
