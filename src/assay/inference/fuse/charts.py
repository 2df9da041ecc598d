"""Pictures of the evidence: arms by data set, and the estimated against the true base rates."""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.inference.fuse.arms import FEW
from assay.inference.fuse.verdicts import auc_interval, hits_interval
from assay.study import Results, Row

__all__ = ["charts"]

ORDER = (
    "fuse", "fuse-conditional", "fuse-pseudo", "fuse-spectral", "fuse-median", "fuse-unmerged", "fuse-untransformed",
    "jaffe", "dawid-skene", "vote", "mean-z", "mean-rank", "best-single-5", "best-single", "supervised-5", "supervised",
)
KINDS = {
    "best-single-5": "few labels", "supervised-5": "few labels", "best-single": "all labels",
    "supervised": "all labels",
}


def charts(results: Results) -> list[dict[str, Any]]:
    """Vega-Lite specifications with their data inline; none where nothing was measured."""
    return [
        *_arms(results, "auc", "AUC over all items"),
        *_arms(results, "best_of_n", "Share of queries whose best item is right"),
        *_base_rates(results),
        *_budgets(results),
    ]


def _arms(results: Results, metric: str, label: str) -> list[dict[str, Any]]:
    rows = []
    for name in (n for n in results.datasets if n != "planted"):
        for arm in ORDER:
            cells = [
                row for row in results.where(dataset=name, arm=arm).measured
                if not row.cell.options and metric in row.metrics
            ]
            if cells:
                rows.append(_point(name, arm, metric, cells))
    if not rows:
        return []
    base = {"y": {"field": "arm", "type": "nominal", "sort": list(ORDER), "title": None}}
    colour = {"field": "labels", "type": "nominal", "title": "labels used",
              "sort": ["none", "few labels", "all labels"]}
    value = {"field": "value", "type": "quantitative", "title": label, "scale": {"zero": False}}
    return [{
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "title": label,
        "description": f"{label} of each arm on each data set, with 95 % intervals over queries.",
        "data": {"values": rows},
        "facet": {"field": "set", "type": "nominal", "title": None},
        "columns": 2,
        "spec": {
            "width": 260,
            "height": {"step": 15},
            "layer": [
                {"mark": {"type": "rule", "color": "grey", "tooltip": True}, "encoding": {
                    **base, "x": {"field": "low", "type": "quantitative", "title": label}, "x2": {"field": "high"}}},
                {"mark": {"type": "point", "filled": True, "tooltip": True}, "encoding": {
                    **base, "x": value, "color": colour, "shape": {**colour, "legend": None}}},
            ],
        },
        "resolve": {"scale": {"x": "independent"}},
    }]


def _point(name: str, arm: str, metric: str, cells: list[Row]) -> dict[str, Any]:
    value = float(np.mean([row.metrics[metric] for row in cells]))
    point: dict[str, Any] = {"set": name, "arm": arm, "value": round(value, 4), "labels": KINDS.get(arm, "none")}
    if len(cells) == 1:
        interval = _interval(cells[0], metric)
        point |= {"low": round(interval[0], 4), "high": round(interval[1], 4)}
    return point


def _interval(row: Row, metric: str) -> tuple[float, float]:
    interval = auc_interval(row) if metric == "auc" else hits_interval(row)
    return interval.low, interval.high


def _base_rates(results: Results) -> list[dict[str, Any]]:
    rows = [
        {"set": row.cell.dataset, "arm": row.cell.arm, "value": round(row.metrics["base_rate"], 4),
         "truth": round(row.metrics["prevalence"], 4)}
        for row in results.measured
        if "base_rate" in row.metrics and not row.cell.options and row.cell.arm in ("fuse", "fuse-median", "jaffe")
    ]
    if not rows:
        return []
    return [{
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "title": "Share of right items: estimated without labels, and true",
        "description": "Estimated base rate of FUSE, FUSE at the medians and Jaffe's estimator on each data set, with "
        "the true share as a tick.",
        "data": {"values": rows},
        "width": 420,
        "height": {"step": 26},
        "encoding": {"y": {"field": "set", "type": "nominal", "title": None}},
        "layer": [
            {"mark": {"type": "point", "filled": True, "size": 70, "tooltip": True}, "encoding": {
                "x": {"field": "value", "type": "quantitative", "title": "share of right items"},
                "color": {"field": "arm", "type": "nominal"}, "shape": {"field": "arm", "type": "nominal"}}},
            {"mark": {"type": "tick", "thickness": 3, "size": 20, "tooltip": True},
             "encoding": {"x": {"field": "truth", "type": "quantitative"}}},
        ],
    }]


def _budgets(results: Results) -> list[dict[str, Any]]:
    """AUC of a regression over the share of labelled queries, and the label-free score as a rule: what it is worth."""
    rows, rules = [], []
    for name in results.datasets:
        ours = [row for row in results.where(dataset=name, arm="fuse").measured if not row.cell.options]
        shares: dict[float, list[float]] = {}
        for row in results.where(dataset=name, arm="supervised-5").measured:
            shares.setdefault(row.cell.options.get("share", FEW), []).append(row.metrics["auc"])
        if len(shares) > 1 and ours:
            rows += [{"set": name, "share": 100 * s, "value": round(float(np.mean(v)), 4)} for s, v in shares.items()]
            rules.append({"set": name, "fuse": round(ours[0].metrics["auc"], 4)})
    if not rows:
        return []
    return [{
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "title": "How many labels the label-free score is worth",
        "description": "AUC of logistic regression over the share of labelled queries; dashed: FUSE without labels.",
        "data": {"values": [{**row, **rule} for row in rows for rule in rules if rule["set"] == row["set"]]},
        "facet": {"field": "set", "type": "nominal", "title": None},
        "columns": 2,
        "spec": {"width": 240, "height": 150, "layer": [
            {"mark": {"type": "line", "point": True, "tooltip": True}, "encoding": {
                "x": {"field": "share", "type": "quantitative", "title": "labelled, %", "scale": {"type": "log"}},
                "y": {"field": "value", "type": "quantitative", "title": "AUC", "scale": {"zero": False},
                      "axis": {"format": ".3f", "tickCount": 5}}}},
            {"mark": {"type": "rule", "strokeDash": [4, 3]}, "encoding": {
                "y": {"field": "fuse", "type": "quantitative", "aggregate": "mean"}}},
        ]},
        "resolve": {"scale": {"y": "independent"}},
    }]
