"""The maximal-update criterion: how far one SGD step moves the representations, and the rate that moves them by c.

    S(eta) = mean over units l and initialisations of |Delta z_l|^2 / n_l = eta^2 E + o(eta^2),    eta* = (c / E)^(1/2)

with z_l the output of unit l, n_l its size, and E exact to first order: the gradient of the loss, then one
forward-mode derivative of all units along minus that gradient (arXiv 2602.07494; the expectation over
initialisations, which of the units are counted and the choice of loss are reconstructed).

Three choices decide what exponent is seen; see the page. Hidden units alone are counted, since at 1/fan-in the
read-out's own change is nine tenths of S in a shallow net and a tenth in a deep one. The mean over initialisations is
geometric, for E is heavy-tailed. And the loss is linear in the output (a fixed random residual), so that its gradient
does not grow with the output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from assay.errors import InputError
from assay.scaling.depth_lr.counting import (
    Diverged,
    Trace,
    Tracer,
    call,
    check_module,
    first_tensor,
    one_line,
    refuse_scripted,
    unwrapped,
)

__all__ = ["Energies", "LossOf", "maximal_lr", "stack", "unit_energies", "unit_residual", "update_energy"]

Loss = Callable[[nn.Module, Any], Tensor]
UNIT = "unit-residual"
CHUNK = 16  # initialisations that are held in memory at a time


@dataclass(frozen=True)
class Energies:
    """First-order energies: one row an initialisation, one column a unit on the shortest way, the read-out last."""

    values: NDArray[np.float64]
    names: tuple[str, ...]
    has_readout: bool

    def per_init(self, readout: bool = False) -> NDArray[np.float64]:
        """Mean over the units that count, (n_init,)."""
        hidden = self.values[:, :-1] if self.has_readout and not readout else self.values
        return hidden.mean(axis=1)

    def summary(self, readout: bool = False) -> dict[str, Any]:
        """Geometric and arithmetic mean over initialisations, and the energies of each unit and initialisation."""
        each = self.per_init(readout)
        return {
            "energy": float(np.exp(np.log(each).mean())) if each.all() else 0.0,
            "arithmetic": float(each.mean()),
            "per_init": each,
            "per_layer": np.exp(np.log(np.maximum(self.values, np.finfo(float).tiny)).mean(axis=0)),
            "layers": self.names,
        }


def update_energy(
    model: nn.Module,
    loss_fn: Loss | str,
    batch: Any,
    n_init: int = 8,
    reinit: Callable[[nn.Module], Any] | None = None,
    readout: bool = False,
    per_layer: bool = False,
    random_state: int = 0,
) -> float | dict[str, Any]:
    """Energy of the change that one SGD step makes at initialisation, divided by the rate squared (arXiv 2602.07494).

    Parameters
    ----------
    model : torch.nn.Module
        Left as it was.
    loss_fn : callable or "unit-residual"
        `loss_fn(model, batch)` gives a scalar, as `lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])`.
        "unit-residual" takes the mean inner product of the output with fixed random residuals of norm about 1.
    batch : any
        For "unit-residual" the model's input, or a tuple or list that begins with it; a dict holds named arguments.
    n_init : int, default 8
        Initialisations in the mean; 1 takes the weights as they are.
    reinit : callable, optional
        `reinit(model)` draws a copy's weights anew, in place. By default each weight with two or more dimensions is
        drawn from a normal distribution with the standard deviation that it has now, and the rest stays.
    readout : bool, default False
        Count the last layer as a unit as well.
    per_layer : bool, default False
        Return the dictionary.
    random_state : int, default 0

    Returns
    -------
    float or dict
        The geometric mean over initialisations of the mean over units of |Delta z|^2 / n per eta^2. With `per_layer`
        the keys `energy`, `arithmetic` (the mean itself), `per_init` (n_init,), `per_layer` (units,) and `layers`,
        names of the units with the read-out last.

    Raises
    ------
    InputError
        A model without units, with shared parameters or recurrence; a loss that is no scalar; exceptions of the model.
    Diverged
        An InputError and a RuntimeError: an energy that is not finite, with the name of the layer.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 1, bias=False))
    >>> with torch.no_grad(): _ = net[0].weight.copy_(torch.tensor([[1.0, 0.0]])), net[1].weight.fill_(2.0)
    >>> x = torch.tensor([[1.0, 2.0]])              # Delta z = -eta * |x|^2 * dloss/dz = -eta * 5 * 2
    >>> round(update_energy(net, lambda model, x: model(x).sum(), x, n_init=1), 6)
    100.0
    """
    found = _measure(model, loss_fn, batch, n_init, reinit, random_state)
    summary = found.summary(readout)
    return summary if per_layer else summary["energy"]


def maximal_lr(
    model: nn.Module,
    loss_fn: Loss | str,
    batch: Any,
    budget: float = 1.0,
    n_init: int = 8,
    reinit: Callable[[nn.Module], Any] | None = None,
    readout: bool = False,
    random_state: int = 0,
) -> float:
    """The SGD rate at which the mean update energy of the first step reaches a budget (arXiv 2602.07494).

    To leading order; the true change at this rate also has terms of higher order. Compare it between depths, and tune
    the constant once.

    Parameters
    ----------
    model, loss_fn, batch
        As in `update_energy`.
    budget : float, default 1.0
        c, the mean square change of a hidden unit.
    n_init, reinit, readout, random_state
        As in `update_energy`.

    Returns
    -------
    float
        (budget / energy) ** 0.5

    Raises
    ------
    InputError
        A budget that is not positive, an energy of 0, and what `update_energy` refuses.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 1, bias=False))
    >>> with torch.no_grad(): _ = net[0].weight.copy_(torch.tensor([[1.0, 0.0]])), net[1].weight.fill_(2.0)
    >>> round(maximal_lr(net, lambda model, x: model(x).sum(), torch.tensor([[1.0, 2.0]]), n_init=1), 6)
    0.1
    """
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not (math.isfinite(budget) and budget > 0):
        raise InputError(f"budget must be a positive number, got {budget!r}")
    energy = _measure(model, loss_fn, batch, n_init, reinit, random_state).summary(readout)["energy"]
    if energy <= 0:
        raise InputError("one step does not move any hidden unit: the loss has no gradient there")
    return math.sqrt(budget / energy)


def _measure(
    model: nn.Module,
    loss_fn: Loss | str,
    batch: Any,
    n_init: int,
    reinit: Callable[[nn.Module], Any] | None,
    random_state: int,
) -> Energies:
    model = unwrapped(model)
    check_module(model)
    if isinstance(n_init, bool) or not isinstance(n_init, Integral) or n_init < 1:
        raise InputError(f"n_init must be a whole number of 1 or more, got {n_init!r}")
    if isinstance(random_state, bool) or not isinstance(random_state, Integral):
        raise InputError(f"random_state must be a whole number, got {random_state!r}")
    if reinit is not None and not callable(reinit):
        raise InputError(f"reinit must be a function of the model, got {reinit!r}")
    if not (callable(loss_fn) or loss_fn == UNIT):
        raise InputError(f"loss_fn must be a function of (model, batch) or {UNIT!r}, got {loss_fn!r}")
    params, buffers = _drawn(model, int(n_init), reinit, random_state)
    loss = unit_residual(model, batch, random_state) if isinstance(loss_fn, str) else loss_fn
    return unit_energies(model, params, buffers, loss, batch)


def unit_energies(
    model: nn.Module, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor], loss: Loss, batch: Any
) -> Energies:
    """Energies for stacked parameters and buffers, (n_init, ...) each, all initialisations at once where that works."""
    refuse_scripted(model)
    task = LossOf(model, loss)
    seen: list[Trace] = []

    def outputs(weights: dict[str, Tensor], fixed: dict[str, Tensor]) -> tuple[Tensor, ...]:
        with Tracer(model, keep=True) as tracer:
            functional_call(task, task.names(weights, _copied(fixed)), (batch,))
        found = tracer.trace()
        seen.append(found)
        return tuple(unit.output for unit in found.sequential if unit.output is not None)

    def energies(weights: dict[str, Tensor], fixed: dict[str, Tensor]) -> Tensor:
        slope = grad(lambda w: functional_call(task, task.names(w, _copied(fixed)), (batch,)))(weights)
        along = {name: -value for name, value in slope.items()}
        change = jvp(lambda w: outputs(w, fixed), (weights,), (along,))[1]
        return torch.stack([part.double().pow(2).mean() for part in change])

    with sdpa_kernel(SDPBackend.MATH), torch.random.fork_rng(devices=[]):  # the fused kernels have no forward mode
        values = _over_inits(energies, dict(params), dict(buffers), model)
    first = seen[0]
    names = tuple(unit.name for unit in first.sequential)
    _refuse_infinite(values, names)
    return Energies(values, names, bool(first.readout) and len(names) > 1)


def _over_inits(
    energies: Callable[..., Tensor], params: dict[str, Tensor], buffers: dict[str, Tensor], model: nn.Module
) -> NDArray[np.float64]:
    """All initialisations in one vectorised pass; one after the other where an operation can't be vectorised."""
    try:
        found = vmap(energies, chunk_size=CHUNK, randomness="different")(params, buffers)
    except InputError:
        raise
    except Exception:
        count = len(next(iter(params.values())))
        try:
            rows = [energies(_row(params, i), _row(buffers, i)) for i in range(count)]
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"{type(model).__name__}, or its loss, raised {one_line(error)}") from error
        found = torch.stack(rows)
    return found.detach().numpy().astype(np.float64)


