"""What the timeline that a restore has lost did with a tool, wherever in the task it did it.

A key belongs to a place in the task, and the code that runs after a restore may come to other places: the model answers
otherwise, a value is read again. Then the key of the place where a tool is called now says nothing about the place
where the lost timeline called it. So a suspect slot whose own key is unknown to the far end asks about the places
around it too, and this holds:

    While an effect of a tool with a lookup, made by the lost timeline within reach, has not been
    told to the task, no new effect of that tool is made.

An effect with the arguments that are asked for now is taken for the step itself, once. One with other arguments is
told, once: the step is closed by what was done, and the task's code or the model decides what that means. Both are in
the record of the step (`found`), so a later run knows what was told; within a run, branches at the same time share this
memory.

A step may come to a place whose effect another one has taken. Under its key nothing new can be made, the far end would
only say again what it did, and one effect must not answer two calls: a person is asked.

The key of a place does not name a tool. Where two tools share a far end, a lookup may find what this timeline itself
has done there with the other tool. That is no lost effect: taken for one, a step would be closed that was never made.
So a place is looked at again when its answer is there (a branch may have come to it meanwhile), and an answer that may
be the own effect of another tool's step says nothing: neither is the step closed by it, nor is anything sent.

Out of reach is what was done more than PLACES_AHEAD places after the task's own, and what a tool without a lookup did
at another place.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from holdfast.core.effect import Keyed
from holdfast.core.ordinal import base, retry_slot
from holdfast.core.step import StepState
from holdfast.journal.records import StepView, TaskView
from holdfast.runtime.tool.tool import Absent, FindAnswer, Found, Tool, Unsure

PLACES_AHEAD = 8  # steps of a task's own chain
TURNS_AHEAD = 4  # ordinals of a gather, or of an agent's turns, which take two each
BRANCHES_MORE = 2  # than the branch that asks
PLACES_MAX = 64  # each may cost a request

Ask = Callable[[StepView], Awaitable[FindAnswer]]


class LostEffects:
    """Of one task, in one run."""

    def __init__(self, view: TaskView, key_of: Callable[[str], bytes]) -> None:
        self._view = view
        self._key_of = key_of
        self._answers: dict[tuple[str, str], FindAnswer] = {}
        self._taken: dict[tuple[str, str], str] = {}  # tool and place -> the step that took it

    async def elsewhere(
        self, tool: Tool[..., Any], step: StepView, ask: Ask, *, same: Callable[[Found], bool], only_same: bool = False
    ) -> tuple[str, FindAnswer]:
        """A place and what was done there; Absent where nothing is left to be told. Neither Found nor Absent where a
        place cannot be asked about. `same` says whether what was found is the very call that is asked for now;
        `only_same` looks for no other."""
        others: list[tuple[str, Found]] = []
        for place in self._places(tool, step):
            answer = await self._asked(tool, step, place, ask)
            if not is_lost_place(self._view, base(place), step.tool):
                continue  # opened by a branch of this run while the far end was asked
            if isinstance(answer, Found):
                there = self._view.steps.get(place)
                if there is not None and may_be_own(there, answer, tool.name):
                    return place, Unsure(
                        f"the effect that was found has the effect key of step {place} ({there.tool}): "
                        f"either that step made it, or {tool.name} did before the restore"
                    )
                others.append((place, answer))
            elif not isinstance(answer, Absent):
                return place, answer
        told, taken = self._known(tool.name, but=step.ordinal)
        for place, found in others:
            if place not in taken and same(found):
                self._taken[tool.name, place] = step.ordinal
                return place, found
        for place, found in () if only_same else others:
            if place not in taken and place not in told:
                self._taken[tool.name, place] = step.ordinal
                return place, found
        return "", Absent()

    def is_told(self, tool: Tool[..., Any], step: StepView) -> bool:
        """Whether another step was closed by what was done in this one's place."""
        told, taken = self._known(tool.name, but=step.ordinal)
        return step.ordinal in told | taken

    def is_taken(self, tool: Tool[..., Any], step: StepView, place: str) -> bool:
        """Whether what was done at this place, its own or a retry's, is another step's result."""
        return place in self._known(tool.name, but=step.ordinal)[1]

    def _places(self, tool: Tool[..., Any], step: StepView) -> Iterator[str]:
        for place in lost_places(self._view, step):
            yield place
            if opens_slots(tool):
                yield from retry_slots(tool, place)

    async def _asked(self, tool: Tool[..., Any], step: StepView, place: str, ask: Ask) -> FindAnswer:
        """Asked once in a run: in quiet, what a dead timeline has not done it will not do."""
        known = self._answers.get((tool.name, place))
        if known is None:
            slot = slot_at(step, place, self._key_of(place))
            known = await ask(slot)
            if isinstance(known, (Found, Absent)):
                self._answers[tool.name, place] = known
        return known

    def _known(self, tool: str, *, but: str) -> tuple[set[str], set[str]]:
        """Places that a step has told of, and those that one has taken for itself."""
        told: set[str] = set()
        taken = {at for (name, at), by in self._taken.items() if name == tool and by != but}
        for one in self._view.steps.values():
            if one.tool == tool and (found := one.found_at) is not None and one.ordinal != but:
                (told if found.with_others else taken).add(found.at or one.ordinal)
        return told, taken - told


