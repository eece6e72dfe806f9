"""Drills of a shared journal: its server fails over inside a commit; a region is cut off with its server and worker.

The shadow gets two PostgreSQL servers of its own, a primary and a synchronous standby, and the copy of the journal
moves there by `holdfast journal copy`. The two reach each other through links: processes that forward connections. A
link that is stopped is a slow network, one that is killed is a cut. The servers of production are never asked.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from holdfast.drills.host_loss import describe, measure_effects
from holdfast.drills.run import HOLDFAST, PYTHON, WAIT_S, DrillFailed, DrillRun
from holdfast.drills.work import no_loss, two_alive, wait_until
from holdfast.errors import NotProven
from holdfast.host.postgres_programs import find_programs, server_environment
from holdfast.host.shadow import Shadow

ROOT = Path("/srv/holdfast-drill-servers")
HERE, THERE = "here", "there"  # the region of the primary, and that of the standby
PORTS = {HERE: 5401, THERE: 5402}  # of the shadow's own loopback
LINKS = {HERE: 5411, THERE: 5412}  # where the other region finds it
USER = "holdfast"
LEASE_S = "4"
STALL_S = 3.0  # how long a commit is watched that cannot be replicated
STEPS = ("keyed",) * 12
PAUSE_S = 0.3
# Becomes a program without rights: PostgreSQL refuses root. The kernel forgets the wish to die with a parent there.
AS_NOBODY = """
import ctypes, os, pwd, signal, sys
if os.geteuid() == 0:
    nobody = pwd.getpwnam("nobody")
    os.setgroups([]); os.setgid(nobody.pw_gid); os.setuid(nobody.pw_uid)
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
os.chdir("/")
os.execv(sys.argv[1], sys.argv[1:])
"""
# Makes folders for the servers: folder, names.
FOLDERS = """
import os, pwd, sys
for name in ("", *sys.argv[2:]):
    path = os.path.join(sys.argv[1], name)
    os.mkdir(path, 0o711 if not name else 0o700)
    if os.geteuid() == 0 and name:
        os.chown(path, pwd.getpwnam("nobody").pw_uid, -1)
"""
# Forwards every connection: port to listen on, port to connect to.
LINK = """
import asyncio, sys
async def copy(reader, writer):
    try:
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()
async def serve(reader, writer):
    try:
        far = await asyncio.open_connection("127.0.0.1", int(sys.argv[2]))
    except OSError:
        writer.close()
        return
    await asyncio.gather(copy(reader, far[1]), copy(far[0], writer))
async def main():
    async with await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1])) as server:
        await server.serve_forever()
asyncio.run(main())
"""
# One statement: port, SQL. Prints the first field of the first row.
SQL = """
import sys, psycopg
url = f"postgresql://holdfast@127.0.0.1:{sys.argv[1]}/postgres"
with psycopg.connect(url, autocommit=True, connect_timeout=5) as db:
    done = db.execute(sys.argv[2])
    print(done.fetchone()[0] if done.description else "")
