"""Divide a budget by the runs at hand, and choose a batch size.

`plan_run` fits the laws that a table of runs allows, ranks them on its larger runs, and divides a budget ten times
the largest run. The noisy quadratic system then says which batch suits it.
"""

from assay.datasets import load_dataset
from assay.scaling import NQS, plan_run


def main() -> None:
    runs = load_dataset("tiny-lm-runs").groupby(["N", "B", "K"], as_index=False)[["tokens", "flops", "loss"]].mean()
    budget = 10 * float(runs.flops.max())
    plan = plan_run(runs, budget, laws=["chinchilla", "kaplan", "power"], n_starts=4, n_refits=20)
    print(plan.laws[["error", "clearly_worse", "N", "D", "loss"]].to_string(float_format="{:.3g}".format))
    print(f"\n{budget:.2g} FLOP, by {plan.law}:")
    print(plan.allocation.to_string(float_format="{:.3g}".format))
    law = NQS(n_starts=16, variant="standard").fit(runs, runs.loss)
    print("\nbatch sizes, by the noisy quadratic system:")
    print(law.optimal(compute=budget, seq_len=128).to_string(index=False, float_format="{:.4g}".format))


if __name__ == "__main__":
    main()
