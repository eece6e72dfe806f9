"""What to do when something fails: one list of steps per failure.

The runbook prints these steps with the agent's real names, and a drill executes them in a shadow, so the two cannot
differ. A command is what a person types; words in braces are filled in from the agent (`procedure_values`). A step
without a command is done by hand.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from holdfast.backup.places.address import PlaceKind
from holdfast.backup.places.places import Place
from holdfast.layout.agent_home import AgentHome


class Rank(StrEnum):
    """The order in which an agent is brought back."""

    IDENTITY = "identity"
    STATE = "state"
    CONNECTIVITY = "connectivity"


class By(StrEnum):
    PERSON = "person"  # who has the paper
    OPERATOR = "operator"  # who has a shell on the machine
    HOLDFAST = "holdfast"  # by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    title: str
    command: tuple[str, ...] = ()  # empty: by hand
    by: By = By.OPERATOR
    expect: str = ""

    def filled(self, values: Mapping[str, str]) -> tuple[str, ...]:
        """The command with the agent's real names."""
        return tuple(word.format_map(values) for word in self.command)

    def shown(self, values: Mapping[str, str]) -> str:
        return shlex.join(self.filled(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Procedure:
    slug: str
    failure: str
    rank: Rank
    decides: str  # who may decide to begin
    actions: tuple[Action, ...]
    worked: str  # how to tell that it worked

    @property
    def digest(self) -> str:
        text = "\n".join(f"{one.title}\0{shlex.join(one.command)}\0{one.expect}" for one in self.actions)
        return hashlib.sha256(text.encode()).hexdigest()


def _run(title: str, command: str, expect: str = "", by: By = By.OPERATOR) -> Action:
    return Action(title=title, command=tuple(command.split()), expect=expect, by=by)


def _hand(title: str, expect: str = "", by: By = By.PERSON) -> Action:
    return Action(title=title, expect=expect, by=by)


def _itself(title: str, expect: str = "") -> Action:
    return Action(title=title, expect=expect, by=By.HOLDFAST)


_SHEET = _hand("take the recovery sheet, or enough shares, from where it is kept", "24 words, or 33 on each share")
_SHOW = _run("see who the agent is", "holdfast identity show --home {home}", "standing: active; id: {id}")
_CHECK = _run("check the journal", "holdfast journal check --home {home}", "no damage")
_WORKER = _run("start the worker", "holdfast worker {app} --home {home}", "a line with `serving`")
_TODO = _run("see what waits for a person", "holdfast todo --home {home}", "every parked task, with its command")
_DOCTOR = _run("see what is left to do", "holdfast doctor --home {home}", "no line with `damage`")
_KEEP = "holdfast recover --keep-keys --vault {vault} --place {place} --home {home}"
OWNER, OPERATOR = "the owner of the agent", "the operator on duty"

PROCEDURES: tuple[Procedure, ...] = (
    Procedure(
        slug="keys-lost",
        failure="the vault and its second place are lost or cannot be opened; the agent's folder is there",
        rank=Rank.IDENTITY,
        decides=OWNER,
        actions=(
            _SHEET,
            _run(
                "recover the identity",
                "holdfast identity recover --home {home} --vault {vault} --second {second} "
                "--log {log} --escrow {escrow}",
                "id: {id}",
            ),
            _SHOW,
            _WORKER,
        ),
        worked="`holdfast identity answer` is accepted under the same id, and a task continues",
    ),
    Procedure(
        slug="keys-stolen",
        failure="another person has, or may have, the agent's keys",
        rank=Rank.IDENTITY,
        decides=OWNER,
        actions=(
            _SHEET,
            _run("evict the thief", "holdfast identity evict --paper --home {home}", "standing: active"),
            _SHOW,
            _run("replace the paper", "holdfast paper replace --home {home}", "new words", by=By.PERSON),
        ),
        worked="an answer that is signed with the old keys is refused, and a worker with the old keys ends",
    ),
    Procedure(
        slug="host-loss",
        failure="the machine is gone, with the agent's folder, its journal and its keys",
        rank=Rank.STATE,
        decides=OWNER,
        actions=(
            _SHEET,
            _run(
                "restore the agent on a new machine",
                "holdfast recover --place {place} --home {home} --vault {vault} --second {second}",
                "state: restored snapshot ...; id: {id}",
            ),
            _SHOW,
            _CHECK,
            _WORKER,
            _TODO,
            _run("see which secrets to rotate", "holdfast secret list --home {home}", "every name; rotate each"),
        ),
        worked="the same id answers a challenge, and a task does its next step once",
    ),
    Procedure(
        slug="region-loss",
        failure="a region is gone or cut off, with its server of the journal",
        rank=Rank.STATE,
        decides=OWNER,
        actions=(
            _hand("promote the standby server in the other region", "it accepts writes", by=By.OPERATOR),
            _CHECK,
            _WORKER,
        ),
        worked="no commit is lost, and the old region is refused after it heals",
    ),
    Procedure(
        slug="store-failover",
        failure="the PostgreSQL server of the journal fails over to its standby",
        rank=Rank.STATE,
        decides=OPERATOR,
        actions=(_itself("workers reconnect and confirm every commit in doubt"), _CHECK),
        worked="no commit is lost, and no commit is in doubt",
    ),
    Procedure(
        slug="old-backup",
        failure="an older state of the journal is put back: effects were made after it",
        rank=Rank.STATE,
        decides=OPERATOR,
        actions=(_run("restore the snapshot; the keys stay", _KEEP, "open tasks in doubt: ..."), _WORKER, _TODO),
        worked="no effect is made twice; what was done after the snapshot is adopted or parked",
    ),
    Procedure(
        slug="journal-damage",
        failure="the journal's file is damaged",
        rank=Rank.STATE,
        decides=OPERATOR,
        actions=(_CHECK, _run("restore it from a backup; the keys stay", _KEEP, "state: restored snapshot"), _WORKER),
        worked="`holdfast journal check` finds no damage, and a task continues",
    ),
    Procedure(
        slug="disk-full",
        failure="the disk with the journal is full",
        rank=Rank.STATE,
        decides=OPERATOR,
        actions=(
            _run("see what is full", "df -h {home}"),
            _hand("free some space", by=By.OPERATOR),
            _itself("the worker resumes when there is space"),
            _DOCTOR,
        ),
        worked="the waiting task continues; nothing was sent while the disk was full",
    ),
    Procedure(
        slug="place-lost",
        failure="a backup place is gone",
        rank=Rank.STATE,
        decides=OPERATOR,
        actions=(
            _run("see which place is gone", "holdfast backup list --places --home {home}", "{place_name}: an error"),
            _run("test the other one", "holdfast backup verify {other_name} --home {home}", "verified: yes"),
            _run("stop using the lost place", "holdfast place remove {place_name} --home {home}"),
            _hand("add a new place on another disk or host: holdfast place add NAME ADDRESS", by=By.OPERATOR),
        ),
        worked="`holdfast backup verify` restores the newest snapshot from another place",
    ),
    Procedure(
        slug="backup-tampered",
        failure="a backup was changed, or put back to an older state",
        rank=Rank.STATE,
        decides=OPERATOR,
        actions=(
            _run("test the place", "holdfast backup verify {place_name} --home {home}", "verified: no"),
            _run("look for a rollback", "holdfast backup list --places --home {home}", "a warning about {place_name}"),
            _run("test the other one", "holdfast backup verify {other_name} --home {home}", "verified: yes"),
        ),
        worked="the bad place is named, and the other one restores",
    ),
    Procedure(
        slug="process-kill",
        failure="the worker process died",
        rank=Rank.STATE,
        decides="no decision is needed",
        actions=(_WORKER, _itself("`holdfast worker` starts its worker process again and resumes every task"), _TODO),
        worked="the task continues at the step where it was; no effect is made twice",
    ),
    Procedure(
        slug="hand-off",
        failure="the agent restarts and remembers nothing",
        rank=Rank.STATE,
        decides="no decision is needed",
        actions=(
            _run("read where the agent was", "holdfast handoff --home {home}", "done, pending, decided, changed"),
        ),
        worked="the file alone answers: where are we, what is pending, what is decided, what changed",
    ),
    Procedure(
        slug="two-alive",
        failure="two copies of the agent run",
        rank=Rank.CONNECTIVITY,
        decides=OWNER,
        actions=(
            _hand("stop the copy that should not run", by=By.OPERATOR),
            _DOCTOR,
            _hand("if both must be locked out: holdfast identity evict --paper", by=By.PERSON),
        ),
        worked="one copy acts; the other one waits and says why",
    ),
    Procedure(
        slug="relay-lost",
        failure="a relay of the agent is gone for good",
        rank=Rank.CONNECTIVITY,
        decides=OPERATOR,
        actions=(
            _itself("mail continues over the other relays; each message is on two of them"),
            _run("see which relay is gone", "holdfast relay doctor --home {home}", "{relay}: does not answer"),
            _run("leave it", "holdfast relay remove {relay} --home {home}", "removed: ..."),
            _hand("add another one, of another operator: holdfast relay add ADDRESS", by=By.OPERATOR),
            _run("see that all have the newest profile", "holdfast relay list --home {home}", "newest, in every row"),
        ),
        worked="a message of another agent arrives once, and `holdfast relay doctor` finds nothing",
    ),
    Procedure(
        slug="all-relays-lost",
        failure="all relays of the agent are gone for good",
        rank=Rank.CONNECTIVITY,
        decides=OWNER,
        actions=(
            _itself("messages wait in the journals of their senders; the agent's own tasks continue"),
            _hand("find three relays of two operators, or run them: holdfast explain run-a-relay", by=By.OPERATOR),
            _hand("for each of them: holdfast relay add ADDRESS", by=By.OPERATOR),
            _hand(
                "give the new addresses to the agents that write to this one", "holdfast relay find ID --relay ADDRESS"
            ),
            _run("see what did not arrive", "holdfast mail dead --home {home}", "every message has arrived, ..."),
        ),
        worked="every message without a delivery note is sent again by its sender and handled once",
    ),
    Procedure(
        slug="mail-during-recovery",
        failure="the agent is recovered from an older snapshot while mail comes in",
        rank=Rank.CONNECTIVITY,
        decides="no decision is needed",
        actions=(
            _WORKER,
            _itself("the relays deliver held mail again: what came after the snapshot"),
            _run("see what came", "holdfast mail inbox --home {home}", "every message once"),
            _TODO,
        ),
        worked="no message is lost, and no effect of a handler is made twice",
    ),
    Procedure(
        slug="provider-lost",
        failure="the model endpoint of a region is gone, with its cache and sessions",
        rank=Rank.CONNECTIVITY,
        decides="no decision is needed",
        actions=(_itself("the next turn asks another endpoint, with the same messages from the journal"), _TODO),
        worked="the next turn is answered, and its prefix is equal byte for byte",
    ),
)


# Not a failure: what is tried every day.
TEST_RESTORE = Procedure(
    slug="test-restore",
    failure="nothing failed: the newest snapshot is restored for a test",
    rank=Rank.STATE,
    decides="no decision is needed",
    actions=(
        _run("restore into a new folder", "holdfast recover --place {place} --home {home} --to {to}", "its path"),
    ),
    worked="every file that has not changed since is equal",
)


def get_procedure(slug: str) -> Procedure:
    return next(one for one in (*PROCEDURES, TEST_RESTORE) if one.slug == slug)


def procedure_values(
    home: AgentHome, places: Sequence[Place], *, id: str, app: str = "APP", place: Place | None = None
) -> dict[str, str]:
    """The agent's real names for every word in braces. `place`: the one to restore from; default: the first."""
    place = place or next(iter(places), None)
    other = next((one for one in places if one is not place), None)
    escrow = place.own / "escrow.age" if place is not None and place.kind is PlaceKind.FOLDER else Path("escrow.age")
    return {
        "home": str(home.state),
        "name": home.name,
        "id": id,
        "app": app,
        "to": "/srv/holdfast-restored",
        "vault": str(home.vault or "VAULT"),
        "second": str(home.second or "SECOND"),
        "log": str(home.log_file),
        "escrow": str(escrow),
        "place": "PLACE" if place is None else place.address,
        "place_name": "PLACE" if place is None else place.name,
        "other_name": "OTHER" if other is None else other.name,
        "relay": "RELAY",
    }
