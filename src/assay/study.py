"""The contract of a study: the executable evidence for a method.

A study lists its cells (one measurement each), prepares the expensive things that several cells need
(steps), measures a cell, and turns the measured cells into verdicts on the claims of the card:

    cells(tier) -> needs(cell) -> prepare(step) -> measure(cell) -> verdicts(results) -> charts(results)

`cells` and `needs` are cheap. `prepare` and `measure` are pure: the same step or cell gives the same
result to the last bit, on one thread. This module imports nothing of assay and no heavy library.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Cell", "Claim", "IntervalLike", "Measurement", "Outcome", "Results", "Row", "Skip", "Step", "Study", "Tier",
    "Verdict", "all_of", "at_least",
]


class Tier(StrEnum):
    """How much is measured: smoke (seconds, for tests), quick (a minute on two cores), full."""

    smoke = "smoke"
    quick = "quick"
    full = "full"

    @property
    def rank(self) -> int:
        return list(Tier).index(self)


class Outcome(StrEnum):
    """What a verdict says."""

    holds = "holds"
    fails = "fails"
    unclear = "unclear"
    untested = "untested"


class Skip(Exception):
    """Raised by `measure` or `prepare` when a cell has no answer here: the reason is the message."""


def canonical(options: Mapping[str, Any]) -> str:
    """The options as JSON with sorted keys: what a cell's or step's identity is made of."""
    return json.dumps(dict(options), sort_keys=True, separators=(",", ":"))


class _Identity:
    """Equality and hash by `canonical` text, so that cells with a dictionary of options can be keys."""

    def to_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "options": dict(self.options), "data": list(self.data)}  # type: ignore[attr-defined]

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Any:
        return cls(**{**fields, "data": tuple(fields["data"])})

    def __hash__(self) -> int:
        return hash(canonical(self.to_dict()))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and canonical(self.to_dict()) == canonical(other.to_dict())  # type: ignore[attr-defined]


@dataclass(frozen=True, eq=False)
class Step(_Identity):
    """Something expensive that several cells need, made once and kept by content.

    `data` names the data sets it reads; `limit_s` and `memory` (MB) bound its making.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    data: tuple[str, ...] = ()
    limit_s: float = 300.0
    memory: int = 4096


@dataclass(frozen=True, eq=False)
class Cell(_Identity):
    """One measurement: an arm on a data set with a seed and JSON options.

    `data` names the data sets that are read; it defaults to `dataset` alone (and to none when the
    name holds no entry of a data.toml, as for generated inputs: then pass `data=()`).
    A cell with `timing=True` runs alone and is not promised to repeat bit for bit.
    """

    dataset: str
    arm: str
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    data: tuple[str, ...] | None = None
    limit_s: float = 60.0
    memory: int = 4096
    device: str = "cpu"
    threads: int = 1
    timing: bool = False

    def __post_init__(self) -> None:
        if self.data is None:
            object.__setattr__(self, "data", (self.dataset,))

    def label(self) -> str:
        options = "".join(f" {key}={value}" for key, value in self.options.items())
        return f"{self.dataset} · {self.arm} · seed {self.seed}{options}"


@dataclass
class Measurement:
    """What a cell gave.

    Attributes
    ----------
    metrics : dict of str to float
    units : DataFrame or None
        One row a resampling unit (test row, query, item, model) where a claim's interval needs them.
    files : dict of str to bytes
        Small results kept with the cell (a certificate, a table), by file name.
    """

    metrics: dict[str, float]
    units: pd.DataFrame | None = None
    files: dict[str, bytes] = field(default_factory=dict)


@dataclass
class Row:
    """A cell with its outcome: `status` is measured, skipped, failed or blocked; `reason` says why not."""

    cell: Cell
    status: str
    metrics: dict[str, float] = field(default_factory=dict)
    units: pd.DataFrame | None = None
    files: dict[str, bytes] = field(default_factory=dict)
    reason: str = ""
    seconds: float = 0.0
    peak_mb: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)


