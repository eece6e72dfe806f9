"""Row 24 over backups, recoveries and moves: nothing secret is where it does not belong."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from test_canaries import planted
from test_canary_commands import Machine, keys_of

from holdfast.identity.paper.phrase import read_phrase
from holdfast.identity.vault.keyset import NEXT, OP
from holdfast.identity.vault.ring import read_escrow
from holdfast.identity.vault.slots import file_key, passphrase_key
from holdfast.identity.vault.vault import open_vault
from holdfast_proofs.canaries.traces import files_below, hits
from holdfast_proofs.support.warm_start import WARM_BORG

PLACES = ("nas", "host")


def secrets_of(root: Path, passphrase: str) -> list[str]:
    """What the vaults hold, and what opens the repositories."""
    unlock = root / "unlock"
    with open_vault(root / "vault", given=file_key(unlock, unlock.read_bytes())) as vault:
        found = keys_of(vault, OP)
        escrow = read_escrow(vault)
        found += [escrow.backup_passphrase(name).reveal().decode() for name in PLACES]
    with open_vault(root / "second", given=passphrase_key(passphrase)) as vault:
        return [*found, *keys_of(vault, NEXT)]


@pytest.mark.slow
def test_row_24_backups_recoveries_and_moves_leave_no_secret(tmp_path: Path) -> None:
    hf, passphrase, token = Machine(tmp_path), secrets.token_urlsafe(24), secrets.token_urlsafe(24)
    keys = (
        "--vault",
        str(tmp_path / "vault"),
        "--second",
        str(tmp_path / "second"),
        "--unlock-file",
        str(tmp_path / "unlock"),
    )
    opened = {"--second-passphrase-fd": passphrase}
    _, words = hf("init", "ada", *keys, given=opened, wanted="--words-fd")
    phrase = read_phrase(words)
    canaries = [*planted(phrase, passphrase), token, *secrets_of(tmp_path, passphrase)]
    hf("secret", "set", "shop", "--journal", str(tmp_path / "ada"), given={"--from-fd": token})
    (tmp_path / "nas").mkdir(0o700)
    (tmp_path / "far").mkdir(0o700)
    with (tmp_path / "ada" / "holdfast.toml").open("a") as settings:
        settings.write(f'\n[backup]\nborg = "{os.environ[WARM_BORG]}"\n')
    hf("place", "add", "nas", str(tmp_path / "nas"))
    hf("place", "add", "host", f"ssh://a@far.example{tmp_path}/far/ada", "--rsh", served(tmp_path))
    hf("backup", "now")
    hf("backup", "verify", "nas", "--json")
    hf("backup", "prune", "--dry-run")
    hf("migrate", "export", str(tmp_path / "ada.move"))
    hf(
        "migrate",
        "import",
        str(tmp_path / "ada.move"),
        "--home",
        str(tmp_path / "moved"),
        "--vault",
        str(tmp_path / "vault"),
    )
    for name in ("ada", "moved", "vault", "second", "unlock", "ada.move"):
        path = tmp_path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    near = ("recover", "--place", str(tmp_path / "nas"))
    rescue = (*near, "--place", f"ssh://a@far.example{tmp_path}/far/ada", "--rsh", served(tmp_path))
    wrong = " ".join(("zoo", "zoo", *phrase.words[2:]))
    hf(*rescue, "--dry-run", "--json", given={"--words-fd": words})
    hf(*near, "--dry-run", given={"--words-fd": wrong}, code=2)
    hf(*near, "--file", "identity.json", "--to", str(tmp_path / "some"), given={"--words-fd": words})
    hf(*rescue, *keys, "--yes", given={"--words-fd": words, **opened})
    canaries += secrets_of(tmp_path, passphrase)
    found = [one for one in files_below(tmp_path) if one[0] != "unlock"]
    names = {name for name, _ in found}
    assert {"ada/kel.jsonl", "vault/op.age", "some/identity.json"} <= names
    assert any(name.startswith("nas/ada/repository/data/") for name in names)
    variables = [raw for name, raw in hf.said if name.endswith("/proc/environ")]
    assert any(b"BORG_PASSPHRASE_FD=" in raw for raw in variables), "Borg was looked at"
    assert any(b"far.example" in raw for name, raw in hf.said if name.endswith("/proc/cmdline"))
    assert hits([*hf.said, *found], sorted(set(canaries))) == []
    assert not list((tmp_path / "temporary").iterdir())


def served(root: Path) -> str:
    """In place of ssh: what the far host would run."""
    script = root / "rsh"
    if not script.exists():
        fd = os.open(script, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700)
        with os.fdopen(fd, "w") as file:
            file.write(f'#!/bin/sh\nexec "{os.environ[WARM_BORG]}" serve\n')
    return str(script)
