"""`assay run smart`: calibrate your own classifier's outputs, and see whether it was worth it."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.errors import InputError
from assay.pictures import NO_PICTURES, draw

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.stats import Interval
    from assay.study import Claim, Verdict

ARMS = ("none", "ts", "smart", "constant")
LEAST_ROWS = 20
LARGEST_SEED = 2**32 - 1


def run(
    data: Annotated[
        Path | None, typer.Option(help="An npz file with `logits` or `probs` [n, K], and `labels` [n].")
    ] = None,
    logits: Annotated[
        Path | None, typer.Option(help="Held-out logits or probabilities, .npy or .csv: a row each, a column a class.")
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="Labels 0 to K-1 of those rows, .npy or .csv.")] = None,
    test_logits: Annotated[
        Path | None, typer.Option(help="Logits to calibrate; without them half of the rows are kept for the test.")
    ] = None,
    test_labels: Annotated[
        Path | None, typer.Option(help="Labels of the test logits: the table is then measured on them.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split and of the starts.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("smart-out"),
) -> None:
    """Calibrate confidences: fit SMART on half of the rows, measure it on the rest beside temperature scaling.

    Writes table.csv (method by metric, 95 % intervals), verdict.json, calibrated.npy (probabilities of the test
    rows) and, where the report extra is installed, reliability.png and margin_temperature.png.
    """
    _refuse_out(out)
    if not 0 <= seed < LARGEST_SEED:
        raise InputError(f"--seed must be 0 to {LARGEST_SEED - 1}, got {seed}")
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scores, y = _read_labelled(data, logits, labels)
        test = _read_test(test_logits, test_labels, scores.shape[1])
        found = _calibrate(scores, y, test, seed)
        files = _files(found)
    out.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (out / name).write_bytes(content)
    _show(found, out, list(files))
    for note in dict.fromkeys(str(one.message) for one in caught if one.category is UserWarning):
        typer.echo(f"note: {note}", err=True)


def example(folder: Path) -> list[str]:
    """Write the logits of a small network on a thousand digits, and the options that calibrate them."""
    from assay.datasets import fetch

    path = folder / "digits-logits.npz"
    shutil.copyfile(fetch("smart-smoke"), path)
    return ["--data", str(path)]


def _refuse_out(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise InputError(f"--out: {out} is a file, a folder is expected")


def _read_labelled(data: Path | None, logits: Path | None, labels: Path | None) -> tuple[NDArray, NDArray]:
    from .files import read_array, read_logits
    from .inputs import as_labels, as_logits

    if data is not None:
        if logits is not None or labels is not None:
            raise InputError("--data holds logits and labels already: leave out --logits and --labels")
        scores, y = read_logits(data)
    elif logits is not None and labels is not None:
        scores = as_logits(read_array(logits), f"--logits {logits.name}")
        y = as_labels(read_array(labels), scores, name=f"--labels {labels.name}")
    else:
        raise InputError("give --data FILE.npz, or both --logits and --labels; --example shows how")
    if len(y) < 2 * LEAST_ROWS:
        raise InputError(f"{len(y)} labelled rows, at least {2 * LEAST_ROWS} are needed to fit and to test")
    return scores, y


def _read_test(
    test_logits: Path | None, test_labels: Path | None, n_classes: int
) -> tuple[NDArray | None, NDArray | None]:
    from .files import read_array
    from .inputs import as_labels, as_logits

    if test_logits is None:
        if test_labels is not None:
            raise InputError("--test-labels needs --test-logits")
        return None, None
    scores = as_logits(read_array(test_logits), f"--test-logits {test_logits.name}")
    if scores.shape[1] != n_classes:
        raise InputError(f"--test-logits {test_logits.name} has {scores.shape[1]} classes, --logits has {n_classes}")
    if test_labels is None:
        return scores, None
    return scores, as_labels(read_array(test_labels), scores, name=f"--test-labels {test_labels.name}")


def _calibrate(
    scores: NDArray, y: NDArray, test: tuple[NDArray | None, NDArray | None], seed: int
) -> dict[str, Any]:
    """Fit every arm, score it on labelled test rows, and judge SMART against temperature scaling."""
    import numpy as np

    from .baselines import BASELINES
    from .calibrator import SMARTCalibrator
    from .intervals import paired_differences
    from .measuring import scored_rows, temperature_curve
    from .verdicts import guarded

    test_scores, test_y = test
    if test_scores is not None and test_y is not None:
        fit_scores, fit_y, judged_scores, judged_y = scores, y, test_scores, test_y
    else:
        order = np.random.default_rng(seed).permutation(len(y))
        fit_rows, test_rows = order[: len(y) // 2], np.sort(order[len(y) // 2 :])
        fit_scores, fit_y, judged_scores, judged_y = scores[fit_rows], y[fit_rows], scores[test_rows], y[test_rows]
    smart = SMARTCalibrator(random_state=seed + 1)
    models = {arm: smart if arm == "smart" else BASELINES[arm]() for arm in ARMS}
    log_probs = {
        arm: model.fit(fit_scores, fit_y).predict_log_proba(judged_scores) for arm, model in models.items()
    }
    place = np.arange(len(judged_y))
    units = {arm: scored_rows(place, np.exp(log_p), judged_y) for arm, log_p in log_probs.items()}
    differences = paired_differences([[(units["smart"], units["ts"])]])
    verdict = guarded(_claim(), differences, "your data")
    curve, outside = temperature_curve(smart), smart.share_outside(judged_scores)
    if test_scores is not None and test_y is None:
        # The rows to calibrate have no labels: the last fit uses every labelled row.
        probs = SMARTCalibrator(random_state=seed + 1).fit(scores, y).predict_proba(test_scores)
    else:
        probs = np.exp(log_probs["smart"])
    return {
        "table": {arm: _metrics(log_p, judged_y) for arm, log_p in log_probs.items()}, "units": units,
        "verdict": verdict, "differences": differences, "curve": curve, "probs": probs,
        "rows": (len(fit_y), len(judged_y)), "outside": outside,
    }


def _claim() -> Claim:
    """The claim S1 of the card, with its threshold and guards."""
    import tomllib

    from assay.study import Claim

    card = tomllib.loads((Path(__file__).parent / "card.toml").read_text(encoding="utf-8"))
    return Claim(**{"arm": card["arm"], **next(claim for claim in card["claims"] if claim["id"] == "S1")})


def _metrics(log_probs: NDArray, y: NDArray) -> dict[str, Any]:
    """Every metric with its interval over test rows."""
    import numpy as np

    from assay import stats

    from . import metrics
    from .intervals import centred_bootstrap

    probs = np.exp(log_probs)
    confidence, correct = metrics.top_class(probs, y)
    n = len(y)
    return {
        "ece": centred_bootstrap(lambda rows: metrics.binned_error(confidence[rows], correct[rows], 15, "uniform"), n),
        "ada_ece": centred_bootstrap(
            lambda rows: metrics.binned_error(confidence[rows], correct[rows], 15, "quantile"), n
        ),
        "smooth_ece": centred_bootstrap(lambda rows: metrics.smooth_error(confidence[rows], correct[rows]), n),
        "nll": stats.mean_interval(-log_probs[np.arange(n), y]),
        "brier": stats.mean_interval(metrics.brier_rows(probs, y)),
        "auroc": centred_bootstrap(lambda rows: metrics.auroc(confidence[rows], correct[rows]), n),
        "risk_coverage": centred_bootstrap(lambda rows: metrics.risk_coverage(confidence[rows], correct[rows]), n),
        "accuracy": stats.mean_interval(correct),
    }


def _files(found: dict[str, Any]) -> dict[str, bytes]:
    import io

    import numpy as np

    from .charts import reliability_chart, reliability_points, temperature_chart

    lines = ["method,metric,value,low,high"]
    for arm, row in found["table"].items():
        lines += [f"{arm},{metric},{i.estimate:.6g},{i.low:.6g},{i.high:.6g}" for metric, i in row.items()]
    points = [
        {"set": "your data", "arm": arm, **point}
        for arm in ("none", "ts", "smart") for point in reliability_points([found["units"][arm]])
    ]
    curve = [{"set": "your data", **point} for point in found["curve"]]
    array = io.BytesIO()
    np.save(array, found["probs"])
    return {
        "table.csv": ("\n".join(lines) + "\n").encode(),
        "verdict.json": (json.dumps(_verdict(found), indent=2) + "\n").encode(),
        "calibrated.npy": array.getvalue(),
        **draw({"reliability": reliability_chart(points), "margin_temperature": temperature_chart(curve)}),
    }


def _verdict(found: dict[str, Any]) -> dict[str, Any]:
    verdict: Verdict = found["verdict"]
    fitted, tested = found["rows"]
    return {
        "claim": "S1", "outcome": str(verdict.outcome), "reason": verdict.reason, **_words(found),
        # JSON has no infinity: an end of the interval that is unknown is null.
        "ece_difference": [_finite(value) for value in (verdict.effect, verdict.low, verdict.high)],
        "validation_rows": fitted, "test_rows": tested,
        "share_outside_margin_range": round(found["outside"], 4),
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _words(found: dict[str, Any]) -> dict[str, str]:
    """Two separate findings: the level of the confidences, and their order."""
    error, area = found["differences"]["ece"], found["differences"]["auroc"]
    return {
        "calibration": f"{_compare(-error.high, -error.low)} than temperature scaling (ECE {100 * error.estimate:+.2f} "
                       f"points [{100 * error.low:+.2f}, {100 * error.high:+.2f}])",
        "ranking": _ranking(area),
    }


def _ranking(area: Interval) -> str:
    if math.isnan(area.estimate):
        return "undefined: the test rows are all right, or all wrong"
    return (f"{_compare(area.low, area.high)} than temperature scaling (AUROC of confidence for correctness "
            f"{area.estimate:+.4f} [{area.low:+.4f}, {area.high:+.4f}])")


def _compare(low: float, high: float) -> str:
    """Of an interval of an advantage."""
    return "better" if low > 0 else "worse" if high < 0 else "not clearly better or worse"


def _show(found: dict[str, Any], out: Path, written: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = ("ece", "ada_ece", "smooth_ece", "nll", "brier", "auroc", "accuracy")
    table = Table(title="test rows; ECE, accuracy and AUROC in per cent")
    table.add_column("method")
    for metric in shown:
        table.add_column(metric, justify="right")
    for arm, row in found["table"].items():
        table.add_row(arm, *(_cell(metric, row[metric].estimate) for metric in shown))
    console = Console()
    console.print(table)
    note = "constant: a useless control, one confidence for all rows (a low ECE alone proves little)"
    console.print(note, markup=False, soft_wrap=True)
    words = _words(found)
    console.print(f"calibration: {words['calibration']}", markup=False, soft_wrap=True)
    console.print(f"ranking:     {words['ranking']}", markup=False, soft_wrap=True)
    console.print(f"claim S1 on your data: {found['verdict'].outcome}", markup=False, soft_wrap=True)
    console.print(f"wrote {', '.join(written)} into {out}", markup=False, soft_wrap=True)
    if not any(name.endswith(".png") for name in written):
        console.print(NO_PICTURES, markup=False, soft_wrap=True)


def _cell(metric: str, value: float) -> str:
    return f"{value:.4f}" if metric in ("nll", "brier") else f"{100 * value:.2f}"
