"""Effects with their intervals, placed about the threshold: the report's forest chart.

Every line is turned so that the side on which it holds lies to the right, and moved so that its threshold
lies on one common rule. Lines in one unit (the parts of a claim that share a threshold) keep a common
scale with an axis; the claims of a method measure different things, so each line has its own scale.
Positions are shares of the width in per cent, drawn as SVG by the template.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from assay.report.wording import interval, number, sentence, side_of
from assay.study import Claim, Outcome, Verdict

__all__ = ["Forest", "Line", "forest"]

MIDDLE = 50.0
REACH = 44.0


@dataclass(frozen=True)
class Line:
    """One effect: `point`, `start`, `stop` in per cent; open ends run off the chart."""

    label: str
    outcome: Outcome
    words: str
    effect: str
    threshold: str
    point: float
    start: float
    stop: float
    open_start: bool
    open_stop: bool


@dataclass(frozen=True)
class Forest:
    """Lines about the common threshold, None for an entry whose place is not known.

    `ticks` are the axis, as position and text, where the scale is common.
    """

    lines: tuple[Line | None, ...]
    ticks: tuple[tuple[float, str], ...]

    @property
    def drawn(self) -> list[Line]:
        return [line for line in self.lines if line]


def forest(entries: Sequence[tuple[str, Claim, Verdict]]) -> Forest:
    """The chart of labelled verdicts, a line each where effect, threshold and side are known.

    Parameters
    ----------
    entries : sequence of (label, claim, verdict)
        A verdict may be a claim's own or a part's.
    """
    sides = [side_of(claim, verdict) for _, claim, verdict in entries]
    drawn = [(claim, verdict, side) for (_, claim, verdict), side in zip(entries, sides, strict=True) if side]
    common = len(drawn) > 1 and len({(claim.id, verdict.threshold, side) for claim, verdict, side in drawn}) == 1
    widest = max((_reach(verdict) for _, verdict, _ in drawn), default=0.0)
    lines = tuple(
        _line(label, claim, verdict, side, widest if common else _reach(verdict)) if side else None
        for (label, claim, verdict), side in zip(entries, sides, strict=True)
    )
    return Forest(lines, _ticks(drawn[0][1], drawn[0][2], widest) if common and widest else ())


def _reach(verdict: Verdict) -> float:
    """The largest distance from the threshold of anything drawn."""
    threshold = verdict.threshold or 0.0
    return max(abs(value - threshold) for value in (verdict.effect, verdict.low, verdict.high) if value is not None)


def _line(label: str, claim: Claim, verdict: Verdict, side: str, reach: float) -> Line:
    turn = 1.0 if side == "above" else -1.0

    def place(value: float | None, end: float) -> float:
        if value is None:
            return end
        distance = turn * (value - (verdict.threshold or 0.0))
        return round(MIDDLE + REACH * distance / reach, 2) if reach else MIDDLE

    low, high = (verdict.low, verdict.high) if side == "above" else (verdict.high, verdict.low)
    return Line(
        label, verdict.outcome, sentence(claim, verdict), interval(verdict), number(verdict.threshold),
        point=place(verdict.effect, MIDDLE), start=place(low, 0.0), stop=place(high, 100.0),
        open_start=low is None, open_stop=high is None,
    )


def _ticks(verdict: Verdict, side: str, reach: float) -> tuple[tuple[float, str], ...]:
    turn = 1.0 if side == "above" else -1.0
    threshold = verdict.threshold or 0.0
    return tuple(
        (MIDDLE + share * REACH, number(threshold + turn * share * reach, 2)) for share in (-1.0, 0.0, 1.0)
    )
