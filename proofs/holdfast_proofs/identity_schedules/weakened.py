"""The log's rules with one taken out, to see that the schedules notice.

Each weakening replaces a function in this process while a `with` block lasts. Production code has
no switch for any of this.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from holdfast.identity.log import log, log_state, rules
from holdfast.identity.log.log_state import EvidenceKind, KeyLog, LogEntry
from holdfast.identity.records.records import Receipt, Record
from holdfast.identity.records.signed import Refusal, Signed
from holdfast.identity.witness import witness

# Any in this file: the replaced functions' own arguments, handed through unread.


def _no_commitment() -> list[tuple[object, str, Any]]:
    """Whoever signs may rotate: the operational key is enough."""
    return [(rules, "find_not_committed", _none)]


def _first_never_kept() -> list[tuple[object, str, Any]]:
    """A later record takes the place of the one that was there, final or not."""

    def settled(held: KeyLog, entry: LogEntry) -> KeyLog | Refusal:
        if entry.position.g < len(held.generations) - 1:
            return log._with_evidence(held, entry, EvidenceKind.CONFLICT)
        generation = held.generations[entry.position.g]
        s = entry.position.s
        kept = (
            replace(generation, rotations=(*generation.rotations[: s - 1], entry))
            if s
            else log_state.Generation(tier=entry)
        )
        return replace(held, generations=(*held.generations[:-1], kept))

    return [(log, "_settled", settled)]


def _witness_signs_twice() -> list[tuple[object, str, Any]]:
    """A witness vouches for whatever it holds or is shown, however often."""
    original = witness._answer

    def answer(held: KeyLog, signed: Signed[Record], key: Any, now: int) -> Any:
        said = original(held, signed, key, now)
        item = held.find_evidence(signed.digest)
        if not isinstance(said, Refusal) or item is None or not rules.may_vouch(item.entry, key):
            return said
        g, s = signed.record.position
        return Receipt(id=held.id, g=g, s=s, d=signed.digest, wit=key, at=now)

    return [(witness, "_answer", answer)]


def _one_receipt_is_enough() -> list[tuple[object, str, Any]]:
    """The threshold of witnesses is not looked at."""
    return [(rules, "enough", lambda _needs, receipts: any(True for _ in receipts))]  # pyright: ignore[reportUnknownLambdaType, reportUnknownVariableType]


def _old_witnesses_not_needed() -> list[tuple[object, str, Any]]:
    """A rotation that names witnesses is vouched for by these alone."""

    def needs(current: Any, named: Any) -> Any:
        return (current if named is None else named,)

    return [(log, "_needs", needs), (rules, "may_vouch", _anybody)]


def _none(*_: Any) -> None:
    return None


def _anybody(entry: LogEntry, key: Any) -> bool:
    return any(key in keys.members for keys in entry.needs)


def _nobody_is_asked() -> list[tuple[object, str, Any]]:
    """A recovery with made-up witnesses is taken without asking the old ones."""

    def nobody(*_: Any) -> Any:
        return log.NOBODY

    return [(log, "witnesses_to_ask", nobody)]


def _recovery_is_one_more_rotation() -> list[tuple[object, str, Any]]:
    """A final rotation cannot be recovered from."""
    original = log._recovered

    def recovered(held: KeyLog, *args: Any, **kwargs: Any) -> Any:
        last = held.generations[-1].last
        if last.position.s and last.final:
            return Refusal(rules.Reason.GAP, "final records are in the way")
        return original(held, *args, **kwargs)

    return [(log, "_recovered", recovered)]


def _witnesses_of_a_rotation_judge_recoveries() -> list[tuple[object, str, Any]]:
    """A recovery is vouched for by the witnesses that the last rotation named."""
    original = log._recovered

    def recovered(held: KeyLog, signed: Any, record: Any, **kwargs: Any) -> Any:
        if record.g == len(held.generations):
            before = held.generations[-1]
            tier = replace(before.tier, needs=(before.last.witnesses,))
            changed = replace(before, tier=tier)
            held = replace(held, generations=(*held.generations[:-1], changed))
        return original(held, signed, record, **kwargs)

    return [(log, "_recovered", recovered)]


WEAKENED: dict[str, Callable[[], list[tuple[object, str, Any]]]] = {
    "no commitment to next keys": _no_commitment,
    "the first record is not kept": _first_never_kept,
    "a witness signs twice at one position": _witness_signs_twice,
    "one receipt is enough": _one_receipt_is_enough,
    "old witnesses are not needed for a change": _old_witnesses_not_needed,
    "old witnesses are not asked": _nobody_is_asked,
    "a recovery does not beat rotations": _recovery_is_one_more_rotation,
    "witnesses of a rotation judge recoveries": _witnesses_of_a_rotation_judge_recoveries,
}


@contextmanager
def weakened(name: str) -> Generator[None]:
    """The rules without the one that is named, until the block ends."""
    patches = WEAKENED[name]()
    kept = [(owner, attribute, getattr(owner, attribute)) for owner, attribute, _ in patches]
    for owner, attribute, function in patches:
        setattr(owner, attribute, function)
    try:
        yield
    finally:
        for owner, attribute, function in kept:
            setattr(owner, attribute, function)
