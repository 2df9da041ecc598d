"""What a cell measures on one table of models: a fit tested out of sample, or a choice of what to evaluate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from assay.scaling.prescriptive.arms import BOUNDARIES, LEVEL, choose, curve_of, fit_quietly
from assay.scaling.prescriptive.bins import bin_of, equal_mass_bins
from assay.scaling.prescriptive.boundary import CapabilityBoundary
from assay.scaling.prescriptive.pinball import pinball
from assay.scaling.prescriptive.tables import PERIODS, Table, read_table, splits
from assay.scaling.prescriptive.validation import binomial_p, cluster_p, refit_p, temporal_validation
from assay.study import Cell, Measurement

__all__ = ["TASKS", "covered", "periods"]

Array = NDArray[np.float64]
DESIGN_TASKS = 6  # the steepest of a table's tasks, on which choices are compared
GRID = 50  # points of compute at which curves are compared and drawn


def predict(table: Table, cell: Cell) -> Measurement:
    """Each task fitted and tested on the table's splits.

    Units: one row a task, unit and bin, `kind` test or fit: `n` models, of which `below` on or below the curve, and the
    sum of their pinball losses. The splits' bins are counted apart.
    """
    if cell.arm == "dates-shuffled" and table.later is not None:
        table = replace(table, later=np.random.default_rng(cell.seed).permutation(table.later))
    frames: list[pd.DataFrame] = []
    metrics: dict[str, float] = {}
    curves: list[dict[str, Any]] = []
    for task in table.scores:
        y = table.scores[task].to_numpy(float)
        parts = []
        for number, (fit, test) in enumerate(splits(table)):
            known = ~np.isnan(y)
            fit, test = fit & known, test & known
            curve = curve_of(cell.arm, table.z[fit], y[fit], table.unit[fit], cell.seed)
            edges = equal_mass_bins(table.z[fit])
            parts += [
                _rows(table, y, mask, curve, edges, number).assign(kind=kind)
                for kind, mask in (("test", test), ("fit", fit))
            ]
            if number == 0:
                grid = np.linspace(table.z[known].min(), table.z[known].max(), GRID)
                curves.append({"task": task, "z": grid.round(3).tolist(), "q": np.round(curve(grid), 4).tolist()})
        units = pd.concat(parts, ignore_index=True)
        metrics |= {f"{task}: {name}": value for name, value in _summary(units).items()}
        frames.append(units.assign(task=str(task)))
    everything = pd.concat(frames, ignore_index=True)
    sums = everything.groupby(["task", "kind", "unit", "bin"], sort=True)[["n", "below", "loss"]].sum().reset_index()
    metrics = {name: value for name, value in metrics.items() if np.isfinite(value)}  # p of no spread is none
    metrics["mean pinball"] = float(np.mean([v for k, v in metrics.items() if k.endswith(": pinball")]))
    content = pd.DataFrame(curves).to_json(orient="records").encode()
    return Measurement(metrics, sums, {"curves.json": content})


def _rows(table: Table, y: Array, mask: NDArray[np.bool_], curve: Any, edges: Array, number: int) -> pd.DataFrame:
    q = np.asarray(curve(table.z[mask]))
    return pd.DataFrame({
        "unit": table.unit[mask], "bin": 100 * number + bin_of(table.z[mask], edges), "n": 1,
        "below": (y[mask] <= q).astype(int), "loss": pinball(y[mask] - q, LEVEL),
    })


def _summary(units: pd.DataFrame) -> dict[str, float]:
    test, fit = units[units["kind"] == "test"], units[units["kind"] == "fit"]
    above = 1 - test["below"]
    return {
        "pinball": float(test["loss"].mean()), "macro": covered(test)[0], "coverage": float(test["below"].mean()),
        "coverage_fit": float(fit["below"].mean()), "above": float(above.mean()),
        "p_binomial": binomial_p(int(above.sum()), len(test), 1 - LEVEL),
        "p_clustered": cluster_p(above, test["unit"], 1 - LEVEL),
    }


def covered(units: pd.DataFrame) -> tuple[float, float]:
    """Macro error of coverage over the bins, and the share covered, of rows with `bin`, `n` and `below`."""
    sums = units.groupby("bin")[["n", "below"]].sum()
    return float((sums["below"] / sums["n"] - LEVEL).abs().mean()), float(sums["below"].sum() / sums["n"].sum())


def design(table: Table, cell: Cell) -> Measurement:
    """The boundary of a part of the models, chosen by the arm, beside that of all: one row a task and seed.

    `error` and `error_full` are macro errors of coverage on the tested models, in the bins of all fitted ones; `gap` is
    the largest distance of the two curves over the fitted compute.
    """
    rows = []
    for seed in range(cell.options["seeds"]):
        fit, test = splits(table, seed)[0]
        for task in list(table.scores)[:DESIGN_TASKS]:
            y = table.scores[task].to_numpy(float)
            f, t = fit & ~np.isnan(y), test & ~np.isnan(y)
            z, edges = table.z[f], equal_mass_bins(table.z[f])
            chosen = choose(cell.arm, z, y[f], table.cost[f], cell.options["share"], seed)
            full, part = fit_quietly(z, y[f]), fit_quietly(z[chosen], y[f][chosen])
            grid = np.linspace(z.min(), z.max(), GRID)
            rows.append({
                "task": str(task), "seed": seed, "models": len(chosen),
                "error": _macro(table.z[t], y[t], part._curve, edges),
                "error_full": _macro(table.z[t], y[t], full._curve, edges),
                "gap": float(np.abs(part._curve(grid) - full._curve(grid)).max()),
            })
    units = pd.DataFrame(rows)
    worse = (units["error"] - units["error_full"]).abs()
    return Measurement({
        "models": float(units["models"].mean()), "gap": float(units["gap"].mean()),
        "error": float(units["error"].mean()), "error_full": float(units["error_full"].mean()),
        "error_change": float(worse.mean()),
    }, units)


def _macro(z: Array, y: Array, curve: Any, edges: Array) -> float:
    bins = pd.DataFrame({"bin": bin_of(z, edges), "n": 1, "below": (y <= curve(z)).astype(int)})
    return covered(bins)[0]


def bands(table: Table, cell: Cell) -> Measurement:
    """The boundary refitted to resampled units: 95 % bands of its value, and of the share of later models above it.

    Without later models the bands alone. Units: none, the draws being the interval.
    """
    if cell.arm == "dates-shuffled" and table.later is not None:
        table = replace(table, later=np.random.default_rng(cell.seed).permutation(table.later))
    fit, test = splits(table)[0]
    metrics: dict[str, float] = {}
    for task in table.scores:
        y = table.scores[task].to_numpy(float)
        known = ~np.isnan(y)
        f = fit & known
        found = fit_quietly(table.z[f], y[f], **BOUNDARIES[cell.arm])
        p, shares = refit_p(found, table.z[known], y[known], test[known], table.unit[known], cell.options["refits"])
        low, high = np.quantile(shares, (0.025, 0.975)) if len(shares) else (np.nan, np.nan)
        metrics |= {f"{task}: p_refit": p, f"{task}: above_low": float(low), f"{task}: above_high": float(high)}
    return Measurement({name: value for name, value in metrics.items() if np.isfinite(value)})


def periods(data: pd.DataFrame, cell: Cell) -> Measurement:
    """Each period's boundary (or that of all up to it) tested on the next period: means over the tasks by pair."""
    time, ends = PERIODS[cell.dataset]
    table = read_table(data, cell.dataset)
    frame = table.scores.assign(_flops=table.flops, _time=data[time].to_numpy())
    settings = CapabilityBoundary(**BOUNDARIES[cell.arm])
    tasks, mode = list(table.scores), cell.options["mode"]
    found = temporal_validation(frame, "_time", "_flops", tasks, ends, mode, None, settings)
    mean = found.groupby("test", sort=False)[["macro", "pinball", "coverage_test"]].mean()
    return Measurement({f"{end}: {name}": float(row[name]) for end, row in mean.iterrows() for name in mean}, found)


TASKS = {"predict": predict, "extrapolate": predict, "design": design, "bands": bands}
