"""What instances send each other: any order, losses, compaction, and an instance that comes back old."""

from __future__ import annotations

import pytest

from holdfast.errors import BadUpdate
from holdfast.instances.line_document import NOTHING, Author, LineDocument
from holdfast.instances.shared import SharedDocument, Update
from holdfast.memory.lines import entry_id, removal_mark, rendered
from holdfast.memory.shared_lines import NEVER, MergedAt, merged_with
from holdfast_proofs.merges.world import update_to

FIRST = ["# Memory", "", "- the first line", "- the second line"]
NAMES = ("a", "b", "c")
ENTRY = rendered(id=entry_id("1"), at_ms=0, text="said", origin="model", timed=False)


class Side:
    """An instance whose file is a list."""

    def __init__(self, name: str, stored: bytes | None = None) -> None:
        self.name, self.file, self.base, self.write = name, list(FIRST), list[str](FIRST), 1
        self.merged: MergedAt = NEVER
        self.document = SharedDocument(instance=name, file="MEMORY.md")
        if stored is None:
            self.document.found(FIRST)
            self.document.finish(FIRST, 1, self.author)
        else:
            self.document = SharedDocument.load(stored, instance=name, file="MEMORY.md")

    @property
    def author(self) -> Author:
        return Author(instance=self.name, at_ms=1_800_000_000_000 + self.write)

    def settle(self, *, dies: bool = False) -> list[str]:
        """`dies`: the pass is killed before it has told the document."""
        stored = self.document.stored() if dies else b""
        start = self.document.begin(self.base, self.write, {}, self.author, file=self.file, merged=self.merged)
        self.file = merged_with(start.lines, self.file, base=start.base, gone=start.gone, ours=()).lines
        self.base, self.write = list(self.file), self.write + 1
        self.merged = start.noted(self.write, self.file)
        if dies:
            self.document = SharedDocument.load(stored, instance=self.name, file="MEMORY.md")
        else:
            self.document.finish(self.file, self.write, self.author)
        return self.file

    def add(self, *lines: str) -> None:
        self.file = [*self.file, *lines]
        self.settle()


def sides() -> tuple[Side, Side, Side]:
    one = Side("a")
    stored = one.document.stored()
    return one, Side("b", stored), Side("c", stored)


def tell(one: Side, *others: Side) -> None:
    for other in others:
        other.document.receive(update_to(one.document, other.name), other.author)


def tell_all(*them: Side, rounds: int = 3) -> None:
    for _ in range(rounds):
        for one in them:
            tell(one, *(other for other in them if other is not one))
            one.settle()
    for one in them:
        one.settle()


def test_an_edit_is_compared_with_what_the_file_showed_not_with_what_has_arrived() -> None:
    one, other, _ = sides()
    other.add("- by b")
    tell(other, one)
    one.file = [*one.file, "- by hand"]  # saved after the update came, from a text without it
    assert sorted(one.settle()) == sorted([*FIRST, "- by b", "- by hand"])


def test_what_is_lost_on_the_way_is_sent_again() -> None:
    one, other, _ = sides()
    one.add("- one")
    update_to(one.document, "b")  # lost
    one.add("- two")
    for _ in range(2):
        tell(one, other)
    assert other.settle() == [*FIRST, "- one", "- two"]
    tell(other, one)
    assert update_to(one.document, "b").data == b""


def test_history_is_kept_until_every_enrolled_instance_knows_it() -> None:
    one, other, third = sides()
    one.add("- one")
    tell(one, other)
    tell(other, one)
    one.document.compact(NAMES)
    tell(one, third)
    assert third.settle() == [*FIRST, "- one"]
    assert not update_to(one.document, "c").whole


