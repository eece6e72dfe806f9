"""A conversation with an agent: messages in, answers out, in order, through every death.

The conversation is one task. A message is a fact dropped into its inbox: durable when `send`
returns, taken by whichever worker holds the task, answered before the next one is taken. A message
id makes a repeat safe: the same id is the same message, and another text under it is refused.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from holdfast import errors
from holdfast.core.ids import TaskId
from holdfast.core.values import checked
from holdfast.journal.bodies import MessageAnswered, MessageSaid, SaidNote
from holdfast.journal.contract import InboxItem, InboxKind
from holdfast.journal.records import ENDED, Body, RecordKind, TaskState, TaskView

if TYPE_CHECKING:
    from holdfast.runtime.agent.agent import Agent, Home

POLL_S = 0.05
LOOK_EVERY_S = 1.0  # how often all of a conversation is read while an answer is waited for
TEXT_CHARS_MAX = 4_000_000
ID_CHARS_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the agent answered to one message."""

    message_id: str
    text: str
    refused: bool = False  # the model would not; its words are the text

    def __str__(self) -> str:
        return self.text


class Conversation:
    """One conversation of an agent. Made by `agent.chat`."""

    def __init__(self, agent: Agent, home: Home, name: str) -> None:
        self._agent = agent
        self._home = home
        self.name = name
        self._task_id: TaskId | None = None

    async def say(self, text: str, *, message_id: str = "", timeout_s: float | None = None) -> Answer:
        """Send a message and wait for its answer. Raises as `wait` does."""
        sent = await self.send(text, message_id=message_id)
        return await self.wait(sent, timeout_s=timeout_s)

    async def send(self, text: str, *, message_id: str = "") -> str:
        """Send a message; on return it is durable. Returns its id.

        Raises:
            MessageConflict: the id is that of another message of this conversation.
            SecretInInput: the id holds the value of a secret.
            TaskFailed: the conversation has failed; `holdfast task retry` resumes it.
        """
        if not text.strip() or len(text) > TEXT_CHARS_MAX:
            raise errors.BadInput(f"a message must have 1 to {TEXT_CHARS_MAX:,} characters")
        if len(message_id) > ID_CHARS_MAX:
            raise errors.BadInput(f"a message id may have at most {ID_CHARS_MAX} characters")
        checked(message_id, what="message id")
        self._home.secrets.check_input(message_id, what="the message id")
        named = message_id or uuid.uuid4().hex
        if not message_id or not await self._is_sent(message_id, text):
            await self._drop(MessageSaid(named, text).body())
        if message_id:
            await self._is_sent(message_id, text)  # another process may have been first
        return named

    async def end(self) -> None:
        """End the conversation, once what was sent before is answered."""
        await self._drop({"end": True})

    async def _is_sent(self, message_id: str, text: str) -> bool:
        """Whether this very message is sent already. Raises MessageConflict for another one."""
        task_id, clean = await self.task_id(), self._home.secrets.text
        for item in await self._home.journal.inbox_of(task_id):
            if item.kind is InboxKind.SAID and item.body.get("id") == message_id:
                if clean(MessageSaid.read(item.body).text) != clean(text):
                    raise errors.MessageConflict(task_id=task_id, message_id=message_id, conversation=self.name)
                return True
        return False

    async def wait(self, message_id: str, *, timeout_s: float | None = None) -> Answer:
        """The answer to a message.

        Raises:
            TaskParked: a person must decide first; wait again afterwards.
            TaskFailed, TaskCancelled: the conversation has ended without it.
            TaskUnfinished: the time is over; the answer comes all the same.
        """
        loop, task_id = asyncio.get_running_loop(), await self.task_id()
        end = None if timeout_s is None else loop.time() + timeout_s
        looked, seen, unread = -LOOK_EVERY_S, -1, False
        while True:
            row = await self._home.journal.find_task(task_id)
            if row is None:
                raise errors.TaskNotFound(task_id)
            answer = None
            if row.records != seen:
                seen, unread = row.records, True
                answer = await self._find_newest(task_id, message_id)
            resting = row.state not in (TaskState.RUNNING, TaskState.QUEUED)
            if answer is None and unread and (resting or loop.time() - looked >= LOOK_EVERY_S):
                looked, unread = loop.time(), False
                answer = _find(await self._home.journal.read_task(task_id), message_id)
            if answer is not None:
                return answer
            if row.state in ENDED or row.state is TaskState.PARKED:
                raise await self._over(task_id, row.state)
            if end is not None and loop.time() >= end:
                raise errors.TaskUnfinished(f"no answer to {message_id!r} within {timeout_s:g} s")
            await self._home.journal.wait_change(timeout_s=POLL_S)

    async def answers(self) -> list[Answer]:
        """All answers so far, in order."""
        view = await self._home.journal.read_task(await self.task_id())
        found = [note for note in view.notes.values() if note.what == "said"]
        return [_answer(note.answer) for note in found if note.answer is not None]

    async def task_id(self) -> TaskId:
        """The task that is this conversation; submitted where there is none yet."""
        if self._task_id is None:
            handle = await self._home.submit(
                self._agent, request_id=f"conversation/{self.name}", request="", conversation=self.name
            )
            self._task_id = cast(TaskId, handle.id)
        return self._task_id

    async def _drop(self, body: Body) -> None:
        task_id = await self.task_id()
        row = await self._home.journal.find_task(task_id)
        if row is not None and row.state is TaskState.FAILED:
            raise await self._over(task_id, row.state)
        said = await self._home.journal.inbox_of(task_id)
        ends = any(item.kind is InboxKind.SAID and item.body.get("end") for item in said)
        if ends or (row is not None and row.state in ENDED):
            raise errors.BadInput(f"the conversation {self.name!r} has ended", hint="start one with another name")
        item = InboxItem(task_id=task_id, ordinal="", kind=InboxKind.SAID, body=body)
        await self._home.drop(item)

    async def _find_newest(self, task_id: TaskId, message_id: str) -> Answer | None:
        newest = await self._home.journal.read_newest(task_id)
        if newest is None or newest.kind is not RecordKind.ANSWER:
            return None
        answer = _answer(newest.body)
        return answer if answer.message_id == message_id else None

    async def _over(self, task_id: TaskId, state: TaskState) -> Exception:
        newest = await self._home.journal.read_newest(task_id)
        last: Body = {} if newest is None else newest.body
        if state is TaskState.PARKED:
            question = str(last.get("question") or "its records are damaged")
            return errors.TaskParked(task_id=task_id, ordinal=str(last.get("ordinal") or ""), question=question)
        if state is TaskState.CANCELLED:
            return errors.TaskCancelled(task_id=task_id)
        text = str(last.get("text") or "the conversation has ended")
        return errors.TaskFailed(task_id=task_id, kind=str(last.get("kind") or "ended"), text=text)


def _find(view: TaskView, message_id: str) -> Answer | None:
    for note in view.notes.values():
        if note.what == "said" and SaidNote.read(note.body).id == message_id and note.answer is not None:
            return _answer(note.answer)
    return None


def _answer(body: Body) -> Answer:
    answered = MessageAnswered.read(body)
    return Answer(message_id=answered.id, text=answered.text, refused=bool(answered.refused))
