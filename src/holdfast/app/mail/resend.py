"""Messages that relays hold, and whose recipient has not signed for them: sent again now and then, under their key.

Two relays signed that they hold the message, and its step is closed. If all relays of the recipient are then lost for
good, nothing but the sender has the message. So while it may wait at a relay (`TTL_S`) and no delivery note has come,
it is sent again: after 15 minutes, then half an hour, up to every 6 hours. Relays and recipient keep one message for a
key, so a repeat does no harm. After that time it has expired: a notice says so, and `holdfast mail dead` lists it. What
is sent, and whether a note came, is in the journal; only the times are in memory.

A look lists the newest tasks, and some older ones behind those of the look before: what it costs has a bound, and an
agent with a million tasks is looked through in nine hours.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from holdfast.core.ids import TaskId, effect_key_from_bytes
from holdfast.core.mail import TTL_S, Post, id_in
from holdfast.core.notices import mail_expired_notice
from holdfast.core.step import StepState
from holdfast.errors import HoldfastError, JournalDamaged, TaskNotFound
from holdfast.host.log import Log
from holdfast.journal.contract import Filter, Journal, TaskRow
from holdfast.journal.records import StepView
from holdfast.relay.bounded import keep_newest
from holdfast.runtime.task.mail_task import has_expired, note_of
from holdfast.runtime.tool.mail_tool import NAME as SEND_MAIL
from holdfast.runtime.tool.mail_tool import planned_in

FIRST_S, MOST_S = 900.0, 6 * 3_600.0
LOOK_S = 60.0
TELL_S = 86_400  # a message that expired while no worker ran causes a notice for so long afterwards
TASKS_MAX, OLDER_MAX = 10_000, 2_000  # that one look lists: the newest, and others
KEPT_MAX = 100_000  # tasks, and messages, that are remembered: the newest
AT_ONCE = 16  # recipients


@dataclass
class _Again:
    due_s: float
    pause_s: float


@dataclass(kw_only=True, eq=False)
class Resender:
    """Of one agent, in the process that takes its mail in."""

    journal: Journal
    post: Post
    log: Log
    first_s: float = FIRST_S
    look_s: float = LOOK_S
    _again: OrderedDict[bytes, _Again] = field(default_factory=OrderedDict[bytes, _Again])
    _told: OrderedDict[bytes, None] = field(default_factory=OrderedDict[bytes, None])  # that they have expired
    _quiet: OrderedDict[TaskId, int] = field(default_factory=OrderedDict[TaskId, int])  # nothing is due: its records
    _after: TaskId | None = None  # the last one of the older tasks that were listed

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.look_s)
            try:
                await self.look()
            except (HoldfastError, OSError) as error:  # as when no file is free: the next look may succeed
                self.log.event("resend-failed", error=str(error))

    async def look(self) -> int:
        """Send what is due; how many."""
        now_ms = self.journal.now_ms()
        since_ms, young_ms = now_ms - (TTL_S + TELL_S) * 1000, now_ms - int(self.first_s * 1000)
        rows = [one for one in await self._list_some() if one.changed_ms > since_ms]
        due: dict[str, list[StepView]] = {}
        for row in rows:
            if row.erased or row.created_ms > young_ms or self._quiet.get(row.task_id) == row.records:
                continue  # of a young task nothing is due yet, and reading it costs more than listing it
            try:
                waiting = await self._waiting(row.task_id, since_ms)
            except (JournalDamaged, TaskNotFound) as error:  # it holds up no other; erased meanwhile
                self.log.event("resend-failed", task_id=row.task_id, error=error.message)
                waiting = []
            if not waiting:
                keep_newest(self._quiet, row.task_id, row.records, most=KEPT_MAX)
            for step in waiting:
                if has_expired(step, now_ms=now_ms):
                    await self._tell_expired(row.task_id, step)
                else:
                    due.setdefault(str(cast("dict[str, Any]", step.args)["to"]), []).append(step)
        turns = asyncio.Semaphore(AT_ONCE)
        return sum(await asyncio.gather(*(self._send_to_one(steps, turns) for steps in due.values())))

    async def _list_some(self) -> list[TaskRow]:
        rows = await self.journal.list_tasks(Filter(limit=TASKS_MAX))
        if len(rows) < TASKS_MAX:
            return rows
        older = await self.journal.list_tasks(Filter(limit=OLDER_MAX, after=self._after or rows[-1].task_id))
        self._after = older[-1].task_id if len(older) == OLDER_MAX else None
        return rows + older

    async def _send_to_one(self, steps: Sequence[StepView], turns: asyncio.Semaphore) -> int:
        """To one recipient, one after another; one that cannot be reached is left for the next look, and holds up no
        other. How many were sent."""
        sent = 0
        for step in steps:
            if not self._is_due(step):
                continue
            async with turns:
                if not await self._send_again(step):
                    return sent
            sent += 1
        return sent

    async def _waiting(self, task_id: TaskId, since_ms: int) -> list[StepView]:
        view = await self.journal.read_task(task_id)
        steps = [
            one
            for one in view.steps.values()
            if one.tool == SEND_MAIL and one.state is StepState.SUCCEEDED and one.attempts
            if one.attempts[0].at_ms > since_ms
        ]
        inbox = await self.journal.inbox_of(task_id) if steps else []
        return [one for one in steps if note_of(inbox, one.ordinal) is None]

    async def _tell_expired(self, task_id: TaskId, step: StepView) -> None:
        if step.effect_key in self._told:
            return
        to = str(cast("dict[str, Any]", step.args).get("to", ""))
        await self.journal.add_notice(mail_expired_notice(task_id, step.ordinal, to, now_ms=self.journal.now_ms()))
        self.log.event("mail-expired", task_id=task_id, ordinal=step.ordinal)
        keep_newest(self._told, step.effect_key, None, most=KEPT_MAX)

    def _is_due(self, step: StepView) -> bool:
        now_s = time.monotonic()
        age_s = (self.journal.now_ms() - step.attempts[0].at_ms) / 1000
        again = self._again.get(step.effect_key) or _Again(now_s + self.first_s - age_s, self.first_s)
        keep_newest(self._again, step.effect_key, again, most=KEPT_MAX)
        if now_s < again.due_s:
            return False
        again.pause_s = min(2 * again.pause_s, MOST_S)
        again.due_s = now_s + again.pause_s
        return True

    async def _send_again(self, step: StepView) -> bool:
        args, key = cast("dict[str, Any]", step.args), effect_key_from_bytes(step.effect_key)
        try:
            await self.post.send(
                to=_recipient(step), body=args["body"], thread=args.get("thread", ""), key=key, **planned_in(step.body)
            )
        except (HoldfastError, OSError) as error:
            self.log.event("resend-failed", key=key, error=str(error))
            return False
        self.log.event("mail-resent", key=key)
        return True


def _recipient(step: StepView) -> str:
    """The agent that relays confirmed the message for: a handle may be another agent's by now."""
    to, result = str(cast("dict[str, Any]", step.args)["to"]), step.result
    first = cast("dict[str, Any]", result).get("to") if isinstance(result, dict) else None
    return to if first is None or id_in(to) == first else str(first)
