"""What records and inbox items say, read by attribute: one struct for each kind of body.

A record keeps its body as a JSON object (`records.Body`), which is what views show and evidence
quotes. A struct is a reading of that object: it names the fields in our words where the stored name
is short (`v` is `version`), knows their types, and passes over fields that it does not know.

Bodies of steps, rests and ends are built up where they are written, and only read by a struct. Those
from `Written` on are also written by it: the order of its fields is that of the stored bytes (see
tests/unit/test_bodies.py). A note with one plain value (now, random, uuid, sleep, gather, version) and
what CANCEL and RETRY say (`by`) have no struct: it would say no more than the key.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Self

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.core.decoding import convert

Body = dict[str, Any]  # Any: JSON read back from a sealed payload; fields are checked where used


class GateSaid(msgspec.Struct, frozen=True, gc=False):
    """Why the gate of a task did not simply let a call pass."""

    verdict: str
    rule: str
    why: str
    retry_after_s: float | None = None

    @property
    def refused(self) -> bool:
        return self.verdict == "refused"


class Planned(msgspec.Struct, frozen=True, gc=False):
    """STEP, with the event PLAN: what a step was to do, besides its tool and arguments."""

    version: str = msgspec.field(default="", name="v")  # of the tool's code
    window_ms: int = 0  # how long the far end knows the key
    secrets: dict[str, int] | None = None  # names of secrets in its arguments, and their versions
    gate: GateSaid | None = None


class StepFailure(msgspec.Struct, frozen=True, gc=False):
    """STEP, with an event by which an attempt ended without a result."""

    kind: str | None = None
    text: str | None = None
    reason: str = ""
    proof: Any | UnsetType = UNSET  # Any: JSON of the far end; UNSET where it proved nothing
    retry_after_s: float | None = None
    left: str = ""  # what the attempt started and left running
    where: str = ""  # the line of the user's code that raised
    trace: str = ""
    again_ms: int = 0  # when it is tried again; 0 where that is not by a clock

    @property
    def proven(self) -> bool:
        return self.proof is not UNSET

    @property
    def said(self) -> str:
        """The reason in a few words; a proof is not quoted."""
        words = "refused" if self.proven else self.kind or self.reason
        text = self.text or ""
        return text if not words or text.startswith(words) else f"{words}: {text}".rstrip(": ")


class FoundAt(msgspec.Struct, frozen=True, gc=False):
    """STEP, with the event FIND: where, and with which arguments, a lost timeline had done it."""

    at: str = ""
    args: Any | UnsetType = UNSET  # Any: JSON; UNSET where they are the step's own

    @property
    def with_others(self) -> bool:
        """Whether it was done with other arguments."""
        return self.args is not UNSET


class Rested(msgspec.Struct, frozen=True, gc=False):
    """RESTED: why a run ended for now."""

    state: str = ""
    why: str = ""
    ordinal: str = ""  # the step that a person is asked about
    question: str = ""
    detail: str = ""  # of a divergence: what is recorded, and what the code asks for now


class TaskEnd(msgspec.Struct, frozen=True, gc=False):
    """FINISHED: what a task gave, or why it failed."""

    result: Any = None  # Any: JSON
    kind: str = ""
    text: str = ""
    code: str = ""
    where: str = ""  # the line of the user's code that raised
    trace: str = ""


class Written(msgspec.Struct, frozen=True, gc=False):
    """A body that is also written by its struct. `Any` is JSON of a caller: stored and read as it was given."""

    @classmethod
    def read(cls, body: Body) -> Self:
        return convert(body, cls)  # ValidationError names the field

    def body(self) -> Body:
        """What is stored; without fields that are UNSET."""
        if self.__struct_config__.tag:  # a note: its values were checked
            return msgspec.to_builtins(self)
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not UNSET}


class ClaimedBy(Written, frozen=True):  # CLAIMED
    session: str
    boot: str
    worker: str
    host: str | UnsetType = UNSET  # of a journal that several hosts share
    build: str | UnsetType = UNSET  # of a task that is pinned to it


class RestoredFrom(Written, frozen=True):  # RESTORED; also in a step that a lost timeline may have taken
    lost_after_ms: int

    def earliest(self, known_ms: int) -> int:
        """Since when anything may be lost: a second restore does not bring back what the first one lost."""
        return min(known_ms, self.lost_after_ms) if known_ms else self.lost_after_ms


class ContentKept(Written, frozen=True):  # CONTENT
    digest: str
    value: Any


class QuestionNote(Written, frozen=True, tag_field="what", tag="approve"):  # NOTE, as all that have a tag
    question: Any = ""
    details: Any = None
    binding: str = ""


class MarksNote(Written, frozen=True, tag_field="what", tag="marks"):
    marks: dict[str, str]
    changed: list[str] | UnsetType = UNSET


class HeadsNote(Written, frozen=True, tag_field="what", tag="asked"):
    passed: dict[str, str]
    changed: list[str] | UnsetType = UNSET


class SaidNote(Written, frozen=True, tag_field="what", tag="said"):
    id: str
    digest: str


class ToldNote(Written, frozen=True, tag_field="what", tag="told"):  # what the model is told of a call
    text: str
    failed: bool = False


class PlanState(StrEnum):
    PENDING = "pending"
    DOING = "doing"
    DONE = "done"
    DROPPED = "dropped"


class PlanItem(msgspec.Struct, frozen=True, kw_only=True):
    """One item of a plan. `number` is its position, from 1, and never changes."""

    number: int
    title: str
    state: PlanState = PlanState.PENDING
    result: str = ""


class PlanNote(Written, frozen=True, tag_field="what", tag="plan"):  # the items that changed
    items: list[PlanItem]


class MessageAnswered(Written, frozen=True):  # ANSWER, of a user's message
    text: str = ""
    id: str = ""
    step: str = ""
    refused: bool | UnsetType = UNSET


class ApprovalGiven(Written, frozen=True):  # APPROVAL; and ANSWER, of a question
    granted: Any = False
    by: Any = ""
    note: Any = ""
    binding: str | UnsetType = UNSET  # to the call of a step


class DecisionGiven(Written, frozen=True):  # DECISION
    decision: str = ""
    result: Any = None
    by: Any = ""
    note: Any = ""
    epoch: int | None = None  # of the question


class EvidenceGiven(Written, frozen=True):  # EVIDENCE
    outcome: str = ""
    result: Any = None
    source: Any = "evidence"
    epoch: int | UnsetType = UNSET  # of a stale worker


class MessageSaid(Written, frozen=True):  # SAID; the last one says only `end`
    id: str
    text: str
