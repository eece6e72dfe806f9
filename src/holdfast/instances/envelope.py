"""What one instance sends to the others: a parcel of updates, sealed for the agent and signed by the instance.

    envelope   MessagePack array: outer (bytes), signature (bytes)
    outer      MessagePack array: version, agent id, incarnation, instance, nonce and ciphertext
    signature  of the instance's key, over "holdfast/1/upd" NUL outer
    ciphertext ChaCha20-Poly1305 of the parcel, bound to agent id, incarnation and instance; its key comes from the
               effect key of the ring, which all instances of the agent have and no place that carries envelopes has

Everything is checked in this order, and nothing is changed before the last check has passed: size, form, version,
agent, incarnation, whether the instance is enrolled, its signature, the seal, the parcel. Nothing is compressed here;
what the library of documents has compressed is unpacked by `line_document.py`, within bounds.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from holdfast.core.decoding import msgpack_decoder
from holdfast.errors import BadUpdate, UpdateNewer, UpdateRefused
from holdfast.identity.records.ed25519 import Signatures, Sodium
from holdfast.identity.records.encodings import SIGNATURE_BYTES
from holdfast.identity.records.signed import Family, message
from holdfast.instances.shared import Update
from holdfast.layout.agent_home import HEARTBEAT_FILE, MEMORY_FILE
from holdfast.memory.lines import is_day

VERSION = 1
ENVELOPE_BYTES_MAX = 32 * 1024 * 1024
NAME_CHARS_MAX = 64
UPDATES_MAX = 20_000  # one for each memory file: days of fifty years
PARTS_MAX = 1_000
ROSTER_LINES_MAX = 16
NONCE_BYTES = 12
DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Who is enrolled, as this instance knows it: the public key of each by its name, this one's too."""

    agent: str
    incarnation: int  # updates of a lower one are refused
    me: str
    keys: Mapping[str, bytes]
    sign: Callable[[bytes], bytes]
    signatures: Signatures = field(default_factory=Sodium)

    @property
    def others(self) -> list[str]:
        return sorted(set(self.keys) - {self.me})


class Part(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An envelope that is to be read before this one."""

    digest: Annotated[bytes, msgspec.Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
    size: Annotated[int, msgspec.Meta(ge=0, le=ENVELOPE_BYTES_MAX)]

    @property
    def name(self) -> str:
        return self.digest[:16].hex()


class Parcel(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    at_ms: int
    updates: Annotated[tuple[Update, ...], msgspec.Meta(max_length=UPDATES_MAX)] = ()
    parts: Annotated[tuple[Part, ...], msgspec.Meta(max_length=PARTS_MAX)] = ()
    roster: Annotated[tuple[bytes, ...], msgspec.Meta(max_length=ROSTER_LINES_MAX)] = ()  # as the sender knows it
    life: Annotated[str, msgspec.Meta(max_length=NAME_CHARS_MAX)] = ""  # of the sender's folder (life.py)


class _Wire(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    outer: bytes
    signature: Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]


class _Version(msgspec.Struct, frozen=True, array_like=True):
    """The beginning of an outer part of any version."""

    v: Annotated[int, msgspec.Meta(ge=1)]


class _Outer(_Version, frozen=True, array_like=True, forbid_unknown_fields=True):
    agent: Annotated[str, msgspec.Meta(max_length=128)]
    incarnation: Annotated[int, msgspec.Meta(ge=0)]
    instance: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)]
    sealed: Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES)]


def update_key(k_effect: bytes) -> bytes:
    return hashlib.sha256(b"holdfast/1/memory-updates\0" + k_effect).digest()


def digest_of(raw: bytes) -> bytes:
    return hashlib.sha256(raw).digest()


def seal_parcel(parcel: Parcel, peers: Peers, key: bytes) -> bytes:
    """The whole envelope. Raises BadUpdate where it would be too large for its readers."""
    nonce = os.urandom(NONCE_BYTES)
    bound = _bound(peers.agent, peers.incarnation, peers.me)
    sealed = nonce + ChaCha20Poly1305(key).encrypt(nonce, _ENCODER.encode(parcel), bound)
    outer = _ENCODER.encode(_Outer(VERSION, peers.agent, peers.incarnation, peers.me, sealed))
    raw = _ENCODER.encode(_Wire(outer, peers.sign(message(Family.UPDATE, outer))))
    if len(raw) > ENVELOPE_BYTES_MAX:
        raise BadUpdate(f"the update has {len(raw):,} bytes; at most {ENVELOPE_BYTES_MAX:,} are sent")
    return raw


def open_parcel(raw: bytes, peers: Peers, key: bytes, *, sender: str) -> Parcel:
    """What that instance sent. Raises BadUpdate, UpdateNewer, UpdateRefused."""
    outer, wire = _read(raw)
    if outer.agent != peers.agent:
        raise UpdateRefused(f"an update is from another agent ({outer.agent})")
    if outer.instance != sender or outer.instance not in peers.keys:
        raise UpdateRefused(f"an update is from the instance {outer.instance!r}, which is not enrolled, or was removed")
    if outer.incarnation < peers.incarnation:
        raise UpdateRefused(
            f"an update of {outer.instance} is from before the agent was restored (incarnation {outer.incarnation}, "
            f"now {peers.incarnation})",
            hint="the instance sends it again when it knows of the restore",
        )
    text = message(Family.UPDATE, wire.outer)
    if not peers.signatures.verifies(peers.keys[outer.instance], text, wire.signature):
        raise UpdateRefused(f"an update says that it is from {outer.instance}, but its key did not sign it")
    bound = _bound(outer.agent, outer.incarnation, outer.instance)
    try:
        plain = ChaCha20Poly1305(key).decrypt(outer.sealed[:NONCE_BYTES], outer.sealed[NONCE_BYTES:], bound)
        parcel = _PARCEL.decode(plain)
    except InvalidTag:
        raise UpdateRefused(
            f"an update of {outer.instance} was sealed with another key than this agent has here",
            hint="compare `holdfast identity show` on both hosts",
        ) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadUpdate(f"an update of {outer.instance} cannot be read: {error}") from None
    for one in parcel.updates:
        if one.instance != outer.instance or not is_shared_name(one.file):
            raise BadUpdate(f"an update of {outer.instance} is about {one.file!r} of {one.instance!r}")
    return parcel


def is_shared_name(name: str) -> bool:
    """Whether instances share the memory file of this name; nothing else is ever written."""
    return name in (MEMORY_FILE, HEARTBEAT_FILE) or (name.endswith(".md") and is_day(name[:-3]))


def _read(raw: bytes) -> tuple[_Outer, _Wire]:
    if len(raw) > ENVELOPE_BYTES_MAX:
        raise BadUpdate(f"an update has more than {ENVELOPE_BYTES_MAX:,} bytes")
    try:
        wire = _WIRE.decode(raw)
        if (found := _VERSION.decode(wire.outer).v) > VERSION:
            raise UpdateNewer(f"an update has version {found}; this Holdfast knows versions up to {VERSION}")
        return _OUTER.decode(wire.outer), wire
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadUpdate(f"an update is damaged, or is not one: {error}") from None


def _bound(agent: str, incarnation: int, instance: str) -> bytes:
    return b"\0".join((agent.encode(), str(incarnation).encode(), instance.encode()))


_ENCODER = msgspec.msgpack.Encoder()
_WIRE = msgpack_decoder(_Wire)
_VERSION = msgpack_decoder(_Version)
_OUTER = msgpack_decoder(_Outer)
_PARCEL = msgpack_decoder(Parcel)
