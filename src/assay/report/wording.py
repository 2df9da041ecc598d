"""Numbers and verdicts as a reader meets them: plain words, true minus signs, no more digits than it takes.

A sentence about an interval is only written where the interval alone gives the outcome; a verdict that
further guards decided is described by its numbers, and the study's own reason stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from assay.study import Claim, Outcome, Verdict

__all__ = ["LETTERS", "MEANINGS", "date", "duration", "interval", "number", "numbers", "sentence", "side_of"]

LETTERS = {Outcome.holds: "H", Outcome.fails: "F", Outcome.unclear: "U", Outcome.untested: "–"}

MEANINGS = {
    Outcome.holds: "the whole 95 % interval lies past the threshold",
    Outcome.fails: "the whole interval lies on the wrong side",
    Outcome.unclear: "the interval takes in the threshold",
    Outcome.untested: "what would decide it was not measured here",
}


def number(value: float | None, digits: int = 3) -> str:
    """A number to so many significant digits; a dash for none.

    >>> number(-0.01234), number(12345.6), number(2.5e-9), number(None)
    ('−0.0123', '12,346', '2.5 × 10⁻⁹', '—')
    """
    if value is None or not math.isfinite(value):
        return "—"
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    if -5 < size < 7:
        text = f"{value:,.{max(0, digits - 1 - size)}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    else:
        text = f"{float(f'{value:.{digits - 1}e}') / 10.0**size:.{digits}g} × 10{_superscript(size)}"
    return text.replace("-", "−")


def numbers(values: Sequence[float | None]) -> list[str]:
    """Several numbers to so many digits that different ones read differently.

    >>> numbers([0.99951, 1.0])
    ['0.9995', '1']
    """
    known = {value for value in values if value is not None}
    for digits in range(3, 10):
        if len({number(value, digits) for value in known}) == len(known):
            break
    return [number(value, digits) for value in values]


def interval(verdict: Verdict) -> str:
    """The effect with its interval: `−0.012 (−0.021 to −0.004)`; a dash where there is no effect."""
    effect, low, high, _ = _texts(verdict)
    if verdict.effect is None:
        return "—"
    if verdict.low is None and verdict.high is None:
        return effect
    return f"{effect} ({low} to {high})"


def side_of(claim: Claim, verdict: Verdict) -> str | None:
    """The side of the threshold on which the verdict holds, or None where its interval does not tell.

    A part of a claim may be a guard that holds on the other side than the claim itself, so the side is
    the one that explains the outcome.
    """
    if verdict.effect is None or verdict.threshold is None or claim.exact:
        return None
    other = {"above": "below", "below": "above"}[claim.side]
    return next((side for side in (claim.side, other) if _outcome(verdict, side) is verdict.outcome), None)


def sentence(claim: Claim, verdict: Verdict) -> str:
    """The verdict in words, from its numbers alone."""
    if verdict.outcome is Outcome.untested:
        return "Not measured here."
    if claim.exact and verdict.effect is not None and not verdict.parts:
        return _count(int(verdict.effect), verdict.n or 0)
    if verdict.parts:
        return _tally(verdict.parts)
    if verdict.effect is None:
        return ""
    side = side_of(claim, verdict)
    effect, low, high, threshold = _texts(verdict)
    if side is None:
        return f"The effect is {interval(verdict)}; the threshold is {threshold}."
    if verdict.low is None and verdict.high is None:
        units = f"{verdict.n} independent unit{'' if verdict.n == 1 else 's'}"
        why = "too few for an interval" if (verdict.n or 0) < 3 else "without the spread that an interval needs"
        return f"The effect is {effect}, from {units}: {why}."
    where = {
        Outcome.holds: f"lies {side} the threshold {threshold}",
        Outcome.fails: f"lies on the wrong side: it should be {side} the threshold {threshold}",
        Outcome.unclear: f"takes in the threshold {threshold}, and should lie {side} it",
    }[verdict.outcome]
    whole = "The interval" if verdict.outcome is Outcome.unclear else "The whole interval"
    return f"{whole}, {low} to {high}, {where}."


def date(text: str) -> str:
    """`2026-12-01T09:12:00+00:00` as `1 December 2026`; anything else as it stands."""
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return str(text)
    months = (
        "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
        "December",
    )
    return f"{moment.day} {months[moment.month - 1]} {moment.year}"


def duration(seconds: float | None) -> str:
    """Seconds as a reader says them.

    >>> duration(0.0042), duration(55.2), duration(240), duration(7300)
    ('4.2 ms', '55 s', '4 min', '2 h 2 min')
    """
    if seconds is None or not math.isfinite(seconds):
        return "—"
    if seconds < 1e-3:
        return f"{number(seconds * 1e6, 2)} µs"
    if seconds < 1:
        return f"{number(seconds * 1e3, 2)} ms"
    if seconds < 10:
        return f"{number(seconds, 2)} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 10 and rest:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(round(whole / 60), 60)
    return " ".join(filter(None, (f"{hours} h" if hours else "", f"{minutes} min" if minutes else "")))


def _outcome(verdict: Verdict, side: str) -> Outcome:
    """What the interval alone says; an end that is missing is unbounded."""
    low = -math.inf if verdict.low is None else verdict.low
    high = math.inf if verdict.high is None else verdict.high
    threshold = verdict.threshold or 0.0
    past = high < threshold if side == "below" else low > threshold
    wrong = low > threshold if side == "below" else high < threshold
    return Outcome.holds if past else Outcome.fails if wrong else Outcome.unclear


def _texts(verdict: Verdict) -> tuple[str, str, str, str]:
    effect, low, high, threshold = numbers([verdict.effect, verdict.low, verdict.high, verdict.threshold])
    low = "−∞" if verdict.low is None else low
    high = "∞" if verdict.high is None else high
    return effect, low, high, threshold


def _count(against: int, cases: int) -> str:
    if against:
        return f"{against:,} of {cases:,} cases contradict it."
    return f"No case among {cases:,} contradicts it."


def _tally(parts: Sequence[Verdict]) -> str:
    words = {Outcome.holds: "hold", Outcome.fails: "fail", Outcome.unclear: "unclear", Outcome.untested: "untested"}
    counts = [(sum(part.outcome is outcome for part in parts), words[outcome]) for outcome in Outcome]
    singular = {"hold": "holds", "fail": "fails"}
    said = [f"{n} {singular.get(word, word) if n == 1 else word}" for n, word in counts if n]
    return f"Of {len(parts)} part{'' if len(parts) == 1 else 's'}: {', '.join(said)}."


def _superscript(power: int) -> str:
    return str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
