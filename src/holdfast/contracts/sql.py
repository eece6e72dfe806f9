"""Effects in a database of your own: Keyed by a row that commits together with them.

One transaction holds all of it: a row in the table of effects whose primary key is the effect key,
your statements, the messages of your outbox, and the result. So at all times either none of them
is there or all are, and a second attempt, on whatever worker, meets the row and gives its result.

The row is inserted first. A second attempt that runs at the same moment waits for the first one at that key, in every
database with a primary key, and then finds it taken: no isolation level is asked for, no lock, no clock.

What an error says depends on where it comes from. Before `commit` is called nothing can have been
done: the database throws away what was not committed, also when the connection or this process is
gone. From the call of `commit` on it is not known, until the next attempt has looked at the row.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import inspect
import itertools
import re
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

from holdfast.contracts.reading import secret_name
from holdfast.core import values
from holdfast.core.effect import WINDOW_MAX_S, Keyed
from holdfast.errors import KeyReused, Misuse, NotSent, Refused, text_of
from holdfast.runtime.tool.tool import Absent, Call, FindAnswer, Found, Tool, Unsure, tool

Bound = tuple[str, Sequence[Any] | Mapping[str, Any]]  # Any: values that a driver can bind
_STYLES = {"qmark": "?", "format": "%s", "pyformat": "%s", "numeric": ":{n}", "named": ":p{n}"}

RETRY_AFTER_S = 0.5
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?")
# By name, because a driver of anybody's may be used: errors that may be gone the next time.
_PASSING = frozenset(("OperationalError", "InterfaceError", "BusyError", "LockedError"))

# Any in this file: connections and cursors are of whatever driver, arguments and results JSON.
Connect = Callable[..., Any]
Function = Callable[..., Any]
ParamStyle = Literal["qmark", "format", "pyformat", "numeric", "named"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of the outbox. `id` is the same however often it is read."""

    id: str
    topic: str
    body: Any


class Transaction:
    """What a tool of yours does its work with; it is committed when the tool returns."""

    def __init__(self, connection: Any, call: Call, words: Words) -> None:
        self._connection = connection
        self._words = words
        self._emitted = 0
        self.effect_key = call.effect_key
        self.task_id = call.task_id
        self.ordinal = call.ordinal

    def execute(self, sql: str, params: Sequence[Any] | Mapping[str, Any] = ()) -> Any:
        """The driver's cursor after this statement; parameters in the driver's own style."""
        cursor = self._connection.cursor()
        cursor.execute(sql, params) if params else cursor.execute(sql)
        return cursor

    def emit(self, topic: str, body: Any) -> None:
        """Leave a message in the outbox: it is there if, and only if, all of this is."""
        text = values.encode(values.checked(body, what="message"), what="message").decode()
        self._emitted += 1
        self.execute(*self._words.insert_message((self.effect_key, self._emitted, topic, text, 0)))


