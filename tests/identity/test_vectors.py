"""The test vectors of the format's page are what the code makes and takes."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import page_vectors
from cast import SODIUM, take

from holdfast.identity.log.log import accept_line
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.encodings import agent_id
from holdfast.identity.records.records import parse_record


def test_the_page_shows_what_the_code_makes() -> None:
    """If the format was meant to change: `python tests/identity/page_vectors.py`."""
    assert page_vectors.shown() == page_vectors.made()


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
