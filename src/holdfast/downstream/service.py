"""One far end: takes an order, does its work at most as often as its class promises, counts it.

The order of things for a request that asks for an effect:

1. It is written into the books as arrived, and a fault is drawn for it.
2. It is checked (400), and its key is taken, or answered from what the key already has.
3. It may wait inside (delay or hold, before).
4. The work: fence check, effect, books and stored answer, without an await between them, so no
   other request sees half of it.
5. It may wait inside (delay or hold, after); then it is answered, or not.

A client that goes away changes nothing: what was begun is finished. A late request is treated
as if the network had kept it: it goes through 2 to 4 when it arrives.

On its socket paths that begin with `/_` are a side door, for those who test against it: books, faults, holds, clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Literal, cast

import msgspec

from holdfast.downstream import http_server
from holdfast.downstream.faults import BadFault, Fault, FaultKind, Faults, parse_fault
from holdfast.downstream.http_server import Connection, Cut, Request, Reset
from holdfast.downstream.keys import Fingerprint, InFlight, KeyEntry, KeyTable, Replay, Reused
from holdfast.downstream.ledger import Ledger, Page, Seen
from holdfast.downstream.profiles import BadOrder, Body, Order, Profile, Reply, parse_object, parse_order, problem

BODY_BYTES_MAX = 8 * 1024 * 1024
WAIT_S_MAX = 600.0


class Hangup(Enum):
    CLOSE = "close"
    RESET = "reset"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    profile: Profile
    window_s: float = 86_400.0
    fingerprint: Fingerprint = "checked"
    refusals_stored: bool = True
    lookup: bool = True
    key_header: str = "Idempotency-Key"
    log: Path | None = None


@dataclass(slots=True, kw_only=True)
class Resource:
    value: Body
    fence: int | None
    writes: int


class Service:
    def __init__(self, settings: Settings, faults: Faults) -> None:
        self.faults = faults
        self._settings = settings
        self._profile = settings.profile
        self._ledger = Ledger(kind=self._profile.name, prefix=self._profile.prefix, log=settings.log)
        self._keys = self._new_keys()
        self._resources: dict[str, Resource] = {}
        self._skew_s = 0.0
        self._inside: dict[int, Seen] = {}
        self._changed = asyncio.Event()
        self._released = asyncio.Event()
        self._late: set[asyncio.Task[None]] = set()
        self._generation = 0

    async def handle(self, ask: Request) -> Reply | Hangup:
        if self._profile.anything:
            if ask.method in ("GET", "HEAD"):
                return problem(503, "a recording far end has nothing that could be read")
            return await self._effect(ask)
        noun, path = f"/{self._profile.noun}", ask.path
        single = self._profile.noun == "resources"
        if path != noun and not (single and path.startswith(f"{noun}/")):
            return problem(404, "there is nothing here")
        if ask.method == self._profile.method:
            return await self._effect(ask)
        if ask.method == "GET" and single:
            return self._show(path.removeprefix(f"{noun}/"))
        if ask.method == "GET" and self._profile.lookup and self._settings.lookup:
            return await self._look_up(ask, self._profile.lookup)
        return problem(405, "this far end does not offer that")

    # What the books and the controls need.

    def page(self) -> Page:
        return self._ledger.page({name: asdict(item) for name, item in self._resources.items()})

    def reset(self) -> None:
        """Forget effects, requests, keys, resources and faults. Requests still inside or late do nothing any more."""
        self._generation += 1
        for late in self._late:
            late.cancel()
        self.release()
        self._ledger.clear()
        self._keys = self._new_keys()
        self._resources.clear()
        self.faults.set(())

    def release(self) -> int:
        """Let every request that is held go on; returns how many wait inside."""
        self._released.set()
        self._released = asyncio.Event()
        return len(self._inside)

    def advance(self, seconds: float) -> None:
        """Move this far end's clock forward, for key windows."""
        self._skew_s += seconds

    async def wait_inside(self, count: int, *, timeout_s: float) -> list[Seen]:
        """Return once `count` requests are inside (held or delayed), or what there is by then."""
        await self._wait_until(lambda: len(self._inside) >= count, timeout_s=timeout_s)
        return list(self._inside.values())

    async def wait_effects(self, count: int, *, timeout_s: float) -> int:
        """Return the number of effects, once there are `count` or the time is over."""
        effects = self._ledger.effects
        await self._wait_until(lambda: len(effects) >= count, timeout_s=timeout_s)
        return len(effects)

    async def wait_idle(self, *, timeout_s: float) -> bool:
        """True once no request is inside and none is still to arrive late."""
        return await self._wait_until(lambda: not self._inside and not self._late, timeout_s=timeout_s)

    async def _wait_until(self, met: Callable[[], bool], *, timeout_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not met():
                    await self._changed.wait()
        return met()

    def _announce(self, *_: object) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # The way of one effect.

    async def _effect(self, ask: Request) -> Reply | Hangup:
        fault = self.faults.draw("effect")
        seen = self._note(ask, fault)
        kind = fault.kind if fault else None
        if kind is FaultKind.RESET:
            seen.outcome = "reset"
            return Hangup.RESET
        if fault and kind is FaultKind.LATE:
            seen.outcome = "late"
            task = asyncio.create_task(self._arrive_late(ask, seen, fault.seconds))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            task.add_done_callback(self._announce)
            if fault.open:
                await asyncio.Event().wait()  # until the client goes away or the service ends
            return Hangup.CLOSE
        reply = await self._process(ask, seen, fault)
        if kind is FaultKind.DROP_REPLY:
            return Hangup.CLOSE
        seen.status = reply.status
        return reply

    async def _arrive_late(self, ask: Request, seen: Seen, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._process(ask, seen, None)

    async def _process(self, ask: Request, seen: Seen, fault: Fault | None) -> Reply:
        try:
            order = parse_order(ask, self._profile, key_header=self._settings.key_header)
        except BadOrder as error:
            seen.outcome = "bad"
            return problem(400, str(error))
        seen.key, seen.reference, seen.fence = order.key, order.reference, order.fence
        if fault and fault.kind is FaultKind.BUSY409:
            return _busy(seen, fault.retry_after_s)
        entry = self._take_key(order, seen)
        if isinstance(entry, Reply):
            return entry
        generation = self._generation
        await self._stay(seen, fault, "before")
        if generation != self._generation:
            return problem(503, "this far end was reset")
        reply = self._work(order, seen, fault, entry)
        await self._stay(seen, fault, "after")
        return reply

    def _take_key(self, order: Order, seen: Seen) -> KeyEntry[Reply] | Reply | None:
        if order.key is None or self._profile.key == "ignored":
            return None
        found = self._keys.begin(order.key, fingerprint=order.fingerprint, now_s=time.monotonic() + self._skew_s)
        match found:
            case Replay(answer=answer):
                seen.outcome = "replayed"
                replayed = (*answer.headers, ("Idempotent-Replayed", "true"))
                return Reply(status=answer.status, body=answer.body, headers=replayed)
            case InFlight():
                return _busy(seen, None)
            case Reused():
                seen.outcome = "reused"
                return problem(422, "this Idempotency-Key was used with another body")
            case KeyEntry():
                return found

    def _work(self, order: Order, seen: Seen, fault: Fault | None, entry: KeyEntry[Reply] | None) -> Reply:
        """Decide, do and store; nothing is awaited here."""
        kind = fault.kind if fault else None
        refusal = self._profile.refusal(order.body)
        stored = True
        if fault and kind is FaultKind.REFUSE:
            seen.outcome, stored = "refused", self._settings.refusals_stored
            reply = problem(fault.status, "refused", *_retry_after(fault.retry_after_s))
        elif refusal is not None:
            seen.outcome, stored = "refused", self._settings.refusals_stored
            reply = problem(402, refusal)
        elif self._is_stale(order):
            seen.outcome, stored = "stale", False
            reply = problem(412, "a higher fence has written this resource")
        elif fault and kind is FaultKind.ERROR500 and not fault.effect:
            seen.outcome, stored = "error", fault.stored
            reply = problem(500, "internal error")
        else:
            reply = self._do(order, seen)
        shown = reply
        if fault and kind is FaultKind.ERROR500 and fault.effect:
            shown = problem(500, "internal error")
            reply = shown if fault.stored else reply
        if entry is not None and stored:
            self._keys.finish(entry, reply)
        elif entry is not None:
            self._keys.forget(entry)
        return shown

    def _do(self, order: Order, seen: Seen) -> Reply:
        """The effect itself."""
        if self._profile.method == "GET":
            seen.outcome = "read"
            served = sum(1 for request in self._ledger.requests if request.outcome == "read")
            return Reply(status=200, body={"value": 42, "served": served})
        effect = self._ledger.done(seen, at_ms=_now_ms(), resource=order.resource, body=order.body)
        seen.outcome = "effect"
        self._announce()
        if order.resource is not None:
            old = self._resources.get(order.resource)
            writes = old.writes + 1 if old else 1
            self._resources[order.resource] = Resource(value=order.body, fence=order.fence, writes=writes)
        return Reply(status=201 if order.resource is None else 200, body=self._profile.answer(effect))

    def _is_stale(self, order: Order) -> bool:
        held = self._resources.get(order.resource or "")
        highest = held.fence if held else None
        return order.fence is not None and highest is not None and order.fence < highest

    async def _stay(self, seen: Seen, fault: Fault | None, when: Literal["before", "after"]) -> None:
        held = fault is not None and fault.kind is FaultKind.HOLD and fault.when == when
        if fault is None or not (held or fault.kind is FaultKind(f"delay_{when}")):
            return
        self._inside[seen.n] = seen
        self._announce()
        try:
            await (self._released.wait() if held else asyncio.sleep(fault.seconds))
        finally:
            self._inside.pop(seen.n, None)
            self._announce()

    # Questions about the past.

    async def _look_up(self, ask: Request, by: Literal["key", "reference"]) -> Reply | Hangup:
        fault = self.faults.draw("lookup")
        seen = self._note(ask, fault)
        seen.outcome = "lookup"
        await self._stay(seen, fault, "before")
        wanted = ask.query.get(by)
        if wanted is None and by == "reference" and {"task", "step"} <= ask.query.keys():
            wanted = f"{ask.query['task']}/{ask.query['step']}"
        if wanted is None:
            reply = problem(400, f"ask by {by}")
        else:
            found = [self._profile.answer(one) for one in self._ledger.effects if getattr(one, by) == wanted]
            reply = Reply(status=200, body={self._profile.noun: found})
        match fault.kind if fault else None:
            case FaultKind.RESET:
                return Hangup.RESET
            case FaultKind.DROP_REPLY | FaultKind.LATE:
                return Hangup.CLOSE
            case FaultKind.ERROR500:
                reply = problem(500, "internal error")
            case FaultKind.REFUSE | FaultKind.BUSY409:
                assert fault is not None
                status = fault.status if fault.kind is FaultKind.REFUSE else 409
                reply = problem(status, "refused", *_retry_after(fault.retry_after_s))
            case _:
                pass
        await self._stay(seen, fault, "after")
        seen.status = reply.status
        return reply

    def _show(self, name: str) -> Reply:
        held = self._resources.get(name)
        if held is None:
            return problem(404, "no such resource")
        return Reply(status=200, body={"name": name, "value": held.value, "fence": held.fence})

    def _note(self, ask: Request, fault: Fault | None) -> Seen:
        seen = self._ledger.arrived(method=ask.method, path=ask.path, at_ms=_now_ms())
        seen.task, seen.step = ask.first("holdfast-task"), ask.first("holdfast-step")
        seen.key = ask.first(self._settings.key_header)
        seen.peer = ask.peer
        seen.body_sha256 = hashlib.sha256(ask.body).hexdigest()
        seen.fault = fault.kind if fault else None
        return seen

    def _new_keys(self) -> KeyTable[Reply]:
        return KeyTable[Reply](window_s=self._settings.window_s, fingerprint=self._settings.fingerprint)


def _busy(seen: Seen, retry_after_s: int | None) -> Reply:
    seen.outcome = "busy"
    return problem(409, "the first request with this key is in flight", *_retry_after(retry_after_s))


def _retry_after(seconds: int | None) -> tuple[tuple[str, str], ...]:
    return () if seconds is None else (("Retry-After", str(seconds)),)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def listen(service: Service, *, port: int, host: str = http_server.LOOPBACK) -> tuple[asyncio.Server, int]:
    """Listen on 127.0.0.1; returns the server and its port."""

    async def answer(request: Request, connection: Connection) -> None:
        reply = await (control(service, request) if request.path.startswith("/_") else service.handle(request))
        if isinstance(reply, Hangup):
            raise Reset if reply is Hangup.RESET else Cut
        kind = "application/json" if reply.status < 400 else "application/problem+json"
        await connection.whole(reply.status, json.dumps(reply.body).encode(), [("Content-Type", kind), *reply.headers])

    return await http_server.listen(answer, port=port, host=host, body_bytes_max=BODY_BYTES_MAX)


async def control(service: Service, ask: Request) -> Reply:
    """Answer a request whose path begins with `/_`."""
    try:
        match (ask.method, ask.path):
            case ("GET", "/_ledger"):
                return _ok(asdict(service.page()))
            case ("POST", "/_faults"):
                return _set_faults(service, parse_object(ask.body).get("faults"))
            case ("GET", "/_waiting"):
                return await _wait(service, ask.query)
            case ("POST", "/_release"):
                return _ok({"released": service.release()})
            case ("POST", "/_reset"):
                service.reset()
                return _ok({})
            case ("POST", "/_clock"):
                service.advance(_seconds(parse_object(ask.body).get("advance_s")))
                return _ok({})
            case _:
                return problem(404, "no such control")
    except (BadOrder, BadFault, ValueError) as error:
        return problem(400, str(error))


def _set_faults(service: Service, faults: object) -> Reply:
    if not isinstance(faults, list):
        raise BadFault('send {"faults": [...]}; an empty list clears them')
    parsed = [parse_fault(item) for item in cast("list[object]", faults)]
    service.faults.set(parsed)
    return _ok({"faults": [fault.to_json() for fault in parsed]})


async def _wait(service: Service, query: dict[str, str]) -> Reply:
    timeout_s = min(float(query.get("timeout_s", "30")), WAIT_S_MAX)
    if "idle" in query:
        return _ok({"idle": await service.wait_idle(timeout_s=timeout_s)})
    if "effects" in query:
        return _ok({"effects": await service.wait_effects(int(query["effects"]), timeout_s=timeout_s)})
    inside = await service.wait_inside(int(query.get("n", "1")), timeout_s=timeout_s)
    return _ok({"inside": [asdict(seen) for seen in inside]})


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise BadOrder("advance_s must be a number of seconds, 0 or more")
    return float(value)


def _ok(body: Body) -> Reply:
    return Reply(status=200, body=body)
