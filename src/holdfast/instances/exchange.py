"""What one merge knows of its envelopes: the parts that it sent, and what it took from those of others."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import msgspec

from holdfast.errors import BadUpdate, HistoryMissing
from holdfast.instances.envelope import ENVELOPE_BYTES_MAX, Part
from holdfast.instances.line_document import CHANGES_MAX, NOTHING, Version
from holdfast.instances.shared import SharedDocument, Update

PART_DATA_BYTES = 8 * 1024 * 1024
DATA_BYTES_MAX = ENVELOPE_BYTES_MAX - 1024 * 1024  # besides it a part has versions of many peers


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


def in_pieces(shared: SharedDocument, since: Version, *, whole: bool) -> tuple[list[Update], str]:
    """What to send of a file, and why not all of it is sent: one file keeps no other one back."""
    try:
        updates = _pieces(shared, since, whole=whole)
    except (BadUpdate, HistoryMissing) as error:
        return [], f"it cannot be sent to the other instances: {error.message}"
    if len(updates[0].data) <= DATA_BYTES_MAX:
        return updates, ""
    text = f"its document has {len(updates[0].data):,} bytes; at most {DATA_BYTES_MAX:,} are sent to other instances"
    return [without_data(updates[0])], text


def _pieces(shared: SharedDocument, since: Version, *, whole: bool) -> list[Update]:
    """More than readers take at once goes as several updates, each with the version that it makes. What was packed
    because early history was dropped cannot be cut, nor what an instance asks for to put its own document away: of it
    more history is dropped instead."""
    update, document = shared.update_since(since, whole=whole), shared.document
    if document is None or not update.data:
        return [update]
    begin, at_once = NOTHING if update.whole else since, update.whole and shared.is_asked_by_another_document
    bytes_max = DATA_BYTES_MAX if at_once else PART_DATA_BYTES
    if document.count_since(begin) < CHANGES_MAX and len(update.data) <= bytes_max:
        return [update]
    pieces = document.pieces_since(begin, most=CHANGES_MAX // 2, bytes_most=PART_DATA_BYTES)
    if at_once or document.begins_after(begin):
        data = document.copy(keep_from=pieces[-2][0]) if len(pieces) > 1 else update.data
        return [msgspec.structs.replace(update, data=data)]
    pieces[-1] = update.version, pieces[-1][1]  # in the very bytes that are compared with the document's
    return [
        msgspec.structs.replace(update, version=version, data=data, whole=update.whole and not at)
        for at, (version, data) in enumerate(pieces)
    ]
