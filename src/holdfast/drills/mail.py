"""Drills of mail: a relay is lost, all relays are lost, and the agent is recovered while mail comes in.

The shadow has relays of its own and a second agent, the peer, which writes to a copy of the agent. The agent's real
relays are out of reach there, and the copy leaves them before the drill begins.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from holdfast.drills.backups import get_place
from holdfast.drills.host_loss import describe, measure_effects
from holdfast.drills.run import HOLDFAST, WAIT_S, DrillFailed, DrillRun, Json
from holdfast.drills.work import no_loss
from holdfast.errors import NotProven
from holdfast.surfaces.report import ConnectivityResult

FOLDER = "/srv/holdfast-drill-mail"
PEER = f"{FOLDER}/peer"
FIRST_PORT = 9471  # the shadow's loopback is its own
COUNT = 3
STOP_S = 30.0
_RELAY = 'umask 077; mkdir -p "$1"; printf \'registration = "open"\\n\' > "$1/relay.toml"'
_SERVE = 'echo $$ > "$1.pid"; shift; exec "$@"'
_LOSE = 'kill -9 "$(cat "$1.pid")"; rm -rf "$1"'
_PEER = (
    'umask 077; cd "$1"; shift; "$@" init peer --home peer --second second --witness witness --vault vault '
    "--arbiter arbiter --unlock-file unlock --second-unlock-file unlock2 --words-fd 3 3>> words"
)
_END = 'kill "$(cut -d " " -f 4 "/proc/$1/stat")"'  # the supervising parent: it ends its worker in order


@dataclass(slots=True)
class Stage:
    """Relays, the peer and what it has sent."""

    run: DrillRun
    relays: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict[str, "subprocess.Popen[bytes]"])
    sent: int = 0
    _made: int = 0
    _fault_at: float = 0.0
    _relays_up: int = 0
    _sent_before: int = 0
    _failover_s: float | None = None

    @property
    def home(self) -> str:
        return self.run.values["home"]

    def add_relays(self, count: int = COUNT) -> None:
        """Start relays, and let both agents use them."""
        addresses = [self._start() for _ in range(count)]
        for home in (self.home, PEER):
            for address in addresses:
                self.run.good("relay", "add", address, "--home", home)

    def _start(self) -> str:
        number, run = self._made, self.run
        self._made += 1
        folder, port = f"{FOLDER}/relay-{number}", FIRST_PORT + number
        run.run(("sh", "-ec", _RELAY, "sh", folder))
        words = ("relay", "serve", "--folder", folder, "--listen", f"127.0.0.1:{port}", "--json")
        serve = ("sh", "-c", _SERVE, "sh", folder, *HOLDFAST, *words)
        process = run.get_shadow().start(serve, stderr=subprocess.DEVNULL)
        assert process.stdout is not None  # it is a pipe
        line = process.stdout.readline()
        try:
            address = str(json.loads(line)["address"])
        except (ValueError, KeyError):
            raise DrillFailed(f"relay {number} does not start") from None
        self.relays[address.partition("#")[0]] = process
        return address

    def lose(self, url: str) -> None:
        """The relay dies, and its disk with it."""
        number = int(url.rpartition(":")[2]) - FIRST_PORT
        self.run.run(("sh", "-c", _LOSE, "sh", f"{FOLDER}/relay-{number}"))
        self.relays.pop(url).wait(STOP_S)

    def fault(self, what: str, *, how: str, target: str) -> None:
        """Connectivity is measured from here."""
        self.run.fault(what, how=how, target=target)
        self._fault_at, self._relays_up, self._sent_before = time.monotonic(), len(self.relays), self.sent

    def connectivity(self, handled: Collection[int]) -> ConnectivityResult:
        return ConnectivityResult(
            relays_up=self._relays_up,
            failover_s=self._failover_s,
            sent=self.sent - self._sent_before,
            received=sum(number > self._sent_before for number in handled),
            lost=self.sent - len(handled),
        )

    def send(self, *, timeout_s: float = WAIT_S) -> Json:
        """The peer sends the next message; what the command says."""
        self.sent += 1
        words = ("mail", "send", self.run.production.log.id, json.dumps({"number": self.sent}), "--json-body")
        return self.run.good(*words, "--timeout", str(timeout_s), "--json", "--home", PEER).json()

    def inbox(self) -> dict[int, Json]:
        """The messages that the agent has, by number. One that is there twice fails the drill."""
        found = self.run.good("mail", "inbox", "--json", "--home", self.home).json()["mail"]
        by_number = {int(one["body"]["number"]): one for one in found}
        if len(by_number) != len(found):
            raise DrillFailed(f"{len(found)} messages are stored, and {len(by_number)} of them differ")
        return by_number

    def wait_handled(self, number: int, *, seconds: float = WAIT_S) -> str:
        """The task of this message, once it has succeeded."""
        end = time.monotonic() + seconds
        while (one := self.inbox().get(number)) is None or one["state"] != "succeeded":
            if time.monotonic() > end:
                raise DrillFailed(f"message {number} is {'lost' if one is None else one['state']} after {seconds:g} s")
            time.sleep(0.1)
        if self._fault_at and number > self._sent_before and self._failover_s is None:
            self._failover_s = round(time.monotonic() - self._fault_at, 3)
        return str(one["task_id"])

    def end_worker(self) -> None:
        worker = self.run.workers[-1]
        self.run.run(("sh", "-c", _END, "sh", str(worker.serving()[-1])))
        try:
            worker.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise DrillFailed("the worker does not stop") from None


def open_stage(run: DrillRun) -> Stage:
    """In a running copy: relays, a peer, a worker, and a first message that was handled."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise NotProven("this machine cannot run a relay", hint="pip install 'holdfast[relay]'")
    stage = Stage(run)
    run.run(("sh", "-c", 'umask 077; mkdir -p "$1"', "sh", FOLDER))
    made = run.run(("sh", "-ec", _PEER, "sh", FOLDER, *HOLDFAST), shown=("holdfast", "init", "peer"))
    if made.code:
        raise DrillFailed(f"the peer cannot be made: {made.said}")
    for one in run.good("relay", "list", "--json", "--home", stage.home).json()["relays"]:
        if one["listed"]:
            run.holdfast("relay", "remove", one["address"], "--home", stage.home)
    stage.add_relays()
    run.start_worker().wait_serving()
    stage.send()
    stage.wait_handled(1)
    return stage


