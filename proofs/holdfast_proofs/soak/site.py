"""Where the load runs: a journal in a file and workers on this host, or a PostgreSQL server and two other hosts.

The two hosts are network namespaces with a folder each, that has the agent's keys and nothing else in common with the
other. The server, the far ends and this process are in a third namespace, the middle, which both reach. So the workers
of one host see no lock of the other's, and everything they do goes over the network.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString, cast

import apsw

from holdfast.app.binder import KEYS
from holdfast.core.clock import SystemEntropy
from holdfast.core.journal_address import JournalAddress, file_at
from holdfast.downstream.http_server import LOOPBACK
from holdfast.host.sqlite import open_db
from holdfast.identity.journal_keys.keyfile import load_or_create
from holdfast_proofs.failovers.network import Network, network
from holdfast_proofs.soak.app import TABLE

if TYPE_CHECKING:
    from holdfast.journal.postgres.place import PostgresPlace

FILE, POSTGRES = "file", "postgres"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host of workers."""

    folder: Path
    prefix: tuple[str, ...] = ()  # what goes before a command that is to run there


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    journal: JournalAddress  # as this process reaches it
    hosts: Sequence[Host]
    services: str = LOOPBACK  # where the far ends are
    books: Path | None = None  # the folder of what they have counted; None: that of the journal

    def make_table(self) -> None:
        """Of the Transactional steps. In PostgreSQL two that make a table at the same moment disturb each other, also
        with IF NOT EXISTS."""
        if not self.journal.url:
            return
        place = _place(self.journal)
        with place.connect_at_once() as db:
            owner = f"SELECT proowner::regrole FROM pg_proc WHERE pronamespace = '{place.schema}'::regnamespace"
            ((role,),) = db.execute(cast(LiteralString, owner)).fetchall()
            table = f"{place.schema}_tools.{TABLE}"
            db.execute(cast(LiteralString, f"CREATE TABLE {table} (task TEXT, step TEXT)"))
            db.execute(cast(LiteralString, f"ALTER TABLE {table} OWNER TO {role}"))

    def count_rows(self) -> Counter[tuple[str, str]]:
        """What the Transactional steps left beside the journal."""
        rows = self._in_file() if not self.journal.url else self._on_server()
        return Counter((str(task), str(step)) for task, step in rows)

    def _in_file(self) -> list[tuple[Any, ...]]:
        db = open_db(str(self.journal.path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            made = db.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (TABLE,)).fetchone()
            return db.execute(f"SELECT task, step FROM {TABLE}").fetchall() if made else []
        finally:
            db.close()

    def _on_server(self) -> list[tuple[Any, ...]]:
        place = _place(self.journal)
        with place.connect_at_once() as db:
            return db.execute(cast(LiteralString, f"SELECT task, step FROM {place.schema}_tools.{TABLE}")).fetchall()


def _place(journal: JournalAddress) -> PostgresPlace:
    from holdfast.journal.postgres.place import PostgresPlace  # only here: the driver is an extra

    return PostgresPlace.read(journal.url)


@contextmanager
def sites(kind: str) -> Generator[Builder]:
    """Makes sites, one for each run."""
    if kind == FILE:
        yield Builder()
        return
    from holdfast_proofs.support.postgres import NEWEST, USER, started

    with ExitStack() as stack:
        net = stack.enter_context(network())
        server = stack.enter_context(started(NEWEST))
        server.configure({"listen_addresses": f"'{net.world}'", "shared_buffers": "'256MB'"})
        with open(server.data / "pg_hba.conf", "a") as rules:
            rules.write("host all all samenet trust\n")
        server.stop()
        server.start()
        yield Builder(net, f"postgresql://{USER}@{net.world}/postgres")


class Builder:
    def __init__(self, net: Network | None = None, server: str = "") -> None:
        self._net = net
        self._server = server

    def make(self, folder: Path) -> Site:
        """In a new folder, whose name is the journal's where it is on a server."""
        folder.mkdir(mode=0o700, parents=True)
        if self._net is None:
            return Site(journal=file_at(folder / "journal.db"), hosts=[Host(folder=folder)])
        load_or_create(folder / KEYS, journal_exists=False, entropy=SystemEntropy())
        url = f"{self._server}?schema={folder.name}"
        regions = (self._net.east, self._net.west)
        hosts = [Host(folder=_with_keys(folder, one.name), prefix=one.inside()) for one in regions]
        return Site(journal=JournalAddress(folder=folder, url=url), hosts=hosts, services=self._net.world)


def _with_keys(folder: Path, name: str) -> Path:
    host = folder / name
    host.mkdir(mode=0o700)
    shutil.copy(folder / KEYS, host / KEYS)
    return host
