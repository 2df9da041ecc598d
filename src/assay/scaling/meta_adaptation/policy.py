"""The paper's controller and its meta-training: a small network from a task's rates to a pulse, trained by FOMAML.

The network takes the task's rates, each divided by its mean over the training tasks, through layers with tanh (and
LayerNorm where asked for) to the amplitudes of all segments. First-order MAML (arXiv 2601.18973, inner loop of 5 steps
of gradient descent, Adam outside) moves the shared weights along the gradient that the tasks have after their inner
steps. Weights are one flat vector, so that each task of a batch can have its own under `torch.func.vmap`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.scaling.meta_adaptation.curves import torch_package
from assay.scaling.meta_adaptation.qubits import QubitFamily

__all__ = ["PulsePolicy", "meta_train"]

Array = NDArray[np.float64]

GAIN, NORM_EPS = 0.5, 1e-5
META_RATE, INNER_RATE, INNER_STEPS = 1e-3, 0.01, 5


class PulsePolicy:
    """A network from rates to a pulse of a family's shape, its weights one flat vector."""

    def __init__(self, family: QubitFamily, scale: Array, hidden: tuple[int, ...], *, layer_norm: bool) -> None:
        self.pulse_shape, self.layer_norm = family.pulse_shape, layer_norm
        self.scale = np.asarray(scale, dtype=np.float64)
        widths = [len(self.scale), *hidden, int(np.prod(family.pulse_shape))]
        self.layers = list(pairwise(widths))
        self.physics = family.loss_fn()

    def initial(self, seed: int) -> Array:
        """Orthogonal weights of gain 0.5, no offsets; LayerNorm at one and zero."""
        torch = torch_package()
        generator = torch.Generator().manual_seed(seed)
        parts = []
        for number, (n_in, n_out) in enumerate(self.layers):
            weight = torch.empty(n_out, n_in, dtype=torch.float64)
            torch.nn.init.orthogonal_(weight, GAIN, generator=generator)
            parts += [weight.flatten(), torch.zeros(n_out, dtype=torch.float64)]
            if self.layer_norm and number < len(self.layers) - 1:
                parts += [torch.ones(n_out, dtype=torch.float64), torch.zeros(n_out, dtype=torch.float64)]
        return torch.cat(parts).numpy()

    def pulse(self, theta: Any, rates: Any) -> Any:
        """The pulse (S, C) for the rates of one task, in torch."""
        torch = torch_package()
        x = rates / torch.from_numpy(self.scale)
        # Split once: the gradient of a slice is a vector of zeros as long as theta, that of a split one concatenation.
        parts = iter(theta.split(self._sizes()))
        for number, (n_in, n_out) in enumerate(self.layers):
            x = next(parts).view(n_out, n_in) @ x + next(parts)
            if number == len(self.layers) - 1:
                break
            if self.layer_norm:
                x = (x - x.mean()) / torch.sqrt(x.var(unbiased=False) + NORM_EPS)
                x = x * next(parts) + next(parts)
            x = torch.tanh(x)
        return x.view(self.pulse_shape)

    def _sizes(self) -> list[int]:
        """Lengths of weights, offsets, and LayerNorm's factors and offsets, layer by layer."""
        sizes = []
        for number, (n_in, n_out) in enumerate(self.layers):
            sizes += [n_in * n_out, n_out]
            if self.layer_norm and number < len(self.layers) - 1:
                sizes += [n_out, n_out]
        return sizes

    def loss_fn(self) -> Callable[[Any, Any], Any]:
        """`loss(theta, rates)` of one task, for `AdaptationCurve` and `torch.func`."""
        return lambda theta, rates: self.physics(self.pulse(theta, rates), rates)


def meta_train(
    policy: PulsePolicy, draw: Callable[[np.random.Generator, int], Array], *, seed: int, batch: int,
    iterations: int, keep: Iterable[int] = (),
) -> dict[int, Array]:
    """First-order MAML; the weights after `iterations`, and after each number in `keep` (0 is the untrained network).

    `draw(rng, n)` gives the rates of n training tasks, (n, n_rates).
    """
    torch = torch_package()
    rng = np.random.default_rng(seed)
    wanted = {iterations, *keep}
    step = torch.func.vmap(torch.func.grad(policy.loss_fn()))
    theta = torch.from_numpy(policy.initial(seed)).requires_grad_()
    outer = torch.optim.Adam([theta], lr=META_RATE)
    kept = {0: theta.detach().numpy().copy()} if 0 in wanted else {}
    for number in range(1, iterations + 1):
        tasks = torch.from_numpy(draw(rng, batch))
        own = theta.detach().expand(batch, -1)
        for _ in range(INNER_STEPS):
            own = own - INNER_RATE * step(own, tasks).detach()
        theta.grad = step(own, tasks).detach().mean(dim=0)
        outer.step()
        if number in wanted:
            kept[number] = theta.detach().numpy().copy()
    return kept
