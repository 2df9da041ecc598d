"""Does a boundary fitted on one period hold in the next (arXiv 2602.15327)?"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from assay.errors import InputError
from assay.scaling.prescriptive.bins import coverage_by_bin, equal_mass_bins
from assay.scaling.prescriptive.boundary import CapabilityBoundary, log_compute, scores
from assay.scaling.prescriptive.pinball import pinball

__all__ = ["MODES", "binomial_p", "cluster_p", "period_of", "read_dates", "refit_p", "temporal_validation"]

Array = NDArray[np.float64]

MODES = ("single_k", "cumulative")
FEWEST_CLUSTERS = 3
OFFENDERS = 3


def temporal_validation(
    df: pd.DataFrame, time: str, x: str, y: str | Sequence[str], periods: Sequence[Any], mode: str = "single_k",
    group: str | None = None, boundary: CapabilityBoundary | None = None, refits: int = 0,
) -> pd.DataFrame:
    """Fit the boundary on each period and test it on the next one.

    Parameters
    ----------
    df : DataFrame
        One row a model.
    time, x : str
        Columns of dates (or numbers that order the models) and of compute in FLOP.
    y : str or sequence of str
        Columns of scores in [0, 1]; models without a score are left out of that task.
    periods : sequence
        Last date (or number) of each period, rising; what comes later is left out.
    mode : {"single_k", "cumulative"}
        Train on period k, or on periods 1 to k.
    group : str, optional
        Column of what shares compute and skill, such as the base model: then `p_clustered` is given too.
    boundary : CapabilityBoundary, optional
        Settings of the fits.
    refits : int
        Resamples of the groups, with a refit each, for `p_refit`; 0 for none.

    Returns
    -------
    DataFrame
        One row a task and a pair of periods: `task`, `train`, `test` (last dates), `n_train`, `n_test`,
        `coverage_train`, `coverage_test`, `macro` (error of coverage over the training bins), `pinball` (mean loss of
        the test models), `above` (share of the test models above the boundary), `p_binomial` (its one-sided p against
        `1 - quantile`, as if models were independent), `p_clustered` (by groups, the boundary taken as known; NaN
        without them) and `p_refit` (by groups, with the error of the boundary; NaN without refits). Of the three only
        `p_refit` keeps its level: see `refit_p`.

    Raises
    ------
    InputError
        For columns that are missing, dates that can't be read (the first are listed), periods that do not rise, or a
        pair of periods without models.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> df = pd.DataFrame({"flops": 10 ** rng.uniform(20, 24, 300), "year": np.repeat([2023, 2024, 2025], 100)})
    >>> df["score"] = rng.beta(2, 2, 300) * (0.4 + 0.1 * np.log10(df.flops / 1e20))
    >>> found = temporal_validation(df, "year", "flops", "score", [2023, 2024, 2025])
    >>> found[["train", "test", "n_test"]].values.tolist()
    [[2023, 2024, 100], [2024, 2025, 100]]
    """
    tasks = _checked(df, time, x, y, periods, mode, group, boundary, refits)
    period = period_of(df[time], periods, time)
    rows = []
    for task in tasks:
        for k in range(len(periods) - 1):
            train = (period <= k) if mode == "cumulative" else (period == k)
            train, test = ((mask & df[task].notna()).to_numpy() for mask in (train, period == k + 1))
            if not train.any() or not test.any():
                raise InputError(
                    f"{task}: {train.sum()} models to {periods[k]} to fit and {test.sum()} to {periods[k + 1]} to test"
                )
            found = _validate(df[train], df[test], x, task, group, boundary or CapabilityBoundary(), refits)
            rows.append({"task": task, "train": periods[k], "test": periods[k + 1], **found})
    return pd.DataFrame(rows)


def _checked(
    df: Any, time: str, x: str, y: Any, periods: Any, mode: str, group: Any, boundary: Any, refits: Any
) -> list[str]:
    """The tasks, after a look at everything else."""
    if not isinstance(df, pd.DataFrame):
        raise InputError(f"df must be a DataFrame, got {type(df).__name__}")
    tasks = [y] if isinstance(y, str) else list(y) if isinstance(y, (Sequence, pd.Index)) else []
    if not tasks:
        raise InputError(f"y names no task: a column or several are needed, got {y!r}")
    for column in (time, x, *tasks, *([] if group is None else [group])):
        if not isinstance(column, str) or column not in df.columns:
            raise InputError(f"df lacks the column {column}; it has {', '.join(map(str, df.columns[:12]))}")
    if mode not in MODES:
        raise InputError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    if isinstance(periods, str) or len(periods) < 2:
        raise InputError(f"at least 2 periods are needed, got {periods!r}")
    if boundary is not None and not isinstance(boundary, CapabilityBoundary):
        raise InputError(f"boundary must be a CapabilityBoundary, got {type(boundary).__name__}")
    if not isinstance(refits, Integral) or refits < 0:
        raise InputError(f"refits must be a whole number, not negative, got {refits!r}")
    if refits and group is None:
        raise InputError("refits need the column of groups")
    if group is not None and df[group].isna().any():
        raise InputError(f"{group}: {int(df[group].isna().sum())} of {len(df)} models have no label")
    return tasks


def period_of(times: pd.Series, periods: Sequence[Any], name: str = "time") -> pd.Series:
    """Index of the period of each row, counted from 0; `len(periods)` for what comes later."""
    if pd.api.types.is_numeric_dtype(times):
        values, ends = times, pd.Series(pd.to_numeric(pd.Series(list(periods)), errors="coerce"))
        if values.isna().any():
            raise InputError(f"{name} has {int(values.isna().sum())} empty entries")
    else:
        values = read_dates(times, name)
        ends = pd.to_datetime(pd.Series(list(periods)), errors="coerce", format="mixed")
    if ends.isna().any():
        raise InputError(f"periods must be dates, or numbers where {name} is numbers, got {list(periods)!r}")
    if not ends.is_monotonic_increasing or ends.duplicated().any():
        raise InputError(f"periods must rise, got {list(periods)!r}")
    return pd.Series(np.searchsorted(ends.to_numpy(), values.to_numpy(), side="left"), index=times.index)


def read_dates(times: pd.Series, name: str) -> pd.Series:
    """Dates, or an error that lists the first that can't be read."""
    values = pd.to_datetime(times, errors="coerce", format="mixed", utc=True).dt.tz_localize(None)
    bad = np.flatnonzero(values.isna().to_numpy())
    if len(bad):
        listed = ", ".join(f"{times.iloc[i]!r} in row {i}" for i in bad[:OFFENDERS])
        raise InputError(f"{name}: {len(bad)} dates can't be read: {listed}{', ...' if len(bad) > OFFENDERS else ''}")
    return values


