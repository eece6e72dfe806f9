"""The file of events while it grows, for a driver that waits: how far the messages are."""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast_proofs.relay_lab.checker import Checker, Verdict
from holdfast_proofs.relay_lab.events import Event

_decode = msgspec.json.Decoder(Event).decode


class Live:
    """Counts names, so an event that comes twice counts once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._checker = Checker()
        self.names: dict[str, set[str]] = {"stored": set(), "handled": set(), "delivered": set()}
        self.kills = 0

    def read(self) -> None:
        """What was added since; a line is written in one piece."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            raw = file.read()
        whole = raw.rfind(b"\n") + 1
        self._offset += whole
        for line in raw[:whole].splitlines():
            event = _decode(line)
            self._checker.add(event)
            names = self.names.get(event.e)
            if names is not None:
                names.add(event.m or event.k)
            self.kills += event.e == "kill"

    @property
    def stored(self) -> int:
        return len(self.names["stored"])

    @property
    def handled(self) -> int:
        return len(self.names["handled"])

    @property
    def delivered(self) -> int:
        return len(self.names["delivered"])

    def verdict(self) -> Verdict:
        self.read()
        return self._checker.verdict()
