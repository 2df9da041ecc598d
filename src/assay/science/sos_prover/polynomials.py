"""Exact polynomials: exponent tuples to rational coefficients, and what users may hand in as one.

Only products go through python-flint (`fmpq_mpoly`), which multiplies 66 squares in ten variables in
milliseconds where a symbolic expansion takes minutes; everything else is dictionary arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from numbers import Rational
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.errors import InputError, nearest, require
from assay.science.expressions import Expression, Inverse, evaluate, names_in, parse_expression, walk

if TYPE_CHECKING:
    import flint
else:
    flint = require("flint", extra="science", wanted_by="sos-prover")

__all__ = ["Exponents", "Polynomial", "as_polynomial", "flint"]

Exponents = tuple[int, ...]
MAX_VARIABLES = 500
MAX_POWER = 200
MAX_TERMS = 200_000
MAX_BITS = 1_000_000


@dataclass(frozen=True)
class Polynomial:
    """A polynomial with rational coefficients.

    Attributes
    ----------
    gens : tuple of str
        The variables, in the order of the exponents.
    terms : mapping of exponent tuple to Fraction
        No coefficient is zero.

    Examples
    --------
    >>> x, y = Polynomial.variables(("x", "y"))
    >>> str((x - 2 * y) ** 2 / 4)
    '1/4*x^2 - x*y + y^2'
    >>> ((x - 2 * y) ** 2).at((4, 2))
    Fraction(0, 1)
    """

    gens: tuple[str, ...]
    terms: Mapping[Exponents, Fraction]

    @classmethod
    def constant(cls, gens: Sequence[str], value: Rational | int) -> Polynomial:
        return cls(tuple(gens), {(0,) * len(gens): Fraction(value)} if value else {})

    @classmethod
    def variables(cls, gens: Sequence[str]) -> list[Polynomial]:
        n = len(gens)
        return [cls(tuple(gens), {tuple(int(i == j) for j in range(n)): Fraction(1)}) for i in range(n)]

    @cached_property
    def degree(self) -> int:
        """Total degree; 0 for the zero polynomial."""
        return max(map(sum, self.terms), default=0)

    @property
    def is_homogeneous(self) -> bool:
        return len(set(map(sum, self.terms))) <= 1

    @property
    def is_constant(self) -> bool:
        return not any(map(any, self.terms))

    @property
    def bits(self) -> int:
        """Bits of the largest numerator or denominator."""
        return max((max(c.numerator.bit_length(), c.denominator.bit_length()) for c in self.terms.values()), default=0)

    def at(self, point: Sequence[Rational | int]) -> Fraction:
        """The exact value at a rational point."""
        powers = [_powers(Fraction(x), max((m[i] for m in self.terms), default=0)) for i, x in enumerate(point)]
        total = Fraction(0)
        for exponents, coefficient in self.terms.items():
            value = coefficient
            for table, exponent in zip(powers, exponents, strict=True):
                if exponent:
                    value *= table[exponent]
            total += value
        return total

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Exponents (terms, variables) and float coefficients (terms,)."""
        exponents = np.array(list(self.terms), dtype=int).reshape(len(self.terms), len(self.gens))
        return exponents, np.array([float(c) for c in self.terms.values()])

    def __add__(self, other: Polynomial | Rational | int) -> Polynomial:
        terms = dict(self.terms)
        for exponents, coefficient in self._coerce(other).terms.items():
            total = terms.get(exponents, Fraction(0)) + coefficient
            if total:
                terms[exponents] = total
            else:
                terms.pop(exponents, None)
        return Polynomial(self.gens, terms)

    def __radd__(self, other: Rational | int) -> Polynomial:
        return self + other

    def __neg__(self) -> Polynomial:
        return Polynomial(self.gens, {m: -c for m, c in self.terms.items()})

    def __sub__(self, other: Polynomial | Rational | int) -> Polynomial:
        return self + -self._coerce(other)

    def __rsub__(self, other: Rational | int) -> Polynomial:
        return -self + other

    def __mul__(self, other: Polynomial | Rational | int) -> Polynomial:
        if not isinstance(other, Polynomial):
            factor = Fraction(other)
            return Polynomial(self.gens, {m: c * factor for m, c in self.terms.items()} if factor else {})
        if len(self.terms) * len(other.terms) > 100 * MAX_TERMS:
            raise InputError(f"a polynomial with more than {MAX_TERMS} terms is not multiplied out")
        return from_flint(to_flint(self) * to_flint(other), self.gens)

    def __rmul__(self, other: Rational | int) -> Polynomial:
        return self * other

    def __truediv__(self, other: Polynomial | Rational | int) -> Polynomial:
        if isinstance(other, Polynomial):
            if not other.is_constant:
                raise InputError(f"division by {other} gives no polynomial")
            other = other.at((0,) * len(self.gens))
        if other == 0:
            raise InputError("division by zero")
        return self * (1 / Fraction(other))

    def __pow__(self, exponent: int | Polynomial) -> Polynomial:
        if isinstance(exponent, Polynomial):
            if not exponent.is_constant:
                raise InputError(f"the exponent {exponent} is no number")
            power = exponent.at((0,) * len(self.gens))
        else:
            power = Fraction(exponent)
        if power.denominator != 1 or power < 0:
            raise InputError(f"({self})^({power}) is no polynomial")
        if power * max(1, self.degree) > MAX_POWER:
            raise InputError(f"the exponent {power} is too large: degrees up to {MAX_POWER} are read")
        terms = math.comb(max(0, len(self.terms) - 1) + int(power), int(power))
        if min(terms, math.comb(len(self.gens) + int(power) * self.degree, len(self.gens))) > MAX_TERMS:
            raise InputError(f"a polynomial with more than {MAX_TERMS} terms is not multiplied out")
        if power * self.bits > MAX_BITS:
            raise InputError(f"a coefficient of more than {MAX_BITS} bits is not computed")
        return from_flint(to_flint(self) ** int(power), self.gens)

    def __str__(self) -> str:
        ordered = sorted(self.terms, key=lambda m: (-sum(m), tuple(-e for e in m)))
        text = "".join(_term_text(self.terms[m], _monomial_text(self.gens, m)) for m in ordered)
        return text.removeprefix(" + ").replace(" - ", "-", 1) if text.startswith(" - ") else text[3:] or "0"

    def _coerce(self, other: Polynomial | Rational | int) -> Polynomial:
        return other if isinstance(other, Polynomial) else Polynomial.constant(self.gens, other)


