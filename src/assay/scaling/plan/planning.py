"""How to divide a budget between size and tokens, by the law that extrapolated best on the user's own runs.

    prepare_runs -> screen -> rank -> every law refitted to all runs -> the first law's optimum, with its interval

Two things may be wrong with an answer, and are shown apart: the law's parameters (refits to resampled runs) and the
law itself (what the other laws answer that were not clearly worse). The second is often the larger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from assay.errors import InputError
from assay.scaling.fit import FAR, LossLaw, bootstrap_refits
from assay.scaling.plan.laws import Candidate, candidates, extra_columns, fit_law, optimum, screen
from assay.scaling.plan.ranking import HOLDOUTS, rank
from assay.scaling.plan.runs import Runs, prepare_runs

__all__ = ["Plan", "plan_run"]

LEVEL = 0.95
SCATTERED = 0.05  # mean absolute log residual from which runs differ by more than the law reads
APART = 2.0  # chosen sizes so many times apart are different answers
BEYOND = 3.0  # chosen sizes or tokens so many times outside the measured ones are said to be
REFIT_STARTS = 1  # of each refit: the solution of all runs
QUANTITIES = ("N", "D", "B", "K", "loss")


@dataclass(frozen=True)
class Plan:
    """The answer to `plan_run`.

    Attributes
    ----------
    law : str
        The law that the allocation follows: of those that allocate, the least error on the held-out runs.
    compute : float
        The budget in FLOP, as it was asked.
    laws : DataFrame
        One row a law, the least held-out error first: `columns`, `fitted_rows`, `error` (mean absolute log error on
        held-out larger runs) with `low` and `high`, `clearly_worse` than the first, `fitted_error` (the same over the
        runs that it is fitted to, the best batches alone), `fixed` (parameters that the runs fix, of all), and its
        own allocation N, D, B, K and loss. A law that chooses no size
        has NaN there, and one that reads no batch has NaN in B and K.
    allocation : DataFrame
        Rows N, D, (B, K,) loss. `estimate`; `low` to `high`, the 95 % interval over refits of the chosen law, which is
        that law's uncertainty only; `lowest` to `highest`, which takes in the answers of the other laws that are not
        clearly worse.
    disagreement : DataFrame
        Rows N, D, loss: the `lowest` and `highest` answer of the laws that are not clearly worse, their `ratio`, and
        the number of `laws`.
    excluded : dict of str to str
        Law -> why it was not fitted.
    notes : list of str
        What was left out, computed, or should be known before the answer is used.
    fitted : dict of str to LossLaw
        The laws, fitted to all runs.
    runs : DataFrame
        The runs as the laws saw them; C is 6 N D.
    budget : float
        The budget as 6 N D.
    seq_len : float or None
        Tokens a sequence, where known.

    Examples
    --------
    >>> from assay.datasets import load_dataset
    >>> plan = plan_run(load_dataset("plan-smoke-runs"), 1e13, laws=["kaplan"], n_starts=1, n_refits=2)
    >>> plan.law, float(plan.disagreement.loc["N", "ratio"])
    ('kaplan', 1.0)
    """

    law: str
    compute: float
    laws: pd.DataFrame
    allocation: pd.DataFrame
    disagreement: pd.DataFrame
    excluded: dict[str, str]
    notes: list[str]
    fitted: dict[str, LossLaw] = field(repr=False)
    runs: pd.DataFrame = field(repr=False)
    budget: float
    seq_len: float | None


def plan_run(
    runs: Path | pd.DataFrame, compute: float, *, columns: Mapping[str, str] | None = None,
    seq_len: float | None = None, vocab: int | None = None, holdout: float | Sequence[float] = HOLDOUTS,
    best_within: float | None = None, laws: Sequence[str] | None = None, n_starts: int = 16, n_refits: int = 100,
    random_state: int = 0,
) -> Plan:
    """Fit every law that the table allows, rank them on held-out larger runs, and divide a budget.

    Parameters
    ----------
    runs : Path or DataFrame
        A CSV file or a frame, one row a run (or a checkpoint, with a column `group` that names the run): N
        (parameters), D (tokens) and loss (nats a token); B (sequences a batch), K (updates), C (FLOP), lr, precision
        and date where there are any. See `assay.scaling.tables` for the other names that are understood.
    compute : float
        The budget in FLOP, counted as 6 N D, or as the table's own column C counts.
    columns : mapping of str to str, optional
        Column here -> column of the table, the latter with an optional factor: `{"N": "size_in_millions*1e6"}`.
    seq_len : float, optional
        Tokens a sequence: laws that choose a batch need it, unless it follows from D, B and K.
    vocab : int, optional
        Tokens of the vocabulary: runs with a loss above its logarithm are left out.
    holdout : float or sequence of float, default (0.5, 0.7, 0.85)
        Quantiles of compute above which runs are held out to rank the laws.
    best_within : float, optional
        Of the runs within such a factor in N and in D keep the best: for tables whose settings were drawn and not
        tuned.
    laws : sequence of str, optional
        Only these laws; default all that the catalogue has (`allowed_laws` lists them).
    n_starts : int, default 16
        Starts of each fit.
    n_refits : int, default 100
        Refits of the chosen law for its interval.
    random_state : int, default 0

    Returns
    -------
    Plan

    Raises
    ------
    InputError
        A column is missing, with the columns left and their ranges; a number is wrong; the budget is not positive; or
        the runs can't fix an allocation (too few, one size, one token count, compute within a factor of ten), with
        what would.

    Examples
    --------
    >>> from assay.datasets import load_dataset
    >>> runs = load_dataset("plan-smoke-runs")
    >>> plan = plan_run(runs, 1e13, laws=["chinchilla", "kaplan"], n_starts=1, n_refits=4)
    >>> plan.law in plan.laws.index, list(plan.allocation.columns)
    (True, ['estimate', 'low', 'high', 'lowest', 'highest'])
    >>> bool((plan.allocation["lowest"] <= plan.allocation["highest"]).all())
    True
    """
    _check_numbers(compute, n_refits)
    known, broken = candidates(laws)
    prepared = prepare_runs(
        runs, columns=columns, seq_len=seq_len, vocab=vocab, best_within=best_within, extra=extra_columns(known)
    )
    allowed, excluded = screen(known, prepared)
    ranking = rank(allowed, prepared, holdout, n_starts, random_state)
    excluded = {**excluded, **broken, **ranking.excluded}
    notes = prepared.notes + ranking.notes
    budget = float(compute) / prepared.flop_ratio
    by_name = {candidate.name: candidate for candidate in allowed}
    answers = [_answer(by_name[name], prepared, budget, n_starts, random_state) for name in ranking.table.index]
    notes += [note for answer in answers for note in answer.notes]
    rows = [_row(answer, ranking.table.loc[answer.name], prepared) for answer in answers]
    table = pd.DataFrame(rows).set_index("law")
    choosing = {answer.name: answer for answer in answers if answer.choice}
    if not choosing:
        names = ", ".join(table.index)
        raise InputError(f"{prepared.where}: none of the laws {names} chooses a size; {' '.join(notes)}")
    chosen = next(iter(choosing.values()))
    if chosen.name != table.index[0]:
        notes.append(f"{table.index[0]} has the least held-out error but chooses no size: {chosen.name} answers.")
    if table.loc[chosen.name, "error"] >= ranking.guess:
        notes.append(
            f"No law helps: {chosen.name} errs by {table.loc[chosen.name, 'error']:.3g} on the held-out runs, and the "
            f"median loss of the smaller runs by {ranking.guess:.3g}. The losses do not fall with size and tokens as a "
            f"law would have it; do not use this allocation."
        )
    notes += _cautions(chosen, budget, prepared, table)
    worse = table["clearly_worse"]
    rivals = [answer for answer in choosing.values() if answer is chosen or not worse[answer.name]]
    disagreement = _disagreement(rivals)
    notes += _undecided(rivals, disagreement)
    interval = _interval(chosen, budget, n_refits, random_state, notes)
    return Plan(
        chosen.name, float(compute), table, _allocation(chosen, interval, rivals), disagreement, excluded,
        notes, {answer.name: answer.law for answer in answers}, prepared.frame, budget, prepared.seq_len,
    )


@dataclass(frozen=True)
class _Answer:
    """A law fitted to all runs, with what it chooses."""

    name: str
    law: LossLaw
    used: pd.DataFrame
    how: dict[str, Any]
    choice: dict[str, float]
    notes: list[str]


def _check_numbers(compute: float, n_refits: int) -> None:
    is_number = isinstance(compute, Real) and not isinstance(compute, bool)
    if not (is_number and np.isfinite(float(compute)) and float(compute) > 0):
        raise InputError(f"compute must be a positive, finite number of FLOP, got {compute!r}")
    if isinstance(n_refits, bool) or not isinstance(n_refits, Integral) or n_refits < 2:
        raise InputError(f"n_refits must be a whole number of at least 2, got {n_refits!r}")


def _answer(candidate: Candidate, runs: Runs, budget: float, n_starts: int, random_state: int) -> _Answer:
    law, used = fit_law(candidate, runs.frame, n_starts, random_state)
    name, notes = candidate.name, []
    if candidate.most_rows is not None and len(used) == candidate.most_rows:
        notes.append(f"{name} is fitted to {len(used)} of {len(runs.frame)} rows, even in compute.")
    if law.n_converged_ == 1 < n_starts:
        notes.append(f"Only one of {n_starts} starts found the best fit of {name}: more may find a better one.")
    how: dict[str, Any] = {"seq_len": runs.seq_len} if candidate.needs_seq_len else {}
    choice: dict[str, float] = {}
    if candidate.needs_seq_len and runs.seq_len is None:
        notes.append(f"{name} chooses nothing without the tokens of a sequence: give seq_len.")
    elif candidate.allocates:
        try:
            choice = optimum(law, budget, how)
        except InputError as error:
            notes.append(f"{name} chooses nothing: {error}.")
        if choice and "B" in law.columns and "B" not in choice:
            choice = {}
            notes.append(
                f"{name} reads a batch size and chooses none: its optimum is that of a batch near zero, which no run "
                f"has, so it takes part in the ranking alone."
            )
    return _Answer(name, law, used, how, choice, notes)


def _row(answer: _Answer, ranked: pd.Series, runs: Runs) -> dict[str, Any]:
    law, used = answer.law, answer.used
    judged = runs.frame[runs.frame["sized"]]  # the same runs for all laws, as those held out are
    residual = np.log(law.predict(judged[list(law.columns)]) / judged["loss"].to_numpy())
    fixed = law.identifiability()["fixed"]
    return {
        "law": answer.name, "columns": ", ".join(law.columns), "fitted_rows": len(used),
        **ranked[["error", "low", "high", "clearly_worse"]], "fitted_error": float(np.abs(residual).mean()),
        "fixed": f"{int(fixed.sum())} of {len(fixed)}",
        **{quantity: answer.choice.get(quantity, np.nan) for quantity in ("N", "D", "B", "K", "loss")},
    }


def _cautions(chosen: _Answer, budget: float, runs: Runs, laws: pd.DataFrame) -> list[str]:
    """What a reader must know of the chosen answer."""
    notes, frame = [], runs.frame
    largest, smallest = frame["C"].max(), frame["C"].min()
    if budget > largest * FAR or budget < smallest / FAR:
        factor, end = budget / largest, "above the largest"
        if budget < smallest:
            factor, end = smallest / budget, "below the smallest"
        notes.append(
            f"The budget lies a factor {factor:.3g} {end} run, far beyond what was measured: take the whole range from "
            f"lowest to highest, and not the estimate; a run between would narrow it."
        )
    elif budget > largest:
        notes.append(f"The budget is {budget / largest:.3g} times the largest run.")
    for name, what in (("N", "parameters"), ("D", "tokens")):
        value, low, high = chosen.choice[name], frame[name].min(), frame[name].max()
        if not low / BEYOND <= value <= high * BEYOND:
            notes.append(f"The chosen {what}, {value:.3g}, lie outside the measured ones, {low:.3g} to {high:.3g}.")
    if laws.loc[chosen.name, "fitted_error"] > SCATTERED:
        notes.append(
            f"The runs scatter by {100 * laws.loc[chosen.name, 'fitted_error']:.2g} % around {chosen.name}: they "
            f"differ by more than the law reads (learning rate, schedule, data), and the loss is that of a typical "
            f"run, not of the best. Tune them, or keep the best of similar runs (best_within=2)."
        )
    if laws.loc[chosen.name, "fixed"].split()[0] != laws.loc[chosen.name, "fixed"].split()[-1]:
        notes.append(
            f"The runs fix {laws.loc[chosen.name, 'fixed']} parameters of {chosen.name}; the others trade off, so read "
            f"the allocation and not the parameters."
        )
    if not np.isfinite(laws["high"]).all():
        notes.append("Fewer than three units are held out: the ranking of the laws has no interval.")
    return notes


def _undecided(rivals: list[_Answer], disagreement: pd.DataFrame) -> list[str]:
    """What to do where laws that the held-out runs can't tell apart choose different sizes."""
    if disagreement.loc["N", "ratio"] < APART:
        return []
    sizes = ", ".join(f"{rival.name} {rival.choice['N']:.3g}" for rival in rivals)
    return [
        f"The held-out runs don't decide between laws that choose different sizes ({sizes}): the estimate is one of "
        f"them, and not clearly the best. Runs of the sizes between, or larger runs, would decide."
    ]


