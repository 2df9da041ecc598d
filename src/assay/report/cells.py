"""A record's cells as a table: one column a fact, option or metric, for the page and as CSV.

Skipped, failed and blocked cells stay in, with their reason. Text that a spreadsheet would take for a
formula is given a leading apostrophe.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Table", "finite", "table"]

BUDGET = 200_000
"""Characters of JSON that a page carries for its cells; the CSV file always has all of them."""


@dataclass(frozen=True)
class Table:
    """Named columns and the rows under them; `None` where a row has nothing."""

    columns: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[Any, ...], ...]

    def csv(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([_plain(column) for column in self.columns])
        writer.writerows([[_plain(value) for value in row] for row in self.rows])
        return out.getvalue()

    def page(self) -> dict[str, Any]:
        """What the page's script reads: six digits a number, and no more rows than the page has room for."""
        room = BUDGET
        rows: list[list[Any]] = []
        for row in self.rows:
            short = [_short(value) for value in row]
            room -= len(json.dumps(short))
            if room < 0:
                break
            rows.append(short)
        return {"columns": list(self.columns), "numeric": list(self.numeric), "rows": rows, "total": len(self.rows)}


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The table of a record's rows: the cell, its options, its status and reason, its metrics, its cost."""
    options = list(dict.fromkeys(key for row in rows for key in row.get("options") or {}))
    metrics = list(dict.fromkeys(key for row in rows for key in row.get("metrics") or {}))
    taken = {"dataset", "arm", "seed", "status", "reason", "seconds", "peak_mb"}
    columns: dict[str, list[Any]] = {name: [row.get(name) for row in rows] for name in ("dataset", "arm", "seed")}
    columns |= {_free(key, taken, "option"): [(row.get("options") or {}).get(key) for row in rows] for key in options}
    columns |= {name: [row.get(name) or None for row in rows] for name in ("status", "reason")}
    columns |= {_free(key, taken, "metric"): [(row.get("metrics") or {}).get(key) for row in rows] for key in metrics}
    columns |= {name: [row.get(name) for row in rows] for name in ("seconds", "peak_mb")}
    shown = {name: [_value(value) for value in values] for name, values in columns.items()}
    shown = {name: values for name, values in shown.items() if any(value is not None for value in values)}
    numeric = tuple(all(isinstance(value, int | float | None) for value in values) for values in shown.values())
    return Table(tuple(shown), numeric, tuple(zip(*shown.values(), strict=True)))


def finite(value: Any) -> Any:
    """The value with every number that JSON has no word for (NaN, infinities) as None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def _free(name: str, taken: set[str], kind: str) -> str:
    """The name, told apart from a column that has it already."""
    free = f"{name} ({kind})" if name in taken else name
    taken.add(free)
    return free


def _value(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, int | float | str):
        return finite(value)
    return json.dumps(finite(value), sort_keys=True)


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _plain(value: Any) -> Any:
    if value is None:
        return ""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
