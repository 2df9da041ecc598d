"""Formulas of the loss in model size, shared tokens and domain tokens, with their derivatives, for many points at once.

N counts parameters, D the tokens of the shared phase (the trunk, on the mixture), Dp the tokens of the second phase
on one domain. The paper (arXiv 2603.19149) fixes the arguments of its law; the formulas are reconstructed:

    transfer         L = E + A/N^alpha + B / (Dp + k D^gamma N^delta)^beta
    separable        L = E + A/N^alpha + B/D^beta + C/Dp^eta + F / (D^beta2 Dp^eta2)
    multiplicative   L = E + A/N^alpha + B (D + D0)^-beta (1 + Dp/s)^-eta

In the first, D shared tokens are worth `k D^gamma N^delta` domain tokens (Hernandez et al. 2021, arXiv 2102.01293);
without a shared phase it is Chinchilla's law in Dp. The second needs both phases. In the third, the second phase
shrinks what the first has left; D0, the tokens that new weights are worth, is fitted where runs without a shared
phase are in the table, and is 0 otherwise. All fall in every argument.

Three formulas of others, as baselines: `pooled` is Chinchilla's law in the total of tokens T = D + Dp, `warm` takes any
shared phase for one constant number of domain tokens, and `share` is the D-CPT law (Que et al. 2024, arXiv 2406.01375)
in T and the domain's share r = Dp/T:

    pooled           L = E + A/N^alpha + B/T^beta
    warm             L = E + A/N^alpha + B / (Dp + W)^beta
    share            L = E + A/N^alpha + B r^eta / T^beta + C / (r + eps)^gamma

A point of the search holds logarithms of the factors and the exponents as they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from assay.scaling.fit import latin_hypercube

__all__ = ["FORMS", "PEERS", "Form", "PlanForm", "Rows", "form_named"]

Array = NDArray[np.float64]
EXPONENT = (1e-3, 2.0)
NEWTON_STEPS = 12
FEW = 0.01  # a term of the loss starts between this share of it and all of it
FIRST_EXPONENTS = (0.05, 0.9)


@dataclass(frozen=True)
class Rows:
    """Runs as the formulas read them; a logarithm of nothing is kept as 0 and its term left out by `trunk`."""

    log_N: Array
    log_D: Array
    D: Array
    Dp: Array
    log_Dp: Array
    trunk: NDArray[np.bool_]

    @classmethod
    def of(cls, table: Array) -> Rows:
        """From columns N, D, Dp."""
        N, D, Dp = np.asarray(table, dtype=float).T
        some, branch = D > 0, Dp > 0
        return cls(np.log(N), np.log(np.where(some, D, 1.0)), D, Dp, np.log(np.where(branch, Dp, 1.0)), some)


class Form(ABC):
    """One formula; `x` may have any leading axes, (..., parameters), and the results have them too."""

    name: ClassVar[str]
    parameters: tuple[str, ...]
    logged: ClassVar[frozenset[str]]
    least_rows: ClassVar[int] = 0  # with a shared phase, below which the form is not offered
    takes_no_trunk: ClassVar[bool] = True  # D = 0
    takes_no_branch: ClassVar[bool] = True  # Dp = 0

    def evaluate(self, x: Array, rows: Rows) -> tuple[Array, Array]:
        """Log of the loss, shape (..., n), and its derivatives in x, shape (..., n, parameters)."""
        log_E, log_A, alpha = (x[..., i, None] for i in range(3))
        E, size = np.exp(log_E), np.exp(log_A - alpha * rows.log_N)
        data, slopes = self._data(x[..., 3:], rows)
        total = E + size + data
        first = [np.broadcast_to(E, size.shape), size, -size * rows.log_N]
        return np.log(total), np.stack([*first, *slopes], axis=-1) / total[..., None]

    def starts(self, rows: Rows, losses: Array, n: int, random_state: int) -> Array:
        """Points that cover what the terms may be at the middle of the rows, shape (n, parameters)."""
        loss = float(np.log(np.median(losses)))
        few, log_N = loss + np.log(FEW), float(np.median(rows.log_N))
        ranges = [(few, float(np.log(losses.min()))), (few, loss), FIRST_EXPONENTS]
        first, last = np.array(ranges + self._data_ranges(rows, loss)).T
        points = latin_hypercube(first, last, n, random_state)
        points[:, 1] += points[:, 2] * log_N
        self._place(points[:, 3:], rows)
        low, high = self.bounds()
        return np.clip(points, low, high)

    def bounds(self) -> tuple[Array, Array]:
        """Lowest and highest value of each search coordinate."""
        pairs = [(-40.0, 80.0) if name in self.logged else EXPONENT for name in self.parameters]
        low, high = np.array(pairs).T
        return low, high

    @abstractmethod
    def _data(self, x: Array, rows: Rows) -> tuple[Array, list[Array]]:
        """The terms that depend on tokens, summed, and their derivatives in x."""

    @abstractmethod
    def _data_ranges(self, rows: Rows, loss: float) -> list[tuple[float, float]]:
        """Where the coordinates of `_data` start, a factor given as its term's log at the middle of the rows."""

    @abstractmethod
    def _place(self, x: Array, rows: Rows) -> None:
        """Turn terms at the middle of the rows into factors, in place; x has shape (n, coordinates of `_data`)."""


