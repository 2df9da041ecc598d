"""`assay run meta-adaptation`: fit the law to curves of losses, and say how many steps are worth taking."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.errors import InputError
from assay.outputs import write_folder

if TYPE_CHECKING:
    import pandas as pd

POOLED = "pooled"


def run(
    data: Annotated[Path, typer.Option(help="CSV with one row a task and step; a column price is optional.")],
    fraction: Annotated[
        float | None, typer.Option(help="Share of the asymptotic gain to be reached (0.95 without a price).")
    ] = None,
    price: Annotated[float | None, typer.Option(help="Cost of a step in the unit of the loss.")] = None,
    probes: Annotated[int, typer.Option(help="Probe steps that the budget is told from.")] = 5,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap over tasks.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for fit.json, budget.csv, curve.png.")] = Path("adaptation-out"),
    task: Annotated[str, typer.Option(help="Column of the task.")] = "task",
    step: Annotated[str, typer.Option(help="Column of the step: 0, 1, 2, ... for each task.")] = "step",
    loss: Annotated[str, typer.Option(help="Column of the loss.")] = "loss",
) -> None:
    """Fit the adaptation law to losses along fine-tuning, and tell the budget of steps from the first ones."""
    if out.exists() and not out.is_dir():
        raise InputError(f"--out: {out} is a file, a folder is needed")
    if probes < 2:
        raise InputError(f"--probes must be 2 or more, got {probes}")
    losses, column_price = _read(data, {task: "task", step: "step", loss: "loss"})
    if price is not None and column_price is not None:
        raise InputError(f"{data.name} has a column price: leave --price away")
    goal = {"price": price if price is not None else column_price, "fraction": fraction}
    budgets = _budgets(losses, probes, goal, seed)
    fit, table = _fit(losses, seed)
    files = {
        "fit.json": (json.dumps(fit, indent=1) + "\n").encode(), "budget.csv": budgets.to_csv(index=False).encode(),
    }
    files |= _picture(table, data.name)
    write_folder(out, files)
    _print(fit, budgets, out)


def example(folder: Path) -> list[str]:
    """Write the losses of regulators along fine-tuning into the folder; the arguments that read them."""
    from assay.scaling.meta_adaptation.lqr import LQRFamily

    curves = LQRFamily.draw(8, 0.25, 0).curve(30)
    lines = ["task,step,loss"]
    lines += [f"regulator-{i},{k},{loss:.9f}" for i, curve in enumerate(curves) for k, loss in enumerate(curve)]
    path = folder / "curves.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return ["--data", str(path), "--price", "0.00001", "--out", str(folder / "adaptation-out")]


def _read(path: Path, named: dict[str, str]) -> tuple[pd.DataFrame, float | None]:
    """Losses with one row a task and one column a step; the price of a step if the file has one."""
    from assay.scaling.tables import read_table

    table = read_table(path)
    if len(named) < 3:
        raise InputError("--task, --step and --loss must name three different columns")
    missing = [name for name in named if name not in table.columns]
    if missing:
        raise InputError(
            f"{path.name} lacks the column {', '.join(missing)}; it has {', '.join(map(str, table.columns[:8]))}; say "
            "with --task, --step and --loss which columns to read"
        )
    if not len(table):
        raise InputError(f"{path.name} holds no rows")
    price = _price(table, path.name)
    table = table[list(named)].rename(columns=named)
    for name in ("step", "loss"):
        table[name] = _numbers(table[name], name, path.name)
    _check_rows(table, path.name)
    return _wide(table, path.name), price


def _check_rows(table: pd.DataFrame, file: str) -> None:
    if table["task"].isna().any() or table["step"].isna().any():
        row = int((table["task"].isna() | table["step"].isna()).to_numpy().argmax())
        raise InputError(f"{file}: row {row} lacks its task or its step")
    if ((table["step"] < 0) | (table["step"] % 1 != 0)).any():
        raise InputError(f"{file}: step must be a whole number, 0 or more")
    for bad, says in ((table.duplicated(["task", "step"]), "repeats"), (table["loss"] < 0, "has a negative loss at")):
        if bad.any():
            row = int(bad.to_numpy().argmax())
            step, task = table["step"].iloc[row], table["task"].iloc[row]
            raise InputError(f"{file}: row {row} {says} step {step:g} of task {task}")


def _wide(table: pd.DataFrame, file: str) -> pd.DataFrame:
    steps = sorted(table["step"].unique())
    if steps != list(range(len(steps))):
        first = ", ".join(f"{k:g}" for k in steps[:8])
        raise InputError(f"{file}: the steps must be 0, 1, 2, ... without a gap, got {first}")
    wide = table.pivot(index="task", columns="step", values="loss")
    absent = wide.index[(table.groupby("task").size().reindex(wide.index) < wide.shape[1])]
    if len(absent):
        raise InputError(f"{file}: task {absent[0]} has fewer steps than others, {wide.shape[1]} are needed")
    return wide


def _numbers(column: pd.Series, name: str, file: str) -> pd.Series:
    import pandas as pd

    found = pd.to_numeric(column, errors="coerce")
    bad = found.isna() & column.notna()
    if bad.any():
        row = int(bad.to_numpy().argmax())
        raise InputError(f"{file}: {name} must be a number, got {column.iloc[row]!r} in row {row}")
    return found.astype(float)


def _price(table: pd.DataFrame, file: str) -> float | None:
    if "price" not in table.columns:
        return None
    prices = _numbers(table["price"], "price", file).dropna().unique()
    if len(prices) != 1:
        raise InputError(f"{file}: the column price must hold one number, got {len(prices)} different ones")
    return float(prices[0])


def _budgets(losses: pd.DataFrame, probes: int, goal: dict[str, Any], seed: int) -> pd.DataFrame:
    """One row a task, and the pooled one; a task with a loss that is not finite says so."""
    import numpy as np
    import pandas as pd

    from assay.scaling.meta_adaptation.law import adaptation_budget

    table = losses.to_numpy()[:, : probes + 1]
    pooled = adaptation_budget(table, random_state=seed, **goal)
    rows = []
    for task, curve in zip(losses.index, table, strict=True):
        if not np.isfinite(curve).all():
            rows.append({"task": task, "reliable": False, "reason": "dropped: a loss is not finite"})
            continue
        rows.append(_row(str(task), adaptation_budget(curve, **goal)))
    return pd.DataFrame([*rows, _row(POOLED, pooled)])[
        ["task", "k_star", "k_low", "k_high", "a_inf", "beta", "reliable", "reason"]
    ]


def _row(task: str, budget: Any) -> dict[str, Any]:
    low, high = budget.ci.get("k_star", [float("nan")] * 2)
    return {
        "task": task, "k_star": budget.k_star, "k_low": low, "k_high": high, "a_inf": budget.a_inf, "beta": budget.beta,
        "reliable": budget.reliable, "reason": budget.reason,
    }


def _fit(losses: pd.DataFrame, seed: int) -> tuple[dict[str, Any], pd.DataFrame]:
    """The law on all steps as a JSON object, and means with the fitted curve; too few steps leave the fit away."""
    import numpy as np
    import pandas as pd

    from assay.scaling.meta_adaptation.law import LEAST_LOSSES, fit_adaptation_law

    table = losses.to_numpy()
    finite = np.isfinite(table).all(axis=1)
    gains = table[finite, :1] - table[finite]
    steps = np.arange(table.shape[1])
    means = pd.DataFrame({"K": steps, "gain": gains.mean(axis=0), "fit": np.nan})
    counted = {"tasks": int(finite.sum()), "dropped": int((~finite).sum()), "steps": int(steps[-1])}
    if steps[-1] < LEAST_LOSSES:
        return {**counted, "verdict": f"{LEAST_LOSSES} steps or more are needed to fit the law"}, means
    fit = fit_adaptation_law(steps, gains, random_state=seed)
    if np.isfinite(fit.beta):
        means["fit"] = fit.predict(steps)
    found = json.loads(fit.to_json())
    return {**counted, **{name: _plain(value) for name, value in found.items()}}, means


def _plain(value: Any) -> Any:
    """JSON has no NaN: null stands for it."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and value != value else value


