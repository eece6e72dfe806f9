"""The checker of mail: a file of events in which all is well, and one with each fault."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from holdfast_proofs.relay_lab.checker import check
from holdfast_proofs.relay_lab.events import Event

MS = 1_000_000
SECOND = 1_000 * MS


def story() -> list[Event]:
    """Ada (a0) sends two messages to Bob (a1); both relays deliver each; a relay is killed before the second."""
    events = [
        Event(e="agent", t=1, a="a0", by="ID0"),
        Event(e="agent", t=1, a="a1", by="ID1"),
        Event(e="phase", t=1, by="kills"),
    ]
    for n, t in ((1, 10 * MS), (2, 2 * SECOND)):
        m, k = f"a0 x {n}", f"key{n}"
        if n == 2:
            events.append(Event(e="kill", t=t - 1, a="r0"))
        events += [
            Event(e="send", t=t + 1 * MS, a="a0", m=m, th="x", n=n, at=t),
            Event(e="stored", t=t + 2 * MS, a="a0", m=m, k=k),
            Event(e="delivery", t=t + 3 * MS, a="a1", k=k, by="ID0"),
            Event(e="committed", t=t + 5 * MS, a="a1", k=k, by="ID0"),
            Event(e="handled", t=t + 7 * MS, a="a1", m=m, k=k, by="ID0", id=f"task{n}"),
            Event(e="delivery", t=t + 8 * MS, a="a1", k=k, by="ID0"),
            Event(e="committed", t=t + 9 * MS, a="a1", k=k, by="ID0"),
            Event(e="delivered", t=t + 9 * MS, a="a0", k=k, by="ID1"),
        ]
    return events


def without(*kinds: str) -> Callable[[list[Event]], list[Event]]:
    """The second message lacks these."""

    def change(events: list[Event]) -> list[Event]:
        return [one for one in events if one.e not in kinds or "2" not in one.m + one.k]

    return change


def twice(id: str, key: str) -> Callable[[list[Event]], list[Event]]:
    def change(events: list[Event]) -> list[Event]:
        return [*events, Event(e="handled", t=9 * SECOND, a="a1", m="a0 x 1", k=key, by="ID0", id=id)]

    return change


def test_a_run_in_which_all_is_well() -> None:
    found = check(story())
    assert found.findings == []
    assert (found.messages, found.safe, found.handled, found.deliveries, found.notes) == (2, 2, 2, 4, 2)
    assert (found.misordered, found.reruns, found.kills) == (0, 0, 1)
    assert found.delays["kills"].to_json() | {"max": 0} == {
        "messages": 2,
        "p50": 5.0,
        "p99": 5.0,
        "max": 0,
        "handled_p50": 7.0,
        "handled_p99": 7.0,
    }
    assert found.delays["kills, 3 s after a kill"].to_json()["messages"] == 1


@pytest.mark.parametrize(
    ("change", "count"),
    [
        (without("handled"), "lost"),
        (without("stored"), "unfinished"),
        (without("committed", "handled"), "false_delivered"),
        (twice("other task", "key1"), "duplicated"),
        (twice("other task", "another key"), "duplicated"),
    ],
)
def test_each_fault_is_found(change: Callable[[list[Event]], list[Event]], count: str) -> None:
    found = check(change(story()))
    assert found.to_json()[count] == 1
    assert found.findings


def test_a_note_before_the_commit_is_false_even_if_the_commit_follows() -> None:
    events = story()
    note = next(one for one in events if one.e == "delivered")
    events.remove(note)
    events.insert(5, note)
    assert check(events).false_delivered == ["a0 key1"]


def test_a_task_that_began_again_is_no_second_one() -> None:
    found = check(twice("task1", "key1")(story()))
    assert found.findings == []
    assert found.reruns == 1


def test_a_message_that_came_before_an_earlier_one_of_its_thread_must_say_so() -> None:
    events = story()
    late, other = (one for one in events if one.e == "handled")
    events.remove(late)
    found = check([*events, late])
    assert (found.misordered, found.out_of_order) == (1, ["a0 x 1"])
    assert len(found.findings) == 1
    events[events.index(other)] = msgspec.structs.replace(other, info={"missing": ["key1"]})
    found = check([*events, late])
    assert (found.misordered, found.findings) == (1, [])
