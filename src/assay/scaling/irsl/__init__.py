"""Item response scaling laws: score a checkpoint from few questions, extrapolate its ability (arXiv 2606.07616)."""

from assay._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "adaptive": ["AdaptiveTest"],
        "estimator": ["BetaIRT"],
        "laws": ["ItemResponseScalingLaw", "decision_accuracy", "pass_at_k", "pass_at_k_unbiased"],
        "likelihood": ["beta_nll", "two_pl_nll"],
    },
)
