"""`assay run plan`: a table of runs and a budget in; the size and tokens to train out, with how far to trust them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.errors import InputError
from assay.outputs import write_folder

if TYPE_CHECKING:
    import pandas as pd

    from assay.scaling.plan.planning import Plan

SHOWN = ["error", "low", "high", "clearly_worse", "N", "D", "loss"]


def run(
    data: Annotated[
        Path, typer.Option(help="CSV of runs: N, D (or B, K), loss; optional lr, precision, date, group, C.")
    ],
    flops: Annotated[float, typer.Option(help="The budget in FLOP, such as 1e21.")],
    columns: Annotated[
        str, typer.Option(help="Columns under other names, such as N=params,D=tokens_b*1e9.")
    ] = "",
    seq_len: Annotated[float | None, typer.Option(help="Tokens a sequence, for laws that choose a batch.")] = None,
    vocab: Annotated[int | None, typer.Option(help="Tokens of the vocabulary, to find runs that diverged.")] = None,
    group: Annotated[str, typer.Option(help="Column that names the run of a checkpoint, or a family of runs.")] = "",
    holdout: Annotated[
        str, typer.Option(help="Quantiles of compute above which runs are held out to rank the laws.")
    ] = "0.5,0.7,0.85",
    best_within: Annotated[
        float | None, typer.Option(help="Of runs within such a factor in N and D keep the best: for untuned runs.")
    ] = None,
    laws: Annotated[str, typer.Option(help="Only these laws, such as chinchilla,kaplan.")] = "",
    starts: Annotated[int, typer.Option(help="Starts of each fit.")] = 16,
    refits: Annotated[int, typer.Option(help="Refits behind the interval.")] = 100,
    out: Annotated[
        Path, typer.Option(help="Folder for plan.json, laws.csv, allocation.csv, report.md and the pictures.")
    ] = Path("plan-out"),
) -> None:
    """Fit every law that the table allows, rank them on held-out larger runs, and divide the budget."""
    from assay.scaling.plan.planning import plan_run
    from assay.scaling.tables import parse_columns

    if out.exists() and not out.is_dir():
        raise InputError(f"--out: {out} is a file, a folder is needed")
    named = parse_columns(columns)
    if group:
        named["group"] = group
    plan = plan_run(
        data, flops, columns=named, seq_len=seq_len, vocab=vocab, holdout=_quantiles(holdout), best_within=best_within,
        laws=[name.strip() for name in laws.split(",")] if laws else None, n_starts=starts, n_refits=refits,
    )
    files = {
        "plan.json": _json(plan), "laws.csv": plan.laws.to_csv(float_format="%.6g").encode(),
        "allocation.csv": plan.allocation.to_csv(float_format="%.6g", index_label="quantity").encode(),
        "report.md": _report(data.name, plan).encode(), **_pictures(plan),
    }
    write_folder(out, files)
    _print(plan, out)


def example(folder: Path) -> list[str]:
    """Write a table of real runs into the folder; the arguments that plan with it."""
    from assay.datasets import load_dataset

    path = folder / "runs.csv"
    load_dataset("plan-smoke-runs")[["N", "B", "K", "tokens", "loss"]].to_csv(path, index=False)
    return [
        "--data", str(path), "--flops", "1e13", "--holdout", "0.7", "--laws", "chinchilla,kaplan", "--starts", "2",
        "--refits", "10", "--out", str(folder / "plan-out"),
    ]


def _quantiles(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--holdout must be quantiles such as 0.5,0.7, got {text!r}") from None


def _json(plan: Plan) -> bytes:
    content = {
        "law": plan.law, "compute": plan.compute, "allocation": plan.allocation.to_dict("index"),
        "laws": plan.laws.to_dict("index"), "disagreement": plan.disagreement.to_dict("index"),
        "parameters": {name: law.params_ for name, law in plan.fitted.items()}, "excluded": plan.excluded,
        "notes": plan.notes,
    }
    return (json.dumps(_plain(content), indent=1, allow_nan=False) + "\n").encode()


def _plain(value: Any) -> Any:
    """Numbers as Python has them; what is no number (or not finite) as null."""
    import numpy as np

    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(value) if np.isfinite(value) else None
    return value


def _pictures(plan: Plan) -> dict[str, bytes]:
    from assay.pictures import NO_PICTURES, draw
    from assay.scaling.plan.charts import laws_chart, ranking_chart

    charts = {"laws": laws_chart(plan), "ranking": ranking_chart(plan)}
    drawings = draw(charts, ("svg", "png"))
    if not drawings:
        plan.notes.append(f"{NO_PICTURES}; their specifications are written.")
    written = {f"{name}.vl.json": (json.dumps(chart, indent=1) + "\n").encode() for name, chart in charts.items()}
    return written | drawings


def _report(name: str, plan: Plan) -> str:
    lines = [
        f"# {plan.compute:.3g} FLOP, from {name}", "",
        f"{plan.law} extrapolated best on the held-out larger runs of those laws that choose a size.", "",
        "## Allocation", "",
        "`low` to `high`: 95 % interval of this law's refits, its own uncertainty only. `lowest` to `highest`: with "
        "the answers of the other laws that are not clearly worse.", "",
        *_markdown(plan.allocation, "quantity"), "", "## Laws", "",
        "`error`: mean absolute log error on held-out larger runs (0.01 is one per cent of the loss), with its 95 % "
        "interval. `fixed`: parameters that the runs fix.", "",
        *_markdown(plan.laws, "law"), "", "## Disagreement between the laws that are not clearly worse", "",
        *_markdown(plan.disagreement, "quantity"),
    ]
    if plan.excluded:
        lines += ["", "## Laws that were not fitted", "", *(f"- {law}: {why}" for law, why in plan.excluded.items())]
    if plan.notes:
        lines += ["", "## Notes", "", *(f"- {note}" for note in plan.notes)]
    return "\n".join(lines) + "\n"


def _markdown(table: pd.DataFrame, label: str) -> list[str]:
    lines = [f"| {' | '.join([label, *map(str, table.columns)])} |", f"|{'---|' * (len(table.columns) + 1)}"]
    rows = zip(table.index, table.to_numpy(dtype=object), strict=True)
    return lines + [f"| {' | '.join([str(name), *map(_cell, row)])} |" for name, row in rows]


def _cell(value: Any, digits: int = 4) -> str:
    import numpy as np

    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, (float, np.floating)):
        return "" if np.isnan(value) else f"{value:.{digits}g}"
    return str(value)


def _print(plan: Plan, out: Path) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for title, frame in (
        (f"{plan.compute:.3g} FLOP, by {plan.law}", plan.allocation),
        ("Laws, the least held-out error first", plan.laws[SHOWN]),
    ):
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("", no_wrap=True)
        for column in frame.columns:
            table.add_column(str(column).replace("_", " "), overflow="fold")
        for name, row in zip(frame.index, frame.to_numpy(dtype=object), strict=True):
            table.add_row(str(name), *(_cell(value, 3) for value in row))
        console.print(table)
    for law, why in plan.excluded.items():
        console.print(f"not fitted: {law}: {why}", markup=False)
    for note in plan.notes:
        console.print(f"note: {note}", markup=False)
    console.print(f"written to {out}", markup=False)
