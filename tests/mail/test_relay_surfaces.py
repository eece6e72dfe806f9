"""Rows of the register about relays: what is asked for is what other agents see."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import cast

import msgspec

sys.path.insert(0, str(Path(__file__).parent))

from correspondents import Correspondent, make_correspondent

from holdfast.app.doctor import Finding, Level
from holdfast.app.mail.examine_relays import examine_relays
from holdfast.app.mail.profile_job import tell_of_proofs
from holdfast.core.clock import SystemClock
from holdfast.core.notices import Notice
from holdfast.core.surfaces import Cover, Verdict
from holdfast.host.private_files import ensure_private_folder, write_atomically
from holdfast.journal.contract import Journal
from holdfast.relay.client.chain_check import ProofFile
from holdfast.relay.surfaces import found_relays
from holdfast_proofs.support.relays import RelayProcess, relays

COVER = Cover(verdict=Verdict.COVERED, why="tested an hour ago")


class Told:
    """What a journal does with notices."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []

    def now_ms(self) -> int:
        return 5

    async def add_notice(self, notice: Notice) -> None:
        self.notices.append(notice)


def proven(agent: Correspondent, relay: RelayProcess) -> Path:
    """A file as `ChainCheck` writes it."""
    folder = agent.home.relay_proofs
    ensure_private_folder(folder)
    said = ProofFile(
        format=1, relay=relay.at.key, url=relay.at.url, mailbox=agent.id, why="two heads of the chain", answers=()
    )
    write_atomically(folder / "one.json", msgspec.json.encode(said))
    return folder / "one.json"


def test_profile_relays_and_mail_have_rows_and_a_lost_relay_is_seen(tmp_path: Path) -> None:
    ada = Correspondent(make_correspondent(tmp_path / "ada", "ada"))

    async def look() -> tuple[dict[str, str], list[object]]:
        found = await found_relays(ada.home, COVER, now_ms=SystemClock().wall_ms())
        return {one.id.partition("/")[0]: one.verdict.value for one in found.surfaces}, [f.value for f in found.facts]

    async def warnings() -> list[Finding]:
        return [one async for one in examine_relays(ada.home) if one.level is Level.WARNING]

    async def told() -> list[Notice]:
        journal = Told()
        await tell_of_proofs(ada.home, cast("Journal", journal), set())
        return journal.notices

    assert asyncio.run(look()) == ({}, [])
    with relays(tmp_path, "r1", "r2", "r3") as three:
        asyncio.run(ada.register(three))
        rows, facts = asyncio.run(look())
        assert rows == dict.fromkeys(("profile", "relay", "mail", "held-mail"), "covered")
        assert facts == ["operator-0", "operator-1", "operator-2"]
        assert asyncio.run(told()) == []
        proof = proven(ada, three[1])
        rows, facts = asyncio.run(look())
        assert (rows["profile"], rows["mail"]) == ("covered", "at risk")
        assert facts == ["operator-0", "", "operator-2"]
        (text,) = [one.text for one in asyncio.run(warnings()) if "contradicts itself" in one.text]
        assert three[1].at.url in text
        assert "two heads" in text
        (notice,) = asyncio.run(told())
        assert (notice.kind, notice.notice_id) == ("relay-contradiction", f"relay-contradiction/{three[1].at.key}")
        assert str(proof) in notice.hint
        proof.write_bytes(proof.read_bytes()[:-9])
        assert asyncio.run(told()) == []
        proof.unlink()
        three[2].kill()
        rows, facts = asyncio.run(look())
        assert rows == {"profile": "covered", "relay": "at risk", "mail": "at risk", "held-mail": "covered"}
        assert facts == ["operator-0", "operator-1", ""]
