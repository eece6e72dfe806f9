"""Two hosts, with an arbiter and without one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from hosts import Host


def two(tmp_path: Path, arbiter: Path | None) -> tuple[Host, Host]:
    tmp_path.chmod(0o700)
    hosts = Host(tmp_path / "a", arbiter), Host(tmp_path / "b", arbiter)
    for host in hosts:
        host.root.mkdir(mode=0o700)
    hosts[0].make()
    hosts[1].bring_vault(hosts[0])
    return hosts


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Host, Host]]:
    hosts = two(tmp_path, tmp_path / "arbiter")
    yield hosts
    for host in hosts:
        host.stop()


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[tuple[Host, Host]]:
    """Without an arbiter."""
    hosts = two(tmp_path, None)
    yield hosts
    for host in hosts:
        host.stop()
