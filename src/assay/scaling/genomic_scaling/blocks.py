"""Next-base models with four kinds of mixing block, in plain PyTorch, for a CPU as for a GPU.

`llama`
    Causal attention with rotary positions, then SwiGLU.
`llama-conv`
    The same, with a depthwise causal convolution over three bases on queries, keys and values: the control
    that separates attention from the lack of a short convolution.
`hyena`
    A long convolution with an implicit filter between two gates (order 2), computed by FFT, then SwiGLU.
`ssm`
    A selective state space with one decay a head (the form of Mamba-2), computed in chunks; two such blocks
    stand for one pair of mixing and SwiGLU.

All normalise before each block (RMSNorm), have no biases in their large maps, and start from N(0, 1/fan-in) with
the maps back into the residual stream divided by sqrt(2 * layers).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from assay.errors import InputError, nearest

__all__ = ["ARCHITECTURES", "VOCABULARY", "DNAModel", "chunked_scan", "fft_convolution"]

ARCHITECTURES = ("llama", "llama-conv", "hyena", "ssm")
VOCABULARY = 6  # A, C, G, T, N, separator
HEAD = 16
STATE = 16
SSM_HEAD = 32
CHUNK = 32
FILTER_UNITS = 16
FILTER_WAVES = 4


class DNAModel(nn.Module):
    """Causal model of the next base.

    Parameters
    ----------
    arch : {"llama", "llama-conv", "hyena", "ssm"}
    d_model : int
        Width, a multiple of 16.
    n_layers : int
        Pairs of mixing block and SwiGLU (for ``ssm``: two mixing blocks each).
    context : int
        Longest sequence in bases.
    vocab : int
        Symbols: A, C, G, T, N and a separator.
    seed : int
        Seed of the initial weights.

    Raises
    ------
    InputError
        For an unknown architecture (the message lists them) or a width that does not divide into heads.

    Examples
    --------
    >>> import torch
    >>> model = DNAModel("hyena", d_model=16, n_layers=1, context=32)
    >>> model(torch.zeros(2, 32, dtype=torch.long)).shape
    torch.Size([2, 32, 6])
    """

    def __init__(
        self, arch: str, d_model: int, n_layers: int = 2, context: int = 512, vocab: int = VOCABULARY, seed: int = 0
    ) -> None:
        super().__init__()
        if arch not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise InputError(f"no architecture {arch!r}{nearest(arch, list(ARCHITECTURES))}; there are {known}")
        if d_model < HEAD or d_model % HEAD:
            raise InputError(f"d_model must be a positive multiple of {HEAD}, got {d_model}")
        if n_layers < 1 or context < 2:
            raise InputError(f"n_layers must be 1 or more and context 2 or more, got {n_layers} and {context}")
        self.arch, self.d_model, self.n_layers, self.context = arch, d_model, n_layers, context
        self.embedding = nn.Embedding(vocab, d_model)
        self.blocks = nn.ModuleList(block for _ in range(n_layers) for block in _pair(arch, d_model, context))
        self.norm = nn.RMSNorm(d_model, eps=1e-6)
        self.head = nn.Linear(d_model, vocab, bias=False)
        self._initialise(torch.Generator().manual_seed(seed))

    @property
    def n_params(self) -> int:
        """Parameters of the blocks: neither embedding nor read-out, as the laws count them."""
        return sum(parameter.numel() for parameter in self.blocks.parameters())

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (batch, time, vocab) of the next base for tokens (batch, time), time up to the context."""
        if tokens.ndim != 2 or tokens.shape[1] > self.context:
            raise InputError(f"expected tokens (batch, time up to {self.context}), got {tuple(tokens.shape)}")
        x = self.embedding(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.norm(x))

    def flops_per_token(self, time: int) -> float:
        """FLOP of a training step per token: 6 a parameter, and attention's 12 * layers * width * time."""
        attention = 12 * self.n_layers * self.d_model * time if self.arch.startswith("llama") else 0
        return 6 * self.n_params + attention

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator) -> None:
        self.embedding.weight.normal_(0, 1 / math.sqrt(self.d_model), generator=generator)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                scale = 1 / math.sqrt(module.in_features)
                if getattr(module, "to_residual", False):
                    scale /= math.sqrt(2 * self.n_layers)
                module.weight.normal_(0, scale, generator=generator)
                if module.bias is not None:
                    module.bias.zero_()
            elif isinstance(module, ShortConvolution):
                module.weight.normal_(0, 1 / math.sqrt(module.weight.shape[-1]), generator=generator)


