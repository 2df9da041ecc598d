"""The capability boundary: the best score to expect at a given pre-training compute (arXiv 2602.15327).

Many models are trained, fine-tuned and prompted at any one compute, and most of them score below what is possible. The
boundary is a high quantile (0.98) of the score given z = log10 FLOP, a sigmoid that rises and saturates:

    q(z) = y0 + L sigma(b (z - z*)),     b > 0,  y0 >= 0,  L >= 0,  y0 + L <= 1.

It is fitted by making the mean pinball loss of the residuals small, smoothed with sharpness kappa, plus lambda_b b^2.
The problem has many poor minima in (z*, b), so that candidates are spread over both, (y0, L) is solved for each of them
(a convex problem) at the milder level 0.9 and kappa 10, and the best are polished while level and sharpness rise.

Here all candidates are solved at once, as one array, and polished by L-BFGS-B in the box (y0, L / (1 - y0), z*, log b),
in which every constraint is a bound; starts that have met go on as one. `exact=True` goes on to the unsmoothed
problem: kappa rises further, then linear programmes solve (y0, L) for the shapes nearby, so that the share of points
above is the one asked for, as far as the bounds of y0 and L let it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from assay.errors import InputError, as_vector
from assay.scaling.prescriptive.bins import Coverage, coverage_by_bin, equal_mass_bins
from assay.scaling.prescriptive.pinball import check_level, is_number, pinball, quantile_programme

__all__ = ["CapabilityBoundary", "log_compute", "scores"]

Array = NDArray[np.float64]

STEEPNESS = (0.05, 50.0)  # bounds of b, per decade of compute
FIRST_LEVEL, LEVELS = 0.90, (0.95,)  # where the search starts, and its stop on the way to a higher level
FIRST_KAPPAS = (10.0, 25.0)
GRID, Z_QUANTILES, STEEPNESS_GRID, RANDOM_CANDIDATES = 9, (0.15, 0.35, 0.5, 0.65, 0.85), 9, 12
THINNED = 400  # rows on which candidates are ranked
NEWTON_STEPS = 12
SAME_CURVE = 1e-4  # two starts whose curves differ by less everywhere have met
SHARPEN, SHARPEST = 4.0, 2e4  # of the exact fit: kappa grows by the factor up to the limit
SHAPE_TRIES = 30  # of the exact fit: linear programmes spent on the shape
FEWEST_ABOVE = 1.0  # points that must be expected above the boundary, or a warning says so
PERCENT_FROM = 1.5  # a score above it means per cent
SCALE = 100.0  # brings the objective near 1, where the search's tolerances are meant to be


class CapabilityBoundary(RegressorMixin, BaseEstimator):
    """A quantile of the score as a rising sigmoid of log compute.

    Parameters
    ----------
    quantile : float
        Level in (0, 1).
    kappa : float
        Sharpness of the smoothing, which blurs scores by a few times `1 / kappa`: 50 is the paper's and lifts the curve
        above every point where the scores spread by no more than 0.05. See `exact`.
    lambda_b : float
        Weight of the penalty `b**2`, b per decade. It keeps the curve from becoming a step, and is not scale free: the
        paper's 0.01 costs as much as the loss itself from `b` near 0.7 on, and straightens most curves. 0 does without.
    exact : bool
        Solve the unsmoothed problem: then at most a share `1 - quantile` lies above the curve, unless a bound of the
        floor or of the ceiling is met.
    n_starts : int
        Candidates that are polished.
    random_state : int
        Of the random candidates.

    Attributes
    ----------
    y0_, L_, z_star_, b_ : float
        Floor, rise, mid-point (log10 FLOP) and steepness (per decade).
    objective_ : float
        The minimised mean loss with its penalty (unsmoothed where `exact`).
    coverage_ : float
        Share of the fitted points on or below the curve: compare it with `quantile`.
    z_ : ndarray
        The fitted log10 compute, in rising order: what bins and warnings go by.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> flops = 10 ** rng.uniform(20, 25, 600)
    >>> best = 0.25 + 0.6 / (1 + np.exp(-2 * (np.log10(flops) - 22.5)))
    >>> score = best * rng.beta(8, 1, 600)
    >>> boundary = CapabilityBoundary(lambda_b=0, exact=True).fit(flops, score)
    >>> boundary.predict([1e21, 1e24]).round(1)
    array([0.3, 0.8])
    >>> round(boundary.coverage_, 2), bool(boundary.inverse(0.5) > 1e22), boundary.inverse(0.99)
    (0.98, True, inf)
    """

    def __init__(
        self, quantile: float = 0.98, kappa: float = 50.0, lambda_b: float = 1e-2, exact: bool = False,
        n_starts: int = 10, random_state: int = 0,
    ) -> None:
        self.quantile = quantile
        self.kappa = kappa
        self.lambda_b = lambda_b
        self.exact = exact
        self.n_starts = n_starts
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the boundary.

        Parameters
        ----------
        X : (n,) or (n, 1) array-like
            Compute of each model in FLOP, positive: 6 * parameters * tokens of its pre-training.
        y : (n,) array-like
            Scores in [0, 1].
        sample_weight : (n,) array-like, optional
            Weights, not negative.

        Raises
        ------
        InputError
            For compute that is not positive and finite (with a count), scores outside [0, 1] (in per cent, say), one
            distinct compute, a wrong setting.
        """
        self._check_settings()
        z, score = log_compute(X), scores(y)
        if len(z) != len(score):
            raise InputError(f"X has {len(z)} rows, y has {len(score)}")
        if z.min() == z.max():
            raise InputError(f"degenerate z: all {len(z)} models have the same compute, and a curve needs several")
        weights = _weights(sample_weight, len(z))
        expected = len(z) * min(self.quantile, 1 - self.quantile)
        if expected < FEWEST_ABOVE:
            needed = 1 / min(self.quantile, 1 - self.quantile)
            warnings.warn(
                f"{len(z)} models are few for the quantile {self.quantile:g}: {needed:.0f} are needed for one of them "
                "to be expected beyond it", UserWarning, stacklevel=2,
            )
        problem = _Problem.of(z, score, weights, self.lambda_b)
        ends = self._search(problem, _candidates(z, self.random_state))
        return self._keep(z, score, *(self._finish(problem, ends)))

    def predict(self, X: ArrayLike) -> Array:
        """The boundary at each compute, shape (n,); a warning counts what lies beyond the fitted compute."""
        check_is_fitted(self, "y0_")
        z = log_compute(X)
        beyond = int(np.sum(z > self.z_[-1]))
        if beyond:
            warnings.warn(
                f"{beyond} of {len(z)} lie beyond the largest fitted compute, 1e{self.z_[-1]:.2f} FLOP: the mid-point "
                "is bound to the fitted range, so that the curve is a guess there", UserWarning, stacklevel=2,
            )
        return self._curve(z)

    def inverse(self, score: ArrayLike) -> Any:
        """The compute in FLOP at which the boundary reaches a score: 0 at or below the floor, inf from `y0 + L` on.

        The least compute that a score needs at this level: half the models at it do not get there.
        """
        check_is_fitted(self, "y0_")
        wanted = scores(np.atleast_1d(np.asarray(score)))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            share = (wanted - self.y0_) / self.L_ if self.L_ > 0 else np.where(wanted > self.y0_, np.inf, -np.inf)
            logit = np.log(share / (1 - share))
            z = np.where(share <= 0, -np.inf, np.where(share >= 1, np.inf, self.z_star_ + logit / self.b_))
            flops = 10.0**z
        return flops if np.ndim(score) else float(flops[0])

    def coverage(self, X: ArrayLike, y: ArrayLike, bins: int = 10, min_bin: int = 30) -> Coverage:
        """Share of scores on or below the boundary, in bins of the fitted compute (the same for any data).

        Parameters
        ----------
        X, y : (n,) array-like
            Compute and scores: the fitted models', or later ones'.
        bins, min_bin : int
            Bins wanted and fitted points that each must hold, see `equal_mass_bins`.

        Returns
        -------
        Coverage
            `bins` (a frame), `macro`, `micro` (errors) and `share`.
        """
        check_is_fitted(self, "y0_")
        z, score = log_compute(X), scores(y)
        if len(z) != len(score):
            raise InputError(f"X has {len(z)} rows, y has {len(score)}")
        return coverage_by_bin(z, score, self._curve(z), equal_mass_bins(self.z_, bins, min_bin), self.quantile)

    def bootstrap(
        self, X: ArrayLike, y: ArrayLike, n: int = 200, groups: ArrayLike | None = None
    ) -> pd.DataFrame:
        """Parameters of refits to resampled models, or to resampled groups of models.

        Fine-tunes of one base model share its compute and much of their skill: give the base model as the group.

        Parameters
        ----------
        X, y : (n_models,) array-like
            What was fitted.
        n : int
            Refits.
        groups : (n_models,) array-like, optional
            One label a model; whole groups are drawn.

        Returns
        -------
        DataFrame
            `y0`, `L`, `z_star`, `b`, one row a refit; resamples with a single compute are drawn again.
        """
        check_is_fitted(self, "y0_")
        z, score = log_compute(X), scores(y)
        if len(z) != len(score):
            raise InputError(f"X has {len(z)} rows, y has {len(score)}")
        if not isinstance(n, Integral) or n < 1:
            raise InputError(f"n must be a whole number of at least 1, got {n!r}")
        members = _members(groups, len(z))
        if all(z[rows].min() == z[rows].max() == z[0] for rows in members):
            raise InputError(f"degenerate z: all {len(z)} models have the same compute, and a curve needs several")
        rng = np.random.default_rng(self.random_state)
        rows = []
        while len(rows) < n:
            drawn = np.concatenate([members[i] for i in rng.integers(len(members), size=len(members))])
            if z[drawn].min() < z[drawn].max():
                rows.append(self._refit(z[drawn], score[drawn]))
        return pd.DataFrame(rows, columns=["y0", "L", "z_star", "b"])

    def predict_interval(self, X: ArrayLike, refits: pd.DataFrame, level: float = 0.95) -> tuple[Array, Array]:
        """Percentile band of the boundary over the refits of `bootstrap`: (low, high), each of shape (n,)."""
        check_level(level, "level")
        z = log_compute(X)
        if not isinstance(refits, pd.DataFrame) or not {"y0", "L", "z_star", "b"} <= set(refits.columns):
            raise InputError("refits must be the frame that bootstrap returns, with y0, L, z_star and b")
        if refits.empty:
            raise InputError("refits holds no refit")
        curves = np.array([_sigmoid_curve(z, *row) for row in refits[["y0", "L", "z_star", "b"]].to_numpy(dtype=float)])
        low, high = np.quantile(curves, [(1 - level) / 2, (1 + level) / 2], axis=0)
        return low, high

    def _curve(self, z: Array) -> Array:
        return _sigmoid_curve(z, self.y0_, self.L_, self.z_star_, self.b_)

    def _check_settings(self) -> None:
        check_level(self.quantile, "quantile")
        if not is_number(self.kappa) or not 0 < self.kappa < np.inf:
            raise InputError(f"kappa must be positive and finite (exact=True for no smoothing), got {self.kappa!r}")
        if not is_number(self.lambda_b) or not 0 <= self.lambda_b < np.inf:
            raise InputError(f"lambda_b must be 0 or more, got {self.lambda_b!r}")
        if not isinstance(self.exact, (bool, np.bool_)):
            raise InputError(f"exact must be True or False, got {self.exact!r}")
        if not isinstance(self.n_starts, Integral) or self.n_starts < 1:
            raise InputError(f"n_starts must be a whole number of at least 1, got {self.n_starts!r}")
        if not isinstance(self.random_state, Integral) or self.random_state < 0:
            raise InputError(f"random_state must be a whole number, not negative, got {self.random_state!r}")

    def _search(self, problem: _Problem, candidates: Array) -> list[Array]:
        """Polished points, the best candidates first climbing from the milder level and sharpness to the wanted."""
        first = min(FIRST_LEVEL, self.quantile) if self.quantile > 0.5 else self.quantile
        kappas = [kappa for kappa in FIRST_KAPPAS if kappa < self.kappa]
        points = _rank(problem, candidates, first, (kappas or [self.kappa])[0])[: self.n_starts]
        stages = [(first, kappa) for kappa in (*kappas, self.kappa)]
        stages += [(level, self.kappa) for level in LEVELS if first < level < self.quantile]
        for level, kappa in stages:
            points = _distinct(problem, (problem.polish(x, level, kappa, 60) for x in points))
        return _distinct(problem, (problem.polish(x, self.quantile, self.kappa, 700) for x in points))

    def _finish(self, problem: _Problem, ends: list[Array]) -> tuple[Array, float]:
        """The best end and its objective; the exact problem is finished from the best few."""
        values = [problem.value(x, self.quantile, self.kappa) for x in ends]
        order = np.argsort(values, kind="stable")
        if not self.exact:
            return ends[order[0]], float(values[order[0]])
        finished = [problem.sharpen(ends[i], self.quantile, self.kappa) for i in order[:2]]
        return min(finished, key=lambda pair: pair[1])

    def _keep(self, z: Array, y: Array, x: Array, objective: float) -> Self:
        self.y0_, self.L_, self.z_star_, self.b_ = (float(v) for v in _parameters(x))
        self.objective_ = objective
        self.coverage_ = float(np.mean(y <= self._curve(z)))
        self.z_ = np.sort(z)
        self.n_features_in_ = 1
        return self

    def _refit(self, z: Array, y: Array) -> tuple[float, ...]:
        """The parameters on other rows, from the fitted ones and from the three best candidates."""
        problem = _Problem.of(z, y, np.full(len(z), 1 / len(z)), self.lambda_b)
        bounded = np.clip(self.z_star_, *problem.z_range)
        here = np.array([self.y0_, self.L_ / max(1 - self.y0_, 1e-12), bounded, np.log(self.b_)])
        ranked = _rank(problem, _candidates(z, self.random_state), self.quantile, self.kappa)[:2]
        ends = _distinct(problem, (problem.polish(x, self.quantile, self.kappa, 700) for x in [here, *ranked]))
        return tuple(float(v) for v in _parameters(self._finish(problem, ends)[0]))