class Sql:
    """One database of yours, and the tables in it that make effects happen once."""

    def __init__(
        self,
        connect: Connect,
        *,
        dsn: str = "",
        paramstyle: ParamStyle = "qmark",
        effects: str = "holdfast_effects",
        outbox: str = "holdfast_outbox",
    ) -> None:
        """Describe the database.

        Args:
            connect: opens a DB-API connection (or one of apsw). It is called for each attempt, in
                the thread that uses it; not in autocommit.
            dsn: the handle of a secret, `secret://NAME`, whose value `connect` is given.
            paramstyle: the driver's own, as `driver.paramstyle` says: psycopg has "pyformat".
            effects, outbox: names of the two tables; see `schema`.
        """
        for name in (effects, outbox):
            if not _NAME.fullmatch(name):
                raise Misuse(
                    f"{name!r} is not a table name: use letters, digits and _, with or without `schema.` in front"
                )
        self._connect = connect
        self._dsn = dsn
        self._secret = secret_name(dsn, what="dsn") if dsn else ""
        self._words = Words(paramstyle, effects=effects, outbox=outbox)

    @property
    def schema(self) -> list[str]:
        """The statements that make the two tables, to be run by your own migrations."""
        return self._words.schema

    @overload
    def tool(self, function: Function) -> Tool[..., Any]: ...

    @overload
    def tool(
        self, function: None = None, *, name: str = ..., timeout_s: float = ..., needs_approval: bool = ...
    ) -> Callable[[Function], Tool[..., Any]]: ...

    def tool(
        self, function: Function | None = None, *, name: str = "", timeout_s: float = 60.0, needs_approval: bool = False
    ) -> Tool[..., Any] | Callable[[Function], Tool[..., Any]]:
        """Register `def function(tx, ...)` as a tool: all that it does with `tx` happens once."""

        def register(function: Function) -> Tool[..., Any]:
            title = name or function.__name__
            work = self._work(function, title)
            made: Tool[..., Any] = tool(
                effect=Keyed(window_s=WINDOW_MAX_S, fingerprint="checked", refusals_stored=False),
                name=title,
                timeout_s=timeout_s,
                needs_approval=needs_approval,
                given={"dsn": self._dsn} if self._dsn else None,
                secrets={"dsn": self._secret} if self._dsn else None,
            )(work)
            made.find(self._finder)
            return made

        return register if function is None else register(function)

    def _work(self, function: Function, title: str) -> Callable[..., Any]:
        signature = inspect.signature(function)
        names = list(signature.parameters)
        if inspect.iscoroutinefunction(function) or names[:1] != ["tx"] or "dsn" in names:
            raise Misuse(f"{title}: the function must be `def {title}(tx, ...)`, not async, without an argument dsn")

        @functools.wraps(function)
        def work(call: Call, **args: Any) -> Any:
            dsn = args.pop("dsn", "")
            try:
                with self._open(dsn) as connection:
                    return self._perform(connection, call, title, function, args)
            except Misuse as error:  # of the connection: nothing was begun on it
                raise _judged(error) from error

        kinds = inspect.Parameter
        own = kinds("call", kinds.POSITIONAL_OR_KEYWORD, annotation=Call)
        given = [kinds("dsn", kinds.KEYWORD_ONLY, annotation=str)] if self._dsn else []
        rest = list(signature.parameters.values())[1:]
        named = [one.replace(kind=kinds.KEYWORD_ONLY) for one in rest]
        work.__signature__ = signature.replace(parameters=[own, *named, *given])  # type: ignore[attr-defined]
        hints = {n: h for n, h in function.__annotations__.items() if n != "tx"}
        work.__annotations__ = {**hints, "call": Call, **({"dsn": str} if given else {})}
        return work

    def _perform(self, connection: Any, call: Call, title: str, function: Function, args: dict[str, Any]) -> Any:
        digest, words = _digest(args), self._words
        transaction = Transaction(connection, call, words)
        try:
            _begin(connection)
            row = (call.effect_key, call.task_id, call.ordinal, title, digest, "", time.time_ns() // 1_000_000)
            transaction.execute(*words.insert_effect(row))
            result = values.checked(function(transaction, **args), what=f"result of {title}")
            text = values.encode(result, what=f"result of {title}").decode()
            transaction.execute(*words.set_result((text, call.effect_key)))
        except BaseException as error:  # the user's code or a driver: no transaction stays open
            _roll_back(connection)
            known = self._find_again(connection, call.effect_key)
            if known is not None:
                return _same(known, digest)
            raise _judged(error) from error
        _commit(connection)  # an error here leaves a doubt, which the next attempt settles
        return result

    async def _finder(self, call: Call, *, dsn: str = "", **args: Any) -> FindAnswer:
        def look() -> tuple[str, str] | None:
            with self._open(dsn) as connection:
                found = self._find(connection, call.effect_key)
                _roll_back(connection)
                return found

        known = await asyncio.to_thread(look)
        if known is None:
            return Absent()
        if known[0] != _digest(args):
            return Unsure("the table already has a row with this effect key, but for other arguments")
        return Found(values.decode(known[1].encode()))

    def _find(self, connection: Any, effect_key: str) -> tuple[str, str] | None:
        cursor = connection.cursor()
        cursor.execute(*self._words.find_effect((effect_key,)))
        row = cursor.fetchone()
        return None if row is None else (str(row[0]), str(row[1]))

    def _find_again(self, connection: Any, effect_key: str) -> tuple[str, str] | None:
        with contextlib.suppress(Exception):  # the first error says more
            found = self._find(connection, effect_key)
            _roll_back(connection)
            return found
        return None

    # the outbox

    def create_tables(self, *, dsn: str = "") -> None:
        """Make the two tables where they are missing; for tests and small programs."""
        with self._open(dsn) as connection:
            for statement in self.schema:
                connection.cursor().execute(statement)
            _commit(connection)

    def pending(self, *, limit: int = 100, dsn: str = "") -> list[Message]:
        """Messages that are not marked as sent, oldest effect first."""
        with self._open(dsn) as connection:
            cursor = connection.cursor()
            cursor.execute(*self._words.find_pending((0,)))
            rows: list[Any] = list(itertools.islice(iter(cursor.fetchone, None), limit))
            _roll_back(connection)
        return [
            Message(id=f"{key}/{number}", topic=topic, body=values.decode(str(body).encode()))
            for key, number, topic, body in rows
        ]

    def mark_sent(self, messages: Sequence[Message], *, dsn: str = "") -> None:
        """Say that these were handed on. Until then they are given again: use their ids."""
        with self._open(dsn) as connection:
            for message in messages:
                key, _, number = message.id.partition("/")
                connection.cursor().execute(*self._words.mark_sent((1, key, int(number))))
            _commit(connection)

    @contextlib.contextmanager
    def _open(self, dsn: str) -> Generator[Any]:
        try:
            connection = self._connect(dsn) if dsn else self._connect()
        except Exception as error:  # a driver may raise anything; nothing was sent
            raise NotSent(f"no connection: {text_of(error)}") from error
        try:
            if getattr(connection, "autocommit", False) is True:
                raise Misuse(
                    "the connection is in autocommit mode: a failed call could not be rolled back",
                    hint="connect with autocommit off",
                )
            yield connection
        finally:
            with contextlib.suppress(Exception):  # what was done is decided already
                connection.close()


def _begin(connection: Any) -> None:
    """SQLite's drivers are told to take the write lock at once; others begin by themselves."""
    if getattr(connection, "in_transaction", None) is False:
        connection.cursor().execute("BEGIN IMMEDIATE")


def _commit(connection: Any) -> None:
    if hasattr(connection, "commit"):
        connection.commit()
    elif connection.in_transaction:  # apsw
        connection.cursor().execute("COMMIT")


def _roll_back(connection: Any) -> None:
    with contextlib.suppress(Exception):  # gone, and with it all that was not committed
        if hasattr(connection, "rollback"):
            connection.rollback()
        elif connection.in_transaction:
            connection.cursor().execute("ROLLBACK")


def _same(known: tuple[str, str], digest: str) -> Any:
    """What the first attempt gave. Raises KeyReused where it was another request."""
    if known[0] != digest:
        raise KeyReused("the table already has a row with this effect key, but for other arguments")
    return values.decode(known[1].encode())


def _judged(error: BaseException) -> BaseException:
    """Before the commit nothing was done: a refusal, and where it may pass, one to come back to."""
    if isinstance(error, Refused | KeyReused | NotSent) or not isinstance(error, Exception):
        return error
    proof = {"error": type(error).__name__, "text": text_of(error)[:2000]}
    passing = any(kind.__name__ in _PASSING for kind in type(error).__mro__)
    return Refused(proof, retry_after_s=RETRY_AFTER_S if passing else None)


def _digest(args: Mapping[str, Any]) -> str:
    return hashlib.sha256(values.canonical(dict(args))).hexdigest()


class Words:
    """The statements in plain SQL, for one pair of tables and the parameter style of any driver."""

    def __init__(self, paramstyle: str, *, effects: str, outbox: str) -> None:
        if paramstyle not in _STYLES:
            raise Misuse(f"{paramstyle!r}: a paramstyle is one of {', '.join(_STYLES)}")
        self._style = paramstyle
        self._effects = effects
        self._outbox = outbox

    @property
    def schema(self) -> list[str]:
        return [
            f"CREATE TABLE IF NOT EXISTS {self._effects} (effect_key VARCHAR(36) NOT NULL PRIMARY KEY, "
            "task_id VARCHAR(26) NOT NULL, ordinal VARCHAR(200) NOT NULL, tool VARCHAR(200) NOT NULL, "
            "args_sha256 VARCHAR(64) NOT NULL, result TEXT NOT NULL, at_ms BIGINT NOT NULL)",
            f"CREATE TABLE IF NOT EXISTS {self._outbox} (effect_key VARCHAR(36) NOT NULL, number INTEGER NOT NULL, "
            "topic VARCHAR(200) NOT NULL, body TEXT NOT NULL, sent INTEGER NOT NULL, PRIMARY KEY (effect_key, number))",
        ]

    def insert_effect(self, row: Sequence[Any]) -> Bound:
        return self._made(
            f"INSERT INTO {self._effects} (effect_key, task_id, ordinal, tool, args_sha256, "
            "result, at_ms) VALUES (@, @, @, @, @, @, @)",
            row,
        )

    def set_result(self, row: Sequence[Any]) -> Bound:
        return self._made(f"UPDATE {self._effects} SET result = @ WHERE effect_key = @", row)

    def find_effect(self, row: Sequence[Any]) -> Bound:
        return self._made(f"SELECT args_sha256, result FROM {self._effects} WHERE effect_key = @", row)

    def insert_message(self, row: Sequence[Any]) -> Bound:
        return self._made(
            f"INSERT INTO {self._outbox} (effect_key, number, topic, body, sent) VALUES (@, @, @, @, @)", row
        )

    def find_pending(self, row: Sequence[Any]) -> Bound:
        return self._made(
            f"SELECT o.effect_key, o.number, o.topic, o.body FROM {self._outbox} o "
            f"JOIN {self._effects} e ON e.effect_key = o.effect_key WHERE o.sent = @ "
            "ORDER BY e.at_ms, o.effect_key, o.number",
            row,
        )

    def mark_sent(self, row: Sequence[Any]) -> Bound:
        return self._made(f"UPDATE {self._outbox} SET sent = @ WHERE effect_key = @ AND number = @", row)

    def _made(self, text: str, row: Sequence[Any]) -> Bound:
        first, *rest = text.split("@")
        marks = [_STYLES[self._style].format(n=n) for n in range(1, len(rest) + 1)]
        sql = first + "".join(mark + part for mark, part in zip(marks, rest, strict=True))
        if self._style == "named":
            return sql, {f"p{n}": value for n, value in enumerate(row, start=1)}
        return sql, tuple(row)