def test_an_instance_that_was_restored_from_before_a_compaction_comes_back() -> None:
    one, other, third = sides()
    old = (third.document.stored(), list(third.file), list(third.base), third.write)
    one.add("- one", "- two")
    tell_all(one, other, third)
    one.file.remove(FIRST[2])
    one.settle()
    tell_all(one, other, third)
    for side in (one, other, third):
        side.document.compact(NAMES)
    third.document = SharedDocument.load(old[0], instance="c", file="MEMORY.md")
    third.file, third.base, third.write = old[1], old[2], old[3]
    third.add("- after the restore")
    other.add("- meanwhile")
    tell_all(one, other, third, rounds=5)
    assert one.file == other.file == third.file
    assert sorted(one.file) == sorted([*FIRST[:2], FIRST[3], "- one", "- two", "- after the restore", "- meanwhile"])
    who = {line.text: line.instance for line in one.document.shown()}
    assert who["- after the restore"] == "c"


def test_a_removal_stays_where_an_instance_that_was_restored_has_more_changes_than_the_others() -> None:
    one, other, third = sides()
    old = third.document.stored()
    one.add("- one")
    tell_all(one, other, third)
    for side in (one, other):
        side.document.compact(NAMES)
    third = Side("c", old)
    for number in range(10):
        third.add(f"- after the restore {number}")
    other.file.remove("- one")
    other.settle()
    for side in (one, other):
        side.document.receive(third.document.update_since(NOTHING, whole=True), side.author)
    tell_all(one, other, third, rounds=5)
    assert one.file == other.file == third.file == [*FIRST, *(f"- after the restore {number}" for number in range(10))]


def test_a_line_that_was_written_anew_stays_where_its_instance_takes_a_document_without_it() -> None:
    one, other, third = sides()
    old = third.document.stored()
    one.file.remove(FIRST[2])
    one.add("- one")
    tell_all(one, other, third)
    for side in (one, other):
        side.document.compact(NAMES)
    third = Side("c", old)
    third.file.remove(FIRST[2])
    third.settle()
    third.file.insert(2, FIRST[2])  # another line, with the same words
    third.settle()
    tell_all(one, other, third, rounds=5)
    assert one.file == other.file == third.file
    assert one.file.count(FIRST[2]) == 1


def test_lines_that_come_back_where_two_documents_have_no_common_version_are_told() -> None:
    one, other, _ = sides()
    one.file.remove(FIRST[2])
    other.add("- by b")
    for side in (one, other):
        side.settle()
        assert side.document.document is not None
        side.document.document = LineDocument(side.document.document.copy(keep_from=side.document.version))
    for _ in range(3):
        tell(one, other)
        tell(other, one)
    one.document = SharedDocument.load(one.document.stored(), instance="a", file="MEMORY.md")
    told = [side.document.begin(side.base, side.write, {}, side.author, file=side.file).unsure for side in (one, other)]
    assert sorted(told) == [(), ("- by b", FIRST[2])]
    tell_all(one, other)
    assert one.file == other.file
    assert sorted(one.file) == sorted([*FIRST, "- by b"])
    assert one.document.begin(one.base, one.write, {}, one.author, file=one.file).unsure == ()


def test_a_lost_document_costs_no_line_and_makes_none_from_the_file() -> None:
    one, other, _ = sides()
    one.add("- one")
    tell_all(one, other)
    other.document = SharedDocument(instance="b", file="MEMORY.md")
    other.file = [*other.file, "- only here"]
    assert update_to(other.document, "a") == Update(instance="b", file="MEMORY.md", version=NOTHING, wants_whole=True)
    assert not other.document.may_found(("a", "b"))
    tell(other, one)
    tell(one, other)
    other.settle()
    tell_all(one, other)
    assert one.file == other.file
    assert sorted(one.file) == sorted([*FIRST, "- one", "- only here"])


def test_where_no_instance_has_a_document_the_first_one_makes_it() -> None:
    first, second = (SharedDocument(instance=name, file="MEMORY.md") for name in ("a", "b"))
    assert not first.may_found(("a", "b"))  # it has not heard of the other yet
    author = Author(instance="", at_ms=0)
    first.receive(update_to(second, "a"), author)
    second.receive(update_to(first, "b"), author)
    assert first.may_found(("a", "b"))
    assert not second.may_found(("a", "b"))


