"""The sum-of-squares prover: known certificates, the traps of exact recovery, bad input, and the two checkers."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import shutil
import subprocess
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from assay.errors import InputError
from assay.science.expressions import ExpressionError, evaluate, names_in, parse_expression
from assay.science.sos_prover import (
    Certificate,
    NoisyProposer,
    NotNonnegative,
    TextProposer,
    Undecided,
    check_certificate,
    classic,
    generate,
    parse_sos,
    prove_nonneg,
    refine_certificate,
)
from assay.science.sos_prover.basis import half_newton_basis
from assay.science.sos_prover.classics import CLASSICS, QUICK
from assay.science.sos_prover.exact import AffineGrams, factor
from assay.science.sos_prover.faces import integer_relations, simplest_fraction
from assay.science.sos_prover.gram import Block, GramProblem
from assay.science.sos_prover.polynomials import Polynomial, as_polynomial, weighted_square_sum
from assay.science.sos_prover.prove import sos_problem
from assay.science.sos_prover.recovery import round_grams
from assay.science.sos_prover.refinement import gauss_newton
from assay.science.sos_prover.sdp import solve_problem
from assay.science.sos_prover.study import drop_square

# What assay.conformance makes of the method, asserted by tests/test_every_method.py.
CHECKS = {"passed": 103, "excused": 8, "oracles": 9, "oracles_without_data": 9}

MOTZKIN = "x^4*y^2 + x^2*y^4 + 1 - 3*x^2*y^2"


def proved(p, **options) -> Certificate:
    """The certificate, accepted by both checkers."""
    certificate = prove_nonneg(p, **options)
    assert certificate.verify()
    report = check_certificate(certificate.to_json())
    assert report.ok, report.reason
    return certificate


def proved_classic(name: str) -> Certificate:
    inequality = classic(name)
    sides = [as_polynomial(g, inequality.gens) for g in inequality.constraints]
    return proved(inequality.polynomial, constraints=sides)


# Oracles: facts of the literature and of algebra, none of them computed by the code under test.


def test_oracle_parrilo():
    """Parrilo 2000: p = ½(2x² - 3y² + xy)² + ½(y² + 3xy)²."""
    p = as_polynomial("2*x^4 + 5*y^4 - x^2*y^2 + 2*x^3*y")
    squares = [as_polynomial(q, ("x", "y")) for q in ("2*x^2 - 3*y^2 + x*y", "y^2 + 3*x*y")]
    known = Certificate(p, p.gens, (Fraction(1, 2),) * 2, tuple(squares), Polynomial.constant(p.gens, 1))
    assert known.verify() and check_certificate(known).ok
    assert proved(p).kind == "sos"
    repaired = refine_certificate(p, "0.5*(2.02*x^2 - 2.97*y^2 + x*y)^2 + 0.49*(y^2 + 3.01*x*y)^2")
    assert repaired.verify()


def test_oracle_motzkin():
    """Motzkin 1967: nonnegative, no sum of squares; times x² + y² + 1 it is one; zeros exactly at |x| = |y| = 1."""
    with pytest.raises(Undecided) as caught:
        prove_nonneg(MOTZKIN, denominators=(0,))
    assert caught.value.lambda_min < -1e-4
    certificate = proved(MOTZKIN)
    assert certificate.kind == "ratio" and str(certificate.multiplier) == "x^2 + y^2 + 1"
    assert all(certificate.p.at(point) == 0 for point in itertools.product((-1, 1), repeat=2))
    for q in certificate.squares:
        assert all(q.at(point) == 0 for point in itertools.product((-1, 1), repeat=2))


def test_oracle_a_hair_below_zero():
    """x² - 2x + 1 - 10⁻⁹ is negative at 1 only within 3·10⁻⁵ of it."""
    with pytest.raises(NotNonnegative) as caught:
        prove_nonneg("x^2 - 2*x + 1 - 1/1000000000")
    (x,) = caught.value.point
    assert isinstance(x, Fraction)
    assert caught.value.value == (x - 1) ** 2 - Fraction(1, 10**9) < 0


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_oracle_differences_have_rank_n_minus_1(n):
    """Σ (x_i - x_j)² is the quadratic form of the Laplacian of a complete graph: rank n - 1."""
    names = [f"x{i}" for i in range(n)]
    text = " + ".join(f"({a} - {b})^2" for a, b in itertools.combinations(names, 2))
    assert proved(text).rank == n - 1


@pytest.mark.parametrize("seed", range(6))
def test_oracle_univariate(seed):
    """A univariate polynomial that is nonnegative is a sum of squares: here (x - a)² (x² + bx + c) with b² < 4c."""
    rng = random.Random(seed)
    a, b = Fraction(rng.randint(-5, 5), rng.randint(1, 4)), rng.randint(-3, 3)
    c = b * b + rng.randint(1, 3)
    certificate = proved(f"(x - ({a}))^2 * (x^2 + ({b})*x + {c})")
    assert all(q.at((a,)) == 0 for q in certificate.squares)


@pytest.mark.parametrize("name", ["schur-2", "vasc", "motzkin-form", "lyapunov-cubic"])
def test_oracle_status_is_invariant(name):
    """Scaling by a positive rational, permuting variables and moving the origin change nothing."""
    p = classic(name).polynomial
    assert proved(p * Fraction(7, 3)).kind == classic(name).kind
    shuffled = Polynomial(p.gens, {(*m[1:], m[0]): c for m, c in p.terms.items()})
    assert proved(shuffled).kind == classic(name).kind
    if classic(name).kind == "sos":
        moved = Polynomial.constant(p.gens, 0)
        shifted = [x + Fraction(1, 2) for x in Polynomial.variables(p.gens)]
        for m, c in p.terms.items():
            term = Polynomial.constant(p.gens, 1) * c
            for x, e in zip(shifted, m, strict=True):
                term = term * x**e
            moved = moved + term
        assert proved(moved).kind == "sos"


def test_oracle_smallest_eigenvalue_of_a_quadratic_form():
    """A quadratic form has one Gram matrix: the SDP's t is the smallest eigenvalue, here of Hilbert's matrix."""
    problem = sos_problem(classic("hilbert-4").polynomial)
    hilbert = np.array([[1 / (i + j + 1) for j in range(4)] for i in range(4)])
    expected = np.linalg.eigvalsh(hilbert)[0] / np.abs(problem.rhs * problem.scale).max()
    for solver in ("CLARABEL", "SCS"):
        assert solve_problem(problem, solver=solver).t == pytest.approx(expected, abs=1e-7)


def test_oracle_newton_polytope_of_motzkin():
    """Reznick 1978: half the Newton polytope of Motzkin's polynomial holds 1, xy, x²y, xy²."""
    assert half_newton_basis(as_polynomial(MOTZKIN)) == [(0, 0), (1, 1), (1, 2), (2, 1)]


