"""Effective depth: the sequential units that an update must pass on the shortest way from input to output.

A unit is a layer with a weight matrix (linear, convolution, embedding, a product with a parameter) or a residual
addition; norms, activations, pooling, biases and dropout count nothing. The shortest way through a residual block is
its identity, so that a block counts as one addition whatever its branch holds (arXiv 2602.07494; for Transformers
reconstructed: attention and feed-forward are two additions a block). Attention proper has no weights of its own.

The model is run once on an example, and a note travels with each tensor: the units passed on the shortest way, the
weight layers on the longest, the weights upstream. That follows any Python control flow. Modules in
torch.compile or DataParallel are looked into; it can't see into scripted ones, nor through NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from assay.errors import InputError

__all__ = [
    "Diverged",
    "Trace",
    "Tracer",
    "Unit",
    "Untraceable",
    "call",
    "check_module",
    "effective_depth",
    "first_tensor",
    "guesses",
    "one_line",
    "refuse_scripted",
    "shape_of",
    "trace",
    "unwrapped",
]

LAYERS = {
    "linear",
    "bilinear",
    "embedding",
    "embedding_bag",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "matmul",
    "__matmul__",
    "__rmatmul__",
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "einsum",
    "tensordot",
    "multi_head_attention_forward",
}
LAYERS_INSIDE = {"multi_head_attention_forward": 2}  # projections in and out; of queries, keys, values side by side
ADDITIONS = {
    "add",
    "add_",
    "__add__",
    "__radd__",
    "__iadd__",
    "sub",
    "sub_",
    "__sub__",
    "__rsub__",
    "__isub__",
    "rsub",
}
RECTIFIERS = {"relu", "relu_", "leaky_relu", "leaky_relu_", "gelu", "silu", "elu", "elu_", "relu6", "mish", "selu"}
KEEP_RECTIFIED = {
    "dropout",
    "dropout1d",
    "dropout2d",
    "flatten",
    "reshape",
    "view",
    "transpose",
    "permute",
    "contiguous",
    "pad",
    "max_pool1d",
    "max_pool2d",
    "avg_pool1d",
    "avg_pool2d",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "mean",
    "clone",
    "squeeze",
    "unsqueeze",
    "__getitem__",
    "to",
    "movedim",
    "swapaxes",
}
SIZES = (32, 28, 8, 64, 224)  # pictures and sequences that are tried where no example is given
HINT = "pass example_input, or count the depth yourself"


class Untraceable(InputError, TypeError):
    """The way from the model's input to its output can't be followed."""


class Diverged(InputError, RuntimeError):
    """A number that is not finite came out of a model."""


@dataclass(frozen=True)
class Note:
    """What a tensor carries: units on the shortest way to it, weight layers on the longest, weights upstream."""

    path: tuple[int, ...] = ()
    layers: int = 0
    weights: frozenset[str] = frozenset()
    rectified: bool = False


@dataclass
class Unit:
    """A weight layer or a residual addition; `branch` names the weights of a residual addition's branch, in order."""

    kind: str
    name: str
    weights: tuple[str, ...] = ()
    branch: tuple[str, ...] = ()
    output: Tensor | None = None


@dataclass
class Use:
    """How a weight is used: by which operation, on how many inputs a unit, and on what."""

    op: str
    unit: int
    first: bool
    rectified: bool
    fan_in: float


@dataclass
class Trace:
    """What one run of a model showed."""

    units: list[Unit]
    path: tuple[int, ...]
    layers: int
    uses: dict[str, list[Use]]
    output: Any = None

    @property
    def sequential(self) -> list[Unit]:
        """The units on the shortest way, in order; the last is the read-out."""
        return [self.units[index] for index in self.path]

    @property
    def additions(self) -> list[Unit]:
        """All residual additions."""
        return [unit for unit in self.units if unit.kind == "addition"]

    @property
    def readout(self) -> tuple[str, ...]:
        """Weights of the last unit, where it is a layer."""
        last = self.sequential[-1]
        return last.weights if last.kind == "layer" else ()


