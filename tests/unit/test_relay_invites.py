"""Invites of several relays in one file: a line names its relay by host, or by host and port."""

from __future__ import annotations

from pathlib import Path

from holdfast.cli.input.agent_places import witnesses_of
from holdfast.layout.witness_address import relays_of

KEY = "z6MktTghsRsp2TqGKjKiNepMAGAiGcERDkkegDjU4Qk29i9f"


def test_two_relays_on_one_host_have_an_invite_each(tmp_path: Path) -> None:
    invites = tmp_path / "invites"
    invites.write_text("127.0.0.1:8411 one\n127.0.0.1:8412 two\nrelay.example three\n")
    urls = ("http://127.0.0.1:8411", "http://127.0.0.1:8412", "https://relay.example", "https://relay.example:444")
    found = relays_of(witnesses_of([f"{url}#{KEY}" for url in urls], [str(invites)]))
    assert [one.invite for one in found] == ["one", "two", "three", "three"]
