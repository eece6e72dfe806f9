"""Copies of live databases, by SQLite itself: whole and checked before they count."""

from __future__ import annotations

from pathlib import Path

import apsw

from holdfast.backup.archive.manifest import SnapshotJournal
from holdfast.errors import HoldfastError, SnapshotFailed
from holdfast.host.sqlite import copy_whole
from holdfast.journal.bind import journal_at


def copy_database(source: Path, copy: Path) -> None:
    """Copy a live SQLite database into the empty file `copy`, in one step, and check the copy.

    Raises SnapshotFailed: without a whole copy there is no snapshot, rather than one without it.
    """
    try:
        damage = copy_whole(source, copy)
    except apsw.Error as error:
        raise SnapshotFailed(
            f"{source} is a database that cannot be copied whole: {error}",
            hint="close or repair it, or move it out of the agent's folder",
        ) from error
    if damage:
        raise SnapshotFailed(
            f"the copy of the database {copy.name} is damaged: {damage}",
            hint="the database itself is damaged: repair it first",
        )


def sequence_of(journal: Path) -> int:
    """The last record that is committed now: the copy must have at least this one."""
    try:
        return journal_at(journal).newest_record()
    except HoldfastError as error:
        raise SnapshotFailed(f"the journal {journal} cannot be read: {error.message}") from error


def read_mark(copy: Path) -> SnapshotJournal:
    """How far a copied journal had come."""
    try:
        found = journal_at(copy).position()
    except HoldfastError as error:
        raise SnapshotFailed(error.message) from error
    return SnapshotJournal(id=found.journal_id, incarnation=found.incarnation, sequence=found.sequence)
