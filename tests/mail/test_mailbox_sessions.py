"""When a mailbox logs in again: a login costs a relay much more than a question."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.mail import Delivery
from holdfast.errors import RelayUnreachable
from holdfast.relay.client import mailbox
from holdfast.relay.client.box import Box
from holdfast.relay.client.channel import SessionOver
from holdfast.relay.client.mailbox import RelayMailbox
from holdfast.relay.protocol.calls import Ack


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
    box: Any = type("Box", (), {"token": "", "trouble": "", "is_first": False})()
    one = Scripted(script)
    with pytest.raises(_Over):
        await one._watch(box)
    assert (one.logins, len(paused)) == (logins, pauses)


async def test_acknowledgements_wait_for_each_other_but_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Ack] = []

    class Channel:
        async def close(self) -> None: ...

        async def acknowledge(self, _id: object, _token: str, ack: Ack) -> Any:
            sent.append(ack)
            return type("Answer", (), {"full": 0})()

    def arrived(seq: int) -> Delivery:
        return Delivery(id="", at=(("r", seq, f"e{seq}"),))

    async def watch(_: object) -> None: ...

    nothing: Any = None
    one = RelayMailbox(type("Instance", (), {"id": "hf1"})(), nothing, list, nothing, Path(), Path())  # pyright: ignore
    monkeypatch.setattr(one, "_open_boxes", lambda: None)
    one._boxes["r"] = box = Box(nothing, Channel(), nothing, token="t")  # pyright: ignore
    monkeypatch.setattr(one, "_watch", watch)
    one._start()
    for seq in (1, 2, 3):
        await one.received([arrived(seq)], mark=seq)
    assert sent == []
    await asyncio.sleep(3 * mailbox.ACK_S)
    assert [(one.received, one.mark) for one in sent] == [(((1, "e1"), (2, "e2"), (3, "e3")), 3)]
    await one.received([arrived(seq) for seq in range(4, 4 + mailbox.ACK_AT_ONCE)], mark=99)
    assert len(sent) == 2, "many are sent at once"
    assert not box.owed
    await one.secured(up_to=50)
    assert sent[-1].secured == 50
    await one.received([arrived(200)], mark=100)
    await one.close()
    assert sent[-1].received == ((200, "e200"),), "those that are left go with the end"
