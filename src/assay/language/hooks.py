"""Attention heads of a torch model: where the projections are, how heads share keys, and what flows through.

`attention_layers` finds the query, key, value and output projections by the shape of the modules, so that
no model library is imported here. `record_attention` runs a model and returns each head's q, k and v, before
or after the rotary positions; `replaced_head` exchanges one head's output while a model runs. Hooks are taken
off again whatever happens: the model is afterwards bit for bit what it was.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from assay.errors import InputError

__all__ = [
    "SUPPORTED", "AttentionLayer", "HeadStates", "attention_layers", "record_attention", "replaced_head",
]

SUPPORTED = (
    "BERT and its family (query, key, value), Llama and its family, SmolLM2, Mistral and Qwen2 among them "
    "(q_proj, k_proj, v_proj, o_proj), GPT-2 (c_attn), GPT-NeoX (query_key_value)"
)
ROTARY = ("before", "after")


@dataclass(frozen=True)
class AttentionLayer:
    """One self-attention module of a model, and how to read it.

    Attributes
    ----------
    index : int
        Position among the model's attention layers.
    name : str
        Name of the module within the model.
    family : {"bert", "llama", "gpt2", "gpt-neox"}
    module, q, k, v, o : torch.nn.Module
        The attention module and its projections; where one projection makes all three, q, k and v are the same.
    n_heads, n_kv_heads, head_dim : int
        Query heads, key-value heads, and the width of a head.
    scale : float
        What scores are multiplied by, 1 / sqrt(head_dim) in nearly all models.
    """

    index: int
    name: str
    family: str
    module: nn.Module
    q: nn.Module
    k: nn.Module
    v: nn.Module
    o: nn.Module
    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float

    def kv_head(self, head: int) -> int:
        """The key-value head that a query head reads."""
        return head // (self.n_heads // self.n_kv_heads)

    def split(self, which: str, projected: Tensor) -> Tensor:
        """A projection's output (..., width) as heads: (..., heads, head_dim); `which` is q, k or v."""
        part = "qkv".index(which)
        if self.family == "gpt2":
            projected = projected.chunk(3, dim=-1)[part]
        heads = self.n_heads if which == "q" else self.n_kv_heads
        if self.family == "gpt-neox":  # each head's q, k and v lie side by side
            return projected.unflatten(-1, (heads, 3 * self.head_dim)).chunk(3, dim=-1)[part]
        return projected.unflatten(-1, (heads, self.head_dim))


@dataclass(frozen=True)
class HeadStates:
    """What one layer's heads saw, all texts joined: padding is left out.

    Attributes
    ----------
    q : Tensor of shape (tokens, query heads, head_dim)
    k, v : Tensor of shape (tokens, key-value heads, head_dim)
    text, position : Tensor of shape (tokens,)
        Which text a token is of, and where in it it stands (0 the first).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    text: Tensor
    position: Tensor


def attention_layers(model: nn.Module) -> list[AttentionLayer]:
    """The self-attention layers of a model, in the order of its modules.

    Parameters
    ----------
    model : torch.nn.Module
        As `transformers` builds it, or of the same shape.

    Returns
    -------
    list of AttentionLayer

    Raises
    ------
    TypeError
        The model has no projections that can be read; the message names the supported classes.

    Examples
    --------
    >>> attention_layers(torch.nn.Linear(2, 2))
    Traceback (most recent call last):
    TypeError: Linear has no attention projections that can be read; supported are BERT and its family ...
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"a torch.nn.Module is needed, got {type(model).__name__}; supported are {SUPPORTED}")
    modules = dict(model.named_modules())
    found: list[AttentionLayer] = []
    for name, module in modules.items():
        for finder in (_bert, _llama, _gpt2, _neox):
            if parts := finder(name, module, modules):
                found.append(AttentionLayer(len(found), name, module=module, **parts))
                break
    if not found:
        raise TypeError(
            f"{type(model).__name__} has no attention projections that can be read; supported are {SUPPORTED}"
        )
    return found


