"""Hooks on a torch module: they change what it does, and leave it bit for bit as it was."""

from __future__ import annotations

from typing import Any

from assay.conformance.alike import same
from assay.conformance.subject import Entry, Subject

__all__ = ["CHECKS", "exercise"]


def exercise(subject: Subject, name: str) -> Any:
    """Run the declared model with the hook attached."""
    entry = subject.entry(name)
    model, inputs = _fresh(entry)
    with entry["attach"](model):
        return _run(model, inputs)


def _fresh(entry: Entry) -> tuple[Any, Any]:
    import torch

    torch.manual_seed(0)
    return entry["model"]().eval(), entry["inputs"]()


def _run(model: Any, inputs: Any) -> Any:
    import torch

    with torch.no_grad():
        return model(*inputs)


def _acts(subject: Subject, name: str) -> None:
    entry = subject.entry(name)
    model, inputs = _fresh(entry)
    plain = _run(model, inputs)
    with entry["attach"](model):
        assert not same(_run(model, inputs), plain), f"{name}: attached, it changes nothing"


def _restores(subject: Subject, name: str) -> None:
    """Weights, outputs and the tables of hooks are afterwards what they were."""
    entry = subject.entry(name)
    model, inputs = _fresh(entry)
    before, plain, hooks = _weights(model), _run(model, inputs), _hooks(model)
    with entry["attach"](model):
        _run(model, inputs)
    _expect_restored(name, model, inputs, before, plain, hooks)


def _restores_after_error(subject: Subject, name: str) -> None:
    """An exception inside the block leaves the model restored too."""
    entry = subject.entry(name)
    model, inputs = _fresh(entry)
    before, plain, hooks = _weights(model), _run(model, inputs), _hooks(model)
    try:
        with entry["attach"](model):
            raise KeyError("stopped half-way")
    except KeyError:
        pass
    _expect_restored(name, model, inputs, before, plain, hooks)


def _expect_restored(name: str, model: Any, inputs: Any, before: Any, plain: Any, hooks: Any) -> None:
    assert same(_weights(model), before), f"{name}: the weights differ afterwards"
    assert _hooks(model) == hooks, f"{name}: hooks stay behind"
    assert same(_run(model, inputs), plain), f"{name}: the outputs differ afterwards"


def _weights(model: Any) -> dict[str, Any]:
    return {key: value.clone() for key, value in model.state_dict().items()}


def _hooks(model: Any) -> dict[str, list[int]]:
    """How many hooks of each sort every submodule has, and whether its forward was replaced."""
    tables = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return {
        name: [*(len(getattr(part, table)) for table in tables), int("forward" in vars(part))]
        for name, part in model.named_modules()
    }


def _repeats(subject: Subject, name: str) -> None:
    assert same(exercise(subject, name), exercise(subject, name)), f"{name}: two uses differ"


CHECKS = {
    "acts": _acts, "restores": _restores, "restores after an error": _restores_after_error, "pure": _repeats,
}