def test_lines_that_say_nearly_the_same_are_listed_and_both_stay() -> None:
    one, other, _ = sides()
    one.add("- The landlord answers on Mondays.")
    other.add("- the landlord answers on monday")
    tell(other, one)
    start = one.document.begin(one.base, one.write, {}, one.author, file=one.file)
    assert start.near == (("- The landlord answers on Mondays.", "- the landlord answers on monday"),)
    assert len(one.settle()) == len(FIRST) + 2


def test_a_removal_counts_where_the_document_has_the_line_in_another_place() -> None:
    document = ["- one", "- three", "- two"]
    found = merged_with(document, ["- one", "- three"], base=["- one", "- two", "- three"], gone=(), ours=())
    assert found.lines == ["- one", "- three"]


def test_a_line_with_the_same_words_that_came_since_is_not_removed() -> None:
    one, other, third = sides()
    one.add("- the same words")
    other.add("- the same words")
    one.file.remove("- the same words")  # its own: the file never showed the other one
    tell(other, one)
    assert one.settle().count("- the same words") == 1
    tell_all(one, other, third)
    other.file.remove("- the same words")
    tell_all(one, other, third)
    assert one.file == other.file == third.file == FIRST


def test_a_line_stays_where_another_instance_removes_its_own_with_the_same_words() -> None:
    one, other, third = sides()
    other.add("- the same words")
    one.file.append("- the same words")
    tell(other, one)
    assert one.settle().count("- the same words") == 1
    other.file.remove("- the same words")
    tell_all(one, other, third)
    assert one.file == other.file == third.file == [*FIRST, "- the same words"]


@pytest.mark.parametrize("lost", ["sidecar", "document"])
def test_that_holds_also_where_the_sidecar_or_the_document_is_lost(lost: str) -> None:
    one, other, third = sides()
    other.add("- the same words")
    one.file.append("- the same words")
    if lost == "sidecar":
        tell(other, one)
        start = one.document.begin(None, 0, {}, one.author, file=one.file)
    else:
        one.document = SharedDocument(instance="a", file="MEMORY.md")
        tell(one, other)
        tell(other, one)
        start = one.document.begin(one.base, one.write, {}, one.author, file=one.file)
    assert start.base is None
    one.base = one.file = merged_with(start.lines, one.file, base=None, gone=(), ours=()).lines
    one.write += 1
    one.document.finish(one.file, one.write, one.author)
    other.file.remove("- the same words")
    tell_all(one, other, third)
    assert one.file == other.file == third.file == [*FIRST, "- the same words"]


def test_a_line_that_only_moved_meanwhile_is_removed() -> None:
    one, other, _ = sides()
    other.file = [*FIRST[:2], FIRST[3], FIRST[2]]
    other.settle()
    one.file = [line for line in FIRST if line != FIRST[2]]
    tell(other, one)
    assert one.settle() == [*FIRST[:2], FIRST[3]]


@pytest.mark.parametrize("lost", [False, True])
def test_a_removal_that_the_document_was_not_told_takes_no_line_that_came_since(lost: bool) -> None:
    one, other, _ = sides()
    other.add(FIRST[2])  # once more
    tell(other, one)
    one.file = one.base = [line for line in FIRST if line != FIRST[2]]  # by a write without the document
    one.write += 1
    if lost:
        one.document = SharedDocument(instance="a", file="MEMORY.md")
        tell(one, other)
        tell(other, one)
    gone = {removal_mark(FIRST[2]): one.write}
    start = one.document.begin(one.base, one.write, gone, one.author, file=one.file)
    assert start.lines.count(FIRST[2]) == (2 if lost else 1)


