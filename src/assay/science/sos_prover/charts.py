"""The study's charts: share proved against the number of variables, and against the noise of a proposal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from assay.stats import proportion
from assay.study import Results

__all__ = ["noise_chart", "share_chart"]

HIDDEN = ("drop-square",)


def share_chart(results: Results) -> dict[str, Any] | None:
    """Share of generated polynomials proved, by arm, with Clopper-Pearson intervals."""
    rows = results.where(dataset="generator").measured
    groups: dict[tuple[str, int, str], list[float]] = {}
    for row in rows:
        if row.cell.arm not in HIDDEN:
            key = row.cell.arm, row.cell.options["n"], row.cell.options["kind"]
            groups.setdefault(key, []).append(row.metrics["proved"])
    if not groups:
        return None
    values = [
        {"arm": arm, "n": n, "kind": kind, **_interval(proved)} for (arm, n, kind), proved in sorted(groups.items())
    ]
    title = "Share of polynomials proved, by number of variables"
    text = "Points with 95 % intervals for each arm; degree 4, boundary and interior instances in columns of their own."
    chart = _points(values, title, text, {"field": "n", "type": "ordinal", "title": "variables"})
    chart["spec"] = {"layer": chart.pop("layer"), "width": 240, "height": 180}
    chart["facet"] = {"column": {"field": "kind", "type": "nominal", "title": None}}
    return chart


def noise_chart(results: Results) -> dict[str, Any] | None:
    """Share of spoilt sums of squares made exact, against the noise."""
    groups: dict[tuple[str, float], list[float]] = {}
    for row in results.where(dataset="spoilt").measured:
        if row.cell.arm not in HIDDEN and row.units is not None:
            groups.setdefault((row.cell.arm, row.cell.options["noise"]), []).extend(row.units["proved"])
    if not groups:
        return None
    values = [{"arm": arm, "noise": noise, **_interval(proved)} for (arm, noise), proved in sorted(groups.items())]
    title = "Spoilt sums of squares made exact, by relative noise"
    text = "Points with 95 % intervals, with refinement (nspi) and by rounding alone; noise on a logarithmic axis."
    axis = {"field": "noise", "type": "quantitative", "scale": {"type": "log"}, "title": "relative noise"}
    return {**_points(values, title, text, axis), "width": 420, "height": 200}


def _interval(proved: Sequence[float]) -> dict[str, float]:
    share = proportion(int(sum(proved)), len(proved))
    return {"share": round(share.estimate, 4), "low": round(share.low, 4), "high": round(share.high, 4)}


def _points(values: Sequence[Mapping[str, Any]], title: str, text: str, x: Mapping[str, Any]) -> dict[str, Any]:
    share = {"field": "share", "type": "quantitative", "title": "share proved", "scale": {"domain": [0, 1]}}
    colour = {"field": "arm", "type": "nominal", "title": "arm"}
    offset = {"xOffset": {"field": "arm"}} if x["type"] == "ordinal" else {}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "title": title,
        "description": text,
        "data": {"values": list(values)},
        "layer": [
            {
                "mark": {"type": "rule"},
                "encoding": {"x": x, **offset, "y": {"field": "low", "type": "quantitative"},
                             "y2": {"field": "high"}, "color": colour},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 60},
                "encoding": {"x": x, **offset, "y": share, "color": colour,
                             "shape": {"field": "arm", "type": "nominal"},
                             "tooltip": [{"field": name} for name in ("arm", x["field"], "share", "low", "high")]},
            },
        ],
    }
