"""SMART: a temperature for each row, learned from the margin between its two largest logits.

Temperature scaling divides all logits by one number. SMART (arXiv 2506.23492) divides those of row i by
``T(g_i)``, where the margin ``g_i >= 0`` is the largest minus the second largest logit, standardised by its mean
and standard deviation on the validation set, and ``T`` is a net of 49 parameters. One positive number a row leaves
the order of the classes as it is, so accuracy can't change; confidences do.

The net is fitted on held-out logits and labels by minimising the Charbonnier soft ECE (module `objective`). Why the
margin: at a given confidence the feasible temperatures are proportional to it (`temperature_bounds`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_softmax
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from assay.errors import InputError, as_vector

from .inputs import as_labels, as_logits, check_bandwidth, check_positive, like_input
from .rows import BLOCK, HARDNESS, ValidationRows, hardness, softmax_in_place, top_two
from .solvers import Fit, NetLoss, fit_adam, fit_from_starts
from .temperature_net import TemperatureNet

Array = NDArray[np.float64]

OBJECTIVES = ("charbonnier_softece", "softece", "nll")
SOLVERS = ("gauss-newton", "lbfgs", "adam")
# A Gauss-Newton or L-BFGS iteration stands for this many epochs of Adam in `max_iter`.
EPOCHS_PER_ITERATION = 10
FEW_ROWS = 50
ROWS_TO_HOLD_OUT = 200
HOTTEST = 1e3


class SMARTCalibrator(TransformerMixin, BaseEstimator):
    """Sample margin-aware recalibration of temperature, on the logits of any classifier.

    It minimises ``sum_b (M_b / n) sqrt((C_b - A_b)^2 + delta^2)``, the Charbonnier soft calibration error of the
    confidences ``max softmax(z_i / T(g_i))``, over the 49 parameters of ``T``. Use it where the miscalibration
    depends on how hard a row is, with a thousand held-out rows or more. With a few hundred rows it is no better
    than temperature scaling, and it does not minimise the log loss: where that is your measure, prefer
    temperature scaling.

    Parameters
    ----------
    hidden : int, default 16
        Hidden units of the temperature net.
    n_bins : int, default 15
        Soft bins of confidence.
    sigma : float, default 0.05
        Bandwidth of a soft bin, in units of confidence.
    delta : float, default 1e-3
        Rounding of the absolute value in the loss, in units of confidence.
    lr : float, default 5e-3
        Learning rate of ``solver="adam"``.
    max_iter : int, default 2000
        Epochs of ``solver="adam"``; the other solvers make at most a tenth as many iterations from each start.
    t_min : float, default 0.1
        Least temperature.
    standardize : bool, default True
        Whether the margin is centred and scaled by its validation mean and standard deviation (ddof 0).
    objective : {"charbonnier_softece", "softece", "nll"} or callable
        What is minimised. A callable gets confidences [n] and correctness [n] and returns the loss and its
        derivative by each confidence.
    solver : {"gauss-newton", "lbfgs", "adam"}, default "gauss-newton"
        Damped Gauss-Newton or L-BFGS with restarts, or the authors' full-batch Adam (needs torch). Changes of the
        logits in their last digits change a Gauss-Newton fit as little, while L-BFGS may end in another minimum. A
        callable objective, of which no curvature is known, is minimised by L-BFGS also under the default.
    early_stopping : bool, default False
        Keep the parameters with the least loss on a held-out fifth of the rows instead of the least training loss;
        worth it below 500 rows, where the confidences otherwise rank worse.
    random_state : int, RandomState or None, default 1
        Seed of the starts and of the held-out split.
    n_restarts : int, default 4
        Starts of the first two solvers: a start whose hidden units are all idle on the data learns nothing.
    clip : bool, default False
        Whether margins beyond the fitted range are moved to its ends before the net sees them; the net is linear
        out there, and its temperature can grow without limit or fall to `t_min`.
    hardness : {"margin", "max_logit", "entropy", "energy"}, default "margin"
        The scalar that the temperature depends on; the paper's is the margin.

    Attributes
    ----------
    n_classes_ : int
        Number K of classes.
    margin_mean_, margin_std_ : float
        Validation mean and standard deviation of the margin.
    margin_range_ : tuple of float
        Least and largest margin of the validation set.
    weights_ : array of shape [3 hidden + 1]
        Parameters of the net: input weights, input biases, output weights, output bias.
    loss_ : float
        Loss of the kept parameters (on the held-out rows with `early_stopping`).
    loss_curve_ : list of float
        Losses on the way of the kept start.
    n_iter_ : int
        Passes over the rows of the kept start.

    References
    ----------
    H. Guo et al., ICML 2026, arXiv 2506.23492. The choice of a start by held-out rows and the first two solvers
    are reconstructions of ours; ``solver="adam"`` follows the authors' code.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.svm import SVC
    >>> X, y = load_digits(return_X_y=True)
    >>> logits = 3 * SVC(gamma=1e-4).fit(X[:600], y[:600]).decision_function(X[600:])
    >>> smart = SMARTCalibrator().fit(logits[:700], y[600:1300])
    >>> probs = smart.predict_proba(logits[700:])
    >>> probs.shape, bool((probs.argmax(axis=1) == logits[700:].argmax(axis=1)).all())
    ((497, 10), True)
    """

    def __init__(
        self, hidden: int = 16, n_bins: int = 15, sigma: float = 0.05, delta: float = 1e-3, lr: float = 5e-3,
        max_iter: int = 2000, t_min: float = 0.1, standardize: bool = True,
        objective: str | Callable[[Array, Array], tuple[float, Array]] = "charbonnier_softece",
        solver: str = "gauss-newton", early_stopping: bool = False, random_state: Any = 1, n_restarts: int = 4,
        clip: bool = False, hardness: str = "margin",
    ) -> None:
        self.hidden = hidden
        self.n_bins = n_bins
        self.sigma = sigma
        self.delta = delta
        self.lr = lr
        self.max_iter = max_iter
        self.t_min = t_min
        self.standardize = standardize
        self.objective = objective
        self.solver = solver
        self.early_stopping = early_stopping
        self.random_state = random_state
        self.n_restarts = n_restarts
        self.clip = clip
        self.hardness = hardness

    def fit(self, logits: Any, y: Any) -> SMARTCalibrator:
        """Learn the map from margin to temperature on held-out rows.

        Parameters
        ----------
        logits : array or torch tensor of shape [n, K]
            Logits of rows that the classifier was not trained on; probabilities are recognised (with a warning).
        y : array or torch tensor of shape [n]
            Labels in 0..K-1.

        Returns
        -------
        SMARTCalibrator
            Itself, fitted.

        Raises
        ------
        InputError
            Where an array is malformed (naming the row) or a parameter is out of range.
        """
        self._check_parameters()
        scores = as_logits(logits)
        labels = as_labels(y, scores)
        self.n_classes_ = scores.shape[1]
        self.n_features_in_ = scores.shape[1]
        margin = hardness(scores, self.hardness)
        self.margin_mean_ = float(margin.mean()) if self.standardize else 0.0
        self.margin_std_ = max(float(margin.std()), 1e-8) if self.standardize else 1.0
        self.margin_range_ = (float(margin.min()), float(margin.max()))
        rows = ValidationRows.of(scores, labels, self._standardised(margin))
        fit = self._solve(scores, labels, rows)
        self.weights_, self.loss_, self.loss_curve_, self.n_iter_ = fit.weights, fit.loss, fit.curve, fit.iterations
        return self

    def temperatures(self, logits: Any) -> Any:
        """Temperature [n] of each row of logits [n, K]."""
        return like_input(self._temperatures(self._checked(logits)), logits)

    def temperature_at(self, margin: Any) -> Array:
        """Temperature [m] at given margins [m] (values of `hardness`, before standardising): the learned map."""
        check_is_fitted(self, "weights_")
        return self._temperatures_at(as_vector(margin, "margin").astype(np.float64))

    def transform(self, logits: Any) -> Any:
        """Scaled logits [n, K]: each row divided by its temperature."""
        scores = self._checked(logits)
        return like_input(scores / self._temperatures(scores)[:, None], logits)

    def predict_proba(self, logits: Any) -> Any:
        """Calibrated probabilities [n, K]; the kind of array is that of `logits`."""
        scores = self._checked(logits)
        probs = scores.copy()
        # Block by block, so that the intermediate arrays stay in the cache.
        for start in range(0, len(probs), BLOCK):
            rows = probs[start : start + BLOCK]
            top, second = top_two(rows)
            score = top - second if self.hardness == "margin" else hardness(rows, self.hardness)
            softmax_in_place(rows, top, self._temperatures_at(score))
        return like_input(probs, logits)

    def predict_log_proba(self, logits: Any) -> Any:
        """Logarithm of the calibrated probabilities [n, K], finite where a probability would round to zero."""
        scores = self._checked(logits)
        return like_input(log_softmax(scores / self._temperatures(scores)[:, None], axis=1), logits)

    def predict(self, logits: Any) -> NDArray[np.intp]:
        """Top class [n]: that of the uncalibrated logits, always."""
        return self._checked(logits).argmax(axis=1)

    def share_outside(self, logits: Any) -> float:
        """Share of rows whose margin lies outside the range seen in `fit`: there the temperature is extrapolated."""
        margin = hardness(self._checked(logits), self.hardness)
        low, high = self.margin_range_
        return float(((margin < low) | (margin > high)).mean())

    def _solve(self, logits: Array, labels: NDArray[np.intp], rows: ValidationRows) -> Fit:
        net = TemperatureNet(self.hidden, self.t_min)
        if rows.correct.min() == rows.correct.max():
            return self._constant_fit(net, rows)
        n = len(rows)
        if n < FEW_ROWS:
            warnings.warn(
                f"{n} validation rows: with so few SMART is no better than temperature scaling, and can be worse",
                UserWarning, stacklevel=3,
            )
        random = check_random_state(self.random_state)
        if self.solver == "adam":
            seed = self.random_state if isinstance(self.random_state, (int, np.integer)) else random.randint(2**31)
            return fit_adam(
                logits, labels, rows.score, net=net, objective=self.objective, n_bins=self.n_bins, sigma=self.sigma,
                delta=self.delta, lr=self.lr, max_iter=self.max_iter, seed=int(seed),
                early_stopping=self.early_stopping,
            )
        if n < ROWS_TO_HOLD_OUT and not self.early_stopping:
            warnings.warn(
                f"{n} validation rows: the start is chosen by training loss, which over-fits; "
                f"{ROWS_TO_HOLD_OUT} rows would allow a held-out choice",
                UserWarning, stacklevel=3,
            )
        loss = NetLoss(net, rows, self.objective, self.n_bins, self.sigma, self.delta)
        starts = [net.initial(random) for _ in range(self.n_restarts)]
        return fit_from_starts(
            loss, starts, max(1, self.max_iter // EPOCHS_PER_ITERATION), random,
            solver="lbfgs" if callable(self.objective) else self.solver,
            hold_out=n >= ROWS_TO_HOLD_OUT or self.early_stopping, early_stopping=self.early_stopping,
        )

    def _constant_fit(self, net: TemperatureNet, rows: ValidationRows) -> Fit:
        """One temperature that keeps the mean confidence at (correct + 1) / (n + 2).

        With every row right (or every row wrong) the loss only falls as the temperature goes to its bound, which
        would make each confidence one (or 1/K); the rule of succession caps it.
        """
        n = len(rows)
        cap = (rows.correct.sum() + 1.0) / (n + 2.0)
        warnings.warn(
            f"all {n} validation rows are {'right' if rows.correct[0] else 'wrong'}: one temperature is used, "
            f"chosen so that the mean confidence is {cap:.4g}",
            UserWarning, stacklevel=4,
        )

        def above_cap(temperature: float) -> float:
            return float(rows.confidence(np.full(n, temperature))[0].mean() - cap)

        coldest = self.t_min + 1e-6
        if above_cap(coldest) <= 0:
            temperature = coldest
        elif above_cap(HOTTEST) >= 0:
            temperature = HOTTEST
        else:
            temperature = brentq(above_cap, coldest, HOTTEST)
        loss = NetLoss(net, rows, self.objective, self.n_bins, self.sigma, self.delta)
        weights = net.constant(temperature)
        return Fit(weights, loss(weights)[0], [], 0)

    def _temperatures(self, logits: Array) -> Array:
        return self._temperatures_at(hardness(logits, self.hardness))

    def _temperatures_at(self, margin: Array) -> Array:
        if self.clip:
            margin = np.clip(margin, *self.margin_range_)
        return TemperatureNet(self.hidden, self.t_min)(self.weights_, self._standardised(margin))

    def _standardised(self, margin: Array) -> Array:
        return (margin - self.margin_mean_) / self.margin_std_

    def _checked(self, logits: Any) -> Array:
        check_is_fitted(self, "weights_")
        return as_logits(logits, n_classes=self.n_classes_)

    def _check_parameters(self) -> None:
        check_positive(lr=self.lr, t_min=self.t_min)
        check_bandwidth(self.sigma)
        check_positive(delta=self.delta, zero_allowed=True)
        for name in ("hidden", "n_bins", "max_iter", "n_restarts"):
            value = getattr(self, name)
            if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")
        try:
            check_random_state(self.random_state)
        except ValueError as error:
            raise InputError(f"random_state: {error}") from None
        _check_choice("solver", self.solver, SOLVERS)
        _check_choice("hardness", self.hardness, tuple(HARDNESS))
        if not callable(self.objective):
            _check_choice("objective", self.objective, OBJECTIVES)


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
