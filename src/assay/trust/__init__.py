"""Trust: calibrated confidences, verified decisions, and how far a model can be believed."""

from assay._lazy import attach_area

__getattr__, __dir__, __all__ = attach_area(__name__, __path__[0])
