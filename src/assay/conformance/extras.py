"""Without optional packages the metadata loads, and what needs one names the method, the package, the pip line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from assay.conformance.blocked import OUT_OF_REACH, WORKS
from assay.conformance.check import Check, Excused
from assay.conformance.subject import Subject

__all__ = ["EXTRA_MODULES", "HEAVY", "checks"]

HEAVY = ("torch", "transformers", "gymnasium", "mujoco", "cvxpy", "sklearn", "pandas", "pydantic")

EXTRA_MODULES = {
    "torch": ("torch",),
    "language": ("transformers", "tokenizers", "accelerate", "gguf", "peft", "llama_cpp"),
    "control": ("gymnasium", "mujoco", "minari", "metaworld", "robosuite", "shapely", "h5py"),
    "science": (
        "clarabel", "scs", "flint", "sympy", "mpmath", "cvxpy", "Bio", "pyrodigal", "edlib", "skfem", "ot", "pyamg",
    ),
    "peers": (
        "alkahest", "crowdkit", "girth", "lightgbm", "numba", "probmetrics", "quantile_forest", "qutip", "qutip_qtrl",
        "statsmodels", "venn_abers",
    ),
    "cluster": ("distributed", "dask"),
    "report": ("altair", "vl_convert", "jinja2"),
}
"""Modules that each extra brings; what the blocked process can't import."""

_TIMEOUT_S = 240


def checks(subject: Subject) -> Iterator[Check]:
    """Two checks, each in a process of its own."""
    yield Check("extras: metadata loads without heavy packages", partial(_metadata, subject))
    yield Check("extras: a missing one is named", partial(_missing, subject))


def _metadata(subject: Subject) -> None:
    _blocked_process(subject, "metadata", HEAVY)


def _missing(subject: Subject) -> None:
    """Each public name works without the extras, or its error names method, package and pip line."""
    method = subject.method
    extras = (*method.extras, *method.optional_extras)
    if not extras:
        raise Excused("needs no optional package")
    blocked = [module for extra in extras for module in EXTRA_MODULES.get(extra, ())]
    answers = _blocked_process(subject, "use", blocked)
    allowed = "|".join((*extras, "all"))
    named = re.compile(
        rf'{re.escape(method.slug)} needs the package \w+, which is not installed: pip install "assay\[({allowed})\]"'
    )
    for name, answer in answers.items():
        fits = answer.startswith((WORKS, OUT_OF_REACH)) or named.search(answer)
        assert fits, f"{name}, without the packages of {', '.join(extras)}: {answer}"
    needed = not method.extras or any(named.search(answer) for answer in answers.values())
    assert needed, f"no public name says that it needs {', '.join(method.extras)}: {answers}"


def _blocked_process(subject: Subject, mode: str, blocked: Sequence[str]) -> dict[str, Any]:
    method = subject.method
    request: dict[str, Any] = {
        "mode": mode, "blocked": list(blocked), "folder": str(method.folder), "package": method.package,
        "path": [entry for entry in sys.path if entry],
    }
    done = subprocess.run(
        [sys.executable, "-m", "assay.conformance.blocked", json.dumps(request)], capture_output=True, text=True,
        timeout=_TIMEOUT_S, check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(request["path"])},
    )
    assert done.returncode == 0, done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "the process failed"
    return json.loads(done.stdout.splitlines()[-1])
