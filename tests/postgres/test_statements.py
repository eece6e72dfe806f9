"""Statements of tools reach nothing of the journal, and leave nothing behind for its commit."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

import pytest

from holdfast.core.ids import task_id_from_bytes
from holdfast.errors import BadInput, JournalBusy, StatementFailed
from holdfast.journal.contract import Hold, Statement, Submission
from holdfast.journal.postgres import adding, lane
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.postgres.place import PostgresPlace
from holdfast.journal.postgres.verbs import statements as running
from holdfast.journal.postgres.verbs.statements import names, rendered
from holdfast.testing.journal_contract.world import noted
from holdfast_proofs.support.hosts import Host
from holdfast_proofs.support.postgres import NEWEST, USER, Server, started

OpenJournal = Callable[..., Any]
NewHost = Callable[..., Host]

APP = """
import holdfast

@holdfast.tool(effect=holdfast.Transactional())
async def seat(call: holdfast.Call) -> holdfast.Apply:
    return holdfast.Apply([("CREATE TABLE seat (name text)", [])], "seated")

@holdfast.task
async def book(run: holdfast.Run) -> str:
    return await run.call(seat)

tasks = [book]
"""


async def held(journal: PostgresJournal) -> Hold:
    raw = hashlib.sha256(journal.journal_id.encode()).digest()[:16]
    given = Submission(task_id=task_id_from_bytes(raw), name="trip", args={}, args_fingerprint=b"f" * 16)
    await journal.submit(given)
    (claimed,) = await journal.claim(await journal.open_session(worker="w", ttl_ms=60_000), names=None, limit=1)
    return claimed.hold


ATTACKS = (
    f"SET ROLE {USER}; DELETE FROM $s.record",
    f"SET LOCAL ROLE {USER}",
    f"SET SESSION AUTHORIZATION {USER}",
    "DO 'BEGIN RESET ROLE; DELETE FROM $s.record; END'",
    "RESET ROLE; DELETE FROM $s.record",
    "RESET SESSION AUTHORIZATION",
    f"SELECT set_config('role', '{USER}', false); DELETE FROM $s.record",
    "SELECT set_config('role', 'none', true)",
    "DELETE FROM $s.record",
    "TABLE $s.meta",
    "SET search_path = $s; DELETE FROM record",
    "COMMIT",
    "DO 'BEGIN COMMIT; END'",
    "ROLLBACK AND CHAIN",
    "CREATE OR REPLACE FUNCTION $s.run_statement(given text) RETURNS void LANGUAGE sql AS 'SELECT'",
    "ALTER FUNCTION $s.run_statement(text) SECURITY INVOKER",
    "CREATE TEMP TABLE task (name text)",
    "CREATE TABLE late (x int UNIQUE DEFERRABLE INITIALLY DEFERRED)",
    "CREATE TABLE late (x int); "
    "CREATE FUNCTION sneak() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN DELETE FROM $s.record; RETURN NULL; END'; "
    "CREATE CONSTRAINT TRIGGER t AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED "
    "FOR EACH ROW EXECUTE FUNCTION sneak(); INSERT INTO late VALUES (1)",
    "CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK (length(VALUE) > 0)",
    "CREATE TYPE pg_temp.bytea AS ENUM ('x')",
    'CREATE FUNCTION no("char", "char") RETURNS boolean LANGUAGE sql AS \'SELECT false\'; '
    'CREATE OPERATOR <> (LEFTARG = "char", RIGHTARG = "char", FUNCTION = no); '
    "CREATE TABLE late (x int UNIQUE DEFERRABLE INITIALLY DEFERRED); SET search_path = $s_tools, pg_catalog",
    "CREATE TYPE size AS ENUM ('s'); CREATE TABLE sizes (x size PRIMARY KEY); "
    "CREATE TABLE late (x size REFERENCES sizes DEFERRABLE INITIALLY DEFERRED)",
    "CREATE ROLE other",
    "ALTER ROLE CURRENT_USER SUPERUSER",
    "LOCK TABLE $s.task",
    "COPY (SELECT 1) TO PROGRAM 'true'",
)


async def test_attacks_are_refused_and_nothing_is_changed(open_it: OpenJournal, place: PostgresPlace) -> None:
    journal: PostgresJournal = await open_it()
    hold = await held(journal)
    for nth, attack in enumerate(ATTACKS):
        bad = Statement(sql=attack.replace("$s", place.schema))
        with pytest.raises(StatementFailed):
            await journal.append(hold, [noted("bad")], statements=[bad])
        await journal.append(hold, [noted(f"n{nth}")])
    view = await journal.read_task(hold.task_id)
    assert list(view.notes) == [f"n{nth}" for nth in range(len(ATTACKS))]
    assert [line async for line in journal.check()] == []


# What a statement leaves in the connection, to be run as the user of the journal: at the commit, or with the next step.
SNEAK = (
    "CREATE FUNCTION sneak() RETURNS bigint LANGUAGE plpgsql AS 'BEGIN "
    "DELETE FROM $s.record; PERFORM set_config(''synchronous_commit'', ''off'', false); RETURN 1; END'"
)
PLANT = "DEALLOCATE ALL; PREPARE $name ($types) AS SELECT $s_tools.sneak(), 1::bigint"
LEFT_BEHIND = {
    "a cursor": "DECLARE c CURSOR WITH HOLD FOR SELECT sneak()",
    "no statement": "DEALLOCATE ALL",
    "another statement": PLANT,
    "another statement, and a deadlock": f"{PLANT}; DO 'BEGIN RAISE EXCEPTION USING ERRCODE = ''40P01''; END'",
}


@pytest.mark.parametrize("left", LEFT_BEHIND)
async def test_nothing_that_a_statement_leaves_in_the_connection_is_run_as_the_user_of_the_journal(
    open_it: OpenJournal, place: PostgresPlace, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    monkeypatch.setattr(lane, "TRY_S", 0.0)
    journal: PostgresJournal = await open_it()
    hold = await held(journal)
    types = ("bigint, bigint, integer, bigint, bigint, boolean, bytea, text, bigint", *adding._OWN)
    put = {"$s": place.schema, "$name": journal._writer._adding._names[0].decode(), "$types": ", ".join(types)}
    sneak, sql = (re.sub(r"\$(s|name|types)", lambda at: put[at[0]], text) for text in (SNEAK, LEFT_BEHIND[left]))
    await journal.append(hold, [noted("n0")], statements=[Statement(sql=sneak)])
    for nth in range(1, 4):
        await journal.append(hold, [noted(f"n{nth}")])
    with suppress(JournalBusy):
        await journal.append(hold, [noted("n4")], statements=[Statement(sql=sql)])
    for nth in range(5, 8):
        await journal.append(hold, [noted(f"n{nth}")])
    expected = [f"n{nth}" for nth in range(8) if nth != 4 or "deadlock" not in left]
    assert list((await journal.read_task(hold.task_id)).notes) == expected
    assert [line async for line in journal.check()] == []


RIGHTS = [
    "CREATE ON SCHEMA public",
    "USAGE ON SCHEMA $s",
    "CREATE ON DATABASE postgres",
    "REFERENCES, TRIGGER ON guests",
]


@pytest.mark.parametrize("right", RIGHTS)
async def test_no_statement_is_run_where_it_could_change_what_the_journal_runs(
    open_it: OpenJournal, server: Server, place: PostgresPlace, right: str
) -> None:
    """Before PostgreSQL 15 everybody could make a function `nextval` in `public`; and the function that runs statements
    belongs to their role, which could take SECURITY DEFINER from it. Who may make a schema can make one that has the
    name of the journal's user, which is searched. And the check of a foreign key runs as the owner of the table that it
    refers to, with any cast that the other table's type has."""
    server.execute("CREATE TABLE IF NOT EXISTS guests (id int PRIMARY KEY); GRANT SELECT, INSERT ON guests TO PUBLIC")
    journal: PostgresJournal = await open_it()
    assert journal.capabilities.statements
    right = right.replace("$s", f'"{place.schema}"')
    server.execute(f"GRANT {right} TO PUBLIC")
    try:
        again: PostgresJournal = await open_it()
    finally:
        server.execute(f"REVOKE {right} FROM PUBLIC")
    assert f"REVOKE {right} FROM PUBLIC" in again.capabilities.statements_off


