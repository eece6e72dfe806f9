"""Borders of an agent's move: the cover of a package, and the mark of the copy that has moved."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec

from holdfast.identity.records.encodings import key_bytes
from holdfast.layout.moved import MOVED, MOVING, MovedMark, parse_mark
from holdfast.recovery.move_package import INTRO, Cover, head_of, key_of, read_cover
from holdfast_proofs.fuzz.borders.snapshots import HEADS
from holdfast_proofs.fuzz.feed import law

WHERE = Path("ada.move")
COVERS = (INTRO + msgspec.json.encode(Cover(head=HEADS[0].decode(), seed="07" * 32)) + b"\n",)
MARKS = (
    msgspec.json.encode(MovedMark(state=MOVING, package="/mnt/ada.move")),
    msgspec.json.encode(MovedMark(state=MOVED, package="a", to="k", part_sha256="0" * 64, at=1)),
)
WORDS = (
    b"holdfast move 2\n",
    b'"head":',
    b'"seed":',
    b'"yield":',
    b'"state":"moved"',
    b'"format":2',
    b"null",
    b"\n",
    b"{}",
    b'""',
    b"\\ud800",
    b"\xff",
)


def cover(raw: bytes) -> None:
    found = read_cover(io.BytesIO(raw), where=WHERE)
    with key_of(found) as key:
        law(len(key_bytes(key.public)) == 32, "a key of another length")
    law(head_of(found).line().decode() == found.head, "a head with two spellings")


def mark(raw: bytes) -> None:
    found = parse_mark(raw, where=WHERE)
    law(parse_mark(msgspec.json.encode(found), where=WHERE) == found, "a mark with two meanings")
