"""Pictures of the study and of a user's test, as Vega-Lite specifications with their data inline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from assay.scaling.irsl.tables import CHAMP, GEMSTONES, HOME, SLICE, TITLES
from assay.stats import bootstrap
from assay.study import Results

__all__ = ["error_chart", "interval_of_errors", "line_chart", "study_charts"]

SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
METHOD_COLOUR, OTHER_COLOUR = "#d55e00", "#0072b2"
BY_ABILITY = (
    "cat", "cat-authors", "cat-phi10", "cat-filled", "cat-corrected", "cat-2pl", "cat-marginal", "random-irt",
    "random-2pl",
)


def study_charts(results: Results) -> list[dict[str, Any]]:
    """Errors of every arm, errors by budget, decisions, and ability against compute."""
    drawn = [_errors(results, dataset) for dataset in (HOME, SLICE, GEMSTONES, CHAMP)]
    drawn += [_budgets(results), _decisions(results)]
    drawn += [_lines(results, dataset) for dataset in (HOME, SLICE)]
    return [chart for chart in drawn if chart is not None]


def error_chart(values: Iterable[dict[str, Any]], title: str, questions: int) -> dict[str, Any]:
    """Mean absolute error of each arm (arm, mae, low, high, ours), the smallest first."""
    x = {"type": "quantitative", "scale": {"type": "log"}, "title": "mean absolute error of the full mean"}
    return {
        "$schema": SCHEMA, "title": f"Error from {questions} questions, {title}",
        "description": "Mean absolute error of the predicted full mean, with 95 percent intervals over models.",
        "width": 380, "height": {"step": 18}, "data": {"values": list(values)},
        "encoding": {
            "y": {"field": "arm", "type": "nominal", "title": None, "sort": {"field": "mae", "op": "min"}},
            "color": {"condition": {"test": "datum.ours", "value": METHOD_COLOUR}, "value": OTHER_COLOUR},
        },
        "layer": [
            {"mark": "rule", "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}}},
            {
                "mark": {"type": "point", "filled": True, "size": 50, "tooltip": True},
                "encoding": {"x": {**x, "field": "mae"}},
            },
        ],
    }


def line_chart(values: Iterable[dict[str, Any]], title: str) -> dict[str, Any]:
    """Ability against compute (flops, theta, curve, source) as points, with the line of each curve."""
    colour = {"field": "curve", "type": "nominal", "title": None}
    x = {"field": "flops", "type": "quantitative", "scale": {"type": "log"}, "title": "training compute (FLOP)",
         "axis": {"format": "~e"}}
    y = {"field": "theta", "type": "quantitative", "title": "ability"}
    fitted = {
        "transform": [{"regression": "theta", "on": "flops", "method": "log", "groupby": ["curve"]}],
        "mark": {"type": "line", "strokeWidth": 1}, "encoding": {"x": x, "y": y, "color": colour},
    }
    return {
        "$schema": SCHEMA, "title": title,
        "description": "Ability of each checkpoint against its training compute, with a line in log compute a curve.",
        "data": {"values": list(values)}, "facet": {"field": "source", "type": "nominal", "title": None}, "columns": 3,
        "spec": {
            "width": 200, "height": 150,
            "layer": [
                {"mark": {"type": "point", "filled": True, "size": 12}, "encoding": {"x": x, "y": y, "color": colour}},
                fitted,
            ],
        },
    }


def _errors(results: Results, dataset: str) -> dict[str, Any] | None:
    questions = 12 if dataset == SLICE else 50
    rows = results.where(lambda cell: "characters" not in cell.options, dataset=dataset, task="score", budget=questions)
    values = []
    for arm in dict.fromkeys(row.cell.arm for row in rows.measured):
        frames = [row.units for row in rows.where(arm=arm).measured if row.units is not None]
        error = pd.concat(frames).groupby("model")["error"].mean().to_numpy()
        values.append({"arm": arm, "ours": arm in BY_ABILITY, **interval_of_errors(error)})
    return error_chart(values, TITLES[dataset], questions) if values else None


def interval_of_errors(error: np.ndarray) -> dict[str, float]:
    """Interval of a mean of positive numbers, by way of its logarithm."""
    found = bootstrap(lambda i: np.log(error[i].mean(axis=-1)), len(error))
    low, high = (found.low, found.high) if np.isfinite([found.low, found.high]).all() else (found.estimate,) * 2
    low, high = max(low, found.estimate - np.log(20)), min(high, found.estimate + np.log(20))
    names = ("mae", "low", "high")
    return {name: float(f"{np.exp(v):.3g}") for name, v in zip(names, (found.estimate, low, high), strict=True)}


def _budgets(results: Results) -> dict[str, Any] | None:
    rows = results.where(lambda cell: "characters" not in cell.options and cell.seed < 2, task="score").measured
    found: dict[tuple[str, str, int], list[float]] = {}
    for row in rows:
        if row.cell.dataset in (HOME, GEMSTONES):
            key = (TITLES[row.cell.dataset], row.cell.arm, row.cell.options["budget"])
            found.setdefault(key, []).append(row.metrics["mae"])
    several = {key[:2] for key in found if key[2] != 50}
    values = [
        {"set": key[0], "arm": key[1], "questions": key[2], "mae": float(f"{np.mean(maes):.3g}")}
        for key, maes in found.items() if key[:2] in several
    ]
    if not values:
        return None
    return {
        "$schema": SCHEMA, "title": "Error by the number of questions",
        "description": "Mean absolute error of the predicted full mean against the number of questions asked.",
        "data": {"values": values}, "facet": {"column": {"field": "set", "title": None}},
        "spec": {
            "width": 260, "height": 220, "mark": {"type": "line", "point": True, "tooltip": True},
            "encoding": {
                "x": {"field": "questions", "type": "quantitative", "scale": {"type": "log"}, "title": "questions"},
                "y": {
                    "field": "mae", "type": "quantitative", "scale": {"type": "log"}, "title": "mean absolute error",
                },
                "color": {"field": "arm", "type": "nominal"},
            },
        },
    }


def _decisions(results: Results) -> dict[str, Any] | None:
    values = []
    for row in results.where(lambda cell: "of" not in cell.options, task="decide").measured:
        values += [
            {"set": TITLES[row.cell.dataset], "arm": row.cell.arm, "benchmark": name.removeprefix("decision accuracy "),
             "share": round(value, 3)}
            for name, value in row.metrics.items() if name.startswith("decision accuracy ")
        ]
    if not values:
        return None
    frame = pd.DataFrame(values).groupby(["set", "arm", "benchmark"], sort=False)["share"].mean().round(3).reset_index()
    return {
        "$schema": SCHEMA, "title": "Pairs ordered rightly at a larger size",
        "description": "Share of pairs of data recipes (models for Gemstone) whose order was predicted, by benchmark.",
        "data": {"values": frame.to_dict("records")}, "facet": {"column": {"field": "set", "title": None}},
        "spec": {
            "width": 240, "height": {"step": 18}, "mark": {"type": "tick", "thickness": 3, "tooltip": True},
            "encoding": {
                "y": {"field": "arm", "type": "nominal", "title": None},
                "x": {"field": "share", "type": "quantitative", "scale": {"domain": [0, 1]}, "title": "share of pairs"},
                "color": {"field": "benchmark", "type": "nominal"},
            },
        },
    }


def _lines(results: Results, dataset: str) -> dict[str, Any] | None:
    rows = results.where(dataset=dataset, arm="line", task="line").measured
    if not rows or rows[0].units is None:
        return None
    # Two benchmarks and three curves say it; all of them would be a thousand points.
    units = rows[0].units
    kept = units[units["source"].isin(units["source"].unique()[:2]) & units["curve"].isin(units["curve"].unique()[::2])]
    values = [
        {"flops": float(f"{r.flops:.3g}"), "theta": round(r.theta, 3), "curve": r.curve, "source": r.source}
        for r in kept.itertuples()
    ]
    return line_chart(values, f"Ability against compute, {TITLES[dataset]}")
