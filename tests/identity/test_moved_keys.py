"""keys.json moves into a vault without a break, and several workers open the same key set."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.errors import KeysWrong, VaultDamaged, VaultLocked, VaultMissing
from holdfast.identity.journal_keys.keyfile import KeyFile, parse, read
from holdfast.identity.journal_keys.secret_file import SecretFile
from holdfast.identity.journal_keys.vault_keys import move_keys, open_ring, point_keys, read_keys
from holdfast.identity.paper.derive import PaperKeys
from holdfast.identity.paper.phrase import Phrase
from holdfast.identity.vault.keyset import create_vaults
from holdfast.identity.vault.ring import JournalKeys
from holdfast.identity.vault.slots import file_key, new_unlock_text
from holdfast.identity.vault.vault import Vault
from holdfast.testing.clocks import SeededEntropy

ENTROPY = SystemEntropy()


@holdfast.task
async def greet(run: holdfast.Run, name: str) -> str:
    return f"hello {name}"


def vault_for(folder: Path, phrase: Phrase, ring: JournalKeys | None) -> Vault:
    unlock = folder / "unlock"
    unlock.touch(0o600)
    unlock.write_bytes(new_unlock_text(SeededEntropy(1)))
    second = file_key(Path("/second"), new_unlock_text(SeededEntropy(2)))
    vault, _ = create_vaults(
        folder / "vault",
        folder / "second",
        escrow=PaperKeys(phrase).escrow().recipient,
        keys=[file_key(unlock, unlock.read_bytes())],
        second_keys=[second],
        entropy=ENTROPY,
        ring=ring,
    )
    return vault


@pytest.mark.parametrize("linked", [False, True], ids=["before it had its name", "after"])
def test_a_set_up_that_was_killed_leaves_nothing_beside_the_keys(tmp_path: Path, phrase: Phrase, linked: bool) -> None:
    vault, home = vault_for(tmp_path, phrase, None), tmp_path / "home"
    home.mkdir(0o700)
    cut = home / ".keys.json.0123456789abcdef.new"
    cut.touch(0o600)
    if linked:
        point_keys(home / "keys.json", vault)
        os.link(home / "keys.json", cut)
    point_keys(home / "keys.json", vault)
    assert os.listdir(home) == ["keys.json"]
    assert open_ring((home / "keys.json").read_bytes(), where=home / "keys.json").k_effect


async def test_a_journal_goes_on_with_its_keys_in_a_vault(tmp_path: Path, phrase: Phrase) -> None:
    home = tmp_path / "home"
    home.mkdir(0o700)
    async with holdfast.open(home / "journal.db", tasks=[greet]) as hf:
        first = await hf.submit(greet, name="ada", request_id="one")
        assert await first.result() == "hello ada"
    keys = read_keys(home / "keys.json")
    SecretFile(home, keys=open_file(home), clock=SystemClock(), entropy=ENTROPY).set("token", "a value of some length")
    vault = vault_for(tmp_path, phrase, keys)
    old = os.open(home / "keys.json", os.O_RDONLY)
    move_keys(home / "keys.json", vault)
    move_keys(home / "keys.json", vault)
    assert keys.k_effect.hex() not in (home / "keys.json").read_text()
    assert keys.k_effect.hex().encode() not in os.read(old, 4096)  # what lay on the disk is gone
    os.close(old)
    async with (
        holdfast.open(home / "journal.db", tasks=[greet]) as hf,
        holdfast.open(home / "journal.db", tasks=[greet]) as other,
    ):
        again = await hf.submit(greet, name="ada", request_id="one")
        assert (again.id, await again.result()) == (first.id, "hello ada")
        assert await (await other.submit(greet, name="bob")).result() == "hello bob"
    ring = open_ring((home / "keys.json").read_bytes(), where=home / "keys.json")
    store = SecretFile(home, keys=ring, clock=SystemClock(), entropy=ENTROPY)
    assert store.find_value("token", 1) == "a value of some length"
    assert store.rotate("token", "another value of it") == 2
    with pytest.raises(KeysWrong, match="already in a vault"):
        read_keys(home / "keys.json")


def open_file(home: Path) -> KeyFile:
    return parse(read(home / "keys.json"), where="keys.json")


async def test_a_missing_or_shut_vault_is_told_and_nothing_is_made_anew(tmp_path: Path, phrase: Phrase) -> None:
    home = tmp_path / "home"
    home.mkdir(0o700)
    async with holdfast.open(home / "journal.db", tasks=[greet]):
        pass
    vault = vault_for(tmp_path, phrase, read_keys(home / "keys.json"))
    move_keys(home / "keys.json", vault)
    (tmp_path / "unlock").rename(tmp_path / "away")
    with pytest.raises(VaultLocked, match="unlock is missing"):
        async with holdfast.open(home / "journal.db", tasks=[greet]):
            pass
    (tmp_path / "away").rename(tmp_path / "unlock")
    vault.folder.rename(tmp_path / "gone")
    with pytest.raises(VaultMissing):
        async with holdfast.open(home / "journal.db", tasks=[greet]):
            pass
    (tmp_path / "gone").rename(vault.folder)
    async with holdfast.open(home / "journal.db", tasks=[greet]):
        pass


def test_keys_do_not_move_into_a_vault_that_lacks_them(tmp_path: Path, phrase: Phrase) -> None:
    home = tmp_path / "home"
    home.mkdir(0o700)
    asyncio.run(_make(home))
    before = (home / "keys.json").read_bytes()
    vault = vault_for(tmp_path, phrase, None)
    with pytest.raises(VaultDamaged, match="does not have the keys"):
        move_keys(home / "keys.json", vault)
    assert (home / "keys.json").read_bytes() == before


async def _make(home: Path) -> None:
    async with holdfast.open(home / "journal.db", tasks=[greet]):
        pass


@pytest.mark.parametrize(
    "fields",
    [
        {"format": 2, "vault": "relative", "id": "x"},
        {"format": 2, "vault": 7, "id": "x"},
        {"format": 2, "vault": "/v"},
        {"format": 2, "vault": "/v", "id": "x", "more": 1},
    ],
)
def test_a_malformed_pointer_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(KeysWrong):
        open_ring(json.dumps(fields).encode(), where=Path("keys.json"))


def test_importing_holdfast_loads_no_identity_nor_does_a_journal_without_a_vault(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys, holdfast\n"
        "async def main():\n"
        "    async with holdfast.open(sys.argv[1], tasks=[]): pass\n"
        "asyncio.run(main())\n"
        "loaded = [name for name in sys.modules if name.startswith('holdfast.identity.')]\n"
        "print([name for name in loaded if 'journal_keys' not in name])\n"
    )
    home = tmp_path / "home"
    home.mkdir(0o700)
    done = subprocess.run(
        [sys.executable, "-c", program, str(home / "journal.db")], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
