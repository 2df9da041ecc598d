"""Adaptive testing: which question to ask next, and what the answers so far say (arXiv 2606.07616).

The first fifth of the budget goes to items whose ease spans the middle 80 % evenly. After that the next question is
the one that says most about the present ability: where all slopes and the precision are equal that is the item whose
ease is nearest to minus the ability. The ability is the likeliest one, found from the previous value by Fisher
scoring.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from assay.errors import InputError
from assay.scaling.irsl.ability import ROUGH, Items, estimate, response_of
from assay.scaling.irsl.estimator import BetaIRT, as_rows, read_responses
from assay.scaling.irsl.likelihood import Array

__all__ = ["AdaptiveTest", "ask_all", "opening"]


class AdaptiveTest:
    """Ask one model question after question, each chosen by the answers so far.

    Parameters
    ----------
    irt : BetaIRT
        Fitted, without groups: one benchmark.
    budget : int, default 50
        Answers wanted; more than there are items asks them all.
    init_fraction : float, default 0.2
        Share of the budget for the opening, which looks at no answer.

    Attributes
    ----------
    theta_, se_ : float
        Ability and standard error after the answers so far; NaN and infinity before the first.
    asked_ : list of int
        Items that were answered, in order.

    Raises
    ------
    InputError
        An `irt` with groups or not fitted, a budget below 1, an item that does not exist or was told before, a
        response outside [0, 1].

    Notes
    -----
    arXiv 2606.07616. An answer of NaN (no answer could be had) costs none of the budget and is not asked again.

    Examples
    --------
    >>> import numpy as np
    >>> theta, ease = np.linspace(-1, 1, 8), np.linspace(-2, 2, 30)
    >>> Y = 1 / (1 + np.exp(-(theta[:, None] + ease)))
    >>> test = AdaptiveTest(BetaIRT(phi=50.0).fit(Y[:-1]), budget=10)
    >>> while not test.done:
    ...     item = test.next_item()
    ...     test.tell(item, Y[-1, item])
    >>> bool(abs(test.predict_score() - Y[-1].mean()) < 0.01)
    True
    """

    def __init__(self, irt: BetaIRT, budget: int = 50, init_fraction: float = 0.2) -> None:
        items = _items_of(irt)
        if isinstance(budget, bool) or not isinstance(budget, int | np.integer) or budget < 1:
            raise InputError(f"budget must be a whole number of at least 1, got {budget!r}")
        if isinstance(init_fraction, bool) or not isinstance(init_fraction, int | float) or not 0 <= init_fraction <= 1:
            raise InputError(f"init_fraction must lie in [0, 1], got {init_fraction!r}")
        self.irt, self.budget, self.init_fraction = irt, budget, init_fraction
        self._items = items
        known = int(np.isfinite(items.ease).sum())
        self._opening = opening(items, min(int(budget), known), init_fraction).tolist()
        self._begin()

    def _begin(self) -> None:
        self._open = np.isfinite(self._items.ease)
        self._responses: list[float] = []
        self.asked_: list[int] = []
        self.theta_, self.se_ = math.nan, math.inf

    @property
    def done(self) -> bool:
        """Whether the budget is spent or no question is left."""
        return len(self.asked_) >= self.budget or not self._open.any()

    def next_item(self) -> int:
        """Number of the item to ask; the same until `tell` is called."""
        if self.done:
            raise InputError(f"the test is over: {len(self.asked_)} questions were answered")
        waiting = [item for item in self._opening if self._open[item]]
        if waiting:
            return int(waiting[0])
        theta = 0.0 if math.isnan(self.theta_) else self.theta_
        return int(_best(self._items, np.array([theta]), self._open[None])[0])

    def tell(self, item: int, y: float) -> None:
        """Give the response to an item; NaN where there is none."""
        if isinstance(item, bool) or not isinstance(item, int | np.integer) or not 0 <= item < len(self._open):
            raise InputError(f"there is no item {item!r}, only 0 to {len(self._open) - 1}")
        if not self._open[item]:
            raise InputError(f"item {item} was told before, or its ease is not known")
        value = read_responses([[y]])[0, 0]
        self._open[item] = False
        if math.isnan(value):
            return
        self.asked_.append(int(item))
        self._responses.append(float(response_of(np.array([value]), self._items)[0]))
        start = None if math.isnan(self.theta_) else np.array([self.theta_])
        chosen = self._items.take(np.array(self.asked_))
        theta, se = estimate(np.array([self._responses]), chosen, start)
        self.theta_, self.se_ = float(theta[0]), float(se[0])

    def run(self, y_row: ArrayLike) -> float:
        """The whole test, from the start, on a model whose responses are all known; gives its ability."""
        rows = read_responses(as_rows(y_row), columns=len(self._items.ease))
        if len(rows) != 1:
            raise InputError(f"y_row must hold the responses of one model, got {len(rows)}")
        row = rows[0]
        self._begin()
        while not self.done:
            item = self.next_item()
            self.tell(item, row[item])
        return self.theta_

    def predict_score(self) -> float:
        """Expected mean response over all items, asked or not."""
        return float(np.nanmean(self.irt.predict_proba([self.theta_]))) if self.asked_ else math.nan


def opening(items: Items, budget: int, init_fraction: float = 0.2) -> np.ndarray:
    """Items of the opening: those nearest to eases evenly from the 10 % to the 90 % quantile, none twice."""
    known = np.flatnonzero(np.isfinite(items.ease))
    wanted = min(math.ceil(init_fraction * budget - 1e-9), len(known))
    if not wanted:
        return np.array([], dtype=int)
    low, high = np.quantile(items.ease[known], [0.1, 0.9])
    chosen: list[int] = []
    for target in np.linspace(low, high, wanted) if wanted > 1 else [(low + high) / 2]:
        free = known[~np.isin(known, chosen)]
        chosen.append(int(free[np.argmin(np.abs(items.ease[free] - target))]))
    return np.array(chosen)


def ask_all(Y: Array, items: Items, budget: int, init_fraction: float = 0.2) -> tuple[Array, np.ndarray]:
    """The test on many models at once, as `AdaptiveTest` gives it to each.

    Parameters
    ----------
    Y : ndarray, shape (n, items)
        Complete responses.
    items : Items
    budget : int
        At most the number of items.

    Returns
    -------
    theta : ndarray, shape (n,)
    asked : ndarray, shape (n, budget)
        Item numbers, in order.
    """
    n, n_items = Y.shape
    budget = min(budget, n_items)
    response = response_of(Y, items)
    first = opening(items, budget, init_fraction)
    asked = np.empty((n, budget), dtype=int)
    asked[:, : len(first)] = first
    rows = np.arange(n)
    is_open = np.ones((n, n_items), dtype=bool)
    is_open[:, first] = False
    theta = np.zeros(n)
    if len(first):
        theta, _ = estimate(response[:, first], items.take(first))
    for turn in range(len(first), budget):
        item = _best(items, theta, is_open)
        asked[:, turn] = item
        is_open[rows, item] = False
        so_far = asked[:, : turn + 1]
        tol = 1e-9 if turn == budget - 1 else ROUGH
        theta, _ = estimate(response[rows[:, None], so_far], items.take(so_far), theta, tol)
    return theta, asked


def _best(items: Items, theta: Array, is_open: np.ndarray) -> np.ndarray:
    """The most informative open item of each row; the first of equals."""
    if (items.slope == items.slope[0]).all():
        distance = np.abs(theta[:, None] + items.ease)
        return np.argmin(np.where(is_open, distance, np.inf), axis=1)
    return np.argmax(np.where(is_open, items.information(theta), -np.inf), axis=1)


def _items_of(irt: BetaIRT) -> Items:
    if not isinstance(irt, BetaIRT) or not hasattr(irt, "ease_"):
        raise InputError("irt must be a fitted BetaIRT")
    if irt.groups_ is not None:
        raise InputError("irt must be fitted without groups: an adaptive test measures one ability")
    return irt.items()
