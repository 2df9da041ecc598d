"""Facial reduction: the rational subspace in which the Gram matrices of a polynomial with real zeros live.

If every Gram matrix is singular, no rounding works in the full space: all Gram matrices lie on one face of the
cone, Q = Rᵀ Y R. Over the new basis b = R z the problem is smaller, and after finitely many steps an interior one.
Guesses for the row space of R come from three sources, best first:

1. *Ranks.* The eigenvalues of approximate Gram matrices fall into large and small ones. For a cut between them,
   Gauss-Newton at that rank makes the factor exact to machine precision, and its column space in reduced row
   echelon form is read as fractions. Wide gaps are tried first, then the smallest ranks: an isolated Gram
   matrix of low rank is often rational where the relative interior holds no rational point at all.
2. *Real zeros.* b(x*) lies in the kernel for each real zero x*, those at infinity (of the leading form) included;
   the complement of their span is read as fractions.
3. *Integer relations.* A zero with irrational coordinates forces a rational Gram matrix to vanish at all its
   conjugates too, real or not. The vectors that a rational Gram matrix may be made of are the integer relations
   v · b(x*) = 0, which LLL finds from a hundred digits of x*.

Every guess is checked: the reduced equations are solved exactly, and the identity is multiplied out in the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import scipy.linalg

from assay.science.sos_prover.gram import Array, Block, GramProblem
from assay.science.sos_prover.polynomials import Polynomial, flint
from assay.science.sos_prover.refinement import Refined, gauss_newton
from assay.science.sos_prover.zeros import DIGITS, leading_form, real_zeros, sharpen

__all__ = ["Face", "guess_faces", "simplest_fraction"]

WIDE_GAPS = 4
LARGEST_GUESS = 1_000
GUESS_STEPS = 25


@dataclass(frozen=True)
class Face:
    """A problem over fewer basis polynomials, with Gram matrices to start from where the guess gives some."""

    problem: GramProblem
    grams: list[Array] | None
    source: str


def guess_faces(problem: GramProblem, grams: Sequence[Array], deadline: float = float("inf")) -> Iterator[Face]:
    """Faces on which exact Gram matrices may lie, each smaller than the whole cone, best guess first.

    After the deadline (`time.monotonic()`) no further guess is worked out.
    """
    seen: set[tuple[tuple[tuple[Fraction, ...], ...], ...]] = set()
    for ranges, start, source in _guesses(problem, grams, deadline):
        key = tuple(tuple(map(tuple, rows)) for rows in ranges)
        if key in seen or sum(map(len, ranges)) >= sum(problem.sizes):
            continue
        seen.add(key)
        bases = [[combine(row, b.basis) for row in rows] for rows, b in zip(ranges, problem.blocks, strict=True)]
        yield Face(problem.restricted(bases), start, source)


def _guesses(
    problem: GramProblem, grams: Sequence[Array], deadline: float
) -> Iterator[tuple[list[list[list[Fraction]]], list[Array] | None, str]]:
    spectra = [np.linalg.eigh((gram + gram.T) / 2) for gram in grams]
    wide, rest = rank_cuts([values for values, _ in spectra])
    yield from _by_rank(problem, spectra, wide, deadline)
    yield from _by_rank(problem, spectra, rest, deadline)
    if len(problem.constraints) == 1 and time.monotonic() < deadline:
        zeros = real_zeros(problem.target, hints=_points_of_kernel(problem, spectra))
        yield from _by_zeros(problem, zeros)
        yield from _by_relations(problem, zeros)


def _by_rank(
    problem: GramProblem, spectra: Sequence[tuple[Array, Array]], cuts: Sequence[Sequence[int]], deadline: float
) -> Iterator[tuple[list[list[list[Fraction]]], list[Array], str]]:
    for ranks in cuts:
        if time.monotonic() > deadline:
            return
        refined = gauss_newton(problem, _truncated(spectra, ranks), max_steps=GUESS_STEPS)
        # Where the range can move without changing p to first order its error is the root of the residual's.
        yield from _readable(refined, (1e-10, 3e-6), f"rank {sum(ranks)}")


def _truncated(spectra: Sequence[tuple[Array, Array]], ranks: Sequence[int]) -> list[Array]:
    """Factors of the Gram matrices' best approximations of those ranks."""
    return [
        vectors[:, len(values) - r :] * np.sqrt(np.maximum(values[len(values) - r :], 0.0))
        for (values, vectors), r in zip(spectra, ranks, strict=True)
    ]


