"""What a person is told about relays and mail when something is misspelled, refused or away."""

from __future__ import annotations

import asyncio
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from direct_relay import PORT

from holdfast.cli.mail import send
from holdfast.cli.relay import agent as relay_commands
from holdfast.errors import BadInput, BadSettings, MailRefused, RelayNotAdmitted, RelayUntrusted
from holdfast.identity.acts.recover_identity import _no_log
from holdfast.identity.records.secret_bytes import KeyPair
from holdfast.identity.records.signed import Reason, Refusal
from holdfast.identity.statements.relay_answer import digest_of_request, signed_answer
from holdfast.identity.statements.statements import Relay, parse_profile
from holdfast.identity.witness.open_witnesses import OpenWitnesses, _answer
from holdfast.identity.witness.relay_link import RefusalContent
from holdfast.layout.agent_home import AgentHome
from holdfast.layout.witness_address import WitnessRelay
from holdfast.relay.client.find import find_agent
from holdfast.relay.client.profile import ProfileContent, check_handle, without_relay
from holdfast.relay.server.settings import read_relay_settings
from holdfast_proofs.support.relay_agents import ENTROPY, RelayAgent
from holdfast_proofs.support.relays import answering

KEY = KeyPair.new(ENTROPY)


def knows_no_one(key: KeyPair, method: str, path: str, nonce: bytes, body: bytes) -> tuple[int, bytes]:
    """A relay that answers, and has nothing there."""
    ask = digest_of_request(method, path, nonce.decode(), body)
    content = msgspec.json.encode(RefusalContent(code="not-found", message="the relay has nothing there"))
    return 404, signed_answer(ask=ask, status=404, content=content, now=int(time.time()), signer=key)


def at(port: int, host: str = "127.0.0.1") -> Relay:
    key = KeyPair.new(ENTROPY).public
    return Relay(url=f"http://{host}:{port}", wit=key, prio=0, domain="o")


@pytest.mark.parametrize("listen", ["nonsense", "127.0.0.1", "127.0.0.1:http", ":7411"])
def test_a_malformed_listen_is_named_as_such(tmp_path: Path, listen: str) -> None:
    with pytest.raises(BadSettings, match="HOST:PORT"):
        read_relay_settings(tmp_path, listen=listen)


@pytest.mark.parametrize("handle", ["Bad Name", "", "-a", "a" * 65, "ü"])
def test_a_malformed_handle_is_refused_before_a_relay_is_asked(handle: str) -> None:
    with pytest.raises(BadInput, match="cannot be a handle"):
        check_handle(handle)
    with pytest.raises(BadInput, match="cannot be a handle"):
        asyncio.run(
            find_agent(f"{handle}@127.0.0.1", [WitnessRelay("http://127.0.0.1:1", KEY.public)], now=1, port=PORT)
        )


def test_a_relay_with_another_key_is_untrusted_and_not_unreachable() -> None:
    with answering(partial(knows_no_one, KeyPair.new(ENTROPY))) as url, pytest.raises(RelayUntrusted):
        asyncio.run(find_agent(RelayAgent().id, [WitnessRelay(url, KEY.public)], now=1, port=PORT))


def test_a_name_that_relays_do_not_know_is_refused_at_once_and_silence_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = cast("AgentHome", SimpleNamespace(peers_file=tmp_path / "peers.json"))

    def use(url: str) -> None:
        def relays(_: object) -> tuple[WitnessRelay, ...]:
            return (WitnessRelay(url, KEY.public),)

        monkeypatch.setattr(send, "own_relays", relays)

    with answering(partial(knows_no_one, KEY)) as url:
        use(url)
        with pytest.raises(MailRefused, match="knows nobody@127"):
            asyncio.run(send.check_recipient(home, "nobody@127.0.0.1"))
    asyncio.run(send.check_recipient(home, "nobody@127.0.0.1"))  # it is away now: the message may wait


def test_a_message_that_only_its_recipient_has_confirmed_is_told_as_such() -> None:
    assert send.told({"to": "hf1x", "relays": ["r1", "r2"]}) == "sent to hf1x: held by r1, r2"
    assert send.told({"to": "hf1x", "relays": []}) == "sent to hf1x: it has confirmed the message"


def test_a_handle_stays_while_another_relay_has_its_host() -> None:
    one, two, far = at(1), at(2), at(3, host="r.example")
    content = ProfileContent(relays=(one, two, far), handles=("ada@127.0.0.1", "ada@r.example"))
    left = without_relay(content, one)
    assert left.handles == content.handles
    assert without_relay(left, two).handles == ("ada@r.example",)


def test_a_host_of_several_relays_is_not_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    relays = [(one.url, one.wit) for one in (at(1), at(2))]
    held = parse_profile(RelayAgent().profile(1, relays))

    def found(_: object) -> object:
        return held

    monkeypatch.setattr(relay_commands, "find_own_profile", found)
    home = cast("AgentHome", None)
    with pytest.raises(BadInput, match=r"2 of the agent's relays: http://127.0.0.1:1, http://127.0.0.1:2"):
        relay_commands._listed(home, "127.0.0.1")
    with pytest.raises(BadInput, match="not one of"):
        relay_commands._listed(home, "other.example")
    assert relay_commands._listed(home, relays[1][0]).url == relays[1][0]


def test_a_relay_that_did_not_answer_is_named_where_no_key_log_was_found() -> None:
    told = _no_log(OpenWitnesses(unreachable={"https://r.example#z6Mk": "connection refused"}))
    assert "https://r.example#z6Mk: connection refused" in told.message
    assert "could not be asked" not in _no_log(OpenWitnesses()).message


def test_a_witness_that_refuses_has_answered() -> None:
    async def refuses() -> bytes:
        raise RelayNotAdmitted("another agent has used this invite")

    answer = asyncio.run(_answer(refuses()))
    assert answer == Refusal(Reason.NOT_ADMITTED, "the witness refuses: another agent has used this invite")
