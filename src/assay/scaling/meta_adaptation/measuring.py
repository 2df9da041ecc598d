"""What each kind of cell measures: a law, a sweep of variances, budgets from probes, a contest of controllers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from assay.scaling.meta_adaptation.law import adaptation_budget, fit_adaptation_law
from assay.scaling.meta_adaptation.lqr import LQRFamily
from assay.scaling.meta_adaptation.probes import judge_probes
from assay.stats import Interval, bootstrap
from assay.study import Cell, Measurement, Skip

__all__ = ["LEVELS", "LQR_STEPS", "TASKS", "fit_quality", "line_ratio", "r2_interval"]

Array = NDArray[np.float64]
Have = Mapping[str, Path]

LQR_STEPS = np.array([0, 1, 2, 3, 5, 7, 10, 15, 20, 30])
LQR_SD, LQR_TASKS, LQR_LONG = 0.25, 100, 400
LEVELS = np.array([0.05, 0.10, 0.15, 0.20, 0.25, 0.30, 0.35, 0.40])
BETAS = np.geomspace(1e-5, 20.0, 600)


def law(cell: Cell, have: Have) -> Measurement:
    """The law fitted to mean gains over K; `shuffled` has the columns of the gains in a random order."""
    losses, lowest, at = _curves(cell, have)
    steps, gains = at.astype(float), losses[:, :1] - losses[:, at]
    truth = float((losses[:, 0] - lowest).mean())
    if cell.arm == "shuffled":
        # Never the order itself: with ten columns one of 3.6 million.
        gains = gains[:, np.random.default_rng([cell.seed, 7]).permutation(len(steps))]
    fit = fit_adaptation_law(steps, gains.mean(axis=0), n_boot=0)
    r2, line = fit_quality(steps, gains.mean(axis=0)), line_ratio(steps, gains.mean(axis=0))
    interval = r2_interval(steps, gains)
    metrics = {
        "r2": r2, "r2_low": interval.low, "r2_high": interval.high, "tasks": float(len(gains)), "line_ratio": line,
        "a_true": truth, **_finite(
            a_inf=fit.a_inf, beta=fit.beta, runs_p=fit.residual_runs_p, bent=fit.beta_k_max,
            a_bias=fit.a_inf / truth - 1,
        ),
    }
    table = pd.DataFrame({"K": steps, "gain": gains.mean(axis=0), "fit": fit.predict(steps)})
    return Measurement(metrics, table)


def sweep(cell: Cell, have: Have) -> Measurement:
    """True asymptotic gain at eight levels of task variance; `shuffled` has the levels in a random order."""
    if cell.dataset == "lqr":
        families = [LQRFamily.draw(LQR_TASKS, sd, 1000 * cell.seed + i) for i, sd in enumerate(LEVELS)]
        table = pd.DataFrame({
            "level": LEVELS, "variance": [float(f.masses.var(ddof=1)) for f in families],
            "a_inf": [float(f.asymptotic_gains().mean()) for f in families],
        })
    else:
        table = pd.read_csv(have["sweep"] / "sweep.csv", float_precision="round_trip")
    if cell.arm == "shuffled":
        order = np.random.default_rng([cell.seed, 7]).permutation(len(table))
        table["a_inf"] = table["a_inf"].to_numpy()[order]
    slope, intercept, r2 = _line(table["variance"].to_numpy(), table["a_inf"].to_numpy())
    top = float(table["a_inf"].max())
    return Measurement({"r2": r2, "slope": slope, "intercept": intercept / top, "a_top": top}, table)


def probe(cell: Cell, have: Have) -> Measurement:
    """Relative errors of K_0.95 and of A from a few probe steps, task by task."""
    losses, lowest, _ = _curves(cell, have)
    table = judge_probes(cell.arm, losses, lowest, cell.options["n"])
    metrics = {
        "k_true": float(table["k_true"].median()), "reached": float(table["reached"].mean()),
        "answered": float(np.isfinite(table["k_error"]).mean()), "reliable": float(table["reliable"].mean()),
        "lost": float(table["lost"].median()),
        **_finite(k_error=table["k_error"].median(), a_error=table["a_error"].median()),
    }
    return Measurement(metrics, table)


def contest(cell: Cell, have: Have) -> Measurement:
    """An arm's losses on the test tasks, with the fixed and the re-tuned controller's on the same ones."""
    table = pd.read_csv(have["contest"] / "contest.csv", float_precision="round_trip")
    if cell.arm == "grape-closed":
        loss = _closed_grape(have)
    elif cell.arm in ("fixed", "frozen"):
        loss = table["start"]
    elif cell.arm not in table.columns:
        raise Skip(f"{cell.arm} is measured at the full tier alone")
    else:
        loss = table[cell.arm]
    spoilt = cell.arm == "detuned"
    units = pd.DataFrame({
        "device": table["device"], "loss": loss, "gain": table["detuned_start" if spoilt else "start"] - loss,
        "left": table["detuned_retuned" if spoilt else "retuned"] - loss,
    })
    metrics = {
        "fidelity": float(1 - loss.mean()), "gain": float(units["gain"].mean()), "left": float(units["left"].mean()),
        "rate": float(table["rate"].iloc[0]), "retuned_rate": float(table["retuned_rate"].iloc[0]),
        "devices": float(table["device"].nunique()), "tasks": float(len(table)), "gain_sd": float(units["gain"].std()),
    }
    steps = [name for name in table.columns if name.startswith("step_")]
    if cell.arm == "adapted":
        curve = table[steps].mean().to_numpy()
        metrics |= {"fidelity_k5": float(1 - curve[min(5, len(steps) - 1)]), "steps": float(len(steps) - 1)}
        metrics |= _own_budget(table[steps].to_numpy())
    return Measurement(metrics, units)


def _own_budget(losses: Array) -> dict[str, float]:
    """Where the law's own budget from five probes would stop, and the mean fidelity there."""
    budget = adaptation_budget(losses[:, :6], random_state=0)
    if not budget.reliable:
        return {"budget_reliable": 0.0}
    k = int(np.clip(np.ceil(budget.k_star), 0, losses.shape[1] - 1))
    return {"budget_reliable": 1.0, "k_star": budget.k_star, "fidelity_k_star": float(1 - losses[:, k].mean())}


