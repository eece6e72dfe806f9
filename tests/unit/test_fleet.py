"""What many agents share in one process: the list of them, places for tasks, the timer that kills it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from holdfast.app.fleet import Fleet
from holdfast.app.loading import App
from holdfast.app.worker import Order
from holdfast.cli.main import main
from holdfast.core.ids import TaskId
from holdfast.core.waiting import ALONE, Pacing
from holdfast.errors import BadInput, BadSettings, ModeTooWide
from holdfast.host.log import Log
from holdfast.journal.builds import NO_BUILD
from holdfast.journal.contract import Capabilities, Claimed, Journal, Session, Submission, Taker
from holdfast.layout.engine_settings import Settings
from holdfast.layout.fleet import AGENTS_MAX, fleet_folders, read_fleet
from holdfast.runtime.engine.claimer import Claimer, Room
from holdfast.runtime.engine.suspects import Suspects
from holdfast.runtime.session.deadman import DeadMan, DeadManShare, SharedDeadMan
from holdfast.testing.clocks import ManualClock


def listed(folder: Path, text: str) -> Path:
    path = folder / "agents.txt"
    path.write_text(text)
    return path


def test_the_list_has_a_folder_on_each_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    path = listed(tmp_path, "# all of them\n\n  one \n./two\n/srv/three\n~/four\n")
    assert read_fleet(path) == [f"{tmp_path}/one", f"{tmp_path}/two", "/srv/three", "/home/ada/four"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("one\n\n./one\n", r"agents\.txt, line 3: .*/one is on line 1 already"),
        ("one\na\0b\n", r"agents\.txt, line 2: not a path"),
        ("one\n" + "x" * 5_000, "line 2: not a path"),
        ("# none\n", "lists no agent"),
        ("one\nagents.txt\n", r"line 2: .*/agents\.txt is a file"),
    ],
)
def test_a_list_that_is_wrong_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadSettings, match=said):
        read_fleet(listed(tmp_path, text))


def test_a_list_that_others_could_change_is_refused(tmp_path: Path) -> None:
    path = listed(tmp_path, "one\n")
    path.chmod(0o666)
    with pytest.raises(ModeTooWide):
        read_fleet(path)
    path.chmod(0o600)
    path.write_bytes(b"\xff\n")
    with pytest.raises(BadSettings, match="UTF-8"):
        read_fleet(path)
    with pytest.raises(BadSettings, match="no fleet file"):
        read_fleet(tmp_path / "none")


def test_an_agent_is_named_once_and_a_worker_has_so_many(tmp_path: Path) -> None:
    (tmp_path / "ada" / ".holdfast").mkdir(parents=True)
    (tmp_path / "ada" / ".holdfast" / "holdfast.toml").touch()
    assert fleet_folders([str(tmp_path / "ada"), "/srv/b"]) == [str(tmp_path / "ada" / ".holdfast"), "/srv/b"]
    with pytest.raises(BadInput, match="named twice"):
        fleet_folders([str(tmp_path / "ada"), str(tmp_path / "ada" / ".holdfast")])
    with pytest.raises(BadInput, match="too many"):
        fleet_folders([str(number) for number in range(AGENTS_MAX + 1)])


@pytest.mark.parametrize("option", [("--journal", "j"), ("--config", "c"), ("--new-journal",)])
def test_options_for_one_agent_are_refused_for_several(
    option: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["worker", "app.py:tasks", "--home", "a", "--home", "b", *option]) == 2
    said = capsys.readouterr().err
    assert f"{option[0]} is for one agent" in said
    assert "holdfast.toml" in said


class Claims:
    """A journal that hands out so many, or nothing, and notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, bool]] = []
        self.found, self.submitted, self.gives = 0, 0, True
        self.capabilities = Capabilities(durable=True, statements=True, shared=True, administered=True)

    async def submit(self, _submission: Submission, *, taker: Taker | None = None) -> None:
        await asyncio.sleep(0)
        self.submitted += 1
        if taker is not None and self.gives:
            taker[1](cast(Claimed, None))

    async def claim(self, _session: Session, *, limit: int, alone: bool = False, **_: object) -> list[Claimed]:
        self.asked.append((limit, alone))
        await asyncio.sleep(0)
        hold = SimpleNamespace(task_id="t")
        return [cast(Claimed, SimpleNamespace(hold=hold, crashes=0)) for _ in range(self.found)]


