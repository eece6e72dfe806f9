"""Borders of an agent's files, which people and other programs write too."""

from __future__ import annotations

from collections import Counter

from holdfast.memory.handoff import Handoff, parse, render
from holdfast.memory.heartbeat import ANY_BEGIN, ANY_END, BEGIN, END, NEW, DamagedMarks, merged
from holdfast.memory.lines import joined, key_of, merge, parsed, rendered, split
from holdfast_proofs.fuzz.feed import Feed, as_text, law

BLOCK = b"No task is open.\n"
_ENTRY = rendered(id="01J9ZK3V5TQ8", at_ms=1_790_000_000_000, text="tea at five", origin="ada", timed=True)
HANDOFFS = (
    render(Handoff(agent="ada", agent_id="hf1x", at_ms=1, where=("a",), changed=("b",))).encode(),
    render(Handoff(agent="", agent_id="", at_ms=0)).encode(),
)
HEARTBEATS = (NEW, b"# mine\n", BEGIN + b"\nold\n" + END + b"\n- [ ] water the plants\n")
DAYS = (f"# 2026-11-15\n\n{_ENTRY}\n- a line of mine\n".encode(), b"torn")
MERGES = (b"\x06one\ntw\x08one\ntwo\n" + f"one\n{_ENTRY}\n".encode(), b"\x00\x04a\nb\n" + b"b\na\n")
WORDS = (
    BEGIN,
    END,
    b"\n",
    b"\r\n",
    b"\n## ",
    b"# Hand-off of ",
    b"as of ",
    b"- ",
    b"- [ ] ",
    b"<!--",
    b"-->",
    b"\xef\xbb\xbf",
    b"\xff",
    b"\x00",
    _ENTRY.encode(),
    b"0000-00-00 99:99:99.999",
)


def handoff(raw: bytes) -> None:
    found = parse(raw.decode("utf-8", "replace"))
    law(parse(render(found)).at_ms == found.at_ms, "a moment that is not written as it is read")


def heartbeat(raw: bytes) -> None:
    """Nothing outside of the block changes, and a second writing changes nothing."""
    after = merged(raw, BLOCK)
    if isinstance(after, DamagedMarks):
        return
    begin, end = ANY_BEGIN.search(after), ANY_END.search(after)
    law(begin is not None and end is not None, "a block without its marks")
    if begin is None or end is None:
        return
    law(raw.startswith(after[: begin.start()].rstrip(b"\n")), "words before it")
    tail = after[end.end() :]
    law(raw.endswith(tail) or not tail.strip(), "words after it")
    law(merged(after, BLOCK) == after, "written again it is another file")


def day(raw: bytes) -> None:
    text = raw.decode("utf-8", "replace")
    found = parsed(text, day="2026-11-15")
    law(found.torn == bool(text and not text.endswith("\n")), "a torn tail that is not told")
    law(all(one.text for _, one in found.lines), "a line that says nothing")


def merging(raw: bytes) -> None:
    """No line that either side added is lost, and none is there twice for it."""
    feed = Feed(raw)
    base, ours = (split(as_text(feed.part()))[0] for _ in range(2))
    theirs = split(as_text(feed.rest()))[0]
    after = Counter(key_of(line) for line in merge(base, ours, theirs).lines if line.strip())
    before = Counter(key_of(line) for line in base if line.strip())
    mine, others = (Counter(key_of(line) for line in side if line.strip()) for side in (ours, theirs))
    for key in mine | others:
        added = max(mine[key] - before[key], others[key] - before[key])
        law(added <= 0 or after[key] >= added, "an added line is lost")
        law(after[key] <= mine[key] + others[key], "a line that nobody wrote")
    law(split(joined(theirs))[0] == theirs, "lines that do not come back")
