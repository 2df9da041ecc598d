"""What the shared checks need to know of FUSE."""

from __future__ import annotations

from typing import Any

import numpy as np

TWO_COLUMNS = "the check hands in two columns; three verifiers are needed, and the error says so"

TWO_COLUMN_CHECKS = (
    "check_estimators_overwrite_params", "check_estimators_fit_returns_self", "check_readonly_memmap_input",
    "check_fit_idempotent", "check_fit_check_is_fitted", "check_n_features_in",
)


def _scores(n_items: int = 240) -> np.ndarray:
    """Five verifiers, independent given the truth."""
    rng = np.random.default_rng(0)
    right = rng.random(n_items) < 0.4
    return rng.normal(size=(n_items, 5)) + right[:, None] * [2.0, 1.6, 1.4, 1.2, 1.0]


def _fuse() -> Any:
    from assay.inference.fuse.estimator import FUSE

    return FUSE(n_bootstrap=20, random_state=0)


def _jaffe() -> Any:
    from assay.inference.fuse.estimator import JaffeSpectral

    return JaffeSpectral()


def _fit(make: Any, scores: Any) -> Any:
    return lambda: make().fit(scores)


def _bad_fits(make: Any) -> list[Any]:
    scores = _scores()
    no_score, equal = scores.copy(), np.ones((60, 4))
    no_score[:, 2] = np.nan
    return [_fit(make, scores[:, :2]), _fit(make, no_score), _fit(make, equal), _fit(make, [["a", "b", "c"]] * 60)]


def _bad_parameters() -> list[Any]:
    from assay.inference.fuse.estimator import FUSE

    scores = _scores()
    wrong = ({"transformation": "mean"}, {"combiner": "sum"}, {"n_bootstrap": -1}, {"n_bootstrap": 5},
             {"query_conditional": True}, {"transformation": "none"})
    return [lambda given=given: FUSE(**given).fit(scores) for given in wrong]


def _select(scores: Any, groups: Any) -> Any:
    from assay.inference.fuse.selection import select_per_query

    return lambda: select_per_query(scores, groups)


def _hits(scores: Any, labels: Any, groups: Any) -> Any:
    from assay.inference.fuse.selection import best_of_n_hits

    return lambda: best_of_n_hits(scores, labels, groups)


FLOATS = np.array([0.1, 0.7, 0.4, 0.2])

CHECKS = {
    "FUSE": {
        "make": _fuse,
        "fit": lambda: (_scores(),),
        "bad": [*_bad_fits(_fuse), *_bad_parameters()],
        "sklearn_checks": 33,
        "expected_failed_checks": dict.fromkeys(TWO_COLUMN_CHECKS, TWO_COLUMNS),
    },
    "JaffeSpectral": {
        "make": _jaffe,
        "fit": lambda: (_scores(),),
        "bad": _bad_fits(_jaffe),
        "sklearn_checks": 33,
        "expected_failed_checks": dict.fromkeys(TWO_COLUMN_CHECKS, TWO_COLUMNS),
    },
    "select_per_query": {
        "inputs": lambda: {"scores": FLOATS.copy(), "groups": np.array([0, 0, 1, 1])},
        "bad": [_select([0.1, np.nan], [0, 1]), _select([0.1, 0.2], [0]), _select([0.1, 0.2], [0.0, np.nan])],
    },
    "best_of_n_hits": {
        "inputs": lambda: {"scores": FLOATS.copy(), "labels": np.array([1, 0, 1, 0]), "groups": np.array([0, 0, 1, 1])},
        "bad": [
            _hits([0.1, 0.2], [1, 2], [0, 0]), _hits([0.1, 0.2], [1], [0, 0]), _hits([0.1, np.inf], [1, 0], [0, 0]),
        ],
    },
}
