"""A method that `assay new` wrote, in reach of its area, the catalogue and the data sets for the length of a test."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from assay import catalogue, datasets
from assay._lazy import attach_area
from assay.catalogue import Method, read_card
from assay.skeleton import write_skeleton

AREA = "structure"


def folder_of(root: Path, slug: str) -> Path:
    """Where the method's folder lies."""
    return root / "src" / "assay" / AREA / slug.replace("-", "_")


@contextmanager
def placed(root: Path, slug: str, kind: str, change: Callable[[Path], None] | None = None) -> Iterator[Method]:
    """Write a skeleton, change it, and let it be imported as `assay.structure.<slug>`."""
    write_skeleton(root, AREA, slug, kind)
    folder = folder_of(root, slug)
    if change is not None:
        change(folder)
    area = importlib.import_module(f"assay.{AREA}")
    package = f"assay.{AREA}.{folder.name}"
    others = catalogue._folders()
    sets = [*datasets.data_files(), folder / "data.toml"]
    with pytest.MonkeyPatch.context() as patch:
        lookup, listing, names = attach_area(area.__name__, str(folder.parent))
        patch.setattr(area, "__path__", [*area.__path__, str(folder.parent)])
        patch.setattr(area, "__getattr__", lookup)
        patch.setattr(area, "__dir__", listing)
        patch.setattr(area, "__all__", names)
        patch.setattr(datasets, "data_files", lambda: sets)
        patch.setattr(catalogue, "_folders", lambda: [*others, (folder, package)])
        _forget(package)
        try:
            yield read_card(folder, package)
        finally:
            _forget(package)
    _forget(package)


def _forget(package: str) -> None:
    """Drop the package's modules, what the area kept of it, and every cached look-up."""
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]
    area = importlib.import_module(package.rpartition(".")[0])
    for name, value in list(vars(area).items()):
        if getattr(value, "__module__", getattr(value, "__name__", "")).startswith(package):
            delattr(area, name)
    datasets.registry.cache_clear()
    catalogue.methods.cache_clear()