def _copied(buffers: dict[str, Tensor]) -> dict[str, Tensor]:
    """Running statistics may be written to inside a derivative, where they are made there."""
    return {name: value.clone() for name, value in buffers.items()}


def _row(stacked: Mapping[str, Tensor], index: int) -> dict[str, Tensor]:
    return {name: value[index].clone() for name, value in stacked.items()}


def _refuse_infinite(values: NDArray[np.float64], names: Sequence[str]) -> None:
    bad = ~np.isfinite(values)
    if bad.any():
        layer = int(np.argmax(bad.any(axis=0)))
        raise Diverged(
            f"the update energy of {names[layer]} is not finite, in {int(bad[:, layer].sum())} of {len(values)} "
            "initialisations: the activations or the loss overflow"
        )


class LossOf(nn.Module):
    """A loss as a module around the model, so that the loss sees the model itself, with other parameters in it."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self.loss = [loss]  # in a list: a loss that is a module must not become a part

    def forward(self, batch: Any) -> Tensor:
        value = self.loss[0](self.model, batch)
        if not isinstance(value, Tensor) or value.numel() != 1:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InputError(f"the loss must be a single number as a tensor, got {shape}")
        return value.reshape(())

    @staticmethod
    def names(*states: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Parameters and buffers of the model under their names here."""
        return {f"model.{name}": value for state in states for name, value in state.items()}


