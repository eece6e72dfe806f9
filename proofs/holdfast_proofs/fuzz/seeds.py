"""Inputs that the borders accept, and words of their languages, for mutations to begin from."""

from __future__ import annotations

import json
import struct

import msgspec

from holdfast.host.manifest import File, Manifest
from holdfast.journal.seal import DataKeySealer
from holdfast.journal.sqlite.host.page_reader import CLEAR, SET, SLOTS_AT, blank

SESSION = "0123456789abcdef"

JSON_WORDS = (
    b"null",
    b"true",
    b"false",
    b"NaN",
    b"Infinity",
    b"1e999",
    b"-0",
    b"0.1",
    b'"',
    b"\\u0000",
    b"\\ud800",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"18446744073709551616",
    b"[" * 2_000,
    b'{"a":' * 120,
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"\0",
)
TOML_WORDS = (
    b"[worker]",
    b"[notices]",
    b"[retention]",
    b"[journal]",
    b"agent",
    b"lease_ttl_s",
    b"= nan",
    b"= inf",
    b"= -1",
    b'= """',
    b"command = [",
    b"[[worker]]",
    b"1979-05-27T07:32:00Z",
    b"a.b.c = 1",
    b"0x7fffffffffffffffffffff",
    b"renew_every_s",
    b"\xff",
    b"\0",
    b"{a={a={",
)
CLI_WORDS = (
    b"submit",
    b"worker",
    b"task",
    b"effect",
    b"approval",
    b"doctor",
    b"recover",
    b"demo",
    b"list",
    b"show",
    b"settle",
    b"--json",
    b"--journal",
    b"--args",
    b"--limit",
    b"--help",
    b"--version",
    b"--",
    b"-",
    b"@file",
    b"\n",
    b"--state",
    b"--health-port",
    b"99999",
    b"-1",
    b"--concurrency",
    b"\xed\xa0\x80",
    b"%s",
    b"--done",
    b"--result",
    b"--yes",
)
HTTP_WORDS = (
    b"HTTP/1.1 ",
    b"\r\n",
    b"\r\n\r\n",
    b"Content-Length: ",
    b"Transfer-Encoding: chunked",
    b"Retry-After: 5",
    b"Date: Sun, 06 Nov 1994 08:49:37 GMT",
    b"Connection: close",
    b"0\r\n\r\n",
    b"99999999999999999999",
    b"100 Continue",
    b"ffffffffffffffffffff",
    b"-1",
    b"http://",
    b"https://",
    b"[::1]",
    b":0",
    b"@",
    b"%",
    b"Host",
    b"Idempotency-Key",
    b"\0",
)
FRAME_WORDS = (*JSON_WORDS, b'{"kind":', b'"raised"', b'"busy"', b'"returned"', b"\0\0\0\2", b"\xff" * 4)
RECORD_WORDS = (
    *JSON_WORDS,
    b'"letter"',
    b'"tool"',
    b'"args"',
    b'"reason"',
    b'"state"',
    b'"what"',
    b'"version"',
    b'"session"',
    b'"boot"',
    b'"lost_after_ms"',
    b'"question"',
    b'"evidence"',
    b'"quiet_in_ms"',
)

SETTINGS = (
    b"",
    b'agent = "crew"\n[worker]\nname = "w"\nlease_ttl_s = 10\nconcurrency = 5\n',
    b"[worker]\nlease_ttl_s = 1.5\nrenew_every_s = 0.4\nsweep_every_s = 0.1\ngrace_s = 3\n"
    b"claim_batch = 4\ncheck_after_crash = false\n[journal]\nallow_network_fs = true\n",
    b'[notices]\ncommand = ["/bin/tell", "--now"]\n[retention]\nkeep_days = 3\ntombstone_days = 4\n',
    b'[notices]\nwebhook = "http://127.0.0.1:1/x"\n',
)
FLEETS = (b"# all\n\none\n./two\n~/three\n/srv/four\n", b"one\r\none/.holdfast\n", b"~nobody/a\n")
WORDS = (
    b"submit\napp.py:tasks\n--args\n{}",
    b"worker\napp.py:tasks\n--journal\nx\n--concurrency\n5\n--health-port\n0",
    b"task\nlist\n--state\nparked\n--json",
    b"effect\nsettle\n01J9ZK/4\n--done\n--result\n1\n--yes",
    b"effect\nevidence\n--effect-key\nk\n--result\nnull",
    b"approval\nlist",
    b"doctor\n--deep",
    b"recover\n--yes",
    b"--help",
)
ORDERS = (
    b'{"app": "a:b", "journal": "j"}',
    b'{"app": "a:b", "journal": "j", "config": "", "overrides": {"grace_s": 1}, "health_port": 0}',
)
KEYS = (
    json.dumps(
        {"format": 1, "k_effect": "00" * 32, "current": 1, "journal_keys": [{"id": 1, "key": "11" * 32}]}
    ).encode(),
)
NAMES = (
    b"01J9ZKABCDEFGHJKMNPQRSTVWX",
    b"01j9zk",
    b"6f1c2a9e-0000-8000-8000-000000000000",
    b"4",
    b"4.2.1",
    b"4.r1",
    b"4.c1",
    b"@charge-1",
    b"@a.1.r2",
    b"charge_1",
    b"{6f1c2a9e-0000-8000-8000-000000000000}",
    b"urn:uuid:6f1c2a9e000080008000000000000000",
)
JSON = (
    b"null",
    b"1",
    b"-0.0",
    b"1e22",
    b"18446744073709551615",
    b'"text"',
    b'"\\ud83d\\ude00"',
    b'{"b": [1, 2.5, true, null], "a": {"x": "y"}}',
    '"ü€\U0001f600"'.encode(),
    b'{"\xc3\xbc": 1, "a": 0.1, "1e400": 333333333.33333329}',
    b"[" * 150 + b"]" * 150,
)


