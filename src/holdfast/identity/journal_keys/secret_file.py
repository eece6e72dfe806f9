"""Secrets before there is a vault: `secrets.sealed` beside the journal's keys.

One file, 0600, ours, no link, sealed as a whole by a key that is derived from the key ring: the
file alone says nothing, not even how many secrets there are called what. It is replaced
atomically, so a reader sees the old set or the new one and a crash leaves one of them. Writers
take turns by a lock on keys.json: two rotations at once are both kept. That file is replaced once,
when its keys move into a vault; who waited for its lock then takes that of the new one.

A version's number only rises, also past a removal and over a name that comes back, so that a step
that recorded version 1 never finds another value under it. Removing or dropping forgets the value;
its number stays used.

What is not noticed: the file being put back from an older copy by someone who may write here.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from holdfast.core.clock import Clock, Entropy
from holdfast.core.decoding import decode_json
from holdfast.core.ports import KeyRing
from holdfast.core.secret_handles import NAME_CHARS_MAX, SCHEME, VALUE_CHARS_MIN, forms_of, handle, is_name
from holdfast.errors import BadSecret, SecretNotFound, SecretsDamaged
from holdfast.host.private_files import check_private_file, open_private, read_private, write_atomically

SECRETS = "secrets.sealed"
FORMAT = 1
MAGIC = b"holdfast-secrets-1\n"
KEY_ID_BYTES = 4
NONCE_BYTES = 12
VALUE_BYTES_MAX = 64 * 1024  # a private key or a certificate chain; not a file store
SECRETS_MAX = 1_000
VERSIONS_KEPT = 3  # the active one and two before it, unless they are dropped
FILE_BYTES_MAX = 256 * 1024 * 1024


class SecretVersion(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    value: str
    created_ms: int

    def __repr__(self) -> str:
        return f"Version({self.number}, ...)"


class StoredSecret(msgspec.Struct, frozen=True, kw_only=True):
    """One name: the versions that are kept, oldest first; the last one is active."""

    newest: int  # the highest number ever used
    versions: tuple[SecretVersion, ...] = ()


class _Contents(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int = FORMAT
    secrets: dict[str, StoredSecret]


_Mark = tuple[int, int, int, int] | None
_EMPTY = _Contents(secrets={})


class SecretFile:
    """core.ports.SecretStore in one sealed file, and the ways to change it."""

    def __init__(self, folder: Path, *, keys: KeyRing, clock: Clock, entropy: Entropy) -> None:
        self._path = folder / SECRETS
        self._lock_path = folder / "keys.json"
        self._keys = keys
        self._clock = clock
        self._entropy = entropy
        self._mark: _Mark = None
        self._contents = _EMPTY
        self.refresh()

    def __repr__(self) -> str:
        return "SecretFile(...)"

    # core.ports.SecretStore

    def refresh(self) -> bool:
        mark = self._look()
        if mark == self._mark:
            return False
        # Where it is replaced between the look and the reading, the next look sees that.
        self._contents, self._mark = self._read(), mark
        return True

    def find_current(self, name: str) -> int | None:
        found = self._contents.secrets.get(name)
        return found.versions[-1].number if found and found.versions else None

    def find_value(self, name: str, version: int) -> str | None:
        found = self._contents.secrets.get(name)
        kept = found.versions if found else ()
        return next((one.value for one in kept if one.number == version), None)

    def known(self) -> Iterable[tuple[str, str]]:
        for name, secret in self._contents.secrets.items():
            for version in secret.versions:
                yield name, version.value

    # for the command line

    def list_secrets(self) -> dict[str, StoredSecret]:
        """By name, those that are set."""
        kept = {name: one for name, one in self._contents.secrets.items() if one.versions}
        return dict(sorted(kept.items()))

    def get(self, name: str) -> StoredSecret:
        found = self._contents.secrets.get(name)
        if found is None or not found.versions:
            raise SecretNotFound(name)
        return found

    def set(self, name: str, value: str) -> int:
        """A new secret, or one that was removed; the version's number. Raises BadSecret."""
        with self._turn():
            before = self._contents.secrets.get(name)
            if before is not None and before.versions:
                raise BadSecret(
                    f"{handle(name)} is already set", hint=f"run `holdfast secret rotate {name}` to give it a new value"
                )
            return self._add(name, value, kept=())

    def rotate(self, name: str, value: str, *, drop_old: bool = False) -> int:
        """Make this the active version; older ones are kept for steps that recorded them."""
        with self._turn():
            found = self.get(name)
            if found.versions[-1].value == value:
                raise BadSecret(f"{handle(name)} already has that value", hint="nothing was changed")
            kept = () if drop_old else found.versions[-(VERSIONS_KEPT - 1) :]
            return self._add(name, value, kept=kept)

    def remove(self, name: str) -> None:
        with self._turn():
            found = self.get(name)
            secrets = {**self._contents.secrets, name: StoredSecret(newest=found.newest)}
            self._write(_Contents(secrets=secrets))

    def _add(self, name: str, value: str, *, kept: tuple[SecretVersion, ...]) -> int:
        check_name(name)
        check_value(name, value)
        secrets = self._contents.secrets
        if name not in secrets and len(secrets) >= SECRETS_MAX:
            raise BadSecret(
                f"secrets.sealed already has {SECRETS_MAX:,} names, which is the limit; removed names count too",
                hint="store the value under the name of a secret that you no longer need: "
                "`holdfast secret remove NAME`, then `holdfast secret set NAME`",
            )
        self._check_apart(name, value)
        before = secrets.get(name)
        number = 1 if before is None else before.newest + 1
        new = SecretVersion(number=number, value=value, created_ms=self._clock.wall_ms())
        secret = StoredSecret(newest=number, versions=(*kept, new))
        self._write(_Contents(secrets={**secrets, name: secret}))
        return number

    def _check_apart(self, name: str, value: str) -> None:
        """No value may be found in a handle: what is swapped would be swapped again."""
        handles = {handle(name), *(handle(one) for one in self._contents.secrets)}
        values = {value, *(one for _, one in self.known())}
        for one in values:
            if any(form in text for form in forms_of(one) for text in handles):
                raise BadSecret(
                    "the name of a secret contains the value of a secret",
                    hint="choose another name: Holdfast shows names, but never values",
                )

    # the file

    @contextmanager
    def _turn(self) -> Generator[None]:
        """One writer at a time, over what is there now."""
        with lock_keys(self._lock_path):
            self.refresh()
            yield

    def _look(self) -> _Mark:
        try:
            found = os.stat(self._path, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def _read(self) -> _Contents:
        try:
            check_private_file(self._path)
            raw = read_private(self._path, FILE_BYTES_MAX)
        except FileNotFoundError:
            return _EMPTY
        head = len(MAGIC) + KEY_ID_BYTES
        if not raw.startswith(MAGIC) or len(raw) < head + NONCE_BYTES:
            raise SecretsDamaged(f"{self._path} is not a secrets file of Holdfast")
        key_id = int.from_bytes(raw[len(MAGIC) : head], "big")
        try:
            plain = self._seal(key_id).decrypt(raw[head : head + NONCE_BYTES], raw[head + NONCE_BYTES :], raw[:head])
            contents = decode_json(plain, _Contents)
        except (InvalidTag, msgspec.DecodeError):
            raise SecretsDamaged(
                f"{self._path} cannot be decrypted: the file was changed, or it was sealed with other keys"
            ) from None
        if contents.format != FORMAT:
            raise SecretsDamaged(f"{self._path} has format {contents.format}; this Holdfast reads only format {FORMAT}")
        return contents

    def _write(self, contents: _Contents) -> None:
        key_id = self._keys.current_journal_key
        head = MAGIC + key_id.to_bytes(KEY_ID_BYTES, "big")
        nonce = self._entropy.bytes(NONCE_BYTES)
        sealed = self._seal(key_id).encrypt(nonce, msgspec.json.encode(contents), head)
        write_atomically(self._path, head + nonce + sealed)
        self._contents, self._mark = contents, self._look()

    def _seal(self, key_id: int) -> AESGCM:
        derive = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"holdfast/secrets/1")
        return AESGCM(derive.derive(self._keys.journal_key(key_id)))


