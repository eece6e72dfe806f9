"""Reading secrets that may be mounted: judged by the file they lead to, not by the link.

A plain folder of ours must be 0700 and its files 0600. A mounted secret (a container's secret
volume, systemd's credentials) is often a link to a file of the administrator: then what counts is
where it leads: a regular file of ours or of the administrator that no one else may read or write.
Nothing is written through a link. So the folder itself is never one: through a link it could be
read and not be written, and anyone who makes the link would say which vault this agent has.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from holdfast.errors import ModeTooWide, SymlinkRefused, WrongKind, WrongOwner
from holdfast.host.private_files import explained

_OTHERS = 0o077
_GROUP_READ = 0o040
_OTHERS_WRITE = 0o022


def read_mounted(path: Path, *, bytes_max: int, group_may_read: bool = False) -> bytes:
    """The bytes of a secret file. Raises FileNotFoundError, ModeTooWide, WrongOwner, WrongKind.

    `group_may_read` is for systemd's credentials: they may be the administrator's, with an access
    list for the service's user whose mask the group bits then show.
    """
    real = os.path.realpath(path)
    try:
        fd = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise explained(error, path) from error
    try:
        _check_file(path, os.fstat(fd), group_may_read=group_may_read)
        with open(fd, "rb", closefd=False) as file:
            raw = file.read(bytes_max + 1)
    finally:
        os.close(fd)
    if len(raw) > bytes_max:
        raise WrongKind(f"{path} is larger than {bytes_max:,} bytes")
    return raw


def check_mounted_folder(path: Path) -> None:
    """Refuse a folder that others could read or fill, and a link to one.

    Raises FileNotFoundError too.
    """
    found = os.lstat(path)
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISLNK(found.st_mode):
        real = os.path.realpath(path)
        raise SymlinkRefused(
            f"{path} is a symbolic link",
            hint=f"put the folder itself there, or use its real path wherever this path is set "
            f"(options, holdfast.toml, keys.json): {real}",
        )
    if not stat.S_ISDIR(found.st_mode):
        raise WrongKind(f"{path} is not a folder")
    _check_owner(path, found)
    wrong = _OTHERS if found.st_uid == os.geteuid() else _OTHERS_WRITE
    if mode & wrong:
        raise ModeTooWide(
            f"{path} can be used by others (mode {mode:04o})", hint=f"`chmod 700 {path}`; consider who may have read it"
        )


def _check_file(path: Path, found: os.stat_result, *, group_may_read: bool) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise WrongKind(f"{path} is not a file")
    _check_owner(path, found)
    mode = stat.S_IMODE(found.st_mode)
    spared = _GROUP_READ if group_may_read and found.st_uid == 0 else 0
    if mode & _OTHERS & ~spared:
        raise ModeTooWide(
            f"{path} can be used by others (mode {mode:04o})",
            hint=f"`chmod 600 {path}` (for a mounted secret: its default mode); consider who may have read it",
        )


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid not in (os.geteuid(), 0):
        raise WrongOwner(f"{path} belongs to user {found.st_uid}, not to {os.geteuid()}")
