"""What a gate limits: amounts, numbers of calls, rates; and above which amount it asks a person."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import cast

from holdfast.errors import Misuse
from holdfast.runtime.tool.validation import exact

CALLS_MAX = 1_000_000
WITHIN_S_MAX = 366 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What a tool may do in one task. What is over it is refused.

    Args:
        argument: the argument that holds an amount: a number that is not below 0.
        per_call: the most of it in one call.
        per_task: the most of it in all calls of the task together.
        calls: the most calls in the task; with `within_s`, in any span of so many seconds.
        within_s: makes a rate of `calls`.
    """

    argument: str = ""
    per_call: float | None = None
    per_task: float | None = None
    calls: int | None = None
    within_s: float | None = None

    def __post_init__(self) -> None:
        _check_amounts("Limit", self.argument, self.per_call, self.per_task)
        if self.calls is None and not self.argument:
            raise Misuse("Limit: give calls, or an argument with per_call or per_task")
        if self.calls is not None and not _is_count(self.calls):
            raise Misuse(f"Limit: calls is a whole number from 0 to {CALLS_MAX:,}")
        if self.within_s is None:
            return
        if self.calls is None or self.argument:
            raise Misuse("Limit: within_s goes with calls alone; give amounts a Limit of their own")
        if self.calls < 1 or not _is_number(self.within_s) or not 0 < self.within_s <= WITHIN_S_MAX:
            raise Misuse(f"Limit: within_s is above 0 and at most {WITHIN_S_MAX:,.0f}, calls too")

    def to_json(self) -> dict[str, object]:
        return {
            "argument": self.argument,
            "per_call": self.per_call,
            "per_task": self.per_task,
            "calls": self.calls,
            "within_s": self.within_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Above:
    """Above which amount a person must say yes: of one call, or of the task together."""

    argument: str
    per_call: float | None = None
    per_task: float | None = None

    def __post_init__(self) -> None:
        _check_amounts("Above", self.argument, self.per_call, self.per_task)
        if not self.argument:
            raise Misuse("Above: give the argument that holds the amount")

    def to_json(self) -> dict[str, object]:
        return {"argument": self.argument, "per_call": self.per_call, "per_task": self.per_task}


def amount_of(args: object, name: str) -> Fraction | str:
    """The amount, or why there is none: one below zero would make room for more."""
    value = cast("dict[str, object]", args).get(name) if isinstance(args, dict) else None
    if type(value) not in (int, float):
        return f"{name}: must be given as a number: the gate limits it"
    amount = exact(cast(float, value))
    return f"{name}: must not be below 0" if amount < 0 else amount


def _check_amounts(what: str, argument: object, per_call: float | None, per_task: float | None) -> None:
    if not isinstance(argument, str):
        raise Misuse(f"{what}: argument is the name of one")
    given = [one for one in (per_call, per_task) if one is not None]
    if bool(argument) != bool(given):
        raise Misuse(f"{what}: an argument goes with per_call or per_task")
    if not all(_is_number(one) and one >= 0 for one in given):
        raise Misuse(f"{what}: per_call and per_task are numbers, not below 0")


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # pyright: ignore[reportArgumentType] - a number by now


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= CALLS_MAX
