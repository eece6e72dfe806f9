"""`holdfast recover --journal FILE`: an older copy of the journal becomes a proper restore."""

from __future__ import annotations

from pathlib import Path

from holdfast.app.keyfile import load_or_create
from holdfast.app.places import INSTANCE, KEYS
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.errors import NotAJournal
from holdfast.journal.sqlite.restore import Restored, restore_journal


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


def granted_to(folder: Path) -> int:
    """The highest incarnation that the arbiter of the agent in this folder has granted; 0 where
    there is none. A restore goes above it: it makes this folder the heir."""
    from holdfast.app.agent_home import peek_home

    home = peek_home(folder)
    if home is None or home.arbiter is None or not home.arbiter.is_dir():
        return 0
    from holdfast.identity.arbiter_folder import FolderArbiter
    from holdfast.identity.ed25519 import Sodium
    from holdfast.identity.own_log import find_own_log

    log = find_own_log(folder, Sodium())
    if log is None:
        return 0
    seen = FolderArbiter(home.arbiter, clock=SystemClock()).look(log.id)
    return 0 if seen is None else seen.e