"""


@dataclass(slots=True)
class Servers:
    """A primary and its synchronous standby in the shadow."""

    run: DrillRun
    machine: Shadow
    programs: Path
    links: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]])

    def make(self) -> None:
        made = self.run.run((*PYTHON, FOLDERS, str(ROOT), HERE, THERE))
        if made.code:
            raise NotProven(f"no folder for servers in the shadow: {made.said}", hint="run the drill as another user")
        options = ("--no-instructions", "--no-sync", "--encoding=UTF8", "--locale=C", "--auth=trust")
        self._program("initdb", f"--pgdata={ROOT / HERE / 'data'}", f"--username={USER}", *options)
        self._start(HERE)
        self.link()
        own = f"host=127.0.0.1 port={LINKS[HERE]} user={USER}"
        words = ("-D", str(ROOT / THERE / "data"), "-d", own, "--checkpoint=fast", "--no-sync", "--write-recovery-conf")
        self._program("pg_basebackup", *words, "--wal-method=stream")
        self._start(THERE, f"primary_conninfo={own} application_name={THERE}")
        self.sql(HERE, f"ALTER SYSTEM SET synchronous_standby_names = '{THERE}'")
        self.sql(HERE, "SELECT pg_reload_conf()")
        end = time.monotonic() + WAIT_S
        while (state := self.sql(HERE, "SELECT max(sync_state) FROM pg_stat_replication")) != "sync":
            if time.monotonic() > end:
                raise NotProven(f"the drill's standby is {state}, not synchronous", hint="run the drill again")
            time.sleep(0.1)

    def _program(self, name: str, *words: str) -> None:
        done = self.run.run((*PYTHON, AS_NOBODY, str(self.programs / name), *words), more=server_environment())
        if done.code:
            raise NotProven(f"{name} of PostgreSQL ended with {done.code}: {done.said}", hint="see the evidence")

    def _start(self, name: str, *settings: str) -> None:
        given = (f"port={PORTS[name]}", f"unix_socket_directories={ROOT / name}", "listen_addresses=127.0.0.1")
        given = (*given, "fsync=off", "shared_buffers=16MB", "hot_standby=on", *settings)
        words = (str(self.programs / "postgres"), "-D", str(ROOT / name / "data"))
        log = self.run.folder / f"server-{name}.log"
        with open(log, "ab") as sink:
            self.machine.start(
                (*PYTHON, AS_NOBODY, *words, *(word for one in given for word in ("-c", one))),
                more=server_environment(),
                stdout=sink,
                stderr=sink,
            )
        end = time.monotonic() + WAIT_S
        while self.run.run((*PYTHON, SQL, str(PORTS[name]), "SELECT 1")).code:
            if time.monotonic() > end:
                said = log.read_text(errors="replace").strip().splitlines()[-2:]
                raise NotProven(f"PostgreSQL does not start: {' / '.join(said)}", hint="see the evidence")

    def sql(self, name: str, statement: str) -> str:
        done = self.run.run((*PYTHON, SQL, str(PORTS[name]), statement))
        if done.code:
            raise DrillFailed(f"{statement}: {done.said}")
        return done.out.strip()

    def link(self, alive: str = HERE) -> None:
        """Connect the regions; the server of this one answers."""
        self.links = [
            self.machine.start((*PYTHON, LINK, str(LINKS[name]), str(PORTS[name])), stderr=subprocess.DEVNULL)
            for name in (HERE, THERE)
        ]
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            if self.run.run((*PYTHON, SQL, str(LINKS[alive]), "SELECT 1")).code == 0:
                return
        raise NotProven("the drill's servers do not reach each other", hint="run the drill again")

    def slow(self) -> None:
        """From now on nothing passes, and no connection is closed."""
        for one in self.links:
            os.kill(self._child(one.pid), signal.SIGSTOP)

    def cut(self) -> None:
        for one in self.links:
            one.kill()
            one.wait()

    def _child(self, pid: int) -> int:
        """The command behind the process that entered the shadow for it."""
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def kill(self, name: str) -> None:
        """The server dies at once."""
        pid = (self.machine.outside(ROOT / name / "data" / "postmaster.pid")).read_text().split()[0]
        self.machine.signal(int(pid), signal.SIGKILL)

    def promote(self) -> None:
        self.run.step("promote the standby server in the other region" if self.run.slug == "region-loss" else AGAIN)
        self.sql(THERE, "SELECT pg_promote()")

    def url(self, near: str) -> str:
        """As a worker in this region names them: the near one first, the other one by its link."""
        far = THERE if near == HERE else HERE
        ports = f"{PORTS[near]},{LINKS[far]}"
        hosts = "127.0.0.1,127.0.0.1"
        return f"postgresql://{USER}@/postgres?host={hosts}&port={ports}&target_session_attrs=read-write"


AGAIN = "workers reconnect and confirm every commit in doubt"


def start_servers(run: DrillRun, machine: Shadow) -> Servers:
    """Two servers, and the journal in them. Raises NotProven where this machine has no PostgreSQL."""
    programs = find_programs()
    if programs is None:
        raise NotProven(
            "this machine has no PostgreSQL programs, and a drill starts servers of its own",
            hint="install PostgreSQL 15 or newer; its own server need not run",
        )
    servers = Servers(run, machine, programs)
    servers.make()
    run.good("journal", "copy", "--to", servers.url(HERE), "--yes", "--home", run.values["home"])
    return servers


def two_enrolled(run: DrillRun) -> None:
    """Two copies are alive, and reach one journal: the agent's folder is enrolled in the shadow, its copy is not."""

    def prepare(machine: Shadow) -> None:
        start_servers(run, machine)
        run.good("instance", "join", "--as", "drill", "--yes", "--home", run.values["home"])

    two_alive(run, prepare)


