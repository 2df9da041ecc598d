"""From loss to score: the sigmoid, the ladder of two steps, and slopes of power laws."""

import numpy as np
import pytest
from scipy.optimize import curve_fit
from scipy.special import expit

from assay.errors import InputError
from assay.scaling.links import SigmoidLink, TwoStepLaw, log_slope


@pytest.mark.parametrize("slope", [-3.0, 2.0])
def test_oracle_an_exact_sigmoid_is_recovered(slope):
    x = np.linspace(0.5, 6.0, 15)
    link = SigmoidLink().fit(x, 0.25 + 0.5 * expit(slope * (x - 2.5)))
    assert (link.bottom_, link.top_, link.slope_, link.middle_) == pytest.approx((0.25, 0.75, slope, 2.5), abs=1e-5)


def test_oracle_the_fit_is_as_good_as_scipys_from_the_true_values():
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(1, 5, 60))
    truth = (0.2, 0.9, -1.5, 3.0)

    def sigmoid(x, bottom, top, slope, middle):
        return bottom + (top - bottom) * expit(slope * (x - middle))

    y = np.clip(sigmoid(x, *truth) + rng.normal(0, 0.03, 60), 0, 1)
    found, _ = curve_fit(sigmoid, x, y, p0=truth)
    link = SigmoidLink().fit(x, y)
    assert 2 * link.cost_ <= np.sum((sigmoid(x, *found) - y) ** 2) * (1 + 1e-9)


def test_the_scale_of_x_does_not_matter():
    x = np.linspace(1, 3, 12)
    y = 0.3 + 0.4 * expit(-4 * (x - 2))
    near, far = SigmoidLink().fit(x, y), SigmoidLink().fit(1e6 * x + 5e8, y)
    np.testing.assert_allclose(near.predict(x), far.predict(1e6 * x + 5e8), atol=1e-6)


def test_constant_scores_are_predicted_as_they_are():
    link = SigmoidLink().fit(np.arange(6.0), np.full(6, 0.25))
    np.testing.assert_allclose(link.predict([0.0, 10.0]), 0.25, atol=1e-4)


def test_oracle_the_ladder_extrapolates_what_it_was_made_of():
    C = np.logspace(17, 20, 16)
    loss = 0.5 + 3000 / C**0.18
    score = 0.25 + 0.6 * expit(-6 * (loss - 1.2))
    far = np.array([1e21, 1e22])
    truth = 0.25 + 0.6 * expit(-6 * (0.5 + 3000 / far**0.18 - 1.2))
    np.testing.assert_allclose(TwoStepLaw().fit(C, loss, score).predict(far), truth, atol=2e-3)


def test_oracle_slope_of_an_exact_power_is_its_exponent_and_equals_polyfit():
    x = np.geomspace(1, 1e4, 25)
    assert log_slope(x, 3 * x**-0.37).estimate == pytest.approx(-0.37)
    noisy = 3 * x**-0.37 * np.exp(np.random.default_rng(0).normal(0, 0.1, 25))
    slope = log_slope(x, noisy)
    assert slope.estimate == pytest.approx(np.polyfit(np.log(x), np.log(noisy), 1)[0])
    assert slope.low < -0.37 < slope.high


def test_slopes_of_dependent_rows_count_their_groups():
    x = np.tile([1.0, 10.0, 100.0], 4)
    y = x**-0.5 * np.repeat([1.0, 1.1, 0.9, 1.05], 3) * np.exp(np.random.default_rng(1).normal(0, 0.02, 12))
    assert log_slope(x, y, groups=np.repeat(range(4), 3)).n == 4
    assert np.isinf(log_slope(x, y, groups=np.repeat([0, 1], 6)).high)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SigmoidLink().fit([1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4]), "at least 5 different points"),
        (lambda: SigmoidLink().fit(range(6), [10, 20, 30, 40, 50, 60]), "divide per cent by 100"),
        (lambda: SigmoidLink().fit(range(6), [0.1] * 5), "5 scores for 6 points"),
        (lambda: SigmoidLink().fit(range(6), [0.1, np.nan, 0.1, 0.1, 0.1, 0.1]), "y"),
        (lambda: SigmoidLink().fit(["a"] * 6, [0.1] * 6), "X"),
        (lambda: SigmoidLink(n_starts=0).fit(range(6), [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]), "n_starts"),
        (lambda: TwoStepLaw().fit([0.0, 1e5, 1e6, 1e7, 1e8, 1e9], [3.0] * 6, [0.1] * 6), "positive"),
        (lambda: log_slope([1, 1, 1], [1, 2, 3]), "two different values"),
        (lambda: log_slope([1, 2, -3], [1, 2, 3]), "positive"),
    ],
)
def test_bad_input_is_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()
