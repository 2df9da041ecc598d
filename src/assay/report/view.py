"""A method's card and record as the templates read them, and what the first page says about all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from assay import catalogue, stats
from assay.report import wording
from assay.report.cells import Table, table
from assay.report.charts import Chart, charts
from assay.report.forest import Forest, forest
from assay.study import Claim, Outcome, Verdict

__all__ = ["Judged", "MethodView", "Overview", "Part", "view_of"]


@dataclass(frozen=True)
class Part:
    """A part of a verdict, or a part of that at `depth` one."""

    verdict: Verdict
    depth: int


@dataclass(frozen=True)
class Judged:
    """A claim with its recorded verdict and what its negative control came to."""

    claim: Claim
    verdict: Verdict
    control: str | None
    further: Verdict | None = None
    further_data: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        return self.verdict.outcome

    @property
    def letter(self) -> str:
        return wording.LETTERS[self.outcome]

    @property
    def sentence(self) -> str:
        return wording.sentence(self.claim, self.verdict)

    @property
    def effect(self) -> str:
        return "—" if self.claim.exact else wording.interval(self.verdict)

    @property
    def threshold(self) -> str:
        """What the claim asks for, as the card states it."""
        if self.claim.exact:
            return f"no counter-example among at least {max(1, self.claim.min_cases):,} cases"
        limit = self.claim.threshold if self.verdict.threshold is None else self.verdict.threshold
        return f"{self.claim.side} {wording.number(limit)}"

    @property
    def reason(self) -> str:
        """The study's own words; empty where they only repeat those of the parts, which are shown beside them."""
        repeated = "; ".join(part.reason for part in self.verdict.parts if part.reason)
        return "" if self.verdict.parts and self.verdict.reason == repeated else self.verdict.reason

    @property
    def by_interval(self) -> bool:
        return not self.claim.exact and self.outcome is not Outcome.untested

    @cached_property
    def parts(self) -> list[Part]:
        """The parts of the verdict that have words of their own, each after the part that it belongs to."""
        return list(_parts(self.verdict.parts, 0))

    @cached_property
    def forest(self) -> Forest:
        """A line for each of `parts`."""
        return forest([(part.verdict.reason, self.claim, part.verdict) for part in self.parts])

    @property
    def differs(self) -> bool:
        """Whether the public sets change what the home sets say."""
        return self.further is not None and self.further.outcome is not self.outcome

    @property
    def control_name(self) -> str:
        return "" if self.claim.control.startswith("none") else self.claim.control

    @property
    def control_words(self) -> str:
        """What became of the claim with the sabotaged arm in the method's place."""
        if not self.control_name:
            return f"No negative control: {self.claim.control.partition(':')[2].strip() or 'no reason is given'}."
        if self.control in (None, Outcome.untested):
            return "was not measured in the method's place."
        if self.control == Outcome.holds:
            return "satisfies it as well: as measured here, the claim tells nothing."
        return f"in the method's place reads “{self.control}”: it does not satisfy the claim, as it must not."


@dataclass(frozen=True)
class MethodView:
    """Everything that a method's page shows."""

    slug: str
    method: catalogue.Method
    record: dict[str, Any]
    stale: bool

    @property
    def recorded(self) -> bool:
        return bool(self.record)

    @property
    def stale_reason(self) -> str:
        if self.superseded:
            return "These verdicts come from an earlier version of the study and wait to be measured again."
        return "The code has changed since these verdicts were measured; measure them again before relying on them."

    @property
    def superseded(self) -> bool:
        return self.recorded and self.record.get("study_version", 0) < self.method.study_version

    @property
    def out_of_date(self) -> bool:
        return self.recorded and (self.stale or self.superseded)

    @cached_property
    def judged(self) -> list[Judged]:
        """The card's claims in order; a claim that the record lacks is untested."""
        verdicts = {fields["claim"]: Verdict.from_dict(fields) for fields in self.record.get("verdicts", ())}
        controls = {entry["claim"]: entry["outcome"] for entry in self.record.get("controls", ())}
        missing = "the record holds no verdict on this claim" if self.recorded else "nothing was recorded yet"
        further = self.record.get("further") or {"data": (), "verdicts": ()}
        beyond = {fields["claim"]: Verdict.from_dict(fields) for fields in further["verdicts"]}
        return [
            Judged(
                claim, verdicts.get(name) or claim.untested(missing), controls.get(name), beyond.get(name),
                tuple(further["data"]),
            )
            for name, claim in self.method.claims.items()
        ]

    @property
    def tally(self) -> dict[Outcome, int]:
        return _tally(self.judged)

    @property
    def forest(self) -> Forest:
        return forest([(judged.claim.id, judged.claim, judged.verdict) for judged in self.judged])

    @cached_property
    def charts(self) -> list[Chart]:
        return charts(self.record.get("charts") or ())

    @cached_property
    def cells(self) -> Table:
        return table(self.record.get("rows") or ())

    @property
    def statuses(self) -> dict[str, int]:
        return dict(Counter(row.get("status", "") for row in self.record.get("rows") or ()))

    @property
    def tier(self) -> str:
        return self.record.get("tier") or "not recorded"

    @property
    def command(self) -> str:
        return self.record.get("command") or f"assay check {self.slug}"

    @property
    def measured(self) -> str:
        return wording.date(self.record["measured"]) if self.record.get("measured") else "not measured yet"

    @property
    def machine(self) -> str:
        return _machine(self.record)

    @property
    def versions(self) -> str:
        return _versions(self.record)

    @property
    def speed(self) -> list[dict[str, Any]]:
        """The benchmark's cases, each with every field that the page shows."""
        blank = dict.fromkeys(("name", "ours_s", "peer_s", "ratio", "target", "peer", "note"))
        return [{**blank, **case} for case in (self.record.get("speed") or {}).get("cases", ())]

    @property
    def speed_measured(self) -> str:
        return wording.date((self.record.get("speed") or {}).get("measured") or "on a day not recorded")

    @property
    def data(self) -> list[dict[str, Any]]:
        """The record's data sets, each with every field that the page shows; the absent ones last."""
        blank = dict.fromkeys(("name", "title", "kind", "licence", "status", "reason"), "")
        entries = [{**blank, **entry} for entry in self.record.get("data") or ()]
        return sorted(entries, key=lambda entry: entry["status"] != "used")

    @property
    def shell(self) -> str:
        """The commands that a newcomer would try, in order."""
        extras = f'pip install "assay[{",".join(self.method.extras)}]"\n' if self.method.extras else ""
        return (
            f"{extras}assay run {self.slug} --example    # on an example of real data\n"
            f"assay run {self.slug} --help       # on your own\n"
            f"assay check {self.slug}            # measure the claims here"
        )

    @property
    def search(self) -> str:
        """What the first page's search looks through."""
        method = self.method
        claims = [f"{judged.claim.id} {judged.claim.statement}" for judged in self.judged]
        words = [self.slug, method.title, method.summary, method.paper.title, *method.tasks, *method.public, *claims]
        return " ".join(words).lower()


