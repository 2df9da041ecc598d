"""What a measurement depends on: the code that its study imports, and the libraries it computes with.

The code is hashed by its abstract syntax, comments and docstrings apart: editing prose voids nothing. A tool imports no
method: its card says which kinds of its area's names it `reaches` through the catalogue, and their code counts as well.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["code_hash", "library_versions"]

# Modules of a method's folder that no measurement runs through.
_PROSE = {"command", "conformance"}
_DISTRIBUTIONS = {"sklearn": "scikit-learn", "flint": "python-flint", "crowdkit": "crowd-kit", "yaml": "PyYAML"}


@cache
def code_hash(package: str) -> str:
    """Hash of everything that the study of a method's package reaches, 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for name, path in sorted(_closure(package)[0].items()):
        digest.update(f"{name}\n{_syntax(path)}\n".encode())
    return digest.hexdigest()[:16]


@cache
def library_versions(package: str) -> dict[str, str]:
    """Versions of the installed libraries that the study's code imports, NumPy always among them."""
    found = {}
    for name in sorted(_closure(package)[1] | {"numpy"}):
        distribution = _DISTRIBUTIONS.get(name, name)
        try:
            found[distribution] = version(distribution)
        except PackageNotFoundError:
            continue
    return found


@cache
def _closure(package: str) -> tuple[dict[str, Path], frozenset[str]]:
    """Modules that the package's study reaches, by name, and the outside packages that they import."""
    base = package.partition(".")[0]
    waiting = [name for name in _submodules(package) if name.rpartition(".")[2] not in _PROSE]
    waiting += _reached(package)
    seen: dict[str, Path] = {}
    outside: set[str] = set()
    while waiting:
        name = waiting.pop()
        path = _file(name)
        if name in seen or path is None:
            continue
        seen[name] = path
        for imported in _imports(ast.parse(path.read_text(encoding="utf-8")), name, path):
            root = imported.partition(".")[0]
            if root in ("assay", base):
                waiting.append(imported)
            elif root not in sys.stdlib_module_names:
                outside.add(root)
    return seen, frozenset(outside)


def _submodules(package: str) -> list[str]:
    path = _file(package)
    if path is None:
        raise LookupError(f"no package is called {package}")
    return [package] + [
        f"{package}.{other.stem}" for other in sorted(path.parent.glob("*.py")) if other.stem != "__init__"
    ]


def _reached(package: str) -> list[str]:
    """Packages beside this one whose cards bring a kind of name that this one's card says it reaches."""
    path = _file(package)
    kinds = set(_card(path.parent).get("reaches", ())) if path else set()
    if path is None or not kinds:
        return []
    area = package.rpartition(".")[0]
    folders = sorted(card.parent for card in path.parent.parent.glob("*/card.toml") if card.parent != path.parent)
    return [f"{area}.{folder.name}" for folder in folders if kinds & set(_card(folder).get("kinds", {}).values())]


def _card(folder: Path) -> dict[str, Any]:
    card = folder / "card.toml"
    return tomllib.loads(card.read_text(encoding="utf-8")) if card.exists() else {}


def _imports(tree: ast.Module, name: str, path: Path) -> Iterator[str]:
    """Full names of the modules that a module imports anywhere, those behind lazy names included."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            module = ".".join(filter(None, (above, node.module)))
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names if _is_module(f"{module}.{alias.name}"))
        elif path.name == "__init__.py" and _names_module(word := _text(node), path):
            # The dictionary that `attach` is given: submodules named in it are reached by their names.
            yield f"{package}.{word}"


def _names_module(word: str, path: Path) -> bool:
    return word.isidentifier() and (path.parent / f"{word}.py").exists()


def _is_module(name: str) -> bool:
    return name.partition(".")[0] == "assay" and _file(name) is not None


@cache
def _file(name: str) -> Path | None:
    """The source file of a module, found without importing it (its parents' `__init__` are light)."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError):
        return None
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


@cache
def _syntax(path: Path) -> str:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and _text(first.value):
                node.body = node.body[1:]
    return ast.dump(tree)


def _text(node: ast.AST) -> str:
    """The value of a string constant, else nothing."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
