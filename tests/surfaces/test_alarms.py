"""Alarms are told once per change and once when over; scheduled runs call the ping's URL at their start and end."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fact_sets import NOW, TARGETS, fact, older
from test_level import whole

import holdfast
from holdfast.app import worker
from holdfast.app.notify import with_pings
from holdfast.app.worker import JobContext
from holdfast.cli.drill import run as drill_run
from holdfast.cli.main import main
from holdfast.core.clock import SystemEntropy
from holdfast.core.notices import Notice
from holdfast.core.surfaces import DAY_MS, HOUR_MS, Fact
from holdfast.core.waiting import running_beside
from holdfast.drills.catalogue import DRILLS
from holdfast.errors import BadInput
from holdfast.host.log import Log
from holdfast.host.private_files import locked_now, write_atomically
from holdfast.identity.journal_keys.keyfile import load_or_create
from holdfast.layout.agent_home import AgentHome, load_home
from holdfast.surfaces import alarms
from holdfast.surfaces.alarms import tell
from holdfast.surfaces.history import read_history
from holdfast.surfaces.level import judge_level
from holdfast.surfaces.register import Register


@pytest.fixture
def home(tmp_path: Path) -> AgentHome:
    folder = tmp_path / "agent"
    folder.mkdir(mode=0o700)
    (folder / "holdfast.toml").write_text('agent = "ada"\n')
    return load_home(folder)


class Person:
    """Hears notices; looks at facts at a time of its choice."""

    def __init__(self, home: AgentHome) -> None:
        self.home, self.heard, self.deaf = home, list[Notice](), False

    async def send(self, notice: Notice) -> None:
        if self.deaf:
            raise BadInput("the hook failed")
        self.heard.append(notice)

    def look(self, facts: list[Fact], *, later_ms: int = 0) -> list[str]:
        """The kinds of the notices that one look brought."""
        now_ms = NOW + later_ms
        level = judge_level(facts, now_ms=now_ms, targets=TARGETS)
        register = Register(at_ms=now_ms, targets=TARGETS, surfaces=(), facts=tuple(facts), level=level)
        before = len(self.heard)
        asyncio.run(tell(self.home, register, self.send))
        return [one.kind for one in self.heard[before:]]


def test_a_level_that_falls_is_told_once_and_once_when_it_is_back(home: AgentHome) -> None:
    person, facts = Person(home), whole()
    lower = [one for one in facts if one.name != "paper"]
    assert person.look(lower) == [], "it never had more"
    assert person.look(facts, later_ms=1) == []
    assert person.look(lower, later_ms=2) == ["level"]
    assert person.look(lower, later_ms=3) == []
    assert person.heard[-1].text == "level 2, proven until 2027-01-16. It had level 4, proven up to 4"
    assert person.heard[-1].hint == "`holdfast paper print`"
    further = [one for one in lower if one.name != "place.off"]
    assert person.look(further, later_ms=4) == ["level"], "it fell further"
    assert person.look(facts, later_ms=5) == ["over"]
    assert person.look(facts, later_ms=6) == []
    assert [one.level for one in read_history(home)] == [2, 4, 2, 1, 4]


def test_a_proof_is_told_before_it_expires_when_it_has_and_when_it_is_renewed(home: AgentHome) -> None:
    person = Person(home)
    fresh = {"place.verified", "drill", "drill.lost"}

    def at(days: int, *, read_back: int = 0) -> list[str]:
        facts = [older(one, -days * DAY_MS) if one.name in fresh else one for one in whole()]
        facts = [older(one, -read_back * DAY_MS) if one.name == "paper.read-back" else one for one in facts]
        return person.look(facts, later_ms=days * DAY_MS)

    assert at(0) == []
    assert at(75) == []
    assert at(77) == ["expiring"]
    assert person.heard[-1].hint == "`holdfast paper verify`"
    assert at(78) == []
    assert at(91) == ["level", "over"], "what expired does not expire soon"
    assert at(92, read_back=92) == ["over"]


def test_a_drill_that_failed_or_is_overdue(home: AgentHome) -> None:
    person = Person(home)
    passed, failed = fact("drill", about="disk-full"), fact("drill", False, about="disk-full", age_ms=-HOUR_MS)
    assert person.look([passed]) == []
    assert person.look([passed], later_ms=9 * DAY_MS) == ["drill"]
    assert "overdue" in person.heard[-1].text
    assert person.look([older(passed, -9 * DAY_MS)], later_ms=9 * DAY_MS) == ["over"]
    assert person.look([passed, failed], later_ms=2 * HOUR_MS) == ["drill"]
    assert person.heard[-1].hint == "`holdfast drill run disk-full`"
    assert person.look([older(failed, -HOUR_MS), passed], later_ms=3 * HOUR_MS) == ["drill"], "another one failed"


def test_a_drill_of_the_future_hides_no_overdue_one(home: AgentHome) -> None:
    person = Person(home)
    passed = fact("drill", about="disk-full")
    assert person.look([passed, older(passed, -400 * DAY_MS)], later_ms=9 * DAY_MS) == ["drill"]


def test_every_cadence_is_that_of_a_drill() -> None:
    assert {one.slug for one in DRILLS} >= alarms.CADENCE_DAYS.keys()


def test_effects_in_doubt_and_secrets_that_were_not_rotated(home: AgentHome) -> None:
    person = Person(home)
    young, old = fact("effect.in-doubt", about="T/1", age_ms=1000), fact("effect.in-doubt", about="T/2", age_ms=301_000)
    assert person.look([young]) == []
    assert person.look([young, old]) == ["in-doubt"]
    assert "T/2" in person.heard[-1].text
    assert person.look([old, old]) == []
    assert person.look([young]) == ["over"]
    secrets = [fact("secret.not-rotated", about=name) for name in ("billing", "mail")]
    assert person.look(secrets) == ["secrets-not-rotated"]
    assert person.look(secrets[1:]) == ["secrets-not-rotated"]
    assert person.heard[-1].hint == "`holdfast secret rotate mail`"
    assert person.look([]) == ["over"]


def test_what_could_not_be_handed_over_is_told_again(home: AgentHome) -> None:
    person, secrets = Person(home), [fact("secret.not-rotated", about="billing")]
    person.deaf = True
    assert person.look(secrets) == []
    person.deaf = False
    assert person.look(secrets) == ["secrets-not-rotated"]
    assert person.look(secrets) == []
    person.deaf = True
    assert person.look([]) == []
    person.deaf = False
    assert person.look([]) == ["over"]


def test_one_process_at_a_time_tells(home: AgentHome) -> None:
    person, secrets = Person(home), [fact("secret.not-rotated", about="billing")]
    person.look([])
    with locked_now(home.instance / "alarms.json.lock") as mine:
        assert mine
        assert person.look(secrets) == []
    assert person.look(secrets) == ["secrets-not-rotated"]


def test_without_notices_nothing_counts_as_told(home: AgentHome) -> None:
    """Who sets [notices] later hears of what was wrong before."""
    home.instance.mkdir(mode=0o700)
    write_atomically(home.instance / "alarms.json", b'{"level": 4, "proven_level": 4}')
    heard = list[str]()

    class Ear:
        async def tell(self, notice: Notice) -> None:
            heard.append(notice.kind)

    assert asyncio.run(alarms.tell_once(home, None)) == 0
    assert [asyncio.run(alarms.tell_once(home, Ear())) for _ in range(2)] == [1, 0]
    assert heard == ["level"]


def test_a_worker_runs_the_jobs_that_its_order_names(home: AgentHome) -> None:
    """The alarms of the level reach the journal's notices; a job that fails ends alone and is logged."""
    (home.folder / "MEMORY.md").write_text("- tea\n")
    home.instance.mkdir(mode=0o700)
    write_atomically(home.instance / "alarms.json", b'{"level": 4, "proven_level": 4}')

    async def pending() -> list[str]:
        async with holdfast.open(home.journal) as hf:
            keys = load_or_create(home.keys_file, journal_exists=True, entropy=SystemEntropy())
            context = JobContext(address=home.journal, journal=hf.journal, keys=keys, notices=None, log=Log(said))
            await worker._run_job("holdfast.surfaces.alarms:no_such_job", context, after_s=0.0)
            async with running_beside(worker._run_job("holdfast.surfaces.alarms:keep_watch", context, after_s=0.0)):
                seen = 0
                while not (found := await hf.journal.pending_notices(limit=5)):
                    seen = await hf.journal.wait_change(timeout_s=0.1, seen=seen)
            return [one.kind for one in found]

    said = io.StringIO()
    assert asyncio.run(pending()) == ["level"]
    assert '"event": "job-failed"' in said.getvalue()


