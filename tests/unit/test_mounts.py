"""The file system of a path is read from the kernel's own list of mounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.host import private_files
from holdfast.host.private_files import find_fs_type, find_network_fs

MOUNTS = r"""
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:40 / /home rw,relatime shared:9 - nfs4 server:/home rw,vers=4.2
31 30 0:41 / /home/ada/local rw,relatime - xfs /dev/vdb rw
32 22 0:42 / /mnt/my\040files rw - fuse.sshfs ada@host: rw
33 22 0:43 / /over rw - ext4 /dev/vdc rw
34 33 0:44 / /over rw - cifs //host/share rw
garbage
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/etc/x", "ext4"),
        ("/home", "nfs4"),
        ("/home/ada", "nfs4"),
        ("/homeless", "ext4"),
        ("/home/ada/local/journal.db", "xfs"),
        ("/mnt/my files/a", "fuse.sshfs"),
        ("/over/a", "cifs"),
    ],
)
def test_the_deepest_and_newest_mount_decides(path: str, kind: str) -> None:
    assert find_fs_type(MOUNTS, path) == kind


def test_only_network_file_systems_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    listed = tmp_path / "mountinfo"
    listed.write_text(MOUNTS)
    monkeypatch.setattr(private_files, "MOUNTINFO", listed)
    assert find_network_fs(Path("/home/ada/journal.db")) == "nfs4"
    assert find_network_fs(Path("/etc")) is None


def test_without_a_list_of_mounts_nothing_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(private_files, "MOUNTINFO", tmp_path / "none")
    assert find_network_fs(tmp_path) is None


def test_this_machines_own_list_can_be_read(tmp_path: Path) -> None:
    if not private_files.MOUNTINFO.exists():
        pytest.skip("no /proc on this platform")
    assert find_fs_type(private_files.MOUNTINFO.read_text(), str(tmp_path)) is not None
