"""The hash chain of a task: each record's hash covers the one before and its sealed bytes.

A flipped, missing or reordered record is found without any key (I11). The first record follows
the task id itself, so chains of two tasks can never be exchanged.
"""

from __future__ import annotations

import struct
from hashlib import sha256

_pack_header = struct.Struct(">QBHQQQhBBBB").pack


def first_link(task_id: bytes) -> bytes:
    return sha256(b"holdfast/chain/1\0" + task_id).digest()


def next_link(
    before: bytes,
    seq: int,
    kind: int,
    what: int,
    epoch: int,
    at_ms: int,
    boot_ms: int,
    slot: int,
    quiet: int,
    ordinal: str,
    effect_key: bytes,
    fingerprint: bytes,
    body: bytes,
) -> bytes:
    """The record's hash. The lengths of the variable fields are before them."""
    name = ordinal.encode()
    head = _pack_header(
        seq, kind, what, epoch, at_ms, boot_ms, slot, quiet, len(name), len(effect_key), len(fingerprint)
    )
    return sha256(b"".join((before, head, name, effect_key, fingerprint, body))).digest()


def place(task_id: bytes, seq: int, kind: int, ordinal: str, epoch: int) -> bytes:
    """The associated data that binds a record's payload to its place."""
    return f"record\0{task_id.hex()}\0{seq}\0{kind}\0{ordinal}\0{epoch}".encode()


_REMARK = struct.Struct(">QQIH")


def first_remark_link(journal_id: str) -> bytes:
    """What the first remark of a journal follows."""
    return sha256(b"holdfast/remarks/1\0" + journal_id.encode()).digest()


def next_remark_link(before: bytes, *, number: int, at_ms: int, key_id: int, remark_id: str, body: bytes) -> bytes:
    """A remark's hash: over the one before, its numbers, its id and its sealed bytes."""
    name = remark_id.encode()
    head = _REMARK.pack(number, at_ms, key_id, len(name))
    return sha256(b"".join((before, head, name, body))).digest()
