"""From measured cells to verdicts on the card's claims.

Every claim that SMART has a lower calibration error than something else carries two guards on the same rows: its Brier
score may not be much higher, and its confidences may not rank right and wrong answers much worse. A single confidence
for all rows has almost no calibration error; the guards are what it fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from assay import stats
from assay.study import Claim, Results, Row, Verdict, all_of, at_least

from .data import SOURCES
from .intervals import SplitPair, paired_differences
from .measuring import OTHER_HARDNESS

LARGE = 3000
MIDDLE = 1000
FEW = (50, 100, 200, 500)
# Sets whose own largest validation size stands for the large one: the smoke slice and a user's file.
SMALL_SETS = ("smart-smoke", "file")
LEAST_SETS = 3

SCALARS = {"smart-max-logit": "the largest logit", "smart-entropy": "the entropy", "smart-energy": "the energy"}

Place = tuple[str, int]
"""A data set and a validation size."""


class Judge:
    """Verdicts on S1 to S6; intervals are kept, since the verdicts are asked for once for every control as well."""

    def __init__(self, claims: Mapping[str, Claim]) -> None:
        self._claims = claims
        self._kept: dict[Any, tuple[dict[str, stats.Interval], Any]] = {}

    def __call__(self, results: Results) -> list[Verdict]:
        rules: dict[str, Callable[[Claim, Results], Verdict]] = {
            "S1": self._lower_error, "S2": self._few_rows, "S3": self._objective, "S4": self._hardness,
            "S5": self._shift, "S6": self._prediction_time,
        }
        return [rules[claim.id](claim, results) for claim in self._claims.values()]

    def differences(
        self, results: Results, places: Sequence[Place], arm: str, other: str
    ) -> dict[str, stats.Interval] | None:
        """Intervals of `arm` minus `other`, averaged over the places, by metric; None where cells are missing."""
        data_sets = [pairs for place in places if (pairs := _pairs(results, place, arm, other))]
        if not data_sets or len(data_sets) < len(places):
            return None
        key = tuple(id(units) for pairs in data_sets for pair in pairs for units in pair)
        if key not in self._kept:
            # The frames are kept with the intervals, so that their identities are not used again.
            self._kept[key] = paired_differences(data_sets), data_sets
        return self._kept[key][0]

    def _lower_error(self, claim: Claim, results: Results) -> Verdict:
        places = places_at(results, claim.arm)
        if lacking := _too_few(claim, results, places, LARGE):
            return lacking
        parts = [self._set_verdict(claim, results, [place], "ts", place[0]) for place in places]
        wanted = int(np.ceil(claim.limits["share_of_sets"] * len(parts) - 1e-9))
        verdict = at_least(claim, parts, wanted, _joined(parts))
        return self._with_effect(verdict, results, places, claim.arm, "ts")

    def _few_rows(self, claim: Claim, results: Results) -> Verdict:
        parts = []
        for n_val in FEW:
            places = [(name, n_val) for name in _sets(results, claim.arm, n_val) if _is_plain(name)]
            lacking = _too_few(claim, results, places, n_val)
            parts.append(lacking or self._set_verdict(claim, results, places, "ts", f"n_val = {n_val}"))
        return all_of(claim, parts, _joined(parts))

    def _objective(self, claim: Claim, results: Results) -> Verdict:
        places = places_at(results, claim.arm)
        if lacking := _too_few(claim, results, places, LARGE):
            return lacking
        pooled = self._set_verdict(claim, results, places, "smart-nll", "against the net fitted by likelihood")
        lower = _lower_splits(results, places, claim.arm, "smart-nll")
        if not lower:
            return pooled
        share, least = stats.proportion(sum(lower), len(lower)), claim.limits["share_of_splits"]
        words = f"lower in {sum(lower)} of {len(lower)} splits [{share.low:.0%}, {share.high:.0%}], {least:.0%} needed"
        counted = replace(claim, side="above").judge(share, words, threshold=least)
        verdict = all_of(claim, [pooled, counted], _joined([pooled, counted]))
        return self._with_effect(verdict, results, places, claim.arm, "smart-nll")

    def _hardness(self, claim: Claim, results: Results) -> Verdict:
        sets = [row.cell.dataset for row in results if row.cell.arm in OTHER_HARDNESS and _is_plain(row.cell.dataset)]
        places = [(name, n) for name, n in places_at(results, claim.arm, MIDDLE) if name in sets]
        if lacking := _too_few(claim, results, places, MIDDLE):
            return lacking
        parts = [
            self._set_verdict(claim, results, places, other, f"against {SCALARS[other]}") for other in OTHER_HARDNESS
        ]
        return all_of(claim, parts, _joined(parts))

    def _shift(self, claim: Claim, results: Results) -> Verdict:
        places = [(name, source.largest) for name, source in SOURCES.items()
                  if results.where(dataset=name, arm=claim.arm).measured]
        kinds = {
            "shifted rows": [place for place in places if SOURCES[place[0]].change],
            "long-tailed classes": [place for place in places if SOURCES[place[0]].variant in ("long-tail", "debian")],
        }
        parts = [
            self._set_verdict(claim, results, chosen, "ts", f"{kind} ({', '.join(name for name, _ in chosen)})")
            if chosen else claim.untested(f"{kind}: no data set{_tail(results.missing(arm=claim.arm))}")
            for kind, chosen in kinds.items()
        ]
        return all_of(claim, parts, _joined(parts))

    def _prediction_time(self, claim: Claim, results: Results) -> Verdict:
        rows = [row for row in results.where(arm=claim.arm).measured if row.cell.timing]
        if not rows or rows[0].units is None:
            missing = results.where(lambda cell: cell.timing).missing(arm=claim.arm)
            return claim.untested(f"no measurement of the time{_tail(missing)}")
        row = rows[0]
        interval = stats.mean_interval(rows[0].units["ratio"].to_numpy(dtype=float))
        text = f"{1e3 * row.metrics['smart_s']:.2f} ms against {1e3 * row.metrics['ts_s']:.2f} ms for 10,000 rows"
        return claim.judge(interval, text)

    def _set_verdict(self, claim: Claim, results: Results, places: list[Place], other: str, label: str) -> Verdict:
        """Calibration error against `other`, with the guards on the Brier score and the ranking."""
        found = self.differences(results, places, claim.arm, other)
        if found is None:
            missing = "; ".join(filter(None, (
                results.missing(dataset=name, arm=arm, n_val=n) for name, n in places for arm in (claim.arm, other)
            )))
            return claim.untested(f"{label}: cells are missing{_tail(missing)}")
        return guarded(claim, found, label)

    def _with_effect(self, verdict: Verdict, results: Results, places: list[Place], arm: str, other: str) -> Verdict:
        found = self.differences(results, places, arm, other)
        if found is None:
            return verdict
        pooled = found["ece"]
        return replace(verdict, effect=pooled.estimate, low=pooled.low, high=pooled.high, n=pooled.n)


def guarded(claim: Claim, found: Mapping[str, stats.Interval], label: str) -> Verdict:
    """Whether the calibration error is lower than the claim's threshold, the Brier score and the ranking kept."""
    error, brier, auroc = found["ece"], found["brier"], found["auroc"]
    parts = [
        claim.judge(error),
        claim.judge(brier, threshold=claim.limits["brier_margin"]),
        replace(claim, side="above").judge(auroc, threshold=-claim.limits["auroc_margin"]),
    ]
    words = (
        f"{label}: ECE {_points(error)} points, Brier {brier.estimate:+.4f} ({parts[1].outcome}), "
        f"AUROC {auroc.estimate:+.4f} ({parts[2].outcome})"
    )
    return replace(all_of(claim, parts, words), effect=error.estimate, low=error.low, high=error.high, n=error.n)


