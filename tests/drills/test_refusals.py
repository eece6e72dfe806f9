"""What is in the way of a drill is one clear line; the drill proves nothing, and nothing is harmed.

No place, no PostgreSQL and wrong words are in test_drills.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.drills.production import Marks, mark_all
from holdfast.errors import EXIT_UNRESOLVED
from holdfast.surfaces.report import read_reports
from holdfast_proofs.drills import Example, make_example

READ = ("-wal", "-shm", "/stamp.json", "/drills.json")
HOLDFAST = f"{sys.executable} -P -m holdfast"


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    root = tmp_path_factory.mktemp("refusals") / "root"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(root))
        patch.delenv("HOLDFAST_HOME", raising=False)
        yield make_example(root, places=1)


def marks(example: Example) -> Marks:
    """A reader of the journal makes the first of these again, a report changes the last; no other file may differ."""
    return {path: one for path, one in mark_all(example.home).items() if not path.endswith(READ)}


def drill(example: Example, slug: str, before: str = "true", *more: str) -> tuple[int, str]:
    """`holdfast drill run`, in mounts of its own where a script has changed something before."""
    own = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    folder = example.root / "drill"
    words = (
        f"{before} && exec {HOLDFAST} drill run {slug} --home {example.home.folder} --folder {folder} {' '.join(more)}"
    )
    done = subprocess.run([*own, "sh", "-c", words], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def check(example: Example, code: int, said: str, text: str, before: Marks) -> None:
    assert text in said, said
    assert code == EXIT_UNRESOLVED, (code, said)
    assert "Traceback" not in said
    errors = [line for line in said.splitlines() if line.startswith("error: ") or ": not proven: " in line]
    assert len(errors) == 1, said
    assert marks(example) == before
    assert str(example.root / "drill") not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.parametrize("size", ["96k", "1500k"])
def test_a_full_disk_under_the_shadow(example: Example, size: str) -> None:
    """At once, and in the middle of the drill."""
    before, count = marks(example), len(read_reports(example.home))
    folder = example.root / "drill"
    mount = f"mkdir -m 700 -p {folder} && mount -t tmpfs -o size={size},mode=700 tmpfs {folder}"
    code, said = drill(example, "hand-off", mount)
    check(example, code, said, "no space left for the shadow", before)
    new = read_reports(example.home)[count:]
    assert [one.verdict for one in new] in ([], ["not proven"])


def test_a_full_disk_under_the_reports(example: Example) -> None:
    before, count = marks(example), len(read_reports(example.home))
    reports = example.home.folder / "drills"
    mount = f"mkdir -m 700 -p {reports} && mount -t tmpfs -o size=8k,mode=700 tmpfs {reports}"
    code, said = drill(example, "test-restore", mount)
    check(example, code, said, "No space left on device", before)
    assert len(read_reports(example.home)) == count


def test_a_folder_of_reports_that_cannot_be_written(example: Example) -> None:
    before, count = marks(example), len(read_reports(example.home))
    reports = example.home.folder / "drills"
    mount = f"mkdir -m 700 -p {reports} && mount -t tmpfs -o ro,mode=700 tmpfs {reports}"
    code, said = drill(example, "test-restore", mount)
    check(example, code, said, "Read-only file system", before)
    assert len(read_reports(example.home)) == count
    assert "baseline taken" not in said  # it is known before anything runs


def test_a_vault_that_no_one_opens(example: Example) -> None:
    """The agent is locked: its key files are away, and no person is there to type a passphrase."""
    before = marks(example)
    hidden = f"mount --bind /dev/null {example.root / 'unlock'}"
    code, said = drill(example, "process-kill", hidden)
    check(example, code, said, "not be signed", before)


def test_a_place_that_is_away(example: Example) -> None:
    before = marks(example)
    code, said = drill(example, "test-restore", f"mount -t tmpfs tmpfs {example.root / 'place-1'}")
    check(example, code, said, "not proven", before)
