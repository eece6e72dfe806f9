"""A host whose clock is a day off works in the database's time, and a person is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.app.doctor import Level, _clock
from holdfast.core.clock import SystemClock
from holdfast.journal.postgres.place import PostgresPlace
from holdfast.testing.lab import Scripted, SkewedClock, wait_until
from holdfast_proofs.support.postgres import Server

DAY_MS = 86_400_000


@pytest.mark.parametrize(("by_ms", "said"), [(-DAY_MS, "behind"), (DAY_MS, "ahead of")])
async def test_a_clock_that_is_a_day_off(
    server: Server, place: PostgresPlace, tmp_path: Path, by_ms: int, said: str
) -> None:
    keyed = holdfast.Keyed(window_s=3_600, fingerprint="checked", refusals_stored=True, max_delay_s=0)
    tool = Scripted(keyed, TimeoutError("no answer"), "paid")

    @holdfast.task(name="pay")
    async def pay(run: holdfast.Run) -> Any:
        return await run.call(tool.tool)

    tmp_path.chmod(0o700)
    url, settings = f"{server.url()}&schema={place.schema}", holdfast.Settings(pace=0.01)
    began_ms = SystemClock().wall_ms()
    async with holdfast.open(url, home=tmp_path, tasks=[pay], settings=settings, clock=SkewedClock(by_ms)) as hf:
        handle = await hf.submit(pay)
        assert await handle.result(30) == "paid"  # under the same key, within its window
        assert len(set(tool.keys)) == 1
        view = await hf.journal.read_task(handle.id)
        assert began_ms - 1_000 <= view.accepted_ms <= SystemClock().wall_ms() + 1_000
        assert hf.journal.clock_behind_ms < 1_000
        found = _clock(hf.journal)
        assert (found.level, said in found.text, "timedatectl" in found.mend) == (Level.WARNING, True, True)

        async def told() -> bool:
            notices = await hf.journal.pending_notices(limit=9)
            return any(f"s {said} the database's" in one.text for one in notices)

        await wait_until(told)
