"""Adaptation law: how many fine-tuning steps per task are worth it, told after a few (arXiv 2601.18973)."""

from assay._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "curves": ["AdaptationCurve"],
        "law": [
            "AdaptationFit", "Budget", "Decision", "adaptation_budget", "adaptation_decision", "fit_adaptation_law",
        ],
        "lqr": ["LQRFamily"],
        "qubits": ["QubitFamily"],
    },
)