@contextmanager
def lock_keys(path: Path) -> Generator[None]:
    """The lock of those who write beside keys.json, on that file as it is now."""
    while True:
        fd = open_private(path, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_ino == os.stat(path).st_ino:
                yield
                return
        finally:
            os.close(fd)


def check_name(name: str) -> None:
    if not is_name(name):
        raise BadSecret(
            f"{name!r} is not a valid name for a secret",
            hint=f"use at most {NAME_CHARS_MAX} lower-case letters, digits, _ and -; begin with a letter or digit",
        )


def check_value(name: str, value: str) -> None:
    """Refuse what could not be swapped back for certain. Never shows the value."""
    if len(value) < VALUE_CHARS_MIN:
        raise BadSecret(
            f"the value of {handle(name)} has {len(value)} characters; at least {VALUE_CHARS_MIN} are needed",
            hint="use a longer value: Holdfast hides it in all texts, and ordinary text can contain this by chance",
        )
    if len(set(value)) < 3:
        raise BadSecret(
            f"the value of {handle(name)} is one or two characters repeated",
            hint="use another value: Holdfast hides it in all texts, and ordinary text can contain this by chance",
        )
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise BadSecret(f"the value of {handle(name)} is not valid UTF-8 text") from None
    if size > VALUE_BYTES_MAX:
        raise BadSecret(f"the value of {handle(name)} has {size:,} bytes; the limit is {VALUE_BYTES_MAX:,}")
    if SCHEME in value or "\0" in value:
        raise BadSecret(f"the value of {handle(name)} contains {SCHEME!r} or a NUL character, which is not allowed")
