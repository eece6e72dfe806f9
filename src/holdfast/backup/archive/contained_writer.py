"""Files made below one folder, and never anywhere else.

Each name is resolved by the kernel under the folder's descriptor with `openat2` and the flags
that refuse `..`, absolute paths, symbolic links and mounts in between; where that call is missing
the path is walked name by name with O_NOFOLLOW, which refuses the same. A file is always a new
one (O_EXCL): two names that the file system takes for one collide here instead of one file taking
the other's place.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from holdfast.host.private_files import FILE_MODE, FOLDER_MODE, sync
from holdfast.host.tree import open_folder

_OPENAT2 = 437  # the same number on every architecture that has it
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH, _NO_XDEV = 0x02, 0x04, 0x08, 0x01
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

Open = Callable[[int, str], int]


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class ContainedWriter:
    """A folder in which files and folders are made by relative paths that were checked before."""

    def __init__(self, root: Path) -> None:
        self._root = open_folder(str(root))
        self._open: Open = open_by_kernel if has_openat2() else open_by_walk
        self._made = {""}
        self._last: tuple[str, int] = ("", self._root)  # files of one folder come together

    def make_folder(self, path: str) -> bool:
        """Make the folder and those above it, 0700; False where it was made before."""
        if path in self._made:
            return False
        above, _, name = path.rpartition("/")
        self.make_folder(above)
        os.mkdir(name, FOLDER_MODE, dir_fd=self._folder(above))
        self._made.add(path)
        self.set_mode(path, FOLDER_MODE)  # in a folder with the set-group bit a new one has it too
        return True

    def take_folders(self, paths: Iterable[str]) -> None:
        """Folders that are there and ours: they count as made here."""
        self._made.update(paths)

    def forget_folders(self, paths: Iterable[str]) -> None:
        """Folders that were removed."""
        self._made.difference_update(paths)

    def new_file(self, path: str) -> int:
        """The descriptor of a new file, 0600. Raises FileExistsError."""
        above, _, name = path.rpartition("/")
        self.make_folder(above)
        return os.open(name, _NEW, FILE_MODE, dir_fd=self._folder(above))

    def read(self, path: str) -> int:
        above, _, name = path.rpartition("/")
        return os.open(name, _READ, dir_fd=self._folder(above))

    def set_mode(self, path: str, mode: int) -> None:
        """Of a file or folder that was made here."""
        with self._made_here(path) as fd:
            os.fchmod(fd, mode)

    def set_mtime(self, path: str, mtime_ns: int) -> None:
        """Of a file or folder that was made here; nothing may be made in the folder after it."""
        with self._made_here(path) as fd:
            os.utime(fd, ns=(mtime_ns, mtime_ns))

    @contextmanager
    def _made_here(self, path: str) -> Generator[int]:
        fd = self._open(self._root, path) if path in self._made else self.read(path)
        try:
            yield fd
        finally:
            os.close(fd)

    def make_link(self, path: str, target: str) -> None:
        above, _, name = path.rpartition("/")
        self.make_folder(above)
        os.symlink(target, name, dir_fd=self._folder(above))

    def sync(self) -> None:
        """Make everything in the file system of this folder durable."""
        syncfs = getattr(_LIBC, "syncfs", None)
        if syncfs is None or syncfs(ctypes.c_int(self._root)) != 0:
            os.sync()
        sync(self._root)

    def close(self) -> None:
        self._drop_last()
        os.close(self._root)

    def __enter__(self) -> ContainedWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _folder(self, path: str) -> int:
        if not path:
            return self._root
        if self._last[0] != path:
            self._drop_last()
            self._last = (path, self._open(self._root, path))
        return self._last[1]

    def _drop_last(self) -> None:
        path, fd = self._last
        self._last = ("", self._root)
        if path:
            os.close(fd)


def sync_tree(folder: Path) -> None:
    """Make everything in the file system of this folder durable."""
    with ContainedWriter(folder) as contained:
        contained.sync()


def open_by_kernel(root: int, path: str) -> int:
    """A folder below the root, by openat2. Raises OSError where the way leads outside."""
    how = _How(_FOLDER, 0, _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS | _NO_XDEV)
    fd = _LIBC.syscall(
        ctypes.c_long(_OPENAT2),
        ctypes.c_int(root),
        ctypes.c_char_p(os.fsencode(path)),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)
    return fd


def open_by_walk(root: int, path: str) -> int:
    """The same, name by name; the root itself where the path is empty."""
    if path.startswith("/") or ".." in path.split("/"):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    fd = os.dup(root)
    for name in path.split("/") if path else ():
        try:
            inner = open_folder(name, at=fd)
        finally:
            os.close(fd)
        fd = inner
    return fd


def has_openat2() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    fd = os.open("/", _FOLDER)
    try:
        os.close(open_by_kernel(fd, "."))
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long