def slot_at(step: StepView, place: str, key: bytes) -> StepView:
    """The step as it would be at another place, to ask about it."""
    slot = StepView(place, step.letter)
    slot.effect_key = key
    slot.body = step.body
    return slot


def opens_slots(tool: Tool[..., Any]) -> bool:
    """Whether a retry after a stored refusal gets a slot with a key of its own."""
    effect = tool.effect
    return isinstance(effect, Keyed) and effect.refusals_stored and tool.retries > 0


def retry_slots(tool: Tool[..., Any], ordinal: str) -> list[str]:
    """The retry slots that may follow this one."""
    names = [retry_slot(ordinal, number) for number in range(1, tool.retries + 1)]
    return names[names.index(ordinal) + 1 :] if ordinal in names else names


def lost_places(view: TaskView, step: StepView) -> list[str]:
    """Where the lost timeline may have called the tool of this step: nearest first. Not where the copy knows what was
    done, nor where this timeline's own call of the tool has taken what was done under its key; one that was closed by
    something else has not."""
    return [
        place for place in _around(step.ordinal) if place != step.ordinal and is_lost_place(view, place, step.tool)
    ][:PLACES_MAX]


def is_lost_place(view: TaskView, place: str, tool: str) -> bool:
    there = view.steps.get(place)
    if there is None:
        return True
    if there.planned_ms <= view.restored_ms:
        return False
    found = there.found_at
    return there.tool != tool or (found is not None and (found.with_others or found.at != ""))


def may_be_own(there: StepView, found: Found, tool: str) -> bool:
    """Whether a lookup of one tool may have found what a step of another tool did, or adopted,
    under its own key in this timeline. Equal arguments or an equal result do not prove it: two far
    ends may both answer "ok" for the same order. What shows neither may be anything."""
    elsewhere = there.found_at
    if there.tool == tool or (elsewhere is not None and elsewhere.at):
        return False
    if there.state in (StepState.PLANNED, StepState.FAILED, StepState.SKIPPED):
        return False
    done_with = (elsewhere.args if elsewhere is not None and elsewhere.with_others else None) or there.args
    return found.args is None or found.args == done_with or found.result == there.result


def _around(ordinal: str) -> Iterator[str]:
    """Places of the same kind, in the order of their distance. None around a slot with a name, a
    retry or a compensation: their names say what they are for."""
    parts = ordinal.split(".")
    if not all(part.isdigit() for part in parts):
        return
    numbers = [int(part) for part in parts]
    if len(numbers) == 1:
        for number in _near(numbers[0], PLACES_AHEAD, back=PLACES_MAX):
            yield str(number)
    elif len(numbers) == 3:
        first, branch, last = numbers
        for at in _near(first, TURNS_AHEAD, back=TURNS_AHEAD):
            for other in range(1, branch + BRANCHES_MORE + 1):
                for step in range(1, last + 1):
                    yield f"{at}.{other}.{step}"


def _near(number: int, ahead: int, *, back: int) -> list[int]:
    every = range(max(1, number - back), number + ahead + 1)
    return sorted(every, key=lambda one: (abs(one - number), one))
