"""A task's story as plain values: what the journal recorded, the far end did, the workers said.

Three witnesses that do not ask each other. The journal's records have an order of their own
(their numbers); the far end's books have another (the order of arrival). `in_one_order` joins
them: an effect belongs behind the start that caused it. A fence names that start exactly; without
one it is the newest start of the step that the far end's clock allows, for all programs of a suite
read one machine's clock.
"""

from __future__ import annotations

import msgspec

from holdfast.core.effect import Letter
from holdfast.core.step import Event
from holdfast.journal.records import RecordKind

CLOCK_GRAIN_MS = 2  # two programs round one instant to different milliseconds
FENCE_NUMBER = (1 << 40) - 1  # the part of a fence that is the record's number


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """One record of the task, in clear."""

    number: int
    seq: int
    kind: RecordKind
    events: tuple[Event, ...] = ()
    ordinal: str = ""
    epoch: int = 0
    at_ms: int = 0
    key: str = ""
    fingerprint: str = ""
    quiet: bool = False


class Landed(msgspec.Struct, frozen=True, kw_only=True):
    """One effect that took place, as its far end wrote it down."""

    n: int
    step: str
    at_ms: int = 0  # 0: the far end has no clock of its own (effects inside the journal)
    key: str | None = None
    fence: int | None = None
    resource: str | None = None
    body: str = ""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One request for an effect that arrived, whatever came of it."""

    n: int
    step: str
    key: str | None = None
    body: str = ""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's own word that it holds the task under this epoch."""

    epoch: int
    worker: str


class Story(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str
    letters: dict[str, Letter]  # by ordinal
    records: tuple[Told, ...] = ()
    effects: tuple[Landed, ...] = ()
    requests: tuple[Asked, ...] = ()
    holders: tuple[Held, ...] = ()
    unseen: frozenset[Letter] = frozenset()  # classes whose effects no book here can show
    books: bool = True  # whether the far end's books are there: without them I1 to I4 say nothing


def base_of(ordinal: str) -> str:
    """The step that a slot stands for. Kept apart from the runtime's own rule: a judge's."""
    parts = ordinal.split(".")
    while len(parts) > 1 and parts[-1].startswith("r"):
        parts.pop()
    return ".".join(parts)


def find_cause(story: Story, effect: Landed) -> Told | None:
    """The start that the effect came from, or None: it came from nowhere."""
    starts = [record for record in story.records if record.ordinal == effect.step and Event.START in record.events]
    if effect.fence is not None:
        named = effect.fence & FENCE_NUMBER
        return next((one for one in starts if one.number == named), None)
    if effect.at_ms:
        starts = [one for one in starts if one.at_ms <= effect.at_ms + CLOCK_GRAIN_MS]
    return starts[-1] if starts else None


def in_one_order(story: Story) -> list[Told | Landed]:
    """Every record and effect; an effect stands behind its cause, and behind what is older.

    Effects without a cause come first: nothing that is recorded leads to them.
    """
    behind: dict[int, list[Landed]] = {}
    for effect in sorted(story.effects, key=lambda one: one.n):
        cause = find_cause(story, effect)
        behind.setdefault(0 if cause is None else cause.number, []).append(effect)
    order: list[Told | Landed] = [*behind.get(0, [])]
    for record in sorted(story.records, key=lambda one: one.number):
        order.append(record)
        order.extend(behind.get(record.number, []))
    return order
