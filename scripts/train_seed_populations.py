"""Make `seed-populations`: populations of seeds on sparse parity, digits with few labels, and counting.

    python scripts/train_seed_populations.py      # about half an hour of a core; picks up where it stopped

Each task's rate is chosen first, width by width, on seeds of its own (10,000 and up): the task's usual rate,
unless another gives a mean score that is higher by more than two standard errors over the same seeds. A rate
that suits one width and not another would otherwise look like a threshold of capacity.

The work is done in this order, and the table is kept after each block of seeds, so that an interrupted run
leaves a smaller whole one:

1. parity, 9 widths, 256 seeds, scored at 600, 1,200, 2,400 and 4,800 steps of one run
2. digits with 40 labels, 5 widths, 64 seeds, scored at 1,000 and 2,000 steps of one run
3. count to 64, width 16, 128 seeds, 10,000 steps; scored at 2,500 and 5,000 steps as well
4. count to 32, widths 8, 12 and 16, 128 seeds, 2,500 steps
5. count to 64, width 12, as in 3

A seed is the first weights and the data together. Settings of the tasks and of the training are those of
`assay.scaling.seed_bimodality`; the JSON beside the table holds the rates, their trials, and seconds of a core.
"""

from __future__ import annotations

import json
import math
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from assay.scaling.seed_bimodality import CountTask, ScarceDigits, SubsetParity, train_population
from resumable import add_rows

HERE = Path(__file__).resolve().parents[1] / "src" / "assay" / "scaling" / "measured"
TABLE, ABOUT = HERE / "seed-populations.csv", HERE / "seed-populations.json"
TRIAL_SEEDS = 10_000  # the first of the seeds that choose the rates


@dataclass(frozen=True)
class Population:
    """One task at some widths: its seeds, its steps, and how its rate is chosen."""

    task: SubsetParity | ScarceDigits | CountTask
    widths: tuple[int, ...]
    depth: int
    seeds: int
    block: int
    steps: int
    checkpoints: tuple[int, ...]
    rates: tuple[float, ...]
    trial_seeds: int
    trial_steps: int


COUNT_64, COUNT_32 = CountTask(), CountTask(numbers=32, max_test=32)
PLAN = [
    Population(SubsetParity(), (2, 3, 4, 5, 6, 8, 12, 16, 32), 1, 256, 256, 4800, (600, 1200, 2400),
               (0.1, 0.3, 1.0, 3.0), 64, 4800),
    Population(ScarceDigits(), (2, 4, 8, 16, 32), 1, 64, 64, 2000, (1000,), (0.03, 0.1, 0.3), 16, 2000),
    Population(COUNT_64, (16,), 2, 128, 32, 10_000, (2500, 5000), (0.003, 0.01, 0.03), 8, 2500),
    Population(COUNT_32, (8, 12, 16), 2, 128, 32, 2500, (), (0.003, 0.01, 0.03, 0.1), 8, 1000),
    Population(COUNT_64, (12,), 2, 128, 32, 10_000, (2500, 5000), (0.003, 0.01, 0.03), 8, 2500),
]


def chosen_rate(population: Population, width: int, about: dict) -> float:
    """The rate for a width, from its trials; these are kept in the JSON and made once."""
    name = f"{population.task.name}, width {width}"
    if name not in about["trials"]:
        start = time.process_time()
        mean_scores = {rate: trial(population, width, rate) for rate in population.rates}
        usual = population.task.rate
        best, gain = usual, 0.0
        for rate, scores in mean_scores.items():
            difference = scores - mean_scores[usual]
            error = difference.std(ddof=1) / math.sqrt(len(difference))
            if difference.mean() > max(2 * error, gain):
                best, gain = rate, difference.mean()
        about["trials"][name] = {
            "seeds": population.trial_seeds, "steps": population.trial_steps, "chosen": best,
            "mean_score": {str(rate): round(float(scores.mean()), 4) for rate, scores in mean_scores.items()},
            "seconds": round(time.process_time() - start, 1),
        }
        write(about)
        print(name, about["trials"][name], flush=True)
    return float(about["trials"][name]["chosen"])


def trial(population: Population, width: int, rate: float) -> np.ndarray:
    """Mean score over a task's tests of each trial seed."""
    seeds = range(TRIAL_SEEDS, TRIAL_SEEDS + population.trial_seeds)
    table = train_population(
        population.task, [width], [population.depth], seeds, population.trial_steps, rates={width: rate}
    )
    return table.groupby("seed")["score"].mean().to_numpy()


def train_block(population: Population, width: int, first: int, about: dict) -> None:
    """Train one block of seeds and add it to the table, unless the table has it."""
    task = population.task.name
    last = min(first + population.block, population.seeds)
    if TABLE.exists():
        done = pd.read_csv(TABLE)
        if ((done["task"] == task) & (done["scale"] == width) & (done["seed"] == last - 1)).any():
            return
    rate = chosen_rate(population, width, about)
    start = time.process_time()
    table = train_population(
        population.task, [width], [population.depth], range(first, last), population.steps,
        rates={width: rate}, checkpoints=population.checkpoints,
    )
    table["score"] = table["score"].round(5)
    table["loss"] = [float(f"{loss:.6g}") for loss in table["loss"]]
    add_rows(TABLE, table.to_dict("records"))
    seconds = time.process_time() - start
    name = f"{task}, width {width}"
    about["seconds"][name] = round(about["seconds"].get(name, 0) + seconds, 1)
    about["tasks"][task] = asdict(population.task)
    write(about)
    final = table[table["steps"] == population.steps].groupby("test", sort=False)["score"]
    print(name, f"seeds {first} to {last - 1}", f"{seconds:.0f} s", final.mean().round(3).to_dict(), flush=True)


def write(about: dict) -> None:
    ABOUT.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    torch.set_num_threads(1)
    empty: dict = {"trials": {}, "seconds": {}, "tasks": {}}
    about = json.loads(ABOUT.read_text(encoding="utf-8")) if ABOUT.exists() else empty
    about |= {
        "python": platform.python_version(), "torch": torch.__version__,
        "first_trial_seed": TRIAL_SEEDS,
    }
    write(about)
    for population in PLAN:
        for width in population.widths:
            for first in range(0, population.seeds, population.block):
                train_block(population, width, first, about)


if __name__ == "__main__":
    main()
