"""Connections of several drivers' habits over one SQLite file, as a user would open them."""

from __future__ import annotations

import re
import sqlite3  # noqa: TID251 - a user's own database, by the standard library
import time
from pathlib import Path
from typing import Any

import apsw


def standard(path: Path | str) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=10)


def plain(path: Path | str) -> sqlite3.Connection:
    """Without the module's own idea of transactions."""
    return sqlite3.connect(path, timeout=10, isolation_level=None)


def other(path: Path | str) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(10_000)
    return connection


class Postgres:
    """psycopg's habits: %s for parameters, begins by itself, is of no use after an error until it is rolled back."""

    autocommit = False

    def __init__(self, path: Path | str) -> None:
        self.inner = sqlite3.connect(path, timeout=10, isolation_level=None)
        self.failed = False

    def cursor(self) -> PostgresCursor:
        return PostgresCursor(self)

    def commit(self) -> None:
        self.inner.execute("COMMIT" if self.inner.in_transaction else "SELECT 1")

    def rollback(self) -> None:
        self.failed = False
        self.inner.rollback()

    def close(self) -> None:
        self.inner.close()


class InFailedSqlTransaction(Exception):
    pass


class PostgresCursor:
    def __init__(self, owner: Postgres) -> None:
        self._owner = owner
        self._cursor = owner.inner.cursor()

    def execute(self, sql: str, params: Any = ()) -> None:
        assert not re.search(r"[?:]", sql)
        if self._owner.failed:
            raise InFailedSqlTransaction("commands ignored until end of transaction block")
        if not self._owner.inner.in_transaction:
            self._owner.inner.execute("BEGIN")
        try:
            self._cursor.execute(sql.replace("%s", "?"), params)
        except sqlite3.Error:
            self._owner.failed = True
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


class DiesAfterCommit(sqlite3.Connection):
    """Committed; and then the line is dead."""

    deaths = 1

    def commit(self) -> None:
        super().commit()
        if self.in_transaction or DiesAfterCommit.deaths < 1:
            return
        DiesAfterCommit.deaths -= 1
        raise sqlite3.OperationalError("server closed the connection unexpectedly")


class StopsAfterCommit(sqlite3.Connection):
    """Committed, said so, and never back: for a worker that is killed there."""

    def commit(self) -> None:
        super().commit()
        print("inside", flush=True)
        time.sleep(60)
