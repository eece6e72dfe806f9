"""What an instance costs that waits: processor time and memory of an idle standby at a shared journal.

    python bench/standby.py [--seconds 60] [--lines 2000] [--json FILE]

Real workers of one agent on a PostgreSQL server of this machine: an acting instance, a second one that acts and has
nothing to do, and a standby. Each is two processes, the one that supervises and the one that works; both count. Memory
is the proportional set size (PSS in smaps_rollup): a page that processes share is divided among them. Two processes of
one program share pages here that a host with a single instance shares with nobody, so the private memory plus all
shared pages of its own two processes (`alone_mib`) is printed too.

Asked for, of the standby: at most 2 % of a core and 60 MiB.
"""

from __future__ import annotations

import argparse
import asyncio
import compileall
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import holdfast
from holdfast.core.journal_address import JournalAddress
from holdfast.demo.machine import Machine, give_identity
from holdfast.host.hardening import die_with_parent
from holdfast.recovery.copy_journal import copy_journal
from holdfast_proofs.support.postgres import NEWEST, started

APP = "holdfast_proofs.soak.app:app"
ROLES = {"north": "acting", "south": "acting too", "spare": "standby"}
CPU_PERCENT_MAX, MIB_MAX = 2.0, 60.0
WARM_S = 45.0  # all jobs of a worker have begun, and memory is merged
STOP_S_MAX = 30.0
TICK = os.sysconf("SC_CLK_TCK")
Figures = dict[str, dict[str, float]]


async def make_first(folder: Path, url: str, machine: Path, lines: int) -> None:
    folder.mkdir(mode=0o700)
    async with holdfast.open(folder / "journal.db", serve=False):
        pass
    home, _ = await give_identity(folder, Machine(machine))
    await copy_journal(home.journal, JournalAddress(folder=folder, url=url))
    text = "".join(
        f"- what the agent knows, number {number}, is in a line of about so many letters\n" for number in range(lines)
    )
    home.memory_file.write_text(f"# Memory\n\n{text}")


def command(*words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *words, "--json"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"holdfast {' '.join(words)}: {done.stderr}")


def join(root: Path, name: str, *more: str) -> None:
    first, package, vault = root / "north", root / f"{name}.invite", root / f"vault-{name}"
    command("instance", "invite", name, str(package), "--as", "north", "--home", str(first), *more)
    shutil.copytree(root / "machine/vault", vault)
    command("instance", "join", str(package), "--home", str(root / name), "--vault", str(vault))


@contextmanager
def working(root: Path, name: str) -> Generator[subprocess.Popen[bytes]]:
    own = os.getpid()
    with open(root / f"{name}.log", "ab") as log:
        worker = subprocess.Popen(
            [sys.executable, "-P", "-m", "holdfast", "worker", APP, "--home", str(root / name), "--name", name],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,
            preexec_fn=lambda: die_with_parent(own),  # noqa: PLW1509 - no thread starts one
        )
    try:
        yield worker
    finally:
        worker.send_signal(signal.SIGTERM)
        try:
            worker.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


def processes(pid: int) -> list[int]:
    return [pid, *(int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def memory_kib(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) for line in lines}


def measure(workers: dict[str, subprocess.Popen[bytes]], seconds: float) -> Figures:
    pids = {name: processes(one.pid) for name, one in workers.items()}
    before, began = {pid: cpu_s(pid) for some in pids.values() for pid in some}, time.monotonic()
    time.sleep(seconds)
    passed_s, found = time.monotonic() - began, Figures()
    for name, some in pids.items():
        if processes(workers[name].pid) != some:
            raise SystemExit(f"a process of {name} was replaced while it was measured")
        memory = [memory_kib(pid) for pid in some]
        private = sum(one["Private_Clean"] + one["Private_Dirty"] for one in memory)
        shared = max(one["Shared_Clean"] + one["Shared_Dirty"] for one in memory)
        found[ROLES[name]] = {
            "cpu_percent": round(sum(cpu_s(pid) - before[pid] for pid in some) / passed_s * 100, 2),
            "pss_mib": round(sum(one["Pss"] for one in memory) / 1024, 1),
            "alone_mib": round((private + shared) / 1024, 1),
            "working_process_pss_mib": round(memory[-1]["Pss"] / 1024, 1),
            "rss_mib": round(sum(one["Rss"] for one in memory) / 1024, 1),
        }
    return found


def run(root: Path, *, seconds: float, lines: int) -> Figures:
    with ExitStack() as stack:
        server = stack.enter_context(started(NEWEST))
        asyncio.run(make_first(root / "north", f"{server.url()}&schema=standby", root / "machine", lines))
        join(root, "south")
        join(root, "spare", "--standby")
        workers = {name: stack.enter_context(working(root, name)) for name in ROLES}
        time.sleep(WARM_S)
        logs = {name: (root / f"{name}.log").read_text() for name in ROLES}
        if '"agent-waits"' not in logs["spare"] or any(
            "session-begun" not in logs[name] for name in ("north", "south")
        ):
            raise SystemExit(f"the instances are not as they should be: {logs}")
        if (root / "spare/MEMORY.md").read_bytes() != (root / "north/MEMORY.md").read_bytes():
            raise SystemExit("the memory of the standby is not merged")
        return measure(workers, seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="to measure (60)")
    parser.add_argument("--lines", type=int, default=2_000, help="of MEMORY.md (2000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    given = parser.parse_args()
    compileall.compile_dir(Path(holdfast.__file__).parent, quiet=1)  # as installed: nothing is compiled while it runs
    with tempfile.TemporaryDirectory(prefix="holdfast-standby-") as name:
        found = run(Path(name), seconds=given.seconds, lines=given.lines)
    for role, one in found.items():
        print(f"{role:<12} " + ", ".join(f"{what} {value:g}" for what, value in one.items()))
    standby = found["standby"]
    well = standby["cpu_percent"] <= CPU_PERCENT_MAX and standby["pss_mib"] <= MIB_MAX
    print(f"standby: asked for at most {CPU_PERCENT_MAX:g} % of a core and {MIB_MAX:g} MiB: {'yes' if well else 'NO'}")
    if given.json is not None:
        report = {"seconds": given.seconds, "asked": {"cpu_percent": CPU_PERCENT_MAX, "pss_mib": MIB_MAX}, **found}
        given.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