@pytest.mark.parametrize("damage", ["version", "data", "whole"])
def test_a_damaged_update_changes_nothing(damage: str) -> None:
    one, other, _ = sides()
    one.add("- one")
    good = update_to(one.document, "b")
    bad = {
        "version": Update(instance="a", file="MEMORY.md", version=b"\xff\xff", data=good.data),
        "data": Update(instance="a", file="MEMORY.md", version=good.version, data=good.data[:-3]),
        "whole": Update(instance="a", file="MEMORY.md", version=good.version, data=b"no document", whole=True),
    }
    before = other.document.stored()
    with pytest.raises(BadUpdate):
        other.document.receive(bad[damage], other.author)
    assert other.document.stored().partition(b"\n")[0] == before.partition(b"\n")[0]
    assert other.settle() == FIRST


@pytest.mark.parametrize("stored", [b"", b"{}\n", b"[]\nx", b'{"format": 9}\n', b"\xff\n"])
def test_a_stored_document_that_is_damaged_is_refused(stored: bytes) -> None:
    with pytest.raises(BadUpdate):
        SharedDocument.load(stored, instance="a", file="MEMORY.md")


def test_one_line_is_small_on_the_way() -> None:
    one, other, _ = sides()
    one.add(*(f"- line number {number} of a long memory" for number in range(500)))
    tell_all(one, other)
    one.add("- one more")
    assert len(update_to(one.document, "b").data) < 1_000


def test_of_two_equal_lines_one_stays_where_two_instances_each_remove_one() -> None:
    one, other, third = sides()
    one.add("- twice", "- between", "- twice")
    tell_all(one, other, third)
    one.file.remove("- twice")
    other.file.pop()
    one.settle()
    other.settle()
    tell_all(one, other, third)
    assert one.file == other.file == third.file
    assert one.file.count("- twice") == 1


def test_that_holds_also_where_the_removal_comes_before_the_pass() -> None:
    one, other, third = sides()
    one.add("- twice", "- between", "- twice")
    tell_all(one, other, third)
    other.file.pop()
    other.settle()
    one.file.remove("- twice")
    tell(other, one)
    tell_all(one, other, third)
    assert one.file == other.file == third.file
    assert one.file.count("- twice") == 1


def test_a_copy_stays_beside_a_move() -> None:
    one, other, third = sides()
    other.file = [*FIRST[:2], FIRST[3], FIRST[2]]
    other.settle()
    one.file = [*FIRST[:2], FIRST[2], FIRST[2], FIRST[3]]
    tell(other, one)
    assert one.settle().count(FIRST[2]) == 2
    tell_all(one, other, third)
    assert one.file == other.file == third.file
    assert one.file.count(FIRST[2]) == 2


@pytest.mark.parametrize("lost", ["document", "both"])
def test_a_line_that_only_a_lost_document_knew_stays_where_others_remove_theirs(lost: str) -> None:
    one, other, third = sides()
    other.add("- the same words")
    one.add("- the same words")  # the document knows it, and nobody else
    one.document = SharedDocument(instance="a", file="MEMORY.md")
    tell(one, other)
    tell(other, one)
    base = None if lost == "both" else one.base
    start = one.document.begin(base, one.write, {}, one.author, file=one.file)
    one.base = one.file = merged_with(start.lines, one.file, base=start.base, gone=(), ours=()).lines
    one.write += 1
    one.document.finish(one.file, one.write, one.author)
    tell(one, other)
    other.file.remove("- the same words")  # from a text that did not show the other one yet
    start = other.document.begin(other.base, other.write, {}, other.author, file=other.file)
    assert start.unsure == ("- the same words",)
    tell_all(one, other, third)
    assert one.file == other.file == third.file == [*FIRST, "- the same words"]


def test_an_instance_that_lost_its_document_keeps_no_copy_that_its_file_did_not_have() -> None:
    one, other, third = sides()
    one.add("- by hand")
    tell_all(one, other, third)
    one.add("- by hand")
    other.document = SharedDocument(instance="b", file="MEMORY.md")
    other.document.receive(one.document.update_since(NOTHING, whole=True), other.author)
    assert other.settle().count("- by hand") == 2
    one.file = list(FIRST)  # before it hears what the other one has kept
    one.settle()
    tell_all(one, other, third)
    assert one.file == other.file == third.file == [*FIRST, "- by hand"]


