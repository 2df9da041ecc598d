"""The risk of quantised one-pass SGD without a single random draw: means and second moments of the weights.

The step is v <- v + g * Qo(Ql(y) - Qa(<Qd(z), Qp(v)>)) * Qd(z) with z = Sx. Its mean is drawn to A~^-1 b, where
A~ = A + Xi is the second moment of the quantised features (Xi = eps I, or eps diag A): the solution of ridge
regression. Its second moment obeys a linear recursion whose coefficients are fourth moments of the features.

Two ways of following it are here.

- `method="full"` keeps the whole M x M second moment in the coordinates in which the quantisers act. For Gaussian
  features and the fair-sign quantisers of `QuantScheme` it is exact, for every quantity, both modes and any batch. A
  step costs a few products of M x M matrices.
- `method="eigenbasis"` treats the quantised features as Gaussian with covariance A~. Then the label is
  <theta~, z~> plus independent noise, the diagonal of the second moment in the eigenbasis of A~ is closed, and a step
  costs O(M): N M a configuration after one eigendecomposition, all schemes and sketches at once. What it leaves out is
  of relative size eps, and falls with M. Where the weights are rounded relatively, their squares are averaged over
  the coordinates: a Gaussian sketch has no preferred one.

The risk is that of the final weights, read in full precision on unquantised features: E(<v, z> - y)^2, the noise of
the label included. The paper's risk reads quantised features; the two differ by tr(Xi E[v v']). Steps halve every
T / log2 T updates, T = N / batch; the last iterate counts. Source: arXiv 2602.19241 for the setting; the recursions
are reconstructed, and are checked against simulation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from assay.errors import InputError, as_matrix
from assay.scaling.low_precision.quantisers import QUANTITIES, QuantScheme
from assay.scaling.low_precision.spectra import Problem, Sketches, gaussian_problem, sketches, whole

__all__ = [
    "check_sizes", "coarsest", "limit_risks", "phases", "risk_grid", "risk_recursion", "sketch_risks", "step_size",
    "track",
]

Array = NDArray[np.float64]

METHODS = ("eigenbasis", "full")
OTHERS = tuple(name for name in QUANTITIES if name != "data")
STABLE = 0.5  # of one over the trace of the quantised features' second moment


def risk_recursion(
    spectrum: ArrayLike, target: ArrayLike, M: int, N: int, scheme: QuantScheme | None = None,
    lr: float | str = "max", *, batch: int = 1, noise: float = 0.1, seeds: int = 8, random_state: int = 0,
    method: str = "eigenbasis", sketch: ArrayLike | None = None,
) -> float:
    """Expected risk of quantised one-pass SGD on sketched linear regression.

    Parameters
    ----------
    spectrum : array-like, shape (p,) or (p, p)
        Eigenvalues of the features' covariance, or the covariance.
    target : array-like, shape (p,)
        The true weights, in the same coordinates.
    M : int
        Size of the model: rows of the sketch, at most p.
    N : int
        Samples, each used once.
    scheme : QuantScheme, optional
        What is quantised; nothing by default. Real rounding ("int", "float") is read as its average second moment.
    lr : float or "max", default "max"
        First step size, or half of one over the trace of the quantised features' second moment, divided by 1 + eps for
        each other relative quantiser. Larger steps diverge under coarse quantisers, which is no law.
    batch : int, default 1
        Samples a step.
    noise : float, default 0.1
        Standard deviation of the label's noise.
    seeds : int, default 8
        Sketches to average over.
    random_state : int, default 0
        Seed of the sketches: `sketched_sgd` draws the same ones.
    method : {"eigenbasis", "full"}, default "eigenbasis"
        Fast, with Gaussian quantised features; or exact, for small M.
    sketch : array-like, shape (M, p), optional
        One sketch of your own, in the place of random ones.

    Returns
    -------
    float
        Mean over the sketches of E(<v, Sx> - y)^2, the label's noise included; inf where the recursion diverges.

    Raises
    ------
    InputError
        M above p, a size or a number of samples below 1 (below 2 steps), a covariance that is not positive
        semi-definite, a step size that is not positive.

    Notes
    -----
    Reconstructed for the setting of arXiv 2602.19241; see the module.

    Examples
    --------
    >>> from assay.scaling import QuantScheme, risk_recursion, spectrum_powerlaw, target_powerlaw
    >>> lam = spectrum_powerlaw(256, 1.5)
    >>> w = target_powerlaw(lam, 2.0)
    >>> exact = risk_recursion(lam, w, M=32, N=2000)
    >>> coarse = risk_recursion(lam, w, M=32, N=2000, scheme=QuantScheme("additive", data=0.1))
    >>> bool(exact < coarse)
    True
    """
    problem = gaussian_problem(spectrum, target, noise)
    scheme = QuantScheme() if scheme is None else _scheme(scheme)
    check_sizes(problem, [M], [N], batch, lr, seeds, random_state)
    if method not in METHODS:
        raise InputError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    drawn = sketches(problem, M, seeds, random_state) if sketch is None else _own(problem, sketch, M)
    if method == "full":
        risks = [
            track(A, b, problem.second_moment, N, scheme, lr, batch)
            for A, b in zip(*drawn.of(M), strict=True)
        ]
    else:
        risks = list(sketch_risks(problem, drawn, M, [N], [scheme], lr, batch)[0, 0])
    return float(np.mean(risks))


def risk_grid(
    spectrum: ArrayLike, target: ArrayLike, sizes: Sequence[int], samples: Sequence[int],
    schemes: Sequence[QuantScheme], lr: float | str = "max", *, batch: int = 1, noise: float = 0.1, seeds: int = 8,
    random_state: int = 0,
) -> pd.DataFrame:
    """Expected risks of a whole grid of sizes, samples and schemes, by the fast recursion.

    Parameters
    ----------
    spectrum, target : array-like
        As in `risk_recursion`.
    sizes : sequence of int
        Sizes M; the sketch of the largest is drawn, the smaller ones see its first rows.
    samples : sequence of int
        Numbers of samples N.
    schemes : sequence of QuantScheme
    lr, batch, noise, seeds, random_state
        As in `risk_recursion`.

    Returns
    -------
    DataFrame
        One row a size, number of samples and scheme: M, N, the scheme's number, mode and eps (of its coarsest
        quantity), risk, and excess, the risk without the label's noise.

    Raises
    ------
    InputError
        As `risk_recursion`; an empty list.

    Notes
    -----
    Reconstructed for the setting of arXiv 2602.19241.

    Examples
    --------
    >>> from assay.scaling import QuantScheme, risk_grid, spectrum_powerlaw, target_powerlaw
    >>> lam = spectrum_powerlaw(128, 1.5)
    >>> schemes = [QuantScheme(), QuantScheme("multiplicative", data=0.1)]
    >>> risk_grid(lam, target_powerlaw(lam, 2.0), [8, 16], [500], schemes, seeds=2).shape
    (4, 7)
    """
    problem = gaussian_problem(spectrum, target, noise)
    check_sizes(problem, sizes, samples, batch, lr, seeds, random_state)
    if not isinstance(schemes, list | tuple) or not schemes:
        raise InputError(f"schemes must be a list of at least one QuantScheme, got {schemes!r}")
    schemes = [_scheme(scheme) for scheme in schemes]
    drawn = sketches(problem, max(sizes), seeds, random_state)
    rows = []
    for M in sizes:
        found = sketch_risks(problem, drawn, M, samples, schemes, lr, batch).mean(axis=-1)
        for N, risks in zip(samples, found, strict=True):
            rows += [
                {
                    "M": M, "N": N, "scheme": number, "mode": scheme.mode, "eps": coarsest(scheme), "risk": risk,
                    "excess": risk - problem.noise**2,
                }
                for number, (scheme, risk) in enumerate(zip(schemes, risks, strict=True))
            ]
    return pd.DataFrame(rows)


def coarsest(scheme: QuantScheme) -> float:
    """The largest eps of a scheme's quantities."""
    return max(scheme.eps(name) for name in QUANTITIES)


