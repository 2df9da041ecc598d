"""`assay run depth-lr`: how the learning rate of your own network falls with its depth, and the rate to use next."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.errors import InputError, nearest
from assay.outputs import write_folder

if TYPE_CHECKING:
    import pandas as pd

ARCHES = ("mlp", "cnn", "resnet", "transformer", "resmlp")
WIDTHS = {"mlp": 128, "cnn": 32, "resnet": 16, "transformer": 64, "resmlp": 128}
COUNTS = ("effective", "layers", "given")
EXAMPLE = '''"""A network of your own for `assay run depth-lr --model my_module:build`."""

import torch
from torch import nn


def build(depth, seed):
    hidden = [layer for _ in range(depth - 2) for layer in (nn.Linear(32, 32), nn.ReLU())]
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), *hidden, nn.Linear(32, 3))
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu" if layer is not net[-1] else "linear")
    return net


def batch(step=0):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(32, 8, generator=generator)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])
'''


def run(
    model: Annotated[
        str | None,
        typer.Option(help="Your net as module:function, found from this folder: build(depth, seed) or build(depth)."),
    ] = None,
    arch: Annotated[
        str | None, typer.Option(help="Nets of ours instead: any of mlp, cnn, resnet, transformer, resmlp.")
    ] = None,
    depths: Annotated[str, typer.Option(help="Depths to build, as 4,8,16,32.")] = "4,8,16",
    inits: Annotated[int, typer.Option(help="Initialisations at each depth.")] = 16,
    count: Annotated[
        str, typer.Option(help="Depth in the law: effective, layers, or given (the numbers of --depths).")
    ] = "effective",
    steps: Annotated[int, typer.Option(help="Also train for so many SGD steps at many rates; 0: do not.")] = 0,
    rates: Annotated[
        str, typer.Option(help="Rates to train at, as 0.01,0.1; by default octaves around the measured rate.")
    ] = "",
    seeds: Annotated[int, typer.Option(help="Seeds to train with.")] = 3,
    runs: Annotated[
        Path | None, typer.Option(help="CSV of your tuned rates: depth, lr; with loss and seed the best are chosen.")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="The rate that you tuned at the first of --depths.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the tables, the summary and the picture.")] = Path(
        "depth-lr-out"
    ),
) -> None:
    """Measure how the learning rate of a network falls with its depth, and carry a tuned rate to other depths."""
    if (model is None) == (arch is None) and not (runs is not None and model is None):
        raise InputError("give either --model or --arch (or --runs alone)")
    if out.exists() and not out.is_dir():
        raise InputError(f"--out: {out} is a file, a folder is needed")
    wanted = _Wanted(_depths(depths), inits, count, steps, _rates(rates), seeds)
    _check(wanted, lr)
    found = _Found()
    if runs is not None:
        _fit_runs(runs, wanted, found)
    if model is not None:
        _measure_user(model, wanted, found)
    for name in _arches(arch):
        _measure_ours(name, wanted, found)
    if lr is not None:
        _carry(lr, found)
    write_folder(out, _files(found))
    _print(found, out)


def example(folder: Path) -> list[str]:
    """Write a module with a net and a table of tuned rates into the folder; the arguments that measure both."""
    (folder / "my_module.py").write_text(EXAMPLE, encoding="utf-8")
    table = "depth,lr\n4,0.366\n8,0.109\n16,0.048\n32,0.021\n"
    (folder / "runs.csv").write_text(table, encoding="utf-8")
    return [
        "--model",
        "my_module:build",
        "--depths",
        "3,6,12",
        "--inits",
        "8",
        "--runs",
        str(folder / "runs.csv"),
        "--lr",
        "0.2",
        "--out",
        str(folder / "depth-lr-out"),
    ]


@dataclass
class _Wanted:
    depths: list[int]
    inits: int
    count: str
    steps: int
    rates: list[float]
    seeds: int


@dataclass
class _Found:
    """Rows of rates by net, depth and kind, sweeps, summaries of slopes, and notes."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    sweeps: list[dict[str, Any]] = field(default_factory=list)
    slopes: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _check(wanted: _Wanted, lr: float | None) -> None:
    if wanted.count not in COUNTS:
        raise InputError(f"--count must be one of {', '.join(COUNTS)}, got {wanted.count}")
    for name, value, least in (
        ("--inits", wanted.inits, 3),
        ("--steps", wanted.steps, 0),
        ("--seeds", wanted.seeds, 1),
    ):
        if value < least:
            raise InputError(f"{name} must be {least} or more, got {value}")
    if wanted.rates and not wanted.steps:
        raise InputError("--rates are trained at: give --steps as well")
    if lr is not None and not (math.isfinite(lr) and lr > 0):
        raise InputError(f"--lr must be positive, got {lr:g}")


