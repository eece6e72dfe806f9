"""Requests to an ASGI app without a server: the protocol's own messages."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from holdfast.downstream.idempotency import App, Message


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:  # Any: JSON
        return json.loads(self.body)

    @property
    def replayed(self) -> bool:
        return self.headers.get("idempotency-replayed") == "true"


async def post(
    app: App,
    body: bytes = b'{"n": 1}',
    *,
    key: str | None = "k-1",
    path: str = "/pay",
    method: str = "POST",
    query: bytes = b"",
    chunks: int = 1,
    **headers: str,
) -> Reply:
    fields = [(b"content-type", b"application/json")]
    fields += [(n.replace("_", "-").encode(), v.encode("latin-1")) for n, v in headers.items()]
    if key is not None:
        fields.append((b"idempotency-key", key.encode("latin-1")))
    scope = {"type": "http", "method": method, "path": path, "query_string": query, "headers": fields}
    size = -(-len(body) // chunks) or 1
    parts = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
    sent: list[Message] = []

    async def receive() -> Message:
        if parts:
            part = parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(parts)}
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start, *rest = sent
    named = {bytes(n).decode(): bytes(v).decode("latin-1") for n, v in start.get("headers", ())}
    return Reply(start["status"], named, b"".join(one.get("body", b"") for one in rest))
