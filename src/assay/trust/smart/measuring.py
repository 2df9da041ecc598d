"""One measurement of the study: a calibrator fitted on the validation rows of a split and scored on its test rows."""

from __future__ import annotations

import json
import time
import warnings
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.study import Cell, Measurement, Skip

from .baselines import BASELINES, LogitCalibrator, TemperatureScaling
from .calibrator import SMARTCalibrator
from .metrics import brier_rows, summary, top_class

Array = NDArray[np.float64]
Labels = NDArray[np.intp]

SMARTS: dict[str, dict[str, Any]] = {
    "smart": {},
    "smart-nll": {"objective": "nll"},
    "smart-early": {"early_stopping": True},
    "smart-adam": {"solver": "adam"},
    "smart-max-logit": {"hardness": "max_logit"},
    "smart-entropy": {"hardness": "entropy"},
    "smart-energy": {"hardness": "energy"},
}
OTHER_HARDNESS = ("smart-max-logit", "smart-entropy", "smart-energy")
# Arms whose intervals a claim needs: their test rows are kept.
WITH_UNITS = ("ts", "smart", "smart-nll", "constant", *OTHER_HARDNESS)

TIMED_ROWS, TIMED_FIT_ROWS, TIMES = 10_000, 500, 3
ROWS_AT_A_TIME = 20
CURVE_POINTS = 60


def measure_calibration(cell: Cell, logits: Array, labels: Labels, changed: Array, largest: int) -> Measurement:
    """Fit the cell's arm on its validation rows and score it on the test rows.

    Parameters
    ----------
    cell : Cell
        Seed of the split, `n_val`, and where given `sigma` and `max_iter`.
    logits, labels : arrays of shape [n, K] and [n]
        Rows of the pool.
    changed : array of shape [n, K]
        Logits that stand for the rows in the test part (under a shift; else `logits`).
    largest : int
        Largest validation size of the set: rows after it are the test rows.
    """
    order = np.random.default_rng([cell.seed, len(labels)]).permutation(len(labels))
    validation, test = order[: cell.options["n_val"]], np.sort(order[largest:])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = _model(cell).fit(logits[validation], labels[validation])
        log_probs = model.predict_log_proba(changed[test])
        metrics = summary(log_probs, labels[test])
        files = {}
        if isinstance(model, SMARTCalibrator):
            temperatures = model.temperatures(changed[test])
            metrics |= {
                "temperature": float(temperatures.mean()), "temperature_least": float(temperatures.min()),
                "temperature_largest": float(temperatures.max()), "outside": model.share_outside(changed[test]),
            }
            if cell.seed == 0 and cell.arm == "smart":
                files["curve.json"] = json.dumps(temperature_curve(model)).encode()
        elif isinstance(model, TemperatureScaling):
            metrics["temperature"] = model.temperature_
    judged = cell.arm in WITH_UNITS and "sigma" not in cell.options
    units = scored_rows(test, np.exp(log_probs), labels[test]) if judged else None
    return Measurement(metrics, units, files)


def time_prediction(arm: str, logits: Array, labels: Labels, repetitions: int) -> Measurement:
    """Processor time of predicting 10,000 rows over that of temperature scaling, one unit a repetition, taken in turn.

    The control `smart-rowwise` predicts the same rows in portions of twenty.
    """
    rows = np.resize(np.arange(len(labels)), TIMED_ROWS)
    batch = logits[rows]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Predicting costs the same with any parameters: a short fit will do.
        smart = SMARTCalibrator(max_iter=200, n_restarts=1).fit(logits[:TIMED_FIT_ROWS], labels[:TIMED_FIT_ROWS])
        plain = TemperatureScaling().fit(logits[:TIMED_FIT_ROWS], labels[:TIMED_FIT_ROWS])
        portions = [batch] if arm == "smart" else np.split(batch, TIMED_ROWS // ROWS_AT_A_TIME)
        taken = np.array([_time_in_turn(smart, plain, portions, batch) for _ in range(repetitions + 2)])
    # The first two warm up.
    smart_s, plain_s = taken[2:].T
    metrics = {
        "ratio": float(np.median(smart_s / plain_s)), "smart_s": float(np.median(smart_s)),
        "ts_s": float(np.median(plain_s)),
    }
    return Measurement(metrics, _frame(repetition=np.arange(repetitions), ratio=smart_s / plain_s))


def _time_in_turn(
    smart: SMARTCalibrator, plain: TemperatureScaling, portions: list[Array], batch: Array
) -> tuple[float, float]:
    """Processor seconds of predicting all rows by each: other programs on the machine don't count."""
    times = TIMES if len(portions) == 1 else 1
    begun = time.process_time()
    for portion in portions * times:
        smart.predict_proba(portion)
    between = time.process_time()
    for _ in range(TIMES):
        plain.predict_proba(batch)
    return (between - begun) / times, (time.process_time() - between) / TIMES


def _model(cell: Cell) -> LogitCalibrator:
    if cell.arm in BASELINES:
        return BASELINES[cell.arm]()
    settings = SMARTS[cell.arm] | {name: cell.options[name] for name in ("sigma", "max_iter") if name in cell.options}
    if settings.get("solver") == "adam" and find_spec("torch") is None:
        raise Skip("torch is not installed")
    return SMARTCalibrator(random_state=cell.seed + 1, **settings)


def scored_rows(test: NDArray[np.intp], probs: Array, labels: Labels) -> Any:
    """One line a test row: its place in the data set, confidence, correctness and Brier score."""
    confidence, correct = top_class(probs, labels)
    return _frame(
        row=test.astype(np.int32), confidence=confidence.astype(np.float32), correct=correct.astype(np.int8),
        brier=brier_rows(probs, labels).astype(np.float32),
    )


def temperature_curve(model: SMARTCalibrator) -> list[dict[str, float]]:
    """Points of the learned temperature over the range of validation margins."""
    margins = np.linspace(*model.margin_range_, CURVE_POINTS)
    temperatures = model.temperature_at(margins)
    return [
        {"margin": round(float(margin), 2), "temperature": round(float(temperature), 3)}
        for margin, temperature in zip(margins, temperatures, strict=True)
    ]


def _frame(**columns: NDArray) -> Any:
    import pandas as pd

    return pd.DataFrame(columns)
