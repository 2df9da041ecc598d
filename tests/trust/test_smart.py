"""SMART: oracles independent of the code, the traps of the method, bad input, and the study's own arithmetic."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from assay.datasets import DataUnavailable, load_dataset
from assay.errors import InputError, MissingExtra
from assay.trust import (
    SMARTCalibrator,
    SMARTClassifier,
    charbonnier_soft_ece,
    ece,
    smooth_ece,
    temperature_bounds,
)
from assay.trust.smart import command, data, intervals, metrics
from assay.trust.smart.baselines import BASELINES, ConstantConfidence, TemperatureScaling
from assay.trust.smart.files import read_array, read_logits
from assay.trust.smart.inputs import two_columns
from assay.trust.smart.objective import SoftECE
from assay.trust.smart.rows import ValidationRows, top_two
from assay.trust.smart.solvers import NetLoss
from assay.trust.smart.temperature_net import TemperatureNet

# What assay.conformance makes of the method, asserted by tests/test_every_method.py.
CHECKS = {"passed": 99, "excused": 1, "oracles": 28, "oracles_without_data": 27}

pytestmark = pytest.mark.filterwarnings("ignore:.*look like probabilities", "ignore:.*probabilities of zero")


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    arrays = load_dataset("smart-smoke")
    return arrays["logits"].astype(float), arrays["labels"].astype(int)


@pytest.fixture(scope="module")
def fitted(digits) -> SMARTCalibrator:
    logits, y = digits
    return SMARTCalibrator().fit(logits[:500], y[:500])


@pytest.fixture(scope="module")
def cifar() -> tuple[np.ndarray, np.ndarray]:
    try:
        arrays = data.given_logits("cifar10-vgg16")
    except DataUnavailable as error:
        pytest.skip(f"data absent: {error}")
    return arrays["logits"], arrays["y"]


def quick(**settings: object) -> SMARTCalibrator:
    return SMARTCalibrator(**{"max_iter": 300, "n_restarts": 2, **settings})


# Oracles of the map


def test_oracle_accuracy_and_order_of_classes_are_unchanged(digits, fitted):
    logits, _ = digits
    assert np.array_equal(fitted.predict(logits), logits.argmax(axis=1))
    scaled = fitted.transform(logits)
    assert np.array_equal(np.argsort(scaled, axis=1, kind="stable"), np.argsort(logits, axis=1, kind="stable"))
    assert np.array_equal(fitted.predict_proba(logits).argmax(axis=1), logits.argmax(axis=1))


def test_oracle_a_constant_added_to_a_row_changes_nothing(digits, fitted):
    logits, y = digits
    # Powers of two leave the differences of these logits exact.
    shifted = logits + 2.0 ** np.random.default_rng(0).integers(-2, 5, (len(logits), 1))
    np.testing.assert_allclose(fitted.predict_proba(shifted), fitted.predict_proba(logits), atol=1e-12)
    again = SMARTCalibrator().fit(shifted[:500], y[:500])
    np.testing.assert_allclose(again.predict_proba(shifted), fitted.predict_proba(logits), atol=1e-9)


def test_oracle_permuted_classes_permute_the_probabilities(digits, fitted):
    logits, y = digits
    order = np.random.default_rng(1).permutation(10)
    place = np.argsort(order)
    again = SMARTCalibrator().fit(logits[:500][:, order], place[y[:500]])
    np.testing.assert_allclose(again.predict_proba(logits[:, order]), fitted.predict_proba(logits)[:, order], atol=1e-9)


def test_oracle_one_margin_means_one_temperature():
    random = np.random.default_rng(2)
    logits = np.zeros((300, 3))
    logits[np.arange(300), random.integers(0, 3, 300)] = 2.0
    y = np.where(random.random(300) < 0.7, logits.argmax(axis=1), random.integers(0, 3, 300))
    smart = quick().fit(logits, y)
    assert np.ptp(smart.temperatures(logits)) == 0.0
    # With one level of confidence the minimum puts it at the accuracy.
    assert smart.predict_proba(logits).max(axis=1)[0] == pytest.approx((logits.argmax(axis=1) == y).mean(), abs=2e-3)


def test_oracle_calibrated_bernoulli_keeps_temperature_one():
    random = np.random.default_rng(3)
    score = random.normal(0.0, 2.0, 100_000)
    y = (random.random(100_000) < 1 / (1 + np.exp(-score))).astype(int)
    smart = SMARTCalibrator(n_restarts=1, max_iter=400).fit(two_columns(score), y)
    margin = np.abs(score)
    bulk = np.quantile(margin, [0.25, 0.9])
    temperatures = smart.temperature_at(np.linspace(*bulk, 50))
    assert np.abs(temperatures - 1.0).max() < 0.05


# Oracles of the bounds


def test_oracle_temperature_bounds_closed_form():
    assert temperature_bounds(2, 0.8, 2) == pytest.approx((2 / np.log(4), 2 / np.log(4)), abs=1e-12)
    assert temperature_bounds(2, 0.8, 2)[0] == pytest.approx(1.442695, abs=1e-6)
    assert temperature_bounds(2, 0.8, 10)[0] == pytest.approx(0.558111, abs=1e-6)


@given(st.integers(2, 12), st.integers(0, 2**31), st.floats(0.2, 5.0))
@settings(max_examples=200, deadline=None)
def test_oracle_every_row_lies_within_the_bounds(n_classes, seed, temperature):
    logits = np.random.default_rng(seed).normal(0, 4, n_classes)
    confidence = softmax(logits / temperature).max()
    if 0.5 + 1e-9 < confidence < 1 - 1e-9:
        second, first = np.sort(logits)[-2:]
        lo, hi = temperature_bounds(first - second, confidence, n_classes)
        assert lo * (1 - 1e-6) <= temperature <= hi * (1 + 1e-6)


# Oracles of the loss


def plain_soft_ece(confidence, correct, n_bins=15, sigma=0.05, delta=1e-3):
    """The equations bin by bin and row by row."""
    centres = [(b + 0.5) / n_bins for b in range(n_bins)]
    share = [[np.exp(-((c - m) ** 2) / (2 * sigma**2)) for m in centres] for c in confidence]
    share = [[value / sum(row) for value in row] for row in share]
    loss = 0.0
    for b in range(n_bins):
        mass = sum(row[b] for row in share)
        gap = sum(row[b] * (c - a) for row, c, a in zip(share, confidence, correct, strict=True)) / mass
        loss += mass / len(confidence) * np.sqrt(gap**2 + delta**2)
    return loss


def random_rows(seed, n=80, n_classes=5, scale=3.0):
    random = np.random.default_rng(seed)
    logits = random.normal(0, scale, (n, n_classes))
    y = np.where(random.random(n) < 0.6, logits.argmax(axis=1), random.integers(0, n_classes, n))
    return logits, y


@pytest.mark.parametrize("seed", range(3))
def test_oracle_loss_equals_its_equation(seed):
    logits, y = random_rows(seed)
    probs = softmax(logits, axis=1)
    expected = plain_soft_ece(probs.max(axis=1), probs.argmax(axis=1) == y)
    assert charbonnier_soft_ece(logits, y) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.05])
def test_oracle_elementary_bounds_on_the_loss(delta):
    logits, y = random_rows(4)
    plain, rounded = charbonnier_soft_ece(logits, y, delta=0.0), charbonnier_soft_ece(logits, y, delta=delta)
    assert plain - 1e-15 <= rounded <= plain + delta + 1e-15
    assert rounded >= delta


def test_oracle_loss_is_delta_when_every_bin_is_calibrated():
    # One level of confidence that equals the accuracy: all soft bins have a gap of zero.
    logits = np.log(np.tile([0.75, 0.25], (4, 1)))
    assert charbonnier_soft_ece(logits, [0, 0, 0, 1], delta=0.01) == pytest.approx(0.01, abs=1e-12)
    assert charbonnier_soft_ece(logits, [0, 0, 1, 1], delta=0.01) > 0.2


def test_oracle_narrow_bins_give_the_binned_error():
    logits, y = random_rows(5, n=400)
    probs = softmax(logits, axis=1)
    confidence, correct = probs.max(axis=1), probs.argmax(axis=1) == y
    nearest = np.clip(np.floor(confidence * 15), 0, 14).astype(int)
    binned = np.abs(np.bincount(nearest, confidence - correct, 15)).sum() / 400
    away_from_edges = np.abs(confidence * 15 - np.round(confidence * 15)).min() > 1e-4
    assert away_from_edges
    assert charbonnier_soft_ece(logits, y, sigma=1e-4, delta=1e-6) == pytest.approx(binned, abs=2e-6)


@pytest.mark.parametrize("objective", ["charbonnier_softece", "softece", "nll"])
def test_oracle_analytic_gradient_equals_autograd(objective):
    torch = pytest.importorskip("torch")
    logits, y = random_rows(6)
    net = TemperatureNet(16, 0.1)
    first, second = top_two(logits)
    score = (first - second - (first - second).mean()) / (first - second).std()
    loss = NetLoss(net, ValidationRows.of(logits, y, score), objective, 15, 0.05, 1e-3)
    weights = net.initial(np.random.default_rng(0))
    value, gradient = loss(weights)

    parameters = torch.tensor(weights, requires_grad=True)
    w1, b1, w2, b2 = parameters[:16], parameters[16:32], parameters[32:48], parameters[48]
    hidden = torch.relu(torch.tensor(score)[:, None] * w1 + b1)
    temperature = torch.nn.functional.softplus(hidden @ w2 + b2) + 0.1
    scaled = torch.tensor(logits) / temperature[:, None]
    if objective == "nll":
        reference = torch.nn.functional.cross_entropy(scaled, torch.tensor(y))
    else:
        reference = charbonnier_soft_ece(scaled, y, delta=1e-3 if objective == "charbonnier_softece" else 0.0)
    reference.backward()
    assert value == pytest.approx(float(reference.detach()), abs=1e-12)
    np.testing.assert_allclose(gradient, parameters.grad.numpy(), atol=1e-12)


def test_oracle_curvature_is_that_of_gauss_and_newton():
    """Of gaps by finite differences, and of the likelihood by the variance of the logits; no ramp at the kinks."""
    logits, y = random_rows(6)
    net = TemperatureNet(3, 0.1)
    first, second = top_two(logits)
    rows = ValidationRows.of(logits, y, (first - second) / 5)
    weights, step = net.initial(np.random.default_rng(4)), 1e-6

    def gaps(at):
        confidence = rows.confidence(net(at, rows.score))[0]
        share = SoftECE().memberships(confidence)
        return share @ (confidence - rows.correct) / share.sum(axis=1)

    def temperatures(at):
        return net.with_pullback(at, rows.score)[0]

    def slopes(of):
        return np.stack([(of(weights + step * e) - of(weights - step * e)) / (2 * step) for e in np.eye(net.size)])

    temperature, pullback = net.with_pullback(weights, rows.score)
    confidence, by_temperature = rows.confidence(temperature)
    loss, gradient, roots = SoftECE().with_curvature(confidence, rows.correct)
    assert loss == SoftECE()(confidence, rows.correct)[0]
    assert np.array_equal(gradient, SoftECE()(confidence, rows.correct)[1])
    share = SoftECE().memberships(confidence).sum(axis=1) / len(rows)
    psi = np.maximum(np.sqrt(gaps(weights) ** 2 + 1e-6), 1e-3)
    by_gap = slopes(gaps)
    found = pullback(roots * by_temperature)
    np.testing.assert_allclose(found.T @ found, (by_gap * share / psi) @ by_gap.T, atol=1e-6)

    p = softmax(logits / temperature[:, None], axis=1)
    variance = (p * logits**2).sum(axis=1) - (p * logits).sum(axis=1) ** 2
    by_row = slopes(temperatures)
    expected = (by_row * variance / temperature**4) @ by_row.T
    np.testing.assert_allclose(pullback.curvature(rows.nll_curvature(temperature)), expected, rtol=1e-5, atol=1e-6)


def test_oracle_gradient_equals_finite_differences():
    random = np.random.default_rng(7)
    confidence, correct = random.uniform(0.3, 1.0, 40), (random.random(40) < 0.7).astype(float)
    loss = SoftECE()
    gradient = loss(confidence, correct)[1]
    step = 1e-6
    for i in range(0, 40, 7):
        up, down = confidence.copy(), confidence.copy()
        up[i] += step
        down[i] -= step
        slope = (loss(up, correct)[0] - loss(down, correct)[0]) / (2 * step)
        assert gradient[i] == pytest.approx(slope, abs=1e-7)


def test_trap_the_memberships_carry_part_of_the_gradient():
    """With r held fixed the derivative would be sum_b r psi' / n: another one."""
    random = np.random.default_rng(8)
    confidence, correct = random.uniform(0.3, 1.0, 40), (random.random(40) < 0.7).astype(float)
    loss = SoftECE()
    share = loss.memberships(confidence)
    gap = share @ (confidence - correct) / share.sum(axis=1)
    detached = (gap / np.sqrt(gap**2 + 1e-6)) @ share / 40
    assert np.abs(loss(confidence, correct)[1] - detached).max() > 1e-3


