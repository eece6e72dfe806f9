"""What an agent takes from relays about another agent: the one it asked for, at addresses that can be asked."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from holdfast.core.clock import SystemClock
from holdfast.core.ids import EffectKey
from holdfast.errors import MailUnconfirmed, MailUnsent, RelayRefused, RelayUnreachable, RelayUntrusted
from holdfast.host import public_names
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.encodings import AgentId, PublicKey
from holdfast.identity.records.records import LogPosition
from holdfast.identity.records.secret_bytes import KeyPair
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.certificate import Certificate
from holdfast.identity.statements.relay_answer import digest_of_request, signed_answer
from holdfast.identity.statements.statements import parse_profile
from holdfast.identity.witness.relay_link import RefusalContent, open_link
from holdfast.identity.witness.witness_relay import RelayWitness, join_lines
from holdfast.layout.witness_address import WitnessRelay
from holdfast.relay.client import address_book, find
from holdfast.relay.client.address_book import AddressBook, Peer
from holdfast.relay.client.find import find_agent, keep_peer
from holdfast.relay.client.instance_key import InstanceKey
from holdfast.relay.client.post import RelayPost
from holdfast.relay.client.profile import addresses_of
from holdfast.relay.client.sender_logs import SenderLogs
from holdfast_proofs.support.relay_agents import ENTROPY, RelayAgent
from holdfast_proofs.support.relays import answering

PORT = Sodium()
NOT_FOUND = msgspec.json.encode(RefusalContent(code="not-found", message="the relay has nothing there"))


@dataclass
class Served:
    """A relay that answers these paths with these contents, signed."""

    key: KeyPair = field(default_factory=lambda: KeyPair.new(ENTROPY))
    held: dict[str, bytes] = field(default_factory=dict[str, bytes])
    url: str = ""

    @property
    def at(self) -> WitnessRelay:
        return WitnessRelay(self.url, self.key.public)

    def answer(self, method: str, path: str, nonce: bytes, body: bytes) -> tuple[int, bytes]:
        status, content = (200, self.held[path]) if path in self.held else (404, NOT_FOUND)
        ask = digest_of_request(method, path, nonce.decode(), body)
        return status, signed_answer(ask=ask, status=status, content=content, now=int(time.time()), signer=self.key)

    def serve(self, agent: RelayAgent, *, asked_for: RelayAgent | None = None, profile: bytes = b"") -> None:
        """Log and profile of the agent; `asked_for`: under the name of this one."""
        name = (asked_for or agent).id
        self.held[f"/v1/log/{agent.id}"] = log_of(agent)
        self.held[f"/v1/agents/{name}"] = profile or agent.profile(1, [(self.url, self.key.public)])


def log_of(agent: RelayAgent) -> bytes:
    return join_lines([one.line() for one in agent.records])


@contextmanager
def served(count: int) -> Generator[list[Served]]:
    with ExitStack() as stack:
        found = [Served() for _ in range(count)]
        for one in found:
            one.url = stack.enter_context(answering(one.answer))
        yield found


def book_of(folder: Path, relays: Sequence[Served]) -> AddressBook:
    folder.chmod(0o700)
    return AddressBook(folder / "peers.json", lambda: [one.at for one in relays], PORT)


BAD_URLS = ["https://[", "https://h:99999", "https://a..b"]


# addresses


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_profile_with_an_address_that_no_relay_has_counts_as_no_answer(tmp_path: Path, url: str) -> None:
    ada = RelayAgent()
    with served(2) as (first, second):
        first.serve(ada, profile=ada.profile(9, [(url, first.key.public)]))
        with pytest.raises(MailUnsent, match="is not the address of a relay"):
            asyncio.run(book_of(tmp_path, [first]).find(ada.id))
        second.serve(ada)
        found = asyncio.run(book_of(tmp_path, [first, second]).find(ada.id))
        assert [one.url for one in found.relays] == [second.url]


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_profile_that_was_kept_with_such_an_address_stops_nothing(tmp_path: Path, url: str) -> None:
    ada = RelayAgent()
    with served(1) as (relay,):
        relay.serve(ada, profile=ada.profile(2, [(relay.url, relay.key.public)]))
        book = book_of(tmp_path, [relay])
        keep_peer(book.path, parse_profile(ada.profile(1, [(url, relay.key.public)])))
        peer = asyncio.run(book.find(ada.id))
        assert peer.profile.record.ver == 2
        worse = ada.profile(3, [(url, relay.key.public)]).decode()
        assert book.moved(peer, worse) is None, "nor does a relay lead there"


@pytest.mark.parametrize("url", BAD_URLS)
def test_an_address_that_cannot_be_asked_is_unreachable(url: str) -> None:
    """However it got here: callers expect no other errors of a relay."""
    with pytest.raises(RelayUnreachable):
        asyncio.run(open_link(WitnessRelay(url, KeyPair.new(ENTROPY).public)).describe())


# what strangers choose


PUBLIC_KEY = KeyPair.new(ENTROPY).public
PUBLIC = WitnessRelay("https://relay.invalid", PUBLIC_KEY)
EVIL = "https://evil.example"


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """To which hosts they were begun. Every name stands for an address of a private network."""
    begun: list[str] = []
    connect = asyncio.open_connection

    async def connected(host: str, port: int, **more: Any) -> Any:  # Any: what asyncio takes and gives
        begun.append(host)
        return await connect(host, port, **more)

    def resolved(host: str, port: int | None, *_: object, **__: object) -> list[object]:
        if host == "relay.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.5", port))]

    monkeypatch.setattr(asyncio, "open_connection", connected)
    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    monkeypatch.setattr(public_names, "_known", OrderedDict[str, tuple[float, list[str]]]())
    return begun


class Instance:
    """As much of it as a delivery note needs."""

    def __init__(self, agent: RelayAgent) -> None:
        self.id, self.key, self.clock, self._agent = agent.id, agent.key, SystemClock(), agent

    async def certificate(self, *, fresh: bool = False) -> Signed[Certificate]:
        return self._agent.certificate()


@pytest.mark.parametrize(("own", "noted"), [(PUBLIC, False), (None, True)])
def test_a_delivery_note_goes_to_a_private_address_only_from_an_agent_that_has_one(
    tmp_path: Path, connections: list[str], own: WitnessRelay | None, noted: bool
) -> None:
    ada, bob = RelayAgent(), RelayAgent()
    with served(1) as (relay,):
        book = book_of(tmp_path, [])
        book.own_relays = lambda: [own or relay.at]
        signed = parse_profile(ada.profile(1, [(relay.url, relay.key.public)]))
        book._known[ada.id] = Peer(profile=signed, log=ada.log)
        instance = cast("InstanceKey", Instance(bob))
        post = RelayPost(instance, book, book.own_relays, PORT, give_up_s=0.0)

        async def note() -> None:
            try:
                await post.note(to=ada.id, keys=[EffectKey(16 * "ab")])
            finally:
                await post.close()

        with pytest.raises((MailUnsent, MailUnconfirmed)) as told:
            asyncio.run(note())
        assert ("names no relay on a public address" in told.value.message) is not noted
        assert bool(connections) is noted
        assert asyncio.run(book.find(ada.id)).relays == (relay.at,), "what the owner writes goes there"


def test_a_private_address_that_was_kept_of_a_stranger_is_not_asked(tmp_path: Path, connections: list[str]) -> None:
    ada = RelayAgent()
    with served(1) as (relay,):
        relay.serve(ada)
        book = book_of(tmp_path, [])
        book.own_relays = lambda: [PUBLIC]
        keep_peer(book.path, parse_profile(ada.profile(1, [(relay.url, relay.key.public)])), stranger=True)
        with pytest.raises(MailUnsent):
            asyncio.run(book.log_of(ada.id, LogPosition(0, 0), ()))
        assert connections == ["relay.invalid"]


def test_an_agent_that_was_written_to_keeps_its_private_relays_also_after_a_restart(
    tmp_path: Path, connections: list[str]
) -> None:
    """A contact in a private network that answers must be heard, and get its delivery notes."""
    ada = RelayAgent()
    with served(1) as (relay,):
        relay.serve(ada)
        first = book_of(tmp_path, [relay])
        asyncio.run(first.find(ada.id))
        for _ in range(3):
            keep_peer(first.path, parse_profile(RelayAgent().profile(1, [])), stranger=True)
        book = book_of(tmp_path, [])
        book.own_relays = lambda: [PUBLIC]
        assert asyncio.run(book.log_of(ada.id, LogPosition(0, 0), ())).id == ada.id
        assert asyncio.run(book.find(ada.id, stranger=True)).relays == (relay.at,)


def test_a_name_that_stands_for_a_private_address_is_not_connected_to(
    monkeypatch: pytest.MonkeyPatch, connections: list[str]
) -> None:
    """A relay of a stranger's profile: on an address it is left out, by a name it is looked at."""

    def is_private(host: str) -> bool:
        return host == "10.0.0.5"  # and loopback, where the test's relay is, counts as public

    for module in (find, public_names):
        monkeypatch.setattr(module, "is_private_host", is_private)
    ada = RelayAgent()
    with served(1) as (relay,):
        named = [(relay.url, relay.key.public), (EVIL, PUBLIC_KEY), ("https://10.0.0.5", _new_key())]
        relay.serve(ada, profile=ada.profile(1, named))
        found = asyncio.run(find_agent(ada.id, [relay.at], now=int(time.time()), port=PORT, public_only=True))
    assert set(connections) == {"127.0.0.1"}
    assert list(found.silent) == [EVIL]
    assert "private network" in found.silent[EVIL]


