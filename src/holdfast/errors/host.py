"""The machine: its disks, its files and their rights."""

from __future__ import annotations

from holdfast.errors.base import EXIT_PLACE, HostUnfit, Retryable


class DiskFull(Retryable):
    """There is no space for a file outside the journal: a snapshot, a restore, or the command's output."""

    code = "disk-full"
    exit_code = EXIT_PLACE
    default_hint = "free some space there and run the same command again; Holdfast ignores anything half written"


class DiskFailed(HostUnfit):
    """The disk or its file system failed a read or a write, for example with `Input/output error`. The message names
    the path if it is known. Incomplete files do not count."""

    code = "disk-failed"
    default_hint = (
        "the disk or its file system is failing. See the system log (`dmesg`) and save what is on the disk. "
        "Holdfast ignores anything half written; you can run the same command again elsewhere"
    )


class ReadOnly(HostUnfit):
    """This user cannot write the journal or its folder. Commands that only read need this too, because SQLite keeps
    shared memory beside the file."""

    code = "read-only"
    default_hint = (
        "give this user write permission there, or choose another folder; to look at a read-only copy, copy its "
        "folder to a disk that you can write"
    )


class ModeTooWide(HostUnfit):
    """Other users can read a private file or folder, or change a settings file. The hint is the `chmod` for that file.
    Consider who may have read it already."""

    code = "mode-too-wide"


class WrongOwner(HostUnfit):
    """The file belongs to another user."""

    code = "wrong-owner"
    default_hint = "run Holdfast as the owner of its files"


class WrongKind(HostUnfit):
    """Something else, for example a pipe, is where a file or folder of Holdfast should be."""

    code = "wrong-kind"
    default_hint = "move the wrong file away, or choose another folder"


class SymlinkRefused(HostUnfit):
    """The path is, or leads through, a symbolic link that another user could change. The folder of a vault must never
    be a link."""

    code = "symlink-refused"
    default_hint = "give the real path, without symbolic links"


class OpenParent(HostUnfit):
    """A folder above lets every user rename and replace what is in it. The hint is the `chmod` for that folder."""

    code = "open-parent"


class NetworkFileSystem(HostUnfit):
    """The journal is on a network file system, whose locks and syncs are not reliable."""

    code = "network-file-system"
    default_hint = (
        "put the journal on a local disk: network file systems cannot be trusted to lock and sync. The setting "
        "`allow_network_fs` accepts the risk"
    )


class LocksMissing(HostUnfit):
    """The file system has no locks, so the death of a worker could not be seen."""

    code = "locks-missing"
    default_hint = "put the journal on a local disk whose file system supports locks (flock)"


class BootIdMissing(HostUnfit):
    """The machine's boot id cannot be read. In a systemd unit do not set `ProcSubset=pid`."""

    code = "boot-id-missing"
    default_hint = "mount /proc: Holdfast reads the machine's boot id there"


class ShadowRefused(HostUnfit):
    """A drill runs in a shadow: processes with mounts, processes and a network of their own. This machine does not
    allow them, so the drill proves nothing; nothing was run and nothing was changed.

    Containers often forbid namespaces, and some systems forbid them to ordinary users. The drill's folder must be on a
    disk whose file system can be the upper layer of an overlay: ext4, xfs, btrfs or tmpfs."""

    code = "shadow-refused"
    default_hint = (
        "run the drill outside a container, or as root; if the message names a mount, choose another disk with "
        "--folder DIR (ext4, xfs, btrfs or tmpfs)"
    )
