"""What is wrong with the url or the database is one clear error with a hint, and nothing is changed."""

from __future__ import annotations

import os
import shutil
import socketserver
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from holdfast.errors import (
    BadInput,
    HoldfastError,
    JournalBusy,
    JournalGone,
    JournalNewer,
    JournalRefused,
    NotAJournal,
    ReadOnly,
    Retryable,
)
from holdfast.journal.postgres import check
from holdfast.journal.postgres.admin import PostgresAdmin
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.postgres.place import PostgresPlace
from holdfast.journal.postgres.sql_errors import translated
from holdfast_proofs.support.hosts import Host
from holdfast_proofs.support.postgres import Server, find_oldest, started

OpenJournal = Callable[..., Awaitable[PostgresJournal]]
NewHost = Callable[..., Host]


async def why_not(open_it: OpenJournal, url: str) -> HoldfastError:
    """The error that opening the journal there ends with; it has a hint."""
    with pytest.raises(HoldfastError) as refused:
        await open_it(place=PostgresPlace.read(url), create=False)
    assert refused.value.hint
    assert "\n" not in refused.value.message
    return refused.value


async def test_a_wrong_url_or_user(open_it: OpenJournal, server: Server, place: PostgresPlace) -> None:
    await open_it()
    user = f"stranger_{place.schema}"
    server.execute(f"CREATE ROLE {user} LOGIN")
    socket, schema = f"host={server.folder}", f"schema={place.schema}"
    away = await why_not(open_it, "postgresql://holdfast@127.0.0.1:1/postgres")
    assert isinstance(away, JournalBusy)  # it may come back
    for url, text in (
        (f"postgresql://holdfast@/nowhere?{socket}", '"nowhere" does not exist'),
        (f"postgresql://nobody@/postgres?{socket}", '"nobody" does not exist'),
        (f"postgresql://holdfast@/postgres?{socket}&options=-c%20no_such=1", "no_such"),
    ):
        refused = await why_not(open_it, url)
        assert (type(refused), text in refused.message) == (JournalRefused, True)
        assert not isinstance(refused, Retryable)  # a worker says it once and ends
    denied = await why_not(open_it, f"postgresql://{user}@/postgres?{socket}&{schema}")
    assert (type(denied), "permission denied" in denied.message) == (ReadOnly, True)
    with pytest.raises(ReadOnly, match="may not make a journal") as poor:
        await open_it(place=PostgresPlace.read(f"{server.url(user=user)}&schema=none_{place.schema}"))
    assert poor.value.hint.endswith(f'GRANT CREATE ON DATABASE "postgres" TO "{user}"')
    with pytest.raises(BadInput, match="colour") as odd:
        PostgresPlace.read(f"{server.url()}&colour=red")
    assert "libpq" in odd.value.hint
    for wrong in ("port=99999", "sslmode=nonsense", "connect_timeout=soon"):
        invalid = await why_not(open_it, f"{server.url()}&{wrong}")
        assert (type(invalid), "not valid" in invalid.message) == (BadInput, True)


def test_options_reach_libpq_as_they_are(server: Server) -> None:
    given = PostgresPlace.read(f"{server.url()}&application_name=a%20b+c%25")
    assert conninfo_to_dict(given.conninfo)["application_name"] == "a b+c%"


async def test_a_journal_that_vanishes_or_has_no_keys_says_what_to_do_with_a_database(
    open_it: OpenJournal, new_host: NewHost, server: Server, place: PostgresPlace
) -> None:
    live = await open_it()
    one = new_host("one")
    keyless = one.look("journal", "check", "--json", code=6).error
    assert (keyless["code"], "copy keys.json from the folder of a host" in keyless["hint"]) == ("keys-missing", True)
    server.execute(f"DROP SCHEMA {place.schema} CASCADE")
    with pytest.raises(JournalGone, match="no longer in its database") as gone:
        await live.count_tasks()
    assert "bring the database back" in gone.value.hint
    none = one.look("journal", "check", "--json", code=6).error
    assert (none["code"], "--journal" in none["hint"]) == ("not-a-journal", True)


