"""Exact linear algebra for Gram matrices: the affine set that they form, and LDLᵀ with a proof of semidefiniteness.

`AffineGrams` turns approximate Gram matrices into exact ones. Over monomials without constraints each matrix
entry occurs in one equation, and the exact projection onto {Q : bᵀQb = p} is a division per monomial. Otherwise
one exact elimination expresses some entries by the others, which are then rounded freely.

`factor` decides semidefiniteness by fraction-free elimination (flint), never by a float. A pivot of zero is
allowed only with a row of zeros, which holds exactly when the rank-revealing principal submatrix reproduces Q.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import gcd, lcm
from typing import Any

import numpy as np

from assay.science.sos_prover.gram import Array, GramProblem
from assay.science.sos_prover.polynomials import Exponents, flint

__all__ = ["DENOMINATORS", "AffineGrams", "factor"]

DENOMINATORS = (1, 2, 3, 4, 6, 12, 24, 60, 120, 360, *(2**b for b in (12, 16, 24, 32, 48, 64)))
"""Tried in turn: readable proofs first, then powers of two."""

Entries = dict[tuple[int, int], Fraction]


class AffineGrams:
    """All exact Gram matrices of a problem, semidefinite or not.

    Attributes
    ----------
    consistent : bool
        Whether there is any: the linear equations have a solution.
    """

    def __init__(self, problem: GramProblem) -> None:
        self.problem = problem
        self.keys = [(j, i, k) for j, columns in enumerate(problem.columns) for i, k in columns]
        self.separate = all(len(column) == 1 for columns in problem.columns for column in columns.values())
        if self.separate:
            self.consistent = not problem.unreachable
        else:
            self._eliminate()

    @property
    def free(self) -> int:
        """Dimension of the affine set."""
        if self.separate:
            return len(self.keys) - len(self.problem.monomials)
        return len(self.keys) - len(self.pivots)

    def round(self, grams: Sequence[Array], denominator: int) -> list[Entries]:
        """Exact Gram matrices near approximate ones (of target / scale), by rounding to that denominator.

        Upper triangles of Gram matrices of the target itself, one a block.
        """
        scale = self.problem.scale
        rounded = [
            Fraction(round(float(grams[j][i, k]) * scale * denominator), denominator) for j, i, k in self.keys
        ]
        return self._unpack(self._project(rounded) if self.separate else self._solve(rounded))

    def _project(self, values: list[Fraction]) -> list[Fraction]:
        """The nearest solution: each equation's error is shared by its entries, an off-diagonal one counting twice."""
        counts = [len({i, k}) for _, i, k in self.keys]
        groups: dict[Exponents, list[int]] = {}
        for place, (j, i, k) in enumerate(self.keys):
            ((m, c),) = self.problem.columns[j][i, k].items()
            if c != 1:
                raise ArithmeticError("monomial bases have coefficient 1")
            groups.setdefault(m, []).append(place)
        result = list(values)
        for m, places in groups.items():
            wanted = self.problem.target.terms.get(m, Fraction(0))
            error = wanted - sum(counts[place] * values[place] for place in places)
            if error:
                share = error / sum(counts[place] for place in places)
                for place in places:
                    result[place] = values[place] + share
        return result

    def _eliminate(self) -> None:
        """Reduced row echelon form of the equations; the unknown on a pivot follows from the free ones."""
        rows: list[list[Any]] = [[0] * (len(self.keys) + 1) for _ in self.problem.monomials]
        index = self.problem.index
        for place, (j, i, k) in enumerate(self.keys):
            for m, c in self.problem.columns[j][i, k].items():
                rows[index[m]][place] = _fmpq(c * len({i, k}))
        for m, c in self.problem.target.terms.items():
            rows[index[m]][-1] = _fmpq(c)
        reduced, rank = flint.fmpq_mat(rows).rref() if rows else (flint.fmpq_mat(0, 1), 0)
        table = reduced.tolist()
        self.pivots: list[int] = []
        self.dependence: list[dict[int, Fraction]] = []
        for row in table[:rank]:
            entries = {place: _fraction(value) for place, value in enumerate(row) if value != 0}
            pivot = min(entries)
            self.pivots.append(pivot)
            self.dependence.append({place: value for place, value in entries.items() if place != pivot})
        self.consistent = len(self.keys) not in self.pivots

    def _solve(self, values: list[Fraction]) -> list[Fraction]:
        constant = len(self.keys)
        result = list(values)
        for pivot, row in zip(self.pivots, self.dependence, strict=True):
            result[pivot] = row.get(constant, Fraction(0)) - sum(
                value * values[place] for place, value in row.items() if place != constant
            )
        return result

    def _unpack(self, values: Sequence[Fraction]) -> list[Entries]:
        grams: list[Entries] = [{} for _ in self.problem.blocks]
        for (j, i, k), value in zip(self.keys, values, strict=True):
            grams[j][i, k] = value
        return grams


