"""An older copy of the journal is put back: what the lost timeline did is found, not done again."""

from __future__ import annotations

import shutil
import sqlite3  # noqa: TID251 - a user's own database, by the standard library
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.contracts import Issues, MailApi, Objects, Payments, SmtpMail, Sql
from holdfast.core.journal_address import file_at
from holdfast.core.step import StepState
from holdfast.journal.records import TaskState
from holdfast.recovery.recover_journal import recover_journal
from holdfast.testing.far_ends.issues import IssueHost
from holdfast.testing.far_ends.mail_api import MailProvider
from holdfast.testing.far_ends.objects import ObjectStore
from holdfast.testing.far_ends.payments import PaymentProvider
from holdfast.testing.far_ends.smtp import SubmissionServer
from holdfast.testing.lab import Lab, wait_state

KEY = "correct-horse-battery"
HANDLE = "secret://key"
MAIL = {"to": ["ada@example.org"], "subject": "Trip", "text": "Gate 7"}
Subject = tuple[holdfast.Tool[..., Any], dict[str, Any], Callable[[], int]]


@asynccontextmanager
async def payments(_: Path) -> AsyncGenerator[Subject]:
    async with PaymentProvider(key=KEY) as far:
        args = {"amount": 700, "currency": "eur", "payment_method": "pm_1"}
        yield Payments(HANDLE, url=far.url).charge, args, lambda: len(far.payments)


@asynccontextmanager
async def issues(_: Path) -> AsyncGenerator[Subject]:
    async with IssueHost(token=KEY) as far:
        tool = Issues("o/r", token=HANDLE, url=far.url, list_lag_s=1).create
        yield tool, {"title": "full"}, lambda: len(far.issues)


@asynccontextmanager
async def mail_api(_: Path) -> AsyncGenerator[Subject]:
    async with MailProvider(key=KEY) as far:
        tool = MailApi(HANDLE, sender="a@example.org", url=far.url, index_lag_s=1).send
        yield tool, MAIL, lambda: len(far.mails)


@asynccontextmanager
async def sql(folder: Path) -> AsyncGenerator[Subject]:
    path = folder / "shop.db"

    def rows() -> int:
        with sqlite3.connect(path) as db:
            return db.execute("SELECT count(*) FROM orders").fetchone()[0]

    shop = Sql(lambda: sqlite3.connect(path))
    shop.create_tables()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE orders (sku TEXT)")

    @shop.tool
    def order(tx: Any, sku: str) -> dict[str, str]:
        tx.execute("INSERT INTO orders VALUES (?)", (sku,))
        return {"sku": sku}

    yield order, {"sku": "chair"}, rows


@asynccontextmanager
async def objects(_: Path) -> AsyncGenerator[Subject]:
    async with ObjectStore(access_key=KEY, secret_key=KEY) as far:
        tool = Objects("b", access_key=HANDLE, secret_key=HANDLE, url=far.url).create
        yield tool, {"key": "k", "text": "once"}, lambda: len(far.writes)


@asynccontextmanager
async def smtp(_: Path) -> AsyncGenerator[Subject]:
    async with SubmissionServer() as far:
        words: dict[str, Any] = {"security": "none", "port": far.port}
        tool = SmtpMail("127.0.0.1", sender="a@example.org", **words).send
        yield tool, MAIL, lambda: len(far.taken)


@pytest.mark.parametrize("subject", [payments, issues, mail_api, sql, objects, smtp])
async def test_the_lost_effect_is_adopted_or_parked(
    lab: Lab, tmp_path: Path, keep: Callable[[str, str], None], subject: Any
) -> None:
    keep("key", KEY)
    async with subject(tmp_path) as (tool, args, count):

        @holdfast.task(name="work")
        async def work(run: holdfast.Run) -> Any:
            return await run.call(tool, **args)

        before = await play_lost(lab, work)
        assert count() == 1
        async with lab.open(work) as hf:
            handle = hf.task(before[0])
            row = await wait_state(handle, TaskState.SUCCEEDED, TaskState.PARKED)
            view = await handle.view()
    assert count() == 1
    if subject is smtp:  # nobody can be asked: a person is
        assert row.state is TaskState.PARKED
        assert view.steps["1"].state is StepState.PARKED
    else:
        assert row.state is TaskState.SUCCEEDED
        assert before[1].items() <= view.outcome["result"].items()


async def play_lost(lab: Lab, work: holdfast.TaskType) -> tuple[str, Any]:
    """Do the task, and then put back the copy of before: its id, and its lost result."""
    old = lab.folder / "old.db"
    async with lab.open(serve=False) as hf:
        task_id = (await hf.submit(work, request_id="one")).id
    shutil.copy2(lab.journal, old)
    async with lab.open(work) as hf:
        result = await hf.task(task_id).result(20)
    old.replace(lab.journal)
    await recover_journal(file_at(lab.journal))
    return task_id, result
