"""Policies: actions lie in their space, repeat themselves, and leave the observation alone."""

from __future__ import annotations

import copy
from typing import Any

from assay.conformance.alike import same
from assay.conformance.subject import Subject

__all__ = ["CHECKS", "exercise"]


def exercise(subject: Subject, name: str) -> list[Any]:
    """Act on the declared observations."""
    entry = subject.entry(name)
    policy = entry["make"]()
    return [entry["act"](policy, observation) for observation in entry["observations"]()]


def _in_space(subject: Subject, name: str) -> None:
    space = subject.entry(name)["space"]()
    actions = exercise(subject, name)
    assert actions, f"{name}: no observation was given"
    outside = [action for action in actions if not space.contains(action)]
    assert not outside, f"{name}: the action {outside[0] if outside else ''} does not lie in {space}"


def _depends(subject: Subject, name: str) -> None:
    actions = exercise(subject, name)
    differs = any(not same(action, actions[0]) for action in actions[1:])
    assert differs, f"{name}: every observation gets the same action"


def _repeats(subject: Subject, name: str) -> None:
    assert same(exercise(subject, name), exercise(subject, name)), f"{name}: two uses differ"


def _inputs_unchanged(subject: Subject, name: str) -> None:
    entry = subject.entry(name)
    policy, observations = entry["make"](), entry["observations"]()
    before = copy.deepcopy(observations)
    for observation in observations:
        entry["act"](policy, observation)
    assert same(observations, before), f"{name}: an observation was changed"


CHECKS = {"in its space": _in_space, "depends": _depends, "pure": _repeats, "inputs unchanged": _inputs_unchanged}
