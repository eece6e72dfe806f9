"""Agents with real keys that can have mail keys: their escrow has a second place."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from holdfast.core.ids import EffectKey, effect_key_from_bytes
from holdfast.core.mail import Delivery, Letter
from holdfast.identity.files.public_file import identity_of, write_identity
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.encodings import AgentId
from holdfast.identity.statements.statements import Relay
from holdfast.identity.vault.ring import change, with_place
from holdfast.layout.agent_home import AgentHome, load_home
from holdfast.relay.client.open_mail import AgentMail, open_mail
from holdfast.relay.client.profile import ProfileContent, publish_profile, without_relay
from holdfast_proofs.support.relays import RelayProcess
from identity.quick_agent import Agent, make_agent

PORT = Sodium()

__all__ = ["Agent", "Correspondent", "key", "make_correspondent", "take"]


def make_correspondent(place: Path, name: str = "ada") -> Agent:
    place.mkdir(mode=0o700, exist_ok=True)
    place.chmod(0o700)
    agent = make_agent(place)
    write_identity(agent.folder / "identity.json", identity_of(agent.log, name=name))
    copies = place / "copies"
    copies.mkdir(mode=0o700)
    change(agent.vault(), lambda escrow: with_place(escrow, copies))
    return agent


@dataclass
class Correspondent:
    """An agent that is registered at relays and writes and takes mail in this process."""

    agent: Agent
    e: int = 1

    @property
    def id(self) -> AgentId:
        return self.agent.log.id

    @property
    def home(self) -> AgentHome:
        return load_home(self.agent.folder)

    async def register(self, relays: Sequence[RelayProcess], **more: object) -> None:
        """The profile names exactly these relays."""
        listed = tuple(
            Relay(url=one.at.url, wit=one.link.key, prio=n, domain=f"operator-{n}") for n, one in enumerate(relays)
        )

        def change(content: ProfileContent) -> ProfileContent:
            gone = [one for one in content.relays if one.wit not in {new.wit for new in listed}]
            for one in gone:
                content = without_relay(content, one)
            return replace(content, relays=listed, **more)

        done = await publish_profile(
            self.home,
            self.agent.speaker(),
            now=int(time.time()),
            port=PORT,
            change=change,
            more=[one.at for one in relays],
        )
        listed_urls = {one.at.url for one in relays}
        assert not any(why for url, why in done.said.items() if url in listed_urls), done.said

    @asynccontextmanager
    async def open(self, *, wait_s: float = 0.3, give_up_s: float = 4.0) -> AsyncGenerator[AgentMail]:
        mail = open_mail(self.home, self.agent.speaker(), incarnation=lambda: self.e, port=PORT)
        mail.mailbox.wait_s, mail.mailbox.copies_s, mail.post.give_up_s = wait_s, 0.0, give_up_s
        try:
            yield mail
        finally:
            await mail.close()


def key(n: int) -> EffectKey:
    return effect_key_from_bytes(n.to_bytes(16, "big"))


async def take(mail: AgentMail, count: int, *, mark: int = 1, ack: bool = True, within_s: float = 10.0) -> list[Letter]:
    """That many letters, each once, and then no more; acknowledged unless `ack` is False."""
    found: dict[tuple[str, str], Letter] = {}
    async with asyncio.timeout(within_s):
        got: list[Delivery] = []
        while len(found) < count or got:
            got = await mail.mailbox.next()
            for one in got:
                assert not one.fault, one.fault
                if one.letter is not None:
                    found[one.letter.sender, one.letter.key] = one.letter
            if ack:
                await mail.mailbox.received(got, mark=mark)
    assert len(found) == count, [one.body for one in found.values()]
    return list(found.values())