class OneSuspect(Suspects):
    def __init__(self) -> None:
        super().__init__({})
        self.suspect = self.beside = False

    def may_claim(self, *, idle: bool) -> bool:
        return self.beside or super().may_claim(idle=idle)

    def runs_one(self) -> bool:
        return self.suspect


class Agent:
    def __init__(self, room: Room | None) -> None:
        self.running = 0
        self.journal = Claims()
        self.suspects = OneSuspect()
        self.claimer = Claimer(
            cast(Journal, self.journal),
            Settings(),
            self.suspects,
            names=("t",),
            active=lambda: self.running,
            room=room,
            pace=ALONE,
        )
        self.claimer.join()

    def fill(self) -> int:
        """Take as many places as there are."""
        while True:
            with self.claimer.places() as places:
                self.running += places
            if not places:
                return self.running


def test_agents_with_much_to_do_share_the_places_and_leave_some() -> None:
    room = Room(200)
    agents = [Agent(room) for _ in range(4)]
    assert agents[0].fill() == 100
    assert [one.fill() for one in agents[1:]] == [50, 25, 13]
    agents[0].running = 0  # ends; the others take their part of it
    assert [one.fill() for one in agents[1:]] == [81, 53, 33]
    assert all(one.claimer.lacks_places() for one in agents[1:])
    assert Agent(room).fill() > 0


def test_places_that_are_being_claimed_are_nobody_elses() -> None:
    room = Room(3)
    first, second, third = Agent(room), Agent(room), Agent(room)
    with first.claimer.places() as one, second.claimer.places() as two, third.claimer.places() as three:
        assert (one, two, three) == (2, 1, 0)
    assert Agent(None).fill() == Settings().concurrency


async def test_a_place_that_gets_free_wakes_those_who_wait() -> None:
    room = Room(1)
    busy, waiting = Agent(room), Agent(room)
    assert busy.fill() == 1
    woken = asyncio.create_task(room.wait_places(lambda: waiting.running, timeout_s=60))
    await asyncio.sleep(0)
    busy.running = 0
    busy.claimer.freed()
    async with asyncio.timeout(5):
        await woken
    busy.running = 1
    busy.claimer.leave()  # its engine has ended
    assert not waiting.claimer.lacks_places()


async def test_one_suspect_at_a_time_runs_in_the_process() -> None:
    room, session = Room(10), cast(Session, None)
    one, other = Agent(room), Agent(room)
    await one.claimer.claim(session, 5)
    assert one.journal.asked == [(5, False), (1, True)]
    other.suspects.suspect = True
    await one.claimer.claim(session, 5)
    assert one.journal.asked[2:] == [(5, False), (1, False)]
    other.suspects.suspect = False
    await asyncio.gather(one.claimer.claim(session, 5), other.claimer.claim(session, 5))
    assert sorted([*one.journal.asked[4:], *other.journal.asked]) == [(1, False), (1, True), (5, False), (5, False)]


async def test_a_claim_that_left_nothing_due_is_told_from_one_that_was_full() -> None:
    session, agent = cast(Session, None), Agent(None)
    for found, places, took_all in ((0, 3, False), (2, 3, True), (3, 3, False), (0, 0, False)):
        agent.journal.found = found
        assert len(await agent.claimer.claim(session, places)) == found
        assert agent.claimer.took_all == took_all
    agent.journal.found = 1
    agent.suspects.beside = True  # one is claimed beside others: more may be due
    agent.running = 1
    assert len(await agent.claimer.claim(session, 3)) == 1
    assert not agent.claimer.took_all


