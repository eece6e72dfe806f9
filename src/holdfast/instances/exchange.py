"""What one merge knows of its envelopes: the parts that it sent, and what it took from those of others."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import msgspec

from holdfast.instances.envelope import Part
from holdfast.instances.line_document import Version
from holdfast.instances.shared import Update

PART_DATA_BYTES = 8 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class SentPart:
    """A part of ours that is in the place: of each file from which version to which."""

    part: Part
    mark: object
    since: dict[str, Version]
    upto: dict[str, Version]
    asking: frozenset[str]  # files of which it asks for a whole document
    whole: frozenset[str]


@dataclass(slots=True)
class Heard:
    """What of another instance's envelopes was taken."""

    mark: object = None
    parts: dict[bytes, frozenset[str]] = field(default_factory=dict[bytes, frozenset[str]])  # the files in each
    asks: frozenset[str] = frozenset()  # files about which its newest envelope wants to hear
    missing: int = 0  # parts
    tries: int = 0  # in vain, of this mark
    again_ms: int = 0  # when it is read again though it has not changed; 0: not

    @property
    def needs(self) -> frozenset[str]:
        return self.asks.union(*self.parts.values())


def without_data(update: Update) -> Update:
    return msgspec.structs.replace(update, data=b"", whole=False)


def chunks(updates: Sequence[Update]) -> Generator[list[Update]]:
    """In this order, as many at once as a part may have."""
    some: list[Update] = []
    size = 0
    for one in updates:
        if some and size + len(one.data) > PART_DATA_BYTES:
            yield some
            some, size = [], 0
        some.append(one)
        size += len(one.data)
    yield some
