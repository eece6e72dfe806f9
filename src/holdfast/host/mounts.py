"""Which file system a path lies on, and whether its locks and syncs can be trusted.

Read from /proc/self/mountinfo. macOS has no such file: there every file system is taken for a
local one, which the platform table says.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

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
    try:
        text = MOUNTINFO.read_text("utf-8", "surrogateescape")
    except OSError:
        return None
    kind = find_fs_type(text, os.path.realpath(path))
    return kind if kind in NETWORK else None


def is_in_memory(path: Path) -> bool:
    """Whether the path lies in memory, gone with the power; swap is another matter."""
    try:
        text = MOUNTINFO.read_text("utf-8", "surrogateescape")
    except OSError:
        return False
    return find_fs_type(text, os.path.realpath(path)) in ("tmpfs", "ramfs")


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