def unit_residual(model: nn.Module, batch: Any, seed: int = 0) -> Loss:
    """The loss mean <f, r> with one fixed random r of norm about 1 a position: its gradient does not hang on f."""
    refuse_scripted(model)
    inputs = batch[0] if isinstance(batch, tuple | list) and len(batch) else batch
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            arguments = ((), dict(inputs)) if isinstance(inputs, Mapping) else ((inputs,), {})
            output = first_tensor(functional_call(model, buffers, *arguments))
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{type(model).__name__} raised {one_line(error)}") from error
    noise = torch.randn(output.shape, generator=torch.Generator().manual_seed(seed), dtype=output.dtype)
    r = noise / math.sqrt(output.shape[-1] if output.ndim else 1)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return (first_tensor(call(model, inputs)) * r).sum() * (r.shape[-1] if r.ndim else 1) / r.numel()

    return loss


def _drawn(
    model: nn.Module, n_init: int, reinit: Callable[[nn.Module], Any] | None, seed: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Stacked parameters and buffers of `n_init` initialisations."""
    if n_init == 1 and reinit is None:
        return stack([model])
    copies = []
    for index in range(n_init):
        copy = deepcopy(model)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1_000_003 * seed + index)
            if reinit is None:
                _redraw(copy)
            else:
                reinit(copy)
        copies.append(copy)
    return stack(copies)


@torch.no_grad()
def _redraw(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.ndim >= 2 and parameter.numel() > 1:
            parameter.normal_(0.0, float(parameter.std()))


def stack(models: Sequence[nn.Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Parameters and buffers of modules of one shape, stacked along a new first axis; the modules are not touched."""

    def joined(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        return {name: torch.stack([state[name].detach() for state in states]) for name in states[0]}

    params = joined([dict(model.named_parameters()) for model in models])
    return params, joined([dict(model.named_buffers()) for model in models])
