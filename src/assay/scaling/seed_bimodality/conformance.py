"""Small instances and inputs for the conformance checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from assay.datasets import load_dataset
from assay.scaling.seed_bimodality.dip import dip_pvalue, dip_statistic
from assay.scaling.seed_bimodality.distribution import SeedDistribution, seeds_needed
from assay.scaling.seed_bimodality.populations import train_population
from assay.scaling.seed_bimodality.scaling_curves import RandomScaling
from assay.scaling.seed_bimodality.tasks import CountTask, ReverseAdditionIndexHints, ScarceDigits, SubsetParity
from assay.scaling.seed_bimodality.trends import breakthroughness, linearity

NAN = float("nan")


def _table() -> pd.DataFrame:
    table = load_dataset("seed-populations-smoke")
    return table.loc[table["steps"] == 4800, ["scale", "seed", "score", "loss"]].reset_index(drop=True)


def _fit(table: pd.DataFrame, **how: Any) -> Any:
    return lambda: RandomScaling().fit(table, **how)


def _spoilt(column: str, value: Any) -> pd.DataFrame:
    table = _table()
    table[column] = table[column].astype(object) if isinstance(value, str) else table[column]
    table.loc[5, column] = value
    return table


def _sample() -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.concatenate([rng.beta(2, 20, 35), rng.beta(30, 3, 25)])


def _curves() -> dict[str, Any]:
    return {"y": np.array([[0.1, 0.1, 0.2, 0.8, 0.9], [0.5, 0.4, 0.2, 0.1, 0.3]])}


def _bad_curves(trend: Any) -> list[Any]:
    return [
        lambda: trend([0.1, 0.2]), lambda: trend([0.1, NAN, 0.3]), lambda: trend("steep"),
        lambda: trend(np.zeros((2, 3, 4))), lambda: trend([[0.1, 0.2, 0.3], [0.1, 0.2]]),
    ]


CHECKS = {
    "RandomScaling": {
        "make": lambda: RandomScaling(success=0.9, items=2000),
        "fit": lambda: (_table(),),
        "use": lambda found, table: (
            found.per_scale_.to_dict("list"), found.threshold_scale_, found.majority_scale_, found.sample_paths(20)
        ),
        "bad": [
            _fit(_table().drop(columns="seed")), _fit(_spoilt("score", 1.5)), _fit(_spoilt("score", "good")),
            _fit(_spoilt("scale", -1)), _fit(pd.concat([_table(), _table()[:1]])), _fit(_table()[:64]),
            _fit(_table(), loss="nll"), lambda: RandomScaling().fit(np.zeros((3, 3))),
            lambda: RandomScaling(success=2.0).fit(_table()), lambda: RandomScaling().fit(_table()).sample_paths(0),
        ],
        "excuse": {"scikit-learn": "its battery feeds a matrix of features; this takes a table of seeds"},
    },
    "SeedDistribution": {
        "make": SeedDistribution,
        "fit": lambda: (_sample(),),
        "use": lambda found, scores: (found.dip_, found.dip_p_, found.weight_, found.means_, found.n_modes_),
        "tolerance": 0.01,
        "bad": [
            lambda: SeedDistribution().fit([]), lambda: SeedDistribution().fit([NAN, NAN]),
            lambda: SeedDistribution().fit([0.1, np.inf]), lambda: SeedDistribution("accuracy").fit([0.1, 1.2]),
            lambda: SeedDistribution().fit(np.zeros((3, 3))), lambda: SeedDistribution("percent").fit(_sample()),
            lambda: SeedDistribution(items=0).fit(_sample()), lambda: SeedDistribution(alpha=2).fit(_sample()),
            lambda: SeedDistribution().fit(["a", "b"]),
        ],
        "excuse": {"scikit-learn": "its battery feeds a matrix of features; this takes one score a seed"},
    },
    "breakthroughness": {"inputs": _curves, "bad": _bad_curves(breakthroughness)},
    "linearity": {"inputs": _curves, "bad": _bad_curves(linearity)},
    "seeds_needed": {
        "inputs": lambda: {"weight": 0.3},
        "bad": [lambda: seeds_needed(1.2), lambda: seeds_needed(0.5, 0), lambda: seeds_needed(0.5, level=1)],
    },
    "dip_statistic": {
        "inputs": lambda: {"x": _sample()},
        "bad": [lambda: dip_statistic([]), lambda: dip_statistic([0.1, NAN]), lambda: dip_statistic(np.zeros((2, 2)))],
    },
    "dip_pvalue": {
        "inputs": lambda: {"dip": 0.05, "n": 60},
        "bad": [lambda: dip_pvalue(0.05, 9), lambda: dip_pvalue(NAN, 50), lambda: dip_pvalue(-1.0, 50)],
    },
    "train_population": {
        "inputs": lambda: {"task": "parity", "widths": [3], "seeds": 2, "steps": 10},
        "bad": [
            lambda: train_population("sorting"), lambda: train_population("parity", [0], seeds=1, steps=1),
            lambda: train_population("parity", [2], seeds=[1, 1], steps=1), lambda: train_population("parity", []),
            lambda: train_population("parity", [2], seeds=1, steps=0), lambda: train_population(3),  # type: ignore[arg-type]
            lambda: train_population("parity", [2], seeds=1, steps=5, checkpoints=[9]),
            lambda: train_population("parity", [2], seeds=1, steps=5, rates={2: -1.0}),
        ],
    },
    "CountTask": {
        "inputs": lambda: {"max_train": 4, "max_test": 8, "numbers": 16},
        "bad": [lambda: CountTask(0), lambda: CountTask(20, 10), lambda: CountTask(numbers=10)],
    },
    "ReverseAdditionIndexHints": {
        "inputs": lambda: {"max_train": 2, "max_test": 3},
        "bad": [
            lambda: ReverseAdditionIndexHints(0), lambda: ReverseAdditionIndexHints(3, 8),
            lambda: ReverseAdditionIndexHints(4, 3),
        ],
    },
    "ScarceDigits": {
        "inputs": lambda: {"labelled": 30},
        "bad": [lambda: ScarceDigits(0), lambda: ScarceDigits(899), lambda: ScarceDigits(-3)],
    },
    "SubsetParity": {
        "inputs": lambda: {"bits": 8, "relevant": 2},
        "bad": [lambda: SubsetParity(bits=7), lambda: SubsetParity(relevant=0), lambda: SubsetParity(8, 9)],
    },
}
