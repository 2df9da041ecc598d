"""Pictures of the study and of a simulation, as Vega-Lite specifications with their data inline."""

from __future__ import annotations

import io
from typing import Any

import pandas as pd

from assay.study import Results

__all__ = ["curves_chart", "law_chart", "study_charts"]

SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
LIMIT_NAME = "unlimited samples"


def study_charts(results: Results) -> list[dict[str, Any]]:
    """Risk along the size in both modes, the errors of the laws, and the recursions beside simulation."""
    drawn = (_widths(results), _exponents(results), _laws(results), _recursions(results))
    return [chart for chart in drawn if chart is not None]


def _widths(results: Results) -> dict[str, Any] | None:
    tables = []
    for row in results.where(task="width").measured:
        options: dict[str, Any] = dict(row.cell.options)
        alike = options.get("a", 1.5) == 1.5 and options.get("b", 2.0) == 2.0 and "batch" not in options
        if options["quantities"] != ["data"] or not alike:
            continue
        table = pd.read_csv(io.BytesIO(row.files["curves.csv"]))
        place = "power law, b = 2" if "b" in options else "digits behind ReLU features"
        tables.append(table.assign(arm=row.cell.arm, place=place))
    if not tables:
        return None
    table = pd.concat(tables)
    table["samples"] = [LIMIT_NAME if N == 0 else f"{N:,} samples" for N in table["N"]]
    return curves_chart(
        table, "Excess risk against model size, by step",
        "Excess risk of quantised SGD against model size for several quantiser steps, relative steps beside constant "
        "ones, with the samples that were simulated and with unlimited samples.",
    )


def curves_chart(table: pd.DataFrame, title: str, description: str) -> dict[str, Any]:
    """Excess risk against size, a line a step; columns M, excess, eps, arm, and perhaps place and samples."""
    values = [
        {
            "M": int(r.M), "excess": float(f"{r.excess:.4g}"), "eps": f"{r.eps:g}",
            "panel": " · ".join(str(getattr(r, name)) for name in ("place", "arm", "samples") if hasattr(r, name)),
        }
        for r in table.itertuples() if r.excess > 0 and r.excess < float("inf")
    ]
    return {
        "$schema": SCHEMA, "title": title, "description": description, "data": {"values": values},
        "facet": {"field": "panel", "type": "nominal", "title": None}, "columns": 2,
        "spec": {
            "width": 240, "height": 180, "mark": {"type": "line", "point": True, "tooltip": True},
            "encoding": {
                "x": {
                    "field": "M", "type": "quantitative", "scale": {"type": "log", "base": 2}, "title": "model size M",
                },
                "y": {"field": "excess", "type": "quantitative", "scale": {"type": "log"}, "title": "excess risk"},
                "color": {
                    "field": "eps", "type": "nominal", "title": "eps",
                    "sort": sorted({f"{eps:g}" for eps in table["eps"]}, key=float),
                },
            },
        },
    }


def _exponents(results: Results) -> dict[str, Any] | None:
    """Exponent of the usable size in eps on each power-law problem, beside -1/a."""
    values = [
        {
            "problem": f"a = {row.cell.options['a']:g}, b = {row.cell.options['b']:g}", "what": what,
            "exponent": float(f"{value:.3g}"),
        }
        for row in results.where(lambda cell: "a" in cell.options, arm="additive", task="width").measured
        if row.cell.options["quantities"] == ["data"] and "batch" not in row.cell.options
        for what, value in (
            ("simulated", row.metrics["exponent_samples"]), (LIMIT_NAME, row.metrics["exponent_unlimited"]),
            ("-1/a", -1 / row.cell.options["a"]),
        )
    ]
    if not values:
        return None
    return {
        "$schema": SCHEMA, "title": "How the usable size falls with a constant step",
        "description": "Slope of the logarithm of the equivalent full-precision size in log eps, beside minus one over "
        "the exponent of the spectrum.",
        "data": {"values": values}, "width": 320, "height": {"step": 20},
        "mark": {"type": "point", "filled": True, "size": 60, "tooltip": True},
        "encoding": {
            "x": {"field": "exponent", "type": "quantitative", "scale": {"zero": False}},
            "y": {"field": "problem", "type": "nominal", "title": None},
            "color": {"field": "what", "type": "nominal", "title": None},
            "shape": {"field": "what", "type": "nominal", "title": None},
        },
    }


def _laws(results: Results) -> dict[str, Any] | None:
    values = [
        {
            "arm": row.cell.arm, "problem": f"b = {row.cell.options['b']:g}", "mode": mode,
            "error": float(f"{row.metrics[f'error_{mode}']:.3g}"),
        }
        for row in results.where(task="law").measured for mode in ("multiplicative", "additive")
    ]
    if not values:
        return None
    return law_chart(values)


def law_chart(values: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean relative error of each law on the held-out runs."""
    return {
        "$schema": SCHEMA, "title": "Held-out error of the laws",
        "description": "Mean relative error on larger sizes and samples than were fitted, by law, mode and problem.",
        "data": {"values": values},
        "facet": {"column": {"field": "mode", "title": None}, "row": {"field": "problem", "title": None}},
        "spec": {
            "width": 220, "height": {"step": 16}, "mark": {"type": "bar", "tooltip": True},
            "encoding": {
                "x": {"field": "error", "type": "quantitative", "title": "mean relative error"},
                "y": {"field": "arm", "type": "nominal", "title": None, "sort": "x"},
            },
        },
    }


def _recursions(results: Results) -> dict[str, Any] | None:
    values = []
    for row in results.where(task="recursion").measured:
        if row.units is None:
            continue
        values += [
            {
                "place": f"{row.cell.dataset}, M = {row.cell.options['M']}", "what": f"{r.mode} {r.quantity}",
                "recursion": name, "off": float(f"{getattr(r, column) / r.simulated - 1:.3g}"),
            }
            for r in row.units.itertuples() for name, column in (("exact", "full"), ("eigenbasis", "eigenbasis"))
        ]
    if not values:
        return None
    return {
        "$schema": SCHEMA, "title": "The recursions beside simulation",
        "description": "Relative difference of the predicted from the simulated risk, by quantised quantity and mode.",
        "data": {"values": values}, "facet": {"field": "place", "type": "nominal", "title": None}, "columns": 2,
        "spec": {
            "width": 220, "height": {"step": 14}, "mark": {"type": "point", "filled": True, "tooltip": True},
            "encoding": {
                "x": {
                    "field": "off", "type": "quantitative", "axis": {"format": "+.1%"},
                    "title": "predicted over simulated",
                },
                "y": {"field": "what", "type": "nominal", "title": None},
                "color": {"field": "recursion", "type": "nominal"},
            },
        },
    }
