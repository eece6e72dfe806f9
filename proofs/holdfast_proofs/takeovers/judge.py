"""The judge: every effect counted at the services, every record attributed to the session that wrote it.

Beyond what the soak's judge finds:

* wrote: a record of a session that was lost, from a time when its lease was over;
* sent: a request from a host whose session was over and whose next one had not begun;
* needless: a parked step that was not under way in a session that was lost;
* stranger: a task that the standby or the copy has claimed;
* silent: an instance came back and its log does not say why it stopped;
* mail: a message that its sender's relays have signed for, and that the agent has not handled exactly once;
* memory: a line that is missing or doubled in the files of an instance, or files that differ.

`first_step_s` is the time from the loss to the first step of another instance in a task that the lost one held. It is
late after the lease and a second; where every such task was in a call that nobody may ask about before its declared
delay is over, after that delay too.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import holdfast
from holdfast.core.journal_address import INSTANCE
from holdfast.host.machine import host_id
from holdfast.journal.contract import Filter
from holdfast.journal.records import TaskView
from holdfast_proofs.soak.app import DELAY_S
from holdfast_proofs.soak.judge import judge as judge_counts
from holdfast_proofs.takeovers.app import MEMORY_EVERY, TASK, note_of
from holdfast_proofs.takeovers.lab import Instance, Lab
from holdfast_proofs.takeovers.rounds import Fault, History

MERGED_S_MAX = 90.0
SHOWN_MAX = 30
DELAYED = ("queryable", "unrepeatable")  # tools that declare one
STOPS = ("stop", "cut", "alone", "journal-away", "deaf", "mute", "all-apart", "removed")  # the old process is woken
TIMED = ("kill", "stop", "cut", "disk", "alone", "journal-away", "deaf", "mute")


@dataclass(slots=True)
class Takeovers:
    """What the rounds came to."""

    rounds: dict[str, int] = field(default_factory=dict[str, int])
    tasks: int = 0
    effects: int = 0
    duplicates: int = 0
    lost: int = 0
    silent: int = 0
    breaches: int = 0
    parked: int = 0
    needless_parks: int = 0
    taken: int = 0  # tasks that another instance continued
    sent_after: int = 0
    written_after: int = 0
    strangers: int = 0
    memory_lines: int = 0  # that every instance has, once
    mail: int = 0  # messages that were sent, and handled once
    mail_lost: int = 0
    mail_twice: int = 0
    mail_noted: int = 0  # whose sender has a delivery note
    first_step_s: list[float] = field(default_factory=list[float])
    late: int = 0  # first steps after lease + 1 s
    reasons: dict[str, str] = field(default_factory=dict[str, str])  # by kind: what the log of one instance said
    findings: list[str] = field(default_factory=list[str])

    def say(self, text: str) -> None:
        if len(self.findings) < SHOWN_MAX:
            self.findings.append(text)


async def judge(lab: Lab, history: History) -> Takeovers:
    """Reads what the run has left; the workers still run, so that memory can be merged."""
    found = Takeovers(rounds=dict(Counter(one.kind for one in {f.number: f for f in history.faults}.values())))
    found.findings += history.findings
    verdict = await judge_counts(history.plan, history.ran, lab.site, name=TASK)
    for name in ("effects", "duplicates", "lost", "silent", "breaches", "parked", "needless_parks"):
        setattr(found, name, getattr(verdict, name))
    found.findings += verdict.findings
    found.tasks = history.plan.tasks
    await _judge_tasks(found, lab, history)
    _judge_requests(found, history)
    for one in history.faults:
        found.reasons.setdefault(one.kind, " | ".join(dict.fromkeys(one.reasons)))
        if one.kind in STOPS and not one.reasons:
            found.silent += 1
            found.say(f"round {one.number}, {one.kind}: the log of {one.name} does not say why it stopped")
    mail = history.mail
    found.mail, found.mail_lost, found.mail_twice, found.mail_noted = mail.once, mail.lost, mail.twice, mail.noted
    for text in mail.findings:
        found.say(text)
    await _judge_memory(found, lab, history)
    return found


async def _judge_tasks(found: Takeovers, lab: Lab, history: History) -> None:
    lost = {session: fault for fault in history.faults for session in fault.sessions}
    first: dict[int, list[tuple[int, float]]] = {}
    strangers = {host_id(one.folder / INSTANCE): one.name for one in lab.others}
    async with holdfast.open(lab.desk, serve=False) as hf:
        for row in await hf.journal.list_tasks(
            Filter(limit=2 * (history.plan.tasks + history.mail.sent), newest_first=False)
        ):
            view = await hf.journal.read_task(row.task_id)
            _judge_strangers(found, view, strangers)
            _judge_claims(found, view, lost, first)
            await asyncio.sleep(0)
    for fault in history.faults:
        if fault.kind in TIMED and fault.number in first:
            after = [((began - fault.began_ms) / 1000, held_s) for began, held_s in first[fault.number]]
            found.first_step_s.append(round(min(after)[0], 2))
            found.late += all(seconds > fault.lease_ms / 1000 + 1 + held_s for seconds, held_s in after)


def _judge_strangers(found: Takeovers, view: TaskView, strangers: dict[str, str]) -> None:
    for one in view.claims.values():
        if one.host_id in strangers:
            found.strangers += 1
            found.say(f"task {view.task_id} was claimed by the {strangers[one.host_id]}, which may not act")


def _judge_claims(
    found: Takeovers, view: TaskView, lost: dict[str, Fault], first: dict[int, list[tuple[int, float]]]
) -> None:
    claims = sorted(view.claims.values(), key=lambda one: one.epoch)
    for one, following in zip(claims, [*claims[1:], None], strict=True):
        fault = lost.get(one.session_id)
        if fault is None:
            continue
        late = [at for at in _moments(view, one.epoch) if at > fault.over_ms]
        if late and fault.kind != "flapping":
            found.written_after += len(late)
            found.say(
                f"round {fault.number}, {fault.kind}: task {view.task_id}: {fault.name} wrote "
                f"{late[0] - fault.over_ms} ms after the end of its lease"
            )
        if following is not None and following.at_ms >= fault.began_ms and following.session_id != one.session_id:
            found.taken += 1
            began = min(_moments(view, following.epoch), default=0)
            if began:
                first.setdefault(fault.number, []).append((began, _held_s(view, one.epoch, following.at_ms)))
    sessions = {one.epoch: one.session_id for one in claims}
    for step in view.steps.values():
        if step.parked is None:
            continue
        tried = {sessions.get(one.epoch, "") for one in (*step.attempts, *step.earlier)}
        if not tried & lost.keys():
            found.needless_parks += 1
            found.say(f"task {view.task_id}: step {step.ordinal} was parked, and no instance was lost in it")


def _held_s(view: TaskView, epoch: int, taken_ms: int) -> float:
    """The declared delay of a call that was under way in this claim when the task was taken."""
    calls = (step for step in view.steps.values() if step.tool in DELAYED and not 0 < step.closed_ms < taken_ms)
    under_way = any(one.epoch == epoch for step in calls for one in (*step.attempts, *step.earlier))
    return DELAY_S if under_way else 0.0


def _moments(view: TaskView, epoch: int) -> list[int]:
    """When a step of this claim was begun, in the journal's time."""
    return [one.at_ms for step in view.steps.values() for one in (*step.attempts, *step.earlier) if one.epoch == epoch]


