"""Three ways to fit the temperature net: damped Gauss-Newton, L-BFGS, and the authors' Adam loop in torch.

All return the fitted parameters in the order of `TemperatureNet`, the curve of losses, and the number of passes. The
first two share no line of the loss with the third: torch differentiates its own, which makes each the other's check.

Why Gauss-Newton is the default: the loss has about fifteen gaps to close and 49 parameters to close them with, so its
minima are no points but whole surfaces, and where on them a descent ends hangs on its path. The path of L-BFGS is
chaotic: it makes its curvature out of differences of gradients, and a change in the last digit grows tenfold every
few iterations until another minimum is reached. Three things keep the path of `_gauss_newton_path` from doing so. The
curvature is computed at each point, from that point alone. The damping holds the steps short in the directions that
no gap sees, and is one constant, raised only where a step would not lower the loss: one that is tuned at every step
hangs on noisy ratios. And a step's derivatives take the kink of a unit to be a little wide: else a row that changes
sides moves them by a jump.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from assay.errors import InputError, require

from .objective import SoftECE, torch_soft_ece
from .rows import ValidationRows
from .temperature_net import TemperatureNet

Array = NDArray[np.float64]
# (confidence [n], correct [n]) -> (loss, derivative of the loss by each confidence [n])
ConfidenceLoss = Callable[[Array, Array], tuple[float, Array]]

HELD_OUT_SHARE = 0.2
DAMPING, HARDER = 1e-2, 4.0
MOST_DAMPING = 1e7
# Width of a kink in the derivatives, in units of a hidden unit's input.
RAMP = 0.2
LEAST_GAIN = 1e-6
PATIENCE = 200
MIN_IMPROVEMENT = 1e-4


@dataclass
class Fit:
    """Parameters of the net with the losses on the way; `iterations` counts passes over the rows."""

    weights: Array
    loss: float
    curve: list[float] = field(default_factory=list)
    iterations: int = 0


class NetLoss:
    """Loss and gradient as a function of the net's parameters, on given rows."""

    def __init__(self, net: TemperatureNet, rows: ValidationRows, objective: str | ConfidenceLoss,
                 n_bins: int, sigma: float, delta: float) -> None:
        self.net = net
        self.rows = rows
        self.nll = objective == "nll"
        self.by_confidence = confidence_loss(objective, n_bins, sigma, delta)

    def on(self, rows: ValidationRows) -> NetLoss:
        """The same loss on other rows."""
        other = copy(self)
        other.rows = rows
        return other

    def __call__(self, weights: Array) -> tuple[float, Array]:
        temperature, pullback = self.net.with_pullback(weights, self.rows.score)
        if self.nll:
            per_row, slope = self.rows.nll(temperature)
            return float(per_row.mean()), pullback(slope / len(self.rows))
        confidence, slope = self.rows.confidence(temperature)
        loss, by_confidence = self.by_confidence(confidence, self.rows.correct)
        return loss, pullback(by_confidence * slope)

    def with_curvature(self, weights: Array) -> tuple[float, Array, Array]:
        """Loss, gradient [m] and Gauss-Newton matrix [m, m], the kinks of the units widened in both derivatives."""
        temperature, pullback = self.net.with_pullback(weights, self.rows.score, RAMP)
        if self.nll:
            per_row, slope = self.rows.nll(temperature)
            curvature = pullback.curvature(self.rows.nll_curvature(temperature) / len(self.rows))
            return float(per_row.mean()), pullback(slope / len(self.rows)), curvature
        assert isinstance(self.by_confidence, SoftECE)
        confidence, slope = self.rows.confidence(temperature)
        loss, by_confidence, roots = self.by_confidence.with_curvature(confidence, self.rows.correct)
        gradient, *rows = pullback(np.vstack([by_confidence, roots]) * slope)
        return loss, gradient, np.transpose(rows) @ rows


