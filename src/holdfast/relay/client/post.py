"""Sending mail: sealed once, to two relays of the recipient at the same time, to the third if one is late or fails.

Relays confirm with a signature that they hold the message. Two are enough, all of them if there are fewer. A repeat has
the same key, so a relay that holds the message gives the number that it gave before. Nothing is kept here: a step that
calls `send` is in the journal, and is sent again after a crash.

A relay that answers `moved` gives the recipient's newer profile, which proves itself, and the sending continues there.
A relay that does not know the sender is given the sender's key log. What a relay confirmed is shown to the recipient
with a later message, so that a relay which drops mail contradicts its own signature before the recipient's eyes.

A relay may say that it has other words under the key of the message. It proves that with the first message, which this
agent signed. Without it, as when the recipient has taken that message, two relays must say so: one that lies stops no
mail.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from holdfast.core.ids import EffectKey, effect_key_bytes
from holdfast.core.mail import AFTER_MAX, BODY_BYTES_MAX, THREAD_CHARS_MAX, TTL_S, MailKind, SentMail
from holdfast.core.values import Json
from holdfast.errors import (
    BadInput,
    BadRecord,
    BadValue,
    HoldfastError,
    MailKeyReused,
    MailRefused,
    MailUnconfirmed,
    MailUnsent,
    TooLarge,
)
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.signed import Family
from holdfast.identity.statements.certificate import find_fault_by_log, only_planned
from holdfast.identity.witness.relay_link import with_url
from holdfast.identity.witness.witness import copy_of
from holdfast.layout.witness_address import WitnessRelay
from holdfast.relay.bounded import keep_newest
from holdfast.relay.client.address_book import AddressBook, Peer
from holdfast.relay.client.channel import Answered, RelayChannel
from holdfast.relay.client.health import HealthBook, backoff_s, first_relay
from holdfast.relay.client.instance_key import InstanceKey
from holdfast.relay.client.profile import echo_in
from holdfast.relay.protocol import calls
from holdfast.relay.protocol.calls import REASON_CHARS_MAX, StoredItem
from holdfast.relay.protocol.envelope import HINTS_MAX, Inner, parse_envelope, seal_envelope
from holdfast.relay.protocol.note import NOTE_KEYS_MAX, sealed_note

NEEDED = 2
GIVE_UP_S = 8.0  # the step's own retries follow
LOOK_AGAIN = (1, 3, 6)  # tries after which a fresher profile is looked for
SHOW_EVERY_S = 10.0  # what relays confirmed, to one recipient
SHOWN_MAX = 256  # recipients
CHANNELS_MAX = 64  # relays with open connections


@dataclass
class _Sending:
    """One message on its way."""

    peer: Peer
    kind: MailKind
    inner: Inner
    needed: int
    first_byte: Callable[[], None]
    begun: bool = False
    stored: dict[str, tuple[WitnessRelay, Answered]] = field(default_factory=dict[str, tuple[WitnessRelay, Answered]])
    refused: dict[str, str] = field(default_factory=dict[str, str])  # for good, by key of the relay
    trouble: dict[str, str] = field(default_factory=dict[str, str])  # by url; for people
    stale: bool = False  # the certificate must be made again
    moved: bool = False
    reused: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])  # by key: url, what it says
    proven: str = ""  # a relay has shown other words under the key

    def mark(self) -> None:
        if not self.begun:
            self.first_byte()
            self.begun = True

    @property
    def missing(self) -> int:
        return min(self.needed, len(self.peer.relays)) - len(self.stored)

    @property
    def other_words(self) -> str:
        """Why the key of the message counts as used for other words; empty if it does not."""
        listed = {one.key for one in self.peer.relays}
        said = [why for key, (_, why) in self.reused.items() if key in listed]
        return self.proven or ("; ".join(said) if len(said) >= min(NEEDED, len(listed)) else "")

    def open_relays(self) -> list[WitnessRelay]:
        return [one for one in self.peer.relays if one.key not in self.stored and one.key not in self.refused]


@dataclass
class RelayPost:
    """core.mail.Post."""

    instance: InstanceKey
    book: AddressBook
    own_relays: Callable[[], Sequence[WitnessRelay]]
    port: Signatures
    handles: Callable[[], Sequence[str]] = lambda: ()
    ttl_s: int = TTL_S
    give_up_s: float = GIVE_UP_S
    on_contact: Callable[[str], None] = lambda _: None
    health: HealthBook = field(default_factory=HealthBook)
    _channels: OrderedDict[str, RelayChannel] = field(default_factory=OrderedDict[str, RelayChannel])
    _shown: OrderedDict[str, tuple[float, tuple[bytes, ...]]] = field(
        default_factory=OrderedDict[str, tuple[float, tuple[bytes, ...]]]
    )

    async def send(
        self,
        *,
        to: str,
        body: Json,
        key: EffectKey,
        thread: str = "",
        number: int = 0,
        after: Sequence[EffectKey] = (),
        echo: str = "",
        first_byte: Callable[[], None] = lambda: None,
    ) -> SentMail:
        raw = _encoded(body)
        if len(thread) > THREAD_CHARS_MAX or number < 0:
            raise BadInput(f"a thread has at most {THREAD_CHARS_MAX} characters, and numbers begin with 1")
        peer = await self.book.find(to)
        self.on_contact(peer.id)
        inner = Inner(
            key=effect_key_bytes(key),
            body=raw,
            at_ms=self.instance.clock.wall_ms(),
            thread=thread,
            number=number,
            handles=tuple(self.handles())[:8],
            hints=self._hints(),
            seen=self._to_show(peer.id),
            after=tuple(map(effect_key_bytes, after))[:AFTER_MAX],
            echo=echo,
        )
        sending = _Sending(peer, MailKind.MESSAGE, inner, NEEDED, first_byte)
        return await self._deliver(sending, key)

    async def echo_of(self, to: str) -> str:
        try:
            return echo_in((await self.book.find(to)).profile.record)
        except (HoldfastError, OSError):
            return ""  # sending says why

    async def note(self, *, to: str, keys: Sequence[EffectKey]) -> None:
        if not 0 < len(keys) <= NOTE_KEYS_MAX:
            raise BadInput(f"a delivery note is for 1 to {NOTE_KEYS_MAX} messages")
        peer = await self.book.find(to, stranger=True)
        certificate = await self.instance.certificate()
        at = self.instance.clock.wall_ms() // 1000
        line = sealed_note(certificate, self.instance.key, to=peer.id, keys=keys, at=at)
        digest = hashlib.sha256(b"holdfast/1/note\0" + "\n".join(sorted(keys)).encode()).digest()
        inner = Inner(key=digest[:16], body=line, at_ms=at * 1000, hints=self._hints())
        sending = _Sending(peer, MailKind.NOTE, inner, 1, lambda: None)
        await self._deliver(sending, EffectKey(digest[:16].hex()))

    async def close(self) -> None:
        for one in self._channels.values():
            await one.close()

    # rounds

    async def _deliver(self, sending: _Sending, key: EffectKey) -> SentMail:
        until = time.monotonic() + self.give_up_s
        tries = 0
        while True:
            if not sending.peer.relays:  # it has left its last one, and may name another
                raise (MailUnconfirmed if sending.begun else MailUnsent)(
                    f"{sending.peer.id}: its profile names no relay" + " on a public address" * sending.peer.public_only
                )
            envelope = await self._sealed(sending)
            sending.moved = False
            await self._round(sending, envelope)
            if why := sending.other_words:  # also where two others hold the new ones: the recipient may get the first
                raise MailKeyReused(f"{sending.peer.id}: {why}")
            if sending.missing <= 0 and sending.stored:
                return self._sent(sending, key)
            if not sending.stored and not sending.open_relays() and not sending.moved:
                raise MailRefused(f"{sending.peer.id}: " + "; ".join(sending.refused.values()))
            tries += 1
            delay_s = 0.0 if sending.moved and tries < len(LOOK_AGAIN) else backoff_s(tries)
            if time.monotonic() + delay_s > until:
                why = "; ".join(with_url(url, text) for url, text in sending.trouble.items()) or "no relay answers"
                if sending.begun:
                    count = len(sending.stored)
                    raise MailUnconfirmed(f"{sending.peer.id}: {count} of its relays confirmed the message ({why})")
                raise MailUnsent(f"{sending.peer.id}: {why}")
            await asyncio.sleep(delay_s)
            if tries in LOOK_AGAIN and not sending.moved:
                await self._look_again(sending)

    async def _round(self, sending: _Sending, envelope: bytes) -> None:
        """As many relays as are missing at once; one more when the hedge's time is over or one has failed. One that
        still hangs when the others have confirmed is asked last soon: else each message would wait for it anew."""
        first = first_relay(sending.peer.id, (one.key for one in sending.peer.relays))
        waiting = self.health.ranked(sending.open_relays(), time.monotonic(), first=first)
        running: dict[asyncio.Task[None], tuple[WitnessRelay, float]] = {}
        again: set[str] = set()
        hedge_s = max((self.health.of(one).hedge_s for one in waiting[: sending.missing]), default=0.0)

        def ask(relay: WitnessRelay) -> None:
            running[asyncio.create_task(self._submit(relay, sending, envelope))] = relay, time.monotonic()

        try:
            while waiting or running:
                while waiting and len(running) < max(1, sending.missing):
                    ask(waiting.pop(0))
                done, _ = await asyncio.wait(
                    running, timeout=hedge_s if waiting else None, return_when=asyncio.FIRST_COMPLETED
                )
                asked = [running.pop(one)[0] for one in done]
                for relay, error in zip(asked, (one.exception() for one in done), strict=True):
                    if error is not None:  # not the relay's fault, as where a file of the agent cannot be read
                        sending.trouble[relay.url] = f"{type(error).__name__}: {error}"
                if sending.missing <= 0 or sending.other_words:
                    return
                if running:  # they may hang: one that failed is asked again meanwhile, once
                    failed = [one for one in asked if one in sending.open_relays() and one.key not in again]
                    again.update(one.key for one in failed)
                    waiting += failed
                if not done and waiting:
                    ask(waiting.pop(0))
        finally:
            now = time.monotonic()
            for task, (relay, began) in running.items():
                task.cancel()
                if now - began >= hedge_s:
                    self.health.of(relay).hung(now)
            await asyncio.gather(*running, return_exceptions=True)

    async def _submit(self, relay: WitnessRelay, sending: _Sending, envelope: bytes) -> None:
        began = time.monotonic()
        channel = await self._channel(relay)
        health = self.health.of(relay)
        try:
            answer, answered = await channel.submit(sending.peer.id, [envelope], first_byte=sending.mark)
            if answer.items[0].code in (calls.UNKNOWN_SENDER, calls.BAD_CERTIFICATE):
                copy = copy_of(await self.instance.log())
                await channel.introduce(self.instance.id, (*copy.records, *copy.receipts))
                answer, answered = await channel.submit(sending.peer.id, [envelope])
        except HoldfastError as error:
            health.failed(time.monotonic())
            sending.trouble[relay.url] = error.message
            return
        health.succeeded(time.monotonic() - began)
        if answer.rank is not None and answer.rank > sending.peer.profile.record.rank:
            self.book.forget(sending.peer)
        if answer.items[0].code == calls.KEY_REUSED:
            await self._judge_reuse(relay, sending, answer.items[0], envelope)
        self._judge(relay, sending, answer.items[0], answered, answer.profile)

    async def _judge_reuse(self, relay: WitnessRelay, sending: _Sending, item: StoredItem, envelope: bytes) -> None:
        said = f"{relay.url}: {item.message[:REASON_CHARS_MAX]}"
        sending.reused[relay.key] = relay.url, said
        own, mine = await self.instance.log(), parse_envelope(envelope)
        try:
            first = parse_envelope(base64.b64decode(item.proof))
        except (BadRecord, ValueError):
            return  # none, or not a proof
        crt = first.certificate
        is_own = (first.sender, first.to, first.outer.mk) == (mine.sender, mine.to, mine.outer.mk)
        if not is_own or first.outer.bd == mine.outer.bd or not only_planned(crt.record.position, own):
            return
        if find_fault_by_log(crt, Family.CERT, own, self.port) is None and first.is_signed(self.port):
            sending.proven = said

    def _judge(
        self, relay: WitnessRelay, sending: _Sending, item: StoredItem, answered: Answered, profile: str
    ) -> None:
        if not item.code and item.seq > 0:
            sending.stored[relay.key] = (relay, answered)
            return
        sending.trouble[relay.url] = item.message or item.code or "its answer says nothing"
        if item.code in calls.FOR_GOOD:
            sending.refused[relay.key] = f"{relay.url}: {item.message}"
        if item.code == calls.BAD_CERTIFICATE:
            sending.stale = True
        if item.code == calls.MOVED:
            new = self.book.moved(sending.peer, profile)
            if new is not None:
                sending.peer, sending.moved = new, True
                keys = {one.key for one in new.relays}
                sending.stored = {one: held for one, held in sending.stored.items() if one in keys}

    async def _look_again(self, sending: _Sending) -> None:
        try:
            is_note = sending.kind is MailKind.NOTE
            sending.peer = await self.book.find(sending.peer.id, fresh=True, stranger=is_note)
        except HoldfastError as error:
            sending.trouble["looking for a newer profile"] = error.message

    async def _sealed(self, sending: _Sending) -> bytes:
        certificate = await self.instance.certificate(fresh=sending.stale)
        sending.stale = False
        key = sending.peer.newest_key(self.instance.clock.wall_ms() // 1000)
        if key is None:
            raise MailUnsent(
                f"the profile of {sending.peer.id} names no mail key that is still valid",
                hint="its worker publishes one; `holdfast relay find` shows the profile",
            )
        return seal_envelope(
            sending.inner,
            kind=sending.kind,
            to=sending.peer.id,
            ttl_s=self.ttl_s,
            key=key,
            crt=certificate,
            signer=self.instance.key,
        )

    def _sent(self, sending: _Sending, key: EffectKey) -> SentMail:
        found = list(sending.stored.values())
        raws = tuple(answered.raw for _, answered in found)
        at, _ = self._shown.get(sending.peer.id, (0.0, ()))
        keep_newest(self._shown, sending.peer.id, (at, raws), most=SHOWN_MAX)
        return SentMail(
            to=sending.peer.id,
            key=key,
            relays=tuple(relay.url for relay, _ in found),
            stored=tuple(raw.decode() for raw in raws),
            trouble=dict(sending.reused.values()),
        )

    def _to_show(self, id: str) -> tuple[bytes, ...]:
        at, raws = self._shown.get(id, (0.0, ()))
        if not raws or time.monotonic() - at < SHOW_EVERY_S * random.uniform(0.5, 1.0):
            return ()
        self._shown[id] = (time.monotonic(), ())
        return raws

    def _hints(self) -> tuple[str, ...]:
        return tuple(map(str, self.own_relays()))[:HINTS_MAX]

    async def _channel(self, relay: WitnessRelay) -> RelayChannel:
        """Few are kept open: each sender that gets a delivery note may have relays of its own."""
        found = self._channels.pop(relay.key, None)
        gone = [] if found is None or _serves(found.address, relay) else [found]
        kept = self._channels[relay.key] = RelayChannel(relay, self.port) if found is None or gone else found
        while len(self._channels) > CHANNELS_MAX:
            gone.append(self._channels.popitem(last=False)[1])
        for one in gone:
            await one.close()
        return kept


def _serves(kept: WitnessRelay, relay: WitnessRelay) -> bool:
    """Whether a channel to the one may be used for the other, which has the same key: only the owner's choice may be on
    a private address."""
    return kept.url == relay.url and (relay.public_only or not kept.public_only)


def _encoded(body: Json) -> bytes:
    try:
        raw = msgspec.json.encode(body, order="deterministic")  # relays compare a digest of it
    except (TypeError, ValueError, RecursionError) as error:
        raise BadValue(f"the body of a message must be a JSON value: {error}") from None
    if len(raw) > BODY_BYTES_MAX:
        raise TooLarge(f"the body of a message has {len(raw):,} bytes; at most {BODY_BYTES_MAX:,} are allowed")
    return raw
