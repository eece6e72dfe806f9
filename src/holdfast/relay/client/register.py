"""Registering an agent at relays: each gets the key log, then all get one new profile that names them."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import RelayRefused
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.speaker.speaker import Speaker
from holdfast.identity.statements.statements import Relay
from holdfast.identity.witness.relay_link import open_link
from holdfast.identity.witness.witness_relay import bring_log
from holdfast.layout.agent_home import AgentHome
from holdfast.layout.witness_address import WitnessRelay
from holdfast.relay.client.profile import (
    ProfileContent,
    PublishedProfile,
    check_handle,
    operator_of,
    publish_profile,
    with_relay,
    without_relay,
)


async def register(
    home: AgentHome,
    speaker: Speaker,
    relays: Sequence[WitnessRelay],
    *,
    now: int,
    port: Signatures,
    handle: str = "",
    operator: str = "",
    instead_of: Relay | None = None,
) -> PublishedProfile:
    """Register at all of them, and publish. An invite that does not count, a relay that is full or does not answer, and
    a handle that is taken are refused before anything is signed. The relay that they replace is left: it forwards.
    Raises BadInput, RelayNotAdmitted, RelayRefused, RelayUnreachable, RelayUntrusted, RelayBusy."""
    if handle:
        check_handle(handle)
    log = speaker.log()
    entries: list[tuple[Relay, str]] = []
    for one in relays:
        link = open_link(one, port=port)
        about = await link.describe()
        await bring_log(link, log)
        name = f"{handle}@{about.name}" if handle else ""
        taken = await link.find_handle(handle) if handle else None
        if taken is not None and f'"id":"{log.id}"'.encode() not in taken:
            raise RelayRefused(f"{one.url}: another agent has the handle {name}", hint="choose another --handle")
        prio = 0 if instead_of is None else instead_of.prio
        entry = Relay(url=one.url, wit=link.key, prio=prio, domain=operator or operator_of(one.host))
        entries.append((entry, name))

    def change(content: ProfileContent) -> ProfileContent:
        if instead_of is not None:
            content = without_relay(content, instead_of)
        for entry, name in entries:
            content = with_relay(content, entry, name)
        return content

    return await publish_profile(home, speaker, now=now, port=port, change=change, more=relays)
