"""Deadlines of attempts: one tick for many, cancelled once, reported where they will not end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from holdfast.runtime.session.deadlines import EXACT_BELOW_S, STUCK_S, TICK_S, Deadlines

Stuck = list[tuple[float, str]]
LONG_S = 10.0


class JumpingLoop(asyncio.SelectorEventLoop):
    """Time jumps to the next timer where nothing is ready."""

    def __init__(self) -> None:
        self.now_s = 0.0
        super().__init__()

    def time(self) -> float:
        return self.now_s

    def _run_once(self) -> None:
        timers: list[asyncio.TimerHandle] = getattr(self, "_scheduled")  # noqa: B009 - private
        waiting = [one.when() for one in timers if not one.cancelled()]
        if not getattr(self, "_ready") and waiting:  # noqa: B009 - private
            self.now_s = max(self.now_s, min(waiting))
        super()._run_once()  # pyright: ignore - private


Main = Callable[[Deadlines, Stuck], Coroutine[Any, Any, None]]


def played(main: Main) -> None:
    stuck: Stuck = []
    loop = JumpingLoop()

    def note(name: str) -> None:
        stuck.append((loop.time(), name))

    try:
        loop.run_until_complete(asyncio.wait_for(main(Deadlines(note), stuck), 1_000))
    finally:
        loop.close()


def now() -> float:
    return asyncio.get_running_loop().time()


async def hang() -> None:
    await asyncio.Event().wait()


def test_the_numbers_are_the_documented_ones() -> None:
    assert (TICK_S, EXACT_BELOW_S, STUCK_S) == (0.05, 2.0, 5.0)


def test_what_ends_in_time_gives_its_value() -> None:
    async def main(deadlines: Deadlines, stuck: Stuck) -> None:
        async def work() -> str:
            await asyncio.sleep(1)
            return "done"

        assert await deadlines.run(work, LONG_S, "t", "1") == "done"
        assert await deadlines.run(work, 1.5, "t", "1") == "done"
        await asyncio.sleep(LONG_S * 3)
        assert stuck == []

    played(main)


@pytest.mark.parametrize("timeout_s", [0.3, 1.99, EXACT_BELOW_S, LONG_S])
def test_what_is_late_is_cancelled_and_times_out(timeout_s: float) -> None:
    """Short ones to the instant, long ones with the next tick."""

    async def main(deadlines: Deadlines, _stuck: Stuck) -> None:
        began = now()
        with pytest.raises(TimeoutError):
            await deadlines.run(hang, timeout_s, "t", "1")
        late = now() - began - timeout_s
        if timeout_s < EXACT_BELOW_S:
            assert late == pytest.approx(0, abs=1e-6)
        else:
            assert -1e-6 <= late <= TICK_S + 1e-6
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0  # the cancel was ours and is taken back

    played(main)


@pytest.mark.parametrize(("timeout_s", "late_s"), [(1.99, 0.0), (EXACT_BELOW_S, 0.03)])
def test_from_two_seconds_on_a_deadline_waits_for_the_tick(timeout_s: float, late_s: float) -> None:
    """The tick was started by another attempt, 0.02 s before: its grid is not ours."""

    async def main(deadlines: Deadlines, _stuck: Stuck) -> None:
        other = asyncio.create_task(_run(deadlines))
        await asyncio.sleep(0.02)
        began = now()
        with pytest.raises(TimeoutError):
            await deadlines.run(hang, timeout_s, "t", "1")
        assert now() - began - timeout_s == pytest.approx(late_s, abs=1e-6)
        other.cancel()

    async def _run(deadlines: Deadlines) -> None:
        await deadlines.run(hang, LONG_S, "t", "2")

    played(main)


def test_a_cancel_of_somebody_else_stays_a_cancel() -> None:
    async def main(deadlines: Deadlines, _stuck: Stuck) -> None:
        for timeout_s in (1.0, LONG_S):
            task = asyncio.create_task(_run(deadlines, timeout_s))
            await asyncio.sleep(0.5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    async def _run(deadlines: Deadlines, timeout_s: float) -> None:
        await deadlines.run(hang, timeout_s, "t", "1")

    played(main)


def test_a_cancel_that_comes_with_the_deadline_is_not_swallowed() -> None:
    async def main(deadlines: Deadlines, _stuck: Stuck) -> None:
        async def stubborn() -> None:
            try:
                await hang()
            except asyncio.CancelledError:
                await asyncio.sleep(1)  # time for the second cancel
                raise

        task = asyncio.create_task(_run(deadlines, stubborn))
        await asyncio.sleep(LONG_S + 2 * TICK_S)  # it was cancelled for being late
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def _run(deadlines: Deadlines, start: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await deadlines.run(start, LONG_S, "t", "1")

    played(main)


def test_an_older_cancel_of_the_task_does_not_hide_the_timeout() -> None:
    """Whoever caught a cancel and goes on has its count; the deadline adds one and takes one."""

    async def main(deadlines: Deadlines, _stuck: Stuck) -> None:
        async def body() -> str:
            with contextlib.suppress(asyncio.CancelledError):  # deaf to the first, as a tool may be
                await hang()
            try:
                await deadlines.run(hang, LONG_S, "t", "1")
            except TimeoutError:
                return "timed out"
            return "ended"

        task = asyncio.create_task(body())
        await asyncio.sleep(1)
        task.cancel()
        assert await task == "timed out"

    played(main)


def test_several_deadlines_share_the_tick_and_each_ends_at_its_own() -> None:
    async def main(deadlines: Deadlines, _stuck: Stuck) -> None:
        ends: list[float] = []

        async def one(timeout_s: float) -> None:
            with pytest.raises(TimeoutError):
                await deadlines.run(hang, timeout_s, "t", str(timeout_s))
            ends.append(now())

        waits = (3.0, 5.0, 9.0)
        await asyncio.gather(*(one(wait) for wait in waits))
        for end, wait in zip(ends, waits, strict=True):
            assert wait - 1e-6 <= end <= wait + TICK_S + 1e-6

    played(main)


@pytest.mark.parametrize("timeout_s", [1.0, LONG_S])
def test_what_will_not_be_cancelled_is_reported_once_and_waited_for(timeout_s: float) -> None:
    async def main(deadlines: Deadlines, stuck: Stuck) -> None:
        async def deaf() -> str:
            end = now() + timeout_s + 30
            while now() < end:
                try:
                    await asyncio.sleep(end - now())
                except asyncio.CancelledError:
                    continue
            return "at last"

        began = now()
        assert await deadlines.run(deaf, timeout_s, "task", "1") == "at last"
        assert now() - began >= timeout_s + 30 - 1e-6
        ((at, name),) = stuck
        assert name == "task/1"
        assert timeout_s + STUCK_S - 1e-6 <= at - began <= timeout_s + STUCK_S + TICK_S + 1e-6

    played(main)


@pytest.mark.parametrize("timeout_s", [1.013, LONG_S])
def test_a_deaf_attempt_is_cancelled_once(timeout_s: float) -> None:
    """By its own timer or by the tick, never by both."""

    async def main(deadlines: Deadlines, _stuck: Stuck) -> None:
        cancels = 0

        async def deaf() -> None:
            nonlocal cancels
            end = now() + timeout_s + 3
            while now() < end:
                try:
                    await asyncio.sleep(end - now())
                except asyncio.CancelledError:
                    cancels += 1

        await deadlines.run(deaf, timeout_s, "t", "1")
        assert cancels == 1

    played(main)


def test_what_ends_with_a_tick_ends_with_that_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The instant itself is late: for the cancel, and for what will not end."""
    monkeypatch.setattr("holdfast.runtime.session.deadlines.TICK_S", 0.0625)  # adds up without an error

    async def main(deadlines: Deadlines, stuck: Stuck) -> None:
        cancelled: list[float] = []

        async def deaf() -> None:
            while now() < 20:
                try:
                    await asyncio.sleep(20 - now())
                except asyncio.CancelledError:
                    cancelled.append(now())

        assert now() == 0
        await deadlines.run(deaf, 4.0, "t", "1")
        assert cancelled == [4.0]
        assert stuck == [(4.0 + STUCK_S, "t/1")]

    played(main)


