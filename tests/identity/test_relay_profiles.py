"""The profile of an agent at real relays: published, renewed, never rolled back; handles; moves; two of one rank."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from quick_agent import Agent, make_agent

from holdfast.app.eviction import check_speaks
from holdfast.app.mail.profile_job import is_profile_due, renew_profile
from holdfast.app.mail.shared_keys import mail_speaker
from holdfast.cli.main import main
from holdfast.core.clock import SystemClock
from holdfast.errors import EXIT_CONFLICT, EXIT_JOURNAL, EXIT_USAGE, KeysReplaced
from holdfast.identity.files.public_file import identity_of, read_identity, write_identity
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.records import RotationReason
from holdfast.identity.records.signed import Reason, Refusal, Signed
from holdfast.identity.speaker.open_speaker import home_speaker
from holdfast.identity.statements.statements import Profile, Relay, parse_profile
from holdfast.identity.witness.relay_link import RelayDescription, RelayLink
from holdfast.layout.agent_home import load_home
from holdfast.relay.client.profile import (
    DAY_S,
    LIFE_DAYS,
    ProfileContent,
    ends_at,
    find_lacking,
    find_own_profile,
    own_relays,
    publish_profile,
    with_relay,
)
from holdfast_proofs.support.agents import World
from holdfast_proofs.support.relays import RelayProcess, relays

PORT = Sodium()


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


def made(place: Path, name: str = "ada") -> Agent:
    """An agent whose vault opens by a file, so that commands need no person."""
    place.mkdir(mode=0o700, exist_ok=True)
    place.chmod(0o700)
    agent = make_agent(place)
    write_identity(agent.folder / "identity.json", identity_of(agent.log, name=name))
    return agent


def hf(capsys: pytest.CaptureFixture[str], *words: str) -> Any:  # Any: JSON
    capsys.readouterr()
    code = main([*words, "--json"])
    assert code == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def add(capsys: pytest.CaptureFixture[str], agent: Agent, relay: RelayProcess, *words: str) -> Any:
    return hf(capsys, "relay", "add", relay.address, *words, "--home", str(agent.folder))


def held_at(relay: RelayProcess, agent: Agent) -> Signed[Profile] | None:
    raw = asyncio.run(relay.link.find_profile(agent.log.id))
    return None if raw is None else parse_profile(raw)


def test_row_28_an_agent_is_added_found_moved_and_forwarded(
    tmp_path: Path, three: list[RelayProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    agent = made(tmp_path)
    home = ["--home", str(agent.folder)]
    done = add(capsys, agent, three[0], "--handle", "mover", "--operator", "one")
    assert (done["version"], done["handles"], done["failed"]) == (1, ["mover@127.0.0.1"], {})
    add(capsys, agent, three[1], "--operator", "two")
    third = add(capsys, agent, three[2], "--operator", "three")
    assert third["relays"] == [one.address for one in three]
    shown = read_identity(agent.folder / "identity.json")
    assert (shown.relays, shown.handles) == (tuple(one.address for one in three), ("mover@127.0.0.1",))
    assert {held_at(one, agent) for one in three} == {find_own_profile(load_home(agent.folder))}
    listed = hf(capsys, "relay", "list", *home)["relays"]
    assert [(one["newest"], one["log"], one["witness"], one["error"]) for one in listed] == [
        (True, True, False, "")
    ] * 3
    assert main(["relay", "doctor", *home]) == 0

    # A stranger finds it by its handle, and learns who confirms it.
    asked = ["relay", "find", "mover@127.0.0.1", "--relay", three[0].address]
    found = hf(capsys, *asked)
    assert (found["id"], found["confirmed"], found["moved"]) == (agent.log.id, True, False)
    assert sorted(found["operators"]) == ["one", "three", "two"]

    # It leaves the relay of its handle, which answers with the newest profile.
    gone = hf(capsys, "relay", "remove", three[0].address, *home)
    assert gone["relays"] == [one.address for one in three[1:]]
    assert gone["handles"] == ["mover@127.0.0.1"], "the others have the same host, and the name"
    found = hf(capsys, *asked)
    assert (found["moved"], found["relays"]) == (True, [one.address for one in three[1:]])
    # The relay that was left is told of later changes too.
    add(capsys, agent, three[1], "--operator", "zwei")
    assert held_at(three[0], agent) == held_at(three[1], agent)


def test_row_28_a_handle_belongs_to_the_first_agent_that_signed_for_it(
    tmp_path: Path, three: list[RelayProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = made(tmp_path / "a"), made(tmp_path / "b")
    add(capsys, first, three[0], "--handle", "squat")
    words = ["relay", "add", three[0].address, "--handle", "squat", "--home", str(second.folder)]
    assert main(words) == EXIT_CONFLICT
    # Also where it does not ask before it signs.
    entry = Relay(url=three[0].at.url, wit=three[0].link.key, prio=0, domain="x")
    done = asyncio.run(
        publish_profile(
            load_home(second.folder),
            second.speaker(),
            now=int(time.time()),
            port=PORT,
            change=lambda content: with_relay(content, entry, "squat@127.0.0.1"),
            more=[three[0].at],
        )
    )
    assert done.said[three[0].at.url].startswith(Reason.HANDLE_TAKEN)
    # New keys keep it: it is bound to the id.
    first.rotate(RotationReason.STOLEN)
    renew_profile(load_home(first.folder))
    found = hf(capsys, "relay", "find", "squat@127.0.0.1", "--relay", three[0].address)
    assert found["id"] == first.log.id
    assert found["version"][:2] == [0, 1]


def test_a_handle_too_many_is_refused_before_it_is_signed(
    tmp_path: Path, three: list[RelayProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    """A profile that its relay refuses for good would take the agent out of reach with the next change."""
    agent = made(tmp_path)
    for n in range(4):
        add(capsys, agent, three[0], "--handle", f"many{n}")
    before = find_own_profile(load_home(agent.folder))
    assert main(["relay", "add", three[0].address, "--handle", "many4", "--home", str(agent.folder)]) == EXIT_CONFLICT
    assert "many0@127.0.0.1, many1@127.0.0.1" in capsys.readouterr().err
    assert find_own_profile(load_home(agent.folder)) == before == held_at(three[0], agent)


def test_a_handle_that_no_one_could_look_for_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, three: list[RelayProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    agent, describe = made(tmp_path), RelayLink.describe

    async def of_another_name(link: RelayLink) -> RelayDescription:
        return msgspec.structs.replace(await describe(link), name="corner")

    monkeypatch.setattr(RelayLink, "describe", of_another_name)
    assert main(["relay", "add", three[0].address, "--handle", "x", "--home", str(agent.folder)]) == EXIT_CONFLICT
    assert "its handles end in @corner" in capsys.readouterr().err
    assert add(capsys, agent, three[0])["handles"] == []


def test_a_relay_does_not_replace_itself_and_one_that_is_away_forwards_nothing(
    tmp_path: Path, three: list[RelayProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    agent = made(tmp_path)
    words = ["relay", "add", three[0].address, "--home", str(agent.folder), "--instead-of"]
    add(capsys, agent, three[0])
    assert main([*words, three[0].at.url]) == EXIT_USAGE
    assert "names the same relay" in capsys.readouterr().err
    add(capsys, agent, three[1])
    three[1].kill()
    assert main([*words, three[1].at.url]) == 0
    told = capsys.readouterr().err
    assert f"{three[1].at.url} does not have the new profile yet: Connection refused" in told
    assert "90 days" not in told


def test_it_is_renewed_after_a_day_and_after_new_keys_and_not_else(
    tmp_path: Path, three: list[RelayProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    agent = made(tmp_path)
    add(capsys, agent, three[0])
    home = load_home(agent.folder)
    first = find_own_profile(home)
    assert first is not None
    assert not is_profile_due(home)
    assert renew_profile(home).signed == first
    now = int(time.time())
    assert (LIFE_DAYS - 1) * DAY_S < first.record.exp - now <= (LIFE_DAYS + 1) * DAY_S
    assert ends_at(agent.log.id, now + DAY_S) == ends_at(agent.log.id, now) + DAY_S
    agent.rotate()
    assert is_profile_due(home)
    capsys.readouterr()
    assert main(["relay", "doctor", "--home", str(agent.folder)]) == 1
    assert "signed by keys that are replaced now" in capsys.readouterr().out
    second = renew_profile(home)
    assert second.signed is not None
    assert second.signed.record.rank == (0, 1, 2)
    assert held_at(three[0], agent) == second.signed


def test_a_restored_folder_continues_from_what_its_relays_hold(
    tmp_path: Path, three: list[RelayProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    agent = made(tmp_path)
    add(capsys, agent, three[0])
    shutil.copytree(agent.folder, tmp_path / "backup")
    add(capsys, agent, three[1])
    newest = find_own_profile(load_home(agent.folder))
    shutil.rmtree(agent.folder)
    (tmp_path / "backup").rename(agent.folder)
    done = renew_profile(load_home(agent.folder))
    assert done.signed == newest
    assert done.foreign
    assert find_own_profile(load_home(agent.folder)) == newest


def test_a_profile_that_no_relay_took_is_sent_again_as_it_was_signed(
    tmp_path: Path, three: list[RelayProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    agent = made(tmp_path)
    add(capsys, agent, three[0])
    agent.rotate()
    three[0].kill()
    first = renew_profile(load_home(agent.folder))
    assert first.said[three[0].at.url]
    assert first.signed == find_own_profile(load_home(agent.folder))
    three[0].start()
    again = renew_profile(load_home(agent.folder))
    assert again.signed == first.signed
    assert again.said == {three[0].at.url: ""}
    assert held_at(three[0], agent) == first.signed


def test_a_relay_that_was_away_is_found_to_lack_the_profile(
    tmp_path: Path, three: list[RelayProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    """The worker asks every few minutes, and publishes again."""
    agent = made(tmp_path)
    home = load_home(agent.folder)
    add(capsys, agent, three[0])
    three[0].kill()
    assert list(add(capsys, agent, three[1])["failed"]) == [three[0].at.url]
    assert asyncio.run(find_lacking(home, port=PORT)) == [], "it does not answer"
    three[0].start()
    assert not is_profile_due(home)
    assert asyncio.run(find_lacking(home, port=PORT)) == [three[0].at.url]
    renew_profile(home)
    assert asyncio.run(find_lacking(home, port=PORT)) == []
    assert held_at(three[0], agent) == held_at(three[1], agent) == find_own_profile(home)


def test_a_newer_profile_that_was_not_signed_here_is_not_taken_over_in_silence(
    tmp_path: Path, three: list[RelayProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    agent = made(tmp_path)
    for one in three[:2]:
        add(capsys, agent, one)
    home = load_home(agent.folder)
    own = find_own_profile(home)
    assert own is not None
    theirs = mail_speaker(home).profile(
        ver=own.record.ver + 5, life_s=DAY_S, relays=own.record.relays[:1], handles=(), enc=own.record.enc
    )
    for one in three[:2]:
        assert not isinstance(asyncio.run(one.link.put_profile(agent.log.id, theirs.line())), Refusal)
    capsys.readouterr()
    assert main(["relay", "doctor", "--home", str(agent.folder)]) == 1
    assert f"{three[0].at.url} holds a newer profile of this agent than this folder" in capsys.readouterr().out
    assert main(["relay", "add", three[1].address, "--home", str(agent.folder)]) == 0
    assert "a newer profile, which was not signed in this folder" in capsys.readouterr().err
    assert main(["relay", "add", three[1].address, "--home", str(agent.folder)]) == 0
    assert "not signed in this folder" not in capsys.readouterr().err


def test_a_profile_with_what_is_no_address_is_not_taken_over(
    tmp_path: Path, three: list[RelayProcess], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thief of the keys signs it, and a relay of his keeps it: taken over, it once stopped all mail."""
    agent = made(tmp_path)
    add(capsys, agent, three[0])
    home = load_home(agent.folder)
    own = find_own_profile(home)
    assert own is not None
    bad = replace(own.record.relays[0], url="https://[relay.example", wit=three[1].link.key)
    theirs = mail_speaker(home).profile(
        ver=own.record.ver + 5, life_s=LIFE_DAYS * DAY_S, relays=(*own.record.relays, bad), handles=(), enc=()
    )

    async def lying(link: RelayLink, id: str) -> bytes:
        return theirs.line()

    with monkeypatch.context() as fault:
        fault.setattr(RelayLink, "find_profile", lying)
        assert renew_profile(home).signed == own
    assert find_own_profile(home) == own
    home.profile_file.write_bytes(theirs.line() + b"\n")  # as a version that did not check has kept it
    assert [one.url for one in own_relays(home)] == [three[0].at.url]


