"""What a practitioner would use instead of SMART, each with the same two methods: `fit`, `predict_log_proba`.

| arm | what |
|---|---|
| none | the softmax as it is |
| ts | temperature scaling: one temperature, least negative log-likelihood (Guo et al. 2017) |
| ts-softece | one temperature that minimises SMART's loss: tells the objective from the map |
| vector | vector scaling: a factor and an offset for each class, least negative log-likelihood (Guo et al. 2017) |
| isotonic | isotonic regression of each class against the rest (scikit-learn) |
| histogram | histogram binning of each class against the rest, 15 bins of equal width (Zadrozny and Elkan 2001) |
| probmetrics-ts, probmetrics-svs | temperature and structured vector scaling of the package probmetrics |
| venn-abers | inductive Venn-Abers predictors of each class against the rest (package venn-abers) |
| constant | negative control: every row gets the validation accuracy as its confidence |

The control has almost no calibration error and is useless, as its confidences rank nothing: a claim about
calibration that it satisfies measures nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar
from scipy.special import log_softmax, softmax

from assay.study import Skip

from .metrics import uniform_bins
from .objective import SoftECE
from .rows import BLOCK, ValidationRows

Array = NDArray[np.float64]
Labels = NDArray[np.intp]

SMALLEST = 1e-30
COLDEST, HOTTEST = 1e-2, 1e3


class LogitCalibrator(Protocol):
    """A map of logits [n, K] to log-probabilities [n, K], learned on held-out rows."""

    def fit(self, logits: Array, y: Labels) -> LogitCalibrator: ...
    def predict_log_proba(self, logits: Array) -> Array: ...


class Uncalibrated:
    """The softmax as it is."""

    def fit(self, logits: Array, y: Labels) -> Uncalibrated:
        return self

    def predict_log_proba(self, logits: Array) -> Array:
        return log_softmax(logits, axis=1)


class TemperatureScaling:
    """One temperature for all rows; `objective` is "nll" or "softece"."""

    def __init__(self, objective: str = "nll") -> None:
        self.objective = objective

    def fit(self, logits: Array, y: Labels) -> TemperatureScaling:
        rows = ValidationRows.of(logits, y, np.zeros(len(y)))
        soft_ece = SoftECE()

        def loss(log_temperature: float) -> float:
            temperature = np.full(len(y), np.exp(log_temperature))
            if self.objective == "nll":
                return float(rows.nll(temperature)[0].mean())
            return soft_ece(rows.confidence(temperature)[0], rows.correct)[0]

        # The likelihood has one minimum in log T, the soft ECE may have several: look on a grid, then refine. It is
        # wide, for logits of any scale: logarithms of probabilities near zero, say, ask for temperatures above 20.
        grid = np.linspace(np.log(1e-3), np.log(1e5), 76)
        best = int(np.argmin([loss(point) for point in grid]))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
        found = minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-6})
        self.temperature_ = float(np.exp(found.x))
        return self

    def predict_log_proba(self, logits: Array) -> Array:
        return log_softmax(logits / self.temperature_, axis=1)

    def predict_proba(self, logits: Array) -> Array:
        """Probabilities [n, K]: the peer of SMART's prediction time, in blocks, by the fastest arithmetic we know."""
        probs = np.array(logits, order="C")
        ones, colder = np.ones(logits.shape[1]), 1.0 / self.temperature_
        for start in range(0, len(probs), BLOCK):
            rows = probs[start : start + BLOCK]
            # Short rows are searched several times faster as columns.
            rows -= np.array(rows.T, order="C").max(axis=0)[:, None]
            rows *= colder
            np.exp(rows, out=rows)
            rows /= (rows @ ones)[:, None]
        return probs


class VectorScaling:
    """``softmax(w * z + b)`` with rows centred first, as logits are known up to a constant a row."""

    def fit(self, logits: Array, y: Labels) -> VectorScaling:
        z, n, k = _centred(logits), *logits.shape
        target = np.zeros((n, k))
        target[np.arange(n), y] = 1.0

        def loss(weights: Array) -> tuple[float, Array]:
            log_p = log_softmax(weights[:k] * z + weights[k:], axis=1)
            error = (np.exp(log_p) - target) / n
            return float(-log_p[np.arange(n), y].mean()), np.concatenate([(error * z).sum(0), error.sum(0)])

        start = np.concatenate([np.ones(k), np.zeros(k)])
        self.weights_ = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 200}).x
        return self

    def predict_log_proba(self, logits: Array) -> Array:
        k = logits.shape[1]
        return log_softmax(self.weights_[:k] * _centred(logits) + self.weights_[k:], axis=1)


class Isotonic:
    """Isotonic regression of each class's probability against the rest, normalised over classes."""

    def fit(self, logits: Array, y: Labels) -> Isotonic:
        from sklearn.isotonic import IsotonicRegression

        self.maps_ = [
            IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(p, y == k).predict
            for k, p in enumerate(softmax(logits, axis=1).T)
        ]
        return self

    def predict_log_proba(self, logits: Array) -> Array:
        return _one_against_rest(self.maps_, softmax(logits, axis=1))


