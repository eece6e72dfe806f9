"""What records say, read by attribute: one struct for each kind of body that code decides by.

A record keeps its body as a JSON object (`records.Body`), which is what views show and evidence
quotes. A struct is a reading of that object: it names the fields in our words where the stored name
is short (`v` is `version`), knows their types, and passes over fields that it does not know. It is
never written back, so it changes no stored byte; tests/asking/record_bytes.txt holds those.

Notes, their answers and inbox items are read where they are made, in `runtime`: each has one reader.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

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
    proof: Any | UnsetType = UNSET  # Any: JSON of the far end; UNSET where it proved nothing
    retry_after_s: float | None = None

    @property
    def proven(self) -> bool:
        return self.proof is not UNSET


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


class TaskEnd(msgspec.Struct, frozen=True, gc=False):
    """FINISHED: what a task gave, or why it failed."""

    result: Any = None  # Any: JSON
    kind: str = ""
    text: str = ""
    code: str = ""
