"""The adaptation law: closed forms, reference numbers, traps, bad input, the families, the study, the command."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.linalg import solve_continuous_are, solve_continuous_lyapunov

from assay.catalogue import get
from assay.datasets import DataUnavailable, load_dataset, local_file
from assay.errors import InputError
from assay.scaling.meta_adaptation import (
    AdaptationCurve,
    AdaptationFit,
    Budget,
    LQRFamily,
    QubitFamily,
    adaptation_budget,
    adaptation_decision,
    command,
    devices,
    fit_adaptation_law,
    judging,
    lindblad,
    measuring,
    probes,
)
from assay.scaling.meta_adaptation.law import runs_test
from assay.study import Cell, Outcome, Results, Row, Tier

# What assay.conformance makes of the method, asserted by tests/test_every_method.py.
CHECKS = {"passed": 100, "excused": 1, "oracles": 13, "oracles_without_data": 13}

STEPS = np.array([0, 1, 2, 3, 5, 7, 10, 15, 20, 30])
HALF_PI = np.tile([np.pi / 2, 0.0], (20, 1))


def lqr(masses=(1.0, 1.4)) -> LQRFamily:
    return LQRFamily(list(masses))


# ---------------------------------------------------------------- the law

@pytest.mark.parametrize("rate", [0.02, 0.1, 0.4])
def test_oracle_quadratic_has_twice_the_bound(rate):
    """mu/2 |theta - theta*|^2 under steps of eta: the rate is -2 log(1 - eta mu), the bound half of that."""
    K = np.arange(0, 40)
    a_inf = 0.5 * 3.0 * 2.0**2
    fit = fit_adaptation_law(K, a_inf * (1 - (1 - rate) ** (2 * K)))
    assert fit.beta == pytest.approx(-2 * math.log(1 - rate), abs=1e-8)
    assert fit.a_inf == pytest.approx(a_inf, rel=1e-8)
    assert fit.beta > rate


@pytest.mark.parametrize(("a_inf", "beta"), [(1.0, 0.2), (3e-7, 1.5), (400.0, 0.03)])
def test_oracle_aitken_is_exact_on_exponentials(a_inf, beta):
    losses = a_inf * (1 + np.exp(-beta * np.arange(3)))
    budget = adaptation_budget(losses, fraction=0.9)
    assert budget.a_inf == pytest.approx(a_inf, rel=1e-7)
    assert budget.beta == pytest.approx(beta, rel=1e-7)
    assert budget.k_star == pytest.approx(-math.log(0.1) / beta, rel=1e-7)
    first, second = -np.diff(losses)
    assert first**2 / (first - second) == pytest.approx(a_inf, rel=1e-6)


def test_oracle_budget_maximises_the_net_gain():
    losses = 2.0 - 1.5 * -np.expm1(-0.25 * np.arange(5))
    budget = adaptation_budget(losses, price=0.01)
    K = np.linspace(0, 60, 60001)
    best = K[np.argmax(1.5 * -np.expm1(-0.25 * K) - 0.01 * K)]
    assert budget.k_star == pytest.approx(best, abs=2e-3)
    decision = adaptation_decision(3.0, 0.5, 0.25, 0.01)
    assert decision.k_star == pytest.approx(budget.k_star, rel=1e-6)
    assert decision.net_gain == pytest.approx((1.5 * -np.expm1(-0.25 * K) - 0.01 * K).max(), rel=1e-6)


def test_oracle_authors_gains():
    """Their one-qubit gains after 0 to 5 steps; they report A = .00605 and beta = .188 for a longer curve."""
    gains = [0.0, 0.001107, 0.002041, 0.002814, 0.003443, 0.003944]
    fit = fit_adaptation_law(range(6), gains)
    assert fit.r2 > 0.999
    assert fit.a_inf == pytest.approx(0.00605, rel=0.1)
    assert fit.beta == pytest.approx(0.188, rel=0.1)
    assert "not identified" in fit.verdict, "beta K_max is below 1: the number must not go without that"


def test_sem_weighs_and_the_bootstrap_covers_the_tasks():
    rng = np.random.default_rng(0)
    rows = np.outer(1 + 0.2 * rng.standard_normal(60), -np.expm1(-0.2 * STEPS))
    fit = fit_adaptation_law(STEPS, rows, random_state=0)
    low, high = fit.ci["a_inf"]
    assert low < 1.0 < high and high - low < 0.3
    assert low < fit.a_inf < high
    assert np.sqrt(fit.cov[0][0]) == pytest.approx(0.2 / np.sqrt(60), rel=0.4)
    spoilt = rows.mean(axis=0).copy()
    spoilt[-1] += 0.5
    sem = np.r_[np.full(9, 0.001), 10.0]
    assert fit_adaptation_law(STEPS, spoilt, sem=sem).a_inf == pytest.approx(rows.mean(axis=0)[-1], rel=0.02)


def test_runs_test_is_exact():
    assert runs_test(np.array([1.0, 1, 1, -1, -1, -1])) == pytest.approx(2 * 2 / 20)
    assert runs_test(np.array([1.0, -1, 1, -1, 1, -1])) == pytest.approx(2 * 2 / 20)
    assert math.isnan(runs_test(np.array([1.0, 1.0, 1.0, 1.0])))


def test_trap_sum_of_exponentials_is_told_by_its_residuals():
    """R2 is above 0.98 and the asymptote is wrong: the runs of the residuals speak."""
    K = np.arange(0, 41)
    gains = -np.expm1(-0.1 * K) - np.expm1(-0.03 * K)
    fit = fit_adaptation_law(K, gains)
    assert fit.r2 > 0.98
    assert fit.a_inf < 0.95 * 2.0
    assert fit.residual_runs_p < 1e-3
    assert "runs" in fit.verdict


def test_trap_rising_losses_are_not_fitted():
    budget = adaptation_budget([[1.0, 1.3, 1.9, 3.0]] * 4)
    assert budget.reason == "diverging: reduce step size" and not budget.reliable and math.isnan(budget.k_star)
    fit = fit_adaptation_law([0, 1, 2, 3], [0.0, -0.3, -0.6, -0.7])
    assert fit.verdict == "diverging: reduce step size" and math.isnan(fit.a_inf)


def test_trap_short_curves_come_with_their_interval():
    """beta K_max = 0.6 with noise: the interval of A must be wide, and the verdict say why."""
    K = np.arange(0, 7)
    noise = 0.004 * np.array([0, 1, -1, 1, -1, 1, -1])
    fit = fit_adaptation_law(K, -np.expm1(-0.1 * K) + noise)
    assert "not identified" in fit.verdict
    assert fit.ci["a_inf"][1] - fit.ci["a_inf"][0] > 0.2


@pytest.mark.parametrize(
    ("losses", "reason"),
    [
        ([1.0, 0.9, 0.7, 0.3], "do not fall"), ([1.0, 0.9, 0.95, 0.8], "gains nothing"),
        ([1.0, 0.8, 0.64, 0.35], "do not fall"),
    ],
)
def test_probes_that_cannot_tell_say_so(losses, reason):
    budget = adaptation_budget(losses)
    assert not budget.reliable and reason in budget.reason


def test_uncertain_probes_are_not_reliable():
    rng = np.random.default_rng(1)
    losses = 2 + np.exp(-0.05 * np.arange(4)) + 0.01 * rng.standard_normal((6, 4))
    budget = adaptation_budget(losses, random_state=0)
    assert not budget.reliable and "cannot tell" in budget.reason


def test_tasks_without_finite_losses_are_dropped_and_counted():
    losses = np.array([[2.0, 1.5, 1.25], [np.nan, 1.0, 1.0], [2.0, 1.5, 1.25], [np.inf, 1.0, 0.5]])
    budget = adaptation_budget(losses)
    assert (budget.n_tasks, budget.n_dropped) == (2, 2)
    assert budget.a_inf == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: adaptation_budget([1.0, 0.5]), "at least 3 losses"),
        (lambda: adaptation_budget([[np.nan, 1, 1], [np.inf, 1, 1]]), "no task has finite losses"),
        (lambda: adaptation_budget([1.0, 0.5, -0.1]), "0 or more"),
        (lambda: adaptation_budget([1.0, 0.5, 0.3], fraction=1.2), "fraction"),
        (lambda: adaptation_budget([1.0, 0.5, 0.3], fraction=0.0), "fraction"),
        (lambda: adaptation_budget([1.0, 0.5, 0.3], price=0.0), "price"),
        (lambda: adaptation_budget("text"), "numbers"),
        (lambda: fit_adaptation_law([0, 1, 2], [0.0, 0.1, 0.2]), "at least 3 different steps"),
        (lambda: fit_adaptation_law([0, 1, 2, 3], [0.0, np.nan, 0.2, 0.3]), "row 0, column 1"),
        (lambda: fit_adaptation_law([0, 1, 2, 3], [0.0, 0.2, 0.3]), "one column a step"),
        (lambda: adaptation_decision(1.0, 1.0, 1.0, 0.0), "price"),
        (lambda: QubitFamily("x", [[0.1, -0.2]]), "row 0, column 1"),
        (lambda: QubitFamily("x", t1_us=[10, 10, 10], t2_us=[5, 25, 5], gate_ns=30), "task 1"),
        (lambda: QubitFamily("x", [[0.1, 0.2]], t1_us=[1.0]), "either"),
        (lambda: QubitFamily(["x"], [[0.1, 0.2]]), "gate"),
        (lambda: QubitFamily("x", [[0.1, 0.2]], noise="loud"), "noise"),
        (lambda: QubitFamily("x", [[0.1, 0.2]], n_segments=0), "n_segments"),
        (lambda: QubitFamily("x", t1_us=[10.0], t2_us=[5.0], gate_ns="long"), "gate_ns"),
        (lambda: QubitFamily("x", [[0.1, 0.2]]).losses("flat"), "pulses"),
        (lambda: QubitFamily("x", [[0.1, 0.2]]).curve(np.zeros((2, 2)), 0.1, 2), "theta0"),
        (lambda: QubitFamily("x", [[0.1, 0.2]]).pooled_pulse([1.0, 2.0]), "start"),
        (lambda: QubitFamily("x", [[0.1, 0.2]]).largest_stable_step([1.0, 2.0]), "pulse"),
        (lambda: QubitFamily("x", [[0.1, 0.2]]).largest_stable_step(HALF_PI, 0), "n_tasks"),
        (lambda: QubitFamily("h", [[0.1, 0.2]]).start("a"), "seed"),
        (lambda: LQRFamily([1.0], q=3.0), "q must"),
        (lambda: LQRFamily([1e300]), "masses"),
        (lambda: LQRFamily([1.0]).costs("ab"), "gains"),
        (lambda: LQRFamily([1.0]).costs([[1], [2, 3]]), "gains"),
        (lambda: LQRFamily.draw(0, 0.1, 0), "n_tasks"),
        (lambda: LQRFamily.draw(3, -0.1, 0), "sd"),
        (lambda: LQRFamily.draw(3, 0.1, "a"), "seed"),
        (lambda: fit_adaptation_law(STEPS, STEPS * 1e-200), "unit"),
        (lambda: fit_adaptation_law(STEPS, STEPS * 1e200), "unit"),
        (lambda: fit_adaptation_law(STEPS, STEPS + 1j), "numbers"),
        (lambda: fit_adaptation_law(STEPS, STEPS, random_state="a"), "random_state"),
        (lambda: adaptation_budget([1e-300, 5e-301, 2.5e-301]), "unit"),
        (lambda: adaptation_budget([1.0, 0.5, 0.3], random_state=-1), "random_state"),
        (lambda: adaptation_decision(1e300, 1e300, 1.0, 1.0), "finite"),
        (lambda: adaptation_decision(1.0, 1.0, 1.0, True), "price"),
    ],
)
def test_bad_input_is_refused_in_one_line(call, says):
    with pytest.raises(InputError, match=says) as caught:
        call()
    assert len(str(caught.value).splitlines()) == 1


def test_gains_that_do_not_move_have_a_verdict():
    assert fit_adaptation_law(STEPS, 0.0 * STEPS).verdict == "nothing is gained"
    assert "does not describe" in fit_adaptation_law(STEPS[1:], np.ones(9)).verdict


def test_units_of_the_steps_do_not_matter():
    """The search for beta goes by the longest step, however short or long the steps are."""
    for unit in (1e-6, 1e6):
        fit = fit_adaptation_law(unit * STEPS, -np.expm1(-0.2 * STEPS))
        assert fit.beta * unit == pytest.approx(0.2, rel=1e-8)


def test_a_tiny_price_has_a_budget():
    budget = adaptation_budget([2.0, 1.5, 1.25, 1.125], price=1e-305)
    assert budget.k_star == pytest.approx(math.log(math.log(2)) / math.log(2) + 305 * math.log(10) / math.log(2))


def test_two_probe_steps_of_one_task_are_not_trusted():
    """Any two steps that fall follow the law: the interval must not have no width."""
    budget = adaptation_budget([2.0, 1.5, 1.25])
    assert not budget.reliable and "third" in budget.reason
    assert budget.ci["k_star"] == [0.0, math.inf]
    rows = 2 - np.outer([1.0, 1.1, 0.9, 1.05], [0.0, 0.5, 0.75])
    assert adaptation_budget(rows, random_state=0).reliable


def test_probes_on_a_straight_line_cannot_tell():
    budget = adaptation_budget([2.0, 1.9, 1.8000001, 1.7000003])
    assert not budget.reliable and "hardly fall" in budget.reason


def test_the_interval_counts_the_gains_alone():
    """The start has a gain of 0 by definition: it is no measurement, and no degree of freedom."""
    steps, gains = [1, 2, 4, 8, 16], np.array([0.18, 0.34, 0.54, 0.80, 0.97])
    without, with_start = fit_adaptation_law(steps, gains), fit_adaptation_law([0, *steps], [0.0, *gains])
    assert with_start.ci["a_inf"] == pytest.approx(without.ci["a_inf"], rel=1e-6)


def test_results_are_written_and_read():
    fit = fit_adaptation_law(STEPS, -np.expm1(-0.2 * STEPS))
    again = AdaptationFit.from_json(fit.to_json())
    assert again.predict([3.0]) == pytest.approx(fit.predict([3.0]))
    budget = adaptation_budget([2.0, 1.5, 1.25])
    assert Budget.from_json(budget.to_json()).k_star == budget.k_star


# ---------------------------------------------------------------- regulators

def test_oracle_lqr_closed_forms():
    family = lqr()
    assert family.optimal_gains() == pytest.approx(np.array([[1.741657, 1.675618], [1.741657, 1.975205]]), abs=1e-6)
    assert family.gradients(family.robust_gain())[1] == pytest.approx([0.03202138, -0.0756764], abs=1e-7)
    assert family.gradients(family.robust_gain())[0] == pytest.approx([0.0, 0.0], abs=1e-12)
    assert family.costs(family.robust_gain())[1] == pytest.approx(1.1132713, abs=1e-7)
    assert family.optimal_costs()[1] == pytest.approx(1.1026657, abs=1e-7)
    assert family.curve(1)[1, 1] == pytest.approx(1.1127390, abs=1e-7)


@pytest.mark.parametrize("mass", [0.4, 0.9, 1.8])
def test_oracle_lqr_riccati_and_lyapunov_of_scipy(mass):
    family, B, Q, R = lqr([mass]), np.array([[0.0], [1 / mass]]), np.diag([1.0, 0.1]), np.array([[0.1]])
    A = np.array([[0.0, 1.0], [-2.0 / mass, -0.5 / mass]])
    P = solve_continuous_are(A, B, Q, R)
    assert family.optimal_gains()[0] == pytest.approx((B.T @ P / 0.1).ravel(), rel=1e-9)
    assert family.optimal_costs()[0] == pytest.approx(np.trace(P), rel=1e-9)
    K = np.array([[1.2, 2.2]])
    loop = A - B @ K
    value = solve_continuous_lyapunov(loop.T, -(Q + K.T @ R @ K))
    spread = solve_continuous_lyapunov(loop, -np.eye(2))
    assert family.costs(K)[0] == pytest.approx(np.trace(value), rel=1e-9)
    assert family.gradients(K)[0] == pytest.approx((2 * (R @ K - B.T @ value) @ spread).ravel(), rel=1e-9)


def test_oracle_lqr_gradient_is_that_of_finite_differences():
    family, K, h = lqr([0.7]), np.array([1.5, 1.9]), 1e-6
    numeric = [
        (family.costs(K + h * e)[0] - family.costs(K - h * e)[0]) / (2 * h) for e in np.eye(2)
    ]
    assert family.gradients(K)[0] == pytest.approx(numeric, rel=1e-6)


def test_oracle_authors_regulators():
    """Their seed and masses, their gradient, and the cost that they report: that from the one start (1, 0)."""
    masses = np.clip(np.random.RandomState(42).normal(1.0, 0.25, 100), 0.4, 1.8)
    family = LQRFamily(masses)

    def cost(gains: np.ndarray) -> float:
        gains = np.broadcast_to(gains, (100, 2))
        return float(np.mean([cost_from_one_start(m, K) for m, K in zip(masses, gains, strict=True)]))

    start = cost(family.robust_gain())
    truth = start - cost(family.optimal_gains())
    assert truth == pytest.approx(0.00300048, abs=5e-9)
    fit = fit_adaptation_law(STEPS, [0.0, *(start - cost(family.descend(k)[1]) for k in STEPS[1:].tolist())])
    assert fit.a_inf == pytest.approx(0.00292189, rel=5e-4)
    assert fit.beta == pytest.approx(0.0420199, rel=1e-3)
    assert fit.r2 == pytest.approx(0.9999985, abs=2e-7)
    assert -0.03 < fit.a_inf / truth - 1 < -0.02, "the curve is a sum of exponentials: A comes out too low"


def cost_from_one_start(mass: float, K: np.ndarray) -> float:
    A, B = np.array([[0.0, 1.0], [-2.0 / mass, -0.5 / mass]]), np.array([[0.0], [1 / mass]])
    loop = A - B @ K[None]
    return float(solve_continuous_lyapunov(loop.T, -(np.diag([1.0, 0.1]) + 0.1 * np.outer(K, K)))[0, 0])


def test_unstable_steps_are_rejected():
    family = lqr([0.5, 1.5])
    assert family.costs([-2.5, 1.0])[0] == np.inf
    assert np.isnan(family.gradients([-2.5, 1.0])).all()
    losses = family.curve(5, lr=500.0)
    assert family.rejected_ > 0
    assert np.isfinite(losses).all()


# ---------------------------------------------------------------- qubits

torch = pytest.importorskip("torch", reason="torch is an extra of this method")
torch.set_num_threads(1)


def test_oracle_idle_qubit():
    """Coherence falls as exp(-t/T2), population as exp(-t/T1): T1 = 100, T2 = 80, t = 30 give 0.85256613."""
    generator = np.tensordot([30 / 100, 30 / 80 - 30 / 200], lindblad.noise_generators(1), axes=1)
    channel = torch.linalg.matrix_exp(torch.from_numpy(generator)).numpy()
    assert channel[1, 1] == pytest.approx(math.exp(-30 / 80), rel=1e-12)
    assert channel[3, 3] == pytest.approx(math.exp(-30 / 100), rel=1e-12)
    entanglement = np.trace(channel) / 4
    assert (2 * entanglement + 1) / 3 == pytest.approx(0.5 + (math.exp(-0.3) + 2 * math.exp(-0.375)) / 6, rel=1e-12)
    assert (2 * entanglement + 1) / 3 == pytest.approx(0.85256613, abs=1e-8)


def test_oracle_x_gate_of_32_ns():
    family = QubitFamily("x", t1_us=[100.0], t2_us=[80.0], gate_ns=32.0)
    loss = family.losses(HALF_PI)[0]
    assert loss == pytest.approx(1.86632e-4, rel=1e-5)
    assert loss == pytest.approx(0.032 / 6 * (1 / 100 + 2 / 80), rel=2e-3)
    assert QubitFamily("x", [[0.0, 0.0]]).losses(HALF_PI)[0] == pytest.approx(0.0, abs=1e-14)


@pytest.mark.parametrize("turns", [1, 3, 5])
def test_oracle_first_order_of_the_loss_is_that_of_every_pulse(turns):
    """The trace of the noise's generator is the same in every frame: nothing to adapt to, up to the rates' square."""
    rates = np.array([3e-5, 7e-5])
    loss = QubitFamily("x", rates[None]).losses(turns * HALF_PI)[0]
    assert loss == pytest.approx(2 / 3 * rates.sum() / 2, rel=2e-4)


@pytest.mark.parametrize(("gate", "size"), [("x", 2), ("cz", 4)])
def test_oracle_superoperator_is_small_runge_kutta_steps(gate, size):
    n = int(np.log2(size))
    rng = np.random.default_rng(0)
    rates = rng.uniform(0.01, 0.1, (1, 2 * n))
    family = QubitFamily(gate, rates, n_segments=4)
    pulse = rng.normal(0, 1, family.pulse_shape)
    assert family.losses(pulse)[0] == pytest.approx(1 - fidelity_by_stepping(gate, n, rates[0], pulse), abs=1e-8)


def fidelity_by_stepping(gate: str, n: int, rates: np.ndarray, pulse: np.ndarray, substeps: int = 60) -> float:
    """Density matrices of a full operator basis, stepped by RK4: nothing of the Pauli basis or its generators."""
    d = 2**n
    X, Y, Z = np.array([[0, 1], [1, 0]]), np.array([[0, -1j], [1j, 0]]), np.diag([1, -1])
    lower = np.array([[0, 1], [0, 0]])
    on = (lambda A, q: np.kron(A, np.eye(2)) if q == 0 else np.kron(np.eye(2), A)) if n == 2 else (lambda A, q: A)
    axes, drift = ((X, Y), np.zeros((2, 2))) if n == 1 else ((X, Y, Z), 2.0 * np.kron(Z, Z))
    controls = [on(A, q) for q in range(n) for A in axes]
    jumps = [(rates[2 * q], on(lower, q)) for q in range(n)] + [(rates[2 * q + 1] / 2, on(Z, q)) for q in range(n)]
    target = {"x": X, "cz": np.diag([1, 1, 1, -1])}[gate].astype(complex)
    dt = (1.0 if n == 1 else np.pi / 4) / len(pulse) / substeps

    def slope(rho, H):
        out = -1j * (H @ rho - rho @ H)
        for g, L in jumps:
            out = out + g * (L @ rho @ L.conj().T - (L.conj().T @ L @ rho + rho @ L.conj().T @ L) / 2)
        return out

    total = 0.0
    for i in range(d):
        for j in range(d):
            rho = np.zeros((d, d), complex)
            rho[i, j] = 1.0
            ideal = target @ rho @ target.conj().T
            for u in pulse:
                H = drift + sum(a * C for a, C in zip(u, controls, strict=True))
                for _ in range(substeps):
                    k1 = slope(rho, H)
                    k2 = slope(rho + dt / 2 * k1, H)
                    k3 = slope(rho + dt / 2 * k2, H)
                    k4 = slope(rho + dt * k3, H)
                    rho = rho + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            total += np.trace(ideal.conj().T @ rho).real
    return (total / d + 1) / (d + 1)


def test_oracle_qutip_propagator():
    """An independent package's propagator of the same master equation."""
    qutip = pytest.importorskip("qutip")
    family = QubitFamily("x", [[0.05, 0.1]], n_segments=1)
    H = 0.9 * qutip.sigmax() + 0.4 * qutip.sigmay()
    jumps = [np.sqrt(0.05) * qutip.destroy(2), np.sqrt(0.05) * qutip.sigmaz()]
    found = qutip.propagator(H, 1.0, jumps, options={"atol": 1e-12, "rtol": 1e-10})
    ideal = qutip.to_super(qutip.sigmax())
    entanglement = (ideal.dag() * found).tr().real / 4
    assert family.losses([[0.9, 0.4]])[0] == pytest.approx(1 - (2 * entanglement + 1) / 3, abs=1e-7)


