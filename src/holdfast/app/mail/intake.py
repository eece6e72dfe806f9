"""Taking mail in: commit, then `received` and a delivery note, then `secured`; in this order, whatever is killed.

    next        deliveries of all relays
    commit      a letter becomes a task, a delivery note becomes evidence of the step that sent the message
    received    to every relay that has it; a kill before it: the relays deliver again, and the commit finds the task
    note        to the sender, signed; one that is lost is made again when the sender sends again
    secured     by the rule of app/mail/held_mail.py; a kill before it: the relays keep held mail longer

Each `received` is a request and a sync at a relay, and each note is a message. So `received` waits a moment for others,
and a sender that has just got a note gets the next one 20 to 40 seconds later, for all messages since; sooner if that
note is full. That time is left to chance: senders that began together must not all get their notes in one moment,
again and again. A process that is told to end first sends the notes and acknowledgements that wait.

What the journal does not take (a full disk) is not acknowledged, and waits at the relays. What cannot be read, or be
kept as JSON, is a dead letter: it becomes a task that fails with the reason, a person gets a notice, the relays hear
that it was refused, and its sender gets no note. After a restore all held mail is asked for again: a copy that
the journal has is only acknowledged again.

A message names those that were sent before it in its thread. One whose predecessor is not in the journal waits here,
and at the relays, until that one is committed, at most `thread_wait_s`; then it is committed with a mark of what is
missing. Of one sender a limited number waits, so that it cannot hold up others. Nothing of this is kept: what waits
here when the process ends comes again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import msgspec

from holdfast.app.mail.held_mail import Received
from holdfast.app.mail.mail_room import FULL_PERCENT
from holdfast.core.ids import EffectKey, TaskId, effect_key_bytes
from holdfast.core.mail import Delivery, DeliveryNote, Letter, Mailbox, Post, id_in
from holdfast.core.notices import dead_letter_notice, dead_letters_notice, mail_room_notice
from holdfast.core.waiting import wait_event
from holdfast.errors import BadValue, HoldfastError, JournalBusy, JournalFull, TaskNotFound, TooLarge
from holdfast.host.log import Log
from holdfast.journal.bodies import EvidenceGiven
from holdfast.journal.contract import InboxItem, InboxKind, Journal, Submission, Submitted
from holdfast.journal.durability import Life
from holdfast.journal.records import Body, StepView, TaskView
from holdfast.relay.bounded import keep_newest
from holdfast.runtime.secrets import NO_SECRETS, Secrets
from holdfast.runtime.task.mail_task import NOTE_SOURCE, dead_submission, mail_submission, mail_task_id, note_of
from holdfast.runtime.tool.mail_tool import NAME as SEND_MAIL

NOTE_KEYS_MAX = 32  # in one note: the signed text is kept as evidence of each
NOTE_TRIES, NOTE_AGAIN_S = 5, 2.0
NOTES_AT_ONCE = 32  # tries; between two tries a sender holds up no other
NOTE_EVERY_S = 40.0  # between two notes to one sender, at most; at least half of it
ACK_WAIT_S, ACKS_MAX = 1.5, 128  # how long `received` waits; with so many it waits no longer
NOTED_S = 60.0  # within this time a further copy of a message gets no second note
NOTED_MAX = 20_000
END_S = 1.0  # for what waits at the end
NOTES_WAITING_MAX = 10_000  # keys; beyond that a sender gets its note when it sends again
JOURNAL_AGAIN_S = 0.5
GAP_LOOK_S = 0.5  # between two looks whether a message has waited long enough
THREAD_WAIT_S = 30.0
GAPS_MAX = 256  # messages of one sender that wait for others: less than a mailbox hands out (UNACKED_MAX)
DEAD_MAX, DEAD_S = 200, 3_600.0  # dead letters in the journal in this time: a stranger must not fill it
LOOK_S = 10.0  # between two looks whether mail can be secured
MARKS_MAX = 10_000
SEARCH_SHARE = 100  # looking for keys that the journal does not have takes at most this part of the time


@dataclass(kw_only=True, eq=False)
class Intake:
    """Takes mail of one mailbox into one journal, while `run` runs."""

    journal: Journal
    submit: Callable[[Submission], Awaitable[Submitted]]
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
    ack_wait_s: float = ACK_WAIT_S
    note_every_s: float = NOTE_EVERY_S
    sent_to: Callable[[EffectKey], str] = lambda _key: ""  # to which agent this process has sent mail under the key
    rewound: Collection[str] = ()  # keys of relays that have delivered held mail again since the restore
    on_rewound: Callable[[str], None] = lambda _relay: None
    life_of: Callable[[str], Life | None] = lambda _echo: None  # in which a message with this word was first sent
    keep_fill: Callable[[Mapping[str, int]], None] = lambda _fill: None  # how full the relays are, for `doctor`
    keep_trouble: Callable[[Mapping[str, str]], None] = lambda _trouble: None  # with relays, for `doctor`
    known_id: Callable[[str], str] = lambda _to: ""  # the agent of an address, as far as this process knows it
    _waiting: list[tuple[float, Delivery]] = field(default_factory=list[tuple[float, Delivery]])
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _dead: deque[float] = field(default_factory=lambda: deque(maxlen=DEAD_MAX))
    _received: deque[Received] = field(default_factory=lambda: deque(maxlen=MARKS_MAX))
    _acks: list[Delivery] = field(default_factory=list[Delivery])
    _acks_owed: asyncio.Event = field(default_factory=asyncio.Event)
    _acks_full: asyncio.Event = field(default_factory=asyncio.Event)
    _owed: dict[str, list[EffectKey]] = field(default_factory=dict[str, list[EffectKey]])
    _note_due: dict[str, float] = field(default_factory=dict[str, float])  # of the next note to a sender
    _noted: OrderedDict[tuple[str, EffectKey], float] = field(default_factory=OrderedDict[tuple[str, EffectKey], float])
    _kept: OrderedDict[EffectKey, None] = field(default_factory=OrderedDict[EffectKey, None])  # whose note came
    _noting: set[str] = field(default_factory=set[str])  # senders that a note is on its way to
    _note_turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(NOTES_AT_ONCE))
    _owes: asyncio.Event = field(default_factory=asyncio.Event)
    _search_s: float = 0.0  # not before this time is a key looked for that this process has not sent
    _secured: int = 0
    _troubles: dict[str, str] = field(default_factory=dict[str, str])  # by url of the relay

    async def run(self, *, rewind: bool) -> None:
        """Until cancelled. Raises what ends the mailbox: KeysReplaced, AgentElsewhere."""
        if rewind:
            await self.mailbox.rewind(after=0, done=self.rewound, on_done=self.on_rewound)
        self._received.append(Received(time.monotonic(), await self.newest_record()))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_acknowledging())
            group.create_task(self._send_notes())
            group.create_task(self._keep_securing())
            group.create_task(self._end_gaps())
            try:
                await self._take_all()
            except asyncio.CancelledError:
                await self._send_what_waits()
                raise

    async def _take_all(self) -> None:
        while True:
            deliveries = await self.mailbox.next()
            if deliveries:
                await self.take(deliveries)

    async def take(self, deliveries: Sequence[Delivery]) -> None:
        """Commit them, owe their relays `received` and their senders a note; but not those that wait for others."""
        async with self._turn:
            due = time.monotonic() + self.thread_wait_s
            self._waiting += [(due, one) for one in deliveries]
            ready = await self._take_ready()
            if not ready:
                return
            ready = await asyncio.gather(*(self._commit(one) for one in ready))
            for one in ready:
                if one.letter is not None:
                    self._owe(one.letter)
            self._acks += ready
            self._acks_owed.set()
            if len(self._acks) >= ACKS_MAX:
                self._acks_full.set()

    # received

    async def _keep_acknowledging(self) -> None:
        while True:
            await self._acks_owed.wait()
            await wait_event(self._acks_full, self.ack_wait_s)
            await self._acknowledge()

    async def _acknowledge(self) -> None:
        self._acks_owed.clear()
        self._acks_full.clear()
        acks, self._acks = self._acks, []
        if not acks:
            return
        mark = await self.newest_record()  # they were committed before it
        await self.mailbox.received(acks, mark=mark)
        self._received.append(Received(time.monotonic(), mark))

    async def _send_what_waits(self) -> None:
        """Else this mail would come again after the next start, and its senders would send it again."""
        owed, self._owed = self._owed, {}
        notes = [self._send_all_notes(sender, keys) for sender, keys in owed.items()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await asyncio.gather(self._acknowledge(), *notes, return_exceptions=True)

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
            if not found:
                found = self._end_oldest_gaps()
        return ready

    def _end_oldest_gaps(self) -> bool:
        """Of a sender with too many messages that wait, the oldest ones wait no longer; whether there are any."""
        count = Counter(one.letter.sender for _, one in self._waiting if one.letter is not None)
        ended = False
        for at, (_, one) in enumerate(self._waiting):
            if one.letter is not None and count[one.letter.sender] > GAPS_MAX:
                count[one.letter.sender] -= 1
                self._waiting[at], ended = (0.0, one), True
        return ended

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

    async def _commit(self, delivery: Delivery) -> Delivery:
        """The delivery; a letter that the journal cannot keep has become a dead one."""
        while True:
            try:
                if delivery.letter is not None:
                    fault = await self._commit_letter(delivery, delivery.letter)
                    if fault:
                        delivery = msgspec.structs.replace(delivery, letter=None, fault=fault)
                elif delivery.note is not None:
                    await self._commit_note(delivery.note)
                else:
                    await self._tell_dead(delivery.id, delivery.sender, delivery.fault)
                return delivery
            except (JournalFull, JournalBusy) as error:
                self.log.event("mail-waits", error=error.message)
                await asyncio.sleep(JOURNAL_AGAIN_S)

    async def _commit_letter(self, delivery: Delivery, letter: Letter) -> str:
        """Why the journal cannot keep it; empty where it can."""
        if (letter.sender, letter.key) in self._noted:
            return ""  # the copy of another relay: this process has committed the first one
        try:
            submission = mail_submission(letter, k_effect=self.k_effect, salt=self.salt, hide=self.secrets.value)
            submission = msgspec.structs.replace(submission, since=self.life_of(delivery.echo))
        except (BadValue, TooLarge) as error:
            await self._tell_dead(delivery.id, letter.sender, error.message)
            return error.message
        done = await self.submit(submission)
        if done.created:
            self.log.event("mail-received", sender=letter.sender, key=letter.key, task_id=done.task_id)
        return ""

    async def _commit_note(self, note: DeliveryNote) -> None:
        """A note counts if it is of the agent that the message was sent to: no other can say that it has arrived."""
        places = [(key, await self._find_step(key)) for key in note.keys]
        await asyncio.gather(*(self._keep_note(note, key, *place) for key, place in places if place is not None))

    async def _find_step(self, key: EffectKey) -> tuple[TaskId, str] | None:
        """The step that sent the message of this key."""
        began_s = time.monotonic()
        if not self.sent_to(key) and began_s < self._search_s:
            return None  # if it is the note of a message of before, it comes again when that is sent again
        found = await self.journal.find_effect(effect_key_bytes(key))
        if found is None:
            now_s = time.monotonic()
            self._search_s = now_s + SEARCH_SHARE * (now_s - began_s)
        return found

    async def _keep_note(self, note: DeliveryNote, key: EffectKey, task_id: TaskId, ordinal: str) -> None:
        """As evidence of the step."""
        result: Body = {"to": note.sender, "key": key, "relays": [], "stored": [], "note": note.proof}
        body = EvidenceGiven("succeeded", result, NOTE_SOURCE).body()
        item = InboxItem(task_id=task_id, ordinal=ordinal, kind=InboxKind.EVIDENCE, body=body)
        # A check reads the whole task. A message of this process needs none: its step sends mail, and the first note of
        # its recipient is the first that comes here.
        known = self.sent_to(key) == note.sender and key not in self._kept
        check = None if known else partial(_check_note, ordinal, note.sender, self.known_id)
        if known:  # before the commit: a second copy of the note may be on its way
            keep_newest(self._kept, key, None, most=NOTED_MAX)
        with contextlib.suppress(TaskNotFound, _NotTaken):  # erased meanwhile; known, or no message to that agent
            await self.journal.drop(item, check=check)

    async def _tell_dead(self, envelope: str, sender: str, fault: str) -> None:
        self.log.event("mail-dead", envelope=envelope, sender=sender, fault=fault)
        now_s = time.monotonic()
        if len(self._dead) == DEAD_MAX and now_s - self._dead[0] < DEAD_S:
            await self.journal.add_notice(dead_letters_notice(DEAD_MAX, now_ms=self.journal.now_ms()))
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
        keep_newest(self._noted, name, now_s, most=NOTED_MAX)
        if sum(map(len, self._owed.values())) < NOTES_WAITING_MAX:
            self._owed.setdefault(letter.sender, []).append(letter.key)
            self._owes.set()

    async def _send_notes(self) -> None:
        """At once to a sender that has got none lately, or whose next note is full; to others when its time has come.
        Each sender has a task of its own: one that cannot be reached holds up no other's note."""
        pause_s = NOTED_S
        async with asyncio.TaskGroup() as group:
            while True:
                await wait_event(self._owes, pause_s)
                self._owes.clear()
                now_s = time.monotonic()
                self._note_due = {one: due_s for one, due_s in self._note_due.items() if due_s > now_s}
                for sender, keys in list(self._owed.items()):
                    if sender in self._noting or (sender in self._note_due and len(keys) < NOTE_KEYS_MAX):
                        continue
                    self._note_due[sender] = now_s + random.uniform(0.5, 1.0) * self.note_every_s
                    self._noting.add(sender)
                    del self._owed[sender]
                    group.create_task(self._send_all_notes(sender, keys))
                later = [self._note_due.get(one, 0.0) for one in self._owed if one not in self._noting]
                pause_s = max(0.0, min(later) - time.monotonic()) if later else NOTED_S

    async def _send_all_notes(self, sender: str, keys: Sequence[EffectKey]) -> None:
        try:
            for start in range(0, len(keys), NOTE_KEYS_MAX):
                await self._send_note(sender, keys[start : start + NOTE_KEYS_MAX])
        finally:
            self._noting.discard(sender)
            self._owes.set()

    async def _send_note(self, sender: str, keys: Sequence[EffectKey]) -> None:
        """A sender that cannot be reached gets none: it has the signed words of its relays."""
        for attempt in range(1, NOTE_TRIES + 1):
            try:
                async with self._note_turns:
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
                self.tell_trouble()
                await self.secure()
                await self.tell_full()
            except (HoldfastError, OSError) as error:
                self.log.event("mail-unsecured", error=str(error))

    def tell_trouble(self) -> None:
        """The log has a line when a relay gives no mail, when the reason is another one, and when it is over."""
        found = {relay: why for relay, why in self.mailbox.state.items() if why}
        for relay, why in found.items():
            if why != self._troubles.get(relay):
                self.log.event("mail-trouble", relay=relay, error=why)
        for relay in self._troubles.keys() - found.keys():
            self.log.event("mail-trouble-over", relay=relay)
        self._troubles = found
        self.keep_trouble(found)

    async def tell_full(self) -> None:
        """A person learns of a relay that has little room left, before it refuses new mail."""
        self.keep_fill(self.mailbox.fill)
        for relay, percent in self.mailbox.fill.items():
            if percent >= FULL_PERCENT:
                self.log.event("mail-room", relay=relay, percent=percent)
                await self.journal.add_notice(mail_room_notice(relay, percent, now_ms=self.journal.now_ms()))

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
    """The step has its note, sent no mail, or sent it to another agent."""


def _check_note(
    ordinal: str, sender: str, known_id: Callable[[str], str], view: TaskView, inbox: Sequence[InboxItem]
) -> None:
    step = view.steps.get(ordinal)
    if step is None or step.tool != SEND_MAIL or note_of(inbox, ordinal) is not None:
        raise _NotTaken
    if sender not in _recipients(step, known_id):
        raise _NotTaken


def _recipients(step: StepView, known_id: Callable[[str], str]) -> tuple[str, ...]:
    """The agent that relays confirmed the message for; while it is in doubt, the one that its address names."""
    args, result = step.args, step.result
    if isinstance(result, dict) and "to" in result:
        return (str(cast("dict[str, object]", result)["to"]),)
    to = str(cast("dict[str, object]", args).get("to", "")) if isinstance(args, dict) else ""
    return (id_in(to), known_id(to))
