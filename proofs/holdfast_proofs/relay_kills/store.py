"""What a relay is asked in each part of its life, and a judge who knows nothing but its answers.

The parts follow each other: a trial of one begins with the store as the parts before it have left it. Every request of
a part may be repeated, and the second run of a part repeats all of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from holdfast.errors import RelayRefused
from holdfast.host.sqlite import open_alone
from holdfast.identity.records.encodings import AgentId, PublicKey
from holdfast.identity.records.records import Keys
from holdfast.identity.records.signed import Refusal
from holdfast.identity.statements.statements import parse_head, parse_profile
from holdfast.identity.witness.relay_link import RelayLink
from holdfast.identity.witness.witness_relay import RelayWitness
from holdfast.layout.witness_address import WitnessRelay
from holdfast.relay.client.channel import FencedByRelay, RelayChannel
from holdfast.relay.protocol.calls import BAD_CERTIFICATE, Ack, LoginAnswer, StoredAnswer
from holdfast.relay.protocol.envelope import next_head
from holdfast.relay.server.registry import add_invite
from holdfast.relay.server.store import FILE, Store
from holdfast_proofs.support.relay_agents import PORT, RelayAgent

INVITE = "an-invite-of-the-operator"
HANDLE = "ada@127.0.0.1"
MARK = 7
DAY_S = 86_400
SHORT = 4  # the number of the mail that expires after a minute

T = TypeVar("T")


@dataclass
class Answers:
    """What the relay has signed in one trial."""

    records: dict[AgentId, set[bytes]] = field(default_factory=dict[AgentId, set[bytes]])
    receipts: dict[AgentId, set[bytes]] = field(default_factory=dict[AgentId, set[bytes]])
    profiles: dict[AgentId, bytes] = field(default_factory=dict[AgentId, bytes])
    evidence: set[bytes] = field(default_factory=set[bytes])
    head: bytes = b""
    stored: dict[int, tuple[str, str]] = field(default_factory=dict[int, tuple[str, str]])  # number: id, chain's head
    receiving: bool = False  # it was asked: until it has answered, both is right
    received: set[int] = field(default_factory=set[int])
    secured: bool = False
    incarnation: int = 0
    asked: int = 1  # the newest incarnation that asked to log in: without an answer, the relay may know it
    expired: bool = False  # the short mail may be gone


@dataclass
class Figures:
    calls: int = 0
    trials: dict[str, int] = field(default_factory=dict[str, int])
    unreached: int = 0
    wrong: list[str] = field(default_factory=list[str])

    def count(self, name: str) -> None:
        self.trials[name] = self.trials.get(name, 0) + 1

    def to_json(self) -> dict[str, Any]:  # Any: JSON
        return {"calls": self.calls, "trials": self.trials, "unreached": self.unreached, "wrong": self.wrong}


class Lost(AssertionError):
    """The relay does not know what it has answered."""


def that(true: bool, why: str) -> None:
    if not true:
        raise Lost(why)


class Talk:
    """Three agents and one relay."""

    def __init__(self, address: WitnessRelay, key: PublicKey) -> None:
        self.address, self.key = address, key
        wit = Keys((key,), 1)
        self.ada, self.bob, self.eve = (RelayAgent(wit=wit) for _ in range(3))
        self.first = self.ada.records[0]
        self.rotation = self.ada.rotate()
        here = ((address.url, key),)
        self.profiles = [self.ada.profile(ver, here, handles=(HANDLE,)) for ver in (1, 2)]
        self.fork = self.ada.profile(2, here)
        self.bobs_profile = self.bob.profile(1, here)
        self.heads = [self.ada.head(seq, f"ada-{seq}") for seq in (1, 2)]
        self.answers = Answers()
        self.ahead_s = 0  # of the relay's clock, and of ada's

    @property
    def link(self) -> RelayLink:
        return RelayLink(self.address, PORT)

    # the parts

    async def register(self) -> None:
        for agent in (self.ada, self.bob):
            await self._submit(agent, agent.records[0].line())
        await self._submit(self.ada, self.rotation.line())

    async def invite(self) -> None:
        invited = WitnessRelay(self.address.url, self.address.key, invite=INVITE)
        await self._submit(self.eve, self.eve.records[0].line(), invited)

    async def profile(self) -> None:
        for agent, line in ((self.ada, self.profiles[0]), (self.ada, self.profiles[1]), (self.bob, self.bobs_profile)):
            said = await self.link.put_profile(agent.id, line)
            if isinstance(said, bytes):  # in a second run the first one is too old
                self.answers.profiles[agent.id] = said
        said = await self.link.put_profile(self.ada.id, self.fork)
        that(isinstance(said, Refusal), "a second profile of one rank was taken")
        self.answers.evidence = {self.profiles[1], self.fork}

    async def head(self) -> None:
        for line in self.heads:
            said = await self.link.put_head(self.ada.id, line)
            if isinstance(said, bytes):
                self.answers.head = said

    async def mail(self) -> None:
        one, two, three = (self.bob.envelope(self.ada, number) for number in (1, 2, 3))
        short = self.bob.envelope(self.ada, SHORT, ttl_s=60)
        for part in ([one], [two, three], [one], [short]):
            answer = await self._call(lambda channel, part=part: channel.submit(self.ada.id, part))
            self._stored(answer[0])

    async def expire(self) -> None:
        """A day later the relay makes a tombstone of the short mail, by itself."""

        async def gone(channel: RelayChannel) -> None:
            login = await self._login(channel, e=1)
            page, _ = await channel.take(self.ada.id, login.token, after=SHORT - 1, wait_s=0)
            while page.items[0].envelope:
                await asyncio.sleep(0.02)
                page, _ = await channel.take(self.ada.id, login.token, after=SHORT - 1, wait_s=0)

        self.answers.expired = True
        await self._call(gone)

    async def receive(self) -> None:
        async def taken(channel: RelayChannel) -> None:
            login = await self._login(channel, e=1)
            page, _ = await channel.take(self.ada.id, login.token, after=0, wait_s=0)
            numbers = tuple(one.seq for one in page.items)
            self.answers.receiving = True
            entries = tuple((one.seq, one.id.hex()) for one in page.items)
            ack = Ack(received=entries, mark=MARK, contacts=(self.bob.id,))
            await channel.acknowledge(self.ada.id, login.token, ack)
            self.answers.received = set(numbers)

        await self._call(taken)

    async def secure(self) -> None:
        async def secured(channel: RelayChannel) -> None:
            login = await self._login(channel, e=2)
            await channel.acknowledge(self.ada.id, login.token, Ack(rewind=MARK + 1))
            await channel.acknowledge(self.ada.id, login.token, Ack(secured=MARK))
            self.answers.secured = True

        await self._call(secured)

    # the judge

    async def check(self) -> None:
        """Whether the relay, started again, knows what it has answered."""
        said = self.answers
        for id_, lines in said.records.items():
            copy = await RelayWitness(self.link).fetch(id_)
            that(copy is not None and lines <= set(copy.records), f"a record of {id_} is gone")
            that(copy is not None and said.receipts[id_] <= set(copy.receipts), f"a receipt for {id_} is gone")
        for id_, line in said.profiles.items():
            held = await self.link.find_profile(id_)
            that(held is not None, f"the profile of {id_} is gone")
            newer = held is not None and parse_profile(held).record.rank >= parse_profile(line).record.rank
            that(newer, f"an older profile of {id_} is back")
        if said.evidence:
            that(said.evidence <= set(await self.link.find_evidence(self.ada.id)), "evidence is gone")
        if said.head:
            held = await self.link.find_head(self.ada.id)
            newer = held is not None and parse_head(held).record.rank >= parse_head(said.head).record.rank
            that(newer, "an older backup head is back")
        if said.stored or said.received:
            await self._call(self._check_mailbox)

    async def _check_mailbox(self, channel: RelayChannel) -> None:
        said = self.answers
        login = await self._login(channel, e=said.asked)
        page, _ = await channel.take(self.ada.id, login.token, after=0, wait_s=0)
        head, held = page.head, {one.seq: one for one in page.items}
        for number in sorted(held):
            head = next_head(head, number, held[number].id)
            if number in said.stored:
                told = (held[number].id.hex(), head.hex())
                that(told == said.stored[number], f"entry {number} is not the one that was confirmed")
        that(set(said.stored) <= set(held), f"entries {sorted(set(said.stored) - set(held))} are gone")
        waiting = {number for number, one in held.items() if one.envelope}
        that(not said.received & waiting, "mail that was acknowledged is delivered again")
        if not said.receiving:
            due = set(said.stored) - ({SHORT} if said.expired else set())
            that(due <= waiting, "mail that was not acknowledged is not delivered")
        if said.secured:
            counted = await channel.acknowledge(self.ada.id, login.token, Ack())
            that(counted.held == 0, f"{counted.held} secured mails are still held")

        if said.incarnation > 1:
            try:
                await channel.login(self.ada.certificate(e=1, now=self.now), self.ada.key)
            except FencedByRelay:
                return
            raise Lost("an old incarnation logs in after a newer one")

    async def try_in_vain(self) -> None:
        """The relay's clock is a day off: it takes no mail, and says why."""
        answer, _ = await self._call(lambda channel: channel.submit(self.ada.id, [self.bob.envelope(self.ada, 5)]))
        why = answer.items[0].message
        that(answer.items[0].code == BAD_CERTIFICATE, f"a relay with a wrong clock says {answer.items[0]}")
        that("expired" in why or "valid" in why or "future" in why, f"it does not say why: {why}")

    @property
    def now(self) -> int:
        return int(time.time()) + self.ahead_s

    # asking

    async def _submit(self, agent: RelayAgent, line: bytes, address: WitnessRelay | None = None) -> None:
        witness = RelayWitness(RelayLink(address or self.address, PORT))
        said = await witness.submit(line)
        if isinstance(said, Refusal):
            raise Lost(f"a record of {agent.id} is refused: {said.message}")
        self.answers.records.setdefault(agent.id, set()).add(line)
        self.answers.receipts.setdefault(agent.id, set()).add(said)

    def _stored(self, answer: StoredAnswer) -> None:
        for item in answer.items:
            if item.code:
                raise RelayRefused(f"{item.code}: {item.message}")
            before = self.answers.stored.setdefault(item.seq, (item.id, item.head))
            that(before == (item.id, item.head), f"entry {item.seq} was confirmed twice, differently")

    async def _login(self, channel: RelayChannel, *, e: int) -> LoginAnswer:
        self.answers.asked = max(self.answers.asked, e)
        login, _ = await channel.login(self.ada.certificate(e=e, now=self.now), self.ada.key)
        self.answers.incarnation = max(self.answers.incarnation, e)
        return login

    async def _call(self, act: Callable[[RelayChannel], Awaitable[T]]) -> T:
        channel = RelayChannel(self.address, PORT)
        try:
            return await act(channel)
        finally:
            await channel.close()


def give_invite(folder: Path) -> None:
    store = Store(folder)
    try:
        store.write(lambda db: add_invite(db, INVITE, note="", now=0))
    finally:
        store.close()


def check_file(folder: Path) -> None:
    """The store's file by itself, when no process has it open."""
    db = open_alone(folder / FILE)
    try:
        found = db.execute("PRAGMA integrity_check(1)").fetchall()[0][0]
    finally:
        db.close()
    that(found == "ok", f"the file is damaged: {found}")


PARTS: dict[str, Callable[[Talk], Awaitable[None]]] = {
    "register": Talk.register,
    "invite": Talk.invite,
    "profile": Talk.profile,
    "head": Talk.head,
    "mail": Talk.mail,
    "expire": Talk.expire,
    "receive": Talk.receive,
    "secure": Talk.secure,
}
