"""From measured cells to verdicts. The home set decides; what other tables say stands beside it in the reason.

The unit is the model: its errors are averaged over checkpoints, splits and (save where each benchmark is judged by
itself) benchmarks before models are resampled. Models of one recipe may err alike, so that the interval over recipes
is given as well. Decisions are pairs of recipes, and pairs share recipes: there the recipes are resampled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from assay.scaling.irsl.tables import CHAMP, GEMSTONES, HOME, SLICE, TITLES
from assay.scaling.irsl.tasks import explained
from assay.stats import Interval, bootstrap, paired
from assay.study import Cell, Claim, Outcome, Results, Verdict, all_of, at_least

__all__ = ["verdict"]

BUDGETS = {SLICE: 12}
DEFAULT_BUDGET = 50
BENCHMARKS_THAT_COUNT = {"i3": 4, "i5": 3}


def verdict(claim: Claim, results: Results) -> Verdict:
    """The home set's verdict; figures from other tables in its reason."""
    home = HOME if not results.where(dataset=SLICE) else SLICE
    found = judged(claim, results, home)
    beside = []
    for dataset in (GEMSTONES, CHAMP):
        other = judged(claim, results, dataset)
        if other.outcome is not Outcome.untested:
            beside.append(f"beside it, {TITLES[dataset]}: {other.outcome}, {other.reason}")
    return replace(found, reason="; ".join([found.reason, *beside]))


def judged(claim: Claim, results: Results, dataset: str) -> Verdict:
    """The verdict of a claim on one table, untested where a cell that it needs is missing."""
    needed, judge = JUDGES[claim.id]
    rows = results.where(_plain, dataset=dataset)
    for task, arms in needed.items():
        for arm in (claim.arm if arm == "" else arm for arm in arms):
            cells = rows.where(arm=arm, task=task, **_budget(task, dataset))
            if missing := cells.missing():
                why = f"no cell {arm} of the task {task} on {TITLES[dataset]}" if not cells else missing
                return claim.untested(why)
    found = judge(claim, rows, dataset)
    beside = _decisions_beside(claim, results, dataset) if claim.id == "i2" else ""
    return replace(found, reason=found.reason + beside)


def _plain(cell: Cell) -> bool:
    """Whether a cell measures the responses as they are, and not another scale of them or the accuracy."""
    return "characters" not in cell.options and "of" not in cell.options


def _budget(task: str, dataset: str) -> dict[str, Any]:
    return {} if task == "line" else {"budget": BUDGETS.get(dataset, DEFAULT_BUDGET)}


def _units(rows: Results, arm: str, task: str, dataset: str) -> pd.DataFrame:
    frames = [row.units for row in rows.where(arm=arm, task=task, **_budget(task, dataset)).measured]
    return pd.concat([frame for frame in frames if frame is not None], ignore_index=True)


def _per_model(units: pd.DataFrame, value: str, source: str = "") -> pd.DataFrame:
    """Mean over splits (and benchmarks) for each model, with its curve."""
    kept = units[units["source"] == source] if source else units
    return kept.groupby(["curve", "model"], sort=True)[value].mean().reset_index()


def ratio(ours: pd.DataFrame, theirs: pd.DataFrame, value: str, clusters: str | None = None) -> Interval:
    """Ratio of mean errors over the same models, by way of its logarithm."""
    both = ours.merge(theirs, on=["curve", "model"], suffixes=("", "_other"))
    a, b = both[value].to_numpy(), both[f"{value}_other"].to_numpy()
    if not len(a) or a.mean() <= 0 or b.mean() <= 0:
        return Interval(np.nan, -np.inf, np.inf, len(a))
    labels = both[clusters].to_numpy() if clusters else None
    with np.errstate(divide="ignore", invalid="ignore"):
        found = bootstrap(lambda i: np.log(a[i].mean(axis=-1) / b[i].mean(axis=-1)), len(a), clusters=labels)
    return _exponential(found)


