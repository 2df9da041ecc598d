"""Tables of two-phase runs in one form: our own, public ones without a second phase, and a user's.

The common form has one row a run and domain: N, D, Dp, domain, loss, and `group`, what rows share (the trunk).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from assay.errors import InputError
from assay.scaling.tables import parse_columns, read_run_table

__all__ = ["SplitRuns", "own_runs", "read_split_runs", "targets_of", "without_branch"]

HOME, SLICE = "tiny-lm-split", "split-training-smoke"
GADRE, GEMSTONES = "gadre-overtraining", "gemstones"
TITLES = {HOME: "our two-phase runs", SLICE: "a slice of our runs", GADRE: "over-training runs", GEMSTONES: "Gemstones"}
ALSO_CALLED = {
    "D": ("shared_tokens", "trunk_tokens", "pretrain_tokens", "pretraining_tokens", "general_tokens"),
    "Dp": ("d_prime", "dprime", "domain_tokens", "branch_tokens", "specialisation_tokens", "specialization_tokens"),
    "domain": ("target", "target_domain"),
}
MIXED_DOMAINS = ("mixture", "both")
GADRE_LOSSES = (
    "loss_openlm", "loss_c4", "loss_paloma_c4", "loss_code100", "loss_refinedweb", "loss_ptb", "loss_redpajama",
    "loss_deen",
)
GADRE_SMALL, GADRE_LARGE = 4e8, 1.4e9 * 0.95
GEMSTONES_SMALL = 0.7  # quantile of the sizes


@dataclass(frozen=True)
class SplitRuns:
    """A user's runs: rows N, D, Dp, domain, loss and group, and notes on what was left out."""

    runs: pd.DataFrame
    notes: list[str] = field(default_factory=list)


def targets_of(table: pd.DataFrame) -> list[str]:
    """The domains of `tiny-lm-split` that have specialists."""
    named = {name.removeprefix("loss_") for name in table.columns if name.startswith("loss_")}
    return sorted(set(table["domain"]) & named)


def own_runs(table: pd.DataFrame) -> pd.DataFrame:
    """`tiny-lm-split` with the columns `loss` (a specialist's on its own domain) and `group` (width and seed)."""
    runs = table.reset_index(drop=True).copy()
    runs["group"] = runs["width"].astype(str) + "/" + runs["seed"].astype(str)
    runs["loss"] = np.nan
    for target in targets_of(table):
        runs["loss"] = runs["loss"].where(runs["domain"] != target, runs[f"loss_{target}"])
    return runs


def without_branch(table: pd.DataFrame, dataset: str) -> list[pd.DataFrame]:
    """Public tables as slices Dp = 0: for each training and validation set N, D, Dp, loss and `fitted`."""
    losses: tuple[str, ...]
    if dataset == GADRE:
        kept = table[(table["params"] < GADRE_SMALL) | (table["params"] >= GADRE_LARGE)]
        parts = [rows for _, rows in kept.groupby("train_set")]
        losses, size, small = GADRE_LOSSES, "params", GADRE_SMALL
    else:
        parts, losses, size = [table], ("loss_fineweb_edu", "loss_dclm"), "params"
        small = float(np.quantile(table["params"].unique(), GEMSTONES_SMALL))
    found = []
    for rows in parts:
        for loss in losses:
            one = pd.DataFrame({"N": rows[size], "D": rows["tokens"], "Dp": 0.0, "loss": rows[loss]}).dropna()
            found.append(one.assign(fitted=one["N"] < small, name=loss))
    return found


def read_split_runs(table: pd.DataFrame, where: str, columns: str = "") -> SplitRuns:
    """A user's table in the common form.

    Parameters
    ----------
    table : DataFrame
        One run a row: N (or n_params), D, Dp, loss, and where there are several `domain`; or a table as the
        script `train_split_runs.py` writes it, with one column `loss_<domain>` a domain.
    where : str
        What errors call it.
    columns : str
        Columns under other names, `N=params,D=shared*1e9,Dp=own*1e9`.

    Returns
    -------
    SplitRuns

    Raises
    ------
    InputError
        A missing column; tokens that are negative or no number, with their row; a loss that is not positive.
    """
    if not len(table):
        raise InputError(f"{where} holds no runs")
    notes: list[str] = []
    table = _long(table.reset_index(drop=True), where, notes)
    own, others = _own_columns(columns)
    D, Dp = (_tokens(table, own, name, where) for name in ("D", "Dp"))
    domain = _domains(table, own, where)
    if ((D == 0) & (Dp == 0)).any():
        raise InputError(f"{where}: D and Dp are both 0 in row {int(np.argmax((D == 0) & (Dp == 0)))}")
    taken = [name for name in map(str, table.columns) if name in _names_of(table, own)]
    plain = table.drop(columns=[*taken, *(c for c in table.columns if str(c) in ("D", "K", "B", "C", "group"))])
    # Duplicates are told by everything a row says; total tokens stand in for D, which may be 0 here.
    seed = table["seed"].astype(str) if "seed" in table else pd.Series("", index=table.index)
    each = domain + "|" + D.astype(str) + "|" + Dp.astype(str) + "|" + seed
    read = read_run_table(
        plain.assign(D=D + Dp, group=each), ["N", "loss"], columns=parse_columns(others) | {"D": "D", "group": "group"},
        where=where,
    )
    kept = read.runs.index
    runs = pd.DataFrame({
        "N": read.runs["N"], "D": D[kept], "Dp": Dp[kept], "domain": domain[kept], "loss": read.runs["loss"],
    })
    trunk = D.astype(int).astype(str) if "seed" not in table else seed
    runs["group"] = runs["N"].map("{:.0f}".format) + "/" + trunk[kept]
    return SplitRuns(runs.reset_index(drop=True), notes + read.notes)


