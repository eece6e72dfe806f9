"""Which calls of a journal a folder that is not enrolled may make."""

from __future__ import annotations

import inspect

from holdfast.app.instances.shared_roster import WRITES
from holdfast.journal.contract import Journal

# They need a session, which only `open_session` gives; or they change nothing.
OF_A_SESSION = {"renew", "end_session", "release", "confirm"}
READS = {
    "check_total",
    "close",
    "count_tasks",
    "count_waiting",
    "find_due_ms",
    "find_durability",
    "find_effect",
    "find_over",
    "find_remark_link",
    "find_task",
    "get_blob",
    "inbox_of",
    "list_sessions",
    "list_tasks",
    "pending_notices",
    "read_inbox",
    "read_newest",
    "read_task",
    "remark_marks",
    "remarks_after",
    "wait_change",
}


def test_every_call_of_the_contract_is_a_write_or_known_to_be_none() -> None:
    calls = {name for name, _ in inspect.getmembers(Journal, inspect.iscoroutinefunction)}
    assert calls == WRITES | OF_A_SESSION | READS
