"""Commands that Holdfast suggests name the journal that the command at hand has named."""

from __future__ import annotations

import pytest

from holdfast.cli.input.again import all_named, named, naming


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["todo"], ""),
        (["todo", "--home", "my agents/ada", "--json"], " --home 'my agents/ada'"),
        (
            ["todo", "--journal=postgresql://db/a?x=1&y=2", "--home", "a"],
            " --journal 'postgresql://db/a?x=1&y=2' --home a",
        ),
        (["submit", "app", "--", "--home", "x"], ""),
        (["todo", "--home"], ""),
    ],
)
def test_the_options_that_name_the_journal(words: list[str], options: str) -> None:
    assert naming(words) == options


def test_each_command_in_a_text_gets_them_once() -> None:
    text = (
        "`holdfast effect show T/1` shows it, `holdfast effect settle T/1 --home b` decides; `df -h`, `holdfast init`"
    )
    wanted = text.replace("T/1` shows", "T/1 --home a` shows")
    assert all_named(text, " --home a") == wanted
    assert all_named(text, "") == text
    assert named("holdfast worker APP", " --home a") == "holdfast worker APP --home a"