def test_trace_and_positivity_are_kept():
    rng = np.random.default_rng(3)
    generator = lindblad.hamiltonian(lindblad.X * 1.3) + np.tensordot([0.4, 0.7], lindblad.noise_generators(1), axes=1)
    channel = torch.linalg.matrix_exp(torch.from_numpy(generator)).numpy()
    basis = lindblad.pauli_basis(1)
    for _ in range(20):
        psi = rng.normal(size=2) + 1j * rng.normal(size=2)
        rho = np.outer(psi, psi.conj()) / (psi.conj() @ psi).real
        out = np.tensordot(channel @ np.einsum("iab,ba->i", basis, rho).real, basis, axes=1)
        assert np.trace(out).real == pytest.approx(1.0, abs=1e-12)
        assert np.linalg.eigvalsh(out).min() > -1e-12


@pytest.mark.parametrize("gate", ["x", "cz"])
def test_pulse_gradient_is_that_of_finite_differences(gate):
    family = QubitFamily(gate, np.full((1, 2 if gate == "x" else 4), 0.05), n_segments=3)
    pulse, h = np.random.default_rng(0).normal(0, 1, family.pulse_shape), 1e-6
    _, gradient = family.losses_and_gradients(pulse)
    for where in [(0, 0), (2, 1)]:
        up, down = pulse.copy(), pulse.copy()
        up[where] += h
        down[where] -= h
        numeric = (family.losses(up)[0] - family.losses(down)[0]) / (2 * h)
        assert gradient[0][where] == pytest.approx(numeric, abs=1e-7)
    assert gradient.dtype == np.float64


