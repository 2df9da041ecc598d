"""Seeds trained side by side, beside one after another; and trend scores of 2,000 random paths at once.

The peer of the training is the loop that everyone writes: the same networks, data and optimiser, one seed at a time,
on the same core. The seeds end in the same place up to rounding. The peer of the trend scores is a loop over paths.

CPU seconds of one process on one thread, warmed up, alternating, the median of several repeats.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from assay.scaling import CountTask, SubsetParity, breakthroughness, linearity, train_population
from assay.timing import alternate

SEEDS, STEPS = 32, {"parity": 400, "count": 100}
PATHS, SCALES, LIMIT_S = 2000, 8, 0.020


def main(repeats: int = 3) -> dict[str, Any]:
    """Measure, print a table, and return the cases."""
    torch.set_num_threads(1)
    with threadpool_limits(1):
        cases = [
            training_case("parity, width 8", SubsetParity(test_items=200), 8, STEPS["parity"], repeats),
            training_case("counting, width 16", CountTask(16, 20, numbers=32), 16, STEPS["count"], repeats),
            paths_case(repeats),
        ]
    for case in cases:
        print(f"{case['name']}: {case['ours_s']:.4f} s; {case['peer']}: {case['peer_s']:.4f} s; "
              f"ratio {case['ratio']:.1f} (target {case['target']:g}) {case['note']}")
    return {"cases": cases}


def training_case(name: str, task: SubsetParity | CountTask, width: int, steps: int, repeats: int) -> dict[str, Any]:
    """Seconds a seed: 32 seeds together, and two of them one after another."""
    ours_s, peer_s = alternate(
        lambda: train_population(task, [width], seeds=SEEDS, steps=steps),
        lambda: [train_population(task, [width], seeds=[seed], steps=steps) for seed in (0, 1)], repeats,
    )
    ours_s, peer_s = ours_s / SEEDS, peer_s / 2
    return {
        "name": f"training {name}, seconds a seed of {steps} steps", "ours_s": ours_s, "peer_s": peer_s,
        "ratio": peer_s / ours_s, "target": 5.0, "peer": "one seed after another", "note": f"{SEEDS} seeds together",
    }


def paths_case(repeats: int) -> dict[str, Any]:
    """Breakthroughness and linearity of many paths."""
    paths = np.random.default_rng(0).random((PATHS, SCALES))
    ours_s, peer_s = alternate(
        lambda: (breakthroughness(paths), linearity(paths)),
        lambda: [(breakthroughness(path), linearity(path)) for path in paths], repeats + 2,
    )
    kept = "kept" if ours_s < LIMIT_S else "missed"
    return {
        "name": f"trend scores of {PATHS} paths over {SCALES} scales", "ours_s": ours_s, "peer_s": peer_s,
        "ratio": peer_s / ours_s, "target": 5.0, "peer": "one path after another",
        "note": f"the limit of 20 ms is {kept}",
    }


if __name__ == "__main__":
    main()
