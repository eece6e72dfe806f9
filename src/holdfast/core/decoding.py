"""Typed values out of JSON, MessagePack and plain objects; safe in several threads.

msgspec examines a struct when it is first read, and keeps what it found in the class before that is whole. A second
thread that reads the same struct in this moment ends the process with a segmentation fault (msgspec 0.22). So every
type is examined once, under one lock, before any thread reads it. No other module of the package asks msgspec to read
a type: a test looks.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")

_LOCK = threading.RLock()
_KNOWN: dict[Any, msgspec.json.Decoder[Any]] = {}  # Any: by type, also by one that is no class


@overload
def json_decoder() -> msgspec.json.Decoder[Any]: ...
@overload
def json_decoder(type_: type[T]) -> msgspec.json.Decoder[T]: ...
def json_decoder(type_: Any = Any) -> msgspec.json.Decoder[Any]:
    found = _KNOWN.get(type_)
    if found is None:
        with _LOCK:
            found = _KNOWN[type_] = msgspec.json.Decoder(type_)
    return found


def msgpack_decoder(type_: type[T]) -> msgspec.msgpack.Decoder[T]:
    """To be kept: each one is made again."""
    json_decoder(type_)
    return msgspec.msgpack.Decoder(type_)


@overload
def decode_json(raw: bytes | str) -> Any: ...
@overload
def decode_json(raw: bytes | str, type_: type[T]) -> T: ...
@overload
def decode_json(raw: bytes | str, type_: Any) -> Any: ...
def decode_json(raw: bytes | str, type_: Any = Any) -> Any:
    """Raises msgspec.DecodeError, of which ValidationError is one."""
    return json_decoder(type_).decode(raw)


@overload
def convert(value: object, type_: type[T]) -> T: ...
@overload
def convert(value: object, type_: Any) -> Any: ...
def convert(value: object, type_: Any) -> Any:
    """Raises msgspec.ValidationError."""
    if type_ not in _KNOWN:
        json_decoder(type_)
    return msgspec.convert(value, type_)