def test_largest_stable_step_is_the_border():
    family = QubitFamily("x", [[0.02, 0.05]])
    start = HALF_PI * 1.001
    limit = family.largest_stable_step(family.pooled_pulse(max_iter=50))
    below, above = (family.curve(start, factor * limit, 60)[0] for factor in (0.9, 1.5))
    assert below[-1] < below[0]
    assert above[-1] > above[0]
    assert adaptation_budget(above[:6]).reason == "diverging: reduce step size"


def test_batched_curve_is_the_loop_over_tasks():
    family = QubitFamily("x", np.random.default_rng(0).uniform(0.02, 0.1, (3, 2)), n_segments=5)
    start = np.tile([np.pi / 2 * 1.1, 0.05], (5, 1))
    together = AdaptationCurve(family.loss_fn(), start, family.rates, 0.5, 3).run()
    for task, curve in zip(family.rates, together, strict=True):
        single = QubitFamily("x", task[None], n_segments=5)
        pulse, losses = start.copy(), []
        for _ in range(4):
            loss, gradient = single.losses_and_gradients(pulse)
            losses.append(loss[0])
            pulse = pulse - 0.5 * gradient[0]
        assert curve == pytest.approx(losses, abs=1e-13)


def test_adam_is_that_of_torch():
    target = torch.tensor([1.0, -2.0], dtype=torch.float64)
    theta = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    rule = torch.optim.Adam([theta], lr=0.05)
    losses = []
    for _ in range(6):
        rule.zero_grad()
        loss = ((theta - target) ** 4).sum()
        losses.append(loss.item())
        loss.backward()
        rule.step()
    ours = AdaptationCurve(
        lambda t, task: ((t - task) ** 4).sum(), np.zeros(2), target.numpy()[None], 0.05, 5, "adam"
    ).run()
    assert ours[0] == pytest.approx(losses, rel=1e-6)


