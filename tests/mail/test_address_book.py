"""What an agent keeps of others in peers.json, and who can make it forget."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.statements import Profile, parse_profile
from holdfast.relay.client import find
from holdfast.relay.client.address_book import AddressBook, Peer
from holdfast.relay.client.find import find_peer, keep_peer
from holdfast_proofs.support.relay_agents import RelayAgent


def profile_of(agent: RelayAgent, ver: int = 1) -> Signed[Profile]:
    return parse_profile(agent.profile(ver, [("http://127.0.0.1:1", agent.key.public)]))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "peers.json"


@pytest.mark.parametrize("by_bytes", [False, True])
def test_strangers_push_out_nobody_that_the_agent_writes_to(
    path: Path, monkeypatch: pytest.MonkeyPatch, by_bytes: bool
) -> None:
    first, later = RelayAgent(), RelayAgent()
    size = len(profile_of(first).line())
    monkeypatch.setattr(find, "PEERS_BYTES_MAX" if by_bytes else "PEERS_MAX", 4 * size if by_bytes else 3)
    keep_peer(path, profile_of(first))
    for _ in range(5):
        keep_peer(path, profile_of(RelayAgent()), stranger=True)
    keep_peer(path, profile_of(later), stranger=True)
    keep_peer(path, profile_of(later, 2))  # and now it is written to
    for _ in range(5):
        stranger = RelayAgent()
        twins = [parse_profile(stranger.profile(1, [], exp=2_000_000_000 + n)).line() for n in range(2)]
        keep_peer(path, profile_of(stranger), twins, stranger=True)
    kept = [find_peer(path, one.id) for one in (first, later)]
    assert [one and one.record.ver for one in kept] == [1, 2]
    assert path.stat().st_size < 6 * size


async def test_a_stranger_that_is_answered_is_no_stranger_any_more(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "PEERS_MAX", 2)
    ada, other = RelayAgent(), RelayAgent()
    book = AddressBook(path, list, Sodium())
    for one in (ada, other):
        keep_peer(path, profile_of(one), stranger=True)
        book._known[one.id] = Peer(profile=profile_of(one), log=one.log)
    await book.find(ada.id)
    await book.find(other.id, stranger=True)
    keep_peer(path, profile_of(RelayAgent()))
    assert [find_peer(path, one.id) is not None for one in (ada, other)] == [True, False]
