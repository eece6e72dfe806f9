"""A primary on host `a`, a standby on host `b`, each with a journal file and a vault of its own, and one place.

Who may act is asked as a worker asks: are its keys still valid, is it enrolled, can it open the journal for serving?
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

import holdfast
from holdfast.app.eviction import check_speaks
from holdfast.app.instances.roster_change import RosterChange
from holdfast.app.instances.standing import Standing, find_standing
from holdfast.app.memory import forget_folder
from holdfast.backup.backups import open_backups
from holdfast.backup.open_engine import open_engine
from holdfast.backup.places.backup_places import PlaceRequest, open_places
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.journal_address import JournalAddress
from holdfast.errors import HoldfastError
from holdfast.identity.acts.log_act import act_lock
from holdfast.identity.acts.make_agent import AgentPlan, make_agent
from holdfast.identity.lease.lease_holder import site_of
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.statements.certificate import Role
from holdfast.identity.vault.keyset import KeySet
from holdfast.identity.vault.slots import file_key, new_unlock_text
from holdfast.identity.vault.vault import Vault, open_vault
from holdfast.journal.admin import SharedState
from holdfast.journal.bind import journal_at
from holdfast.layout.agent_home import AgentHome, load_home
from holdfast.layout.engine_settings import Settings
from holdfast.layout.witness_address import WitnessFolder
from holdfast.recovery.copy_journal import copy_journal
from holdfast.recovery.invite import Joining, invite
from holdfast.recovery.move_in import HostPaths, move_in
from holdfast.recovery.move_lease import MoveMeans
from holdfast.recovery.move_out import MoveOut
from holdfast.recovery.promote import PromoteMeans, handed_over, promote
from holdfast_proofs.moves.world import wait

CLOCK, ENTROPY, PORT = SystemClock(), SystemEntropy(), Sodium()


@dataclass(frozen=True, slots=True)
class World:
    """Each trial finds it at the same path."""

    root: Path
    url: str = ""  # of the journal that both share; empty: each has a file
    arbiters: bool = False  # each host has one of its own

    @property
    def shared(self) -> SharedState | None:
        return journal_at(load_home(self.home("a")).journal).find_shared() if self.url else None

    @property
    def invitation(self) -> Path:
        return self.root / "south.invite"

    @property
    def handoff(self) -> Path:
        return self.root / "ada.handoff"

    def home(self, host: str) -> Path:
        return self.root / host / "ada"

    def arbiter(self, host: str) -> str:
        return str(self.root / host / "arbiter") if self.arbiters else ""

    def here(self, host: str) -> HostPaths:
        return HostPaths(second=str(self.root / host / "second"), arbiter=self.arbiter(host))

    def make(self, *, backup: bool) -> None:
        """An agent on host a with an open task, and a backup if one is needed; its vaults on both hosts."""
        for folder in (self.root, self.root / "a", self.root / "b", self.root / "place"):
            folder.mkdir(mode=0o700)
        text, unlock = new_unlock_text(ENTROPY), self.root / "unlock"
        unlock.touch(mode=0o600)
        unlock.write_bytes(text)
        keys = [file_key(unlock, text)]
        plan = AgentPlan(
            name="ada",
            folder=self.home("a"),
            vault=self.root / "a" / "vault",
            second=self.root / "a" / "second",
            witnesses=(WitnessFolder(self.root / "witness"),),
            keys=keys,
            second_keys=keys,
            arbiter=self.arbiter("a"),
        )
        asyncio.run(make_agent(plan, show=lambda _: None, entropy=ENTROPY, port=PORT))
        for name in ("vault", "second"):
            shutil.copytree(self.root / "a" / name, self.root / "b" / name)
        asyncio.run(self._live(backup))

    async def _live(self, backup: bool) -> None:
        async with holdfast.open(self.home("a") / "journal.db", serve=False) as hf:
            await hf.submit(wait, request_id="one")
        (self.home("a") / "MEMORY.md").write_text("- of the primary\n")
        if self.url:
            await copy_journal(load_home(self.home("a")).journal, JournalAddress(folder=self.home("a"), url=self.url))
        if not backup:
            return
        home = load_home(self.home("a"))
        await (await open_places(home)).add(PlaceRequest(name="disk", address=str(self.root / "place")))
        await (await open_backups(load_home(self.home("a")))).now(check=False)

    def rehome(self) -> None:
        """After the world was put back by copying: its folders are the ones that they were."""
        for path in self.root.glob("*/ada/instance/enrolment.json"):
            kept = msgspec.json.decode(path.read_bytes())
            kept["site"] = msgspec.to_builtins(site_of(path.parent, CLOCK))
            path.write_bytes(msgspec.json.encode(kept))

    # the acts, as the commands do them

    def change(self, host: str, act: Callable[[RosterChange], object]) -> None:
        home = load_home(self.home(host))
        with open_vault(self.root / host / "vault") as vault, act_lock(home.folder):
            act(RosterChange.at(home, vault, clock=CLOCK, entropy=ENTROPY, port=PORT))

    def invite(self, by: str = "a", name: str = "south") -> None:
        def act(change: RosterChange) -> None:
            if not change.view():
                change.enrol_here("north")
            role = Role.PRIMARY if self.url else Role.STANDBY
            invite(change, self.invitation, name=name, role=role, host=name)

        self.change(by, act)

    def join(self, host: str = "b") -> None:
        with open_vault(self.root / host / "vault") as vault:
            asyncio.run(Joining(self.invitation, self.home(host), _means(vault), self.here(host)).run())

    def give(self, host: str = "a", to: str = "south") -> None:
        def act(change: RosterChange) -> None:
            handed_over(change, to)
            move = MoveOut(change.home, _means(change.vault), say=lambda _: None, wait_s=10.0, heir=to)
            asyncio.run(move.run(self.handoff))

        self.change(host, act)

    def take(self, host: str = "b") -> None:
        with open_vault(self.root / host / "vault") as vault:
            asyncio.run(move_in(self.handoff, self.home(host), _means(vault), here=self.here(host)))

    def promote(self, host: str = "b") -> None:
        asyncio.run(self._promoted(load_home(self.home(host)), self.root / host))

    async def _promoted(self, home: AgentHome, host: Path) -> None:
        base = self.root / "borg"
        base.mkdir(mode=0o700, exist_ok=True)
        with open_vault(host / "vault") as vault, open_vault(host / "second") as second:
            means = PromoteMeans(
                keys=KeySet(ops=vault, nexts=second),
                engine=await open_engine(base=base),
                clock=CLOCK,
                entropy=ENTROPY,
                port=PORT,
                tell=lambda _: None,
                primary_is_off=True,
            )
            await promote(home, means)

    def lower(self) -> None:
        self.change("b", lambda change: change.give_role("south", Role.STANDBY))

    def lift(self) -> None:
        self.change("b", lambda change: change.give_role("south", Role.PRIMARY))

    def remove(self) -> None:
        def act(change: RosterChange) -> None:
            if change.is_listed("south") or not change.find_removed_hosts():
                change.remove("south")
            home = change.home
            change.finish_removals(lambda host: asyncio.run(forget_folder(home, host, say=lambda _: None)))

        self.change("a", act)

    # the judge's questions

    def standing(self, host: str) -> Standing:
        return find_standing(load_home(self.home(host)), clock=CLOCK)

    def acts(self, host: str) -> str:
        """Empty where a worker of this host would serve, else the code of what stops it."""
        journal = self.url or self.home(host) / "journal.db"
        if not (self.home(host) if self.url else self.home(host) / "journal.db").exists():
            return "absent"

        async def served() -> None:
            async with holdfast.open(
                journal, home=self.home(host) if self.url else None, tasks=[wait], settings=Settings(), create=False
            ) as hf:
                assert await hf.journal.find_task((await hf.submit(wait, request_id="one")).id) is not None

        try:
            check_speaks(load_home(self.home(host)))
            asyncio.run(served())
        except HoldfastError as error:
            return error.code
        return ""


def _means(vault: Vault) -> MoveMeans:
    return MoveMeans(vault=vault, clock=CLOCK, entropy=ENTROPY, port=PORT)
