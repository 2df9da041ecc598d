"""Polynomials that are sums of squares by construction: the regime of the paper (3 to 10 variables, degree 4).

The own benchmark of the paper (arXiv 2605.15445) is not public. As reconstructed here, an instance is a sum of n
squares of quadratics with four terms each and integer coefficients in -3..3 ("boundary": most have singular Gram
matrices only); "interior" adds Σ x_i⁴ + Σ x_i² + 1, so that a positive definite Gram matrix exists.
"""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np

from assay.errors import InputError
from assay.science.sos_prover.polynomials import Exponents, Polynomial, weighted_square_sum

__all__ = ["KINDS", "generate"]

KINDS = ("boundary", "interior")


def generate(n: int, kind: str = "boundary", seed: int = 0) -> tuple[Polynomial, list[Polynomial]]:
    """A random sum of squares in n variables of degree 4, and the quadratics that it was made of.

    Parameters
    ----------
    n : int
        Variables, 1 or more.
    kind : {"boundary", "interior"}
    seed : int

    Returns
    -------
    tuple of Polynomial and list of Polynomial
        p and the q_k with p = Σ q_k².

    Examples
    --------
    >>> p, squares = generate(3, "boundary", seed=1)
    >>> p.degree, len(squares)
    (4, 3)
    """
    if n < 1:
        raise InputError(f"n must be 1 or more, got {n}")
    if kind not in KINDS:
        raise InputError(f"kind must be boundary or interior, got {kind!r}")
    rng = np.random.default_rng([seed, n, KINDS.index(kind)])
    gens = tuple(f"x{i + 1}" for i in range(n))
    quadratic = [_product(n, places) for degree in range(3) for places in _places(n, degree)]
    squares = [_quadratic(gens, quadratic, rng) for _ in range(n)]
    if kind == "interior":
        squares += [Polynomial(gens, {m: Fraction(1)}) for m in _interior_monomials(n)]
    return weighted_square_sum([Fraction(1)] * len(squares), squares, gens), squares


def _quadratic(gens: tuple[str, ...], monomials: list[Exponents], rng: np.random.Generator) -> Polynomial:
    while True:
        chosen = rng.choice(len(monomials), size=min(4, len(monomials)), replace=False)
        coefficients = rng.integers(1, 4, len(chosen)) * rng.choice([-1, 1], len(chosen))
        q = Polynomial(gens, {monomials[i]: Fraction(int(c)) for i, c in zip(chosen, coefficients, strict=True)})
        if q.degree == 2:
            return q


def _places(n: int, degree: int) -> list[tuple[int, ...]]:
    return list(itertools.combinations_with_replacement(range(n), degree))


def _product(n: int, places: tuple[int, ...]) -> Exponents:
    return tuple(places.count(i) for i in range(n))


def _interior_monomials(n: int) -> list[Exponents]:
    return [_product(n, (i,) * k) for k in (2, 1) for i in range(n)] + [(0,) * n]
