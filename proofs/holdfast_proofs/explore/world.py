"""A state of the model: the journal, the processes, the network and the far end.

States are tuples of small numbers and are compared as such. A row of the journal is a number
into the table of `rules.Rules`; a process is a run under one epoch, named by it. A run that has
ended is no longer there, so two worlds that differ in history alone are one state.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Task(IntEnum):
    FREE = 0  # claimable
    HELD = 1
    PARKED = 2  # rests for a person
    ENDED = 3


class At(IntEnum):
    """Where a lane of a run stands."""

    RUN = 0
    SEND = 1  # started, nothing sent
    MARKED = 2  # its page says that the send has begun
    WAIT = 3
    REPLIED = 4
    ASKED = 5
    REST = 6
    DONE = 7
    SENT = 8  # sent, its page not yet marked (only without MARK_FIRST)


class Reply(IntEnum):
    NONE = 0
    OK = 1
    REFUSED = 2
    FENCED = 3
    REUSED = 4  # the key is known with another body
    OK_OTHER = 5  # the first answer, to another body
    # of a lookup
    FOUND = 6
    ABSENT = 7
    UNSURE = 8
    OTHER = 9


class Lane(NamedTuple):
    at: int
    row: int
    reply: int


class Run(NamedTuple):
    epoch: int
    lanes: tuple[Lane, ...]


class Request(NamedTuple):
    row: int
    epoch: int  # 0 where nobody compares it any more
    awaited: bool
    lost: bool  # sent in a timeline that a restore has lost
    other: bool  # with other arguments than the lost timeline's


class Answer(NamedTuple):
    """A person's decision."""

    row: int
    verdict: str
    asked: int  # the epoch under which the question was asked


class Copy(NamedTuple):
    """An older copy of the journal."""

    rows: tuple[int, ...]
    epoch: int
    evidence: int
    answer: Answer | None
    effects: tuple[int, ...]  # Transactional ones are in the same file
    cancelled: bool
    granted: int
    declined: int


class Left(NamedTuple):
    """Faults that may still happen."""

    crash: int
    loss: int
    lapse: int
    restores: int
    refusals: int
    unsure: int
    webhook: int
    cancel: int


class World(NamedTuple):
    rows: tuple[int, ...]
    epoch: int
    task: int
    runs: tuple[Run, ...]
    net: tuple[Request, ...]
    effects: tuple[int, ...]  # per row, at most 2
    keys: int  # bits: rows whose key the far end knows as done
    others: int  # bits: rows done with other arguments
    refused: int  # bits: rows whose refusal the far end keeps
    fence: int
    last: int  # the step that wrote the resource last
    evidence: int  # bits: rows with evidence in the inbox
    answer: Answer | None
    clear: tuple[tuple[int, int], ...]  # (row, epoch) of dead attempts that were not sent
    window: bool
    cancelled: bool
    granted: int  # bits: rows with an approval
    declined: int  # bits: rows whose approval was refused
    restored: int  # the epoch that a restore began with; 0: none
    copy: Copy | None
    left: Left


class Finding(Exception):
    """A promise is broken; the message begins with its number."""