def test_many_classes_are_summed_to_a_negligible_error():
    logits, y = random_rows(9, n=60, n_classes=300)
    rows = ValidationRows.of(logits, y, np.zeros(60))
    for temperature in (0.2, 1.0, 5.0):
        exact = softmax(logits / temperature, axis=1).max(axis=1)
        np.testing.assert_allclose(rows.confidence(np.full(60, temperature))[0], exact, rtol=1e-8)


def test_net_interpolated_between_its_kinks_is_the_net():
    net, random = TemperatureNet(16, 0.1), np.random.default_rng(10)
    margin = random.normal(0, 2, 500)
    for _ in range(5):
        weights = 2 * net.initial(random)
        np.testing.assert_allclose(net(weights, margin), net.with_pullback(weights, margin)[0], rtol=1e-12)
    weights[0] = 0.0
    np.testing.assert_allclose(net(weights, margin), net.with_pullback(weights, margin)[0], rtol=1e-12)
    assert net.constant(2.5)[-1] == pytest.approx(np.log(np.expm1(2.4)))


def test_top_two_count_equal_logits_twice():
    for n_classes in (2, 5, 60):
        logits = np.random.default_rng(0).integers(-3, 4, (500, n_classes)).astype(float)
        before = logits.copy()
        ordered = np.sort(logits, axis=1)
        for layout in (logits, np.asfortranarray(logits)):
            first, second = top_two(layout)
            assert np.array_equal(first, ordered[:, -1]) and np.array_equal(second, ordered[:, -2])
            assert np.array_equal(layout, before)


