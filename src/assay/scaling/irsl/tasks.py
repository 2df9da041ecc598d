"""What the study measures, task by task; each takes a cell, its table and the calibrations that it needs.

- `score`: the full mean of held-out models from few questions (claims i1 and i3);
- `decide`: which of two data recipes is better at a size that was not trained (i2), by the mean response or, with the
  option `of="accuracy"`, by accuracy;
- `transfer`: the mean of one benchmark from an ability measured on another (i4);
- `line`: ability against log compute (i5);
- `pass`: pass@k of a held-out model from few questions, on answers that were sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
from scipy.special import expit

from assay.scaling.fit import PowerLaw
from assay.scaling.irsl.ability import estimate, response_of
from assay.scaling.irsl.adaptive import ask_all
from assay.scaling.irsl.estimator import BetaIRT
from assay.scaling.irsl.estimators import PLAIN, Calibration, by_ability, draw_questions, link, shuffled
from assay.scaling.irsl.laws import ItemResponseScalingLaw, pass_at_k, pass_at_k_unbiased
from assay.scaling.irsl.tables import CHAMP, ResponseTable
from assay.scaling.links import SigmoidLink
from assay.study import Cell, Measurement, Skip

__all__ = ["TASKS", "VARIANTS", "calibrate", "variant_of"]

Calibrations = Mapping[str, Calibration]

VARIANTS: dict[str, dict] = {
    "beta": {},
    "phi10": {"phi": 10.0},
    "authors": {"phi": 10.0, "method": "random-abilities"},
    "marginal": {"method": "marginal", "max_iter": 60},
    "2pl": {"model": "2pl", "max_iter": 100},
    "binary": {"likelihood": "binary"},
    "choice": {"likelihood": "binary"},
}
"""Settings of the calibrations by name; `binary` splits each item at its median, `choice` takes the option chosen."""

VARIANT_OF_ARM = {
    "cat-authors": "authors", "cat-phi10": "phi10", "cat-binary": "binary", "cat-choice": "choice",
    "cat-marginal": "marginal", "cat-2pl": "2pl", "random-2pl": "2pl", "irsl-binary-50": "binary",
}

KS = (1, 2, 4, 8)
LEAST_PASS = 0.005


def variant_of(cell: Cell) -> str:
    """Which calibration an arm needs; empty for those that need none."""
    if cell.arm in PLAIN or cell.arm.startswith("ladder") or cell.arm == "plug-in":
        return ""
    return "choice" if cell.dataset == CHAMP else VARIANT_OF_ARM.get(cell.arm, "beta")


def calibrate(table: ResponseTable, split: int, variant: str) -> dict[str, Calibration]:
    """The items of each benchmark from the calibrating rows of a split (from all rows with split -1)."""
    responses = _responses(table, split, variant)
    rows = np.ones(len(table.p), dtype=bool) if split < 0 else table.calibrating(split)
    made = {}
    for source in table.sources:
        irt = BetaIRT(**VARIANTS[variant]).fit(responses[np.ix_(rows, table.of(source))])
        made[source] = Calibration(irt.items(), irt.ability_)
    return made


def _responses(table: ResponseTable, split: int, variant: str) -> np.ndarray:
    """What a variant's likelihood sees: the responses, the options chosen, or above and below each item's median."""
    if variant == "choice":
        if table.right is None:
            raise Skip("this table does not say which option a model chose")
        return table.right
    if variant == "binary":
        calibrating = table.p if split < 0 else table.p[table.calibrating(split)]
        return (table.p > np.median(calibrating, axis=0)).astype(float)
    return table.p


def score(cell: Cell, table: ResponseTable, made: Calibrations) -> Measurement:
    """Error of the full mean from `budget` questions, for every held-out model and benchmark."""
    split, budget = cell.seed, cell.options["budget"]
    calibrating = table.calibrating(split)
    variant = variant_of(cell)
    asked_of = _responses(table, split, variant) if variant else table.p
    rows = []
    for source in table.sources:
        columns = table.of(source)
        known, test = table.p[np.ix_(calibrating, columns)], table.p[np.ix_(~calibrating, columns)]
        seed = 1000 * split + table.sources.index(source)
        truth = test.mean(axis=1)
        if not variant:
            rows.append(_errors(table, ~calibrating, source, PLAIN[cell.arm](known, test, budget, seed) - truth))
            continue
        own = made[source]
        if cell.arm == "shuffled":
            own = Calibration(shuffled(own.items, seed), own.theta)
        estimates = by_ability(cell.arm, known, asked_of[np.ix_(~calibrating, columns)], own, budget, seed)
        found, theta, beside = estimates.score, estimates.theta, {}
        if theta is not None:
            accuracy = table.accuracy[:, table.sources.index(source)]
            beside = {
                "linked": link(own.theta, known.mean(axis=1))(theta) - truth,
                "accuracy": link(own.theta, accuracy[calibrating])(theta) - accuracy[~calibrating],
                "path": theta / max(float(own.theta.std()), 1e-9),
            }
            if cell.arm in ("cat-binary", "cat-choice"):
                found = beside["linked"][None] + truth  # what their model expects is the mean of other responses
        rows.append(_errors(table, ~calibrating, source, found - truth, beside))
    units = pd.concat(rows, ignore_index=True)
    metrics = {"mae": float(units["error"].mean()), "bias": float(units["bias"].mean())}
    metrics |= {f"mae {source}": float(part["error"].mean()) for source, part in units.groupby("source")}
    if units["rough"].notna().all():
        names = {"linked": "linked mae", "accuracy": "mae of accuracy", "rough": "rough"}
        metrics |= {name: float(units[column].mean()) for column, name in names.items()}
    return Measurement(metrics, units)


def _errors(
    table: ResponseTable, held_out: np.ndarray, source: str, error: np.ndarray,
    beside: Mapping[str, np.ndarray] | None = None,
) -> pd.DataFrame:
    """One row a held-out model: errors over its checkpoints and the draws, and how its ability wavers on the way.

    `error` has shape (draws, rows). Of what stands beside it, `linked` and `accuracy` are errors by way of the ability,
    and `path` gives `rough`: the way that the ability goes from checkpoint to checkpoint beyond the straight one, in
    standard deviations of the calibrating abilities, 0 for any curve that only rises.
    """
    model, step, curve = table.model[held_out], table.step[held_out], table.curve[held_out]
    rows = []
    for name in dict.fromkeys(model.tolist()):
        own = np.flatnonzero(model == name)
        own = own[np.argsort(step[own], kind="stable")]
        row = {
            "model": name, "curve": curve[own[0]], "source": source, "error": float(np.abs(error[:, own]).mean()),
            "bias": float(error[:, own].mean()), "linked": np.nan, "accuracy": np.nan, "rough": np.nan,
        }
        for kind, values in (beside or {}).items():
            if kind == "path":
                moves = np.diff(values[own])
                row["rough"] = float(np.abs(moves).sum() - abs(moves.sum()))
            else:
                row[kind] = float(np.abs(values[own]).mean())
        rows.append(row)
    return pd.DataFrame(rows)


def decide(cell: Cell, table: ResponseTable, made: Calibrations) -> Measurement:
    """Predicted and true order of every pair of held-out curves at each target, from the rows before it.

    The ladder calibrates no items, so that it is asked about all curves at once.
    """
    held_out = np.ones(len(table.p), dtype=bool) if cell.arm.startswith("ladder") else ~table.calibrating(cell.seed)
    curves = list(dict.fromkeys(table.curve[held_out].tolist()))
    rows, errors = [], []
    for source in table.sources:
        score = _score_of(cell, table, source)
        for target in _targets(table):
            before, goal = _before(table, target)
            true = {c: float(score[goal & (table.curve == c)].mean()) for c in curves}
            guess = _guesses(cell, table, made, source, curves, before, goal)
            rows += [
                {"first": a, "second": b, "source": source, "target": target, "right": _agreement(true, guess, a, b)}
                for i, a in enumerate(curves) for b in curves[i + 1 :]
            ]
            errors += [abs(true[c] - guess[c]) for c in curves]
    units = pd.DataFrame(rows)
    metrics = {"decision accuracy": float(units["right"].mean()), "mae": float(np.mean(errors))}
    metrics |= {f"decision accuracy {source}": float(part["right"].mean()) for source, part in units.groupby("source")}
    return Measurement(metrics, units)


def _score_of(cell: Cell, table: ResponseTable, source: str) -> np.ndarray:
    """What is to be predicted of each checkpoint: the mean response, or the accuracy."""
    if cell.options.get("of") == "accuracy":
        return table.accuracy[:, table.sources.index(source)]
    return table.p[:, table.of(source)].mean(axis=1)


def _targets(table: ResponseTable) -> list[float]:
    """The two largest sizes where a curve is a recipe; the last step where it is one model."""
    return np.unique(table.size)[-2:].tolist() if table.fold_by == "curve" else [float(table.step.max())]


def _before(table: ResponseTable, target: float) -> tuple[np.ndarray, np.ndarray]:
    """Rows that a law may see, and the rows that it is asked about."""
    if table.fold_by == "curve":
        return table.size < target, (table.size == target) & (table.step == table.step.max())
    return table.step <= target / 2, table.step == target


def _guesses(
    cell: Cell, table: ResponseTable, made: Calibrations, source: str, curves: list[str], before: np.ndarray,
    goal: np.ndarray,
) -> dict[str, float]:
    columns, seed = table.of(source), 1000 * cell.seed + table.sources.index(source)
    budget = cell.options["budget"]
    if cell.arm == "irsl-last":
        before = before & (table.step == table.step.max())
    in_curve = {c: np.flatnonzero(before & (table.curve == c)) for c in curves}
    goal_flops = {c: float(table.flops[goal & (table.curve == c)][0]) for c in curves}
    chosen = np.concatenate(list(in_curve.values()))
    seen = table.p[np.ix_(chosen, columns)]
    owner = table.curve[chosen]
    if cell.arm.startswith("ladder"):
        if cell.arm == "ladder-50":
            seen = np.take_along_axis(seen, draw_questions(len(seen), len(columns), budget, seed, 0), axis=1)
        score = _score_of(cell, table, source)[chosen] if "of" in cell.options else seen.mean(axis=1)
        return _ladder(seen, score, owner, table.flops[chosen], goal_flops, cell.options["starts"])
    items = made[source].items
    if cell.arm == "irsl-binary-50":
        seen = _responses(table, cell.seed, "binary")[np.ix_(chosen, columns)]
    if cell.arm == "irsl-all":
        theta = estimate(response_of(seen, items), items)[0]
    else:
        theta = ask_all(seen, items, budget)[0]
    ahead = {
        c: float(ItemResponseScalingLaw().fit(table.flops[in_curve[c]], theta[owner == c])
                 .predict_theta([goal_flops[c]])[0])
        for c in curves
    }
    guess = _scores_at(cell, table, made[source], source, ahead)
    if cell.arm == "irsl-shuffled":
        order = np.random.default_rng([13, seed]).permutation(len(curves))
        return {c: guess[curves[k]] for c, k in zip(curves, order, strict=True)}
    return guess


def _scores_at(
    cell: Cell, table: ResponseTable, own: Calibration, source: str, theta: Mapping[str, float]
) -> dict[str, float]:
    """The mean expected response at each ability; for accuracy, a sigmoid of ability through the calibrating rows."""
    at = np.array(list(theta.values()))
    if "of" not in cell.options:
        return dict(zip(theta, expit(own.items.eta(at)).mean(axis=1).tolist(), strict=True))
    calibrating = table.calibrating(cell.seed)
    through = SigmoidLink(cell.options["starts"]).fit(own.theta, _score_of(cell, table, source)[calibrating])
    return dict(zip(theta, through.predict(at).tolist(), strict=True))


def _ladder(
    seen: np.ndarray, score: np.ndarray, owner: np.ndarray, flops: np.ndarray, goal: Mapping[str, float], starts: int
) -> dict[str, float]:
    """Loss as a power of compute for each curve, then one sigmoid from loss to score for all of them."""
    loss = -np.log(np.clip(seen, 1e-6, 1)).mean(axis=1)
    sigmoid = SigmoidLink(starts).fit(loss, score)
    laws = {c: PowerLaw("mse", n_starts=starts).fit(flops[owner == c][:, None], loss[owner == c]) for c in goal}
    return {c: float(sigmoid.predict(laws[c].predict([[compute]]))[0]) for c, compute in goal.items()}


def _agreement(true: Mapping[str, float], guess: Mapping[str, float], a: str, b: str) -> float:
    return float((1 + np.sign(true[a] - true[b]) * np.sign(guess[a] - guess[b])) / 2)


def transfer(cell: Cell, table: ResponseTable, made: Calibrations) -> Measurement:
    """Error of a benchmark's mean from the ability on another, for every held-out model."""
    split, budget = cell.seed, cell.options["budget"]
    calibrating = table.calibrating(split)
    home, away = getattr(table.pairing, "between" if cell.arm.startswith("between") else "within")
    seed = 1000 * split + table.sources.index(away)
    asked = shuffled(made[home].items, seed) if cell.arm == "within-shuffled" else made[home].items
    theta = ask_all(table.p[np.ix_(~calibrating, table.of(home))], asked, budget)[0]
    items = made[away].items
    truth = table.p[np.ix_(~calibrating, table.of(away))].mean(axis=1)
    found = expit(items.eta(theta)).mean(axis=1)
    through = np.polyfit(made[home].theta, made[away].theta, 1)
    linked = expit(items.eta(np.asarray(np.polyval(through, theta), dtype=float))).mean(axis=1)
    units = _errors(table, ~calibrating, away, found[None] - truth, {"linked": linked - truth})
    both = np.corrcoef(made[home].theta, made[away].theta)[0, 1]
    return Measurement(
        {"mae": float(units["error"].mean()), "linked mae": float(units["linked"].mean()), "correlation": float(both)},
        units,
    )