def test_oracle_integer_relations():
    """1, √2, 2: the relations of x = √2 over 1, x, x² are the multiples of x² - 2."""
    basis = tuple(as_polynomial({(k,): 1}, ["x"]) for k in range(3))
    from assay.science.sos_prover.zeros import sharpen

    sharp = sharpen(as_polynomial("(x^2 - 2)^2"), np.array([1.41421356]))
    (relation,) = integer_relations(Block(basis), [sharp])
    assert [v / relation[2] for v in relation] == [-2, 0, 1]


# Every textbook inequality, and the paper's regime.


@pytest.mark.parametrize("name", QUICK)
def test_classic(name):
    assert proved_classic(name).kind == classic(name).kind


def test_the_rest_of_the_classics():
    """All others but the two large ones, and Schur's of exponent 3, which stays open with these multipliers."""
    for inequality in CLASSICS:
        if inequality.name in (*QUICK, "schur-3", "am-gm-5", "am-gm-6"):
            continue
        assert proved_classic(inequality.name).kind == inequality.kind, inequality.name


@pytest.mark.parametrize(("n", "kind"), [(3, "boundary"), (3, "interior"), (4, "interior"), (6, "boundary"),
                                         (6, "interior"), (8, "boundary"), (10, "boundary")])
def test_generated(n, kind):
    for seed in range(2):
        p, squares = generate(n, kind, seed)
        assert dict(p.terms) == dict(weighted_square_sum([Fraction(1)] * len(squares), squares, p.gens).terms)
        proved(p)


def test_ten_variables_interior():
    """66 basis monomials, 1,001 equations: within the 60 seconds of the card, exact."""
    certificate = proved(generate(10, "interior", 0)[0], timeout=60.0)
    assert certificate.basis_size == 66 and certificate.rank == 66


