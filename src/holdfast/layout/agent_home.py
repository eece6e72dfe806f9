"""An agent's folder: where each thing in it is, its memory too, and which folder a command means."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.core.journal_address import FILE, INSTANCE, JournalAddress, parse_journal_url
from holdfast.errors import BadSettings, NotAnAgent
from holdfast.host.private_files import check_place, check_private_folder
from holdfast.layout.covering import CoveringRules
from holdfast.layout.settings import NAME, AgentSettings, read_agent_settings, read_fields
from holdfast.layout.witness_address import WitnessAddress, folders_of, parse_witness_address

ENVIRONMENT = "HOLDFAST_HOME"
ADOPTED = ".holdfast"  # in the folder of an agent that was there before
BY_JOURNAL = "journal"  # as `arbiter`: the incarnation in the journal that hosts share says who may act
NAME_CHARS_MAX = 64


class _Inside:
    """The path of this name in the folder of its owner."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, owner: AgentHome | MemoryPlace, kind: type) -> Path:
        return owner.folder / self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentHome:
    """Paths of one agent. Nothing here opens or makes a file."""

    folder: Path
    name: str
    settings: AgentSettings = field(default_factory=AgentSettings)
    journal_url: str = ""  # of a journal on a server; empty: a file in the folder

    settings_file = _Inside(NAME)
    identity_file = _Inside("identity.json")
    log_file = _Inside("kel.jsonl")
    roster_file = _Inside("instances.jsonl")  # the newest signed list of the agent's instances
    profile_file = _Inside("profile.json")  # the newest signed profile: where the agent is to be reached
    peers_file = _Inside("peers.json")  # the newest profiles seen of other agents
    mailbox_file = _Inside("mailbox.json")  # the newest signed state of the mailbox at each relay
    relay_proofs = _Inside("relay-proofs")  # signed answers of a relay that contradict each other
    receipts_file = _Inside("receipts.jsonl")
    keys_file = _Inside("keys.json")
    instance = _Inside(INSTANCE)  # this host's own: never backed up, never copied
    scratch = _Inside("scratch")
    memory_file = _Inside("MEMORY.md")
    days = _Inside("memory")
    heartbeat_file = _Inside("HEARTBEAT.md")
    handoff_file = _Inside("handoff.md")
    places_file = _Inside("places.json")  # where backups go: names and addresses, no secrets
    rescue_file = _Inside("rescue.json")  # which rescue keys there are, to look at
    heads_file = _Inside("heads.jsonl")  # the chain of signed backup heads
    targets_file = _Inside("targets.jsonl")  # time to recover and data to lose, as people set them
    written_file = _Inside("written.jsonl")  # which files the code of tools wrote elsewhere
    readings_file = _Inside("paper-read.jsonl")  # sheets that were read back, each signed by the agent
    levels_file = _Inside("levels.jsonl")  # the level, each time that it changed

    @property
    def journal(self) -> JournalAddress:
        if self.journal_url:
            return JournalAddress(folder=self.folder, url=parse_journal_url(self.journal_url))
        return JournalAddress(folder=self.folder, file=FILE)

    @property
    def state(self) -> Path:
        """What a backup covers: this folder, or that of an adopted agent, which holds this one."""
        return self.path_of(self.settings.adopted.folder) or self.folder

    def covering(self) -> CoveringRules:
        """What of it is left out: keys, wherever they are, and this host's own files."""
        given = (self.vault, self.second, *folders_of(self.witnesses), self.arbiter, self.signer, self.shared_folder)
        own = "" if self.state == self.folder else self.folder.relative_to(self.state).as_posix()
        return CoveringRules(apart=tuple(str(path) for path in given if path is not None), own=own)

    @property
    def vault(self) -> Path | None:
        return self.path_of(self.settings.identity.vault)

    @property
    def second(self) -> Path | None:
        return self.path_of(self.settings.identity.second)

    @property
    def witnesses(self) -> tuple[WitnessAddress, ...]:
        given = self.settings.identity.witnesses
        return tuple(parse_witness_address(text, base=self.folder) for text in given if text)

    @property
    def arbiter(self) -> Path | None:
        """Its folder; None where there is none, or the journal decides."""
        return None if self.by_journal else self.path_of(self.settings.identity.arbiter)

    @property
    def by_journal(self) -> bool:
        return self.settings.identity.arbiter == BY_JOURNAL

    def arbiter_for(self, *, hosts: bool, folder: str) -> str:
        """The setting `arbiter` for a journal that several hosts share, or one that this machine alone has. `folder` is
        taken where the arbiter's folder is not here."""
        old = self.settings.identity.arbiter
        if not old or hosts:
            return old and BY_JOURNAL
        missing = self.arbiter is None or not self.arbiter.parent.is_dir()
        return folder if folder and missing else old

    @property
    def shared_folder(self) -> Path | None:
        """Through which the agent's instances send each other memory updates."""
        return self.path_of(self.settings.instances.folder)

    @property
    def signer(self) -> Path | None:
        return self.path_of(self.settings.identity.signer)

    def path_of(self, text: str) -> Path | None:
        """A path as the settings have it; None where they have none."""
        return None if not text else Path(os.path.abspath(self.folder / Path(text).expanduser()))


