"""`holdfast recover --journal FILE`: an older copy of the journal becomes a proper restore.

Where no copy is left, an empty journal takes its place (`begin_anew`). It is the oldest copy there
can be: its incarnation is above all that this machine and its arbiter know, and requests that are
submitted again under their old ids count as lost ones, looked up or parked before anything is sent.
It is made under another name and gets its own as the last act but one, so a kill anywhere leaves
no journal, which still counts as gone, or the restored one; then the old one is forgotten.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from holdfast.app.binder import INSTANCE, KEYS, open_file_journal
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.errors import InvariantViolated, NotAJournal, NotNow
from holdfast.host.private_files import sync_folder
from holdfast.identity.journal_keys.keyfile import load_or_create
from holdfast.journal.sqlite.host.high_water import high_water
from holdfast.journal.sqlite.opening.open import forget_name, lost_journals, remember_name
from holdfast.journal.sqlite.opening.restore import Restored, restore_journal
from holdfast.layout.moved import check_not_moved

LEFT = ("-wal", "-journal")  # of SQLite: they may hold what the file did not yet


async def recover_journal(path: Path, *, dry_run: bool = False) -> Restored:
    """Take the file at this path as the journal, under a new incarnation.

    Open tasks become suspect: what they may have done after the copy was made is looked up or
    parked before anything is sent again.
    """
    if not path.is_file():
        raise NotAJournal(f"there is no journal at {path}")
    keys = load_or_create(path.parent / KEYS, journal_exists=True, entropy=SystemEntropy())
    return await restore_journal(
        path,
        keys=keys,
        clock=SystemClock(),
        instance_folder=path.parent / INSTANCE,
        dry_run=dry_run,
        above=granted_to(path.parent),
    )


async def begin_anew(path: Path, *, dry_run: bool = False) -> Restored:
    """Put an empty journal where one is gone for good.

    Raises NotNow where a file is left, NotAJournal where there never was one, KeysMissing without
    the keys: lookups would ask with others, and find nothing that was done.
    """
    for name in (path, *(path.with_name(path.name + end) for end in LEFT)):
        if os.path.lexists(name):
            raise NotNow(
                f"{name} is there",
                hint="`holdfast recover --journal FILE` takes it over; put aside what nothing can be made of",
            )
    instance = path.parent / INSTANCE
    check_not_moved(instance)
    lost = lost_journals(path, instance)
    seen = [high_water(folder) for folder in lost]
    above = max([granted_to(path.parent), *(mark.incarnation for mark in seen)])
    if not lost and not above:
        raise NotAJournal(
            f"there never was a journal at {path}",
            hint="`holdfast worker APP` or `holdfast submit APP REQUEST` makes one",
        )
    load_or_create(path.parent / KEYS, journal_exists=True, entropy=SystemEntropy())
    sequence = max((mark.sequence for mark in seen), default=0)
    if dry_run:
        return Restored(
            journal_id="", incarnation=above + 1, sequence=0, mark_sequence=sequence, lost_after_ms=0, open_tasks=0
        )
    done = await _made_aside(path, above=above)
    for folder in lost:
        forget_name(folder)
    return msgspec.structs.replace(done, mark_sequence=sequence)


async def _made_aside(path: Path, *, above: int) -> Restored:
    """The empty journal gets its name when it is a restore already; until then the old one counts
    as gone, and nobody else makes another."""
    aside, instance = path.with_name(f".{path.name}.anew"), path.parent / INSTANCE
    for end in ("", "-shm", *LEFT):
        aside.with_name(aside.name + end).unlink(missing_ok=True)
    for folder in lost_journals(aside, instance):
        forget_name(folder)
    journal, keys = await open_file_journal(aside)
    await journal.close()
    done = await restore_journal(aside, keys=keys, clock=SystemClock(), instance_folder=instance, above=above)
    for end in LEFT:
        if os.path.lexists(aside.with_name(aside.name + end)):
            raise InvariantViolated("I1", f"{aside} is not all of the new journal")
    os.rename(aside, path)
    sync_folder(path.parent)
    remember_name(instance / done.journal_id, path)
    return done


def granted_to(folder: Path) -> int:
    """The highest incarnation that the arbiter of the agent in this folder has granted; 0 where
    there is none. A restore goes above it: it makes this folder the heir."""
    from holdfast.layout.agent_home import peek_home

    home = peek_home(folder)
    if home is None or home.arbiter is None or not home.arbiter.is_dir():
        return 0
    from holdfast.identity.files.own_log import find_own_log
    from holdfast.identity.lease.arbiter_folder import FolderArbiter
    from holdfast.identity.records.ed25519 import Sodium

    log = find_own_log(folder, Sodium())
    if log is None:
        return 0
    seen = FolderArbiter(home.arbiter, clock=SystemClock()).look(log.id)
    return 0 if seen is None else seen.e
