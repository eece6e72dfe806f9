"""The reserve on a disk that is really full: a small file system of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, os, sys
from pathlib import Path
from holdfast.errors import HoldfastError
from holdfast.host.private_files import write_atomically
from holdfast.journal.sqlite.host.page import SessionPage
from holdfast.journal.sqlite.host.page_reader import Begun, read_dead_page
from holdfast.journal.sqlite.host.disk_trouble import Reserve
folder = Path(sys.argv[1]) / "instance" / "journal"
page = SessionPage.create(folder, "s", boot_id="b", incarnation=1)
slot = page.take_slot(b"attempt1")
reserve = Reserve(folder)
found = {"taken": reserve.try_restore(), "bytes": (folder / "reserve").stat().st_size}

def fill(name):
    with open(Path(sys.argv[1]) / name, "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)): pass
        except OSError as error:
            return error.errno
def note():
    try:
        write_atomically(folder / "note", b"x" * 100_000)
        return "ok"
    except HoldfastError as error:
        return error.code

fill("big")
found["note when full"] = note()
page.mark_begun(slot)                  # the page's space is its own
found["marked"] = page.raise_mark(7)
found["again"] = reserve.try_restore() and "held"
found["released"] = reserve.release()
found["held"] = reserve.held
found["note after release"] = note()
fill("more")
found["restored while full"] = reserve.try_restore()
os.unlink(Path(sys.argv[1]) / "big")
found["restored"] = reserve.try_restore()
page.close(delete=False)
found["begun"] = read_dead_page(folder, "s", boot_id="b").slot(slot, b"attempt1") == Begun()
found["left"] = sorted(os.listdir(folder))
print(json.dumps(found))
"""


def test_running_calls_can_be_recorded_when_the_disk_is_full(tmp_path: Path) -> None:
    if not shutil.which("unshare"):
        pytest.skip("needs unshare(1)")
    mounted = 'mount -t tmpfs -o size=8m tmpfs "$1" && exec "$2" -c "$3" "$1"'
    for how in (["unshare", "-m"], ["unshare", "-r", "-m"]):
        probe = subprocess.run(
            [*how, "sh", "-c", 'mount -t tmpfs tmpfs "$1"', "sh", str(tmp_path)], capture_output=True
        )
        if probe.returncode == 0:
            break
    else:
        pytest.skip("this user may not mount a file system, not even in a namespace of its own")
    done = subprocess.run(
        [*how, "sh", "-c", mounted, "sh", str(tmp_path), sys.executable, SCRIPT], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert 900_000 < found.pop("bytes") <= 1024 * 1024
    assert found == {
        "taken": True,
        "note when full": "journal-full",
        "marked": True,
        "again": "held",
        "released": True,
        "held": False,
        "note after release": "ok",
        "restored while full": False,
        "restored": True,
        "begun": True,
        "left": ["note", "reserve", "sessions"],
    }
