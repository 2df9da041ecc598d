"""The checks of each kind of public object, one module a kind, found by the kind's name."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import partial
from types import ModuleType

from assay.conformance.check import Check
from assay.conformance.kinds.common import refuses_bad_input
from assay.conformance.subject import Subject

__all__ = ["exercise", "kind_checks", "labels"]

BAD_INPUT = "bad input"


def kind_checks(subject: Subject, name: str, kind: str) -> Iterator[Check]:
    """The checks of a public name, by its kind; each can be excused in the method's `conformance.py`."""
    yield _excusable(subject, name, BAD_INPUT, partial(refuses_bad_input, subject, name))
    for label, check in _module(kind).CHECKS.items():
        yield _excusable(subject, name, label, partial(check, subject, name))


def labels(kind: str) -> list[str]:
    """Names of the checks of a kind: what an excuse can name."""
    return [BAD_INPUT, *_module(kind).CHECKS]


def exercise(subject: Subject, name: str, kind: str) -> None:
    """Use a public name once, on the small inputs that the method declares."""
    _module(kind).exercise(subject, name)


def _module(kind: str) -> ModuleType:
    return importlib.import_module(f"assay.conformance.kinds.{kind}")


def _excusable(subject: Subject, name: str, label: str, check: partial[None]) -> Check:
    def run() -> None:
        subject.entry(name).excuse(label)
        check()

    return Check(f"{name}: {label}", run)
