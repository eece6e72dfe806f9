"""Agents with real keys that can have mail keys: their escrow has a second place."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "identity"))

from quick_agent import Agent, make_agent

from holdfast.identity.files.public_file import identity_of, write_identity
from holdfast.identity.vault.ring import change, with_place

__all__ = ["Agent", "make_correspondent"]


def make_correspondent(place: Path, name: str = "ada") -> Agent:
    place.mkdir(mode=0o700, exist_ok=True)
    place.chmod(0o700)
    agent = make_agent(place)
    write_identity(agent.folder / "identity.json", identity_of(agent.log, name=name))
    copies = place / "copies"
    copies.mkdir(mode=0o700)
    change(agent.vault(), lambda escrow: with_place(escrow, copies))
    return agent
