"""What is measured in the study: energies, rate sweeps, transfer from the shallow to the deep net, collapse, width."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from assay.datasets import load_dataset
from assay.scaling.depth_lr.counting import effective_depth
from assay.scaling.depth_lr.energy import unit_energies, unit_residual
from assay.scaling.depth_lr.groups import depth_param_groups
from assay.scaling.depth_lr.nets import build, count_blocks, draw, multipliers
from assay.scaling.depth_lr.sweep import best_rate, rate_grid, train_grid
from assay.scaling.depth_lr.transfer import scale_lr
from assay.study import Cell, Measurement, Skip

__all__ = ["RULES", "energy_table", "measure", "probe", "sweep_table", "transfer_table", "width_table"]

RULES: dict[str, float] = {"depth-rule": -1.5, "inverse": -1.0, "inverse-root": -0.5, "constant": 0.0}
"""Exponent of each fixed rule; Depth-muP and the net's own optimum are arms beside them."""

TRAIN, PROBE = 1400, 700  # images that are trained on, and the first of them, on which the loss is read
WINDOW = 32
DIVERGED = 10 * float(np.log(10))  # what a diverged run counts in a mean of losses: ten times that of guessing
SHUFFLE = {3: [1, 2, 0], 4: [1, 3, 0, 2], 5: [1, 3, 0, 4, 2]}  # deals the depths' labels out with hardly a trend


def energy_table(dataset: str, options: Mapping[str, Any]) -> pd.DataFrame:
    """One row a depth and initialisation: log energy of the hidden units and of all, and both counts of depth."""
    batch = probe(dataset, options)
    rows = []
    for depth in options["depths"]:
        for layers in options.get("branches", [2]):
            net = build(options["arch"], depth, options["width"], **({"layers": layers} if layers != 2 else {}))
            loss = _cross_entropy if options.get("loss") == "cross-entropy" else unit_residual(net, batch[0])
            params = draw(net, options["inits"], 1000 * layers + depth)
            if options.get("branch_gain") == "full":
                params = {n: v * (count_blocks(net) ** 0.5 if "last" in n else 1.0) for n, v in params.items()}
            found = unit_energies(net, params, {}, loss, batch if options.get("loss") else batch[0])
            rows.append(
                pd.DataFrame(
                    {
                        "depth": effective_depth(net, batch[0]),
                        "layers": effective_depth(net, batch[0], count="layers"),
                        "branch": layers,
                        "init": np.arange(options["inits"]),
                        "hidden": np.log(found.per_init()),
                        "all": np.log(found.per_init(readout=True)),
                    }
                )
            )
    return pd.concat(rows, ignore_index=True)


def sweep_table(dataset: str, options: Mapping[str, Any]) -> pd.DataFrame:
    """One row a depth, seed and rate: the loss after training; +inf where it diverged."""
    rows = []
    for depth in options["depths"]:
        rates = _rates(options, depth)
        net = build(options["arch"], depth, options["width"])
        losses = _trained(dataset, net, draw(net, options["seeds"], depth), rates, options, {})
        for seed, row in enumerate(losses):
            rows += [
                {"depth": depth, "seed": seed, "rate": rate, "loss": loss}
                for rate, loss in zip(rates, row, strict=True)
            ]
    return pd.DataFrame(rows)


def measure(cell: Cell, tables: Mapping[str, pd.DataFrame]) -> Measurement:
    """Measure a cell, with the tables of the steps that it needs."""
    return _TASKS[cell.options["task"]](cell, tables)


def _energy(cell: Cell, tables: Mapping[str, pd.DataFrame]) -> Measurement:
    units = _dealt(cell, tables["energies"])
    log_depth = np.log(units["depth"])
    metrics = {
        "slope_hidden": _slope(log_depth, -0.5 * units["hidden"]),
        "slope_all": _slope(log_depth, -0.5 * units["all"]),
        "sd_log_energy_deepest": float(units.loc[units["depth"] == units["depth"].max(), "hidden"].std()),
    }
    means = np.exp(units["hidden"]).groupby(units["depth"]).mean()
    metrics["slope_hidden_arithmetic"] = _slope(np.log(means.index.to_numpy(dtype=float)), -0.5 * np.log(means))
    for depth, group in units.groupby("depth"):
        metrics[f"rate_L{depth}"] = float(np.exp(-0.5 * group["hidden"].mean()))
    return Measurement(metrics, units[["depth", "init", "hidden", "all"]].reset_index(drop=True))


