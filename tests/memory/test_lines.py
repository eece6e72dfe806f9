"""The merge by lines loses nothing, and tells a removed line from one that was never seen."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from holdfast.memory.lines import (
    BELIEVED_MS,
    Added,
    changes,
    entry_id,
    joined,
    key_of,
    merge,
    read,
    rendered,
    split,
    union,
    unseen,
)

LINES = st.lists(st.sampled_from(["a", "b", "c", "d", "", "- x", "- y"]), max_size=8)
NOW = 1_800_000_000_000


def entry(name: str, text: str = "said") -> str:
    return rendered(id=entry_id(name), at_ms=NOW, text=text, origin="model", timed=False)


@given(base=LINES, ours=LINES, theirs=LINES)
def test_no_line_of_either_side_is_lost(base: list[str], ours: list[str], theirs: list[str]) -> None:
    merged = Counter(merge(base, ours, theirs).lines)
    for side, other in ((ours, theirs), (theirs, ours)):
        added = Counter(side) - Counter(base)
        for line in added:
            assert merged[line] >= 1 or not line.strip()
        kept = Counter(base) & Counter(side) & Counter(other)
        for line, _count in kept.items():
            removed = Counter(base)[line] > min(Counter(side)[line], Counter(other)[line])
            assert merged[line] >= 1 or removed or not line.strip()


@given(base=LINES, theirs=LINES)
def test_a_side_that_changed_nothing_leaves_the_other_as_it_is(base: list[str], theirs: list[str]) -> None:
    assert merge(base, base, theirs).lines == theirs
    assert merge(base, theirs, base).lines == theirs
    assert merge(base, theirs, theirs).lines.count("a") <= 2 * theirs.count("a")


@given(ours=LINES, theirs=LINES)
def test_a_union_has_every_line(ours: list[str], theirs: list[str]) -> None:
    lines = set(union(ours, theirs).lines)
    assert {line for line in (*ours, *theirs) if line.strip()} <= lines


@given(text=st.text(alphabet="ab\n\r ", max_size=20))
def test_lines_are_joined_as_they_were_split(text: str) -> None:
    lines, torn = split(text)
    assert joined(lines) == text + ("\n" if torn else "")


def test_both_sides_of_a_changed_line_stay() -> None:
    merged = merge(["one", "two", "three"], ["one", "TWO", "three"], ["one", "2", "three"])
    assert merged.lines == ["one", "2", "TWO", "three"]


def test_a_line_that_one_side_removed_is_gone() -> None:
    assert merge(["a", "b"], ["a", "b", "new"], ["b"]).lines == ["b", "new"]


def test_of_a_line_that_both_added_one_copy_stays() -> None:
    merged = merge(["a"], ["a", "- same", "- ours"], ["a", "- same"])
    assert (merged.lines, merged.duplicates) == (["a", "- same", "- ours"], 1)


def test_an_entry_that_was_edited_is_no_second_entry() -> None:
    edited = entry("e", "as a person put it")
    assert merge([], [entry("e")], [edited]).lines == [edited]


def test_lines_that_are_nearly_the_same_are_told() -> None:
    one, other = entry("e", "The landlord answers on Mondays"), "- the landlord answers on Monday"
    merged = merge([], [one], [other])
    assert merged.lines == [other, one]
    assert merged.near == ((one, other),)


def added(name: str, write: int, **more: int) -> Added:
    return Added(first=write, write=write, at_ms=NOW, key=entry_id(name), **more)


def test_a_text_from_before_our_write_has_removed_nothing() -> None:
    recent = [added("a", 1), added("b", 2)]
    assert unseen(recent, {entry_id("a")}, now_ms=NOW) == ({entry_id("b")}, set())
    assert unseen(recent, set(), now_ms=NOW) == ({entry_id("a"), entry_id("b")}, set())


def test_who_has_a_later_entry_has_removed_the_earlier_one() -> None:
    recent = [added("a", 1), added("b", 2)]
    assert unseen(recent, {entry_id("b")}, now_ms=NOW) == (set(), {entry_id("a")})


def test_a_foreign_line_proves_nothing() -> None:
    mine = Added(first=2, write=2, at_ms=NOW, key="=- of an editor")
    recent = [added("a", 1), mine]
    assert unseen(recent, {"=- of an editor"}, now_ms=NOW) == ({entry_id("a")}, set())


def test_a_line_that_was_put_back_and_is_gone_much_later_is_removed() -> None:
    soon = [added("a", 1, put_back_ms=NOW)]
    assert unseen(soon, set(), now_ms=NOW + BELIEVED_MS)[0] == {entry_id("a")}
    assert unseen(soon, set(), now_ms=NOW + BELIEVED_MS + 1)[1] == {entry_id("a")}


# Entries


@given(text=st.text(min_size=1, max_size=60), origin=st.sampled_from(["user", "tool a<b>", "model"]))
def test_no_text_looks_like_a_mark(text: str, origin: str) -> None:
    line = rendered(id="0" * 16, at_ms=NOW, text=f"{text} {entry('e')} {text}", origin=origin, timed=True)
    assert "\n" not in line
    assert line.count("<!--") == line.count("-->") == 1
    assert len(line.splitlines()) == 1
    assert key_of(line) == "0" * 16
    assert read(line).id == "0" * 16
    assert read(line).origin.split()[0] == origin.split(maxsplit=1)[0]


def test_what_is_read_of_lines() -> None:
    ours = read(entry("e", "The  text\nin two lines"))
    assert (ours.text, ours.day, ours.origin) == ("The text in two lines", "2027-01-15", "model")
    theirs = read("* by hand")
    assert (theirs.text, theirs.id, theirs.origin) == ("by hand", "", "file")
    forged = read("- x <!-- hf 12 2027-01-15T00:00:00Z user -->")
    assert forged.id == ""


def test_of_two_lines_that_changed_places_the_steady_one_is_kept() -> None:
    old, new = ["- one", "- two", "- three", "- four"], ["- two", "- one", "- four", "- three"]
    for steady in (("- one", "- three"), ("- one", "- four"), ("- two", "- three"), ("- two", "- four")):
        kept, gaps = changes(old, new, steady=steady)
        assert [line for line, stays in zip(old, kept, strict=True) if stays] == list(steady)
        assert sum(map(len, gaps)) == 2
