"""The calibration error that SMART minimises, smooth in the confidences, with its gradient.

A classifier's confidence ``c_i`` is the probability of its top class, its correctness ``a_i`` is 1 where the top
class is the label and 0 elsewhere. The expected calibration error puts the rows into bins of confidence and adds up
``|mean confidence - mean correctness|``: a step function of the confidences, useless to a gradient method. Two
changes make it smooth (arXiv 2506.23492, section on the Charbonnier soft ECE; constants as in the authors' code):

1. *Soft bins.* With centres ``m_b = (b + 1/2) / B`` each row belongs to every bin a little:
   ``r_ib = exp(-(c_i - m_b)^2 / (2 sigma^2)) / sum_b' exp(-(c_i - m_b')^2 / (2 sigma^2))``.
2. *A rounded absolute value* (Charbonnier): ``sqrt(gap_b^2 + delta^2)`` in the place of ``|gap_b|``.

With the mass ``M_b = sum_i r_ib`` and the gap ``gap_b = C_b - A_b`` of the mass-weighted means the loss is
``L = sum_b (M_b / n) sqrt(gap_b^2 + delta^2)``. As ``|g| <= sqrt(g^2 + delta^2) <= |g| + delta`` and the masses add
up to ``n``, L lies between the soft ECE (``delta = 0``) and the soft ECE plus ``delta``, and never below ``delta``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import InputError

from .inputs import (
    SMALLEST_PROBABILITY,
    are_probabilities,
    as_labels,
    as_logits,
    check_bandwidth,
    check_positive,
    is_torch,
    to_numpy,
)

Array = NDArray[np.float64]

SMALLEST_MASS = 1e-12
# Gaps below this count as so large in the curvature: at a gap of zero that of an absolute value has no bound.
LEAST_PSI = 1e-3


def charbonnier_soft_ece(
    logits: Any, y: Any, n_bins: int = 15, sigma: float = 0.05, delta: float = 1e-3
) -> Any:
    """Charbonnier-smoothed soft expected calibration error of the top-class confidences.

    Parameters
    ----------
    logits : array or torch tensor of shape [n, K]
        Logits; divide them by a temperature first to score that temperature.
    y : array or torch tensor of shape [n]
        Labels in 0..K-1.
    n_bins : int, default 15
        Number B of soft bins on [0, 1].
    sigma : float, default 0.05
        Bandwidth of a bin, in units of confidence.
    delta : float, default 1e-3
        Rounding of the absolute value, in units of confidence; 0 gives the plain soft ECE.

    Returns
    -------
    float or torch scalar
        The loss, in units of confidence. For a torch tensor it is differentiable in `logits`.

    Raises
    ------
    InputError
        Where `logits` or `y` are malformed, or a parameter is out of range.

    References
    ----------
    arXiv 2506.23492, Charbonnier-SoftECE.

    Examples
    --------
    >>> import numpy as np
    >>> logits = np.log([[0.8, 0.2], [0.8, 0.2], [0.8, 0.2], [0.8, 0.2], [0.8, 0.2]])
    >>> round(charbonnier_soft_ece(logits, [0, 0, 0, 0, 1]), 6)  # confidence .8, accuracy .8: only delta is left
    0.001
    """
    if not isinstance(n_bins, (int, np.integer)) or isinstance(n_bins, bool) or n_bins < 1:
        raise InputError(f"n_bins must be a whole number of at least 1, got {n_bins!r}")
    check_bandwidth(sigma)
    check_positive(delta=delta, zero_allowed=True)
    if is_torch(logits):
        return _torch_charbonnier_soft_ece(logits, y, n_bins, sigma, delta)
    scores = as_logits(logits)
    labels = as_labels(y, scores)
    top = scores.max(axis=1, keepdims=True)
    confidence = 1.0 / np.exp(scores - top).sum(axis=1)
    correct = (scores.argmax(axis=1) == labels).astype(np.float64)
    return SoftECE(n_bins, sigma, delta)(confidence, correct)[0]


class SoftECE:
    """Value and gradient of the (Charbonnier) soft ECE as a function of the confidences.

    Calling it with confidences [n] and correctness [n] gives the loss and its derivative [n] by each confidence.
    The confidence enters twice, through the bin mean ``C_b`` and through the memberships ``r_ib``; both are
    differentiated. With ``psi_b = sqrt(gap_b^2 + delta^2)`` and ``psi'_b = gap_b / psi_b``::

        dL/dc_i = 1/n sum_b [ r_ib psi'_b + dr_ib/dc_i (psi_b + psi'_b (c_i - a_i - gap_b)) ]
        dr_ib/dc_i = r_ib (m_b - sum_b' r_ib' m_b') / sigma^2
    """

    def __init__(self, n_bins: int = 15, sigma: float = 0.05, delta: float = 1e-3) -> None:
        self.centres = (np.arange(n_bins) + 0.5) / n_bins
        self.sigma = sigma
        self.delta = delta
        # Up to a factor that cancels in r_ib, the kernel is exp(slope_b c + offset_b).
        self._slope = self.centres / sigma**2
        self._offset = -(self.centres**2) / (2.0 * sigma**2)

    def memberships(self, confidence: Array) -> Array:
        """Share ``r_ib`` of row i in bin b, as an array of shape [B, n]; columns add up to one."""
        kernel = np.multiply.outer(self._slope, confidence)
        kernel += self._offset[:, None]
        kernel -= kernel.max(axis=0)
        np.exp(kernel, out=kernel)
        kernel /= kernel.sum(axis=0)
        return kernel

    def __call__(self, confidence: Array, correct: Array) -> tuple[float, Array]:
        return self._evaluate(confidence, correct)[:2]

    def with_curvature(self, confidence: Array, correct: Array) -> tuple[float, Array, Array]:
        """Loss, derivative [n] and roots [B, n] of its curvature: their squares add up to a Gauss-Newton matrix.

        ``psi_b`` is bounded from above by the parabola in ``gap_b`` that touches it at the present gap, whose second
        derivative is ``1 / psi_b``. With gaps linear in the confidences the roots are
        ``sqrt(M_b / (n psi_b)) dgap_b/dc_i``.
        """
        loss, gradient, (share, excess, mass, gap, psi, centre) = self._evaluate(confidence, correct)
        by_centre = share * (self.centres[:, None] - centre) / self.sigma**2
        roots = share + by_centre * (excess - gap[:, None])
        scale = len(confidence) * np.maximum(psi, LEAST_PSI) * np.maximum(mass, SMALLEST_MASS)
        return loss, gradient, roots / np.sqrt(scale)[:, None]

    def _evaluate(self, confidence: Array, correct: Array) -> tuple[float, Array, tuple[Array, ...]]:
        n = len(confidence)
        share = self.memberships(confidence)
        excess = confidence - correct
        mass = share.sum(axis=1)
        gap = share @ excess / np.maximum(mass, SMALLEST_MASS)
        psi = np.sqrt(gap**2 + self.delta**2)
        # At delta = 0 the absolute value has no derivative at a gap of zero; zero is a subgradient.
        slope = np.divide(gap, psi, out=np.zeros_like(gap), where=psi > 0)
        centre = self.centres @ share
        level = psi - slope * gap
        # sum_b r_ib f_b and sum_b r_ib m_b f_b for f = slope and f = level, in one product
        weights = np.stack([slope, level, slope * self.centres, level * self.centres])
        s, v, sm, vm = weights @ share
        gradient = s + ((vm - centre * v) + (sm - centre * s) * excess) / self.sigma**2
        return float(mass @ psi / n), gradient / n, (share, excess, mass, gap, psi, centre)


def _torch_charbonnier_soft_ece(logits: Any, y: Any, n_bins: int, sigma: float, delta: float) -> Any:
    import torch

    as_labels(y, as_logits(logits))
    labels = torch.as_tensor(y, device=logits.device)
    if not logits.is_floating_point():
        logits = logits.double()
    # The check above has warned.
    if are_probabilities(np.asarray(to_numpy(logits), dtype=np.float64)):
        logits = logits.clamp_min(max(SMALLEST_PROBABILITY, torch.finfo(logits.dtype).tiny)).log()
    confidence, predicted = torch.softmax(logits, dim=1).max(dim=1)
    return torch_soft_ece(confidence, (predicted == labels).to(logits.dtype), n_bins, sigma, delta)


def torch_soft_ece(confidence: Any, correct: Any, n_bins: int, sigma: float, delta: float) -> Any:
    """The same loss in torch, of confidences [n] and correctness [n]; differentiable in the confidences."""
    import torch

    centres = (torch.arange(n_bins, dtype=confidence.dtype, device=confidence.device) + 0.5) / n_bins
    share = torch.softmax(-((confidence[:, None] - centres) ** 2) / (2.0 * sigma**2), dim=1)
    mass = share.sum(dim=0)
    clamped = mass.clamp_min(SMALLEST_MASS)
    gap = (share * confidence[:, None]).sum(dim=0) / clamped - (share * correct[:, None]).sum(dim=0) / clamped
    return (mass / len(confidence) * torch.sqrt(gap**2 + delta**2)).sum()
