"""What stands outside the folder: oracle tests and a benchmark; and what the folder's modules may import."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.util import resolve_name
from pathlib import Path

from assay.catalogue import AREAS
from assay.conformance.check import Check
from assay.conformance.subject import Subject

__all__ = ["checks", "oracle_file", "oracles"]

ABOVE_METHODS = ("cli", "report", "runner", "store", "worker", "catalogue", "conformance", "skeleton")


def checks(subject: Subject) -> Iterator[Check]:
    """Oracle tests, the benchmark, the direction of imports."""
    yield Check("tests: oracles", partial(_has_oracles, subject))
    yield Check("tests: an oracle needs no mirror", partial(_independent, subject))
    yield Check("benchmark", partial(_benchmark, subject))
    yield Check("imports: own folder and below", partial(_imports, subject))


def oracles(path: Path) -> Mapping[str, bool]:
    """The `test_oracle_*` functions of a test file, and whether each needs a mirror of public data.

    One needs a mirror when it, or a fixture or function of the file that it uses, can skip with
    `data absent: ...`.

    Parameters
    ----------
    path : Path

    Returns
    -------
    mapping of str to bool
    """
    functions = {
        node.name: node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }

    def needs_mirror(name: str, seen: frozenset[str] = frozenset()) -> bool:
        used = _names(functions[name]) & functions.keys() - seen - {name}
        return _skips(functions[name]) or any(needs_mirror(other, seen | {name}) for other in used)

    return {name: needs_mirror(name) for name in functions if name.startswith("test_oracle_")}


def oracle_file(subject: Subject) -> Path:
    """The method's test file, in `tests/<area>` or in `tests`."""
    name = f"test_{subject.method.slug.replace('-', '_')}.py"
    nested, flat = (folder / name for folder in (subject.root / "tests" / subject.method.area, subject.root / "tests"))
    return flat if flat.exists() else nested


def _has_oracles(subject: Subject) -> None:
    path = oracle_file(subject)
    assert path.exists(), f"there is no tests/{subject.method.area}/{path.name}"
    assert oracles(path), f"{path.name} has no function test_oracle_*"


def _independent(subject: Subject) -> None:
    found = oracles(oracle_file(subject))
    assert not all(found.values()), "every oracle needs a data set that a fresh machine has not"


def _benchmark(subject: Subject) -> None:
    name = f"bench_{subject.method.slug.replace('-', '_')}.py"
    path = subject.root / "benchmarks" / name
    assert path.exists(), f"there is no benchmarks/{name}"
    body = ast.parse(path.read_text(encoding="utf-8")).body
    assert any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in body), f"{name} has no main()"


def _imports(subject: Subject) -> None:
    """A method imports no other method, and nothing that stands above it; a tool may reach the catalogue."""
    tool = set(subject.method.kinds.values()) == {"tool"}
    above = {f"assay.{name}" for name in ABOVE_METHODS if not (tool and name == "catalogue")}
    wrong = []
    for path, tree in subject.sources():
        for imported in _imported(tree, _package_of(subject, path)):
            other = _method_package(imported)
            if ".".join(imported.split(".")[:2]) in above or (other and other != subject.method.package):
                wrong.append(f"{path.name} imports {imported}")
    assert not wrong, "; ".join(wrong)


def _package_of(subject: Subject, path: Path) -> str:
    parts = path.parent.relative_to(subject.method.folder).parts
    return ".".join([subject.method.package, *parts])


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    """Absolute names of what a module imports, `from x import y` as both `x` and `x.y`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = f"{'.' * node.level}{node.module or ''}"
            module = resolve_name(name, package) if node.level else name
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _method_package(imported: str) -> str:
    """The method that an import reaches, as `assay.area.method`, by its folder or by a name that an area hands on."""
    import assay
    from assay.catalogue import methods

    parts = imported.split(".")
    if len(parts) < 3 or parts[0] != "assay" or parts[1] not in AREAS:
        return ""
    if (Path(assay.__path__[0]) / parts[1] / parts[2] / "card.toml").exists():
        return ".".join(parts[:3])
    owners = [method.package for method in methods().values() if method.area == parts[1] and parts[2] in method.public]
    return owners[0] if owners else ""


def _names(function: ast.FunctionDef) -> set[str]:
    """Names that a function uses: its fixtures, what it calls, what `usefixtures` gives it."""
    arguments = {argument.arg for argument in function.args.args}
    called = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    marks = {text for decorator in function.decorator_list for text in _texts(decorator)}
    return arguments | called | marks


def _skips(function: ast.FunctionDef) -> bool:
    return any(text.startswith("data absent") for text in _texts(function))


def _texts(tree: ast.AST) -> set[str]:
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
