"""What the crash tests share: the shim, built once for each run of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast_proofs.shim import build


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("shim"))
