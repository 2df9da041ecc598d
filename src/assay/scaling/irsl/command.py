"""`assay run irsl`: calibrate a benchmark, see what few questions are worth on it, and fit ability to compute."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.errors import InputError
from assay.outputs import write_folder

if TYPE_CHECKING:
    import pandas as pd

    from assay.scaling.irsl.files import UserResponses

ARMS = ("cat", "random-irt", "difference", "random-mean")
WORDS = {
    "cat": "adaptive test", "random-irt": "random questions, item response theory",
    "difference": "random questions, difference estimator", "random-mean": "random questions, plain mean",
}


def run(
    data: Annotated[
        Path,
        typer.Option(
            help="CSV with the columns model, item, response (0 to 1, empty: not asked), if wanted bench and group; or "
            "npz with responses (models, items)."
        ),
    ],
    flops: Annotated[Path | None, typer.Option(help="CSV with the columns model and flops: also fit the law.")] = None,
    budget: Annotated[int, typer.Option(help="Questions to ask a new model on each benchmark.")] = 50,
    folds: Annotated[int, typer.Option(help="Parts into which groups of models are split for the comparison.")] = 3,
    columns: Annotated[
        str, typer.Option(help="Columns under other names, such as model=checkpoint,item=question,response=prob.")
    ] = "",
    out: Annotated[Path, typer.Option(help="Folder for the tables, report.md and plots.")] = Path("irsl-out"),
) -> None:
    """Calibrate questions and models, compare ways to score a new model from few questions, and fit the law."""
    import pandas as pd

    from assay.scaling.irsl.files import parse_names, read_flops, read_user_responses

    if budget < 1 or folds < 2:
        raise InputError(f"--budget must be at least 1 and --folds at least 2, got {budget} and {folds}")
    if out.exists() and not out.is_dir():
        raise InputError(f"--out: {out} is a file, a folder is needed")
    names = parse_names(columns)
    table = read_user_responses(data, names)
    compute = read_flops(flops, table.model, names) if flops is not None else None
    notes = [f"Responses are {'right or wrong' if table.binary else 'continuous'}."]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        fitted = _fit(table)
    notes += [f"{str(w.message)[0].upper()}{str(w.message)[1:]}." for w in caught if w.category is UserWarning]
    errors = _compare(table, budget, folds, notes)
    abilities = _abilities(table, fitted)
    laws = _laws(table, fitted, compute)
    items = pd.DataFrame({
        "bench": table.bench, "item": table.item, "ease": fitted.ease_,
        "opening": _openings(fitted, budget),
    })
    files = {
        "items.csv": items.to_csv(index=False, float_format="%.6g").encode(),
        "abilities.csv": abilities.to_csv(index=False, float_format="%.6g").encode(),
    }
    if len(errors):
        files["errors.csv"] = errors.to_csv(index=False, float_format="%.6g").encode()
    if laws:
        files["law.json"] = (json.dumps(laws, indent=1) + "\n").encode()
    files |= _plots(table, fitted, errors, compute, budget, data.name)
    files["report.md"] = _report(data.name, table, errors, laws, notes, budget).encode()
    write_folder(out, files)
    _print(errors, laws, notes, out)


def example(folder: Path) -> list[str]:
    """Write responses of real models to two benchmarks and their compute; the arguments that fit them."""
    import pandas as pd

    from assay.scaling.irsl.tables import SLICE, load_table

    table = load_table(SLICE)
    names = [f"{model} @ {step:.0f}" for model, step in zip(table.model, table.step, strict=True)]
    rows = [
        {"model": names[i], "group": table.model[i], "bench": table.source[j], "item": j,
         "response": round(float(table.p[i, j]), 5)}
        for i in range(0, len(names), 2) for j in range(len(table.source)) if table.source[j] in ("code", "numpy")
    ]
    pd.DataFrame(rows).to_csv(folder / "responses.csv", index=False)
    pd.DataFrame({"model": names, "flops": table.flops}).to_csv(folder / "flops.csv", index=False)
    return [
        "--data", str(folder / "responses.csv"), "--flops", str(folder / "flops.csv"), "--budget", "12",
        "--out", str(folder / "irsl-out"),
    ]


def _likelihood(table: UserResponses) -> str:
    return "binary" if table.binary else "beta"


def _fit(table: UserResponses) -> Any:
    from assay.scaling.irsl.estimator import BetaIRT

    return BetaIRT(likelihood=_likelihood(table)).fit(table.responses, table.bench)


def _openings(fitted: Any, budget: int) -> Any:
    """Turn of each item in the opening of an adaptive test, empty for the others."""
    import numpy as np

    from assay.scaling.irsl.adaptive import opening

    turn = np.full(len(fitted.ease_), "", dtype=object)
    for group in range(len(fitted.groups_)):
        columns, items = np.flatnonzero(fitted.item_groups_ == group), fitted.items(group)
        for number, item in enumerate(opening(items, min(budget, len(columns))), 1):
            turn[columns[item]] = number
    return turn


def _compare(table: UserResponses, budget: int, folds: int, notes: list[str]) -> pd.DataFrame:
    """Mean absolute error of the full mean of held-out models, one row a benchmark and arm."""
    import numpy as np
    import pandas as pd

    rows = []
    for bench in np.unique(table.bench):
        columns = table.bench == bench
        values = table.responses[:, columns]
        complete = ~np.isnan(values).any(axis=1)
        groups = np.unique(table.group[complete])
        if len(groups) < max(3, folds):
            notes.append(
                f"{bench}: {len(groups)} groups of models answered everything, {max(3, folds)} are needed for a "
                "comparison."
            )
            continue
        if budget >= columns.sum():
            notes.append(f"{bench}: the budget covers all {columns.sum()} questions, there is nothing to estimate.")
            continue
        if not complete.all():
            notes.append(
                f"{bench}: compared on the {complete.sum()} of {len(complete)} models that answered everything: others "
                "have no full mean to compare with."
            )
        errors = _errors_of(values[complete], table.group[complete], groups, budget, folds, _likelihood(table))
        rows += [
            {"bench": bench, "arm": arm, "model": name, "error": float(value)}
            for arm in ARMS for name, value in zip(table.model[complete], errors[arm], strict=True)
        ]
    return pd.DataFrame(rows)


def _errors_of(
    values: Any, group: Any, groups: Any, budget: int, folds: int, likelihood: str
) -> dict[str, Any]:
    """Absolute error of each row's full mean by each arm; each fold's groups are held out once."""
    import numpy as np

    from assay.scaling.irsl.estimator import BetaIRT
    from assay.scaling.irsl.estimators import PLAIN, Calibration, by_ability

    errors = {arm: np.full(len(values), np.nan) for arm in ARMS}
    dealt = np.random.default_rng(0).permutation(len(groups)) % folds
    for fold in range(folds):
        test = np.isin(group, groups[dealt == fold])
        known, asked_of = values[~test], values[test]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            irt = BetaIRT(likelihood=likelihood).fit(known)
        made = Calibration(irt.items(), irt.ability_)
        for arm in ARMS:
            if arm in PLAIN:
                found = PLAIN[arm](known, asked_of, budget, fold)
            else:
                found = by_ability(arm, known, asked_of, made, budget, fold).score
            errors[arm][test] = np.abs(found - asked_of.mean(axis=1)).mean(axis=0)
    return errors


def _abilities(table: UserResponses, fitted: Any) -> pd.DataFrame:
    import numpy as np
    import pandas as pd

    theta, se = fitted.score_ability(table.responses)
    expected = fitted.predict_proba(theta)
    parts = []
    for group, bench in enumerate(fitted.groups_):
        columns = fitted.item_groups_ == group
        own = table.responses[:, columns]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a model without an answer has no mean
            parts.append(pd.DataFrame({
                "bench": bench, "model": table.model, "ability": theta[:, group], "standard_error": se[:, group],
                "answered": (~np.isnan(own)).sum(axis=1), "mean_answered": np.nanmean(own, axis=1),
                "expected_full_mean": np.nanmean(expected[:, columns], axis=1),
            }))
    return pd.concat(parts, ignore_index=True)


def _laws(table: UserResponses, fitted: Any, compute: Any) -> dict[str, Any]:
    """The line of ability in log compute for each benchmark, and what a parabola would add."""
    import numpy as np

    from assay.scaling.irsl.laws import ItemResponseScalingLaw

    if compute is None:
        return {}
    laws = {}
    for group, bench in enumerate(fitted.groups_):
        theta = fitted.ability_[:, group]
        known = ~np.isnan(theta)
        line, bent = (ItemResponseScalingLaw(degree).fit(compute[known], theta[known]) for degree in (1, 2))
        laws[str(bench)] = {
            "ability_a_tenfold_of_compute": float(line.coef_[0] * np.log(10)),
            "r2": line.r2_, "r2_of_a_parabola": bent.r2_,
            "ability_at_ten_times_the_largest": float(line.predict_theta([10 * compute.max()])[0]),
        }
    return laws


def _plots(
    table: UserResponses, fitted: Any, errors: pd.DataFrame, compute: Any, budget: int, name: str
) -> dict[str, bytes]:
    import numpy as np

    from assay.pictures import draw
    from assay.scaling.irsl.charts import error_chart, interval_of_errors, line_chart

    charts: dict[str, dict[str, Any]] = {}
    if len(errors):
        by_model = errors.groupby(["arm", "model"], sort=False)["error"].mean()
        values = [{"arm": arm, "ours": arm == "cat", **interval_of_errors(by_model[arm].to_numpy())} for arm in ARMS]
        charts["errors"] = error_chart(values, name, budget)
    if compute is not None:
        values = [
            {"flops": float(f"{c:.3g}"), "theta": round(float(t), 3), "curve": "all models", "source": str(bench)}
            for group, bench in enumerate(fitted.groups_)
            for c, t in zip(compute, fitted.ability_[:, group], strict=True) if np.isfinite(t)
        ]
        charts["ability"] = line_chart(values, f"Ability against compute, {name}")
    files = {f"{key}.vl.json": (json.dumps(chart, indent=1) + "\n").encode() for key, chart in charts.items()}
    return files | draw(charts, ("svg", "png"))


def _mean_errors(errors: pd.DataFrame) -> pd.DataFrame:
    return errors.groupby(["bench", "arm"])["error"].mean().unstack("bench").loc[list(ARMS)]


def _report(
    name: str, table: UserResponses, errors: pd.DataFrame, laws: dict[str, Any], notes: list[str], budget: int
) -> str:
    lines = [
        f"# Item responses in {name}", "",
        f"{len(table.model)} models, {len(table.item)} questions. `items.csv` has the ease of each question and its "
        "turn in the opening of an adaptive test; `abilities.csv` the ability of each model, with standard error.", "",
    ]
    if len(errors):
        means = _mean_errors(errors)
        best = str(means.mean(axis=1).idxmin())
        lines += [
            f"## Scoring a new model from {budget} questions", "",
            "Mean absolute error of the full mean; each group of models is held out once.", "",
            f"| | {' | '.join(map(str, means.columns))} |", f"|{'---|' * (len(means.columns) + 1)}",
            *(f"| {WORDS[str(arm)]} | {' | '.join(f'{v:.4f}' for v in row)} |" for arm, row in means.iterrows()), "",
            f"Smallest on average: {WORDS[best]}.", "",
        ]
    if laws:
        lines += [
            "## Ability against compute", "",
            "One line through all models. Where they are checkpoints of several sizes it mixes two laws, that of size "
            "and that of training: give only each run's last checkpoint then.", "",
            "| benchmark | ability a tenfold of compute | R² of the line | of a parabola |", "|---|---|---|---|",
            *(
                f"| {bench} | {law['ability_a_tenfold_of_compute']:.3f} | {law['r2']:.3f} "
                f"| {law['r2_of_a_parabola']:.3f} |" for bench, law in laws.items()
            ), "",
        ]
    return "\n".join([*lines, "## Notes", "", *(f"- {note}" for note in notes)]) + "\n"


def _print(errors: pd.DataFrame, laws: dict[str, Any], notes: list[str], out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if len(errors):
        means = _mean_errors(errors)
        table = Table("mean absolute error", *map(str, means.columns))
        for arm, row in means.iterrows():
            table.add_row(WORDS[str(arm)], *(f"{value:.4f}" for value in row))
        console.print(table)
    for bench, law in laws.items():
        console.print(f"{bench}: ability rises {law['ability_a_tenfold_of_compute']:.3f} a tenfold of compute, "
                      f"R² {law['r2']:.3f}")
    for note in notes:
        console.print(f"note: {note}")
    console.print(f"written to {out}")
