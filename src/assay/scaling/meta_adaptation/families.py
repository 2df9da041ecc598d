"""The tasks of the study: the paper's regulators and one-qubit gates, and gates on real devices.

A *contest* pits controllers against each other on the same test tasks. All of them begin with one controller made
for the noise as it is (`fixed`); the noise then grows by a factor. `adapted` takes K gradient steps on each task's own
loss, `retuned` K steps on the mean loss of other devices' tasks and serves all tasks with the result, `swapped` serves
each task with what another task was adapted to. Step sizes are chosen, for each alike, on the tuning devices alone,
from a grid that is carried on until the best one lies inside. So

    gain over fixed = (fixed - retuned) + (retuned - adapted),

and only the second part needs a controller for each device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from assay.scaling.meta_adaptation.curves import AdaptationCurve, torch_package
from assay.scaling.meta_adaptation.devices import possible
from assay.scaling.meta_adaptation.policy import PulsePolicy, meta_train
from assay.scaling.meta_adaptation.qubits import QubitFamily

__all__ = ["gate_contest", "pair_contest", "pair_start", "paper_curves", "paper_sweep", "rates_of"]

Array = NDArray[np.float64]

RELAXATION, DEPHASING = (0.01, 0.08), (0.02, 0.15)
"""The paper's ranges of one-qubit rates, uniform, the gate taking one unit of time."""
PAPER_HIDDEN, PAPER_BATCH, PAPER_RATE = (128, 128), 8, 0.01
PAIR_HIDDEN, PAIR_BATCH = (256, 256, 256, 256), 4
PAIR_RATES = (2e-5, 2e-4, 1e-3, 4e-3)
"""Of Adam; the paper's is 2e-4."""
GATE_RATES = (0.05, 0.2, 0.5)
"""Of gradient descent, in units of the largest stable step."""
WIDER, MOST_WIDENINGS = 2.0, 8
"""A grid of step sizes is carried on by this factor, so many times at most, where the best one lies at its end."""
PAPER_GAP = 0.971 - 0.542
"""Fidelity that the paper's two-qubit start lacks at ten times the noise, of what 30 steps make of it."""
FIRST_ITERATIONS = 20
OVERROTATION = 1.3
SEGMENTS = 20


def paper_rates(rng: np.random.Generator, n: int) -> Array:
    """Rates [relaxation, dephasing] of n of the paper's one-qubit tasks."""
    return np.column_stack([rng.uniform(*RELAXATION, n), rng.uniform(*DEPHASING, n)])


def paper_curves(seed: int, n_tasks: int, steps: int, iterations: int) -> dict[str, Array]:
    """Losses (n_tasks, steps + 1) from a meta-trained start, and each task's lowest loss by GRAPE, (n_tasks,)."""
    family = QubitFamily("x", paper_rates(np.random.default_rng([seed, 1]), n_tasks), n_segments=SEGMENTS)
    scale = np.array([np.mean(RELAXATION), np.mean(DEPHASING)])
    policy = PulsePolicy(family, scale, PAPER_HIDDEN, layer_norm=False)
    start = meta_train(policy, paper_rates, seed=seed, batch=PAPER_BATCH, iterations=iterations)[iterations]
    losses = AdaptationCurve(policy.loss_fn(), start, family.rates, PAPER_RATE, steps).run()
    lowest = family.losses(family.optimal_pulses(family.pooled_pulse(max_iter=60), max_iter=60))
    return {"losses": losses, "lowest": lowest}


def paper_sweep(seed: int, levels: Array, n_tasks: int) -> pd.DataFrame:
    """At each share of the paper's ranges: variance of the rates, and mean gain from the mean task's pulse to the best.

    The rates lie around their middle; the start is the best pulse for the middle, the end each task's best.
    """
    middle = np.array([np.mean(RELAXATION), np.mean(DEPHASING)])
    rng = np.random.default_rng([seed, 2])
    rates = [middle + level * (paper_rates(rng, n_tasks) - middle) for level in levels]
    family = QubitFamily("x", np.concatenate(rates), n_segments=SEGMENTS)
    start = QubitFamily("x", middle[None], n_segments=SEGMENTS).pooled_pulse(max_iter=100)
    gains = family.losses(start) - family.losses(family.optimal_pulses(start, max_iter=100))
    return pd.DataFrame({
        "level": levels, "variance": [float(each.var(axis=0, ddof=1).sum()) for each in rates],
        "a_inf": gains.reshape(len(levels), n_tasks).mean(axis=1),
    })


