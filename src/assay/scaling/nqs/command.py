"""`assay run nqs`: fit the law to a table of finished runs, test it on the larger ones, and say what it predicts."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.errors import InputError
from assay.outputs import write_folder

if TYPE_CHECKING:
    import pandas as pd

ROLES = {"train": True, "test": False}


def run(
    data: Annotated[Path, typer.Option(help="CSV of runs with the columns N, B (sequences), K (updates), loss.")],
    holdout: Annotated[
        str,
        typer.Option(
            help="`split`: a column `split` says train or test; `compute:10`: test the runs above a tenth of the "
            "largest compute."
        ),
    ] = "compute:10",
    variant: Annotated[str, typer.Option(help="Risk used for predictions: regularized or standard.")] = "regularized",
    compute: Annotated[
        float | None, typer.Option(help="FLOP of a planned run: also choose N, B and K for it (needs --seq-len).")
    ] = None,
    seq_len: Annotated[int | None, typer.Option(help="Tokens a sequence, for --compute.")] = None,
    starts: Annotated[int, typer.Option(help="Starts of each fit.")] = 64,
    columns: Annotated[
        str, typer.Option(help="Columns under other names, such as N=params,K=steps; with a factor: N=size_m*1e6.")
    ] = "",
    out: Annotated[Path, typer.Option(help="Folder for fit.json, predictions.csv, report.md and the plots.")] = Path(
        "nqs-out"
    ),
) -> None:
    """Fit the noisy quadratic system and today's laws to the smaller runs of a table and test them on the rest."""
    from assay.scaling.nqs.estimator import VARIANTS
    from assay.scaling.tables import parse_columns, read_table

    if variant not in VARIANTS:
        raise InputError(f"--variant must be one of {', '.join(VARIANTS)}, got {variant}")
    if (compute is None) != (seq_len is None):
        raise InputError("--compute and --seq-len belong together")
    if out.exists() and not out.is_dir():
        raise InputError(f"--out: {out} is a file, a folder is needed")
    runs, notes = _split_runs(read_table(data), data.name, holdout, parse_columns(columns), seq_len)
    laws = _fit_laws(runs[runs["fitted"]], variant, starts, notes)
    nqs = laws["nqs"]
    errors = _error_table(laws, runs)
    files = {"fit.json": _fit_json(nqs, errors, notes), "predictions.csv": _predictions(nqs, runs)}
    files |= _plots(nqs, runs, notes)
    choices = None
    if compute is not None and seq_len is not None:
        choices = nqs.optimal(compute, seq_len=seq_len)
        files["choices.csv"] = choices.to_csv(index=False).encode()
    files["report.md"] = _report(data.name, nqs, errors, choices, notes, compute).encode()
    write_folder(out, files)
    _print(errors, choices, notes, out)


def example(folder: Path) -> list[str]:
    """Write a table of real runs into the folder; the arguments that fit it."""
    from assay.datasets import load_dataset

    path = folder / "runs.csv"
    load_dataset("nqs-smoke-runs")[["N", "B", "K", "loss"]].to_csv(path, index=False)
    return [
        "--data", str(path), "--holdout", "compute:4", "--variant", "standard", "--starts", "16",
        "--out", str(folder / "nqs-out"),
    ]