def binomial_p(above: int, n: int, share: float) -> float:
    """One-sided p of at least `above` of `n` independent models above a boundary that `share` should exceed."""
    from scipy.stats import binom

    return float(binom.sf(above - 1, n, share))


def cluster_p(above: ArrayLike, groups: ArrayLike, share: float) -> float:
    """The same for models that come in groups: Student's t on the groups' excess counts; NaN below three groups.

    It takes the boundary as known. One that was fitted to few groups errs, and then p is too small: in simulations
    with 31 groups and nothing changed, p < 0.05 came up three times too often. `refit_p` counts that error.
    """
    from scipy.stats import t

    excess = pd.Series(np.asarray(above, dtype=float) - share).groupby(np.asarray(groups)).sum().to_numpy()
    if len(excess) < FEWEST_CLUSTERS or np.ptp(excess) == 0:
        return float("nan")
    spread = np.sqrt(len(excess) / (len(excess) - 1) * np.sum((excess - excess.mean()) ** 2))
    return float(t.sf(excess.sum() / spread, len(excess) - 1))


def refit_p(
    fitted: CapabilityBoundary, z: Array, y: Array, later: NDArray[np.bool_], groups: NDArray[Any], n: int
) -> tuple[float, Array]:
    """One-sided p that more later models lie above the earlier ones' boundary than should, and the refits' shares.

    Groups are drawn whole, with their earlier and later models; each draw refits the boundary to the earlier ones. The
    spread of the share above, over the draws, holds both errors: that of the boundary and that of the later models.
    Student's t on the smaller of the two numbers of groups; NaN below three. Where no draw changes the share, p is 1,
    or the least that so many draws can show.
    """
    from scipy.stats import t

    members = [np.flatnonzero(groups == label) for label in np.unique(groups)]
    fewest = min(len(np.unique(groups[mask])) for mask in (later, ~later))
    share = float(np.mean(y[later] > fitted._curve(z[later])))
    if fewest < FEWEST_CLUSTERS:
        return float("nan"), np.array([])
    rng = np.random.default_rng(fitted.random_state)
    shares: list[float] = []
    for _ in range(n):
        drawn = np.concatenate([members[i] for i in rng.integers(len(members), size=len(members))])
        old, new = drawn[~later[drawn]], drawn[later[drawn]]
        if len(new) and len(old) and z[old].min() < z[old].max():
            y0, rise, z_star, b = fitted._refit(z[old], y[old])
            shares.append(float(np.mean(y[new] > y0 + rise * expit(b * (z[new] - z_star)))))
    spread = float(np.std(shares, ddof=1)) if len(shares) > 1 else 0.0
    excess = share - (1 - fitted.quantile)
    if spread > 0:
        return float(t.sf(excess / spread, fewest - 1)), np.array(shares)
    return (1 / (1 + len(shares)) if excess > 0 else 1.0), np.array(shares)


def _validate(
    train: pd.DataFrame, test: pd.DataFrame, x: str, task: str, group: str | None, settings: CapabilityBoundary,
    refits: int,
) -> dict[str, float]:
    from sklearn.base import clone

    with warnings.catch_warnings():
        # Later models are often larger; that the boundary is a guess there is what this function measures.
        warnings.simplefilter("ignore", UserWarning)
        fitted = clone(settings).fit(train[x].to_numpy(), train[task].to_numpy())
        z, y = log_compute(test[x].to_numpy()), scores(test[task].to_numpy())
        curve: NDArray[np.float64] = fitted.predict(test[x].to_numpy())
    above, wanted = y > curve, 1 - fitted.quantile
    covered = coverage_by_bin(z, y, curve, equal_mass_bins(fitted.z_), fitted.quantile)
    return {
        "n_train": len(train), "n_test": len(test), "coverage_train": fitted.coverage_, "coverage_test": covered.share,
        "macro": covered.macro, "pinball": float(pinball(y - curve, fitted.quantile).mean()),
        "above": float(above.mean()), "p_binomial": binomial_p(int(above.sum()), len(test), wanted),
        "p_clustered": float("nan") if group is None else cluster_p(above, test[group], wanted),
        "p_refit": _refit_p_of(fitted, train, test, x, task, group, refits),
    }


def _refit_p_of(
    fitted: CapabilityBoundary, train: pd.DataFrame, test: pd.DataFrame, x: str, task: str, group: str | None,
    refits: int,
) -> float:
    if group is None or not refits:
        return float("nan")
    both = pd.concat([train, test], ignore_index=True)
    later = np.arange(len(both)) >= len(train)
    z, y = log_compute(both[x].to_numpy()), scores(both[task].to_numpy())
    return refit_p(fitted, z, y, later, both[group].astype(str).to_numpy(), refits)[0]
