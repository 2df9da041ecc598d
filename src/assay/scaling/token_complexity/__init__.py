"""Token sample complexity of attention: how fast an attention output settles with context (arXiv 2512.10656)."""

from assay._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "convergence": ["ConvergenceResult", "attention_convergence"],
        "hardmax": ["HardmaxResult", "hardmax_convergence"],
        "heads": ["head_report"],
        "theory": [
            "asymptotic_cov", "asymptotic_cov_empirical", "effective_tokens", "freezing_exponent",
            "gaussian_attention", "predicted_exponent", "spectral_lambda",
        ],
    },
)