def _long(table: pd.DataFrame, where: str, notes: list[str]) -> pd.DataFrame:
    """A table with one loss column a domain as one with `loss`; rows of the law alone."""
    wide = [str(name) for name in table.columns if str(name).startswith("loss_")]
    if not wide or "loss" in table or "domain" not in table:
        return table
    domains = table["domain"].astype(str)
    known = domains.map(lambda name: f"loss_{name}" in wide)
    family = table["family"] == "grid" if "family" in table else pd.Series(True, index=table.index)
    if dropped := int((~(known & family)).sum()):
        notes.append(f"{dropped} rows of other families, or of models for several domains, are left out.")
    kept = table[known & family].reset_index(drop=True)
    if not len(kept):
        raise InputError(f"{where}: no row's domain has a column of losses ({', '.join(wide)})")
    loss = [row[f"loss_{row['domain']}"] for _, row in kept.iterrows()]
    unused = [name for name in ("seconds", "rate", "epochs", "family", "width") if name in kept]
    return kept.drop(columns=[*wide, *unused]).assign(loss=loss)


def _own_columns(columns: str) -> tuple[dict[str, str], str]:
    """The user's names for D, Dp and domain, and the rest of the text."""
    own, others = {}, []
    for pair in filter(None, (part.strip() for part in columns.split(","))):
        name, equals, column = (part.strip() for part in pair.partition("="))
        if name in ALSO_CALLED and equals and column:
            if name in own:
                raise InputError(f"the column {name} is named twice")
            own[name] = column
        else:
            others.append(pair)
    return own, ",".join(others)


def _source(table: pd.DataFrame, own: Mapping[str, str], name: str) -> tuple[str, float] | None:
    """The file's column for a name, and its factor."""
    labels = [str(label) for label in table.columns]
    if name in own:
        wanted = own[name]
        column, star, factor = wanted.rpartition("*")
        if not star or wanted in labels:
            return wanted, 1.0
        try:
            return column.strip(), float(factor)
        except ValueError:
            raise InputError(f"{name}={wanted}: {factor!r} is no number to multiply {column} by") from None
    simple = {label.strip().lower().replace(" ", "_").replace("-", "_"): label for label in labels}
    spelled: Sequence[str] = (name, *(simple.get(word, "") for word in (name.lower(), *ALSO_CALLED[name])))
    for label in spelled:
        if label in labels:
            return label, 1.0
    return None


def _names_of(table: pd.DataFrame, own: Mapping[str, str]) -> set[str]:
    return {found[0] for name in ALSO_CALLED if (found := _source(table, own, name)) is not None}


def _tokens(table: pd.DataFrame, own: Mapping[str, str], name: str, where: str) -> pd.Series:
    what = {"D": "tokens of the shared phase", "Dp": "tokens on the domain"}[name]
    found = _source(table, own, name)
    if found is None or found[0] not in map(str, table.columns):
        said = f" {found[0]!r}" if found else f" {name} ({what})"
        raise InputError(f"{where} lacks the column{said}; its columns: {', '.join(map(str, table.columns))[:200]}")
    column = table[found[0]]
    if isinstance(column, pd.DataFrame):
        raise InputError(f"{where} has more than one column {found[0]}")
    numbers = pd.to_numeric(column, errors="coerce").astype(float) * found[1]
    bad = ~np.isfinite(numbers) | (numbers < 0)
    if bad.any():
        row = bad.idxmax()
        raise InputError(f"{where}: {name} must be a finite, not negative number, got {column[row]!s} in row {row}")
    return numbers


def _domains(table: pd.DataFrame, own: Mapping[str, str], where: str) -> pd.Series:
    found = _source(table, own, "domain")
    if found is None:
        return pd.Series("all", index=table.index)
    if found[0] not in map(str, table.columns):
        raise InputError(f"{where} lacks the column {found[0]!r}")
    if table[found[0]].isna().any():
        raise InputError(f"{where}: domain is empty in row {table[found[0]].isna().idxmax()}")
    return table[found[0]].astype(str)