def store_failover(run: DrillRun) -> None:
    """Replication stalls, so that commits are in doubt; then the primary dies and the standby is promoted."""
    with run.running_copy() as machine:
        servers = start_servers(run, machine)
        run.start_worker("--lease-ttl", LEASE_S).wait_serving()
        first = run.submit(["keyed"])
        run.wait_task(first)
        task = run.submit(STEPS, pause_s=PAUSE_S)
        run.far_end("keyed").wait_effects(3)
        acked = {first, task}
        run.event("baseline_taken", f"{len(acked)} tasks on a primary and a synchronous standby; {describe(run)}")
        servers.slow()
        words = ("submit", "holdfast.drills.probe:tasks", '{"steps": ["keyed"]}', "--task", "holdfast_drill", "--json")
        words = (*words, "--request-id", "drill-in-doubt", "--no-follow", "--home", run.values["home"])
        doubtful = machine.start((*HOLDFAST, *words), more=run.addresses())
        with contextlib.suppress(subprocess.TimeoutExpired, ValueError, KeyError):
            acked.add(str(json.loads(doubtful.communicate(timeout=STALL_S)[0])["task_id"]))
        before = len(run.effects_of(task))
        run.fault(
            "the primary dies inside a commit",
            how="replication stalls, commits wait for the standby, then every process of the primary is killed",
            target="the shadow's own primary",
        )
        servers.kill(HERE)
        servers.cut()
        run.event("detected", "the primary is gone", actor="drill")
        run.event("declared", "fail over", actor="drill lead")
        run.event("recovery_started", "the standby is promoted", actor="operator")
        servers.promote()
        promoted_ms = time.time_ns() // 1_000_000
        servers.link(alive=THERE)
        run.event("state_restored", "the standby accepts writes")
        _check_acked(run, acked)
        run.event("journal_reconciled", "every acknowledged task is there")
        run.verify_step(task, after_ms=promoted_ms)
        shown = run.wait_task(task)
        run.check("L1", shown["state"] == "succeeded", f"task {task}: {shown['state']}")
        last = run.submit(["keyed"], request="drill-in-doubt")
        run.wait_task(last)
        run.event("steady_state", f"the submit in doubt, sent again, is task {last}")
        checked = run.act("check the journal", must=False)
        run.check("I11", checked.code == 0, f"journal check after it: exit {checked.code}")
        tasks = [first, task, last]
        measure_effects(run, tasks, before=before, expected=len(STEPS) + 2)
        no_loss(run)


def _check_acked(run: DrillRun, acked: set[str]) -> None:
    """Every task whose submit was acknowledged is on the promoted server."""
    done = run.holdfast("task", "list", "--limit", "100000", "--json", "--home", run.values["home"])
    found = {one["task_id"] for one in done.json()["tasks"]} if done.code == 0 else set[str]()
    missing = sorted(acked - found)
    said = done.said if done.code else f"not there: {', '.join(missing)}"
    run.require("acknowledged", not missing, said if missing else f"{len(acked)} acknowledged tasks are there")


def region_loss(run: DrillRun) -> None:
    """The region of the primary is cut off, with its worker, and keeps running. The other one is promoted."""
    here = run.values["home"]
    there = f"{here}-{THERE}"
    with run.running_copy() as machine:
        servers = start_servers(run, machine)
        run.run(("cp", "-a", here, there))
        url = servers.url(THERE)
        each = ("--lease-ttl", LEASE_S, "--concurrency", "1")  # so that each region has a task
        run.start_worker(*each).wait_serving()
        own = run.production.home.folder.relative_to(run.production.home.state)
        run.start_worker(*each, "--journal", url, home=Path(there) / own).wait_serving()
        tasks = [run.submit(STEPS, pause_s=PAUSE_S) for _ in range(2)]
        for task in tasks:
            wait_until(partial(run.effects_of, task), f"task {task} does no step")
        run.event("baseline_taken", f"{len(tasks)} tasks; a worker in each region; {describe(run)}")
        before = sum(len(run.effects_of(task)) for task in tasks)
        servers.cut()
        run.fault("a region is cut off", how="its links are cut; server and worker in it run on", target=HERE)
        time.sleep(1.0)  # what had begun may end
        kept = _records(servers)
        run.event("detected", "no connection to the other region", actor="drill")
        run.event("declared", "region lost", actor="drill lead")
        run.event("recovery_started", "the standby is promoted", actor="operator")
        servers.promote()
        promoted_ms = time.time_ns() // 1_000_000
        run.event("state_restored", "the standby accepts writes")
        run.values["home"] = there
        run.run((*PYTHON, SET_URL, str(Path(there) / own / "holdfast.toml"), url))
        _check_acked(run, set(tasks))
        run.event("journal_reconciled", "every acknowledged task is there")
        run.verify_step(tasks[0], after_ms=promoted_ms)
        states = {task: run.wait_task(task)["state"] for task in tasks}
        run.check("L1", set(states.values()) == {"succeeded"}, f"{states}")
        servers.link()
        run.event("steady_state", "the region is connected again", actor="operator")
        sent = len(run.far_end("keyed").ledger().requests)
        time.sleep(2 * float(LEASE_S))
        late, written = len(run.far_end("keyed").ledger().requests) - sent, _records(servers) - kept
        text = f"after the loss it committed {written} records; connected again, it sent {late} requests"
        run.check("old region refused", not written and not late, text)
        checked = run.act("check the journal", must=False)
        run.check("I11", checked.code == 0, f"journal check in the other region: exit {checked.code}")
        measure_effects(run, tasks, before=before, expected=len(tasks) * len(STEPS))
        no_loss(run)


# Sets the address of the journal in a settings file: file, url.
SET_URL = """
import sys
from pathlib import Path
from holdfast.layout.settings import write_journal_url
write_journal_url(Path(sys.argv[1]), sys.argv[2])
"""


def _records(servers: Servers) -> int:
    """That the old primary has committed."""
    found = servers.sql(HERE, "SELECT schemaname FROM pg_tables WHERE tablename = 'record' LIMIT 1")
    return int(servers.sql(HERE, f'SELECT count(*) FROM "{found}".record'))
