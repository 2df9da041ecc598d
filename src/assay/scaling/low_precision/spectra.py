"""Problems: the spectrum of the features, the target on it, and the sketch through which a model sees them.

Features x in p dimensions have a covariance H with eigenvalues lam_i, the label is y = <x, w*> + noise. A model of
size M sees the sketch z = S x with independent entries N(0, 1/M) in S and predicts <v, z>. All that the risk of a
linear model depends on is then A = S H S', b = E[y z] and E[y^2]. In the eigenbasis of H, in which everything is done
here, a Gaussian sketch looks as in any other basis. Source: arXiv 2602.19241; the power laws are its source condition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import InputError, as_matrix, as_vector

__all__ = [
    "GaussianProblem", "RowsProblem", "Sketches", "gaussian_problem", "sketches", "spectrum_from_data",
    "spectrum_powerlaw", "target_powerlaw",
]

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], tuple[Array, Array]]

NEGATIVE = -1e-9  # an eigenvalue below this share of the largest is no rounding


def spectrum_powerlaw(p: int, a: float) -> Array:
    """Eigenvalues `i**-a` for i = 1 to p.

    Parameters
    ----------
    p : int
        Dimensions of the features.
    a : float
        Exponent, above 1 (or the trace grows with p).

    Returns
    -------
    ndarray, shape (p,)

    Raises
    ------
    InputError
        p below 1, a of 1 or less.

    Notes
    -----
    Source: arXiv 2602.19241, capacity condition.

    Examples
    --------
    >>> spectrum_powerlaw(3, 2.0).round(3).tolist()
    [1.0, 0.25, 0.111]
    """
    return np.arange(1, whole(p, "p") + 1, dtype=float) ** -above_one(a, "a")


def target_powerlaw(spectrum: ArrayLike, b: float) -> Array:
    """A target with `lam_i * w_i**2 = i**-b`: how much of the label each direction carries.

    Parameters
    ----------
    spectrum : array-like, shape (p,)
        Eigenvalues, positive.
    b : float
        Exponent, above 1. b = a is the isotropic target.

    Returns
    -------
    ndarray, shape (p,)
        In the eigenbasis. All entries are positive: the sketch is symmetric, signs change nothing.

    Raises
    ------
    InputError
        b of 1 or less, an eigenvalue that is not positive.

    Notes
    -----
    Source: arXiv 2602.19241, source condition.

    Examples
    --------
    >>> target_powerlaw(spectrum_powerlaw(3, 2.0), 2.0).round(3).tolist()
    [1.0, 1.0, 1.0]
    """
    lam = _values(spectrum)
    if (lam <= 0).any():
        raise InputError(f"the eigenvalues must be positive, got {lam.min():g} in row {int(lam.argmin())}")
    return np.sqrt(np.arange(1, len(lam) + 1) ** -above_one(b, "b") / lam)


def spectrum_from_data(X: ArrayLike, y: ArrayLike | None = None) -> tuple[Array, Array, float]:
    """Eigenvalues of the second moment of real features, and the regression of a real label on them.

    Parameters
    ----------
    X : array-like, shape (n, p)
        Features; centred and scaled to a mean square of 1/p a column on average, so that the trace is 1.
    y : array-like, shape (n,), optional
        Label; centred and scaled to variance 1. Without it the target is the isotropic one.

    Returns
    -------
    spectrum : ndarray, shape (k,)
        Positive eigenvalues, falling.
    target : ndarray, shape (k,)
        Least-squares coefficients in the eigenbasis.
    a : float
        Exponent of the spectrum: minus the slope of log eigenvalue on log rank over the second to the k/4-th.

    Raises
    ------
    InputError
        Values that are not finite, fewer than 8 rows, features that don't vary, a label of another length.

    Notes
    -----
    Reconstructed: the source simulates power laws only.

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(2000, 40)) * np.arange(1, 41) ** -0.75
    >>> spectrum, target, a = spectrum_from_data(X)
    >>> len(spectrum), bool(abs(a - 1.5) < 0.3)
    (40, True)
    """
    features = as_matrix(X, "X", min_rows=8).astype(float)
    features = features - features.mean(axis=0)
    trace = float(np.mean(np.sum(features**2, axis=1)))
    if trace <= 0:
        raise InputError("X: the features don't vary")
    features /= np.sqrt(trace)
    _, singular, directions = np.linalg.svd(features, full_matrices=False)
    lam = singular**2 / len(features)
    keep = lam > 1e-10 * lam[0]
    lam, directions = lam[keep], directions[keep]
    last = max(3, len(lam) // 4)
    if len(lam) < 4:
        raise InputError(f"X: its features span {len(lam)} dimensions, at least 4 are needed")
    ranks = np.arange(2, last + 1)
    a = -float(np.polyfit(np.log(ranks), np.log(lam[1:last]), 1)[0])
    if y is None:
        return lam, np.ones(len(lam)), a
    label = standardised(as_vector(y, "y").astype(float), len(features))
    return lam, directions @ (features.T @ label) / len(features) / lam, a


def standardised(y: Array, n: int) -> Array:
    """A label with mean 0 and variance 1; `InputError` for another length or a constant."""
    if len(y) != n:
        raise InputError(f"y has {len(y)} labels for {n} rows")
    if np.ptp(y) == 0:
        raise InputError("y: the label doesn't vary")
    return (y.astype(float) - y.mean()) / y.std()


@dataclass(frozen=True)
class GaussianProblem:
    """Gaussian features with a diagonal covariance, and a linear label with Gaussian noise."""

    spectrum: Array
    target: Array
    noise: float

    @property
    def p(self) -> int:
        return len(self.spectrum)

    @property
    def second_moment(self) -> float:
        """E[y^2]."""
        return float(self.spectrum @ self.target**2) + self.noise**2

    def moments(self, S: Array) -> tuple[Array, Array]:
        """A = S H S' and b = E[y S x]."""
        scaled = S * np.sqrt(self.spectrum)
        return scaled @ scaled.T, S @ (self.spectrum * self.target)

    def sketched(self, S: Array) -> Draw:
        """Draws n samples of (Sx, y): jointly Gaussian, so that x itself need not be drawn."""
        A, b = self.moments(S)
        root, theta = np.linalg.cholesky(A), np.linalg.solve(A, b)
        rest = np.sqrt(max(0.0, self.second_moment - float(b @ theta)))

        def draw(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
            z = rng.standard_normal((n, len(S))) @ root.T
            return z, z @ theta + rest * rng.standard_normal(n)

        return draw


@dataclass(frozen=True)
class RowsProblem:
    """Real rows, drawn with replacement: the rows are the population, and their features are not Gaussian."""

    X: Array
    y: Array

    @property
    def p(self) -> int:
        return self.X.shape[1]

    @property
    def noise(self) -> float:
        return 0.0

    @property
    def second_moment(self) -> float:
        return float(np.mean(self.y**2))

    def moments(self, S: Array) -> tuple[Array, Array]:
        z = self.X @ S.T
        return z.T @ z / len(z), z.T @ self.y / len(z)

    def sketched(self, S: Array) -> Draw:
        """Draws n of the rows, sketched."""
        z = self.X @ S.T

        def draw(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
            rows = rng.integers(len(z), size=n)
            return z[rows], self.y[rows]

        return draw


Problem = GaussianProblem | RowsProblem


@dataclass(frozen=True)
class Sketches:
    """One sketch a seed, of the largest size; a smaller model sees its first rows, rescaled.

    `S` has shape (seeds, M, p) with entries N(0, 1/M), `A` (seeds, M, M), `b` (seeds, M).
    """

    S: Array
    A: Array
    b: Array

    def of(self, size: int) -> tuple[Array, Array]:
        """A and b of the model of that size, for each seed."""
        ratio = self.A.shape[1] / size
        return ratio * self.A[:, :size, :size], np.sqrt(ratio) * self.b[:, :size]


def sketches(problem: Problem, size: int, seeds: int, random_state: int = 0) -> Sketches:
    """Draw the sketches; that of a seed depends on nothing but the seed's number, `random_state` and the size."""
    draws = [
        np.random.default_rng([random_state, seed, 0]).standard_normal((size, problem.p)) / np.sqrt(size)
        for seed in range(seeds)
    ]
    moments = [problem.moments(S) for S in draws]
    return Sketches(np.array(draws), np.array([A for A, _ in moments]), np.array([b for _, b in moments]))


def gaussian_problem(spectrum: ArrayLike, target: ArrayLike, noise: Any) -> GaussianProblem:
    """The problem that a user describes: eigenvalues or a covariance, a target in the same coordinates, a noise."""
    lam, basis = _eigenvalues(spectrum)
    w = as_vector(target, "target").astype(float)
    if len(w) != len(lam):
        raise InputError(f"target has {len(w)} entries for {len(lam)} features")
    number = noise if isinstance(noise, int | float | np.number) and not isinstance(noise, bool) else np.nan
    if not (np.isfinite(number) and number >= 0):
        raise InputError(f"noise must be a standard deviation of 0 or more, got {noise!r}")
    return GaussianProblem(lam, w if basis is None else basis.T @ w, float(number))


def _values(spectrum: ArrayLike) -> Array:
    lam = as_vector(spectrum, "spectrum").astype(float)
    if not len(lam):
        raise InputError("spectrum must hold at least one eigenvalue")
    return lam


def _eigenvalues(spectrum: ArrayLike) -> tuple[Array, Array | None]:
    if np.ndim(spectrum) == 1:
        lam, basis = _values(spectrum), None
    else:
        H = as_matrix(spectrum, "spectrum").astype(float)
        if H.shape[0] != H.shape[1] or not np.allclose(H, H.T, rtol=1e-5, atol=1e-7 * np.abs(H).max()):
            raise InputError(f"spectrum must be eigenvalues or a symmetric covariance, got shape {H.shape}")
        lam, basis = np.linalg.eigh((H + H.T) / 2)
        lam, basis = lam[::-1].copy(), basis[:, ::-1]
    if lam.min() < NEGATIVE * abs(lam).max():
        raise InputError(f"the covariance has a negative eigenvalue, {lam.min():g}")
    if lam.max() <= 0:
        raise InputError("the covariance is zero")
    return np.maximum(lam, 0.0), basis


def whole(value: Any, name: str, least: int = 1) -> int:
    """A whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)


def above_one(value: Any, name: str) -> float:
    """An exponent above 1."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 1 < value < np.inf:
        raise InputError(f"{name} must be an exponent above 1, got {value!r}")
    return float(value)
