"""A person at a prompt: a typo is asked again, a closed terminal is no answer."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from holdfast.cli.input import terminal
from holdfast.cli.input.agent_places import second_place
from holdfast.cli.input.terminal import ask_twice
from holdfast.errors import BadInput
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


def test_a_closed_terminal_is_not_enter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Keyboard(""))
    with pytest.raises(BadInput, match="no second place was named"):
        second_place(None, tmp_path / "vault", "ada")
