"""What carries envelopes between instances: a folder that hosts share, or the journal that they share.

Each instance writes only what is its own, so no lock is needed, and none is trusted. An instance has one newest
envelope, which names the parts that are to be read before it; nothing else in the place is ever looked at, so that
conflict copies, torn files under other names, other agents' files or a million of them cost nothing.
What is read may be late, torn, missing or made by anyone: the reader checks it (`envelope.py`). The same goes for the
folders themselves: a link among them is refused, and nothing is read, written or removed through it.

    FOLDER/holdfast-AGENT/INSTANCE/newest      AGENT: the first 16 characters of the agent's id behind "hf1"
    FOLDER/holdfast-AGENT/INSTANCE/PART        PART: 32 hex digits, the beginning of its SHA-256

    text "memory"                              of the journal: of each instance the hash of its newest, and its parts
    text "memory/INSTANCE", "memory/INSTANCE/PART"
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Collection, Generator, Mapping
from itertools import islice
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.errors import BadUpdate, InstancesUnfit, SymlinkRefused, WrongKind
from holdfast.host.private_files import write_all
from holdfast.host.tree import open_folder
from holdfast.instances.envelope import ENVELOPE_BYTES_MAX
from holdfast.instances.sent_texts import NEWEST, SENT, Sent, parse_sent, text_name
from holdfast.journal.admin import SharedState

AGENT_CHARS = 16
OWN_FILES_MAX = 10_000
_NAME = rf"(?:{NEWEST}|[0-9a-f]{{32}})"
_OURS = re.compile(rf"{_NAME}|\.{_NAME}\.[0-9a-f]{{8}}")  # the second: being written
_NO_FOLDER = (errno.ENOTDIR, errno.ELOOP, errno.EMLINK)  # what systems say of a link that must not be followed
YOUNG_S = 4.0  # the coarsest clock of a file system in use has ticks of two seconds


class Channel(Protocol):
    """All of it blocks. Raises OSError or HoldfastError where the place cannot be used now."""

    late_ms: int  # after so long an instance of which nothing is there has sent nothing

    def marks(self, instances: Collection[str]) -> Mapping[str, object]:
        """Of each instance that has sent anything: what changes when it sends again. Cheap."""
        ...

    def read(self, instance: str, name: str) -> bytes | None:
        """None where it is not there. Raises BadUpdate where it is too large, or no plain file, and SymlinkRefused or
        WrongKind where it would be in something that is no folder."""
        ...

    def put(self, name: str, data: bytes) -> object:
        """Whole or not at all; what was there under this name is replaced. Returns what `own` says of it."""
        ...

    def remove(self, name: str) -> None: ...

    def own(self) -> Mapping[str, object]:
        """What this instance has in the place by its name, also what a write that was cut off left; the value changes
        where anyone but this instance has changed it. Cheap."""
        ...


class FolderChannel:
    """A folder that hosts share, or that a program copies between them."""

    late_ms = 600_000

    def __init__(self, folder: Path, *, agent: str, instance: str) -> None:
        self._folder = folder
        self._agent = folder / f"holdfast-{agent.removeprefix('hf1')[:AGENT_CHARS]}"
        self._own = self._agent / instance

    def marks(self, instances: Collection[str]) -> dict[str, object]:
        """A file may change twice within one tick of its clock: the mark of a young one changes once more."""
        self._check()
        found: dict[str, object] = {}
        for one in instances:
            try:
                with self._opened(one) as folder:
                    entry = os.stat(NEWEST, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                continue
            except (OSError, SymlinkRefused, WrongKind) as error:  # `read` says what is wrong with it
                found[one] = str(error)
                continue
            young = abs(time.time() - entry.st_mtime) < YOUNG_S
            found[one] = (entry.st_ino, entry.st_mtime_ns, entry.st_size, young)
        return found

    def read(self, instance: str, name: str) -> bytes | None:
        path = self._agent / instance / name
        try:
            with self._opened(instance) as folder:
                return _read(folder, path, instance)
        except FileNotFoundError:
            return None
        except OSError as error:  # a link, a socket, a file of another user: only this instance waits
            raise _unreadable(path, error) from error

    def put(self, name: str, data: bytes) -> object:
        """As readable for others as the shared folder itself: what is in it is sealed."""
        mode = stat.S_IMODE(self._check().st_mode)
        try:
            with self._opened(self._own.name, mode=mode | 0o700) as folder:
                return _put(folder, name, data, mode & 0o666 | 0o600)
        except OSError as error:
            path = self._own / name
            what = "is a folder" if error.errno == errno.EISDIR else f"cannot be written: {error.strerror}"
            raise InstancesUnfit(f"{path} {what}", hint=_FIX.get(error.errno or 0, _MAY_WRITE)) from error

    def remove(self, name: str) -> None:
        missing = contextlib.suppress(FileNotFoundError, IsADirectoryError, PermissionError)
        with missing, self._opened(self._own.name) as folder:
            os.unlink(name, dir_fd=folder)

    def own(self) -> dict[str, object]:
        """Sizes: a program that copies the folder may change all else of a file. Only plain files with names that this
        program gives: anything else is not ours to remove."""
        found: dict[str, object] = {}
        with contextlib.suppress(FileNotFoundError), self._opened(self._own.name) as folder, os.scandir(folder) as all_:
            for entry in islice((one for one in all_ if _OURS.fullmatch(one.name)), OWN_FILES_MAX):
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        found[entry.name] = status.st_size
        return found

    @contextlib.contextmanager
    def _opened(self, instance: str, *, mode: int | None = None) -> Generator[int]:
        """The folder of an instance; with a mode it is made where it is missing. Anyone who can write to the shared
        folder can put a link there, to the vault or to any other folder of this host: no link below it is followed.
        Raises SymlinkRefused, WrongKind, OSError."""
        path, fd = self._folder, os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in (self._agent.name, instance):
                path, above = path / name, fd
                fd = _step_into(path, above, mode)
                os.close(above)
            yield fd
        finally:
            os.close(fd)

    def _check(self) -> os.stat_result:
        try:
            return os.stat(self._folder)
        except FileNotFoundError:
            raise InstancesUnfit(
                f"the folder {self._folder}, which the instances of the agent share, is not there",
                hint="mount it, or change `folder` in [instances] of holdfast.toml",
            ) from None


_FULL = "free space in the shared folder; merging then continues by itself"
_MAY_WRITE = "let the user of this agent write to the shared folder; merging then continues by itself"
_FIX = {errno.ENOSPC: _FULL, errno.EDQUOT: _FULL, errno.EISDIR: "remove it; merging then continues by itself"}


def _step_into(path: Path, above: int, mode: int | None) -> int:
    made = False
    if mode is not None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path.name, 0o700, dir_fd=above)
            made = True
    try:
        fd = open_folder(path.name, at=above)
    except OSError as error:
        if error.errno in _NO_FOLDER:
            raise _misplaced(path) from None
        raise
    if made:
        with contextlib.suppress(OSError):  # not every network file system has modes
            os.fchmod(fd, mode or 0o700)  # the umask is for files that are not shared
    return fd


def _misplaced(path: Path) -> SymlinkRefused | WrongKind:
    kind, what = (SymlinkRefused, "is a symbolic link") if path.is_symlink() else (WrongKind, "is not a folder")
    return kind(
        f"{path} {what}; nothing was read, written or removed there",
        hint=f"find out who can write to the shared folder, and remove {path}; merging then goes on by itself",
    )


def _read(folder: int, path: Path, instance: str) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not wait for its other end
    fd = os.open(path.name, flags, dir_fd=folder)
    try:
        entry = os.fstat(fd)
        if not stat.S_ISREG(entry.st_mode) or entry.st_size > ENVELOPE_BYTES_MAX:
            raise BadUpdate(
                f"{path} is not a file, or has more than {ENVELOPE_BYTES_MAX:,} bytes",
                hint=f"nothing was changed; remove {path}, and {instance} writes it again",
            )
        with open(fd, "rb", closefd=False) as file:
            return file.read(entry.st_size)
    finally:
        os.close(fd)


def _put(folder: int, name: str, data: bytes, mode: int) -> int:
    temporary = f".{name}.{os.urandom(4).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        try:
            with contextlib.suppress(OSError):
                os.fchmod(fd, mode)
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        raise
    return len(data)


def _unreadable(path: Path, error: OSError) -> BadUpdate:
    return BadUpdate(
        f"{path} cannot be read: {error.strerror}",
        hint=f"let the user of this agent read {path}, or remove it: its instance writes it again",
    )


class JournalChannel:
    """The journal that the hosts of the agent share, as texts beside its tasks."""

    late_ms = 10_000  # what was sent is there; this is for instances that start at the same moment

    def __init__(self, shared: SharedState, *, instance: str) -> None:
        self._shared = shared
        self._instance = instance

    def marks(self, instances: Collection[str]) -> dict[str, object]:
        sent = parse_sent(self._shared.read_text(SENT))
        return {one: sent[one].newest for one in instances if one in sent and sent[one].newest}

    def read(self, instance: str, name: str) -> bytes | None:
        text = self._shared.read_text(text_name(instance, name))
        try:
            return base64.b64decode(text, validate=True) if text else None
        except ValueError as error:
            raise BadUpdate(f"an update of {instance} in the journal cannot be read: {error}") from None

    def put(self, name: str, data: bytes) -> object:
        """A part is listed before it is there, so that a kill leaves none that no list names."""
        text, digest = base64.b64encode(data).decode(), hashlib.sha256(data).hexdigest()
        if name != NEWEST:
            self._note(lambda sent: Sent(sent.newest, (*sent.parts, name)))
        self._shared.change_text(text_name(self._instance, name), lambda _: text)
        if name == NEWEST:
            self._note(lambda sent: Sent(digest, sent.parts))
        return digest if name == NEWEST else ""

    def remove(self, name: str) -> None:
        self._shared.drop_text(text_name(self._instance, name))
        self._note(lambda sent: Sent(sent.newest, tuple(one for one in sent.parts if one != name)))

    def own(self) -> dict[str, object]:
        sent = parse_sent(self._shared.read_text(SENT)).get(self._instance, Sent())
        return {**dict.fromkeys(sent.parts, ""), **({NEWEST: sent.newest} if sent.newest else {})}

    def _note(self, change: Callable[[Sent], Sent]) -> None:
        def changed(text: str) -> str:
            sent = parse_sent(text)
            sent[self._instance] = change(sent.get(self._instance, Sent()))
            return msgspec.json.encode(sent).decode()

        self._shared.change_text(SENT, changed)
