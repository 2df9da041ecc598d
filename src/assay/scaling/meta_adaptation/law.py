"""The adaptation law, its budget and the decision (arXiv 2601.18973).

Task tau has the loss L_tau; theta_0 is the shared start and theta_K what K gradient steps of size eta make of it. The
gain of adaptation, G_K = E[L_tau(theta_0) - L_tau(theta_K)], is bounded from below by

    G_K >= A (1 - exp(-beta K)),     A = c * Var(tau).

Proof (reconstructed). With the Polyak-Lojasiewicz inequality |grad L|^2 / 2 >= mu (L - L*) and a step of at most
one over the smoothness, L(theta_K) - L* <= (1 - eta mu)^K (L(theta_0) - L*); and tasks whose optima lie at least
C |tau - tau'| apart start at least mu C^2 Var(tau) / 2 above them. Hence beta >= eta mu and c >= mu C^2 / 2. The bound
is not tight: an exact quadratic has beta = -2 log(1 - eta mu), about twice as much.

Budget. A step that costs `price` is worth taking until A beta exp(-beta K) = price:

    K* = max(0, log(A beta / price) / beta);     the share rho of A is reached at K_rho = -log(1 - rho) / beta.

Probe protocol (reconstructed; public is only that 3 to 5 probe steps are run). Under the law the gains of single
steps, D_k = L_{k-1} - L_k, fall by the constant factor exp(-beta). The first two give Aitken's A = D_1^2 / (D_1 - D_2);
from there A and beta are fitted to all probe losses by least squares, pooled over tasks. Where the increments do not
fall, are not positive, or K* is uncertain by more than a factor of four, the answer is "cannot tell".
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import InputError, as_vector
from assay.scaling.meta_adaptation.checks import checked_count, checked_number, checked_size, floats, generator

__all__ = [
    "AdaptationFit", "Budget", "Decision", "adaptation_budget", "adaptation_decision", "fit_adaptation_law",
    "runs_test", "saturating",
]

Vector = NDArray[np.float64]

MAX_SPAN = 4.0
"""Ratio of the ends of the interval of K* above which the probes can't tell."""
LEAST_LOSSES, LEAST_TASKS = 3, 3
BETA_RANGE = (1e-6, 50.0)
"""Searched for 30 steps; in proportion for more or fewer."""
LEAST_BENT = 1e-3
"""beta times the probe steps below which their gains are a straight line as far as anyone can tell."""
EXCESS_RUNS_P = 0.05
Z95 = 1.959963984540054


class _Written:
    """Results that can be written as JSON and read again."""

    def to_json(self) -> str:
        """The result as one JSON object."""
        return json.dumps(asdict(self))  # type: ignore[call-overload]

    @classmethod
    def from_json(cls, text: str) -> Any:
        """The result that `to_json` wrote."""
        return cls(**json.loads(text))


@dataclass(frozen=True, eq=False)
class AdaptationFit(_Written):
    """The law fitted to measured gains.

    Attributes
    ----------
    a_inf, beta : float
        Asymptotic gain A, in the unit of the gains, and rate per step.
    cov : list of list of float
        2 x 2 covariance of (a_inf, beta), from the bootstrap over tasks where there are some, else from the Jacobian.
    ci : dict
        95 % intervals `(low, high)` of `a_inf` and `beta`.
    r2 : float
        Share of the variance of the mean gains that the law explains; means over tasks flatter it.
    residual_runs_p : float
        Two-sided p of the Wald-Wolfowitz test on the signs of the residuals: a small one says that the residuals come
        in long runs, as those of a sum of several exponentials do. NaN with fewer than four residuals.
    beta_k_max : float
        beta times the largest step; below 1 the curve has not bent enough for A to be known.
    verdict : str
        `describes`, or what speaks against the law.

    Examples
    --------
    >>> fit = fit_adaptation_law([0, 2, 4, 8, 16], [0.0, 0.393469, 0.632121, 0.864665, 0.981684])
    >>> fit.predict([4.0]).round(4).tolist(), fit.verdict
    ([0.6321], 'describes')
    >>> AdaptationFit.from_json(fit.to_json()).beta == fit.beta
    True
    """

    a_inf: float
    beta: float
    cov: list[list[float]]
    ci: dict[str, list[float]]
    r2: float
    residual_runs_p: float
    beta_k_max: float
    verdict: str

    def predict(self, steps: ArrayLike) -> Vector:
        """Gains after the given numbers of steps."""
        return saturating(as_vector(steps, "steps").astype(float), self.a_inf, self.beta)


