"""A family of gates on noisy qubits, one task a qubit or a pair of coupled ones (arXiv 2601.18973).

The task is the noise: a rate of relaxation 1/T1 and a rate of dephasing 1/T2 - 1/(2 T1) for each qubit. The parameters
are the pulse: amplitudes of piecewise constant controls, X and Y on one qubit, X, Y and Z on each of two, beside the
coupling J Z Z. The loss is 1 minus the exact average gate fidelity (see `lindblad`). Times are in units of the gate:
one for one qubit, pi/4 for two with J = 2, as in the paper; `t1_us`, `t2_us` and `gate_ns` are converted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import InputError, as_matrix
from assay.scaling.meta_adaptation import lindblad
from assay.scaling.meta_adaptation.checks import checked_count, checked_number, floats, generator
from assay.scaling.meta_adaptation.curves import AdaptationCurve, torch_package

__all__ = ["QubitFamily", "noise_rates"]

Array = NDArray[np.float64]

GATES = {
    "x": np.array([[0, 1], [1, 0]], dtype=complex),
    "h": np.array([[1, 1], [1, -1]], dtype=complex) / np.sqrt(2),
    "cz": np.diag([1, 1, 1, -1]).astype(complex),
}
COUPLING = 2.0
DURATION = {1: 1.0, 2: float(np.pi / 4)}


class QubitFamily:
    """Gates under relaxation and dephasing, one task a qubit (or pair); losses of all tasks at once, in torch.

    Parameters
    ----------
    gate : {"x", "h", "cz"}
        The gate to be made.
    gammas : (n_tasks, 2 * n_qubits) array, optional
        Rates [relaxation, dephasing], qubit by qubit, 0 or more, per unit of time (the gate takes 1 of them, cz pi/4).
    t1_us, t2_us : (n_tasks,) or (n_tasks, n_qubits) array, optional
        T1 and T2 in microseconds, with `gate_ns` in the place of `gammas`.
    gate_ns : float or (n_tasks,) array, optional
        Length of the gate in nanoseconds.
    n_segments : int
        Pieces of constant amplitude.
    noise : float
        Factor on all rates, above 0.

    Raises
    ------
    InputError
        For an unknown gate, negative rates, times that are not positive, T2 above 2 T1 (with the task's index), or
        when neither or both ways of giving the noise are used.

    Notes
    -----
    arXiv 2601.18973, with `torch.linalg.matrix_exp` in the place of small steps, and the exact fidelity.

    Examples
    --------
    A constant drive for 32 ns with T1 = 100 us and T2 = 80 us:

    >>> import numpy as np
    >>> family = QubitFamily("x", t1_us=[100.0], t2_us=[80.0], gate_ns=32.0)
    >>> pulse = np.tile([np.pi / 2, 0.0], (20, 1))
    >>> family.losses(pulse).round(9).tolist()
    [0.000186632]
    """

    def __init__(
        self, gate: str = "x", gammas: ArrayLike | None = None, *, t1_us: ArrayLike | None = None,
        t2_us: ArrayLike | None = None, gate_ns: ArrayLike | None = None, n_segments: int = 20, noise: float = 1.0,
    ) -> None:
        if not isinstance(gate, str) or gate not in GATES:
            raise InputError(f"gate must be one of {', '.join(GATES)}, got {gate!r}")
        self.gate, self.n_qubits = gate, int(np.log2(len(GATES[gate])))
        self.duration = DURATION[self.n_qubits]
        self.n_segments = checked_count(n_segments, "n_segments", 1)
        times = [each is not None for each in (t1_us, t2_us, gate_ns)]
        if any(times) if gammas is not None else not all(times):
            raise InputError("give either gammas, or t1_us, t2_us and gate_ns")
        if gammas is not None:
            rates = as_matrix(gammas, "gammas", columns=2 * self.n_qubits, min_rows=1).astype(np.float64)
        else:
            assert t1_us is not None and t2_us is not None and gate_ns is not None
            rates = noise_rates(t1_us, t2_us, gate_ns, self.n_qubits) / self.duration
        if (rates < 0).any():
            row, column = (int(i) for i in np.argwhere(rates < 0)[0])
            raise InputError(f"gammas must be 0 or more, got {rates[row, column]:g} in row {row}, column {column}")
        self.rates = rates * checked_number(noise, "noise")
        self.n_controls = 2 if self.n_qubits == 1 else 6

    @property
    def pulse_shape(self) -> tuple[int, int]:
        """Segments and controls."""
        return self.n_segments, self.n_controls

    def loss_fn(self) -> Callable[[Any, Any], Any]:
        """`loss(pulse, rates)` of one task in torch, for `AdaptationCurve` and `torch.func`.

        `pulse` is (n_segments, n_controls), `rates` (2 * n_qubits,).
        """
        torch = torch_package()
        drift, controls, target = (torch.from_numpy(each) for each in self._generators())
        noise = torch.from_numpy(lindblad.noise_generators(self.n_qubits))
        d, dt = 2**self.n_qubits, self.duration / self.n_segments

        def loss(pulse: Any, rates: Any) -> Any:
            still = drift + torch.tensordot(rates, noise, dims=1)
            steps = torch.linalg.matrix_exp((still + torch.tensordot(pulse, controls, dims=1)) * dt)
            entanglement = (target * _in_order(torch, steps)).sum() / d**2
            return (1 - entanglement) * d / (d + 1)

        return loss

    def losses(self, pulses: ArrayLike) -> Array:
        """1 - average gate fidelity of each task, (n_tasks,); `pulses` is one for all or (n_tasks, S, C)."""
        return self.losses_and_gradients(pulses, gradients=False)[0]

    def losses_and_gradients(self, pulses: ArrayLike, *, gradients: bool = True) -> tuple[Array, Array | None]:
        """Losses (n_tasks,), and their gradients in each task's own pulse (n_tasks, S, C)."""
        torch = torch_package()
        given, wanted = floats(pulses, "pulses"), (len(self.rates), *self.pulse_shape)
        if given.shape not in {self.pulse_shape, wanted} or not np.isfinite(given).all():
            raise InputError(f"pulses must be finite, {self.pulse_shape} or {wanted}, got shape {given.shape}")
        theta, rates = torch.from_numpy(np.broadcast_to(given, wanted).copy()), torch.from_numpy(self.rates)
        if not gradients:
            return torch.func.vmap(self.loss_fn())(theta, rates).numpy(), None
        gradient, loss = torch.func.vmap(torch.func.grad_and_value(self.loss_fn()))(theta, rates)
        return loss.detach().numpy(), gradient.detach().numpy()

    def start(self, seed: int = 0) -> Array:
        """A plain pulse to begin a search with, (S, C): the constant drive of x; small random amplitudes otherwise."""
        if self.gate == "x":
            return np.tile([np.pi / 2, 0.0], (self.n_segments, 1))
        return generator(seed, "seed").normal(0, 1, self.pulse_shape)

    def pooled_pulse(self, start: ArrayLike | None = None, max_iter: int = 300) -> Array:
        """The pulse with the lowest mean loss over the tasks, (S, C): gradient ascent pulse engineering on the average.

        L-BFGS from `start`, which is the proper controller to compare adaptation with.
        """
        return self._search(False, start, max_iter)

    def optimal_pulses(self, start: ArrayLike | None = None, max_iter: int = 300) -> Array:
        """A pulse with the lowest loss for each task, (n_tasks, S, C), all searched together from `start`."""
        return self._search(True, start, max_iter)

    def curve(self, theta0: ArrayLike, lr: float, steps: int, optimizer: str = "gd") -> Array:
        """Losses of each task along gradient steps on its own pulse from the shared `theta0`, (n_tasks, steps + 1)."""
        start = self._one_pulse(theta0, "theta0")
        return AdaptationCurve(self.loss_fn(), start, self.rates, lr, steps, optimizer).run()

    def largest_stable_step(self, pulse: ArrayLike, n_tasks: int = 8) -> float:
        """2 / L at the pulse, L the largest curvature over the first `n_tasks` tasks: longer gradient steps diverge."""
        torch = torch_package()
        theta = torch.from_numpy(self._one_pulse(pulse, "pulse"))
        rates = torch.from_numpy(self.rates[:checked_count(n_tasks, "n_tasks", 1)])
        loss, size = self.loss_fn(), theta.numel()
        # By differences of exact gradients: second derivatives of the matrix exponential are slow and need more memory.
        h = 1e-5
        moved = theta.flatten() + h * torch.cat([torch.eye(size), -torch.eye(size)]).to(theta)
        gradient = torch.func.vmap(torch.func.grad(loss), in_dims=(0, None))
        curvatures = []
        for each in rates:
            both = gradient(moved.view(-1, *theta.shape), each).detach().flatten(1)
            hessian = (both[:size] - both[size:]) / (2 * h)
            curvatures.append(float(torch.linalg.eigvalsh((hessian + hessian.T) / 2).max()))
        return 2 / max(curvatures)

    def _search(self, per_task: bool, start: ArrayLike | None, max_iter: int) -> Array:
        from scipy.optimize import minimize

        first = self.start() if start is None else self._one_pulse(start, "start")
        shape = (len(self.rates), *self.pulse_shape) if per_task else self.pulse_shape
        # Losses are of the order of 1e-4 and less: on their own scale the search would stop at its tolerance.
        scale = 1e4 if per_task else 1e4 * len(self.rates)

        def objective(x: Array) -> tuple[float, Array]:
            loss, gradient = self.losses_and_gradients(x.reshape(shape))
            assert gradient is not None
            slope = gradient if per_task else gradient.mean(axis=0) * len(loss)
            return scale * float(loss.sum()) / len(loss), scale * slope.ravel() / len(loss)

        found = minimize(
            objective, np.broadcast_to(first, shape).ravel(), jac=True, method="L-BFGS-B",
            options={"maxiter": checked_count(max_iter, "max_iter", 1), "ftol": 1e-15, "gtol": 1e-10, "maxcor": 30},
        )
        return found.x.reshape(shape)

    def _one_pulse(self, pulse: ArrayLike, name: str) -> Array:
        given = floats(pulse, name)
        if given.shape != self.pulse_shape or not np.isfinite(given).all():
            raise InputError(f"{name} must be a finite pulse {self.pulse_shape}, got shape {given.shape}")
        return given

    def _generators(self) -> tuple[Array, Array, Array]:
        """Drift, controls and target in the Pauli basis."""
        n = self.n_qubits
        drift = (COUPLING if n == 2 else 0.0) * lindblad.pauli_product(lindblad.Z, n)
        axes = (lindblad.X, lindblad.Y) if n == 1 else (lindblad.X, lindblad.Y, lindblad.Z)
        controls = [lindblad.hamiltonian(lindblad.embed(axis, q, n)) for q in range(n) for axis in axes]
        return lindblad.hamiltonian(drift), np.array(controls), lindblad.unitary_transfer(GATES[self.gate])


def noise_rates(t1_us: ArrayLike, t2_us: ArrayLike, gate_ns: ArrayLike, n_qubits: int) -> Array:
    """Rates of relaxation and dephasing per gate, (n_tasks, 2 * n_qubits), from times in microseconds.

    Raises `InputError` where a time is not positive or T2 exceeds 2 T1, with the task's index.
    """
    t1, t2 = (_times(values, name, n_qubits) for values, name in ((t1_us, "t1_us"), (t2_us, "t2_us")))
    if t1.shape != t2.shape:
        raise InputError(f"t1_us and t2_us must have one shape, got {t1.shape} and {t2.shape}")
    gate = floats(gate_ns, "gate_ns")
    if gate.shape not in {(), (len(t1),)} or not (np.isfinite(gate).all() and (gate > 0).all()):
        raise InputError(f"gate_ns must be positive, one for all tasks or {len(t1)}, got shape {gate.shape}")
    if (t2 > 2 * t1).any():
        row = int(np.argwhere(t2 > 2 * t1)[0][0])
        raise InputError(
            f"T2 exceeds 2 T1 in task {row} ({t2[row].max():g} us against T1 = {t1[row].max():g} us), of "
            f"{int((t2 > 2 * t1).any(axis=1).sum())} such tasks: its dephasing rate would be negative; drop it"
        )
    gate_us = np.broadcast_to(gate, (len(t1),))[:, None] / 1000
    relaxation, dephasing = gate_us / t1, np.maximum(gate_us * (1 / t2 - 1 / (2 * t1)), 0.0)
    return np.stack([relaxation, dephasing], axis=2).reshape(len(t1), -1)


def _times(values: ArrayLike, name: str, n_qubits: int) -> Array:
    array = np.asarray(values)
    column = array[:, None] if array.ndim == 1 and n_qubits == 1 else array
    table = as_matrix(column, name, columns=n_qubits, min_rows=1)
    if (table <= 0).any():
        row = int(np.argwhere(table <= 0)[0][0])
        raise InputError(f"{name} must be positive, got {table[row].min():g} in task {row}")
    return table.astype(np.float64)


def _in_order(torch: Any, steps: Any) -> Any:
    """The product of the segments' propagators (S, D, D), the first one acting first, by pairs."""
    while len(steps) > 1:
        rest = steps[-1:] if len(steps) % 2 else steps[:0]
        even = len(steps) // 2 * 2
        steps = torch.cat([steps[1:even:2] @ steps[0:even:2], rest])
    return steps[0]
