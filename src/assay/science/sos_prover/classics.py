"""Classic polynomial inequalities, exact, each with where it comes from (a list of ours: reconstructed).

An inequality for nonnegative a, b, c is stated here for squares: a, b, c stand for x², y², z², so that every entry
reads p ≥ 0 on all of real space (or on a set, where constraints are given). `kind` is what certificate the theory
promises: "sos" where p itself is a sum of squares, "ratio" where it is not and a multiplier is needed, "putinar" on
a set. Most have equality cases, hence singular Gram matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.errors import InputError, nearest
from assay.science.sos_prover.polynomials import Polynomial, as_polynomial

__all__ = ["CLASSICS", "QUICK", "Inequality", "classic"]


@dataclass(frozen=True)
class Inequality:
    """p ≥ 0; `of_squares` says that each variable of `text` stands for its square."""

    name: str
    text: str
    source: str
    kind: str = "sos"
    of_squares: bool = False
    constraints: tuple[str, ...] = ()

    @property
    def polynomial(self) -> Polynomial:
        p = as_polynomial(self.text)
        return Polynomial(p.gens, {tuple(2 * e for e in m): c for m, c in p.terms.items()}) if self.of_squares else p

    @property
    def gens(self) -> tuple[str, ...]:
        return self.polynomial.gens


def classic(name: str) -> Inequality:
    """The classic inequality of that name.

    Parameters
    ----------
    name : str
        One of those in `CLASSICS`.

    Returns
    -------
    Inequality

    Examples
    --------
    >>> str(classic("motzkin").polynomial)
    'x^4*y^2 + x^2*y^4 - 3*x^2*y^2 + 1'
    """
    known = {inequality.name: inequality for inequality in CLASSICS}
    if name not in known:
        raise InputError(f"no classic inequality is called {name!r}{nearest(name, list(known))}")
    return known[name]


def _am_gm(n: int) -> Inequality:
    names = "abcdef"[:n]
    text = " + ".join(f"{v}^{n}" for v in names) + f" - {n}*" + "*".join(names)
    return Inequality(f"am-gm-{n}", text, "arithmetic and geometric means (Hurwitz 1891)", of_squares=True)


def _differences(n: int) -> Inequality:
    text = " + ".join(f"(x{i} - x{j})^2" for i in range(1, n + 1) for j in range(i + 1, n + 1))
    return Inequality(f"differences-{n}", text, "variance of n numbers: rank n - 1")


def _hilbert(n: int) -> Inequality:
    text = " + ".join(f"x{i}*x{j}/{i + j - 1}" for i in range(1, n + 1) for j in range(1, n + 1))
    return Inequality(f"hilbert-{n}", text, "Hilbert matrix, positive definite and badly conditioned (1894)")


CLASSICS: tuple[Inequality, ...] = (
    Inequality("parrilo", "2*x^4 + 5*y^4 - x^2*y^2 + 2*x^3*y", "Parrilo 2000, thesis, example 3.2"),
    Inequality("motzkin", "x^4*y^2 + x^2*y^4 + 1 - 3*x^2*y^2", "Motzkin 1967", "ratio"),
    Inequality("motzkin-form", "x^4*y^2 + x^2*y^4 + z^6 - 3*x^2*y^2*z^2", "Motzkin 1967, homogeneous", "ratio"),
    Inequality("robinson", "a^3 + b^3 + c^3 - a^2*b - a*b^2 - a^2*c - a*c^2 - b^2*c - b*c^2 + 3*a*b*c",
               "Robinson 1969; Schur's inequality of degree 1; IMO 1964/2, 2000/2", "ratio", True),
    Inequality("choi-lam", "a^2*b + b^2*c + c^2*a - 3*a*b*c", "Choi and Lam 1977", "ratio", True),
    Inequality("choi-lam-quartic", "w^4 + x^2*y^2 + y^2*z^2 + z^2*x^2 - 4*x*y*z*w", "Choi and Lam 1977", "ratio"),
    Inequality("berg", "x^2*y^2*(x^2 + y^2 - 1) + 1", "Berg, Christensen and Jensen 1979", "ratio"),
    Inequality("schur-0", "(a - b)*(a - c) + (b - a)*(b - c) + (c - a)*(c - b)", "Schur, exponent 0; IMO 1971/1"),
    Inequality("schur-2", "a^2*(a - b)*(a - c) + b^2*(b - a)*(b - c) + c^2*(c - a)*(c - b)", "Schur, exponent 2"),
    Inequality("schur-3", "a^3*(a - b)*(a - c) + b^3*(b - a)*(b - c) + c^3*(c - a)*(c - b)", "Schur, exponent 3",
               "ratio", True),
    Inequality("schur-3-ordered", "(c+u+v)^3*u*(u+v) - (c+v)^3*u*v + c^3*(u+v)*v",
               "Schur, exponent 3, with a = c + u + v and b = c + v", of_squares=True),
    Inequality("lax-lax", "a*b*c*d + a*(a-b)*(a-c)*(a-d) + b*(b-a)*(b-c)*(b-d) + c*(c-a)*(c-b)*(c-d)"
               " + d*(d-a)*(d-b)*(d-c)", "Lax and Lax 1978; IMO 1971/1, n = 5, moved so that the last number is 0",
               "ratio"),
    *map(_am_gm, range(2, 7)),
    *map(_differences, (3, 5, 8)),
    *map(_hilbert, (4, 6)),
    Inequality("cauchy-2", "(a^2 + b^2)*(c^2 + d^2) - (a*c + b*d)^2", "Lagrange's identity, n = 2"),
    Inequality("cauchy-3", "(a^2 + b^2 + c^2)*(d^2 + e^2 + f^2) - (a*d + b*e + c*f)^2", "Cauchy and Schwarz, n = 3"),
    Inequality("rump-2", "(p*r)^2 + (p*s + q*r)^2 + (q*s)^2 - 1/2*(p^2 + q^2)*(r^2 + s^2)",
               "Rump's model problem, n = 2: norm of a product of polynomials"),
    Inequality("lyapunov", "-(2*x*(-x - 2*y^2) + 4*y*(-y - x*y - 2*y^3))",
               "minus the derivative of V = x^2 + 2 y^2 along x' = -x - 2 y^2, y' = -y - x y - 2 y^3"),
    Inequality("lyapunov-cubic", "-(2*x*(-x^3 + y) + 2*y*(-x - y^3))",
               "minus the derivative of V = x^2 + y^2 along x' = -x^3 + y, y' = -x - y^3"),
    Inequality("lyapunov-linear", "-((2*x + y)*y + (x + 2*y)*(-x - 3*y))",
               "minus the derivative of V = x^2 + x y + y^2 along x' = y, y' = -x - 3 y"),
    Inequality("vasc", "(a^2 + b^2 + c^2)^2 - 3*(a^3*b + b^3*c + c^3*a)", "Cirtoaje 1992: irrational equality cases"),
    Inequality("tangent-line", "x^4 - 4*x + 3", "tangent of x^4 at 1"),
    Inequality("sqrt-2", "(x^2 - 2)^2", "irrational zeros, rational proof"),
    Inequality("cube-root", "(x^3 - 2)^2", "one real zero, of degree 3"),
    Inequality("sum-of-squares-3", "a^2 + b^2 + c^2 - a*b - b*c - c*a", "a² + b² + c² ≥ ab + bc + ca"),
    Inequality("nesbitt", "2*(a^3 + b^3 + c^3) - a^2*b - a*b^2 - a^2*c - a*c^2 - b^2*c - b*c^2", "Nesbitt 1903",
               of_squares=True),
    Inequality("imo-1961-2", "a^4 + b^4 + c^4 - a^2*b^2 - b^2*c^2 - c^2*a^2", "Weitzenböck 1919; IMO 1961/2"),
    Inequality("imo-1983-6", "a*b^3 + b*c^3 + c*a^3 - a*b*c*(a + b + c)", "IMO 1983/6 after Ravi's substitution",
               of_squares=True),
    Inequality("imo-1984-1-lower", "(a*b + b*c + c*a)*(a + b + c) - 2*a*b*c", "IMO 1984/1, homogeneous, lower bound",
               of_squares=True),
    Inequality("imo-1984-1-upper", "7*(a + b + c)^3 - 27*((a*b + b*c + c*a)*(a + b + c) - 2*a*b*c)",
               "IMO 1984/1, homogeneous, upper bound", "ratio", True),
    Inequality("imo-1995-2", "2*(a^2*(a + b)*(a + c) + b^2*(b + a)*(b + c) + c^2*(c + a)*(c + b))"
               " - (a + b + c)*(a + b)*(b + c)*(c + a)", "IMO 1995/2, homogeneous", of_squares=True),
    Inequality("imo-1999-2", "(a + b + c)^4 - 8*(a*b*(a^2 + b^2) + b*c*(b^2 + c^2) + c*a*(c^2 + a^2))",
               "IMO 1999/2, n = 3", of_squares=True),
    Inequality("imo-2006-3", "81/512*(a^2 + b^2 + c^2)^4 - ((a - b)*(b - c)*(c - a)*(a + b + c))^2",
               "IMO 2006/3, squared"),
    Inequality("apmo-2004-5", "(a^2 + 2)*(b^2 + 2)*(c^2 + 2) - 9*(a*b + b*c + c*a)", "APMO 2004/5"),
    Inequality("apmo-2004-5-sharp", "(a^2 + 2)*(b^2 + 2)*(c^2 + 2) - 3*(a + b + c)^2", "sharpening of APMO 2004/5"),
    Inequality("power-mean-2", "3*(a^2 + b^2 + c^2) - (a + b + c)^2", "quadratic and arithmetic mean"),
    Inequality("power-mean-3", "9*(a^3 + b^3 + c^3) - (a + b + c)^3", "cubic and arithmetic mean", of_squares=True),
    Inequality("power-mean-4", "27*(a^4 + b^4 + c^4) - (a + b + c)^4", "quartic and arithmetic mean"),
    Inequality("three-products", "(a + b)*(b + c)*(c + a) - 8*a*b*c", "Cesàro 1880", of_squares=True),
    Inequality("nine-eighths", "9*(a + b)*(b + c)*(c + a) - 8*(a + b + c)*(a*b + b*c + c*a)",
               "folklore, equivalent to Cesàro's", of_squares=True),
    Inequality("products-of-pairs", "a^2*b^2 + b^2*c^2 + c^2*a^2 - a*b*c*(a + b + c)", "folklore"),
    Inequality("fourth-powers", "a^4 + b^4 + c^4 - a*b*c*(a + b + c)", "Muirhead, (4,0,0) over (2,1,1)"),
    Inequality("square-of-pairs", "(a*b + b*c + c*a)^2 - 3*a*b*c*(a + b + c)", "folklore"),
    Inequality("with-one", "a^2 + b^2 + 1 - a*b - a - b", "folklore, inhomogeneous"),
    Inequality("muirhead-4", "a^4 + b^4 - a^3*b - a*b^3", "Muirhead, (4,0) over (3,1)"),
    Inequality("sphere-product", "(x^2 + y^2 + z^2)^3 - 27*x^2*y^2*z^2", "geometric and quadratic mean"),
    Inequality("newton-4", "4*(a*b + a*c + a*d + b*c + b*d + c*d)^2"
               " - 9*(a + b + c + d)*(a*b*c + a*b*d + a*c*d + b*c*d)",
               "Newton's inequality for the second of four elementary symmetric functions"),
    Inequality("maclaurin-4", "3*(a + b + c + d)^2 - 8*(a*b + a*c + a*d + b*c + b*d + c*d)", "Maclaurin 1729, n = 4"),
    Inequality("turkevich", "a^4 + b^4 + c^4 + d^4 + 2*a*b*c*d - a^2*b^2 - a^2*c^2 - a^2*d^2 - b^2*c^2 - b^2*d^2"
               " - c^2*d^2", "Turkevich 1980", of_squares=True),
    Inequality("chebyshev-cubic", "4*x^3 - 3*x + 1", "Chebyshev's T3 on [0, 1], touching at 1/2", "putinar",
               constraints=("x", "1 - x")),
    Inequality("bernoulli", "(1 + x)^4 - 1 - 4*x", "Bernoulli's inequality for the fourth power, x at least -1",
               "putinar", constraints=("1 + x",)),
    Inequality("disc-in-square", "2 - x^2 - y^2", "a square in its circumscribed disc", "putinar",
               constraints=("1 - x^2", "1 - y^2")),
)
"""All of them, in order of appearance: the named forms, families, then competition problems."""

QUICK = (
    "parrilo", "motzkin", "motzkin-form", "robinson", "choi-lam", "choi-lam-quartic", "schur-0", "schur-2", "am-gm-3",
    "am-gm-4", "differences-5", "hilbert-4", "cauchy-3", "rump-2", "lyapunov", "vasc", "nesbitt", "imo-1983-6",
    "imo-1984-1-upper", "apmo-2004-5",
)
"""Twenty of them for quick measurements."""