def log_compute(X: ArrayLike) -> Array:
    """Log10 of compute in FLOP, shape (n,), checked."""
    values = np.asarray(X)
    if np.iscomplexobj(values):
        raise InputError("X must be real numbers (compute in FLOP)")
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise InputError(f"X must be one column of compute in FLOP, got shape {values.shape}")
    if not len(values):
        raise InputError("X has no rows")
    try:
        flops = values.astype(float)
    except (TypeError, ValueError):
        raise InputError("X must be numbers (compute in FLOP)") from None
    bad = ~np.isfinite(flops) | (flops <= 0)
    if bad.any():
        row = int(np.argmax(bad))
        raise InputError(
            f"X: compute must be positive and finite, got {int(bad.sum())} of {len(flops)} that are not "
            f"(the first is {flops[row]:g} in row {row})"
        )
    return np.log10(flops)


def scores(y: ArrayLike) -> Array:
    """Scores in [0, 1], shape (n,), checked."""
    values = as_vector(y, "y").astype(float)
    if not len(values):
        raise InputError("y has no entries")
    if values.max() > PERCENT_FROM:
        raise InputError(f"y must lie in [0, 1], got a largest score of {values.max():g}: per cent? then divide by 100")
    bad = (values < 0) | (values > 1)
    if bad.any():
        row = int(np.argmax(bad))
        first = f"the first is {values[row]:g} in row {row}"
        raise InputError(f"y must lie in [0, 1], got {int(bad.sum())} that do not ({first})")
    return values