def test_h_gate_and_optimal_pulses():
    family = QubitFamily("h", [[0.0, 0.0], [0.01, 0.02]])
    pooled = family.pooled_pulse(max_iter=60)
    assert family.losses(pooled)[0] < 1e-3
    assert (family.losses(family.optimal_pulses(pooled, max_iter=60)) <= family.losses(pooled) + 1e-12).all()


# ---------------------------------------------------------------- devices

def qubit_table() -> pd.DataFrame:
    try:
        return load_dataset("ibm-qubits")
    except DataUnavailable as error:
        pytest.skip(f"data absent: {error}")


def test_snapshots_are_those_of_the_mirror():
    """Every row of the mirrored table is among the snapshots; it has the three that we leave out, and lacks five."""
    path = local_file("ibm-qubits-table")
    if path is None:
        pytest.skip("data absent: ibm-qubits-table")
    table, mirror = qubit_table(), pd.read_csv(path)
    kept = mirror[~mirror["backend"].isin(["fractional", "nighthawk"])].drop_duplicates(["backend", "date", "qubit"])
    joined = kept.merge(table, on=["backend", "date", "qubit"], validate="one_to_one", suffixes=("_mirror", ""))
    assert len(joined) == len(kept)
    assert np.abs(joined["T1_us"] - joined["t1_us"]).max() < 1e-4
    assert np.abs(joined["T2_us"] - joined["t2_us"]).max() < 1e-4
    assert np.abs(joined["sx_ns"] - joined["gate_ns"]).max() < 0.0051  # two decimals
    absent = set(table["backend"]) - set(mirror["backend"])
    assert absent == {"brisbane", "cairo", "fez", "kingston", "lima"}
    assert len(mirror) - len(kept) == 28 + 5 + 120
    assert len(table) == len(kept) + table["backend"].isin(absent).sum() == 3522


