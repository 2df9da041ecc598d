"""Two ways to fit the temperature net: L-BFGS with the analytic gradient, and the authors' Adam loop in torch.

Both return the fitted parameters in the order of `TemperatureNet`, the curve of losses, and the number of passes.
They share no line of the loss: torch differentiates its own, which makes each the other's check.
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


def confidence_loss(objective: str | ConfidenceLoss, n_bins: int, sigma: float, delta: float) -> ConfidenceLoss:
    """The loss of the confidences that an objective's name means; a callable is taken as it is."""
    if callable(objective):
        return objective
    return SoftECE(n_bins, sigma, delta if objective == "charbonnier_softece" else 0.0)


def fit_lbfgs(loss: NetLoss, starts: list[Array], max_iter: int, random: np.random.Generator,
              hold_out: bool, early_stopping: bool) -> Fit:
    """Descend from every start, keep one, and finish it on all rows.

    With `hold_out` the starts descend on four fifths of the rows and the one with the least loss on the last fifth
    is kept: its parameters are then the start of a descent on all rows. With `early_stopping` there is no such
    descent: the point of the path with the least held-out loss is the answer. Without `hold_out` the least training
    loss decides.
    """
    if not hold_out:
        return min((_descend(loss, start, max_iter) for start in starts), key=lambda fit: fit.loss)
    train, held = split_rows(loss.rows, random)
    inner, outer = loss.on(train), loss.on(held)
    fits = [_descend(inner, start, max_iter, watch=outer if early_stopping else None) for start in starts]
    if early_stopping:
        return min(fits, key=lambda fit: fit.loss)
    best = min(fits, key=lambda fit: outer(fit.weights)[0])
    final = _descend(loss, best.weights, max_iter)
    return Fit(final.weights, final.loss, best.curve + final.curve, best.iterations + final.iterations)


def split_rows(rows: ValidationRows, random: np.random.Generator) -> tuple[ValidationRows, ValidationRows]:
    """A random four fifths of the rows, and the rest."""
    order = random.permutation(len(rows))
    held = max(1, round(HELD_OUT_SHARE * len(rows)))
    return rows.take(order[held:]), rows.take(order[:held])


def _descend(loss: NetLoss, start: Array, max_iter: int, watch: NetLoss | None = None) -> Fit:
    """L-BFGS from one start; with `watch` the iterate with the least loss there is kept."""
    curve: list[float] = []
    seen: list[tuple[float, Array]] = []

    def note(intermediate_result: Any) -> None:
        curve.append(float(intermediate_result.fun))
        if watch is not None:
            weights = intermediate_result.x.copy()
            seen.append((watch(weights)[0], weights))

    found = minimize(loss, start, jac=True, method="L-BFGS-B", callback=note,
                     options={"maxiter": max_iter, "maxfun": 2 * max_iter, "ftol": 1e-10, "gtol": 1e-7})
    if seen:
        least, weights = min(seen, key=lambda pair: pair[0])
        return Fit(weights, least, curve, int(found.nfev))
    return Fit(found.x, float(found.fun), curve, int(found.nfev))


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
        raise InputError('a callable objective needs solver="lbfgs": it hands no gradient to torch')
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