def test_the_worker_is_told_of_the_alarms_by_the_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ordered = list[worker.Order]()

    def run(order: worker.Order) -> int:
        ordered.append(order)
        return 0

    monkeypatch.setattr(worker, "run_worker", run)
    assert main(["worker", "app.py:tasks", "--journal", str(tmp_path / "journal.db")]) == 0
    assert "holdfast.surfaces.alarms:keep_watch" in ordered[0].jobs


class FarEnd:
    """Hears pings on loopback."""

    def __init__(self, *, status: int = 200) -> None:
        self.asked, self.status = list[str](), status

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/ping/s3cret-token?rid=1"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head.split(b" ")[1].decode())
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 2\r\nConnection: close\r\n\r\nOK" % self.status)
        await writer.drain()
        writer.close()

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()


def pinged(work: Callable[[], int], *, status: int = 200, url: str = "") -> tuple[object, list[str], list[str]]:
    """What became of the work, what the far end was asked, and the warnings."""
    far, warned = FarEnd(status=status), list[str]()

    def run(own: str) -> object:
        try:
            return with_pings(url or own, work, warn=warned.append)
        except ValueError as error:
            return error

    async def heard() -> object:
        async with far as own:
            return await asyncio.to_thread(run, own)

    return asyncio.run(heard()), far.asked, warned


