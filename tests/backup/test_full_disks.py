"""Disks of this machine that are full, read-only or limited, while files are restored or staged."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast_proofs.backup_lab.world import World

COMMAND = (sys.executable, "-P", "-m", "holdfast")


def mounting(disk: Path, options: str) -> list[str]:
    """A command before a command: a file system of its own at this folder."""
    script = 'mount -t tmpfs -o "$1" tmpfs "$2" && shift 2 && exec "$@"'
    for how in (["unshare", "-m"], ["unshare", "-r", "-m"]):
        words = [*how, "sh", "-c", script, "sh", options, str(disk)]
        if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0:
            return words
    pytest.skip("this user may not mount a file system, not even in a namespace of its own")


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ("size=64k,mode=700", "disk-full", "No space left on device"),
        ("ro,mode=700", "read-only", "Read-only file system"),
    ],
)
def test_a_disk_that_takes_nothing_is_named_and_no_older_snapshot_is_taken_for_it(
    world: World, tmp_path: Path, options: str, code: str, text: str
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir(0o700)
    done = subprocess.run(
        [
            *mounting(disk, options),
            *COMMAND,
            "recover",
            "--place",
            str(world.place(1)),
            "--place",
            str(world.place(2)),
            "--home",
            str(tmp_path / "new"),
            "--to",
            str(disk / "x"),
            "--json",
            "--words-fd",
            "0",
        ],
        input=world.words,
        capture_output=True,
        text=True,
        check=False,
    )
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert (error["code"], done.returncode) == (code, 7), done.stderr
    assert str(disk) in error["message"]
    assert text in error["message"]
    assert error["hint"]
    assert "skipped snapshot" not in done.stderr


def test_a_limit_of_the_system_is_told_with_the_path_while_a_snapshot_is_staged(world: World) -> None:
    (world.home.folder / "large.bin").write_bytes(os.urandom(3_000_000))

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))

    done = subprocess.run(
        [*COMMAND, "backup", "now", "--json", "--home", str(world.home.folder)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limited,
    )
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert (error["code"], done.returncode) == ("disk-failed", 7), done.stderr
    assert "staging" in error["message"]
    assert "File too large" in error["message"]
    assert not (world.home.instance / "backup" / "staging").exists()
