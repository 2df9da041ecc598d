"""The curve of losses along fine-tuning, for many tasks in one go (arXiv 2601.18973).

Task tau has the loss L_tau(theta). From the shared start theta_0 every task takes K steps of gradient descent (or of
Adam) on its own loss:

    theta_{k+1} = theta_k - lr * grad L_tau(theta_k),     L_0 ... L_K kept.

All tasks advance together: the loss of one task is mapped over the batch by `torch.func.vmap`, its gradient by
`torch.func.grad`, so that one step of 200 tasks is one call and not 200.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import InputError, as_matrix, require
from assay.scaling.meta_adaptation.checks import checked_count, checked_number, floats

__all__ = ["AdaptationCurve", "torch_package"]

OPTIMIZERS = ("gd", "adam")
ADAM_BETA, ADAM_EPS = (0.9, 0.999), 1e-8


class AdaptationCurve:
    """Losses of many tasks along gradient steps from one shared start, all tasks at once.

    Parameters
    ----------
    loss_fn : callable
        `loss_fn(theta, task)`: the loss (a tensor of no dimension) of one task, made of torch operations that
        `torch.func` can map and differentiate. `theta` has the shape of `theta0`, `task` that of one row of `tasks`.
    theta0 : array of any shape
        The shared start.
    tasks : (n_tasks, n_features) array
        One row a task.
    lr : float
        Step size, above zero. Gradient descent is stable below 2 / L, L the largest curvature of the loss.
    steps : int
        Steps K, 1 or more.
    optimizer : {"gd", "adam"}
        Adam has its usual constants (0.9, 0.999, 1e-8).
    clip : float, optional
        Longer gradients are cut to this norm, task by task.

    Raises
    ------
    InputError
        For a rate that is not positive and finite, no step, tasks that are no matrix of finite numbers, an unknown
        optimiser.

    Notes
    -----
    arXiv 2601.18973, inner loop; computed in double precision.

    Examples
    --------
    Two quadratic tasks of curvature 1, whose losses shrink by (1 - lr)^2 a step:

    >>> import numpy as np
    >>> curve = AdaptationCurve(lambda theta, task: 0.5 * (theta - task).square().sum(), np.zeros(1),
    ...                         np.array([[1.0], [2.0]]), lr=0.5, steps=2)
    >>> curve.run().round(5).tolist()
    [[0.5, 0.125, 0.03125], [2.0, 0.5, 0.125]]
    """

    def __init__(
        self, loss_fn: Callable[[Any, Any], Any], theta0: ArrayLike, tasks: ArrayLike, lr: float, steps: int,
        optimizer: str = "gd", *, clip: float | None = None,
    ) -> None:
        if not callable(loss_fn):
            raise InputError(f"loss_fn must be a function of theta and task, got {loss_fn!r}")
        if optimizer not in OPTIMIZERS:
            raise InputError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {optimizer!r}")
        self.loss_fn = loss_fn
        self.theta0 = _finite_array(theta0, "theta0")
        self.tasks = as_matrix(tasks, "tasks").astype(np.float64)
        self.lr = checked_number(lr, "lr")
        self.steps = checked_count(steps, "steps", 1)
        self.optimizer = optimizer
        self.clip = None if clip is None else checked_number(clip, "clip")

    def run(self) -> NDArray[np.float64]:
        """Losses of each task at its start and after each step, (n_tasks, steps + 1).

        A task whose loss stops being finite keeps NaN from there on; the others are not touched by it.
        """
        return self.losses_and_thetas()[0]

    def losses_and_thetas(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What `run` gives, and each task's parameters after the last step, (n_tasks, *theta0.shape)."""
        torch = torch_package()
        step = torch.func.vmap(torch.func.grad_and_value(self.loss_fn))
        tasks = torch.from_numpy(self.tasks)
        theta = torch.from_numpy(self.theta0).expand(len(tasks), *self.theta0.shape).clone()
        rule = _Rule(self.optimizer, self.lr, self.clip)
        losses = []
        for _ in range(self.steps):
            gradient, loss = step(theta, tasks)
            losses.append(loss.detach())
            theta = theta - rule(gradient.detach())
        with torch.no_grad():
            losses.append(torch.func.vmap(self.loss_fn)(theta, tasks))
        found = torch.stack(losses, dim=1).numpy()
        lost = np.logical_or.accumulate(~np.isfinite(found), axis=1)
        return np.where(lost, np.nan, found), theta.numpy()


class _Rule:
    """What is taken off the parameters, task by task, given the gradients (n_tasks, ...)."""

    def __init__(self, optimizer: str, lr: float, clip: float | None) -> None:
        self.optimizer, self.lr, self.clip = optimizer, lr, clip
        self.taken, self.mean, self.square = 0, 0.0, 0.0

    def __call__(self, gradient: Any) -> Any:
        if self.clip is not None:
            norm = gradient.flatten(1).norm(dim=1).clamp(min=1e-300)
            gradient = gradient * (self.clip / norm).clamp(max=1.0).view(-1, *[1] * (gradient.ndim - 1))
        if self.optimizer == "gd":
            return self.lr * gradient
        self.taken += 1
        first, second = ADAM_BETA
        self.mean = first * self.mean + (1 - first) * gradient
        self.square = second * self.square + (1 - second) * gradient**2
        mean, square = self.mean / (1 - first**self.taken), self.square / (1 - second**self.taken)
        return self.lr * mean / (square**0.5 + ADAM_EPS)


def torch_package() -> Any:
    """The torch package, or the error that says how to install it."""
    return require("torch", extra="torch", wanted_by="meta-adaptation")


def _finite_array(values: ArrayLike, name: str) -> NDArray[np.float64]:
    array = floats(values, name)
    if not array.size or not np.isfinite(array).all():
        raise InputError(f"{name} must hold finite numbers, one or more")
    return array
