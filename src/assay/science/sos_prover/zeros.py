"""Real zeros of a nonnegative polynomial, to many digits: each one is a kernel vector of every Gram matrix.

If p(x*) = 0 and p = b(x)ᵀ Q b(x) with Q ⪰ 0, then Q b(x*) = 0. Minimisation from many starts finds the zeros;
an isolated one is a simple root of the gradient, so Newton's method in ball arithmetic (flint) gives as many digits
as are wanted. For a form the zeros are lines: the largest coordinate is set to one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize

from assay.science.sos_prover.gram import Array
from assay.science.sos_prover.polynomials import Polynomial, flint

__all__ = ["real_zeros", "sharpen"]

DIGITS = 120


def leading_form(p: Polynomial) -> Polynomial:
    """The terms of highest degree: its real zeros are the zeros of p at infinity."""
    return Polynomial(p.gens, {m: c for m, c in p.terms.items() if sum(m) == p.degree})


class FloatPolynomial:
    """Values and gradients of a polynomial in floats, for one point or many.

    Coefficients are divided by the largest one.
    """

    def __init__(self, p: Polynomial) -> None:
        self.exponents, coefficients = p.arrays()
        self.scale = np.abs(coefficients).max(initial=0.0) or 1.0
        self.coefficients = coefficients / self.scale
        self.n = len(p.gens)
        self.lowered = []
        for i in range(self.n):
            lower = self.exponents.copy()
            lower[:, i] = np.maximum(lower[:, i] - 1, 0)
            self.lowered.append((lower, self.coefficients * self.exponents[:, i]))

    def __call__(self, x: Array) -> float:
        return float(self.coefficients @ np.prod(x**self.exponents, axis=1))

    def many(self, points: Array) -> Array:
        """Values at points (number, variables)."""
        return np.prod(points[:, None, :] ** self.exponents, axis=2) @ self.coefficients

    def with_gradient(self, x: Array) -> tuple[float, Array]:
        gradient = np.array([c @ np.prod(x**e, axis=1) for e, c in self.lowered])
        return self(x), gradient


def real_zeros(
    p: Polynomial, *, hints: Sequence[Array] = (), starts: int = 60, seed: int = 0, limit: int = 40
) -> list[Array]:
    """Approximate real zeros of a polynomial that is nonnegative, different ones, at most `limit`.

    Forms are looked at on the hypercube's surface: the largest coordinate of a zero is one. The search begins at the
    hints.
    """
    if not p.gens or p.is_constant or (len(p.gens) == 1 and p.is_homogeneous):
        return []  # c·xᵈ has no zero where |x| = 1
    f = FloatPolynomial(p)
    rng = np.random.default_rng(seed)
    found: list[Array] = []
    drawn = (rng.standard_normal(f.n) * rng.choice([0.5, 1.0, 2.0]) for _ in range(starts))
    for start in (*hints, *drawn):
        x = _minimise(f, start, p.is_homogeneous)
        if x is None or abs(f(x)) > 1e-12 * max(1.0, float(np.abs(x).max())) ** p.degree:
            continue
        if all(np.abs(x - other).max() > 1e-4 for other in found):
            found.append(x)
        if len(found) == limit:
            break
    return found


def _minimise(f: FloatPolynomial, start: Array, homogeneous: bool) -> Array | None:
    if not homogeneous:
        answer = minimize(f.with_gradient, start, jac=True, method="L-BFGS-B",
                          options={"ftol": 1e-20, "gtol": 1e-13, "maxiter": 500})
        return answer.x if np.isfinite(answer.fun) and np.abs(answer.x).max() < 1e3 else None
    fixed = int(np.abs(start).argmax())
    rest = [i for i in range(f.n) if i != fixed]

    def on_face(y: Array) -> tuple[float, Array]:
        value, gradient = f.with_gradient(np.insert(y, fixed, 1.0))
        return value, gradient[rest]

    answer = minimize(on_face, start[rest] / start[fixed], jac=True, method="L-BFGS-B",
                      bounds=[(-1.0, 1.0)] * len(rest), options={"ftol": 1e-20, "gtol": 1e-13, "maxiter": 500})
    return np.insert(answer.x, fixed, 1.0)


def sharpen(p: Polynomial, zero: Array, digits: int = DIGITS) -> list[flint.fmpq] | None:
    """An isolated zero to that many digits by Newton on the gradient, or None where the Hessian is singular."""
    moving = list(range(len(zero)))
    if p.is_homogeneous:
        moving.remove(int(np.abs(zero).argmax()))
    if not moving:
        return [flint.fmpq(round(float(v))) for v in zero]
    gradient = [_derivative(p, i) for i in moving]
    hessian = [[_derivative(g, i) for i in moving] for g in gradient]
    numeric = np.array([[_float_at(h, zero) for h in row] for row in hessian])
    if np.linalg.cond(numeric) > 1e10:
        return None
    precision = flint.ctx.prec
    flint.ctx.prec = int(digits * 3.4) + 64
    try:
        return _newton(gradient, hessian, zero, moving, digits)
    except ZeroDivisionError:
        return None
    finally:
        flint.ctx.prec = precision


def _newton(
    gradient: Sequence[Polynomial], hessian: Sequence[Sequence[Polynomial]], zero: Array, moving: Sequence[int],
    digits: int,
) -> list[flint.fmpq] | None:
    x = [flint.arb(float(v)) for v in zero]
    for _ in range(14):
        slope = flint.arb_mat([[_arb_at(h, x) for h in row] for row in hessian])
        value = flint.arb_mat([[_arb_at(g, x)] for g in gradient])
        step = slope.solve(value)
        for row, i in enumerate(moving):
            x[i] = (x[i] - step[row, 0]).mid()
        if max(float(abs(step[row, 0].mid())) for row in range(len(moving))) < 10.0 ** (-digits / 2 - 3):
            return [_rational(v) for v in x]
    return None


def _derivative(p: Polynomial, i: int) -> Polynomial:
    terms = {(*m[:i], m[i] - 1, *m[i + 1 :]): c * m[i] for m, c in p.terms.items() if m[i]}
    return Polynomial(p.gens, terms)


def _float_at(p: Polynomial, x: Array) -> float:
    exponents, coefficients = p.arrays()
    return float(coefficients @ np.prod(x**exponents, axis=1)) if len(coefficients) else 0.0


def _arb_at(p: Polynomial, x: Sequence[flint.arb]) -> flint.arb:
    total = flint.arb(0)
    for m, c in p.terms.items():
        value = flint.arb(flint.fmpq(c.numerator, c.denominator))
        for v, e in zip(x, m, strict=True):
            if e:
                value *= v**e
        total += value
    return total


def _rational(value: flint.arb) -> flint.fmpq:
    mantissa, exponent = value.mid().man_exp()
    power = flint.fmpz(2) ** abs(int(exponent))
    return flint.fmpq(mantissa * power) if exponent >= 0 else flint.fmpq(mantissa, power)
