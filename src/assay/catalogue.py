"""The catalogue: every method's folder, found by walking the package; nothing is imported until asked for.

A method is a folder with a `card.toml` in an area's folder, or one that a third party registers under
the entry-point group `assay.methods` (the value is the package). Its facts are plain TOML, its recorded
verdicts plain JSON: `assay list` reads both and imports no method.
"""

from __future__ import annotations

import importlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from assay._lazy import third_party_folders
from assay.errors import CardError, InputError, MissingExtra, from_toml, missing_extra, nearest
from assay.study import Claim, Outcome, Study

__all__ = ["AREAS", "KINDS", "Method", "get", "methods"]

AREAS = ("scaling", "inference", "trust", "training", "generation", "control", "science", "structure")
KINDS = (
    "estimator", "law", "module", "optimiser", "schedule", "solver", "sampler", "hook", "environment", "policy",
    "function", "tool",
)
STABILITIES = ("stable", "preview")


@dataclass(frozen=True)
class Paper:
    """Where a method comes from. `arxiv` is empty where none was found."""

    title: str
    authors: str
    year: int
    venue: str
    arxiv: str = ""
    code: str = ""

    @property
    def url(self) -> str:
        return f"https://arxiv.org/abs/{self.arxiv}" if self.arxiv else ""

    def bibtex(self, key: str) -> str:
        fields = {
            "title": f"{{{self.title}}}", "author": self.authors.replace(", ", " and "),
            "booktitle": self.venue, "year": str(self.year),
        }
        if self.arxiv:
            fields |= {"eprint": self.arxiv, "archiveprefix": "arXiv"}
        body = ",\n".join(f"  {name:<13} = {{{value}}}" for name, value in fields.items())
        return f"@inproceedings{{{key},\n{body}\n}}"


@dataclass(frozen=True)
class Method:
    """The facts of a method's folder, as `card.toml` gives them."""

    slug: str
    title: str
    summary: str
    area: str
    tasks: tuple[str, ...]
    kinds: Mapping[str, str]
    public: tuple[str, ...]
    gives: str
    not_for: str
    usage: str
    arm: str
    claims: Mapping[str, Claim]
    paper: Paper
    folder: Path = field(repr=False)
    package: str = field(repr=False)
    stability: str = "preview"
    study_version: int = 1
    extras: tuple[str, ...] = ()
    optional_extras: tuple[str, ...] = ()
    departures: tuple[str, ...] = ()
    reaches: tuple[str, ...] = ()  # of a tool: the kinds of its area's names that it asks the catalogue for
    speed_target: float | None = None

    @property
    def import_line(self) -> str:
        home = f"assay.{self.area}" if self.package.startswith("assay.") else self.package
        return f"from {home} import {', '.join(self.public)}"

    @cached_property
    def record(self) -> dict[str, Any] | None:
        """The recorded outcome that ships in the folder, or None when nothing was recorded yet."""
        path = self.folder / "record.json"
        if not path.exists():
            return None
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise CardError(f"{path}: not valid JSON ({error})") from None

    def outcomes(self) -> dict[str, Outcome]:
        """The recorded verdict on each claim; untested where there is no record."""
        recorded = {v["claim"]: Outcome(v["outcome"]) for v in (self.record or {}).get("verdicts", ())}
        return {claim: recorded.get(claim, Outcome.untested) for claim in self.claims}

    def study(self, data_file: Path | None = None) -> Study:
        """The study, with the card's claims."""
        return self.load("study").STUDY(self.claims, data_file)

    def command(self) -> ModuleType:
        """The module that holds `run` and `example`, the two functions behind `assay run`."""
        return self.load("command")

    def load(self, module: str) -> ModuleType:
        try:
            return importlib.import_module(f"{self.package}.{module}")
        except MissingExtra:
            raise
        except ModuleNotFoundError as error:
            if error.name == f"{self.package}.{module}":
                raise CardError(f"{self.folder / module}.py is missing") from None
            missing = (error.name or "").partition(".")[0]
            if missing in ("", "assay", self.package.partition(".")[0]):
                raise
            raise missing_extra(missing, self.extras + self.optional_extras, self.slug) from error

    @property
    def readme(self) -> str:
        """Its page, in Markdown."""
        path = self.folder / "README.md"
        try:
            return path.read_text(encoding="utf-8")
        except OSError as error:
            raise CardError(f"{path}: {error.strerror}") from None


@cache
def methods() -> Mapping[str, Method]:
    """Every method by slug, areas in their usual order, then by slug."""
    found: dict[str, Method] = {}
    for folder, package in _folders():
        method = read_card(folder, package)
        if method.slug in found:
            raise CardError(f"{folder}: the slug {method.slug} belongs to {found[method.slug].folder} already")
        found[method.slug] = method
    order = sorted(found.values(), key=lambda m: (AREAS.index(m.area), m.slug))
    return {method.slug: method for method in order}


def get(slug: str) -> Method:
    """The method of that slug; an unknown one is an `InputError` with the nearest slug."""
    known = methods()
    if slug not in known:
        raise InputError(f"no method is called {slug!r}{nearest(slug, list(known))}; `assay list` shows all")
    return known[slug]


def _folders() -> list[tuple[Path, str]]:
    root = Path(__file__).parent
    own = [
        (card.parent, f"assay.{card.parent.parent.name}.{card.parent.name}")
        for card in sorted(root.glob("*/*/card.toml"))
        if card.parent.parent.name in AREAS
    ]
    return own + third_party_folders()


def read_card(folder: Path, package: str) -> Method:
    """The facts in a folder's `card.toml`; raises `CardError` naming the file and the field."""
    path = folder / "card.toml"
    try:
        facts = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CardError(f"{path}: {error}") from None
    claims, paper = facts.pop("claims", []), facts.pop("paper", {})
    paper = from_toml(Paper, paper, f"{path}: paper")
    method = from_toml(Method, facts, str(path), claims={}, paper=paper, folder=folder, package=package)
    wrong = sorted(set(method.kinds.values()) - set(KINDS))
    unknown = sorted(set(method.public) - set(method.kinds))
    for problem in (
        method.area not in AREAS and f"area must be one of {', '.join(AREAS)}, got {method.area!r}",
        wrong and f"kinds: {', '.join(wrong)} is none of {', '.join(KINDS)}",
        unknown and f"kinds gives none for {', '.join(unknown)}",
        method.stability not in STABILITIES and f"stability must be one of {', '.join(STABILITIES)}",
    ):
        if problem:
            raise CardError(f"{path}: {problem}")
    return replace(method, claims=_claims(claims, method.arm, path))


def _claims(tables: Any, arm: str, path: Path) -> dict[str, Claim]:
    if not isinstance(tables, list):
        raise CardError(f"{path}: the field claims must be a list of tables, [[claims]]")
    claims: dict[str, Claim] = {}
    for number, fields in enumerate(tables, 1):
        where = f"{path}: claim {number}"
        claim = from_toml(Claim, {"arm": arm, **fields} if isinstance(fields, Mapping) else fields, where)
        if claim.side not in ("above", "below"):
            raise CardError(f"{where}: the field side must be above or below, got {claim.side!r}")
        if claim.id in claims:
            raise CardError(f"{where}: the id {claim.id} stands twice")
        claims[claim.id] = claim
    return claims
