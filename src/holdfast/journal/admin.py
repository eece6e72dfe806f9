"""The journal's second port: what is done to a journal as a whole, from outside any session.

`contract.Journal` is for those who work with tasks; this port is for those who keep the journal itself: open it, look
at it without opening it, check it, copy it, move it to a new incarnation. Every journal that outlives its processes has
one (`Capabilities.administered`), with these promises, checked by the same suite as the contract:

* **Looking changes nothing.** `peek`, `incarnation`, `position`, `high_water`, `find_damage` and
  `copy` work beside running sessions and leave the journal as it was.
* **An incarnation only rises.** `raise_incarnation` and `restore` work alone: they raise JournalBusy
  while any session or other process has the journal open, and nothing is changed then. Every session of before is over
  with the commit that raises it. Where several hosts share the journal, a restored task is handed out one lease later:
  a worker that the journal does not know of may still be sending.
* **A journal keeps its salt.** What `keep_task_salt` has stored first is what `task_salt` says from then on, also in
  a copy and after a restore.
* **An older copy is never taken for the newest.** A journal that ends before its high-water mark
  cannot be opened or raised; `restore` alone makes it the journal again, and marks every open task.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.core.clock import CLOCK_TOLERANCE_MS, Clock, Entropy
from holdfast.core.ports import KeyRing
from holdfast.errors import InvariantViolated
from holdfast.journal.contract import Journal
from holdfast.journal.durability import Life

SEQUENCE_LIMIT = 1 << 40  # a fence keeps 40 bits for it
INCARNATION_LIMIT = 1 << 23
SUSPECT_MS = 400 * 86_400_000  # as long as tombstones: the longest key window a tool may state
SINCE_EVER_MS = 1  # a copy without a record: not 0, which says that nothing is lost
ALONE_WAIT_S = 20.0  # longer than the longest lease: sessions that stopped are dead by then


@dataclass(frozen=True, slots=True, order=True)
class HighWater:
    """Ordered: a higher incarnation outranks any record number of a lower one."""

    incarnation: int = 0
    sequence: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.incarnation < INCARNATION_LIMIT and 0 <= self.sequence < SEQUENCE_LIMIT):
            raise InvariantViolated("high water", f"{self.incarnation}/{self.sequence}")


class JournalPosition(msgspec.Struct, frozen=True, kw_only=True):
    """How far a journal has come."""

    journal_id: str
    incarnation: int
    sequence: int  # the number of its newest record
    tables_left: tuple[str, ...] = ()  # of a copy: tables of Transactional tools that it does not hold


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore did, or with `dry_run` would do."""

    journal_id: str
    incarnation: int
    sequence: int  # of the copy
    mark_sequence: int  # what this machine had committed
    lost_after_ms: int  # nothing before this time is lost; 1 where rows were put back
    open_tasks: int  # now suspect
    put_back: bool = False  # rows of the copy are older than the copy itself: any time may be lost


def lost_since(newest_ms: int, *, copied_ms: int, wall_ms: int) -> int:
    """The earliest time of which a copy may lack something. It has all up to its newest record, and all up to the time
    when it was made. That time is from a clock that no record has confirmed: it counts less what clocks may differ, and
    not at all where it has not come yet."""
    return max(newest_ms, copied_ms - CLOCK_TOLERANCE_MS) if copied_ms <= wall_ms else newest_ms


def lost_by_all(since_ms: int, *, before: tuple[int, int], now_ms: int) -> int:
    """The same over all restores that new tasks are suspected for. `before`: what an earlier one left, and when."""
    lost_ms, restored_ms = before
    return min(since_ms, lost_ms) if is_suspected(restored_ms, now_ms=now_ms) else since_ms


def is_suspected(restored_ms: int, *, now_ms: int) -> bool:
    """Whether a request that comes now may have been handled in what a restore at this time has lost."""
    return bool(restored_ms) and now_ms - restored_ms <= SUSPECT_MS


class SharedState(Protocol):
    """What the hosts that share a journal agree on besides its tasks: whose turn it is, and small texts. All of it
    blocks, and waits for no standby: it must work while that is gone, and losing it costs a turn at most."""

    def take_turn(self, name: str, *, holder: str, who: str, for_s: float) -> str:
        """Take or extend a turn, until so long from now by the journal's clock. Empty where `holder` has it now, else
        the name for people (`who`) of the one who does. All who take one turn take it for about as long."""
        ...

    def give_turn(self, name: str, *, holder: str) -> None: ...

    def read_text(self, name: str) -> str:
        """Empty where none was kept."""
        ...

    def change_text(self, name: str, change: Callable[[str], str], *, durable: bool = False) -> str:
        """Replace the text by what `change` makes of it, in one act: `change` is called again where another process
        was first. Returns what is kept now. `durable`: kept like a record, so it waits for the standby."""
        ...

    def drop_text(self, name: str) -> None:
        """Remove a text that no other process changes; nothing where there is none."""
        ...


