"""`assay run SLUG` works on its own example, and refuses bad input with one line, leaving nothing half-written."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_type_hints

from assay.conformance.check import Check, Excused
from assay.conformance.offline import offline
from assay.conformance.subject import Subject
from assay.errors import AssayError

__all__ = ["Run", "checks", "run_command"]

GARBAGE = bytes(range(256)) * 8


class Run:
    """What a command did: `code` is 0, or 2 with `error`, the line that a user reads."""

    def __init__(self, code: int, output: str, error: str = "") -> None:
        self.code = code
        self.output = output
        self.error = error


def run_command(subject: Subject, argv: list[str]) -> Run:
    """Call the method's `run` with command-line words, as `assay run SLUG` does; a traceback is a failure."""
    import click
    import typer

    app = typer.Typer(add_completion=False)
    app.command()(subject.method.command().run)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), offline():
            code = typer.main.get_command(app).main(argv, prog_name=subject.method.slug, standalone_mode=False)
    except AssayError as error:
        return Run(2, printed.getvalue(), str(error))
    except (click.exceptions.Exit, SystemExit) as stop:
        return Run(int(getattr(stop, "exit_code", getattr(stop, "code", 1)) or 0), printed.getvalue())
    except Exception as error:
        if hasattr(error, "format_message"):
            return Run(2, printed.getvalue(), error.format_message())
        raise AssertionError(f"a traceback instead of one line: {type(error).__name__}: {error}") from error
    return Run(int(code or 0), printed.getvalue())


def checks(subject: Subject) -> Iterator[Check]:
    """The command's options, its example, and bad input of every sort in the place of each input file."""
    example = _Example(subject)
    yield Check("command: options", partial(_options, subject))
    yield Check("command: example", partial(_works, example))
    for name, spoil in SPOILERS.items():
        yield Check(f"command: refuses {name}", partial(_refuses, example, spoil))
    yield Check("command: refuses an out that is a file", partial(_out_is_file, example))


class _Example:
    """The method's example input, written once; each run gets a copy in a folder of its own."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    @cached_property
    def written(self) -> tuple[list[str], dict[str, bytes]]:
        """The words of the command line with relative file names, and the files' contents."""
        with TemporaryDirectory() as name:
            folder = Path(name).resolve()
            with offline():
                argv = self.subject.method.command().example(folder)
            assert isinstance(argv, list) and all(isinstance(word, str) for word in argv), "example gives a list of str"
            files = {
                str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
            }
            return [word.replace(f"{folder}{os.sep}", "") for word in argv], files

    @property
    def inputs(self) -> list[str]:
        """The files that the command line names."""
        argv, files = self.written
        return [name for name in files if any(word == name or word.endswith(f"={name}") for word in argv)]

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """A fresh folder with the example's files, and the process inside it."""
        with TemporaryDirectory() as name:
            folder = Path(name).resolve()
            for file, content in self.written[1].items():
                path = folder / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            with contextlib.chdir(folder):
                yield folder


def _options(subject: Subject) -> None:
    """Every option has a type and a help text, and the folder of the results is relative by default."""
    run = subject.method.command().run
    hints = get_type_hints(run, include_extras=True)
    for name, parameter in inspect.signature(run).parameters.items():
        assert name in hints, f"the option {name} has no type"
        texts = [getattr(extra, "help", None) for extra in getattr(hints[name], "__metadata__", ())]
        assert any(texts), f"the option {name} has no help text"
        if name == "out":
            default = parameter.default
            assert isinstance(default, Path) and not default.is_absolute(), "out has no relative path as default"
    assert (run.__doc__ or "").strip(), "`run` has no docstring: its first line is the command's help"


def _works(example: _Example) -> None:
    argv, files = example.written
    with example.folder() as folder:
        done = run_command(example.subject, argv)
        assert done.code == 0, f"exit code {done.code}: {done.error}"
        assert done.output.strip(), "nothing was printed"
        written = _contents(folder)
        assert {name: written.get(name) for name in files} == files, "an input file was changed"
        results = {name: content for name, content in written.items() if name not in files and content is not None}
        assert results, "no result was written"
        empty = [name for name, content in results.items() if not content]
        assert not empty, f"an empty result was written: {', '.join(empty)}"


def _refuses(example: _Example, spoil: Callable[[Path], bool]) -> None:
    """Each input file in turn is spoilt; the answer is one line, code 2, and nothing new on disk."""
    argv, _ = example.written
    tried = 0
    for name in example.inputs:
        with example.folder() as folder:
            if spoil(folder / name):
                tried += 1
                _expect_refusal(example, argv, folder, name)
    if not example.inputs:
        raise Excused("the example names no input file")
    if not tried:
        raise Excused(f"no way to spoil {', '.join(example.inputs)} so")


def _expect_refusal(example: _Example, argv: list[str], folder: Path, what: str) -> None:
    before = _contents(folder)
    done = run_command(example.subject, argv)
    assert done.code == 2, f"{what}: exit code {done.code}, expected 2; printed {done.output.strip()[-200:]!r}"
    assert done.error.strip(), f"{what}: refused without a word"
    assert len(done.error.strip().splitlines()) == 1, f"{what}: more than one line: {done.error!r}"
    assert _contents(folder) == before, f"{what}: something was written although the input was refused"


def _out_is_file(example: _Example) -> None:
    if "out" not in inspect.signature(example.subject.method.command().run).parameters:
        raise Excused("the command has no option --out")
    with example.folder() as folder:
        (folder / "taken").write_text("a file", encoding="utf-8")
        _expect_refusal(example, [*example.written[0], "--out", "taken"], folder, "--out")


def _contents(folder: Path) -> dict[str, bytes | None]:
    """Files by relative path with their contents, folders with None."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def _missing(path: Path) -> bool:
    path.unlink()
    return True


def _empty(path: Path) -> bool:
    path.write_bytes(b"")
    return True


def _garbage(path: Path) -> bool:
    path.write_bytes(GARBAGE)
    return True


def _truncated(path: Path) -> bool:
    """A binary or JSON file loses its second half, a table all but the first field of its last row."""
    content = path.read_bytes()
    if path.suffix in (".npz", ".npy", ".json", ".gz"):
        path.write_bytes(content[: len(content) // 2])
        return True
    head, _, last = content.rstrip().rpartition(b"\n")
    if path.suffix != ".csv" or b"," not in last:
        return False
    path.write_bytes(head + b"\n" + last.partition(b",")[0] + b"\n")
    return True


def _wrong_columns(path: Path) -> bool:
    """Columns, keys or the number of dimensions are not those that are read."""
    import numpy as np

    if path.suffix == ".csv":
        header, _, rows = path.read_bytes().partition(b"\n")
        names = [b"unexpected_%d" % number for number in range(header.count(b",") + 1)]
        path.write_bytes(b",".join(names) + b"\n" + rows)
    elif path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            held: dict[str, Any] = {f"unexpected_{number}": arrays[key] for number, key in enumerate(arrays.files)}
        np.savez(path, **held)
    elif path.suffix == ".npy":
        np.save(path, np.load(path, allow_pickle=False)[..., None, None])
    elif path.suffix == ".json":
        path.write_text('{"unexpected": 1}', encoding="utf-8")
    else:
        return False
    return True


SPOILERS: dict[str, Callable[[Path], bool]] = {
    "a missing file": _missing, "an empty file": _empty, "binary garbage": _garbage, "a truncated file": _truncated,
    "wrong columns": _wrong_columns,
}
