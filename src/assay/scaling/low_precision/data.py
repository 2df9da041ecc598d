"""Real features for the study: scikit-learn's digits, also behind random ReLU features, and diabetes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from assay.scaling.low_precision.spectra import RowsProblem, standardised

__all__ = ["diabetes", "digits", "digits_relu", "rows_problem"]

Array = NDArray[np.float64]

RELU_FEATURES = 2048


def digits() -> dict[str, Array]:
    """1,797 images of 64 pixels and the digit that each shows."""
    from sklearn.datasets import load_digits

    held = load_digits()
    return {"X": held.data.astype(float), "y": held.target.astype(float)}


def digits_relu() -> dict[str, Array]:
    """The same images behind 2,048 random ReLU features: a spectrum with a long tail."""
    held = digits()
    weights = np.random.default_rng(64).standard_normal((held["X"].shape[1], RELU_FEATURES))
    return {"X": np.maximum((held["X"] - held["X"].mean()) @ weights, 0.0), "y": held["y"]}


def diabetes() -> dict[str, Array]:
    """442 patients, 10 measurements, and the progression of the disease a year later."""
    from sklearn.datasets import load_diabetes

    held = load_diabetes()
    return {"X": held.data.astype(float), "y": held.target.astype(float)}


def rows_problem(held: dict[str, Array]) -> RowsProblem:
    """The rows as a population: features centred and scaled to trace 1, the label to variance 1."""
    X = held["X"] - held["X"].mean(axis=0)
    return RowsProblem(X / np.sqrt(np.mean(np.sum(X**2, axis=1))), standardised(held["y"], len(X)))
