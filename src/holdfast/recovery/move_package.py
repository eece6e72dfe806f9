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
from holdfast.errors import ArchiveRefused, BadRecord, MoveRefused, VaultDamaged, VaultLocked
from holdfast.host.private_files import explained, open_private, sync
from holdfast.identity.records.secret_bytes import KeyPair, SecretBytes
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.statements import Head, parse_head
from holdfast.identity.vault.age import AgeIdentity, check_recipients, parse

INTRO = b"holdfast move 1\n"
LINE_BYTES_MAX = 256 * 1024
HEADER_BYTES = 64 * 1024
PART = ".part"
PIECE_BYTES = 1 << 20


class Cover(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What comes before the tar."""

    head: str
    seed: str
    yielded: str = msgspec.field(name="yield", default="")


def archive_of(name: str, key: str) -> str:
    return f"{name}-move-{key}"


def part_of(package: Path) -> Path:
    """Where it is written, before the old copy has stopped for good."""
    return package.with_name(f".{package.name}{PART}")


def write_package(staging: Path, cover: Cover, target: Path, recipients: Sequence[str]) -> str:
    """The sealed package at `target`, new and durable; its SHA-256.

    What is not sealed yet lies in the private staging folder, not where the package goes.
    """
    age = _pyrage()
    plain = staging / "plain"
    try:
        with _new(plain) as out:
            out.write(INTRO + msgspec.json.encode(cover) + b"\n")
            _write_tar(staging, out)
            out.flush()
        with open(plain, "rb") as source, _new(target) as out:
            age.encrypt_io(source, out, [age.x25519.Recipient.from_str(one) for one in recipients])
            out.flush()
            sync(out.fileno())
    except OSError as error:
        raise explained(error, target) from error
    finally:
        plain.unlink(missing_ok=True)
    return digest_of_file(target)


def open_package(package: Path, identity: AgeIdentity, work: Path) -> tuple[Cover, BinaryIO]:
    """The cover, and the tar after it; unsealed into the private folder `work`.

    Raises MoveRefused for what is no package, VaultLocked for one that is for another vault.
    """
    try:
        with open(package, "rb") as source:
            _check_sealed(source.read(HEADER_BYTES), package)
            source.seek(0)
            plain = _new(work / "plain")
            _unseal(source, plain, identity, package)
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
        return msgspec.json.decode(line, type=Cover)
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
    sha256 = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(PIECE_BYTES):
            sha256.update(piece)
    return sha256.hexdigest()


def _check_sealed(raw: bytes, package: Path) -> None:
    try:
        if not check_recipients(parse(raw)):
            raise MoveRefused(f"{package} is not sealed for an X25519 key")
    except VaultDamaged as error:
        raise MoveRefused(f"{package} is not a package: {error.message}") from None


def _unseal(source: BinaryIO, plain: BinaryIO, identity: AgeIdentity, package: Path) -> None:
    age = _pyrage()
    try:
        age.decrypt_io(source, plain, [age.x25519.Identity.from_str(identity.reveal())])
    except age.DecryptError as error:
        if "No matching keys" in str(error):
            raise VaultLocked(f"this vault does not open {package}: it was sealed for another vault") from None
        raise _changed(package) from None
    except OSError as error:
        if error.errno is not None:
            raise
        raise _changed(package) from None  # the library's own, where a part does not open
    plain.flush()


def _changed(package: Path) -> ArchiveRefused:
    return ArchiveRefused(f"{package} was changed or is cut short")


def _write_tar(staging: Path, out: BinaryIO) -> None:
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.GNU_FORMAT) as tar:
        for name in (HEAD_NAME, MANIFEST):
            _add(tar, staging / name, name)
        _add_folder(tar, staging / STATE, STATE)


def _add_folder(tar: tarfile.TarFile, folder: Path, name: str) -> None:
    _add(tar, folder, name)
    for entry in sorted(os.scandir(folder), key=lambda one: one.name):
        path, inner = folder / entry.name, f"{name}/{entry.name}"
        if entry.is_symlink():
            continue  # in the manifest: made again where it stays inside
        if entry.is_dir():
            _add_folder(tar, path, inner)
        else:
            _add(tar, path, inner)


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    found = os.lstat(path)
    member = tarfile.TarInfo(name)
    member.mode = found.st_mode & 0o777
    if path.is_dir():
        member.type = tarfile.DIRTYPE
        tar.addfile(member)
        return
    member.size = found.st_size
    with open(path, "rb") as file:
        tar.addfile(member, file)


def _new(path: Path) -> BinaryIO:
    path.unlink(missing_ok=True)
    fd = open_private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    return io.BufferedRandom(io.FileIO(fd, "r+"))


def _pyrage() -> Any:  # Any: the package has no types
    return import_module("pyrage")
