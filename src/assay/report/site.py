"""The files of the report: rendered first, written after, each under a temporary name and then renamed.

A page that can't be rendered therefore leaves an older report as it was.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from assay.errors import InputError, require
from assay.report import wording
from assay.report.cells import finite
from assay.report.charts import CONFIG
from assay.report.view import MethodView, Overview, view_of
from assay.study import Outcome

__all__ = ["build"]


def build(records: Mapping[str, dict[str, Any] | None], out: Path, *, stale: Collection[str] = ()) -> Path:
    """Write the report on the given methods.

    Parameters
    ----------
    records : mapping of slug to record or None
        A method without a record gets a page too: its claims read untested. The facts beside the
        record come from the method's card.
    out : Path
        The folder; made when it is missing. Other files in it are left alone.
    stale : collection of slugs
        Methods whose record no longer fits the installed code: their pages say so.

    Returns
    -------
    Path
        `index.html`, which opens from disk.

    Raises
    ------
    InputError
        For an unknown slug, and for a folder that can't be written.
    """
    views = [view_of(slug, record, stale) for slug, record in records.items()]
    pages = {"index.html": _render("index.html", overview=Overview(views))}
    for view in views:
        pages |= _method_files(view)
    pages["assay.js"] = _script()
    pages["icon.svg"] = _asset("icon.svg")
    for name, text in pages.items():
        _write(Path(out) / name, text)
    return Path(out) / "index.html"


def _method_files(view: MethodView) -> dict[str, str]:
    slug = view.slug
    if slug == "index" or not re.fullmatch(r"[a-z0-9][a-z0-9-]*", slug):
        raise InputError(f"the slug {slug!r} can't name a page: lower-case letters, digits and dashes were expected")
    made = {f"{slug}.html": _render("method.html", view=view)}
    if view.recorded:
        made[f"{slug}/cells.csv"] = view.cells.csv()
        made[f"{slug}/record.json"] = json.dumps(finite(view.record), indent=1, ensure_ascii=False) + "\n"
    drawings = {f"{slug}/chart-{number}.svg": chart.svg for number, chart in enumerate(view.charts, 1)}
    return made | {name: svg for name, svg in drawings.items() if svg}


def _render(template: str, **context: Any) -> str:
    jinja2 = require("jinja2", extra="report", wanted_by="assay report")
    pages = jinja2.Environment(
        loader=jinja2.PackageLoader("assay.report"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )
    pages.filters |= {"number": wording.number, "duration": wording.duration, "interval": wording.interval}
    pages.globals |= {
        "outcomes": list(Outcome), "letters": wording.LETTERS, "meanings": wording.MEANINGS,
        "css": _asset("site.css"), "chart_config": CONFIG,
    }
    return pages.get_template(template).render(**context) + "\n"


def _script() -> str:
    """The script that all pages share: the Vega bundle, then the pages' own code in a function of its own."""
    vl_convert = require("vl_convert", extra="report", wanted_by="assay report")
    return f"{vl_convert.javascript_bundle()}\n{_asset('site.js')}"


def _asset(name: str) -> str:
    return files("assay.report").joinpath("assets", name).read_text(encoding="utf-8")


def _write(path: Path, text: str) -> None:
    whole = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            whole.write_text(text, encoding="utf-8", newline="\n")
            os.replace(whole, path)
        finally:
            whole.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"the report can't be written to {path.parent}: {error.strerror}") from error
