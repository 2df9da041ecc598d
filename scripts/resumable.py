"""What the scripts that make our own tables share: rows that survive a stop, and a ladder of learning rates."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pandas as pd

__all__ = ["add_rows", "next_rate"]

FIRST_RATES = (0.004, 0.008, 0.016)


def add_rows(path: Path, rows: list[dict]) -> None:
    """Append under a lock: write under another name and rename, so that a stop leaves a whole table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.parent / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        table = pd.DataFrame(rows)
        if path.exists():
            table = pd.concat([pd.read_csv(path), table])
        part = path.with_suffix(f".{os.getpid()}.part")
        table.to_csv(part, index=False)
        part.replace(path)


def next_rate(losses: dict[float, float], first: tuple[float, ...] = FIRST_RATES) -> float | None:
    """The next rate of the factor-two ladder to try; None once the best lies inside the tried range."""
    for rate in first:
        if rate not in losses:
            return rate
    best = min(losses, key=losses.__getitem__)
    return 2 * best if best == max(losses) else best / 2 if best == min(losses) else None
