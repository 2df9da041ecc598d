"""The arms of the study: the law, the laws of today, and regressors without structure, all fitted fairly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from assay.scaling.fit import ChinchillaLaw, KaplanLaw, PowerLaw
from assay.scaling.nqs.estimator import NQS
from assay.scaling.nqs.runs import OWN_INITIAL_NORM, tiny_weight_norm_sq
from assay.study import Cell

CHINCHILLAS = ("chinchilla", "chinchilla-isoflop")
BATCH_AWARE = "chinchilla-batch"
BASELINES = (*CHINCHILLAS, BATCH_AWARE, "kaplan", "power")
BLACK_BOXES = ("gaussian-process", "boosting")
VARIANTS = {"nqs": "regularized", "nqs-standard": "standard"}
SHUFFLED_STARTS = 16  # losses without order have no sharp minimum that more starts would find


def fit_arm(arm: str, fitted: pd.DataFrame, cell: Cell) -> Any:
    """The fitted law or regressor of an arm; each has a `predict` for frames of runs."""
    objective = cell.options.get("objective", "mse")
    starts = min(cell.options["starts"], SHUFFLED_STARTS) if cell.arm == "shuffled" else cell.options["starts"]
    settings = {"loss": objective, "n_starts": starts, "random_state": cell.seed}
    if arm in ("nqs", "nqs-standard"):
        # Predictions by the regularised risk need the initial norm of the models behind the runs.
        own_norm = tiny_weight_norm_sq if cell.dataset in OWN_INITIAL_NORM else None
        law: Any = NQS(VARIANTS[arm], init_weight_norm_sq=own_norm, **settings)
    elif arm in CHINCHILLAS:
        law = ChinchillaLaw(**settings)
    elif arm == BATCH_AWARE:
        law = ChinchillaLaw(batch_aware=True, **settings)
    elif arm == "kaplan":
        law = KaplanLaw(**settings)
    elif arm == "power":
        law = PowerLaw(**settings)
    else:
        return _BlackBox(arm).fit(fitted)
    # Laws that can't see the batch size are fitted to the runs in which it was sensibly chosen, except for the plain
    # Chinchilla arm, which shows what all rows do to it.
    rows = fitted[fitted["isoflop"]] if arm in ("chinchilla-isoflop", "kaplan", "power") else fitted
    return law.fit(rows, rows["loss"])


class _BlackBox:
    """A regressor of log loss on log N, B and K, tuned on the fitted rows alone."""

    def __init__(self, arm: str) -> None:
        self.arm = arm

    def fit(self, runs: pd.DataFrame) -> _BlackBox:
        from sklearn.ensemble import GradientBoostingRegressor
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
        from sklearn.model_selection import GridSearchCV
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        if self.arm == "gaussian-process":
            # At most 400 rows, evenly through the table: a Gaussian process on more takes minutes.
            runs = runs.iloc[np.unique(np.linspace(0, len(runs) - 1, 400).astype(int))]
            kernel = ConstantKernel() * RBF(np.ones(3), (1e-1, 1e3)) + WhiteKernel(1e-2, (1e-8, 1.0))
            process = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=4, random_state=0)
            self.model: Any = make_pipeline(StandardScaler(), process)
        else:
            grid = {"n_estimators": [50, 200, 600], "max_depth": [1, 2, 3], "learning_rate": [0.03, 0.1]}
            self.model = GridSearchCV(
                GradientBoostingRegressor(random_state=0), grid, scoring="neg_mean_squared_error", cv=5
            )
        self.model.fit(self._features(runs), np.log(runs["loss"]))
        return self

    def predict(self, runs: pd.DataFrame) -> np.ndarray:
        return np.exp(self.model.predict(self._features(runs)))

    @staticmethod
    def _features(runs: pd.DataFrame) -> np.ndarray:
        return np.log(runs[["N", "B", "K"]].to_numpy())
