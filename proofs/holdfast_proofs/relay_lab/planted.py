"""Faults that are planted on purpose: the checker must find each.

forgetful-relays   `holdfast relay serve` that signs for some messages and does not keep them, at all relays
handled-twice      an agent whose journal takes the copy of each relay for a message of its own
note-first         an agent that signs a delivery note before it commits
no-rewind          an agent that does not ask for held mail after it was restored
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from itertools import count

import msgspec

from holdfast.app.mail.intake import Intake
from holdfast.core.ids import EffectKey
from holdfast.core.mail import Delivery, Letter
from holdfast.host.sqlite import Db
from holdfast.identity.records.encodings import AgentId
from holdfast.relay.client.mailbox import RelayMailbox
from holdfast.relay.protocol.calls import StoredItem
from holdfast.relay.server import mail

NOTE_FIRST_S = 1.0
FORGETS_EVERY = 7  # a message that two relays forget at the same time is lost: one of seven


def plant(fault: str) -> None:
    """In an agent's process, before it serves."""
    match fault:
        case "handled-twice":
            _commit_letter = Intake._commit_letter
            copies = count(1)

            async def each_copy(self: Intake, delivery: Delivery, letter: Letter) -> str:
                other = EffectKey(f"{next(copies):032x}")
                return await _commit_letter(self, delivery, msgspec.structs.replace(letter, key=other))

            Intake._commit_letter = each_copy
        case "note-first":
            _take = Intake.take

            async def note_first(self: Intake, deliveries: Sequence[Delivery]) -> None:
                letters = [one for one in deliveries if one.letter is not None]
                await _take(self, [one for one in deliveries if one.letter is None])
                for one in letters:
                    if one.letter is not None:
                        await self.post.note(to=one.letter.sender, keys=[one.letter.key])
                await asyncio.sleep(NOTE_FIRST_S if letters else 0.0)
                await _take(self, letters)

            Intake.take = note_first
        case "no-rewind":
            RelayMailbox.rewind = _no_rewind
        case "" | "forgetful-relays":
            pass
        case _:
            raise SystemExit(f"no fault is called {fault}")


async def _no_rewind(*_given: object, **_more: object) -> None:
    """Asks no relay."""


def _forgetting(put_mail: Callable[..., list[StoredItem]]) -> Callable[..., list[StoredItem]]:
    def forgets(
        db: Db, id: AgentId, offered: Sequence[mail.Offered], *, now: int, quota: mail.Quota
    ) -> list[StoredItem]:
        """By the message key, so that all relays forget the same ones."""
        if any(one.envelope.outer.mk[0] % FORGETS_EVERY for one in offered):
            return put_mail(db, id, offered, now=now, quota=quota)
        db.execute("SAVEPOINT lie")
        found = put_mail(db, id, offered, now=now, quota=quota)
        db.execute("ROLLBACK TO lie")
        db.execute("RELEASE lie")
        return found

    return forgets


if __name__ == "__main__":
    from holdfast.cli.main import main

    assert sys.argv[1] == "forgetful-relays", sys.argv
    mail.put_mail = _forgetting(mail.put_mail)
    sys.exit(main(["relay", "serve", *sys.argv[2:]]))
