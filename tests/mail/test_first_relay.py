"""A recipient waits for mail at one relay, which senders prefer; second copies of the others come later, together."""

from __future__ import annotations

import asyncio
import sys
import time
from errno import EMFILE
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from intake_stage import until

from holdfast.core.mail import MailKind
from holdfast.errors import MailUnsent
from holdfast.layout.witness_address import WitnessRelay
from holdfast.relay.client import mailbox
from holdfast.relay.client.box import Box
from holdfast.relay.client.health import AGAIN_S, HealthBook, first_relay
from holdfast.relay.client.mailbox import RelayMailbox
from holdfast.relay.client.post import RelayPost, _Sending
from holdfast.relay.protocol.calls import MailAnswer, MailItem

KEYS = ("z6MkA", "z6MkB", "z6MkC")
RELAYS = [WitnessRelay(f"http://127.0.0.1:{n}", key) for n, key in enumerate(KEYS, 1)]
NOTHING: Any = None


def test_all_senders_know_the_same_first_relay_and_it_is_not_one_for_all_recipients() -> None:
    assert len({first_relay("hf1ada", order) for order in permutations(KEYS)}) == 1
    assert {first_relay(f"hf1agent{n}", KEYS) for n in range(50)} == set(KEYS)
    assert first_relay("hf1ada", ()) == ""


def test_a_sender_prefers_it_until_it_is_much_slower_or_fails() -> None:
    def chosen(book: HealthBook) -> int:
        return sum(book.ranked(RELAYS, 0.0, first="z6MkB")[0].key == "z6MkB" for _ in range(200))

    book = HealthBook()
    assert chosen(book) == 200
    for _ in range(64):
        book.of(RELAYS[1]).succeeded(0.15)
    assert chosen(book) == 200
    for _ in range(64):
        book.of(RELAYS[1]).succeeded(2.0)
    assert chosen(book) < 20
    failed = HealthBook()
    failed.of(RELAYS[1]).failed(-1.0)
    assert chosen(failed) == 0
    failed.of(RELAYS[1]).failed(-AGAIN_S)
    assert chosen(failed) == 200
    tripped = HealthBook()
    for _ in range(3):
        tripped.of(RELAYS[1]).failed(0.0)
    tripped.of(RELAYS[1]).open_until = 1.0
    assert chosen(tripped) == 0