def test_without_an_sdp():
    assert proved(generate(6, "interior", 1)[0], proposer="newton").rank == 28
    assert proved(generate(3, "boundary", 1)[0], proposer="newton").kind == "sos"


# Traps.


def test_equality_cases_need_the_boundary_route():
    """Rounding the SDP's matrix alone fails where p has real zeros; facial reduction does not."""
    p = classic("imo-1995-2").polynomial
    problem = sos_problem(p)
    solution = solve_problem(problem)
    assert abs(solution.t) < 1e-7
    assert round_grams(AffineGrams(problem), solution.grams) is None
    certificate = proved(p)
    assert all(q.at((1, 1, 1)) == 0 for q in certificate.squares)


@pytest.mark.parametrize("text", ["(x^2 - 2)^2", "(x^3 - 2)^2", "(x^3 - x*y^2 - 3)^2 + (y - x)^2*(x + 1)^2"])
def test_irrational_zeros(text):
    """The face is rational although the zeros are not (and, for the cube root, some are not real)."""
    proved(text)


def test_a_form_with_irrational_zeros_needs_integer_relations():
    """IMO 2006/3: equality at cos and √2, six conjugate zeros."""
    assert proved(classic("imo-2006-3").polynomial).rank == 9


def test_pivots():
    one, zero = Fraction(1), Fraction(0)
    assert factor({(0, 0): zero, (0, 1): one, (1, 1): one}, 2) is None
    assert factor({(0, 0): zero, (0, 1): zero, (1, 1): one}, 2) == [(one, [zero, one])]
    assert factor({(0, 0): Fraction(-1, 10**30), (0, 1): zero, (1, 1): one}, 2) is None
    assert factor({(0, 0): zero, (0, 1): one, (1, 1): zero}, 2) is None


def test_a_negative_pivot_of_any_size_is_a_failure():
    """[[1, 1], [1, 1 - ε]] is indefinite for every ε > 0: floats can't tell."""
    for digits in (3, 30, 300):
        gram = {(0, 0): Fraction(1), (0, 1): Fraction(1), (1, 1): 1 - Fraction(1, 10**digits)}
        assert factor(gram, 2) is None


@pytest.mark.parametrize("seed", range(5))
def test_factor_reproduces_the_matrix(seed):
    """Random rational L D Lᵀ of rank 3 in dimension 5, off-diagonal entries and all."""
    rng = random.Random(seed)
    rows = [[Fraction(rng.randint(-4, 4), rng.randint(1, 3)) for _ in range(5)] for _ in range(3)]
    gram = {(i, j): sum(r[i] * r[j] for r in rows) for i in range(5) for j in range(i, 5)}
    terms = factor(gram, 5)
    assert all(w > 0 for w, _ in terms) and len(terms) <= 3
    assert {(i, j): sum(w * u[i] * u[j] for w, u in terms) for i, j in gram} == gram


def test_off_diagonal_entries_count_twice():
    problem = sos_problem(as_polynomial("x^2 + 3*x*y + 5*y^2"))
    gram = np.array([[5.0, 1.5], [1.5, 1.0]]) if problem.blocks[0].basis[0].terms == {(0, 1): 1} else np.array(
        [[1.0, 1.5], [1.5, 5.0]])
    assert np.abs(problem.residual([gram / problem.scale])).max() < 1e-15
    (exact,) = AffineGrams(problem).round([np.zeros((2, 2))], 1)
    assert exact[0, 1] == Fraction(3, 2)


@pytest.mark.parametrize("status", ["Solved", "AlmostSolved", "NumericalError"])
def test_the_status_of_the_solver_is_no_verdict(status, monkeypatch):
    """AlmostSolved is common where p has real zeros: it is neither taken for a failure nor for a success."""
    from assay.science.sos_prover import proposers

    def relabelled(problem, **options):
        return replace(solve_problem(problem, **options), status=status)

    monkeypatch.setattr(proposers, "solve_problem", relabelled)
    proved(generate(4, "boundary", 3)[0])
    with pytest.raises(Undecided):
        prove_nonneg(MOTZKIN, denominators=(0,))


def test_symmetric_input():
    """Invariant under all permutations, with equality at (1, 1, 1, 1) and with the analytic centre irrational."""
    certificate = proved(classic("am-gm-4").polynomial)
    assert all(q.at((1, 1, 1, 1)) == 0 for q in certificate.squares)