async def test_an_own_relay_with_a_private_name_makes_a_network_of_ones_own(
    tmp_path: Path, connections: list[str]
) -> None:
    """As in a company whose relays have names: their agents write to each other."""
    ada, relay = RelayAgent(), WitnessRelay("https://relay.corp.example", _new_key())
    book = book_of(tmp_path, [])
    book.own_relays = lambda: [relay]
    signed = parse_profile(ada.profile(1, [(relay.url, PublicKey(relay.key)), ("https://10.0.0.6", PUBLIC_KEY)]))
    book._known[ada.id] = Peer(profile=signed, log=ada.log)
    found = (await book.find(ada.id, stranger=True)).relays
    assert [(one.url, one.public_only) for one in found] == [(relay.url, False), ("https://10.0.0.6", False)]


def _new_key() -> PublicKey:
    return KeyPair.new(ENTROPY).public


@pytest.mark.parametrize(
    ("host", "private"),
    [
        ("::ffff:127.0.0.1", True),
        ("::ffff:1.1.1.1", False),
        ("169.254.169.254", True),
        ("64:ff9b::a9fe:a9fe", True),  # the same, through a network that translates
        ("64:ff9b::101:101", False),
        ("2002:a00:5::1", True),  # 10.0.0.5, by 6to4
        ("::127.0.0.1", True),
        ("fec0::1", True),
        ("64:ff9b:1::a00:1", True),
        ("::ffff:0:a00:1", True),
        ("ff0e::1", True),
        ("224.0.0.5", True),
        ("::1", True),
        ("2606:4700::1111", False),
        ("relay.example", False),
    ],
)
def test_which_hosts_are_private(host: str, private: bool) -> None:
    assert public_names.is_private_host(host) is private


