"""The border to apsw: the part of a connection that we use, with types of our own.

apsw's own stubs leave row values half unknown; rows are read by position and checked where they
become values of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

import apsw

Row = tuple[Any, ...]  # Any: SQLite's five value types, told apart where a row is parsed
Bindings = Sequence[Any] | Mapping[str, Any]  # Any: as above, on the way in
WalHook = Callable[[Any, str, int], int]  # Any: the connection itself
Authorizer = Callable[[int, str | None, str | None, str | None, str | None], int]


class Cursor(Protocol):
    def fetchone(self) -> Row | None: ...
    def fetchall(self) -> list[Row]: ...
    def __iter__(self) -> Iterator[Row]: ...


class Db(Protocol):
    """An open connection; one thread at a time."""

    authorizer: Authorizer | None

    @property
    def in_transaction(self) -> bool: ...
    def execute(self, sql: str, bindings: Bindings = ..., /) -> Cursor: ...
    def executemany(self, sql: str, rows: Sequence[Bindings], /) -> Cursor: ...
    def pragma(self, name: str, value: Any = ..., /) -> Any: ...  # Any: a pragma's own type
    def config(self, operation: int, value: int, /) -> int: ...
    def changes(self) -> int: ...
    def total_changes(self) -> int: ...
    def last_insert_rowid(self) -> int: ...
    def set_busy_timeout(self, milliseconds: int, /) -> None: ...
    def set_wal_hook(self, hook: WalHook | None, /) -> None: ...
    def wal_checkpoint(self) -> tuple[int, int]: ...
    def close(self) -> None: ...


def open_db(path: str, *, flags: int) -> Db:
    return cast(Db, apsw.Connection(path, flags=flags))
