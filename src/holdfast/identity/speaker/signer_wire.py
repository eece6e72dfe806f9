"""What goes over the socket of a signer: one JSON object each way, each behind its length.

    4 bytes, big-endian   how many bytes follow
    request               canonical JSON in the profile of records: {"v":1,"do":VERB, ...}
    answer                JSON: {"ok":{...}} or {"error":{"code","message","hint"}}

A request is small, an answer holds a whole log at most. Whatever is longer, not canonical, of
another version or has a field too many is refused before anything is done.
"""

from __future__ import annotations

import struct
from typing import Any, cast

import msgspec

from holdfast.errors import BadRecord
from holdfast.identity.records.canonical import Json, encode, parse
from holdfast.identity.records.fields import Fields

VERSION = 1
LENGTH = struct.Struct(">I")
REQUEST_BYTES_MAX = 8_192
ANSWER_BYTES_MAX = 128 << 20  # as much as a home's own log may have


def request(do: str, fields: dict[str, Json]) -> bytes:
    """A request with its length. Raises BadRecord for values that JSON records do not hold."""
    body = encode({"v": VERSION, "do": do, **fields}, what="request", bytes_max=REQUEST_BYTES_MAX)
    return LENGTH.pack(len(body)) + body


def parse_request(raw: bytes) -> tuple[str, Fields]:
    """The verb and its fields, to be taken one by one. Raises BadRecord."""
    fields = Fields(parse(raw, what="request", bytes_max=REQUEST_BYTES_MAX), "request")
    if fields.whole("v") != VERSION:
        raise BadRecord(f"request: a version other than {VERSION}")
    return fields.text("do", chars_max=16), fields


def answer(ok: dict[str, Any]) -> bytes:  # Any: JSON that we made ourselves
    return _framed({"ok": ok})


def refusal(code: str, message: str, hint: str = "") -> bytes:
    return _framed({"error": {"code": code, "message": message, "hint": hint}})


def parse_answer(raw: bytes) -> tuple[dict[str, Any] | None, dict[str, str]]:
    """What it says, or its error. Raises BadRecord. Any: whoever asked checks what came."""
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise BadRecord(f"answer: not JSON: {error}") from None
    whole = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    ok, error = whole.get("ok"), whole.get("error")
    if isinstance(ok, dict):
        return cast("dict[str, Any]", ok), {}
    if not isinstance(error, dict):
        raise BadRecord("answer: neither a yes nor an error")
    said = cast("dict[str, Any]", error)
    return None, {key: str(said.get(key, "")) for key in ("code", "message", "hint")}


def _framed(value: dict[str, Any]) -> bytes:
    body = msgspec.json.encode(value)
    return LENGTH.pack(len(body)) + body
