"""Ports: what the rooms above may need from one another, as promises without a body."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec


class KeyRing(Protocol):
    """Hands out the keys that do not sign. Never logged, never stored in the journal."""

    @property
    def k_effect(self) -> bytes: ...  # 32 bytes; effect keys and request-derived task ids come from it. Never rotated.

    @property
    def current_journal_key(self) -> int: ...  # the id of the key that wraps new data keys

    def journal_key(self, key_id: int) -> bytes: ...  # 32 bytes. Raises KeysWrong for an id that is not held.


class SecretStore(Protocol):
    """Keeps the secrets of tools by name, each in numbered versions, outside the journal. Several processes may use
    one. What is answered is what was read last; `refresh` looks whether another process has changed it. Values are
    never logged and never stored in the journal."""

    def refresh(self) -> bool:
        """Read again what has changed since; True where something has. Cheap where nothing has."""
        ...

    def find_current(self, name: str) -> int | None:
        """The version that a new step takes; None where there is no such secret."""
        ...

    def find_value(self, name: str, version: int) -> str | None: ...  # None where that version is not kept any more

    def known(self) -> Iterable[tuple[str, str]]:
        """Name and value of every version that is kept, for swapping them back."""
        ...


class Sealer(Protocol):
    """Seals payloads of one task; the associated data binds a payload to its place."""

    def seal(self, plain: bytes, place: bytes, nonce: bytes = b"") -> bytes: ...

    def open(self, sealed: bytes, place: bytes) -> bytes:
        """Raises JournalDamaged where the bytes or the place were changed."""
        ...


class Recalled(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the agent's memory files."""

    file: str  # MEMORY.md or memory/2026-11-15.md
    line: int  # from 1; 0: kept in the journal, and not yet written into the file
    text: str
    origin: str  # who said it; "file" where a person or another tool wrote the line
    day: str = ""  # YYYY-MM-DD where it is known
    id: str = ""  # of a line that Holdfast wrote
    score: float = 0.0


class Unread(msgspec.Struct, frozen=True, kw_only=True):
    """A file whose lines could not be looked at."""

    file: str
    why: str
    hint: str = ""


class Recollection(msgspec.Struct, frozen=True, kw_only=True):
    """What a look into the memory gave, and where it could not look."""

    lines: tuple[Recalled, ...]  # the best first
    unread: tuple[Unread, ...] = ()


class Memory(Protocol):
    """The agent's memory files, as the runtime sees them."""

    async def remember(self, *, remark_id: str, to: str, text: str, origin: str) -> None:
        """Keep a line for MEMORY.md (`to` "MEMORY") or for today's log ("day"). On return it is durable in the journal;
        the file follows. The same id again is the same line. Raises BadInput, TooLarge, JournalFull, JournalBusy."""
        ...

    async def recall(self, words: str, *, limit: int, since: str = "") -> Recollection:
        """The lines that fit these words best, the best first. `since`: a day, YYYY-MM-DD. Lines that are kept and not
        yet written are looked at too. A file that cannot be read is named: no line of it was looked at."""
        ...

    async def tell(self) -> str:
        """What an agent that starts is told of its own files, within its token budget. Empty where there is nothing to
        tell. It is quoted memory, not instructions."""
        ...
