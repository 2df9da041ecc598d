"""Expressions that a user or a language model wrote, read through a white list: nothing is evaluated as code.

`parse_expression` turns text into a small tree of five node types; `evaluate` folds the tree over any values
that can be added, multiplied, inverted and raised to a power (floats, arrays, polynomials). The grammar is

    sum     = ["+" | "-"] product { ("+" | "-") product }
    product = power { ("*" | "/" | nothing) power }           nothing: 2x, 3(x + y), (x + 1)(x - 1)
    power   = atom [ ("^" | "**") signed power ]               right associative, binds tighter than a sign
    atom    = number | name | function "(" sum { "," sum } ")" | "(" sum ")"

with the spellings that text models like: "−", "·", "×", "÷" and raised digits ("x²"). Square brackets and
braces group as parentheses do. A name must be on the white list if one is given; an unknown word that is made
of listed one-letter names is their product ("xy" is x·y). Numbers are kept exact. Length, depth and the size
of numbers are bounded, so that no text can exhaust memory or the stack.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, TypeVar

from assay.errors import InputError, nearest

__all__ = [
    "Call", "Expression", "ExpressionError", "Inverse", "Name", "Negative", "Number", "Power", "Product", "Sum",
    "evaluate", "names_in", "parse_expression",
]

MAX_LENGTH = 400_000
MAX_DEPTH = 60
MAX_DIGITS = 1_000
MAX_DECIMAL_EXPONENT = 400

Value = TypeVar("Value")


class ExpressionError(InputError):
    """Text that is no allowed expression; `position` is the offset of the first character at fault."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(f"{message} (position {position})")
        self.position = position


@dataclass(frozen=True)
class Expression:
    """A node of the tree; `text[start:end]` is what it was read from."""

    start: int
    end: int


@dataclass(frozen=True)
class Number(Expression):
    value: Fraction


@dataclass(frozen=True)
class Name(Expression):
    name: str


@dataclass(frozen=True)
class Negative(Expression):
    operand: Expression


@dataclass(frozen=True)
class Inverse(Expression):
    """One over the operand: a quotient is a product with an inverse."""

    operand: Expression


@dataclass(frozen=True)
class Sum(Expression):
    operands: tuple[Expression, ...]


@dataclass(frozen=True)
class Product(Expression):
    operands: tuple[Expression, ...]


@dataclass(frozen=True)
class Power(Expression):
    base: Expression
    exponent: Expression


@dataclass(frozen=True)
class Call(Expression):
    function: str
    arguments: tuple[Expression, ...]


def parse_expression(
    text: str, names: Collection[str] | None = None, functions: Collection[str] = (), *, offset: int = 0
) -> Expression:
    """Read an expression.

    Parameters
    ----------
    text : str
    names : collection of str, optional
        The variables that may occur; any name may where this is None.
    functions : collection of str
        The functions that may be called.
    offset : int
        Added to every position: for an expression that is part of a longer text.

    Raises
    ------
    ExpressionError
        With the position of the first character that does not fit.

    Examples
    --------
    >>> tree = parse_expression("2(x - 1/3 y)^2", names=["x", "y"])
    >>> evaluate(tree, {"x": 1.0, "y": 3.0}, float)
    0.0
    >>> parse_expression("__import__('os')", names=["x"])
    Traceback (most recent call last):
    assay.science.expressions.ExpressionError: the character '_' has no place in an expression (position 0)
    """
    if not isinstance(text, str):
        raise InputError(f"an expression must be text, got {type(text).__name__}")
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"the expression has {len(text)} characters, at most {MAX_LENGTH} are read", offset)
    return _Parser(text, names, functions, offset).whole()


