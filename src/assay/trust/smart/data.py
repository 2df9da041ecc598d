"""The data sets of the study, and the classifiers whose logits are calibrated.

Each classifier is a small multilayer perceptron trained until it fits its few training rows: overconfident, as
trained networks are. Its logits on the remaining rows are what the study calibrates.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.datasets import load_dataset
from assay.study import Skip

from .inputs import log_probabilities

Array = NDArray[np.float64]
Labels = NDArray[np.intp]


@dataclass(frozen=True)
class Source:
    """Where the logits of a studied set come from.

    Attributes
    ----------
    entry : str
        Data set that is read; empty for the package index of this machine.
    largest : int
        Largest validation size: the rows after it are the test rows at every size.
    variant : str
        `long-tail`: a part of the set with long-tailed classes. `outputs`: the set holds logits or probabilities.
    change : str
        `rotated` or `noisy`: what is done to the test rows, validation rows being left alone.
    """

    entry: str
    largest: int = 3000
    variant: str = ""
    change: str = ""


SOURCES = {
    "letter": Source("letter"),
    "satimage": Source("satimage"),
    "penbased": Source("penbased"),
    "digits": Source("smart-digits", largest=500),
    "penbased-rotated": Source("penbased", change="rotated"),
    "digits-rotated": Source("smart-digits", largest=500, change="rotated"),
    "letter-long-tail": Source("letter", largest=1000, variant="long-tail"),
    "cifar10-vgg16": Source("cifar10-vgg16", variant="outputs"),
    "mnist": Source("mnist10k"),
    "mnist-rotated": Source("mnist10k", change="rotated"),
    "mnist-noisy": Source("mnist10k", change="noisy"),
    "debian-sections": Source("", variant="debian"),
    "smart-smoke": Source("smart-smoke", largest=500, variant="outputs"),
}


@dataclass(frozen=True)
class Recipe:
    """How the perceptron of a set is trained, and how many other rows are kept for the study."""

    train: int
    pool: int
    hidden: int = 100
    epochs: int = 200


RECIPES = {
    "letter": Recipe(train=4000, pool=8000),
    "letter-long-tail": Recipe(train=2000, pool=2500),
    "satimage": Recipe(train=1400, pool=5035),
    "penbased": Recipe(train=600, pool=8000, epochs=400),
    "smart-digits": Recipe(train=100, pool=1497, hidden=64, epochs=300),
    "debian-sections": Recipe(train=10000, pool=8000, epochs=40),
}
CNN_RECIPE = Recipe(train=2000, pool=7000, epochs=30)
# The most frequent class has a hundred times the rows of the rarest, as in the long-tailed versions of CIFAR.
IMBALANCE = 100.0
# Rotations of the shifted test rows, degrees; standard deviation of the noise, in units of the largest grey value.
LEAST_ANGLE, LARGEST_ANGLE, NOISE = 15.0, 45.0, 0.3


def pool_logits(entry: str, variant: str) -> dict[str, NDArray]:
    """Logits and labels of the rows that a freshly trained classifier has not seen; the work of the study's step."""
    if variant == "debian":
        return train_and_score(*debian_sections(), RECIPES["debian-sections"])
    rows = load_dataset(entry)
    if entry == "mnist10k":
        return train_and_score_cnn(rows["images"], rows["labels"].astype(np.intp), CNN_RECIPE)
    if variant == "long-tail":
        kept = long_tail(rows["y"])
        return train_and_score(rows["x"][kept], rows["y"][kept], RECIPES[f"{entry}-long-tail"])
    changes = {"penbased": rotate_strokes, "smart-digits": rotate_pictures}
    changed = {"rotated": changes[entry]} if entry in changes else {}
    return train_and_score(rows["x"], rows["y"], RECIPES[entry], changed)


def given_logits(entry: str) -> dict[str, NDArray]:
    """Logits and labels of a set that holds a classifier's outputs."""
    arrays = load_dataset(entry)
    logits = arrays["logits"] if "logits" in arrays else log_probabilities(arrays["probs"].astype(np.float64))
    return {"logits": logits.astype(np.float64), "y": arrays["labels"].astype(np.intp)}


def read_keel(path: Path) -> dict[str, NDArray]:
    """Features `x` [n, d] and labels `y` [n] in 0..K-1 of a KEEL table: comma-separated, the class last."""
    import pandas as pd

    table = pd.read_csv(path, header=None, skipinitialspace=True)
    _, y = np.unique(table.iloc[:, -1].to_numpy(), return_inverse=True)
    return {"x": table.iloc[:, :-1].to_numpy(dtype=np.float64), "y": y.astype(np.intp)}


