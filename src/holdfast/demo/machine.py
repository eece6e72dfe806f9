"""The demo's third scene: the machine is lost, and the agent returns from paper and one backup.

The snapshot is made before a second trip is paid. Then the payment is sent, and the machine is lost before the answer
is recorded anywhere. The restored agent does not know of that payment; it must not pay again, and it must not leave the
trip unfinished.

    ada/                    the agent's folder, with the journal
    machine/                vault, second key, witness, arbiter: with ada/, all that is lost
    place-1/, place-2/      backups; the first one is lost with the machine
    new-machine/            where the agent is restored

Everything is on one disk, because this is a demo; nothing that was lost is read again.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from holdfast.app.memory import add_line
from holdfast.backup.backups import open_backups
from holdfast.backup.open_engine import open_engine
from holdfast.backup.places.backup_places import PlaceRequest, open_places
from holdfast.backup.report import NowReport
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.ids import effect_key_from_bytes
from holdfast.core.step import StepState
from holdfast.demo.measured import Challenge, LostMachine, Recorder, finish, note_loss, note_restored, start_recorder
from holdfast.demo.scenes import CHARGE, MAIL, REQUEST
from holdfast.demo.stage import Stage, is_parked, now_ms
from holdfast.drills.host_loss import note_effects
from holdfast.errors import EngineMissing, EngineTooOld
from holdfast.host.private_files import create_durably, ensure_private_folder
from holdfast.identity.acts.make_agent import AgentPlan, make_agent
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.speaker.open_speaker import home_speaker
from holdfast.identity.statements.statements import find_fault_in_answer
from holdfast.identity.vault.slots import UnlockKey, file_key, new_unlock_text
from holdfast.identity.vault.vault import open_vault
from holdfast.journal.contract import Filter
from holdfast.journal.records import TaskView
from holdfast.layout.agent_home import AgentHome
from holdfast.layout.witness_address import WitnessAddress, WitnessFolder
from holdfast.recovery.recover_agent import RecoveredAgent, RecoveryTarget, recover_agent
from holdfast.recovery.survey import Evidence, survey_evidence
from holdfast.surfaces.register import look_now

AGENT = "ada"
CHALLENGE_BYTES = 16
FACT = "Ada wants an aisle seat"
TASKS_MAX = 1_000
WORDS_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Machine:
    """One host of the demo."""

    folder: Path

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def unlocking(self, name: str) -> list[UnlockKey]:
        """A key file, so that the demo asks for no passphrase."""
        path = self.folder / f"unlock-{name}"
        ensure_private_folder(self.folder)
        create_durably(path, new_unlock_text(SystemEntropy()))
        return [file_key(path, path.read_bytes())]


async def give_identity(
    home: Path, machine: Machine, *, name: str = AGENT, witnesses: tuple[WitnessAddress, ...] = (), arbiter: str = ""
) -> tuple[AgentHome, str]:
    """What `holdfast init` does, also for an agent that has a journal: its home, and the words."""
    words: list[str] = []
    plan = AgentPlan(
        name=name,
        folder=home,
        vault=machine / "vault",
        second=machine / "second",
        witnesses=witnesses or (WitnessFolder(machine / "witness"),),
        arbiter=arbiter or str(machine / "arbiter"),
        keys=machine.unlocking("vault"),
        second_keys=machine.unlocking("second"),
    )
    made = await make_agent(plan, show=lambda one: words.extend(one.words), entropy=SystemEntropy(), port=Sodium())
    return made.home, " ".join(words)


async def back_up(home: AgentHome, places: list[Path]) -> NowReport:
    """Two places, one snapshot in both, restored from both for a test."""
    kept = await open_places(home)
    for number, place in enumerate(places, 1):
        ensure_private_folder(place)
        await kept.add(PlaceRequest(name=f"place-{number}", address=str(place)))
    return await (await open_backups(home)).now()


async def find_engine_trouble(base: Path) -> str:
    """Why backups are impossible here, with a hint; empty if they are possible."""
    try:
        await open_engine(base=base)
    except (EngineMissing, EngineTooOld) as error:
        return f"{error.message} ({error.hint})"
    return ""


def lose(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder)


async def bring_back(home: Path, words: str, place: Path, machine: Machine) -> RecoveredAgent:
    """What `holdfast recover` does on a new machine."""
    ensure_private_folder(machine.folder)
    evidence = Evidence(places=(str(place),), words=words)
    engine = await open_engine(base=machine.folder / "borg")
    survey = await survey_evidence(evidence, home, engine=engine, port=Sodium())
    target = RecoveryTarget(
        folder=home,
        vault=machine / "vault",
        second=machine / "second",
        spare_witness=WitnessFolder(machine / "witness"),
        keys=machine.unlocking("vault"),
        second_keys=machine.unlocking("second"),
        arbiter=str(machine / "arbiter"),
    )
    return await recover_agent(
        survey, evidence, target, clock=SystemClock(), entropy=SystemEntropy(), port=Sodium(), tell=lambda _: None
    )


def ask_who(home: AgentHome, before: KeyLog) -> Challenge:
    """Whether the agent in this folder answers a fresh challenge under the id of that log.
    Judged by the log that it shows now, which must begin as the old one did."""
    port, clock = Sodium(), SystemClock()
    log = read_own_log(home.folder, port)
    challenge = SystemEntropy().bytes(CHALLENGE_BYTES).hex()
    if log.id != before.id or home.vault is None:
        return Challenge(challenge=challenge, answer="", same=False)
    with open_vault(home.vault) as vault:
        answer = home_speaker(home.folder, vault, clock).answer(challenge)
    now = clock.wall_ms() // 1000
    same = find_fault_in_answer(answer, log, challenge=challenge, now=now, port=port) is None
    return Challenge(challenge=challenge, answer=answer.line().decode(), same=same)


def knows(home: AgentHome, fact: str) -> bool:
    """Whether the fact is in the agent's own files."""
    files = [home.memory_file, *sorted(home.days.glob("*.md"))]
    return any(fact in path.read_text() for path in files if path.is_file())


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """The agent after the loss; with `missing` the scene was skipped."""

    task_id: str = ""
    parked: int = 0
    identity_same: bool | None = None
    memory_kept: bool | None = None
    restore_s: float | None = None  # from the words to a folder that can run
    report: LostMachine | None = None
    missing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """What a person has after the loss: paper, one place, and what others remember of the agent."""

    words: str
    log: KeyLog
    task_id: str
    recorder: Recorder  # what was noted for the report; it reads nothing of the lost machine


