"""How many parameters, samples and bits for a budget, and a warning where more parameters make things worse.

Source: arXiv 2602.19241 for the law; the planning is reconstructed.
"""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from assay.errors import InputError
from assay.scaling.low_precision.law import PrecisionLaw
from assay.scaling.low_precision.quantisers import bits_to_eps

__all__ = ["plan_precision", "turning_point"]


def plan_precision(
    law: PrecisionLaw, bit_budget: float, *, bits: ArrayLike | None = None, memory_bits: float | None = None
) -> pd.DataFrame:
    """The best run at each number of bits, under a budget of parameter-sample-bits.

    Parameters
    ----------
    law : PrecisionLaw
        Fitted.
    bit_budget : float
        `M * N * bits` at most: every sample touches every parameter once, at so many bits.
    bits : array-like, optional
        Bits to consider; by default those of the fitted rows, and 32.
    memory_bits : float, optional
        Bits of memory for the weights: `M * bits` at most.

    Returns
    -------
    DataFrame
        Columns M, N, bits, loss, and `turning_point`, the size beyond which more parameters raise the predicted loss
        at these bits and samples (infinite where there is none); the lowest loss first. Warns where the best row has a
        turning point, and where it lies a factor of ten outside the fitted rows.

    Raises
    ------
    InputError
        A law that is not fitted or is none, a budget that leaves no room for one sample, fewer bits than 1.

    Notes
    -----
    Reconstructed from arXiv 2602.19241.

    Examples
    --------
    >>> from assay.scaling import PrecisionLaw, plan_precision
    >>> M, N, eps = (g.ravel() for g in np.meshgrid([1e2, 1e3, 1e4], [1e4, 1e5, 1e6], [0.0, 0.0026, 0.042]))
    >>> loss = 0.1 + 5 / M**0.5 + 30 / (N / (1 + 4 * eps)) ** 0.4 + 0.7 * eps
    >>> law = PrecisionLaw(n_starts=8).fit(np.column_stack([M, N, eps]), loss)
    >>> plan_precision(law, 1e10, bits=[2, 4, 8]).columns.tolist()
    ['M', 'N', 'bits', 'loss', 'turning_point']
    """
    if not isinstance(law, PrecisionLaw):
        raise InputError(f"law must be a PrecisionLaw, got {type(law).__name__}")
    if not hasattr(law, "params_"):
        raise InputError("law is not fitted: call fit first")
    rows = []
    for number in law.bits_grid(bits):
        row = law.best_at(bit_budget, number)
        if memory_bits is not None:
            row = _within_memory(law, row, memory_bits, bit_budget)
        rows.append({**row, "turning_point": turning_point(law, row["N"], row["bits"])})
    table = pd.DataFrame(rows).sort_values("loss", ignore_index=True)
    _warn(law, table.iloc[0])
    return table


def turning_point(law: PrecisionLaw, N: float, bits: float) -> float:
    """The size from which on the predicted loss rises, at fixed samples and bits; inf if it never does."""
    sizes = np.geomspace(1.0, 1e4 * max(law.rows_[:, 0].max(), 1.0), 400)
    losses = law.predict(np.column_stack([sizes, np.full_like(sizes, N), np.full_like(sizes, bits_to_eps(bits))]))
    best = int(np.argmin(losses))
    return np.inf if best == len(sizes) - 1 else float(sizes[best])


def _within_memory(
    law: PrecisionLaw, row: dict[str, float], memory_bits: float, bit_budget: float
) -> dict[str, float]:
    if isinstance(memory_bits, bool) or not isinstance(memory_bits, int | float | np.number):
        raise InputError(f"memory_bits must be a number, got {memory_bits!r}")
    if not float(memory_bits) >= row["bits"]:
        raise InputError(f"memory_bits must hold at least one parameter of {row['bits']:g} bits, got {memory_bits}")
    most = float(memory_bits) / row["bits"]
    if row["M"] <= most:
        return row
    N = float(bit_budget) / (most * row["bits"])
    loss = float(law.predict([[most, N, bits_to_eps(row["bits"])]])[0])
    return {**row, "M": most, "N": N, "loss": loss}


def _warn(law: PrecisionLaw, best: pd.Series) -> None:
    if np.isfinite(best["turning_point"]):
        warnings.warn(
            f"at {best['bits']:g} bits and {best['N']:.3g} samples a model above {best['turning_point']:.3g} "
            f"parameters is predicted to be worse: coarse steps bury its small directions, and their noise grows with "
            f"the size",
            stacklevel=3,
        )
    for name, column in (("M", 0), ("N", 1)):
        fitted = law.rows_[:, column]
        if not fitted.min() / 10 <= best[name] <= fitted.max() * 10:
            warnings.warn(
                f"the best {name}, {best[name]:.3g}, lies more than a factor of ten outside the fitted rows "
                f"({fitted.min():.3g} to {fitted.max():.3g})", stacklevel=3,
            )
