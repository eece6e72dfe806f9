"""An intake over a journal of the lab and a relay in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

from holdfast.app.holdfast import Holdfast
from holdfast.app.mail.held_mail import Received
from holdfast.app.mail.intake import Intake
from holdfast.core.ids import EffectKey
from holdfast.core.waiting import running_beside
from holdfast.host.log import Log
from holdfast.journal.bind import journal_at
from holdfast.layout.journal_location import journal_address
from holdfast.testing.lab import Lab, wait_until
from holdfast.testing.mail import MemoryMailbox, MemoryRelay, ScriptedPost

KEYS = [EffectKey(f"00000000-0000-8000-8000-{number:012d}") for number in range(10)]
ADA = "hf1ada"


@asynccontextmanager
async def taking(
    lab: Lab,
    hf: Holdfast,
    relay: MemoryRelay,
    *,
    post: ScriptedPost | None = None,
    rewind: bool = False,
    secured: Callable[[Sequence[Received]], int] = lambda _received: 0,
    sent_to: Callable[[EffectKey], str] = lambda _key: "",
    known_id: Callable[[str], str] = lambda _to: "",
    ack_wait_s: float = 0.0,
    note_every_s: float = 0.0,
) -> AsyncGenerator[Intake]:
    admin = journal_at(journal_address(lab.journal))

    async def newest() -> int:
        return admin.newest_record()

    async def secured_now(received: Sequence[Received], _now_s: float) -> int:
        return secured(received)

    intake = Intake(
        journal=hf.journal,
        submit=hf.journal.submit,
        mailbox=MemoryMailbox(relay),
        post=post or ScriptedPost(),
        k_effect=hf._keys.k_effect,
        salt=b"",
        newest_record=newest,
        secured_now=secured_now,
        log=Log(),
        sent_to=sent_to,
        known_id=known_id,
        ack_wait_s=ack_wait_s,
        note_every_s=note_every_s,
    )
    async with running_beside(intake.run(rewind=rewind)):
        yield intake


async def until(met: Callable[[], bool]) -> None:
    async def look() -> bool:
        return met()

    await wait_until(look)
