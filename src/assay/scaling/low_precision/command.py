"""`assay run low-precision`: fit the law to a table of runs and plan under a budget of bits, or simulate a spectrum."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.errors import InputError, nearest
from assay.outputs import write_folder

if TYPE_CHECKING:
    import pandas as pd

MODE_NAMES = {
    "multiplicative": "multiplicative", "mult": "multiplicative", "float": "multiplicative", "fp": "multiplicative",
    "additive": "additive", "add": "additive", "int": "additive", "none": "none", "full": "none",
}
ROLES = ("M", "N", "eps", "bits", "loss", "mode")
SIZE_NAMES = ("M", "N_params", "params", "parameters")
DATA_NAMES = ("D", "tokens", "samples", "N")
HELD_OUT = 0.7  # quantile of size times samples above which runs are tested
REFITS = 20


def run(
    runs: Annotated[
        Path | None,
        typer.Option(help="CSV of finished runs: M or N_params, N or D, eps or bits, loss, and perhaps mode."),
    ] = None,
    columns: Annotated[
        str, typer.Option(help="Other names in the table: M=COLUMN,N=COLUMN,bits=COLUMN,loss=COLUMN,mode=COLUMN.")
    ] = "",
    mode: Annotated[
        str, typer.Option(help="Rounding of all runs, where the table has no column mode: multiplicative or additive.")
    ] = "",
    bit_budget: Annotated[
        float | None, typer.Option(help="Plan: parameters times samples times bits at most.")
    ] = None,
    bits: Annotated[str, typer.Option(help="Bits to plan with, as 4,8,16; by default those of the runs, and 32.")] = "",
    memory_bits: Annotated[float | None, typer.Option(help="Plan: parameters times bits at most.")] = None,
    spectrum: Annotated[
        str,
        typer.Option(
            help="Simulate instead: digits, diabetes, powerlaw:A, or a CSV with a column eigenvalue, or of features "
            "with a label y."
        ),
    ] = "",
    schemes: Annotated[str, typer.Option(help="Modes to simulate: mult,add.")] = "mult,add",
    eps: Annotated[str, typer.Option(help="Steps to simulate.")] = "0.01,0.1",
    sizes: Annotated[
        str, typer.Option(help="Model sizes to simulate; by default powers of two to a quarter of p.")
    ] = "",
    samples: Annotated[int, typer.Option(help="Samples to simulate.")] = 2000,
    target: Annotated[float, typer.Option(help="Exponent b of the target, where the data give none.")] = 2.0,
    seeds: Annotated[int, typer.Option(help="Sketches to simulate.")] = 4,
    starts: Annotated[int, typer.Option(help="Starts of each fit.")] = 32,
    out: Annotated[Path, typer.Option(help="Folder for the tables, the report and the picture.")] = Path(
        "low-precision-out"
    ),
) -> None:
    """Fit a scaling law of precision to runs and plan size, samples and bits; or simulate quantised SGD."""
    if (runs is None) == (not spectrum):
        raise InputError("give either --runs or --spectrum")
    if out.exists() and not out.is_dir():
        raise InputError(f"--out: {out} is a file, a folder is needed")
    if runs is not None:
        files, rows, notes = _fit(runs, columns, mode, bit_budget, _numbers(bits, "--bits"), memory_bits, starts)
    else:
        files, rows, notes = _simulate(
            spectrum, schemes, _numbers(eps, "--eps"), _numbers(sizes, "--sizes"), samples, target, seeds
        )
    write_folder(out, files)
    _print(rows, notes, out)


def example(folder: Path) -> list[str]:
    """Write a table of predicted runs of a power-law problem into the folder; the arguments that fit and plan it."""
    from assay.scaling.low_precision.quantisers import QuantScheme
    from assay.scaling.low_precision.recursion import risk_grid
    from assay.scaling.low_precision.spectra import spectrum_powerlaw, target_powerlaw

    lam = spectrum_powerlaw(128, 1.5)
    grid = risk_grid(
        lam, target_powerlaw(lam, 2.0), [4, 8, 16, 32], [200, 400, 800],
        [QuantScheme("additive", data=eps) for eps in (0.003, 0.01, 0.03)], seeds=4,
    )
    path = folder / "runs.csv"
    grid.rename(columns={"risk": "loss"})[["M", "N", "eps", "mode", "loss"]].to_csv(path, index=False)
    return [
        "--runs", str(path), "--bit-budget", "1e5", "--bits", "2,4,8", "--starts", "4",
        "--out", str(folder / "low-precision-out"),
    ]


# --- a table of runs ----------------------------------------------------------------------------------------------


def _fit(
    path: Path, columns: str, mode: str, bit_budget: float | None, bits: list[float] | None,
    memory_bits: float | None, starts: int,
) -> tuple[dict[str, bytes], list[list[str]], list[str]]:
    import pandas as pd

    from assay.pictures import NO_PICTURES, draw
    from assay.scaling.low_precision.law import PrecisionLaw

    table, notes = read_precision_runs(path, mode, columns)
    files: dict[str, bytes] = {}
    rows = [["mode", "law", "held-out error", "parameters"]]
    fitted, predictions, plans, errors = {}, [], [], []
    for name in [m for m in ("multiplicative", "additive") if (table["mode"] == m).any()]:
        own = table[table["mode"].isin([name, "none"])]
        with _noted(notes):
            law = PrecisionLaw(name, n_starts=starts).fit(own, own["loss"])
        held = _held_out(own, name, starts, notes)
        errors += held
        fitted[name] = {
            "parameters": law.params_, "mean_squared_log_error": law.msle_, "starts_converged": law.n_converged_,
            "runs": len(law.rows_), "diverged_runs_left_out": law.n_left_out_,
            "identifiability": law.identifiability().reset_index(names="parameter").to_dict("records"),
        }
        finite = own[own["loss"] < float("inf")]
        predictions.append(finite.assign(law=name, predicted=law.predict(finite), **law.effective_sizes(finite)))
        text = ", ".join(f"{key} {value:.3g}" for key, value in law.params_.items())
        rows += [
            [name, row["law"], f"{row['error']:.1%}", text if row["law"] == "precision-law" else ""] for row in held
        ] or [[name, "precision-law", "", text]]
        if bit_budget is not None:
            plans.append(_plan(law, name, bit_budget, bits, memory_bits, notes))
    files["fit.json"] = _json({"laws": fitted, "held_out": errors, "notes": notes})
    both = pd.concat(predictions)
    files["predictions.csv"] = both.to_csv(index=False, float_format="%.6g").encode()
    if plans:
        plan = pd.concat(plans, ignore_index=True).sort_values("loss", ignore_index=True)
        files["plan.csv"] = plan.to_csv(index=False, float_format="%.6g").encode()
        best = plan.iloc[0]
        rows.append([
            best["mode"], "best plan", f"loss {best['loss']:.4g}",
            f"M {best['M']:.3g}, N {best['N']:.3g}, {best['bits']:g} bits",
        ])
    chart = _fit_chart(both)
    pictures = draw({"fit": chart})
    notes += [] if pictures else [NO_PICTURES]
    files |= {"fit.vl.json": _json(chart), "report.md": _report(path.name, rows, notes), **pictures}
    return files, rows, notes


def read_precision_runs(path: Path, mode: str = "", columns: str = "") -> tuple[pd.DataFrame, list[str]]:
    """The runs with the columns M, N, eps, mode and loss, and what a reader should know."""
    import numpy as np
    import pandas as pd

    from assay.scaling.low_precision.law import read_precision
    from assay.scaling.tables import read_table

    table = _renamed(read_table(path), columns, path.name)
    if not len(table):
        raise InputError(f"{path.name} holds no runs")
    named_here = set(map(str, table.columns))
    size = next((name for name in SIZE_NAMES if name in named_here), "N" if {"N", "D"} <= named_here else None)
    data = next((name for name in DATA_NAMES if name in named_here and name != size), None)
    precision = next((name for name in ("eps", "bits") if name in named_here), None)
    for what, found, names in (
        ("the model's size", size, "M or N_params"), ("the samples", data, "N or D"),
        ("the precision", precision, "eps or bits"), ("the loss", "loss" if "loss" in named_here else None, "loss"),
    ):
        if found is None:
            known = ", ".join(map(str, table.columns))
            raise InputError(f"{path.name} has no column for {what} ({names}); its columns: {known}")
    named = table[[size, data, precision]].set_axis(["M", "N", str(precision)], axis=1)
    try:
        rows = read_precision(named)
    except InputError as error:
        raise InputError(f"{path.name}: {str(error).removeprefix('X: ')}") from None
    loss = pd.to_numeric(table["loss"], errors="coerce").to_numpy(dtype=float)
    bad = np.flatnonzero(np.isnan(loss) | (loss <= 0))
    if len(bad):
        raise InputError(f"{path.name}: loss must be positive (inf for a run that diverged), got "
                         f"{table['loss'].iloc[bad[0]]} in row {bad[0]}")
    found = pd.DataFrame(rows, columns=["M", "N", "eps"]).assign(mode=_modes(table, mode, path.name), loss=loss)
    found.loc[found["eps"] == 0, "mode"] = "none"
    if (found["mode"] == "none").all():
        raise InputError(f"{path.name}: every run is in full precision, there is nothing to fit")
    lost = int(np.isinf(loss).sum())
    return found, [f"{lost} runs that diverged are left out."] if lost else []


def _renamed(table: pd.DataFrame, columns: str, name: str) -> pd.DataFrame:
    """The table under the names used here, as `--columns M=params,N=tokens` tells them."""
    here: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in columns.split(","))):
        role, equals, column = (part.strip() for part in pair.partition("="))
        if not equals or role not in ROLES:
            raise InputError(f"--columns: expected ROLE=COLUMN with a role of {', '.join(ROLES)}, got {pair!r}")
        if column not in table.columns:
            known = [str(label) for label in table.columns]
            raise InputError(f"{name} has no column {column!r}{nearest(column, known)}: {', '.join(known)}")
        if role in here.values() or column in here:
            raise InputError(f"--columns: {role} or {column} is named twice")
        here[column] = role
    hidden = [role for role in here.values() if role in table.columns and role not in here]
    return table.drop(columns=hidden).rename(columns=here)


def _modes(table: pd.DataFrame, mode: str, name: str) -> list[str]:
    if "mode" not in table.columns:
        if mode not in ("multiplicative", "additive"):
            raise InputError(f"{name} has no column mode: say --mode multiplicative or --mode additive, got {mode!r}")
        return [mode] * len(table)
    words = table["mode"].fillna("none").astype(str).str.lower()
    unknown = words[~words.isin(list(MODE_NAMES))]
    if len(unknown):
        raise InputError(f"{name}: mode must be one of {', '.join(MODE_NAMES)}, got {unknown.iloc[0]!r} in row "
                         f"{unknown.index[0]}{nearest(unknown.iloc[0], list(MODE_NAMES))}")
    return [MODE_NAMES[word] for word in words]


def _held_out(own: pd.DataFrame, mode: str, starts: int, notes: list[str]) -> list[dict[str, Any]]:
    """Mean relative error of each law on the runs with the largest product of size and samples."""
    import numpy as np

    from assay.scaling.fit import split_above
    from assay.scaling.low_precision.tasks import LAWS, law_of

    finite = own[own["loss"] < float("inf")]
    try:
        fit, test = split_above(finite["M"] * finite["N"], HELD_OUT)
    except InputError:
        fit = test = np.zeros(len(finite), dtype=bool)
    if fit.sum() < 10:
        notes.append(f"{mode}: too few runs to hold the largest ones out.")
        return []
    rows = []
    for arm in LAWS:
        read = ["M", "N"] if arm == "chinchilla" else ["M", "N", "eps"]
        small, large = finite[fit], finite[test]
        with _noted(notes):
            law = law_of(arm, mode, starts, 0).fit(small[read].to_numpy(), small["loss"])
        error = np.abs(law.predict(large[read].to_numpy()) / large["loss"].to_numpy() - 1).mean()
        rows.append({"mode": mode, "law": arm, "error": float(error)})
    return rows


def _plan(
    law: Any, name: str, bit_budget: float, bits: list[float] | None, memory_bits: float | None, notes: list[str]
) -> pd.DataFrame:
    from assay.scaling.low_precision.planning import plan_precision

    with _noted(notes):
        plan = plan_precision(law, bit_budget, bits=bits, memory_bits=memory_bits)
    if memory_bits is None:
        band = law.optimal_interval(bit_budget, bits=bits, n_refits=REFITS)
        spans = (f"{what} {row['low']:.3g} to {row['high']:.3g}" for what, row in band.iterrows())
        notes.append(f"{name}: the best plan over resampled runs: {', '.join(spans)}.")
    return plan.assign(mode=name)


@contextmanager
def _noted(notes: list[str]) -> Iterator[None]:
    """Warnings become notes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    new = [f"{str(w.message)[0].upper()}{str(w.message)[1:]}." for w in caught if w.category is UserWarning]
    notes += [note for note in dict.fromkeys(new) if note not in notes]


