"""Calibration and adaptive testing beside the procedure of the paper, written in torch as it is described there.

Three cases on the responses of `tiny-lm-items`:

- calibration of 100 questions on 240 checkpoints. The peer averages each item's loss over 150 random abilities a
  checkpoint (L-BFGS, learning rate 0.1, strong Wolfe, at most 100 outer steps, tolerance 1e-6) and then finds the
  abilities by the same optimiser. Its tensors hold 150 times the responses, which is why there are 100 questions here;
- calibration of 240 checkpoints by 4,472 questions (those of the set, repeated) by ours alone: under a minute;
- one answer of an adaptive test: the next question and the new ability with 25 answers given, Fisher scoring beside
  L-BFGS; and the ability of one new checkpoint from 4,472 answers, under 50 ms.

CPU seconds of one process on one thread, warmed up, alternating, the median of several repeats.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from assay.scaling.irsl import BetaIRT
from assay.scaling.irsl.ability import Items, estimate, response_of
from assay.scaling.irsl.tables import HOME, load_table
from assay.timing import alternate, cpu_seconds, speed_case

N_ABILITIES, OUTER, TOLERANCE, PHI = 150, 100, 1e-6, 10.0
N_QUESTIONS, LARGE, ANSWERS = 100, 4472, 25
CALIBRATION_TARGET, ANSWER_TARGET = 30.0, 50.0
LARGE_LIMIT_S, ONE_LIMIT_S = 60.0, 0.05


def main(repeats: int = 3) -> dict[str, Any]:
    """Measure, print a table, and return the cases."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            cases = [*calibration_cases(load_table(HOME).p, repeats), *testing_cases(load_table(HOME).p, repeats)]
    finally:
        torch.set_num_threads(threads)
    for row in cases:
        peer = f"{row['peer']}: {row['peer_s']:.4f} s, ratio {row['ratio']:.1f} (target {row['target']:g})" \
            if row["peer_s"] else row["peer"]
        print(f"{row['name']}: {row['ours_s']:.5f} s; {peer} {row['note']}")
    return {"cases": cases}


def calibration_cases(p: np.ndarray, repeats: int) -> list[dict[str, Any]]:
    """The same questions by both, and a large matrix by ours."""
    small = p[:, :: p.shape[1] // N_QUESTIONS][:, :N_QUESTIONS]
    ours_s, peer_s = alternate(lambda: BetaIRT().fit(small), lambda: averaged_calibration(small), repeats)
    name = f"calibration, {len(small)} checkpoints by {N_QUESTIONS} questions"
    large = np.resize(p.T, (LARGE, len(p))).T
    large_s = cpu_seconds(lambda: BetaIRT().fit(large))
    return [
        speed_case(name, ours_s, peer_s, CALIBRATION_TARGET, "average over 150 random abilities, torch",
             "; ours estimates the precision as well"),
        alone(f"calibration, {len(p)} checkpoints by {LARGE} questions", large_s, LARGE_LIMIT_S),
    ]


def testing_cases(p: np.ndarray, repeats: int) -> list[dict[str, Any]]:
    """One answer of an adaptive test by both, and one new checkpoint on all questions by ours."""
    irt = BetaIRT(phi=PHI).fit(p[:-1])
    items = irt.items()
    asked = np.arange(0, ANSWERS * 7, 7)
    chosen = items.take(asked)
    response, start = response_of(p[-1:, asked], items), np.array([0.1])

    def ours() -> float:
        theta, _ = estimate(response, chosen, start)
        np.abs(theta[:, None] + items.ease).argmin()
        return float(theta[0])

    def peer() -> float:
        theta = lbfgs_ability(p[-1, asked], chosen.ease, 0.1)
        np.abs(theta + items.ease).argmin()
        return theta

    assert abs(ours() - peer()) < 1e-3
    ours_s, peer_s = alternate(many(ours, 20), many(peer, 20), repeats)
    large = Items(np.resize(items.ease, LARGE), np.ones(LARGE), PHI)
    answers = response_of(np.resize(p[-1], LARGE)[None], large)
    one_s = float(np.median([cpu_seconds(lambda: estimate(answers, large)) for _ in range(5 * repeats)]))
    return [
        speed_case(f"one answer of an adaptive test, {ANSWERS} given", ours_s / 20, peer_s / 20, ANSWER_TARGET,
             "L-BFGS in torch"),
        alone(f"ability of one new checkpoint from {LARGE} answers", one_s, ONE_LIMIT_S),
    ]


def averaged_calibration(Y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eases that minimise the loss averaged over random abilities, then abilities with these eases."""
    import torch

    torch.manual_seed(0)
    y = torch.from_numpy(np.clip(Y, 1e-6, 1 - 1e-6))
    random = torch.randn(N_ABILITIES, len(Y), 1, dtype=torch.float64)
    ease = minimise(lambda z: beta_loss(y, random + z), torch.zeros(1, Y.shape[1], dtype=torch.float64))
    theta = minimise(lambda t: beta_loss(y, t + ease), torch.zeros(len(Y), 1, dtype=torch.float64))
    return ease.numpy().ravel(), theta.numpy().ravel()


def lbfgs_ability(y: np.ndarray, ease: np.ndarray, start: float) -> float:
    """Ability of one model from its answers."""
    import torch

    answers, eases = torch.from_numpy(np.clip(y, 1e-6, 1 - 1e-6)), torch.from_numpy(ease)
    theta = minimise(lambda t: beta_loss(answers, t + eases), torch.tensor([start], dtype=torch.float64))
    return float(theta[0])


def minimise(loss: Callable[[Any], Any], start: Any) -> Any:
    """L-BFGS with the paper's settings."""
    import torch

    x = start.clone().requires_grad_(True)
    optimiser = torch.optim.LBFGS([x], lr=0.1, line_search_fn="strong_wolfe")

    def closure() -> Any:
        optimiser.zero_grad()
        value = loss(x)
        value.backward()
        return value

    before = np.inf
    for _ in range(OUTER):
        value = float(optimiser.step(closure).detach())
        if abs(before - value) < TOLERANCE:
            break
        before = value
    return x.detach()


def beta_loss(y: Any, eta: Any) -> Any:
    """Mean negative log likelihood under Beta(mu phi, (1 - mu) phi)."""
    import torch

    mu = torch.sigmoid(eta)
    a, b = mu * PHI, (1 - mu) * PHI
    value = (a - 1) * torch.log(y) + (b - 1) * torch.log1p(-y) - torch.lgamma(a) - torch.lgamma(b)
    return -(value + torch.lgamma(torch.tensor(PHI, dtype=torch.float64))).mean()


def alone(name: str, ours_s: float, limit_s: float) -> dict[str, Any]:
    kept = "kept" if ours_s < limit_s else "missed"
    return {
        "name": name, "ours_s": ours_s, "peer_s": None, "ratio": None, "target": None, "peer": "no peer",
        "note": f"limit {limit_s:g} s: {kept}",
    }


def many(call: Callable[[], Any], times: int) -> Callable[[], None]:
    def repeated() -> None:
        for _ in range(times):
            call()

    return repeated


if __name__ == "__main__":
    main()
