"""The vault: its slots, its limits, its modes, and who can open what."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from holdfast.core.clock import SystemEntropy
from holdfast.errors import (
    BadInput,
    KeysWrong,
    ModeTooWide,
    SymlinkRefused,
    VaultDamaged,
    VaultExists,
    VaultLocked,
    VaultMissing,
    WrongOwner,
)
from holdfast.identity.paper.derive import PaperKeys
from holdfast.identity.paper.phrase import Phrase
from holdfast.identity.records.secret_bytes import KeyPair
from holdfast.identity.vault import slots
from holdfast.identity.vault.keyset import KeySet, create_vaults, get_op
from holdfast.identity.vault.ring import VaultRing, change, open_escrow, read_escrow, with_place
from holdfast.identity.vault.slots import (
    Argon2Work,
    UnlockKey,
    credential_key,
    file_key,
    new_unlock_text,
    passphrase_key,
)
from holdfast.identity.vault.vault import Vault, open_vault, read_slots, read_vault_id
from holdfast.testing.clocks import SeededEntropy
from holdfast_proofs.support.vectors import vectors

PASSPHRASE = "correct horse battery staple"
ENTROPY = SystemEntropy()
SECOND = file_key(Path("/second"), new_unlock_text(SeededEntropy(2)))


def made(folder: Path, phrase: Phrase, *keys: UnlockKey, op: KeyPair | None = None) -> Vault:
    """A vault that a file opens, beside whatever else is asked."""
    unlock = folder / "unlock"
    if not unlock.exists():
        unlock.touch(0o600)
        unlock.write_bytes(new_unlock_text(SeededEntropy(1)))
    vault, _ = create_vaults(
        folder / "vault",
        folder / "second",
        escrow=PaperKeys(phrase).escrow().recipient,
        keys=[file_key(unlock, unlock.read_bytes()), *keys],
        second_keys=[SECOND],
        entropy=ENTROPY,
        op=op,
    )
    return vault


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))


def test_argon2id_vectors() -> None:
    """The suite's rows, through the same function that the slots use."""
    rows = (vectors("kdf") / "argon2id.txt").read_text().split("COUNT = ")[1:]
    for row in rows:
        fields = dict(re.findall(r"^(\w+) ?= ?(\w*)$", row, re.M))
        found = Argon2id(
            salt=bytes.fromhex(fields["salt"]),
            length=int(fields["length"]),
            iterations=int(fields["iter"]),
            lanes=int(fields["lanes"]),
            memory_cost=int(fields["memcost"]),
            ad=bytes.fromhex(fields.get("ad", "")) or None,
            secret=bytes.fromhex(fields.get("secret", "")) or None,
        ).derive(bytes.fromhex(fields["pass"]))
        assert found.hex() == fields["output"]
    assert len(rows) >= 6


def test_a_passphrase_opens_however_it_is_composed_and_another_does_not(
    tmp_path: Path, phrase: Phrase, measured: Callable[[str], None]
) -> None:
    made(tmp_path, phrase, passphrase_key("caf\u00e9 au lait"))
    (tmp_path / "unlock").unlink()
    began = time.perf_counter()
    vault = open_vault(tmp_path / "vault", ask=lambda: "cafe\u0301 au lait")
    measured(f"vault: unlock by passphrase {time.perf_counter() - began:.2f} s")
    assert vault.read("op")["current"]["public"]
    for wrong in ("cafe au lait", "short"):
        with pytest.raises(VaultLocked) as caught:
            open_vault(tmp_path / "vault", ask=lambda wrong=wrong: wrong)
        assert wrong not in str(caught.value)
    with pytest.raises(VaultLocked) as locked:
        open_vault(tmp_path / "vault")
    assert str(tmp_path / "vault") in locked.value.message
    assert f"the file {tmp_path / 'unlock'} is missing" in locked.value.message
    assert "its passphrase is needed, and there is no terminal to ask for it" in locked.value.message
    assert f"mount or restore {tmp_path / 'unlock'}; or type the passphrase" in locked.value.hint