class PlanForm(Form):
    """A formula that a split can be planned with: its slopes in the tokens of both phases."""

    @abstractmethod
    def token_slopes(self, x: Array, rows: Rows) -> tuple[Array, Array]:
        """How the loss changes with one shared and with one domain token, both (n,) and negative."""

    @abstractmethod
    def branch_at(self, x: Array, rows: Rows, slope: Array) -> Array:
        """Domain tokens at which the loss falls by `slope` a token, (n,); 0 or less where it falls more slowly."""


class Transfer(PlanForm):
    """Shared tokens as a number of domain tokens."""

    name = "transfer"
    parameters = ("E", "A", "alpha", "B", "beta", "k", "gamma", "delta")
    logged = frozenset({"E", "A", "B", "k"})

    def _data(self, x: Array, rows: Rows) -> tuple[Array, list[Array]]:
        log_B, beta, log_k, gamma, delta = (x[..., i, None] for i in range(5))
        worth = np.where(rows.trunk, np.exp(log_k + gamma * rows.log_D + delta * rows.log_N), 0.0)
        log_tokens = np.log(rows.Dp + worth)
        data = np.exp(log_B - beta * log_tokens)
        by_worth = -data * beta * worth / (rows.Dp + worth)
        return data, [data, -data * log_tokens, by_worth, by_worth * rows.log_D, by_worth * rows.log_N]

    def token_slopes(self, x: Array, rows: Rows) -> tuple[Array, Array]:
        log_B, beta, log_k, gamma, delta = x[3:]
        worth = np.where(rows.trunk, np.exp(log_k + gamma * rows.log_D + delta * rows.log_N), 0.0)
        branch = -beta * np.exp(log_B - (beta + 1) * np.log(rows.Dp + worth))
        return branch * gamma * worth / rows.D, branch

    def branch_at(self, x: Array, rows: Rows, slope: Array) -> Array:
        log_B, beta, log_k, gamma, delta = x[3:]
        worth = np.where(rows.trunk, np.exp(log_k + gamma * rows.log_D + delta * rows.log_N), 0.0)
        return np.exp((log_B + np.log(beta) - np.log(slope)) / (beta + 1)) - worth

    def _data_ranges(self, rows: Rows, loss: float) -> list[tuple[float, float]]:
        D, Dp = _middle(rows)
        # The trunk is worth from a thousandth of the domain's tokens to all of its own.
        return [(loss + np.log(FEW), loss), FIRST_EXPONENTS, (Dp - 7.0, max(D, Dp)), (0.05, 1.5), (1e-3, 0.5)]

    def _place(self, x: Array, rows: Rows) -> None:
        (D, Dp), log_N = _middle(rows), float(np.median(rows.log_N))
        x[:, 0] += x[:, 1] * np.logaddexp(Dp, x[:, 2])
        x[:, 2] -= x[:, 3] * D + x[:, 4] * log_N


