"""What is measured in a cell: held-out errors, chosen shares, specialists against one model, slices, a repeat.

Laws are fitted to the rows of the family `grid` alone, one law a domain. A seed sets the weights and the batches of all
widths, so that a law which is judged on a seed's runs has seen none of that seed.
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from assay.datasets import fetch
from assay.errors import InputError
from assay.scaling.split_training.arms import FULL, SHUFFLED, WITH_SCRATCH, WITHOUT_SCRATCH, averaged, fitted
from assay.scaling.split_training.forms import Array
from assay.scaling.split_training.law import SplitLaw
from assay.scaling.split_training.planning import optimal_split
from assay.scaling.split_training.tables import targets_of, without_branch
from assay.study import Cell, Measurement, Skip

TOKENS, WIDTH = "tokens", "width"
SHARES = 6  # of a budget, each of which is trained; one model on everything comes beside
REPEATED_WIDTH, REPEATED_SEED = 24, 0


def measure(cell: Cell, table: pd.DataFrame) -> Measurement:
    """The measurement that the cell's task names, on `tiny-lm-split` or a slice of it, or on a public table."""
    return TASKS[cell.options["task"]](cell, table)


def grid_of(table: pd.DataFrame, target: str, scratch: bool) -> pd.DataFrame:
    """The law's rows of one domain, with or without runs that had no shared phase."""
    rows = table[(table["family"] == "grid") & (table["domain"] == target)]
    return rows if scratch else rows[rows["D"] > 0]


def _held_out(cell: Cell, table: pd.DataFrame) -> Measurement:
    """Errors on the runs of a seed by a law fitted to the other seeds, for widths that those have."""
    parts = []
    for target in targets_of(table):
        rows = grid_of(table, target, cell.arm == WITH_SCRATCH)
        for seed in sorted(rows["seed"].unique()):
            training = rows[rows["seed"] != seed]
            test = rows[(rows["seed"] == seed) & rows["width"].isin(training["width"])]
            if len(training) and len(test):
                parts.append(_errors(cell, training, test))
    return _measured(parts, "no seed has a width that another seed has too")


def _extrapolate(cell: Cell, table: pd.DataFrame) -> Measurement:
    """Errors on the largest width, or on the largest D, by a law fitted to the others."""
    column = {WIDTH: "width", TOKENS: "D"}[cell.options["hold_out"]]
    parts = []
    for target in targets_of(table):
        rows = grid_of(table, target, cell.arm == WITH_SCRATCH)
        largest = rows[column] == rows[column].max()
        if rows[column].nunique() < 3:
            raise Skip(f"{rows[column].nunique()} values of {column}, three are needed to hold one out")
        parts.append(_errors(cell, rows[~largest], rows[largest]))
    return _measured(parts, "no rows")


def _errors(cell: Cell, training: pd.DataFrame, test: pd.DataFrame) -> pd.DataFrame:
    """One row a tested run: relative error and squared error of the loss, and the prediction."""
    form: list[str] = []

    def figures(rows: pd.DataFrame) -> Array:
        law = _law(cell, rows)
        form.append(getattr(law, "form_", cell.arm))
        predicted = law.predict(test)
        loss = test["loss"].to_numpy()
        return np.stack([predicted, np.abs(predicted / loss - 1), (predicted - loss) ** 2])

    found = averaged(cell.arm, training, cell.options.get("shuffles", 1), cell.seed, figures)
    columns = ["group", "seed", "width", "domain", "N", "D", "Dp", "loss"]
    return test[columns].reset_index(drop=True).assign(
        predicted=found[0], error=found[1], squared=found[2], form=form[0], fitted=len(training)
    )


def _measured(parts: list[pd.DataFrame], why_not: str) -> Measurement:
    if not parts:
        raise Skip(why_not)
    units = pd.concat(parts, ignore_index=True)
    branched = units[units["D"] > 0]
    metrics = {"error": float(branched["error"].mean()), "trunks": float(branched["group"].nunique())}
    if len(branched) < len(units):
        metrics["error_scratch"] = float(units.loc[units["D"] == 0, "error"].mean())
    for target, rows in branched.groupby("domain"):
        metrics[f"error_{target}"] = float(rows["error"].mean())
        metrics[f"unexplained_{target}"] = unexplained(rows["squared"].to_numpy(), rows["loss"].to_numpy())
    return Measurement(metrics, units)


def unexplained(squared: Array, losses: Array) -> float:
    """1 - R squared: the squared errors over those of the mean loss."""
    return float(squared.sum() / np.sum((losses - losses.mean()) ** 2))


