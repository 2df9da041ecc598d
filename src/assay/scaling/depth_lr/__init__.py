"""Learning rates across depth: L^-3/2, effective depth, and the maximal-update rate (arXiv 2602.07494)."""

from assay._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "counting": ["effective_depth"],
        "energy": ["maximal_lr", "update_energy"],
        "groups": ["depth_param_groups", "stabilize_"],
        "transfer": ["DepthLRTransfer", "scale_lr"],
    },
)
