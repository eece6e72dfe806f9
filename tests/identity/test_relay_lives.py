"""The life of an agent whose only witnesses are relays: real processes, one of them lying, all of them away."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cast import Owner, key

from holdfast.app.doctor import examine_identity
from holdfast.app.eviction import check_speaks
from holdfast.cli.main import main
from holdfast.errors import (
    EXIT_CONFLICT,
    BadInput,
    BadPhrase,
    KeysReplaced,
    LogMissing,
    NotFinal,
    NotNow,
    RelayUnreachable,
    RelayUntrusted,
)
from holdfast.identity.log import drafts
from holdfast.identity.records.records import Inception, Keys
from holdfast_proofs import relay_evictions
from holdfast_proofs.support.agents import World
from holdfast_proofs.support.command_line import Worker, environment
from holdfast_proofs.support.relays import RelayProcess, relays

APP = """
import holdfast

@holdfast.task
async def hello(run: holdfast.Run) -> str:
    return "hello"

tasks = [hello]
"""


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


@pytest.fixture
def world(tmp_path: Path, three: list[RelayProcess]) -> World:
    tmp_path.chmod(0o700)
    made = World(tmp_path, names=tuple(one.address for one in three))
    made.make()
    return made


def elsewhere(world: World, name: str = "elsewhere", names: tuple[str, ...] = ()) -> World:
    """Another machine, which has the words and reaches the relays."""
    other = World(world.root, names=names or world.names, home_name=name)
    other.recover(world.words[0])
    return other


def test_an_agent_lives_with_relays_alone(world: World, three: list[RelayProcess]) -> None:
    assert world.home().settings.identity.witnesses == tuple(one.address for one in three)
    world.rotate()
    three[0].kill()
    done = world.rotate()
    assert done.receipts == 2
    assert done.refused is not None
    assert three[0].address in done.refused
    three[1].kill()
    with pytest.raises(NotFinal):
        world.rotate()
    for one in three[:2]:
        one.start()
    assert world.rotate().receipts == 3  # the same record, sent again
    world.evict(world.words[0])
    check_speaks(world.home())
    world.replace(world.words[0])
    world.evict(world.words[1])


def test_witnesses_change_between_folders_and_relays(tmp_path: Path, three: list[RelayProcess]) -> None:
    tmp_path.chmod(0o700)
    world = World(tmp_path, names=("w1",))
    world.make()
    world.rotate(new=[one.address for one in three])
    assert len(world.log().head.witnesses.members) == 3
    world.rotate(new=["w2"])
    assert len(world.log().head.witnesses.members) == 1


def test_a_relay_that_does_not_answer_or_has_another_key_is_refused_before_the_words(
    tmp_path: Path, three: list[RelayProcess]
) -> None:
    tmp_path.chmod(0o700)
    false = f"{three[1].at.url}#{key('other').public}"
    for name, expected in ((false, RelayUntrusted), (f"http://127.0.0.1:9#{key('x').public}", RelayUnreachable)):
        world = World(tmp_path, names=(three[0].address, name))
        with pytest.raises(expected):
            world.make()
        assert world.words == []
        assert list(tmp_path.iterdir()) == []


def test_words_and_one_relay_say_which_agent_it_is(world: World, three: list[RelayProcess]) -> None:
    """No card, no backup, no file. The other relays vouch as well, so that the recovery counts."""
    log = world.log()
    empty = World(world.root / "empty", names=world.names)
    empty.root.mkdir(mode=0o700)
    done = empty.recover(world.words[0])
    assert done.log.id == log.id
    assert not done.kept
    assert any("effect keys" in one for one in done.lost)
    with pytest.raises(KeysReplaced):
        check_speaks(world.home())
    with pytest.raises(LogMissing):
        World(world.root / "other", names=world.names).recover(
            "abandon " * 23 + "art"  # a phrase of nobody
        )
    with pytest.raises(BadPhrase, match="checksum"):
        World(world.root / "other", names=world.names).recover("abandon " * 24)


def test_one_relay_alone_is_too_few_and_new_ones_can_be_named(world: World, three: list[RelayProcess]) -> None:
    one = World(world.root / "empty", names=(three[0].address,))
    one.root.mkdir(mode=0o700)
    with pytest.raises(NotNow, match="only 1 of the 2"):
        one.recover(world.words[0])
    for relay in three[1:]:
        relay.kill()
    away = World(world.root / "away", names=world.names)
    with pytest.raises(NotNow, match="only 1 of the 2"):  # two of them are named, and do not answer
        away.recover(world.words[0])
    assert not away.root.exists()
    done = one.recover(world.words[0], new_witnesses=(one.at("w1"),))
    assert done.log.id == world.log().id
    assert len(done.log.head.witnesses.members) == 1


def test_a_log_that_copies_the_commitment_is_not_mistaken_for_the_agent(
    world: World, three: list[RelayProcess]
) -> None:
    log = world.log()
    fake = Owner(name=f"copier {world.root.name}")
    first = log.generations[0].tier.record
    assert isinstance(first, Inception)
    copied = drafts.inception(
        op=(fake.op(0),),
        nxt=drafts.committed((fake.next(1).public,)),
        rec=first.rec,
        wit=Keys((three[0].link.key,), 1),
        nonce="AAAAAAAAAAAAAAAAAAAAAA",
    )
    assert isinstance(asyncio.run(three[0].witness.submit(copied.line())), bytes)
    empty = World(world.root / "empty", names=world.names)
    empty.root.mkdir(mode=0o700)
    with pytest.raises(BadInput, match="several agents") as caught:
        empty.recover(world.words[0])
    assert log.id in caught.value.message
    assert empty.recover(world.words[0], id=log.id).log.id == log.id
    # From now on the paper itself has signed one of the two.
    again = World(world.root / "empty", names=world.names, home_name="again")
    assert again.recover(world.words[0], again=True).log.id == log.id


# eviction


def test_a_recovery_elsewhere_is_seen_at_any_one_relay_and_silence_stops_nothing(
    world: World, three: list[RelayProcess]
) -> None:
    looked = check_speaks(world.home())
    assert (looked.answered, looked.silent) == (3, {})
    elsewhere(world)
    for gone in three[:2]:
        with pytest.raises(KeysReplaced, match="a rotation at generation 1, rotation 1 was not made here"):
            check_speaks(world.home())
        gone.kill()
    with pytest.raises(KeysReplaced):
        check_speaks(world.home())
    three[2].kill()
    looked = check_speaks(world.home())
    assert looked.answered == 0
    assert len(looked.silent) == 3
    said = asyncio.run(_doctors_words(world))
    assert any("no witness answers: this machine would not notice" in one for one in said), said


async def _doctors_words(world: World) -> list[str]:
    return [one.text async for one in examine_identity(world.home())]


def test_one_relay_that_serves_yesterdays_log_hides_nothing_and_rolls_nothing_back(
    world: World, three: list[RelayProcess]
) -> None:
    liar = three[0]
    liar.stop()
    old = liar.folder.with_name("old")
    shutil.copytree(liar.folder, old)
    liar.start()
    other = elsewhere(world)
    liar.stop()
    shutil.rmtree(liar.folder)
    old.rename(liar.folder)
    liar.start()
    with pytest.raises(KeysReplaced):
        check_speaks(world.home())
    three[1].kill()
    with pytest.raises(KeysReplaced):
        check_speaks(world.home())
    three[1].start()
    before = other.log()
    other.rotate()
    assert other.log().position > before.position
    check_speaks(other.home())


def _run(*words: str, give: str = "") -> int:
    """A command; `--words-fd IN` and `--words-fd OUT` become pipes. Prints nothing of the words."""
    reads, writes = os.pipe()
    os.write(writes, f"{give}\n".encode())
    os.close(writes)
    try:
        return main([str(reads) if word == "IN" else word for word in words])
    finally:
        os.close(reads)


def _init(root: Path, addresses: list[str]) -> str:
    reads, writes = os.pipe()
    folders = [word for name in ("vault", "second", "arbiter") for word in (f"--{name}", str(root / name))]
    unlocks = ["--unlock-file", str(root / "unlock"), "--second-unlock-file", str(root / "unlock2")]
    named = [word for address in addresses for word in ("--witness", address)]
    assert (
        main(["init", "ada", "--home", str(root / "ada"), *folders, *unlocks, *named, "--words-fd", str(writes)]) == 0
    )
    os.close(writes)
    with open(reads, encoding="utf-8") as pipe:
        return pipe.read().strip()


def test_a_worker_stops_when_its_relays_know_of_a_recovery_and_not_before(
    tmp_path: Path, three: list[RelayProcess], measured: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Real processes. While no relay answers it continues, and says so."""
    tmp_path.chmod(0o700)
    words = _init(tmp_path, [one.address for one in three])
    settings = tmp_path / "ada" / "holdfast.toml"
    settings.write_text(settings.read_text().replace("[identity]\n", "[identity]\nwatch_s = 1.0\n"))
    (tmp_path / "app.py").write_text(APP)
    folder = tmp_path / "ada"
    worker = Worker(folder, ("worker", f"{tmp_path / 'app.py'}:tasks"), environment(folder))
    try:
        worker.wait_event("serving")
        assert worker.wait_event("profile-published")["relays"] == 3
        for one in three:
            one.kill()
        worker.wait_event("watch-unheard")
        assert worker.process.poll() is None
        for one in three:
            one.start()
        worker.wait_event("watch-heard")
        capsys.readouterr()
        recover = ["recover", "--home", str(tmp_path / "new" / "ada"), "--agent", "ada", "--yes", "--json"]
        places = [word for name in ("vault", "second") for word in (f"--{name}", str(tmp_path / "new" / name))]
        unlocks = ["--unlock-file", str(tmp_path / "unlock3"), "--second-unlock-file", str(tmp_path / "unlock4")]
        named = [word for one in three for word in ("--witness", one.address)]
        (tmp_path / "new").mkdir(mode=0o700)
        assert _run(*recover, *places, *unlocks, *named, "--words-fd", "IN", give=words) == 0
        assert worker.wait_end() == EXIT_CONFLICT
    finally:
        worker.close()
    said = capsys.readouterr()
    assert "without any state" in said.err
    assert "lost: the effect keys" in said.err
    assert json.loads(said.out)["standing"] == "active"
    assert any("was not made here" in line for line in worker.said)


def test_a_liar_among_the_relays_hides_no_recovery_from_a_worker(tmp_path: Path) -> None:
    """`make relay-evictions` does this, and two other rounds, a hundred times."""
    report = relay_evictions.run(rounds=1, blind=False, folder=tmp_path, kinds=("liar",))
    assert report.findings == []
    assert len(report.stopped_s["liar"]) == 1
