"""The boundaries of the runtime, seen from the journal's port: where a kill shows whether a task survives it.

    commit-N-before, -after   a journal commit of the task: nothing of it is written yet; all of it is
    byte-N-before, -after     the first byte of an attempt: the mark "a byte may have left" is not set yet; it is set,
                              and nothing has left
    model-N-before, -after    the same of a model call

An effect that has happened and is not recorded is the `before` of the commit that follows. Only a process that is
asked to puts this around its journal (`holdfast.open(wrap=...)`); every other one has no trace of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from holdfast.core.step import Event
from holdfast.journal.records import NewRecord, RecordKind
from holdfast.runtime.task.talk import ASK

if TYPE_CHECKING:
    from holdfast.journal.contract import Claimed, Hold, InboxItem, Journal, Session, Submission, Submitted, Taker

Kind = Literal["commit", "byte", "model"]
When = Literal["before", "after"]


class Boundary(msgspec.Struct, frozen=True, kw_only=True):
    """One of them. The same code with the same answers reaches the same ones in the same order."""

    kind: Kind
    number: int  # of its kind, from 1
    when: When
    what: str  # for people

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.number}-{self.when}"


Reach = Callable[[Boundary], None]


class WatchedJournal:
    """A journal whose process says which boundary it reaches. Any: what the port takes is passed on as it is."""

    def __init__(self, journal: Journal, reach: Reach) -> None:
        self._journal = journal
        self._reach = reach
        self._counts: Counter[Kind] = Counter()
        self._tools: dict[str, str] = {}  # by ordinal
        self._sending = ""  # the step whose start was written last

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    async def open_session(self, **options: Any) -> Session:
        return cast("Session", WatchedSession(await self._journal.open_session(**options), self))

    async def renew(self, session: Session) -> None:
        await self._journal.renew(_inner(session))

    async def end_session(self, session: Session, **options: Any) -> None:
        await self._journal.end_session(_inner(session), **options)

    async def claim(self, session: Session, **options: Any) -> list[Claimed]:
        found = await self._journal.claim(_inner(session), **options)
        if found:  # a claim that takes nothing writes nothing
            self._passed(self._next("commit"), "commit", "the task is claimed")
        return found

    async def submit(self, submission: Submission, *, taker: Taker | None = None) -> Submitted:
        with self._crossing("commit", "the task is submitted"):
            return await self._journal.submit(submission)  # what it claims passes `claim`

    async def append(self, hold: Hold, entries: Sequence[NewRecord], **options: Any) -> list[int]:
        with self._crossing("commit", self._describe(entries)):
            return await self._journal.append(hold, entries, **options)

    async def drop(self, item: InboxItem, **options: Any) -> int:
        with self._crossing("commit", f"{item.kind} for step {item.ordinal}"):
            return await self._journal.drop(item, **options)

    async def put_blobs(self, contents: Sequence[bytes], **options: Any) -> list[str]:
        with self._crossing("commit", "files are kept"):
            return await self._journal.put_blobs(contents, **options)

    def mark_begun(self, session: Session, slot: int) -> None:
        tool = self._tools.get(self._sending, "")
        kind: Kind = "model" if tool == ASK else "byte"
        what = f"a model is asked at step {self._sending}" if tool == ASK else f"step {self._sending} {tool} is sent"
        with self._crossing(kind, what):
            session.mark_begun(slot)

    def _next(self, kind: Kind) -> int:
        self._counts[kind] += 1
        return self._counts[kind]

    @contextmanager
    def _crossing(self, kind: Kind, what: str) -> Generator[None]:
        """The boundary before the work, and the one after it where it succeeds."""
        number = self._next(kind)
        self._reach(Boundary(kind=kind, number=number, when="before", what=what))
        yield
        self._passed(number, kind, what)

    def _passed(self, number: int, kind: Kind, what: str) -> None:
        self._reach(Boundary(kind=kind, number=number, when="after", what=what))

    def _describe(self, entries: Collection[NewRecord]) -> str:
        for one in entries:
            if one.kind is RecordKind.STEP and "tool" in one.body:
                self._tools[one.ordinal] = str(one.body["tool"])
            if Event.START in one.events:
                self._sending = one.ordinal
        said = [self._said(one) for one in entries]
        return "; ".join(one for one in said if one) or "a record of the task"

    def _said(self, entry: NewRecord) -> str:
        if entry.kind is not RecordKind.STEP:
            return "" if entry.kind is RecordKind.CONTENT else f"{entry.kind.name.lower()} {entry.ordinal}".strip()
        events = ", ".join(event.name.lower() for event in entry.events)
        return f"step {entry.ordinal} {self._tools.get(entry.ordinal, '')}: {events}"


class WatchedSession:
    """A session whose sends are boundaries."""

    def __init__(self, session: Session, journal: WatchedJournal) -> None:
        self.inner = session
        self._journal = journal

    def __getattr__(self, name: str) -> Any:  # Any: whatever the session has
        return getattr(self.inner, name)

    def mark_begun(self, slot: int) -> None:
        self._journal.mark_begun(self.inner, slot)


def _inner(session: Session) -> Session:
    return session.inner if isinstance(session, WatchedSession) else session