def _exponential(found: Interval) -> Interval:
    return Interval(float(np.exp(found.estimate)), float(np.exp(found.low)), float(np.exp(found.high)), found.n)


def relative_difference(ours: pd.DataFrame, theirs: pd.DataFrame, value: str) -> Interval:
    """One plus the mean paired difference, in units of the other's mean: below 1 where ours is smaller."""
    both = ours.merge(theirs, on=["curve", "model"], suffixes=("", "_other"))
    a, b = both[value].to_numpy(), both[f"{value}_other"].to_numpy()
    if not len(a) or b.mean() <= 0:
        return Interval(np.nan, -np.inf, np.inf, len(a))
    found = paired(a / b.mean(), b / b.mean())
    return Interval(1 + found.estimate, 1 + found.low, 1 + found.high, found.n)


def _against(
    claim: Claim, rows: Results, dataset: str, arm: str, rival: str, threshold: float, name: str
) -> Verdict:
    ours = _per_model(_units(rows, arm, "score", dataset), "error")
    theirs = _per_model(_units(rows, rival, "score", dataset), "error")
    interval = ratio(ours, theirs, "error")
    text = (
        f"{TITLES[dataset]}: mean absolute error {ours['error'].mean():.4f} against {theirs['error'].mean():.4f} of "
        f"{name}, ratio {interval.estimate:.2f} [{interval.low:.2f}, {interval.high:.2f}]"
    )
    if ours["curve"].nunique() >= 3 and ours["curve"].nunique() < len(ours):
        wide = ratio(ours, theirs, "error", "curve")
        text += f", over recipes [{wide.low:.2f}, {wide.high:.2f}]"
    return claim.judge(interval, text, threshold=threshold)


def _enough(claim: Claim, rows: Results, dataset: str) -> Verdict:
    parts = [
        _against(claim, rows, dataset, claim.arm, "random-mean", claim.threshold, "the mean of 50 random questions"),
        _against(
            claim, rows, dataset, claim.arm, "difference", claim.limits["difference"],
            "the difference estimator on 50 random questions",
        ),
    ]
    rivals = ("the naive mean", "the difference estimator")
    words = [f"against {name}: {part.outcome}" for name, part in zip(rivals, parts, strict=True)]
    return all_of(claim, parts, f"{'; '.join(words)}. {parts[0].reason}; {parts[1].reason}")


def _decisions(claim: Claim, rows: Results, dataset: str) -> Verdict:
    """Share of pairs ordered rightly, minus the ladder's, over the same pairs; curves are resampled."""
    keys = ["first", "second", "source", "target"]
    ours, ladder = (
        _units(rows, arm, "decide", dataset).groupby(keys, sort=True)["right"].mean()
        for arm in (claim.arm, "ladder-all")
    )
    ours, ladder = ours.align(ladder, join="inner")
    difference = (ours - ladder).groupby(["first", "second"], sort=True).mean()
    names = sorted({name for pair in difference.index for name in pair})
    table = np.full((len(names), len(names)), np.nan)
    for (a, b), value in difference.items():
        i, j = names.index(a), names.index(b)
        table[i, j] = table[j, i] = value

    def mean(drawn: np.ndarray) -> float:
        # A curve drawn twice makes no pair with itself: the diagonal is empty.
        values = table[np.ix_(drawn, drawn)]
        return float(np.nanmean(values)) if np.isfinite(values).any() else np.nan

    interval = bootstrap(lambda i: np.array([mean(one) for one in i]) if i.ndim > 1 else mean(i), len(names))
    text = (
        f"{TITLES[dataset]}: {ours.mean():.3f} of the pairs against {ladder.mean():.3f} of the ladder on all "
        f"questions, {len(difference)} pairs of {len(names)} curves"
    )
    return claim.judge(interval, text)


