"""Step 3: one score from all verifiers, without assuming that they are jointly independent given the truth.

Logistic regression of the truth Y = +1 or -1 on the scores s has the loss

    E log(1 + exp(-Y z)) = E log(2 cosh(z / 2)) - (b0 E[Y] + beta' E[Y s]) / 2,    z = b0 + beta' s,

whose first term needs no labels, and whose second needs only E[Y] = b and E[Y s_j]. If s_j is independent of
the vote f_k given Y, then Cov(s_j, f_k) = v_k E[Y s_j] / sqrt(1 - b^2) for a centred s_j, so that the other
verifiers' votes give E[Y s_j] (least squares over k). Only pairs of verifiers need be independent, never all
of them at once: the scores' own covariance enters through the first term as it is. The loss is convex. (This
moment combiner is reconstructed; the paper, arXiv 2604.18547, trains on pseudo-labels, as `fit_pseudo` does.)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["fit_moment", "fit_pseudo", "truth_moments"]

Array = NDArray[np.float64]

RIDGE = 1e-2


def truth_moments(scores: Array, votes: Array, loading: Array, balance: float) -> Array:
    """E[Y s_j] of centred scores (NaN left out), from their covariances with the other verifiers' votes."""
    seen_s, seen_f = np.isfinite(scores), np.isfinite(votes)
    s = np.where(seen_s, scores, 0.0)
    f = np.where(seen_f, votes - np.nanmean(votes, axis=0), 0.0)
    common = seen_s.T.astype(float) @ seen_f.astype(float)
    covariance = np.divide(s.T @ f, common, out=np.zeros_like(common), where=common > 0)
    np.fill_diagonal(covariance, 0.0)
    power = (loading**2).sum() - loading**2
    projected = np.divide(covariance @ loading, power, out=np.zeros_like(power), where=power > 0)
    return np.sqrt(1 - balance * balance) * projected


def fit_moment(scores: Array, moments: Array, balance: float) -> tuple[float, Array]:
    """Intercept and weights of the logistic regression with E[Y s] = moments and E[Y] = balance; ridge 1e-2."""
    from scipy.optimize import minimize

    target = np.r_[balance, moments]
    design = np.column_stack([np.ones(len(scores)), np.where(np.isfinite(scores), scores, 0.0)])
    penalty = np.r_[0.0, np.full(scores.shape[1], RIDGE)]

    def loss(beta: Array) -> tuple[float, Array]:
        z = design @ beta
        half = np.abs(z) / 2
        value = np.mean(half + np.log1p(np.exp(-2 * half))) - target @ beta / 2 + penalty @ beta**2 / 2
        slope = design.T @ np.tanh(z / 2) / (2 * len(z)) - target / 2 + penalty * beta
        return float(value), slope

    def curvature(beta: Array) -> Array:
        weight = 1 / (4 * np.cosh(np.clip(design @ beta / 2, -300, 300)) ** 2)
        return (design * weight[:, None]).T @ design / len(design) + np.diag(penalty)

    start = np.zeros(design.shape[1])
    start[0] = np.log((1 + balance) / (1 - balance))
    found = minimize(loss, start, jac=True, hess=curvature, method="trust-exact", options={"gtol": 1e-9})
    return float(found.x[0]), found.x[1:]


def fit_pseudo(scores: Array, log_odds: Array) -> tuple[float, Array]:
    """Intercept and weights of scikit-learn's logistic regression on soft pseudo-labels."""
    from scipy.special import expit
    from sklearn.linear_model import LogisticRegression

    known = np.where(np.isfinite(scores), scores, 0.0)
    n = len(known)
    soft = expit(log_odds)
    model = LogisticRegression(C=1 / (n * RIDGE), tol=1e-8, max_iter=1000)
    model.fit(np.vstack([known, known]), np.repeat([1, 0], n), sample_weight=np.r_[soft, 1 - soft])
    return float(model.intercept_[0]), model.coef_[0].astype(float)