def _weights(sample_weight: ArrayLike | None, n: int) -> Array:
    if sample_weight is None:
        return np.full(n, 1 / n)
    weights = as_vector(sample_weight, "sample_weight", length=n).astype(float)
    if (weights < 0).any() or weights.sum() <= 0:
        raise InputError("sample_weight must not be negative, and not all of it zero")
    return weights / weights.sum()


def _members(groups: ArrayLike | None, n: int) -> list[NDArray[np.intp]]:
    if groups is None:
        return [np.array([row]) for row in range(n)]
    labels = np.asarray(groups)
    if labels.shape != (n,):
        raise InputError(f"groups must hold one label a model: {n} models, groups of shape {labels.shape}")
    absent = int(pd.isna(labels).sum())
    if absent:
        raise InputError(f"groups: {absent} of {n} models have no label")
    codes = np.unique(labels.astype(str), return_inverse=True)[1]
    if codes.max() < 2:
        raise InputError(f"groups hold {codes.max() + 1} labels, at least 3 are needed to resample them")
    return [np.flatnonzero(codes == code) for code in range(codes.max() + 1)]


def _sigmoid_curve(z: Array, y0: float, rise: float, z_star: float, b: float) -> Array:
    return y0 + rise * expit(b * (z - z_star))


def _parameters(x: Array) -> tuple[float, float, float, float]:
    """(y0, L, z*, b) of a point (y0, L / (1 - y0), z*, log b) of the search."""
    return x[0], x[1] * (1 - x[0]), x[2], float(np.exp(x[3]))


