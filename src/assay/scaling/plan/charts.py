"""Pictures of a plan and of the study, as Vega-Lite specifications with their data inline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from assay.errors import InputError
from assay.scaling.fit import LossLaw
from assay.scaling.plan.laws import Candidate, optimum
from assay.scaling.plan.planning import Plan
from assay.scaling.plan.runs import thinned
from assay.study import Results

__all__ = ["laws_chart", "ranking_chart", "study_charts"]

SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
METHOD_COLOUR, OTHER_COLOUR, MEASURED_COLOUR = "#d55e00", "#0072b2", "#999999"
MOST_POINTS, LINE_POINTS = 300, 13
LOG_X = {"type": "quantitative", "scale": {"type": "log"}, "axis": {"format": "~e"}}


def laws_chart(plan: Plan) -> dict[str, Any]:
    """Loss over compute: the runs, what each law promises of the best run, and the budget's range."""
    measured = [
        {"compute": _short(row.C), "loss": _short(row.loss)} for row in thinned(plan.runs, MOST_POINTS).itertuples()
    ]
    budget = plan.budget
    grid = np.geomspace(plan.runs["C"].min(), max(plan.runs["C"].max(), budget), LINE_POINTS)
    lines = [
        {"compute": _short(compute), "loss": _short(loss), "law": name}
        for name, law in plan.fitted.items()
        for compute, loss in zip(grid, _promised(plan, name, law, grid), strict=True)
        if np.isfinite(loss)
    ]
    expected = plan.allocation.loc["loss"]
    ends = {name: _short(expected[name]) for name in ("lowest", "highest", "estimate")}
    answer = [{"compute": _short(budget), **ends}]
    x = {**LOG_X, "field": "compute", "title": "compute (6 N D, FLOP)"}
    y = {"type": "quantitative", "scale": {"zero": False}, "title": "loss (nats)"}
    return {
        "$schema": SCHEMA, "title": "Each law on the runs",
        "description": "Loss against compute: measured runs as points, the loss that each law promises of the best run "
        "as lines, and the range at the budget as a bar.",
        "width": 480, "height": 320, "encoding": {"x": x},
        "layer": [
            {
                "data": {"values": measured}, "mark": {"type": "point", "filled": True, "color": MEASURED_COLOUR},
                "encoding": {"y": {**y, "field": "loss"}},
            },
            {
                "data": {"values": lines}, "mark": "line",
                "encoding": {"y": {**y, "field": "loss"}, "color": {"field": "law", "type": "nominal"}},
            },
            {
                "data": {"values": answer}, "mark": {"type": "rule", "color": METHOD_COLOUR, "strokeWidth": 3},
                "encoding": {"y": {**y, "field": "lowest"}, "y2": {"field": "highest"}},
            },
            {
                "data": {"values": answer},
                "mark": {"type": "point", "filled": True, "color": METHOD_COLOUR, "size": 80},
                "encoding": {"y": {**y, "field": "estimate"}},
            },
        ],
    }


def ranking_chart(plan: Plan) -> dict[str, Any]:
    """Error of each law on the held-out runs, with its interval."""
    values = [
        {
            "law": name, "error": _short(row["error"]), "low": _short(row["low"]), "chosen": name == plan.law,
            "high": _short(row["high"] if np.isfinite(row["high"]) else row["error"]),
        }
        for name, row in plan.laws.iterrows()
    ]
    return {
        "$schema": SCHEMA, "title": "Error on the held-out larger runs",
        "description": "Mean absolute log error of each law on held-out larger runs, with 95 percent intervals.",
        "width": 420, "height": {"step": 22}, "data": {"values": values},
        "encoding": {
            "y": {"field": "law", "type": "nominal", "title": None, "sort": None},
            "color": {"condition": {"test": "datum.chosen", "value": METHOD_COLOUR}, "value": OTHER_COLOUR},
        },
        "layer": [
            {
                "mark": "rule",
                "encoding": {
                    "x": {"field": "low", "type": "quantitative", "title": "mean absolute log error"},
                    "x2": {"field": "high"},
                },
            },
            {
                "mark": {"type": "point", "filled": True, "size": 60},
                "encoding": {"x": {"field": "error", "type": "quantitative"}},
            },
        ],
    }


def study_charts(results: Results, titles: Mapping[str, str]) -> list[dict[str, Any]]:
    """Error and regret of each arm on each table."""
    charts = []
    for metric, title, words in (
        ("error", "Error at the next budget, by arm", "mean absolute log error at the next budget"),
        ("regret", "Regret of the chosen size, by arm", "log of the loss at the chosen size over the best measured"),
    ):
        values = [
            {
                "table": f"{titles[row.cell.dataset]} {row.cell.options['subset']}".strip(), "arm": row.cell.arm,
                "value": _short(row.metrics[metric]), "ours": row.cell.arm == "plan",
            }
            for row in results.measured
            if metric in row.metrics and row.cell.arm != "zero-width"
        ]
        if values:
            charts.append(_bars(values, title, words))
    return charts


def _bars(values: list[dict[str, Any]], title: str, words: str) -> dict[str, Any]:
    return {
        "$schema": SCHEMA, "title": title, "description": f"One point an arm and table: {words}.",
        "data": {"values": values}, "facet": {"row": {"field": "table", "title": None}},
        "spec": {
            "width": 360, "height": {"step": 18},
            "mark": {"type": "point", "filled": True, "size": 60, "tooltip": True},
            "encoding": {
                "y": {"field": "arm", "type": "nominal", "title": None, "sort": None},
                "x": {"field": "value", "type": "quantitative", "title": words},
                "color": {"condition": {"test": "datum.ours", "value": METHOD_COLOUR}, "value": OTHER_COLOUR},
            },
        },
    }


def _promised(plan: Plan, name: str, law: LossLaw, grid: np.ndarray) -> np.ndarray:
    """Loss of the best run at each budget; NaN where the law has none."""
    if law.columns == ("C",):
        return np.asarray(law.predict(grid[:, None]))
    if np.isnan(plan.laws.loc[name, "loss"]):
        return np.full(len(grid), np.nan)
    how = {"seq_len": plan.seq_len} if Candidate(name, law).needs_seq_len else {}
    losses = []
    for compute in grid:
        try:
            losses.append(optimum(law, float(compute), how)["loss"])
        except InputError:  # not even one update of the smallest batch fits within the smallest runs
            losses.append(np.nan)
    return np.array(losses)


def _short(value: float) -> float:
    return float(f"{value:.4g}")
