"""What the checks of every method need to know about SMART."""

from __future__ import annotations

from typing import Any

LABELS_ARE_COLUMNS = "labels are columns of the logits: the check hands in 3 classes and 2 columns"


def _digits() -> tuple[Any, Any]:
    """Logits and labels of 250 digits."""
    import numpy as np

    from assay.datasets import load_dataset

    arrays = load_dataset("smart-smoke")
    return arrays["logits"][:250].astype(np.float64), arrays["labels"][:250].astype(np.intp)


def _calibrator(**settings: Any) -> Any:
    from assay.trust.smart import SMARTCalibrator

    return SMARTCalibrator(max_iter=200, n_restarts=2, **settings)


def _classifier() -> Any:
    from sklearn.tree import DecisionTreeClassifier

    from assay.trust.smart import SMARTClassifier

    # A tree grows the same from float32 and float64 features.
    return SMARTClassifier(DecisionTreeClassifier(max_depth=4, random_state=0), _calibrator())


def _probabilities() -> dict[str, Any]:
    from scipy.special import softmax

    logits, labels = _digits()
    return {"probs": softmax(logits, axis=1), "y": labels}


def _fit_with(logits: Any, labels: Any, **settings: Any) -> Any:
    return lambda: _calibrator(**settings).fit(logits, labels)


def _bad_calibrator() -> list[Any]:
    import numpy as np

    logits, labels = np.array([[2.0, 0.0], [1.0, 3.0], [0.5, 0.0]]), np.array([0, 1, 0])
    broken = logits.copy()
    broken[1, 0] = np.nan
    return [
        _fit_with(logits[:, 0], labels),
        _fit_with(logits[:, :1], labels),
        _fit_with(broken, labels),
        _fit_with(logits, labels + 1),
        _fit_with(logits, labels + 0.5),
        _fit_with(logits, labels[:2]),
        _fit_with(logits, labels, sigma=0.0),
        _fit_with(logits, labels, objective="ece"),
        _fit_with(logits, labels, solver="sgd"),
        _fit_with(logits, labels, hidden=0),
    ]


def _bad_classifier() -> list[Any]:
    import numpy as np
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import SVC

    from assay.trust.smart import SMARTClassifier

    x = np.arange(60.0).reshape(30, 2) % 7
    y = np.arange(30) % 3
    fitted = LogisticRegression().fit(x, y)
    pairs = SVC(decision_function_shape="ovo").fit(np.arange(80.0).reshape(40, 2) % 7, np.arange(40) % 4)
    return [
        lambda: SMARTClassifier(fitted).fit(x, y + 5),
        lambda: SMARTClassifier(pairs).fit(x, y),
        lambda: SMARTClassifier(LogisticRegression()).fit(x, np.zeros(30, dtype=int)),
    ]


def _calls(name: str, *inputs: dict[str, Any]) -> list[Any]:
    import assay.trust.smart

    function = getattr(assay.trust.smart, name)
    return [lambda given=given: function(**given) for given in inputs]


_PAIR = [[0.7, 0.3], [0.4, 0.6]]

CHECKS: dict[str, dict[str, Any]] = {
    "SMARTCalibrator": {
        "make": _calibrator,
        "fit": _digits,
        "use": lambda fitted, logits, labels: fitted.predict_proba(logits),
        "sklearn_checks": 42,
        "expected_failed_checks": {
            "check_estimators_overwrite_params": LABELS_ARE_COLUMNS,
            "check_estimators_fit_returns_self": LABELS_ARE_COLUMNS,
            "check_readonly_memmap_input": LABELS_ARE_COLUMNS,
            "check_dtype_object": "labels of type object are refused as no integers, in other words than the check's",
        },
        "bad": _bad_calibrator(),
    },
    "SMARTClassifier": {
        "make": _classifier,
        "fit": _digits,
        "sklearn_checks": 53,
        "bad": _bad_classifier(),
    },
    "charbonnier_soft_ece": {
        "inputs": lambda: dict(zip(("logits", "y"), _digits(), strict=True)),
        "bad": _calls(
            "charbonnier_soft_ece",
            {"logits": [1.0, 2.0], "y": [0, 1]}, {"logits": _PAIR, "y": [0, 2]},
            {"logits": _PAIR, "y": [0, 1], "sigma": 0}, {"logits": _PAIR, "y": [0, 1], "delta": -1.0},
        ),
    },
    "ece": {
        "inputs": _probabilities,
        "bad": _calls(
            "ece",
            {"probs": [[2.0, -1.0]], "y": [0]}, {"probs": _PAIR, "y": [0, 2]},
            {"probs": _PAIR, "y": [0, 1], "n_bins": 0}, {"probs": _PAIR, "y": [0, 1], "strategy": "equal"},
            {"probs": _PAIR, "y": [0, 1], "norm": 0.5},
        ),
    },
    "smooth_ece": {
        "inputs": _probabilities,
        "bad": _calls(
            "smooth_ece",
            {"probs": [0.2, 0.8], "y": [0, 1]}, {"probs": _PAIR, "y": [0.5, 1]}, {"probs": _PAIR, "y": [0]},
        ),
    },
    "temperature_bounds": {
        "inputs": lambda: {"margin": [0.5, 2.0], "confidence": [0.6, 0.9], "n_classes": 5},
        "bad": _calls(
            "temperature_bounds",
            {"margin": -1.0, "confidence": 0.8, "n_classes": 2}, {"margin": 1.0, "confidence": 0.5, "n_classes": 2},
            {"margin": 1.0, "confidence": 0.8, "n_classes": 1},
            {"margin": float("nan"), "confidence": 0.8, "n_classes": 3},
        ),
    },
}
