"""A sum of squares as a language model or a notebook prints it: `p ≈ 2*(x - 0.33*y)^2 + 1.5 y² (x + 1)^2 + 0.1`.

The paper (arXiv 2605.15445) does not show its prompt or answer format; this one is reconstructed.

The text goes through the white-list parser of `assay.science.expressions`; nothing is evaluated. LaTeX's usual
spellings are translated first, character for character, so that positions in errors stay true.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from assay.errors import InputError
from assay.science.expressions import (
    Expression,
    ExpressionError,
    Inverse,
    Negative,
    Number,
    Power,
    Product,
    Sum,
    evaluate,
    names_in,
    parse_expression,
)
from assay.science.sos_prover.polynomials import Polynomial, polynomial_from_tree

__all__ = ["parse_sos"]


def parse_sos(text: str, gens: Sequence[str]) -> list[tuple[Fraction, Polynomial]]:
    """The weighted squares that a text denotes, decimals taken exactly.

    Parameters
    ----------
    text : str
        A sum of terms, each a number times squares: an even power of a parenthesis or variable, or a product of
        such. Everything up to the last "=", "≈" or "\\approx" is left out.
    gens : sequence of str
        The variables that may occur.

    Returns
    -------
    list of (Fraction, Polynomial)
        Weight and q, one a term: the text says Σ weight · q².

    Raises
    ------
    ExpressionError
        With the position where the text stops making sense as a sum of squares.

    Examples
    --------
    >>> [(str(w), str(q)) for w, q in parse_sos("p = 2*(x - 0.5*y)^2 + 3/4 y^2", ["x", "y"])]
    [('2', 'x - 1/2*y'), ('3/4', 'y')]
    >>> parse_sos("2*(x - y)^3", ["x", "y"])
    Traceback (most recent call last):
    assay.science.expressions.ExpressionError: (x - y)^3 is no square (position 2)
    """
    if not isinstance(text, str):
        raise InputError(f"a sum of squares must be text, got {type(text).__name__}")
    names = tuple(gens.replace(",", " ").split()) if isinstance(gens, str) else tuple(map(str, gens))
    plain = _without_latex(text)
    start = max(plain.rfind("="), plain.rfind("≈"), plain.rfind("≃")) + 1
    tree = parse_expression(plain[start:], names, offset=start)
    terms = tree.operands if isinstance(tree, Sum) else (tree,)
    return [found for term in terms if (found := _weighted_square(term, names, plain))[0]]


def _without_latex(text: str) -> str:
    """Same length, so that positions are those of the text as given."""

    def blank(match: re.Match[str]) -> str:
        return " " * len(match[0])

    text = re.sub(r"\\approx", lambda m: "≈".ljust(len(m[0])), text)
    text = re.sub(r"\\(?:cdot|times)", lambda m: "*".ljust(len(m[0])), text)
    text = re.sub(r"\\(?:left|right|quad|qquad|[,;! ])|\$+|\\[\[\]()]|&|\\\\", blank, text)
    return re.sub(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", _fraction_in_line, text)


def _fraction_in_line(match: re.Match[str]) -> str:
    r"""`\frac{a}{b}` as `((a)/(b))`, padded to the same length (it has at least as many characters)."""
    return f"(({match[1]})/({match[2]}))".rjust(len(match[0])) if len(match[0]) >= len(match[1] + match[2]) + 7 else (
        f"({match[1]})/({match[2]})"
    )


def _weighted_square(term: Expression, gens: tuple[str, ...], text: str) -> tuple[Fraction, Polynomial]:
    sign = Fraction(1)
    while isinstance(term, Negative):
        sign, term = -sign, term.operand
    weight, square = sign, Polynomial.constant(gens, 1)
    for factor in _factors(term):
        if not names_in(factor):
            value = evaluate(factor, {}, lambda number: Polynomial.constant((), number))
            weight *= value.at(())
        else:
            square = square * _root(factor, gens, text)
    if weight < 0:
        raise ExpressionError("a square has a negative weight here", term.start)
    return weight, square


def _factors(term: Expression) -> tuple[Expression, ...]:
    if not isinstance(term, Product):
        return (term,)
    found: list[Expression] = []
    for operand in term.operands:
        found += [operand] if isinstance(operand, Inverse) else _factors(operand)
    return tuple(found)


def _root(factor: Expression, gens: tuple[str, ...], text: str) -> Polynomial:
    """q with q² equal to the factor."""
    if isinstance(factor, Power) and isinstance(factor.exponent, Number):
        half = factor.exponent.value / 2
        if half.denominator == 1 and half > 0:
            return polynomial_from_tree(factor.base, gens, text, what="the sum of squares") ** int(half)
    raise ExpressionError(f"{text[factor.start:factor.end].strip()} is no square", factor.start)
