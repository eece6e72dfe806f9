"""Random schedules of five instances hold, and notice the traps; the ledger excuses no more than it says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast_proofs.merges.campaign import find_first, judge_all
from holdfast_proofs.merges.ledger import LOSSES, Changes, Ledger, Why
from holdfast_proofs.merges.world import FIRST, Died, World, update_to

SCHEDULES, PARTS = 1_000, 4  # `make merges` runs 100,000


@pytest.mark.parametrize("part", range(PARTS))
def test_schedules_hold(part: int) -> None:
    count = SCHEDULES // PARTS
    assert judge_all(range(part * count, (part + 1) * count))[0] == []


@pytest.mark.parametrize(
    "seed",
    [
        12581,
        13822,
        16151,
        16932,
        17601,
        30540,
        30755,
        32392,
        33671,
        61026,
        72308,
        100731,
        300984,
        411510,
        416732,
        434935,
        851240,
        854477,
        876615,
        877830,
        2032677,
        2074073,
        4004547,
        4036915,
        5049677,
        5092603,
    ],
)
def test_schedules_that_broke_once_hold(seed: int) -> None:
    assert judge_all(range(seed, seed + 1))[0] == []


@pytest.mark.parametrize("fault", ["whole-file-update", "diff-at-wrong-version", "no-normaliser"])
def test_a_trap_that_is_opened_again_is_noticed(fault: str) -> None:
    assert find_first(fault, 30) is not None


LINE = "- a line"


class Tale:
    """One line, and what was done to it."""

    def __init__(self, *, without: Why | None = None) -> None:
        self.ledger = Ledger([LINE], without=without)
        self.done = Changes(self.ledger.first)

    def add(self, why: Why | None = None, *, is_copy: bool = False) -> int:
        add = self.ledger.add(LINE, why, is_copy=is_copy)
        self.done |= Changes(frozenset([add]))
        return add

    def remove(self, *adds: int, why: Why | None = None) -> None:
        self.done |= Changes(removals=self.ledger.removal((one, why) for one in adds))

    def end(self, count: int) -> str:
        return self.ledger.judge(self.done, [LINE] * count)


def test_a_line_must_be_there_unless_each_of_its_adds_was_removed() -> None:
    tale = Tale()
    assert "lost" in tale.end(0)
    tale.add()
    tale.remove(0)
    assert "lost" in tale.end(0)
    assert tale.end(1) == ""
    assert "2 times" in tale.end(2)
    tale.remove(1)
    assert "back" in tale.end(1)
    assert tale.end(0) == ""
    assert not tale.ledger.excused.total()


@pytest.mark.parametrize("why", [why for why in Why if why is not Why.REPLACED])
@pytest.mark.parametrize("of", ["add", "removal"])
def test_what_is_not_certain_may_be_there_and_is_counted(why: Why, of: str) -> None:
    for without in (None, why):
        tale = Tale(without=without)
        if of == "add":
            tale.add(why)
            tale.remove(0)
        else:
            tale.remove(0, why=why)
        if of == "add" and why in LOSSES:  # the line may be missing: without the excuse it must be there
            assert ("lost" in tale.end(0)) == (without is why)
        else:
            assert ("back" in tale.end(1)) == (without is why)
        assert +tale.ledger.excused == ({} if without else {why: 1})
        tale.remove(0, 1)  # whoever sees it and removes it ends the excuse
        assert "back" in tale.end(1)


def test_of_two_copies_one_stays_where_one_was_removed() -> None:
    tale = Tale()
    tale.add(is_copy=True)
    assert tale.end(2) == ""
    tale.remove(0, 1, why=Why.COPIED)
    assert "lost" in tale.end(0)
    assert tale.end(1) == ""
    tale.remove(0, 1, why=Why.COPIED)  # on another host, at once
    assert "lost" in tale.end(0)
    tale.remove(0, 1)
    assert tale.end(0) == ""


def test_copies_that_two_people_made_at_once_are_one_line_and_are_removed_as_one() -> None:
    tale = Tale()
    for _ in range(2):
        tale.add(is_copy=True)
    tale.remove(0, 1, 2, why=Why.COPIED)  # the file showed the line twice
    assert "lost" in tale.end(0)
    tale.remove(0)  # on another host, which knew no copy
    assert tale.end(0) == ""


def test_an_add_that_nobody_knows_is_excused_only_where_its_folder_was_replaced() -> None:
    tale = Tale()
    known = tale.done
    tale.add()
    tale.done = known
    assert "nobody knows" in tale.end(1)
    tale.ledger.replaced = Changes(frozenset([1]))
    assert tale.end(1) == ""


def test_a_copy_that_is_removed_and_made_again_between_two_passes_is_the_copy_that_was_there() -> None:
    world, line = World(0), FIRST[2]
    one = world.instances["a"]

    def save(*lines: str) -> None:
        one.disk = replace(one.disk, file=lines)

    world.copy(one, [*FIRST, line], len(FIRST))
    save(*FIRST, line)
    world.merge_pass(one)
    known = world.known(one)
    world.remove(one, line, left=1)
    save(*FIRST)
    world.back_up(one)
    world.copy(one, [*FIRST, line], len(FIRST))
    save(*FIRST, line)
    assert not one.disk.pending.removals
    assert {world.ledger.adds[add].why for add in one.disk.pending.adds} == {Why.MOVED}
    world.merge_pass(one)
    assert len(known.adds) == len(FIRST) - 1  # without the blank lines, and with the copy
    other = world.instances["b"]  # never saw the copy
    world.remove(other, line)
    other.disk = replace(other.disk, file=tuple(left for left in FIRST if left != line))
    world.restore(one)  # one of the two is removed once more
    assert world.settle() == ""
    assert world.judge() == ""


def test_an_edit_of_a_backup_is_repeated_with_what_it_removed() -> None:
    world = World(0)
    one = world.instances["a"]
    world.bring(one, LINE)
    world.remove(one, LINE)
    world.bring(one, "- more")
    one.disk = replace(one.disk, file=(*one.disk.file, "- more"))
    world.back_up(one)
    world.merge_pass(one)
    world.restore(one)
    assert world.settle() == ""
    assert world.judge() == ""


def test_who_removes_what_a_backup_shows_of_a_killed_pass_removes_no_line_that_others_have_since() -> None:
    world = World(0)
    one = world.instances["a"]
    world.bring(one, LINE)
    one.disk = replace(one.disk, file=(*one.disk.file, LINE))
    with pytest.raises(Died):
        world.merge_pass(one, dies=2)
    world.back_up(one)
    world.merge_pass(one)
    world.exchange(one)
    world.restore(one)
    world.remove(one, LINE)
    one.disk = replace(one.disk, file=tuple(FIRST))
    assert world.settle() == ""
    assert LINE in one.disk.file
    assert world.judge() == ""


def test_the_end_of_a_schedule_is_judged_by_what_the_files_show() -> None:
    world = World(0)
    assert world.judge() == ""
    world.remove(world.instances["a"], FIRST[2])  # though the file still has it
    assert world.settle() == ""
    assert "back" in world.judge()


@pytest.mark.parametrize("noted", [0, 1, 2])
def test_a_line_that_is_removed_and_written_anew_was_moved_unless_the_sidecar_of_the_pass_lacks_it(noted: int) -> None:
    world, line = World(0), FIRST[2]
    one, other = world.instances["a"], world.instances["b"]
    for host in (one, other):
        world.remove(host, line)
        host.disk = replace(host.disk, file=tuple(left for left in FIRST if left != line))
    if noted:
        world.project(one)
    world.bring(one, line)
    one.disk = replace(one.disk, file=(*one.disk.file[:2], line, *one.disk.file[2:]))
    if noted == 2:
        world.project(one)
    world.merge_pass(one)
    assert world.settle() == ""
    assert (line in one.disk.file) is (noted == 1)
    assert world.judge() == ""


def test_of_a_line_that_is_written_anew_elsewhere_and_those_between_each_may_be_the_moved_one() -> None:
    world, line = World(0), FIRST[2]
    one = world.instances["a"]
    world.remove(one, line)
    world.bring(one, line)
    one.disk = replace(one.disk, file=(*FIRST[:2], *FIRST[3:5], line, *FIRST[5:]))
    world.note_moves(one)
    assert not one.disk.pending.removals
    moved = [world.ledger.adds[add] for add in one.disk.pending.adds]
    assert {add.line for add in moved} == set(FIRST[2:5])
    assert {add.why for add in moved} == {Why.MOVED}


def test_a_line_that_a_killed_pass_brought_while_a_person_moved_another_one_over_it_stays_removed() -> None:
    world = World(0)
    one, other = world.instances["a"], world.instances["b"]
    for line in (FIRST[0], FIRST[2]):
        world.remove(one, line)
    world.bring(one, LINE)
    one.disk = replace(one.disk, file=("", LINE, *FIRST[3:]))
    world.merge_pass(one)
    for line in FIRST[:4]:
        world.bring(other, line, Why.MOVED)
    other.disk = replace(other.disk, file=(FIRST[3], *FIRST[:3], *FIRST[4:]))
    world.take(other, update_to(one.document, "b"))
    with pytest.raises(Died):
        world.merge_pass(other, dies=2)
    other.open()
    world.merge_pass(other)
    world.remove(one, LINE)
    one.disk = replace(one.disk, file=("", *FIRST[3:]))
    assert world.settle() == ""
    assert LINE not in one.disk.file
    assert world.judge() == ""
