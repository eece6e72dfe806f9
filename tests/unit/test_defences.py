"""The register of defences: whole, up to date, and able to say that a test notices nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast_proofs.mutants.defences import (
    PAGE,
    Defence,
    Edit,
    edited,
    find_tests,
    read_defences,
    rows_shown,
    run_defences,
    stale,
)

PROJECT = Path(__file__).parents[2]
ROW_12 = "test_row_12_two_copies_of_one_instance_key_freeze"


def test_every_row_that_has_a_test_has_a_defence_that_can_be_taken_out() -> None:
    """If a row was built: name in defences.toml what stands against it."""
    shown = rows_shown((PROJECT / PAGE).read_text())
    defences = read_defences()
    assert set(shown) == {one.row for one in defences}
    for one in defences:
        assert one.test in shown[one.row], one
    assert {one.test for one in defences} <= set(find_tests(PROJECT / "tests"))


def test_every_text_to_take_out_is_there_once() -> None:
    assert stale(read_defences(), PROJECT) == []


def test_an_edit_that_fits_nowhere_or_twice_is_refused() -> None:
    source = "a = 1\nb = 1\n"
    assert edited(source, [Edit("x", "a = 1", "a = 2")]) == "a = 2\nb = 1\n"
    for old in ("= 1", "c = 1"):
        with pytest.raises(ValueError, match="times"):
            edited(source, [Edit("x", old, "")])
    with pytest.raises(SyntaxError):
        edited(source, [Edit("x", "a = 1", "a = ")])


@pytest.mark.slow
def test_a_defence_is_missed_and_an_edit_that_changes_nothing_is_not() -> None:
    chosen = [one for one in read_defences() if one.test == ROW_12][:1]
    same = Edit("identity.statements.claim", "WINDOW = 64", "WINDOW = 65")
    nothing = Defence(row=12, what="nothing", test=ROW_12, edits=(same,))
    said = [one.verdict for one in run_defences([*chosen, nothing], root=PROJECT)]
    assert said == ["red", "green"]
