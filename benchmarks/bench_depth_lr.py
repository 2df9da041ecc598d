"""Energies of many initialisations at once, and a rate sweep as one batch, beside the loops that people write.

Energies: `update_energy`'s core over 32 initialisations of an MLP and of a residual MLP, against the same gradient and
forward derivative in a Python loop over initialisations. Both give the same numbers.

Sweep: 9 rates and 4 seeds as one batch of products, against one run of `torch.optim.SGD` after the other, which is
how a rate finder or a grid search by hand trains. Both end at the same losses, but for single runs at the edge of
stability, where rounding decides. At 64 examples a batch the products themselves are most of the time; at 16 the calls
are. The last case is seeds alone. What was tried on the sweep and does not move the ratio: one autograd pass over the
vectorised loss instead of vectorised gradients, flushing denormal numbers, keeping freed memory. A batch of 72 runs
costs less a run than one of 9.

CPU seconds of one process on one thread, warmed up, alternating, the median of several repeats.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from assay.scaling.depth_lr.data import digits
from assay.scaling.depth_lr.energy import unit_energies, unit_residual
from assay.scaling.depth_lr.nets import Net, build, draw
from assay.scaling.depth_lr.sweep import rate_grid, train_grid, train_one_by_one
from assay.timing import alternate, speed_case

INITS, SEEDS, STEPS = 32, 4, 20


def main(repeats: int = 3) -> dict[str, Any]:
    """Measure, print a table, and return the cases."""
    torch.set_num_threads(1)
    cases = [
        energy_case("mlp", 16, 128, repeats), energy_case("resmlp", 16, 128, repeats),
        sweep_case("mlp", 8, 64, 64, rate_grid(-9, -1, 1), SEEDS, repeats),
        sweep_case("resmlp", 8, 64, 64, rate_grid(-9, -5, 0.5), SEEDS, repeats),
        sweep_case("mlp", 8, 64, 16, rate_grid(-9, -1, 1), SEEDS, repeats),
        sweep_case("resmlp", 8, 64, 16, rate_grid(-9, -5, 0.5), SEEDS, repeats),
        sweep_case("mlp", 8, 128, 64, rate_grid(-9, -1, 1), SEEDS, repeats),
        sweep_case("mlp", 8, 64, 16, [0.03], 32, repeats),
    ]
    for case in cases:
        print(f"{case['name']}: {case['ours_s']:.4f} s; {case['peer']}: {case['peer_s']:.4f} s; "
              f"ratio {case['ratio']:.1f} (target {case['target']:g}) {case['note']}")
    return {"cases": cases}


def energy_case(arch: str, depth: int, width: int, repeats: int) -> dict[str, Any]:
    """32 initialisations, 16 images."""
    net = build(arch, depth, width)
    x = torch.from_numpy(digits()["images"][:16])
    params, loss = draw(net, INITS, 0), unit_residual(net, x)

    def ours() -> np.ndarray:
        return unit_energies(net, params, {}, loss, x).values

    def peer() -> np.ndarray:
        rows = [{name: value[i: i + 1] for name, value in params.items()} for i in range(INITS)]
        return np.concatenate([unit_energies(net, row, {}, loss, x).values for row in rows])

    np.testing.assert_allclose(ours(), peer(), rtol=1e-3)
    name = f"energies of {INITS} inits, {arch}, depth {depth}, width {width}"
    return case(name, ours, peer, repeats, 3.0, "a loop over inits")


def sweep_case(
    arch: str, depth: int, width: int, batch: int, rates: list[float], seeds: int, repeats: int
) -> dict[str, Any]:
    """20 steps of SGD on digits from every seed at every rate."""
    net, held = build(arch, depth, width), digits()
    images, labels = torch.from_numpy(held["images"]), torch.from_numpy(held["labels"])
    params = draw(net, seeds, 0)
    models = [filled(build(arch, depth, width), params, seed) for seed in range(seeds)]

    def batches(step: int) -> tuple[Tensor, Tensor]:
        rows = slice(step * batch, (step + 1) * batch)
        return images[rows], labels[rows]

    probe = images[:64], labels[:64]

    def ours() -> np.ndarray:
        return train_grid(net, params, rates, batches, cross_entropy, STEPS, probe)

    def peer() -> np.ndarray:
        return train_one_by_one(models, rates, batches, cross_entropy, STEPS, probe)

    found, expected = ours(), peer()
    apart = np.abs(found - expected)[np.isfinite(found) & np.isfinite(expected)]
    assert np.median(apart) < 1e-3, f"the losses differ by {np.median(apart):.3g}"
    name = f"{len(rates)} rates x {seeds} seeds, {STEPS} steps, {arch}, depth {depth}, width {width}, batch {batch}"
    target = 5.0 if len(rates) == 1 else 4.0
    return case(name, ours, peer, repeats, target, "torch.optim.SGD, run by run")


def filled(net: Net, params: dict[str, Tensor], seed: int) -> nn.Module:
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.copy_(params[name][seed])
    return net


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def case(
    name: str, ours: Callable[[], Any], peer: Callable[[], Any], repeats: int, target: float, peer_name: str
) -> dict[str, Any]:
    ours_s, peer_s = alternate(ours, peer, repeats)
    return speed_case(name, ours_s, peer_s, target, peer_name, "the same numbers")


if __name__ == "__main__":
    main()
