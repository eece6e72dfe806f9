"""Which journal serves a place: the one module that knows the journals there are.

Everything else asks here for a `JournalAdmin` and never names SQLite; import-linter checks it. A
further journal is added in `journal_at`.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.journal.admin import JournalAdmin
from holdfast.journal.sqlite.admin import SqliteAdmin, use_all_alone

__all__ = ["INSTANCE", "journal_at", "use_all_alone"]

INSTANCE = "instance"  # beside the journal: what happened on this machine


def journal_at(path: Path, *, instance: Path | None = None) -> JournalAdmin:
    """The journal at this path; `instance` is this machine's folder where it is not beside it."""
    return SqliteAdmin(path, instance or path.parent / INSTANCE)