# Oracles of the solvers and reference numbers


def test_oracle_default_and_lbfgs_are_no_worse_than_the_authors_loop(digits):
    pytest.importorskip("torch")
    logits, y = digits
    solvers = ("gauss-newton", "lbfgs", "adam")
    ours, lbfgs, adam = (SMARTCalibrator(solver=solver).fit(logits[:500], y[:500]) for solver in solvers)
    losses = [charbonnier_soft_ece(model.transform(logits[:500]), y[:500]) for model in (ours, lbfgs, adam)]
    assert max(losses[:2]) <= losses[2] + 1e-4
    assert adam.n_iter_ == 2000 and len(adam.weights_) == 49


def test_oracle_adam_keeps_the_weights_after_the_epoch_of_least_loss(digits):
    """With one epoch the loss is that of the start and the weights are one Adam step away: lr in each coordinate."""
    torch = pytest.importorskip("torch")
    logits, y = digits
    smart = SMARTCalibrator(solver="adam", max_iter=1).fit(logits[:500], y[:500])
    generator = torch.Generator().manual_seed(1)
    start = torch.cat([
        torch.rand(32, generator=generator) * 2 - 1, (torch.rand(17, generator=generator) * 2 - 1) / 4
    ]).numpy()
    step = np.abs(smart.weights_ - start)
    assert step.max() == pytest.approx(5e-3, rel=1e-3) and np.median(step[step > 0]) == pytest.approx(5e-3, rel=1e-3)


@pytest.mark.parametrize("n_val, ts, smart, slack", [(500, 1.71, 1.50, 0.56), (1000, 1.59, 1.08, 0.45)])
def test_oracle_reference_table_of_the_release(cifar, n_val, ts, smart, slack):
    """Percent of ECE on the CIFAR-10 outputs; the reference used 10,000 rows, the mirror has 7000 of them."""
    pytest.importorskip("torch")
    logits, y = cifar
    errors: dict[str, list[float]] = {"ts": [], "adam": [], "none": []}
    for split in range(2):
        order = np.random.default_rng(split).permutation(len(y))
        fit, test = order[:n_val], order[n_val:]
        for name, model in (("ts", TemperatureScaling()), ("adam", SMARTCalibrator(solver="adam"))):
            log_p = model.fit(logits[fit], y[fit]).predict_log_proba(logits[test])
            errors[name].append(100 * ece(np.exp(log_p), y[test]))
        errors["none"].append(100 * ece(softmax(logits[test], axis=1), y[test]))
    assert np.mean(errors["none"]) == pytest.approx(4.01, abs=0.15)
    assert np.mean(errors["ts"]) == pytest.approx(ts, abs=0.3)
    assert np.mean(errors["adam"]) == pytest.approx(smart, abs=slack)


def test_oracle_temperature_scaling_agrees_with_scikit_learn(digits):
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    class Logits(ClassifierMixin, BaseEstimator):
        def fit(self, X, y):
            self.classes_ = np.arange(10)
            return self

        def decision_function(self, X):
            return X

        def predict(self, X):
            return X.argmax(axis=1)

    logits, y = digits
    theirs = CalibratedClassifierCV(FrozenEstimator(Logits().fit(logits, y)), method="temperature")
    expected = theirs.fit(logits[:500], y[:500]).predict_proba(logits[500:])
    ours = TemperatureScaling().fit(logits[:500], y[:500])
    np.testing.assert_allclose(np.exp(ours.predict_log_proba(logits[500:])), expected, atol=1e-3)
    np.testing.assert_allclose(ours.predict_proba(logits), np.exp(ours.predict_log_proba(logits)), atol=1e-12)


