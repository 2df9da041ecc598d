"""What a measurement's code is: all that its study imports, and what a tool reaches through the catalogue."""

import importlib
import sys

import pytest

from assay import fingerprint


@pytest.fixture
def area(tmp_path, monkeypatch):
    """A package of an area with two methods, of which a tool imports neither."""
    root = tmp_path / "toyarea"
    files = {
        "__init__.py": "",
        "law/__init__.py": 'from assay._lazy import attach\nattach(__name__, {"formula": ["Law"]})\n',
        "law/formula.py": "Law = 1\n", "law/study.py": "STUDY = 1\n", "law/card.toml": '[kinds]\nLaw = "law"\n',
        "other/__init__.py": "", "other/card.toml": '[kinds]\nOther = "function"\n',
        "tool/__init__.py": "", "tool/study.py": "STUDY = 2\n",
        "tool/card.toml": 'reaches = ["law"]\n[kinds]\nask = "tool"\n',
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))

    def hash_with(name: str, text: str) -> str:
        (root / name).write_text(text, encoding="utf-8")
        for cached in (fingerprint.code_hash, fingerprint._closure, fingerprint._syntax, fingerprint._file):
            cached.cache_clear()
        importlib.invalidate_caches()
        return fingerprint.code_hash("toyarea.tool")

    yield hash_with
    for name in [name for name in sys.modules if name.startswith("toyarea")]:
        del sys.modules[name]


def test_a_law_that_a_tool_reaches_by_name_counts_as_its_code(area):
    before = area("law/formula.py", "Law = 1\n")
    assert area("law/formula.py", '"""Words."""\nLaw = 1  # a comment\n') == before
    assert area("law/formula.py", "Law = 2\n") != before


def test_what_a_tool_does_not_reach_does_not_count(area):
    before = area("other/__init__.py", "")
    assert area("other/__init__.py", "x = 1\n") == before
    assert area("law/study.py", "STUDY = 9\n") == before
    assert area("tool/study.py", "STUDY = 3\n") != before
