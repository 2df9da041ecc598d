"""Who proposes approximate Gram matrices: an SDP solver, Gauss-Newton alone, or an approximate answer from anywhere.

The paper's proposer is a language model (arXiv 2605.15445). None is run here: `TextProposer` takes what one printed.
The protocol and the other proposers are reconstructed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np

from assay.errors import InputError
from assay.science.sos_prover.gram import Array, GramProblem
from assay.science.sos_prover.polynomials import Polynomial
from assay.science.sos_prover.refinement import gauss_newton
from assay.science.sos_prover.refutation import first_moments
from assay.science.sos_prover.sdp import solve_problem
from assay.science.sos_prover.text import parse_sos

__all__ = [
    "NewtonProposer", "NoisyProposer", "Proposal", "SDPProposer", "SOSProposer", "TextProposer", "factors_of_terms",
]

LARGEST_SDP_BLOCK = 80


@dataclass(frozen=True)
class Proposal:
    """Approximate Gram matrices of target / scale.

    Attributes
    ----------
    grams : list of array (N_j, N_j)
    lambda_min : float or None
        Largest smallest eigenvalue that any Gram matrices have, where the proposer knows it.
    mean : list of array
        Points near which p may be negative.
    """

    grams: list[Array]
    lambda_min: float | None = None
    mean: tuple[Array, ...] = ()


class SOSProposer(Protocol):
    """Proposes Gram matrices for a problem, or None when it has no idea."""

    def propose(self, problem: GramProblem, time_limit: float) -> Proposal | None: ...


@dataclass(frozen=True)
class SDPProposer:
    """The Gram matrices of largest smallest eigenvalue, by Clarabel or SCS.

    Blocks over 80 basis polynomials, where an interior-point step takes seconds, go to `NewtonProposer`.

    Parameters
    ----------
    solver : {"CLARABEL", "SCS"}

    Examples
    --------
    >>> from assay.science.sos_prover import prove_nonneg
    >>> prove_nonneg("x^4 + y^4 + 1 - x*y", proposer=SDPProposer("SCS")).verify()
    True
    """

    solver: str = "CLARABEL"

    def propose(self, problem: GramProblem, time_limit: float) -> Proposal | None:
        """Solve the moment problem within the time limit (seconds)."""
        if max(problem.sizes, default=0) > LARGEST_SDP_BLOCK:
            return NewtonProposer().propose(problem, time_limit)
        answer = solve_problem(problem, solver=self.solver, time_limit=time_limit)
        if not all(np.isfinite(gram).all() for gram in answer.grams):
            return None
        mean = first_moments(problem.target.gens, problem.index, answer.y)
        return Proposal(answer.grams, answer.t, tuple(mean))


@dataclass(frozen=True)
class NewtonProposer:
    """Gauss-Newton from a multiple of the identity (Burer-Monteiro at full rank): no SDP solver, fast at any size.

    Parameters
    ----------
    start : float
        The factors begin as this multiple of the identity (the problem has largest coefficient one).
    max_steps : int
        Gauss-Newton steps.

    Examples
    --------
    >>> from assay.science.sos_prover import prove_nonneg
    >>> prove_nonneg("x^4 + y^4 + 1 - x*y", proposer=NewtonProposer()).verify()
    True
    """

    start: float = 0.5
    max_steps: int = 50

    def propose(self, problem: GramProblem, time_limit: float) -> Proposal | None:
        """Refine multiples of the identity; None if they end far from any Gram matrix."""
        refined = gauss_newton(problem, [self.start * np.eye(n) for n in problem.sizes], max_steps=self.max_steps)
        return Proposal(refined.grams) if refined.residual < 1e-4 else None


@dataclass(frozen=True)
class TextProposer:
    """An approximate sum of squares as text, or a function from the polynomial (as text) to such a text.

    Parameters
    ----------
    answer : str or callable
        What a language model printed, or a function that asks one. The text is parsed, never evaluated; one that
        does not parse is an `InputError` with the position.

    Examples
    --------
    >>> from assay.science.sos_prover import prove_nonneg
    >>> print(prove_nonneg("9*x^2 - 6*x*y + y^2", proposer=TextProposer("9*(x - 0.33*y)^2")))
    9*x^2 - 6*x*y + y^2 = 1*(3*x - y)^2
    """

    answer: str | Callable[[str], str]

    def propose(self, problem: GramProblem, time_limit: float) -> Proposal | None:
        """Parse the answer and refine it; None where Gauss-Newton finds no sum of squares nearby."""
        text = self.answer if isinstance(self.answer, str) else self.answer(str(problem.target))
        return propose_terms(problem, parse_sos(text, problem.target.gens))


@dataclass(frozen=True)
class NoisyProposer:
    """A true sum of squares, spoilt: for measuring how much refinement forgives.

    The squares are mixed by a random rotation (a numerical answer is known up to one only) and every coefficient
    over the basis gets Gaussian noise of standard deviation `noise` times the largest coefficient of its square.

    Parameters
    ----------
    squares : tuple of Polynomial
        The target is Σ q².
    noise : float
    seed : int

    Examples
    --------
    >>> from assay.science.sos_prover import generate, prove_nonneg
    >>> p, squares = generate(3, seed=1)
    >>> prove_nonneg(p, proposer=NoisyProposer(tuple(squares), noise=0.1)).rank
    3
    """

    squares: tuple[Polynomial, ...]
    noise: float
    seed: int = 0

    def propose(self, problem: GramProblem, time_limit: float) -> Proposal | None:
        """Refine the spoilt squares; None where Gauss-Newton finds no sum of squares nearby."""
        refined = gauss_newton(problem, self.factors(problem))
        return Proposal(refined.grams) if refined.converged else None

    def factors(self, problem: GramProblem) -> list[Array]:
        """The spoilt factors, before any refinement."""
        clean = np.vstack(factors_of_terms(problem, [(Fraction(1), q) for q in self.squares]))
        rng = np.random.default_rng(self.seed)
        rotation, _ = np.linalg.qr(rng.standard_normal((clean.shape[1],) * 2))
        mixed = clean @ rotation
        noisy = mixed + self.noise * np.abs(mixed).max(axis=0) * rng.standard_normal(mixed.shape)
        return np.split(noisy, np.cumsum(problem.sizes)[:-1])


def propose_terms(
    problem: GramProblem, terms: Sequence[tuple[Fraction, Polynomial]], max_steps: int = 50
) -> Proposal | None:
    """Approximate weighted squares, refined by Gauss-Newton; None where that finds no sum of squares nearby."""
    refined = gauss_newton(problem, factors_of_terms(problem, terms), max_steps=max_steps)
    return Proposal(refined.grams) if refined.converged else None


def factors_of_terms(problem: GramProblem, terms: Sequence[tuple[Fraction, Polynomial]]) -> list[Array]:
    """Factors L_j (N_j × number of terms) of Σ w q² over monomial bases, scaled like the problem.

    Coefficients at monomials that no exact sum of squares of the target can contain are left out.
    """
    if any(block.constraint for block in problem.blocks):
        raise InputError("approximate squares are taken for global inequalities, without constraints")
    factors = []
    for block in problem.blocks:
        place = {next(iter(b.terms)): i for i, b in enumerate(block.basis)}
        factor = np.zeros((block.size, len(terms)))
        for k, (weight, q) in enumerate(terms):
            for m, c in q.terms.items():
                if m in place:
                    factor[place[m], k] = float(c) * float(weight / Fraction(problem.scale)) ** 0.5
        factors.append(factor)
    return factors
