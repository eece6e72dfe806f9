"""Every drill on an example agent: green as it is, red with a fault planted in its shadow.

    python -m holdfast_proofs.drills
    python -m holdfast_proofs.drills host-loss old-backup

The agent has an identity, a witness, an arbiter, two places and a journal with a model call. A fault is planted from
outside the drill, at one of its events, in its shadow or at its far ends; the drill does not know of it. With the
fault the drill must fail, and the check that fails must be the one that is named here. Targets of time are not judged:
this machine may be busy.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import holdfast
from holdfast.app.loading import load_app
from holdfast.backup.backups import open_backups
from holdfast.backup.places.backup_places import PlaceRequest, open_places
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.journal_address import JournalAddress
from holdfast.drills.catalogue import DRILLS, get_drill
from holdfast.drills.execute import DrillDone, run_drill
from holdfast.drills.mail import PEER
from holdfast.drills.run import PYTHON, DrillKey, DrillOrder, DrillRun
from holdfast.drills.servers import HERE, PORTS, SQL
from holdfast.drills.tool_files import CONTROL
from holdfast.host.private_files import ensure_private_folder, write_atomically
from holdfast.identity.acts.make_agent import AgentPlan, make_agent
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.secret_bytes import KeyPair
from holdfast.identity.speaker.open_speaker import open_speaker
from holdfast.identity.statements.statements import Relay
from holdfast.identity.vault.slots import UnlockKey, file_key, new_unlock_text
from holdfast.layout.agent_home import AgentHome, load_home
from holdfast.layout.witness_address import WitnessFolder
from holdfast.memory.heartbeat import BEGIN, END
from holdfast.recovery.adopt import prepare, survey_folder
from holdfast.recovery.copy_journal import copy_journal
from holdfast.relay.client.profile import publish_profile
from holdfast.runtime.models.reply import Reply, Route, StopReason, Text
from holdfast.surfaces.procedure import Parts
from holdfast.surfaces.procedures import get_procedure
from holdfast.surfaces.report import DrillReport
from holdfast_proofs.runner import Proof, Result
from holdfast_proofs.support.postgres import find_oldest, started

NO_HURRY_S = 3_600.0
LEASE_S = 2.0  # of the example agent: a drill waits for the lease of a machine that died
AGENT = "ada"
MAIL = ("relay-lost", "all-relays-lost", "mail-during-recovery")
SHARED = ("region-loss", "store-failover")  # drills of a journal in PostgreSQL


class Parrot:
    """A model that needs no network."""

    async def ask(self, request: object, **_more: object) -> Reply:
        usage = holdfast.Usage(input_tokens=1, output_tokens=1)
        route = Route(endpoint="first", region="", wire="openai")
        return Reply(parts=(Text(text="yes"),), stop=StopReason.END, usage=usage, route=route)


MODEL = holdfast.Model("model-1", Parrot())


@holdfast.task
async def chat(run: holdfast.Run) -> str:
    talk = run.talk()
    talk.say("hello")
    return (await run.ask(MODEL, talk)).text


# The agent's own app, whose tools the drill `tool-files` calls: this one leaves nothing outside.
OWN_APP = """
import holdfast

@holdfast.tool(effect=holdfast.Idempotent())
async def keep(call: holdfast.Call, text: str) -> None:
    (call.scratch / "kept.txt").write_text(text)

@holdfast.task
async def work(run: holdfast.Run) -> None:
    run.scratch.path.exists()
    await run.call(keep, text="x")

tasks = [work]
"""


@dataclass(frozen=True, slots=True)
class Example:
    """An agent that can be drilled. Its user's home is `root`."""

    root: Path
    home: AgentHome
    words: str

    def order(self, slug: str, **more: object) -> DrillOrder:
        key = DrillKey(kind="words", typed=(("--words-fd", self.words),)) if get_drill(slug).words else None
        return DrillOrder(
            home=self.home,
            folder=self.root / "drill",
            speaker=open_speaker(self.home, SystemClock()),
            key=key,
            seed=1,
            rto_s=NO_HURRY_S,
            **more,  # pyright: ignore[reportArgumentType]
        )

    def run(self, slug: str, plant: Plant | None = None) -> DrillDone:
        if slug in MAIL:
            self.name_relays()

        def observe(run: DrillRun, event: str) -> None:
            if plant is not None and event == plant.at:
                plant.do(run, self)

        return run_drill(get_drill(slug), self.order(slug, observe=observe))

    def name_relays(self) -> None:
        """A profile with three relays, none of which answers: in a shadow the real ones do not either."""
        keys = [KeyPair.new(SystemEntropy()).public for _ in range(3)]
        listed = tuple(
            Relay(url=f"http://127.0.0.1:{number + 1}", wit=key, prio=number, domain=f"operator-{number}")
            for number, key in enumerate(keys)
        )
        speaker = open_speaker(self.home, SystemClock())
        now = int(time.time())
        asyncio.run(
            publish_profile(self.home, speaker, now=now, port=Sodium(), change=lambda one: replace(one, relays=listed))
        )