def test_coefficients_stay_small():
    assert proved(classic("parrilo").polynomial).bits <= 12
    assert proved(classic("motzkin").polynomial).bits <= 12
    assert proved(generate(6, "interior", 0)[0]).bits <= 400


def test_three_answers_stay_apart():
    proved(MOTZKIN)
    with pytest.raises(Undecided):
        prove_nonneg(MOTZKIN, denominators=(0,))
    with pytest.raises(NotNonnegative):
        prove_nonneg(f"{MOTZKIN} - 1/1000")
    assert issubclass(NotNonnegative, ValueError) and issubclass(Undecided, RuntimeError)


@pytest.mark.parametrize("share", ["1/10", "1/1000", "1/1000000"])
@pytest.mark.parametrize("name", ["nesbitt", "schur-2", "motzkin", "am-gm-4"])
def test_negative_inputs_are_refuted(name, share):
    p = classic(name).polynomial
    for x in Polynomial.variables(p.gens):
        p = p - x * x * Fraction(share)
    with pytest.raises(NotNonnegative) as caught:
        prove_nonneg(p)
    assert p.at(caught.value.point) == caught.value.value < 0


@pytest.mark.parametrize("text", ["x^3", "x^2 - x^5*y", "x*y", "x^6 - x^2*y^2 + y^4", "-x^2", "x^4*y + 1"])
def test_bad_vertices(text):
    """Odd degrees, odd or negative vertices of the Newton polytope."""
    with pytest.raises(NotNonnegative) as caught:
        prove_nonneg(text)
    assert as_polynomial(text).at(caught.value.point) == caught.value.value < 0


# Repair of approximate proposals.


@pytest.mark.parametrize("noise", [1e-6, 1e-2, 1e-1])
def test_spoilt_squares_are_repaired(noise):
    for n in (3, 6):
        p, squares = generate(n, "boundary", 0)
        assert proved(p, proposer=NoisyProposer(tuple(squares), noise)).rank == n


def test_far_off_proposals_are_not_accepted():
    with pytest.raises(Undecided):
        refine_certificate(MOTZKIN, "(x^2*y - 1)^2 + (x*y^2 - x)^2")


def test_terms_as_floats():
    certificate = refine_certificate("x^2 - 2/3*x*y + 1/9*y^2", [(1.0, {(1, 0): 0.99, (0, 1): -0.34})], ["x", "y"])
    assert str(certificate) == "x^2 - 2/3*x*y + 1/9*y^2 = 1/9*(3*x - y)^2"


def test_gauss_newton_against_finite_differences():
    """One undamped step from near a solution is quadratic: the residual falls to its square."""
    problem = sos_problem(generate(3, "interior", 0)[0])
    exact = gauss_newton(problem, [0.5 * np.eye(n) for n in problem.sizes])
    assert exact.converged
    rng = np.random.default_rng(0)
    near = [f + 1e-4 * rng.standard_normal(f.shape) for f in exact.factors]
    before = np.abs(problem.residual([f @ f.T for f in near])).max()
    after = gauss_newton(problem, near, max_steps=2).residual
    assert after < 1e-2 * before


def test_spoilt_proposals_of_language_models():
    text = "We get p(x, y) \\approx 2.01 \\cdot (x - 0.5 y)^2 + \\frac{3}{2} y² as wanted"
    with pytest.raises(ExpressionError):
        parse_sos(text, ["x", "y"])
    text = text.partition(" as wanted")[0].partition("We get ")[2]
    assert parse_sos(text, ["x", "y"])[1] == (Fraction(3, 2), as_polynomial("y", ("x", "y")))
    assert proved("2*x^2 - 2*x*y + 2*y^2", proposer=TextProposer(text)).rank == 2


# On sets.


def test_putinar():
    certificate = proved("4*x^3 - 3*x + 1", constraints=["x", "1 - x"])
    assert certificate.kind == "putinar" and len(certificate.constraint_squares) == 2
    with pytest.raises(NotNonnegative) as caught:
        prove_nonneg("x - 1/3", constraints=["x", "1 - x"])
    assert 0 <= caught.value.point[0] < Fraction(1, 3)


# The two checkers, and what certificates are written as.


