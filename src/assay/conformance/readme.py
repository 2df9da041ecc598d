"""The method's page has its sections, and its Python runs as printed."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from functools import partial

from assay.conformance.check import Check
from assay.conformance.docs import run_examples
from assay.conformance.subject import Subject

__all__ = ["checks"]

HEADINGS = {
    "when to use it and when not": r"when",
    "the interface from Python": r"python|interface",
    "the command": r"command|shell",
    "what was measured": r"measured",
    "where we leave the paper": r"paper",
    "bad input": r"bad input",
    "peers": r"peers",
}
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def checks(subject: Subject) -> Iterator[Check]:
    """README.md: its headings, its Python, its command."""
    yield Check("readme: sections", partial(_sections, subject))
    yield Check("readme: python runs as printed", partial(_python, subject))
    yield Check("readme: command", partial(_command, subject))


def _sections(subject: Subject) -> None:
    prose = _FENCE.sub("", subject.method.readme)
    headings = [line.lstrip("# ").lower() for line in prose.splitlines() if line.startswith("#")]
    missing = [
        what for what, pattern in HEADINGS.items() if not any(re.search(pattern, heading) for heading in headings)
    ]
    assert not missing, f"README.md has no heading for: {'; '.join(missing)}"
    paragraph = prose.partition("\n")[2].strip().partition("\n\n")[0]
    assert len(paragraph) >= 40 and not paragraph.startswith("#"), "README.md does not begin with what it solves"


def _python(subject: Subject) -> None:
    blocks = [text for language, text in _FENCE.findall(subject.method.readme) if language == "python"]
    assert blocks, "README.md has no python block"
    parser = doctest.DocTestParser()
    globs: dict[str, object] = {}
    examples = 0
    for number, block in enumerate(blocks, 1):
        test = parser.get_doctest(block, globs, f"README.md, python block {number}", "README.md", 0)
        examples += len(test.examples)
        test.globs = globs
        _run(test)
    assert examples, "README.md shows no >>> lines with their output"


def _run(test: doctest.DocTest) -> None:
    # The runner clears the namespace that it used: later blocks go on from a copy.
    shared, test.globs = test.globs, _Kept(test.globs)
    run_examples(test)
    shared.update(test.globs)


class _Kept(dict):
    """A namespace that `clear` leaves as it is."""

    def clear(self) -> None:
        return


def _command(subject: Subject) -> None:
    blocks = [text for language, text in _FENCE.findall(subject.method.readme) if language != "python"]
    wanted = f"assay run {subject.method.slug}"
    assert any(wanted in block for block in blocks), f"README.md shows no shell block with `{wanted}`"
