"""Several journals with the same keys: equal request ids are different tasks, and a lost journal's keys come back."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.ids import effect_key_from_bytes
from holdfast.core.journal_address import file_at
from holdfast.errors import JournalGone, JournalOlderCopy, KeysWrong, NotAJournal, ReadOnly
from holdfast.host.sqlite import open_existing
from holdfast.identity.journal_keys.keyfile import KeyFile
from holdfast.journal.sqlite.admin import SqliteAdmin
from holdfast.recovery.recover_journal import begin_anew, recover_journal

REQUEST = "2026-11"
Fields = dict[str, Any]  # Any: JSON


class Bank:
    """A far end that knows a payment by its key."""

    def __init__(self) -> None:
        self.paid: dict[str, str] = {}

    def pay(self, key: str, to: str) -> str:
        return self.paid.setdefault(key, f"paid {to}")


BANK = Bank()


@holdfast.tool(effect=holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=False))
async def pay(call: holdfast.Call, to: str) -> str:
    return BANK.pay(call.effect_key, to)


@holdfast.task
async def salary(run: holdfast.Run, to: str) -> str:
    return await run.call(pay, to=to)


@pytest.fixture(autouse=True)
def bank() -> Bank:
    BANK.paid.clear()
    return BANK


async def paid(journal: Path, to: str = "ada") -> tuple[str, str]:
    """The task's id and its result."""
    async with holdfast.open(journal, tasks=[salary]) as hf:
        task = await hf.submit(salary, request_id=REQUEST, to=to)
        return task.id, await task.result(60)


async def submitted(journal: Path, *, new_journal: bool = False) -> str:
    async with holdfast.open(journal, serve=False, new_journal=new_journal) as hf:
        return (await hf.submit(salary, request_id=REQUEST, to="ada")).id


def ring(folder: Path) -> Fields:
    return json.loads((folder / "keys.json").read_text())


def edit_ring(folder: Path, change: Callable[[Fields], object]) -> None:
    fields = ring(folder)
    change(fields)
    (folder / "keys.json").write_text(json.dumps(fields))


def forget_journals(folder: Path) -> None:
    """The ring as an older Holdfast wrote it."""
    edit_ring(folder, lambda fields: (fields.pop("journals"), fields.update(format=1)))


def forget_salt(journal: Path) -> None:
    with closing(open_existing(journal)) as db:
        db.execute("DELETE FROM meta WHERE key = 'task_salt'")


def lose(journal: Path, *more: Path) -> None:
    for path in (*journal.parent.glob(f"{journal.name}*"), *more):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


# two journals


async def test_two_journals_in_one_folder_pay_twice(tmp_path: Path, bank: Bank) -> None:
    berlin, lisbon = tmp_path / "berlin.db", tmp_path / "lisbon.db"
    first, second = await paid(berlin, "ada"), await paid(lisbon, "bob")
    assert (first[1], second[1]) == ("paid ada", "paid bob")
    assert first[0] != second[0]
    assert len(bank.paid) == 2
    assert await paid(berlin, "ada") == first
    assert await paid(lisbon, "bob") == second
    assert len(bank.paid) == 2


async def test_scopes_of_one_name_are_two_tasks(tmp_path: Path, bank: Bank) -> None:
    for name in ("berlin.db", "lisbon.db"):
        async with holdfast.open(tmp_path / name, tools=[pay]) as hf, hf.scope("november") as scope:
            assert await scope.call(pay, slot="pay", to=name) == f"paid {name}"
    assert len(bank.paid) == 2


async def test_two_that_are_first_opened_at_once_share_no_id(tmp_path: Path) -> None:
    names = [tmp_path / f"{n}.db" for n in range(4)]
    found = await asyncio.gather(*(submitted(path) for path in (*names, *names)))
    assert found[:4] == found[4:]
    assert len(set(found)) == 4


