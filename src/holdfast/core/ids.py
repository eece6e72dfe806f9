"""Names that only the orchestrator makes: task ids and effect keys.

An effect key depends on the task id and the ordinal alone; the task id on the request id and, in a further journal with
the same keys, on that journal's salt. The holder of the keys can work it out again after the journal is lost; nothing a
model, a worker, a clock or an attempt does can change it (I9). The secret makes it unguessable, because a downstream
may show its stored answer for a key that is presented.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import uuid
from typing import NewType

from holdfast.errors import BadReference

TaskId = NewType("TaskId", str)
EffectKey = NewType("EffectKey", str)

TASK_ID_CHARS = 26
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford: no I, L, O, U to misread
_VALUES = {char: value for value, char in enumerate(_ALPHABET)}
_ALIASES = str.maketrans("ILO", "110")
_ID_HINT = "give a task id or its first letters, without I, L, O and U; `holdfast task list` shows the ids"


@functools.lru_cache(4_096)
def task_id_from_bytes(raw: bytes) -> TaskId:
    """The 26-character text form of 128 bits."""
    number = int.from_bytes(raw, "big")
    return TaskId("".join(_ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5)))


@functools.lru_cache(4_096)
def task_id_bytes(task_id: TaskId) -> bytes:
    number = 0
    for char in task_id:
        number = number << 5 | _VALUES[char]
    return number.to_bytes(16, "big")


def parse_task_id(text: str) -> TaskId:
    """A task id as a person typed it (case and look-alike letters forgiven)."""
    tidy = parse_task_prefix(text)
    if len(tidy) != TASK_ID_CHARS:
        raise BadReference(f"{text!r} is not a task id", hint=_ID_HINT)
    return TaskId(tidy)


def parse_task_prefix(text: str) -> str:
    """The first letters of a task id, forgiven and checked in the same way."""
    tidy = text.strip().upper().translate(_ALIASES)
    fits = 1 <= len(tidy) <= TASK_ID_CHARS and tidy[0] <= "7"
    if not fits or any(char not in _VALUES for char in tidy):
        raise BadReference(f"{text!r} is not a task id", hint=_ID_HINT)
    return tidy


def task_id_for_request(k_effect: bytes, *, agent: str, name: str, request_id: str, salt: bytes = b"") -> TaskId:
    """The task id of this request id, also in a journal that forgot it. `salt`: the journal's own, if any."""
    label = ("holdfast/task/2", salt.hex()) if salt else ("holdfast/task/1",)
    return task_id_from_bytes(_mac(k_effect, *label, agent, name, request_id)[:16])


class EffectKeys:
    """Derives effect keys; the keyed halves of the hash are worked out once."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, k_effect: bytes) -> None:
        block = k_effect.ljust(64, b"\0")  # k_effect has 32 bytes: HMAC pads it to a block
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in block))

    def raw(self, task_id: TaskId, ordinal: str) -> bytes:
        """UUIDv8 (RFC 9562: version and variant) of HMAC-SHA-256(k_effect, "holdfast/effect/1" NUL task id NUL
        ordinal)."""
        inner = self._inner.copy()
        inner.update(f"holdfast/effect/1\0{task_id}\0{ordinal}".encode())
        outer = self._outer.copy()
        outer.update(inner.digest())
        mac = outer.digest()
        return mac[:6] + bytes((mac[6] & 0x0F | 0x80, mac[7], mac[8] & 0x3F | 0x80)) + mac[9:16]


def effect_key(k_effect: bytes, task_id: TaskId, ordinal: str) -> EffectKey:
    """The effect key in the form that goes to downstreams."""
    return effect_key_from_bytes(EffectKeys(k_effect).raw(task_id, ordinal))


def effect_key_bytes(key: EffectKey) -> bytes:
    return bytes.fromhex(key.replace("-", ""))


def effect_key_from_bytes(raw: bytes) -> EffectKey:
    text = raw.hex()
    return EffectKey(f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}")


def parse_effect_key(text: str) -> EffectKey:
    try:
        return EffectKey(str(uuid.UUID(text.strip())))
    except ValueError as error:
        raise BadReference(f"{text!r} is not an effect key") from error


def fingerprint_key(k_effect: bytes) -> bytes:
    """Keys the fingerprints, so that short arguments cannot be guessed from a stolen journal."""
    return _mac(k_effect, "holdfast/fingerprint/1")


def fingerprint(key: bytes, *, tool: str, canonical_args: bytes) -> bytes:
    """Says whether two calls are the same call: tool name and canonical arguments."""
    state = _keyed_for(key, tool).copy()
    state.update(canonical_args)
    return state.digest()


@functools.lru_cache(1_024)
def _keyed_for(key: bytes, tool: str) -> hashlib.blake2b:
    return hashlib.blake2b(tool.encode() + b"\0", key=key, digest_size=16)


def _mac(key: bytes, *parts: str) -> bytes:
    return hmac.digest(key, "\0".join(parts).encode(), "sha256")
