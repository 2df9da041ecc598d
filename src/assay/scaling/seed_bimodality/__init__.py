"""Seeds as a distribution: is a jump with scale real, luck of the seed, or the metric? (arXiv 2502.17356)."""

from assay._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "dip": ["dip_pvalue", "dip_statistic"],
        "distribution": ["SeedDistribution", "seeds_needed"],
        "populations": ["train_population"],
        "scaling_curves": ["RandomScaling"],
        "tasks": ["CountTask", "ReverseAdditionIndexHints", "ScarceDigits", "SubsetParity"],
        "trends": ["breakthroughness", "linearity"],
    },
)
