"""`assay run fuse`: fuse the scores in a CSV file, and say how good its verifiers are."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.errors import InputError
from assay.outputs import write_folder

if TYPE_CHECKING:
    import pandas as pd

    from assay.inference.fuse.files import ScoreTable


def run(
    data: Annotated[Path, typer.Option(help="CSV with one row an item and one column of scores a verifier.")],
    query: Annotated[str | None, typer.Option(help="Column that names the query of each item.")] = None,
    label: Annotated[
        str | None, typer.Option(help="Column with 1 for right and 0 for wrong items: used to compare, never to fit.")
    ] = None,
    verifiers: Annotated[
        str | None, typer.Option(help="Columns of scores, separated by commas; by default all the others.")
    ] = None,
    covariate: Annotated[
        str | None, typer.Option(help="Column of numbers that scores may follow, such as the length of a response.")
    ] = None,
    transformation: Annotated[str, typer.Option(help="Where to cut scores into votes: tci, median or none.")] = "tci",
    combiner: Annotated[str, typer.Option(help="moment, pseudo or spectral.")] = "moment",
    merge_blocks: Annotated[bool, typer.Option(help="Merge verifiers that share errors.")] = True,
    query_conditional: Annotated[bool, typer.Option(help="Rank inside each query; needs --query.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the search and the bootstrap.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for fused.csv, verifiers.csv, selection.csv.")] = Path("fuse-out"),
) -> None:
    """Give every item one score, and estimate each verifier's accuracy, from the scores alone."""
    from assay.inference.fuse.estimator import FUSE
    from assay.inference.fuse.files import read_scores

    chosen = None if verifiers is None else [name.strip() for name in verifiers.split(",")]
    table = read_scores(data, query=query, label=label, covariate=covariate, verifiers=chosen)
    if query_conditional and table.groups is None:
        raise InputError("--query-conditional needs --query")
    if out.exists() and not out.is_dir():
        raise InputError(f"--out: {out} is a file, a folder is needed")
    est = FUSE(transformation, combiner, merge_blocks, query_conditional, random_state=seed)
    fused, notes = _fit(est, table)
    frames = {
        "fused.csv": _fused(table, fused),
        "verifiers.csv": _verifiers(est, table, fused),
    }
    if table.groups is not None:
        frames["selection.csv"] = _selection(fused, table.groups, table.labels)
    if table.labels is not None:
        frames["comparison.csv"] = _comparison(table, fused, table.labels)
    tables = {name: frame.to_csv(index=False, float_format="%.6g") for name, frame in frames.items()}
    write_folder(out, tables)
    _print(est, table, frames, notes, out)


def example(folder: Path) -> list[str]:
    """Write the votes of twelve groups of language-model systems on thirty problems; the arguments that fuse them."""
    import pandas as pd

    from assay.datasets import load_dataset
    from assay.inference.fuse.champ import champ_groups

    champ = load_dataset("champ-smoke")
    shares, names = champ_groups(champ["votes"], champ["systems"])
    table = pd.DataFrame(shares.round(4), columns=[name.replace(", ", ": ") for name in names])
    table.insert(0, "problem", champ["problem"])
    table["correct"] = champ["labels"]
    path = folder / "scores.csv"
    table.to_csv(path, index=False)
    return ["--data", str(path), "--query", "problem", "--label", "correct", "--out", str(folder / "fuse-out")]


def _fit(est: Any, table: ScoreTable) -> tuple[Any, list[str]]:
    """The fused scores, and what fitting warned of."""
    import pandas as pd

    named = pd.DataFrame(table.scores, columns=table.names)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        est.fit(named, groups=table.groups)
    return est.score_samples(named, table.groups), [str(w.message) for w in caught if w.category is UserWarning]


def _fused(table: ScoreTable, fused: Any) -> pd.DataFrame:
    import pandas as pd
    from scipy.special import expit

    frame = pd.DataFrame({"row": range(1, len(fused) + 1), "score": fused, "probability": expit(fused)})
    if table.groups is not None:
        frame.insert(1, "query", table.groups)
    return frame