class Separable(PlanForm):
    """A term for each phase and one for both."""

    name = "separable"
    parameters = ("E", "A", "alpha", "B", "beta", "C", "eta", "F", "beta2", "eta2")
    logged = frozenset({"E", "A", "B", "C", "F"})
    least_rows = 30
    takes_no_trunk = takes_no_branch = False

    def _data(self, x: Array, rows: Rows) -> tuple[Array, list[Array]]:
        log_B, beta, log_C, eta, log_F, beta2, eta2 = (x[..., i, None] for i in range(7))
        trunk, branch = np.exp(log_B - beta * rows.log_D), np.exp(log_C - eta * rows.log_Dp)
        both = np.exp(log_F - beta2 * rows.log_D - eta2 * rows.log_Dp)
        slopes = [
            trunk, -trunk * rows.log_D, branch, -branch * rows.log_Dp, both, -both * rows.log_D, -both * rows.log_Dp,
        ]
        return trunk + branch + both, slopes

    def token_slopes(self, x: Array, rows: Rows) -> tuple[Array, Array]:
        log_B, beta, log_C, eta, log_F, beta2, eta2 = x[3:]
        both = np.exp(log_F - beta2 * rows.log_D - eta2 * rows.log_Dp)
        trunk = beta * np.exp(log_B - beta * rows.log_D) + beta2 * both
        return -trunk / rows.D, -(eta * np.exp(log_C - eta * rows.log_Dp) + eta2 * both) / rows.Dp

    def branch_at(self, x: Array, rows: Rows, slope: Array) -> Array:
        _, _, log_C, eta, log_F, beta2, eta2 = x[3:]
        target = np.log(slope)
        first, second = log_C + np.log(eta), log_F + np.log(eta2) - beta2 * rows.log_D
        v = np.maximum((first - target) / (eta + 1), (second - target) / (eta2 + 1))
        for _ in range(NEWTON_STEPS):  # of a convex, falling function from its left: each step stays left of the root
            one, two = first - (eta + 1) * v, second - (eta2 + 1) * v
            value = np.logaddexp(one, two)
            share = np.exp(one - value)
            v = v + (value - target) / ((eta + 1) * share + (eta2 + 1) * (1 - share))
        return np.exp(v)

    def _data_ranges(self, rows: Rows, loss: float) -> list[tuple[float, float]]:
        term = (loss + np.log(FEW), loss)
        return [term, FIRST_EXPONENTS, term, FIRST_EXPONENTS, term, FIRST_EXPONENTS, FIRST_EXPONENTS]

    def _place(self, x: Array, rows: Rows) -> None:
        D, Dp = _middle(rows)
        x[:, 0] += x[:, 1] * D
        x[:, 2] += x[:, 3] * Dp
        x[:, 4] += x[:, 5] * D + x[:, 6] * Dp


class Multiplicative(PlanForm):
    """The second phase as a factor on what the first one has left."""

    name = "multiplicative"
    logged = frozenset({"E", "A", "B", "s", "D0"})

    def __init__(self, from_new_weights: bool = False) -> None:
        self.parameters = ("E", "A", "alpha", "B", "beta", "s", "eta") + (("D0",) if from_new_weights else ())
        self.takes_no_trunk = from_new_weights  # type: ignore[misc]

    def _data(self, x: Array, rows: Rows) -> tuple[Array, list[Array]]:
        log_B, beta, log_s, eta = (x[..., i, None] for i in range(4))
        ratio = rows.Dp * np.exp(-log_s)
        shrunk = np.log1p(ratio)
        log_D = np.log(rows.D + np.exp(x[..., 4, None])) if self.takes_no_trunk else rows.log_D
        data = np.exp(log_B - beta * log_D - eta * shrunk)
        slopes = [data, -data * log_D, data * eta * ratio / (1 + ratio), -data * shrunk]
        if self.takes_no_trunk:
            slopes.append(-data * beta * np.exp(x[..., 4, None] - log_D))
        return data, slopes

    def token_slopes(self, x: Array, rows: Rows) -> tuple[Array, Array]:
        data, _ = self._data(x[3:], rows)
        tokens = rows.D + (np.exp(x[7]) if self.takes_no_trunk else 0.0)
        return -x[4] * data / tokens, -x[6] * data / (np.exp(x[5]) + rows.Dp)

    def branch_at(self, x: Array, rows: Rows, slope: Array) -> Array:
        log_B, beta, log_s, eta = x[3:7]
        log_D = np.log(rows.D + np.exp(x[7])) if self.takes_no_trunk else rows.log_D
        steepest = log_B - beta * log_D + np.log(eta) - log_s
        return np.exp(log_s) * np.expm1((steepest - np.log(slope)) / (eta + 1))

    def _data_ranges(self, rows: Rows, loss: float) -> list[tuple[float, float]]:
        D, Dp = _middle(rows)
        ranges = [(loss + np.log(FEW), loss), FIRST_EXPONENTS, (Dp - 7.0, Dp + 2.0), FIRST_EXPONENTS]
        return ranges + ([(D - 8.0, D)] if self.takes_no_trunk else [])

    def _place(self, x: Array, rows: Rows) -> None:
        D, Dp = _middle(rows)
        log_D = np.logaddexp(D, x[:, 4]) if self.takes_no_trunk else D
        x[:, 0] += x[:, 1] * log_D + x[:, 3] * np.log1p(np.exp(Dp - x[:, 2]))