def _fit_chart(runs: pd.DataFrame) -> dict[str, Any]:
    values = [
        {
            "measured": float(f"{r.loss:.5g}"), "predicted": float(f"{r.predicted:.5g}"), "eps": f"{r.eps:.3g}",
            "mode": r.law,
        }
        for r in runs.itertuples()
    ]
    scale = {"type": "log"}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json", "title": "Loss, predicted against measured",
        "description": "Predicted against measured loss of each run, by precision.",
        "data": {"values": values}, "width": 360, "height": 280, "mark": {"type": "point", "filled": True},
        "encoding": {
            "x": {"field": "measured", "type": "quantitative", "scale": scale, "title": "measured loss"},
            "y": {"field": "predicted", "type": "quantitative", "scale": scale, "title": "predicted loss"},
            "color": {"field": "eps", "type": "nominal"}, "shape": {"field": "mode", "type": "nominal"},
        },
    }


# --- a simulation -------------------------------------------------------------------------------------------------


def _simulate(
    spectrum: str, schemes: str, steps: list[float] | None, sizes: list[float] | None, samples: int, b: float,
    seeds: int,
) -> tuple[dict[str, bytes], list[list[str]], list[str]]:
    import numpy as np
    import pandas as pd

    from assay.pictures import NO_PICTURES, draw
    from assay.scaling.low_precision.charts import curves_chart
    from assay.scaling.low_precision.quantisers import QuantScheme
    from assay.scaling.low_precision.recursion import check_sizes, coarsest, sketch_risks
    from assay.scaling.low_precision.simulation import simulate
    from assay.scaling.low_precision.spectra import gaussian_problem, sketches

    lam, w, a, noise = _spectrum(spectrum, b)
    problem = gaussian_problem(lam, w, noise)
    grid = [int(M) for M in sizes] if sizes else _sizes(problem.p)
    check_sizes(problem, grid, [samples], 1, "max", seeds, 0)
    modes = [MODE_NAMES.get(word.strip(), word.strip()) for word in schemes.split(",")]
    unknown = [mode for mode in modes if mode not in ("multiplicative", "additive")]
    if unknown:
        raise InputError(f"--schemes must be mult, add or both, got {unknown[0]!r}")
    if not steps:
        raise InputError("--eps must hold at least one step")
    tried = [QuantScheme(), *(QuantScheme(mode, data=eps) for mode in modes for eps in steps)]
    drawn = sketches(problem, max(grid), seeds)
    found = simulate(problem, drawn, grid, samples, tried, "max").risks
    rows = []
    for number, M in enumerate(grid):
        predicted = sketch_risks(problem, drawn, M, [samples], tried, "max", 1)[0].mean(axis=-1)
        for scheme, risks, quick in zip(tried, found[:, number], predicted, strict=True):
            finite = risks[np.isfinite(risks)]
            risk = float(finite.mean()) if len(finite) else float("inf")
            rows.append({
                "mode": scheme.mode, "eps": coarsest(scheme), "M": M, "N": samples, "risk": risk,
                "excess": risk - noise**2, "predicted": quick, "diverged": len(risks) - len(finite),
            })
    table = pd.DataFrame(rows)
    notes = [f"The spectrum falls as a power of {a:.3g}."]
    lost = int(table["diverged"].sum())
    notes += [f"{lost} runs diverged and are left out of the means."] if lost else []
    both = [table[table["mode"].isin(["none", mode])].assign(arm=mode) for mode in modes]
    chart = curves_chart(
        pd.concat(both), "Excess risk against model size", f"Excess risk after {samples} samples, by mode and step."
    )
    pictures = draw({"risks": chart})
    notes += [] if pictures else [NO_PICTURES]
    files = {
        "risks.csv": table.to_csv(index=False, float_format="%.6g").encode(), "risks.vl.json": _json(chart), **pictures,
    }
    last = table[table["M"] == grid[-1]]
    shown = [["mode", "eps", f"excess at M = {grid[-1]}", "predicted"]]
    shown += [[r.mode, f"{r.eps:g}", f"{r.excess:.4g}", f"{r.predicted - noise**2:.4g}"] for r in last.itertuples()]
    return files, shown, notes


