"""Pictures of the study and of a user's runs, as Vega-Lite specifications with their data inline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from assay.stats import bootstrap
from assay.study import Results

SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
KINDS = {"isoflop": "larger budgets", "isotoken": "batch sweeps"}
METHOD_COLOUR, OTHER_COLOUR = "#d55e00", "#0072b2"


def study_charts(results: Results, titles: Mapping[str, str]) -> list[dict[str, Any]]:
    """Errors of every arm with intervals, measured against predicted losses, and the ladder where it was climbed."""
    drawn = [_error_chart(results, titles)]
    for dataset, title in titles.items():
        rows = results.where(dataset=dataset, arm="nqs", task="predict").measured
        if len(rows) and rows[0].units is not None:
            drawn += [isoflop_chart(rows[0].units, title), isotoken_chart(rows[0].units, title)]
    drawn.append(_ladder_chart(results, titles))
    return [chart for chart in drawn if chart is not None]


def isoflop_chart(units: pd.DataFrame, title: str) -> dict[str, Any] | None:
    """Loss against model size, one colour a held-out budget: measured runs as points, predictions as lines."""
    rows = units[units["kind"] == "isoflop"]
    return _measured_and_predicted(
        rows, "N", "parameters", "budget", f"Held-out budgets, {title}",
        "Loss against the number of parameters at each held-out compute budget; points measured, lines predicted.",
    )


def isotoken_chart(units: pd.DataFrame, title: str) -> dict[str, Any] | None:
    """Loss against batch size at equal size and tokens: measured runs as points, predictions as lines."""
    rows = units[units["kind"] == "isotoken"]
    return _measured_and_predicted(
        rows, "B", "batch size (sequences)", "parameters @ tokens", f"Held-out batch sweeps, {title}",
        "Loss against batch size for runs of equal size and tokens; points measured, lines predicted.",
    )


def _measured_and_predicted(
    rows: pd.DataFrame, x: str, x_title: str, colour_title: str, title: str, description: str
) -> dict[str, Any] | None:
    if not len(rows):
        return None
    values = [
        {
            "x": float(f"{r[x]:.4g}"), "group": r["group"], "measured": round(r["loss"], 4),
            "predicted": round(r["predicted"], 4),
        }
        for _, r in rows.sort_values(["group", x]).iterrows()
    ]
    # The same title and domain in both, or colour and shape get a legend each.
    labels = list(dict.fromkeys(rows["group"]))
    group = {"field": "group", "type": "nominal", "title": colour_title, "scale": {"domain": labels}}
    encoding = {
        "x": {
            "field": "x", "type": "quantitative", "scale": {"type": "log", "nice": False, "padding": 12},
            "axis": {"format": "~s"}, "title": x_title,
        },
        "color": group,
    }
    y = {"type": "quantitative", "scale": {"zero": False}, "title": "loss (nats)"}
    return {
        "$schema": SCHEMA, "title": title, "description": description, "width": 420, "height": 260,
        "data": {"values": values}, "encoding": encoding,
        "layer": [
            {"mark": "line", "encoding": {"y": {**y, "field": "predicted"}}},
            {
                "mark": {"type": "point", "filled": True, "size": 45, "tooltip": True},
                "encoding": {
                    "y": {**y, "field": "measured"},
                    "shape": group,
                },
            },
        ],
    }


def _error_chart(results: Results, titles: Mapping[str, str]) -> dict[str, Any] | None:
    values = []
    for row in results.where(task="predict").measured:
        if row.units is None:
            continue
        for kind, name in KINDS.items():
            squared = row.units.loc[row.units["kind"] == kind, "squared"].to_numpy()
            if len(squared):
                subset = row.cell.options.get("subset", "")
                values.append({
                    "set": f"{titles.get(row.cell.dataset, row.cell.dataset)} {subset}".strip(), "kind": name,
                    "arm": f"{row.cell.arm} ({row.cell.options.get('objective', '')})", "ours": row.cell.arm == "nqs",
                    **_interval_of_mean(squared),
                })
    if not values:
        return None
    x = {"type": "quantitative", "scale": {"type": "log"}, "title": "mean squared log error"}
    y = {"field": "arm", "type": "nominal", "title": None, "sort": {"field": "mse", "op": "min"}}
    colour = {"condition": {"test": "datum.ours", "value": METHOD_COLOUR}, "value": OTHER_COLOUR}
    return {
        "$schema": SCHEMA, "title": "Error on held-out runs, by arm",
        "description": "Mean squared log error of each arm on held-out runs with 95 percent intervals, by data set.",
        "data": {"values": values},
        "facet": {"row": {"field": "set", "title": None}, "column": {"field": "kind", "title": None}},
        "spec": {
            "width": 230, "height": {"step": 16}, "encoding": {"y": y, "color": colour},
            "layer": [
                {"mark": "rule", "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}}},
                {
                    "mark": {"type": "point", "filled": True, "size": 50, "tooltip": True},
                    "encoding": {"x": {**x, "field": "mse"}},
                },
            ],
        },
        "resolve": {"scale": {"y": "independent"}},
    }


def _interval_of_mean(squared: np.ndarray) -> dict[str, float]:
    """Interval of a mean of positive numbers, by way of its logarithm."""
    found = bootstrap(lambda i: np.log(squared[i].mean(axis=-1)), len(squared))
    low, high = (found.low, found.high) if np.isfinite([found.low, found.high]).all() else (found.estimate,) * 2
    # Intervals of few runs can span many decades; the picture stops at a factor of a hundred.
    low, high = max(low, found.estimate - np.log(100)), min(high, found.estimate + np.log(100))
    names = ("mse", "low", "high")
    return {name: float(f"{np.exp(v):.3g}") for name, v in zip(names, (found.estimate, low, high), strict=True)}


def _ladder_chart(results: Results, titles: Mapping[str, str]) -> dict[str, Any] | None:
    values = []
    for row in results.where(task="ladder").measured:
        if row.units is not None:
            values += [
                {
                    "set": titles.get(row.cell.dataset, row.cell.dataset), "arm": row.cell.arm,
                    "ratio": float(f"{r['ratio']:.3g}"), "mse": float(f"{r['squared']:.3g}"),
                }
                for _, r in row.units.iterrows()
            ]
    if not values:
        return None
    return {
        "$schema": SCHEMA, "title": "Error against how far the law is extrapolated",
        "description": "Mean squared log error at a budget against the ratio of that budget to the largest fitted one.",
        "data": {"values": values}, "facet": {"column": {"field": "set", "title": None}},
        "spec": {
            "width": 300, "height": 240,
            "encoding": {
                "x": {
                    "field": "ratio", "type": "quantitative", "scale": {"type": "log"},
                    "title": "compute, relative to the largest fitted run",
                },
                "y": {
                    "field": "mse", "type": "quantitative", "scale": {"type": "log"},
                    "title": "mean squared log error",
                },
                "color": {"field": "arm", "type": "nominal"}, "shape": {"field": "arm", "type": "nominal"},
            },
            "mark": {"type": "point", "filled": True, "tooltip": True},
        },
    }
