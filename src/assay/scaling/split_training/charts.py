"""Pictures of the study and of a user's plan, as Vega-Lite specifications with their data inline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from assay.scaling.split_training.arms import FULL, LAW
from assay.scaling.split_training.tables import TITLES
from assay.stats import mean_interval
from assay.study import Results

SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
METHOD_COLOUR, OTHER_COLOUR = "#d55e00", "#0072b2"
HOLD_OUTS = {"held-out": "another seed", "width": "largest width", "tokens": "longest trunk"}


def study_charts(results: Results) -> list[dict[str, Any]]:
    """Errors by arm, predicted against measured losses, measured losses by share, specialists against one model."""
    drawn = [_errors(results), _scatter(results), _shares(results), _served(results), _plans(results)]
    return [chart for chart in drawn if chart is not None]


def curve_chart(curves: pd.DataFrame, chosen: pd.DataFrame, title: str) -> dict[str, Any]:
    """Predicted loss against the share of the budget on the trunk; `chosen` marks the planned one."""
    x = {"field": "share", "type": "quantitative", "title": "share of the budget on the shared phase"}
    y = {"field": "loss", "type": "quantitative", "scale": {"zero": False}, "title": "predicted loss (nats)"}
    return {
        "$schema": SCHEMA, "title": title, "width": 420, "height": 260,
        "description": "Predicted mean loss against the share of the budget spent before branching, the plan marked.",
        "layer": [
            {
                "data": {"values": _rounded(curves[["share", "loss"]])},
                "mark": {"type": "line", "color": OTHER_COLOUR},
                "encoding": {"x": x, "y": y},
            },
            {
                "data": {"values": _rounded(chosen[["share", "loss"]])},
                "mark": {"type": "point", "filled": True, "size": 80, "color": METHOD_COLOUR, "tooltip": True},
                "encoding": {"x": x, "y": y},
            },
        ],
    }


def _errors(results: Results) -> dict[str, Any] | None:
    values = []
    for row in results.measured:
        task = row.cell.options.get("task")
        if task not in ("held-out", "extrapolate") or row.units is None:
            continue
        units = row.units[row.units["D"] > 0]
        found = mean_interval(100 * units.groupby("group")["error"].mean().to_numpy())
        ends = (found.low, found.high) if np.isfinite([found.low, found.high]).all() else (found.estimate,) * 2
        objective = row.cell.options.get("objective")
        values.append({
            "hold out": HOLD_OUTS[row.cell.options.get("hold_out", "held-out")], "ours": row.cell.arm == LAW,
            "arm": row.cell.arm + (f" ({objective})" if objective else ""), "error": _short(found.estimate),
            "low": _short(max(ends[0], 0.0)), "high": _short(min(ends[1], 3 * found.estimate)),
        })
    if not values:
        return None
    colour = {"condition": {"test": "datum.ours", "value": METHOD_COLOUR}, "value": OTHER_COLOUR}
    x = {"type": "quantitative", "title": "mean relative error (%)"}
    return {
        "$schema": SCHEMA, "title": "Error on held-out runs, by law",
        "description": "Mean relative error of each law on held-out runs, with 95 percent intervals over trunks.",
        "data": {"values": values}, "facet": {"column": {"field": "hold out", "title": None}},
        "spec": {
            "width": 210, "height": {"step": 16},
            "encoding": {
                "y": {"field": "arm", "type": "nominal", "title": None, "sort": {"field": "error", "op": "min"}},
                "color": colour,
            },
            "layer": [
                {"mark": "rule", "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}}},
                {
                    "mark": {"type": "point", "filled": True, "size": 50, "tooltip": True},
                    "encoding": {"x": {**x, "field": "error"}},
                },
            ],
        },
    }


def _scatter(results: Results) -> dict[str, Any] | None:
    rows = results.where(arm=LAW, task="held-out").measured
    if not len(rows) or rows[0].units is None:
        return None
    units = rows[0].units
    values = [
        {
            "measured": _short(run["loss"]), "predicted": _short(run["predicted"]), "domain": run["domain"],
            "width": int(run["width"]),
        }
        for _, run in units[units["D"] > 0].iterrows()
    ]
    ends = [min(v["measured"] for v in values), max(v["measured"] for v in values)]
    axis = {"type": "quantitative", "scale": {"zero": False}}
    return {
        "$schema": SCHEMA, "title": "Runs of a seed that the law has not seen",
        "description": "Predicted against measured loss of held-out runs; on the grey line both agree.",
        "width": 320, "height": 300,
        "layer": [
            {
                "data": {"values": [{"x": end, "y": end} for end in ends]},
                "mark": {"type": "line", "color": "#999999"},
                "encoding": {
                    "x": {**axis, "field": "x", "title": "measured loss (nats a byte)"},
                    "y": {**axis, "field": "y", "title": "predicted loss"},
                },
            },
            {
                "data": {"values": values}, "mark": {"type": "point", "filled": True, "tooltip": True},
                "encoding": {
                    "x": {**axis, "field": "measured"}, "y": {**axis, "field": "predicted"},
                    "color": {"field": "width", "type": "ordinal"}, "shape": {"field": "domain", "type": "nominal"},
                },
            },
        ],
    }


def _shares(results: Results) -> dict[str, Any] | None:
    """Measured loss by share, as distance to the best of its run, mean over trunks; the chosen shares marked."""
    rows = results.where(arm=LAW, task="choose").measured
    if not len(rows) or rows[0].units is None:
        return None
    units = rows[0].units
    columns = [column for column in units if column.startswith("loss ")]
    values, chosen = [], []
    for (budget, domain), at in units.groupby(["budget", "domain"]):
        best = at[columns].min(axis=1)
        where = {"budget": int(budget), "domain": domain}
        for column in columns:
            name = column.removeprefix("loss ")
            away = 100 * (at[column] / best - 1).mean()
            values.append({**where, "share": 1.0 if name == FULL else float(name), "away": _short(away)})
        regret = 100 * (at["chosen_loss"] / best - 1).mean()
        chosen.append({**where, "share": _short(at["chosen_share"].mean()), "away": _short(regret)})
    x = {"field": "share", "type": "quantitative", "title": "share before the branch"}
    y = {"field": "away", "type": "quantitative", "scale": {"type": "symlog"}, "title": "above the best share (%)"}
    colour = {"field": "domain", "type": "nominal"}
    marked = {"type": "point", "size": 140, "strokeWidth": 2, "tooltip": True}
    return {
        "$schema": SCHEMA, "title": "Measured loss by share of the budget",
        "description": (
            "How far each share lies above the best one, mean over trunks; at 1 one model on everything; rings are "
            "what the law chose."
        ),
        "data": {"values": [{**v, "kind": "run"} for v in values] + [{**c, "kind": "chosen"} for c in chosen]},
        "facet": {
            "column": {
                "field": "budget", "type": "ordinal", "title": None,
                "header": {"labelExpr": "format(datum.value, ',') + ' tokens'"},
            },
        },
        "spec": {
            "width": 220, "height": 220,
            "layer": [
                {
                    "transform": [{"filter": "datum.kind == 'run'"}], "mark": {"type": "line", "point": True},
                    "encoding": {"x": x, "y": y, "color": colour},
                },
                {
                    "transform": [{"filter": "datum.kind == 'chosen'"}], "mark": marked,
                    "encoding": {"x": x, "y": y, "color": colour},
                },
            ],
        },
    }


def _served(results: Results) -> dict[str, Any] | None:
    rows = results.where(arm="specialists", task="served").measured
    if not len(rows) or rows[0].units is None:
        return None
    values = []
    for budget, at in rows[0].units.groupby("budget"):
        for rival, words in (("mixture", "one model on the mixture"), ("both", "one model continued on both domains")):
            found = mean_interval(100 * (at["specialists"] / at[rival] - 1).to_numpy())
            ends = (found.low, found.high) if np.isfinite([found.low, found.high]).all() else (found.estimate,) * 2
            values.append({
                "budget": int(budget), "against": words, "away": _short(found.estimate), "low": _short(ends[0]),
                "high": _short(ends[1]),
            })
    x = {"field": "budget", "type": "quantitative", "scale": {"type": "log", "padding": 20}, "axis": {"format": "~s"}}
    y = {"type": "quantitative", "title": "loss of the specialists, relative (%)"}
    colour = {"field": "against", "type": "nominal", "legend": {"orient": "bottom", "labelLimit": 300}}
    return {
        "$schema": SCHEMA, "title": "Two specialists against one model at equal training tokens",
        "description": "Mean loss of two specialists relative to one model of equal tokens; below 0 they are better.",
        "width": 360, "height": 240, "data": {"values": values},
        "encoding": {"x": {**x, "title": "training tokens in all"}, "color": colour},
        "layer": [
            {"mark": {"type": "rule", "color": "#999999"}, "encoding": {"y": {"datum": 0}, "x": {"value": 0},
             "x2": {"value": 360}, "color": {"value": "#999999"}}},
            {"mark": "rule", "encoding": {"y": {**y, "field": "low"}, "y2": {"field": "high"}}},
            {
                "mark": {"type": "line", "point": {"filled": True, "size": 50}, "tooltip": True},
                "encoding": {"y": {**y, "field": "away"}},
            },
        ],
    }


def _plans(results: Results) -> dict[str, Any] | None:
    rows = [row for row in results.where(task="plan").measured if row.units is not None]
    if not rows:
        return None
    units = pd.DataFrame(rows[0].units)
    values = _rounded(units[["budget", "share", "low", "high"]])
    x = {
        "field": "budget", "type": "quantitative", "scale": {"type": "log", "padding": 20},
        "title": "tokens for two specialists", "axis": {"format": "~s"},
    }
    y = {"type": "quantitative", "scale": {"domain": [0, 1]}, "title": "planned share of the shared phase"}
    return {
        "$schema": SCHEMA, "title": f"How far the fitted runs fix the plan, {TITLES[rows[0].cell.dataset]}",
        "description": "Planned share of the shared phase by budget; 95 percent intervals of refits to drawn trunks.",
        "width": 320, "height": 220, "data": {"values": values}, "encoding": {"x": x},
        "layer": [
            {"mark": {"type": "rule", "color": METHOD_COLOUR},
             "encoding": {"y": {**y, "field": "low"}, "y2": {"field": "high"}}},
            {
                "mark": {"type": "point", "filled": True, "size": 60, "color": METHOD_COLOUR, "tooltip": True},
                "encoding": {"y": {**y, "field": "share"}},
            },
        ],
    }


def _rounded(table: pd.DataFrame) -> list[dict[str, float]]:
    return [{str(name): _short(value) for name, value in row.items()} for _, row in table.iterrows()]


def _short(value: float) -> float:
    return float(f"{value:.5g}")