def part(raw: bytes) -> bytes:
    return bytes((len(raw),)) + raw


EVIDENCE = (
    part(b"6f1c2a9e-0000-8000-8000-000000000000") + part(b"") * 2 + part(b"webhook") + b'{"id": 1}',
    part(b"") + part(b"01J9ZKABCDEFGHJKMNPQRSTVWX") + part(b"4") + part(b"bank") + b"null",
)


def record(kind: int, what: int, epoch: int, body: object, *, ordinal: bytes = b"") -> bytes:
    head = struct.pack(">BHBB", kind, what, epoch, len(ordinal)) + ordinal + bytes((1, 1))
    return head + part(json.dumps(body, separators=(",", ":")).encode())


_ACCEPTED = record(1, 0, 0, {"name": "t", "request_id": "r", "args": {}})
_CLAIMED = record(2, 0, 1, {"session": "s", "boot": "b", "worker": "1"})
_STARTED = record(3, 0x0201, 1, {"letter": "K", "tool": "t", "args": {}}, ordinal=b"1")
_PLACED = record(3, 0x0201, 1, {"letter": "N", "tool": "t", "args": {}}, ordinal=b"1")


def _then(*more: bytes) -> bytes:
    return _ACCEPTED + _CLAIMED + _STARTED + b"".join(more)


_DOUBT = record(3, 5, 1, {"reason": "timeout"}, ordinal=b"1")
_PARKED = record(3, 11, 1, {"question": "?", "evidence": [], "not_before_ms": 5, "quiet_in_ms": 1}, ordinal=b"1")
RECORDS = (
    _ACCEPTED,
    _then(record(3, 3, 1, {"result": 1}, ordinal=b"1"), record(7, 0, 1, {"state": "succeeded"})),
    _then(_DOUBT, record(3, 2, 1, {}, ordinal=b"1"), record(3, 4, 1, {"proof": 1}, ordinal=b"1")),
    _ACCEPTED + _CLAIMED + _PLACED + _DOUBT + _PARKED + record(3, 12, 1, {"result": 5, "note": "n"}, ordinal=b"1"),
    _then(
        record(2, 0, 2, {"session": "s", "boot": "b", "worker": "2"}),
        record(3, 6, 2, {"reason": "not sent"}, ordinal=b"1"),
    ),
    _then(record(8, 0, 1, {"lost_after_ms": 7})),
    _then(
        record(9, 0, 1, {"at": "before", "manifest": "00"}, ordinal=b"2"),
        record(9, 0, 1, {"at": "after", "unkept": "why"}, ordinal=b"2"),
        record(9, 0, 1, {"at": "end", "manifest": "00"}),
    ),
    _then(
        record(4, 0, 1, {"what": "now", "value": 1}, ordinal=b"2"),
        record(5, 0, 1, {"woken": True}, ordinal=b"2"),
        record(6, 0, 1, {"state": "sleeping"}),
    ),
)
_BODIES: tuple[tuple[int, int, dict[str, object]], ...] = (
    (3, 3, {"result": 1}),
    (3, 5, {"reason": "busy", "retry_after_s": 1}),
    (4, 0, {"what": "now"}),
    (9, 0, {"at": "after", "manifest": "00"}),
    (7, 0, {"state": "failed"}),
    (8, 0, {"lost_after_ms": 1}),
    (6, 0, {"state": "parked"}),
    (2, 0, {"session": "s", "boot": "b", "worker": "w"}),
    (3, 11, {"question": "?", "evidence": [], "not_before_ms": 1, "quiet_in_ms": 2}),
)
VIEWS = tuple(struct.pack(">BH", kind, what) + json.dumps(body).encode() for kind, what, body in _BODIES)
ROWS = (
    bytes((1, 1)) * 3
    + bytes((1, 3, 1, 3, 4, 1, 49))
    + bytes((1, 1)) * 3
    + bytes((5, 2, 1, 2)) * 2
    + bytes((1, 1)) * 2
    + bytes((5, 1, 7)) * 2,
    bytes(40),
)
_CHUNK = "ab" * 32
MANIFESTS = tuple(
    msgspec.json.encode(Manifest(files=files, folders=folders))
    for files, folders in (
        ((), ()),
        ((File("a/b", False, 5, (_CHUNK,)), File("c", True, 0, ())), ("d", "e/f")),
        ((File("\u00fc.txt", False, (1 << 20) + 1, (_CHUNK, _CHUNK)),), ()),
    )
)
PATH_WORDS = (
    *JSON_WORDS,
    b"..",
    b"/",
    b"../",
    b"//",
    b"./",
    b"\\u0000",
    b"\\ud800",
    b"A\xcc\x88",
    b"\xc3\x84",
    b'"files":',
    b'"folders":',
    b'"format":',
    _CHUNK.encode(),
)
INBOX = (b"\0\0" + b'{"outcome": "succeeded", "result": 1}', b"\0\1" + b'{"decision": "run"}')
_SEALED = DataKeySealer(bytes(32))
SEALED = (_SEALED.seal(b"{}", b"place"), b"")


