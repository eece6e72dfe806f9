"""Fifty planted secrets, leaked in every way a tool can leak: none is found afterwards.

The journal is sealed, so a search in its file alone could never find anything: every payload is
also opened and searched, record by record, with what is in the inbox and the notices.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from io import StringIO
from pathlib import Path

import pytest

import holdfast
from holdfast.app.handle import TaskHandle
from holdfast.app.health import Health, serve_health
from holdfast.core.secret_handles import safe
from holdfast.host.log import Log
from holdfast.identity.journal_keys.secret_file import SecretFile
from holdfast.journal.contract import Filter
from holdfast.journal.records import TaskState
from holdfast.runtime.secrets import Secrets
from holdfast.testing.lab import Lab, wait_state
from holdfast_proofs.canaries.traces import COUNT, Opened, digest, echoing, files_below, hits, planted
from holdfast_proofs.support.command_line import Commands, ask

DYING = (3, 24, 46)  # their worker is killed inside a call, with the secret at hand
OPEN = frozenset((TaskState.QUEUED, TaskState.RUNNING, TaskState.SLEEPING))


async def _follow(folder: Path, values: list[str]) -> Opened:
    """Submit, answer what is asked and parked with echoes, then open every payload."""
    opened = Opened()
    with opened.collecting():
        async with holdfast.open(folder, serve=False) as hf:
            leaking = [
                await hf.submit("leaks", number=number, digest=digest(value), dies=number in DYING)
                for number, value in enumerate(values)
            ]
            doubting = [await hf.submit("doubts", number=number) for number in range(COUNT)]
            for number, handle in enumerate(leaking):
                await _settle_until_asked(hf, handle, values[number])
                asked = next(ordinal for ordinal, note in (await handle.view()).notes.items() if note.what == "approve")
                await hf.approve(handle.id, asked, granted=True, note=f"with {values[number]}")
            for number, handle in enumerate(doubting):
                await wait_state(handle, TaskState.PARKED, timeout_s=60)
                echoed = {"echo": values[number], "hex": values[number].encode().hex()}
                await hf.evidence(task_id=handle.id, ordinal="1", result=echoed, source=values[number])
            for handle in leaking:
                await wait_state(handle, TaskState.SUCCEEDED, TaskState.PARKED, TaskState.FAILED)
                assert await handle.state() is TaskState.SUCCEEDED, (await handle.view()).outcome
            for handle in doubting:
                await wait_state(handle, TaskState.FAILED)
            await _open_all(hf)
    return opened


async def _settle_until_asked(hf: holdfast.Holdfast, handle: TaskHandle, value: str) -> None:
    """What died with its worker and may not be repeated is parked: a person says to run it."""
    while True:
        row = await wait_state(handle, TaskState.WAITING, TaskState.PARKED, TaskState.FAILED, timeout_s=60)
        assert row.state is not TaskState.FAILED, (await handle.view()).outcome
        if row.state is TaskState.WAITING:
            return
        rested = (await handle.view()).rested
        assert rested["why"] in ("parked", "poison"), rested
        if rested["why"] == "poison":  # by chance it ran beside each that killed its worker
            await hf.retry(handle.id)
            continue
        with contextlib.suppress(holdfast.HoldfastError):  # too early, or answered already
            await hf.settle(handle.id, rested["ordinal"], "run", note=f"sent {value}")
        await asyncio.sleep(0.02)


async def _open_all(hf: holdfast.Holdfast) -> None:
    for row in await hf.journal.list_tasks(Filter(limit=1_000)):
        await hf.journal.read_task(row.task_id)
        await hf.journal.inbox_of(row.task_id)
    assert len(await hf.journal.pending_notices(limit=1_000)) >= COUNT


def test_no_canary_is_found_anywhere(
    lab: Lab,
    hf: Commands,
    open_store: Callable[[], SecretFile],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    measured: Callable[[str], None],
) -> None:
    """Killed three times inside calls, resumed, questions and doubts answered with echoes."""
    place = tmp_path / "elsewhere"
    place.mkdir()
    values = planted()
    (place / "values.json").write_text(json.dumps(values))
    store = open_store()
    for number, value in enumerate(values):
        store.set(f"canary-{number}", value)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("CANARY_PLACE", str(place))
    monkeypatch.setenv("TMPDIR", str(temporary))
    with echoing() as url:
        (place / "url").write_text(url)
        worker = hf.worker(app="holdfast_proofs.canaries.app:tasks")
        try:
            opened = asyncio.run(_follow(lab.folder, values))
            during = list(files_below(lab.folder))  # the log beside the journal is not yet gone
            assert worker.stop() == 0
        finally:
            worker.close()
    assert [(place / f"died-{number}").exists() for number in DYING] == [True] * len(DYING)
    said = "".join(worker.said)
    assert said.count('"serving"') == len(DYING) + 1
    shown = [
        hf.look("task", "list", "--json").out,
        hf.look("effect", "list", "--all").out,
        hf.look("secret", "list", "--json").out,
    ]
    searched = [
        *{*during, *files_below(lab.folder), *files_below(temporary)},
        ("log", said.encode()),
        *((f"opened {n}", plain) for n, plain in enumerate(opened)),
        *(("screen", text.encode()) for text in shown),
    ]
    found = hits(searched, values)
    size = sum(len(content) for _, content in searched)
    measured(f"secrets: {len(found)} traces of {COUNT} canaries in {size:,} bytes searched")
    assert not found, found[:5]
    # The search itself can find: the same values, as the tools had them.
    assert len(hits([("values", json.dumps(values).encode())], values)) >= COUNT
    assert not any(b'"saw":true' in plain for plain in opened)
    assert sum(b'"saw":false' in plain for plain in opened) >= COUNT
    assert sum(plain.count(b"secret://canary-") for plain in opened) > 20 * COUNT


def test_no_canary_is_in_a_line_that_is_shown(open_store: Callable[[], SecretFile]) -> None:
    """Log lines, errors and tracebacks of a process that knows the secrets."""
    values = planted()
    store = open_store()
    for number, value in enumerate(values):
        store.set(f"canary-{number}", value)
    known = Secrets(store)
    stream = StringIO()
    log = Log(stream)
    for value in values:
        log.event("trouble", error=f"while sending {value}", fields={"deep": [value]})
    lines = [safe(f"ValueError: {value!r}\n  File x, line 1\n{value}") for value in values]
    searched = [("log", stream.getvalue().encode()), ("lines", "\n".join(lines).encode())]
    assert not hits(searched, values)
    assert stream.getvalue().count("secret://canary-") == 2 * COUNT
    assert known.active


async def test_no_canary_is_on_the_local_pages(open_store: Callable[[], SecretFile]) -> None:
    """Whatever a reason or a label comes to hold."""
    values = planted()
    store = open_store()
    for number, value in enumerate(values):
        store.set(f"canary-{number}", value)
    known = Secrets(store)

    class Leaking:
        def health(self) -> Health:
            return Health([f"cannot send {value}" for value in values], {"seen": values})

        async def metrics(self) -> str:
            return "".join(f'seen{{text="{json.dumps(value)}"}} 1\n' for value in values)

    async with AsyncExitStack() as stack:
        port = await serve_health(0, Leaking(), stack)
        pages = [await asyncio.to_thread(ask, port, path) for path in ("/healthz", "/metrics")]
    assert [page.status for page in pages] == [503, 200]
    assert not hits([("page", page.text.encode()) for page in pages], values)
    assert [page.text.count("secret://canary-") for page in pages] == [2 * COUNT, COUNT]
    assert known.active
