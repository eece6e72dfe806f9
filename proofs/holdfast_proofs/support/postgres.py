"""PostgreSQL servers of a test's own: started without rights, in a temporary folder, ended with the test.

Two versions are tried: the oldest that Holdfast supports, from Debian's package, and the newest, from a wheel. Neither
needs a service of the machine: `scripts/setup` takes the programs, and each server has its own data, its own socket in
its own folder and no port. PostgreSQL does not run as root: there the server gets the user `nobody`.

`fsync` is off unless a test asks about durability: a server that is killed loses nothing by that, only a machine that
loses power does.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, LiteralString, cast

import psycopg

from holdfast.demo.server import USER, before_program, end_with_parent, own_folder, without_rights
from holdfast.host.postgres_programs import find_all

SUPPORTED = (15, 16, 17, 18)
NEWEST = SUPPORTED[-1]
STANDBY = "standby"  # what a standby calls itself
_TAKEN = Path(sys.prefix) / "postgresql"  # what scripts/setup took out of Debian's packages
_START_S = 120.0
_MADE = f"--no-instructions --encoding=UTF8 --locale=C --auth=trust --username={USER}"


class PostgresMissing(Exception):
    """No server of this version on this machine."""


def find_programs(version: int) -> Path:
    """The folder of `postgres`, `initdb` and the others. Raises PostgresMissing."""
    found = find_all().get(version)
    if found is None:
        raise PostgresMissing(f"there is no PostgreSQL {version} on this machine: run scripts/setup dev")
    return found


def find_oldest() -> int:
    """The oldest supported version that this machine has: Debian's own, where it is older than the wheel's.
    Raises PostgresMissing."""
    older = [version for version in find_all() if version < NEWEST]
    if not older:
        raise PostgresMissing("Debian's PostgreSQL is not on this machine: run scripts/setup dev")
    return older[0]


def find_pgbouncer() -> Path:
    taken = _TAKEN / "usr/sbin/pgbouncer"
    found = taken if taken.exists() else shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        raise PostgresMissing("there is no pgbouncer on this machine: run scripts/setup dev")
    return Path(found)


class Process:
    """A program that runs without rights in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._child: subprocess.Popen[Any] | None = None

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def run(self, command: Sequence[str | Path]) -> None:
        """A program that ends by itself. Raises RuntimeError with what it said."""
        words = (*before_program(), *command)
        done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, **without_rights())
        if done.returncode:
            raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr or done.stdout}")

    def launch(self, command: Sequence[str | Path]) -> None:
        before, own = self.started_as()
        with open(self.log, "ab") as log:
            self._child = subprocess.Popen(
                (*before, *command),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - one call of the kernel
                **own,
            )

    def started_as(self) -> tuple[tuple[str, ...], dict[str, Any]]:
        """What stands before the command, and the options of its start."""
        return before_program(), without_rights()

    def end(self, number: signal.Signals, *, wait_s: float = 20.0) -> None:
        """Send the signal and wait for the end. Safe to repeat."""
        child, self._child = self._child, None
        if child is None:
            return
        child.send_signal(number)
        try:
            child.wait(wait_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    @property
    def pid(self) -> int:
        if self._child is None:
            raise RuntimeError("it does not run")
        return self._child.pid

    @property
    def ended(self) -> bool:
        return self._child is None or self._child.poll() is not None

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-4_000:] if self.log.exists() else ""


