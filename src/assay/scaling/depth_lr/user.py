"""A user's own network: `MODULE:BUILD` from the current folder, with optional hooks for the batch and the loss.

    def build(depth, seed): ...        # a torch.nn.Module; `build(depth)` does too, torch's seed is then set before
    def batch(): ...                   # what the model takes; or a tuple (inputs, targets)
    def batch(step): ...               # the same, another one for each training step
    def loss(model, batch): ...        # a scalar

Without `batch` a batch of random normal inputs is made for the module's first layer. Without `loss` the rate is
measured with fixed random residuals; training takes the cross-entropy of a batch (inputs, integer targets), or the mean
square of one with float targets.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from assay.errors import InputError, nearest
from assay.scaling.depth_lr.counting import call, check_module, first_tensor, guesses, one_line, trace, unwrapped
from assay.scaling.depth_lr.energy import Loss

__all__ = ["UserNet", "load_user_net"]


class UserNet:
    """The hooks of a user's module, each called with care: an exception of theirs becomes one line."""

    def __init__(
        self, name: str, build: Callable[..., Any], batch: Callable[..., Any] | None, loss: Loss | None
    ) -> None:
        self.name = name
        self.takes_seed = _takes(build, 2, f"{name}(depth, seed)")
        self._build = build
        self._batch = batch
        self.loss = loss
        self.takes_step = batch is not None and _takes(batch, 1, "batch(step)", least=0)

    def model(self, depth: int, seed: int) -> nn.Module:
        """The module at a depth, drawn with a seed."""
        where = f"{self.name}({depth}{f', {seed}' if self.takes_seed else ''})"
        arguments = (depth, seed) if self.takes_seed else (depth,)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = _guarded(where, lambda: self._build(*arguments))
        if not isinstance(model, nn.Module):
            raise InputError(f"{where} must give a torch module, got {type(model).__name__}")
        model = unwrapped(model)
        try:
            check_module(model)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        if any(tensor.device.type != "cpu" for tensor in (*model.parameters(), *model.buffers())):
            raise InputError(f"{where} puts its parameters on a GPU; build it on the CPU, where it is measured")
        return model

    def models(self, depth: int, count: int) -> list[nn.Module]:
        """The module drawn with seeds 0, 1, ...; all of one shape."""
        found = [self.model(depth, seed) for seed in range(count)]
        shapes = [{name: tuple(p.shape) for name, p in model.named_parameters()} for model in found]
        for seed, shape in enumerate(shapes):
            if shape != shapes[0]:
                raise InputError(f"{self.name} at depth {depth} has other parameters with seed {seed} than with seed 0")
        if count > 1 and all(
            torch.equal(a, b) for a, b in zip(found[0].parameters(), found[1].parameters(), strict=True)
        ):
            raise InputError(f"{self.name} at depth {depth} draws the same weights with seeds 0 and 1: use the seed")
        return found

    def batch(self, model: nn.Module, step: int = 0) -> Any:
        """The batch of a step; without the hook random inputs that the model runs on."""
        if self._batch is not None:
            hook = self._batch
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(step)
                return _guarded(
                    f"batch({step if self.takes_step else ''})", lambda: hook(*((step,) if self.takes_step else ()))
                )
        return self._guessed(model)

    def training_loss(self, batch: Any) -> Loss:
        """The user's loss, or the usual one for a batch of inputs and targets."""
        if self.loss is not None:
            return self.loss
        if not (isinstance(batch, tuple | list) and len(batch) == 2 and isinstance(batch[1], Tensor)):
            raise InputError("training needs a loss(model, batch), or a batch() that gives a tuple (inputs, targets)")
        return _cross_entropy if not batch[1].is_floating_point() else _square

    def _guessed(self, model: nn.Module) -> Tensor:
        for guess in guesses(model):
            try:
                trace(model, guess)
            except InputError:
                continue
            generator = torch.Generator().manual_seed(0)
            shape = (16, *guess.shape[1:])
            if guess.is_floating_point():
                return torch.randn(shape, generator=generator, dtype=guess.dtype)
            most = next(m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding))
            return torch.randint(most, shape, generator=generator)
        # The reason in the tracer's words, for the first guess.
        trace(model)
        raise InputError(f"no input can be guessed for {type(model).__name__}: give a batch() beside {self.name}")