class HistogramBinning:
    """The share of a class among the validation rows of a bin of its probability, normalised over classes."""

    def __init__(self, n_bins: int = 15) -> None:
        self.n_bins = n_bins

    def fit(self, logits: Array, y: Labels) -> HistogramBinning:
        self.maps_ = [self._map(p, y == k) for k, p in enumerate(softmax(logits, axis=1).T)]
        return self

    def predict_log_proba(self, logits: Array) -> Array:
        return _one_against_rest(self.maps_, softmax(logits, axis=1))

    def _map(self, p: Array, is_class: NDArray[np.bool_]) -> Callable[[Array], Array]:
        bins = uniform_bins(p, self.n_bins)
        rows = np.bincount(bins, minlength=self.n_bins)
        centres = (np.arange(self.n_bins) + 0.5) / self.n_bins
        # A bin without a validation row keeps its probability.
        share = np.where(rows > 0, np.bincount(bins, is_class, self.n_bins) / np.maximum(rows, 1), centres)
        return lambda new: share[uniform_bins(new, self.n_bins)]


class Probmetrics:
    """A calibrator of the package probmetrics, by its name there."""

    def __init__(self, name: str) -> None:
        self.name = name

    def fit(self, logits: Array, y: Labels) -> Probmetrics:
        _installed("probmetrics", "torch", "numba")
        import torch
        from probmetrics.calibrators import get_calibrator

        torch.set_num_threads(1)
        self.calibrator_ = get_calibrator(self.name)
        self.calibrator_.fit(softmax(logits, axis=1), y)
        return self

    def predict_log_proba(self, logits: Array) -> Array:
        return _log(np.asarray(self.calibrator_.predict_proba(softmax(logits, axis=1)), dtype=np.float64))


class VennAbers:
    """Inductive Venn-Abers predictors, one class against the rest (package venn-abers)."""

    def fit(self, logits: Array, y: Labels) -> VennAbers:
        _installed("venn_abers")
        if len(np.unique(y)) < logits.shape[1]:
            raise Skip("venn-abers needs a validation row of every class")
        self._fitted_on = softmax(logits, axis=1), y
        return self

    def predict_log_proba(self, logits: Array) -> Array:
        from venn_abers.venn_abers import predict_proba_prefitted_va

        probs, _ = predict_proba_prefitted_va(*self._fitted_on, softmax(logits, axis=1), va_tpe="one_vs_rest")
        return _log(probs)


class ConstantConfidence:
    """Negative control: a temperature for each row that makes its confidence the validation accuracy."""

    def fit(self, logits: Array, y: Labels) -> ConstantConfidence:
        accuracy = (logits.argmax(axis=1) == y).mean()
        self.confidence_ = float(np.clip(accuracy, 1.0 / logits.shape[1] + 1e-3, 1.0 - 1e-3))
        return self

    def predict_log_proba(self, logits: Array) -> Array:
        rows = ValidationRows.of(logits, np.zeros(len(logits), dtype=np.intp), np.zeros(len(logits)))
        low, high = np.full(len(logits), np.log(COLDEST)), np.full(len(logits), np.log(HOTTEST))
        # The confidence falls as the temperature rises: bisection, all rows at once.
        for _ in range(60):
            middle = 0.5 * (low + high)
            too_sure = rows.confidence(np.exp(middle))[0] > self.confidence_
            low, high = np.where(too_sure, middle, low), np.where(too_sure, high, middle)
        log_probs = log_softmax(logits / np.exp(middle)[:, None], axis=1)
        # To the last bit the same, or rounding would rank the rows; and no temperature lifts the top of a tie.
        top = np.arange(len(logits)), logits.argmax(axis=1)
        log_probs += np.log((1.0 - self.confidence_) / -np.expm1(log_probs[top]))[:, None]
        log_probs[top] = np.log(self.confidence_)
        return log_probs


BASELINES: dict[str, Callable[[], LogitCalibrator]] = {
    "none": Uncalibrated,
    "ts": TemperatureScaling,
    "ts-softece": lambda: TemperatureScaling("softece"),
    "vector": VectorScaling,
    "isotonic": Isotonic,
    "histogram": HistogramBinning,
    "probmetrics-ts": lambda: Probmetrics("temp-scaling"),
    "probmetrics-svs": lambda: Probmetrics("svs"),
    "venn-abers": VennAbers,
    "constant": ConstantConfidence,
}


def _centred(logits: Array) -> Array:
    return logits - logits.mean(axis=1, keepdims=True)


def _one_against_rest(maps: list[Callable[[Array], Array]], probs: Array) -> Array:
    """Log-probabilities of one map a class, normalised; a row that every map sends to zero keeps its softmax."""
    mapped = np.stack([to_share(p) for to_share, p in zip(maps, probs.T, strict=True)], axis=1)
    total = mapped.sum(axis=1, keepdims=True)
    return _log(np.where(total > 0, mapped / np.maximum(total, SMALLEST), probs))


def _log(probs: Array) -> Array:
    return np.log(np.maximum(probs, SMALLEST))


def _installed(*packages: str) -> None:
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise Skip(f"{', '.join(missing)} is not installed")
