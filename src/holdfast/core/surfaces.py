"""Surfaces and facts: what every room reports about the state it keeps.

A surface is a place where state of the agent is: what it holds, who owns it, what protects it, and the newest evidence
that it can be recovered. A fact is one dated observation; the level is a pure function of facts. Both are found by
looking: a room has a module `surfaces.py` that looks at what the room keeps and returns `Found`.

`Surface.fix` and the next action of a level are commands that a person can copy; words in capitals are theirs to fill
in. Times are milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import msgspec

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
AT_MS_MAX = 253_370_764_800_000  # the year 9999: later times cannot be shown
THIS_AGENT = "this agent"  # an owner
THIS_MACHINE = "this machine"  # a failure domain


class Verdict(StrEnum):
    COVERED = "covered"  # protected, and the evidence is young enough
    AT_RISK = "at risk"  # protected, but the evidence is old or missing
    UNCOVERED = "uncovered"  # nothing would bring it back


class Surface(msgspec.Struct, frozen=True, kw_only=True):
    """One place where state of the agent is."""

    id: str  # unique in the register, stable over time: `place/nas`, `journal`
    kind: str
    holds: str
    where: str
    owner: str = THIS_AGENT  # who runs it
    protection: str = ""  # journal, backup, standby, witnesses, paper; empty where there is none
    domain: str = THIS_MACHINE  # what can fail as one
    rpo_s: int | None = None  # targets; None: those of the agent
    rto_s: int | None = None
    evidence: str = ""  # the newest sign that it can be recovered
    evidence_ms: int | None = None
    verdict: Verdict
    why: str
    fix: str = ""  # one command; empty where there is nothing to fix


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """One observation. `at_ms`: when that which was observed was so; None: it has no date and proves nothing that
    expires."""

    name: str
    value: bool | int | str
    at_ms: int | None
    source: str  # where it was seen, for people
    about: str = ""  # which place, sheet or drill


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What one look gave."""

    surfaces: tuple[Surface, ...] = ()
    facts: tuple[Fact, ...] = ()


def joined(every: Iterable[Found]) -> Found:
    looks = tuple(every)
    return Found(
        surfaces=tuple(one for look in looks for one in look.surfaces),
        facts=tuple(one for look in looks for one in look.facts),
    )


class Cover(msgspec.Struct, frozen=True, kw_only=True):
    """What backups do for every file of the agent's folder, so for most surfaces."""

    evidence: str = ""
    evidence_ms: int | None = None
    verdict: Verdict
    why: str
    fix: str = ""


def in_backups(id: str, kind: str, cover: Cover, *, holds: str, where: str, protection: str = "backup") -> Surface:
    """A surface that backups cover as they cover the agent's folder."""
    found = msgspec.structs.asdict(cover)
    return Surface(id=id, kind=kind, holds=holds, where=where, protection=protection, **found)


class Targets(msgspec.Struct, frozen=True, kw_only=True):
    """What the owner of the agent allows: time to recover, data to lose, and the limit of both."""

    rto_s: int = 300
    rpo_s: int = 86_400
    mtd_s: int | None = None  # longest outage that the owner accepts
    restart_s: int | None = None  # to start a killed worker again; None: 1 s
    by: str = ""  # empty: these are the defaults
    at_ms: Annotated[int, msgspec.Meta(ge=0, le=AT_MS_MAX)] = 0


def day_of(at_ms: int) -> str:
    """A day for people, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).date().isoformat()


def minute_of(at_ms: int) -> str:
    """A moment for people, in UTC."""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"


def age_text(ms: int) -> str:
    return f"{ms // DAY_MS} days" if ms >= 2 * DAY_MS else f"{max(0, ms) // HOUR_MS} h"
