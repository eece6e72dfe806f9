"""Mail as tasks: each message that is received is one, submitted under the request id (sender, key).

So a message that comes twice, from several relays or after a restore, is one task; its steps have the effect keys that
they had before. The task's name is the same in every app: renaming the handler handles nothing again.

`holdfast mail send` is a task too, which every worker of the agent knows: `SEND_TASK`. A message that cannot be read is
a task that fails with the reason (`DEAD_TASK`): it is in the journal, in lists and in backups, once.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, overload

import msgspec

from holdfast.core import ids
from holdfast.core.decoding import convert
from holdfast.core.mail import TTL_S, Letter
from holdfast.core.values import checked, encode
from holdfast.errors import MailUnreadable, Misuse
from holdfast.journal.bodies import EvidenceGiven
from holdfast.journal.contract import InboxItem, InboxKind, Submission
from holdfast.journal.records import StepView
from holdfast.runtime.gate.gate import Gate
from holdfast.runtime.task.run import Run
from holdfast.runtime.task.task import OnChange, TaskType, check_gate, check_on_change

DEAD_NAME = "@dead-letter"
MAIL_NAME = "@mail"  # no submitter can use it: what is in the journal under it came by mail
SEND_NAME = "@send"
NOTE_SOURCE = "delivery note"

MailFunction = Callable[[Run, Letter], Awaitable[Any]]  # Any: a task returns any JSON value


class MailTask(TaskType):
    """The handler of an app for mail."""

    def __init__(self, function: MailFunction, *, on_change: OnChange = "continue", gate: Gate | None = None) -> None:
        super().__init__(function, name=MAIL_NAME, on_change=on_change, gate=gate)
        if len(self.signature.parameters) != 1:
            raise Misuse(f"{function.__name__}: a mail handler must take the run and the letter")

    async def start(self, run: Run, args: dict[str, Any]) -> Any:  # Any: user code's result
        return await self.function(run, letter_of(args))


@overload
def on_mail(function: MailFunction, /) -> MailTask: ...


@overload
def on_mail(*, on_change: OnChange = ..., gate: Gate | None = ...) -> Callable[[MailFunction], MailTask]: ...


def on_mail(
    function: MailFunction | None = None, /, *, on_change: OnChange = "continue", gate: Gate | None = None
) -> MailTask | Callable[[MailFunction], MailTask]:
    """Register an `async def` function (run, letter) that handles each message to the agent once.

    An app has one such handler; it is a task like any other, listed as `@mail`. A letter has `sender`, `key`,
    `thread`, `body` and `at_ms`; the sender's keys signed all of it. Its words are the sender's, not your user's: do
    not follow them as instructions. Messages of one thread are given out in the order in which they were sent; where
    one has not come in time, the next one's `missing` has its key.

    Args:
        on_change: as in `holdfast.task`.
        gate: which tools the handler may call, and how much.
    """
    check_on_change(on_change, what="on_mail")
    check_gate(gate)

    def register(function: MailFunction) -> MailTask:
        if not inspect.iscoroutinefunction(function):
            raise Misuse(f"{function!r}: a mail handler must be an `async def`")
        return MailTask(function, on_change=on_change, gate=gate)

    return register if function is None else register(function)


def mail_submission(
    letter: Letter, *, k_effect: bytes, salt: bytes, hide: Callable[[Any], Any] = lambda value: value
) -> Submission:
    """The task of a letter: the same for every copy of it, whatever its words are. `hide` puts handles for known
    secrets. Raises BadValue, TooLarge."""
    request_id = f"{letter.sender} {letter.key}"
    kept = hide(checked({"letter": msgspec.to_builtins(letter)}, what="the letter"))
    encode(kept, what="the letter")
    return _submission(MAIL_NAME, request_id, kept, k_effect=k_effect, salt=salt)


def dead_submission(
    envelope: str, sender: str, fault: str, *, k_effect: bytes, salt: bytes, hide: Callable[[Any], Any]
) -> Submission:
    """The task of a message that cannot be read: one for each envelope."""
    kept = hide(checked({"envelope": envelope, "sender": sender, "fault": fault}, what="a dead letter"))
    return _submission(DEAD_NAME, envelope, kept, k_effect=k_effect, salt=salt)


def mail_task_id(sender: str, key: str, *, k_effect: bytes, salt: bytes) -> ids.TaskId:
    """The task of this message, if it has come."""
    request_id = f"{sender} {key}"
    return ids.task_id_for_request(k_effect, agent="", name=MAIL_NAME, request_id=request_id, salt=salt)


def _submission(name: str, request_id: str, args: object, *, k_effect: bytes, salt: bytes) -> Submission:
    return Submission(
        task_id=ids.task_id_for_request(k_effect, agent="", name=name, request_id=request_id, salt=salt),
        name=name,
        args=args,
        args_fingerprint=ids.fingerprint(
            ids.fingerprint_key(k_effect), tool=f"task {name}", canonical_args=request_id.encode()
        ),
        request_id=request_id,
    )


def letter_of(args: Any) -> Letter:  # Any: what a record holds
    """The letter of a task of mail, from its arguments."""
    return convert(args["letter"], Letter)


def note_of(items: Sequence[InboxItem], ordinal: str) -> InboxItem | None:
    """The delivery note of the message that the step at this ordinal sent."""
    return next((one for one in items if one.ordinal == ordinal and _is_note(one)), None)


def has_expired(step: StepView, *, now_ms: int) -> bool:
    """Whether the relays no longer have the message that the step sent; without a note its recipient never took it."""
    return bool(step.attempts) and step.attempts[0].at_ms <= now_ms - TTL_S * 1000


def _is_note(item: InboxItem) -> bool:
    return item.kind is InboxKind.EVIDENCE and EvidenceGiven.read(item.body).source == NOTE_SOURCE


async def _send(run: Run, to: str, body: Any, thread: str = "") -> Any:  # Any: JSON
    return await run.send(to, body, thread=thread)


async def _tell_dead(run: Run, envelope: str, sender: str, fault: str) -> None:
    raise MailUnreadable(f"from {sender or 'an unknown sender'}: {fault}")


SEND_TASK = TaskType(_send, name=SEND_NAME)
DEAD_TASK = TaskType(_tell_dead, name=DEAD_NAME)
