"""Response tables: our own tiny language models, the Gemstone models, the CHAMP problems.

A table holds what a study needs of the checkpoints of several models and the questions of several benchmarks: the
responses, which model and curve (data recipe) a checkpoint belongs to, its compute, and how the models are split into
those that calibrate and those that are held out. Checkpoints of one model always stay together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from assay.datasets import load_dataset

__all__ = [
    "CHAMP", "GEMSTONES", "HOME", "READ", "SLICE", "TITLES", "Pairing", "ResponseTable", "load_table",
    "read_champ_answers",
]

HOME, SLICE, GEMSTONES, CHAMP = "tiny-lm-items", "irsl-smoke-items", "gemstones-items", "champ-answers"
TITLES = {
    HOME: "our 30 tiny models", SLICE: "a slice of our tiny models", GEMSTONES: "the 20 Gemstone models",
    CHAMP: "the four models of CHAMP",
}
READ = {GEMSTONES: (GEMSTONES, "gemstones")}
"""Registered sets that a table is made of, where it is not one alone."""

CHARACTERS_A_TOKEN = 4.0
ACCURACY = {
    "arcc": "acc_arc_challenge", "arce": "acc_arc_easy", "openbook": "acc_openbookqa", "piqa": "acc_piqa",
    "hellaswag": "acc_hellaswag",
}
"""Columns of the table of Gemstone runs."""

CALIBRATING_SHARE = 0.7


@dataclass(frozen=True)
class Pairing:
    """Which benchmark's ability predicts which other: inside one construct, and across two."""

    within: tuple[str, str]
    between: tuple[str, str]


PAIRINGS = {
    HOME: Pairing(("code", "numpy"), ("code", "reference")),
    SLICE: Pairing(("code", "numpy"), ("code", "reference")),
    GEMSTONES: Pairing(("arce", "arcc"), ("piqa", "openbook")),
}


@dataclass(frozen=True, eq=False)
class ResponseTable:
    """Responses of checkpoints to questions.

    Attributes
    ----------
    p : ndarray, shape (checkpoints, questions)
        Responses in [0, 1].
    right : ndarray, shape (checkpoints, questions), or None
        1 where the model chose the right option.
    model, curve : ndarray of str, shape (checkpoints,)
        The independent unit, and what a law is fitted to (a data recipe; a model where there is one recipe).
    size, flops, step : ndarray, shape (checkpoints,)
    source : ndarray of str, shape (questions,)
        Benchmark of each question.
    accuracy : ndarray, shape (checkpoints, benchmarks)
        Share of a benchmark's questions answered rightly, in the order of `sources`.
    folds : tuple of tuple of str
        The curves or models that calibrate in each split; the others are held out.
    fold_by : {"curve", "model"}
    """

    name: str
    p: np.ndarray
    right: np.ndarray | None
    model: np.ndarray
    curve: np.ndarray
    size: np.ndarray
    flops: np.ndarray
    step: np.ndarray
    source: np.ndarray
    accuracy: np.ndarray
    folds: tuple[tuple[str, ...], ...]
    fold_by: str

    @property
    def sources(self) -> list[str]:
        return list(dict.fromkeys(self.source.tolist()))

    @property
    def pairing(self) -> Pairing:
        return PAIRINGS[self.name]

    def calibrating(self, split: int) -> np.ndarray:
        """Mask of the checkpoints that calibrate in a split."""
        return np.isin(getattr(self, self.fold_by), self.folds[split])

    def of(self, source: str) -> np.ndarray:
        """Numbers of a benchmark's questions."""
        return np.flatnonzero(self.source == source)

    def rescaled(self, characters: float) -> ResponseTable:
        """Losses per token turned into probabilities with another number of characters a token."""
        return replace(self, p=self.p ** (CHARACTERS_A_TOKEN / characters))


def load_table(name: str) -> ResponseTable:
    """The table of a registered data set."""
    arrays = load_dataset(name)
    if name in (HOME, SLICE):
        return _own(name, arrays)
    if name == GEMSTONES:
        return _gemstones(arrays)
    return _champ(arrays)


