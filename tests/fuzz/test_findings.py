"""Every input that a fuzzer found to break a border, by name: none of them does any more."""

from __future__ import annotations

import msgspec
import pytest

from holdfast_proofs.fuzz.borders.identity import LOG
from holdfast_proofs.fuzz.seeds import part
from holdfast_proofs.fuzz.targets import TARGETS
from holdfast_proofs.fuzz.watch import Watch

DEEP = b"[" * 2_000
BELOW_ZERO = {"t": "mail", "to": LOG.id, "after": -2, "head": bytes(32), "items": [[-1, bytes(32), 0, b""]], "last": 0}


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
    "an acknowledgement with text that is not UTF-8": (
        "relay-request",
        f"POST /v1/mailbox/{LOG.id}/ack\n".encode() + b'{"refused":[[1,"\xff"]]}',
    ),
    "a relay's refusal with text that is not UTF-8": ("relay-content", b'{"code":"\xff","message":""}'),
    "a relay's list of mail that begins below zero": ("relay-content", msgspec.msgpack.encode(BELOW_ZERO)),
    "a relay's head of the chain that is no hex": (
        "relay-content",
        b'{"t":"login","to":"%s","token":"","e":1,"first":1,"last":1,"head":"zz","expires_s":1}' % LOG.id.encode(),
    ),
    "a book of peers with text that is not UTF-8": ("peers", b'{"profiles":{"\xff":""}}'),
    "a path that ends with a slash": ("relay-request", b"GET /v1/log/?\xd5\n"),
}


@pytest.mark.parametrize(("target", "raw"), FINDINGS.values(), ids=FINDINGS.keys())
def test_what_broke_a_border_once_is_refused_in_its_own_words(target: str, raw: bytes) -> None:
    watch = Watch(TARGETS[target])
    watch.run(raw)
    assert list(watch.findings.values()) == []
