"""Witnesses: one receipt for a position, over restarts, crashes, damage and other processes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Generator, Mapping
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cast import NOW, SODIUM, MemoryLogStore, Owner, key, refused, take, vouched, witnesses

from holdfast.errors import ModeTooWide, WitnessDamaged
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.encodings import AgentId, PublicKey
from holdfast.identity.records.records import Keys, parse_receipt
from holdfast.identity.records.signed import Reason, Refusal
from holdfast.identity.witness.observe import merge_copies
from holdfast.identity.witness.witness import LogCopy, Witness
from holdfast.identity.witness.witness_folder import FolderLogStore, LogStore, WitnessService, witness_signer
from holdfast.relay.server.logs import AdmittingLogs, KeyLogs
from holdfast.relay.server.store import Store

OWNER = Owner()
THIEF = Owner(name="thief")
ID = OWNER.begun().id

Make = Callable[[], LogStore]


@pytest.fixture(params=["memory", "folder", "relay"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[LogStore]:
    if request.param == "memory":
        yield MemoryLogStore()
    elif request.param == "folder":
        yield FolderLogStore(tmp_path / "w", port=SODIUM)
    else:
        made = Store(tmp_path / "r")
        yield AdmittingLogs(KeyLogs(made, port=SODIUM), lambda db, agent: "")
        made.close()


def witness(store: LogStore, name: str = "w1", peers: Mapping[PublicKey, Witness] | None = None) -> WitnessService:
    return WitnessService(store, key(name), port=SODIUM, clock=lambda: NOW, peers=peers or {})


async def said(one: Witness, line: bytes, receipts: tuple[bytes, ...] = ()) -> bytes:
    answer = await one.submit(line, receipts)
    assert isinstance(answer, bytes), answer
    return answer


async def test_a_witness_vouches_for_the_first_and_keeps_the_second(store: LogStore) -> None:
    one = witness(store)
    log = OWNER.begun()
    mine, his = OWNER.rotation(log, 1), THIEF.rotation(log, 1, by=OWNER.next(1))
    await said(one, OWNER.inception().line())
    first = await said(one, mine.line())
    assert parse_receipt(first).record.d == mine.digest
    assert refused(await one.submit(his.line())) is Reason.CONTESTED
    assert await said(one, mine.line()) == first
    copy = await one.fetch(ID)
    assert copy is not None
    assert his.line() in copy.records
    held = merge_copies(None, (copy,), id=ID, port=SODIUM)
    assert held is not None
    assert len(held.evidence) == 1
    assert await one.fetch(Owner(name="x").begun().id) is None


async def test_a_witness_that_vouched_for_the_loser_does_not_vouch_twice(store: LogStore) -> None:
    one = witness(store)
    log = OWNER.begun()
    mine, his = OWNER.rotation(log, 1), THIEF.rotation(log, 1, by=OWNER.next(1))
    await said(one, OWNER.inception().line())
    await said(one, his.line())
    final = vouched(take(log, mine), mine, "w2", "w3")
    lines = tuple(one.line() for one in final.head.receipts)
    assert refused(await one.submit(mine.line(), lines)) is Reason.CONTESTED
    following = OWNER.rotation(final, 2)  # it follows the final record, and goes on vouching
    assert parse_receipt(await said(one, following.line())).record.d == following.digest


async def test_rubbish_and_strangers_are_refused(store: LogStore) -> None:
    one = witness(store, "nobody")
    assert refused(await one.submit(b"{}")) is Reason.MALFORMED
    assert refused(await one.submit(OWNER.inception().line(), (b"x",))) is Reason.MALFORMED
    rotation = OWNER.rotation(OWNER.begun(), 1).line()
    assert refused(await one.submit(rotation)) is Reason.NOT_BEGUN
    assert refused(await one.submit(OWNER.inception().line())) is Reason.NOT_A_WITNESS
    assert await one.fetch(ID) is not None


async def test_new_witnesses_wait_for_the_old_ones(store: LogStore) -> None:
    fresh = witness(store, "n1")
    log = OWNER.begun()
    change = OWNER.rotation(log, 1, wit=witnesses("n1", needed=1))
    assert refused(await fresh.submit(OWNER.inception().line())) is Reason.NOT_A_WITNESS
    assert refused(await fresh.submit(change.line())) is Reason.PREVIOUS_NOT_FINAL
    old = vouched(take(log, change), change, "w1", "w2")
    lines = tuple(one.line() for one in old.head.receipts)
    assert parse_receipt(await said(fresh, change.line(), lines)).record.d == change.digest


class Dead:
    """A witness that is gone."""

    key = key("w3").public

    async def submit(self, line: bytes, receipts: object = ()) -> bytes | Refusal:
        raise OSError("gone")

    async def fetch(self, id: AgentId) -> LogCopy | None:
        raise OSError("gone")


async def test_new_witnesses_ask_the_old_ones_before_they_believe_a_recovery() -> None:
    """A spent recovery key with made-up witnesses fools nobody who asks one honest old one."""
    old = {name: witness(MemoryLogStore(), name) for name in ("w1", "w2")}
    log = OWNER.begun()
    mine = OWNER.recovery(log)
    for one in old.values():
        await said(one, OWNER.inception().line())
        await said(one, mine.line())
    peers: dict[PublicKey, Witness] = {one.key: one for one in old.values()}
    peers[Dead.key] = Dead()
    store = MemoryLogStore()
    fresh = witness(store, "n1", peers=peers)
    await fresh.submit(OWNER.inception().line())
    forged = Owner(name="owner", wit=OWNER.wit).recovery(log, wit=Keys((fresh.key,), 1))
    assert refused(await fresh.submit(forged.line())) is Reason.CONTESTED
    held = store.find(ID)
    assert held is not None
    assert held.head.digest == mine.digest
    alone = witness(MemoryLogStore(), "n1", peers={Dead.key: Dead()})
    await alone.submit(OWNER.inception().line())
    assert isinstance(await alone.submit(forged.line()), bytes)  # all old ones dead: row 27


# the folder


def entered(folder: Path) -> tuple[FolderLogStore, Path]:
    """A folder with an inception and a rotation, vouched for by w1."""
    store = FolderLogStore(folder, port=SODIUM)

    async def enter() -> None:
        one = witness(store)
        await said(one, OWNER.inception().line())
        await said(one, OWNER.rotation(OWNER.begun(), 1).line())

    asyncio.run(enter())
    return store, folder / f"{ID}.jsonl"


def head(folder: Path) -> KeyLog:
    log = FolderLogStore(folder, port=SODIUM).find(ID)
    assert log is not None
    return log


def test_a_folder_says_the_same_after_a_restart(tmp_path: Path) -> None:
    store, path = entered(tmp_path / "w")
    before = store.find(ID)
    assert head(tmp_path / "w") == before
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes().count(b"\n") == 4
    answer = asyncio.run(
        witness(FolderLogStore(tmp_path / "w", port=SODIUM)).submit(
            THIEF.rotation(OWNER.begun(), 1, by=OWNER.next(1)).line()
        )
    )
    assert refused(answer) is Reason.CONTESTED


def test_a_crash_at_any_byte_of_an_append_leaves_a_witness_that_vouches_once(tmp_path: Path) -> None:
    """Cut anywhere: what is whole counts; what was cut was never answered, and is signed anew."""
    _, path = entered(tmp_path / "w")
    whole = path.read_bytes()
    third = whole.index(b"\n", whole.index(b"\n") + 1) + 1
    mine = OWNER.rotation(OWNER.begun(), 1)
    for size in range(third, len(whole), 97):
        path.write_bytes(whole[:size])
        store = FolderLogStore(tmp_path / "w", port=SODIUM)
        answer = asyncio.run(witness(store).submit(mine.line()))
        assert isinstance(answer, bytes)
        assert parse_receipt(answer).record.d == mine.digest
        assert path.read_bytes() == whole
        assert head(tmp_path / "w").head.digest == mine.digest


def test_a_long_torn_line_is_cut_off_before_a_short_append(tmp_path: Path) -> None:
    store, path = entered(tmp_path / "w")
    inception = OWNER.inception().line()
    path.write_bytes(inception + b"\n" + b"x" * 3000)
    again = FolderLogStore(tmp_path / "w", port=SODIUM)
    assert isinstance(asyncio.run(witness(again).submit(inception)), bytes)
    assert b"x" * 20 not in path.read_bytes()
    assert head(tmp_path / "w").position == (0, 0)
    assert store.find(ID) == again.find(ID)


@pytest.mark.parametrize("place", [0.1, 0.45, 0.7, 0.95])
def test_damage_is_told_and_nothing_is_signed(tmp_path: Path, place: float) -> None:
    _, path = entered(tmp_path / "w")
    raw = bytearray(path.read_bytes())
    raw[int(len(raw) * place)] ^= 1
    path.write_bytes(raw)
    one = witness(FolderLogStore(tmp_path / "w", port=SODIUM))
    with pytest.raises(WitnessDamaged):
        asyncio.run(one.submit(OWNER.inception().line()))
    lines = bytes(raw).splitlines(keepends=True)
    path.write_bytes(b"".join(lines[1:]))  # the first record is gone
    with pytest.raises(WitnessDamaged):
        asyncio.run(one.fetch(ID))


def test_a_folder_that_others_read_is_refused(tmp_path: Path) -> None:
    store, path = entered(tmp_path / "w")
    path.chmod(0o644)
    with pytest.raises(ModeTooWide):
        store.find(ID)
    path.chmod(0o600)
    (tmp_path / "w").chmod(0o755)
    with pytest.raises(ModeTooWide):
        store.find(ID)


def test_two_processes_of_one_witness_do_not_vouch_twice(tmp_path: Path) -> None:
    """Each sees what the other wrote; the lock keeps their appends apart."""
    store, _ = entered(tmp_path / "w")
    log = store.find(ID)
    assert log is not None
    mine, his = OWNER.rotation(log, 2), THIEF.rotation(log, 2, by=OWNER.next(2))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = asyncio.run(witness(FolderLogStore(tmp_path / "w", port=SODIUM)).submit(his.line()))
            os.write(writing, b"receipt" if isinstance(answer, bytes) else b"refused")
        finally:
            os._exit(0)
    answer = asyncio.run(witness(store).submit(mine.line()))
    os.waitpid(child, 0)
    other = os.read(reading, 20)
    os.close(reading)
    os.close(writing)
    assert (other == b"receipt") is not isinstance(answer, bytes)


def test_a_full_disk_gives_no_receipt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.identity.witness import witness_folder

    store, path = entered(tmp_path / "w")
    before = path.read_bytes()

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    log = store.find(ID)
    assert log is not None
    monkeypatch.setattr(witness_folder.private_files, "sync", full)
    with pytest.raises(Exception, match="No space"):
        asyncio.run(witness(store).submit(OWNER.rotation(log, 2).line()))
    monkeypatch.undo()
    again = FolderLogStore(tmp_path / "w", port=SODIUM)
    assert isinstance(asyncio.run(witness(again).submit(OWNER.rotation(log, 2).line())), bytes)
    assert path.read_bytes().startswith(before)


def test_the_key_of_a_witness_is_made_once(tmp_path: Path) -> None:
    first = witness_signer(tmp_path / "w")
    assert witness_signer(tmp_path / "w").public == first.public
    seed = tmp_path / "w" / "witness.seed"
    assert seed.stat().st_mode & 0o777 == 0o600
    seed.write_bytes(b"short")
    with pytest.raises(WitnessDamaged):
        witness_signer(tmp_path / "w")
