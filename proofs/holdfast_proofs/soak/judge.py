"""The judge of a run: what the far ends counted against what the journal says.

* duplicate: a step took effect more than once (for Idempotent: in a way that shows);
* lost: recorded as succeeded and never done, or a task that did not come to its end;
* silent: a doubt that nobody was asked about: an Unrepeatable effect whose reply was dropped and
  whose step was never parked, a question without a notice, an open step that nobody holds;
* needless park: a person is asked about a step that its class lets a machine settle;
* breach: the journal tells another story: an effect without a record, a result that is not the
  far end's, a step of another class than the code asks for.

Poisoned tasks (parked because their workers were killed three times) are counted apart: at one
kill a second the machine cannot know that it was not the task's doing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import holdfast
from holdfast.core.step import StepState
from holdfast.downstream.ledger import count_duplicates
from holdfast.journal.contract import Filter
from holdfast.journal.records import StepView, TaskState, TaskView
from holdfast_proofs.soak.app import FAR_ENDS, class_of
from holdfast_proofs.soak.books import Books
from holdfast_proofs.soak.fairness import Fairness
from holdfast_proofs.soak.load import Plan, Ran
from holdfast_proofs.soak.site import Site

FINDINGS_MAX = 50
NOTICES_MAX = 1_000_000


@dataclass(slots=True)
class Verdict:
    effects: int = 0  # steps recorded as succeeded
    duplicates: int = 0
    lost: int = 0
    silent: int = 0
    breaches: int = 0
    parked: int = 0
    needless_parks: int = 0
    findings: list[str] = field(default_factory=list[str])
    fairness: Fairness = field(default_factory=Fairness)

    @property
    def green(self) -> bool:
        bad = (self.duplicates, self.lost, self.silent, self.breaches, self.needless_parks)
        return not any(bad) and not self.findings

    def say(self, text: str) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(text)


async def judge(plan: Plan, ran: Ran, site: Site, *, name: str | None = None) -> Verdict:
    """Read everything that the run has left behind; `name`: of the tasks that are judged, where there are others."""
    verdict = Verdict()
    if ran.trouble:
        verdict.say(ran.trouble)
    books = Books(site.books or site.journal.folder, FAR_ENDS)
    books.read()
    _judge_counts(verdict, books)
    rows = site.count_rows()
    for place, count in rows.items():
        if count > 1:
            verdict.duplicates += count - 1
            verdict.say(f"task {'/'.join(place)}: {count} rows in one transaction's place")
    async with holdfast.open(site.journal, serve=False) as hf:
        told = {
            (one.task_id, one.ordinal)
            for one in await hf.journal.pending_notices(limit=NOTICES_MAX)
            if one.kind == "parked"
        }
        tasks = await hf.journal.list_tasks(Filter(name=name, limit=plan.tasks + 1, newest_first=False))
        if len(tasks) != plan.tasks:
            verdict.lost += 1
            verdict.say(f"{len(tasks)} tasks are in the journal, not {plan.tasks}")
        for row in tasks:
            view = await hf.journal.read_task(row.task_id)
            _Case(verdict, plan, view, row.state, books, rows).judge(told, ran.dropped_once)
            verdict.fairness.add(view)
            await asyncio.sleep(0)
    _judge_unrecorded(verdict, books, rows, {str(row.task_id) for row in tasks})
    return verdict


def _judge_counts(verdict: Verdict, books: Books) -> None:
    for name, log in books.logs.items():
        twice = count_duplicates(log.effects, repeats_allowed=name == "idempotent")
        if twice:
            verdict.duplicates += twice
            verdict.say(f"{name}: {twice} effects took place once too often")


def _judge_unrecorded(verdict: Verdict, books: Books, rows: Iterable[tuple[str, str]], known: set[str]) -> None:
    """Effects of tasks that the journal does not have; those of its own are judged with them."""
    done = {task for log in books.logs.values() for task, _ in log.by_step}
    for task in (done | {task for task, _ in rows}) - known:
        verdict.breaches += 1
        verdict.say(f"task {task} is not in the journal and took effect")


@dataclass(slots=True)
class _Case:
    """One task under judgement."""

    verdict: Verdict
    plan: Plan
    view: TaskView
    state: TaskState
    books: Books
    rows: Counter[tuple[str, str]]

    def judge(self, told: set[tuple[str, str]], dropped_once: set[tuple[str, str]]) -> None:
        number = int(self.view.request_id)
        if self.state is not TaskState.SUCCEEDED:
            self._judge_unfinished()
        for step in range(1, self.plan.steps + 1):
            found = self.view.steps.get(str(step))
            if found is None:
                self._judge_missing(class_of(number, step), str(step))
                continue
            if found.tool != class_of(number, step):
                self._breach(f"step {step} is {found.tool}, not {class_of(number, step)}")
            self._judge_step(found)
            self._judge_doubt(found, told, dropped_once)

    def _judge_unfinished(self) -> None:
        if self.state is TaskState.PARKED and self.view.rest.question:
            self._lost("is parked and was not settled")
        elif self.state in (TaskState.FAILED, TaskState.CANCELLED):
            self._lost(f"{self.state}: {self.view.outcome}")
        else:
            self.verdict.silent += 1
            self._lost(f"is {self.state}, neither ended nor parked with a question")

    def _judge_missing(self, name: str, ordinal: str) -> None:
        if self.state is TaskState.SUCCEEDED:
            self._lost(f"succeeded without step {ordinal}")
        if self._done(name, ordinal):
            self._breach(f"step {ordinal} was done without a record of its intent")

    def _judge_step(self, step: StepView) -> None:
        ids = self._done(step.tool, step.ordinal)
        if step.state is StepState.SUCCEEDED:
            self.verdict.effects += 1
            if not ids:
                self._lost(f"step {step.ordinal} is recorded as succeeded and was never done")
            elif step.result not in ids:
                self._breach(f"step {step.ordinal}: recorded {step.result!r}, done {ids}")
        elif step.closed and ids:
            self._breach(f"step {step.ordinal} is recorded as {step.state} and was done")

    def _judge_doubt(self, step: StepView, told: set[tuple[str, str]], dropped_once: set[tuple[str, str]]) -> None:
        place = (self.view.task_id, step.ordinal)
        if step.parked is None:
            if place in dropped_once:
                self.verdict.silent += 1
                self._say(f"step {step.ordinal}: its reply was dropped and nobody was asked")
            return
        self.verdict.parked += 1
        if place not in told:
            self.verdict.silent += 1
            self._say(f"step {step.ordinal} was parked and nobody was told")
        if step.letter != "N":
            self.verdict.needless_parks += 1
            self._say(f"step {step.ordinal} ({step.tool}) was parked: {step.question}")

    def _done(self, name: str, ordinal: str) -> list[object]:
        """What the far end's books have under this step, as the tool would have returned it."""
        if name == "transactional":
            return [int(ordinal)] * self.rows[self.view.task_id, ordinal]
        return [one.id for one in self.books.logs[name].find(self.view.task_id, ordinal)]

    def _lost(self, text: str) -> None:
        self.verdict.lost += 1
        self._say(text)

    def _breach(self, text: str) -> None:
        self.verdict.breaches += 1
        self._say(text)

    def _say(self, text: str) -> None:
        self.verdict.say(f"task {self.view.task_id}: {text}")
