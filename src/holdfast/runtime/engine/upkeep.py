"""What an engine does beside its tasks: tells notices, removes what is old, checks the journal after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.core.notices import Notice, Notices, clock_behind_notice, journal_damaged_notice, stuck_notice
from holdfast.errors import HoldfastError
from holdfast.host.log import Log
from holdfast.journal.contract import Journal
from holdfast.layout.engine_settings import Settings
from holdfast.runtime.scratch.folders import ScratchFolders, sweep
from holdfast.runtime.secrets import Secrets

NOTICES_AT_ONCE = 20
NOTICE_EVERY_S = 1.0
NOTICE_S_MAX = 300.0  # between two tries while a hook fails
TIDY_EVERY_S = 3_600.0
CLOCK_BEHIND_MS = 60_000
DAY_MS = 86_400_000


class Upkeep:
    """Serves one engine. `tell_notices` and `tidy` run for as long as it serves."""

    def __init__(
        self,
        *,
        journal: Journal,
        settings: Settings,
        log: Log,
        notices: Notices | None,
        secrets: Secrets,
        folders: ScratchFolders | None,
        on_trouble: Callable[[HoldfastError], None],
    ) -> None:
        self._journal = journal
        self._settings = settings
        self._log = log
        self._notices = notices
        self._secrets = secrets
        self._folders = folders
        self._on_trouble = on_trouble
        self._adding: set[asyncio.Task[None]] = set()

    async def tell_notices(self) -> None:
        """Deliver notices; one that cannot be delivered is tried again, the others are not held up."""
        if self._notices is None:
            return
        delay_s = NOTICE_EVERY_S
        while True:
            told = failed = 0
            with self._journal.notice_turn() as mine:
                pending = await self._journal.pending_notices(limit=NOTICES_AT_ONCE) if mine else []
                for notice in pending:
                    if await self._tell_one(self._notices, notice):
                        told += 1
                    else:
                        failed += 1
            delay_s = min(delay_s * 2, NOTICE_S_MAX) if failed and not told else NOTICE_EVERY_S
            await asyncio.sleep(delay_s * self._settings.pace)

    async def _tell_one(self, notices: Notices, notice: Notice) -> bool:
        try:
            await notices.tell(self._secrets.notice(notice))
        except Exception as error:  # noqa: BLE001 - the hook is the user's: any failure is retried
            self._log.event("notice-failed", notice=notice.notice_id, error=str(error)[:300])
            return False
        await self._journal.close_notice(notice.notice_id)
        return True

    async def tidy(self) -> None:
        await self._check_after_crash()
        await self._warn_of_clock()
        settings = self._settings
        while True:
            await self._journal.retain(
                keep_ms=int(settings.keep_days * DAY_MS), tombstone_ms=int(settings.tombstone_days * DAY_MS)
            )
            if self._folders is not None:
                await sweep(self._folders, self._journal)
            await asyncio.sleep(TIDY_EVERY_S)

    async def _check_after_crash(self) -> None:
        if not self._settings.check_after_crash or not getattr(self._journal, "unclean", False):
            return
        findings = [finding async for finding in self._journal.check()]
        self._log.event("checked", findings=len(findings))
        if findings:
            now_ms = self._journal.now_ms()
            damaged = journal_damaged_notice(self._journal.journal_id, str(findings[0]), now_ms=now_ms)
            await self._journal.add_notice(damaged)

    async def _warn_of_clock(self) -> None:
        behind = self._journal.clock_behind_ms
        if behind >= CLOCK_BEHIND_MS:
            self._log.event("clock-behind", behind_ms=behind)
            await self._journal.add_notice(clock_behind_notice(behind / 1000, now_ms=self._journal.now_ms()))

    def tell_stuck(self, where: str) -> None:
        """A tool runs on after its timeout and will not be cancelled: say so, it looks like work."""
        self._log.event("attempt-stuck", effect=where)
        task_id, _, ordinal = where.partition("/")
        notice = stuck_notice(task_id, ordinal, now_ms=self._journal.now_ms())
        adding = asyncio.get_running_loop().create_task(self._add(notice))
        self._adding.add(adding)
        adding.add_done_callback(self._adding.discard)

    async def _add(self, notice: Notice) -> None:
        try:
            await self._journal.add_notice(notice)
        except HoldfastError as error:
            self._on_trouble(error)
