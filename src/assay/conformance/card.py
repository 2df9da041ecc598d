"""The card is complete, and true to the code; the folder holds what a method's folder must."""

from __future__ import annotations

import ast
import importlib
import tomllib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from assay.conformance.check import Check
from assay.conformance.kinds import labels
from assay.conformance.subject import Subject, unknown_keys
from assay.errors import DataUnavailable

__all__ = ["FILES", "checks"]

FILES = ("__init__.py", "card.toml", "data.toml", "study.py", "command.py", "conformance.py", "README.md")
SLICE_BYTES = 50_000


def checks(subject: Subject) -> Iterator[Check]:
    """The card's fields, names, kinds and usage; the folder's files and data sets; the entries of `conformance.py`."""
    for name, check in {
        "files": _files, "fields": _fields, "kinds": _kinds, "exported names": _exported, "handed on": _handed_on,
        "usage": _usage, "data sets": _data_sets, "conformance entries": _entries,
    }.items():
        yield Check(f"card: {name}", partial(check, subject))


def _files(subject: Subject) -> None:
    missing = [name for name in FILES if not (subject.method.folder / name).exists()]
    assert not missing, f"the folder lacks {', '.join(missing)}"


def _fields(subject: Subject) -> None:
    from assay.conformance.schemas import CardModel

    CardModel.model_validate(_toml(subject, "card.toml"))


def _kinds(subject: Subject) -> None:
    outside = set(subject.method.kinds) - set(subject.package.__all__)
    assert not outside, f"[kinds] names what `__all__` does not export: {', '.join(sorted(outside))}"


def _exported(subject: Subject) -> None:
    """`__all__` is what is exported: every name resolves, none twice, and `dir` shows no more."""
    names = list(subject.package.__all__)
    assert len(set(names)) == len(names), "a name stands twice in `__all__`"
    assert set(dir(subject.package)) >= set(names), "`dir` of the package hides names of `__all__`"
    absent = [name for name in names if not hasattr(subject.package, name)]
    assert not absent, f"`__all__` names what the package does not hold: {', '.join(absent)}"


def _handed_on(subject: Subject) -> None:
    home = importlib.import_module(subject.home)
    missing = [name for name in subject.method.public if name not in home.__all__]
    assert not missing, f"`{subject.home}.__all__` lacks {', '.join(missing)}"
    for name in subject.method.public:
        assert getattr(home, name) is getattr(subject.package, name), f"{subject.home}.{name} is another object"


def _usage(subject: Subject) -> None:
    """The API in three lines: valid Python that imports public names from where users import them."""
    usage = subject.method.usage.strip()
    statements = ast.parse(usage).body
    assert len(usage.splitlines()) <= 5, "usage has more than five lines"
    imported = {
        alias.name
        for node in statements if isinstance(node, ast.ImportFrom) and node.module == subject.home
        for alias in node.names
    }
    assert imported, f"usage imports nothing from {subject.home}"
    assert imported <= set(subject.package.__all__), f"usage imports {', '.join(sorted(imported))}, not all exported"


def _data_sets(subject: Subject) -> None:
    from assay.conformance.schemas import DataModel
    from assay.datasets import entry

    for name, fields in _toml(subject, "data.toml").items():
        model = DataModel.model_validate(fields)
        if model.prepare:
            module, _, function = model.prepare.partition(":")
            prepare = getattr(importlib.import_module(module), function, None)
            assert callable(prepare), f"{name}: {model.prepare} is no function"
        if model.kind in ("ours", "slice"):
            _committed(name)
        if model.kind == "slice":
            entry(str(model.of))
            size = (subject.method.folder / str(model.file)).stat().st_size
            assert size <= SLICE_BYTES, f"{name}: a slice has at most {SLICE_BYTES} bytes, {model.file} has {size}"


def _committed(name: str) -> None:
    """The file lies in the folder, with the checksum of the entry."""
    from assay.datasets import local_file

    try:
        local_file(name)
    except DataUnavailable as error:
        raise AssertionError(str(error)) from error


def _entries(subject: Subject) -> None:
    kinds, entries = subject.method.kinds, subject.entries
    missing, extra = set(kinds) - set(entries), set(entries) - set(kinds)
    assert not missing, f"CHECKS has no entry for {', '.join(sorted(missing))}"
    assert not extra, f"CHECKS has entries that [kinds] does not name: {', '.join(sorted(extra))}"
    wrong = [text for name, kind in kinds.items() for text in unknown_keys(kind, name, entries[name])]
    wrong += [text for name, kind in kinds.items() for text in _idle_excuses(kind, name, entries[name])]
    assert not wrong, "; ".join(wrong)


def _idle_excuses(kind: str, name: str, fields: Mapping[str, Any]) -> list[str]:
    """Complaints about excuses that name no check, or give no reason."""
    excuses = fields.get("excuse", {})
    idle = [f"{name}: no check of kind {kind} is called {check!r}" for check in excuses if check not in labels(kind)]
    return idle + [f"{name}: the excuse for {check!r} has no reason" for check, why in excuses.items() if not why]


def _toml(subject: Subject, name: str) -> dict:
    return tomllib.loads((subject.method.folder / name).read_text(encoding="utf-8"))
