"""Whole agents in a folder: made, rotated, robbed and recovered as the commands do it."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.core.clock import SystemEntropy
from holdfast.identity.acts.log_act import ActResult, LogSession, act_lock, open_log_session, rotate_identity
from holdfast.identity.acts.make_agent import AgentPlan, MadeAgent, make_agent, open_by
from holdfast.identity.acts.paper_acts import find_phrase, is_under_way, lock, replace_paper, retire, unlock
from holdfast.identity.acts.recover_identity import RecoveredIdentity, RecoveryOrder, recover_identity
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.paper.derive import PaperKeys
from holdfast.identity.paper.paper import Card
from holdfast.identity.paper.phrase import Phrase, new_phrase, read_phrase
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.records import Keys, RotationReason
from holdfast.identity.vault.import_key import Imported
from holdfast.identity.vault.keyset import KeySet
from holdfast.identity.vault.slots import UnlockKey, file_key, new_unlock_text
from holdfast.identity.witness.open_witnesses import open_witnesses
from holdfast.layout.agent_home import AgentHome, load_home
from holdfast.layout.witness_address import WitnessAddress, parse_witness_address
from holdfast.testing.clocks import SeededEntropy

SODIUM = Sodium()
ENTROPY = SystemEntropy()
UNLOCK, OTHER = (file_key(Path("/unlock"), new_unlock_text(SeededEntropy(n))) for n in (1, 2))


@dataclass
class World:
    """One machine: a root folder with homes, vaults and witnesses in it."""

    root: Path
    names: tuple[str, ...] = ("w1",)
    home_name: str = "ada"
    words: list[str] = field(default_factory=list[str])
    note: Path | None = None  # where the person writes the words down, outlasting the process

    @property
    def folder(self) -> Path:
        return self.root / self.home_name

    @property
    def vault(self) -> Path:
        return self.root / f"{self.home_name}-vault"

    @property
    def second(self) -> Path:
        return self.root / f"{self.home_name}-second"

    @property
    def witnesses(self) -> tuple[WitnessAddress, ...]:
        return tuple(map(self.at, self.names))

    def at(self, name: str) -> WitnessAddress:
        """The folder of this name, or the relay of this address."""
        return parse_witness_address(name, base=self.root)

    def home(self) -> AgentHome:
        return load_home(self.folder)

    def log(self) -> KeyLog:
        return read_own_log(self.folder, SODIUM)

    def plan(self, imported: Imported | None = None) -> AgentPlan:
        return AgentPlan(
            name="ada",
            folder=self.folder,
            vault=self.vault,
            second=self.second,
            witnesses=self.witnesses,
            keys=[UNLOCK],
            second_keys=[OTHER],
            imported=imported,
            today="2026-11-15",
        )

    def make(self, imported: Imported | None = None) -> MadeAgent:
        return asyncio.run(make_agent(self.plan(imported), show=self.show, entropy=ENTROPY, port=SODIUM))

    def show(self, phrase: Phrase) -> None:
        self.words.append(" ".join(phrase.words))
        if self.note is not None:
            with self.note.open("a") as file:
                file.write(f"{self.words[-1]}\n")

    @contextmanager
    def keys(self) -> Generator[KeySet]:
        with open_by(self.vault, [UNLOCK]) as ops, open_by(self.second, [OTHER]) as nexts:
            yield KeySet(ops=ops, nexts=nexts)

    def rotate(self, why: RotationReason = RotationReason.PLANNED, new: Sequence[str] = ()) -> ActResult:
        async def act() -> ActResult:
            make = [self.at(name) for name in new]
            session = await open_log_session(self.home(), port=SODIUM, make=make)
            wit = _named(make) if new else None
            with self.keys() as keys:
                return await rotate_identity(session, keys, why=why, entropy=ENTROPY, wit=wit)

        with act_lock(self.folder):
            return asyncio.run(act())

    def evict(self, words: str, *, lock_only: bool = False) -> ActResult:
        async def act() -> ActResult:
            session = await open_log_session(self.home(), port=SODIUM)
            with paper(words, session) as found:
                done = await lock(session, found)
                if lock_only:
                    return done
                with self.keys() as keys:
                    return await unlock(session, found, keys, why=RotationReason.STOLEN, entropy=ENTROPY)

        with act_lock(self.folder):
            return asyncio.run(act())

    def replace(self, words: str) -> ActResult:
        """New words, as `holdfast paper replace` does it: shown, or those of an earlier run."""

        async def act() -> ActResult:
            session = await open_log_session(self.home(), port=SODIUM)
            with paper(words, session) as old:
                if is_under_way(session, old):
                    phrase = read_phrase(self.words[-1])
                else:
                    phrase = new_phrase(ENTROPY)
                    self.show(phrase)
                with (
                    phrase,
                    PaperKeys(phrase) as new,
                    open_by(self.vault, [UNLOCK]) as vault,
                    open_by(self.second, [OTHER]) as second,
                ):
                    return await replace_paper(
                        session, old, new, vault, second, ways=[UNLOCK], second_ways=[OTHER], entropy=ENTROPY
                    )

        with act_lock(self.folder):
            return asyncio.run(act())

    def retire(self, words: str) -> ActResult:
        async def act() -> ActResult:
            session = await open_log_session(self.home(), port=SODIUM)
            with paper(words, session) as found:
                return await retire(session, found)

        with act_lock(self.folder):
            return asyncio.run(act())

    def order(self, **changes: Any) -> RecoveryOrder:
        fields: dict[str, Any] = {
            "folder": self.folder,
            "vault": self.vault,
            "second": self.second,
            "name": "ada",
            "keys": [UNLOCK],
            "second_keys": [OTHER],
            "witnesses": self.witnesses,
        }
        return RecoveryOrder(**{**fields, **changes})

    def recover(self, words: str = "", shares: Sequence[str] = (), **changes: Any) -> RecoveredIdentity:
        return asyncio.run(
            recover_identity(self.order(**changes), words=words, shares=shares, entropy=ENTROPY, port=SODIUM)
        )

    def card(self) -> str:
        """The code of a public card as earlier versions printed it: the inception and the newest recovery."""
        log = self.log()
        tiers = [one.tier.signed.line() for one in log.generations]
        records = tuple(tiers if len(tiers) == 1 else (tiers[0], tiers[-1]))
        return Card(name="ada", agent_id=log.id, date="", generation=0, records=records).codes[0]


def make_unattended(root: Path, addresses: Sequence[str]) -> tuple[Path, str]:
    """An agent in `root`/ada whose worker starts without a person: its folder and its words."""
    shown: list[str] = []
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    plan = AgentPlan(
        name="ada",
        folder=root / "ada",
        vault=root / "vault",
        second=root / "second",
        witnesses=tuple(parse_witness_address(one, base=root) for one in addresses),
        keys=[_unlock_file(root / "unlock")],
        second_keys=[_unlock_file(root / "unlock2")],
        imported=None,
        today="2026-11-15",
    )

    def show(phrase: Phrase) -> None:
        shown.append(" ".join(phrase.words))

    asyncio.run(make_agent(plan, show=show, entropy=ENTROPY, port=SODIUM))
    return plan.folder, shown[0]


def _unlock_file(path: Path) -> UnlockKey:
    text = new_unlock_text(ENTROPY)
    path.touch(0o600)
    path.write_bytes(text)
    return file_key(path, text)


@contextmanager
def paper(words: str, session: LogSession) -> Generator[PaperKeys]:
    phrase, _ = find_phrase([session.log], words=words)
    with phrase, PaperKeys(phrase) as found:
        yield found


def _named(addresses: Sequence[WitnessAddress]) -> Keys:
    return open_witnesses(addresses, port=SODIUM, make=True).keys()
