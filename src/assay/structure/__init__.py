"""Structure: clusters, causes, auctions and effects."""

from assay._lazy import attach_area

__getattr__, __dir__, __all__ = attach_area(__name__, __path__[0])