def _split_runs(
    table: pd.DataFrame, name: str, holdout: str, columns: dict[str, str], seq_len: int | None
) -> tuple[pd.DataFrame, list[str]]:
    """The runs with budgets, batch sweeps and what is fitted, and notes on what a reader should know."""
    from assay.scaling.nqs.runs import designed, doublings, unfiltered
    from assay.scaling.tables import read_run_table

    kept = unfiltered(table)
    notes = [f"{len(table) - len(kept)} runs marked as filtered are left out."] if len(kept) < len(table) else []
    if not len(kept):
        raise InputError(f"{name} holds no runs" + (" but filtered ones" if notes else ""))
    read = read_run_table(kept, ["N", "B", "K", "loss"], columns=columns, seq_len=seq_len, where=name)
    notes += read.notes
    runs = read.runs[["N", "B", "K", "loss"]]
    table = kept.loc[runs.index].reset_index(drop=True)
    runs = runs.reset_index(drop=True)
    compute = runs["N"] * runs["B"] * runs["K"]
    runs = designed(runs, 1, doublings(runs, name))
    if holdout == "split":
        fitted = _split_column(table, name)
    else:
        fitted = compute.to_numpy() <= compute.max() / _ratio(holdout)
    runs["fitted"] = fitted
    if not fitted.any() or fitted.all():
        raise InputError(f"{name}: --holdout {holdout} leaves {fitted.sum()} runs to fit and {(~fitted).sum()} to test")
    inside = runs.loc[~runs["fitted"], "C"] <= runs.loc[runs["fitted"], "C"].max()
    if inside.any():
        notes.append(f"{inside.sum()} of {len(inside)} test runs lie within the fitted compute: no extrapolation.")
    return runs, notes


def _split_column(table: pd.DataFrame, name: str) -> Any:
    if "split" not in table.columns:
        raise InputError(f"{name} lacks the column split, which --holdout split needs (values train and test)")
    unknown = table.loc[~table["split"].isin(list(ROLES)), "split"]
    if len(unknown):
        raise InputError(f"{name}: split must be train or test, got {unknown.iloc[0]!r} in row {unknown.index[0]}")
    return table["split"].map(ROLES).to_numpy(dtype=bool)


def _ratio(holdout: str) -> float:
    kind, _, number = holdout.partition(":")
    try:
        ratio = float(number)
    except ValueError:
        ratio = 0.0
    if kind != "compute" or not 1 < ratio < float("inf"):
        raise InputError(f"--holdout must be split or compute:RATIO with a ratio above 1, got {holdout}")
    return ratio


def _fit_laws(fitted: pd.DataFrame, variant: str, starts: int, notes: list[str]) -> dict[str, Any]:
    """The law and the laws of today, on the same runs; warnings become notes."""
    from assay.scaling.fit import ChinchillaLaw
    from assay.scaling.nqs.estimator import NQS

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        laws = {
            "nqs": NQS(variant=variant, n_starts=starts).fit(fitted, fitted["loss"]),
            "chinchilla": ChinchillaLaw(n_starts=starts).fit(fitted, fitted["loss"]),
        }
        if fitted["B"].nunique() > 1:
            laws["chinchilla-batch"] = ChinchillaLaw(batch_aware=True, n_starts=starts).fit(fitted, fitted["loss"])
        sized = fitted[fitted["isoflop"]]
        if 6 <= len(sized) < len(fitted):
            laws["chinchilla-isoflop"] = ChinchillaLaw(n_starts=starts).fit(sized, sized["loss"])
    notes += [f"{str(w.message)[0].upper()}{str(w.message)[1:]}." for w in caught if w.category is UserWarning]
    return laws


def _error_table(laws: dict[str, Any], runs: pd.DataFrame) -> pd.DataFrame:
    import numpy as np
    import pandas as pd

    kinds = {
        "fitted": runs["fitted"], "held_out": ~runs["fitted"], "held_out_sizes": ~runs["fitted"] & runs["isoflop"],
        "held_out_sweeps": ~runs["fitted"] & (runs["sweep"] != ""),
    }
    rows = []
    for name, law in laws.items():
        squared = (np.log(law.predict(runs)) - np.log(runs["loss"].to_numpy())) ** 2
        means = {kind: float(squared[mask].mean()) for kind, mask in kinds.items() if mask.any()}
        rows.append({"law": name, **means})
    return pd.DataFrame(rows)


def _fit_json(nqs: Any, errors: pd.DataFrame, notes: list[str]) -> bytes:
    fit = {
        "parameters": nqs.params_, "variant": nqs.variant, "lr": nqs.lr, "fitted_runs": len(nqs.rows_),
        "cost": nqs.cost_, "rmsle_percent": nqs.rmsle_, "mean_squared_log_error": nqs.msle_, "starts": nqs.n_starts,
        "starts_converged": nqs.n_converged_, "errors": errors.set_index("law").to_dict("index"), "notes": notes,
    }
    return (json.dumps(fit, indent=1) + "\n").encode()


