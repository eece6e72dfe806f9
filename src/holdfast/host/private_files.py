"""Files that only their owner reads and a crash never leaves half written; refuses links and network file systems.

True at all times of what is opened or written here: files are 0600, folders 0700, both ours,
neither a symbolic link; whatever is found wider, foreign or linked is refused with the command
that mends it, never repaired in silence, because somebody may have read it already.

`write_atomically` keeps one promise: after a crash at any instant the name holds either the old bytes or the new ones,
whole. The order is temporary file in the same folder, write, sync, rename, sync of the folder. A crash before the
rename leaves a temporary file that starts with a dot and ends in `.new`; it means nothing and is removed by whoever
tidies the folder. All acts after the first go through one descriptor of the folder, so a folder swapped on the way
cannot lead the rename elsewhere.

Which file system a path is on is read from /proc/self/mountinfo. macOS has no such file: there every
file system is taken for a local one, which the platform table says.

`explained` names what can be wrong with a path of ours and leaves the rest as it is, because code of
the journal acts on it. `disk_error` leaves nothing: a path, what the system said, and what to do.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

from holdfast.errors import (
    DiskFailed,
    DiskFull,
    HoldfastError,
    JournalFull,
    ModeTooWide,
    NetworkFileSystem,
    OpenParent,
    ReadOnly,
    SymlinkRefused,
    WrongKind,
    WrongOwner,
)

MOUNTINFO = Path("/proc/self/mountinfo")

# On these a lock may vanish with the connection, or a sync return before the far disk has it.
_NETWORK_TEXT = """
    9p afs beegfs ceph cifs coda gpfs lustre ncpfs nfs nfs4 orangefs pvfs2 smb3 smbfs fuse.ceph fuse.davfs
    fuse.gcsfuse fuse.glusterfs fuse.goofys fuse.grpcfuse fuse.mount-s3 fuse.nfs fuse.osxfs fuse.rclone fuse.s3fs
    fuse.smbnetfs fuse.sshfs
"""
NETWORK = frozenset(_NETWORK_TEXT.split())


def find_network_fs(path: Path) -> str | None:
    """The type of the network file system that holds the path, or None."""
    kind = _fs_type_at(path)
    return kind if kind in NETWORK else None


def disk_of(path: Path) -> int:
    """The device of the path, or of the nearest folder above it that exists."""
    while not path.exists():
        path = path.parent
    return path.stat().st_dev


def is_in_memory(path: Path) -> bool:
    """Whether the path lies in memory, gone with the power; swap is another matter."""
    return _fs_type_at(path) in ("tmpfs", "ramfs")


def _fs_type_at(path: Path) -> str | None:
    try:
        return find_fs_type(MOUNTINFO.read_text("utf-8", "surrogateescape"), os.path.realpath(path))
    except OSError:
        return None


def find_fs_type(mountinfo: str, path: str) -> str | None:
    """The file system type at a real path: the deepest mount above it, the newest where two tie."""
    best, depth = None, -1
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kinds = left.split(" "), right.split(" ")
        if len(fields) < 6 or not kinds[0]:
            continue
        mount = _unescaped(fields[4])
        inside = mount in ("/", path) or path.startswith(mount + "/")
        if inside and len(mount) >= depth:
            best, depth = kinds[0], len(mount)
    return best


def _unescaped(field: str) -> str:
    """Mount points write space, tab, newline and backslash as octal."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


FILE_MODE = 0o600
FOLDER_MODE = 0o700
TEMPORARY_SUFFIX = ".new"
_OTHERS = 0o077
_LINKS_MAX = 40  # as many as the kernel itself follows
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def check_place(path: Path, *, allow_network_fs: bool = False) -> None:
    """Refuse a path where other users or another machine could change what we rely on.

    The path itself may not exist yet; then what exists above it is checked. Symbolic links that only the administrator
    can have made (/tmp on macOS) are followed; every other one is refused, and so is a final link, whoever made it.
    Raises SymlinkRefused, OpenParent, NetworkFileSystem, ReadOnly."""
    absolute = Path(os.path.abspath(path))
    try:
        _check_links(absolute)
        real = Path(os.path.realpath(absolute))
        for folder in (real, *real.parents):
            _check_parent(folder)
    except OSError as error:
        raise explained(error, path) from error
    kind = None if allow_network_fs else find_network_fs(real)
    if kind is not None:
        raise NetworkFileSystem(f"{path} is on a network file system ({kind})")


