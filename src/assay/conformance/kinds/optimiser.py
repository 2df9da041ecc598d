"""Optimisers in torch's manner: a reference trajectory, and state that resumes to the last bit."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from assay.conformance.kinds import common
from assay.conformance.subject import Entry, Subject

__all__ = ["CHECKS", "exercise"]

BEFORE, AFTER = 3, 3


def exercise(subject: Subject, name: str) -> list[Any]:
    """Take a few steps on the declared problem; the parameters after each."""
    return _steps(*_fresh(subject.entry(name)), BEFORE)


def _fresh(entry: Entry) -> tuple[list[Any], Any, Any]:
    parameters, loss = entry["problem"]()
    return parameters, loss, entry["make"](parameters)


def _steps(parameters: list[Any], loss: Any, optimiser: Any, count: int) -> list[list[np.ndarray]]:
    path = []
    for _ in range(count):
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()
        path.append([parameter.detach().cpu().numpy().copy() for parameter in parameters])
    return path


def _is_optimiser(subject: Subject, name: str) -> None:
    from torch.optim import Optimizer

    assert issubclass(common.target(subject, name), Optimizer), f"{name} is no torch.optim.Optimizer"


def _trajectory(subject: Subject, name: str) -> None:
    """The parameters after each step are those of the independent source."""
    entry = subject.entry(name)
    expected = entry["trajectory"]()
    assert len(expected) >= 3, f"{name}: the reference has {len(expected)} steps, at least 3 are needed"
    tolerance = entry.get("tolerance", 1e-6)
    path = _steps(*_fresh(entry), len(expected))
    for number, (ours, reference) in enumerate(zip(path, expected, strict=True), 1):
        for one, two in zip(ours, reference, strict=True):
            far = float(np.abs(one - np.asarray(two)).max())
            assert np.allclose(one, two, rtol=tolerance, atol=tolerance), f"{name}: step {number} is off by {far:.2g}"


def _resumes(subject: Subject, name: str) -> None:
    """Interrupted, saved, loaded into a new optimiser and gone on with: the same parameters to the last bit."""
    import torch

    entry = subject.entry(name)
    parameters, loss, optimiser = _fresh(entry)
    whole = _steps(parameters, loss, optimiser, BEFORE + AFTER)[-1]
    parameters, loss, optimiser = _fresh(entry)
    _steps(parameters, loss, optimiser, BEFORE)
    kept = io.BytesIO()
    torch.save(optimiser.state_dict(), kept)
    kept.seek(0)
    resumed = entry["make"](parameters)
    resumed.load_state_dict(torch.load(kept, weights_only=True))
    parts = _steps(parameters, loss, resumed, AFTER)[-1]
    equal = all(np.array_equal(one, two) for one, two in zip(whole, parts, strict=True))
    assert equal, f"{name}: resumed from its state, it goes another way"


def _skips_no_gradient(subject: Subject, name: str) -> None:
    """A parameter without a gradient stays what it is."""
    parameters, _, optimiser = _fresh(subject.entry(name))
    before = [parameter.detach().clone() for parameter in parameters]
    optimiser.zero_grad(set_to_none=True)
    optimiser.step()
    equal = all(bool((one == two).all()) for one, two in zip(before, parameters, strict=True))
    assert equal, f"{name}: moves a parameter that has no gradient"


CHECKS = {
    "is an optimiser": _is_optimiser, "trajectory": _trajectory, "resumes": _resumes, "no gradient": _skips_no_gradient,
}
