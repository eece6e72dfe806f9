"""The soak in small, with real kills and lost replies; and a judge that sees what is wrong."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import apsw
import pytest

from holdfast.core.journal_address import file_at
from holdfast.host.sqlite import open_db
from holdfast_proofs.soak.app import TABLE
from holdfast_proofs.soak.books import log_path
from holdfast_proofs.soak.judge import Verdict, judge
from holdfast_proofs.soak.load import Plan, Ran, run_load
from holdfast_proofs.soak.site import Builder, Host, Site

PLAN = Plan(tasks=60, steps=5, workers=3, concurrency=8, backlog=48, kill_every_s=0.4, kills_max=3, lost_replies=0.1)


@dataclass(frozen=True)
class Soaked:
    ran: Ran
    folder: Path

    def judge(self, ran: Ran | None = None) -> Verdict:
        return asyncio.run(judge(PLAN, ran or self.ran, site_in(self.folder)))


@pytest.fixture(scope="module")
def soaked(tmp_path_factory: pytest.TempPathFactory) -> Soaked:
    site = Builder().make(tmp_path_factory.mktemp("soak") / "run")
    return Soaked(asyncio.run(run_load(PLAN, site, lambda _line: None)), site.journal.folder)


def site_in(folder: Path) -> Site:
    return Site(journal=file_at(folder / "journal.db"), hosts=[Host(folder=folder)])


@pytest.fixture
def copied(soaked: Soaked, tmp_path: Path) -> Soaked:
    shutil.copytree(soaked.folder, tmp_path / "run")
    # The copy is not the journal of this machine any more: its instance files go with it.
    return replace(soaked, folder=tmp_path / "run")


def test_nothing_is_repeated_lost_or_hidden_while_workers_are_killed(soaked: Soaked) -> None:
    verdict = soaked.judge()
    assert verdict.findings == []
    assert verdict.green
    assert verdict.effects == PLAN.tasks * PLAN.steps
    assert soaked.ran.kills == 3
    assert soaked.ran.dropped > 0
    assert verdict.parked >= len(soaked.ran.dropped_once)
    assert max(verdict.fairness.waits_ms) < 30_000


def _repeat(folder: Path) -> None:
    log = log_path(folder, "unrepeatable")
    log.write_bytes(log.read_bytes() + log.read_bytes().splitlines(keepends=True)[0])


def _forget(folder: Path) -> None:
    log = log_path(folder, "keyed")
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[1:]))


def _rename(folder: Path) -> None:
    log = log_path(folder, "queryable")
    first, *rest = log.read_bytes().splitlines(keepends=True)
    other = json.dumps({**json.loads(first), "id": "ef_other"}).encode() + b"\n"
    log.write_bytes(other + b"".join(rest))


def _stray(folder: Path) -> None:
    log = log_path(folder, "fenced")
    first = json.loads(log.read_bytes().splitlines()[0])
    other = json.dumps({**first, "task": "nobody", "id": "ef_other", "resource": "x"})
    log.write_bytes(log.read_bytes() + other.encode() + b"\n")


def _insert(folder: Path) -> None:
    db = open_db(str(folder / "journal.db"), flags=apsw.SQLITE_OPEN_READWRITE)
    db.execute(f"INSERT INTO {TABLE} SELECT * FROM {TABLE} LIMIT 1")
    db.close()


@pytest.mark.parametrize(
    ("spoil", "field"),
    [(_repeat, "duplicates"), (_insert, "duplicates"), (_forget, "lost"), (_rename, "breaches"), (_stray, "breaches")],
)
def test_the_judge_sees_what_the_books_say(copied: Soaked, spoil: Callable[[Path], None], field: str) -> None:
    spoil(copied.folder)
    verdict = copied.judge()
    assert getattr(verdict, field) == 1
    assert verdict.findings
    assert not verdict.green


def test_a_lost_reply_that_nobody_is_asked_about_is_silent(soaked: Soaked) -> None:
    """Made up: replies of steps that were never parked are said to have been dropped."""
    log = log_path(soaked.folder, "unrepeatable").read_text().splitlines()
    effects = [(one["task"], one["step"]) for one in map(json.loads, log)]
    asked = {tuple(place.split("/")) for place in soaked.ran.asked}
    calm = {place for place in effects if place not in asked}
    assert calm
    verdict = soaked.judge(replace(soaked.ran, dropped_once=calm))
    assert verdict.silent == len(calm)
    assert not verdict.green