def check_private_folder(path: Path) -> None:
    """Refuse a folder that is not ours alone. Raises FileNotFoundError where there is none."""
    _check_entry(path, path.lstat(), folder=True)


def check_private_file(path: Path) -> None:
    """Refuse a file that is not ours alone, with SymlinkRefused, WrongKind, WrongOwner or ModeTooWide.
    Raises FileNotFoundError where there is none."""
    _check_entry(path, path.lstat(), folder=False)


def ensure_private_folder(path: Path) -> None:
    """Make the folder, 0700, and what is missing above it; refuse it if it is not ours alone."""
    try:
        _make_folders(path)
    except OSError as error:
        raise explained(error, path) from error
    check_private_folder(path)


def check_can_be_made(path: Path) -> None:
    """Refuse a folder that `ensure_private_folder` would refuse, as far as that shows before anything is made."""
    at = path
    while not os.path.lexists(at):
        at = at.parent
    try:
        if at == path:
            check_private_folder(path)
        elif not at.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        elif not os.access(at, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise explained(error, path) from error


def open_private(path: Path, flags: int) -> int:
    """Open a file of ours and return the descriptor; what was opened is what was checked.
    With O_CREAT a new file is 0600 whatever the umask. Raises FileNotFoundError and
    FileExistsError as `os.open` does, and the errors of `check_private_file`."""
    # O_NONBLOCK: opening a pipe that somebody put there must not wait for its other end.
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.open(path, flags, FILE_MODE)
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        raise explained(error, path) from error
    try:
        _check_entry(path, os.fstat(fd), folder=False)
    except BaseException:  # also a cancel: no descriptor is left
        os.close(fd)
        raise
    return fd


def read_private(path: Path, bytes_max: int) -> bytes:
    """The first bytes of a file of ours. Raises as `open_private` does."""
    with open(open_private(path, os.O_RDONLY), "rb") as file:
        return file.read(bytes_max)


def read_plain(path: Path, bytes_max: int) -> bytes:
    """The first bytes of a file that another machine may have written: whoever owns it, but no link, pipe or device.
    Raises OSError, SymlinkRefused, WrongKind."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise (SymlinkRefused(f"{path} is a symbolic link") if path.is_symlink() else error) from error
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise WrongKind(f"{path} is not a file")
        return file.read(bytes_max)


@contextmanager
def locked(path: Path) -> Generator[None]:
    """One process at a time, by a lock on this private file; it ends with its holder."""
    fd = open_private(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextmanager
def locked_now(path: Path) -> Generator[bool]:
    """True where no other process has the lock on this private file; it ends with the process."""
    ensure_private_folder(path.parent)
    fd = open_private(path, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(fd)


def write_atomically(path: Path, data: bytes, *, keep_mode: bool = False) -> None:
    """Replace the file's contents durably: after a crash it holds the old bytes or the new.
    With `keep_mode` a file that is there keeps its mode and group: a person has set them."""
    try:
        folder = os.open(path.parent, _FOLDER_FLAGS)
    except OSError as error:
        raise explained(error, path.parent) from error
    try:
        _replace(folder, path.name, data, keep_mode=keep_mode)
    except OSError as error:
        raise explained(error, path) from error
    finally:
        os.close(folder)


@contextmanager
def destroying(path: Path) -> Generator[None]:
    """While the file at this name is replaced; afterwards its old bytes are overwritten."""
    try:
        fd = open_private(path, os.O_WRONLY)
    except FileNotFoundError:
        fd = -1
    try:
        yield
    finally:
        if fd >= 0:
            try:
                found = os.fstat(fd)
                if found.st_nlink == 0:  # no other name leads to these bytes
                    write_all(fd, bytes(found.st_size))
                    sync(fd)
            finally:
                os.close(fd)


def create_durably(path: Path, data: bytes) -> bool:
    """Write a file that is not there yet, whole; False where it is, which then stays as it is.
    Of several processes that try at once exactly one gets True."""
    if os.path.lexists(path):  # a kill leaves nothing in a folder in which nothing had to be made
        return False
    try:
        folder = os.open(path.parent, _FOLDER_FLAGS)
    except OSError as error:
        raise explained(error, path.parent) from error
    try:
        temporary = _write_temporary(folder, path.name, data)
        try:
            os.link(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except FileExistsError:
            return False
        finally:
            os.unlink(temporary, dir_fd=folder)
        sync(folder)
        return True
    except OSError as error:
        raise explained(error, path) from error
    finally:
        os.close(folder)


def remove_durably(path: Path) -> None:
    """Remove the file, if it is there, and sync its folder."""
    try:
        path.unlink(missing_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        raise explained(error, path) from error


def sync_folder(path: Path) -> None:
    """Make names added to or removed from the folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(fd)
    finally:
        os.close(fd)


def sync(fd: int) -> None:
    """Sync to the disk itself; on macOS a plain fsync stops at the drive's cache."""
    if sys.platform == "darwin":
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fsync(fd)


def explained(error: OSError, path: Path) -> HoldfastError | OSError:
    """The same failure in our words where we have some: no rights, no space, a link, a pipe."""
    match error.errno:
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return ReadOnly(f"cannot write {path}: {error.strerror}")
        case errno.ENOSPC | errno.EDQUOT:
            return JournalFull(f"cannot write {path}: {error.strerror}")
        case errno.ELOOP | errno.EMLINK:
            return SymlinkRefused(f"{path} is a symbolic link")
        case errno.ENOTDIR | errno.EISDIR | errno.ENXIO:
            if path.is_symlink():
                return SymlinkRefused(f"{path} is a symbolic link")
            return WrongKind(f"{path}: {error.strerror}")
        case _:
            return error


def _make_folders(path: Path) -> None:
    missing: list[Path] = []
    at = path
    while not os.path.lexists(at):
        missing.append(at)
        at = at.parent
    for folder in reversed(missing):
        try:
            folder.mkdir(mode=FOLDER_MODE)
        except FileExistsError:
            continue  # another process was quicker; the caller checks what it made
        sync_folder(folder.parent)


def _replace(folder: int, name: str, data: bytes, *, keep_mode: bool) -> None:
    temporary = _write_temporary(folder, name, data)
    try:
        if keep_mode:
            _keep_mode(folder, name, temporary)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:  # also a cancel: no temporary file is left
        os.unlink(temporary, dir_fd=folder)
        raise
    sync(folder)


def _write_temporary(folder: int, name: str, data: bytes) -> str:
    """The data in a new, synced file of the folder; its name."""
    temporary = f".{name}.{os.urandom(8).hex()}{TEMPORARY_SUFFIX}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, FILE_MODE, dir_fd=folder)
    try:
        write_all(fd, data)
        sync(fd)
    except BaseException:  # also a cancel: no temporary file is left
        os.unlink(temporary, dir_fd=folder)
        raise
    finally:
        os.close(fd)
    return temporary


def _keep_mode(folder: int, name: str, temporary: str) -> None:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISREG(found.st_mode):
        fd = os.open(temporary, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            take_mode(fd, found)
        finally:
            os.close(fd)


def take_mode(fd: int, after: os.stat_result) -> None:
    """Give an open file the mode and group of another; the rights of a group only to that group.
    Where we may not give it that group (we are not in it), its group gets no rights at all: another
    group than the person chose must not get them in its place."""
    mode, found = stat.S_IMODE(after.st_mode) & 0o777, os.fstat(fd)
    if found.st_gid != after.st_gid:
        try:
            os.fchown(fd, -1, after.st_gid)
        except PermissionError:
            mode &= ~0o070
    if stat.S_IMODE(found.st_mode) != mode:
        os.fchmod(fd, mode)


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _check_entry(path: Path, found: os.stat_result, *, folder: bool) -> None:
    what, mode = ("folder", FOLDER_MODE) if folder else ("file", FILE_MODE)
    if stat.S_ISLNK(found.st_mode):
        raise SymlinkRefused(f"{path} is a symbolic link")
    if not (stat.S_ISDIR if folder else stat.S_ISREG)(found.st_mode):
        raise WrongKind(f"{path} is not a {what}")
    if found.st_uid != os.geteuid():
        raise WrongOwner(f"{path} belongs to user {found.st_uid}, but Holdfast runs as user {os.geteuid()}")
    if stat.S_IMODE(found.st_mode) & _OTHERS:
        raise ModeTooWide(
            f"other users can read or change {path} (mode {stat.S_IMODE(found.st_mode):04o})",
            hint=f"run `chmod {mode:o} {quote(str(path))}`; others may already have read it",
        )


def _check_links(path: Path) -> None:
    """Walk down the path as it is written, and again behind each link that is allowed."""
    for _ in range(_LINKS_MAX):
        link = next((at for at in (*reversed(path.parents), path) if at.is_symlink()), None)
        if link is None:
            return
        if link == path or not _made_by_administrator(link):
            raise SymlinkRefused(f"{link} is a symbolic link", hint=f"give the real path: {os.path.realpath(path)}")
        target = link.parent / os.readlink(link)
        path = Path(os.path.normpath(target)) / path.relative_to(link)
    raise SymlinkRefused(f"the path {path} has more than {_LINKS_MAX} symbolic links")


def _made_by_administrator(link: Path) -> bool:
    folder = link.parent.stat()
    return link.lstat().st_uid == 0 and folder.st_uid == 0 and not folder.st_mode & stat.S_IWOTH


def _check_parent(folder: Path) -> None:
    try:
        mode = folder.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        return
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise OpenParent(
            f"every user can rename or remove files in {folder} (mode {stat.S_IMODE(mode):04o})",
            hint=f"run `chmod o-w {quote(str(folder))}`, or choose another folder",
        )


_FULL = (errno.ENOSPC, errno.EDQUOT)
# What a disk, a mount or a limit says, and no mistake in the code can cause.
_NAMES = "EIO EROFS EACCES EPERM EFBIG ESTALE ENODEV EREMOTEIO EUCLEAN EBADMSG ENOTCONN EHOSTDOWN ENOMEDIUM ELOOP ENXIO"
_FAILED = frozenset(code for name in _NAMES.split() if (code := getattr(errno, name, None)) is not None)


def disk_error(error: OSError, path: Path) -> HoldfastError:
    """The failure of an act below this path; the file that the system names is the better one."""
    where = _named(error) or path
    if error.errno in _FULL:
        return DiskFull(f"cannot write {where}: {error.strerror}")
    known = explained(error, where)
    if isinstance(known, HoldfastError):
        return known
    return DiskFailed(f"cannot read or write {where}: {error.strerror or error}")


def find_disk_error(error: OSError) -> HoldfastError | None:
    """The same where nothing is known but the error; None where it may be a defect of ours."""
    where = _named(error)
    if error.errno in _FULL:
        return DiskFull(f"cannot write {where or 'the output'}: {error.strerror}")
    if error.errno not in _FAILED:
        return None
    return disk_error(error, where or Path("a file"))


def _named(error: OSError) -> Path | None:
    name = error.filename
    if isinstance(name, bytes):
        name = name.decode(errors="replace")
    return Path(name) if isinstance(name, str) and name.startswith("/") else None
