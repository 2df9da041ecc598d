"""Home sets: scikit-learn's digits, and the source of Python's own library as bytes."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["digits", "python_source"]

SOURCE_BYTES = 400_000
FILES = (
    "argparse.py",
    "ast.py",
    "dataclasses.py",
    "datetime.py",
    "decimal.py",
    "difflib.py",
    "doctest.py",
    "inspect.py",
)


def digits() -> dict[str, NDArray]:
    """1,797 images (n, 64), standardised by their one mean and deviation, and labels, in one fixed random order."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images = (images - images.mean()) / images.std()
    return {"images": images[order].astype(np.float32), "labels": labels[order].astype(np.int64)}


def python_source() -> dict[str, NDArray]:
    """The first 400,000 ASCII bytes of eight modules of Python's library, in the order of their names."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = b"\n".join((folder / name).read_bytes() for name in FILES if (folder / name).exists())
    codes = np.frombuffer(text, dtype=np.uint8)
    return {"bytes": codes[codes < 128][:SOURCE_BYTES].astype(np.int64)}