def test_a_line_that_comes_back_because_a_document_was_lost_is_listed_where_it_was_removed() -> None:
    one, other, third = sides()
    other.add("- a line")
    tell_all(one, other, third)
    one.document = SharedDocument(instance="a", file="MEMORY.md")
    tell(one, third)
    tell(third, one)
    one.settle()
    other.file.remove("- a line")
    other.settle()
    tell(one, other)
    start = other.document.begin(other.base, other.write, {}, other.author, file=other.file)
    assert start.unsure == ("- a line",)
    other.settle()
    assert "- a line" in other.file
    assert other.document.begin(other.base, other.write, {}, other.author, file=other.file).unsure == ()
    tell(other, third)
    third.document.receive(update_to(one.document, "c"), third.author)
    start = third.document.begin(third.base, third.write, {}, third.author, file=third.file)
    assert start.unsure == ("- a line",)  # also where it was only said that it was removed
    other.file.remove("- a line")  # for good
    tell_all(one, other, third)
    assert one.file == other.file == third.file == FIRST


def test_the_instance_that_makes_the_document_has_each_line_once() -> None:
    one = SharedDocument(instance="a", file="MEMORY.md")
    one.found(FIRST)
    author = Author(instance="a", at_ms=1)
    for base in (None, FIRST):
        one.begin(base, 1, {}, author, file=FIRST)
    assert one.document is not None
    assert [found.places for found in one.document.shown()] == [(at,) for at in range(len(FIRST))]


def test_a_line_stays_where_its_instance_takes_another_document_and_others_remove_theirs() -> None:
    one, other, third = sides()
    old = one.document.stored()
    other.add("- the same words")
    tell_all(one, other, third)
    for side in (other, third):
        side.document.compact(NAMES)
    one = Side("a", old)
    one.add("- the same words", "- and more")
    other.file.remove("- the same words")
    other.settle()
    third.add("- one", "- two", "- three")
    one.document.receive(third.document.update_since(NOTHING, whole=True), one.author)
    tell_all(one, other, third)
    assert one.file == other.file == third.file
    assert one.file.count("- the same words") == 1


def test_an_entry_that_an_instance_removed_stays_away_where_it_takes_another_document() -> None:
    one, other, third = sides()
    old = one.document.stored()
    other.add(ENTRY)
    tell_all(one, other, third)
    for side in (other, third):
        side.document.compact(NAMES)
    one = Side("a", old)
    one.add(ENTRY)
    one.file.remove(ENTRY)
    one.settle()
    third.add("- one", "- two", "- three")
    one.document.receive(third.document.update_since(NOTHING, whole=True), one.author)
    tell_all(one, other, third)
    assert one.file == other.file == third.file
    assert ENTRY not in one.file


@pytest.mark.parametrize("put_back", [False, True])
def test_an_entry_that_others_removed_stays_away_where_an_instance_that_has_it_takes_their_document(
    put_back: bool,
) -> None:
    one, other, third = sides()
    if put_back:
        one.add(ENTRY)
        one.file.remove(ENTRY)
        tell_all(one, other, third)
    old, file, write = one.document.stored(), list(one.file), one.write
    other.add(ENTRY)
    tell_all(one, other, third)
    other.file.remove(ENTRY)
    tell_all(one, other, third)
    for side in (other, third):
        side.document.compact(NAMES)
    one = Side("a", old)
    one.file, one.base, one.write = list(file), list(file), write
    one.add(ENTRY)
    third.add("- one", "- two", "- three")
    one.document.receive(third.document.update_since(NOTHING, whole=True), one.author)
    tell_all(one, other, third)
    assert one.file == other.file == third.file
    assert (ENTRY in one.file) == put_back


