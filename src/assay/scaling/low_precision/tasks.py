"""What is measured: tables of simulated runs (a step that all arms share), and what each task reads off them.

A table has one row a scheme, size, number of samples and sketch: the excess risk (without the label's noise) as it is
read in full precision, and as the paper reads it, on quantised features. Beside it stand the same figures with
unlimited samples, by the ridge solution that the mean of the weights goes to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from assay.datasets import load_dataset
from assay.scaling.fit import ChinchillaLaw, LossLaw
from assay.scaling.low_precision.baselines import KumarLaw
from assay.scaling.low_precision.data import rows_problem
from assay.scaling.low_precision.law import LAW_MODES, PrecisionLaw
from assay.scaling.low_precision.quantisers import QUANTITIES, QuantScheme, eps_to_bits
from assay.scaling.low_precision.recursion import limit_risks, sketch_risks, step_size, track
from assay.scaling.low_precision.simulation import simulate
from assay.scaling.low_precision.spectra import (
    Problem,
    Sketches,
    gaussian_problem,
    sketches,
    spectrum_powerlaw,
    target_powerlaw,
)
from assay.study import Cell, Measurement

__all__ = ["GAUSSIAN", "LAWS", "LIMIT", "TASKS", "make_runs"]

Array = NDArray[np.float64]

GAUSSIAN = "power-law"
LIMIT = 0  # stands for unlimited samples in a column N
NOISE = 0.1
EPS = {"multiplicative": (0.01, 0.03, 0.1, 0.3), "additive": (0.001, 0.003, 0.01, 0.03, 0.1)}
WIDTH_FROM = {"multiplicative": 0.03, "additive": 0.01}  # the three coarsest steps of each mode
FLOOR_TO = {"multiplicative": 0.3, "additive": 0.03}  # beyond, a constant step's floor saturates
COARSE = 0.1  # at which the loss of data is read
FULL_SCALE = 8.0  # nothing of a power-law problem with trace 2.6 clips
FORMATS = (("int", 8, 8), ("int", 4, 4), ("float", 8, 4), ("float", 4, 2))  # kind, bits, bits that set the step
LAWS = ("precision-law", "kumar", "chinchilla", "floor-only")


# --- the step: tables of runs -------------------------------------------------------------------------------------


def make_runs(options: Mapping[str, Any]) -> pd.DataFrame:
    """Simulate every scheme, size, number of samples and sketch of a problem."""
    problem = problem_of(options)
    sizes, seeds = list(options["sizes"]), options["seeds"]
    drawn = sketches(problem, max(sizes), seeds)
    schemes = schemes_of(options)
    plain = schemes[0]
    tables = []
    for N in options["samples"]:
        found = simulate(problem, drawn, sizes, N, schemes, "max", options.get("batch", 1))
        for number, M in enumerate(sizes):
            for scheme, plainly, quantised in zip(
                schemes, found.risks[:, number], found.read_quantised[:, number], strict=True
            ):
                tables.append(_rows(scheme, M, N, plainly, quantised))
    for M in sizes:
        A, b = drawn.of(M)
        for scheme in schemes:
            limits = np.array([limit_risks(problem.second_moment, A[k], b[k], scheme) for k in range(seeds)])
            tables.append(_rows(scheme, M, LIMIT, *limits.T))
        # The final full-precision weights, read on quantised features: an error without training in it.
        theta = np.linalg.solve(A, b[..., None])[..., 0]
        full = np.array([limit_risks(problem.second_moment, A[k], b[k], plain)[0] for k in range(seeds)])
        for scheme in schemes[1:]:
            read = full + _extra(drawn, M, scheme, theta)
            tables.append(_rows(plain, M, LIMIT, full, read, _after(scheme.mode), scheme))
    runs = pd.concat(tables, ignore_index=True)
    return runs.assign(excess=runs["excess"] - problem.noise**2, read=runs["read"] - problem.noise**2)


def problem_of(options: Mapping[str, Any]) -> Problem:
    """A power-law problem, or the rows of a data set."""
    if options["dataset"] == GAUSSIAN:
        spectrum = spectrum_powerlaw(options["p"], options["a"])
        return gaussian_problem(spectrum, target_powerlaw(spectrum, options["b"]), NOISE)
    return rows_problem(load_dataset(options["dataset"]))


def schemes_of(options: Mapping[str, Any]) -> list[QuantScheme]:
    """Full precision first, then every step of both modes (or the named real formats) on the named quantities."""
    wanted = options["quantities"]
    found = [QuantScheme()]
    for mode, steps in EPS.items():
        found += [QuantScheme(mode, **dict.fromkeys(wanted, eps)) for eps in steps]
    return found


def _rows(
    scheme: QuantScheme, M: int, N: int, plainly: Array, quantised: Array, mode: str = "",
    eps_of: QuantScheme | None = None,
) -> pd.DataFrame:
    eps = max((eps_of or scheme).eps(name) for name in QUANTITIES)
    return pd.DataFrame({
        "mode": mode or scheme.mode, "eps": eps, "M": M, "N": N, "seed": np.arange(len(plainly)),
        "excess": plainly, "read": quantised,
    })


def _after(mode: str) -> str:
    return f"after-{mode}"


def _extra(drawn: Sketches, M: int, scheme: QuantScheme, weights: NDArray[np.floating]) -> Array:
    """tr(Xi v v') for the steps of a scheme."""
    relative, absolute = scheme.split("data")
    diagonal = np.diagonal(drawn.of(M)[0], axis1=-2, axis2=-1)
    return np.sum((relative * diagonal + absolute) * weights**2, axis=-1)


# --- the tasks ----------------------------------------------------------------------------------------------------


def _width(cell: Cell, runs: pd.DataFrame) -> Measurement:
    """How the risk falls with the size: at the largest number of samples, and with unlimited ones."""
    mode = cell.arm
    last = runs["N"].max()
    rows = []
    for N, where in ((last, "samples"), (LIMIT, "unlimited")):
        full = curves(runs, "none", 0.0, N)
        for eps in sorted(runs.loc[runs["mode"] == mode, "eps"].unique()):
            if eps < WIDTH_FROM[mode]:
                continue
            found, quantised = curves(runs, mode, eps, N), curves(runs, mode, eps, N, "read")
            sizes = np.log(found.columns.to_numpy(dtype=float))
            for seed in found.index:
                own, ref = np.log(found.loc[seed].to_numpy()), np.log(full.loc[seed].to_numpy())
                rows.append({
                    "seed": seed, "eps": eps, "where": where, "slope": np.polyfit(sizes, own, 1)[0],
                    "slope_full": np.polyfit(sizes, ref, 1)[0], "rise": own[-1] - own[-2],
                    "log_equivalent": float(np.interp(-own.min(), -np.minimum.accumulate(ref), sizes)),
                    "ratio_last": float(np.exp(own[-1] - ref[-1])),
                    "read": float(np.polyfit(sizes, np.log(quantised.loc[seed]), 1)[0]),
                })
    units = pd.DataFrame(rows)
    metrics = {}
    for (where, eps), part in units.groupby(["where", "eps"]):
        metrics[f"slope_{where}_{eps:g}"] = float(part["slope"].mean())
        metrics[f"equivalent_{where}_{eps:g}"] = float(np.exp(part["log_equivalent"].mean()))
        metrics[f"ratio_{where}_{eps:g}"] = float(part["ratio_last"].mean())
    for where, part in units.groupby("where"):
        means = part.groupby("eps")["log_equivalent"].mean()
        metrics[f"exponent_{where}"] = float(np.polyfit(np.log(means.index.to_numpy()), means.to_numpy(), 1)[0])
    return Measurement(metrics, units, {"curves.csv": _mean_curves(runs, mode, last)})


def curves(runs: pd.DataFrame, mode: str, eps: float, N: int, column: str = "excess") -> pd.DataFrame:
    """Risk by sketch (rows) and size (columns)."""
    chosen = runs[(runs["mode"] == mode) & (runs["eps"] == eps) & (runs["N"] == N)]
    return chosen.pivot(index="seed", columns="M", values=column)


def _mean_curves(runs: pd.DataFrame, mode: str, last: int) -> bytes:
    chosen = runs[runs["mode"].isin(["none", mode]) & runs["N"].isin([last, LIMIT])]
    table = chosen.groupby(["mode", "eps", "N", "M"], as_index=False)["excess"].mean()
    return table.to_csv(index=False, float_format="%.5g").encode()


def _data(cell: Cell, runs: pd.DataFrame) -> Measurement:
    """At one size and step: samples of full precision that give the same risk, and the same distance from the limit.

    Two arms hold something else against full precision: `rounded-after` its own risk and the floor that its final
    weights have on quantised features, `another-sketch` its own risk on the next sketch.
    """
    M, eps = cell.options["M"], COARSE
    Ns, middle = sorted(N for N in runs["N"].unique() if N != LIMIT), cell.options["middle"]
    full = _by_samples(runs, "none", 0.0, M, "excess")
    rows = []
    for mode in LAW_MODES:
        if cell.arm == "another-sketch":
            own = read = full.set_axis(np.roll(full.index, 1))
        elif cell.arm == "rounded-after":
            floor = _by_samples(runs, _after(mode), eps, M, "read")[LIMIT] - full[LIMIT]
            own = read = full.add(floor, axis=0)
        else:
            own, read = (_by_samples(runs, mode, eps, M, column) for column in ("excess", "read"))
        for seed in full.index:
            reference = full.loc[seed, Ns].to_numpy()
            rows.append({
                "seed": seed, "mode": mode,
                # A ratio that is 1 but for the last digits is not below 1.
                "equal": round(_samples_at(own.loc[seed, Ns[-1]], reference, Ns) / Ns[-1], 9),
                "remainder": round(_samples_at(
                    read.loc[seed, middle] - read.loc[seed, LIMIT], reference - full.loc[seed, LIMIT], Ns
                ) / middle, 9),
            })
    units = pd.DataFrame(rows)
    means = units.groupby("mode")[["equal", "remainder"]].mean()
    return Measurement(
        {f"{name}_{mode}": float(means.loc[mode, name]) for mode in means.index for name in means.columns}, units
    )


def _by_samples(runs: pd.DataFrame, mode: str, eps: float, M: int, column: str) -> pd.DataFrame:
    chosen = runs[(runs["mode"] == mode) & (runs["eps"] == eps) & (runs["M"] == M)]
    return chosen.pivot(index="seed", columns="N", values=column)


def _samples_at(value: float, falling: Array, Ns: Sequence[int]) -> float:
    """Where a falling curve has a value: straight lines in the logarithms, the outermost ones drawn on."""
    if value <= 0:
        return float(Ns[-1])  # at its limit already
    logs, at = -np.log(np.maximum(np.minimum.accumulate(falling), 1e-300)), np.log(Ns)
    left = int(np.clip(np.searchsorted(logs, -np.log(value)) - 1, 0, len(logs) - 2))
    rise = max(logs[left + 1] - logs[left], 1e-12)
    found = at[left] + (-np.log(value) - logs[left]) * (at[left + 1] - at[left]) / rise
    return float(np.exp(np.clip(found, 0.0, 2 * at[-1])))


def _floor(cell: Cell, runs: pd.DataFrame) -> Measurement:
    """At the largest size and number of samples: excess over full precision against the step."""
    M, last = runs["M"].max(), runs["N"].max()
    largest = runs[runs["M"] == M]
    kinds = (("slope", last, "excess"), ("slope_read", last, "read"), ("slope_unlimited", LIMIT, "excess"))
    rows = []
    for mode in LAW_MODES:
        gaps = {}
        for name, N, column in kinds:
            own = largest[largest["N"] == N].pivot(index="seed", columns=["mode", "eps"], values=column)
            steps = [eps for eps in sorted(own[mode].columns) if eps <= FLOOR_TO[mode]]
            gaps[name] = own[mode][steps].sub(own["none", 0.0], axis=0).clip(lower=1e-12)
        for seed in gaps["slope"].index:
            order = np.arange(len(steps))
            if cell.arm == "shuffled":
                order = np.random.default_rng([cell.seed, seed, len(steps)]).permutation(len(steps))
            slopes = {
                name: float(np.polyfit(np.log(steps), np.log(table.loc[seed].to_numpy()[order]), 1)[0])
                for name, table in gaps.items()
            }
            rows.append({"seed": seed, "mode": mode, **slopes})
    units = pd.DataFrame(rows)
    means = units.groupby("mode").mean()
    return Measurement(
        {
            f"{name}_{mode}": float(means.loc[mode, name])
            for mode in means.index for name in ("slope", "slope_read", "slope_unlimited")
        },
        units,
    )


def _law(cell: Cell, runs: pd.DataFrame) -> Measurement:
    """The runs of each sketch up to a quarter of the sizes and samples are fitted, the larger ones predicted."""
    rows = []
    for mode, seed, law, read, table in _fitted_laws(cell, runs):
        test = table[(table["M"] > table["M"].max() / 4) & (table["N"] > table["N"].max() / 4)]
        error = np.abs(law.predict(test[read].to_numpy()) / test["loss"].to_numpy() - 1)
        rows.append({"seed": seed, "mode": mode, "error": float(error.mean()), "fit": law.msle_})
    units = pd.DataFrame(rows)
    means = units.groupby("mode")[["error", "fit"]].mean()
    metrics = {f"{name}_{mode}": float(means.loc[mode, name]) for mode in means.index for name in means.columns}
    return Measurement(metrics, units)


def _plan(cell: Cell, runs: pd.DataFrame) -> Measurement:
    """Loss given away by choosing size, samples and bits on the measured grid by a law fitted to small runs."""
    rows = []
    for mode, seed, law, read, table in _fitted_laws(cell, runs):
        # Full precision counts 32 bits; a step that needs less than one bit is counted as one.
        cost = table["M"] * table["N"] * np.clip(eps_to_bits(table["eps"].to_numpy()), 1.0, 32.0)
        predicted = law.predict(table[read].to_numpy())
        for budget in np.geomspace(cost.max() / 64, cost.max(), 4):
            within = (cost <= budget).to_numpy()
            chosen = table["loss"].to_numpy()[within][np.argmin(predicted[within])]
            best = table["loss"].to_numpy()[within].min()
            rows.append({"seed": seed, "mode": mode, "budget": budget, "regret": float(chosen / best - 1)})
    units = pd.DataFrame(rows)
    return Measurement({f"regret_{mode}": float(part["regret"].mean()) for mode, part in units.groupby("mode")}, units)


def _fitted_laws(
    cell: Cell, runs: pd.DataFrame
) -> Iterator[tuple[str, int, LossLaw, list[str], pd.DataFrame]]:
    """Mode, sketch, the arm's law fitted to that sketch's smaller runs, the columns that it reads, all its runs."""
    runs = runs[runs["N"] >= cell.options["least_N"]].assign(loss=lambda r: r["excess"] + NOISE**2)
    for mode in LAW_MODES:
        for seed in range(cell.options["fits"]):
            table = runs[runs["mode"].isin(["none", mode]) & (runs["seed"] == seed)]
            train = table[(table["M"] <= table["M"].max() / 4) & (table["N"] <= table["N"].max() / 4)]
            losses = train["loss"].to_numpy()
            if cell.arm == "shuffled":
                losses = np.random.default_rng([cell.seed, seed, 2]).permutation(losses)
            law = law_of(cell.arm, mode, cell.options["starts"], cell.seed)
            read = ["M", "N"] if cell.arm == "chinchilla" else ["M", "N", "eps"]
            yield mode, seed, law.fit(train[read].to_numpy(), losses), read, table


def law_of(arm: str, mode: str, starts: int, seed: int) -> LossLaw:
    """The law of an arm; all are fitted by squares from as many starts."""
    settings: dict[str, Any] = {"loss": "mse", "n_starts": starts, "random_state": seed}
    if arm == "chinchilla":
        return ChinchillaLaw(**settings)
    if arm == "kumar":
        return KumarLaw(**settings)
    return PrecisionLaw(mode, "floor" if arm == "floor-only" else "both", **settings)


def _recursion(cell: Cell, runs: pd.DataFrame) -> Measurement:
    """Both recursions beside simulation, for each quantity in both modes on one sketch."""
    options = cell.options
    problem = problem_of({**options, "dataset": cell.dataset})
    M, N, repeats = options["M"], options["N"], options["repeats"]
    one = sketches(problem, M, 1)
    many = Sketches(*(np.repeat(array, repeats, axis=0) for array in (one.S, one.A, one.b)))
    schemes = [QuantScheme(mode, **{name: COARSE}) for mode in LAW_MODES for name in QUANTITIES]
    # Half of the usual step: at the usual one a run's risk is so heavy-tailed that a standard error tells little.
    lr = 0.5 * min(float(step_size(scheme, np.trace(one.A[0]), M, "max")) for scheme in schemes)
    found = simulate(problem, many, [M], N, schemes, lr).risks[:, 0]
    fast = sketch_risks(problem, one, M, [N], schemes, lr, 1)[0, :, 0]
    rows = []
    for scheme, risks, quick in zip(schemes, found, fast, strict=True):
        exact = track(one.A[0], one.b[0], problem.second_moment, N, scheme, lr, 1)
        error = risks.std(ddof=1) / np.sqrt(repeats)
        quantity = next(name for name in QUANTITIES if getattr(scheme, name))
        rows.append({
            "mode": scheme.mode, "quantity": quantity, "simulated": risks.mean(), "standard_error": error,
            "full": exact, "eigenbasis": quick, "z": (exact - risks.mean()) / error, "off": quick / risks.mean() - 1,
        })
    units = pd.DataFrame(rows)
    return Measurement(
        {
            "z_full_worst": float(units["z"].abs().max()), "off_eigenbasis_worst": float(units["off"].abs().max()),
            "off_full_worst": float((units["full"] / units["simulated"] - 1).abs().max()),
        },
        units,
    )


def _formats(cell: Cell, runs: pd.DataFrame) -> Measurement:
    """Real rounding of data and weights beside the fast recursion at its average second moment, and what clips."""
    options = cell.options
    problem = problem_of({**options, "dataset": cell.dataset})
    drawn = sketches(problem, options["M"], options["seeds"])
    formats = {
        f"{kind}{bits}": QuantScheme(kind, data=significand, param=significand, full_scale=FULL_SCALE)
        for kind, bits, significand in FORMATS
    }
    schemes = [QuantScheme(), *formats.values()]
    found = simulate(problem, drawn, [options["M"]], options["N"], schemes, "max")
    fast = sketch_risks(problem, drawn, options["M"], [options["N"]], schemes, "max", 1)[0]
    risks = found.risks[:, 0]
    metrics = {}
    for number, name in enumerate(formats, start=1):
        metrics[f"over_full_{name}"] = float(np.mean(risks[number] / risks[0]))
        metrics[f"over_recursion_{name}"] = float(np.mean(risks[number]) / np.mean(fast[number]))
        metrics[f"clipped_{name}"] = float(found.clipped[number])
    return Measurement(metrics)


Task = Callable[[Cell, pd.DataFrame], Measurement]
TASKS: dict[str, Task] = {
    "width": _width, "data": _data, "floor": _floor, "law": _law, "recursion": _recursion, "plan": _plan,
    "formats": _formats,
}
