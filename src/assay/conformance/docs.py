"""Docstrings match signatures and show an example that runs; every module teaches what it holds."""

from __future__ import annotations

import ast
import contextlib
import doctest
import inspect
import io
import re
import sys
from collections.abc import Iterator
from functools import partial
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from assay.conformance.check import Check, Excused
from assay.conformance.offline import offline
from assay.conformance.subject import Subject

__all__ = ["checks", "documented", "run_examples", "sections"]

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def checks(subject: Subject) -> Iterator[Check]:
    """Module docstrings, then the docstring of each exported name."""
    yield Check("docs: modules", partial(_modules, subject))
    for name in subject.package.__all__:
        yield Check(f"{name}: docstring", partial(_sections, subject, name))
        yield Check(f"{name}: documented source", partial(_source, subject, name))
        yield Check(f"{name}: doctest", partial(_doctest, subject, name))


def _modules(subject: Subject) -> None:
    bare = [path.name for path, tree in subject.sources() if not ast.get_docstring(tree)]
    assert not bare, f"no module docstring: {', '.join(bare)}"


def _sections(subject: Subject, name: str) -> None:
    """A summary; `Parameters` as in the signature; `Returns`, `Raises` where they are due."""
    thing = getattr(subject.package, name)
    text = inspect.getdoc(thing) or ""
    assert _own_docstring(thing) and text.strip(), f"{name} has no docstring"
    assert len(text.splitlines()) == 1 or not text.splitlines()[1].strip(), f"{name}: no summary line of its own"
    if not _takes_input(thing):
        return
    found = sections(text)
    expected, given = _signature(thing), documented(found.get("Parameters", found.get("Attributes", "")))
    assert given == expected, f"{name}: the docstring documents {given}, the signature has {expected}"
    if inspect.isfunction(thing):
        returns = inspect.signature(thing).return_annotation not in (None, "None")
        assert not returns or {"Returns", "Yields"} & set(found), f"{name}: no section Returns"
    else:
        bare = [method for method, function in _public_methods(thing) if not inspect.getdoc(function)]
        assert not bare, f"{name}: no docstring on {', '.join(bare)}"
    if name in subject.method.kinds:
        texts = [text] + [inspect.getdoc(function) or "" for _, function in _public_methods(thing)]
        raises = [sections(each).get("Raises", "") for each in texts]
        assert any("Error" in section for section in raises), f"{name}: no section Raises names what bad input gives"


def _source(subject: Subject, name: str) -> None:
    """The paper's arXiv id, or `reconstructed`, in the docstring or in that of the module."""
    arxiv = subject.method.paper.arxiv
    if not arxiv:
        raise Excused("the paper has no arXiv id")
    thing = getattr(subject.package, name)
    text = f"{inspect.getdoc(thing) or ''} {_module(subject, thing).__doc__ or ''}"
    assert arxiv in text or "reconstructed" in text.lower(), f"{name}: names neither arXiv {arxiv} nor `reconstructed`"


def _doctest(subject: Subject, name: str) -> None:
    thing = getattr(subject.package, name)
    if not _takes_input(thing):
        raise Excused("an exception, a protocol or a constant")
    module = _module(subject, thing)
    tests = doctest.DocTestFinder().find(thing, name, module=module, globs=dict(vars(module)))
    examples = [test for test in tests if test.examples]
    assert examples, f"{name} has no doctest"
    for test in examples:
        run_examples(test)


def run_examples(test: doctest.DocTest) -> None:
    """Run the examples; what is printed must be what stands there."""
    report = io.StringIO()
    with TemporaryDirectory() as folder, contextlib.chdir(folder), offline():
        failed = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=report.write).failed
    assert not failed, f"{test.name}: {report.getvalue().strip()}"


def sections(text: str) -> dict[str, str]:
    """Sections of a NumPy-style docstring: title to text.

    >>> sections("Add.\\n\\nParameters\\n----------\\na : int\\n")["Parameters"].strip()
    'a : int'
    """
    parts = re.split(r"^(\w[\w ]*)\n-{3,}$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def documented(section: str) -> list[str]:
    """Names in a `Parameters` section, stars taken off.

    >>> documented("a, b : int\\n    Two.\\n*rest\\n    More.")
    ['a', 'b', 'rest']
    """
    heads = [line.partition(" : ")[0] for line in section.splitlines() if line.strip() and not line[0].isspace()]
    return [name.strip().lstrip("*") for head in heads for name in head.split(",")]


def _signature(thing: Any) -> list[str]:
    names = list(inspect.signature(thing).parameters)
    return [name for name in names if name != "self"]


def _takes_input(thing: Any) -> bool:
    """Functions and classes that a user calls; not exceptions, protocols or constants."""
    if inspect.isclass(thing):
        return not issubclass(thing, BaseException) and not getattr(thing, "_is_protocol", False)
    return inspect.isroutine(thing)


def _own_docstring(thing: Any) -> bool:
    """A class's own docstring, not one that it inherits."""
    return bool(vars(thing).get("__doc__")) if inspect.isclass(thing) else bool(getattr(thing, "__doc__", None))


def _public_methods(thing: Any) -> list[tuple[str, Any]]:
    if not inspect.isclass(thing):
        return []
    held = [(name, getattr(thing, name)) for name in vars(thing) if not name.startswith("_")]
    return [(name, value) for name, value in held if inspect.isroutine(value)]


def _module(subject: Subject, thing: Any) -> ModuleType:
    return sys.modules[getattr(thing, "__module__", subject.method.package)]