class Names:
    """A name server: some names are never answered, all others have this address."""

    def __init__(self, silent: str, address: str = "1.1.1.1") -> None:
        self.silent, self.address, self.end = silent, address, threading.Event()

    def look_up(self, host: str, port: int | None, *_: object, **__: object) -> list[object]:
        if host.endswith(self.silent):
            self.end.wait(30)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (self.address, port))]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Generator[Names]:
    found = Names("evil.example")
    monkeypatch.setattr(socket, "getaddrinfo", found.look_up)
    monkeypatch.setattr(public_names, "_known", OrderedDict[str, tuple[float, list[str]]]())
    monkeypatch.setattr(public_names, "_asked", {})
    yield found
    found.end.set()


async def test_names_of_a_stranger_that_are_never_answered_hold_up_no_other_name(names: Names) -> None:
    hanging = [asyncio.create_task(public_names.find_public_addresses(f"{n}.evil.example")) for n in range(8)]
    more = asyncio.create_task(public_names.find_public_addresses("1.evil.example"))
    await asyncio.sleep(0.05)
    threads = [one for one in threading.enumerate() if one.name == "holdfast slow read"]
    assert len(threads) == 8, "one for each name"
    async with asyncio.timeout(2):
        assert await public_names.find_public_addresses("relay.example") == ["1.1.1.1"]
    more.cancel()
    await asyncio.gather(more, return_exceptions=True)
    names.end.set()
    for one in hanging:
        with pytest.raises(socket.gaierror):
            await one


