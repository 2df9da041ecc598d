"""Calibration snapshots of real quantum devices: T1, T2 and gate lengths, as a table of qubits and one of pairs.

The snapshots are the files `props_*.json` in the wheel of `qiskit-ibm-runtime`, read as plain JSON; nothing of that
package is imported. Left out are snapshots that repeat another one's calibration or belong to no real device: backends
whose own name begins with `fake_`, and a second snapshot of the same backend on the same date. Qubits without T1 or T2
are dropped. Those with T2 above 2 T1, for which no rate of dephasing exists, stay in the table and are dropped where
rates are made.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["PAIR_COLUMNS", "QUBIT_COLUMNS", "pairs", "possible", "qubits"]

QUBIT_COLUMNS = ["backend", "date", "qubit", "t1_us", "t2_us", "gate_ns"]
PAIR_COLUMNS = ["backend", "date", "first", "second", "t1_first", "t2_first", "t1_second", "t2_second", "gate_ns"]

ONE_QUBIT_GATES = ("sx", "x", "u2")
TWO_QUBIT_GATES = ("cz", "ecr", "cx")
TO_US = {"us": 1.0, "µs": 1.0, "μs": 1.0, "ns": 1e-3, "ms": 1e3, "s": 1e6}


def qubits(path: Path) -> pd.DataFrame:
    """One row a qubit: backend, date, qubit, T1 and T2 in microseconds, length of its sx (x, u2) gate in ns."""
    import pandas as pd

    rows = []
    for name, date, snapshot in _snapshots(path):
        times, lengths = _times(snapshot), _lengths(snapshot, ONE_QUBIT_GATES)
        rows += [
            (name, date, qubit, t1, t2, lengths.get((qubit,), float("nan"))) for qubit, (t1, t2) in times.items()
        ]
    return pd.DataFrame(rows, columns=QUBIT_COLUMNS)


def pairs(path: Path) -> pd.DataFrame:
    """One row a coupled pair with a length of its cz (ecr, cx) gate: times of both qubits, that length, both qubits."""
    import pandas as pd

    rows = []
    for name, date, snapshot in _snapshots(path):
        times = _times(snapshot)
        lengths = {tuple(sorted(pair)): ns for pair, ns in _lengths(snapshot, TWO_QUBIT_GATES).items() if ns > 0}
        rows += [
            (name, date, a, b, *times[a], *times[b], ns)
            for (a, b), ns in sorted(lengths.items()) if a in times and b in times
        ]
    return pd.DataFrame(rows, columns=PAIR_COLUMNS)


def possible(table: pd.DataFrame) -> pd.DataFrame:
    """The rows whose T2 are at most 2 T1, with a known gate length, of either table."""
    ok = table["gate_ns"] > 0
    for t1, t2 in [(c, c.replace("t1", "t2")) for c in table.columns if c.startswith("t1")]:
        ok &= table[t2] <= 2 * table[t1]
    return table[ok].reset_index(drop=True)


def _snapshots(path: Path) -> list[tuple[str, str, dict[str, Any]]]:
    """Name, date and content of each snapshot of a real device, once."""
    found: list[tuple[str, str, dict[str, Any]]] = []
    seen = set()
    with zipfile.ZipFile(path) as archive:
        for member in sorted(archive.namelist()):
            snapshot = json.loads(archive.read(member))
            backend, date = snapshot["backend_name"], snapshot["last_update_date"][:10]
            if backend.startswith("fake_") or (backend, date) in seen:
                continue
            seen.add((backend, date))
            found.append((Path(member).stem.removeprefix("props_"), date, snapshot))
    return found


def _times(snapshot: dict[str, Any]) -> dict[int, tuple[float, float]]:
    """Qubit to (T1, T2) in microseconds, where both are given and positive."""
    found = {}
    for qubit, properties in enumerate(snapshot["qubits"]):
        given = {
            each["name"]: each["value"] * TO_US[each["unit"]] for each in properties if each["name"] in ("T1", "T2")
        }
        if len(given) == 2 and min(given.values()) > 0:
            found[qubit] = (given["T1"], given["T2"])
    return found


def _lengths(snapshot: dict[str, Any], wanted: tuple[str, ...]) -> dict[tuple[int, ...], float]:
    """Qubits to the length of their gate in nanoseconds, by the first of the wanted gates that is given."""
    found: dict[tuple[int, ...], float] = {}
    for kind in reversed(wanted):
        for gate in snapshot["gates"]:
            if gate["gate"] != kind:
                continue
            for each in gate["parameters"]:
                if each["name"] == "gate_length":
                    found[tuple(gate["qubits"])] = each["value"] * TO_US[each["unit"]] * 1000
    return found