def _depths(text: str) -> list[int]:
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        raise InputError(f"--depths must be whole numbers with commas between, as 4,8,16, got {text}") from None
    if min(found) < 1 or len(set(found)) < 2 or len(set(found)) < len(found):
        raise InputError(f"--depths must be two or more different depths of 1 or more, got {text}")
    return found


def _rates(text: str) -> list[float]:
    try:
        found = [float(word) for word in text.split(",")] if text else []
    except ValueError:
        raise InputError(f"--rates must be numbers with commas between, as 0.01,0.1, got {text}") from None
    if any(not (math.isfinite(rate) and rate > 0) for rate in found):
        raise InputError(f"--rates must be positive, got {text}")
    if len(set(found)) != len(found) or len(found) in (1, 2):
        raise InputError(f"--rates must be three or more different rates, got {text}")
    return sorted(found)


def _arches(text: str | None) -> list[str]:
    names = text.split(",") if text else []
    for name in names:
        if name not in ARCHES:
            raise InputError(f"--arch must be of {', '.join(ARCHES)}, got {name!r}{nearest(name, list(ARCHES))}")
    return list(dict.fromkeys(names))


def _measure_user(where: str, wanted: _Wanted, found: _Found) -> None:
    from assay.errors import require

    require("torch", extra="torch", wanted_by="depth-lr")
    from assay.scaling.depth_lr.counting import Untraceable
    from assay.scaling.depth_lr.energy import stack, unit_energies, unit_residual
    from assay.scaling.depth_lr.user import load_user_net

    net = load_user_net(where, Path.cwd())
    if net.loss is None:
        found.notes.append(
            "No loss(model, batch) in the module: the measured rates are those for fixed random residuals."
        )
    units = []
    for depth in wanted.depths:
        at = f"{where} at depth {depth}"
        models = net.models(depth, wanted.inits)
        try:
            batch = net.batch(models[0])
            L = _counted(models[0], batch, wanted.count, depth, at)
            loss = net.loss or unit_residual(models[0], batch)
            table = unit_energies(models[0], *stack(models), loss, batch)
        except Untraceable as error:
            if wanted.count != "given":
                raise InputError(f"{at}: {_reason(error)}; or train it, with --count given and --steps") from None
            if not wanted.steps:
                raise InputError(f"{at}: {_reason(error)}; give --steps to train it instead") from None
            found.notes.append(f"{at} can't be followed from input to output: it is trained and not measured.")
            L, table = float(depth), None
        except InputError as error:
            raise _located(error, at) from None
        if table is not None:
            units.append(_energies(where, L, table, found, at))
        if wanted.steps:
            _sweep(where, net, models, depth, L, wanted, found, at)
    _slopes(where, units, wanted, found)


def _reason(error: Exception) -> str:
    return str(error).partition(": pass example_input")[0]


def _located(error: InputError, at: str) -> InputError:
    return error if str(error).startswith(at) else type(error)(f"{at}: {error}")


def _counted(model: Any, batch: Any, count: str, depth: int, at: str) -> float:
    from assay.scaling.depth_lr.counting import effective_depth

    if count == "given":
        return float(depth)
    example = batch[0] if isinstance(batch, tuple | list) else batch
    return float(effective_depth(model, example, "path" if count == "effective" else "layers"))


def _measure_ours(arch: str, wanted: _Wanted, found: _Found) -> None:
    from assay.errors import require

    require("torch", extra="torch", wanted_by="depth-lr")
    from assay.scaling.depth_lr.energy import unit_energies, unit_residual
    from assay.scaling.depth_lr.nets import blocks_of, build, draw
    from assay.scaling.depth_lr.tasks import probe, sweep_table

    dataset = "depth-lr-source" if arch == "transformer" else "depth-lr-digits"
    for depth in wanted.depths:
        blocks_of(arch, depth)
    units = []
    for depth in wanted.depths:
        net = build(arch, depth, WIDTHS[arch])
        inputs = probe(dataset, {"arch": arch, "examples": 8})[0]
        L = _counted(net, inputs, wanted.count, depth, arch)
        table = unit_energies(net, draw(net, wanted.inits, depth), {}, unit_residual(net, inputs), inputs)
        units.append(_energies(arch, L, table, found, arch))
        if wanted.steps:
            rates = wanted.rates or _around(found.rows[-1]["rate"])
            options = {
                "arch": arch,
                "width": WIDTHS[arch],
                "depths": [depth],
                "steps": wanted.steps,
                "batch": 32,
                "seeds": wanted.seeds,
                "rates": rates,
            }
            losses = sweep_table(dataset, options).pivot(index="seed", columns="rate", values="loss").to_numpy()
            _best_rates(arch, L, rates, losses, found, f"{arch} at depth {depth}")
    _slopes(arch, units, wanted, found)


