"""One bit of a journal's folder turned over: found or harmless, never another answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast_proofs.crash.bit_flips.flips import Flip
from holdfast_proofs.crash.jobs import Flips, run_job
from holdfast_proofs.crash.report import Figures

# The kinds of bytes that any journal has, whatever SQLite makes of it.
KINDS = (
    "file header",
    "b-tree header",
    "b-tree pointers",
    "task cells",
    "record cells",
    "inbox cells",
    "meta cells",
    "session page head",
    "session page mark",
    "session page slots",
    "high-water.json",
    "stamp.json",
    "keys.json",
)


@pytest.mark.slow
@pytest.mark.parametrize("logged", [True, False], ids=["with its log", "log moved into the file"])
def test_a_flipped_bit_is_found_or_harmless(shim: Path, logged: bool) -> None:
    figures = run_job(Flips(count=40, logged=logged), shim)

    assert figures.findings == []
    assert figures.green
    assert figures.found + figures.harmless == figures.points == 40
    assert figures.found >= 10
    assert set(KINDS) <= figures.kinds.keys()
    assert not logged or {"log header", "log frame header", "log payload"} <= figures.kinds.keys()


@pytest.mark.parametrize("text", ["", "journal.db", "journal.db:1", "journal.db:1:8", "a:-1:0"])
def test_what_is_no_bit(text: str) -> None:
    with pytest.raises(ValueError, match=r"no such bit|values to unpack"):
        Flip.parse(text)


def test_a_bit_has_a_name() -> None:
    flip = Flip.parse("instance/ab/high-water.json:17:3")
    assert flip == Flip(file="instance/ab/high-water.json", offset=17, bit=3)
    assert Flip.parse(str(flip)) == flip


def test_a_silent_flip_is_red() -> None:
    assert not Figures(name="flips", silent=1).green
