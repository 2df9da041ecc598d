"""What is measured on Gaussian tokens: error at a fixed query, averaged over queries, and in the hardmax limit.

Each replicate draws its own tokens, so that replicates are independent and no pool is exhausted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import norm, qmc

from assay.scaling.token_complexity.convergence import extrapolated, fit_exponent, nested_attention
from assay.scaling.token_complexity.hardmax import log_rate_fit, shortfall
from assay.scaling.token_complexity.theory import asymptotic_cov, predicted_exponent, spectral_lambda
from assay.study import Cell, Measurement

__all__ = ["TASKS", "column", "numbers"]

Array = NDArray[np.float64]
DECAY = 2.0  # spectrum of the scores in d dimensions: lam / j^DECAY
HALF_WIDTH = 5.0  # of the quadrature over queries, in standard deviations


def column(n: int) -> str:
    """Name of the units' column that holds a replicate's error at n tokens."""
    return f"n{n}"


def numbers(units: pd.DataFrame) -> list[int]:
    """The numbers of tokens that the columns stand for."""
    return [int(name[1:]) for name in units.columns if name.startswith("n")]


def _fixed(cell: Cell) -> Measurement:
    """Norm of the error at one query with |b| = `radius`, one row a replicate."""
    options = cell.options
    d, ns = options["d"], options["ns"]
    b = np.zeros(d)
    b[0] = options["radius"]
    target = np.zeros(d) if cell.arm == "uniform" else b
    rng = np.random.default_rng([cell.seed, d, round(1000 * options["radius"])])
    errors = np.empty((options["reps"], len(ns)))
    for row in errors:
        y = rng.standard_normal((ns[-1], d))
        row[:] = np.linalg.norm(_outputs(cell.arm, y, b, ns) - target, axis=1)
    interval, _, _ = fit_exponent(np.array(ns), errors)
    variance = float(np.trace(asymptotic_cov(b, np.zeros(d), np.eye(d), np.eye(d))))
    ratio = float(ns[-1] * (errors[:, -1] ** 2).mean() / variance)
    metrics = {"beta": interval.estimate, "variance_ratio": ratio, "variance": variance}
    return Measurement(metrics, _units(errors, ns))


def _outputs(arm: str, y: Array, b: Array, ns: list[int]) -> Array:
    """Output over the first n tokens for each n, (len(ns), d)."""
    if arm == "hardmax":
        scores = y @ b
        return np.stack([y[scores[:n].argmax()] for n in ns])
    scores = np.zeros(len(y)) if arm == "uniform" else y @ b
    return nested_attention(scores[:, None], y, ns)[0][:, 0]


def _average(cell: Cell) -> Measurement:
    """Mean norm of the error over Gaussian queries, one row a replicate."""
    options = cell.options
    d, lam, ns = options["d"], options["lam"], options["ns"]
    scale = np.sqrt(lam) * np.arange(1, d + 1) ** (-DECAY / 2)
    queries, weights = _queries(d, options["queries"], cell.seed)
    if cell.arm == "uniform":  # all queries see the same: one stands for them
        queries, weights = np.zeros((1, d)), np.ones(1)
    b = queries * scale
    rng = np.random.default_rng([cell.seed, d, 7])  # the same tokens at each lam: differences over lam are paired
    errors = np.empty((options["reps"], len(ns)))
    for row in errors:
        y = rng.standard_normal((ns[-1], d))
        outputs, _ = nested_attention(y @ b.T, y, ns)
        row[:] = np.linalg.norm(outputs - b, axis=2) @ weights
    interval, _, local = fit_exponent(np.array(ns), errors)
    found = spectral_lambda(np.diag(scale), np.eye(d))
    metrics = {
        "beta": interval.estimate, "lam": found, "beta_pred": float(predicted_exponent(found)),
        "local_first": float(local[0]), "local_last": float(local[-1]),
    }
    mean = errors.mean(axis=0)
    metrics |= {f"err_{n}": float(value) for n, value in zip(ns, mean, strict=True)}
    metrics |= {
        "tokens_fitted": extrapolated(ns, mean), "tokens_root": extrapolated(ns, mean, 0.5),
        "tokens_predicted": extrapolated(ns, mean, metrics["beta_pred"]),
    }
    return Measurement(metrics, _units(errors, ns))


def _queries(d: int, count: int, seed: int) -> tuple[Array, Array]:
    """Standard normal queries and their weights: a quadrature in one dimension, a low-discrepancy set beyond."""
    if d == 1:
        edges = np.linspace(-HALF_WIDTH, HALF_WIDTH, count + 1)
        middles = (edges[1:] + edges[:-1]) / 2
        weights = np.diff(ndtr(edges))
        return middles[:, None], weights / weights.sum()
    points = qmc.Sobol(d, seed=seed).random(count)
    return norm.ppf(points.clip(1e-9, 1 - 1e-9)), np.full(count, 1 / count)


def _hardmax(cell: Cell) -> Measurement:
    """Shortfall of the highest score below sqrt(2 ln n), one row a replicate; for the softmax arm the error at |b| = 1.

    The highest of n normals is drawn from its own law, n to the power of the uniform law, so that n can be large;
    larger n contain the smaller ones' tokens.
    """
    ns, reps = cell.options["ns"], cell.options["reps"]
    rng = np.random.default_rng([cell.seed, 11])
    if cell.arm == "softmax":
        curves = np.empty((reps, len(ns)))
        for row in curves:
            y = rng.standard_normal((ns[-1], 1))
            row[:] = np.abs(nested_attention(y, y, ns)[0][:, 0, 0] - 1.0)
    else:
        fresh = np.diff([0, *ns])
        # isf of 1 - u^(1/n), without the cancellation.
        tops = norm.isf(-np.expm1(np.log(rng.random((reps, len(ns)))) / fresh))
        curves = shortfall(ns, np.maximum.accumulate(tops, axis=1))
    r2, gap = log_rate_fit(ns, curves.mean(axis=0))
    metrics = {"r2": float(r2), "aic_gap": float(gap)}
    metrics |= {f"err_{n}": float(value) for n, value in zip(ns, curves.mean(axis=0), strict=True)}
    return Measurement(metrics, _units(curves, ns))


def _units(errors: Array, ns: list[int]) -> pd.DataFrame:
    return pd.DataFrame(errors, columns=[column(n) for n in ns])


TASKS: dict[str, Any] = {"fixed": _fixed, "average": _average, "hardmax": _hardmax}