# Oracles of the metrics


def test_oracle_binned_errors_by_hand():
    probs = np.array([[0.9, 0.1], [0.9, 0.1], [0.7, 0.3], [0.45, 0.55]])
    y = [0, 1, 0, 1]
    assert ece(probs, y) == pytest.approx((2 * 0.4 + 0.3 + 0.45) / 4)
    assert ece(probs, y, n_bins=1) == pytest.approx(abs(0.7625 - 0.75))
    assert ece(probs, y, n_bins=2, strategy="quantile") == pytest.approx((2 * 0.4 + 2 * 0.375) / 4)
    assert ece(probs, y, norm=2) == pytest.approx(np.sqrt((2 * 0.16 + 0.09 + 0.2025) / 4))


def test_oracle_auroc_is_scikit_learns():
    from sklearn.metrics import roc_auc_score

    random = np.random.default_rng(11)
    confidence, correct = np.round(random.random(300), 2), (random.random(300) < 0.8).astype(float)
    assert metrics.auroc(confidence, correct) == pytest.approx(roc_auc_score(correct, confidence))


def test_oracle_smooth_error_of_one_level_is_its_gap():
    """All residuals have one sign, so that smearing them over [0, 1] loses nothing."""
    probs = np.tile([0.8, 0.2], (10, 1))
    assert smooth_ece(probs, [0] * 5 + [1] * 5) == pytest.approx(0.3, abs=1e-3)


def test_oracle_smooth_error_agrees_with_relplot():
    relplot = pytest.importorskip("relplot")
    random = np.random.default_rng(12)
    confidence = random.uniform(0.5, 1, 2000)
    correct = random.random(2000) < confidence**2
    probs = np.stack([confidence, 1 - confidence], axis=1)
    expected = relplot.smECE(confidence, correct.astype(float))
    assert smooth_ece(probs, np.where(correct, 0, 1)) == pytest.approx(expected, abs=1e-3)


def test_oracle_debiased_error_vanishes_where_the_plug_in_does_not():
    random = np.random.default_rng(13)
    plain, debiased = [], []
    for _ in range(50):
        confidence = random.uniform(0.5, 1, 300)
        y = np.where(random.random(300) < confidence, 0, 1)
        probs = np.stack([confidence, 1 - confidence], axis=1)
        plain.append(ece(probs, y, strategy="quantile", norm=2) ** 2)
        debiased.append(metrics.debiased_l2_error(probs, y) ** 2)
    assert np.mean(plain) > 4e-3 and np.mean(debiased) < 0.5 * np.mean(plain)


def test_oracle_brier_and_risk_coverage_by_hand():
    assert metrics.brier_rows(np.array([[0.7, 0.3]]), np.array([1]))[0] == pytest.approx(0.49 + 0.49)
    area = metrics.risk_coverage(np.array([0.9, 0.8, 0.7]), np.array([1.0, 0.0, 1.0]))
    assert area == pytest.approx((0 + 0.5 + 1 / 3) / 3)


# Traps


def test_trap_early_stopping_keeps_a_held_out_optimum(digits):
    logits, y = digits
    stopped = SMARTCalibrator(early_stopping=True).fit(logits[:300], y[:300])
    full = SMARTCalibrator().fit(logits[:300], y[:300])
    losses = [charbonnier_soft_ece(model.transform(logits[:300]), y[:300]) for model in (stopped, full)]
    assert losses[1] < losses[0]


@pytest.fixture(scope="module")
def pools(digits) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    made = {name: data.pool_logits(name, "") for name in ("satimage", "penbased")}
    return {"digits": digits, **{name: (rows["logits"], rows["y"]) for name, rows in made.items()}}


@pytest.mark.parametrize("name", ["digits", "satimage", "penbased"])
@pytest.mark.parametrize("objective", ["charbonnier_softece", "nll"])
def test_trap_rounding_does_not_choose_the_minimum(pools, name, objective):
    """Another processor's last digits must give the same map of temperatures."""
    logits, y = pools[name]
    random = np.random.default_rng(41)
    for n in (200, 800):
        rows = random.permutation(len(y))[:n]
        other = logits * (1 + 1e-12 * random.normal(size=logits.shape))
        fits = [SMARTCalibrator(objective=objective).fit(z[rows], y[rows]) for z in (logits, other)]
        first, second = (np.log(smart.temperatures(logits)) for smart in fits)
        assert np.abs(first - second).mean() < 1e-6


def test_trap_adam_stops_early(digits):
    pytest.importorskip("torch")
    logits, y = digits
    smart = SMARTCalibrator(solver="adam", early_stopping=True).fit(logits[:300], y[:300])
    assert smart.n_iter_ < 2000


def test_trap_margins_beyond_the_fitted_range(digits):
    logits, y = digits
    plain, clipped = quick().fit(logits[:500], y[:500]), quick(clip=True).fit(logits[:500], y[:500])
    _, high = clipped.margin_range_
    assert clipped.temperature_at([10 * high])[0] == clipped.temperature_at([high])[0]
    assert plain.temperature_at([10 * high])[0] != plain.temperature_at([high])[0]
    assert plain.temperature_at([100 * high, 0.0]).min() >= 0.1
    outside = np.array([[0.0, 10 * high] + [0.0] * 8, logits[0].tolist()])
    assert plain.share_outside(outside) == 0.5


def test_trap_small_temperature_and_large_margin_stay_finite(digits, fitted):
    huge = np.zeros((3, 10))
    huge[:, 0] = [1e3, 1e5, 1e8]
    for dtype in (np.float32, np.float64):
        probs = fitted.predict_proba(huge.astype(dtype))
        assert np.isfinite(probs).all() and np.isfinite(fitted.predict_log_proba(huge.astype(dtype))).all()


