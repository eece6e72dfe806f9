"""A host whose clock is a day off works in the database's time, and a person is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.app.doctor import Level, _clock
from holdfast.core.clock import SystemClock
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.postgres.place import PostgresPlace
from holdfast.journal.postgres.times import CarriedTime
from holdfast.journal.postgres.verbs.shared import PostgresShared
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


async def test_a_turn_of_before_the_clock_of_the_database_was_set_back_is_over(
    server: Server, place: PostgresPlace, open_it: Callable[..., Awaitable[PostgresJournal]]
) -> None:
    """The clock of a promoted standby may be a day behind; the host that had the turn is lost."""
    journal = await open_it()
    shared = PostgresShared(place)
    for name in ("notices", "backup", "alone"):
        server.execute(f"INSERT INTO {place.schema}.turn SELECT '{name}', 'lost', {place.time} + {DAY_MS}")
    async with journal.notice_turn() as mine:
        assert mine
    assert shared.take_turn("backup", holder="here", who="here", for_s=60) == ""
    assert shared.take_turn("backup", holder="other", who="other", for_s=60) == "here"
    await open_it()


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
