"""The semidefinite program behind a sum of squares, solved where it is small: on the side of the moments.

Writing M_j(y) for the moment matrix of block j (entry (a, b) is the linear functional y applied to g_j b_a b_b),

    minimise y(p)   such that   M_j(y) ⪰ 0 for every j,   Σ_j tr M_j(y) = 1

has as many unknowns as there are monomials, where the Gram side has one a matrix entry: at 66 basis monomials
1,001 instead of 2,211, which is why this form is solved in seconds. Its dual is

    maximise t   such that   Q_j - t I ⪰ 0,   Σ_j g_j b_jᵀ Q_j b_j = p,

so that one solve gives the Gram matrices with the largest smallest eigenvalue t, which is what exact rounding
needs (Peyrl and Parrilo 2008), and at t = 0 the exposing matrices M_j, whose range must lie in the kernel of
every Gram matrix: what facial reduction needs. t < 0 says that p is no sum of squares over these bases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from assay.errors import InputError, require
from assay.science.sos_prover.gram import Array, GramProblem

__all__ = ["SOLVERS", "SDPSolution", "solve_moments"]

SOLVERS = ("CLARABEL", "SCS")
MAX_ITERATIONS = {"CLARABEL": 100, "SCS": 20_000}


@dataclass(frozen=True)
class SDPSolution:
    """What a solve gives: all numbers are approximate and nothing is concluded from `status` alone.

    Attributes
    ----------
    status : str
        The solver's word. "AlmostSolved" is common where p has real zeros and is neither success nor failure.
    t : float
        Largest smallest eigenvalue of a Gram matrix of target / scale.
    grams, moments : list of array (N_j, N_j)
        Q_j and M_j(y).
    y : array (monomials,)
    iterations : int
    """

    status: str
    t: float
    grams: list[Array]
    moments: list[Array]
    y: Array
    iterations: int


def solve_moments(
    maps: Sequence[sp.csr_array], sizes: Sequence[int], rhs: Array, *, solver: str = "CLARABEL",
    time_limit: float = 60.0,
) -> SDPSolution:
    """Solve the moment problem for the linear maps of a `GramProblem` (or a numerical restriction of one)."""
    if solver not in SOLVERS:
        raise InputError(f"solver must be one of {', '.join(SOLVERS)}, got {solver!r}")
    trace = sum(a @ np.eye(n).ravel() for a, n in zip(maps, sizes, strict=True))
    rows = [sp.csr_array(trace[None, :])]
    rows += [_triangle(n, solver) @ a.T for a, n in zip(maps, sizes, strict=True)]
    constraint = sp.csc_matrix(sp.vstack(rows))
    offset = np.zeros(constraint.shape[0])
    offset[0] = 1.0
    solve = _clarabel if solver == "CLARABEL" else _scs
    y, dual, status, iterations = solve(constraint, offset, rhs, sizes, time_limit)
    t = -float(dual[0])
    grams, start = [], 1
    for n in sizes:
        entries = n * (n + 1) // 2
        packed = _triangle(n, solver).T @ dual[start : start + entries]
        grams.append(_symmetric(-packed.reshape(n, n)) + t * np.eye(n))
        start += entries
    moments = [_symmetric((a.T @ y).reshape(n, n)) for a, n in zip(maps, sizes, strict=True)]
    return SDPSolution(status, t, grams, moments, y, iterations)


def solve_problem(problem: GramProblem, *, solver: str = "CLARABEL", time_limit: float = 60.0) -> SDPSolution:
    """`solve_moments` for a `GramProblem`."""
    return solve_moments(problem.maps, problem.sizes, problem.rhs, solver=solver, time_limit=time_limit)


def _triangle(n: int, solver: str) -> sp.csr_array:
    """Minus the map from vec(S) to the scaled triangle that the solver's semidefinite cone takes.

    Clarabel packs the upper triangle by columns, SCS the lower one by columns; off-diagonal entries carry √2.
    """
    if solver == "CLARABEL":
        places = [(i, j) for j in range(n) for i in range(j + 1)]
    else:
        places = [(i, j) for j in range(n) for i in range(j, n)]
    values = [-1.0 if i == j else -np.sqrt(2) for i, j in places]
    return sp.csr_array((values, (range(len(places)), [i * n + j for i, j in places])), shape=(len(places), n * n))


def _symmetric(packed: Array) -> Array:
    """Off-diagonal entries arrive once, with weight √2 for √2·entry (Gram) or whole (moment): average both sides."""
    return (packed + packed.T) / 2


def _clarabel(
    a: sp.csc_matrix, b: Array, c: Array, sizes: Sequence[int], time_limit: float
) -> tuple[Array, Array, str, int]:
    clarabel = require("clarabel", extra="science", wanted_by="sos-prover")
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_iter = MAX_ITERATIONS["CLARABEL"]
    settings.max_threads = 1
    settings.time_limit = max(0.1, time_limit)
    settings.chordal_decomposition_enable = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-9
    cones = [clarabel.ZeroConeT(1), *(clarabel.PSDTriangleConeT(n) for n in sizes)]
    quadratic = sp.csc_matrix((len(c), len(c)))
    answer = clarabel.DefaultSolver(quadratic, c, a, b, cones, settings).solve()
    return np.array(answer.x), np.array(answer.z), str(answer.status), int(answer.iterations)


def _scs(
    a: sp.csc_matrix, b: Array, c: Array, sizes: Sequence[int], time_limit: float
) -> tuple[Array, Array, str, int]:
    scs = require("scs", extra="science", wanted_by="sos-prover")
    solver = scs.SCS(
        {"A": a, "b": b, "c": c}, {"z": 1, "s": list(sizes)}, verbose=False, eps_abs=1e-9, eps_rel=1e-9,
        max_iters=MAX_ITERATIONS["SCS"], time_limit_secs=max(0.1, time_limit),
    )
    answer = solver.solve()
    return answer["x"], answer["y"], answer["info"]["status"], int(answer["info"]["iter"])
