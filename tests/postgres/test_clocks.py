"""A host whose clock is a day off works in the database's time, and a person is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.app.doctor import Level, _clock
from holdfast.core.clock import SystemClock
from holdfast.journal.postgres.place import PostgresPlace
from holdfast.journal.postgres.times import CarriedTime
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


class _Stopped:
    """Clocks of a process that is stopped once, right before it looks at the wall clock."""

    boot_id = "b"

    def __init__(self) -> None:
        self._ms = 0
        self.stop_ms = 0

    def wall_ms(self) -> int:
        self._ms, self.stop_ms = self._ms + self.stop_ms, 0
        return 1_700_000_000_000 + self._ms

    def boot_ms(self) -> int:
        return 5_000 + self._ms


def test_a_process_that_is_stopped_between_two_clocks_does_not_run_ahead() -> None:
    """The time of its records would be ahead of everybody else's by as long as it was stopped."""
    clock = _Stopped()
    time = CarriedTime(clock)
    time.heard(clock.wall_ms())
    clock.stop_ms = 500
    time.now_ms()
    assert time.now_ms() <= clock.wall_ms()