async def lose_machine(stage: Stage) -> Return:
    stage.teller.scene("3  The machine is lost: paper and one backup")
    trouble = await find_engine_trouble(stage.folder / "borg")
    if trouble:
        stage.tell("backup", f"this scene is skipped: {trouble}")
        return Return(missing=trouble)
    remains = await _live_and_die(stage)
    return await _come_back(stage, remains)


async def _live_and_die(stage: Stage) -> Remains:
    began, began_ms = time.monotonic(), now_ms()
    machine = Machine(stage.folder / "machine")
    if stage.worker is not None:
        await stage.worker.stop()
    await stage.close_journal()
    home, words = await give_identity(stage.home, machine)
    log = await asyncio.to_thread(read_own_log, home.folder, Sodium())
    stage.tell("init", f"{AGENT} is {log.id}")
    stage.tell("paper", f"24 words: {' '.join(words.split()[:WORDS_SHOWN])} ...")
    await add_line(home, text=FACT, to="MEMORY", origin="user")
    stage.tell("memory", f"remembers: {FACT}")
    hf = await stage.open_journal()
    task = await hf.submit("book_trip", request=REQUEST, request_id="order-78")
    stage.tell("journal", f"task {task.id} accepted: book_trip {REQUEST!r}")
    made = await back_up(home, stage.places)
    for one in made.places:
        text = f"snapshot {made.snapshot.seq}: {made.snapshot.files} files, restored for a test: "
        stage.tell(one.place, text + ("equal" if one.verified else f"NOT equal: {one.message}"))
    register = await look_now(home)
    await stage.hold_next("payment")
    worker = await stage.start_worker()
    lost_ms = await stage.kill_inside("payment", worker)
    key = effect_key_from_bytes((await task.view()).steps[CHARGE].effect_key)
    done = await stage.get_payment(task.id)
    stage.tell("payment", f"{done.id}: charged, effect key {key}", at_ms=done.at_ms)
    await stage.close_journal()
    recorder = await start_recorder(home, register, place=stage.places[1], began=began, began_ms=began_ms)
    lose(home.folder, machine.folder, stage.places[0])
    note_loss(recorder, lost_ms=lost_ms, baseline=f"task {task.id}: a payment is under way")
    stage.tell("kill -9", "the machine is lost, with folder, journal, vault, witness and place-1", at_ms=lost_ms)
    return Remains(words=words, log=log, task_id=task.id, recorder=recorder)


