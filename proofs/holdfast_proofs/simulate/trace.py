"""What happened in a simulated world, in order, readable; its digest tells two runs apart."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from holdfast_proofs.simulate.parts.loop import VirtualLoop


class Happened(NamedTuple):
    at_s: float
    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.at_s:9.3f}  {self.who:<9} {self.what}"


class Trace:
    __slots__ = ("_loop", "events")

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.events: list[Happened] = []

    def note(self, who: str, what: str) -> None:
        self.events.append(Happened(self._loop.now_s, who, what))

    def digest(self) -> str:
        state = hashlib.sha256()
        for event in self.events:
            state.update(str(event).encode())
        return state.hexdigest()

    def lines(self) -> list[str]:
        return [str(event) for event in self.events]