def test_impossible_times_are_reported_and_dropped():
    table = qubit_table()
    impossible = table["t2_us"] > 2 * table["t1_us"]
    assert impossible.sum() == 54
    assert len(devices.possible(table)) == len(table) - 54
    with pytest.raises(InputError, match="of 54 such tasks"):
        QubitFamily("x", t1_us=table["t1_us"], t2_us=table["t2_us"], gate_ns=32.0)


def test_trap_one_controller_serves_real_qubits():
    """At the noise as it is, even the best pulse of each qubit gains nothing over the pooled one."""
    rows = devices.possible(qubit_table()).iloc[::90]
    family = QubitFamily("x", t1_us=rows["t1_us"], t2_us=rows["t2_us"], gate_ns=rows["gate_ns"])
    pooled = family.pooled_pulse(max_iter=50)
    gain = family.losses(pooled) - family.losses(family.optimal_pulses(pooled, max_iter=50))
    assert np.abs(gain).max() < 1e-6


# ---------------------------------------------------------------- the study

@pytest.fixture(scope="module")
def study():
    return get("meta-adaptation").study()


@pytest.fixture(scope="module")
def smoke(study):
    rows = []
    for cell in study.cells(Tier.smoke):
        measured = study.measure(cell, {})
        rows.append(Row(cell, "measured", measured.metrics, measured.units))
    return Results(rows)


