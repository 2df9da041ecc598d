"""Make `tiny-lm-split`: decoders trained on a mixture of four domains, branched into specialists.

    python scripts/train_split_runs.py rates     # choose the learning rates of each width (a quarter of an hour)
    python scripts/train_split_runs.py runs      # the grid (an hour and a half); picks up where it stopped
    python scripts/train_split_runs.py runs --domains a/ b/ c/ --targets a b --out mine.csv --widths 24 48

Three families of runs share the trunks of a width and seed:

grid     D in {0, 1/4, 1/2, 1, 2} x 2^21 bytes, then D' in {2^16, 2^18, 2^20} bytes on each target: the law's table
budget   T in {2^18, 2^19, 2^20} bytes, a share of 0, .1, .3, .5, .7 or .9 of them before branching, all for one
         target, and one model on the mixture for all of T
served   T in {2^20, 2^21, 2^22} bytes in all for the two targets: a trunk of 3/4 T, then T/8 on each target, or T/4
         on both targets together (one model), or one model on the mixture for all of T

The rates are chosen beforehand per width at 2^20 tokens with a seed that no run has: one for trunks (constant over
three quarters, then falling to zero on the mixture), one for models that decay from the start.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch

from assay.scaling.split_training.runs import (
    STEP_TOKENS,
    Corpus,
    Trainer,
    corpora_from_folders,
    home_corpora,
    n_params,
)
from resumable import add_rows, next_rate

SEEDS = {24: 3, 48: 3, 96: 3}  # how many seeds a width has on the grid
EXTRA_SEEDS = {24: 3, 48: 2}  # those with the families `budget` and `served`
TRUNK_STEPS = (256, 512, 1024, 2048)
BRANCH_STEPS = (32, 128, 512)
BUDGETS = (128, 256, 512)
SHARES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
SERVED_BUDGETS = (512, 1024, 2048)
RATE_SEED, RATE_STEPS = 7, 512
TARGETS = ("c", "prose")

HERE = Path(__file__).resolve().parents[1] / "src" / "assay" / "scaling" / "measured"


@dataclass(frozen=True)
class Cell:
    """One model: its trunk's steps, then its branch's steps on `domain` ("mixture", a target, or "both")."""

    family: str
    domain: str
    trunk: int
    branch: int

    @property
    def key(self) -> tuple[str, str, int, int]:
        return self.family, self.domain, self.trunk * STEP_TOKENS, self.branch * STEP_TOKENS


def grid_cells(targets: tuple[str, ...]) -> list[Cell]:
    return [Cell("grid", t, d, b) for d in (0, *TRUNK_STEPS) for t in targets for b in BRANCH_STEPS]


def budget_cells(targets: tuple[str, ...]) -> list[Cell]:
    split = [
        Cell("budget", target, round(share * total), total - round(share * total))
        for total in BUDGETS for share in SHARES for target in targets
    ]
    return [*split, *(Cell("budget", "mixture", 0, total) for total in BUDGETS)]


def served_cells(targets: tuple[str, ...]) -> list[Cell]:
    cells = []
    for total in SERVED_BUDGETS:
        cells += [Cell("served", target, 3 * total // 4, total // 8) for target in targets]
        cells += [Cell("served", "both", 3 * total // 4, total // 4), Cell("served", "mixture", 0, total)]
    return cells


def blocks(widths: list[int], targets: tuple[str, ...]) -> Iterator[tuple[int, int, list[Cell]]]:
    """(width, seed, cells) with a shared trunk each: the first seed of every width first."""
    for seed in range(max(SEEDS.values())):
        for width in widths:
            if seed < SEEDS.get(width, 1):
                extra = [*budget_cells(targets), *served_cells(targets)] if seed < EXTRA_SEEDS.get(width, 0) else []
                yield width, seed, [*grid_cells(targets), *extra]


class Grid:
    """The table of one set of domains: what is in it, and what is still to be trained."""

    def __init__(self, corpora: dict[str, Corpus], targets: tuple[str, ...], out: Path) -> None:
        self.corpora, self.targets, self.out = corpora, targets, out
        self.rates_file = out.with_name(f"{out.stem}-rates.csv")

    def choose_rates(self, widths: list[int]) -> None:
        """Walk a factor-two ladder of rates for each width and schedule until the best one lies inside it."""
        for width in widths:
            for schedule in ("trunk", "decay"):
                losses = self._rates_tried(width, schedule)
                while (rate := next_rate(losses)) is not None:
                    losses[rate] = self._rate_loss(width, schedule, rate)
                    row = {"width": width, "schedule": schedule, "steps": RATE_STEPS, "rate": rate}
                    add_rows(self.rates_file, [row | {"loss": round(losses[rate], 6)}])
                    print(width, schedule, rate, losses[rate], flush=True)

    def _rates_tried(self, width: int, schedule: str) -> dict[float, float]:
        if not self.rates_file.exists():
            return {}
        rows = pd.read_csv(self.rates_file).query("width == @width and schedule == @schedule")
        return dict(zip(rows["rate"], rows["loss"], strict=True))

    def _rate_loss(self, width: int, schedule: str, rate: float) -> float:
        trainer = Trainer(self.corpora, width, RATE_SEED, rate, rate)
        try:
            if schedule == "decay":
                model = trainer.decayed(RATE_STEPS)
            else:
                [(_, trunk)] = trainer.trunk([3 * RATE_STEPS // 4])
                model = trainer.branch(trunk, list(self.corpora), RATE_STEPS // 4)
        except FloatingPointError:
            return float("inf")
        losses = trainer.losses(model)
        return sum(losses.values()) / len(losses)

    def make_runs(self, widths: list[int], seeds: list[int], jobs: int, index: int) -> None:
        self._write_about()
        wanted = [block for block in blocks(widths, self.targets) if block[1] in seeds]
        for width, seed, cells in wanted[index::jobs]:
            self._make_block(width, seed, cells)

    def _make_block(self, width: int, seed: int, cells: list[Cell]) -> None:
        rates = pd.read_csv(self.rates_file).query("width == @width").sort_values("loss")
        best = rates.groupby("schedule")["rate"].first()
        if set(best.index) != {"trunk", "decay"}:
            sys.exit(f"no learning rates yet for width {width}: run `rates` first")
        missing = [cell for cell in cells if cell.key not in self._finished(width, seed)]
        trainer = Trainer(self.corpora, width, seed, best["trunk"], best["decay"])
        for cell in (c for c in missing if c.trunk == 0):
            self._measure(trainer, cell, None)
        rest = [c for c in missing if c.trunk > 0]
        for steps, trunk in trainer.trunk([c.trunk for c in rest]):
            for cell in (c for c in rest if c.trunk == steps):
                self._measure(trainer, cell, trunk)

    def _measure(self, trainer: Trainer, cell: Cell, trunk) -> None:
        start = time.process_time()
        if cell.domain == "mixture":
            model = trainer.decayed(cell.branch)
        else:
            domains = list(self.targets) if cell.domain == "both" else [cell.domain]
            model = trainer.branch(trunk, domains, cell.branch)
        seconds = time.process_time() - start
        losses = {f"loss_{name}": round(loss, 6) for name, loss in trainer.losses(model).items()}
        _, _, tokens, branch_tokens = cell.key
        row = {
            "family": cell.family, "domain": cell.domain, "width": trainer.width, "N": n_params(trainer.width),
            "seed": trainer.seed, "D": tokens, "Dp": branch_tokens,
            "rate": trainer.trunk_rate if cell.trunk else trainer.decay_rate,
            "epochs": round(self._epochs(cell), 3), **losses, "seconds": round(seconds, 1),
        }
        add_rows(self.out, [row])
        print(*row.values(), flush=True)

    def _epochs(self, cell: Cell) -> float:
        """Passes over the branch's domain, those of the trunk counted; for several domains over the smallest."""
        names = {"mixture": list(self.corpora), "both": list(self.targets)}.get(cell.domain, [cell.domain])
        _, _, tokens, branch_tokens = cell.key
        return max(
            (tokens / len(self.corpora) + branch_tokens / len(names)) / len(self.corpora[name].training)
            for name in names
        )

    def _finished(self, width: int, seed: int) -> set[tuple[str, str, int, int]]:
        if not self.out.exists():
            return set()
        table = pd.read_csv(self.out).query("width == @width and seed == @seed")
        return set(table[["family", "domain", "D", "Dp"]].itertuples(index=False, name=None))

    def _write_about(self) -> None:
        domains = {
            name: {
                "training_bytes": len(corpus.training), "held_out_bytes": len(corpus.held_out),
                "training_sha256": hashlib.sha256(corpus.training.tobytes()).hexdigest(),
            }
            for name, corpus in self.corpora.items()
        }
        about = {
            "python": platform.python_version(), "torch": torch.__version__, "step_tokens": STEP_TOKENS,
            "domains": domains, "targets": list(self.targets),
            "schedule": "trunk: 40 steps of warm-up, constant; branch: a line to zero; without trunk: both",
        }
        self.out.with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rates", "runs"))
    parser.add_argument("--widths", type=int, nargs="*", default=list(SEEDS))
    parser.add_argument("--seeds", type=int, nargs="*", default=list(range(max(SEEDS.values()))))
    parser.add_argument("--domains", type=Path, nargs="*", help="folders of texts, one a domain (default: home)")
    parser.add_argument("--targets", nargs="*", default=list(TARGETS), help="two domains that get specialists")
    parser.add_argument("--out", type=Path, default=HERE / "tiny-lm-split.csv")
    parser.add_argument("--jobs", type=int, default=1, help="how many of these scripts share the grid")
    parser.add_argument("--index", type=int, default=0, help="which of them this one is")
    options = parser.parse_args()
    torch.set_num_threads(1)
    corpora = corpora_from_folders(options.domains) if options.domains else home_corpora()
    unknown = set(options.targets) - set(corpora)
    if unknown:
        sys.exit(f"no such domain: {', '.join(sorted(unknown))}; there are {', '.join(corpora)}")
    work = Grid(corpora, tuple(options.targets), options.out)
    if options.what == "rates":
        work.choose_rates(options.widths)
    else:
        work.make_runs(options.widths, options.seeds, options.jobs, options.index)


if __name__ == "__main__":
    main()
