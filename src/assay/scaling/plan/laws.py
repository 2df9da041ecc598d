"""The laws that a table's columns allow: those of today, and those that methods of the catalogue bring.

A method of the area brings a law by a public name of kind `law` whose class is a `LossLaw`. No method is named here.
What a law must be told to serve any table stands in its class, as `plan_settings`.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone

from assay import catalogue
from assay.errors import InputError, MissingExtra, nearest
from assay.scaling.fit import ChinchillaLaw, KaplanLaw, LossLaw, PowerLaw
from assay.scaling.plan.runs import Runs, prepare_runs, thinned
from assay.scaling.tables import COLUMNS

__all__ = ["Candidate", "allowed_laws", "candidates", "fit_law", "optimum", "screen"]

MOST_ROWS = 300  # that a method's law is fitted to: its formula may cost a thousand times Chinchilla's


@dataclass(frozen=True)
class Candidate:
    """A law that may be fitted: its name, an unfitted instance, and the most rows that it is given."""

    name: str
    law: LossLaw
    most_rows: int | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.law.columns)

    @property
    def allocates(self) -> bool:
        """Whether the law chooses a size under a budget."""
        return hasattr(self.law, "optimal")

    @property
    def needs_seq_len(self) -> bool:
        return self.allocates and "seq_len" in signature(self.law.optimal).parameters  # type: ignore[attr-defined]


def allowed_laws(
    runs: Path | pd.DataFrame, *, columns: Mapping[str, str] | None = None, seq_len: float | None = None,
    vocab: int | None = None,
) -> pd.DataFrame:
    """Which laws a table of runs allows, and why not the others.

    Parameters
    ----------
    runs : Path or DataFrame
        A CSV file or a frame with N, D and loss (and B, K and others) under these or the usual other names.
    columns : mapping of str to str, optional
        Column here -> column of the table, the latter with an optional factor: `{"N": "size_in_millions*1e6"}`.
    seq_len : float, optional
        Tokens a sequence.
    vocab : int, optional
        Tokens of the vocabulary.

    Returns
    -------
    DataFrame
        One row a law: `columns` that it reads, `allowed`, and `why` not.

    Raises
    ------
    InputError
        The table can't be read, or can't fix an allocation; see `plan_run`.

    Examples
    --------
    >>> from assay.datasets import load_dataset
    >>> runs = load_dataset("plan-smoke-runs")
    >>> allowed = allowed_laws(runs[["N", "tokens", "loss"]])
    >>> print(allowed.loc["chinchilla", "allowed"], "|", allowed.loc["chinchilla-batch", "why"])
    True | lacks B (sequences a batch)
    """
    known, broken = candidates()
    prepared = prepare_runs(runs, columns=columns, seq_len=seq_len, vocab=vocab, extra=extra_columns(known))
    _, excluded = screen(known, prepared)
    rows = [(c.name, ", ".join(c.columns), c.name not in excluded, excluded.get(c.name, "")) for c in known]
    rows += [(name, "", False, why) for name, why in broken.items()]
    return pd.DataFrame(rows, columns=["law", "columns", "allowed", "why"]).set_index("law")


def candidates(names: Sequence[str] | None = None) -> tuple[list[Candidate], dict[str, str]]:
    """Every law there is, or those of the given names; and those that can't be loaded here with the reason."""
    found = [
        Candidate("chinchilla", ChinchillaLaw()), Candidate("chinchilla-batch", ChinchillaLaw(batch_aware=True)),
        Candidate("kaplan", KaplanLaw()), Candidate("power", PowerLaw()),
    ]
    broken: dict[str, str] = {}
    for method in catalogue.methods().values():
        if method.area != "scaling":
            continue
        try:
            found += _laws_of(method)
        except MissingExtra as error:
            broken[method.slug] = str(error)
    if names is None:
        return found, broken
    known = [candidate.name for candidate in found] + list(broken)
    if isinstance(names, str) or not len(names):
        raise InputError(f"laws must be a list of names, at least one of {', '.join(known)}, got {names!r}")
    for name in names:
        if name not in known:
            raise InputError(f"no law is called {name!r}{nearest(str(name), known)}; known: {', '.join(known)}")
    chosen = [candidate for candidate in found if candidate.name in names]
    return chosen, {name: why for name, why in broken.items() if name in names}


def extra_columns(known: list[Candidate]) -> tuple[str, ...]:
    """Columns that some law reads and `assay.scaling.tables` has no name for."""
    return tuple(sorted({name for candidate in known for name in candidate.columns} - set(COLUMNS)))


def screen(known: list[Candidate], runs: Runs) -> tuple[list[Candidate], dict[str, str]]:
    """The laws that the runs' columns allow, and why not the others."""
    excluded: dict[str, str] = {}
    for candidate in known:
        missing = [name for name in candidate.columns if name not in runs.frame]
        constant = [name for name in candidate.columns if name in runs.frame and runs.frame[name].nunique() == 1]
        parameters = len(candidate.law.parameters)
        if missing:
            words = [f"{name} ({COLUMNS[name]})" if name in COLUMNS else name for name in missing]
            excluded[candidate.name] = f"lacks {' and '.join(words)}"
        elif constant:
            value = runs.frame[constant[0]].iloc[0]
            excluded[candidate.name] = f"{constant[0]} is {value:g} in all runs, so what depends on it can't be fitted"
        elif len(runs.frame) < parameters + 1:
            excluded[candidate.name] = f"has {parameters} parameters for {len(runs.frame)} different runs"
    return [candidate for candidate in known if candidate.name not in excluded], excluded


def fit_law(
    candidate: Candidate, frame: pd.DataFrame, n_starts: int, random_state: int
) -> tuple[LossLaw, pd.DataFrame]:
    """The law fitted to the rows that suit it, and those rows.

    A law that reads no batch size is fitted to the runs whose batch was the best one tried.
    """
    rows = frame if "B" in candidate.columns else frame[frame["sized"]]
    if candidate.most_rows is not None:
        rows = thinned(rows, candidate.most_rows)
    law = clone(candidate.law)
    settings = {"n_starts": n_starts, "random_state": random_state}
    law.set_params(**{name: value for name, value in settings.items() if name in law.get_params()})
    with warnings.catch_warnings():
        # What a fit warns of shows in its held-out error and in `identifiability`, which the plan reports.
        warnings.simplefilter("ignore", UserWarning)
        law.fit(rows[list(candidate.columns)], rows["loss"])
    return law, rows


def optimum(law: LossLaw, compute: float, how: Mapping[str, Any]) -> dict[str, float]:
    """N, D, loss (and B, K) under a budget; of its being far away the plan tells by itself.

    Raises `InputError` where the law has no finite optimum of at least one parameter and one token, as one whose loss
    hardly depends on size.
    """
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", UserWarning)
            found = {name: float(value) for name, value in law.optimum(compute, **how).items()}
    except ArithmeticError:
        found = {}
    if not found or not np.isfinite(list(found.values())).all() or min(found["N"], found["D"]) < 1:
        raise InputError(f"{type(law).__name__} has no finite optimum at {compute:.3g} FLOP")
    return found


def _laws_of(method: catalogue.Method) -> Iterator[Candidate]:
    package = importlib.import_module(method.package)
    kinds = {name: getattr(package, name) for name in method.public if method.kinds[name] == "law"}
    laws = {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, LossLaw)}
    for name, kind in laws.items():
        law = kind(**kind.plan_settings)
        yield Candidate(method.slug if len(laws) == 1 else f"{method.slug}:{name}", law, MOST_ROWS)
