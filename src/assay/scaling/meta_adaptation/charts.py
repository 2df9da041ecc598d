"""Pictures of the study and of a user's curves, as Vega-Lite specifications with their data inline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from assay.scaling.meta_adaptation.judging import TITLES
from assay.study import Results

__all__ = ["curve_chart", "study_charts"]

SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
OURS, OTHER = "#d55e00", "#0072b2"
ORDER = ("fixed", "frozen", "swapped", "grape-closed", "retuned", "pooled-grape", "adapted", "optimum")


def study_charts(results: Results) -> list[dict[str, Any]]:
    """Gains with the fitted law, gains over the variance, where a gain comes from, errors of the budgets."""
    drawn = [_law_chart(results), _sweep_chart(results), _split_chart(results), _fidelity_chart(results)]
    return [chart for chart in [*drawn, _probe_chart(results)] if chart is not None]


def curve_chart(table: pd.DataFrame, title: str) -> dict[str, Any]:
    """Mean gain over steps, measured as points and the law as a line; columns K, gain, fit."""
    values = [{name: _rounded(row[name]) for name in ("K", "gain", "fit")} for _, row in table.iterrows()]
    return {
        "$schema": SCHEMA, "title": title, "width": 420, "height": 260, "data": {"values": values},
        "description": "Mean gain after each number of steps; points measured, line the fitted law.",
        "encoding": {"x": {"field": "K", "type": "quantitative", "title": "steps K"}}, "layer": _points_and_line(),
    }


def _points_and_line() -> list[dict[str, Any]]:
    y = {"type": "quantitative", "title": "mean gain"}
    return [
        {"mark": {"type": "line", "color": OURS}, "encoding": {"y": {**y, "field": "fit"}}},
        {
            "mark": {"type": "point", "filled": True, "color": OTHER, "tooltip": True},
            "encoding": {"y": {**y, "field": "gain"}},
        },
    ]


def _law_chart(results: Results) -> dict[str, Any] | None:
    values = []
    for row in results.where(arm="law", task="law", seed=0).measured:
        if row.units is not None:
            values += [
                {"set": TITLES[row.cell.dataset], **{name: _rounded(each[name]) for name in ("K", "gain", "fit")}}
                for _, each in row.units.iterrows()
            ]
    if not values:
        return None
    return {
        "$schema": SCHEMA, "title": "Gain over steps, and the law",
        "description": "Mean gain of the first seed after each number of steps; points measured, line the fitted law.",
        "data": {"values": values}, "facet": {"column": {"field": "set", "title": None}},
        "spec": {
            "width": 280, "height": 220, "layer": _points_and_line(),
            "encoding": {"x": {"field": "K", "type": "quantitative", "title": "steps K"}},
        },
        "resolve": {"scale": {"y": "independent"}},
    }


def _sweep_chart(results: Results) -> dict[str, Any] | None:
    values = []
    for row in results.where(arm="law", task="sweep").measured:
        if row.units is not None:
            values += [
                {
                    "set": TITLES[row.cell.dataset], "variance": _rounded(each["variance"]),
                    "gain": _rounded(each["a_inf"]),
                }
                for _, each in row.units.iterrows()
            ]
    if not values:
        return None
    return {
        "$schema": SCHEMA, "title": "True asymptotic gain over task variance",
        "description": "The most that adaptation can gain, on average, against the variance of the tasks.",
        "data": {"values": values}, "facet": {"column": {"field": "set", "title": None}},
        "spec": {
            "width": 280, "height": 220, "mark": {"type": "point", "filled": True, "color": OTHER, "tooltip": True},
            "encoding": {
                "x": {"field": "variance", "type": "quantitative", "title": "variance of the tasks"},
                "y": {"field": "gain", "type": "quantitative", "title": "true asymptotic gain"},
            },
        },
        "resolve": {"scale": {"x": "independent", "y": "independent"}},
    }


def _split_chart(results: Results) -> dict[str, Any] | None:
    """The gain over the fixed controller, split into what one re-tuned controller has and what is left."""
    values = []
    for row in results.where(arm="adapted", task="contest").measured:
        m = row.metrics
        for part, value in (("re-tuned for all", m["gain"] - m["left"]), ("per device", m["left"])):
            values.append({"set": _setting(row.cell.dataset, row.cell.options), "part": part, "gain": _rounded(value)})
    if not values:
        return None
    return {
        "$schema": SCHEMA, "title": "Where the gain over the fixed controller comes from",
        "description": "Gain in fidelity, split into what one re-tuned controller has as well and what is left for "
        "adaptation to each device.",
        "data": {"values": values}, "width": 420, "height": {"step": 34},
        "mark": {"type": "bar", "tooltip": True},
        "encoding": {
            "y": {"field": "set", "type": "nominal", "title": None, "axis": {"labelLimit": 320}},
            "yOffset": {"field": "part"},
            "x": {"field": "gain", "type": "quantitative", "title": "gain in fidelity"},
            "color": {
                "field": "part", "type": "nominal", "title": None,
                "scale": {"domain": ["re-tuned for all", "per device"], "range": [OTHER, OURS]},
            },
        },
    }


def _fidelity_chart(results: Results) -> dict[str, Any] | None:
    values = [
        {
            "set": _setting(row.cell.dataset, row.cell.options), "arm": row.cell.arm,
            "infidelity": _rounded(1 - row.metrics["fidelity"]), "ours": row.cell.arm == "adapted",
        }
        for row in results.where(task="contest").measured if row.cell.arm in ORDER
    ]
    if not values:
        return None
    return {
        "$schema": SCHEMA, "title": "Mean infidelity of each controller",
        "description": "1 minus the mean gate fidelity on test devices, by controller and setting.",
        "data": {"values": values}, "facet": {"field": "set", "type": "nominal", "title": None}, "columns": 2,
        "spec": {
            "width": 260, "height": {"step": 18},
            "mark": {"type": "point", "filled": True, "size": 60, "tooltip": True},
            "encoding": {
                "y": {"field": "arm", "type": "nominal", "title": None, "sort": list(ORDER)},
                "x": {
                    "field": "infidelity", "type": "quantitative", "scale": {"type": "log"}, "title": "mean infidelity",
                },
                "color": {"condition": {"test": "datum.ours", "value": OURS}, "value": OTHER},
            },
        },
        "resolve": {"scale": {"x": "independent", "y": "independent"}},
    }


def _probe_chart(results: Results) -> dict[str, Any] | None:
    values = []
    for dataset in ("lqr", "x-paper"):
        for arm in dict.fromkeys(row.cell.arm for row in results.where(dataset=dataset, task="probe")):
            for n in (3, 4, 5):
                errors = results.metric("k_error", dataset=dataset, arm=arm, task="probe", n=n)
                if errors and arm != "reversed":
                    values.append({
                        "set": TITLES[dataset], "arm": "ours" if arm == "adaptation" else arm, "probes": n,
                        "error": _rounded(float(np.median(errors))),
                    })
    if not values:
        return None
    return {
        "$schema": SCHEMA, "title": "Error of the predicted number of steps",
        "description": "Median relative error of the steps to 95 percent of the true gain, by predictor.",
        "data": {"values": values}, "facet": {"column": {"field": "set", "title": None}},
        "spec": {
            "width": 260, "height": 220, "mark": {"type": "line", "point": True, "tooltip": True},
            "encoding": {
                "x": {"field": "probes", "type": "ordinal", "title": "probe steps"},
                "y": {"field": "error", "type": "quantitative", "title": "relative error", "scale": {"type": "symlog"}},
                "color": {"field": "arm", "type": "nominal", "title": None},
                "shape": {"field": "arm", "type": "nominal", "title": None},
            },
        },
    }


def _setting(dataset: str, options: Any) -> str:
    start = f", {options['start']} start" if "start" in options else ""
    return f"{TITLES[dataset]}, noise x{options['noise']:g}{start}, {options['steps']} steps"


def _rounded(value: float) -> float | None:
    """Four digits; JSON has no NaN, and Vega draws nothing where null stands."""
    return float(f"{float(value):.4g}") if np.isfinite(value) else None