def rates_of(table: pd.DataFrame, per_device: int, n_devices: int, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tuning rows and test rows: other devices each, up to `n_devices` for the test and half as many for tuning."""
    rng = np.random.default_rng(seed)
    rows = possible(table)
    rows = rows.iloc[rng.permutation(len(rows))]
    rows = rows.groupby("backend", sort=True).head(per_device).sort_index()
    backends = np.array(sorted(rows["backend"].unique()))
    order = backends[rng.permutation(len(backends))]
    n_test = min(n_devices, 2 * len(order) // 3)
    test, tune = order[:n_test], order[n_test: n_test + n_test // 2]
    return rows[rows["backend"].isin(tune)], rows[rows["backend"].isin(test)]


def gate_contest(
    table: pd.DataFrame, noise: float, steps: int, *, per_device: int, n_devices: int, seed: int = 0
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Losses of all arms on one-qubit X gates of real qubits, one row a qubit; and their rates."""
    tune, test = rates_of(table, per_device, n_devices, seed)
    fixed = _qubits(tune, 1.0).pooled_pulse(max_iter=100)
    tuning, testing = _qubits(tune, noise), _qubits(test, noise)
    longest = tuning.largest_stable_step(fixed, 4)
    contest = _Contest(tuning.loss_fn(), tuning.rates, testing.rates, "gd", [f * longest for f in GATE_RATES], steps)
    found = contest.run(fixed)
    spoilt = contest.run(OVERROTATION * fixed)
    columns = {
        "task": np.arange(len(test)), "device": test["backend"].to_numpy(), **found,
        "detuned_start": spoilt["start"], "detuned": spoilt["adapted"], "detuned_retuned": spoilt["retuned"],
        "optimum": testing.losses(testing.optimal_pulses(fixed, max_iter=100)),
    }
    return pd.DataFrame(columns), pd.DataFrame(testing.rates, columns=["relaxation", "dephasing"])


def pair_start(
    table: pd.DataFrame, noise: float, iterations: int, *, n_devices: int, seed: int = 0
) -> dict[str, Array]:
    """Weights of the two-qubit policy meta-trained on the tuning pairs at the noise as it is.

    `trained` is the last. `early` is the latest of the first ones, from the untrained network on, whose fidelity at
    `noise` times the rates, on the tuning pairs, lies as far below the trained one's as the paper's start lies below
    its end: a start nearer to the best that the noise allows could not gain what the paper reports.
    """
    tune, _ = rates_of(table, 1, n_devices, seed)
    family = _pairs(tune, 1.0)
    policy = _pair_policy(family)

    def draw(rng: np.random.Generator, n: int) -> Array:
        return family.rates[rng.integers(len(family.rates), size=n)]

    first = range(min(FIRST_ITERATIONS, iterations) + 1)
    kept = meta_train(policy, draw, seed=seed, batch=PAIR_BATCH, iterations=iterations, keep=first)
    grown = _pairs(tune, noise).rates
    losses = {number: float(_shared(policy.loss_fn(), theta, grown).mean()) for number, theta in kept.items()}
    early = max((n for n in first if losses[n] >= losses[iterations] + PAPER_GAP), default=0)
    return {"trained": kept[iterations], "early": kept[early], "early_iteration": np.array(early)}


def pair_contest(
    table: pd.DataFrame, noise: float, steps: int, start: Array, *, n_devices: int, optimum: bool, seed: int = 0
) -> pd.DataFrame:
    """Losses of all arms on two-qubit CZ gates of real pairs, one pair a device, one row each."""
    tune, test = rates_of(table, 1, n_devices, seed)
    policy = _pair_policy(_pairs(tune, 1.0))
    tuning, testing = _pairs(tune, noise), _pairs(test, noise)
    contest = _Contest(policy.loss_fn(), tuning.rates, testing.rates, "adam", PAIR_RATES, steps, clip=1.0)
    columns = {"task": np.arange(len(test)), "device": test["backend"].to_numpy(), **contest.run(start)}
    if optimum:
        torch = torch_package()
        with torch.no_grad():
            pulse = policy.pulse(torch.from_numpy(start), torch.from_numpy(tuning.rates.mean(axis=0))).numpy()
        pooled = tuning.pooled_pulse(pulse, max_iter=60)
        columns["pooled-grape"] = testing.losses(pooled)
        columns["optimum"] = testing.losses(testing.optimal_pulses(pooled, max_iter=30))
    return pd.DataFrame(columns)


class _Contest:
    """Controllers made from one start by K steps, on test tasks, with step sizes chosen on tuning tasks."""

    def __init__(
        self, loss: Callable[[Any, Any], Any], tune: Array, test: Array, optimizer: str, rates: Any, steps: int,
        clip: float | None = None,
    ) -> None:
        self.loss, self.tune, self.test = loss, tune, test
        self.optimizer, self.rates, self.steps, self.clip = optimizer, list(rates), steps, clip

    def run(self, start: Array) -> dict[str, Array]:
        """Losses of the test tasks by arm, and the adapted ones' after each step as `step_0` ..."""
        torch = torch_package()
        rate = _tuned(lambda rate: self._curve(self.loss, start, self.tune, rate)[0], self.rates)
        losses, thetas = self._curve(self.loss, start, self.test, rate)
        pooled, flat = self._pooled(torch), self.tune.reshape(1, -1)
        shared_rate = _tuned(lambda rate: self._curve(pooled, start, flat, rate)[0], self.rates)
        _, one = self._curve(pooled, start, flat, shared_rate)
        other = np.roll(np.arange(len(self.test)), len(self.test) // 2)
        with torch.no_grad():
            swapped = torch.func.vmap(self.loss)(torch.from_numpy(thetas[other]), torch.from_numpy(self.test)).numpy()
        retuned = _shared(self.loss, one[0], self.test)
        curve = {f"step_{k}": losses[:, k] for k in range(self.steps + 1)}
        chosen = {"rate": np.full(len(losses), rate), "retuned_rate": np.full(len(losses), shared_rate)}
        return {
            "start": losses[:, 0], "adapted": losses[:, -1], "retuned": retuned, "swapped": swapped, **chosen, **curve
        }

    def _curve(self, loss: Any, start: Array, tasks: Array, rate: float) -> tuple[Array, Array]:
        curve = AdaptationCurve(loss, start, tasks, rate, self.steps, self.optimizer, clip=self.clip)
        return curve.losses_and_thetas()

    def _pooled(self, torch: Any) -> Callable[[Any, Any], Any]:
        """The mean loss of all tuning tasks, their rates in one row."""
        width = self.tune.shape[1]
        every = torch.func.vmap(self.loss, in_dims=(None, 0))
        return lambda theta, flat: every(theta, flat.view(-1, width)).mean()


def _shared(loss: Callable[[Any, Any], Any], theta: Array, tasks: Array) -> Array:
    """Loss of each task under one controller, (n_tasks,)."""
    torch = torch_package()
    with torch.no_grad():
        return torch.func.vmap(loss, in_dims=(None, 0))(torch.from_numpy(theta), torch.from_numpy(tasks)).numpy()


def _tuned(curve: Callable[[float], Array], rates: Iterable[float]) -> float:
    """The rate whose losses (tasks, steps + 1) are lowest at the end, on average; one that diverged is never taken.

    Where the best one lies at an end of the grid, the grid is carried on until it lies inside.
    """
    ends: dict[float, float] = {}

    def tried(rate: float) -> float:
        ends[rate] = float(curve(rate)[:, -1].mean())
        return min(ends, key=lambda rate: (not np.isfinite(ends[rate]), ends[rate]))

    best = [tried(rate) for rate in rates][-1]
    for _ in range(MOST_WIDENINGS):
        if min(ends) < best < max(ends):
            break
        best = tried(best / WIDER if best == min(ends) else best * WIDER)
    return best


def _pair_policy(family: QubitFamily) -> PulsePolicy:
    return PulsePolicy(family, family.rates.mean(axis=0), PAIR_HIDDEN, layer_norm=True)


def _qubits(rows: pd.DataFrame, noise: float) -> QubitFamily:
    return QubitFamily(
        "x", t1_us=rows["t1_us"], t2_us=rows["t2_us"], gate_ns=rows["gate_ns"], n_segments=SEGMENTS, noise=noise
    )


def _pairs(rows: pd.DataFrame, noise: float) -> QubitFamily:
    return QubitFamily(
        "cz", t1_us=rows[["t1_first", "t1_second"]], t2_us=rows[["t2_first", "t2_second"]], gate_ns=rows["gate_ns"],
        n_segments=SEGMENTS, noise=noise,
    )
