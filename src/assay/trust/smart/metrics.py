"""How well confidences match the share of correct answers, and how well they rank the answers.

The first are the measures of arXiv 2506.23492; the others are there because they tell what those hide.

No single number will do. The equal-width ECE with 15 bins is what SMART is trained on, so it flatters SMART; it is
biased upward on small samples; and giving every row the same confidence makes it vanish. Hence beside it: equal-mass
bins, a debiased squared error, an error free of bins, two proper scores (log loss, Brier), and the area under the
ROC curve of confidence against correctness, which tells whether confident answers are the right ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dct, idct
from scipy.optimize import brentq
from scipy.stats import rankdata

from assay.errors import InputError

from .inputs import as_labels, as_probabilities, check_positive

Array = NDArray[np.float64]

# Cells of the grid on which the smooth calibration error is computed.
GRID = 2000


def ece(probs: Any, y: Any, n_bins: int = 15, strategy: str = "uniform", norm: float = 1) -> float:
    """Expected calibration error of the top-class confidences.

    ``(sum_b (n_b / n) |mean confidence - mean correctness|^norm)^(1/norm)`` over bins of confidence.

    Parameters
    ----------
    probs : array or torch tensor of shape [n, K]
        Probabilities.
    y : array or torch tensor of shape [n]
        Labels in 0..K-1.
    n_bins : int, default 15
        Number of bins.
    strategy : {"uniform", "quantile"}, default "uniform"
        Bins of equal width on [0, 1], right end included; or of equal numbers of rows ("adaptive ECE").
    norm : float, default 1
        Exponent p >= 1.

    Returns
    -------
    float
        Error in units of probability.

    Raises
    ------
    InputError
        Where the arrays are malformed or a parameter is out of range.

    References
    ----------
    Naeini et al. 2015; Guo et al. 2017; equal-mass bins: Nixon et al. 2019.

    Examples
    --------
    >>> probs = [[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.6, 0.4]]
    >>> round(ece(probs, [0, 0, 0, 1]), 6)
    0.1
    """
    if not isinstance(n_bins, (int, np.integer)) or n_bins < 1:
        raise InputError(f"n_bins must be a whole number of at least 1, got {n_bins!r}")
    if not isinstance(norm, (int, float, np.number)) or not norm >= 1 or norm == np.inf:
        raise InputError(f"norm must be a finite number of at least 1, got {norm!r}")
    if strategy not in ("uniform", "quantile"):
        raise InputError(f"strategy must be uniform or quantile, got {strategy!r}")
    confidence, correct = top_class(as_probabilities(probs), y)
    return binned_error(confidence, correct, n_bins, strategy, norm)


def smooth_ece(probs: Any, y: Any) -> float:
    """Smooth calibration error of the top-class confidences: no bins, no bandwidth to choose.

    With residuals ``correct - confidence`` smeared by a Gaussian of width s reflected at 0 and 1, the error at s is
    the integral of the absolute smeared residual. It falls with s; the result is the fixed point where it equals s.

    Parameters
    ----------
    probs : array or torch tensor of shape [n, K]
        Probabilities.
    y : array or torch tensor of shape [n]
        Labels in 0..K-1.

    Returns
    -------
    float
        Error in units of probability, to a resolution of 5e-4.

    Raises
    ------
    InputError
        Where the arrays are malformed.

    References
    ----------
    Blasiok and Nakkiran, Smooth ECE, arXiv 2309.12236.

    Examples
    --------
    >>> probs = [[0.9, 0.1]] * 10
    >>> smooth_ece(probs, [0] * 9 + [1]) < 1e-3, smooth_ece(probs, [1] * 10) > 0.5
    (True, True)
    """
    confidence, correct = top_class(as_probabilities(probs), y)
    return smooth_error(confidence, correct)


def binned_error(confidence: Array, correct: Array, n_bins: int, strategy: str, norm: float = 1) -> float:
    """`ece` from confidences and correctness [n]."""
    bins = uniform_bins(confidence, n_bins) if strategy == "uniform" else quantile_bins(confidence, n_bins)
    rows = np.bincount(bins, minlength=n_bins)
    gap = np.abs(np.bincount(bins, confidence - correct, n_bins)) / np.maximum(rows, 1)
    return float((rows / len(bins) @ gap**norm) ** (1.0 / norm))


def smooth_error(confidence: Array, correct: Array) -> float:
    """`smooth_ece` from confidences and correctness [n]."""
    cell = np.minimum((confidence * GRID).astype(int), GRID - 1)
    residual = np.bincount(cell, correct - confidence, GRID) / len(cell)
    # Reflected at both ends, a Gaussian only damps the cosines of which the residual is made.
    cosines = dct(residual, norm="ortho")
    frequency = np.pi * np.arange(GRID)

    def excess(width: float) -> float:
        smeared = idct(cosines * np.exp(-0.5 * (frequency * width) ** 2), norm="ortho")
        return float(np.abs(smeared).sum() - width)

    narrowest = 0.5 / GRID
    if excess(narrowest) <= 0:
        return narrowest + excess(narrowest)
    return float(brentq(excess, narrowest, 1.0, xtol=1e-6))


def debiased_l2_error(probs: Any, y: Any, n_bins: int = 15) -> float:
    """Root of the squared calibration error in equal-mass bins, less what the noise of the bin means adds to it.

    The plug-in square of a bin's gap is too large by the variance ``A_b (1 - A_b) / (n_b - 1)`` of its accuracy
    (Kumar, Liang and Ma 2019, arXiv 1909.10155). Where the correction exceeds the plug-in value the error is zero.
    """
    check_positive(n_bins=n_bins)
    confidence, correct = top_class(as_probabilities(probs), y)
    bins = quantile_bins(confidence, n_bins)
    rows = np.maximum(np.bincount(bins, minlength=n_bins), 1)
    gap = np.bincount(bins, confidence - correct, n_bins) / rows
    accuracy = np.bincount(bins, correct, n_bins) / rows
    noise = accuracy * (1.0 - accuracy) / np.maximum(rows - 1, 1)
    return float(np.sqrt(max(0.0, rows / len(bins) @ (gap**2 - noise))))


def summary(log_probs: Array, y: Any) -> dict[str, float]:
    """All the metrics of one set of predictions, from log-probabilities [n, K], so that none is infinite."""
    probs = np.exp(log_probs)
    labels = as_labels(y, probs)
    confidence, correct = top_class(probs, labels)
    return {
        "accuracy": float(correct.mean()),
        "ece": ece(probs, labels),
        "ada_ece": ece(probs, labels, strategy="quantile"),
        "l2_debiased": debiased_l2_error(probs, labels),
        "smooth_ece": smooth_ece(probs, labels),
        "nll": float(-log_probs[np.arange(len(labels)), labels].mean()),
        "brier": float(brier_rows(probs, labels).mean()),
        "auroc": auroc(confidence, correct),
        "risk_coverage": risk_coverage(confidence, correct),
    }


def brier_rows(probs: Array, labels: NDArray[np.intp]) -> Array:
    """Brier score of each row: squared distance of its probabilities to the one-hot label, between 0 and 2."""
    at_label = probs[np.arange(len(labels)), labels]
    return np.einsum("ik,ik->i", probs, probs) - 2.0 * at_label + 1.0


def auroc(confidence: Array, correct: Array) -> float:
    """Chance that a right answer is more confident than a wrong one, ties one half; NaN if there is no pair."""
    right = correct.sum()
    wrong = len(correct) - right
    if right == 0 or wrong == 0:
        return float("nan")
    return float((rankdata(confidence) @ correct - right * (right + 1) / 2) / (right * wrong))


def risk_coverage(confidence: Array, correct: Array) -> float:
    """Mean error rate among the most confident rows, over all coverages; rows of equal confidence enter together.

    Each row of a tie is counted with the tie's mean error, which is the expectation over random orders of the tie.
    """
    _, tie = np.unique(-confidence, return_inverse=True)
    wrong = (np.bincount(tie, 1.0 - correct) / np.bincount(tie))[tie]
    order = np.argsort(-confidence, kind="stable")
    return float((np.cumsum(wrong[order]) / np.arange(1, len(order) + 1)).mean())


def top_class(probs: Array, y: Any) -> tuple[Array, Array]:
    """Confidence [n] of the top class, and 1 where it is the label."""
    labels = as_labels(y, probs)
    return probs.max(axis=1), (probs.argmax(axis=1) == labels).astype(np.float64)


def uniform_bins(confidence: Array, n_bins: int) -> NDArray[np.intp]:
    """Bin of each confidence among equal-width bins (left end excluded, right end included)."""
    return np.clip(np.ceil(confidence * n_bins) - 1, 0, n_bins - 1).astype(np.intp)


def quantile_bins(confidence: Array, n_bins: int) -> NDArray[np.intp]:
    """Bin of each confidence among bins with equal numbers of rows."""
    rank = np.empty(len(confidence), dtype=np.intp)
    rank[np.argsort(confidence, kind="stable")] = np.arange(len(confidence))
    return rank * n_bins // len(confidence)
