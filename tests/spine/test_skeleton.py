"""`assay new`: what it writes passes every check, its own tests and its benchmark, for every kind."""

from __future__ import annotations

import ast
import os
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from assay.catalogue import AREAS, KINDS
from assay.conformance import assert_conforms
from assay.errors import InputError
from assay.skeleton import write_skeleton
from skeletons import folder_of, placed

# Checks that pass and that are excused: seven of the record, which a new method has not, and those that the kind
# or the lack of an arXiv id excuses.
COUNTS = {
    "estimator": (47, 9), "law": (48, 10), "module": (47, 8), "optimiser": (44, 8), "schedule": (44, 7),
    "solver": (46, 9), "sampler": (44, 9), "hook": (44, 8), "environment": (43, 7), "policy": (44, 8),
    "function": (43, 9), "tool": (40, 10),
}


def test_there_is_a_skeleton_of_every_kind():
    assert set(COUNTS) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_skeleton_passes_every_check(tmp_path, kind):
    with placed(tmp_path, f"made-{kind}", kind) as method:
        assert_conforms(method, *COUNTS[kind], root=tmp_path)


@pytest.mark.parametrize("kind", ["estimator", "tool"])
def test_the_benchmark_of_a_skeleton_measures_both(tmp_path, kind):
    with placed(tmp_path, f"fast-{kind}", kind):
        main = runpy.run_path(str(tmp_path / "benchmarks" / f"bench_fast_{kind}.py"))["main"]
        case = main()["cases"][0]
    assert case["ours_s"] > 0 and case["ratio"] == case["peer_s"] / case["ours_s"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the package with one skeleton of each kind in it, as it is after `assay new`."""
    import assay

    root = tmp_path_factory.mktemp("tree")
    shutil.copytree(Path(assay.__path__[0]), root / "src" / "assay", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(Path(__file__).parents[2] / "pyproject.toml", root)
    for number, kind in enumerate(KINDS):
        write_skeleton(root, AREAS[number % len(AREAS)], f"new-{kind}", kind)
    return root


def test_the_tests_of_the_skeletons_pass(tree):
    done = _python(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", "tests")
    assert done.returncode == 0, done.stdout[-2000:]
    assert "skipped" not in done.stdout.splitlines()[-1]


def test_the_catalogue_lists_the_skeletons_and_the_area_hands_them_on(tree):
    code = (
        "from assay.catalogue import methods\n"
        "import assay.inference, assay.scaling\n"
        f"assert {{'new-' + kind for kind in {KINDS!r}}} <= set(methods())\n"
        "assert assay.scaling.NewEstimator.__name__ == 'NewEstimator'\n"
    )
    done = _python(tree, "-c", code)
    assert done.returncode == 0, done.stderr


def test_every_skeleton_is_valid_python_and_toml_without_placeholders(tree):
    written = [path for path in tree.rglob("*") if "new_" in str(path.relative_to(tree)) and path.is_file()]
    assert len(written) > 100
    for path in written:
        text = path.read_text(encoding="utf-8")
        assert "$" not in text, path.name
        if path.suffix == ".py":
            ast.parse(text)
        if path.suffix == ".toml":
            tomllib.loads(text)


def test_the_skeletons_satisfy_the_linter(tree):
    ruff = Path(sys.executable).parent / "ruff"
    if not ruff.exists():
        pytest.fail("ruff is not installed beside Python")
    written = [path for path in tree.rglob("*new_*") if path.is_dir() or path.suffix == ".py"]
    command = [ruff, "check", "--no-cache", *written]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("area", "slug", "kind", "message"),
    [
        ("trsut", "my-method", "law", "did you mean trust"),
        ("trust", "My Method", "law", "small letters"),
        ("trust", "my--method", "law", "single dashes"),
        ("trust", "../escape", "law", "small letters"),
        ("trust", "my-method", "estimater", "did you mean estimator"),
    ],
)
def test_what_can_not_be_a_method_is_refused(tmp_path, area, slug, kind, message):
    with pytest.raises(InputError, match=message):
        write_skeleton(tmp_path, area, slug, kind)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_there_stays_as_it_is(tmp_path):
    write_skeleton(tmp_path, "structure", "my-method", "law")
    card = folder_of(tmp_path, "my-method") / "card.toml"
    card.write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match="there already"):
        write_skeleton(tmp_path, "structure", "my-method", "law")
    assert card.read_text(encoding="utf-8") == "mine"


def test_a_root_that_can_not_be_written_is_refused(tmp_path):
    (tmp_path / "src").write_text("a file", encoding="utf-8")
    with pytest.raises(InputError, match="can't be written"):
        write_skeleton(tmp_path, "trust", "my-method", "law")


def _python(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=tree, capture_output=True, text=True, check=False, timeout=280,
        env={**os.environ, "PYTHONPATH": str(tree / "src")},
    )
