"""Split training: how long to train on everything before branching into specialists (arXiv 2603.19149)."""

from assay._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "law": ["SplitLaw"],
        "planning": ["SplitPlan", "iso_loss_exchange", "optimal_split"],
    },
)
