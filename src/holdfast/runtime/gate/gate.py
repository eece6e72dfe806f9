"""The gate: which tools a task may call, with which arguments, how much, how often, and when a person must say yes. It
is outside the model and outside the task's code; neither can change it.

Decisions only: `decide` is given the call and what the journal knows of the calls before it, and says nothing (let it
through), refuse, or ask a person. guard.py works out what is known and records the answer with the step, so that a call
is judged once: never again by a replay, and never by another gate than the one that was there when it was new.

What counts. For amounts and numbers of calls: every call that took effect or may yet, planned, started, unknown and
parked ones too; what failed with proof, was skipped or was refused does not. For rates: every call that was sent,
whatever became of it, at the time of its newest attempt; one that is planned and not started may start at any moment,
so it counts as of now. Where an amount cannot be known, the call is refused.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple, Protocol, cast

from holdfast.core.values import canonical
from holdfast.errors import Misuse
from holdfast.runtime.tool.validation import exact

CALLS_MAX = 1_000_000
WITHIN_S_MAX = 366 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The limits of one tool in one task. Holdfast refuses a call that exceeds one.

    Args:
        argument: the argument that holds an amount: a number that is not below 0.
        per_call: the highest amount in one call.
        per_task: the highest sum of the amounts of all calls in the task.
        calls: how many calls the task may make; with `within_s`, in any span of so many seconds.
        within_s: makes `calls` a rate: so many calls in any span of this many seconds.
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
        if self.calls is not None and not (type(self.calls) is int and 0 <= self.calls <= CALLS_MAX):
            raise Misuse(f"Limit: calls must be a whole number from 0 to {CALLS_MAX:,}")
        if self.within_s is None:
            return
        if self.calls is None or self.argument:
            raise Misuse(
                "Limit: within_s limits calls: give it with calls, without argument; give amounts in another Limit"
            )
        if self.calls < 1 or not _is_number(self.within_s) or not 0 < self.within_s <= WITHIN_S_MAX:
            raise Misuse(f"Limit: within_s must be above 0 and at most {WITHIN_S_MAX:,.0f}, calls above 0")

    def to_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Above:
    """A person must approve a call above this amount: in one call, or in all calls of the task together."""

    argument: str
    per_call: float | None = None
    per_task: float | None = None

    def __post_init__(self) -> None:
        _check_amounts("Above", self.argument, self.per_call, self.per_task)
        if not self.argument:
            raise Misuse("Above: give the argument that holds the amount")

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def amount_of(args: object, name: str) -> Fraction | str:
    """The amount, or why there is none: one below zero would make room for more."""
    value = cast("dict[str, object]", args).get(name) if isinstance(args, dict) else None
    if type(value) not in (int, float):
        return f"{name}: must be given as a number: the gate limits it"
    amount = exact(cast(float, value))
    return f"{name}: must not be below 0" if amount < 0 else amount


def _check_amounts(what: str, argument: object, per_call: float | None, per_task: float | None) -> None:
    if not isinstance(argument, str):
        raise Misuse(f"{what}: argument must be the name of an argument")
    given = [one for one in (per_call, per_task) if one is not None]
    if bool(argument) != bool(given):
        raise Misuse(f"{what}: give an argument together with per_call or per_task")
    if not all(_is_number(one) and one >= 0 for one in given):
        raise Misuse(f"{what}: per_call and per_task must be numbers, not below 0")


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # pyright: ignore[reportArgumentType] - a number by now


DIGEST_CHARS = 16
TOOLS_MAX = 1_000
LIMITS_MAX = 16  # of one tool


class NamedTool(Protocol):
    """What a gate needs of a tool."""

    name: str
    given: Mapping[str, Any]  # Any: JSON values

    def takes(self, argument: str) -> bool: ...

    @property
    def schema(self) -> Any: ...  # Any: only that there is one counts here


Rule = Literal["allow", "arguments", "amount", "calls", "rate", "approve"]


class GateVerdict(NamedTuple):
    """Why a call is not simply let through."""

    refused: bool  # else a person is asked
    rule: Rule
    why: str
    retry_after_s: float | None = None


Spent = Fraction | str  # so much, or why it is not known


class Past(NamedTuple):
    """What the earlier calls of a tool add up to."""

    calls: int  # that took effect or may yet
    spent: Mapping[str, Spent]  # of them, by argument
    sent_most: int  # how many at most were sent within the longest span of a rate
    sent_ago_ms: Callable[[], Iterable[int]]  # when; asked for only where it could matter


NOTHING = Past(0, {}, 0, tuple)


class Gate:
    """Rules for the calls of one task.

    Args:
        allow: the tools that the task may call, or their names (default: every tool).
        limits: maps a tool to a `Limit` or a list of them.
        approve: tools whose every call a person must approve; or maps a tool to `Above` an amount.
    """

    __slots__ = ("_allow", "_approve", "_limits", "digest")

    def __init__(
        self,
        *,
        allow: Iterable[NamedTool | str] | None = None,
        limits: Mapping[Any, Limit | Sequence[Limit]] | None = None,  # Any: a tool or its name
        approve: Iterable[NamedTool | str] | Mapping[Any, bool | Above] = (),
    ) -> None:
        named = None if allow is None else [_name(one, "allow") for one in allow]
        self._allow = None if named is None else frozenset(named)
        self._limits = {self._known(key, "limits"): _limits_of(key, given) for key, given in (limits or {}).items()}
        self._approve: dict[str, Literal[True] | Above] = {
            self._known(key, "approve"): _approval_of(key, rule) for key, rule in _pairs(approve) if rule is not False
        }
        if max(len(named or ()), len(self._limits), len(self._approve)) > TOOLS_MAX:
            raise Misuse(f"Gate: give at most {TOOLS_MAX} tools")
        said: dict[str, object] = {
            "allow": None if self._allow is None else sorted(self._allow),
            "limits": {name: [one.to_json() for one in has] for name, has in self._limits.items()},
            "approve": {name: True if rule is True else rule.to_json() for name, rule in self._approve.items()},
        }
        self.digest = hashlib.sha256(canonical(said)).hexdigest()[:DIGEST_CHARS]

    @property
    def mark(self) -> str:
        """The name of `digest` until 0.2."""
        return self.digest

    def __repr__(self) -> str:
        return f"<gate {self.digest}>"

    def allows(self, tool: str) -> bool:
        """Whether this tool may be called at all: what is worth offering to a model."""
        return self._allow is None or tool in self._allow

    def looks_back(self, tool: str) -> bool:
        """Whether earlier calls of this tool count."""
        rule = self._approve.get(tool)
        return tool in self._limits or (isinstance(rule, Above) and rule.per_task is not None)

    def counted(self, tool: str) -> tuple[frozenset[str], int]:
        """Which arguments of the tool are added up, and how many milliseconds a rate looks back."""
        has = self._limits.get(tool, ())
        rules: list[Limit | Above] = [one for one in has if one.argument]
        rule = self._approve.get(tool)
        rules += [rule] if isinstance(rule, Above) else []
        spans = [one.within_s for one in has if one.within_s is not None]
        return frozenset(one.argument for one in rules), int(max(spans, default=0) * 1000)

    def decide(
        self, tool: str, args: Mapping[str, object], past: Past, *, problems: Sequence[str]
    ) -> GateVerdict | None:
        """Why this call is not let through; None where it is.

        `problems`: what is wrong with the arguments; `past`: the earlier calls of this tool.
        """
        if not self.allows(tool):
            return GateVerdict(True, "allow", f"{tool} is not among the tools of this task")
        if problems:
            return GateVerdict(True, "arguments", "; ".join(problems))
        for limit in self._limits.get(tool, ()):
            found = _over(limit, args, past)
            if found is not None:
                return found
        return _asked(self._approve.get(tool), args, past)

    def _known(self, key: object, what: str) -> str:
        """The name; by text only where `allow` has it, so that a slip of the pen is no hole."""
        name = _name(key, what)
        if not self.allows(name):
            raise Misuse(f"Gate: {what}: {name!r} is not among the tools in `allow`")
        if self._allow is None and isinstance(key, str):
            raise Misuse(
                f"Gate: {what}: without `allow`, Holdfast cannot check the name {name!r}",
                hint="give the tool itself, or list the tools in `allow`",
            )
        return name


def _name(tool: object, what: str) -> str:
    if isinstance(tool, str) and tool:
        return tool
    name = getattr(tool, "name", None)
    if not isinstance(name, str) or not hasattr(tool, "takes"):
        raise Misuse(f"Gate: {what}: {tool!r} is not a tool", hint="decorate it: @holdfast.tool")
    _ = cast(NamedTool, tool).schema  # raises NoSchema: its arguments could not be checked
    return name


def _pairs(given: Iterable[NamedTool | str] | Mapping[Any, bool | Above]) -> Iterable[tuple[object, object]]:
    if isinstance(given, Mapping):
        return cast("Mapping[object, object]", given).items()
    return [(one, True) for one in given]


def _limits_of(tool: object, given: object) -> tuple[Limit, ...]:
    found = (given,) if isinstance(given, Limit) else tuple(cast("Sequence[object]", given))
    if not 1 <= len(found) <= LIMITS_MAX or not all(isinstance(one, Limit) for one in found):
        raise Misuse(f"Gate: limits: give a Limit, or 1 to {LIMITS_MAX} of them, for each tool")
    kept = cast("tuple[Limit, ...]", found)
    for one in kept:
        _check_argument(tool, one.argument)
    return kept


def _approval_of(tool: object, given: object) -> Literal[True] | Above:
    if given is True:
        return True
    if not isinstance(given, Above):
        raise Misuse("Gate: approve: for a tool give True or `Above` an amount")
    _check_argument(tool, given.argument)
    return given


def _check_argument(tool: object, argument: str) -> None:
    if isinstance(tool, str) or not argument:
        return
    known = cast(NamedTool, tool)
    if not known.takes(argument) and argument not in known.given:
        raise Misuse(f"Gate: {known.name} has no argument {argument!r}")


def _over(limit: Limit, args: Mapping[str, object], past: Past) -> GateVerdict | None:
    if limit.within_s is not None:
        return _too_fast(cast(int, limit.calls), limit.within_s, past)
    if limit.calls is not None and past.calls >= limit.calls:
        why = f"{limit.calls:,} calls are the most in this task, and {past.calls:,} count"
        return GateVerdict(True, "calls", why)
    if not limit.argument:
        return None
    found = _beyond(limit.argument, limit.per_call, limit.per_task, args, past)
    if found is None or isinstance(found, GateVerdict):
        return found
    why = f"{found.name}: {shown(found.amount)} "
    if found.total is None:
        why += f"is above {limit.per_call:,}, the most of one call"
    else:
        why += f"would make {shown(found.total)} in this task; the most is {limit.per_task:,}"
    return GateVerdict(True, "amount", why)


def _asked(rule: Literal[True] | Above | None, args: Mapping[str, object], past: Past) -> GateVerdict | None:
    """Whether a person must say yes."""
    if rule is None:
        return None
    if rule is True:
        return GateVerdict(False, "approve", "every call needs approval")
    found = _beyond(rule.argument, rule.per_call, rule.per_task, args, past)
    if found is None or isinstance(found, GateVerdict):
        return found
    if found.total is None:
        why = f"{found.name}: {shown(found.amount)} is above {rule.per_call:,}"
    else:
        why = f"{found.name}: {shown(found.total)} in this task is above {rule.per_task:,}"
    return GateVerdict(False, "approve", why)


class _Beyond(NamedTuple):
    """An amount above a bound: of one call, or with a total, of the task."""

    name: str
    amount: Fraction
    total: Fraction | None = None


def _beyond(
    name: str, per_call: float | None, per_task: float | None, args: Mapping[str, object], past: Past
) -> _Beyond | GateVerdict | None:
    """What is above a bound, or a refusal where the amount is not known."""
    amount = amount_of(args, name)
    if isinstance(amount, str):
        return GateVerdict(True, "amount", amount)
    if per_call is not None and amount > exact(per_call):
        return _Beyond(name, amount)
    if per_task is None:
        return None
    spent = past.spent.get(name, Fraction(0))
    if isinstance(spent, str):
        return GateVerdict(True, "amount", spent)
    return _Beyond(name, amount, spent + amount) if spent + amount > exact(per_task) else None


def _too_fast(calls: int, within_s: float, past: Past) -> GateVerdict | None:
    if past.sent_most < calls:
        return None
    span_ms = int(within_s * 1000)
    recent = sorted((ago for ago in past.sent_ago_ms() if ago < span_ms), reverse=True)
    if len(recent) < calls:
        return None
    # So many of the oldest must leave the span before another may enter it.
    wait_ms = span_ms - recent[len(recent) - calls]
    why = f"{calls:,} calls within {within_s:g} s are the most"
    return GateVerdict(True, "rate", why, wait_ms / 1000)


def shown(amount: Fraction) -> str:
    """An amount for people: 1,000 or 12.5."""
    return f"{amount.numerator:,}" if amount.denominator == 1 else f"{float(amount):,}"
