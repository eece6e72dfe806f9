"""The middleware for services: every case of the draft, repeats at once, deaths in between."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.downstream.idempotency import App, IdempotencyKeys, Message, Receive, Repeated, Scope
from holdfast.downstream.idempotency import Send as AsgiSend
from holdfast.downstream.key_store import Asked, KeyState, KeyStore, StoredAnswer
from holdfast_proofs.support.asgi import Reply, post


class Service:
    """Counts what it does; answers as it is told."""

    def __init__(self) -> None:
        self.done = 0
        self.bodies: list[bytes] = []
        self.status = 201
        self.entered = asyncio.Event()
        self.gate: asyncio.Event | None = None
        self.error: BaseException | None = None
        self.answer = b""

    async def __call__(self, scope: Scope, receive: Receive, send: AsgiSend) -> None:
        message = await receive()
        self.bodies.append(message["body"])
        self.done += 1
        self.entered.set()
        number = self.done
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        body = self.answer or json.dumps({"number": number}).encode()
        await send(
            {
                "type": "http.response.start",
                "status": self.status,
                "headers": [(b"Content-Type", b"application/json"), (b"X-Number", b"%d" % number)],
            }
        )
        half = len(body) // 2
        await send({"type": "http.response.body", "body": body[:half], "more_body": True})
        await send({"type": "http.response.body", "body": body[half:]})


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def guarded(service: Service, tmp_path: Path) -> Callable[..., IdempotencyKeys]:
    """The service behind the middleware; each call is like another process with the same table."""

    def make(app: App = service, **options: Any) -> IdempotencyKeys:
        return IdempotencyKeys(app, store=tmp_path / "state" / "keys.db", **options)

    return make


Guard = Callable[..., IdempotencyKeys]


async def test_a_repeat_gets_the_first_answer(service: Service, guarded: Guard) -> None:
    app = guarded()
    first, again = await post(app), await post(app)
    assert (first.status, first.json, first.replayed) == (201, {"number": 1}, False)
    assert (again.status, again.json, again.replayed) == (201, {"number": 1}, True)
    assert again.headers["x-number"] == "1"
    assert service.done == 1


async def test_the_quoted_and_the_bare_form_are_one_key(service: Service, guarded: Guard) -> None:
    app = guarded()
    await post(app, key='"8e03978e"')
    assert (await post(app, key="8e03978e")).replayed
    assert service.done == 1


async def test_another_process_knows_the_answer_too(service: Service, guarded: Guard) -> None:
    await post(guarded())
    assert (await post(guarded())).replayed
    assert service.done == 1


async def test_other_keys_paths_methods_and_callers_are_other_requests(service: Service, guarded: Guard) -> None:
    app = guarded()
    await post(app)
    others: list[dict[str, Any]] = [
        {"key": "k-2"},
        {"path": "/mail"},
        {"method": "PATCH"},
        {"authorization": "Bearer ada"},
    ]
    for other in others:
        assert not (await post(app, **other)).replayed
    assert service.done == 5


@pytest.mark.parametrize(
    "other", [{"body": b'{"n": 2}'}, {"query": b"a=1"}, {"content_type": "text/plain"}, {"body": b""}]
)
async def test_the_same_key_with_another_request_is_refused(
    service: Service, guarded: Guard, other: dict[str, Any]
) -> None:
    app = guarded()
    await post(app)
    refused = await post(app, **other)
    assert (refused.status, refused.json["title"]) == (422, "key-reused")
    assert refused.headers["content-type"] == "application/problem+json"
    assert service.done == 1


async def test_a_key_is_needed(service: Service, guarded: Guard) -> None:
    missing = await post(guarded(), key=None)
    assert (missing.status, missing.json["title"]) == (400, "key-missing")
    assert service.done == 0


@pytest.mark.parametrize("key", ["", " ", '""', "a b", "a,b", "é", "x" * 256, '"a"b"', "a\\b"])
async def test_a_key_of_another_form_is_refused(service: Service, guarded: Guard, key: str) -> None:
    wrong = await post(guarded(), key=key)
    assert (wrong.status, wrong.json["title"]) == (400, "key-malformed")
    assert service.done == 0


async def test_two_keys_in_one_request_are_refused(service: Service, guarded: Guard) -> None:
    wrong = await post(guarded(), Idempotency_Key="k-2")
    assert wrong.status == 400
    assert service.done == 0


async def test_reading_needs_no_key(service: Service, guarded: Guard) -> None:
    assert (await post(guarded(), method="GET", key=None)).status == 201

    def applies(scope: Scope) -> bool:
        return scope["path"] != "/search"

    exempt = guarded(applies=applies)
    assert (await post(exempt, path="/search", key=None)).status == 201
    assert service.done == 2


async def test_while_the_first_is_at_work_others_are_asked_to_come_back(service: Service, guarded: Guard) -> None:
    service.gate = asyncio.Event()
    app, other_process = guarded(), guarded()
    first = asyncio.create_task(post(app))
    await service.entered.wait()
    for busy in (await post(app), await post(other_process)):
        assert (busy.status, busy.json["title"]) == (409, "in-flight")
        assert busy.headers["retry-after"] == "1"
    service.gate.set()
    assert (await first).json == {"number": 1}
    assert (await post(other_process)).replayed
    assert service.done == 1


async def test_a_thousand_repeats_at_once_execute_once(service: Service, guarded: Guard) -> None:
    processes = [guarded() for _ in range(4)]
    began = time.perf_counter()
    replies = await asyncio.gather(*(post(processes[n % 4]) for n in range(1_000)))
    took = time.perf_counter() - began
    assert service.done == 1
    statuses = [(one.status, one.replayed) for one in replies]
    assert statuses.count((201, False)) == 1
    assert set(statuses) <= {(201, False), (201, True), (409, False)}
    assert took < 60


async def test_the_app_ends_also_where_the_caller_has_gone(service: Service, guarded: Guard) -> None:
    service.gate = asyncio.Event()
    app = guarded()
    first = asyncio.create_task(post(app))
    await service.entered.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert (await post(app)).status == 409
    service.gate.set()
    again = await _until_answered(app)
    assert (again.json, again.replayed) == ({"number": 1}, True)


async def _until_answered(app: App) -> Reply:
    for _ in range(200):
        reply = await post(app)
        if reply.status != 409:
            return reply
        await asyncio.sleep(0.01)
    raise AssertionError("it is in flight for ever")


async def test_refusals_of_the_app_are_answers_too(service: Service, guarded: Guard) -> None:
    service.status = 402
    app = guarded()
    await post(app)
    service.status = 201
    again = await post(app)
    assert (again.status, again.replayed) == (402, True)
    assert service.done == 1


@pytest.mark.parametrize("status", [401, 403, 408, 425, 429])
async def test_what_was_not_begun_leaves_the_key_free(service: Service, guarded: Guard, status: int) -> None:
    service.status = status
    app = guarded()
    assert (await post(app)).status == status
    service.status = 201
    assert (await post(app)).status == 201


@pytest.mark.parametrize("how", ["raises", "answers 500"])
async def test_an_error_leaves_the_key_in_doubt(service: Service, guarded: Guard, how: str) -> None:
    app = guarded()
    await _fail(service, app, how)
    doubt = await post(app)
    assert (doubt.status, doubt.json["title"]) == (409, "outcome-unknown")
    assert "retry-after" not in doubt.headers, "asking again soon does not help"
    assert service.done == 1


async def _fail(service: Service, app: App, how: str) -> None:
    if how == "raises":
        service.error = RuntimeError("half way")
        with pytest.raises(RuntimeError, match="half way"):
            await post(app)
        service.error = None
    else:
        service.status = 500
        assert (await post(app)).status == 500
        service.status = 201


async def test_a_service_may_promise_that_errors_change_nothing(service: Service, guarded: Guard) -> None:
    app = guarded(errors_change_nothing=True)
    for how in ("raises", "answers 500"):
        await _fail(service, app, how)
    again = await post(app)
    assert (again.status, again.replayed) == (201, False)


async def test_the_services_own_books_decide_a_doubt(service: Service, guarded: Guard) -> None:
    asked: list[tuple[str, bytes]] = []

    async def recover(repeated: Repeated) -> StoredAnswer | None:
        asked.append((repeated.key, repeated.body))
        return StoredAnswer(status=201, headers=(), body=b'{"number": 7}')

    app = guarded(recover=recover)
    await _fail(service, app, "raises")
    for _ in range(2):
        found = await post(app)
        assert (found.status, found.json, found.replayed) == (201, {"number": 7}, True)
    assert asked == [("k-1", b'{"n": 1}')], "the answer is kept, the books are asked once"
    assert service.done == 1


async def test_books_that_say_nothing_was_done_let_it_begin_anew(service: Service, guarded: Guard) -> None:
    async def recover(_repeated: Repeated) -> StoredAnswer | None:
        return None

    app = guarded(recover=recover)
    await _fail(service, app, "raises")
    assert (await post(app)).json == {"number": 2}
    assert (await post(app)).replayed


async def test_books_that_cannot_be_read_leave_the_doubt(service: Service, guarded: Guard) -> None:
    async def recover(_repeated: Repeated) -> StoredAnswer | None:
        raise ConnectionError("the books are closed")

    app = guarded(recover=recover)
    await _fail(service, app, "raises")
    with pytest.raises(ConnectionError):
        await post(app)
    assert (await post(guarded())).json["title"] == "outcome-unknown"
    assert service.done == 1


async def test_one_step_of_a_task_under_two_keys_is_done_once(service: Service, guarded: Guard) -> None:
    app = guarded()
    await post(app, holdfast_task="T1", holdfast_step="4")
    assert (await post(app, key="other", holdfast_task="T1", holdfast_step="4")).replayed
    assert not (await post(app, key="next", holdfast_task="T1", holdfast_step="5")).replayed
    assert service.done == 2


async def test_task_and_step_stand_in_for_a_key(service: Service, guarded: Guard) -> None:
    app = guarded()
    for replayed in (False, True):
        reply = await post(app, key=None, holdfast_task="T1", holdfast_step="4.r1")
        assert (reply.status, reply.replayed) == (201, replayed)


async def test_bodies_in_pieces_and_limits(service: Service, guarded: Guard) -> None:
    app = guarded(body_bytes_max=100)
    assert (await post(app, b"x" * 100, chunks=7)).status == 201
    assert service.bodies == [b"x" * 100]
    large = await post(app, b"x" * 101, key="k-2", chunks=7)
    assert (large.status, large.json["title"]) == (413, "body-too-large")
    service.answer = b"y" * 101
    with pytest.raises(ValueError, match="cannot be stored"):
        await post(app, key="k-3")
    assert (await post(app, key="k-3")).json["title"] == "outcome-unknown"


async def test_a_caller_that_leaves_before_its_request_is_whole_has_asked_nothing(
    service: Service, guarded: Guard
) -> None:
    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise AssertionError(message)

    scope: Scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    await guarded()(scope, receive, send)
    assert service.done == 0


async def test_other_protocols_pass(guarded: Guard) -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: AsgiSend) -> None:
        seen.append(scope["type"])

    async def nothing(*_: Any) -> Any:
        return None

    await guarded(app)({"type": "lifespan"}, nothing, nothing)
    assert seen == ["lifespan"]


async def test_the_table_is_private(guarded: Guard, tmp_path: Path) -> None:
    await post(guarded())
    state = tmp_path / "state"
    assert state.stat().st_mode & 0o777 == 0o700
    assert (state / "keys.db").stat().st_mode & 0o777 == 0o600


def test_keys_are_forgotten_after_their_retention_but_never_in_doubt(tmp_path: Path) -> None:
    now = [1_000_000]
    store = KeyStore(tmp_path / "s" / "keys.db", retention_s=10, wall_ms=lambda: now[0])
    done, doubtful = (Asked(scope=b"s", key=key, fingerprint=b"f") for key in ("done", "doubt"))
    for one in (done, doubtful):
        assert store.ask(one)[0] is KeyState.NEW
    store.answer(done, StoredAnswer(status=200, headers=((b"a", b"\xff"),), body=b"yes"))
    store.doubt(doubtful)
    now[0] += 10_000
    finding, answer = store.ask(done)
    assert (finding, answer) == (KeyState.ANSWERED, StoredAnswer(status=200, headers=((b"a", b"\xff"),), body=b"yes"))
    now[0] += 1
    assert store.ask(done)[0] is KeyState.NEW
    assert store.ask(doubtful)[0] is KeyState.IN_DOUBT
    store.close()


async def test_an_answer_that_cannot_be_stored_leaves_a_doubt(
    service: Service, guarded: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise apsw.FullError("no space")

    app = guarded()
    with monkeypatch.context() as patched:
        patched.setattr(KeyStore, "_keep", full)
        with pytest.raises(apsw.FullError):
            await post(app)
    assert (await post(app)).json["title"] == "outcome-unknown"
    assert service.done == 1


DYING = """
import asyncio
from holdfast.downstream.idempotency import IdempotencyKeys
from holdfast_proofs.support.asgi import post

async def service(scope, receive, send):
    await receive()
    with open({books!r}, "a") as books:
        books.write("done\\n")
    print("inside", flush=True)
    await asyncio.sleep(60)

asyncio.run(post(IdempotencyKeys(service, store={store!r})))
"""


async def test_a_service_killed_inside_its_work_leaves_a_doubt(
    service: Service, guarded: Guard, tmp_path: Path
) -> None:
    books, store = tmp_path / "books", tmp_path / "state" / "keys.db"
    text = DYING.format(books=str(books), store=str(store))
    dying = await asyncio.create_subprocess_exec(sys.executable, "-c", text, stdout=asyncio.subprocess.PIPE)
    assert dying.stdout is not None
    assert await dying.stdout.readline() == b"inside\n"
    assert (await post(guarded())).json["title"] == "in-flight"
    dying.kill()
    await dying.wait()
    assert (await post(guarded())).json["title"] == "outcome-unknown"
    assert service.done == 0

    async def recover(_repeated: Repeated) -> StoredAnswer | None:
        return StoredAnswer(status=200, headers=(), body=books.read_bytes())

    assert (await post(guarded(recover=recover))).body == b"done\n"
