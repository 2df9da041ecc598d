"""Beta-IRT: one ability a model and one ease a question, from a matrix of responses (arXiv 2606.07616).

The response of model i to question j is a number between 0 and 1: the probability per character of the right
continuation, or the share of samples that passed. Its expectation is `sigmoid(slope_j * (theta_i + z_j))`, with z the
*ease* of the question (larger is easier), and it scatters as a Beta distribution of precision phi.

Three ways to calibrate, all reconstructed in their details:

- `map`: abilities and items together, theta ~ N(0, prior_sd^2), by L-BFGS with the analytic gradient in M + N
  parameters and memory for one matrix. What one wants, save for short tests of right and wrong answers.
- `marginal`: the abilities integrated out on 41 Gauss-Hermite nodes, by EM. The textbook's way for short tests; where
  hundreds of continuous responses pin an ability down to less than the nodes' distance it says so in a warning.
- `random-abilities`: the authors'. Each item minimises the average loss over abilities drawn from N(0, 1) without
  regard to who answered; here the average is taken by quadrature instead of over 150 draws. Averaging the *log*
  likelihood so is not marginal likelihood: an item's ease becomes a function of its mean logit alone, and is shrunk.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import ArrayLike
from scipy.optimize import brentq, minimize
from scipy.special import digamma, expit, gammaln, logit, logsumexp
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from assay.errors import InputError, as_matrix, as_vector
from assay.scaling.irsl.ability import Items, estimate, response_of
from assay.scaling.irsl.likelihood import Array, clipped, trigamma

__all__ = ["BetaIRT", "as_rows", "read_responses"]

MODELS, LIKELIHOODS, METHODS = ("1pl", "2pl"), ("beta", "binary"), ("map", "marginal", "random-abilities")
NODES = 41
SLOPE_LIMITS = (0.05, 20.0)
SLOPE_PRIOR_SD = 0.5  # of the logarithm of the slope, 2PL
PHI_LIMITS = (0.1, 1e5)
PRIOR_LIMITS = (0.01, 100.0)  # outside, the search can't see likelihood and prior at once


class BetaIRT(BaseEstimator):
    """Item response theory for responses in [0, 1], or for right and wrong.

    Parameters
    ----------
    model : {"1pl", "2pl"}, default "1pl"
        One slope for all items, or one an item (`map` only).
    likelihood : {"beta", "binary"}, default "beta"
        `binary` takes a response above one half as right.
    phi : "estimate" or float, default "estimate"
        Precision of the Beta distribution. The authors fix 10; where that is not the precision of the data the
        expected responses are biased.
    method : {"map", "marginal", "random-abilities"}, default "map"
        How the items are calibrated, see the module. `random-abilities` with phi = 10 is the authors'.
    prior_sd : float, default 1.0
        Standard deviation of the abilities' prior, which also fixes their origin.
    tol : float, default 1e-6
        How close a search comes: L-BFGS ends at a relative change of the objective of `tol / 1000`, EM at a change of
        the eases of `sqrt(tol)`.
    max_iter : int, default 500

    Attributes
    ----------
    ability_ : ndarray, shape (models,), or (models, groups) with groups
        NaN for a model that answered nothing.
    ease_, slope_ : ndarray, shape (items,)
        NaN for an item that nobody answered.
    phi_ : float, or ndarray, shape (groups,)
        NaN for right and wrong. At most 1e5, which it reaches where the responses do not scatter at all (models that
        respond alike, a single item): standard errors then mean nothing.
    groups_ : ndarray or None
        The groups' labels, in the order of the columns of `ability_`.
    converged_ : bool
    n_iter_ : int
        Iterations, those of all groups together.
    nll_ : float
        Negative log likelihood of the fitted responses, in nats, without the prior.

    Raises
    ------
    InputError
        See `fit`.

    Notes
    -----
    arXiv 2606.07616; joint estimation and the precision are reconstructed.

    Examples
    --------
    >>> import numpy as np
    >>> theta, ease = np.linspace(-1, 1, 8), np.linspace(-2, 2, 30)
    >>> Y = 1 / (1 + np.exp(-(theta[:, None] + ease)))
    >>> irt = BetaIRT(phi=50.0).fit(Y)
    >>> bool(np.corrcoef(irt.ability_, theta)[0, 1] > 0.999)
    True
    """

    def __init__(
        self, model: str = "1pl", likelihood: str = "beta", phi: str | float = "estimate", method: str = "map",
        prior_sd: float = 1.0, tol: float = 1e-6, max_iter: int = 500,
    ) -> None:
        self.model = model
        self.likelihood = likelihood
        self.phi = phi
        self.method = method
        self.prior_sd = prior_sd
        self.tol = tol
        self.max_iter = max_iter

    def fit(self, Y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Calibrate items and models.

        Parameters
        ----------
        Y : array-like, shape (models, items)
            Responses in [0, 1]; NaN where a model was not asked.
        groups : array-like, shape (items,), optional
            Benchmark of each item: each is calibrated by itself, and a model has an ability in each. Their scales
            are tied together by nothing but the prior over the same models.

        Returns
        -------
        self

        Raises
        ------
        InputError
            Responses outside [0, 1] (with their number; percentages and losses are recognised), fewer than two
            models, an unknown setting.

        Warns
        -----
        UserWarning
            A model or an item without answers; with `model="2pl"` an item to which all models respond alike.
        """
        self._check_settings()
        values = read_responses(Y, min_rows=2)
        labels = None if groups is None else _read_groups(groups, values.shape[1])
        self._warn(values)
        n_models, n_items = values.shape
        self.n_features_in_ = n_items
        self.groups_, self.item_groups_ = None, np.zeros(n_items, dtype=int)
        if labels is not None:
            self.groups_, self.item_groups_ = np.unique(labels, return_inverse=True)
        n_groups = 1 if self.groups_ is None else len(self.groups_)
        ability, phi = np.full((n_models, n_groups), np.nan), np.full(n_groups, np.nan)
        self.ease_, self.slope_ = np.full(n_items, np.nan), np.full(n_items, np.nan)
        self.converged_, self.nll_, self.n_iter_ = True, 0.0, 0
        for group in range(n_groups):
            columns = np.flatnonzero((self.item_groups_ == group) & ~np.isnan(values).all(axis=0))
            rows = np.flatnonzero(~np.isnan(values[:, columns]).all(axis=1))
            if not len(columns):
                continue
            found = self._calibrate(values[np.ix_(rows, columns)])
            ability[rows, group], phi[group] = found["theta"], found["phi"]
            self.ease_[columns], self.slope_[columns] = found["ease"], found["slope"]
            self.converged_ = self.converged_ and found["converged"]
            self.nll_, self.n_iter_ = self.nll_ + found["nll"], self.n_iter_ + found["n_iter"]
        self.ability_ = ability if self.groups_ is not None else ability[:, 0]
        self.phi_ = phi if self.groups_ is not None else float(phi[0])
        return self

    def score_ability(self, Y_new: ArrayLike) -> tuple[Array, Array]:
        """Abilities of other models, the items held fixed.

        Parameters
        ----------
        Y_new : array-like, shape (n, items), or (items,) for one model
            NaN where a question was not asked.

        Returns
        -------
        theta, se : ndarray, shape (n,), or (n, groups)
            Maximum likelihood ability and its standard error, 1 / sqrt(information). NaN and infinity without an
            answer; plus or minus 15 and infinity where all answers of a binary test are right, or all wrong.

        Raises
        ------
        InputError
            Responses outside [0, 1]; another number of items.
        """
        check_is_fitted(self, "ease_")
        values = read_responses(as_rows(Y_new), columns=len(self.ease_))
        parts = [self._score_group(values, group) for group in range(1 if self.groups_ is None else len(self.groups_))]
        theta, se = np.column_stack([p[0] for p in parts]), np.column_stack([p[1] for p in parts])
        return (theta, se) if self.groups_ is not None else (theta[:, 0], se[:, 0])

    def predict_proba(self, theta: ArrayLike | None = None) -> Array:
        """Expected responses, shape (n, items).

        Parameters
        ----------
        theta : array-like, shape (n,), or (n, groups), optional
            Abilities; those of the fitted models by default.

        Raises
        ------
        InputError
            Abilities of another shape.
        """
        check_is_fitted(self, "ease_")
        return expit(self.slope_ * (self._spread(theta) + self.ease_))

    def information(self, theta: ArrayLike) -> Array:
        """Fisher information of each item about an ability, shape (n, items).

        Parameters
        ----------
        theta : array-like, shape (n,), or (n, groups)

        Raises
        ------
        InputError
            Abilities of another shape.
        """
        check_is_fitted(self, "ease_")
        spread = self._spread(theta)
        result = np.full(spread.shape, np.nan)
        for group in range(1 if self.groups_ is None else len(self.groups_)):
            columns = self.item_groups_ == group
            result[:, columns] = self.items(group).information(spread[:, columns][:, 0])
        return result

    def items(self, group: int = 0) -> Items:
        """Parameters of the items of a group (by its number), for `AdaptiveTest`."""
        check_is_fitted(self, "ease_")
        n_groups = 1 if self.groups_ is None else len(self.groups_)
        if isinstance(group, bool) or not isinstance(group, int | np.integer) or not 0 <= group < n_groups:
            raise InputError(f"there is no group {group!r}, only 0 to {n_groups - 1}")
        columns = self.item_groups_ == group
        return Items(self.ease_[columns], self.slope_[columns], float(np.atleast_1d(self.phi_)[group]))

    def _score_group(self, values: Array, group: int) -> tuple[Array, Array]:
        items, response = self.items(group), values[:, self.item_groups_ == group]
        known = ~np.isnan(items.ease)
        return estimate(response_of(response[:, known], items), items.take(known))

    def _spread(self, theta: ArrayLike | None) -> Array:
        """Abilities by row and item, shape (n, items)."""
        given = self.ability_ if theta is None else theta
        if self.groups_ is None:
            column = np.asarray(given) if theta is None else as_vector(given, "theta")
            return np.repeat(column.astype(float)[:, None], len(self.ease_), axis=1)
        table = as_matrix(given, "theta", columns=len(self.groups_), allow_nan=theta is None)
        return table.astype(float)[:, self.item_groups_]

    def _check_settings(self) -> None:
        for name, known in (("model", MODELS), ("likelihood", LIKELIHOODS), ("method", METHODS)):
            if getattr(self, name) not in known:
                raise InputError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        if self.model == "2pl" and self.method != "map":
            raise InputError(f"model='2pl' is calibrated by method='map' only, got {self.method!r}")
        if self.phi != "estimate" and not _positive(self.phi):
            raise InputError(f"phi must be 'estimate' or a positive number, got {self.phi!r}")
        if self.phi == "estimate" and self.likelihood == "beta" and self.method == "random-abilities":
            raise InputError("method='random-abilities' needs a fixed phi (the authors take 10): it can't estimate one")
        for name in ("prior_sd", "tol", "max_iter"):
            if not _positive(getattr(self, name)):
                raise InputError(f"{name} must be a positive number, got {getattr(self, name)!r}")
        if not isinstance(self.max_iter, int | np.integer):
            raise InputError(f"max_iter must be a whole number, got {self.max_iter!r}")
        low, high = PRIOR_LIMITS
        if not low <= self.prior_sd <= high:
            raise InputError(f"prior_sd must lie between {low:g} and {high:g}, got {self.prior_sd!r}")

    def _warn(self, values: Array) -> None:
        missing = np.isnan(values)
        if (rows := missing.all(axis=1)).any():
            warnings.warn(f"{rows.sum()} models answered nothing: their ability is NaN", UserWarning, stacklevel=3)
        if (columns := missing.all(axis=0)).any():
            warnings.warn(f"{columns.sum()} items have no answer: their ease is NaN", UserWarning, stacklevel=3)
        if self.model == "2pl":
            known = values[:, ~columns]
            constant = int((np.nanmax(known, axis=0) == np.nanmin(known, axis=0)).sum())
            if constant:
                text = f"{constant} items get the same response from all models: their slope is clipped"
                warnings.warn(text, UserWarning, stacklevel=3)

    def _calibrate(self, values: Array) -> dict[str, Any]:
        """One benchmark; every row and column has an answer."""
        problem = _Problem(values, self)
        if self.method == "map":
            return _joint(problem)
        return _marginal(problem) if self.method == "marginal" else _random_abilities(problem)


