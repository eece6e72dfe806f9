"""A snapshot out of an archive, onto the disk, only if it is what the signed head says.

The archive is input from outside: an attacker who can write to a place can send us anything. So it is
read as a stream by a reader of our own (tar_stream.py), into a fresh private folder that nothing
else uses, and below it only (contained_writer.py):

    work/HEAD            the signed head, as in the archive
    work/MANIFEST.json   its digest must be the one in the head
    work/state/...       the agent's files

True when `read_snapshot` returns: `work/state` holds every entry of the manifest with its content,
mode and time of change, and nothing else; the manifest is the one that the head names. Times come
from the manifest, never from the archive's own headers, which nobody has signed; one that lies in
the future becomes now, so that nothing that is written later looks older. Until then nobody looks
at the folder but us; any error leaves it to be removed by the caller. A crash leaves a folder
whose name says that it is unfinished.

How much is written is bounded before it is read: by the number of members, by four times the
bytes that the signed head speaks of, by depth and by the length of names. The stream is not
compressed, so nothing in it can grow.
"""

from __future__ import annotations

import base64
import hashlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.backup.archive.contained_writer import ContainedWriter
from holdfast.backup.archive.manifest import (
    DEPTH_MAX,
    ENTRIES_MAX,
    NAME,
    EntryKind,
    ManifestEntry,
    ManifestReader,
    SnapshotAbout,
    SnapshotNote,
)
from holdfast.backup.archive.tar_stream import Member, Readable, TarStream
from holdfast.errors import ArchiveRefused, BackupDamaged, HoldfastError
from holdfast.host.private_files import FILE_MODE, FOLDER_MODE, write_all
from holdfast.identity.records.canonical import LINE_BYTES_MAX
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.statements import Head

HEAD_NAME = "HEAD"
STATE = "state"
BYTES_FACTOR = 4
MANIFEST_BYTES_MAX = 256 << 20
_BESIDE = frozenset((HEAD_NAME, NAME))


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What was read and found to be what its head says."""

    state: Path
    about: SnapshotAbout
    files: int
    bytes: int
    notes: tuple[SnapshotNote, ...]
    links: tuple[ManifestEntry, ...]  # recorded; those that stay inside were made

    @property
    def links_left(self) -> tuple[str, ...]:
        """Those that lead outside, and were not made."""
        return tuple(one.path for one in self.links if not leads_inside(one))


@dataclass(slots=True)
class _Came:
    """What the archive gave for a path, until the manifest asks for it."""

    mode: int
    size: int
    sha256: bytes  # empty for folders


OnBytes = Callable[[int, int], None]  # files and bytes so far


def read_snapshot(
    stream: Readable, head: Signed[Head], work: Path, *, durable: bool = False, on_bytes: OnBytes | None = None
) -> Snapshot:
    """Read the archive of this head into the empty folder `work`, and check it whole.
    The head must be known to be valid. `durable` syncs everything before returning. Raises ArchiveRefused: it holds
    what no snapshot holds, or something that the manifest does not; BackupDamaged: something is missing, cut off or
    changed."""
    with ContainedWriter(work) as contained:
        came = _extract(stream, head.record, contained, on_bytes)
        _check_head(contained, came, head)
        found = _compare(contained, came, head.record, work / STATE)
        if durable:
            contained.sync()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a manifest says."""

    about: SnapshotAbout
    entries: tuple[ManifestEntry, ...]
    notes: tuple[SnapshotNote, ...]


