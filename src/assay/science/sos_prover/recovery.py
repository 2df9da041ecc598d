"""From approximate Gram matrices to exact weighted squares: the interior route, and the boundary route around it.

**Interior.** If some Gram matrix is positive definite, rounding its entries and repairing the linear equations
exactly keeps it so once the rounding is finer than its smallest eigenvalue (Peyrl and Parrilo 2008). Small
denominators are tried first: most hand-made inequalities have a readable proof.

**Boundary.** Otherwise the problem is restricted to a guessed face (`assay.science.sos_prover.faces`) and solved
there, by the same two routes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd, lcm

import numpy as np

from assay.science.sos_prover.exact import DENOMINATORS, AffineGrams, Entries, factor
from assay.science.sos_prover.faces import combine, guess_faces
from assay.science.sos_prover.gram import Array, GramProblem
from assay.science.sos_prover.polynomials import Polynomial

__all__ = ["Recovery", "Term", "round_grams"]

MAX_DEPTH = 5

Centre = Callable[[GramProblem], "list[Array] | None"]


@dataclass(frozen=True)
class Term:
    """weight · g_constraint · square², with weight > 0."""

    constraint: int
    weight: Fraction
    square: Polynomial


@dataclass
class Recovery:
    """Exact recovery with a budget.

    Attributes
    ----------
    centre : callable
        Gives approximate Gram matrices of a restricted problem, as central as it can, or None if there are none.
    deadline : float
        `time.monotonic()` after which no further guess is begun.
    faces_tried : int
        How many restricted problems were looked at.
    """

    centre: Centre
    deadline: float = float("inf")
    faces_tried: int = field(default=0, init=False)

    def terms(self, problem: GramProblem, grams: Sequence[Array], *, depth: int = 0) -> list[Term] | None:
        """Exact weighted squares from approximate Gram matrices of target / scale, or None."""
        affine = AffineGrams(problem)
        if not affine.consistent:
            return None
        terms = round_grams(affine, grams)
        if terms is not None or depth == MAX_DEPTH:
            return terms
        for face in guess_faces(problem, grams, self.deadline):
            if time.monotonic() > self.deadline:
                return None
            self.faces_tried += 1
            terms = self._on_face(face.problem, face.grams, depth + 1)
            if terms is not None:
                return terms
        return None

    def _on_face(self, problem: GramProblem, grams: list[Array] | None, depth: int) -> list[Term] | None:
        affine = AffineGrams(problem)
        if not affine.consistent:
            return None
        if grams is not None:
            terms = round_grams(affine, grams)
            if terms is not None or affine.free == 0:
                return terms
        centre = self.centre(problem)
        return None if centre is None else self.terms(problem, centre, depth=depth)


def round_grams(
    affine: AffineGrams, grams: Sequence[Array], denominators: Sequence[int] = DENOMINATORS
) -> list[Term] | None:
    """The interior route: round, repair the equations exactly, test semidefiniteness exactly."""
    problem = affine.problem
    for denominator in denominators if affine.free else denominators[:1]:
        exact = affine.round(grams, denominator)
        if not all(map(_looks_semidefinite, exact, problem.sizes)):
            continue
        factors = [factor(gram, size) for gram, size in zip(exact, problem.sizes, strict=True)]
        if all(f is not None for f in factors):
            return [
                _term(block.constraint, weight, combine(row, block.basis))
                for block, squares in zip(problem.blocks, factors, strict=True)
                for weight, row in squares or ()
            ]
    return None


def _looks_semidefinite(gram: Entries, size: int) -> bool:
    """A look in floats, to spare the exact test on hopeless candidates."""
    dense = np.zeros((size, size))
    for (i, j), value in gram.items():
        dense[i, j] = dense[j, i] = float(value)
    return bool(np.linalg.eigvalsh(dense)[0] > -1e-9 * max(1e-300, np.abs(dense).max()))


def _term(constraint: int, weight: Fraction, q: Polynomial) -> Term:
    """Move the content of q into the weight: q has coprime integer coefficients, its leading one positive."""
    common = lcm(*(c.denominator for c in q.terms.values()))
    content = Fraction(gcd(*(int(c * common) for c in q.terms.values())), common)
    if q.terms[max(q.terms, key=lambda m: (sum(m), m))] < 0:
        content = -content
    return Term(constraint, weight * content**2, q / content)
