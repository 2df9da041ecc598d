"""The recorded verdicts are valid, small, and in step with the card."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from assay.conformance.check import Check, Excused
from assay.conformance.subject import Subject
from assay.study import Claim

__all__ = ["RECORD_BYTES", "checks"]

RECORD_BYTES = 280_000
ABSOLUTE_PATH = re.compile(
    r"(?<![\w:/.])/(?:home|root|tmp|work|usr|var|opt|mnt|srv|etc|Users|Volumes|private)/|(?<!\w)[A-Za-z]:\\\\"
)


def checks(subject: Subject) -> Iterator[Check]:
    """Checks of `record.json`, each excused while nothing was recorded."""
    for name, check in {
        "fields": _fields, "claims": _claims, "verdicts": _verdicts, "controls": _controls, "size": _size,
        "paths": _paths, "speed": _speed,
    }.items():
        yield Check(f"record: {name}", partial(check, subject))


def _record(subject: Subject) -> dict[str, Any]:
    record = subject.method.record
    if record is None:
        raise Excused("nothing was recorded yet")
    return record


def _fields(subject: Subject) -> None:
    from assay.conformance.schemas import RecordModel

    RecordModel.model_validate(_record(subject))


def _claims(subject: Subject) -> None:
    """One verdict a claim of the card, in its order, from the study's present version."""
    record = _record(subject)
    recorded = [verdict["claim"] for verdict in record["verdicts"]]
    assert recorded == list(subject.method.claims), f"the record has {recorded}, the card {list(subject.method.claims)}"
    assert record["slug"] == subject.method.slug, f"the record is of {record['slug']}"
    recorded, now = record["study_version"], subject.method.study_version
    assert recorded == now, f"the record is of study version {recorded}, the card of {now}"


def _verdicts(subject: Subject) -> None:
    """A verdict with an interval of its own reads what the interval and the card's threshold say."""
    for verdict in _record(subject)["verdicts"]:
        claim = subject.method.claims.get(verdict["claim"])
        if claim is None or verdict["parts"] or verdict["outcome"] == "untested":
            continue
        if claim.exact:
            assert verdict["outcome"] != "holds" or _counted(claim, verdict), f"{claim.id}: holds without its count"
        elif verdict["threshold"] is not None and verdict["effect"] is not None:
            used, allowed = verdict["threshold"], {claim.threshold, *claim.limits.values()}
            assert used in allowed, f"{claim.id}: judged at {used}, the card says {allowed}"
            said, reading = verdict["outcome"], _reading(claim, verdict)
            assert said == reading, f"{claim.id}: reads {said}, its interval says {reading}"


def _counted(claim: Claim, verdict: dict[str, Any]) -> bool:
    return verdict["effect"] == 0 and (verdict["n"] or 0) >= claim.min_cases


def _reading(claim: Claim, verdict: dict[str, Any]) -> str:
    low = float("-inf") if verdict["low"] is None else verdict["low"]
    high = float("inf") if verdict["high"] is None else verdict["high"]
    if claim.side == "above":
        low, high, limit = -high, -low, -verdict["threshold"]
    else:
        limit = verdict["threshold"]
    if verdict["n"] is not None and verdict["n"] < 3:
        return "unclear"
    return "holds" if high < limit else "fails" if low > limit else "unclear"


def _controls(subject: Subject) -> None:
    """Each claim's control was judged in the method's place, and did not satisfy it."""
    judged = {(entry["claim"], entry["control"]): entry["outcome"] for entry in _record(subject)["controls"]}
    for claim in subject.method.claims.values():
        if not claim.control.startswith("none:"):
            outcome = judged.get((claim.id, claim.control))
            assert outcome is not None, f"{claim.id}: its control {claim.control} was not judged"
            assert outcome != "holds", f"{claim.id}: its control {claim.control} holds, so the claim measures nothing"


def _size(subject: Subject) -> None:
    _record(subject)
    size = (subject.method.folder / "record.json").stat().st_size
    assert size <= RECORD_BYTES, f"record.json has {size} bytes, at most {RECORD_BYTES} are allowed"


def _paths(subject: Subject) -> None:
    _record(subject)
    found = ABSOLUTE_PATH.search((subject.method.folder / "record.json").read_text(encoding="utf-8"))
    assert found is None, f"record.json holds an absolute path ({found.group()}...)" if found else ""


def _speed(subject: Subject) -> None:
    record = _record(subject)
    if subject.method.speed_target is None:
        raise Excused("the card states no speed target")
    assert record["speed"], "the card states a speed target and the record holds no measured ratio"
