"""Secret files of an adopted agent, sealed into each snapshot.

A file that is a secret in the clear is in no backup. With `seal_secrets` its bytes go into one age file,
`sealed-secrets.age` in Holdfast's folder of the snapshot: path, mode, time and content of each. It exists in
snapshots alone; a recovery puts the files back and removes it.

It is sealed for an identity that is derived from the vault's root, as the passphrases of repositories are: so
the words of the recovery sheet open it by way of escrow.age, also after the words were replaced. Who has only
a snapshot that was unpacked, or the passphrase of one repository, cannot.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from holdfast.backup.archive.contained_writer import ContainedWriter
from holdfast.backup.archive.manifest import MODE_MAX, mtime_us_of
from holdfast.core.decoding import msgpack_decoder
from holdfast.errors import BackupDamaged, HoldfastError
from holdfast.host.manifest import PATH_BYTES_MAX, find_bad_name
from holdfast.host.private_files import read_plain, remove_durably, write_all
from holdfast.identity.vault.age import AgeIdentity, open_sealed, seal
from holdfast.layout.agent_home import home_in
from holdfast.layout.covered import FolderEntry
from holdfast.layout.covering import SEALED

FORMAT = 1
FILE_BYTES_MAX = 1 << 20  # of one secret file
ALL_BYTES_MAX = 16 << 20


class SecretOfAgent(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    mode: int
    mtime_us: int
    content: bytes


class _Sealed(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    files: tuple[SecretOfAgent, ...]


OpenAbove = Callable[[str], AbstractContextManager[tuple[int, str]]]
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def read_secrets(entries: Sequence[FolderEntry], open_above: OpenAbove) -> list[SecretOfAgent]:
    """The files that are left out as secrets of the agent's own, as far as there is room and they can be read.
    `open_above` gives the descriptor of the folder of a path, and the last name."""
    found: list[SecretOfAgent] = []
    room = ALL_BYTES_MAX
    for one in entries:
        if one.left_out is None or not one.left_out.sealable or one.size > min(room, FILE_BYTES_MAX):
            continue
        try:
            with open_above(one.path) as (above, name):
                fd = os.open(name, _READ, dir_fd=above)
            with open(fd, "rb") as file:
                status, content = os.fstat(fd), file.read(FILE_BYTES_MAX + 1)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) and len(content) <= FILE_BYTES_MAX:
            mode, mtime_us = stat.S_IMODE(status.st_mode) & MODE_MAX, mtime_us_of(status.st_mtime_ns)
            found.append(SecretOfAgent(path=one.path, mode=mode, mtime_us=mtime_us, content=content))
            room -= len(content)
    return found


def seal_files(files: Sequence[SecretOfAgent], recipient: str) -> bytes:
    return seal(msgspec.msgpack.encode(_Sealed(format=FORMAT, files=tuple(files))), [recipient])


def open_files(raw: bytes, identity: AgeIdentity) -> tuple[SecretOfAgent, ...]:
    """Raises BackupDamaged, VaultDamaged, VaultLocked."""
    try:
        found = msgpack_decoder(_Sealed).decode(open_sealed(raw, identity))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BackupDamaged(f"{SEALED} is malformed: {error}") from None
    if found.format != FORMAT:
        raise BackupDamaged(f"{SEALED} has format {found.format}; this Holdfast reads only format {FORMAT}")
    for one in found.files:
        odd = any(find_bad_name(name) for name in one.path.split("/")) or len(one.path.encode()) > PATH_BYTES_MAX
        if odd or not 0 <= one.mode <= MODE_MAX:
            raise BackupDamaged(f"{SEALED} has an entry with a path or mode that no snapshot has")
    return found.files


def find_sealed(folder: Path, identity: AgeIdentity) -> tuple[SecretOfAgent, ...]:
    """The secrets in this restored folder of an agent; none where it has no sealed ones."""
    path = home_in(folder) / SEALED
    if not os.path.lexists(path):
        return ()
    try:
        return open_files(read_plain(path, 2 * ALL_BYTES_MAX), identity)
    except HoldfastError as error:
        raise BackupDamaged(f"Holdfast cannot open {SEALED} in the snapshot: {error.message}") from error


def put_back(folder: Path, identity: AgeIdentity) -> tuple[str, ...]:
    """Make the secret files in the restored folder, and remove the sealed one. Their paths.
    A file that is there is not touched. Raises BackupDamaged."""
    found = find_sealed(folder, identity)
    with ContainedWriter(folder) as contained:
        for one in found:
            _make(contained, folder, one)
    remove_durably(home_in(folder) / SEALED)
    return tuple(one.path for one in found)


def _make(contained: ContainedWriter, folder: Path, one: SecretOfAgent) -> None:
    if os.path.lexists(folder / one.path):
        return
    contained.take_folders(str(above) for above in Path(one.path).parents if (folder / above).is_dir())
    fd = contained.new_file(one.path)
    try:
        write_all(fd, one.content)
        os.fchmod(fd, one.mode)
        os.utime(fd, ns=(one.mtime_us * 1000, one.mtime_us * 1000))
    finally:
        os.close(fd)
