"""Make `tiny-dna-runs`: next-base models of four architectures trained on one bacterial genome.

    python scripts/train_dna_runs.py rates     # choose the learning rate of each architecture and width (ten minutes)
    python scripts/train_dna_runs.py runs      # the grid (an hour); picks up where it stopped
    python scripts/train_dna_runs.py runs --fasta mine.fna.gz --out mine.csv --widths 16 32

Ten regions of 50,000 bases are held out; the rest is trained on, both strands. The grid crosses architectures,
widths, bases and the share of wrong bases in the training data. The largest width is there to be predicted.
The rate is chosen beforehand per architecture and width, by the held-out score after the fewest bases of the grid,
with a seed that no run has and on windows that no run is scored on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from assay.scaling.genomic_scaling.blocks import ARCHITECTURES, DNAModel
from assay.scaling.genomic_scaling.sequences import read_fasta, regions
from assay.scaling.genomic_scaling.training import bits_per_base, even_windows, train_dna
from resumable import add_rows, next_rate

WIDTHS = (16, 32, 64, 96)
HELD_OUT_WIDTH = 96
BATCH, CONTEXT = 32, 128
STEPS = (128, 256, 512)
NOISE = (0.0, 0.05, 0.2)
SEEDS = 3
WINDOWS = 1000  # a hundred a region
RATE_SEED = 7
FIRST_RATES = (0.01, 0.02, 0.04)
DECIMALS = 5

HERE = Path(__file__).resolve().parents[1] / "src" / "assay" / "scaling" / "measured"


@dataclass(frozen=True)
class Run:
    arch: str
    width: int
    steps: int
    noise: float
    seed: int

    @property
    def key(self) -> tuple[str, int, int, float, int]:
        return self.arch, self.width, self.steps * BATCH * CONTEXT, self.noise, self.seed


def grid(widths: list[int]) -> list[Run]:
    """All runs: clean data seed by seed, then the errors; an interrupted grid is a smaller one."""
    clean = [
        Run(arch, width, steps, 0.0, seed)
        for seed in range(SEEDS) for width in widths for steps in STEPS for arch in ARCHITECTURES
        if width != HELD_OUT_WIDTH or steps == STEPS[-1] or (seed == 0 and steps == STEPS[-2])
    ]
    noisy = [
        Run(arch, width, steps, noise, 0)
        for noise in NOISE[1:] for width in widths if width != HELD_OUT_WIDTH
        for steps in STEPS for arch in ARCHITECTURES if arch != "llama-conv"
    ]
    return [*clean, *noisy]


class Grid:
    """The table of one genome: its pieces, its windows, and what is still to be trained."""

    def __init__(self, fasta: Path, out: Path) -> None:
        self.fasta, self.out = fasta, out
        self.rates_file = out.with_name(f"{out.stem}-rates.csv")
        records = list(read_fasta(fasta).values())
        self.kept, held_out = regions(max(records, key=len))
        both = even_windows(held_out, 2 * WINDOWS, CONTEXT).reshape(len(held_out), -1, CONTEXT + 1)
        self.windows, self.rate_windows = (both[:, part::2].reshape(-1, CONTEXT + 1) for part in (0, 1))
        self.regions = len(held_out)

    def choose_rates(self, widths: list[int], architectures: list[str]) -> None:
        """Walk a factor-two ladder of rates until the best one lies inside it."""
        for width in widths:
            for arch in architectures:
                scores = self._rates_tried(arch, width)
                while (rate := next_rate(scores, FIRST_RATES)) is not None:
                    scores[rate] = float(self._train(Run(arch, width, STEPS[0], 0.0, RATE_SEED), rate, True).mean())
                    row = {"arch": arch, "width": width, "steps": STEPS[0], "rate": rate}
                    add_rows(self.rates_file, [row | {"bits": round(scores[rate], DECIMALS)}])
                    print(arch, width, rate, scores[rate], flush=True)

    def _rates_tried(self, arch: str, width: int) -> dict[float, float]:
        if not self.rates_file.exists():
            return {}
        rows = pd.read_csv(self.rates_file).query("arch == @arch and width == @width")
        return dict(zip(rows["rate"], rows["bits"], strict=True))

    def _train(self, run: Run, rate: float, for_rate: bool = False) -> np.ndarray:
        """Bits a base of each held-out region."""
        model = DNAModel(run.arch, run.width, context=CONTEXT, seed=run.seed)
        windows = self.rate_windows if for_rate else self.windows
        try:
            train_dna(model, self.kept, run.steps * BATCH * CONTEXT, rate, BATCH, length=CONTEXT,
                      corrupt=run.noise, seed=run.seed)
        except FloatingPointError:
            return np.full(self.regions, np.inf)
        return bits_per_base(model, windows).reshape(self.regions, -1).mean(1)

    def make_runs(self, widths: list[int], jobs: int, index: int) -> None:
        self._write_about()
        rates = pd.read_csv(self.rates_file).sort_values("bits").groupby(["arch", "width"])["rate"].first()
        missing = {(arch, width) for arch in ARCHITECTURES for width in widths} - set(rates.index)
        if missing:
            sys.exit(f"no learning rate yet for {sorted(missing)}: run `rates` first")
        for run in grid(widths)[index::jobs]:
            if run.key not in self._finished():
                self._measure(run, float(rates[run.arch, run.width]))

    def _measure(self, run: Run, rate: float) -> None:
        start = time.process_time()
        scores = self._train(run, rate)
        model = DNAModel(run.arch, run.width, context=CONTEXT)
        tokens = run.steps * BATCH * CONTEXT
        row = {
            "arch": run.arch, "width": run.width, "N": model.n_params, "D": tokens, "noise": run.noise,
            "seed": run.seed, "rate": rate, "flops": round(model.flops_per_token(CONTEXT) * tokens),
            "bits": round(float(scores.mean()), DECIMALS),
            **{f"bits_{number}": round(float(score), DECIMALS) for number, score in enumerate(scores)},
            "seconds": round(time.process_time() - start, 1),
        }
        add_rows(self.out, [row])
        print(*row.values(), flush=True)

    def _finished(self) -> set[tuple[str, int, int, float, int]]:
        if not self.out.exists():
            return set()
        return set(pd.read_csv(self.out)[["arch", "width", "D", "noise", "seed"]].itertuples(index=False, name=None))

    def _write_about(self) -> None:
        about = {
            "python": platform.python_version(), "torch": torch.__version__, "context": CONTEXT, "batch": BATCH,
            "fasta_sha256": hashlib.sha256(self.fasta.read_bytes()).hexdigest(), "held_out_regions": self.regions,
            "windows": len(self.windows), "training_bases": sum(map(len, self.kept)),
            "schedule": "20 steps of warm-up, then a line to zero", "rate": f"see {self.rates_file.name}",
        }
        self.out.with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rates", "runs"))
    parser.add_argument("--fasta", type=Path, required=True, help="the genome (the table's own: RefSeq NC_008253)")
    parser.add_argument("--out", type=Path, default=HERE / "tiny-dna-runs.csv")
    parser.add_argument("--widths", type=int, nargs="*", default=list(WIDTHS))
    parser.add_argument("--archs", nargs="*", default=list(ARCHITECTURES), help="for `rates`")
    parser.add_argument("--jobs", type=int, default=1, help="how many of these scripts share the grid")
    parser.add_argument("--index", type=int, default=0, help="which of them this one is")
    options = parser.parse_args()
    torch.set_num_threads(1)
    work = Grid(options.fasta, options.out)
    if options.what == "rates":
        work.choose_rates(options.widths, options.archs)
    else:
        work.make_runs(options.widths, options.jobs, options.index)


if __name__ == "__main__":
    main()
