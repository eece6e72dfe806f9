"""What a person is told about relays and mail when something is misspelled, refused or away."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import h11
import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from direct_relay import PORT, direct_relay
from starlette.requests import Request

from holdfast.cli.input.agent_places import witnesses_of
from holdfast.cli.mail import send
from holdfast.cli.main import main
from holdfast.cli.relay import agent as relay_commands
from holdfast.core.ids import EffectKey
from holdfast.core.mail import MailKind
from holdfast.errors import (
    BadInput,
    BadSettings,
    MailRefused,
    MailUnconfirmed,
    MailUnsent,
    Refused,
    RelayNotAdmitted,
    RelayUnfit,
    RelayUnreachable,
    RelayUntrusted,
)
from holdfast.identity.acts.recover_identity import _no_log
from holdfast.identity.records.encodings import AgentId
from holdfast.identity.records.secret_bytes import KeyPair
from holdfast.identity.records.signed import Reason, Refusal
from holdfast.identity.statements.relay_answer import digest_of_request, signed_answer
from holdfast.identity.statements.statements import Relay, parse_profile
from holdfast.identity.witness.open_witnesses import OpenWitnesses, _answer
from holdfast.identity.witness.relay_link import RefusalContent, open_link, why_of
from holdfast.layout.agent_home import AgentHome
from holdfast.layout.witness_address import WitnessRelay
from holdfast.relay.client.address_book import AddressBook, Peer
from holdfast.relay.client.channel import RelayChannel
from holdfast.relay.client.find import find_agent
from holdfast.relay.client.instance_key import InstanceKey
from holdfast.relay.client.post import RelayPost, _Sending
from holdfast.relay.client.profile import ProfileContent, check_handle, with_relay, without_relay
from holdfast.relay.protocol.envelope import Inner
from holdfast.relay.server.serve import _listening, _tls
from holdfast.relay.server.settings import RelaySettings, read_relay_settings
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
    scheme = "http" if host == "127.0.0.1" else "https"
    return Relay(url=f"{scheme}://{host}:{port}", wit=key, prio=0, domain="o")


def test_what_was_typed_is_not_looked_for_in_the_file(tmp_path: Path) -> None:
    with pytest.raises(BadSettings) as typed:
        read_relay_settings(tmp_path, listen="0.0.0.0:7411")
    (tmp_path / "relay.toml").write_text('listen = "0.0.0.0:7411"')
    with pytest.raises(BadSettings) as written:
        read_relay_settings(tmp_path)
    assert ("relay.toml" in typed.value.message, "relay.toml" in written.value.message) == (False, True)


def test_a_folder_that_cannot_be_made() -> None:
    words = [sys.executable, "-m", "holdfast", "relay", "serve", "--folder", "/proc/nope"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == RelayUnfit.exit_code
    assert "the folder /proc/nope cannot be used" in done.stderr


def test_a_refused_message_is_told_in_the_words_of_its_relay() -> None:
    assert Refused({"reason": "mail-refused", "text": "it takes no mail"}).message.endswith("refused: it takes no mail")


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


def test_a_relay_with_a_new_key_takes_the_place_of_the_old_one_at_its_url() -> None:
    """Its operator gave it one, as after an older store was put back: nothing answers for the old key any more."""
    old, new, other = at(1), at(1), at(2)
    content = ProfileContent(relays=(old, other), handles=("ada@127.0.0.1",))
    assert with_relay(content, new) == ProfileContent(relays=(other, new), handles=content.handles)
    assert with_relay(without_relay(content, old), new).left == ()
    assert len(with_relay(without_relay(content, other), new).left) == 1


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


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return int(door.getsockname()[1])


def test_a_relay_that_is_not_there_is_told_in_words_of_the_system_and_once() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(RelayUnreachable) as told:
        asyncio.run(open_link(WitnessRelay(url, KEY.public)).describe())
    assert told.value.message == f"{url}: Connection refused"
    with pytest.raises(RelayUnreachable) as told:
        asyncio.run(find_agent(RelayAgent().id, [WitnessRelay(url, KEY.public)], now=1, port=PORT))
    assert told.value.message.count(url) == 1


def test_failures_of_all_addresses_of_a_host_and_of_tls_are_told_in_words() -> None:
    both = "[Errno 111] Connect call failed ('::1', 7, 0, 0), [Errno 111] Connect call failed ('127.0.0.1', 7)"
    assert why_of(OSError(f"Multiple exceptions: {both}")) == os.strerror(111)
    assert why_of(socket.gaierror(-2, "Name or service not known")) == "Name or service not known"
    wrong = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)")
    wrong.reason = "WRONG_VERSION_NUMBER"
    assert why_of(wrong) == "TLS failed: wrong version number"
    assert why_of(ConnectionError()) == "ConnectionError"
    of_relay = "illegal header line: [Errno 99999999999999999999]"
    assert why_of(h11.RemoteProtocolError(of_relay)) == of_relay


@pytest.mark.parametrize("url", ["https://[x", "https://relay.example:99999", f"https://{70 * 'a'}.example"])
async def test_the_url_of_a_relay_in_the_profile_of_another_agent_may_be_none(url: str) -> None:
    relay = WitnessRelay(url, KEY.public)
    assert relay.host in url
    with pytest.raises(RelayUnreachable):
        await open_link(relay).find_profile(AgentId("hf1"))
    with pytest.raises(RelayUnreachable):
        await RelayChannel(relay, PORT).submit(AgentId("hf1"), [b""])


def test_a_handle_without_a_relay_and_one_of_an_unknown_relay_say_what_to_do() -> None:
    relays = [WitnessRelay("http://127.0.0.1:1", KEY.public)]
    with pytest.raises(BadInput, match="'bob@' does not name a relay"):
        asyncio.run(find_agent("bob@", relays, now=1, port=PORT))
    with pytest.raises(BadInput) as told:
        asyncio.run(find_agent("bob@r.example", relays, now=1, port=PORT))
    assert "holdfast relay find bob@r.example --relay https://r.example#" in told.value.hint


@pytest.mark.parametrize("raw", [b"\xff\xfe\n", b"a\x01b\n", "für\n".encode()])
def test_a_file_that_holds_no_invite_is_named(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "invite").write_bytes(raw)
    with pytest.raises(BadInput, match="does not hold an invite"):
        witnesses_of([f"http://127.0.0.1:1#{KEY.public}"], [str(tmp_path / "invite")])


def test_files_that_a_relay_cannot_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no certificate")
    here, gone = str(tmp_path / "file"), str(tmp_path / "gone")
    with pytest.raises(BadSettings, match=r"relay\.toml cannot be read: Not a directory"):
        read_relay_settings(tmp_path / "file")
    for cert, key in ((gone, here), (here, gone)):
        with pytest.raises(BadSettings, match=f"{gone} cannot be read: No such file"):
            _tls(cert, key)
    with pytest.raises(BadSettings, match="are not a certificate and its key"):
        _tls(here, here)


def test_a_port_that_is_in_use_is_told_without_tuples() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door, pytest.raises(RelayUnfit) as told:
        _listening("127.0.0.1", door.getsockname()[1])
    assert told.value.message.endswith(": Address already in use")


@pytest.mark.parametrize("words", [["mail", "inbox", "--limit", "x"], ["mail", "send", "a@b", "c", "--timeout", "x"]])
def test_a_value_that_is_no_number_is_told_without_names_of_functions(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert "'x' is not a valid number" in capsys.readouterr().err


@pytest.mark.parametrize(("begun", "error"), [(False, MailUnsent), (True, MailUnconfirmed)])
async def test_mail_waits_for_an_agent_that_has_left_its_last_relay(begun: bool, error: type[Exception]) -> None:
    agent = RelayAgent()
    peer = Peer(profile=parse_profile(agent.profile(1, [])), log=agent.log)
    inner = Inner(key=bytes(16), body=b'"hi"', at_ms=1)
    sending = _Sending(peer, MailKind.MESSAGE, inner, 2, lambda: None, begun=begun)
    post = RelayPost(cast("InstanceKey", None), cast("AddressBook", None), list, PORT)
    with pytest.raises(error, match=f"{agent.id}: its profile names no relay"):
        await post._deliver(sending, EffectKey(bytes(16).hex()))


async def test_a_relay_without_room_for_mail_says_so_to_its_operator(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    for free, low in ((1, False), (1 << 40, True)):
        settings = RelaySettings(registration="open", free_mib_min=free)
        with direct_relay(tmp_path / "relay", settings) as relay:
            health = await relay._healthz(cast("Request", None))
            told = f"the relay takes no new mail: less than {free} MiB are free on its disk" if low else ""
            assert (health.status_code, msgspec.json.decode(health.body)) == (200, {"ok": True, "why": told})
            assert f"holdfast_relay_disk_low {int(low)}" in relay._figures()
