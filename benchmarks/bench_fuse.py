"""FUSE beside crowd-kit's Dawid-Skene on one matrix of 100,000 items and 30 verifiers.

The scores are drawn (independent given the truth, base rate 0.3), because the cost depends on the size alone.
The peer needs discrete labels and gets the votes above the medians in its long format, made beforehand. Two cases:

- the full fit: search for the cuts, shared errors and intervals from 100 bootstrap resamples, combination; the
  peer has none of these and fits once;
- what the peer gives, and no more: accuracies, base rate and every item's probability from the same votes, by
  `JaffeSpectral`.

CPU seconds of one process on one thread, both warmed up on a small part, alternating.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

N_ITEMS, N_VERIFIERS = 100_000, 30
LIMIT_S, TARGET = 20.0, 10.0
PEER = "crowd-kit DawidSkene, at most 100 iterations"


def main(n_items: int = N_ITEMS, repeats: int = 3) -> dict[str, Any]:
    """Measure, print a table, and return the cases."""
    from threadpoolctl import threadpool_limits

    scores = draw_scores(n_items)
    table = long_votes(scores)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for run in (full_fit, same_estimate):
            run(scores[:1000])
        dawid_skene(table[table["task"] < 1000])
        runs = ((full_fit, scores), (same_estimate, scores), (dawid_skene, table))
        rounds = [[cpu_seconds(run, given) for run, given in runs] for _ in range(repeats)]
    full_s, same_s, peer_s = (float(np.median(column)) for column in zip(*rounds, strict=True))
    size = f"n = {n_items:,}, M = {N_VERIFIERS}"
    kept = "kept" if full_s < LIMIT_S else "missed"
    note = f"limit {LIMIT_S:g} s: {kept}; the peer fits once, without intervals; CPU seconds"
    cases = [
        case(f"full fit with search and 100 resamples, {size}", full_s, peer_s, note),
        case(f"accuracies and probabilities of given votes, {size}", same_s, peer_s, "JaffeSpectral; CPU seconds"),
    ]
    for row in cases:
        print(
            f"{row['name']}: {row['ours_s']:.2f} s, {PEER} {row['peer_s']:.2f} s, ratio {row['ratio']:.1f} "
            f"(target {TARGET:g}); {row['note']}"
        )
    return {"cases": cases}


def case(name: str, ours_s: float, peer_s: float, note: str) -> dict[str, Any]:
    return {
        "name": name, "ours_s": ours_s, "peer_s": peer_s, "ratio": peer_s / ours_s, "target": TARGET, "peer": PEER,
        "note": note,
    }


def full_fit(scores: np.ndarray) -> None:
    from assay.inference import FUSE

    FUSE(random_state=0).fit(scores)


def same_estimate(scores: np.ndarray) -> None:
    from assay.inference import JaffeSpectral

    JaffeSpectral().fit(scores).predict_proba(scores)


def dawid_skene(table: Any) -> None:
    from crowdkit.aggregation import DawidSkene

    DawidSkene(n_iter=100).fit_predict_proba(table)


def draw_scores(n_items: int) -> np.ndarray:
    """Scores of verifiers of different worth, independent given the truth."""
    rng = np.random.default_rng(0)
    right = rng.random(n_items) < 0.3
    return rng.normal(size=(n_items, N_VERIFIERS)) + right[:, None] * rng.uniform(0.2, 1.5, N_VERIFIERS)


def long_votes(scores: np.ndarray) -> Any:
    """Votes at or above the medians as crowd-kit wants them: one row an item and verifier."""
    import pandas as pd

    votes = (scores >= np.median(scores, axis=0)).astype(int)
    items, verifiers = np.indices(votes.shape)
    return pd.DataFrame({"task": items.ravel(), "worker": verifiers.ravel(), "label": votes.ravel()})


def cpu_seconds(run: Callable[[Any], None], given: Any) -> float:
    start = time.process_time()
    run(given)
    return time.process_time() - start


if __name__ == "__main__":
    main()