def relay_lost(run: DrillRun) -> None:
    with run.running_copy():
        stage = open_stage(run)
        lost = next(iter(stage.relays))
        run.values["relay"] = lost
        run.event("baseline_taken", f"one message was handled; {describe(run)}")
        stage.lose(lost)
        stage.fault("a relay is lost", how="it is killed, and its disk is gone", target=lost)
        lost_ms = time.time_ns() // 1_000_000
        run.event("recovery_started", "the next message")
        stage.send()
        task = stage.wait_handled(2)
        run.event("state_restored", "two relays hold the message")
        run.verify_step(task, after_ms=lost_ms)
        said = run.act("see which relay is gone", "--json", must=False, why="its JSON is read")
        run.check("named", said.code != 0 and lost in said.out, f"relay doctor: exit {said.code}")
        run.act("leave it")
        stage.add_relays(1)
        stage.send()
        stage.wait_handled(3)
        listed = run.act("see that all have the newest profile", "--json", why="its JSON is read").json()["relays"]
        behind = [one["address"] for one in listed if one["listed"] and one["error"]]
        run.check("reachable", not behind, ", ".join(behind) or f"{COUNT} relays answer")
        _measure(run, stage)


def all_relays_lost(run: DrillRun) -> None:
    with run.running_copy():
        stage = open_stage(run)
        run.event("baseline_taken", f"one message was handled; {describe(run)}")
        for url in list(stage.relays):
            stage.lose(url)
        stage.fault("all relays are lost", how="they are killed, and their disks are gone", target="every relay")
        lost_ms = time.time_ns() // 1_000_000
        waits = stage.send(timeout_s=3.0)["sent"] is None
        run.check("waits", waits, "the message waits with its sender" if waits else "the message was lost or sent")
        run.event("recovery_started", "new relays", actor="operator")
        run.step("for each of them: `holdfast relay add ADDRESS`")
        stage.add_relays()
        run.event("state_restored", f"{COUNT} new relays have both profiles")
        run.start_worker(home=Path(PEER))
        run.verify_step(stage.wait_handled(2, seconds=2 * WAIT_S), after_ms=lost_ms)
        run.act("see what did not arrive", must=False)
        _measure(run, stage)


def mail_during_recovery(run: DrillRun) -> None:
    place, home = get_place(run), run.production.home
    with run.running_copy(own=True):
        stage = open_stage(run)
        run.good("backup", "now", place.name, "--home", stage.home)
        stage.send()
        stage.wait_handled(2)
        time.sleep(1.0)  # its acknowledgement: the relays hold it from now on
        run.event("baseline_taken", f"the snapshot lacks one message that was handled; {describe(run)}")
        stage.end_worker()
        run.prepare("rm", "-rf", str(home.state))
        stage.fault("the agent's folder is lost", how="it is removed; an older snapshot is restored", target="journal")
        lost_ms = time.time_ns() // 1_000_000
        stage.send()
        run.event("recovery_started", f"from place {place.name}; the keys stay", actor="operator")
        keep = ("--keep-keys", "--vault", run.values["vault"], "--place", run.values["place"])
        run.good("recover", *keep, "--home", stage.home, "--yes", "--json")
        run.event("state_restored", "the snapshot is restored")
        run.start_worker().wait_serving()
        stage.wait_handled(2, seconds=2 * WAIT_S)
        run.event("journal_reconciled", "held mail was delivered again")
        run.verify_step(stage.wait_handled(3), after_ms=lost_ms)
        run.act("see what came")
        _measure(run, stage)
        run.act("see what waits for a person", must=False)


def _measure(run: DrillRun, stage: Stage) -> None:
    """Every message was handled, and its effect was made once."""
    inbox = stage.inbox()
    tasks = [str(one["task_id"]) for one in inbox.values()]
    run.connectivity = stage.connectivity(inbox)
    run.event("steady_state", f"{stage.sent} messages, {len(tasks)} tasks")
    run.check("nothing lost", len(tasks) == stage.sent, f"{len(tasks)} of {stage.sent} messages were handled")
    measure_effects(run, tasks, before=1, expected=stage.sent)
    no_loss(run)
