"""Populations of seeds: many small networks of one shape, trained side by side as one tensor program.

Every weight carries a leading axis of seeds, so that a layer of all networks is one `bmm`. The networks
share nothing but the shape: each has its own first weights, its own data, and its own gradient norm to be
clipped by (a joint norm would couple them). A seed therefore ends where it would have ended alone, up to
rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from assay.errors import InputError, require
from assay.scaling.seed_bimodality.tasks import CountTask, ReverseAdditionIndexHints, Task, task_named

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["train_population"]

BLOCK = {"networks": 256, "decoders": 32}  # seeds side by side: more no longer fit a core's cache


def train_population(
    task: str | Task,
    widths: Iterable[int] | None = None,
    depths: Iterable[int] | None = None,
    seeds: int | Sequence[int] = 128,
    steps: int | None = None,
    device: str = "cpu",
    *,
    rates: Mapping[int, float] | None = None,
    checkpoints: Sequence[int] = (),
    on_block: Callable[[int, int, int], None] | None = None,
) -> pd.DataFrame:
    """Train every seed at every width and depth, and score it on the task's tests (arXiv 2502.17356, section 3).

    Parameters
    ----------
    task
        `"parity"`, `"digits"`, `"count"`, `"addition"`, or one of the task classes with other settings.
    widths, depths
        Shapes: hidden units and hidden layers of a network, width and layers of a decoder. Default: the task's
        widths, one hidden layer or two decoder layers.
    seeds
        How many, or which ones (0 and up). A seed draws the first weights and the data.
    steps
        Updates; default: the task's.
    device
        Where PyTorch trains: `"cpu"`, `"cuda"`.
    rates
        Learning rate by width, where the task's own does not suit it.
    checkpoints
        Earlier steps at which the scores are taken as well.
    on_block
        Called with width, depth and the number of seeds when these are done.

    Returns
    -------
    DataFrame
        One row a seed, test and checkpoint: task, scale (the width), depth, test, seed, steps, score (share of the
        test's items that are right), loss (mean of the test's items, nats or hinge), items.

    Raises
    ------
    InputError
        A task, shape, seed or step that cannot be. `MissingExtra` where PyTorch is not installed.

    Examples
    --------
    >>> table = train_population("parity", widths=[4], seeds=3, steps=20)
    >>> print(*table[["task", "scale", "seed", "steps", "items"]].iloc[0])
    parity 4 0 20 2000
    """
    require("torch", extra="torch", wanted_by="seed-bimodality")
    import pandas as pd

    from assay.scaling.seed_bimodality.batched import train_decoders, train_networks

    task = task_named(task)
    decoders = isinstance(task, CountTask | ReverseAdditionIndexHints)
    shapes = [
        (width, depth)
        for depth in _whole("depths", [2 if decoders else 1] if depths is None else depths, least=1)
        for width in _whole("widths", task.widths if widths is None else widths, least=1)
    ]
    chosen = _whole("seeds", range(seeds) if isinstance(seeds, int) else seeds, least=0)
    steps = task.steps if steps is None else _whole("steps", [steps], least=1)[0]
    stops = sorted({*_whole("checkpoints", checkpoints, least=1, may_be_empty=True), steps})
    if stops[-1] > steps:
        raise InputError(f"checkpoints must be at most {steps} steps, got {stops[-1]}")
    train: Callable[..., list[tuple]] = train_decoders if decoders else train_networks
    size = BLOCK["decoders" if decoders else "networks"]
    rows = []
    for width, depth in shapes:
        rate = (rates or {}).get(width, task.rate)
        if not rate > 0:
            raise InputError(f"rates must be positive, got {rate} at width {width}")
        for at in range(0, len(chosen), size):
            block = chosen[at: at + size]
            rows += train(task, width, depth, block, stops, rate, device)
            if on_block:
                on_block(width, depth, len(block))
    columns = ["task", "scale", "depth", "test", "seed", "steps", "score", "loss", "items"]
    return pd.DataFrame(rows, columns=columns)


def _whole(name: str, values: Iterable[int], *, least: int, may_be_empty: bool = False) -> list[int]:
    found = list(values)
    for value in found:
        if isinstance(value, bool) or int(value) != value or value < least:
            raise InputError(f"{name} must be whole numbers of {least} or more, got {value!r}")
    if len(set(found)) < len(found):
        raise InputError(f"{name} holds a number twice: {found}")
    if not found and not may_be_empty:
        raise InputError(f"{name} is empty, at least one is needed")
    return [int(value) for value in found]
