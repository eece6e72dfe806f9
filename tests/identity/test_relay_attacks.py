"""Rows of the attack table, against three real relay processes."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cast import SODIUM, Owner, refused, take

from holdfast.errors import KeysReplaced, NotNow
from holdfast.identity.acts.recover_identity import recover_identity
from holdfast.identity.log.log_state import KeyLog, LogStanding, is_final
from holdfast.identity.records.records import Keys, Record, RotationReason
from holdfast.identity.records.signed import Family, Reason, Signed, sealed
from holdfast.identity.statements.statements import Profile
from holdfast.identity.witness.observe import Observation, SourceAnswer, merge_copies, observe
from holdfast.identity.witness.open_witnesses import open_witnesses, publish
from holdfast.identity.witness.witness import ROTATIONS_AN_HOUR, LogCopy
from holdfast_proofs.support.agents import ENTROPY, World
from holdfast_proofs.support.relays import RelayProcess, relays


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Generator[list[RelayProcess]]:
    with relays(tmp_path_factory.mktemp("relays"), "r1", "r2", "r3") as started:
        yield started


@pytest.fixture
def three(running: list[RelayProcess]) -> list[RelayProcess]:
    for one in running:
        if one.process is None:
            one.start()
    return running


def of(three: list[RelayProcess], name: str) -> Owner:
    return Owner(name=name, wit=Keys(tuple(one.link.key for one in three), 2))


def sent(log: KeyLog, signed: Signed[Record], to: list[RelayProcess]) -> KeyLog:
    found = open_witnesses([one.at for one in to], port=SODIUM)
    return asyncio.run(publish(log, signed, found.by_key, port=SODIUM)).log


def at(relay: RelayProcess, log: KeyLog) -> KeyLog:
    found = merge_copies(None, [copy_at(relay, log)], id=log.id, port=SODIUM)
    assert found is not None
    return found


def copy_at(relay: RelayProcess, log: KeyLog) -> LogCopy:
    copy = asyncio.run(relay.witness.fetch(log.id))
    assert copy is not None
    return copy


def begun(owner: Owner, three: list[RelayProcess]) -> KeyLog:
    return sent(owner.begun(), owner.inception(), three)


def profile(owner: Owner, number: int, log: KeyLog, ver: int) -> bytes:
    """As the n-th operational key of this owner would sign it."""
    g, s = log.position
    made = Profile(id=log.id, g=g, s=s, ver=ver, relays=(), handles=(), enc=(), policy=(), exp=4_000_000_000)
    return sealed(made, Family.PROF, (owner.op(number),)).line()


def test_row_01_three_relays_refuse_a_thief_with_the_operational_key(three: list[RelayProcess]) -> None:
    owner, thief = of(three, "row 1"), of(three, "row 1 thief")
    log = begun(owner, three)
    his = thief.rotation(log, 1)  # he does not have the next key that the log commits to
    for one in three:
        assert refused(asyncio.run(one.witness.submit(his.line()))) is Reason.NOT_COMMITTED
        assert isinstance(asyncio.run(one.link.put_profile(log.id, profile(owner, 0, log, 7))), bytes)
    mine = owner.rotation(log, 1, why=RotationReason.STOLEN)
    after = sent(take(log, mine), mine, three)
    for one in three:
        late = asyncio.run(one.link.put_profile(log.id, profile(owner, 0, log, 99)))
        assert refused(late) is Reason.OLD_KEYS
        assert isinstance(asyncio.run(one.link.put_profile(log.id, profile(owner, 1, after, 1))), bytes)


def test_row_02_one_recovery_at_three_relays_beats_all_rotations_of_a_thief(three: list[RelayProcess]) -> None:
    owner, thief = of(three, "row 2"), of(three, "row 2 thief")
    log = begun(owner, three)
    stolen = log
    for number in range(1, ROTATIONS_AN_HOUR + 1):
        by = owner.next(1) if number == 1 else thief.next(number)
        his = thief.rotation(stolen, number, by=by)
        stolen = sent(take(stolen, his), his, three)
    assert at(three[0], log).position == (0, ROTATIONS_AN_HOUR)
    more = thief.rotation(stolen, ROTATIONS_AN_HOUR + 1)
    assert refused(asyncio.run(three[0].witness.submit(more.line()))) is Reason.TOO_MANY
    recovery = owner.recovery(log)
    sent(take(log, recovery), recovery, three)
    for one in three:
        there = at(one, log)
        assert (there.position, there.standing) == ((1, 0), LogStanding.LOCKED)
        assert not isinstance(asyncio.run(one.witness.submit(more.line())), bytes)
        assert at(one, log).position == (1, 0)


def test_row_06_two_machines_recover_at_once_at_three_relays(tmp_path: Path, three: list[RelayProcess]) -> None:
    tmp_path.chmod(0o700)
    names = tuple(one.address for one in three)
    world = World(tmp_path, names=names)
    world.make()
    machines = [World(tmp_path, names=names, home_name=name) for name in ("one", "two")]

    async def both() -> list[object]:
        return await asyncio.gather(
            *(recover_identity(one.order(), words=world.words[0], entropy=ENTROPY, port=SODIUM) for one in machines),
            return_exceptions=True,
        )

    lost = [one for one in asyncio.run(both()) if isinstance(one, BaseException)]
    assert len(lost) == 1
    assert isinstance(lost[0], KeysReplaced | NotNow), lost
    logs = [at(one, world.log()) for one in three]
    assert {log.generations[1].tier.digest for log in logs} == {logs[0].generations[1].tier.digest}
    assert {log.position for log in logs} == {(1, 1)}
    assert any(is_final(log, log.position) for log in logs)


def test_row_07_spent_keys_fork_nothing_at_a_relay(three: list[RelayProcess]) -> None:
    owner, thief = of(three, "row 7"), of(three, "row 7 thief")
    log = begun(owner, three)
    first = owner.rotation(log, 1)
    log = sent(take(log, first), first, three)
    recovery = owner.recovery(log)
    after = sent(take(log, recovery), recovery, three)
    fork = thief.rotation(owner.begun(), 1, by=owner.next(1))  # the next key is spent
    for one in three:
        assert refused(asyncio.run(one.witness.submit(fork.line()))) in (Reason.CONTESTED, Reason.OLD_KEYS)
        assert at(one, log).head.digest == after.head.digest


def test_row_08_relays_that_saw_different_records_agree_after_a_recovery(three: list[RelayProcess]) -> None:
    owner, thief = of(three, "row 8"), of(three, "row 8 thief")
    log = begun(owner, three)
    mine, his = owner.rotation(log, 1), thief.rotation(log, 1, by=owner.next(1))
    for relay, record in zip(three[:2], (mine, his), strict=True):
        assert isinstance(asyncio.run(relay.witness.submit(record.line())), bytes)
    seen = sent(take(log, mine), mine, three[:2])
    assert not is_final(seen, mine.record.position)
    assert seen.standing is LogStanding.CONTESTED
    recovery = owner.recovery(log)
    sent(take(log, recovery), recovery, three)
    assert {at(one, log).head.digest for one in three} == {recovery.digest}


def test_row_09_a_relay_from_an_old_disk_is_outvoted_and_named(tmp_path: Path, three: list[RelayProcess]) -> None:
    owner, liar = of(three, "row 9"), three[2]
    log = begun(owner, three)
    liar.stop()
    shutil.copytree(liar.folder, tmp_path / "old")
    liar.start()
    mine = owner.rotation(log, 1)
    log = sent(take(log, mine), mine, three)
    liar.stop()
    shutil.rmtree(liar.folder)
    shutil.copytree(tmp_path / "old", liar.folder)
    liar.start()
    answers = [SourceAnswer(source=one.at.url, operator=one.at.url, copy=copy_at(one, log)) for one in three]
    seen = observe(answers, id=log.id, port=SODIUM)
    assert isinstance(seen, Observation)
    assert seen.behind == (liar.at.url,)
    # It would sign another record at that position now: two receipts of one key, which prove it.
    his = of(three, "row 9 thief").rotation(owner.begun(), 1, by=owner.next(1))
    assert isinstance(asyncio.run(liar.witness.submit(his.line())), bytes)
    answers[2] = SourceAnswer(source=liar.at.url, operator=liar.at.url, copy=copy_at(liar, log))
    both = observe(answers, id=log.id, port=SODIUM)
    assert isinstance(both, Observation)
    assert both.liars == {liar.link.key: mine.record.position}
    assert both.log.head.digest == mine.digest


def test_row_27_all_relays_are_gone_and_new_ones_are_named(tmp_path: Path) -> None:
    """An empty world: the card, the words and relays that have never heard of the agent."""
    tmp_path.chmod(0o700)
    with relays(tmp_path, "old") as (old,):
        world = World(tmp_path, names=(old.address,))
        world.make()
    card = LogCopy(records=(world.log().generations[0].tier.signed.line(),), receipts=())
    with relays(tmp_path, "n1", "n2", "n3") as fresh:
        empty = World(tmp_path / "empty", names=())
        empty.root.mkdir(mode=0o700)
        done = empty.recover(world.words[0], copies=(card,), new_witnesses=tuple(one.at for one in fresh))
        assert done.log.id == world.log().id
        assert len(done.log.head.receipts) == 3
        assert is_final(done.log, done.log.position)