def make_example(
    root: Path,
    *,
    name: str = AGENT,
    places: int = 2,
    own_app: str = OWN_APP,
    url: str = "",
    adopted: bool = False,
    lease_s: float = LEASE_S,
) -> Example:
    """A new agent with a snapshot in each place; its journal in a file, or at this address of PostgreSQL. An adopted
    one has no journal: it is a program of its own, and says how it is started and tested."""

    async def make() -> tuple[AgentHome, str]:
        words: list[str] = []
        keys = {one: _unlock(root / one) for one in ("unlock", "unlock2")}
        plan = AgentPlan(
            name=name,
            folder=adopt(root / name) if adopted else root / name,
            vault=root / "vault",
            second=root / "second",
            witnesses=(WitnessFolder(root / "witness"),),
            arbiter=str(root / "arbiter"),
            keys=keys["unlock"],
            second_keys=keys["unlock2"],
        )
        made = await make_agent(
            plan, show=lambda phrase: words.extend(phrase.words), entropy=SystemEntropy(), port=Sodium()
        )
        settings = made.home.settings_file
        quick = settings.read_text().replace("[identity]\n", f"[identity]\nlease_s = {lease_s}\n")
        own_app_line = "" if adopted else '\n[drills]\napp = "own_app.py:tasks"\n'
        write_atomically(settings, (quick + own_app_line).encode())
        home = load_home(made.home.folder)
        write_atomically(home.memory_file, b"- pays on Fridays\n")
        write_atomically(home.folder / "notes.txt", b"kept\n")
        if not adopted:
            write_atomically(home.folder / "own_app.py", own_app.encode())
            own = load_app(f"{home.folder / 'own_app.py'}:tasks")
            async with holdfast.open(home.journal, tasks=[chat, *own.tasks.values()]) as hf:
                await (await hf.submit(chat)).result(60)
                for one in own.tasks:
                    await (await hf.submit(one)).result(60)
        if url:
            await copy_journal(home.journal, JournalAddress(folder=home.folder, url=url), arbiter=str(root / "arbiter"))
            home = load_home(home.folder)
        if not adopted:
            open_then = b"- [ ] chat: a task that was open at the snapshot\n"
            write_atomically(home.heartbeat_file, BEGIN + b"\n" + open_then + END + b"\n")
        listed = await open_places(home)
        for number in range(1, places + 1):
            place = root / f"place-{number}"
            ensure_private_folder(place)
            await listed.add(PlaceRequest(name=f"place-{number}", address=str(place)))
        if places:
            await asyncio.sleep(1.1)  # a snapshot has whole seconds: what is older by one is in it
            await (await open_backups(home)).now()
        return home, " ".join(words)

    ensure_private_folder(root)
    home, words = asyncio.run(make())
    return Example(root, home, words)


# An agent that Holdfast does not run: it answers with what it remembers. And its test.
OWN_AGENT = """
import socket
with socket.create_server(("127.0.0.1", 7071)) as server:
    while True:
        with server.accept()[0] as near:
            near.sendall(open("remembered.txt", "rb").read())
"""
OWN_CHECK = """
import socket
assert socket.create_connection(("127.0.0.1", 7071), 5).recv(100) == b"the plan\\n"
"""
OWN_SETTINGS = """
[drills]
start = ["python3", "agent.py"]
check = ["python3", "check.py"]
"""


def adopt(folder: Path) -> Path:
    """A folder that was there before, as `holdfast adopt` takes it; the folder of Holdfast inside."""
    ensure_private_folder(folder)
    for file, text in (("agent.py", OWN_AGENT), ("check.py", OWN_CHECK), ("remembered.txt", "the plan\n")):
        (folder / file).write_text(text)
    home = prepare(survey_folder(folder, name=folder.name))
    write_atomically(home.settings_file, home.settings_file.read_bytes() + OWN_SETTINGS.encode())
    return home.folder


def _unlock(path: Path) -> list[UnlockKey]:
    write_atomically(path, new_unlock_text(SystemEntropy()))
    return [file_key(path, path.read_bytes())]


@dataclass(frozen=True, slots=True)
class Plant:
    """A fault: at which event, what, and the check that must notice it."""

    name: str
    at: str
    do: Callable[[DrillRun, Example], None]
    check: str


