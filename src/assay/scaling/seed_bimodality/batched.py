"""The tensor programs behind `train_population`: networks with hidden layers, and decoders without positions.

Needs PyTorch, hence a module of its own. `Rows` are tuples in the order of the population's columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from assay.scaling.seed_bimodality.tasks import CountTask, ReverseAdditionIndexHints, ScarceDigits, SubsetParity

CHUNK = 100  # steps of data drawn at once
BETAS, DECAY, WARM_UP, LAST_RATE, CLIP = (0.9, 0.98), 0.1, 50, 0.1, 1.0
NORM_EPSILON = 1e-6

Rows = list[tuple[str, int, int, str, int, int, float, float, int]]
Networks = SubsetParity | ScarceDigits
Decoders = CountTask | ReverseAdditionIndexHints


def generators(task: Networks | Decoders, width: int, depth: int, seeds: Sequence[int]) -> list[np.random.Generator]:
    """One generator a seed, another at each task and shape: the seeds of two widths are independent."""
    name = list(task.name.encode())
    return [np.random.default_rng([*name, width, depth, seed]) for seed in seeds]


def batches(streams: list[Callable], stops: Sequence[int], device: str):  # type: ignore[no-untyped-def]
    """Yield (step, inputs, targets), the seeds stacked before the batch; `step` counts from 1."""
    for first in range(0, stops[-1], CHUNK):
        drawn = [stream(CHUNK) for stream in streams]  # whole chunks: a seed's data do not depend on the last stop
        inputs, targets = (torch.from_numpy(np.stack([d[k] for d in drawn], axis=1)).to(device) for k in (0, 1))
        for k in range(min(CHUNK, stops[-1] - first)):
            yield first + k + 1, inputs[k], targets[k]


# --- networks with hidden layers, plain gradient descent -------------------------------------------------------------


def train_networks(
    task: Networks, width: int, depth: int, seeds: Sequence[int], stops: Sequence[int], rate: float, device: str
) -> Rows:
    """Gradient descent of all seeds at once; the backward pass is written out, for it is short."""
    rngs = generators(task, width, depth, seeds)
    weights = first_weights(task, width, depth, rngs, device)
    test = [torch.from_numpy(part).to(device) for part in task.held_out()]
    rows: Rows = []
    for step, inputs, targets in batches([task.stream(rng) for rng in rngs], stops, device):
        gradients = backward(weights, inputs, targets, task.loss)
        torch._foreach_add_(weights, gradients, alpha=-rate)
        if step in stops:
            scores, losses = score_networks(weights, test[0], test[1], task.loss)
            rows += [
                (task.name, width, depth, "all", seed, step, score, loss, len(test[1]))
                for seed, score, loss in zip(seeds, scores, losses, strict=True)
            ]
    return rows


def first_weights(
    task: Networks, width: int, depth: int, rngs: list[np.random.Generator], device: str
) -> list[Tensor]:
    """Matrices (seeds, inputs, outputs) drawn N(0, scale / inputs), each followed by biases (seeds, 1, outputs)."""
    weights = []
    for inputs, outputs in pairwise([task.sizes[0], *[width] * depth, task.sizes[1]]):
        scale = math.sqrt(task.weight_scale / inputs)
        drawn = np.stack([rng.standard_normal((inputs, outputs)) * scale for rng in rngs])
        weights += [torch.from_numpy(drawn.astype(np.float32)).to(device), torch.zeros(len(rngs), 1, outputs)]
    return [w.to(device) for w in weights]


def activations(weights: list[Tensor], inputs: Tensor) -> list[Tensor]:
    """The inputs, each hidden layer after its rectifier, and the outputs."""
    layers = [inputs]
    for matrix, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        layers.append(torch.baddbmm(bias, layers[-1], matrix).clamp_(min=0))
    return [*layers, torch.baddbmm(weights[-1], layers[-1], weights[-2])]


def backward(weights: list[Tensor], inputs: Tensor, targets: Tensor, loss: str) -> list[Tensor]:
    """Gradient of each seed's mean loss in its own weights."""
    *layers, outputs = activations(weights, inputs)
    size = inputs.shape[1]
    if loss == "hinge":
        slope = torch.where(targets * outputs < 1, -targets / size, 0.0)
    else:
        slope = torch.softmax(outputs, dim=-1)
        slope.scatter_add_(-1, targets.unsqueeze(-1), torch.full_like(slope[..., :1], -1.0))
        slope /= size
    found: list[Tensor] = []
    for k in range(len(layers) - 1, -1, -1):
        found = [layers[k].mT @ slope, slope.sum(dim=1, keepdim=True), *found]
        if k:
            slope = (slope @ weights[2 * k].mT) * (layers[k] > 0)
    return found


