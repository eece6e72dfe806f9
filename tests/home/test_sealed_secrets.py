"""Secret files of an adopted agent: sealed into each snapshot, put back by a recovery, or named as not backed up."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import msgspec
import pytest

from holdfast.app.handoff import write_foreign
from holdfast.app.memory import search
from holdfast.backup.archive.manifest import SnapshotNote
from holdfast.backup.backups import open_backups
from holdfast.backup.snapshot.sealed import SecretOfAgent, open_files, put_back, seal_files
from holdfast.cli.backup.backup import _print_notes
from holdfast.core.clock import SystemEntropy
from holdfast.demo.machine import AGENT, Machine, back_up, bring_back, give_identity, lose
from holdfast.errors import BackupDamaged, VaultLocked
from holdfast.identity.vault.age import AgeIdentity, seal
from holdfast.layout.covering import SEALED, SEALED_NOTE
from holdfast.recovery.adopt import prepare, survey_folder

sys.path.insert(0, str(Path(__file__).parent))

from foreign_folders import openclaw, snapshot, write

SECRETS = {".env": 0o640, "agents/main/agent/auth-profiles.json": 0o600, ".ssh/id_deploy": 0o600}


async def test_secrets_are_sealed_into_the_snapshot_and_put_back(tmp_path: Path) -> None:
    folder, place, old = tmp_path / "clawd", tmp_path / "place", Machine(tmp_path / "old")
    folder.mkdir(mode=0o755)
    openclaw(folder)
    write(folder, {".ssh/id_deploy": "a deploy key that is plain text\n"})
    for name, mode in SECRETS.items():
        (folder / name).chmod(mode)
    before = snapshot(folder)
    home = prepare(survey_folder(folder, name=AGENT), seal_secrets=True)
    assert home.settings.adopted.seal_secrets
    assert prepare(survey_folder(folder), seal_secrets=True).settings == home.settings, "safe to repeat"
    home, words = await give_identity(home.folder, old)
    await back_up(home, [place])
    report = await (await open_backups(home)).now()
    assert all(one.verified for one in report.places), report
    sealed = {one.path for one in report.snapshot.notes if one.text == SEALED_NOTE}
    assert sealed == set(SECRETS)
    assert not (home.folder / SEALED).exists(), "it is in snapshots alone"
    lose(folder, old.folder)

    done = await bring_back(folder, words, place, Machine(tmp_path / "new"))

    assert set(done.unsealed) == set(SECRETS)
    after = snapshot(folder)
    for name, mode in SECRETS.items():
        assert (stat.S_IMODE(after[name][0]), after[name][3]) == (mode, before[name][3])
        assert after[name][2] // 1000 == before[name][2] // 1000
    assert not (folder / ".holdfast" / SEALED).exists()
    assert done.restored is not None
    assert not [one for one in done.restored.notes if one.text.startswith("left out: an unencrypted")]


def test_without_sealing_every_file_that_is_left_out_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    notes = [
        SnapshotNote(path=".env", text="left out: an unencrypted secret, by its name"),
        SnapshotNote(path="instance", text="left out: this host's own keys and lease"),
        SnapshotNote(path="big.bin", text="left out: 5,000 bytes; at most 10 are kept"),
        SnapshotNote(path="log", text="changed each of 5 times it was copied; kept as last read"),
    ]
    _print_notes(notes)
    said = capsys.readouterr().err
    assert "not backed up: .env: an unencrypted secret" in said
    assert "not backed up: big.bin" in said
    assert "note: log: changed" in said
    assert "instance" not in said, "nothing is lost with it"
    assert "holdfast adopt FOLDER --seal-secrets" in said
    _print_notes(
        [SnapshotNote(path=f".env.{n}", text="left out: an unencrypted secret, by its name") for n in range(50)]
    )
    said = capsys.readouterr().err
    assert "not backed up: 30 more" in said
    _print_notes([SnapshotNote(path=".env", text=SEALED_NOTE)])
    said = capsys.readouterr().err
    assert "sealed: 1 secret files" in said
    assert "hint" not in said


def test_what_is_sealed_is_for_its_agent_and_leads_nowhere_else(tmp_path: Path) -> None:
    one, other = AgeIdentity.new(SystemEntropy()), AgeIdentity.new(SystemEntropy())
    secret = SecretOfAgent(path=".env", mode=0o600, mtime_us=1, content=b"KEY=1\n")
    raw = seal_files([secret], one.recipient)
    assert b"KEY" not in raw
    assert open_files(raw, one) == (secret,)
    with pytest.raises(VaultLocked):
        open_files(raw, other)
    for path in ("../x", "/etc/x", "a/../../x", ""):
        odd = seal_files([msgspec.structs.replace(secret, path=path)], one.recipient)
        with pytest.raises(BackupDamaged):
            open_files(odd, one)
    with pytest.raises(BackupDamaged):
        open_files(seal(b"nothing", [one.recipient]), one)
    folder = tmp_path / "ada"
    folder.mkdir(mode=0o700)
    (folder / "holdfast.toml").write_text('agent = "ada"\n')
    (folder / "link").symlink_to(tmp_path)
    (folder / SEALED).write_bytes(seal_files([msgspec.structs.replace(secret, path="link/x")], one.recipient))
    with pytest.raises((BackupDamaged, OSError)):
        put_back(folder, one)
    assert not (tmp_path / "x").exists()
    (folder / SEALED).write_bytes(raw)
    (folder / ".env").write_text("mine")
    put_back(folder, one)
    assert (folder / ".env").read_text() == "mine", "what is there is not touched"
    assert os.listdir(folder).count(SEALED) == 0


async def test_the_folder_around_a_workspace_is_understood(tmp_path: Path) -> None:
    """~/.openclaw: its settings hold keys, the agent's files are in `workspace`, with a git of their own."""
    folder = tmp_path / ".openclaw"
    (folder / "workspace").mkdir(parents=True, mode=0o755)
    folder.chmod(0o755)
    openclaw(folder / "workspace")
    write(folder, {"openclaw.json": '{"apiKey": "sk-1"}', "workspace/.git/HEAD": "ref: x\n", "workspace/.git/a": "x"})
    found = survey_folder(folder)
    assert {"workspace/SOUL.md", "workspace/MEMORY.md", "workspace/memory/"} <= {one.path for one in found.parts}
    assert [one.path for one in found.remarks if "keys in the clear" in one.remark] == ["openclaw.json"]
    assert "openclaw.json" in {one.path for one in survey_folder(folder, seal_secrets=True).secrets}
    home = prepare(found)
    handoff = write_foreign(home)
    assert not [line for line in handoff.changed if ".git" in line]
    assert any("call the bank" in line for line in handoff.pending)
    assert any("SQLite" in line for line in handoff.decided)
    lines = (await search(home, "SQLite", limit=5)).lines
    assert [(one.file, one.text) for one in lines] == [("workspace/MEMORY.md", "We decided to use SQLite.")]
