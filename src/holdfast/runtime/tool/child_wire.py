"""What a worker and the child that runs a blocking tool say to each other.

Frames over one socket: four bytes of length, then JSON. The parent says hello, then for each call
`prepare`; the child imports and finds the function and answers `ready` (or `unfit`); only then
does the parent note that a byte may leave, and says `go`; the child runs the function and answers
with its outcome. So everything that goes wrong before `go` provably sent nothing.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

from holdfast.core import values
from holdfast.errors import BadValue, Busy, HoldfastError, KeyReused, NotSent, Refused, TooLarge, ToolRaised, text_of

FRAME_BYTES_MAX = 32 * 1024 * 1024  # twice what a step may hold, for the names around it
_LENGTH_BYTES = 4
_TEXT_CHARS_MAX = 10_000
_PROOF_BYTES_MAX = 64 * 1024

Message = dict[str, Any]  # Any: JSON; the fields are written and read in this file and child.py

# What each kind of outcome says, and of which type that is.
_FIELDS: dict[Any, dict[str, type | tuple[type, ...]]] = {
    "returned": {"value": object},
    "unkept": {"why": str},
    "refused": {"proof": object, "retry_after_s": (int, float, type(None))},
    "key-reused": {"proof": object},
    "not-sent": {"reason": str},
    "busy": {"retry_after_s": (int, float)},
    "raised": {"type": str, "text": str, "code": str},
}


def frame(message: Message, *, what: str) -> bytes:
    """The bytes of one message. Raises TooLarge."""
    body = values.encode(message, what=what, bytes_max=FRAME_BYTES_MAX)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


async def read_message(reader: asyncio.StreamReader) -> Message:
    """The next message. Raises EOFError or ConnectionError where the child is of no use."""
    try:
        body = await reader.readexactly(_checked_length(await reader.readexactly(_LENGTH_BYTES)))
        message = values.decode(body)
    except (TooLarge, ValueError, RecursionError) as error:  # the tool wrote over our socket
        raise ConnectionError(f"garbled answer: {error}") from error
    if not isinstance(message, dict):
        raise ConnectionError("garbled answer: no message")
    return cast(Message, message)


def outcome_of(message: Message) -> Message:
    """The message, where it is a whole outcome. Raises ConnectionError where it is none.

    A tool that found the child's socket can write anything into it.
    """
    kinds = _FIELDS.get(message.get("kind")) if isinstance(message.get("kind"), str) else None
    if kinds is None or not all(name in message and isinstance(message[name], kind) for name, kind in kinds.items()):
        raise ConnectionError("garbled answer: no outcome")
    return message


def receive(channel: socket.socket) -> Message | None:
    """The next message, or None where the parent has ended."""
    head = _receive_exactly(channel, _LENGTH_BYTES)
    body = _receive_exactly(channel, _checked_length(head)) if head else None
    return None if body is None else cast(Message, values.decode(body))


def returned(value: object) -> Message:
    return {"kind": "returned", "value": values.checked(value, what="result")}


def unkept(why: str) -> Message:
    return {"kind": "unkept", "why": _tidy(why)}


class Unkept(Exception):
    """The tool returned, so its effect took place; its result is no JSON value we can keep."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


def raised(error: BaseException) -> Message:
    """How an exception of the tool travels: the four that say something, or its name and text."""
    match error:
        case Refused():
            proof, later = _proof(error.proof), error.retry_after_s
            return {"kind": "refused", "proof": proof, "retry_after_s": later}
        case KeyReused():
            return {"kind": "key-reused", "proof": _proof(error.proof)}
        case NotSent():
            return {"kind": "not-sent", "reason": _tidy(error.message)}
        case Busy():
            return {"kind": "busy", "retry_after_s": float(error.retry_after_s)}
        case _:
            code = error.code if isinstance(error, HoldfastError) else ""
            kind, text = type(error).__name__, text_of(error)
            return {"kind": "raised", "type": kind, "text": text, "code": code}


def opened(outcome: Message, *, tool: str) -> object:
    """The value the tool returned; or what it raised, raised here."""
    match outcome["kind"]:
        case "returned":
            return outcome["value"]
        case "unkept":
            raise Unkept(outcome["why"])
        case "refused":
            raise Refused(outcome["proof"], retry_after_s=outcome["retry_after_s"])
        case "key-reused":
            raise KeyReused(outcome["proof"])
        case "not-sent":
            raise NotSent(outcome["reason"])
        case "busy":
            raise Busy(outcome["retry_after_s"])
        case _:
            raise ToolRaised(tool=tool, kind=outcome["type"], text=outcome["text"], error_code=outcome["code"])


def _checked_length(head: bytes) -> int:
    length = int.from_bytes(head, "big")
    if length > FRAME_BYTES_MAX:
        raise TooLarge(f"a message of {length:,} bytes; the limit is {FRAME_BYTES_MAX:,}")
    return length


def _receive_exactly(channel: socket.socket, count: int) -> bytes | None:
    parts: list[bytes] = []
    while count:
        part = channel.recv(min(count, 1 << 20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _proof(value: object) -> object:
    """A proof that cannot be kept as it is is kept as text: it proves the same."""
    try:
        kept = values.checked(value, what="proof")
        values.encode(kept, what="proof", bytes_max=_PROOF_BYTES_MAX)
        return kept
    except (BadValue, TooLarge):
        return _tidy(repr(value))


def _tidy(text: str) -> str:
    return text[:_TEXT_CHARS_MAX].encode("utf-8", "replace").decode()