def read_responses(Y: ArrayLike, *, columns: int | None = None, min_rows: int = 1) -> Array:
    """Responses as float64, NaN where not asked, all others in [0, 1].

    Raises `InputError` with the number of values outside, and what they look like.
    """
    values = as_matrix(Y, "Y", columns=columns, min_rows=min_rows, allow_nan=True).astype(float)
    outside = (values < 0) | (values > 1)
    if not outside.any():
        return values
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    hint = ""
    if low >= 0:
        # Summed losses reach the range of percentages too.
        hint = "; losses? pass exp(-loss / characters), the probability per character"
        hint += "; percentages? divide by 100" if 20 < high <= 100 else ""
    raise InputError(f"Y must lie in [0, 1]: {int(outside.sum())} values do not, from {low:g} to {high:g}{hint}")


def as_rows(Y: ArrayLike) -> ArrayLike:
    """The responses of one model as a table of one row."""
    try:
        return np.atleast_2d(np.asarray(Y))
    except ValueError:
        return Y  # rows of different lengths, which the reader refuses


def _read_groups(groups: ArrayLike, n_items: int) -> np.ndarray:
    """One label an item, none of them missing."""
    labels = np.asarray(groups)
    if labels.shape != (n_items,):
        raise InputError(f"groups must have one label for each of the {n_items} items, got shape {labels.shape}")
    missing = np.array([label is None or label != label for label in np.asarray(groups, dtype=object).tolist()])
    if missing.any():
        raise InputError(f"groups: the label of item {int(np.argmax(missing))} is missing")
    return labels.astype(str) if labels.dtype == object else labels


