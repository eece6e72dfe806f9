"""A folder as a value, to compare two of them."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from holdfast.host.sqlite import Db
from holdfast.layout.covered import CoveredKind, covered_files

Tree = dict[str, str]


def tree_of(folder: Path, *, everything: bool = False) -> Tree:
    """Path to kind, mode and digest, of what a snapshot covers, or of everything.

    A live database has no one file: its digest is that of its rows. The heads are left out: a
    snapshot is taken before its own head is known.
    """
    if everything:
        found = ((path.relative_to(folder).as_posix(), None) for path in folder.rglob("*"))
        return {path: _digest(folder / path) for path, _ in sorted(found)}
    return {
        path: _rows(folder / path) if kind is CoveredKind.DATABASE else _digest(folder / path)
        for path, kind in covered_files(folder)
        if path != "heads.jsonl"
    }


def _digest(path: Path) -> str:
    status = path.lstat()
    mode = f"{stat.S_IFMT(status.st_mode):o} {stat.S_IMODE(status.st_mode):o}"
    if stat.S_ISLNK(status.st_mode):
        return f"{mode} {os.readlink(path)}"
    if not stat.S_ISREG(status.st_mode):
        return mode
    return f"{mode} {hashlib.sha256(path.read_bytes()).hexdigest()}"


def _rows(path: Path) -> str:
    import apsw

    from holdfast.host.sqlite import open_alone, open_db

    beside = path.with_name(path.name + "-wal").exists()
    db: Db = open_db(str(path), flags=apsw.SQLITE_OPEN_READONLY) if beside else open_alone(path)
    try:
        sha256 = hashlib.sha256()
        tables = db.execute("SELECT name, sql FROM sqlite_schema ORDER BY name").fetchall()
        for name, sql in tables:
            sha256.update(f"{name} {sql}\n".encode())
            if sql and str(sql).startswith("CREATE TABLE"):
                rows = db.execute(f'SELECT * FROM "{name}"').fetchall()
                sha256.update(repr(sorted(map(repr, rows))).encode())
        return sha256.hexdigest()
    finally:
        db.close()
