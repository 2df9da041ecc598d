"""Training at many rates and from many seeds as one batch, and the best rate between the grid's points.

All runs of one net share their batches and are stacked along a first axis: `vmap` turns a step of all of them into a
few batched matrix products. A run whose loss overflows counts as +inf and is never dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from assay.errors import InputError
from assay.scaling.depth_lr.counting import one_line
from assay.scaling.depth_lr.energy import Loss, LossOf

__all__ = ["best_rate", "rate_grid", "train_grid", "train_one_by_one"]

Array = NDArray[np.float64]
Update = Callable[[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]], None]


def train_grid(
    model: nn.Module,
    params: Mapping[str, Tensor],
    rates: Sequence[float],
    batches: Callable[[int], Any],
    loss: Loss,
    steps: int,
    evaluate: Any,
    factors: Mapping[str, float] | None = None,
    optimizer: str = "sgd",
) -> Array:
    """Losses (seeds, rates) on `evaluate` after `steps` steps from stacked initial weights (seeds, ...).

    `batches(step)` gives the step's batch, the same for all runs; `factors` multiply the rate of single weights;
    `optimizer` is "sgd", "momentum" (0.9) or "adam" (0.9, 0.999).
    """
    task = LossOf(model, loss)
    count = len(next(iter(params.values())))
    # Runs of one seed lie side by side: a run is seed * len(rates) + rate.
    runs = {name: value.repeat_interleave(len(rates), dim=0) for name, value in params.items()}
    rate = torch.tensor(list(rates), dtype=torch.float32).repeat(count)
    scaled = {
        name: (rate * (factors or {}).get(name, 1.0)).reshape(-1, *[1] * (value.ndim - 1))
        for name, value in runs.items()
    }
    update = _UPDATES[optimizer]()

    def loss_of(weights: dict[str, Tensor], batch: Any) -> Tensor:
        return functional_call(task, task.names(weights), (batch,))

    slopes = vmap(grad(loss_of), in_dims=(0, None), randomness="different")
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        for step in range(steps):
            update(runs, slopes(runs, batches(step)), scaled)
        losses = vmap(loss_of, in_dims=(0, None), randomness="different")(runs, evaluate)
    found = losses.double().numpy().reshape(count, len(rates))
    return np.where(np.isfinite(found), found, np.inf)


def train_one_by_one(
    models: Sequence[nn.Module],
    rates: Sequence[float],
    batches: Callable[[int], Any],
    loss: Loss,
    steps: int,
    evaluate: Any,
) -> Array:
    """The same losses by torch's SGD, one run after the other: for modules that can't be vectorised."""
    found = np.full((len(models), len(rates)), np.inf)
    for row, model in enumerate(models):
        for column, rate in enumerate(rates):
            found[row, column] = _train_one(deepcopy(model), rate, batches, loss, steps, evaluate)
    return found


def _train_one(
    model: nn.Module, rate: float, batches: Callable[[int], Any], loss: Loss, steps: int, evaluate: Any
) -> float:
    task = LossOf(model, loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for step in range(steps):
        optimizer.zero_grad()
        value = task(batches(step))
        if not math.isfinite(value.item()):
            return math.inf
        value.backward()
        optimizer.step()
    with torch.no_grad():
        last = float(task(evaluate))
    return last if math.isfinite(last) else math.inf


def train_any(
    models: Sequence[nn.Module],
    rates: Sequence[float],
    batches: Callable[[int], Any],
    loss: Loss,
    steps: int,
    evaluate: Any,
) -> Array:
    """Losses (models, rates): all runs at once where there are no buffers and `vmap` works, else one by one."""
    from assay.scaling.depth_lr.energy import stack

    params, buffers = stack(models)
    if not buffers:
        try:
            return train_grid(models[0], params, rates, batches, loss, steps, evaluate)
        except InputError:
            raise
        except Exception:  # what can't be vectorised may run one by one, and says there what is wrong if not
            return _train_or_say(models, rates, batches, loss, steps, evaluate)
    return _train_or_say(models, rates, batches, loss, steps, evaluate)


def _train_or_say(models: Sequence[nn.Module], *how: Any) -> Array:
    try:
        return train_one_by_one(models, *how)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"training {type(models[0]).__name__} raised {one_line(error)}") from error


def rate_grid(low: float, high: float, step: float = 0.5) -> list[float]:
    """Powers of two from 2^low to 2^high, `step` apart in the exponent."""
    count = round((high - low) / step)
    return [2.0 ** (low + step * index) for index in range(count + 1)]


def best_rate(rates: Sequence[float], losses: Array) -> tuple[float, bool]:
    """The rate of least loss by a parabola in log rate through the best and its neighbours, and whether it is inside.

    The best grid point itself is taken where it is the first or last of the grid (then the second value is False) or
    has a diverged neighbour. NaN where every run diverged.
    """
    order = np.argsort(rates)
    x, y = np.log(np.asarray(rates, dtype=float)[order]), np.asarray(losses, dtype=float)[order]
    if not np.isfinite(y).any():
        return math.nan, False
    best = int(np.argmin(y))
    if best in (0, len(y) - 1):
        return float(np.exp(x[best])), False
    three = slice(best - 1, best + 2)
    if not np.isfinite(y[three]).all():
        return float(np.exp(x[best])), True
    a, b, _ = np.polyfit(x[three] - x[best], y[three], 2)
    shift = -b / (2 * a) if a > 0 else 0.0
    return float(np.exp(x[best] + np.clip(shift, x[best - 1] - x[best], x[best + 1] - x[best]))), True


def _sgd() -> Update:
    def update(runs: dict[str, Tensor], slopes: dict[str, Tensor], rates: dict[str, Tensor]) -> None:
        for name, value in runs.items():
            value.addcmul_(slopes[name], rates[name], value=-1.0)

    return update


def _momentum() -> Update:
    velocity: dict[str, Tensor] = {}

    def update(runs: dict[str, Tensor], slopes: dict[str, Tensor], rates: dict[str, Tensor]) -> None:
        for name, value in runs.items():
            velocity[name] = slopes[name].clone() if name not in velocity else velocity[name] * 0.9 + slopes[name]
            value.addcmul_(velocity[name], rates[name], value=-1.0)

    return update


def _adam() -> Update:
    first: dict[str, Tensor] = {}
    second: dict[str, Tensor] = {}
    steps = [0]

    def update(runs: dict[str, Tensor], slopes: dict[str, Tensor], rates: dict[str, Tensor]) -> None:
        steps[0] += 1
        for name, value in runs.items():
            g = slopes[name]
            first[name] = first.get(name, torch.zeros_like(g)) * 0.9 + 0.1 * g
            second[name] = second.get(name, torch.zeros_like(g)) * 0.999 + 0.001 * g * g
            m = first[name] / (1 - 0.9 ** steps[0])
            v = second[name] / (1 - 0.999 ** steps[0])
            value.addcmul_(m / (v.sqrt() + 1e-8), rates[name], value=-1.0)

    return update


_UPDATES: dict[str, Callable[[], Update]] = {"sgd": _sgd, "momentum": _momentum, "adam": _adam}