def as_polynomial(
    p: Any, gens: Sequence[str] | None = None, *, exact_floats: bool = False, what: str = "p"
) -> Polynomial:
    """A polynomial from a string, a dictionary, a SymPy expression or a `Polynomial`; the input is not changed.

    Parameters
    ----------
    p : str, dict, sympy.Expr, sympy.Poly, number or Polynomial
        A dictionary maps exponent tuples to int or Fraction. Text is parsed, never evaluated.
    gens : sequence of str, optional
        The variables; by default those that occur (for a dictionary x1, x2, ...).
    exact_floats : bool
        Take a float (in a dictionary or a SymPy expression) for the exact binary number that it is.
    what : str
        What the polynomial is called in an error.

    Raises
    ------
    InputError
        What is not a polynomial, naming the term; an unknown variable; NaN or infinity.
    TypeError
        A float without `exact_floats`.

    Examples
    --------
    >>> str(as_polynomial("x^2 - 2*x*y + y^2"))
    'x^2 - 2*x*y + y^2'
    >>> as_polynomial("x + 1/y")
    Traceback (most recent call last):
    assay.errors.InputError: p is no polynomial: the term /y divides by a variable (position 5)
    """
    names = _checked_gens(gens)
    if isinstance(p, Polynomial):
        return p if names is None or names == p.gens else _reordered(p, names, what)
    if isinstance(p, str):
        return polynomial_from_text(p, names, what=what)
    if isinstance(p, Mapping):
        return _from_mapping(p, names, exact_floats, what)
    if isinstance(p, (Rational, float)):
        return Polynomial.constant(names or (), _exact(p, exact_floats, what))
    if type(p).__module__.partition(".")[0] == "sympy":
        return _from_sympy(p, names, exact_floats, what)
    raise InputError(f"{what} must be text, a dictionary or a SymPy polynomial, got {type(p).__name__}")


