"""Every method of the catalogue passes every check, and exactly as many checks as are written down.

The numbers stand in the method's own test file as `CHECKS`: checks passed and excused, oracle tests with and without
those that skip where a mirror or a fetched data set is absent. A method whose numbers are missing or wrong fails with
the line to write there, so that a check that stops running does not go unnoticed.
"""

from __future__ import annotations

import ast
import json
import tomllib
from pathlib import Path

import pytest

from assay.catalogue import methods
from assay.conformance import Report, checks, conform
from assay.conformance.repository import oracle_file, oracles
from assay.conformance.schemas import DataModel
from assay.conformance.subject import Subject
from assay.datasets import data_files

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("slug", methods())
def test_conforms(slug):
    report = conform(methods()[slug], ROOT)
    print(report)
    assert not report.of("failed"), str(report)
    file, found = oracle_file(Subject(methods()[slug], ROOT)), counts(slug, report)
    assert written(file) == found, f"write into {file.relative_to(ROOT)}:\nCHECKS = {json.dumps(found)}\n{report}"


@pytest.mark.parametrize("slug", methods())
def test_the_names_of_checks_differ(slug):
    names = [check.name for check in checks(methods()[slug], ROOT)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("path", data_files(), ids=lambda path: f"{path.parent.name}")
def test_every_data_set_has_its_licence_source_and_checksum(path):
    for fields in tomllib.loads(path.read_text(encoding="utf-8")).values():
        DataModel.model_validate(fields)


def counts(slug: str, report: Report) -> dict[str, int]:
    """What is written down for a method: its checks, and its oracle tests with and without those that fetch data."""
    found = oracles(oracle_file(Subject(methods()[slug], ROOT)))
    return {
        "passed": len(report.of("passed")), "excused": len(report.of("excused")),
        "oracles": len(found), "oracles_without_data": sum(not needs_mirror for needs_mirror in found.values()),
    }


def written(file: Path) -> dict[str, int] | None:
    """The `CHECKS` of a test file, read without running it."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CHECKS":
            return ast.literal_eval(node.value)
    return None