@dataclass(frozen=True)
class Overview:
    """What the first page says about all methods together."""

    views: Sequence[MethodView]

    @property
    def claims(self) -> int:
        return sum(len(view.judged) for view in self.views)

    @property
    def tally(self) -> dict[Outcome, int]:
        return _tally([judged for view in self.views for judged in view.judged])

    @property
    def by_interval(self) -> int:
        return sum(judged.by_interval for view in self.views for judged in view.judged)

    @property
    def chance(self) -> str:
        return wording.number(stats.expected_false_holds(self.by_interval), 2)

    @property
    def seconds(self) -> float:
        return sum(view.record.get("seconds") or 0.0 for view in self.views)

    @property
    def environments(self) -> list[tuple[str, str, str, list[MethodView]]]:
        """Machine, versions and date, each with the methods measured so."""
        groups: dict[tuple[str, str, str], list[MethodView]] = {}
        for view in self.views:
            if view.recorded:
                groups.setdefault((view.machine, view.versions, view.measured), []).append(view)
        return [(*key, members) for key, members in groups.items()]

    @property
    def machines(self) -> list[str]:
        return list(dict.fromkeys(view.machine for view in self.views if view.recorded))

    @property
    def dates(self) -> list[str]:
        """The first and the last day of measurement, or the one day."""
        moments = sorted(view.record["measured"] for view in self.views if view.record.get("measured"))
        return list(dict.fromkeys(wording.date(moment) for moment in (moments[:1] + moments[-1:])))

    def choices(self, name: str) -> list[str]:
        """The values that a filter of the first page offers."""
        found = {
            "area": [view.method.area for view in self.views],
            "task": sorted({task for view in self.views for task in view.method.tasks}),
            "tier": [view.tier for view in self.views],
        }[name]
        return list(dict.fromkeys(found))


def view_of(slug: str, record: Mapping[str, Any] | None, stale: Collection[str]) -> MethodView:
    """The page of one method."""
    return MethodView(slug, catalogue.get(slug), dict(record or {}), slug in stale)


def _parts(verdicts: Sequence[Verdict], depth: int) -> Iterator[Part]:
    for verdict in verdicts:
        if verdict.reason:
            yield Part(verdict, depth)
        yield from _parts(verdict.parts, depth + 1 if verdict.reason else depth)


def _tally(judged: Sequence[Judged]) -> dict[Outcome, int]:
    counts = Counter(one.outcome for one in judged)
    return {outcome: counts[outcome] for outcome in Outcome}


def _machine(record: Mapping[str, Any]) -> str:
    machine = record.get("machine") or {}
    cores, memory = machine.get("cores"), machine.get("memory_gb")
    facts = [
        machine.get("cpu"), f"{cores} core{'' if cores == 1 else 's'}" if cores else "",
        f"{wording.number(memory)} GB" if memory else "", machine.get("gpu"), machine.get("system"),
        f"Python {machine['python']}" if machine.get("python") else "",
    ]
    return ", ".join(str(fact) for fact in facts if fact)


def _versions(record: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in (record.get("versions") or {}).items())