def works() -> int:
    return 0


def fails() -> int:
    return 7


def raises() -> int:
    raise ValueError("no")


def test_a_ping_at_the_start_and_one_with_the_exit_code() -> None:
    start = "/ping/s3cret-token/start?rid=1"
    assert pinged(works) == (0, [start, "/ping/s3cret-token/0?rid=1"], [])
    assert pinged(fails) == (7, [start, "/ping/s3cret-token/7?rid=1"], [])
    error, asked, warned = pinged(raises)
    assert isinstance(error, ValueError)
    assert (asked, warned) == ([start, "/ping/s3cret-token/fail?rid=1"], [])


def test_a_ping_that_does_not_get_through_changes_nothing_and_shows_no_url() -> None:
    code, _, warned = pinged(works, status=500)
    assert (code, len(warned)) == (0, 2)
    code, _, gone = pinged(works, url="http://127.0.0.1:9/s3cret-token")
    assert (code, len(gone)) == (0, 2)
    assert not any("s3cret" in text or "127.0.0.1" in text for text in (*warned, *gone))


def test_scheduled_drills_ping_too(home: AgentHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drill_run, "DRILLS", ())

    async def run(*words: str) -> list[str]:
        far = FarEnd()
        async with far as url:
            (home.folder / "holdfast.toml").write_text(f'agent = "ada"\n[watch]\nping = "{url}"\n')
            await asyncio.to_thread(main, ["drill", "run", *words, "--home", str(home.folder)])
        return [one.split("/")[-1] for one in far.asked]

    assert [one.partition("?")[0] for one in asyncio.run(run("--due"))] == ["start", "0"]
    assert asyncio.run(run("no-such-drill")) == [], "a person is there"


def test_backup_due_pings_and_tells(home: AgentHome, monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[str]()

    async def tell_once(home: AgentHome, notices: object) -> int:
        told.append(home.name)
        return 0

    monkeypatch.setattr(alarms, "tell_once", tell_once)

    async def run() -> list[str]:
        far = FarEnd()
        async with far as url:
            (home.folder / "holdfast.toml").write_text(f'agent = "ada"\n[watch]\nping = "{url}"\n')
            code = await asyncio.to_thread(main, ["backup", "due", "--home", str(home.folder)])
            assert code == 0
        return far.asked

    assert [one.split("/")[-1] for one in asyncio.run(run())] == ["start?rid=1", "0?rid=1"]
    assert told == ["ada"]
