"""Telling a person: every park once, in full, also after a restart; and no secret on the way."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import BadSettings
from holdfast.journal.records import TaskState
from holdfast.testing.lab import Lab, Scripted, SkewedClock, wait_state, wait_until

ONCE = holdfast.Unrepeatable(max_delay_s=0)
SECRET = "tok_4242424242424242"


@pytest.fixture
def hook(tmp_path: Path) -> tuple[tuple[str, ...], Callable[[], list[dict[str, Any]]]]:
    """A command that keeps what it is told, with its arguments; and what it was told."""
    told, fails = tmp_path / "told.jsonl", tmp_path / "fails"
    script = tmp_path / "hook.py"
    script.write_text(
        "import json, os, sys\n"
        f"notice = json.loads(sys.stdin.read())\n"
        f"row = {{'argv': sys.argv, **notice}}\n"
        f"open({str(told)!r}, 'a').write(json.dumps(row) + '\\n')\n"
        f"if os.path.exists({str(fails)!r}): os.unlink({str(fails)!r}); sys.exit(1)\n"
    )

    def read() -> list[dict[str, Any]]:
        return [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []

    return (sys.executable, str(script)), read


def parks(n: int = 1) -> tuple[holdfast.TaskType, Scripted]:
    tool = Scripted(ONCE, ConnectionError(f"reset by {SECRET}"), name="send")

    @holdfast.task(name="parks")
    async def task(run: holdfast.Run, card: str) -> Any:
        return [await run.call(tool.tool, card=card) for _ in range(n)]

    return task, tool


Hook = tuple[tuple[str, ...], Callable[[], list[dict[str, Any]]]]


async def test_every_park_is_told_once(lab: Lab, hook: Hook) -> None:
    command, told = hook
    task, _ = parks(2)
    async with lab.open(task, notice_command=command) as hf:
        handle = await hf.submit(task, card=SECRET)
        await wait_state(handle, TaskState.PARKED)
        await wait_until(lambda: _told(told, 1))
        await hf.settle(handle.id, "1", "done")
        await wait_until(lambda: _told(told, 2))
        await wait_until(lambda: _none_pending(hf))
    first, second = told()
    assert (first["kind"], first["task_id"], first["ordinal"]) == ("parked", handle.id, "1")
    assert second["ordinal"] == "2"
    assert f"holdfast effect show {handle.id}/1" in first["hint"]
    assert "send" in first["text"]
    assert first["notice_id"] != second["notice_id"]


async def _told(read: Callable[[], list[Any]], count: int) -> bool:
    return len(read()) >= count


async def _none_pending(hf: holdfast.Holdfast) -> bool:
    return not await hf.journal.pending_notices(limit=10)


async def test_no_argument_result_or_secret_is_handed_to_the_hook(lab: Lab, hook: Hook) -> None:
    """Neither in its arguments, which every user of the machine can read, nor in the text."""
    command, told = hook
    task, _ = parks()
    async with lab.open(task, notice_command=command) as hf:
        await wait_state(await hf.submit(task, card=SECRET), TaskState.PARKED)
        await wait_until(lambda: _told(told, 1))
    assert told()[0]["argv"] == [command[1]]
    assert SECRET not in json.dumps(told())


async def test_a_hook_that_fails_is_tried_again(lab: Lab, hook: Hook, tmp_path: Path) -> None:
    command, told = hook
    (tmp_path / "fails").touch()
    task, _ = parks()
    async with lab.open(task, notice_command=command) as hf:
        await wait_state(await hf.submit(task, card="x"), TaskState.PARKED)
        await wait_until(lambda: _told(told, 2))
        await wait_until(lambda: _none_pending(hf))
    assert len({one["notice_id"] for one in told()}) == 1


async def test_a_notice_outlives_the_process_that_could_not_tell_it(lab: Lab, hook: Hook) -> None:
    command, told = hook
    task, _ = parks()
    missing = (str(lab.folder / "no-such-command"),)
    async with lab.open(task, notice_command=missing) as hf:
        handle = await hf.submit(task, card="x")
        await wait_state(handle, TaskState.PARKED)
        assert not await _none_pending(hf)
    async with lab.open(notice_command=command):
        await wait_until(lambda: _told(told, 1))
    assert told()[0]["task_id"] == handle.id


async def test_a_hook_that_hangs_does_not_keep_the_program_from_ending(lab: Lab, tmp_path: Path) -> None:
    """It is killed with the program; the notice waits for the next one."""
    pid = tmp_path / "pid"
    script = tmp_path / "hangs.py"
    script.write_text(f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    task, _ = parks()
    async with lab.open(task, notice_command=(sys.executable, str(script))) as hf:
        await wait_state(await hf.submit(task, card="x"), TaskState.PARKED)
        await wait_until(lambda: _is_written(pid))
    assert not Path(f"/proc/{pid.read_text()}").exists()
    async with lab.open(serve=False) as hf:
        assert len(await hf.journal.pending_notices(limit=10)) == 1


async def _is_written(path: Path) -> bool:
    return path.exists() and bool(path.read_text())


@contextlib.asynccontextmanager
async def webhook(*statuses: int) -> AsyncGenerator[tuple[str, list[tuple[str, Any]]]]:
    """A server that answers with these statuses in turn; what it was sent: key and body."""
    got: list[tuple[str, Any]] = []
    left = list(statuses)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        fields = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:] if ": " in line)
        body = await reader.readexactly(int(fields["content-length"]))
        got.append((fields["idempotency-key"], json.loads(body)))
        status = left.pop(0) if left else 200
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook", got


async def test_a_webhook_is_told_and_told_again_until_it_has_understood(lab: Lab) -> None:
    task, _ = parks()
    async with webhook(503, 500) as (url, got), lab.open(task, notice_webhook=url) as hf:
        handle = await hf.submit(task, card=SECRET)
        await wait_state(handle, TaskState.PARKED)
        await wait_until(lambda: _none_pending(hf))
    assert len(got) == 3
    assert len({key for key, _ in got}) == 1
    assert got[0][1]["task_id"] == handle.id
    assert SECRET not in json.dumps(got)


async def test_questions_poison_and_a_clock_set_back_are_told(lab: Lab, hook: Hook) -> None:
    command, told = hook

    @holdfast.task
    async def ask(run: holdfast.Run) -> None:
        await run.approve(f"charge {SECRET}?")

    async with lab.open(ask, serve=False) as hf:
        poison = await hf.submit(ask)
        for _ in range(3):
            session = await hf.journal.open_session(worker="dies", ttl_ms=60_000)
            await hf.journal.claim(session, names=None, limit=1, task_id=poison.id, alone=True)
            await hf.journal.end_session(session, orderly=False)
    async with lab.open(ask, notice_command=command, clock=SkewedClock(-7_200_000)) as hf:
        question = await hf.submit(ask)
        await wait_until(lambda: _told(told, 3))
        await wait_until(lambda: _none_pending(hf))
    found = {one["kind"]: one for one in told()}
    assert set(found) == {"approval", "poison", "clock-behind"}
    assert found["approval"]["task_id"] == question.id
    assert found["poison"]["task_id"] == poison.id
    assert "behind" in found["clock-behind"]["text"]
    assert SECRET not in json.dumps(told())


async def test_two_workers_tell_it_once(lab: Lab, hook: Hook) -> None:
    command, told = hook
    task, _ = parks()
    async with (
        lab.open(task, notice_command=command) as hf,
        lab.open(task, notice_command=command),
        lab.open(notice_command=command),
    ):
        for n in range(5):
            await wait_state(await hf.submit(task, card=str(n)), TaskState.PARKED)
        await wait_until(lambda: _none_pending(hf))
        await wait_until(lambda: _told(told, 5))
    assert len(told()) == 5
    assert len({one["notice_id"] for one in told()}) == 5


async def test_only_one_way_of_telling_may_be_set(lab: Lab) -> None:
    with pytest.raises(BadSettings, match="not both"):
        async with lab.open(notice_command=("true",), notice_webhook="http://127.0.0.1:1/"):
            pass
