"""`assay run split-training`: fit the law to a table of two-phase runs and plan how a budget is split."""

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

    from assay.scaling.split_training.law import SplitLaw
    from assay.scaling.split_training.planning import SplitPlan


def run(
    runs: Annotated[
        Path,
        typer.Option(
            help="CSV of runs with the columns N (or n_params), D (shared tokens), Dp (tokens on the domain), loss; "
            "domain, where there are several; seed, where trunks were repeated."
        ),
    ],
    budget: Annotated[float, typer.Option(help="Tokens to spend on everything together; FLOP with --flops.")],
    flops: Annotated[bool, typer.Option("--flops", help="The budget is FLOP, at 6 N a token.")] = False,
    n_params: Annotated[
        float | None, typer.Option(help="Parameters of the model; by default the largest of the runs.")
    ] = None,
    domains: Annotated[
        int | None, typer.Option(help="How many specialists, where the runs name one domain; else those of the runs.")
    ] = None,
    weights: Annotated[
        str, typer.Option(help="How much each domain counts, such as c=2,prose=1; equal by default.")
    ] = "",
    trunk: Annotated[
        str, typer.Option(help="shared: all specialists leave one trunk; independent: one each.")
    ] = "shared",
    most_branch: Annotated[
        float | None, typer.Option(help="Most tokens of a branch: what the smallest domain holds without repeats.")
    ] = None,
    form: Annotated[str, typer.Option(help="auto, transfer, separable or multiplicative.")] = "auto",
    scratch: Annotated[
        bool, typer.Option("--scratch/--no-scratch", help="Fit runs without a shared phase (D = 0) as well.")
    ] = True,
    refits: Annotated[int, typer.Option(help="Refits to resampled trunks, behind the intervals.")] = 100,
    starts: Annotated[int, typer.Option(help="Starts of each fit.")] = 200,
    columns: Annotated[
        str, typer.Option(help="Columns under other names, such as N=size,D=shared; with a factor: D=shared_b*1e9.")
    ] = "",
    out: Annotated[
        Path, typer.Option(help="Folder for law.json, plan.json, curve.csv, predictions.csv, report.md.")
    ] = Path("split-training-out"),
) -> None:
    """Fit a loss law in size, shared and domain tokens, and say where a budget should branch into specialists."""
    from assay.scaling.split_training.planning import split_curve
    from assay.scaling.split_training.tables import read_split_runs
    from assay.scaling.tables import read_table

    if out.exists() and not out.is_dir():
        raise InputError(f"--out: {out} is a file, a folder is needed")
    read = read_split_runs(read_table(runs), runs.name, columns)
    table, notes = _kept(read.runs, scratch, runs.name, list(read.notes))
    law = _fitted(table, form, starts, notes)
    plan = _planned(law, table, budget, flops, n_params, domains, weights, trunk, most_branch, refits, notes)
    curve = split_curve(law, plan.tokens, plan.N, n_domains=len(plan.Dp), trunk=trunk)
    errors = _errors(law, table)
    files = {
        "law.json": _json(_law_facts(law, errors, notes)), "plan.json": _json(plan.to_dict()),
        "curve.csv": curve.to_csv(index=False, float_format="%.6g").encode(),
        "predictions.csv": errors.to_csv(index=False, float_format="%.6g").encode(),
        "report.md": _report(runs.name, law, plan, errors, notes).encode(),
    }
    write_folder(out, files | _pictures(curve, plan, runs.name, notes))
    _print(law, plan, notes, out)


def example(folder: Path) -> list[str]:
    """Write a table of real runs into the folder; the arguments that fit it."""
    from assay.datasets import load_dataset
    from assay.scaling.split_training.tables import own_runs

    rows = own_runs(load_dataset("split-training-smoke"))
    rows = rows[(rows["family"] == "grid") & (rows["D"] > 0)]
    path = folder / "runs.csv"
    rows[["N", "D", "Dp", "domain", "seed", "loss"]].to_csv(path, index=False)
    return [
        "--runs", str(path), "--budget", "3e6", "--starts", "16", "--refits", "8", "--out",
        str(folder / "split-training-out"),
    ]


def _kept(table: pd.DataFrame, scratch: bool, where: str, notes: list[str]) -> tuple[pd.DataFrame, list[str]]:
    """The rows that are fitted."""
    without = table["D"] == 0
    if not scratch and without.any():
        notes.append(f"{without.sum()} runs without a shared phase are left out.")
        table = table[~without].reset_index(drop=True)
    elif without.any():
        notes.append(
            f"{without.sum()} runs without a shared phase are fitted too; they follow another schedule "
            f"(--no-scratch leaves them out)."
        )
    if not len(table):
        raise InputError(f"{where}: no runs are left to fit")
    return table, notes


def _fitted(table: pd.DataFrame, form: str, starts: int, notes: list[str]) -> SplitLaw:
    from assay.scaling.split_training.law import SplitLaw

    several = table["domain"].nunique() > 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        law = SplitLaw(form, n_starts=starts).fit(
            table, table["loss"], domain=table["domain"] if several else None, groups=table["group"]
        )
    notes += _sentences(caught)
    return law


