"""A small agent's folder."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    folder = tmp_path / "ada"
    folder.mkdir(mode=0o700)
    (folder / "MEMORY.md").write_text("# Memory\n- the flight is on Tuesday\n")
    (folder / "MEMORY.md").chmod(0o600)
    (folder / "memory").mkdir(mode=0o700)
    (folder / "memory" / "2026-11-15.md").write_text("an entry\n")
    (folder / "empty").mkdir(mode=0o750)
    tool = folder / "tool.sh"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    return folder