def _choose(cell: Cell, table: pd.DataFrame) -> Measurement:
    """For each trunk, budget and target: the share that the law chooses, its measured loss, and those of all others."""
    rows = []
    budgets = table[table["family"] == "budget"]
    for (seed, target), split in budgets[budgets["domain"].isin(targets_of(table))].groupby(["seed", "domain"]):
        training = grid_of(table, target, cell.arm != WITHOUT_SCRATCH)
        training = training[training["seed"] != seed]
        if not len(training) or not _by_budget(split):
            continue
        chosen = _choices(cell, training, split)
        for number, ((group, total), options) in enumerate(_by_budget(split)):
            whole = budgets[
                (budgets["group"] == group) & (budgets["domain"] == "mixture") & (budgets["D"] + budgets["Dp"] == total)
            ]
            if len(whole) != 1:
                continue  # a trunk whose runs are not all there
            losses = {_share(run): run["loss"] for _, run in options.iterrows()}
            losses[FULL] = float(whole[f"loss_{target}"].iloc[0])
            rows.append({
                "group": group, "seed": seed, "width": int(options["width"].iloc[0]), "domain": target,
                "budget": int(total), **chosen[number], **{f"loss {name}": loss for name, loss in losses.items()},
            })
    if not rows:
        raise Skip("no trunk with every run of the family `budget`, of a seed that the law has not seen")
    units = pd.DataFrame(rows)
    best = units[[c for c in units if c.startswith("loss ")]].min(axis=1)
    metrics = {"regret": float((units["chosen_loss"] / best - 1).mean()), "trunks": float(units["group"].nunique())}
    for budget, at in units.groupby("budget"):
        metrics[f"share_{budget}"] = float(at["chosen_share"].mean())
    return Measurement(metrics, units)


def _choices(cell: Cell, training: pd.DataFrame, split: pd.DataFrame) -> list[dict[str, Any]]:
    """Per trunk and budget the chosen share and its loss; of shuffled laws their means."""

    def chosen(rows: pd.DataFrame) -> Array:
        law = _law(cell, rows)
        found = []
        for _, options in _by_budget(split):
            possible = options if getattr(law, "from_new_weights_", True) else options[options["D"] > 0]
            predicted = law.predict(possible)
            at = int(np.argmin(predicted))
            run = possible.iloc[at]
            found.append([float(_share(run)), run["loss"], predicted[at]])
        return np.array(found)

    numbers = averaged(cell.arm, training, cell.options.get("shuffles", 1), cell.seed, chosen)
    return [dict(zip(("chosen_share", "chosen_loss", "predicted"), row, strict=True)) for row in numbers]


def _by_budget(split: pd.DataFrame) -> list[tuple[tuple[str, int], pd.DataFrame]]:
    """(trunk, all tokens) and the runs that spend them, by their share; budgets with every share alone."""
    totals = (split["D"] + split["Dp"]).rename("total")
    found = [(key, rows.sort_values("D")) for key, rows in split.groupby([split["group"], totals])]
    return [(key, rows) for key, rows in found if len(rows) == SHARES]


def _share(run: pd.Series) -> str:
    """The share of the budget before branching, to one decimal; whole steps make it inexact."""
    return f"{round(run['D'] / (run['D'] + run['Dp']), 1):g}"


def _served(cell: Cell, table: pd.DataFrame) -> Measurement:
    """For each trunk and budget: mean loss over the targets of specialists, and of the two single models."""
    targets = targets_of(table)
    rows = []
    served = table[table["family"] == "served"]
    for group, runs in served.groupby("group"):
        totals = _served_totals(runs, targets)
        for total, found in totals.items():
            if set(found) != {*targets, "both", "mixture"}:
                continue
            other = dict(zip(targets, reversed(targets), strict=True))
            asked = {t: t for t in targets} if cell.arm == "specialists" else other
            rows.append({
                "group": group, "seed": int(runs["seed"].iloc[0]), "width": int(runs["width"].iloc[0]), "budget": total,
                "specialists": float(np.mean([found[asked[t]][f"loss_{t}"] for t in targets])),
                **{name: float(np.mean([found[name][f"loss_{t}"] for t in targets])) for name in ("both", "mixture")},
            })
    if not rows:
        raise Skip("no trunk with every run of the family `served`")
    units = pd.DataFrame(rows)
    metrics = {}
    for budget, at in units.groupby("budget"):
        for rival in ("both", "mixture"):
            metrics[f"against_{rival}_{budget}"] = float((at["specialists"] / at[rival] - 1).mean())
    return Measurement(metrics, units)


def _served_totals(runs: pd.DataFrame, targets: list[str]) -> dict[int, dict[str, pd.Series]]:
    """Tokens that all models of a choice cost together -> model -> its run; the trunk of specialists counts once."""
    found: dict[int, dict[str, pd.Series]] = {}
    for _, run in runs.iterrows():
        copies = len(targets) if run["domain"] in targets else 1
        found.setdefault(int(run["D"] + copies * run["Dp"]), {})[run["domain"]] = run
    return found


