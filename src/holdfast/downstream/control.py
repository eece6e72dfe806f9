"""The side door of a far end, for those who test against it: books, faults, holds, clock."""

from __future__ import annotations

from dataclasses import asdict
from typing import cast

from holdfast.downstream.faults import BadFault, parse_fault
from holdfast.downstream.order import Ask, BadOrder, Reply, parse_object, problem
from holdfast.downstream.profiles import Body
from holdfast.downstream.service import Service

WAIT_S_MAX = 600.0


async def control(service: Service, ask: Ask) -> Reply:
    """Answer a request whose path begins with `/_`."""
    try:
        match (ask.method, ask.path):
            case ("GET", "/_ledger"):
                return _ok(asdict(service.page()))
            case ("POST", "/_faults"):
                return _set_faults(service, parse_object(ask.body))
            case ("GET", "/_waiting"):
                return await _wait(service, ask.query)
            case ("POST", "/_release"):
                return _ok({"released": service.release()})
            case ("POST", "/_reset"):
                service.reset()
                return _ok({})
            case ("POST", "/_clock"):
                seconds = parse_object(ask.body).get("advance_s")
                service.advance(_seconds(seconds))
                return _ok({})
            case _:
                return problem(404, "no such control")
    except (BadOrder, BadFault, ValueError) as error:
        return problem(400, str(error))


def _set_faults(service: Service, body: Body) -> Reply:
    faults = body.get("faults")
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
        wanted = int(query["effects"])
        return _ok({"effects": await service.wait_effects(wanted, timeout_s=timeout_s)})
    inside = await service.wait_inside(int(query.get("n", "1")), timeout_s=timeout_s)
    return _ok({"inside": [asdict(seen) for seen in inside]})


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise BadOrder("advance_s must be a number of seconds, 0 or more")
    return float(value)


def _ok(body: Body) -> Reply:
    return Reply(status=200, body=body)
