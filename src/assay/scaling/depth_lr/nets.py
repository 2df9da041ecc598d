"""The four architectures of the study, without biases, and their initial weights: many inits drawn at once.

Effective depths: `depth` for the plain nets; K + 2 for the residual ones with K blocks; 2K + 2 for the Transformer.
Variances: 2/fan-in (the Transformer's 1/fan-in), 1/fan-in for the read-out; branches x + B relu(A x) with Var A =
1/fan-in and Var B = 2 / (K fan-in), attention's projection 1 / (K fan-in).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from assay.errors import InputError

__all__ = ["ARCHITECTURES", "blocks_of", "build", "count_blocks", "draw", "multipliers"]

ARCHITECTURES = ("mlp", "cnn", "resnet", "resmlp", "transformer")
PIXELS, SIDE, CLASSES, SYMBOLS, CONTEXT, HEAD = 64, 8, 10, 128, 32, 16


class Net(nn.Module, ABC):
    """A module that knows the standard deviation of each of its weights."""

    stds: dict[str, float]

    def _settle(self) -> None:
        self.stds = {}
        for name, parameter in self.named_parameters():
            gain = self.gain(name)
            if parameter.ndim >= 2:
                fan_in = 1 if "embedding" in name else math.prod(parameter.shape[1:])
                self.stds[name] = math.sqrt(gain / fan_in)

    @abstractmethod
    def gain(self, name: str) -> float:
        """Variance times fan-in."""


class MLP(Net):
    """64 - n - ... - n - 10 with ReLU: `depth` layers."""

    def __init__(self, depth: int, width: int, head_gain: float = 1.0) -> None:
        super().__init__()
        self.head_gain = head_gain
        sizes = [PIXELS] + [width] * (depth - 1)
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairwise(sizes))
        self.head = nn.Linear(width, CLASSES, bias=False)
        self._settle()

    def gain(self, name: str) -> float:
        return self.head_gain if name.startswith("head") else 2.0

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.head(x)


class CNN(Net):
    """3 x 3 circular convolutions with ReLU at 8 x 8, mean over the positions, read-out: `depth` layers."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_conv(1 if i == 0 else width, width) for i in range(depth - 1))
        self.head = nn.Linear(width, CLASSES, bias=False)
        self._settle()

    def gain(self, name: str) -> float:
        return 1.0 if name.startswith("head") else 2.0

    def forward(self, x: Tensor) -> Tensor:
        x = x.unflatten(-1, (1, SIDE, SIDE))
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.head(x.mean(dim=(-2, -1)))


class Branch(nn.Module):
    """B relu(A x), with `layers` weights in all; `kind` is a linear layer or a convolution."""

    def __init__(self, kind: Any, width: int, layers: int) -> None:
        super().__init__()
        self.inner = nn.ModuleList(kind(width, width) for _ in range(layers - 1))
        self.last = kind(width, width)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.inner:
            x = F.relu(layer(x))
        return self.last(x)


class Residual(Net):
    """Stem, K blocks x + branch(x), read-out; of linear layers on pixels, or of convolutions at 8 x 8."""

    def __init__(
        self, blocks: int, width: int, convolutional: bool = False, layers: int = 2, head_gain: float = 1.0
    ) -> None:
        super().__init__()
        self.convolutional, self.layers, self.head_gain = convolutional, layers, head_gain
        kind = _conv if convolutional else _linear
        self.stem = kind(1 if convolutional else PIXELS, width)
        self.blocks = nn.ModuleList(Branch(kind, width, layers) for _ in range(blocks))
        self.head = nn.Linear(width, CLASSES, bias=False)
        self._settle()

    def gain(self, name: str) -> float:
        if name.startswith("head"):
            return self.head_gain
        if name.startswith("stem"):
            return 2.0
        if "last" in name:
            return (2.0 if self.layers > 1 else 1.0) / len(self.blocks)
        return 1.0 if "inner.0." in name else 2.0

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x.unflatten(-1, (1, SIDE, SIDE)) if self.convolutional else x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean(dim=(-2, -1)) if self.convolutional else x)


class TransformerBlock(nn.Module):
    """Pre-norm causal attention and ReLU feed-forward, each a residual addition."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // HEAD)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.project(self._attend(self.norm1(x)))
        return x + self.down(F.relu(self.up(self.norm2(x))))

    def _attend(self, x: Tensor) -> Tensor:
        time = x.shape[-2]
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).movedim(-3, 0).transpose(-3, -2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        future = torch.ones(time, time, dtype=torch.bool).triu(1)
        return (scores.masked_fill(future, -1e9).softmax(-1) @ v).transpose(-3, -2).flatten(-2)


class Transformer(Net):
    """Bytes below 128 in windows of 32: embedding and positions, K blocks, norm, read-out."""

    def __init__(self, blocks: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(TransformerBlock(width) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, SYMBOLS, bias=False)
        self._settle()

    def gain(self, name: str) -> float:
        if "project" in name or "down" in name:
            return (1.0 if "project" in name else 2.0) / len(self.blocks)
        return 1.0

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.positions(torch.arange(ids.shape[-1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def _conv(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, padding_mode="circular", bias=False)


def blocks_of(arch: str, depth: int) -> int:
    """Blocks of an architecture at an effective depth."""
    if arch in ("mlp", "cnn"):
        least, blocks = 2, depth - 2
    elif arch in ("resnet", "resmlp"):
        least, blocks = 3, depth - 2
    else:
        least, blocks = 4, (depth - 2) // 2
        if depth % 2:
            raise InputError(f"a Transformer of K blocks has effective depth 2 K + 2: depths must be even, got {depth}")
    if depth < least:
        raise InputError(f"{arch} has an effective depth of {least} or more, got {depth}")
    return blocks


def build(arch: str, depth: int, width: int, **options: Any) -> Net:
    """The net of an architecture at an effective depth; its weights are those that torch draws."""
    if arch not in ARCHITECTURES:
        raise InputError(f"the architecture must be one of {', '.join(ARCHITECTURES)}, got {arch!r}")
    blocks = blocks_of(arch, depth)
    if arch == "mlp":
        return MLP(depth, width, **options)
    if arch == "cnn":
        return CNN(depth, width)
    if arch == "transformer":
        return Transformer(blocks, width)
    return Residual(blocks, width, convolutional=arch == "resnet", **options)


def draw(net: Net, count: int, seed: int) -> dict[str, Tensor]:
    """Initial weights of `count` nets, stacked along a first axis; gains of norms are 1, biases 0."""
    generator = torch.Generator().manual_seed(seed)
    drawn = {}
    for name, parameter in net.named_parameters():
        if name in net.stds:
            drawn[name] = net.stds[name] * torch.randn((count, *parameter.shape), generator=generator)
        else:
            drawn[name] = parameter.detach().expand(count, *parameter.shape).clone()
    return drawn


def count_blocks(net: nn.Module) -> int:
    """Residual blocks of a net."""
    return len(net.blocks) if isinstance(net, Residual | Transformer) else 0


def multipliers(net: Net) -> Mapping[str, float]:
    """Depth-muP's factors on the rates: those that a branch multiplier 1/sqrt(K) makes at an unchanged rate.

    With x + K^-1/2 B' relu(A x) and B = K^-1/2 B' the function, and with it A's step, is the same, and a step of B' at
    rate eta moves B as a step at rate eta / K does.
    """
    return {name: 1.0 / count_blocks(net) for name in net.stds if name.startswith("blocks.") and "last" in name}