class Results(Sequence[Row]):
    """The rows of a study, with what is needed to look things up in them."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = list(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index):  # type: ignore[no-untyped-def, override]
        return self.rows[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def where(
        self, test: Callable[[Cell], bool] | None = None, *, dataset: str | None = None, arm: str | None = None,
        seed: int | None = None, status: str | None = None, **options: Any,
    ) -> Results:
        """Rows whose cell matches all that is given, options included."""

        def matches(row: Row) -> bool:
            cell = row.cell
            return (
                (dataset is None or cell.dataset == dataset)
                and (arm is None or cell.arm == arm)
                and (seed is None or cell.seed == seed)
                and (status is None or row.status == status)
                and all(cell.options.get(key) == value for key, value in options.items())
                and (test is None or test(cell))
            )

        return Results(row for row in self if matches(row))

    @property
    def measured(self) -> Results:
        return self.where(status="measured")

    @property
    def datasets(self) -> list[str]:
        """Names of the data sets with at least one measured cell, in order of appearance."""
        return list(dict.fromkeys(row.cell.dataset for row in self.measured))

    def metric(self, name: str, **which: Any) -> list[float]:
        """One value a measured row that has the metric."""
        return [row.metrics[name] for row in self.where(**which).measured if name in row.metrics]

    def missing(self, **which: Any) -> str:
        """Why matching cells gave nothing, one cell a clause; empty when there are some and all were measured."""
        found = self.where(**which)
        if not found:
            return "no cell with " + ", ".join(f"{name} {value}" for name, value in which.items())
        rows = [row for row in found if row.status != "measured"]
        return "; ".join(f"{row.cell.label()}: {row.status}, {row.reason}" for row in rows)

    def with_control(self, arm: str, control: str) -> Results:
        """The control's rows in the place of the arm's: what a claim must not be satisfied by."""
        kept = [row for row in self if row.cell.arm not in (arm, control)]
        stand_in = [replace(row, cell=replace(row.cell, arm=arm)) for row in self if row.cell.arm == control]
        return Results(kept + stand_in)


class IntervalLike(Protocol):
    """An estimate with its interval over `n` independent units (`assay.stats.Interval`)."""

    @property
    def estimate(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def n(self) -> int: ...


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper with its number, turned into a test; the fields stand in `card.toml`.

    Attributes
    ----------
    id, statement : str
    paper : str
        What the paper says, with its number.
    measured : str
        How we measure it.
    unit : str
        What is resampled: what is independent.
    threshold : float
        Side and threshold decide: `side = "below"` holds when the whole interval lies below it.
    side : {"below", "above"}
    arm, control : str
        The arm that the claim judges, and the sabotaged arm that must not satisfy it
        (`none: reason` where no sabotage makes sense).
    home : str
        Which home-set cells decide it, or `untested at home: ...` and what would decide it.
    exact : bool
        Holds with no counter-example among at least `min_cases` cases.
    limits : dict
        Further numbers of the claim (guards, margins), by name.
    after_pilot : bool
        The threshold was set after a pilot measurement.
    """

    id: str
    statement: str
    paper: str
    measured: str
    unit: str
    home: str
    control: str
    arm: str
    threshold: float = 0.0
    side: str = "below"
    exact: bool = False
    min_cases: int = 0
    limits: Mapping[str, float] = field(default_factory=dict)
    after_pilot: bool = False

    def judge(self, interval: IntervalLike, reason: str = "", *, threshold: float | None = None) -> Verdict:
        """The verdict that an interval gives: holds only if all of it clears the threshold."""
        limit = self.threshold if threshold is None else threshold
        outcome = Outcome.unclear
        if interval.n < 3:
            reason = "; ".join(filter(None, (reason, f"{interval.n} independent units, at least 3 are needed")))
        elif math.isinf(interval.low) and math.isinf(interval.high):
            reason = "; ".join(filter(None, (reason, "no finite interval: the units show no usable spread")))
        else:
            outcome = _side(interval.low, interval.high, limit, self.side)
        return Verdict(
            self.id, outcome, reason, effect=interval.estimate, low=interval.low, high=interval.high,
            threshold=limit, n=interval.n,
        )

    def count(self, against: int, cases: int, reason: str = "") -> Verdict:
        """The verdict of an exact claim: holds with none against, given enough cases."""
        if against:
            outcome = Outcome.fails
        elif cases < max(1, self.min_cases):
            outcome = Outcome.untested if cases == 0 else Outcome.unclear
            reason = "; ".join(filter(None, (reason, f"{cases} cases, {max(1, self.min_cases)} are needed")))
        else:
            outcome = Outcome.holds
        return Verdict(self.id, outcome, reason, effect=float(against), threshold=0.0, n=cases)

    def untested(self, reason: str) -> Verdict:
        return Verdict(self.id, Outcome.untested, reason, threshold=self.threshold)


