"""A line document ends the same everywhere, and every trap of the library beneath it is closed."""

from __future__ import annotations

import pytest
from loro import ExportMode, LoroDoc

from holdfast.errors import BadUpdate, HistoryMissing
from holdfast.instances.line_document import NOTHING, Author, LineDocument, common
from holdfast.memory.lines import entry_id, rendered

FIRST = ["# Memory", "", "- the first line", "- the second line"]


def author(name: str, *, ours: tuple[str, ...] = ()) -> Author:
    return Author(instance=name, at_ms=1_800_000_000_000, ours=ours)


def entry(name: str) -> str:
    return rendered(id=entry_id(name), at_ms=1_800_000_000_000, text=name, origin="model", timed=False)


def pair() -> tuple[LineDocument, LineDocument]:
    one = LineDocument.from_lines(FIRST)
    return one, LineDocument(one.copy())


def exchange(one: LineDocument, other: LineDocument) -> None:
    to_other, to_one = one.changes_since(other.version()), other.changes_since(one.version())
    one.take(to_one)
    other.take(to_other)


def test_a_peer_id_that_is_used_again_mangles_and_a_new_one_does_not() -> None:
    """A document is restored from an old copy: the trap, and that every open closes it."""
    for trapped in (True, False):
        one, other = pair()
        backup = one.copy()
        one.change_to([*FIRST, "- told before the loss"], author("a"))
        other.take(one.changes_since(other.version()))
        restored = LineDocument(backup)
        assert restored._doc.peer_id != one._doc.peer_id
        if trapped:
            restored._doc.peer_id = one._doc.peer_id
        restored.change_to([*FIRST, "- told after the restore"], author("a"))
        exchange(restored, other)
        whole = [*FIRST, "- told before the loss", "- told after the restore"]
        converged = restored.lines() == other.lines() and sorted(other.lines()) == sorted(whole)
        assert converged is not trapped


def test_every_open_has_a_peer_id_of_its_own() -> None:
    data = LineDocument.from_lines(FIRST).copy()
    assert len({LineDocument(data)._doc.peer_id for _ in range(10)}) == 10


def test_two_documents_from_equal_files_are_one() -> None:
    one, other = LineDocument.from_lines(FIRST), LineDocument.from_lines(FIRST)
    assert one.version() == other.version()
    one.take(other.copy())
    assert one.lines() == FIRST
    another = LineDocument.from_lines([*FIRST, "- another"])
    one.take(another.copy())
    assert sorted(line for line in one.lines() if line) == sorted([*FIRST, "- another"])[1:]


def test_two_edits_of_one_line_are_two_whole_lines() -> None:
    text = LoroDoc()
    text.get_text("t").update("- changed line")
    text.commit()
    garbled = LoroDoc()
    garbled.import_(_snapshot(text))
    text.get_text("t").update("- changed by A here")
    garbled.get_text("t").update("- changed by B there")
    text.commit()
    garbled.commit()
    text.import_(_snapshot(garbled))
    assert text.get_text("t").to_string() not in ("- changed by A here", "- changed by B there")  # the trap

    one, other = pair()
    one.change_to([*FIRST[:3], "- changed by A"], author("a"))
    other.change_to([*FIRST[:3], "- changed by B"], author("b"))
    exchange(one, other)
    assert one.lines() == other.lines()
    assert sorted(one.lines()[3:]) == ["- changed by A", "- changed by B"]


def _snapshot(doc: LoroDoc) -> bytes:
    return doc.export(ExportMode.Snapshot())


@pytest.mark.parametrize("damage", ["empty", "cut", "flip", "noise"])
def test_damaged_changes_are_refused_and_nothing_changes(damage: str) -> None:
    one, other = pair()
    one.change_to([*FIRST, "- new line"], author("a"))
    good = one.changes_since(other.version())
    bad = {"empty": b"", "cut": good[:-7], "flip": good[:40] + bytes([good[40] ^ 1]) + good[41:], "noise": b"x" * 200}
    with pytest.raises(BaseException, match=r"Decode|Import|data") as raw:
        LoroDoc().import_(bad[damage])
    assert type(raw.value) is BaseException  # the trap: `except Exception` lets it pass
    version = other.version()
    with pytest.raises(BadUpdate):
        other.take(bad[damage])
    assert (other.version(), other.lines()) == (version, FIRST)
    assert other.take(good)
    assert other.lines() == [*FIRST, "- new line"]


def test_a_version_that_is_none_is_refused() -> None:
    with pytest.raises(BadUpdate):
        LineDocument.from_lines(FIRST).changes_since(b"\xff\xff\xff")


def test_bytes_that_are_not_text_come_back_as_they_are() -> None:
    one, other = pair()
    raw = b"\xff\xfe bytes".decode(errors="surrogateescape")
    one.change_to([*FIRST, raw], author("a"))
    other.take(one.changes_since(other.version()))
    assert other.lines() == [*FIRST, raw]


