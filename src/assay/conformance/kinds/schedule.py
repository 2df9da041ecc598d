"""Learning-rate schedules in torch's manner: the closed form's rates, and state that resumes to the last bit."""

from __future__ import annotations

import math
from typing import Any

from assay.conformance.kinds import common
from assay.conformance.subject import Entry, Subject

__all__ = ["CHECKS", "exercise"]


def exercise(subject: Subject, name: str) -> list[float]:
    """The first rates of the declared schedule."""
    entry = subject.entry(name)
    return _rates(*_fresh(entry), len(entry["rates"]))


def _fresh(entry: Entry) -> tuple[Any, Any]:
    import torch

    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=entry["rate"])
    return optimiser, entry["make"](optimiser)


def _rates(optimiser: Any, schedule: Any, count: int) -> list[float]:
    rates = []
    for _ in range(count):
        rates.append(float(optimiser.param_groups[0]["lr"]))
        optimiser.step()
        schedule.step()
    return rates


def _is_schedule(subject: Subject, name: str) -> None:
    from torch.optim.lr_scheduler import LRScheduler

    assert issubclass(common.target(subject, name), LRScheduler), f"{name} is no LRScheduler"


def _closed_form(subject: Subject, name: str) -> None:
    """The rates are those of the closed form, in each step."""
    entry = subject.entry(name)
    expected = list(entry["rates"])
    assert len(expected) >= 3, f"{name}: {len(expected)} rates are given, at least 3 are needed"
    rates = _rates(*_fresh(entry), len(expected))
    for step, (ours, rate) in enumerate(zip(rates, expected, strict=True)):
        close = math.isclose(ours, rate, rel_tol=entry.get("tolerance", 1e-9), abs_tol=1e-15)
        assert close, f"{name}: the rate of step {step} is {ours!r}, expected {rate!r}"


def _resumes(subject: Subject, name: str) -> None:
    """Half-way, saved and loaded into a new schedule: the remaining rates are the same to the last bit."""
    entry = subject.entry(name)
    count = len(entry["rates"])
    whole = _rates(*_fresh(entry), count)
    optimiser, schedule = _fresh(entry)
    first = _rates(optimiser, schedule, count // 2)
    resumed_optimiser, resumed = _fresh(entry)
    resumed_optimiser.load_state_dict(optimiser.state_dict())
    resumed.load_state_dict(schedule.state_dict())
    assert first + _rates(resumed_optimiser, resumed, count - count // 2) == whole, f"{name}: resumed, its rates differ"


CHECKS = {"is a schedule": _is_schedule, "closed form": _closed_form, "resumes": _resumes}