@pytest.mark.parametrize("loaded", [False, True])
def test_a_removal_takes_no_line_that_came_with_another_document_since(loaded: bool) -> None:
    one, other, third = sides()
    old = one.document.stored()
    other.add("- the same words")
    tell_all(one, other, third)
    for side in (other, third):
        side.document.compact(NAMES)
    one = Side("a", old)
    one.add("- the same words", "- only here")
    third.add("- one", "- two", "- three")
    one.document.receive(third.document.update_since(NOTHING, whole=True), one.author)
    if loaded:
        one.document = SharedDocument.load(one.document.stored(), instance="a", file="MEMORY.md")
    one.file.remove("- the same words")
    one.file.remove("- only here")
    tell_all(one, other, third)
    assert one.file == other.file == third.file
    assert one.file.count("- the same words") == 1
    assert "- only here" not in one.file


def test_a_copy_stays_where_another_instance_removes_its_own_copy_and_a_third_the_line() -> None:
    one, other, third = sides()
    line = FIRST[2]
    other.add(line)
    tell(other, one)
    one.add(line)  # its own copy, and the other's has just arrived
    other.file = list(FIRST)
    other.settle()
    third.file.remove(line)
    third.settle()
    tell_all(one, other, third)
    assert one.file == other.file == third.file
    assert one.file.count(line) == 1


def test_a_line_that_two_documents_have_from_one_instance_is_one_line() -> None:
    one, other, third = sides()
    old = one.document.stored()
    third.add("- more")
    tell_all(one, other, third)
    third.document.compact(NAMES)
    one, other = Side("a", old), Side("b", old)
    one.add("- by hand")
    tell(one, other)
    third.add("- one", "- two", "- three")
    one.document.receive(third.document.update_since(NOTHING, whole=True), one.author)
    other.document.receive(one.document.update_since(NOTHING, whole=True), other.author)
    one.file.remove("- by hand")
    tell_all(one, other, third)
    assert one.file == other.file == third.file
    assert "- by hand" not in one.file


def test_an_instance_asks_again_until_it_has_what_it_could_not_take() -> None:
    one, other, third = sides()
    old = one.document.stored()
    other.add("- by b")
    late = update_to(other.document, "a")
    tell_all(one, other, third)
    for side in (one, other, third):
        side.document.compact(NAMES)
    one = Side("a", old)
    one.add("- after the restore")  # builds on history that the others have dropped
    one.document.receive(late, one.author)  # now it lacks nothing that they have
    for _ in range(3):
        tell(one, other)
        other.document.receive(third.document.update_since(NOTHING, whole=True), other.author)  # nothing new
        tell(other, one)
    assert sorted(one.settle()) == sorted(other.settle()) == sorted([*FIRST, "- by b", "- after the restore"])


def test_a_copy_that_a_killed_pass_brought_stays_where_it_removed_the_line() -> None:
    one, other, third = sides()
    line = FIRST[2]
    other.file.insert(3, line)
    other.settle()
    tell(other, one)
    for side in (one, third):  # neither file has shown the copy
        side.file.remove(line)
    assert one.settle(dies=True).count(line) == 1
    third.settle()
    tell_all(one, other, third)
    assert one.file == other.file == third.file
    assert one.file.count(line) == 1


def restored_and_edited() -> tuple[Side, Side, Side]:
    """The second one is restored from before a change that the first has compacted; the third has its new line."""
    one, other, third = sides()
    old = other.document.stored()
    one.add("- more")
    tell_all(one, other, third)
    one.document.compact(NAMES)
    other = Side("b", old)
    other.add("- by hand")
    tell(other, third)
    return one, other, third


def test_a_line_stays_away_that_its_instance_removed_before_it_took_another_document() -> None:
    one, other, third = restored_and_edited()
    other.file.remove("- by hand")
    other.settle()
    other.document.receive(one.document.update_since(NOTHING, whole=True), other.author)  # without this history
    tell_all(one, other, third)
    assert one.file == other.file == third.file
    assert "- by hand" not in one.file


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("more", [False, True])
def test_who_removes_one_of_two_lines_removes_no_copy_that_came_since(dies: bool, more: bool) -> None:
    one, other, third = sides()
    line = FIRST[2]
    one.add(line)
    if more:
        tell(one, other, third)
        third.settle()
    other.add(line)
    one.file.pop()  # the file never showed the copy of the other
    tell(other, one)
    one.settle(dies=dies)
    third.file = [left for left in third.file if left != line]  # nor did this one
    third.settle()
    tell_all(one, other, third)
    assert one.file == other.file == third.file
    assert one.file.count(line) == 1