def _energies(name: str, L: float, table: Any, found: _Found, at: str) -> pd.DataFrame:
    """Rows of one depth for the slope; the maximal-update rate goes into the table."""
    import numpy as np
    import pandas as pd

    each = table.per_init()
    if not (each > 0).all():
        raise InputError(f"{at}: one step does not move any hidden unit in {int((each <= 0).sum())} initialisations")
    rate = float(np.exp(-0.5 * np.log(each).mean()))
    found.rows.append({"net": name, "depth": L, "kind": "maximal update", "rate": rate})
    return pd.DataFrame({"depth": L, "hidden": np.log(each)})


def _around(rate: float) -> list[float]:
    return [rate * 2.0**k for k in range(-5, 4)]


def _sweep(
    where: str, net: Any, models: list[Any], depth: int, L: float, wanted: _Wanted, found: _Found, at: str
) -> None:
    from assay.scaling.depth_lr.sweep import train_any

    while len(models) < wanted.seeds:
        models.append(net.model(depth, len(models)))
    measured = [row["rate"] for row in found.rows if row["depth"] == L and row["kind"] == "maximal update"]
    rates = wanted.rates or _around(measured[-1] if measured else 0.1)
    first = net.batch(models[0])
    loss = net.training_loss(first)
    try:
        losses = train_any(
            models[: wanted.seeds], rates, lambda step: net.batch(models[0], step), loss, wanted.steps, first
        )
    except InputError as error:
        raise _located(error, at) from None
    _best_rates(where, L, rates, losses, found, at)


def _best_rates(name: str, L: float, rates: list[float], losses: Any, found: _Found, at: str) -> None:
    import numpy as np

    from assay.scaling.depth_lr.sweep import best_rate

    found.sweeps += [
        {"net": name, "depth": L, "seed": seed, "rate": rate, "loss": float(loss)}
        for seed, row in enumerate(losses)
        for rate, loss in zip(rates, row, strict=True)
    ]
    best = [best_rate(rates, row) for row in losses]
    if all(math.isnan(rate) for rate, _ in best):
        raise InputError(f"{at} diverges at every rate from {rates[0]:.3g} to {rates[-1]:.3g}: give smaller --rates")
    edges = sum(not inside for _, inside in best)
    if edges:
        found.notes.append(f"{at}: {edges} of {len(best)} best rates lie at the edge of the grid or do not exist.")
    tuned = np.array([rate for rate, _ in best if math.isfinite(rate)])
    found.rows.append({"net": name, "depth": L, "kind": "best trained", "rate": float(np.exp(np.log(tuned).mean()))})


def _slopes(name: str, units: list[pd.DataFrame], wanted: _Wanted, found: _Found) -> None:
    import pandas as pd

    from assay.scaling.depth_lr.judging import slope_of_energies

    if len({row["depth"] for row in found.rows if row["kind"] != "your runs"}) < 2:
        raise InputError(f"{name} has the same {wanted.count} depth at all of --depths: build must use its depth")
    if units:
        slope = slope_of_energies(pd.concat(units, ignore_index=True))
        found.slopes.append(_slope_row(name, "maximal update", slope.estimate, slope.low, slope.high))
    tuned = _runs_of(found, "best trained", name)
    if len({row["depth"] for row in tuned}) > 1:
        _fit(name, "best trained", tuned, found)


def _runs_of(found: _Found, kind: str, name: str) -> list[dict[str, Any]]:
    return [row for row in found.rows if row["kind"] == kind and row["net"] == name]


def _slope_row(name: str, kind: str, slope: float, low: float, high: float) -> dict[str, Any]:
    return {"net": name, "kind": kind, "exponent": slope, "low": low, "high": high}


def _fit(name: str, kind: str, rows: list[dict[str, Any]], found: _Found) -> None:
    from assay.scaling.depth_lr.transfer import DepthLRTransfer

    law = DepthLRTransfer().fit([row["depth"] for row in rows], [row["rate"] for row in rows])
    found.slopes.append(_slope_row(name, kind, law.exponent_, *law.ci_))


