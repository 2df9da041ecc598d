"""SMART around a scikit-learn classifier: fit on held-out rows, predict calibrated probabilities.

A classifier that is fitted already is kept as it is and calibrated on the rows given to `fit`, which it must not
have seen. One that is not fitted gets its held-out logits by cross-validation, and is then fitted on all rows.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_predict
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from assay.errors import InputError

from .calibrator import SMARTCalibrator
from .inputs import log_probabilities, two_columns

Array = NDArray[np.float64]


class SMARTClassifier(ClassifierMixin, BaseEstimator):
    """A classifier with sample margin-aware recalibrated probabilities.

    Its predictions are those of the wrapped classifier; its probabilities are ``softmax(z / T(margin))`` of the
    wrapped classifier's logits z: its `decision_function` where there is one, else the logarithm of its
    `predict_proba`. For data other than rows of features use `SMARTCalibrator` on the logits.

    Parameters
    ----------
    estimator : classifier
        Fitted: it is kept, also by `sklearn.base.clone`, and calibrated on the rows given to `fit`.
        Not fitted: logits of held-out folds are used, then it is fitted on all rows.
    calibrator : SMARTCalibrator, optional
        Settings of the calibration; the defaults of `SMARTCalibrator` if not given.
    cv : int or splitter, default 5
        Folds for an estimator that is not fitted.

    Attributes
    ----------
    classes_ : array of shape [K]
        Labels, in the order of the columns of `predict_proba`.
    estimator_ : classifier
        The fitted classifier.
    calibrator_ : SMARTCalibrator
        The fitted calibrator.

    References
    ----------
    arXiv 2506.23492; the wrapper is ours.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_digits(return_X_y=True)
    >>> model = LogisticRegression(max_iter=50, C=10).fit(X[:600] / 16, y[:600])
    >>> smart = SMARTClassifier(model).fit(X[600:1200] / 16, y[600:1200])
    >>> smart.predict_proba(X[1200:] / 16).shape, smart.score(X[1200:] / 16, y[1200:]) > 0.8
    ((597, 10), True)
    """

    def __init__(self, estimator: Any, calibrator: SMARTCalibrator | None = None, cv: Any = 5) -> None:
        self.estimator = estimator
        self.calibrator = calibrator
        self.cv = cv

    def fit(self, X: Any, y: Any) -> SMARTClassifier:
        """Calibrate on rows X [n, features] with labels y [n].

        Raises
        ------
        InputError
            Where a label is unknown to the fitted classifier, or the classifier's output has not one column a class.
        """
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        if is_fitted(self.estimator):
            self.estimator_ = self.estimator
            logits = _logits(self.estimator_, X)
        else:
            if len(np.unique(y)) < 2:
                raise InputError("y holds 1 class, at least 2 are needed")
            method = "decision_function" if hasattr(self.estimator, "decision_function") else "predict_proba"
            output = cross_val_predict(clone(self.estimator), X, y, cv=self.cv, method=method)
            self.estimator_ = clone(self.estimator).fit(X, y)
            logits = _as_columns(output, method)
        self.classes_ = self.estimator_.classes_
        if logits.shape[1] != len(self.classes_):
            raise InputError(
                f"the classifier gives {logits.shape[1]} columns for {len(self.classes_)} classes; one column a "
                'class is needed (for SVC: decision_function_shape="ovr")'
            )
        calibrator = SMARTCalibrator() if self.calibrator is None else clone(self.calibrator)
        self.calibrator_ = calibrator.fit(logits, self._codes(y))
        if hasattr(self.estimator_, "n_features_in_"):
            self.n_features_in_ = self.estimator_.n_features_in_
        return self

    def predict_proba(self, X: Any) -> Array:
        """Calibrated probabilities [n, K] of rows X [n, features]."""
        check_is_fitted(self, "calibrator_")
        return self.calibrator_.predict_proba(_logits(self.estimator_, X))

    def predict(self, X: Any) -> NDArray:
        """Labels [n] of the wrapped classifier's largest logits."""
        check_is_fitted(self, "calibrator_")
        return self.classes_[_logits(self.estimator_, X).argmax(axis=1)]

    def _codes(self, y: NDArray) -> NDArray[np.intp]:
        position = {label: code for code, label in enumerate(self.classes_.tolist())}
        codes = [position.get(label, -1) for label in y.tolist()]
        if -1 in codes:
            row = codes.index(-1)
            raise InputError(f"y holds {y.tolist()[row]!r} in row {row}, which the fitted classifier does not know")
        return np.array(codes, dtype=np.intp)

    def __sklearn_clone__(self) -> SMARTClassifier:
        estimator = self.estimator if is_fitted(self.estimator) else clone(self.estimator)
        return type(self)(estimator, clone(self.calibrator, safe=False), clone(self.cv, safe=False))

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import get_tags

        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator).input_tags
        tags.input_tags.sparse, tags.input_tags.allow_nan = inner.sparse, inner.allow_nan
        return tags


def is_fitted(estimator: Any) -> bool:
    """Whether scikit-learn takes the estimator for fitted."""
    try:
        check_is_fitted(estimator)
    except (NotFittedError, TypeError):
        return False
    return True


def _logits(estimator: Any, X: Any) -> Array:
    method = "decision_function" if hasattr(estimator, "decision_function") else "predict_proba"
    return _as_columns(getattr(estimator, method)(X), method)


def _as_columns(output: Any, method: str) -> Array:
    if method == "predict_proba":
        with warnings.catch_warnings():
            # Forests and trees answer zero as a matter of course.
            warnings.filterwarnings("ignore", message=".*probabilities of zero")
            return log_probabilities(np.asarray(output, dtype=np.float64))
    return two_columns(output) if np.ndim(output) == 1 else np.asarray(output, dtype=np.float64)