def test_controls_do_not_hold_on_regulators(study, smoke):
    for claim in ("C1", "C2", "C5", "C6"):
        own = study.claims[claim]
        verdict = judging.judged(own, smoke.with_control(own.arm, own.control))
        assert verdict.outcome is not Outcome.holds, verdict


def test_the_regulators_follow_the_law(study, smoke):
    assert judging.judged(study.claims["C5"], smoke).outcome is Outcome.holds
    lqr_part = judging.judged(study.claims["C1"], smoke).parts[0]
    assert lqr_part.outcome is Outcome.holds


def test_a_straight_line_is_no_saturation():
    line = np.linspace(0, 1, 10)
    assert measuring.fit_quality(np.arange(10.0), line) > 0.98
    assert measuring.line_ratio(np.arange(10.0), line) > 0.5
    assert measuring.line_ratio(np.arange(30.0), -np.expm1(-0.2 * np.arange(30))) < 0.01


def contest_row(arm: str, start: str, gain: np.ndarray, left: np.ndarray) -> Row:
    options = {"task": "contest", "steps": 8, "n_devices": 24, "noise": 10.0, "start": start, "optimum": False}
    units = pd.DataFrame({
        "device": [f"d{i}" for i in range(len(gain))], "loss": 0.03, "gain": gain, "left": left,
    })
    metrics = {"fidelity": 0.97, "gain": gain.mean(), "left": left.mean(), "devices": 24.0, "tasks": 24.0}
    return Row(Cell("ibm-pairs", arm, options=options), "measured", metrics, units)


def test_trap_common_shift_is_not_adaptation(study):
    """All tasks gain 0.42 alike, and so does one re-tuned controller: C4 holds, C7 does not, and the text says so."""
    rng = np.random.default_rng(0)
    rows = [
        contest_row("adapted", start, 0.42 + 1e-3 * rng.standard_normal(24), 1e-3 * rng.standard_normal(24))
        for start in ("trained", "early")
    ]
    literal = judging.judged(study.claims["C4"], Results(rows))
    assert literal.outcome is Outcome.holds
    assert "one re-tuned controller has +0.4" in literal.reason and "adaptation adds" in literal.reason
    assert judging.judged(study.claims["C7"], Results(rows)).outcome is Outcome.fails


