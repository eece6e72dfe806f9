"""What an engine does beside its tasks: tells notices, removes what is old, checks the journal after a crash."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from holdfast.core.notices import (
    Notice,
    Notices,
    clock_behind_notice,
    clock_off_notice,
    journal_damaged_notice,
    standby_notice,
    stuck_notice,
    unserved_notice,
)
from holdfast.core.waiting import ALONE, Pacing
from holdfast.errors import HoldfastError
from holdfast.host.log import Log
from holdfast.journal.builds import Build
from holdfast.journal.contract import Journal
from holdfast.journal.durability import Durability, Kept
from holdfast.journal.quiet import Quiet
from holdfast.journal.unserved import find_unserved
from holdfast.layout.engine_settings import Settings
from holdfast.runtime.scratch.scratch import ScratchFolders, sweep
from holdfast.runtime.secrets import Secrets

NOTICES_AT_ONCE = 20
NOTICE_EVERY_S = 1.0
NOTICE_S_MAX = 300.0  # between two tries while a hook fails
NOTICE_TURN_S = 20.0  # a turn lasts a minute at least, and one notice takes half of that at most
TIDY_EVERY_S = 3_600.0
SECRETS_EVERY_S = 0.5
CLOCK_BEHIND_MS = 60_000
UNSERVED_EVERY_S = 30.0
STANDBY_EVERY_S = 30.0  # a person hears of it within a minute
UNSERVED_AFTER_MS = 60_000  # a worker that is replaced by a new version is back by then
DRAINED_EVERY_S = 2.0
DAY_MS = 86_400_000


@dataclass(slots=True, kw_only=True, repr=False)
class Upkeep:
    """Serves one engine. `tell_notices` and `tidy` run for as long as it serves."""

    journal: Journal
    settings: Settings
    log: Log
    notices: Notices | None
    secrets: Secrets
    folders: ScratchFolders | None
    on_trouble: Callable[[HoldfastError], None]
    pacing: Pacing = ALONE
    durability: Durability | None = None  # as it was last seen
    _adding: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    async def tell_notices(self) -> None:
        """Deliver notices; one that cannot be delivered is tried again, the others are not held up."""
        if self.notices is None:
            return
        delay_s, left = NOTICE_EVERY_S, False
        quiet = Quiet(self.journal, most_s=self.pacing.idle_s(0))
        while True:
            if not left and await quiet.lasts():
                await asyncio.sleep(self.pacing.look_s(NOTICE_EVERY_S) * self.settings.pace)
                continue
            async with self.journal.notice_turn() as mine:
                pending = await self.journal.pending_notices(limit=NOTICES_AT_ONCE) if mine else []
                told = await self._tell_in_turn(self.notices, pending)
            left = len(told) == NOTICES_AT_ONCE or len(told) < len(pending) or not all(told)
            delay_s = min(delay_s * 2, NOTICE_S_MAX) if told and not any(told) else NOTICE_EVERY_S
            await asyncio.sleep(delay_s * self.settings.pace)

    async def _tell_in_turn(self, notices: Notices, pending: list[Notice]) -> list[bool]:
        """For as long as the turn is ours for certain: after that another host may tell the same."""
        began, told = monotonic(), list[bool]()
        for notice in pending:
            if monotonic() - began > NOTICE_TURN_S:
                break
            told.append(await self._tell_one(notices, notice))
        return told

    async def _tell_one(self, notices: Notices, notice: Notice) -> bool:
        try:
            await notices.tell(self.secrets.notice(notice))
        except Exception as error:  # noqa: BLE001 - the hook is the user's: any failure is retried
            self.log.event("notice-failed", notice=notice.notice_id, error=str(error)[:300])
            return False
        await self.journal.close_notice(notice.notice_id)
        return True

    async def tidy(self) -> None:
        await self._check_after_crash()
        await self._warn_of_clock()
        settings = self.settings
        while True:
            await self.journal.retain(
                keep_ms=int(settings.keep_days * DAY_MS), tombstone_ms=int(settings.tombstone_days * DAY_MS)
            )
            if self.folders is not None:
                await sweep(self.folders, self.journal)
            await asyncio.sleep(TIDY_EVERY_S)

    async def watch_secrets(self) -> None:
        """Know a new value soon, also where no step of this process has asked for it."""
        while True:
            await asyncio.sleep(self.pacing.look_s(SECRETS_EVERY_S))
            self.secrets.refresh()

    async def watch_unserved(self) -> None:
        """Tell a person of tasks that no live worker serves: once for each time that it happens."""
        told: set[str] = set()
        seen: dict[tuple[str, str], int] = {}  # a task that sleeps is old when its build's worker is replaced
        while True:
            await asyncio.sleep(self.pacing.seldom_s(UNSERVED_EVERY_S) * self.settings.pace)
            found, now_ms = await find_unserved(self.journal), self.journal.now_ms()
            seen = {(one.name, one.build): seen.get((one.name, one.build), now_ms) for one in found}
            for one in found:
                notice = unserved_notice(one.name, one.tasks, one.age_ms, since_ms=one.since_ms, build=one.build)
                age_ms = now_ms - seen[one.name, one.build] if one.build else one.age_ms
                if age_ms >= UNSERVED_AFTER_MS * self.settings.pace and notice.notice_id not in told:
                    what = {"build": one.build} if one.build else {}
                    age_s = one.age_ms // 1000
                    self.log.event("task-unserved", task_name=one.name, tasks=one.tasks, age_s=age_s, **what)
                    await self.journal.add_notice(notice)
                    told.add(notice.notice_id)

    async def watch_durability(self) -> None:
        """Look whether commits are where they should be, from the start on. A change is told once, by one worker."""
        told_ms = -1
        while True:
            found = await self.journal.find_durability(provider=self.settings.journal_durability == "provider")
            if found.kept in (Kept.NO_STANDBY, Kept.GONE, Kept.UNKNOWN) and found.since_ms != told_ms:
                told_ms = found.since_ms
                self.log.event("standby", kept=found.kept.value, text=found.text, hint=found.hint)
                await self.journal.add_notice(standby_notice(found.text, found.hint, since_ms=told_ms))
            self.durability = found
            await asyncio.sleep(self.pacing.seldom_s(STANDBY_EVERY_S) * self.settings.pace)

    async def wait_drained(self, build: Build, held: Callable[[], tuple[int, int]]) -> None:
        """Until no open task is pinned to a build that is served here. `held`: how many tasks this engine holds, and
        how many it has claimed."""
        while True:
            await asyncio.sleep(DRAINED_EVERY_S * self.settings.pace)
            before = held()
            waiting = await self.journal.count_waiting(parked=True)
            # What is held now, or was claimed meanwhile, may rest a moment later.
            if (0, before[1]) == before == held() and not any(one.build in build.served for one in waiting):
                self.log.event("drained", build=build.name)
                return

    async def _check_after_crash(self) -> None:
        if not self.settings.check_after_crash or not getattr(self.journal, "unclean", False):
            return
        findings = [finding async for finding in self.journal.check()]
        self.log.event("checked", findings=len(findings))
        if findings:
            now_ms = self.journal.now_ms()
            damaged = journal_damaged_notice(self.journal.journal_id, str(findings[0]), now_ms=now_ms)
            await self.journal.add_notice(damaged)

    async def _warn_of_clock(self) -> None:
        behind = self.journal.clock_behind_ms
        if behind >= CLOCK_BEHIND_MS:
            self.log.event("clock-behind", behind_ms=behind)
            await self.journal.add_notice(clock_behind_notice(behind / 1000, now_ms=self.journal.now_ms()))
        ahead = self.journal.clock_ahead_ms
        if abs(ahead) >= CLOCK_BEHIND_MS:
            self.log.event("clock-off", ahead_ms=ahead)
            host = socket.gethostname()
            await self.journal.add_notice(clock_off_notice(ahead / 1000, host=host, now_ms=self.journal.now_ms()))

    def tell_stuck(self, where: str) -> None:
        """A tool runs on after its timeout and will not be cancelled: say so, it looks like work."""
        self.log.event("attempt-stuck", effect=where)
        task_id, _, ordinal = where.partition("/")
        notice = stuck_notice(task_id, ordinal, now_ms=self.journal.now_ms())
        adding = asyncio.get_running_loop().create_task(self._add(notice))
        self._adding.add(adding)
        adding.add_done_callback(self._adding.discard)

    async def _add(self, notice: Notice) -> None:
        try:
            await self.journal.add_notice(notice)
        except HoldfastError as error:
            self.on_trouble(error)
