"""Public names that import their module when they are first used, and folders found without an import.

A method's `__init__` says which module each name comes from; an area's `__init__` reads that from the
cards of its methods, so that adding a method edits no list.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

Attached = tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]


def attach(package: str, modules: Mapping[str, Sequence[str]]) -> Attached:
    """`__getattr__`, `__dir__` and `__all__` of a package whose names live in submodules.

    Parameters
    ----------
    package : str
        `__name__` of the package.
    modules : mapping of str to sequence of str
        Submodule (relative, without the dot) to the public names it holds.
    """
    origin = {name: f"{package}.{module}" for module, names in modules.items() for name in names}

    def getattr_(name: str) -> Any:
        if name not in origin:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(origin[name]), name)
        except ModuleNotFoundError as error:
            _explain(error, package)
            raise
        setattr(sys.modules[package], name, value)
        return value

    return getattr_, lambda: sorted(origin), sorted(origin)


def _explain(error: ModuleNotFoundError, package: str) -> None:
    """Where a method's module wants a package that is not installed: raise what names the method and the pip line."""
    missing = (error.name or "").partition(".")[0]
    card = Path(sys.modules[package].__path__[0]) / "card.toml"
    if missing not in ("", package.partition(".")[0]) and card.exists():
        from assay.errors import missing_extra

        facts = tomllib.loads(card.read_text(encoding="utf-8"))
        extras = [*facts.get("extras", ()), *facts.get("optional_extras", ())]
        raise missing_extra(missing, extras, facts["slug"]) from error


def attach_area(package: str, folder: str, shared: Mapping[str, Sequence[str]] | None = None) -> Attached:
    """Like `attach` for an area: the public names of its methods' cards, and of its shared modules."""
    modules: dict[str, Sequence[str]] = dict(shared or {})
    for card in sorted(Path(folder).glob("*/card.toml")):
        try:
            facts = tomllib.loads(card.read_text(encoding="utf-8"))
        except ValueError as error:
            from assay.errors import CardError

            raise CardError(f"{card}: {error}") from None
        modules[card.parent.name] = facts.get("public", ())
    return attach(package, modules)


def third_party_folders() -> list[tuple[Path, str]]:
    """Folder and package of each method that another distribution registers under `assay.methods`."""
    from assay.errors import CardError

    found = []
    for point in entry_points(group="assay.methods"):
        try:
            spec = find_spec(point.value)
        except ModuleNotFoundError:
            spec = None
        if spec is None or not spec.submodule_search_locations:
            raise CardError(f"the entry point {point.name} of assay.methods: there is no package {point.value}")
        found += [(Path(place), point.value) for place in spec.submodule_search_locations]
    return found