def line(cell: Cell, table: ResponseTable, made: Calibrations) -> Measurement:
    """Ability of every checkpoint against compute, and the sums of squares of a line and a parabola a curve."""
    flops = table.flops
    if cell.arm == "line-shuffled":
        flops = np.random.default_rng([17, cell.seed]).permutation(flops)
    rows, metrics = [], {}
    groups = table.curve if table.fold_by == "curve" else np.full(len(table.p), "all")
    for source in table.sources:
        theta = made[source].theta
        rows.append(pd.DataFrame({
            "model": table.model, "curve": groups, "source": source, "flops": flops, "step": table.step, "theta": theta,
        }))
        for degree, name in ((1, "r2"), (2, "r2 of a parabola")):
            metrics[f"{name} {source}"] = explained(np.log(flops), theta, groups, degree)
    return Measurement(metrics, pd.concat(rows, ignore_index=True))


def explained(x: np.ndarray, theta: np.ndarray, groups: np.ndarray, degree: int) -> float:
    """Share of the variance within curves that a polynomial a curve explains."""
    left = total = 0.0
    for group in np.unique(groups):
        own = groups == group
        u = x[own] - x[own].mean()
        if len(np.unique(u)) <= degree:
            return float("nan")
        left += float(((theta[own] - np.polyval(np.polyfit(u, theta[own], degree), u)) ** 2).sum())
        total += float(((theta[own] - theta[own].mean()) ** 2).sum())
    return 1 - left / total if total > 0 else float("nan")


def passes(cell: Cell, table: ResponseTable, made: Calibrations) -> Measurement:
    """pass@k of a held-out model over its systems, from one pass rate each of `budget` questions."""
    split, budget = cell.seed, cell.options["budget"]
    held_out = ~table.calibrating(split)
    n, c = int(held_out.sum()), table.p[held_out].sum(axis=0)
    kept = np.flatnonzero(c / n >= LEAST_PASS)
    rate = (c / n)[kept]
    picked = draw_questions(1, len(kept), budget, split, 0)[0]
    if cell.arm == "plug-in":
        chance = rate[picked]
    else:
        items = made[table.sources[0]].items.take(kept)
        # The likeliest ability of a Rasch model depends on the mean pass rate alone.
        chance = expit(estimate(rate[picked][None], items.take(picked))[0][0] + items.ease)
    errors = {
        k: abs(float(pass_at_k(chance, k).mean()) - float(pass_at_k_unbiased(n, c[kept], k).mean())) for k in KS
    }
    return Measurement({f"error at k={k}": error for k, error in errors.items()})


TASKS: dict[str, Callable[[Cell, ResponseTable, Calibrations], Measurement]] = {
    "score": score, "decide": decide, "transfer": transfer, "line": line, "pass": passes,
}