def places_at(results: Results, arm: str, n_val: int = LARGE) -> list[Place]:
    """Plain data sets measured at a validation size (a user's file and the smoke slice: at their largest)."""
    places = [(name, n_val) for name in _sets(results, arm, n_val) if _is_plain(name)]
    if places:
        return places
    return [
        (name, max(row.cell.options["n_val"] for row in _plain_rows(results, name, arm)))
        for name in SMALL_SETS if _plain_rows(results, name, arm)
    ]


def _too_few(claim: Claim, results: Results, places: Sequence[Place], n_val: int) -> Verdict | None:
    """`untested` where fewer than three data sets were measured; a user's own file may stand alone."""
    if len(places) >= LEAST_SETS or "file" in dict(places):
        return None
    missing = results.missing(arm=claim.arm, n_val=n_val)
    return claim.untested(
        f"{len(places)} of the {LEAST_SETS} data sets needed were measured at n_val = {n_val}{_tail(missing)}"
    )


def _sets(results: Results, arm: str, n_val: int) -> list[str]:
    return results.where(arm=arm, n_val=n_val).datasets


def _is_plain(name: str) -> bool:
    """Neither shifted nor long-tailed: those decide their own claim."""
    return name not in SOURCES or not (SOURCES[name].change or SOURCES[name].variant in ("long-tail", "debian"))


def _plain_rows(results: Results, dataset: str, arm: str) -> list[Row]:
    """Measured calibration cells at the paper's bandwidth."""
    return [
        row for row in results.where(dataset=dataset, arm=arm).measured
        if "n_val" in row.cell.options and "sigma" not in row.cell.options
    ]


def _pairs(results: Results, place: Place, arm: str, other: str) -> list[SplitPair]:
    """Units of both arms in the splits that both were to be measured in; empty where one of those lacks."""
    dataset, n_val = place
    first, second = (
        {row.cell.seed: row.units for row in _plain_rows(results, dataset, name) if row.cell.options["n_val"] == n_val}
        for name in (arm, other)
    )
    wanted = set.intersection(*(
        {row.cell.seed for row in results.where(dataset=dataset, arm=name, n_val=n_val)} for name in (arm, other)
    ))
    if not wanted or wanted - first.keys() or wanted - second.keys():
        return []
    return [(first[seed], second[seed]) for seed in sorted(wanted)]


def _lower_splits(results: Results, places: Sequence[Place], arm: str, other: str) -> list[bool]:
    """For every split of every place, whether the arm's calibration error is lower."""
    lower = []
    for dataset, n_val in places:
        first, second = (
            {row.cell.seed: row.metrics["ece"] for row in _plain_rows(results, dataset, name)
             if row.cell.options["n_val"] == n_val}
            for name in (arm, other)
        )
        lower += [first[seed] < second[seed] for seed in sorted(first.keys() & second.keys())]
    return lower


def _points(interval: stats.Interval) -> str:
    """An interval of probabilities in percentage points."""
    low, high = 100 * interval.low, 100 * interval.high
    return f"{100 * interval.estimate:+.2f} [{low:+.2f}, {high:+.2f}]"


def _joined(parts: Sequence[Verdict]) -> str:
    return "; ".join(part.reason for part in parts if part.reason)


def _tail(missing: str) -> str:
    return f" ({missing})" if missing else ""
