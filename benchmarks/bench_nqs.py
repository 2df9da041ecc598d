"""The noisy quadratic system's two costly steps, beside a loop as the reference writes it.

Prediction by the regularised risk: the peer advances one run after the other, segment by segment, in a Python loop
around array operations over the directions, which is how the reference's implementation is laid out. The reference
itself (JAX, CPU) takes 24 s for 64 runs; its figures are stated beside, not measured here.

Fit: CPU seconds until a search from random starts reaches the reference's own cost, 0.02208, on the reference's runs.
The peer is the same search with finite differences in place of the analytic Jacobian. Without those runs, the fit is
timed on ours to within 1 % of the best cost.

CPU seconds of one process on one thread, warmed up, alternating, the median of several repeats.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import least_squares
from scipy.special import zeta
from threadpoolctl import threadpool_limits

from assay.datasets import DataUnavailable, load_dataset
from assay.scaling.nqs import NQS, nqs_risk_regularized
from assay.scaling.nqs.noisy_quadratic import INITIAL_WEIGHT_VARIANCE, LEARNING_RATE, Rows, log_risk_and_jacobian
from assay.scaling.nqs.runs import authors_runs, tiny_runs
from assay.timing import alternate, speed_case

THETA = {
    "p": 1.1131253732848405, "q": 0.584242820729791, "P": 3.3926855412266743, "Q": 0.8853327469240055,
    "e_irr": 0.35449737765209993, "R": 8.410028810517371, "r": 2.5829307382669966,
}
REFERENCE_COST = 0.02208
REFERENCE_PREDICTION_S, REFERENCE_FIT_S = 24.0, 79.77
STATED = "its seconds are stated, not measured here"
FIT_SEEDS = 5


def main(repeats: int = 5) -> dict[str, Any]:
    """Measure, print a table, and return the cases."""
    with threadpool_limits(1):
        cases = [*prediction_cases(repeats), *fit_cases(repeats)]
    for case in cases:
        print(f"{case['name']}: {case['ours_s']:.4f} s; {case['peer']}: {case['peer_s']:.3f} s; "
              f"ratio {case['ratio']:.1f} (target {case['target']:g}) {case['note']}")
    return {"cases": cases}


def prediction_cases(repeats: int) -> list[dict[str, Any]]:
    """64 runs of 10 million to 2 billion parameters, half of them with over 10,000 updates."""
    rng = np.random.default_rng(0)
    N, B = 10 ** rng.uniform(7, 9.3, 64), np.round(10 ** rng.uniform(1.5, 4, 64))
    K = np.round(10 ** rng.uniform(3, 5, 64))
    ours, peer = (lambda: nqs_risk_regularized(THETA, N, B, K)), (lambda: loop_over_segments(N, B, K))
    np.testing.assert_allclose(ours(), peer(), rtol=1e-10)
    ours_s, peer_s = alternate(ours, peer, repeats)
    name = "regularised prediction of 64 runs"
    return [
        speed_case(name, ours_s, peer_s, 1.0, "loop over runs and segments"),
        speed_case(name, ours_s, REFERENCE_PREDICTION_S, 50.0, "the reference on a CPU", STATED),
    ]


def fit_cases(repeats: int) -> list[dict[str, Any]]:
    """On the reference's runs to its own cost; where they are not at hand, on ours."""
    try:
        runs = authors_runs(load_dataset("nqs-runs"))
    except DataUnavailable:
        runs, target, where = tiny_runs(load_dataset("tiny-lm-runs")), 0.0, "our runs"
    else:
        target, where = REFERENCE_COST, "the reference's runs"
    runs = runs[runs["fitted"]]
    if not target:
        target = 1.01 * NQS("standard", random_state=1).fit(runs, runs["loss"]).cost_
    ours, peer = (lambda: fits_until(runs, target, "analytic")), (lambda: fits_until(runs, target, "2-point"))
    ours()
    ours_s, peer_s = (seconds / FIT_SEEDS for seconds in alternate(ours, peer, repeats))
    name = f"fit to a cost of {target:.4g} on {where}"
    cases = [speed_case(name, ours_s, peer_s, 3.0, "the same search with finite differences")]
    if where != "our runs":
        cases.append(speed_case(name, ours_s, REFERENCE_FIT_S, 4.0, "the reference on a GPU", STATED))
    return cases


def loop_over_segments(N: np.ndarray, B: np.ndarray, K: np.ndarray) -> np.ndarray:
    """The regularised risk, one run and one segment at a time."""
    return np.array([loop_of_one_run(*run) for run in zip(N, B, K, strict=True)])


def loop_of_one_run(N: float, B: float, K: float) -> float:
    rows = Rows.of(np.array([N]), np.array([B]), np.array([K]))
    n, weight = np.exp(rows.log_n[0, :-2]), rows.weights[0, :-2]
    curvature, start = THETA["Q"] * n ** -THETA["q"], THETA["P"] * n ** -THETA["p"]
    noise = curvature * THETA["R"] * n ** -THETA["r"]
    steps = int(K)
    interval = max(steps // 100, min(1000, steps // 10)) if steps > 10 else 1
    ends = [int((i + 1) * interval / steps * steps) for i in range(steps // interval)] + [steps]
    b, v, rate, w0_sq, begin = np.ones_like(n), np.zeros_like(n), LEARNING_RATE, N * INITIAL_WEIGHT_VARIANCE, 0
    for end in ends:
        bias, variance = 0.5 * start * b, 0.5 * noise * v
        norm = np.sum(weight * ((1 - 2 * np.sqrt(b)) * start / curvature + 2 / curvature * (bias + variance)))
        rate = min(rate, LEARNING_RATE * (1.0 if norm < 0 else 1 - norm / (w0_sq + norm)))
        a_sq = (1 - rate * curvature) ** 2
        decayed = a_sq ** (end - begin)
        v = v * decayed + rate**2 / B * (1 - decayed) / (1 - a_sq)
        b, begin = b * decayed, end
    untrained = THETA["e_irr"] + 0.5 * THETA["P"] * zeta(THETA["p"], N + 1)
    return float(untrained + np.sum(weight * 0.5 * (start * b + noise * v)))


def fits_until(runs: Any, target: float, jacobian: str) -> None:
    """From several seeds: searches from one random start after the other until the target cost."""
    for seed in range(FIT_SEEDS):
        fit_until(runs, target, jacobian, np.random.default_rng(seed))


def fit_until(runs: Any, target: float, jacobian: str, rng: np.random.Generator) -> None:
    law = NQS()
    prepared, log_loss = Rows.of(*(runs[c].to_numpy() for c in "NBK")), np.log(runs["loss"].to_numpy())
    low, high = law._bounds()
    first, last = law._start_ranges(runs[["N", "B", "K"]].to_numpy(), runs["loss"].to_numpy())

    def residuals(x: np.ndarray) -> np.ndarray:
        return log_risk_and_jacobian(x, prepared)[0] - log_loss

    def derivatives(x: np.ndarray) -> np.ndarray:
        return log_risk_and_jacobian(x, prepared)[1]

    for _ in range(1000):
        start = np.clip(rng.uniform(first, last), low + 1e-6, high - 1e-6)
        found = least_squares(
            residuals, start, derivatives if jacobian == "analytic" else jacobian, (low, high), x_scale="jac",
            max_nfev=300,
        )
        if found.cost <= target:
            return
    raise RuntimeError(f"the cost {target} was not reached")


if __name__ == "__main__":
    main()
