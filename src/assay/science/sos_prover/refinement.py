"""Gauss-Newton on the factors: from an approximate sum of squares to one that is right to machine precision.

With Q_j = L_j L_jᵀ (positive semidefinite by construction) the residual is F(L) = Σ_j A_j(L_j L_jᵀ) - p. Its
Jacobian J never has to be formed: J Jᵀ = 4 Σ_j A_j (Q_j ⊗ I) A_jᵀ is a monomial-by-monomial matrix, and the
damped minimum-norm step -Jᵀ w with (J Jᵀ + λ I) w = F is

    L_j ← L_j - 2 W_j L_j,    W_j = the moment matrix of w,

so a step costs one Cholesky factorisation of the number of monomials whatever the rank of L. λ starts at 1e-3
(relative to the mean diagonal) and moves by factors of ten (Levenberg-Marquardt).

Where p has real zeros the Gram matrix is singular and the limit of Gauss-Newton depends on where it started;
the mean of several limits is again a Gram matrix of p (the set is convex) and has the largest rank among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from assay.science.sos_prover.gram import Array, GramProblem

__all__ = ["Refined", "gauss_newton"]

SMALL_MAP = 200_000

TOLERANCE = 1e-12
"""Largest residual, relative to the largest coefficient of p, at which the iteration stops."""


@dataclass(frozen=True)
class Refined:
    """Factors L_j (N_j × r_j), the largest residual that is left, and the number of steps taken."""

    factors: list[Array]
    residual: float
    steps: int

    @property
    def grams(self) -> list[Array]:
        return [factor @ factor.T for factor in self.factors]

    @property
    def converged(self) -> bool:
        return self.residual <= TOLERANCE


def gauss_newton(problem: GramProblem, factors: Sequence[Array], *, max_steps: int = 50) -> Refined:
    """Refine factors of approximate Gram matrices of target / scale.

    Parameters
    ----------
    problem : GramProblem
    factors : sequence of array (N_j, r_j)
    max_steps : int
        Jacobians formed; a rejected step with a larger λ is not counted.
    """
    factors = [np.array(factor, dtype=float) for factor in factors]
    residual = problem.residual([f @ f.T for f in factors])
    damping, steps = 1e-3, 0
    best, stalled = np.abs(residual).max(initial=0.0), 0
    while np.abs(residual).max(initial=0.0) > TOLERANCE / 100 and steps < max_steps and stalled < 4:
        steps += 1
        normal = _normal_matrix(problem, factors)
        size = np.trace(normal) / len(normal) or 1.0
        while damping <= 1e8:
            moved = _step(problem, factors, normal, residual, damping * size)
            after = problem.residual([f @ f.T for f in moved])
            if np.linalg.norm(after) < np.linalg.norm(residual):
                factors, residual, damping = moved, after, max(damping / 10, 1e-15)
                break
            damping *= 10
        else:
            break
        largest = np.abs(residual).max()
        stalled = stalled + 1 if largest > 0.5 * best and best <= TOLERANCE else 0
        best = min(best, largest)
    return Refined(factors, float(np.abs(residual).max(initial=0.0)), steps)


def _normal_matrix(problem: GramProblem, factors: Sequence[Array]) -> Array:
    """J Jᵀ: dense products where the maps are small, sparse Kronecker products where they are not."""
    total = np.zeros((len(problem.rhs), len(problem.rhs)))
    for a, factor in zip(problem.maps, factors, strict=True):
        gram = factor @ factor.T
        if a.shape[0] * a.shape[1] <= SMALL_MAP:
            dense = a.toarray()
            total += 4 * (dense.reshape(-1, len(gram)) @ gram).reshape(dense.shape) @ dense.T
        else:
            total += 4 * ((a @ sp.kron(sp.eye_array(len(gram)), sp.csr_array(gram), format="csr")) @ a.T).toarray()
    return total


def _step(
    problem: GramProblem, factors: Sequence[Array], normal: Array, residual: Array, shift: float
) -> list[Array]:
    try:
        w = scipy.linalg.cho_solve(scipy.linalg.cho_factor(normal + shift * np.eye(len(normal))), residual)
    except np.linalg.LinAlgError:
        w = scipy.linalg.lstsq(normal, residual)[0]
    return [f - 2 * (a.T @ w).reshape(len(f), len(f)) @ f for a, f in zip(problem.maps, factors, strict=True)]
