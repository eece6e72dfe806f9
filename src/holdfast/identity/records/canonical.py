"""Identity records as bytes: RFC 8785 JSON in a restricted profile, one form for one value.

True of everything that `parse` returns: `encode(parse(raw)) == raw`. Two records that differ in
one byte differ in meaning, and a record read twice, here or by another implementation, has one
digest. So duplicate keys, spaces, other escapes, `1.0`, `-0` and reordered keys are all refused
by one comparison, and what RFC 8785 leaves open is closed by the profile: objects, arrays, text,
true, false and whole numbers within 2^53-1; no null, no fractions; keys in ASCII; text in NFC.

The work is bounded before it is done: length first, then depth, then the rest.
"""

from __future__ import annotations

import unicodedata
from typing import cast

import msgspec

from holdfast.core.decoding import json_decoder
from holdfast.core.values import canonical
from holdfast.errors import BadRecord

RECORD_BYTES_MAX = 4096  # a body; an inception with three witnesses has 440
LINE_BYTES_MAX = 8192  # a body with as many signatures as it can need
DEPTH_MAX = 8
INT_MAX = 2**53 - 1  # the whole numbers that every reader of JSON keeps

Json = object

_decode = json_decoder().decode


def parse(raw: bytes, *, what: str = "record", bytes_max: int = RECORD_BYTES_MAX) -> Json:
    """The value of canonical bytes; BadRecord for everything else."""
    if len(raw) > bytes_max:
        raise BadRecord(f"{what}: it has {len(raw):,} bytes; at most {bytes_max:,} are allowed")
    try:
        value = cast("Json", _decode(raw))
    except (msgspec.DecodeError, RecursionError, UnicodeError, ValueError, OverflowError) as error:
        raise BadRecord(f"{what}: it is not JSON: {error}") from None
    if encode(value, what=what, bytes_max=bytes_max) != raw:
        raise BadRecord(f"{what}: it is not in canonical form")
    return value


def encode(value: Json, *, what: str = "record", bytes_max: int = RECORD_BYTES_MAX) -> bytes:
    """The canonical bytes of a value of the profile; BadRecord for one outside it."""
    _check(value, what, 0)
    raw = canonical(value)
    if len(raw) > bytes_max:
        raise BadRecord(f"{what}: it has {len(raw):,} bytes; at most {bytes_max:,} are allowed")
    return raw


def _check(value: Json, what: str, depth: int) -> None:
    kind = type(value)
    if kind is str:
        _check_text(cast(str, value), what)
    elif kind is int:
        if not -INT_MAX <= cast(int, value) <= INT_MAX:
            raise BadRecord(f"{what}: it has a whole number beyond 2^53-1")
    elif kind is bool:
        return
    elif depth >= DEPTH_MAX:
        raise BadRecord(f"{what}: it is nested deeper than {DEPTH_MAX} levels")
    elif kind is dict:
        for key, item in cast("dict[object, Json]", value).items():
            if type(key) is not str or not key.isascii():
                raise BadRecord(f"{what}: it has a key that is not ASCII text")
            _check(item, what, depth + 1)
    elif kind is list:
        for item in cast("list[Json]", value):
            _check(item, what, depth + 1)
    else:
        raise BadRecord(f"{what}: it contains {_NAMES.get(kind, kind.__name__)}, which is not allowed")


def _check_text(text: str, what: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadRecord(f"{what}: it has text with a lone surrogate") from None
    if not unicodedata.is_normalized("NFC", text):
        raise BadRecord(f"{what}: it has text that is not in the normal form NFC")


_NAMES: dict[type, str] = {float: "a number that is not whole", type(None): "null"}