def confidence_loss(objective: str | ConfidenceLoss, n_bins: int, sigma: float, delta: float) -> ConfidenceLoss:
    """The loss of the confidences that an objective's name means; a callable is taken as it is."""
    if callable(objective):
        return objective
    return SoftECE(n_bins, sigma, delta if objective == "charbonnier_softece" else 0.0)


def fit_from_starts(loss: NetLoss, starts: list[Array], max_iter: int, random: np.random.Generator,
                    solver: str, hold_out: bool, early_stopping: bool) -> Fit:
    """Descend from every start by "gauss-newton" or "lbfgs", keep one, and finish it on all rows.

    With `hold_out` the starts descend on four fifths of the rows and the one with the least loss on the last fifth
    is kept: its parameters are then the start of a descent on all rows. With `early_stopping` there is no such
    descent: the point of the path with the least held-out loss is the answer. Without `hold_out` the least training
    loss decides.
    """
    if not hold_out:
        return min((_descend(loss, start, max_iter, solver) for start in starts), key=lambda fit: fit.loss)
    train, held = split_rows(loss.rows, random)
    inner, outer = loss.on(train), loss.on(held)
    fits = [_descend(inner, start, max_iter, solver, watch=outer if early_stopping else None) for start in starts]
    if early_stopping:
        return min(fits, key=lambda fit: fit.loss)
    best = min(fits, key=lambda fit: outer(fit.weights)[0])
    final = _descend(loss, best.weights, max_iter, solver)
    return Fit(final.weights, final.loss, best.curve + final.curve, best.iterations + final.iterations)


def split_rows(rows: ValidationRows, random: np.random.Generator) -> tuple[ValidationRows, ValidationRows]:
    """A random four fifths of the rows, and the rest."""
    order = random.permutation(len(rows))
    held = max(1, round(HELD_OUT_SHARE * len(rows)))
    return rows.take(order[held:]), rows.take(order[:held])


def _descend(loss: NetLoss, start: Array, max_iter: int, solver: str, watch: NetLoss | None = None) -> Fit:
    """A descent from one start; with `watch` the iterate with the least loss there is kept."""
    curve: list[float] = []
    seen: list[tuple[float, Array]] = []

    def note(value: float, weights: Array) -> None:
        curve.append(value)
        if watch is not None:
            seen.append((watch(weights)[0], weights.copy()))

    path = _gauss_newton_path if solver == "gauss-newton" else _lbfgs_path
    fit = path(loss, start, max_iter, note)
    fit.curve = curve
    if seen:
        fit.loss, fit.weights = min(seen, key=lambda pair: pair[0])
    return fit


def _gauss_newton_path(loss: NetLoss, weights: Array, max_iter: int, note: Callable[[float, Array], None]) -> Fit:
    """Gauss-Newton steps with one damping, raised only where a step would not lower the loss."""
    value, gradient, curvature = loss.with_curvature(weights)
    damping, passes, identity = DAMPING, 1, np.eye(len(weights))
    for _ in range(max_iter):
        while True:
            step = np.linalg.solve(curvature + damping * identity, gradient)
            next_value, next_gradient, next_curvature = loss.with_curvature(weights - step)
            passes += 1
            if next_value < value or damping > MOST_DAMPING:
                break
            damping *= HARDER
        gain = value - next_value
        # A loss that is no number is no gain.
        if not gain > 0:
            break
        weights, value, gradient, curvature = weights - step, next_value, next_gradient, next_curvature
        note(value, weights)
        if gain < LEAST_GAIN:
            break
        damping = max(DAMPING, damping / HARDER)
    return Fit(weights, value, iterations=passes)


def _lbfgs_path(loss: NetLoss, start: Array, max_iter: int, note: Callable[[float, Array], None]) -> Fit:
    def noted(intermediate_result: Any) -> None:
        note(float(intermediate_result.fun), intermediate_result.x)

    found = minimize(loss, start, jac=True, method="L-BFGS-B", callback=noted,
                     options={"maxiter": max_iter, "maxfun": 2 * max_iter, "ftol": 1e-10, "gtol": 1e-7})
    return Fit(found.x, float(found.fun), iterations=int(found.nfev))


