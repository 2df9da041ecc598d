"""Train a next-base model and score it in bits per base."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from assay.errors import InputError
from assay.scaling.genomic_scaling.sequences import UNKNOWN, join, reverse_complement
from assay.scaling.genomic_scaling.sequences import corrupt as corrupted

if TYPE_CHECKING:
    from assay.scaling.genomic_scaling.blocks import DNAModel

__all__ = ["WARM_UP", "bits_per_base", "even_windows", "train_dna"]

WARM_UP = 20
_PART = 128


def train_dna(
    model: DNAModel,
    sequences: Sequence[np.ndarray] | Mapping[str, np.ndarray],
    tokens: int,
    lr: float = 0.02,
    batch: int = 32,
    *,
    length: int = 128,
    reverse_complement: bool = True,
    corrupt: float = 0.0,
    seed: int = 0,
) -> list[float]:
    """Train in place on random windows; return the training loss of each step in bits per base.

    AdamW (0.9, 0.95), weight decay 0.1, gradient norm clipped at 1; the rate climbs over 20 steps and falls along a
    line to zero.

    Parameters
    ----------
    model : DNAModel
    sequences : sequence or mapping of 1-D uint8 codes
        As from `read_fasta`.
    tokens : int
        Bases to train on; rounded to whole steps of `batch` windows of `length` bases.
    lr : float
        Largest learning rate.
    reverse_complement : bool
        Train on both strands.
    corrupt : float
        Share of the training bases replaced by another one, once, before training.
    seed : int
        Seed of the windows and of the errors.

    Raises
    ------
    InputError
        For sequences shorter than a window, or arguments out of range.
    FloatingPointError
        When the gradient stops being finite.
    """
    import torch
    from torch import nn
    from torch.nn import functional as F

    stream = _training_stream(sequences, length, reverse_complement, corrupt, seed)
    if not lr > 0 or batch < 1 or not 2 <= length <= model.context:
        raise InputError(f"lr > 0, batch >= 1 and 2 <= length <= {model.context} expected, got {lr}, {batch}, {length}")
    steps = round(tokens / (batch * length))
    if steps < 1:
        raise InputError(f"{tokens} tokens are less than one step of {batch} x {length}")
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    rng, history = np.random.default_rng([seed, 1]), []
    warm = min(WARM_UP, max(1, steps // 4))
    model.train()
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = lr * min((step + 1) / warm, (steps - step) / max(1, steps - warm))
        starts = rng.integers(0, len(stream) - length, size=batch)
        ids = torch.from_numpy(stream[starts[:, None] + np.arange(length + 1)].astype(np.int64))
        ids = ids.to(next(model.parameters()).device)
        optimiser.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        if not math.isfinite(norm):
            raise FloatingPointError(f"the gradient is not finite at step {step}")
        optimiser.step()
        history.append(float(loss.detach()) / math.log(2))
    return history


def _training_stream(
    sequences: Sequence[np.ndarray] | Mapping[str, np.ndarray], length: int, both: bool, rate: float, seed: int
) -> np.ndarray:
    given = list(sequences.values() if isinstance(sequences, Mapping) else sequences)
    given = [np.asarray(codes, dtype=np.uint8) for codes in given if len(codes)]
    if not given or max(map(len, given)) <= length:
        longest = max(map(len, given), default=0)
        raise InputError(f"the longest sequence has {longest} bases, more than the window of {length} are needed")
    noisy = [corrupted(codes, rate, seed + index) for index, codes in enumerate(given)] if rate else given
    return join([*noisy, *map(reverse_complement, noisy)] if both else noisy)


def even_windows(sequences: Sequence[np.ndarray], count: int, length: int = 128) -> np.ndarray:
    """`count` windows of `length` + 1 bases, evenly spaced over the sequences in turn, shape (count, length + 1)."""
    shares = [count * (i + 1) // len(sequences) - count * i // len(sequences) for i in range(len(sequences))]
    rows = []
    for codes, share in zip(sequences, shares, strict=True):
        if len(codes) <= length:
            raise InputError(f"a sequence of {len(codes)} bases is too short for windows of {length}")
        starts = np.linspace(0, len(codes) - length - 1, share).astype(int)
        rows.append(codes[starts[:, None] + np.arange(length + 1)])
    return np.concatenate(rows)


def bits_per_base(model: DNAModel, windows: np.ndarray) -> np.ndarray:
    """Mean bits a base of each window (count,), given windows (count, length + 1); bases N are not scored."""
    import torch
    from torch.nn import functional as F

    model.eval()
    scores = []
    with torch.no_grad():
        for start in range(0, len(windows), _PART):
            ids = torch.from_numpy(windows[start : start + _PART].astype(np.int64))
            ids = ids.to(next(model.parameters()).device)
            loss = F.cross_entropy(model(ids[:, :-1]).transpose(1, 2), ids[:, 1:], reduction="none")
            scored = (ids[:, 1:] < UNKNOWN).to(loss.dtype)
            scores.append(((loss * scored).sum(1) / scored.sum(1).clamp(min=1)).cpu().numpy())
    return np.concatenate(scores) / math.log(2)
