"""The generated pages: the same each time, true to cards and records, and in step with what is committed."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from assay.catalogue import AREAS, read_card
from assay.study import Outcome

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "build_docs.py"


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("build_docs", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(build):
    return build.pages(ROOT)


def test_the_pages_are_the_same_in_another_process(pages):
    """Sets and addresses in memory come out in another order and place there."""
    code = (
        "import hashlib, json, runpy, pathlib;"
        f"b = runpy.run_path({str(SCRIPT)!r}); pages = b['pages'](pathlib.Path({str(ROOT)!r}));"
        "print(json.dumps({k: hashlib.sha256(v.encode()).hexdigest() for k, v in pages.items()}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120,
        env={**os.environ, "PYTHONHASHSEED": "7"},
    )
    assert json.loads(done.stdout) == {k: hashlib.sha256(v.encode()).hexdigest() for k, v in pages.items()}


def test_what_is_committed_is_in_step(build):
    assert build.out_of_step(ROOT) == [], "run `make docs`"


def test_the_readme_holds_the_table_of_methods(build):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    between = readme.partition(build.START)[2].partition(build.END)[0]
    assert between.strip() == build.methods_table()


def test_the_table_says_what_cards_and_records_say(build):
    lines = build.methods_table().splitlines()
    assert len(lines) == 2 + len(build.own_methods()) and all(line.count(" | ") == 4 for line in lines)
    for method, line in zip(build.own_methods(), lines[2:], strict=True):
        assert f"`{method.slug}`" in line and method.summary in line and f"| {method.area} |" in line
        recorded = {v["outcome"] for v in method.record["verdicts"]} if method.record else set()
        for outcome in Outcome:
            word = str(outcome).removesuffix("s")
            assert (re.search(rf"\d {word}", line) is not None) == (outcome in recorded), (method.slug, outcome)


def test_every_claim_stands_on_its_page_with_its_recorded_verdict(build, pages):
    for method in build.own_methods():
        page = pages[f"docs/methods/{method.slug}.md"]
        recorded = method.outcomes()
        for claim in method.claims.values():
            row = next(line for line in page.splitlines() if line.startswith(f"| {claim.id} |"))
            assert f"**{recorded[claim.id]}**" in row and " ".join(claim.statement.split()).replace("|", "\\|") in row
        for name in method.public:
            assert f"### {name}\n" in page
        assert method.paper.bibtex(method.slug) in page


def test_the_index_names_each_method_under_its_area_and_tasks(build, pages):
    index = pages["docs/index.md"]
    for method in build.own_methods():
        line = f"[`{method.slug}`](methods/{method.slug}.md)"
        assert index.count(line) == 1 + len(method.tasks)
    heads = re.findall(r"^### (.*?):", index, flags=re.MULTILINE)
    assert len(heads) == len({m.area for m in build.own_methods()}) <= len(AREAS)


def test_links_between_the_pages_lead_somewhere(build, pages):
    written = {**{p.relative_to(ROOT).as_posix(): p.read_text("utf-8") for p in ROOT.glob("docs/*.md")}, **pages}
    for name in ("README.md", "CONTRIBUTING.md"):
        written.setdefault(name, (ROOT / name).read_text(encoding="utf-8"))
    for name, text in written.items():
        prose = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)", prose):
            if "://" not in target:
                path = os.path.normpath(os.path.join(os.path.dirname(name), target))
                assert path in written or (ROOT / path).exists(), f"{name} links to {target}"


CARD = """
slug = "mine"
title = "A method"
summary = "do this | that"
area = "trust"
tasks = ["testing"]
public = []
gives = "A thing."
not_for = "Other things."
usage = "nothing"
arm = "mine"
kinds = {}
[paper]
title = "On things"
authors = "A. Uthor"
year = 2026
venue = "ICML 2026"
[[claims]]
id = "C1"
statement = "it is better"
paper = "by a lot"
measured = "difference"
unit = "row"
home = "decides it"
control = "noop"
threshold = 0.5
[[claims]]
id = "C2"
statement = "it is sound"
paper = "always"
measured = "cases"
unit = "case"
home = "decides it"
control = "noop"
exact = true
min_cases = 7
"""

RECORD = {
    "tier": "quick", "measured": "2026-12-01T09:12:00+00:00", "seconds": 55.2, "command": "assay check mine",
    "machine": {"cpu": "a processor", "cores": 2, "memory_gb": 23, "python": "3.11.7"},
    "data": [{"name": "far", "status": "absent", "reason": "not reached"}],
    "verdicts": [
        {"claim": "C1", "outcome": "fails", "reason": "worse | on letter", "effect": 0.75, "low": 0.625, "high": None,
         "threshold": 0.5, "n": 12, "parts": []},
        {"claim": "C2", "outcome": "holds", "reason": "", "effect": 0.0, "low": None, "high": None,
         "threshold": 0.0, "n": 9, "parts": []},
    ],
}


@pytest.fixture
def method(tmp_path, monkeypatch):
    package = tmp_path / "page_method"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "card.toml").write_text(CARD)
    (package / "README.md").write_text("# A method\n\nIt does this.\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda: read_card(package, "page_method")


def test_a_page_without_a_record_says_so(build, method):
    page = build.method_page(method())
    assert page.startswith(f"# A method\n\n{build.NOTICE}\n\nIt does this.\n")
    assert "`assay check mine` measures it" in page and "**untested**: not recorded" in page
    assert build.evidence(method()) == "not recorded yet"


def test_a_page_shows_effect_interval_threshold_and_machine(build, method):
    (method().folder / "record.json").write_text(json.dumps(RECORD))
    page = build.method_page(method())
    assert "| C1 | it is better | by a lot | below 0.5 | 0.75 (0.625 to ∞) | **fails**: worse \\| on letter |" in page
    assert "no counter-example in 7 cases" in page
    assert "Measured on 1 December 2026 (quick tier, 55 s) on 2 cores of a processor, 23 GB, Python 3.11.7" in page
    assert "Data that was not there: far (not reached)." in page
    assert build.evidence(method()) == "1 holds, 1 fails"


def test_what_is_out_of_step_is_named(build, method, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "own_methods", lambda: [method()])
    monkeypatch.setattr(build, "ROOT", tmp_path)
    (tmp_path / "README.md").write_text(f"before\n{build.START}\nold\n{build.END}\nafter\n")
    assert build.out_of_step(tmp_path) == ["README.md", "docs/index.md", "docs/methods/mine.md"]
    assert build.main([]) == 0 and build.out_of_step(tmp_path) == [] and build.main(["--check"]) == 0
    readme = (tmp_path / "README.md").read_text()
    assert readme.startswith("before\n") and readme.endswith("\nafter\n") and "do this \\| that" in readme
    (tmp_path / "docs" / "methods" / "gone.md").write_text("a method that is no more")
    (tmp_path / "docs" / "guide.md").write_text("# How to choose\n")
    assert build.out_of_step(tmp_path) == ["docs/index.md", "docs/methods/gone.md"] and build.main(["--check"]) == 1
    assert "- [How to choose](guide.md)" in build.pages(tmp_path)["docs/index.md"]
