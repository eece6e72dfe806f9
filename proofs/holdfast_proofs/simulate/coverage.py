"""Which events can happen to steps of which class, so that a campaign can say what it missed."""

from __future__ import annotations

from holdfast.core.step import Event

_LETTERS: dict[Event, str] = {
    Event.PLAN: "RTFKQIN",
    Event.START: "RTFKQIN",
    Event.SUCCEED: "RTFKQIN",
    Event.REFUSE: "FKQIN",
    Event.DOUBT: "FKQIN",
    Event.UNSENT: "RTFKQIN",
    Event.FAIL: "RT",
    Event.RETRY: "RTKQIN",  # fenced has no retries here
    Event.FIND: "KQ",
    Event.ADOPT: "FKQIN",  # a Read is asked again; a Transactional effect is its record
    Event.PARK: "RFKQIN",
    Event.SETTLE_DONE: "FKQIN",
    Event.SETTLE_RUN: "FKQIN",
    Event.SETTLE_SKIP: "FKQIN",
    Event.SKIP: "KIN",
    Event.RESTORE: "RTFKQIN",
}

REACHABLE = frozenset((event.name, letter) for event, some in _LETTERS.items() for letter in some)


def missing(pairs: set[tuple[str, str]]) -> list[tuple[str, str]]:
    return sorted(REACHABLE - pairs)
