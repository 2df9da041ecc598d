"""`assay run token-complexity`: how many tokens one recorded head needs, or a table of a model's heads on a text."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.errors import InputError
from assay.outputs import write_folder

if TYPE_CHECKING:
    import pandas as pd

ARRAYS = ("q", "k", "v")
MODELS = ("minilm", "smollm2")


def run(
    data: Annotated[
        Path | None, typer.Option(help="A head as npz: q (m, d), k (N, d) without rotary positions, v (N, d_v).")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Report on all heads of minilm or smollm2 instead of --data.")
    ] = None,
    text: Annotated[Path | None, typer.Option(help="The text that --model reads, UTF-8.")] = None,
    ns: Annotated[
        str, typer.Option(help="Numbers of tokens, as 32,64,128; by default powers of two to a quarter of the pool.")
    ] = "",
    scale: Annotated[float | None, typer.Option(help="Scores are scale * q k'; 1 / sqrt(d) by default.")] = None,
    reference: Annotated[
        str, typer.Option(help="Compare with the full pool (full) or its Gaussian (gaussian).")
    ] = "full",
    reps: Annotated[int, typer.Option(help="Random orders of the pool.")] = 32,
    seed: Annotated[int, typer.Option(help="Seed of the orders.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the tables, the summary and the picture.")] = Path(
        "token-complexity-out"
    ),
) -> None:
    """Measure how an attention head's error falls with its tokens, and what the spectral number predicts."""
    if (data is None) == (model is None):
        raise InputError("give either --data or --model")
    if (model is None) != (text is None):
        raise InputError("--model and --text belong together")
    if out.exists() and not out.is_dir():
        raise InputError(f"--out: {out} is a file, a folder is needed")
    counts = _numbers(ns)
    if data is not None:
        files, lines = _head(data, counts, scale, reference, reps, seed)
    else:
        files, lines = _report(str(model), Path(str(text)), counts, reps, seed)
    write_folder(out, files)
    _print(lines, out)


def example(folder: Path) -> list[str]:
    """Write a head with Gaussian tokens and a spectral number of 2 into the folder; the arguments that measure it."""
    import numpy as np

    rng = np.random.default_rng(0)
    k = rng.standard_normal((4000, 8)).astype(np.float32)
    q = (2**0.5 * 8**0.5 * rng.standard_normal((64, 8)) / np.arange(1, 9)).astype(np.float32)
    np.savez(folder / "head.npz", q=q, k=k, v=k)
    return [
        "--data", str(folder / "head.npz"), "--ns", "25,50,100,200,400", "--out", str(folder / "token-complexity-out")
    ]


def _head(
    data: Path, counts: list[int] | None, scale: float | None, reference: str, reps: int, seed: int
) -> tuple[dict[str, bytes], list[list[str]]]:
    from assay.pictures import NO_PICTURES, draw
    from assay.scaling.token_complexity.charts import convergence_chart
    from assay.scaling.token_complexity.convergence import attention_convergence
    from assay.scaling.token_complexity.heads import default_ns

    arrays = _read(data)
    if counts is None:
        counts = default_ns(len(arrays["k"])) if getattr(arrays["k"], "ndim", 0) == 2 else [1]
    found = attention_convergence(
        arrays["q"], arrays["k"], arrays["v"], counts, scale=scale, n_rep=reps, reference=reference, random_state=seed
    )
    chart = convergence_chart(found.table, found.beta, found.beta_pred, found.log_constant)
    pictures = draw({"convergence": chart})
    summary = found.summary() | ({} if pictures else {"note": NO_PICTURES})
    files = {
        "convergence.csv": found.table.to_csv(index=False, float_format="%.6g").encode(),
        "summary.json": _json(summary), "convergence.vl.json": _json(chart), **pictures,
    }
    lines = [
        ["exponent", f"{found.beta:.3f} [{found.beta_ci[0]:.3f}, {found.beta_ci[1]:.3f}]"],
        ["predicted for Gaussian tokens", f"{found.beta_pred:.3f} (spectral number {found.lam:.3g})"],
        ["regime", found.regime],
        *([f"tokens for {share:.0%} error", f"{found.tokens_for(share):.3g}"] for share in (0.1, 0.05, 0.01)),
    ]
    return files, lines


def _report(
    model: str, text: Path, counts: list[int] | None, reps: int, seed: int
) -> tuple[dict[str, bytes], list[list[str]]]:
    from assay.scaling.token_complexity.heads import head_report
    from assay.scaling.token_complexity.model_heads import load_model

    if model not in MODELS:
        raise InputError(f"--model must be one of {', '.join(MODELS)}, got {model}")
    words = _words(text)
    loaded, tokenizer = load_model(model)
    body = getattr(loaded, "model", loaded)  # without the head on the vocabulary, which nothing here reads
    table = head_report(body, tokenizer, [words], ns=counts, n_rep=reps, random_state=seed)
    worst: pd.DataFrame = table.sort_values("lam", ascending=False).head(5)
    summary = {
        "model": model, "heads": len(table), "lambda_above_1": float((table["lam"] > 1).mean()),
        "beta_median": float(table["beta"].median()),
    }
    lines = [
        [f"layer {row.layer}, head {row.head}", f"lam {row.lam:.3g}, exponent {row.beta:.3f}, {row.regime}"]
        for row in worst.itertuples()
    ]
    return {"heads.csv": table.to_csv(index=False, float_format="%.6g").encode(), "summary.json": _json(summary)}, lines


def _read(path: Path) -> dict[str, Any]:
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as held:
            if not hasattr(held, "files"):
                raise InputError(f"{path.name} must be an npz file with the arrays {', '.join(ARRAYS)}")
            found = {name: held[name] for name in held.files}
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except InputError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, AttributeError, TypeError):
        raise InputError(f"{path} can't be read as an npz file") from None
    missing = [name for name in ARRAYS if name not in found]
    if missing:
        raise InputError(f"{path.name} lacks the array {missing[0]}; it has {', '.join(found) or 'none'}")
    return found


def _words(path: Path) -> str:
    try:
        words = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"--text: {path} can't be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"--text: {path.name} is not UTF-8 text") from None
    if not words.strip():
        raise InputError(f"--text: {path.name} is empty")
    return words


def _numbers(ns: str) -> list[int] | None:
    if not ns:
        return None
    try:
        return [int(word) for word in ns.split(",")]
    except ValueError:
        raise InputError(f"--ns must be whole numbers with commas between, as 32,64,128, got {ns}") from None


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def _print(lines: list[list[str]], out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False)
    for line in lines:
        table.add_row(*line)
    console = Console()
    console.print(table)
    console.print(f"written to {out}")
