"""What tasks show of the register: steps in doubt, plans and talks, scratch, model endpoints, key windows, code.

Found in the records of the tasks that are open and of the newest ones that have ended. The bounds below are on what one
look reads; where tasks were left out, the rows say how many were read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from holdfast.core.notices import counted
from holdfast.core.surfaces import Fact, Found, Surface, Targets, Verdict, age_text
from holdfast.errors import JournalDamaged
from holdfast.journal.contract import Filter, Journal, SessionRow
from holdfast.journal.records import ENDED, StepView, TaskState, TaskView
from holdfast.runtime.models.reply import Reply
from holdfast.runtime.task.talk import ASK, reply_of
from holdfast.views.tasks import MARKS, is_in_doubt

OPEN_MAX = 1_000
ENDED_MAX = 200
DOUBTS_MAX = 100


@dataclass(slots=True)
class _Endpoint:
    region: str = ""
    asks: int = 0
    cached: int = 0  # tokens of the newest prompt that the provider's cache had
    held: set[str] = field(default_factory=set[str])
    at_ms: int = 0


@dataclass(slots=True)
class _Gathered:
    """What the tasks that were read have in common."""

    tasks: int = 0
    open: int = 0
    in_flight: int = 0
    doubts: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])  # TASK/ORDINAL, since when
    plans: int = 0
    talks: int = 0
    scratch: int = 0
    unkept: int = 0
    endpoints: dict[str, _Endpoint] = field(default_factory=dict[str, _Endpoint])
    windows: dict[str, int] = field(default_factory=dict[str, int])  # by tool, the shortest in ms
    marked: int = 0


async def found_tasks(journal: Journal, whole: Surface, *, targets: Targets, now_ms: int) -> Found:
    """Rows of what the journal holds of tasks; `whole` is the row of the journal, which protects all of it."""
    sessions = {one.session_id: one for one in await journal.list_sessions()}
    got = _Gathered()
    rows = await journal.list_tasks(Filter(states=_OPEN, limit=OPEN_MAX, newest_first=False))
    rows += await journal.list_tasks(Filter(states=ENDED, limit=ENDED_MAX))
    for row in rows:
        if row.erased:
            continue
        try:
            _gather(got, await journal.read_task(row.task_id), sessions, open=row.state not in ENDED)
        except JournalDamaged:
            continue  # the worker parks it and says so; `holdfast doctor` too
    return Found(surfaces=tuple(_rows(got, whole, targets, now_ms)))


_OPEN = frozenset(TaskState) - ENDED


def _gather(got: _Gathered, view: TaskView, sessions: dict[str, SessionRow], *, open: bool) -> None:
    got.tasks += 1
    got.open += open
    got.plans += bool(view.plan)
    got.marked += MARKS in view.notes
    if view.files is not None:
        every = (
            *view.files.before.values(),
            *view.files.after.values(),
            *((view.files.end,) if view.files.end else ()),
        )
        got.scratch += 1
        got.unkept += any(one.unkept for one in every)
    got.talks += any(step.tool == ASK for step in view.steps.values())
    for step in view.steps.values():
        if step.step is None:
            continue
        if open and not step.closed:
            got.in_flight += 1
            if is_in_doubt(view, step, sessions):
                since_ms = step.attempts[-1].at_ms if step.attempts else step.planned_ms
                got.doubts.append((f"{view.task_id}/{step.ordinal}", since_ms))
        if window_ms := step.planned.window_ms:
            got.windows[step.tool] = min(window_ms, got.windows.get(step.tool, window_ms))
        if step.tool == ASK and step.closed and step.result:
            _gather_reply(got, step)


def _gather_reply(got: _Gathered, step: StepView) -> None:
    try:
        reply: Reply = reply_of(step)
    except JournalDamaged:
        return  # settled by hand, with something else
    route = reply.route
    one = got.endpoints.setdefault(route.endpoint if route else "not recorded", _Endpoint())
    one.asks += 1
    one.held |= set(reply.held_state)
    if step.closed_ms >= one.at_ms:
        one.at_ms, one.region = step.closed_ms, route.region if route else ""
        one.cached = (reply.usage.cached_tokens or 0) if reply.usage else 0


def _rows(got: _Gathered, whole: Surface, targets: Targets, now_ms: int) -> list[Surface]:
    read = f"read in {counted(got.tasks, 'task', 'tasks')}"

    def inside(id: str, kind: str, *, holds: str) -> Surface:
        why = whole.why if whole.verdict is not Verdict.COVERED else "kept in the journal"
        return msgspec.structs.replace(
            whole, id=id, kind=kind, holds=holds, protection=f"journal ({whole.protection})", why=why
        )

    rows = [_doubt_row(inside("steps", "steps in flight", holds=f"{got.in_flight:,} open steps"), got, targets, now_ms)]
    if got.open or got.plans or got.talks:
        holds = f"{counted(got.plans, 'plan', 'plans')} and {counted(got.talks, 'talk', 'talks')}"
        rows.append(inside("plan-and-talk", "plan and talk", holds=holds))
    if got.scratch:
        row = inside("scratch", "scratch files", holds=f"files of {counted(got.scratch, 'task', 'tasks')}")
        if got.unkept:
            why = f"files of {counted(got.unkept, 'task', 'tasks')} could not be kept at a checkpoint"
            row = msgspec.structs.replace(row, verdict=Verdict.AT_RISK, why=why, fix="holdfast task list")
        rows.append(row)
    rows += [_endpoint_row(name, one, read) for name, one in sorted(got.endpoints.items())]
    rows += [_window_row(tool, ms, targets, read) for tool, ms in sorted(got.windows.items())]
    if got.tasks:
        holds = f"digests of the code of {got.marked} of {counted(got.tasks, 'task', 'tasks')}"
        rows.append(inside("code", "code marks", holds=holds))
    return rows


def _doubt_row(row: Surface, got: _Gathered, targets: Targets, now_ms: int) -> Surface:
    late = [(at, since) for at, since in got.doubts if now_ms - since > targets.rto_s * 1000]
    row = msgspec.structs.replace(row, protection="effect protocol", evidence=f"{len(got.doubts)} in doubt")
    if not late:
        return row
    oldest, since_ms = min(late, key=lambda one: one[1])
    why = f"{counted(len(late), 'step is', 'steps are')} in doubt; {oldest} for {age_text(now_ms - since_ms)}"
    return msgspec.structs.replace(row, verdict=Verdict.AT_RISK, why=why, fix=f"holdfast effect show {oldest}")


def _endpoint_row(name: str, one: _Endpoint, read: str) -> Surface:
    held = ", ".join(sorted(one.held))
    cold = f"a cold restart costs {one.cached:,} tokens that its cache has now"
    return Surface(
        id=f"model/{name}",
        kind="model endpoint",
        holds=f"cache of prompts, and state held by the provider: {held}" if held else "cache of prompts",
        where=f"{name} ({one.region})" if one.region else name,
        owner="the provider",
        protection="" if held else "journal: every message is recorded",
        domain=one.region or name,
        evidence=f"{counted(one.asks, 'reply', 'replies')}, {read}",
        evidence_ms=one.at_ms or None,
        verdict=Verdict.UNCOVERED if held else Verdict.COVERED,
        why=f"{held}: only the provider has it" if held else cold,
        fix="holdfast explain model-calls" if held else "",
    )


def _window_row(tool: str, window_ms: int, targets: Targets, read: str) -> Surface:
    window_s = window_ms // 1000
    short = window_s < targets.rto_s
    return Surface(
        id=f"window/{tool}",
        kind="key window",
        holds="which effect keys the service has seen",
        where=f"the service of {tool}",
        owner="the service",
        protection="the service keeps keys",
        domain=f"the service of {tool}",
        evidence=read,
        verdict=Verdict.AT_RISK if short else Verdict.COVERED,
        why=f"it knows a key for {window_s:,} s; "
        + ("a recovery may take longer" if short else "longer than the RTO target"),
        fix=f"holdfast target set --rto {max(1, window_s)}" if short else "",
    )


async def find_doubts(journal: Journal) -> Sequence[Fact]:
    """Steps that wait for a person, by the newest record of each parked task: cheap, for a worker beside its work."""
    found = list[Fact]()
    for row in await journal.list_tasks(Filter(states=_PARKED, limit=DOUBTS_MAX, newest_first=False)):
        try:
            newest = await journal.read_newest(row.task_id)
        except JournalDamaged:
            continue
        if newest is not None and newest.rest.ordinal:
            at, since_ms = f"{row.task_id}/{newest.rest.ordinal}", row.changed_ms
            found.append(
                Fact(name="effect.in-doubt", about=at, value=True, at_ms=since_ms, source=newest.rest.question)
            )
    return found


_PARKED = frozenset((TaskState.PARKED,))