async def test_a_task_begins_with_its_submission_where_no_other_waits_and_there_is_room() -> None:
    session, agent = SESSION, Agent(Room(4))
    other = cast(Submission, SimpleNamespace(name="other"))

    async def begins(submission: Submission = MAIL) -> bool:
        before = agent.running
        await agent.claimer.submit(session, submission, lambda _claimed: setattr(agent, "running", agent.running + 1))
        return agent.running > before

    assert not await begins()  # before the first claim nobody knows what waits
    await agent.claimer.claim(session, 2)
    assert await begins()
    assert await begins()
    agent.running = 3
    assert not await begins()  # an agent leaves room for others
    agent.running = 0
    assert not await begins()  # the one before it waits
    await agent.claimer.claim(session, 2)
    assert not await begins(other)
    agent.journal.found = 2
    await agent.claimer.claim(session, 2)
    assert not await begins()  # the claim was full
    agent.journal.found = 0
    await agent.claimer.claim(session, 2)
    agent.suspects.runs_alone(cast(TaskId, "suspect"))
    assert not await begins()


class SlowClaims(Claims):
    """Its writes wait until they are let go; a claim has looked before."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def submit(self, submission: Submission, *, taker: Taker | None = None) -> None:
        await self.go.wait()
        await super().submit(submission, taker=taker)

    async def claim(self, session: Session, *, limit: int, alone: bool = False, **more: object) -> list[Claimed]:
        await self.go.wait()
        return await super().claim(session, limit=limit, alone=alone, **more)


def slow_agent(*, concurrency: int = 16) -> tuple[Agent, SlowClaims]:
    agent, journal = Agent(None), SlowClaims()
    agent.journal = journal
    agent.claimer = Claimer(
        cast(Journal, journal),
        Settings(concurrency=concurrency),
        agent.suspects,
        names=("t",),
        active=lambda: agent.running,
        room=None,
        pace=ALONE,
    )
    return agent, journal


SESSION, MAIL = cast(Session, SimpleNamespace()), cast(Submission, SimpleNamespace(name="t"))


async def begins(agent: Agent) -> bool:
    begun: list[Claimed] = []
    await agent.claimer.submit(SESSION, MAIL, begun.append)
    return bool(begun)


async def test_no_task_begins_before_one_whose_submission_is_not_committed_yet() -> None:
    agent, journal = slow_agent()
    agent.running = 1
    first = asyncio.create_task(agent.claimer.submit(None, MAIL, lambda _: None))  # nobody has claimed yet
    await asyncio.sleep(0)
    really, journal.go = journal.go, asyncio.Event()
    journal.go.set()
    await agent.claimer.claim(SESSION, 2)  # it finds nothing: the first one is not there yet
    assert not await begins(agent)
    journal.go = really
    really.set()
    await first
    await agent.claimer.claim(SESSION, 2)
    assert await begins(agent)


async def test_no_task_begins_before_one_that_was_submitted_while_a_claim_was_under_way() -> None:
    agent, journal = slow_agent()
    agent.running = 1
    claiming = asyncio.create_task(agent.claimer.claim(SESSION, 2))
    await asyncio.sleep(0)
    left = asyncio.create_task(agent.claimer.submit(SESSION, MAIL, lambda _: None))
    await asyncio.sleep(0)
    journal.go.set()
    await asyncio.gather(claiming, left)
    assert not await begins(agent)
    await agent.claimer.claim(SESSION, 2)
    assert await begins(agent)


async def test_no_task_begins_with_its_submission_while_a_suspect_is_claimed_and_none_is_claimed_beside_it() -> None:
    agent, journal = slow_agent(concurrency=1)
    journal.go.set()
    await agent.claimer.claim(SESSION, 1)
    journal.go.clear()
    mail = asyncio.create_task(agent.claimer.submit(SESSION, MAIL, lambda _: setattr(agent, "running", 1)))
    await asyncio.sleep(0)
    journal.asked.clear()
    claiming = asyncio.create_task(agent.claimer.claim(SESSION, 1))
    await asyncio.sleep(0)
    journal.go.set()
    await asyncio.gather(mail, claiming)
    assert agent.running == 1
    assert (1, True) not in journal.asked  # a suspect would run beside the mail

    agent.running = 0
    journal.asked.clear()
    claiming = asyncio.create_task(agent.claimer.claim(SESSION, 1))
    while (1, True) not in journal.asked:  # noqa: ASYNC110 - until it has looked for one
        await asyncio.sleep(0)
    assert not await begins(agent)  # it would run beside the suspect
    await claiming


async def test_what_a_session_that_may_not_claim_submits_is_the_next_one() -> None:
    agent, journal = slow_agent()
    journal.go.set()
    await agent.claimer.claim(SESSION, 2)
    await agent.claimer.submit(None, MAIL, lambda _: None)
    assert not await begins(agent)


async def test_mail_of_one_moment_leaves_places_for_other_agents() -> None:
    room = Room(8)
    agent, other = Agent(room), Agent(room)
    await agent.claimer.claim(SESSION, 2)
    agent.journal.found = 0
    begun: list[Claimed] = []
    await asyncio.gather(*(agent.claimer.submit(SESSION, MAIL, begun.append) for _ in range(20)))
    assert len(begun) == 4
    agent.running = 4
    assert not other.claimer.lacks_places()


async def test_a_place_that_a_submission_did_not_use_wakes_those_who_wait() -> None:
    room = Room(1)
    agent, other = Agent(room), Agent(room)
    await agent.claimer.claim(SESSION, 1)
    agent.journal.gives = False  # the message was there already
    asking = asyncio.create_task(agent.claimer.submit(SESSION, MAIL, lambda _: None))
    await asyncio.sleep(0)
    assert other.claimer.lacks_places()
    waiting = asyncio.create_task(other.claimer.wait_places())
    await asking
    async with asyncio.timeout(0.1):
        await waiting


async def test_a_shared_journal_is_not_asked_to_claim_with_a_submission() -> None:
    agent = Agent(None)
    agent.journal.capabilities = msgspec.structs.replace(agent.journal.capabilities, hosts=True)
    await agent.claimer.claim(SESSION, 2)
    assert not await begins(agent)


async def test_submissions_of_one_moment_take_no_more_places_than_there_are() -> None:
    agent, journal = slow_agent(concurrency=3)
    journal.go.set()
    await agent.claimer.claim(SESSION, 3)
    begun: list[Claimed] = []
    await asyncio.gather(*(agent.claimer.submit(SESSION, MAIL, begun.append) for _ in range(5)))
    assert len(begun) == 3
    assert agent.journal.submitted == 5


async def test_an_agent_that_is_still_being_opened_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may wait for its lease for ever."""
    opening = asyncio.Event()

    async def never(*_: object) -> None:
        opening.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Fleet, "_serve", never)
    fleet = Fleet(Order(app="", homes=["a"]), app=App(), build=NO_BUILD, log=Log())
    (member,) = fleet.members
    member.keeper = asyncio.create_task(fleet.keep(member))
    await opening.wait()
    fleet.stop()
    ended, _ = await asyncio.wait((member.keeper,), timeout=10)
    assert ended
    member.keeper.result()


