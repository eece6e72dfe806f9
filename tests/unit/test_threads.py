"""Blocking tools in threads: bounded, with the caller's context, and never in the way of an end."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from holdfast.runtime.tool.blocking import Threads

NAME: contextvars.ContextVar[str] = contextvars.ContextVar("NAME", default="-")


async def test_values_errors_and_context_pass_through() -> None:
    threads = Threads()
    NAME.set("ada")
    assert await threads.run(NAME.get) == "ada"
    assert await threads.run(int, "12", base=10) == 12
    with pytest.raises(ZeroDivisionError):
        await threads.run(divmod, 1, 0)
    assert await threads.run(lambda: None) is None


async def test_a_stop_iteration_does_not_hang_the_caller() -> None:
    def stops() -> None:
        raise StopIteration(1)

    with pytest.raises(RuntimeError, match="StopIteration"):
        await Threads().run(stops)


async def test_a_cancelled_call_keeps_its_place_until_its_thread_ends() -> None:
    threads = Threads(threads_max=1)
    entered, leave = threading.Event(), threading.Event()

    def stuck() -> None:
        entered.set()
        leave.wait()

    call = asyncio.create_task(threads.run(stuck))
    await asyncio.to_thread(entered.wait)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    second = asyncio.create_task(threads.run(lambda: "second"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(second), 0.05)
    leave.set()
    assert await second == "second"


def test_a_hanging_thread_outlives_its_loop_without_harm() -> None:
    entered, leave, left = threading.Event(), threading.Event(), threading.Event()

    def stuck() -> None:
        entered.set()
        leave.wait()
        left.set()

    async def main() -> None:
        call = asyncio.create_task(Threads().run(stuck))
        await asyncio.to_thread(entered.wait)
        call.cancel()

    asyncio.run(main())
    stuck_thread = next(t for t in threading.enumerate() if t.name == "holdfast-tool")
    assert stuck_thread.daemon
    leave.set()
    assert left.wait(10)
    stuck_thread.join(10)
    assert not stuck_thread.is_alive()
