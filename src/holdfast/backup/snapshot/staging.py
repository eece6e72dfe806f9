"""A snapshot of an agent's folder, frozen in a private staging folder.

    staging/HEAD            put there when the head is signed
    staging/MANIFEST.json   what lies below `state`, written as it is copied
    staging/state/...       the agent's files

Every place is fed from this one folder, so all of them hold the same bytes, and what was hashed is
what is sent: everything here is a copy that nobody else has open. (Hard links would be quicker and
are not used: a program that writes into its file would write into ours, after it was hashed.)

The barrier is the journal. Its copy is made first, by SQLite's own backup in one step, so it is
the state after some commit, never between two; the number of its last record stands in the
manifest. Files are copied afterwards, and so may be newer than the journal, never older: what the
journal says about them can be projected again. Databases of others are copied the same way; a raw
copy of a live database loses its newest rows and looks healthy.

A file is copied through one descriptor, and its size, times and inode are compared before and
after; one that changed is copied again, a few times. So is one that was changed in this very
instant, whose times could hide another change: that it is at rest is then seen by two copies that
are equal. Nothing is decided by whether a time lies in the past: a program may set it, and a clock
may be set back. A file that never rests is kept as it was read last, and the manifest says so.

Copies keep the times of change, so that an archive that is unpacked by hand has them too. A crash
leaves a staging folder, which means nothing and is removed before the next one is made. One that was
finished is kept (kept.py): of a file that has not changed since, the copy is used again.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from bisect import insort
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import structs

from holdfast.backup.archive.contained_writer import ContainedWriter, open_by_walk
from holdfast.backup.archive.manifest import (
    DEPTH_MAX,
    ENTRIES_MAX,
    MODE_MAX,
    NAME,
    EntryKind,
    MadeBy,
    ManifestEntry,
    ManifestWriter,
    SnapshotAbout,
    SnapshotJournal,
    SnapshotNote,
    mtime_us_of,
)
from holdfast.backup.archive.reader import STATE
from holdfast.backup.snapshot.databases import copy_database, copy_journal, read_mark, sequence_of
from holdfast.backup.snapshot.kept import KeptFile, KeptStaging, keep, mark_of, take_kept, trim
from holdfast.backup.snapshot.sealed import read_secrets, seal_files
from holdfast.core.journal_address import JournalAddress
from holdfast.errors import SnapshotFailed
from holdfast.host.manifest import PATH_BYTES_MAX
from holdfast.host.private_files import FILE_MODE, FOLDER_MODE, disk_error, open_private, write_all
from holdfast.host.tree import GRAIN_NS, FileMark, may_hide_a_change, open_folder, seen
from holdfast.identity.records.encodings import Digest
from holdfast.identity.records.signed import Signed
from holdfast.identity.speaker.speaker import Speaker
from holdfast.identity.statements.statements import Head
from holdfast.journal.bind import journal_at
from holdfast.layout.covered import CoveringRules, FolderEntry, look
from holdfast.layout.covering import SEALED, SEALED_NOTE, CoveredKind

TRIES = 5  # to copy a file that changes
TELL_EVERY = 256  # unchanged files
PIECE_BYTES = 1 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

OnFile = Callable[[int, int], None]  # files and bytes so far; what it raises ends the staging


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Whose folder it is, and what the snapshot will be called."""

    folder: Path
    journal: JournalAddress | None  # of the folder; None where it has none
    id: str
    name: str
    incarnation: int | None  # None: that of the journal
    seq: int
    at: int
    holdfast: str
    engine: str = ""
    rules: CoveringRules = field(default_factory=CoveringRules)
    seal_for: str = ""  # the recipient for whom secret files are sealed; empty: they are left out


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    folder: Path
    manifest: Digest
    about: SnapshotAbout
    files: int
    bytes: int
    notes: tuple[SnapshotNote, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Try:
    """One copy of a file."""

    entry: ManifestEntry
    mark: FileMark
    whole: bool  # its mark was the same before and after
    at_rest: bool  # and that mark cannot hide a change

    def same_as(self, before: _Try) -> bool:
        """Whether two copies, a moment apart, are of one state."""
        return (self.whole, self.mark, self.entry) == (True, before.mark, before.entry)


def stage(subject: Subject, staging: Path, *, on_file: OnFile | None = None, boot: str = "") -> Staged:
    """Copy what is covered into the empty private folder `staging`, and write its manifest.
    With `boot`, the id of this start of the machine, the folder is kept: it may hold what the last run left.
    Raises SnapshotFailed where a database cannot be copied whole; DiskFull, DiskFailed, ReadOnly."""
    try:
        kept = take_kept(staging, subject.folder, boot=boot) if boot else KeptStaging()
        os.chmod(staging, FOLDER_MODE)  # without a set-group bit that it has from above
        root = open_folder(str(subject.folder))
        try:
            with ContainedWriter(staging) as contained:
                if os.path.lexists(staging / STATE):  # of the last run
                    contained.take_folders([STATE, *(f"{STATE}/{path}" for path in kept.folders)])
                contained.make_folder(STATE)
                run = _Stage(subject, staging, contained, on_file, root, kept)
                done = run.run()
                if boot:
                    keep(run.left, staging, subject.folder, boot=boot)
                return done
        finally:
            os.close(root)
    except OSError as error:
        raise disk_error(error, staging) from error


def seal_staged(speaker: Speaker, staged: Staged, *, archive: str, newest: Signed[Head] | None) -> Signed[Head]:
    """The head of what was staged: it follows the newest one that is known."""
    about, mark = staged.about, staged.about.journal
    return speaker.seal_head(
        incarnation=about.e,
        seq=about.seq,
        manifest=staged.manifest,
        archive=archive,
        size_bytes=staged.bytes,
        files=staged.files,
        journal=None if mark is None else mark.mark,
        prev=None if newest is None else newest.digest,
    )


@dataclass(slots=True)
class _Stage:
    _subject: Subject
    _staging: Path
    _contained: ContainedWriter
    _on_file: OnFile | None
    _root: int  # the subject's folder
    _kept: KeptStaging  # by the last run
    left: KeptStaging = field(default_factory=KeptStaging)  # for the next one
    _files: int = 0
    _bytes: int = 0
    _tables_left: tuple[str, ...] = ()
    _sealed: set[str] = field(default_factory=set[str])
    _folders: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])  # with their times of before

    def run(self) -> Staged:
        subject = self._subject
        mark, entry = self._barrier()
        incarnation = subject.incarnation
        if incarnation is None:
            incarnation = 1 if mark is None else mark.incarnation
        about = SnapshotAbout(
            at=subject.at,
            e=incarnation,
            id=subject.id,
            journal=mark,
            name=subject.name,
            made=MadeBy(engine=subject.engine, holdfast=subject.holdfast),
            seq=subject.seq,
            mode=stat.S_IMODE(os.fstat(self._root).st_mode) & MODE_MAX,
        )
        fd = open_private(self._staging / NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with open(fd, "wb") as file:
            writer = ManifestWriter(file, about)
            self._walk(writer, entry)
            digest = writer.close()
        files, size, notes = writer.files, writer.bytes, writer.notes
        return Staged(folder=self._staging, manifest=digest, about=about, files=files, bytes=size, notes=notes)

    def _barrier(self) -> tuple[SnapshotJournal | None, ManifestEntry | None]:
        """The journal's copy, before anything else, and how far it had come."""
        journal = self._subject.journal
        if journal is None or not journal_at(journal).exists():
            return None, None
        path = journal.path.relative_to(self._subject.folder).as_posix()
        at_least = sequence_of(journal)
        entry = self._database(path, journal)
        mark = read_mark(self._staging / STATE / path)
        if mark.sequence < at_least:
            raise SnapshotFailed(
                f"the copy of {journal} ends at record {mark.sequence}, but must include record {at_least}"
            )
        return mark, entry

    def _walk(self, writer: ManifestWriter, journal: ManifestEntry | None) -> None:
        above: list[str] = []  # folders that are left out for their depth
        wanted = journal is not None
        entries = list(look(self._subject.folder, self._subject.rules, is_known=self._kept.has))
        kinds = (CoveredKind.FILE, CoveredKind.FOLDER)
        files, folders = ({one.path for one in entries if one.kind is kind} for kind in kinds)
        gone = trim(self._kept, self._staging / STATE, files=files, folders=folders)
        self._contained.forget_folders(f"{STATE}/{path}" for path in gone)
        sealed = self._seal(entries, writer) if self._subject.seal_for else None
        if sealed is not None:
            insort(entries, FolderEntry(sealed.path, CoveredKind.FILE), key=lambda one: one.path.split("/"))
        made = {one.path: one for one in (journal, sealed) if one is not None}
        if journal is not None:
            for table in self._tables_left:
                writer.note(journal.path, f"left out: the table {table} of a Transactional tool; dump it yourself")
        if journal is not None and journal.path not in files and self._subject.journal and self._subject.journal.url:
            insort(entries, FolderEntry(journal.path, CoveredKind.FILE), key=lambda one: one.path.split("/"))
        for one in entries:
            if one.path in self._sealed and one.kind is None:
                continue
            if one.kind is None:
                writer.note(one.path, "left out" if one.left_out is None else f"left out: {one.left_out.text}")
                continue
            if above and one.path.startswith(tuple(above)):
                continue
            if why := _find_unkeepable(one.path):
                writer.note(one.path, f"left out: {why}")
                above.append(f"{one.path}/")
                continue
            if one.remark:
                writer.note(one.path, one.remark)
            entry = made.get(one.path) or self._unchanged(one, writer) or self._copy(one.path, one.kind, writer)
            if entry is None:
                self._forget(one.path)
                continue  # gone since
            if writer.entries >= ENTRIES_MAX:
                raise SnapshotFailed(
                    f"{self._subject.folder} has more than {ENTRIES_MAX:,} files and folders, which is the limit",
                    hint="move files that are not the agent's to another folder",
                )
            writer.add(entry)
            wanted = wanted and entry is not journal
            self._files, self._bytes = writer.files, writer.bytes
            if not one.known or writer.entries % TELL_EVERY == 0:
                self._tell(0)
        if wanted:
            raise SnapshotFailed(f"the journal in {self._subject.folder} was removed while Holdfast made the snapshot")
        for path, mtime_us in reversed(self._folders):
            self._contained.set_mtime(f"{STATE}/{path}", mtime_us * 1000)

    def _seal(self, entries: Sequence[FolderEntry], writer: ManifestWriter) -> ManifestEntry | None:
        """The secret files of the agent in one sealed file; None where there are none."""
        files = read_secrets(entries, self._opened_above)
        if not files:
            return None
        for one in files:
            self._sealed.add(one.path)
            writer.note(one.path, SEALED_NOTE)
        path = f"{self._subject.rules.own}/{SEALED}".lstrip("/")
        raw, mtime_us = seal_files(files, self._subject.seal_for), self._subject.at * 1_000_000
        out = self._contained.new_file(f"{STATE}/{path}")
        try:
            write_all(out, raw)
            os.utime(out, ns=(mtime_us * 1000, mtime_us * 1000))
        finally:
            os.close(out)
        self.left.others.append(path)
        digest = hashlib.sha256(raw).hexdigest()
        return ManifestEntry(
            kind=EntryKind.FILE, mode=FILE_MODE, mtime_us=mtime_us, path=path, sha256=digest, size=len(raw)
        )

    def _forget(self, path: str) -> None:
        """What a try left before the file was gone: no manifest would name it."""
        with suppress(FileNotFoundError, NotADirectoryError):
            if not stat.S_ISDIR(os.lstat(self._staging / STATE / path).st_mode):
                os.unlink(self._staging / STATE / path)

    def _tell(self, poured: int) -> None:
        if self._on_file is not None:
            self._on_file(self._files, self._bytes + poured)

    def _copy(self, path: str, kind: CoveredKind, writer: ManifestWriter) -> ManifestEntry | None:
        try:
            match kind:
                case CoveredKind.FOLDER:
                    status = self._stat(path)
                    self._contained.make_folder(f"{STATE}/{path}")
                    mode = self._usable(path, stat.S_IMODE(status.st_mode) & MODE_MAX, writer)
                    self._contained.set_mode(f"{STATE}/{path}", mode)
                    self.left.folders.append(path)
                    self._folders.append((path, mtime_us_of(status.st_mtime_ns)))
                    return ManifestEntry(
                        kind=EntryKind.FOLDER, mode=mode, mtime_us=mtime_us_of(status.st_mtime_ns), path=path
                    )
                case CoveredKind.LINK:
                    with self._opened_above(path) as (above, name):
                        return ManifestEntry(kind=EntryKind.LINK, path=path, target=os.readlink(name, dir_fd=above))
                case CoveredKind.DATABASE:
                    return self._database(path)
                case CoveredKind.FILE:
                    return self._file(path, writer)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.EACCES, errno.ELOOP, errno.ENOTDIR):
                writer.note(path, f"left out: cannot be read: {error.strerror}")
                return None
            raise

    def _usable(self, path: str, mode: int, writer: ManifestWriter) -> int:
        """A folder of ours that its owner cannot enter could not be filled again."""
        if mode & 0o700 == 0o700:
            return mode
        writer.note(path, f"its mode was {mode:o}; its owner gets all rights")
        return mode | 0o700

    def _file(self, path: str, writer: ManifestWriter) -> ManifestEntry | None:
        if self._kept.files.pop(path, None) is not None:
            with suppress(FileNotFoundError):
                os.unlink(self._staging / STATE / path)
        with self._opened_above(path) as (above, name):
            tried = self._tried(above, name, path, fresh=True)
            for attempt in range(1, TRIES):
                if tried is None or tried.at_rest:
                    break
                time.sleep(GRAIN_NS / 1e9 * attempt)
                before, tried = tried, self._tried(above, name, path, fresh=False)
                if tried is not None and tried.same_as(before):
                    break
            else:
                if tried is not None and not tried.at_rest:
                    writer.note(path, f"changed each of {TRIES} times it was copied; kept as last read")
        if tried is None:
            writer.note(path, "left out: no file any more")
            return None
        self._leave(path, tried)
        return self._without_odd_bits(tried.entry, writer)

    def _unchanged(self, one: FolderEntry, writer: ManifestWriter) -> ManifestEntry | None:
        """The entry of a file that had the mark of before when it was looked at, after the barrier.
        Its copy is good (`take_kept`). A mark has the time of status, so the mode is that of before too."""
        if not one.known:
            return None
        kept = self.left.files[one.path] = self._kept.files[one.path]
        entry = ManifestEntry(
            kind=EntryKind.FILE,
            mode=kept.mode,
            mtime_us=mtime_us_of(kept.source.changed_ns),
            path=one.path,
            sha256=kept.sha256,
            size=kept.source.size,
        )
        return self._without_odd_bits(entry, writer)

    def _leave(self, path: str, tried: _Try) -> None:
        if not tried.at_rest:
            self.left.others.append(path)
            return
        copy = mark_of(os.lstat(self._staging / STATE / path))
        self.left.files[path] = KeptFile(tried.mark, copy, tried.entry.mode, tried.entry.sha256)

    def _tried(self, above: int, name: str, path: str, *, fresh: bool) -> _Try | None:
        """One try; None where it is no file."""
        fd = os.open(name, _READ, dir_fd=above)
        try:
            return self._copied(fd, path, fresh=fresh)
        finally:
            os.close(fd)

    def _copied(self, fd: int, path: str, *, fresh: bool) -> _Try | None:
        began_ns = time.time_ns()
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None
        before = seen(path, status).mark
        where = f"{STATE}/{path}"
        if not fresh:
            self._contained.set_mode(where, FILE_MODE)
            os.unlink(self._staging / where)
        out = self._contained.new_file(where)
        try:
            size, sha256 = _pour(fd, out, bytes_max=before.size, on_piece=self._tell)
        finally:
            os.close(out)
        mode, mtime_us = stat.S_IMODE(status.st_mode), mtime_us_of(status.st_mtime_ns)
        self._contained.set_mtime(where, mtime_us * 1000)
        if mode & MODE_MAX != FILE_MODE:
            self._contained.set_mode(where, mode & MODE_MAX)
        entry = ManifestEntry(kind=EntryKind.FILE, mode=mode, mtime_us=mtime_us, path=path, sha256=sha256, size=size)
        whole = seen(path, os.fstat(fd)).mark == before and size == before.size
        hiding = may_hide_a_change(before, began_ns=began_ns, ended_ns=time.time_ns())
        return _Try(entry=entry, mark=before, whole=whole, at_rest=whole and not hiding)

    def _without_odd_bits(self, entry: ManifestEntry, writer: ManifestWriter) -> ManifestEntry:
        if entry.mode <= MODE_MAX:
            return entry
        writer.note(entry.path, f"its mode was {entry.mode:o}; the bits beyond 777 are not kept")
        return structs.replace(entry, mode=entry.mode & MODE_MAX)

    def _database(self, path: str, journal: JournalAddress | None = None) -> ManifestEntry:
        """A database's copy, whole and checked: by SQLite itself, the journal's by its port."""
        where = f"{STATE}/{path}"
        self.left.others.append(path)
        os.close(self._contained.new_file(where))
        mode, mtime_us = FILE_MODE, self._subject.at * 1_000_000
        if journal is None or journal.file:
            status = self._stat(path)
            mode, mtime_us = stat.S_IMODE(status.st_mode) & MODE_MAX, mtime_us_of(status.st_mtime_ns)
        if journal is None:
            copy_database(self._subject.folder / path, self._staging / where)
        else:
            self._tables_left = copy_journal(journal, self._staging / where)
        fd = self._contained.read(where)
        try:
            size, sha256 = _pour(fd, None, bytes_max=os.fstat(fd).st_size, on_piece=self._tell)
        finally:
            os.close(fd)
        self._contained.set_mtime(where, mtime_us * 1000)
        if mode != FILE_MODE:
            self._contained.set_mode(where, mode)
        return ManifestEntry(kind=EntryKind.DATABASE, mode=mode, mtime_us=mtime_us, path=path, sha256=sha256, size=size)

    def _stat(self, path: str) -> os.stat_result:
        with self._opened_above(path) as (above, name):
            return os.stat(name, dir_fd=above, follow_symlinks=False)

    @contextmanager
    def _opened_above(self, path: str) -> Generator[tuple[int, str]]:
        """The folder that holds the path, reached without following a link, and the last name."""
        above, _, last = path.rpartition("/")
        fd = open_by_walk(self._root, above)
        try:
            yield fd, last
        finally:
            os.close(fd)


def _pour(fd: int, out: int | None, *, bytes_max: int, on_piece: Callable[[int], None]) -> tuple[int, str]:
    """Read so much of it, write it on, hash it: size and SHA-256.
    Never more than it had when it was opened: a file that grows would never end."""
    sha256, size = hashlib.sha256(), 0
    while piece := os.read(fd, min(PIECE_BYTES, bytes_max - size)):
        sha256.update(piece)
        size += len(piece)
        if out is not None:
            write_all(out, piece)
        on_piece(size)
    return size, sha256.hexdigest()


def _find_unkeepable(path: str) -> str:
    if path.count("/") >= DEPTH_MAX:
        return f"deeper than {DEPTH_MAX} folders"
    if len(path.encode()) > PATH_BYTES_MAX:
        return f"a path of more than {PATH_BYTES_MAX:,} bytes"
    return ""