def home_folder(given: str | None) -> Path:
    """The folder that a command means: the option, else $HOLDFAST_HOME, else this one.
    Of an adopted agent it is the one that Holdfast has made in its folder."""
    return home_in(_meant(given))


def root_folder(given: str | None) -> Path:
    """The folder that is backed up and restored: of an adopted agent its own, not ours in it."""
    folder = _meant(given)
    return folder.parent if folder.name == ADOPTED else folder


def home_in(folder: Path) -> Path:
    """Where the home is in a folder that was backed up, restored or named by a person."""
    inner = folder / ADOPTED
    return inner if not os.path.lexists(folder / NAME) and os.path.lexists(inner / NAME) else folder


def find_home(folder: Path) -> AgentHome | None:
    """The agent in this folder, or None where it is none's. Raises what `load_home` does else."""
    path = folder / NAME
    return load_home(folder) if os.path.lexists(path) and read_fields(path).get("agent") else None


def _meant(given: str | None) -> Path:
    return Path(os.path.abspath(given or os.environ.get(ENVIRONMENT) or "."))


def load_home(folder: Path) -> AgentHome:
    """The agent in this folder.
    Raises NotAnAgent: there is no holdfast.toml that names one; BadSettings, ModeTooWide, WrongOwner,
    SymlinkRefused."""
    path = folder / NAME
    if not os.path.lexists(path):
        raise NotAnAgent(f"there is no agent in {folder}")
    check_place(folder)
    check_private_folder(folder)
    fields = read_fields(path)
    name = str(fields.get("agent", ""))
    if not name:
        raise NotAnAgent(
            f"the file {path} has no line with the name of the agent", hint='add a line such as `agent = "ada"`'
        )
    home = _home_of(folder, fields)
    if home.state not in (folder, folder.parent):
        raise BadSettings(
            f"{path}: [adopted] folder is {home.state}, which does not contain {folder}",
            hint='for an adopted agent, set it to ".."',
        )
    return home


def peek_home(folder: Path) -> AgentHome | None:
    """The agent that the settings in this folder name; None where they name none.
    The place is not judged: a journal is there too, with rules of its own."""
    path = folder / NAME
    fields = read_fields(path) if os.path.lexists(path) else {}
    return _home_of(folder, fields) if fields.get("agent") else None


def _home_of(folder: Path, fields: Mapping[str, object]) -> AgentHome:
    return AgentHome(
        folder=folder,
        name=str(fields["agent"]),
        settings=read_agent_settings(folder / NAME),
        journal_url=str(fields.get("journal_url", "")),
    )


MEMORY_FILE = "MEMORY.md"
HEARTBEAT_FILE = "HEARTBEAT.md"
DAYS = "memory"
PRIVATE = ".holdfast"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlace:
    """Paths alone; nothing here opens or makes a file."""

    folder: Path

    memory_file = _Inside(MEMORY_FILE)
    heartbeat_file = _Inside(HEARTBEAT_FILE)
    days = _Inside(DAYS)
    private = _Inside(PRIVATE)  # what Holdfast keeps beside the files: losing it costs history, never a line
    asides = _Inside(f"{PRIVATE}/aside")
    lock = _Inside(f"{PRIVATE}/memory.lock")
    position = _Inside(f"{PRIVATE}/memory.json")
    report = _Inside(f"{PRIVATE}/merges.jsonl")
    instance = _Inside(INSTANCE)  # of this machine, never copied: names the folder in the journal

    def day_file(self, day: str) -> Path:
        return self.days / f"{day}.md"

    def sidecar(self, path: Path) -> Path:
        return self.private / f"{path.name}.json"

    def document(self, path: Path) -> Path:
        """What several instances share of this file."""
        return self.private / f"{path.name}.doc"