def score_networks(weights: list[Tensor], inputs: Tensor, labels: Tensor, loss: str) -> tuple[list[float], list[float]]:
    """Accuracy and mean loss of each seed on the same examples."""
    outputs = activations(weights, inputs.expand(len(weights[0]), -1, -1))[-1]
    if loss == "hinge":
        margin = labels * outputs[..., 0]
        right, losses = margin > 0, (1 - margin).clamp(min=0)
    else:
        right = outputs.argmax(dim=-1) == labels
        losses = -torch.log_softmax(outputs, dim=-1).gather(-1, labels.expand(len(outputs), -1).unsqueeze(-1))[..., 0]
    return right.double().mean(dim=1).tolist(), losses.double().mean(dim=1).tolist()


# --- decoders without positions --------------------------------------------------------------------------------------


def train_decoders(
    task: Decoders, width: int, depth: int, seeds: Sequence[int], stops: Sequence[int], rate: float, device: str
) -> Rows:
    """AdamW with warm-up and cosine decay; each seed's gradient is clipped by its own norm."""
    rngs = generators(task, width, depth, seeds)
    weights = [w.requires_grad_() for w in first_decoder(task.vocabulary, width, depth, rngs, device)]
    optimiser = torch.optim.AdamW(weights, lr=rate, betas=BETAS, weight_decay=DECAY, fused=True)
    tests = {test: [torch.from_numpy(part).to(device) for part in task.prompts(test)] for test in task.tests}
    rows: Rows = []
    for step, tokens, targets in batches([task.stream(rng) for rng in rngs], stops, device):
        optimiser.param_groups[0]["lr"] = rate * rate_share(step, stops[-1])
        losses = token_losses(weights, tokens, targets, depth)
        optimiser.zero_grad(set_to_none=True)
        (losses.sum(dim=(1, 2)) / (targets >= 0).sum(dim=(1, 2))).sum().backward()
        clip_each_seed(weights)
        optimiser.step()
        if step in stops:
            for test, (prompts, answers) in tests.items():
                scores, nll = score_decoders(weights, prompts, answers, depth)
                rows += [
                    (task.name, width, depth, test, seed, step, score, loss, len(prompts))
                    for seed, score, loss in zip(seeds, scores, nll, strict=True)
                ]
    return rows


def rate_share(step: int, steps: int) -> float:
    """Linear warm-up over `WARM_UP` steps, then a cosine to `LAST_RATE` of the peak."""
    if step <= WARM_UP:
        return step / WARM_UP
    through = (step - WARM_UP) / max(steps - WARM_UP, 1)
    return LAST_RATE + (1 - LAST_RATE) * (1 + math.cos(math.pi * through)) / 2


def first_decoder(
    vocabulary: int, width: int, depth: int, rngs: list[np.random.Generator], device: str
) -> list[Tensor]:
    """Weights with a leading axis of seeds: embedding, a block's six in turn, last gain, head.

    A block has the gain before attention, the joint matrix of queries, keys and values, the output matrix, the
    gain before the hidden layer, and the hidden layer's two matrices. Every entry is drawn N(0, 1 / fan-in); the
    embedding counts as a map of `width` inputs; output matrices are divided by √(2 · depth).
    """
    calm = 1 / math.sqrt(2 * depth)

    def drawn(inputs: int, outputs: int, scale: float = 1.0) -> Tensor:
        entries = np.stack([rng.standard_normal((inputs, outputs)) for rng in rngs]) * (scale / math.sqrt(inputs))
        return torch.from_numpy(entries.astype(np.float32)).to(device)

    def gain() -> Tensor:
        return torch.ones(len(rngs), 1, width, device=device)

    weights = [drawn(width, vocabulary).mT.contiguous()]
    for _ in range(depth):
        weights += [gain(), drawn(width, 3 * width), drawn(width, width, calm)]
        weights += [gain(), drawn(width, 4 * width), drawn(4 * width, width, calm)]
    return [*weights, gain(), drawn(width, vocabulary)]


