"""Environments: gymnasium's own checker, and one seed one episode."""

from __future__ import annotations

import warnings
from typing import Any

from assay.conformance.alike import same
from assay.conformance.subject import Subject

__all__ = ["CHECKS", "exercise"]

STEPS = 20


def exercise(subject: Subject, name: str) -> list[Any]:
    """Play a few random steps."""
    return _episode(subject, name, seed=0)


def _episode(subject: Subject, name: str, seed: int) -> list[Any]:
    environment = subject.entry(name)["make"]()
    environment.action_space.seed(seed)
    seen: list[Any] = [environment.reset(seed=seed)[0]]
    for _ in range(STEPS):
        observation, reward, ended, cut, _ = environment.step(environment.action_space.sample())
        seen.append((observation, float(reward), bool(ended), bool(cut)))
        if ended or cut:
            break
    environment.close()
    return seen


def _gymnasium(subject: Subject, name: str) -> None:
    """Gymnasium's checker passes, and warns of nothing."""
    from gymnasium.utils.env_checker import check_env

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(subject.entry(name)["make"](), skip_render_check=True)
    texts = [str(each.message) for each in caught if "gymnasium" in each.filename]
    assert not texts, f"{name}: {texts[0].splitlines()[0]}"


def _seeded(subject: Subject, name: str) -> None:
    assert same(_episode(subject, name, 0), _episode(subject, name, 0)), f"{name}: one seed gives two episodes"


CHECKS = {"gymnasium": _gymnasium, "seeded": _seeded}