def evaluate(
    tree: Expression,
    values: Mapping[str, Value],
    number: Callable[[Fraction], Value],
    functions: Mapping[str, Callable[..., Value]] | None = None,
) -> Value:
    """Fold a tree over values with `+`, `*`, `/` and `**`.

    Parameters
    ----------
    tree : Expression
    values : mapping of str to value
        What each name stands for.
    number : callable
        Turns an exact number into a value, `float` say.
    functions : mapping of str to callable
        What each function name stands for.

    Examples
    --------
    >>> import math
    >>> evaluate(parse_expression("exp(-k)", functions=["exp"]), {"k": 0.0}, float, {"exp": math.exp})
    1.0
    """

    def fold(node: Expression) -> Any:
        match node:
            case Number(value=value):
                return number(value)
            case Name(name=name):
                if name not in values:
                    raise ExpressionError(f"no value is known for {name}", node.start)
                return values[name]
            case Negative(operand=operand):
                return -fold(operand)
            case Inverse(operand=operand):
                return number(Fraction(1)) / fold(operand)  # type: ignore[operator]
            case Sum(operands=operands):
                total = fold(operands[0])
                for operand in operands[1:]:
                    total = total + fold(operand)
                return total
            case Product(operands=operands):
                total = fold(operands[0])
                for operand in operands[1:]:
                    if isinstance(operand, Inverse):
                        total = total / fold(operand.operand)
                    else:
                        total = total * fold(operand)
                return total
            case Power(base=base, exponent=exponent):
                return fold(base) ** fold(exponent)
            case Call(function=function, arguments=arguments):
                if functions is None or function not in functions:
                    raise ExpressionError(f"the function {function} is not known", node.start)
                return functions[function](*map(fold, arguments))
        raise TypeError(f"not an expression: {node!r}")

    return fold(tree)


def names_in(tree: Expression) -> list[str]:
    """The names of a tree, each once, sorted with numbers in numeric order (x2 before x10).

    >>> names_in(parse_expression("x10 + x2*y"))
    ['x2', 'x10', 'y']
    """
    found = {node.name for node in walk(tree) if isinstance(node, Name)}
    return sorted(found, key=lambda name: [(not part.isdigit(), int(part) if part.isdigit() else 0, part)
                                           for part in re.findall(r"\d+|\D+", name)])