def load_user_net(where: str, folder: Path) -> UserNet:
    """Import `MODULE:BUILD` from the folder, or from what is installed; hooks `batch` and `loss` beside it.

    Raises `InputError` with one line where the module or the name is missing, or the module raises on import.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", where):
        raise InputError(f"--model must read module:function, as my_module:build, got {where}")
    name, _, attribute = where.partition(":")
    module = _imported(name, folder)
    build = getattr(module, attribute, None)
    if build is None:
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise InputError(f"--model: the module {name} has no {attribute}{nearest(attribute, known)}")
    hooks = {}
    for hook in (attribute, "batch", "loss"):
        value = getattr(module, hook, None)
        if value is not None and not callable(value):
            raise InputError(f"--model: {name}.{hook} must be a function, got {type(value).__name__}")
        hooks[hook] = value
    if isinstance(build, nn.Module):
        raise InputError(f"--model: {where} is a module, not a function that builds one at a depth")
    return UserNet(attribute, build, hooks["batch"], hooks["loss"])


def _imported(name: str, folder: Path) -> ModuleType:
    top = name.partition(".")[0]
    held = sys.modules.get(top)
    file = getattr(held, "__file__", None)
    in_folder = (folder / f"{top}.py").exists() or (folder / top).is_dir()
    if in_folder and (file is None or not Path(file).resolve().is_relative_to(folder.resolve())):
        # A module of that name from elsewhere would answer in its place.
        for key in [key for key in sys.modules if key == top or key.startswith(f"{top}.")]:
            del sys.modules[key]
    with _on_path(folder):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and (name == error.name or name.startswith(f"{error.name}.")):
                raise InputError(f"--model: there is no module {name} in {folder} or installed") from None
            raise InputError(f"--model: {name} wants {error.name}, which is not installed") from error
        except (Exception, SystemExit) as error:
            raise InputError(f"--model: importing {name} raised {one_line(error)}") from error


@contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    kept = sys.dont_write_bytecode
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True  # nothing of ours is left in a user's folder
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.dont_write_bytecode = kept


def _takes(function: Callable[..., Any], most: int, wanted: str, least: int = 1) -> bool:
    """Whether a function takes `most` arguments by position; refused where fewer, or where it needs more."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    placed = [p for p in parameters if p.kind in kinds]
    rest = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    needed = sum(p.default is inspect.Parameter.empty for p in placed)
    keyword = any(p.kind is inspect.Parameter.KEYWORD_ONLY and p.default is inspect.Parameter.empty for p in parameters)
    if needed > most or keyword or (len(placed) < least and not rest):
        raise InputError(
            f"{wanted} is expected, got {getattr(function, '__name__', 'a function')}{inspect.signature(function)}"
        )
    # A second argument that is not called for a seed (build(depth, width=64)) keeps its default.
    return rest or (
        len(placed) >= most
        and (placed[most - 1].default is inspect.Parameter.empty or placed[most - 1].name in ("seed", "step"))
    )


def _guarded(what: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except InputError as error:
        raise InputError(f"{what}: {error}") from None
    except (Exception, SystemExit) as error:
        raise InputError(f"{what} raised {one_line(error)}") from error


def _cross_entropy(model: nn.Module, batch: Sequence[Any]) -> Tensor:
    return F.cross_entropy(first_tensor(call(model, batch[0])).flatten(0, -2), batch[1].flatten())


def _square(model: nn.Module, batch: Sequence[Any]) -> Tensor:
    return F.mse_loss(first_tensor(call(model, batch[0])), batch[1])
