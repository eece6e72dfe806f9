"""What a procedure is made of: steps, who does them, and for which agents they are."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Rank(StrEnum):
    """The order in which an agent is brought back."""

    IDENTITY = "identity"
    STATE = "state"
    CONNECTIVITY = "connectivity"


class Only(StrEnum):
    """What an agent must have for a step to be its own."""

    FILE = "a journal in a file"
    SERVER = "a journal in PostgreSQL"
    JOURNAL = "a journal"
    OTHER = "a second place"


class Need(StrEnum):
    """What a person needs before the first step. The runbook says where this agent has it."""

    SHELL = "shell"
    MACHINE = "machine"
    SHEET = "sheet"
    PLACE = "place"
    FAR_PLACE = "place off the machine"
    OTHER = "other place"
    VAULT = "vault"
    SERVER = "server"


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
    only: Only | None = None
    drilled: bool = True  # False: no drill runs this command, and the runbook says so

    def filled(self, values: Mapping[str, str]) -> tuple[str, ...]:
        """The command with the agent's real names."""
        return tuple(word.format_map(values) for word in self.command)

    def shown(self, values: Mapping[str, str]) -> str:
        return shlex.join(self.filled(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What an agent has, as far as failures and steps depend on it."""

    agent: bool = True  # there is one in the folder
    identity: bool = False
    journal: bool = False
    server: bool = False  # the journal is in PostgreSQL
    relays: bool = False  # its profile names relays
    places: int = 0
    models: bool | None = None  # whether its tasks ask models; None: the journal could not be read
    start: tuple[str, ...] = ()  # [drills] start
    check: tuple[str, ...] = ()

    def has(self, only: Only | None) -> bool:
        found = {
            Only.FILE: self.journal and not self.server,
            Only.SERVER: self.server,
            Only.JOURNAL: self.journal,
            Only.OTHER: self.places > 1,
        }
        return only is None or found[only]


@dataclass(frozen=True, slots=True, kw_only=True)
class Procedure:
    slug: str
    failure: str
    seen: str  # what a person notices
    rank: Rank
    decides: str  # who may decide to begin
    needs: tuple[Need, ...] = (Need.SHELL,)
    actions: tuple[Action, ...]
    worked: str  # how to tell that it worked
    find_reason: Callable[[Parts], str] = lambda _parts: ""  # why nothing of it is for this agent

    def steps(self, parts: Parts) -> tuple[Action, ...]:
        """Those for this agent. One that does not work by a journal is started by a command of its own."""
        found: list[Action] = []
        for one in self.actions:
            if parts.has(one.only):
                found.append(one)
            elif one is WORKER:
                found += own_steps(parts.start, parts.check)
        return tuple(found)

    @property
    def digest(self) -> str:
        text = "\n".join(f"{one.title}\0{shlex.join(one.command)}\0{one.expect}" for one in self.actions)
        return hashlib.sha256(text.encode()).hexdigest()


def typed(
    title: str, command: str, expect: str = "", *, by: By = By.OPERATOR, only: Only | None = None, drilled: bool = True
) -> Action:
    return Action(title=title, command=tuple(command.split()), expect=expect, by=by, only=only, drilled=drilled)


def by_hand(title: str, expect: str = "", by: By = By.PERSON) -> Action:
    return Action(title=title, expect=expect, by=by)


def by_itself(title: str, expect: str = "", only: Only | None = None) -> Action:
    return Action(title=title, expect=expect, by=By.HOLDFAST, only=only)


SHEET = by_hand("take the recovery sheet, or enough shares, from where it is kept", "24 words, or 33 on each share")
SHOW = typed("see who the agent is", "holdfast identity show --home {home}", "standing: active; id: {id}")
_JOURNAL = Only.JOURNAL
CHECK = typed("check the journal", "holdfast journal check --home {home}", "no damage", only=_JOURNAL)
WORKER = typed("start the worker", "holdfast worker {app} --home {home}", "a line with `serving`", only=_JOURNAL)
TODO = typed("see what waits for a person", "holdfast todo --home {home}", "every parked task", only=_JOURNAL)
DOCTOR = typed("see what is left to do", "holdfast doctor --home {home}", "no line with `damage`")
KEEP = "holdfast recover --keep-keys --vault {vault} --place {place} --home {home}"
OTHER_PLACE = typed(
    "test the other one", "holdfast backup verify {other_name} --home {home}", "verified: yes", only=Only.OTHER
)
OWNER, OPERATOR = "the owner of the agent", "the operator on duty"
ADD = "`holdfast place add NAME ADDRESS`"


def own_steps(start: Sequence[str], check: Sequence[str]) -> tuple[Action, ...]:
    """How an agent that Holdfast does not run is started and tested: [drills] in its settings."""

    def plain(words: Sequence[str]) -> tuple[str, ...]:  # they have no words in braces to fill in
        return tuple(word.replace("{", "{{").replace("}", "}}") for word in words)

    begin = Action(title="start the agent, in its folder", command=plain(start))
    test = Action(title="see that it works, in its folder", command=plain(check), expect="exit code 0")
    return tuple(one for one in (begin, test) if one.command)
