"""How the distribution over seeds changes with scale: what a jump of the mean, the median or one run is made of.

With w the share of seeds that succeed at a scale, and mu_hi and mu_lo the mean scores of those that do and do not,

    mean = w mu_hi + (1 - w) mu_lo

Where w rises gradually and the modes stay where they are, the median still jumps where w passes one half, the best of
a few seeds long before, and a curve through one seed a scale anywhere in between (arXiv 2502.17356).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.stats import chi2, wasserstein_distance
from sklearn.base import BaseEstimator

from assay.errors import InputError, nearest
from assay.scaling.seed_bimodality.dip import dip_pvalue, dip_statistic
from assay.scaling.seed_bimodality.distribution import BIC, FEW, FEWEST, SeedDistribution, holm, seeds_needed
from assay.scaling.seed_bimodality.mixtures import accuracy_modes
from assay.scaling.seed_bimodality.trends import breakthroughness, linearity
from assay.stats import bootstrap

__all__ = ["RandomScaling", "WeightCurve", "first_bimodal", "majority_scale", "success_p", "weight_curve"]

SUCCESSFUL_SEEDS, SUCCESSFUL_SHARE = 3, 0.02
GRADUAL = 2.0  # a step from none to all is a logistic curve without bound, with one parameter less: a gain of 2
FAINT = 1e-6  # pull of the logistic curve's two parameters towards 0
Array = NDArray[np.float64]


class RandomScaling(BaseEstimator):
    """Scaling curves as draws from a distribution over seeds (arXiv 2502.17356; reconstructed).

    Parameters
    ----------
    success
        Score from which a seed counts as successful. By default the score at which both components of a mixture
        fitted to all scales together are equally likely.
    items
        Right-or-wrong items behind each score, where a column of the table does not say.
    alpha
        Level of the tests over all scales, after Holm's adjustment.
    random_state
        Seed of what undoes ties, and of the bootstrap.

    Attributes
    ----------
    scales_ : (k,) array
        The scales in order.
    n_missing_, n_seeds_ : int
        Rows without a score, dropped; seeds at the scale with fewest.
    success_ : float
    threshold_scale_ : float
        Smallest scale at which the scores are bimodal (dip, after Holm), are so as well with all failures laid on
        their mean, and at least three seeds and 2 % succeed; NaN where there is none.
    majority_scale_ : float
        Smallest scale at which more than half of the seeds succeed; NaN where there is none.
    weight_curve_ : dict
        Logistic curve of w in the log of scale: `slope` (in log units, `slope_low` and `slope_high` its 95 % interval
        over seeds), `midpoint` (the scale at w = 1/2), `aic_gain` (AIC of the best step function minus that of the
        logistic curve: above 2 the change is gradual) and `misfit_p` (deviance against a free w at each scale).

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> rng = np.random.default_rng(0)
    >>> rows = [(n, s, rng.beta(40, 3) if rng.random() < w else rng.beta(3, 20))
    ...         for n, w in zip([1, 2, 4, 8], [0.05, 0.3, 0.7, 0.95]) for s in range(80)]
    >>> found = RandomScaling().fit(pd.DataFrame(rows, columns=["scale", "seed", "score"]))
    >>> found.threshold_scale_ < found.majority_scale_, found.summary()["answer"]
    (True, 'seed luck')
    """

    def __init__(
        self, success: float | None = None, items: int | None = None, alpha: float = 0.05, random_state: int = 0
    ) -> None:
        self.success = success
        self.items = items
        self.alpha = alpha
        self.random_state = random_state

    def fit(
        self, df: pd.DataFrame, scale: str = "scale", seed: str = "seed", score: str = "score", loss: str | None = None
    ) -> RandomScaling:
        """Describe a table with one row a scale and seed.

        Parameters
        ----------
        df : DataFrame
        scale, seed, score, loss
            Its columns: model size, width or compute (positive); what tells the repetitions apart; a score in
            [0, 1]; and, where there is one, a continuous loss of the same runs. A column `items` is used if there.

        Raises
        ------
        InputError
            A column that is missing or not numeric, a pair of scale and seed that is there twice, a score outside
            [0, 1], fewer than three scales.
        """
        table = self._read(df, scale, seed, score, loss)
        self.scales_ = np.array(sorted(table["scale"].unique()))
        groups = [table[table["scale"] == s] for s in self.scales_]
        self.scores_ = [g["score"].to_numpy() for g in groups]
        self.losses_ = [g["loss"].dropna().to_numpy() for g in groups] if loss is not None else None
        self.n_seeds_ = min(len(values) for values in self.scores_)
        items = [self._items(g) for g in groups]
        self.success_ = self._cut(items)
        self._by_score = self._describe(self.scores_, "accuracy", items)
        self._by_loss = self._describe(self.losses_, "loss", [None] * len(groups)) if self.losses_ else None
        successes = np.array([int((values >= self.success_).sum()) for values in self.scores_])
        counts = np.array([len(values) for values in self.scores_])
        of_success = [success_p(values, values >= self.success_) for values in self.scores_]
        both = holm(np.maximum(self._by_score["dip_p"], of_success))
        self.threshold_scale_ = first_bimodal(self.scales_, both, successes, counts, self.alpha)
        self.majority_scale_ = majority_scale(self.scales_, successes / counts)
        self.weight_curve_ = self._weight_curve()
        return self

    def _read(self, df: pd.DataFrame, scale: str, seed: str, score: str, loss: str | None) -> pd.DataFrame:
        if not isinstance(df, pd.DataFrame):
            raise InputError(f"df must be a DataFrame with one row a scale and seed, got {type(df).__name__}")
        if self.success is not None and not 0 < self.success <= 1:
            raise InputError(f"success must lie above 0 and at most at 1, got {self.success!r}")
        columns = {"scale": scale, "seed": seed, "score": score} | ({"loss": loss} if loss is not None else {})
        if "items" in df.columns:
            columns["items"] = "items"
        labels = [str(label) for label in df.columns]
        for name, column in columns.items():
            if column not in df.columns:
                close = nearest(str(column), labels)
                raise InputError(f"there is no column {column!r} ({name}){close}: {_few(labels)}")
        table = pd.DataFrame({name: df[column].to_numpy() for name, column in columns.items()})
        for name in set(columns) - {"seed"}:
            table[name] = _numbers(table[name], columns[name])
        if table["scale"].isna().any() or not (table["scale"] > 0).all() or np.isinf(table["scale"]).any():
            row = int((~(table["scale"] > 0) | np.isinf(table["scale"])).to_numpy().argmax())
            raise InputError(f"{scale} must be positive and finite, got {table['scale'][row]:g} in row {row}")
        if table["seed"].isna().any():
            raise InputError(f"{seed} is missing in row {int(table['seed'].isna().to_numpy().argmax())}")
        if "items" in table and not ((table["items"] >= 1) & (table["items"] % 1 == 0)).all():
            row = int((~((table["items"] >= 1) & (table["items"] % 1 == 0))).to_numpy().argmax())
            raise InputError(f"items must be whole numbers of 1 or more, got {table['items'][row]:g} in row {row}")
        twice = table.duplicated(["scale", "seed"])
        if twice.any():
            row = int(twice.to_numpy().argmax())
            raise InputError(
                f"{scale} {table['scale'][row]:g} with {seed} {table['seed'][row]} is there twice, again in row {row}: "
                "one row a scale and seed is needed"
            )
        self.n_missing_ = int(table["score"].isna().sum())
        table = table.dropna(subset=["score"])
        outside = (table["score"] < 0) | (table["score"] > 1)
        if outside.any():
            row = int(outside.idxmax())
            value = table["score"][row]
            raise InputError(f"{score} must lie from 0 to 1, got {value:g} in row {row} (percent? a loss?)")
        if "loss" in table and (without := table.groupby("scale")["loss"].count().eq(0)).any():
            raise InputError(f"{loss} holds no number at {scale} {without.idxmax():g}")
        if (found := table["scale"].nunique()) < 3:
            raise InputError(f"{found} scales with a score: a trend needs 3 or more; SeedDistribution takes one scale")
        return table

    def _items(self, group: pd.DataFrame) -> int | None:
        return int(group["items"].min()) if "items" in group else self.items

    def _cut(self, items: list[int | None]) -> float:
        if self.success is not None:
            return float(self.success)
        scores = np.concatenate(self.scores_)
        middle = float((scores.min() + scores.max()) / 2)
        known = [n for n in items if n is not None]
        if np.ptp(scores) == 0:
            return middle
        modes = accuracy_modes(scores, min(known) if known else 1000)
        return modes.cut if modes.bic_delta > BIC else middle

    def _describe(self, values: list[Array], kind: str, items: list[int | None]) -> dict[str, Array]:
        rows = []
        for k, sample in enumerate(values):
            found = SeedDistribution(kind, items[k], self.alpha, self.random_state).fit(sample)
            after = wasserstein_distance(sample, values[k + 1]) if k + 1 < len(values) else math.nan
            row = {
                "scale": self.scales_[k], "n": len(sample), "mean": sample.mean(), "median": np.median(sample),
                "dip_p": found.dip_p_, "bic_delta": found.bic_delta_, "w1_next": after,
            }
            if kind == "accuracy":
                row |= self._split(sample)
            else:
                row |= {"weight": found.weight_, "mu_lo": found.means_[0], "mu_hi": found.means_[1]}
            rows.append(row)
        table = {name: np.array([row[name] for row in rows], dtype=float) for name in rows[0]}
        table["dip_p_holm"] = holm(table["dip_p"])
        table["bimodal"] = (table["dip_p_holm"] < self.alpha) & (table["bic_delta"] > BIC)
        return table

    def _split(self, sample: Array) -> dict[str, float]:
        good = sample >= self.success_
        mean = {name: float(part.mean()) if len(part) else math.nan
                for name, part in (("mu_lo", sample[~good]), ("mu_hi", sample[good]))}
        return {"weight": float(good.mean()), **mean}

    @property
    def per_scale_(self) -> pd.DataFrame:
        """One row a scale: n, mean, median, dip_p, weight, mu_lo, mu_hi, and dip_p_holm, bic_delta, bimodal, w1_next.

        `weight` is the share of seeds from `success_` on, `mu_lo` and `mu_hi` the means below and from there;
        `w1_next` the Wasserstein distance to the scores of the next scale.
        """
        return _frame(self._by_score)

    @property
    def per_scale_loss_(self) -> pd.DataFrame | None:
        """The same of the losses, with the mixture's weight and means; None where no loss was given."""
        return _frame(self._by_loss) if self._by_loss is not None else None

    def _weight_curve(self) -> dict[str, float]:
        good = np.concatenate([values >= self.success_ for values in self.scores_])
        at = np.concatenate([np.full(len(values), k) for k, values in enumerate(self.scores_)])
        logs = np.log(self.scales_)

        def slope(rows: NDArray[np.intp]) -> float:
            totals = np.bincount(at[rows], minlength=len(logs))
            return weight_curve(logs, np.bincount(at[rows], good[rows], minlength=len(logs)), totals).slope

        totals = np.bincount(at)
        found = weight_curve(logs, np.bincount(at, good), totals)
        interval = bootstrap(slope, len(good), strata=at, n_resamples=400, seed=self.random_state)
        return {
            "slope": found.slope, "slope_low": interval.low, "slope_high": interval.high,
            "midpoint": found.midpoint, "aic_gain": found.aic_gain, "misfit_p": found.misfit_p,
        }

    def sample_paths(self, n: int = 1000, random_state: int = 0) -> Array:
        """Scaling curves (n, k) through one seed a scale, each drawn on its own."""
        if isinstance(n, bool) or int(n) != n or n < 1:
            raise InputError(f"n must be a whole number of 1 or more paths, got {n!r}")
        rng = np.random.default_rng(random_state)
        return np.stack([values[rng.integers(len(values), size=int(n))] for values in self.scores_], axis=1)

    def trend_scores(self, n: int = 1000, random_state: int = 0) -> pd.DataFrame:
        """Breakthroughness and linearity of random paths, one row a path, as `sample_paths` draws them."""
        paths = self.sample_paths(n, random_state)
        return pd.DataFrame({"breakthroughness": breakthroughness(paths), "linearity": linearity(paths)})

    def summary(self) -> dict[str, Any]:
        """What the table says, in plain values.

        `answer` is one of

        - `seed luck`: at some scales the seeds split into two modes, in the score (and in the loss, where given),
          and the share of successes changes gradually;
        - `real jump`: the share of successes, or with one mode the mean, does most of its way between two
          neighbouring scales;
        - `metric effect`: the scores are bimodal, or pile up at both bounds, at some scale, the losses at none;
        - `gradual`: one mode everywhere, and no jump;
        - `too few seeds`: fewer than 10 at every scale.
        """
        scores = self._by_score
        paths = self.trend_scores(random_state=self.random_state)
        finite = np.where(np.isfinite(paths["breakthroughness"]), paths["breakthroughness"], np.inf)
        half = int(np.abs(scores["weight"] - 0.5).argmin())
        return {
            "answer": self._answer(),
            "scales": len(self.scales_), "fewest_seeds": self.n_seeds_, "missing": self.n_missing_,
            "success": self.success_,
            "bimodal_at": self.scales_[scores["bimodal"].astype(bool)].tolist(),
            "loss_bimodal_at": None if self._by_loss is None else self.scales_[
                self._by_loss["bimodal"].astype(bool)].tolist(),
            "threshold_scale": self.threshold_scale_, "majority_scale": self.majority_scale_,
            "weight_curve": self.weight_curve_,
            "breakthroughness": {f"q{q:g}": float(np.quantile(finite, q, method="lower")) for q in (0.05, 0.5, 0.95)},
            "linearity": {f"q{q:g}": float(np.quantile(paths["linearity"], q)) for q in (0.05, 0.5, 0.95)},
            "seeds_needed": {
                "share_within_0.1": seeds_needed(float(scores["weight"][half])), "test_of_two_modes": FEW,
            },
            "tip": self._tip(),
        }

    def _answer(self) -> str:
        scores = self._by_score
        if np.isnan(scores["dip_p"]).all():
            return "too few seeds"
        # Piles at both bounds have a small dip p and are one component: with a loss at hand they too can be explained.
        piled = self._by_loss is not None and bool((scores["dip_p_holm"] < self.alpha).any())
        if scores["bimodal"].any() or piled:
            if self._by_loss is not None and not self._by_loss["bimodal"].any():
                return "metric effect"
            return "seed luck" if self.weight_curve_["aic_gain"] > GRADUAL else "real jump"
        steps = np.diff(scores["mean"])
        rise = np.ptp(scores["mean"])
        return "real jump" if rise > 0.1 and np.abs(steps).max() > 0.5 * rise and len(steps) > 2 else "gradual"

    def _tip(self) -> str:
        if self.n_seeds_ < FEWEST:
            return f"{self.n_seeds_} seeds at the smallest sample: below {FEWEST} nothing is tested. Train {FEW}."
        if self.n_seeds_ < FEW:
            return (
                f"{self.n_seeds_} seeds at the smallest sample: below {FEW} the dip test misses most pairs of modes; "
                "that it finds none says little."
            )
        return ""


