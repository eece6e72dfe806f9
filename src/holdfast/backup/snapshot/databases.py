"""Databases and the journal in a snapshot: copied whole, each by its own engine, and checked."""

from __future__ import annotations

from pathlib import Path

import apsw

from holdfast.backup.archive.manifest import SnapshotJournal
from holdfast.core.journal_address import JournalAddress, file_at
from holdfast.errors import HoldfastError, SnapshotFailed
from holdfast.host.sqlite import copy_whole
from holdfast.journal.bind import journal_at


def copy_database(source: Path, copy: Path) -> None:
    """Copy a live SQLite database into the empty file `copy`, in one step, and check the copy.
    Raises SnapshotFailed: without a whole copy there is no snapshot, rather than one without it."""
    try:
        damage = copy_whole(source, copy)
    except apsw.Error as error:
        raise SnapshotFailed(
            f"Holdfast cannot copy the database {source}: {error}",
            hint="close or repair the database, or move it out of the agent's folder",
        ) from error
    if damage:
        raise SnapshotFailed(
            f"the database {source} is damaged: {damage}",
            hint="repair the database, or move it out of the agent's folder",
        )


def sequence_of(journal: JournalAddress) -> int:
    """The last record that is committed now: the copy must have at least this one."""
    try:
        return journal_at(journal).newest_record()
    except HoldfastError as error:
        raise SnapshotFailed(f"Holdfast cannot read the journal {journal}: {error.message}") from error


def copy_journal(journal: JournalAddress, copy: Path) -> tuple[str, ...]:
    """Copy the journal into the empty file `copy`, as it was after some commit, and check the copy. Returns the tables
    of Transactional tools that it does not hold."""
    try:
        return journal_at(journal).copy(copy).tables_left
    except HoldfastError as error:
        raise SnapshotFailed(f"Holdfast cannot copy the journal {journal}: {error.message}") from error


def read_mark(copy: Path) -> SnapshotJournal:
    """How far a copied journal had come."""
    try:
        found = journal_at(file_at(copy)).position()
    except HoldfastError as error:
        raise SnapshotFailed(error.message) from error
    return SnapshotJournal(id=found.journal_id, incarnation=found.incarnation, sequence=found.sequence)
