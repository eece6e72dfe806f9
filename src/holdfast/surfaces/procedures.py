"""What to do when something fails: one list of steps per failure.

The runbook prints these steps with the agent's real names, and a drill executes them in a shadow, so the two cannot
differ. A command is what a person types; words in braces are filled in from the agent (`procedure_values`). A step
without a command is done by hand. Some steps are only for agents that have a certain part (`Action.only`), and some
failures cannot happen to every agent, or nothing can be done about them (`Procedure.find_reason`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from holdfast.backup.places.address import PlaceKind
from holdfast.backup.places.places import Place
from holdfast.layout.agent_home import AgentHome
from holdfast.surfaces.procedure import (
    ADD,
    CHECK,
    DOCTOR,
    KEEP,
    OPERATOR,
    OTHER_PLACE,
    OWNER,
    SHEET,
    SHOW,
    TODO,
    WORKER,
    By,
    Need,
    Only,
    Parts,
    Procedure,
    Rank,
    by_hand,
    by_itself,
    typed,
)


def no_identity(parts: Parts) -> str:
    return "" if parts.identity else "the agent has no identity, so it has no keys of its own: `holdfast init NAME`"


def no_place(parts: Parts) -> str:
    return "" if parts.places else f"there is no backup, so nothing can be restored. Add a place today: {ADD}"


def no_place_to_lose(parts: Parts) -> str:
    return "" if parts.places else f"the agent has no backup place: {ADD}"


def no_journal(parts: Parts) -> str:
    return "" if parts.journal else "the agent has no journal"


def not_started(parts: Parts) -> str:
    own = parts.journal or parts.start or parts.check
    return "" if own else "Holdfast runs no task of this agent: start the agent as you always do"


def no_server(parts: Parts) -> str:
    return "" if parts.server else "the journal is not in PostgreSQL"


def no_region(parts: Parts) -> str:
    return "" if parts.server else "the journal is not in PostgreSQL: a lost region is a lost machine (host-loss)"


def no_file(parts: Parts) -> str:
    if parts.server:
        return "the journal is in PostgreSQL, and its server checks its own files"
    return no_journal(parts) or no_place(parts)


def no_model(parts: Parts) -> str:
    return no_journal(parts) or ("no newer task asks a model" if parts.models is False else "")


def no_agent(parts: Parts) -> str:
    return "" if parts.agent else "there is no agent in this folder"


def no_relays(parts: Parts) -> str:
    return "" if parts.relays else "the agent has no relays: `holdfast relay add ADDRESS`"


# In the order in which an agent is brought back: identity, state, connectivity.
PROCEDURES: tuple[Procedure, ...] = (
    Procedure(
        slug="keys-lost",
        failure="the vault and its second place are lost or cannot be opened; the agent's folder is there",
        seen="every command asks for a passphrase that is lost, or says that the vault is missing or damaged",
        rank=Rank.IDENTITY,
        decides=OWNER,
        needs=(Need.SHELL, Need.SHEET, Need.PLACE),
        actions=(
            SHEET,
            typed(
                "recover the identity",
                "holdfast identity recover --home {home} --vault {vault} --second {second} "
                "--log {log} --escrow {escrow}",
                "id: {id}",
            ),
            SHOW,
            WORKER,
        ),
        worked="`holdfast identity answer` is accepted under the same id, and a task continues",
        find_reason=no_identity,
    ),
    Procedure(
        slug="keys-stolen",
        failure="another person has, or may have, the agent's keys",
        seen="a laptop or server with the vault was stolen; `holdfast doctor` names a record that you did not make",
        rank=Rank.IDENTITY,
        decides=OWNER,
        needs=(Need.SHELL, Need.SHEET, Need.VAULT),
        actions=(
            SHEET,
            typed("evict the thief", "holdfast identity evict --paper --home {home}", "standing: active"),
            SHOW,
            typed(
                "replace the paper", "holdfast paper replace --home {home}", "new words", by=By.PERSON, drilled=False
            ),
        ),
        worked="an answer that is signed with the old keys is refused, and a worker with the old keys ends",
        find_reason=no_identity,
    ),
    Procedure(
        slug="host-loss",
        failure="the machine is gone, with the agent's folder, its journal and its keys",
        seen="the machine does not answer and will not come back",
        rank=Rank.STATE,
        decides=OWNER,
        needs=(Need.MACHINE, Need.SHEET, Need.FAR_PLACE),
        actions=(
            SHEET,
            typed(
                "if the journal's database is there: restore the agent, and continue with that journal",
                "holdfast recover --place {place} --home {home} --vault {vault} --second {second} --journal {journal}",
                "state: restored snapshot ...; id: {id}. Then leave the next step out",
                only=Only.SERVER,
                drilled=False,
            ),
            typed(
                "restore the agent on a new machine",
                "holdfast recover --place {place} --home {home} --vault {vault} --second {second}",
                "state: restored snapshot ...; id: {id}",
            ),
            SHOW,
            CHECK,
            WORKER,
            TODO,
            typed("see which secrets to rotate", "holdfast secret list --home {home}", "every name; rotate each"),
        ),
        worked="the same id answers a challenge, and a task does its next step once",
        find_reason=no_place,
    ),
    Procedure(
        slug="region-loss",
        failure="a region is gone or cut off, with its server of the journal",
        seen="the server of the journal does not answer, and neither do the workers of its region",
        rank=Rank.STATE,
        decides=OWNER,
        needs=(Need.SHELL, Need.SERVER, Need.VAULT),
        actions=(
            by_hand("promote the standby server in the other region", "it accepts writes", by=By.OPERATOR),
            typed(
                "only if the standby lacked commits: make it the journal",
                "holdfast recover --journal {journal} --home {home}",
                "open tasks in doubt: ...",
                drilled=False,
            ),
            CHECK,
            WORKER,
        ),
        worked="no commit is lost, and the old region is refused after it heals",
        find_reason=no_region,
    ),
    Procedure(
        slug="store-failover",
        failure="the PostgreSQL server of the journal fails over to its standby",
        seen="workers report that the journal cannot be reached, for some seconds",
        rank=Rank.STATE,
        decides=OPERATOR,
        needs=(Need.SHELL, Need.SERVER, Need.VAULT),
        actions=(by_itself("workers reconnect and confirm every commit in doubt"), CHECK),
        worked="no commit is lost, and no commit is in doubt",
        find_reason=no_server,
    ),
    Procedure(
        slug="old-backup",
        failure="an older state of the journal is put back: effects were made after it",
        seen="a worker refuses to start: the journal is older than what this machine has committed",
        rank=Rank.STATE,
        decides=OPERATOR,
        needs=(Need.SHELL, Need.PLACE, Need.VAULT),
        actions=(
            typed(
                "make the older journal in the database the journal",
                "holdfast recover --journal {journal} --home {home}",
                "open tasks in doubt: ...",
                only=Only.SERVER,
                drilled=False,
            ),
            typed("restore the snapshot; the keys stay", KEEP, "open tasks in doubt: ...", only=Only.FILE),
            WORKER,
            TODO,
        ),
        worked="no effect is made twice; what was done after the snapshot is adopted or parked",
        find_reason=lambda parts: no_journal(parts) or no_place(parts),
    ),
    Procedure(
        slug="journal-damage",
        failure="the journal's file is damaged",
        seen="a worker or `holdfast doctor` says `damage`",
        rank=Rank.STATE,
        decides=OPERATOR,
        needs=(Need.SHELL, Need.PLACE, Need.VAULT),
        actions=(
            typed("check the journal", "holdfast journal check --home {home}", "what is damaged; without damage, stop"),
            typed("restore it from a backup; the keys stay", KEEP, "state: restored snapshot"),
            WORKER,
        ),
        worked="`holdfast journal check` finds no damage, and a task continues",
        find_reason=no_file,
    ),
    Procedure(
        slug="disk-full",
        failure="the disk with the journal is full",
        seen="tasks wait, and a notice says that the disk is full",
        rank=Rank.STATE,
        decides=OPERATOR,
        actions=(
            typed("see what is full", "df -h {home}"),
            by_hand("free some space", by=By.OPERATOR),
            by_itself("the worker resumes when there is space"),
            DOCTOR,
        ),
        worked="the waiting task continues; nothing was sent while the disk was full",
        find_reason=no_journal,
    ),
    Procedure(
        slug="place-lost",
        failure="a backup place is gone",
        seen="a notice says that a place fails or has no new backup",
        rank=Rank.STATE,
        decides=OPERATOR,
        needs=(Need.SHELL, Need.OTHER, Need.VAULT),
        actions=(
            typed("see which place is gone", "holdfast backup list --places --home {home}", "{place_name}: an error"),
            OTHER_PLACE,
            typed("stop using the lost place", "holdfast place remove {place_name} --home {home}"),
            by_hand("add a new place on another disk or host: `holdfast place add NAME ADDRESS`", by=By.OPERATOR),
        ),
        worked="`holdfast backup verify` restores the newest snapshot from another place",
        find_reason=no_place_to_lose,
    ),
    Procedure(
        slug="backup-tampered",
        failure="a backup was changed, or put back to an older state",
        seen="a notice says that a test restore failed, or that a place is behind",
        rank=Rank.STATE,
        decides=OPERATOR,
        needs=(Need.SHELL, Need.OTHER, Need.VAULT),
        actions=(
            typed("test the place", "holdfast backup verify {place_name} --home {home}", "verified: no"),
            typed("look for a rollback", "holdfast backup list --places --home {home}", "a warning about {place_name}"),
            OTHER_PLACE,
            typed("stop using the bad place", "holdfast place remove {place_name} --home {home}"),
            by_hand("rename its folder and keep it as evidence; find out who could write to it", by=By.OPERATOR),
            by_hand("add a new place in its stead: `holdfast place add NAME ADDRESS`", by=By.OPERATOR),
            typed("make a backup there", "holdfast backup now --home {home}", "verified: yes", drilled=False),
        ),
        worked="the bad place is named and no longer used, the other one restores, and a new one has a tested snapshot",
        find_reason=no_place_to_lose,
    ),
    Procedure(
        slug="process-kill",
        failure="the worker process died",
        seen="no worker runs, and tasks do not continue",
        rank=Rank.STATE,
        decides="no decision is needed",
        needs=(Need.SHELL, Need.VAULT),
        actions=(
            WORKER,
            by_itself("`holdfast worker` starts its worker process again and resumes every task", only=Only.JOURNAL),
            TODO,
        ),
        worked="the task continues at the step where it was; no effect is made twice",
        find_reason=not_started,
    ),
    Procedure(
        slug="hand-off",
        failure="the agent restarts and remembers nothing",
        seen="the agent asks what it should do, or a person or another model takes over",
        rank=Rank.STATE,
        decides="no decision is needed",
        actions=(
            typed("read where the agent was", "holdfast handoff --home {home}", "done, pending, decided, changed"),
        ),
        worked="the file alone answers: where are we, what is pending, what is decided, what changed",
        find_reason=no_journal,
    ),
    Procedure(
        slug="two-alive",
        failure="two copies of the agent run",
        seen="a worker waits and says that another instance has the lease; or effects come from two machines",
        rank=Rank.CONNECTIVITY,
        decides=OWNER,
        needs=(Need.SHELL, Need.VAULT),
        actions=(
            by_hand("stop the copy that should not run", by=By.OPERATOR),
            DOCTOR,
            by_hand("if both must be locked out: `holdfast identity evict --paper`", by=By.PERSON),
        ),
        worked="one copy acts; the other one waits and says why",
        find_reason=no_agent,
    ),
    Procedure(
        slug="relay-lost",
        failure="a relay of the agent is gone for good",
        seen="`holdfast surface list` and `relay doctor` name it; mail continues",
        rank=Rank.CONNECTIVITY,
        decides=OPERATOR,
        actions=(
            by_itself("mail continues over the other relays; each message is on two of them"),
            typed("see which relay is gone", "holdfast relay doctor --home {home}", "{relay}: does not answer"),
            typed("leave it", "holdfast relay remove {relay} --home {home}", "removed: ..."),
            by_hand("add another one, of another operator: `holdfast relay add ADDRESS`", by=By.OPERATOR),
            typed("see that all have the newest profile", "holdfast relay list --home {home}", "newest, in every row"),
        ),
        worked="a message of another agent arrives once, and `holdfast relay doctor` finds nothing",
        find_reason=no_relays,
    ),
    Procedure(
        slug="all-relays-lost",
        failure="all relays of the agent are gone for good",
        seen="no mail arrives, sent messages stay `waiting`, and no relay answers `relay doctor`",
        rank=Rank.CONNECTIVITY,
        decides=OWNER,
        actions=(
            by_itself("messages wait in the journals of their senders; the agent's own tasks continue"),
            by_hand("find three relays of two operators, or run them: `holdfast explain run-a-relay`", by=By.OPERATOR),
            by_hand("for each of them: `holdfast relay add ADDRESS`", by=By.OPERATOR),
            by_hand("give the new addresses to the agents that write to this one", by=By.OPERATOR),
            typed("see what did not arrive", "holdfast mail dead --home {home}", "every message has arrived, ..."),
        ),
        worked="every message without a delivery note is sent again by its sender and handled once",
        find_reason=no_relays,
    ),
    Procedure(
        slug="mail-during-recovery",
        failure="the agent is recovered from an older snapshot while mail comes in",
        seen="after a recovery, other agents have proof of messages that the agent does not know",
        rank=Rank.CONNECTIVITY,
        decides="no decision is needed",
        actions=(
            WORKER,
            by_itself("the relays deliver held mail again: what came after the snapshot"),
            typed("see what came", "holdfast mail inbox --home {home}", "every message once"),
            TODO,
        ),
        worked="no message is lost, and no effect of a handler is made twice",
        find_reason=no_relays,
    ),
    Procedure(
        slug="provider-lost",
        failure="the model endpoint of a region is gone, with its cache and sessions",
        seen="tasks wait for a model, and notices name the endpoint",
        rank=Rank.CONNECTIVITY,
        decides="no decision is needed",
        needs=(Need.SHELL, Need.VAULT),
        actions=(by_itself("the next turn asks another endpoint, with the same messages from the journal"), TODO),
        worked="the next turn is answered, and its prefix is equal byte for byte",
        find_reason=no_model,
    ),
)


# Not a failure: what is tried every day.
TEST_RESTORE = Procedure(
    slug="test-restore",
    failure="nothing failed: the newest snapshot is restored for a test",
    seen="nothing",
    rank=Rank.STATE,
    decides="no decision is needed",
    actions=(
        typed("restore into a new folder", "holdfast recover --place {place} --home {home} --to {to}", "its path"),
    ),
    worked="every file that has not changed since is equal",
)

TOOL_FILES = Procedure(
    slug="tool-files",
    failure="nothing failed: what each tool writes is looked at",
    seen="nothing",
    rank=Rank.STATE,
    decides="no decision is needed",
    actions=(by_itself("each tool runs alone, with the arguments of its newest call", "how it ended, what it wrote"),),
    worked="whatever a tool leaves is in `run.scratch` or in the agent's folder",
)


def get_procedure(slug: str) -> Procedure:
    return next(one for one in (*PROCEDURES, TEST_RESTORE, TOOL_FILES) if one.slug == slug)


def procedure_values(
    home: AgentHome, places: Sequence[Place], *, id: str, app: str, place: Place | None = None
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
        "journal": home.journal_url or "URL",
        "place": "PLACE" if place is None else place.address,
        "place_name": "PLACE" if place is None else place.name,
        "other_name": "OTHER" if other is None else other.name,
        "relay": "RELAY",
    }
