"""Bringing new keys beside the places at once: other machines of the agent look there, and stop."""

from __future__ import annotations

import asyncio

from holdfast.backup.open_engine import BASE, open_engine
from holdfast.backup.places.places import read_places
from holdfast.backup.places.published import Publisher
from holdfast.cli.screen.screen import talk
from holdfast.errors import HoldfastError
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Sodium
from holdfast.layout.agent_home import AgentHome


def tell_places(home: AgentHome, log: KeyLog) -> None:
    """After the act, which it never undoes: a place that cannot be told gets the log with the next backup."""
    try:
        failed = asyncio.run(_told(home, log))
    except (HoldfastError, OSError) as error:
        talk(f"warning: the places do not have the new keys yet: {error}")
        talk(f"hint: {getattr(error, 'hint', '') or 'the next backup brings them'}")
        return
    for name, why in failed.items():
        talk(f"warning: place {name} does not have the new keys yet: {why}; the next backup brings them")


async def _told(home: AgentHome, log: KeyLog) -> dict[str, str]:
    places = read_places(home.places_file)
    if not places:
        return {}
    publisher = Publisher(await open_engine(home.settings.backup, base=home.instance / BASE), places, Sodium())
    await publisher(log)
    return publisher.failed
