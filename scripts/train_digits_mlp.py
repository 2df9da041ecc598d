"""Make `digits-mlp-runs`: 2,000 small networks trained on scikit-learn's digits, in four successive recipes.

    python scripts/train_digits_mlp.py                      # a few minutes of a core; picks up where it stopped
    python scripts/train_digits_mlp.py --jobs 2 --index 0   # one of two scripts that share the work

Each period of 500 networks is one recipe, fixed here before any network was trained:

1. plain stochastic gradient descent, rate 0.003 to 0.3
2. Nesterov momentum 0.9, rate 0.01 to 0.1
3. Adam, rate 0.001 to 0.03
4. Adam, rate 0.001 to 0.03, and pictures shifted by up to one pixel in each direction

A period draws 25 base models: a width of 2 to 128 units (log-uniform) and one or two hidden layers.
Each base model is trained 20 times. A training draws its epochs (1 to 64, log-uniform), its training
examples (32 to 898 of the training half, log-uniform), its rate (log-uniform in the recipe's range) and
its label noise (none in half of the trainings, else up to 0.4 of the labels replaced by a random class).
Batches have 32 examples, the rate is constant, hidden units are rectified, weights start by He's rule.
Compute is 6 * parameters * examples seen. Accuracy and loss are of the fixed test half (899 pictures),
at the end of training: nothing is chosen by them.

The 20 trainings of a base model run side by side in one tensor program; one that is finished leaves it.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import sklearn
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

PERIODS = 4
FAMILIES = 25  # base models a period
TRAININGS = 20  # a base model
BATCH = 32
WIDTHS, EPOCHS, TRAIN_SIZES, MOST_NOISE = (2, 128), (1, 64), (32, 898), 0.4
RECIPES = {
    1: ("sgd", (0.003, 0.3)), 2: ("momentum", (0.01, 0.1)), 3: ("adam", (0.001, 0.03)),
    4: ("adam-shift", (0.001, 0.03)),
}
MOMENTUM, BETAS, EPSILON = 0.9, (0.9, 0.999), 1e-8
SEED = 2026

HERE = Path(__file__).resolve().parents[1] / "src" / "assay" / "scaling" / "measured"
RUNS, ABOUT = HERE / "digits-mlp-runs.csv", HERE / "digits-mlp-runs.json"


@dataclass(frozen=True)
class Family:
    """A base model: one shape under one recipe, with the drawn settings of its trainings."""

    period: int
    index: int
    width: int
    depth: int
    epochs: np.ndarray
    train_sizes: np.ndarray
    rates: np.ndarray
    noises: np.ndarray

    @property
    def name(self) -> str:
        return f"p{self.period}-w{self.width}-d{self.depth}"

    @property
    def optimiser(self) -> str:
        return RECIPES[self.period][0]

    @property
    def shapes(self) -> list[tuple[int, int]]:
        sizes = [64, *[self.width] * self.depth, 10]
        return list(pairwise(sizes))

    @property
    def params(self) -> int:
        return sum((inputs + 1) * outputs for inputs, outputs in self.shapes)


def families(period: int) -> list[Family]:
    """The period's base models, no shape twice."""
    rng = np.random.default_rng([SEED, period])
    shapes: list[tuple[int, int]] = []
    while len(shapes) < FAMILIES:
        shape = round(log_uniform(rng, *WIDTHS)), int(rng.integers(1, 3))
        if shape not in shapes:
            shapes.append(shape)
    low, high = RECIPES[period][1]
    return [
        Family(
            period, index, width, depth,
            epochs=np.round(log_uniform(rng, *EPOCHS, TRAININGS)).astype(int),
            train_sizes=np.round(log_uniform(rng, *TRAIN_SIZES, TRAININGS)).astype(int),
            rates=log_uniform(rng, low, high, TRAININGS),
            noises=np.where(rng.random(TRAININGS) < 0.5, 0.0, rng.uniform(0, MOST_NOISE, TRAININGS)),
        )
        for index, (width, depth) in enumerate(shapes)
    ]


def log_uniform(rng: np.random.Generator, low: float, high: float, size: int | None = None):  # type: ignore[no-untyped-def]
    return np.exp(rng.uniform(np.log(low), np.log(high), size))


