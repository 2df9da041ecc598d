"""Pictures of the study, and of a user's head, as Vega-Lite specifications with their data inline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from assay.scaling.token_complexity.judging import GAUSSIAN, MODELS
from assay.study import Results, Row

__all__ = ["convergence_chart", "study_charts"]

SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
LOG = {"type": "quantitative", "scale": {"type": "log", "nice": False, "padding": 10}}
POINT = {"type": "point", "filled": True, "size": 45, "tooltip": True}


def study_charts(results: Results) -> list[dict[str, Any]]:
    """Averaged error by spectral number, the hardmax limit, and the heads of each model."""
    drawn = [_average_chart(results), _hardmax_chart(results)]
    for model, title in MODELS.items():
        rows = results.where(dataset=model, arm="attention", task="heads").measured
        if len(rows) and rows[0].units is not None:
            drawn += [_heads_chart(rows[0].units, title), _damage_chart(rows[0].units, title)]
    return [chart for chart in drawn if chart is not None]


def convergence_chart(table: pd.DataFrame, beta: float, beta_pred: float, log_constant: float) -> dict[str, Any]:
    """Measured error of one head against its tokens, with the fitted line and one of the predicted slope."""
    n, err = table["n"].to_numpy(dtype=float), table["err"].to_numpy(dtype=float)
    kept = err > 0
    middle = np.log(n[kept]).mean()
    lines = {
        f"fit, n^-{beta:.2f}": np.exp(log_constant - beta * np.log(n[kept])),
        f"predicted, n^-{beta_pred:.2f}": np.exp(log_constant - beta * middle - beta_pred * (np.log(n[kept]) - middle)),
    }
    values = [{"n": _short(a), "err": _short(b), "kind": "measured"} for a, b in zip(n[kept], err[kept], strict=True)]
    values += [
        {"n": _short(a), "err": _short(b), "kind": kind}
        for kind, line in lines.items() for a, b in zip(n[kept], line, strict=True)
    ]
    colour = {"field": "kind", "type": "nominal", "title": None}
    return {
        "$schema": SCHEMA, "title": "Error of the attention output against tokens",
        "description": "Mean norm of the error against the number of tokens: measured, fitted, at the predicted slope.",
        "width": 420, "height": 260, "data": {"values": values},
        "encoding": {
            "x": {**LOG, "field": "n", "title": "tokens"}, "y": {**LOG, "field": "err", "title": "mean error"},
            "color": colour,
        },
        "layer": [
            {"transform": [{"filter": "datum.kind != 'measured'"}], "mark": "line"},
            {"transform": [{"filter": "datum.kind == 'measured'"}], "mark": POINT},
        ],
    }


def _average_chart(results: Results) -> dict[str, Any] | None:
    values = []
    for row in results.where(dataset=GAUSSIAN, arm="attention", task="average").measured:
        curve = _curve(row)
        n, err = np.array(list(curve)), np.array(list(curve.values()))
        middle, slope = np.log(n).mean(), row.metrics["beta_pred"]
        line = np.exp(np.log(err).mean() - slope * (np.log(n) - middle))
        values += [
            {
                "d": f"d = {row.cell.options['d']}", "lam": f"{row.cell.options['lam']:g}", "n": _short(a),
                "err": _short(b), "predicted": _short(c),
            }
            for a, b, c in zip(n, err, line, strict=True)
        ]
    if not values:
        return None
    y = {**LOG, "title": "mean error over queries"}
    lam = {"field": "lam", "type": "ordinal", "title": "spectral number"}
    return {
        "$schema": SCHEMA, "title": "Error averaged over Gaussian queries, by spectral number",
        "description": "Points measured, lines at the predicted slope through their middle, against the tokens.",
        "data": {"values": values}, "facet": {"column": {"field": "d", "title": None}},
        "spec": {
            "width": 300, "height": 260,
            "encoding": {"x": {**LOG, "field": "n", "title": "tokens"}, "color": lam},
            "layer": [
                {"mark": "line", "encoding": {"y": {**y, "field": "predicted"}}},
                {"mark": POINT, "encoding": {"y": {**y, "field": "err"}}},
            ],
        },
    }


def _hardmax_chart(results: Results) -> dict[str, Any] | None:
    rows = results.where(dataset=GAUSSIAN, arm="attention", task="hardmax").measured
    values = [
        {"x": _short(1 / np.log(n)), "n": n, "shortfall": _short(err)}
        for row in rows for n, err in _curve(row).items()
    ]
    if not values:
        return None
    return {
        "$schema": SCHEMA, "title": "Hardmax: distance from the limit against 1 / ln n",
        "description": "How far the highest of n normal scores lies below sqrt(2 ln n), relative to it; a line is a "
        "logarithmic rate.",
        "width": 420, "height": 260, "data": {"values": values}, "mark": {**POINT, "tooltip": {"content": "data"}},
        "encoding": {
            "x": {"field": "x", "type": "quantitative", "title": "1 / ln n"},
            "y": {"field": "shortfall", "type": "quantitative", "title": "1 - highest / sqrt(2 ln n)"},
        },
    }


def _heads_chart(units: pd.DataFrame, title: str) -> dict[str, Any]:
    values = [
        {
            "lam": _short(row["lam"]), "beta": round(row["beta"], 3), "predicted": round(row["beta_pred"], 3),
            "layer": int(row["layer"]), "head": int(row["head"]),
        }
        for _, row in units.sort_values("lam").iterrows()
    ]
    x = {**LOG, "field": "lam", "title": "spectral number"}
    y = {"type": "quantitative", "title": "exponent"}
    return {
        "$schema": SCHEMA, "title": f"Exponent of each head against its spectral number, {title}",
        "description": "Points: measured exponent of a head. Line: the exponent predicted for Gaussian tokens.",
        "width": 420, "height": 260, "data": {"values": values}, "encoding": {"x": x},
        "layer": [
            {"mark": "line", "encoding": {"y": {**y, "field": "predicted"}}},
            {"mark": POINT, "encoding": {"y": {**y, "field": "beta"}, "color": {"field": "layer", "type": "ordinal"}}},
        ],
    }


def _damage_chart(units: pd.DataFrame, title: str) -> dict[str, Any] | None:
    names = [name for name in units.columns if name.startswith("damage_") and name != "damage_removed"]
    kept = units[(units[[*names, "damage_removed"]] > 0).all(axis=1)] if names else units
    quarter = pd.qcut(kept["lam"].rank(method="first"), 4, labels=False) if len(kept) >= 8 else None
    if quarter is None or not names:
        return None
    shares = kept[names].div(kept["damage_removed"], axis=0)
    values = [
        {
            "n": int(name.rpartition("_")[2]), "quarter": f"{number + 1}",
            "damage": _short(np.exp(np.log(shares.loc[quarter == number, name]).mean())),
        }
        for name in names for number in range(4)
    ]
    return {
        "$schema": SCHEMA, "title": f"Damage downstream of a sampled context, {title}",
        "description": "Geometric mean over heads of the change downstream, as a share of that when the head is "
        "removed, against the tokens that it is given, by quarter of the spectral number (4 the largest).",
        "width": 420, "height": 260, "data": {"values": values},
        "mark": {"type": "line", "point": True, "tooltip": True},
        "encoding": {
            "x": {**LOG, "field": "n", "title": "tokens of the pool"},
            "y": {**LOG, "field": "damage", "title": "damage / damage of removal"},
            "color": {"field": "quarter", "type": "ordinal", "title": "quarter of lam"},
        },
    }


def _curve(row: Row) -> dict[int, float]:
    return {int(name[4:]): value for name, value in row.metrics.items() if name.startswith("err_")}


def _short(value: float) -> float:
    return float(f"{value:.4g}")