def _optima(cell: Cell, tables: Mapping[str, pd.DataFrame]) -> Measurement:
    """The best rate of each seed at each depth."""
    units = _dealt(cell, _best(tables["sweep"]))
    metrics = {}
    for depth, group in units.groupby("depth"):
        metrics[f"rate_L{depth}"] = float(np.exp(np.log(group["rate"]).mean()))
        metrics[f"loss_L{depth}"] = float(group["loss"].mean())
        metrics[f"stable_L{depth}"] = float(group["stable"].max())
    return Measurement(metrics, units)


def transfer_table(options: Mapping[str, Any], dataset: str, sweep: pd.DataFrame) -> pd.DataFrame:
    """One row a rule and seed: the loss of the deepest net at the rate that the rule makes of the shallowest's best.

    All rules that move one rate are trained as one batch; Depth-muP, whose weights have rates of their own, apart.
    """
    depths, arch = options["depths"], options["arch"]
    shallow, deep = depths[0], depths[-1]
    optima = _best(sweep)
    tuned = {d: float(np.exp(np.log(optima.loc[optima["depth"] == d, "rate"]).mean())) for d in (shallow, deep)}
    net = build(arch, deep, options["width"])
    rates = {arm: scale_lr(tuned[shallow], deep, shallow, exponent) for arm, exponent in RULES.items()}
    rates["own-optimum"] = tuned[deep]
    weights = draw(net, options["seeds"], deep)
    losses = dict(zip(rates, _trained(dataset, net, weights, list(rates.values()), options, {}).T, strict=True))
    if count_blocks(net):
        # The rate unchanged, and the branches' as a multiplier 1 / sqrt(K) against the base's makes it.
        blocks = count_blocks(build(arch, shallow, 2))
        factors = {name: value * blocks for name, value in multipliers(net).items()}
        rates["depth-mup"] = tuned[shallow]
        losses["depth-mup"] = _trained(dataset, net, weights, [tuned[shallow]], options, factors)[:, 0]
    return pd.DataFrame(
        {"arm": arm, "seed": seed, "rate": rates[arm], "loss": loss}
        for arm, row in losses.items()
        for seed, loss in enumerate(row)
    )


def _transfer(cell: Cell, tables: Mapping[str, pd.DataFrame]) -> Measurement:
    """Loss of the deepest net by one rule."""
    own = tables["transfers"][tables["transfers"]["arm"] == cell.arm]
    if not len(own):
        raise Skip("Depth-muP scales residual branches, and this net has none")
    losses = own["loss"].to_numpy(dtype=float)
    capped = np.minimum(losses, DIVERGED)
    metrics = {
        "rate": float(own["rate"].iloc[0]),
        "loss": float(capped.mean()),
        "diverged": float(np.isinf(losses).mean()),
    }
    return Measurement(metrics, pd.DataFrame({"seed": np.arange(len(capped)), "loss": capped}))


def _collapse(cell: Cell, tables: Mapping[str, pd.DataFrame]) -> Measurement:
    """Energies of nets whose blocks have two, four or eight layers, with both counts of depth."""
    units = _dealt(cell, tables["energies"])[["branch", "depth", "layers", "init", "hidden"]]
    log_rate = -0.5 * units["hidden"]
    metrics = {f"slope_{count}": _slope(np.log(units[count]), log_rate) for count in ("depth", "layers")}
    return Measurement(metrics, units)


def width_table(dataset: str, options: Mapping[str, Any]) -> pd.DataFrame:
    """One row a width, seed and rate, in the base's units: the loss after training with the table's factors.

    With `table` false the nets have the standard parametrisation: one rate, and a read-out of variance 1 / fan-in.
    """
    depth, width, table = options["depth"], options["width"], options.get("table", True)
    rates = _rates(options, depth)
    base = build(options["arch"], depth, width)
    example = probe(dataset, options)[0]
    rows = []
    for n in (width, 2 * width):
        # The read-out's variance falls as 1 / n^2, as the table wants.
        net = build(options["arch"], depth, n, head_gain=width / n if table else 1.0)
        rule = "sgd" if table else "none"
        groups = depth_param_groups(net, 1.0, base, width_rule=rule, example_input=example)
        names = {id(parameter): name for name, parameter in net.named_parameters()}
        factors = {names[id(parameter)]: group["lr"] for group in groups for parameter in group["params"]}
        losses = _trained(dataset, net, draw(net, options["seeds"], depth), rates, options, factors)
        rows += [
            {"width": n, "seed": seed, "rate": rate, "loss": loss}
            for seed, row in enumerate(losses)
            for rate, loss in zip(rates, row, strict=True)
        ]
    return pd.DataFrame(rows)


