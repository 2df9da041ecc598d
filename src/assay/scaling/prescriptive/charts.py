"""Pictures of the study and of a user's table, as Vega-Lite specifications with their data inline."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd

from assay.scaling.prescriptive.tables import CLIP, TITLES
from assay.study import Results

__all__ = ["boundary_chart", "study_charts"]

SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
METHOD_COLOUR, OTHER_COLOUR = "#d55e00", "#0072b2"
DRAWN = ("boundary", "unpenalised-exact", "bin-wise", "i-spline")
MOST_TASKS = 6
MOST_POINTS = 1500


def study_charts(results: Results) -> list[dict[str, Any]]:
    """Losses of every arm, coverage with and without smoothing, some curves, and what a part of the cost gives."""
    drawn = [
        _loss_chart(results, "predict", "tested models"), _coverage_chart(results), _curve_chart(results),
        _budget_chart(results), _loss_chart(results, "extrapolate", "larger models than any fitted"),
        _period_chart(results),
    ]
    return [chart for chart in drawn if chart is not None]


def boundary_chart(table: pd.DataFrame, curves: pd.DataFrame, task: str) -> dict[str, Any]:
    """A user's models (`z`, `score`) with the curves (`z`, `q`, `curve`) of one task."""
    if len(table) > MOST_POINTS:
        # The highest scores make the boundary: they stay, the rest is thinned.
        top = table["score"].rank(ascending=False) <= MOST_POINTS // 3
        table = pd.concat([table[top], table[~top].iloc[:: 2 * len(table) // MOST_POINTS + 1]])
    points = [{"z": round(float(r.z), 3), "score": round(float(r.score), 4)} for r in table.itertuples()]
    lines = [{"z": round(float(r.z), 3), "q": round(float(r.q), 4), "curve": r.curve} for r in curves.itertuples()]
    x = {"field": "z", "type": "quantitative", "scale": {"zero": False}, "title": "log10 FLOP"}
    return {
        "$schema": SCHEMA, "title": f"Boundary of {task}", "width": 420, "height": 280,
        "description": f"Scores of models on {task} against log compute, with the fitted boundaries.",
        "layer": [
            {
                "data": {"values": points}, "mark": {"type": "point", "opacity": 0.35, "size": 14, "color": "#777777"},
                "encoding": {"x": x, "y": {"field": "score", "type": "quantitative", "title": "score"}},
            },
            {
                "data": {"values": lines}, "mark": {"type": "line", "strokeWidth": 2.5},
                "encoding": {
                    "x": x, "y": {"field": "q", "type": "quantitative"},
                    "color": {"field": "curve", "type": "nominal", "title": None},
                    "strokeDash": {"field": "curve", "type": "nominal", "title": None},
                },
            },
        ],
    }


def _loss_chart(results: Results, task: str, which: str) -> dict[str, Any] | None:
    values = [
        {
            "set": TITLES.get(row.cell.dataset, row.cell.dataset), "arm": row.cell.arm,
            "loss": float(f"{1e3 * row.metrics['mean pinball']:.4g}"), "ours": row.cell.arm == "boundary",
        }
        for row in results.where(task=task).measured if row.cell.arm != "dates-shuffled"
    ]
    if not values:
        return None
    return {
        "$schema": SCHEMA, "title": f"Pinball loss on {which}, by arm",
        "description": f"Mean pinball loss at the level 0.98, times 1000, on {which}, mean over the tasks.",
        "data": {"values": values}, "facet": {"column": {"field": "set", "title": None}},
        "spec": {
            "width": 170, "height": {"step": 16},
            "mark": {"type": "point", "filled": True, "size": 60, "tooltip": True},
            "encoding": {
                "x": {"field": "loss", "type": "quantitative", "scale": {"zero": False}, "title": "loss x 1000"},
                "y": {"field": "arm", "type": "nominal", "title": None, "sort": {"field": "loss", "op": "min"}},
                "color": {"condition": {"test": "datum.ours", "value": METHOD_COLOUR}, "value": OTHER_COLOUR},
            },
        },
        "resolve": {"scale": {"x": "independent", "y": "independent"}},
    }


def _coverage_chart(results: Results) -> dict[str, Any] | None:
    values = [
        {
            "set": TITLES.get(row.cell.dataset, row.cell.dataset), "arm": row.cell.arm,
            "task": key.removesuffix(": coverage_fit"),
            "coverage": round(value, 4),
        }
        for row in results.where(lambda c: c.arm in ("boundary", "exact"), task="predict").measured
        for key, value in row.metrics.items() if key.endswith(": coverage_fit")
    ]
    if not values:
        return None
    return {
        "$schema": SCHEMA, "title": "Coverage of the fitted models, where 0.98 is meant",
        "description": "Share of fitted models on or below the boundary by task, with kappa 50 and without smoothing.",
        "data": {"values": values}, "facet": {"column": {"field": "set", "title": None}},
        "spec": {
            "width": 170, "height": {"step": 16},
            "layer": [
                {"mark": {"type": "rule", "strokeDash": [4, 3]}, "encoding": {"x": {"datum": 0.98}}},
                {
                    "mark": {"type": "point", "filled": True, "size": 50, "tooltip": True},
                    "encoding": {
                        "x": {
                            "field": "coverage", "type": "quantitative", "scale": {"zero": False}, "title": "covered",
                        },
                        "y": {"field": "task", "type": "nominal", "title": None},
                        "color": {"field": "arm", "type": "nominal"}, "shape": {"field": "arm", "type": "nominal"},
                    },
                },
            ],
        },
        "resolve": {"scale": {"y": "independent"}},
    }


def _curve_chart(results: Results) -> dict[str, Any] | None:
    """Fitted curves of a few tasks, of the CLIP table where it was measured."""
    rows = results.where(lambda c: c.arm in DRAWN, task="predict").measured
    if not len(rows):
        return None
    dataset = next((row.cell.dataset for row in rows if row.cell.dataset == CLIP), rows[0].cell.dataset)
    values = []
    for row in rows.where(dataset=dataset):
        for curve in json.loads(row.files["curves.json"])[:MOST_TASKS]:
            kept = np.unique(np.linspace(0, len(curve["z"]) - 1, 26).astype(int))
            values += [
                {"task": curve["task"], "arm": row.cell.arm, "z": curve["z"][i], "q": curve["q"][i]} for i in kept
            ]
    return {
        "$schema": SCHEMA, "title": f"Fitted boundaries, {TITLES.get(dataset, dataset)}",
        "description": "Boundaries at the level 0.98 against log10 compute, by task, of the sigmoid and its rivals.",
        "data": {"values": values}, "columns": 3, "facet": {"field": "task", "type": "nominal", "title": None},
        "spec": {
            "width": 170, "height": 120, "mark": "line",
            "encoding": {
                "x": {"field": "z", "type": "quantitative", "scale": {"zero": False}, "title": "log10 FLOP"},
                "y": {"field": "q", "type": "quantitative", "title": "score"},
                "color": {"field": "arm", "type": "nominal"}, "strokeDash": {"field": "arm", "type": "nominal"},
            },
        },
        "resolve": {"scale": {"y": "independent"}},
    }


def _period_chart(results: Results) -> dict[str, Any] | None:
    values = [
        {
            "set": TITLES.get(row.cell.dataset, row.cell.dataset), "mode": row.cell.options["mode"],
            "arm": row.cell.arm, "tested": key.removesuffix(": macro"), "macro": round(value, 4),
        }
        for row in results.where(task="periods").measured
        for key, value in row.metrics.items() if key.endswith(": macro")
    ]
    if not values:
        return None
    return {
        "$schema": SCHEMA, "title": "Error of coverage in the next period, fitted to one period or to all before",
        "description": "Mean distance of coverage from 0.98 over the bins, mean over the tasks, by tested period.",
        "data": {"values": values}, "facet": {"column": {"field": "set", "title": None}},
        "spec": {
            "width": 190, "height": 170, "mark": {"type": "line", "point": True, "tooltip": True},
            "encoding": {
                "x": {"field": "tested", "type": "ordinal", "title": "last date of the tested period"},
                "y": {"field": "macro", "type": "quantitative", "title": "macro error"},
                "color": {"field": "arm", "type": "nominal"}, "strokeDash": {"field": "mode", "type": "nominal"},
            },
        },
        "resolve": {"scale": {"x": "independent", "y": "independent"}},
    }


def _budget_chart(results: Results) -> dict[str, Any] | None:
    values = [
        {
            "set": TITLES.get(row.cell.dataset, row.cell.dataset), "arm": row.cell.arm,
            "share": row.cell.options["share"], "gap": round(row.metrics["gap"], 5),
        }
        for row in results.where(task="design").measured if row.cell.arm != "random-again"
    ]
    if not values:
        return None
    return {
        "$schema": SCHEMA, "title": "Distance to the full boundary, by share of the evaluation cost",
        "description": "Largest distance of the boundary of the chosen models from that of all models.",
        "data": {"values": values}, "facet": {"column": {"field": "set", "title": None}},
        "spec": {
            "width": 190, "height": 170, "mark": {"type": "line", "point": True, "tooltip": True},
            "encoding": {
                "x": {"field": "share", "type": "quantitative", "scale": {"type": "log"}, "title": "share of the cost"},
                "y": {"field": "gap", "type": "quantitative", "title": "largest distance"},
                "color": {"field": "arm", "type": "nominal"}, "shape": {"field": "arm", "type": "nominal"},
            },
        },
        "resolve": {"scale": {"y": "independent"}},
    }
