"""Open-system gates as real matrices: Lindblad generators, segment propagators, exact average gate fidelity.

A density matrix of n qubits is written in the Pauli basis, r_i = tr(P_i rho) / sqrt(d), d = 2^n, in which

    d rho / dt = -i [H, rho] + sum_j g_j (L_j rho L_j^+ - {L_j^+ L_j, rho} / 2)

becomes dr/dt = G r with a real matrix G of d^2 x d^2: 4 x 4 for one qubit, 16 x 16 for two. Controls, drift and
noise enter it linearly, so that a piecewise constant pulse is a product of exponentials of

    (G_drift + sum_c u_c G_c + sum_j g_j D_j) dt,

taken for all tasks and segments in one call of `torch.linalg.matrix_exp`. Nothing is stepped, and nothing has to be
normalised afterwards. The noise of a qubit is relaxation with the lowering operator at rate 1/T1, and dephasing with Z
at half of the rate 1/T2 - 1/(2 T1). The fidelity of a channel S with a unitary U is exact (reconstructed from the
standard formula, arXiv 2601.18973 averages over 12 product states):

    F = (d F_e + 1) / (d + 1),   F_e = tr(R_U^T R_S) / d^2.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from itertools import product

import numpy as np
from numpy.typing import NDArray

__all__ = ["dissipator", "embed", "hamiltonian", "noise_generators", "pauli_basis", "pauli_product", "unitary_transfer"]

Complex = NDArray[np.complex128]
Real = NDArray[np.float64]

I2: Complex = np.eye(2, dtype=complex)
X: Complex = np.array([[0, 1], [1, 0]], dtype=complex)
Y: Complex = np.array([[0, -1j], [1j, 0]], dtype=complex)
Z: Complex = np.array([[1, 0], [0, -1]], dtype=complex)
LOWER: Complex = np.array([[0, 1], [0, 0]], dtype=complex)
"""From the excited state (0, 1) to the ground state (1, 0)."""


def pauli_basis(n_qubits: int) -> Complex:
    """The 4^n products of Pauli matrices over sqrt(2^n), identity first: (4^n, 2^n, 2^n)."""
    factors = product((I2, X, Y, Z), repeat=n_qubits)
    return np.array([_product(each) for each in factors]) / np.sqrt(2**n_qubits)


def embed(operator: Complex, qubit: int, n_qubits: int) -> Complex:
    """A one-qubit operator on one of several qubits."""
    return _product([operator if q == qubit else I2 for q in range(n_qubits)])


def pauli_product(operator: Complex, n_qubits: int) -> Complex:
    """The same one-qubit operator on every qubit."""
    return _product([operator] * n_qubits)


def hamiltonian(H: Complex) -> Real:
    """The generator of -i [H, rho] in the Pauli basis: antisymmetric, (d^2, d^2)."""
    return _matrix(H, lambda P: -1j * (H @ P - P @ H))


def dissipator(L: Complex) -> Real:
    """The generator of L rho L^+ - {L^+ L, rho} / 2 in the Pauli basis, (d^2, d^2)."""
    square = L.conj().T @ L
    return _matrix(L, lambda P: L @ P @ L.conj().T - (square @ P + P @ square) / 2)


def unitary_transfer(U: Complex) -> Real:
    """rho -> U rho U^+ in the Pauli basis: orthogonal, (d^2, d^2)."""
    return _matrix(U, lambda P: U @ P @ U.conj().T)


def noise_generators(n_qubits: int) -> Real:
    """Generators per unit of 1/T1 and of 1/T2 - 1/(2 T1), qubit by qubit: (2n, d^2, d^2)."""
    found = []
    for qubit in range(n_qubits):
        found += [dissipator(embed(LOWER, qubit, n_qubits)), dissipator(embed(Z, qubit, n_qubits)) / 2]
    return np.array(found)


def _product(factors: Iterable[Complex]) -> Complex:
    return reduce(lambda left, right: np.kron(left, right).astype(np.complex128), factors)


def _matrix(like: Complex, action) -> Real:  # type: ignore[no-untyped-def]
    basis = pauli_basis(int(np.log2(len(like))))
    images = np.array([action(P) for P in basis])
    return np.ascontiguousarray(np.einsum("iab,jba->ij", basis, images).real)