def test_a_line_that_both_bring_in_is_shown_once_and_a_copy_on_purpose_stays() -> None:
    one, other = pair()
    one.change_to([*FIRST, "- the same"], author("a"))
    other.change_to([*FIRST, "- the same", "- more"], author("b"))
    exchange(one, other)
    assert one.lines() == other.lines()
    assert one.lines().count("- the same") == 1
    one.change_to([*one.lines(), "- the same"], author("a"))
    exchange(one, other)
    assert other.lines().count("- the same") == 2
    other.change_to([line for line in other.lines() if line != "- the same"], author("b"))
    exchange(one, other)
    assert "- the same" not in one.lines()


def test_the_copy_of_a_line_is_not_moved_with_it() -> None:
    one, other = pair()
    others = ["- a line", "- another line", *FIRST[3:]]
    one.change_to([*others, FIRST[2], "- between", FIRST[2]], author("a"))
    exchange(one, other)
    one.change_to([FIRST[2], *others, "- between", FIRST[2]], author("a"))  # the first of the two goes to the top
    other.change_to([*others, FIRST[2], "- between"], author("b"))  # the second one is removed
    exchange(one, other)
    assert one.lines() == other.lines() == [FIRST[2], *others, "- between"]


def test_a_line_that_was_removed_unseen_elsewhere_stays() -> None:
    one, other = pair()
    one.change_to([*FIRST, "- the same"], author("a"))
    exchange(one, other)
    third = LineDocument(one.copy())
    third.change_to(FIRST, author("c"))
    one.change_to([*FIRST, "- the same", "- new, not seen by c"], author("a"))
    exchange(one, third)
    assert one.lines() == third.lines() == [*FIRST, "- new, not seen by c"]


def test_an_entry_that_was_removed_is_not_brought_back_by_another_instance() -> None:
    one, other = pair()
    one.change_to([*FIRST, entry("e")], author("a"))
    one.change_to(FIRST, author("a"))
    other.change_to([*FIRST, entry("e")], author("b", ours=(entry_id("e"),)))  # from the journal that both share
    exchange(one, other)
    assert one.lines() == other.lines() == FIRST
    other.change_to([*FIRST, entry("e")], author("b", ours=(entry_id("e"),)))
    assert other.lines() == FIRST
    other.change_to([*FIRST, entry("e")], author("b"))  # a person puts it back
    exchange(one, other)
    assert one.lines() == [*FIRST, entry("e")]


def test_an_edit_of_an_entry_survives_its_removal_elsewhere() -> None:
    one, other = pair()
    one.change_to([*FIRST, entry("e")], author("a"))
    exchange(one, other)
    one.change_to(FIRST, author("a"))
    edited = entry("e").replace("- e", "- e, as a person sees it")
    other.change_to([*FIRST, edited], author("b"))
    exchange(one, other)
    assert one.lines() == other.lines() == [*FIRST, edited]


def test_who_brought_a_line_in_is_kept_over_merges_and_moves() -> None:
    one, other = pair()
    who = Author(instance="a", at_ms=7, tasks={entry_id("e"): "task-1"})
    one.change_to([*FIRST, entry("e"), "- by hand"], who)
    exchange(one, other)
    other.change_to([entry("e"), *FIRST, "- by hand"], author("b"))
    exchange(one, other)
    found = {line.text: (line.instance, line.at_ms, line.task) for line in one.shown()}
    assert found[entry("e")] == ("a", 7, "task-1")
    assert found["- by hand"] == ("a", 7, "")
    assert found[FIRST[2]] == ("", 0, "")


def test_history_before_a_compaction_is_reported_as_missing() -> None:
    """At the version right before its beginning the library shows the lines of the beginning: here it is refused."""
    one, other = pair()
    before = one.version()
    one.change_to([*FIRST, "- new line"], author("a"))
    short = LineDocument(one.copy(keep_from=one.version()))
    assert short.lines() == one.lines()
    for version in (before, NOTHING):
        assert short.begins_after(version)
        with pytest.raises(HistoryMissing):
            short.lines_at(version)
        with pytest.raises(HistoryMissing):
            short.changes_since(version)
    other.change_to([*FIRST, "- made before"], author("b"))
    with pytest.raises(HistoryMissing):
        short.take(other.changes_since(common(before, other.version())))
    assert short.lines() == one.lines()


def test_changes_that_come_before_their_reason_wait() -> None:
    one, other = pair()
    one.change_to([*FIRST, "- one"], author("a"))
    first, middle = one.changes_since(other.version()), one.version()
    one.change_to([*FIRST, "- one", "- two"], author("a"))
    assert not other.take(one.changes_since(middle))
    assert other.lines() == FIRST
    other.take(first)
    assert other.lines() == one.lines()