def test_no_gain_is_no_gain(study):
    rows = [contest_row("adapted", start, np.zeros(24), np.zeros(24)) for start in ("trained", "early")]
    assert judging.judged(study.claims["C4"], Results(rows)).outcome is not Outcome.holds
    assert judging.judged(study.claims["C7"], Results(rows)).outcome is not Outcome.holds


def test_a_missing_start_leaves_the_claims_untested(study):
    row = contest_row("adapted", "trained", np.full(24, 0.5) + np.arange(24) * 1e-3, np.arange(24) * 1e-3)
    lost = replace(row, cell=contest_row("adapted", "early", np.zeros(24), np.zeros(24)).cell, status="blocked",
                   metrics={}, units=None, reason="start failed")
    verdict = judging.judged(study.claims["C4"], Results([row, lost]))
    assert verdict.outcome is Outcome.untested and "start failed" in verdict.reason


def test_trap_the_truth_of_budgets_is_not_the_fit():
    """The true steps come from the Riccati optimum: those of the fitted asymptote are fewer."""
    family = LQRFamily.draw(20, 0.25, 1)
    losses = family.curve(400)
    table = probes.judge_probes("adaptation", losses, family.optimal_costs(), 5)
    fits = [fit_adaptation_law(np.arange(31), curve[0] - curve[:31]) for curve in losses]
    by_fit = np.array([-math.log(0.05) / fit.beta for fit in fits])
    assert (by_fit < table["k_true"]).all()
    assert table["reached"].all()


def test_unanswered_probes_count_as_errors():
    losses = np.array([[1.0, 0.9, 0.7, 0.4, 0.3, 0.25]])
    table = probes.judge_probes("adaptation", losses, np.array([0.2]), 3)
    assert np.isinf(table["k_error"]).all() and not table["reliable"].any()


def test_true_steps_lie_between_two_steps():
    assert probes.true_steps(np.array([0.0, 0.9, 1.0]), 1.0) == (pytest.approx(1.5), True)
    assert probes.true_steps(np.array([0.0, 0.5]), 1.0) == (1.0, False)


@pytest.mark.parametrize("curvature", [0.02, 1.0, 300.0])
def test_step_sizes_are_searched_until_the_best_lies_inside(curvature):
    """One step on a quadratic is best at a rate of 1 / curvature, wherever the grid begins."""
    from assay.scaling.meta_adaptation.families import _tuned

    tried = []

    def curve(rate: float) -> np.ndarray:
        tried.append(rate)
        return np.array([[1.0, (1 - rate * curvature) ** 2]])

    best = _tuned(curve, (0.05, 0.2, 0.5))
    assert min(tried) < best < max(tried)
    assert 0.5 <= best * curvature < 2.0


def test_a_diverged_rate_is_never_taken():
    from assay.scaling.meta_adaptation.families import _tuned

    assert _tuned(lambda rate: np.array([[1.0, np.nan if rate > 1 else 0.5]]), (0.5, 2.0)) <= 1


def test_policy_gradient_is_that_of_finite_differences():
    from assay.scaling.meta_adaptation.policy import PulsePolicy

    family = QubitFamily("x", [[0.02, 0.05]], n_segments=3)
    policy = PulsePolicy(family, family.rates[0], (5, 4), layer_norm=True)
    theta, rates, loss = policy.initial(0), torch.from_numpy(family.rates[0]), policy.loss_fn()
    gradient = torch.func.grad(loss)(torch.from_numpy(theta), rates).numpy()
    for i in range(0, len(theta), 7):
        moved = [theta.copy(), theta.copy()]
        moved[0][i] += 1e-6
        moved[1][i] -= 1e-6
        up, down = (float(loss(torch.from_numpy(each), rates)) for each in moved)
        assert gradient[i] == pytest.approx((up - down) / 2e-6, abs=1e-8)


def pair_table(n: int = 6) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    t1, t2 = rng.uniform(80, 200, (n, 2)), rng.uniform(60, 150, (n, 2))
    return pd.DataFrame({
        "backend": [f"d{i}" for i in range(n)], "t1_first": t1[:, 0], "t2_first": t2[:, 0], "t1_second": t1[:, 1],
        "t2_second": t2[:, 1], "gate_ns": 300.0,
    })


def test_the_early_start_leaves_room_for_the_gain_of_the_paper():
    from assay.scaling.meta_adaptation import families

    table = pair_table()
    starts = families.pair_start(table, 10.0, 12, n_devices=4)
    tune, _ = families.rates_of(table, 1, 4, 0)
    loss = families._pair_policy(families._pairs(tune, 1.0)).loss_fn()
    mean = {
        name: families._shared(loss, starts[name], families._pairs(tune, 10.0).rates).mean()
        for name in ("trained", "early")
    }
    assert mean["early"] - mean["trained"] >= families.PAPER_GAP or starts["early_iteration"] == 0


def test_the_contest_of_pairs_measures_each_arm():
    """What the full tier adds as well: GRAPE on the mean, and on each pair, which is the lowest of all."""
    from assay.scaling.meta_adaptation import families

    table = pair_table()
    start = families.pair_start(table, 10.0, 3, n_devices=4)["trained"]
    found = families.pair_contest(table, 10.0, 2, start, n_devices=4, optimum=True)
    assert len(found) == 4 and np.isfinite(found.drop(columns="device").to_numpy(dtype=float)).all()
    assert (found["step_2"] == found["adapted"]).all() and (found["step_0"] == found["start"]).all()
    lowest = found[["start", "adapted", "retuned", "swapped", "pooled-grape"]].min(axis=1)
    assert (found["optimum"] <= lowest + 1e-9).all()