def effective_depth(
    model: nn.Module, example_input: Tensor | tuple | Mapping[str, Any] | None = None, count: str = "path"
) -> int:
    """Effective depth of a torch module (arXiv 2602.07494; for Transformers reconstructed).

    Parameters
    ----------
    model : torch.nn.Module
        Any module without recurrence. It is run once without gradients and left as it was.
    example_input : tensor, tuple of arguments or dict of named arguments, optional
        A small batch. Where it is missing one is guessed from the first layer, which does for plain stacks.
    count : {"path", "layers"}
        `path`: layers and residual additions on the shortest way; an MLP or plain CNN of d layers has d, a ResNet of K
        blocks K + 2 with stem and head, a Transformer of K blocks 2K + 2. `layers`: weight layers on the longest way,
        what is usually called depth.

    Returns
    -------
    int

    Raises
    ------
    InputError
        Recurrent modules, parameters that layers share, no layer with weights.
    Untraceable
        An InputError and a TypeError: scripted modules, an output that does not come from the input.

    Examples
    --------
    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> effective_depth(net)
    3
    >>> layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    >>> effective_depth(nn.TransformerEncoder(layer, 3), torch.zeros(1, 4, 16))
    6
    """
    if count not in ("path", "layers"):
        raise InputError(f"count must be path or layers, got {count!r}")
    found = trace(model, example_input)
    return len(found.path) if count == "path" else found.layers


def trace(model: nn.Module, example_input: Any = None) -> Trace:
    """Run the model once on the example, or on a guessed one, and say what it is made of."""
    model = unwrapped(model)
    check_module(model)
    refuse_scripted(model)
    if example_input is not None:
        return _trace(model, example_input)
    if not any(True for _ in guesses(model)):
        raise Untraceable(f"no example can be guessed for {type(model).__name__}: {HINT}")
    first: Exception | None = None
    for guess in guesses(model):
        try:
            return _trace(model, guess)
        except Untraceable as error:
            first = first or error
    raise Untraceable(f"{type(model).__name__}, on a guessed example: {first}") from first


def unwrapped(model: Any) -> Any:
    """The module inside DataParallel, DistributedDataParallel and torch.compile, whose parameters are the same."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(model, nn.Module) and isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def refuse_scripted(model: nn.Module) -> None:
    """Scripted modules run out of Python's sight."""
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise Untraceable(f"{name or 'the model'} is scripted, and can't be followed: count the depth yourself")


def check_module(model: Any) -> None:
    """Refuse what has no layers in sequence: no module, no parameters, recurrence."""
    if not isinstance(model, nn.Module):
        raise InputError(f"a torch module is expected, got {type(model).__name__}")
    for name, module in model.named_modules():
        if isinstance(module, nn.RNNBase | nn.RNNCellBase):
            raise InputError(f"non-recurrent only: {name or 'the model'} is a {type(module).__name__}")
    parameters = list(model.named_parameters())
    if not parameters:
        raise InputError(f"{type(model).__name__} has no parameters: nothing to update")
    if isinstance(parameters[0][1], nn.parameter.UninitializedParameter):
        raise InputError(f"{parameters[0][0]} has no shape yet: run a lazy module once before it is measured")


