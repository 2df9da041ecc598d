"""A small byte-level decoder and its training loop.

`TinyCausal` is the architecture of today's large decoders at a size that a laptop trains in
minutes: RMSNorm before each block, rotary positions, SwiGLU, no biases, the head tied to the
embedding. `train` runs AdamW with warm-up and cosine decay on random windows of a byte stream and
measures the loss on fixed held-out windows. The scaling methods fit their laws to such runs.

`N`, the size that the laws use, counts the blocks only: neither the embedding nor the last norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from assay.errors import InputError

__all__ = ["PRESETS", "TinyCausal", "TinyConfig", "TrainConfig", "heldout_loss", "sample_bytes", "train"]


@dataclass(frozen=True)
class TinyConfig:
    """Shape of a `TinyCausal`: width in units, context in tokens.

    `heads` is chosen from the width when left at 0, so that a head has between 24 and 48 units.
    """

    width: int = 128
    layers: int = 2
    heads: int = 0
    context: int = 128
    vocab: int = 256

    def __post_init__(self) -> None:
        if self.heads == 0:
            fitting = (h for h in range(1, self.width) if self.width % (2 * h) == 0 and self.width // h <= 48)
            object.__setattr__(self, "heads", next(fitting, 1))
        if self.width % (2 * self.heads):
            raise InputError(f"width {self.width} is not an even multiple of {self.heads} heads (rotary positions)")

    @property
    def hidden(self) -> int:
        """Units of the SwiGLU layer: 8/3 of the width, rounded down to a multiple of four."""
        return 8 * self.width // 3 // 4 * 4

    @property
    def n_params(self) -> int:
        """N: parameters of the blocks."""
        return self.layers * (4 * self.width**2 + 3 * self.width * self.hidden + 2 * self.width)


PRESETS = {
    "0.4M": TinyConfig(width=128, layers=2),
    "1.6M": TinyConfig(width=192, layers=4),
    "5M": TinyConfig(width=256, layers=6),
}


class TinyCausal(nn.Module):
    """Decoder-only language model over bytes.

    Parameters
    ----------
    config : TinyConfig
    seed : int
        Seed of the initial weights: N(0, 1/fan-in), projections back into the residual stream divided
        by sqrt(2 * layers), embedding N(0, 0.3²/width) up to width 64 and N(0, 0.02²) above, which
        puts the first loss near ln 256.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, config: TinyConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=1e-6)
        cos, sin = _rotary_table(config.context, config.width // config.heads)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._initialise(torch.Generator().manual_seed(seed))

    @classmethod
    def from_config(cls, config: TinyConfig | dict, seed: int = 0) -> TinyCausal:
        """Build from a `TinyConfig` or from the dictionary that `asdict` makes of one."""
        return cls(config if isinstance(config, TinyConfig) else TinyConfig(**config), seed)

    def to_config(self) -> dict:
        return asdict(self.config)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (batch, time, vocab) for byte ids (batch, time), time up to the context."""
        time = ids.shape[1]
        if time > self.config.context:
            raise InputError(f"{time} tokens do not fit a context of {self.config.context}")
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, self.cos[:time], self.sin[:time])
        return F.linear(self.norm(x), self.embedding.weight)

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator) -> None:
        width, layers = self.config.width, self.config.layers
        std = 0.3 / math.sqrt(width) if width <= 64 else 0.02
        self.embedding.weight.normal_(0, std, generator=generator)
        for block in self.blocks:
            assert isinstance(block, Block)
            for linear in (block.qkv, block.gate_up, block.out, block.down):
                scale = 1 / math.sqrt(linear.in_features)
                if linear is block.out or linear is block.down:
                    scale /= math.sqrt(2 * layers)
                linear.weight.normal_(0, scale, generator=generator)


class Block(nn.Module):
    """Attention with rotary positions, then SwiGLU, each behind an RMSNorm."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.attention_norm = nn.RMSNorm(width, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.feed_norm = nn.RMSNorm(width, eps=1e-6)
        self.gate_up = nn.Linear(width, 2 * config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, time, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, time, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(_rotate(q, cos, sin), _rotate(k, cos, sin), v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        gate, up = self.gate_up(self.feed_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def _rotary_table(context: int, head: int) -> tuple[Tensor, Tensor]:
    frequency = 10000.0 ** (-torch.arange(0, head, 2) / head)
    angle = torch.arange(context)[:, None] * frequency
    return angle.cos(), angle.sin()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


# A larger batch is passed in parts of this many rows: the activations then stay in the processor's cache.
_CACHE_ROWS = 64


@dataclass(frozen=True)
class TrainConfig:
    """One training run: `batch` sequences of the model's context, `steps` updates.

    AdamW (0.9, 0.95), weight decay 0.1, gradient norm clipped at 1; the rate climbs over a tenth of
    the run (100 steps at most) and falls along a cosine to a tenth of `rate`.
    """

    batch: int
    steps: int
    rate: float
    seed: int = 0
    weight_decay: float = 0.1

    def rate_at(self, step: int) -> float:
        warm = max(1, min(100, self.steps // 10))
        if step < warm:
            return self.rate * (step + 1) / warm
        progress = (step - warm) / max(1, self.steps - warm)
        return self.rate * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))


def train(
    model: TinyCausal,
    stream: np.ndarray,
    config: TrainConfig,
    *,
    measure: Callable[[TinyCausal], float] | None = None,
    measure_at: Sequence[int] = (),
) -> list[tuple[int, float]]:
    """Train in place on random windows of `stream` (uint8); return (step, measured loss) pairs.

    `measure` is called after each step in `measure_at`. The batches depend on `config.seed` and the
    step alone. Raises FloatingPointError when the loss stops being finite.
    """
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=config.rate, betas=(0.9, 0.95), weight_decay=config.weight_decay, fused=True
    )
    windows = np.random.default_rng([config.seed, 1])
    wanted, curve = set(measure_at), []
    model.train()
    for step in range(config.steps):
        for group in optimiser.param_groups:
            group["lr"] = config.rate_at(step)
        ids = sample_bytes(stream, config.batch, model.config.context + 1, windows)
        optimiser.zero_grad(set_to_none=True)
        for part in ids.split(_CACHE_ROWS):
            loss = F.cross_entropy(model(part[:, :-1]).flatten(0, 1), part[:, 1:].flatten())
            (loss * (len(part) / len(ids))).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not math.isfinite(float(norm)):
            raise FloatingPointError(f"the gradient is not finite at step {step}")
        optimiser.step()
        if measure is not None and step + 1 in wanted:
            curve.append((step + 1, measure(model)))
            model.train()
    return curve


def sample_bytes(stream: np.ndarray, count: int, length: int, rng: np.random.Generator) -> Tensor:
    """`count` random windows of `length` bytes as ids, shape (count, length), int64."""
    if len(stream) < length:
        raise InputError(f"a stream of {len(stream)} bytes is too short for windows of {length}")
    starts = rng.integers(0, len(stream) - length + 1, size=count)
    return torch.from_numpy(stream[starts[:, None] + np.arange(length)].astype(np.int64))


@torch.no_grad()
def heldout_loss(model: TinyCausal, windows: Tensor, batch: int = 64) -> float:
    """Mean loss in nats a byte over fixed windows (count, context + 1)."""
    model.eval()
    total = 0.0
    for part in windows.split(batch):
        logits = model(part[:, :-1])
        total += float(F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum"))
    return total / windows[:, 1:].numel()