def step_size(scheme: QuantScheme, trace: Any, M: Any, lr: float | str) -> Any:
    """First step size for features of that trace: `lr`, or the largest that the theory's condition allows by half."""
    if not isinstance(lr, str):
        return np.full_like(np.asarray(trace, dtype=float), lr)
    relative, absolute = scheme.split("data")
    others = np.prod([1 + scheme.split(name)[0] for name in ("param", "activation", "gradient")])
    return STABLE / ((trace * (1 + relative) + absolute * M) * others)


def phases(updates: int) -> Iterator[tuple[int, float]]:
    """Lengths of the stretches of constant step, and the factor on the step: halved every T / log2 T updates."""
    length = max(1, int(updates / np.log2(max(updates, 2))))
    for number, start in enumerate(range(0, updates, length)):
        yield min(length, updates - start), 0.5**number


# --- the fast recursion, in the eigenbasis of the quantised features ----------------------------------------------


def sketch_risks(
    problem: Problem, drawn: Sketches, M: int, samples: Sequence[int], schemes: Sequence[QuantScheme],
    lr: float | str, batch: int,
) -> Array:
    """Risks by number of samples, scheme and sketch, shape (samples, schemes, sketches)."""
    A, b = drawn.of(M)
    eigen = _Eigen.of(A, b, problem.second_moment, schemes, lr)
    return np.stack([eigen.risk(N // batch, batch) for N in samples])


@dataclass(frozen=True)
class _Eigen:
    """What the fast recursion needs, in the eigenbasis of A~, by scheme and sketch.

    The arrays have shape (schemes, sketches, M) or (schemes, sketches, 1). `bases` holds the eigenvectors of each
    scheme, `extra` the diagonal of Xi in the coordinates of the sketch; `eps` the relative and absolute second
    moments of label, parameter, activation and gradient, in that order, along its last axis.
    """

    mu: Array
    theta: Array  # where the mean goes, A~^-1 b
    bases: list[Array]
    extra: Array
    lr: Array
    residual: Array  # variance of the label that A~^-1 b leaves
    second: float  # E[y^2]
    eps: Array

    @classmethod
    def of(cls, A: Array, b: Array, second: float, schemes: Sequence[QuantScheme], lr: float | str) -> _Eigen:
        diagonal, M = np.diagonal(A, axis1=-2, axis2=-1), A.shape[-1]
        solved: dict[float, tuple[Array, Array]] = {}  # a constant step changes no eigenvector
        mus, bases, extras, steps = [], [], [], []
        for scheme in schemes:
            relative, absolute = scheme.split("data")
            if relative not in solved:
                solved[relative] = np.linalg.eigh(A + relative * diagonal[..., None] * np.eye(M))
            values, basis = solved[relative]
            mus.append(values + absolute)
            bases.append(basis)
            extras.append(relative * diagonal + absolute)
            steps.append(step_size(scheme, diagonal.sum(axis=-1, keepdims=True), M, lr))
        mu = np.stack(mus)
        projected = np.stack([np.einsum("rij,ri->rj", basis, b) for basis in bases])
        theta = projected / mu
        others = [[scheme.split(name) for name in OTHERS] for scheme in schemes]
        return cls(
            mu, theta, bases, np.stack(extras), np.stack(steps),
            second - np.sum(projected * theta, axis=-1, keepdims=True), second,
            np.reshape(others, (len(schemes), 1, 1, 2 * len(OTHERS))),
        )

    def risk(self, updates: int, batch: int) -> Array:
        """E(<v, z> - y)^2 after the last update, shape (schemes, sketches)."""
        mean, square = -self.theta, self.theta**2
        with np.errstate(over="ignore", invalid="ignore"):
            for length, factor in phases(updates):
                mean, square = self._advance(mean, square, factor * self.lr, length, batch)
            spread, at = square - mean**2, self.theta + mean
            risk = self.second + np.sum(self.mu * (spread + at**2 - 2 * self.theta * at), axis=-1)
            risk -= self._of_quantisation(spread, at)
        return np.where(np.isfinite(risk), risk, np.inf)

    def _of_quantisation(self, spread: Array, at: Array) -> Array:
        """tr(Xi E[v v']): what A~ counts and full-precision features don't have."""
        found = np.zeros(at.shape[:2])
        for number, (basis, extra) in enumerate(zip(self.bases, self.extra, strict=True)):
            if extra.any():
                weights = np.einsum("rij,rj->ri", basis, at[number])
                found[number] = np.sum(extra * weights**2, axis=-1)
                found[number] += np.einsum("ri,rij,rj->r", extra, basis**2, spread[number], optimize=True)
        return found

    def _advance(self, mean: Array, square: Array, step: Array, length: int, batch: int) -> tuple[Array, Array]:
        """So many updates at one step size; `mean` and the diagonal `square` are those of v - A~^-1 b.

        Isserlis: E[(e'z)^2 z z'] = 2 A C A + tr(A C) A, here its diagonal. Samples of one batch share the weights,
        hence the share 1 - 1/batch of the squared mean gradient.
        """
        mu = self.mu
        label_r, label_a, param_r, param_a, act_r, act_a, out_r, out_a = np.moveaxis(self.eps, -1, 0)
        gain, shared = (1 + out_r) * step**2 / batch, step**2 * (1 - 1 / batch)
        shrink = 1 - step * mu
        own = 1 - 2 * step * mu + (2 * gain + shared) * mu**2
        constant = step**2 / batch * out_a * mu + gain * (
            mu * (self.residual + label_a + act_a + label_r * self.second) + 2 * label_r * (mu * self.theta) ** 2
        )
        coupling = gain * mu
        is_weighted = bool(self.eps[..., 2:5].any())  # quantisers whose noise follows the weights
        for _ in range(length):
            grown = own * square
            grown += coupling * np.einsum("krm,krm->kr", mu, square)[..., None]
            grown += constant
            if is_weighted:
                second = square + 2 * mean * self.theta + self.theta**2
                rounded = param_a + param_r * second.mean(axis=-1, keepdims=True)
                read = act_r * (second + rounded)
                grown += coupling * np.sum(mu * (rounded + read), axis=-1, keepdims=True)
                grown += mu**2 * (2 * gain * (rounded + read) + shared * rounded)
            mean, square = shrink * mean, grown
        return mean, square


# --- the exact recursion, in the coordinates of the quantisers ----------------------------------------------------


def track(
    A: Array, b: Array, second: float, N: int, scheme: QuantScheme, lr: float | str, batch: int
) -> float:
    """Risk after N samples by the whole second moment of the weights (M x M), exact for fair-sign quantisers."""
    return _Full(A, b, second, scheme, batch).run(N // batch, step_size(scheme, np.trace(A), len(A), lr).item())


class _Full:
    """Mean m and second moment V of the weights under Gaussian features z ~ N(0, A) with E[y z] = b.

    Features z + xi with independent xi_i of variance q_i, which is eps or eps z_i^2, and fourth moment q_i^2 (a fair
    sign). All fourth moments that a step needs are sums of products of A and of E[q_i z_k z_l], E[q_i q_j].
    """

    def __init__(self, A: Array, b: Array, second: float, scheme: QuantScheme, batch: int) -> None:
        self.A, self.b, self.second, self.batch = A, b, second, batch
        self.relative, self.absolute = scheme.split("data")
        self.split = {name: scheme.split(name) for name in OTHERS}
        self.diagonal = np.diag(A).copy()
        self.quantised = A + np.diag(self.relative * self.diagonal + self.absolute)
        self.theta = np.linalg.solve(A, b)
        self.residual = second - float(b @ self.theta)
        # E[q_i q_j]; the fourth moment of xi_i is q_i^2 where three times that would be a Gaussian's.
        self.pairs = self.relative**2 * (np.outer(self.diagonal, self.diagonal) + 2 * A**2) + self.absolute**2

    def run(self, updates: int, lr: float) -> float:
        mean, V = np.zeros_like(self.b), np.zeros_like(self.A)
        with np.errstate(over="ignore", invalid="ignore"):
            for length, factor in phases(updates):
                for _ in range(length):
                    mean, V = self.step(mean, V, factor * lr)
            risk = self.risk(mean, V)
        return risk if np.isfinite(risk) else np.inf

    def risk(self, mean: Array, V: Array) -> float:
        return float(self.second - 2 * self.b @ mean + np.sum(self.A * V))

    def step(self, mean: Array, V: Array, lr: float) -> tuple[Array, Array]:
        drift = np.outer(mean, self.b) - V @ self.quantised
        V = V + lr * (drift + drift.T) + lr**2 * self.gradient_moment(mean, V)
        return mean + lr * (self.b - self.quantised @ mean), V

    def gradient_moment(self, mean: Array, V: Array) -> Array:
        """E of the squared update without its step size, for a batch."""
        away = V - np.outer(self.theta, mean)  # E[u v'] with u = v - theta
        rounded = np.diag(_noise(self.split["param"], np.diag(V)))
        single = self.residual * self.quantised + self.quartic(
            away - np.outer(mean, self.theta) + np.outer(self.theta, self.theta), away, V
        )
        single += self.weighted(rounded) + self.of_label()
        relative, absolute = self.split["activation"]
        if relative:
            single += relative * self.weighted(V + rounded)
        single += absolute * self.quantised
        relative, absolute = self.split["gradient"]
        single = (1 + relative) * single + absolute * self.quantised
        if self.batch == 1:
            return single
        mixed = np.outer(self.b, self.quantised @ mean)
        shared = np.outer(self.b, self.b) - mixed - mixed.T + self.quantised @ (V + rounded) @ self.quantised
        return single / self.batch + (1 - 1 / self.batch) * shared

    def weighted(self, W: Array) -> Array:
        """E[(z~' W z~) z~ z~'] for symmetric W."""
        return self.quartic(W, W, W) if W.any() else np.zeros_like(self.A)

    def quartic(self, U: Array, X: Array, V: Array) -> Array:
        """E[(u'z + v'xi)^2 z~ z~'] for U = E[u u'], X = E[u v'], V = E[v v']."""
        A, relative, absolute, diagonal = self.A, self.relative, self.absolute, self.diagonal
        along, squares = A @ U @ A, np.diag(V)
        total = float(np.sum(A * U))
        found = 2 * along + total * A
        if not (relative or absolute):
            return found
        found += np.diag(absolute * total + relative * (total * diagonal + 2 * np.diag(along)))
        pulled = A @ X  # E[(A u) v']
        cross = pulled * (absolute + relative * diagonal) + 2 * relative * A * np.diag(pulled)
        found += 2 * (cross + cross.T)
        found += (absolute * squares.sum() + relative * (squares @ diagonal)) * A
        found += 2 * relative * (A * squares) @ A
        pairs = self.pairs
        return found + 2 * V * pairs + np.diag(pairs @ squares - 2 * squares * np.diag(pairs))

    def of_label(self) -> Array:
        """E[(Q(y) - y)^2 z~ z~']."""
        relative, absolute = self.split["label"]
        found = absolute * self.quantised
        if relative:
            outer = np.outer(self.b, self.b)
            found = found + relative * (self.second * self.quantised + 2 * outer)
            found += np.diag(2 * relative * self.relative * self.b**2)
        return found


def limit_risks(second: float, A: Array, b: Array, scheme: QuantScheme) -> tuple[float, float]:
    """Risk with infinitely many samples and vanishing steps: that of the ridge solution (A + Xi)^-1 b.

    Once read in full precision, and once on quantised features, of which it is the least.
    """
    relative, absolute = scheme.split("data")
    extra = relative * np.diag(A) + absolute
    v = np.linalg.solve(A + np.diag(extra), b)
    plain = float(second - 2 * b @ v + v @ A @ v)
    return plain, plain + float(extra @ v**2)


def _noise(split: tuple[float, float], squares: Array) -> Array:
    relative, absolute = split
    return relative * squares + absolute


def check_sizes(
    problem: Problem, sizes: Sequence[int], samples: Sequence[int], batch: int, lr: float | str, seeds: int,
    random_state: int,
) -> None:
    """Refuse sizes above the features' number, too few samples, and a step size that is none."""
    for name, values in (("sizes", sizes), ("samples", samples)):
        if np.ndim(values) != 1 or not len(values):
            raise InputError(f"{name} must be a list of at least one number, got {values!r}")
    for M in sizes:
        if whole(M, "M") > problem.p:
            raise InputError(f"M must be at most p, the number of features: got {M} of {problem.p}")
    for N in samples:
        if whole(N, "N") // whole(batch, "batch") < 2:
            raise InputError(f"N = {N} samples are fewer than two steps of {batch}")
    is_number = isinstance(lr, int | float | np.number) and not isinstance(lr, bool)
    if lr != "max" and not (is_number and 0 < float(lr) < np.inf):
        raise InputError(f"lr must be a positive step size or 'max', got {lr!r}")
    whole(seeds, "seeds")
    whole(random_state, "random_state", least=0)


def _scheme(scheme: Any) -> QuantScheme:
    if not isinstance(scheme, QuantScheme):
        raise InputError(f"a scheme must be a QuantScheme, got {type(scheme).__name__}")
    return scheme


def _own(problem: Problem, sketch: ArrayLike, M: int) -> Sketches:
    S = as_matrix(sketch, "sketch").astype(float)
    if S.shape != (M, problem.p):
        raise InputError(f"sketch must have shape ({M}, {problem.p}), got {S.shape}")
    A, b = problem.moments(S)
    return Sketches(S[None], A[None], b[None])
