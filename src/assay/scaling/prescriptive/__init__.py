"""Capability boundaries: the best score to expect at a compute, and whether it moves (arXiv 2602.15327)."""

from assay._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "bins": ["equal_mass_bins"],
        "boundary": ["CapabilityBoundary"],
        "design": ["select_evaluations"],
        "pinball": ["smooth_pinball"],
        "validation": ["temporal_validation"],
    },
)