def test_the_checkers_agree_on_sabotage():
    for name in ("parrilo", "motzkin", "chebyshev-cubic", "vasc"):
        certificate = proved_classic(name)
        wrong = drop_square(certificate)
        assert not wrong.verify() and not check_certificate(wrong).ok
        fields = json.loads(certificate.to_json())
        fields["squares"][0]["weight"] = "-1"
        assert not check_certificate(fields).ok and not Certificate.from_json(json.dumps(fields)).verify()
        fields = json.loads(certificate.to_json())
        fields["multiplier"] = [[[0] * len(certificate.gens), "-1"]]
        assert not check_certificate(fields).ok and not Certificate.from_json(json.dumps(fields)).verify()


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "{\"gens\": 3}", "\x00"])
def test_malformed_certificates(text):
    report = check_certificate(text)
    assert not report.ok and report.reason.startswith("malformed")
    with pytest.raises(InputError):
        Certificate.from_json(text)


def test_every_truncation_of_a_certificate_is_refused():
    text = proved("x^2 - 2*x + 1").to_json()
    for end in range(0, len(text), 7):
        assert not check_certificate(text[:end]).ok


def test_checker_shares_no_code_with_the_prover():
    source = (Path(__file__).parents[2] / "src/assay/science/sos_prover/checker.py").read_text(encoding="utf-8")
    imports = [line for line in source.splitlines() if line.startswith(("import ", "from "))]
    assert all("sos_prover" not in line and "flint" not in line and "sympy" not in line for line in imports)


def test_lean_source():
    text = proved("1/2*x^2 - x*y + y^2").to_lean("my_theorem")
    assert "set_option maxHeartbeats 400000" in text and "import Mathlib" in text
    assert "theorem my_theorem (x y : ℝ) : 0 ≤" in text and "theorem my_theorem_nlinarith" in text
    assert "(1/2 : ℝ)" in text and "positivity" in text and "nlinarith [sq_nonneg" in text
    assert "import" not in proved("x^2").to_lean(mathlib=False)
    assert text.count("(") == text.count(")")
    with pytest.raises(InputError):
        proved("x^2").to_lean("not a name")


def test_latex():
    assert proved("x1^2 - 2*x1*x2 + x2^2").to_latex() == (
        r"x_{1}^{2} - 2 x_{1} x_{2} + x_{2}^{2} = \left(x_{1} - x_{2}\right)^2"
    )


COQ_CASES = ("parrilo", "motzkin", "motzkin-form", "chebyshev-cubic", "rump-2", "apmo-2004-5")


@pytest.mark.parametrize("name", COQ_CASES)
@pytest.mark.skipif(shutil.which("coqc") is None, reason="coqc is not on the PATH")
def test_coq_accepts(name, tmp_path):
    assert coq(proved_classic(name), tmp_path)


def test_coq_source_with_weights_of_hundreds_of_digits():
    """Fractions where the common denominator is too large for whole weights."""
    x = as_polynomial("x")
    small = Fraction(1, 3**1500)
    certificate = Certificate(x * x, ("x",), (small, 1 - small), (x, x), Polynomial.constant(("x",), 1))
    assert certificate.verify() and check_certificate(certificate).ok
    assert "by field" in certificate.to_coq() and "(1) *" in certificate.to_coq()


@pytest.mark.skipif(shutil.which("coqc") is None, reason="coqc is not on the PATH")
def test_coq_refuses_a_certificate_without_a_square(tmp_path):
    assert not coq(drop_square(proved(classic("parrilo").polynomial)), tmp_path)


def coq(certificate: Certificate, folder: Path) -> bool:
    (folder / "proof.v").write_text(certificate.to_coq(), encoding="utf-8")
    done = subprocess.run(["coqc", "proof.v"], cwd=folder, capture_output=True, timeout=120, check=False)
    return done.returncode == 0


# Bad input.


def test_floats_are_refused_with_advice():
    with pytest.raises(TypeError, match=r"exact_floats=True"):
        prove_nonneg({(2,): 0.1})
    assert prove_nonneg({(2,): 0.1}, exact_floats=True).p.terms == {(2,): Fraction(0.1)}
    assert str(proved("0.1*x^2").p) == "1/10*x^2"


@pytest.mark.parametrize(("text", "words"), [
    ("x^2 + 1/x", "/x"), ("x^2 + sqrt(x)", "sqrt"), ("x^y", "exponent"), ("x^(1/2)", "no polynomial"),
    ("x +", "position 3"), ("", "empty"), ("x^2 $", "position 4"), ("x^10000000", "too large"),
])
def test_no_polynomial(text, words):
    with pytest.raises(InputError, match=words.replace("/", "\\/").replace("(", "\\(")):
        prove_nonneg(text)


