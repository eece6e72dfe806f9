"""What lies in an agent's folder: what a backup covers, and what it leaves out, and why.

Looks and changes nothing. No symbolic link is followed: each name is opened relative to the
descriptor of the folder that holds it, so whoever swaps a folder for a link on the way leads us
nowhere. A link is covered as a link; what it points to is not, and that is said. Nothing is opened
that could wait (pipes, devices), and of a file only its first bytes are read: enough to know a
database of SQLite, which must be taken by SQLite's own backup, and a private key. A caller that looked
before says which files it knows by their marks: those have not changed, and are not opened again.

A file that this process has open is never opened again: the close of *any* descriptor of a file
drops every POSIX lock that the process holds on it, and SQLite's locks are of that kind. Its first
bytes are read through the descriptor that is there.

Each entry comes once, a folder before what it holds, names in order; of what is left out only the
top is told, not each file below it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from holdfast.errors import TooLarge
from holdfast.host.tree import DEPTH_FOLLOWED, FileKind, FileMark, FoundFile, open_folder, seen
from holdfast.layout.covering import (
    CACHE_TAG,
    HEAD_BYTES,
    KEYS_IN_SETTINGS,
    SQLITE_HEAD,
    VAULT_NAME,
    CoveredKind,
    CoveringRules,
    LeftOut,
    Reason,
    find_database,
    judge_head,
    judge_name,
    may_hold_keys,
)

__all__ = ["CoveredKind", "CoveringRules", "FolderEntry", "Reason", "covered_files", "look"]

_GONE = ", and a restore does not make the link again"
_CACHE_TAG_NAME = "CACHEDIR.TAG"


class FolderEntry(NamedTuple):
    """One thing in the folder: covered where `kind` is set, else left out for `left_out`."""

    path: str  # relative, names separated by /
    kind: CoveredKind | None
    size: int = 0
    left_out: LeftOut | None = None
    remark: str = ""  # of a covered one: what a person should know
    known: bool = False  # a file that the caller knows by its mark


IsKnown = Callable[[str, FileMark], bool]
_BY_NAME = attrgetter("name")


def covered_files(folder: Path, rules: CoveringRules | None = None) -> Iterator[tuple[str, CoveredKind]]:
    """Every covered entry below the folder, as relative path and kind; a folder before its files.
    Raises TooLarge where there are more entries than the rules allow."""
    for entry in look(folder, rules):
        if entry.kind is not None:
            yield entry.path, entry.kind


def look(
    folder: Path, rules: CoveringRules | None = None, *, is_known: IsKnown = lambda path, mark: False
) -> Iterator[FolderEntry]:
    """Everything below the folder, what is left out with its reason. Raises TooLarge.
    A file `is_known` where it had this mark when it was found to be a plain file: its first bytes are the same."""
    rules = rules or CoveringRules()
    root = os.path.abspath(folder)
    fd = open_folder(root)
    try:
        inside = root + os.sep
        apart = frozenset(one.removeprefix(inside) for one in rules.apart if one.startswith(inside))
        walk = _Walk(root, os.fstat(fd).st_dev, rules, apart, _open_here(), is_known)
        for count, entry in enumerate(walk.entries(fd, "", 1), 1):
            if count > rules.entries_max:
                raise TooLarge(
                    f"{folder} has more than {rules.entries_max:,} files and folders, which is the limit",
                    hint="move files that are not the agent's to another folder",
                )
            yield entry
    finally:
        os.close(fd)


@dataclass(frozen=True, slots=True)
class _Walk:
    """One way through the folder."""

    _root: str
    _device: int
    _rules: CoveringRules
    _apart: frozenset[str]  # of the rules, relative
    _ours: dict[tuple[int, int], int]
    _is_known: IsKnown

    def entries(self, at: int, above: str, depth: int) -> Iterator[FolderEntry]:
        with os.scandir(at) as listing:
            entries = sorted(listing, key=_BY_NAME)
        there = frozenset(map(_BY_NAME, entries))
        for entry in entries:
            name = entry.name
            path = above + name
            if not _is_text(name):
                yield _out(ascii(path)[1:-1], Reason.UNKEEPABLE, "its name is not UTF-8")
                continue
            try:
                found = seen(path, entry.stat(follow_symlinks=False))
            except FileNotFoundError:
                continue  # gone since: it is not part of what is there
            judged = self._judge(path, folder=found.kind is FileKind.FOLDER)
            if judged is not None:
                if judged.sealable and self._rules.seal and found.kind is FileKind.FOLDER:
                    yield from self._secrets(at, name, path, judged)
                else:
                    yield FolderEntry(path, None, found.mark.size, judged)
                continue
            match found.kind:
                case FileKind.FILE:
                    yield self._file(at, name, found, there)
                case FileKind.LINK:
                    yield _link(at, name, path, self._root)
                case FileKind.FOLDER:
                    yield from self._folder(at, name, found, depth)
                case _:
                    yield _out(path, Reason.UNKEEPABLE, f"a {found.kind}")

    def _judge(self, path: str, *, folder: bool) -> LeftOut | None:
        judged = judge_name(path, folder=folder, own=self._rules.own)
        if judged is None and path in self._apart:
            judged = LeftOut(reason=Reason.SECRET, text="kept apart: a vault, place or witness")
        if judged is None and not folder and self._rules.seal and may_hold_keys(path):
            judged = KEYS_IN_SETTINGS
        return judged

    def _secrets(self, at: int, name: str, path: str, judged: LeftOut) -> Iterator[FolderEntry]:
        """Each file in a folder of keys; what else is there is left out."""
        try:
            inner = open_folder(name, at=at)
        except OSError as error:
            yield _out(path, Reason.UNREADABLE, f"cannot be read: {error.strerror}")
            return
        try:
            for below in sorted(os.listdir(inner)):
                status = os.stat(below, dir_fd=inner, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and _is_text(below):
                    yield FolderEntry(f"{path}/{below}", None, status.st_size, judged)
                else:
                    yield _out(f"{path}/{ascii(below)[1:-1]}", Reason.SECRET, judged.text)
        finally:
            os.close(inner)

    def _folder(self, at: int, name: str, found: FoundFile, depth: int) -> Iterator[FolderEntry]:
        elsewhere = found.mark.device != self._device
        if elsewhere or depth >= DEPTH_FOLLOWED:
            why = "another file system is mounted here" if elsewhere else f"deeper than {DEPTH_FOLLOWED} folders"
            yield _out(found.path, Reason.UNKEEPABLE, why)
            return
        try:
            inner = open_folder(name, at=at)
        except PermissionError:
            yield _out(found.path, Reason.UNREADABLE, "it may not be read")
            return
        except OSError:
            return  # gone, or something else since: not part of what is there
        try:
            if self._head(inner, _CACHE_TAG_NAME).startswith(CACHE_TAG):
                yield _out(found.path, Reason.CACHE, f"a cache, by its {_CACHE_TAG_NAME}")
            elif _exists(inner, VAULT_NAME):
                yield _out(found.path, Reason.SECRET, "a vault")
            else:
                yield FolderEntry(found.path, CoveredKind.FOLDER)
                yield from self.entries(inner, f"{found.path}/", depth + 1)
        finally:
            os.close(inner)

    def _file(self, at: int, name: str, found: FoundFile, there: frozenset[str]) -> FolderEntry:
        path, size = found.path, found.mark.size
        owner = find_database(name)
        if owner is not None and owner in there and self._head(at, owner).startswith(SQLITE_HEAD):
            return _out(path, Reason.MADE_AGAIN, f"taken with {owner}", size=size)
        known = self._is_known(path, found.mark)
        try:
            head = b"" if known else self._read_head(at, name)
        except OSError as error:
            return _out(path, Reason.UNREADABLE, f"cannot be read: {error.strerror}", size=size)
        judged = judge_head(head)
        if judged is not None:
            return FolderEntry(path, None, size, judged)
        if size > self._rules.file_bytes_max:
            text = f"{size:,} bytes; at most {self._rules.file_bytes_max:,} are kept"
            return _out(path, Reason.LARGE, text, size=size)
        kind = CoveredKind.DATABASE if head.startswith(SQLITE_HEAD) else CoveredKind.FILE
        remark = f"{KEYS_IN_SETTINGS.text}; `holdfast adopt --seal-secrets` seals them" if may_hold_keys(path) else ""
        return FolderEntry(path, kind, size, remark=remark, known=known)

    def _head(self, at: int, name: str) -> bytes:
        try:
            return self._read_head(at, name)
        except OSError:
            return b""

    def _read_head(self, at: int, name: str) -> bytes:
        status = os.stat(name, dir_fd=at, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            return b""
        ours = self._ours.get((status.st_dev, status.st_ino))
        if ours is not None:
            return os.pread(ours, HEAD_BYTES, 0)
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
        try:
            return os.read(fd, HEAD_BYTES)
        finally:
            os.close(fd)


def _open_here() -> dict[tuple[int, int], int]:
    """The files that this process has open for reading, by device and inode."""
    found: dict[tuple[int, int], int] = {}
    for name in os.listdir("/dev/fd"):
        try:
            status = os.fstat(int(name))
            if stat.S_ISREG(status.st_mode):
                os.pread(int(name), 0, 0)
                found[status.st_dev, status.st_ino] = int(name)
        except (OSError, ValueError):
            continue  # the listing's own, closed by now, or one for writing alone
    return found


def _link(at: int, name: str, path: str, root: str) -> FolderEntry:
    try:
        target = os.readlink(name, dir_fd=at)
    except OSError:
        return _out(path, Reason.UNREADABLE, "a link that cannot be read")
    if not _is_text(target):
        return _out(path, Reason.UNKEEPABLE, "a link whose target is not UTF-8")
    # By its text alone: what it leads to is neither opened nor asked about.
    leads = os.path.normpath(os.path.join(root, os.path.dirname(path), target))
    inside = leads == root or leads.startswith(root + os.sep)
    remark = "" if inside else f"leads outside, to {target}: what is there is not covered{_GONE}"
    return FolderEntry(path, CoveredKind.LINK, remark=remark)


def _exists(at: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=at, follow_symlinks=False)
    except OSError:
        return False
    return True


def _out(path: str, reason: Reason, text: str, *, size: int = 0) -> FolderEntry:
    return FolderEntry(path, None, size, LeftOut(reason=reason, text=text))


def _is_text(name: str) -> bool:
    if name.isascii():
        return True
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
