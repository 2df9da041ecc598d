"""Scaling laws: which size, batch, budget or precision to choose, and what to expect of a run."""

from assay._lazy import attach_area

__getattr__, __dir__, __all__ = attach_area(__name__, __path__[0], {"fit": ["ChinchillaLaw", "KaplanLaw", "PowerLaw"]})
