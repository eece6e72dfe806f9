"""One far end on a loopback socket: requests go to the service, `/_...` to its side door."""

from __future__ import annotations

import asyncio
import json

from holdfast.downstream import http_server
from holdfast.downstream.control import control
from holdfast.downstream.http_server import Connection, Cut, Request, Reset
from holdfast.downstream.order import Ask
from holdfast.downstream.service import Hangup, Service

BODY_BYTES_MAX = 8 * 1024 * 1024


async def listen(service: Service, *, port: int) -> tuple[asyncio.Server, int]:
    """Listen on 127.0.0.1; returns the server and its port."""

    async def answer(request: Request, connection: Connection) -> None:
        ask = Ask(method=request.method, target=request.target, headers=request.headers, body=request.body)
        reply = await (control(service, ask) if ask.path.startswith("/_") else service.handle(ask))
        if isinstance(reply, Hangup):
            raise Reset if reply is Hangup.RESET else Cut
        kind = "application/json" if reply.status < 400 else "application/problem+json"
        await connection.whole(reply.status, json.dumps(reply.body).encode(), [("Content-Type", kind), *reply.headers])

    return await http_server.listen(answer, port=port, body_bytes_max=BODY_BYTES_MAX)