class WeightCurve:
    """A logistic curve in log scale beside the best step function, by binomial likelihood."""

    def __init__(self, slope: float, offset: float, aic_gain: float, misfit_p: float) -> None:
        self.slope, self.offset, self.aic_gain, self.misfit_p = slope, offset, aic_gain, misfit_p

    @property
    def midpoint(self) -> float:
        """The scale at which the curve passes one half."""
        return math.exp(min(-self.offset / self.slope, 700.0)) if self.slope else math.nan


def weight_curve(logs: Array, successes: NDArray, counts: NDArray) -> WeightCurve:
    """Fit w(log scale) = 1 / (1 + exp(-(offset + slope log scale))) to counts of successes."""
    centred = logs - logs.mean()
    slope, offset = _logistic(centred, successes, counts)
    fitted = 1 / (1 + np.exp(-(offset + slope * centred)))
    steps = [
        sum(_likelihood(successes[part], counts[part], _share(successes[part], counts[part]))
            for part in (slice(0, k), slice(k, None)))
        for k in range(1, len(logs))
    ]
    ours = _likelihood(successes, counts, fitted)
    free = _likelihood(successes, counts, successes / np.maximum(counts, 1))
    freedom = len(logs) - 2
    misfit = float(chi2.sf(max(2 * (free - ours), 0.0), freedom)) if freedom else math.nan
    # Two parameters of the curve against two levels and a place of the step.
    return WeightCurve(slope, offset - slope * float(logs.mean()), 2 * (ours - max(steps)) + 2, misfit)