def _interval(chosen: _Answer, budget: float, n_refits: int, random_state: int, notes: list[str]) -> pd.DataFrame:
    """Quantiles of the optimum over refits to resampled units."""
    groups = chosen.used["unit"].to_numpy()
    found = []
    refits = bootstrap_refits(
        chosen.law, n_refits, groups=groups, random_state=random_state, n_starts=REFIT_STARTS
    )
    for refit in refits:
        try:
            found.append(optimum(refit, budget, chosen.how))
        except InputError:
            continue
    table = pd.DataFrame(found, columns=list(chosen.choice))
    if len(table) < n_refits:
        notes.append(f"{n_refits - len(table)} of {n_refits} refits have no optimum: the interval leaves them out.")
    tail = (1 - LEVEL) / 2
    return pd.DataFrame({"low": table.quantile(tail), "high": table.quantile(1 - tail)})


def _allocation(chosen: _Answer, interval: pd.DataFrame, rivals: list[_Answer]) -> pd.DataFrame:
    rows = {}
    for name in [name for name in QUANTITIES if name in chosen.choice]:
        estimate = chosen.choice[name]
        # An estimate outside its own refits is no error of theirs: the interval reaches to it.
        low, high = np.fmin(interval["low"][name], estimate), np.fmax(interval["high"][name], estimate)
        others = [rival.choice[name] for rival in rivals if name in rival.choice]
        rows[name] = (estimate, low, high, min(low, *others), max(high, *others))
    return pd.DataFrame.from_dict(rows, orient="index", columns=["estimate", "low", "high", "lowest", "highest"])


def _disagreement(rivals: list[_Answer]) -> pd.DataFrame:
    table = pd.DataFrame([{name: rival.choice[name] for name in ("N", "D", "loss")} for rival in rivals])
    lowest, highest = table.min(), table.max()
    return pd.DataFrame({"lowest": lowest, "highest": highest, "ratio": highest / lowest, "laws": len(rivals)})