def test_a_relay_that_hangs_is_asked_last_and_one_that_failed_is_asked_again_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first relay of the recipient hangs; of the others one resets its first connection."""
    asked: list[str] = []

    async def submit(_post: RelayPost, relay: WitnessRelay, sending: _Sending, _envelope: bytes) -> None:
        asked.append(relay.key)
        if relay.key == first:
            await asyncio.Event().wait()
        if relay.key != second or asked.count(second) > 1:
            sending.stored[relay.key] = NOTHING

    peer: Any = SimpleNamespace(id="hf1ada", relays=RELAYS)
    post = RelayPost(instance=NOTHING, book=NOTHING, own_relays=list, port=NOTHING)
    first = first_relay("hf1ada", KEYS)
    second = next(key for key in KEYS if key != first)
    monkeypatch.setattr(RelayPost, "_submit", submit)

    async def story() -> None:
        for _ in range(3):
            sending = _Sending(peer, MailKind.MESSAGE, NOTHING, 2, lambda: None)
            await asyncio.wait_for(post._round(sending, b""), 3.0)
            assert sending.missing == 0

    asyncio.run(story())
    assert asked.count(second) == 4, "the one that failed was asked again, though the first one hung"
    assert asked.count(first) == 2, "of the third message it is not asked"


async def test_a_message_that_a_fault_of_this_machine_holds_up_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    async def submit(*_: object) -> None:
        raise OSError(EMFILE, "Too many open files", "log.jsonl")

    async def sealed(*_: object) -> bytes:
        return b""

    monkeypatch.setattr(RelayPost, "_submit", submit)
    monkeypatch.setattr(RelayPost, "_sealed", sealed)
    peer: Any = SimpleNamespace(id="hf1ada", relays=RELAYS)
    post = RelayPost(instance=NOTHING, book=NOTHING, own_relays=list, port=NOTHING, give_up_s=0.0)
    with pytest.raises(MailUnsent, match=r"127.0.0.1:1: OSError: .*Too many open files: 'log.jsonl'"):
        await post._deliver(_Sending(peer, MailKind.MESSAGE, NOTHING, 3, lambda: None), NOTHING)


def nothing_learned(_box: Box, _answered: object) -> None: ...


def no_backoff(_tries: int) -> float:
    return 0.0


class Channel:
    """Gives one page after the other, then waits; and when each was asked for."""

    def __init__(self, *pages: list[int]) -> None:
        self.pages, self.asked = list(pages), list[float]()

    async def take(self, *_: object, after: int, **_more: object) -> Any:
        self.asked.append(time.monotonic())
        if not self.pages:
            await asyncio.Event().wait()
        page = self.pages.pop(0)
        items = tuple(MailItem(after + n, bytes([one]) * 32, 0, b"x") for n, one in enumerate(page, 1))
        return MailAnswer(to="hf1", after=after, head=bytes(32), items=items, last=after + len(page)), None


def a_mailbox() -> RelayMailbox:
    instance = type("Instance", (), {"id": "hf1"})()
    one = RelayMailbox(instance, NOTHING, list, NOTHING, Path(), Path(), copies_s=0.3)  # pyright: ignore
    one._learn = nothing_learned  # type: ignore[method-assign]
    return one


async def pauses(one: RelayMailbox, *numbers: int, first: bool = False) -> list[bool]:
    """After which pages, of one message each, the relay is not asked again at once."""
    channel = Channel(*([number] for number in numbers))
    box: Any = Box(RELAYS[0], channel, NOTHING, token="t", is_first=first)  # pyright: ignore
    task = asyncio.create_task(one._watch(box))
    await until(lambda: len(channel.asked) > len(numbers))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return [later - before > 0.2 for before, later in zip(channel.asked, channel.asked[1:], strict=False)]


async def test_only_a_relay_that_gives_copies_of_what_the_first_one_gave_is_asked_later() -> None:
    one = a_mailbox()
    assert await pauses(one, 1, 3, first=True) == [False, False]
    assert await pauses(one, 1, 2, 3) == [True, False, True]
    assert await pauses(one, 1, 2, 3, first=True) == [False, False, False]
    one._hurry.set()
    assert await pauses(one, 1, 2, 3) == [False, False, False]


async def test_relays_that_give_what_the_first_one_withholds_do_not_wait_for_each_other() -> None:
    one = a_mailbox()
    assert await pauses(one, 1, 2) == [False, False]
    assert await pauses(one, 1, 2) == [False, False]


async def test_a_relay_that_gave_copies_does_not_wait_when_all_mail_is_listed_again() -> None:
    one = a_mailbox()
    assert await pauses(one, 1, first=True) == [False]
    one.copies_s = 3_600.0
    box: Any = Box(RELAYS[0], Channel([1]), NOTHING, token="t")  # pyright: ignore
    paused = asyncio.create_task(one._one_round(box))
    await asyncio.sleep(0.1)
    assert not paused.done()
    one._found((), NOTHING, True)
    async with asyncio.timeout(10):
        await paused


async def test_trouble_with_the_first_relay_is_told_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    one = a_mailbox()
    outcomes: list[Exception | None] = [OSError("cut"), None]
    seen: list[bool] = []

    async def round_of(_: object) -> None:
        seen.append(one._hurry.is_set())
        if not outcomes:
            await asyncio.Event().wait()
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome

    monkeypatch.setattr(one, "_one_round", round_of)
    monkeypatch.setattr(mailbox, "backoff_s", no_backoff)
    box: Any = Box(RELAYS[0], NOTHING, NOTHING, is_first=True)
    task = asyncio.create_task(one._watch(box))
    await until(lambda: len(seen) >= 3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert seen == [False, True, False]
