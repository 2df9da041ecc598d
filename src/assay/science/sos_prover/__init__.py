"""Exact, checkable proofs that a polynomial is nonnegative (sums of squares, arXiv 2605.15445)."""

from assay._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, {
    "prove": ["prove_nonneg", "refine_certificate"],
    "text": ["parse_sos"],
    "certificates": ["Certificate"],
    "checker": ["check_certificate"],
    "outcomes": ["NotNonnegative", "Undecided"],
    "proposers": ["NewtonProposer", "NoisyProposer", "SDPProposer", "SOSProposer", "TextProposer"],
    "classics": ["classic"],
    "generator": ["generate"],
})
