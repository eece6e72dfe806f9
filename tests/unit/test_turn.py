"""A turn: in the order it was asked for, never lost to a cancel."""

from __future__ import annotations

import asyncio

from holdfast.core.waiting import Turn


async def test_a_free_turn_costs_no_wait() -> None:
    turn = Turn()
    assert turn.try_take()
    assert not turn.try_take()
    turn.give()
    assert not turn.taken


async def test_in_the_order_it_was_asked_for() -> None:
    turn, order = Turn(), list[int]()
    await turn.take()

    async def want(number: int) -> None:
        await turn.take()
        order.append(number)
        turn.give()

    tasks = [asyncio.create_task(want(number)) for number in range(5)]
    await asyncio.sleep(0)
    assert not turn.try_take(), "nobody overtakes those who wait"
    turn.give()
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3, 4]
    assert not turn.taken


async def test_whoever_stops_waiting_is_passed_over() -> None:
    turn = Turn()
    await turn.take()
    first, second = (asyncio.create_task(turn.take()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    turn.give()
    await second
    assert turn.taken
    turn.give()
    assert not turn.taken


async def test_a_cancel_that_comes_with_the_turn_hands_it_on() -> None:
    turn = Turn()
    await turn.take()
    first, second = (asyncio.create_task(turn.take()) for _ in range(2))
    await asyncio.sleep(0)
    turn.give()  # it is the first one's now, which has not run since
    first.cancel()
    await second
    assert first.cancelled()
    turn.give()
    assert not turn.taken
