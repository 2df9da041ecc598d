"""Looking for a rational point at which p is negative.

Two searches. A vertex of the Newton polytope decides the sign of p far out in one direction: an odd exponent or a
negative coefficient there gives a point by scaling, for every polynomial of odd degree among others. Otherwise
minimisation from many starts; a minimiser with p < 0 is rounded, coarsely at first, and evaluated exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
from scipy.optimize import linprog, minimize

from assay.science.sos_prover.gram import Array
from assay.science.sos_prover.polynomials import Exponents, Polynomial
from assay.science.sos_prover.zeros import FloatPolynomial

__all__ = ["negative_at_vertex", "negative_point"]

Point = tuple[Fraction, ...]
STARTS = 200
DRAWS = 32


def negative_at_vertex(p: Polynomial) -> tuple[Point, Fraction] | None:
    """A point far out where a bad vertex of the Newton polytope makes p negative, or None.

    >>> negative_at_vertex(Polynomial(("x",), {(3,): Fraction(1), (0,): Fraction(5)}))
    ((Fraction(-2, 1),), Fraction(-3, 1))
    """
    support = np.array(list(p.terms)).reshape(len(p.terms), len(p.gens))
    for place, (m, c) in enumerate(p.terms.items()):
        if c > 0 and all(e % 2 == 0 for e in m):
            continue
        direction = _exposing(support, place)
        if direction is None:
            continue
        signs = [1] * len(m)
        if c > 0:
            signs[next(i for i, e in enumerate(m) if e % 2)] = -1
        for k in range(1, 60):
            point = tuple(s * Fraction(2) ** (k * int(a)) for s, a in zip(signs, direction, strict=True))
            value = p.at(point)
            if value < 0:
                return point, value
    return None


def _exposing(support: np.ndarray, place: int) -> np.ndarray | None:
    """A small integer direction in which the exponent at `place` is the only farthest one, if it is a vertex."""
    others = support[place] - np.delete(support, place, axis=0)
    n = support.shape[1]
    if not len(others):
        return np.ones(n, dtype=int)
    # maximise s with others · a >= s, |a| <= 1
    answer = linprog(
        [*np.zeros(n), -1.0], A_ub=np.column_stack([-others, np.ones(len(others))]), b_ub=np.zeros(len(others)),
        bounds=[*[(-1.0, 1.0)] * n, (0.0, None)], method="highs",
    )
    if answer.status != 0 or answer.x[-1] < 1e-7:
        return None
    for size in range(1, 13):
        direction = np.rint(size * answer.x[:n]).astype(int)
        if (others @ direction > 0).all():
            return direction
    return None


def negative_point(
    p: Polynomial, constraints: Sequence[Polynomial] = (), *, starts: int = STARTS, seed: int = 0,
    hints: Sequence[Array] = (),
) -> tuple[Point, Fraction] | None:
    """A rational point with p < 0 and every constraint nonnegative, with the exact value, or None.

    Parameters
    ----------
    starts : int
        Minimisations begun; `hints` come first.
    hints : sequence of array
        Points to begin from, the first moments of an SDP's dual solution say.
    """
    f = FloatPolynomial(p)
    limits = [FloatPolynomial(g) for g in constraints]
    rng = np.random.default_rng(seed)
    for start in _starts(rng, f, hints, starts):
        for candidate in _descend(f, limits, start):
            if f(candidate) < 1e-9 * max(1.0, float(np.abs(candidate).max())) ** p.degree:
                found = _rounded(p, constraints, candidate)
                if found is not None:
                    return found
    return None


def _starts(rng: np.random.Generator, f: FloatPolynomial, hints: Sequence[Array], count: int) -> Iterator[Array]:
    """The hints, then the lowest of a handful of random points each."""
    yield from (np.asarray(h, dtype=float) for h in hints if np.isfinite(h).all())
    for _ in range(count):
        points = rng.standard_normal((DRAWS, f.n)) * rng.choice([0.3, 1.0, 3.0], size=(DRAWS, 1))
        yield points[np.argmin(f.many(points))]


def _descend(f: FloatPolynomial, limits: Sequence[FloatPolynomial], start: Array) -> Iterator[Array]:
    """Local minimisers in growing boxes; the smallest box keeps points of forms readable."""
    with np.errstate(all="ignore"):
        if limits:
            rules = [
                {"type": "ineq", "fun": g, "jac": lambda x, g=g: g.with_gradient(x)[1]} for g in limits
            ]
            answer = minimize(f.with_gradient, start, jac=True, method="SLSQP", constraints=rules,
                              options={"ftol": 1e-14, "maxiter": 200})
        else:
            answer = minimize(f.with_gradient, start, jac=True, method="L-BFGS-B", bounds=[(-100.0, 100.0)] * f.n,
                              options={"ftol": 1e-18, "gtol": 1e-12, "maxiter": 300})
    if np.isfinite(answer.x).all():
        yield answer.x


def _rounded(p: Polynomial, constraints: Sequence[Polynomial], x: Array) -> tuple[Point, Fraction] | None:
    for denominator in (1, 2, 4, 10, 100, 10**4, 10**6, 10**9, 10**12):
        point = tuple(Fraction(round(float(v) * denominator), denominator) for v in x)
        value = p.at(point)
        if value < 0 and all(g.at(point) >= 0 for g in constraints):
            return point, value
    return None


def first_moments(gens: Sequence[str], index: dict[Exponents, int], y: Array) -> list[Array]:
    """The mean of the pseudo-distribution that an SDP's dual solution describes, if it has one."""
    n = len(gens)
    mass = index.get((0,) * n)
    places = [index.get(tuple(int(i == j) for j in range(n))) for i in range(n)]
    if mass is None or any(place is None for place in places) or abs(y[mass]) < 1e-9:
        return []
    return [np.array([y[place] / y[mass] for place in places if place is not None])]
