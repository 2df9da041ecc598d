"""Torch modules: made from a configuration, saved as safetensors, every parameter reached by the gradient."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from assay.conformance.alike import cast, has_floats, same
from assay.conformance.check import Excused
from assay.conformance.kinds import common
from assay.conformance.subject import Subject

__all__ = ["CHECKS", "exercise"]


def exercise(subject: Subject, name: str) -> Any:
    """Run the declared module forward."""
    return _fresh(subject, name)(*subject.entry(name)["inputs"]())


def _fresh(subject: Subject, name: str, seed: int = 0) -> Any:
    import torch

    torch.manual_seed(seed)
    return common.target(subject, name).from_config(**subject.entry(name)["config"]()).eval()


def _forward(subject: Subject, name: str) -> Any:
    import torch

    def forward(inputs: Any) -> Any:
        with torch.no_grad():
            return _fresh(subject, name)(*inputs)

    return forward


def _is_module(subject: Subject, name: str) -> None:
    from torch.nn import Module

    assert issubclass(common.target(subject, name), Module), f"{name} is no torch.nn.Module"


def _from_config(subject: Subject, name: str) -> None:
    """`config` of a module makes another with the same parameters' names and shapes."""
    first = _fresh(subject, name)
    second = type(first).from_config(**first.config)
    shapes = [{key: tuple(value.shape) for key, value in module.state_dict().items()} for module in (first, second)]
    assert shapes[0] == shapes[1], f"{name}: made again from its own config it has other parameters"


def _safetensors(subject: Subject, name: str) -> None:
    """Weights saved as safetensors and loaded into another module give the same output to the last bit."""
    import torch
    from safetensors.torch import load_model, save_model

    first, second = _fresh(subject, name, seed=0), _fresh(subject, name, seed=1)
    inputs = subject.entry(name)["inputs"]()
    with TemporaryDirectory() as folder, torch.no_grad():
        path = str(Path(folder) / "weights.safetensors")
        save_model(first, path)
        before = second(*inputs)
        load_model(second, path)
        assert not same(before, second(*inputs)), f"{name}: loading weights changes nothing"
        assert same(first(*inputs), second(*inputs)), f"{name}: loaded weights give another output"


def _gradients(subject: Subject, name: str) -> None:
    """Every parameter that wants a gradient gets a finite one."""
    module = _fresh(subject, name)
    _total(module(*subject.entry(name)["inputs"]())).backward()
    for key, parameter in module.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, f"{name}: no gradient reaches {key}"
            assert bool(parameter.grad.isfinite().all()), f"{name}: the gradient of {key} is not finite"


def _total(output: Any) -> Any:
    if isinstance(output, (tuple, list)):
        return sum(_total(part) for part in output)
    if isinstance(output, dict):
        return sum(_total(part) for part in output.values())
    return output.float().square().sum()


def _pure(subject: Subject, name: str) -> None:
    common.twice(_forward(subject, name), subject.entry(name)["inputs"])


def _inputs_unchanged(subject: Subject, name: str) -> None:
    common.inputs_unchanged(_forward(subject, name), subject.entry(name)["inputs"])


def _float32(subject: Subject, name: str) -> None:
    """The module in double precision takes double inputs, and agrees with itself in single precision."""
    import torch

    inputs = subject.entry(name)["inputs"]()
    if not has_floats(inputs):
        raise Excused("takes no tensor of floating point numbers")
    with torch.no_grad():
        single = _fresh(subject, name).float()(*cast(inputs, "float32"))
        double = _fresh(subject, name).double()(*cast(inputs, "float64"))
    tolerance = subject.entry(name).get("tolerance", common.TOLERANCE)
    assert common.near(single, double, tolerance), f"{name}: single and double precision differ"


CHECKS = {
    "is a module": _is_module, "from_config": _from_config, "safetensors": _safetensors, "gradients": _gradients,
    "pure": _pure, "inputs unchanged": _inputs_unchanged, "float32": _float32,
}