async def test_names_that_are_looked_up_are_bounded(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_names, "LOOKUPS_MAX", 2)
    hanging = [asyncio.create_task(public_names.find_public_addresses(f"{n}.evil.example")) for n in range(2)]
    await asyncio.sleep(0.05)
    with pytest.raises(BlockingIOError):
        await public_names.find_public_addresses("relay.example")
    public_names._known["relay.example"] = time.monotonic() - 2 * public_names.KEPT_S, ["1.1.1.1"]
    assert await public_names.find_public_addresses("relay.example") == ["1.1.1.1"], "as it was found before"
    names.end.set()
    await asyncio.gather(*hanging, return_exceptions=True)
    assert await public_names.find_public_addresses("relay.example") == ["1.1.1.1"]


async def test_an_own_relay_whose_name_is_not_answered_hides_no_private_one(
    tmp_path: Path, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(public_names, "NAMES_S", 0.2)
    names.address = "10.0.0.5"
    assert await public_names.is_any_private(["relay.evil.example", "relay.corp.example"]) is True
    assert await public_names.is_any_private(["relay.evil.example"]) is None
    book = book_of(tmp_path, [])
    book.own_relays = lambda: [WitnessRelay("https://relay.corp.example", PUBLIC_KEY)]
    assert await book._has_private() is True
    names.silent = "corp.example"
    monkeypatch.setattr(public_names, "_known", OrderedDict[str, tuple[float, list[str]]]())
    monkeypatch.setattr(address_book, "FRESH_S", 0.0)
    assert await book._has_private() is True, "nothing says otherwise"


# relays that are silent, or lie


async def test_an_own_relay_that_takes_connections_and_is_silent_stops_no_mail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "ASKED_S", 0.3)
    ada, came = RelayAgent(), asyncio.Event()
    with served(2) as relays, socket.create_server(("127.0.0.1", 0)) as silent:
        for one in relays:
            one.serve(ada)
        book = book_of(tmp_path, [])
        book.own_relays = lambda: [
            *(one.at for one in relays),
            WitnessRelay(f"http://127.0.0.1:{silent.getsockname()[1]}", _new_key()),
        ]

        def answered(*_: object) -> None:
            came.set()

        logs = SenderLogs[int](book, answered, lambda _: None, look_s=3.0)
        assert logs.wait(AgentId(ada.id), LogPosition(0, 0), (), 1)
        async with asyncio.timeout(5):
            await came.wait()
        await logs.close()


def test_an_address_that_nobody_has_signed_replaces_no_relay_that_is_known() -> None:
    """A liar serves a profile of a high rank, which names the keys of the honest relays at other addresses."""
    ada = RelayAgent()
    with served(3) as (liar, *honest):
        for one in honest:
            one.serve(ada, profile=ada.profile(1, [(each.url, each.key.public) for each in honest]))
        false = [(f"https://{n}.invalid", one.key.public) for n, one in enumerate(honest)]
        liar.held[f"/v1/agents/{ada.id}"] = ada.profile(1, false).replace(b'"ver":1', b'"ver":99')
        asked = [liar.at, *(one.at for one in honest)]
        found = asyncio.run(find_agent(ada.id, asked, now=int(time.time()), port=PORT))
    assert found.profile.record.ver == 1
    assert [one.url for one in addresses_of(found.profile.record)] == [one.url for one in honest]