def _spectrum(text: str, b: float) -> tuple[Any, Any, float, float]:
    """Eigenvalues, target, exponent and label noise of what --spectrum names."""
    import numpy as np

    from assay.datasets import load_dataset
    from assay.scaling.low_precision.spectra import spectrum_from_data, spectrum_powerlaw, target_powerlaw

    kind, _, number = text.partition(":")
    if kind == "powerlaw":
        try:
            a = float(number)
        except ValueError:
            raise InputError(f"--spectrum powerlaw:A needs an exponent, got {text}") from None
        lam = spectrum_powerlaw(1024, a)
        return lam, target_powerlaw(lam, b), a, 0.1
    if text in ("digits", "diabetes"):
        held = load_dataset(f"precision-{text}")
    else:
        held = _features(Path(text))
    if "eigenvalue" in held:
        lam = np.sort(held["eigenvalue"])[::-1]
        last = max(3, len(lam) // 4)
        if len(lam) < 4 or lam[-1] <= 0:
            raise InputError(f"{text}: at least 4 positive eigenvalues are needed")
        a = -float(np.polyfit(np.log(np.arange(1, last + 1)), np.log(lam[:last]), 1)[0])
        return lam, target_powerlaw(lam, b), a, 0.1
    lam, w, a = spectrum_from_data(held["X"], held.get("y"))
    explained = min(1.0, float(lam @ w**2)) if held.get("y") is not None else 0.99
    return lam, w, a, float(np.sqrt(max(1e-4, 1 - explained)))


def _features(path: Path) -> dict[str, Any]:
    from assay.errors import as_matrix, as_vector
    from assay.scaling.tables import read_table

    table = read_table(path)
    if "eigenvalue" in table.columns:
        return {"eigenvalue": as_vector(table["eigenvalue"].to_numpy(), f"{path.name}: eigenvalue").astype(float)}
    label = table.pop("y").to_numpy() if "y" in table.columns else None
    X = as_matrix(table.to_numpy(), path.name).astype(float)
    return {"X": X} if label is None else {"X": X, "y": as_vector(label, f"{path.name}: y")}


def _sizes(p: int) -> list[int]:
    """Powers of two from 4 (or less, in few dimensions) to a quarter of the dimensions."""
    most = max(2, p // 4)
    return [2**k for k in range(1 if most < 8 else 2, 12) if 2**k <= most]


def _numbers(text: str, option: str) -> list[float] | None:
    if not text.strip():
        return None
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise InputError(f"{option} must be numbers with commas between, got {text}") from None


def _report(name: str, rows: list[list[str]], notes: list[str]) -> bytes:
    lines = [f"# Scaling law of precision on {name}", ""]
    lines += [f"| {' | '.join(rows[0])} |", f"|{'---|' * len(rows[0])}"]
    lines += [f"| {' | '.join(row)} |" for row in rows[1:]]
    lines += [
        "", "Held-out error: mean relative error on the runs with the largest product of size and samples, "
        "each law fitted to the others. The law of the plan is fitted to all runs.",
    ]
    if notes:
        lines += ["", "## Notes", "", *(f"- {note}" for note in notes)]
    return ("\n".join(lines) + "\n").encode()


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, default=float) + "\n").encode()


def _print(rows: list[list[str]], notes: list[str], out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table()
    for heading in rows[0]:
        table.add_column(heading)
    for row in rows[1:]:
        table.add_row(*row)
    console.print(table)
    for note in notes:
        console.print(f"note: {note}")
    console.print(f"written to {out}")
