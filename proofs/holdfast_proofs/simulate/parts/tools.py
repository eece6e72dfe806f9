"""The tools that simulated tasks call: every effect class, with the options that matter.

Each talks to the far end through `send`, which loses, delays and cuts what a network can. A tool
that marks its first byte itself may dawdle before it; one that does not may do so only where a
dead-man timer ends the process at its deadline, because nothing else stops it from sending late:
that is what `holdfast.open` without a worker process cannot promise. For the same reason the
machine does not stand still there: no timer inside it would notice (docs: what nobody can
promise).
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import Any

from holdfast.core.effect import Fenced, Idempotent, Keyed, Queryable, Read, Transactional, Unrepeatable
from holdfast.errors import NotSent
from holdfast.runtime.tool.tool import Absent, Apply, Call, FindAnswer, Found, Many, Tool, Unsure, tool
from holdfast_proofs.simulate.faults import DELAY_S, TIMEOUT_S, WINDOW_S
from holdfast_proofs.simulate.parts.far_end import Kind, Request
from holdfast_proofs.simulate.parts.process import current

NETWORK_S = 0.03
EARLY = 0.9  # a slow network takes at most this share of DELAY_S


async def send(call: Call, tool: str, kind: Kind, what: int, *, marks: bool = False) -> Any:
    """One exchange with the far end, as unreliable as the world's profile says."""
    process = current()
    world = process.world
    dice, profile = world.dice, world.profile
    if dice.hits(profile.not_sent):
        raise NotSent("no connection")
    if marks or profile.dead_man:
        wait_s = dice.seconds(0.0, NETWORK_S)
        await process.point("before the first byte", delay_s=wait_s, sends=True, marked=not marks)
    if marks:
        call.sending()
    request = Request(
        kind=kind,
        tool=tool,
        task_id=call.task_id,
        ordinal=call.ordinal,
        effect_key=call.effect_key,
        fence=call.fence,
        what=what,
        sent_s=world.loop.now_s,
    )
    world.sent(process, request, attempt=call.attempt)
    reply: asyncio.Future[Any] = world.loop.create_future()
    context = copy_context()

    def answer(told: object) -> None:
        if dice.hits(profile.lost_reply):
            _cut(told="the reply")
            return
        delay_s = dice.seconds(0.0, NETWORK_S)
        world.loop.call_at(world.loop.now_s + delay_s, _give, reply, told, context=context)

    def _cut(told: str) -> None:
        world.trace.note("network", f"{request}: lost {told}")
        if dice.coin():  # else nobody hears of it and the attempt times out
            error = ConnectionResetError(f"connection reset: lost {told}")
            world.loop.call_at(world.loop.now_s, _give, reply, error, context=context)

    if dice.hits(profile.lost_request):
        _cut(told="the request")
    else:
        slow = dice.hits(profile.slow)
        delay_s = dice.seconds(0.0, DELAY_S * EARLY if slow else NETWORK_S)
        world.loop.at(delay_s, world.far_end.arrive, request, answer)
    result = await reply
    await process.point("after the answer")
    return result


def _give(reply: asyncio.Future[Any], told: object) -> None:
    if reply.done():
        return
    if isinstance(told, BaseException):
        reply.set_exception(told)
    else:
        reply.set_result(told)


async def ask(call: Call, tool: str) -> FindAnswer:
    """Ask the far end what it did for this tool under this key."""
    process = current()
    world = process.world
    await process.point("before a lookup", delay_s=world.dice.seconds(0.0, NETWORK_S))
    if world.dice.hits(world.profile.unsure):
        if world.dice.coin():
            raise RuntimeError("the lookup failed")
        return Unsure("come back later")
    found = world.far_end.find(tool, call.effect_key)
    world.trace.note(process.name, f"asks about {call.task_id[-4:]}/{call.ordinal}: {found}")
    await process.point("after a lookup", delay_s=world.dice.seconds(0.0, NETWORK_S))
    match found:
        case []:
            return Absent()
        case [(result, what)]:
            return Found(result, args={"what": what})
        case _:
            return Many([result for result, _ in found])


