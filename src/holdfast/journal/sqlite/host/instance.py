"""What this machine knows of its journal beside the file itself: `instance/<journal id>/`.

Pages of sessions (locks, marks, send-begun slots), the high-water mark, the reserve, the stop
sign. None of it is ever copied or backed up: it says what happened *here*.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from holdfast.core.clock import Clock, Entropy
from holdfast.errors import HoldfastError
from holdfast.journal.sqlite.host.disk_trouble import Reserve, mark_stopped
from holdfast.journal.sqlite.host.high_water import HighWater, fold_marks, note
from holdfast.journal.sqlite.host.page import SessionPage
from holdfast.journal.sqlite.host.page_reader import DeadPage, NotBegun, Unreadable, is_alive, read_dead_page
from holdfast.journal.sqlite.host.use_lock import JournalUse, turn


class Instance:
    """This process's view of the instance folder of one journal."""

    def __init__(self, folder: Path, *, clock: Clock, entropy: Entropy, incarnation: int, use: JournalUse) -> None:
        self.folder = folder
        self.reserve = Reserve(folder)
        self.clock = clock
        self.entropy = entropy
        self.incarnation = incarnation
        self._use = use
        self._page: SessionPage | None = None
        self._dead_pages: dict[str, DeadPage | Unreadable] = {}

    def open_page(self, session_id: str) -> SessionPage:
        page = SessionPage.create(self.folder, session_id, boot_id=self.clock.boot_id, incarnation=self.incarnation)
        before, self._page = self._page, page
        if before is not None:
            page.raise_mark(before.mark)
            self.close_page(before)
        return page

    def close_page(self, page: SessionPage, *, delete: bool = True) -> None:
        page.close(delete=delete, at_ms=self.clock.wall_ms())
        if self._page is page:
            self._page = None

    def raise_mark(self, sequence: int) -> None:
        """After a commit: also a process without a session remembers how far the journal is. Where it can make no page,
        the commit is valid all the same, and the next one tries again."""
        if self._page is None:
            with suppress(OSError, HoldfastError):
                self.open_page(self.entropy.bytes(8).hex())
        if self._page is not None:
            self._page.raise_mark(sequence)

    def note_stamp(self, stamp: int) -> None:
        """After a complete wal_checkpoint: the file alone holds this stamp."""
        note(self.folder, HighWater(self.incarnation, stamp))

    def is_alive(self, session_id: str) -> bool:
        return is_alive(self.folder, session_id)

    def send_begun(self, session_id: str, slot: int, tag: bytes) -> bool:
        page = self._dead_page(session_id)
        return isinstance(page, Unreadable) or not isinstance(page.slot(slot, tag), NotBegun)

    def is_left(self, session_id: str, slot: int, tag: bytes, *, in_child: bool) -> bool:
        if in_child and self.is_alive(session_id):
            return True
        page = self._dead_page(session_id)
        return isinstance(page, DeadPage) and page.is_left(slot, tag)

    def _dead_page(self, session_id: str) -> DeadPage | Unreadable:
        page = self._dead_pages.get(session_id)
        if page is None:
            page = read_dead_page(self.folder, session_id, boot_id=self.clock.boot_id)
            if isinstance(page, DeadPage):
                self._dead_pages[session_id] = page
        return page

    def fold_marks(self, keep: set[str]) -> None:
        for gone in fold_marks(self.folder, keep, at_ms=self.clock.wall_ms()):
            self._dead_pages.pop(gone, None)

    @asynccontextmanager
    async def notice_turn(self) -> AsyncGenerator[bool]:
        with turn(self.folder / "notices.lock") as mine:
            yield mine

    def stop(self, reason: str) -> None:
        session_id = "" if self._page is None else self._page.session_id
        if self._page is not None:
            self._page.mark_stopped()
        mark_stopped(self.folder, reason=reason, session_id=session_id, at_ms=self.clock.wall_ms())

    def let_go(self) -> None:
        """Leave the file to others; the page stays, as long as calls of this process may be under way."""
        self._use.close()

    def close(self) -> None:
        if self._page is not None:
            self.close_page(self._page)
        self._use.close()
