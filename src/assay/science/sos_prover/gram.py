"""The linear equations that say "these Gram matrices represent p".

A representation is p·σ = Σ_j g_j · b_jᵀ Q_j b_j with positive semidefinite Q_j, where g_0 = 1 and the other g_j
are constraints, and b_j is a vector of polynomials: monomials at first, fewer and longer ones after facial
reduction. Comparing coefficients gives one linear equation a monomial in the entries of the Q_j.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from assay.science.sos_prover.basis import parity_blocks
from assay.science.sos_prover.polynomials import Exponents, Polynomial

__all__ = ["Block", "GramProblem"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Block:
    """One Gram matrix: the polynomials that it is taken over, the constraint that multiplies it, by index."""

    basis: tuple[Polynomial, ...]
    constraint: int = 0

    @property
    def size(self) -> int:
        return len(self.basis)


@dataclass(frozen=True)
class GramProblem:
    """Find positive semidefinite Q_j with target = Σ_j g_j b_jᵀ Q_j b_j.

    Attributes
    ----------
    target : Polynomial
    constraints : tuple of Polynomial
        The g_j; the first is 1.
    blocks : tuple of Block
    """

    target: Polynomial
    constraints: tuple[Polynomial, ...]
    blocks: tuple[Block, ...]

    @classmethod
    def from_monomials(
        cls, target: Polynomial, bases: Sequence[Sequence[Exponents]], constraints: Sequence[Polynomial] = ()
    ) -> GramProblem:
        """Monomial bases, one for 1 and one a constraint, each split by the sign symmetries of all polynomials."""
        gens = target.gens
        weights = (Polynomial.constant(gens, 1), *constraints)
        support = [m for p in (target, *constraints) for m in p.terms]
        blocks = [
            Block(tuple(Polynomial(gens, {m: Fraction(1)}) for m in part), j)
            for j, basis in enumerate(bases)
            for part in parity_blocks(basis, support)
        ]
        return cls(target, weights, tuple(blocks))

    def restricted(self, bases: Sequence[Sequence[Polynomial]]) -> GramProblem:
        """The same problem over other bases, one a block; empty ones are left out."""
        blocks = [
            Block(tuple(basis), block.constraint) for basis, block in zip(bases, self.blocks, strict=True) if basis
        ]
        return GramProblem(self.target, self.constraints, tuple(blocks))

    @property
    def sizes(self) -> list[int]:
        return [block.size for block in self.blocks]

    @cached_property
    def columns(self) -> list[dict[tuple[int, int], dict[Exponents, Fraction]]]:
        """For each block and each pair i <= j the coefficients of g b_i b_j: exact, sparse."""
        return [
            {
                (i, j): _product(block.basis[i], block.basis[j], self.constraints[block.constraint])
                for i in range(block.size)
                for j in range(i, block.size)
            }
            for block in self.blocks
        ]

    @cached_property
    def monomials(self) -> list[Exponents]:
        """Every monomial that a product or the target has: one equation each."""
        found = dict.fromkeys(self.target.terms)
        for block in self.columns:
            for column in block.values():
                found.update(dict.fromkeys(column))
        return list(found)

    @cached_property
    def index(self) -> dict[Exponents, int]:
        return {m: row for row, m in enumerate(self.monomials)}

    @cached_property
    def unreachable(self) -> list[Exponents]:
        """Monomials of the target that no product gives: then there is no representation."""
        reached = {m for block in self.columns for column in block.values() for m in column}
        return [m for m in self.target.terms if m not in reached]

    @cached_property
    def scale(self) -> float:
        """The largest coefficient of the target: numerics work on target / scale."""
        return max((abs(float(c)) for c in self.target.terms.values()), default=1.0)

    @cached_property
    def rhs(self) -> Array:
        """Coefficients of target / scale, one a monomial."""
        values = np.zeros(len(self.monomials))
        for m, c in self.target.terms.items():
            values[self.index[m]] = float(c) / self.scale
        return values

    @cached_property
    def maps(self) -> list[sp.csr_array]:
        """For each block the map from vec(Q) (row-major, all entries) to coefficients: sparse, symmetric in i, j."""
        return [self._map(block, columns) for block, columns in zip(self.blocks, self.columns, strict=True)]

    def _map(self, block: Block, columns: dict[tuple[int, int], dict[Exponents, Fraction]]) -> sp.csr_array:
        rows, places, values = [], [], []
        for (i, j), column in columns.items():
            for m, c in column.items():
                for a, b in {(i, j), (j, i)}:
                    rows.append(self.index[m])
                    places.append(a * block.size + b)
                    values.append(float(c))
        return sp.csr_array((values, (rows, places)), shape=(len(self.monomials), block.size**2))

    def residual(self, grams: Sequence[Array]) -> Array:
        """Σ_j A_j(Q_j) - rhs."""
        return sum((a @ q.ravel() for a, q in zip(self.maps, grams, strict=True)), -self.rhs)


def _product(a: Polynomial, b: Polynomial, weight: Polynomial) -> dict[Exponents, Fraction]:
    total: dict[Exponents, Fraction] = {}
    for m, c in a.terms.items():
        for k, d in b.terms.items():
            for w, e in weight.terms.items():
                exponents = tuple(map(sum, zip(m, k, w, strict=True)))
                total[exponents] = total.get(exponents, Fraction(0)) + c * d * e
    return {m: c for m, c in total.items() if c}
