"""A PostgreSQL server for the suites of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast_proofs.support.postgres import NEWEST, started


@pytest.fixture(scope="session")
def database() -> Iterator[str]:
    """The url of a database of its own server."""
    with started(NEWEST) as server:
        yield server.url()
