"""Where things lie, given the journal's path, and how to open it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from holdfast.app.journal_path import journal_path
from holdfast.app.keyfile import load_or_create
from holdfast.app.secret_file import SecretFile
from holdfast.core.clock import Clock, Entropy, SystemClock, SystemEntropy
from holdfast.core.ports import KeyRing
from holdfast.core.private_files import check_place
from holdfast.errors import NotAJournal
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.journal.sqlite.opening import check_never_here, open_journal
from holdfast.runtime.secrets import NO_SECRETS, Secrets

KEYS = "keys.json"
INSTANCE = "instance"
SCRATCH = "scratch"

__all__ = [
    "INSTANCE", "KEYS", "journal_path", "open_file_journal", "open_secrets", "open_secrets_alone",
    "scratch_root",
]  # fmt: skip


def open_secrets(path: Path, *, keys: KeyRing, clock: Clock, entropy: Entropy) -> Secrets:
    """The secrets beside the journal at this path, for the runtime."""
    return Secrets(SecretFile(path.parent, keys=keys, clock=clock, entropy=entropy))


def open_secrets_alone(path: Path) -> Secrets:
    """The secrets beside the journal at this path, where the journal itself is not opened."""
    keys_file, entropy = path.parent / KEYS, SystemEntropy()
    if not keys_file.exists():
        return NO_SECRETS  # no secret was ever set here, and none of its files is made
    keys = load_or_create(keys_file, journal_exists=os.path.lexists(path), entropy=entropy)
    return open_secrets(path, keys=keys, clock=SystemClock(), entropy=entropy)


def scratch_root(path: Path, *, folder: str, journal_id: str) -> Path:
    """Where the scratch folders of the journal at this path lie; one root for each journal."""
    return (Path(folder) if folder else path.parent / SCRATCH) / journal_id


async def open_file_journal(
    path: Path, *, create: bool = True, clock: Clock | None = None, entropy: Entropy | None = None,
    allow_network_fs: bool = False, synchronous: str = "FULL",
) -> tuple[SqliteJournal, KeyRing]:  # fmt: skip
    """The journal at this path with its keys; both are made where there is none."""
    clock = clock or SystemClock()
    entropy = entropy or SystemEntropy()
    exists = os.path.lexists(path)
    if not exists and not create:
        check_never_here(path, path.parent / INSTANCE)
        raise NotAJournal(
            f"there is no journal at {path}",
            hint="`holdfast worker APP` or `holdfast submit APP REQUEST` makes one",
        )
    if not path.parent.is_dir():
        raise NotAJournal(f"the folder {path.parent} does not exist", hint="make it first")
    check_place(path, allow_network_fs=allow_network_fs)
    keys = load_or_create(path.parent / KEYS, journal_exists=exists, entropy=entropy)
    journal = await open_journal(
        path, keys=keys, clock=clock, entropy=entropy, instance_folder=path.parent / INSTANCE,
        create=create, allow_network_fs=allow_network_fs, synchronous=synchronous,
    )  # fmt: skip
    await asyncio.sleep(0)
    return journal, keys
