"""Prove that a polynomial is nonnegative, exactly: propose, refine, recover, certify.

The method is NSPI (arXiv 2605.15445): an approximate sum of squares is proposed, corrected symbolically to an exact
one, and exported for a proof assistant. The paper's proposer is a fine-tuned language model; here it is a
semidefinite program, or any approximate answer (`refine_certificate`). The steps, each in a module of its own:

    basis        which monomials can occur; the Gram matrix falls into blocks
    proposers    approximate Gram matrices
    refinement   Gauss-Newton on their factors
    recovery     exact rational Gram matrices: interior route, and faces for the boundary
    exact        affine projection and LDLᵀ in rational arithmetic

What is not a sum of squares may be one after multiplication by Σ x_i² or 1 + Σ x_i² (Reznick 1995), or on a set
by Putinar's theorem. There are three answers, kept apart: a certificate, a point where p is negative, or undecided.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from assay.errors import InputError
from assay.science.sos_prover.basis import BasisTooLarge, half_newton_basis, monomials_up_to, parity_blocks
from assay.science.sos_prover.certificates import Certificate, ConstraintSquares
from assay.science.sos_prover.gram import Array, GramProblem
from assay.science.sos_prover.outcomes import NotNonnegative, Undecided
from assay.science.sos_prover.polynomials import MAX_VARIABLES, Polynomial, as_polynomial
from assay.science.sos_prover.proposers import (
    NewtonProposer,
    Proposal,
    SDPProposer,
    SOSProposer,
    factors_of_terms,
    propose_terms,
)
from assay.science.sos_prover.recovery import Recovery, Term
from assay.science.sos_prover.refinement import gauss_newton
from assay.science.sos_prover.refutation import negative_at_vertex, negative_point
from assay.science.sos_prover.sdp import SOLVERS
from assay.science.sos_prover.text import parse_sos

__all__ = ["prove_nonneg", "refine_certificate", "sos_problem"]

MAX_PAIRS = 300_000
MAX_MULTIPLIER = 3
CLEARLY_NEGATIVE, CLEARLY_POSITIVE = -1e-6, 1e-7
IN_FLOATS = -1e-8
LOWEST_SIZE, LARGEST_SIZE = Fraction(1, 10**150), 10**150
MAX_BITS = 14_000
"""Of a number in a certificate: Python reads and writes whole numbers of up to 4,300 digits."""
QUICK_STARTS = 2


def prove_nonneg(
    p: Any,
    gens: Sequence[str] | None = None,
    *,
    constraints: Sequence[Any] = (),
    degree: int | None = None,
    proposer: str | SOSProposer = "sdp",
    solver: str = "CLARABEL",
    denominators: Sequence[int] = (0, 1, 2),
    timeout: float = 60.0,
    seed: int = 0,
    exact_floats: bool = False,
) -> Certificate:
    """An exact certificate that p ≥ 0, everywhere or where the constraints are nonnegative.

    Parameters
    ----------
    p : str, dict, sympy.Expr, sympy.Poly or Polynomial
        A dictionary maps exponent tuples to int or Fraction.
    gens : sequence of str, optional
        The variables; by default those that occur in p and the constraints.
    constraints : sequence of polynomials
        g_j: p is proved nonnegative where every g_j ≥ 0, by Putinar's theorem.
    degree : int, optional
        Largest degree of the terms of the identity. With constraints it defaults to the smallest even number that
        p and the constraints fit in; without, every multiplier of `denominators` may be tried.
    proposer : {"sdp", "newton"} or SOSProposer
        Where approximate Gram matrices come from. "newton" is Gauss-Newton from the identity, without an SDP.
    solver : {"CLARABEL", "SCS"}
    denominators : sequence of int
        Powers r in 0..3 of the multiplier Σ x_i² (for a form) or 1 + Σ x_i², tried in turn.
    timeout : float
        Seconds after which nothing further is begun.
    seed : int
        Of the search for points where p is negative.
    exact_floats : bool
        Take float coefficients for the binary fractions that they are; otherwise they are refused.

    Returns
    -------
    Certificate

    Raises
    ------
    NotNonnegative
        With a rational point where p is negative.
    Undecided
        Neither was found: p may still be nonnegative.
    InputError, TypeError
        p is no polynomial, has an unknown variable, or float coefficients.

    References
    ----------
    arXiv 2605.15445 (the method; hyperparameters are not public and reconstructed here); Peyrl and Parrilo 2008
    (rounding); Borwein and Wolkowicz 1981 (facial reduction).

    Examples
    --------
    >>> print(prove_nonneg("2*x^4 + 5*y^4 - x^2*y^2 + 2*x^3*y").verify())
    True
    >>> prove_nonneg("x^4*y^2 + x^2*y^4 + 1 - 3*x^2*y^2").kind
    'ratio'
    >>> prove_nonneg("x^2 - 2*x + 999/1000")
    Traceback (most recent call last):
    assay.science.sos_prover.outcomes.NotNonnegative: p is negative: p = -1/1000 at x = 1
    >>> prove_nonneg("4*x^3 - 3*x + 1", constraints=["x", "1 - x"]).kind
    'putinar'
    """
    target, sides = _read(p, gens, constraints, exact_floats)
    _check_options(target, sides, degree, denominators, timeout)
    proposing = _proposer(proposer, solver)
    deadline = time.monotonic() + timeout
    if target.is_constant:
        return _constant(target)
    search = _Search(target, sides, proposing, deadline, seed)
    if target.degree % 2:
        search.look_for_negative_point()
    for attempt in _attempts(target, sides, degree, denominators):
        certificate = search.certify(attempt)
        if certificate is not None:
            return certificate
        search.look_for_negative_point()
        if search.is_sum_of_squares_in_floats:
            break
    _refute(target, sides, seed=seed + 1, hints=search.means)
    raise search.undecided()


def refine_certificate(
    p: Any, approx_terms: Any, gens: Sequence[str] | None = None, *, max_steps: int = 50, timeout: float = 60.0
) -> Certificate:
    """Repair an approximate sum of squares to an exact one, without any SDP.

    Gauss-Newton makes the proposal right to machine precision; recovery makes it exact. Where the limit has no
    rational range, the mean of the limits from eight perturbed starts is tried: it is a Gram matrix of larger rank.

    Parameters
    ----------
    p : str, dict, sympy.Expr, sympy.Poly or Polynomial
    approx_terms : sequence of (weight, polynomial), or str
        Σ weight · q² ≈ p; floats are welcome here. A text is read by `parse_sos`.
    gens : sequence of str, optional
    max_steps : int
        Gauss-Newton steps.
    timeout : float
        Seconds after which nothing further is begun.

    Returns
    -------
    Certificate

    Raises
    ------
    Undecided
        No exact sum of squares was found near the proposal.
    InputError
        Terms that are no pairs of a weight and a polynomial, a negative weight, a text that does not parse.

    Examples
    --------
    >>> cert = refine_certificate("x^2 - 2/3*x*y + 1/9*y^2", "1.01*(x - 0.34*y)^2")
    >>> print(cert)
    x^2 - 2/3*x*y + 1/9*y^2 = 1/9*(3*x - y)^2
    """
    if max_steps < 1:
        raise InputError(f"max_steps must be 1 or more, got {max_steps}")
    target, _ = _read(p, gens, (), False)
    terms = _read_terms(approx_terms, target)
    if target.is_constant:
        return _constant(target)
    problem = sos_problem(target)
    if problem.unreachable:
        raise Undecided(_unreachable(problem), target.degree)
    recovery = Recovery(_newton_centre, time.monotonic() + timeout)
    for proposal in _refined_proposals(problem, terms, max_steps):
        found = recovery.terms(problem, proposal.grams)
        if found is not None:
            certificate = _certificate(target, Polynomial.constant(target.gens, 1), problem, found, "sos")
            if certificate.bits <= MAX_BITS:
                return certificate
    raise Undecided("no exact sum of squares was found near the proposal", target.degree)


@dataclass(frozen=True)
class _Attempt:
    """One identity to look for: multiplier · p = Σ_j g_j Σ squares."""

    kind: str
    multiplier: Polynomial
    build: Callable[[], GramProblem]


class _Search:
    """Attempts one identity after another, remembering what to say if none is found."""

    def __init__(
        self, target: Polynomial, sides: Sequence[Polynomial], proposer: SOSProposer, deadline: float, seed: int
    ) -> None:
        self.target = target
        self.sides = sides
        self.proposer = proposer
        self.deadline = deadline
        self.seed = seed
        self.looked = False
        self.is_sum_of_squares_in_floats = False
        self.means: list[Array] = []
        self.reason = "no representation was tried"
        self.degree = target.degree
        self.lambda_min: float | None = None

    def certify(self, attempt: _Attempt) -> Certificate | None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            self.reason = "the time ran out"
            return None
        try:
            problem = attempt.build()
        except Undecided as refusal:
            if self.lambda_min is None:
                raise
            self.reason = refusal.reason
            return None
        self.degree = max(self.degree, attempt.multiplier.degree + self.target.degree)
        if problem.unreachable:
            self.reason = _unreachable(problem)
            return None
        proposal = self.proposer.propose(problem, left)
        if proposal is None:
            self.reason = "the proposer found no Gram matrices near p"
            return None
        self._remember(proposal)
        if proposal.lambda_min is not None and proposal.lambda_min < CLEARLY_NEGATIVE:
            self.reason = "no Gram matrix is positive semidefinite (to the solver's precision)"
            return None
        if proposal.lambda_min is None or proposal.lambda_min < CLEARLY_POSITIVE:
            self.look_for_negative_point()
        terms = Recovery(self._centre, self.deadline).terms(problem, proposal.grams)
        if terms is None:
            self.is_sum_of_squares_in_floats = proposal.lambda_min is not None and proposal.lambda_min > IN_FLOATS
            out_of_time = time.monotonic() > self.deadline
            self.reason = "the time ran out" if out_of_time else "Gram matrices exist in floats, none was made exact"
            return None
        certificate = _certificate(self.target, attempt.multiplier, problem, terms, attempt.kind)
        if certificate.bits > MAX_BITS:
            self.reason = f"the proof that was found has numbers of {certificate.bits} bits, too large to be written"
            return None
        return certificate

    def look_for_negative_point(self) -> None:
        """A short search, once: before the first long attempt at a proof. Raises `NotNonnegative`."""
        if not self.looked:
            self.looked = True
            _refute(self.target, self.sides, starts=QUICK_STARTS, seed=self.seed, hints=self.means)

    def undecided(self) -> Undecided:
        return Undecided(self.reason, self.degree, self.lambda_min)

    def _remember(self, proposal: Proposal) -> None:
        self.means += proposal.mean
        if proposal.lambda_min is not None:
            known = self.lambda_min
            self.lambda_min = proposal.lambda_min if known is None else max(known, proposal.lambda_min)

    def _centre(self, problem: GramProblem) -> list[Array] | None:
        """Central Gram matrices on a face: by the SDP where that is the proposer, else by Gauss-Newton."""
        if not isinstance(self.proposer, SDPProposer):
            return _newton_centre(problem)
        proposal = self.proposer.propose(problem, max(1.0, self.deadline - time.monotonic()))
        if proposal is None or (proposal.lambda_min or 0.0) < 10 * CLEARLY_NEGATIVE:
            return None
        return proposal.grams


def _newton_centre(problem: GramProblem) -> list[Array] | None:
    proposal = NewtonProposer().propose(problem, 0.0)
    return None if proposal is None else proposal.grams


def _attempts(
    target: Polynomial, sides: Sequence[Polynomial], degree: int | None, denominators: Sequence[int]
) -> Iterator[_Attempt]:
    one = Polynomial.constant(target.gens, 1)
    if sides:
        needed = max(q.degree for q in (target, *sides))
        top = degree if degree is not None else needed + needed % 2
        yield _Attempt("putinar", one, lambda: _putinar_problem(target, sides, top))
        return
    for power in denominators:
        multiplier = _norm(target) ** power
        if degree is None or multiplier.degree + target.degree <= degree:
            kind = "ratio" if power else "sos"
            yield _Attempt(kind, multiplier, lambda m=multiplier: sos_problem(m * target))  # type: ignore[misc]


def _norm(target: Polynomial) -> Polynomial:
    """Σ x_i² for a form, 1 + Σ x_i² otherwise: reaches every positive definite form in some power (Reznick 1995)."""
    total = Polynomial.constant(target.gens, 0 if target.is_homogeneous else 1)
    for x in Polynomial.variables(target.gens):
        total = total + x * x
    return total


def sos_problem(target: Polynomial) -> GramProblem:
    """The Gram problem of a polynomial over half its Newton polytope; `Undecided` where that is too large."""
    return _problem(target, lambda: [half_newton_basis(target)], ())


def _putinar_problem(target: Polynomial, sides: Sequence[Polynomial], degree: int) -> GramProblem:
    """p = σ_0 + Σ σ_j g_j with every term of at most that degree."""
    n = len(target.gens)
    return _problem(
        target, lambda: [monomials_up_to(n, max(0, degree - g.degree) // 2) for g in (_one(target), *sides)], sides
    )


def _one(target: Polynomial) -> Polynomial:
    return Polynomial.constant(target.gens, 1)


def _problem(target: Polynomial, bases: Callable[[], list[Any]], sides: Sequence[Polynomial]) -> GramProblem:
    """A problem that is worth building: otherwise `Undecided` with the size and the memory that it would take."""
    try:
        chosen = bases()
    except BasisTooLarge as error:
        raise Undecided(_too_large(error.size), target.degree) from None
    support = [m for q in (target, *sides) for m in q.terms]
    pairs = sum(len(part) ** 2 // 2 for basis in chosen for part in parity_blocks(basis, support))
    if pairs > MAX_PAIRS:
        raise Undecided(_too_large(sum(map(len, chosen))), target.degree)
    return GramProblem.from_monomials(target, chosen, sides)


def _too_large(size: int) -> str:
    gigabytes = 8 * (size * (size + 1) / 2) ** 2 / 1e9
    return f"the basis has {size} monomials; an SDP over it needs about {gigabytes:,.0f} GB of memory"


def _unreachable(problem: GramProblem) -> str:
    p = Polynomial(problem.target.gens, {m: problem.target.terms[m] for m in problem.unreachable[:1]})
    return f"the term {p} is in no product of two basis monomials"


def _certificate(
    target: Polynomial, multiplier: Polynomial, problem: GramProblem, terms: Sequence[Term], kind: str
) -> Certificate:
    """The certificate, multiplied out once more; a wrong one would be a defect of the prover, not of the input."""
    groups: list[list[Term]] = [[] for _ in problem.constraints]
    for term in terms:
        groups[term.constraint].append(term)
    parts = tuple(
        ConstraintSquares(g, tuple(t.weight for t in group), tuple(t.square for t in group))
        for g, group in zip(problem.constraints[1:], groups[1:], strict=True)
    )
    certificate = Certificate(
        target, target.gens, tuple(t.weight for t in groups[0]), tuple(t.square for t in groups[0]), multiplier,
        parts, kind, sum(problem.sizes),
    )
    if not certificate.verify():
        raise ArithmeticError(f"the recovered identity is wrong for {target}")
    return certificate


def _constant(target: Polynomial) -> Certificate:
    one = Polynomial.constant(target.gens, 1)
    value = target.at((0,) * len(target.gens))
    if value < 0:
        raise NotNonnegative(target.gens, (Fraction(0),) * len(target.gens), value)
    return Certificate(target, target.gens, (value,) if value else (), (one,) if value else (), one, basis_size=1)


def _refute(
    target: Polynomial, sides: Sequence[Polynomial], *, seed: int, starts: int | None = None,
    hints: Sequence[Array] = (),
) -> None:
    found = None if sides else negative_at_vertex(target)
    if found is None and target.gens:
        options = {} if starts is None else {"starts": starts}
        found = negative_point(target, sides, seed=seed, hints=hints, **options)
    if found is not None:
        raise NotNonnegative(target.gens, *found)


def _refined_proposals(
    problem: GramProblem, terms: Sequence[tuple[Fraction, Polynomial]], max_steps: int
) -> Iterator[Proposal]:
    first = propose_terms(problem, terms, max_steps)
    if first is not None:
        yield first
    factors = factors_of_terms(problem, terms)
    size = max((np.abs(f).max(initial=0.0) for f in factors), default=0.0) or 1.0
    rng = np.random.default_rng(0)
    limits = []
    for _ in range(8):
        start = [np.hstack([f, np.zeros_like(f)]) + 0.05 * size * rng.standard_normal((len(f), 2 * f.shape[1]))
                 for f in factors]
        refined = gauss_newton(problem, start, max_steps=max_steps)
        if refined.converged:
            limits.append(refined.grams)
    if limits:
        yield Proposal([np.mean(grams, axis=0) for grams in zip(*limits, strict=True)])


def _read(
    p: Any, gens: Sequence[str] | None, constraints: Sequence[Any], exact_floats: bool
) -> tuple[Polynomial, list[Polynomial]]:
    if isinstance(constraints, (str, dict)):
        raise InputError("constraints must be a sequence of polynomials")
    polynomials = [as_polynomial(p, gens, exact_floats=exact_floats)]
    for number, g in enumerate(constraints, 1):
        own = polynomials[0].gens if isinstance(g, dict) and gens is None else gens
        polynomials.append(as_polynomial(g, own, exact_floats=exact_floats, what=f"constraint {number}"))
    names = polynomials[0].gens
    names += tuple(name for name in dict.fromkeys(n for g in polynomials[1:] for n in g.gens) if name not in names)
    target, *sides = (as_polynomial(q, names) for q in polynomials)
    if len(names) > MAX_VARIABLES:
        raise InputError(f"there are {len(names)} variables; at most {MAX_VARIABLES} are taken")
    for q in (target, *sides):
        _check_range(q)
    for number, g in enumerate(sides, 1):
        if g.is_constant:
            value = g.at((0,) * len(names))
            meaning = "the constraint set is empty" if value < 0 else "it constrains nothing"
            raise InputError(f"constraint {number} is the number {value}: {meaning}")
    return target, sides


def _check_range(p: Polynomial) -> None:
    """Proposals are made in floats: coefficients must not overflow or vanish there."""
    for m, c in p.terms.items():
        if not LOWEST_SIZE < abs(c) < LARGEST_SIZE:
            size = math.floor(math.log10(abs(c.numerator)) - math.log10(c.denominator))
            raise InputError(
                f"the coefficient of the monomial with exponents {m} is of the size 1e{size}: it must lie between "
                "1e-150 and 1e150; scale p or its variables"
            )


def _read_terms(approx_terms: Any, target: Polynomial) -> list[tuple[Fraction, Polynomial]]:
    if isinstance(approx_terms, str):
        return parse_sos(approx_terms, target.gens)
    terms = []
    for number, entry in enumerate(approx_terms, 1):
        try:
            weight, q = entry
        except (TypeError, ValueError):
            raise InputError(f"approx_terms: term {number} must be a pair (weight, polynomial)") from None
        value = as_polynomial(weight, (), exact_floats=True, what=f"the weight of term {number}").at(())
        if value < 0:
            raise InputError(f"approx_terms: the weight of term {number} is negative: {weight}")
        terms.append((value, as_polynomial(q, target.gens, exact_floats=True, what=f"term {number}")))
    if not terms:
        raise InputError("approx_terms is empty: at least one (weight, polynomial) is expected")
    return terms


def _check_options(
    target: Polynomial, sides: Sequence[Polynomial], degree: int | None, denominators: Sequence[int], timeout: float
) -> None:
    if degree is not None and degree < target.degree:
        raise InputError(f"degree = {degree} is too low: p has degree {target.degree}")
    lowest = max((g.degree for g in sides), default=0)
    if degree is not None and degree < lowest:
        raise InputError(f"degree = {degree} is too low: a constraint has degree {lowest}")
    bad = [r for r in denominators if not isinstance(r, int) or not 0 <= r <= MAX_MULTIPLIER]
    if bad or not denominators:
        raise InputError(f"denominators must be powers from 0 to {MAX_MULTIPLIER}, got {list(denominators)}")
    if not timeout > 0:
        raise InputError(f"timeout must be positive, got {timeout}")


def _proposer(proposer: str | SOSProposer, solver: str) -> SOSProposer:
    if solver not in SOLVERS:
        raise InputError(f"solver must be one of {', '.join(SOLVERS)}, got {solver!r}")
    if proposer == "sdp":
        return SDPProposer(solver)
    if proposer == "newton":
        return NewtonProposer()
    if isinstance(proposer, str) or not hasattr(proposer, "propose"):
        raise InputError(f"proposer must be 'sdp', 'newton' or have a method propose, got {proposer!r}")
    return proposer