def test_the_sweep_on_gates_is_linear_in_the_variance():
    from assay.scaling.meta_adaptation.families import paper_sweep

    table = paper_sweep(0, np.array([0.25, 0.5, 1.0]), 100)
    ratio = table["a_inf"] / table["variance"]
    assert 0 < ratio.max() < 2 * ratio.min(), "a start short of its optimum would add the same to each level: 16 to 1"


def test_tuning_and_test_devices_differ():
    from assay.scaling.meta_adaptation.families import rates_of

    table = pd.DataFrame({
        "backend": np.repeat([f"d{i}" for i in range(9)], 4), "t1_us": 100.0, "t2_us": 80.0, "gate_ns": 32.0,
    })
    tune, test = rates_of(table, 2, 6, 0)
    assert not set(tune["backend"]) & set(test["backend"])
    assert test["backend"].nunique() == 6 and test.groupby("backend").size().eq(2).all()


# ---------------------------------------------------------------- the command

def test_command_writes_its_answers(tmp_path):
    import typer
    from typer.testing import CliRunner

    app = typer.Typer()
    app.command()(command.run)
    done = CliRunner().invoke(app, command.example(tmp_path))
    assert done.exit_code == 0, done.output
    fit = json.loads((tmp_path / "adaptation-out" / "fit.json").read_text())
    budget = pd.read_csv(tmp_path / "adaptation-out" / "budget.csv")
    assert fit["tasks"] == 8 and fit["r2"] > 0.99
    assert list(budget["task"])[-1] == "pooled" and len(budget) == 9
    assert (tmp_path / "adaptation-out" / "curve.vl.json").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("task,step\na,0\n", "lacks the column loss"), ("task,step,loss\na,0,1\na,2,0.5\n", "without a gap"),
        ("task,step,loss\na,0,1\na,0,0.5\n", "repeats step"), ("task,step,loss\na,0,x\n", "must be a number"),
        ("task,step,loss\na,0,1\na,1,.5\na,2,.4\nb,0,1\n", "fewer steps"),
        ("task,step,loss,price\na,0,1,.1\na,1,.5,.2\na,2,.4,.1\n", "one number"), ("task,step,loss\n", "no rows"),
        ("task,step,loss\na,0,1\na,1,-1\na,2,.4\n", "row 1 has a negative loss"), ("", "not a CSV table"),
        ("task,step,loss\na,0,1,9\na,1,1\n", "not a CSV table"), ("task,step,loss\na,.5,1\n", "whole number"),
    ],
)
def test_command_refuses_tables(tmp_path, text, says):
    path = tmp_path / "curves.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=says):
        command.run(path, None, None, 5, 0, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_command_reads_a_strangers_columns(tmp_path):
    path = tmp_path / "log.csv"
    rows = [f"{4 * c + k},c{c},{k},{1 + (0.4 + c / 10) ** k},7" for c in range(3) for k in range(4)]
    path.write_text("\n".join([",client,epoch,val_loss,lr", *rows]) + "\n")
    with pytest.raises(InputError, match="it has Unnamed: 0, client, epoch"):
        command.run(path, 0.9, None, 3, 0, tmp_path / "out")
    command.run(path, 0.9, None, 3, 0, tmp_path / "out", task="client", step="epoch", loss="val_loss")
    assert list(pd.read_csv(tmp_path / "out" / "budget.csv")["task"]) == ["c0", "c1", "c2", "pooled"]
    with pytest.raises(InputError, match="three different"):
        command.run(path, 0.9, None, 3, 0, tmp_path / "out", task="client", step="epoch", loss="epoch")


def test_command_draws_no_law_where_there_is_none(tmp_path):
    path = tmp_path / "curves.csv"
    path.write_text("task,step,loss\na,0,1\na,1,1.5\na,2,2.5\na,3,4\n")
    command.run(path, None, None, 3, 0, tmp_path / "out")
    values = json.loads((tmp_path / "out" / "curve.vl.json").read_text())["data"]["values"]
    assert [row["fit"] for row in values] == [None] * 4
    assert json.loads((tmp_path / "out" / "fit.json").read_text())["a_inf"] is None


def test_command_leaves_nothing_half_written(tmp_path):
    out = tmp_path / "out"
    (out / "budget.csv").mkdir(parents=True)
    with pytest.raises(InputError, match="can't be written"):
        command.run(Path(command.example(tmp_path)[1]), None, 1e-5, 5, 0, out)
    assert not list(out.glob("*.part"))


def test_command_drops_tasks_without_losses(tmp_path):
    rows = [f"good,{k},{1 + 0.5**k}" for k in range(6)] + [f"bad,{k},{'' if k == 2 else 1.0}" for k in range(6)]
    path = Path(tmp_path) / "curves.csv"
    path.write_text("task,step,loss\n" + "\n".join(rows) + "\n")
    command.run(path, 0.9, None, 5, 0, tmp_path / "out")
    budget = pd.read_csv(tmp_path / "out" / "budget.csv").set_index("task")
    assert "not finite" in budget.loc["bad", "reason"]
    assert budget.loc["pooled", "k_star"] == pytest.approx(-math.log(0.1) / math.log(2), rel=1e-6)
    assert os.path.getsize(tmp_path / "out" / "curve.vl.json") > 0