def test_sympy_input():
    sympy = pytest.importorskip("sympy")
    x, y = sympy.symbols("x y")
    expression = x**2 - 2 * x * y + sympy.Rational(3, 2) * y**2
    assert proved(expression).gens == ("x", "y")
    assert proved(sympy.Poly(expression, y, x)).gens == ("y", "x")
    with pytest.raises(InputError, match="1/x"):
        prove_nonneg(x**2 + 1 / x)
    with pytest.raises(InputError, match="unknown variable y"):
        prove_nonneg(x**2 + y**2, gens=["x"])
    with pytest.raises(TypeError, match="exact_floats"):
        prove_nonneg(0.5 * x**2)


def test_options_are_checked():
    for options in ({"degree": 2}, {"denominators": ()}, {"denominators": (4,)}, {"solver": "x"}, {"timeout": -1.0},
                    {"constraints": ["-1"]}, {"constraints": "x"}, {"proposer": "x"}):
        with pytest.raises(InputError):
            prove_nonneg("x^4 + 1", **options)
    with pytest.raises(InputError, match="unknown name z"):
        prove_nonneg("x^2 + z^2", gens=["x", "y"])
    with pytest.raises(InputError, match="empty"):
        prove_nonneg("x^2", constraints=["-1"])


def test_too_many_monomials():
    """Refused before any solve, with the size of the basis and the memory that it would take."""
    text = " + ".join(f"x{i}^6" for i in range(1, 31)) + " + 1"
    with pytest.raises(Undecided, match=r"monomials; an SDP over it needs about .* GB"):
        prove_nonneg(text + " + (x1 + x2 + x3)^6")


def test_inputs_are_not_changed():
    p = {(2, 0): 1, (0, 2): Fraction(1, 2)}
    kept = dict(p)
    proved(p)
    assert p == kept


def test_constants_and_zero():
    assert proved("0").rank == 0
    assert proved("3/2").weights == (Fraction(3, 2),)
    with pytest.raises(NotNonnegative):
        prove_nonneg("-1/7")


def test_same_answer_twice():
    p, _ = generate(4, "boundary", 0)
    assert proved(p).to_json() == proved(p).to_json()


# The white-list parser that the area shares.


@pytest.mark.parametrize(("text", "value"), [
    ("1 - 2 - 3", -4), ("2^3^2", 512), ("-2^2", -4), ("2 * -3", -6), ("6/2/3", 1), ("2(3 + 4)", 14), ("1.5e1", 15),
    ("2 x", 14), ("x²", 49), ("(x)(x) − 9·5", 4), ("3x y", 42), ("xy", 14), ("[x + {1}]", 8),
])
def test_grammar(text, value):
    assert evaluate(parse_expression(text, ["x", "y"]), {"x": 7.0, "y": 2.0}, float) == value


@pytest.mark.parametrize("text", [
    "__import__('os').system('x')", "x.y", "x if y else z", "lambda: 0", "x = 1", "'x'", "x;y", "(" * 1000,
    "-" * 1000 + "x", "2" * 5000, "1e9999999", "x" * 500_000, "f(x)", "x,y", "x!", "\x00",
])
def test_hostile_text(text):
    with pytest.raises(InputError):
        parse_expression(text, ["x", "y"])


@pytest.mark.parametrize("seed", range(5))
def test_text_round_trip(seed):
    """A polynomial is written as it is read."""
    rng = random.Random(seed)
    terms = {
        tuple(rng.randint(0, 3) for _ in range(3)): Fraction(rng.randint(-9, 9) or 1, rng.randint(1, 7))
        for _ in range(8)
    }
    p = Polynomial(("x", "y2", "z"), terms)
    assert dict(as_polynomial(str(p), p.gens).terms) == dict(terms)


def test_names_and_functions():
    assert names_in(parse_expression("x10 + x9*x1 + a")) == ["a", "x1", "x9", "x10"]
    assert evaluate(parse_expression("f(2, 3) + 1", functions=["f"]), {}, float, {"f": lambda a, b: a - b}) == 0
    with pytest.raises(ExpressionError, match="did you mean beta") as caught:
        parse_expression("1 + betta", ["beta", "gamma"])
    assert caught.value.position == 4


