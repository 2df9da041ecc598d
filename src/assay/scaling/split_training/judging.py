"""From measured cells to verdicts: one judge a claim.

The unit is the trunk, one width and one seed: its cells share weights and batches. Widths of one seed share batches
alone; the same mean over seeds is stated beside. Where a claim speaks of several hold-outs or budgets each is a part,
and what a part needs (an error and a ratio, a gain and a regret) is judged apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from assay.scaling.split_training.arms import OBJECTIVES, RULES
from assay.scaling.split_training.tables import TITLES
from assay.scaling.split_training.tasks import TOKENS, WIDTH, unexplained
from assay.stats import Interval, bootstrap, mean_interval
from assay.study import Claim, Results, Row, Verdict, all_of, at_least

Judge = Callable[[Claim, Results, str], Verdict]

TASK_OF = {"p1": "held-out", "p2": "extrapolate", "p3": "choose", "p4": "served"}
WORDS = {WIDTH: "the largest width", TOKENS: "the longest trunk"}


def judged(claim: Claim, results: Results, dataset: str) -> Verdict:
    """The verdict of a claim, or untested where a cell of the method is missing."""
    own = results.where(dataset=dataset, arm=claim.arm, task=TASK_OF[claim.id])
    if missing := own.missing():
        named = f"no cell {claim.arm} on {TITLES[dataset]} was measured" if not len(own) else missing
        return claim.untested(named)
    return JUDGES[claim.id](claim, results, dataset)


def _judge_p1(claim: Claim, results: Results, dataset: str) -> Verdict:
    units = _units(results.where(dataset=dataset, arm=claim.arm, task="held-out")[0])
    error = _trunk_means(units, "error")
    parts = [claim.judge(error, f"mean relative error {error.estimate:.2%}")]
    for target, rows in units.groupby("domain"):
        squared, losses = rows["squared"].to_numpy(), rows["loss"].to_numpy()
        left = bootstrap(
            lambda i, squared=squared, losses=losses: unexplained(squared[i], losses[i]),  # type: ignore[misc]
            len(rows), clusters=rows["group"].to_numpy(),
        )
        limit = claim.limits["unexplained"]
        parts.append(claim.judge(left, f"R squared {1 - left.estimate:.3f} on {target}", threshold=limit))
    forms = ", ".join(f"{form} in {count}" for form, count in _forms(units).items())
    reason = (
        f"{len(units)} runs of {error.n} trunks, none of whose seed was fitted{_by_seed(units, 'error')}; "
        f"forms chosen: {forms}"
    )
    return all_of(claim, parts, f"{_said(parts)}; {reason}")


def _judge_p2(claim: Claim, results: Results, dataset: str) -> Verdict:
    parts = [part for hold_out in (WIDTH, TOKENS) for part in _extrapolations(claim, results, dataset, hold_out)]
    return all_of(claim, parts, _said(parts))


def _extrapolations(claim: Claim, results: Results, dataset: str, hold_out: str) -> list[Verdict]:
    """The error on one hold-out, and how it compares with pooled Chinchilla's, both by trunk."""
    at = results.where(dataset=dataset, task="extrapolate", hold_out=hold_out)
    if not len(at):
        return [claim.untested(f"no cell held out {WORDS[hold_out]}")]
    rivals = [at.where(arm="pooled", objective=objective) for objective in OBJECTIVES]
    if missing := "; ".join(filter(None, (rows.missing() for rows in (at.where(arm=claim.arm), *rivals)))):
        return [claim.untested(missing)]
    own = _units(at.where(arm=claim.arm)[0])
    theirs = min((_units(rows[0]) for rows in rivals), key=lambda units: units["error"].mean())
    error = _trunk_means(own, "error")
    where = WORDS[hold_out]
    parts = [claim.judge(error, f"on {where}: mean relative error {error.estimate:.2%}")]
    ratio = claim.limits["ratio"]
    ours, others = (units.groupby("group")["error"].mean() for units in (own, theirs))
    excess = mean_interval((ours - ratio * others[ours.index]).to_numpy())
    text = f"on {where}: {others.mean():.2%} by pooled Chinchilla"
    return [*parts, claim.judge(excess, text, threshold=claim.limits["excess"])]


