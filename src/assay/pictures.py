"""Pictures of Vega-Lite charts as files, where the converter is installed.

`assay run` draws with this: a result without its pictures is still a result, so a missing converter is
said in one line and no error.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

__all__ = ["NO_PICTURES", "draw"]

NO_PICTURES = 'no pictures, since vl-convert-python is not installed: pip install "assay[report]"'


def draw(charts: Mapping[str, dict[str, Any]], formats: tuple[str, ...] = ("png",)) -> dict[str, bytes]:
    """`name.png` and `name.svg` (as `formats` say) of each chart; empty where the converter is missing.

    Parameters
    ----------
    charts : mapping of str to dict
        File name without its ending to Vega-Lite specification, the data inline.
    formats : tuple of str
        Any of `png` and `svg`.
    """
    if find_spec("vl_convert") is None:
        return {}
    import vl_convert

    files: dict[str, bytes] = {}
    for name, chart in charts.items():
        white = {**chart, "background": "white"}
        if "png" in formats:
            files[f"{name}.png"] = vl_convert.vegalite_to_png(white, scale=2)
        if "svg" in formats:
            files[f"{name}.svg"] = vl_convert.vegalite_to_svg(white).encode()
    return files