def _planned(
    law: SplitLaw, table: pd.DataFrame, budget: float, flops: bool, n_params: float | None, domains: int | None,
    weights: str, trunk: str, most_branch: float | None, refits: int, notes: list[str],
) -> SplitPlan:
    from assay.scaling.split_training.planning import optimal_split

    if table["group"].nunique() < 3:
        refits, said = 0, f"{table['group'].nunique()} trunks are too few to draw from: no intervals."
        notes.append(said)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        plan = optimal_split(
            law, **{"flops" if flops else "tokens": budget},  # type: ignore[arg-type]
            n_params=float(table["N"].max()) if n_params is None else n_params, n_domains=domains,
            weights=_weights(weights), trunk=trunk, n_refits=refits,
            bounds=None if most_branch is None else {"Dp": (0.0, most_branch)},
        )
    notes += _sentences(caught)
    return plan


def _weights(text: str) -> dict[str, float] | None:
    found: dict[str, float] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, equals, number = (part.strip() for part in pair.partition("="))
        try:
            found[name] = float(number)
        except ValueError:
            equals = ""
        if not equals or not name:
            raise InputError(f"--weights are named as c=2,prose=1, got {pair!r}")
    return found or None


def _sentences(caught: list[warnings.WarningMessage]) -> list[str]:
    texts = dict.fromkeys(str(w.message) for w in caught if w.category is UserWarning)
    return [f"{text[0].upper()}{text[1:]}." for text in texts]


def _errors(law: SplitLaw, table: pd.DataFrame) -> pd.DataFrame:
    predicted = law.predict(table, table["domain"].to_numpy() if hasattr(law, "laws_") else None)
    return table.drop(columns="group").assign(predicted=predicted, error=predicted / table["loss"].to_numpy() - 1)


def _law_facts(law: SplitLaw, errors: pd.DataFrame, notes: list[str]) -> dict[str, Any]:
    return {
        "form": law.form_, "parameters": law.params_, "held_out_error": law.cv_error_, "fitted_runs": len(errors),
        "mean_relative_error": float(errors["error"].abs().mean()), "notes": notes,
    }


def _json(content: dict[str, Any]) -> bytes:
    """As JSON, a value that there is none for as null."""
    import math

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(key): plain(part) for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(part) for part in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return (json.dumps(plain(content), indent=1) + "\n").encode()


def _pictures(curve: pd.DataFrame, plan: SplitPlan, name: str, notes: list[str]) -> dict[str, bytes]:
    import pandas as pd

    from assay.pictures import NO_PICTURES, draw
    from assay.scaling.split_training.charts import curve_chart

    chosen = pd.DataFrame({"share": [plan.share], "loss": [plan.loss]})
    chart = curve_chart(curve, chosen, f"Split of the budget, {name}")
    drawings = draw({"curve": chart}, ("svg", "png"))
    if not drawings:
        notes.append(f"{NO_PICTURES}; the specification is written.")
    return {"curve.vl.json": _json(chart), **drawings}


def _report(name: str, law: SplitLaw, plan: SplitPlan, errors: pd.DataFrame, notes: list[str]) -> str:
    from assay.scaling.split_training.law import parameter_table

    parameters, miss = parameter_table(law), errors["error"].abs().mean()
    lines = [
        f"# Split of a budget, from {name}", "",
        f"The {law.form_} form, fitted to {len(errors)} runs, misses them by {miss:.2%} on average.",
        "", "## Plan", "",
        f"Size {plan.N:.4g}, {plan.tokens:.4g} tokens ({plan.flops:.3g} FLOP), {plan.trunk} trunk.", "",
        "| | plan | low | high |", "|---|---|---|---|", *_plan_lines(plan), "",
        "## Fixed rules at the same budget", "", "| rule | predicted loss |", "|---|---|",
        f"| the plan | {plan.loss:.4f} |",
        *(f"| {rule} | {_number(loss)} |" for rule, loss in plan.baselines.items()), "",
        "`full` is a trunk whose learning rate has not fallen; one model trained to its end does better.", "",
        "## Parameters", "", f"| domain | {' | '.join(parameters.columns)} |",
        f"|{'---|' * (len(parameters.columns) + 1)}",
        *(f"| {row} | {' | '.join(f'{v:.4g}' for v in values)} |" for row, values in parameters.iterrows()),
    ]
    if law.cv_error_:
        listed = ", ".join(f"{form} {error:.2%}" for form, error in law.cv_error_.items())
        lines += ["", f"Held-out error of the forms: {listed}."]
    if notes:
        lines += ["", "## Notes", "", *(f"- {note}" for note in notes)]
    return "\n".join(lines) + "\n"


def _plan_lines(plan: SplitPlan) -> list[str]:
    if not len(plan.interval):
        branches = {f"Dp {name}": tokens for name, tokens in plan.Dp.items()}
        rows = {"D": plan.D, **branches, "share": plan.share, "loss": plan.loss}
        return [f"| {name} | {value:.4g} | | |" for name, value in rows.items()]
    return [f"| {name} | {' | '.join(f'{v:.4g}' for v in values)} |" for name, values in plan.interval.iterrows()]


def _number(loss: float) -> str:
    return f"{loss:.4f}" if loss == loss else "the form has no value"


def _print(law: SplitLaw, plan: SplitPlan, notes: list[str], out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title=f"{plan.tokens:.4g} tokens, {plan.trunk} trunk, {law.form_} form")
    for heading in ("", "plan", "low", "high"):
        table.add_column(heading)
    for line in _plan_lines(plan):
        table.add_row(*(cell.strip() for cell in line.strip("|").split("|")))
    console.print(table)
    rules = ", ".join(f"{rule} {_number(loss)}" for rule, loss in plan.baselines.items())
    console.print(f"fixed rules: {rules}")
    for note in notes:
        console.print(f"note: {note}")
    console.print(f"written to {out}")