def _readable(
    refined: Refined, tolerances: Sequence[float], source: str
) -> Iterator[tuple[list[list[list[Fraction]]], list[Array], str]]:
    """The rational ranges of refined factors, where they converged and look rational."""
    for tolerance in tolerances if refined.converged else ():
        found = [rational_rows(f.T, tolerance) for f in refined.factors]
        ranges = [pair for pair in found if pair is not None]
        if len(ranges) == len(found):
            inner = [q[np.ix_(at, at)] for q, (_, at) in zip(refined.grams, ranges, strict=True) if at]
            yield [rows for rows, _ in ranges], inner, source


def rank_cuts(spectra: Sequence[Array]) -> tuple[list[list[int]], list[list[int]]]:
    """Ranks, one a block, for cuts between the pooled eigenvalues: the widest gaps, and all others by rank."""
    pooled = np.sort(np.concatenate([*spectra]))[::-1]
    logs = np.log(np.maximum(pooled, 1e-14 * pooled[0]))
    gaps = logs[:-1] - logs[1:]
    by_width = [int(k) for k in np.argsort(-gaps, kind="stable") if gaps[k] > 1e-6]
    wide = [k for k in by_width[:WIDE_GAPS] if gaps[k] > np.log(10.0)]
    rest = sorted(set(by_width) - set(wide))

    def ranks(k: int) -> list[int]:
        level = np.exp((logs[k] + logs[k + 1]) / 2)
        return [int((values > level).sum()) for values in spectra]

    return [ranks(k) for k in wide], [ranks(k) for k in rest]


def _points_of_kernel(problem: GramProblem, spectra: Sequence[tuple[Array, Array]]) -> list[Array]:
    """Points x* whose b(x*) resembles an eigenvector of the smallest eigenvalues, where b holds 1 and all variables."""
    gens = problem.target.gens
    units = [(0,) * len(gens), *(tuple(int(i == j) for j in range(len(gens))) for i in range(len(gens)))]
    points = []
    for block, (_, vectors) in zip(problem.blocks, spectra, strict=True):
        place = {next(iter(b.terms)): i for i, b in enumerate(block.basis) if len(b.terms) == 1}
        if all(m in place for m in units):
            for vector in vectors.T[:3]:
                one, *rest = (vector[place[m]] for m in units)
                if abs(one) > 1e-6:
                    points.append(np.array(rest) / one)
    return points


def _by_zeros(
    problem: GramProblem, zeros: Sequence[Array]
) -> Iterator[tuple[list[list[list[Fraction]]], None, str]]:
    """Zeros at infinity come from the leading form: only the terms of b of half the degree count there."""
    target, half = problem.target, problem.target.degree // 2
    infinite = [] if target.is_homogeneous else real_zeros(leading_form(target))
    groups = [(zeros, infinite), ([], infinite)] if zeros and infinite else [(zeros, infinite)]
    for finite, far in groups:
        for tolerance in (1e-10, 3e-6) if finite or far else ():
            found = [
                _complement(np.vstack([_values(b.basis, finite), _values(_top(b, half), far)]), tolerance)
                for b in problem.blocks
            ]
            ranges = [rows for rows in found if rows is not None]
            if len(ranges) == len(found):
                yield ranges, None, f"{len(finite)} real zeros, {len(far)} at infinity"
                break


def _top(block: Block, degree: int) -> list[Polynomial]:
    return [Polynomial(b.gens, {m: c for m, c in b.terms.items() if sum(m) == degree}) for b in block.basis]


def _values(basis: Sequence[Polynomial], points: Sequence[Array]) -> Array:
    """b at the points as rows, each of length one; rows of zeros are left out."""
    rows = []
    for point in points:
        row = np.array([_at(b, point) for b in basis])
        if np.linalg.norm(row) > 1e-9:
            rows.append(row / np.linalg.norm(row))
    return np.array(rows).reshape(len(rows), len(basis))


def _at(p: Polynomial, x: Array) -> float:
    exponents, coefficients = p.arrays()
    return float(coefficients @ np.prod(x**exponents, axis=1))


