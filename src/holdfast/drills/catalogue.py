"""Every drill: what it breaks, what it promises by default, and when it does not apply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, NamedTuple

from holdfast.drills.backups import backup_tampered, old_backup, place_lost, test_restore
from holdfast.drills.disks import disk_full, journal_damage
from holdfast.drills.host_loss import host_loss
from holdfast.drills.keys import keys_lost, keys_stolen
from holdfast.drills.mail import all_relays_lost, mail_during_recovery, relay_lost
from holdfast.drills.on_production import kill_worker, read_handoff
from holdfast.drills.production import Production
from holdfast.drills.provider import provider_lost
from holdfast.drills.run import DrillRun
from holdfast.drills.servers import region_loss, store_failover, two_enrolled
from holdfast.drills.standing import copy as standing_copy
from holdfast.drills.tool_files import tool_files
from holdfast.drills.work import hand_off, process_kill, two_alive
from holdfast.errors import BadInput
from holdfast.relay.client.profile import find_own_profile
from holdfast.surfaces.alarms import every_days

RESTART_S = 1.0  # of a worker that is started again on its machine, unless the owner set another target
RECOVERY_S = 300.0  # of a whole recovery, unless the owner of the agent set a target


class Promise(NamedTuple):
    """What a drill promises by default. None: nothing, and of `rpo_s` what the agent's own target says."""

    rto_s: float | None = None
    rpo_s: float | None = None
    rpo_items: int | None = None
    parked_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    slug: str
    code: str
    title: str
    narrative: str
    threat: str
    likelihood: Literal["rare", "occasional", "frequent"]
    run: Callable[[DrillRun], None]
    promise: Promise
    type: Literal["component", "functional", "full failover"] = "functional"
    on_production: Callable[[DrillRun], None] | None = None  # without a shadow
    on_stand: Callable[[DrillRun], None] | None = None  # with a copy that stays
    words: bool = False  # needs a person's words
    reads: bool = False  # a rescue key is enough
    find_reason: Callable[[Production], str] = lambda _production: ""  # why it does not apply

    @property
    def interval_days(self) -> int:
        return every_days(self.slug)


def no_places(production: Production) -> str:
    return "" if production.places else "the agent has no backup place"


def fewer_than_two_places(production: Production) -> str:
    return "" if len(production.places) > 1 else "the agent has no second backup place"


def no_arbiter(production: Production) -> str:
    if missing := no_journal(production):
        return missing
    decided = production.home.by_journal or production.home.arbiter is not None  # by a roster, or by an arbiter
    return "" if decided else "the settings name no arbiter: nothing decides between copies"


def no_journal(production: Production) -> str:
    return "" if production.journal is not None else "the agent has no journal"


def no_journal_or_places(production: Production) -> str:
    return no_journal(production) or no_places(production)


def no_file_or_places(production: Production) -> str:
    if production.home.journal_url:
        return "the journal is in PostgreSQL, not a file (`holdfast journal check` reads all of it)"
    return no_journal_or_places(production)


def no_model(production: Production) -> str:
    found = production.journal is not None and production.journal.model_steps
    return "" if found else "no newer task in the journal asks a model"


def no_relays(production: Production) -> str:
    held = find_own_profile(production.home)
    return "" if held is not None and held.record.relays else "the agent has no relays"


def no_app(production: Production) -> str:
    return "" if production.home.settings.drills.app else "the settings name no app: `[drills] app`"


def no_server(production: Production) -> str:
    return "" if production.home.journal_url else "the journal is a file, not in PostgreSQL"


