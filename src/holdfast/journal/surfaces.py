"""The journal as rows and facts for the register: from outside without its keys, and open with them.

From outside: it is there, it is ours, no sync failed, and it has every record that this machine has committed. That is
enough to know that an agent can resume. What a commit survives and who is alive takes an open journal.
"""

from __future__ import annotations

import msgspec

from holdfast.core.journal_address import JournalAddress
from holdfast.core.notices import counted
from holdfast.core.surfaces import Cover, Fact, Found, Surface, Verdict, in_backups
from holdfast.errors import HoldfastError
from holdfast.journal.admin import JournalAdmin
from holdfast.journal.contract import Journal
from holdfast.journal.durability import Durability, Kept
from holdfast.journal.records import ENDED

DOCTOR = "holdfast doctor"
BLOBS = "contents of scratch files and large values"


def look_outside(address: JournalAddress, admin: JournalAdmin, *, now_ms: int) -> tuple[Fact, ...]:
    """Facts that need no keys; none where there never was a journal. Blocks. Raises nothing."""
    try:
        if not admin.exists():
            admin.check_not_lost()
            return ()
        admin.peek()
        newest = admin.newest_record()
        why = admin.find_stopped() or admin.find_older()
    except HoldfastError as error:
        why, newest = error.message, 0
    source = why or f"the journal {address} has every record up to {newest}"
    resumes = Fact(name="state.resumes", value=not why, at_ms=now_ms, source=source)
    shared = Fact(name="journal.shared", value=True, at_ms=now_ms, source=f"the journal is at {address}")
    return (resumes, shared) if address.url and not why else (resumes,)


async def found_journal(
    address: JournalAddress, outside: tuple[Fact, ...], journal: Journal | None, cover: Cover, *, provider: bool
) -> Found:
    """Rows of the journal. `journal` is None where it could not be opened; `outside` is from `look_outside`."""
    resumes = next((one for one in outside if one.name == "state.resumes"), None)
    if resumes is None:
        return Found()
    if journal is None:
        return Found(surfaces=(_journal_row(address, cover, None, broken=None if resumes.value else resumes.source),))
    durability = await journal.find_durability(provider=provider)
    whole = _journal_row(address, cover, durability, broken=None)
    blobs = msgspec.structs.replace(whole, id="blobs", kind="blobs", holds=BLOBS)
    workers, alive = await _workers(address, journal)
    return Found(surfaces=(whole, blobs, workers), facts=(alive,))


def _journal_row(
    address: JournalAddress, cover: Cover, durability: Durability | None, *, broken: str | None
) -> Surface:
    found = in_backups("journal", "journal", cover, holds="tasks, steps, plans, talks, results", where=str(address))
    server = {"owner": "the database", "domain": address.url} if address.url else {}
    text = "" if durability is None else durability.text
    match None if durability is None else durability.kept:
        case _ if broken is not None:
            changed = {"verdict": Verdict.AT_RISK, "why": broken, "fix": DOCTOR}
        case Kept.STANDBY:
            changed = {"protection": "standby, backup", "verdict": Verdict.COVERED, "why": text, "fix": "", "rpo_s": 0}
        case Kept.READ_ONLY:
            changed = {"verdict": Verdict.AT_RISK, "why": text, "fix": DOCTOR}
        case Kept.GONE:
            changed = {"protection": "standby, backup", "verdict": Verdict.AT_RISK, "why": text, "fix": DOCTOR}
        case _:
            changed = {"evidence": "; ".join(filter(None, (found.evidence, text)))}
    return msgspec.structs.replace(found, **server, **changed)


async def _workers(address: JournalAddress, journal: Journal) -> tuple[Surface, Fact]:
    alive = [one for one in await journal.list_sessions() if one.alive]
    hosts = {one.host_id for one in alive}
    open_tasks = sum(count for state, count in (await journal.count_tasks()).items() if state not in ENDED)
    names = ", ".join(one.worker for one in alive) or "none"
    orphaned = open_tasks and not alive
    why = "another worker resumes what one leaves" if alive else f"{counted(open_tasks, 'task is', 'tasks are')} open"
    row = Surface(
        id="workers",
        kind="instances",
        holds=f"{counted(len(alive), 'live worker', 'live workers')} on {counted(len(hosts), 'host', 'hosts')}",
        where=names,
        protection="journal",
        domain=f"{len(hosts)} hosts" if len(hosts) > 1 else "this machine",
        evidence=f"seen in {address}",
        evidence_ms=journal.now_ms(),
        verdict=Verdict.AT_RISK if orphaned else Verdict.COVERED,
        why=f"{why}, and no worker serves them" if orphaned else why,
        fix="holdfast worker APP" if orphaned else "",
    )
    source = f"live workers: {names}"
    return row, Fact(name="instances.alive", value=len(hosts), at_ms=journal.now_ms(), source=source)
