"""Rows of the register about relays: what is asked for is what other agents see."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from correspondents import Correspondent, make_correspondent

from holdfast.core.clock import SystemClock
from holdfast.core.surfaces import Cover, Verdict
from holdfast.relay.surfaces import found_relays
from holdfast_proofs.support.relays import relays

COVER = Cover(verdict=Verdict.COVERED, why="tested an hour ago")


def test_profile_relays_and_mail_have_rows_and_a_lost_relay_is_seen(tmp_path: Path) -> None:
    ada = Correspondent(make_correspondent(tmp_path / "ada", "ada"))

    async def look() -> tuple[dict[str, str], list[object]]:
        found = await found_relays(ada.home, COVER, now_ms=SystemClock().wall_ms())
        return {one.id.partition("/")[0]: one.verdict.value for one in found.surfaces}, [f.value for f in found.facts]

    assert asyncio.run(look()) == ({}, [])
    with relays(tmp_path, "r1", "r2", "r3") as three:
        asyncio.run(ada.register(three))
        rows, facts = asyncio.run(look())
        assert rows == dict.fromkeys(("profile", "relay", "mail", "held-mail"), "covered")
        assert facts == ["operator-0", "operator-1", "operator-2"]
        three[2].kill()
        rows, facts = asyncio.run(look())
        assert rows == {"profile": "covered", "relay": "at risk", "mail": "at risk", "held-mail": "covered"}
        assert facts == ["operator-0", "operator-1", ""]