DRILLS: tuple[Drill, ...] = (
    Drill(
        slug="process-kill",
        code="D01",
        title="The worker is killed",
        narrative="The worker process is killed inside calls, before and after their effects, and at random moments.",
        threat="out of memory, a crash, a deploy",
        likelihood="frequent",
        run=process_kill,
        on_production=kill_worker,
        type="component",
        promise=Promise(rto_s=RESTART_S, rpo_s=0.0, rpo_items=0, parked_max=0),
        find_reason=no_journal,
    ),
    Drill(
        slug="host-loss",
        code="D02",
        title="The machine is lost",
        narrative="The machine dies in the middle of a step. On another one, with nothing of the agent left, it is "
        "restored from its recovery sheet and one backup place.",
        threat="fire, theft, a broken disk, a deleted virtual machine",
        likelihood="occasional",
        run=host_loss,
        on_stand=standing_copy.lose_host,
        type="full failover",
        words=True,
        promise=Promise(rto_s=RECOVERY_S),
        find_reason=no_places,
    ),
    Drill(
        slug="region-loss",
        code="D03",
        title="A region is lost",
        narrative="The region with the journal's server is cut off; the other one continues.",
        threat="loss of power or network of a whole site",
        likelihood="rare",
        run=region_loss,
        type="full failover",
        promise=Promise(rpo_s=0.0, rpo_items=0),
        find_reason=no_server,
    ),
    Drill(
        slug="store-failover",
        code="D04",
        title="The journal's server fails over",
        narrative="PostgreSQL fails over to its standby inside a commit.",
        threat="a broken server, an upgrade",
        likelihood="occasional",
        run=store_failover,
        promise=Promise(rpo_s=0.0, rpo_items=0),
        find_reason=no_server,
    ),
    Drill(
        slug="disk-full",
        code="D05",
        title="The disk is full",
        narrative="The disk with the journal is full while a task runs; then there is space again.",
        threat="logs, a large file, a forgotten backup",
        likelihood="frequent",
        run=disk_full,
        type="component",
        promise=Promise(rpo_s=0.0, rpo_items=0, parked_max=0),
        find_reason=no_journal,
    ),
    Drill(
        slug="journal-damage",
        code="D06",
        title="The journal is damaged",
        narrative="Bits of the journal's file are flipped; the check finds them, and a backup brings it back.",
        threat="a failing disk or memory",
        likelihood="rare",
        run=journal_damage,
        promise=Promise(rto_s=RECOVERY_S),
        find_reason=no_file_or_places,
    ),
    Drill(
        slug="place-lost",
        code="D07",
        title="A backup place is lost",
        narrative="One of the places is gone; the other one still restores.",
        threat="a broken disk, a closed account",
        likelihood="occasional",
        run=place_lost,
        promise=Promise(rto_s=RECOVERY_S),
        find_reason=fewer_than_two_places,
    ),
    Drill(
        slug="backup-tampered",
        code="D08",
        title="A backup is tampered with",
        narrative="A byte of a repository is changed; then a repository is put back to an older day.",
        threat="ransomware, an intruder, bit rot",
        likelihood="rare",
        run=backup_tampered,
        promise=Promise(rto_s=RECOVERY_S),
        find_reason=fewer_than_two_places,
    ),
    Drill(
        slug="keys-lost",
        code="D09",
        title="The keys are lost",
        narrative="Vault and second place are gone; the identity is recovered from its recovery sheet.",
        threat="a forgotten passphrase, a broken disk",
        likelihood="occasional",
        run=keys_lost,
        words=True,
        promise=Promise(rto_s=60.0, rpo_s=0.0),
        find_reason=no_places,
    ),
    Drill(
        slug="keys-stolen",
        code="D10",
        title="The keys are stolen",
        narrative="A thief works with a copy of all online keys; one command with the recovery sheet locks him out.",
        threat="theft of the machine, malware",
        likelihood="rare",
        run=keys_stolen,
        words=True,
        promise=Promise(rpo_s=0.0),
    ),
    Drill(
        slug="relay-lost",
        code="D11",
        title="A relay is lost",
        narrative="One of three relays is killed and its disk is gone, between two messages of another agent.",
        threat="a broken server, a closed account, an operator that gives up",
        likelihood="occasional",
        run=relay_lost,
        promise=Promise(rto_s=60.0, rpo_s=0.0, rpo_items=0, parked_max=0),
        find_reason=no_relays,
    ),
    Drill(
        slug="two-alive",
        code="D12",
        title="Two copies are alive",
        narrative="A copy of the agent's folder is started beside the agent; one of them acts.",
        threat="a copied virtual machine, a restored folder that is started twice",
        likelihood="occasional",
        run=lambda run: two_enrolled(run) if run.production.home.by_journal else two_alive(run),
        promise=Promise(rpo_s=0.0),
        find_reason=no_arbiter,
    ),
    Drill(
        slug="old-backup",
        code="D13",
        title="An older backup is restored",
        narrative="Effects were made after the snapshot that is restored; none is made again.",
        threat="the newest snapshot is lost or damaged",
        likelihood="occasional",
        run=old_backup,
        promise=Promise(rto_s=RECOVERY_S, parked_max=1),
        find_reason=no_journal_or_places,
    ),
    Drill(
        slug="hand-off",
        code="D14",
        title="The agent restarts and remembers nothing",
        narrative="Every process dies and the journal is away; the hand-off file alone answers where the agent was.",
        threat="a restart, another person or model that takes over",
        likelihood="frequent",
        run=hand_off,
        on_production=read_handoff,
        type="component",
        promise=Promise(rto_s=60.0),
        find_reason=no_journal,
    ),
    Drill(
        slug="provider-lost",
        code="D15",
        title="The model provider is lost",
        narrative="The endpoint that answered the last turn is gone; the next turn goes to another one.",
        threat="an outage of a provider or a region, a closed account",
        likelihood="occasional",
        run=provider_lost,
        promise=Promise(rto_s=60.0, rpo_s=0.0),
        find_reason=no_model,
    ),
    Drill(
        slug="all-relays-lost",
        code="D16",
        title="All relays are lost",
        narrative="All relays are gone with their disks; a message waits with its sender until new ones are named.",
        threat="one operator or region for all of them",
        likelihood="rare",
        run=all_relays_lost,
        promise=Promise(rto_s=RECOVERY_S, rpo_s=0.0, rpo_items=0, parked_max=0),
        find_reason=no_relays,
    ),
    Drill(
        slug="mail-during-recovery",
        code="D17",
        title="Mail during a recovery",
        narrative="The folder is lost after a message that the newest snapshot lacks; another message comes while the "
        "agent is away. It is restored, and handles each of them once.",
        threat="a lost machine while other agents write",
        likelihood="occasional",
        run=mail_during_recovery,
        promise=Promise(rto_s=RECOVERY_S, rpo_items=0),
        find_reason=lambda production: no_relays(production) or no_places(production),
    ),
    Drill(
        slug="tool-files",
        code="D18",
        title="Files that tools leave",
        narrative="Each tool of the agent's app runs alone, with the arguments of its newest call; every file that it, "
        "or a program of it, leaves outside of run.scratch and of the agent's folder is named.",
        threat="work that is only on the disk of the machine that is lost",
        likelihood="occasional",
        run=tool_files,
        type="component",
        promise=Promise(),
        find_reason=no_app,
    ),
    Drill(
        slug="test-restore",
        code="D00",
        title="Test restore",
        narrative="The newest snapshot is restored into a new folder, on the path of a recovery, and compared.",
        threat="a backup that cannot be restored",
        likelihood="occasional",
        run=test_restore,
        on_stand=standing_copy.restore,
        type="component",
        reads=True,
        promise=Promise(rto_s=RECOVERY_S),
        find_reason=no_places,
    ),
)
SETS: dict[str, tuple[str, ...]] = {
    "quarterly": ("host-loss",),
    "daily": ("test-restore",),
    "deploy": ("process-kill", "hand-off"),
    "all": tuple(one.slug for one in DRILLS),
}


def get_drill(name: str) -> Drill:
    """By its slug or code. Raises BadInput."""
    for one in DRILLS:
        if name.lower() in (one.slug, one.code.lower()):
            return one
    near = get_close_matches(name.lower(), [one.slug for one in DRILLS], n=1)
    known = ", ".join(f"{one.slug} ({one.code})" for one in DRILLS)
    hint = f"did you mean {near[0]}?" if near else f"the drills are: {known}"
    raise BadInput(f"there is no drill {name!r}", hint=hint)
