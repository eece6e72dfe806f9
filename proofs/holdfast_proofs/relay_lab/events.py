"""One file for a whole run: every process appends lines to it, each in one write, and no line is ever changed.

Times are of the monotonic clock, which all processes of a machine share. A message has a name of its own in its body,
`m`, which is the same whatever key it is sent under.

    run, phase, end               the driver: the seed and the options; what begins now
    agent                         name and id
    kill, up, cut, heal           a relay
    send                          a task is about to send `m` to `by`; `at` is when it was due
    stored                        the step has ended: two relays signed; `k` is the message key
    delivery                      an envelope came out of the mailbox
    committed                     the recipient's journal has the message
    handled                       the first line of the handler; `id` is its task's
    delivered                     the sender's journal has the recipient's delivery note
    machine-lost, restored        an agent's machine
    audited, kept                 at the end: whose journal was read; each task of mail that succeeded in it
    effect                        at the end: what the service that handlers use has counted
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

SEND = "lab-send"  # the task that sends
FILE = "RELAY_LAB_EVENTS"  # names the file, in the environment of each process
AGENT = "RELAY_LAB_AGENT"
PLANT = "RELAY_LAB_PLANT"  # a fault of the agents: planted.py
SERVICE = "RELAY_LAB_SERVICE"  # where a handler leaves its effect; empty: nowhere
RESEND = "RELAY_LAB_RESEND"  # seconds until a message without a delivery note is sent again; empty: as in production
WINDOW_S = 30 * 86_400.0  # of the keys of that service: after several restores it counts from the first backup


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    e: str
    t: int  # ns
    a: str = ""  # the agent or relay that it happened at
    m: str = ""
    k: str = ""
    by: str = ""  # the other agent's id, or the relay
    th: str = ""  # thread
    n: int = 0  # number in it
    at: int = 0
    id: str = ""
    info: dict[str, Any] = {}  # Any: figures of the driver


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Event).decode


class EventFile:
    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def add(self, e: str, **fields: Any) -> None:  # Any: those of Event
        os.write(self._fd, _encode(Event(e=e, t=time.monotonic_ns(), **fields)) + b"\n")

    def close(self) -> None:
        os.close(self._fd)


def read_events(path: Path) -> Iterator[Event]:
    """In the order in which they were written. A last line without its end belongs to a process that was killed."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield _decode(line)
