"""The store: every finished cell, kept once, in one SQLite file.

Only the parent process of a run writes. Each cell is one transaction, with SQLite's rollback journal,
since home folders may lie on network file systems where the write-ahead log does not work; cells that
finish while the disk is still busy with the last one share the next transaction (`together`). A measured
cell is final for its fingerprint; skipped, failed and blocked ones are kept with their reason and tried
again by the next run.
"""

from __future__ import annotations

import io
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.errors import InputError, StoreError
from assay.study import Cell, Row, canonical

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["VERSION", "Store", "home", "pack_frame", "unpack_frame"]

VERSION = 1

_SCHEMA = """
create table if not exists about (key text primary key, value text);
create table if not exists cells (
    slug text, cell text, fingerprint text, status text, reason text, metrics text, units blob, files blob,
    seconds real, peak_mb real, extra text, made text,
    primary key (slug, cell, fingerprint)
) without rowid;
"""


def home() -> Path:
    """`ASSAY_HOME`, or the user's data folder."""
    if folder := os.environ.get("ASSAY_HOME"):
        return Path(folder)
    import platformdirs

    return Path(platformdirs.user_data_dir("assay"))


class Store:
    """The cells in `path` (default: `store.sqlite` in the home folder).

    A file that is no database is set aside under another name and a new one is begun; one written by a
    newer version is left alone and refused.
    """

    def __init__(self, path: Path | None = None, *, max_pages: int | None = None) -> None:
        self.path = home() / "store.sqlite" if path is None else Path(path)
        self.set_aside: Path | None = None
        self._max_pages = max_pages
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"the store's folder {self.path.parent} can't be made: {error.strerror}") from None
        self._db = self._open()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    def get(self, slug: str, cell: Cell, fingerprint: str) -> Row | None:
        """The kept row of a cell, or None."""
        found = self._db.execute(
            "select * from cells where slug = ? and cell = ? and fingerprint = ?",
            (slug, _key(cell), fingerprint),
        ).fetchone()
        return None if found is None else _row(found)

    def put(self, slug: str, fingerprint: str, row: Row) -> None:
        """Keep a row, whole or not at all. A measured row never gives way to one that is not."""
        values = (
            slug, _key(row.cell), fingerprint, row.status, row.reason, json.dumps(row.metrics),
            None if row.units is None else pack_frame(row.units), _pack_files(row.files), row.seconds, row.peak_mb,
            json.dumps(row.extra), datetime.now(UTC).isoformat(timespec="seconds"),
        )
        with self._writing():
            self._db.execute(
                f"insert into cells values ({', '.join('?' * len(values))}) "
                "on conflict do update set status = excluded.status, reason = excluded.reason, "
                "metrics = excluded.metrics, units = excluded.units, files = excluded.files, "
                "seconds = excluded.seconds, peak_mb = excluded.peak_mb, extra = excluded.extra, made = excluded.made "
                "where cells.status != 'measured'",
                values,
            )

    def seconds(self, slug: str, cell: Cell) -> float | None:
        """How long the cell took the last time that it was measured, under any fingerprint."""
        found = self._db.execute(
            "select seconds from cells where slug = ? and cell = ? and status = 'measured' order by made desc",
            (slug, _key(cell)),
        ).fetchone()
        return None if found is None else float(found["seconds"])

    def rows(self, slug: str, fingerprint: str | None = None) -> Iterator[Row]:
        """The kept rows of a method, under one fingerprint or all."""
        query = "select * from cells where slug = ?" + (" and fingerprint = ?" if fingerprint else "")
        for found in self._db.execute(query, (slug, fingerprint) if fingerprint else (slug,)):
            yield _row(found)

    def merge(self, path: Path) -> int:
        """Take over the measured cells of another store's file; returns how many were new."""
        if not path.exists():
            raise InputError(f"{path}: no such store")
        with Store(path) as other:
            if other.set_aside:
                raise InputError(f"{path} is not a store of assay")
            found = other._db.execute("select * from cells where status = 'measured'").fetchall()
        with self._writing():
            before = self._db.total_changes
            self._db.executemany(
                "insert into cells values (?,?,?,?,?,?,?,?,?,?,?,?) on conflict do update set "
                "status = excluded.status, reason = excluded.reason, metrics = excluded.metrics, "
                "units = excluded.units, files = excluded.files, seconds = excluded.seconds, "
                "peak_mb = excluded.peak_mb, extra = excluded.extra, made = excluded.made "
                "where cells.status != 'measured'",
                [tuple(row) for row in found],
            )
            return self._db.total_changes - before

    def _open(self) -> sqlite3.Connection:
        try:
            return self._connect()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise StoreError(f"the store {self.path} can't be opened: {error}") from None
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        self.set_aside = self.path.with_name(f"{self.path.name}.corrupt-{stamp}")
        self.path.rename(self.set_aside)
        return self._connect()

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=60)
        db.row_factory = sqlite3.Row
        try:
            self._prepare(db)
        except BaseException:
            db.close()
            raise
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        db.execute("pragma journal_mode = delete")
        if self._max_pages:
            db.execute(f"pragma max_page_count = {int(self._max_pages)}")
        present = {row["name"] for row in db.execute("select name from sqlite_master where type = 'table'")}
        if present and "about" not in present:
            raise StoreError(f"{self.path} is a database, but not a store of assay")
        if present:
            db.execute("pragma quick_check(1)").fetchone()
            found = db.execute("select value from about where key = 'version'").fetchone()
            kept = int(found["value"]) if found else VERSION
            if kept > VERSION:
                raise StoreError(
                    f"the store {self.path} was written by a newer assay (store version {kept}, this one knows "
                    f"{VERSION}): update assay, or name another folder in ASSAY_HOME"
                )
        with db:
            db.executescript(_SCHEMA)
            db.execute("insert or ignore into about values ('version', ?)", (str(VERSION),))

    @contextmanager
    def together(self) -> Iterator[None]:
        """Put what is put inside in one transaction: a disk takes as long to secure ten rows as one."""
        with self._writing():
            self._db.execute("begin immediate")
            yield

    @contextmanager
    def _writing(self) -> Iterator[None]:
        if self._db.in_transaction:
            yield
            return
        try:
            with self._db:
                yield
        except sqlite3.OperationalError as error:
            raise StoreError(f"the store {self.path} can't be written: {error}") from None