def _pair(arch: str, width: int, context: int) -> list[nn.Module]:
    if arch == "ssm":
        return [StateSpace(width), StateSpace(width)]
    mixing = LongConvolution(width, context) if arch == "hyena" else Attention(width, context, arch == "llama-conv")
    return [mixing, SwiGLU(width)]


def _to_residual(units: int, width: int) -> nn.Linear:
    linear = nn.Linear(units, width, bias=False)
    linear.to_residual = True  # type: ignore[assignment]
    return linear


class SwiGLU(nn.Module):
    """Gated feed-forward layer of 8/3 of the width, rounded down to a multiple of four."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = 8 * width // 3 // 4 * 4
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = _to_residual(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(self.norm(x)).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class ShortConvolution(nn.Module):
    """Depthwise causal convolution along time."""

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, taps))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        channels, _, taps = self.weight.shape
        padded = F.pad(x.transpose(1, 2), (taps - 1, 0))
        return F.conv1d(padded, self.weight, self.bias, groups=channels).transpose(1, 2)


class Attention(nn.Module):
    """Causal attention with rotary positions, optionally behind a short convolution."""

    cos: Tensor
    sin: Tensor

    def __init__(self, width: int, context: int, convolve: bool) -> None:
        super().__init__()
        self.heads = width // HEAD
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.convolution = ShortConvolution(3 * width, 3) if convolve else nn.Identity()
        self.out = _to_residual(width, width)
        angle = torch.arange(context)[:, None] * 10000.0 ** (-torch.arange(0, HEAD, 2) / HEAD)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        qkv = self.convolution(self.qkv(self.norm(x))).view(batch, time, 3, self.heads, HEAD)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(self._rotate(q), self._rotate(k), v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, time, width))

    def _rotate(self, x: Tensor) -> Tensor:
        cos, sin = self.cos[: x.shape[-2]], self.sin[: x.shape[-2]]
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


class LongConvolution(nn.Module):
    """Two gates around a convolution as long as the sequence, whose filter is a small network of time."""

    features: Tensor
    decay: Tensor

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.short = ShortConvolution(3 * width, 3)
        self.filter = nn.ModuleList((
            nn.Linear(2 * FILTER_WAVES + 1, FILTER_UNITS),
            nn.Linear(FILTER_UNITS, FILTER_UNITS),
            nn.Linear(FILTER_UNITS, width),
        ))
        self.skip = nn.Parameter(torch.ones(width))
        self.out = _to_residual(width, width)
        time = torch.linspace(0, 1, context)[:, None]
        waves = 2 * math.pi * time * torch.arange(1, FILTER_WAVES + 1)
        rate = torch.logspace(math.log10(math.log(100) / 1.5), math.log10(math.log(100) / 0.02), width)
        self.register_buffer("features", torch.cat((time, waves.sin(), waves.cos()), dim=-1), persistent=False)
        self.register_buffer("decay", torch.exp(-time * rate), persistent=False)

    def response(self, time: int) -> Tensor:
        """The filter's first `time` taps, (time, width)."""
        first, second, last = self.filter
        hidden = torch.sin(10 * first(self.features[:time]))
        return last(torch.sin(10 * second(hidden))) * self.decay[:time]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.short(self.qkv(self.norm(x))).chunk(3, dim=-1)
        z = k * v
        return self.out(q * (fft_convolution(z, self.response(x.shape[1])) + self.skip * z))


