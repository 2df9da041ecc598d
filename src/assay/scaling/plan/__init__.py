"""The front door of the scaling laws: one table of runs, every law that its columns allow, one answer."""

from assay._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "planning": ["Plan", "plan_run"],
        "ranking": ["rank_laws"],
        "laws": ["allowed_laws"],
    },
)
