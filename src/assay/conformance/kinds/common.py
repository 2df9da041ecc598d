"""What every kind of object promises: pure, inputs left alone, both float types, bad input refused."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

from assay.conformance.alike import cast, frozen, has_floats, near, same
from assay.conformance.check import Excused
from assay.conformance.subject import Subject
from assay.errors import InputError

__all__ = ["both_floats", "inputs_unchanged", "read_only", "refuses_bad_input", "target", "twice"]

Use = Callable[[Any], Any]
TOLERANCE = 1e-3
BAD_INPUTS = 3


def target(subject: Subject, name: str) -> Any:
    """The object that the public name stands for."""
    return getattr(subject.package, name)


def refuses_bad_input(subject: Subject, name: str) -> None:
    """Each callable under `bad` raises `InputError` with one line."""
    bad = subject.entry(name)["bad"]
    assert len(bad) >= BAD_INPUTS, f"{name}: {len(bad)} bad inputs are tried, at least {BAD_INPUTS} are needed"
    for number, attempt in enumerate(bad, 1):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                attempt()
        except InputError as error:
            lines = str(error).strip().splitlines()
            assert len(lines) == 1, f"{name}, bad input {number}: {len(lines)} lines instead of one: {error}"
            continue
        except Exception as error:
            what = f"{type(error).__name__} ({error})"
            raise AssertionError(f"{name}, bad input {number}: {what}, not InputError") from error
        raise AssertionError(f"{name}, bad input {number} was accepted")


def twice(use: Use, inputs: Callable[[], Any]) -> None:
    """Two uses on equal inputs agree to the last bit."""
    assert same(use(inputs()), use(inputs())), "two uses on the same input differ"


def inputs_unchanged(use: Use, inputs: Callable[[], Any]) -> None:
    """What was handed in is afterwards what it was."""
    before = inputs()
    # A copy's arrays can be written to, which those of a frame can not.
    given = copy.deepcopy(before)
    use(given)
    assert same(given, before), "an input was changed"


def read_only(use: Use, inputs: Callable[[], Any]) -> None:
    """Arrays that refuse to be written to are good inputs too, as those of a memory map are."""
    try:
        use(frozen(inputs()))
    except ValueError as error:
        raise AssertionError(f"read-only arrays are refused: {error}") from error


def both_floats(subject: Subject, name: str, use: Use, inputs: Callable[[], Any]) -> None:
    """float32 is accepted as float64 is, and gives the same answer to the stated tolerance."""
    given = inputs()
    if not has_floats(given):
        raise Excused("takes no array of floating point numbers")
    tolerance = subject.entry(name).get("tolerance", TOLERANCE)
    single, double = use(cast(given, "float32")), use(cast(given, "float64"))
    assert near(single, double, tolerance), f"float32 and float64 inputs differ by more than {tolerance:g}"