def read_manifest(stream: Readable, head: Signed[Head], work: Path) -> Contents:
    """This head's manifest, out of an archive stream of HEAD and manifest alone.
    Raises ArchiveRefused, BackupDamaged: nothing of it counts."""
    with ContainedWriter(work) as contained:
        came = _extract(stream, head.record, contained)
        _check_head(contained, came, head)
        if came:
            raise ArchiveRefused(
                f"the archive contains {min(came)!r}, but Holdfast requested only the head and the manifest"
            )
        with open(contained.read(NAME), "rb") as file:
            manifest = ManifestReader(file)
            entries = tuple(manifest.entries())
    if manifest.digest != head.record.manifest:
        raise BackupDamaged("the manifest does not match the head: the digests differ")
    _check_about(manifest, head.record)
    return Contents(about=manifest.about, entries=entries, notes=manifest.notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SomeFiles:
    """What came of some files: those that are as the manifest says, and why others are not."""

    whole: frozenset[str]
    bad: Mapping[str, str]
    error: HoldfastError | None  # how the stream ended; what did not come may be whole all the same


def read_files(
    stream: Readable, wanted: Mapping[str, ManifestEntry], work: Path, *, on_bytes: OnBytes | None = None
) -> SomeFiles:
    """These files out of a stream of them alone, into the empty folder `work`; each is judged by
    itself. `wanted`: entries of a manifest that is known to be right. Raises OSError."""
    whole: set[str] = set()
    bad: dict[str, str] = {}
    size = sum(entry.size for entry in wanted.values())
    tar = TarStream(stream, bytes_max=BYTES_FACTOR * size, entries_max=len(wanted), depth_max=DEPTH_MAX + 2)

    def on_piece(poured: int) -> None:
        if on_bytes is not None:
            on_bytes(len(whole), sum(wanted[path].size for path in whole) + poured)

    with ContainedWriter(work) as contained:
        try:
            for member in tar.members():
                path = member.path.removeprefix(f"{STATE}/")
                entry = wanted.get(path)
                if entry is None or member.is_folder or member.path == path:
                    raise ArchiveRefused(f"the archive contains {member.path!r}, which Holdfast did not request")
                came = _file(contained, member, tar, on_piece)
                try:
                    _compare_one(entry, came)
                except (ArchiveRefused, BackupDamaged) as error:
                    bad[path] = error.message
                    continue
                _finish(contained, entry, now_ns=time.time_ns())
                whole.add(path)
        except HoldfastError as error:
            return SomeFiles(whole=frozenset(whole), bad=bad, error=error)
    return SomeFiles(whole=frozenset(whole), bad=bad, error=None)


def _extract(
    stream: Readable, head: Head, contained: ContainedWriter, on_bytes: OnBytes | None = None
) -> dict[str, _Came]:
    tar = TarStream(
        stream,
        bytes_max=BYTES_FACTOR * head.bytes + MANIFEST_BYTES_MAX,
        entries_max=ENTRIES_MAX + len(_BESIDE) + 2,  # `.` and `state`
        depth_max=DEPTH_MAX + 2,
    )
    came: dict[str, _Came] = {}
    files = size = 0

    def on_piece(poured: int) -> None:
        if on_bytes is not None:
            on_bytes(files, size + poured)

    for member in tar.members():
        if not member.path:
            continue
        _check_place(member)
        if member.path in came:
            raise ArchiveRefused(f"{member.path!r} is in the archive twice")
        if member.is_folder:
            came[member.path] = _folder(contained, member)
        else:
            came[member.path] = _file(contained, member, tar, on_piece)
            files, size = files + 1, size + member.size
    return came


def _check_place(member: Member) -> None:
    path, is_folder = member.path, member.is_folder
    inside = path.partition("/")[0] == STATE and (path != STATE or is_folder)
    if not inside and (is_folder or path not in _BESIDE):
        raise ArchiveRefused(f"the archive contains {path!r}, which does not belong in a snapshot")


def _folder(contained: ContainedWriter, member: Member) -> _Came:
    try:
        contained.make_folder(member.path)
    except OSError as error:
        raise _collision(member, error) from None
    return _Came(member.mode, 0, b"")


def _file(contained: ContainedWriter, member: Member, tar: TarStream, on_piece: Callable[[int], None]) -> _Came:
    try:
        fd = contained.new_file(member.path)
    except OSError as error:
        raise _collision(member, error) from None
    sha256, poured = hashlib.sha256(), 0
    try:
        for piece in tar.content():
            sha256.update(piece)
            write_all(fd, piece)
            poured += len(piece)
            on_piece(poured)
    finally:
        os.close(fd)
    return _Came(member.mode, member.size, sha256.digest())


def _collision(member: Member, error: OSError) -> Exception:
    if isinstance(error, FileExistsError | NotADirectoryError):
        return ArchiveRefused(f"the archive has two members that use the path {member.path!r}")
    return error


def _check_head(contained: ContainedWriter, came: dict[str, _Came], head: Signed[Head]) -> None:
    for name in (HEAD_NAME, NAME):
        if name not in came:
            raise BackupDamaged(f"the archive has no {name}")
    came.pop(HEAD_NAME)
    with open(contained.read(HEAD_NAME), "rb") as file:
        raw = file.read(LINE_BYTES_MAX + 2)
    if raw != head.line() + b"\n":
        raise BackupDamaged("the head in the archive differs from the head that Holdfast expected")
    if came[NAME].sha256 != base64.b32decode(f"{head.record.manifest.upper()}===="):
        raise BackupDamaged("the manifest in the archive does not match the head: the digests differ")
    came.pop(NAME)


def _compare(contained: ContainedWriter, came: dict[str, _Came], head: Head, state: Path) -> Snapshot:
    """Every entry of the manifest against what came, in one pass over both."""
    came.pop(STATE, None)
    contained.make_folder(STATE)
    links: list[ManifestEntry] = []
    folders: list[ManifestEntry] = []
    now_ns = time.time_ns()
    with open(contained.read(NAME), "rb") as file:
        manifest = ManifestReader(file)
        for entry in manifest.entries():
            if entry.kind is EntryKind.LINK:
                links.append(entry)
                continue
            _compare_one(entry, came.pop(f"{STATE}/{entry.path}", None))
            if entry.kind is EntryKind.FOLDER:
                folders.append(entry)
            else:
                _finish(contained, entry, now_ns=now_ns)
        if manifest.digest != head.manifest:  # it changed on our own disk
            raise BackupDamaged("the manifest does not match the head: the digests differ")
    if came:
        raise ArchiveRefused(f"{min(came)!r} is in the archive but not in the manifest")
    _check_about(manifest, head)
    for link in links:
        if leads_inside(link):
            contained.make_link(f"{STATE}/{link.path}", link.target)
    for folder in reversed(folders):  # what is inside first: a folder may lose its write bit
        _finish(contained, folder, now_ns=now_ns)
    return Snapshot(
        state=state, about=manifest.about, files=head.files, bytes=head.bytes, notes=manifest.notes, links=tuple(links)
    )


def _finish(contained: ContainedWriter, entry: ManifestEntry, *, now_ns: int) -> None:
    """Time and mode of what has its whole content; the mode last: it may forbid the rest."""
    path = f"{STATE}/{entry.path}"
    mtime_ns = find_mtime_ns(entry, now_ns=now_ns)
    if mtime_ns is not None:
        contained.set_mtime(path, mtime_ns)
    if entry.mode != (FOLDER_MODE if entry.kind is EntryKind.FOLDER else FILE_MODE):
        contained.set_mode(path, entry.mode)


def find_mtime_ns(entry: ManifestEntry, *, now_ns: int) -> int | None:
    """The time of change that the restored entry gets; None where its snapshot does not say."""
    return None if entry.mtime_us < 0 else min(entry.mtime_us * 1000, now_ns)


def _compare_one(entry: ManifestEntry, came: _Came | None) -> None:
    if came is None:
        raise BackupDamaged(f"{entry.path!r} is missing from the archive")
    if (entry.kind is EntryKind.FOLDER) == bool(came.sha256):
        raise ArchiveRefused(f"{entry.path!r} is a folder in the archive but a file in the manifest, or the reverse")
    if came.mode != entry.mode:
        raise ArchiveRefused(f"{entry.path!r} has mode {came.mode:o} in the archive and {entry.mode:o} in the manifest")
    if entry.is_content and (came.size, came.sha256.hex()) != (entry.size, entry.sha256):
        raise BackupDamaged(f"{entry.path!r} does not match the manifest: its size or SHA-256 differs")


def _check_about(manifest: ManifestReader, head: Head) -> None:
    about, sums = manifest.about, manifest.sums
    mark = None if about.journal is None else about.journal.mark
    said = (head.id, head.e, head.seq, head.files, head.bytes, head.journal)
    if sums is None or (about.id, about.e, about.seq, sums.files, sums.bytes, mark) != said:
        raise BackupDamaged("the manifest and the head describe different snapshots")


def leads_inside(link: ManifestEntry) -> bool:
    """Whether the link, by its text alone, stays inside the agent's folder."""
    if link.target.startswith("/") or "\0" in link.target:
        return False
    depth = link.path.count("/")
    for name in link.target.split("/"):
        if name == "..":
            depth -= 1
        elif name not in ("", "."):
            depth += 1
        if depth < 0:
            return False
    return True