def fft_convolution(x: Tensor, taps: Tensor) -> Tensor:
    """Causal convolution of x (batch, time, width) with taps (time, width): padded to twice the time, nothing wraps."""
    time = x.shape[1]
    spectrum = torch.fft.rfft(x, n=2 * time, dim=1) * torch.fft.rfft(taps, n=2 * time, dim=0)
    return torch.fft.irfft(spectrum, n=2 * time, dim=1)[:, :time]


class StateSpace(nn.Module):
    """Selective state space: the input sets how fast each head forgets, what it stores and what it reads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = 2 * width
        self.heads = self.inner // SSM_HEAD
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.value_gate = nn.Linear(width, 2 * self.inner, bias=False)
        self.short = ShortConvolution(self.inner, 4)
        self.selection = nn.Linear(self.inner, 2 * STATE + self.heads, bias=False)
        steps = torch.logspace(-3, -1, self.heads) if self.heads > 1 else torch.tensor([0.01])
        self.step_bias = nn.Parameter(torch.log(torch.expm1(steps)))
        self.log_decay = nn.Parameter(torch.log(torch.linspace(1, 16, self.heads)))
        self.skip = nn.Parameter(torch.ones(self.inner))
        self.out = _to_residual(self.inner, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, _ = x.shape
        value, gate = self.value_gate(self.norm(x)).chunk(2, dim=-1)
        value = F.silu(self.short(value))
        write, read, step = self.selection(value).split((STATE, STATE, self.heads), dim=-1)
        step = F.softplus(step + self.step_bias)
        heads = value.view(batch, time, self.heads, SSM_HEAD)
        mixed = chunked_scan(heads * step[..., None], -step * self.log_decay.exp(), write, read)
        return self.out((mixed.reshape(batch, time, self.inner) + self.skip * value) * F.silu(gate))


def chunked_scan(x: Tensor, log_decay: Tensor, write: Tensor, read: Tensor, chunk: int = CHUNK) -> Tensor:
    """Outputs y_t = S_t read_t of the states S_t = exp(log_decay_t) S_{t-1} + x_t write_tᵀ, S_{-1} = 0.

    Shapes: x (batch, time, heads, units), log_decay (batch, time, heads), write and read (batch, time, states), shared
    by the heads; returns the shape of x. Inside a chunk the sum over the past is one masked product, and only the
    states at the chunks' ends are carried on, one after another.
    """
    batch, time, heads, units = x.shape
    pad = -time % chunk
    if pad:
        x, log_decay = F.pad(x, (0, 0, 0, 0, 0, pad)), F.pad(log_decay, (0, 0, 0, pad))
        write, read = F.pad(write, (0, 0, 0, pad)), F.pad(read, (0, 0, 0, pad))
    count = (time + pad) // chunk
    x, log_decay = x.view(batch, count, chunk, heads, units), log_decay.view(batch, count, chunk, heads)
    write, read = write.view(batch, count, chunk, -1), read.view(batch, count, chunk, -1)

    total = log_decay.cumsum(2).permute(0, 1, 3, 2)  # (batch, count, heads, chunk): decay since the chunk began
    mask = torch.ones(chunk, chunk, dtype=torch.bool, device=x.device).tril()
    between = (total[..., :, None] - total[..., None, :]).masked_fill(~mask, -torch.inf).exp()
    weights = (read @ write.transpose(-1, -2))[:, :, None] * between
    inside = weights @ x.transpose(2, 3)  # (batch, count, heads, chunk, units)

    to_end = (total[..., -1:] - total).exp()
    ends = (x.transpose(2, 3) * to_end[..., None]).transpose(-1, -2) @ write[:, :, None]  # (..., units, states)
    state, carried = torch.zeros_like(ends[:, 0]), []
    for index in range(count):
        carried.append(state)
        state = state * total[:, index, :, -1].exp()[..., None, None] + ends[:, index]
    before = torch.stack(carried, dim=1)
    outside = (read[:, :, None] @ before.transpose(-1, -2)) * total.exp()[..., None]
    return (inside + outside).transpose(2, 3).reshape(batch, time + pad, heads, units)[:, :time]