def _judge_p3(claim: Claim, results: Results, dataset: str) -> Verdict:
    units = _units(results.where(dataset=dataset, arm=claim.arm, task="choose")[0])
    losses = units[[column for column in units if column.startswith("loss ")]]
    rules = units[[f"loss {rule}" for rule in RULES]].min(axis=1)
    units = units.assign(
        gain=units["chosen_loss"] / rules - 1, regret=units["chosen_loss"] / losses.min(axis=1) - 1
    )
    parts = []
    for budget, at in units.groupby("budget"):
        gain, regret = _trunk_means(at, "gain"), _trunk_means(at, "regret")
        shares = ", ".join(f"{share:g}" for share in sorted(at["chosen_share"].round(2).unique()))
        better = claim.judge(gain, f"{gain.estimate:+.2%} against the best fixed rule of each run")
        near = claim.judge(regret, f"regret {regret.estimate:.2%}", threshold=claim.limits["regret"])
        means = at[[f"loss {rule}" for rule in RULES]].mean()
        same = at["chosen_loss"].mean() / means.min() - 1
        text = (
            f"{budget:,} tokens: shares {shares}; {_said([better, near])}; {same:+.2%} against "
            f"{_rule(str(means.idxmin()))} for all runs"
        )
        parts.append(all_of(claim, [better, near], text))
    return at_least(claim, parts, int(claim.limits["budgets"]))


def _judge_p4(claim: Claim, results: Results, dataset: str) -> Verdict:
    units = _units(results.where(dataset=dataset, arm=claim.arm, task="served")[0])
    units = units.assign(
        gain=units["specialists"] / units[["both", "mixture"]].min(axis=1) - 1,
        both=units["specialists"] / units["both"] - 1, mixture=units["specialists"] / units["mixture"] - 1,
    )
    parts = []
    for budget, at in units.groupby("budget"):
        gain = _trunk_means(at, "gain")
        text = (
            f"{budget:,} tokens: {at['mixture'].mean():+.2%} against one model on the mixture, "
            f"{at['both'].mean():+.2%} against one model continued on both domains"
        )
        parts.append(claim.judge(gain, text + _by_seed(at, "gain")))
    reason = "; ".join(part.reason for part in parts)
    return at_least(claim, parts, 1, f"{reason}; {_crossover(units)}")


def _crossover(units: pd.DataFrame) -> str:
    """Where the mean difference from each single model changes its sign, on a line in the log of the budget."""
    said = []
    for rival, words in (("mixture", "the mixture's model"), ("both", "the model continued on both")):
        means = units.groupby("budget")[rival].mean()
        budgets, values = np.log(means.index.to_numpy(dtype=float)), means.to_numpy()
        changes = np.flatnonzero(np.sign(values[:-1]) * np.sign(values[1:]) < 0)
        if len(changes):
            i = int(changes[0])
            at = np.exp(budgets[i] + (budgets[i + 1] - budgets[i]) * values[i] / (values[i] - values[i + 1]))
            said.append(f"{'above' if values[i] > 0 else 'below'} {words} up to {at:.2g} tokens")
        else:
            side = "below" if values.max() < 0 else "above"
            said.append(f"{side} {words} at every budget")
    return "mean loss of the specialists " + ", ".join(said)


def _trunk_means(units: pd.DataFrame, column: str) -> Interval:
    """Interval of the mean over trunks of their mean."""
    return mean_interval(units.groupby("group")[column].mean().to_numpy())


def _by_seed(units: pd.DataFrame, column: str) -> str:
    """The same mean over seeds, in words: widths of one seed read the same batches, which could make them alike."""
    found = mean_interval(units.groupby("seed")[column].mean().to_numpy())
    if found.n < 3 or not np.isfinite([found.low, found.high]).all():
        return ""
    return f" (by seed: {found.low:+.2%} to {found.high:+.2%}, n = {found.n})"


def _units(row: Row) -> pd.DataFrame:
    """What the cell kept a run; runs without a shared phase decide nothing."""
    units = row.units if row.units is not None else pd.DataFrame()
    return units[units["D"] > 0] if "D" in units else units


def _forms(units: pd.DataFrame) -> dict[str, int]:
    """How often each form was chosen, over the fits of a cell."""
    fits = units[["domain", "seed", "form"]].drop_duplicates()
    return fits["form"].value_counts().to_dict()


def _rule(column: str) -> str:
    name = column.removeprefix("loss ")
    return {"full": "the model on everything", "0": "specialists only"}.get(name, f"a share of {name}")


def _said(parts: Sequence[Verdict]) -> str:
    return "; ".join(f"{part.reason} ({part.outcome})" for part in parts)


JUDGES: dict[str, Judge] = {"p1": _judge_p1, "p2": _judge_p2, "p3": _judge_p3, "p4": _judge_p4}