def _decisions_beside(claim: Claim, results: Results, dataset: str) -> str:
    """What else was measured of the decisions: errors, the law of last checkpoints, and the same of accuracy."""
    words = []
    for rows, name in (
        (results.where(_plain, dataset=dataset, task="decide"), "at the target"),
        (results.where(dataset=dataset, task="decide", of="accuracy"), "of accuracy"),
    ):
        arms = {
            "": rows.where(arm=claim.arm), "from last checkpoints alone ": rows.where(arm="irsl-last"),
            "of the ladder ": rows.where(arm="ladder-all"),
        }
        if not all(arms[name].measured for name in ("", "of the ladder ")):
            continue
        found = []
        for label, arm in arms.items():
            share, error = (arm.metric(metric) for metric in ("decision accuracy", "mae"))
            if share:
                found.append(f"{label}{np.mean(share):.3f} of the pairs with error {np.mean(error):.3f}")
        words.append(f"{name} {', '.join(found)}")
    return "".join(f"; {word}" for word in words)


def _smoother(claim: Claim, rows: Results, dataset: str) -> Verdict:
    """On each benchmark: lower error and less wavering than the better of the binary arms.

    The mean of continuous responses might be thought to favour them: the error of accuracy, which is the mean of the
    binary arm's own answers, stands beside.
    """
    # Not every table says which option was chosen; where one does, a failed cell must not leave the weaker rival alone.
    choice = rows.where(arm="cat-choice", task="score", **_budget("score", dataset))
    if choice and (missing := choice.missing()):
        return claim.untested(missing)
    ours = _units(rows, claim.arm, "score", dataset)
    rivals = [arm for arm in ("cat-binary", "cat-choice") if rows.where(arm=arm, task="score").measured]
    binary = {arm: _units(rows, arm, "score", dataset) for arm in rivals}
    parts = []
    for source in dict.fromkeys(ours["source"]):
        checks = []
        for value, name in (("linked", "error"), ("rough", "wavering")):
            own = _per_model(ours, value, source)
            others = [_per_model(units, value, source) for units in binary.values()]
            rival = min(others, key=lambda units: units[value].mean())
            # A curve that only rises wavers by nothing: the logarithm of a ratio would have no value.
            interval = ratio(own, rival, value) if value == "linked" else relative_difference(own, rival, value)
            text = f"{name} {own[value].mean():.4f} against {rival[value].mean():.4f}"
            checks.append(claim.judge(interval, text))
        of_accuracy = [_per_model(units, "accuracy", source)["accuracy"].mean() for units in (ours, *binary.values())]
        beside = f", accuracy {of_accuracy[0]:.4f} against {min(of_accuracy[1:]):.4f}"
        parts.append(all_of(claim, checks, f"{source}: " + ", ".join(part.reason for part in checks) + beside))
    return _of_benchmarks(claim, parts, dataset)


def _transfers(claim: Claim, rows: Results, dataset: str) -> Verdict:
    """Within a construct at most so much worse than own questions, and less worse than across constructs."""
    own = _units(rows, "cat", "score", dataset)
    within, between = (_units(rows, arm, "transfer", dataset) for arm in (claim.arm, "between"))
    near, far = within["source"].iloc[0], between["source"].iloc[0]
    own_near, own_far = _per_model(own, "error", near), _per_model(own, "error", far)
    inside, across = _per_model(within, "error"), _per_model(between, "error")
    first = ratio(inside, own_near, "error")
    merged = inside.merge(own_near, on=["curve", "model"], suffixes=("", "_own")).merge(
        across.merge(own_far, on=["curve", "model"], suffixes=("", "_own")), on=["curve", "model"],
        suffixes=("", "_far"),
    )
    columns = [merged[name].to_numpy() for name in ("error", "error_own", "error_far", "error_own_far")]

    def relative(i: np.ndarray) -> np.ndarray:
        a, b, c, d = (np.log(column[i].mean(axis=-1)) for column in columns)
        return (a - b) - (c - d)

    second = _exponential(bootstrap(relative, len(merged)))
    parts = [
        claim.judge(first, f"error {inside['error'].mean():.4f} against {own_near['error'].mean():.4f} from its own "
                    f"questions, ratio {first.estimate:.2f} [{first.low:.2f}, {first.high:.2f}]; "
                    f"{_per_model(within, 'linked')['linked'].mean():.4f} with a line from one ability to the other"),
        claim.judge(second, f"across constructs {across['error'].mean():.4f} against {own_far['error'].mean():.4f}, "
                    f"the ratio of the ratios {second.estimate:.2f} [{second.low:.2f}, {second.high:.2f}]",
                    threshold=claim.limits["against_control_pair"]),
    ]
    return all_of(claim, parts, f"{TITLES[dataset]}, {near}: {parts[0].reason}; {far}: {parts[1].reason}")