def _side(low: float, high: float, threshold: float, side: str) -> Outcome:
    if not low <= high:
        return Outcome.unclear
    if side == "above":
        low, high, threshold = -high, -low, -threshold
    if high < threshold:
        return Outcome.holds
    return Outcome.fails if low > threshold else Outcome.unclear


@dataclass(frozen=True)
class Verdict:
    """What the measured cells say about a claim; `reason` is shown beside it, in words."""

    claim: str
    outcome: Outcome
    reason: str = ""
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    threshold: float | None = None
    n: int | None = None
    parts: tuple[Verdict, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Verdict:
        parts = tuple(cls.from_dict(part) for part in fields.get("parts", ()))
        return cls(**{**fields, "outcome": Outcome(fields["outcome"]), "parts": parts})


def all_of(claim: Claim, parts: Sequence[Verdict], reason: str = "") -> Verdict:
    """Holds if every part holds, fails if one fails, untested if one is untested, else unclear."""
    return at_least(claim, parts, len(parts), reason)


def at_least(claim: Claim, parts: Sequence[Verdict], k: int, reason: str = "") -> Verdict:
    """Holds if at least `k` parts hold; fails if so many fail that `k` can't hold any more.

    Untested parts, and those that are not there, count neither way: where they leave it open, the
    verdict is untested.
    """
    if parts and k < 1:
        raise ValueError(f"at least one part must hold, got k = {k}")
    tally = {outcome: sum(part.outcome is outcome for part in parts) for outcome in Outcome}
    if parts and tally[Outcome.holds] >= k:
        outcome = Outcome.holds
    elif len(parts) < max(k, 1):
        outcome = Outcome.untested
    elif len(parts) - tally[Outcome.fails] < k:
        outcome = Outcome.fails
    elif len(parts) - tally[Outcome.fails] - tally[Outcome.untested] < k:
        outcome = Outcome.untested
    else:
        outcome = Outcome.unclear
    text = reason or "; ".join(filter(None, (part.reason for part in parts)))
    return Verdict(claim.id, outcome, text, threshold=claim.threshold, n=len(parts), parts=tuple(parts))


class Study(ABC):
    """The evidence for a method. The catalogue builds it with the claims of the method's card.

    `accepts_file` says that `assay check --data FILE` can measure some claims on a user's own file:
    then `data_file` is set and `cells` lists cells with `dataset="file"` and `data=()` alone.
    """

    accepts_file: bool = False

    def __init__(self, claims: Mapping[str, Claim], data_file: Path | None = None) -> None:
        self.claims = dict(claims)
        self.data_file = data_file

    @abstractmethod
    def cells(self, tier: Tier) -> Iterable[Cell]:
        """The cells of a tier; a higher tier contains the lower one's cells where they are still wanted."""

    def needs(self, what: Cell | Step) -> tuple[Step, ...]:
        """The steps that a cell or a step needs."""
        return ()

    def prepare(self, step: Step, have: Mapping[Step, Path], out: Path) -> None:
        """Make a step: write files into the folder `out`; `have` holds the folders of the steps it needs."""
        raise LookupError(f"{type(self).__name__} has no step {step.name}")

    @abstractmethod
    def measure(self, cell: Cell, have: Mapping[Step, Path]) -> Measurement:
        """Measure a cell; raise `Skip` where it has no answer here."""

    @abstractmethod
    def verdicts(self, results: Results) -> list[Verdict]:
        """One verdict a claim, in the card's order; called again with a control in the method's place."""

    def charts(self, results: Results) -> list[dict[str, Any]]:
        """Vega-Lite specifications with their data inline, each with a `title` and a `description`."""
        return []
