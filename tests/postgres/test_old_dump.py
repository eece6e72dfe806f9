"""An old dump of the database is put back: it is refused, and `recover --journal URL` makes it a proper restore."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable

import pytest

from holdfast.core.ids import task_id_from_bytes
from holdfast.errors import JournalOlderCopy, SessionLost
from holdfast.journal.contract import Submission
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.postgres.place import PostgresPlace
from holdfast_proofs.support.hosts import Host
from holdfast_proofs.support.postgres import Server

NewHost = Callable[..., Host]
OpenJournal = Callable[..., Awaitable[PostgresJournal]]


async def submit(journal: PostgresJournal, *names: str) -> None:
    for name in names:
        task_id = task_id_from_bytes(hashlib.sha256(name.encode()).digest()[:16])
        await journal.submit(Submission(task_id=task_id, name="trip", args={}, args_fingerprint=b"f" * 16))


def test_a_dump_that_was_put_back_becomes_a_restore(new_host: NewHost, server: Server, place: PostgresPlace) -> None:
    """What was paid after the dump is not paid again: the step is sent with the key of before."""
    one = new_host("one")
    task_id = one.submit('{"cents": 700}', "order-1", "--no-follow")
    dump = server.dump(place.schema)
    one.submit('{"cents": 700}', "order-1", "--run")
    server.load(dump)

    assert one.look("task", "list", "--json", code=6).error["code"] == "journal-older-copy"
    assert one.look("todo", "--json", code=6).json["todo"][0]["about"] == "journal-older-copy"
    (finding,) = one.look("journal", "check", "--json", code=6).json["findings"]
    assert finding.startswith("this is an older copy: ")
    planned = one.look("recover", "--dry-run", "--json").json
    assert (planned["incarnation"], planned["open_tasks"]) == (2, 1)
    assert one.look("task", "list", "--json", code=6)
    done = one.look("recover", "--yes", "--json").json
    assert (done["incarnation"], done["open_tasks"]) == (2, 1)

    two = new_host("two", keys_of=one)
    two.submit('{"cents": 700}', "order-1", "--run")
    shown = two.look("task", "show", task_id, "--json").json
    (key,) = set((one.folder.parent / "charged").read_text().split())
    assert (shown["state"], shown["steps"][1]["effect_key"]) == ("succeeded", key)
    assert two.look("journal", "check", "--json").json["findings"] == []


def test_a_host_that_has_seen_nothing_refuses_a_dump_too(
    new_host: NewHost, server: Server, place: PostgresPlace
) -> None:
    """It would pay again: a dump says nothing of what was done after it."""
    one = new_host("one")
    one.submit('{"cents": 700}', "order-1", "--no-follow")
    dump = server.dump(place.schema)
    one.submit('{"cents": 700}', "order-1", "--run")
    server.load(dump)

    new = new_host("new", keys_of=one)
    refused = new.look("task", "list", "--json", code=6).error
    assert (refused["code"], "loaded from a dump" in refused["message"]) == ("journal-older-copy", True)
    assert "loaded from a dump" in new.look("journal", "check", "--json", code=6).json["findings"][0]
    assert new.look("recover", "--yes", "--json").json["open_tasks"] == 1
    new.submit('{"cents": 700}', "order-1", "--run")
    assert len(set((one.folder.parent / "charged").read_text().split())) == 1
    assert new.look("journal", "check", "--json").json["findings"] == []


async def test_a_dump_that_was_put_back_and_has_grown_since_is_refused(
    open_it: OpenJournal, server: Server, place: PostgresPlace
) -> None:
    """A host that was away cannot know that the dump is old, and works with it. A host that has seen more refuses it,
    also after the dump has passed the number of its newest record; so does a worker that only looked on."""
    one, idle = await open_it(host="one"), await open_it(host="idle")
    session = await idle.open_session(worker="idle", ttl_ms=60_000)
    await submit(one, "before")
    dump = server.dump(place.schema)
    await submit(one, "paid-1", "paid-2")
    await idle.renew(session)
    await one.close()
    server.load(dump)

    with pytest.raises(SessionLost, match="has lost commits"):
        await idle.renew(session)
    await idle.close()
    server.execute(f"DELETE FROM {place.schema}.meta WHERE key = 'tables'")  # as an older Holdfast has made it
    away = await open_it(host="away")
    await submit(away, *(f"later-{number}" for number in range(9)))
    for host in ("one", "idle"):
        with pytest.raises(JournalOlderCopy, match="was put back, and has been used since"):
            await open_it(host=host)


async def test_commits_that_retention_has_put_together_are_not_missed(open_it: OpenJournal) -> None:
    """The row that says what a process has committed is folded into another's when it is old."""
    one = await open_it(host="one")
    await submit(one, "first")
    await one.close()
    two = await open_it(host="two")
    await submit(two, "second")
    await two.retain(keep_ms=-60_000, tombstone_ms=10**12)
    again = await open_it(host="one")
    await submit(again, "third")
