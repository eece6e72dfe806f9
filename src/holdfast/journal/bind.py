"""Which journal serves an address: the one module that knows the journals there are.

Everything else asks here for a `JournalAdmin` and never names SQLite or PostgreSQL; import-linter checks it. A further
journal is added in `journal_at`.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import cast

from holdfast.core.journal_address import JournalAddress
from holdfast.errors import BadInput
from holdfast.journal.admin import JournalAdmin
from holdfast.journal.sqlite.admin import SqliteAdmin, use_all_alone

__all__ = ["journal_at", "use_all_alone"]

_POSTGRES = "holdfast.journal.postgres"


def journal_at(address: JournalAddress, *, instance: Path | None = None) -> JournalAdmin:
    """The journal at this address; `instance` is this machine's folder where it is not the address's. Raises BadInput
    for a url whose driver is not installed."""
    instance = instance or address.instance
    if not address.url:
        return SqliteAdmin(address.path, instance)
    try:
        # By name: the driver is loaded only by those who use it.
        found = importlib.import_module(f"{_POSTGRES}.admin")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("psycopg", "psycopg_pool", "holdfast"):
            raise
        raise BadInput(
            f"this installation of Holdfast cannot use the journal {address}: the PostgreSQL driver is missing",
            hint="`pip install 'holdfast[postgres]'`, or give the path of a journal file, which needs no server",
        ) from error
    return cast("JournalAdmin", found.PostgresAdmin(address.url, instance))