def polynomial_from_text(
    text: str, gens: Sequence[str] | None = None, *, what: str = "p", offset: int = 0
) -> Polynomial:
    """The polynomial that a text denotes; decimals are exact (0.1 is 1/10)."""
    tree = parse_expression(text, gens, offset=offset)
    names = _unambiguous(names_in(tree), what) if gens is None else tuple(gens)
    return polynomial_from_tree(tree, names, text, what=what, offset=offset)


def _unambiguous(names: Sequence[str], what: str) -> tuple[str, ...]:
    """The names, refused where one is no number in disguise or may be a product of others: "xy" beside x and y."""
    if len(names) > MAX_VARIABLES:
        raise InputError(f"{what} has {len(names)} variables; at most {MAX_VARIABLES} are taken")
    known = set(names)
    for name in names:
        if name.lower() in ("nan", "inf", "infinity"):
            raise InputError(f"{what} is no polynomial: {name} is no finite number")
        if _is_product(name, known - {name}):
            raise InputError(f"{what}: {name} may be a variable or a product; write the product with * or give gens")
    return tuple(names)


def _is_product(word: str, names: set[str]) -> bool:
    """Whether a word is a row of the names."""
    lengths = {len(name) for name in names}
    reached = {0}
    for start in range(len(word)):
        if start in reached:
            reached |= {start + length for length in lengths if word[start : start + length] in names}
    return len(word) in reached


def polynomial_from_tree(
    tree: Expression, gens: Sequence[str], text: str, *, what: str = "p", offset: int = 0
) -> Polynomial:
    """The polynomial of a parsed expression over the variables `gens`."""
    for node in walk(tree):
        if isinstance(node, Inverse) and names_in(node):
            term = text[node.start - offset : node.end - offset]
            raise InputError(f"{what} is no polynomial: the term {term} divides by a variable (position {node.start})")
    values = dict(zip(gens, Polynomial.variables(gens), strict=True))
    try:
        return evaluate(tree, values, lambda value: Polynomial.constant(gens, value))
    except InputError as error:
        raise InputError(f"{what} is no polynomial: {error}") from None


def context(gens: Sequence[str]) -> flint.fmpq_mpoly_ctx:
    """A ring in as many variables (at least one); its own names, since flint takes ASCII only."""
    return flint.fmpq_mpoly_ctx.get(tuple(f"g{i}" for i in range(max(1, len(gens)))), flint.Ordering.degrevlex)


def to_flint(p: Polynomial) -> flint.fmpq_mpoly:
    pad = () if p.gens else (0,)
    return context(p.gens).from_dict({m + pad: flint.fmpq(c.numerator, c.denominator) for m, c in p.terms.items()})


def from_flint(p: flint.fmpq_mpoly, gens: Sequence[str]) -> Polynomial:
    n = len(gens)
    terms = {tuple(map(int, m[:n])): Fraction(int(c.p), int(c.q)) for m, c in p.to_dict().items()}
    return Polynomial(tuple(gens), terms)


def weighted_square_sum(weights: Iterable[Fraction], squares: Iterable[Polynomial], gens: Sequence[str]) -> Polynomial:
    """Σ w q², multiplied out."""
    total = context(gens).from_dict({})
    for weight, square in zip(weights, squares, strict=True):
        total += to_flint(square) ** 2 * flint.fmpq(weight.numerator, weight.denominator)
    return from_flint(total, gens)


def _checked_gens(gens: Sequence[str] | None) -> tuple[str, ...] | None:
    if gens is None:
        return None
    if isinstance(gens, str):
        gens = gens.replace(",", " ").split()
    names = tuple(str(g) for g in gens)
    if len(set(names)) != len(names):
        raise InputError(f"gens names a variable twice: {', '.join(names)}")
    for name in names:
        if not name.isidentifier():
            raise InputError(f"gens: {name!r} is no name of a variable")
    return names


def _reordered(p: Polynomial, gens: tuple[str, ...], what: str) -> Polynomial:
    used = [name for i, name in enumerate(p.gens) if any(m[i] for m in p.terms)]
    for name in used:
        if name not in gens:
            raise _unknown(name, gens, what)
    index = {name: i for i, name in enumerate(p.gens)}
    places = [index.get(name) for name in gens]
    return Polynomial(gens, {tuple(0 if i is None else m[i] for i in places): c for m, c in p.terms.items()})


