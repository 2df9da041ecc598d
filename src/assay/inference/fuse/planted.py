"""Scores with a planted block: verifiers of known worth, of which some share their errors."""

from __future__ import annotations

import numpy as np

from assay.inference.fuse.matrices import ScoreMatrix, from_scores

__all__ = ["planted_blocks"]

N_VERIFIERS = 11
BASE_RATE = 0.3
SHARED = 0.8


def planted_blocks(n_items: int, block: int, seed: int) -> ScoreMatrix:
    """Eleven normal scores, the first `block` of which share four fifths of the spread of their errors.

    Members of the block are shifted by 0.6 for right items, the others by 1.0: what the block shares outweighs
    what the verifiers know, and an estimator that does not see the block takes it for the truth.
    """
    rng = np.random.default_rng([seed, n_items, block])
    right = rng.random(n_items) < BASE_RATE
    scores = rng.normal(size=(n_items, N_VERIFIERS))
    shared = rng.normal(size=n_items)
    scores[:, :block] = np.sqrt(1 - SHARED**2) * scores[:, :block] + SHARED * shared[:, None]
    shift = np.where(np.arange(N_VERIFIERS) < block, 0.6, 1.0)
    return from_scores(scores + right[:, None] * shift, right.astype(np.intp), np.arange(n_items))
