"""`assay run prescriptive`: boundaries of a table of models, with their coverage, drift and what to evaluate."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from assay.scaling.prescriptive.boundary import CapabilityBoundary

DRAWN_POINTS = 60


def run(
    data: Annotated[Path, typer.Option(help="CSV of models, one a row.")],
    x: Annotated[
        str, typer.Option(help="Column of pre-training compute in FLOP; without it, from the table's usual columns.")
    ] = "flops",
    y: Annotated[str, typer.Option(help="Columns of scores between 0 and 1, by commas.")] = "score",
    time: Annotated[str | None, typer.Option(help="Column of dates (or ordered numbers): also test drift.")] = None,
    periods: Annotated[
        str | None, typer.Option(help="Last dates of the periods, by commas (by default two halves of the models).")
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Column of what shares compute and skill (the base model): bands and p go by it.")
    ] = None,
    quantile: Annotated[float, typer.Option(help="Level of the boundary.")] = 0.98,
    penalty: Annotated[
        float, typer.Option(help="lambda_b: 0.01 is the paper's, 0 lets the curve be as steep as it likes.")
    ] = 1e-2,
    exact: Annotated[bool, typer.Option(help="Solve without smoothing, which covers the share asked for.")] = False,
    cost: Annotated[
        str | None, typer.Option(help="Column of what an evaluation costs: also choose what to evaluate.")
    ] = None,
    share: Annotated[float, typer.Option(help="Share of the total cost to spend, with --cost.")] = 0.2,
    refits: Annotated[
        int, typer.Option(help="Refits by group: bands, and a p of drift that counts the old curve's error.")
    ] = 0,
    out: Annotated[Path, typer.Option(help="Folder for fit.json, the tables, report.md and the plots.")] = Path(
        "prescriptive-out"
    ),
) -> None:
    """Fit the best score to expect at each compute, check its coverage, and choose which models to evaluate."""
    from assay.outputs import write_folder
    from assay.scaling.prescriptive.boundary import CapabilityBoundary

    if out.exists() and not out.is_dir():
        raise InputError(f"--out: {out} is a file, a folder is needed")
    if refits < 0:
        raise InputError(f"--refits must be 0 or more, got {refits}")
    if not 0 < share <= 1:
        raise InputError(f"--share must lie between 0 and 1, got {share:g}")
    if periods is not None and time is None:
        raise InputError("--periods needs --time, the column of dates")
    settings: dict[str, Any] = {"quantile": quantile, "lambda_b": penalty, "exact": exact}
    table, tasks, notes = _read(data, x, y, [c for c in (time, group, cost) if c is not None])
    if group is not None and table[group].isna().any():
        raise InputError(f"{data.name}: {group}: {int(table[group].isna().sum())} of {len(table)} models have no label")
    fits: dict[str, Any] = {}
    files: dict[str, bytes] = {}
    curves, coverage, charts = [], [], {}
    for task in tasks:
        rows = table[table[task].notna()]
        fitted = _fit(rows, task, settings, notes)
        free = _fit(rows, task, {**settings, "lambda_b": 0.0}, []) if penalty > 0 else fitted
        fits[task] = _summary(rows, task, fitted, free)
        coverage.append(fitted.coverage(rows["_flops"], rows[task]).bins.assign(task=task))
        drawn = _curves(rows, task, fitted, free, penalty, group, refits)
        curves.append(drawn.assign(task=task))
        charts[f"boundary-{_safe(task)}"] = _chart(rows, task, drawn)
    notes += _advice(fits, quantile, penalty, exact)
    files["curves.csv"] = _csv(curves)
    files["coverage.csv"] = _csv(coverage)
    drift = None
    if time is not None:
        drift = _drift(table, tasks, time, periods, group, CapabilityBoundary(**settings), refits)
        files["drift.csv"] = _csv([drift])
    if cost is not None:
        files["selection.csv"] = _selection(table, cost, share, fits[tasks[0]], tasks[0], notes)
    files["fit.json"] = (json.dumps({"settings": settings, "tasks": fits, "notes": notes}, indent=1) + "\n").encode()
    files |= _plots(charts, notes)
    files["report.md"] = _report(data.name, fits, drift, notes, quantile).encode()
    write_folder(out, files)
    _print(fits, drift, notes, quantile, out)


def example(folder: Path) -> list[str]:
    """Write a table of real models into the folder; the arguments that fit it."""
    from assay.datasets import load_dataset

    path = folder / "scores.csv"
    load_dataset("prescriptive-smoke").to_csv(path, index=False)
    return [
        "--data", str(path), "--x", "flops", "--y", "accuracy", "--time", "period", "--periods", "2,4",
        "--group", "family", "--cost", "params", "--refits", "20", "--out", str(folder / "prescriptive-out"),
    ]


def _read(data: Path, x: str, y: str, others: list[str]) -> tuple[pd.DataFrame, list[str], list[str]]:
    """The models with compute as `_flops`, the tasks, and notes on what is left out."""
    import numpy as np
    import pandas as pd

    from assay.errors import nearest
    from assay.scaling.prescriptive.boundary import log_compute, scores
    from assay.scaling.tables import read_run_table, read_table

    table = read_table(data)
    tasks = list(dict.fromkeys(name.strip() for name in y.split(",") if name.strip()))
    if not tasks:
        raise InputError("--y names no column of scores")
    columns = [str(c) for c in table.columns]
    for name in (*tasks, *others):
        if name not in columns:
            known = ", ".join(columns[:12])
            raise InputError(f"{data.name} has no column {name}{nearest(name, columns)}; it has {known}")
    if not len(table):
        raise InputError(f"{data.name} holds no models")
    if x in columns:
        table["_flops"] = pd.to_numeric(table[x], errors="coerce")
    else:
        found = read_run_table(table, ["C"], where=data.name)
        table = table.loc[found.runs.index].assign(_flops=found.runs["C"])
    log_compute(table["_flops"].to_numpy())
    notes = []
    for task in tasks:
        numbers = pd.to_numeric(table[task], errors="coerce")
        bad = numbers.isna() & table[task].notna()
        if bad.any():
            row = bad.idxmax()
            raise InputError(f"{data.name}: {task} must be numbers, got {table[task][row]!r} in row {row}")
        table[task] = numbers.astype(float)
        absent = int(numbers.isna().sum())
        if absent == len(table):
            raise InputError(f"{data.name}: {task} has no scores")
        if absent:
            notes.append(f"{absent} models without a score are left out of {task}.")
        if not np.isfinite(numbers.dropna()).all():
            raise InputError(f"{data.name}: {task} must be finite")
        try:
            scores(numbers.dropna().to_numpy())
        except InputError as error:
            raise InputError(f"{data.name}: {task}: {error}") from None
    return table, tasks, notes


def _fit(rows: pd.DataFrame, task: str, settings: dict[str, Any], notes: list[str]) -> CapabilityBoundary:
    from assay.scaling.prescriptive.boundary import CapabilityBoundary

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            fitted = CapabilityBoundary(**settings).fit(rows["_flops"].to_numpy(), rows[task].to_numpy())
        except InputError as error:
            raise InputError(f"{task}: {error}") from None
    notes += [f"{task}: {w.message}." for w in caught if w.category is UserWarning]
    return fitted


def _summary(rows: pd.DataFrame, task: str, fitted: Any, free: Any) -> dict[str, Any]:
    from assay.scaling.prescriptive.boundary import log_compute
    from assay.scaling.prescriptive.pinball import pinball

    z, y = log_compute(rows["_flops"].to_numpy()), rows[task].to_numpy()

    def loss(law: Any) -> float:
        return float(pinball(y - law._curve(z), law.quantile).mean())

    return {
        "models": len(rows), "distinct_computes": int(rows["_flops"].nunique()), "y0": fitted.y0_, "L": fitted.L_,
        "z_star": fitted.z_star_, "b": fitted.b_, "objective": fitted.objective_, "coverage": fitted.coverage_,
        "loss": loss(fitted), "loss_without_penalty": loss(free), "b_without_penalty": free.b_,
        "at_largest_compute": float(fitted._curve(z.max())), "largest_compute": float(rows["_flops"].max()),
    }


def _curves(
    rows: pd.DataFrame, task: str, fitted: Any, free: Any, penalty: float, group: str | None, refits: int
) -> pd.DataFrame:
    """The fitted curve, the one without penalty, and bin-wise quantiles, on a grid; with refits a band."""
    import numpy as np
    import pandas as pd

    from assay.scaling.prescriptive.baselines import BinnedQuantile

    grid = np.linspace(fitted.z_[0], fitted.z_[-1], DRAWN_POINTS)
    binned = BinnedQuantile(fitted.quantile, 10).fit(np.log10(rows["_flops"].to_numpy(float)), rows[task].to_numpy())
    parts = [pd.DataFrame({"curve": "boundary", "z": grid, "q": fitted._curve(grid)})]
    if refits:
        labels = rows[group].astype(str).to_numpy() if group is not None else None
        drawn = fitted.bootstrap(rows["_flops"].to_numpy(), rows[task].to_numpy(), refits, labels)
        low, high = fitted.predict_interval(10**grid, drawn)
        parts[0] = parts[0].assign(low=low, high=high)
    if penalty > 0:
        parts.append(pd.DataFrame({"curve": "without penalty", "z": grid, "q": free._curve(grid)}))
    parts.append(pd.DataFrame({"curve": "bin-wise", "z": grid, "q": binned.predict(grid)}))
    return pd.concat(parts, ignore_index=True)


def _chart(rows: pd.DataFrame, task: str, curves: pd.DataFrame) -> dict[str, Any]:
    import numpy as np
    import pandas as pd

    from assay.scaling.prescriptive.charts import boundary_chart

    points = pd.DataFrame({"z": np.log10(rows["_flops"].to_numpy(float)), "score": rows[task].to_numpy()})
    return boundary_chart(points, curves, task)


def _advice(fits: dict[str, Any], quantile: float, penalty: float, exact: bool) -> list[str]:
    """What the fits say about their own settings."""
    notes = []
    lifted = [task for task, fit in fits.items() if abs(fit["coverage"] - quantile) > 0.25 * (1 - quantile)]
    if lifted and not exact:
        notes.append(
            f"Coverage is not {quantile:g} on {', '.join(lifted)}: the smoothing lifts the curve; --exact does without."
        )
    bent = [task for task, fit in fits.items() if fit["loss"] > 1.1 * fit["loss_without_penalty"]]
    if bent and penalty > 0:
        notes.append(
            f"The penalty on steepness costs more than a tenth of the loss on {', '.join(bent)}: try --penalty 0."
        )
    return notes


def _drift(
    table: pd.DataFrame, tasks: list[str], time: str, periods: str | None, group: str | None, boundary: Any,
    refits: int,
) -> pd.DataFrame:
    from assay.scaling.prescriptive.validation import temporal_validation

    ends = _periods(table, time, periods)
    return temporal_validation(table, time, "_flops", tasks, ends, "cumulative", group, boundary, refits)


def _periods(table: pd.DataFrame, time: str, periods: str | None) -> list[Any]:
    import pandas as pd

    from assay.scaling.prescriptive.validation import read_dates

    numeric = pd.api.types.is_numeric_dtype(table[time])
    if periods is not None:
        given = [part.strip() for part in periods.split(",") if part.strip()]
        if not numeric:
            return given
        numbers = pd.to_numeric(pd.Series(given), errors="coerce")
        if numbers.isna().any():
            raise InputError(f"--periods must be numbers, as {time} is, got {periods}")
        return numbers.tolist()
    values = table[time] if numeric else read_dates(table[time], time)
    middle, last = values.quantile(0.5, interpolation="lower"), values.max()
    if middle == last:
        raise InputError(f"{time}: most models have the last date, so that two halves can't be made; give --periods")
    return [middle, last] if numeric else [str(middle.date()), str(last.ceil("D").date())]


def _selection(
    table: pd.DataFrame, cost: str, share: float, fit: dict[str, Any], task: str, notes: list[str]
) -> bytes:
    """The models to evaluate, in order, by the first task's boundary."""
    import numpy as np
    import pandas as pd

    from assay.scaling.prescriptive.design import select_evaluations

    costs = pd.to_numeric(table[cost], errors="coerce").to_numpy(float)
    z = np.log10(table["_flops"].to_numpy(float))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        theta = (fit["y0"], fit["L"], fit["z_star"], fit["b"])
        chosen = select_evaluations(z, costs, share * float(np.nansum(costs)), theta)
    notes += [f"{str(w.message)[0].upper()}{str(w.message)[1:]}." for w in caught]
    notes.append(
        f"{len(chosen)} of {len(table)} models chosen for {costs[chosen].sum() / costs.sum():.0%} of the cost, "
        f"by the boundary of {task}."
    )
    return _csv([table.iloc[chosen].drop(columns="_flops").assign(row=table.index[chosen])])