def _unknown(name: str, gens: Sequence[str], what: str) -> InputError:
    return InputError(f"{what} has the unknown variable {name}{nearest(name, list(gens))}; gens: {', '.join(gens)}")


def _from_mapping(
    p: Mapping[Any, Any], gens: tuple[str, ...] | None, exact_floats: bool, what: str
) -> Polynomial:
    lengths = {len(m) if isinstance(m, tuple) else -1 for m in p}
    if len(lengths) > 1 or -1 in lengths:
        raise InputError(f"{what} must map exponent tuples of one length to numbers")
    n = lengths.pop() if lengths else len(gens or ())
    names = gens or tuple(f"x{i + 1}" for i in range(n))
    if len(names) != n:
        raise InputError(f"{what} has exponents for {n} variables, gens names {len(names)}")
    terms = {}
    for exponents, coefficient in p.items():
        if not all(isinstance(e, (int, np.integer)) and e >= 0 for e in exponents):
            raise InputError(f"{what} is no polynomial: the exponents {exponents} are not whole numbers of 0 or more")
        value = _exact(coefficient, exact_floats, what)
        if value:
            terms[tuple(map(int, exponents))] = value
    return Polynomial(names, terms)


def _from_sympy(p: Any, gens: tuple[str, ...] | None, exact_floats: bool, what: str) -> Polynomial:
    import sympy

    own = [str(g) for g in p.gens] if isinstance(p, sympy.Poly) else None
    expression = p.as_expr()
    names = gens or tuple(own or names_in_order(str(s) for s in expression.free_symbols))
    for symbol in sorted(map(str, expression.free_symbols)):
        if symbol not in names:
            raise _unknown(symbol, names, what)
    if not names:
        return Polynomial.constant((), _exact(expression, exact_floats, what))
    try:
        poly = p if isinstance(p, sympy.Poly) else sympy.Poly(expression, *map(sympy.Symbol, names))
    except sympy.PolynomialError:
        culprits = [str(t) for t in sympy.Add.make_args(expression) if not t.is_polynomial()]
        raise InputError(f"{what} is no polynomial: the term {', '.join(culprits) or expression}") from None
    terms = {tuple(map(int, m)): _exact(c, exact_floats, what) for m, c in poly.terms() if c != 0}
    return _reordered(Polynomial(tuple(map(str, poly.gens)), terms), names, what)


def names_in_order(names: Iterable[str]) -> list[str]:
    text = "+".join(names)
    return names_in(parse_expression(text)) if text else []


def _exact(value: Any, exact_floats: bool, what: str) -> Fraction:
    if isinstance(value, Rational):
        return Fraction(int(value.numerator), int(value.denominator))
    if isinstance(value, np.integer):
        return Fraction(int(value))
    if type(value).__module__.partition(".")[0] == "sympy":
        if value.is_Rational:
            return Fraction(int(value.p), int(value.q))
        if not value.is_Float:
            raise InputError(f"{what}: the coefficient {value} is no rational number")
        value = float(value)
    if not isinstance(value, (float, np.floating)):
        raise InputError(f"{what}: the coefficient {value!r} is no number")
    if not math.isfinite(value):
        raise InputError(f"{what}: the coefficient {value} is not finite")
    if not exact_floats:
        raise TypeError(
            f"{what}: the coefficient {value!r} is a float; give fractions.Fraction('{value}') or text, or pass "
            "exact_floats=True to take the binary value as exact"
        )
    return Fraction(float(value))


def _powers(x: Fraction, top: int) -> list[Fraction]:
    table = [Fraction(1)]
    for _ in range(top):
        table.append(table[-1] * x)
    return table


def _monomial_text(gens: Sequence[str], exponents: Exponents) -> str:
    return "*".join(g if e == 1 else f"{g}^{e}" for g, e in zip(gens, exponents, strict=True) if e)


def _term_text(coefficient: Fraction, monomial: str) -> str:
    sign, size = (" - ", -coefficient) if coefficient < 0 else (" + ", coefficient)
    if not monomial:
        return f"{sign}{size}"
    return f"{sign}{monomial}" if size == 1 else f"{sign}{size}*{monomial}"