def test_the_tick_rests_where_nothing_runs_and_comes_back() -> None:
    async def main(deadlines: Deadlines, _stuck: Stuck) -> None:
        async def quick() -> int:
            await asyncio.sleep(3 * TICK_S)
            return 1

        assert await deadlines.run(quick, LONG_S, "t", "1") == 1
        await asyncio.sleep(1)
        timers: list[asyncio.TimerHandle] = getattr(asyncio.get_running_loop(), "_scheduled")  # noqa: B009
        assert [one for one in timers if one.when() < now() + 100] == []
        with pytest.raises(TimeoutError):
            await deadlines.run(hang, LONG_S, "t", "2")

    played(main)


def test_what_it_raises_comes_through() -> None:
    async def main(deadlines: Deadlines, _stuck: Stuck) -> None:
        async def fails() -> None:
            raise KeyError("x")

        for timeout_s in (1.0, LONG_S):
            with pytest.raises(KeyError):
                await deadlines.run(fails, timeout_s, "t", "1")

    played(main)


def test_without_a_task_there_is_no_deadline() -> None:
    """Called from a callback: there is nothing that could be cancelled."""
    said: list[BaseException] = []

    async def main(deadlines: Deadlines, _stuck: Stuck) -> None:
        def step() -> None:
            running = deadlines.run(hang, 1.0, "t", "1")
            try:
                running.send(None)
            except BaseException as error:  # noqa: BLE001 - looked at below
                said.append(error)

        asyncio.get_running_loop().call_soon(step)
        await asyncio.sleep(1)

    played(main)
    assert [type(one) for one in said] == [RuntimeError]
