"""An agent's folder."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "ada"
    folder.mkdir(mode=0o700)
    settings = folder / "holdfast.toml"
    settings.write_text('agent = "ada"\n')
    settings.chmod(0o600)
    return folder


@pytest.fixture
def today() -> Callable[[int], str]:
    def day(back: int = 0) -> str:
        now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=back)
        return f"{now:%Y-%m-%d}"

    return day