def token_losses(weights: list[Tensor], tokens: Tensor, targets: Tensor, depth: int) -> Tensor:
    """Negative log-likelihood (seeds, batch, positions) of each target, zero where none is asked."""
    logits = decode(weights, tokens, depth)
    flat = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=-1, reduction="none")
    return flat.reshape(targets.shape)


def decode(weights: list[Tensor], tokens: Tensor, depth: int) -> Tensor:
    """Logits (seeds, batch, positions, vocabulary) of a decoder: RMSNorm before each half-block, no positions."""
    seeds, batch, positions = tokens.shape
    embedding, *blocks, gain, head = weights
    vocabulary, width = embedding.shape[1:]
    heads = max(width // 16, 1)
    offset = torch.arange(seeds, device=tokens.device).reshape(-1, 1, 1) * vocabulary
    x = F.embedding(tokens + offset, embedding.reshape(-1, width)).reshape(seeds, batch * positions, width)
    hidden = torch.ones(positions, positions, dtype=torch.bool, device=tokens.device).triu(1)
    mask = torch.zeros(positions, positions, device=tokens.device).masked_fill(hidden, -math.inf)
    for k in range(depth):
        before, qkv, out, after, up, down = blocks[6 * k: 6 * k + 6]
        parts = (normed(x, before) @ qkv).reshape(seeds * batch, positions, 3, heads, width // heads)
        query, key, value = (part.transpose(1, 2).flatten(0, 1) for part in parts.unbind(dim=2))
        score = torch.baddbmm(mask, query, key.mT, alpha=1 / math.sqrt(width // heads))
        mixed = (torch.softmax(score, dim=-1) @ value).reshape(seeds * batch, heads, positions, width // heads)
        x = x + mixed.transpose(1, 2).reshape(seeds, batch * positions, width) @ out
        x = x + F.gelu(normed(x, after) @ up) @ down
    return (normed(x, gain) @ head).reshape(seeds, batch, positions, vocabulary)


def normed(x: Tensor, gain: Tensor) -> Tensor:
    """RMSNorm with a gain a seed."""
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + NORM_EPSILON) * gain


def clip_each_seed(weights: list[Tensor]) -> None:
    """Scale each seed's gradient, over all its weights, to a norm of at most `CLIP`."""
    gradients = [w.grad for w in weights if w.grad is not None]
    squares = torch.stack([g.square().sum(dim=(1, 2)) for g in gradients]).sum(dim=0)
    share = (CLIP / (squares.sqrt() + 1e-6)).clamp(max=1).reshape(-1, 1, 1)
    for gradient in gradients:
        gradient *= share


@torch.no_grad()
def score_decoders(
    weights: list[Tensor], prompts: Tensor, answers: Tensor, depth: int
) -> tuple[list[float], list[float]]:
    """Exact match and mean NLL of the answers by seed.

    The greedy answer is right exactly when every teacher-forced arg-max is: one forward pass scores it.
    """
    scores, nll = [], []
    for seed in range(len(weights[0])):
        own = [w[seed: seed + 1] for w in weights]
        logits = decode(own, prompts.unsqueeze(0), depth)[0]
        losses = F.cross_entropy(logits.flatten(0, 1), answers.flatten(), ignore_index=-1, reduction="none")
        right = ((logits.argmax(dim=-1) == answers) | (answers < 0)).all(dim=-1)
        scores.append(float(right.double().mean()))
        nll.append(float(losses.double().sum()) / len(prompts))
    return scores, nll
