"""What one exploration looks at: the steps, the far end's contract, the faults, the rule left out.

Every number is a budget of the whole run, not a rate: `crash=1` means that at most one process
dies, at any moment. A rule in `without` is taken out in the model's driver or by changing what
the production functions are told; production code has no switch for any of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, cast

from holdfast.core.effect import Letter


class Rule(StrEnum):
    """What a weakened configuration does without."""

    INTENT = "the start is durable before the send"
    KEY = "the key belongs to the slot, not to the attempt"
    SAME_SLOT = "a step in doubt keeps its slot"
    TIMEOUT = "a timeout is no failure"
    ALONE = "a refusal is proof only where it is alone"
    FORGETFUL = "quiet proves nothing where the far end knows no key"
    SLOT_CONTRACT = "retry slots only where refusals are stored"
    SLOTS_ASKED = "the slots of a lost timeline are asked about first"
    LATER_SLOTS_ASKED = "a suspect retry slot asks about the slots after it too"
    WINDOW = "no send past the key window"
    WINDOW_OUTLIVES = "nothing outlives the key window"
    AT_MOST_ONCE = "what cannot be repeated is not repeated"
    ASK_IN_QUIET = "the lookup is asked in quiet"
    EPOCH = "every write compares the epoch"
    EPOCH_NOT_STATE = "a write compares the epoch, not only the state"
    NOT_BEFORE = "people look in quiet"
    SETTLE_IN_QUIET = "a decision is written in quiet"
    SUSPECT = "a restore makes lost slots suspect"
    SUSPECT_OPEN = "a restore makes open steps unknown"
    SUSPECT_FENCED = "a fenced slot of a lost timeline is suspect"
    ANSWERS_BOUND = "an answer is for the question it was asked"
    INCARNATION = "a restore raises the epoch above all before it"
    BODY_COMPARED = "where bodies are not compared, a suspect slot is not sent"
    DEAD_PAGE = "only a dead process's page is proof"
    MARK_FIRST = "the page is marked before the first byte"
    RECEIPT = "evidence is of the effect, not of the request"
    CANCEL_SETTLES = "a cancel leaves no doubt behind"
    SKIP_UNSENT = "only what was never sent is skipped"
    OWN_KEYS = "each branch has keys of its own"
    JOIN = "a step waits for the branches before it"
    ONE_COMMIT = "a transactional effect is in the commit that records it"
    ROUSED = "a run does not rest on what it has not seen"
    APPROVAL = "a suspect slot is not sent without the approval it needs"
    FENCE = "writes of one resource are fenced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    classes: str  # a letter per step
    chains: tuple[tuple[int, ...], ...] = ()  # of a gather; empty: one chain
    processes: int = 2
    # faults
    crash: int = 1
    loss: int = 1  # lost requests, lost replies and waits that are given up
    lapse: int = 2  # leases that end while their process lives
    restores: int = 0
    refusals: int = 0
    unsure: int = 0  # lookups that cannot say
    # the far end and its tool
    refusals_stored: bool = False
    slots: int = 0  # retry slots a step may open
    retries: bool = False  # a proven refusal may be tried again under the same key
    window_closes: bool = False
    lookup: bool = False  # Keyed with a lookup; Queryable always has one
    bodies_compared: bool = True
    other_arguments: bool = False  # after a restore the code asks for something else
    at_least_once: bool = False
    same_resource: bool = False
    attempts: int = 0  # 0: never spent
    # the runtime, and people
    merged: bool = False  # result n and start n+1 in one commit
    pages: bool = False  # a dead process's page tells whether its send had begun
    person: bool = False
    skips: bool = False  # the person may also give a step up
    webhook: bool = False
    cancel: bool = False
    approval: bool = False  # every call needs one; it is granted or refused
    without: frozenset[Rule] = frozenset()

    @property
    def letters(self) -> tuple[Letter, ...]:
        return cast("tuple[Letter, ...]", tuple(self.classes))

    @property
    def lanes(self) -> tuple[tuple[int, ...], ...]:
        return self.chains or (tuple(range(len(self.classes))),)

    @property
    def opens_slots(self) -> bool:
        return self.slots > 0 and (self.refusals_stored or Rule.SLOT_CONTRACT in self.without)


Kind = Literal["holds", "caught", "survives"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    name: str
    kind: Kind
    setup: Setup
    breaks: str = ""  # of a weakened one: the invariant that its rule protects
    why: str = ""  # of a survivor: which other rule stands in