async def test_the_tables_of_tools_are_never_beside_another_journal(
    open_it: OpenJournal, server: Server, place: PostgresPlace
) -> None:
    """Their role owns the schema, and may drop what is in it."""
    other = PostgresPlace.read(f"{server.url()}&schema={place.schema}_tools")
    with pytest.raises(BadInput, match="for the tables of Transactional tools"):
        await open_it(host="other", place=other)
    before: PostgresJournal = await open_it(host="other", place=PostgresPlace.read(f"{server.url()}&schema=made"))
    hold = await held(before)
    await before.close()
    server.execute(f"ALTER SCHEMA made RENAME TO {other.schema}")  # by a Holdfast that allowed it
    journal: PostgresJournal = await open_it()
    assert "holds another journal" in journal.capabilities.statements_off
    again: PostgresJournal = await open_it(host="other", place=other)
    assert again.capabilities.statements
    assert (await again.read_task(hold.task_id)).name == "trip"


@pytest.mark.parametrize(("rules", "anew"), [("", True), ("-- rules 1000000\n", False)])
async def test_the_function_of_an_older_holdfast_is_made_anew_and_that_of_a_newer_one_is_not(
    open_it: OpenJournal, server: Server, place: PostgresPlace, rules: str, anew: bool
) -> None:
    await open_it()
    owner = f"SELECT proowner FROM pg_proc WHERE oid = '{place.schema}.run_statement'::regproc"
    before = server.execute(owner)
    server.execute(
        f"CREATE OR REPLACE FUNCTION {place.schema}.run_statement(given text) RETURNS void LANGUAGE plpgsql "
        f"SECURITY DEFINER AS '{rules}BEGIN EXECUTE given; END'"
    )
    await open_it()
    assert server.execute(owner) == before
    ((body,),) = server.execute(f"SELECT prosrc FROM pg_proc WHERE oid = '{place.schema}.run_statement'::regproc")
    assert ("temporary tables" in body) is anew


