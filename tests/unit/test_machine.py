"""Which host this is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from holdfast.host import machine


def test_a_host_is_its_machine_and_the_folder_of_its_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    known = machine.host_id(first)
    assert machine.host_id(first) == known
    assert machine.host_id(second) != known
    copy = Path(shutil.copytree(first, tmp_path / "copy"))
    assert machine.host_id(copy) != known
    assert machine.host_id(Path(shutil.move(first, tmp_path / "moved"))) == known
    monkeypatch.setattr(machine, "machine_id", lambda: "another")
    assert machine.host_id(tmp_path / "moved") != known