def call(model: Any, inputs: Any) -> Any:
    """Call with a tensor, a tuple of arguments or a dictionary of named arguments."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def first_tensor(value: Any) -> Tensor:
    """The first tensor of floating point numbers in what a model returned."""
    for tensor in _tensors(value):
        if tensor.is_floating_point():
            return tensor
    raise InputError(f"the model must return a tensor of floating point numbers, got {type(value).__name__}")


class Tracer(TorchFunctionMode):
    """Follow the first call of `model` made while this is active; `trace()` then says what was seen.

    Parameters
    ----------
    model : torch.nn.Module
    keep : bool
        Keep the units' outputs.
    """

    def __init__(self, model: nn.Module, keep: bool = False) -> None:
        super().__init__()
        self.model = model
        self.keep = keep
        self.following = self.done = False
        self.notes: dict[int, Note] = {}
        self.weights: dict[int, frozenset[str]] = {}
        self.order: dict[str, int] = {}
        self.shapes: dict[str, torch.Size] = {}
        self.held: list[Tensor] = []  # an id stays a tensor's own only as long as the tensor lives
        self.units: list[Unit] = []
        self.uses: dict[str, list[Use]] = {}
        self.output: Any = None

    def __enter__(self) -> Tracer:
        self._hooks = [
            self.model.register_forward_pre_hook(self._begin, with_kwargs=True),
            self.model.register_forward_hook(self._end),
        ]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        super().__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.following:
            self._follow(getattr(func, "__name__", ""), (args, kwargs), out)
        return out

    def trace(self) -> Trace:
        """What was seen, once the model was called."""
        ends = [self.notes[id(tensor)] for tensor in _tensors(self.output) if id(tensor) in self.notes]
        ends = [note for note in ends if note.path]
        if not ends:
            if not self.units:
                raise Untraceable(
                    f"no layer with weights was seen between input and output of {type(self.model).__name__} "
                    f"(compiled, or none there?): {HINT}"
                )
            raise Untraceable(f"the output of {type(self.model).__name__} does not come from its input: {HINT}")
        self._refuse_shared()
        return Trace(self.units, ends[0].path, ends[0].layers, self.uses, self.output)

    def _begin(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self.done or self.following:
            return
        self.following = True
        for name, parameter in module.named_parameters(remove_duplicate=False):
            self.order.setdefault(name, len(self.order))
            self.shapes[name] = parameter.shape
            if id(parameter) not in self.weights:
                self.weights[id(parameter)] = frozenset([name])
                self.held.append(parameter)
        for tensor in _tensors((args, kwargs)):
            self._note(tensor, Note())

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.following and not self.done:
            self.following, self.done, self.output = False, True, output

    def _note(self, tensor: Tensor, note: Note) -> None:
        self.notes[id(tensor)] = note
        self.held.append(tensor)

    def _follow(self, op: str, given: Any, out: Any) -> None:
        tensors = list(_tensors(given))
        seen = {id(tensor): self.notes[id(tensor)] for tensor in tensors if id(tensor) in self.notes}
        names = [self.weights[id(tensor)] for tensor in tensors if id(tensor) in self.weights]
        results = list(_tensors(out))
        if not seen:
            # What is made of weights alone (transposed, normalised, looked up by constants) stands for them.
            if names and results:
                for tensor in results:
                    self.weights[id(tensor)] = frozenset().union(*names)
                    self.held.append(tensor)
            return
        notes = list(seen.values())
        matrices = [self.weights[id(tensor)] for tensor in tensors if id(tensor) in self.weights and tensor.ndim >= 2]
        if op in LAYERS and matrices:
            inputs = next(tensor for tensor in tensors if id(tensor) in seen)
            note = self._layer(op, notes, frozenset().union(*matrices), inputs, results)
        elif op in ADDITIONS and len(notes) == 2 and notes[0].weights != notes[1].weights:
            note = self._addition(notes, results)
        else:
            note = _joined(notes, op)
        for tensor in results:
            # A mask made of ids or of comparisons is no way for activations.
            whole = tensor.is_floating_point() and not any(t.is_floating_point() for t in tensors if id(t) in seen)
            if tensor.dtype != torch.bool and not (whole and op not in LAYERS):
                self._note(tensor, note)

    def _layer(self, op: str, notes: list[Note], names: frozenset[str], inputs: Tensor, results: list[Tensor]) -> Note:
        before = _joined(notes, op)
        ordered = tuple(sorted(names, key=self.order.__getitem__))
        unit = self._unit("layer", ordered[0].removesuffix(".weight"), results, weights=ordered)
        for name in names:
            fan_in = _fan_in(op, inputs, self.shapes[name])
            use = Use(op, unit, not before.weights, any(note.rectified for note in notes), fan_in)
            self.uses.setdefault(name, []).append(use)
        return Note((*before.path, unit), before.layers + LAYERS_INSIDE.get(op, 1), before.weights | names)

    def _addition(self, notes: list[Note], results: list[Tensor]) -> Note:
        short, long = sorted(notes, key=lambda note: (len(note.path), len(note.weights)))
        branch = tuple(sorted(long.weights - short.weights, key=self.order.__getitem__))
        last = branch[-1].removesuffix(".weight") if branch else "its input"
        unit = self._unit("addition", f"the addition after {last}", results, branch=branch)
        return Note((*short.path, unit), max(n.layers for n in notes), short.weights | long.weights)

    def _unit(self, kind: str, name: str, results: list[Tensor], **named: Any) -> int:
        # A copy, for an activation in place would change what is kept.
        output = results[0].clone() if self.keep else None
        self.units.append(Unit(kind, name, output=output, **named))
        return len(self.units) - 1

    def _refuse_shared(self) -> None:
        for name, uses in self.uses.items():
            ops = [use.op for use in uses]
            tied = len(ops) == 2 and ops.count("embedding") == 1
            if len(ops) > 1 and not tied:
                raise InputError(
                    f"non-recurrent only: {name} is used {len(ops)} times in one pass, and layers must not share "
                    "parameters (an embedding tied to the read-out may)"
                )


def _fan_in(op: str, inputs: Tensor, shape: torch.Size) -> float:
    """Inputs of one unit of a layer."""
    if op.startswith("embedding"):
        return 1.0
    if op.startswith("conv_transpose"):
        return float(shape[0] * math.prod(shape[2:]))
    return float(math.prod(shape[1:]) if op.startswith("conv") else inputs.shape[-1])


def _joined(notes: list[Note], op: str) -> Note:
    shortest = min(notes, key=lambda note: len(note.path))
    rectified = op in RECTIFIERS or (op in KEEP_RECTIFIED and any(note.rectified for note in notes))
    upstream = shortest.weights.union(*(note.weights for note in notes))
    return Note(shortest.path, max(note.layers for note in notes), upstream, rectified)


def _trace(model: nn.Module, example: Any) -> Trace:
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    tracer = Tracer(model)
    arguments = (
        ((), dict(example))
        if isinstance(example, Mapping)
        else (example if isinstance(example, tuple) else (example,), {})
    )
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), tracer:
            functional_call(model, buffers, *arguments)
    except InputError:
        raise
    except Exception as error:
        raise Untraceable(
            f"{type(model).__name__} does not run on an input of shape {shape_of(example)}: {one_line(error)}"
        ) from error
    return tracer.trace()


def one_line(error: BaseException) -> str:
    """The class and first line of an exception."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    hint = "; measured on the CPU: build the model without a GPU" if "cuda" in str(error).lower() else ""
    return f"{type(error).__name__}{': ' + lines[0][:160] if lines else ''}{hint}"


def shape_of(example: Any) -> str:
    """Shapes of the tensors in an example, in words."""
    return ", ".join(str(tuple(tensor.shape)) for tensor in _tensors(example)) or type(example).__name__


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from _tensors(getattr(value, name))


def guesses(model: nn.Module) -> Iterator[Tensor]:
    """Inputs that the first layer of the module could take."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            yield torch.zeros(2, module.in_features, dtype=module.weight.dtype)
            yield torch.zeros(2, 3, module.in_features, dtype=module.weight.dtype)
        elif isinstance(module, nn.Embedding):
            yield torch.zeros(2, 3, dtype=torch.long)
        elif isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            ways = len(module.kernel_size)
            for size in SIZES[: len(SIZES) if ways < 3 else 2]:
                yield torch.zeros(2, module.in_channels, *[size] * ways, dtype=module.weight.dtype)
        elif isinstance(module, nn.MultiheadAttention):
            yield torch.zeros(2, 3, module.embed_dim)
        else:
            continue
        return