async def test_a_statement_cannot_make_its_commit_less_durable(
    open_it: OpenJournal, standby_gone: Callable[[], AbstractContextManager[Any]]
) -> None:
    journal: PostgresJournal = await open_it()
    hold = await held(journal)
    for nth, how in enumerate(("false", "true")):
        sql = f"SELECT set_config('synchronous_commit', 'off', {how})"
        with standby_gone() as until_waiting:
            writing = asyncio.create_task(journal.append(hold, [noted(f"n{nth}")], statements=[Statement(sql=sql)]))
            await until_waiting()
            assert not writing.done()
        await writing


@pytest.mark.parametrize("scope", ["false", "true"])
async def test_settings_of_a_statement_do_not_reach_the_commit(
    open_it: OpenJournal, server: Server, place: PostgresPlace, scope: str
) -> None:
    """Neither this commit nor a later one over the same connection."""
    journal: PostgresJournal = await open_it()
    hold = await held(journal)
    wanted = {
        "synchronous_commit": "off",
        "search_path": place.schema,
        "lock_timeout": "1",
        "default_transaction_read_only": "on",
        "standard_conforming_strings": "off",
    }
    sql = "; ".join(f"SELECT set_config('{name}', '{value}', {scope})" for name, value in wanted.items())
    seen: list[str] = []
    statements = [Statement(sql=sql), Statement(sql="CREATE TABLE seat (name text)")]
    await journal.append(hold, [noted("n1")], statements=statements)
    async with journal._links.borrowed() as link:
        for name in wanted:
            row = await link.one(f"SHOW {name}")
            assert row is not None
            seen.append(f"{name}={row[0]}")
    assert seen == [
        "synchronous_commit=on",
        'search_path="$user", public',
        "lock_timeout=0",
        "default_transaction_read_only=off",
        "standard_conforming_strings=on",
    ]
    await journal.append(hold, [noted("n2")])


async def test_a_statement_leaves_no_lock_and_no_channel_in_the_connection(
    open_it: OpenJournal, server: Server
) -> None:
    """The lock would be held until the worker ends, and what is sent to the channel kept until then."""
    journal: PostgresJournal = await open_it()
    hold = await held(journal)
    await journal.append(hold, [noted("n1")], statements=[Statement(sql="SELECT pg_advisory_lock(7); LISTEN seats")])
    assert server.execute("SELECT pg_try_advisory_xact_lock(7)") == [(True,)]
    async with journal._links.borrowed() as link:
        assert await link.run("SELECT * FROM pg_listening_channels()") == []


async def test_a_schema_of_tools_that_was_dropped_is_made_again(open_it: OpenJournal, server: Server) -> None:
    journal: PostgresJournal = await open_it()
    server.execute(f"DROP SCHEMA {journal.place.schema}_tools")
    again: PostgresJournal = await open_it()
    await again.append(await held(again), [noted("n1")], statements=[Statement(sql="CREATE TABLE seat (name text)")])
    assert server.execute(f"SELECT * FROM {journal.place.schema}_tools.seat") == []


async def test_a_statement_that_takes_too_long_fails(open_it: OpenJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "STATEMENT_MS_MAX", 200)
    journal: PostgresJournal = await open_it()
    hold = await held(journal)
    for sql in ("SELECT pg_sleep(2)", "SET statement_timeout = 0; SELECT pg_sleep(2)"):
        with pytest.raises(StatementFailed, match="statement timeout"):
            await journal.append(hold, [noted("n1")], statements=[Statement(sql=sql)])
    await journal.append(hold, [noted("n1")], statements=[Statement(sql="SELECT 1")])


