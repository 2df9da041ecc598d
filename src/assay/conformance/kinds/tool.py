"""Tools: they answer, and answer the same again; methods they reach by name through the catalogue."""

from __future__ import annotations

from typing import Any

from assay.conformance.alike import same
from assay.conformance.subject import Subject

__all__ = ["CHECKS", "exercise"]


def exercise(subject: Subject, name: str) -> Any:
    """Run the tool once."""
    return subject.entry(name)["run"]()


def _answers(subject: Subject, name: str) -> None:
    assert exercise(subject, name) is not None, f"{name}: gives no answer"


def _repeats(subject: Subject, name: str) -> None:
    assert same(exercise(subject, name), exercise(subject, name)), f"{name}: two uses differ"


CHECKS = {"answers": _answers, "pure": _repeats}
