"""What the prover is measured against: two peers, and the prover without its refinement.

`alkahest` is a package on the Python registry (Rust). Sostactic, the other strong peer, is not on it:
`round_and_project` is written here after its published description, with the libraries that it uses for its exact
steps. Its Gram matrix comes from Clarabel on the Gram side; the affine system is reduced, the rounded matrix projected
and LDLᵀ computed in SymPy's rational arithmetic; where the matrix is singular it is first refined at its numerical
rank.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from assay.errors import require
from assay.science.sos_prover.basis import half_newton_basis
from assay.science.sos_prover.exact import AffineGrams
from assay.science.sos_prover.gram import Array, GramProblem
from assay.science.sos_prover.polynomials import Polynomial
from assay.science.sos_prover.recovery import Term, round_grams
from assay.science.sos_prover.refinement import gauss_newton

__all__ = ["alkahest_proves", "proves_within", "round_and_project", "round_only"]

DECIMALS = (2, 4, 6, 8, 10)
NUMERICAL_RANK = 1e-5
OUT_OF_TIME = (9, 24)
"""Signals (kill, CPU time exceeded) by which a limit on CPU time ends a process."""


def alkahest_proves(p: Polynomial) -> bool:
    """Whether `alkahest.sos_decompose` gives a certificate that it verifies itself."""
    alkahest = require("alkahest", extra="peers", wanted_by="sos-prover's peer arm")
    pool = alkahest.ExprPool()
    symbols = [pool.symbol(name) for name in p.gens]
    expression = alkahest.parse(str(p), pool, dict(zip(p.gens, symbols, strict=True)))
    try:
        return bool(alkahest.sos_decompose(expression, symbols).verify())
    except alkahest.SosError:
        return False


def round_only(problem: GramProblem, grams: Sequence[Array]) -> list[Term] | None:
    """Rounding and exact projection of approximate Gram matrices, singular results allowed; no refinement, no faces."""
    return round_grams(AffineGrams(problem), grams)


def round_and_project(p: Polynomial) -> list[tuple[Fraction, Polynomial]] | None:
    """Weighted squares by rounding and projecting in SymPy (Sostactic's approach), or None."""
    basis = half_newton_basis(p)
    pairs = [(i, j) for i in range(len(basis)) for j in range(i, len(basis))]
    monomials = sorted({_product(basis[i], basis[j]) for i, j in pairs} | set(p.terms))
    index = {m: row for row, m in enumerate(monomials)}
    entries = [(index[_product(basis[i], basis[j])], k, 1 if i == j else 2) for k, (i, j) in enumerate(pairs)]
    rhs = [p.terms.get(m, Fraction(0)) for m in monomials]
    gram = _largest_eigenvalue_gram(entries, rhs, len(basis), pairs)
    if gram is None:
        return None
    return _exact_squares(p, _at_numerical_rank(p, basis, gram), basis, pairs, entries, rhs)


def proves_within(arm: str, p: Polynomial, seconds: float) -> bool | None:
    """What a peer says in a process of its own: True, False, or None when it did not answer in time.

    The seconds are CPU time on one thread, so that a busy machine does not decide; the clock is only a guard.
    """
    terms = [[m, str(c)] for m, c in p.terms.items()]
    request = json.dumps({"arm": arm, "gens": p.gens, "terms": terms, "seconds": seconds})
    root = str(Path(__file__).parents[3])
    module = "assay.science.sos_prover.baselines"
    code = f"import sys; sys.path.insert(0, {root!r}); from {module} import _answer; _answer()"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], input=request, capture_output=True, text=True, timeout=clock_guard(seconds),
            check=False, env={**os.environ, "RAYON_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired:
        return None
    if -done.returncode in OUT_OF_TIME:
        return None
    if done.returncode:
        raise RuntimeError(f"{arm}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'no answer'}")
    return done.stdout.strip().endswith("True")


def clock_guard(seconds: float) -> float:
    """Seconds by the clock after which a peer with that much CPU time is given up."""
    return 120.0 + 10 * seconds


def _answer() -> None:
    request = json.loads(sys.stdin.read())
    _limit_cpu(request["seconds"])
    p = Polynomial(tuple(request["gens"]), {tuple(m): Fraction(c) for m, c in request["terms"]})
    proved = alkahest_proves(p) if request["arm"] == "alkahest" else round_and_project(p) is not None
    print(proved)


def _limit_cpu(seconds: float) -> None:
    """End this process after so many further CPU seconds; where the system has no such limit the clock is one."""
    try:
        import resource
    except ImportError:
        return
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    limit = math.ceil(used + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))


