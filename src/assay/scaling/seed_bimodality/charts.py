"""Pictures of the study, and of a user's table, as Vega-Lite specifications with their data inline."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from assay.scaling.seed_bimodality.judging import TITLES
from assay.scaling.seed_bimodality.measuring import BINS
from assay.study import Results, Row

__all__ = ["distribution_chart", "study_charts"]

SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
LEAST_SHARE = 0.001


def study_charts(results: Results) -> list[dict[str, Any]]:
    """The distribution of scores over scale, what the mean and the median make of it, and the dip tests."""
    rows = [
        row for row in results.where(arm="seeds", task="population").measured
        if row.units is not None and row.cell.options.get("steps", 4800) == 4800
    ]
    charts = [
        _histograms(row) for row in rows
        if row.cell.options["tasks"] in (["parity"], ["digits"]) and row.cell.dataset != "parity-trained"
    ]
    charts += [_lines(row) for row in rows if row.cell.options["tasks"] == ["parity"]]
    if rows:
        charts.append(_dips(results))
    return charts


def _title(row: Row) -> str:
    return TITLES[row.cell.dataset, row.cell.options["tasks"][0]]


def _histograms(row: Row) -> dict[str, Any]:
    """One column a scale: the share of its seeds in each twentieth of the score."""
    values = [
        {"scale": f"{u['scale']:g}", "low": k / BINS, "high": (k + 1) / BINS, "share": _short(u[f"bin{k:02d}"])}
        for _, u in _units(row).sort_values("scale").iterrows() for k in range(BINS) if u[f"bin{k:02d}"] > LEAST_SHARE
    ]
    return _heat(values, f"Scores over seeds: {_title(row)}", "width")


def _heat(values: list[dict[str, Any]], title: str, scale_title: str) -> dict[str, Any]:
    return {
        "$schema": SCHEMA, "title": title,
        "description": "For each scale the share of seeds whose score lies in each interval.",
        "width": 420, "height": 260, "data": {"values": values},
        "mark": {"type": "bar", "tooltip": True, "width": {"band": 0.95}},
        "encoding": {
            "x": {"field": "scale", "type": "ordinal", "title": scale_title, "sort": None, "axis": {"labelAngle": 0}},
            "y": {"field": "low", "type": "quantitative", "title": "score", "scale": {"domain": [0, 1]}},
            "y2": {"field": "high"},
            "color": {
                "field": "share", "type": "quantitative", "title": "share of seeds", "scale": {"scheme": "blues"},
            },
        },
    }


def _lines(row: Row) -> dict[str, Any]:
    names = {"mean": "mean score", "median": "median score", "share": "share of seeds from 0.9 on"}
    values = [
        {"scale": u["scale"], "value": _short(u[name]), "what": label}
        for _, u in _units(row).sort_values("scale").iterrows() for name, label in names.items()
    ]
    return _line_chart(values, f"Mean, median and share of successes: {_title(row)}", "width")


def _line_chart(values: list[dict[str, Any]], title: str, scale_title: str) -> dict[str, Any]:
    return {
        "$schema": SCHEMA, "title": title,
        "description": "Mean and median score over seeds, and the share of seeds that succeed, against scale.",
        "width": 420, "height": 240, "data": {"values": values},
        "mark": {"type": "line", "point": True, "tooltip": True},
        "encoding": {
            "x": {
                "field": "scale", "type": "quantitative", "title": scale_title, "scale": {"type": "log", "nice": False},
            },
            "y": {"field": "value", "type": "quantitative", "title": None, "scale": {"domain": [0, 1]}},
            "color": {"field": "what", "type": "nominal", "title": None, "legend": {"orient": "bottom"}},
        },
    }


def _dips(results: Results) -> dict[str, Any]:
    """Holm-adjusted p-values of all populations at the end of training, with those of the unimodal control."""
    values = []
    for row in results.where(task="population").measured:
        if row.cell.arm not in ("seeds", "unimodal") or row.cell.options.get("steps", 4800) != 4800:
            continue
        for _, u in _units(row).iterrows():
            values += [
                {
                    "population": _title(row), "arm": row.cell.arm, "metric": what, "p": _short(u[f"{what}_holm"]),
                    "scale": u["scale"], "test": u["test"],
                }
                for what in ("score", "loss") if not math.isnan(u[f"{what}_holm"])
            ]
    return {
        "$schema": SCHEMA, "title": "Dip tests of all populations",
        "description": "Holm-adjusted p-value of the dip test at each scale, for seeds and for unimodal populations.",
        "data": {"values": values},
        "facet": {"column": {"field": "metric", "type": "nominal", "title": None}},
        "spec": {
            "width": 220, "height": 200, "mark": {"type": "point", "filled": True, "tooltip": True},
            "encoding": {
                "x": {"field": "p", "type": "quantitative", "title": "p, log axis", "scale": {"type": "log"}},
                "y": {"field": "population", "type": "nominal", "title": None},
                "yOffset": {"field": "arm", "type": "nominal"},
                "color": {"field": "arm", "type": "nominal", "title": None},
            },
        },
    }


def distribution_chart(
    scales: NDArray[np.floating], scores: list[NDArray[np.floating]], table: pd.DataFrame
) -> dict[str, dict[str, Any]]:
    """Histogram and lines of a user's table, by file name."""
    values = []
    for scale, sample in zip(scales, scores, strict=True):
        shares = np.histogram(sample, BINS, (0.0, 1.0))[0] / len(sample)
        values += [
            {"scale": f"{scale:g}", "low": k / BINS, "high": (k + 1) / BINS, "share": _short(share)}
            for k, share in enumerate(shares) if share > 0
        ]
    names = {"mean": "mean score", "median": "median score", "weight": "share of successes"}
    lines = [
        {"scale": row["scale"], "value": _short(row[name]), "what": label}
        for _, row in table.iterrows() for name, label in names.items()
    ]
    return {
        "scores": _heat(values, "Scores over seeds", "scale"),
        "shares": _line_chart(lines, "Mean, median and share of successes", "scale"),
    }


def _units(row: Row) -> pd.DataFrame:
    assert row.units is not None
    return row.units


def _short(value: float) -> float:
    return float(f"{value:.4g}")
