"""One writer: a process that appends to a task of its own, and writes down what was acknowledged to it.

It does what a worker does: a session with a lease that it renews, a claim, appends; a commit in doubt is confirmed, and
what is lost sight of is claimed again. A process whose lease ends starts again, as a worker's supervisor makes it do.
Each append carries a token that is used once. The log of this process is the truth that the journal is compared with.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.ids import TaskId, task_id_from_bytes
from holdfast.core.step import Event
from holdfast.errors import CommitUnknown, HoldfastError
from holdfast.journal.contract import Change, Claimed, CommitOutcome, InboxItem, InboxKind, Journal, Session, Submission
from holdfast.journal.postgres.lane import Lane
from holdfast.journal.postgres.links import Link
from holdfast.journal.postgres.opening import open_journal
from holdfast.journal.postgres.place import PostgresPlace
from holdfast.journal.records import NewRecord, RecordKind, TaskState

TTL_MS = 3_000
PAUSE_S = 0.02
OPEN_S = 15.0  # a server that cannot commit lets nobody in: start again, perhaps at the other one
TASK = "written"


class ProofKeys:
    """The same at every writer and at the judge."""

    current_journal_key = 1
    k_effect = b"e" * 32

    def journal_key(self, key_id: int) -> bytes:
        return bytes([key_id]) * 32


def task_of(writer: int, round_number: int) -> TaskId:
    return task_id_from_bytes(writer.to_bytes(8, "big") + round_number.to_bytes(8, "big"))


class Writer:
    def __init__(self, given: argparse.Namespace) -> None:
        self._number: int = given.number
        self._place = PostgresPlace.read(given.url)
        self._folder: Path = given.folder
        self._log = os.open(self._folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._lost = asyncio.Event()

    def say(self, *words: object) -> None:
        os.write(self._log, (" ".join(map(str, words)) + f" @{time.monotonic():.2f}\n").encode())

    def round(self) -> int:
        return int((self._folder.parent / "round").read_text())

    async def run(self) -> None:
        while True:
            async with asyncio.timeout(OPEN_S):  # then the process starts again
                journal = await self._open()
                session = await journal.open_session(worker=f"writer {self._number}", ttl_ms=TTL_MS)
            self.say("session")
            renewing = asyncio.create_task(self._renew(journal, session))
            try:
                while not renewing.done():
                    await self._work(journal, session, self.round())
            except HoldfastError as error:
                self.say("trouble", type(error).__name__, error.message)
            renewing.cancel()
            with suppress(HoldfastError, TimeoutError):
                async with asyncio.timeout(OPEN_S):
                    await journal.close()

    async def _open(self) -> Journal:
        while True:
            try:
                return await open_journal(
                    self._place,
                    self._folder / "instance",
                    keys=ProofKeys(),
                    clock=SystemClock(),
                    entropy=SystemEntropy(),
                    create=True,
                )
            except HoldfastError as error:
                self.say("closed", type(error).__name__, error.message)
                await asyncio.sleep(0.2)

    async def _renew(self, journal: Journal, session: Session) -> None:
        clock = SystemClock()
        while True:
            left_s = (session.deadline_boot_ms - clock.boot_ms()) / 1000
            try:
                async with asyncio.timeout(left_s):
                    await asyncio.sleep(min(left_s, TTL_MS / 4000))
                    await journal.renew(session)
            except (TimeoutError, HoldfastError):
                if clock.boot_ms() >= session.deadline_boot_ms:
                    self.say("lease over")
                    self._lost.set()
                    return

    async def wait_lost(self) -> None:
        await self._lost.wait()

    async def _work(self, journal: Journal, session: Session, round_number: int) -> None:
        """Append to the task of this round until the next one begins."""
        task_id = task_of(self._number, round_number)
        await journal.submit(
            Submission(task_id=task_id, name=TASK, args={}, args_fingerprint=b"0" * 16, request_id=str(round_number))
        )
        while not (taken := await journal.claim(session, names=(TASK,), limit=1, task_id=task_id, alone=True)):
            row = await journal.find_task(task_id)
            await asyncio.sleep(PAUSE_S)
            if row is not None and row.state is TaskState.SUCCEEDED:
                return
            if row is not None and row.state is TaskState.PARKED:  # its process died three times: a person's matter
                await journal.drop(InboxItem(task_id=task_id, ordinal="", kind=InboxKind.RETRY, body={"by": "writer"}))
        (claimed,) = taken
        if await self._append_all(journal, claimed, round_number):
            finished = NewRecord(kind=RecordKind.FINISHED, body={"state": "succeeded", "result": None})
            await journal.append(claimed.hold, [finished], change=Change(state=TaskState.SUCCEEDED))

    async def _append_all(self, journal: Journal, claimed: Claimed, round_number: int) -> bool:
        """Whether the round is over; else the hold is not known any more."""
        hold, written = claimed.hold, len(claimed.view.steps)
        while self.round() == round_number:
            token = os.urandom(8).hex()
            entries = _step(str(written + 1), token)
            try:
                await journal.append(hold, entries)
            except CommitUnknown:
                found = await journal.confirm(hold, seq=hold.seq + len(entries))
                self.say("confirmed", found)
                if found is CommitOutcome.ABORTED:
                    continue
                await journal.release(hold)
                return False
            written += 1
            self.say("ack", round_number, written, token)
            await asyncio.sleep(PAUSE_S)
        return True


def _step(ordinal: str, token: str) -> list[NewRecord]:
    """All or none: a step that is done, in two records."""
    begun = NewRecord(
        kind=RecordKind.STEP,
        ordinal=ordinal,
        events=(Event.PLAN, Event.START),
        body={"letter": "K", "tool": "write", "args": {"text": "x" * 1_000}},
        effect_key=hashlib.sha256(token.encode()).digest()[:16],
        fingerprint=b"f" * 16,
    )
    return [begun, NewRecord(kind=RecordKind.STEP, ordinal=ordinal, events=(Event.SUCCEED,), body={"result": token})]


def count_doubts(say: Callable[..., None]) -> None:
    """Write down how each batch in doubt was settled."""
    lane: Any = Lane
    settle: Callable[[Any, Link], Awaitable[bool]] = lane._settle

    async def settled(self: Any, link: Link) -> bool:
        found = await settle(self, link)
        say("settled", "committed" if found else "aborted")
        return found

    lane._settle = settled


def weaken() -> None:
    """Commits wait for no standby: what the proof must notice. Statements reach the server in two ways."""
    connection: Any = psycopg.AsyncConnection
    place: Any = PostgresPlace
    execute, sql = connection.execute, place.sql

    def weaker(query: bytes) -> bytes:
        query = query.replace(b"synchronous_commit = on", b"synchronous_commit = local")
        return query.replace(b"'synchronous_commit', 'on'", b"'synchronous_commit', 'local'")

    async def weak(self: Any, query: bytes, *values: Any, **more: Any) -> Any:
        return await execute(self, weaker(query), *values, **more)

    connection.execute = weak
    place.sql = lambda self, text: weaker(sql(self, text))  # pyright: ignore[reportUnknownLambdaType]


async def _run(given: argparse.Namespace) -> None:
    writer = Writer(given)
    count_doubts(writer.say)
    running = [asyncio.ensure_future(writer.run()), asyncio.ensure_future(writer.wait_lost())]
    done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    for one in done:
        if error := one.exception():
            writer.say("ended", repr(error))
    # As a kill would: nothing of this life goes on. The next one reads what is there.
    os.execv(sys.executable, (sys.executable, "-m", "holdfast_proofs.failovers.writer", *sys.argv[1:]))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--weak", action="store_true")
    given = parser.parse_args(arguments)
    if given.weak:
        weaken()
    asyncio.run(_run(given))


if __name__ == "__main__":
    main()
