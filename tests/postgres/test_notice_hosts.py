"""Workers of two hosts with the same hook: a person hears each notice once, however slow the hook is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from holdfast.core.notices import Notice, standby_notice
from holdfast.errors import HoldfastError
from holdfast.host.log import Log
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.postgres.place import PostgresPlace
from holdfast.layout.engine_settings import Settings
from holdfast.runtime.engine import upkeep
from holdfast.runtime.engine.upkeep import Upkeep
from holdfast.runtime.secrets import NO_SECRETS
from holdfast.testing.lab import wait_until
from holdfast_proofs.support.postgres import Server

OpenJournal = Callable[..., Awaitable[PostgresJournal]]
NOTICES = 6


async def test_a_turn_is_not_outlived(
    open_it: OpenJournal, server: Server, place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hook takes 25 s, by the clocks of the hosts and of the database; a turn lasts a minute."""
    now_s = [1_000]
    monkeypatch.setattr(upkeep, "monotonic", lambda: float(now_s[0]))
    clock = f"{place.schema}_clock"
    server.execute(f"CREATE TABLE {clock} AS SELECT {now_s[0] * 1000}::bigint AS ms")
    turned = replace(place, time=f"(SELECT ms FROM public.{clock})")
    journals = [await open_it(host=host, place=turned) for host in ("one", "two")]
    for number in range(NOTICES):
        await journals[0].add_notice(standby_notice(f"text {number}", "hint", since_ms=number))
    told: list[str] = []

    class Slow:
        async def tell(self, notice: Notice) -> None:
            told.append(notice.text)
            now_s[0] += 25
            server.execute(f"UPDATE {clock} SET ms = {now_s[0] * 1000}")
            await asyncio.sleep(0.1)  # the other host looks meanwhile

    def raised(error: HoldfastError) -> None:
        raise error

    async def tell(journal: PostgresJournal) -> None:
        await Upkeep(
            journal=journal,
            settings=Settings(pace=0.01),
            log=Log(),
            notices=Slow(),
            secrets=NO_SECRETS,
            folders=None,
            on_trouble=raised,
        ).tell_notices()

    async def all_closed() -> bool:
        return not await journals[0].pending_notices(limit=9)

    telling = [asyncio.create_task(tell(journal)) for journal in journals]
    try:
        await wait_until(all_closed)
    finally:
        for one in telling:
            one.cancel()
        await asyncio.gather(*telling, return_exceptions=True)
    assert sorted(told) == [f"text {number}" for number in range(NOTICES)]