def _page(flag: int) -> bytes:
    page = bytearray(blank(session_id=SESSION, boot_id="boot", incarnation=1))
    page[SLOTS_AT : SLOTS_AT + 9] = b"tagtagta" + bytes((flag,))
    return b"tagtagta" + b"b" + bytes(page)


PAGES = (_page(CLEAR), _page(SET), _page(0))
_MARK = {"format": 1, "journal_id": "journal", "incarnation": 1}
INSTANCE = (
    b"\0" + json.dumps({**_MARK, "sequence": 5}).encode(),
    b"\1" + json.dumps({**_MARK, "stamp": 5}).encode(),
    b"\2" + json.dumps({"format": 1, "reason": "r", "session_id": "s", "at": 1}).encode(),
    b"\3" + _page(CLEAR)[9:],
)
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
ANSWERS = (
    b"\0\xff" + _OK,
    b"\1\3" + _OK,
    b"\5\xffHTTP/1.1 409 Conflict\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n",
    b"\5\xffHTTP/1.1 503 Busy\r\nRetry-After: Sun, 06 Nov 1994 08:49:37 GMT\r\n"
    b"Date: Sun, 06 Nov 1994 08:49:07 GMT\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"2\r\n{}\r\n0\r\n\r\n",
    b"\2\xffHTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 201 Created\r\n\r\n[1]",
    b"\4\x05HTTP/1.1 422 No\r\ncontent-length: 4\r\n\r\nnull",
)
REQUESTS = (
    part(b"POST")
    + part(b"http://127.0.0.1:80/effects")
    + b"\1"
    + part(b"q")
    + part(b"v")
    + b"\1"
    + part(b"X-A")
    + part(b"b")
    + b"body",
    part(b"GET") + part(b"https://[::1]/x?y=z") + b"\0\0",
)


def _frame(body: object) -> bytes:
    raw = json.dumps(body).encode()
    return len(raw).to_bytes(4, "big") + raw


FRAMES = (
    _frame({"kind": "returned", "value": 1}),
    _frame({"kind": "raised", "type": "E", "text": "t", "code": ""}),
    _frame({"kind": "busy", "retry_after_s": 1.0}),
    _frame({"kind": "refused", "proof": {}, "retry_after_s": None}),
    _frame({"kind": "not-sent", "reason": "r"}),
    _frame({"kind": "unkept", "why": "w"}),
    _frame({"kind": "key-reused", "proof": 1}),
    _frame({"ready": True}),
    _frame([1]),
)
FAR_ORDERS = (
    b"\1\1\1" + part(b"key") + b"\0\0\0" + part(b"/effects") + b"{}",
    b"\3\2\1"
    + part(b"key")
    + b"\1"
    + part(b"7")
    + b"\1"
    + part(b"t")
    + b"\1"
    + part(b"1")
    + part(b"/resources/x?y=1")
    + b'{"kind": "drop_reply", "n": null, "probability": 0.5}',
    b"\6\1\1" + part(b"k") + b"\0\0\0" + part(b"/charges") + b'{"card": "tok", "cents": 5}',
)