def _candidates(z: Array, random_state: int) -> Array:
    """Shapes (z*, b) to try: a grid over both, and a few at random, shape (138, 2)."""
    centres = np.concatenate([np.linspace(z.min(), z.max(), GRID), np.quantile(z, Z_QUANTILES)])
    steepness = np.geomspace(*STEEPNESS, STEEPNESS_GRID)
    grid = np.stack(np.meshgrid(centres, steepness, indexing="ij"), axis=-1).reshape(-1, 2)
    drawn = np.random.default_rng(random_state).random((RANDOM_CANDIDATES, 2))
    low, high = np.log(STEEPNESS)
    random = np.column_stack([z.min() + np.ptp(z) * drawn[:, 0], np.exp(low + (high - low) * drawn[:, 1])])
    return np.vstack([grid, random])


def _rank(problem: _Problem, shapes: Array, level: float, kappa: float) -> list[Array]:
    """The candidates as points of the search, the best first: (y0, L) by Newton's method for all shapes at once.

    Only the order matters here: it is found on every k-th row, in the order of compute and score.
    """
    order = np.lexsort((problem.y, problem.z))[:: max(1, len(problem.z) // THINNED)]
    z, y, weights = problem.z[order], problem.y[order], problem.weights[order]
    weights = weights / weights.sum()
    s = expit(shapes[:, 1:] * (z - shapes[:, :1]))
    y0, rise = np.full(len(shapes), float(np.min(y))), np.full(len(shapes), float(np.ptp(y)))
    for _ in range(NEWTON_STEPS):
        slope = expit(kappa * (y - y0[:, None] - rise[:, None] * s))
        first, second = (slope + level - 1) * weights, kappa * slope * (1 - slope) * weights
        g0, g1 = first.sum(axis=1), (first * s).sum(axis=1)
        h00, h01, h11 = second.sum(axis=1) + 1e-4, (second * s).sum(axis=1), (second * s * s).sum(axis=1) + 1e-4
        determinant = h00 * h11 - h01 * h01
        step = np.clip(np.stack([h11 * g0 - h01 * g1, h00 * g1 - h01 * g0]) / determinant, -0.3, 0.3)
        y0 = np.clip(y0 + step[0], 0.0, 1.0)
        rise = np.clip(rise + step[1], 0.0, 1.0 - y0)
    residual = y - y0[:, None] - rise[:, None] * s
    loss = (np.logaddexp(0.0, kappa * residual) / kappa + (level - 1) * residual) @ weights
    loss += problem.lambda_b * shapes[:, 1] ** 2
    points = np.column_stack([y0, rise / np.maximum(1 - y0, 1e-12), shapes[:, 0], np.log(shapes[:, 1])])
    return list(points[np.argsort(loss, kind="stable")])


def _distinct(problem: _Problem, points: Iterable[Array]) -> list[Array]:
    """The points without those whose curve an earlier one has already."""
    kept: list[Array] = []
    curves: list[Array] = []
    grid = np.linspace(*problem.z_range, 25)
    for point in points:
        curve = _sigmoid_curve(grid, *_parameters(point))
        if all(np.abs(curve - other).max() > SAME_CURVE for other in curves):
            kept.append(point)
            curves.append(curve)
    return kept


@dataclass(frozen=True)
class _Problem:
    """The weighted rows, and the objective on them at any level and sharpness."""

    z: Array
    y: Array
    weights: Array
    lambda_b: float
    z_range: tuple[float, float]

    @classmethod
    def of(cls, z: Array, y: Array, weights: Array, lambda_b: float) -> _Problem:
        return cls(z, y, weights, lambda_b, (float(z.min()), float(z.max())))

    @property
    def bounds(self) -> list[tuple[float, float]]:
        low, high = np.log(STEEPNESS)
        return [(0.0, 1.0), (0.0, 1.0), self.z_range, (float(low), float(high))]

    def polish(self, x: Array, level: float, kappa: float, steps: int) -> Array:
        """The minimum near a point."""
        bounds = self.bounds
        inside = np.clip(x, [low for low, _ in bounds], [high for _, high in bounds])
        found = minimize(
            self._objective, inside, (level, kappa), method="L-BFGS-B", jac=True, bounds=bounds,
            options={"maxiter": steps, "ftol": 1e-12, "gtol": 1e-7},
        )
        return np.asarray(found.x)

    def value(self, x: Array, level: float, kappa: float) -> float:
        """The smoothed objective at a point."""
        return self._objective(x, level, kappa)[0] / SCALE

    def _objective(self, x: Array, level: float, kappa: float) -> tuple[float, Array]:
        """SCALE times the objective, and its gradient in (y0, L / (1 - y0), z*, log b)."""
        y0, share, z_star, log_b = x
        b, rise = np.exp(log_b), share * (1 - y0)
        away = self.z - z_star
        s = expit(b * away)
        residual = self.y - y0 - rise * s
        loss = np.logaddexp(0.0, kappa * residual) / kappa + (level - 1) * residual
        slope = self.weights * (expit(kappa * residual) + level - 1)
        rising = slope * s
        bent = rising * (1 - s) * (rise * b)
        total, sloped = slope.sum(), rising.sum()
        gradient = np.array([
            share * sloped - total, -(1 - y0) * sloped, bent.sum(),
            -(bent @ away) + 2 * self.lambda_b * b * b,
        ])
        return SCALE * (self.weights @ loss + self.lambda_b * b * b), SCALE * gradient

    def sharpen(self, x: Array, level: float, kappa: float) -> tuple[Array, float]:
        """The unsmoothed minimum near a smoothed one, and its objective.

        After kappa has risen, the shape is searched by Nelder and Mead with a linear programme for (y0, L) at each try.
        """
        while kappa < SHARPEST:
            kappa *= SHARPEN
            x = self.polish(x, level, kappa, 100)
        low, high = np.log(STEEPNESS)

        def profile(shape: Array) -> float:
            return self._programme(np.clip(shape, (self.z_range[0], low), (self.z_range[1], high)), level)[1]

        width = 0.05 * (self.z_range[1] - self.z_range[0])
        simplex = x[2:] + np.array([[0.0, 0.0], [width, 0.0], [0.0, 0.2]])
        found = minimize(
            profile, x[2:], method="Nelder-Mead",
            options={"maxfev": SHAPE_TRIES, "initial_simplex": simplex, "xatol": 1e-4, "fatol": 1e-9},
        )
        return self._programme(np.clip(found.x, (self.z_range[0], low), (self.z_range[1], high)), level)

    def _programme(self, shape: Array, level: float) -> tuple[Array, float]:
        """The best (y0, L) for a shape (z*, log b), by linear programme, and the unsmoothed objective."""
        b = np.exp(shape[1])
        s = expit(b * (self.z - shape[0]))
        y0, rise = quantile_programme(np.column_stack([np.ones_like(s), s]), self.y, level, self.weights)
        value = self.weights @ pinball(self.y - y0 - rise * s, level) + self.lambda_b * b * b
        return np.array([y0, rise / max(1 - y0, 1e-12), *shape]), float(value)
