"""A person at a prompt: a typo is asked again, a closed terminal is no answer."""

from __future__ import annotations

import io
from argparse import Namespace
from pathlib import Path

import pytest

from holdfast.cli.input import terminal
from holdfast.cli.input.agent_places import second_place
from holdfast.cli.input.input_slots import new_slots
from holdfast.cli.input.terminal import ask_sheet, ask_twice
from holdfast.cli.screen import output_words
from holdfast.cli.screen.output_words import copy_by_hand
from holdfast.errors import BadInput
from holdfast.identity.paper.phrase import english
from holdfast.identity.vault.slots import passphrase_key


class Keyboard(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the person will type, in this order."""
    answers: list[str] = []

    def answer(*_: object, **__: object) -> str:
        return answers.pop(0)

    monkeypatch.setattr(terminal.sys, "stdin", Keyboard())
    monkeypatch.setattr("getpass.getpass", answer)
    return answers


def asked() -> str:
    return ask_twice("new passphrase", for_what="it", hint="", check=passphrase_key)


def test_a_short_passphrase_is_refused_before_it_is_typed_again(
    typed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    typed += ["short", "correct horse battery", "correct horse battery"]
    assert asked() == "correct horse battery"
    assert "characters; try again" in capsys.readouterr().err


def test_a_typo_is_asked_again(typed: list[str]) -> None:
    typed += ["correct horse battery", "correct hrose battery", "correct horse battery", "correct horse battery"]
    assert asked() == "correct horse battery"


def test_three_typos_end_it(typed: list[str]) -> None:
    typed += ["correct horse battery", "correct hrose battery"] * 3
    with pytest.raises(BadInput, match="the two entries differ: nothing was changed"):
        asked()


def test_equal_passphrases_of_vault_and_second_place_are_asked_again(
    typed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A thief who opens one could open both. The person does not begin again for it."""
    args = Namespace(
        passphrase_fd=None, unlock_file=None, credential=None, second_passphrase_fd=None, second_unlock_file=None
    )
    typed += ["correct horse battery"] * 3 + ["another one, and long"] * 2
    vault, second = new_slots(args)
    assert vault[0].secret != second[0].secret
    assert "the same passphrase or unlock file; try again" in capsys.readouterr().err
    typed += ["correct horse battery"] * 5
    with pytest.raises(BadInput, match="the same passphrase"):
        new_slots(args)


def test_the_words_of_a_sheet_may_come_on_several_lines(typed: list[str]) -> None:
    words = [f"word{number}" for number in range(24)]
    typed += [" ".join(words)]
    assert ask_sheet("the words").split() == words
    typed += [words[0], " ".join(words[1:9]), " ".join(words[9:]), ""]
    assert ask_sheet("the words").split() == words
    typed += ["HF1R:HF1QABCD:WORD"]
    assert ask_sheet("the words") == "HF1R:HF1QABCD:WORD"
    assert typed == []


def test_words_that_stay_wrong_in_the_copy_are_shown_again(
    typed: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the words are lost with the third typo, and everything begins again with new ones."""
    monkeypatch.setattr(terminal.sys, "stdin", Keyboard("\n" * 40))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)

    def second(*_: object) -> list[int]:
        return [2]

    monkeypatch.setattr(output_words, "places_to_ask", second)
    words = tuple(english().words[at] for at in range(0, 480, 20))
    typed += ["zoo", "zoo", words[1], " ".join(words)]
    copy_by_hand("words of ada", words, english())
    said = capsys.readouterr().err
    assert said.count(f"word 2 of 24: {words[1]} ") == 2
    assert said.count(f"word 3 of 24: {words[2]} ") == 1


def test_a_closed_terminal_is_not_enter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Keyboard(""))
    with pytest.raises(BadInput, match="no second place was named"):
        second_place(None, tmp_path / "vault", "ada")
