"""What benchmarks share: CPU seconds, two programs timed in turns, and the shape of a case in a record's `speed`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["alternate", "cpu_seconds", "speed_case"]


def cpu_seconds(call: Callable[[], Any]) -> float:
    """CPU seconds of this process, all its threads, during one call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def alternate(ours: Callable[[], Any], peer: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Median CPU seconds of each, taken in turns so that both meet the same machine; ours is called once before."""
    ours()
    pairs = [(cpu_seconds(ours), cpu_seconds(peer)) for _ in range(repeats)]
    ours_s, peer_s = (float(np.median(column)) for column in zip(*pairs, strict=True))
    return ours_s, peer_s


def speed_case(name: str, ours_s: float, peer_s: float, target: float, peer: str, note: str = "") -> dict[str, Any]:
    """One row of a benchmark: the ratio of the peer's seconds to ours beside its target.

    >>> speed_case("fit of 60 runs", 0.5, 2.0, 3.0, "a plain loop")["ratio"]
    4.0
    """
    return {
        "name": name, "ours_s": ours_s, "peer_s": peer_s, "ratio": peer_s / ours_s, "target": target, "peer": peer,
        "note": note,
    }