def test_the_same_relay_at_another_address_and_an_empty_handle(
    tmp_path: Path, three: list[RelayProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    agent = made(tmp_path)
    add(capsys, agent, three[0])
    other = three[0].address.replace("127.0.0.1", "localhost")
    assert main(["relay", "add", other, "--handle", "", "--home", str(agent.folder)]) == EXIT_USAGE
    assert "'' cannot be a handle" in capsys.readouterr().err
    assert main(["relay", "add", other, "--home", str(agent.folder)]) == 0
    assert f"{three[0].at.url} had the same key: it is the same relay" in capsys.readouterr().err


def test_an_eviction_is_seen_at_a_relay_that_is_no_witness(
    tmp_path: Path, three: list[RelayProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    agent = made(tmp_path)
    add(capsys, agent, three[0])
    shutil.copytree(agent.folder, tmp_path / "old")
    shutil.copytree(agent.vault_folder, tmp_path / "old-vault")
    agent.rotate(RotationReason.STOLEN)
    renew_profile(load_home(agent.folder))
    check_speaks(load_home(agent.folder))
    settings = tmp_path / "old" / "holdfast.toml"
    settings.write_text(settings.read_text().replace(str(agent.vault_folder), str(tmp_path / "old-vault")))
    # No witness answers, so the rotation is not final anywhere: it stands, and names keys that are not here.
    with pytest.raises(KeysReplaced):
        check_speaks(load_home(tmp_path / "old"))


def test_what_a_thief_wrote_is_not_signed_again_after_his_eviction(
    tmp_path: Path, three: list[RelayProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    agent = made(tmp_path)
    add(capsys, agent, three[0])
    mine = find_own_profile(load_home(agent.folder))
    assert mine is not None
    his = agent.speaker().profile(ver=99, life_s=DAY_S, relays=(), handles=("his@127.0.0.1",))
    assert isinstance(asyncio.run(three[0].link.put_profile(agent.log.id, his.line())), bytes)
    agent.rotate(RotationReason.STOLEN)
    done = renew_profile(load_home(agent.folder))
    assert done.signed is not None
    assert done.signed.record.rank == (0, 1, 100)
    assert ProfileContent.of(done.signed.record) == ProfileContent.of(mine.record)
    # Nor does an older one come back.
    answer = asyncio.run(three[0].link.put_profile(agent.log.id, his.line()))
    assert isinstance(answer, Refusal)
    assert answer.reason is Reason.OLD_KEYS


def test_two_profiles_of_one_rank_are_kept_as_evidence_and_reported(
    tmp_path: Path, three: list[RelayProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    agent, peer = made(tmp_path / "a"), made(tmp_path / "b")
    for relay in three[:2]:
        add(capsys, agent, relay)
    mine = find_own_profile(load_home(agent.folder))
    assert mine is not None
    twin = agent.speaker().profile(ver=mine.record.ver, life_s=DAY_S, relays=mine.record.relays)
    answer = asyncio.run(three[0].link.put_profile(agent.log.id, twin.line()))
    assert isinstance(answer, Refusal)
    assert answer.reason is Reason.FORK
    three[0].kill()
    three[0].start()
    assert set(asyncio.run(three[0].link.find_evidence(agent.log.id))) == {mine.line(), twin.line()}
    assert held_at(three[0], agent) == mine
    assert list(renew_profile(load_home(agent.folder)).forks) == [three[0].at.url]
    capsys.readouterr()
    assert main(["relay", "doctor", "--home", str(agent.folder)]) == EXIT_JOURNAL
    assert "runs twice, or keys are stolen" in capsys.readouterr().out
    # A peer that has seen one of them is told when a relay serves the other.
    asked = ["relay", "find", agent.log.id, "--relay", three[0].address, "--home", str(peer.folder)]
    assert hf(capsys, *asked)["contradicted"] == 0
    peers = peer.folder / "peers.json"
    peers.write_text(peers.read_text().replace(json.dumps(mine.line().decode()), json.dumps(twin.line().decode())))
    assert hf(capsys, *asked)["contradicted"] == 2
    kept = json.loads(peers.read_text())["forks"][agent.log.id]
    assert {one.encode() for one in kept} == {mine.line(), twin.line()}


def test_a_relay_put_back_to_an_older_day_fools_no_peer_and_gets_the_newest_again(
    tmp_path: Path, three: list[RelayProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    agent, peer = made(tmp_path / "a"), made(tmp_path / "b")
    liar = three[2]
    add(capsys, agent, liar)
    liar.stop()
    shutil.copytree(liar.folder, tmp_path / "old")
    liar.start()
    add(capsys, agent, liar, "--handle", "later")
    asked = ["relay", "find", agent.log.id, "--relay", liar.address, "--home", str(peer.folder)]
    assert hf(capsys, *asked)["version"] == [0, 0, 2]
    liar.stop()
    shutil.rmtree(liar.folder)
    shutil.copytree(tmp_path / "old", liar.folder)
    liar.start()
    assert main(asked) == EXIT_CONFLICT
    assert "was seen before" in capsys.readouterr().err
    done = renew_profile(load_home(agent.folder))
    assert done.signed is not None
    assert done.signed.record.rank == (0, 0, 2)
    assert hf(capsys, *asked)["version"] == [0, 0, 2]


def test_an_expired_or_foreign_profile_is_refused(
    tmp_path: Path, three: list[RelayProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    agent, other = made(tmp_path / "a"), made(tmp_path / "b")
    for one in (agent, other):
        add(capsys, one, three[0])

    def put(signed: Signed[Profile], owner: Agent) -> object:
        answer = asyncio.run(three[0].link.put_profile(owner.log.id, signed.line()))
        return answer.reason if isinstance(answer, Refusal) else answer

    short = agent.speaker().profile(ver=50, life_s=1)
    time.sleep(1.1)
    assert put(short, agent) is Reason.EXPIRED
    assert put(other.speaker().profile(ver=50, life_s=DAY_S), agent) is Reason.MALFORMED
    forged = other.speaker().profile(ver=50, life_s=DAY_S)
    line = forged.line().replace(other.log.id.encode(), agent.log.id.encode())
    answer = asyncio.run(three[0].link.put_profile(agent.log.id, line))
    assert isinstance(answer, Refusal)
    assert answer.reason is Reason.BAD_SIGNATURE


def test_words_and_one_relay_lead_to_the_other_witnesses(tmp_path: Path, three: list[RelayProcess]) -> None:
    """The profile at the one relay says where the others are; their keys are those of the log."""
    tmp_path.chmod(0o700)
    world = World(tmp_path, names=tuple(one.address for one in three))
    world.make()
    with world.keys() as keys:
        speaker = home_speaker(world.folder, keys.ops, SystemClock())
        done = asyncio.run(publish_profile(world.home(), speaker, now=int(time.time()), port=PORT))
    assert done.said == dict.fromkeys((one.at.url for one in three), "")
    empty = World(tmp_path / "empty", names=(three[1].address,))
    empty.root.mkdir(mode=0o700)
    back = empty.recover(world.words[0])
    assert back.log.id == world.log().id
    assert len(back.log.head.receipts) == 3
    assert set(empty.home().settings.identity.witnesses) == {one.address for one in three}
