"""Functions, and classes that are built from values: pure, and what they can write they can read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from assay.conformance.alike import same
from assay.conformance.kinds import common
from assay.conformance.subject import Subject

__all__ = ["CHECKS", "exercise"]


def exercise(subject: Subject, name: str) -> Any:
    """Call the function on its declared inputs."""
    return common.target(subject, name)(**subject.entry(name)["inputs"]())


def _parts(subject: Subject, name: str) -> tuple[Callable[[Mapping[str, Any]], Any], Callable[[], Any]]:
    function = common.target(subject, name)
    return lambda inputs: function(**inputs), subject.entry(name)["inputs"]


def _pure(subject: Subject, name: str) -> None:
    """Two calls agree to the last bit, and what a result writes as JSON is read back the same."""
    common.twice(*_parts(subject, name))
    result = exercise(subject, name)
    if hasattr(result, "to_json") and hasattr(type(result), "from_json"):
        text = result.to_json()
        again = type(result).from_json(text)
        assert type(again) is type(result), f"written as JSON and read, it is a {type(again).__name__}"
        assert same(again.to_json(), text), "written as JSON, read and written again, it is another text"


def _inputs_unchanged(subject: Subject, name: str) -> None:
    common.inputs_unchanged(*_parts(subject, name))


def _read_only(subject: Subject, name: str) -> None:
    common.read_only(*_parts(subject, name))


def _float32(subject: Subject, name: str) -> None:
    common.both_floats(subject, name, *_parts(subject, name))


CHECKS = {
    "pure": _pure, "inputs unchanged": _inputs_unchanged, "read-only inputs": _read_only, "float32": _float32,
}
