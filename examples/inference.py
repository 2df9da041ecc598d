"""Pick the right answer from several weak scorers and no labels.

Each of scikit-learn's digits is a question with ten candidate answers; eight scorers see one block of
its pixels each. FUSE joins their scores without ever seeing a label.
"""

import numpy as np

from assay.inference import FUSE, select_per_query
from assay.inference.pools import digits_pool


def main() -> None:
    pool = digits_pool()
    standardised = (pool.scores - pool.scores.mean(axis=0)) / pool.scores.std(axis=0)
    fused = FUSE(random_state=0).fit(pool.scores, groups=pool.groups)
    for name, chosen in {
        "mean of the scores": select_per_query(standardised.mean(axis=1), pool.groups),
        "FUSE": fused.select(pool.scores, pool.groups),
    }.items():
        print(f"{name:20} right answers: {100 * np.mean(pool.labels[chosen]):.1f} %")
    print("estimated sensitivity of each scorer:", fused.sensitivity_.round(2).tolist())


if __name__ == "__main__":
    main()