def _verifiers(est: Any, table: ScoreTable, fused: Any) -> pd.DataFrame:
    """One row a verifier, and one for the fused score where there is a covariate."""
    import numpy as np
    import pandas as pd

    block = {j: number for number, members in enumerate(est.blocks_, 1) for j in members}
    columns = range(len(table.names))
    frame = pd.DataFrame({
        "verifier": table.names,
        "sensitivity": est.sensitivity_, "sensitivity_low": est.sensitivity_interval_[:, 0],
        "sensitivity_high": est.sensitivity_interval_[:, 1],
        "specificity": est.specificity_, "specificity_low": est.specificity_interval_[:, 0],
        "specificity_high": est.specificity_interval_[:, 1],
        "cut_rank": est.cuts_, "weight": est.weights_, "block": [block.get(j, 0) for j in columns],
        "missing": est.n_missing_,
        "most_alike": [_most_alike(est.error_correlation_, j, table.names) for j in columns],
    })
    if table.covariate is not None:
        related = [_rank_correlation(column, table.covariate) for column in table.scores.T]
        frame["covariate_correlation"] = related
        frame.loc[len(frame), ["verifier", "covariate_correlation"]] = [
            "(fused)", _rank_correlation(np.asarray(fused), table.covariate)
        ]
    return frame


def _most_alike(correlation: Any, j: int, names: list[str]) -> str:
    """The verifier with the most similar errors, and how similar."""
    import numpy as np

    row = correlation[j].copy()
    row[j] = np.nan
    if np.isnan(row).all():
        return ""
    other = int(np.nanargmax(row))
    return f"{names[other]} ({row[other]:.2f})"


def _rank_correlation(scores: Any, covariate: Any) -> float:
    import numpy as np
    from scipy.stats import spearmanr

    known = ~np.isnan(scores) & ~np.isnan(covariate)
    if any(len(np.unique(values[known])) < 2 for values in (scores, covariate)):
        return np.nan
    return float(spearmanr(scores[known], covariate[known]).statistic)


def _selection(fused: Any, groups: Any, labels: Any) -> pd.DataFrame:
    import pandas as pd

    from assay.inference.fuse.selection import group_codes, select_per_query

    codes = group_codes(groups, len(fused))
    rows = select_per_query(fused, groups)
    top = pd.Series(fused).groupby(codes).transform("max")
    tied = pd.Series(fused == top).groupby(codes).sum()
    frame = pd.DataFrame({
        "query": groups[rows], "row": rows + 1, "score": fused[rows], "tied": tied.to_numpy(),
    })
    if labels is not None:
        frame["correct"] = labels[rows]
    return frame


def _comparison(table: ScoreTable, fused: Any, labels: Any) -> pd.DataFrame:
    """AUC and best-of-N of the fused score, the mean, the vote, Jaffe's estimator and each verifier."""
    import numpy as np
    import pandas as pd
    from sklearn.metrics import roc_auc_score

    from assay.inference.fuse.arms import ARMS
    from assay.inference.fuse.matrices import from_scores
    from assay.inference.fuse.ranks import RankMap
    from assay.inference.fuse.selection import best_of_n_hits

    if labels.min() == labels.max():
        raise InputError("the label column holds one value only: right and wrong items are needed to compare")
    matrix = from_scores(table.scores, labels, np.arange(len(labels)) if table.groups is None else table.groups)
    scores = {"fuse": fused} | {arm: ARMS[arm](matrix, 0, {})[0] for arm in ("mean-z", "mean-rank", "vote", "jaffe")}
    scores |= {
        name: np.nan_to_num(RankMap(column)(column), nan=0.5)
        for name, column in zip(table.names, table.scores.T, strict=True)
    }
    rows = []
    for name, values in scores.items():
        row = {"arm": name, "auc": roc_auc_score(labels, values)}
        if table.groups is not None:
            row["best_of_n"] = best_of_n_hits(values, labels, table.groups).mean()
        rows.append(row)
    return pd.DataFrame(rows)


def _print(est: Any, table: ScoreTable, frames: dict[str, pd.DataFrame], notes: list[str], out: Path) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    shown = Table(title=f"{len(table.scores)} items, share of right ones estimated {est.base_rate_:.3f}")
    for heading in ("verifier", "sensitivity", "specificity", "weight", "block"):
        shown.add_column(heading)
    for row in frames["verifiers.csv"].head(len(table.names)).itertuples():
        shown.add_row(
            escape(row.verifier), f"{row.sensitivity:.2f}", f"{row.specificity:.2f}", f"{row.weight:.2f}",
            str(int(row.block)),
        )
    console.print(shown)
    if "comparison.csv" in frames:
        for row in frames["comparison.csv"].to_dict("records"):
            hits = f", best of N {row['best_of_n']:.3f}" if "best_of_n" in row else ""
            console.print(f"{row['arm']}: AUC {row['auc']:.3f}{hits}", highlight=False, markup=False)
    for note in [*notes, *est.doubts_]:
        console.print(f"note: {note}", highlight=False, markup=False)
    if est.doubts_:
        console.print("The data contradict the model: don't quote the accuracies without these notes.")
    console.print(f"written to {out}", markup=False)
