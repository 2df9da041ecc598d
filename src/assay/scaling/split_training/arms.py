"""The arms of the study: the law, its forms one by one, the laws of others, and a law that has seen shuffled losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import pandas as pd

from assay.scaling.split_training.forms import PEERS, Array, Rows
from assay.scaling.split_training.law import CANDIDATES, SplitLaw, read_rows
from assay.scaling.split_training.search import search

LAW, SHUFFLED = "split-law", "shuffled"
ONE_FORM = {f"split-law-{form}": form for form in CANDIDATES}
WITH_SCRATCH, WITHOUT_SCRATCH = "split-law-with-scratch", "split-law-without-scratch"
OTHERS = tuple(PEERS)
OBJECTIVES = ("huber", "mse")
FULL, SPECIALIST_ONLY = "full", "0"
RULES = (FULL, SPECIALIST_ONLY, "0.5", "0.9")


class Law(Protocol):
    """What predicts the losses of rows N, D, Dp."""

    def predict(self, X: pd.DataFrame) -> Array: ...


class PeerLaw:
    """A formula of others, fitted as the law is: from as many starts, by the same search and objective."""

    def __init__(self, form: str, loss: str, n_starts: int, random_state: int) -> None:
        self.form = PEERS[form]()
        self.loss, self.n_starts, self.random_state = loss, n_starts, random_state

    def fit(self, X: pd.DataFrame, y: pd.Series) -> PeerLaw:
        table, losses = read_rows(X), np.asarray(y, dtype=float)
        rows = Rows.of(table)
        starts = self.form.starts(rows, losses, self.n_starts, self.random_state)
        found = search(
            lambda x: self.form.evaluate(x, rows), np.log(losses), starts, self.form.bounds(), self.loss, 1e-3
        )
        self.x, self.cost = found.x, found.cost
        return self

    def predict(self, X: pd.DataFrame) -> Array:
        return np.exp(self.form.evaluate(self.x, Rows.of(read_rows(X)))[0])


def fitted(
    arm: str, rows: pd.DataFrame, starts: int, seed: int, objective: str = "huber", form: str = "auto"
) -> Law:
    """The law of an arm, fitted to rows of one domain; `form` is that of arms that are not named after one."""
    if arm in PEERS:
        law: PeerLaw | SplitLaw = PeerLaw(arm, objective, starts, seed)
    else:
        law = SplitLaw(ONE_FORM.get(arm, form), loss=objective, n_starts=starts, random_state=seed)
    return law.fit(rows, rows["loss"])


def averaged(arm: str, rows: pd.DataFrame, shuffles: int, seed: int, use: Callable[[pd.DataFrame], Array]) -> Array:
    """What `use` makes of the rows; of shuffled losses, the mean over several shuffles."""
    if arm != SHUFFLED:
        return use(rows)
    rng = np.random.default_rng([seed, 1])
    drawn = [use(rows.assign(loss=rng.permutation(rows["loss"]))) for _ in range(shuffles)]
    return np.mean(drawn, axis=0)
