"""A place that is really full: a small file system of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import asyncio, json, os, sys
from pathlib import Path
from holdfast.backup.borg import Borg, Repository
from holdfast.backup.borg_program import find_program
from holdfast.errors import HoldfastError
from holdfast.identity.hidden import Hidden

disk, base, source = map(Path, sys.argv[1:4])
borg = Borg(find_program(), base=base)
repository = Repository(name="usb", address=str(disk / "repository"), passphrase=Hidden(b"secret"))

async def tried(doing):
    try:
        await doing
        return "ok"
    except HoldfastError as error:
        return [error.code, error.message, error.hint]

async def main():
    found = {}
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(3_000_000))
    await borg.init(repository)
    (source / "large").write_bytes(os.urandom(8_000_000))
    found["create"] = await tried(borg.create(repository, "first", source))
    ballast.unlink()
    (source / "large").write_bytes(os.urandom(1_000_000))
    found["after"] = await tried(borg.create(repository, "first", source))
    found["check"] = await tried(borg.check(repository))
    print(json.dumps(found))

asyncio.run(main())
"""


def test_a_full_disk_is_named_and_some_space_mends_it(tmp_path: Path) -> None:
    if not shutil.which("unshare"):
        pytest.skip("needs unshare(1)")
    disk, base, source = (tmp_path / name for name in ("disk", "base", "source"))
    disk.mkdir()
    source.mkdir()
    mounted = 'mount -t tmpfs -o size=8m tmpfs "$1" && exec "$4" -c "$5" "$1" "$2" "$3"'
    for how in (["unshare", "-m"], ["unshare", "-r", "-m"]):
        probe = subprocess.run(
            [*how, "sh", "-c", 'mount -t tmpfs tmpfs "$1"', "sh", str(disk)], capture_output=True
        )
        if probe.returncode == 0:
            break
    else:
        pytest.skip("this user may not mount a file system, not even in a namespace of its own")
    words = [str(disk), str(base), str(source), sys.executable, SCRIPT]
    done = subprocess.run([*how, "sh", "-c", mounted, "sh", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    code, message, hint = found["create"]
    assert code == "place-full", message
    assert "free some space there first" in hint
    assert found["after"] == "ok"
    assert found["check"] == "ok"
