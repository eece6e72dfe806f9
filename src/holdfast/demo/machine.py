"""The demo's machine: where the agent, its vault and its backups are, and how it is lost.

    ada/                    the agent's folder, with the journal
    machine/                vault, second key, witness, arbiter: with ada/, all that is lost
    place-1/, place-2/      backups; the first one is lost with the machine
    new-machine/            where the agent is restored

Everything is on one disk, because this is a demo; nothing that was lost is read again.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from holdfast.backup.backups import open_backups
from holdfast.backup.open_engine import open_engine
from holdfast.backup.places.backup_places import PlaceRequest, open_places
from holdfast.backup.report import NowReport
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.errors import EngineMissing, EngineTooOld
from holdfast.host.private_files import create_durably, ensure_private_folder
from holdfast.identity.acts.make_agent import AgentPlan, make_agent
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.paper.phrase import Phrase
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.speaker.vault_speaker import VaultSpeaker
from holdfast.identity.statements.answer import find_fault_in_answer
from holdfast.identity.vault.slots import UnlockKey, file_key, new_unlock_text
from holdfast.identity.vault.vault import open_vault
from holdfast.layout.agent_home import AgentHome
from holdfast.layout.witness_address import WitnessFolder
from holdfast.recovery.recover_agent import RecoveredAgent, RecoveryTarget, recover_agent
from holdfast.recovery.survey import Evidence, survey_evidence

AGENT = "ada"
CHALLENGE_BYTES = 16


@dataclass(frozen=True, slots=True)
class Machine:
    """One host of the demo."""

    folder: Path

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def unlocking(self, name: str) -> list[UnlockKey]:
        """A key file, so that the demo asks for no passphrase."""
        path = self.folder / f"unlock-{name}"
        text = new_unlock_text(SystemEntropy())
        ensure_private_folder(self.folder)
        create_durably(path, text)
        return [file_key(path, path.read_bytes())]


async def give_identity(home: Path, machine: Machine) -> tuple[AgentHome, str]:
    """What `holdfast init` does for an agent that has a journal: its home, and the words."""
    words: list[str] = []

    def show(phrase: Phrase) -> None:
        words.append(" ".join(phrase.words))

    plan = AgentPlan(
        name=AGENT,
        folder=home,
        vault=machine / "vault",
        second=machine / "second",
        witnesses=(WitnessFolder(machine / "witness"),),
        arbiter=str(machine / "arbiter"),
        keys=machine.unlocking("vault"),
        second_keys=machine.unlocking("second"),
    )
    made = await make_agent(plan, show=show, entropy=SystemEntropy(), port=Sodium())
    return made.home, words[0]


async def back_up(home: AgentHome, places: list[Path]) -> NowReport:
    """Two places, one snapshot in both, restored from both for a test."""
    kept = await open_places(home)
    for number, place in enumerate(places, 1):
        ensure_private_folder(place)
        await kept.add(PlaceRequest(name=f"place-{number}", address=str(place)))
    return await (await open_backups(home)).now()


async def find_engine_trouble(base: Path) -> str:
    """Why backups are impossible here, with a hint; empty if they are possible."""
    try:
        await open_engine(base=base)
    except (EngineMissing, EngineTooOld) as error:
        return f"{error.message} ({error.hint})"
    return ""


def lose(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder)


async def bring_back(home: Path, words: str, place: Path, machine: Machine) -> RecoveredAgent:
    """What `holdfast recover` does on a new machine."""
    ensure_private_folder(machine.folder)
    evidence = Evidence(places=(str(place),), words=words)
    engine = await open_engine(base=machine.folder / "borg")
    survey = await survey_evidence(evidence, home, engine=engine, port=Sodium())
    target = RecoveryTarget(
        folder=home,
        vault=machine / "vault",
        second=machine / "second",
        spare_witness=WitnessFolder(machine / "witness"),
        keys=machine.unlocking("vault"),
        second_keys=machine.unlocking("second"),
        arbiter=str(machine / "arbiter"),
    )
    return await recover_agent(
        survey, evidence, target, clock=SystemClock(), entropy=SystemEntropy(), port=Sodium(), tell=lambda _: None
    )


def answers_as(home: AgentHome, before: KeyLog) -> bool:
    """Whether the agent in this folder answers a fresh challenge under the id of that log.

    Judged by the log that it shows now, which must begin as the old one did.
    """
    port, clock = Sodium(), SystemClock()
    log = read_own_log(home.folder, port)
    if log.id != before.id or home.vault is None:
        return False
    challenge = SystemEntropy().bytes(CHALLENGE_BYTES).hex()
    with open_vault(home.vault) as vault:
        speaker = VaultSpeaker(vault, read_log=lambda: read_own_log(home.folder, port), clock=clock)
        answer = speaker.answer(challenge)
    now = clock.wall_ms() // 1000
    return find_fault_in_answer(answer, log, challenge=challenge, now=now, port=port) is None


def knows(home: AgentHome, fact: str) -> bool:
    """Whether the fact is in the agent's own files."""
    files = [home.memory_file, *sorted(home.days.glob("*.md"))]
    return any(fact in path.read_text() for path in files if path.is_file())