def test_work_outside_the_limits_is_refused_before_any_is_done(tmp_path: Path, phrase: Phrase) -> None:
    made(tmp_path, phrase, passphrase_key(PASSPHRASE))
    (tmp_path / "unlock").unlink()
    file = tmp_path / "vault" / "slots.json"
    good = file.read_text()
    for field, value, said in (
        ("passes", 2, "too weak"),
        ("memory_kib", 65_535, "too weak"),
        ("lanes", 0, "too weak"),
        ("passes", 17, "too expensive"),
        ("memory_kib", 100 << 20, "too expensive"),
        ("lanes", 1 << 20, "too expensive"),
        ("memory_kib", -1, "too weak"),
        ("passes", 13, "too expensive"),
    ):
        file.write_text(good)
        edit(file, lambda all_, f=field, v=value: all_["slots"][1]["work"].update({f: v}))
        with (
            patch.object(slots, "Argon2id", side_effect=AssertionError("work was done")),
            pytest.raises(VaultDamaged, match=said),
        ):
            open_vault(tmp_path / "vault", ask=lambda: PASSPHRASE)
    (tmp_path / "b").mkdir(0o700)
    with pytest.raises(VaultDamaged, match="too weak"):
        made(tmp_path / "b", phrase, passphrase_key(PASSPHRASE, Argon2Work(passes=1)))


def test_every_changed_field_of_a_slot_keeps_it_shut(tmp_path: Path, phrase: Phrase) -> None:
    made(tmp_path, phrase, passphrase_key(PASSPHRASE))
    (tmp_path / "unlock").unlink()
    file = tmp_path / "vault" / "slots.json"
    good = file.read_text()
    changes: list[Callable[[dict[str, Any]], object]] = [
        lambda all_: all_.update(vault="0" * 16),
        lambda all_: all_["slots"][1].update(id="00000000"),
        lambda all_: all_["slots"][1].update(source="elsewhere"),
        lambda all_: all_["slots"][1].update(salt=all_["slots"][0]["salt"]),
        lambda all_: all_["slots"][1].update(nonce=all_["slots"][0]["nonce"]),
        lambda all_: all_["slots"][1].update(sealed=all_["slots"][0]["sealed"]),
        lambda all_: all_["slots"][1]["work"].update(passes=4),
        lambda all_: all_["slots"][1]["work"].update(lanes=1),
        lambda all_: all_["slots"][1].update(kind="file", work=None),
        lambda all_: all_["slots"][1].update(kind="other"),
        lambda all_: all_["slots"][1].update(more=1),
        lambda all_: all_["slots"][1].update(salt="%%"),
        lambda all_: all_.update(format=2),
        lambda all_: all_.update(slots=[]),
    ]
    for one in changes:
        file.write_text(good)
        edit(file, one)
        with pytest.raises((VaultLocked, VaultDamaged)):
            open_vault(tmp_path / "vault", ask=lambda: PASSPHRASE)
    file.write_text(good)
    assert open_vault(tmp_path / "vault", ask=lambda: PASSPHRASE)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff", b'{"format":1}', b"[" * 100_000])
def test_garbage_for_slots_is_refused(tmp_path: Path, phrase: Phrase, raw: bytes) -> None:
    made(tmp_path, phrase)
    (tmp_path / "vault" / "slots.json").write_bytes(raw)
    with pytest.raises(VaultDamaged if len(raw) < 64_000 else Exception):
        open_vault(tmp_path / "vault")


def test_a_mounted_file_opens_without_a_person_and_is_judged_by_its_target(tmp_path: Path, phrase: Phrase) -> None:
    made(tmp_path, phrase)
    unlock, mounted = tmp_path / "unlock", tmp_path / "mounted"
    unlock.rename(mounted)
    unlock.symlink_to(mounted)
    assert open_vault(tmp_path / "vault").read("op")
    mounted.chmod(0o640)
    with pytest.raises(ModeTooWide, match="0640"):
        open_vault(tmp_path / "vault")
    mounted.chmod(0o400)
    mounted.chmod(0o600)
    mounted.write_text("not a key")
    with pytest.raises(VaultLocked, match="does not contain an unlock key") as caught:
        open_vault(tmp_path / "vault")
    assert "not a key" not in str(caught.value)
    mounted.unlink()
    with pytest.raises(VaultLocked):
        open_vault(tmp_path / "vault")


def test_a_systemd_credential_opens_without_a_person(
    tmp_path: Path, phrase: Phrase, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = new_unlock_text(SeededEntropy(3))
    made(tmp_path, phrase, credential_key("holdfast-vault", text))
    (tmp_path / "unlock").unlink()
    given = tmp_path / "credentials"
    given.mkdir(0o700)
    (given / "holdfast-vault").write_bytes(text)
    (given / "holdfast-vault").chmod(0o440)
    with pytest.raises(VaultLocked):
        open_vault(tmp_path / "vault")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(given))
    if os.geteuid() == 0:  # the administrator's, with an access list: the mask shows as 0440
        assert open_vault(tmp_path / "vault").read("op")
    (given / "holdfast-vault").chmod(0o444)
    with pytest.raises(ModeTooWide):
        open_vault(tmp_path / "vault")
    (given / "holdfast-vault").chmod(0o400)
    assert open_vault(tmp_path / "vault").read("op")


def test_wider_modes_and_other_owners_are_refused(tmp_path: Path, phrase: Phrase) -> None:
    vault = made(tmp_path, phrase)
    for path in (vault.folder, vault.folder / "slots.json", vault.folder / "op.age"):
        kept = path.stat().st_mode
        path.chmod(kept | 0o040)
        with pytest.raises(ModeTooWide):
            open_vault(vault.folder).read("op")
        path.chmod(kept)
    if os.geteuid() == 0:
        os.chown(vault.folder / "op.age", 12_345, -1)
        with pytest.raises(WrongOwner):
            open_vault(vault.folder).read("op")
    for path in vault.folder.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
    assert vault.folder.stat().st_mode & 0o777 == 0o700


def test_a_link_in_the_place_of_the_folder_is_refused(tmp_path: Path, phrase: Phrase) -> None:
    """Through it a vault would open, and a rotation find out at its first write that it cannot."""
    vault = made(tmp_path, phrase)
    link = tmp_path / "link"
    link.symlink_to(vault.folder)
    for act in (open_vault, read_slots, read_vault_id):
        with pytest.raises(SymlinkRefused) as caught:
            act(link)
        assert str(link) in caught.value.message
        assert str(vault.folder) in caught.value.hint
    above = tmp_path / "above"
    above.symlink_to(tmp_path)
    assert open_vault(above / "vault").read("op"), "what lies above is not a vault's to judge"


def test_a_vault_mounted_through_links_opens(tmp_path: Path, phrase: Phrase) -> None:
    """As containers mount secrets: every name leads to a file in a folder that is exchanged."""
    vault = made(tmp_path, phrase)
    data = tmp_path / "data"
    shutil.copytree(vault.folder, data)
    mount = tmp_path / "mount"
    mount.mkdir(0o700)
    for file in data.iterdir():
        (mount / file.name).symlink_to(file)
    assert VaultRing(open_vault(mount)).k_effect == VaultRing(vault).k_effect
    (data / "escrow.age").chmod(0o644)
    with pytest.raises(ModeTooWide):
        VaultRing(open_vault(mount))


def test_what_is_there_is_never_written_over(tmp_path: Path, phrase: Phrase) -> None:
    vault = made(tmp_path, phrase)
    before = {file.name: file.read_bytes() for file in vault.folder.iterdir()}
    with pytest.raises(VaultExists):
        made(tmp_path, phrase)
    shutil.rmtree(tmp_path / "second")
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "notes").write_text("of somebody")
    with pytest.raises(VaultExists):
        made(tmp_path, phrase)
    assert before == {file.name: file.read_bytes() for file in vault.folder.iterdir()}
    assert (tmp_path / "second" / "notes").exists()
    with pytest.raises(VaultMissing):
        open_vault(tmp_path / "elsewhere")


