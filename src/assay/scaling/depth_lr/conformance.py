"""Small inputs for the conformance checks; torch is imported where a net is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from assay.scaling import depth_lr
from assay.scaling.depth_lr.transfer import DepthLRTransfer, scale_lr

NAN = float("nan")


def _net(depth: int = 4, width: int = 8) -> Any:
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        hidden = [layer for _ in range(depth - 2) for layer in (nn.Linear(width, width), nn.ReLU())]
        return nn.Sequential(nn.Linear(3, width), nn.ReLU(), *hidden, nn.Linear(width, 2))


def _batch() -> Any:
    import torch

    return torch.linspace(-1.0, 1.0, 15).reshape(5, 3)


def _recurrent() -> Any:
    from torch import nn

    return nn.LSTM(3, 4)


def _empty() -> Any:
    from torch import nn

    return nn.ReLU()


def _shared() -> Any:
    from torch import nn

    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.ReLU(), layer)


def _overflowing() -> Any:
    import torch

    net = _net()
    with torch.no_grad():
        net[0].weight.fill_(1e30)
        net[2].weight.fill_(1e30)
    return net


def _square(model: Any, batch: Any) -> Any:
    return model(batch).square().mean()


def _energy(**changes: Any) -> dict[str, Any]:
    return {"model": _net(), "loss_fn": "unit-residual", "batch": _batch(), "n_init": 3, **changes}


def _bad_energies(name: str) -> list[Callable[[], Any]]:
    def call(**changes: Any) -> Any:
        return getattr(depth_lr, name)(**_energy(**changes))

    return [
        lambda: call(model="net"),
        lambda: call(model=_recurrent()),
        lambda: call(model=_empty()),
        lambda: call(model=_shared()),
        lambda: call(model=_overflowing(), loss_fn=_square, n_init=1),
        lambda: call(loss_fn="hinge"),
        lambda: call(loss_fn=lambda model, batch: model(batch)),
        lambda: call(n_init=0),
        lambda: call(batch=_batch()[:, :2]),
    ]


def _groups(**changes: Any) -> dict[str, Any]:
    return {
        "model": _net(8, 16),
        "base_lr": 0.1,
        "base_model": _net(),
        "width_rule": "sgd",
        **changes,
    }


def _best_rates() -> tuple[np.ndarray, np.ndarray]:
    return np.array([4.0, 8.0, 16.0, 32.0]), np.array([0.366, 0.109, 0.048, 0.021])


def _law(**settings: Any) -> DepthLRTransfer:
    return DepthLRTransfer(**settings)


_TYPES = {
    "float32": "a batch has the type of the module's weights, and the check casts the batch alone; the method's tests "
    "compare the two types",
}

CHECKS = {
    "effective_depth": {
        "inputs": lambda: {"model": _net()},
        "bad": [
            lambda: depth_lr.effective_depth("net"),
            lambda: depth_lr.effective_depth(_recurrent()),
            lambda: depth_lr.effective_depth(_empty()),
            lambda: depth_lr.effective_depth(_shared()),
            lambda: depth_lr.effective_depth(_net(), _batch()[:, :2]),
            lambda: depth_lr.effective_depth(_net(), count="blocks"),
        ],
    },
    "scale_lr": {
        "inputs": lambda: {"lr": 0.1, "depth": 16, "base_depth": 4},
        "bad": [
            lambda: scale_lr(0.0, 4, 4),
            lambda: scale_lr(-0.1, 4, 4),
            lambda: scale_lr(NAN, 4, 4),
            lambda: scale_lr(0.1, 0, 4),
            lambda: scale_lr(0.1, 4, 0.5),
            lambda: scale_lr(0.1, "deep", 4),  # type: ignore[arg-type]
            lambda: scale_lr(0.1, 4, 4, NAN),
        ],
    },
    "update_energy": {"inputs": _energy, "bad": _bad_energies("update_energy"), "excuse": _TYPES},
    "maximal_lr": {
        "inputs": _energy,
        "excuse": _TYPES,
        "bad": [
            *_bad_energies("maximal_lr"),
            lambda: depth_lr.maximal_lr(**_energy(budget=0.0)),
            lambda: depth_lr.maximal_lr(**_energy(budget=NAN)),
            lambda: depth_lr.maximal_lr(**_energy(loss_fn=lambda model, batch: (0 * model(batch)).sum())),
        ],
    },
    "depth_param_groups": {
        "inputs": _groups,
        "bad": [
            lambda: depth_lr.depth_param_groups(**_groups(base_lr=0.0)),
            lambda: depth_lr.depth_param_groups(**_groups(width_rule="wide")),
            lambda: depth_lr.depth_param_groups(**_groups(base_model=4)),
            lambda: depth_lr.depth_param_groups(**_groups(base_model=0.5, width_rule="none")),
            lambda: depth_lr.depth_param_groups(**_groups(model=_recurrent())),
            lambda: depth_lr.depth_param_groups(**_groups(model=_net().requires_grad_(False))),
        ],
    },
    "stabilize_": {
        "inputs": lambda: {"model": _net()},
        "bad": [
            lambda: depth_lr.stabilize_(_net(), "gelu"),
            lambda: depth_lr.stabilize_(_empty()),
            lambda: depth_lr.stabilize_(_recurrent()),
        ],
        "excuse": {"inputs unchanged": "draws the module's weights anew in place, as its name says"},
    },
    "DepthLRTransfer": {
        "make": _law,
        "fit": _best_rates,
        "bad": [
            lambda: _law().fit([4, 4], [0.1, 0.2]),
            lambda: _law().fit([4, 8], [0.1, 0.0]),
            lambda: _law().fit([4, 8], [0.1, NAN]),
            lambda: _law().fit([0, 8], [0.1, 0.2]),
            lambda: _law().fit([4, 8], [0.1]),
            lambda: _law().fit([], []),
            lambda: _law(exponent=NAN).fit([4], [0.1]),
            lambda: _law().fit(*_best_rates()).predict([0.5]),
        ],
        "excuse": {
            "scikit-learn": "its battery feeds random features of any number and sign; the law takes one column of "
            "depths and positive rates only",
        },
    },
}
