"""Rows of the attack table, against three real relay processes."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cast import SODIUM, Owner, refused, take

from holdfast.errors import KeysReplaced, NotNow, RelayRefused
from holdfast.identity.acts.recover_identity import recover_identity
from holdfast.identity.log.log_state import KeyLog, LogStanding, is_final
from holdfast.identity.records.records import Keys, Record, RotationReason
from holdfast.identity.records.signed import Family, Reason, Signed, sealed
from holdfast.identity.statements.certificate import parse_certificate
from holdfast.identity.statements.statements import Profile
from holdfast.identity.witness.observe import Observation, SourceAnswer, merge_copies, observe
from holdfast.identity.witness.open_witnesses import open_witnesses, publish
from holdfast.identity.witness.witness import ROTATIONS_AN_HOUR, LogCopy
from holdfast.identity.witness.witness_relay import join_lines
from holdfast.relay.client.channel import FencedByRelay, RelayChannel, SessionOver
from holdfast.relay.protocol.calls import BAD_CERTIFICATE, Ack, Login, LoginAnswer
from holdfast_proofs.support.agents import ENTROPY, World
from holdfast_proofs.support.relay_agents import RelayAgent
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


def test_row_10_one_honest_relay_is_enough_for_a_new_peer_to_notice(three: list[RelayProcess]) -> None:
    owner, thief = of(three, "row 10"), of(three, "row 10 thief")
    log = begun(owner, three)
    his = thief.rotation(log, 1, by=owner.next(1))
    for one in three[:2]:  # these two show a new peer nothing else
        assert isinstance(asyncio.run(one.witness.submit(his.line())), bytes)
    recovery = owner.recovery(log)
    true = sent(take(log, recovery), recovery, three[2:])
    whose = zip(three, "xxy", strict=True)
    shown = [SourceAnswer(source=one.at.url, operator=name, copy=copy_at(one, log)) for one, name in whose]
    for answers in (shown, shown[::-1]):
        seen = observe(answers, id=log.id, port=SODIUM)
        assert isinstance(seen, Observation)
        assert seen.log.head.digest == true.head.digest
        assert set(seen.behind) == {one.at.url for one in three[:2]}
    assert refused(observe(shown[:2], id=log.id, port=SODIUM)) is Reason.ONE_OPERATOR


@asynccontextmanager
async def channels_to(*some: RelayProcess) -> AsyncGenerator[list[RelayChannel]]:
    made = [RelayChannel(one.at, SODIUM) for one in some]
    try:
        yield made
    finally:
        for one in made:
            await one.close()


async def with_channels(some: list[RelayProcess], story: Callable[[list[RelayChannel]], Awaitable[None]]) -> None:
    async with channels_to(*some) as made:
        await story(made)


async def registered(three: list[RelayProcess]) -> tuple[RelayAgent, RelayAgent]:
    """An agent at three relays, with one message that waits at each; and its sender."""
    wit = Keys(tuple(one.link.key for one in three), 2)
    agent, sender = RelayAgent(wit=wit), RelayAgent(wit=wit)
    mail = sender.envelope(agent, 1)
    for one in three:
        for known in (agent, sender):
            assert isinstance(await one.witness.submit(known.records[0].line()), bytes)
        async with channels_to(one) as (channel,):
            answer, _ = await channel.submit(agent.id, [mail])
        assert answer.items[0].seq == 1, answer
    return agent, sender


def test_row_11_a_stale_copy_takes_and_sends_nothing_at_three_relays(three: list[RelayProcess]) -> None:
    """A copy of an older folder: its incarnation is lower than that of the agent that was restored."""

    async def story() -> None:
        agent, peer = await registered(three)
        stale, live = agent.certificate(e=1), agent.certificate(e=2)
        async with channels_to(*three) as channels:
            for channel in channels:
                before, _ = await channel.login(stale, agent.key)
                after, _ = await channel.login(live, agent.key)
                with pytest.raises(FencedByRelay) as fenced:
                    await channel.take(agent.id, before.token, after=0, wait_s=0)
                assert parse_certificate(fenced.value.proof).digest == live.digest
                with pytest.raises(FencedByRelay):
                    await channel.login(stale, agent.key)
                said, _ = await channel.submit(peer.id, [agent.envelope_for(peer.id, peer.mail_key, 5, crt=stale)])
                assert said.items[0].code == BAD_CERTIFICATE
                page, _ = await channel.take(agent.id, after.token, after=0, wait_s=0)
                assert [bool(one.envelope) for one in page.items] == [True]

    asyncio.run(story())


def test_row_12_a_clone_with_the_live_instance_key_ends_with_the_keys_at_three_relays(
    three: list[RelayProcess],
) -> None:
    """Both copies have key, certificate and every byte that was sent. What one sent, the other sends in vain; and a
    rotation because of theft ends both at once."""

    async def story(channels: list[RelayChannel]) -> None:
        agent, peer = await registered(three)
        crt = agent.certificate()
        message = agent.envelope_for(peer.id, peer.mail_key, 1, crt=crt)
        tokens: list[str] = []
        for channel in channels:
            nonce = (await channel.call("GET", f"/v1/mailbox/{agent.id}/nonce")).content.decode()
            login = Login(id=agent.id, g=0, s=0, wit=channel.key, nonce=nonce, crt=crt.digest)
            body = join_lines((sealed(login, Family.LOGIN, (agent.key,)).line(), crt.line()))
            said = await channel.call("POST", f"/v1/mailbox/{agent.id}/login", body)
            tokens.append(msgspec.json.decode(said.content, type=LoginAnswer).token)
            with pytest.raises(RelayRefused, match="too late"):
                await channel.call("POST", f"/v1/mailbox/{agent.id}/login", body)
            again = agent.envelope_for(peer.id, peer.mail_key, 1, crt=crt)
            stored = [(await channel.submit(peer.id, [raw]))[0].items[0] for raw in (message, again)]
            assert stored[0] == stored[1], "the same message of a clone is no second one"
        rotation = agent.rotate(RotationReason.STOLEN)
        for one in three:
            assert isinstance(await one.witness.submit(rotation.line()), bytes)
        for channel, token in zip(channels, tokens, strict=True):
            with pytest.raises(FencedByRelay):
                await channel.acknowledge(agent.id, token, Ack(received=((1, "0" * 64),), mark=1))
            late = agent.envelope_for(peer.id, peer.mail_key, 2, crt=crt)
            assert (await channel.submit(peer.id, [late]))[0].items[0].code == BAD_CERTIFICATE

    asyncio.run(with_channels(three, story))


def test_row_13_a_paused_primary_wakes_up_fenced_at_three_relays(three: list[RelayProcess]) -> None:
    """It has a session from before; meanwhile the agent was brought back elsewhere, with new keys."""

    async def story(channels: list[RelayChannel]) -> None:
        agent, _ = await registered(three)
        crt, key = agent.certificate(), agent.key
        tokens = [(await one.login(crt, key))[0].token for one in channels]
        waits = [
            asyncio.create_task(one.take(agent.id, token, after=1, wait_s=20))
            for one, token in zip(channels, tokens, strict=True)
        ]
        await asyncio.sleep(0.2)  # it is paused in the middle of a question
        rotation = agent.rotate(RotationReason.STOLEN)
        for one in three:
            assert isinstance(await one.witness.submit(rotation.line()), bytes)
        for wait in waits:
            with pytest.raises(FencedByRelay):  # at once, not when its question has waited long enough
                await asyncio.wait_for(wait, 15)
        for one, token in zip(channels, tokens, strict=True):
            with pytest.raises((FencedByRelay, SessionOver)):
                await one.acknowledge(agent.id, token, Ack(received=((1, "0" * 64),), mark=1))
            with pytest.raises(FencedByRelay):
                await one.login(crt, key)
            heir, _ = await one.login(agent.certificate(e=2), key)
            page, _ = await one.take(agent.id, heir.token, after=0, wait_s=0)
            assert [bool(item.envelope) for item in page.items] == [True], "nothing was acknowledged in its name"

    asyncio.run(with_channels(three, story))


@pytest.mark.parametrize("shift", [-86_400, 86_400])
def test_row_14_a_relay_whose_clock_jumps_gives_the_same_verdicts(tmp_path: Path, shift: int) -> None:
    """The log reads no clock; a certificate is refused, never taken for longer."""
    clocks = ("-m", "holdfast_proofs.support.shifted_clock", str(shift))
    relay = RelayProcess(tmp_path / "relay", program=clocks).start()

    async def story() -> None:
        wit = Keys((relay.link.key,), 1)
        owner, thief = Owner(name=f"row 14 {shift}", wit=wit), Owner(name="row 14 thief", wit=wit)
        log = owner.begun()
        mine, his = owner.rotation(log, 1), thief.rotation(log, 1, by=owner.next(1))
        for record in (owner.inception(), mine, mine):
            assert isinstance(await relay.witness.submit(record.line()), bytes)
        assert refused(await relay.witness.submit(his.line())) is Reason.CONTESTED
        agent = RelayAgent(wit=wit)
        await relay.witness.submit(agent.records[0].line())
        with pytest.raises(SessionOver):
            async with channels_to(relay) as (channel,):
                await channel.login(agent.certificate(), agent.key)

    try:
        asyncio.run(story())
    finally:
        relay.kill()


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
