"""One simulated world: a machine, its journal, its workers, its far ends, and what befalls them.

Everything in it follows from the seed. The world kills, pauses, stops and restarts processes,
sets clocks, fills the disk and restarts the machine; it hears of every request that leaves and
of every record that is committed, and keeps what it finds wrong in `breaches`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from holdfast.core.ordinal import base
from holdfast.journal.records import ENDED, TaskState
from holdfast.layout.engine_settings import Settings
from holdfast_proofs.simulate.faults import LEASE_TTL_S, Dice, Profile
from holdfast_proofs.simulate.parts.clock import SimClock
from holdfast_proofs.simulate.parts.far_end import FarEnd, Request
from holdfast_proofs.simulate.parts.foreign import Foreign
from holdfast_proofs.simulate.parts.ledger import Ledger
from holdfast_proofs.simulate.parts.loop import VirtualLoop
from holdfast_proofs.simulate.parts.process import Process
from holdfast_proofs.simulate.parts.store import Copy, SimStore
from holdfast_proofs.simulate.parts.tools import TOOLS
from holdfast_proofs.simulate.parts.worker import Worker
from holdfast_proofs.simulate.trace import Trace

RESTART_S = (0.05, 2.0)
PAUSES_S = ((0.2, LEASE_TTL_S), (LEASE_TTL_S, 2.5 * LEASE_TTL_S))  # within a lease, beyond it
LONG_PAUSE_S = (1.5 * LEASE_TTL_S, 4 * LEASE_TTL_S)  # others take over, ask and send meanwhile
FREEZE_S = (0.5, 20.0)
COPY_S = (0.0, 8.0)  # when the copy is made, and how old it is when it is needed
COPY_OLD_S = (0.05, 10.0)
FULL_S = (0.5, 12.0)
RESTING = frozenset((*ENDED, TaskState.PARKED, TaskState.WAITING))
CLOCK_JUMPS_MS = (1_000, 10_000, 60_000, 86_400_000, 10 * 365 * 86_400_000)

Full = Literal["", "begins", "all"]


class SimKeys:
    """Keys of a world; the memory journal seals nothing."""

    k_effect = b"the key of a simulated world...."
    current_journal_key = 1

    def journal_key(self, key_id: int) -> bytes:
        raise LookupError(key_id)


class World:
    def __init__(self, seed: int, profile: Profile, dice: Dice) -> None:
        self.seed = seed
        self.profile = profile
        self.dice = dice
        self.loop = VirtualLoop()
        self.clock = SimClock(self.loop)
        self.trace = Trace(self.loop)
        self.ledger = Ledger()
        self.store = SimStore(self.ledger, self.trace, self.clock)
        self.far_end = FarEnd(self.loop, dice, profile, self.trace)
        self.keys = SimKeys()
        self.sessions: dict[str, Process] = {}
        self.workers: dict[int, Worker | None] = {}
        self.full: Full = ""
        self.reboots = 0
        self.restores = 0
        self.on_restore: Callable[[], None] = lambda: None
        self.crashes = 0
        self.pauses = 0
        self.submitted = False  # all that there is
        self.granted: set[tuple[str, str]] = set()  # approvals, by task and ordinal
        self.requests: dict[tuple[str, str], int] = {}  # that left, per task and ordinal
        self.foreign = Foreign(self) if profile.scope else None
        self._breaches: list[str] = []
        self._started = 0
        self._frozen: list[Process] = []  # what runs again when the machine does

    # what the processes are told

    def settings(self, name: str) -> Settings:
        return Settings(
            lease_ttl_s=LEASE_TTL_S,
            renew_every_s=LEASE_TTL_S * 0.3,
            sweep_every_s=0.5,
            concurrency=8,
            grace_s=0.5,
            worker_name=name,
            keep_days=100_000,
            tombstone_days=100_000,
        )

    def entropy_seed(self, name: str) -> int:
        return int.from_bytes(f"{self.seed} {name}".encode(), "big")

    # what is found

    @property
    def breaches(self) -> list[str]:
        return [*self._breaches, *self.ledger.breaches]

    def breach(self, what: str) -> None:
        self.trace.note("BREACH", what)
        self._breaches.append(what)

    def sent(self, process: Process, request: Request, *, attempt: int) -> None:
        """A request leaves the process."""
        self.trace.note(process.name, f"sends {request} attempt {attempt}")
        self.requests[request.place] = self.requests.get(request.place, 0) + 1
        wrong = self.ledger.send_breach(request.task_id, request.ordinal, attempt=attempt, args={"what": request.what})
        if wrong:
            self.breach(wrong)
        if TOOLS[request.tool].needs_approval and request.place not in self.granted:
            self.breach(f"T2: {request.task_id}/{request.ordinal} was sent without its approval")

    def results(self, task_id: str, ordinal: str) -> list[object]:
        """What the far end did for this step, in whichever of its retry slots."""
        done, slot = self.far_end.done, base(ordinal)
        places = [place for place in done if place[0] == task_id and base(place[1]) == slot]
        return [result for place in places for result in done[place]]

    def settled(self) -> bool:
        """Whether every task has ended or waits for a person."""
        tasks = self.store.tasks
        return self.submitted and all(cell.state in RESTING for cell in tasks.values())

    def ended(self) -> bool:
        """Whether every task has ended."""
        tasks = self.store.tasks
        return self.submitted and all(cell.state in ENDED for cell in tasks.values())

    # what befalls it

    def start_workers(self) -> None:
        for slot in range(self.profile.workers):
            self._start(slot)

    def start_faults(self) -> None:
        profile = self.profile
        self._every(profile.crash_every_s, lambda: self._strike(self.crash))
        self._every(profile.pause_every_s, lambda: self._strike(self.pause))
        self._every(profile.stop_every_s, lambda: self._strike(self._stop))
        self._every(profile.reboot_every_s, self._reboot)
        self._every(profile.clock_every_s, self._set_clock)
        self._every(profile.freeze_every_s, self.freeze)
        self._every(profile.full_every_s, self._fill)
        if profile.restore:
            self.loop.at(self.dice.seconds(*COPY_S), self._copy)

    def stop_faults(self) -> None:
        """From now on nothing goes wrong; what was paused runs again."""
        self.trace.note("world", "no more faults")
        self.dice.stopped = True
        self.full = ""
        self._thaw()
        for worker in self.workers.values():
            if worker is not None and worker.paused:
                self._resume(worker)

    def crash(self, process: Process, where: str = "any place") -> None:
        """SIGKILL: no code of this process runs again; the kernel releases its locks."""
        if not process.alive:
            return
        self.trace.note(process.name, f"DIES: {where}")
        process.alive = False
        process.held.clear()
        self.crashes += 1
        for session_id, owner in self.sessions.items():
            if owner is process and self.store.sessions[session_id].locked:
                self.store.kill_session(session_id)
        for slot, worker in self.workers.items():
            if worker is process:
                self.workers[slot] = None
                self.loop.at(self.dice.seconds(*RESTART_S), self._start, slot)

    def pause(self, process: Process, where: str = "any place", *, long: bool = False) -> None:
        """SIGSTOP, for a while."""
        if not process.alive or process.paused:
            return
        pause_s = self.dice.seconds(*(LONG_PAUSE_S if long else self.dice.pick(PAUSES_S)))
        self.trace.note(process.name, f"PAUSES for {pause_s:.3f} s: {where}")
        process.paused = True
        self.pauses += 1
        self.loop.at(pause_s, self._resume, process)

    def kill_all(self) -> None:
        for slot in range(self.profile.workers):
            worker = self.workers.pop(slot, None)
            if worker is not None:
                self.crash(worker, "the end of the world")

    def _resume(self, process: Process) -> None:
        if self.clock.frozen:
            self._frozen.append(process)
        elif process.alive and process.paused:
            self.trace.note(process.name, "runs again")
            self.loop.resume(process)

    def _start(self, slot: int) -> None:
        if slot not in self.workers and self._started >= self.profile.workers:
            return  # the world is ending
        self._started += 1
        name = f"worker {self._started}"
        worker = self.workers[slot] = Worker(self, name)
        if self.clock.frozen:
            worker.paused = True
            self._frozen.append(worker)
        self.loop.start(worker.main(), worker)
        if self.foreign is not None and slot == 0:
            self.loop.start(self.foreign.run(worker.hf), worker)

    def _stop(self, process: Process) -> None:
        """SIGTERM."""
        if isinstance(process, Worker):
            self.trace.note(process.name, "is asked to stop")
            self.loop.start(_call(process.engine.stop), process)

    def _strike(self, act: Callable[[Process], None]) -> None:
        living = [one for one in self.workers.values() if one is not None]
        if living:
            act(self.dice.pick(living))

    def _reboot(self) -> None:
        self.trace.note("world", "the machine restarts")
        self.reboots += 1
        for worker in list(self.workers.values()):
            if worker is not None:
                self.crash(worker, "the machine restarts")
        self._frozen.clear()
        self.clock.reboot()

    def freeze(self) -> None:
        """The machine is paused as a whole, as a virtual machine can be; the world goes on."""
        if self.clock.frozen:
            return
        freeze_s = self.dice.seconds(*FREEZE_S)
        self.trace.note("world", f"the machine stands still for {freeze_s:.3f} s")
        self.clock.freeze()
        for worker in self.workers.values():
            if worker is not None and not worker.paused:
                worker.paused = True
                self._frozen.append(worker)
        self.loop.at(freeze_s, self._thaw)

    def _thaw(self) -> None:
        if not self.clock.frozen:
            return
        self.trace.note("world", "the machine runs again")
        self.clock.thaw()
        frozen, self._frozen = self._frozen, []
        for process in frozen:
            self._resume(process)

    def _copy(self) -> None:
        self.trace.note("world", "a copy of the journal is made")
        self.loop.at(self.dice.seconds(*COPY_OLD_S), self._restore, self.store.copy())

    def _restore(self, copy: Copy) -> None:
        """The journal is lost; its copy takes its place, and the clients ask again."""
        if self.dice.stopped:
            return
        self.trace.note("world", "the journal is restored from the copy")
        self.restores += 1
        for worker in list(self.workers.values()):
            if worker is not None:
                self.crash(worker, "the journal is restored")
        self.store.restore(copy)
        self.on_restore()

    def _set_clock(self) -> None:
        jump_ms = self.dice.pick(CLOCK_JUMPS_MS) * self.dice.pick((1, -1))
        self.trace.note("world", f"the wall clock is set by {jump_ms / 1000:g} s")
        self.clock.set_wall(jump_ms)

    def _fill(self) -> None:
        if not self.full:
            self.full = self.dice.pick(("begins", "all"))
            self.trace.note("world", f"the disk is full: {self.full}")
            self.loop.at(self.dice.seconds(*FULL_S), self._free)

    def _free(self) -> None:
        self.full = ""
        self.trace.note("world", "there is space again")

    def _every(self, mean_s: float, act: Callable[[], None]) -> None:
        if mean_s <= 0.0:
            return

        def strike() -> None:
            if not self.dice.stopped:
                act()
                self._every(mean_s, act)

        self.loop.at(self.dice.interval(mean_s), strike)


async def _call(act: Callable[[], None]) -> None:
    act()