def _width(cell: Cell, tables: Mapping[str, pd.DataFrame]) -> Measurement:
    """Best rates at a width and at twice the width, both in the base's units: the table's factors are taken out.

    The control divides all rates by the number of weights as well. Its run at a rate is the method's at that rate over
    (n / n0)^2, so that its losses need no training of their own.
    """
    width = cell.options["width"]
    rows = []
    for (n, seed), runs in tables["widths"].groupby(["width", "seed"]):
        more = (n / width) ** 2 if cell.arm == "per-weight" else 1.0
        rate, inside = best_rate(more * runs["rate"].to_numpy(), runs["loss"].to_numpy())
        rows.append({"width": n, "seed": seed, "rate": rate, "inside": inside})
    units = pd.DataFrame(rows)
    mean = np.exp(np.log(units["rate"]).groupby(units["width"]).mean())
    return Measurement({"octaves": float(np.log2(mean[2 * width] / mean[width]))}, units)


_TASKS: dict[str, Callable[[Cell, Mapping[str, pd.DataFrame]], Measurement]] = {
    "energy": _energy,
    "rates": _optima,
    "transfer": _transfer,
    "collapse": _collapse,
    "width": _width,
}


def _trained(
    dataset: str,
    net: nn.Module,
    params: Mapping[str, Tensor],
    rates: list[float],
    options: Mapping[str, Any],
    factors: Mapping[str, float],
) -> np.ndarray:
    batches, held = _stream(dataset, options)
    return train_grid(
        net, params, rates, batches, _cross_entropy, options["steps"], held, factors, options.get("optimizer", "sgd")
    )


def _stream(dataset: str, options: Mapping[str, Any]) -> tuple[Callable[[int], Any], Any]:
    """Batches by step, the same for all runs, and what the loss is read on."""
    rng = np.random.default_rng([7, options["steps"]])
    if options["arch"] == "transformer":
        text = torch.from_numpy(load_dataset(dataset)["bytes"])
        held = len(text) * 9 // 10
        starts = rng.integers(0, held - WINDOW - 1, (options["steps"], options["batch"]))
        kept = np.linspace(held, len(text) - WINDOW - 1, 64).astype(int)
        return lambda step: _windows(text, starts[step]), _windows(text, kept)
    images, labels = _digits(dataset)
    picks = np.stack([rng.permutation(TRAIN)[: options["batch"]] for _ in range(options["steps"])])
    return lambda step: (images[picks[step]], labels[picks[step]]), (images[:PROBE], labels[:PROBE])


def probe(dataset: str, options: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """The few examples on which energies are taken."""
    count = options.get("examples", 16)
    if options["arch"] == "transformer":
        text = torch.from_numpy(load_dataset(dataset)["bytes"])
        return _windows(text, np.linspace(0, len(text) - WINDOW - 1, count).astype(int))
    images, labels = _digits(dataset)
    return images[:count], labels[:count]


def _digits(dataset: str) -> tuple[Tensor, Tensor]:
    held = load_dataset(dataset)
    return torch.from_numpy(held["images"]), torch.from_numpy(held["labels"])


def _windows(text: Tensor, starts: np.ndarray) -> tuple[Tensor, Tensor]:
    index = torch.from_numpy(starts)[:, None] + torch.arange(WINDOW)
    return text[index], text[index + 1]


def _cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())


def _rates(options: Mapping[str, Any], depth: int) -> list[float]:
    """A grid whose top falls with the depth, by `fall` octaves for each doubling, and which is as long everywhere."""
    if "rates" in options:
        return list(options["rates"])
    top = options["top"] - options["fall"] * np.log2(depth / options["from_depth"])
    top = round(top / options["step"]) * options["step"]
    return rate_grid(top - options["octaves"], top, options["step"])


def _best(sweep: pd.DataFrame) -> pd.DataFrame:
    """Best and largest stable rate of each depth and seed."""
    rows = []
    for (depth, seed), runs in sweep.groupby(["depth", "seed"]):
        rate, inside = best_rate(runs["rate"].to_numpy(), runs["loss"].to_numpy())
        finite = runs[np.isfinite(runs["loss"])]
        rows.append(
            {
                "depth": depth,
                "seed": seed,
                "rate": rate,
                "inside": inside,
                "loss": runs["loss"].min(),
                "stable": finite["rate"].max() if len(finite) else np.nan,
            }
        )
    return pd.DataFrame(rows)


def _dealt(cell: Cell, table: pd.DataFrame) -> pd.DataFrame:
    """The table; in the control the labels of its depths are dealt out anew."""
    if cell.arm != "shuffled":
        return table
    depths = sorted(table["depth"].unique())
    return table.assign(
        depth=table["depth"].map({d: depths[i] for d, i in zip(depths, SHUFFLE[len(depths)], strict=True)})
    )


def _slope(x: Any, y: Any) -> float:
    return float(np.polyfit(np.asarray(x, dtype=float), np.asarray(y, dtype=float), 1)[0])
