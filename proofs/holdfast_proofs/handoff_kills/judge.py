"""Compares what the files say with what happened."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.memory.handoff import Handoff
from holdfast.memory.heartbeat import BEGIN, END
from holdfast_proofs.handoff_kills.truth import Event, Truth, What

NEWEST = 8  # of each kind: the sections are bounded, and old news may have left them
ENDED_SINCE = 5  # so many tasks that ended later make one old news


@dataclass(slots=True)
class Verdict:
    asked: int = 0  # facts that were looked for
    lag_ms: int = 0  # the age of the oldest fact that was not there yet
    findings: list[str] = field(default_factory=list[str])


def judge(handoff: Handoff, heartbeat: bytes, truth: Truth, *, killed_ms: int, lag_ms: int, ended: set[str]) -> Verdict:
    """`ended`: the tasks that had ended when the worker was dead."""
    verdict = Verdict()
    events = truth.events(until_ms=killed_ms)
    said = _Said(handoff, heartbeat)
    for event in _newest(events):
        verdict.asked += 1
        if said.has(event, events, ended):
            continue
        age = killed_ms - event.at_ms
        verdict.lag_ms = max(verdict.lag_ms, age)
        if event.at_ms < handoff.at_ms:
            verdict.findings.append(
                f"{event.what} {event.place} is missing, {handoff.at_ms - event.at_ms} ms older than its as-of"
            )
        elif age >= lag_ms:
            verdict.findings.append(f"{event.what} {event.place} is missing after {age} ms")
    verdict.findings += said.untrue(truth, ended)
    return verdict


class _Said:
    def __init__(self, handoff: Handoff, heartbeat: bytes) -> None:
        self._handoff = handoff
        self._block = heartbeat.partition(BEGIN)[2].partition(END)[0].decode()
        self._everything = "\n".join((*handoff.where, *handoff.pending, *handoff.changed))

    def has(self, event: Event, events: Sequence[Event], ended: set[str]) -> bool:
        """Whether the files say so, or say what came after it.

        HEARTBEAT.md is written first: it may have left out a task whose end nobody has seen yet.
        """
        later = {one.what for one in events if one.place == event.place and one != event}
        over = any(one.what is What.ENDED and one.place == event.task for one in events)
        closed = event.task in ended
        match event.what:
            case What.SUBMITTED:
                return event.task in self._everything and (closed or event.task in self._block)
            case What.ASKED:
                return self._in(self._handoff.pending, event.place) or bool(
                    later & {What.ANSWERED} or self._in(self._handoff.decided, event.place)
                )
            case What.ANSWERED | What.SETTLED:
                return self._in(self._handoff.decided, event.place)
            case What.BEGUN:
                return event.place in self._everything or over
            case What.PARKED:
                return bool(later & {What.SETTLED}) or self._in(
                    (*self._handoff.pending, *self._handoff.decided), event.place
                )
            case What.ENDED:
                known = self._in(self._handoff.changed, f"task {event.task} errand ended")
                return known and event.task not in self._block

    def untrue(self, truth: Truth, ended: set[str]) -> list[str]:
        found: list[str] = []
        done = truth.done()
        for line in self._handoff.changed:
            paid = re.search(r" (\S+/\S+) \((?:pay|post)\) succeeded", line)
            if paid and paid[1] not in done:
                found.append(f"untrue: {line}")
            over = re.search(r" task (\S+) errand ended", line)
            if over and over[1] not in ended:
                found.append(f"untrue: {line}")
        for line in self._handoff.decided:
            if line.startswith("and "):
                continue
            place = line.split(":")[0].split(" ")[0]
            if not truth.knows(What.ANSWERED, place) and not truth.knows(What.SETTLED, place):
                found.append(f"untrue: {line}")
        return found

    @staticmethod
    def _in(lines: Sequence[str], text: str) -> bool:
        return any(text in line for line in lines)


def _newest(events: Sequence[Event]) -> list[Event]:
    kept: list[Event] = []
    ended = [one.task for one in events if one.what is What.ENDED]
    old = set(ended[:-ENDED_SINCE])
    for what in What:
        kept += [one for one in events if one.what is what and one.task not in old][-NEWEST:]
    return kept
