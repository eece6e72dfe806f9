"""The disk of the database server is full: a person reads why, and work continues when there is room."""

from __future__ import annotations

import asyncio
import io
import json
from collections import Counter
from pathlib import Path

import pytest

import holdfast
from holdfast.app.doctor import examine
from holdfast.app.handle import TaskHandle
from holdfast.core.journal_address import JournalAddress
from holdfast.errors import JournalFull
from holdfast.host.log import Log
from holdfast.journal.postgres import lane
from holdfast.layout.engine_settings import Settings
from holdfast.testing.lab import wait_until
from holdfast_proofs.support.postgres import find_oldest, with_small_disk

TASKS, STEPS = 4, 30


async def test_nothing_is_lost_while_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "TRY_S", 0.5)
    made, asked, said = Counter[str](), Counter[str](), io.StringIO()
    full, freed = asyncio.Event(), asyncio.Event()

    @holdfast.tool(effect=holdfast.Keyed(window_s=3_600, fingerprint="checked", refusals_stored=True, max_delay_s=0.05))
    async def charge(call: holdfast.Call, number: int) -> dict[str, str]:
        asked["all"] += 1
        made[call.effect_key] = 1  # the far end knows its key
        if asked["all"] == TASKS * STEPS // 3:
            full.set()
            await freed.wait()
        return {"receipt": f"{number} " * 5_000}

    @holdfast.task
    async def pay(run: holdfast.Run) -> int:
        return sum([len((await run.call(charge, number=n))["receipt"]) > 0 for n in range(STEPS)])

    async def is_full() -> bool:
        return '"journal-full"' in said.getvalue()

    handles: list[TaskHandle] = []

    async def submit_many(hf: holdfast.Holdfast) -> None:
        for number in range(200):  # free room in old pages is used up first
            handles.append(await hf.submit(pay, request_id=f"{number} " * 50))

    with with_small_disk(find_oldest(), bytes_max=96 << 20) as server:
        folder = tmp_path / "one"
        folder.mkdir(mode=0o700)
        url = server.url()
        address = JournalAddress(folder=folder, url=url)

        async def told() -> list[str]:
            """What `holdfast doctor` says of it."""
            found = [one async for one in examine(address, settings=Settings(), deep=False)]
            return [f"{one.level}: {one.text}" for one in found if one.check == JournalFull.code]

        async with holdfast.open(
            url, home=folder, tasks=[pay], settings=Settings(lease_ttl_s=60.0), log=Log(said)
        ) as hf:
            handles += [await hf.submit(pay) for _ in range(TASKS)]
            await full.wait()
            try:
                server.fill()
                await wait_until(is_full)
                with pytest.raises(JournalFull, match="no space left") as refused:
                    await submit_many(hf)
                assert "free some space" in refused.value.hint
                assert hf.journal.full
                (line,) = await told()
                assert line.startswith("warning: the database server has no space left")
            finally:
                server.free()
                freed.set()
            assert await told() == []
            assert [await handle.result(120) for handle in handles] == [STEPS] * len(handles)
            assert [line async for line in hf.journal.check()] == []
        assert sum(made.values()) == len(handles) * STEPS
        events = [json.loads(line) for line in said.getvalue().splitlines()]
        assert any(one.get("code") == "journal-full" and one["hint"] for one in events)
