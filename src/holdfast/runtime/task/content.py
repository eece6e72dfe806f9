"""Contents are named by what they are: a digest each, and a chain of digests for a talk.

A message of a talk, or what a model is asked with (its head), is kept once per task under its digest. `link` makes the
chain: the prefix after n messages depends on all of them and costs one hash for the newest, however long the talk is.
Digests are only in sealed payloads, so they may be plain hashes.
"""

from __future__ import annotations

import base64
import hashlib

import msgspec

from holdfast.core.values import Json

DIGEST_CHARS = 43  # 32 bytes in base64url without padding
NO_PREFIX = ""  # before the first message

_encode = msgspec.json.Encoder(order="sorted").encode


def content_bytes(value: Json) -> bytes:
    """JSON of a checked value: keys sorted, no spaces, UTF-8."""
    return _encode(value)


def digest_of(raw: bytes) -> str:
    """The name of the content with these bytes."""
    return _text(hashlib.sha256(b"holdfast/content/1\0" + raw).digest())


def link(prefix: str, digest: str) -> str:
    """The prefix after one more message."""
    return _text(hashlib.sha256(f"holdfast/talk/1\0{prefix}\0{digest}".encode()).digest())


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw)[:DIGEST_CHARS].decode()
