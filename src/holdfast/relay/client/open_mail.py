"""An agent's post and mailbox, from its folder and the one who speaks for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from holdfast.identity.records.ed25519 import Signatures, Sodium
from holdfast.identity.speaker.speaker import Speaker
from holdfast.layout.agent_home import AgentHome
from holdfast.layout.witness_address import WitnessRelay, parse_relay_address
from holdfast.relay.client.address_book import AddressBook
from holdfast.relay.client.instance_key import InstanceKey
from holdfast.relay.client.mailbox import RelayMailbox
from holdfast.relay.client.post import RelayPost
from holdfast.relay.client.profile import find_own_profile, own_relays

READ_AGAIN_S = 1.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentMail:
    """What the agent writes to counts as known: its mail has the mailbox's large quota."""

    post: RelayPost
    mailbox: RelayMailbox

    async def close(self) -> None:
        await self.mailbox.close()
        await self.post.close()


def open_mail(
    home: AgentHome,
    speaker: Speaker,
    *,
    incarnation: Callable[[], int],
    port: Signatures | None = None,
    before: InstanceKey | None = None,
) -> AgentMail:
    """Nothing is sent yet. `incarnation` is the journal's. `before`: what this process was known by until now."""
    port = port or Sodium()
    instance = InstanceKey(speaker, incarnation)
    if before is not None:
        instance = InstanceKey(speaker, incarnation, key=before.key, began=before.began)
    # an agent without relays asks those that it left for the senders of the mail that waits there
    book = AddressBook(home.peers_file, lambda: own_relays(home) or mail_relays(home), port)
    contacts: set[str] = set()
    post = RelayPost(
        instance,
        book,
        _lately(lambda: own_relays(home)),
        port,
        handles=_lately(lambda: _handles(home)),
        on_contact=contacts.add,
    )
    mailbox = RelayMailbox(
        instance,
        book,
        _lately(lambda: mail_relays(home)),
        port,
        memory=home.mailbox_file,
        proofs=home.relay_proofs,
        published=_lately(lambda: _published(home)),
        contacts=contacts,
    )
    return AgentMail(post=post, mailbox=mailbox)


def _lately(read: Callable[[], T]) -> Callable[[], T]:
    """What a file says, read once a second: every message asks."""
    kept: list[tuple[float, T]] = []

    def find() -> T:
        now = time.monotonic()
        if not kept or now - kept[0][0] >= READ_AGAIN_S:
            kept[:] = [(now, read())]
        return kept[0][1]

    return find


def mail_relays(home: AgentHome) -> list[WitnessRelay]:
    """Where mail of the agent may be: its relays, and those that it left."""
    held = find_own_profile(home)
    left = () if held is None else tuple(one for one in held.record.left if "#" in one)
    return [*own_relays(home), *map(parse_relay_address, left)]


def _published(home: AgentHome) -> tuple[str, ...]:
    held = find_own_profile(home)
    return () if held is None else tuple(one.wit for one in held.record.relays)


def _handles(home: AgentHome) -> tuple[str, ...]:
    held = find_own_profile(home)
    return () if held is None else held.record.handles
