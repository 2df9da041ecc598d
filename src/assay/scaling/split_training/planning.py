"""How to split a budget of training between a phase that all domains share and one phase a domain.

With a shared trunk of D tokens and Dp_k tokens on domain k the budget is `D + sum_k Dp_k = T` tokens; with a trunk for
each of m specialists it is `m D + sum_k Dp_k = T`. A token costs 6 N FLOP. The weighted loss `sum_k w_k L_k` is
smallest where one more token would gain equally everywhere (arXiv 2603.19149; the conditions are reconstructed):

    -w_k dL_k/dDp_k = mu  for each domain,    -sum_k w_k dL_k/dD = mu (shared) or m mu (a trunk each)

For a given D the branches are set by the first condition; D itself is found on a grid that closes in on its best
point. Branches that the budget leaves nothing for, and limits on tokens, are held at their ends.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from assay.errors import InputError, nearest
from assay.scaling.split_training.forms import Array, Rows
from assay.scaling.split_training.law import SplitLaw, read_rows

__all__ = ["SplitPlan", "iso_loss_exchange", "optimal_split", "split_curve"]

TRUNKS = ("shared", "independent")
FIXED_SHARES = {"specialists only": 0.0, "50/50": 0.5, "90/10": 0.9, "full": 1.0}
LEAST_SHARE = 1e-6  # of the budget, for a phase that the law has no value without
GRID, ZOOM, ZOOMS = 97, 25, 7
MOST_DOMAINS = 1000
SLOPE_STEPS = 80


@dataclass(frozen=True, eq=False)
class SplitPlan:
    """How to spend a budget on a shared phase and on one phase a domain.

    The budgets are those of arXiv 2603.19149, its planner is reconstructed.

    Attributes
    ----------
    N : float
        Parameters.
    D : float
        Tokens of the shared phase (of each trunk, where they are independent).
    Dp : dict of str to float
        Tokens of each domain's own phase.
    loss : float
        Weighted mean of the predicted losses.
    losses : dict of str to float
        The predicted loss on each domain.
    baselines : dict of str to float
        The predicted weighted loss of fixed rules at the same budget, their branches of equal length: `specialists
        only`, `50/50`, `90/10` (the larger part shared), and `full`, all on the shared phase. NaN where the law has
        no value. `full` is the limit Dp = 0 of the law: a trunk whose rate has not fallen yet, unless such runs were
        fitted. One model trained to its end reaches a lower loss.
    tokens, flops : float
        What is spent.
    trunk : str
        `shared` or `independent`.
    interval : DataFrame
        Rows D, `Dp <domain>`, share (of the budget on the trunk or trunks), loss; columns estimate, low, high of
        refits to resampled rows. Empty without refits.
    notes : tuple of str
        Where the plan leaves the fitted runs.

    Raises
    ------
    InputError
        Tokens that are negative, nothing that is spent, or an unknown kind of trunk.

    Examples
    --------
    >>> plan = SplitPlan(1e6, 3e6, {"c": 1e6}, 2.0, {"c": 2.0}, {}, 4e6, 2.4e13, "shared", pd.DataFrame(), ())
    >>> plan.share
    0.75
    """

    N: float
    D: float
    Dp: dict[str, float]
    loss: float
    losses: dict[str, float]
    baselines: dict[str, float]
    tokens: float
    flops: float
    trunk: str
    interval: pd.DataFrame
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_trunk(self.trunk)
        for name in ("N", "tokens", "flops"):
            _positive(getattr(self, name), name)
        for name, value in {"D": self.D, **self.Dp}.items():
            if not (np.isfinite(value) and value >= 0):
                raise InputError(f"a plan's tokens can't be negative, got {value:g} for {name}")

    @property
    def share(self) -> float:
        """The share of the tokens that goes into the trunk or trunks."""
        return 1 - sum(self.Dp.values()) / self.tokens

    def to_dict(self) -> dict[str, Any]:
        """Numbers and texts alone, for a JSON file."""
        fields = {name: value for name, value in vars(self).items() if name != "interval"}
        found = {row: {name: float(v) for name, v in values.items()} for row, values in self.interval.iterrows()}
        return {**fields, "share": self.share, "notes": list(self.notes), "interval": found}


def optimal_split(
    law: SplitLaw, *, tokens: float | None = None, flops: float | None = None, n_params: float | Sequence[float],
    n_domains: int | None = None, weights: Mapping[str, float] | Sequence[float] | None = None, trunk: str = "shared",
    bounds: Mapping[str, tuple[float, float]] | None = None, n_refits: int = 100, groups: ArrayLike | None = None,
    level: float = 0.95,
) -> SplitPlan:
    """The split of a budget with the smallest predicted loss, beside fixed rules.

    Parameters
    ----------
    law : SplitLaw
        Fitted, to one domain or to several.
    tokens, flops : float, optional
        The budget for everything together; one of the two.
    n_params : float or sequence of float
        Model size; of several the one with the smallest loss is taken (compare sizes under `flops`).
    n_domains : int, optional
        How many specialists there will be. By default the law's domains; a law of one domain may stand for several
        alike, up to 1,000.
    weights : mapping or sequence of float, optional
        How much each domain counts, by name or in the law's order; equal by default. Scaled to a sum of 1.
    trunk : {"shared", "independent"}
        Whether all specialists leave one trunk, or each has a trunk of its own of the same length.
    bounds : mapping, optional
        `{"D": (low, high), "Dp": (low, high)}`: tokens of a trunk, and of each branch, for instance up to what the
        domain holds without repeats.
    n_refits : int, default 100
        Refits behind the interval; 0 for none.
    groups : array-like, optional
        What fitted rows are drawn together for the refits; by default the groups of the fit.
    level : float, default 0.95

    Returns
    -------
    SplitPlan

    Raises
    ------
    InputError
        No budget or two, a budget or size that is not positive, unknown weights, bounds that the budget can't keep,
        or a law fitted to one Dp, which cannot plan a split.

    Warns
    -----
    UserWarning
        The plan lies outside the fitted runs.

    Examples
    --------
    >>> law = SplitLaw("multiplicative")
    >>> law.form_, law.fits_size_, law.groups_ = "multiplicative", True, None
    >>> law.params_ = dict(E=1.0, A=0.0001, alpha=0.3, B=50.0, beta=0.3, s=1e5, eta=0.2)
    >>> law.rows_ = np.array([[1e6, 1e6, 1e5], [1e7, 1e8, 1e7]])
    >>> plan = optimal_split(law, tokens=1e7, n_params=1e6, n_domains=2, n_refits=0)
    >>> print(f"{plan.D:.3g} shared, {plan.Dp['1']:.3g} on each domain, loss {plan.loss:.3f}")
    6.12e+06 shared, 1.94e+06 on each domain, loss 1.252
    """
    _check_kind(law)
    sizes = _sizes(n_params)
    _check_law(law, sizes)
    price = _budget(tokens, flops)
    _check_trunk(trunk)
    if isinstance(n_refits, bool) or not isinstance(n_refits, Integral) or n_refits < 0:
        raise InputError(f"n_refits must be a whole number, 0 or more, got {n_refits!r}")
    if not (isinstance(level, Real) and 0 < float(level) < 1):
        raise InputError(f"level must lie between 0 and 1, got {level}")
    names = _names(law, n_domains)
    task = _Task(names, _weights(weights, names), trunk, _limits(bounds))
    N, T = min(((N, price / N if flops is not None else price) for N in sizes), key=lambda at: task.best(law, *at)[2])
    D, Dp, loss = task.best(law, N, T)
    estimate = task.numbers(D, Dp, loss, T)
    interval = pd.DataFrame()
    if n_refits:
        found = pd.DataFrame([task.numbers(*task.best(refit, N, T), T) for refit in law.refits(n_refits, groups)])
        ends = found.quantile((1 - level) / 2), found.quantile((1 + level) / 2)
        interval = pd.DataFrame({"estimate": pd.Series(estimate), "low": ends[0], "high": ends[1]})
    notes = tuple(_outside(law, N, D, Dp))
    for note in notes:
        warnings.warn(note, stacklevel=2)
    spent = float(task.copies * D + Dp.sum())
    return SplitPlan(
        N, D, dict(zip(names, map(float, Dp), strict=True)), loss, task.losses(law, N, D, Dp),
        {rule: task.fixed(law, N, T, share) for rule, share in FIXED_SHARES.items()}, spent, 6 * N * spent, trunk,
        interval, notes,
    )


def split_curve(
    law: SplitLaw, tokens: float, n_params: float, *, n_domains: int | None = None, trunk: str = "shared",
    shares: ArrayLike | None = None,
) -> pd.DataFrame:
    """Predicted mean loss against the share of a budget that is spent on the trunk; branches of equal length.

    Returns
    -------
    DataFrame
        Columns share, D, Dp (of each domain) and loss.
    """
    _check_kind(law)
    [N] = _sizes(n_params)
    _check_law(law, [N])
    names = _names(law, n_domains)
    task = _Task(names, _weights(None, names), trunk, _limits(None))
    points = np.linspace(0.02, 0.98, 49) if shares is None else np.asarray(shares, dtype=float)
    T = _positive(tokens, "tokens")
    rows = [
        (share, share * T / task.copies, (1 - share) * T / len(names), task.fixed(law, N, T, share)) for share in points
    ]
    return pd.DataFrame(rows, columns=["share", "D", "Dp", "loss"])


def iso_loss_exchange(
    law: SplitLaw, N: ArrayLike, D: ArrayLike, Dp: ArrayLike, domain: str | None = None
) -> np.floating | Array:
    """How many domain tokens one more shared token replaces, `-dDp/dD` at equal loss.

    Above 1 a token is better spent on the trunk, below 1 on the domain (with one domain; m domains that share a trunk
    weigh its tokens m times). Under the form "transfer" it is `k gamma D**(gamma - 1) N**delta`. The measure is
    reconstructed from the arguments of the law of arXiv 2603.19149.

    Parameters
    ----------
    law : SplitLaw
        Fitted.
    N, D, Dp : float or array-like
        Parameters, shared and domain tokens, all positive; broadcast.
    domain : str, optional
        Needed where the law was fitted to domains.

    Returns
    -------
    float or ndarray

    Raises
    ------
    InputError
        A number that is not positive and finite; shapes that don't broadcast; an unknown domain.

    Examples
    --------
    >>> law = SplitLaw("transfer")
    >>> law.form_, law.fits_size_ = "transfer", True
    >>> law.params_ = dict(E=1.0, A=10.0, alpha=0.3, B=200.0, beta=0.4, k=2.0, gamma=0.5, delta=0.1)
    >>> round(float(iso_loss_exchange(law, 1e10, 1e4, 1e6)), 6)
    0.1
    """
    _check_kind(law)
    try:
        parts = np.broadcast_arrays(*(np.asarray(v, dtype=float) for v in (N, D, Dp)))
    except (TypeError, ValueError):
        raise InputError("N, D and Dp must be numbers of shapes that broadcast") from None
    for name, values in zip(("N", "D", "Dp"), parts, strict=True):
        if not values.size or not (np.isfinite(values) & (values > 0)).all():
            raise InputError(f"{name} must be positive and finite, got {np.asarray(values).ravel()[:1]}")
    one = law
    if hasattr(law, "laws_"):
        one = law.laws_[str(law._asked(domain, 1)[0])]
    elif domain is not None:
        raise InputError("the law was fitted without domains, and can't be asked for one")
    table = read_rows(np.column_stack([values.ravel() for values in parts]))
    one.log_losses(table[:1])  # refuses what the law has no value for
    shared, own = one._form.token_slopes(one._to_search(one.params_), Rows.of(table))
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = (shared / own).reshape(parts[0].shape)
    if not np.isfinite(rates).all():
        raise InputError("N, D and Dp are so large that the law's slopes can't be told from 0")
    return rates[()]


@dataclass(frozen=True)
class _Task:
    """What is planned for: domains with weights, the kind of trunk, limits on tokens."""

    names: tuple[str, ...]
    weights: Array
    trunk: str
    limits: dict[str, tuple[float, float]]

    @property
    def copies(self) -> int:
        """How many trunks are paid for."""
        return len(self.names) if self.trunk == "independent" else 1

    def best(self, law: SplitLaw, N: float, T: float) -> tuple[float, Array, float]:
        """D, the branches and the loss of the best split of T tokens."""
        low, high = self._range(law, T)
        grid = _grid(low, high, T / self.copies)
        for _ in range(ZOOMS):
            branches = self._branches(law, N, grid, T - self.copies * grid)
            losses = self._mean_loss(law, N, grid, branches)
            at = int(np.argmin(losses))
            best = float(grid[at]), branches[at], float(losses[at])
            grid = np.unique(np.append(
                np.linspace(grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)], ZOOM), grid[at]
            ))
            if len(grid) < 3:
                break
        return best

    def fixed(self, law: SplitLaw, N: float, T: float, share: float) -> float:
        """Weighted loss of a fixed share, branches of equal length; NaN where the law has no value."""
        D, Dp = share * T / self.copies, (1 - share) * T / len(self.names)
        try:
            return float(self._mean_loss(law, N, np.array([D]), np.full((1, len(self.names)), Dp))[0])
        except InputError:
            return float("nan")

    def losses(self, law: SplitLaw, N: float, D: float, Dp: Array) -> dict[str, float]:
        return {
            name: float(np.exp(self._law(law, name).log_losses(np.array([[N, D, tokens]])))[0])
            for name, tokens in zip(self.names, Dp, strict=True)
        }

    def numbers(self, D: float, Dp: Array, loss: float, T: float) -> dict[str, float]:
        """What the interval is made of."""
        branches = {f"Dp {name}": float(tokens) for name, tokens in zip(self.names, Dp, strict=True)}
        return {"D": D, **branches, "share": 1 - float(Dp.sum()) / T, "loss": loss}

    def _law(self, law: SplitLaw, name: str) -> SplitLaw:
        return law.laws_[name] if hasattr(law, "laws_") else law

    def _range(self, law: SplitLaw, T: float) -> tuple[float, float]:
        """The lowest and highest D that leave branches within their limits."""
        m, forms = len(self.names), [self._law(law, name)._form for name in self.names]
        floor = 0.0 if all(form.takes_no_trunk for form in forms) else LEAST_SHARE * T / self.copies
        least = 0.0 if all(form.takes_no_branch for form in forms) else LEAST_SHARE * T / m
        own_low, own_high = max(self.limits["Dp"][0], least), self.limits["Dp"][1]
        low = max(self.limits["D"][0], (T - m * own_high) / self.copies, floor)
        high = min(self.limits["D"][1], (T - m * own_low) / self.copies)
        if low > high * (1 + 1e-12):
            raise InputError(
                f"no split of {T:g} tokens over {m} domain{'s' if m > 1 else ''} keeps the bounds: a trunk of "
                f"{low:g} tokens or more is needed, and {max(high, 0):g} or fewer are left for it"
            )
        return low, max(low, high)

    def _branches(self, law: SplitLaw, N: float, D: Array, left: Array) -> Array:
        """Tokens of each branch that make the marginal gains equal, shape (len(D), domains)."""
        m = len(self.names)
        low, high = self.limits["Dp"]
        if not hasattr(law, "laws_") and np.ptp(self.weights) == 0:
            return np.repeat(left[:, None] / m, m, axis=1)
        rows = Rows.of(np.column_stack([np.full_like(D, N), D, np.ones_like(D)]))
        pairs = [(law_k, law_k._to_search(law_k.params_)) for law_k in (self._law(law, name) for name in self.names)]

        def spent(log_slope: Array) -> Array:
            at = [
                law_k._form.branch_at(x, rows, np.exp(log_slope) / w)
                for (law_k, x), w in zip(pairs, self.weights, strict=True)
            ]
            return np.clip(np.stack(at, axis=1), low, min(high, left.max()))

        lo, hi = np.full_like(D, -90.0), np.full_like(D, 30.0)
        with np.errstate(over="ignore"):
            for _ in range(SLOPE_STEPS):
                middle = (lo + hi) / 2
                much = spent(middle).sum(axis=1) > left
                lo, hi = np.where(much, middle, lo), np.where(much, hi, middle)
            found = spent(hi)
        # What the last digits of the slope leave over goes to the branches that may still take it.
        rest = left - found.sum(axis=1)
        room = np.clip(np.minimum(high, left[:, None]) - found, 0.0, None)
        total = room.sum(axis=1)
        return found + room * np.divide(rest, total, out=np.zeros_like(rest), where=total > 0)[:, None]

    def _mean_loss(self, law: SplitLaw, N: float, D: Array, branches: Array) -> Array:
        total = np.zeros_like(D)
        for k, name in enumerate(self.names):
            table = np.column_stack([np.full_like(D, N), D, branches[:, k]])
            total += self.weights[k] * np.exp(self._law(law, name).log_losses(table))
        return total


def _grid(low: float, high: float, whole: float) -> Array:
    """Trunks from low to high: evenly by share, and closer together near both ends."""
    logit = 1 / (1 + np.exp(-np.linspace(-13.0, 13.0, GRID)))
    inner = whole * np.concatenate([logit, np.linspace(0.02, 0.98, GRID // 2)])
    return np.unique(np.concatenate([[low], inner[(inner > low) & (inner < high)], [high]]))


def _outside(law: SplitLaw, N: float, D: float, Dp: Array) -> list[str]:
    """Where a plan leaves the fitted runs, in words."""
    rows = law.rows_
    notes = []
    ends = {"N": (N, N), "D": (D, D), "Dp": (float(Dp.min()), float(Dp.max()))}
    for (name, values), fitted in zip(ends.items(), rows.T, strict=True):
        for value in values:
            if not fitted.min() * (1 - 1e-9) <= value <= fitted.max() * (1 + 1e-9):
                end = "below the smallest" if value < fitted.min() else "above the largest"
                span = f"{fitted.min():.3g} to {fitted.max():.3g}"
                note = f"the plan's {name} of {value:.3g} lies {end} fitted one ({span})"
                notes += [note] if note not in notes else []
    smallest = float((rows[:, 1] + rows[:, 2]).min())
    if D + Dp.min() < smallest:
        notes.append(
            f"a specialist of {D + Dp.min():.3g} tokens is shorter than every fitted run ({smallest:.3g} or more): the "
            f"law is extrapolated downward"
        )
    return notes


def _check_kind(law: SplitLaw) -> None:
    if not isinstance(law, SplitLaw):
        raise InputError(f"law must be a fitted SplitLaw, got {type(law).__name__}")
    check_is_fitted(law, "params_")


def _check_law(law: SplitLaw, sizes: list[float]) -> None:
    laws = law.laws_.items() if hasattr(law, "laws_") else [("", law)]
    for name, one in laws:
        if len(np.unique(one.rows_[:, 2])) == 1:
            whose = f" of the domain {name}" if name else ""
            raise InputError(f"Dp is {one.rows_[0, 2]:g} in all fitted rows{whose}: such a law cannot plan a split")
        for N in sizes:
            one.log_losses(np.array([[N, one.rows_[:, 1].max(), one.rows_[:, 2].max()]]))


def _check_trunk(trunk: str) -> None:
    if trunk not in TRUNKS:
        raise InputError(f"trunk must be one of {', '.join(TRUNKS)}, got {trunk!r}{nearest(str(trunk), list(TRUNKS))}")


def _sizes(n_params: float | Sequence[float]) -> list[float]:
    if isinstance(n_params, (str, bytes)) or not np.size(n_params):
        raise InputError(f"n_params must be a number or several, got {n_params!r}")
    return [_positive(N, "n_params") for N in np.atleast_1d(np.asarray(n_params, dtype=object))]


def _budget(tokens: float | None, flops: float | None) -> float:
    """Tokens; or FLOP over 6, to be divided by the size."""
    if (tokens is None) == (flops is None):
        raise InputError("give the budget as tokens or as flops, one of the two")
    return _positive(tokens, "tokens") if flops is None else _positive(flops, "flops") / 6


def _positive(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < np.inf:
        raise InputError(f"{name} must be a positive, finite number, got {value!r}")
    return float(value)


def _names(law: SplitLaw, n_domains: int | None) -> tuple[str, ...]:
    whole = isinstance(n_domains, Integral) and not isinstance(n_domains, bool)
    if n_domains is not None and not (whole and 1 <= n_domains <= MOST_DOMAINS):
        raise InputError(f"n_domains must be a whole number from 1 to {MOST_DOMAINS}, got {n_domains!r}")
    if hasattr(law, "laws_"):
        if n_domains not in (None, len(law.laws_)):
            raise InputError(f"the law knows {len(law.laws_)} domains ({', '.join(law.laws_)}), asked for {n_domains}")
        return tuple(law.laws_)
    return tuple(str(i + 1) for i in range(int(n_domains or 1)))


def _weights(weights: Mapping[str, float] | Sequence[float] | None, names: tuple[str, ...]) -> Array:
    if weights is None:
        return np.full(len(names), 1 / len(names))
    if isinstance(weights, Mapping):
        if set(weights) != set(names):
            given = ", ".join(map(str, weights))
            raise InputError(f"weights must name each of the domains {', '.join(names)}, got {given}")
        weights = [weights[name] for name in names]
    if isinstance(weights, (str, bytes)) or np.ndim(weights) != 1 or len(weights) != len(names):
        raise InputError(f"weights must be {len(names)} numbers, one a domain, got {weights!r}")
    values = np.array([_positive(w, "each weight") for w in weights])
    return values / values.sum()


def _limits(bounds: Mapping[str, tuple[float, float]] | None) -> dict[str, tuple[float, float]]:
    limits = {"D": (0.0, np.inf), "Dp": (0.0, np.inf)}
    if bounds is None:
        return limits
    if not isinstance(bounds, Mapping):
        raise InputError(f"bounds must be a mapping such as {{'Dp': (0, 1e9)}}, got {bounds!r}")
    for name, pair in bounds.items():
        if name not in limits:
            raise InputError(f"bounds are on D and Dp, got {name!r}")
        try:
            low, high = (float(end) for end in pair)
        except (TypeError, ValueError):
            raise InputError(f"the bounds on {name} must be two numbers, got {pair!r}") from None
        if not 0 <= low <= high:
            raise InputError(f"the bounds on {name} must be rising and not negative, got {low:g} and {high:g}")
        limits[name] = (low, high)
    return limits
