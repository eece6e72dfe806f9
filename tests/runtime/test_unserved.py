"""A task that no live worker serves is named: to who waits, by `doctor`, by a notice."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.app.doctor import Level, examine
from holdfast.core.journal_address import file_at
from holdfast.core.notices import NoticeKind, waits_unserved
from holdfast.journal.contract import SessionRow, WaitingTasks
from holdfast.journal.unserved import find_unserved, unserved
from holdfast.runtime.engine import upkeep
from holdfast.testing.lab import Lab, wait_until


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