_KEYED = Keyed(window_s=WINDOW_S, fingerprint="checked", refusals_stored=False, max_delay_s=DELAY_S)
_STORED = Keyed(window_s=WINDOW_S, fingerprint="ignored", refusals_stored=True, max_delay_s=DELAY_S)


@tool(effect=Read(max_delay_s=DELAY_S), timeout_s=TIMEOUT_S, retries=1)
async def read(call: Call, what: int) -> Any:  # Any: the far end's JSON, here and below
    return await send(call, "read", "read", what)


@tool(effect=Transactional(), timeout_s=TIMEOUT_S, retries=1)
async def transact(call: Call, what: int) -> Apply:
    process = current()
    await process.point("in a transactional tool")
    if process.world.dice.hits(process.world.profile.error):
        raise RuntimeError("the tool failed")
    if process.world.dice.hits(process.world.profile.not_sent):
        raise NotSent("not yet")
    row = (call.task_id, call.ordinal)
    return Apply([("INSERT INTO effect VALUES (?, ?)", row)], result={"row": what})


@tool(effect=Fenced(max_delay_s=DELAY_S), timeout_s=TIMEOUT_S)
async def fenced(call: Call, what: int) -> Any:
    return await send(call, "fenced", "fenced", what)


@tool(effect=_KEYED, timeout_s=TIMEOUT_S, retries=2)
async def keyed(call: Call, what: int) -> Any:
    return await send(call, "keyed", "keyed", what)


@tool(effect=_KEYED, timeout_s=TIMEOUT_S, marks_sending=True)
async def keyed_found(call: Call, what: int) -> Any:
    return await send(call, "keyed_found", "keyed", what, marks=True)


@keyed_found.find
async def find_keyed(call: Call, what: int) -> FindAnswer:
    return await ask(call, "keyed_found")


@tool(effect=_STORED, timeout_s=TIMEOUT_S, retries=2, retry_delay_s=0.5)
async def stored(call: Call, what: int) -> Any:
    return await send(call, "stored", "stored", what)


@tool(effect=Queryable(max_delay_s=DELAY_S), timeout_s=TIMEOUT_S, retries=1)
async def queryable(call: Call, what: int) -> Any:
    return await send(call, "queryable", "plain", what)


@queryable.find
async def find_queryable(call: Call, what: int) -> FindAnswer:
    return await ask(call, "queryable")


@tool(effect=Queryable(max_delay_s=DELAY_S, find_returns_result=True), timeout_s=TIMEOUT_S, marks_sending=True)
async def queryable_whole(call: Call, what: int) -> Any:
    return await send(call, "queryable_whole", "plain", what, marks=True)


@queryable_whole.find
async def find_whole(call: Call, what: int) -> FindAnswer:
    return await ask(call, "queryable_whole")


@tool(effect=Idempotent(max_delay_s=DELAY_S), timeout_s=TIMEOUT_S, retries=1)
async def idempotent(call: Call, what: int) -> Any:
    return await send(call, "idempotent", "plain", what)


@tool(effect=Unrepeatable(max_delay_s=DELAY_S), timeout_s=TIMEOUT_S, retries=1)
async def unrepeatable(call: Call, what: int) -> Any:
    return await send(call, "unrepeatable", "plain", what)


@tool(effect=Unrepeatable(max_delay_s=DELAY_S), timeout_s=TIMEOUT_S, marks_sending=True)
async def unrepeatable_marked(call: Call, what: int) -> Any:
    return await send(call, "unrepeatable_marked", "plain", what, marks=True)


@tool(effect=Unrepeatable(max_delay_s=DELAY_S, policy="at_least_once"), timeout_s=TIMEOUT_S)
async def at_least_once(call: Call, what: int) -> Any:
    return await send(call, "at_least_once", "plain", what)


@tool(effect=_KEYED, timeout_s=TIMEOUT_S, needs_approval=True)
async def approved(call: Call, what: int) -> Any:
    return await send(call, "approved", "keyed", what)


_ALL: tuple[Tool[..., Any], ...] = (
    read,
    transact,
    fenced,
    keyed,
    keyed_found,
    stored,
    queryable,
    queryable_whole,
    idempotent,
    unrepeatable,
    unrepeatable_marked,
    at_least_once,
    approved,
)
TOOLS = {one.name: one for one in _ALL}
