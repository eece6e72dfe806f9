"""Objects: conditions and signatures as the store checks them; its book is the judge."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import holdfast
from holdfast.contracts import Objects, sigv4
from holdfast.errors import Misuse
from holdfast.journal.records import TaskState
from holdfast.testing.far_ends.objects import ObjectStore, Written, signature
from holdfast.testing.far_ends.web import Ask, Trouble
from holdfast.testing.lab import Lab, wait_state

ACCESS, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
HANDLES: dict[str, Any] = {"access_key": "secret://s3-id", "secret_key": "secret://s3-key"}
DONE = (TaskState.SUCCEEDED, TaskState.PARKED, TaskState.FAILED)


@pytest.fixture
async def store(keep: Callable[[str, str], None]) -> AsyncGenerator[ObjectStore]:
    keep("s3-id", ACCESS)
    keep("s3-key", SECRET)
    async with ObjectStore(access_key=ACCESS, secret_key=SECRET) as made:
        yield made


def tools(store: ObjectStore) -> Objects:
    return Objects("reports", url=store.url, **HANDLES)


async def play(lab: Lab, tool: holdfast.Tool[..., Any], **args: Any) -> tuple[TaskState, Any]:
    @holdfast.task
    async def one(run: holdfast.Run) -> Any:
        try:
            return await run.call(tool, **args)
        except holdfast.Refused as error:
            return ["refused", error.proof["status"]]

    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        row = await wait_state(handle, *DONE)
        view = await handle.view()
        return row.state, view.outcome["result"] if view.outcome else view.steps["1"].question


@pytest.mark.parametrize("verb", ["put", "create"])
@pytest.mark.parametrize(
    "troubles",
    [
        [],
        [Trouble("lose")],
        [Trouble("reset")],
        [Trouble("refuse", 503)],
        [Trouble("refuse", 409)],
        [Trouble("after", 500), Trouble("lose")],
        [Trouble("refuse", 429, {"retry-after": "1"})],
    ],
    ids=["plain", "reply lost", "reset", "503", "409", "500 done", "429"],
)
async def test_the_object_is_there_once_whatever_becomes_of_the_answer(
    lab: Lab, store: ObjectStore, verb: str, troubles: list[Trouble]
) -> None:
    store.troubles += troubles
    state, result = await play(lab, getattr(tools(store), verb), key="2026/a b+c ü.txt", text="hello")
    assert state is TaskState.SUCCEEDED
    assert result["etag"] == "5d41402abc4b2a76b9719d911017c592"
    assert {one.body for one in store.writes} == {b"hello"}
    assert set(store.objects) == {"2026/a b+c ü.txt"}
    if verb == "create":
        assert len(store.writes) == 1


async def test_create_is_refused_where_another_one_is(lab: Lab, store: ObjectStore) -> None:
    store.objects["a"] = Written("a", b"theirs", "", "e1", "")
    assert await play(lab, tools(store).create, key="a", text="ours") == (TaskState.SUCCEEDED, ["refused", 412])
    assert store.writes == []


async def test_replace_takes_only_what_was_seen(lab: Lab, store: ObjectStore) -> None:
    objects = tools(store)

    @holdfast.task
    async def edit(run: holdfast.Run) -> Any:
        first = await run.call(objects.create, key="page", text="one")
        store.troubles.append(Trouble("lose"))
        second = await run.call(objects.replace, key="page", etag=first["etag"], text="two")
        try:
            await run.call(objects.replace, key="page", etag=first["etag"], text="three")
        except holdfast.Refused as error:
            seen = await run.call(objects.get, key="page")
            gone = await run.call(objects.head, key="nothing")
            return [error.proof["status"], error.proof["etag"], seen["text"], gone, second["etag"]]

    async with lab.open(edit) as hf:
        result = await (await hf.submit(edit)).result(20)
    assert [one.body for one in store.writes] == [b"one", b"two"]
    assert result[:4] == [412, f'"{result[4]}"', "two", None]


async def test_who_won_cannot_be_said_after_a_lost_reply_and_another_writer(lab: Lab, store: ObjectStore) -> None:
    """Ours may have been there in between: no refusal is recorded, a person is asked."""
    store.troubles += [Trouble("reset")]
    store.objects["a"] = Written("a", b"theirs", "", "e1", "")
    state, question = await play(lab, tools(store).create, key="a", text="ours")
    assert state is TaskState.PARKED
    assert "attempts are used up" in question
    assert store.writes == []


async def test_bytes_and_files(lab: Lab, store: ObjectStore) -> None:
    objects = tools(store)
    raw = bytes(range(256))

    @holdfast.task
    async def save(run: holdfast.Run) -> Any:
        (run.scratch.path / "report.bin").write_bytes(raw * 100)
        await run.call(objects.put, key="f", file="report.bin", kind="application/x-report")
        await run.call(objects.put, key="d", data=base64.b64encode(raw).decode())
        return (await run.call(objects.get, key="d"))["data"]

    async with lab.open(save) as hf:
        assert base64.b64decode(await (await hf.submit(save)).result(20)) == raw
    assert (store.objects["f"].body, store.objects["d"].body) == (raw * 100, raw)
    assert store.objects["f"].kind == "application/x-report"


@pytest.mark.parametrize("args", [{}, {"text": "a", "data": "YQ=="}, {"data": "?"}, {"file": "../../secret"}])
async def test_content_that_makes_no_sense_is_not_sent(lab: Lab, store: ObjectStore, args: dict[str, str]) -> None:
    objects = tools(store)

    @holdfast.task
    async def bad(run: holdfast.Run) -> Any:
        _ = run.scratch.path
        try:
            await run.call(objects.put, key="k", **args)
        except holdfast.ToolFailed as error:
            return error.kind

    async with lab.open(bad) as hf:
        assert await (await hf.submit(bad)).result(20) == "Misuse"
    assert store.requests == []


async def test_a_wrong_secret_is_a_refusal(lab: Lab, store: ObjectStore, keep: Callable[[str, str], None]) -> None:
    keep("s3-key-2", SECRET.lower())
    other = Objects("reports", url=store.url, access_key="secret://s3-id", secret_key="secret://s3-key-2")
    assert await play(lab, other.put, key="k", text="t") == (TaskState.SUCCEEDED, ["refused", 403])


async def test_a_killed_worker_leaves_one_object(lab: Lab, store: ObjectStore, start_worker: Any) -> None:
    store.troubles += [Trouble("hold")]
    words = {"url": store.url, "args": {"key": "k", "text": "once"}}
    async with start_worker("objects", **words) as first:
        await store.wait_inside()
        await first.kill()
    store.release()
    async with start_worker("objects", **words) as second:
        result = json.loads(await second.hear("result"))
    assert [one.body for one in store.writes] == [b"once"]
    assert result[1]["effect_key"] == store.writes[0].mark
    for file in lab.folder.iterdir():
        assert not file.is_file() or SECRET.encode() not in file.read_bytes()


# The signature against the provider's published examples (its documentation of Signature Version 4
# for S3, header-based, single chunk).

AT = datetime(2013, 5, 24, tzinfo=UTC)
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
HOST = "examplebucket.s3.amazonaws.com"
PUBLISHED: list[tuple[str, str, dict[str, str], dict[str, str], bytes, str]] = [
    (
        "GET",
        "/test.txt",
        {},
        {"range": "bytes=0-9"},
        b"",
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
    ),
    (
        "PUT",
        "/test$file.text",
        {},
        {"date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"},
        b"Welcome to Amazon S3.",
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
    ),
    ("GET", "/", {"lifecycle": ""}, {}, b"", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
    (
        "GET",
        "/",
        {"max-keys": "2", "prefix": "J"},
        {},
        b"",
        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
    ),
]


@pytest.mark.parametrize(("method", "path", "query", "more", "body", "expected"), PUBLISHED)
def test_signatures_are_the_published_ones(
    method: str, path: str, query: dict[str, str], more: dict[str, str], body: bytes, expected: str
) -> None:
    digest = sigv4.sha256_hex(body)
    headers = {"host": HOST, "x-amz-date": "20130524T000000Z", "x-amz-content-sha256": digest, **more}
    made = sigv4.authorization(
        method,
        sigv4.encoded_path(path),
        headers,
        payload_sha256=digest,
        access_key=ACCESS,
        secret_key=SECRET,
        region="us-east-1",
        at=AT,
        query=query,
    )
    assert made.endswith(f"Signature={expected}")
    # The store's own reckoning, from the published steps, agrees on the wire form.
    target = sigv4.encoded_path(path) + ("?" + "&".join(f"{n}={v}" for n, v in query.items()))
    ask = Ask(method=method, target=target.rstrip("?"), headers=headers, body=body)
    assert signature(ask, sorted(headers), "20130524", "us-east-1", "20130524T000000Z", SECRET) == (expected)


def test_what_is_wrong_is_said_at_once() -> None:
    for bad in ({"bucket": "a/b"}, {"bucket": "ü"}, {"access_key": "AKIA123"}):
        words: dict[str, Any] = {"bucket": "reports", **HANDLES, **bad}
        with pytest.raises(Misuse):
            Objects(**words)