class JournalAdmin(Protocol):
    """The journal at one place, whether there is one yet or not."""

    hosts: bool  # several hosts may share it, and its incarnation says who may act

    @property
    def engine(self) -> str:
        """What keeps it, with its version, for people."""
        ...

    async def open(
        self,
        *,
        keys: KeyRing,
        clock: Clock,
        entropy: Entropy,
        create: bool = True,
        allow_network_fs: bool = False,
        synchronous: str = "FULL",
    ) -> Journal:
        """Open it, or make a new one where there is none.

        Raises:
            NotAJournal, JournalNewer, JournalDamaged, JournalOlderCopy, RowsPutBack, JournalStopped, JournalGone,
            KeysWrong, ReadOnly, ModeTooWide, WrongOwner, SymlinkRefused, NetworkFileSystem.
        """
        ...

    # looking

    def exists(self) -> bool:
        """Whether there is something at its place, be it a journal or not."""
        ...

    def check_place(self, *, allow_network_fs: bool = False) -> str:
        """Refuse a place where other users or machines could change what we rely on; else what is good about it, for
        people. There need not be a journal yet."""
        ...

    def peek(self) -> str:
        """Its id, once it is known to be a journal of ours that may be written.
        Raises NotAJournal, JournalNewer, JournalDamaged, ReadOnly."""
        ...

    def check_not_lost(self) -> None:
        """Raises JournalGone where there is no journal but this machine knows of one: one that was
        lost is not the same as one that never was, because its effects have happened."""

    def used_here(self) -> dict[str, str]:
        """The id and the file's name of every journal that this machine has used in this folder."""
        ...

    def task_salt(self) -> bytes | None:
        """What its task ids are made with besides the keys: nothing (empty), or a salt. None: not decided, and nothing
        was ever submitted to it."""
        ...

    def incarnation(self) -> int:
        """0 where there is no journal."""
        ...

    def life(self) -> Life:
        """Of a journal that is there."""
        ...

    def newest_record(self) -> int:
        """The number of the last record that is committed now. Raises JournalDamaged."""
        ...

    def position(self) -> JournalPosition:
        """Of a copy that no process has open; leaves no file beside it. Raises JournalDamaged."""
        ...

    def high_water(self) -> HighWater:
        """The highest mark that this machine has seen committed. Raises HighWaterDamaged."""
        ...

    def find_older(self) -> str:
        """Why it is an older copy than what this machine has seen; empty where it is not. Raises HighWaterDamaged."""
        ...

    def find_stopped(self) -> str | None:
        """Why no new step begins since a sync failed; None where none did."""
        ...

    def has_reserve(self) -> bool | None:
        """Whether space is set aside for the results of calls under way; None where its disk is a server's matter.
        Raises JournalFull where that one has no room."""
        ...

    def find_damage(self, keys: KeyRing) -> list[str]:
        """The full check: one line per finding, none when all is well. Blocks."""
        ...

    def copy(self, to: Path) -> JournalPosition:
        """Copy it into the empty file `to`, as it was after some commit, while sessions go on.
        The copy is whole and checked. Raises JournalDamaged, JournalBusy, JournalFull."""
        ...

    def find_shared(self) -> SharedState | None:
        """What the hosts agree on; None where one host alone has the journal, or there is none yet."""
        ...

    # changing

    def keep_task_salt(self, salt: bytes) -> bytes:
        """Decide its salt, once and durably. Returns the salt that counts: another process may have been first."""
        ...

    async def use_alone(self, *, wait_s: float = 0.0) -> AbstractContextManager[object]:
        """Keep everyone else from opening it until the block is left. Raises JournalBusy."""
        ...

    async def raise_incarnation(self, *, to: int, keys: KeyRing, clock: Clock, wait_s: float = ALONE_WAIT_S) -> None:
        """Make its incarnation at least so high; no task becomes suspect. Safe to repeat.

        Raises:
            JournalOlderCopy: it is behind its mark: a restore is due, not this.
            JournalBusy: another process has it open.
        """

    async def restore(
        self, *, keys: KeyRing, clock: Clock, dry_run: bool = False, above: int = 0, copied_ms: int = 0
    ) -> Restored:
        """Take what is there as the journal from now on, under a new incarnation.
        It is higher than every one that the journal and this machine know of, and than `above`: what
        the head of a newer backup says, or an arbiter has granted. Open tasks become suspect. `copied_ms`: the copy
        was not made before this time, as its signed snapshot says.
        Raises JournalDamaged where the journal itself is damaged; JournalBusy while it is in use."""
        ...

    async def fill(
        self, copy: Path, *, keys: KeyRing, clock: Clock, ready: Callable[[], object] = lambda: None
    ) -> JournalPosition:
        """Make the journal in this file the journal here, where there is none: same id, records, seals and salt, under
        the next incarnation. The file is one that `copy` made. All is written and compared with the file, then `ready`
        is called, then it can be opened: what `ready` raises leaves this place empty.
        Raises NotNow where there is a journal; JournalDamaged, KeysWrong, JournalNewer; CommitUnknown."""
        ...

    def set_aside(self) -> str:
        """Give it a name under which no worker opens it, and return that name; after `copy`, by whoever uses it alone.
        Raises JournalBusy where it has changed since that copy: a process without a session may have submitted."""
        ...

    async def start_empty(
        self,
        *,
        keys: Callable[[], KeyRing],
        clock: Clock,
        entropy: Entropy,
        dry_run: bool = False,
        above: int = 0,
        known: Callable[[], bool] = lambda: False,
        heir: Callable[[str, list[str]], bytes] = lambda _heir, _lost: b"",
    ) -> Restored:
        """Put an empty journal where one is lost for good, as the oldest copy there can be.
        `keys` is called once it is known that one was lost; `known` says so where this machine does not. `heir` gets
        the new journal's id and the lost ones', before the new one is at its place, and returns their salt.
        Raises NotNow where something of the old one is left, NotAJournal where there never was one."""
        ...
