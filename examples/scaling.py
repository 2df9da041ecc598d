"""Predict the loss of larger training runs from smaller ones, and choose a batch size.

The noisy quadratic system is fitted to the cheaper two thirds of real training runs of byte-level
decoders, and asked about the dearest ones; Chinchilla's law is asked the same.
"""

import numpy as np

from assay.datasets import load_dataset
from assay.scaling import NQS, ChinchillaLaw


def main() -> None:
    runs = load_dataset("tiny-lm-runs").groupby(["N", "B", "K"], as_index=False)[["tokens", "flops", "loss"]].mean()
    small = runs[runs.flops <= runs.flops.quantile(0.7)]
    large = runs.drop(small.index)
    law = NQS(n_starts=16, variant="standard").fit(small[["N", "B", "K"]], small.loss)
    chinchilla = ChinchillaLaw().fit(small[["N", "tokens"]].rename(columns={"tokens": "D"}), small.loss)
    for name, predicted in {
        "noisy quadratic system": law.predict(large[["N", "B", "K"]]),
        "Chinchilla": chinchilla.predict(large[["N", "tokens"]].rename(columns={"tokens": "D"})),
    }.items():
        error = np.abs(np.log(predicted / large.loss)).mean()
        print(f"{name:24} mean error on {len(large)} larger runs: {100 * error:.1f} %")
    print(law.optimal(compute=float(large.flops.max()), seq_len=128).to_string(index=False))


if __name__ == "__main__":
    main()
