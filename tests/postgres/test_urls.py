"""A journal by its url: every command takes it, from the command line and from the settings."""

from __future__ import annotations

import json
from collections.abc import Callable

from holdfast_proofs.support.hosts import Host

NewHost = Callable[..., Host]


def test_every_command_takes_a_url(new_host: NewHost) -> None:
    one = new_host("one")
    worker = one.worker("--name", "first")
    worker.wait_event("session-begun")
    two = new_host("two", keys_of=one)
    assert json.loads(two.submit('{"cents": 700}', "order-7"))["cents"] == 700
    (task,) = two.look("task", "list", "--json").json["tasks"]
    assert two.look("task", "show", task["task_id"], "--json").json["state"] == "succeeded"
    assert two.look("effect", "list", "--json").json["effects"] == []
    well = two.look("doctor", "--deep").out
    assert ("1 alive: first" in well, "reserved" in well) == (True, False)  # the server's disk is not looked at
    two.look("todo")
    away = two.look("doctor", at="postgresql://holdfast@127.0.0.1:1/postgres", code=1)
    assert "cannot be reached" in away.out  # a finding among the others
    secret = two.look("task", "list", at="postgresql://holdfast:word@/postgres", code=2)
    assert ("passfile" in secret.err, "word@" in secret.err) == (True, False)


def test_the_url_may_stand_in_the_settings(new_host: NewHost, url: str) -> None:
    host = new_host("one", at="")
    (host.folder / "holdfast.toml").write_text(f'[journal]\nurl = "{url}"\n')
    assert json.loads(host.submit('{"cents": 5}', "order-8", "--run"))["cents"] == 5
    assert not (host.folder / "journal.db").exists()
