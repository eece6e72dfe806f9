"""Two servers that replicate to each other: a primary, and a synchronous standby in the other region."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg

from holdfast.demo.server import before_program, give_to_server
from holdfast_proofs.failovers.network import Network, Region
from holdfast_proofs.runner import ProofFailed
from holdfast_proofs.support.postgres import USER, Server, own_folder, without_rights

PORT = 5432
WAIT_S = 300.0  # generous: a loaded machine


class RegionServer(Server):
    """A server that listens in its region, and on a socket for the proof itself."""

    def __init__(self, folder: Path, region: Region, *, version: int) -> None:
        super().__init__(folder, version=version)
        self.region = region

    def started_as(self) -> tuple[tuple[str, ...], dict[str, Any]]:
        nobody = without_rights()
        return (*self.region.inside(uid=nobody.get("user")), *before_program()), {"env": nobody["env"]}

    def prepare(self) -> None:
        """A new, empty server that lets the other region in."""
        self.make(durable=True)
        self.configure(
            {"listen_addresses": "'*'", "port": str(PORT), "wal_sender_timeout": "'5s'", "wal_receiver_timeout": "'5s'"}
        )
        with open(self.data / "pg_hba.conf", "a") as file:
            file.write("host all all 10.77.0.0/16 trust\nhost replication all 10.77.0.0/16 trust\n")

    def follow(self, primary: RegionServer) -> None:
        """Become a copy of the other server, made over the link, and its standby."""
        if self.data.exists():
            shutil.rmtree(self.data)
        source = f"host={primary.region.address} port={PORT} user={USER} application_name={self.region.name}"
        options = ("--pgdata", self.data, "--dbname", source, "--checkpoint=fast", "--write-recovery-conf", "--no-sync")
        done = subprocess.run(
            (*self.region.inside(), self.programs / "pg_basebackup", *options),
            capture_output=True,
            text=True,
            env=without_rights()["env"],
        )
        if done.returncode:
            raise ProofFailed(f"pg_basebackup: {done.stderr}")
        for path in (self.data, *self.data.rglob("*")):
            give_to_server(path)
        (self.data / "postgresql.auto.conf").write_text(
            f"primary_conninfo = '{source}'\nsynchronous_standby_names = ''\n"
        )
        (self.data / "postgresql.conf").write_text(
            (self.data / "postgresql.conf").read_text().replace(str(primary.folder), str(self.folder))
        )
        self.start()

    def require(self, standby: str) -> None:
        """Commits wait for this standby; for none where it is empty."""
        self.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{standby}'")
        self.reload()

    def promote(self) -> None:
        self.run((self.programs / "pg_ctl", "promote", "-D", self.data, "-w", "-t", str(int(WAIT_S))))

    def sync_state(self) -> str:
        rows = self.execute("SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'")
        return str(rows[0][0]) if rows else ""

    def timeline(self) -> int:
        return int(self.execute("SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)")[0][0], 16)


@dataclass(slots=True)
class Cluster:
    network: Network
    primary: RegionServer
    standby: RegionServer

    def url(self, options: Mapping[str, str], *, first: Region | None = None) -> str:
        """Both hosts, whoever is the primary; without a choice east stands first."""
        regions = sorted((self.network.east, self.network.west), key=lambda one: one is not first)
        return url_of(regions, options)

    def timeline(self) -> int:
        return self.primary.timeline()

    def begin(self) -> None:
        self.primary.prepare()
        self.primary.start()
        self.replicate()

    def replicate(self) -> None:
        """The standby is made again from the primary, and commits wait for it from now on."""
        self.standby.follow(self.primary)
        self.primary.require(self.standby.region.name)
        wait_for(lambda: self.primary.sync_state() == "sync", "the standby is synchronous")

    def promote(self) -> None:
        """The standby takes over; the old primary runs on. Commits wait for no standby until there is one again: a
        person's decision, or a cluster manager's."""
        self.primary, self.standby = self.standby, self.primary
        self.primary.promote()

    def rejoin(self) -> None:
        """The old primary is stopped and becomes the standby."""
        self.standby.kill()
        self.replicate()


def url_of(regions: Iterable[Region], options: Mapping[str, str], *, user: str = USER) -> str:
    """All of these servers, of which the one that can be written is used."""
    hosts = ",".join(f"{region.address}:{PORT}" for region in regions)
    more = urlencode({"target_session_attrs": "read-write", **options})
    return f"postgresql://{user}@{hosts}/postgres?{more}"


@contextmanager
def cluster(network: Network, *, version: int) -> Generator[Cluster]:
    with own_folder(on_disk=True) as east, own_folder(on_disk=True) as west:
        made = Cluster(
            network,
            RegionServer(east, network.east, version=version),
            RegionServer(west, network.west, version=version),
        )
        try:
            made.begin()
            yield made
        finally:
            made.primary.kill()
            made.standby.kill()


def wait_for(true: Any, what: str, *, wait_s: float = WAIT_S) -> None:
    """Raises ProofFailed."""
    until = time.monotonic() + wait_s
    while True:
        with suppress(psycopg.OperationalError):
            if true():
                return
        if time.monotonic() > until:
            raise ProofFailed(f"after {wait_s:g} s it is still not so that {what}")
        time.sleep(0.05)
