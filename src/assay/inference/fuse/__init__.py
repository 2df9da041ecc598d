"""FUSE: one score from several verifiers that nobody has graded, and how accurate each of them is.

`FUSE` is the method, `JaffeSpectral` the spectral estimate that it improves on, `select_per_query` the best
item of each query under any score, `best_of_n_hits` how often that item is right.
"""

from assay._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__, {"estimator": ["FUSE", "JaffeSpectral"], "selection": ["best_of_n_hits", "select_per_query"]}
)
