"""Where the journal of a trial is: a file in its folder, or a schema of its own on a server; and its hosts.

A host is a folder: its keys, its `instance/` and with that its id. Two folders on this machine are two hosts to a
shared journal, because neither sees the other's locks: the second has to wait until the lease of the first is over.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, LiteralString, cast
from urllib.parse import urlsplit

import apsw
import psycopg

from holdfast.app.binder import KEYS
from holdfast.core.clock import SystemEntropy
from holdfast.core.ids import TaskId
from holdfast.host.sqlite import open_db
from holdfast.identity.journal_keys.keyfile import load_or_create
from holdfast.journal.postgres.place import PostgresPlace
from holdfast_proofs.history.reading import read_records
from holdfast_proofs.history.story import Told

JOURNAL = "journal.db"


@contextmanager
def own_database(url: str) -> Generator[str]:
    """The url of a new database on the server of this one, for the block; empty where there is no server."""
    if not url:
        yield ""
        return
    name = f"job_{os.urandom(6).hex()}"
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(cast(LiteralString, f"CREATE DATABASE {name}"))
        try:
            yield urlsplit(url)._replace(path=f"/{name}").geturl()
        finally:
            db.execute(cast(LiteralString, f"DROP DATABASE {name} WITH (FORCE)"))


def own_journal(server: str, name: str) -> str:
    """The url of a journal that nobody else has; empty where there is no server: a file in the trial's folder."""
    return f"{server}&schema={name.replace('-', '_')}" if server else ""


def make_host(folder: Path, *, shared: bool) -> Path:
    """The first one. Where the journal will be shared, the keys are there before it is made: each host gets them."""
    folder.mkdir(mode=0o700)
    if shared:
        load_or_create(folder / KEYS, journal_exists=False, entropy=SystemEntropy())
    return folder


def make_other_host(folder: Path) -> Path:
    there = folder / "there"
    there.mkdir(mode=0o700)
    shutil.copy(folder / KEYS, there / KEYS)
    return there


def look_beside(folder: Path, url: str, task_id: TaskId, table: str) -> tuple[tuple[Told, ...], dict[str, int]]:
    """With plain SQL: the task's records, and how many rows each of its Transactional steps has in that table."""
    found = f"SELECT step, count(*) FROM {{}}{table} WHERE task = {{}} GROUP BY step"
    if not url:
        db = open_db(str(folder / JOURNAL), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            made = db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone()
            rows = db.execute(found.format("", "?"), (task_id,)).fetchall() if made else []
            return read_records(lambda sql, values: db.execute(sql, values).fetchall(), task_id), dict(rows)
        finally:
            db.close()
    place = PostgresPlace.read(url)
    with place.connect_at_once() as there:

        def ask(sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
            return there.execute(cast(LiteralString, sql.replace("?", "%s")), values).fetchall()

        ask(f"SELECT set_config('search_path', '{place.schema}', false)")
        made = ask(f"SELECT to_regclass('{place.schema}_tools.{table}') IS NOT NULL")[0][0]
        rows = ask(found.format(f"{place.schema}_tools.", "?"), (task_id,)) if made else []
        return read_records(ask, task_id), dict(rows)


def remove_journal(url: str) -> None:
    """Of a trial that is over; a file goes with its folder."""
    if not url:
        return
    place = PostgresPlace.read(url)
    with place.connect_at_once() as db:
        own = f"SELECT proowner::regrole::text FROM pg_proc WHERE pronamespace = to_regnamespace('{place.schema}')"
        roles = db.execute(cast(LiteralString, own)).fetchall()
        for name in (place.schema, f"{place.schema}_tools"):
            db.execute(cast(LiteralString, f"DROP SCHEMA IF EXISTS {name} CASCADE"))
        for (role,) in roles:
            db.execute(cast(LiteralString, f"DROP ROLE {role}"))
