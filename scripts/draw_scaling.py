"""Draw the pictures of docs/scaling.md: each law on real runs, and one chart of each method's record.

    python scripts/draw_scaling.py     # a few minutes of a core

The laws are fitted to the runs below the 0.7 quantile of compute and drawn on all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from assay.catalogue import get
from assay.datasets import load_dataset
from assay.pictures import draw
from assay.scaling import NQS, ChinchillaLaw, KaplanLaw, PowerLaw
from assay.scaling.fit import LossLaw, split_above

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
HELD_OUT_ABOVE = 0.7
SCAN_SEQ_LEN = 2048
FROM_RECORDS = {  # which chart of each
    "irsl": 0, "prescriptive": 2, "token-complexity": 0, "meta-adaptation": 0, "low-precision": 0, "seed-bimodality": 3,
    "depth-lr": 0, "split-training": 2,
}


def laws() -> dict[str, LossLaw]:
    """Today's laws and the noisy quadratic system, with few starts: pictures, not evidence."""
    return {
        "Kaplan": KaplanLaw(n_starts=16), "power of compute": PowerLaw(n_starts=16),
        "Chinchilla": ChinchillaLaw(n_starts=16), "Chinchilla, batch-aware": ChinchillaLaw(True, n_starts=16),
        "noisy quadratic system": NQS("standard", n_starts=16),
    }


def tables() -> dict[str, pd.DataFrame]:
    """Our designed grid, and the undesigned collection with a learning rate of its own for each run."""
    tiny = load_dataset("tiny-lm-runs").groupby(["N", "B", "K", "tokens"], as_index=False)["loss"].mean()
    scan = load_dataset("scan-bench-llm").sort_values("step_index").groupby("config_id").tail(1)
    scan = scan[scan["tokens_so_far"].notna()]
    batch = 4 * scan["micro_batch_size"] * scan["grad_accumulation_steps"]
    other = pd.DataFrame({
        "N": scan["n_params"], "B": batch, "K": scan["tokens_so_far"] / (batch * SCAN_SEQ_LEN),
        "D": scan["tokens_so_far"], "loss": scan["valid_loss"],
    })
    found = {"tiny-lm-runs (a designed grid)": tiny.rename(columns={"tokens": "D"}), "scan-bench (no design)": other}
    return {name: table.assign(C=6 * table["N"] * table["D"]).astype(float) for name, table in found.items()}


def points() -> Iterator[pd.DataFrame]:
    """Measured and predicted loss of every run, law by law and table by table."""
    for title, runs in tables().items():
        fitted, _ = split_above(runs["C"], HELD_OUT_ABOVE)
        for name, law in laws().items():
            predicted = law.fit(runs[fitted], runs.loc[fitted, "loss"]).predict(runs)
            error = np.abs(np.log(predicted / runs["loss"]))[~fitted].mean()
            yield pd.DataFrame({
                "measured": runs["loss"], "predicted": predicted, "table": title, "law": name,
                "runs": np.where(fitted, "fitted", "held out"), "error": f"{100 * error:.1f} % on larger runs",
            })


def laws_chart() -> dict[str, Any]:
    """Predicted over measured loss, a panel for each law and table."""
    frame = pd.concat(points(), ignore_index=True).round(4)
    axis = {"type": "quantitative", "scale": {"type": "log", "nice": False, "padding": 8}, "axis": {"tickCount": 4}}
    base = {
        "data": {"values": frame.to_dict("records")},
        "facet": {
            "row": {"field": "table", "type": "nominal", "title": None, "sort": list(tables())},
            "column": {"field": "law", "type": "nominal", "title": None, "sort": list(laws())},
        },
        "resolve": {"scale": {"x": "independent", "y": "independent"}},
    }
    marks = {
        "mark": {"type": "point", "filled": True, "opacity": 0.5, "size": 16},
        "encoding": {
            "x": {"field": "measured", "title": "measured loss", **axis},
            "y": {"field": "predicted", "title": "predicted loss", **axis},
            "color": {"field": "runs", "type": "nominal", "scale": {"range": ["#9aa5b1", "#c8553d"]}, "title": None},
        },
    }
    line = {
        "mark": {"type": "line", "color": "#333", "strokeWidth": 1},
        "encoding": {"x": {"field": "measured", **axis}, "y": {"field": "measured", **axis}},
    }
    text = {
        "transform": [{"aggregate": [{"op": "max", "field": "error", "as": "error"}]}],
        "mark": {"type": "text", "align": "left", "x": 6, "y": 10, "fontSize": 10},
        "encoding": {"text": {"field": "error"}},
    }
    return {**base, "spec": {"width": 150, "height": 150, "layer": [line, marks, text]}}


def main() -> None:
    charts = {"laws": laws_chart()}
    for slug, number in FROM_RECORDS.items():
        record = get(slug).record
        if record is not None:
            charts[slug] = record["charts"][number]
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, content in draw(charts).items():
        (PICTURES / name).write_bytes(content)
        print(name, len(content))


if __name__ == "__main__":
    main()