async def test_the_first_journal_has_no_salt_and_the_ring_lists_both(tmp_path: Path) -> None:
    for name in ("berlin.db", "lisbon.db"):
        await submitted(tmp_path / name)
    first, second = ring(tmp_path)["journals"]
    assert (first["name"], "salt" in first) == ("berlin.db", False)
    assert (second["name"], len(bytes.fromhex(second["salt"]))) == ("lisbon.db", 16)
    assert ring(tmp_path)["format"] == 3, "an older Holdfast would read it, and derive other ids"


# journals from before


async def test_journals_made_before_there_were_salts_keep_their_ids(tmp_path: Path) -> None:
    """Both of a folder, though they share their ids: another id for an old request would send its effects again."""
    berlin, lisbon = tmp_path / "berlin.db", tmp_path / "lisbon.db"
    (tmp_path / "apart").mkdir(mode=0o700)
    first = await submitted(berlin)
    forget_journals(tmp_path)
    shutil.copy2(tmp_path / "keys.json", tmp_path / "apart" / "keys.json")
    assert await submitted(tmp_path / "apart" / "lisbon.db") == first
    shutil.copy2(tmp_path / "apart" / "lisbon.db", lisbon)
    for journal in (berlin, lisbon):
        forget_salt(journal)
        async with holdfast.open(journal, serve=False) as hf:
            again = await hf.submit(salary, request_id=REQUEST, to="ada")
        assert (again.id, again.created) == (first, False)
    assert [one.get("salt") for one in ring(tmp_path)["journals"]] == [None, None]
    assert ring(tmp_path)["format"] == 1, "an older Holdfast must still read it"
    assert await submitted(tmp_path / "rome.db") != first


# a lost journal


@pytest.mark.parametrize("name", ["berlin.db", "lisbon.db"])
@pytest.mark.parametrize("instance", [True, False], ids=["this machine", "another machine"])
async def test_begun_anew_the_same_request_has_the_same_key(
    tmp_path: Path, bank: Bank, name: str, instance: bool
) -> None:
    """Of the first journal and of a further one; also where nothing but the keys is left."""
    for one in ("berlin.db", "lisbon.db"):
        await paid(tmp_path / one)
    journal = tmp_path / name
    found = await submitted(journal)
    lose(journal, *(() if instance else (tmp_path / "instance",)))
    with pytest.raises(JournalGone):
        await submitted(journal)
    await begin_anew(file_at(journal))
    with pytest.raises(holdfast.TaskParked):
        await paid(journal)
    async with holdfast.open(journal, serve=False) as hf:
        step = (await hf.task(found).view()).steps["1"]
    assert effect_key_from_bytes(step.effect_key) in bank.paid, "sent with another key"
    assert len(bank.paid) == 2


async def test_what_no_ring_knows_does_not_begin_anew(tmp_path: Path) -> None:
    await submitted(tmp_path / "berlin.db")
    with pytest.raises(NotAJournal):
        await begin_anew(file_at(tmp_path / "rome.db"))


async def test_a_new_journal_where_another_is_missing_is_refused(tmp_path: Path) -> None:
    """Nothing but the keys came along: which of the two does the person mean?"""
    first = await submitted(tmp_path / "berlin.db")
    lose(tmp_path / "berlin.db", tmp_path / "instance")
    for name in ("berlin.db", "rome.db"):
        with pytest.raises(JournalGone) as refused:
            await submitted(tmp_path / name)
        assert "berlin.db" in refused.value.message
        assert "--begin-anew" in refused.value.hint
        assert "--new-journal" in refused.value.hint
        assert not (tmp_path / name).exists()
    other = await submitted(tmp_path / "rome.db", new_journal=True)
    assert other != first
    assert await submitted(tmp_path / "rome.db") == other
    with pytest.raises(JournalGone):
        await submitted(tmp_path / "oslo.db")


async def test_a_renamed_journal_is_not_missing(tmp_path: Path) -> None:
    first = await submitted(tmp_path / "berlin.db")
    lose(tmp_path / "berlin.db-wal")
    (tmp_path / "berlin.db").rename(tmp_path / "paris.db")
    assert await submitted(tmp_path / "paris.db") == first
    assert await submitted(tmp_path / "rome.db") != first