def test_files_of_another_vault_or_another_name_are_refused(tmp_path: Path, phrase: Phrase) -> None:
    vault = made(tmp_path, phrase)
    (tmp_path / "b").mkdir(0o700)
    other = made(tmp_path / "b", phrase)
    op = (vault.folder / "op.age").read_bytes()
    (vault.folder / "escrow.age").write_bytes(op)
    with pytest.raises(VaultDamaged):
        read_escrow(vault)
    (vault.folder / "op.age").write_bytes((other.folder / "op.age").read_bytes())
    with pytest.raises(VaultDamaged):
        vault.read("op")
    forged = vault.sealed("op", {"current": {"public": "00", "seed": "zz"}})
    (vault.folder / "op.age").write_bytes(forged)
    with pytest.raises(VaultDamaged):
        get_op(vault, bytes(32))


def test_the_running_agent_cannot_read_the_next_key(tmp_path: Path, phrase: Phrase) -> None:
    vault = made(tmp_path, phrase)
    raw = (tmp_path / "second" / "next.age").read_bytes()
    with pytest.raises(VaultLocked):
        vault.unsealed("next", raw)
    with pytest.raises(VaultLocked):
        open_vault(tmp_path / "second")
    keys = KeySet(ops=vault, nexts=open_vault(tmp_path / "second", given=SECOND))
    assert keys.get_next(keys.current().next).signs_for(keys.current().next)


def test_an_imported_key_becomes_the_first_operational_key(tmp_path: Path, phrase: Phrase) -> None:
    mine = KeyPair.new(SeededEntropy(5))
    vault = made(tmp_path, phrase, op=mine)
    assert get_op(vault, mine.public_bytes).sign(b"x") == mine.sign(b"x")


