"""The shapes of `card.toml`, `data.toml` and `record.json`, checked field by field.

At run time the catalogue and the data registry read these files as plain TOML and JSON; the models here say
everything that must be true of them, and are used by the checks alone.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from assay.catalogue import AREAS, KINDS

__all__ = ["EXTRAS", "CardModel", "ClaimModel", "DataModel", "PaperModel", "RecordModel"]

EXTRAS = ("torch", "language", "control", "science", "peers", "cluster", "report", "all")

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Slug = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9]*(-[a-z0-9]+)*$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Outcome = Literal["holds", "fails", "unclear", "untested"]


def _one_of(known: tuple[str, ...]) -> AfterValidator:
    def check(value: str) -> str:
        if value not in known:
            raise ValueError(f"must be one of {', '.join(known)}")
        return value

    return AfterValidator(check)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PaperModel(_Strict):
    """`[paper]` of a card."""

    title: Text
    authors: Text
    year: Annotated[int, Field(ge=1900, le=2100)]
    venue: Text
    arxiv: Annotated[str, StringConstraints(pattern=r"^(\d{4}\.\d{4,5})?$")] = ""
    code: str = ""


class ClaimModel(_Strict):
    """One `[[claims]]` of a card: an exact claim counts cases, any other compares an interval with its threshold."""

    id: Text
    statement: Text
    paper: Text
    measured: Text
    unit: Text
    home: Text
    control: Text
    arm: Text | None = None
    threshold: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    side: Literal["below", "above"] = "below"
    exact: bool = False
    min_cases: Annotated[int, Field(ge=0)] = 0
    limits: dict[str, float] = {}
    after_pilot: bool = False

    @model_validator(mode="after")
    def _complete(self) -> ClaimModel:
        if self.exact and self.min_cases < 1:
            raise ValueError("an exact claim states min_cases, the number of cases that it needs")
        for name in ("control", "home"):
            head, _, reason = getattr(self, name).partition(":")
            if head.strip() in ("none", "untested at home") and not reason.strip():
                raise ValueError(f"{name} = {head.strip()!r} gives no reason")
        return self


class CardModel(_Strict):
    """`card.toml`."""

    slug: Slug
    title: Text
    summary: Annotated[str, StringConstraints(min_length=10, max_length=79)]
    area: Annotated[str, _one_of(AREAS)]
    tasks: Annotated[list[Text], Field(min_length=1)]
    public: Annotated[list[Text], Field(min_length=1)]
    gives: Annotated[str, StringConstraints(min_length=40)]
    not_for: Annotated[str, StringConstraints(min_length=20)]
    usage: Text
    arm: Text
    stability: Literal["stable", "preview"]
    study_version: Annotated[int, Field(ge=1)]
    extras: list[Annotated[str, _one_of(EXTRAS)]] = []
    optional_extras: list[Annotated[str, _one_of(EXTRAS)]] = []
    departures: list[Text] = []
    reaches: list[Annotated[str, _one_of(KINDS)]] = []
    speed_target: Annotated[float, Field(gt=0)] | None = None
    kinds: Annotated[dict[str, Annotated[str, _one_of(KINDS)]], Field(min_length=1)]
    paper: PaperModel
    claims: Annotated[list[ClaimModel], Field(min_length=1)]

    @model_validator(mode="after")
    def _claims_differ(self) -> CardModel:
        ids = [claim.id for claim in self.claims]
        if len(set(ids)) < len(ids):
            raise ValueError(f"two claims share an id: {', '.join(ids)}")
        return self


_SOURCE_FIELDS = {
    "dependency": ("prepare",), "wheel": ("wheel", "member", "sha256"), "ours": ("file", "sha256"),
    "slice": ("file", "of", "sha256"), "public": ("source",),
}


class DataModel(_Strict):
    """One entry of a `data.toml`."""

    title: Text
    licence: Text
    kind: Literal["dependency", "wheel", "ours", "slice", "public"]
    wheel: Annotated[str, StringConstraints(pattern=r"^[\w.-]+==[\w.]+$")] | None = None
    member: Text | None = None
    file: Text | None = None
    of: Text | None = None
    url: Annotated[str, StringConstraints(pattern=r"^https://")] | None = None
    mirror: Text | None = None
    sha256: Sha256 | None = None
    mirror_sha256: Sha256 | None = None
    prepare: Annotated[str, StringConstraints(pattern=r"^[\w.]+:\w+$")] | None = None
    source: Text | None = None
    home: bool = True

    @model_validator(mode="after")
    def _complete(self) -> DataModel:
        for name in _SOURCE_FIELDS[self.kind]:
            if getattr(self, name) is None:
                raise ValueError(f"a data set of kind {self.kind} needs the field {name}")
        if self.url and not self.sha256:
            raise ValueError("a url needs the sha256 of its file")
        if self.mirror and not (self.mirror_sha256 or self.sha256):
            raise ValueError("a mirror needs mirror_sha256")
        if self.kind == "public" and not (self.url or self.mirror):
            raise ValueError("a public data set needs a url or a mirror")
        return self


class _VerdictModel(_Strict):
    claim: Text
    outcome: Outcome
    reason: str
    effect: float | None
    low: float | None
    high: float | None
    threshold: float | None
    n: int | None
    parts: list[_VerdictModel]


class _ControlModel(_Strict):
    claim: Text
    control: Text
    outcome: Outcome


class _MachineModel(_Strict):
    cpu: Text
    cores: Annotated[int, Field(ge=1)]
    memory_gb: Annotated[float, Field(gt=0)]
    system: Text
    python: Text
    others: Annotated[int, Field(ge=1)] | None = None


class _UsedDataModel(_Strict):
    name: Text
    title: Text
    licence: Text
    kind: Text
    sha256: str
    status: Literal["used", "absent"]
    reason: str

    @model_validator(mode="after")
    def _absent_says_why(self) -> _UsedDataModel:
        if self.status == "absent" and not self.reason:
            raise ValueError("an absent data set gives its reason")
        return self


class _RowModel(_Strict):
    dataset: Text
    arm: Text
    seed: int
    options: dict[str, Any]
    status: Literal["measured", "skipped", "failed", "blocked"]
    reason: str
    metrics: dict[str, float | None]
    seconds: Annotated[float, Field(ge=0)]
    peak_mb: Annotated[float, Field(ge=0)]
    timing: bool

    @model_validator(mode="after")
    def _answers(self) -> _RowModel:
        if self.status != "measured" and not self.reason:
            raise ValueError(f"a {self.status} cell gives its reason")
        return self


class _SpeedCaseModel(_Strict):
    name: Text
    ours_s: Annotated[float, Field(gt=0)]
    peer_s: Annotated[float, Field(gt=0)] | None
    ratio: Annotated[float, Field(gt=0)] | None
    target: float | None
    peer: Text
    note: str


class _SpeedModel(BaseModel):
    measured: Text
    cases: Annotated[list[_SpeedCaseModel], Field(min_length=1)]


class _FurtherModel(BaseModel):
    """What the home and the public sets say together."""

    data: Annotated[list[Text], Field(min_length=1)]
    verdicts: list[_VerdictModel]
    controls: list[_ControlModel]


class RecordModel(BaseModel):
    """`record.json`."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    slug: Slug
    study_version: Annotated[int, Field(ge=1)]
    tier: Literal["smoke", "quick", "full"]
    measured: Text
    seconds: Annotated[float, Field(ge=0)]
    command: Text
    code: Text
    machine: _MachineModel
    versions: Annotated[dict[str, Text], Field(min_length=1)]
    data: list[_UsedDataModel]
    verdicts: list[_VerdictModel]
    controls: list[_ControlModel]
    further: _FurtherModel | None
    rows: Annotated[list[_RowModel], Field(min_length=1)]
    charts: list[dict[str, Any]]
    speed: _SpeedModel | None