def _own(name: str, arrays: dict[str, np.ndarray]) -> ResponseTable:
    """Thirty models, six recipes by five widths; two recipes calibrate and four are held out, all pairs in turn."""
    recipe, source = arrays["recipe"].astype(str), arrays["source"].astype(str)
    right = (arrays["choice"] == 0).astype(float)
    model = np.array([f"{width} {kind}" for width, kind in zip(arrays["width"], recipe, strict=True)])
    return ResponseTable(
        name, arrays["p"].astype(float), right, model, recipe,
        arrays["width"].astype(float), arrays["flops"].astype(float), arrays["step"].astype(float),
        source, _by_benchmark(right, source), _recipe_pairs(list(dict.fromkeys(recipe.tolist()))), "curve",
    )


def _by_benchmark(right: np.ndarray, source: np.ndarray) -> np.ndarray:
    return np.stack([right[:, source == name].mean(axis=1) for name in dict.fromkeys(source.tolist())], axis=1)


def _recipe_pairs(recipes: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """All pairs, the first three of which hold each recipe once: in those each is tested twice.

    The first half of the list with the second, shifted: recipes that are alike do not calibrate together.
    """
    half = len(recipes) // 2
    rounds = [
        (recipes[i], recipes[half + (i + shift) % half]) for shift in range(half) for i in range(half)
    ]
    inside = [(part[i], part[j]) for part in (recipes[:half], recipes[half:]) for i in range(half)
              for j in range(i + 1, half)]
    return tuple(rounds + inside)


def _gemstones(arrays: dict[str, np.ndarray]) -> ResponseTable:
    """Fourteen models calibrate and six are held out, drawn anew in each of twenty splits."""
    model, source = arrays["model"].astype(str), arrays["bench"].astype(str)
    table = load_dataset("gemstones").set_index(["model", "step"])
    own = table.loc[list(zip(model, arrays["step"].tolist(), strict=True))]
    params = own["params"].to_numpy(dtype=float)
    accuracy = own[[ACCURACY[name] for name in dict.fromkeys(source.tolist())]].to_numpy(dtype=float)
    names = np.unique(model)
    folds = [
        tuple(np.random.default_rng([41, split]).permutation(names)[: round(CALIBRATING_SHARE * len(names))].tolist())
        for split in range(20)
    ]
    return ResponseTable(
        GEMSTONES, np.exp(-arrays["loss"].astype(float) / CHARACTERS_A_TOKEN), None, model, model,
        params, 6.0 * params * arrays["step"] * 2048.0**2,
        arrays["step"].astype(float), source, accuracy, tuple(folds), "model",
    )


def _champ(arrays: dict[str, Any]) -> ResponseTable:
    """Three models calibrate, the fourth is held out; its prompts are what checkpoints are elsewhere."""
    model = arrays["model"].astype(str)
    names = list(dict.fromkeys(model.tolist()))
    right = arrays["right"].astype(float)
    nothing = np.full(len(model), np.nan)
    folds = tuple(tuple(name for name in names if name != held_out) for held_out in names)
    return ResponseTable(
        CHAMP, right, right, model, model, nothing, nothing, np.arange(len(model), dtype=float),
        np.full(right.shape[1], "champ"), right.mean(axis=1, keepdims=True), folds, "model",
    )


REPEATED_PROMPT = "No C w/o H"  # holds the same texts as 0-Shot
WHOLE = re.compile(r"-?[\d,]+")
INTEGER = re.compile(r"(?<![\w.])-?\d+(?![\w]|\.\d)")


def read_champ_answers(path: Path) -> dict[str, np.ndarray]:
    """Right and wrong answers to the problems of champ-dataset's `v0.json` whose answer is one whole number.

    A system is right where the last whole number of its closing sentence is the answer.

    Returns
    -------
    dict with
        right : (systems, problems) array of 0 and 1
        model, prompt : (systems,) str arrays
    """
    problems = json.loads(Path(path).read_text(encoding="utf-8"))["problems"]
    taken = [one for one in problems.values() if WHOLE.fullmatch(one["_answer"] or "")]
    systems = [name for name in taken[0]["conversations"] if not name.endswith(f"|{REPEATED_PROMPT}")]
    right = [
        [_last_integer(one["conversations"][name]["messages"][-1]["text"] or "") == _integer(one["_answer"])
         for one in taken]
        for name in systems
    ]
    parts = [name.partition("|") for name in systems]
    return {
        "right": np.array(right, dtype=float), "model": np.array([p[0] for p in parts]),
        "prompt": np.array([p[2] for p in parts]),
    }


def _last_integer(sentence: str) -> int | None:
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", sentence.replace("\u2212", "-"))
    found = INTEGER.findall(text)
    return int(found[-1]) if found else None


def _integer(answer: str) -> int:
    return int(answer.replace(",", ""))