def _complement(kernel: Array, tolerance: float) -> list[list[Fraction]] | None:
    """Rational rows orthogonal to the given ones, if these span a subspace that looks rational."""
    size = kernel.shape[1]
    if not len(kernel):
        return [[Fraction(int(i == j)) for j in range(size)] for i in range(size)]
    _, values, directions = np.linalg.svd(kernel)
    rank = int((values > 1e-5 * values[0]).sum())
    found = rational_rows(directions[:rank], tolerance)
    return None if found is None else nullspace(found[0])


def _by_relations(
    problem: GramProblem, zeros: Sequence[Array]
) -> Iterator[tuple[list[list[list[Fraction]]], None, str]]:
    sharp = [point for zero in zeros if (point := sharpen(problem.target, zero)) is not None]
    if sharp:
        yield [integer_relations(block, sharp) for block in problem.blocks], None, "integer relations"


def integer_relations(block: Block, zeros: Sequence[Sequence[flint.fmpq]]) -> list[list[Fraction]]:
    """A basis of the integer vectors v with v · b(x*) = 0 at each zero, by LLL."""
    scale = flint.fmpz(10) ** (DIGITS // 2)
    columns = [[_floor(_exact_at(b, zero) * scale) for b in block.basis] for zero in zeros]
    size = block.size
    lattice = flint.fmpz_mat([
        [int(i == j) for j in range(size)] + [column[i] for column in columns] for i in range(size)
    ]).lll()
    found = []
    for i in range(size):
        row = [int(lattice[i, j]) for j in range(size)]
        error = max(abs(int(lattice[i, size + k])) for k in range(len(columns)))
        if error <= size * max(map(abs, row)) and max(map(abs, row)) <= LARGEST_GUESS:
            found.append([Fraction(v) for v in row])
    return found


def _exact_at(p: Polynomial, x: Sequence[flint.fmpq]) -> flint.fmpq:
    total = flint.fmpq(0)
    for m, c in p.terms.items():
        value = flint.fmpq(c.numerator, c.denominator)
        for v, e in zip(x, m, strict=True):
            if e:
                value *= v**e
        total += value
    return total


def _floor(value: flint.fmpq) -> flint.fmpz:
    return value.p // value.q


def rational_rows(rows: Array, tolerance: float) -> tuple[list[list[Fraction]], list[int]] | None:
    """The row space in reduced echelon form with its pivot places, read as fractions, if it looks rational."""
    rank = len(rows)
    if rank == 0:
        return [], []
    _, triangle, order = scipy.linalg.qr(rows, pivoting=True, mode="economic")
    pivots = np.abs(np.diag(triangle))
    if pivots[-1] < 1e-7 * pivots[0]:
        return None
    places = sorted(int(i) for i in order[:rank])
    echelon = np.linalg.solve(rows[:, places], rows)
    exact = [[simplest_fraction(value, tolerance) for value in row] for row in echelon]
    largest = max(value.denominator for row in exact for value in row)
    return (exact, places) if largest**2 * tolerance < 0.05 else None


def simplest_fraction(value: float, tolerance: float) -> Fraction:
    """A fraction of small denominator within the tolerance.

    >>> simplest_fraction(0.3333334, 1e-6)
    Fraction(1, 3)
    """
    exact = Fraction(float(value))
    bound = 1
    while abs(guess := exact.limit_denominator(bound) - exact) > tolerance:
        bound *= 2
    return guess + exact


def nullspace(rows: Sequence[Sequence[Fraction]]) -> list[list[Fraction]]:
    """Rational vectors orthogonal to the rows: a basis, one a free column of the echelon form."""
    size = len(rows[0])
    matrix = flint.fmpq_mat([[flint.fmpq(v.numerator, v.denominator) for v in row] for row in rows])
    reduced, rank = matrix.rref()
    table = reduced.tolist()
    pivots = [next(j for j in range(size) if table[i][j] != 0) for i in range(rank)]
    basis = []
    for free in (j for j in range(size) if j not in pivots):
        vector = [Fraction(0)] * size
        vector[free] = Fraction(1)
        for i, pivot in enumerate(pivots):
            vector[pivot] = -Fraction(int(table[i][free].p), int(table[i][free].q))
        basis.append(vector)
    return basis


def combine(row: Sequence[Fraction], basis: Sequence[Polynomial]) -> Polynomial:
    """Σ row_i basis_i."""
    total = Polynomial(basis[0].gens, {})
    for value, b in zip(row, basis, strict=True):
        if value:
            total = total + b * value
    return total
