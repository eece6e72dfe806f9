"""Taking mail in: commit, then `received`, then a delivery note, then `secured`; in this order, whatever is killed.

    next        deliveries of all relays
    commit      a letter becomes a task, a delivery note becomes evidence of the step that sent the message
    received    to every relay that has it; a kill before it: the relays deliver again, and the commit finds the task
    note        to the sender, signed; one that is lost is made again when the sender sends again
    secured     by the rule of app/mail/held_mail.py; a kill before it: the relays keep held mail longer

What the journal does not take (a full disk) is not acknowledged, and waits at the relays. What cannot be read, or be
kept as JSON, is a dead letter: it becomes a task that fails with the reason, a person gets a notice, and the relays
hear that it was received, else it comes again for ever. After a restore all held mail is asked for again: a copy that
the journal has is only acknowledged again.

A message names those that were sent before it in its thread. One whose predecessor is not in the journal waits here,
and at the relays, until that one is committed, at most `thread_wait_s`; then it is committed with a mark of what is
missing. Nothing of this is kept: what waits here when the process ends comes again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from holdfast.app.mail.held_mail import Received
from holdfast.core.ids import EffectKey, effect_key_bytes
from holdfast.core.mail import Delivery, DeliveryNote, Letter, Mailbox, Post
from holdfast.core.notices import dead_letter_notice
from holdfast.errors import BadValue, HoldfastError, JournalBusy, JournalFull, TaskNotFound, TooLarge
from holdfast.host.log import Log
from holdfast.journal.bodies import EvidenceGiven
from holdfast.journal.contract import InboxItem, InboxKind, Journal
from holdfast.journal.records import Body, TaskView
from holdfast.runtime.secrets import NO_SECRETS, Secrets
from holdfast.runtime.task.mail_task import NOTE_SOURCE, dead_submission, mail_submission, mail_task_id, note_of
from holdfast.runtime.tool.mail_tool import NAME as SEND_MAIL

NOTE_KEYS_MAX = 32  # in one note: the signed text is kept as evidence of each
NOTE_TRIES, NOTE_AGAIN_S = 5, 2.0
NOTED_S = 60.0  # within this time a further copy of a message gets no second note
NOTED_MAX = 20_000
NOTES_WAITING_MAX = 10_000  # keys; beyond that a sender gets its note when it sends again
JOURNAL_AGAIN_S = 0.5
GAP_LOOK_S = 0.5  # between two looks whether a message has waited long enough
THREAD_WAIT_S = 30.0
DEAD_MAX, DEAD_S = 200, 3_600.0  # dead letters in the journal in this time: a stranger must not fill it
LOOK_S = 10.0  # between two looks whether mail can be secured
MARKS_MAX = 10_000


@dataclass(kw_only=True, eq=False)
class Intake:
    """Takes mail of one mailbox into one journal, while `run` runs."""

    journal: Journal
    mailbox: Mailbox
    post: Post
    k_effect: bytes
    salt: bytes
    newest_record: Callable[[], Awaitable[int]]
    secured_now: Callable[[Sequence[Received], float], Awaitable[int]]
    log: Log
    secrets: Secrets = NO_SECRETS
    look_s: float = LOOK_S
    thread_wait_s: float = THREAD_WAIT_S
    _waiting: list[tuple[float, Delivery]] = field(default_factory=list[tuple[float, Delivery]])
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _dead: deque[float] = field(default_factory=lambda: deque(maxlen=DEAD_MAX))
    _received: deque[Received] = field(default_factory=lambda: deque(maxlen=MARKS_MAX))
    _owed: dict[str, list[EffectKey]] = field(default_factory=dict[str, list[EffectKey]])
    _noted: OrderedDict[tuple[str, EffectKey], float] = field(default_factory=OrderedDict[tuple[str, EffectKey], float])
    _owes: asyncio.Event = field(default_factory=asyncio.Event)
    _secured: int = 0

    async def run(self, *, rewind: bool) -> None:
        """Until cancelled. Raises what ends the mailbox: KeysReplaced, AgentElsewhere."""
        if rewind:
            await self.mailbox.rewind(after=0)
        self._received.append(Received(time.monotonic(), await self.newest_record()))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send_notes())
            group.create_task(self._keep_securing())
            group.create_task(self._end_gaps())
            await self._take_all()

    async def _take_all(self) -> None:
        while True:
            deliveries = await self.mailbox.next()
            if deliveries:
                await self.take(deliveries)

    async def take(self, deliveries: Sequence[Delivery]) -> None:
        """Commit them, acknowledge them, owe their senders a note; but not those that must wait for others."""
        async with self._turn:
            due = time.monotonic() + self.thread_wait_s
            self._waiting += [(due, one) for one in deliveries]
            ready = await self._take_ready()
            if not ready:
                return
            await asyncio.gather(*(self._commit(one) for one in ready))
            mark = await self.newest_record()
            await self.mailbox.received(ready, mark=mark)
            self._received.append(Received(time.monotonic(), mark))
            for one in ready:
                if one.letter is not None:
                    self._owe(one.letter)

    # the order in a thread

    async def _take_ready(self) -> list[Delivery]:
        """Those that wait for nothing, each after those that it names; they are committed in this order."""
        ready, names = list[Delivery](), set[tuple[str, str]]()
        now_s, found = time.monotonic(), True
        while found:
            found = False
            waiting, self._waiting = self._waiting, []
            for due, one in waiting:
                missing = await self._missing(one.letter, names)
                if missing and now_s < due:
                    self._waiting.append((due, one))
                    continue
                found = True
                if one.letter is not None:
                    names.add((one.letter.sender, one.letter.key))
                ready.append(_marked(one, missing))
        return ready

    async def _missing(self, letter: Letter | None, names: set[tuple[str, str]]) -> tuple[EffectKey, ...]:
        """Keys of messages before this one that have not come."""
        if letter is None:
            return ()
        unknown = [key for key in letter.after if (letter.sender, key) not in names]
        return tuple([key for key in unknown if not await self._has(letter.sender, key)])

    async def _has(self, sender: str, key: EffectKey) -> bool:
        if (sender, key) in self._noted:
            return True
        task_id = mail_task_id(sender, key, k_effect=self.k_effect, salt=self.salt)
        return await self.journal.find_task(task_id) is not None

    async def _end_gaps(self) -> None:
        while True:
            await asyncio.sleep(GAP_LOOK_S)
            if self._waiting:
                await self.take(())

    # what is committed

    async def _commit(self, delivery: Delivery) -> None:
        while True:
            try:
                if delivery.letter is not None:
                    await self._commit_letter(delivery, delivery.letter)
                elif delivery.note is not None:
                    await self._commit_note(delivery.note)
                else:
                    await self._tell_dead(delivery.id, delivery.sender, delivery.fault)
                return
            except (JournalFull, JournalBusy) as error:
                self.log.event("mail-waits", error=error.message)
                await asyncio.sleep(JOURNAL_AGAIN_S)

    async def _commit_letter(self, delivery: Delivery, letter: Letter) -> None:
        try:
            submission = mail_submission(letter, k_effect=self.k_effect, salt=self.salt, hide=self.secrets.value)
        except (BadValue, TooLarge) as error:
            await self._tell_dead(delivery.id, letter.sender, error.message)
            return
        done = await self.journal.submit(submission)
        if done.created:
            self.log.event("mail-received", sender=letter.sender, key=letter.key, task_id=done.task_id)

    async def _commit_note(self, note: DeliveryNote) -> None:
        """Only the recipient of a message can know its key: the relays see a digest of it."""
        for key in note.keys:
            found = await self.journal.find_effect(effect_key_bytes(key))
            if found is None:
                continue
            task_id, ordinal = found
            result: Body = {"to": note.sender, "key": key, "relays": [], "stored": [], "note": note.proof}
            body = EvidenceGiven("succeeded", result, NOTE_SOURCE).body()
            item = InboxItem(task_id=task_id, ordinal=ordinal, kind=InboxKind.EVIDENCE, body=body)
            with contextlib.suppress(TaskNotFound, _NotTaken):  # erased meanwhile; known, or no message of ours
                await self.journal.drop(item, check=partial(_check_note, ordinal))

    async def _tell_dead(self, envelope: str, sender: str, fault: str) -> None:
        self.log.event("mail-dead", envelope=envelope, sender=sender, fault=fault)
        now_s = time.monotonic()
        if len(self._dead) == DEAD_MAX and now_s - self._dead[0] < DEAD_S:
            return  # the log has it
        self._dead.append(now_s)
        submission = dead_submission(
            envelope, sender, fault, k_effect=self.k_effect, salt=self.salt, hide=self.secrets.value
        )
        await self.journal.submit(submission)
        said = f"from {sender}: {fault}" if sender else fault
        await self.journal.add_notice(
            self.secrets.notice(dead_letter_notice(envelope, said, now_ms=self.journal.now_ms()))
        )

    # delivery notes

    def _owe(self, letter: Letter) -> None:
        """Not for the copy of another relay; but when the sender sends again, because the first note may be lost."""
        name, now_s = (letter.sender, letter.key), time.monotonic()
        if now_s - self._noted.get(name, -NOTED_S) < NOTED_S:
            return
        self._noted[name] = now_s
        if len(self._noted) > NOTED_MAX:
            self._noted.popitem(last=False)
        if sum(map(len, self._owed.values())) < NOTES_WAITING_MAX:
            self._owed.setdefault(letter.sender, []).append(letter.key)
            self._owes.set()

    async def _send_notes(self) -> None:
        while True:
            await self._owes.wait()
            self._owes.clear()
            owed, self._owed = self._owed, {}
            for sender, keys in owed.items():
                for start in range(0, len(keys), NOTE_KEYS_MAX):
                    await self._send_note(sender, keys[start : start + NOTE_KEYS_MAX])

    async def _send_note(self, sender: str, keys: Sequence[EffectKey]) -> None:
        """A sender that cannot be reached gets none: it has the signed words of its relays."""
        for attempt in range(1, NOTE_TRIES + 1):
            try:
                await self.post.note(to=sender, keys=keys)
                return
            except (HoldfastError, OSError, TimeoutError) as error:
                if attempt == NOTE_TRIES:
                    self.log.event("note-failed", to=sender, keys=len(keys), error=str(error))
                else:
                    await asyncio.sleep(NOTE_AGAIN_S * attempt)

    # securing

    async def _keep_securing(self) -> None:
        while True:
            await asyncio.sleep(self.look_s)
            try:
                await self.secure()
            except (HoldfastError, OSError) as error:
                self.log.event("mail-unsecured", error=str(error))

    async def secure(self) -> int:
        """Say `secured` up to where the rule allows; that mark."""
        up_to = await self.secured_now(tuple(self._received), time.monotonic())
        if up_to > self._secured:
            await self.mailbox.secured(up_to=up_to)
            self._secured = up_to
            while self._received and self._received[0].mark <= up_to:
                self._received.popleft()
        return up_to


def _marked(delivery: Delivery, missing: tuple[EffectKey, ...]) -> Delivery:
    """The delivery, with a mark of what has not come."""
    letter = delivery.letter
    if letter is None or letter.missing == missing:
        return delivery
    return msgspec.structs.replace(delivery, letter=msgspec.structs.replace(letter, missing=missing))


class _NotTaken(Exception):
    """The step has its note, or sent no mail."""


def _check_note(ordinal: str, view: TaskView, inbox: Sequence[InboxItem]) -> None:
    step = view.steps.get(ordinal)
    if step is None or step.tool != SEND_MAIL or note_of(inbox, ordinal) is not None:
        raise _NotTaken
