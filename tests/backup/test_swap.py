"""A folder takes another's place at once; killed anywhere, one whole folder is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import BackupDamaged, BackupFailed
from holdfast.host.folder_swap import remove_tree, settle, swap_in
from holdfast_proofs.shim import preloaded

PROGRAM = Path(__file__).parent / "programs" / "swaps.py"


def swept(shim: Path, tmp_path: Path, *words: str) -> list[str]:
    root = tmp_path / "root"
    root.mkdir(mode=0o700)
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(root), *words],
        env=os.environ | preloaded(shim),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("way", ["exchange", "renames"])
def test_killed_at_every_call_one_whole_folder_is_left(way: str, shim: Path, tmp_path: Path) -> None:
    *wrong, kills = swept(shim, tmp_path, way)
    assert wrong == []
    assert int(kills) >= 8


def test_without_settling_two_renames_would_leave_nothing(shim: Path, tmp_path: Path) -> None:
    """That the sweep can see it."""
    *wrong, _ = swept(shim, tmp_path, "renames", "unsettled")
    assert any("nothing" in line for line in wrong)


def test_what_is_kept_is_never_written_over(tmp_path: Path) -> None:
    for name in ("ada", "fresh", "ada.before"):
        (tmp_path / name).mkdir()
    with pytest.raises(BackupFailed, match="already"):
        swap_in(tmp_path / "fresh", tmp_path / "ada", aside=tmp_path / "ada.before")


def test_a_note_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".ada.swap").write_text("{}")
    (tmp_path / ".ada.swap").chmod(0o600)
    with pytest.raises(BackupDamaged):
        settle(tmp_path / "ada")


def test_a_tree_without_rights_is_removed_whole(tmp_path: Path) -> None:
    deep = tmp_path / "tree" / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "file").write_text("x")
    for path in (deep, deep.parent):
        path.chmod(0o500)
    remove_tree(tmp_path / "tree")
    remove_tree(tmp_path / "tree")
    assert not (tmp_path / "tree").exists()
