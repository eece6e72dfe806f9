"""The statements of the SQL contract, in plain SQL and in the parameter style of any driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import Misuse

Statement = tuple[str, Sequence[Any] | Mapping[str, Any]]  # Any: values that a driver can bind

_STYLES = {"qmark": "?", "format": "%s", "pyformat": "%s", "numeric": ":{n}", "named": ":p{n}"}


class Words:
    """Statements for one pair of tables and one style."""

    def __init__(self, paramstyle: str, *, effects: str, outbox: str) -> None:
        if paramstyle not in _STYLES:
            raise Misuse(f"{paramstyle!r}: a paramstyle is one of {', '.join(_STYLES)}")
        self._style = paramstyle
        self._effects = effects
        self._outbox = outbox

    @property
    def schema(self) -> list[str]:
        return [
            f"CREATE TABLE IF NOT EXISTS {self._effects} (effect_key VARCHAR(36) NOT NULL "
            "PRIMARY KEY, task_id VARCHAR(26) NOT NULL, ordinal VARCHAR(200) NOT NULL, "
            "tool VARCHAR(200) NOT NULL, args_sha256 VARCHAR(64) NOT NULL, result TEXT NOT NULL, "
            "at_ms BIGINT NOT NULL)",
            f"CREATE TABLE IF NOT EXISTS {self._outbox} (effect_key VARCHAR(36) NOT NULL, "
            "number INTEGER NOT NULL, topic VARCHAR(200) NOT NULL, body TEXT NOT NULL, "
            "sent INTEGER NOT NULL, PRIMARY KEY (effect_key, number))",
        ]

    def insert_effect(self, row: Sequence[Any]) -> Statement:
        return self._made(
            f"INSERT INTO {self._effects} (effect_key, task_id, ordinal, tool, args_sha256, "
            "result, at_ms) VALUES (@, @, @, @, @, @, @)",
            row,
        )

    def set_result(self, row: Sequence[Any]) -> Statement:
        return self._made(f"UPDATE {self._effects} SET result = @ WHERE effect_key = @", row)

    def find_effect(self, row: Sequence[Any]) -> Statement:
        return self._made(f"SELECT args_sha256, result FROM {self._effects} WHERE effect_key = @", row)

    def insert_message(self, row: Sequence[Any]) -> Statement:
        return self._made(
            f"INSERT INTO {self._outbox} (effect_key, number, topic, body, sent) VALUES (@, @, @, @, @)", row
        )

    def find_pending(self, row: Sequence[Any]) -> Statement:
        return self._made(
            f"SELECT o.effect_key, o.number, o.topic, o.body FROM {self._outbox} o "
            f"JOIN {self._effects} e ON e.effect_key = o.effect_key WHERE o.sent = @ "
            "ORDER BY e.at_ms, o.effect_key, o.number",
            row,
        )

    def mark_sent(self, row: Sequence[Any]) -> Statement:
        return self._made(f"UPDATE {self._outbox} SET sent = @ WHERE effect_key = @ AND number = @", row)

    def _made(self, text: str, row: Sequence[Any]) -> Statement:
        first, *rest = text.split("@")
        marks = [_STYLES[self._style].format(n=n) for n in range(1, len(rest) + 1)]
        sql = first + "".join(mark + part for mark, part in zip(marks, rest, strict=True))
        if self._style == "named":
            return sql, {f"p{n}": value for n, value in enumerate(row, start=1)}
        return sql, tuple(row)