def _logistic(x: Array, successes: NDArray, counts: NDArray) -> tuple[float, float]:
    """Slope and offset of largest likelihood, by Newton's method with halved steps.

    Shares that a step separates have no finite slope of largest likelihood: a faint pull towards 0, far below what
    any seed adds, keeps it finite, as steep as makes no difference.
    """

    def value(beta: Array) -> float:
        p = 1 / (1 + np.exp(-np.clip(beta @ design, -40, 40)))
        return _likelihood(successes, counts, p) - FAINT * float(beta @ beta) / 2

    design = np.stack([np.ones_like(x), x])
    beta = np.zeros(2)
    best = value(beta)
    for _ in range(100):
        p = 1 / (1 + np.exp(-np.clip(beta @ design, -40, 40)))
        slope = design @ (successes - counts * p) - FAINT * beta
        step = np.linalg.solve((design * (counts * p * (1 - p))) @ design.T + FAINT * np.eye(2), slope)
        step *= min(1.0, 10 / np.abs(step).max(initial=1e-300))
        while (found := value(beta + step)) < best and np.abs(step).max() > 1e-9:
            step /= 2
        if found <= best + 1e-10:
            break
        beta, best = beta + step, found
    return float(beta[1]), float(beta[0])


def _likelihood(successes: ArrayLike, counts: ArrayLike, shares: ArrayLike) -> float:
    p = np.clip(shares, 1e-12, 1 - 1e-12)
    successes, counts = np.asarray(successes), np.asarray(counts)
    return float(np.sum(successes * np.log(p) + (counts - successes) * np.log1p(-p)))