@dataclass(frozen=True)
class Pictures:
    """The digits, scaled by the training half: `train` holds its nine one-pixel shifts, the fifth unshifted."""

    train: torch.Tensor  # (9, 898, 64)
    train_labels: np.ndarray
    test: torch.Tensor  # (899, 64)
    test_labels: torch.Tensor


def load_pictures() -> Pictures:
    digits = load_digits()
    train, test, train_labels, test_labels = train_test_split(
        digits.images / 16, digits.target, test_size=0.5, random_state=SEED, stratify=digits.target
    )
    padded = np.pad(train, ((0, 0), (1, 1), (1, 1)))
    shifts = np.stack([padded[:, i:i + 8, j:j + 8] for i in range(3) for j in range(3)]).reshape(9, len(train), 64)
    mean, spread = train.mean(), train.std()
    scaled = [torch.from_numpy(((x - mean) / spread).astype(np.float32)) for x in (shifts, test.reshape(-1, 64))]
    return Pictures(scaled[0], train_labels, scaled[1], torch.from_numpy(test_labels))


def train_family(family: Family, pictures: Pictures) -> list[dict]:
    """Train a base model's networks side by side; one row a network."""
    start = time.process_time()
    steps = np.ceil(family.epochs * family.train_sizes / BATCH).astype(int)
    order = np.argsort(-steps, kind="stable")  # the longest first: finished networks are cut off at the end
    streams = [Stream(family, int(i), int(steps[i]), pictures) for i in order]
    generator = torch.Generator().manual_seed(SEED * 10_000 + family.period * 100 + family.index)
    weights = []
    for inputs, outputs in family.shapes:
        drawn = torch.randn(TRAININGS, inputs, outputs, generator=generator) * (2 / inputs) ** 0.5
        weights += [drawn, torch.zeros(TRAININGS, 1, outputs)]
    rates = torch.from_numpy(family.rates[order].astype(np.float32)).reshape(-1, 1, 1)
    state = [[torch.zeros_like(w), torch.zeros_like(w)] for w in weights]
    results: dict[int, tuple[float, float]] = {}
    active = TRAININGS
    for step in range(int(steps.max())):
        batches = [stream.batch(step) for stream in streams[:active]]
        inputs, labels = torch.stack([b[0] for b in batches]), torch.stack([b[1] for b in batches])
        leaves = [w[:active].clone().requires_grad_() for w in weights]
        loss = cross_entropy(forward(leaves, inputs), labels).sum()
        gradients = torch.autograd.grad(loss, leaves)
        for weight, gradient, memory in zip(weights, gradients, state, strict=True):
            update(family.optimiser, weight[:active], gradient, [m[:active] for m in memory], rates[:active], step)
        while active and steps[order[active - 1]] == step + 1:
            active -= 1
            results[int(order[active])] = score([w[active:active + 1] for w in weights], pictures)
    seconds = time.process_time() - start
    return [
        {
            "run": f"{family.name}-{i:02d}", "period": family.period,
            "order": (family.period - 1) * FAMILIES * TRAININGS + family.index * TRAININGS + i + 1,
            "family": family.name, "width": family.width, "depth": family.depth, "epochs": int(family.epochs[i]),
            "rate": float(f"{family.rates[i]:.5g}"), "optimiser": family.optimiser,
            "label_noise": round(float(family.noises[i]), 4), "train_size": int(family.train_sizes[i]),
            "params": family.params, "examples": int(steps[i] * BATCH),
            "flops": int(6 * family.params * steps[i] * BATCH),
            "accuracy": round(results[i][0], 6), "loss": round(results[i][1], 6),
            "seconds": round(seconds * steps[i] / steps.sum(), 3),
        }
        for i in range(TRAININGS)
    ]


