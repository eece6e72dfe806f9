"""One run of a drill: its shadows, the commands in them, the far ends that count, the timeline, and what was found.

Everything that a drill learns goes through here, so that it is in the report: each command with its exit code and time,
each event with both clocks, each check with its evidence. A check is true or false and never guesses; a drill that
cannot go on raises NotProven (nothing is known) or DrillFailed (a promise is broken).
"""

from __future__ import annotations

import contextlib
import json
import random
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from holdfast.backup.places.places import Place
from holdfast.core.clock import iso
from holdfast.downstream.ledger import Done as Effect
from holdfast.downstream.process import BlockingFarEnd, Kind, start_blocking
from holdfast.drills.far.machine import open_far
from holdfast.drills.probe import APP, TASK, variable
from holdfast.drills.production import HASHES, Production, gone_in_copy
from holdfast.errors import NotProven
from holdfast.host.shadow import Machine, Shadow, ShadowPlan, open_shadow
from holdfast.host.shadowed import RECORDER
from holdfast.identity.speaker.speaker import Speaker
from holdfast.layout.agent_home import AgentHome
from holdfast.surfaces import report as out
from holdfast.surfaces.procedure import Action, Procedure
from holdfast.surfaces.procedures import get_procedure, procedure_values

COMMAND_S_MAX = 3_600.0  # a restore of many gigabytes
WAIT_S = 60.0  # for a step of the probe; it takes well below a second
LOOK_S = 0.02
OUTPUT_CHARS_KEPT = 20_000
HOLDFAST = (sys.executable, "-P", "-m", "holdfast")
PYTHON = (sys.executable, "-I", "-c")
Json = dict[str, Any]  # Any: what a command printed with --json


