"""What really happened, as those wrote it down who did it: the person and the tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class What(StrEnum):
    SUBMITTED = "submitted"  # `place` is a task
    ASKED = "asked"  # a question was seen open
    ANSWERED = "answered"
    BEGUN = "begun"  # an effect was called
    PARKED = "parked"  # a step was seen parked
    SETTLED = "settled"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that was true, and in the journal, at this moment at the latest."""

    what: What
    place: str
    at_ms: int

    @property
    def task(self) -> str:
        return self.place.partition("/")[0]


class Truth:
    """The events of one life of the folder, over all its kills."""

    def __init__(self, tools: Path) -> None:
        self._tools = tools
        self._said: list[Event] = []
        self._known: set[tuple[What, str]] = set()

    def note(self, what: What, place: str, at_ms: int) -> None:
        if (what, place) not in self._known:
            self._known.add((what, place))
            self._said.append(Event(what, place, at_ms))

    def knows(self, what: What, place: str) -> bool:
        return (what, place) in self._known

    def events(self, *, until_ms: int) -> list[Event]:
        """Everything up to this moment, in order."""
        found = [*self._said, *(event for event, done in self._read() if not done)]
        return sorted((one for one in found if one.at_ms <= until_ms), key=lambda one: one.at_ms)

    def done(self) -> set[str]:
        """The steps whose tool came to its end at least once."""
        return {event.place for event, done in self._read() if done}

    def _read(self) -> Iterator[tuple[Event, bool]]:
        if self._tools.exists():
            for line in self._tools.read_text().splitlines():
                said = json.loads(line)
                yield Event(What.BEGUN, said["place"], said["at_ms"]), said["what"] == "done"
