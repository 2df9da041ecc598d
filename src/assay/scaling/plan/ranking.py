"""Laws ranked by their error on a held-out extrapolation.

The runs of the largest budgets are held out, at several cut points; a budget, and a run with its checkpoints, stays on
one side. Each law is fitted to the rest. A unit's error is its mean absolute log error over the fits that had not seen
it, so that a run that several cuts hold out counts once. All laws are judged on the same runs, paired by unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path

import numpy as np
import pandas as pd

from assay.errors import InputError
from assay.scaling.fit import split_above
from assay.scaling.plan.laws import Candidate, candidates, extra_columns, fit_law, screen
from assay.scaling.plan.runs import LEAST_SIZES, Runs, prepare_runs
from assay.stats import mean_interval

__all__ = ["HOLDOUTS", "Ranking", "held_out_masks", "rank", "rank_laws"]

HOLDOUTS = (0.5, 0.7, 0.85)  # quantiles of compute above which runs are held out
WORSE = 1.1  # times the first law's error: on many runs a difference of no consequence is significant too
SMALL = 1e-5  # of a log error: less is rounding, and no sign of a better law
LEAST_FITTED = 6  # runs below a cut: what Chinchilla's law needs


@dataclass(frozen=True)
class Ranking:
    """What the held-out runs say of the laws.

    Attributes
    ----------
    table : DataFrame
        One row a law, the least error first: error, low, high, ratio, ratio_low, clearly_worse.
    errors : DataFrame
        Absolute log error, one row a unit, one column a law.
    excluded : dict of str to str
        Laws that could not be fitted below some cut, and why.
    notes : list of str
    guess : float
        The error of no law at all: the median loss below each cut.
    """

    table: pd.DataFrame
    errors: pd.DataFrame
    excluded: dict[str, str]
    notes: list[str]
    guess: float


def rank_laws(
    runs: Path | pd.DataFrame, *, columns: Mapping[str, str] | None = None, seq_len: float | None = None,
    vocab: int | None = None, holdout: float | Sequence[float] = HOLDOUTS, best_within: float | None = None,
    laws: Sequence[str] | None = None, n_starts: int = 16, random_state: int = 0,
) -> pd.DataFrame:
    """The laws that a table allows, by their error on the larger runs when fitted to the smaller ones.

    Parameters
    ----------
    runs, columns, seq_len, vocab
        As in `plan_run`.
    holdout : float or sequence of float
        Quantiles of compute: each cut is fitted below and judged above.
    best_within, laws, n_starts, random_state
        As in `plan_run`.

    Returns
    -------
    DataFrame
        One row a law, the least error first: `error` (mean absolute log error; 0.01 is one per cent of the loss) with
        its 95 % interval `low` to `high` over held-out units, `ratio` (its error over the first law's, paired by unit,
        geometric mean), `ratio_low`, the lower end of that ratio's interval, and `clearly_worse`, whether that end
        lies above 1.1: it errs by a tenth more, at least.

    Raises
    ------
    InputError
        As `plan_run` does.

    Examples
    --------
    >>> from assay.datasets import load_dataset
    >>> ranked = rank_laws(load_dataset("plan-smoke-runs"), holdout=0.7, laws=["chinchilla", "kaplan"], n_starts=1)
    >>> bool(ranked["error"].is_monotonic_increasing), bool(ranked["clearly_worse"].iloc[0])
    (True, False)
    """
    known, _ = candidates(laws)
    prepared = prepare_runs(
        runs, columns=columns, seq_len=seq_len, vocab=vocab, best_within=best_within, extra=extra_columns(known)
    )
    allowed, _ = screen(known, prepared)
    return rank(allowed, prepared, holdout, n_starts, random_state).table


def rank(
    allowed: list[Candidate], runs: Runs, holdout: float | Sequence[float], n_starts: int, random_state: int
) -> Ranking:
    """Fit every law below every cut and judge it above."""
    if isinstance(n_starts, bool) or not isinstance(n_starts, Integral) or n_starts < 1:
        raise InputError(f"n_starts must be a whole number of at least 1, got {n_starts!r}")
    if isinstance(random_state, bool) or not isinstance(random_state, Integral) or random_state < 0:
        raise InputError(f"random_state must be a whole number, not negative, got {random_state!r}")
    notes: list[str] = []
    cuts = held_out_masks(runs, holdout, notes)
    excluded: dict[str, str] = {}
    errors: dict[str, pd.Series] = {}
    for candidate in allowed:
        parts = []
        for quantile, fit, test in cuts:
            try:
                law, _ = fit_law(candidate, runs.frame[fit], n_starts, random_state)
            except InputError as error:
                excluded[candidate.name] = f"below the {quantile:g} quantile of compute: {error}"
                break
            judged = runs.frame[test]
            predicted = law.predict(judged[list(candidate.columns)])
            parts.append(pd.Series(np.abs(np.log(predicted / judged["loss"])), index=judged.index))
        else:
            row_error = pd.concat(parts).groupby(level=0).mean()
            errors[candidate.name] = row_error.groupby(runs.frame.loc[row_error.index, "unit"]).mean()
    if not errors:
        reasons = "; ".join(f"{name} {why}" for name, why in excluded.items())
        raise InputError(f"{runs.where}: no law can be fitted ({reasons})")
    table = pd.DataFrame(errors)
    return Ranking(_ranked(table), table, excluded, notes, _guess(runs.frame, cuts))


def _guess(frame: pd.DataFrame, cuts: list[tuple[float, np.ndarray, np.ndarray]]) -> float:
    """Mean absolute log error of the median loss below each cut."""
    parts = [np.abs(np.log(frame["loss"][fit].median() / frame["loss"][test])) for _, fit, test in cuts]
    row_error = pd.concat(parts).groupby(level=0).mean()
    return float(row_error.groupby(frame.loc[row_error.index, "unit"]).mean().mean())


def held_out_masks(
    runs: Runs, holdout: float | Sequence[float], notes: list[str]
) -> list[tuple[float, np.ndarray, np.ndarray]]:
    """For each usable cut its quantile, the rows to fit and the rows to judge; equal cuts count once."""
    quantiles = np.atleast_1d(np.asarray(holdout, dtype=object)).tolist()
    if not quantiles or not all(isinstance(q, Real) and not isinstance(q, bool) for q in quantiles):
        raise InputError(f"holdout must be at least one quantile of compute between 0 and 1, got {holdout!r}")
    frame = runs.frame
    by_run = frame.drop_duplicates("run")
    found: list[tuple[float, np.ndarray, np.ndarray]] = []
    too_few = []
    for quantile in sorted(quantiles):
        try:
            below, _ = split_above(2.0 ** by_run["budget"], quantile)
        except InputError:
            if not 0 < quantile < 1:
                raise
            below = np.zeros(len(by_run), dtype=bool)
        fit = frame["run"].isin(by_run["run"][below]).to_numpy()
        # Of a held-out run, its checkpoints within the fitted compute are no extrapolation.
        largest = frame.loc[fit, "C"].max() if fit.any() else 0.0
        test = ~fit & frame["sized"].to_numpy() & (frame["C"] > largest).to_numpy()
        sized = frame[fit & frame["sized"]]
        if len(sized) < LEAST_FITTED or sized["N"].nunique() < LEAST_SIZES or sized["D"].nunique() < 2:
            too_few.append(f"{quantile:g}")
        elif test.any() and not any((fit == other).all() for _, other, _ in found):
            found.append((quantile, fit, test))
    if not found:
        raise InputError(
            f"{runs.where}: no cut of compute leaves {LEAST_FITTED} runs of {LEAST_SIZES} sizes to fit and larger runs "
            f"to judge by ({len(frame)} runs): add small runs, or hold out less"
        )
    if too_few:
        notes.append(f"Too few runs lie below the {' and '.join(too_few)} quantile of compute: not held out there.")
    return found


def _ranked(errors: pd.DataFrame) -> pd.DataFrame:
    order = errors.mean().sort_values(kind="stable").index
    logs = np.log(errors.clip(lower=SMALL))
    rows = []
    for name in order:
        own = mean_interval(errors[name].to_numpy())
        # In logarithms: a law that fails wildly on a few runs would otherwise hide behind its own scatter.
        behind = mean_interval((logs[name] - logs[order[0]]).to_numpy())
        first = name == order[0]
        rows.append({
            "law": name, "error": own.estimate, "low": max(0.0, own.low), "high": own.high,
            "ratio": float(np.exp(behind.estimate)), "ratio_low": 1.0 if first else float(np.exp(behind.low)),
            "clearly_worse": bool(not first and behind.low > np.log(WORSE)),
        })
    return pd.DataFrame(rows).set_index("law")