def _picture(table: pd.DataFrame, name: str) -> dict[str, bytes]:
    from assay.pictures import draw
    from assay.scaling.meta_adaptation.charts import curve_chart

    chart = curve_chart(table, f"Gain over steps, {name}")
    return {"curve.vl.json": (json.dumps(chart, indent=1) + "\n").encode(), **draw({"curve": chart}, ("png",))}


def _print(fit: dict[str, Any], budgets: pd.DataFrame, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title="Steps worth taking, told from the probe steps")
    for column in ("task", "k_star", "k_low", "k_high", "reliable", "reason"):
        table.add_column(column)
    shown = budgets if len(budgets) <= 12 else budgets.tail(1)
    for row in shown.itertuples(index=False):
        numbers = (f"{value:.3g}" for value in (row.k_star, row.k_low, row.k_high))
        table.add_row(str(row.task), *numbers, "yes" if row.reliable else "no", str(row.reason))
    console.print(table)
    if fit.get("r2") is not None:
        console.print(f"law: A = {fit['a_inf']:.4g}, beta = {fit['beta']:.4g} a step, R2 = {fit['r2']:.5f}")
    console.print(f"verdict on the law: {fit['verdict']}")
    if fit["dropped"]:
        console.print(f"note: {fit['dropped']} tasks with a loss that is not finite are left out")
    console.print(f"written to {out}")
