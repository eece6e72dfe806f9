"""Scopes: durable calls of code that Holdfast does not run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.ids import parse_task_id

KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=False)


class Shop:
    """A tool that counts."""

    def __init__(self) -> None:
        self.done: list[str] = []
        shop = self

        @holdfast.tool(effect=KEYED)
        async def charge(call: holdfast.Call, cents: int) -> int:
            shop.done.append(call.effect_key)
            return cents

        self.charge: holdfast.Tool[..., Any] = charge


async def test_a_slot_is_done_once_however_often_its_scope_is_opened(tmp_path: Path) -> None:
    shop = Shop()
    async with holdfast.open(tmp_path / "journal.db", tools=[shop.charge]) as hf:
        for _ in range(3):
            async with hf.scope("thread-7") as scope:
                assert await scope.call(shop.charge, slot="charge-1", cents=5) == 5
        async with hf.scope("thread-8") as scope:
            assert await scope.call(shop.charge, slot="charge-1", cents=5) == 5
    assert len(shop.done) == len(set(shop.done)) == 2


async def test_a_scope_is_not_kept_from_its_owner_by_the_engine_that_settles_scopes(tmp_path: Path) -> None:
    """The engine may look at a resting scope; whoever asks for it gets it at once all the same."""
    shop = Shop()
    async with holdfast.open(tmp_path / "journal.db", tools=[shop.charge]) as hf:
        clock = asyncio.get_running_loop().time
        began = clock()
        for number in range(20):
            async with hf.scope("thread-7") as scope:
                await scope.call(shop.charge, slot=f"charge-{number}", cents=number)
        assert clock() - began < 15  # one lost race costs a look, a lost war 30 s each


async def test_what_woke_a_scope_is_answered_when_it_rests(tmp_path: Path) -> None:
    shop = Shop()
    async with holdfast.open(tmp_path / "journal.db", tools=[shop.charge]) as hf:
        for _ in range(4):
            async with hf.scope("thread-7"):
                pass
        async with hf.scope("thread-7") as scope:
            task_id = parse_task_id(scope.task_id)
        items = await hf.journal.inbox_of(task_id)
        assert [item for item in items if not item.applied] == []


async def test_a_slot_used_with_other_arguments_is_a_conflict(tmp_path: Path) -> None:
    shop = Shop()
    async with holdfast.open(tmp_path / "journal.db", tools=[shop.charge]) as hf, hf.scope("thread-7") as scope:
        await scope.call(shop.charge, slot="charge-1", cents=5)
        with pytest.raises(holdfast.RequestConflict):
            await scope.call(shop.charge, slot="charge-1", cents=6)
    assert len(shop.done) == 1
