"""Every input that a fuzzer found to break a border, by name: none of them does any more."""

from __future__ import annotations

import pytest

from holdfast_proofs.fuzz.seeds import part
from holdfast_proofs.fuzz.targets import TARGETS
from holdfast_proofs.fuzz.watch import Watch

DEEP = b"[" * 2_000


def _frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


FINDINGS: dict[str, tuple[str, bytes]] = {
    "an answer whose JSON holds text that is not UTF-8": ("answer-body", b'["\xc2 "]'),
    "an answer that is nested too deeply": ("answer-body", DEEP),
    "a query parameter has a lone surrogate": (
        "requests",
        part(b"GET") + part(b"http://far.end/") + b"\1" + part(b"q") + part(b"\xff") + b"\0",
    ),
    "a frame that is no object": ("frames", _frame(b"[1]")),
    "a frame without a kind": ("frames", _frame(b'{"ready":true}')),
    "a frame with a kind that is no text": ("frames", _frame(b'{"kind":[]}')),
    "a frame of an unknown kind": ("frames", _frame(b'{"kind":"odd"}')),
    "a frame whose outcome lacks a field": ("frames", _frame(b'{"kind":"busy"}')),
    "a frame whose outcome has a field of another type": ("frames", _frame(b'{"kind":"busy","retry_after_s":"soon"}')),
    "a frame that is nested too deeply": ("frames", _frame(DEEP)),
    "a row of nothing but NULL": ("rows", bytes(40)),
    "a row with numbers for text": ("rows", bytes((1, 1)) * 15),
    "an inbox item whose body is no object": ("inbox", b"\0\0[1]"),
    "an inbox item whose body is cut off": ("inbox", b'\0\0{"a":'),
    "an inbox item of an unknown kind": ("inbox", b"\0\5{}"),
    "a high-water mark that is nested too deeply": ("instance", b"\0" + DEEP),
    "a stamp that is nested too deeply": ("instance", b"\1" + DEEP),
    "a stop sign that is nested too deeply": ("instance", b"\2" + DEEP),
    "an order that is nested too deeply": ("order", DEEP),
}


@pytest.mark.parametrize(("target", "raw"), FINDINGS.values(), ids=FINDINGS.keys())
def test_what_broke_a_border_once_is_refused_in_its_own_words(target: str, raw: bytes) -> None:
    watch = Watch(TARGETS[target])
    watch.run(raw)
    assert list(watch.findings.values()) == []
