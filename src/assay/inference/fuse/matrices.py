"""Score matrices of the study: items, verifiers, the truth, and what each kind of arm is given of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.datasets import fetch, load_dataset
from assay.errors import InputError
from assay.inference.fuse.champ import champ_groups, champ_models, read_champ
from assay.inference.fuse.selection import group_codes

__all__ = ["ScoreMatrix", "matrix", "read_bbh", "read_judgebench"]

Array = NDArray[np.float64]

JUDGES = ("grm_gemma_2b", "skywork_gemma_27b", "skywork_llama_8b", "internlm2_20b", "internlm2_7b", "o1_mini_judge")


@dataclass(frozen=True)
class ScoreMatrix:
    """One set of items with the scores of several verifiers.

    Attributes
    ----------
    scores : (n, M) array
        What FUSE and the means are given.
    labels : (n,) int array
        1 for a right item.
    groups : (n,) int array
        Query of each item, 0, 1, 2 ...
    domains : (n,) int array
        Domain of each item's query; all 0 where there is but one.
    votes : (n, K) array
        What vote counting, Dawid-Skene and Jaffe's estimator are given: 0, 1, or NaN for an abstention; no
        columns where they take the scores at the median instead.
    features : (n, F) array
        What the supervised arms are given.
    length : (n,) array
        Length of each response; no entries where it is not known.
    """

    scores: Array
    labels: NDArray[np.intp]
    groups: NDArray[np.intp]
    domains: NDArray[np.intp]
    votes: Array
    features: Array
    length: Array

    def save(self, path: Path) -> None:
        """Write all arrays into one npz file."""
        np.savez(path, **self.__dict__)

    @classmethod
    def load(cls, path: Path) -> ScoreMatrix:
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as arrays:
            return cls(**dict(arrays))

    def without(self, verifier: int) -> ScoreMatrix:
        """The same items with one verifier fewer; what the other arms are given stays as it is."""
        scores = np.delete(self.scores, verifier, axis=1)
        return replace(self, scores=scores)

    @property
    def n_queries(self) -> int:
        return int(self.groups.max()) + 1

    @property
    def has_choices(self) -> bool:
        """Whether there is a query with two items or more, to choose between."""
        return self.n_queries < len(self.groups)


def matrix(name: str) -> ScoreMatrix:
    """The score matrix of a studied data set."""
    if name == "champ-wide":
        return _champ(read_champ(fetch("champ"), wide=True))
    return BUILDERS[name](load_dataset(name))


def read_judgebench(path: Path) -> dict[str, Any]:
    """Scores, labels, pair, source and length of the JudgeBench responses."""
    import pandas as pd

    table = pd.read_csv(path)
    return {
        "scores": table[list(JUDGES)].to_numpy(dtype=float), "labels": table["correct"].to_numpy(),
        "groups": table["pair_id"].to_numpy(dtype=str), "domains": table["source"].to_numpy(dtype=str),
        "length": table["n_chars"].to_numpy(dtype=float),
    }


def read_bbh(path: Path) -> dict[str, Any]:
    """Option scores of five models on the multiple-choice questions whose label is certain, an option a row."""
    import pandas as pd

    table = pd.read_csv(path)
    table = table[table["label_status"] != "ambiguous"]
    models = list(dict.fromkeys(column.partition(":")[0] for column in table.columns if ":" in column))
    rows: dict[str, list[Any]] = {"scores": [], "labels": [], "groups": [], "domains": []}
    for question in table.to_dict("records"):
        for option in range(int(question["n_options"])):
            rows["scores"].append([float(question[f"{model}:{option}"]) for model in models])
            rows["labels"].append(int(option == question["label"]))
            rows["groups"].append(f"{question['task']}/{question['item']}")
            rows["domains"].append(question["task"])
    return {key: np.array(values) for key, values in rows.items()}


def from_scores(
    scores: Array, labels: NDArray[np.intp], groups: NDArray, domains: NDArray | None = None,
    length: Array | None = None,
) -> ScoreMatrix:
    """A matrix whose arms are all given the same scores."""
    n = len(scores)
    return ScoreMatrix(
        scores=scores, labels=np.asarray(labels, dtype=np.intp), groups=group_codes(groups, n),
        domains=np.zeros(n, dtype=np.intp) if domains is None else group_codes(domains, n),
        votes=np.empty((n, 0)), features=scores, length=np.empty(0) if length is None else length,
    )


def _champ(data: dict[str, Any]) -> ScoreMatrix:
    votes, systems = data["votes"], data["systems"]
    scores, _ = champ_groups(votes, systems)
    n = len(votes)
    return ScoreMatrix(
        scores=scores, labels=data["labels"].astype(np.intp), groups=group_codes(data["problem"], n),
        domains=group_codes(data["category"], n), votes=votes, features=champ_models(votes, systems),
        length=np.empty(0),
    )


def _pool(pool: Any) -> ScoreMatrix:
    return from_scores(pool.scores, pool.labels, pool.groups)


def _judgebench(data: dict[str, Any]) -> ScoreMatrix:
    return from_scores(data["scores"], data["labels"], data["groups"], data["domains"], data["length"])


def _bbh(data: dict[str, Any]) -> ScoreMatrix:
    """Scores are centred within each question: the questions' own levels say nothing of which option is right."""
    codes = group_codes(data["groups"], len(data["groups"]))
    size = np.bincount(codes)
    centred = np.column_stack([
        column - (np.bincount(codes, column) / size)[codes] for column in data["scores"].T
    ])
    return from_scores(centred, data["labels"], codes, data["domains"])


def read_file(path: Path) -> ScoreMatrix:
    """A user's CSV: `query_id`, `correct` (0 or 1), and a column of numbers for each verifier."""
    from assay.inference.fuse.files import read_scores

    table = read_scores(path, query="query_id", label="correct")
    if table.labels is None or table.groups is None:
        raise InputError(f"{path.name}: the columns query_id and correct are both needed to measure claims")
    if table.labels.min() == table.labels.max():
        raise InputError(f"{path.name}: column correct holds one value only: right and wrong items are needed")
    return from_scores(table.scores, table.labels, table.groups)


BUILDERS: dict[str, Callable[[Any], ScoreMatrix]] = {
    "champ": _champ, "champ-smoke": _champ, "digits-pool": _pool, "breast-cancer-pool": _pool,
    "judgebench": _judgebench, "bbh": _bbh,
}
