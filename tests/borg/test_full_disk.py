"""A place that is really full: a small file system of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import asyncio, json, os, sys
from pathlib import Path
from holdfast.backup.borg.verbs import Borg
from holdfast.backup.engine import Repository
from holdfast.backup.borg.verbs import find_program
from holdfast.errors import HoldfastError
from holdfast.identity.records.secret_bytes import SecretBytes

disk, base, source = map(Path, sys.argv[1:4])
borg = Borg(find_program(), base=base)
repository = Repository(name="usb", address=str(disk / "repository"), passphrase=SecretBytes(b"secret"))

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


def _on_a_small_disk(tmp_path: Path, script: str, *, size: str) -> Any:  # Any: JSON
    if not shutil.which("unshare"):
        pytest.skip("needs unshare(1)")
    disk, base, source = (tmp_path / name for name in ("disk", "base", "source"))
    disk.mkdir()
    source.mkdir()
    mounted = f'mount -t tmpfs -o size={size} tmpfs "$1" && exec "$4" -c "$5" "$1" "$2" "$3"'
    for how in (["unshare", "-m"], ["unshare", "-r", "-m"]):
        probe = subprocess.run([*how, "sh", "-c", 'mount -t tmpfs tmpfs "$1"', "sh", str(disk)], capture_output=True)
        if probe.returncode == 0:
            break
    else:
        pytest.skip("this user may not mount a file system, not even in a namespace of its own")
    words = [str(disk), str(base), str(source), sys.executable, script]
    done = subprocess.run([*how, "sh", "-c", mounted, "sh", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_full_disk_is_named_and_some_space_mends_it(tmp_path: Path) -> None:
    found = _on_a_small_disk(tmp_path, SCRIPT, size="8m")
    code, message, hint = found["create"]
    assert code == "place-full", message
    assert "free some space there first" in hint
    assert found["after"] == "ok"
    assert found["check"] == "ok"


SMALL = """
import asyncio, json, os, subprocess, sys
from pathlib import Path
from holdfast.backup.borg.verbs import SEGMENT_BYTES, Borg
from holdfast.backup.engine import Repository
from holdfast.backup.borg.verbs import find_program
from holdfast.errors import HoldfastError
from holdfast.identity.records.secret_bytes import SecretBytes

disk, base, source = map(Path, sys.argv[1:4])
borg = Borg(find_program(), base=base)
repository = Repository(name="usb", address=str(disk / "repository"), passphrase=SecretBytes(b"secret"))
config = disk / "repository" / "config"

async def main():
    await borg.init(repository)
    made = f"max_segment_size = {SEGMENT_BYTES}"
    found = {"new": made in config.read_text()}
    config.write_text(config.read_text().replace(made, "max_segment_size = 524288000"))
    results = []
    for number in range(6):
        (source / "note").write_bytes(os.urandom(20_000))
        try:
            await borg.create(repository, f"ada-{number}", source)
            results.append("ok")
        except HoldfastError as error:
            results.append(error.message)
    found["results"] = results
    found["mended"] = made in config.read_text()
    print(json.dumps(found))

asyncio.run(main())
"""


def test_a_small_disk_is_not_called_full_because_segments_are_large(tmp_path: Path) -> None:
    """A repository that was made before has segments of half a gigabyte: it is given small ones."""
    found = _on_a_small_disk(tmp_path, SMALL, size="64m")
    assert found == {"new": True, "results": ["ok"] * 6, "mended": True}


WORLD = """
import asyncio, json, os, sys
from pathlib import Path
from holdfast.backup.places.backup_places import PlaceRequest
from holdfast.backup.places import place_state
from holdfast_proofs.backup_lab.world import make_world

disk, base, source = map(Path, sys.argv[1:4])

async def main():
    world = await make_world(base / "world", places=0)
    backups = await world.backups()
    places = backups.places
    place = await places.add(PlaceRequest(name="usb", address=str(disk)))
    for _ in range(4):
        assert (await backups.now(check=False)).good
    stat = os.statvfs(disk)
    (disk / "ballast").write_bytes(bytes(stat.f_bavail * stat.f_frsize - 43_000_000))
    (world.home.folder / "large").write_bytes(os.urandom(6_000_000))
    repository = places.repository(place)
    listing = await places.engine.list_archives(repository)
    stolen = listing.archives[0].name
    await places.engine.delete(repository, [stolen])
    found = [[one.error, one.made] for one in (await backups.now(check=False)).places]
    missing = list(places.states.of("usb").missing)
    places.states.change("usb", lambda state: place_state.removed(state, missing))
    found += [[one.error, one.made] for one in (await backups.now(check=False)).places]
    print(json.dumps({"found": found, "missing": missing == [stolen]}))

asyncio.run(main())
"""


def test_a_full_place_is_compacted_and_tried_again_unless_something_is_missing(tmp_path: Path) -> None:
    """Room for a segment is asked for and not there; compacting would bury what was removed."""
    found = _on_a_small_disk(tmp_path, WORLD, size="64m")
    assert found == {"found": [["place-full", False], ["", True]], "missing": True}