def fit_adam(
    logits: Array, labels: NDArray[np.intp], score: Array, *, net: TemperatureNet, objective: str | ConfidenceLoss,
    n_bins: int, sigma: float, delta: float, lr: float, max_iter: int, seed: int, early_stopping: bool,
) -> Fit:
    """The authors' loop: full-batch Adam in float32, keeping the parameters after the epoch of least loss.

    The loss compared is the one before the epoch's step, the parameters kept are the ones after it, as in the
    authors' code. With `early_stopping` the loss is taken on a held-out fifth, and the loop ends when it has not
    fallen by 1e-4 for 200 epochs.
    """
    if callable(objective):
        raise InputError('a callable objective needs solver="gauss-newton" or "lbfgs": it hands no gradient to torch')
    torch = require("torch", extra="torch", wanted_by="smart (solver=\"adam\")")
    generator = torch.Generator().manual_seed(seed)
    weights = _torch_initial(torch, net, generator)
    data = [torch.as_tensor(part) for part in (logits.astype(np.float32), labels, score.astype(np.float32))]
    held = data
    if early_stopping:
        order = torch.randperm(len(logits), generator=generator)
        cut = max(1, round(HELD_OUT_SHARE * len(logits)))
        held = [part[order[:cut]] for part in data]
        data = [part[order[cut:]] for part in data]

    def loss_on(rows: list[Any]) -> Any:
        z, y, g = rows
        return _torch_loss(torch, _torch_temperature(torch, net, weights, g), z, y, objective, n_bins, sigma, delta)

    optimiser = torch.optim.Adam([weights], lr=lr)
    best, kept, since = float("inf"), weights.detach().clone(), 0
    curve: list[float] = []
    for _ in range(max_iter):
        optimiser.zero_grad()
        loss = loss_on(data)
        with torch.no_grad():
            watched = float(loss_on(held)) if early_stopping else float(loss)
        loss.backward()
        optimiser.step()
        curve.append(watched)
        improved = watched < best - (MIN_IMPROVEMENT if early_stopping else 0.0)
        since = 0 if improved else since + 1
        if improved:
            best, kept = watched, weights.detach().clone()
        if early_stopping and since >= PATIENCE:
            break
    return Fit(kept.double().numpy(), best, curve, len(curve))


def _torch_initial(torch: Any, net: TemperatureNet, generator: Any) -> Any:
    first = torch.rand(2 * net.hidden, generator=generator) * 2.0 - 1.0
    second = (torch.rand(net.hidden + 1, generator=generator) * 2.0 - 1.0) / net.hidden**0.5
    return torch.cat([first, second]).requires_grad_()


def _torch_temperature(torch: Any, net: TemperatureNet, weights: Any, score: Any) -> Any:
    h = net.hidden
    w1, b1, w2, b2 = weights[:h], weights[h : 2 * h], weights[2 * h : 3 * h], weights[3 * h]
    layer = torch.relu(score[:, None] * w1 + b1)
    return torch.nn.functional.softplus(layer @ w2 + b2) + net.t_min


def _torch_loss(torch: Any, temperature: Any, logits: Any, labels: Any, objective: str,
                n_bins: int, sigma: float, delta: float) -> Any:
    scaled = logits / temperature[:, None]
    if objective == "nll":
        return torch.nn.functional.cross_entropy(scaled, labels)
    confidence, predicted = torch.softmax(scaled, dim=1).max(dim=1)
    correct = (predicted == labels).to(logits.dtype)
    rounding = delta if objective == "charbonnier_softece" else 0.0
    return torch_soft_ece(confidence, correct, n_bins, sigma, rounding)
