"""An old dump of the database is put back: it is refused, and `recover --journal URL` makes it a proper restore."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.journal.postgres.place import PostgresPlace
from holdfast_proofs.support.hosts import Host
from holdfast_proofs.support.postgres import Server

NewHost = Callable[..., Host]


def test_a_dump_that_was_put_back_becomes_a_restore(new_host: NewHost, server: Server, place: PostgresPlace) -> None:
    """What was paid after the dump is not paid again: the step is sent with the key of before."""
    one = new_host("one")
    task_id = one.submit('{"cents": 700}', "order-1", "--no-follow")
    dump = server.dump(place.schema)
    one.submit('{"cents": 700}', "order-1", "--run")
    server.load(dump)

    assert one.look("task", "list", "--json", code=6).error["code"] == "journal-older-copy"
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