def test_trap_restarts_leave_dead_units_behind(digits):
    """A start whose hidden units are all idle has a constant temperature; one of four is enough."""
    logits, y = digits
    one, four = (SMARTCalibrator(n_restarts=n, random_state=3).fit(logits[:150], y[:150]) for n in (1, 4))
    assert four.loss_ <= one.loss_


def test_trap_zero_probabilities_are_raised_with_a_warning():
    probs = np.tile([[1.0, 0.0], [0.6, 0.4], [0.3, 0.7]], (30, 1))
    y = np.tile([0, 1, 1], 30)
    with pytest.warns(UserWarning, match="look like probabilities"):
        smart = quick().fit(probs, y)
    with pytest.warns(UserWarning, match="30 probabilities of zero are raised to 1e-30"):
        assert np.isfinite(smart.predict_proba(probs)).all()


def test_trap_a_constant_confidence_has_a_low_error_and_no_ranking(digits):
    logits, y = digits
    constant = np.exp(ConstantConfidence().fit(logits[:500], y[:500]).predict_log_proba(logits[500:]))
    plain = np.exp(TemperatureScaling().fit(logits[:500], y[:500]).predict_log_proba(logits[500:]))
    confidence, correct = metrics.top_class(constant, y[500:])
    assert np.ptp(confidence) == 0.0 and np.array_equal(constant.argmax(axis=1), logits[500:].argmax(axis=1))
    assert ece(constant, y[500:]) < ece(softmax(logits[500:], axis=1), y[500:])
    assert metrics.auroc(confidence, correct) == 0.5
    tied = np.array([[1.0, 1.0, 0.0], [1.0, 0.9999, -40.0]])
    np.testing.assert_allclose(
        np.exp(ConstantConfidence().fit(logits[:500, :3], y[:500] % 3).predict_log_proba(tied)).sum(axis=1), 1.0
    )
    assert metrics.brier_rows(constant, y[500:]).mean() > metrics.brier_rows(plain, y[500:]).mean() + 0.002


def test_trap_seeds_give_other_maps_but_the_same_seed_the_same(digits):
    logits, y = digits
    first, second, other = (quick(random_state=seed).fit(logits[:300], y[:300]) for seed in (1, 1, 2))
    assert np.array_equal(first.weights_, second.weights_)
    assert not np.array_equal(first.weights_, other.weights_)


# Interface


def test_callable_objective_is_minimised(digits):
    logits, y = digits

    def brier_of_confidence(confidence, correct):
        error = confidence - correct
        return float((error**2).mean()), 2 * error / len(error)

    smart = quick(objective=brier_of_confidence).fit(logits[:400], y[:400])
    lbfgs = quick(objective=brier_of_confidence, solver="lbfgs").fit(logits[:400], y[:400])
    assert np.array_equal(smart.weights_, lbfgs.weights_)
    before = (softmax(logits[:400], axis=1).max(axis=1) - (logits[:400].argmax(axis=1) == y[:400])) ** 2
    assert smart.loss_ < before.mean()
    pytest.importorskip("torch")
    with pytest.raises(InputError, match="gauss-newton"):
        SMARTCalibrator(objective=brier_of_confidence, solver="adam").fit(logits[:400], y[:400])


@pytest.mark.parametrize("hardness", ["margin", "max_logit", "entropy", "energy"])
def test_other_scalars_can_stand_for_the_margin(digits, hardness):
    logits, y = digits
    smart = quick(hardness=hardness).fit(logits[:300], y[:300])
    np.testing.assert_allclose(
        smart.predict_proba(logits), softmax(logits / smart.temperatures(logits)[:, None], axis=1), atol=1e-12
    )


def test_torch_tensors_come_back_as_torch_tensors(digits, fitted):
    torch = pytest.importorskip("torch")
    logits, y = digits
    tensor = torch.tensor(logits, dtype=torch.float32)
    probs = fitted.predict_proba(tensor)
    assert isinstance(probs, torch.Tensor) and probs.dtype is torch.float32
    np.testing.assert_allclose(probs.numpy(), fitted.predict_proba(logits.astype(np.float32)), atol=1e-6)
    again = quick().fit(tensor[:300], torch.tensor(y[:300]))
    assert isinstance(again.transform(tensor), torch.Tensor)
    scaled = tensor.double().requires_grad_()
    loss = charbonnier_soft_ece(scaled, torch.tensor(y))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(charbonnier_soft_ece(tensor.numpy(), y), abs=1e-7)
    assert scaled.grad.abs().sum() > 0
    assert float(charbonnier_soft_ece(torch.tensor(logits).bfloat16(), y)) > 0


def test_classifier_keeps_a_fitted_model_and_calibrates_it():
    from sklearn.base import clone
    from sklearn.datasets import load_breast_cancer
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import scale

    X, y = load_breast_cancer(return_X_y=True)
    X, names = scale(X), np.array(["malignant", "benign"])[y]
    model = LogisticRegression(C=100).fit(X[:200, :4], names[:200])
    smart = SMARTClassifier(model, quick()).fit(X[200:450, :4], names[200:450])
    assert smart.estimator_ is model and clone(smart).estimator is model
    assert np.array_equal(smart.predict(X[450:, :4]), model.predict(X[450:, :4]))
    logits = two_columns(model.decision_function(X[450:, :4]))
    np.testing.assert_allclose(smart.predict_proba(X[450:, :4]), smart.calibrator_.predict_proba(logits))
    fresh = SMARTClassifier(LogisticRegression(), quick()).fit(X[:, :4], names)
    assert clone(fresh).estimator is not fresh.estimator and fresh.score(X[:, :4], names) > 0.8


def test_parameters_are_those_of_the_paper():
    defaults = {name: p.default for name, p in inspect.signature(SMARTCalibrator).parameters.items()}
    paper = {
        "hidden": 16, "n_bins": 15, "sigma": 0.05, "delta": 1e-3, "lr": 5e-3, "max_iter": 2000, "t_min": 0.1,
        "standardize": True, "random_state": 1,
    }
    assert {name: defaults[name] for name in paper} == paper
    assert TemperatureNet(16, 0.1).size == 49


# Bad input