def _predictions(nqs: Any, runs: pd.DataFrame) -> bytes:
    table = runs[["N", "B", "K", "loss"]].assign(
        fitted=runs["fitted"], predicted=nqs.predict(runs), predicted_standard=nqs.predict(runs, "standard"),
        **nqs.decompose(runs).to_dict("list"),
    )
    return table.to_csv(index=False, float_format="%.6g").encode()


def _plots(nqs: Any, runs: pd.DataFrame, notes: list[str]) -> dict[str, bytes]:
    """Measured and predicted losses over size and over batch, as specification, SVG and PNG."""
    import pandas as pd

    from assay.pictures import NO_PICTURES, draw
    from assay.scaling.nqs.charts import isoflop_chart, isotoken_chart

    held_out = runs[~runs["fitted"]].assign(predicted=lambda r: nqs.predict(r))
    sized = held_out[held_out["isoflop"]].assign(kind="isoflop", group=lambda r: "2^" + r["budget"].astype(str))
    swept = held_out[held_out["sweep"] != ""].assign(kind="isotoken", group=lambda r: r["sweep"])
    units = pd.concat([sized, swept], ignore_index=True)
    drawn = {"isoflop": isoflop_chart(units, "your runs"), "isotoken": isotoken_chart(units, "your runs")}
    files: dict[str, bytes] = {}
    for name, chart in drawn.items():
        if chart is None:
            notes.append(f"No held-out runs for the {name} plot.")
            continue
        files[f"{name}.vl.json"] = (json.dumps(chart, indent=1) + "\n").encode()
    drawings = draw({name: chart for name, chart in drawn.items() if chart is not None}, ("svg", "png"))
    if files and not drawings:
        notes.append(f"{NO_PICTURES}; their specifications are written.")
    return files | drawings


def _report(
    name: str, nqs: Any, errors: pd.DataFrame, choices: pd.DataFrame | None, notes: list[str], compute: float | None
) -> str:
    headings = [column.replace("_", " ") for column in errors.columns]
    lines = [
        f"# Noisy quadratic system on {name}", "",
        f"Fitted to {len(nqs.rows_)} runs; predictions by the {nqs.variant} risk.", "",
        "## Mean squared log error", "",
        f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}",
        *(f"| {row.iloc[0]} | {' | '.join(f'{v:.3g}' for v in row.iloc[1:])} |" for _, row in errors.iterrows()),
        "", "Held-out sizes: at each size and token count the batch that did best. "
        "Held-out sweeps: runs that differ in batch size alone.", "",
        "## Parameters", "",
        ", ".join(f"{name} = {value:.4g}" for name, value in nqs.params_.items()), "",
        "The parameters trade off against each other: judge the fit by its held-out error.",
    ]
    if choices is not None:
        lines += [
            "", f"## Best runs of {compute:.3g} FLOP", "", "| N | B | K | predicted loss |", "|---|---|---|---|",
            *(f"| {r.N:.4g} | {r.B:.0f} | {r.K:.0f} | {r.loss:.4f} |" for r in choices.head(8).itertuples()),
        ]
    if notes:
        lines += ["", "## Notes", "", *(f"- {note}" for note in notes)]
    return "\n".join(lines) + "\n"


def _print(errors: pd.DataFrame, choices: pd.DataFrame | None, notes: list[str], out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title="Mean squared log error")
    for column in errors.columns:
        table.add_column(column.replace("_", " "))
    for row in errors.itertuples(index=False):
        table.add_row(row[0], *(f"{value:.3g}" for value in row[1:]))
    console.print(table)
    if choices is not None:
        best = choices.iloc[0]
        console.print(f"best run: N = {best.N:.4g}, B = {best.B:.0f}, K = {best.K:.0f}, loss {best.loss:.4f}")
    for note in notes:
        console.print(f"note: {note}")
    console.print(f"written to {out}")
