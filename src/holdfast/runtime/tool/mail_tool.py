"""The ready tool `send_mail`: one message to another agent, through the relays of the recipient.

`run.send` calls it; an agent's model may have it too. Its class is Keyed: the message key is the step's effect key, and
each relay, and the recipient's journal, keep one message for each (sender, recipient, key). So a crash, a repeat and a
restore are those of every Keyed step, and the recipient handles the message once.

Relays cannot read a message; they compare a digest of its words under a key that they do not have. So the fingerprint
is checked: after a restore the step is sent again under its key, and if the lost timeline sent other words from it, the
step is parked, and a person decides (docs/decisions/0094).

Messages of one thread name those before them, so that the recipient handles them in this order (0093). Which ones those
are is part of the step's plan, from the task's own records: a repeat, on whatever host, says the same. So is what the
recipient asks to be told (`echo`, 0116): it proves that no message under this key was sent before the recipient asked.
A task that a lost timeline may have run proves nothing of that kind, and does not say it.

While too few relays answer, the step waits in the journal and tries again for as long as a message may wait at a relay
(`TTL_S`); then it is parked, and a person decides (`holdfast mail dead`).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, cast

import msgspec

from holdfast.core.effect import WINDOW_MAX_S, Keyed
from holdfast.core.ids import EffectKey, effect_key_from_bytes
from holdfast.core.mail import AFTER_MAX, BODY_BYTES_MAX, THREAD_CHARS_MAX, TTL_S, Post
from holdfast.core.step import StepState
from holdfast.core.values import Json, encode
from holdfast.errors import (
    BadInput,
    Busy,
    KeyReused,
    MailKeyReused,
    MailRefused,
    MailUnconfirmed,
    MailUnsent,
    NotSent,
    Refused,
)
from holdfast.journal.records import Body, StepView, TaskView
from holdfast.runtime.tool.tool import Call, tool

TO_CHARS_MAX = 2_000  # an address with hints
AGAIN_S, AGAIN_S_MAX = 0.5, 300.0
TRIES_MAX = TTL_S // int(AGAIN_S_MAX) + 100  # the first ones are closer together
NAME = "send_mail"
AFTER, NUMBER, ECHO = "after", "number", "echo"  # in a plan
ASK_S = 3.0  # for what the recipient asks to be told
AFTER_STEPS = AFTER_MAX - 1  # one more may be of another task
LOOK_BACK_MAX = 1_000  # steps of the task

_SCHEMA = {
    "type": "object",
    "properties": {
        "to": {"type": "string", "description": "the agent: an id (hf1...), or a handle such as ada@relay.example"},
        "body": {
            "type": ["string", "object", "array", "number", "boolean", "null"],
            "description": "the message: text or JSON",
        },
        "thread": {"type": "string", "description": "a name that messages of one exchange share; may be empty"},
    },
    "required": ["to", "body"],
    "additionalProperties": False,
}


@tool(
    name=NAME,
    effect=Keyed(window_s=WINDOW_MAX_S, fingerprint="checked", refusals_stored=False, max_delay_s=30),
    timeout_s=30.0,
    attempts=TRIES_MAX,
    marks_sending=True,
    parameters=_SCHEMA,
)
async def send_mail(call: Call, to: str, body: Json, thread: str = "") -> Json:
    """Send a message to another agent. It waits at relays until that agent reads it."""
    check_mail(to=to, body=body, thread=thread)
    post, key = call.post, EffectKey(call.effect_key)
    try:
        sent = await post.send(
            to=to, body=body, thread=thread, key=key, first_byte=call.sending, **planned_in(call.planned)
        )
    except MailKeyReused as error:
        raise KeyReused({"reason": error.code, "text": error.message}) from None
    except MailRefused as error:
        raise Refused({"reason": error.code, "text": error.message}) from None
    except MailUnsent as error:
        raise NotSent(error.message, retry_after_s=_again_s(call.attempt)) from None
    except MailUnconfirmed as error:
        raise Busy(_again_s(call.attempt), kind=type(error).__name__, text=error.message) from None
    return msgspec.to_builtins(sent)


async def planned_echo(args: Mapping[str, Any], post: Post | None) -> Body:
    """What the plan of a message says that nobody has sent before: what the recipient asks for now."""
    echo = ""
    if post is not None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ASK_S):
                echo = await post.echo_of(str(args.get("to", "")))
    return {ECHO: echo} if echo else {}


def planned_order(view: TaskView, args: Mapping[str, Any]) -> Body:
    """What the plan of a message in a thread says of those before it: their effect keys, the newest first, and its
    number. Of branches that send at the same time, each names what was sent by then."""
    thread, found = args.get("thread"), list[StepView]()
    if not thread:
        return {}
    for number, one in enumerate(reversed(view.steps.values())):
        if len(found) == AFTER_STEPS or number == LOOK_BACK_MAX:
            break
        if one.tool == NAME and one.state is StepState.SUCCEEDED and _is_to(one, args):
            found.append(one)
    before = max((int(one.body.get(NUMBER, 0)) for one in found), default=0)
    return {AFTER: [effect_key_from_bytes(one.effect_key) for one in found], NUMBER: before + 1}


def _is_to(step: StepView, args: Mapping[str, Any]) -> bool:
    its = cast("Mapping[str, Any]", step.args)
    return (its.get("to"), its.get("thread")) == (args.get("to"), args.get("thread"))


class PlannedMail(TypedDict):
    after: Sequence[EffectKey]
    number: int
    echo: str


def planned_in(plan: Body) -> PlannedMail:
    """What the plan of a message says, as `Post.send` takes it."""
    return PlannedMail(after=plan.get(AFTER, ()), number=plan.get(NUMBER, 0), echo=plan.get(ECHO, ""))


send_mail.plans_more = planned_order
send_mail.asks_first = planned_echo


def check_mail(*, to: object, body: Json, thread: object) -> None:
    """Refuse what no relay would take. Raises BadInput, TooLarge."""
    if not isinstance(to, str) or not 1 <= len(to) <= TO_CHARS_MAX or not to.isprintable():
        raise BadInput(
            f"to: give the id or a handle of an agent, 1 to {TO_CHARS_MAX:,} characters",
            hint="an id begins with hf1; a handle is written name@relay.example",
        )
    if not isinstance(thread, str) or len(thread) > THREAD_CHARS_MAX:
        raise BadInput(f"thread: give text of at most {THREAD_CHARS_MAX} characters")
    encode(body, what="the message", bytes_max=BODY_BYTES_MAX)


def _again_s(attempt: int) -> float:
    """Longer each time, with full jitter: senders that wait for one relay do not come back at the same moment."""
    most_s = min(AGAIN_S * 2 ** min(attempt, 20), AGAIN_S_MAX)
    return random.uniform(AGAIN_S, most_s)
