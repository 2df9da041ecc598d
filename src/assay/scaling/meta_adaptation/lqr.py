"""A family of linear-quadratic regulators that differ in their mass (arXiv 2601.18973).

A body on a spring and a damper, m x'' + c x' + k x = u, is to be brought to rest at the cost

    J = integral (x^2 q_1 + v^2 q_2 + r u^2) dt,     u = -K (x, v),

averaged over starts with covariance I: J = tr P, where P solves the Lyapunov equation
A^T P + P A + Q + K^T r K = 0 of the closed loop A = A_0 - B K. The gradient in K is 2 (r K - B^T P) S with
A S + S A^T = -I. The optimal gain is known in closed form,

    K_1 = -k + sqrt(k^2 + q_1 / r),     K_2 = -c + sqrt(c^2 + 2 m K_1 + q_2 / r),

so that the asymptotic gain of adaptation is the Riccati solution's and needs no fit. K_1 does not depend on the mass.
Both 2 x 2 Lyapunov equations are solved in closed form for all tasks at once: for A = [[0, 1], [-a, -b]] a loop is
stable exactly if a > 0 and b > 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import InputError, as_matrix, as_vector
from assay.scaling.meta_adaptation.checks import checked_count, checked_number, checked_size, floats, generator

__all__ = ["LQRFamily"]

Vector = NDArray[np.float64]

MASS_MEAN, MASS_RANGE = 1.0, (0.4, 1.8)


class LQRFamily:
    """Regulators of a mass on a spring, one task a mass; losses, gradients and optima of all tasks at once.

    Parameters
    ----------
    masses : (n_tasks,) array
        Masses, above 0.
    damping, stiffness : float
        c and k of the plant, above 0.
    q : pair of float
        Weights of position and velocity in the cost, above 0.
    r : float
        Weight of the force, above 0.
    lr : float
        Step size of the gradient steps, above 0.
    mean_mass : float, optional
        Mass whose optimal gain all tasks start from: the controller that is not adapted.

    Raises
    ------
    InputError
        For masses or constants that are not positive and finite.

    Notes
    -----
    arXiv 2601.18973, the linear-quadratic example; a step into an unstable loop, whose cost is infinite, is rejected,
    and `rejected_` of the last `curve` counts such steps.

    Examples
    --------
    >>> family = LQRFamily([1.0, 1.4])
    >>> family.optimal_gains().round(6).tolist()
    [[1.741657, 1.675618], [1.741657, 1.975205]]
    >>> family.curve(1).round(6).tolist()
    [[0.881604, 0.881604], [1.113271, 1.112739]]
    """

    def __init__(
        self, masses: ArrayLike, *, damping: float = 0.5, stiffness: float = 2.0, q: tuple[float, float] = (1.0, 0.1),
        r: float = 0.1, lr: float = 0.08, mean_mass: float = MASS_MEAN,
    ) -> None:
        self.masses = as_vector(masses, "masses", positive=True).astype(np.float64)
        if not len(self.masses):
            raise InputError("masses must name one task or more")
        checked_size(self.masses, "masses")
        q1, q2 = as_vector(q, "q", length=2, positive=True)
        self.q = (float(q1), float(q2))
        self.damping, self.stiffness = checked_number(damping, "damping"), checked_number(stiffness, "stiffness")
        self.r, self.lr = checked_number(r, "r"), checked_number(lr, "lr")
        self.mean_mass = checked_number(mean_mass, "mean_mass")

    @classmethod
    def draw(cls, n_tasks: int, sd: float, seed: int, **constants: Any) -> LQRFamily:
        """Masses drawn from the normal law around 1, cut to [0.4, 1.8] as in the paper's example.

        `sd` is the standard deviation before the cut; `np.random.default_rng(seed)` draws.
        """
        spread, n = checked_number(sd, "sd", zero=True), checked_count(n_tasks, "n_tasks", 1)
        return cls(np.clip(MASS_MEAN + spread * generator(seed, "seed").standard_normal(n), *MASS_RANGE), **constants)

    def optimal_gains(self, masses: ArrayLike | None = None) -> Vector:
        """Optimal gain of each mass, (n_tasks, 2), in closed form."""
        m = self.masses if masses is None else as_vector(masses, "masses", positive=True).astype(np.float64)
        (q1, q2), k, c = self.q, self.stiffness, self.damping
        first = -k + np.sqrt(k**2 + q1 / self.r) * np.ones_like(m)
        return np.stack([first, -c + np.sqrt(c**2 + 2 * m * first + q2 / self.r)], axis=1)

    def robust_gain(self) -> Vector:
        """The optimal gain of the mean mass, (2,): where all tasks start."""
        return self.optimal_gains([self.mean_mass])[0]

    def costs(self, gains: ArrayLike) -> Vector:
        """Cost of each task under its gain, (n_tasks,); infinite where the closed loop is unstable.

        `gains` is (2,) for all tasks or (n_tasks, 2).
        """
        K = self._gains(gains)
        a, b = self._loop(K)
        stable = (a > 0) & (b > 0)
        p11, _, p22 = self._value(K, np.where(stable, a, 1.0), np.where(stable, b, 1.0))
        return np.where(stable, p11 + p22, np.inf)

    def gradients(self, gains: ArrayLike) -> Vector:
        """Gradient of the cost in the gain, (n_tasks, 2); NaN where the closed loop is unstable."""
        K = self._gains(gains)
        a, b = self._loop(K)
        stable = (a > 0) & (b > 0)
        a, b = np.where(stable, a, np.nan), np.where(stable, b, np.nan)
        _, p12, p22 = self._value(K, a, b)
        # A S + S A^T = -I for A = [[0, 1], [-a, -b]].
        s12 = -0.5 * np.ones_like(a)
        s22 = (1 + a) / (2 * b)
        s11 = (s22 + b / 2) / a
        e1, e2 = self.r * K[:, 0] - p12 / self.masses, self.r * K[:, 1] - p22 / self.masses
        return 2 * np.stack([e1 * s11 + e2 * s12, e1 * s12 + e2 * s22], axis=1)

    def curve(self, steps: int, lr: float | None = None) -> Vector:
        """Costs of each task at the robust gain and after each gradient step, (n_tasks, steps + 1)."""
        return self.descend(steps, lr)[0]

    def descend(self, steps: int, lr: float | None = None) -> tuple[Vector, Vector]:
        """Costs along the steps as `curve` gives them, and each task's gain after the last, (n_tasks, 2)."""
        rate = self.lr if lr is None else checked_number(lr, "lr")
        K = np.tile(self.robust_gain(), (len(self.masses), 1))
        costs = [self.costs(K)]
        self.rejected_ = 0
        for _ in range(checked_count(steps, "steps", 1)):
            tried = K - rate * self.gradients(K)
            new = self.costs(tried)
            stable = np.isfinite(new)
            self.rejected_ += int((~stable).sum())
            K = np.where(stable[:, None], tried, K)
            costs.append(np.where(stable, new, costs[-1]))
        return np.stack(costs, axis=1), K

    def optimal_costs(self) -> Vector:
        """The lowest cost of each task, (n_tasks,): that of the Riccati solution."""
        return self.costs(self.optimal_gains())

    def asymptotic_gains(self) -> Vector:
        """What adaptation can gain at most, task by task: cost of the robust gain minus the lowest cost, (n_tasks,)."""
        return self.costs(self.robust_gain()) - self.optimal_costs()

    def _gains(self, gains: ArrayLike) -> Vector:
        K = np.atleast_2d(floats(gains, "gains"))
        if K.shape not in {(1, 2), (len(self.masses), 2)}:
            raise InputError(f"gains must be (2,) or ({len(self.masses)}, 2), got shape {np.shape(gains)}")
        as_matrix(K, "gains", columns=2)
        return np.broadcast_to(K, (len(self.masses), 2))

    def _loop(self, K: Vector) -> tuple[Vector, Vector]:
        """The closed loop's a and b in x'' = -a x - b x'."""
        return (self.stiffness + K[:, 0]) / self.masses, (self.damping + K[:, 1]) / self.masses

    def _value(self, K: Vector, a: Vector, b: Vector) -> tuple[Vector, Vector, Vector]:
        """P of A^T P + P A + W = 0 with W = Q + K^T r K."""
        w11, w12, w22 = self.q[0] + self.r * K[:, 0] ** 2, self.r * K[:, 0] * K[:, 1], self.q[1] + self.r * K[:, 1] ** 2
        p12 = w11 / (2 * a)
        p22 = (p12 + w22 / 2) / b
        return a * p22 + b * p12 - w12, p12, p22
