"""Which journal serves an address: the one module that knows the journals there are.

Everything else asks here for a `JournalAdmin` and never names SQLite or PostgreSQL; import-linter checks it. A further
journal is added in `journal_at`.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, cast

from holdfast.core.journal_address import JournalAddress
from holdfast.errors import BadInput
from holdfast.journal.admin import JournalAdmin
from holdfast.journal.sqlite.host.journal_names import use_all_alone

__all__ = ["Connections", "journal_at", "use_all_alone"]

_POSTGRES = "holdfast.journal.postgres"


class Connections:
    """Connections to servers that the journals of many agents in one process share. Close it after them."""

    def __init__(self) -> None:
        self.pools: Any = None  # Any: of the journal that has them; made with the first one

    async def close(self) -> None:
        if self.pools is not None:
            await self.pools.close()


def journal_at(
    address: JournalAddress, *, instance: Path | None = None, connections: Connections | None = None
) -> JournalAdmin:
    """The journal at this address; `instance` is this machine's folder where it is not the address's. With
    `connections` it is opened over those. Raises BadInput for a url whose driver is not installed."""
    instance = instance or address.instance
    if not address.url:
        from holdfast.journal.sqlite.admin import SqliteAdmin

        return SqliteAdmin(address.path, instance)
    try:
        # By name: the driver is loaded only by those who use it.
        found = importlib.import_module(f"{_POSTGRES}.admin")
        if connections is not None and connections.pools is None:
            connections.pools = importlib.import_module(f"{_POSTGRES}.pool").Pools()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("psycopg", "psycopg_pool", "holdfast"):
            raise
        raise BadInput(
            f"this installation of Holdfast cannot use the journal {address}: the PostgreSQL driver is missing",
            hint="`pip install 'holdfast[postgres]'`, or give the path of a journal file, which needs no server",
        ) from error
    pools = None if connections is None else connections.pools
    return cast("JournalAdmin", found.PostgresAdmin(address.url, instance, pools=pools))
