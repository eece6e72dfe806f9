"""Each letter can go red: a sound story first, then the same story with one thing wrong."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from holdfast.core.step import Event
from holdfast.journal.records import RecordKind
from holdfast_proofs.history.check import check, told
from holdfast_proofs.history.story import Asked, Held, Landed, Story, Told, in_one_order

BEGUN = (Event.PLAN, Event.START)


def step(number: int, ordinal: str, *events: Event, **rest: object) -> Told:
    record = Told(
        number=number, seq=number - 1, kind=RecordKind.STEP, events=events, ordinal=ordinal, epoch=1, at_ms=number * 100
    )
    return msgspec.structs.replace(record, **rest)


def begun(number: int, ordinal: str) -> Told:
    return step(number, ordinal, *BEGUN, key=f"k{ordinal}", fingerprint=f"f{ordinal}")


# Two keyed steps in a row on one resource, claimed once.
SOUND = Story(
    task_id="T",
    letters={"1": "K", "2": "K"},
    records=(
        Told(number=1, seq=0, kind=RecordKind.ACCEPTED, at_ms=100),
        Told(number=2, seq=1, kind=RecordKind.CLAIMED, epoch=1, at_ms=200),
        begun(3, "1"),
        step(4, "1", Event.SUCCEED),
        begun(5, "2"),
        step(6, "2", Event.SUCCEED),
        Told(number=7, seq=6, kind=RecordKind.FINISHED, epoch=1, at_ms=700),
    ),
    effects=(
        Landed(n=1, step="1", at_ms=350, key="k1", resource="r"),
        Landed(n=2, step="2", at_ms=550, key="k2", resource="r"),
    ),
    requests=(Asked(n=1, step="1", key="k1", body="b1"), Asked(n=2, step="2", key="k2", body="b2")),
    holders=(Held(epoch=1, worker="w"),),
)


def records(*changed: Told, without: tuple[int, ...] = ()) -> Story:
    """The sound story with these records in place of those of the same number."""
    by_number = {one.number: one for one in SOUND.records if one.number not in without}
    by_number.update({one.number: one for one in changed})
    return msgspec.structs.replace(SOUND, records=tuple(by_number.values()))


def effects(*more: Landed, without: tuple[int, ...] = ()) -> Story:
    kept = tuple(one for one in SOUND.effects if one.n not in without)
    return msgspec.structs.replace(SOUND, effects=(*kept, *more))


def requests(*more: Asked) -> Story:
    return msgspec.structs.replace(SOUND, requests=(*SOUND.requests, *more))


def holders(*more: Held) -> Story:
    return msgspec.structs.replace(SOUND, holders=(*SOUND.holders, *more))


def twice_by_a_retry_slot() -> Story:
    """The slot stands for its step: done by both is done twice."""
    story = effects(Landed(n=3, step="1.r1", at_ms=450))
    slot = step(8, "1.r1", *BEGUN, seq=7, at_ms=400)
    return msgspec.structs.replace(story, records=(*story.records, slot))


def older_fence() -> Story:
    """Fenced writes: the second has a lower fence than what the resource holds."""
    first = Landed(n=1, step="2", at_ms=550, resource="r", fence=5)
    second = Landed(n=2, step="1", at_ms=560, resource="r", fence=3)
    return msgspec.structs.replace(SOUND, effects=(first, second))


BAD: dict[str, tuple[str, Callable[[], Story]]] = {
    "done twice": ("I1", lambda: effects(Landed(n=3, step="1", at_ms=360, key="k1"))),
    "done by the step and by its retry slot": ("I1", twice_by_a_retry_slot),
    "recorded as done and never done": ("I2", lambda: effects(without=(2,))),
    "failed and done": ("I3", lambda: records(step(6, "2", Event.REFUSE))),
    "skipped and done": (
        "I3",
        lambda: records(step(5, "2", Event.PLAN, key="k2", fingerprint="f2"), step(6, "2", Event.SKIP)),
    ),
    "done without a record": ("I4", lambda: effects(Landed(n=3, step="3", at_ms=600))),
    "done before its start": ("I4", lambda: effects(Landed(n=2, step="2", at_ms=480, key="k2"), without=(2,))),
    "done under a fence that no start has": (
        "I4",
        lambda: effects(Landed(n=2, step="2", at_ms=550, fence=4), without=(2,)),
    ),
    "done under another key": ("I4", lambda: effects(Landed(n=2, step="2", at_ms=550, key="kx"), without=(2,))),
    "started while the step before was open": ("I5", lambda: records(step(4, "1", Event.DOUBT))),
    "an older write lands last": ("I6", lambda: effects(Landed(n=3, step="1", at_ms=650, resource="r"))),
    "an older fence lands last": ("I6", older_fence),
    "a closed step goes on": ("I7", lambda: records(step(7, "2", Event.START))),
    "what cannot follow": ("I7", lambda: records(step(6, "2", Event.FIND, Event.START))),
    "a record is missing": ("I7", lambda: records(without=(4,))),
    "an older epoch writes": (
        "I8",
        lambda: records(Told(number=5, seq=4, kind=RecordKind.CLAIMED, epoch=2), step(6, "1", epoch=1)),
    ),
    "an epoch is claimed twice": ("I8", lambda: records(Told(number=7, seq=6, kind=RecordKind.CLAIMED, epoch=1))),
    "an epoch that nobody claimed": ("I8", lambda: records(step(6, "2", Event.SUCCEED, epoch=2))),
    "two workers hold one epoch": ("I8", lambda: holders(Held(epoch=1, worker="x"))),
    "a worker holds what is not recorded": ("I8", lambda: holders(Held(epoch=9, worker="w"))),
    "a slot with two keys": ("I9", lambda: records(step(6, "2", Event.SUCCEED, key="k9", fingerprint="f2"))),
    "two slots with one key": ("I9", lambda: records(step(5, "2", *BEGUN, key="k1", fingerprint="f1"))),
    "one key for two calls": ("I9", lambda: records(step(6, "2", Event.SUCCEED, key="k2", fingerprint="other"))),
    "a request under another key": ("I9", lambda: requests(Asked(n=3, step="1", key="kx", body="b1"))),
    "a request with another body": ("I9", lambda: requests(Asked(n=3, step="1", key="k1", body="other"))),
}


def test_a_sound_story_is_not_complained_about() -> None:
    assert check(SOUND) == []


@pytest.mark.parametrize("name", BAD)
def test_a_broken_letter_is_named(name: str) -> None:
    letter, story = BAD[name]
    found = check(story())
    assert letter in {breach.letter for breach in found}, found


def test_every_letter_can_go_red() -> None:
    assert {letter for letter, _ in BAD.values()} == {f"I{number}" for number in range(1, 10)}


def test_without_books_only_the_records_speak() -> None:
    story = msgspec.structs.replace(SOUND, effects=(), requests=(), books=False)
    assert check(story) == []


def test_a_repeat_of_an_idempotent_write_is_no_breach() -> None:
    story = msgspec.structs.replace(SOUND, letters={"1": "I", "2": "I"})
    again = Landed(n=3, step="2", at_ms=560, key="k2", resource="r")
    assert check(msgspec.structs.replace(story, effects=(*story.effects, again))) == []


def test_what_no_book_can_show_is_not_missed() -> None:
    story = msgspec.structs.replace(SOUND, effects=(), letters={"1": "T", "2": "T"})
    assert {breach.letter for breach in check(story)} == {"I2"}
    assert check(msgspec.structs.replace(story, unseen=frozenset(("T",)))) == []


def test_a_persons_word_needs_no_effect() -> None:
    story = records(step(4, "1", Event.DOUBT), step(5, "1", Event.PARK), step(6, "1", Event.SETTLE_DONE))
    story = msgspec.structs.replace(story, effects=(), requests=(), letters={"1": "N"})
    assert check(story) == []


def test_the_one_order_puts_an_effect_behind_its_start() -> None:
    order = in_one_order(SOUND)
    names = [f"r{one.number}" if isinstance(one, Told) else f"e{one.n}" for one in order]
    assert names == ["r1", "r2", "r3", "e1", "r4", "r5", "e2", "r6", "r7"]
    assert told(SOUND)[3] == "350 EFFECT 1 of step 1"