def test_simplest_fraction():
    assert simplest_fraction(-0.142857142857, 1e-10) == Fraction(-1, 7)
    assert simplest_fraction(3.0000000001, 1e-8) == 3


# The command.


def test_command_proves_and_verifies(tmp_path, capsys):
    from assay.science.sos_prover.command import example, run

    argv = example(tmp_path)
    data, out = Path(argv[1]), Path(argv[3])
    run(data=data, out=out)
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert [entry["status"] for entry in report] == ["proved"] * 4
    assert {path.suffix for path in out.iterdir()} == {".json", ".lean", ".v"}
    for path in out.glob("*.v"):
        path.unlink()
    run(verify=out)
    assert "4 certificates, all exact" in capsys.readouterr().out
    broken = out / "vasc.json"
    broken.write_text(broken.read_text(encoding="utf-8").replace('"weight": "3', '"weight": "4'), encoding="utf-8")
    with pytest.raises(InputError, match=r"1 of 4 certificates are wrong: vasc\.json"):
        run(verify=out)


@pytest.mark.parametrize(("rows", "words"), [
    ("name,poly\na,x^2 +\n", "line 2: poly|position"), ("name,poly\na,1/x\n", "no polynomial"),
    ("name,poly\n../a,x^2\n", "file name"), ("name,poly\na,x\na,x\n", "taken"), ("name,poly\na,\n", "poly is empty"),
    ("name,poly\n", "no rows"), ("poly\nx\n", "column name"), ("name,poly\na,x,y\n", "more fields"),
    ("name,poly,constraints\na,x^2,1 -\n", "position"),
])
def test_command_refuses(rows, words, tmp_path):
    from assay.science.sos_prover.command import run

    data, out = tmp_path / "ineqs.csv", tmp_path / "out"
    data.write_text(rows, encoding="utf-8")
    with pytest.raises(InputError, match=words):
        run(data=data, out=out)
    assert not out.exists()


def test_command_needs_one_of_two(tmp_path):
    from assay.science.sos_prover.command import run

    with pytest.raises(InputError, match="either"):
        run()
    with pytest.raises(InputError, match="no certificate"):
        run(verify=tmp_path)


# The study.


def test_a_file_of_answers_decides_the_proposals(tmp_path):
    from assay.catalogue import get
    from assay.study import Outcome, Results, Row, Tier

    path = tmp_path / "answers.csv"
    rows = [f"p{k},x^2 - {2 * k}*x*y + {k * k}*y^2,(x - {k}.01*y)^2" for k in range(1, 5)]
    path.write_text("\n".join(["name,poly,answer", *rows, "bad,x^2,__import__('os')"]), encoding="utf-8")
    study = get("sos-prover").study(path)
    cells = list(study.cells(Tier.quick))
    measured = {cell.arm: study.measure(cell, {}) for cell in cells}
    assert list(measured["text"].units["proved"]) == [1, 1, 1, 1, 0]
    assert list(measured["nspi"].units["proved"]) == [1] * 5
    rows = [Row(cell, "measured", measured[cell.arm].metrics, measured[cell.arm].units) for cell in cells]
    verdicts = {v.claim: v for v in study.verdicts(Results(rows))}
    assert verdicts["C4"].outcome not in (Outcome.untested, Outcome.holds)


def test_problems_keep_their_identity_on_a_face():
    """b = R z over fewer polynomials: the same target, and rounding there gives the target back exactly."""
    p = as_polynomial("(x - y)^2 * (x + y)^2 + (x - y)^4")
    problem = sos_problem(p)
    line = [as_polynomial(q, p.gens) for q in ("x^2 - x*y", "x*y - y^2")]
    face = GramProblem(p, problem.constraints, (Block(tuple(line)),))
    affine = AffineGrams(face)
    assert affine.consistent
    assert round_grams(affine, [g for g in solve_problem(face).grams]) is not None


# Forged and ambiguous input.