@dataclass(frozen=True, eq=False)
class Budget(_Written):
    """How many steps are worth taking, told from a few probe steps.

    Attributes
    ----------
    k_star : float
        Steps after which another is not worth its price, or that reach the wanted fraction; NaN where the probes
        can't tell at all.
    a_inf, beta : float
        The law's parameters as the probes suggest them; NaN where there are none.
    ci : dict
        95 % intervals of `k_star`, `a_inf` and `beta`, as far as known.
    reliable : bool
        Whether to act on `k_star`.
    reason : str
        Why not, or `the probes follow the law`.
    n_tasks, n_dropped : int
        Tasks used, and tasks left out for NaN or infinite losses.

    Examples
    --------
    >>> budget = adaptation_budget([[2.0, 1.5, 1.25], [float("nan"), 1.0, 1.0]], fraction=0.5)
    >>> round(budget.k_star, 6), budget.n_tasks, budget.n_dropped
    (1.0, 1, 1)
    """

    k_star: float
    a_inf: float
    beta: float
    ci: dict[str, list[float]]
    reliable: bool
    reason: str
    n_tasks: int
    n_dropped: int


@dataclass(frozen=True, eq=False)
class Decision(_Written):
    """Whether to adapt each task, and how long.

    Attributes
    ----------
    adapt : bool
        Whether the best number of steps earns more than it costs.
    k_star : float
        That number, a real one; 0 where no step is worth its price.
    net_gain : float
        A (1 - exp(-beta k_star)) - price k_star, in the unit of the loss.

    Examples
    --------
    >>> adaptation_decision(task_var=0.0, c=1.0, beta=0.1, price=0.01).to_json()
    '{"adapt": false, "k_star": 0.0, "net_gain": 0.0}'
    """

    adapt: bool
    k_star: float
    net_gain: float


def fit_adaptation_law(
    steps: ArrayLike, gains: ArrayLike, *, sem: ArrayLike | None = None, n_boot: int = 200,
    random_state: int | None = None,
) -> AdaptationFit:
    """Fit G_K = A (1 - exp(-beta K)) to measured gains, with intervals and a test that can speak against the law.

    Parameters
    ----------
    steps : (n,) array
        Numbers of steps K, 0 or more, three different ones above 0 at least.
    gains : (n,) or (n_tasks, n) array
        Loss at the start minus loss after K steps: means, or one row a task. Only rows give a bootstrap over tasks.
    sem : (n,) array, optional
        Standard errors of the gains, which then weigh the fit; ones of 0 (as at K = 0) are left out of the weights.
    n_boot : int
        Resamples of the tasks; 0 for the covariance of the Jacobian alone.
    random_state : int, optional
        Seed of the resamples.

    Returns
    -------
    AdaptationFit

    Raises
    ------
    InputError
        For fewer than three different steps above 0, values that are not finite, negative steps, lengths that differ.

    Notes
    -----
    Law: arXiv 2601.18973; fitting and tests reconstructed. Gains that do not grow with K are not described by the law:
    the verdict then says `diverging: reduce step size`, and the parameters are NaN.

    Examples
    --------
    >>> fit = fit_adaptation_law([0, 1, 2, 4, 8], [0.0, 0.181269, 0.32968, 0.550671, 0.798103])
    >>> round(fit.a_inf, 4), round(fit.beta, 4), round(fit.r2, 6)
    (1.0, 0.2, 1.0)
    """
    K, table = _checked_gains(steps, gains)
    mean = table.mean(axis=0)
    weights, count, rng = _weights(sem, len(K)), checked_count(n_boot, "n_boot"), generator(random_state)
    if not mean[np.argmax(K)] > 0:
        return _no_law("diverging: reduce step size" if mean.any() else "nothing is gained")
    a_inf, beta = _fit_two(K, mean, weights)
    residuals = mean - saturating(K, a_inf, beta)
    cov, ci = _uncertainty(K, table, weights, (a_inf, beta), count, rng)
    centred = mean - mean.mean()
    spread = float(centred @ centred)
    # Gains that are all alike leave nothing to explain.
    r2 = 1 - float(residuals @ residuals) / spread if spread > 0 else 0.0
    above = K > 0
    p = runs_test(residuals[above][np.argsort(K[above], kind="stable")])
    bent = beta * float(K.max())
    return AdaptationFit(
        a_inf, beta, cov, ci, r2, p, bent, _law_verdict(K, mean, r2, p, bent, residuals)
    )