async def _come_back(stage: Stage, remains: Remains) -> Return:
    stage.tell("recover", "on a new machine, with the 24 words and place-2")
    began = time.monotonic()
    machine = Machine(stage.folder / "new-machine")
    back = await bring_back(stage.home, remains.words, stage.places[1], machine)
    restore_s = time.monotonic() - began
    suspect = 0 if back.journal is None else back.journal.open_tasks
    stage.tell("recover", f"restored in {restore_s:.1f} s; open tasks in doubt: {suspect}")
    asked = await asyncio.to_thread(ask_who, back.home, remains.log)
    note_restored(remains.recorder, back, asked, seconds=restore_s)
    stage.tell("identity", "answers a challenge under " + ("the same id" if asked.same else "ANOTHER id"))
    kept = await asyncio.to_thread(knows, back.home, FACT)
    stage.tell("memory", f"remembers: {FACT}" if kept else "has FORGOTTEN it")
    task = (await stage.open_journal()).task(remains.task_id)
    worker = await stage.start_worker()
    remains.recorder.event("connectivity_restored", f"worker {worker.pid} is started")
    parked = await is_parked(task, worker)
    view = await task.view()
    for seen in (await stage.far_ends["payment"].ledger()).requests[-1:]:
        stage.tell("payment", f"{seen.status} {seen.outcome}: it knows this key", at_ms=seen.at_ms)
    mail = view.steps.get(MAIL)
    if mail is not None:
        stage.tell(f"worker {worker.pid}", f"step 3 send_mail: {mail.state}", at_ms=mail.closed_ms)
    stage.tell("journal", f"task {task.id} {view.finished}", at_ms=view.ended_ms or now_ms())
    report = await _document(stage, remains, back, view)
    return Return(
        task_id=task.id,
        parked=int(parked),
        identity_same=asked.same,
        memory_kept=kept,
        restore_s=round(restore_s, 3),
        report=report,
    )


async def _document(stage: Stage, remains: Remains, back: RecoveredAgent, view: TaskView) -> LostMachine:
    """The drill report of this loss: what the far ends counted, and when the first step was verified."""
    recorder = remains.recorder
    ledgers = {name: await far_end.ledger() for name, far_end in stage.far_ends.items()}
    effects = [one for page in ledgers.values() for one in page.effects if one.task == view.task_id]
    effects.sort(key=lambda one: one.at_ms)
    charge = view.steps.get(CHARGE)
    charged = next((one for one in effects if one.base == CHARGE), None)
    if charge is not None and charge.state == StepState.SUCCEEDED and charged is not None:
        text = f"step {CHARGE} of {view.task_id}: succeeded; far end: {charged.id}"
        recorder.event("first_verified_step", text, at_ms=max(charge.closed_ms, charged.at_ms))
    recorder.event("steady_state", f"task {view.task_id}: {view.finished}", at_ms=view.ended_ms or now_ms())
    note_effects(recorder.run, effects, ledgers, before=1, expected=2, replayed=1)
    rows = await stage.hf.journal.list_tasks(Filter(limit=TASKS_MAX))
    report = await finish(recorder, back, tasks={str(row.task_id) for row in rows})
    stage.tell("drill", f"{report.title}: {report.verdict}; the agent has signed the report")
    return report
