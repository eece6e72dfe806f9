"""Two hosts in one folder, with one arbiter: what may run where, asked as a worker would ask."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path

import holdfast
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.errors import AgentElsewhere, AgentQuarantined, HoldfastError
from holdfast.identity.acts.make_agent import AgentPlan, make_agent
from holdfast.identity.paper.phrase import Phrase
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.vault.slots import file_key, new_unlock_text
from holdfast.identity.vault.vault import Vault, open_vault
from holdfast.layout.agent_home import load_home
from holdfast.layout.engine_settings import Settings
from holdfast.layout.witness_address import WitnessFolder
from holdfast.recovery.move_in import MoveCancelled, MovedIn, cancel_move, move_in
from holdfast.recovery.move_lease import MoveMeans
from holdfast.recovery.move_out import MovedOut, MoveOut

LEASE_S = 0.5
PORT = Sodium()
ENTROPY = SystemEntropy()


@holdfast.task(name="wait")
async def wait(run: holdfast.Run) -> None:
    await run.sleep(3_600)


@dataclass(frozen=True, slots=True)
class Moves:
    """Hosts `a` and `b` below `root`; each trial finds them at the same path."""

    root: Path
    arbiter: bool = True

    @property
    def package(self) -> Path:
        return self.root / "ada.move"

    def home(self, host: str) -> Path:
        return self.root / host / "ada"

    def make(self) -> None:
        """An agent on host a with one open task, its vault on both hosts."""
        for folder in (self.root, self.root / "a", self.root / "b"):
            folder.mkdir(mode=0o700)
        text, unlock = new_unlock_text(ENTROPY), self.root / "unlock"
        unlock.touch(mode=0o600)
        unlock.write_bytes(text)
        plan = AgentPlan(
            name="ada",
            folder=self.home("a"),
            vault=self.root / "a" / "vault",
            second=self.root / "a" / "second",
            witnesses=(WitnessFolder(self.root / "witness"),),
            keys=[file_key(unlock, text)],
            second_keys=[file_key(self.root / "none", new_unlock_text(ENTROPY))],
            arbiter=str(self.root / "arbiter") if self.arbiter else "",
        )
        asyncio.run(make_agent(plan, show=_unseen, entropy=ENTROPY, port=PORT))
        settings = self.home("a") / "holdfast.toml"
        settings.write_text(f"{settings.read_text()}lease_s = {LEASE_S}\n")
        shutil.copytree(self.root / "a" / "vault", self.root / "b" / "vault")
        asyncio.run(self._submit())

    async def _submit(self) -> None:
        async with holdfast.open(self.home("a") / "journal.db", serve=False) as hf:
            await hf.submit(wait, request_id="one")

    def export(self) -> MovedOut:
        with open_vault(self.root / "a" / "vault") as vault:
            move = MoveOut(load_home(self.home("a")), _means(vault), say=_unsaid, wait_s=10.0)
            return asyncio.run(move.run(self.package))

    def take(self) -> MovedIn:
        with open_vault(self.root / "b" / "vault") as vault:
            return asyncio.run(move_in(self.package, self.home("b"), _means(vault)))

    def cancel(self) -> MoveCancelled:
        home = load_home(self.home("a"))
        with open_vault(self.root / "a" / "vault") as vault:
            return asyncio.run(cancel_move(home, _means(vault), sure=True))

    def runs(self, host: str) -> str:
        """Empty where a worker of this host would serve, else the code of what stops it."""
        journal = self.home(host) / "journal.db"
        if not journal.exists():
            return "absent"

        async def served() -> None:
            async with holdfast.open(journal, tasks=[wait], settings=Settings(), create=False):
                pass

        try:
            asyncio.run(served())
        except (AgentElsewhere, AgentQuarantined, HoldfastError) as error:
            return error.code
        return ""


def _means(vault: Vault) -> MoveMeans:
    return MoveMeans(vault=vault, clock=SystemClock(), entropy=ENTROPY, port=PORT)


def _unseen(_phrase: Phrase) -> None:
    pass


def _unsaid(_text: str) -> None:
    pass