def _key(cell: Cell) -> str:
    """What makes a cell the same one: limits and memory do not."""
    fields = {name: value for name, value in cell.to_dict().items() if name not in ("limit_s", "memory")}
    return canonical(fields)


def _row(found: sqlite3.Row) -> Row:
    fields = json.loads(found["cell"])
    return Row(
        Cell.from_dict(fields), found["status"], json.loads(found["metrics"]),
        None if found["units"] is None else unpack_frame(found["units"]), _unpack_files(found["files"]),
        found["reason"], found["seconds"], found["peak_mb"], json.loads(found["extra"]) | {"made": found["made"]},
    )


def pack_frame(frame: pd.DataFrame) -> bytes:
    """A frame as the bytes of an `npz` file, column by column, exact to the bit."""
    columns: dict[str, Any] = {}
    for number, name in enumerate(frame.columns):
        values = frame[name].to_numpy()
        columns[f"{number}:{name}"] = values.astype(str) if values.dtype.kind not in "biuf" else values
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **columns)
    return buffer.getvalue()


def unpack_frame(content: bytes) -> pd.DataFrame:
    """The frame that `pack_frame` packed."""
    import pandas as pd

    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return pd.DataFrame({key.partition(":")[2]: arrays[key] for key in arrays.files})


def _pack_files(files: dict[str, bytes]) -> bytes | None:
    if not files:
        return None
    arrays: dict[str, Any] = {name: np.frombuffer(content, dtype=np.uint8) for name, content in files.items()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def _unpack_files(content: bytes | None) -> dict[str, bytes]:
    if content is None:
        return {}
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return {name: arrays[name].tobytes() for name in arrays.files}
