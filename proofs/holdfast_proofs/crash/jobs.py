"""Work for the fork server, as values: started from a test or the command line.

The shim has to be loaded when a program starts, so the sweep runs in a program of its own; it
gets its job as JSON on standard input and gives its figures as JSON on standard output. The far
end is a third program: it counts outside of everything that is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Generator, Sequence
from pathlib import Path

import msgspec

from holdfast.downstream.faults import Fault
from holdfast.downstream.process import BlockingFarEnd, start_blocking
from holdfast.errors import HoldfastError
from holdfast.layout.engine_settings import Settings
from holdfast_proofs.crash.disk_faults.disk_jobs import DiskJob
from holdfast_proofs.crash.outliving.tools import Shape
from holdfast_proofs.crash.places import own_database
from holdfast_proofs.crash.report import Figures
from holdfast_proofs.crash.subjects import STEPS, TIMEOUT_S, ClassName, make_subject
from holdfast_proofs.shim import Mode, preloaded
from holdfast_proofs.weakened import Weakness

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a private folder is made in it


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job works: a folder of its own and, but for Transactional, a far end."""

    folder: str
    port: int = 0
    pid: int = 0
    server: str = ""  # of PostgreSQL, where the journals are there


class Sweep(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Kill at every call; see sweep.py."""

    name: ClassName
    steps: int = STEPS
    modes: tuple[Mode, ...] = (Mode.KILL_AFTER, Mode.KILL_BEFORE)
    points: int | None = None
    at: tuple[int, ...] = ()  # only these calls, by number
    only: frozenset[str] = frozenset()
    making: bool = True
    weakness: Weakness | None = None
    timeout_s: float = TIMEOUT_S
    lanes: int = 4


class Pairs(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Kill, resume, kill again, resume; see pairs.py."""

    name: ClassName
    steps: int = STEPS
    firsts: int | None = None  # a sample of about this many first points
    seconds: int = 3  # for each of them
    seed: int = 1
    only: tuple[tuple[Mode, int], tuple[Mode, int]] | None = None
    weakness: Weakness | None = None
    lanes: int = 4
    timeout_s: float = TIMEOUT_S


class Zombies(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Stop, take over, wake; see zombies.py."""

    name: ClassName
    guarded: bool
    count: int
    divide: float = 20.0  # timers
    only: frozenset[str] = frozenset()
    brink: bool = False
    weakness: Weakness | None = None
    lanes: int = 4
    timeout_s: float = TIMEOUT_S


class Races(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Many resumers of one orphan; see races.py."""

    name: ClassName
    count: int
    divide: float = 20.0
    lanes: int = 2
    timeout_s: float = TIMEOUT_S


class Children(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Kill the child processes of blocking tools; see children.py."""

    name: ClassName
    steps: int = STEPS
    points: int | None = None
    instants: int = 0
    seed: int = 1
    only: tuple[Mode, int] | None = None
    lanes: int = 3
    timeout_s: float = TIMEOUT_S


class Outliving(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Kill workers whose tools have started a process or a thread that has yet to send; see outliving/."""

    name: ClassName
    shape: Shape
    count: int
    seed: int = 1
    weakness: Weakness | None = None
    lanes: int = 6
    timeout_s: float = TIMEOUT_S


class Flips(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Turn over single bits of a journal's folder; see flips.py."""

    count: int
    seed: int = 1
    logged: bool = True
    only: str = ""  # FILE:OFFSET:BIT
    origin: str = ""  # a kept journal
    keep: str = ""  # where to keep the journal if anything is red
    lanes: int = 4


Job = Sweep | Pairs | Zombies | Races | Children | Outliving | Flips | DiskJob


def divided(by: float) -> Settings:
    """The default timers, divided."""
    plain = Settings()
    return Settings(
        lease_ttl_s=plain.lease_ttl_s / by,
        renew_every_s=plain.renew_every_s / by,
        sweep_every_s=plain.sweep_every_s / by,
        pace=1 / by,
        check_after_crash=False,
    )


SIZE_BYTES = 4  # before an order and before its figures


class Order(msgspec.Struct, frozen=True, kw_only=True):
    job: Job
    place: Place


class JobFailed(HoldfastError):
    """The fork server ended without figures."""

    code = "crash-job-failed"


def run_job(job: Job, library: Path, *, faults: Sequence[Fault] = (), database: str = "") -> Figures:
    """Do the job in a program of its own, against a far end of its own. `database`: the url of any one of a PostgreSQL
    server, for journals there."""
    with (
        _far_end(job, faults) as far_end,
        _folder() as folder,
        own_database(database) as own,
        _server(library) as server,
    ):
        port, pid = (far_end.port, far_end.pid) if far_end is not None else (0, 0)
        place = Place(folder=str(folder), port=port, pid=pid, server=own)
        figures = server.ask(msgspec.json.encode(Order(job=job, place=place)))
    if not figures:
        raise JobFailed(f"{job}: the fork server has no figures")
    return msgspec.json.decode(figures, type=Figures)


class _Server:
    """A fork server with the shim in it. It does one job after another, each in a child."""

    def __init__(self, library: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "holdfast_proofs.crash.server"],
            env=os.environ | preloaded(library),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        atexit.register(self.close)

    def ask(self, order: bytes) -> bytes:
        """The figures; empty where the job failed."""
        asked, told = self._process.stdin, self._process.stdout
        assert asked is not None
        assert told is not None
        asked.write(len(order).to_bytes(SIZE_BYTES) + order)
        asked.flush()
        return told.read(int.from_bytes(told.read(SIZE_BYTES)))

    def close(self) -> None:
        with self._process:  # closes its input, waits for its end
            return


_idle: defaultdict[Path, list[_Server]] = defaultdict(list)


@contextlib.contextmanager
def _server(library: Path) -> Generator[_Server]:
    """One that is idle, or one more. Whoever fails with it leaves it alone."""
    try:
        server = _idle[library].pop()
    except IndexError:
        server = _Server(library)
    yield server
    _idle[library].append(server)


@contextlib.contextmanager
def _far_end(job: Job, faults: Sequence[Fault]) -> Generator[BlockingFarEnd | None]:
    kind = None if isinstance(job, Flips) else make_subject(job.name).far_end
    if kind is None:
        yield None
        return
    with start_blocking(kind, faults=faults) as far_end:
        yield far_end


@contextlib.contextmanager
def _folder() -> Generator[Path]:
    """In memory where there is room: a killed process loses nothing that the kernel has."""
    memory = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="holdfast-crash-", dir=memory) as folder:
        yield Path(folder)