def _fit_runs(path: Path, wanted: _Wanted, found: _Found) -> None:
    """A user's tuned rates: their exponent, and how well the shallower ones tell the deepest."""
    from assay.scaling.depth_lr.sweep import best_rate
    from assay.scaling.depth_lr.transfer import DepthLRTransfer
    from assay.scaling.fit import read_columns
    from assay.scaling.tables import read_table

    table = read_table(path)
    for name in ("depth", "lr"):
        if name not in table.columns:
            raise InputError(f"{path.name} lacks the column {name}; it has {', '.join(map(str, table.columns))}")
    values = read_columns(table[["depth", "lr"]], ["depth", "lr"], path.name)
    rows = [{"net": path.stem, "depth": d, "kind": "your runs", "rate": r} for d, r in values]
    if "loss" in table.columns:
        rows = []
        keys = table["seed"] if "seed" in table.columns else table["lr"] * 0
        losses = table["loss"].astype(float, errors="ignore")
        if losses.dtype.kind != "f":
            raise InputError(f"{path.name}: the column loss must hold numbers (inf or empty where a run diverged)")
        frame = table.assign(loss=losses.fillna(math.inf), depth=values[:, 0], lr=values[:, 1], seed=keys)
        for (depth, _), group in frame.groupby(["depth", "seed"]):
            rate, inside = best_rate(group["lr"].to_numpy(), group["loss"].to_numpy())
            if math.isnan(rate):
                raise InputError(f"{path.name}: every run at depth {depth:g} diverged")
            if not inside:
                found.notes.append(f"{path.name}: the best rate at depth {depth:g} lies at the edge of its grid.")
            rows.append({"net": path.stem, "depth": depth, "kind": "your runs", "rate": rate})
    law = DepthLRTransfer().fit([row["depth"] for row in rows], [row["rate"] for row in rows])
    found.rows += rows
    found.slopes.append(_slope_row(path.stem, "your runs", law.exponent_, *law.ci_))
    deepest = max(row["depth"] for row in rows)
    rest = [row for row in rows if row["depth"] < deepest]
    if len({row["depth"] for row in rest}) > 1:
        told = DepthLRTransfer().fit([r["depth"] for r in rest], [r["rate"] for r in rest]).predict([deepest])[0]
        own = math.exp(sum(math.log(r["rate"]) for r in rows if r["depth"] == deepest) / (len(rows) - len(rest)))
        found.notes.append(f"Held out, depth {deepest:g}: the shallower runs tell {told:.3g}, tuned it is {own:.3g}.")


def _carry(lr: float, found: _Found) -> None:
    """The tuned rate at each depth, by the rule and by each measured exponent."""
    from assay.scaling.depth_lr.transfer import EXPONENT, scale_lr

    measured = [row for row in found.rows if row["kind"] != "your runs"]
    for slope in found.slopes:
        # The exponent of tuned runs goes to the depths of the net that was measured beside them.
        own = [row for row in measured if row["net"] == slope["net"]] or measured or found.rows
        first, net = own[0]["depth"], own[0]["net"]
        for depth in sorted({row["depth"] for row in own}):
            for kind, exponent in ((f"lr by {slope['kind']}", slope["exponent"]), ("lr by L^-3/2", EXPONENT)):
                row = {"net": net, "depth": depth, "kind": kind, "rate": scale_lr(lr, depth, first, exponent)}
                if row not in found.rows:
                    found.rows.append(row)


def _files(found: _Found) -> dict[str, bytes]:
    import pandas as pd

    from assay.pictures import NO_PICTURES, draw
    from assay.scaling.depth_lr.charts import rates_chart

    table = pd.DataFrame(found.rows).sort_values(["net", "kind", "depth"], kind="stable")
    several = table["net"].nunique() > 1
    named = table.assign(kind=table["net"] + ": " + table["kind"]) if several else table
    chart = rates_chart(named, "Learning rate against depth")
    pictures = draw({"rates": chart})
    if not pictures:
        found.notes.append(NO_PICTURES)
    slopes = [{key: _json_number(value) for key, value in row.items()} for row in found.slopes]
    summary = {"exponents": slopes, "paper": -1.5, "notes": found.notes}
    files = {
        "rates.csv": table.to_csv(index=False, float_format="%.6g").encode(),
        "summary.json": _json(summary),
        "rates.vl.json": _json(chart),
        **pictures,
    }
    if found.sweeps:
        files["sweep.csv"] = pd.DataFrame(found.sweeps).to_csv(index=False, float_format="%.6g").encode()
    return files


def _json_number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def _print(found: _Found, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    slopes = Table(title="Exponent of the learning rate in depth (the paper's: -1.5)")
    for column in ("net", "rate", "exponent", "95 %"):
        slopes.add_column(column)
    for row in found.slopes:
        slopes.add_row(row["net"], row["kind"], f"{row['exponent']:.2f}", f"{row['low']:.2f} to {row['high']:.2f}")
    console.print(slopes)
    rates = Table(title="Rates")
    for column in ("net", "depth", "kind", "rate"):
        rates.add_column(column)
    for row in sorted(found.rows, key=lambda row: (row["net"], row["kind"], row["depth"])):
        rates.add_row(row["net"], f"{row['depth']:g}", row["kind"], f"{row['rate']:.4g}")
    console.print(rates)
    for note in found.notes:
        console.print(f"note: {note}")
    console.print(f"written to {out}")
