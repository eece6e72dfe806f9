"""What is more than an instance takes at once arrives in pieces; a file that cannot be sent keeps no other one back."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from msgspec.structs import replace
from nacl.signing import SigningKey

from holdfast.instances import exchange, line_document
from holdfast.instances.channels import FolderChannel
from holdfast.instances.envelope import Peers
from holdfast.instances.line_document import CHANGES_MAX, NOTHING, Author, LineDocument, changes_in
from holdfast.instances.merging import Merging
from holdfast.instances.shared import SharedDocument, Update
from holdfast.instances.try_copy import check_foreign
from holdfast.layout.agent_home import MemoryPlace

NOW = 1_800_000_000_000
SEEDS = {name: SigningKey(name.encode().ljust(32)) for name in ("alder", "birch")}
AUTHOR = Author(instance="alder", at_ms=NOW, ours=(), tasks={})
MANY = [f"- {number}" for number in range(500)]


class Host:
    def __init__(self, root: Path, name: str) -> None:
        keys = {one: bytes(seed.verify_key) for one, seed in SEEDS.items()}
        agent = "hf1" + "q" * 58
        sign = SEEDS[name].sign
        peers = Peers(agent=agent, incarnation=1, me=name, keys=keys, sign=lambda text: sign(text).signature)
        self.file = root / name / "MEMORY.md"
        self.file.parent.mkdir(mode=0o700)
        channel = FolderChannel(root / "shared", agent=agent, instance=name)
        self.merging = Merging(MemoryPlace(folder=root / name), channel, peers, bytes(32))

    def lines(self) -> list[str]:
        return self.file.read_text().splitlines()

    def save(self, lines: list[str]) -> None:
        self.file.write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def hosts(tmp_path: Path) -> tuple[Host, Host]:
    (tmp_path / "shared").mkdir()
    return Host(tmp_path, "alder"), Host(tmp_path, "birch")


def talk(*hosts: Host, rounds: int = 6) -> None:
    for _ in range(rounds):
        for one in hosts:
            one.merging.run(now_ms=NOW)


def limit(patched: pytest.MonkeyPatch, changes: int) -> None:
    patched.setattr(line_document, "CHANGES_MAX", changes)
    patched.setattr(exchange, "CHANGES_MAX", changes)


def test_a_file_with_more_lines_than_are_taken_at_once_is_shared(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, 100)
    one, other = hosts
    one.save(MANY)
    talk(one, other)
    assert other.lines() == one.lines() == MANY
    other.save([*MANY, "- of birch"])
    talk(one, other)
    assert one.lines() == [*MANY, "- of birch"]
    assert [peer.waits for host in hosts for peer in host.merging.state.peers.values()] == ["", ""]


def test_what_was_sorted_again_and_again_meanwhile_is_shared(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, 300)
    one, other = hosts
    one.save(MANY[:100])
    talk(one, other)
    for turn in range(12):
        one.save(MANY[:100] if turn % 2 else MANY[99::-1])
        one.merging.run(now_ms=NOW)
    other.save([*other.lines(), "- of birch"])
    talk(one, other)
    assert sorted(one.lines()) == sorted([*MANY[:100], "- of birch"])
    assert one.lines() == other.lines()
    assert [peer.waits for host in hosts for peer in host.merging.state.peers.values()] == ["", ""]


def test_pieces_of_two_that_wrote_in_turn_build_each_on_those_before() -> None:
    one, other = LineDocument.from_lines(MANY), LineDocument()
    for turn in range(6):
        one, other = (LineDocument(one.copy()), other) if turn % 2 else (one, LineDocument(one.copy()))
        for at in range(20):
            one.change_to([*one.lines(), f"- {turn} {at}"], AUTHOR)
            other.take(one.changes_since(other.version()))
            other.change_to([*other.lines(), f"- other {turn} {at}"], AUTHOR)
            one.take(other.changes_since(one.version()))
    reader = LineDocument()
    for version, data in one.pieces_since(NOTHING, most=37, bytes_most=600):
        assert changes_in(data) <= 37
        assert len(data) <= 600
        assert reader.take(data)
        assert reader.version() == version or reader.knows(version)
    assert reader.lines() == one.lines()
    assert reader.knows(one.version())


def test_a_packed_document_with_too_many_later_changes_drops_more_history(monkeypatch: pytest.MonkeyPatch) -> None:
    document = LineDocument.from_lines(MANY)
    shared = SharedDocument(instance="alder", file="MEMORY.md", document=LineDocument(document.copy()))
    first = document.version()
    shared.finish([*MANY, "- at last"], 1, AUTHOR)
    shared.document = LineDocument(shared.document.copy(keep_from=first)) if shared.document else None
    for turn in range(10):
        shared.finish(MANY[::-1] if turn % 2 else MANY, turn + 2, AUTHOR)
    assert changes_in(shared.update_since(NOTHING, whole=True).data) > 2000
    limit(monkeypatch, 2000)
    (update,), trouble = exchange.in_pieces(shared, NOTHING, whole=True)
    assert (update.whole, trouble) == (True, "")
    assert changes_in(update.data) <= 2000
    assert LineDocument(update.data).lines() == shared.lines()


def test_a_file_that_cannot_be_sent_says_so_and_the_others_go(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = hosts
    talk(one, other)
    heartbeat = one.file.with_name("HEARTBEAT.md")
    heartbeat.write_text("- of alder\n")
    one.save(MANY)
    update_since = SharedDocument.update_since

    def large(self: SharedDocument, since: bytes, *, whole: bool) -> Update:
        found = update_since(self, since, whole=whole)
        return replace(found, data=bytes(40_000_000)) if self.file == "MEMORY.md" else found

    monkeypatch.setattr(SharedDocument, "update_since", large)
    monkeypatch.setattr(exchange, "PART_DATA_BYTES", 50_000_000)
    for _ in range(3):
        one.merging.run(now_ms=NOW)
    assert "40,000,000 bytes" in one.merging.state.files["MEMORY.md"]
    talk(one, other)
    assert other.file.with_name("HEARTBEAT.md").read_text() == "- of alder\n"


def test_a_file_of_more_lines_than_the_limit_itself_goes_in_pieces() -> None:
    document = LineDocument.from_lines([f"- {number}" for number in range(CHANGES_MAX + 1000)])
    shared = SharedDocument(instance="alder", file="MEMORY.md", document=document)
    updates, trouble = exchange.in_pieces(shared, NOTHING, whole=True)
    assert trouble == ""
    assert [one.whole for one in updates] == [True, *[False] * (len(updates) - 1)]
    for one in updates:
        check_foreign(one.data)


def test_one_that_asks_to_put_its_own_document_away_gets_the_whole_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its early history was dropped, so it can take neither the other's changes nor pieces of a whole document."""
    first = LineDocument.from_lines(MANY[:50])
    one, other = (
        SharedDocument(instance=name, file="MEMORY.md", document=LineDocument(first.copy()))
        for name in ("alder", "birch")
    )
    for each in (one, other):
        each.finish(MANY[:50], 1, AUTHOR)
    other.finish([*MANY[:50], "- of birch"], 2, AUTHOR)
    for turn in range(6):
        one.finish(MANY[49::-1] if turn % 2 else MANY[:50], turn + 2, AUTHOR)
    one.finish([*MANY[:50], "- of alder"], 9, AUTHOR)
    changes = one.update_since(first.version(), whole=False)
    one.document = LineDocument(one.document.copy(keep_from=one.version)) if one.document else None
    other.receive(changes, AUTHOR)
    limit(monkeypatch, 100)
    for _ in range(3):
        updates, trouble = exchange.in_pieces(other, other.floor(["alder"]), whole=other.is_asked(["alder"]))
        assert trouble == ""
        for update in updates:
            knows = one.document is not None and one.document.knows(update.version)
            one.receive(exchange.without_data(update) if knows else update, AUTHOR)
        other.receive(one.update_since(one.floor(["birch"]), whole=one.is_asked(["birch"])), AUTHOR)
    assert "- of birch" in one.lines()
    assert "- of alder" in one.lines()
    assert not one.wants_whole


def test_one_long_line_cuts_no_other_piece() -> None:
    document = LineDocument.from_lines(MANY)
    long = random.Random(1).randbytes(5_000).hex()
    for turn in range(2):
        document.change_to([*MANY, f"- {turn} {long}"], AUTHOR)
    pieces = document.pieces_since(NOTHING, most=100_000, bytes_most=8_000)
    assert len(pieces) < 40
    reader = LineDocument()
    assert all(reader.take(data) for _, data in pieces)
    assert reader.lines() == document.lines()
    assert max(len(data) for _, data in pieces) < 12_000, "the long line alone"
