"""An agent that lived, paid, was backed up before it paid, and lost its machine."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import holdfast
from holdfast.app.loading import load_app
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.journal_address import JournalAddress
from holdfast.demo.machine import Machine, back_up, give_identity
from holdfast.downstream.process import BlockingFarEnd
from holdfast.host.sqlite import open_existing
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.journal_keys.keyfile import load_or_create
from holdfast.identity.journal_keys.secret_file import SecretFile
from holdfast.identity.records.ed25519 import Sodium
from holdfast.layout.agent_home import load_home
from holdfast.recovery.copy_journal import copy_journal
from holdfast_proofs.support.warm_start import run_command

PROGRAMS = Path(__file__).parent / "programs"
APP = f"{PROGRAMS / 'shop.py'}:tasks"
TOKEN = "tok-" + "a1b2c3d4e5f6"
CARD = hashlib.sha256(TOKEN.encode()).hexdigest()
FACT = "- the customer pays on Fridays\n"
COMMAND = (sys.executable, "-P", "-m", "holdfast")


@dataclass(frozen=True)
class Lost:
    """What is left: words, an id that others know, and the second of two places."""

    root: Path
    words: str
    id: str
    task_id: str

    @property
    def place(self) -> Path:
        return self.root / "place-2"

    def copy(self, root: Path) -> Lost:
        """The same remains for a test of its own."""
        shutil.copytree(self.place, root / "place-2", symlinks=True)
        return Lost(root=root, words=self.words, id=self.id, task_id=self.task_id)


def live_and_die(root: Path, far_end: BlockingFarEnd, *, url: str = "", table: str = "") -> Lost:
    """The far end has one charge of which no backup knows. With `url`, its journal is in that database; with `table`,
    a tool has made one in its journal."""
    root.mkdir(mode=0o700, exist_ok=True)
    home_folder = root / "ada"
    home_folder.mkdir(mode=0o700)
    os.environ["SHOP"] = far_end.url
    shop = load_app(APP)

    async def live() -> Lost:
        async with holdfast.open(home_folder / "first.db", serve=False):
            pass  # so the agent's own journal is a further one: a recovery must keep its salt
        async with holdfast.open(home_folder / "journal.db", tasks=list(shop.tasks.values()), serve=False) as hf:
            task = await hf.submit("buy", cents=700, request_id="order-1")
        machine = Machine(root / "machine")
        home, words = await give_identity(home_folder, machine)
        keys = load_or_create(home.keys_file, journal_exists=True, entropy=SystemEntropy())
        SecretFile(home.folder, keys=keys, clock=SystemClock(), entropy=SystemEntropy()).set("billing", TOKEN)
        if table:
            with closing(open_existing(home.journal.path)) as db:
                db.execute(f"CREATE TABLE {table} (id)")
        if url:
            await copy_journal(home.journal, JournalAddress(folder=home.folder, url=url))
            home = load_home(home.folder)
        home.memory_file.touch(0o600)
        home.memory_file.write_text(FACT)
        report = await back_up(home, [root / "place-1", root / "place-2"])
        assert all(one.verified for one in report.places), report
        async with holdfast.open(home.journal, tasks=list(shop.tasks.values())) as hf:
            await hf.task(task.id).result(60)
        id_ = read_own_log(home.folder, Sodium()).id
        return Lost(root=root, words=words, id=id_, task_id=task.id)

    lost = asyncio.run(live())
    assert far_end.ledger().count == 1
    for name in ("ada", "machine", "place-1"):
        shutil.rmtree(root / name)
    return lost


@dataclass(frozen=True)
class BareMachine:
    """A host with nothing but Python, Borg and this package; its own root and environment."""

    root: Path

    @property
    def home(self) -> Path:
        return self.root / "agents" / "ada"

    def environment(self, **more: str) -> dict[str, str]:
        path = os.pathsep.join((str(Path(sys.executable).parent), "/usr/bin", "/bin"))
        source = str(Path(holdfast.__file__).parents[1])
        return {"PATH": path, "HOME": str(self.root), "PYTHONPATH": source, "LANG": "C.UTF-8", **more}

    def recover(
        self,
        lost: Lost,
        *options: str,
        words: str | None = None,
        keys: bool = True,
        second: str = "second",
        answers: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run the one command; words and passphrase come by descriptors. With `answers` it runs at a terminal, where
        a person types these."""
        self.root.mkdir(mode=0o700, exist_ok=True)
        typed = _pipe(lost.words if words is None else words)
        typed_second = _pipe("a passphrase for the second place")
        options = ("recover", "--home", str(self.home), "--json", "--words-fd", str(typed), *options)
        if keys:
            options += (
                *(() if answers else ("--yes",)),
                "--second",
                str(self.root / second),
                "--unlock-file",
                str(self.root / "unlock"),
                "--second-passphrase-fd",
                str(typed_second),
            )
        try:
            if answers:
                return self._run_at_terminal(options, answers, (typed, typed_second))
            return run_command(
                options, env=self.environment(), cwd=self.root, timeout=180, pass_fds=(typed, typed_second)
            )
        finally:
            os.close(typed)
            os.close(typed_second)

    def _run_at_terminal(
        self, words: Sequence[str], answers: str, fds: Sequence[int]
    ) -> subprocess.CompletedProcess[str]:
        ours, theirs = pty.openpty()
        os.write(ours, answers.encode())
        try:
            return subprocess.run(
                [*COMMAND, *words],
                cwd=self.root,
                env=self.environment(),
                stdin=theirs,
                pass_fds=fds,
                capture_output=True,
                text=True,
                timeout=180,
                check=False,
            )
        finally:
            os.close(ours)
            os.close(theirs)

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return run_command(words, env=self.environment(**more), cwd=self.root, timeout=120)

    def json(self, *words: str) -> dict[str, object]:
        done = self.run(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def _pipe(text: str) -> int:
    reader, writer = os.pipe()
    os.write(writer, text.encode() + b"\n")
    os.close(writer)
    return reader
