"""What is measured in a cell: errors, choices, the cost of a fit, identification, the ladder, the band."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pandas as pd

from assay.scaling.fit import ChinchillaLaw, bootstrap_refits, latin_hypercube
from assay.scaling.nqs.arms import fit_arm
from assay.scaling.nqs.estimator import HIGHEST, LOWEST, NQS, START_HIGH, START_LOW
from assay.scaling.nqs.noisy_quadratic import PARAMETERS, nqs_risk
from assay.scaling.nqs.runs import SEQ_LEN
from assay.study import Cell, Measurement, Skip

REFERENCE_COST = {"nqs-runs": 0.02208}


def _predict(cell: Cell, runs: pd.DataFrame) -> Measurement:
    """Errors on fitted and held-out runs, and the loss given away by the choice of size at each held-out budget."""
    fitted, held_out = runs[runs["fitted"]], runs[~runs["fitted"]]
    if cell.arm == "shuffled":
        rng = np.random.default_rng([cell.seed, 1])
        parts = [
            _predict_once("nqs", cell, fitted.assign(loss=rng.permutation(fitted["loss"])), fitted, held_out)
            for _ in range(cell.options["shuffles"])
        ]
        mean = {name: np.mean([part[name] for part in parts], axis=0) for name in ("predicted", "squared", "huber")}
        units = parts[0].assign(**mean)
    else:
        units = _predict_once(cell.arm, cell, fitted, fitted, held_out)
    metrics: dict[str, float] = {}
    for kind in ("fit", "isoflop", "isotoken"):
        rows = units[units["kind"] == kind]
        if len(rows):
            metrics |= {f"mse_{kind}": float(rows["squared"].mean()), f"huber_{kind}": float(rows["huber"].mean())}
    regret = units.loc[units["kind"] == "choice", "squared"]
    if len(regret):
        metrics["regret_median"] = float(regret.median())
    metrics["compute_ratio"] = float(held_out["C"].max() / fitted["C"].max())
    return Measurement(metrics, units)


def _predict_once(
    arm: str, cell: Cell, training: pd.DataFrame, fitted: pd.DataFrame, held_out: pd.DataFrame
) -> pd.DataFrame:
    """One row a run and kind, and one row a budget with the regret of the choice in the column `squared`."""
    law = fit_arm(arm, training, cell)
    parts = [
        _errors(law, fitted, "fit", fitted["budget"]),
        _errors(law, held_out[held_out["isoflop"]], "isoflop", held_out["budget"]),
        _errors(law, held_out[held_out["sweep"] != ""], "isotoken", held_out["sweep"]),
        _choices(law, held_out, SEQ_LEN.get(cell.dataset, 1)),
    ]
    return pd.concat([part for part in parts if len(part)], ignore_index=True)


def _errors(law: Any, runs: pd.DataFrame, kind: str, groups: pd.Series) -> pd.DataFrame:
    if not len(runs):
        return pd.DataFrame()
    predicted = law.predict(runs)
    error = np.log(predicted) - np.log(runs["loss"].to_numpy())
    size = np.abs(error)
    return pd.DataFrame({
        "kind": kind, "group": groups.loc[runs.index].astype(str).to_numpy(), "N": runs["N"].to_numpy(),
        "B": runs["B"].to_numpy(), "K": runs["K"].to_numpy(), "loss": runs["loss"].to_numpy(), "predicted": predicted,
        "squared": error**2, "huber": np.where(size <= 1e-3, error**2 / 2, 1e-3 * (size - 5e-4)),
    })


def _choices(law: Any, held_out: pd.DataFrame, seq_len: int) -> pd.DataFrame:
    """For each held-out budget with at least two sizes: loss of the measured run nearest the chosen one, minus best."""
    rows: list[dict[str, Any]] = []
    if not isinstance(law, NQS | ChinchillaLaw) or getattr(law, "batch_aware", False):
        return pd.DataFrame(rows)
    for budget, runs in held_out[(held_out["isoflop"]) | (held_out["sweep"] != "")].groupby("budget"):
        if runs.loc[runs["isoflop"], "N"].nunique() < 2:
            continue
        runs = runs[runs["N"].isin(runs.loc[runs["isoflop"], "N"])]
        N, B = _chosen(law, runs, seq_len)
        away = np.abs(np.log(runs["N"] / N))
        nearest = runs[np.isclose(away, away.min())]
        if B is None:
            loss = nearest["loss"].mean()  # the law gives no batch size: any of the measured ones
        else:
            loss = nearest.loc[np.abs(np.log(nearest["B"] / B)).idxmin(), "loss"]
        regret = loss - runs["loss"].min()
        rows.append({"kind": "choice", "group": str(budget), "N": N, "loss": loss, "squared": regret})
    return pd.DataFrame(rows)


def _chosen(law: NQS | ChinchillaLaw, runs: pd.DataFrame, seq_len: int) -> tuple[float, float | None]:
    compute = float(runs["C"].mean())
    if isinstance(law, ChinchillaLaw):
        return law.optimal(compute)["N"], None
    best = law.optimal(compute, seq_len=seq_len, batch_grid=sorted(runs["B"].unique())).iloc[0]
    return float(best["N"]), float(best["B"])


def _cost(cell: Cell, runs: pd.DataFrame) -> Measurement:
    """Evaluations of the risk until a fit reaches the target cost, from several seeds of starts."""
    fitted = runs[runs["fitted"]]
    target = _target_cost(cell, fitted)
    count = _evaluations_of_starts if cell.arm == "starts-only" else _evaluations_of_fit
    rows = []
    for seed in range(cell.options["cost_seeds"]):
        rows.append({"seed": seed, "evaluations": count(fitted, target, seed, cell.options["starts"])})
        if cell.arm == "starts-only" and np.isinf(rows[-1]["evaluations"]):
            break  # one seed that never gets there decides
    units = pd.DataFrame(rows)
    metrics = {"target": target, "evaluations": float(units["evaluations"].max())}
    return Measurement(metrics if np.isfinite(metrics["evaluations"]) else {"target": target}, units)


def _target_cost(cell: Cell, fitted: pd.DataFrame) -> float:
    """The reference's cost on the authors' runs; elsewhere 1 % above the best of all starts."""
    if cell.dataset in REFERENCE_COST:
        return REFERENCE_COST[cell.dataset]
    return 1.01 * NQS(n_starts=cell.options["starts"], random_state=1000).fit(fitted, fitted["loss"]).cost_


def _evaluations_of_fit(fitted: pd.DataFrame, target: float, seed: int, most: int) -> float:
    total = 0
    for start in range(most):
        law = NQS(n_starts=1, random_state=10_000 * (seed + 1) + start).fit(fitted, fitted["loss"])
        total += law.n_evaluations_
        if law.cost_ <= target:
            return float(total)
    return np.inf


def _evaluations_of_starts(fitted: pd.DataFrame, target: float, seed: int, most: int) -> float:
    """The control: as many random systems as the claim allows evaluations (10,240 at 64 starts), none optimised."""
    low, high = (np.array([np.log(ends[p]) for p in PARAMETERS]) for ends in (START_LOW, {**START_HIGH, "Q": 1.0}))
    sizes = [fitted[column].to_numpy() for column in "NBK"]
    log_loss = np.log(fitted["loss"].to_numpy())
    for number, x in enumerate(latin_hypercube(low, high, 160 * most, 10_000 * (seed + 1)), start=1):
        theta = dict(zip(PARAMETERS, np.exp(x), strict=True))
        risk = nqs_risk(theta, *sizes)
        if 0.5 * np.sum((np.log(risk) - log_loss) ** 2) <= target:
            return float(number)
    return np.inf


def _seconds(cell: Cell, runs: pd.DataFrame) -> Measurement:
    fitted = runs[runs["fitted"]]
    target = _target_cost(cell, fitted)
    seconds = []
    for seed in range(cell.options["cost_seeds"]):
        start = time.process_time()
        _evaluations_of_fit(fitted, target, seed, cell.options["starts"])
        seconds.append(time.process_time() - start)
    return Measurement({"cpu_s_median": float(np.median(seconds)), "cpu_s_max": float(np.max(seconds))})


def _identify(cell: Cell, runs: pd.DataFrame) -> Measurement:
    """Parameters of every search that ends within 1 % of the best cost, over bootstrap refits."""
    fitted = runs[runs["fitted"]]
    if cell.arm == "shuffled":
        rng = np.random.default_rng([cell.seed, 2])
        fitted = fitted.assign(loss=rng.permutation(fitted["loss"]))
    law = fit_arm("nqs", fitted, cell)
    rows = []
    refits = bootstrap_refits(
        law, cell.options["refits"], random_state=cell.seed, n_starts=min(4, cell.options["starts"])
    )
    for number, refit in enumerate(refits):
        near_best = refit.solutions_[refit.start_costs_ <= 1.01 * refit.cost_]
        rows += [{"refit": number, **refit.parameters_at(solution)} for solution in near_best]
    units = pd.DataFrame(rows)
    explained = 1 - law.msle_ / np.log(fitted["loss"]).var(ddof=0)
    at_bound = np.zeros(len(units), dtype=bool)
    for name in ("p", "q"):
        at_bound |= (units[name] < 1.001 * LOWEST[name]) | (units[name] > 0.999 * HIGHEST[name])
    spreads = {f"spread_{name}": spread(units[name].to_numpy()) for name in PARAMETERS}
    return Measurement({**spreads, "explained": float(explained), "at_bound": float(at_bound.mean())}, units)


def spread(values: np.ndarray) -> float:
    """Standard deviation relative to the mean."""
    return float(np.std(values) / np.abs(np.mean(values)))


def _ladder(cell: Cell, runs: pd.DataFrame) -> Measurement:
    """Fit to all budgets up to a rung, test on every larger one: error against the ratio of compute."""
    rows = []
    budgets = np.sort(runs["budget"].unique())
    for rung in budgets[:-1]:
        fitted, larger = runs[runs["budget"] <= rung], runs[runs["budget"] > rung]
        sized = fitted[fitted["isoflop"]] if cell.arm == "chinchilla-isoflop" else fitted
        if len(sized) < 8 or fitted["N"].nunique() < 3:
            continue
        law = fit_arm(cell.arm, fitted, cell)
        for budget, test in larger[larger["isoflop"]].groupby("budget"):
            error = np.log(law.predict(test) / test["loss"])
            ratio = test["C"].mean() / fitted["C"].max()
            rows.append({"rung": float(rung), "budget": float(budget), "ratio": ratio, "squared": (error**2).mean()})
    if not rows:
        raise Skip("too few budgets for a ladder")
    units = pd.DataFrame(rows)
    return Measurement({"mse_all": float(units["squared"].mean()), "rungs": float(units["rung"].nunique())}, units)


def _band(cell: Cell, runs: pd.DataFrame) -> Measurement:
    """How often the bootstrap band of the law covers a held-out run."""
    fitted, held_out = runs[runs["fitted"]], runs[~runs["fitted"]]
    law = fit_arm("nqs", fitted, cell)
    low, high = law.predict_interval(held_out, n_refits=cell.options["refits"])
    covered = (low <= held_out["loss"]) & (held_out["loss"] <= high)
    return Measurement({"coverage": float(covered.mean()), "width": float(np.mean((high - low) / held_out["loss"]))})


TASKS = {
    "predict": _predict, "cost": _cost, "identify": _identify, "seconds": _seconds, "ladder": _ladder, "band": _band,
}