def _straight(claim: Claim, rows: Results, dataset: str) -> Verdict:
    """R^2 of ability on log compute within curves, for each benchmark; models are resampled within their curve."""
    units = _units(rows, claim.arm, "line", dataset)
    parts = []
    for source, part in units.groupby("source", sort=False):
        x, theta, curve = np.log(part["flops"].to_numpy()), part["theta"].to_numpy(), part["curve"].to_numpy()
        sums, strata = _sums_of_models(x - x.mean(), theta, curve, part["model"].to_numpy())
        member = np.eye(strata.max() + 1)[strata]

        def share(i: np.ndarray, sums: np.ndarray = sums, member: np.ndarray = member) -> np.ndarray:
            return _explained_by_lines(np.einsum("...mk,...mg->...gk", sums[i], member[i]))

        interval = bootstrap(share, len(sums), strata=strata)
        step = part["step"].to_numpy()
        last = step == step.max()
        text = (
            f"{source}: {interval.estimate:.3f}, {explained(x, theta, curve, 2):.3f} for a parabola, "
            f"{explained(np.log(step), theta, curve, 1):.3f} for log updates, "
            f"{explained(x[last], theta[last], curve[last], 1):.3f} over last checkpoints alone"
        )
        parts.append(claim.judge(interval, text))
    return _of_benchmarks(claim, parts, dataset)


def _sums_of_models(
    x: np.ndarray, theta: np.ndarray, curve: np.ndarray, model: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """n, sums and sums of products of each model's points, shape (models, 6), and the number of its curve."""
    labels = pd.MultiIndex.from_arrays([curve, model])
    codes, keys = pd.factorize(labels, sort=True)
    columns = (np.ones_like(x), x, theta, x * x, x * theta, theta * theta)
    sums = np.stack([np.bincount(codes, weights=column, minlength=len(keys)) for column in columns], axis=1)
    return sums, np.unique([key[0] for key in keys], return_inverse=True)[1]


def _explained_by_lines(sums: np.ndarray) -> np.ndarray:
    """Share of the variance within curves that a line a curve explains, from the curves' sums (..., curves, 6)."""
    n, x, y, xx, xy, yy = np.moveaxis(sums, -1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        along = (xy - x * y / n) ** 2 / (xx - x * x / n)
        return along.sum(axis=-1) / (yy - y * y / n).sum(axis=-1)


def _of_benchmarks(claim: Claim, parts: list[Verdict], dataset: str) -> Verdict:
    wanted = BENCHMARKS_THAT_COUNT[claim.id]
    held = sum(part.outcome is Outcome.holds for part in parts)
    text = f"{TITLES[dataset]}: holds on {held} of {len(parts)} benchmarks, {wanted} are needed; "
    return at_least(claim, parts, wanted, text + "; ".join(part.reason for part in parts))


JUDGES: dict[str, tuple[dict[str, tuple[str, ...]], Callable[[Claim, Results, str], Verdict]]] = {
    "i1": ({"score": ("", "random-mean", "difference")}, _enough),
    "i2": ({"decide": ("", "ladder-all")}, _decisions),
    "i3": ({"score": ("", "cat-binary")}, _smoother),
    "i4": ({"score": ("cat",), "transfer": ("", "between")}, _transfers),
    "i5": ({"line": ("",)}, _straight),
}
"""Claim to the cells that it needs (the claim's own arm is the empty name) and its judge."""
