"""Reading sources of which some never answer, or too late."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import wait

from holdfast.host.slow_reads import HANGS, SlowReads

NO_ANSWER = "no answer within 0.05 s"


def test_a_source_that_is_always_late_is_heard_at_the_next_look() -> None:
    reads, gate = SlowReads[str](), threading.Semaphore(0)

    def late() -> str:
        gate.acquire(timeout=30)
        return "evicted"

    def looked() -> tuple[dict[str, str], dict[str, str]]:
        return reads.read({"nas": late, "disk": lambda: "fine"}, of="ada", within_s=0.05)

    assert not reads.is_late(["nas", "disk"], of="ada")
    assert looked() == ({"disk": "fine"}, {"nas": NO_ANSWER})
    assert reads.is_late(["nas", "disk"], of="ada")
    assert not reads.is_late(["disk"], of="ada")
    assert looked() == ({"disk": "fine"}, {"nas": HANGS})
    gate.release()
    wait([reads._hanging["ada", "nas"]], timeout=30)
    assert looked() == ({"disk": "fine", "nas": "evicted"}, {}), "what was late, as the fresh read is late too"
    assert reads.is_late(["nas"], of="ada")
    assert looked() == ({"disk": "fine"}, {"nas": HANGS}), "and only once"
    gate.release()


def test_a_late_answer_is_heard_also_where_the_fresh_read_fails() -> None:
    reads, gate, begun = SlowReads[str](), threading.Semaphore(0), list[int]()

    def late_then_down() -> str:
        begun.append(1)
        if len(begun) > 1:
            raise OSError("stale file handle")
        gate.acquire(timeout=30)
        return "evicted"

    sources: dict[str, Callable[[], str]] = {"nas": late_then_down}
    assert reads.read(sources, of="ada", within_s=0.05) == ({}, {"nas": NO_ANSWER})
    gate.release()
    wait([reads._hanging["ada", "nas"]], timeout=30)
    assert reads.read(sources, of="ada", within_s=5) == ({"nas": "evicted"}, {})
    assert reads.read(sources, of="ada", within_s=5) == ({}, {"nas": "stale file handle"})


def test_an_error_that_no_code_expects_keeps_back_no_other_answer() -> None:
    def broken() -> str:
        raise RuntimeError("can't start new thread")

    sources: dict[str, Callable[[], str]] = {"relay": broken, "disk": lambda: "evicted"}
    assert SlowReads[str]().read(sources, of="ada", within_s=5) == (
        {"disk": "evicted"},
        {"relay": "can't start new thread"},
    )