@pytest.mark.parametrize("compacted", [False, True])
def test_a_line_stays_away_that_its_instance_removed_after_it_took_another_document(compacted: bool) -> None:
    one, other, third = sides()
    old = other.document.stored()
    one.add("- more")
    tell_all(one, other, third)
    for side in (one, other, third):
        side.document.compact(NAMES)
    other = Side("b", old)
    other.add("- by hand")
    late = other.document.update_since(NOTHING, whole=False)
    tell_all(one, other, third)  # it takes the document of the others, and its line into that
    if compacted:
        for side in (one, other, third):
            side.document.compact(NAMES)
    other.file.remove("- by hand")
    tell_all(one, other, third)
    third = Side("c", old)
    third.document.receive(late, third.author)  # from before, without the removal
    third.add("- after the restore")
    tell_all(one, other, third, rounds=5)
    assert one.file == other.file == third.file
    assert sorted(one.file) == sorted([*FIRST, "- more", "- after the restore"])


@pytest.mark.parametrize("compacted", [False, True])
def test_a_line_stays_away_that_others_have_from_both_documents_of_its_instance(compacted: bool) -> None:
    one, other, third = restored_and_edited()
    other.document.receive(one.document.update_since(NOTHING, whole=True), other.author)  # it brings its line along
    tell(other, third)
    other.file.remove("- by hand")
    other.settle()
    tell(other, one, third)  # both know this removal before it hears what the third one has
    if compacted:
        tell(third, one, other)  # they cannot take these changes
        tell(other, one)
        tell(one, other)
        for side in (one, other):
            side.settle()
            side.document.compact(NAMES)
    tell_all(one, other, third)
    assert one.file == other.file == third.file
    assert "- by hand" not in one.file


def test_a_line_that_was_moved_and_then_removed_between_two_passes_stays_away() -> None:
    one, other, _ = sides()
    other.file.remove(FIRST[2])
    other.settle()
    one.base = [*FIRST[:2], FIRST[3], FIRST[2]]  # moved, and written without the document
    one.file, one.write = [*FIRST[:2], FIRST[3]], one.write + 1
    tell(other, one)
    assert one.settle() == [*FIRST[:2], FIRST[3]]


def test_a_line_that_arrives_while_a_person_moves_another_one_over_it_stays_removed() -> None:
    one, other, _ = sides()
    one.file = [FIRST[1], "- new", FIRST[3]]
    one.settle()
    other.file = [FIRST[3], *FIRST[:3]]
    tell(one, other)
    other.settle()
    one.file.remove("- new")  # it has not heard of the move yet
    one.settle()
    tell_all(one, other)
    assert one.file == other.file == [FIRST[3], FIRST[1]]


@pytest.mark.parametrize("kills", [0, 1, 2])
@pytest.mark.parametrize("noted", [False, True])
def test_who_removes_one_of_two_lines_after_a_killed_pass_brought_the_copy_leaves_one(kills: int, noted: bool) -> None:
    one, other, third = sides()
    line = FIRST[2]
    other.file.insert(3, line)
    other.settle()
    tell(other, one, third)
    third.settle()
    assert one.settle(dies=True).count(line) == 2
    for side in (one, third):  # each person removes one of the two, and neither knows of the other
        side.file.remove(line)
    if noted:
        one.base, one.write = list(one.file), one.write + 1  # a write without the document
    for _ in range(kills):
        one.settle(dies=True)
    one.settle()
    third.settle()
    tell_all(one, other, third)
    assert one.file == other.file == third.file
    assert one.file.count(line) == 1
