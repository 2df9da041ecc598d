"""Helpers of several test files."""

from __future__ import annotations

import os
from pathlib import Path

TOY = Path(__file__).parent / "spine" / "toy"


def toy_environment(home, toy=True, **more):
    """The environment of a run: the toy method registered as a third party would register it."""
    paths = [str(TOY)] if toy else []
    if before := os.environ.get("PYTHONPATH"):
        paths.append(before)
    return {
        **os.environ, "ASSAY_HOME": str(home), "PYTHONPATH": os.pathsep.join(paths),
        "TOY_API_KEY": "not-to-be-seen", **more,
    }