def sh(script: str) -> Callable[[DrillRun, Example], None]:
    """A script in the shadow; $HOME_ is the agent's folder there, $ROOT the example's."""

    def do(run: DrillRun, example: Example) -> None:
        values = {"HOME_": run.values["home"], "ROOT": str(example.root), "PLACE": run.values["place"]}
        values["CONTROL"] = CONTROL
        done = run.run(("sh", "-ec", script), more=values)
        assert done.code == 0, done.err

    return do


def repeat_effect(run: DrillRun, _example: Example) -> None:
    """The first effect once more, under another key: what a worker that forgot it would send."""
    end = run.far_ends["keyed"]
    first = end.ledger().effects[0]
    headers = {
        "Idempotency-Key": "00000000-0000-4000-8000-000000000000",
        "Holdfast-Task": str(first.task),
        "Holdfast-Step": str(first.step),
        "Content-Type": "application/json",
    }
    asked = urllib.request.Request(f"{end.url}/effects", data=b'{"number": 7}', headers=headers)
    with urllib.request.urlopen(asked, timeout=30) as answer:
        assert answer.status == 201


def change_production(_run: DrillRun, example: Example) -> None:
    with open(example.home.folder / "notes.txt", "a", encoding="ascii") as file:
        file.write("changed\n")


def change_messages(run: DrillRun, _example: Example) -> None:
    """The program says something else in the first turn, and the worker starts again."""
    script = "import sys; p = sys.argv[1]; t = open(p).read(); open(p, 'w').write(t.replace('A drill.', 'Another.'))"
    from holdfast.drills import probe

    run.run((*PYTHON, script, str(Path(probe.__file__))))
    run.kill_worker(run.workers[-1])


OTHER_LOG = 'head -n 1 "$HOME_/kel.jsonl" > "$ROOT/k"; cat "$ROOT/k" > "$HOME_/kel.jsonl"; : > "$HOME_/receipts.jsonl"'
GARBAGE = 'dd if=/dev/urandom of="$HOME_/journal.db" bs=4096 seek=1 count=4 conv=notrunc 2>/dev/null'
OWN_ARBITER = """sed -i 's#^arbiter = .*#arbiter = "'"$ROOT"'/other-arbiter"#' "$HOME_-copy/holdfast.toml" """
NEW_KEYS = 'rm -rf /srv/holdfast-drill-thief/vault; cp -a "$ROOT/vault" /srv/holdfast-drill-thief/vault; ' + (
    'cp "$HOME_/kel.jsonl" "$HOME_/receipts.jsonl" /srv/holdfast-drill-thief/home/'
)
FORGET = "sed -i '/(again)/d' \"$HOME_/handoff.md\""


def no_standby(run: DrillRun, _example: Example) -> None:
    """The primary no longer waits for its standby."""
    for statement in ("ALTER SYSTEM SET synchronous_standby_names = ''", "SELECT pg_reload_conf()"):
        assert run.run((*PYTHON, SQL, str(PORTS[HERE]), statement)).code == 0


def let_act(run: DrillRun, example: Example) -> None:
    """Nothing keeps the copy from acting: it is enrolled too, or has an arbiter of its own."""
    if run.production.home.by_journal:
        run.good("instance", "join", "--as", "copy", "--yes", "--home", f"{run.values['home']}-copy")
    else:
        sh(OWN_ARBITER)(run, example)


PLANTS: dict[str, Plant] = {
    "region-loss": Plant("commits without the standby", "baseline_taken", no_standby, "old region refused"),
    "store-failover": Plant("commits without the standby", "baseline_taken", no_standby, "acknowledged"),
    "process-kill": Plant("a repeated effect", "steady_state", repeat_effect, "I1"),
    "host-loss": Plant("a file left out", "journal_reconciled", sh('rm "$HOME_/notes.txt"'), "state"),
    "disk-full": Plant("the disk is not full", "fault_injected", sh('rm "$HOME_/drill-filler"'), "not sent while full"),
    "journal-damage": Plant("a journal that stays damaged", "state_restored", sh(GARBAGE), "whole again"),
    "place-lost": Plant("the other place is empty", "recovery_started", sh('rm -rf "$ROOT"/place-*/ada'), "restores"),
    "backup-tampered": Plant(
        "a byte that was never changed",
        "fault_injected",
        sh('rm -rf "$PLACE/ada"; cp -a "$PLACE/ada.before" "$PLACE/ada"'),
        "found",
    ),
    "keys-lost": Plant("another key log", "identity_unlocked", sh(OTHER_LOG), ""),
    "keys-stolen": Plant("the thief has the new keys", "identity_unlocked", sh(NEW_KEYS), "answer refused"),
    "two-alive": Plant("the copy may act", "fault_injected", let_act, "one acts"),
    "old-backup": Plant("a repeated effect", "first_verified_step", repeat_effect, "I1"),
    "hand-off": Plant(
        "a line left out", "fault_injected", sh("sed -i '/(again)/d' \"$HOME_/handoff.md\""), "hand-off: pending"
    ),
    "provider-lost": Plant("another prefix", "baseline_taken", change_messages, ""),
    "relay-lost": Plant("a repeated effect", "steady_state", repeat_effect, "I1"),
    "all-relays-lost": Plant("the sender forgets", "recovery_started", sh(f"rm -f {PEER}/journal.db*"), ""),
    "mail-during-recovery": Plant("a repeated effect", "steady_state", repeat_effect, "I1"),
    "tool-files": Plant("a file that is not seen", "control_written", sh('rm "$CONTROL"'), "scan"),
    "test-restore": Plant("a file left out", "state_restored", sh("rm /srv/holdfast-restored/notes.txt"), "state"),
}
# An adopted agent's own test; its program is `host-loss` with another agent.
ADOPTED = "host-loss-adopted"
PLANTS[ADOPTED] = Plant(
    "it remembers something else", "journal_reconciled", sh('echo other > "$HOME_/remembered.txt"'), "own check"
)
HARM = Plant("production is changed", "baseline_taken", change_production, "production")