def factor(gram: Entries, size: int) -> list[tuple[Fraction, list[Fraction]]] | None:
    """Q = Σ_k w_k u_k u_kᵀ with w_k > 0, or None when Q is not positive semidefinite: exact.

    Parameters
    ----------
    gram : dict of (i, j) with i <= j to Fraction
    size : int

    Returns
    -------
    list of (Fraction, list of Fraction) or None
        As many terms as the rank of Q.

    Examples
    --------
    >>> one = Fraction(1)
    >>> factor({(0, 0): one, (0, 1): -one, (1, 1): one}, 2)
    [(Fraction(1, 1), [Fraction(1, 1), Fraction(-1, 1)])]
    >>> factor({(0, 0): 0 * one, (0, 1): one, (1, 1): one}, 2) is None
    True
    >>> factor({(0, 0): -one / 10**30, (0, 1): 0 * one, (1, 1): one}, 2) is None
    True
    """
    common = lcm(*(value.denominator for value in gram.values()), 1)
    integers = flint.fmpz_mat(size, size)
    for (i, j), value in gram.items():
        integers[i, j] = integers[j, i] = value.numerator * (common // value.denominator)
    upper = _elimination(integers)
    if upper is not None:
        return _terms(upper, upper, common)
    echelon, denominator, rank = integers.rref()
    if rank == 0:
        return []
    if rank == size:
        return None
    rows = flint.fmpz_mat([[echelon[i, j] for j in range(size)] for i in range(rank)])
    pivots = [next(j for j in range(size) if rows[i, j] != 0) for i in range(rank)]
    upper = _elimination(flint.fmpz_mat([[integers[i, j] for j in pivots] for i in pivots]))
    return None if upper is None else _terms(upper, upper * rows, common * int(denominator) ** 2)


def _elimination(matrix: flint.fmpz_mat) -> flint.fmpz_mat | None:
    """The upper triangle of Bareiss' fraction-free elimination, or None unless every leading minor is positive.

    Its diagonal holds the leading minors; a row exchange means that one of them was zero.
    """
    exchange, _, _, upper = matrix.fflu()
    size = matrix.nrows()
    if all(exchange[k, k] == 1 and upper[k, k] > 0 for k in range(size)):
        return upper
    return None


def _terms(
    upper: flint.fmpz_mat, rows: flint.fmpz_mat, common: int
) -> list[tuple[Fraction, list[Fraction]]]:
    """Row k contributes (row · b)² / (minor_k minor_{k-1} common); common factors move into the weight."""
    terms = []
    previous = 1
    for k in range(upper.nrows()):
        minor = int(upper[k, k])
        row = [int(rows[k, j]) for j in range(rows.ncols())]
        content = gcd(*row)
        terms.append((Fraction(content**2, minor * previous * common), [Fraction(value // content) for value in row]))
        previous = minor
    return terms


def positive_definite(grams: Sequence[Array]) -> bool:
    """A quick look in floats, to spare the exact test on hopeless candidates."""
    return all(np.linalg.eigvalsh(gram).min(initial=1.0) > -1e-9 * np.abs(gram).max(initial=1.0) for gram in grams)


def _fmpq(value: Fraction) -> flint.fmpq:
    return flint.fmpq(value.numerator, value.denominator)


def _fraction(value: flint.fmpq) -> Fraction:
    return Fraction(int(value.p), int(value.q))
