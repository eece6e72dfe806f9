"""Contents of a task: values that its records name by digest, each kept once.

A content's record is deferred, so that it shares the commit of the step that first names it. It is
never named by a record that could become durable without it: a book's records leave in order.
"""

from __future__ import annotations

from holdfast.core.content import content_bytes, digest_of
from holdfast.core.values import PAYLOAD_BYTES_MAX, Json
from holdfast.errors import TooLarge
from holdfast.journal.records import Entry, Kind
from holdfast.runtime.session.task_writer import Book


class Contents:
    """The contents of one task, through its book."""

    __slots__ = ("_book",)

    def __init__(self, book: Book) -> None:
        self._book = book

    def named(self, value: Json, *, what: str) -> tuple[Json, str]:
        """The checked value as it may be written, and its digest. Nothing is recorded yet.

        Values of secrets become handles, unless the very value is kept already: a secret that was
        set since must not turn a replay into another talk. Raises TooLarge.
        """
        raw = content_bytes(value)
        if len(raw) > PAYLOAD_BYTES_MAX:
            raise TooLarge(f"{what} has {len(raw):,} bytes of JSON; the limit is {PAYLOAD_BYTES_MAX:,}")
        digest = digest_of(raw)
        known = self._book.view.contents.get(digest)
        if known is not None:
            return known, digest
        secrets = self._book.secrets
        if secrets.active and (clean := secrets.value(value)) is not value:
            return clean, digest_of(content_bytes(clean))
        return value, digest

    def record(self, value: Json, digest: str) -> None:
        """Have it in the journal with the next commit, if it is not there."""
        if digest not in self._book.view.contents:
            body = {"digest": digest, "value": value}
            self._book.defer(Entry(kind=Kind.CONTENT, body=body))
