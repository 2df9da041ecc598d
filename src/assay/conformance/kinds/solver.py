"""Solvers with the signature of `scipy.sparse.linalg`: `x, info = solve(A, b, rtol=, maxiter=, callback=)`."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from assay.conformance.kinds import common
from assay.conformance.subject import Subject

__all__ = ["CHECKS", "exercise"]

TIGHT, LOOSE = 1e-8, 1e-2
KEYWORDS = ("rtol", "maxiter", "callback")


def exercise(subject: Subject, name: str) -> Any:
    """Solve the declared system."""
    return common.target(subject, name)(*subject.entry(name)["system"](), rtol=TIGHT)


def _signature(subject: Subject, name: str) -> None:
    parameters = list(inspect.signature(common.target(subject, name)).parameters)
    missing = [keyword for keyword in KEYWORDS if keyword not in parameters]
    assert len(parameters) >= 5 and not missing, f"{name}: the signature {parameters} lacks {', '.join(missing)}"


def _converges(subject: Subject, name: str) -> None:
    """`info` is 0 exactly when the residual is as small as was asked, at a loose and at a tight tolerance."""
    solve = common.target(subject, name)
    for rtol in (LOOSE, TIGHT):
        matrix, right = subject.entry(name)["system"]()
        solution, info = solve(matrix, right, rtol=rtol)
        residual = np.linalg.norm(right - matrix @ solution) / np.linalg.norm(right)
        assert info == 0, f"{name}: info {info} at rtol {rtol:g}"
        assert residual <= rtol * (1 + 1e-6), f"{name}: the residual is {residual:.2g} at rtol {rtol:g}"


def _stops(subject: Subject, name: str) -> None:
    """Out of iterations, `info` is positive."""
    matrix, right = subject.entry(name)["system"]()
    _, info = common.target(subject, name)(matrix, right, rtol=1e-14, maxiter=1)
    assert info > 0, f"{name}: info {info} after a single iteration at rtol 1e-14"


def _callback(subject: Subject, name: str) -> None:
    seen: list[Any] = []
    matrix, right = subject.entry(name)["system"]()
    common.target(subject, name)(matrix, right, rtol=TIGHT, callback=seen.append)
    assert seen, f"{name}: the callback was never called"


def _use(subject: Subject, name: str) -> Any:
    solve = common.target(subject, name)
    return lambda system: solve(*system, rtol=LOOSE)


def _pure(subject: Subject, name: str) -> None:
    common.twice(_use(subject, name), subject.entry(name)["system"])


def _inputs_unchanged(subject: Subject, name: str) -> None:
    common.inputs_unchanged(_use(subject, name), subject.entry(name)["system"])


def _float32(subject: Subject, name: str) -> None:
    common.both_floats(subject, name, lambda system: _use(subject, name)(system)[0], subject.entry(name)["system"])


CHECKS = {
    "signature": _signature, "converges": _converges, "stops": _stops, "callback": _callback, "pure": _pure,
    "inputs unchanged": _inputs_unchanged, "float32": _float32,
}