class DrillFailed(Exception):
    """The drill cannot go on because something that must work does not. The text is in the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillKey:
    """What opens the backups in a drill: a person's words or shares, or another key that reads. `typed` are options
    whose value is a secret: it goes by a descriptor, never in a command line."""

    kind: Literal["words", "shares", "rescue key"]
    file: Path | None = None  # of a rescue key
    typed: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    hand_s: float = 0.0  # how long a person typed

    @property
    def signs(self) -> bool:
        """Whether it can recover the identity too."""
        return self.file is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A command that has ended."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str
    seconds: float

    def json(self) -> Any:  # Any: JSON of that command
        try:
            return json.loads(self.out)
        except ValueError:
            raise DrillFailed(f"{shlex.join(self.words)} printed no JSON: {self.said}") from None

    @property
    def said(self) -> str:
        """Its error in one line."""
        lines = self.err.splitlines()
        found = [line for line in lines if line.startswith(("error: ", '{"error": '))] or lines[-1:] or ["no message"]
        with contextlib.suppress(ValueError, TypeError, KeyError):
            return f"exit {self.code}: {json.loads(found[-1])['error']['message']}"
        return f"exit {self.code}: {found[0]}"


@dataclass(slots=True)
class Worker:
    """A `holdfast worker` in a shadow."""

    process: subprocess.Popen[bytes]
    log: Path

    def events(self) -> list[Json]:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def when(self, event: str, text: str = "", *, after_ms: int) -> int | None:
        """The wall clock of its first event of this kind after that time, in ms."""
        for one in self.events():
            at_ms = DrillRun.ms(str(one.get("at", "")))
            if at_ms >= after_ms and one.get("event") == event and str(one.get("text", "")).startswith(text):
                return at_ms
        return None

    def serving(self) -> list[int]:
        """The process ids, inside the shadow, of every worker process so far."""
        return [int(one["pid"]) for one in self.events() if one.get("event") == "serving"]

    def wait_serving(self, count: int = 1) -> int:
        end = time.monotonic() + WAIT_S
        while len(found := self.serving()) < count:
            if self.process.poll() is not None or time.monotonic() > end:
                said = self.log.read_text(errors="replace").strip().splitlines()[-3:]
                raise DrillFailed(f"the worker does not serve: {' / '.join(said) or 'it printed nothing'}")
            time.sleep(LOOK_S)
        return found[-1]


Observer = Callable[["DrillRun", str], None]
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillOrder:
    """What a person, or a timer, asks for."""

    home: AgentHome
    folder: Path  # the drill's own; its parents exist or are made
    speaker: Speaker  # signs the report's certificate
    key: DrillKey | None = None
    place: str = ""  # restore from this one; empty: the best that a shadow can reach
    seed: int = 0
    lead: str = ""
    rto_s: float | None = None  # in place of the drill's own target
    observe: Observer = lambda _run, _event: None
    tell: Tell = lambda _text: None
    on: str = ""  # ssh://...: the machine on which it is restored; empty: a fresh root here
    rsh: str = ""
    production: bool = False  # no shadow: the agent itself
    stand: bool = False  # with a copy that stays
    rescue_key: Path | None = None  # that opens it


@dataclass(slots=True)
class DrillRun:
    """See the module. `observe` is called at each event, for live progress."""

    slug: str
    production: Production
    folder: Path  # the drill's own
    copies: tuple[tuple[Path, Path], ...]  # for a running copy of the agent
    key: DrillKey | None
    place: Place | None  # from which it restores
    seed: int
    observe: Observer = lambda _run, _event: None
    on: str = ""
    rsh: str = ""
    rescue_key: Path | None = None
    rng: random.Random = field(init=False)
    procedure: Procedure = field(init=False)
    values: dict[str, str] = field(init=False)
    shadow: Machine | None = None
    began: float = field(default_factory=time.monotonic)
    began_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    events: list[out.Event] = field(default_factory=list[out.Event])
    checks: list[out.Invariant] = field(default_factory=list[out.Invariant])
    findings: list[out.Finding] = field(default_factory=list[out.Finding])
    faults: list[out.Fault] = field(default_factory=list[out.Fault])
    deviations: list[str] = field(default_factory=list[str])
    followed: list[str] = field(default_factory=list[str])
    changed: list[str] = field(default_factory=list[str])
    evidence: dict[str, tuple[str, bytes]] = field(default_factory=dict[str, tuple[str, bytes]])
    far_ends: dict[str, BlockingFarEnd] = field(default_factory=dict[str, BlockingFarEnd])
    effects: out.Effects | None = None
    identity: out.IdentityResult | None = None
    state: out.StateResult | None = None
    backup: out.BackupResult | None = None
    connectivity: out.ConnectivityResult | None = None
    rpo: out.Rpo | None = None
    lost_ms: int = 0  # when the newest file was changed that the restored snapshot lacks
    files: list[out.ToolFiles] | None = None
    fresh: bool = False
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _commands: list[bytes] = field(default_factory=list[bytes])
    workers: list[Worker] = field(default_factory=list[Worker])

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.procedure = get_procedure(self.slug)
        home, places = self.production.home, self.production.places
        self.values = procedure_values(home, places, id=self.production.log.id, app=APP, place=self.place)

    # what happened, and when

    def event(self, name: str, evidence: str = "", *, actor: str = "holdfast", at_ms: int | None = None) -> float:
        """Note that something happened now, or at this time of the wall clock; its monotonic second."""
        now_ms = time.time_ns() // 1_000_000
        at_s = time.monotonic() - self.began - (0 if at_ms is None else (now_ms - at_ms) / 1000)
        shown = iso(now_ms if at_ms is None else at_ms)
        self.events.append(out.Event(name=name, at=shown, at_s=round(at_s, 3), actor=actor, evidence=evidence))
        self.observe(self, name)
        return at_s

    def fault(self, what: str, *, how: str, target: str) -> None:
        self.faults.append(out.Fault(at=iso(time.time_ns() // 1_000_000), what=what, how=how, target=target))
        self.event("fault_injected", what, actor="drill")

    def check(self, code: str, passed: bool, evidence: str) -> bool:
        self.checks.append(out.Invariant(code=code, passed=passed, evidence=evidence))
        return passed

    def require(self, code: str, passed: bool, evidence: str) -> None:
        """A check without which nothing that follows would mean anything."""
        if not self.check(code, passed, evidence):
            raise DrillFailed(evidence)

    def find(self, severity: Literal["critical", "major", "minor"], description: str) -> None:
        retest = f"holdfast drill run {self.slug} --home {shlex.quote(self.values['home'])}"
        self.findings.append(
            out.Finding(severity=severity, description=description, owner="", due="", ticket="", retest=retest)
        )

    # machines

    @contextlib.contextmanager
    def machine(
        self,
        *,
        gone: Iterable[Path] = (),
        copies: Sequence[tuple[Path, Path]] = (),
        small: Sequence[tuple[Path, int]] = (),
        own: Sequence[Path] = (),
        name: str = "world",
    ) -> Generator[Shadow]:
        """A machine of its own. Two of one name share what they write, one after the other."""
        plan = ShadowPlan(
            folder=self.folder / name, gone=tuple(gone), copies=tuple(copies), small=tuple(small), own=tuple(own)
        )
        before = self.shadow
        with open_shadow(plan) as shadow:
            self.shadow = shadow
            try:
                yield shadow
            finally:
                self.shadow = before

    @contextlib.contextmanager
    def fresh_machine(self, *, place: Place, copies: Sequence[tuple[Path, Path]] = ()) -> Generator[Machine]:
        """A machine with nothing of the agent but this place: another one by ssh, or a fresh root here."""
        self.fresh = True
        if not self.on:
            with self.machine(gone=self.production.lost_with_host(), copies=copies) as shadow:
                yield shadow
            return
        before = self.shadow
        own = self.production.home.settings.backup
        with open_far(self.on, self.folder, rsh=self.rsh, settings=own, tell=self.deviations) as far:
            self.shadow = far
            try:
                for path in (*self.production.everything(), *(target for _, target in copies)):
                    if self.run(("test", "-e", str(path))).code == 0:
                        raise NotProven(f"{self.on} has {path}: it is not fresh", hint="name another machine")
                self.event("connectivity_restored", f"Holdfast runs on {self.on}")
                for source, target in ((place.own, place.own), *copies):
                    far.put(source, target)
                yield far
            finally:
                self.shadow = before
                self.check("far machine cleared", far.kill(), f"nothing is left on {self.on}")

    def running_copy(
        self, *, gone: Iterable[Path] = (), small: Sequence[tuple[Path, int]] = (), own: bool = False
    ) -> contextlib.AbstractContextManager[Shadow]:
        """A machine on which a copy of the agent can run: the same folder, keys and places. `own`: the agent's folder
        is a plain copy, which can be removed and renamed."""
        self.production.check_opens()
        gone = (*gone_in_copy(self.production.home), *gone)
        folders = (self.production.home.state,) if own else ()
        return self.machine(gone=gone, copies=self.copies, small=small, own=folders)

    def get_key(self) -> DrillKey:
        """A person's words or shares. Raises NotProven."""
        if self.key is None or not self.key.signs:
            raise NotProven("the recovery words were not given", hint="type them at a terminal, or give --words-fd N")
        return self.key

    def get_shadow(self) -> Machine:
        if self.shadow is None:
            raise DrillFailed("no machine runs")
        return self.shadow

    def own_shadow(self) -> Shadow:
        """The machine, which is a shadow on this one."""
        shadow = self.get_shadow()
        if not isinstance(shadow, Shadow):
            raise DrillFailed("this is done on a shadow of this machine alone")
        return shadow

    # commands

    def run(
        self,
        words: Sequence[str],
        *,
        typed: Iterable[tuple[str, str]] = (),
        more: Mapping[str, str] | None = None,
        cwd: Path = Path("/"),
        shown: Sequence[str] = (),
        seconds_max: float = COMMAND_S_MAX,
    ) -> Done:
        """Run a command in the machine and wait for it. `typed`: options whose value goes by a descriptor."""
        began = time.monotonic()
        process = self.get_shadow().start(words, more=more, cwd=cwd, typed=tuple(typed))
        try:
            raw_out, raw_err = process.communicate(timeout=seconds_max)
        except subprocess.TimeoutExpired:
            process.kill()
            raise DrillFailed(f"{shlex.join(words)} took longer than {seconds_max:g} s") from None
        seconds = time.monotonic() - began
        said = tuple(shown or words)
        # An agent's own check may say it in other bytes.
        out_text, err_text = (raw.decode(errors="replace") for raw in (raw_out, raw_err))
        done = Done(words=said, code=process.returncode, out=out_text, err=err_text, seconds=seconds)
        self._note(done)
        return done

    def prepare(self, *words: str) -> Done:
        """A command of the drill itself: where it fails, nothing is known of the agent. Raises NotProven."""
        done = self.run(words)
        if done.code != 0:
            raise NotProven(f"the drill itself failed: {shlex.join(words)}: {done.said}", hint="run it again")
        return done

    def holdfast(
        self, *words: str, typed: Iterable[tuple[str, str]] = (), more: Mapping[str, str] | None = None
    ) -> Done:
        return self.run((*HOLDFAST, *words), typed=typed, more=more, shown=("holdfast", *words))

    def good(self, *words: str, typed: Iterable[tuple[str, str]] = ()) -> Done:
        """A command that must succeed."""
        done = self.holdfast(*words, typed=typed)
        if done.code != 0:
            raise DrillFailed(f"{shlex.join(done.words)}: {done.said}")
        return done

    def act(
        self, title: str, *options: str, typed: Iterable[tuple[str, str]] = (), why: str = "", must: bool = True
    ) -> Done:
        """Do a step of the procedure, by its own command. Options that stand for a person's answers are noted."""
        action = self.step(title)
        words = action.filled(self.values)
        typed = tuple(typed)
        if options or typed:
            added = shlex.join((*options, *(option for option, _ in typed)))
            self.changed.append(f"{title}: {why or 'answers were given by options, not typed'}: {added}")
        program = HOLDFAST if words[0] == "holdfast" else words[:1]
        done = self.run((*program, *words[1:], *options), typed=typed, shown=words)
        if must and done.code != 0:
            raise DrillFailed(f"{shlex.join(words)}: {done.said}")
        return done

    def step(self, title: str) -> Action:
        action = next(one for one in self.procedure.actions if one.title == title)
        self.followed.append(action.shown(self.values) if action.command else f"by hand: {title}")
        return action

    def _note(self, done: Done) -> None:
        line = {
            "command": shlex.join(done.words),
            "exit": done.code,
            "seconds": round(done.seconds, 3),
            "out": done.out[-OUTPUT_CHARS_KEPT:],
            "err": done.err[-OUTPUT_CHARS_KEPT:],
        }
        self._commands.append(json.dumps(line, ensure_ascii=False).encode())
        self.evidence["commands.jsonl"] = ("commands", b"\n".join(self._commands) + b"\n")

    # the probe

    def far_end(self, kind: Kind = "keyed") -> BlockingFarEnd:
        """The far end of the drill of this kind: a process outside every machine, which counts."""
        if kind not in self.far_ends:
            self.far_ends[kind] = self._stack.enter_context(start_blocking(kind))
        return self.far_ends[kind]

    def addresses(self) -> dict[str, str]:
        """The environment of a probe on this machine."""
        for kind in ("keyed", "queryable", "unrepeatable"):
            self.far_end(kind)
        shadow = self.get_shadow()
        return {variable(kind): f"http://127.0.0.1:{shadow.forward(one.port)}" for kind, one in self.far_ends.items()}

    def own_environment(self) -> dict[str, str]:
        """For a program of the agent itself on this machine: requests of its tools, without a sandbox, are recorded."""
        return {RECORDER: str(self.get_shadow().forward(self.far_end("recording").port))}

    def start_worker(
        self, *options: str, home: Path | None = None, settings: Mapping[str, str] | None = None
    ) -> Worker:
        """The worker of the procedure, with the probe as its app."""
        log = self.folder / f"worker-{len(self.workers) + 1}.log"
        folder = str(home or self.values["home"])
        words = ("holdfast", "worker", APP, "--home", folder)
        if home is None:
            self.followed.append(shlex.join(words))
        with open(log, "wb") as sink:
            process = self.get_shadow().start(
                (*HOLDFAST, *words[1:], *options),
                more={**self.addresses(), **(settings or {})},
                stdout=sink,
                stderr=sink,
            )
        self.workers.append(Worker(process, log))
        return self.workers[-1]

    def submit(self, steps: Sequence[str], *, request: str = "", home: str = "", task: str = TASK, **more: Any) -> str:
        """Submit a probe; its task id. Any: JSON arguments of the probe."""
        args = json.dumps({"steps": list(steps), **more} if task == TASK else more)
        request = request or f"drill-{secrets.token_hex(8)}"
        words = ("submit", APP, args, "--task", task, "--request-id", request, "--no-follow", "--json")
        return str(self.good(*words, "--home", home or self.values["home"]).json()["task_id"])

    def task(self, task_id: str, *, home: str = "") -> Json:
        return self.good("task", "show", task_id, "--all", "--json", "--home", home or self.values["home"]).json()

    def effects_of(self, task_id: str) -> list[Effect]:
        """What the far ends did for this task, oldest first."""
        found = [one for end in self.far_ends.values() for one in end.ledger().effects if one.task == task_id]
        return sorted(found, key=lambda one: one.at_ms)

    def wait_task(self, task_id: str, *, seconds: float = WAIT_S) -> Json:
        """The task once it has ended or a person must decide."""
        end = time.monotonic() + seconds
        while (shown := self.task(task_id))["state"] not in ("succeeded", "failed", "cancelled", "parked"):
            if time.monotonic() > end:
                raise DrillFailed(f"task {task_id} is {shown['state']} after {seconds:g} s")
        return shown

    def verify_step(self, task_id: str, *, after_ms: int = 0) -> None:
        """The first step of this task after that time that is done at a far end *and* recorded as succeeded: the end of
        the recovery. Its time is the later of the two, by this machine's one wall clock."""
        end = time.monotonic() + WAIT_S
        while True:
            effects = {one.base: one for one in self.effects_of(task_id)}
            shown = self.task(task_id)
            for step in shown["steps"]:
                ended_ms = self.ms(step["ended"])
                effect = effects.get(step["ordinal"])
                if step["state"] == "succeeded" and effect is not None and ended_ms > after_ms:
                    at_ms = max(ended_ms, effect.at_ms, self.ms(self.events[-1].at))  # it ends the recovery
                    text = f"step {step['ordinal']} of {task_id}: succeeded; far end: {effect.id}, key {effect.key}"
                    self.event("first_verified_step", text, at_ms=at_ms)
                    return
            if time.monotonic() > end:
                raise DrillFailed(f"no step of task {task_id} is verified after {WAIT_S:g} s")

    @staticmethod
    def ms(text: str) -> int:
        """A time as `--json` prints it; 0 where there is none."""
        return int(datetime.fromisoformat(text).timestamp() * 1000) if text else 0

    def close(self) -> None:
        """End the far ends, and keep what they counted."""
        lines = [json.dumps(_plain(one)) for end in self.far_ends.values() for one in end.ledger().effects]
        if self.far_ends:
            self.evidence["far-ends.jsonl"] = ("far end", "".join(f"{line}\n" for line in lines).encode())
        for worker in self.workers:
            self.evidence[worker.log.name] = ("log", worker.log.read_bytes()[-OUTPUT_CHARS_KEPT:])
        self._stack.close()
        self.far_ends.clear()

    def kill_worker(self, worker: Worker) -> int:
        """SIGKILL to the process that works; its supervising parent stays. The wall clock, in ms."""
        pid = worker.serving()[-1]
        at_ms = time.time_ns() // 1_000_000
        if not self.own_shadow().signal(pid, signal.SIGKILL):
            raise DrillFailed(f"the worker process {pid} is gone already")
        return at_ms

    def hashes(self, folder: str) -> dict[str, str]:
        """The digest of each file below this folder of the machine."""
        done = self.run((*PYTHON, HASHES, folder))
        return {} if done.code else done.json()


def _plain(effect: Effect) -> Json:
    names = ("id", "at_ms", "kind", "key", "reference", "task", "step", "base", "fence")
    return {name: getattr(effect, name) for name in names}
