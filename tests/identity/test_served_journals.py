"""Which journals a vault's ring serves: in every copy of the escrow before a task has an id, and with its signer."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import cast

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from test_moved_keys import greet, vault_for

import holdfast
from holdfast.core.clock import SystemClock
from holdfast.core.journal_address import file_at
from holdfast.core.served import ServedJournal, with_heir, with_journal
from holdfast.demo.machine import AGENT, Machine, give_identity
from holdfast.errors import BadInput, PlaceMissing, VaultDamaged
from holdfast.identity.journal_keys.vault_keys import move_keys, open_ring, read_keys
from holdfast.identity.paper.derive import PaperKeys
from holdfast.identity.paper.phrase import Phrase
from holdfast.identity.speaker.signer import LENGTH, SignerService
from holdfast.identity.speaker.signer_client import SignerClient, SignerRing
from holdfast.identity.speaker.speaker import Speaker
from holdfast.identity.vault.ring import Escrow, JournalKeys, VaultRing, change, open_escrow, read_escrow, with_place
from holdfast.identity.vault.vault import Vault, open_vault
from holdfast.layout.settings import find_settings
from holdfast.recovery.recover_journal import begin_anew

FIRST = ServedJournal(id="0a" * 8, name="berlin.db")
SECOND = ServedJournal(id="0b" * 8, name="lisbon.db", salt=bytes(range(16)))


async def submitted(journal: Path) -> str:
    async with holdfast.open(journal, serve=False) as hf:
        return (await hf.submit(greet, request_id="2026-11", name="ada")).id


def escrow_at(folder: Path, phrase: Phrase) -> Escrow:
    return open_escrow((folder / "escrow.age").read_bytes(), PaperKeys(phrase).escrow())


async def in_a_vault(folder: Path, phrase: Phrase) -> tuple[Path, Vault, str]:
    """A home with one journal whose keys are in a vault, as an identity leaves it."""
    home = folder / "home"
    home.mkdir(0o700)
    first = await submitted(home / "berlin.db")
    vault = vault_for(folder, phrase, read_keys(home / "keys.json"))
    move_keys(home / "keys.json", vault)
    change(vault, lambda escrow: with_place(escrow, home))
    return home, vault, first


async def test_a_salt_is_in_every_copy_of_the_escrow_before_the_first_task(tmp_path: Path, phrase: Phrase) -> None:
    home, vault, first = await in_a_vault(tmp_path, phrase)
    async with holdfast.open(home / "lisbon.db", serve=False):
        kept = escrow_at(home, phrase)
    assert kept == read_escrow(vault)
    assert [(one.name, len(one.salt)) for one in kept.keys.journals] == [("berlin.db", 0), ("lisbon.db", 16)]
    second = await submitted(home / "lisbon.db")
    assert second != first == await submitted(home / "berlin.db")
    for path in home.glob("lisbon.db*"):
        path.unlink()
    await begin_anew(file_at(home / "lisbon.db"))
    assert await submitted(home / "lisbon.db") == second
    assert escrow_at(home, phrase) == read_escrow(vault)


async def test_a_journal_from_before_its_agent_had_a_name_keeps_its_ids(tmp_path: Path) -> None:
    """The name of an agent enters its task ids; a request that is submitted again after `init` is still one task."""
    home = tmp_path / "home"
    home.mkdir(0o700)
    journal, settings = home / "journal.db", home / "holdfast.toml"
    settings.touch(0o600)
    settings.write_text("# ours\n[journal]\nallow_network_fs = false\n")
    first = await submitted(journal)
    await give_identity(home, Machine(tmp_path / "machine"))
    assert "# ours" in settings.read_text()
    found = find_settings(file_at(journal))
    assert (found.agent, found.scope) == (AGENT, "default")
    async with holdfast.open(journal, settings=found, serve=False) as hf:
        again = await hf.submit(greet, request_id="2026-11", name="ada")
        assert (again.id, again.created) == (first, False)
    for path in home.glob("journal.db*"):
        path.unlink()
    await begin_anew(file_at(journal))
    async with holdfast.open(journal, settings=found, serve=False) as hf:
        assert (await hf.submit(greet, request_id="2026-11", name="ada")).id == first


async def test_an_agent_that_is_new_has_its_name_as_the_scope(tmp_path: Path) -> None:
    home, _ = await give_identity(tmp_path / "home", Machine(tmp_path / "machine"))
    assert find_settings(home.journal).scope == AGENT
    assert "request_scope" not in home.settings_file.read_text()


async def test_no_further_journal_where_a_copy_cannot_be_written(tmp_path: Path, phrase: Phrase) -> None:
    home, vault, first = await in_a_vault(tmp_path, phrase)
    stick = tmp_path / "stick"
    stick.mkdir(0o700)
    change(vault, lambda escrow: with_place(escrow, stick))
    shutil.rmtree(stick)
    with pytest.raises(PlaceMissing, match="stick"):
        await submitted(home / "lisbon.db")
    assert [one.name for one in read_escrow(vault).keys.journals] == ["berlin.db"]
    assert await submitted(home / "berlin.db") == first
    stick.mkdir(0o700)
    assert await submitted(home / "lisbon.db") != first
    assert escrow_at(stick, phrase) == read_escrow(vault)


async def test_a_journal_from_before_runs_on_where_its_vault_cannot_be_written(tmp_path: Path, phrase: Phrase) -> None:
    """Its ids are the same, listed or not."""
    home, vault, first = await in_a_vault(tmp_path, phrase)
    ring = VaultRing(vault)
    ring.change_journals(lambda _: ())
    change(vault, lambda escrow: with_place(escrow, tmp_path / "second"))
    shutil.rmtree(tmp_path / "second")
    assert await submitted(home / "berlin.db") == first
    assert read_escrow(vault).keys.journals == ()


async def test_salts_move_with_the_keys_into_a_vault(tmp_path: Path, phrase: Phrase) -> None:
    home = tmp_path / "home"
    home.mkdir(0o700)
    found = [await submitted(home / name) for name in ("berlin.db", "lisbon.db")]
    keys = read_keys(home / "keys.json")
    assert len(keys.journals) == 2
    without = JournalKeys(k_effect=keys.k_effect, current=keys.current, journal_keys=keys.journal_keys)
    (tmp_path / "b").mkdir(0o700)
    with pytest.raises(VaultDamaged):
        move_keys(home / "keys.json", vault_for(tmp_path / "b", phrase, without))
    move_keys(home / "keys.json", vault_for(tmp_path, phrase, keys))
    assert open_ring((home / "keys.json").read_bytes(), where=home / "keys.json").journals == keys.journals
    assert found == [await submitted(home / name) for name in ("berlin.db", "lisbon.db")]


def test_a_signer_tells_the_journals_and_adds_none(tmp_path: Path, phrase: Phrase) -> None:
    vault = vault_for(tmp_path, phrase, None)
    (tmp_path / "place").mkdir(0o700)
    change(vault, lambda escrow: with_place(escrow, tmp_path / "place"))
    ring = VaultRing(vault)
    for one in (FIRST, SECOND):
        ring.change_journals(lambda served, one=one: with_journal(served, one))

    service = SignerService(cast("Speaker", None), VaultRing(open_vault(vault.folder)), clock=SystemClock())

    class Client(SignerClient):
        def _exchange(self, frame: bytes) -> bytes:
            return service.answer(frame[LENGTH.size :], user=0)[1][LENGTH.size :]

    found = SignerRing(Client(tmp_path / "sock"))
    assert found.journals == (FIRST, SECOND)
    with pytest.raises(BadInput, match="adds no journal"):
        found.change_journals(lambda served: served)


def test_an_heir_takes_the_salt_by_id_else_by_name() -> None:
    served = (FIRST, SECOND)
    heir = "0c" * 8
    by_id = with_heir(served, heir, lost=[SECOND.id], name="rome.db")
    assert by_id == (FIRST, ServedJournal(id=heir, name="rome.db", salt=SECOND.salt, was=(SECOND.id,)))
    by_name = with_heir(served, heir, lost=[], name="lisbon.db")
    assert by_name[1] == ServedJournal(id=heir, name="lisbon.db", salt=SECOND.salt, was=(SECOND.id,))
    unknown = with_heir((), heir, lost=[FIRST.id], name="berlin.db")
    assert unknown == (ServedJournal(id=heir, name="berlin.db", was=(FIRST.id,)),)
    back = with_heir(by_id, SECOND.id, lost=[SECOND.id], name="lisbon.db")
    assert back[1] == ServedJournal(id=SECOND.id, name="lisbon.db", salt=SECOND.salt, was=(heir,))
