"""A record's Vega-Lite specifications, made ready for a page that must not reach outside itself.

The page draws them with the bundle of the shared script; a reader without scripts sees the same
specification drawn beforehand as SVG.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from assay.errors import require
from assay.report.cells import finite

__all__ = ["CONFIG", "Chart", "charts"]

PALETTE = ["#1b957f", "#d65f38", "#5a80d2", "#b8860b", "#a063b8", "#768797", "#2f9dc2", "#c44a42"]
"""Middle tones, which stand out from white paper and from the dark page alike."""

CONFIG: dict[str, Any] = {
    "background": "transparent",
    "font": "Inter, system-ui, 'Segoe UI', 'Helvetica Neue', 'Liberation Sans', sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 11, "titleFontSize": 11.5, "titleFontWeight": 500, "labelColor": "#4a5763",
        "titleColor": "#4a5763", "gridColor": "#e3e7ea", "domainColor": "#b9c2c9", "tickColor": "#b9c2c9",
        "titlePadding": 8, "labelLimit": 220,
    },
    "legend": {
        "labelFontSize": 11, "titleFontSize": 11.5, "titleFontWeight": 500, "labelColor": "#4a5763",
        "titleColor": "#4a5763", "orient": "bottom", "symbolSize": 80, "labelLimit": 260, "columns": 4,
    },
    "header": {"labelFontSize": 11.5, "titleFontSize": 11.5, "labelColor": "#4a5763", "titleColor": "#4a5763"},
    "range": {"category": PALETTE},
    "point": {"size": 60, "filled": True, "opacity": 1},
    "line": {"strokeWidth": 2},
    "rule": {"strokeWidth": 1.5},
}

BUDGET = 150_000
"""Characters of specifications that a page carries; a chart past it is shown as its SVG only."""

COMPOSED = ("facet", "repeat", "hconcat", "vconcat", "concat")


@dataclass(frozen=True)
class Chart:
    """A chart of a page: `spec` is None where only the drawing `svg` is shown, `svg` where it can't be drawn."""

    title: str
    description: str
    spec: dict[str, Any] | None
    svg: str | None
    problem: str = ""

    @property
    def wide(self) -> bool:
        """Whether its width is its own, so that it needs the page's."""
        return self.spec is not None and self.spec.get("width") != "container"


def charts(specs: Sequence[dict[str, Any]]) -> list[Chart]:
    """The charts of a record, in order."""
    ready = []
    room = BUDGET
    for number, raw in enumerate(specs, 1):
        title = _text(raw.get("title")) or f"Chart {number}"
        description = _text(raw.get("description")) or title
        if _refers_outside(raw):
            ready.append(Chart(title, description, None, None, "it reads data from outside the record"))
            continue
        spec = _prepare(raw)
        try:
            svg = _draw(spec)
        except ValueError as error:
            ready.append(Chart(title, description, None, None, str(error).partition("\n")[0]))
            continue
        room -= len(repr(spec))
        ready.append(Chart(title, description, spec if room >= 0 else None, svg))
    return ready


def _text(value: Any) -> str:
    """A Vega-Lite title: a string, lines of a string, or an object with `text`."""
    if isinstance(value, dict):
        value = value.get("text")
    return " ".join(map(str, value)) if isinstance(value, list) else str(value or "")


def _refers_outside(part: Any) -> bool:
    """Whether a specification names anything to load: data, an image, a link."""
    if isinstance(part, dict):
        return any(key in ("url", "href") or _refers_outside(value) for key, value in part.items() if key != "values")
    return isinstance(part, list) and any(map(_refers_outside, part))


def _prepare(raw: dict[str, Any]) -> dict[str, Any]:
    """A copy without what the page itself gives: title (a heading), schema address, embedding options."""
    dropped = ("$schema", "title", "description", "usermeta", "background")
    spec = finite({key: copy.deepcopy(value) for key, value in raw.items() if key not in dropped})
    if not any(key in spec for key in COMPOSED) and not {"row", "column", "facet"} & set(spec.get("encoding", {})):
        spec["width"] = "container"
        spec["autosize"] = {"type": "fit-x", "contains": "padding"}
        if not isinstance(spec.get("height", 260), dict):
            spec.setdefault("height", 260)
    return spec


def _draw(spec: dict[str, Any]) -> str:
    vl_convert = require("vl_convert", extra="report", wanted_by="assay report")
    fixed = {**spec, "width": 640} if spec.get("width") == "container" else spec
    return vl_convert.vegalite_to_svg(fixed, config={**CONFIG, "background": "white"})