def judge(slug: str, done: DrillDone, plant: Plant | None) -> list[str]:
    """What is wrong with this outcome."""
    report = done.report
    failed = [one.code for one in report.results.invariants if not one.passed]
    if plant is None:
        good = report.verdict in ("pass", "pass with findings")
        return not_run(slug, report) if good else [f"{slug}: {report.verdict}: {report.reason}"]
    if report.verdict != "fail":
        return [f"{slug} with {plant.name}: {report.verdict}, and must be red"]
    if plant.check and plant.check not in failed:
        return [f"{slug} with {plant.name}: red for {failed or report.reason}, not for {plant.check}"]
    return []


def not_run(slug: str, report: DrillReport) -> list[str]:
    """Commands of the runbook's section that the drill did not execute, by this agent's parts."""
    adopted = slug == ADOPTED
    parts = Parts(identity=True, journal=not adopted, places=2, models=not adopted)
    wrong: list[str] = []
    for one in get_procedure(report.scenario.drill).steps(parts):
        form = re.sub(r"\\\{[a-z_]+\\\}", r"\\S+", re.escape(" ".join(one.command)))
        if one.command and one.drilled and not any(re.fullmatch(form, done) for done in report.runbook.steps_followed):
            wrong.append(f"{slug}: the runbook has {' '.join(one.command)!r}, and the drill does not run it")
    return wrong


def run_all(given: argparse.Namespace) -> Result:
    findings: list[str] = []
    figures: list[dict[str, object]] = []
    names = given.drill or [*(one.slug for one in DRILLS), ADOPTED]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hf-drills-", dir=given.folder))
        os.environ["HOME"] = folder
        shared = given.postgres or any(one in SHARED for one in names)
        server = stack.enter_context(started(find_oldest())) if shared else None
        for slug in names:
            for plant in (None, PLANTS[slug], *([HARM] if slug == "hand-off" else [])):
                root = Path(folder) / f"{slug}-{len(figures)}"
                on_server = server is not None and (given.postgres or slug in SHARED)
                url = f"{server.url()}&schema=agent_{len(figures)}" if server is not None and on_server else ""
                example = make_example(root, url=url, adopted=slug == ADOPTED)
                began = time.monotonic()
                done = example.run(slug.removesuffix("-adopted"), plant)
                wrong = judge(slug, done, plant)
                findings += wrong
                results = done.report.results
                what = "clean" if plant is None else plant.name
                figures.append(
                    {
                        "drill": slug,
                        "planted": what,
                        "verdict": done.report.verdict,
                        "reason": done.report.reason,
                        "rto_s": results.rto.actual_s,
                        "rpo_s": results.rpo.actual_s,
                        "seconds": round(time.monotonic() - began, 1),
                    }
                )
                print(json.dumps(figures[-1]), file=sys.stderr, flush=True)
    clean = sum(one["planted"] == "clean" for one in figures)
    summary = f"{clean} drills as they are, {len(figures) - clean} planted faults; {len(findings)} findings"
    return Result(green=not findings, summary=summary, figures=figures, findings=findings)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("drill", nargs="*", metavar="DRILL", help="only these (default: all that apply)")
    parser.add_argument("--postgres", action="store_true", help="every agent has its journal in PostgreSQL")
    parser.add_argument("--folder", default=None, help="where the example agents are made")


PROOF = Proof(name="drills", purpose=__doc__ or "", add_options=add_options, run=run_all)

if __name__ == "__main__":
    sys.exit(PROOF.main())