def walk(tree: Expression) -> Iterator[Expression]:
    """Every node of a tree, the tree itself first."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        match node:
            case Sum(operands=children) | Product(operands=children) | Call(arguments=children):
                waiting += reversed(children)
            case Negative(operand=operand) | Inverse(operand=operand):
                waiting.append(operand)
            case Power(base=base, exponent=exponent):
                waiting += [exponent, base]


TOKEN = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[A-Za-zΑ-Ωα-ω](?:[A-Za-zΑ-Ωα-ω0-9_]*[A-Za-zΑ-Ωα-ω0-9])?)"
    r"|(?P<raised>[⁰¹²³⁴⁵⁶⁷⁸⁹]+)"
    r"|(?P<operator>\*\*|[-+*/^,(){}\[\]−–·×⋅∗÷])"
)
SPELLINGS = {
    "**": "^", "−": "-", "–": "-", "·": "*", "×": "*", "⋅": "*", "∗": "*", "÷": "/", "{": "(", "[": "(", "}": ")",
    "]": ")",
}
RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    start: int
    end: int


def tokens(text: str, offset: int) -> list[Token]:
    found = []
    place = 0
    while place < len(text):
        match = TOKEN.match(text, place)
        if match is None or match.lastgroup is None:
            raise ExpressionError(f"the character {text[place]!r} has no place in an expression", place + offset)
        kind, word, start, end = match.lastgroup, match.group(), place + offset, match.end() + offset
        if kind == "raised":
            found += [Token("operator", "^", start, start), Token("number", word.translate(RAISED), start, end)]
        elif kind != "space":
            found.append(Token(kind, SPELLINGS.get(word, word), start, end))
        place = match.end()
    return [*found, Token("end", "", len(text) + offset, len(text) + offset)]


class _Parser:
    """Recursive descent over the grammar in the module's docstring."""

    def __init__(
        self, text: str, names: Collection[str] | None, functions: Collection[str], offset: int
    ) -> None:
        self.tokens = tokens(text, offset)
        self.place = 0
        self.depth = 0
        self.names = None if names is None else set(names)
        self.functions = set(functions)

    @property
    def here(self) -> Token:
        return self.tokens[self.place]

    def take(self, *operators: str) -> Token | None:
        """Step over the current token if it is one of the operators."""
        token = self.here
        if token.kind == "operator" and token.text in operators:
            self.place += 1
            return token
        return None

    def whole(self) -> Expression:
        if self.here.kind == "end":
            raise ExpressionError("the expression is empty", self.here.start)
        tree = self.sum()
        if self.here.kind != "end":
            raise ExpressionError(f"{self.here.text!r} is not expected here", self.here.start)
        return tree

    def sum(self) -> Expression:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ExpressionError(f"the expression is nested more than {MAX_DEPTH} deep", self.here.start)
        sign = self.take("+", "-")
        terms = [self.signed(sign, self.product())]
        while sign := self.take("+", "-"):
            terms.append(self.signed(sign, self.product()))
        self.depth -= 1
        return terms[0] if len(terms) == 1 else Sum(terms[0].start, terms[-1].end, tuple(terms))

    def signed(self, sign: Token | None, operand: Expression) -> Expression:
        if sign is None or sign.text == "+":
            return operand
        return Negative(sign.start, operand.end, operand)

    def product(self) -> Expression:
        factors = [self.signed_power()]
        while True:
            if self.take("*"):
                factors.append(self.signed_power())
            elif slash := self.take("/"):
                divisor = self.signed_power()
                factors.append(Inverse(slash.start, divisor.end, divisor))
            elif self.here.kind in ("number", "name") or self.here.text == "(":
                factors.append(self.power())
            else:
                break
        return factors[0] if len(factors) == 1 else Product(factors[0].start, factors[-1].end, tuple(factors))

    def signed_power(self) -> Expression:
        """A power with signs before it, as after an operator: 2*-x, 10^-3."""
        sign = self.take("+", "-")
        if sign is None:
            return self.power()
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ExpressionError(f"the expression is nested more than {MAX_DEPTH} deep", sign.start)
        operand = self.signed_power()
        self.depth -= 1
        return self.signed(sign, operand)

    def power(self) -> Expression:
        base = self.atom()
        if not self.take("^"):
            return base
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ExpressionError(f"the expression is nested more than {MAX_DEPTH} deep", self.here.start)
        exponent = self.signed_power()
        self.depth -= 1
        return Power(base.start, exponent.end, base, exponent)

    def atom(self) -> Expression:
        token = self.here
        if token.kind == "number":
            self.place += 1
            return Number(token.start, token.end, exact_number(token))
        if token.kind == "name":
            self.place += 1
            return self.named(token)
        if self.take("("):
            inner = self.sum()
            return replace(inner, start=token.start, end=self.close(token))
        what = "the end" if token.kind == "end" else repr(token.text)
        raise ExpressionError(f"a number, a name or a parenthesis is expected, not {what}", token.start)

    def named(self, token: Token) -> Expression:
        if token.text in self.functions:
            return self.call(token)
        if self.names is None:
            if self.here.text == "(":
                raise ExpressionError(f"the function {token.text} is not allowed here", token.start)
            return Name(token.start, token.end, token.text)
        if token.text in self.names:
            return Name(token.start, token.end, token.text)
        if self.here.text == "(" and self.here.start == token.end and len(token.text) > 1:
            raise ExpressionError(f"the function {token.text} is not allowed here", token.start)
        if all(letter in self.names for letter in token.text):
            letters = [Name(token.start + i, token.start + i + 1, c) for i, c in enumerate(token.text)]
            return Product(token.start, token.end, tuple(letters))
        known = sorted(self.names)
        raise ExpressionError(
            f"unknown name {token.text}{nearest(token.text, known)}; known: {', '.join(known) or 'none'}", token.start
        )

    def call(self, token: Token) -> Expression:
        opening = self.here
        if not self.take("("):
            raise ExpressionError(f"the function {token.text} needs its argument in parentheses", token.end)
        arguments = [self.sum()]
        while self.take(","):
            arguments.append(self.sum())
        end = self.close(opening)
        return Call(token.start, end, token.text, tuple(arguments))

    def close(self, opening: Token) -> int:
        closing = self.here
        if not self.take(")"):
            raise ExpressionError("this parenthesis is not closed", opening.start)
        return closing.end


def exact_number(token: Token) -> Fraction:
    mantissa, _, exponent = token.text.lower().partition("e")
    if len(mantissa) > MAX_DIGITS or (exponent and abs(int(exponent[:9])) > MAX_DECIMAL_EXPONENT):
        raise ExpressionError(f"a number of this size is not read (over {MAX_DIGITS} digits)", token.start)
    return Fraction(mantissa) * Fraction(10) ** int(exponent or 0)
