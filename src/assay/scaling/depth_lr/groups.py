"""Parameter groups whose rates carry over depth and width, and an initialisation that keeps deep stacks stable.

Depth: all rates times (L / L0)^-3/2 (arXiv 2602.07494). Width: the rates of muP (Yang et al.,
arXiv 2203.03466, table 8), by the ratio of the fan-in (n / n0) to that of a base model:

    role                                     SGD              Adam
    input weights, embeddings, biases, gains times n / n0     1
    hidden weights                           1                times n0 / n
    read-out                                 times n0 / n     times n0 / n

with the read-out's initial variance falling as 1/n^2 (`stabilize_(..., base_model=...)` sets it).
Initialisation: He fan-in on the plain way, 1/fan-in before no rectifier, and the last weight of each residual branch
divided by the number of residual additions, which keeps the forward variance bounded (reconstructed).
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from assay.errors import InputError
from assay.scaling.depth_lr.counting import Trace, trace, unwrapped
from assay.scaling.depth_lr.transfer import EXPONENT, check_depth, scale_lr

__all__ = ["WIDTH_RULES", "depth_param_groups", "roles", "stabilize_"]

WIDTH_RULES: dict[str, dict[str, float]] = {
    "none": {"input": 0.0, "hidden": 0.0, "readout": 0.0, "vector": 0.0, "readout-bias": 0.0},
    "sgd": {"input": 1.0, "hidden": 0.0, "readout": -1.0, "vector": 1.0, "readout-bias": 0.0},
    "adam": {"input": 0.0, "hidden": -1.0, "readout": -1.0, "vector": 0.0, "readout-bias": 0.0},
}
"""Power of the width ratio in the rate of each role."""

GAINS = {"relu": 2.0, "linear": 1.0, "tanh": 1.0}
"""Variance times fan-in that keeps the forward variance behind the nonlinearity."""


def depth_param_groups(
    model: nn.Module,
    base_lr: float,
    base_model: nn.Module | float,
    width_rule: str = "none",
    example_input: Any = None,
    depth: float | None = None,
    exponent: float = EXPONENT,
) -> list[dict[str, Any]]:
    """Groups for any torch optimizer that takes groups, with the rate of a base model carried over (arXiv 2602.07494).

    The groups are plain dictionaries with `params`, `lr` and `role`; schedulers that multiply an initial rate work as
    they are, and one that sets absolute rates (OneCycleLR's `max_lr`) takes the list of the groups' `lr`. L-BFGS takes
    no groups: give it the one rate of `scale_lr`. The exponent -3/2 is for plain SGD; other optimizers, and nets with
    BatchNorm, follow other exponents, which a few depths and `DepthLRTransfer` tell.

    Parameters
    ----------
    model : torch.nn.Module
        The deeper or wider net.
    base_lr : float
        The rate that was tuned on the base.
    base_model : torch.nn.Module or float
        The net that it was tuned on; its effective depth alone is enough where `width_rule` is "none".
    width_rule : {"none", "sgd", "adam"}
        The table of muP that the rates follow where the width differs.
    example_input : tensor, tuple or dict, optional
        As in `effective_depth`; used for both.
    depth : float, optional
        The model's effective depth, counted by hand in the same way as the base's (then give the base's as a number).
    exponent : float, default -1.5

    Returns
    -------
    list of dict
        One group a distinct role and rate; parameters that do not require gradients are left out.

    Raises
    ------
    InputError
        A rate that is not positive, an unknown rule, no trainable parameter, widths that can't be matched by name, and
        what `effective_depth` refuses.

    Examples
    --------
    >>> def mlp(depth):
    ...     hidden = [layer for _ in range(depth - 2) for layer in (nn.Linear(16, 16), nn.ReLU())]
    ...     return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), *hidden, nn.Linear(16, 2))
    >>> groups = depth_param_groups(mlp(16), 0.1, mlp(4))
    >>> optimizer = torch.optim.SGD(groups)
    >>> sorted({round(group["lr"], 6) for group in optimizer.param_groups})
    [0.0125]
    """
    if width_rule not in WIDTH_RULES:
        raise InputError(f"width_rule must be one of {', '.join(WIDTH_RULES)}, got {width_rule!r}")
    powers = WIDTH_RULES[width_rule]
    model, base_model = unwrapped(model), unwrapped(base_model)
    if not isinstance(base_model, nn.Module):
        if width_rule != "none":
            raise InputError("a width rule needs the base model itself, to read its widths; its depth alone was given")
        base_depth = check_depth(base_model, "base_model")
        base_shapes = None
    else:
        base_found = trace(base_model, example_input)
        base_depth = float(len(base_found.path))
        base_shapes = _Shapes(base_model, base_found)
    # A depth that was counted by hand is for models that can't be followed: they have no roles, and no width rule.
    found = trace(model, example_input) if depth is None or width_rule != "none" else None
    counted = len(found.path) if depth is None and found is not None else depth
    deep = check_depth(counted, "depth")  # type: ignore[arg-type]
    rate = scale_lr(base_lr, deep, base_depth, exponent)
    role_of = roles(model, found) if found is not None else dict.fromkeys(_trainable(model), "all")
    groups: dict[tuple[str, float], list[Tensor]] = defaultdict(list)
    for name, parameter in _trainable(model).items():
        role = role_of[name]
        factor = 1.0
        if found is not None and base_shapes is not None and width_rule != "none" and powers[role]:
            factor = base_shapes.ratio(found, name, parameter, role) ** powers[role]
        groups[role, rate * factor].append(parameter)
    if not groups:
        raise InputError(f"{type(model).__name__} has no parameter that requires a gradient")
    return [{"params": params, "lr": lr, "role": role} for (role, lr), params in groups.items()]


def stabilize_(
    model: nn.Module,
    nonlinearity: str = "relu",
    example_input: Any = None,
    base_model: nn.Module | None = None,
    random_state: int = 0,
) -> nn.Module:
    """Draw a module's weights anew, in place, so that the forward variance stays bounded at any depth (reconstructed).

    Var W = gain / fan-in on the plain way, 1 / fan-in for the read-out and for branch weights that no rectifier
    precedes, and the last weight of each residual branch divided by the number of residual additions. Embeddings get
    variance 1, biases 0. Norms and weights that are not seen in the run stay as they are.

    Parameters
    ----------
    model : torch.nn.Module
    nonlinearity : {"relu", "linear", "tanh"}
        Gain 2 for "relu", else 1. GELU is not among them: a gain near 2 makes deep plain nets decay and a slightly
        larger one makes them explode; put norms or residual branches there.
    example_input : tensor, tuple or dict, optional
        As in `effective_depth`.
    base_model : torch.nn.Module, optional
        The read-out's variance is then 1 / fan-in at the base's width and falls as 1 / fan-in^2, as the width rules
        want.
    random_state : int, default 0

    Returns
    -------
    torch.nn.Module
        The same module.

    Raises
    ------
    InputError
        An unknown nonlinearity, and what `effective_depth` refuses.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
    >>> net = stabilize_(net)
    >>> round(float(net[0].weight.detach().var() * 256), 1), float(net[0].bias.detach().abs().max())
    (2.0, 0.0)
    """
    if nonlinearity not in GAINS:
        raise InputError(f"nonlinearity must be one of {', '.join(GAINS)}, got {nonlinearity!r}")
    whole, model, base_model = model, unwrapped(model), unwrapped(base_model)
    found = trace(model, example_input)
    gain = GAINS[nonlinearity]
    shares = _branch_shares(found)
    in_branch = {name for unit in found.additions for name in unit.branch}
    base = _Shapes(base_model, trace(base_model, example_input)) if base_model is not None else None
    generator = torch.Generator().manual_seed(random_state)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name not in found.uses:
                if name.endswith("bias") and parameter.ndim == 1 and name[:-4] + "weight" in found.uses:
                    parameter.zero_()
                continue
            use = found.uses[name][0]
            variance = (gain if use.rectified or name not in in_branch else 1.0) / use.fan_in
            if name in found.readout:
                variance = 1.0 / use.fan_in
                variance /= base.ratio(found, name, parameter, "readout") if base is not None else 1.0
            elif use.op.startswith("embedding"):
                variance = 1.0
            variance *= shares.get(name, 1.0)
            parameter.normal_(0.0, math.sqrt(variance), generator=generator)
    return whole


def roles(model: nn.Module, found: Trace) -> dict[str, str]:
    """input, hidden, readout, vector or readout-bias for each parameter name."""
    named = {}
    for name, parameter in model.named_parameters():
        if name in found.readout:
            role = "readout"
        elif name.removesuffix("bias") + "weight" in found.readout:
            role = "readout-bias"
        elif name in found.uses:
            role = "input" if found.uses[name][0].first else "hidden"
        else:
            # Positions that are added, like an embedding, and everything that is no matrix.
            role = "input" if parameter.ndim >= 2 else "vector"
        named[name] = role
    return named


def _branch_shares(found: Trace) -> dict[str, float]:
    """1 / (number of residual additions) for the last weights of each branch."""
    additions = found.additions
    shares = {}
    for unit in additions:
        if unit.branch:
            last = found.uses[unit.branch[-1]][0].unit
            shares.update(dict.fromkeys(found.units[last].weights, 1.0 / len(additions)))
    return shares


class _Shapes:
    """The base model's widths, to compare a wider one's with."""

    def __init__(self, model: nn.Module, found: Trace) -> None:
        kinds = roles(model, found)
        self.kinds = kinds
        self.widths = {name: _width(found, name, p, kinds[name]) for name, p in model.named_parameters()}

    def ratio(self, found: Trace, name: str, parameter: Tensor, role: str) -> float:
        """Width of a parameter of another model over that of its like in the base."""
        return _width(found, name, parameter, role) / self._base(name, role)

    def _base(self, name: str, role: str) -> float:
        if self.kinds.get(name) == role:
            return self.widths[name]
        # A deeper net has names that the base has not: those that differ in numbers alone are alike.
        alike = [other for other in self.widths if _pattern(other) == _pattern(name) and self.kinds[other] == role]
        like = {self.widths[other] for other in alike}
        if len(like) != 1:
            what = "none" if not like else "several widths"
            raise InputError(
                f"{name} can't be matched with the base model ({what} among its {role} parameters of that name): "
                'name the layers alike, or pass width_rule="none"'
            )
        return like.pop()


def _width(found: Trace, name: str, parameter: Tensor, role: str) -> float:
    """Fan-in of hidden and read-out matrices; the units that an input weight feeds, or that a vector belongs to."""
    if role in ("hidden", "readout"):
        return found.uses[name][0].fan_in
    if name in found.uses and not found.uses[name][0].op.startswith("embedding"):
        return parameter.shape[0] if parameter.ndim != 2 else parameter.numel() / found.uses[name][0].fan_in
    return float(parameter.shape[-1]) if parameter.ndim else 1.0


def _pattern(name: str) -> str:
    return re.sub(r"\d+", "*", name)


def _trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