def adaptation_budget(
    losses: ArrayLike, *, fraction: float | None = None, price: float | None = None, random_state: int | None = None
) -> Budget:
    """Predict from a few probe steps how many steps are worth taking.

    Parameters
    ----------
    losses : (n_tasks, N + 1) or (N + 1,) array
        Losses L_0 ... L_N after 0 ... N probe steps, 0 or more; N = 3 to 5 is the paper's protocol. Tasks with a NaN or
        infinite loss are dropped and counted.
    fraction : float, optional
        Share of the asymptotic gain to be reached, between 0 and 1; 0.95 if no price is given.
    price : float, optional
        What one step costs, in the unit of the loss, above 0; give this or `fraction`.
    random_state : int, optional
        Seed of the bootstrap over tasks, used from 3 tasks up.

    Returns
    -------
    Budget

    Raises
    ------
    InputError
        For fewer than 3 losses, no task with finite losses, negative losses, a fraction outside (0, 1), a price that
        is not positive, or both.

    Notes
    -----
    Reconstructed from arXiv 2601.18973 (only the number of probe steps is public). Losses that rise give
    `diverging: reduce step size`.

    Examples
    --------
    Losses that halve their distance to 1 at each step:

    >>> budget = adaptation_budget([2.0, 1.5, 1.25, 1.125], fraction=0.9375)
    >>> round(budget.k_star, 6), round(budget.a_inf, 6), budget.reliable
    (4.0, 1.0, True)
    >>> adaptation_budget([2.0, 2.1, 2.3]).reason
    'diverging: reduce step size'
    """
    target, rng = _Target.of(fraction, price), generator(random_state)
    table, dropped = _checked_losses(losses)
    mean = table.mean(axis=0)
    trouble, start = _trouble(mean)
    if start is None:
        return Budget(math.nan, math.nan, math.nan, {}, False, trouble, len(table), dropped)
    K = np.arange(len(mean), dtype=float)
    a_inf, beta = _fit_two(K, mean[0] - mean, np.ones(len(K)), start)
    k_star = target.steps(a_inf, beta)
    ci = _budget_intervals(K, table, target, (a_inf, beta), rng)
    low, high = ci["k_star"]
    reason = ""
    if beta * K[-1] < LEAST_BENT:
        reason = "cannot tell: the gains of the probe steps hardly fall"
    elif len(K) == LEAST_LOSSES and len(table) < LEAST_TASKS:
        reason = "cannot tell: two probe steps follow the law whatever they are; take a third"
    elif (not math.isfinite(high) or high > MAX_SPAN * max(low, 1.0)):
        reason = f"cannot tell: between {low:.3g} and {high:.3g} steps, more than a factor of {MAX_SPAN:g} apart"
    return Budget(
        k_star, a_inf, beta, ci, not reason, reason or "the probes follow the law", len(table), dropped
    )


def adaptation_decision(task_var: float, c: float, beta: float, price: float) -> Decision:
    """Whether adapting each task beats leaving the shared controller as it is, and how many steps are best.

    Parameters
    ----------
    task_var : float
        Variance of the tasks, 0 or more.
    c : float
        Asymptotic gain per unit of variance, 0 or more. To compare with a controller that is tuned again for the new
        tasks together, take c from the gain over that one: what all tasks have in common needs no adaptation.
    beta : float
        Rate per step, above 0.
    price : float
        Cost of one step in the unit of the loss, above 0.

    Returns
    -------
    Decision

    Raises
    ------
    InputError
        For a negative variance or c, a rate or price that is not positive, or values that are not finite.

    Notes
    -----
    arXiv 2601.18973, with A = c * task_var; K* as in the module's docstring (reconstructed).

    Examples
    --------
    >>> decision = adaptation_decision(task_var=0.04, c=0.5, beta=0.2, price=0.001)
    >>> decision.adapt, round(decision.k_star, 3), round(decision.net_gain, 5)
    (True, 6.931, 0.00807)
    >>> adaptation_decision(task_var=1e-4, c=0.5, beta=0.2, price=0.001).adapt
    False
    """
    variance, slope = checked_number(task_var, "task_var", zero=True), checked_number(c, "c", zero=True)
    rate, cost = checked_number(beta, "beta"), checked_number(price, "price")
    a_inf = variance * slope
    if not math.isfinite(a_inf):
        raise InputError(f"task_var times c must be finite, got {variance:g} times {slope:g}")
    k_star = _Target(None, cost).steps(a_inf, rate)
    net = float(saturating(np.array([k_star]), a_inf, rate)[0]) - cost * k_star
    return Decision(bool(net > 0), k_star, net)


