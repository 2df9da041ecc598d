"""Make `tiny-lm-runs`: byte-level decoders trained on Python's own library source.

    python scripts/train_tiny_runs.py rates     # choose the learning rate of each width (ten minutes of a core)
    python scripts/train_tiny_runs.py runs      # the grid (an hour and a half of a core); picks up where it stopped

The grid crosses six widths, batches of 4 to 256 sequences and 250 to 4,000 updates. Going up one width
doubles N and each fourfold step in batch or updates is one step in tokens, so that the runs fall on
exact levels of compute (6 * N * tokens) and of tokens, several runs a level. One seed covers every
level up to `TOP_LEVEL`; the cheaper levels are repeated with more seeds.

The rate is chosen per width beforehand, by the loss after 500 updates of 16 sequences (about a million
tokens, the middle of the grid on a log scale), and used for every run of that width.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import platform
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from assay.language.tiny import TinyCausal, TinyConfig, TrainConfig, heldout_loss, sample_bytes, train
from resumable import add_rows, next_rate

WIDTHS = (24, 34, 48, 68, 96, 136)
BATCHES = (4, 16, 64, 256)
STEPS = (250, 1000, 4000)
CONTEXT = 128
TOP_LEVEL = 10  # the largest budget with the first seed, in doublings of the smallest
SEED_LEVELS = {0: TOP_LEVEL, 1: 7, 2: 6}  # the largest level that each seed covers
HELD_OUT_WINDOWS = 512
CURVE_POINTS = 8
TOKENS_TOP_STEP = 4  # 64 x 4000 and 256 x 1000 sequences; one more fourfold step would cost hours

HERE = Path(__file__).resolve().parents[1] / "src" / "assay" / "scaling" / "measured"
RATES, RUNS, CURVES, ABOUT = (
    HERE / f"tiny-lm-{name}" for name in ("rates.csv", "runs.csv", "curves.csv", "runs.json")
)


@dataclass(frozen=True)
class Run:
    width: int
    batch: int
    steps: int
    seed: int

    @property
    def token_step(self) -> int:
        """Fourfold steps in tokens above the smallest run of the grid."""
        return round(math.log(self.batch * self.steps / (BATCHES[0] * STEPS[0]), 4))

    @property
    def level(self) -> int:
        """Doublings of compute above the smallest run of the grid."""
        return WIDTHS.index(self.width) + 2 * self.token_step

    @property
    def key(self) -> tuple[int, int, int, int]:
        return self.width, self.batch, self.steps, self.seed


def grid() -> list[Run]:
    """All runs: the first seed by compute, the repeats, then the top level: an interrupted grid is a smaller one."""
    runs = [
        Run(width, batch, steps, seed)
        for seed in SEED_LEVELS for width in WIDTHS for batch in BATCHES for steps in STEPS
    ]
    wanted = [r for r in runs if r.level <= SEED_LEVELS[r.seed] and r.token_step <= TOKENS_TOP_STEP]
    return sorted(wanted, key=lambda r: (r.level == TOP_LEVEL, r.seed, r.level, r.token_step, r.width))


def library_source() -> tuple[np.ndarray, np.ndarray]:
    """Bytes of the standard library, (training, held out), split by top-level module (a tenth held out)."""
    root = Path(sysconfig.get_paths()["stdlib"])
    streams: dict[bool, list[bytes]] = {True: [], False: []}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if {"test", "tests", "site-packages", "idle_test", "pydoc_data", "lib2to3"} & set(parts) or parts[0][0] == "_":
            continue
        module = parts[0].removesuffix(".py")
        held_out = int(hashlib.sha256(module.encode()).hexdigest(), 16) % 10 == 0
        streams[held_out].append(path.read_bytes())
    joined = (np.frombuffer(b"\0".join(streams[flag]), dtype=np.uint8) for flag in (False, True))
    return tuple(joined)  # type: ignore[return-value]


def held_out_windows(stream: np.ndarray) -> torch.Tensor:
    return sample_bytes(stream, HELD_OUT_WINDOWS, CONTEXT + 1, np.random.default_rng(20260))


def measure_run(run: Run, rate: float, training: np.ndarray, windows: torch.Tensor) -> tuple[dict, list[dict]]:
    config = TinyConfig(width=run.width, context=CONTEXT)
    model = TinyCausal(config, seed=run.seed)
    points = sorted({max(1, run.steps // 2**i) for i in range(CURVE_POINTS)})
    start = time.process_time()
    plan = TrainConfig(run.batch, run.steps, rate, run.seed)
    curve = train(model, training, plan, measure=lambda m: heldout_loss(m, windows), measure_at=points)
    tokens = run.batch * run.steps * CONTEXT
    key = {"width": run.width, "B": run.batch, "K": run.steps, "seed": run.seed}
    row = {
        "N": config.n_params, **key, "tokens": tokens, "level": run.level, "rate": rate, "schedule": "cosine",
        "flops": 6 * config.n_params * tokens, "loss": round(curve[-1][1], 6),
        "seconds": round(time.process_time() - start, 1),
    }
    return row, [{**key, "step": step, "loss": round(loss, 6)} for step, loss in curve]


def choose_rates(widths: list[int]) -> None:
    """Walk a factor-two ladder of rates for each width until the best one lies inside it."""
    training, held_out = library_source()
    windows = held_out_windows(held_out)
    for width in widths:
        losses: dict[float, float] = {}
        while (rate := next_rate(losses)) is not None:
            try:
                row, _ = measure_run(Run(width, 16, 500, seed=7), rate, training, windows)
                losses[rate] = row["loss"]
            except FloatingPointError:
                losses[rate] = float("inf")
            add_rows(RATES, [{"width": width, "B": 16, "K": 500, "rate": rate, "loss": losses[rate]}])
            print(width, rate, losses[rate], flush=True)


def make_runs(jobs: int, index: int) -> None:
    rates = pd.read_csv(RATES).sort_values("loss").groupby("width")["rate"].first()
    missing = set(WIDTHS) - set(rates.index)
    if missing:
        sys.exit(f"no learning rate yet for the widths {sorted(missing)}: run `rates` first")
    training, held_out = library_source()
    windows = held_out_windows(held_out)
    write_about(training, held_out)
    for run in grid()[index::jobs]:
        if run.key in finished():
            continue
        row, curve = measure_run(run, float(rates[run.width]), training, windows)
        add_rows(CURVES, curve)
        add_rows(RUNS, [row])
        print(*row.values(), flush=True)


def finished() -> set[tuple[int, ...]]:
    if not RUNS.exists():
        return set()
    return set(pd.read_csv(RUNS)[["width", "B", "K", "seed"]].itertuples(index=False, name=None))


def write_about(training: np.ndarray, held_out: np.ndarray) -> None:
    about = {
        "python": platform.python_version(), "torch": torch.__version__, "context": CONTEXT,
        "training_bytes": len(training), "training_sha256": hashlib.sha256(training.tobytes()).hexdigest(),
        "held_out_bytes": len(held_out), "held_out_sha256": hashlib.sha256(held_out.tobytes()).hexdigest(),
        "held_out_windows": HELD_OUT_WINDOWS, "rate": "per width, see tiny-lm-rates.csv",
        "schedule": "warm-up over a tenth (100 updates at most), cosine to a tenth of the rate",
    }
    ABOUT.write_text(json.dumps(about, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rates", "runs", "plan"))
    parser.add_argument("--widths", type=int, nargs="*", default=list(WIDTHS))
    parser.add_argument("--jobs", type=int, default=1, help="how many of these scripts share the grid")
    parser.add_argument("--index", type=int, default=0, help="which of them this one is")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "rates":
        choose_rates(options.widths)
    elif options.what == "runs":
        make_runs(options.jobs, options.index)
    else:
        print(pd.DataFrame([vars(r) | {"level": r.level} for r in grid()]).to_string())


if __name__ == "__main__":
    main()
