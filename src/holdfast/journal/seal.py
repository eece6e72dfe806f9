"""Compressing and sealing of payloads: deflate, then AES-256-GCM; a data key per task, wrapped by the journal key.

The place of a payload (table, task, sequence, kind, ordinal, epoch) is its associated data, so that a row moved to
another place no longer opens. A nonce is 96 random bits; RECORDS_MAX keeps a data key below 2^20 seals. Retention
forgets a task by deleting its rows together with its wrapped data key.

Payloads of middle size are deflated before they are sealed. A long talk is made of messages of a few kilobytes: as they
are, they fill pages of 4 KiB badly and hold much that repeats. Below PACK_MIN there is little to win; above PACK_MAX
deflating takes longer than the sync that is waited for. A payload is a JSON object and begins with `{`; a deflated one
never does, so each says what it is. The length of a sealed payload depends on what it says, a little more than it does
anyway: a seal keeps out no one who can choose a part of a payload and watch the file.
"""

from __future__ import annotations

import hmac
import os
import zlib

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from holdfast.core.ids import fingerprint_key
from holdfast.core.ports import KeyRing
from holdfast.core.reading_ring import ReadingRing
from holdfast.errors import JournalDamaged
from holdfast.journal.total import RunningTotal

NONCE_BYTES = 12
KEY_BYTES = 32
PACK_MIN = 1_024
PACK_MAX = 16 * 1024
WORTH = 0.9  # of its size, at most
WRAP, PAYLOAD = b"holdfast/wrap/1", b"holdfast/journal-payload/1"  # what is derived from a journal key
_LEVEL = 1  # nine tenths of the saving for half of the time


class DataKeySealer:
    """Seals with one data key."""

    __slots__ = ("_aead",)

    def __init__(self, key: bytes) -> None:
        self._aead = AESGCM(key)

    def seal(self, plain: bytes, place: bytes, nonce: bytes = b"") -> bytes:
        """`nonce`: a fresh one of several that were drawn together, where many payloads are sealed at once."""
        nonce = nonce or os.urandom(NONCE_BYTES)
        return nonce + self._aead.encrypt(nonce, plain, place)

    def open(self, sealed: bytes, place: bytes) -> bytes:
        try:
            return self._aead.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], place)
        except (InvalidTag, ValueError, TypeError) as error:
            raise JournalDamaged(
                f"Holdfast cannot open the sealed payload at {_shown(place)}: "
                "it was changed, moved, or sealed with another key"
            ) from error


class Nonces:
    """Fresh nonces, several drawn by one call of the system. Keep none for later: a copy of this process, made by a
    fork, would use the same ones."""

    __slots__ = ("_at", "_drawn", "_size")

    def __init__(self, count: int) -> None:
        self._size = NONCE_BYTES * count  # drawn at once
        self._drawn = b""
        self._at = 0

    def next(self) -> bytes:
        at = self._at
        if at == len(self._drawn):
            self._drawn, at = os.urandom(self._size), 0
        self._at = at + NONCE_BYTES
        return self._drawn[at : self._at]


def _shown(place: bytes) -> str:
    """The place for a person: its parts in words, raw ids and numbers in hexadecimal digits."""
    parts = (part.decode("latin-1") for part in place.split(b"\0"))
    shown = (text if text.isascii() and text.isprintable() else text.encode("latin-1").hex() for text in parts)
    return " ".join(text for text in shown if text)


class KeyWraps:
    """Makes and opens data keys with the journal keys of a ring; derived keys are kept at hand."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys
        self._derived: dict[tuple[int, bytes], DataKeySealer] = {}

    @property
    def current(self) -> int:
        return self._keys.current_journal_key

    def new_data_key(self, task_id: bytes) -> tuple[int, bytes, DataKeySealer]:
        """A fresh data key: the wrapping key's id, the wrapped bytes, a sealer that uses it."""
        key, key_id = AESGCM.generate_key(KEY_BYTES * 8), self.current
        return key_id, self._wrap(key_id).seal(key, _wrap_place(task_id)), DataKeySealer(key)

    def open_data_key(self, key_id: int, wrapped: bytes, task_id: bytes) -> DataKeySealer:
        return DataKeySealer(self._wrap(key_id).open(wrapped, _wrap_place(task_id)))

    def payload(self, key_id: int) -> DataKeySealer:
        """Seals what belongs to no single task: blobs and notices."""
        return self._sealer(key_id, PAYLOAD)

    def running_total(self, journal_id: str) -> RunningTotal:
        """Of a copy that is only read the total cannot be checked: it is another one, and nothing compares it."""
        return RunningTotal(b"" if self.reads_only else self._keys.k_effect, journal_id)

    @property
    def reads_only(self) -> bool:
        """Whether these keys are a rescue key's: then nothing is written, and the running total says nothing."""
        return isinstance(self._keys, ReadingRing)

    def _wrap(self, key_id: int) -> DataKeySealer:
        return self._sealer(key_id, WRAP)

    def _sealer(self, key_id: int, info: bytes) -> DataKeySealer:
        sealer = self._derived.get((key_id, info))
        if sealer is None:
            keys = self._keys
            reads = isinstance(keys, ReadingRing)
            key = keys.sealing_key(key_id, info) if reads else derived(keys.journal_key(key_id), info)
            sealer = self._derived[key_id, info] = DataKeySealer(key)
        return sealer


def derived(journal_key: bytes, info: bytes) -> bytes:
    """The key that seals for one use: WRAP or PAYLOAD."""
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(journal_key)


def key_check(keys: KeyRing) -> bytes:
    """Tells this journal's ring from another without revealing anything of it."""
    if isinstance(keys, ReadingRing):
        return keys.key_check
    return key_check_of(keys.k_effect)


def key_check_of(k_effect: bytes) -> bytes:
    return hmac.digest(k_effect, b"holdfast/key-check/1", "sha256")[:8]


def blob_key(keys: KeyRing) -> bytes:
    """What digests of blobs are keyed with."""
    return keys.digest_key if isinstance(keys, ReadingRing) else fingerprint_key(keys.k_effect)


def _wrap_place(task_id: bytes) -> bytes:
    return b"task\0" + task_id


def packed(raw: bytes) -> bytes:
    """The payload as it is sealed."""
    if PACK_MIN <= len(raw) <= PACK_MAX:
        small = zlib.compress(raw, _LEVEL)
        if len(small) < len(raw) * WORTH:
            return small
    return raw


def unpacked(raw: bytes) -> bytes:
    """The payload as it was given to `packed`. Raises ValueError."""
    if raw[:1] == b"{":
        return raw
    try:
        opener = zlib.decompressobj()
        plain = opener.decompress(raw, PACK_MAX)
    except zlib.error as error:
        raise ValueError(f"a payload cannot be unpacked: {error}") from None
    if not opener.eof or opener.unused_data:
        raise ValueError("a payload is cut off, or has bytes after its end")
    return plain