def saturating(K: Vector, a_inf: float, beta: float) -> Vector:
    """A (1 - exp(-beta K)).

    Parameters
    ----------
    K : (n,) array
        Steps.
    a_inf, beta : float

    Returns
    -------
    (n,) array

    Notes
    -----
    arXiv 2601.18973.

    Examples
    --------
    >>> saturating(np.array([0.0, 1e9]), 2.0, 0.1).tolist()
    [0.0, 2.0]
    """
    return -a_inf * np.expm1(-beta * K)


def runs_test(residuals: Vector) -> float:
    """Two-sided p of the Wald-Wolfowitz test: do signs of the residuals come in fewer or more runs than by chance.

    Exact: every order of the signs is as likely. NaN for fewer than four residuals, or for one sign alone.
    """
    from math import comb

    scale = float(np.abs(residuals).max(initial=0.0))
    signs = residuals[np.abs(residuals) > 1e-9 * scale] > 0
    up, down = int(signs.sum()), int((~signs).sum())
    if len(signs) < 4 or not up or not down:
        return math.nan
    runs = 1 + int(np.sum(signs[1:] != signs[:-1]))
    chance = {}
    for r in range(2, up + down + 1):
        half, odd = divmod(r, 2)
        if odd:
            ways = comb(up - 1, half) * comb(down - 1, half - 1) + comb(up - 1, half - 1) * comb(down - 1, half)
        else:
            ways = 2 * comb(up - 1, half - 1) * comb(down - 1, half - 1)
        chance[r] = ways / comb(up + down, up)
    fewer = sum(p for r, p in chance.items() if r <= runs)
    more = sum(p for r, p in chance.items() if r >= runs)
    return min(1.0, 2 * min(fewer, more))


@dataclass(frozen=True)
class _Target:
    """What the number of steps has to reach: a fraction of the gain, or the price of another step."""

    fraction: float | None
    price: float | None

    @classmethod
    def of(cls, fraction: float | None, price: float | None) -> _Target:
        if fraction is not None and price is not None:
            raise InputError("give fraction or price, not both")
        if price is not None:
            return cls(None, checked_number(price, "price"))
        share = checked_number(0.95 if fraction is None else fraction, "fraction")
        if share >= 1:
            raise InputError(f"fraction must lie between 0 and 1, got {share:g}")
        return cls(share, None)

    def steps(self, a_inf: float, beta: float) -> float:
        if self.price is None:
            return -math.log1p(-(self.fraction or 0.0)) / beta
        if not a_inf > 0:
            return 0.0
        # By logarithms: the ratio itself may overflow.
        return max(0.0, math.log(a_inf) + math.log(beta) - math.log(self.price)) / beta


def _fit_two(
    K: Vector, gains: Vector, weights: Vector, start: tuple[float, float] | None = None
) -> tuple[float, float]:
    """A and beta by weighted least squares.

    For a given beta the best A is a ratio of sums, so that only log beta is searched: over a grid first, since the cost
    can have two valleys, then to rounding.
    """
    from scipy.optimize import minimize_scalar

    def profile(log_beta: float) -> tuple[float, float]:
        shape = -np.expm1(-math.exp(log_beta) * K)
        a = float((weights * shape) @ gains) / float((weights * shape) @ shape)
        gap = gains - a * shape
        return a, float((weights * gap) @ gap)

    grid = list(np.log(np.geomspace(*BETA_RANGE, 61) / (float(K.max()) / 30)))
    if start is not None:
        grid = sorted([*grid, math.log(start[1])])
    best = int(np.argmin([profile(x)[1] for x in grid]))
    if best in (0, len(grid) - 1):
        return profile(grid[best])[0], math.exp(grid[best])
    found = minimize_scalar(
        lambda x: profile(x)[1], bounds=(grid[best - 1], grid[best + 1]), method="bounded", options={"xatol": 1e-9}
    )
    return _polished(K, gains, weights, (profile(float(found.x))[0], math.exp(float(found.x))))


def _polished(K: Vector, gains: Vector, weights: Vector, start: tuple[float, float]) -> tuple[float, float]:
    """Gauss-Newton steps to rounding: a search for a minimum alone stops at the root of the precision."""
    from scipy.optimize import least_squares

    root, scale = np.sqrt(weights), start[0]

    def residuals(x: Vector) -> Vector:
        return root * (saturating(K, x[0], math.exp(x[1])) - gains / scale)

    def jacobian(x: Vector) -> Vector:
        beta = math.exp(x[1])
        return root[:, None] * np.column_stack([-np.expm1(-beta * K), x[0] * beta * K * np.exp(-beta * K)])

    found = least_squares(
        residuals, np.array([1.0, math.log(start[1])]), jacobian, xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=100
    )
    return float(found.x[0]) * scale, math.exp(float(found.x[1]))


