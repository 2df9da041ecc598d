"""Make `tiny-lm-items`: what checkpoints of tiny decoders make of 1,500 cloze questions.

    python scripts/train_tiny_items.py train     # thirty models (forty minutes of a core); picks up where it stopped
    python scripts/train_tiny_items.py pack      # one file of the finished models

Thirty decoders, five widths by six recipes, are trained on mixtures of three texts of a Python installation: library
source, docstrings, and the language reference. Eight checkpoints of each answer four-way cloze questions cut out of
held-out text: 96 bytes of context, the 24 bytes that follow it, and three continuations from elsewhere in the same
source. Five sources of questions stand for five benchmarks: the three texts, comments of the library, and source of
numpy, which no recipe holds. Modules and topics are held out whole.

Kept of each question: the probability of the right continuation, `exp(mean log probability a byte)`, and which of the
four continuations the context raised the most above its probability without context (continuations differ by nature,
and without this correction the likeliest text would win in any context). The checkpoints lie on one cosine schedule, so
that only the last is annealed.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib.util
import io
import json
import platform
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch.nn import functional as F

from assay.language.tiny import TinyCausal, TinyConfig, TrainConfig, train
from train_tiny_runs import CONTEXT, HERE, RATES

WIDTHS = (24, 34, 48, 68, 96)
RECIPES = {  # shares of library source, docstrings and reference in the training text
    "code": (1.0, 0.0, 0.0), "code-docs": (0.75, 0.25, 0.0), "code-reference": (0.75, 0.0, 0.25),
    "half": (0.5, 0.25, 0.25), "mostly-prose": (0.2, 0.4, 0.4), "prose": (0.0, 0.5, 0.5),
}
POOLS = ("code", "docstrings", "reference")
SOURCES = ("code", "docstrings", "reference", "comments", "numpy")
BATCH, STEPS = 16, 2000
CHECKPOINTS = (62, 102, 167, 275, 451, 740, 1219, 2000)
TRAINING_BYTES = 8_000_000
QUESTIONS, BEFORE, AFTER, OPTIONS = 300, 96, 24, 4
LEAST_DOCSTRING = 120  # characters; a shorter one gives no question
SCORED_TOGETHER = 64

LEFT_OUT = {"test", "tests", "site-packages", "idle_test", "pydoc_data", "lib2to3", "encodings"}

PACKED = HERE / "tiny-lm-items.npz"
ABOUT = HERE / "tiny-lm-items.json"


def held_out(name: str, one_in: int) -> bool:
    """One module or topic in so many, by the hash of its name."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % one_in == 0


def library_files() -> Iterator[tuple[str, str]]:
    """(top-level module, source text) of the standard library: no tests, private modules or tables of characters."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if LEFT_OUT & set(parts) or parts[0][0] == "_":
            continue
        yield parts[0].removesuffix(".py"), path.read_bytes().decode("utf-8", "replace")


def docstrings(source: str) -> str:
    """The docstrings of a file, long ones only, one after another."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef)]
    found = (ast.get_docstring(node) for node in nodes)
    return "\n\n".join(text for text in found if text and len(text) >= LEAST_DOCSTRING)


def comments(source: str) -> str:
    """The comments of a file, a line each."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, SyntaxError):
        return ""
    return "\n".join(token.string for token in tokens if token.type == tokenize.COMMENT)


def texts() -> tuple[dict[str, bytes], dict[str, bytes]]:
    """(training text by pool, held-out text by source of questions)."""
    from pydoc_data.topics import topics

    pieces: dict[tuple[str, bool], list[str]] = {}
    for module, source in library_files():
        apart = held_out(module, 10)
        pieces.setdefault(("code", apart), []).append(source)
        pieces.setdefault(("docstrings", apart), []).append(docstrings(source))
        pieces.setdefault(("comments", apart), []).append(comments(source))
    for topic, text in sorted(topics.items()):
        pieces.setdefault(("reference", held_out(topic, 5)), []).append(text)
    spec = importlib.util.find_spec("numpy")
    assert spec is not None and spec.origin is not None
    files = sorted(Path(spec.origin).parent.rglob("*.py"))
    pieces["numpy", True] = [p.read_text(encoding="utf-8") for p in files if "tests" not in p.parts]
    joined = {key: "\n\n".join(filter(None, parts)).encode() for key, parts in pieces.items()}
    return {name: joined[name, False] for name in POOLS}, {name: joined[name, True] for name in SOURCES}


def training_stream(pools: dict[str, bytes], recipe: str) -> np.ndarray:
    """The recipe's shares one after another; a pool shorter than its share is repeated."""
    parts = [
        np.resize(np.frombuffer(pools[name], dtype=np.uint8), round(share * TRAINING_BYTES))
        for name, share in zip(POOLS, RECIPES[recipe], strict=True) if share
    ]
    return np.concatenate(parts)


