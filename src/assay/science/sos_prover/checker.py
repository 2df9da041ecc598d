"""The independent checker: whether a certificate proves what it says, with nothing but fractions.

The paper (arXiv 2605.15445) leaves checking to Lean; this checker needs no toolchain.

It shares no code with the prover (no flint, no SDP, no SymPy, no polynomial class): it reads the JSON form, multiplies
the squares out over dictionaries of exponents, in integers over one denominator a square, and compares coefficients.
A certificate is untrusted text: anything malformed is refused with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import Any

__all__ = ["CheckReport", "check_certificate"]

FORMAT = "assay sum-of-squares certificate 1"

Terms = dict[tuple[int, ...], Fraction]


@dataclass(frozen=True)
class CheckReport:
    """Whether a certificate is right, and if not why; `squares` counts them, `claim` says what is proved."""

    ok: bool
    reason: str
    kind: str = ""
    squares: int = 0
    claim: str = ""

    def __bool__(self) -> bool:
        return self.ok


def check_certificate(cert_or_json: Any) -> CheckReport:
    """Check a certificate exactly.

    Parameters
    ----------
    cert_or_json : Certificate, str or mapping
        A `Certificate`, its JSON text, or that text decoded.

    Returns
    -------
    CheckReport
        True in a condition when the proof is right. A malformed certificate is a report that says so, with the
        reason.

    Raises
    ------
    InputError
        For what is neither a certificate, nor text, nor a mapping.

    Examples
    --------
    >>> from assay.science.sos_prover import prove_nonneg
    >>> text = prove_nonneg("x^2 - 2*x + 1").to_json()
    >>> check_certificate(text).claim
    'p >= 0 for all real x'
    >>> check_certificate(text.replace('"weight": "1"', '"weight": "2"')).reason
    'the identity fails at the coefficient of x^2: difference 1'
    """
    if not hasattr(cert_or_json, "to_json") and not isinstance(cert_or_json, (str, bytes, Mapping)):
        from assay.errors import InputError  # here, so that the rest of this file needs the standard library alone

        raise InputError(f"a Certificate, JSON text or a mapping is expected, got {type(cert_or_json).__name__}")
    try:
        text = cert_or_json.to_json() if hasattr(cert_or_json, "to_json") else cert_or_json
        fields = json.loads(text, object_pairs_hook=_unique) if isinstance(text, (str, bytes)) else text
        return _check(fields)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        return CheckReport(False, f"malformed certificate: {type(error).__name__} {str(error)[:120]}")


def _check(fields: Mapping[str, Any]) -> CheckReport:
    if fields["format"] != FORMAT:
        return CheckReport(False, f"the format is not {FORMAT!r}")
    gens, kind = _names(fields["gens"]), str(fields["kind"])
    p, multiplier = _read(fields["p"], len(gens)), _read(fields["multiplier"], len(gens))
    one = {(0,) * len(gens): Fraction(1)}
    if kind not in ("sos", "ratio", "putinar"):
        return CheckReport(False, f"unknown kind {kind[:40]!r}")
    if kind != "ratio" and multiplier != one:
        return CheckReport(False, f"a certificate of kind {kind} has the multiplier 1")
    if not multiplier or any(c <= 0 or any(e % 2 for e in m) for m, c in multiplier.items()):
        return CheckReport(False, "the multiplier is no positive sum of squares of monomials")
    if (kind == "putinar") != bool(fields["constraints"]):
        return CheckReport(False, f"a certificate of kind {kind} has {'' if kind == 'putinar' else 'no '}constraints")
    groups = [(one, fields["squares"])]
    groups += [(_read(part["g"], len(gens)), part["squares"]) for part in fields["constraints"]]
    difference = {m: -c for m, c in _product(multiplier, p).items()}
    for factor, squares in groups:
        for entry in squares:
            weight = _number(entry["weight"])
            if weight <= 0:
                return CheckReport(False, f"the weight {weight} is not positive")
            _add(difference, _product(factor, _square(_read(entry["q"], len(gens)))), weight)
    wrong = next((m for m, c in difference.items() if c), None)
    if wrong is not None:
        name = "*".join(f"{g}^{e}" for g, e in zip(gens, wrong, strict=True) if e) or "1"
        return CheckReport(False, f"the identity fails at the coefficient of {name}: difference {difference[wrong]}")
    condition = f" where its {len(groups) - 1} constraint(s) are >= 0" if kind == "putinar" else ""
    count = sum(len(squares) for _, squares in groups)
    return CheckReport(True, "exact", kind, count, f"p >= 0 for all real {', '.join(gens)}{condition}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object that says each thing once: of two values readers could take either."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field is given twice")
    return fields


def _names(gens: Any) -> list[str]:
    """Different names of variables; one name for two variables would claim what was not proved."""
    if not isinstance(gens, list) or not all(isinstance(name, str) and name.isidentifier() for name in gens):
        raise ValueError("gens is no list of names")
    if len(set(gens)) != len(gens):
        raise ValueError("gens names a variable twice")
    return gens


def _read(terms: Any, n: int) -> Terms:
    found: Terms = {}
    for exponents, coefficient in terms:
        m = tuple(exponents)
        if len(m) != n or not all(type(e) is int and 0 <= e <= 10_000 for e in m) or m in found:
            raise ValueError(f"bad or repeated exponents {exponents}")
        found[m] = _number(coefficient)
    return {m: c for m, c in found.items() if c}


def _number(text: Any) -> Fraction:
    if not isinstance(text, str) or not re.fullmatch(r"-?[0-9]+(/0*[1-9][0-9]*)?", text):
        raise ValueError(f"{str(text)[:40]!r} is no fraction")
    return Fraction(text)


def _square(q: Terms) -> Terms:
    common = lcm(*(c.denominator for c in q.values()))
    whole = [(m, int(c * common)) for m, c in q.items()]
    total: dict[tuple[int, ...], int] = {}
    for i, (m, a) in enumerate(whole):
        for k, b in whole[i:]:
            place = tuple(x + y for x, y in zip(m, k, strict=True))
            total[place] = total.get(place, 0) + (a * b if m == k else 2 * a * b)
    return {m: Fraction(c, common * common) for m, c in total.items()}


def _product(a: Terms, b: Terms) -> Terms:
    total: Terms = {}
    for m, c in a.items():
        for k, d in b.items():
            place = tuple(x + y for x, y in zip(m, k, strict=True))
            total[place] = total.get(place, Fraction(0)) + c * d
    return total


def _add(total: Terms, terms: Terms, weight: Fraction) -> None:
    for m, c in terms.items():
        total[m] = total.get(m, Fraction(0)) + weight * c
