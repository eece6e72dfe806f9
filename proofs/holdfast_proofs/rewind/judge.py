"""What a case came to, by the far ends' own books.

`before` are the effects when the machine was lost, `after` all of them in the end. An effect is
*lost* where the copy does not know it. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.downstream.ledger import Done
from holdfast_proofs.rewind.cases import LOOKUPS, PARKING, Case, Kind
from holdfast_proofs.rewind.life import Found

FINDINGS_MAX = 20
ONCE = (*LOOKUPS, "keyed", "fenced", "careless", "unrepeatable")  # all but what may repeat

Books = Mapping[str, Sequence[Done]]  # the effects of one task, by far end


class Figures(msgspec.Struct, kw_only=True):
    cases: int = 0
    by_kind: dict[str, int] = {}
    by_change: dict[str, int] = {}
    copies: int = 0  # cases with effects that the copy does not know
    lost: int = 0  # such effects
    adopted: int = 0  # of them, found in the journal of the second life
    told_other: int = 0  # of them, told as done with other arguments
    unreached: int = 0  # of them, of tools that the task had not come to again when it was parked
    duplicates: int = 0
    untold: int = 0  # a tool was used anew while something it had done was not told
    sent_unasked: int = 0  # requests of tools that nobody can be asked about
    parked: int = 0
    parked_by_tool: dict[str, int] = {}
    wrong_state: int = 0
    shared: int = 0  # effects that are the result of two steps
    unheard: int = 0  # a model was not told what was done otherwise
    seconds: float = 0.0
    findings: list[str] = []

    @property
    def green(self) -> bool:
        wrong = self.duplicates + self.untold + self.sent_unasked + self.wrong_state
        wrong += self.unheard + self.shared
        return wrong == 0 and not self.findings and self.cases > 0 and self.adopted > 0


def judge(figures: Figures, case: Case, found: Found, before: Books, after: Books, *, heard: bool) -> None:
    """Count what this case came to."""
    figures.cases += 1
    _count(figures.by_kind, case.kind.value)
    _count(figures.by_change, case.change.value)
    known = sum(len(turn) for turn in case.first[: _known_turns(case)])
    lost = {tool: [one for one in done if _is_lost(one, case, known)] for tool, done in before.items()}
    figures.copies += any(lost.values())
    parked = found.state == "parked"
    for tool, effects in lost.items():
        for effect in effects:
            figures.lost += 1
            _judge_lost(figures, case, found, tool, effect, parked=parked)
    for tool in ONCE:
        _judge_once(figures, case, tool, after.get(tool, ()), before.get(tool, ()))
    _judge_new(figures, case, found, lost, before, after)
    _judge_shared(figures, case, found)
    if parked:
        figures.parked += 1
        why = next((one for one in found.steps if one.state == "parked"), None)
        _count(figures.parked_by_tool, why.tool if why else "?")
        if why is not None and why.tool in LOOKUPS:
            _note(figures, case, f"step {why.ordinal} of {why.tool} is parked: {why.why}")
            figures.wrong_state += 1
    elif found.state != "succeeded":
        figures.wrong_state += 1
        _note(figures, case, f"the task is {found.state}: {found.question}")
    told = sum(one.other for one in found.steps)
    figures.told_other += told
    if told and not heard:
        figures.unheard += 1
        _note(figures, case, "the model was not told what had been done otherwise")


def _judge_lost(figures: Figures, case: Case, found: Found, tool: str, effect: Done, *, parked: bool) -> None:
    holders = [one for one in found.steps if one.tool == tool and one.result == effect.id]
    if any(one.state == "succeeded" for one in holders):
        figures.adopted += 1
    elif parked or _calls(found, tool) < _planned(case, tool):
        figures.unreached += 1
    elif tool in ("idempotent", "fenced"):
        figures.unreached += 1  # written again: the end state is the newest plan's
    elif _planned(case, tool) == 0:
        figures.unreached += 1
    else:
        figures.untold += 1
        _note(figures, case, f"{tool} {effect.id} at step {effect.step} is not in the journal")


def _judge_once(figures: Figures, case: Case, tool: str, after: Sequence[Done], before: Sequence[Done]) -> None:
    bodies = Counter(str(one.body) for one in after)
    bases = Counter(one.base for one in after)
    for what, count in (bodies + bases).items():
        if count > 1:
            figures.duplicates += count - 1
            _note(figures, case, f"{tool}: {what} was done {count} times")
    if tool in PARKING and len(after) > len(before) and not _is_known_before(case, tool):
        figures.sent_unasked += 1
        _note(figures, case, f"{tool} was sent in the second life")


def _judge_new(figures: Figures, case: Case, found: Found, lost: Books, before: Books, after: Books) -> None:
    """No new effect of a tool with a lookup while one of its lost ones is untold."""
    for tool in LOOKUPS:
        new = after.get(tool, ())[len(before.get(tool, ())) :]
        if not new:
            continue
        results = {one.result for one in found.steps if one.tool == tool}
        for effect in lost.get(tool, ()):
            if effect.id not in results:
                figures.untold += 1
                _note(figures, case, f"{tool} was used anew; {effect.id} was never told")


def _judge_shared(figures: Figures, case: Case, found: Found) -> None:
    """An effect is the result of one step at most; beside it others may have been told of it."""
    done = [one for one in found.steps if one.state == "succeeded" and not one.other]
    for (tool, result), count in Counter((one.tool, str(one.result)) for one in done).items():
        if count > 1 and tool in ONCE:
            figures.shared += 1
            _note(figures, case, f"{tool} {result} is the result of {count} steps")


def _known_turns(case: Case) -> int:
    """How many turns the copy has heard of."""
    count = 0
    for number, turn in enumerate(case.first):
        if count >= case.copy_at:
            return number
        count += len(turn)
    return len(case.first)


def _is_lost(effect: Done, case: Case, known: int) -> bool:
    """Whether the copy does not know the step: it is beyond the call in which it was made."""
    parts = (effect.step or "0").split(".")
    if case.kind is Kind.AGENT:
        return int(parts[0]) // 2 > _known_turns(case)
    return int(parts[0]) > known


def _is_known_before(case: Case, tool: str) -> bool:
    """Whether the copy knows of a call of this tool: that may be sent where it had not begun."""
    turns = case.first[: _known_turns(case)]
    return any(call.tool == tool for turn in turns for call in turn)


def _calls(found: Found, tool: str) -> int:
    return sum(one.tool == tool for one in found.steps)


def _planned(case: Case, tool: str) -> int:
    return sum(call.tool == tool for turn in case.second for call in turn)


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


def _note(figures: Figures, case: Case, text: str) -> None:
    if len(figures.findings) < FINDINGS_MAX:
        figures.findings.append(f"{case.name} ({case.kind}, {case.change}): {text}")
