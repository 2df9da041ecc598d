"""What a cell measures on one population: tests, the curve of successes, the two scales, random paths, false alarms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import kurtosis, skew

from assay.scaling.seed_bimodality.dip import dip_pvalue, dip_statistic
from assay.scaling.seed_bimodality.distribution import BIC, FEWEST, SeedDistribution, holm
from assay.scaling.seed_bimodality.scaling_curves import first_bimodal, success_p, weight_curve
from assay.scaling.seed_bimodality.trends import breakthroughness
from assay.scaling.seed_bimodality.twins import Bell, bell_of
from assay.stats import Interval, bootstrap
from assay.study import Cell, Measurement

__all__ = ["TASKS", "Group", "groups_of", "transformed"]

SUCCESS = 0.9
ALPHA = 0.05
LEAST_ITEMS = 20  # of a prompt set: fewer and the score's ties are modes of their own
USABLE_SCALES = 5
BINS = 20
NULL_PATHS = 20_000
AT_ONCE = {"stepped": 0.1, "lucky": 0.03}  # share of successes before the jump, and of failures after it
Array = NDArray[np.float64]


class Group(NamedTuple):
    """The seeds of one task at one scale, on one test."""

    scale: float
    test: str
    items: int
    scores: Array
    losses: Array


def groups_of(table: pd.DataFrame, options: dict[str, Any]) -> list[Group]:
    """The groups that the options choose: a task, a number of steps, and tests with enough items.

    Of the count task only answers longer than in training are looked at: one at a time on the longer number line,
    and pooled over the lengths up to half as long again, so that a test has 20 prompts or more.
    """
    chosen = table[table["task"].isin(options["tasks"]) & (table["items"] >= LEAST_ITEMS)]
    last = chosen.groupby("task")["steps"].transform("max")
    chosen = chosen[chosen["steps"] == options.get("steps", last)]
    if "count-64" in options["tasks"]:
        pooled = chosen["test"].str.contains("-") & (chosen["task"] == "count-32")
        longer = (chosen["task"] == "count-64") & ~chosen["test"].isin(["16", "17-24"])
        chosen = chosen[pooled | longer]
    found = []
    for (task, test, scale), rows in chosen.groupby(["task", "test", "scale"], sort=True):
        name = test if len(options["tasks"]) == 1 else f"{task} length {test}"
        found.append(Group(
            float(scale), str(name), int(rows["items"].iloc[0]), rows["score"].to_numpy(), rows["loss"].to_numpy()
        ))
    return found


def transformed(groups: list[Group], arm: str, seed: int) -> list[Group]:
    """The population of an arm: the seeds as they are, or a sabotaged one of the same size.

    unimodal   each group drawn anew from one bell cut off at the metric's bounds, with the group's mean and variance
    stepped    the share of successes jumps at once from 10 % to 90 %, at the scale from which most seeds succeed
    lucky      3 % succeed by luck, whatever the scale, up to a jump to 97 %; failures are those of each scale
    """
    rng = np.random.default_rng([seed, len(groups)])
    if arm == "unimodal":
        return [_twin(g, _bells(g), rng) for g in groups]
    return _at_once(groups, rng, AT_ONCE[arm]) if arm in AT_ONCE else groups


def _bells(group: Group) -> tuple[Bell, Bell]:
    """The bells of a group's scores and losses."""
    return bell_of(group.scores, 0.0, 1.0), bell_of(group.losses, 0.0, math.inf)


def _twin(group: Group, bells: tuple[Bell, Bell], rng: np.random.Generator) -> Group:
    scores, losses = (bell.draw(rng, len(group.scores)) for bell in bells)
    return group._replace(scores=np.round(scores * group.items) / group.items, losses=losses)


