"""Simulated and predicted risks of quantised SGD, beside one run at a time.

Simulation: all schemes, sizes and sketches advance together; the peer is the loop that one would write first, one run
after the other, a sample at a time: draw x, sketch it, quantise, step. Both follow the same schedule and step sizes,
and their mean excess risks agree within sampling error.

Prediction: the risks of a whole grid of sizes, samples, schemes and sketches by the fast recursion, against the 20 s of
one core that it may take, and against simulating the same grid once.

CPU seconds of one process on one thread, warmed up, alternating, the median of several repeats.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from assay.scaling.low_precision import QuantScheme, risk_grid, spectrum_powerlaw, target_powerlaw
from assay.scaling.low_precision.simulation import simulate
from assay.scaling.low_precision.spectra import GaussianProblem, Sketches, gaussian_problem, sketches
from assay.timing import alternate, cpu_seconds, speed_case

SIZES, SEEDS, SAMPLES = [8, 16, 32, 64, 128, 256], 6, 400
SCHEMES = [
    QuantScheme(), *(QuantScheme("multiplicative", data=eps) for eps in (0.03, 0.1, 0.3)),
    *(QuantScheme("additive", data=eps) for eps in (0.003, 0.01, 0.03, 0.1)),
]
GRID_SIZES, GRID_SAMPLES, GRID_SEEDS, LIMIT_S = [8, 16, 32, 64, 128, 256, 512], [500, 1000, 2000, 4000, 8000], 8, 20.0


def main(repeats: int = 3) -> dict[str, Any]:
    """Measure, print a table, and return the cases."""
    with threadpool_limits(1):
        cases = [simulation_case(repeats), *grid_cases(repeats)]
    for case in cases:
        print(f"{case['name']}: {case['ours_s']:.3f} s; {case['peer']}: {case['peer_s']:.2f} s; "
              f"ratio {case['ratio']:.1f} (target {case['target']:g}) {case['note']}")
    return {"cases": cases}


def simulation_case(repeats: int) -> dict[str, Any]:
    """288 runs of 400 samples: 8 schemes, 6 sizes, 6 sketches, 1,024 features."""
    lam = spectrum_powerlaw(1024, 1.5)
    problem = gaussian_problem(lam, target_powerlaw(lam, 2.0), 0.1)
    drawn = sketches(problem, SIZES[-1], SEEDS)

    def ours() -> np.ndarray:
        return simulate(problem, drawn, SIZES, SAMPLES, SCHEMES, "max").risks

    def peer() -> np.ndarray:
        return loop_over_runs(problem, drawn)

    np.testing.assert_allclose(ours().mean(axis=2), peer().mean(axis=2), rtol=0.5)
    ours_s, peer_s = alternate(ours, peer, repeats)
    runs = len(SCHEMES) * len(SIZES) * SEEDS
    name = f"simulation of {runs} runs of {SAMPLES} samples"
    return speed_case(name, ours_s, peer_s, 20.0, "one run after the other")


def grid_cases(repeats: int) -> list[dict[str, Any]]:
    """The grid of the study's quick tier for one problem: 7 sizes, 5 numbers of samples, 8 schemes, 8 sketches."""
    lam = spectrum_powerlaw(2048, 1.5)
    w = target_powerlaw(lam, 2.0)

    def ours() -> Any:
        return risk_grid(lam, w, GRID_SIZES, GRID_SAMPLES, SCHEMES, seeds=GRID_SEEDS)

    def peer() -> Any:
        problem = gaussian_problem(lam, w, 0.1)
        drawn = sketches(problem, GRID_SIZES[-1], GRID_SEEDS)
        return [simulate(problem, drawn, GRID_SIZES, N, SCHEMES, "max") for N in GRID_SAMPLES]

    ours()
    ours_s = float(np.median([cpu_seconds(ours) for _ in range(repeats)]))
    name = "prediction of a grid of 7 sizes, 5 numbers of samples, 8 schemes, 8 sketches"
    return [
        speed_case(name, ours_s, LIMIT_S, 1.0, "the limit", "the seconds that it may take, not measured"),
        speed_case(name, ours_s, cpu_seconds(peer), 1.0, "one simulation of the same grid"),
    ]


def loop_over_runs(problem: GaussianProblem, drawn: Sketches) -> np.ndarray:
    """Every run for itself, a sample at a time; shape (schemes, sizes, seeds)."""
    found = np.empty((len(SCHEMES), len(SIZES), SEEDS))
    for i, scheme in enumerate(SCHEMES):
        for j, M in enumerate(SIZES):
            for seed in range(SEEDS):
                rng = np.random.default_rng([i, j, seed])
                S = drawn.S[seed, :M] * np.sqrt(SIZES[-1] / M)
                found[i, j, seed] = one_run(problem, S, scheme, rng)
    return found


def one_run(problem: GaussianProblem, S: np.ndarray, scheme: QuantScheme, rng: np.random.Generator) -> float:
    """Quantised SGD as it is written down, the features quantised."""
    A, b = problem.moments(S)
    relative, absolute = (np.sqrt(eps) for eps in scheme.split("data"))
    lr = 0.5 / (np.trace(A) * (1 + relative**2) + absolute**2 * len(A))
    length = int(SAMPLES / np.log2(SAMPLES))
    root, v = np.sqrt(problem.spectrum), np.zeros(len(A))
    for t in range(SAMPLES):
        x = root * rng.standard_normal(problem.p)
        y = x @ problem.target + problem.noise * rng.standard_normal()
        z = S @ x
        z = z + (relative * np.abs(z) + absolute) * rng.choice([-1.0, 1.0], len(z))
        v = v + lr * 0.5 ** (t // length) * (y - z @ v) * z
    return float(problem.second_moment - 2 * b @ v + v @ A @ v)


if __name__ == "__main__":
    main()
