"""SMART's Gauss-Newton fit against the authors' training loop, on the same rows, alternately.

The peer is the loop as the paper describes it, written here in plain torch with autograd: 2000 full-batch Adam epochs
of the 49-parameter net, the parameters of the least loss kept. The method is `SMARTCalibrator()` as it comes: four
starts and a final descent. Both losses on the validation rows are compared as well: a faster fit that ends higher
would be no gain.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.datasets import load_dataset
from assay.trust.smart import SMARTCalibrator, charbonnier_soft_ece
from assay.trust.smart.baselines import TemperatureScaling
from assay.trust.smart.data import pool_logits

TARGET = 5.0
LOSS_MARGIN = 1e-4
REPEATS = 3


def main() -> dict[str, Any]:
    """Measure every case, print a table and return the cases."""
    cases = [_fit_case("letter", n) for n in (500, 1000)] + [_fit_case("smart-smoke", 500), _predict_case()]
    print(f"{'case':46} {'ours':>9} {'peer':>9} {'ratio':>7} {'target':>7}  note")
    for case in cases:
        print(f"{case['name']:46} {case['ours_s']:8.4f}s {case['peer_s']:8.4f}s {case['ratio']:7.2f} "
              f"{case['target']:7.2f}  {case['note']}")
    return {"cases": cases}


def _fit_case(name: str, n_val: int) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    logits, labels = _rows(name, n_val)
    ours: dict[str, Any] = {}
    peer: dict[str, Any] = {}

    def fit_ours() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours["scaled"] = SMARTCalibrator().fit(logits, labels).transform(logits)

    def fit_peer() -> None:
        peer["scaled"] = authors_loop(logits, labels)

    SMARTCalibrator(max_iter=100).fit(logits, labels)
    authors_loop(logits, labels, epochs=20)
    ours_s, peer_s = _alternate(fit_ours, fit_peer)
    ours_loss, peer_loss = (charbonnier_soft_ece(found["scaled"], labels) for found in (ours, peer))
    fair = ours_loss <= peer_loss + LOSS_MARGIN
    note = f"loss {ours_loss:.5f} against {peer_loss:.5f}" + ("" if fair else ": higher than allowed, no like for like")
    return _case(f"fit, {name}, {n_val} rows, {logits.shape[1]} classes", ours_s, peer_s, TARGET,
                 "the authors' Adam loop, 2000 epochs, torch", note)


def _predict_case() -> dict[str, Any]:
    logits, labels = _rows("letter", 8000)
    batch = np.resize(logits, (10_000, logits.shape[1]))
    smart = SMARTCalibrator().fit(logits[:500], labels[:500])
    plain = TemperatureScaling().fit(logits[:500], labels[:500])

    def many(predict: Callable[[NDArray], NDArray]) -> Callable[[], None]:
        return lambda: [predict(batch) for _ in range(20)] and None

    ours_s, peer_s = _alternate(many(smart.predict_proba), many(plain.predict_proba))
    return _case("predict, letter, 10000 rows (20 times)", ours_s, peer_s, 0.5,
                 "temperature scaling in NumPy, in blocks", "claim S6: at most twice the time")


def _case(name: str, ours_s: float, peer_s: float, target: float, peer: str, note: str) -> dict[str, Any]:
    return {"name": name, "ours_s": ours_s, "peer_s": peer_s, "ratio": peer_s / ours_s, "target": target, "peer": peer,
            "note": note}


def _alternate(ours: Callable[[], None], peer: Callable[[], None]) -> tuple[float, float]:
    """Least processor seconds of each over a few rounds, taken in turn."""
    times = []
    for _ in range(REPEATS):
        begun = time.process_time()
        ours()
        between = time.process_time()
        peer()
        times.append((between - begun, time.process_time() - between))
    return tuple(np.min(times, axis=0).tolist())  # type: ignore[return-value]


def _rows(name: str, n_val: int) -> tuple[NDArray, NDArray]:
    if name == "smart-smoke":
        arrays = load_dataset(name)
        return arrays["logits"][:n_val].astype(np.float64), arrays["labels"][:n_val].astype(np.intp)
    pool = pool_logits(name, "")
    return pool["logits"][:n_val], pool["y"][:n_val]


def authors_loop(logits: NDArray, labels: NDArray, epochs: int = 2000) -> NDArray:
    """Full-batch Adam with autograd on the 49-parameter net; returns the scaled logits of the kept parameters."""
    import torch
    from torch import nn

    torch.manual_seed(1)
    z, y = torch.as_tensor(logits, dtype=torch.float32), torch.as_tensor(labels)
    top = z.topk(2, dim=1).values
    margin = top[:, 0] - top[:, 1]
    margin = ((margin - margin.mean()) / margin.std(unbiased=False).clamp_min(1e-8)).unsqueeze(1)
    net = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 1), nn.Softplus())
    optimiser = torch.optim.Adam(net.parameters(), lr=5e-3)
    centres = (torch.arange(15) + 0.5) / 15
    best, kept = float("inf"), None
    for _ in range(epochs):
        optimiser.zero_grad()
        temperature = net(margin).squeeze(1) + 0.1
        confidence, predicted = torch.softmax(z / temperature.unsqueeze(1), dim=1).max(dim=1)
        correct = (predicted == y).float()
        kernel = torch.exp(-((confidence.unsqueeze(1) - centres) ** 2) / (2 * 0.05**2))
        share = kernel / kernel.sum(dim=1, keepdim=True).clamp_min(1e-12)
        mass = share.sum(dim=0)
        mean_confidence = (share * confidence.unsqueeze(1)).sum(dim=0) / mass.clamp_min(1e-12)
        mean_correct = (share * correct.unsqueeze(1)).sum(dim=0) / mass.clamp_min(1e-12)
        loss = (mass / len(y) * torch.sqrt((mean_confidence - mean_correct) ** 2 + 1e-3**2)).sum()
        loss.backward()
        optimiser.step()
        if loss.item() < best:
            best, kept = loss.item(), {name: value.detach().clone() for name, value in net.state_dict().items()}
    net.load_state_dict(kept or net.state_dict())
    with torch.no_grad():
        temperature = net(margin).squeeze(1) + 0.1
    return logits / temperature.double().numpy()[:, None]


if __name__ == "__main__":
    main()
