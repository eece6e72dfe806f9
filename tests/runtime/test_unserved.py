"""A task that no live worker serves is named: to who waits, by `doctor`, by a notice."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.app.doctor import Level, examine
from holdfast.core.journal_address import file_at
from holdfast.core.notices import NoticeKind, waits_unserved
from holdfast.errors import BadInput, Misuse
from holdfast.journal.builds import Build, names_claimed
from holdfast.journal.contract import SessionRow, WaitingTasks
from holdfast.journal.records import TaskState
from holdfast.journal.unserved import find_unserved, unserved
from holdfast.runtime.engine import upkeep
from holdfast.testing.lab import Lab, fast, wait_state, wait_until


@holdfast.task
async def served(run: holdfast.Run) -> str:
    return "done"


def session(serves: frozenset[str] | None, *, alive: bool = True) -> SessionRow:
    return SessionRow(
        session_id="s",
        worker="w",
        pid=1,
        boot_id="b",
        lease_until_boot_ms=1,
        begun_ms=1,
        ended=not alive,
        alive=alive,
        tasks=0,
        serves=serves,
    )


TRIP = WaitingTasks(name="trip", tasks=6, since_ms=0)
PINNED = WaitingTasks(name="trip", build="v1", tasks=6, since_ms=0)
SCOPE = WaitingTasks(name="@scope", tasks=1, since_ms=0)


@pytest.mark.parametrize(
    ("sessions", "found"),
    [
        ([], [TRIP]),
        ([session(frozenset({"order"}))], [TRIP]),
        ([session(frozenset({"order"})), session(frozenset({"trip"}))], []),
        ([session(frozenset({"trip"}), alive=False)], [TRIP]),
        ([session(None)], []),
        ([session(None, alive=False), session(frozenset())], [TRIP]),
    ],
    ids=["no worker", "another app", "served", "its worker is dead", "an older version", "serves nothing"],
)
def test_only_live_sessions_that_say_so_serve_a_task(sessions: list[SessionRow], found: list[WaitingTasks]) -> None:
    assert unserved([TRIP, SCOPE], sessions) == found


def test_a_pinned_task_is_served_by_its_own_build_alone() -> None:
    named = {name: frozenset(names_claimed(["trip"], Build(name=name))) for name in ("v1", "v2")}
    assert unserved([PINNED], [session(named["v2"])]) == [PINNED]
    assert unserved([PINNED], [session(named["v2"]), session(named["v1"])]) == []


@pytest.mark.parametrize(
    ("tasks", "seconds", "text"),
    [
        (6, 600, "no live worker serves trip (6 tasks wait, the oldest 10 min)"),
        (1, 7, "no live worker serves trip (1 task waits, the oldest 7 s)"),
        (1_000, 7_200, "no live worker serves trip (1,000 tasks wait, the oldest 2 h)"),
        (2, 86_400 * 3, "no live worker serves trip (2 tasks wait, the oldest 3 days)"),
    ],
)
def test_the_text_says_how_many_and_how_long(tasks: int, seconds: int, text: str) -> None:
    assert waits_unserved("trip", tasks, seconds * 1000) == text


async def test_a_task_of_another_app_is_told_to_whoever_waits_or_looks(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "UNSERVED_EVERY_S", 1.0)  # times the lab's pace
    monkeypatch.setattr(upkeep, "UNSERVED_AFTER_MS", 1.0)
    async with lab.open(served) as hf:
        assert await (await hf.submit(served)).result(10) == "done"
        assert await find_unserved(hf.journal) == []
        handle = await hf.submit("no_such_task")
        with pytest.raises(holdfast.TaskUnfinished, match=r"no live worker serves no_such_task \(1 task waits"):
            await handle.result(0.1)
        findings = [one async for one in examine(file_at(lab.journal), settings=hf.settings, deep=False)]
        (told,) = [one for one in findings if one.check == "queue"]
        assert (told.level, "no live worker serves no_such_task" in told.text) == (Level.WARNING, True)

        async def noticed() -> bool:
            pending = await hf.journal.pending_notices(limit=10)
            return [one.kind for one in pending] == [NoticeKind.UNSERVED.value]

        await wait_until(noticed)


@holdfast.task(on_change="pin")
async def pinned(run: holdfast.Run) -> str:
    await run.sleep(3_600)
    return "done"


async def test_a_build_that_no_live_worker_has_is_told_with_the_command_that_would_serve_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "UNSERVED_EVERY_S", 1.0)  # times the lab's pace
    monkeypatch.setattr(upkeep, "UNSERVED_AFTER_MS", 1.0)
    async with holdfast.open(lab.journal, tasks=[pinned], settings=fast(), build="v1") as hf:
        handle = await hf.submit(pinned)
        assert (await wait_state(handle, TaskState.SLEEPING)).build == "v1"
        assert await find_unserved(hf.journal) == []
    async with holdfast.open(lab.journal, tasks=[pinned], settings=fast(), build="v2") as hf:
        handle = hf.task(handle.id)
        with pytest.raises(holdfast.TaskUnfinished, match="no live worker has build v1, to which 1 open task"):
            await handle.result(0.1)

        async def noticed() -> bool:
            return bool(await hf.journal.pending_notices(limit=10))

        await wait_until(noticed)
        (notice,) = await hf.journal.pending_notices(limit=10)
        assert notice.kind == NoticeKind.UNSERVED.value
        assert "`holdfast worker APP --build v1`" in notice.hint
        assert "`holdfast worker APP --build NEW --take-over v1`" in notice.hint


async def test_a_pin_needs_a_build(lab: Lab) -> None:
    with pytest.raises(Misuse, match="task pinned is pinned to the build that begins it"):
        async with lab.open(pinned):
            pass
    async with lab.open(pinned, serve=False):  # who only submits has none
        pass
    with pytest.raises(BadInput, match="cannot take over its own tasks"):
        async with holdfast.open(lab.journal, build="v1", take_over=["v1"]):
            pass
