"""What all tests share: a home of their own for the store, and no writing into the user's."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests_support import toy_environment


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty `ASSAY_HOME`; the data that was fetched already stays in reach."""
    folder = tmp_path / "home"
    folder.mkdir()
    from assay import datasets

    cache = datasets.cache_folder()
    monkeypatch.setenv("ASSAY_HOME", str(folder))
    if cache.exists():
        (folder / "data").symlink_to(cache, target_is_directory=True)
    return folder


@pytest.fixture
def assay(home):
    """Run the command line in a process of its own: `assay("check", "toy").stdout`."""

    def call(*arguments, cwd=None, toy=True, timeout=240, **environment):
        return subprocess.run(
            [sys.executable, "-m", "assay.cli", *map(str, arguments)], capture_output=True, text=True, timeout=timeout,
            cwd=cwd, env=toy_environment(home, toy, **environment), check=False,
        )

    return call
