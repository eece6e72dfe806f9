"""Mail to the agent while its instances are lost: real relays, and a sender with a worker of its own.

The relays and the sender are in the middle, which the hosts reach over the same links as the services; a host that is
cut off reaches no relay either. Agents use a relay on another machine only over TLS, so the relays have a certificate,
which every process of the run trusts. The sender is an agent of the relays' laboratory: it notes each message that the
relays have signed for. What the agent's handler has done with it is counted by a service of its own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import holdfast
from holdfast.downstream.ledger import Page
from holdfast.layout.witness_address import WitnessRelay
from holdfast_proofs.relay_lab.events import SEND, EventFile, read_events
from holdfast_proofs.relay_lab.site import LabAgent
from holdfast_proofs.support.relays import relay_with_tls, trusting

RELAYS = 2
MAILS = 4  # a round: before, at and after the moment of the loss
EVERY_S = 0.5
SENDER = "ben"


@contextmanager
def relays_at(folder: Path, host: str) -> Generator[tuple[WitnessRelay, ...]]:
    """Relays on this address, trusted by this process and what it starts while the block runs."""
    made = [relay_with_tls(folder / f"relay-{number}", host) for number in range(RELAYS)]
    try:
        for one in made:
            one.begin()
        with trusting(folder / "server.pem"):
            yield tuple(one.ready().at for one in made)
    finally:
        for one in made:
            if one.process is not None:
                one.kill()


@dataclass(slots=True)
class Sender:
    """Another agent, that writes to the one whose instances are lost."""

    folder: Path
    relays: tuple[WitnessRelay, ...]
    to: str  # the agent's id
    sent: list[str] = field(default_factory=list[str])  # names of messages
    agent: LabAgent = field(init=False)

    def __post_init__(self) -> None:
        self.agent = LabAgent(SENDER, self.folder / SENDER)

    @property
    def events(self) -> Path:
        return self.folder / "mail.jsonl"

    async def start(self) -> None:
        await self.agent.make(self.relays)
        EventFile(self.events).close()
        self.agent.start(events=self.events, more={})

    def stop(self) -> None:
        self.agent.stop()
        self.agent.wait_end()

    async def send(self, number: int) -> None:
        """The messages of a round, from now on."""
        lane, begin_ns = f"round-{number}", time.monotonic_ns()
        async with holdfast.open(self.agent.home.journal, serve=False) as hf:
            await hf.submit(
                SEND,
                request_id=lane,
                lane=lane,
                to=[self.to] * MAILS,
                first=1,
                begin_ns=begin_ns,
                every_ns=int(EVERY_S * 1e9),
            )
        self.sent += [f"{SENDER} {lane} {n}" for n in range(1, MAILS + 1)]

    def seen(self) -> tuple[set[str], set[str]]:
        """Messages that the relays have signed for, and those of which the agent has said that it has them."""
        keys: dict[str, str] = {}
        noted: set[str] = set()
        for event in read_events(self.events):
            if event.e == "stored":
                keys[event.k] = event.m
            elif event.e == "delivered":
                noted.add(event.k)
        return set(keys.values()), {keys[key] for key in noted & keys.keys()}


@dataclass(slots=True)
class Mail:
    """What came of the messages, counted at both ends."""

    sent: int = 0
    once: int = 0  # counted once by the service
    lost: int = 0
    twice: int = 0
    noted: int = 0  # whose sender has a delivery note
    findings: list[str] = field(default_factory=list[str])


def handled(page: Page) -> Counter[str]:
    """How often the service was asked to do what each message asks for."""
    bodies = (cast("dict[str, Any]", one.body) for one in page.effects)
    return Counter(str(body["m"]) for body in bodies)


def judge_mail(sender: Sender, page: Page) -> Mail:
    stored, noted = sender.seen()
    counts = handled(page)
    found = Mail(sent=len(sender.sent), noted=len(noted), once=sum(count == 1 for count in counts.values()))
    for name in sender.sent:
        if name not in stored:
            found.findings.append(f"mail: {name!r} was not stored by the relays")
    for name in sorted(stored | counts.keys()):
        if counts[name] == 1 and name in sender.sent:
            continue
        found.lost += not counts[name]
        found.twice += max(0, counts[name] - 1)
        note = ", and its sender has a delivery note" if name in noted else ""
        found.findings.append(f"mail: {name!r} was handled {counts[name]} times{note}")
    return found
