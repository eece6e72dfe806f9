"""Faults a far end can be told to have, for the next requests or by chance with a seed."""

from __future__ import annotations

import random
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from holdfast.core.decoding import convert


class FaultKind(StrEnum):
    DROP_REPLY = "drop_reply"  # the work is done, the connection is closed without an answer
    DELAY_BEFORE = "delay_before"  # wait, then do the work and answer
    DELAY_AFTER = "delay_after"  # do the work, wait, then answer
    REFUSE = "refuse"  # answer `status` without doing the work
    ERROR500 = "error500"  # answer 500; with `effect` the work is done all the same
    BUSY409 = "busy409"  # claim that the first request is still in flight
    RESET = "reset"  # reset the connection before anything is done
    LATE = "late"  # the connection dies; the request arrives `seconds` later
    HOLD = "hold"  # stay inside until released, before or after the work


class BadFault(Exception):
    """A fault description that makes no sense; the text says why."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault. It fires for `n` requests (None: for all) after letting `skip` pass."""

    kind: FaultKind
    n: Annotated[int, Meta(ge=1)] | None = 1
    skip: Annotated[int, Meta(ge=0)] = 0
    probability: Annotated[float, Meta(ge=0, le=1)] = 1.0
    seed: int = 0
    seconds: Annotated[float, Meta(ge=0, le=3600)] = 0.0
    status: Annotated[int, Meta(ge=400, le=599)] = 402
    retry_after_s: int | None = None  # sent with refuse and busy409
    effect: bool = False  # error500: the work is done although the answer is 500
    stored: bool = False  # error500: kept under the key and repeated for ever
    when: Literal["before", "after"] = "after"  # hold: before or after the work
    open: bool = False  # late: keep the connection open, silent, instead of closing it
    on: Literal["effect", "lookup"] = "effect"

    def to_json(self) -> dict[str, object]:
        return msgspec.structs.asdict(self)


def parse_fault(value: object) -> Fault:
    """Check one fault that came as JSON. Raises BadFault: unknown field or kind, or a value out of range."""
    try:
        return convert(value, Fault)
    except msgspec.ValidationError as error:
        raise BadFault(f"this is not a valid fault: {error}") from None


class Faults:
    """The faults in force. The first one that fires takes the request."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self.set(faults)

    def set(self, faults: Iterable[Fault]) -> None:
        self._armed = [_Armed(fault) for fault in faults]

    def draw(self, on: Literal["effect", "lookup"]) -> Fault | None:
        return next((armed.fault for armed in self._armed if armed.fault.on == on and armed.fires()), None)


class _Armed:
    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self._skip = fault.skip
        self._left = fault.n
        self._random = random.Random(fault.seed)

    def fires(self) -> bool:
        if self._left == 0:
            return False
        if self._skip:
            self._skip -= 1
            return False
        if self._random.random() >= self.fault.probability:
            return False
        if self._left is not None:
            self._left -= 1
        return True
