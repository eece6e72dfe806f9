"""ASGI middleware that makes a service's effectful routes safe to repeat.

    app = IdempotencyKeys(app, store="keys.db")

After draft-ietf-httpapi-idempotency-key-header. A request to an effectful route must carry an
`Idempotency-Key`; the first one with a key is handed to the app, every other one is answered here:

* 400: no key, or not of the published form;
* 409: the first request is still at work (Retry-After says when to ask again), or what became of
  it is not known;
* 422: the key was used with another method, path, query, type or body;
* the stored answer, with `Idempotency-Replayed: true`, once there is one.

Callers that run on Holdfast also say which task and step they are; a repeat of the same step under
another key, which no correct caller sends, meets the same row.

The app runs to its end whether or not the caller still listens, and its answer is durable before
the first byte of it is sent. Where it raises, answers with 5xx or dies, the key is in doubt:
`recover` may ask the service's own books, else repeats get 409 until a person has looked. A
service that promises that a 5xx has changed nothing says `errors_change_nothing=True`.

Keys are kept for `retention_s` from their first request (30 days): publish it, callers rely on it.
They are scoped by who asks (`caller`, by default a hash of the Authorization header), by method
and by path. Request and answer bodies are held in memory up to `body_bytes_max`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from holdfast.downstream.key_store import Asked, KeyState, KeyStore, StoredAnswer
from holdfast.downstream.keys import BadKey, parse_key

# Any in this file: ASGI's own messages and scopes are dictionaries of mixed values.
Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Recover = Callable[["Repeated"], Awaitable[StoredAnswer | None]]
T = TypeVar("T")

RETENTION_S = 30 * 86_400.0
BODY_BYTES_MAX = 4 * 1024 * 1024
NAME_CHARS_MAX = 200
# Answers that say that the work was not begun: the key stays free.
NOT_BEGUN = frozenset((401, 403, 408, 425, 429))
_HOP_BY_HOP = frozenset((b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"date"))


class Repeated(msgspec.Struct, frozen=True, kw_only=True):
    """A request whose first try is in doubt, for `recover`: find out what it did."""

    scope: Scope
    key: str
    task: str
    step: str
    body: bytes


class _Wrong(Exception):
    """The request cannot be taken; answered with this status and text."""

    def __init__(self, status: int, title: str, detail: str, retry_after_s: int = 0) -> None:
        super().__init__(detail)
        self.status = status
        self.title = title
        self.detail = detail
        self.retry_after_s = retry_after_s


def _by_authorization(scope: Scope) -> str:
    found = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
    return hashlib.sha256(b"\0".join(found)).hexdigest() if found else ""


@dataclass(eq=False, repr=False)
class IdempotencyKeys:
    """Wraps an ASGI app; see the head of this module."""

    app: App
    _: KW_ONLY
    store: (
        str | Path
    )  # the key table; its folder is made private. All processes of the service share it, on one machine
    methods: Collection[str] = ("POST", "PATCH")
    applies: Callable[[Scope], bool] = lambda scope: True  # which requests with these methods are effectful
    caller: Callable[[Scope], str] = _by_authorization
    # Asked about a key in doubt: the answer to give, or None where nothing was done and the work may begin again.
    recover: Recover | None = None
    errors_change_nothing: bool = False
    retention_s: float = RETENTION_S
    body_bytes_max: int = BODY_BYTES_MAX

    def __post_init__(self) -> None:
        self._methods = frozenset(method.upper() for method in self.methods)
        self._keys: KeyStore | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._pid = 0
        self._working: set[asyncio.Task[StoredAnswer]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        effectful = scope["type"] == "http" and scope["method"] in self._methods
        if not effectful or not self.applies(scope):
            await self.app(scope, receive, send)
            return
        try:
            body = await self._read(receive)
            asked = self._asked(scope, body)
            answer, replayed = await self._answer(scope, asked, body)
        except _Wrong as wrong:
            await _send(send, _problem(wrong))
            return
        except _Gone:
            return
        await _send(send, answer, replayed=replayed)

    async def _answer(self, scope: Scope, asked: Asked, body: bytes) -> tuple[StoredAnswer, bool]:
        finding, answer = await self._on_store(lambda store: store.ask(asked))
        match finding:
            case KeyState.NEW:
                return await self._work(scope, asked, body), False
            case KeyState.ANSWERED if answer is not None:
                return answer, True
            case KeyState.OTHER_BODY:
                raise _Wrong(422, "key-reused", "this Idempotency-Key was used with another request")
            case KeyState.IN_DOUBT:
                return await self._settle(scope, asked, body)
            case _:
                raise _Wrong(409, "in-flight", "the first request is still at work", 1)

    async def _settle(self, scope: Scope, asked: Asked, body: bytes) -> tuple[StoredAnswer, bool]:
        """The first try is gone and its outcome unknown: the service's own books decide."""
        if self.recover is None:
            raise _Wrong(
                409, "outcome-unknown", "the first request ended without an answer; whether it took effect is not known"
            )
        if not await self._on_store(lambda store: store.take_over(asked)):
            raise _Wrong(409, "in-flight", "another request is finding out what was done", 1)
        try:
            known = await self.recover(
                Repeated(scope=scope, key=asked.key, task=asked.task, step=asked.step, body=body)
            )
        except BaseException:  # the service's own code, or a cancel: what was done stays unknown, whatever ended it
            await self._on_store(lambda store: store.doubt(asked))
            raise
        if known is None:
            return await self._work(scope, asked, body), False
        await self._on_store(lambda store: store.answer(asked, known))
        return known, True

    async def _work(self, scope: Scope, asked: Asked, body: bytes) -> StoredAnswer:
        """Let the app do it, to its end, also where the caller has gone."""
        task = asyncio.ensure_future(self._work_out(scope, asked, body))
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        return await asyncio.shield(task)

    async def _work_out(self, scope: Scope, asked: Asked, body: bytes) -> StoredAnswer:
        try:
            answer = await _call(self.app, scope, body, body_bytes_max=self.body_bytes_max)
        except BaseException:  # the app's own code, or a cancel: whatever ended it, the key must not stay in flight
            await self._leave(asked)
            raise
        if answer.status >= 500:
            await self._leave(asked)
        elif answer.status in NOT_BEGUN:
            await self._on_store(lambda store: store.free(asked))
        else:
            await self._on_store(lambda store: store.answer(asked, answer))
        return answer

    async def _leave(self, asked: Asked) -> None:
        leave = KeyStore.free if self.errors_change_nothing else KeyStore.doubt
        await self._on_store(lambda store: leave(store, asked))

    def _asked(self, scope: Scope, body: bytes) -> Asked:
        headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        task, step = _one(headers, b"holdfast-task"), _one(headers, b"holdfast-step")
        try:
            key = parse_key(_all_of(headers, b"idempotency-key"))
        except BadKey as error:
            raise _Wrong(400, "key-malformed", str(error)) from None
        if key is None and task and step:
            key = f"{task}/{step}"
        if key is None:
            raise _Wrong(400, "key-missing", "this route changes something: send an Idempotency-Key header")
        route = f"{self.caller(scope)}\0{scope['method']}\0{scope['path']}"
        kind = b"\0".join(v for n, v in headers if n.lower() == b"content-type")
        parts = (bytes(scope.get("query_string", b"")), kind, body)
        sized = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return Asked(
            scope=hashlib.sha256(route.encode()).digest(),
            key=key,
            fingerprint=hashlib.sha256(sized).digest(),
            task=task if step else "",
            step=step,
        )

    async def _read(self, receive: Receive) -> bytes:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            body += message.get("body", b"")
            if len(body) > self.body_bytes_max:
                raise _Wrong(413, "body-too-large", f"at most {self.body_bytes_max} bytes can be kept")
            if not message.get("more_body"):
                return bytes(body)

    async def _on_store(self, act: Callable[[KeyStore], T]) -> T:
        """In the one thread that uses the table; opened again in a forked process."""
        if self._thread is None or self._pid != os.getpid():
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="idempotency-keys")
            self._keys, self._pid = None, os.getpid()

        def run() -> T:
            if self._keys is None:
                self._keys = KeyStore(
                    Path(self.store), retention_s=self.retention_s, wall_ms=lambda: time.time_ns() // 1_000_000
                )
            return act(self._keys)

        # A cancelled request must not leave its row half written.
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, run))