@pytest.mark.parametrize("logits, y, message", [
    ([1.0, 2.0], [0, 1], r"shape \(2,\)"),
    ([[1.0], [2.0]], [0, 0], r"shape=\(2, 1\)"),
    ([[1.0, 2.0], [np.nan, 0.0]], [0, 1], "NaN in row 1, column 0"),
    ([[1.0, 2.0], [0.0, np.inf]], [0, 1], "inf in row 1, column 1"),
    ([[1.0, 2.0], [3.0, 0.0]], [0, 2], "0 to 1, got 2 in row 1"),
    ([[1.0, 2.0], [3.0, 0.0]], [0, -1], "got -1 in row 1"),
    ([[1.0, 2.0], [3.0, 0.0]], [0, 0.5], "integers, got 0.5 in row 1"),
    ([[1.0, 2.0], [3.0, 0.0]], ["a", "b"], "integers"),
    ([[1.0, 2.0], [3.0, 0.0]], [0, 1, 1], "3 entries, expected 2"),
    ([["a", "b"]], [0], "numbers"),
    (np.empty((0, 3)), [], "0 rows"),
])
def test_bad_arrays_are_refused_with_one_line(logits, y, message):
    with pytest.raises(InputError, match=message) as caught:
        SMARTCalibrator().fit(logits, y)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("bad", [
    {"hidden": 0}, {"n_bins": 1.5}, {"sigma": -1.0}, {"delta": -1e-3}, {"lr": 0.0}, {"max_iter": 0}, {"t_min": 0.0},
    {"objective": "ece"}, {"solver": "sgd"}, {"n_restarts": True}, {"hardness": "depth"}, {"sigma": float("nan")},
])
def test_bad_parameters_are_refused(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        SMARTCalibrator(**bad).fit([[1.0, 2.0], [3.0, 0.0]], [0, 1])


def test_few_rows_are_warned_of():
    logits, y = random_rows(20, n=40)
    with pytest.warns(UserWarning, match="no better than temperature scaling"):
        quick().fit(logits, y)
    logits, y = random_rows(20, n=120)
    with pytest.warns(UserWarning, match="chosen by training loss"):
        quick().fit(logits, y)


@pytest.mark.parametrize("right", [True, False])
def test_rows_all_right_or_all_wrong_get_one_capped_temperature(right):
    logits, _ = random_rows(21, n=60)
    y = logits.argmax(axis=1) if right else logits.argmin(axis=1)
    with pytest.warns(UserWarning, match="all 60 validation rows"):
        smart = quick().fit(logits, y)
    assert np.ptp(smart.temperatures(logits)) < 1e-9
    confidence = smart.predict_proba(logits).max(axis=1).mean()
    assert confidence == pytest.approx(61 / 62 if right else 0.2, abs=1e-2)


def test_classes_at_predict_must_be_those_of_fit(fitted):
    with pytest.raises(InputError, match="10 classes that fit saw"):
        fitted.predict_proba(np.zeros((3, 4)))


def test_classifier_refuses_labels_and_outputs_it_cannot_use():
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import SVC

    X, y = np.arange(80.0).reshape(40, 2) % 7, np.arange(40) % 4
    with pytest.raises(InputError, match="8 in row 0"):
        SMARTClassifier(LogisticRegression().fit(X, y)).fit(X, y + 8)
    with pytest.raises(InputError, match="6 columns for 4 classes"):
        SMARTClassifier(SVC(decision_function_shape="ovo").fit(X, y)).fit(X, y)


def test_torch_missing_is_said_with_the_pip_line(monkeypatch, digits):
    import importlib

    real = importlib.import_module

    def without_torch(name, *rest):
        if name == "torch":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", without_torch)
    logits, y = digits
    with pytest.raises(MissingExtra, match=r'torch, which is not installed: pip install "assay\[torch\]"'):
        SMARTCalibrator(solver="adam").fit(logits[:300], y[:300])


# Files and the command


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_files_are_read_or_refused_by_name_and_place(tmp_path):
    np.savez(tmp_path / "good.npz", probs=[[0.2, 0.8], [0.5, 0.5]], y=[1, 0])
    logits, _ = read_logits(tmp_path / "good.npz")
    np.testing.assert_allclose(softmax(logits, axis=1), [[0.2, 0.8], [0.5, 0.5]])
    assert read_array(write(tmp_path / "a.csv", b"first,second\n1,2\n3,4\n")).tolist() == [[1, 2], [3, 4]]
    assert read_array(write(tmp_path / "b.csv", b"1\n0\n")).tolist() == [1, 0]
    for path, message in [
        (write(tmp_path / "c.csv", b"1,2\n3,x\n"), "line 2, column 2: a number is expected, got 'x'"),
        (write(tmp_path / "d.csv", b"1,2\n3\n"), "line 2, column 2"),
        (write(tmp_path / "e.csv", b""), "can't be read"),
        (write(tmp_path / "f.csv", b"\xff\xfe\x00\x81"), "can't be read"),
        (write(tmp_path / "g.npy", b"not numpy"), "can't be read"),
        (tmp_path / "absent.npy", "does not exist"),
    ]:
        with pytest.raises(InputError, match=message) as caught:
            read_array(path)
        assert len(str(caught.value).splitlines()) == 1
    np.savez(tmp_path / "other.npz", scores=[1.0])
    for path, message in [
        (tmp_path / "other.npz", "holds scores: an array logits or probs is expected"),
        (write(tmp_path / "cut.npz", (tmp_path / "good.npz").read_bytes()[:200]), "can't be read"),
        (tmp_path / "absent.npz", "does not exist"),
    ]:
        with pytest.raises(InputError, match=message):
            read_logits(path)


def test_command_calibrates_unlabelled_test_rows(tmp_path, digits):
    logits, y = digits
    np.save(tmp_path / "l.npy", logits[:400])
    np.savetxt(tmp_path / "y.csv", y[:400], fmt="%d")
    np.save(tmp_path / "t.npy", logits[400:])
    out = tmp_path / "out"
    command.run(
        logits=tmp_path / "l.npy", labels=tmp_path / "y.csv", test_logits=tmp_path / "t.npy", seed=1, out=out
    )
    probs = np.load(out / "calibrated.npy")
    assert probs.shape == (600, 10) and np.array_equal(probs.argmax(axis=1), logits[400:].argmax(axis=1))
    expected = SMARTCalibrator(random_state=2).fit(logits[:400], y[:400]).predict_proba(logits[400:])
    np.testing.assert_allclose(probs, expected)
    verdict = json.loads((out / "verdict.json").read_text())
    assert verdict["validation_rows"] == 200 and verdict["outcome"] in ("holds", "fails", "unclear")
    assert {"calibration", "ranking"} <= set(verdict)
    table = (out / "table.csv").read_text().splitlines()
    assert table[0] == "method,metric,value,low,high" and len(table) == 1 + 4 * 8
    for name in ("reliability.png", "margin_temperature.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("options, message", [
    ({}, "give --data"),
    ({"logits": "l.npy"}, "give --data"),
    ({"data": "d.npz", "labels": "y.npy"}, "leave out"),
    ({"logits": "l.npy", "labels": "y.npy", "test_labels": "y.npy"}, "needs --test-logits"),
    ({"logits": "l.npy", "labels": "y.npy", "test_logits": "narrow.npy"}, "narrow.npy has 3 classes"),
    ({"logits": "l.npy", "labels": "short.npy"}, "short.npy has 5 entries"),
    ({"logits": "few.npy", "labels": "short.npy"}, "at least 40"),
])
def test_command_refuses_what_does_not_fit_together(tmp_path, digits, options, message):
    logits, y = digits
    np.save(tmp_path / "l.npy", logits[:100])
    np.save(tmp_path / "y.npy", y[:100])
    np.save(tmp_path / "narrow.npy", logits[:, :3])
    np.save(tmp_path / "few.npy", logits[:5])
    np.save(tmp_path / "short.npy", y[:5])
    np.savez(tmp_path / "d.npz", logits=logits[:100], labels=y[:100])
    given = {name: tmp_path / value for name, value in options.items()}
    with pytest.raises(InputError, match=message):
        command.run(**given, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


# The study's own arithmetic


def test_baselines_give_probabilities_and_beat_none(digits):
    logits, y = digits
    none = metrics.summary(BASELINES["none"]().fit(logits[:500], y[:500]).predict_log_proba(logits[500:]), y[500:])
    for name in ("ts", "ts-softece", "vector", "isotonic", "histogram"):
        log_p = BASELINES[name]().fit(logits[:500], y[:500]).predict_log_proba(logits[500:])
        np.testing.assert_allclose(np.exp(log_p).sum(axis=1), 1.0, atol=1e-9)
        found = metrics.summary(log_p, y[500:])
        # Isotonic regression answers zero, at any price in log loss: a known complaint.
        better = "ece" if name in ("isotonic", "histogram") else "nll"
        assert found[better] < none[better], name


def test_oracle_vector_scaling_recovers_a_known_distortion():
    random = np.random.default_rng(30)
    true = random.normal(0, 2, (20_000, 3))
    y = (softmax(true, axis=1).cumsum(axis=1) < random.random((20_000, 1))).sum(axis=1)
    factor, offset = np.array([1.0, 2.0, 0.5]), np.array([0.0, 1.0, -1.0])
    # Vector scaling centres its input: the distortion is of centred logits.
    centred = true - true.mean(axis=1, keepdims=True)
    model = BASELINES["vector"]().fit(centred, y)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(centred)), softmax(centred, axis=1), atol=0.03)
    distorted = (centred - offset) / factor
    assert metrics.summary(BASELINES["vector"]().fit(distorted, y).predict_log_proba(distorted), y)["nll"] <= (
        metrics.summary(BASELINES["ts"]().fit(distorted, y).predict_log_proba(distorted), y)["nll"]
    )