def _plan(cell: Cell, table: pd.DataFrame) -> Measurement:
    """The planned share for one specialist a domain on a shared trunk, with its interval, by budget."""
    rows = pd.concat([grid_of(table, target, scratch=True) for target in targets_of(table)])
    law = SplitLaw(n_starts=cell.options["starts"], random_state=cell.seed)
    law.fit(rows, rows["loss"], domain=rows["domain"], groups=rows["group"])
    size = int(rows["N"].min())
    found = []
    for budget in sorted((table.loc[table["family"] == "budget", ["D", "Dp"]].sum(axis=1)).unique()):
        plan = _quietly(law, float(budget) * len(law.laws_), size, cell.options["refits"])
        low, high = plan.interval.loc["share", ["low", "high"]]
        found.append({"budget": plan.tokens, "share": plan.share, "low": low, "high": high, "loss": plan.loss})
    units = pd.DataFrame(found)
    return Measurement({f"share_{row.budget:.0f}": row.share for row in units.itertuples()}, units)


def _quietly(law: SplitLaw, tokens: float, n_params: float, refits: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of plans below the fitted runs, which the budgets are
        return optimal_split(law, tokens=tokens, n_params=n_params, n_refits=refits)


def _slice(cell: Cell, table: pd.DataFrame) -> Measurement:
    """A form's limit without a second phase, on public runs: small models fitted, large ones predicted."""
    rows = []
    for runs in without_branch(table, cell.dataset):
        training, test = runs[runs["fitted"]], runs[~runs["fitted"]]
        predicted = fitted(cell.arm, training, cell.options["starts"], cell.seed).predict(test)
        errors = np.abs(predicted / test["loss"].to_numpy() - 1)
        rows.append({"name": runs["name"].iloc[0], "runs": len(test), "error": float(errors.mean())})
    units = pd.DataFrame(rows)
    return Measurement({"error": float(units["error"].mean()), "error_worst": float(units["error"].max())}, units)


def _reproduce(cell: Cell, table: pd.DataFrame) -> Measurement:
    """Train the grid of the smallest width's first seed again, and compare each loss with the table's."""
    import torch

    from assay.scaling.split_training.runs import STEP_TOKENS, Trainer, home_corpora

    rows = table[
        (table["family"] == "grid") & (table["width"] == REPEATED_WIDTH) & (table["seed"] == REPEATED_SEED)
    ]
    if not len(rows):
        raise Skip(f"no grid of width {REPEATED_WIDTH} and seed {REPEATED_SEED}")
    torch.set_num_threads(1)
    rates = [float(part["rate"].iloc[0]) for part in (rows[rows["D"] > 0], rows[rows["D"] == 0])]
    corpora = home_corpora()
    trainer = Trainer(corpora, REPEATED_WIDTH, REPEATED_SEED, *rates)
    found = []
    trunks = [(0, None), *trainer.trunk([int(D) // STEP_TOKENS for D in rows.loc[rows["D"] > 0, "D"].unique()])]
    for steps, trunk in trunks:
        for _, run in rows[rows["D"] == steps * STEP_TOKENS].iterrows():
            model = trainer.branch(trunk, [run["domain"]], int(run["Dp"]) // STEP_TOKENS)
            again = trainer.losses(model)[run["domain"]]
            found.append({"domain": run["domain"], "D": run["D"], "Dp": run["Dp"], "loss": run["loss"], "again": again})
    units = pd.DataFrame(found)
    away = np.abs(units["again"] / units["loss"] - 1)
    metrics = {"difference": float(away.mean()), "difference_worst": float(away.max())}
    about = fetch(cell.dataset).with_suffix(".json")
    if about.exists():  # other installations hold other texts
        known = json.loads(about.read_text(encoding="utf-8"))["domains"]
        metrics["domains_equal"] = float(sum(
            hashlib.sha256(corpus.training.tobytes()).hexdigest() == known[name]["training_sha256"]
            for name, corpus in corpora.items()
        ))
    return Measurement(metrics, units)


def _seconds(cell: Cell, table: pd.DataFrame) -> Measurement:
    """CPU seconds of one fit with 200 starts to 60 rows."""
    rows = grid_of(table, targets_of(table)[0], scratch=False).head(60)
    taken = []
    for _ in range(3):
        start = time.process_time()
        SplitLaw("multiplicative").fit(rows, rows["loss"])
        taken.append(time.process_time() - start)
    return Measurement({"cpu_s_median": float(np.median(taken)), "rows": float(len(rows))})


def _law(cell: Cell, rows: pd.DataFrame) -> Any:
    starts = cell.options["shuffled_starts" if cell.arm == SHUFFLED else "starts"]
    objective, form = cell.options.get("objective", "huber"), cell.options.get("form", "auto")
    try:
        return fitted(cell.arm, rows, starts, cell.seed, objective, form)
    except InputError as error:  # a form with more parameters than these rows can fix
        raise Skip(str(error)) from None


TASKS: dict[str, Callable[[Cell, pd.DataFrame], Measurement]] = {
    "held-out": _held_out, "extrapolate": _extrapolate, "choose": _choose, "served": _served, "plan": _plan,
    "slice": _slice, "reproduce": _reproduce, "seconds": _seconds,
}
