"""What the checks look at: a method, its package, its sources, and what its `conformance.py` declares."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from assay.catalogue import Method
from assay.conformance.check import Excused
from assay.errors import nearest

__all__ = ["ENTRY_KEYS", "Entry", "Subject"]

_EVERY = {"bad", "excuse", "tolerance"}
_ESTIMATOR = _EVERY | {"make", "fit", "use", "sklearn_checks", "expected_failed_checks"}
ENTRY_KEYS = {
    "estimator": _ESTIMATOR,
    "law": _ESTIMATOR | {"monotone", "budgets", "optimal"},
    "function": _EVERY | {"inputs"},
    "solver": _EVERY | {"system"},
    "optimiser": _EVERY | {"problem", "make", "trajectory"},
    "schedule": _EVERY | {"make", "rate", "rates"},
    "module": _EVERY | {"config", "inputs"},
    "sampler": _EVERY | {"make", "draw", "callback"},
    "hook": _EVERY | {"model", "inputs", "attach"},
    "environment": _EVERY | {"make"},
    "policy": _EVERY | {"make", "observations", "act", "space"},
    "tool": _EVERY | {"run"},
}


class Entry:
    """What `CHECKS` holds for one public name; a key that is needed and missing is a failure by name."""

    def __init__(self, name: str, fields: Mapping[str, Any]) -> None:
        self.name = name
        self.fields = fields

    def __getitem__(self, key: str) -> Any:
        if key not in self.fields:
            raise AssertionError(f"conformance.py: CHECKS[{self.name!r}] lacks the key {key!r}")
        return self.fields[key]

    def get(self, key: str, default: Any = None) -> Any:
        return self.fields.get(key, default)

    def excuse(self, check: str) -> None:
        """Raise `Excused` where the method excuses the check."""
        if reason := self.get("excuse", {}).get(check):
            raise Excused(reason)


class Subject:
    """A method under check; everything that several checks need is made once."""

    def __init__(self, method: Method, root: Path | None = None) -> None:
        self.method = method
        self._root = root

    @cached_property
    def package(self) -> ModuleType:
        return importlib.import_module(self.method.package)

    @cached_property
    def home(self) -> str:
        """The package that users import from: the area's for a method of assay, else its own."""
        own = self.method.package.startswith("assay.")
        return f"assay.{self.method.area}" if own else self.method.package

    @cached_property
    def root(self) -> Path:
        """The repository that holds the method's tests and benchmark."""
        if self._root is not None:
            return self._root
        for folder in self.method.folder.resolve().parents:
            if (folder / "pyproject.toml").exists():
                return folder
        raise AssertionError("no folder above the method holds a pyproject.toml: pass `root`")

    def sources(self) -> Iterator[tuple[Path, ast.Module]]:
        """The folder's modules with their syntax trees."""
        for path in sorted(self.method.folder.rglob("*.py")):
            yield path, ast.parse(path.read_text(encoding="utf-8"))

    @cached_property
    def entries(self) -> Mapping[str, Mapping[str, Any]]:
        """`CHECKS` of the method's `conformance.py`."""
        return self.method.load("conformance").CHECKS

    def entry(self, name: str) -> Entry:
        if name not in self.entries:
            raise AssertionError(f"conformance.py: CHECKS has no entry for {name}")
        return Entry(name, self.entries[name])


def unknown_keys(kind: str, name: str, fields: Mapping[str, Any]) -> list[str]:
    """Complaints about keys that no check of the kind reads."""
    known = ENTRY_KEYS[kind]
    unread = sorted(set(fields) - known)
    return [f"{name}: no check of kind {kind} reads {key!r}{nearest(key, sorted(known))}" for key in unread]
