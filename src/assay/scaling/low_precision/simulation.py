"""Quantised one-pass SGD, run: all schemes, seeds and sizes advance together, one array operation a step.

Every seed has its own sketch and its own samples; schemes and sizes of one seed share both, and the signs of the
quantisers, so that their differences are paired. The sketched features of a block of samples are one matrix
product; a smaller model sees the first rows of the same sketch, rescaled. The weights of all sizes lie beside each
other in one axis. This is the Monte Carlo against which the recursions are checked, and what the study measures.
Source: arXiv 2602.19241.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import InputError
from assay.scaling.low_precision.quantisers import QUANTITIES, QuantScheme, float_step, round_at
from assay.scaling.low_precision.recursion import check_sizes, phases, step_size
from assay.scaling.low_precision.spectra import Problem, Sketches, gaussian_problem, sketches

__all__ = ["Simulated", "simulate", "sketched_sgd"]

Array = NDArray[np.float64]

BLOCK = 256  # samples drawn at a time
DIVERGED = 100.0  # times E[y^2]: no run that converges passes it


@dataclass(frozen=True)
class Simulated:
    """Risks by scheme, size and seed, shape (schemes, sizes, seeds); the share of clipped values by scheme.

    A run that diverged has the risk inf. `read_quantised` is the risk on quantised features, which the paper bounds:
    larger by tr(Xi v v'). `weights` holds the last weights by scheme and seed, one array a size.
    """

    risks: Array
    read_quantised: Array
    clipped: Array
    weights: list[Array]


def sketched_sgd(
    spectrum: ArrayLike, target: ArrayLike, M: int, N: int, scheme: QuantScheme | None = None,
    lr: float | str = "max", batch: int = 1, noise: float = 0.1, seeds: int = 8, random_state: int = 0,
) -> Array:
    """Run quantised one-pass SGD on sketched linear regression.

    Parameters
    ----------
    spectrum, target : array-like
        As in `risk_recursion`.
    M, N : int
        Size of the model, and samples.
    scheme : QuantScheme, optional
        What is quantised; nothing by default.
    lr : float or "max", default "max"
        First step size, see `risk_recursion`.
    batch : int, default 1
        Samples a step; the rounding of the weights is one for all of a batch.
    noise : float, default 0.1
        Standard deviation of the label's noise.
    seeds : int, default 8
        Independent runs, each with its own sketch.
    random_state : int, default 0

    Returns
    -------
    ndarray, shape (seeds,)
        Risk E(<v, Sx> - y)^2 of the last weights, read in full precision, the label's noise included. A run that
        diverged has inf, with a warning; one in which values were clipped warns too.

    Raises
    ------
    InputError
        As `risk_recursion`.

    Notes
    -----
    Source: arXiv 2602.19241; the schedule (steps halved every T / log2 T updates, last iterate) is that of its setting.

    Examples
    --------
    >>> from assay.scaling import QuantScheme, sketched_sgd, spectrum_powerlaw, target_powerlaw
    >>> lam = spectrum_powerlaw(256, 1.5)
    >>> scheme = QuantScheme("multiplicative", data=0.1, param=0.1)
    >>> sketched_sgd(lam, target_powerlaw(lam, 2.0), M=32, N=1000, scheme=scheme, seeds=4).shape
    (4,)
    """
    problem = gaussian_problem(spectrum, target, noise)
    check_sizes(problem, [M], [N], batch, lr, seeds, random_state)
    chosen = QuantScheme() if scheme is None else scheme
    if not isinstance(chosen, QuantScheme):
        raise InputError(f"scheme must be a QuantScheme, got {type(chosen).__name__}")
    drawn = sketches(problem, M, seeds, random_state)
    found = simulate(problem, drawn, [M], N, [chosen], lr, batch, random_state)
    lost = int(np.isinf(found.risks).sum())
    if lost:
        warnings.warn(f"{lost} of {seeds} runs diverged: their risk is inf", stacklevel=2)
    if found.clipped[0] > 0:
        warnings.warn(
            f"{found.clipped[0]:.2%} of the quantised values were clipped, which the theory leaves out: raise "
            f"full_scale", stacklevel=2,
        )
    return found.risks[0, 0]


def simulate(
    problem: Problem, drawn: Sketches, sizes: Sequence[int], N: int, schemes: Sequence[QuantScheme], lr: float | str,
    batch: int = 1, random_state: int = 0,
) -> Simulated:
    """Run every scheme, size and seed together; the largest size is at most that of the sketches."""
    rounding = [scheme.is_rounding for scheme in schemes]
    parts = []
    for kind in (False, True):
        chosen = [scheme for scheme, is_rounding in zip(schemes, rounding, strict=True) if is_rounding is kind]
        if chosen:
            parts.append(_Runs(problem, drawn, sizes, chosen, lr, batch, random_state).finish(N))
    order = np.argsort(np.argsort(rounding, kind="stable"), kind="stable")  # signs first, then rounding
    return Simulated(
        np.concatenate([part.risks for part in parts])[order],
        np.concatenate([part.read_quantised for part in parts])[order],
        np.concatenate([part.clipped for part in parts])[order],
        [np.concatenate(arrays)[order] for arrays in zip(*(part.weights for part in parts), strict=True)],
    )


class _Runs:
    """State of the runs of one kind of quantiser (signs, or rounding), and their step.

    Weights have the axes (schemes, seeds, flat), where flat joins the sizes: `owner` is the size that an entry
    belongs to, `source` the row of the largest sketch that it reads. What is seen of a sample has an axis for the
    batch before flat.
    """

    def __init__(
        self, problem: Problem, drawn: Sketches, sizes: Sequence[int], schemes: Sequence[QuantScheme],
        lr: float | str, batch: int, random_state: int,
    ) -> None:
        self.problem, self.drawn, self.sizes, self.schemes = problem, drawn, list(sizes), list(schemes)
        self.batch, self.largest, self.seeds = batch, drawn.S.shape[1], len(drawn.S)
        self.rngs = [np.random.default_rng([random_state, seed, 1]) for seed in range(self.seeds)]
        self.draws = [problem.sketched(S) for S in drawn.S]
        self.source = np.concatenate([np.arange(M) for M in sizes])
        self.owner = np.repeat(np.arange(len(sizes)), sizes)
        self.scale = np.sqrt(self.largest / np.repeat(sizes, sizes))
        self.starts = np.cumsum([0, *sizes[:-1]])  # where each size's entries begin
        traces = np.array([[np.trace(A) for A in drawn.of(M)[0]] for M in sizes])
        first = np.stack([
            np.stack([step_size(scheme, trace, M, lr) for M, trace in zip(sizes, traces, strict=True)], axis=-1)
            for scheme in schemes
        ])
        self.lr = first[:, :, self.owner]
        self.noises = {name: _Noise(self.schemes, name) for name in QUANTITIES}
        self.rounds = any(scheme.is_rounding for scheme in schemes)
        self.v = np.zeros((len(schemes), self.seeds, len(self.source)))

    def finish(self, N: int) -> Simulated:
        """Run through N samples and read the risks."""
        updates, block = N // self.batch, max(1, BLOCK // self.batch)
        factors = np.concatenate([np.full(length, factor) for length, factor in phases(updates)])
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, updates, block):
                steps = factors[start:start + block]
                z, y = self._samples(len(steps))
                dice = self._dice(len(steps))
                for t, factor in enumerate(steps):
                    self._step(z[t], y[t], {name: values[t] for name, values in dice.items()}, factor)
            return self._read()

    def _samples(self, steps: int) -> tuple[Array, Array]:
        """Sketched features (steps, seeds, batch, largest) and labels (steps, seeds, batch)."""
        z = np.empty((steps, self.seeds, self.batch, self.largest))
        y = np.empty((steps, self.seeds, self.batch))
        for seed, (rng, draw) in enumerate(zip(self.rngs, self.draws, strict=True)):
            features, label = draw(rng, steps * self.batch)
            z[:, seed] = features.reshape(steps, self.batch, -1)
            y[:, seed] = label.reshape(steps, self.batch)
        return z, y

    def _dice(self, steps: int) -> dict[str, Array]:
        """Signs or uniform numbers of the quantities that some scheme quantises."""
        shapes: dict[str, tuple[int, ...]] = {
            "data": (self.batch, self.largest), "param": (1, self.largest), "label": (self.batch, 1),
            "activation": (self.batch, len(self.sizes)), "gradient": (self.batch, len(self.sizes)),
        }
        dice = {}
        for name, shape in shapes.items():
            if not self.noises[name].is_on:
                continue
            values = np.empty((steps, self.seeds, *shape))
            for seed, rng in enumerate(self.rngs):
                size = (steps, *shape)
                values[:, seed] = rng.random(size) if self.rounds else rng.integers(0, 2, size, np.int8) * 2.0 - 1.0
            dice[name] = values
        return dice

    def _step(self, z: Array, y: Array, dice: dict[str, Array], factor: float) -> None:
        features = self._quantised("data", z[..., self.source] * self.scale, dice, self.source)
        weights = self._quantised("param", self.v[:, :, None], dice, self.source)
        read = self._quantised("activation", np.add.reduceat(features * weights, self.starts, axis=-1), dice)
        error = self._quantised("gradient", self._quantised("label", y[..., None], dice) - read, dice)
        move = error[..., self.owner] * features
        self.v += factor * self.lr * (move[:, :, 0] if self.batch == 1 else move.mean(axis=2))

    def _quantised(self, name: str, u: Array, dice: dict[str, Array], source: NDArray[np.intp] | None = None) -> Array:
        noise = self.noises[name]
        if not noise.is_on:
            return u
        chance = dice[name] if source is None else dice[name][..., source]
        return noise.round(u, chance) if self.rounds else noise.shift(u, chance)

    def _read(self) -> Simulated:
        risks, extras, weights = [], [], []
        splits = np.array([scheme.split("data") for scheme in self.schemes])[:, :, None, None]
        for number, M in enumerate(self.sizes):
            A, b = self.drawn.of(M)
            v = self.v[:, :, self.owner == number]
            fitted = np.sum(v * np.einsum("kri,rij->krj", v, A), axis=-1)
            risks.append(self.problem.second_moment - 2 * np.einsum("kri,ri->kr", v, b) + fitted)
            diagonal = np.diagonal(A, axis1=-2, axis2=-1)
            extras.append(np.sum((splits[:, 0] * diagonal + splits[:, 1]) * v**2, axis=-1))
            weights.append(v)
        found, extra = np.stack(risks, axis=1), np.stack(extras, axis=1)
        lost = ~np.isfinite(found) | (found > DIVERGED * self.problem.second_moment)
        found[lost] = np.inf
        clipped = _clipped(self.noises, len(self.schemes))
        return Simulated(found, np.where(lost, np.inf, found + extra), clipped, weights)


class _Noise:
    """One quantity's quantiser for all schemes at once; constants have the axes (schemes, 1, 1, 1)."""

    def __init__(self, schemes: Sequence[QuantScheme], name: str) -> None:
        def column(values: list[float]) -> Array:
            return np.array(values)[:, None, None, None]

        splits = [scheme.split(name) for scheme in schemes]
        self.relative = column([np.sqrt(relative) for relative, _ in splits])
        self.absolute = column([np.sqrt(absolute) for _, absolute in splits])
        self.bits = column([float(getattr(scheme, name)) for scheme in schemes])
        self.floats = column([scheme.mode == "float" for scheme in schemes]).astype(bool)
        self.scale = column([scheme.full_scale for scheme in schemes])
        self.is_on = bool(self.bits.any())
        self.clipped, self.seen = np.zeros(len(schemes)), 0

    def shift(self, u: Array, signs: Array) -> Array:
        """u + sqrt(eps) |u| s + sqrt(eps) s; the sign of u makes no difference to a fair sign."""
        if not self.absolute.any():
            return u * (1 + self.relative * signs)
        if not self.relative.any():
            return u + self.absolute * signs
        return u + (self.relative * u + self.absolute) * signs

    def round(self, u: Array, uniform: Array) -> Array:
        """Stochastic rounding to so many bits; a scheme with 0 bits leaves u as it is."""
        u = np.broadcast_to(u, np.broadcast_shapes(u.shape, self.bits.shape, uniform.shape))
        step = np.where(self.floats, float_step(u, self.bits), 2 * self.scale / 2.0**self.bits)
        rounded = round_at(u, step, uniform)
        inside = np.where(self.floats, rounded, np.clip(rounded, -self.scale, self.scale - step))
        self.clipped += (inside != rounded).sum(axis=(1, 2, 3)) * (self.bits[:, 0, 0, 0] > 0)
        self.seen += u[0].size
        return np.where(self.bits > 0, inside, u)


def _clipped(noises: dict[str, _Noise], schemes: int) -> Array:
    """Share of clipped values by scheme, over all quantities."""
    seen = sum(noise.seen for noise in noises.values())
    total = np.sum([noise.clipped for noise in noises.values()], axis=0)
    return total / seen if seen else np.zeros(schemes)
