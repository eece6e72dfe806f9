"""The mailbox at one relay, as the client sees it, and an envelope that came from it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from holdfast.identity.log.log_state import KeyLog
from holdfast.layout.witness_address import WitnessRelay
from holdfast.relay.client.chain_check import ChainCheck
from holdfast.relay.client.channel import RelayChannel

Entry = tuple[int, str]  # number and id: after a roll-back of the relay a number may mean another envelope


@dataclass(slots=True)
class Arrival:
    relay: str
    seq: int
    entry: str  # the id that the relay lists under this number
    raw: bytes
    log: KeyLog | None = field(default=None, compare=False)  # of its sender, looked up for it

    @property
    def at(self) -> tuple[tuple[str, int, str], ...]:
        return ((self.relay, self.seq, self.entry),)


@dataclass
class Box:
    """The mailbox at one relay."""

    relay: WitnessRelay
    channel: RelayChannel
    check: ChainCheck
    is_first: bool = False  # of the agent's relays: senders prefer it
    token: str = ""
    after: int = 0
    unacked: set[Entry] = field(default_factory=set["Entry"])
    owed: set[Entry] = field(default_factory=set["Entry"])  # mail that was received
    ack_at: float = 0.0  # when they are sent
    mark: int = 0  # that goes with them: the highest, so that none of them is deleted too soon
    refused: dict[Entry, str] = field(default_factory=dict["Entry", str])
    secured: int = -1  # what this relay was told
    contacts: set[str] = field(default_factory=set[str])
    room: asyncio.Event = field(default_factory=asyncio.Event)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    poll: asyncio.Timeout | None = None  # of the question that waits at the relay
    trouble: str = ""
    full: int = 0  # percent of the room for mail
