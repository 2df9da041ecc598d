"""Which monomials can occur in a sum of squares, and how their Gram matrix falls apart into blocks.

For p = Σ q_k², every monomial of every q_k lies in half the Newton polytope of p (Reznick 1978). Two further
facts are used: a monomial m whose square is no term of p and no product of two other basis members has a zero
diagonal entry in every Gram matrix, hence a zero row, and is dropped; and if p does not change when the signs of
some variables are flipped, monomials of different parity need not meet, so the Gram matrix can be taken
block-diagonal (Löfberg 2009).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import numpy as np
from scipy.optimize import linprog

from assay.science.sos_prover.polynomials import Exponents, Polynomial

__all__ = ["half_newton_basis", "monomials_up_to", "parity_blocks"]

MAX_BASIS = 2_000


class BasisTooLarge(Exception):
    """More basis monomials than a Gram matrix is worth: `size` of them."""

    def __init__(self, size: int) -> None:
        super().__init__(f"{size} basis monomials")
        self.size = size


def half_newton_basis(p: Polynomial) -> list[Exponents]:
    """Monomials that a square in a sum-of-squares representation of p may contain, graded order.

    Raises `BasisTooLarge` before any work when half the degrees of p allow more than 2,000 monomials that the
    polytope does not exclude at once.

    >>> motzkin = Polynomial(("x", "y"), {(4, 2): 1, (2, 4): 1, (0, 0): 1, (2, 2): -3})
    >>> half_newton_basis(motzkin)
    [(0, 0), (1, 1), (1, 2), (2, 1)]
    """
    support = list(p.terms)
    if not support:
        return []
    return sorted(_consistent(_in_half_polytope(support), set(support)), key=lambda m: (sum(m), m))


def monomials_up_to(n: int, degree: int) -> list[Exponents]:
    """All monomials in n variables of at most that degree, graded order."""
    size = math.comb(n + degree, n)
    if size > MAX_BASIS:
        raise BasisTooLarge(size)
    return [m for total in range(degree + 1) for m in sorted(_of_degree(n, total))]


def parity_blocks(basis: Sequence[Exponents], support: Iterable[Exponents]) -> list[list[Exponents]]:
    """Split the basis by the sign flips under which every monomial of the support stays as it is.

    >>> parity_blocks([(0, 0), (1, 1), (1, 2), (2, 1)], [(4, 2), (2, 4), (0, 0), (2, 2)])
    [[(0, 0)], [(1, 1)], [(1, 2)], [(2, 1)]]
    """
    flips = _sign_symmetries(list(support), len(basis[0]) if basis else 0)
    blocks: dict[tuple[int, ...], list[Exponents]] = {}
    for m in basis:
        character = tuple(sum(a * b for a, b in zip(flip, m, strict=True)) % 2 for flip in flips)
        blocks.setdefault(character, []).append(m)
    return list(blocks.values())


def _in_half_polytope(support: list[Exponents]) -> list[Exponents]:
    points = np.array(support)
    candidates = _candidates(points)
    if not len(candidates):
        return []
    directions = np.vstack([
        np.eye(points.shape[1]), np.ones(points.shape[1]),
        np.random.default_rng(0).standard_normal((60, points.shape[1])),
    ])
    reach, wanted = points @ directions.T, 2 * candidates @ directions.T
    inside = ((wanted <= reach.max(axis=0) + 1e-9) & (wanted >= reach.min(axis=0) - 1e-9)).all(axis=1)
    if inside.sum() > MAX_BASIS:
        raise BasisTooLarge(int(inside.sum()))
    known = set(support)
    return [tuple(map(int, m)) for m in candidates[inside] if _is_inside(2 * m, points, known)]


def _candidates(points: np.ndarray) -> np.ndarray:
    """Monomials within half the degree bounds of the support, variable by variable and in total."""
    n = points.shape[1]
    totals = points.sum(axis=1)
    low, high = -(-int(totals.min()) // 2), int(totals.max()) // 2
    size = math.comb(high + n, n)
    if size > 200 * MAX_BASIS:
        raise BasisTooLarge(size)
    top, bottom = points.max(axis=0) // 2, -(-points.min(axis=0) // 2)
    found = [m for total in range(low, high + 1) for m in _of_degree(n, total, tuple(top), tuple(bottom))]
    return np.array(found, dtype=int).reshape(len(found), n)


def _of_degree(
    n: int, degree: int, top: tuple[int, ...] | None = None, bottom: tuple[int, ...] | None = None
) -> list[Exponents]:
    top, bottom = top or (degree,) * n, bottom or (0,) * n
    if n == 0:
        return [()] if degree == 0 else []
    found = []
    for first in range(bottom[0], min(degree, top[0]) + 1):
        found += [(first, *rest) for rest in _of_degree(n - 1, degree - first, top[1:] or None, bottom[1:] or None)]
    return found


def _is_inside(target: np.ndarray, points: np.ndarray, known: set[Exponents]) -> bool:
    """Whether a lattice point is a convex combination of the support."""
    if tuple(map(int, target)) in known:
        return True
    reflected = 2 * target - points
    if any(tuple(map(int, row)) in known for row in reflected):
        return True
    equalities = np.vstack([points.T, np.ones(len(points))])
    answer = linprog(
        np.zeros(len(points)), A_eq=equalities, b_eq=[*target, 1.0], bounds=(0, None), method="highs"
    )
    return answer.status == 0


def _consistent(basis: Collection[Exponents], support: set[Exponents]) -> list[Exponents]:
    """Drop, until nothing changes, each m whose square is no term of p and no other product of the basis."""
    kept = list(basis)
    while True:
        products = Counter(_add(a, b) for a, b in itertools.combinations(kept, 2))
        left = [m for m in kept if _add(m, m) in support or products[_add(m, m)]]
        if len(left) == len(kept):
            return kept
        kept = left


def _add(a: Exponents, b: Exponents) -> Exponents:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def _sign_symmetries(support: list[Exponents], n: int) -> list[tuple[int, ...]]:
    """A basis over GF(2) of the flips s with s·m even for every m of the support."""
    rows: list[int] = []
    for m in support:
        word = sum((e & 1) << i for i, e in enumerate(m))
        for row in rows:
            word = min(word, word ^ row)
        if word:
            rows = [min(row, row ^ word) if row >> (word.bit_length() - 1) & 1 else row for row in rows] + [word]
    pivots = {row.bit_length() - 1: row for row in rows}
    flips = []
    for free in (i for i in range(n) if i not in pivots):
        flip = {free} | {pivot for pivot, row in pivots.items() if row >> free & 1}
        flips.append(tuple(int(i in flip) for i in range(n)))
    return flips
