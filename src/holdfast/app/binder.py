"""Opening a journal by its path, with its keys, secrets and memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast.core.clock import Clock, Entropy, SystemClock, SystemEntropy
from holdfast.core.ports import KeyRing, Memory
from holdfast.errors import HoldfastError, NotAJournal
from holdfast.host.log import Log
from holdfast.host.private_files import check_place
from holdfast.identity.journal_keys.keyfile import load_or_create
from holdfast.identity.journal_keys.secret_file import SecretFile
from holdfast.journal.bind import INSTANCE, journal_at
from holdfast.journal.contract import Journal
from holdfast.layout.agent_home import find_home
from holdfast.layout.journal_location import journal_path
from holdfast.layout.moved import check_not_moved
from holdfast.runtime.secrets import NO_SECRETS, Secrets

KEYS = "keys.json"
SCRATCH = "scratch"

__all__ = [
    "INSTANCE",
    "KEYS",
    "journal_path",
    "memory_beside",
    "open_file_journal",
    "open_secrets",
    "open_secrets_alone",
    "scratch_root",
]


def open_secrets(path: Path, *, keys: KeyRing, clock: Clock, entropy: Entropy) -> Secrets:
    """The secrets of the journal at this path, for the runtime."""
    return Secrets(SecretFile(path.parent, keys=keys, clock=clock, entropy=entropy))


def open_secrets_alone(path: Path) -> Secrets:
    """The secrets of the journal at this path, without opening the journal."""
    keys_file, entropy = path.parent / KEYS, SystemEntropy()
    if not keys_file.exists():
        return NO_SECRETS  # no secret was ever set here, and none of its files is made
    keys = load_or_create(keys_file, journal_exists=os.path.lexists(path), entropy=entropy)
    return open_secrets(path, keys=keys, clock=SystemClock(), entropy=entropy)


def scratch_root(path: Path, *, folder: str, journal_id: str) -> Path:
    """Where the scratch folders of the journal at this path are; one root for each journal."""
    return (Path(folder) if folder else path.parent / SCRATCH) / journal_id


@asynccontextmanager
async def memory_beside(
    path: Path, journal: Journal, *, secrets: Secrets, log: Log | None = None
) -> AsyncGenerator[Memory | None]:
    """The memory of the agent in whose folder this journal is, kept while the block lasts.

    None if the folder is not an agent's, or cannot be one: the log says why, the work continues.
    """
    log = log or Log()
    try:
        home = find_home(path.parent)
    except HoldfastError as error:
        log.event("memory-off", code=error.code, error=error.message)
        home = None
    if home is None or path.name != home.journal.name:
        yield None
        return
    from holdfast.app.memory import open_memory  # only where there is an agent

    async with open_memory(home, journal, secrets=secrets, log=log) as memory:
        yield memory


async def open_file_journal(
    path: Path,
    *,
    create: bool = True,
    clock: Clock | None = None,
    entropy: Entropy | None = None,
    allow_network_fs: bool = False,
    synchronous: str = "FULL",
    moving: bool = False,
) -> tuple[Journal, KeyRing]:
    """The journal at this path with its keys; makes both if there are none.

    Raises MovedAway if the agent was moved to another host; `moving` is for the move itself.
    """
    instance = path.parent / INSTANCE
    if not moving:
        check_not_moved(instance)
    clock = clock or SystemClock()
    entropy = entropy or SystemEntropy()
    exists, admin = os.path.lexists(path), journal_at(path)
    if not exists and not create:
        admin.check_not_lost()
        raise NotAJournal(
            f"there is no journal at {path}", hint="`holdfast worker APP` or `holdfast submit APP REQUEST` makes one"
        )
    if not path.parent.is_dir():
        raise NotAJournal(f"the folder {path.parent} does not exist", hint="make the folder first")
    check_place(path, allow_network_fs=allow_network_fs)
    keys = load_or_create(path.parent / KEYS, journal_exists=exists, entropy=entropy)
    journal = await admin.open(
        keys=keys,
        clock=clock,
        entropy=entropy,
        create=create,
        allow_network_fs=allow_network_fs,
        synchronous=synchronous,
    )
    await asyncio.sleep(0)
    if not moving:
        try:
            check_not_moved(instance)  # again, now that a move would find it in use
        except BaseException:
            await journal.close()
            raise
    return journal, keys
