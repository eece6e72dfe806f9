"""The package of a move: one file, sealed, that holds an agent's folder and the key of its heir.

    age file, for the agent's vault and for its paper
      holdfast move 1\\n
      {"head": ..., "seed": ..., "yield": ...}\\n
      tar: HEAD, MANIFEST.json, state/...     as in every snapshot (backup/archive/reader.py)

The head is signed by the operational key. Its archive's name says that the snapshot is a move, and
to which instance key: `NAME-move-KEY`. Such a head is signed only for a folder that has stopped:
its journal ends where the head says, and no one writes to it any more. age hides the contents and
says nothing of who wrote them; what counts is the head.

The tar is written in the one form that our reader takes: old GNU headers, plain files and folders,
long names. It is written to a file beside the target and gets its name from the caller who moves it there.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tarfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from holdfast.backup.archive.manifest import NAME as MANIFEST
from holdfast.backup.archive.reader import HEAD_NAME, STATE
from holdfast.core.decoding import decode_json
from holdfast.errors import (
    ArchiveRefused,
    BadInput,
    BadRecord,
    HoldfastError,
    JournalFull,
    MoveRefused,
    VaultDamaged,
    VaultLocked,
)
from holdfast.host.private_files import check_place, explained, open_private, sync
from holdfast.identity.records.secret_bytes import KeyPair, SecretBytes
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.statements import Head, parse_head
from holdfast.identity.vault.age import AgeIdentity, check_recipients, parse

INTRO = b"holdfast move 1\n"
LINE_BYTES_MAX = 256 * 1024
HEADER_BYTES = 64 * 1024
PART = ".part"
COPY_AGAIN = "nothing was changed; copy the file again from the host that made it, which showed its `sha256`"


class Cover(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What comes before the tar."""

    head: str
    seed: str
    yielded: str = msgspec.field(name="yield", default="")


def archive_of(name: str, key: str) -> str:
    return f"{name}-move-{key}"


def is_invitation(archive: str, key: str) -> bool:
    return archive.endswith(f"-invite-{key}")


def check_new_package(package: Path, home: Path) -> None:
    """Whether a package of the agent in `home` can be written there. Raises BadInput, and what `check_place` raises."""
    check_place(package)
    if home == package or home in package.parents:
        raise BadInput(f"{package} is in the agent's folder", hint="choose another path")
    if not package.parent.is_dir():
        raise BadInput(f"there is no folder {package.parent}", hint="make the folder first, or check the path")


def part_of(package: Path) -> Path:
    """Where it is written, before the old copy has stopped for good."""
    return package.with_name(f".{package.name}{PART}")


def write_package(staging: Path, cover: Cover, target: Path, recipients: Sequence[str]) -> str:
    """The sealed package at `target`, new and durable; its SHA-256.
    What is not sealed yet lies in the private staging folder, not where the package goes."""
    age = _pyrage()
    plain = writing = staging / "plain"
    try:
        with _new(plain) as out:
            out.write(INTRO + msgspec.json.encode(cover) + b"\n")
            _write_tar(staging, out)
            out.flush()
        writing = target
        with open(plain, "rb") as source, _new(target) as out:
            age.encrypt_io(source, out, [age.x25519.Recipient.from_str(one) for one in recipients])
            out.flush()
            sync(out.fileno())
    except OSError as error:
        raise _unwritten(error, writing) from error
    finally:
        plain.unlink(missing_ok=True)
    return digest_of_file(target)


def open_package(package: Path, identity: AgeIdentity, work: Path) -> tuple[Cover, BinaryIO]:
    """The cover, and the tar after it; unsealed into the private folder `work`.
    Raises MoveRefused for what is no package, VaultLocked for one that is for another vault."""
    try:
        with open(package, "rb") as source:
            if not check_recipients(parse(source.read(HEADER_BYTES))):
                raise MoveRefused(f"{package} is not sealed for an X25519 key")
            source.seek(0)
            plain = _new(work / "plain")
            with contextlib.ExitStack() as unless_opened:
                unless_opened.callback(plain.close)
                _unseal(source, plain, identity, package)
                unless_opened.pop_all()
    except VaultDamaged as error:
        raise MoveRefused(f"{package} is not a package: {error.message}", hint=COPY_AGAIN) from None
    except OSError as error:
        raise explained(error, package) from error
    plain.seek(0)
    return read_cover(plain, where=package), plain


def read_cover(plain: BinaryIO, *, where: Path) -> Cover:
    """What comes before the tar. Raises MoveRefused."""
    if plain.readline(len(INTRO) + 1) != INTRO:
        raise MoveRefused(f"{where} is not a package of this version")
    line = plain.readline(LINE_BYTES_MAX)
    try:
        return decode_json(line, Cover)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise MoveRefused(f"Holdfast cannot read the second line (the cover) of {where}: {error}") from None


def head_of(cover: Cover) -> Signed[Head]:
    try:
        return parse_head(cover.head.encode())
    except BadRecord as error:
        raise MoveRefused(f"the package has no valid head: {error.message}") from None


def key_of(cover: Cover) -> KeyPair:
    try:
        return KeyPair(SecretBytes(bytes.fromhex(cover.seed)))
    except Exception:  # noqa: BLE001 - its text could show the seed
        raise MoveRefused("the package has no valid key for the new instance") from None


def digest_of_file(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unseal(source: BinaryIO, plain: BinaryIO, identity: AgeIdentity, package: Path) -> None:
    age = _pyrage()
    try:
        age.decrypt_io(source, plain, [age.x25519.Identity.from_str(identity.reveal())])
    except (age.DecryptError, OSError) as error:
        if "No matching keys" in str(error):
            raise VaultLocked(f"this vault does not open {package}: it was sealed for another vault") from None
        if getattr(error, "errno", None) is not None:
            raise
        # The library's own OSError, where a part does not open, has no number.
        raise ArchiveRefused(f"{package} was changed or is cut short", hint=COPY_AGAIN) from None
    plain.flush()


def _unwritten(error: OSError, path: Path) -> HoldfastError | OSError:
    found = explained(error, path)
    if not isinstance(found, JournalFull):
        return found
    again = "then run the same command again: it goes on with what it has begun"
    return JournalFull(found.message, hint=f"free some space on the disk of {path.parent}, {again}")


def _write_tar(staging: Path, out: BinaryIO) -> None:
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.GNU_FORMAT) as tar:
        for name in (HEAD_NAME, MANIFEST, STATE):
            tar.add(staging / name, name, filter=_member)  # a folder with all that is in it, by name


def _member(found: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """A file or folder as our reader takes it: no owner, no time. Links are made from the manifest."""
    if not (found.isreg() or found.isdir()):
        return None
    member = tarfile.TarInfo(found.name)
    member.type, member.mode, member.size = found.type, found.mode & 0o777, found.size
    return member


def _new(path: Path) -> BinaryIO:
    path.unlink(missing_ok=True)
    fd = open_private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    return io.BufferedRandom(io.FileIO(fd, "r+"))


def _pyrage() -> Any:  # Any: the package has no types
    return import_module("pyrage")