def questions(sources: dict[str, bytes]) -> tuple[np.ndarray, np.ndarray]:
    """(contexts (questions, BEFORE), continuations (questions, OPTIONS, AFTER)), the right continuation first."""
    contexts, continuations = [], []
    for number, name in enumerate(SOURCES):
        stream = np.frombuffer(sources[name], dtype=np.uint8)
        rng = np.random.default_rng([20261, number])
        # A continuation begins with a word: where it was cut then says nothing about which one is right.
        starts = np.flatnonzero((stream[:-1] == ord(" ")) & (stream[1:] > ord(" "))) + 1
        starts = starts[(starts >= BEFORE) & (starts + AFTER <= len(stream))]
        chosen = rng.permutation(starts)[: QUESTIONS * OPTIONS].reshape(QUESTIONS, OPTIONS)
        contexts.append(stream[chosen[:, 0, None] + np.arange(-BEFORE, 0)])
        continuations.append(stream[chosen[:, :, None] + np.arange(AFTER)])
    return np.concatenate(contexts), np.concatenate(continuations)


@torch.no_grad()
def answer(model: TinyCausal, contexts: np.ndarray, continuations: np.ndarray) -> np.ndarray:
    """Mean log probability a byte of every continuation, shape (questions, OPTIONS)."""
    model.eval()
    before = contexts.shape[1]
    repeated = np.repeat(contexts[:, None], OPTIONS, axis=1)
    ids = torch.from_numpy(np.concatenate([repeated, continuations], axis=2).astype(np.int64)).flatten(0, 1)
    means = []
    for part in ids.split(SCORED_TOGETHER):
        log_p = F.log_softmax(model(part[:, :-1])[:, before - 1 :], dim=-1)
        means.append(log_p.gather(2, part[:, before:, None]).mean(dim=(1, 2)))
    return torch.cat(means).view(-1, OPTIONS).numpy()


def train_model(width: int, recipe: str, rate: float, pools: dict[str, bytes], asked: tuple) -> dict[str, np.ndarray]:
    model = TinyCausal(TinyConfig(width=width, context=CONTEXT), seed=0)
    contexts, continuations = asked
    spaces = np.full_like(contexts[:, :1], ord(" "))
    right, choices = [], []

    def measure(current: TinyCausal) -> float:
        log_p = answer(current, contexts, continuations)
        right.append(np.exp(log_p[:, 0]).astype(np.float16))
        choices.append((log_p - answer(current, spaces, continuations)).argmax(axis=1).astype(np.uint8))
        return 0.0

    plan = TrainConfig(BATCH, STEPS, rate, seed=0)
    train(model, training_stream(pools, recipe), plan, measure=measure, measure_at=CHECKPOINTS)
    return {"p": np.stack(right), "choice": np.stack(choices)}


def make_models(work: Path, jobs: int, index: int) -> None:
    rates = pd.read_csv(RATES).sort_values("loss").groupby("width")["rate"].first()
    pools, sources = texts()
    asked = questions(sources)
    work.mkdir(parents=True, exist_ok=True)
    for width, recipe in [(width, recipe) for width in WIDTHS for recipe in RECIPES][index::jobs]:
        path = work / f"{width}-{recipe}.npz"
        if path.exists():
            continue
        found = train_model(width, recipe, float(rates[width]), pools, asked)
        part = path.with_suffix(".part")
        with open(part, "wb") as stream:
            np.savez_compressed(stream, **found)
        part.replace(path)
        print(width, recipe, found["p"][-1].mean(), (found["choice"][-1] == 0).mean(), flush=True)


def pack(work: Path) -> None:
    """Join the finished models; every one of the grid must be there."""
    pools, sources = texts()
    contexts, _ = questions(sources)
    rows: dict[str, list] = {name: [] for name in ("p", "choice", "width", "recipe", "N", "step", "flops")}
    for width in WIDTHS:
        n_params = TinyConfig(width=width, context=CONTEXT).n_params
        for recipe in RECIPES:
            with np.load(work / f"{width}-{recipe}.npz", allow_pickle=False) as found:
                rows["p"].append(found["p"])
                rows["choice"].append(found["choice"])
            steps = np.array(CHECKPOINTS)
            rows["width"].append(np.full(len(steps), width))
            rows["recipe"].append(np.full(len(steps), recipe))
            rows["N"].append(np.full(len(steps), n_params))
            rows["step"].append(steps)
            rows["flops"].append(6.0 * n_params * BATCH * CONTEXT * steps)
    arrays = {name: np.concatenate(parts) for name, parts in rows.items()}
    arrays["source"] = np.repeat(SOURCES, QUESTIONS)
    np.savez_compressed(PACKED, **arrays)
    about = {
        "python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__, "context": CONTEXT,
        "batch": BATCH, "steps": STEPS, "rate": "per width, see tiny-lm-rates.csv", "recipes": RECIPES,
        "question": f"{BEFORE} bytes of context, {OPTIONS} continuations of {AFTER} bytes",
        "training_sha256": {name: hashlib.sha256(text).hexdigest() for name, text in pools.items()},
        "held_out_sha256": {name: hashlib.sha256(text).hexdigest() for name, text in sources.items()},
        "contexts_sha256": hashlib.sha256(contexts.tobytes()).hexdigest(),
    }
    ABOUT.write_text(json.dumps(about, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "pack"))
    parser.add_argument("--work", type=Path, default=Path("build/tiny-lm-items"), help="where finished models lie")
    parser.add_argument("--jobs", type=int, default=1, help="how many of these scripts share the models")
    parser.add_argument("--index", type=int, default=0, help="which of them this one is")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "train":
        make_models(options.work, options.jobs, options.index)
    else:
        pack(options.work)


if __name__ == "__main__":
    main()
