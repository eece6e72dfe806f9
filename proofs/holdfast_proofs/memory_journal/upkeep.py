"""What a handle on the memory journal does apart from tasks: blobs, remarks, notices, retention, time."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager

from holdfast.core.clock import Clock
from holdfast.core.ids import TaskId
from holdfast.core.notices import Notice
from holdfast.errors import BlobNotFound, HoldfastError, JournalDamaged
from holdfast.journal import rules
from holdfast.journal.contract import KeptRemark, Remark, RemarkMark
from holdfast.journal.durability import Durability, Kept
from holdfast.journal.steady import Moment, SteadyTime
from holdfast_proofs.memory_journal.contents import BlobCell, MemoryContents


class MemoryUpkeep:
    """The part of `MemoryJournal` that holds no task."""

    def __init__(self, store: MemoryContents, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._time = SteadyTime(clock)

    def _changed(self) -> None:
        self._store.changed()

    # blobs

    async def put_blob(self, content: bytes, *, task_id: TaskId | None = None) -> str:
        digest = hashlib.sha256(content).hexdigest()
        cell = self._store.blobs.setdefault(digest, BlobCell(bytes(content), set(), pinned=False))
        if task_id is None:
            cell.pinned = True
        else:
            self._store.get_task(task_id)
            cell.tasks.add(task_id)
        return digest

    async def put_blobs(self, contents: Sequence[bytes], *, task_id: TaskId) -> list[str]:
        self._store.get_task(task_id)
        for content in contents:
            rules.check_blob(len(content))
        return [await self.put_blob(content, task_id=task_id) for content in contents]

    async def get_blob(self, digest: str) -> bytes:
        cell = self._store.blobs.get(digest)
        if cell is None:
            raise BlobNotFound(f"no blob {digest} in this journal")
        if hashlib.sha256(cell.content).hexdigest() != digest:
            raise JournalDamaged(f"blob {digest} does not fit its digest")
        return cell.content

    # remarks

    async def add_remarks(self, remarks: Sequence[Remark], /) -> list[int]:
        for remark in remarks:
            rules.check_remark(remark)
        numbers = [self._store.add_remark(remark, now_ms=self.now_ms()) for remark in remarks]
        self._changed()
        return numbers

    async def remarks_after(self, number: int, *, limit: int) -> list[KeptRemark]:
        return [kept for kept in self._store.read_remarks() if kept.number > number][:limit]

    async def find_remark_link(self, number: int) -> bytes | None:
        found = [kept.link for kept in self._store.read_remarks() if kept.number == number]
        return found[0] if found else None

    async def remark_marks(self) -> list[RemarkMark]:
        return sorted(self._store.remark_marks.values(), key=lambda one: (one.number, one.folder))

    async def close_remarks(self, number: int, *, folder: str, name: str = "") -> None:
        marks = self._store.remark_marks
        number = min(number, self._store.remarks[-1].number if self._store.remarks else 0)
        if number > (marks[folder].number if folder in marks else 0):
            marks[folder] = RemarkMark(folder=folder, name=name, number=number, at_ms=self.now_ms())

    async def forget_folder(self, folder: str) -> bool:
        return self._store.remark_marks.pop(folder, None) is not None

    # upkeep

    def notice_turn(self) -> AbstractAsyncContextManager[bool]:
        return self._store.notice_turn()

    async def pending_notices(self, *, limit: int) -> list[Notice]:
        waiting = [notice for notice, told in self._store.notices.values() if not told]
        return waiting[:limit]

    async def close_notice(self, notice_id: str) -> None:
        found = self._store.notices.get(notice_id)
        if found is not None:
            self._store.notices[notice_id] = (found[0], True)

    async def add_notice(self, notice: Notice) -> None:
        self._store.add_notice(notice, now_ms=self.now_ms())

    async def retain(self, *, keep_ms: int, tombstone_ms: int) -> int:
        now_ms, erased = self.now_ms(), 0
        for task in list(self._store.tasks.values()):
            if task.erased_ms is not None:
                if rules.tombstone_over(
                    erased_ms=task.erased_ms, keep_until_ms=task.keep_until_ms, tombstone_ms=tombstone_ms, now_ms=now_ms
                ):
                    del self._store.tasks[task.task_id]
            elif rules.erasable(
                state=task.state,
                ended_ms=task.changed_ms,
                keep_until_ms=task.keep_until_ms,
                keep_ms=keep_ms,
                now_ms=now_ms,
            ):
                self._store.erase(task, now_ms=now_ms)
                erased += 1
        self._store.erase_remarks(before_ms=now_ms - keep_ms)
        return erased

    async def check(self) -> AsyncIterator[str]:
        for task in list(self._store.tasks.values()):
            if task.erased_ms is not None:
                continue
            try:
                view = self._store.view(task)
            except HoldfastError as error:
                yield error.message
                continue
            if view.epoch != task.epoch:
                yield f"task {task.task_id}: epoch {task.epoch} is not its chain's, {view.epoch}"
        try:
            self._store.read_remarks()
        except HoldfastError as error:
            yield error.message

    async def check_total(self) -> None:
        """Nothing but the journal itself can reach what it keeps."""

    async def find_durability(self, *, provider: bool = False) -> Durability:
        return Durability(kept=Kept.ONE_DISK, text="nothing is kept")

    def now_ms(self) -> int:
        if self._store.server is not None:
            return max(self._store.server.wall_ms(), self._store.newest_ms)
        return self._time.now_ms(Moment(self._store.newest_ms, self._store.newest_boot_ms))

    @property
    def clock_behind_ms(self) -> int:
        return max(0, self._store.newest_ms - (self._store.server or self._clock).wall_ms())

    @property
    def clock_ahead_ms(self) -> int:
        return 0 if self._store.server is None else self._clock.wall_ms() - self._store.server.wall_ms()