def _judge_requests(found: Takeovers, history: History) -> None:
    for fault in history.faults:
        if fault.kind == "flapping":
            continue
        late = [
            one for one in history.requests if one.peer == fault.address and fault.over_ms < one.at_ms < fault.back_ms
        ]
        if late:
            found.sent_after += len(late)
            found.say(
                f"round {fault.number}, {fault.kind}: {fault.name} sent {len(late)} requests after the end of its "
                f"lease, the first {late[0].at_ms - fault.over_ms} ms later: {late[0].method} {late[0].path}"
            )


async def _judge_memory(found: Takeovers, lab: Lab, history: History) -> None:
    """Once merged, each line is in the files of each instance exactly once."""
    numbers = range(history.plan.tasks)
    memory = [*history.edits, *(note_of(number) for number in numbers if number % MEMORY_EVERY == 0)]
    days = [note_of(number) for number in numbers if number % MEMORY_EVERY]
    until, wrong = time.monotonic() + MERGED_S_MAX, ["not looked at"]
    while wrong and time.monotonic() < until:
        await asyncio.sleep(0.5)
        wrong = [text for one in lab.instances.values() for text in _amiss(one, memory, days)]
        if len({(one.folder / "MEMORY.md").read_bytes() for one in lab.instances.values()}) > 1:
            wrong.append("the files MEMORY.md of the instances differ")
    for text in wrong:
        found.say(text)
    found.memory_lines = len(memory) + len(days) - len(wrong)


def _amiss(one: Instance, memory: Iterable[str], days: Iterable[str]) -> list[str]:
    files = {
        "MEMORY.md": (memory, [one.folder / "MEMORY.md"]),
        "daily logs": (days, [*(one.folder / "memory").glob("*.md")]),
    }
    wrong: list[str] = []
    for name, (wanted, paths) in files.items():
        lines = Counter(line.strip() for path in paths if path.is_file() for line in path.read_text().splitlines())
        whole = Counter[str]()
        for line, count in lines.items():
            whole[line] += count
        counts = _counted(lines, wanted)
        wrong += [
            f"{one.name}: {name}: {text!r} is there {count} times" for text, count in counts.items() if count != 1
        ]
    return wrong


def _counted(lines: Counter[str], wanted: Iterable[str]) -> dict[str, int]:
    """How often each text is in the lines: as the whole line, or as the text of an entry of ours."""
    counts = dict.fromkeys(wanted, 0)
    for line, count in lines.items():
        for text in _texts(line):
            if text in counts:
                counts[text] += count
    return counts


def _texts(line: str) -> set[str]:
    found = {line}
    at = line.find("order ")
    if at >= 0:
        found.add(line[at:].partition(".")[0] + ".")
    return found
