"""What an agent takes from relays about another agent: the one it asked for, at addresses that can be asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from holdfast.errors import MailUnsent, RelayRefused, RelayUnreachable, RelayUntrusted
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.records import LogPosition
from holdfast.identity.records.secret_bytes import KeyPair
from holdfast.identity.statements.relay_answer import digest_of_request, signed_answer
from holdfast.identity.statements.statements import parse_profile
from holdfast.identity.witness.relay_link import RefusalContent, open_link
from holdfast.identity.witness.witness_relay import RelayWitness, join_lines
from holdfast.layout.witness_address import WitnessRelay
from holdfast.relay.client.address_book import AddressBook
from holdfast.relay.client.find import find_agent, keep_peer
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
