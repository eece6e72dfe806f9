"""Two hosts of one agent: folders apart, a vault on each, real workers, a far end that counts."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import holdfast
from holdfast.app.loading import load_app
from holdfast.core.clock import SystemEntropy
from holdfast.identity.acts.make_agent import AgentPlan, make_agent
from holdfast.identity.paper.phrase import Phrase
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.vault.slots import file_key, new_unlock_text
from holdfast.journal.records import TaskState
from holdfast.layout.agent_home import AgentHome, load_home
from holdfast.layout.witness_address import WitnessFolder
from holdfast_proofs.support.warm_start import run_command

APP = Path(__file__).parent / "programs" / "shop.py"
ENTROPY = SystemEntropy()
WAIT_S = 60.0
LEASE_S = 1.0


@dataclass
class Host:
    """One machine. The arbiter, where there is one, is reached from both."""

    root: Path
    arbiter: Path | None
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]])

    @property
    def home(self) -> Path:
        return self.root / "ada"

    @property
    def vault(self) -> Path:
        return self.root / "vault"

    @property
    def journal(self) -> Path:
        return self.home / "journal.db"

    def load(self) -> AgentHome:
        return load_home(self.home)

    def make(self) -> None:
        """As `holdfast init` does, with a vault that opens by a file."""
        text = new_unlock_text(ENTROPY)
        unlock = self.root.parent / "unlock"
        unlock.touch(mode=0o600)
        unlock.write_bytes(text)
        plan = AgentPlan(
            name="ada",
            folder=self.home,
            vault=self.vault,
            second=self.root / "second",
            witnesses=(WitnessFolder(self.root / "witness"),),
            keys=[file_key(unlock, text)],
            second_keys=[file_key(self.root / "none", new_unlock_text(ENTROPY))],
            arbiter=str(self.arbiter) if self.arbiter else "",
        )
        asyncio.run(make_agent(plan, show=_unseen, entropy=ENTROPY, port=Sodium()))
        settings = self.home / "holdfast.toml"
        settings.write_text(settings.read_text() + f"lease_s = {LEASE_S}\n")

    def bring_vault(self, other: Host) -> None:
        """The person carries it."""
        shutil.copytree(other.vault, self.vault)

    def command(self, *words: str, code: int = 0, **more: str) -> Any:  # Any: parsed JSON
        done = self.run(*words, **more)
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        if code:
            return json.loads(done.stderr.splitlines()[-1])["error"]
        return json.loads(done.stdout)

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return run_command((*words, "--json"), cwd=self.root, env={**_clean(), **more}, timeout=2 * WAIT_S)

    def export(self, package: Path, code: int = 0, **more: str) -> Any:
        return self.command("migrate", "export", str(package), "--home", str(self.home), code=code, **more)

    def take(self, package: Path, code: int = 0, **more: str) -> Any:
        return self.command(
            "migrate", "import", str(package), "--home", str(self.home), "--vault", str(self.vault), code=code, **more
        )

    def cancel(self, *words: str, code: int = 0) -> Any:
        return self.command("migrate", "cancel", "--home", str(self.home), *words, code=code)

    def start(self, url: str) -> subprocess.Popen[bytes]:
        with open(self.root / "log", "ab") as log:
            worker = subprocess.Popen(
                [sys.executable, "-P", "-m", "holdfast", "worker", f"{APP}:tasks", "--journal", str(self.journal)],
                cwd=self.root,
                env={**_clean(), "SHOP_URL": url},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.workers.append(worker)
        return worker

    def stop(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()

    def said(self) -> str:
        return (self.root / "log").read_text()

    def submit(self) -> str:
        async def submitted() -> str:
            async with holdfast.open(self.journal, serve=False) as hf:
                order = load_app(f"{APP}:tasks").tasks["order"]
                return (await hf.submit(order, cents=500, request_id="order-1")).id

        return asyncio.run(submitted())

    def state(self, task_id: str) -> TaskState:
        async def found() -> TaskState:
            async with holdfast.open(self.journal, serve=False) as hf:
                return await hf.task(task_id).state()

        return asyncio.run(found())

    def suspect(self, task_id: str) -> bool:
        async def found() -> bool:
            async with holdfast.open(self.journal, serve=False) as hf:
                return bool((await hf.task(task_id).view()).restored_ms)

        return asyncio.run(found())

    def wait(self, met: Callable[[], bool]) -> None:
        ends = time.monotonic() + WAIT_S
        while not met():
            assert time.monotonic() < ends, self.said()
            time.sleep(0.05)


def _clean() -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}


def _unseen(_phrase: Phrase) -> None:
    pass