async def test_a_journal_that_was_given_up_runs_again_only_as_a_restore(tmp_path: Path) -> None:
    """It and the one that took its place name their tasks alike: only one of them may act."""
    journal, kept = tmp_path / "berlin.db", tmp_path / "kept.db"
    first = await submitted(journal)
    shutil.copy2(journal, kept)
    lose(journal)
    await begin_anew(file_at(journal))
    assert await submitted(journal) == first
    with pytest.raises(JournalOlderCopy) as refused:
        await submitted(kept)
    assert "recover --journal" in refused.value.hint
    await recover_journal(file_at(kept), dry_run=True)
    with pytest.raises(JournalOlderCopy):
        await submitted(kept)
    await recover_journal(file_at(kept))
    assert await submitted(kept) == first
    with pytest.raises(JournalOlderCopy):
        await submitted(journal)


# kills and older rings


class Killed(BaseException):
    pass


def killed(*_: object, **__: object) -> None:
    raise Killed


@pytest.mark.parametrize("where", [(KeyFile, "change_journals"), (SqliteAdmin, "keep_task_salt")])
async def test_a_kill_at_the_first_opening_leaves_a_journal_that_gets_its_salt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: tuple[type, str]
) -> None:
    first = await submitted(tmp_path / "berlin.db")
    with monkeypatch.context() as patch:
        patch.setattr(*where, killed)
        with pytest.raises(Killed):
            await submitted(tmp_path / "lisbon.db")
    second = await submitted(tmp_path / "lisbon.db")
    assert second != first
    lose(tmp_path / "lisbon.db")
    await begin_anew(file_at(tmp_path / "lisbon.db"))
    assert await submitted(tmp_path / "lisbon.db") == second


async def test_a_kill_while_it_begins_anew_loses_no_salt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await submitted(tmp_path / "berlin.db")
    lisbon = tmp_path / "lisbon.db"
    second = await submitted(lisbon)
    lose(lisbon)
    for where in ("keep_task_salt", "restore"):
        with monkeypatch.context() as patch:
            patch.setattr(SqliteAdmin, where, killed)
            with pytest.raises(Killed):
                await begin_anew(file_at(lisbon))
        with pytest.raises(JournalGone):
            await submitted(lisbon)
    await begin_anew(file_at(lisbon))
    assert await submitted(lisbon) == second


async def test_an_older_ring_put_back_changes_no_id(tmp_path: Path) -> None:
    await submitted(tmp_path / "berlin.db")
    older = (tmp_path / "keys.json").read_bytes()
    second = await submitted(tmp_path / "lisbon.db")
    (tmp_path / "keys.json").write_bytes(older)
    assert await submitted(tmp_path / "lisbon.db") == second
    assert [one["name"] for one in ring(tmp_path)["journals"]] == ["berlin.db", "lisbon.db"]
    lose(tmp_path / "lisbon.db")
    await begin_anew(file_at(tmp_path / "lisbon.db"))
    assert await submitted(tmp_path / "lisbon.db") == second


async def test_another_salt_in_the_ring_is_refused(tmp_path: Path) -> None:
    for name in ("berlin.db", "lisbon.db"):
        await submitted(tmp_path / name)
    edit_ring(tmp_path, lambda fields: fields["journals"][1].update(salt="ab" * 16))
    with pytest.raises(KeysWrong):
        await submitted(tmp_path / "lisbon.db")


async def test_a_ring_that_cannot_be_written_takes_no_further_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one needs no salt and is opened; the second would be lost with its journal."""

    def refused(*_: object) -> None:
        raise ReadOnly("the keys cannot be written")

    with monkeypatch.context() as patch:
        patch.setattr(KeyFile, "change_journals", refused)
        first = await submitted(tmp_path / "berlin.db")
        for _ in range(2):
            with pytest.raises(ReadOnly):
                await submitted(tmp_path / "lisbon.db")
    assert await submitted(tmp_path / "lisbon.db") != first
    assert await submitted(tmp_path / "berlin.db") == first
    assert [one["name"] for one in ring(tmp_path)["journals"]] == ["lisbon.db", "berlin.db"]
