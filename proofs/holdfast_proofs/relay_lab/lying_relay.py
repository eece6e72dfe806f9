"""`holdfast relay serve` that lies; the first argument says how.

drops         signs that it holds every fifth message, and drops it; later mail takes its place in the chain
keeps-none    signs for every message and keeps none
two-chains    shows senders another chain than recipients
old-profile   serves the first profile that it saw of each agent, for ever
other-agent   serves another agent's profile and backup head
drops-first   drops the first message of each mailbox after it signed for it, and no other
dies          commits and syncs, and is killed before it answers
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

import msgspec

from holdfast.cli.main import main
from holdfast.host.sqlite import Db
from holdfast.identity.records.encodings import AgentId
from holdfast.relay.protocol.calls import StoredItem
from holdfast.relay.server import mail, registry
from holdfast.relay.server.mail_calls import MailDesk

LIES = ("drops", "keeps-none", "two-chains", "old-profile", "other-agent")  # of `make relay-liars`
DROPS_EVERY = 5

_put_mail, _find_line, _put = mail.put_mail, registry.find_line, MailDesk._put
_first: dict[str, bytes] = {}


def keeps_none(
    db: Db, id: AgentId, offered: Sequence[mail.Offered], *, now: int, quota: mail.Quota
) -> list[StoredItem]:
    db.execute("SAVEPOINT lie")
    found = _put_mail(db, id, offered, now=now, quota=quota)
    db.execute("ROLLBACK TO lie")
    db.execute("RELEASE lie")
    return found


def drops(db: Db, id: AgentId, offered: Sequence[mail.Offered], *, now: int, quota: mail.Quota) -> list[StoredItem]:
    lie = all(one.envelope.outer.mk[0] % DROPS_EVERY == 0 for one in offered)
    return (keeps_none if lie else _put_mail)(db, id, offered, now=now, quota=quota)


def drops_first(
    db: Db, id: AgentId, offered: Sequence[mail.Offered], *, now: int, quota: mail.Quota
) -> list[StoredItem]:
    names = {row[0] for row in db.execute("SELECT name FROM meta").fetchall()}
    if f"lied {id}" in names:
        return _put_mail(db, id, offered, now=now, quota=quota)
    found = keeps_none(db, id, offered, now=now, quota=quota)
    db.execute("INSERT INTO meta VALUES (?, '')", (f"lied {id}",))
    return found


async def dies(self: MailDesk, id: AgentId, offered: Sequence[mail.Offered]) -> list[StoredItem]:
    await _put(self, id, offered)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def two_chains(
    db: Db, id: AgentId, offered: Sequence[mail.Offered], *, now: int, quota: mail.Quota
) -> list[StoredItem]:
    found = _put_mail(db, id, offered, now=now, quota=quota)
    return [msgspec.structs.replace(one, head=one.head[::-1]) if one.seq else one for one in found]


def first_line(db: Db, id: AgentId, column: str) -> bytes | None:
    found = _find_line(db, id, column)
    if column != "profile" or found is None:
        return found
    return _first.setdefault(id, found)


def other_line(db: Db, id: AgentId, column: str) -> bytes | None:
    other = db.execute(f"SELECT id FROM agent WHERE id <> ? AND {column} IS NOT NULL ORDER BY number", (id,)).fetchone()
    return _find_line(db, id if other is None else other[0], column)


if __name__ == "__main__":
    match sys.argv[1]:
        case "drops":
            mail.put_mail = drops
        case "keeps-none":
            mail.put_mail = keeps_none
        case "two-chains":
            mail.put_mail = two_chains
        case "old-profile":
            registry.find_line = first_line
        case "other-agent":
            registry.find_line = other_line
        case "drops-first":
            mail.put_mail = drops_first
        case "dies":
            MailDesk._put = dies
        case other:
            raise SystemExit(f"no lie is called {other}")
    sys.exit(main(["relay", "serve", *sys.argv[2:]]))