def _share(successes: NDArray, counts: NDArray) -> float:
    return float(successes.sum() / max(counts.sum(), 1))


def success_p(scores: Array, good: NDArray[np.bool_]) -> float:
    """The dip's p-value with all failures laid on their mean, so that two kinds of failure are no bimodality."""
    if len(scores) < FEWEST:
        return math.nan
    if good.all() or not good.any():
        return 1.0
    return dip_pvalue(dip_statistic(np.where(good, scores, scores[~good].mean())), len(scores))


def first_bimodal(scales: Array, adjusted_p: Array, successes: Array, counts: Array, alpha: float = 0.05) -> float:
    """Smallest scale with a small dip p and a successful mode: a small p alone may stem from two kinds of failure.

    `adjusted_p` is that of the larger of the dip's p-value and `success_p`, after Holm.
    """
    enough = (successes >= SUCCESSFUL_SEEDS) & (successes >= SUCCESSFUL_SHARE * counts)
    found = scales[(adjusted_p < alpha) & enough]
    return float(found[0]) if len(found) else math.nan


def majority_scale(scales: Array, weights: Array) -> float:
    """Smallest scale at which more than half of the seeds succeed."""
    found = scales[weights > 0.5]
    return float(found[0]) if len(found) else math.nan


def _frame(table: dict[str, Array]) -> pd.DataFrame:
    return pd.DataFrame(table).astype({"n": int, "bimodal": bool})


def _numbers(column: pd.Series, name: str) -> pd.Series:
    numbers = pd.to_numeric(column, errors="coerce").astype(float)
    bad = numbers.isna() & column.notna()
    if bad.any():
        row = int(bad.to_numpy().argmax())
        raise InputError(f"{name} must be a number, got {column.iloc[row]!r} in row {row}")
    if np.isinf(numbers).any():
        raise InputError(f"{name} is infinite in row {int(np.isinf(numbers).to_numpy().argmax())}")
    return numbers


def _few(labels: list[str]) -> str:
    return f"the columns are {', '.join(labels[:12])}" if labels else "the table has no columns"