class Server(Process):
    """One PostgreSQL server. Made by `started`."""

    def __init__(self, folder: Path, *, version: int) -> None:
        super().__init__(folder)
        self.version = version
        self.programs = find_programs(version)
        self.data = folder / "data"

    def make(self, *, durable: bool) -> None:
        self.run((self.programs / "initdb", f"--pgdata={self.data}", "--no-sync", *_MADE.split()))
        settings = {
            "listen_addresses": "''",
            "unix_socket_directories": f"'{self.folder}'",
            "max_connections": "200",
            "shared_buffers": "'32MB'",
            "autovacuum_naptime": "'5min'",
            "max_wal_senders": "8",
            "wal_keep_size": "'64MB'",
            "log_min_messages": "warning",
        }
        if not durable:
            settings |= {"fsync": "off", "full_page_writes": "off"}
        self.configure(settings)

    def configure(self, settings: dict[str, str]) -> None:
        """Lines for the settings file; a running server takes them with `reload`, some with a restart."""
        with open(self.data / "postgresql.conf", "a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())

    def start(self) -> None:
        self.launch((self.programs / "postgres", "-D", self.data))
        until = time.monotonic() + _START_S
        while not self._answers():
            if self.ended or time.monotonic() > until:
                raise RuntimeError(f"PostgreSQL {self.version} did not start: {self.said()}")
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        """As a reboot does: no client is waited for."""
        self.end(signal.SIGINT)

    def copy_from(self, primary: Server) -> None:
        """Become a standby of that server; started with `start`."""
        basebackup = (self.programs / "pg_basebackup", "-D", self.data, "-h", primary.folder, "-U", USER)
        self.run((*basebackup, "--checkpoint=fast", "--wal-method=stream", "--no-sync"))
        self.run(("touch", self.data / "standby.signal"))
        self.configure(
            {
                "unix_socket_directories": f"'{self.folder}'",
                "primary_conninfo": f"'host={primary.folder} user={USER} application_name={STANDBY}'",
                "synchronous_standby_names": "''",
            }
        )

    def kill(self) -> None:
        self.end(signal.SIGQUIT)

    def reload(self) -> None:
        self.execute("SELECT pg_reload_conf()")

    def url(self, database: str = "postgres", *, user: str = USER) -> str:
        return f"postgresql://{user}@/{database}?host={self.folder}"

    def connect(self, database: str = "postgres", *, user: str = USER) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.url(database, user=user), autocommit=True)

    def execute(self, sql: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        with closing(self.connect(database)) as db:
            done = db.execute(cast(LiteralString, sql))
            return done.fetchall() if done.description else []

    def dump(self, schema: str) -> bytes:
        """What `load` puts back, whatever is there then."""
        return self._program("pg_dump", "--clean", "--if-exists", f"--schema={schema}")

    def load(self, dump: bytes) -> None:
        self._program("psql", "--quiet", "--set=ON_ERROR_STOP=1", said=dump)

    def _program(self, name: str, *options: str, said: bytes = b"") -> bytes:
        words = (
            *before_program(),
            self.programs / name,
            *options,
            f"--host={self.folder}",
            f"--username={USER}",
            "postgres",
        )
        return subprocess.run(words, input=said, stdout=subprocess.PIPE, check=True, **without_rights()).stdout


class FullServer(Server):
    """One whose disk is small: a file system in memory, which only its own processes see."""

    def __init__(self, folder: Path, *, version: int, bytes_max: int) -> None:
        super().__init__(folder, version=version)
        self.data = folder / "disk/data"
        self._size = bytes_max

    def start(self) -> None:
        """Its data is made with it: there is no disk before it runs."""
        settings = self.folder / "settings"
        lines = {"listen_addresses": "''", "unix_socket_directories": f"'{self.folder}'", "fsync": "off"}
        lines |= {"max_wal_size": "'32MB'", "min_wal_size": "'32MB'", "shared_buffers": "'16MB'"}
        settings.write_text("".join(f"{name} = {value}\n" for name, value in lines.items()))
        settings.chmod(0o644)
        super().start()

    def started_as(self) -> tuple[tuple[str, ...], dict[str, Any]]:
        disk = self.data.parent
        disk.mkdir()
        mount = f'mount -t tmpfs -o size={self._size},mode=0777 tmpfs "{disk}"'
        make = f'"{self.programs}/initdb" -D "{self.data}" --no-sync {_MADE} >&2'
        run = f'{make} && cat "{self.folder}/settings" >> "{self.data}/postgresql.conf" && exec "$@"'
        own = without_rights()
        if before := before_program():
            drop, first = " ".join(before), ("unshare", "-m")
        elif os.geteuid() == 0:
            drop = f"setpriv --reuid={own.pop('user')} --regid={own.pop('group')} --clear-groups --pdeathsig=QUIT"
            own.pop("extra_groups")
            first = ("unshare", "-m")
        else:
            drop, first = f"unshare -U --map-user={os.geteuid()}", ("unshare", "-r", "-m")
        return (*first, "sh", "-c", f'{mount} && exec {drop} sh -c "$0" sh "$@"', run), own

    def fill(self) -> None:
        """No byte is free any more."""
        with suppress(psycopg.errors.DiskFull):
            filler = f"TO '{self.data.parent}/filler'"
            self.execute(f"COPY (SELECT repeat('x', 100000) FROM generate_series(1, {self._size // 100_000})) {filler}")

    def free(self) -> None:
        self.execute(f"COPY (SELECT 1) TO '{self.data.parent}/filler'")


class Pgbouncer(Process):
    """A pooler in transaction mode before one server."""

    def __init__(self, folder: Path, server: Server) -> None:
        super().__init__(folder)
        self.server = server

    def start(self) -> None:
        settings = {
            "listen_port": "6432",
            "unix_socket_dir": self.folder,
            "auth_type": "any",
            "pool_mode": "transaction",
            "default_pool_size": "20",
            "max_client_conn": "500",
            "pidfile": self.folder / "pid",
            "ignore_startup_parameters": "extra_float_digits,options",
        }
        lines = "".join(f"{name} = {value}\n" for name, value in settings.items())
        target = f"* = host={self.server.folder} user={USER}\n"
        (self.folder / "ini").write_text(f"[databases]\n{target}[pgbouncer]\n{lines}")
        (self.folder / ".s.PGSQL.6432").unlink(missing_ok=True)  # of one that was killed
        self.launch((find_pgbouncer(), "-q", self.folder / "ini"))
        until = time.monotonic() + _START_S
        while not (self.folder / ".s.PGSQL.6432").exists():
            if self.ended or time.monotonic() > until:
                raise RuntimeError(f"pgbouncer did not start: {self.said()}")
            time.sleep(0.02)

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{USER}@/{database}?host={self.folder}&port=6432"


@contextmanager
def started(version: int, *, durable: bool = False) -> Generator[Server]:
    """A new server, for the block; a durable one on the disk."""
    with own_folder(on_disk=durable) as folder:
        server = Server(folder, version=version)
        server.make(durable=durable)
        server.start()
        try:
            yield server
        finally:
            server.kill()


@contextmanager
def with_small_disk(version: int, *, bytes_max: int) -> Generator[FullServer]:
    """A new server on a disk of this size, for the block."""
    with own_folder() as folder:
        server = FullServer(folder, version=version, bytes_max=bytes_max)
        server.start()
        try:
            yield server
        finally:
            server.kill()


@contextmanager
def standby_of(primary: Server) -> Generator[Server]:
    """A standby of the server, for the block; synchronous where the primary's settings name it."""
    with own_folder() as folder:
        server = Server(folder, version=primary.version)
        server.copy_from(primary)
        server.start()
        try:
            yield server
        finally:
            server.kill()


@contextmanager
def pooled(server: Server) -> Generator[Pgbouncer]:
    """pgbouncer before the server, for the block."""
    with own_folder() as folder:
        pooler = Pgbouncer(folder, server)
        pooler.start()
        try:
            yield pooler
        finally:
            pooler.end(signal.SIGINT)