class Pooled(Form):
    """Chinchilla's law in all tokens, whichever phase they came in."""

    name = "pooled"
    parameters = ("E", "A", "alpha", "B", "beta")
    logged = frozenset({"E", "A", "B"})

    def _data(self, x: Array, rows: Rows) -> tuple[Array, list[Array]]:
        log_B, beta = (x[..., i, None] for i in range(2))
        log_T = np.log(rows.D + rows.Dp)
        data = np.exp(log_B - beta * log_T)
        return data, [data, -data * log_T]

    def _data_ranges(self, rows: Rows, loss: float) -> list[tuple[float, float]]:
        return [(loss + np.log(FEW), loss), FIRST_EXPONENTS]

    def _place(self, x: Array, rows: Rows) -> None:
        x[:, 0] += x[:, 1] * float(np.median(np.log(rows.D + rows.Dp)))


class Warm(Form):
    """Any shared phase as one constant number of domain tokens."""

    name = "warm"
    parameters = ("E", "A", "alpha", "B", "beta", "W")
    logged = frozenset({"E", "A", "B", "W"})

    def _data(self, x: Array, rows: Rows) -> tuple[Array, list[Array]]:
        log_B, beta, log_W = (x[..., i, None] for i in range(3))
        worth = np.where(rows.trunk, np.exp(log_W), 0.0)
        log_tokens = np.log(rows.Dp + worth)
        data = np.exp(log_B - beta * log_tokens)
        return data, [data, -data * log_tokens, -data * beta * worth / (rows.Dp + worth)]

    def _data_ranges(self, rows: Rows, loss: float) -> list[tuple[float, float]]:
        _, Dp = _middle(rows)
        return [(loss + np.log(FEW), loss), FIRST_EXPONENTS, (Dp - 5.0, Dp + 5.0)]

    def _place(self, x: Array, rows: Rows) -> None:
        x[:, 0] += x[:, 1] * np.logaddexp(_middle(rows)[1], x[:, 2])


class Share(Form):
    """The D-CPT law in the total of tokens and the domain's share of them."""

    name = "share"
    parameters = ("E", "A", "alpha", "B", "beta", "eta", "C", "gamma", "eps")
    logged = frozenset({"E", "A", "B", "C", "eps"})
    least_rows = 20
    takes_no_branch = False

    def _data(self, x: Array, rows: Rows) -> tuple[Array, list[Array]]:
        log_B, beta, eta, log_C, gamma, log_eps = (x[..., i, None] for i in range(6))
        log_T = np.log(rows.D + rows.Dp)
        log_r = rows.log_Dp - log_T
        eps = np.exp(log_eps)
        shifted = np.exp(log_r) + eps
        total, share = np.exp(log_B + eta * log_r - beta * log_T), np.exp(log_C - gamma * np.log(shifted))
        slopes = [
            total, -total * log_T, total * log_r, share, -share * np.log(shifted), -share * gamma * eps / shifted,
        ]
        return total + share, slopes

    def _data_ranges(self, rows: Rows, loss: float) -> list[tuple[float, float]]:
        term = (loss + np.log(FEW), loss)
        return [term, FIRST_EXPONENTS, FIRST_EXPONENTS, term, FIRST_EXPONENTS, (-6.0, 0.0)]

    def _place(self, x: Array, rows: Rows) -> None:
        log_T = float(np.median(np.log(rows.D + rows.Dp)))
        log_r = _middle(rows)[1] - log_T
        x[:, 0] += x[:, 1] * log_T - x[:, 2] * log_r
        x[:, 3] += x[:, 4] * np.logaddexp(log_r, x[:, 5])


FORMS: dict[str, type[PlanForm]] = {form.name: form for form in (Transfer, Separable, Multiplicative)}
PEERS: dict[str, type[Form]] = {form.name: form for form in (Pooled, Warm, Share)}


def form_named(name: str, no_trunk: bool = False) -> PlanForm:
    """The formula of that name; `no_trunk` says that runs without a shared phase are among those to be fitted."""
    return Multiplicative(no_trunk) if name == Multiplicative.name else FORMS[name]()


def _middle(rows: Rows) -> tuple[float, float]:
    """Medians of log D and log Dp, of the runs that have them."""
    branch = rows.Dp > 0
    D, Dp = rows.log_D[rows.trunk], rows.log_Dp[branch]
    return float(np.median(D)) if len(D) else 0.0, float(np.median(Dp)) if len(Dp) else 0.0
