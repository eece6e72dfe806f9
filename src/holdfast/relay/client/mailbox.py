"""Taking mail from all relays of the agent: each is asked by a task of its own, and mail comes once.

A task logs in, lists the mailbox from the first entry that waits, recomputes the chain, and hands envelopes over. It
stops for a while when too many of them are not acknowledged, so memory has a bound. An acknowledgement waits a moment
for others, because each costs a request. One that a relay did not get is kept and sent again before the next question;
if this process dies first, the relay delivers that mail again, and the journal knows it.

Each message comes from two relays, and the second copy is not urgent. So a relay that gave nothing but mail which the
first one (`health.py`) had given is asked again after COPIES_S. The first one itself is asked again at once, and so are
all others while it is in trouble, or gives no mail that they have. No message is later than COPIES_S by that.

What makes a message good: its certificate is signed by keys that the sender's log still stands by, its instance key
signed the envelope, it opens with a mail key of ours, and its inner key fits the outer one. Mail of keys that the
sender's owner has evicted is a dead letter: it may be the thief's. If the sender's log must be asked for, its messages
wait here (`sender_logs.py`) and at the relay, and no other sender's mail waits with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from holdfast.core.mail import Delivery, MailKind
from holdfast.core.waiting import wait_event
from holdfast.errors import (
    AgentElsewhere,
    BadRecord,
    HoldfastError,
    KeysReplaced,
    RelayBusy,
    RelayUnreachable,
    RelayUntrusted,
)
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import AgentId, digest_of
from holdfast.identity.records.signed import Family
from holdfast.identity.statements.certificate import Certificate, find_fault_by_log, parse_certificate
from holdfast.identity.witness.observe import merge_copies
from holdfast.identity.witness.relay_link import open_link
from holdfast.identity.witness.witness_relay import RelayWitness
from holdfast.layout.witness_address import WitnessRelay
from holdfast.relay.bounded import keep_newest
from holdfast.relay.client.address_book import AddressBook
from holdfast.relay.client.box import Arrival, Box
from holdfast.relay.client.chain_check import ChainCheck, KeptAnswers, statement_in, statement_of
from holdfast.relay.client.channel import Answered, FencedByRelay, RelayChannel, ReplacedHere, SessionOver
from holdfast.relay.client.health import backoff_s, first_relay, poll_s
from holdfast.relay.client.instance_key import InstanceKey
from holdfast.relay.client.sender_logs import SenderCheck, SenderLogs
from holdfast.relay.protocol.calls import FOR_NOW, REASON_CHARS_MAX, Ack
from holdfast.relay.protocol.envelope import Envelope, Inner, letter_of, open_envelope, parse_envelope
from holdfast.relay.protocol.note import read_note

COPIES_S = 1.0
EMPTY_S = 0.1  # after an empty answer: one that lies may give it at once, again and again
UNACKED_MAX = 512  # of one relay, given out or waiting here
# In one acknowledgement. Its body has room for them also where each reason is hostile text, six bytes a character.
RECEIVED_MAX, REFUSED_MAX, CONTACTS_MAX = 512, 32, 256
FIRST_MAX = 20_000  # ids of mail that the first relay gave
BATCH_MAX = 256
ACK_S, ACK_AT_ONCE = 0.25, 64  # so long, or until there are so many, acknowledgements wait for each other
CLOSE_S = 1.0  # for those that are left at the end
COPIES_MAX, COPY_BYTES_MAX = 1_024, 8_192  # messages that are kept open until another relay delivers them too
ROOM_S = 5.0  # until a box with too many messages here is looked at again
ACKS = "acks"
SEEN, SEEN_WAITING_MAX = "seen", 64  # answers that senders were given, and that wait to be checked


@dataclass
class RelayMailbox:
    """core.mail.Mailbox. `memory`: the newest signed head of each relay; `proofs`: where contradictions are kept."""

    instance: InstanceKey
    book: AddressBook
    relays: Callable[[], Sequence[WitnessRelay]]
    port: Signatures
    memory: Path
    proofs: Path
    wait_s: float = 20.0  # of `next`
    copies_s: float = COPIES_S
    published: Callable[[], Collection[str]] = lambda: ()  # keys of the relays that senders know
    contacts: set[str] = field(default_factory=set[str])
    others: dict[str, str] = field(default_factory=dict[str, str])  # other live instances: key, and url of a relay
    _boxes: dict[str, Box] = field(default_factory=dict[str, Box])
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, asyncio.Task[None]])
    _arrived: asyncio.Queue[Arrival | HoldfastError] = field(default_factory=asyncio.Queue["Arrival | HoldfastError"])
    _at_first: OrderedDict[bytes, None] = field(default_factory=OrderedDict[bytes, None])  # ids of its mail
    _hurry: asyncio.Event = field(default_factory=asyncio.Event)  # the first relay is in trouble
    _copies: OrderedDict[bytes, Delivery] = field(default_factory=OrderedDict[bytes, Delivery])  # by digest
    _inners: dict[bytes, Inner] = field(default_factory=dict[bytes, Inner])  # of those that wait for a sender's log
    _private_keys: dict[str, X25519PrivateKey] = field(default_factory=dict[str, X25519PrivateKey])
    _seen: asyncio.Queue[bytes] = field(default_factory=lambda: asyncio.Queue[bytes](SEEN_WAITING_MAX))
    _owing: asyncio.Event = field(default_factory=asyncio.Event)
    _secured: int = -1
    _rewind: int | None = None
    _rewound: set[str] = field(default_factory=set[str])  # keys of relays that have done it
    _on_rewound: Callable[[str], None] = lambda _relay: None

    def __post_init__(self) -> None:
        self._senders = SenderLogs[Arrival](self.book, self._found, self._give_back)
        self._check = SenderCheck(self.port)

    async def next(self) -> list[Delivery]:
        self._start()
        arrivals: list[Arrival] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.wait_s):
                arrivals = [self._taken(await self._arrived.get())]
        while not self._arrived.empty() and len(arrivals) < BATCH_MAX:
            arrivals.append(self._taken(self._arrived.get_nowait()))
        found = [one for arrival in arrivals if (one := await self._opened_once(arrival)) is not None]
        return sorted(found, key=lambda one: one.in_thread)

    async def received(self, deliveries: Sequence[Delivery], *, mark: int) -> None:
        touched: set[str] = set()
        now = asyncio.get_running_loop().time()
        for delivery in deliveries:
            for key, seq, entry in delivery.at:
                box = self._boxes.get(key)
                if box is None:
                    continue
                if delivery.fault:
                    box.refused[seq, entry] = delivery.fault[:REASON_CHARS_MAX]
                else:
                    box.ack_at = box.ack_at if box.owed else now + ACK_S
                    box.owed.add((seq, entry))
                    box.mark = max(box.mark, mark)
                touched.add(key)
        self._owing.set()
        await self._flush(touched)

    async def secured(self, *, up_to: int) -> None:
        self._secured = max(self._secured, up_to)
        self._start()
        await self._flush(self._boxes)

    async def rewind(
        self, *, after: int, done: Collection[str] = (), on_done: Callable[[str], None] = lambda _relay: None
    ) -> None:
        self._rewind, self._rewound, self._on_rewound = after, set(done), on_done
        self._copies.clear()
        self._at_first.clear()
        self._open_boxes()
        for box in self._boxes.values():
            box.token = ""

        async def enter(box: Box) -> None:
            try:
                async with box.turn:
                    if not box.token:
                        await self._log_in(box)
            except Exception as error:  # noqa: BLE001 - whatever one relay answers, mail is taken from the others
                box.trouble = str(error) or type(error).__name__

        await asyncio.gather(*map(enter, self._boxes.values()))

    async def close(self) -> None:
        for box in self._boxes.values():
            box.ack_at = 0.0
        with contextlib.suppress(TimeoutError):  # then that mail comes again
            async with asyncio.timeout(CLOSE_S):
                await self._flush(self._boxes)
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()
        await self._senders.close()
        for box in self._boxes.values():
            await box.channel.close()

    @property
    def state(self) -> dict[str, str]:
        """What is wrong with each relay, by url; empty where nothing is."""
        return {box.relay.url: box.check.proven or box.trouble for box in self._boxes.values()}

    @property
    def fill(self) -> dict[str, int]:
        return {box.relay.url: box.full for box in self._boxes.values()}

    # relays

    def _open_boxes(self) -> None:
        listed = {one.key: one for one in self.relays()}
        for key, relay in listed.items():
            if key not in self._boxes:
                channel = RelayChannel(relay, self.port)
                check = ChainCheck(self.instance.id, channel.key, relay.url, self.proofs, self.port)
                self._boxes[key] = Box(relay, channel, check)
                with contextlib.suppress(BadRecord):  # none is kept
                    kept = KeptAnswers(self.memory).find(key)
                    check.add(statement_of(kept, to=self.instance.id, key=channel.key, port=self.port))
        first = first_relay(self.instance.id, self.published() or listed)
        for key, box in self._boxes.items():
            box.is_first = key == first

    def _start(self) -> None:
        self._open_boxes()
        for key, box in self._boxes.items():
            task = self._tasks.get(key)
            if task is None or task.done():
                self._tasks[key] = asyncio.create_task(self._watch(box))
        if SEEN not in self._tasks:
            self._tasks[SEEN] = asyncio.create_task(self._check_seen())
            self._tasks[ACKS] = asyncio.create_task(self._send_late_acks())

    async def _watch(self, box: Box) -> None:
        tries, ended = 0, False
        while True:
            try:
                await self._one_round(box)
                tries, ended, box.trouble = 0, False, ""
                if box.is_first:
                    self._hurry.clear()
                continue
            except SessionOver as error:
                box.trouble, box.token = str(error), ""
                if not ended:  # a new login is tried at once, and after a pause if that is refused too
                    ended = True
                    continue
            except FencedByRelay as fenced:
                verdict = await self._judge_fence(box, fenced)
                if verdict is not None:
                    self._arrived.put_nowait(verdict)
                    return
                box.trouble, box.token = str(fenced), ""
            except ReplacedHere as error:
                other = await self._find_other(box, error.proof)
                if other is not None and self.instance.is_alive(other):
                    text = f"{error.message}; this instance takes none until the other one is gone"
                    self._arrived.put_nowait(AgentElsewhere(text))
                    return
                box.trouble, box.token = str(error), ""
            except (RelayBusy, RelayUnreachable) as error:  # its session may still be good: a login would cost more
                box.trouble = str(error)
            except Exception as error:  # noqa: BLE001 - as in `rewind`
                box.trouble, box.token = str(error) or type(error).__name__, ""
            tries += 1
            if box.is_first:
                self._hurry.set()
            await asyncio.sleep(backoff_s(tries))

    async def _one_round(self, box: Box) -> None:
        async with box.turn:
            if not box.token:
                await self._log_in(box)
            await self._send_acks(box)
        if len(box.unacked) > UNACKED_MAX:
            box.room.clear()
            await wait_event(box.room, ROOM_S)
            return
        asked, token = box.after, box.token
        try:
            async with asyncio.timeout(None) as box.poll:
                wait_s = 0 if box.trouble else poll_s()  # whether the trouble is over is known at once
                page, answered = await box.channel.take(self.instance.id, token, after=asked, wait_s=wait_s)
        except TimeoutError:  # see `_found`
            return
        finally:
            box.poll = None
        self._learn(box, answered)
        if box.token != token:  # to be logged in again, or it is: this mail is listed again
            return
        if page.items and page.items[0].seq <= asked:
            raise RelayUntrusted(f"{box.relay.url} lists mail again that nobody asked for")
        if page.other:
            await self._find_other(box, page.other.encode())
        if not page.items:
            await asyncio.sleep(EMPTY_S)
            return
        for item in page.items:
            box.after = item.seq
            if item.envelope:
                if box.is_first:
                    keep_newest(self._at_first, item.id, None, most=FIRST_MAX)
                arrival = Arrival(box.relay.key, item.seq, item.id.hex(), item.envelope)
                box.unacked.add((arrival.seq, arrival.entry))
                self._arrived.put_nowait(arrival)
        copies = all(item.id in self._at_first for item in page.items)
        if copies and box.after >= page.last and not box.is_first:
            await wait_event(self._hurry, self.copies_s)

    async def _log_in(self, box: Box) -> None:
        """The caller holds the turn of the box."""
        certificate = await self.instance.certificate()
        login, answered = await box.channel.login(certificate, self.instance.key)
        known = box.check.last
        if known > login.last:  # asked again, so that the order of both answers is proven
            newest = box.check.newest()
            page = await box.channel.take(
                self.instance.id, login.token, after=login.last, wait_s=0, nonce=digest_of(newest.raw)
            )
            self._learn(box, page[1])
        self._learn(box, answered)
        await asyncio.to_thread(KeptAnswers(self.memory).keep, box.relay.key, answered.raw)
        first = login.first
        if self._rewind is not None and box.relay.key not in self._rewound:
            first = (await box.channel.acknowledge(self.instance.id, login.token, Ack(rewind=self._rewind))).first
            self._rewound.add(box.relay.key)
            self._on_rewound(box.relay.key)
        box.after = min(first - 1, known) if known else first - 1
        box.token, box.unacked = login.token, set()  # last: until it is rewound no `secured` may go to this relay

    def _learn(self, box: Box, answered: Answered) -> None:
        try:
            said = statement_in(  # the channel has checked the signature
                answered.raw, answered.content, to=self.instance.id, target=answered.target, nonce=answered.nonce
            )
        except BadRecord as error:
            raise RelayUntrusted(f"{box.relay.url}: {error.message}") from None
        box.check.add(said)  # mail is taken all the same: it proves itself, and the proof is kept

    async def _flush(self, keys: Sequence[str] | set[str] | dict[str, Box]) -> None:
        async def one(box: Box) -> None:
            with contextlib.suppress(Exception):  # it is still owed, and the box's own task sends it, or says why not
                async with box.turn:
                    if box.token:
                        await self._send_acks(box)

        await asyncio.gather(*(one(self._boxes[key]) for key in keys))

    async def _send_acks(self, box: Box) -> None:
        while True:
            owed = sorted(box.owed)[:RECEIVED_MAX]
            refused = list(box.refused.items())[:REFUSED_MAX]
            contacts = list(self.contacts - box.contacts)[:CONTACTS_MAX]
            secured = self._secured if self._secured > box.secured else None
            if len(owed) < ACK_AT_ONCE and asyncio.get_running_loop().time() < box.ack_at:
                owed = []
            if not owed and not refused and not contacts and secured is None:
                return
            ack = Ack(
                received=tuple(owed),
                mark=box.mark if owed else 0,
                refused=tuple((*entry, why) for entry, why in refused),
                secured=secured,
                contacts=tuple(map(AgentId, contacts)),
            )
            answer = await box.channel.acknowledge(self.instance.id, box.token, ack)
            box.full = answer.full
            box.owed.difference_update(owed)
            for entry, _ in refused:
                box.refused.pop(entry, None)
            box.unacked.difference_update(owed, (entry for entry, _ in refused))
            box.contacts.update(contacts)
            box.secured = self._secured if secured is not None else box.secured
            box.room.set()

    async def _send_late_acks(self) -> None:
        while True:
            await self._owing.wait()
            self._owing.clear()
            await asyncio.sleep(ACK_S)
            await self._flush(self._boxes)

    # who speaks for the agent

    async def _judge_fence(self, box: Box, fenced: FencedByRelay) -> HoldfastError | None:
        """The error that stops this process, if the relay has proven it; else None: a certificate is made again."""
        newer = await self._own_certificate(fenced.proof)
        if newer is not None and newer.e > (mine := self.instance.incarnation()):
            text = f"incarnation {newer.e} of the agent is in use elsewhere, and this is incarnation {mine}"
            return AgentElsewhere(f"{box.relay.url}: {text}")
        own = await self.instance.log()
        copy = None
        with contextlib.suppress(HoldfastError, OSError):
            copy = await RelayWitness(open_link(box.relay, port=self.port)).fetch(own.id)
        merged = own if copy is None else merge_copies(own, [copy], id=own.id, port=self.port)
        if merged is not None and merged.position > (await self.instance.log()).position:
            text = f"has the agent's key log up to {merged.position}: other keys speak now"
            return KeysReplaced(f"{box.relay.url} {text}")
        with contextlib.suppress(HoldfastError):
            await self.instance.certificate(fresh=True)
        return None

    async def _find_other(self, box: Box, line: bytes) -> Certificate | None:
        """The certificate, if it is that of another instance of this incarnation; remembers it."""
        crt = await self._own_certificate(line)
        if crt is None or crt.inst == self.instance.key.public or crt.e != self.instance.incarnation():
            return None
        self.others[crt.inst] = box.relay.url
        return crt

    async def _own_certificate(self, line: bytes) -> Certificate | None:
        """What the line says, if it is a certificate that keys of this agent signed."""
        own = await self.instance.log()
        with contextlib.suppress(BadRecord):
            crt = parse_certificate(line)
            return crt.record if find_fault_by_log(crt, Family.CERT, own, self.port) is None else None
        return None

    # letters

    def _taken(self, one: Arrival | HoldfastError) -> Arrival:
        if isinstance(one, HoldfastError):
            self._arrived.put_nowait(one)  # every later call raises it too
            raise one
        return one

    def _found(self, arrivals: Sequence[Arrival], log: KeyLog, forgotten: bool) -> None:
        """What waited for the log of its sender is opened now; what had no room here comes after a new login, at once
        and from all relays: questions that wait there end, and so do pauses after copies."""
        for one in arrivals:
            one.log = log
            self._boxes[one.relay].unacked.add((one.seq, one.entry))
            self._arrived.put_nowait(one)
        if not forgotten:
            return
        self._at_first.clear()
        self._hurry.set()  # until the first relay has answered
        for box in self._boxes.values():
            box.token = ""
            if box.poll is not None:
                box.poll.reschedule(0)
                box.poll = None

    def _give_back(self, arrivals: Sequence[Arrival]) -> None:
        """The relay lets them go, and takes them again when their sender sends again."""
        for one in arrivals:
            self._inners.pop(parse_envelope(one.raw).id, None)
            self._boxes[one.relay].refused[one.seq, one.entry] = f"{FOR_NOW}the key log of its sender cannot be found"

    async def _opened_once(self, arrival: Arrival) -> Delivery | None:
        """Two relays deliver the same bytes: the second copy need not be opened and checked again."""
        name, at = hashlib.sha256(arrival.raw).digest(), arrival.at
        known = self._copies.get(name)
        if known is not None:
            return msgspec.structs.replace(known, at=at)
        found = await self._opened(arrival)
        if found is not None and not found.fault and len(arrival.raw) <= COPY_BYTES_MAX:
            keep_newest(self._copies, name, found, most=COPIES_MAX)
        return found

    async def _opened(self, arrival: Arrival) -> Delivery | None:
        """None where it must wait for the sender's log."""
        at = arrival.at
        sender = ""
        try:
            envelope = parse_envelope(arrival.raw)
            sender = envelope.sender
            if envelope.to != self.instance.id:
                raise BadRecord("it is for another agent")
            inner = self._inners.pop(envelope.id, None)
            inner = inner or open_envelope(envelope, await self._private(envelope.outer.ekid))
            position = envelope.certificate.record.position
            log = arrival.log or self._senders.find(envelope.sender, position)
            if log is None:
                if self._senders.wait(envelope.sender, position, inner.hints, arrival):
                    self._inners[envelope.id] = inner
                self._boxes[arrival.relay].unacked.discard((arrival.seq, arrival.entry))  # it takes no room of others
                return None
            self._check.check(envelope, log)
            return await self._delivery(envelope, inner, at)
        except BadRecord as error:
            return Delivery(id=digest_of(arrival.raw), at=at, fault=error.message, sender=sender)

    async def _delivery(self, envelope: Envelope, inner: Inner, at: tuple[tuple[str, int, str], ...]) -> Delivery:
        id_ = envelope.id.hex()
        if envelope.outer.kind is MailKind.NOTE:
            note = read_note(inner.body, envelope.certificate, to=self.instance.id, port=self.port)
            return Delivery(id=id_, at=at, note=note)
        letter = letter_of(envelope.sender, inner)
        with contextlib.suppress(asyncio.QueueFull):  # a sample is enough: a relay that drops mail drops more of it
            for raw in inner.seen:
                self._seen.put_nowait(raw)
        return Delivery(id=id_, at=at, letter=letter, echo=inner.echo)

    async def _private(self, kid: str) -> X25519PrivateKey:
        if kid not in self._private_keys:
            self._private_keys = {
                one.kid: X25519PrivateKey.from_private_bytes(one.private) for one in await self.instance.mail_keys()
            }
        if kid not in self._private_keys:
            raise BadRecord(f"{FOR_NOW}it is sealed for the mail key {kid}, which is not here")
        return self._private_keys[kid]

    async def _check_seen(self) -> None:
        """Answers that senders got from our relays: each must fit what the relay shows us. Asked for beside the taking
        of mail, because a relay that does not answer must hold up no message."""
        while True:
            raw = await self._seen.get()
            for box in [one for one in self._boxes.values() if one.channel.key.encode() in raw]:  # cheap, and enough
                with contextlib.suppress(HoldfastError, OSError):  # BadRecord: it is of another relay
                    said = statement_of(raw, to=self.instance.id, key=box.channel.key, port=self.port)
                    if not box.check.fits(said) and box.token:
                        after = max(0, min(min(said.heads, default=1) - 1, box.check.last))
                        _, answered = await box.channel.take(
                            self.instance.id, box.token, after=after, wait_s=0, nonce=digest_of(raw)
                        )
                        box.check.add(said)
                        self._learn(box, answered)