def _forged() -> dict[str, str]:
    """Texts that the checker and `from_json` + `verify` must both refuse."""
    text = prove_nonneg("x^2 - 2*x*y + 2*y^2").to_json()
    fields = json.loads(text)
    x, one = [[[1], "1"]], [[[0], "1"]]
    on_half_line = {**fields, "gens": ["x"], "p": x, "multiplier": one, "squares": [],
                    "constraints": [{"g": x, "squares": [{"weight": "1", "q": one}]}]}
    return {
        "a constraint that the kind hides": json.dumps(on_half_line),
        "one name twice": json.dumps({**fields, "gens": ["x", "x"]}),
        "no name": json.dumps({**fields, "gens": ["x", "y\x1b[31m"]}),
        "a field twice": text.replace('"p":', '"p": [], "p":'),
        "a monomial twice": json.dumps({**fields, "p": [*fields["p"], fields["p"][0]]}),
        "float exponents": json.dumps({**fields, "p": [[[float(e) for e in m], c] for m, c in fields["p"]]}),
        "a number for text": json.dumps({**fields, "squares": [{**s, "weight": 1} for s in fields["squares"]]}),
        "other digits": text.replace('"1/2"', '"١/2"'),
        "another format": text.replace("certificate 1", "certificate 2"),
        "a multiplier that the kind hides": json.dumps({**fields, "multiplier": [[[0, 0], "2"]]}),
    }


@pytest.mark.parametrize("forgery", sorted(_forged()))
def test_both_checkers_refuse(forgery):
    text = _forged()[forgery]
    assert text != prove_nonneg("x^2 - 2*x*y + 2*y^2").to_json()
    assert not check_certificate(text).ok
    with contextlib.suppress(InputError):
        assert not Certificate.from_json(text).verify()


def test_verify_finds_a_proof_source_of_something_else(tmp_path):
    from assay.science.sos_prover.command import example, run

    argv = example(tmp_path)
    out = Path(argv[3])
    run(data=Path(argv[1]), out=out)
    for path in [*out.glob("*.v"), *out.glob("*.lean")]:
        if path.name != "vasc.lean":
            path.unlink()
    (out / "vasc.lean").write_text("theorem t_vasc : True := trivial\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"1 of 4 certificates are wrong: vasc\.json"):
        run(verify=out)


@pytest.mark.parametrize("text", ["x^2 - 2xy + y^2", "x1^2 - 2x1x2 + x2^2", "x^2 + xx", "NaN", "x^2 + inf", "1e400*x^2",
                                  "x^2 + 1e-300", "+".join(f"v{i}q^2" for i in range(600))],
                         ids=range(8))
def test_ambiguous_or_extreme_text_is_refused(text):
    with pytest.raises(InputError):
        prove_nonneg(text)


def test_one_variable_zeros_at_infinity():
    """The leading form of a polynomial in one variable has no real zero to look for."""
    from assay.science.sos_prover.zeros import real_zeros

    assert real_zeros(as_polynomial("3*x^4")) == []


def test_a_proof_about_another_polynomial_is_wrong():
    from assay.science.sos_prover.study import _judged

    cert = prove_nonneg("x^2 + 1")
    assert _judged(cert, as_polynomial("x^2 + 1"), [], negative=False)["wrong"] == 0.0
    assert _judged(cert, as_polynomial("x^2 + 2"), [], negative=False)["wrong"] == 1.0


def test_a_failed_cell_leaves_a_share_untested():
    from assay.catalogue import get
    from assay.study import Outcome, Results, Row, Tier

    study = get("sos-prover").study()
    cells = [cell for cell in study.cells(Tier.full) if cell.dataset == "generator" and cell.options["n"] == 10]
    good = {"proved": 1.0, "in_time": 1.0, "returned": 1.0, "wrong": 0.0}

    def scale(rows):
        return {v.claim: v.outcome for v in study.verdicts(Results(rows))}["C2"]

    rows = [Row(cell, "measured", good) for cell in cells]
    assert scale(rows) is Outcome.holds
    assert scale([Row(cell, "measured", good | {"in_time": 0.0}) for cell in cells]) is Outcome.fails
    assert scale([Row(cells[0], "failed", {}, reason="memory"), *rows[1:]]) is Outcome.untested


@pytest.mark.skipif(shutil.which("coqc") is None, reason="Coq is not installed")
def test_variables_called_like_hypotheses(tmp_path):
    source = tmp_path / "t.v"
    source.write_text(prove_nonneg("H^2 + H*h + h^2 + Z0^2 + Hg1^2").to_coq(), encoding="utf-8")
    subprocess.run([shutil.which("coqc"), source.name], cwd=tmp_path, check=True, timeout=120)