def test_a_rotation_is_staged_found_again_and_settled(tmp_path: Path, phrase: Phrase) -> None:
    vault = made(tmp_path, phrase)
    keys = KeySet(ops=vault, nexts=open_vault(tmp_path / "second", given=SECOND))
    old = keys.current()
    staged = keys.stage(ENTROPY)
    assert keys.stage(ENTROPY) == staged == keys.find_pending()
    assert keys.settle(op=old.op) == old
    assert keys.settle(op=staged.op) == keys.settle(op=staged.op) == staged
    assert keys.find_pending() is None
    for gone in (lambda: keys.get_op(old.op), lambda: keys.get_next(old.next)):
        with pytest.raises(VaultDamaged):
            gone()
    with pytest.raises(VaultDamaged, match="is not in this vault"):
        keys.settle(op=bytes(32))
    keys.stage(ENTROPY)
    keys.abandon()
    assert (keys.current(), keys.find_pending()) == (staged, None)


def test_slots_can_be_added_and_exchanged(tmp_path: Path, phrase: Phrase) -> None:
    vault = made(tmp_path, phrase)
    added = vault.add_slot(SECOND, ENTROPY)
    assert open_vault(vault.folder, given=SECOND).vault_id == vault.vault_id
    with pytest.raises(BadInput):
        vault.add_slot(SECOND, ENTROPY, replace="none")
    third = file_key(Path("/third"), new_unlock_text(SeededEntropy(9)))
    vault.add_slot(third, ENTROPY, replace=added.id)
    with pytest.raises(VaultLocked):
        open_vault(vault.folder, given=SECOND)
    assert open_vault(vault.folder, given=third)


def test_a_new_journal_key_needs_a_second_place_and_other_workers_find_it(tmp_path: Path, phrase: Phrase) -> None:
    vault = made(tmp_path, phrase)
    ring, other = VaultRing(vault), VaultRing(open_vault(vault.folder))
    with pytest.raises(BadInput, match="no copy of it outside the vault"):
        ring.add_journal_key(ENTROPY)
    place = tmp_path / "place"
    place.mkdir(0o700)
    change(vault, lambda escrow: with_place(escrow, place))
    assert ring.add_journal_key(ENTROPY) == 2
    assert other.current_journal_key == 1
    assert other.journal_key(2) == ring.journal_key(2) != ring.journal_key(1)
    assert other.current_journal_key == 2
    with pytest.raises(KeysWrong):
        other.journal_key(3)
    kept = open_escrow((place / "escrow.age").read_bytes(), PaperKeys(phrase).escrow())
    assert kept == read_escrow(vault)
    shutil.rmtree(place)
    with pytest.raises(Exception, match="place"):
        ring.add_journal_key(ENTROPY)
    assert read_escrow(vault).keys.current == 2


def test_backup_passphrases_depend_on_root_and_place(tmp_path: Path, phrase: Phrase) -> None:
    escrow = read_escrow(made(tmp_path, phrase))
    assert escrow.backup_passphrase("a") == escrow.backup_passphrase("a")
    assert escrow.backup_passphrase("a") != escrow.backup_passphrase("b")


def test_stock_age_opens_the_files_with_the_key_of_the_paper(tmp_path: Path, phrase: Phrase) -> None:
    vault = made(tmp_path, phrase)
    identity = PaperKeys(phrase).escrow().reveal()
    for path, field in (
        (vault.folder / "escrow.age", "ring"),
        (vault.folder / "op.age", "current"),
        (tmp_path / "second" / "next.age", "current"),
        (tmp_path / "second" / "escrow.age", "ring"),
    ):
        done = subprocess.run(
            ["age", "-d", "-i", "-", str(path)], input=identity.encode(), capture_output=True, check=True
        )
        assert field in json.loads(done.stdout)


def test_nothing_open_shows_what_it_holds(tmp_path: Path, phrase: Phrase) -> None:
    vault = made(tmp_path, phrase)
    escrow = read_escrow(vault)
    shown = repr((vault, VaultRing(vault), escrow, vault.list_slots(), SECOND, vault.identity))
    for secret in (
        escrow.vault_key,
        escrow.vault_root.hex(),
        escrow.keys.k_effect.hex(),
        escrow.keys.journal_keys[1].hex(),
        repr(escrow.keys.k_effect)[2:12],
        vault.read("op")["current"]["seed"],
        SECOND.secret.reveal().hex(),
    ):
        assert secret not in shown
    vault.wipe()
    with pytest.raises(ValueError, match="wiped"):
        vault.identity.reveal()
