"""All checks of a method, in order, and the count that must not fall in silence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from assay.catalogue import Method
from assay.conformance import card, command, docs, extras, readme, record, repository, study
from assay.conformance.check import Check, Report
from assay.conformance.kinds import kind_checks
from assay.conformance.subject import Subject

__all__ = ["assert_conforms", "checks", "conform"]


def checks(method: Method, root: Path | None = None) -> Iterator[Check]:
    """Every check of a method.

    Parameters
    ----------
    method : Method
        From `assay.catalogue.get`, or from `read_card` for a folder that is not installed.
    root : Path, optional
        The repository that holds `tests/` and `benchmarks/`; by default the nearest folder above the method's
        with a `pyproject.toml`.
    """
    if not __debug__:
        raise RuntimeError("the checks are assertions: run Python without -O")
    subject = Subject(method, root)
    for module in (card, record, study, command, docs, readme, extras, repository):
        yield from module.checks(subject)
    for name, kind in method.kinds.items():
        yield from kind_checks(subject, name, kind)


def conform(method: Method, root: Path | None = None) -> Report:
    """Run every check of a method.

    Parameters
    ----------
    method : Method
    root : Path, optional
        As for `checks`.

    Returns
    -------
    Report
    """
    return Report(method.slug, tuple(check.result() for check in checks(method, root)))


def assert_conforms(method: Method, passed: int, excused: int = 0, root: Path | None = None) -> Report:
    """Run every check; raise `AssertionError` for a failed one, and for any other number of checks.

    Parameters
    ----------
    method : Method
    passed, excused : int
        How many checks must pass, and how many may be excused.
    root : Path, optional
        As for `checks`.

    Returns
    -------
    Report
    """
    report = conform(method, root)
    if report.of("failed"):
        raise AssertionError(str(report))
    counts = len(report.of("passed")), len(report.of("excused"))
    if counts != (passed, excused):
        raise AssertionError(f"expected {passed} passed and {excused} excused checks\n{report}")
    return report