def _uncertainty(
    K: Vector, table: Vector, weights: Vector, fitted: tuple[float, float], n_boot: int, rng: np.random.Generator
) -> tuple[list[list[float]], dict[str, list[float]]]:
    """Covariance and intervals: from resampled tasks where there are three or more, else from the Jacobian."""
    if len(table) >= LEAST_TASKS and n_boot >= 2:
        draws = []
        for _ in range(n_boot):
            mean = table[rng.integers(len(table), size=len(table))].mean(axis=0)
            if mean[np.argmax(K)] > 0:
                draws.append(_fit_two(K, mean, weights))
        drawn = np.array(draws)
        low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
        # Tasks drawn with replacement vary less than fresh ones.
        cov = np.cov(drawn.T) * len(table) / (len(table) - 1)
        ends = np.stack([low, high], axis=1).tolist()
        return cov.tolist(), {"a_inf": ends[0], "beta": ends[1]}
    cov = _jacobian_covariance(K, table.mean(axis=0), weights, fitted)
    errors = np.sqrt(np.diag(cov))
    named = zip(("a_inf", "beta"), fitted, errors, strict=True)
    quantile = _t_quantile(int(np.sum(K > 0)) - 2)
    return cov.tolist(), {name: [float(v - quantile * e), float(v + quantile * e)] for name, v, e in named}


def _jacobian_covariance(K: Vector, gains: Vector, weights: Vector, fitted: tuple[float, float]) -> Vector:
    a_inf, beta = fitted
    J = np.column_stack([-np.expm1(-beta * K), a_inf * K * np.exp(-beta * K)]) * np.sqrt(weights)[:, None]
    gap = np.sqrt(weights) * (gains - saturating(K, a_inf, beta))
    variance = float(gap @ gap) / max(1, int(np.sum(K > 0)) - 2)
    # Columns of one length, or the two parameters' units decide how well the inverse is conditioned.
    norms = np.linalg.norm(J, axis=0)
    norms[norms == 0] = 1.0
    inverse = np.linalg.pinv((J / norms).T @ (J / norms))
    return variance * inverse / np.outer(norms, norms)


def _t_quantile(freedom: int) -> float:
    from scipy.stats import t

    return float(t.ppf(0.975, max(1, freedom)))


def _law_verdict(K: Vector, mean: Vector, r2: float, p: float, bent: float, residuals: Vector) -> str:
    order = np.argsort(K, kind="stable")
    falls = np.diff(mean[order]) < -1e-9 * np.abs(mean).max()
    if falls.any():
        return "gains fall on the way: reduce step size"
    if r2 < 0.98:
        return f"does not describe: R2 = {r2:.3f}"
    if bent < 1:
        return f"A is not identified: beta K_max = {bent:.2g} is below 1"
    if p < EXCESS_RUNS_P and np.abs(residuals).max() > 1e-9 * np.abs(mean).max():
        return f"does not describe: residuals come in runs (p = {p:.2g}), as those of several exponentials do"
    return "describes"


def _no_law(verdict: str) -> AdaptationFit:
    nan = math.nan
    nothing = {"a_inf": [nan, nan], "beta": [nan, nan]}
    return AdaptationFit(nan, nan, [[nan, nan], [nan, nan]], nothing, nan, nan, nan, verdict)


def _trouble(mean: Vector) -> tuple[str, tuple[float, float] | None]:
    """What keeps the probes from telling, and Aitken's values, None where there are none."""
    increments = -np.diff(mean)
    tiny = 1e-12 * float(np.abs(mean).max())
    if mean[-1] > mean[0] + tiny or (increments < -tiny).all():
        return "diverging: reduce step size", None
    if (increments <= tiny).any():
        step = int(np.argmax(increments <= tiny)) + 1
        return f"cannot tell: probe step {step} gains nothing", None
    ratio = increments[1] / increments[0]
    overall = (increments[-1] / increments[0]) ** (1 / (len(increments) - 1))
    if overall >= 1:
        return "cannot tell: the gains of the probe steps do not fall", None
    if ratio >= 1:
        ratio = overall
    return "", (float(increments[0] / (1 - ratio)), -math.log(ratio))


