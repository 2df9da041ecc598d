"""The evidence for FUSE: what it makes of the scores of real verifiers, beside what one would use instead.

A step makes a data set's score matrix. A cell gives every item the score of one arm, and is judged by the AUC over
all items and by best-of-N, the share of queries whose best-scored item is right. The unit is the query: items of one
query are dependent. No arm without `supervised`, `best-single` or `one-domain` in its name sees a label.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from assay.study import Cell, Claim, Measurement, Results, Step, Study, Tier, Verdict

from . import charts, verdicts
from .matrices import ScoreMatrix, matrix, read_file

__all__ = ["STUDY", "FuseStudy"]

HOME = ("champ", "digits-pool", "breast-cancer-pool")
MIRRORED = ("judgebench", "bbh")
DOMAINS = {"champ": 5, "bbh": 17}
JUDGED = ("fuse", "shuffled", "fuse-untransformed", "jaffe", "mean-z")
BESIDE = (
    "vote", "mean-rank", "best-single", "dawid-skene", "fuse-pseudo", "fuse-spectral", "fuse-median", "fuse-unmerged",
    "supervised",
)
SIZES = {"champ": 12, "digits-pool": 8, "breast-cancer-pool": 8, "judgebench": 6, "bbh": 5}
DRAWS = 10
BUDGETS = (0.01, 0.2)
PLANTED = ((300, 0), (3000, 0), (300, 5), (3000, 5))


class FuseStudy(Study):
    """Cells, measurements and verdicts of the card's claims C1 to C5."""

    accepts_file = True

    def __init__(self, claims: Mapping[str, Claim], data_file: Path | None = None) -> None:
        super().__init__(claims, data_file)
        self._judge = verdicts.Judge(self.claims)

    def cells(self, tier: Tier) -> Iterable[Cell]:
        if self.data_file is not None:
            read_file(self.data_file)  # a file that can't be used is refused here, and not cell by cell
            return _set_cells("file", data=())
        if tier is Tier.smoke:
            cells = [*_cells("champ-smoke", (*JUDGED, "vote")), *_cells("breast-cancer-pool", JUDGED)]
            names = ("champ-smoke", "breast-cancer-pool")
            return cells + [Cell(name, "supervised-5", draw) for name in names for draw in range(2)]
        quick = [cell for name in (*HOME, *MIRRORED) for cell in _set_cells(name)]
        return quick if tier is Tier.quick else [*quick, *_full_cells()]

    def needs(self, what: Cell | Step) -> tuple[Step, ...]:
        if isinstance(what, Step) or not what.data:
            return ()
        return (Step("matrix", {"set": what.dataset}, what.data),)

    def prepare(self, step: Step, have: Mapping[Step, Path], out: Path) -> None:
        matrix(step.options["set"]).save(out / "matrix.npz")

    def measure(self, cell: Cell, have: Mapping[Step, Path]) -> Measurement:
        from .measuring import measure_arm

        return measure_arm(cell, self._matrix(cell, have))

    def verdicts(self, results: Results) -> list[Verdict]:
        return self._judge(results)

    def charts(self, results: Results) -> list[dict[str, Any]]:
        return charts.charts(results)

    def _matrix(self, cell: Cell, have: Mapping[Step, Path]) -> ScoreMatrix:
        if self.data_file is not None:
            return read_file(self.data_file)
        if cell.dataset == "planted":
            from .planted import planted_blocks

            return planted_blocks(cell.options["n"], cell.options["block"], cell.seed)
        (folder,) = have.values()
        data = ScoreMatrix.load(folder / "matrix.npz")
        dropped = cell.options.get("without")
        return data if dropped is None else data.without(dropped)


def _cells(dataset: str, arms: Iterable[str], data: tuple[str, ...] | None = None, **options: Any) -> list[Cell]:
    return [Cell(dataset, arm, options=options, data=data) for arm in arms]


def _set_cells(dataset: str, data: tuple[str, ...] | None = None) -> list[Cell]:
    """All arms of one data set; those that draw labels at random ten times."""
    cells = _cells(dataset, (*JUDGED, *BESIDE), data)
    if dataset != "breast-cancer-pool":
        cells += _cells(dataset, ("fuse-conditional", "shuffled-conditional"), data)
    cells += [
        Cell(dataset, arm, draw, data=data) for arm in ("supervised-5", "best-single-5") for draw in range(DRAWS)
    ]
    return cells + [
        Cell(dataset, arm, options={"domain": domain}, data=data)
        for arm in ("one-domain", "one-domain-positive") for domain in range(DOMAINS.get(dataset, 0))
    ]


def _full_cells() -> list[Cell]:
    """Fewer verifiers, other budgets of labels, more problems of champ, and planted blocks."""
    cells = [
        Cell(dataset, "supervised-5", draw, {"share": share})
        for dataset in (*HOME, *MIRRORED) for share in BUDGETS for draw in range(DRAWS)
    ]
    for dataset, size in SIZES.items():
        cells += [Cell(dataset, arm, options={"without": j}) for j in range(size) for arm in ("fuse", "mean-z")]
    cells += _cells("champ-wide", (*JUDGED, "vote", "supervised"), ("champ",))
    for n, block in PLANTED:
        cells += [
            Cell("planted", arm, seed, {"n": n, "block": block}, data=())
            for seed in range(5) for arm in ("fuse", "fuse-unmerged", "jaffe", "mean-z", "supervised")
        ]
    return cells


STUDY = FuseStudy
