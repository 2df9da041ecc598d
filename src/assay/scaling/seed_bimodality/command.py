"""`assay run seed-bimodality`: judge a table of scores over seeds, or train a population and judge that."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.errors import InputError, nearest
from assay.outputs import write_folder

if TYPE_CHECKING:
    import pandas as pd

ROLES = ("scale", "seed", "score", "loss")
ALSO_CALLED = {
    "scale": ("width", "n", "params", "n_params", "parameters", "model_size", "size", "compute", "flops"),
    "seed": ("run", "init", "replicate", "rng"),
    "score": ("accuracy", "acc", "exact_match", "success"),
    "loss": ("nll", "cross_entropy", "test_loss", "eval_loss"),
}


def run(
    scores: Annotated[
        Path | None, typer.Option(help="CSV with one row a scale and seed: scale, seed, score, and a loss if any.")
    ] = None,
    columns: Annotated[
        str, typer.Option(help="Which column is which, as scale=params,seed=run,score=acc,loss=nll.")
    ] = "",
    items: Annotated[
        int | None, typer.Option(help="Right-or-wrong items behind each score, if no column `items` says so.")
    ] = None,
    success: Annotated[
        float | None, typer.Option(help="Score from which a seed is successful; found from the scores by default.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Train a population instead: parity, digits, count or addition.")
    ] = None,
    widths: Annotated[str, typer.Option(help="Its widths, as 2,4,8; the task's own by default.")] = "",
    seeds: Annotated[int, typer.Option(help="Its seeds at each width.")] = 64,
    steps: Annotated[int | None, typer.Option(help="Its training steps; the task's own by default.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the tables, the summary and the pictures.")] = Path(
        "seed-bimodality-out"
    ),
) -> None:
    """Tell whether a jump with scale is real, luck of the seed, or an effect of the metric."""
    if (scores is None) == (task is None):
        raise InputError("give either --scores or --task")
    if out.exists() and not out.is_dir():
        raise InputError(f"--out: {out} is a file, a folder is needed")
    if scores is not None:
        from assay.scaling.tables import read_table

        table = _named(read_table(scores), columns, scores.name)
        _refuse_torn(scores)
        files, lines = _judge(table, items, success)
    else:
        table = _trained(str(task), widths, seeds, steps)
        files, lines = _judge(_hardest(table), items, success)
        files["population.csv"] = table.to_csv(index=False, float_format="%.6g").encode()
    write_folder(out, files)
    _print(lines, out)


def example(folder: Path) -> list[str]:
    """Write a table of 64 seeds at five sizes into the folder; the arguments that judge it."""
    import numpy as np
    import pandas as pd

    rng = np.random.default_rng(0)
    rows = []
    for size, share in zip((1e6, 2e6, 4e6, 8e6, 16e6), (0.02, 0.15, 0.5, 0.85, 0.98), strict=True):
        good = rng.random(64) < share
        accuracy = np.where(good, rng.beta(60, 4, 64), rng.beta(8, 30, 64))
        nll = np.where(good, rng.gamma(20, 0.01, 64), rng.gamma(60, 0.04, 64))
        rows += list(zip([size] * 64, range(64), accuracy.round(3), nll.round(4), strict=True))
    pd.DataFrame(rows, columns=["params", "seed", "accuracy", "nll"]).to_csv(folder / "seeds.csv", index=False)
    return ["--scores", str(folder / "seeds.csv"), "--items", "1000", "--out", str(folder / "seed-bimodality-out")]


def _named(table: pd.DataFrame, text: str, where: str) -> pd.DataFrame:
    """The table under the names of `ROLES`: as the user says, else by their usual names."""
    labels = [str(label) for label in table.columns]
    named = _parsed(text, labels, where)
    simple = {label.strip().lower().replace(" ", "_").replace("-", "_"): label for label in reversed(labels)}
    for role in ROLES:
        if role not in named:
            found = next((simple[word] for word in (role, *ALSO_CALLED[role]) if word in simple), None)
            if found is not None and found not in named.values():
                named[role] = found
    missing = [role for role in ROLES[:3] if role not in named]
    if missing:
        raise InputError(
            f"{where}: which column is the {missing[0]}? Say --columns {missing[0]}=COLUMN; it has "
            f"{', '.join(labels[:12]) or 'none'}"
        )
    if not len(table):
        raise InputError(f"{where} has no rows")
    if "items" in labels and "items" not in named.values():
        named["items"] = "items"
    return table[list(named.values())].set_axis(list(named), axis=1)


def _refuse_torn(path: Path) -> None:
    """A last line with fewer cells than the header is the end of a torn file, not a seed without a score."""
    import csv

    with path.open(encoding="utf-8", newline="") as lines:
        sizes = [len(row) for row in csv.reader(lines) if row]
    if sizes[-1] < sizes[0]:
        raise InputError(f"{path.name}: the last row has {sizes[-1]} of {sizes[0]} cells: is the file cut off?")


def _parsed(text: str, labels: list[str], where: str) -> dict[str, str]:
    named: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        role, equals, column = (part.strip() for part in pair.partition("="))
        if not equals or not column:
            raise InputError(f"--columns: columns are named as scale=COLUMN, got {pair!r}")
        if role not in ROLES:
            raise InputError(f"--columns: there is no {role!r}{nearest(role, list(ROLES))}: {', '.join(ROLES)}")
        if column not in labels:
            known = ", ".join(labels[:12])
            raise InputError(f"{where} has no column {column!r}{nearest(column, labels)}; it has {known}")
        named[role] = column
    return named


def _trained(task: str, widths: str, seeds: int, steps: int | None) -> pd.DataFrame:
    from assay.scaling.seed_bimodality.populations import train_population

    if seeds < 1:
        raise InputError(f"--seeds must be 1 or more, got {seeds}")
    return train_population(task, _numbers(widths), seeds=seeds, steps=steps)


def _hardest(table: pd.DataFrame) -> pd.DataFrame:
    """Of a task with several tests the last one with 20 items or more: the longest answers that a score can rest on."""
    enough = table[table["items"] >= 20]
    single = enough[~enough["test"].str.contains("-")]
    return single[single["test"] == single["test"].iloc[-1]]


def _numbers(widths: str) -> list[int] | None:
    if not widths:
        return None
    try:
        return [int(word) for word in widths.split(",")]
    except ValueError:
        raise InputError(f"--widths must be whole numbers with commas between, as 2,4,8, got {widths}") from None


def _judge(table: pd.DataFrame, items: int | None, success: float | None) -> tuple[dict[str, bytes], list[list[str]]]:
    from assay.pictures import NO_PICTURES, draw
    from assay.scaling.seed_bimodality.charts import distribution_chart
    from assay.scaling.seed_bimodality.scaling_curves import RandomScaling

    found = RandomScaling(success=success, items=items).fit(table, loss="loss" if "loss" in table else None)
    summary = found.summary()
    charts = distribution_chart(found.scales_, found.scores_, found.per_scale_)
    pictures = draw(charts)
    summary |= {} if pictures else {"note": NO_PICTURES}
    files = {
        "per_scale.csv": found.per_scale_.to_csv(index=False, float_format="%.6g").encode(),
        "paths.csv": found.trend_scores().to_csv(index=False, float_format="%.6g").encode(),
        "summary.json": _json(summary), **pictures,
        **{f"{name}.vl.json": _json(chart) for name, chart in charts.items()},
    }
    if found.per_scale_loss_ is not None:
        files["per_scale_loss.csv"] = found.per_scale_loss_.to_csv(index=False, float_format="%.6g").encode()
    return files, _lines(summary)


def _lines(summary: dict[str, Any]) -> list[list[str]]:
    curve, by_loss = summary["weight_curve"], summary["loss_bimodal_at"]
    kind = "gradual" if curve["aic_gain"] > 2 else "like a step" if curve["aic_gain"] < 0 else "undecided"
    slope = f"slope {curve['slope']:.2f} [{curve['slope_low']:.2f}, {curve['slope_high']:.2f}] in log scale, {kind}"
    lines = [
        ["answer", summary["answer"]],
        ["bimodal in the score at", _list(summary["bimodal_at"])],
        *([] if by_loss is None else [["bimodal in the loss at", _list(by_loss)]]),
        ["split with successes from", _number(summary["threshold_scale"])],
        ["most seeds succeed from", _number(summary["majority_scale"])],
        ["a seed succeeds at a score of", f"{summary['success']:.3g}"],
        ["share of successes", slope],
        ["fewest seeds at a scale", str(summary["fewest_seeds"])],
        ["seeds to know the share within 0.1", str(summary["seeds_needed"]["share_within_0.1"])],
    ]
    if summary["missing"]:
        lines.append(["rows without a score", str(summary["missing"])])
    if summary["tip"]:
        lines.append(["tip", summary["tip"]])
    return lines


def _list(values: list[float]) -> str:
    return ", ".join(f"{value:g}" for value in values) or "none"


def _number(value: float) -> str:
    return "none" if math.isnan(value) else f"{value:g}"


def _json(value: Any) -> bytes:
    return (json.dumps(_plain(value), indent=1) + "\n").encode()


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: null and a word."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "infinite" if value > 0 else "-infinite"
    return value


def _print(lines: list[list[str]], out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False)
    for line in lines:
        table.add_row(*line)
    console = Console()
    console.print(table)
    console.print(f"written to {out}")
