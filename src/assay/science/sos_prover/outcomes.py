"""The two answers of the prover that are not a certificate (reconstructed: the paper speaks of success only)."""

from __future__ import annotations

from fractions import Fraction

from assay.errors import AssayError

__all__ = ["NotNonnegative", "Undecided"]


class NotNonnegative(AssayError, ValueError):
    """The polynomial is negative somewhere: a rational point and the exact value there.

    Attributes
    ----------
    point : tuple of Fraction
        In the order of the variables; satisfies every constraint.
    value : Fraction
        The value of p at the point, below zero.
    """

    def __init__(self, gens: tuple[str, ...], point: tuple[Fraction, ...], value: Fraction) -> None:
        where = ", ".join(f"{name} = {x}" for name, x in zip(gens, point, strict=True))
        super().__init__(f"p is negative: p = {value} at {where or 'every point'}")
        self.point = point
        self.value = value


class Undecided(AssayError, RuntimeError):
    """No proof and no counterexample at this degree; p may be nonnegative all the same.

    Attributes
    ----------
    degree : int
        Degree of the representations that were looked for.
    reason : str
    lambda_min : float or None
        Largest smallest eigenvalue of a Gram matrix (p scaled to a largest coefficient of one), where an SDP was
        solved: clearly negative says that p is no sum of squares.
    """

    def __init__(self, reason: str, degree: int, lambda_min: float | None = None) -> None:
        super().__init__(f"undecided at degree {degree}: {reason}")
        self.degree = degree
        self.reason = reason
        self.lambda_min = lambda_min
