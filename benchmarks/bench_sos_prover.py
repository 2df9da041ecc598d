"""The prover beside its peers on the same polynomials: CPU seconds of one process, each after a warm-up.

    python benchmarks/bench_sos_prover.py            # about a minute
    python benchmarks/bench_sos_prover.py --long     # and alkahest on six variables: minutes

Peers: `alkahest` (Rust, from the registry), and a Sostactic-style prover of ours, since Sostactic itself is not on the
registry: SDP on the Gram side by Clarabel, affine reduction, projection and LDLᵀ in SymPy's rationals. Motzkin's
polynomial is multiplied by x² + y² + 1 beforehand for the Sostactic-style prover, which spares it the search for a
multiplier.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from assay.science.sos_prover import classic, generate, prove_nonneg
from assay.science.sos_prover.baselines import alkahest_proves, round_and_project
from assay.science.sos_prover.polynomials import Polynomial, as_polynomial

SOSTACTIC_TARGET, ALKAHEST_TARGET, MOTZKIN_TARGET = 20.0, 5.0, 4.0
SOSTACTIC = "Sostactic-style: Clarabel on the Gram side, exact steps in SymPy (our version)"


def main(long: bool = False) -> dict[str, Any]:
    """Measure, print a table, and return the cases."""
    motzkin = classic("motzkin").polynomial
    multiplied = as_polynomial("x^2 + y^2 + 1", motzkin.gens) * motzkin
    cases = [
        *(_case(f"interior, n = {n}", generate(n, "interior", 0)[0], _sostactic, SOSTACTIC, SOSTACTIC_TARGET, repeats=3)
          for n in (3, 4)),
        _case("Motzkin", motzkin, lambda _: _sostactic(multiplied), SOSTACTIC, MOTZKIN_TARGET, repeats=5),
    ]
    if _has_alkahest():
        cases += [
            _case("Motzkin", motzkin, alkahest_proves, "alkahest", MOTZKIN_TARGET, repeats=5),
            _case("interior, n = 3", generate(3, "interior", 0)[0], alkahest_proves, "alkahest", ALKAHEST_TARGET),
            _case("interior, n = 4", generate(4, "interior", 0)[0], alkahest_proves, "alkahest", ALKAHEST_TARGET),
        ]
        if long:
            six = generate(6, "interior", 0)[0]
            cases.append(_case("interior, n = 6", six, alkahest_proves, "alkahest", ALKAHEST_TARGET))
    for case in cases:
        print(f"{case['name']:<18} ours {case['ours_s']:8.4f} s   {case['peer_s']:8.3f} s   ratio {case['ratio']:7.1f} "
              f"(target {case['target']:g})   {case['peer']}   {case['note']}")
    return {"cases": cases}


def _case(
    name: str, p: Polynomial, peer: Callable[[Polynomial], bool], what: str, target: float, *, repeats: int = 1
) -> dict[str, Any]:
    """Both provers in turns, the median of each; ours is repeated more, as one run is milliseconds."""
    prove_nonneg(p)
    if repeats > 1:
        peer(p)
    ours, theirs, proved = [], [], True
    for _ in range(repeats):
        ours += [_cpu_seconds(lambda: prove_nonneg(p))[0] for _ in range(5)]
        seconds, proved = _cpu_seconds(lambda: peer(p))
        theirs.append(seconds)
    ours_s, peer_s = statistics.median(ours), statistics.median(theirs)
    return {
        "name": name, "ours_s": ours_s, "peer_s": peer_s, "ratio": peer_s / ours_s, "target": target, "peer": what,
        "note": "CPU seconds" if proved else "CPU seconds; the peer found no proof",
    }


def _sostactic(p: Polynomial) -> bool:
    return round_and_project(p) is not None


def _cpu_seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    answer = call()
    return time.process_time() - start, answer


def _has_alkahest() -> bool:
    from importlib.util import find_spec

    return find_spec("alkahest") is not None


if __name__ == "__main__":
    main(long="--long" in sys.argv[1:])