def _closed_grape(have: Have) -> pd.Series:
    """The pulse that qutip-qtrl's GRAPE makes for the gate without noise."""
    try:
        import qutip
        from qutip_qtrl import pulseoptim
    except ImportError as error:
        raise Skip("the packages qutip and qutip-qtrl are not installed") from error
    from assay.scaling.meta_adaptation.families import SEGMENTS, QubitFamily

    found = pulseoptim.optimize_pulse_unitary(
        0 * qutip.sigmax(), [qutip.sigmax(), qutip.sigmay()], qutip.qeye(2), qutip.sigmax(), num_tslots=SEGMENTS,
        evo_time=1.0, fid_err_targ=1e-12, init_pulse_type="LIN", init_pulse_params={"scaling": 1.0},
    )
    rates = pd.read_csv(have["contest"] / "rates.csv", float_precision="round_trip").to_numpy()
    return pd.Series(QubitFamily("x", rates, n_segments=SEGMENTS).losses(np.asarray(found.final_amps)))


def _curves(cell: Cell, have: Have) -> tuple[Array, Array, NDArray[np.int_]]:
    """Losses (tasks, steps + 1), the lowest loss of each task, and the steps at which the law is fitted."""
    if cell.dataset == "lqr":
        family = LQRFamily.draw(LQR_TASKS, LQR_SD, cell.seed)
        return family.curve(LQR_LONG), family.optimal_costs(), LQR_STEPS
    with np.load(have["curves"] / "curves.npz", allow_pickle=False) as arrays:
        return arrays["losses"], arrays["lowest"], np.arange(31)


def fit_quality(steps: Array, means: Array) -> float:
    """R2 of the best law on a grid of rates, for means (n,)."""
    return float(_r2(steps, means[None])[0])


def r2_interval(steps: Array, gains: Array) -> Interval:
    """Interval of R2 over tasks drawn again, the law fitted anew to each sample's means."""
    def statistic(rows: NDArray[np.intp]) -> float | Array:
        found = _r2(steps, gains[rows].mean(axis=-2))
        return found if rows.ndim > 1 else float(found[0])

    return bootstrap(statistic, len(gains), n_resamples=1000)


def line_ratio(steps: Array, means: Array) -> float:
    """Squared residuals of the law over those of the best line through the origin: 1 where nothing saturates."""
    line = means - (steps @ means) / (steps @ steps) * steps
    rest = (1 - fit_quality(steps, means)) * float(((means - means.mean()) ** 2).sum())
    below = float(line @ line)
    return rest / below if below > 0 else 1.0


def _r2(steps: Array, means: Array) -> Array:
    """R2 of the best law of each row of means, beta from a fine grid, A from its formula, never below zero."""
    means = np.atleast_2d(means)
    shapes = -np.expm1(-BETAS[:, None] * steps)
    projection = np.maximum(means @ shapes.T, 0.0)
    explained = (projection**2 / (shapes**2).sum(axis=1)).max(axis=1)
    total = ((means - means.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    return 1 - np.maximum((means**2).sum(axis=1) - explained, 0.0) / total


def _line(x: Array, y: Array) -> tuple[float, float, float]:
    """Slope, intercept and R2 of ordinary least squares."""
    slope = float(((x - x.mean()) @ (y - y.mean())) / ((x - x.mean()) @ (x - x.mean())))
    intercept = float(y.mean() - slope * x.mean())
    rest = y - intercept - slope * x
    return slope, intercept, 1 - float(rest @ rest) / float((y - y.mean()) @ (y - y.mean()))


def _finite(**metrics: Any) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if np.isfinite(value)}


TASKS: dict[str, Callable[[Cell, Have], Measurement]] = {"law": law, "sweep": sweep, "probe": probe, "contest": contest}
