"""The cases: from a seed to what is called in both lives, where the copy is made, where it dies.

Pure. Calls up to the one in which the copy is made are the same in both lives: the copy knows
them. Tools without a lookup keep their place, and get other arguments at most: about a call that
another place made without a lookup nobody can be asked, which is a limit and no case.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from enum import StrEnum
from typing import Literal

import msgspec

LOOKUPS = ("keyed_found", "careless_found", "queryable")
LAST = ("keyed", "fenced", "careless", "unrepeatable")
PARKING = frozenset(("careless", "unrepeatable"))  # whatever was done, if suspect
OTHERWISE = 500  # added to the arguments of the second life
Side = Literal["before", "after"]


class Change(StrEnum):
    NONE = "none"
    ARGUMENTS = "arguments"
    ORDER = "order"
    BOTH = "order and arguments"
    MORE = "one call more"


class Kind(StrEnum):
    TASK = "task"
    AGENT = "agent"
    FORGOTTEN = "forgotten"  # submitted after the copy: the copy has never heard of it


class Planned(msgspec.Struct, frozen=True):
    tool: str
    number: int


class Case(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: Kind
    change: Change
    first: tuple[tuple[Planned, ...], ...]  # turns; a task's turn is one call
    second: tuple[tuple[Planned, ...], ...]
    copy_at: int  # the call, counted from 1, in which the copy is made; 0: before all
    copy_side: Side
    kill_at: int  # the call in which the first life ends; 0: it comes to its end
    kill_side: Side
    same_machine: bool  # its instance folder is still there


def cases(seed: int, count: int) -> list[Case]:
    return [_case(random.Random(f"{seed}/{number}"), number) for number in range(count)]


def _case(dice: random.Random, number: int) -> Case:
    kind = dice.choices((Kind.TASK, Kind.AGENT, Kind.FORGOTTEN), (6, 2, 2))[0]
    change = dice.choices(tuple(Change), (1, 4, 3, 3, 2))[0]
    turns = _turns(dice, kind)
    known = 0 if kind is Kind.FORGOTTEN else dice.randrange(len(turns))
    # An agent's copy is made inside a call: before the first there is nothing of it yet.
    known = max(known, 1) if kind is Kind.AGENT else known
    before = sum(len(turn) for turn in turns[:known])
    total = sum(len(turn) for turn in turns)
    kill_at = dice.choice((0, *range(before + 1, total + 1)))
    return Case(
        name=f"case-{number}",
        kind=kind,
        change=change,
        first=turns,
        second=(*turns[:known], *_changed(dice, change, turns[known:])),
        copy_at=before,
        copy_side=dice.choice(("before", "after")),
        kill_at=kill_at,
        kill_side=dice.choices(("before", "after"), (1, 3))[0],
        same_machine=dice.random() < 0.5,
    )


def _turns(dice: random.Random, kind: Kind) -> tuple[tuple[Planned, ...], ...]:
    # What other arguments may park stands last: what comes after it would never be reached.
    tools = [dice.choice((*LOOKUPS, *LOOKUPS, "idempotent")) for _ in range(dice.randint(1, 4))]
    tools += [dice.choice(LAST)] if dice.random() < 0.6 or len(tools) == 1 else []
    calls = [Planned(tool, number) for number, tool in enumerate(tools, start=1)]
    turns: list[tuple[Planned, ...]] = []
    while calls:
        size = dice.randint(1, 2) if kind is Kind.AGENT and turns else 1
        turns.append(tuple(calls[:size]))
        del calls[:size]
    return tuple(turns)


def _changed(dice: random.Random, change: Change, turns: Sequence[tuple[Planned, ...]]) -> list[tuple[Planned, ...]]:
    calls = [call for turn in turns for call in turn]
    sizes = [len(turn) for turn in turns]
    if change in (Change.ORDER, Change.BOTH):
        places = [at for at, call in enumerate(calls) if call.tool in LOOKUPS]
        moved = [calls[at] for at in places]
        dice.shuffle(moved)
        for at, call in zip(places, moved, strict=True):
            calls[at] = call
    if change in (Change.ARGUMENTS, Change.BOTH):
        calls = [Planned(call.tool, call.number + OTHERWISE) for call in calls]
    if change is Change.MORE and all(call.tool in LOOKUPS for call in calls):
        calls = [Planned(dice.choice(LOOKUPS), 99), *calls]
        sizes = [1, *sizes]
    found: list[tuple[Planned, ...]] = []
    for size in sizes:
        found.append(tuple(calls[:size]))
        del calls[:size]
    return found