async def test_values_are_bound_as_they_are(open_it: OpenJournal, server: Server, place: PostgresPlace) -> None:
    journal: PostgresJournal = await open_it()
    hold = await held(journal)
    values = ("it's \\ \" ? $1 $$ü\U0001f600", 7, 2.5, True, None, b"\x00\xff")
    create = Statement(sql="CREATE TABLE kept (a text, b bigint, c float8, d bool, e text, f bytea, g text)")
    insert = Statement(sql="INSERT INTO kept VALUES (?, ?, ?, ?, ?, ?, 'why?') -- what?", params=values)
    await journal.append(hold, [noted("n1")], statements=[create, insert])
    _, tools = names(place.schema, journal.journal_id)
    assert server.execute(f"SELECT * FROM {tools}.kept") == [(*values, "why?")]


async def test_places_for_values_are_found_outside_of_texts(open_it: OpenJournal) -> None:
    journal: PostgresJournal = await open_it()
    async with journal._links.borrowed() as link:
        for sql, expected in {
            "SELECT ?, '?', \"?\", $$?$$, $a$?$a$ /* ? */ -- ?": "SELECT 1, '?', \"?\", $$?$$, $a$?$a$ /* ? */ -- ?",
            "SELECT a ?? 'b', ?": "SELECT a ? 'b', 1",
            r"SELECT E'why\'d he ask?', ?, 'b'": r"SELECT E'why\'d he ask?', 1, 'b'",
            r"SELECT type'a\', ?, 'b?'": r"SELECT type'a\', 1, 'b?'",
            "SELECT a$x$, ?, b$x$": "SELECT a$x$, 1, b$x$",
        }.items():
            assert rendered(Statement(sql=sql, params=(1,)), link.db) == expected
        with pytest.raises(ValueError, match="a comment inside a comment"):
            rendered(Statement(sql="SELECT 1 /* /* a */ b? */", params=(1,)), link.db)


async def test_without_the_right_to_make_roles_only_these_tools_are_off(
    open_it: OpenJournal, server: Server, place: PostgresPlace
) -> None:
    user = f"plain_{place.schema}"
    server.execute(f"CREATE ROLE {user} LOGIN; GRANT CREATE ON DATABASE postgres TO {user}")
    plain = PostgresPlace.read(f"{server.url(user=user)}&schema={place.schema}")
    journal: PostgresJournal = await open_it(place=plain)
    assert not journal.capabilities.statements
    hold = await held(journal)
    with pytest.raises(StatementFailed, match=r"Transactional tools are off.*may not make the role") as off:
        await journal.append(hold, [noted("n1")], statements=[Statement(sql="SELECT 1")])
    await journal.append(hold, [noted("n1")])
    await journal.close()

    by_hand = re.search(r'CREATE ROLE "\w+" NOLOGIN; GRANT "\w+" TO "\w+";', off.value.message)
    assert by_hand is not None
    server.execute(by_hand.group())
    again: PostgresJournal = await open_it(place=plain)
    assert again.capabilities.statements, "what the message says to run is enough"


async def test_the_right_to_make_roles_is_enough_on_the_newest_server_too(open_it: OpenJournal) -> None:
    """There who makes a role may not act as it before it was granted."""
    with started(NEWEST) as newest:
        newest.execute("CREATE ROLE agents LOGIN CREATEROLE")
        newest.execute("CREATE DATABASE agents OWNER agents")
        journal: PostgresJournal = await open_it(place=PostgresPlace.read(newest.url("agents", user="agents")))
        assert journal.capabilities.statements_off == ""
        hold = await held(journal)
        await journal.append(hold, [noted("n0")], statements=[Statement(sql="CREATE TABLE seat (name text)")])
        await journal.close()


def test_a_step_whose_tools_are_off_fails_with_the_reason_and_doctor_says_it(
    new_host: NewHost, server: Server, place: PostgresPlace
) -> None:
    user = f"plain_{place.schema}"
    server.execute(f"CREATE ROLE {user} LOGIN; GRANT CREATE ON DATABASE postgres TO {user}")
    host = new_host("one", at=f"{server.url(user=user)}&schema={place.schema}")
    app = host.folder / "app.py"
    app.write_text(APP)
    failed = host("submit", f"{app}:tasks", "{}", "--request-id", "1", "--run", "--json", code=9)
    assert "Transactional tools are off" in failed.out + failed.err
    found = {one["check"]: one["text"] for one in host.look("doctor", "--json").json["findings"]}
    assert f'ALTER ROLE "{user}" CREATEROLE' in found["transactional tools"]
