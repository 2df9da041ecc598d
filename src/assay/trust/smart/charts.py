"""The charts of the study: calibration error by arm and set, by validation size, and the learned temperatures."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from scipy.stats import t

from assay.study import Results, Row

from .data import SOURCES
from .metrics import uniform_bins
from .verdicts import LARGE, Judge, places_at

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
BINS = 15
PAPER_SIGMA = 0.05
# A middle tone, which stands out from white and from dark pages alike.
GREY = "#768797"
ZERO = {"type": "rule", "strokeDash": [4, 3], "color": GREY}
INTERVAL = {"type": "rule", "color": GREY}


def charts(results: Results, judge: Judge) -> list[dict[str, Any]]:
    """Every chart that the measured cells have the data for."""
    made = [
        _differences(results, judge), _errors(results), _by_size(results), _by_bandwidth(results),
        _temperatures(results), _reliability(results),
    ]
    return [chart for chart in made if chart["data"]["values"]]


def _differences(results: Results, judge: Judge) -> dict[str, Any]:
    values = []
    for place in _plain_and_shifted(results):
        for metric, interval in (judge.differences(results, [place], "smart", "ts") or {}).items():
            if metric == "ece" and np.isfinite([interval.low, interval.high]).all():
                values.append({
                    "set": place[0], "n_val": place[1], "difference": _points(interval.estimate),
                    "low": _points(interval.low), "high": _points(interval.high),
                })
    base = {"y": {"field": "set", "type": "nominal", "title": None, "sort": None}}
    return {
        **_head(
            "Calibration error of SMART less that of temperature scaling",
            "For each data set the paired difference of the expected calibration error with its 95 % interval over "
            "test rows and splits, in percentage points; left of zero SMART is better calibrated.",
        ),
        "data": {"values": values},
        "layer": [
            {"mark": ZERO, "encoding": {"x": {"datum": 0}}},
            {"mark": INTERVAL, "encoding": {
                **base, "x2": {"field": "high"},
                "x": {"field": "low", "type": "quantitative", "title": "difference of ECE (percentage points)"},
            }},
            {"mark": {"type": "point", "filled": True}, "encoding": {
                **base, "x": {"field": "difference", "type": "quantitative"},
                "tooltip": [{"field": name} for name in ("set", "n_val", "difference", "low", "high")],
            }},
        ],
    }


def _errors(results: Results) -> dict[str, Any]:
    values = []
    for name, n_val in _plain_and_shifted(results):
        for arm in dict.fromkeys(row.cell.arm for row in results.where(dataset=name, n_val=n_val).measured):
            rows = _rows(results, name, arm, n_val)
            if rows:
                mean, reach = _mean_and_reach([row.metrics["ece"] for row in rows])
                values.append({
                    "set": name, "arm": arm, "ece": _points(mean), "low": _points(max(mean - reach, 0.0)),
                    "high": _points(mean + reach),
                    **{m: round(float(np.mean([row.metrics[m] for row in rows])), 4) for m in ("nll", "auroc")},
                })
    y = {"field": "arm", "type": "nominal", "title": None, "sort": None}
    return {
        **_head(
            "Calibration error of every arm at the largest validation size",
            "Mean expected calibration error over splits, in per cent, with its 95 % interval over splits, one "
            "panel a data set. The arm called constant gives all rows one confidence: it shows that a low calibration "
            "error alone proves nothing.",
        ),
        "data": {"values": values},
        "facet": {"field": "set", "type": "nominal", "title": None, "sort": None},
        "columns": 3,
        "spec": {
            "width": 180,
            "layer": [
                {"mark": INTERVAL, "encoding": {
                    "y": y, "x": {"field": "low", "type": "quantitative", "title": "ECE (%)"}, "x2": {"field": "high"},
                }},
                {"mark": {"type": "point", "filled": True}, "encoding": {
                    "y": y, "x": {"field": "ece", "type": "quantitative"},
                    "color": {"condition": {"test": "datum.arm == 'smart'", "value": "#d65f38"}, "value": "#5a80d2"},
                    "tooltip": [{"field": f} for f in ("set", "arm", "ece", "nll", "auroc")],
                }},
            ],
        },
        "resolve": {"scale": {"x": "independent"}},
    }


def _by_size(results: Results) -> dict[str, Any]:
    values = []
    for name in results.datasets:
        sizes = sorted({row.cell.options["n_val"] for row in _rows(results, name, "smart")})
        for n_val in sizes if len(sizes) > 1 else ():
            for arm in ("ts", "smart", "smart-early"):
                if rows := _rows(results, name, arm, n_val):
                    for metric in ("ece", "auroc"):
                        mean, _ = _mean_and_reach([row.metrics[metric] for row in rows])
                        values.append(
                            {"set": name, "arm": arm, "n_val": n_val, "metric": metric, "value": _points(mean)}
                        )
    return {
        **_head(
            "How many validation rows SMART needs",
            "Mean over splits of the expected calibration error and of the area under the ROC curve of confidence "
            "against correctness, in per cent, by the number of validation rows, for SMART (with early stopping where "
            "that was measured) and temperature scaling.",
        ),
        "data": {"values": values},
        "facet": {
            "row": {"field": "metric", "type": "nominal", "title": None, "sort": None},
            "column": {"field": "set", "type": "nominal", "title": None, "sort": None},
        },
        "spec": {
            "width": 150, "height": 130, "mark": {"type": "line", "point": True},
            "encoding": {
                "x": {"field": "n_val", "type": "quantitative", "scale": {"type": "log"}, "title": "validation rows",
                      "axis": {"values": [50, 200, 1000, 3000], "format": "d"}},
                "y": {"field": "value", "type": "quantitative", "scale": {"zero": False}, "title": "per cent"},
                "color": {"field": "arm", "type": "nominal", "title": None},
                "tooltip": [{"field": f} for f in ("set", "arm", "n_val", "metric", "value")],
            },
        },
        "resolve": {"scale": {"y": "independent"}},
    }


def _by_bandwidth(results: Results) -> dict[str, Any]:
    swept = [row for row in results.where(arm="smart").measured if "sigma" in row.cell.options]
    values = []
    for name in dict.fromkeys(row.cell.dataset for row in swept):
        errors = {PAPER_SIGMA: [row.metrics["ece"] for row in _rows(results, name, "smart", LARGE)]}
        for row in swept:
            if row.cell.dataset == name:
                errors.setdefault(row.cell.options["sigma"], []).append(row.metrics["ece"])
        values += [
            {"set": name, "sigma": sigma, "ece": _points(float(np.mean(found)))}
            for sigma, found in sorted(errors.items()) if found
        ]
    return {
        **_head(
            "Calibration error by the bandwidth of the soft bins",
            "Mean expected calibration error over splits, in per cent, of SMART fitted with soft bins of different "
            "bandwidth at the largest validation size; the paper's bandwidth is 0.05.",
        ),
        "data": {"values": values},
        "mark": {"type": "line", "point": True},
        "encoding": {
            "x": {"field": "sigma", "type": "quantitative", "title": "bandwidth sigma (confidence)"},
            "y": {"field": "ece", "type": "quantitative", "title": "ECE (%)"},
            "color": {"field": "set", "type": "nominal", "title": None},
        },
    }


def _temperatures(results: Results) -> dict[str, Any]:
    values = []
    for name, n_val in places_at(results, "smart"):
        for row in _rows(results, name, "smart", n_val):
            if "curve.json" in row.files:
                values += [{"set": name, **point} for point in json.loads(row.files["curve.json"])]
    return temperature_chart(values)


def temperature_chart(values: list[dict[str, Any]]) -> dict[str, Any]:
    """Lines of temperature over margin; values with `set`, `margin`, `temperature`."""
    return {
        **_head(
            "Learned temperature by margin",
            "The temperature that SMART learned (on the first split of each data set), against the margin between "
            "the two largest logits. The map is not forced to be monotone.",
        ),
        "data": {"values": values},
        "mark": "line",
        "encoding": {
            "x": {"field": "margin", "type": "quantitative", "title": "margin (logits)"},
            "y": {"field": "temperature", "type": "quantitative", "title": "temperature"},
            "color": {"field": "set", "type": "nominal", "title": None},
        },
    }


def _reliability(results: Results) -> dict[str, Any]:
    values = []
    for name, n_val in places_at(results, "smart"):
        for arm in ("ts", "smart"):
            if frames := [row.units for row in _rows(results, name, arm, n_val)]:
                values += [{"set": name, "arm": arm, **point} for point in reliability_points(frames)]
    return reliability_chart(values)


def reliability_chart(values: list[dict[str, Any]]) -> dict[str, Any]:
    """Panels of gap over confidence; values with `set`, `arm`, `confidence`, `gap`, `rows`."""
    return {
        **_head(
            "Reliability: share of right answers less confidence, by confidence",
            "Rows of all splits in 15 bins of confidence: the share of right answers less the mean confidence, in "
            "percentage points; zero is perfect, below zero is overconfident. The size shows the number of rows.",
        ),
        "data": {"values": values},
        "facet": {"field": "set", "type": "nominal", "title": None, "sort": None},
        "columns": 3,
        "spec": {
            "width": 180, "height": 150,
            "layer": [
                {"mark": ZERO, "encoding": {"y": {"datum": 0}}},
                {"mark": {"type": "point", "filled": True}, "encoding": {
                    "x": {"field": "confidence", "type": "quantitative", "title": "confidence"},
                    "y": {"field": "gap", "type": "quantitative", "title": "right answers less confidence (points)"},
                    "size": {"field": "rows", "type": "quantitative", "legend": None},
                    "color": {"field": "arm", "type": "nominal", "title": None},
                }},
            ],
        },
    }


def reliability_points(frames: list[Any]) -> list[dict[str, float]]:
    """Mean confidence, gap to the accuracy and number of rows of each bin of confidence, of frames of test rows."""
    confidence = np.concatenate([units["confidence"].to_numpy(dtype=float) for units in frames])
    correct = np.concatenate([units["correct"].to_numpy(dtype=float) for units in frames])
    bins = uniform_bins(confidence, BINS)
    count = np.bincount(bins, minlength=BINS)
    # A bin of few rows says little; of a small set its bins are shown all the same, or the picture would be empty.
    least = min(10, max(1, len(confidence) // BINS))
    level = np.bincount(bins, confidence, BINS) / np.maximum(count, 1)
    accuracy = np.bincount(bins, correct, BINS) / np.maximum(count, 1)
    return [
        {"confidence": round(float(level[b]), 3), "gap": _points(accuracy[b] - level[b]), "rows": int(count[b])}
        for b in range(BINS) if count[b] >= least
    ]


def _head(title: str, description: str) -> dict[str, Any]:
    return {"$schema": SCHEMA, "title": title, "description": description}


def _plain_and_shifted(results: Results) -> list[tuple[str, int]]:
    plain = places_at(results, "smart")
    others = [
        (name, source.largest) for name, source in SOURCES.items()
        if (name, source.largest) not in plain and _rows(results, name, "smart", source.largest)
    ]
    return plain + others


def _rows(results: Results, dataset: str, arm: str, n_val: int | None = None) -> list[Row]:
    return [
        row for row in results.where(dataset=dataset, arm=arm).measured
        if "n_val" in row.cell.options and "sigma" not in row.cell.options
        and (n_val is None or row.cell.options["n_val"] == n_val)
    ]


def _mean_and_reach(values: list[float]) -> tuple[float, float]:
    """Mean, and half of Student's 95 % interval over the splits."""
    n = len(values)
    reach = float(t.ppf(0.975, n - 1) * np.std(values, ddof=1) / np.sqrt(n)) if n > 1 else 0.0
    return float(np.mean(values)), reach


def _points(share: float) -> float:
    return round(100.0 * float(share), 3)