def _positive(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and 0 < float(value) < np.inf


class _Problem:
    """The data of one calibration, in the form that the likelihood wants."""

    def __init__(self, values: Array, irt: BetaIRT) -> None:
        self.irt = irt
        self.binary = irt.likelihood == "binary"
        self.asked = ~np.isnan(values)
        self.full = bool(self.asked.all())
        self.weight = self.asked.astype(float)
        if self.binary:
            self.y = np.where(self.asked, values > 0.5, False).astype(float)
        else:
            y = clipped(np.where(self.asked, values, 0.5))
            self.log_y, self.log_rest = np.log(y), np.log1p(-y)
            self.logit_y = self.log_y - self.log_rest
            self.log_density_of_y = -float((self.weight * (self.log_y + self.log_rest)).sum())
        self.n_models, self.n_items = values.shape

    def start(self) -> tuple[Array, Array]:
        """Abilities and eases from row and column means of the logits."""
        if self.binary:
            right, asked = (self.weight * self.y), self.weight
            by_row = logit((right.sum(1) + 0.5) / (asked.sum(1) + 1))
            by_column = logit((right.sum(0) + 0.5) / (asked.sum(0) + 1))
        else:
            by_row = (self.weight * self.logit_y).sum(1) / self.weight.sum(1)
            by_column = (self.weight * self.logit_y).sum(0) / self.weight.sum(0)
        return by_row - by_row.mean(), by_column

    def nll(self, eta: Array, phi: float, need_phi: bool) -> tuple[float, Array, float]:
        """Negative log likelihood, its derivatives in eta, and in log phi."""
        if self.binary:
            value = np.logaddexp(0, eta) - self.y * eta
            slope = expit(eta) - self.y
            if not self.full:
                value, slope = value * self.weight, slope * self.weight
            return float(value.sum()), slope, 0.0
        mu, rest = expit(eta), expit(-eta)
        a, b = mu * phi, rest * phi
        psi_a, psi_b = digamma(a), digamma(b)
        # The part of log y and log (1 - y) that does not depend on the parameters is added once.
        value = gammaln(a) + gammaln(b) - a * self.log_y - b * self.log_rest
        slope = a * rest * (psi_a - psi_b - self.logit_y)
        if not self.full:
            value, slope = value * self.weight, slope * self.weight
        total = float(value.sum()) - float(self.weight.sum()) * float(gammaln(phi)) - self.log_density_of_y
        if not need_phi:
            return total, slope, 0.0
        in_phi = a * (psi_a - self.log_y) + b * (psi_b - self.log_rest)
        summed = float((in_phi * self.weight).sum()) - float(self.weight.sum()) * phi * float(digamma(phi))
        return total, slope, summed

    def start_phi(self, theta: Array, ease: Array) -> float:
        """Moment estimate from the residuals, or the fixed one; NaN for right and wrong."""
        if self.binary:
            return np.nan
        if self.irt.phi != "estimate":
            return float(self.irt.phi)
        mu = expit(theta[:, None] + ease)
        squares = (self.weight * (np.exp(self.log_y) - mu) ** 2).sum()
        return float(np.clip((self.weight * mu * (1 - mu)).sum() / max(squares, 1e-12) - 1, 1.0, 1e4))


def _joint(problem: _Problem) -> dict[str, Any]:
    """Joint posterior mode of abilities, eases, slopes and precision, by L-BFGS."""
    irt, m, n = problem.irt, problem.n_models, problem.n_items
    sloped, free_phi = irt.model == "2pl", irt.phi == "estimate" and not problem.binary
    theta, ease = problem.start()
    phi = problem.start_phi(theta, ease)
    log_phi = [np.log(phi)] if free_phi else []
    start = np.concatenate([theta, ease, np.zeros(n * sloped), log_phi])

    def objective(x: Array) -> tuple[float, Array]:
        theta, ease = x[:m], x[m : m + n]
        slope = np.exp(x[m + n : m + 2 * n]) if sloped else 1.0
        precision = float(np.exp(x[-1])) if free_phi else phi
        place = theta[:, None] + ease
        value, d_eta, d_phi = problem.nll(slope * place, precision, free_phi)
        value += float(theta @ theta) / (2 * irt.prior_sd**2)
        in_place = slope * d_eta
        gradient = [in_place.sum(axis=1) + theta / irt.prior_sd**2, in_place.sum(axis=0)]
        if sloped:
            log_slope = x[m + n : m + 2 * n]
            value += float(log_slope @ log_slope) / (2 * SLOPE_PRIOR_SD**2)
            gradient.append((d_eta * place).sum(axis=0) * slope + log_slope / SLOPE_PRIOR_SD**2)
        if free_phi:
            gradient.append(np.array([d_phi]))
        return value, np.concatenate(gradient)

    bounds = [(-np.inf, np.inf)] * (m + n) + [tuple(np.log(SLOPE_LIMITS))] * (n * sloped)
    bounds += [tuple(np.log(PHI_LIMITS))] * int(free_phi)
    options = {"maxiter": int(irt.max_iter), "maxfun": 10 * int(irt.max_iter), "ftol": irt.tol * 1e-3, "gtol": 0.0,
               "maxcor": 20}
    found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    theta, ease = found.x[:m], found.x[m : m + n]
    slope = np.exp(found.x[m + n : m + 2 * n]) if sloped else np.ones(n)
    phi = float(np.exp(found.x[-1])) if free_phi else phi
    nll = problem.nll(slope * (theta[:, None] + ease), phi, False)[0]
    return {"theta": theta, "ease": ease, "slope": slope, "phi": phi, "converged": found.status == 0, "nll": nll,
            "n_iter": int(found.nit)}


def _nodes() -> tuple[Array, Array]:
    """Gauss-Hermite nodes and log weights of N(0, 1)."""
    x, w = hermegauss(NODES)
    return x, np.log(w / w.sum())


def _marginal(problem: _Problem) -> dict[str, Any]:
    """EM on fixed nodes: responses enter by sums over nodes, so that each step is a few matrix products."""
    irt = problem.irt
    nodes, log_weight = _nodes()
    nodes = irt.prior_sd * nodes
    theta, ease = problem.start()
    phi = problem.start_phi(theta, ease)
    free_phi = irt.phi == "estimate" and not problem.binary
    change, n_iter = np.inf, 0
    posterior = _posterior(problem, nodes, log_weight, ease, phi)
    while change >= irt.tol**0.5 and n_iter < irt.max_iter:
        moved = _best_eases(problem, nodes, posterior, ease, phi)
        if free_phi:
            phi = _best_phi(problem, nodes, posterior, moved)
        change, ease = float(np.abs(moved - ease).max()), moved
        posterior = _posterior(problem, nodes, log_weight, ease, phi)
        n_iter += 1
    theta = posterior @ nodes
    spread = np.sqrt(np.maximum(posterior @ nodes**2 - theta**2, 0))
    apart = float(np.diff(nodes)[NODES // 2])
    if np.median(spread) < apart / 3:
        text = (
            f"the posterior of an ability is {np.median(spread):.2g} wide, the nodes are {apart:.2g} apart: "
            "method='map' is what such long tests want"
        )
        warnings.warn(text, UserWarning, stacklevel=5)
    nll = problem.nll(theta[:, None] + ease, phi, False)[0]
    return {"theta": theta, "ease": ease, "slope": np.ones(len(ease)), "phi": phi, "converged": change < irt.tol**0.5,
            "nll": nll, "n_iter": n_iter}


def _posterior(problem: _Problem, nodes: Array, log_weight: Array, ease: Array, phi: float) -> Array:
    """Probability of each node for each model, shape (models, nodes)."""
    eta = nodes[:, None] + ease
    if problem.binary:
        fit = (problem.weight * problem.y) @ eta.T - problem.weight @ np.logaddexp(0, eta).T
    else:
        a, b = phi * expit(eta), phi * expit(-eta)
        fit = (problem.weight * problem.log_y) @ a.T + (problem.weight * problem.log_rest) @ b.T
        fit -= problem.weight @ (gammaln(a) + gammaln(b)).T
    fit += log_weight
    return np.exp(fit - logsumexp(fit, axis=1, keepdims=True))


def _best_eases(problem: _Problem, nodes: Array, posterior: Array, ease: Array, phi: float) -> Array:
    """Eases that maximise the expected log likelihood: Fisher scoring, all items at once."""
    response = problem.y if problem.binary else problem.logit_y
    expected, mass = posterior.T @ (problem.weight * response), posterior.T @ problem.weight
    for _ in range(20):
        eta = nodes[:, None] + ease
        mu, rest = expit(eta), expit(-eta)
        if problem.binary:
            score, information = (expected - mass * mu).sum(0), (mass * mu * rest).sum(0)
        else:
            scale = phi * mu * rest
            score = (scale * (expected - mass * (digamma(phi * mu) - digamma(phi * rest)))).sum(0)
            information = (mass * scale**2 * (trigamma(phi * mu) + trigamma(phi * rest))).sum(0)
        step = np.clip(score / np.maximum(information, 1e-9), -1, 1)
        ease = np.clip(ease + step, -20, 20)
        if np.abs(step).max() < 1e-8:
            break
    return ease


def _best_phi(problem: _Problem, nodes: Array, posterior: Array, ease: Array) -> float:
    """Precision that maximises the expected log likelihood."""
    eta = nodes[:, None] + ease
    mu, rest = expit(eta), expit(-eta)
    mass = posterior.T @ problem.weight
    log_y = posterior.T @ (problem.weight * problem.log_y)
    log_rest = posterior.T @ (problem.weight * problem.log_rest)

    def slope(log_phi: float) -> float:
        phi = np.exp(log_phi)
        by_node = mu * (log_y - mass * digamma(mu * phi)) + rest * (log_rest - mass * digamma(rest * phi))
        return float(by_node.sum() + mass.sum() * digamma(phi))

    low, high = np.log(PHI_LIMITS)
    if slope(low) <= 0 or slope(high) >= 0:
        return float(np.exp(low if slope(low) <= 0 else high))
    return float(np.exp(brentq(slope, low, high, xtol=1e-10)))


def _random_abilities(problem: _Problem) -> dict[str, Any]:
    """The authors' calibration: each item alone, its loss averaged over abilities that nobody has.

    With E over theta ~ N(0, 1), mu = sigmoid(theta + z) and w = phi mu (1 - mu), the ease solves
    `E[w (psi(mu phi) - psi((1 - mu) phi))] = E[w] * mean logit of the item` (or `E[mu] = share right`): a monotone
    function of one mean, tabulated once for all items.
    """
    irt = problem.irt
    nodes, log_weight = _nodes()
    weight = np.exp(log_weight)
    asked = problem.weight.sum(axis=0)
    if problem.binary:
        mean, phi = (problem.weight * problem.y).sum(axis=0) / asked, np.nan
        mean = np.clip(mean, 1e-4, 1 - 1e-4)
    else:
        mean, phi = (problem.weight * problem.logit_y).sum(axis=0) / asked, float(irt.phi)
    ease = np.array([_solve(_mean_at(phi, nodes, weight), value) for value in mean])
    items = Items(ease, np.ones(len(ease)), phi)
    response = problem.y if problem.binary else problem.logit_y
    theta, _ = estimate(np.where(problem.asked, response, np.nan), items)
    nll = problem.nll(theta[:, None] + ease, phi, False)[0]
    return {"theta": theta, "ease": ease, "slope": np.ones(len(ease)), "phi": phi, "converged": True, "nll": nll,
            "n_iter": 0}


def _mean_at(phi: float, nodes: Array, weight: Array) -> Callable[[float], float]:
    """The item mean that an ease answers to."""

    def mean(ease: float) -> float:
        mu, rest = expit(nodes + ease), expit(-nodes - ease)
        if np.isnan(phi):
            return float(weight @ mu)
        scale = weight * mu * rest
        return float(scale @ (digamma(mu * phi) - digamma(rest * phi)) / scale.sum())

    return mean


def _solve(mean: Callable[[float], float], value: float) -> float:
    low, high = -30.0, 30.0
    if mean(low) >= value or mean(high) <= value:
        return low if mean(low) >= value else high
    return float(brentq(lambda z: mean(z) - value, low, high, xtol=1e-10))
