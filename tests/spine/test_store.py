"""The store: damage, newer versions, full disks, merging."""

from __future__ import annotations

import sqlite3

import pandas as pd
import pytest

from assay.errors import InputError, StoreError
from assay.store import Store, pack_frame, unpack_frame
from assay.study import Cell, Row

CELL = Cell("somewhere", "arm", 1, {"size": 3}, data=())


def measured(value=1.5, **more):
    return Row(CELL, "measured", {"value": value}, **more)


def test_a_row_comes_back(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        store.put("m", "f", measured(0.1 + 0.2))
        assert store.get("m", CELL, "f").metrics == {"value": 0.1 + 0.2}
        assert store.get("m", CELL, "other") is None
        assert store.get("n", CELL, "f") is None


def test_limits_are_no_part_of_a_cells_identity(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        store.put("m", "f", measured())
        assert store.get("m", Cell("somewhere", "arm", 1, {"size": 3}, data=(), limit_s=1, memory=9), "f")


def test_only_measured_rows_are_final(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        store.put("m", "f", Row(CELL, "failed", reason="luck"))
        store.put("m", "f", measured(1.0))
        store.put("m", "f", Row(CELL, "failed", reason="again"))
        store.put("m", "f", measured(2.0))
        assert store.get("m", CELL, "f").metrics == {"value": 1.0}


def test_frames_are_exact():
    frame = pd.DataFrame({"a": [0.1, float("nan")], "b": ["x", "ü"], "c": [2**60, -1]})
    pd.testing.assert_frame_equal(unpack_frame(pack_frame(frame)), frame, check_dtype=False)


def test_a_damaged_store_is_kept_aside(tmp_path):
    path = tmp_path / "s.sqlite"
    path.write_bytes(b"this is no database" * 100)
    with Store(path) as store:
        assert store.set_aside.read_bytes().startswith(b"this is no database")
        store.put("m", "f", measured())
    with Store(path) as store:
        assert store.set_aside is None
        assert store.get("m", CELL, "f")


def test_a_truncated_store_is_kept_aside(tmp_path):
    path = tmp_path / "s.sqlite"
    with Store(path) as store:
        for seed in range(200):
            store.put("m", "f", Row(Cell("s", "a", seed, data=()), "measured", {"value": 1.0}))
    content = path.read_bytes()
    path.write_bytes(content[:5000] + bytes(3000) + content[8000:20000])
    with Store(path) as store:
        assert store.set_aside is not None
        store.put("m", "f", measured())


def test_a_newer_store_is_left_alone(tmp_path):
    path = tmp_path / "s.sqlite"
    Store(path).close()
    with sqlite3.connect(path) as db:
        db.execute("update about set value = '99' where key = 'version'")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="newer assay"):
        Store(path)
    assert path.read_bytes() == before


def test_another_database_is_refused(tmp_path):
    path = tmp_path / "s.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("create table mine (x)")
    db.close()
    with pytest.raises(StoreError, match="not a store of assay"):
        Store(path)


def test_a_full_disk_says_so_and_keeps_what_was_there(tmp_path):
    with Store(tmp_path / "s.sqlite", max_pages=12) as store:
        store.put("m", "f", measured())
        with pytest.raises(StoreError, match="full"):
            for seed in range(1000):
                store.put("m", "f", Row(Cell("s", "a", seed, data=()), "measured", {"value": 1.0}, reason="x" * 500))
        assert store.get("m", CELL, "f").metrics == {"value": 1.5}


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="can't be made"):
        Store(tmp_path / "file" / "s.sqlite")


def test_merge_takes_measured_cells_once(tmp_path):
    with Store(tmp_path / "a.sqlite") as other:
        other.put("m", "f", measured())
        other.put("m", "f", Row(Cell("s", "failed", data=()), "failed", reason="luck"))
    with Store(tmp_path / "b.sqlite") as store:
        assert store.merge(tmp_path / "a.sqlite") == 1
        assert store.merge(tmp_path / "a.sqlite") == 0
        assert store.get("m", CELL, "f").metrics == {"value": 1.5}
        with pytest.raises(InputError, match="no such store"):
            store.merge(tmp_path / "none.sqlite")
        (tmp_path / "text").write_text("not a database at all, whatever its length may be")
        with pytest.raises(InputError, match="not a store"):
            store.merge(tmp_path / "text")
        assert (tmp_path / "text").exists()
