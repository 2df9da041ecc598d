"""The two costly steps of the adaptation law's studies, beside loops as the authors write them.

Gates: losses and gradients of 20 qubits along one step of fine-tuning, all tasks and segments in one matrix
exponential. The peer advances one task at a time, one density matrix at a time through fourth-order Runge-Kutta steps
in torch, segment by segment, and takes the gradient through all of them: 60 segments, the six cardinal states,
normalised after each segment. This is the authors' scheme, written anew; their own code is not run.

Regulators: costs and gradients of 100 tasks by closed 2 x 2 Lyapunov solutions; the peer calls
`scipy.linalg.solve_continuous_lyapunov` twice a task.

CPU seconds of one process on one thread, warmed up, alternating, the median of several repeats.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.linalg import solve_continuous_lyapunov
from threadpoolctl import threadpool_limits

from assay.scaling.meta_adaptation import LQRFamily, QubitFamily
from assay.timing import alternate, speed_case

SEGMENTS, TASKS, SUBSTEPS = 60, 20, 1
X = torch.tensor([[0, 1], [1, 0]], dtype=torch.complex128)
Y = torch.tensor([[0, -1j], [1j, 0]], dtype=torch.complex128)
Z = torch.tensor([[1, 0], [0, -1]], dtype=torch.complex128)
LOWER = torch.tensor([[0, 1], [0, 0]], dtype=torch.complex128)


def main(repeats: int = 3) -> dict[str, Any]:
    """Measure, print a table, and return the cases."""
    torch.set_num_threads(1)
    with threadpool_limits(1):
        cases = [gate_case(repeats), regulator_case(max(repeats, 5))]
    for case in cases:
        print(f"{case['name']}: {case['ours_s']:.5f} s; {case['peer']}: {case['peer_s']:.3f} s; "
              f"ratio {case['ratio']:.1f} (target {case['target']:g}) {case['note']}")
    return {"cases": cases}


def gate_case(repeats: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    rates = np.column_stack([rng.uniform(0.01, 0.08, TASKS), rng.uniform(0.02, 0.15, TASKS)])
    pulse = np.tile([np.pi / 2, 0.0], (SEGMENTS, 1)) + 0.1 * rng.normal(size=(SEGMENTS, 2))
    family = QubitFamily("x", rates, n_segments=SEGMENTS)
    ours = lambda: family.losses_and_gradients(pulse)  # noqa: E731
    peer = lambda: one_after_the_other(pulse, rates)  # noqa: E731
    loss, gradient = ours()
    other_loss, other_gradient = peer()
    assert gradient is not None
    np.testing.assert_allclose(loss, other_loss, atol=1e-6)
    np.testing.assert_allclose(gradient, other_gradient, atol=1e-6)
    ours_s, peer_s = alternate(ours, peer, repeats)
    name = f"losses and gradients of {TASKS} one-qubit tasks, {SEGMENTS} segments"
    return speed_case(name, ours_s, peer_s, 50.0, "Runge-Kutta loop, one task and state at a time")


def regulator_case(repeats: int) -> dict[str, Any]:
    family = LQRFamily.draw(100, 0.25, 0)
    gain = family.robust_gain()
    ours = lambda: (family.costs(gain), family.gradients(gain))  # noqa: E731
    peer = lambda: lyapunov_loop(family.masses, gain)  # noqa: E731
    for mine, theirs in zip(ours(), peer(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)
    ours_s, peer_s = alternate(lambda: [ours() for _ in range(20)], peer, repeats)
    peer_name = "SciPy's Lyapunov solver in a loop"
    return speed_case("costs and gradients of 100 regulators", ours_s / 20, peer_s, 20.0, peer_name)


def one_after_the_other(pulse: np.ndarray, rates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Loss and gradient of each task: the mean infidelity over the six cardinal states, which is the exact average."""
    losses, gradients = [], []
    for rate in rates:
        controls = torch.tensor(pulse, requires_grad=True)
        loss = 1 - torch.stack([state_fidelity(state, controls, rate) for state in cardinal_states()]).mean()
        loss.backward()
        losses.append(loss.item())
        gradients.append(controls.grad.numpy())
    return np.array(losses), np.array(gradients)


def cardinal_states() -> list[torch.Tensor]:
    r = 2**-0.5
    vectors = [[1, 0], [0, 1], [r, r], [r, -r], [r, r * 1j], [r, -r * 1j]]
    return [torch.tensor(v, dtype=torch.complex128) for v in vectors]


def state_fidelity(state: torch.Tensor, controls: torch.Tensor, rate: np.ndarray) -> torch.Tensor:
    rho, dt = torch.outer(state, state.conj()), 1.0 / len(controls) / SUBSTEPS
    jumps = [(float(rate[0]), LOWER), (float(rate[1]) / 2, Z)]
    for row in controls:
        H = row[0] * X + row[1] * Y
        for _ in range(SUBSTEPS):
            k1 = slope(rho, H, jumps)
            k2 = slope(rho + dt / 2 * k1, H, jumps)
            k3 = slope(rho + dt / 2 * k2, H, jumps)
            k4 = slope(rho + dt * k3, H, jumps)
            rho = rho + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        rho = rho / torch.trace(rho)
    ideal = X @ state
    return (ideal.conj() @ rho @ ideal).real


def slope(rho: torch.Tensor, H: torch.Tensor, jumps: list[tuple[float, torch.Tensor]]) -> torch.Tensor:
    change = -1j * (H @ rho - rho @ H)
    for rate, L in jumps:
        square = L.conj().T @ L
        change = change + rate * (L @ rho @ L.conj().T - (square @ rho + rho @ square) / 2)
    return change


def lyapunov_loop(masses: np.ndarray, gain: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    Q, R, K = np.diag([1.0, 0.1]), np.array([[0.1]]), gain[None]
    costs, gradients = [], []
    for m in masses:
        A, B = np.array([[0.0, 1.0], [-2.0 / m, -0.5 / m]]), np.array([[0.0], [1 / m]])
        loop = A - B @ K
        P = solve_continuous_lyapunov(loop.T, -(Q + K.T @ R @ K))
        S = solve_continuous_lyapunov(loop, -np.eye(2))
        costs.append(np.trace(P))
        gradients.append((2 * (R @ K - B.T @ P) @ S).ravel())
    return np.array(costs), np.array(gradients)


if __name__ == "__main__":
    main()
