"""What the tests of mail share."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.testing.lab import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "agent")