class Timer:
    def __init__(self) -> None:
        self.at_ms = 0

    def arm_at(self, boot_ms: int) -> None:
        self.at_ms = boot_ms

    def disarm(self) -> None:
        self.at_ms = 0


async def test_the_kernel_waits_for_the_earliest_lease_and_the_loop_gives_one_up_before() -> None:
    clock, timer, given_up = ManualClock(), Timer(), asyncio.Event()
    shared = SharedDeadMan(cast(DeadMan, timer), clock)
    patient, late = DeadManShare(shared, given_up.clear), DeadManShare(shared, given_up.set)
    now_ms = clock.boot_ms()
    patient.arm(60)
    assert timer.at_ms == now_ms + 60_000
    late.arm_at(now_ms + 40)
    assert timer.at_ms == now_ms + 40
    async with asyncio.timeout(10):
        await given_up.wait()
    assert timer.at_ms == now_ms + 60_000
    patient.disarm()
    assert timer.at_ms == 0


def test_renewals_of_a_process_meet_at_ticks() -> None:
    alone, beside = Pacing(), Pacing(200)
    assert alone.renew_in_s(3.0, now_s=17.123) == 3.0
    for now_s in (0.0, 17.123, 4_711.4):
        wait_s = beside.renew_in_s(3.0, now_s=now_s)
        assert 3.0 - 1e-6 <= wait_s <= 3.5
        assert abs((now_s + wait_s) * 2 - round((now_s + wait_s) * 2)) < 1e-6
    assert (alone.look_s(0.25), beside.look_s(0.25), beside.look_s(60.0)) == (0.25, 10.0, 60.0)
