"""The machine: its disks, its files and their rights."""

from __future__ import annotations

from holdfast.errors.base import EXIT_PLACE, HostUnfit, Retryable


class DiskFull(Retryable):
    code = "disk-full"
    exit_code = EXIT_PLACE
    default_hint = "free some space there and run the same command again; nothing half made counts"


class DiskFailed(HostUnfit):
    """The disk or file system refused a read or a write that should have worked."""

    code = "disk-failed"
    default_hint = (
        "the disk or its file system is failing: see the system's log (`dmesg`), save what is on "
        "it; nothing half written counts, and the same command may be run again elsewhere"
    )


class ReadOnly(HostUnfit):
    code = "read-only"
    default_hint = "give this user the right to write there, or choose another folder"


class ModeTooWide(HostUnfit):
    code = "mode-too-wide"


class WrongOwner(HostUnfit):
    code = "wrong-owner"
    default_hint = "run Holdfast as the owner of its files"


class WrongKind(HostUnfit):
    """Something else lies where a file or folder of ours should be."""

    code = "wrong-kind"
    default_hint = "move it away, or choose another folder"


class SymlinkRefused(HostUnfit):
    code = "symlink-refused"
    default_hint = "give the real path"


class OpenParent(HostUnfit):
    """A folder above ours lets every user rename and replace what lies in it."""

    code = "open-parent"


class NetworkFileSystem(HostUnfit):
    code = "network-file-system"
    default_hint = (
        "put the journal on a local disk; locks and syncs of network file systems cannot be "
        "trusted with effects (setting `allow_network_fs`)"
    )


class LocksMissing(HostUnfit):
    code = "locks-missing"
    default_hint = "put the journal on a local disk whose file system keeps locks (flock)"


class BootIdMissing(HostUnfit):
    code = "boot-id-missing"
    default_hint = "mount /proc: leases are counted per start of the machine"