def _at_once(groups: list[Group], rng: np.random.Generator, share: float) -> list[Group]:
    """A share of successes that jumps: `share` below the scale where most succeed (3 seeds at least), then the rest."""
    good = [g.scores >= SUCCESS for g in groups]
    first = next((k for k, mask in enumerate(good) if mask.mean() > 0.5), len(groups) - 1)
    pools = [_pooled(groups, good), _pooled(groups, [~mask for mask in good])]
    made = []
    for k, (g, mask) in enumerate(zip(groups, good, strict=True)):
        few = max(3, round(share * len(mask)))
        n_good = few if k < first else len(mask) - few
        failures = (g.scores[~mask], g.losses[~mask]) if not mask.all() else pools[1]
        rows = [rng.integers(len(part[0]), size=n) for part, n in
                ((pools[0], n_good), (failures, len(mask) - n_good))]
        scores, losses = (
            np.concatenate([pools[0][what][rows[0]], failures[what][rows[1]]]) for what in (0, 1)
        )
        made.append(g._replace(scores=scores, losses=losses))
    return made


def _pooled(groups: list[Group], masks: list[NDArray[np.bool_]]) -> tuple[Array, Array]:
    """Scores and losses of the chosen seeds of all groups."""
    chosen = list(zip(groups, masks, strict=True))
    return np.concatenate([g.scores[m] for g, m in chosen]), np.concatenate([g.losses[m] for g, m in chosen])


