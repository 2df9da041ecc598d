"""Small inputs for the conformance checks."""

from __future__ import annotations

from typing import Any

SQUARE = """{"format": "assay sum-of-squares certificate 1", "kind": "sos", "gens": ["x"],
"p": [[[2], "1"], [[1], "-2"], [[0], "1"]], "multiplier": [[[0], "1"]],
"squares": [{"weight": "1", "q": [[[1], "1"], [[0], "-1"]]}],
"constraints": [], "basis_size": 2}"""
"""x² - 2x + 1 = (x - 1)²: a certificate as text, so that the checker can be tried without any package."""


def _parts() -> dict[str, Any]:
    from assay.science.sos_prover.certificates import Certificate

    cert = Certificate.from_json(SQUARE)
    return {
        "p": cert.p, "gens": cert.gens, "weights": cert.weights, "squares": cert.squares,
        "multiplier": cert.multiplier, "constraint_squares": (), "kind": "sos", "basis_size": 2,
    }


def _bad_certificates() -> list[Any]:
    def read(text: str) -> Any:
        from assay.science.sos_prover.certificates import Certificate

        return Certificate.from_json(text)

    return [
        lambda: read(SQUARE[:100]),
        lambda: read('{"unexpected": 1}'),
        lambda: read(SQUARE.replace('"-2"', '"1e9"')),
        lambda: read(SQUARE.replace("[[2]", "[[2, 0]")),
    ]


def _bad_checks() -> list[Any]:
    from assay.science.sos_prover.checker import check_certificate

    return [lambda: check_certificate(None), lambda: check_certificate(3), lambda: check_certificate([SQUARE])]


def _bad_texts() -> list[Any]:
    def parse(text: Any, gens: Any = ("x", "y")) -> Any:
        from assay.science.sos_prover.text import parse_sos

        return parse_sos(text, gens)

    return [
        lambda: parse("2*(x - y)^2 +"), lambda: parse("(x - y)^3"), lambda: parse("-(x - y)^2"),
        lambda: parse("(x - z)^2"), lambda: parse(""), lambda: parse(7), lambda: parse("__import__('os')"),
        lambda: parse("(x/y)^2"), lambda: parse("(" * 200 + "x"),
    ]


def _bad_polynomials() -> list[Any]:
    def prove(*args: Any, **options: Any) -> Any:
        from assay.science.sos_prover.prove import prove_nonneg

        return prove_nonneg(*args, **options)

    return [
        lambda: prove("x^2 + 1/x"), lambda: prove("sqrt(x)"), lambda: prove("x^2 + z", gens=["x", "y"]),
        lambda: prove({(2,): float("nan")}, exact_floats=True), lambda: prove({(2,): float("inf")}, exact_floats=True),
        lambda: prove({(1, -2): 1}), lambda: prove(None), lambda: prove("x^2", degree=0),
        lambda: prove("x^2", constraints=["-1"]), lambda: prove("x^2", constraints=[""]),
        lambda: prove("x^2", solver="none"), lambda: prove("x^2", denominators=(9,)),
        lambda: prove("x^2", proposer="oracle"), lambda: prove("x^2", timeout=0.0),
    ]


def _bad_proposals() -> list[Any]:
    def refine(*args: Any, **options: Any) -> Any:
        from assay.science.sos_prover.prove import refine_certificate

        return refine_certificate(*args, **options)

    return [
        lambda: refine("x^2", []), lambda: refine("x^2", [(-1, "x")]), lambda: refine("x^2", ["x"]),
        lambda: refine("x^2", "(y)^2"), lambda: refine("x^2", [(1, "x")], max_steps=0),
        lambda: refine("x^2", [(float("nan"), "x")]),
    ]


CHECKS: dict[str, dict[str, Any]] = {
    "Certificate": {"inputs": _parts, "bad": _bad_certificates()},
    "check_certificate": {"inputs": lambda: {"cert_or_json": SQUARE}, "bad": _bad_checks()},
    "parse_sos": {"inputs": lambda: {"text": "2*(x - 0.5*y)^2 + y^2", "gens": ["x", "y"]}, "bad": _bad_texts()},
    "prove_nonneg": {"inputs": lambda: {"p": {(2, 0): 1, (1, 1): -2, (0, 2): 2}}, "bad": _bad_polynomials()},
    "refine_certificate": {
        "inputs": lambda: {"p": "x^2 - 2*x*y + y^2", "approx_terms": [(1.01, "x - 0.98*y")]}, "bad": _bad_proposals(),
    },
}
