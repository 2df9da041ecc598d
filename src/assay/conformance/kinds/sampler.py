"""Samplers: one seed one sample, another seed another, the callback sees each step."""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.conformance.alike import same
from assay.conformance.check import Excused
from assay.conformance.subject import Subject

__all__ = ["CHECKS", "exercise"]


def exercise(subject: Subject, name: str) -> Any:
    """Draw once."""
    return _draw(subject, name, 0)


def _draw(subject: Subject, name: str, seed: int) -> Any:
    entry = subject.entry(name)
    return entry["draw"](entry["make"](), seed)


def _seeded(subject: Subject, name: str) -> None:
    assert same(_draw(subject, name, 0), _draw(subject, name, 0)), f"{name}: one seed gives two samples"


def _varies(subject: Subject, name: str) -> None:
    assert not same(_draw(subject, name, 0), _draw(subject, name, 1)), f"{name}: two seeds give one sample"


def _global_state(subject: Subject, name: str) -> None:
    """Drawing neither reads nor moves NumPy's global generator."""
    before: Any = np.random.get_state()
    first = _draw(subject, name, 0)
    assert same(before, np.random.get_state()), f"{name}: moves NumPy's global generator"
    np.random.seed(1)
    try:
        assert same(first, _draw(subject, name, 0)), f"{name}: depends on NumPy's global generator"
    finally:
        np.random.set_state(before)


def _finite(subject: Subject, name: str) -> None:
    assert np.isfinite(np.asarray(_draw(subject, name, 0), dtype=float)).all(), f"{name}: a sample is not finite"


def _callback(subject: Subject, name: str) -> None:
    """The callback is called, and what is drawn with it is what is drawn without."""
    entry = subject.entry(name)
    if entry.get("callback") is None:
        raise Excused("takes no callback")
    seen: list[Any] = []
    drawn = entry["callback"](entry["make"](), 0, lambda *step, **state: seen.append(step))
    assert seen, f"{name}: the callback was never called"
    assert drawn is None or same(drawn, _draw(subject, name, 0)), f"{name}: the callback changes the sample"


CHECKS = {
    "seeded": _seeded, "varies": _varies, "global state": _global_state, "finite": _finite, "callback": _callback,
}