def measure_population(cell: Cell, groups: list[Group]) -> Measurement:
    """Everything that the claims ask of one population; one row of `units` a group."""
    groups = transformed(groups, cell.arm, cell.seed)
    table = _tests(groups)
    metrics: dict[str, float] = {"groups": float(len(groups)), "seeds": float(table["n"].min())}
    for what in ("score", "loss"):
        metrics |= _best_group(table, what)
    if len({g.scale for g in groups}) == len(groups) >= 3:
        if "curve" in cell.options["measure"]:
            metrics |= _curve(groups, cell.options["resamples"])
            metrics |= _two_scales(groups, cell.options["resamples"])
        if "paths" in cell.options["measure"]:
            metrics |= _paths(groups, cell.options["resamples"] // 4, cell.options["paths"])
    return Measurement(metrics, table)


def _tests(groups: list[Group]) -> pd.DataFrame:
    """Dip, mixture, share of successes and a histogram of each group."""
    rows = []
    for g in groups:
        row: dict[str, Any] = {"scale": g.scale, "test": g.test, "n": len(g.scores), "items": g.items}
        by_score, by_loss = SeedDistribution("accuracy", g.items).fit(g.scores), SeedDistribution("loss").fit(g.losses)
        for what, found in (("score", by_score), ("loss", by_loss)):
            row |= {
                f"{what}_p": found.dip_p_, f"{what}_inside_p": found.dip_inside_p_, f"{what}_bic": found.bic_delta_,
                f"{what}_weight": found.weight_, f"{what}_lo": found.means_[0], f"{what}_hi": found.means_[1],
            }
        good = g.scores >= SUCCESS
        row |= {
            "mean": g.scores.mean(), "median": np.median(g.scores), "share": good.mean(),
            "at_one": (g.scores == 1).mean(),
            "mu_lo": g.scores[~good].mean() if (~good).any() else math.nan,
            "mu_hi": g.scores[good].mean() if good.any() else math.nan, "mean_loss": g.losses.mean(),
        }
        shares = np.histogram(g.scores, BINS, (0.0, 1.0))[0] / len(g.scores)
        rows.append(row | {f"bin{k:02d}": share for k, share in enumerate(shares)})
    table = pd.DataFrame(rows)
    for what in ("score", "loss"):
        table[f"{what}_holm"] = holm(table[f"{what}_p"])
    return table


def _best_group(table: pd.DataFrame, what: str) -> dict[str, float]:
    """How many groups pass both tests, and the figures of the group that comes nearest."""
    both = (table[f"{what}_holm"] < ALPHA) & (table[f"{what}_bic"] > BIC)
    ranked = table.assign(passes=both).sort_values(["passes", f"{what}_holm", f"{what}_bic"], ascending=[0, 1, 0])
    best = ranked.iloc[0]
    return {
        f"{what}_bimodal": float(both.sum()), f"{what}_p": float(best[f"{what}_holm"]),
        f"{what}_bic": float(best[f"{what}_bic"]), f"{what}_scale": float(best["scale"]),
        f"{what}_smallest_p": float(table[f"{what}_p"].min()),
    }


def _stacked(groups: list[Group]) -> tuple[Array, NDArray[np.intp]]:
    """All scores, and the number of the group that each belongs to."""
    sizes = [len(g.scores) for g in groups]
    return np.concatenate([g.scores for g in groups]), np.repeat(np.arange(len(groups)), sizes)


def _curve(groups: list[Group], resamples: int) -> dict[str, float]:
    """The logistic curve of the share of successes against the best step function, with intervals over seeds."""
    scores, at = _stacked(groups)
    good = scores >= SUCCESS
    logs = np.log([g.scale for g in groups])

    def fitted(rows: NDArray[np.intp]) -> Any:
        successes = np.bincount(at[rows], good[rows], minlength=len(groups))
        return weight_curve(logs, successes, np.bincount(at[rows], minlength=len(groups)))

    gain = bootstrap(lambda rows: fitted(rows).aic_gain, len(scores), strata=at, n_resamples=resamples)
    slope = bootstrap(lambda rows: fitted(rows).slope, len(scores), strata=at, n_resamples=resamples)
    k = int(np.argmax(np.abs(np.diff([np.median(g.scores) for g in groups]))))
    pair = np.isin(at, (k, k + 1))
    two, side = scores[pair], at[pair] - k
    due = bootstrap(lambda rows: _due_to_share(two[rows], side[rows]), len(two), strata=side, n_resamples=resamples)
    whole = fitted(np.arange(len(scores)))
    return {
        **_kept("gain", gain), **_kept("slope", slope), **_kept("due", due),
        **_kept("span", _span(slope, float(logs[k + 1] - logs[k]))), "misfit_p": whole.misfit_p,
        "midpoint": whole.midpoint, "jump_from": groups[k].scale, "jump_to": groups[k + 1].scale,
    }


def _span(slope: Interval, gap: float) -> Interval:
    """How many steps of `gap` in log scale the curve takes from 10 % to 90 %: 2 log 9 over its slope a step."""
    estimate, low, high = (
        2 * math.log(9) / (b * gap) if b > 0 else math.inf for b in (slope.estimate, slope.high, slope.low)
    )
    return Interval(estimate, low, high, slope.n)


def _due_to_share(scores: Array, side: NDArray[np.intp]) -> float:
    """Of the rise of the mean between two neighbouring scales, the part that the share of successes makes.

    The rise is dw (mu_hi - mu_lo) at the middle of the two scales' mode means, plus what these means move.
    """
    before, after = scores[side == 0], scores[side == 1]
    modes = np.array([[_mean_of(part, wanted) for part in (before, after)] for wanted in (False, True)])
    if np.isnan(modes).all(axis=1).any():
        return 0.0
    low, high = np.nanmean(modes, axis=1)
    rise = after.mean() - before.mean()
    more = (after >= SUCCESS).mean() - (before >= SUCCESS).mean()
    return float(more * (high - low) / rise) if rise else 0.0


def _two_scales(groups: list[Group], resamples: int) -> dict[str, float]:
    """The scale at which the scores turn bimodal over that at which most seeds succeed.

    The second is read between scales, where the share of successes passes one half on a straight line in the log of
    scale. Repeats in a resample would be ties that look like modes: its dip is taken over its distinct seeds, a random
    subset of the sample.
    """
    scores, at = _stacked(groups)
    scales = np.array([g.scale for g in groups])

    def ratio(rows: NDArray[np.intp]) -> float:
        parts = [rows[at[rows] == k] for k in range(len(groups))]
        p = holm([_split_p(scores[np.unique(part)]) for part in parts])
        successes = np.array([(scores[part] >= SUCCESS).sum() for part in parts])
        counts = np.array([len(part) for part in parts])
        return first_bimodal(scales, p, successes, counts, ALPHA) / _half_way(np.log(scales), successes / counts)

    found = bootstrap(ratio, len(scores), strata=at, n_resamples=resamples)
    whole = [holm([_split_p(g.scores) for g in groups]), np.array([(g.scores >= SUCCESS).mean() for g in groups])]
    successes = np.array([(g.scores >= SUCCESS).sum() for g in groups])
    counts = np.array([len(g.scores) for g in groups])
    return {
        **_kept("ratio", found), "threshold": first_bimodal(scales, whole[0], successes, counts, ALPHA),
        "half_way": _half_way(np.log(scales), whole[1]),
    }


def _dip_p(values: Array) -> float:
    return dip_pvalue(dip_statistic(values), len(values)) if len(values) >= FEWEST else math.nan


def _split_p(values: Array) -> float:
    """Of the dip, as it is and with the failures on one point: the larger p-value, for both must reject."""
    return max(_dip_p(values), success_p(values, values >= SUCCESS))


def _half_way(logs: Array, shares: Array) -> float:
    """The scale at which the share first passes one half; NaN where it never does."""
    above = np.flatnonzero(shares > 0.5)
    if not len(above):
        return math.nan
    k = int(above[0])
    if k == 0:
        return float(np.exp(logs[0]))
    part = (0.5 - shares[k - 1]) / (shares[k] - shares[k - 1])
    return float(np.exp(logs[k - 1] + part * (logs[k] - logs[k - 1])))


def _paths(groups: list[Group], resamples: int, n_paths: int) -> dict[str, float]:
    """Shares of random paths that are sharper, and smoother, than paths through unimodal populations.

    Where most seeds sit on a bound, steps of zero make any curve infinitely sharp: scales with half of the seeds or
    more on a bound are left out, and fewer than five others are too few.
    """
    kept = [g for g in groups if max((g.scores == 0).mean(), (g.scores == 1).mean()) < 0.5]
    metrics = {"usable_scales": float(len(kept))}
    if len(kept) < USABLE_SCALES:
        return metrics
    rng = np.random.default_rng([7, len(kept)])
    bells = [bell_of(g.scores, 0.0, 1.0) for g in kept]
    null = breakthroughness(_null_paths(kept, bells, rng, NULL_PATHS))
    sharp, middle = np.quantile(null, [0.9, 0.5], method="higher")
    scores, at = _stacked(kept)

    def share(rows: NDArray[np.intp], side: Callable[[Array], NDArray[np.bool_]]) -> float:
        draws = np.random.default_rng(11)
        columns = [scores[rows[at[rows] == k]] for k in range(len(kept))]
        paths = np.stack([c[draws.integers(len(c), size=n_paths)] for c in columns], axis=1)
        return float(side(np.asarray(breakthroughness(paths))).mean())

    above = bootstrap(lambda rows: share(rows, lambda br: br > sharp), len(scores), strata=at, n_resamples=resamples)
    below = bootstrap(lambda rows: share(rows, lambda br: br < middle), len(scores), strata=at, n_resamples=resamples)
    return metrics | {
        **_kept("sharp", above), **_kept("smooth", below), "null_q90": _plain(sharp), "null_median": _plain(middle),
    }


def _null_paths(groups: list[Group], bells: list[Bell], rng: np.random.Generator, n: int) -> Array:
    drawn = [np.round(b.draw(rng, n) * g.items) / g.items for g, b in zip(groups, bells, strict=True)]
    return np.stack(drawn, axis=1)


def _plain(value: float) -> float:
    return float(min(value, 1e9))


def _kept(name: str, interval: Interval) -> dict[str, float]:
    """An interval as metrics; endless ends are kept as numbers that JSON holds."""
    ends = {"": interval.estimate, "_low": interval.low, "_high": interval.high}
    return {f"{name}{end}": float(np.clip(value, -1e9, 1e9)) for end, value in ends.items()} | {f"{name}_n": interval.n}


def measure_false_alarms(cell: Cell, groups: list[Group]) -> Measurement:
    """How often unimodal populations of the same sizes are called bimodal at some scale, and by Sarle's coefficient."""
    rng = np.random.default_rng([cell.seed, 5])
    alarms = {"score": 0, "loss": 0, "sarle": 0}
    bells = [_bells(g) for g in groups]
    for _ in range(cell.options["populations"]):
        twins = [_twin(g, own, rng) for g, own in zip(groups, bells, strict=True)]
        for what in ("score", "loss"):
            samples = [g.scores if what == "score" else g.losses for g in twins]
            alarms[what] += _calls_bimodal(samples, [g.items for g in twins], what)
        alarms["sarle"] += any(sarle(g.scores) > 5 / 9 for g in twins if np.ptp(g.scores))
    n = cell.options["populations"]
    return Measurement({"populations": float(n)} | {f"{what}_alarms": count / n for what, count in alarms.items()})


def _calls_bimodal(samples: list[Array], items: list[int], what: str) -> bool:
    """The full rule, with the mixture fitted only where the dip has already spoken."""
    adjusted = holm([_dip_p(s) for s in samples])
    kind = "accuracy" if what == "score" else "loss"
    return any(
        SeedDistribution(kind, n if what == "score" else None).fit(s).bic_delta_ > BIC
        for s, n, p in zip(samples, items, adjusted, strict=True) if p < ALPHA
    )


def measure_power(cell: Cell, groups: list[Group]) -> Measurement:
    """How often smaller samples of seeds show the two modes of the scale whose modes are the most balanced.

    Below ten seeds nothing is tested, and nothing found.
    """
    group = min(groups, key=lambda g: abs((g.scores >= SUCCESS).mean() - 0.5))
    rng = np.random.default_rng([cell.seed, 6])
    bell = bell_of(group.scores, 0.0, 1.0)
    rows = []
    for n in cell.options["sizes"]:
        real = [rng.choice(group.scores, n, replace=False) for _ in range(cell.options["draws"])]
        null = [np.round(bell.draw(rng, n) * group.items) / group.items for _ in real]
        rows.append({
            "n": n, **{f"dip_{name}": np.mean([_dip_p(s) < ALPHA for s in samples])
                       for name, samples in (("power", real), ("alarms", null))},
            **{f"sarle_{name}": np.mean([bool(np.ptp(s)) and sarle(s) > 5 / 9 for s in samples])
               for name, samples in (("power", real), ("alarms", null))},
        })
    metrics = {f"{name}_{row['n']}": float(row[name]) for row in rows for name in row if name != "n"}
    return Measurement(metrics | {"scale": group.scale}, pd.DataFrame(rows))


def sarle(values: Array) -> float:
    """Sarle's bimodality coefficient, (skewness^2 + 1) / (kurtosis + a term of n); 5/9 for a uniform distribution."""
    n = len(values)
    correction = 3 * (n - 1) ** 2 / ((n - 2) * (n - 3))
    return float((skew(values, bias=False) ** 2 + 1) / (kurtosis(values, bias=False) + correction))


def measure_left_out(cell: Cell, groups: list[Group]) -> Measurement:
    """Predict the mean score of a scale from the others: share of successes and mode means, or interquartile means.

    Each inner scale is left out in turn. The first way fits the logistic curve and interpolates both mode means; the
    second interpolates the interquartile mean over seeds, which is what is often reported; both in log scale.
    """
    logs = np.log([g.scale for g in groups])
    rows = []
    for k in range(1, len(groups) - 1):
        others = [j for j in range(len(groups)) if j != k]
        successes = np.array([(groups[j].scores >= SUCCESS).sum() for j in others])
        counts = np.array([len(groups[j].scores) for j in others])
        curve = weight_curve(logs[others], successes, counts)
        w = 1 / (1 + math.exp(-np.clip(curve.offset + curve.slope * logs[k], -40, 40)))
        low, high = (
            _between(logs[others], [_mean_of(groups[j].scores, wanted) for j in others], logs[k])
            for wanted in (False, True)
        )
        middle = _between(logs[others], [_interquartile_mean(groups[j].scores) for j in others], logs[k])
        truth = groups[k].scores.mean()
        rows.append({"scale": groups[k].scale, "modes": abs(w * high + (1 - w) * low - truth),
                     "iqm": abs(middle - truth)})
    table = pd.DataFrame(rows)
    return Measurement({"modes_error": table["modes"].mean(), "iqm_error": table["iqm"].mean()}, table)


def _mean_of(scores: Array, successful: bool) -> float:
    chosen = scores[(scores >= SUCCESS) == successful]
    return float(chosen.mean()) if len(chosen) else math.nan


def _between(x: Array, y: list[float], at: float) -> float:
    known = ~np.isnan(y)
    return float(np.interp(at, x[known], np.array(y)[known]))


def _interquartile_mean(scores: Array) -> float:
    low, high = np.quantile(scores, [0.25, 0.75])
    return float(scores[(scores >= low) & (scores <= high)].mean())


TASKS: dict[str, Callable[[Cell, list[Group]], Measurement]] = {
    "population": measure_population, "false-alarms": measure_false_alarms, "power": measure_power,
    "left-out": measure_left_out,
}
