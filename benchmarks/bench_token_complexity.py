"""The curve of a head's error over many n, beside one call of PyTorch's attention for each n.

Both measure the same head on the same random orders of the pool and agree to 1e-6, the peer in double precision. It
calls `torch.nn.functional.scaled_dot_product_attention` on the first n tokens of each order for every n. Ours takes
each score's exponential once for all orders, all n of an order in one pass, and products in single precision.

CPU seconds of one process on one thread, warmed up, alternating, the median of several repeats.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from assay.scaling.token_complexity import attention_convergence
from assay.scaling.token_complexity.convergence import draw_orders
from assay.timing import cpu_seconds

TOKENS, QUERIES, WIDTH, ORDERS = 8192, 128, 64, 32
GRIDS = {"16 n": 16, "8 n": 8}


def main(repeats: int = 5) -> dict[str, Any]:
    """Measure, print a table, and return the cases."""
    torch.set_num_threads(1)
    with threadpool_limits(1):
        cases = [curve_case(name, count, repeats) for name, count in GRIDS.items()]
    for case in cases:
        print(f"{case['name']}: {case['ours_s']:.4f} s; {case['peer']}: {case['peer_s']:.4f} s; "
              f"ratio {case['ratio']:.1f} (target {case['target']:g}) {case['note']}")
    return {"cases": cases}


def curve_case(name: str, count: int, repeats: int) -> dict[str, Any]:
    """Head of 64 units, 128 queries, a pool of 8192 tokens, 32 orders, n up to the whole pool less one."""
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((QUERIES, WIDTH)), rng.standard_normal((TOKENS, WIDTH))
    v = rng.standard_normal((TOKENS, WIDTH))
    ns = [round(n) for n in np.geomspace(32, TOKENS - 1, count)]
    ours, peer = (lambda: ours_errors(q, k, v, ns)), (lambda: peer_errors(q, k, v, ns))
    np.testing.assert_allclose(ours(), peer(), atol=1e-6)
    pairs = [(cpu_seconds(ours), cpu_seconds(peer)) for _ in range(repeats)]
    ours_s, peer_s = (float(np.median(column)) for column in zip(*pairs, strict=True))
    return {
        "name": f"curve of {name}, {TOKENS} tokens, {ORDERS} orders", "ours_s": ours_s, "peer_s": peer_s,
        "ratio": peer_s / ours_s, "target": 5.0, "peer": "scaled_dot_product_attention for each n",
        "note": "the same numbers to 1e-6",
    }


def ours_errors(q: np.ndarray, k: np.ndarray, v: np.ndarray, ns: list[int]) -> np.ndarray:
    return attention_convergence(q, k, v, ns, n_rep=ORDERS, random_state=0).table["err"].to_numpy()


def peer_errors(q: np.ndarray, k: np.ndarray, v: np.ndarray, ns: list[int]) -> np.ndarray:
    attend = torch.nn.functional.scaled_dot_product_attention
    queries, keys, values = (torch.from_numpy(array)[None, None] for array in (q, k, v))
    whole = attend(queries, keys, values)
    errors = np.zeros(len(ns))
    for order in draw_orders(len(k), ORDERS, ns[-1], 0):
        drawn = torch.from_numpy(order)
        shuffled, carried = keys[:, :, drawn], values[:, :, drawn]
        for i, n in enumerate(ns):
            found = attend(queries, shuffled[:, :, :n], carried[:, :, :n])
            errors[i] += float((found - whole).norm(dim=-1).mean())
    return errors / ORDERS


if __name__ == "__main__":
    main()