class Stream:
    """The batches of one training: its own examples, in an order drawn anew each epoch, with its own labels."""

    def __init__(self, family: Family, training: int, steps: int, pictures: Pictures) -> None:
        rng = np.random.default_rng([SEED, family.period, family.index, training])
        chosen = rng.permutation(len(pictures.train_labels))[: family.train_sizes[training]]
        labels = pictures.train_labels[chosen].copy()
        wrong = rng.random(len(labels)) < family.noises[training]
        labels[wrong] = rng.integers(10, size=int(wrong.sum()))
        epochs = -(-steps * BATCH // len(chosen))
        seen = np.concatenate([rng.permutation(len(chosen)) for _ in range(epochs)])[: steps * BATCH]
        shift = rng.integers(9, size=len(seen)) if family.optimiser == "adam-shift" else np.full(len(seen), 4)
        self.rows = torch.from_numpy(chosen[seen]).reshape(steps, BATCH)
        self.shift = torch.from_numpy(shift).reshape(steps, BATCH)
        self.labels = torch.from_numpy(labels[seen]).reshape(steps, BATCH)
        self.pictures = pictures.train

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.pictures[self.shift[step], self.rows[step]], self.labels[step]


def forward(weights: list[torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
    """Logits (networks, examples, 10) of networks that share a shape; weights and biases alternate."""
    hidden = inputs
    for matrix, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        hidden = torch.relu(torch.baddbmm(bias, hidden, matrix))
    return torch.baddbmm(weights[-1], hidden, weights[-2])


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean loss of each network, in nats."""
    picked = torch.log_softmax(logits, dim=-1).gather(-1, labels.unsqueeze(-1))
    return -picked.mean(dim=(1, 2))


def update(
    optimiser: str, weight: torch.Tensor, gradient: torch.Tensor, memory: list[torch.Tensor], rates: torch.Tensor,
    step: int,
) -> None:
    """One step in place, each network at its own rate (which `torch.optim` has no place for)."""
    if optimiser == "sgd":
        weight -= rates * gradient
    elif optimiser == "momentum":
        memory[0].mul_(MOMENTUM).add_(gradient)
        weight -= rates * (gradient + MOMENTUM * memory[0])
    else:
        for moment, beta, value in zip(memory, BETAS, (gradient, gradient * gradient), strict=True):
            moment.mul_(beta).add_(value, alpha=1 - beta)
        first, second = (m / (1 - beta ** (step + 1)) for m, beta in zip(memory, BETAS, strict=True))
        weight -= rates * first / (second.sqrt() + EPSILON)


def score(weights: list[torch.Tensor], pictures: Pictures) -> tuple[float, float]:
    """Accuracy and loss of one network on the test half; a network that ran away has the loss NaN."""
    logits = forward(weights, pictures.test.unsqueeze(0))
    loss = float(cross_entropy(logits, pictures.test_labels.unsqueeze(0))[0])
    hits = logits[0].argmax(dim=-1) == pictures.test_labels
    return float(hits.float().mean()), loss if np.isfinite(loss) else float("nan")


def finished() -> set[str]:
    return set(pd.read_csv(RUNS)["family"]) if RUNS.exists() else set()


def add_rows(rows: list[dict]) -> None:
    """Append under a lock, sorted: write under another name and rename, so that a stop leaves a whole table."""
    RUNS.parent.mkdir(parents=True, exist_ok=True)
    with open(RUNS.parent / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        table = pd.DataFrame(rows)
        if RUNS.exists():
            table = pd.concat([pd.read_csv(RUNS), table]).sort_values("order")
        part = RUNS.with_suffix(f".{os.getpid()}.part")
        table.to_csv(part, index=False)
        part.replace(RUNS)


def write_about() -> None:
    about = {
        "python": platform.python_version(), "torch": torch.__version__, "scikit-learn": sklearn.__version__,
        "recipes": {str(period): {"optimiser": name, "rates": rates} for period, (name, rates) in RECIPES.items()},
        "base_models_a_period": FAMILIES, "trainings_a_base_model": TRAININGS, "batch": BATCH, "widths": WIDTHS,
        "depths": [1, 2], "epochs": EPOCHS, "train_sizes": TRAIN_SIZES, "most_label_noise": MOST_NOISE,
        "test_pictures": 899, "flops": "6 * params * examples", "seed": SEED,
    }
    ABOUT.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1, help="how many of these scripts share the work")
    parser.add_argument("--index", type=int, default=0, help="which of them this one is")
    options = parser.parse_args()
    torch.set_num_threads(1)
    pictures = load_pictures()
    write_about()
    plan = [family for period in range(1, PERIODS + 1) for family in families(period)]
    for family in plan[options.index::options.jobs]:
        if family.name in finished():
            continue
        rows = train_family(family, pictures)
        add_rows(rows)
        best = max(row["accuracy"] for row in rows)
        print(family.name, f"best {best:.3f}", f"{sum(row['seconds'] for row in rows):.1f} s", flush=True)


if __name__ == "__main__":
    main()
