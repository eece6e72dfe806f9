"""What the hosts of a journal agree on besides its tasks: `journal.admin.SharedState` over its tables."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from typing import LiteralString

from psycopg import Connection

from holdfast.journal.postgres.links import BEGIN, BEGIN_LOCAL, at_once
from holdfast.journal.postgres.place import PostgresPlace, Row
from holdfast.journal.postgres.sql_errors import in_our_words
from holdfast.journal.postgres.verbs.upkeep import TURN_OVER, turn_ms_max

_TEXT = "text of hosts: "  # before its name in `meta`
_APART = "\x1f"  # between the holder and its name for people


class PostgresShared:
    def __init__(self, place: PostgresPlace) -> None:
        self._place = place

    @contextmanager
    def _transaction(self, begin: bytes = BEGIN_LOCAL) -> Generator[Connection[Row]]:
        with in_our_words(), at_once(self._place, begin) as db:
            yield db

    def take_turn(self, name: str, *, holder: str, who: str, for_s: float) -> str:
        for_ms = round(for_s * 1000)
        with self._transaction() as db:
            db.execute(
                self._place.sql(
                    "INSERT INTO $s.turn AS u (name, holder, until_ms) VALUES (%s, %s, $now + %s) "
                    "ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until_ms = excluded.until_ms "
                    f"WHERE starts_with(u.holder, %s) OR {TURN_OVER}"
                ),
                (name, f"{holder}{_APART}{who}", for_ms, f"{holder}{_APART}", turn_ms_max(for_ms)),
            )
            ((found,),) = db.execute(self._place.sql("SELECT holder FROM $s.turn WHERE name = %s"), (name,)).fetchall()
        mine, _, other = str(found).partition(_APART)
        return "" if mine == holder else other or "another process"

    def give_turn(self, name: str, *, holder: str) -> None:
        with self._transaction() as db:
            query = "DELETE FROM $s.turn WHERE name = %s AND starts_with(holder, %s)"
            db.execute(self._place.sql(query), (name, f"{holder}{_APART}"))

    def read_text(self, name: str) -> str:
        """Without a lock: hosts that wait read every few seconds, and a locked row is a write for the server."""
        with in_our_words(), closing(self._place.connect_at_once()) as db:
            return self._read(db, name)

    def _read(self, db: Connection[Row], name: str, lock: LiteralString = "") -> str:
        found = db.execute(self._place.sql(f"SELECT value FROM $s.meta WHERE key = %s{lock}"), (_TEXT + name,))
        return "".join(str(value) for (value,) in found)

    def change_text(self, name: str, change: Callable[[str], str], *, durable: bool = False) -> str:
        key = _TEXT + name
        with self._transaction(BEGIN if durable else BEGIN_LOCAL) as db:
            # The row is there from here on, and locked: another process waits for its text.
            query = "INSERT INTO $s.meta (key, value) VALUES (%s, '') ON CONFLICT DO NOTHING"
            db.execute(self._place.sql(query), (key,))
            after = change(self._read(db, name, " FOR UPDATE"))
            db.execute(self._place.sql("UPDATE $s.meta SET value = %s WHERE key = %s"), (after, key))
        return after

    def drop_text(self, name: str) -> None:
        with self._transaction() as db:
            db.execute(self._place.sql("DELETE FROM $s.meta WHERE key = %s"), (_TEXT + name,))
