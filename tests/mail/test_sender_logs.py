"""Looking up the key logs of senders beside the taking of mail."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.errors import BadRecord, MailUnsent
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.encodings import AgentId
from holdfast.identity.records.records import LogPosition
from holdfast.layout.witness_address import WitnessRelay
from holdfast.relay.client import sender_logs
from holdfast.relay.client.address_book import AddressBook
from holdfast.relay.client.sender_logs import SenderCheck, SenderLogs, allowed_hints
from holdfast.relay.protocol.calls import FOR_NOW
from holdfast.relay.protocol.envelope import parse_envelope
from holdfast.testing.lab import wait_until
from holdfast_proofs.support.relay_agents import RelayAgent

KEY = "z6Mk" + "a" * 44
ADA, EVE = AgentId("hf1ada"), AgentId("hf1eve")
START = LogPosition(0, 0)


class Log:
    position = START


class Book(AddressBook):
    """Eve's log is never found; each look at her relays takes for ever."""

    def known_log(self, id: AgentId, position: LogPosition) -> KeyLog | None:
        return None

    async def log_of(self, id: AgentId, position: LogPosition, hints: Sequence[str]) -> KeyLog:
        asked.append((id, tuple(hints)))
        if asked.count((EVE, tuple(hints))) > 1 and hints:
            again.set()
        if id == EVE:
            if hints:
                await asyncio.Event().wait()
            raise MailUnsent("not known here")
        return cast("KeyLog", Log())


asked: list[tuple[str, tuple[str, ...]]] = []
again = asyncio.Event()  # a look at Eve's relays has ended, and the next one has begun


async def test_a_sender_that_cannot_be_found_holds_up_no_other_and_takes_little_room(tmp_path: Path) -> None:
    asked.clear()
    got: list[tuple[list[int], bool]] = []
    came = asyncio.Event()
    again.clear()

    def found(items: Sequence[int], log: KeyLog, forgotten: bool) -> None:
        got.append((list(items), forgotten))
        came.set()

    own = [WitnessRelay("http://127.0.0.1:1", KEY)]
    logs = SenderLogs[int](
        Book(tmp_path / "peers.json", lambda: own, Sodium()), found, print, look_s=0.02, again_s=0.01
    )
    hint = f"http://127.0.0.1:2#{KEY}"
    for number in range(100):
        logs.wait(EVE, START, (hint,), number)
    assert len(logs._wanted[EVE].waiting) == sender_logs.OF_SENDER_MAX
    for number in range(sender_logs.OF_SENDER_MAX + 2):
        logs.wait(ADA, START, (), number)
    assert logs.find(ADA, START) is None  # the next ones wait behind them
    async with asyncio.timeout(10):
        await came.wait()
        await again.wait()
    await logs.close()
    assert got == [(list(range(sender_logs.OF_SENDER_MAX)), True)]
    assert (ADA, ()) in asked


async def test_a_sender_that_had_no_room_at_all_is_heard_when_another_makes_room(tmp_path: Path) -> None:
    got, may_look = list[tuple[list[int], bool]](), asyncio.Event()

    class Slow(Book):
        async def log_of(self, id: AgentId, position: LogPosition, hints: Sequence[str]) -> KeyLog:
            await may_look.wait()
            return cast("KeyLog", Log())

    def found(items: Sequence[int], log: KeyLog, forgotten: bool) -> None:
        got.append((list(items), forgotten))

    async def all_found() -> bool:
        return len(got) == sender_logs.WAITING_MAX

    logs = SenderLogs[int](Slow(tmp_path / "peers.json", list, Sodium()), found, print)
    for number in range(sender_logs.WAITING_MAX):
        assert logs.wait(AgentId(f"hf1sender{number}"), START, (), number)
    assert not logs.wait(ADA, START, (), 1_000)
    may_look.set()
    await wait_until(all_found)
    await logs.close()
    assert sum(forgotten for _, forgotten in got) == 1, "all mail is listed again, once"


async def test_senders_that_cannot_be_found_make_room_for_others_and_their_mail_is_given_back(tmp_path: Path) -> None:
    """Many strangers, whose logs nobody has, once kept out everyone who had not written in the last minutes."""
    asked.clear()
    got, back = list[int](), list[int]()

    class Nobody(Book):
        async def log_of(self, id: AgentId, position: LogPosition, hints: Sequence[str]) -> KeyLog:
            if id == ADA:
                return cast("KeyLog", Log())
            raise MailUnsent("not known here")

    def found(items: Sequence[int], log: KeyLog, forgotten: bool) -> None:
        got.extend(items)

    own = [WitnessRelay("http://127.0.0.1:1", KEY)]
    book = Nobody(tmp_path / "peers.json", lambda: own, Sodium())
    logs = SenderLogs[int](book, found, back.extend, again_s=0.05, give_up_s=0.5)
    strangers = [AgentId(f"hf1stranger{number}") for number in range(sender_logs.WAITING_MAX)]
    for number, one in enumerate(strangers):
        assert logs.wait(one, START, (), number)
        assert logs.wait(one, START, (), number), "the same message, listed again, takes no more room"

    async def all_failed() -> bool:
        return all(one.failed for one in logs._wanted.values())

    async def all_given_back() -> bool:
        return len(back) == len(strangers)

    await wait_until(all_failed)
    assert logs.wait(ADA, START, (), 1_000)
    assert back == [0]
    await wait_until(all_given_back)
    await logs.close()
    assert (got, sorted(back)) == ([1_000], list(range(len(strangers))))