def _plots(charts: dict[str, Any], notes: list[str]) -> dict[str, bytes]:
    from assay.pictures import NO_PICTURES, draw

    files = {f"{name}.vl.json": (json.dumps(chart, indent=1) + "\n").encode() for name, chart in charts.items()}
    drawings = draw(charts, ("svg", "png"))
    if not drawings:
        notes.append(f"{NO_PICTURES}; their specifications are written.")
    return files | drawings


def _safe(task: str) -> str:
    """A task's name as a file name."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in task)


def _csv(frames: list[pd.DataFrame]) -> bytes:
    import pandas as pd

    return pd.concat(frames, ignore_index=True).to_csv(index=False, float_format="%.6g").encode()


HEADINGS = (
    "task", "models", "covered", "at the largest compute", "y0", "L", "z*", "b", "loss x 1000", "without penalty",
)


def _rows(fits: dict[str, Any]) -> list[list[str]]:
    return [
        [
            task, str(f["models"]), f"{f['coverage']:.1%}", f"{f['at_largest_compute']:.3f}", f"{f['y0']:.3f}",
            f"{f['L']:.3f}", f"{f['z_star']:.2f}", f"{f['b']:.2f}", f"{1e3 * f['loss']:.3f}",
            f"{1e3 * f['loss_without_penalty']:.3f}",
        ]
        for task, f in fits.items()
    ]


DRIFT_HEADINGS = (
    "task", "fitted to", "tested to", "models", "covered", "macro error", "above", "p by row", "p by group",
    "p with refits",
)


SHOWN, DRIFT_SHOWN = (0, 1, 2, 3, 7, 8, 9), (0, 2, 4, 5, 6, 8, 9)


def _drift_rows(drift: pd.DataFrame) -> list[list[str]]:
    return [
        [
            r.task, str(r.train), str(r.test), str(r.n_test), f"{r.coverage_test:.1%}", f"{r.macro:.3f}",
            f"{r.above:.1%}", *("" if p != p else f"{p:.2g}" for p in (r.p_binomial, r.p_clustered, r.p_refit)),
        ]
        for r in drift.itertuples()
    ]


def _report(name: str, fits: dict[str, Any], drift: pd.DataFrame | None, notes: list[str], quantile: float) -> str:
    lines = [f"# Capability boundaries of {name}", "", f"Level {quantile:g}.", "", *_markdown(HEADINGS, _rows(fits))]
    if drift is not None:
        lines += [
            "", "## Later models", "",
            "The boundary of the earlier models, on the models of the next period. More above it than "
            f"{1 - quantile:.0%}, by more than chance, means that it has moved.", "",
            *_markdown(DRIFT_HEADINGS, _drift_rows(drift)),
        ]
    if notes:
        lines += ["", "## Notes", "", *(f"- {note}" for note in notes)]
    return "\n".join(lines) + "\n"


def _markdown(headings: tuple[str, ...], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}", *(f"| {' | '.join(row)} |" for row in rows)]


def _columns(
    headings: tuple[str, ...], rows: list[list[str]], shown: tuple[int, ...]
) -> tuple[tuple[str, ...], list[list[str]]]:
    """The columns that a terminal of 80 characters has room for; report.md holds all."""
    return tuple(headings[i] for i in shown), [[row[i] for i in shown] for row in rows]


def _print(fits: dict[str, Any], drift: pd.DataFrame | None, notes: list[str], quantile: float, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    titles: list[tuple[str, tuple[str, ...], list[list[str]]]] = []
    titles.append((f"Boundaries at the level {quantile:g}", *_columns(HEADINGS, _rows(fits), SHOWN)))
    if drift is not None:
        titles.append(("Later models", *_columns(DRIFT_HEADINGS, _drift_rows(drift), DRIFT_SHOWN)))
    for title, headings, rows in titles:
        table = Table(title=title)
        for heading in headings:
            table.add_column(heading)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for note in notes:
        console.print(f"note: {note}")
    console.print(f"written to {out}")