def digits() -> dict[str, NDArray]:
    """scikit-learn's digits: pixels `x` [1797, 64] in 0..16 and labels `y`."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return {"x": x.astype(np.float64), "y": y.astype(np.intp)}


def debian_sections() -> tuple[Array, Labels]:
    """Descriptions of the Debian packages known to this machine as 100 features, and their sections.

    Sections of fewer than 15 packages are left out. The features are the leading singular vectors of TF-IDF.
    """
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    packages = dict(_debian_packages())
    _, codes, counts = np.unique(
        [section for section, _ in packages.values()], return_inverse=True, return_counts=True
    )
    kept = np.flatnonzero(counts[codes] >= 15)
    if len(kept) < RECIPES["debian-sections"].train + RECIPES["debian-sections"].pool:
        raise Skip("apt-cache knows too few packages here: its lists are not on this machine")
    texts = [text for _, text in packages.values()]
    words = TfidfVectorizer(max_features=20_000, sublinear_tf=True).fit_transform([texts[row] for row in kept])
    features = TruncatedSVD(100, random_state=0).fit_transform(words)
    return features, np.unique(codes[kept], return_inverse=True)[1]


def _debian_packages() -> Iterator[tuple[str, tuple[str, str]]]:
    """Name, section and first description of every package in the lists of apt."""
    if shutil.which("apt-cache") is None:
        raise Skip("apt-cache is not on this machine")
    listed = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, timeout=120, check=False)
    for block in listed.stdout.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Section|Description(?:-en)?): (.*(?:\n .*)*)", block, flags=re.MULTILINE))
        text = fields.get("Description-en", fields.get("Description", ""))
        if "Package" in fields and "Section" in fields and text:
            yield fields["Package"], (fields["Section"].rpartition("/")[2], text)


def train_and_score(
    x: Array, y: Labels, recipe: Recipe, changes: Mapping[str, Callable[[Array], Array]] | None = None
) -> dict[str, NDArray]:
    """Train a perceptron on the first rows of a fixed shuffle; return `logits` and `y` of the pool.

    `changes` maps a name to a change of the features: the changed pool's logits come under ``logits_<name>``.
    """
    train, pool = _train_and_pool(len(x), recipe)
    centre, spread = x[train].mean(axis=0), x[train].std(axis=0)
    # A pixel that is blank in all training rows must not blow up when a rotation puts ink there.
    scale = np.where(spread > 0, spread, 1.0)
    model = _perceptron(recipe).fit((x[train] - centre) / scale, y[train])
    out = {"logits": perceptron_logits(model, (x[pool] - centre) / scale), "y": y[pool]}
    for name, change in (changes or {}).items():
        out[f"logits_{name}"] = perceptron_logits(model, (change(x[pool]) - centre) / scale)
    return out


def train_and_score_cnn(images: NDArray, y: Labels, recipe: Recipe) -> dict[str, NDArray]:
    """The same with a small convolutional network (torch) on square pictures of bytes, overconfident on purpose."""
    if find_spec("torch") is None:
        raise Skip("torch is not installed")
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    train, pool = _train_and_pool(len(images), recipe)
    pixels = images.astype(np.float32).reshape(len(images), -1) / 255.0
    model = nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3),
        nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(800, recipe.hidden), nn.ReLU(),
        nn.Linear(recipe.hidden, 10),
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, target = torch.from_numpy(pixels[train]), torch.from_numpy(y[train])
    for _ in range(recipe.epochs):
        for batch in torch.randperm(len(x)).split(100):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), target[batch]).backward()
            optimiser.step()

    @torch.no_grad()
    def logits(rows: NDArray) -> Array:
        return model(torch.from_numpy(rows.astype(np.float32))).double().numpy()

    noise = np.random.default_rng(2).normal(0.0, NOISE, (len(pool), pixels.shape[1]))
    return {
        "logits": logits(pixels[pool]), "y": y[pool],
        "logits_rotated": logits(rotate_pictures(pixels[pool].astype(np.float64))),
        "logits_noisy": logits(np.clip(pixels[pool] + noise, 0.0, 1.0)),
    }


def _train_and_pool(n: int, recipe: Recipe) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    order = np.random.default_rng(0).permutation(n)
    return order[: recipe.train], order[recipe.train : recipe.train + recipe.pool]


def perceptron_logits(model: Any, x: Array) -> Array:
    """Output of the last layer before the softmax, whose probabilities would round to zero and one."""
    for weights, bias in zip(model.coefs_[:-1], model.intercepts_[:-1], strict=True):
        x = np.maximum(x @ weights + bias, 0.0)
    return x @ model.coefs_[-1] + model.intercepts_[-1]


def long_tail(y: Labels) -> NDArray[np.intp]:
    """Rows of a subset whose class frequencies fall geometrically by a factor of 100 from class 0 to class K-1."""
    random = np.random.default_rng(0)
    n_classes = int(y.max()) + 1
    largest = np.bincount(y).min()
    kept = []
    for k in range(n_classes):
        rows = random.permutation(np.flatnonzero(y == k))
        kept.append(rows[: round(largest * IMBALANCE ** (-k / (n_classes - 1)))])
    return np.concatenate(kept)


def rotate_strokes(x: Array) -> Array:
    """Pen trajectories (x1, y1, .., x8, y8 in 0..100), each row rotated about the middle by 15 to 45 degrees."""
    angle = np.deg2rad(_angles(len(x)))[:, None]
    across, up = x[:, 0::2] - 50.0, x[:, 1::2] - 50.0
    turned = np.empty_like(x)
    turned[:, 0::2] = 50.0 + np.cos(angle) * across - np.sin(angle) * up
    turned[:, 1::2] = 50.0 + np.sin(angle) * across + np.cos(angle) * up
    return turned


def rotate_pictures(x: Array) -> Array:
    """Square grey pictures as rows of pixels, each rotated by 15 to 45 degrees (bilinear, black outside)."""
    from scipy.ndimage import rotate

    side = round(x.shape[1] ** 0.5)
    pictures = x.reshape(-1, side, side)
    turned = [rotate(p, angle, reshape=False, order=1) for p, angle in zip(pictures, _angles(len(x)), strict=True)]
    return np.reshape(turned, x.shape)


def _angles(n: int) -> Array:
    random = np.random.default_rng(1)
    return random.uniform(LEAST_ANGLE, LARGEST_ANGLE, n) * random.choice([-1.0, 1.0], n)


def _perceptron(recipe: Recipe) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    # The number of epochs is the recipe's: training goes on after the training rows are fitted.
    warnings.filterwarnings("ignore", category=ConvergenceWarning)
    return MLPClassifier(
        (recipe.hidden,), alpha=0.0, batch_size=100, learning_rate_init=3e-3, max_iter=recipe.epochs, tol=0.0,
        n_iter_no_change=recipe.epochs, random_state=0,
    )
