"""What a user installs: the built wheel in a clean environment, the examples, the doctests."""

from __future__ import annotations

import doctest
import importlib
import os
import pkgutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(*command, **more):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **more)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.timeout(600)
def test_the_wheel_works_in_a_clean_environment(tmp_path):
    wheels = tmp_path / "wheels"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels, ROOT)
    (wheel,) = wheels.glob("assay-*.whl")
    venv.create(tmp_path / "clean", with_pip=True)
    python = tmp_path / "clean" / "bin" / "python"
    lock = ROOT / "requirements.lock"
    run(python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--constraint", lock, wheel)
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "ASSAY_DATA")}
    clean["ASSAY_HOME"] = str(tmp_path / "home")
    assay = tmp_path / "clean" / "bin" / "assay"
    assert "smart" in run(assay, "list", cwd=tmp_path, env=clean)
    assert "Not for:" in run(assay, "show", "smart", cwd=tmp_path, env=clean)
    run(assay, "run", "smart", "--example", cwd=tmp_path, env=clean)
    assert any((tmp_path / "smart-out").iterdir())
    missing = subprocess.run(
        [assay, "report"], cwd=tmp_path, env=clean, capture_output=True, text=True, check=False
    )
    assert missing.returncode == 2
    assert 'pip install "assay[report]"' in missing.stderr and len(missing.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(example, tmp_path):
    assert run(sys.executable, example, cwd=tmp_path).strip()


def test_there_is_an_example_for_each_area_with_methods():
    from assay import catalogue

    assert {method.area for method in catalogue.methods().values()} == {path.stem for path in EXAMPLES}


def modules():
    import assay

    return sorted(
        module.name for module in pkgutil.walk_packages(assay.__path__, "assay.")
        if ".conformance" not in module.name and ".skeleton" not in module.name
    )


@pytest.mark.parametrize("name", modules())
def test_doctests(name):
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"{name} needs a package that is not installed: {error}")
    failed, _ = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert not failed


def test_importing_assay_is_light():
    heavy = ("torch", "sklearn", "pandas", "pydantic", "scipy", "numpy")
    code = f"import sys, assay; print([name for name in {heavy!r} if name in sys.modules])"
    assert run(sys.executable, "-c", code).strip() == "[]"


def test_listing_loads_nothing_heavy():
    heavy = ("torch", "sklearn", "pandas", "pydantic", "scipy")
    code = (
        "import sys; from assay.cli import main; main(['list']); "
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    assert run(sys.executable, "-c", code).strip().splitlines()[-1] == "[]"
