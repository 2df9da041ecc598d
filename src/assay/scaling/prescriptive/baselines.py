"""What a practitioner would use instead: quantiles without a curve, a monotone spline, a line, boosted trees, a forest.

Each has `fit(z, y)` and `predict(z)` on log10 compute. Where there is a setting, it is chosen by the mean pinball loss
over three folds of the groups. Predictions are kept in [0, 1].
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import BSpline

from assay.errors import MissingExtra, require
from assay.scaling.prescriptive.bins import bin_of, equal_mass_bins
from assay.scaling.prescriptive.pinball import pinball, quantile_programme
from assay.study import Skip

__all__ = ["BASELINES", "BinnedQuantile", "ISplineQuantile", "baseline", "tuned"]

Array = NDArray[np.float64]
FOLDS = 3


class Quantile(Protocol):
    """A regressor of a quantile on log10 compute."""

    def fit(self, z: Array, y: Array) -> Self: ...
    def predict(self, z: Array) -> Array: ...


def baseline(name: str, quantile: float, z: Array, y: Array, groups: NDArray[Any]) -> Quantile:
    """A baseline fitted to rows, its setting chosen on them."""
    return tuned(*BASELINES[name], quantile, z, y, groups)


def tuned(
    make: Any, settings: list[dict[str, Any]], quantile: float, z: Array, y: Array, groups: NDArray[Any]
) -> Quantile:
    """The fit with the setting of the least loss over folds of the groups, made on all rows."""
    if len(settings) == 1:
        return make(quantile, **settings[0]).fit(z, y)
    losses = [_loss_of_folds(partial(make, quantile, **setting), quantile, z, y, groups) for setting in settings]
    return make(quantile, **settings[int(np.argmin(losses))]).fit(z, y)


def _loss_of_folds(make: Any, quantile: float, z: Array, y: Array, groups: NDArray[Any]) -> float:
    from sklearn.model_selection import GroupKFold

    total = 0.0
    for fit, test in GroupKFold(FOLDS).split(z, groups=groups):
        total += float(pinball(y[test] - make().fit(z[fit], y[fit]).predict(z[test]), quantile).sum())
    return total


class BinnedQuantile:
    """The empirical quantile of each bin of equal mass; one bin is the constant quantile."""

    def __init__(self, quantile: float, bins: int) -> None:
        self.quantile, self.bins = quantile, bins

    def fit(self, z: Array, y: Array) -> Self:
        self.edges = equal_mass_bins(z, self.bins, min(30, len(z)))
        where = bin_of(z, self.edges)
        values = [np.quantile(y[where == i], self.quantile, method="inverted_cdf") for i in range(len(self.edges) - 1)]
        self.values = np.array(values)
        return self

    def predict(self, z: Array) -> Array:
        return self.values[bin_of(z, self.edges)]


class ISplineQuantile:
    """A monotone spline: a constant and integrated splines with coefficients >= 0 that sum to 1 at most (Ramsay 1988).

    An integrated spline of degree d is a tail sum of B-splines of degree d: it rises from 0 to 1. The knots are
    quantiles of the fitted z; outside the fitted range the curve is flat.
    """

    def __init__(self, quantile: float, knots: int, degree: int = 3) -> None:
        self.quantile, self.knots, self.degree = quantile, knots, degree

    def fit(self, z: Array, y: Array) -> Self:
        inner = np.unique(np.quantile(z, np.linspace(0, 1, self.knots + 2)[1:-1])) if self.knots else np.array([])
        inner = inner[(inner > z.min()) & (inner < z.max())]
        ends = np.repeat([[z.min()], [z.max()]], self.degree + 1, axis=1)
        self.sequence = np.concatenate([ends[0], inner, ends[1]])
        self.coefficients = quantile_programme(self.basis(z), y, self.quantile, np.full(len(z), 1 / len(z)))
        return self

    def basis(self, z: Array) -> Array:
        """A column of ones, then the integrated splines."""
        inside = np.clip(z, self.sequence[0], self.sequence[-1])
        splines = BSpline.design_matrix(inside, self.sequence, self.degree).toarray()
        return np.cumsum(splines[:, ::-1], axis=1)[:, ::-1]

    def predict(self, z: Array) -> Array:
        return self.basis(z) @ self.coefficients


class _Wrapped:
    """A regressor of scikit-learn's kind on z alone."""

    def __init__(self, quantile: float, **settings: Any) -> None:
        self.model = self.build(quantile, settings)

    def build(self, quantile: float, settings: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    def fit(self, z: Array, y: Array) -> Self:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model.fit(z[:, None], y)
        return self

    def predict(self, z: Array) -> Array:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.clip(np.asarray(self.model.predict(z[:, None]), dtype=float), 0.0, 1.0)


class _Line(_Wrapped):
    def build(self, quantile: float, settings: Mapping[str, Any]) -> Any:
        from sklearn.linear_model import QuantileRegressor

        return QuantileRegressor(quantile=quantile, alpha=0.0, solver="highs", **settings)


class _Boosting(_Wrapped):
    def build(self, quantile: float, settings: Mapping[str, Any]) -> Any:
        from sklearn.ensemble import GradientBoostingRegressor

        return GradientBoostingRegressor(loss="quantile", alpha=quantile, random_state=0, **settings)


class _MonotoneBoosting(_Wrapped):
    def build(self, quantile: float, settings: Mapping[str, Any]) -> Any:
        from sklearn.ensemble import HistGradientBoostingRegressor

        return HistGradientBoostingRegressor(
            loss="quantile", quantile=quantile, monotonic_cst=[1], early_stopping=False, random_state=0, **settings
        )


class _LightGBM(_Wrapped):
    """Without the constraint: LightGBM refuses it together with the quantile objective."""

    def build(self, quantile: float, settings: Mapping[str, Any]) -> Any:
        lightgbm = _peer("lightgbm")
        return lightgbm.LGBMRegressor(
            objective="quantile", alpha=quantile, n_jobs=1, random_state=0, deterministic=True, force_row_wise=True,
            verbosity=-1, **settings,
        )


class _Forest(_Wrapped):
    def build(self, quantile: float, settings: Mapping[str, Any]) -> Any:
        forest = _peer("quantile_forest")
        return forest.RandomForestQuantileRegressor(default_quantiles=quantile, random_state=0, n_jobs=1, **settings)


def _peer(module: str) -> Any:
    """An optional package; a cell that needs a missing one is skipped by its name."""
    try:
        return require(module, extra="peers", wanted_by="prescriptive")
    except MissingExtra:
        raise Skip(f"the package {module.replace('_', '-')} is not installed") from None


def _settings(name: str, values: Iterable[Any], **others: Any) -> list[dict[str, Any]]:
    return [{name: value, **others} for value in values]


BASELINES: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "constant": (BinnedQuantile, [{"bins": 1}]),
    "bin-wise": (BinnedQuantile, _settings("bins", (5, 10, 20))),
    "i-spline": (ISplineQuantile, _settings("knots", (0, 2, 4, 8))),
    "line": (_Line, [{}]),
    "boosting-monotone": (_MonotoneBoosting, _settings("max_iter", (30, 100), max_leaf_nodes=7)),
    "lightgbm": (_LightGBM, _settings("n_estimators", (30, 100), num_leaves=7)),
    "boosting": (_Boosting, _settings("n_estimators", (50, 200), max_depth=2, learning_rate=0.1)),
    "forest": (_Forest, _settings("min_samples_leaf", (10, 30), n_estimators=100)),
}