def test_a_log_that_is_older_than_the_certificate_refuses_mail_for_now_only() -> None:
    """The relays that answered were behind: the sender's next try finds the new keys."""
    sender, to = RelayAgent(), RelayAgent()
    behind = sender.log
    sender.rotate()
    envelope, check = parse_envelope(sender.envelope(to, 1)), SenderCheck(Sodium())
    with pytest.raises(BadRecord) as refused:
        check.check(envelope, behind)
    assert refused.value.message.startswith(FOR_NOW)
    check.check(envelope, sender.log)
    stranger = RelayAgent()
    stranger.rotate()
    with pytest.raises(BadRecord, match="the sender's keys did not sign"):
        check.check(envelope, stranger.log)


async def test_a_look_that_ends_with_a_fault_of_ours_is_repeated(tmp_path: Path) -> None:
    """Mail that is given back is sent again by its sender, or lost: one fault is no reason for that."""
    looks, back, got, told = list[int](), list[int](), list[int](), list[str]()

    class FaultyOnce(Book):
        async def log_of(self, id: AgentId, position: LogPosition, hints: Sequence[str]) -> KeyLog:
            looks.append(1)
            if len(looks) == 1:
                raise RuntimeError("can't start new thread")
            return cast("KeyLog", Log())

    async def all_found() -> bool:
        return got == [1]

    def found(waiting: Sequence[int], log: KeyLog, forgotten: bool) -> None:
        got.extend(waiting)

    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(str(context["exception"])))
    book = FaultyOnce(tmp_path / "peers.json", list, Sodium())
    logs = SenderLogs[int](book, found, back.extend, again_s=0.01)
    assert logs.wait(ADA, START, (), 1)
    await wait_until(all_found)
    await logs.close()
    assert (back, told) == ([], ["can't start new thread"])


async def test_a_look_that_always_ends_with_a_fault_of_ours_gives_the_mail_back(tmp_path: Path) -> None:
    """It once kept its room until the next start, and 16 such senders kept all others out."""
    back, lost = list[int](), list[str]()

    class Faulty(Book):
        async def log_of(self, id: AgentId, position: LogPosition, hints: Sequence[str]) -> KeyLog:
            raise ValueError("Invalid IPv6 URL")

    def report(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        lost.append(f"{context['message']}: {context['exception']}")

    async def given_back() -> bool:
        return back == [1, 2]

    def found(*_: object) -> None:
        raise AssertionError

    asyncio.get_running_loop().set_exception_handler(report)
    book = Faulty(tmp_path / "peers.json", list, Sodium())
    logs = SenderLogs[int](book, found, back.extend, again_s=0.01, give_up_s=0.05)
    assert logs.wait(EVE, START, (), 1)
    assert logs.wait(EVE, START, (), 2)
    await wait_until(given_back)
    assert not logs._wanted
    assert logs.wait(EVE, START, (), 3), "and it is looked for again"
    await logs.close()
    assert set(lost) == {f"the key log of {EVE} cannot be looked up: Invalid IPv6 URL"}


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("http://127.0.0.1:7411", False),
        ("http://localhost:7411", False),
        ("https://10.0.0.7", False),
        ("https://192.168.1.1", False),
        ("https://[fe80::1]", False),
        ("https://[::1]:7411", False),
        ("https://relay.internal", False),
        ("https://1.1.1.1", True),
    ],
)
async def test_a_stranger_makes_the_agent_ask_public_addresses_only(url: str, public: bool) -> None:
    hint = WitnessRelay(url, KEY)
    assert await allowed_hints([hint], [WitnessRelay("https://relay.example", KEY)]) == [hint] * public
    assert await allowed_hints([hint], [WitnessRelay("http://127.0.0.1:1", KEY)]) == [hint]


async def test_a_name_with_an_address_of_this_machine_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolved(*_: object, **__: object) -> list[object]:
        return [(2, 1, 6, "", ("127.0.0.1", 443))]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    assert await allowed_hints([WitnessRelay("https://evil.example", KEY)], []) == []


async def test_names_that_are_never_answered_hold_up_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()

    def resolved(*_: object, **__: object) -> list[object]:
        answered.wait(30)
        return []

    def found(*_: object) -> None:
        pass

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    own = [WitnessRelay("https://1.1.1.1", KEY)]
    logs = SenderLogs[int](Book(tmp_path / "peers.json", lambda: own, Sodium()), found, print)
    try:
        for number in range(100):
            logs.wait(AgentId(f"hf1{number}"), LogPosition(1, 1), (f"https://{number}.example#{KEY}",), number)
        await asyncio.sleep(0.1)
        async with asyncio.timeout(2):
            assert await asyncio.to_thread(lambda: "other work") == "other work"
    finally:
        answered.set()
        await logs.close()