def record_attention(
    model: nn.Module, batches: Iterable[Mapping[str, Tensor]], *, layers: Sequence[int] | None = None,
    rotary: str = "before",
) -> dict[int, HeadStates]:
    """Run a model over batches and return what its heads saw.

    Parameters
    ----------
    model : torch.nn.Module
        Run in evaluation mode and without gradients, and left as it was.
    batches : iterable of mapping
        What the model is called with: `input_ids`, and `attention_mask` where a batch is padded.
    layers : sequence of int, optional
        Indices into `attention_layers(model)`; all by default.
    rotary : {"before", "after"}
        Queries and keys before any rotary position is applied (what makes keys exchangeable), or after it.
        Without rotary positions both are the same.

    Returns
    -------
    dict of int to HeadStates

    Raises
    ------
    TypeError
        As `attention_layers`.
    InputError
        A layer that the model has not, another `rotary`, or no batch.
    """
    if rotary not in ROTARY:
        raise InputError(f"rotary must be one of {', '.join(ROTARY)}, got {rotary!r}")
    chosen = _chosen(attention_layers(model), layers)
    kept: dict[int, list[dict[str, Tensor]]] = {layer.index: [] for layer in chosen}
    places: list[tuple[Tensor, Tensor]] = []
    first = 0
    with ExitStack() as stack, torch.no_grad():
        stack.enter_context(_evaluation(model))
        seen: dict[int, dict[str, Any]] = {layer.index: {} for layer in chosen}
        for layer in chosen:
            _watch(stack, layer, seen[layer.index])
        for batch in batches:
            model(**batch)
            mask = _mask(batch)
            places.append(_places(mask, first))
            first += len(mask)
            for layer in chosen:
                states = _states(layer, seen[layer.index], rotary)
                kept[layer.index].append({which: value[mask] for which, value in states.items()})
                seen[layer.index].clear()
    if not places:
        raise InputError("there is no batch to run the model on")
    text, position = (torch.cat(parts) for parts in zip(*places, strict=True))
    return {
        # Popped one by one: the batches of all layers and their joins need not be in memory together.
        index: HeadStates(*_joined(kept.pop(index)), text, position)
        for index in list(kept)
    }


