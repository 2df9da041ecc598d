"""Noisy quadratic system: a loss law in model size, batch size and number of updates (arXiv 2605.09154)."""

from assay._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "estimator": ["NQS"],
        "noisy_quadratic": ["nqs_risk", "nqs_risk_regularized", "risk_components"],
    },
)
