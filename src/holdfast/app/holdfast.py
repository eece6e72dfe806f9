"""An open journal for programs and commands: submit, decide, durable scopes, serve."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast

import msgspec

from holdfast.app.handle import TaskHandle, TaskWaits
from holdfast.core import ids
from holdfast.core.clock import Clock, Entropy
from holdfast.core.notices import contradiction_notice
from holdfast.core.ordinal import parse_ordinal
from holdfast.core.ports import KeyRing, Memory
from holdfast.core.step import StepState
from holdfast.core.values import canonical, checked, encode
from holdfast.errors import (
    ApprovalNotFound,
    BadInput,
    Misuse,
    NotNow,
    NotSettleable,
    Retryable,
    ScopeBusy,
    SessionLost,
    StepNotFound,
    TaskNotFound,
)
from holdfast.host.log import Log
from holdfast.host.who import user_at_host
from holdfast.journal.bodies import ApprovalGiven, DecisionGiven, EvidenceGiven
from holdfast.journal.contract import Claimed, DropCheck, InboxItem, InboxKind, Journal, Submission
from holdfast.journal.records import Body, StepView, TaskState, TaskView
from holdfast.layout.engine_settings import Settings
from holdfast.runtime.engine.engine import Engine
from holdfast.runtime.gate.gate import Gate
from holdfast.runtime.gate.guard import Guard
from holdfast.runtime.secrets import NO_SECRETS, Secrets
from holdfast.runtime.step.decisions import asked_approval, asked_decision, question_epoch
from holdfast.runtime.task.scope import Scope
from holdfast.runtime.task.task import SCOPE_NAME, TaskType, check_gate, check_name
from holdfast.runtime.tool.tool import Tool

if TYPE_CHECKING:
    from holdfast.app.agent_lease import AgentLease

REQUEST_ID_CHARS_MAX = 500
SCOPE_WAIT_S = 30.0
SCOPE_RETRY_S = 0.02
SERVE_AGAIN_S = 0.05

Decision = Literal["done", "run", "skip"]


class _Named(Protocol):
    name: str


N = TypeVar("N", bound=_Named)


class Holdfast:
    """An open journal: submit, follow, decide. Made by `holdfast.open`."""

    def __init__(
        self,
        *,
        journal: Journal,
        keys: KeyRing,
        clock: Clock,
        entropy: Entropy,
        tasks: Iterable[TaskType],
        tools: Iterable[Tool[..., Any]],
        settings: Settings,
        log: Log | None = None,
        secrets: Secrets = NO_SECRETS,
        memory: Memory | None = None,
        held: AgentLease | None = None,
        task_salt: bytes = b"",
        scopes: Sequence[str] = (),
    ) -> None:
        self._held = held
        self.journal = journal
        self._waits = TaskWaits(journal, check=self._check_alive)
        self.memory = memory  # of the agent in whose folder the journal is
        self.settings = settings
        self.tasks = _by_name(tasks, TaskType, "task")
        self.tools = _by_name(tools, Tool, "tool")
        self._task_salt = task_salt  # empty for the first journal of a key ring
        self._scopes = tuple(scopes) or (settings.scope,)  # of new task ids, then those to look for; `request_scopes`
        self._keys = keys
        self.secrets = secrets
        self._clock = clock
        self._entropy = entropy
        self._log = log or Log()
        self.engine: Engine | None = None
        self._serving: asyncio.Task[None] | None = None
        self._failed: BaseException | None = None
        self._closing = False

    # tasks

    async def submit(
        self, task: TaskType | str, /, *, request_id: str | None = None, **args: Any
    ) -> TaskHandle:  # Any: checked as JSON before anything is written
        """Accept a task. On return it is durable.
        With a request id, the same call again finds the same task; with other arguments it raises RequestConflict."""
        self._check_alive()
        name = task if isinstance(task, str) else task.name
        if isinstance(task, str):
            check_name(name)
        known = self.tasks.get(name) if isinstance(task, str) else task
        if known is not None:
            known.check_args(args)
        kept = checked(args, what=f"arguments of {name}")
        encode(kept, what=f"arguments of {name}")
        if known is not None:
            known.check_values(cast("dict[str, Any]", kept))
        if request_id is None:
            request_id = ""
        elif not str(request_id).strip():
            raise BadInput("the request id is empty", hint="leave out the request id, or give one of your own")
        if not isinstance(request_id, str):  # pyright: ignore[reportUnnecessaryIsInstance] - border
            raise BadInput(f"a request id must be text, not {type(request_id).__name__}")
        if len(request_id) > REQUEST_ID_CHARS_MAX:
            raise BadInput(f"a request id may have at most {REQUEST_ID_CHARS_MAX} characters, not {len(request_id)}")
        if "\0" in request_id:
            raise BadInput("a request id must not contain a NUL character")
        checked(request_id, what="request id")
        self.secrets.check_input([kept, request_id], what=f"task {name}")
        task_id, *also = self._mint(name, request_id)
        submission = Submission(
            task_id=task_id,
            also=tuple(also),
            name=name,
            args=kept,
            args_fingerprint=ids.fingerprint(
                ids.fingerprint_key(self._keys.k_effect), tool=f"task {name}", canonical_args=canonical(kept)
            ),
            request_id=request_id,
        )
        found = await self.journal.submit(submission)
        return TaskHandle(self._waits, found.task_id, created=found.created)

    def task(self, task_id: str) -> TaskHandle:
        """A handle on a task of this journal."""
        return TaskHandle(self._waits, ids.parse_task_id(task_id))

    def _mint(self, name: str, request_id: str) -> list[ids.TaskId]:
        """The id of a new task, then the ids that the same request may have in this journal already."""
        if not request_id:
            return [ids.task_id_from_bytes(self._entropy.bytes(16))]
        make = partial(
            ids.task_id_for_request, self._keys.k_effect, name=name, request_id=request_id, salt=self._task_salt
        )
        return [make(agent=scope) for scope in self._scopes]

    # facts and decisions

    async def evidence(
        self,
        *,
        effect_key: str = "",
        task_id: str = "",
        ordinal: str = "",
        result: Any = None,
        happened: bool = True,
        source: str = "webhook",
    ) -> None:  # Any: checked as JSON
        """Report what an outside source, such as a webhook, says about an effect.
        Name the effect by effect key, or by task id and ordinal. Evidence that it happened closes an unknown
        or parked step as succeeded; Holdfast shows evidence that it did not happen to the person who decides."""
        if effect_key:
            found = await self.journal.find_effect(ids.effect_key_bytes(ids.parse_effect_key(effect_key)))
            if found is None:
                raise StepNotFound(f"no step has the effect key {effect_key}")
            task, place = found
        else:
            task, place = ids.parse_task_id(task_id), parse_ordinal(ordinal)
        _, step = await get_step(self.journal, task, place)
        kept = checked(result, what="evidence")
        encode(kept, what="evidence")
        outcome = "succeeded" if happened else "refused"
        await self._drop(task, place, InboxKind.EVIDENCE, EvidenceGiven(outcome, kept, source).body())
        denied = step.state in (StepState.FAILED, StepState.SKIPPED)
        if (happened and denied) or (not happened and step.state is StepState.SUCCEEDED):
            await self._tell_contradiction(task, step, source)

    async def _tell_contradiction(self, task: ids.TaskId, step: StepView, source: str) -> None:
        """A closed record never changes; a person must know that the evidence contradicts it."""
        notice = contradiction_notice(
            task, step.ordinal, step.tool, step.state, source=source, now_ms=self.journal.now_ms()
        )
        await self.journal.add_notice(self.secrets.notice(notice))

    async def settle(
        self, task_id: str, ordinal: str, decision: Decision, *, result: Any = None, by: str = "", note: str = ""
    ) -> None:  # Any: checked as JSON
        """Decide a parked step: it was `done`, `run` it, or `skip` it. The first decision counts.
        Raises NotSettleable if it is not parked or is decided already, NotNow while a request may be in flight."""
        step = await self.check_settle(task_id, ordinal, decision, result=result)
        task, epoch, now_ms = ids.parse_task_id(task_id), question_epoch(step), self.journal.now_ms()
        given = DecisionGiven(decision, checked(result, what="result"), by, note, epoch)

        def check(view: TaskView, inbox: Sequence[InboxItem]) -> None:
            if question_epoch(asked_decision(view, inbox, step.ordinal, self._clock, now_ms=now_ms)) != epoch:
                raise NotSettleable(
                    f"task {task} step {step.ordinal} was decided and then parked again: look once more"
                )

        await self._drop(task, step.ordinal, InboxKind.DECISION, given.body(), check=check)

    async def check_settle(
        self, task_id: str, ordinal: str, decision: Decision, *, result: Any = None
    ) -> StepView:  # Any: checked as JSON
        """The step, or what `settle` would raise; nothing is recorded."""
        if decision not in ("done", "run", "skip"):
            raise BadInput(f"{decision!r} is not a decision: use `done`, `run` or `skip`")
        task = ids.parse_task_id(task_id)
        view = await self.journal.read_task(task)
        inbox, now_ms = await self.journal.inbox_of(task), self.journal.now_ms()
        step = asked_decision(view, inbox, parse_ordinal(ordinal), self._clock, now_ms=now_ms)
        encode(checked(result, what="result"), what="result")
        if decision == "run" and step.failure.left:
            await self._check_gone(view, step)
        return step

    async def _check_gone(self, view: TaskView, step: StepView) -> None:
        """What the call started ends with its worker at the latest. Until then it may send, and a repeat would be the
        second time. Raises NotNow."""
        claim = view.claims.get(step.attempts[-1].epoch)
        held = [] if claim is None else await self.journal.list_sessions()
        for session in held:
            if claim is not None and session.session_id == claim.session_id and session.alive:
                raise NotNow(
                    f"task {view.task_id} step {step.ordinal}: {step.failure.left} of the worker {session.worker} may "
                    "still send, so it is too early to run the step again",
                    hint=f"stop the worker {session.worker}, which ends it; then decide. The next worker applies it",
                )

    async def approve(self, task_id: str, ordinal: str, *, granted: bool, by: str = "", note: str = "") -> None:
        """Answer the question that a task waits for. The first answer counts.
        Raises ApprovalNotFound if the step does not ask, or has its answer."""
        task, place = ids.parse_task_id(task_id), parse_ordinal(ordinal)
        view = await self.journal.read_task(task)
        binding = asked_approval(view, await self.journal.inbox_of(task), place)

        def check(view: TaskView, inbox: Sequence[InboxItem]) -> None:
            if asked_approval(view, inbox, place) != binding:
                raise ApprovalNotFound(f"task {task} step {place} asks something else by now: look once more")

        given = ApprovalGiven(granted, by, note, binding)
        await self._drop(task, place, InboxKind.APPROVAL, given.body(), check=check)

    async def cancel(self, task_id: str, *, by: str = "") -> None:
        await self.task(task_id).cancel(by=by)

    async def retry(self, task_id: str, *, by: str = "") -> None:
        """Run a parked or failed task again; closed steps keep their recorded outcomes."""
        row = await self.task(task_id).row()
        if row.state in (TaskState.SUCCEEDED, TaskState.CANCELLED):
            raise NotSettleable(
                f"task {row.task_id} has {row.state}: it cannot run again",
                hint="submit the request again, with another request id",
            )
        await self._drop(row.task_id, "", InboxKind.RETRY, {"by": by})

    async def _drop(
        self, task: ids.TaskId, ordinal: str, kind: InboxKind, body: Body, *, check: DropCheck | None = None
    ) -> None:
        if body.get("by") == "":
            body["by"] = user_at_host()
        await self.drop(InboxItem(task_id=task, ordinal=ordinal, kind=kind, body=body), check=check)

    async def drop(self, item: InboxItem, *, check: DropCheck | None = None) -> None:
        """Add a fact about a task, with handles for the secrets in it."""
        self._check_alive()
        checked(item.body, what=item.kind.value)
        encode(item.body, what=item.kind.value)
        self.secrets.refresh()
        await self.journal.drop(msgspec.structs.replace(item, body=self.secrets.body(item.body)), check=check)

    # scopes

    @asynccontextmanager
    async def scope(self, name: str, *, gate: Gate | None = None) -> AsyncGenerator[Scope, None]:
        """Durable calls for code that Holdfast does not run; see docs/how-to/foreign-loops.md.
        `gate`: which calls the scope allows; all its calls count, also those of earlier days."""
        self._check_alive()
        check_gate(gate)
        engine = self.engine
        if engine is None:
            raise Misuse(
                "a scope needs a session, and this journal was opened without one",
                hint="open the journal with serve=True",
            )
        task_id = await self._open_scope(name)
        with engine.wanted(task_id) as given:
            claimed = await self._claim_scope(engine, name, task_id, given)
        writer, steps = engine.writer_for(claimed)
        engine.watch(writer)
        if gate is not None:
            steps.guard = Guard(gate, writer, on_refused=partial(engine.on_refused, task_id))
        scope = Scope(name, writer, steps)
        try:
            yield scope
        finally:
            try:
                await scope.release()
            finally:
                engine.unwatch(writer, rested=not writer.fenced)

    async def _claim_scope(
        self, engine: Engine, name: str, task_id: ids.TaskId, given: asyncio.Future[Claimed]
    ) -> Claimed:
        """Claim it; or get it from our own engine, which may see it first."""
        loop = asyncio.get_running_loop()
        end = loop.time() + SCOPE_WAIT_S * self.settings.pace
        while True:
            session = await self._session(engine)
            # Woken and claimed with no pause between: another process's engine that serves scopes
            # would take it first each time, only to look whether something is left to settle.
            await self._wake_scope(task_id)
            if given.done():
                return given.result()
            claim = asyncio.ensure_future(
                self.journal.claim(session, names=(SCOPE_NAME,), limit=1, task_id=task_id, alone=True)
            )
            try:
                claimed = await asyncio.shield(claim)
            except asyncio.CancelledError:
                for one in await claim:  # it is ours by now: give it back
                    await self.journal.release(one.hold)
                raise
            if claimed:
                return claimed[0]
            if loop.time() > end:
                raise ScopeBusy(f"another session holds the scope {name!r}")
            await asyncio.wait((given,), timeout=SCOPE_RETRY_S)
            if given.done():
                return given.result()

    async def _open_scope(self, name: str) -> ids.TaskId:
        checked(name, what="scope name")
        self.secrets.check_input(name, what="the name of the scope")
        if not name or len(name) > REQUEST_ID_CHARS_MAX:
            raise BadInput(f"a scope name must have 1 to {REQUEST_ID_CHARS_MAX} characters, not {len(name)}")
        task_id, *also = self._mint(SCOPE_NAME, name)
        submission = Submission(
            task_id=task_id,
            also=tuple(also),
            name=SCOPE_NAME,
            args={"scope": name},
            args_fingerprint=ids.fingerprint(
                ids.fingerprint_key(self._keys.k_effect), tool=SCOPE_NAME, canonical_args=name.encode()
            ),
            request_id=name,
        )
        return (await self.journal.submit(submission)).task_id

    async def _wake_scope(self, task_id: ids.TaskId) -> None:
        """A resting scope becomes claimable by a harmless drop."""
        row = await self.journal.find_task(task_id)
        if row is not None and row.state.value in ("waiting", "parked"):
            await self._drop(task_id, "", InboxKind.RETRY, {"by": "scope"})

    async def _session(self, engine: Engine) -> Any:  # Any: the journal's own session type
        for _ in range(200):
            if engine.lease is not None and engine.lease.ok():
                return engine.lease.session
            await asyncio.sleep(0.02)
        raise SessionLost(
            "the scope was not opened: this process got no session within 4 s",
            hint="check the journal and its disk with `holdfast doctor`, then try again",
        )

    # serving

    def start(self, engine: Engine) -> None:
        self.engine = engine
        engine.finished = lambda task_id, _state: self._waits.note_end(task_id)
        self._serving = asyncio.create_task(self._serve(engine), name="holdfast engine")

    async def _serve(self, engine: Engine) -> None:
        """Serve; start a new session after a lost one; remember the error that ended it.
        A busy or full journal does not end it: callers in this process wait for this engine."""
        while True:
            try:
                await engine.serve()
                return
            except Retryable as error:
                if self._closing:
                    return
                self._log.event("session-lost", code=error.code, error=error.message)
                await asyncio.sleep(SERVE_AGAIN_S)
                await self._wait_held()
            except Exception as error:  # noqa: BLE001 - raised at the next use of this journal
                self._failed = error
                return

    async def _wait_held(self) -> None:
        """Wait for the agent's lease before a new session, for as long as that takes."""
        lease = self._held
        while lease is not None and not (lease.held or self._closing):  # noqa: ASYNC110 - a clock
            await asyncio.sleep(lease.look_every_s)

    def _check_alive(self) -> None:
        if self._failed is not None:
            raise self._failed

    async def stop(self) -> None:
        """Stop serving: let running calls finish, and give all tasks back."""
        self._closing = True
        if self.engine is not None:
            self.engine.stop()
        if self._serving is not None:
            await asyncio.gather(self._serving, return_exceptions=True)

    async def close(self) -> None:
        await self.stop()
        await self.journal.close()


def _by_name(items: Iterable[N], kind: type[N], what: str) -> dict[str, N]:
    """By name. Raises Misuse for another kind, and for two with one name."""
    named: dict[str, N] = {}
    for item in items:
        if not isinstance(item, kind):
            raise Misuse(f"{item!r} is not a {what}", hint=f"decorate it with @holdfast.{what}")
        if named.setdefault(item.name, item) is not item:
            raise Misuse(f"two {what}s are called {item.name!r}", hint="give one of them another `name`")
    return named


async def get_step(journal: Journal, task: ids.TaskId, ordinal: str) -> tuple[TaskView, StepView]:
    if await journal.find_task(task) is None:
        raise TaskNotFound(task)
    view = await journal.read_task(task)
    step = view.steps.get(ordinal)
    if step is None:
        raise StepNotFound(f"task {task} has no step {ordinal}")
    return view, step
