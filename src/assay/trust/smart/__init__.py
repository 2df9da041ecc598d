"""SMART: a temperature for each row of logits, learned from the margin between its two largest ones."""

from assay._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "calibrator": ["SMARTCalibrator"],
        "classifier": ["SMARTClassifier"],
        "metrics": ["ece", "smooth_ece"],
        "objective": ["charbonnier_soft_ece"],
        "theory": ["temperature_bounds"],
    },
)
