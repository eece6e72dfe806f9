"""`holdfast relay serve` that lies about mail: the first argument says how."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from holdfast.cli.main import main
from holdfast.host.sqlite import Db
from holdfast.identity.records.encodings import AgentId
from holdfast.relay.protocol.calls import StoredItem
from holdfast.relay.server import mail
from holdfast.relay.server.mail_calls import MailDesk

_put_mail = mail.put_mail
_put = MailDesk._put


def forgets(db: Db, id: AgentId, offered: Sequence[mail.Offered], *, now: int, quota: mail.Quota) -> list[StoredItem]:
    """Signs that it holds the mail, and does not: the next one gets the same number."""
    db.execute("SAVEPOINT lie")
    found = _put_mail(db, id, offered, now=now, quota=quota)
    db.execute("ROLLBACK TO lie")
    db.execute("RELEASE lie")
    return found


def forgets_the_first(
    db: Db, id: AgentId, offered: Sequence[mail.Offered], *, now: int, quota: mail.Quota
) -> list[StoredItem]:
    """Drops the first mail of a mailbox after it was signed for, once; later mail takes its place in the chain."""
    names = {row[0] for row in db.execute("SELECT name FROM meta").fetchall()}
    if f"lied {id}" in names:
        return _put_mail(db, id, offered, now=now, quota=quota)
    found = forgets(db, id, offered, now=now, quota=quota)
    db.execute("INSERT INTO meta VALUES (?, '')", (f"lied {id}",))
    return found


async def dies(self: MailDesk, id: AgentId, offered: Sequence[mail.Offered]) -> list[StoredItem]:
    """Committed and synced; killed before the answer."""
    await _put(self, id, offered)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


if __name__ == "__main__":
    match sys.argv[1]:
        case "forgets":
            mail.put_mail = forgets
        case "forgets-the-first":
            mail.put_mail = forgets_the_first
        case "dies":
            MailDesk._put = dies
        case other:
            raise SystemExit(other)
    sys.exit(main(["relay", "serve", *sys.argv[2:]]))