@contextmanager
def replaced_head(
    model: nn.Module, layer: int, head: int, output: Callable[[Tensor], Tensor]
) -> Iterator[None]:
    """While the block runs, a query head's output is what `output` makes of its queries.

    Parameters
    ----------
    model : torch.nn.Module
    layer, head : int
        Index into `attention_layers(model)`, and a query head of it.
    output : callable
        Queries before any rotary position (..., head_dim) to what takes the place of the head's weighted mean of
        values (..., head_dim).

    Raises
    ------
    TypeError
        As `attention_layers`.
    InputError
        A layer or head that the model has not.
    """
    (found,) = _chosen(attention_layers(model), [layer])
    if not _is_index(head, found.n_heads):
        raise InputError(f"head must be 0 to {found.n_heads - 1}, got {head!r}")
    queries: list[Tensor] = []
    low, high = head * found.head_dim, (head + 1) * found.head_dim

    def keep(module: nn.Module, arguments: Any, projected: Tensor) -> None:
        queries[:] = [found.split("q", projected)[..., head, :]]

    def exchange(module: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        mixed = arguments[0].clone()
        mixed[..., low:high] = output(queries[0]).to(mixed.dtype)
        return (mixed, *arguments[1:])

    handles = [found.q.register_forward_hook(keep), found.o.register_forward_pre_hook(exchange)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _chosen(found: list[AttentionLayer], layers: Sequence[int] | None) -> list[AttentionLayer]:
    if layers is None:
        return found
    for index in layers:
        if not _is_index(index, len(found)):
            raise InputError(f"layer must be 0 to {len(found) - 1}, got {index!r}")
    return [found[index] for index in layers]


def _is_index(value: Any, count: int) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool) and 0 <= value < count


@contextmanager
def _evaluation(model: nn.Module) -> Iterator[None]:
    """Every module in evaluation mode, and afterwards in the mode that it had."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in training.items():
            module.training = mode


def _watch(stack: ExitStack, layer: AttentionLayer, seen: dict[str, Any]) -> None:
    """Hooks that put the projections' outputs and the rotary factors into `seen`."""

    def keeper(which: str) -> Callable[..., None]:
        def keep(module: nn.Module, arguments: Any, projected: Tensor) -> None:
            seen[which] = layer.split(which, projected).detach()

        return keep

    def keep_rotation(module: nn.Module, arguments: Any, named: dict[str, Any]) -> None:
        bound = inspect.signature(module.forward).bind_partial(*arguments, **named).arguments
        seen["rotation"] = bound.get("position_embeddings", named.get("position_embeddings"))

    for which in "qkv":
        stack.callback(getattr(layer, which).register_forward_hook(keeper(which)).remove)
    stack.callback(layer.module.register_forward_pre_hook(keep_rotation, with_kwargs=True).remove)


def _states(layer: AttentionLayer, seen: dict[str, Any], rotary: str) -> dict[str, Tensor]:
    q, k, v = seen["q"], seen["k"], seen["v"]
    if rotary == "after" and seen["rotation"] is not None:
        # The model's own function: some families turn only a part of a head.
        rotate = sys.modules[type(layer.module).__module__].apply_rotary_pos_emb
        turned = rotate(q.transpose(1, 2), k.transpose(1, 2), *seen["rotation"])
        q, k = (each.transpose(1, 2) for each in turned)
    return {"q": q, "k": k, "v": v}


def _joined(parts: list[dict[str, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (torch.cat([part[which] for part in parts]) for which in "qkv")
    return q, k, v


def _mask(batch: Mapping[str, Tensor]) -> Tensor:
    """True where a token is no padding: (texts, length)."""
    if (mask := batch.get("attention_mask")) is not None:
        return mask.bool()
    given = next(value for name in ("input_ids", "inputs_embeds") if (value := batch.get(name)) is not None)
    return torch.ones(given.shape[:2], dtype=torch.bool)


def _places(mask: Tensor, first: int) -> tuple[Tensor, Tensor]:
    text = torch.arange(first, first + len(mask))[:, None].expand(mask.shape)
    return text[mask], (mask.cumsum(1) - 1)[mask]


Parts = dict[str, Any]


def _bert(name: str, module: Any, modules: Mapping[str, nn.Module]) -> Parts | None:
    if not _linear(module, "query", "key", "value") or not hasattr(module, "num_attention_heads"):
        return None
    output = modules.get(f"{name.rpartition('.')[0]}.output.dense".lstrip("."))
    if output is None:
        return None
    heads = int(module.num_attention_heads)
    return _parts("bert", module, module.query, module.key, module.value, output, heads, heads)


def _llama(name: str, module: Any, modules: Mapping[str, nn.Module]) -> Parts | None:
    # A norm between projection and scores would make what is recorded here another thing than what is compared.
    if not _linear(module, "q_proj", "k_proj", "v_proj", "o_proj") or hasattr(module, "q_norm"):
        return None
    width = getattr(module, "head_dim", None)
    if width is None:
        return None
    heads, kv_heads = module.q_proj.out_features // width, module.k_proj.out_features // width
    return _parts("llama", module, module.q_proj, module.k_proj, module.v_proj, module.o_proj, heads, kv_heads)


def _gpt2(name: str, module: Any, modules: Mapping[str, nn.Module]) -> Parts | None:
    if not all(isinstance(getattr(module, part, None), nn.Module) for part in ("c_attn", "c_proj")):
        return None
    if not hasattr(module, "num_heads") or getattr(module, "is_cross_attention", False):
        return None
    fused, heads = module.c_attn, int(module.num_heads)
    return _parts("gpt2", module, fused, fused, fused, module.c_proj, heads, heads)


def _neox(name: str, module: Any, modules: Mapping[str, nn.Module]) -> Parts | None:
    if not _linear(module, "query_key_value", "dense") or not hasattr(module, "head_size"):
        return None
    fused = module.query_key_value
    heads = fused.out_features // (3 * int(module.head_size))
    return _parts("gpt-neox", module, fused, fused, fused, module.dense, heads, heads)


def _linear(module: Any, *names: str) -> bool:
    return all(isinstance(getattr(module, name, None), nn.Linear) for name in names)


def _parts(
    family: str, module: Any, q: nn.Module, k: nn.Module, v: nn.Module, o: nn.Module, n_heads: int, n_kv_heads: int
) -> Parts:
    width = next(
        int(size) for name in ("head_dim", "head_size", "attention_head_size")
        if (size := getattr(module, name, None)) is not None
    )
    scale = float(getattr(module, "scaling", width**-0.5))
    return {
        "family": family, "q": q, "k": k, "v": v, "o": o, "n_heads": n_heads, "n_kv_heads": n_kv_heads,
        "head_dim": width, "scale": scale,
    }