def _budget_intervals(
    K: Vector, table: Vector, target: _Target, fitted: tuple[float, float], rng: np.random.Generator
) -> dict[str, list[float]]:
    """Intervals over resampled tasks from three up, else from the ends of the Jacobian's; two steps leave none."""
    if len(table) >= LEAST_TASKS:
        draws = []
        for _ in range(200):
            mean = table[rng.integers(len(table), size=len(table))].mean(axis=0)
            start = _trouble(mean)[1]
            if start is None:
                draws.append((math.inf, math.inf, 0.0))
                continue
            a, b = _fit_two(K, mean[0] - mean, np.ones(len(K)), start)
            draws.append((target.steps(a, b), a, b))
        drawn = np.array(draws)
        low = np.quantile(drawn, 0.025, axis=0, method="lower")
        high = np.quantile(drawn, 0.975, axis=0, method="higher")
        return {name: [float(low[i]), float(high[i])] for i, name in enumerate(("k_star", "a_inf", "beta"))}
    if len(K) == LEAST_LOSSES:
        return {name: [0.0, math.inf] for name in ("k_star", "a_inf", "beta")}
    mean = table.mean(axis=0)
    cov = _jacobian_covariance(K, mean[0] - mean, np.ones(len(K)), fitted)
    a, b = fitted
    reach = _t_quantile(len(K) - 3) * np.sqrt(np.maximum(np.diag(cov), 0))
    sides = [(max(a - reach[0], 0.0), a + reach[0]), (max(b - reach[1], 0.0), b + reach[1])]
    ends = [target.steps(max(a + s, 0.0), b + t) if b + t > 0 else math.inf
            for s in (-reach[0], 0.0, reach[0]) for t in (-reach[1], 0.0, reach[1])]
    found = zip(("k_star", "a_inf", "beta"), [(min(ends), max(ends)), *sides], strict=True)
    return {name: [float(low), float(high)] for name, (low, high) in found}


def _checked_gains(steps: ArrayLike, gains: ArrayLike) -> tuple[Vector, Vector]:
    K = as_vector(steps, "steps").astype(np.float64)
    table = np.atleast_2d(floats(gains, "gains"))
    if table.ndim != 2 or table.shape[1] != len(K) or not len(table):
        raise InputError(f"gains must have one column a step: {len(K)} steps, gains of shape {np.shape(gains)}")
    if not np.isfinite(table).all():
        row, column = (int(i) for i in np.argwhere(~np.isfinite(table))[0])
        raise InputError(f"gains must be finite, got {table[row, column]} in row {row}, column {column}")
    if (K < 0).any():
        raise InputError(f"steps must be 0 or more, got {K.min():g}")
    different = len(np.unique(K[K > 0]))
    if different < LEAST_LOSSES:
        raise InputError(f"at least {LEAST_LOSSES} different steps above 0 are needed, got {different}")
    checked_size(K, "steps")
    checked_size(table, "gains")
    return K, table


def _weights(sem: ArrayLike | None, n: int) -> Vector:
    if sem is None:
        return np.ones(n)
    errors = as_vector(sem, "sem", length=n).astype(np.float64)
    if (errors < 0).any():
        raise InputError(f"sem must be 0 or more, got {errors.min():g} in row {int(np.argmin(errors))}")
    known = errors > 0
    if not known.any():
        raise InputError("sem must have an entry above 0")
    return np.where(known, 1 / np.where(known, errors, 1.0) ** 2, 0.0) * float(errors[known].min()) ** 2


def _checked_losses(losses: ArrayLike) -> tuple[Vector, int]:
    table = np.atleast_2d(floats(losses, "losses"))
    if table.ndim != 2:
        raise InputError(f"losses must be (tasks, steps + 1) or (steps + 1,), got shape {np.shape(losses)}")
    if table.shape[1] < LEAST_LOSSES:
        raise InputError(f"at least {LEAST_LOSSES} losses a task are needed (2 probe steps), got {table.shape[1]}")
    finite: NDArray[np.bool_] = np.isfinite(table).all(axis=1)  # type: ignore[assignment]
    if not finite.any():
        raise InputError("no task has finite losses throughout")
    kept = table[finite]
    if (kept < 0).any():
        row, column = (int(i) for i in np.argwhere((table < 0) & finite[:, None])[0])
        raise InputError(f"losses must be 0 or more, got {table[row, column]:g} in row {row}, column {column}")
    checked_size(kept, "losses")
    return kept, int((~finite).sum())