def frame(rows, confidence, correct):
    import pandas as pd

    columns = {"row": rows, "confidence": confidence, "correct": correct, "brier": (confidence - correct) ** 2}
    return pd.DataFrame(columns)


def test_oracle_weighted_metrics_equal_those_of_repeated_rows():
    """Weights that count draws must give what the drawn rows themselves give."""
    random = np.random.default_rng(31)
    rows = np.arange(200)
    units = frame(rows, np.round(random.uniform(0.3, 1, 200), 2), (random.random(200) < 0.7).astype(float))
    draws = random.integers(0, 200, 200)
    weights = np.bincount(draws, minlength=200)[:, None].astype(float)
    confidence, correct = (units[name].to_numpy()[draws] for name in ("confidence", "correct"))
    expected = {
        "ece": metrics.binned_error(confidence, correct, 15, "uniform"),
        "brier": ((confidence - correct) ** 2).mean(), "auroc": metrics.auroc(confidence, correct),
    }
    for name, make in intervals.METRICS.items():
        assert make(units, rows, 200)(weights)[0] == pytest.approx(expected[name])


def test_paired_differences_cover_the_expected_difference():
    """Two arms whose expected errors differ by a known amount: the intervals must contain it about 95 times in 100."""
    n, trials = 300, 40
    random = np.random.default_rng(32)

    def draw():
        confidence = random.uniform(0.5, 0.95, n)
        correct = (random.random(n) < confidence).astype(float)
        return frame(np.arange(n), confidence, correct), frame(np.arange(n), np.minimum(confidence + 0.06, 1), correct)

    def error(units):
        return metrics.binned_error(units["confidence"].to_numpy(), units["correct"].to_numpy(), 15, "uniform")

    expected = np.mean([error(first) - error(second) for first, second in (draw() for _ in range(800))])
    inside = sum(
        found.low <= expected <= found.high
        for found in (intervals.paired_differences([[draw()]])["ece"] for _ in range(trials))
    )
    # Fewer than 33 of 40 has a chance of 1 in 500 at a coverage of 95 %.
    assert inside >= 33


