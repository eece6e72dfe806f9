"""`holdfast recover --journal FILE`: an older copy of the journal becomes a proper restore.

Where no copy is left, an empty journal takes its place (`begin_anew`). It is the oldest copy there
can be: its incarnation is above all that this machine and its arbiter know, and requests that are
submitted again under their old ids count as lost ones, looked up or parked before anything is sent.
"""

from __future__ import annotations

import contextlib
import os
from functools import cache, partial
from pathlib import Path

from holdfast.app.binder import KEYS
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.journal_address import JournalAddress
from holdfast.core.served import ServingRing, find_heir, salt_of, with_heir
from holdfast.errors import HoldfastError, NotAJournal
from holdfast.identity.journal_keys.keyfile import load_or_create
from holdfast.journal.admin import Restored
from holdfast.journal.bind import journal_at
from holdfast.layout.moved import check_not_moved


async def recover_journal(address: JournalAddress, *, dry_run: bool = False) -> Restored:
    """Take what is at this address as the journal, under a new incarnation.
    Open tasks become suspect: what they may have done after the copy was made is looked up or parked before anything is
    sent again."""
    admin = journal_at(address)
    if not admin.exists():
        raise NotAJournal(f"there is no journal at {address}")
    keys = load_or_create(address.folder / KEYS, journal_exists=True, entropy=SystemEntropy())
    done = await admin.restore(keys=keys, clock=SystemClock(), dry_run=dry_run, above=granted_to(address.folder))
    if not dry_run and find_heir(keys.journals, done.journal_id) is not None:  # it was given up, and came back
        keys.change_journals(partial(with_heir, heir=done.journal_id, lost=[done.journal_id], name=address.name))
    return done


async def begin_anew(address: JournalAddress, *, dry_run: bool = False) -> Restored:
    """Put an empty journal where one is lost for good.
    Raises NotNow where a file is left, NotAJournal where there never was one, KeysMissing without the keys: lookups
    would ask with others, and find nothing that was done."""

    @cache
    def keys() -> ServingRing:
        check_not_moved(address.instance)
        return load_or_create(address.folder / KEYS, journal_exists=True, entropy=SystemEntropy())

    def known() -> bool:
        return os.path.lexists(address.folder / KEYS) and any(one.name == address.name for one in keys().journals)

    def heir(journal_id: str, lost: list[str]) -> bytes:
        decide = partial(with_heir, heir=journal_id, lost=lost, name=address.name)
        salt = salt_of(decide(keys().journals), journal_id)
        with contextlib.suppress(*(() if salt else (HoldfastError, OSError))):  # without a salt the ids are the same
            keys().change_journals(decide)
        return salt

    return await journal_at(address).start_empty(
        keys=keys,
        clock=SystemClock(),
        entropy=SystemEntropy(),
        dry_run=dry_run,
        above=granted_to(address.folder),
        known=known,
        heir=heir,
    )


def granted_to(folder: Path) -> int:
    """The highest incarnation that the arbiter of the agent in this folder has granted; 0 where
    there is none. A restore goes above it: it makes this folder the heir."""
    from holdfast.layout.agent_home import peek_home

    home = peek_home(folder)
    if home is None or home.arbiter is None or not home.arbiter.is_dir():
        return 0
    from holdfast.identity.files.own_log import find_own_log
    from holdfast.identity.lease.arbiter import FolderArbiter
    from holdfast.identity.records.ed25519 import Sodium

    log = find_own_log(folder, Sodium())
    if log is None:
        return 0
    seen = FolderArbiter(home.arbiter, clock=SystemClock()).look(log.id)
    return 0 if seen is None else seen.e
