"""One far end on a loopback socket: requests go to the service, `/_...` to its side door.

The side door is for those who test against it: books, faults, holds, clock.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import cast

from holdfast.downstream import http_server
from holdfast.downstream.faults import BadFault, parse_fault
from holdfast.downstream.http_server import Connection, Cut, Request, Reset
from holdfast.downstream.order import BadOrder, Reply, parse_object, problem
from holdfast.downstream.profiles import Body
from holdfast.downstream.service import Hangup, Service

BODY_BYTES_MAX = 8 * 1024 * 1024
WAIT_S_MAX = 600.0


async def listen(service: Service, *, port: int) -> tuple[asyncio.Server, int]:
    """Listen on 127.0.0.1; returns the server and its port."""

    async def answer(request: Request, connection: Connection) -> None:
        reply = await (control(service, request) if request.path.startswith("/_") else service.handle(request))
        if isinstance(reply, Hangup):
            raise Reset if reply is Hangup.RESET else Cut
        kind = "application/json" if reply.status < 400 else "application/problem+json"
        await connection.whole(reply.status, json.dumps(reply.body).encode(), [("Content-Type", kind), *reply.headers])

    return await http_server.listen(answer, port=port, body_bytes_max=BODY_BYTES_MAX)


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