def test_splits_of_one_set_do_not_narrow_the_interval():
    """The same rows in five splits are still one data set's rows."""
    random = np.random.default_rng(33)
    confidence = random.uniform(0.5, 1, 500)
    correct = (random.random(500) < confidence).astype(float)
    pair = frame(np.arange(500), confidence, correct), frame(np.arange(500), np.sqrt(confidence), correct)
    one, five = (intervals.paired_differences([[pair] * k])["brier"] for k in (1, 5))
    assert (one.low, one.high, one.n) == pytest.approx((five.low, five.high, five.n))


def test_splits_that_differ_widen_the_interval_as_their_mean_varies():
    """Every row differs by the same within a split, so that all the spread is that of the mean over five splits."""
    random = np.random.default_rng(34)
    units = frame(np.arange(400), random.uniform(0.3, 1, 400), (random.random(400) < 0.5).astype(float))
    differences = np.array([0.0, 0.02, 0.05, -0.01, 0.04])
    splits = [(units.assign(brier=units["brier"] + d), units) for d in differences]
    found = intervals.paired_differences([splits])["brier"]
    assert found.estimate == pytest.approx(differences.mean())
    # Student's quantile with 4 degrees of freedom; the bootstrap follows five values only roughly.
    expected = 2.776 * differences.std(ddof=1) / np.sqrt(5)
    assert (found.high - found.low) / 2 == pytest.approx(expected, rel=0.15)


def test_one_split_far_off_keeps_the_interval_from_excluding_zero():
    """Four splits agree and one start ends elsewhere: five splits must not show a difference."""
    random = np.random.default_rng(35)
    units = frame(np.arange(400), random.uniform(0.3, 1, 400), (random.random(400) < 0.5).astype(float))
    splits = [(units.assign(brier=units["brier"] + d), units) for d in (-0.02, -0.02, -0.02, -0.02, 0.05)]
    found = intervals.paired_differences([splits])["brier"]
    assert found.low < 0 < found.high


def test_splits_of_both_arms_are_compared_and_none_may_lack():
    """An arm planned in fewer splits is compared in those; a planned split that was not measured leaves no answer."""
    from assay.study import Cell, Results, Row
    from assay.trust.smart.verdicts import _pairs

    random = np.random.default_rng(36)
    units = frame(np.arange(50), random.uniform(0.3, 1, 50), (random.random(50) < 0.5).astype(float))

    def rows(arm, splits, lacking=()):
        return [
            Row(Cell("letter", arm, seed, {"n_val": 3000}), "failed" if seed in lacking else "measured", units=units)
            for seed in range(splits)
        ]

    both = rows("smart", 5) + rows("smart-nll", 3)
    assert len(_pairs(Results(both), ("letter", 3000), "smart", "smart-nll")) == 3
    lacking = rows("smart", 5) + rows("smart-nll", 3, lacking=[1])
    assert _pairs(Results(lacking), ("letter", 3000), "smart", "smart-nll") == []
    assert _pairs(Results(rows("smart", 5)), ("letter", 3000), "smart", "smart-nll") == []


def test_a_loss_that_is_no_number_ends_the_descent():
    from assay.trust.smart.solvers import _gauss_newton_path

    class OnlyAtTheStart:
        def with_curvature(self, weights):
            value = 1.0 if not weights.any() else np.nan
            return value, np.ones(2), np.eye(2)

    found = _gauss_newton_path(OnlyAtTheStart(), np.zeros(2), 5, lambda value, weights: None)
    assert found.loss == 1.0 and not found.weights.any()


def test_the_smoke_slice_is_what_the_recipe_gives(digits):
    logits, y = digits
    made = data.pool_logits("smart-digits", "")
    assert np.array_equal(made["y"][:1000], y)
    # The same training on another machine rounds otherwise; the classes agree.
    assert (made["logits"][:1000].argmax(axis=1) == logits.argmax(axis=1)).mean() > 0.95


def test_rotations_and_the_long_tail_are_what_they_say():
    square = np.array([[0.0, 0, 100, 0, 100, 100, 0, 100] * 2])
    turned = data.rotate_strokes(square)
    radius = np.hypot(square[:, 0::2] - 50, square[:, 1::2] - 50)
    np.testing.assert_allclose(np.hypot(turned[:, 0::2] - 50, turned[:, 1::2] - 50), radius)
    angles = np.abs(data._angles(1000))
    assert angles.min() >= 15 and angles.max() <= 45
    counts = np.bincount(np.repeat(np.arange(5), 200)[data.long_tail(np.repeat(np.arange(5), 200))])
    assert counts[0] == 200 and counts[-1] == 2 and (np.diff(counts) < 0).all()


# Bad input and scales found by review


@pytest.mark.parametrize("scale", [0.01, 1.0, 300.0])
def test_oracle_temperature_scaling_follows_the_scale_of_the_logits(scale):
    logits, y = random_rows(11, n=400)
    from assay.trust.smart.baselines import TemperatureScaling

    plain = TemperatureScaling().fit(logits, y).temperature_
    assert TemperatureScaling().fit(scale * logits, y).temperature_ == pytest.approx(scale * plain, rel=1e-3)


def test_oracle_torch_loss_of_probabilities_is_that_of_their_logarithms():
    torch = pytest.importorskip("torch")
    logits, y = random_rows(12)
    with pytest.warns(UserWarning, match="look like probabilities"):
        found = charbonnier_soft_ece(torch.tensor(softmax(logits, axis=1)), torch.tensor(y))
    assert float(found) == pytest.approx(charbonnier_soft_ece(logits, y), abs=1e-9)


@pytest.mark.parametrize("call", [
    lambda: SMARTCalibrator().fit(np.full((60, 3), 1e300), np.zeros(60, dtype=int)),
    lambda: SMARTCalibrator().fit([[1.0, 2.0], [3.0]], [0, 1]),
    lambda: SMARTCalibrator(sigma=1e-200).fit(np.eye(3), [0, 1, 2]),
    lambda: charbonnier_soft_ece(np.eye(3) * 2, [0, 1, 2], n_bins=15.5),
    lambda: temperature_bounds([1.0, 2.0], [0.8, 0.9, 0.7], 3),
    lambda: temperature_bounds("a", 0.8, 3),
])
def test_what_cannot_be_computed_is_refused(call):
    with pytest.raises(InputError):
        call()
