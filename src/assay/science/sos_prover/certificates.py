"""Certificates: an exact identity that makes nonnegativity plain, and its forms for other checkers.

    multiplier · p = Σ_k w_k q_k² + Σ_j g_j Σ_k w_jk q_jk²      with every weight positive.

`kind` is "sos" (the multiplier is 1, no constraints), "ratio" (the multiplier is a power of Σ x_i² or of
1 + Σ x_i², which is positive almost everywhere) or "putinar" (p ≥ 0 wherever every g_j ≥ 0).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm
from typing import Any

from assay.errors import InputError
from assay.science.sos_prover.polynomials import Polynomial, weighted_square_sum

__all__ = ["FORMAT", "Certificate", "ConstraintSquares"]

FORMAT = "assay sum-of-squares certificate 1"
MAX_EXPONENT = 10_000


@dataclass(frozen=True)
class ConstraintSquares:
    """The multiplier of one constraint: g · Σ w q²."""

    constraint: Polynomial
    weights: tuple[Fraction, ...] = ()
    squares: tuple[Polynomial, ...] = ()


@dataclass(frozen=True)
class Certificate:
    """An exact proof that p is nonnegative (arXiv 2605.15445; the JSON form is ours).

    Attributes
    ----------
    p : Polynomial
    gens : tuple of str
    weights : tuple of Fraction
        All positive.
    squares : tuple of Polynomial
    multiplier : Polynomial
    constraint_squares : tuple of ConstraintSquares
    kind : {"sos", "ratio", "putinar"}
    basis_size : int
        Basis monomials N that the Gram matrices were taken over, all blocks together.

    Raises
    ------
    InputError
        By `from_json` for what is no certificate, by the exports for a name that is no identifier.

    Examples
    --------
    >>> from assay.science.sos_prover import prove_nonneg
    >>> cert = prove_nonneg("x^2 - 2*x*y + 2*y^2")
    >>> cert.verify(), cert.rank
    (True, 2)
    >>> Certificate.from_json(cert.to_json()) == cert
    True
    """

    p: Polynomial
    gens: tuple[str, ...]
    weights: tuple[Fraction, ...]
    squares: tuple[Polynomial, ...]
    multiplier: Polynomial
    constraint_squares: tuple[ConstraintSquares, ...] = ()
    kind: str = "sos"
    basis_size: int = 0

    @property
    def rank(self) -> int:
        """Number of squares."""
        return len(self.squares) + sum(len(part.squares) for part in self.constraint_squares)

    @property
    def bits(self) -> int:
        """Bits of the largest numerator or denominator anywhere in the proof."""
        groups = [(self.weights, self.squares), *((c.weights, c.squares) for c in self.constraint_squares)]
        numbers = [w for weights, _ in groups for w in weights]
        sizes = [max(w.numerator.bit_length(), w.denominator.bit_length()) for w in numbers]
        return max([*sizes, *(q.bits for _, squares in groups for q in squares)], default=0)

    def verify(self) -> bool:
        """Whether the identity holds exactly, every weight and the multiplier are positive, and `kind` says so."""
        if not self._is_of_its_kind():
            return False
        weights = [*self.weights, *(w for part in self.constraint_squares for w in part.weights)]
        if any(w <= 0 for w in weights) or not _is_positive(self.multiplier):
            return False
        total = weighted_square_sum(self.weights, self.squares, self.gens)
        for part in self.constraint_squares:
            total = total + part.constraint * weighted_square_sum(part.weights, part.squares, self.gens)
        return dict(total.terms) == dict((self.multiplier * self.p).terms)

    def _is_of_its_kind(self) -> bool:
        """Only a ratio has a multiplier other than 1, and only a Putinar identity has constraints."""
        plain = dict(self.multiplier.terms) == {(0,) * len(self.gens): 1}
        constrained = bool(self.constraint_squares)
        kinds = {"sos": plain and not constrained, "ratio": not constrained, "putinar": plain and constrained}
        return kinds.get(self.kind, False)

    def __str__(self) -> str:
        left = str(self.p) if self.kind != "ratio" else f"({self.multiplier})*({self.p})"
        return f"{left} = {_plain_sum(self)}"

    def to_json(self) -> str:
        """The certificate as JSON text: exponents and exact coefficients, read by `check_certificate` too."""
        return json.dumps({
            "format": FORMAT,
            "kind": self.kind,
            "gens": list(self.gens),
            "p": _terms_out(self.p),
            "multiplier": _terms_out(self.multiplier),
            "squares": _squares_out(self.weights, self.squares),
            "constraints": [
                {"g": _terms_out(part.constraint), "squares": _squares_out(part.weights, part.squares)}
                for part in self.constraint_squares
            ],
            "basis_size": self.basis_size,
        })

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """Read what `to_json` wrote; anything else is an `InputError`. Nothing is verified."""
        try:
            fields = json.loads(text, object_pairs_hook=_fields)
            if not isinstance(fields, Mapping) or fields.get("format") != FORMAT:
                raise InputError(f"no certificate: expected a JSON object with format {FORMAT!r}")
            gens = _gens_in(fields["gens"])
            weights, squares = _squares_in(fields["squares"], gens)
            parts = tuple(
                ConstraintSquares(_terms_in(part["g"], gens), *_squares_in(part["squares"], gens))
                for part in fields["constraints"]
            )
            return cls(
                _terms_in(fields["p"], gens), gens, weights, squares, _terms_in(fields["multiplier"], gens), parts,
                str(fields["kind"]), int(fields.get("basis_size", 0)),
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"no certificate: {type(error).__name__} {error}") from None

    def to_lean(self, name: str = "t", mathlib: bool = True) -> str:
        """Lean 4 source with two theorems: by the identity and `positivity`, and by `nlinarith`.

        `mathlib=False` leaves the import line out, for pasting into a file that has one. Not checked here: no Lean
        toolchain is part of the tests.
        """
        return _lean(self, _identifier(name), mathlib)

    def to_coq(self, name: str = "t") -> str:
        """Coq source (standard library Reals) with one theorem: the identity by `ring`, then the squares one by one."""
        return _coq(self, _identifier(name))

    def to_latex(self) -> str:
        """The identity as LaTeX, for an align-like environment or a single line."""
        left = _latex(self.p)
        if self.kind == "ratio":
            left = rf"\left({_latex(self.multiplier)}\right)\left({left}\right)"
        parts = [_latex_terms(self.weights, self.squares, "")]
        parts += [
            _latex_terms(part.weights, part.squares, rf"\left({_latex(part.constraint)}\right)")
            for part in self.constraint_squares
        ]
        return f"{left} = {' + '.join(filter(None, parts)) or '0'}"


def _is_positive(multiplier: Polynomial) -> bool:
    """A sum of positive multiples of squares of monomials, not zero: positive except on a set without interior."""
    return bool(multiplier.terms) and all(
        c > 0 and all(e % 2 == 0 for e in m) for m, c in multiplier.terms.items()
    )


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise InputError("no certificate: a field is given twice")
    return dict(pairs)


def _gens_in(gens: Any) -> tuple[str, ...]:
    named = isinstance(gens, list) and all(isinstance(name, str) and name.isidentifier() for name in gens)
    if not named or len(set(gens)) != len(gens):
        raise InputError("no certificate: gens must be a list of different names")
    return tuple(gens)


def _terms_out(p: Polynomial) -> list[list[Any]]:
    return [[list(m), str(c)] for m, c in p.terms.items()]


def _terms_in(terms: Sequence[Sequence[Any]], gens: tuple[str, ...]) -> Polynomial:
    read = {tuple(m): _number(c) for m, c in terms}
    if any(len(m) != len(gens) or not all(type(e) is int and 0 <= e <= MAX_EXPONENT for e in m) for m in read):
        raise InputError(f"no certificate: exponents must be {len(gens)} whole numbers up to {MAX_EXPONENT}")
    if len(read) != len(terms):
        raise InputError("no certificate: a monomial is given twice")
    return Polynomial(gens, {m: c for m, c in read.items() if c})


def _number(text: Any) -> Fraction:
    if not isinstance(text, str) or not re.fullmatch(r"-?[0-9]+(/0*[1-9][0-9]*)?", text):
        raise InputError(f"no certificate: {str(text)[:40]!r} is no fraction")
    return Fraction(text)


def _squares_out(weights: Sequence[Fraction], squares: Sequence[Polynomial]) -> list[dict[str, Any]]:
    return [{"weight": str(w), "q": _terms_out(q)} for w, q in zip(weights, squares, strict=True)]


def _squares_in(entries: Sequence[Mapping[str, Any]], gens: tuple[str, ...]) -> tuple[Any, Any]:
    return tuple(_number(e["weight"]) for e in entries), tuple(_terms_in(e["q"], gens) for e in entries)


def _plain_sum(cert: Certificate) -> str:
    parts = [f"{w}*({q})^2" for w, q in zip(cert.weights, cert.squares, strict=True)]
    for part in cert.constraint_squares:
        parts += [f"{w}*({part.constraint})*({q})^2" for w, q in zip(part.weights, part.squares, strict=True)]
    return " + ".join(parts) or "0"


def _identifier(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise InputError(f"a theorem can't be called {name!r}: letters, digits and underscores are expected")
    if RESERVED.fullmatch(name):
        raise InputError(f"a theorem can't be called {name!r}: Lean or Coq uses the word itself")
    return name


RESERVED = re.compile(
    "R|IZR|Rle|Rlt|Prop|Set|Type|SProp|Sort|as|at|axiom|by|by_cases|calc|class|cofix|def|do|else|end|example|exists|fix"
    "|for|forall|from|fun|have|if|import|in|inductive|instance|lemma|let|macro|match|mod|mutual|namespace|notation"
    "|obtain|open|private|protected|rcases|return|section|set_option|show|structure|suffices|syntax|then|theorem|this"
    "|universe|unless|using|variable|where|with|H[lnpswz]?|Hg[0-9]+|Z[0-9]+|h[nps]?|h[0-9]+|hg[0-9]+"
)
"""Words of the two languages, and the names of hypotheses that the exported proofs use themselves."""


def _safe_gens(cert: Certificate) -> tuple[str, ...]:
    """Names that neither Lean nor Coq reserves."""
    return tuple(
        name if re.fullmatch(r"[A-Za-z][A-Za-z0-9]*", name) and not RESERVED.fullmatch(name) else f"v{i + 1}_"
        for i, name in enumerate(cert.gens)
    )


@dataclass(frozen=True)
class _Pieces:
    """What both proof assistants need, as text."""

    gens: tuple[str, ...]
    p: str
    base: str | None
    power: int
    terms: list[str]
    squares: list[str]
    constraints: list[str]

    @property
    def left(self) -> str:
        return f"({self.p})" if self.base is None else f"{self.multiplier} * ({self.p})"

    @property
    def multiplier(self) -> str:
        return f"({self.base})^{self.power}"

    @property
    def right(self) -> str:
        return " + ".join(self.terms) or "0"


def _pieces(cert: Certificate, number: Any) -> _Pieces:
    gens = _safe_gens(cert)

    def text(p: Polynomial) -> str:
        return _source(p, gens, number)

    base, power = None, 0
    if cert.kind == "ratio":
        base, power = _power_of_norm(cert.multiplier, gens)
    terms = [f"{number(w)} * ({text(q)})^2" for w, q in zip(cert.weights, cert.squares, strict=True)]
    squares = [text(q) for q in cert.squares]
    for part in cert.constraint_squares:
        g = text(part.constraint)
        terms += [f"{number(w)} * ({text(q)})^2 * ({g})" for w, q in zip(part.weights, part.squares, strict=True)]
    constraints = [text(part.constraint) for part in cert.constraint_squares]
    return _Pieces(gens, text(cert.p), base, power, terms, squares, constraints)


def _source(p: Polynomial, gens: Sequence[str], number: Any) -> str:
    """A polynomial with every operator written out; the order is the one of `str`."""
    terms = []
    for m in sorted(p.terms, key=lambda m: (-sum(m), tuple(-e for e in m))):
        factors = [name if e == 1 else f"{name}^{e}" for name, e in zip(gens, m, strict=True) if e]
        terms.append(" * ".join([number(p.terms[m]), *factors] if p.terms[m] != 1 or not factors else factors))
    return " + ".join(terms) or number(Fraction(0))


def _power_of_norm(multiplier: Polynomial, gens: Sequence[str]) -> tuple[str, int]:
    """The multiplier as (base, power) with base Σ x_i² or 1 + Σ x_i²."""
    norm = sum((x * x for x in Polynomial.variables(multiplier.gens)), Polynomial.constant(multiplier.gens, 0))
    text = " + ".join(f"{name}^2" for name in gens)
    for base, source in ((norm, text), (norm + 1, f"1 + {text}")):
        for power in range(1, 5):
            if dict((base**power).terms) == dict(multiplier.terms):
                return source, power
    raise InputError("only a multiplier that is a power of the squared norm, or of one plus it, can be exported")


def _lean_number(value: Fraction) -> str:
    text = str(abs(value)) if value.denominator == 1 else f"{abs(value.numerator)}/{value.denominator}"
    return f"({text} : ℝ)" if value >= 0 else f"(-({text} : ℝ))"


def _lean(cert: Certificate, name: str, mathlib: bool) -> str:
    parts = _pieces(cert, _lean_number)
    binders = "".join(f" ({' '.join(parts.gens)} : ℝ)" if parts.gens else "")
    hypotheses = "".join(f" (hg{j} : 0 ≤ {g})" for j, g in enumerate(parts.constraints, 1))
    header = ["import Mathlib", ""] if mathlib else []
    statement = f"{binders}{hypotheses} : 0 ≤ {parts.p} := by"
    proof = [f"  have h : {parts.left} = {parts.right} := by ring"]
    if cert.kind == "ratio":
        proof += [f"  have hs : 0 ≤ {parts.right} := by positivity", *_lean_ratio(parts)]
    elif cert.kind == "putinar":
        proof += _lean_putinar(cert, parts)
    else:
        proof += ["  rw [h]", "  positivity"]
    hints = ", ".join(_lean_hints(cert, parts))
    return "\n".join([
        *header, "set_option maxHeartbeats 400000", "", f"theorem {name}{statement}", *proof, "",
        f"theorem {name}_nlinarith{statement}", f"  nlinarith [{hints}]", "",
    ])


def _lean_putinar(cert: Certificate, parts: _Pieces) -> list[str]:
    """Every term is nonnegative: a square by positivity, times a constraint by its hypothesis."""
    owners = [0] * len(cert.squares)
    owners += [j for j, part in enumerate(cert.constraint_squares, 1) for _ in part.squares]
    known = [
        f"  have h{k} : 0 ≤ {term} := " + (f"mul_nonneg (by positivity) hg{owner}" if owner else "by positivity")
        for k, (term, owner) in enumerate(zip(parts.terms, owners, strict=True), 1)
    ]
    return [*known, f"  linarith [h{''.join(f', h{k}' for k in range(1, len(known) + 1))}]"]


def _lean_ratio(parts: _Pieces) -> list[str]:
    """From 0 ≤ σ p to 0 ≤ p: σ is positive, or every variable is zero and p is a number there."""
    nonnegative = f"(show (0 : ℝ) ≤ {parts.base} by positivity)"
    squares = ", ".join(f"sq_nonneg {x}" for x in parts.gens)
    zero = [f"    have h_{x} : {x} = 0 := pow_eq_zero_iff (two_ne_zero) |>.mp (by nlinarith [{squares}])"
            for x in parts.gens]
    return [
        f"  rcases {nonnegative}.eq_or_lt with h0 | h0",
        "  · skip", *zero,
        f"    simp only [{', '.join(f'h_{x}' for x in parts.gens)}]; norm_num",
        f"  · have hp : 0 < {parts.multiplier} := by positivity",
        "    by_contra hn",
        "    push_neg at hn",
        "    have := mul_neg_of_pos_of_neg hp hn",
        "    linarith [h, hs]",
    ]


def _lean_hints(cert: Certificate, parts: _Pieces) -> list[str]:
    hints = [f"sq_nonneg ({q})" for q in parts.squares]
    number = _lean_number
    for j, part in enumerate(cert.constraint_squares, 1):
        hints += [f"mul_nonneg (sq_nonneg ({_source(q, parts.gens, number)})) hg{j}" for q in part.squares]
    return hints


def _coq_number(value: Fraction) -> str:
    text = str(abs(value)) if value.denominator == 1 else f"{abs(value.numerator)} / {value.denominator}"
    return f"({text})" if value >= 0 else f"(- ({text}))"


COQ_SQUARES = (
    "repeat match goal with H : ?g |- ?g => exact H | |- 0 <= _ + _ => apply Rplus_le_le_0_compat "
    "| |- 0 <= _ * _ => apply Rmult_le_pos | |- 0 <= _ ^ 2 => apply pow2_ge_0 | |- _ => lra end."
)
"""By the form of the goal: a bare `apply` would unfold large constants."""
MAX_COMMON_BITS = 2_000
"""Up to this size weights are brought to whole numbers, for `ring`; `field` takes fractions, more slowly."""


def _coq(cert: Certificate, name: str) -> str:
    """0 ≤ p from 0 ≤ P (P = scale · p with whole coefficients), from common · [σ ·] P = Σ whole weight · q²."""
    scale = lcm(*(c.denominator for c in cert.p.terms.values()))
    weights = [*cert.weights, *(w for part in cert.constraint_squares for w in part.weights)]
    common = lcm(*((w * scale).denominator for w in weights))
    if common.bit_length() > MAX_COMMON_BITS:
        common = 1
    parts = _pieces(_scaled(cert, Fraction(scale * common)), _coq_number)
    statement = _source(cert.p, parts.gens, _coq_number)
    whole = _source(cert.p * scale, parts.gens, _coq_number)
    left = whole if parts.base is None else f"{parts.multiplier} * ({whole})"
    sides = [c for part in cert.constraint_squares for c in part.constraint.terms.values()]
    exact = all(c.denominator == 1 for c in sides) and all((w * scale * common).denominator == 1 for w in weights)
    binders = f"forall {' '.join(parts.gens)} : R, " if parts.gens else ""
    hypotheses = "".join(f"0 <= {g} -> " for g in parts.constraints)
    head = ["Require Import Reals Lra.", "Open Scope R_scope.", ""]
    if not cert.p.terms:
        return "\n".join([*head, f"Theorem {name} : {binders}{hypotheses}0 <= 0.", "Proof. intros. lra. Qed.", ""])
    names = [*parts.gens, *(f"Hg{j}" for j in range(1, len(parts.constraints) + 1))]
    return "\n".join([
        *head, f"Theorem {name} : {binders}{hypotheses}0 <= {statement}.", "Proof.",
        *([f"  intros {' '.join(names)}."] if names else []),
        f"  assert (H : ({common}) * ({left}) = {parts.right}) by {'ring' if exact else 'field'}.",
        f"  assert (Hs : 0 <= {parts.right}).",
        f"  {{ {COQ_SQUARES} }}",
        f"  assert (Hl : 0 <= {left}).",
        f"  {{ apply Rmult_le_reg_l with (r := ({common})); [ lra | rewrite Rmult_0_r, H; exact Hs ]. }}",
        "  clear H Hs.",
        f"  assert (Hw : 0 <= {whole}).",
        *(["  { exact Hl. }"] if parts.base is None else _coq_ratio(parts)),
        f"  replace ({statement}) with (({whole}) / ({scale})) by field.",
        "  apply Rmult_le_pos; [ exact Hw | lra ].", "Qed.", "",
    ])


def _scaled(cert: Certificate, factor: Fraction) -> Certificate:
    """The same squares with every weight multiplied."""
    parts = tuple(
        replace(part, weights=tuple(w * factor for w in part.weights)) for part in cert.constraint_squares
    )
    return replace(cert, weights=tuple(w * factor for w in cert.weights), constraint_squares=parts)


def _coq_ratio(parts: _Pieces) -> list[str]:
    """From 0 ≤ σ P to 0 ≤ P: σ is positive, or every variable is zero and P is a number there."""
    squares = " ".join(f"pose proof (pow2_ge_0 {x})." for x in parts.gens)
    zero = [f"    assert (Z{i} : {x} = 0) by (apply Rsqr_0_uniq; unfold Rsqr; lra)." for i, x in enumerate(parts.gens)]
    return [
        f"  {{ {squares}",
        f"  assert (Hn : 0 <= {parts.base}) by lra.",
        "  destruct (Rle_lt_or_eq_dec _ _ Hn) as [Hp | Hz].",
        f"  - apply Rmult_le_reg_l with (r := {parts.multiplier}).",
        "    + apply pow_lt. exact Hp.",
        "    + rewrite Rmult_0_r. exact Hl.",
        "  - clear Hl Hn.",
        *zero,
        f"    rewrite {', '.join(f'Z{i}' for i in range(len(parts.gens)))}. lra. }}",
    ]


def _latex(p: Polynomial) -> str:
    text = ""
    for m in sorted(p.terms, key=lambda m: (-sum(m), tuple(-e for e in m))):
        c = p.terms[m]
        names = " ".join(
            _latex_name(name) if e == 1 else f"{_latex_name(name)}^{{{e}}}"
            for name, e in zip(p.gens, m, strict=True) if e
        )
        size = "" if abs(c) == 1 and names else _latex_number(abs(c))
        text += f" {'-' if c < 0 else '+'} {size} {names}".rstrip()
    return re.sub(r"\s+", " ", text).strip().removeprefix("+ ").replace("- ", "-", 1) if text.startswith(" -") else (
        re.sub(r"\s+", " ", text).strip().removeprefix("+ ") or "0"
    )


def _latex_name(name: str) -> str:
    match = re.fullmatch(r"([A-Za-z]+)_?(\d+)", name)
    return f"{match[1]}_{{{match[2]}}}" if match else name


def _latex_number(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _latex_terms(weights: Sequence[Fraction], squares: Sequence[Polynomial], factor: str) -> str:
    return " + ".join(
        rf"{'' if w == 1 else _latex_number(w)}{factor}\left({_latex(q)}\right)^2"
        for w, q in zip(weights, squares, strict=True)
    )
