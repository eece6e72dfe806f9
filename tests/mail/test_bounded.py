"""Memory with a bound: what was put in or named last is kept."""

from __future__ import annotations

from collections import OrderedDict

from holdfast.relay.bounded import keep_newest


def test_the_oldest_goes_first_and_one_that_is_named_again_is_new() -> None:
    kept = OrderedDict[str, int]()
    for number, name in enumerate(("a", "b", "a", "c")):
        keep_newest(kept, name, number, most=2)
    assert list(kept.items()) == [("a", 2), ("c", 3)]
