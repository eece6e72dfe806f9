"""Faults a far end can be told to have, for the next requests or by chance with a seed."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Literal, cast


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. It fires for `n` requests (None: for all) after letting `skip` pass."""

    kind: FaultKind
    n: int | None = 1
    skip: int = 0
    probability: float = 1.0
    seed: int = 0
    seconds: float = 0.0
    status: int = 402
    retry_after_s: int | None = None  # sent with refuse and busy409
    effect: bool = False  # error500: the work is done although the answer is 500
    stored: bool = False  # error500: kept under the key and repeated for ever
    when: Literal["before", "after"] = "after"  # hold: before or after the work
    open: bool = False  # late: keep the connection open, silent, instead of closing it
    on: Literal["effect", "lookup"] = "effect"

    def to_json(self) -> dict[str, object]:
        return asdict(self)


_TYPES: dict[str, tuple[type, ...]] = {
    "n": (int, type(None)),
    "skip": (int,),
    "probability": (int, float),
    "seed": (int,),
    "seconds": (int, float),
    "status": (int,),
    "retry_after_s": (int, type(None)),
    "effect": (bool,),
    "stored": (bool,),
    "when": (str,),
    "open": (bool,),
    "on": (str,),
}


def parse_fault(value: object) -> Fault:
    """Check one fault that came as JSON.

    Raises:
        BadFault: unknown field or kind, or a value out of range.
    """
    if not isinstance(value, dict):
        raise BadFault("a fault is an object with a kind")
    given = cast("dict[str, object]", value)
    unknown = set(given) - {field.name for field in fields(Fault)}
    if unknown:
        raise BadFault(f"unknown field {min(unknown)!r}")
    for name, item in given.items():
        kinds = _TYPES.get(name, (str,))
        if not isinstance(item, kinds) or (isinstance(item, bool) and bool not in kinds):
            raise BadFault(f"{name} has the wrong type")
    try:
        kind = FaultKind(str(given.get("kind")))
    except ValueError:
        raise BadFault(f"kind must be one of {', '.join(FaultKind)}") from None
    fault = Fault(**{**given, "kind": kind})  # type: ignore[arg-type]  # checked above
    _check_ranges(fault)
    return fault


def _check_ranges(fault: Fault) -> None:
    if fault.n is not None and fault.n < 1:
        raise BadFault("n must be 1 or more, or null for always")
    if not 0 <= fault.probability <= 1 or fault.skip < 0 or not 0 <= fault.seconds <= 3600:
        raise BadFault("probability is 0 to 1, skip 0 or more, seconds 0 to 3600")
    if not 400 <= fault.status <= 599:
        raise BadFault("status must be 400 to 599")
    if fault.when not in ("before", "after") or fault.on not in ("effect", "lookup"):
        raise BadFault("when is 'before' or 'after', on is 'effect' or 'lookup'")


class Faults:
    """The faults in force. The first one that fires takes the request."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._armed: list[_Armed] = []
        self.set(faults)

    def set(self, faults: Iterable[Fault]) -> None:
        self._armed = [_Armed(fault) for fault in faults]

    def draw(self, on: Literal["effect", "lookup"]) -> Fault | None:
        for armed in self._armed:
            if armed.fault.on == on and armed.fires():
                return armed.fault
        return None


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
