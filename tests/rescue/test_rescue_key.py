"""A rescue key restores a copy that can be read, and neither signs nor sends nor changes anything."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

import holdfast
from holdfast.backup.places.backup_places import open_places
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.reading_ring import ReadingRing
from holdfast.errors import RescuedCopy, SecretsDamaged, VaultLocked
from holdfast.identity.journal_keys.keyfile import KeyFile, load_or_create
from holdfast.identity.journal_keys.secret_file import SecretFile
from holdfast.identity.records.encodings import key_digest, key_text
from holdfast.identity.records.secret_bytes import KeyPair, SecretBytes
from holdfast.identity.vault.age import AgeIdentity, open_sealed, seal
from holdfast.identity.vault.rescue import RESCUE, open_rescue, read_key_file
from holdfast.identity.vault.ring import read_escrow
from holdfast.identity.vault.vault import open_vault
from holdfast.journal.contract import Filter
from holdfast_proofs.backup_lab.trees import Tree, tree_of
from holdfast_proofs.backup_lab.world import World, make_world
from holdfast_proofs.support.warm_start import run_command

APP = """
import holdfast

@holdfast.task
async def asks(run: holdfast.Run) -> str:
    return (await run.approve("May I?")).by

tasks = [asks]
"""
SAID = "this folder was restored with a rescue key"
TOKEN = "sk-live-7f3a9c1e5b"
OTHER_KEY = "AGE-SECRET-KEY-1YZAP939A46PHGFYRG2GTXNKD7858GX9X50XCDJKK3E8LEMNLMHGQ5LRTZT"


@holdfast.tool(effect=holdfast.Unrepeatable(max_delay_s=0))
async def call_once(call: holdfast.Call) -> str:
    raise RuntimeError("no answer came")


@holdfast.task
async def asks(run: holdfast.Run) -> str:
    return (await run.approve("May I?")).by


@holdfast.task
async def doubts(run: holdfast.Run) -> str:
    return await run.call(call_once)


@holdfast.task
async def fails(run: holdfast.Run) -> None:
    raise ValueError("on purpose")


@dataclass(slots=True)
class Case:
    """An agent with work that waits for a person, a rescue key, and a copy restored with it."""

    root: Path
    world: World
    key: Path
    copy: Path
    ids: dict[str, str] = field(default_factory=dict[str, str])

    def run(self, *words: str, home: Path | None = None) -> tuple[int, str, str]:
        done = run_command([*words, "--home", str(home or self.copy)], cwd=self.root)
        return done.returncode, done.stdout, done.stderr

    def outside(self) -> Tree:
        """Everything but the copy: what an attempt must not change."""
        return {f"{name}/{path}": digest for name in SEEN for path, digest in _tree(self.world.root / name).items()}


SEEN = ("ada", "vault", "second", "witness", "place-1")


def _tree(folder: Path) -> Tree:
    return tree_of(folder, everything=True)


async def _lived(root: Path) -> Case:
    world = await make_world(root / "world", places=1, files=3)
    case = Case(root=root, world=world, key=root / "rescue-key", copy=root / "copy")
    async with holdfast.open(world.home.journal, tasks=[asks, doubts, fails]) as hf:
        for task in (asks, doubts, fails):
            case.ids[task.name] = str((await hf.submit(task)).task_id)
        async with asyncio.timeout(30):
            while {row.state for row in await hf.journal.list_tasks(Filter())} & {"queued", "running"}:
                await hf.journal.wait_change(timeout_s=1)
    return case


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    found = asyncio.run(_lived(tmp_path_factory.mktemp("rescue")))
    home = found.world.home.folder
    (found.root / "app.py").write_text(APP)
    reads, writes = os.pipe()
    os.write(writes, TOKEN.encode())
    os.close(writes)
    words = ["secret", "set", "shop", "--from-fd", str(reads), "--home", str(home)]
    assert run_command(words, pass_fds=[reads]).returncode == 0
    assert found.run("rescue", "add", str(found.key), home=home)[0] == 0
    assert found.run("backup", "now", home=home)[0] == 0
    code, said, wrong = _recovered(found, found.copy, "--json")
    assert code == 0, wrong
    report = json.loads(said)
    assert (report["done"], report["seq"], report["key_used"]) == (True, 1, "rescue key")
    return found


def _recovered(case: Case, to: Path, *more: str, key: Path | None = None) -> tuple[int, str, str]:
    place = ("recover", "--place", str(case.world.place()), "--rescue-key", str(key or case.key), "--to", str(to))
    done = run_command([*place, *more], cwd=case.root)
    return done.returncode, done.stdout, done.stderr


def test_the_copy_has_the_files_and_a_journal_that_can_be_read(case: Case) -> None:
    home = case.world.home.folder
    for name in ("MEMORY.md", "memory/2026-01/00001.md", "journal.db", "kel.jsonl", "secrets.sealed"):
        same = name == "journal.db" or (case.copy / name).read_bytes() == (home / name).read_bytes()
        assert same, name
    assert oct(case.key.stat().st_mode)[-3:] == "600"
    assert (case.copy / "holdfast.toml").read_text() == 'agent = "ada"\n'
    code, said, wrong = case.run("task", "list", "--json")
    assert code == 0, wrong
    assert {one["name"]: one["state"] for one in json.loads(said)["tasks"]} == {
        "count": "succeeded",
        "asks": "waiting",
        "doubts": "parked",
        "fails": "failed",
    }
    for words in (("task", "show", case.ids["doubts"]), ("effect", "show", f"{case.ids['doubts']}/1"), ("handoff",)):
        code, said, wrong = case.run(*words)
        assert code == 0, wrong
    assert case.run("memory", "search", "counted")[0] == 0
    code, said, _ = case.run("doctor", "--deep", "--json")
    levels = {one["check"]: one["level"] for one in json.loads(said)["findings"]}
    assert (levels["keys"], levels["records"]) == ("note", "ok")


def _commands(case: Case) -> list[tuple[str, ...]]:
    """Every way in which a command signs, publishes, sends, decides, prunes or writes."""
    asked, doubted, failed = (case.ids[one] for one in ("asks", "doubts", "fails"))
    copy, app = str(case.copy), f"{case.root / 'app.py'}:tasks"
    return [
        ("identity", "answer", "--challenge", "a" * 22),
        ("identity", "rotate", "--yes"),
        ("identity", "rotate", "--why", "stolen", "--yes", "--witness", str(case.root / "w")),
        ("identity", "evict", "--yes"),
        ("identity", "evict", "--paper", "--lock-only", "--yes"),
        ("identity", "retire", "--yes"),
        ("identity", "signer", "--socket", str(case.root / "s.sock")),
        ("identity", "add-unlock", "--unlock-file", str(case.root / "unlock")),
        ("paper", "replace", "--yes"),
        ("place", "add", "other", str(case.root)),
        ("place", "remove", "place-1", "--yes"),
        ("place", "move", "place-1", str(case.world.place())),
        ("place", "check", "place-1", "--mark"),
        ("place", "fix-key", "place-1"),
        ("place", "break-lock", "place-1", "--yes"),
        ("backup", "now"),
        ("backup", "verify"),
        ("backup", "prune"),
        ("backup", "due"),
        ("backup", "schedule", "--install"),
        ("rescue", "add", str(case.root / "another")),
        ("rescue", "revoke", "rescue", "--yes"),
        ("migrate", "export", str(case.root / "ada.move")),
        ("worker", app),
        ("submit", app, "{}", "--task", "asks", "--no-follow"),
        ("submit", app, "{}", "--task", "asks", "--request-id", "r-1", "--no-follow"),
        ("task", "cancel", asked, "--yes"),
        ("task", "retry", failed),
        ("approval", "grant", f"{asked}/1"),
        ("effect", "settle", f"{doubted}/1", "--skip", "--yes"),
        ("effect", "evidence", f"{doubted}/1", "--did-not-happen"),
        ("memory", "add", "a line"),
        ("drill", "run", "hand-off"),
        ("drill", "run", "test-restore", "--rescue-key", str(case.key)),
        ("secret", "list"),
        ("secret", "remove", "shop", "--yes"),
        ("journal", "copy", "--to", f"{copy}/other.db", "--yes"),
    ]


def test_every_attempt_to_act_is_refused_and_changes_nothing(case: Case) -> None:
    """The vault of the agent is on this machine and opens without a person: the copy must not find it."""
    before, commands = case.outside(), _commands(case)
    assert len(commands) >= 30
    passed: list[tuple[str, int, str]] = []
    for words in commands:
        code, _, wrong = case.run(*words)
        if code != RescuedCopy.exit_code or SAID not in wrong:
            passed.append((" ".join(words), code, wrong))
    assert not passed, "\n\n".join(map(str, passed))
    done = run_command(["recover", "--journal", str(case.copy / "journal.db"), "--yes"])
    assert (done.returncode, SAID in done.stderr) == (RescuedCopy.exit_code, True)
    assert case.outside() == before


async def test_a_program_that_would_serve_the_copy_is_refused(case: Case) -> None:
    with pytest.raises(RescuedCopy):
        async with holdfast.open(case.copy / "journal.db", tasks=[asks]):
            pass
    ring = load_or_create(case.copy / "keys.json", journal_exists=True, entropy=SystemEntropy())
    assert isinstance(ring, ReadingRing)
    for get in (lambda: ring.k_effect, lambda: ring.journal_key(1), lambda: ring.current_journal_key):
        with pytest.raises(RescuedCopy):
            get()


def test_a_copy_that_gets_the_original_settings_and_keys_could_sign(case: Case, tmp_path: Path) -> None:
    """So the refusals above are due to these two files, and the attempts would succeed without them."""
    armed = tmp_path / "armed"
    shutil.copytree(case.copy, armed)
    shutil.copy(armed / "holdfast.toml.original", armed / "holdfast.toml")
    assert case.run("identity", "answer", "--challenge", "a" * 22, home=armed)[0] == RescuedCopy.exit_code
    shutil.copy(case.world.home.keys_file, armed / "keys.json")
    code, said, wrong = case.run("identity", "answer", "--challenge", "a" * 22, home=armed)
    assert code == 0, wrong
    assert '"t":"ans"' in said


def _secrets_of(case: Case) -> list[bytes]:
    """Every secret of 32 bytes that the key opens."""
    with read_key_file(case.key) as key:
        rescue = open_rescue([(case.world.place() / "ada" / RESCUE).read_bytes()], key)
    texts = [one.reveal().decode() for one in rescue.passphrases.values()]
    texts += re.findall("[0-9a-f]{64}", msgspec.json.encode(rescue.keys).decode())
    assert len(texts) == 4  # one place; two keys of the one journal key, one of blobs
    return [bytes.fromhex(one) for one in texts]


def test_nothing_in_rescue_age_opens_or_signs_what_it_should_not(case: Case) -> None:
    """With the bytes themselves, and no command of ours in the way."""
    root, secrets = case.world.root, _secrets_of(case)
    log = case.world.home.log_file.read_text()
    sealed = [root / "vault" / "op.age", root / "vault" / "escrow.age", root / "second" / "next.age"]
    sealed.append(case.world.place() / "ada" / "escrow.age")
    with read_key_file(case.key) as key:
        opens = [key.identity, *(AgeIdentity.from_secret(SecretBytes(one)) for one in secrets)]
        for path, identity in itertools.product(sealed, opens):
            with pytest.raises(VaultLocked):
                open_sealed(path.read_bytes(), identity)
    for secret in secrets:
        public = KeyPair(SecretBytes(secret)).public_bytes
        assert key_text(public) not in log
        assert key_digest(key_text(public)) not in log
        ring = KeyFile(k_effect=secret, journal_keys={1: secret}, current_journal_key=1)
        with pytest.raises(SecretsDamaged):
            SecretFile(case.copy, keys=ring, clock=SystemClock(), entropy=SystemEntropy())
    with open_vault(root / "vault") as vault:
        whole = read_escrow(vault)
    assert not {whole.keys.k_effect, whole.vault_root, *whole.keys.journal_keys.values()} & {*secrets}


def test_a_key_of_another_kind_is_refused(case: Case, tmp_path: Path) -> None:
    text = case.key.read_text()
    for name, changed, said in (
        ("wide", text, "mode"),
        ("none", "hello\n", "is not a rescue key"),
        ("bare", text.splitlines()[-1] + "\n", "is not a rescue key"),
        ("twice", text + text.splitlines()[-1] + "\n", "is not a rescue key"),
        ("other", text.replace(text.splitlines()[-1], OTHER_KEY), f"opens no {RESCUE}"),
    ):
        path = tmp_path / name
        path.write_text(changed)
        path.chmod(0o644 if name == "wide" else 0o600)
        code, _, wrong = _recovered(case, tmp_path / "to", key=path)
        assert code != 0
        assert said in wrong, (name, wrong)
    for more in (("--keep-keys",), ("--start", "app")):
        assert "--rescue-key needs --to" in _recovered(case, tmp_path / "to", *more)[2]
    assert "--rescue-key needs --to" in run_command(["recover", "--rescue-key", str(case.key)]).stderr
    for folder in (case.world.home.folder, case.world.place(), case.world.root / "vault"):
        said = case.run("rescue", "add", str(folder / "key"), "--name", "n", home=case.world.home.folder)
        assert "keep the key apart" in said[2]
    assert not (tmp_path / "to").exists()


async def test_who_may_read_is_decided_in_the_vault(case: Case) -> None:
    """A tool that runs as the agent may write its folder: no key of its own comes into rescue.age by that. And the file
    is sealed again only where something changed, or every place would be written with each backup."""
    home, there = case.world.home, case.world.place() / "ada" / RESCUE
    before, kept = there.read_bytes(), home.instance / "backup" / RESCUE
    with AgeIdentity.new(SystemEntropy()) as thief:
        register = json.loads(home.rescue_file.read_text())
        home.rescue_file.write_text(json.dumps(register).replace(register["keys"][0]["recipient"], thief.recipient))
        places = await open_places(home)
        assert await places.refresh_companions() == {}
        assert there.read_bytes() == before
        kept.write_bytes(seal(b"{}", [thief.recipient, places.vault.identity.recipient]))
        assert await places.refresh_companions() == {}
        with pytest.raises(VaultLocked):
            open_sealed(there.read_bytes(), thief)
    assert json.loads(home.rescue_file.read_text()) == register
    with read_key_file(case.key) as key:
        open_rescue([there.read_bytes()], key)
