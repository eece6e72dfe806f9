"""The far ends as real processes: each class does what it promises, each fault what it says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.downstream.faults import Fault, FaultKind
from holdfast.downstream.process import FarEnd, FarEndFailed, Kind, start, start_blocking


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: Any  # the far end's JSON


class NoAnswer(Exception):
    """The connection ended without one."""


def request(method: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    fields = {"Host": "far.end", "Connection": "close", "Content-Length": str(len(body)), **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


async def send(end: FarEnd, method: str, path: str, body: object = None, /, **headers: str) -> Answer:
    """Send one request on a connection of its own; header names are written with underscores."""
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    reader, writer = await asyncio.open_connection("127.0.0.1", end.port)
    try:
        writer.write(request(method, path, named, raw))
        answer = await reader.read()
    except ConnectionResetError as error:
        raise NoAnswer("reset") from error
    finally:
        writer.transport.abort()
    if not answer:
        raise NoAnswer("closed")
    head, _, content = answer.partition(b"\r\n\r\n")
    status_line, *lines = head.decode().split("\r\n")
    fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return Answer(status=int(status_line.split()[1]), headers=fields, body=json.loads(content))


async def post(end: FarEnd, key: str, body: object = None, **headers: str) -> Answer:
    content = {"a": 1} if body is None else body
    return await send(end, "POST", "/effects", content, Idempotency_Key=key, **headers)


async def put(end: FarEnd, fence: int, key: str, value: int, name: str = "r") -> Answer:
    return await send(end, "PUT", f"/resources/{name}", {"v": value}, Holdfast_Fence=str(fence), Idempotency_Key=key)


def fault(kind: FaultKind, **fields: Any) -> Fault:
    return Fault(kind=kind, **fields)


async def outcomes(end: FarEnd) -> list[str]:
    return [seen.outcome for seen in (await end.ledger()).requests]


# One behaviour per class.


async def test_read_is_counted_and_changes_nothing() -> None:
    async with start("read") as end:
        first, second = await send(end, "GET", "/value"), await send(end, "GET", "/value")
        page = await end.ledger()
    assert (first.body["value"], second.body["served"]) == (42, 2)
    assert (page.count, [seen.outcome for seen in page.requests]) == (0, ["read", "read"])


async def test_keyed_does_one_effect_per_key_and_repeats_its_answer() -> None:
    async with start("keyed") as end:
        first, again = await post(end, "k1"), await post(end, '"k1"')
        other = await post(end, "k2")
        page = await end.ledger()
        found = await send(end, "GET", "/effects?key=k1")
        missing = await send(end, "GET", "/effects?key=k9")
    assert (first.status, again.status, other.status) == (201, 201, 201)
    assert first.body == again.body != other.body
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert (page.count, page.by_key, page.duplicates) == (2, {"k1": 1, "k2": 1}, 0)
    assert found.body == {"effects": [first.body]}
    assert (missing.status, missing.body) == (200, {"effects": []})


async def test_keyed_checks_the_body_whatever_its_spacing() -> None:
    async with start("keyed") as end:
        await post(end, "k", b'{"a": 1, "b": 2}')
        same = await post(end, "k", b'{"b":2,"a":1}')
        other = await post(end, "k", {"a": 2, "b": 2})
        assert (same.status, other.status) == (201, 422)
        assert other.headers["content-type"] == "application/problem+json"
        assert (await end.ledger()).count == 1


async def test_keyed_may_ignore_the_body() -> None:
    async with start("keyed", fingerprint="ignored") as end:
        first, other = await post(end, "k", {"a": 1}), await post(end, "k", {"a": 2})
        assert first.body == other.body
        assert (await end.ledger()).count == 1


async def test_keyed_forgets_a_key_after_its_window() -> None:
    async with start("keyed", window_s=60) as end:
        await post(end, "k")
        await end.advance_clock(59)
        await post(end, "k")
        assert (await end.ledger()).count == 1
        await end.advance_clock(2)
        await post(end, "k")
        page = await end.ledger()
    assert (page.count, page.duplicates) == (2, 1)


@pytest.mark.parametrize("stored", [True, False])
async def test_keyed_stores_refusals_or_does_not(stored: bool) -> None:
    refuse = fault(FaultKind.REFUSE, status=402)
    async with start("keyed", refusals_stored=stored, faults=[refuse]) as end:
        first, again = await post(end, "k"), await post(end, "k")
        assert first.status == 402
        assert again.status == (402 if stored else 201)
        assert (await end.ledger()).count == (0 if stored else 1)


async def test_keyed_answers_409_while_the_first_is_in_flight() -> None:
    async with start("keyed", faults=[fault(FaultKind.HOLD, when="before")]) as end:
        first = asyncio.create_task(post(end, "k"))
        await end.wait_inside()
        assert (await post(end, "k")).status == 409
        assert (await post(end, "k", {"other": 1})).status == 422
        assert (await post(end, "k2")).status == 201
        await end.release()
        assert (await first).status == 201
        page = await end.ledger()
    assert page.by_key == {"k": 1, "k2": 1}


async def test_keyed_may_offer_no_lookup_and_another_header() -> None:
    async with start("keyed", lookup=False, key_header="X-Key") as end:
        assert (await send(end, "POST", "/effects", {}, X_Key="k")).status == 201
        assert (await send(end, "POST", "/effects", {}, X_Key="k")).status == 201
        assert (await post(end, "k")).status == 400
        assert (await send(end, "GET", "/effects?key=k")).status == 405
        assert (await end.ledger()).count == 1


async def test_queryable_counts_every_request_and_finds_by_reference() -> None:
    async with start("queryable") as end:
        for _ in range(2):
            await send(end, "POST", "/effects", {"reference": "r1"}, Idempotency_Key="k")
        by_step = {"Holdfast_Task": "T", "Holdfast_Step": "4"}
        await send(end, "POST", "/effects", {}, **by_step)
        many = await send(end, "GET", "/effects?reference=r1")
        one = await send(end, "GET", "/effects?task=T&step=4")
        none = await send(end, "GET", "/effects?reference=r2")
        assert (await send(end, "POST", "/effects", {})).status == 400
        assert (await send(end, "GET", "/effects")).status == 400
        page = await end.ledger()
    assert [len(answer.body["effects"]) for answer in (many, one, none)] == [2, 1, 0]
    assert page.by_reference == {"r1": 2, "T/4": 1}
    assert page.duplicates == 1


async def test_fenced_refuses_lower_fences_and_repeats_by_key() -> None:
    async with start("fenced") as end:
        first = await put(end, 5, "k1", 1)
        assert first.status == 200
        assert (await put(end, 4, "k2", 2)).status == 412
        assert (await put(end, 9, "k3", 3)).status == 200
        assert (await put(end, 9, "k5", 3)).status == 200
        # The key comes first: a repeat of what was done is answered, not taken for stale.
        assert (await put(end, 5, "k1", 1)).body == first.body
        assert (await put(end, 1, "k4", 4, "other")).status == 200
        shown = await send(end, "GET", "/resources/r")
        page = await end.ledger()
    assert shown.body == {"name": "r", "value": {"v": 3}, "fence": 9}
    assert [seen.outcome for seen in page.requests] == ["effect", "stale", "effect", "effect", "replayed", "effect"]
    assert page.resources["r"] == {"value": {"v": 3}, "fence": 9, "writes": 3}


async def test_fenced_checks_the_fence_when_it_writes_not_when_it_arrives() -> None:
    async with start("fenced", faults=[fault(FaultKind.HOLD, when="before")]) as end:
        old = asyncio.create_task(put(end, 5, "old", 1))
        await end.wait_inside()
        assert (await put(end, 6, "new", 2)).status == 200
        await end.release()
        assert (await old).status == 412
        assert (await send(end, "GET", "/resources/r")).body["value"] == {"v": 2}


async def test_a_stale_fence_does_not_use_up_its_key() -> None:
    async with start("fenced") as end:
        await put(end, 9, "k1", 1)
        assert (await put(end, 5, "k2", 2)).status == 412
        assert (await put(end, 10, "k2", 2)).status == 200


async def test_idempotent_keeps_the_end_state_and_the_log_of_writes() -> None:
    async with start("idempotent") as end:
        for value in (1, 1, 2):
            headers = {"Holdfast_Task": "T", "Holdfast_Step": str(value)}
            answer = await send(end, "PUT", "/resources/r", {"v": value}, **headers)
            assert answer.status == 200
        assert (await send(end, "GET", "/resources/none")).status == 404
        page = await end.ledger()
    assert [effect.body for effect in page.effects] == [{"v": 1}, {"v": 1}, {"v": 2}]
    assert page.resources["r"] == {"value": {"v": 2}, "fence": None, "writes": 3}
    assert page.duplicates == 0


async def test_unrepeatable_counts_everything_and_answers_no_questions() -> None:
    async with start("unrepeatable") as end:
        for _ in range(2):
            await post(end, "k", Holdfast_Task="T", Holdfast_Step="1")
        assert (await send(end, "GET", "/effects?key=k")).status == 405
        page = await end.ledger()
    assert (page.count, page.duplicates, page.by_base) == (2, 1, {"T/1": 2})


async def test_payment_charges_once_and_declines() -> None:
    async with start("payment") as end:

        async def charge(key: str, **body: Any) -> Answer:
            return await send(end, "POST", "/charges", body, Idempotency_Key=key)

        first = await charge("k1", card="tok_1", cents=12_300)
        again = await charge("k1", card="tok_1", cents=12_300)
        declined = await charge("k2", card="tok_declined", cents=1)
        wrong = [await charge("k3", card="tok_1", cents=cents) for cents in (0, -1, True, "9", 1.5, None)]
        found = await send(end, "GET", "/charges?key=k1")
        page = await end.ledger()
    assert first.body == again.body == {"id": "ch_000001", "cents": 12_300, "currency": "EUR"}
    assert (declined.status, declined.body["title"]) == (402, "the card was declined")
    assert {answer.status for answer in wrong} == {400}
    assert found.body == {"charges": [first.body]}
    assert page.count == 1


async def test_mail_is_found_by_its_reference() -> None:
    async with start("mail") as end:
        sent = await send(end, "POST", "/mails", {"to": "me@example.org", "body": "hi", "reference": "T/3"})
        bad = await send(end, "POST", "/mails", {"to": "nobody", "reference": "x"})
        found = await send(end, "GET", "/mails?reference=T/3")
        page = await end.ledger()
    assert sent.body == {"id": "ml_000001", "to": "me@example.org", "reference": "T/3"}
    assert (found.body, bad.status, page.count) == ({"mails": [sent.body]}, 400, 1)


# Every fault.


async def test_drop_reply_does_the_effect_and_says_nothing() -> None:
    async with start("keyed", faults=[fault(FaultKind.DROP_REPLY)]) as end:
        with pytest.raises(NoAnswer):
            await post(end, "k")
        assert (await end.ledger()).count == 1
        assert (await post(end, "k")).headers["idempotent-replayed"] == "true"
        assert (await end.ledger()).count == 1


async def test_drop_reply_by_chance_follows_its_seed() -> None:
    async def lost(end: FarEnd) -> list[bool]:
        await end.faults(fault(FaultKind.DROP_REPLY, n=None, probability=0.5, seed=7))
        found: list[bool] = []
        for i in range(20):
            try:
                await post(end, f"k{i}")
                found.append(False)
            except NoAnswer:
                found.append(True)
        return found

    async with start("unrepeatable") as end:
        first = await lost(end)
        assert first == await lost(end)
        assert 0 < sum(first) < 20
        assert (await end.ledger()).count == 40


async def test_reset_happens_before_anything_is_done() -> None:
    async with start("keyed", faults=[fault(FaultKind.RESET)]) as end:
        with pytest.raises(NoAnswer, match="reset"):
            await post(end, "k")
        assert ((await end.ledger()).count, await outcomes(end)) == (0, ["reset"])
        assert (await post(end, "k")).status == 201


async def test_error500_without_the_effect_frees_the_key() -> None:
    async with start("keyed", faults=[fault(FaultKind.ERROR500, n=2)]) as end:
        assert [(await post(end, "k")).status for _ in range(3)] == [500, 500, 201]
        assert (await end.ledger()).count == 1


async def test_error500_with_the_effect_hides_a_success() -> None:
    async with start("keyed", faults=[fault(FaultKind.ERROR500, effect=True)]) as end:
        assert (await post(end, "k")).status == 500
        assert (await end.ledger()).count == 1
        assert (await post(end, "k")).status == 201
        assert (await end.ledger()).count == 1


@pytest.mark.parametrize("done", [True, False])
async def test_a_stored_500_is_repeated_for_ever(done: bool) -> None:
    stored = fault(FaultKind.ERROR500, effect=done, stored=True)
    async with start("keyed", faults=[stored]) as end:
        assert [(await post(end, "k")).status for _ in range(3)] == [500, 500, 500]
        assert (await end.ledger()).count == int(done)


async def test_busy409_claims_a_request_in_flight() -> None:
    async with start("keyed", faults=[fault(FaultKind.BUSY409, retry_after_s=2)]) as end:
        busy = await post(end, "k")
        assert (busy.status, busy.headers["retry-after"]) == (409, "2")
        assert (await post(end, "k")).status == 201


async def test_refuse_takes_any_error_status() -> None:
    async with start("unrepeatable") as end:
        await end.faults(fault(FaultKind.REFUSE, status=429, retry_after_s=5, n=2), fault(FaultKind.REFUSE))
        answers = [await post(end, "k") for _ in range(4)]
        assert [answer.status for answer in answers] == [429, 429, 402, 201]
        assert answers[0].headers["retry-after"] == "5"
        assert (await end.ledger()).count == 1


async def test_delay_after_has_done_it_and_delay_before_has_not() -> None:
    async with start("keyed") as end:
        await end.faults(fault(FaultKind.DELAY_AFTER, seconds=600))
        waiting = asyncio.create_task(post(end, "after"))
        inside = await end.wait_inside()
        assert [seen.outcome for seen in inside] == ["effect"]
        assert (await post(end, "after")).headers["idempotent-replayed"] == "true"
        await end.faults(fault(FaultKind.DELAY_BEFORE, seconds=600))
        also = asyncio.create_task(post(end, "before"))
        await end.wait_inside(2)
        assert (await post(end, "before")).status == 409
        assert (await end.ledger()).by_key == {"after": 1}
        for task in (waiting, also):
            task.cancel()
        await asyncio.gather(waiting, also, return_exceptions=True)


async def test_a_short_delay_ends_with_an_answer() -> None:
    async with start("keyed", faults=[fault(FaultKind.DELAY_BEFORE, seconds=0.05)]) as end:
        began = time.monotonic()
        assert (await post(end, "k")).status == 201
        assert time.monotonic() - began >= 0.05


async def test_a_late_request_arrives_after_its_connection_died() -> None:
    """A queryable far end asked too early says no, and then it is done."""
    async with start("queryable", faults=[fault(FaultKind.LATE, seconds=0.2)]) as end:
        body = {"reference": "r"}
        with pytest.raises(NoAnswer):
            await send(end, "POST", "/effects", body)
        early = await send(end, "GET", "/effects?reference=r")
        assert early.body == {"effects": []}
        await send(end, "POST", "/effects", body)
        await end.wait_effects(2)
        assert (await end.ledger()).duplicates == 1


async def test_a_late_request_meets_the_key_it_left_behind() -> None:
    async with start("keyed", faults=[fault(FaultKind.LATE, seconds=0.1)]) as end:
        with pytest.raises(NoAnswer):
            await post(end, "k")
        assert (await post(end, "k")).status == 201
        assert (await outcomes(end))[0] == "late"
        await end.wait_idle()
        assert await outcomes(end) == ["replayed", "effect"]


async def test_a_late_request_may_leave_its_client_waiting() -> None:
    async with start("unrepeatable", faults=[fault(FaultKind.LATE, seconds=0, open=True)]) as end:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await post(end, "k")
        assert (await end.ledger()).count == 1


async def test_hold_after_the_effect_survives_the_death_of_the_client() -> None:
    """What the demo does: the caller dies inside the payment, the charge exists once."""
    async with start("payment", faults=[fault(FaultKind.HOLD)]) as end:
        body = {"card": "tok_1", "cents": 5}
        dying = asyncio.create_task(send(end, "POST", "/charges", body, Idempotency_Key="k"))
        (seen,) = await end.wait_inside()
        assert (seen.key, seen.outcome) == ("k", "effect")
        dying.cancel()
        await asyncio.gather(dying, return_exceptions=True)
        again = await send(end, "POST", "/charges", body, Idempotency_Key="k")
        assert again.headers["idempotent-replayed"] == "true"
        await end.release()
        page = await end.ledger()
    assert (page.count, page.duplicates) == (1, 0)


async def test_hold_before_the_effect_does_it_on_release_though_the_client_is_gone() -> None:
    async with start("unrepeatable", faults=[fault(FaultKind.HOLD, when="before")]) as end:
        dying = asyncio.create_task(post(end, "k"))
        await end.wait_inside()
        dying.cancel()
        await asyncio.gather(dying, return_exceptions=True)
        assert (await end.ledger()).count == 0
        await end.release()
        assert (await end.ledger()).count == 1


async def test_waiting_for_someone_inside_ends_in_time() -> None:
    async with start("keyed") as end:
        with pytest.raises(TimeoutError):
            await end.wait_inside(timeout_s=0.1)
        with pytest.raises(TimeoutError):
            await end.wait_effects(1, timeout_s=0.1)
        await end.faults(fault(FaultKind.LATE, seconds=600))
        with pytest.raises(NoAnswer):
            await post(end, "k")
        with pytest.raises(TimeoutError):
            await end.wait_idle(timeout_s=0.1)


async def test_lookups_have_faults_of_their_own() -> None:
    async with start("queryable") as end:
        await end.faults(
            fault(FaultKind.ERROR500, on="lookup"),
            fault(FaultKind.REFUSE, status=404, on="lookup"),
            fault(FaultKind.DROP_REPLY, on="lookup"),
            fault(FaultKind.RESET, on="lookup"),
        )
        assert (await send(end, "POST", "/effects", {"reference": "r"})).status == 201
        for status in (500, 404):
            assert (await send(end, "GET", "/effects?reference=r")).status == status
        for _ in range(2):
            with pytest.raises(NoAnswer):
                await send(end, "GET", "/effects?reference=r")
        assert len((await send(end, "GET", "/effects?reference=r")).body["effects"]) == 1


async def test_a_request_whose_client_resets_at_once_is_still_counted() -> None:
    """A worker killed right after its send: the kernel delivers, then resets."""
    async with start("unrepeatable") as end:
        for i in range(30):
            with socket.create_connection(("127.0.0.1", end.port)) as raw:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                raw.sendall(request("POST", "/effects", {"Idempotency-Key": f"k{i}"}, b"{}"))
        await end.wait_effects(30)


# Books, log, reset.


async def test_the_ledger_tells_who_asked_for_what_and_the_log_keeps_every_effect(tmp_path: Path) -> None:
    log = tmp_path / "effects.jsonl"
    async with start("keyed", log=log) as end:
        trace = {"Holdfast_Task": "T", "Holdfast_Step": "4.r1"}
        await post(end, "k", **trace)
        await post(end, "k", **trace)
        await post(end, "bad key", **trace)
        page = await end.ledger()
        lines = [json.loads(line) for line in log.read_text().splitlines()]
    (effect,) = page.effects
    assert (effect.task, effect.step, effect.base, effect.key) == ("T", "4.r1", "4", "k")
    assert (effect.request, effect.body) == (1, {"a": 1})
    assert [(seen.n, seen.outcome, seen.status) for seen in page.requests] == [
        (1, "effect", 201),
        (2, "replayed", 201),
        (3, "bad", 400),
    ]
    assert page.requests[0].body_sha256 == page.requests[1].body_sha256 != ""
    assert page.by_base == {"T/4": 1}
    assert [line["id"] for line in lines] == [effect.id]
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


async def test_reset_begins_new_books_and_disowns_what_is_inside() -> None:
    async with start("keyed", faults=[fault(FaultKind.HOLD, when="before")]) as end:
        held = asyncio.create_task(post(end, "k"))
        await end.wait_inside()
        await end.reset()
        assert (await held).status == 503
        page = await end.ledger()
        assert (page.count, page.requests) == (0, ())
        assert (await post(end, "k")).status == 201
        assert [effect.id for effect in (await end.ledger()).effects] == ["ef_000001"]


async def test_one_connection_may_carry_several_requests() -> None:
    async with start("unrepeatable") as end:
        reader, writer = await asyncio.open_connection("127.0.0.1", end.port)
        for _ in range(3):
            writer.write(b"POST /effects HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 201")
            size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            await reader.readexactly(size)
        writer.transport.abort()
        assert (await end.ledger()).count == 3


async def test_many_at_once_with_one_key_make_one_effect() -> None:
    async with start("keyed") as end:
        answers = await asyncio.gather(*(post(end, "k") for _ in range(50)))
        assert {answer.status for answer in answers} <= {201, 409}
        assert (await end.ledger()).by_key == {"k": 1}


# Bad input.


async def test_a_body_that_is_no_json_object_is_400() -> None:
    bodies = [b"", b"{", b"[]", b'"x"', b"null", b'{"a": NaN}', b'{"a": Infinity}', b"\xff"]
    async with start("keyed") as end:
        for body in (*bodies, b"[" * 5000):
            answer = await send(end, "POST", "/effects", body, Idempotency_Key="k")
            assert answer.status == 400, body
            assert answer.headers["content-type"] == "application/problem+json"
        assert (await end.ledger()).count == 0
        # A refused body does not use up its key.
        assert (await post(end, "k")).status == 201


async def test_a_key_outside_the_pattern_is_400() -> None:
    async with start("keyed") as end:
        for key in ("x" * 256, "a b", "a,b", '"', '""', "a\x7f"):
            assert (await post(end, key)).status == 400, key
        assert (await end.ledger()).count == 0


async def test_a_missing_or_repeated_key_is_400() -> None:
    async with start("keyed") as end:
        assert (await send(end, "POST", "/effects", {})).status == 400
        twice = await send(end, "POST", "/effects", {}, Idempotency_Key="a", idempotency_key="b")
        assert twice.status == 400
        assert (await post(end, "x" * 255)).status == 201


async def test_a_fence_that_is_no_number_is_400() -> None:
    async with start("fenced") as end:
        for fence in ("", "-1", "x", "1.5", "\u0661", str(2**64)):
            headers = {"Holdfast_Fence": fence, "Idempotency_Key": "k"}
            assert (await send(end, "PUT", "/resources/r", {}, **headers)).status == 400, fence
        assert (await send(end, "PUT", "/resources/r", {})).status == 400
        assert (await send(end, "PUT", "/resources/a%2Fb", {}, Holdfast_Fence="1")).status == 400
        assert (await end.ledger()).count == 0


async def test_wrong_paths_methods_and_protocols_are_refused() -> None:
    async with start("keyed") as end:
        assert (await send(end, "GET", "/nothing")).status == 404
        assert (await send(end, "DELETE", "/effects")).status == 405
        assert (await send(end, "GET", "/_nothing")).status == 404
        reader, writer = await asyncio.open_connection("127.0.0.1", end.port)
        writer.write(b"not http at all\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400")
        writer.transport.abort()
        large = await send(end, "POST", "/effects", b"x" * (8 * 1024 * 1024 + 1))
        assert large.status == 413
        assert (await end.ledger()).requests == ()


async def test_faults_that_make_no_sense_are_refused_and_change_nothing() -> None:
    async with start("keyed") as end:
        for body in ({}, {"faults": 1}, {"faults": [{"kind": "explode"}]}):
            assert (await send(end, "POST", "/_faults", body)).status == 400
        assert (await send(end, "POST", "/_clock", {"advance_s": -1})).status == 400
        assert (await send(end, "GET", "/_waiting?n=x")).status == 400
        assert (await post(end, "k")).status == 201


# The process.


@pytest.mark.parametrize(
    "kind", ["read", "keyed", "queryable", "fenced", "idempotent", "unrepeatable", "payment", "mail"]
)
async def test_every_kind_starts_and_leaves_nothing_behind(kind: Kind) -> None:
    async with start(kind) as end:
        assert (await end.ledger()).kind == kind
    assert not alive(end.pid)


async def test_an_error_inside_the_context_ends_the_process_too() -> None:
    pid = 0
    with contextlib.suppress(ZeroDivisionError):
        async with start("keyed") as end:
            pid = end.pid
            raise ZeroDivisionError
    assert pid
    assert not alive(pid)


def test_code_without_a_loop_may_use_it() -> None:
    with start_blocking("payment", faults=[fault(FaultKind.REFUSE, n=None)]) as end:
        end.faults()
        end.advance_clock(1)
        end.reset()
        end.release()
        end.wait_idle()
        end.wait_effects(0)
        with pytest.raises(TimeoutError):
            end.wait_inside(timeout_s=0.05)
        assert end.ledger().count == 0
    assert not alive(end.pid)


async def test_a_far_end_that_is_gone_says_so() -> None:
    async with start("keyed") as end:
        pass
    with pytest.raises(FarEndFailed):
        await end.ledger()


async def test_a_far_end_that_cannot_start_says_so(tmp_path: Path) -> None:
    with pytest.raises(FarEndFailed, match="before it was ready"):
        async with start("keyed", log=tmp_path / "missing" / "log"):
            pass


def spawn(*, stdin: int) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    child = subprocess.Popen(
        [sys.executable, "-m", "holdfast.downstream", "--class", "keyed"], stdin=stdin, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    return child, json.loads(child.stdout.readline())


def test_it_ends_when_its_input_closes() -> None:
    child, _ = spawn(stdin=subprocess.PIPE)
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(10) == 0
    assert child.stdout is not None
    child.stdout.close()


def test_without_a_lifeline_it_ends_on_sigterm() -> None:
    child, ready = spawn(stdin=subprocess.DEVNULL)
    with socket.create_connection(("127.0.0.1", ready["port"])):
        child.send_signal(signal.SIGTERM)
        assert child.wait(10) == 0
    assert child.stdout is not None
    child.stdout.close()


def test_it_dies_with_a_parent_that_is_killed() -> None:
    """Even where a forked sibling keeps the input pipe open."""
    script = (
        "import os, sys, time\n"
        "from holdfast.downstream.process import start_blocking\n"
        "with start_blocking('keyed') as end:\n"
        "    if os.fork() == 0:\n"
        "        os.close(1); time.sleep(8); os._exit(0)\n"
        "    print(end.pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 6
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(pid)


def alive(pid: int) -> bool:
    """Running, not merely waiting to be collected."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    assert os.getpid() != pid
    return text.rpartition(")")[2].split()[0] != "Z"
