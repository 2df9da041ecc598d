"""Pictures of the study, and of a user's net, as Vega-Lite specifications with their data inline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from assay.scaling.depth_lr.judging import NAMES
from assay.study import Results, Row

__all__ = ["rates_chart", "study_charts"]

SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
LOG = {"type": "quantitative", "scale": {"type": "log", "nice": False, "padding": 10}}
RULE_NAMES = {
    "depth-rule": "L^-3/2",
    "inverse": "1/L",
    "inverse-root": "L^-1/2",
    "constant": "constant",
    "depth-mup": "Depth-muP",
    "own-optimum": "own optimum",
}


def study_charts(results: Results) -> list[dict[str, Any]]:
    """Maximal-update rates, best trained rates, transfer, and the collapse of block types."""
    own = results.where(lambda cell: not cell.options.get("beside"))
    drawn = [
        _energy_chart(own),
        _rate_chart(own),
        _transfer_chart(own),
        _collapse_chart(own),
    ]
    return [chart for chart in drawn if chart is not None]


def rates_chart(table: pd.DataFrame, title: str) -> dict[str, Any]:
    """A rate against effective depth by `kind`; columns depth, rate, kind."""
    values = [
        {"depth": _short(row.depth), "rate": _short(row.rate), "kind": str(row.kind)}
        for row in table.itertuples()
        if np.isfinite(row.rate)
    ]
    return {
        "$schema": SCHEMA,
        "title": title,
        "description": "Learning rate against effective depth, both logarithmic; a power law is a straight line.",
        "width": 420,
        "height": 280,
        "data": {"values": values},
        "mark": {"type": "line", "point": True, "tooltip": True},
        "encoding": {
            "x": {**LOG, "field": "depth", "title": "effective depth"},
            "y": {**LOG, "field": "rate", "title": "learning rate"},
            "color": {"field": "kind", "type": "nominal", "title": None},
        },
    }


def _energy_chart(results: Results) -> dict[str, Any] | None:
    return _by_net(results, "energy", "Maximal-update rate against effective depth")


def _rate_chart(results: Results) -> dict[str, Any] | None:
    return _by_net(results, "rates", "Best trained SGD rate against effective depth")


def _by_net(results: Results, task: str, title: str) -> dict[str, Any] | None:
    parts = []
    for row in results.where(task=task, arm="depth-rule").measured:
        points = _points(row)
        parts.append(points.assign(kind=NAMES[row.cell.options["arch"]]))
        if len(parts) == 1:
            # One guide, through the first net's middle.
            depth, rate = (np.exp(np.log(points[name]).mean()) for name in ("depth", "rate"))
            guide = points.assign(rate=rate * (points["depth"] / depth) ** -1.5, kind="L^-3/2")
    if not parts:
        return None
    return rates_chart(pd.concat([*parts, guide]), title)


def _points(row: Row) -> pd.DataFrame:
    rates = {int(name[6:]): value for name, value in row.metrics.items() if name.startswith("rate_L")}
    return pd.DataFrame({"depth": list(rates), "rate": list(rates.values())}).sort_values("depth")


def _transfer_chart(results: Results) -> dict[str, Any] | None:
    values = [
        {
            "net": NAMES[row.cell.options["arch"]],
            "rule": RULE_NAMES[row.cell.arm],
            "loss": _short(row.metrics["loss"]),
            "rate": _short(row.metrics["rate"]),
        }
        for row in results.where(task="transfer").measured
    ]
    if not values:
        return None
    return {
        "$schema": SCHEMA,
        "title": "Loss of the deepest net at a rate carried over from the shallowest",
        "description": "Mean loss over seeds after training, by rule; the own optimum was searched on a grid. "
        "A diverged run counts as ten times the loss of guessing.",
        "data": {"values": values},
        "facet": {"column": {"field": "net", "title": None}},
        "spec": {
            "width": 240,
            "height": 240,
            "mark": {"type": "point", "filled": True, "size": 60, "tooltip": {"content": "data"}},
            "encoding": {
                "y": {"field": "rule", "type": "nominal", "title": None, "sort": list(RULE_NAMES.values())},
                "x": {**LOG, "field": "loss", "title": "loss"},
            },
        },
    }


def _collapse_chart(results: Results) -> dict[str, Any] | None:
    rows = results.where(task="collapse", arm="depth-rule").measured
    if not len(rows) or rows[0].units is None:
        return None
    mean = rows[0].units.groupby(["branch", "depth", "layers"], as_index=False)["hidden"].mean()
    values = [
        {
            "branch": str(int(row.branch)),
            "counted": count,
            "depth": _short(depth),
            "rate": _short(np.exp(-0.5 * row.hidden)),
        }
        for row in mean.itertuples()
        for count, depth in (("effective depth", row.depth), ("layers", row.layers))
    ]
    return {
        "$schema": SCHEMA,
        "title": "Residual nets with two, four and eight layers a branch",
        "description": "Maximal-update rate against either count of depth: the better count puts all nets on one line.",
        "data": {"values": values},
        "facet": {"column": {"field": "counted", "title": None}},
        "spec": {
            "width": 260,
            "height": 240,
            "mark": {"type": "line", "point": True, "tooltip": True},
            "encoding": {
                "x": {**LOG, "field": "depth", "title": "depth"},
                "y": {**LOG, "field": "rate", "title": "rate"},
                "color": {"field": "branch", "type": "nominal", "title": "layers a branch"},
            },
        },
    }


def _short(value: float) -> float:
    return float(f"{value:.4g}")