def _product(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def _largest_eigenvalue_gram(
    entries: Sequence[tuple[int, int, int]], rhs: Sequence[Fraction], size: int, pairs: Sequence[tuple[int, int]]
) -> Array | None:
    """maximise t with Q - t I ⪰ 0, t <= 1 and Q a Gram matrix: the unknowns are the entries of Q, and t."""
    clarabel = require("clarabel", extra="science", wanted_by="sos-prover")
    count = len(pairs)
    rows, columns, values = zip(*entries, strict=True)
    equations = sp.csc_matrix((values, (rows, columns)), shape=(len(rhs), count + 1))
    triangle = sorted(range(count), key=lambda k: (pairs[k][1], pairs[k][0]))
    cone = sp.lil_matrix((count, count + 1))
    for row, k in enumerate(triangle):
        i, j = pairs[k]
        cone[row, k] = -1.0 if i == j else -np.sqrt(2)
        if i == j:
            cone[row, count] = 1.0
    bound = sp.csc_matrix(([1.0], ([0], [count])), shape=(1, count + 1))
    matrix = sp.csc_matrix(sp.vstack([equations, bound, cone]))
    offset = np.array([*map(float, rhs), 1.0, *np.zeros(count)])
    settings = clarabel.DefaultSettings()
    settings.verbose, settings.max_threads = False, 1
    cones = [clarabel.ZeroConeT(len(rhs)), clarabel.NonnegativeConeT(1), clarabel.PSDTriangleConeT(size)]
    objective = np.zeros(count + 1)
    objective[-1] = -1.0
    nothing = sp.csc_matrix((count + 1, count + 1))
    answer = np.array(clarabel.DefaultSolver(nothing, objective, matrix, offset, cones, settings).solve().x)
    if not np.isfinite(answer).all() or answer[-1] < -1e-6:
        return None
    gram = np.zeros((size, size))
    for k, (i, j) in enumerate(pairs):
        gram[i, j] = gram[j, i] = answer[k]
    return gram


def _at_numerical_rank(p: Polynomial, basis: Sequence[tuple[int, ...]], gram: Array) -> Array:
    values, vectors = np.linalg.eigh(gram)
    kept = values > NUMERICAL_RANK * values[-1]
    if kept.all():
        return gram
    one = Polynomial.constant(p.gens, 1)
    problem = GramProblem.from_monomials(p, [basis])
    if len(problem.blocks) > 1 or problem.constraints != (one,):
        return gram
    start = vectors[:, kept] * np.sqrt(values[kept] / problem.scale)
    return gauss_newton(problem, [start]).grams[0] * problem.scale


def _exact_squares(
    p: Polynomial, gram: Array, basis: Sequence[tuple[int, ...]], pairs: Sequence[tuple[int, int]],
    entries: Sequence[tuple[int, int, int]], rhs: Sequence[Fraction],
) -> list[tuple[Fraction, Polynomial]] | None:
    import sympy

    matrix = sympy.zeros(len(rhs), len(pairs))
    for row, k, value in entries:
        matrix[row, k] = value
    right = sympy.Matrix([sympy.Rational(c.numerator, c.denominator) for c in rhs])
    reduced, pivots = matrix.row_join(right).rref()
    if pivots and pivots[-1] == len(pairs):
        return None
    matrix, right = reduced[: len(pivots), :-1], reduced[: len(pivots), -1]
    for digits in DECIMALS:
        rounded = sympy.Matrix([sympy.Rational(round(gram[i, j] * 10**digits), 10**digits) for i, j in pairs])
        error = matrix * rounded - right
        exact = rounded - matrix.T * (matrix * matrix.T).LUsolve(error)
        terms = _ldl(exact, pairs, len(basis))
        if terms is not None:
            return [
                (weight, Polynomial(p.gens, {m: c for m, c in zip(basis, row, strict=True) if c}))
                for weight, row in terms
            ]
    return None


def _ldl(values: Any, pairs: Sequence[tuple[int, int]], size: int) -> list[tuple[Fraction, list[Fraction]]] | None:
    """LDLᵀ in SymPy's rationals, column by column; a zero pivot needs a zero column."""
    import sympy

    gram = sympy.zeros(size, size)
    for (i, j), value in zip(pairs, values, strict=True):
        gram[i, j] = gram[j, i] = value
    terms = []
    for k in range(size):
        pivot = gram[k, k]
        column = gram[:, k]
        if pivot < 0 or (pivot == 0 and any(v != 0 for v in column)):
            return None
        if pivot > 0:
            row = column / pivot
            gram = gram - pivot * row * row.T
            terms.append((Fraction(int(pivot.p), int(pivot.q)), [Fraction(int(v.p), int(v.q)) for v in row]))
    return terms
