"""The backup engine, as the rest of `backup/` sees it: one small port with exact promises.

An engine keeps *archives* (one snapshot each) in *repositories* (one in each place). It compresses,
encrypts and deduplicates; Holdfast decides what goes in, what comes out and what is removed. Nothing
outside the engine's own folder names the engine: `open_engine.py` binds it, and
`holdfast.testing.backup_contract` tries every promise made here.

True of every engine:

    - An archive is in the listing whole, or not at all: a kill leaves nothing half made that counts.
    - A warning is an error. A verb that returns did all that it was asked for.
    - What a repository says about itself is not proof: whoever can write to it can shorten or rewind
      it. Callers compare with signed heads, and restore for a test.
    - Routine verbs wait for the repository's lock for a bounded time, and reject a repository that
      moved or is not the known one. Verbs with `rescue=True` ignore the lock (its holder may be a lost
      machine) and accept the repository at any address; call them on a `fresh` engine.
    - The passphrase is in no argument, environment or file of this machine.
    - A verb that is cancelled leaves no process, and a lock only where the machine itself stopped.

Any verb may raise what a place can do: PlaceMissing, PlaceUnreachable, PlaceFull, PlaceRefused,
PassphraseRefused, RepositoryKeyMissing, RepositoryLocked, RepositoryMoved, RepositoryReplaced,
RepositoryRolledBack, RepositoryDamaged, BackupInterrupted (too slow), EngineMissing, and BackupFailed
for the rest. Each verb names only what it adds.

Long work reports sentences, and how far it is. The caller passes in where reports go: a command shows
them on standard error (cli/screen/progress.py), a worker passes nothing. Reports may come from any
thread, and often: the receiver decides how often it shows something.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

from holdfast.core.waiting import running_beside
from holdfast.errors import RepositoryReplaced
from holdfast.identity.records.secret_bytes import SecretBytes

QUIET_S = 3.0  # how long a place may take to answer before a person reads which one is asked
AGAIN_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """Files and bytes that are done, of so many; 0 where the whole is not known."""

    files: int = 0
    bytes: int = 0
    files_all: int = 0
    bytes_all: int = 0


class Progress(Protocol):
    def say(self, text: str, /) -> None:
        """A sentence for a person to read now."""
        ...

    def reached(self, what: str, amount: Amount, /) -> None:
        """How far `what` is."""
        ...


class Silent:
    def say(self, text: str, /) -> None:
        pass

    def reached(self, what: str, amount: Amount, /) -> None:
        pass


SILENT: Progress = Silent()


@asynccontextmanager
async def awaited(progress: Progress, what: str) -> AsyncGenerator[None, None]:
    """While the body waits for an answer: say whose, once it takes longer than a moment."""
    async with running_beside(_report(progress, what)):
        yield


async def _report(progress: Progress, what: str) -> None:
    await asyncio.sleep(QUIET_S)
    progress.say(f"{what} ...")
    waited = QUIET_S
    while True:
        await asyncio.sleep(AGAIN_S)
        waited += AGAIN_S
        progress.say(f"{what}: no answer after {waited:.0f} s")


SHORT_S = 300.0  # for verbs that read little; longer than the wait for a lock
LONG_S = 6 * 3600.0  # for verbs that read or write everything, over a slow line

OnAmount = Callable[[Amount], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """Where a repository is and what opens it. `name` is what a person calls the place."""

    name: str
    address: str  # an absolute path, or ssh://
    passphrase: SecretBytes = field(repr=False)
    rsh: str = ""  # the command that reaches a far host; empty: ssh
    remote_program: str = ""  # the engine's name on the far host
    id: str = ""  # the id it is known by; empty where none is known

    @property
    def is_far(self) -> bool:
        return self.address.startswith("ssh://")

    def check_id(self, found: str) -> None:
        """Raises RepositoryReplaced if a known id and this one differ."""
        if self.id and found != self.id:
            error = RepositoryReplaced(
                f"{self.name}: the repository at {self.address} was replaced: its id is "
                f"{found[:16]}..., but Holdfast recorded {self.id[:16]}..."
            )
            error.found_id = found
            raise error


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    name: str
    id: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What a repository says about itself."""

    repository_id: str
    encryption: str  # in the engine's words
    archives: tuple[Archive, ...]  # oldest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    archive: str
    id: str
    repository_id: str
    files: int
    original_bytes: int
    stored_bytes: int  # that this archive added to the repository, compressed
    seconds: float


class BackupEngine(Protocol):
    """One engine with a base folder of its own: caches, and what it remembers about repositories."""

    progress: Progress  # told about verbs that take long

    @property
    def base(self) -> Path:
        """A private folder on this machine, one for each agent."""
        ...

    @property
    def label(self) -> str:
        """Name and version as snapshots record them, such as `NAME 1.4.5`."""
        ...

    @property
    def key_command(self) -> str:
        """What a person types to put a key block back without Holdfast."""
        ...

    def fresh(self, base: Path) -> BackupEngine:
        """The same engine with an empty memory: it trusts nothing that this machine saw before."""
        ...

    async def init(self, repository: Repository) -> None:
        """Make a new, encrypted, empty repository. Its parent folder must exist.
        Raises PlaceTaken if something is there already: that is left as it is."""
        ...

    async def create(
        self,
        repository: Repository,
        archive: str,
        folder: Path,
        *,
        on_progress: OnAmount | None = None,
        timeout_s: float = LONG_S,
    ) -> Created:
        """Store everything in the folder as a new archive, with paths relative to it, modes and times.
        The folder is a frozen copy. The archive may share damaged data with an older one: only a test restore shows
        that it can be read. Raises SnapshotExists, SnapshotIncomplete, BadInput (name)."""
        ...

    async def list_archives(self, repository: Repository, *, prefix: str = "", rescue: bool = False) -> Listing:
        """The archives whose names begin with `prefix`. Without `rescue` the id must be the known one."""
        ...

    def export_tar(
        self,
        repository: Repository,
        archive: str,
        *,
        paths: Sequence[str] = (),
        rescue: bool = False,
        timeout_s: float = LONG_S,
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The archive as a tar stream in the old GNU form; with `paths` only these files.
        The stream raises at its end if anything was wrong: believe nothing before you read all of it. Leaving earlier
        ends the engine's work. Data of other paths is not read, so damage there stops nothing. Raises
        SnapshotNotFound."""
        ...

    async def check(self, repository: Repository) -> None:
        """Read all data and compare it with its digests. Raises RepositoryDamaged."""
        ...

    async def delete(self, repository: Repository, archives: Sequence[str]) -> None:
        """Remove these archives from the listing; `compact` frees their space.
        An append-only place answers the same and keeps the data. Raises SnapshotNotFound."""
        ...

    async def compact(self, repository: Repository) -> None:
        """Free the space of everything that was deleted, by us or by others: for good."""
        ...

    async def export_key(self, repository: Repository) -> str:
        """The repository's key block, sealed by the passphrase: for a repository that lost its own."""
        ...

    async def import_key(self, repository: Repository, key: str) -> None:
        """Put a key block back. Raises BackupFailed if it belongs to another repository."""
        ...

    async def break_lock(self, repository: Repository) -> None:
        """Remove the lock of a holder that is known to be dead."""
        ...