async def test_a_schema_that_is_not_there_of_others_or_newer(
    open_it: OpenJournal, server: Server, place: PostgresPlace
) -> None:
    await open_it()
    missing, others = f"missing_{place.schema}", f"others_{place.schema}"
    server.execute(f"CREATE SCHEMA {others}; CREATE TABLE {others}.version (text text)")
    for schema in (missing, others):
        assert type(await why_not(open_it, f"{server.url()}&schema={schema}")) is NotAJournal
    assert server.execute(f"SELECT 1 FROM pg_namespace WHERE nspname = '{missing}'") == []
    server.execute(f"ALTER TABLE {others}.version RENAME TO goods")
    with pytest.raises(NotAJournal, match="goods"):
        await open_it(place=PostgresPlace.read(f"{server.url()}&schema={others}"))
    assert server.execute(f"SELECT relname FROM pg_class WHERE relnamespace = '{others}'::regnamespace") == [("goods",)]
    server.execute(f"UPDATE {place.schema}.version SET number = 99")
    newer = await why_not(open_it, f"{server.url()}&schema={place.schema}")
    assert (type(newer), "nothing was changed" in newer.message) == (JournalNewer, True)


async def test_a_check_that_is_broken_off_finds_no_damage(
    open_it: OpenJournal, server: Server, place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = f"hasty_{place.schema}"
    server.execute(f"CREATE ROLE {user} LOGIN SUPERUSER; ALTER ROLE {user} SET idle_in_transaction_session_timeout = 1")
    hasty = PostgresPlace.read(f"{server.url(user=user)}&schema={place.schema}")
    journal = await open_it(place=hasty)
    look = check._Check._remarks

    def slow(self: check._Check) -> None:
        time.sleep(0.05)
        look(self)

    monkeypatch.setattr(check._Check, "_remarks", slow)
    assert [line async for line in journal.check()] == []

    def cut(self: check._Check) -> None:
        server.execute(f"SELECT pg_terminate_backend({self._db.info.backend_pid})")
        look(self)

    monkeypatch.setattr(check._Check, "_remarks", cut)
    with pytest.raises(JournalBusy):
        assert [line async for line in journal.check()] == []


@pytest.mark.parametrize("code", ["25P03", "25P04"])
def test_a_transaction_that_took_too_long_is_no_damage(code: str) -> None:
    assert isinstance(translated(psycopg.errors.lookup(code)("too long")), JournalBusy)


async def test_a_database_that_cannot_keep_every_text(open_it: OpenJournal, server: Server) -> None:
    server.execute("CREATE DATABASE ascii ENCODING 'SQL_ASCII' TEMPLATE template0")
    with pytest.raises(BadInput, match="encoding SQL_ASCII") as refused:
        await open_it(place=PostgresPlace.read(server.url("ascii")))
    assert "UTF8" in refused.value.hint
    assert server.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'holdfast'", "ascii") == []


async def test_a_standby_and_a_server_with_the_name_of_another(open_it: OpenJournal, tmp_path: Path) -> None:
    with started(find_oldest()) as server:
        await (await open_it(place=PostgresPlace.read(server.url()))).close()
        server.stop()
        address = f"127.0.{os.getpid() % 250}.{os.getpid() // 250 % 250 + 2}"  # of its own: the port is the usual one
        server.configure({"ssl": "on", "listen_addresses": f"'{address}'"})
        certificate = make_certificate(server, tmp_path)
        (server.data / "standby.signal").touch()
        server.start()
        standby = await why_not(open_it, server.url())
        assert (type(standby), "primary" in standby.hint) == (ReadOnly, True)
        checked = f"sslmode=verify-full&sslrootcert={certificate}"
        other = await why_not(open_it, f"postgresql://holdfast@{address}/postgres?{checked}")
        assert (type(other), "certificate" in other.message) == (JournalRefused, True)
        assert ("name that is in its certificate" in other.hint, "password" in other.hint) == (True, False)


async def test_tls_and_passwords_out_of_files(
    open_it: OpenJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A passfile and a service file do what the page says; a wrong password, and none, are refused."""
    with started(find_oldest()) as server:
        server.execute("CREATE ROLE agents LOGIN PASSWORD 'rose'")
        server.execute("CREATE DATABASE agents OWNER agents")
        server.stop()
        address = f"127.1.{os.getpid() % 250}.{os.getpid() // 250 % 250 + 2}"
        server.configure({"ssl": "on", "listen_addresses": f"'{address}'"})
        (server.data / "pg_hba.conf").write_text("local all all trust\nhostssl all all 0.0.0.0/0 scram-sha-256\n")
        certificate = make_certificate(server, tmp_path, name="db.example")
        server.start()
        for name, word in (("right", "rose"), ("wrong", "thorn"), ("empty", "")):
            (tmp_path / name).write_text(f"*:*:*:agents:{word}\n" if word else "")
            (tmp_path / name).chmod(0o600)
        checked = f"sslmode=verify-full&sslrootcert={certificate}&hostaddr={address}"
        url = f"postgresql://agents@db.example/agents?{checked}&passfile={tmp_path}"
        await open_it(place=PostgresPlace.read(f"{url}/right"))
        assert server.execute(
            "SELECT DISTINCT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'agents'"
        ) == [(True,)]
        for name in ("wrong", "empty"):
            refused = await why_not(open_it, f"{url}/{name}")
            assert (type(refused), "passfile" in refused.hint) == (JournalRefused, True)
            assert "thorn" not in str(refused)
        plain = await why_not(
            open_it, f"postgresql://agents@{address}/agents?sslmode=disable&passfile={tmp_path}/right"
        )
        assert type(plain) is JournalRefused
        service = {"host": "db.example", "dbname": "agents", "user": "agents", "hostaddr": address, "password": "rose"}
        service |= {"sslmode": "verify-full", "sslrootcert": str(certificate)}
        lines = "".join(f"{name}={value}\n" for name, value in service.items())
        (tmp_path / "services").write_text(f"[agents]\n{lines}")
        monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
        await open_it(place=PostgresPlace.read("postgresql:///?service=agents"), create=False)
        unknown = await why_not(open_it, "postgresql:///?service=nobody")
        assert (type(unknown), "service" in unknown.message) == (JournalRefused, True)


def make_certificate(server: Server, folder: Path, *, name: str = "other.example") -> Path:
    """Of the host of this name, and its key, for this server."""
    made = f"openssl req -x509 -newkey rsa:2048 -nodes -keyout server.key -out server.crt -subj /CN={name}"
    subprocess.run([*made.split(), "-days", "2"], cwd=folder, check=True, capture_output=True)
    for file, mode in (("server.key", 0o600), ("server.crt", 0o644)):
        shutil.copy(folder / file, server.data)
        shutil.chown(server.data / file, server.data.owner(), server.data.group())
        (server.data / file).chmod(mode)
    return folder / "server.crt"


def test_a_worker_that_is_at_work_asks_again() -> None:
    """A password that is being changed, say: what was let in before is not sent away for good."""
    error = psycopg.OperationalError('connection failed: FATAL:  password authentication failed for user "holdfast"')
    assert type(translated(error)) is JournalBusy
    assert type(translated(error, opening=True)) is JournalRefused


@contextmanager
def refusing(folder: Path, code: str, text: str) -> Generator[str]:
    """A server that answers every start with this error, in its own language; its url."""
    fields = f"SFATAL\0VFATAL\0C{code}\0M{text}\0".encode()
    answer = b"E%s%s\0" % (struct.pack(">I", len(fields) + 5), fields)

    class Answer(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1_000)
            self.request.sendall(answer)

    with socketserver.ThreadingUnixStreamServer(f"{folder}/.s.PGSQL.5432", Answer) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"postgresql://holdfast@/postgres?host={folder}"
        server.shutdown()


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        ("3D000", "Datenbank »postgres« existiert nicht", JournalRefused),
        ("28P01", "Passwort-Authentifizierung für Benutzer »holdfast« fehlgeschlagen", JournalRefused),
        ("53300", "tut mir leid, schon zu viele Verbindungen", JournalBusy),
        ("57P03", "das Datenbanksystem startet", JournalBusy),
    ],
)
async def test_a_server_that_refuses_in_another_language(
    open_it: OpenJournal, code: str, text: str, kind: type[HoldfastError]
) -> None:
    """Its code says whether that is for good."""
    with tempfile.TemporaryDirectory(prefix="hf-") as folder, refusing(Path(folder), code, text) as url:
        refused = await why_not(open_it, url)
        assert (type(refused), text in refused.message) == (kind, True)
        with pytest.raises(kind):
            PostgresAdmin(url, Path(folder) / "instance").exists()
