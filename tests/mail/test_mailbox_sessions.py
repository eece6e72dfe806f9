"""When a mailbox logs in again: a login costs a relay much more than a question."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import RelayUnreachable
from holdfast.relay.client import mailbox
from holdfast.relay.client.channel import SessionOver
from holdfast.relay.client.mailbox import RelayMailbox


class _Over(BaseException): ...


class Scripted(RelayMailbox):
    """Each round of the one box has an outcome of the script; a round without a token logs in first."""

    def __init__(self, script: list[Exception | None]) -> None:
        self.script, self.logins = script, 0

    async def _one_round(self, box: Any) -> None:
        if not self.script:
            raise _Over
        if not box.token:
            self.logins += 1
            box.token = "token"
        outcome = self.script.pop(0)
        if outcome is not None:
            raise outcome


@pytest.mark.parametrize(
    ("script", "logins", "pauses"),
    [
        ([None, RelayUnreachable("cut"), None, RelayUnreachable("cut"), None], 1, 2),
        ([None, RelayUnreachable("restarts"), SessionOver("who?"), None], 2, 1),
        ([SessionOver("who?"), SessionOver("who?"), SessionOver("who?")], 3, 2),
    ],
)
async def test_a_session_outlives_a_question_without_an_answer(
    monkeypatch: pytest.MonkeyPatch, script: list[Exception | None], logins: int, pauses: int
) -> None:
    paused: list[float] = []

    async def sleep(seconds: float) -> None:
        paused.append(seconds)

    monkeypatch.setattr(mailbox.asyncio, "sleep", sleep)
    box: Any = type("Box", (), {"token": "", "trouble": ""})()
    one = Scripted(script)
    with pytest.raises(_Over):
        await one._watch(box)
    assert (one.logins, len(paused)) == (logins, pauses)