class _Gone(Exception):
    """The caller went away before the request was complete: nothing was asked."""


async def _call(app: App, scope: Scope, body: bytes, *, body_bytes_max: int) -> StoredAnswer:
    """The app's whole answer to the whole request."""
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    over = asyncio.Event()
    started: list[Message] = []
    kept = bytearray()

    async def receive() -> Message:
        if unread:
            return unread.pop()
        await over.wait()  # the caller's leaving is no concern of the app's
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            started.append(message)
        elif message["type"] == "http.response.body":
            kept.extend(message.get("body", b""))
            if len(kept) > body_bytes_max:
                raise ValueError(f"the answer has more than {body_bytes_max} bytes and cannot be stored")
            if not message.get("more_body"):
                over.set()

    await app(scope, receive, send)
    if not started or not over.is_set():
        raise RuntimeError("the app ended before its answer was complete")
    headers = tuple(
        (bytes(name).lower(), bytes(value))
        for name, value in started[0].get("headers", ())
        if bytes(name).lower() not in _HOP_BY_HOP
    )
    return StoredAnswer(status=started[0]["status"], headers=headers, body=bytes(kept))


async def _send(send: Send, answer: StoredAnswer, *, replayed: bool = False) -> None:
    headers = [*answer.headers, *([(b"idempotency-replayed", b"true")] if replayed else [])]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


def _problem(wrong: _Wrong) -> StoredAnswer:
    """RFC 9457 problem details."""
    body = json.dumps({"title": wrong.title, "status": wrong.status, "detail": wrong.detail}).encode()
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode())]
    if wrong.retry_after_s:
        headers.append((b"retry-after", str(wrong.retry_after_s).encode()))
    return StoredAnswer(status=wrong.status, headers=tuple(headers), body=body)


def _all_of(headers: list[tuple[bytes, bytes]], name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in headers if key.lower() == name]


def _one(headers: list[tuple[bytes, bytes]], name: bytes) -> str:
    """A name that Holdfast gives; anything else is as if it were not there."""
    found = _all_of(headers, name)
    fits = len(found) == 1 and 0 < len(found[0]) <= NAME_CHARS_MAX and found[0].isprintable()
    return found[0] if fits else ""