# another agent


def test_another_agents_profile_is_not_taken_for_the_one_that_was_asked_for(tmp_path: Path) -> None:
    ada, eve = RelayAgent(), RelayAgent()
    with served(1) as (liar,):
        liar.serve(eve, asked_for=ada)
        with pytest.raises(RelayUntrusted, match=f"it was asked for {ada.id}, and answered for {eve.id}"):
            asyncio.run(find_agent(ada.id, [liar.at], now=int(time.time()), port=PORT))
        book = book_of(tmp_path, [liar])
        with pytest.raises(MailUnsent):
            asyncio.run(book.find(ada.id))
        with pytest.raises(MailUnsent):  # and no mail of ada is judged by eve's keys
            asyncio.run(book.log_of(ada.id, LogPosition(0, 0), ()))
        assert book.known_log(ada.id, LogPosition(0, 0)) is None


def test_a_relay_that_answers_with_another_agent_does_not_outweigh_an_honest_one(tmp_path: Path) -> None:
    ada, eve = RelayAgent(), RelayAgent()
    with served(2) as (liar, honest):
        liar.serve(eve, asked_for=ada)
        honest.serve(ada)
        book = book_of(tmp_path, [liar, honest])
        assert asyncio.run(book.find(ada.id)).id == ada.id
        assert asyncio.run(book.log_of(ada.id, LogPosition(0, 0), ())).id == ada.id


def test_another_agents_key_log_counts_as_no_answer() -> None:
    """It once counted as the word of a second operator, and made the honest one's log unconfirmed."""
    ada, eve = RelayAgent(), RelayAgent()
    with served(2) as (liar, honest):
        honest.serve(ada)
        liar.held[f"/v1/log/{ada.id}"] = log_of(eve)
        with pytest.raises(RelayUntrusted):
            asyncio.run(RelayWitness(open_link(liar.at)).fetch(ada.id))
        found = asyncio.run(find_agent(ada.id, [liar.at, honest.at], now=int(time.time()), port=PORT))
        assert (found.log.id, found.operators, list(found.silent)) == (ada.id, ("o0",), [liar.url])


def test_another_agents_head_and_evidence_are_not_taken() -> None:
    ada, eve = RelayAgent(), RelayAgent()
    with served(1) as (liar,):
        liar.held[f"/v1/heads/{ada.id}"] = eve.head(1, "a-1-1-20260101T000000Z")
        liar.held[f"/v1/agents/{ada.id}/evidence"] = join_lines([ada.head(1, "one"), eve.head(1, "two")])
        link = open_link(liar.at)
        with pytest.raises(RelayUntrusted):
            asyncio.run(link.find_head(ada.id))
        with pytest.raises(RelayUntrusted):
            asyncio.run(link.find_evidence(ada.id))
        liar.held[f"/v1/heads/{ada.id}"] = ada.head(1, "one")
        assert asyncio.run(link.find_head(ada.id)) == ada.head(1, "one")


def test_a_relay_cannot_roll_an_agent_back_that_is_looked_for_by_its_handle(tmp_path: Path) -> None:
    ada = RelayAgent()
    with served(1) as (relay,):
        relay.serve(ada)
        relay.held["/v1/handles/ada"] = ada.profile(1, [(relay.url, relay.key.public)])
        book = book_of(tmp_path, [relay])
        assert asyncio.run(book.find("ada@127.0.0.1")).id == ada.id
        keep_peer(book.path, parse_profile(ada.profile(2, [(relay.url, relay.key.public)])))
        with pytest.raises(MailUnsent, match="was seen before"):
            asyncio.run(book.find("ada@127.0.0.1", fresh=True))
        known = parse_profile(ada.profile(2, []))
        with pytest.raises(RelayRefused, match="was seen before"):
            asyncio.run(find_agent(ada.id, [relay.at], now=int(time.time()), port=PORT, known=known))
