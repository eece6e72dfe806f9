"""A PostgreSQL server for the tests of this folder, and journals in schemas of their own."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest

import holdfast
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.journal_address import JournalAddress
from holdfast.demo.machine import Machine, give_identity
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.postgres.opening import open_journal
from holdfast.journal.postgres.place import PostgresPlace
from holdfast.layout.agent_home import AgentHome, load_home
from holdfast.recovery.copy_journal import copy_journal
from holdfast_proofs.support.hosts import Host
from holdfast_proofs.support.postgres import Server, find_oldest, started

SAMPLE = Path(__file__).parents[1] / "integration" / "cli" / "sample_app.py"
WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND backend_type = 'client backend'"
_NUMBERS = itertools.count(1)

OpenJournal = Callable[..., Awaitable[PostgresJournal]]
NewHost = Callable[..., Host]


class FixedKeys:
    current_journal_key = 1
    k_effect = b"e" * 32

    def journal_key(self, key_id: int) -> bytes:
        return bytes([key_id]) * 32


@pytest.fixture(scope="session")
def oldest() -> Iterator[Server]:
    with started(find_oldest()) as server:
        yield server


@pytest.fixture
def server(oldest: Server) -> Server:
    """Of the whole folder: a test that changes its settings puts them back."""
    return oldest


@pytest.fixture
def place(server: Server) -> PostgresPlace:
    return PostgresPlace.read(f"{server.url()}&schema=j{next(_NUMBERS)}")


@pytest.fixture
def url(server: Server, place: PostgresPlace) -> str:
    return f"{server.url()}&schema={place.schema}"


@pytest.fixture
def new_host(url: str, tmp_path: Path) -> Generator[NewHost]:
    app = shutil.copy(SAMPLE, tmp_path / "app.py")
    (tmp_path / "go").touch()
    hosts: list[Host] = []

    def make(name: str, *, keys_of: Host | None = None, at: str = url) -> Host:
        hosts.append(Host(tmp_path / name, at, app=Path(app), keys_of=keys_of))
        return hosts[-1]

    yield make
    for host in hosts:
        host.close()


@pytest.fixture
def agent(tmp_path: Path, url: str) -> AgentHome:
    """Made with a journal in a file, which then moved to the server: its arbiter was a folder."""

    async def live() -> AgentHome:
        folder = tmp_path / "ada"
        folder.mkdir(mode=0o700)
        async with holdfast.open(folder / "journal.db", serve=False):
            pass
        home, _ = await give_identity(folder, Machine(tmp_path / "machine"))
        assert home.arbiter == tmp_path / "machine/arbiter"
        await copy_journal(home.journal, JournalAddress(folder=folder, url=url))
        return load_home(folder)

    return asyncio.run(live())


@pytest.fixture
def second_host(agent: AgentHome, tmp_path: Path) -> Callable[..., AgentHome]:
    """The agent's folder as a further host gets it."""

    def copied(folder: Path = tmp_path / "second") -> AgentHome:
        shutil.copytree(agent.folder, folder, ignore=shutil.ignore_patterns("instance", "scratch"))
        return load_home(folder)

    return copied


@pytest.fixture
async def open_it(place: PostgresPlace, tmp_path: Path) -> AsyncIterator[OpenJournal]:
    """Opens the journal as one more process would."""
    opened: list[PostgresJournal] = []

    async def opener(*, host: str = "here", place: PostgresPlace = place, create: bool = True) -> PostgresJournal:
        folder = tmp_path / host
        folder.mkdir(mode=0o700, exist_ok=True)
        journal = await open_journal(
            place, folder / "instance", keys=FixedKeys(), clock=SystemClock(), entropy=SystemEntropy(), create=create
        )
        opened.append(journal)
        return journal

    yield opener
    for journal in opened:
        await journal.close()


@pytest.fixture
def standby_gone(server: Server) -> Callable[[], AbstractContextManager[Callable[[], Awaitable[list[int]]]]]:
    """For a block, every commit waits for a synchronous standby that does not come; it gives what waits for such
    commits and tells the processes of the server that make them."""

    @contextmanager
    def gone() -> Generator[Callable[[], Awaitable[list[int]]]]:
        try:
            _set_standby(server, "'nowhere'")
            while not _commits_wait(server):
                pass
            yield lambda: _until_waiting(server)
        finally:
            _set_standby(server, "''")

    return gone


def _set_standby(server: Server, names: str) -> None:
    server.configure({"synchronous_standby_names": names})
    server.reload()
    while server.execute("SHOW synchronous_standby_names") != [(names.strip("'"),)]:
        time.sleep(0.01)  # a new connection sees it: all others have been told


def _commits_wait(server: Server) -> bool:
    """Whether a commit waits for the standby now: the server's checkpointer decides it, a while after a reload."""
    with closing(server.connect()) as db:
        db.execute("SET synchronous_commit = on")  # whatever the server is set to
        db.pgconn.send_query(b"SELECT pg_logical_emit_message(true, 'test', 'x')")
        waits = False
        for _ in range(50):
            if waits := (db.info.backend_pid,) in server.execute(WAITING):
                break
            time.sleep(0.01)
        db.cancel()
        while db.pgconn.get_result():
            pass
    return waits


async def _until_waiting(server: Server) -> list[int]:
    for _ in range(500):
        if found := [row[0] for row in server.execute(WAITING)]:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError("no commit waits for the standby")
