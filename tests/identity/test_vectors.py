"""The test vectors of the format's page are what the code makes and takes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import page_vectors
from cast import SODIUM, take

from holdfast.errors import BadRecord
from holdfast.identity.log.log import accept_line
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.encodings import agent_id, digest_of
from holdfast.identity.records.records import parse_record
from holdfast.identity.statements.relay_answer import digest_of_request, read_answer


def test_the_page_shows_what_the_code_makes() -> None:
    """If the format was meant to change: `python tests/identity/page_vectors.py`."""
    assert page_vectors.shown() == page_vectors.made()
    assert page_vectors.shown(page_vectors.RELAY_PAGE) == page_vectors.made_of_relays()


def test_the_answers_of_the_page_are_believed_for_their_requests_alone() -> None:
    page = page_vectors.shown(page_vectors.RELAY_PAGE)
    for one in page["answers"]:
        raw = f"{one['line']}\n{one['content']}".encode()
        body = one["body"].encode() if one["read"] else b""
        ask = digest_of_request(one["method"], one["target"], page["nonce"], body)
        assert ask == one["ask"]
        given: dict[str, Any] = {"status": one["status"], "key": page["key"], "port": SODIUM}
        assert read_answer(raw, asks={ask}, **given).decode() == one["content"]
        with pytest.raises(BadRecord):
            read_answer(raw, asks={digest_of(b"another request")}, **given)


def test_the_log_of_the_page_is_taken_line_by_line() -> None:
    shown = page_vectors.shown()
    lines = {one["of"]: one["line"].encode() for one in shown["lines"]}
    log: KeyLog | None = None
    positions: list[list[int]] = []
    for name in ("icp", "rot", "rcv", "rot after rcv"):
        log = take(log, parse_record(lines[name]))
        positions.append(list(log.position))
    assert positions[1:] == shown["positions"]
    assert agent_id(parse_record(lines["icp"]).body) == shown["id"]
    assert isinstance(accept_line(log, lines["rtr"], port=SODIUM), KeyLog)
