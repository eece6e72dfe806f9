"""Statements of Transactional tools reach nothing that the schema defines, whatever is added to it."""

from __future__ import annotations

import pytest

from holdfast.errors import StatementFailed
from holdfast.host.sqlite import open_in_memory
from holdfast.journal.contract import Statement
from holdfast.journal.sqlite.schema import definitions, own_tables, shipped, whole_schema
from holdfast.journal.sqlite.verbs.tasks import apply_statements


def test_no_statement_changes_or_reads_a_definition_of_the_journal() -> None:
    db = open_in_memory()
    db.execute(whole_schema()).fetchall()
    rows = db.execute("SELECT type, name, tbl_name FROM sqlite_schema WHERE sql NOTNULL").fetchall()
    named = [(kind, name, table) for kind, name, table in rows if not name.startswith("sqlite_")]
    assert {kind for kind, _, _ in named} == {"table", "index", "trigger"}
    tried = [f"DROP {kind} {name}" for kind, name, _ in named]
    for table in {table for _, _, table in named}:
        tried += [
            f"INSERT INTO {table} DEFAULT VALUES",
            f"DELETE FROM {table.upper()}",
            f"SELECT * FROM {table}",
            f"ALTER TABLE {table} RENAME TO other",
            f"CREATE TEMP TABLE {table} (x)",
            f"CREATE TRIGGER mine AFTER INSERT ON {table} BEGIN SELECT 1; END",
        ]
    for sql in tried:
        with pytest.raises(StatementFailed):
            apply_statements(db, [Statement(sql=sql)])
    assert definitions(db) == shipped()


def test_remarks_are_the_journals_own() -> None:
    assert {"task", "record", "inbox", "session", "remark"} <= own_tables()
