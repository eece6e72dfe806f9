"""One message sent, one message taken in: a whole agent, killed before each of its calls, over three relay processes.

`send`: a task of the agent sends; afterwards the recipient's mailboxes have the message once, at two relays at least.
`intake`: mail waits at all relays; whatever a relay was told to have been received is in the journal at that moment,
and in the end the journal has it as one task and no relay waits.

The agent's folders are put back before each trial; the relays run on. Each trial has a message of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import holdfast
from holdfast.app.mail.agent_post import AgentPost
from holdfast.app.mail.profile_job import renew_profile
from holdfast.errors import HoldfastError
from holdfast.host.sqlite import open_to_read
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.records.encodings import AgentId
from holdfast.journal.contract import Filter
from holdfast.layout.agent_home import AgentHome, load_home
from holdfast.relay.client.channel import RelayChannel
from holdfast.relay.client.mailbox import RelayMailbox
from holdfast.relay.client.profile import find_own_profile
from holdfast.relay.protocol.calls import Ack
from holdfast.relay.server.mail import HELD, WAITING
from holdfast.runtime.task.mail_task import MAIL_NAME, letter_of
from holdfast.testing.lab import fast, wait_until
from holdfast_proofs.identity_kills.trials import chosen
from holdfast_proofs.relay_kills.faults import plant
from holdfast_proofs.relay_kills.store import DAY_S, Figures, that
from holdfast_proofs.shim import Mode, Trace, arm
from holdfast_proofs.support.agents import make_unattended
from holdfast_proofs.support.relay_agents import PORT, RelayAgent
from holdfast_proofs.support.relays import RelayProcess, relays
from holdfast_proofs.support.shifted_clock import shift_clock

CALLS_MAX = 8_000
NEEDED = 2
ENDS_S = 120.0  # a hang is wrong; the machine may be busy
NEVER_S = 3_600.0
STOPPED_S = 6.0
SHORT_S = 4.0  # for a try that cannot end: its clock is wrong
FULL_S = 1.0
WRONG_CLOCK = ("-m", "holdfast_proofs.support.shifted_clock")


@holdfast.task
async def greet(run: holdfast.Run, to: str, body: str) -> Any:
    return await run.send(to, body, thread="t1")


@holdfast.on_mail
async def handle(run: holdfast.Run, letter: holdfast.Letter) -> None:
    pass


async def send(home: AgentHome, to: str, name: str) -> None:
    async with holdfast.open(home.journal, tasks=[greet], settings=fast()) as hf:
        await (await hf.submit(greet, request_id=name, to=to, body=name)).result(NEVER_S)


async def intake(home: AgentHome, _to: str, name: str) -> None:
    """Until every relay has heard that its mail was received."""
    async with holdfast.open(home.journal, tasks=[handle], settings=fast()) as hf:
        assert hf.engine is not None
        post = hf.engine._post
        assert isinstance(post, AgentPost)
        box = await post.mailbox()
        assert isinstance(box, RelayMailbox)

        async def has_ended() -> bool:
            ended = [done for body, done in await _mail_in(hf) if body == name]
            return _is_drained(box) and bool(ended) and all(ended)

        await wait_until(has_ended, timeout_s=NEVER_S)


def _is_drained(box: RelayMailbox) -> bool:
    boxes = list(box._boxes.values())
    heard = [one for one in boxes if one.token and one.after >= one.check.last and not one.unacked and not one.owed]
    return bool(boxes) and len(heard) == len(boxes) and box._arrived.empty() and not box._senders._wanted


async def _mail_in(hf: holdfast.Holdfast) -> list[tuple[Any, bool]]:
    """Body of each message in the journal, and whether its task has ended."""
    rows = await hf.journal.list_tasks(Filter(name=MAIL_NAME))
    return [
        (letter_of((await hf.journal.read_task(row.task_id)).args).body, row.state.value == "succeeded") for row in rows
    ]


ACTS: dict[str, Callable[[AgentHome, str, str], Awaitable[None]]] = {"send": send, "intake": intake}
CLOCKS = "-clocks"
NAMES = (*ACTS, *(f"{one}{CLOCKS}" for one in ACTS))


@dataclass
class Stage:
    """The agent, below `root`, with relays as its witnesses; and one that exists only at the relays."""

    root: Path
    running: list[RelayProcess]

    def prepare(self) -> None:
        self.peer = RelayAgent()
        make_unattended(self.root, [one.address for one in self.running])
        renew_profile(self.home)
        asyncio.run(self._register_peer())
        asyncio.run(send(self.home, self.address, "first"))
        asyncio.run(self.write(0, "first"))
        asyncio.run(intake(self.home, "", "first"))
        shutil.copytree(self.root, self._base)

    @property
    def home(self) -> AgentHome:
        return load_home(self.root / "ada")

    @property
    def id(self) -> AgentId:
        return read_own_log(self.root / "ada", PORT).id

    @property
    def address(self) -> str:
        return self.peer.id

    @property
    def _base(self) -> Path:
        return self.root.with_name("agent-base")

    def reset(self) -> None:
        shutil.rmtree(self.root)
        shutil.copytree(self._base, self.root)

    async def _register_peer(self) -> None:
        here = [(one.at.url, one.link.key) for one in self.running]
        for one in self.running:
            await one.witness.submit(self.peer.records[0].line())
            await one.link.put_profile(self.peer.id, self.peer.profile(1, here))
            channel = RelayChannel(one.at, PORT)
            login, _ = await channel.login(self.peer.certificate(), self.peer.key)
            known = Ack(contacts=(self.id,))  # of strangers a mailbox takes only 100
            await channel.acknowledge(self.peer.id, login.token, known)
            await channel.close()

    async def write(self, number: int, body: str) -> None:
        """Mail of the peer for the agent, at all relays."""
        profile = find_own_profile(self.home)
        assert profile is not None
        raw = self.peer.envelope_for(
            profile.record.id, profile.record.enc[-1], number, body=json.dumps(body).encode(), ttl_s=7 * DAY_S
        )
        for one in self.running:
            channel = RelayChannel(one.at, PORT)
            for _ in range(40):
                try:
                    answer, _ = await channel.submit(profile.record.id, [raw])
                    if answer.items[0].seq:
                        break
                except HoldfastError:
                    pass
                await asyncio.sleep(0.25)
            else:
                raise AssertionError("the relay does not take the mail of a trial")
            await channel.close()

    def entries(self, agent: str) -> dict[str, list[tuple[int, int, bytes]]]:
        """Number, state and message of each entry, by relay."""
        found: dict[str, list[tuple[int, int, bytes]]] = {}
        for one in self.running:
            db = open_to_read(one.folder / "relay.db")
            try:
                rows = db.execute(
                    "SELECT seq, state, dk FROM mail JOIN agent ON agent.number = mail.agent WHERE agent.id = ?",
                    (agent,),
                ).fetchall()
            finally:
                db.close()
            found[one.folder.name] = [(seq, state, bytes(dk or b"")) for seq, state, dk in rows]
        return found


class AgentTrials:
    """All trials of one act of an agent."""

    def __init__(self, stage: Stage, name: str, fault: str) -> None:
        self.stage, self.name, self.fault = stage, name, fault
        self.act = ACTS[name]
        self.trace = Trace.shared(CALLS_MAX)
        self.figures = Figures()
        self._number = 0

    def sweep(self, points: int) -> Figures:
        self._trial(Mode.TRACE, 0)
        total = self.figures.calls = self.trace.count
        syncs = sum(one.name in ("fsync", "fdatasync") for one in self.trace.calls())
        for mode, count in ((Mode.KILL_BEFORE, total), (Mode.FULL_ANY, total), (Mode.SYNC_ERROR, syncs)):
            for at in chosen(count, points):
                self._trial(mode, at)
        return self.figures

    def clocks(self) -> Figures:
        """A clock that is 24 hours off, and then right again: of the agent, of one relay, of all."""
        for ahead_s in (DAY_S, -DAY_S):
            self._judged(f"CLOCK of the agent {ahead_s:+} s", lambda name, s=ahead_s: self._wrong_clock(name, s))
            self._judged(f"CLOCK of a relay {ahead_s:+} s", lambda name, s=ahead_s: self._wrong_relays(name, s, 1))
            self._judged(f"CLOCK of all relays {ahead_s:+} s", lambda name, s=ahead_s: self._wrong_relays(name, s, 3))
        return self.figures

    def _trial(self, mode: Mode, at: int) -> None:
        def cut(name: str) -> None:
            child = self._begun(name, mode=mode, at=at)
            # After a sync that failed, a process closes its journal for good, and takes no more mail in.
            within_s = STOPPED_S if mode is Mode.SYNC_ERROR else ENDS_S
            code = self._ended(child, room=mode is Mode.FULL_ANY, within_s=within_s)
            if mode is Mode.TRACE:
                that(code == 0, f"it ends with {code} when nothing is done to it")

        self._judged(f"{mode.name} at {at}", cut)
        if mode is not Mode.TRACE and not self.trace.reached:
            self.figures.unreached += 1

    def _judged(self, what: str, cut: Callable[[str], None]) -> None:
        if self.fault and self.figures.wrong:
            return  # it was found
        self._number += 1
        name = f"{self.name} {self._number} {time.time_ns()}"
        stage = self.stage
        stage.reset()
        try:
            before = stage.entries(stage.peer.id)
            if self.name == "intake":
                asyncio.run(stage.write(time.time_ns(), name))
            cut(name)
            if self.name == "intake":
                self._check_acknowledged(name)
            code = self._ended(self._begun(name))
            that(code == 0, f"the next try ends with {code}")
            if self.name == "send":
                self._check_sent(before)
            else:
                self._check_received(name)
        except (HoldfastError, OSError, AssertionError) as error:
            text = f"{what} ({self._where()}): {type(error).__name__}: {error}"
            self.figures.wrong.append(text)
            print(text, file=sys.stderr, flush=True)
        self.figures.count(what.split(" ", 1)[0])

    def _wrong_clock(self, name: str, ahead_s: int) -> None:
        self._ended(self._begun(name, ahead_s=ahead_s), within_s=SHORT_S)

    def _wrong_relays(self, name: str, ahead_s: int, count: int) -> None:
        chosen_ones = self.stage.running[:count]
        for one in chosen_ones:
            one.kill()
            one.program = (*WRONG_CLOCK, str(ahead_s))
            one.start()
        try:
            few = count < NEEDED
            code = self._ended(self._begun(name), within_s=ENDS_S if few and self.name == "send" else SHORT_S)
            if few and self.name == "send":
                that(code == 0, f"with one wrong clock of three it ends with {code}")
        finally:
            for one in chosen_ones:
                one.kill()
                one.program = ("-m", "holdfast", "relay", "serve")
                one.start()

    # processes

    def _begun(self, name: str, *, mode: Mode | None = None, at: int = 0, ahead_s: int = 0) -> int:
        child = os.fork()
        if child:
            return child
        code = 1
        try:
            with open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), 2)
            if ahead_s:
                shift_clock(ahead_s)
            if mode is not None:
                plant(self.fault)
                arm(self.trace, mode, at=at, root=self.stage.root)
            asyncio.run(_done(self.act, self.stage.home, self.stage.address, name))
            code = 0
        except (HoldfastError, OSError):
            code = 3
        finally:
            os._exit(code)

    def _ended(self, child: int, *, room: bool = False, within_s: float = ENDS_S) -> int:
        """How it ended; killed after its time. With `room` a disk that is full has room again after a second."""
        last, waited_s, full_at = time.monotonic(), 0.0, 0.0
        while True:
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status)
            now = time.monotonic()
            waited_s += min(now - last, 0.1)  # a machine that was stopped for a while is not a hang
            last = now
            if room and self.trace.reached:
                full_at = full_at or now
                if now - full_at > FULL_S:
                    self.trace.give_room()
                    room = False
            if waited_s > within_s:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                that(within_s != ENDS_S, f"it has not ended after {within_s:g} s")
                return -signal.SIGKILL
            time.sleep(0.01)

    # judges

    def _check_sent(self, before: dict[str, list[tuple[int, int, bytes]]]) -> None:
        now = self.stage.entries(self.stage.peer.id)
        new = {relay: [row for row in rows if row not in before[relay]] for relay, rows in now.items()}
        messages = {row[2] for rows in new.values() for row in rows}
        that(len(messages) == 1, f"{len(messages)} messages arrived instead of one")
        that(all(len(rows) <= 1 for rows in new.values()), "a relay has the message twice")
        held = sum(bool(rows) for rows in new.values())
        that(held >= NEEDED, f"only {held} relays have the message")

    def _check_acknowledged(self, name: str) -> None:
        """What a relay was told to have been received is in the journal."""
        newest = {relay: max(rows) for relay, rows in self.stage.entries(self.stage.id).items()}
        told = [relay for relay, (_, state, _) in newest.items() if state == HELD]
        if told:
            bodies = [body for body, _ in asyncio.run(_journal(self.stage.home))]
            that(
                bodies.count(name) == 1,
                f"{told} heard that it was received, and the journal has it {bodies.count(name)} times",
            )

    def _check_received(self, name: str) -> None:
        bodies = [body for body, done in asyncio.run(_journal(self.stage.home)) if done]
        that(bodies.count(name) == 1, f"the journal has the message {bodies.count(name)} times")
        for relay, rows in self.stage.entries(self.stage.id).items():
            that(not [row for row in rows if row[1] == WAITING], f"mail still waits at {relay}")

    def _where(self) -> str:
        calls, acted = self.trace.calls(), self.trace.acted
        return f"{calls[acted - 1].name} {calls[acted - 1].where}" if 0 < acted <= len(calls) else ""


async def _journal(home: AgentHome) -> list[tuple[Any, bool]]:
    async with holdfast.open(home.journal, serve=False) as hf:
        return await _mail_in(hf)


async def _done(act: Callable[[AgentHome, str, str], Awaitable[None]], home: AgentHome, to: str, name: str) -> None:
    await act(home, to, name)


def sweep_agents(folder: Path, acts: list[str], points: int, fault: str) -> dict[str, Any]:  # Any: JSON
    found: dict[str, Any] = {}
    with relays(folder, "r1", "r2", "r3") as running:
        stage = Stage(folder / "agent", running)
        stage.prepare()
        for name in acts:
            act = name.removesuffix(CLOCKS)
            trials = AgentTrials(stage, act, fault)
            figures = trials.sweep(points) if act == name else trials.clocks()
            found[name] = figures.to_json()
            print(f"{name}: {figures.calls} calls, {figures.trials}, {len(figures.wrong)} wrong", file=sys.stderr)
    return found
